"""The paper's experiments run end to end, go on where they were killed, and put our numbers beside the printed ones."""

import gzip
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from experiments import classifier as models
from experiments.__main__ import app
from experiments.data import benchmarks
from experiments.paper import figures as paper_figures
from experiments.paper import folder as folders
from experiments.paper import reproduction, tables
from experiments.paper.printed import TABLE_2
from experiments.paper.reproduction import DATASETS, PROFILES, parts_of, reproduce
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.networks.training import TrainingRun, TrainSettings
from scoreveil.audit.study.results import best, from_json, to_json

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

GOALS = tables.GOALS["mnist"]

SETTINGS = (
    ("none", None),
    ("published", 0.1),
    ("purification", None),
    ("phase_2_alone", 0.1),
    ("regions", None),
    ("isotonic_all_reference", 2.0),
)
TINY = replace(
    PROFILES["quick"],
    size=150,
    reference=100,
    width=2,
    epochs=dict.fromkeys(DATASETS, 3),
    inversion={name: InversionSettings(width=2, epochs=1) for name in DATASETS},
    settings=SETTINGS,
    inverted=(SETTINGS[0], SETTINGS[1], SETTINGS[4]),
    shadows={"mnist": 4},
    attacks=("ml_leaks", "max_confidence", "label_floor", "label_floor_known", "augmentation"),
)


def write_idx(path, array):
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=1))


