"""The kinds of arrays that the package speaks of, named once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Rows = NDArray[Any]  # a row for each record: scores of any floating-point dtype, hashed tags
