"""Reading and writing by index.

An index counts from the end if it is negative. One that is known while tracing and out of range is an error; a traced
one reads the nearest element, and writes nothing. `mode` says otherwise, for known and traced indices alike: "clip" is
the nearest element, "fill" reads a fill value, "drop" writes nothing.
"""
from __future__ import annotations

import functools
import math
from typing import Any, List, Optional, Sequence

import numpy as np

from .._promotion import as_shape, checked_indices, convert_to, integer_indices, one_axis
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import Aval, Shape, int32, promote_types
from ..trace.errors import ArgumentError, DtypeError, PopfnError, RangeError, ShapeError, located, message, user_source
from ..trace.tracer import Tracer, aval_of
from ._create import asarray
from ._shapes import reshape

READ, WRITE = ("clip", "fill"), ("drop", "clip")


# ---------------------------------------------------------------------------- what reading and writing share
def check_mode(what: str, mode: Optional[str], modes: Sequence[str]) -> None:
    """Raise ArgumentError unless the mode is None or one of these."""
    if mode is not None and mode not in modes:
        raise ArgumentError(message(f"{what}: a mode is {' or '.join(map(repr, modes))}, got {mode!r}",
                                    at=user_source(2)))


def indices_in(mode: Optional[str], indices: Any, size: int, axis: int) -> Any:
    """Indices as integers, which are in range if no mode is given and they are known."""
    return integer_indices(indices) if mode is not None else checked_indices(indices, size, axis)


def converted(what: str, value: Any, aval: Aval) -> Any:
    """A value for an array of this type. Raises DtypeError if the array's dtype cannot hold it."""
    v = aval_of(value)
    try:
        dtype, _ = promote_types(aval.dtype, False, v.dtype, v.weak)
        if dtype == aval.dtype:
            return convert_to(value, dtype, aval.weak and v.weak)
    except PopfnError as e:
        raise located(e) from None
    raise DtypeError(message(f"{what}: {v} does not fit into {aval.dtype.name}, the array is {aval}",
                             f"way out: convert one of them with astype, to {aval.dtype.name} or {dtype.name}",
                             at=user_source(2)))


def broadcast_into(what: str, value: Any, shape: Shape) -> Any:
    """A value broadcast to the shape of what it is written to. Raises ShapeError."""
    v = aval_of(value)
    lead = len(shape) - v.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(v.shape, shape[lead:])):
        raise ShapeError(message(f"{what}: {v} does not broadcast to the shape {shape} of what it is written to",
                                 at=user_source(2)))
    return prims.broadcast_to(value, shape)


def fill_for(what: str, fill_value: Any, aval: Aval) -> Any:
    """A scalar for what is out of range. By default NaN; the lowest signed, the highest unsigned integer; True."""
    if fill_value is None:
        kind = aval.dtype.kind
        fill_value = (True if kind == "b" else np.iinfo(aval.dtype).min if kind == "i" else
                      np.iinfo(aval.dtype).max if kind == "u" else math.nan)
    if aval_of(fill_value).ndim:
        raise ShapeError(message(f"{what}: a fill value is a scalar, got {aval_of(fill_value)}", at=user_source(2)))
    return converted(what, fill_value, aval)


def read(what: str, x: Array, indices: Any, axis: int, mode: Optional[str], fill_value: Any) -> Array:
    """x at indices along an axis."""
    if mode != "fill":
        return prims.take(x, indices, axis)
    inside = prims.is_inside(indices, x.shape[axis])
    return prims.take_where(inside, x, indices, axis, fill_for(what, fill_value, x.aval))


