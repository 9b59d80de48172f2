"""Table 2 of the paper, as printed."""

from dataclasses import dataclass

from scoreveil.audit.study.results import UNDEFENDED, Setting


@dataclass(frozen=True)
class PrintedRow:
    """Percentages, distortion, inversion error; hours to train and seconds to test."""

    train: float
    test: float
    distortion: float
    inversion: float
    ml_leaks: float
    nsh: float
    hours: float
    seconds: float


MEMGUARD: Setting = ("memguard", None)
PURIFICATION: Setting = ("purification", None)

TABLE_2: dict[str, dict[Setting, PrintedRow]] = {
    "mnist": {
        UNDEFENDED: PrintedRow(99.94, 99.63, 0, 0.935, 70.4, 72.3, 0, 0),
        ("published", 0.1): PrintedRow(99.94, 99.63, 0.948, 0.924, 49.8, 50.3, 0, 6.96e-05),
        ("published", 0.7): PrintedRow(99.94, 99.63, 0.783, 0.925, 50.4, 50.9, 0, 6.95e-05),
        ("published", 1.4): PrintedRow(99.94, 99.63, 0.535, 0.927, 51.1, 51.6, 0, 6.97e-05),
        ("published", 2.0): PrintedRow(99.94, 99.63, 0.328, 0.928, 52.0, 52.5, 0, 6.95e-05),
        MEMGUARD: PrintedRow(99.94, 99.63, 0.392, 0.908, 57.2, 55.3, 1.02, 2.53),
        PURIFICATION: PrintedRow(99.87, 99.55, 0.287, 0.925, 65.5, 68.2, 6.31, 1.22e-04),
    },
    "fashion-mnist": {
        UNDEFENDED: PrintedRow(99.74, 92.73, 0, 0.708, 69.3, 71.3, 0, 0),
        ("published", 0.1): PrintedRow(99.74, 92.73, 0.948, 0.691, 49.7, 50.1, 0, 6.91e-05),
        ("published", 0.7): PrintedRow(99.74, 92.73, 0.774, 0.694, 50.5, 50.8, 0, 6.91e-05),
        ("published", 1.4): PrintedRow(99.74, 92.73, 0.514, 0.695, 51.2, 51.7, 0, 6.90e-05),
        ("published", 2.0): PrintedRow(99.74, 92.73, 0.316, 0.697, 51.9, 52.5, 0, 6.93e-05),
        MEMGUARD: PrintedRow(99.74, 92.73, 0.442, 0.697, 55.2, 54.2, 1.1, 2.62),
        PURIFICATION: PrintedRow(99.68, 92.65, 0.301, 0.693, 65.1, 67.1, 6.40, 1.22e-04),
    },
    "cifar10": {
        UNDEFENDED: PrintedRow(99.14, 81.63, 0, 0.392, 65.6, 63.2, 0, 0),
        ("published", 0.1): PrintedRow(99.14, 81.63, 0.947, 0.426, 50.1, 49.3, 0, 7.41e-05),
        ("published", 0.7): PrintedRow(99.14, 81.63, 0.787, 0.428, 50.8, 49.9, 0, 7.40e-05),
        ("published", 1.4): PrintedRow(99.14, 81.63, 0.495, 0.429, 51.5, 50.6, 0, 7.39e-05),
        ("published", 2.0): PrintedRow(99.14, 81.63, 0.305, 0.502, 52.3, 51.5, 0, 7.42e-05),
        MEMGUARD: PrintedRow(99.14, 81.63, 0.327, 0.431, 53.9, 52.9, 5.1, 2.7),
        PURIFICATION: PrintedRow(99.09, 81.56, 0.284, 0.403, 61.2, 58.0, 8.24, 1.24e-04),
    },
}
