"""One short row takes another way than many, and must come to the same."""

import numpy as np
import pytest

from scoreveil import Veil
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms.scores import faults

ODD = [
    [0.5, 0.5], [1.0, 0.0], [0.7, 0.2], [0.7, 0.4], [-0.1, 1.1], [2.0, -1.0], [-0.0, 1.0], [0.4995, 0.4996],
    [np.nan, 1.0], [1.0, np.nan], [np.inf, 0.0], [0.0, np.inf], [-np.inf, 1.0], [np.inf, -np.inf], [1e308, 1e308],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_row_by_itself_has_the_faults_that_it_has_among_others(dtype: type) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # numpy warns of ∞ - ∞
        rows = np.array(ODD, dtype=dtype)
        alone = [fault for i in range(len(rows)) for fault in faults(rows[i : i + 1], i)]
        assert [str(fault) for fault in alone] == [str(fault) for fault in faults(rows)]
    assert [fault.row for fault in alone] == [2, 3, 4, 5, *range(8, len(rows))]


@pytest.mark.parametrize("classes", [2, 10, 64, 65])
def test_a_row_by_itself_gets_the_answer_that_it_gets_among_others(classes: int) -> None:
    rows = np.random.default_rng(0).dirichlet(np.full(classes, 0.3), size=40)
    rows[0] = 1 / classes  # all are the largest: the first counts
    veil, tags = Veil(2.0, secret=bytes(32)), [bytes([i]) for i in range(len(rows))]
    drawn, answers = KeyedVeil(veil).outcomes(rows, tags), KeyedVeil(veil)(rows, tags)
    for i in range(len(rows)):
        one = rows[i : i + 1]
        assert (KeyedVeil(veil).outcomes(one, tags[i : i + 1]) == drawn[i]).all()
        assert (KeyedVeil(veil).answers(one, drawn[i : i + 1]) == answers[i]).all()
        assert (KeyedVeil(veil)(one, tags[i : i + 1]) == answers[i]).all()
