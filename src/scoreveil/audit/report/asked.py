"""What attacks found that asked the model itself: a sentence, a table and a caption for each that was run."""

from dataclasses import dataclass
from functools import partial

from scoreveil.audit.attacks.boundary import QUESTIONS
from scoreveil.audit.report.tables import SETTING, Table, TableCell
from scoreveil.audit.report.wording import NOTHING, attack, interval, number, percent, setting_in_words, words
from scoreveil.audit.study.attributes import ASKED
from scoreveil.audit.study.results import UNDEFENDED, AttributeResult, Proved, Setting, Study
from scoreveil.fitting import neighbours as around

short = partial(number, digits=3)


@dataclass(frozen=True)
class Part:
    """One attack's part of the page."""

    title: str
    sentence: str
    table: Table
    caption: str


def parts(study: Study) -> list[Part]:
    """One for each attack that was run."""
    made = (
        (study.boundary, boundary),
        (study.smoothing, neighbours),
        (study.attributes, attributes),
        (study.canaries, canaries),
    )
    return [make(study) for found, make in made if found]


def sentences(study: Study) -> list[str]:
    """Of all but the boundary: what that says stands in the verdict."""
    made = ((study.smoothing, neighbours), (study.attributes, attributes), (study.canaries, canaries))
    return [make(study).sentence for found, make in made if found]


def _setting(setting: Setting) -> tuple[TableCell, TableCell]:
    name, epsilon = words(setting[0]), setting[1]
    return TableCell(name, name), TableCell(NOTHING if epsilon is None else f"{epsilon:g}", epsilon)


def _cell(value: float, low: float, high: float, signed: bool = False) -> TableCell:
    """A share with its interval below."""
    shown = [f"{'+' if signed and one > 0 else ''}{short(one)}" for one in (value, low, high)]
    return TableCell(shown[0], value, f"{shown[1]} to {shown[2]}" if signed else f"{shown[1]}–{shown[2]}")


# Labels alone


def boundary(study: Study) -> Part:
    columns = (
        ("attack", "by how far a record is from where the label changes"),
        ("knows the label", "whether the attacker is given the true labels"),
        ("AUC", "area under the ROC curve, with its 95 % interval; .5 is guessing"),
        ("accuracy", "on as many members as non-members"),
        ("records", "members, and as many non-members"),
    )
    rows = tuple(
        (
            TableCell(attack(r), attack(r)),
            TableCell(*["yes" if r.knows_label else "no"] * 2),
            _cell(r.auc, r.auc_low, r.auc_high),
            TableCell(percent(r.accuracy), r.accuracy),
            TableCell(f"{r.members:,}", float(r.members)),
        )
        for r in study.boundary
    )
    sentence = (
        "How deep inside its label does a record lie? Training pushes the boundary away from members. It is found by "
        f"asking for labels alone, up to {QUESTIONS:,} times a record, so no veil that keeps the label can stop it."
    )
    caption = "Where this is surely above what one label gives, it is the floor that scores are compared with."
    return Part("Asked for labels alone", sentence, Table("Asked for labels alone", columns, rows), caption)


# Around a record


def neighbours(study: Study) -> Part:
    columns = (
        ("smoothing", "how far copies of a record lie from it, in standard deviations of each column"),
        ("attack", "AUC of who asks around a record and knows its label, behind the fitted veil; .5 is guessing"),
        ("labels alone", "AUC of the same attack on labels"),
        ("AUROC", "of the announced confidence: how well it tells right answers from wrong ones"),
    )
    rows = tuple(
        (
            TableCell(NOTHING if trial.scale is None else f"{trial.scale:g}", trial.scale),
            *(TableCell(short(value), value) for value in (trial.attack, trial.labels, trial.useful)),
        )
        for trial in study.smoothing
    )
    caption = "Smoothing promises nothing by itself; it takes away what a model knows at a record and not beside it."
    title = "Asked around a record"
    return Part(title, around.words(study.smoothing), Table(title, columns, rows), caption)


# A sensitive column


def attributes(study: Study) -> Part:
    found = {(r.setting, r.sees_answer, r.side): r for r in study.attributes}
    first = study.attributes[0]
    each = (
        ("members", "how often the value is inferred of records that were trained on, with its 95 % interval"),
        ("gain", "above what is guessed from the other columns without the model"),
        ("non-members", "the same of records that were not trained on"),
        ("gain", "likewise"),
        (
            "by training on it",
            "how far members gain more than non-members: what the model adds by having seen a record",
        ),
    )
    columns = (
        *SETTING,
        ("sees the answer", "whether the attacker has the model's answer about the true record"),
        *each,
    )
    rows = []
    for setting, sees in dict.fromkeys((r.setting, r.sees_answer) for r in study.attributes):
        inside, outside = found[setting, sees, "members"], found[setting, sees, "nonmembers"]
        cells = [
            cell
            for r in (inside, outside)
            for cell in (
                _cell(r.success, r.success_low, r.success_high),
                _cell(r.gain, r.gain_low, r.gain_high, signed=True),
            )
        ]
        answer = TableCell(*["yes" if sees else "no"] * 2)
        rows.append((*_setting(setting), answer, *cells, _cell(*added(inside, outside), signed=True)))
    inside, outside = (found[first.setting, False, side] for side in ("members", "nonmembers"))
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
    name = f"Inferring {first.column}"
    return Part("A sensitive column", sentence, Table(name, columns, tuple(rows)), caption)


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
    columns = (
        *SETTING,
        ("promised ε", "beyond the label, for one answer"),
        ("proved beyond the label", "the ε that the guesses prove with 95 % confidence, given the predicted label"),
        ("proved in all", "the ε of training, label and scores together, which a veil does not promise"),
    )
    rows = tuple(
        (
            *_setting(r.setting),
            TableCell(NOTHING if r.promised is None else f"{r.promised:g}", r.promised),
            _proved(r.beyond_label),
            _proved(r.in_all),
        )
        for r in study.canaries
    )
    first = study.canaries[0]
    broken = [
        f"{number(r.beyond_label.epsilon)} behind {setting_in_words(r.setting)}, which promises {r.promised:g}"
        for r in study.canaries
        if r.beyond_label and r.promised is not None and r.beyond_label.epsilon > r.promised
    ]
    kept = any(r.promised is not None for r in study.canaries)
    sentence = (
        f"Of {first.canaries:,} canaries, each trained on by the toss of a coin, an attacker guesses "
        f"{first.in_all.right} of {first.in_all.guesses} rightly from {_model(first.setting)}: training and answer "
        f"together have an ε of at least {number(first.in_all.epsilon)}."
    )
    if first.beyond_label is not None:
        sentence += f" Beyond the label, at least {number(first.beyond_label.epsilon)} is proved."
    if broken:
        sentence += f" More is proved than promised: {'; '.join(broken)}. Try another seed; if it stays, report it."
    elif kept:
        sentence += " Behind no veil is more proved than it promises."
    caption = (
        "One model was trained by the architecture given: this is about that way of training, not about one model. "
        "What a veil promises is about answers with the same label, so beyond the label only those canaries count "
        "whose label tells nothing of the coin. In small type: right guesses, and of how many canaries."
    )
    return Part("Canaries", sentence, Table("The ε that canaries prove", columns, rows), caption)


def _proved(found: Proved | None) -> TableCell:
    if found is None:
        return TableCell(NOTHING)
    return TableCell(number(found.epsilon), found.epsilon, f"{found.right}/{found.guesses} of {found.canaries:,}")
