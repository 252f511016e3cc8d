"""Reading by index."""
from __future__ import annotations

from typing import Any, Optional

from .._promotion import checked_indices, one_axis
from ..trace import prims
from ..trace.array import Array
from ._create import asarray
from ._shapes import reshape


def take(x: Any, indices: Any, /, *, axis: Optional[int] = None) -> Array:
    """x[..., indices, ...] along an axis, of the flat array by default.

    Negative indices count from the end; traced ones that are out of range read the nearest element. Raises
    RangeError (an IndexError) for indices out of range that are known while tracing.
    """
    x = asarray(x)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim, "take")
    return prims.take(x, checked_indices(indices, x.shape[axis], axis), axis)
