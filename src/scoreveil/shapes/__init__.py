"""Shapes of scores: what is served is turned into vectors that sum to 1, each is veiled, and turned back.

    Vectors       a vector (n, k) for each record: the default, and nothing is turned
    Binary        two classes in one column: the probability of the positive one
    MultiLabel    a yes or no for each of several labels, independent of each other
    TopK          the largest scores of many classes, with or without the rest
    PerPosition   a vector for each token, pixel or place: (n, t, k)

A shape is a frozen value that travels with its veil: in files, in configurations. It answers for itself, by attributes
and methods: nobody else asks which one it is.

Every vector is a release of its own. An answer that holds m of them spends m · ε, and `Shape.releases` says how many.
An answer is made of the veiled vectors, the labels and the dtype alone: nothing else of the scores that were served
reaches it, to the last bit.
"""

from scoreveil.shapes.binary import Binary, MultiLabel
from scoreveil.shapes.pairs import as_columns, read_pairs, veiled_pairs
from scoreveil.shapes.shape import Shape, given, make, restored, said_beside
from scoreveil.shapes.top_k import RANKED, TopK, is_descending, scaled
from scoreveil.shapes.vectors import VECTORS, PerPosition, Vectors

__all__ = [
    "RANKED",
    "VECTORS",
    "Binary",
    "MultiLabel",
    "PerPosition",
    "Shape",
    "TopK",
    "Vectors",
    "as_columns",
    "given",
    "is_descending",
    "make",
    "read_pairs",
    "restored",
    "said_beside",
    "scaled",
    "veiled_pairs",
]
