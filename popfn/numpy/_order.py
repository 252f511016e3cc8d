"""Order: sorting, the largest k, search in sorted arrays, counts by value, quantiles."""
from __future__ import annotations

import math
from typing import Any, NoReturn, Optional, Tuple

import numpy as np

from .._promotion import (
    Axis,
    all_axes,
    as_array,
    as_float,
    checked_indices,
    convert_to,
    filled,
    in_float32,
    known,
    one_axis,
    pair,
)
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import accumulator_dtype, bool_, int32
from ..trace.errors import ArgumentError, DtypeError, RangeError, ShapeError, message, user_source
from ..trace.tracer import Tracer, literal
from ._create import asarray, ones, zeros
from ._elementwise import divide, not_equal, where
from ._reduce import accumulator, max as _max, min as _min, mirrored
from ._scans import diff
from ._shapes import reshape


def _sorted(x: Array, axis: int, descending: bool) -> Tuple[Array, Array]:
    """The elements along an axis in order, and their indices."""
    if x.dtype == bool_:
        values, order = _sorted(convert_to(x, int32), axis, descending)
        return convert_to(values, bool_), order
    values, order = prims.sort(mirrored(x) if descending else x, axis)
    return mirrored(values) if descending else values, order


def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The elements along an axis in ascending or descending order, of x's shape and dtype; NaN last in both.

    Always stable, whatever `stable` says. The derivative of an element goes where it came from. Raises ShapeError for
    an axis that there is not.

    >>> import popfn.numpy as pnp
    >>> pnp.sort(pnp.asarray([3.0, pnp.nan, 1.0]), descending=True)
    Array([ 3.,  1., nan], dtype=float32)
    """
    x = asarray(x)
    return _sorted(x, one_axis(axis, x.ndim, "sort"), descending)[0]


def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The indices, int32, that sort x along an axis as `sort` does: stable, NaN last."""
    x = asarray(x)
    return _sorted(x, one_axis(axis, x.ndim, "argsort"), descending)[1]


