"""A study as an audit of a CIFAR-10 network would find it, made up from closed forms: for tests of what renders it."""

import base64
import struct
import zlib

import numpy as np
from sklearn.datasets import load_digits

from scoreveil.audit.study.results import AttackResult, DefenseResult, InversionResult, Study
from scoreveil.fitting.decision import Bounded, Evidence, Excess
from scoreveil.fitting.metrics import Group, Measure

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# AUC of the best attack on scores alone, with the true label; ℓ2 distortion; AUROC of confidence
RIVALS = {
    "memguard": (0.77, 0.81, 0.11, 0.74),
    "purification": (0.74, 0.79, 0.21, 0.70),
    "top_3": (0.79, 0.82, 0.02, 0.79),
    "rounding_1": (0.70, 0.76, 0.03, 0.72),
    "rounding_2": (0.79, 0.82, 0.001, 0.79),
    "temperature_5": (0.80, 0.83, 0.33, 0.79),
    "gaussian": (0.67, 0.73, 0.15, 0.71),
    "label_only": (0.50, 0.69, 0.42, 0.50),
}


def attack_result(defense, epsilon, attack, auc, n=40_000, form="adaptive", reads="scores", knows_label=False, **more):
    """One row: a binormal ROC of that AUC, with the interval that n members and n non-members leave."""
    spread = 1.96 * np.sqrt(max(auc * (1 - auc), 1e-4) / n) * 0.8
    shift = 2 * max(auc - 0.5, 0.0)
    rates = np.concatenate([np.logspace(-4, 0, 41)])
    hits = rates ** (1 / (1 + 2.2 * shift / max(1 - shift, 0.1)))  # concave, above the diagonal
    early, earlier = (float(np.interp(f, rates, hits)) for f in (0.01, 0.001))
    values = {
        "features": "scores",
        "accuracy": 0.5 + 0.7 * (auc - 0.5),
        "auc": auc,
        "auc_low": auc - spread,
        "auc_high": min(auc + spread, 1.0),
        "tpr_at_1pct": early,
        "tpr_at_1pct_low": 0.8 * early,
        "tpr_at_1pct_high": 1.2 * early,
        "tpr_at_01pct": earlier,
        "tpr_at_01pct_low": 0.6 * earlier,
        "tpr_at_01pct_high": 1.5 * earlier,
        "members": n,
        "nonmembers": n,
        "seconds": 1.25,
        "roc": tuple(zip(map(float, rates), map(float, hits), strict=True)),
        **more,
    }
    about = {"defense": defense, "epsilon": epsilon, "attack": attack, "form": form, "reads": reads}
    return AttackResult(**about, knows_label=knows_label, **values)


def attacks_on(defense, epsilon, auc, auc_with_label, n, label_floor=0.692):
    """Attacks of every form, the best of which reach these AUCs."""
    logs = {"features": "log_ratios"}
    weaker = {"max_confidence": 0.7, "entropy": 0.65, "ml_leaks": 0.85, "nsh": 0.9}
    rows = [
        attack_result(defense, epsilon, "random_forest", auc, n, **logs),
        attack_result(defense, epsilon, "random_forest_known", auc_with_label, n, knows_label=True, **logs),
        attack_result(defense, epsilon, "label_floor", 0.503, n, reads="label", features="label"),
        attack_result(defense, epsilon, "gap", label_floor, n, reads="label", features="label", knows_label=True),
        attack_result(defense, epsilon, "ranking_floor", min(auc, 0.531), n, reads="ranking", features="ranking"),
    ]
    for name, share in weaker.items():
        rows.append(attack_result(defense, epsilon, name, 0.5 + share * (auc - 0.5), n))
        rows.append(attack_result(defense, epsilon, name, 0.5 + share * 0.3 * (auc - 0.5), n, form="paper"))
    if epsilon is not None:
        rows.append(attack_result(defense, epsilon, "random_forest", auc - 0.004, n, form="averaging"))
    return rows


