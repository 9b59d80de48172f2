"""`scoreveil fit`, `show` and `verify`, and the commands that take what they made."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from scoreveil import Veil, fit
from scoreveil.audit.report.wording import number, percent
from scoreveil.cli import main
from scoreveil.fitting import frontier
from scoreveil.fitting.frontier import most_found
from scoreveil.gateway import config_file
from scoreveil.gateway.opened import open_config
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.promises import Attacker
from scoreveil.shapes import Binary, MultiLabel

COUNT, CLASSES = 700, 4


def draw(lead, count, seed, classes=CLASSES):
    """Scores and labels of a model that is the surer the larger the lead."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    logits = 1.5 * rng.normal(size=(count, classes))
    logits[np.arange(count), labels] += 2 + lead
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True), labels


def write_scores(folder, count=COUNT):
    """Of a model that is surer of its members."""
    for seed, (name, lead) in enumerate((("in", 1.0), ("out", 0.0))):
        scores, labels = draw(lead, count, seed)
        np.save(folder / f"{name}.npy", scores)
        np.save(folder / f"y_{name}.npy", labels)


@pytest.fixture
def scoreveil(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with scores."""
    monkeypatch.chdir(tmp_path)
    write_scores(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        shown = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(shown.out.split()), shown.err

    return run


@pytest.fixture(scope="module")
def given():
    """Records enough for labels to be told apart."""
    return *draw(0.0, 2000, 1), *draw(1.0, 2000, 0)


@pytest.fixture(scope="module")
def saved(given, tmp_path_factory):
    """Veils without ε and with one, saved."""
    folder = tmp_path_factory.mktemp("saved")
    fit(*given, rng=np.random.default_rng(0)).save(folder / "plain.json")
    fit(*given, epsilon=3.0, rng=np.random.default_rng(0)).save(folder / "epsilon.json")
    return folder


ALL = "--nonmembers out.npy --nonmember-labels y_out.npy --members in.npy --member-labels y_in.npy"


# fit


def share(value):
    """As the table shows it: of a region without records there is none."""
    return number(None if math.isnan(value) else value, 3)


def test_fit_leads_with_what_holds_for_new_records_then_regions_promise_and_worth(scoreveil):
    code, out, err = scoreveil(f"fit {ALL} -o veil.json")
    assert (code, err) == (0, "")
    veil = Veil.load("veil.json")
    promise, rows = veil.guarantee, veil.mechanism.rows()
    stated = f"{promise.advantage_alone:.3f}".removeprefix("0").rstrip("0")
    assert out.startswith(
        f"You asked for .02; for new records it is {stated} by the confidence alone (95 %, estimate). "
    )
    ordered = (
        "Take the fitted veil.",
        f"{len(rows)} regions, without ε",
        *(f"│ {r.number} │ {r.words} │ {percent(r.members)} │ {percent(r.others)} │ {share(r.right)} │" for r in rows),
        " ".join(promise.words.split()),
        "On records that the veil was not fitted on",
        "Brier score",
        "Wrote veil.json. Next:",
        "scoreveil verify veil.json",
        "scoreveil show veil.json -o veil.svg",
        f"scoreveil audit scores --veil veil.json {ALL}",
        "scoreveil protect scores.csv -o safe.csv --veil veil.json",
        "scoreveil serve model.onnx --veil veil.json",
    )
    place = 0
    for words in ordered:
        place = out.find(words, place)
        assert place >= 0, f"{words!r} does not follow"
    assert "false positives, one answer" not in out


def test_with_epsilon_one_line_says_what_it_allows_beside_the_population_promise(scoreveil):
    code, out, _ = scoreveil(f"fit {ALL} -e 2 -o veil.json")
    assert code == 0
    promise = Veil.load("veil.json").guarantee
    assert promise.epsilon == 2
    assert f"one answer with ε = 2 gives away at most {math.exp(2):.1f}% of the members" in out
    assert f"at most {0.01 + promise.advantage_alone:.1%}, however often they are asked about" in out
    assert "regions, with ε = 2" in out
    assert "how often a region announces each confidence" in out


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 5.0, 20.0, 700.0])
def test_no_test_at_one_percent_finds_more_than_epsilon_allows(epsilon):
    """Of all pairs of chances (false, true positives) that ε allows, none finds more."""
    most = most_found(epsilon)
    rate = 0.01
    allowed = [t for t in np.linspace(0, 1, 20_001) if t <= math.exp(min(epsilon, 50)) * rate
               and 1 - rate <= math.exp(min(epsilon, 50)) * (1 - t)]  # fmt: skip
    assert max(allowed) <= most + 1e-9
    assert max(allowed) == pytest.approx(most, abs=1e-4)
    assert most_found(None) == 1


def test_without_members_a_warning_says_what_bounds_membership(scoreveil):
    code, out, err = scoreveil("fit --nonmembers out.npy --nonmember-labels y_out.npy -o veil.json")
    assert code == 0
    assert err == (
        "Warning: no members were given, so what answers tell about membership is bounded by nothing. Give --members.\n"
    )
    assert "You asked for" not in out
    _, _, err = scoreveil("fit --nonmembers out.npy -e 2 -o other.json")
    assert "is bounded by ε alone" in err


@pytest.mark.parametrize("labels", ["", "--nonmember-labels y_out.npy --member-labels y_in.npy"])
def test_a_constant_veil_is_never_recommended_or_written(scoreveil, labels):
    code, out, err = scoreveil(f"fit --nonmembers out.npy --members in.npy {labels} --regions 1 -o veil.json")
    assert code == 3
    assert out.startswith("This veil announces the same confidence for every answer")
    assert "Publish labels only: the fitted veil announces one confidence for every answer." in out
    assert err == "Nothing was written: veil.json would say no more than labels do.\n"
    assert not Path("veil.json").exists()


def test_without_output_several_are_compared_and_nothing_is_written(scoreveil, tmp_path, monkeypatch):
    assert frontier.EPSILONS == (None, 8, 4, 2, 1, 0.5)
    monkeypatch.setattr(frontier, "EPSILONS", (None, 8.0, 0.5))
    before = set(tmp_path.iterdir())
    code, out, _ = scoreveil(f"fit {ALL}")
    assert code == 0
    assert out.startswith("You asked for .02; for new records")
    rows = [line.split("│") for line in out.split("┩")[1].split("│ │")]
    assert [row[0].strip() or row[1].strip() for row in rows[:3]] == ["none", "8", "0.5"]
    assert "1.6 %" in out, "what ε = 0.5 allows"
    assert "Nothing was written: to write the veil of the first row, add -o veil.json" in out
    assert set(tmp_path.iterdir()) == before


def test_files_that_seem_to_be_mixed_up_are_refused_unless_that_is_meant(scoreveil, tmp_path):
    swapped = "--members out.npy --member-labels y_out.npy --nonmembers in.npy --nonmember-labels y_in.npy"
    code, out, err = scoreveil(f"fit {swapped} -o veil.json")
    assert (code, out) == (2, "")
    assert "Are the two sides swapped?" in err
    assert "--force" in err
    assert not list(tmp_path.glob("veil.*"))
    code, _, err = scoreveil("fit --members out.npy --nonmembers out.npy -o veil.json --force")
    assert code == 0
    assert err.startswith("Warning: Most score vectors of the members are among the nonmembers too.")


def test_settings_of_the_fit_reach_it(scoreveil):
    line = f"fit {ALL} --advantage 0.05 --beyond correctness --regions 3 --certify 0.4 -o veil.json"
    code, out, _ = scoreveil(line)
    assert code == 0
    mechanism = Veil.load("veil.json").mechanism
    evidence = mechanism.evidence
    assert (evidence.asked, evidence.beyond, evidence.certified) == (0.05, "correctness", True)
    assert mechanism.size <= 3
    assert out.startswith("280 members and 280 others were held back, too few to certify anything: about ")
    assert "You asked for .05; for new records it is ." in out
    assert "beyond being right (95 %, theorem)" in out


COUNTED = """
import sys
opened = []
sys.addaudithook(lambda event, what: opened.append(str(what[0])) if event == "open" else None)
from scoreveil.audit.report.wording import number, percent
from scoreveil.cli import main
from scoreveil.fitting import frontier
frontier.EPSILONS = (None, 8.0)
try:
    main(sys.argv[1:])
finally:
    print(*(f"{name}={sum(each.endswith('/' + name) or each == name for each in opened)}" for name in FILES))
"""
FILES = ("out.npy", "y_out.npy", "in.npy", "y_in.npy")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A folder where a process of its own has fitted a veil, and what it said; last, how often it read each file."""
    folder = tmp_path_factory.mktemp("reported")
    write_scores(folder)
    program = COUNTED.replace("FILES", repr(FILES))
    line = f"fit {ALL} -e 3 -o veil.json --report report"
    command = [sys.executable, "-X", "utf8", "-c", program, *line.split()]
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")


def test_a_report_is_written_beside_the_veil(reported):
    folder, run = reported
    assert (run.returncode, run.stderr) == (0, "")
    assert "Report: report/report.html" in " ".join(run.stdout.split())
    found = json.loads((folder / "report" / "results.json").read_text(encoding="utf-8"))
    assert [each["epsilon"] for each in found["cost"]] == [None, 8, 3]
    assert found["promise"]["epsilon"] == 3
    assert "scoreveil verify veil.json" in (folder / "report" / "report.html").read_text(encoding="utf-8")


def test_each_file_is_read_once(reported):
    _, run = reported
    assert run.stdout.splitlines()[-1].split() == [f"{name}=1" for name in FILES]


def test_labels_may_have_a_header_and_no_cell_is_quoted(scoreveil, tmp_path):
    labels = np.load("y_out.npy")
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(map(str, labels)) + "\n")
    code, _, _ = scoreveil("fit --nonmembers out.npy --nonmember-labels y.csv --members in.npy -o veil.json")
    assert code == 0
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(["private"] * len(labels)) + "\n")
    code, _, err = scoreveil("fit --nonmembers out.npy --nonmember-labels y.csv -o other.json")
    assert code == 2
    assert "expected numbers of classes, 0 to 3, or their names" in err
    assert "private" not in err


