"""Windows of a fixed size whose places are values."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

import numpy as np

from ..aval import Aval, Shape, int32
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .indexing import counted, lane_starts, take, wrapped
from .kinds import add, mul
from .scatter import scatter_set
from .shaping import (
    Axes,
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
from .structural import instantiate, iota, slice_axis


def check_window(name: str, axes: Axes, sizes: Shape, x: Aval, starts: Aval) -> None:
    """Raise ShapeError or DtypeError unless the window fits x and there is a start for each of its axes."""
    check_axes(name, axes, x.ndim)
    check_dtype(f"{name}: a start", starts, "iu")
    if starts.shape != (len(axes),):
        raise ShapeError(f"{name}: a start for each of the axes {axes}, got {starts}")
    if len(sizes) != len(axes) or any(not 0 <= n <= x.shape[a] for a, n in zip(axes, sizes)):
        raise ShapeError(f"{name}: a window of {sizes} along the axes {axes} does not fit {x}")


def window(axes: Axes, sizes: Shape, shape: Shape, starts: np.ndarray) -> Tuple[slice, ...]:
    """The slices that cut out a window: negative starts count from the end, then it is moved to where it fits."""
    cut = [slice(None)] * len(shape)
    for a, n, start in zip(axes, sizes, starts):
        first = min(max(int(counted(start, shape[a])), 0), shape[a] - n)
        cut[a] = slice(first, first + n)
    return tuple(cut)


def window_starts(px: Any, axes: Axes, sizes: Shape, shape: Shape, starts: Any) -> Any:
    """The same starts in PopXL, counted from the front."""
    index = lowering.counted_index(px, starts, [shape[a] for a in axes])
    return lowering.clamped(px, index, [shape[a] - n for a, n in zip(axes, sizes)])


@dataclass(frozen=True)
class DynamicSlice(LinearOp):
    """The window of `sizes` along `axes` of x that begins at the starts, one for each axis.

    Negative starts count from the end; then a window that does not fit is moved to the nearest place where it does.
    """

    axes: Axes
    sizes: Shape

    def abstract(self, x: Aval, starts: Aval) -> Aval:
        check_window("dynamic_slice", self.axes, self.sizes, x, starts)
        size = dict(zip(self.axes, self.sizes))
        return x.with_shape(tuple(size.get(a, n) for a, n in enumerate(x.shape)))

    def eval(self, x: np.ndarray, starts: np.ndarray) -> Any:
        return x[window(self.axes, self.sizes, x.shape, starts)]

    def transpose(self, ct: Any, x: Linear, starts: Any) -> Tuple[Any, ...]:
        zeros = broadcast_to(literal(0, aval_of(ct)), x.aval.shape)
        return dynamic_update_slice(zeros, ct, starts, self.axes), None

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, starts), (i, j) = args, dims
        if j is None:
            return dynamic_slice(x, starts, beside(self.axes, i), self.sizes), i
        lanes = Lanes(axis, self.axes, self.sizes, reshape(x, (1, *aval_of(x).shape)) if i is None else to_front(x, i))
        return lanes.whole(take(lanes.rows, lanes.index(to_front(starts, j)), 0), self.sizes), 0

    def lower(self, px: Any, x: Any, starts: Any) -> Any:
        starts = window_starts(px, self.axes, self.sizes, x.shape, starts)
        return px.ops.dynamic_slice(x, starts, list(self.axes), list(self.sizes), True)


@dataclass(frozen=True)
class DynamicUpdateSlice(Primitive):
    """x with an update in the place of the window that begins at the starts, one for each of `axes`.

    The window has the update's sizes and the place that it has for DynamicSlice.
    """

    axes: Axes

    def abstract(self, x: Aval, update: Aval, starts: Aval) -> Aval:
        if update.dtype != x.dtype:
            raise DtypeError(f"dynamic_update_slice: the update has the operand's dtype, got {update} for {x}: "
                             "convert one with astype")
        if update.ndim != x.ndim or any(n != update.shape[a] for a, n in enumerate(x.shape) if a not in self.axes):
            raise ShapeError(f"dynamic_update_slice: the update has the operand's sizes but along {self.axes}, "
                             f"got {update} for {x}")
        check_window("dynamic_update_slice", self.axes, self.sizes(update.shape), x, starts)
        return Aval._make(x.shape, x.dtype, x.weak and update.weak)

    def sizes(self, shape: Shape) -> Shape:
        """The window's sizes, for an update of this shape."""
        return tuple(shape[a] for a in self.axes)

    def eval(self, x: np.ndarray, update: np.ndarray, starts: np.ndarray) -> Any:
        out = x.copy()
        out[window(self.axes, self.sizes(update.shape), x.shape, starts)] = update
        return out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        tx, tu, _ = tangents
        if type(tx) is Zero and type(tu) is Zero:
            return y, Zero(y.aval)
        return y, bind(self, (instantiate(tx), instantiate(tu), primals[2]))

    def transpose(self, ct: Any, x: Any, update: Any, starts: Any) -> Tuple[Any, ...]:
        by_x = by_update = None
        shape = (update.aval if type(update) is Linear else aval_of(update)).shape
        if type(x) is Linear:
            by_x = dynamic_update_slice(ct, broadcast_to(literal(0, aval_of(ct)), shape), starts, self.axes)
        if type(update) is Linear:
            by_update = dynamic_slice(ct, starts, self.axes, self.sizes(shape))
        return by_x, by_update, None

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, update, starts), (i, j, k) = args, dims
        x, update = in_lanes(x, i, axis), in_lanes(update, j, axis)
        if k is None:
            return dynamic_update_slice(x, update, starts, tuple(a + 1 for a in self.axes)), 0
        sizes = self.sizes(aval_of(update).shape[1:])
        lanes = Lanes(axis, self.axes, sizes, x)
        index = lanes.index(to_front(starts, k))
        update = transpose(update, lanes.order)
        update = reshape(update, aval_of(index).shape + aval_of(lanes.rows).shape[1:])
        rows = scatter_set(lanes.rows, index, update, 0)
        return lanes.whole(rows, tuple(aval_of(x).shape[a + 1] for a in self.axes)), 0

    def lower(self, px: Any, x: Any, update: Any, starts: Any) -> Any:
        sizes = self.sizes(update.shape)
        starts = window_starts(px, self.axes, sizes, x.shape, starts)
        return px.ops.dynamic_update(x, starts, update, list(self.axes), list(sizes), True)


