"""The same two mechanisms as fused loops for the CPU, compiled by numba.

Given the same uniforms they agree with `published.perturb` and `isotonic.perturb` to 1e-12, draw by draw; read those
first. What is different here is only the layout. A group of `lanes` rows is worked on side by side: value (i, l),
rank i of row l, stands at i·lanes + l, so that neighbours in rank are `lanes` apart and every loop over values is a
loop over contiguous memory, one row to a SIMD lane. For many classes, or one row, lanes = 1 and the ranks themselves
fill the lanes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.isotonic import IsotonicSettings, Plan, plan
from scoreveil.mechanisms.kernels import keyed
from scoreveil.mechanisms.kernels.common import Floats
from scoreveil.mechanisms.kernels.isotonic import bind_isotonic
from scoreveil.mechanisms.kernels.published import bind_published
from scoreveil.mechanisms.loading import Kernel
from scoreveil.mechanisms.published import PublishedSettings
from scoreveil.mechanisms.tables import Tables
from scoreveil.randomness import KeyedDraws


def bind(mechanism: Plan | PublishedSettings) -> Kernel:
    """The kernel of a mechanism, for rows of any dtype."""
    run = bind_isotonic(mechanism) if isinstance(mechanism, Plan) else bind_published(mechanism)

    def any_dtype(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any]) -> int:
        if not rows.flags.writeable:
            rows = rows.copy()  # numba would compile anew for read-only memory
        if rows.dtype != np.float16:
            return run(rows, uniforms, out, out.dtype)
        # numba has no float16: compute in float64 with the gaps of float16
        wide = np.empty(rows.shape)
        bad = run(rows.astype(np.float64), uniforms, wide, out.dtype)
        if bad < 0:
            out[...] = wide
        return bad

    return any_dtype


def compile_all() -> None:
    """Compile, or load from numba's cache, every kernel for float32 and float64."""
    for dtype in (np.float32, np.float64):
        rows = np.full((8, 2), 0.5, dtype=dtype)
        for mechanism in (
            PublishedSettings(1.0),
            plan(IsotonicSettings(1.0), 2),
            plan(IsotonicSettings(1.0, "all"), 2),
        ):
            bind(mechanism)(rows, np.full((8, 2), 0.5), np.empty_like(rows))
        one = plan(IsotonicSettings(1.0), 2, snapped=True)
        Tables(one, rows.dtype).fused(rows, KeyedDraws(bytes(16), b""), keyed)