def test_a_veil_is_replaced_only_if_that_is_wanted(scoreveil):
    scoreveil("fit --nonmembers out.npy -e 4 -o veil.json")
    code, _, err = scoreveil("fit --nonmembers out.npy -e 2 -o veil.json")
    assert code == 2
    assert "veil.json exists already; --force replaces it" in err
    assert Veil.load("veil.json").epsilon == 4
    assert scoreveil("fit --nonmembers out.npy -e 2 -o veil.json --force")[0] == 0
    assert Veil.load("veil.json").epsilon == 2


def test_protect_and_the_gateway_take_a_fitted_veil(scoreveil, saved, tmp_path):
    code, out, _ = scoreveil(f"protect out.npy -o safe.npy --veil {saved / 'plain.json'}")
    assert code == 0
    veil = Veil.load(saved / "plain.json")
    assert f"guarantee an advantage of at most {veil.guarantee.advantage:.3f} beyond the label" in out
    assert "add up" not in out, "the region is the same however often it is asked for"
    before, after = np.load("out.npy"), np.load("safe.npy")
    assert np.array_equal(after.argmax(axis=1), before.argmax(axis=1))
    assert np.isin(np.round(after.max(axis=1), 9), np.round(veil.mechanism.announced, 9)).all()
    table = {"veil": str(saved / "epsilon.json"), "onnx": "model.onnx"}
    veil = open_config(config_file.parse({"models": {"digits": table}}, tmp_path)).models["digits"].veil
    assert veil is not None
    assert veil.guarantee.epsilon == 3
    with pytest.raises(ValueError, match="name it alone"):
        config_file.parse({"models": {"digits": {**table, "epsilon": 2.0}}}, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"fit {ALL} -e 4", "Where shall the veil be written"),
        (f"fit {ALL} -o veil.npz", "A fitted veil is written as .json; veil.npz does not end in it"),
        (f"fit {ALL} -o no/veil.json", "There is no directory no to write to"),
        (f"fit {ALL} -e -1 -o veil.json", "Expected a finite epsilon > 0"),
        (f"fit {ALL} --advantage 0 -o veil.json", "Expected an advantage from 0.0001 to 1"),
        (f"fit {ALL} --beyond everything -o veil.json", "Expected beyond to be 'label' or 'correctness'"),
        (f"fit {ALL} --regions 9 -o veil.json", "Expected regions to be a whole number from 1 to 8"),
        (f"fit {ALL} --certify 1 -o veil.json", "Expected certify to be a part"),
        (
            "fit --nonmembers out.npy --members in.npy --member-labels y_in.npy -o veil.json",
            "without nonmember_labels",
        ),
        ("fit --nonmembers out.npy --nonmember-labels out.npy -o veil.json", "labels of nonmembers: expected 700"),
        ("fit --nonmembers none.npy -o veil.json", "no such file"),
        (f"fit {ALL} --report report", "A report is about one veil"),
        (f"fit {ALL} -o veil.json --report in.npy", "Expected a folder for the report, got in.npy: in.npy is a file"),
        (f"fit {ALL} -o veil.json --pdf", "--pdf prints the page that --report writes"),
        ("fit --nonmembers out.npy", "Without labels there is nothing to compare by"),
        ("protect out.npy -o safe.npy", "Missing --epsilon or --veil."),
        ("protect out.npy -o safe.npy --veil out.npy", "was not written by Veil.save"),
        ("verify none.json", "There is no file none.json"),
        ("show none.json", "There is no file none.json"),
        ("serve --veil veil.json", "--veil needs a MODEL"),
    ],
)
def test_what_cannot_be_done_is_one_line(scoreveil, tmp_path, line, message):
    code, out, err = scoreveil(line)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("veil.*")) + list(tmp_path.glob("safe.*"))