def topk(x: Any, k: int, /, axis: int = -1) -> Tuple[Array, Array]:
    """The k largest elements along an axis, largest first, and their indices, int32.

    The first of equal elements comes first; NaN is the largest, as for `max` and `argmax`. Raises ShapeError if the
    axis has not k elements, or if k is no integer that is known while tracing.

    >>> import popfn.numpy as pnp
    >>> pnp.topk(pnp.asarray([1, 5, 3, 5]), 3)
    (Array([5, 5, 3], dtype=int32), Array([1, 3, 2], dtype=int32))
    """
    x = asarray(x)
    axis, k = one_axis(axis, x.ndim, "topk"), known("topk: k", k)
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 0 <= k <= x.shape[axis]:
        raise ShapeError(message(f"topk: k is a count of at most {x.shape[axis]} elements along axis {axis} of "
                                 f"{x.aval}, got {k}", at=user_source(2)))
    if x.dtype == bool_:
        values, order = prims.topk(convert_to(x, int32), int(k), axis)
        return convert_to(values, bool_), order
    values, order = prims.topk(x, int(k), axis)
    return values, order


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where each element of x2 is to be put in between those of x1 to keep it sorted, int32 of x2's shape.

    x1 has one axis and is sorted as `sort` does it, NaN last, or is put in order by the indices `sorter`. Before equal
    elements with `side="left"`, behind them with "right". Raises ShapeError if x1 has not one axis, and
    ArgumentError for another side.

    >>> import popfn.numpy as pnp
    >>> pnp.searchsorted(pnp.asarray([1, 2, 2, 5]), pnp.asarray([2, 3, 9]), side="right")
    Array([3, 3, 4], dtype=int32)
    """
    x1, x2 = asarray(x1), asarray(x2)
    if x1.ndim != 1:
        raise ShapeError(message(f"searchsorted: x1 has one axis, got {x1.aval}", at=user_source(2)))
    if side not in ("left", "right"):
        raise ArgumentError(message(f"searchsorted: side is 'left' or 'right', got {side!r}", at=user_source(2)))
    if sorter is not None:
        x1 = asarray(prims.take(x1, checked_indices(sorter, x1.shape[0], 0), 0))
    line, v = (asarray(x) for x in pair(x1, x2))
    if line.dtype == bool_:
        line, v = convert_to(line, int32), convert_to(v, int32)
    n = line.shape[0]
    count = zeros(v.shape, dtype=int32)  # of the elements that come before v
    at, last = (literal(i, count.aval) for i in (n, n - 1))
    v_is_nan = prims.ne(v, v) if v.aval.is_float else None
    step = 1 << n.bit_length() >> 1
    while step:  # the bits of the count, from the highest
        more = prims.add(count, literal(step, count.aval))
        a = prims.take(line, prims.minimum(prims.sub(more, literal(1, count.aval)), last), 0)
        before = prims.lt(a, v) if side == "left" else prims.le(a, v)
        if v_is_nan is not None:
            before = prims.or_(before, prims.and_(v_is_nan, prims.eq(a, a)) if side == "left" else v_is_nan)
        count = prims.select(prims.and_(before, prims.le(more, at)), more, count)
        step >>= 1
    return asarray(count)


# ---------------------------------------------------------------------------- counts by value
def bincount(x: Any, /, weights: Any = None, *, length: int) -> Array:
    """How often each of 0, 1, ... length - 1 occurs in x, int32; or the sums of the weights of its occurrences.

    `weights` have the shape of x; small integers are summed in 32 bits. What is negative or not below `length` is not
    counted. The length is asked for because a shape cannot depend on values. Raises DtypeError unless x are integers,
    ShapeError for weights of another shape and for a length that is no integer of 0 or more.

    >>> import popfn.numpy as pnp
    >>> pnp.bincount(pnp.asarray([0, 2, 2, 7]), length=4)
    Array([1, 0, 2, 0], dtype=int32)
    """
    x, length = asarray(x), known("bincount: the length", length)
    if x.dtype.kind not in "iu":
        raise DtypeError(message(f"bincount counts integers, got {x.aval}", "way out: histogram counts floats",
                                 at=user_source(2)))
    if not isinstance(length, (int, np.integer)) or length < 0:
        raise ShapeError(message(f"bincount: length is a count of 0 or more, got {length!r}", at=user_source(2)))
    w = ones(x.shape, dtype=int32) if weights is None else accumulator(asarray(weights), None)
    if w.shape != x.shape:
        raise ShapeError(message(f"bincount: weights have the shape of x, got {w.aval} for {x.aval}",
                                 at=user_source(2)))
    start = filled((int(length),), 0, w.dtype)
    if not length:
        return start
    x = convert_to(x, int32)
    index = where(x < 0, length, x)  # what is beyond the end is dropped
    return asarray(prims.scatter_add(start, reshape(index, (-1,)), reshape(w, (-1,)), 0))


def histogram(x: Any, /, bins: Any = 10, range: Optional[Tuple[Any, Any]] = None, *, weights: Any = None,
              density: bool = False) -> Tuple[Array, Array]:
    """How many elements of x, or what sums of their weights, fall between neighbouring edges; and the edges.

    `bins` is a number of bins of equal width between the bounds in `range`, by default the smallest and the largest
    element; or the edges themselves, ascending. A bin holds its lower edge, the last one its upper edge as well; what
    is outside, and NaN, is not counted. Counts are int32, sums are of the weights' dtype, edges are floats.
    With `density` the sum over the bins times their widths is 1. Raises ShapeError.
    """
    x = as_float(x)
    edges = _edges(x, bins, range)
    count = edges.shape[0] - 1
    place = where(x == edges[count], count, searchsorted(edges, x, side="right")) - 1
    found = bincount(place, weights, length=count)
    if density:
        found = divide(divide(found, diff(edges)), found.sum())
    return found, edges


def _edges(x: Array, bins: Any, range: Optional[Tuple[Any, Any]]) -> Array:
    """The edges of a histogram of x."""
    if not np.ndim(bins):
        bins = known("histogram: the number of bins", bins)
    if not isinstance(bins, (int, np.integer)):
        edges = as_float(bins)
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise ShapeError(message(f"histogram: edges are an array of one axis with two elements or more, "
                                     f"got {edges.aval}", at=user_source(3)))
        return edges
    if bins < 1:
        raise ShapeError(message(f"histogram: a number of bins is 1 or more, got {bins}", at=user_source(3)))
    if range is None:
        low, high = (_min(x), _max(x)) if x.size else (asarray(0.0), asarray(1.0))
    else:
        low, high = range
    wide = accumulator_dtype(x.dtype)
    low, high = (as_array(convert_to(bound, wide)) for bound in (low, high))
    same = low == high  # a bin of width 1 around it, as in NumPy
    low, high = where(same, low - 0.5, low), where(same, high + 0.5, high)
    line = prims.iota(wide, (int(bins) + 1,), 0)
    edges = where(line == bins, high, low + (high - low) * (line / bins))
    return convert_to(edges, x.dtype)


# ---------------------------------------------------------------------------- quantiles
_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(x: Any, q: Any, /, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """The values below which parts `q` (0 to 1) of the elements over axes lie; NaN if one is NaN.

    The result has the axes of q, of which there is at most one, in front of those that are left. Between two elements
    the method decides: linear, lower, higher, midpoint or nearest, as in NumPy. float16 is computed in float32. Raises
    ShapeError for no elements, RangeError for a q known to be outside of 0 to 1, ArgumentError for another method.
    """
    if method not in _METHODS:
        raise ArgumentError(message(f"quantile: method is one of {', '.join(_METHODS)}, got {method!r}",
                                    at=user_source(2)))
    x = as_float(x)
    q = as_array(convert_to(q, accumulator_dtype(x.dtype)))
    if q.ndim > 1:
        raise ShapeError(message(f"quantile: q is a number or has one axis, got {q.aval}", at=user_source(2)))
    if not isinstance(q, Tracer) and not ((q.value >= 0) & (q.value <= 1)).all():
        raise RangeError(message(f"quantile: q lies within 0 and 1, got {q.value.tolist()}", at=user_source(2)))
    return in_float32(lambda x: _quantile(x, q, axis, method, keepdims, "quantile"), x)


def median(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The middle element over axes, or the mean of the two in the middle; NaN if one is NaN. float16 as in `quantile`.

    Raises ShapeError for no elements.

    >>> import popfn.numpy as pnp
    >>> pnp.median(pnp.asarray([5, 1, 2, 9]))
    Array(3.5, dtype=float32)
    """
    def f(x: Array) -> Array:
        half = as_array(convert_to(0.5, x.dtype))
        return _quantile(x, half, axis, "midpoint", keepdims, "median")
    return in_float32(f, x)