class Lanes:
    """Where the lanes' windows lie in x if each has starts of its own: x as rows, and the windows as indices of rows.

    x has lanes in front, or a single one that all read. `rows` has one axis for lanes and `axes` together.
    """

    def __init__(self, axis: MappedAxis, axes: Axes, sizes: Shape, x: Any) -> None:
        shape = aval_of(x).shape
        self.axis, self.window = axis, sizes
        axes = tuple(a + 1 for a in axes)
        self.order = (0, *axes, *(i for i in range(1, len(shape)) if i not in axes))
        self.sizes = tuple(shape[a] for a in axes)
        self.rest = tuple(shape[i] for i in self.order[1 + len(axes):])
        size = math.prod(self.sizes)
        self.stride = size if shape[0] == axis.size else 0
        self.rows = reshape(transpose(x, self.order), (shape[0] * size, *self.rest))

    def index(self, starts: Any) -> Any:
        """The rows of each lane's window, for starts of all lanes: int32 of the shape (lanes, *sizes)."""
        count = len(self.sizes)
        total = lane_starts(self.axis, count, self.stride)
        for i, (size, n) in enumerate(zip(self.sizes, self.window)):
            first = wrapped(slice_axis(starts, 1, i, i + 1), size, size - n)
            column: List[int] = [1] * (count + 1)
            column[0] = self.axis.size
            first = reshape(first, tuple(column))
            column[0], column[i + 1] = 1, n
            step = literal(math.prod(self.sizes[i + 1:]), aval_of(first))
            total = add(total, mul(add(first, iota(int32, tuple(column), i + 1)), step))
        return broadcast_to(total, (self.axis.size, *self.window))

    def whole(self, rows: Any, sizes: Shape) -> Any:
        """Rows as lanes in front and their axes where x has them, of these sizes along `axes`."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return transpose(reshape(rows, (self.axis.size, *sizes, *self.rest)), tuple(back))


def dynamic_slice(x: Any, starts: Any, axes: Axes, sizes: Shape) -> Any:
    """DynamicSlice, left out where there are no axes."""
    return bind(interned(DynamicSlice, axes, sizes), (x, starts)) if axes else x


def dynamic_update_slice(x: Any, update: Any, starts: Any, axes: Axes) -> Any:
    """DynamicUpdateSlice, left out where nothing or everything is written."""
    if not axes or not aval_of(update).size:
        return x if axes else update
    return bind(interned(DynamicUpdateSlice, axes), (x, update, starts))
