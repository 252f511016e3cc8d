"""Reading along an axis by indices that are values."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ..aval import Aval, int32, uint32
from ..errors import ShapeError
from ..primitive import Linear, MappedAxis
from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import and_, ge, lt, maximum, minimum, select
from .elementwise import convert
from .kinds import add, mul
from .shaping import (
    Dims,
    LinearOp,
    beside,
    broadcast_to,
    check_axes,
    check_dtype,
    in_lanes,
    interned,
    reshape,
    to_front,
    transpose,
)
from .structural import iota


def counted(index: np.ndarray, size: Any) -> np.ndarray:
    """Indices into an axis, negative ones counted from the end."""
    wide = index.astype(np.int64)
    return np.where(wide < 0, wide + size, wide)


def in_range(index: np.ndarray, size: int) -> np.ndarray:
    """Indices with negative ones counted from the end and the rest clamped into range."""
    return np.clip(counted(index, size), 0, size - 1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Take(LinearOp):
    """x[..., indices, ...] along an axis: the axis is replaced by the axes of the indices.

    Negative indices count from the end; what is still out of range reads the nearest element.
    """

    axis: int

    def abstract(self, x: Aval, indices: Aval) -> Aval:
        check_axes("take", (self.axis,), x.ndim)
        check_dtype("take: an index", indices, "iu")
        if x.shape[self.axis] == 0 and indices.size:
            raise ShapeError(f"take: axis {self.axis} of {x} has no elements to read")
        return x.with_shape(x.shape[:self.axis] + indices.shape + x.shape[self.axis + 1:])

    def eval(self, x: np.ndarray, indices: np.ndarray) -> Any:
        return np.take(x, in_range(indices, x.shape[self.axis]), self.axis)

    def transpose(self, ct: Any, x: Linear, indices: Any) -> Tuple[Any, ...]:
        return bind(interned(TakeTranspose, self.axis, x.aval.shape[self.axis]), (ct, indices)), None

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, indices), (i, j) = args, dims
        if i is None:
            return take(x, indices, self.axis), self.axis + j
        if j is None:
            along, = beside((self.axis,), i)
            return take(x, indices, along), i if i < along else i - 1 + aval_of(indices).ndim
        # The lanes of x one after the other, so that one read along one axis serves all of them.
        x, count = axes_behind(to_front(x, i), self.axis + 1, 1), aval_of(indices).ndim - 1
        size = aval_of(x).shape[1]
        x = reshape(x, (axis.size * size, *aval_of(x).shape[2:]))
        y = take(x, add(wrapped(to_front(indices, j), size), lane_starts(axis, count, size)), 0)
        return axes_behind_back(y, self.axis + 1, count), 0

    def lower(self, px: Any, x: Any, indices: Any) -> Any:
        return px.ops.gather(x, lowering.clamped_index(px, indices, x.shape[self.axis]), self.axis)


@dataclass(frozen=True)
class TakeTranspose(LinearOp):
    """What `take` along `axis` read is added back to where it came from, in zeros with `size` along the axis.

    Indices mean what they mean for take, so a clamped read gives its cotangent to the element that was read. float16
    is accumulated in float32.
    """

    axis: int
    size: int

    def abstract(self, x: Aval, indices: Aval) -> Aval:
        check_dtype("take_transpose: an index", indices, "iu")
        end = self.axis + indices.ndim
        if x.shape[self.axis:end] != indices.shape:
            raise ShapeError(f"take_transpose: axes {self.axis} to {end} of {x} are those of the indices {indices}")
        return x.with_shape(x.shape[:self.axis] + (self.size,) + x.shape[end:])

    def eval(self, x: np.ndarray, indices: np.ndarray) -> Any:
        end = self.axis + indices.ndim
        rows = np.moveaxis(x.reshape(x.shape[:self.axis] + (indices.size,) + x.shape[end:]), self.axis, 0)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        out = np.zeros((self.size,) + rows.shape[1:], wide)
        np.add.at(out, in_range(indices, self.size).ravel(), rows.astype(wide))
        return np.moveaxis(out, 0, self.axis).astype(x.dtype)

    def transpose(self, ct: Any, x: Linear, indices: Any) -> Tuple[Any, ...]:
        return take(ct, indices, self.axis), None

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, indices), (i, j) = args, dims
        if j is None:
            return bind(interned(TakeTranspose, self.axis + 1, self.size), (to_front(x, i), indices)), 0
        count = aval_of(indices).ndim - 1
        x = axes_behind(in_lanes(x, i, axis), self.axis + 1, count)
        index = add(wrapped(to_front(indices, j), self.size), lane_starts(axis, count, self.size))
        y = bind(interned(TakeTranspose, 0, axis.size * self.size), (x, index))
        y = reshape(y, (axis.size, self.size, *aval_of(y).shape[1:]))
        return axes_behind_back(y, self.axis + 1, 1), 0

    def lower(self, px: Any, x: Any, indices: Any) -> Any:
        end = self.axis + len(indices.shape)
        count = int(np.prod(indices.shape, dtype=int))
        index = lowering.reshape(px, lowering.clamped_index(px, indices, self.size), (count,))
        rows = lowering.reshape(px, x, tuple(x.shape[:self.axis]) + (count,) + tuple(x.shape[end:]))
        return lowering.in_float32(px, lambda t: px.ops.scatter_reduce(
            t, index, "sum", axis=self.axis, axis_size=self.size), rows)


def take(x: Any, indices: Any, axis: int) -> Any:
    """Take."""
    return bind(interned(Take, axis), (x, indices))


def take_where(mask: Any, x: Any, indices: Any, axis: int, other: Any) -> Any:
    """What `take` reads where a mask of the indices' shape is True, elsewhere a scalar; the axis may be empty."""
    shape = aval_of(x).shape
    if not shape[axis]:
        return broadcast_to(other, shape[:axis] + aval_of(indices).shape + shape[axis + 1:])
    mask = reshape(mask, aval_of(mask).shape + (1,) * (len(shape) - 1 - axis))
    return select(mask, take(x, indices, axis), other)


