"""What attacks found that asked the model itself: a sentence, a table and a caption for each that was run."""

from dataclasses import dataclass
from typing import Literal

from scoreveil.audit.attacks.boundary import QUESTIONS
from scoreveil.audit.report import cost_tables
from scoreveil.audit.report.table import Table, TableCell, count, epsilon, share, spanned, table, word, yes
from scoreveil.audit.report.tables import SETTING, of_settings, setting_cells
from scoreveil.audit.report.wording import NOTHING, attack, interval, number, percent, setting_in_words
from scoreveil.audit.study.attributes import ASKED
from scoreveil.audit.study.results import UNDEFENDED, AttributeResult, CanaryResult, Proved, Setting, Study
from scoreveil.fitting import neighbours as around

# by setting, whether the answer is seen, and side
BySide = dict[tuple[Setting, bool, Literal["members", "nonmembers"]], AttributeResult]


@dataclass(frozen=True)
class Part:
    """One attack's part of the page."""

    title: str
    sentence: str
    table: Table
    caption: str


def parts(study: Study) -> list[Part]:
    """One for each attack that was run."""
    return [boundary(study)] * bool(study.boundary) + _beside_boundary(study)


def sentences(study: Study) -> list[str]:
    """Of all but the boundary: what that says stands in the verdict."""
    return [part.sentence for part in _beside_boundary(study)]


def _beside_boundary(study: Study) -> list[Part]:
    makers = (study.smoothing, neighbours), (study.attributes, attributes), (study.canaries, canaries)
    return [make(study) for results, make in makers if results]


def boundary(study: Study) -> Part:
    """Labels alone."""
    shown = table(
        "Asked for labels alone",
        study.boundary,
        [
            ("attack", "by how far a record is from where the label changes", lambda r: word(attack(r))),
            ("knows the label", "whether the attacker is given the true labels", lambda r: yes(r.knows_label)),
            (
                "AUC",
                "area under the ROC curve, with its 95 % interval; .5 is guessing",
                lambda r: spanned(r.auc, r.auc_low, r.auc_high),
            ),
            ("accuracy", "on as many members as non-members", lambda r: share(r.accuracy)),
            ("records", "members, and as many non-members", lambda r: count(r.members)),
        ],
    )
    sentence = (
        "How deep inside its label does a record lie? Training pushes the boundary away from members. It is found by "
        f"asking for labels alone, up to {QUESTIONS:,} times a record, so no veil that keeps the label can stop it."
    )
    caption = "Where this is surely above what one label gives, it is the floor that scores are compared with."
    return Part(shown.name, sentence, shown, caption)


def neighbours(study: Study) -> Part:
    """Around a record."""
    shown = cost_tables.smoothing(study.smoothing)
    caption = "Smoothing promises nothing by itself; it takes away what a model knows at a record and not beside it."
    return Part(shown.name, around.words(study.smoothing), shown, caption)


# A sensitive column


def attributes(study: Study) -> Part:
    by_side: BySide = {(r.setting, r.sees_answer, r.side): r for r in study.attributes}
    first = study.attributes[0]
    inside, outside = (by_side[first.setting, False, side] for side in ("members", "nonmembers"))
    value, low, high = added(inside, outside)
    undefended = interval(inside.success, inside.success_low, inside.success_high, percent)
    sentence = (
        f"The column {first.column} ({first.values} values): guessed from the other columns, without the model, it is "
        f"right for {percent(inside.imputation)} of the members. Who asks {_model(first.setting)} about each value is "
        f"right for {undefended} of the members and {percent(outside.success)} of the non-members: having trained on a "
        f"record adds {_signed(value)} ({_signed(low)} to {_signed(high)})."
    )
    caption = (
        f"Always the most common value is right for {percent(inside.marginal)} of {inside.records:,} members and "
        f"{percent(outside.marginal)} of {outside.records:,} non-members; guessed from the other columns "
        f"{percent(inside.imputation)} and {percent(outside.imputation)}. Who has the exact answer about the true "
        "record can look which value gives the same one; that takes no training on the record. Each value is asked "
        f"about {ASKED} times where answers are drawn anew."
    )
    return Part("A sensitive column", sentence, _attribute_table(f"Inferring {first.column}", by_side), caption)