class Lanes:
    """Two arrays of one rank, one of them indices along an axis of the other, with lanes of their own along the rest.

    Axes along which the indices are of size 1 make no lanes: what they count is read and written in one piece.
    """

    def __init__(self, what: str, x: Array, indices: Any, axis: int) -> None:
        shape = aval_of(indices).shape
        if len(shape) != x.ndim or any(1 not in (m, n) and m != n for a, (m, n) in enumerate(zip(x.shape, shape))
                                       if a != axis):
            raise ShapeError(message(f"{what}: indices have the rank of the array and its sizes, or 1, along the axes "
                                     f"other than {axis}, got {aval_of(indices)} for {x.aval}", at=user_source(2)))
        full = [max(m, n) if 0 not in (m, n) else 0 for m, n in zip(x.shape, shape)]
        lanes = [a for a in range(x.ndim) if a != axis and shape[a] != 1]
        self.axis = axis
        self.order = (*lanes, axis, *(a for a in range(x.ndim) if a != axis and a not in lanes))
        self.shape = tuple(full[:axis]) + x.shape[axis:axis + 1] + tuple(full[axis + 1:])  # x's, broadcast
        self.index_shape = tuple(full[:axis]) + shape[axis:axis + 1] + tuple(full[axis + 1:])
        self.lanes = math.prod(full[a] for a in lanes)
        self.size, self.count = x.shape[axis], shape[axis]
        self.rest = tuple(full[a] for a in self.order[len(lanes) + 1:])

    def rows(self, x: Any, shape: Shape) -> Any:
        """x, broadcast to a shape, with what lanes and axis count together as axis 0."""
        x = prims.transpose(prims.broadcast_to(x, shape), self.order)
        return prims.reshape(x, (self.lanes * shape[self.axis], *self.rest))

    def whole(self, rows: Any, shape: Shape) -> Any:
        """The inverse of `rows`."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return prims.transpose(prims.reshape(rows, tuple(shape[a] for a in self.order)), tuple(back))

    def flat(self, indices: Any, clamp: bool) -> Any:
        """Indices of rows, int32; what is out of range is clamped, or beyond all rows."""
        i = prims.transpose(indices, self.order)
        i = prims.reshape(i, (self.lanes, self.count))
        if self.lanes == 1:
            i = prims.reshape(i, (self.count,))
            return prims.wrapped(i, self.size) if clamp else i
        starts = prims.mul(prims.iota(int32, (self.lanes, 1), 0), np.int32(self.size))
        counted = prims.counted_indices(i, self.size)
        flat = prims.add(prims.wrapped(i, self.size) if clamp else counted, starts)
        if not clamp:
            flat = prims.select(prims.in_bounds(counted, self.size), flat, np.int32(self.lanes * self.size))
        return prims.reshape(flat, (self.lanes * self.count,))


# ---------------------------------------------------------------------------- along an axis
def take(x: Any, indices: Any, /, *, axis: Optional[int] = None, mode: Optional[str] = None,
         fill_value: Any = None) -> Array:
    """x[..., indices, ...] along an axis, of the flat array by default: the axes of the indices replace that axis.

    Negative indices count from the end. One that is out of range is a RangeError (an IndexError) if it is known while
    tracing, else it reads the nearest element. With mode="clip" known ones read the nearest element too; with
    mode="fill" all read the fill value, which is NaN, the lowest signed or highest unsigned integer, or True by
    default. Raises DtypeError for indices that are no integers and fill values that x's dtype cannot hold.

    >>> import popfn.numpy as pnp
    >>> pnp.take(pnp.asarray([1.0, 2.0]), pnp.asarray([1, -1, 5]), mode="fill", fill_value=0)
    Array([2., 2., 0.], dtype=float32)
    """
    x = asarray(x)
    check_mode("take", mode, READ)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim, "take")
    return read("take", x, indices_in(mode, indices, x.shape[axis], axis), axis, mode, fill_value)


def take_along_axis(x: Any, indices: Any, /, axis: int = -1, *, mode: Optional[str] = None,
                    fill_value: Any = None) -> Array:
    """For each lane along an axis, its elements at that lane's indices: what `argsort` gives puts x in order.

    `indices` has the rank of x and its sizes, or 1, along the other axes. `mode`, `fill_value` and errors as for
    `take`; ShapeError for shapes that do not go together.

    >>> import popfn.numpy as pnp
    >>> pnp.take_along_axis(pnp.asarray([[1, 2], [3, 4]]), pnp.asarray([[1], [0]]))
    Array([[2],
           [3]], dtype=int32)
    """
    x = asarray(x)
    check_mode("take_along_axis", mode, READ)
    axis = one_axis(axis, x.ndim, "take_along_axis")
    indices = indices_in(mode, indices, x.shape[axis], axis)
    lanes = Lanes("take_along_axis", x, indices, axis)
    rows = lanes.rows(x, lanes.shape)
    if not lanes.size and lanes.count and mode != "fill":
        raise RangeError(message(f"take_along_axis: axis {axis} of {x.aval} has no elements to read",
                                 at=user_source(2)))
    flat = lanes.flat(indices, clamp=mode != "fill")
    return lanes.whole(read("take_along_axis", rows, flat, 0, mode, fill_value), lanes.index_shape)


def put_along_axis(x: Any, indices: Any, values: Any, /, axis: int, *, mode: Optional[str] = None) -> Array:
    """x with values at each lane's indices along an axis: the inverse of `take_along_axis`, as a new array.

    `indices` has the rank of x and its sizes, or 1, along the other axes; `values` broadcasts to them. Of several
    values for one element the last one stays. An index that is out of range is a RangeError if it is known while
    tracing, else nothing is written; with mode="drop" that holds for known ones too, with mode="clip" all write to the
    nearest element. Raises DtypeError and ShapeError for values and indices that do not fit.
    """
    x = asarray(x)
    check_mode("put_along_axis", mode, WRITE)
    axis = one_axis(axis, x.ndim, "put_along_axis")
    indices = indices_in(mode, indices, x.shape[axis], axis)
    lanes = Lanes("put_along_axis", x, indices, axis)
    if lanes.shape != x.shape:
        raise ShapeError(message(f"put_along_axis: {aval_of(indices)} has more lanes than {x.aval}", at=user_source(2)))
    values = converted("put_along_axis", values, x.aval)
    values = broadcast_into("put_along_axis", values, lanes.index_shape)
    flat = lanes.flat(indices, clamp=mode == "clip")
    rows = prims.scatter_set(lanes.rows(x, x.shape), flat, lanes.rows(values, lanes.index_shape), 0)
    return lanes.whole(rows, x.shape)


# ---------------------------------------------------------------------------- windows
def window_starts(what: str, starts: Any, sizes: Shape, x: Array) -> List[Any]:
    """A start for each axis: an int, counted from the front and in range, where it is known, else a traced scalar."""
    is_array = isinstance(starts, (Array, np.ndarray))
    if not isinstance(starts, (list, tuple)) and not (is_array and starts.ndim == 1) or len(starts) != x.ndim:
        seen = str(aval_of(starts)) if is_array else repr(starts)
        raise ShapeError(message(f"{what}: a start for each of the {x.ndim} axes of {x.aval}, got {seen}",
                                 at=user_source(2)))
    found: List[Any] = []
    for axis, (start, size, n) in enumerate(zip(starts, sizes, x.shape)):
        if aval_of(start).ndim:
            raise ShapeError(message(f"{what}: a start is a scalar, got {aval_of(start)}", at=user_source(2)))
        start = integer_indices(start)
        if not isinstance(start, Tracer):
            known = int(start)
            start = known + n if known < 0 else known
            if not 0 <= start <= n - size:
                raise RangeError(message(f"{what}: a window of {size} from {known} on is out of range for axis {axis} "
                                         f"of {x.aval}", at=user_source(2)))
        found.append(start)
    return found


def as_vector(starts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Scalar starts into axes of these sizes as one int32 vector."""
    if not any(isinstance(s, Tracer) for s in starts):
        return np.array(starts, np.int32)
    parts = [prims.reshape(prims.as_int32(s, n), (1,)) if isinstance(s, Tracer) else np.array([s], np.int32)
             for s, n in zip(starts, sizes)]
    return prims.concat(parts, 0) if len(parts) > 1 else parts[0]


