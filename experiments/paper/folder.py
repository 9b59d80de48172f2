"""A reproduction as a folder: tables.md, and for each dataset its report, results and figures."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments.paper import figures, tables
from experiments.paper.printed import TABLE_2
from scoreveil import atomic
from scoreveil.audit.report import page
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.study.results import Measure, Study, best, to_json


def write(studies: Mapping[str, Study], folder: Path, command: str) -> Path:
    """All of it; the path of tables.md, which is written last."""
    for name, study in studies.items():
        page.write(study, folder / name)
        atomic.write(folder / name / "results.json", to_json(lean(study)))
        sheets = {
            "epsilon": figures.epsilon_curves(study, TABLE_2.get(name, {})),
            "reconstructions-all": figures.reconstructions(study),
        }
        for figure, drawing in sheets.items():
            if drawing is not None:
                atomic.write(folder / name / "figures" / f"{figure}.svg", svg(drawing, alone=True))
    made = folder / "tables.md"
    atomic.write(made, tables.markdown(studies, command))
    return made


def lean(study: Study) -> Study:
    """The study with the ROC curves of the best attacks on each setting alone: all of them fill half of a file."""
    measures: tuple[Measure, ...] = ("auc", "tpr_at_1pct", "tpr_at_01pct")
    kept = {
        id(best(study, one, measure, told, **wanted))
        for one in {r.setting for r in study.results}
        for measure in measures
        for told in (False, True)
        for wanted in ({}, {"reads": "label"})
    }
    return replace(study, results=tuple(r if id(r) in kept else replace(r, roc=()) for r in study.results))