# ---------------------------------------------------------------------------- arithmetic of indices
def as_int32(indices: Any, size: int) -> Any:
    """Indices into an axis as int32; those beyond its range, which are out of the axis's too, as the axis's size."""
    aval = aval_of(indices)
    if aval.dtype == uint32:
        indices = minimum(indices, literal(size, aval.strong))
    return convert(indices, int32)


def counted_indices(indices: Any, size: int) -> Any:
    """Indices into an axis as int32, negative ones counted from the end; what was out of range still is."""
    unsigned = aval_of(indices).dtype.kind == "u"
    indices = as_int32(indices, size)
    if unsigned:
        return indices
    zero, n = (literal(k, aval_of(indices)) for k in (0, size))
    return select(lt(indices, zero), add(indices, n), indices)


def wrapped(indices: Any, size: int, last: Optional[int] = None) -> Any:
    """`counted_indices`, clamped into 0 to `last`, which is size - 1 by default."""
    indices = counted_indices(indices, size)
    zero, top = (literal(k, aval_of(indices)) for k in (0, size - 1 if last is None else last))
    return minimum(maximum(indices, zero), top)


def is_inside(indices: Any, size: int) -> Any:
    """Whether indices into an axis, counted from either end, are in range."""
    return in_bounds(counted_indices(indices, size), size)


def in_bounds(counted: Any, size: int) -> Any:
    """Whether indices that are counted from the front are in range."""
    zero, n = (literal(k, aval_of(counted)) for k in (0, size))
    return and_(ge(counted, zero), lt(counted, n))


# ---------------------------------------------------------------------------- what the batch rules share
def lane_starts(axis: MappedAxis, count: int, size: int) -> Any:
    """Where each lane begins if lanes of `size` lie one after the other; with `count` axes of size 1 behind."""
    lanes = iota(int32, (axis.size,) + (1,) * count, 0)
    return mul(lanes, literal(size, lanes.aval))


def axes_behind(x: Any, first: int, count: int) -> Any:
    """x with `count` axes from `first` on moved right behind axis 0, the mapped one."""
    moved = range(first, first + count)
    return transpose(x, (0, *moved, *(i for i in range(1, aval_of(x).ndim) if i not in moved)))


def axes_behind_back(y: Any, first: int, count: int) -> Any:
    """The inverse of `axes_behind`."""
    return transpose(y, (0, *range(count + 1, count + first), *range(1, count + 1),
                         *range(count + first, aval_of(y).ndim)))