def write_mnist(folder, images=1797):
    """Scikit-learn's digits, dressed as MNIST."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    bundled = load_digits()
    pixels = np.kron(bundled.images, np.ones((1, 4, 4)))[:images, 2:30, 2:30] * 15
    for part, rows in (("train", slice(0, images - 97)), ("t10k", slice(images - 97, images))):
        write_idx(raw / f"{part}-images-idx3-ubyte.gz", pixels[rows].astype(np.uint8))
        write_idx(raw / f"{part}-labels-idx1-ubyte.gz", bundled.target[:images][rows].astype(np.uint8))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(place, tmp_path_factory):
    """The study, and the cache that it left."""
    cache = tmp_path_factory.mktemp("cache")
    return reproduce(TINY, "mnist", place, cache, "python -m experiments", jobs=1), cache


def test_every_row_of_the_plan_is_there(made):
    study, _ = made
    assert [(d.defense, d.epsilon) for d in study.defenses] == list(SETTINGS)
    assert {(i.defense, i.form) for i in study.inversions} == {
        *(("none", form) for form in ("paper", "adaptive", "floor")),
        *((name, form) for name in ("published", "regions") for form in ("paper", "adaptive")),
    }
    assert len(study.originals) == 10
    attacked = {(r.defense, r.attack) for r in study.results}
    for defense in ("none", "published", "regions"):
        assert {(defense, name) for name in ("lira_online", "rmia_offline", "augmentation")} <= attacked
    assert best(study, ("none", None), attack="rmia_online", reads="label")
    ours = [d for d in study.defenses if d.defense in ("published", "regions", "isotonic_all_reference")]
    assert all(d.ratio_to_numpy is not None and d.ratio_to_numpy > 0 for d in ours)
    assert study.meta["records"]["shadow models"] == 4


def test_from_the_cache_it_is_the_same_without_training(made, place, monkeypatch):
    study, cache = made

    def train(*_):
        raise AssertionError("everything was trained before")

    monkeypatch.setattr(TrainingRun, "train", train)
    again = reproduce(TINY, "mnist", place, cache, "python -m experiments", jobs=1)
    assert to_json(again) == to_json(study)


def test_tables_put_ours_beside_the_papers(made):
    study, _ = made
    text = tables.markdown({"mnist": study}, "python -m experiments")
    cost = {(d.defense, d.epsilon): d for d in study.defenses}
    shown = f"| {100 * cost['published', 0.1].test_accuracy:.1f} (99.63) |"
    row = next(line for line in text.splitlines() if line.startswith("| published, ε = 0.1 |"))
    assert shown in row
    assert "(.948)" in row
    assert "(49.8)" in row
    for title in ("What was to be shown", "Reconstruction", "Time", "LiRA, RMIA and their kin"):
        assert f"# {title}" in text
    widths = {line.count("|") for line in text.split("### Time")[1].split("###")[0].strip().splitlines()}
    assert len(widths) == 1


def test_a_missed_goal_is_called_missed(made):
    study, _ = made
    kept = next(c for c in tables.claims_of(study, GOALS) if c.what.startswith("accuracy lost"))
    assert kept.met
    worse = tuple(replace(d, test_accuracy=0.01) if d.defense == "published" else d for d in study.defenses)
    lost = next(
        c for c in tables.claims_of(replace(study, defenses=worse), GOALS) if c.what.startswith("accuracy lost")
    )
    assert not lost.met
    drawn = next(c for c in tables.claims_of(study, GOALS) if "inversion error" in c.what)
    sharper = tuple(replace(i, mse=0.5 * i.mse) if i.form == "adaptive" else i for i in study.inversions)
    sharp = next(c for c in tables.claims_of(replace(study, inversions=sharper), GOALS) if "inversion error" in c.what)
    assert not sharp.met
    assert drawn.measured != sharp.measured


def test_the_printed_table_is_the_papers():
    assert set(TABLE_2) == set(DATASETS)
    assert all(len(rows) == 7 for rows in TABLE_2.values())
    row = TABLE_2["cifar10"]["published", 2.0]
    assert (row.distortion, row.inversion, row.ml_leaks, row.nsh, row.seconds) == (0.305, 0.502, 52.3, 51.5, 7.42e-05)


def test_figures_show_both_attackers(made):
    study, _ = made
    drawn = paper_figures.reconstructions(study)
    texts = {mark.text for mark in drawn.marks if hasattr(mark, "text")}
    assert {"originals", "published, ε = 0.1", "published, ε = 0.1, adaptive", "label alone"} <= texts
    curves = paper_figures.epsilon_curves(study, TABLE_2["mnist"])
    assert "Inversion error" in curves.title


def test_a_folder_holds_reports_figures_and_tables(made, tmp_path):
    study, _ = made
    tables_file = folders.write({"mnist": study}, tmp_path / "out", "python -m experiments")
    assert tables_file.read_text(encoding="utf-8") == tables.markdown({"mnist": study}, "python -m experiments")
    for name in ("report.html", "results.json", "figures/epsilon.svg", "figures/reconstructions-all.svg"):
        assert (tmp_path / "out" / "mnist" / name).stat().st_size > 1000
    kept = from_json((tmp_path / "out" / "mnist" / "results.json").read_text(encoding="utf-8"))
    assert replace(kept, results=()) == replace(study, results=())
    assert [replace(r, roc=()) for r in kept.results] == [replace(r, roc=()) for r in study.results]
    curves = {(r.setting, r.attack, r.form, r.features, r.reads): r.roc for r in study.results}
    drawn = [r for r in kept.results if r.roc]
    assert all(r.roc == curves[r.setting, r.attack, r.form, r.features, r.reads] for r in drawn)
    assert {r.setting for r in drawn} == {r.setting for r in study.results}
    assert len(drawn) < len(kept.results) / 2


def test_parts_are_disjoint_but_in_the_papers_own_setting():
    images = benchmarks.load("digits")
    apart = parts_of(images, TINY)
    sides = [apart.target_train, apart.target_test, apart.shadow_train, apart.shadow_test, apart.reference]
    assert [len(side) for side in sides] == [150] * 4 + [100]
    overlapping = parts_of(images, replace(PROFILES["paper"], size=1400, reference=100))
    rows = {name: {p.tobytes() for p in getattr(overlapping, name).pixels} for name in vars(overlapping)}
    assert not rows["target_train"] & rows["target_test"]
    assert not rows["target_train"] & rows["reference"]
    assert len(rows["target_train"] & rows["shadow_train"]) > 900


def test_the_papers_profile_runs_one_epoch_at_its_width(place, tmp_path):
    profile = replace(
        PROFILES["paper"],
        size=200,
        reference=60,
        epochs=dict.fromkeys(DATASETS, 1),
        inversion={name: InversionSettings(width=128, epochs=1) for name in DATASETS},
        settings=(("none", None), ("published", 0.1)),
        inverted=(),
        shadows={},
        attacks=("max_confidence", "label_floor"),
    )
    small = write_mnist(tmp_path / "small", images=320)
    study = reproduce(profile, "mnist", small, tmp_path / "cache", jobs=1)
    assert any("drawn from the same images" in note for note in study.notes)
    assert {r.attack for r in study.results} == {"max_confidence", "label_floor"}


def test_killed_in_training_it_loses_one_epoch_at_most(place, tmp_path):
    """The checkpoint of the last whole epoch is what it goes on from, and the end is the same."""
    images = benchmarks.load("mnist", place).take(slice(400))
    settings = TrainSettings(width=4, epochs=30, bf16=False)
    script = (
        "import sys\n"
        "from experiments import classifier as models\n"
        "from experiments.data import benchmarks\n"
        "from scoreveil.audit.networks.training import TrainSettings\n"
        "images = benchmarks.load('mnist', sys.argv[1]).take(slice(400))\n"
        "models.cached_classifier(images, TrainSettings(width=4, epochs=30, bf16=False), sys.argv[2],\n"
        "    lambda done: print(round(done * 30), flush=True))\n"
    )
    command = [sys.executable, "-c", script, str(place), str(tmp_path / "cache")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    told = [int(process.stdout.readline()) for _ in range(3)]
    process.kill()
    process.wait()
    process.stdout.close()
    steps = []
    went_on = models.cached_classifier(
        images, settings, tmp_path / "cache", lambda done: steps.append(round(done * 30))
    )
    assert round(steps[0]) >= told[-1]  # epoch 3 was done: the next to be told is 4, or 3 if its checkpoint was cut off
    straight = models.train(images, settings)
    assert np.array_equal(went_on.scores(images), straight.scores(images))


def test_wrong_input_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SCOREVEIL_CACHE", str(tmp_path))
    monkeypatch.delenv("SCOREVEIL_DATA", raising=False)
    runner = CliRunner()
    for given, message in (
        (["--profile", "huge"], "a profile among quick, standard, paper"),
        (["--dataset", "imagenet"], "datasets among"),
        (["--data-dir", str(tmp_path)], "--download"),
        (["--epochs", "0"], "epochs >= 1"),
    ):
        found = runner.invoke(app, given)
        assert found.exit_code != 0
        assert message in str(found.exception) + found.output


def test_the_command_writes_everything(place, tmp_path, monkeypatch):
    monkeypatch.setitem(reproduction.PROFILES, "quick", replace(TINY, datasets=("mnist",), shadows={}))
    out = tmp_path / "out"
    given = ["-o", str(out), "--data-dir", str(place), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 0, found.output
    assert "tables.md" in found.output
    assert (out / "mnist" / "report.html").is_file()
    assert Path(out / "tables.md").read_text(encoding="utf-8").startswith("# The paper's experiments")
