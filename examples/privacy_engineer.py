"""For privacy engineers: measure what leaks, count what ε promises, and gate a release.

A forest learns half of scikit-learn's digits. Its scores go through `scoreveil audit scores`, as in a pipeline before
a release: bare, the gate is shut; behind a fitted veil it opens.

    pip install 'scoreveil[audit,cli]'
    python examples/privacy_engineer.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from scoreveil import Veil
from scoreveil.accounting import query_bound

LIMIT = "auc=0.7"

x, y = load_digits(return_X_y=True)
inside, outside = np.array_split(np.random.default_rng(0).permutation(len(x)), 2)
forest = RandomForestClassifier(n_estimators=50, random_state=0).fit(x[inside], y[inside])

print("What ε promises, and how often one record may be asked about within ε = 5:")
for epsilon in (0.1, 0.5, 2.0):
    promise = Veil(epsilon).guarantee
    print(f"  ε = {epsilon:<4g} the odds of a guess move by a factor of at most {np.exp(epsilon):4.1f};", end=" ")
    print(f"{query_bound(promise, 5.0)} fresh answers")

with tempfile.TemporaryDirectory() as folder:
    files = {"members": inside, "nonmembers": outside}
    for name, part in files.items():
        np.save(Path(folder) / f"{name}.npy", forest.predict_proba(x[part]))
    for setting in ("none", "regions"):
        command = [str(Path(sys.executable).with_name("scoreveil")), "audit", "scores"]
        command += [part for name in files for part in (f"--{name}", str(Path(folder) / f"{name}.npy"))]
        command += ["--defenses", "regions", "--attacks", "max_confidence,label_floor"]
        command += ["--fail-unless-under", LIMIT, "--setting", setting, "--jobs", "1", "--cache", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):
            raise SystemExit(done.stderr)
        print(f"\nThe gate at {LIMIT} for {setting}: {'open' if done.returncode == 0 else 'shut (exit code 3)'}")
print()
print(done.stdout)
