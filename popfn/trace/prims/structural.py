"""Primitives that move elements: linear, and without arithmetic. Reshape and Broadcast stand in kinds.py."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

import numpy as np

from ..aval import Aval, Shape, bool_, checked_dtype
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import select
from .kinds import sub
from .memory import place
from .shaping import (
    Axes,
    Dims,
    LinearOp,
    beside,
    broadcast_to,
    check_axes,
    in_lanes,
    interned,
    ranked,
    reshape,
    sum_over,
    to_front,
    without,
)


@dataclass(frozen=True)
class Squeeze(LinearOp):
    """Without these axes, which are of size 1."""

    axes: Axes

    def abstract(self, x: Aval) -> Aval:
        check_axes("squeeze", self.axes, x.ndim)
        for a in self.axes:
            if x.shape[a] != 1:
                raise ShapeError(f"squeeze: axis {a} of {x} is of size {x.shape[a]}, not 1")
        return x.with_shape(tuple(n for i, n in enumerate(x.shape) if i not in self.axes))

    def eval(self, x: np.ndarray) -> Any:
        return np.squeeze(x, self.axes)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (reshape(ct, x.aval.shape),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        axes = beside(self.axes, dims[0])
        return squeeze(args[0], axes), without(axes, dims[0])

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.squeeze(x, list(self.axes)) if self.axes else x


@dataclass(frozen=True)
class Slice(LinearOp):
    """x[start:stop:stride] along every axis; 0 <= start <= stop <= size, stride >= 1."""

    starts: Axes
    stops: Axes
    strides: Axes

    def abstract(self, x: Aval) -> Aval:
        if not len(self.starts) == len(self.stops) == len(self.strides) == x.ndim:
            raise ShapeError(f"slice: one start, stop and stride for each axis of {x}, "
                             f"got {self.starts}, {self.stops}, {self.strides}")
        for lo, hi, step, n in zip(self.starts, self.stops, self.strides, x.shape):
            if not (0 <= lo <= hi <= n and step >= 1):
                raise ShapeError(f"slice: {lo}:{hi}:{step} is not within an axis of size {n} of {x}")
        return x.with_shape(tuple(-(-(hi - lo) // step) for lo, hi, step in
                                  zip(self.starts, self.stops, self.strides)))

    def eval(self, x: np.ndarray) -> Any:
        return x[tuple(map(slice, self.starts, self.stops, self.strides))]

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        kept = aval_of(ct).shape
        ends = [lo + (n - 1) * step + 1 if n else lo for lo, n, step in zip(self.starts, kept, self.strides)]
        high = tuple(n - end for n, end in zip(x.aval.shape, ends))
        return (pad(ct, literal(0, aval_of(ct)), self.starts, high, tuple(s - 1 for s in self.strides)),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        dim = dims[0]
        starts, stops, strides = (v[:dim] + (whole,) + v[dim:] for v, whole in (
            (self.starts, 0), (self.stops, axis.size), (self.strides, 1)))
        return slice_(args[0], starts, stops, strides), dim

    def lower(self, px: Any, x: Any) -> Any:
        cut = [i for i, n in enumerate(x.shape) if (self.starts[i], self.stops[i]) != (0, n)]
        if cut:
            x = px.ops.slice(x, [self.starts[i] for i in cut], [self.stops[i] for i in cut], None, cut)
        return px.ops.subsample(x, list(self.strides)) if any(s != 1 for s in self.strides) else x


@dataclass(frozen=True)
class Reverse(LinearOp):
    """The elements in reverse order along axes."""

    axes: Axes

    def abstract(self, x: Aval) -> Aval:
        check_axes("reverse", self.axes, x.ndim)
        return x

    def eval(self, x: np.ndarray) -> Any:
        return np.flip(x, self.axes)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (reverse(ct, self.axes),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return reverse(args[0], beside(self.axes, dims[0])), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        if not self.axes:
            return x
        stops = [-x.shape[a] - 1 for a in self.axes]
        return px.ops.slice(x, [-1] * len(stops), stops, [-1] * len(stops), list(self.axes))


@dataclass(frozen=True)
class Concat(Primitive):
    """Values of one dtype, joined along an axis."""

    axis: int

    def abstract(self, *xs: Aval) -> Aval:
        first = xs[0]
        check_axes("concat", (self.axis,), first.ndim)
        for x in xs[1:]:
            if x.dtype != first.dtype:
                raise DtypeError(f"concat: operands have one dtype, got {', '.join(map(str, xs))}: convert with astype")
            if x.ndim != first.ndim or any(
                    m != n for i, (m, n) in enumerate(zip(x.shape, first.shape)) if i != self.axis):
                raise ShapeError(f"concat: shapes agree but for axis {self.axis}, got {', '.join(map(str, xs))}")
        shape = list(first.shape)
        shape[self.axis] = sum(x.shape[self.axis] for x in xs)
        return Aval._make(tuple(shape), first.dtype, all(x.weak for x in xs))

    def eval(self, *xs: np.ndarray) -> Any:
        return np.concatenate(xs, self.axis)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        if all(type(t) is Zero for t in tangents):
            return y, Zero(y.aval)
        return y, bind(self, [instantiate(t) for t in tangents])

    def transpose(self, ct: Any, *xs: Any) -> Tuple[Any, ...]:
        out: List[Any] = []
        at = 0
        for x in xs:
            n = x.aval.shape[self.axis]
            out.append(slice_axis(ct, self.axis, at, at + n) if type(x) is Linear else None)
            at += n
        return tuple(out)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return concat([in_lanes(x, d, axis) for x, d in zip(args, dims)], self.axis + 1), 0

    def lower(self, px: Any, *xs: Any) -> Any:
        return px.ops.concat(list(xs), self.axis) if len(xs) > 1 else xs[0]


@dataclass(frozen=True)
class Pad(Primitive):
    """x with `low` and `high` copies of a scalar around it and `interior` between its elements, along every axis.

    Negative low and high cut off instead.
    """

    low: Axes
    high: Axes
    interior: Axes

    def abstract(self, x: Aval, value: Aval) -> Aval:
        if value.ndim or value.dtype != x.dtype:
            raise ShapeError(f"pad: the value is a scalar of the operand's dtype, got {value} for {x}")
        if not len(self.low) == len(self.high) == len(self.interior) == x.ndim or min(self.interior, default=0) < 0:
            raise ShapeError(f"pad: one low, high and interior (>= 0) for each axis of {x}, "
                             f"got {self.low}, {self.high}, {self.interior}")
        shape = tuple(lo + n + hi + max(n - 1, 0) * gap
                      for n, lo, hi, gap in zip(x.shape, self.low, self.high, self.interior))
        if min(shape, default=0) < 0:
            raise ShapeError(f"pad: low {self.low} and high {self.high} cut more than there is of {x}")
        return x.with_shape(shape)

    def eval(self, x: np.ndarray, value: np.ndarray) -> Any:
        spread = [n + max(n - 1, 0) * gap for n, gap in zip(x.shape, self.interior)]
        full = np.full([max(lo, 0) + n + max(hi, 0) for n, lo, hi in zip(spread, self.low, self.high)], value, x.dtype)
        full[tuple(slice(max(lo, 0), max(lo, 0) + n, gap + 1)
                   for lo, n, gap in zip(self.low, spread, self.interior))] = x
        return full[tuple(slice(max(-lo, 0), n - max(-hi, 0)) for lo, hi, n in zip(self.low, self.high, full.shape))]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        if all(type(t) is Zero for t in tangents):
            return y, Zero(y.aval)
        return y, bind(self, [instantiate(t) for t in tangents])

    def transpose(self, ct: Any, x: Any, value: Any) -> Tuple[Any, ...]:
        spread = pad(ct, literal(0, aval_of(ct)), tuple(-n for n in self.low), tuple(-n for n in self.high),
                     (0,) * len(self.low))
        shape = aval_of(spread).shape
        inner = slice_(spread, (0,) * len(shape), shape, tuple(gap + 1 for gap in self.interior))
        by_value = None
        if type(value) is Linear:
            ndim = len(shape)
            by_value = sub(sum_over(ct, tuple(range(ndim))), sum_over(inner, tuple(range(ndim))))
        return inner if type(x) is Linear else None, by_value

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, value), (dim, of_value) = args, dims
        if of_value is None:
            low, high, interior = (v[:dim] + (0,) + v[dim:] for v in (self.low, self.high, self.interior))
            return pad(x, value, low, high, interior), dim
        # A pad of False around a field of True tells where the value goes, which is another one in each lane.
        shape = aval_of(x).shape if dim is None else tuple(n for i, n in enumerate(aval_of(x).shape) if i != dim)
        inside = pad(broadcast_to(literal(True, Aval(shape, bool_)), shape), literal(False, Aval((), bool_)),
                     self.low, self.high, self.interior)
        zero = literal(0, aval_of(x).strong)
        if dim is None:
            padded = pad(x, zero, self.low, self.high, self.interior)
        else:
            padded, _ = self.batch(axis, (to_front(x, dim), zero), (0, None))
        return select(inside, padded, ranked(value, len(shape))), 0

    def lower(self, px: Any, x: Any, value: Any) -> Any:
        ops = px.ops
        for axis, (lo, hi, gap) in enumerate(zip(self.low, self.high, self.interior)):
            if gap and x.shape[axis] > 1:
                shape = list(x.shape)
                split = ops.reshape(x, tuple(shape[:axis + 1] + [1] + shape[axis + 1:]))
                filler = lowering.broadcast(px, value, tuple(shape[:axis + 1] + [gap] + shape[axis + 1:]))
                joined = ops.concat([split, filler], axis + 1)
                shape[axis] *= gap + 1
                x = ops.slice(ops.reshape(joined, tuple(shape)), [0], [shape[axis] - gap], None, [axis])
            parts = [x]
            for n, at in ((lo, 0), (hi, 1)):
                if n > 0:
                    filler = lowering.broadcast(px, value, tuple(x.shape[:axis]) + (n,) + tuple(x.shape[axis + 1:]))
                    parts.insert(at * len(parts), filler)
            x = ops.concat(parts, axis) if len(parts) > 1 else x
            if lo < 0 or hi < 0:
                x = ops.slice(x, [max(-lo, 0)], [x.shape[axis] - max(-hi, 0)], None, [axis])
        return x


@dataclass(frozen=True)
class Iota(Primitive):
    """0, 1, 2, ... along an axis."""

    dtype: np.dtype
    shape: Shape
    axis: int

    def abstract(self) -> Aval:
        check_axes("iota", (self.axis,), len(self.shape))
        return Aval._make(self.shape, checked_dtype(self.dtype), False)

    def eval(self) -> Any:
        column = [-1 if i == self.axis else 1 for i in range(len(self.shape))]
        line = np.arange(self.shape[self.axis]).astype(self.dtype).reshape(column)
        return np.array(np.broadcast_to(line, self.shape))

    def lower(self, px: Any) -> Any:
        line = np.arange(self.shape[self.axis], dtype=self.dtype)
        t = px.constant(line, lowering.px_dtype(px, self.dtype))
        column = tuple(n if i == self.axis else 1 for i, n in enumerate(self.shape))
        return lowering.broadcast(px, lowering.reshape(px, t, column), self.shape)


def instantiate(t: Any) -> Any:
    """A tangent with symbolic zeros written out."""
    return place(broadcast_to(literal(0, t.aval), t.aval.shape), t.aval.memory) if type(t) is Zero else t


def squeeze(x: Any, axes: Axes) -> Any:
    """Squeeze, left out where there are no axes."""
    return bind(interned(Squeeze, axes), (x,)) if axes else x


def slice_(x: Any, starts: Axes, stops: Axes, strides: Axes) -> Any:
    """Slice, left out where it would change nothing."""
    if stops == aval_of(x).shape and not any(starts) and all(s == 1 for s in strides):
        return x
    return bind(interned(Slice, starts, stops, strides), (x,))


def slice_axis(x: Any, axis: int, start: int, stop: int) -> Any:
    """x[start:stop] along one axis."""
    shape = aval_of(x).shape
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else n for i, n in enumerate(shape))
    return slice_(x, starts, stops, (1,) * len(shape))


def reverse(x: Any, axes: Axes) -> Any:
    """Reverse, left out where there are no axes."""
    return bind(interned(Reverse, axes), (x,)) if axes else x


def concat(xs: Sequence[Any], axis: int) -> Any:
    """Concat."""
    return bind(interned(Concat, axis), tuple(xs))


def pad(x: Any, value: Any, low: Axes, high: Axes, interior: Axes) -> Any:
    """Pad, left out where it would change nothing."""
    if not (any(low) or any(high) or any(interior)):
        return x
    return bind(interned(Pad, low, high, interior), (x, value))


def iota(dtype: np.dtype, shape: Shape, axis: int) -> Any:
    """Iota."""
    return bind(interned(Iota, dtype, shape, axis), ())