def check_sizes(what: str, sizes: Any, x: Array) -> Shape:
    """Sizes of a window of x, one for each axis. Raises ShapeError."""
    sizes = as_shape(sizes)
    if len(sizes) != x.ndim or not all(0 <= s <= n for s, n in zip(sizes, x.shape)):
        raise ShapeError(message(f"{what}: a window of sizes {sizes} does not fit {x.aval}", at=user_source(2)))
    return sizes


def dynamic_slice(x: Any, starts: Any, sizes: Sequence[int], /) -> Array:
    """The window of x with these sizes that begins at the starts, which may be traced: one of each for every axis.

    Negative starts count from the end. A window that does not lie within x is a RangeError (an IndexError) if its start
    is known while tracing, else it is moved to the nearest place where it does. Raises ShapeError for sizes beyond x's
    and DtypeError for starts that are no integers.

    >>> import popfn as pf, popfn.numpy as pnp
    >>> pf.jit(lambda i: pnp.dynamic_slice(pnp.arange(6), [i], [2]))(3)
    Array([3, 4], dtype=int32)
    """
    x = asarray(x)
    sizes = check_sizes("dynamic_slice", sizes, x)
    return _window(x, window_starts("dynamic_slice", starts, sizes, x), sizes)


def _window(x: Array, starts: List[Any], sizes: Shape) -> Array:
    axes = tuple(a for a, s in enumerate(starts) if isinstance(s, Tracer) and sizes[a] != x.shape[a])
    known = [(0, n) if a in axes else (0, size) if isinstance(s, Tracer) else (s, s + size)
             for a, (s, size, n) in enumerate(zip(starts, sizes, x.shape))]
    x = prims.slice_(x, tuple(a for a, _ in known), tuple(b for _, b in known), (1,) * x.ndim)
    if not axes:
        return x
    return prims.dynamic_slice(x, as_vector([starts[a] for a in axes], [x.shape[a] for a in axes]), axes,
                               tuple(sizes[a] for a in axes))


