"""How fast fitted veils are, as ratios taken in one run on one thread: the table of docs/fit.md.

python benchmarks/optimal.py
"""

import datetime
import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from batches import Scores, scores
from scoreveil import Veil, fit
from scoreveil.mechanisms import loading
from timing import Contestant, Effort, interleave, timed

EPSILON, SECRET = 4.0, bytes(range(32))
RECORDS = 10_000  # of each side in a fit
EFFORT = Effort(seconds=3.0, least=5, most=200)


def fitted(k: int, records: int) -> Veil:
    """Members are surer than others; labels are the scores' own."""
    others, members = scores(records, k, "float64", seed=1), scores(records, k, "float64", seed=2) ** 1.5
    members /= members.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(3)
    labels = [(rows.cumsum(axis=1) < rng.random((records, 1))).sum(axis=1).clip(0, k - 1) for rows in (others, members)]
    return fit(EPSILON, others, labels[0], members, labels[1], rng=rng)


def least(contestants: dict[str, Contestant]) -> dict[str, float]:
    return {name: min(seconds) for name, seconds in interleave(contestants, EFFORT).items()}


def batch(veil: Veil, rows: Scores) -> str:
    """Fresh and keyed, beside the isotonic veil; fresh beside a softmax of torch."""
    isotonic, logits = Veil(EPSILON), torch.from_numpy(np.log(rows + 1e-30))
    found = least(
        {
            "optimal": timed(partial(veil, rows)),
            "isotonic": timed(partial(isotonic, rows)),
            "optimal, keyed": timed(partial(veil.with_secret(SECRET), rows)),
            "isotonic, keyed": timed(partial(isotonic.with_secret(SECRET), rows)),
            "softmax": timed(partial(torch.softmax, logits, 1)),
        }
    )
    fresh, keyed = found["optimal"] / found["isotonic"], found["optimal, keyed"] / found["isotonic, keyed"]
    return (
        f"{found['optimal'] / len(rows) * 1e9:,.0f} ns a row, {fresh:.2f} × isotonic (goal .80); keyed {keyed:.2f} × "
        f"isotonic keyed (goal .80); {found['optimal'] / found['softmax']:.2f} × torch's softmax (goal below 1)"
    )


def main() -> None:
    torch.set_num_threads(1)
    loading.wait()
    ten, thousand = fitted(10, RECORDS), fitted(1000, 2000)
    vector = scores(1, 10, "float64")[0]
    one = least({"optimal": timed(partial(ten, vector), 2000), "isotonic": timed(partial(Veil(EPSILON), vector), 2000)})
    fits = least({"fit": timed(partial(fitted, 10, RECORDS))})["fit"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "veil.npz"
        ten.save(path)
        loads, size = least({"load": timed(partial(Veil.load, path))})["load"], path.stat().st_size
    today, load = datetime.datetime.now(datetime.UTC).date(), os.getloadavg()[0]
    print(f"`python benchmarks/optimal.py`, {today}, {os.cpu_count()} cores, load {load:.1f}\n")
    print("| what | measured |\n|---|---|")
    print(f"| 10 classes, 100,000 rows | {batch(ten, scores(100_000, 10, 'float64'))} |")
    print(f"| 1,000 classes, 1,000 rows | {batch(thousand, scores(1_000, 1_000, 'float64'))} |")
    alone, beside = (f"{one[name] * 1e6:.1f} µs" for name in ("optimal", "isotonic"))
    print(f"| one vector of 10 classes | {alone} (goal 8), isotonic {beside} |")
    print(f"| `fit` on 10,000 + 10,000 records | {fits:.2f} s (goal 2) |")
    print(f"| loading a fitted veil | {loads * 1e3:.1f} ms (goal 5), a file of {size / 1e3:.0f} kB (goal 100) |")


if __name__ == "__main__":
    main()