def test_the_file_is_small_and_holds_no_score(given, saved):
    text = (saved / "plain.json").read_text(encoding="utf-8")
    assert len(text) <= 30_000
    assert json.loads(text)["mechanism"] == "regions"
    numbers = {float(each) for each in re.findall(r"\d\.\d{4,}", text)}
    assert not np.isin(list(numbers), np.concatenate([given[0].ravel(), given[2].ravel()])).any()


# show


def test_show_prints_every_region_and_with_epsilon_the_answers(scoreveil, saved):
    code, out, err = scoreveil(f"show {saved / 'plain.json'}")
    assert (code, err) == (0, "")
    for row in Veil.load(saved / "plain.json").mechanism.rows():
        place, strips = row.words.removesuffix(" strips").split(", ")
        shares = f"{percent(row.members)} │ {percent(row.others)} │ {share(row.right)} │ {share(row.announced[0])}"
        assert f"│ {row.number} │ {place} │ {strips} │ {shares} │" in out
    assert "how often a region announces" not in out
    _, out, _ = scoreveil(f"show {saved / 'epsilon.json'}")
    mechanism = Veil.load(saved / "epsilon.json").mechanism
    assert "┃ " + " ┃ ".join(map(share, mechanism.announced[0])) + " ┃" in out
    for row in mechanism.rows():
        assert f"│ {row.number} │ " + " │ ".join(map(percent, row.answers)) + " │" in out