def _attribute_table(name: str, by_side: BySide) -> Table:
    columns = (
        *((heading, meaning) for heading, meaning, _ in SETTING),
        ("sees the answer", "whether the attacker has the model's answer about the true record"),
        ("members", "how often the value is inferred of records that were trained on, with its 95 % interval"),
        ("gain", "above what is guessed from the other columns without the model"),
        ("non-members", "the same of records that were not trained on"),
        ("gain", "likewise"),
        ("by training on it", "how far members gain more than non-members: what having seen a record adds"),
    )
    rows = []
    for setting, sees in dict.fromkeys((setting, sees) for setting, sees, _ in by_side):
        sides = [by_side[setting, sees, side] for side in ("members", "nonmembers")]
        cells = [*setting_cells(setting), yes(sees)]
        for r in sides:
            cells += [spanned(r.success, r.success_low, r.success_high)]
            cells += [spanned(r.gain, r.gain_low, r.gain_high, is_signed=True)]
        rows.append((*cells, spanned(*added(*sides), is_signed=True)))
    return Table(name, columns, tuple(rows))


def _model(setting: Setting) -> str:
    return "the undefended model" if setting == UNDEFENDED else f"the model behind {setting_in_words(setting)}"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def added(inside: AttributeResult, outside: AttributeResult) -> tuple[float, float, float]:
    """How far members gain more than non-members: two samples, so the squares of their errors add up."""
    reach = sum(((r.gain_high - r.gain_low) / 2) ** 2 for r in (inside, outside)) ** 0.5
    value = inside.gain - outside.gain
    return value, value - reach, value + reach


# Canaries


def canaries(study: Study) -> Part:
    shown = of_settings(
        "The ε that canaries prove",
        study.canaries,
        (
            ("promised ε", "beyond the label, for one answer", lambda r: epsilon(r.promised)),
            (
                "proved beyond the label",
                "the ε that the guesses prove with 95 % confidence, given the predicted label",
                lambda r: _proved(r.beyond_label),
            ),
            (
                "proved in all",
                "the ε of training, label and scores together, which a veil does not promise",
                lambda r: _proved(r.in_all),
            ),
        ),
    )
    caption = (
        "One model was trained by the architecture given: this is about that way of training, not about one model. "
        "What a veil promises is about answers with the same label, so beyond the label only those canaries count "
        "whose label tells nothing of the coin. In small type: right guesses, and of how many canaries."
    )
    return Part("Canaries", _canary_sentence(study.canaries), shown, caption)


def _canary_sentence(results: tuple[CanaryResult, ...]) -> str:
    first = results[0]
    sentence = (
        f"Of {first.canaries:,} canaries, each trained on by the toss of a coin, an attacker guesses "
        f"{first.in_all.right} of {first.in_all.guesses} rightly from {_model(first.setting)}: training and answer "
        f"together have an ε of at least {number(first.in_all.epsilon)}."
    )
    if first.beyond_label is not None:
        sentence += f" Beyond the label, at least {number(first.beyond_label.epsilon)} is proved."
    broken = [
        f"{number(r.beyond_label.epsilon)} behind {setting_in_words(r.setting)}, which promises {r.promised:g}"
        for r in results
        if r.beyond_label and r.promised is not None and r.beyond_label.epsilon > r.promised
    ]
    if broken:
        sentence += f" More is proved than promised: {'; '.join(broken)}. Try another seed; if it stays, report it."
    elif any(r.promised is not None for r in results):
        sentence += " Behind no veil is more proved than it promises."
    return sentence


def _proved(proved: Proved | None) -> TableCell:
    if proved is None:
        return TableCell(NOTHING)
    return TableCell(number(proved.epsilon), proved.epsilon, f"{proved.right}/{proved.guesses} of {proved.canaries:,}")
