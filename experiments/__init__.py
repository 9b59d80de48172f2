"""The laboratory: what Scoreveil's own claims rest on, run again. It is in no wheel; README.md says how to run it.

Each room uses the library and the rooms above it. The library knows nothing of it.

    data/         benchmarks.py    MNIST, Fashion-MNIST, CIFAR-10           adult.py       a census table
                  download.py      ... from where they are published        parts.py       images in disjoint parts
    classifier.py                  the paper's classifier
    recipes/      interface.py     what every recipe is: start here         __init__.py    ways to train, by name
                  regularised.py   L2, dropout, stopping, smoothing         losses.py RelaxLoss, HAMP, convex-concave
                  ensembles.py     stacking, SELENA                         minmax.py against an attack
                  linear.py        a convex model                           private_gradients.py   DP-SGD
                  private_elsewhere.py   differential privacy in inputs, loss, weights and classes
    paper/        reproduction.py  the paper's experiments, run again       printed.py     its Table 2, as printed
                  tables.py        ours beside it                           figures.py     its figures
                  folder.py        all of it, as files                      reports.py     ... of the committed results
                  which_veil.py    the table of docs/which-veil.md          undefended.py  why its attacks find more
    frontier/     training.py      every defense, compared                  exposed.py     those who need one most
                  comparison.py    ... as tables and figures                page.py        ... in docs/rivals.md
    __main__.py   the command of paper/ and frontier/

Questions that were asked once, each with its results where it has any:

    verdicts/     how often the audit's verdict is right    peers/        others' attacks; worker.py runs them elsewhere
    keying/       what keyed answers are a function of      labels.py     several labels a record
    asking.py     the audit that asks the model             regions.py    what fitted veils leave and tell
    neighbours/   who asks about copies of a record: smoothing.py beside smoothing, gateway.py through the gateway
    walk/         who walks around a record
    language/     a language model's logprobs; small_language_model.py trains and serves it
"""
