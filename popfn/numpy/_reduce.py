"""Reductions."""
from __future__ import annotations

import builtins
import math
from typing import Any, Optional, Tuple

import numpy as np

from .._promotion import Axis, all_axes, convert_to, in_float32, one_axis
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import Shape, bool_, int32, uint32
from ..trace.errors import ShapeError, message, user_source
from ..trace.tracer import literal
from ._create import asarray, astype
from ._elementwise import equal, greater, logical_not, truth


def _keep(y: Any, shape: Shape, axes: Tuple[int, ...], keepdims: bool) -> Array:
    if not keepdims:
        return asarray(y)
    return prims.reshape(y, tuple(1 if i in axes else n for i, n in enumerate(shape)))


def accumulator(x: Array, dtype: Any) -> Array:
    """x in the dtype in which it is summed: by default integers in 32 bits, floats in their own."""
    if dtype is not None:
        return astype(x, dtype)
    kind = x.dtype.kind
    return x if x.aval.is_float else convert_to(x, uint32 if kind == "u" else int32)


def sum(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Sum over axes; bools and small integers in 32 bits, float16 accumulated in float32."""
    x = accumulator(asarray(x), dtype)
    axes = all_axes(axis, x.ndim, "sum")
    return _keep(prims.sum_over(x, axes), x.shape, axes, keepdims)


def prod(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Product over axes; bools and small integers in 32 bits, float16 accumulated in float32."""
    x = accumulator(asarray(x), dtype)
    axes = all_axes(axis, x.ndim, "prod")
    return _keep(prims.prod_over(x, axes), x.shape, axes, keepdims)


def mean(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Mean over axes; float16 accumulated in float32. NaN for no elements."""
    def f(x: Array) -> Array:
        axes = all_axes(axis, x.ndim, "mean")
        count = math.prod(x.shape[a] for a in axes)
        total = prims.sum_over(x, axes)
        return _keep(prims.div(total, literal(float(count), x.aval)), x.shape, axes, keepdims)
    return in_float32(f, x)


def var(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variance over axes: squared distances from the mean, over n - correction; float16 accumulated in float32."""
    def f(x: Array) -> Array:
        axes = all_axes(axis, x.ndim, "var")
        count = math.prod(x.shape[a] for a in axes) - correction
        d = prims.sub(x, mean(x, axes, keepdims=True))
        total = prims.sum_over(prims.mul(d, d), axes)
        return _keep(prims.div(total, literal(float(builtins.max(count, 0)), x.aval)), x.shape, axes, keepdims)
    return in_float32(f, x)


def std(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviation over axes: the root of `var`; its derivative where that is 0 is 0."""
    return in_float32(lambda x: prims.sqrt(var(x, axis, correction=correction, keepdims=keepdims)), x)


def _extremum(primitive: Any, on_bools: Any, name: str, x: Any, axis: Axis, keepdims: bool) -> Array:
    x = asarray(x)
    axes = all_axes(axis, x.ndim, name)
    if x.dtype == bool_:
        return on_bools(x, axis, keepdims=keepdims)
    return _keep(primitive(x, axes), x.shape, axes, keepdims)


def max(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Largest element over axes; NaN if there is one. Raises ShapeError for no elements."""
    return _extremum(prims.max_over, any, "max", x, axis, keepdims)


def min(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Smallest element over axes; NaN if there is one. Raises ShapeError for no elements."""
    return _extremum(prims.min_over, all, "min", x, axis, keepdims)


def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether any element over axes is nonzero; False for no elements."""
    return greater(sum(truth(asarray(x)), axis, keepdims=keepdims), 0)


def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether all elements over axes are nonzero; True for no elements."""
    return equal(sum(logical_not(asarray(x)), axis, keepdims=keepdims), 0)


def argmax(x: Any, /, axis: Optional[int] = None, *, keepdims: bool = False) -> Array:
    """Index of the largest element, int32: the first of equals, NaN being the largest; of the flat array by default.

    Raises ShapeError for no elements.
    """
    return _arg_extremum("argmax", asarray(x), axis, keepdims)


def argmin(x: Any, /, axis: Optional[int] = None, *, keepdims: bool = False) -> Array:
    """Index of the smallest element, int32: the first of equals, NaN being smallest; of the flat array by default.

    Raises ShapeError for no elements.
    """
    return _arg_extremum("argmin", asarray(x), axis, keepdims)


def _arg_extremum(name: str, x: Array, axis: Optional[int], keepdims: bool) -> Array:
    aval = x.aval
    axis = None if axis is None else one_axis(axis, x.ndim, name)
    if not (x.size if axis is None else x.shape[axis]):
        raise ShapeError(message(f"{name} of no elements: {aval}" + ("" if axis is None else f" along axis {axis}"),
                                 at=user_source(3)))
    x = convert_to(x, int32) if x.dtype == bool_ else x
    x = mirrored(x) if name == "argmin" else x
    if axis is None:
        flat = prims.argmax(prims.reshape(x, (x.size,)), 0)
        return prims.reshape(flat, (1,) * x.ndim) if keepdims else flat
    return _keep(prims.argmax(x, axis), aval.shape, (axis,), keepdims)


def mirrored(x: Array) -> Array:
    """Numbers in the opposite order, from which the same function gives them back: -x of floats; NaN stays NaN."""
    if x.aval.is_float:
        return asarray(prims.neg(x))
    ends = np.iinfo(x.dtype)
    return asarray(prims.sub(literal(ends.min + ends.max, x.aval), x))  # -1 - x of signed ones, which cannot overflow


def count_nonzero(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements over axes are not 0, int32; NaN is not 0."""
    return sum(truth(asarray(x)), axis, keepdims=keepdims)