def test_show_draws_the_plane_and_the_bars(scoreveil, saved):
    code, out, _ = scoreveil(f"show {saved / 'plain.json'} -o veil.svg")
    assert code == 0
    assert out.endswith("Wrote veil.svg.")
    root = ET.parse("veil.svg").getroot()
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    mechanism = Veil.load(saved / "plain.json").mechanism
    for words in ("top score", "second score over the rest", "members", "others", ".99", "1"):
        assert words in texts
    for row in mechanism.rows():
        assert f"{100 * row.members:.1f} %" in texts
        assert f"{row.announced[0]:.3f}".removeprefix("0") in texts
    tones = {each.get("class") for each in root.iter("{http://www.w3.org/2000/svg}polyline")}
    assert sum(tone.startswith("t-r") for tone in tones) == mechanism.size
    code, _, err = scoreveil(f"show {saved / 'plain.json'} -o veil.svg")
    assert code == 2
    assert "--force replaces it" in err


def test_show_writes_a_page(scoreveil, saved):
    assert scoreveil(f"show {saved / 'epsilon.json'} -o veil.html")[0] == 0
    page = Path("veil.html").read_text(encoding="utf-8")
    assert page.count('class="chart ') == 2, "a wide drawing and a narrow one"
    assert "What is promised" in page
    assert 'id="cost"' not in page
    code, _, err = scoreveil(f"show {saved / 'epsilon.json'} -o veil.png")
    assert code == 2
    assert "is written as .svg or .html" in err


