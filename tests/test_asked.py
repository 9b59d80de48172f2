"""What asking the model found, as the report says it."""

from dataclasses import replace

import pytest

from scoreveil.audit.report import asked, page
from scoreveil.audit.study.results import AttributeResult, CanaryResult, Proved
from scoreveil.audit.verdict import verdict
from synthetic_study import attack_result, make_study


def inferred(side, success, gain, defense="none", sees_answer=False):
    ends = {f"{name}{end}": value + shift for name, value in (("success", success), ("gain", gain))
            for end, shift in (("", 0.0), ("_low", -0.03), ("_high", 0.03))}  # fmt: skip
    return AttributeResult(
        defense=defense, epsilon=None, column="<income>", values=3, sees_answer=sees_answer, side=side, records=400,
        marginal=0.4, imputation=0.5, **ends,
    )  # fmt: skip


def guessed(right, epsilon):
    return Proved(canaries=400, guesses=100, right=right, epsilon=epsilon)


def canary(defense, epsilon, proved, promised):
    return CanaryResult(
        defense=defense, epsilon=epsilon, canaries=400, in_all=guessed(99, 3.0), beyond_label=proved, promised=promised
    )


@pytest.fixture(scope="module")
def bare():
    return make_study(epsilons=(2.0,), rivals={}, inversions=())


def test_what_was_not_asked_is_not_told(bare):
    assert asked.parts(bare) == asked.sentences(bare) == []
    assert "By asking the model" not in page.html(bare, verdict(bare))


def test_what_training_on_a_record_adds_is_told(bare):
    rows = tuple(
        inferred(side, success, gain, defense)
        for defense, members in (("none", 0.9), ("label_only", 0.55))
        for side, success, gain in (("members", members, members - 0.5), ("nonmembers", 0.55, 0.05))
    )
    study = replace(bare, attributes=rows)
    (said,) = asked.sentences(study)
    assert "right for 50 % of the members" in said
    assert "right for 90 % (87–93 %) of the members and 55 % of the non-members" in said
    assert "adds +.35 (+.31 to +.39)" in said  # two errors of .03
    text = page.html(study, verdict(study))
    assert "Inferring &lt;income&gt;" in text
    assert "<income>" not in text


def test_a_broken_promise_is_told(bare):
    kept = canary("regions", 2.0, guessed(80, 1.1), 2.0)
    undefended = canary("none", None, guessed(90, 1.6), None)
    (said,) = asked.sentences(replace(bare, canaries=(undefended, kept)))
    assert "guesses 99 of 100 rightly from the undefended model" in said
    assert "Beyond the label, at least 1.60 is proved." in said
    assert said.endswith("Behind no veil is more proved than it promises.")
    broken = canary("isotonic", 0.5, guessed(90, 1.6), 0.5)
    (said,) = asked.sentences(replace(bare, canaries=(undefended, kept, broken)))
    assert "More is proved than promised: 1.60 behind isotonic, ε = 0.5, which promises 0.5." in said
    (said,) = asked.sentences(replace(bare, canaries=(canary("none", None, None, None),)))
    assert "eyond the label" not in said
    assert "promise" not in said


def test_each_has_a_table(bare):
    floor = attack_result("none", None, "label_boundary", 0.6, 100, reads="label")
    both = inferred("members", 0.9, 0.4), inferred("nonmembers", 0.5, 0.0)
    broken = canary("label_noise", None, None, None)
    study = replace(bare, boundary=(floor,), attributes=both, canaries=(broken,))
    tables = [part.table for part in asked.parts(study)]
    assert [len(table.rows) for table in tables] == [1, 1, 1]
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    text = page.html(study, verdict(study))
    for part in asked.parts(study):
        assert part.title in text
