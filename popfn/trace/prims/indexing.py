"""Reading along an axis by indices that are values."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from ..aval import Aval, int32, uint32
from ..errors import ShapeError
from ..primitive import Linear, MappedAxis
from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import lt, maximum, minimum, select
from .elementwise import convert
from .kinds import add, mul
from .shaping import Dims, LinearOp, beside, check_axes, check_dtype, in_lanes, interned, reshape, to_front, transpose
from .structural import iota


def in_range(index: np.ndarray, size: int) -> np.ndarray:
    """Indices with negative ones counted from the end and the rest clamped into range."""
    wide = index.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, size - 1)


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
        x, count = to_front(x, i), aval_of(indices).ndim - 1
        ndim, size = aval_of(x).ndim, aval_of(x).shape[self.axis + 1]
        rest = [k for k in range(1, ndim) if k != self.axis + 1]
        x = transpose(x, (0, self.axis + 1, *rest))
        x = reshape(x, (axis.size * size, *aval_of(x).shape[2:]))
        y = take(x, in_lane(to_front(indices, j), size), 0)
        before, of_indices = tuple(range(count + 1, count + 1 + self.axis)), tuple(range(1, count + 1))
        return transpose(y, (0, *before, *of_indices, *range(count + 1 + self.axis, aval_of(y).ndim))), 0

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
        x, count = in_lanes(x, i, axis), aval_of(indices).ndim - 1
        first = self.axis + 1
        rest = [k for k in range(1, aval_of(x).ndim) if not first <= k < first + count]
        x = transpose(x, (0, *range(first, first + count), *rest))
        y = bind(interned(TakeTranspose, 0, axis.size * self.size), (x, in_lane(to_front(indices, j), self.size)))
        y = reshape(y, (axis.size, self.size, *aval_of(y).shape[1:]))
        return transpose(y, (0, *range(2, first + 1), 1, *range(first + 1, aval_of(y).ndim))), 0

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


def wrapped(indices: Any, size: int) -> Any:
    """Indices into an axis as int32, negative ones counted from the end and the rest clamped into range."""
    aval = aval_of(indices)
    if aval.dtype == uint32:  # what int32 cannot hold would turn negative
        indices = minimum(indices, literal(max(size - 1, 0), aval.strong))
    indices = convert(indices, int32)
    zero, last, n = (literal(k, aval_of(indices)) for k in (0, size - 1, size))
    indices = select(lt(indices, zero), add(indices, n), indices)
    return minimum(maximum(indices, zero), last)


def in_lane(indices: Any, size: int) -> Any:
    """Indices whose first axis is the mapped one, into the lanes of an axis of `size` laid one after the other."""
    indices = wrapped(indices, size)
    shape = aval_of(indices).shape
    lanes = iota(int32, (shape[0],) + (1,) * (len(shape) - 1), 0)
    return add(indices, mul(lanes, literal(size, lanes.aval)))