def dynamic_update_slice(x: Any, update: Any, starts: Any, /, *, mode: Optional[str] = None) -> Array:
    """x with an update in the place of the window that begins at the starts, which may be traced: one for every axis.

    The update has the rank of x. Negative starts count from the end. A window that does not lie within x is a
    RangeError (an IndexError) if its start is known while tracing, else nothing is written; with mode="clip" it is
    moved to the nearest place where it does, as `dynamic_slice` does it. Raises ShapeError and DtypeError for an update
    that does not fit.
    """
    return _update("dynamic_update_slice", asarray(x), update, starts, mode)


def _update(what: str, x: Array, update: Any, starts: Any, mode: Optional[str]) -> Array:
    check_mode(what, mode, WRITE)
    update = converted(what, update, x.aval)
    if aval_of(update).ndim != x.ndim:
        raise ShapeError(message(f"{what}: the update has the rank of the array, got {aval_of(update)} for {x.aval}",
                                 at=user_source(2)))
    sizes = check_sizes(what, aval_of(update).shape, x)
    starts = window_starts(what, starts, sizes, x)
    axes = tuple(a for a, n in enumerate(x.shape) if sizes[a] != n)
    vector = as_vector([starts[a] for a in axes], [x.shape[a] for a in axes])
    traced = [a for a, s in enumerate(starts) if isinstance(s, Tracer)]
    if traced and mode != "clip":  # where the window does not fit, what was there is written again
        fits = [prims.in_bounds(prims.counted_indices(starts[a], x.shape[a]), x.shape[a] - sizes[a] + 1)
                for a in traced]
        old = prims.dynamic_slice(x, vector, axes, tuple(sizes[a] for a in axes))
        update = prims.select(functools.reduce(prims.and_, fits), update, old)
    return asarray(prims.dynamic_update_slice(x, update, vector, axes))


def dynamic_slice_in_dim(x: Any, start: Any, size: int, /, axis: int = 0) -> Array:
    """x[start:start + size] along one axis, for a start that may be traced; `dynamic_slice` says more."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim, "dynamic_slice_in_dim")
    sizes = check_sizes("dynamic_slice_in_dim", x.shape[:axis] + (size,) + x.shape[axis + 1:], x)
    return _window(x, window_starts("dynamic_slice_in_dim", _along(start, axis, x.ndim), sizes, x), sizes)


def dynamic_index_in_dim(x: Any, index: Any, /, axis: int = 0, *, keepdims: bool = True) -> Array:
    """x[index] along one axis, which stays with size 1 by default; `dynamic_slice` says more."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim, "dynamic_index_in_dim")
    sizes = check_sizes("dynamic_index_in_dim", x.shape[:axis] + (1,) + x.shape[axis + 1:], x)
    y = _window(x, window_starts("dynamic_index_in_dim", _along(index, axis, x.ndim), sizes, x), sizes)
    return y if keepdims else prims.squeeze(y, (axis,))


def dynamic_update_slice_in_dim(x: Any, update: Any, start: Any, /, axis: int = 0, *,
                                mode: Optional[str] = None) -> Array:
    """x with an update from `start` on along one axis; `dynamic_update_slice` says more."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim, "dynamic_update_slice_in_dim")
    return _update("dynamic_update_slice_in_dim", x, update, _along(start, axis, x.ndim), mode)


def dynamic_update_index_in_dim(x: Any, update: Any, index: Any, /, axis: int = 0, *,
                                mode: Optional[str] = None) -> Array:
    """x with an update at `index` along one axis, which the update may lack; `dynamic_update_slice` says more."""
    x, update = asarray(x), asarray(update)
    axis = one_axis(axis, x.ndim, "dynamic_update_index_in_dim")
    if update.ndim == x.ndim - 1:
        update = prims.reshape(update, update.shape[:axis] + (1,) + update.shape[axis:])
    return _update("dynamic_update_index_in_dim", x, update, _along(index, axis, x.ndim), mode)


def _along(start: Any, axis: int, ndim: int) -> List[Any]:
    return [start if a == axis else 0 for a in range(ndim)]
