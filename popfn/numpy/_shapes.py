"""Functions that move elements."""
from __future__ import annotations

import builtins
import math
from typing import Any, Sequence, Union

import numpy as np

from .._promotion import Axis, all_axes, as_shape, as_sizes, convert_to, one_axis
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import Shape
from ..trace.errors import ShapeError, message, user_source
from ._create import asarray


def reshape(x: Any, /, shape: Union[int, Sequence[int]]) -> Array:
    """Another shape of the same size, in row-major order; one size may be -1."""
    x, new = asarray(x), list(as_shape(shape))
    if new.count(-1) == 1:
        known = math.prod(n for n in new if n != -1)
        if known and x.size % known == 0:
            new[new.index(-1)] = x.size // known
    if math.prod(new) != x.size or builtins.min(new, default=0) < 0:
        raise ShapeError(message(f"reshape: {x.aval} has {x.size} elements, which do not fit shape {as_shape(shape)}",
                                 at=user_source(2)))
    return prims.reshape(x, tuple(int(n) for n in new))


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """The axes in another order."""
    x = asarray(x)
    return prims.transpose(x, tuple(one_axis(a, x.ndim, "permute_dims") for a in axes))


def matrix_transpose(x: Any, /) -> Array:
    """The last two axes swapped."""
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(message(f"matrix_transpose: {x.aval} has no two axes", at=user_source(2)))
    return prims.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: Any, source: int, destination: int, /) -> Array:
    """One axis moved to another place."""
    x = asarray(x)
    source, destination = one_axis(source, x.ndim, "moveaxis"), one_axis(destination, x.ndim, "moveaxis")
    order = [i for i in range(x.ndim) if i != source]
    order.insert(destination, source)
    return prims.transpose(x, tuple(order))


def squeeze(x: Any, /, axis: Axis = None) -> Array:
    """Without axes of size 1: all of them, or those given."""
    x = asarray(x)
    axes = tuple(i for i, n in enumerate(x.shape) if n == 1) if axis is None else all_axes(axis, x.ndim, "squeeze")
    return prims.squeeze(x, axes)


def expand_dims(x: Any, /, axis: int = 0) -> Array:
    """With a new axis of size 1 at a place."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim + 1, "expand_dims")
    return prims.reshape(x, x.shape[:axis] + (1,) + x.shape[axis:])


def broadcast_to(x: Any, /, shape: Union[int, Shape]) -> Array:
    """NumPy's broadcasting to a shape."""
    return prims.broadcast_to(asarray(x), as_sizes(shape))


def flip(x: Any, /, *, axis: Axis = None) -> Array:
    """The elements in reverse order along axes."""
    x = asarray(x)
    return prims.reverse(x, all_axes(axis, x.ndim, "flip"))


def pad(x: Any, pad_width: Any, *, constant_values: Any = 0) -> Array:
    """x with `pad_width` = (before, after) copies of a scalar around it; one pair for all axes or one pair for each."""
    x = asarray(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
    except ValueError:
        widths = np.array(np.nan)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise ShapeError(message(f"pad: widths are pairs of integers of 0 or more, one for all axes or one for each of "
                                 f"the {x.ndim}, got {pad_width}", at=user_source(2)))
    low, high = (tuple(int(n) for n in widths[:, i]) for i in (0, 1))
    return prims.pad(x, convert_to(constant_values, x.dtype), low, high, (0,) * x.ndim)