def test_show_prints_the_guarantee_of_a_veil_that_is_not_fitted(scoreveil):
    Veil(2.0).save("plain.json")
    code, out, _ = scoreveil("show plain.json")
    assert code == 0
    assert " ".join(str(Veil(2.0).guarantee).split()) == out
    code, _, err = scoreveil("show plain.json -o veil.svg")
    assert code == 2
    assert "Only a fitted veil has regions" in err


def yes_no():
    """Columns and truths of others and members, of a yes or no."""
    sides = [draw(lead, 900, seed, 2)[0][:, 1] for seed, lead in enumerate((0.0, 1.0))]
    return [(side, (np.random.default_rng(5).random(900) < side).astype(int)) for side in sides]


def test_show_of_a_yes_or_no_has_what_is_served(scoreveil):
    """Where the threshold is not one half, the vectors inside are stretched; what is shown is what comes out."""
    (others, truth), (members, member_truth) = yes_no()
    veil = fit(others, truth, members, member_truth, shape=Binary(0.3), rng=np.random.default_rng(0))
    veil.save("veil.json")
    _, out, _ = scoreveil("show veil.json")
    assert "┃ no ┃ yes ┃" in out
    served = veil(others)
    assert np.array_equal(served >= 0.3, others >= 0.3)
    for answer in np.unique(np.where(served >= 0.3, served, 1 - served)):
        assert share(answer) in out


def test_show_has_a_table_for_each_of_the_first_ten_labels(scoreveil):
    (others, truth), (members, member_truth) = yes_no()
    one = fit(others, truth, members, member_truth, shape=Binary(), rng=np.random.default_rng(0)).mechanism
    Veil(PerLabel.of((one,) * 12), shape=MultiLabel()).save("veil.json")
    code, out, _ = scoreveil("show veil.json -o veil.svg")
    assert code == 0
    assert [f"Label {i}: " in out for i in range(12)] == [True] * 10 + [False] * 2
    assert "… and 2 more labels." in out
    assert "Label 9" in Path("veil.svg").read_text(encoding="utf-8")
    code, out, _ = scoreveil("verify veil.json")
    assert code == 0
    assert "│ confidence alone │ 0 │" in out


# verify


def test_verify_states_each_attacker_beside_what_was_asked(scoreveil, saved):
    code, out, err = scoreveil(f"verify {saved / 'plain.json'}")
    assert (code, err) == (0, "")
    assert "plain.json keeps its promises." in out
    veil = Veil.load(saved / "plain.json")
    assert " ".join(veil.guarantee.words.split()) in out
    evidence = veil.mechanism.evidence
    for attacker, words in ((Attacker.ALONE, "confidence alone"), (Attacker.LABEL, "beyond the label")):
        figures = f"{float(evidence.shown(attacker)):.3f} │ {evidence.stated(attacker):.3f}"
        assert f"│ {words} │ 0.020 │ {figures} │" in out


