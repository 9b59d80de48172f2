"""A reproduction as a folder: tables.md, and for each dataset its report, results and figures."""

from collections.abc import Mapping
from pathlib import Path

from scoreveil.audit.cache import put
from scoreveil.audit.paper import figures as paper_figures
from scoreveil.audit.paper import tables
from scoreveil.audit.paper.printed import TABLE_2
from scoreveil.audit.report import page as report
from scoreveil.audit.report.charts.png import png
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.study.results import Study


def write(studies: Mapping[str, Study], folder: Path, command: str) -> Path:
    """All of it; the path of tables.md, which is written last."""
    for name, study in studies.items():
        report.write(study, folder / name)
        sheets = {
            "epsilon": paper_figures.epsilon_curves(study, TABLE_2.get(name, {})),
            "reconstructions-all": paper_figures.reconstructions(study),
        }
        for figure, drawing in sheets.items():
            if drawing is not None:
                put(folder / name / "figures" / f"{figure}.svg", svg(drawing, alone=True).encode())
                put(folder / name / "figures" / f"{figure}.png", png(drawing))
    made = folder / "tables.md"
    put(made, tables.markdown(studies, command).encode())
    return made