def groups(auroc, off, n=4_000):
    """Records of like confidence, spread the more the more it tells, announced `off` above how often they are right."""
    rates = 0.672 + (auroc - 0.5) * np.linspace(-1.0, 1.0, 10)
    made = []
    for rate in map(float, rates):
        reach = 1.96 * float(np.sqrt(rate * (1 - rate) / (n / 10)))
        made.append(Group(min(rate + off, 0.999), Measure(rate, rate - reach, rate + reach), n // 10))
    return tuple(made)


def cost(defense, epsilon, distortion, auroc, ranking=False):
    coverages = np.linspace(0.05, 1.0, 20)
    return DefenseResult(
        reliability=groups(auroc, 0.3 * distortion),
        risk_coverage=tuple((float(c), float(0.328 * c ** (4 * auroc - 2))) for c in coverages),
        aurc=0.5 * (1 - auroc),
        defense=defense,
        epsilon=epsilon,
        keeps_label=True,
        keeps_ranking=ranking,
        train_accuracy=1.0,
        test_accuracy=0.672,
        distortion_l1=1.5 * distortion,
        distortion_l2=distortion,
        ece=0.02 + 0.3 * distortion,
        brier=0.48 + 0.2 * distortion,
        nll=1.1 - auroc / 2,
        auroc_of_confidence=auroc,
        fit_seconds=0.013,
        seconds_per_vector=2.5e-7,
    )


def inversion(defense, epsilon, form, features, measured, redrawn):
    return InversionResult(*measured, defense=defense, epsilon=epsilon, form=form, features=features, pictures=redrawn)


def png_uri(pixels):
    """A grey picture, values 0..1, as a PNG data URI."""
    rows = np.clip(255 * pixels, 0, 255).astype(np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], 8, 0, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode()


def pictures(share, count=10):
    """Digits, `share` of the way from their class's mean to themselves."""
    digits = load_digits()
    means = np.array([digits.images[digits.target == c].mean(axis=0) for c in range(10)])
    mixed = share * digits.images[:count] + (1 - share) * means[digits.target[:count]]
    return tuple(png_uri(np.kron(picture / 16, np.ones((4, 4)))) for picture in mixed)


def make_study(n=40_000, epsilons=EPSILONS, leak=1.0, rivals=RIVALS, title="CIFAR-10, a small network", **more):
    """`leak` > 1 makes every isotonic setting leak more; n is the number of members."""
    results = attacks_on("none", None, 0.80, 0.83, n)
    defenses = [cost("none", None, 0.0, 0.79, ranking=True)]
    families = {  # the ε at which half of it shows, distortion from and to, AUROC from and to, AUC it ends at
        "published": (0.1, (0.84, 0.70), (0.55, 0.56), (0.80, 0.83)),
        "isotonic": (14.0, (0.50, 0.16), (0.50, 0.72), (0.74, 0.79)),
        "regions": (14.0, (0.20, 0.08), (0.52, 0.73), (0.73, 0.785)),
        "isotonic_all": (22.0, (0.50, 0.16), (0.50, 0.70), (0.69, 0.745)),
        "isotonic_all_reference": (22.0, (0.20, 0.08), (0.52, 0.71), (0.68, 0.74)),
    }
    for name, (half, distortion, auroc, ends) in families.items():
        for epsilon in epsilons:
            shown = epsilon**1.5 / (epsilon**1.5 + half**1.5)
            lift = shown if name == "published" else min(1.0, leak * shown)
            auc, told = 0.503 + lift * (ends[0] - 0.503), 0.692 + lift * (ends[1] - 0.692)
            results += attacks_on(name, epsilon, auc, told, n)
            moved = distortion[0] + shown * (distortion[1] - distortion[0])
            defenses.append(cost(name, epsilon, moved, auroc[0] + shown * (auroc[1] - auroc[0]), name != "isotonic"))
    for name, (auc, told, distortion, auroc) in rivals.items():
        results += attacks_on(name, None, auc, told, n)
        defenses.append(cost(name, None, distortion, auroc))
    inversions = (
        inversion("none", None, "adaptive", "log_ratios", (0.0281, 0.61, 0.412), pictures(0.9)),
        inversion("published", 0.5, "paper", "scores", (0.0702, 0.11, 0.003), pictures(-0.6)),
        inversion("published", 0.5, "adaptive", "log_ratios", (0.0343, 0.52, 0.297), pictures(0.7)),
        inversion("regions", 2.0, "adaptive", "log_ratios", (0.0409, 0.44, 0.011), pictures(0.05)),
        inversion("none", None, "floor", "ranking", (0.0322, 0.55, 0.308), pictures(0.75)),
        inversion("none", None, "floor", "label", (0.0402, 0.45, 0.010), pictures(0.0)),
    )
    meta = {
        "title": title,
        "command": "scoreveil audit scores.npz --epsilon 0.5,1,2,4,8,16,32 --out audit",
        "date": "2025-01-31",
        "versions": {"scoreveil": "0.1.0", "numpy": "2.4.6", "scikit-learn": "1.9.1"},
        "seeds": {"study": 0, "shadow": 1},
        "data": {"scores.npz": "sha256:9f3c1b7e5a2d4c60b8e1f7a93d2c5b4e6f8a0b1c2d3e4f5a6b7c8d9e0f1a2b3c"},
        "sizes": {"members": n, "non-members": n, "classes": 10},
        "machine": "2 cores, x86_64",
    }
    notes = ("The pictures were re-encoded as JPEG.",)
    beside = (cost("temperature_scaled", None, 0.1, 0.785), cost("label_constant", None, 0.42, 0.5))
    inversions = more.get("inversions", inversions)
    evidence = tuple(evidence_of(each, n) for each in defenses if each.defense == "regions")
    return Study(meta, tuple(results), tuple(defenses), inversions, pictures(1.0), notes, beside, evidence=evidence)


def evidence_of(veil, n=40_000, confidences=6):
    """As cross-fitting would measure it: raw scores leak, the veil leaks nothing that is seen here."""
    gain = 0.861 - veil.nll
    return Evidence(
        leak=Excess(0.25, 0.24, 0.26), veiled=Excess(0.005, -0.005, 0.015),
        worth=Bounded(gain, gain - 0.01, gain + 0.01),
        confidences=confidences, epsilon=veil.epsilon, records=(n, n),
    )  # fmt: skip
