"""The audit: attack the scores of a model, undefended and defended, and say what still leaks.

    from scoreveil import audit

    found = audit.run(members=inn, nonmembers=out, member_labels=y_in, nonmember_labels=y_out)    # scores
    found = audit.run("in.npz", "out.npz", model=classifier)    # or inputs, and a model that is asked
    print(found)                  # the verdict, in sentences; in a notebook a table too
    found.veil                    # the veil to take, fitted, or None
    found.write("report")         # report.html, results.json, figures, veil.json

A defense is only as good as the best attack tried on it. Computing returns values (`study`); only `report` and the
command line render. Start at `study/run.py`: a plan, a subject, and what is found. Each room uses those above.

    cache.py      what took long, kept on disk
    data/         records.py     score vectors, members and others   images.py      labelled images
    networks/     training.py    any network, killed or not          inverter.py    from scores back to pictures
    attacks/      interface.py   what every attack is: start here    __init__.py    all of them, by name
    defenses/     interface.py   what every defense is: start here   __init__.py    all of them, by name
    study/        run.py         every defense, every attack         results.py     what is found, and what compares
                  models.py      scores of a model that is asked
                  subjects.py    what is audited                     membership.py  one defense, every attack
                  shadows.py     many shadows, for LiRA and its kin  metrics.py     what is measured
                  redrawing.py   the inversion attack                pictures.py    ... and what it draws
                  digits.py      the demo's study                    proved.py      the ε that attacks prove
                  risk.py        the risk of each record             promises.py    the ε proved, beside the ε promised
                  boundary.py    the floor, by asking for labels     attributes.py  a column, inferred
                  canaries.py    coins in one training run           asking.py      these three, where wanted
                  multi_label.py each label, and whole answers
    verdict.py    what follows from a study, and which ε to take
    report/       sentences.py   the verdict in words                page.py        one HTML file
                  figures.py     frontier, ROC, sweeps               pictures.py    ... and what was redrawn
                  table.py       what every table is                 tables.py      those of a study
                  region_tables.py, cost_tables.py    those of a fitted veil, for pages and terminals
                  wording.py     names and numbers for people        charts/        panels as SVG
                  gate.py        whether a release may go on         pdf.py         a page, printed
                  fitted.py      the page of `scoreveil fit`         summary.py     a few lines for a notebook
                  evidence.py    records at risk, classes, promises  records.py     records.csv and .parquet
                  asked.py       what asking the model found         vulnerability.py    for programs to read
                  multi_label.py a verdict on each label, and a page
    api.py        audit.run, for Python
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoreveil.audit.api import Audit, LabelsAudit, Limits, run
    from scoreveil.audit.study.models import Model

__all__ = ["Audit", "LabelsAudit", "Limits", "Model", "run"]


def __getattr__(name: str) -> Any:
    """`run` is imported where it is asked for: it needs torch and scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scoreveil.extras import needs

    with needs("audit"):
        from scoreveil.audit import api
        from scoreveil.audit.study import models
    return models.Model if name == "Model" else getattr(api, name)
