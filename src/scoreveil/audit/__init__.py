"""The audit: attack the scores of a model, undefended and defended, and say what still leaks.

A defense is only as good as the best attack tried on it. Computing returns values (`study`); only `report`, `paper`
and the command line render. Start at `study/run.py`: a plan, a subject, and what is found. Each room uses those above.

    cache.py      what took long, kept on disk
    data/         records.py     score vectors, members and others   images.py      labelled images, and their split
                  benchmarks.py  MNIST, Fashion-MNIST, CIFAR-10      download.py    ... from where they are published
    networks/     training.py    any network, killed or not          classifier.py  the paper's classifier
                  inverter.py    from scores back to pictures
    attacks/      interface.py   what every attack is: start here    __init__.py    all of them, by name
    defenses/     interface.py   what every defense is: start here   __init__.py    all of them, by name
    study/        run.py         every defense, every attack         results.py     what is found, and what compares
                  subjects.py    what is audited                     membership.py  one defense, every attack
                  shadows.py     many shadows, for LiRA and RMIA     metrics.py     what is measured
                  redrawing.py   the inversion attack                pictures.py    ... and what it draws
                  digits.py      the demo's study
    report/       verdict.py     what follows, and which ε to take   page.py        one HTML file
                  figures.py     frontier, ROC, sweeps               tables.py      the tables of the page
                  wording.py     names and numbers for people        charts/        panels as SVG and PNG
                  gate.py        whether a release may go on         fitted.py      the page of `scoreveil fit`
                  pdf.py         a page, printed
    paper/        experiments.py the paper's experiments, run again  printed.py     its Table 2, as printed
                  tables.py      ours beside it                      figures.py     its figures
                  folder.py      all of it, as files
"""
