"""Products of matrices and their like."""
from __future__ import annotations

import builtins
from typing import Any, List, Sequence, Tuple, Union

import numpy as np

from .._promotion import convert_to, known, one_axis, pair
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import bool_, broadcast_shapes, int32
from ..trace.errors import ArgumentError, ShapeError, message, user_source
from ..trace.tracer import aval_of
from ._create import asarray
from ._elementwise import multiply, not_equal
from ._reduce import sum
from ._shapes import broadcast_to


def matmul(x1: Any, x2: Any, /) -> Array:
    """x1 @ x2 by NumPy's rules: vectors as rows or columns, leading axes broadcast; logical for bools.

    float16 is accumulated in float32. Raises ShapeError where the inner axes differ.
    """
    x, y = pair(x1, x2)
    a, b = aval_of(x), aval_of(y)
    if a.dtype is bool_:
        return not_equal(matmul(convert_to(x, int32), convert_to(y, int32)), 0)
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ShapeError(message(f"matmul: {a} @ {b} do not go together: the last axis of the first is contracted with "
                                 "the last but one of the second", at=user_source(2)))
    if b.ndim <= 2:
        return prims.dot_general(x, y, (a.ndim - 1,), (0,))
    x, y = asarray(x), asarray(y)
    if x.ndim == 1:
        return prims.dot_general(y, x, (y.ndim - 2,), (0,))
    lead = x.shape[:-2]
    if lead != y.shape[:-2]:
        try:
            common = broadcast_shapes(lead, y.shape[:-2])
        except ShapeError:
            raise ShapeError(message(f"matmul: {a} @ {b} do not go together: the leading axes do not broadcast",
                                     at=user_source(2))) from None
        x, y = broadcast_to(x, common + x.shape[-2:]), broadcast_to(y, common + y.shape[-2:])
        lead = common
    batch = tuple(range(len(lead)))
    return prims.dot_general(x, y, (x.ndim - 1,), (y.ndim - 2,), batch, batch)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Sum of products along an axis."""
    return sum(multiply(x1, x2), axis)


def tensordot(x1: Any, x2: Any, /, *, axes: Union[int, Tuple[Sequence[int], Sequence[int]]] = 2) -> Array:
    """Sum of products over pairs of axes: the last n of x1, the first n of x2, or those listed; logical for bools."""
    x, y = (asarray(v) for v in pair(x1, x2))
    axes = known("tensordot: axes", axes)
    if x.dtype == bool_:
        return not_equal(tensordot(convert_to(x, int32), convert_to(y, int32), axes=axes), 0)
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= builtins.min(x.ndim, y.ndim):
            raise ShapeError(message(f"tensordot: axes={axes}, but the operands are {x.aval} and {y.aval}",
                                     at=user_source(2)))
        axes = (range(x.ndim - axes, x.ndim), range(axes))
    if not isinstance(axes, (tuple, list)) or len(axes) != 2:
        raise ArgumentError(message(f"tensordot: axes is a number or a pair of axes or of lists of them, got {axes!r}",
                                    at=user_source(2)))
    groups: List[Tuple[int, ...]] = []
    for v, group in zip((x, y), axes):
        some: Sequence[int] = (int(group),) if isinstance(group, (int, np.integer)) else tuple(group)
        groups.append(tuple(one_axis(a, v.ndim, "tensordot") for a in some))
    x_axes, y_axes = groups
    return prims.dot_general(x, y, x_axes, y_axes)