def change(path, edit):
    about = json.loads(path.read_text(encoding="utf-8"))
    edit(about)
    Path("changed.json").write_text(json.dumps(about), encoding="utf-8")


def test_verify_refuses_a_table_that_was_edited(scoreveil, saved):
    def never(about):
        row = about["table"][0]
        low, high = row.index(min(row)), row.index(max(row))
        row[high], row[low] = row[high] + row[low], 0  # an answer that one region never gives

    change(saved / "epsilon.json", never)
    code, out, err = scoreveil("verify changed.json")
    assert (code, out) == (2, "")
    told = "changed.json breaks a promise. The table has an answer that some regions never give: its loss is infinite."
    assert err == f"Error: {told}\n"


@pytest.mark.parametrize("what", ["counts", "asked", "announced", "cut"])
def test_verify_refuses_a_file_that_was_changed(scoreveil, saved, what):
    """Not each of these breaks a promise that can be recomputed from the file, but none is what was written."""

    def edit(about):
        if what == "counts":
            about["evidence"]["sixteenths_of_records"][1][0][0][0] += 16
        elif what == "asked":
            about["evidence"]["asked"] = 0.01
        elif what == "announced":
            about["announced"][0][0] *= 0.999
        else:
            about["map"][0]["cuts"][0] *= 0.999

    change(saved / "plain.json", edit)
    code, _, err = scoreveil("verify changed.json")
    assert code == 2
    assert "changed.json" in err


RECORDS = "--members in.npy --member-labels y_in.npy --nonmembers out.npy --nonmember-labels y_out.npy"


def test_verify_counts_the_regions_on_given_records(scoreveil, saved, tmp_path):
    write_scores(tmp_path, 2000)  # those of the fit
    code, out, err = scoreveil(f"verify {saved / 'plain.json'} {RECORDS}")
    assert (code, err) == (0, "")
    assert "Counted on 2,000 members and 2,000 others, without noise" in out
    assert "they are not private" in out
    assert "95 % bootstrap" in out
    assert "The promise held on these records." in out
    assert all(words in out.split("Counted")[1] for words in ("confidence alone", "beyond the label", "being right"))


def test_verify_exits_with_3_where_the_records_exceed_the_promise(scoreveil, saved):
    scores, labels = draw(0.0, 3000, 7)
    _, region = Veil.load(saved / "plain.json").mechanism.read(scores)
    inside = region == np.bincount(region).argmax()
    for name, chosen in (("in", inside), ("out", np.ones(3000, dtype=bool))):
        np.save(f"{name}.npy", scores[chosen])
        np.save(f"y_{name}.npy", labels[chosen])
    code, out, err = scoreveil(f"verify {saved / 'plain.json'} {RECORDS}")
    assert (code, out) == (2, "")
    assert "Are the two sides the same records?" in err
    code, out, _ = scoreveil(f"verify {saved / 'plain.json'} {RECORDS} --force")
    assert code == 3
    assert "│ exceeded │" in out
    assert "The promise is exceeded on these records" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--members in.npy", "give --members and --nonmembers"),
        ("--member-labels y_in.npy", "give --members and --nonmembers"),
        ("--members in.npy --nonmembers y_out.npy", "nonmembers: "),
    ],
)
def test_verify_refuses_records_that_do_not_go_together(scoreveil, saved, line, message):
    code, out, err = scoreveil(f"verify {saved / 'plain.json'} {line}")
    assert (code, out) == (2, "")
    assert message in err


def test_verify_needs_a_fitted_veil_to_count(scoreveil):
    Veil(2.0).save("plain.json")
    assert scoreveil("verify plain.json")[0] == 0
    code, _, err = scoreveil(f"verify plain.json {RECORDS}")
    assert code == 2
    assert "Only a fitted veil has regions to count" in err