def _quantile(x: Array, q: Array, axis: Axis, method: str, keepdims: bool, name: str) -> Array:
    axes = all_axes(axis, x.ndim, name)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    n = math.prod(x.shape[i] for i in axes)
    if not n:
        raise ShapeError(message(f"{name} of no elements: {x.aval} over axes {axes}", at=user_source(4)))
    lanes = reshape(prims.transpose(x, axes + rest), (n, *(x.shape[i] for i in rest)))
    ordered = prims.sort(lanes, 0)[0]
    place = q * (n - 1)
    below = prims.floor(place)
    low, high = (prims.take(ordered, convert_to(i, int32), 0) for i in (below, prims.ceil(place)))
    part = reshape(place - below, q.shape + (1,) * len(rest))
    y: Any
    if method == "linear":  # equal infinities have no difference
        y = low + prims.safe_mul(where(low == high, 0.0, high - low), part)
    elif method == "midpoint":
        y = 0.5 * low + 0.5 * high
    elif method == "nearest":  # a half to the even place
        up = (part > 0.5) | ((part == 0.5) & (reshape(below, part.shape) % 2 == 1))
        y = where(up, high, low)
    else:
        y = low if method == "lower" else high
    last = ordered[n - 1]
    y = where(not_equal(last, last), np.float32(np.nan), y)
    if not keepdims:
        return asarray(y)
    return reshape(y, q.shape + tuple(1 if i in axes else m for i, m in enumerate(x.shape)))


# ---------------------------------------------------------------------------- refused
def _refused(name: str) -> NoReturn:
    raise ShapeError(message(f"{name}: how many different values there are depends on the values, and a shape cannot",
                             "way out: s = pnp.sort(x); pnp.diff(s) != 0 marks where another value begins; "
                             "bincount and histogram count", at=user_source(3)))


def unique(x: Any, /) -> NoReturn:
    """Refused with ShapeError: the result's shape would depend on values."""
    _refused("unique")


def unique_all(x: Any, /) -> NoReturn:
    """Refused with ShapeError, as `unique`."""
    _refused("unique_all")


def unique_counts(x: Any, /) -> NoReturn:
    """Refused with ShapeError, as `unique`."""
    _refused("unique_counts")


def unique_inverse(x: Any, /) -> NoReturn:
    """Refused with ShapeError, as `unique`."""
    _refused("unique_inverse")


def unique_values(x: Any, /) -> NoReturn:
    """Refused with ShapeError, as `unique`."""
    _refused("unique_values")
