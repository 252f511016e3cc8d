"""Windows slid over the spatial axes of samples (batch, channels, *sizes): their largest elements and their sums."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence, Tuple

import numpy as np

from ..aval import Aval, Shape, int32
from ..errors import ShapeError
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import and_, eq, ne, or_, select
from .convolution import STILL, span, spans, spread, steps
from .elementwise import convert
from .reduce import argmax
from .shaping import Axes, Dims, LinearOp, broadcast_to, check_dtype, interned, reshape, sum_over, to_front, transpose
from .structural import Pad, concat, iota, pad, slice_


def windows_of(x: np.ndarray, window: Axes, strides: Axes, dilation: Axes) -> np.ndarray:
    """A view (batch, channels, *places, *elements) of all windows."""
    axes = tuple(range(2, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view(x, spans(window, dilation), axes)
    return view[(slice(None),) * 2 + tuple(slice(None, None, s) for s in strides + dilation)]


def folded(primitive: Primitive, axis: MappedAxis, x: Any, dim: int) -> Tuple[Any, int]:
    """The batch rule of a primitive over samples: mapped samples are more samples."""
    x = to_front(x, dim)
    n, batch, *rest = aval_of(x).shape
    y = bind(primitive, (reshape(x, (n * batch, *rest)),))
    return reshape(y, (n, batch) + aval_of(y).shape[1:]), 0


def by_slices(px: Any, x: Any, window: Axes, strides: Axes, dilation: Axes, op: Callable[..., Any]) -> Any:
    """Windows whose elements lie apart, which no pooling of PopXL's has: their elements combined axis by axis."""
    for axis, (k, s, d) in enumerate(zip(window, strides, dilation), 2):
        count, = steps((x.shape[axis],), (span(k, d),), (s,))
        by = [s if i == axis else 1 for i in range(len(x.shape))]
        parts = [px.ops.slice(x, [i * d], [i * d + (count - 1) * s + 1], None, [axis]) for i in range(k)]
        parts = [px.ops.subsample(part, by) if s > 1 else part for part in parts]
        x = parts[0]
        for part in parts[1:]:
            x = op(x, part)
    return x


@dataclass(frozen=True)
class SumPool(LinearOp):
    """The sum of each window. float16 is accumulated in float32.

    `x_dilation` puts zeros between the samples' elements, `low` and `high` put zeros around them (negative ones cut
    off), `dilation` puts a window's elements apart. The transpose is a sum of windows again.
    """

    window: Axes
    strides: Axes
    low: Axes
    high: Axes
    x_dilation: Axes
    dilation: Axes

    def room(self, x_sizes: Sequence[int]) -> Tuple[int, ...]:
        """The samples' spatial shape with all the zeros between and around them."""
        return tuple(n + lo + hi for n, lo, hi in zip(spans(x_sizes, self.x_dilation), self.low, self.high))

    def abstract(self, x: Aval) -> Aval:
        check_dtype("sum_pool", x, "f")
        check_windows("sum_pool", x, self.window, self.strides, self.low, self.high, self.x_dilation, self.dilation)
        return x.with_shape(x.shape[:2] + steps(self.room(x.shape[2:]), spans(self.window, self.dilation),
                                                self.strides))

    def eval(self, x: np.ndarray) -> Any:
        room, rank = self.room(x.shape[2:]), x.ndim - 2
        shape = x.shape[:2] + steps(room, spans(self.window, self.dilation), self.strides)
        if not math.prod(shape):
            return np.zeros(shape, x.dtype)
        full = spread(x, self.low, room, self.x_dilation)
        view = windows_of(full, self.window, self.strides, self.dilation)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return view.sum(tuple(range(2 + rank, 2 + 2 * rank)), dtype=wide).astype(x.dtype)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        sizes, window = x.aval.shape[2:], spans(self.window, self.dilation)
        low = tuple(k - 1 - lo for k, lo in zip(window, self.low))
        high = tuple((n - 1) * d + k - c - lo for n, d, k, c, lo in zip(
            sizes, self.x_dilation, window, spans(aval_of(ct).shape[2:], self.strides), low))
        if not aval_of(ct).size:
            return (broadcast_to(literal(0, aval_of(ct)), x.aval.shape),)
        return (sum_pool(ct, self.window, self.x_dilation, low, high, self.strides, self.dilation),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return folded(self, axis, args[0], dims[0])

    def lower(self, px: Any, x: Any) -> Any:
        if any(self.low + self.high) or max(self.x_dilation) > 1:  # ops.average_pool does not count what it pads
            gaps = tuple(d - 1 for d in self.x_dilation)
            x = Pad(STILL + self.low, STILL + self.high, STILL + gaps).lower(px, x, lowering.scalar(px, 0, x))

        def sums(x: Any) -> Any:
            if max(self.dilation) > 1:
                return by_slices(px, x, self.window, self.strides, self.dilation, px.ops.add)
            size = lowering.scalar(px, float(math.prod(self.window)), x)
            return px.ops.mul(px.ops.average_pool(x, self.window, self.strides), size)
        return lowering.in_float32(px, sums, x)


@dataclass(frozen=True)
class MaxPool(Primitive):
    """The largest element of each window; NaN if there is one.

    `low` and `high` put -inf around the samples, `dilation` puts a window's elements apart. The cotangent goes to the
    first of the largest elements, in row-major order, and never to the padding.
    """

    window: Axes
    strides: Axes
    low: Axes
    high: Axes
    dilation: Axes

    def places(self, x_sizes: Sequence[int]) -> Tuple[int, ...]:
        """How many windows there are in each axis."""
        room = tuple(n + lo + hi for n, lo, hi in zip(x_sizes, self.low, self.high))
        return steps(room, spans(self.window, self.dilation), self.strides)

    def abstract(self, x: Aval) -> Aval:
        check_dtype("max_pool", x, "f")
        check_windows("max_pool", x, self.window, self.strides, self.low, self.high, self.dilation)
        if min(self.low + self.high) < 0:
            raise ShapeError(f"max_pool: padding is 0 or more, got {self.low} and {self.high}")
        return x.with_shape(x.shape[:2] + self.places(x.shape[2:]))

    def eval(self, x: np.ndarray) -> Any:
        shape, rank = x.shape[:2] + self.places(x.shape[2:]), x.ndim - 2
        if not math.prod(shape):
            return np.zeros(shape, x.dtype)
        full = np.pad(x, [STILL] * 2 + list(zip(self.low, self.high)), constant_values=-math.inf)
        return windows_of(full, self.window, self.strides, self.dilation).max(tuple(range(2 + rank, 2 + 2 * rank)))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        y = bind(self, (x,))
        if type(t) is Zero or not y.aval.size:
            return y, Zero(y.aval)
        elements = self.elements(x, literal(-math.inf, aval_of(x)))
        wins = or_(eq(elements, reshape(y, (1, *y.aval.shape))), ne(elements, elements))
        if any(self.low + self.high):  # -inf, as an element may be
            wins = and_(wins, self.inside(aval_of(x).shape[2:]))
        first = eq(iota(int32, (math.prod(self.window),) + (1,) * y.aval.ndim, 0),
                   reshape(argmax(convert(wins, int32), 0), (1, *y.aval.shape)))
        zero = literal(0, y.aval)
        return y, sum_over(select(first, self.elements(t, zero), zero), (0,))

    def elements(self, x: Any, padding: Any) -> Any:
        """The windows' elements as (elements, batch, channels, *places)."""
        places = self.places(aval_of(x).shape[2:])
        x = pad(x, padding, STILL + self.low, STILL + self.high, (0,) * aval_of(x).ndim)
        if self.window == self.strides and max(self.dilation) == 1:
            x = parts_of(x, places, self.window)
            axes, shape = range(3, aval_of(x).ndim, 2), aval_of(x).shape[:2] + places
            x = transpose(x, (*axes, 0, 1, *(a - 1 for a in axes)))
            return reshape(x, (math.prod(self.window), *shape))
        x = reshape(x, (1, *aval_of(x).shape))
        for axis, (k, s, d, n) in enumerate(zip(self.window, self.strides, self.dilation, places), 3):
            x = windows_along(x, axis, k, s, d, n)
        return x

    def inside(self, x_sizes: Shape) -> np.ndarray:
        """Which of the windows' elements, in the order of `elements`, are the samples' own."""
        full = np.pad(np.ones((1, 1) + x_sizes, bool), [STILL] * 2 + list(zip(self.low, self.high)))
        view = windows_of(full, self.window, self.strides, self.dilation)
        flat = view.reshape(view.shape[:2 + len(x_sizes)] + (-1,))
        return np.moveaxis(flat, -1, 0)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return folded(self, axis, args[0], dims[0])

    def lower(self, px: Any, x: Any) -> Any:
        nan = px.ops.cast(px.ops.isnan(x), px.float32)  # what a pooling makes of NaN is nowhere said
        y, nans = self.pooled(px, x, -math.inf, px.ops.maximum), self.pooled(px, nan, 0.0, px.ops.maximum)
        return px.ops.where(px.ops.greater(nans, px.constant(0.0, px.float32)), lowering.scalar(px, math.nan, x), y)

    def pooled(self, px: Any, x: Any, padding: float, maximum: Callable[..., Any]) -> Any:
        """The largest elements, NaN aside."""
        if max(self.dilation) == 1:
            return px.ops.max_pool(x, self.window, self.strides, self.low + self.high)
        x = Pad(STILL + self.low, STILL + self.high, (0,) * len(x.shape)).lower(px, x, lowering.scalar(px, padding, x))
        return by_slices(px, x, self.window, self.strides, self.dilation, maximum)


def check_windows(name: str, x: Aval, window: Axes, *parameters: Axes) -> None:
    """Raise ShapeError unless there is one of each of the parameters (strides, low, high, dilations) for each axis."""
    rank = x.ndim - 2
    if rank < 1 or any(len(v) != rank for v in (window, *parameters)):
        raise ShapeError(f"{name}: samples (batch, channels, *sizes) have as many spatial axes, at least one, as there "
                         f"are parameters, got {x} for {(window, *parameters)}")
    if min(window + parameters[0] + sum(parameters[3:], ())) < 1:
        raise ShapeError(f"{name}: windows, strides and dilations are 1 or more, got {(window, *parameters)}")


def parts_of(x: Any, places: Axes, window: Axes) -> Any:
    """The elements of windows that do not overlap, (batch, channels, places, elements, places, elements, ...)."""
    lead = aval_of(x).shape[:2]
    stops = lead + tuple(n * k for n, k in zip(places, window))
    x = slice_(x, (0,) * len(stops), stops, (1,) * len(stops))
    return reshape(x, lead + tuple(n for pair in zip(places, window) for n in pair))


def windows_along(x: Any, axis: int, size: int, stride: int, dilation: int, count: int) -> Any:
    """x, whose first axis counts windows' elements, with `count` windows along an axis; their elements come innermost
    in the first axis."""
    elements, *shape = aval_of(x).shape
    parts = []
    for i in range(0, size * dilation, dilation):
        cuts = [(0, n, 1) for n in (elements, *shape)]
        cuts[axis] = i, i + (count - 1) * stride + 1, stride
        part = slice_(x, *map(tuple, zip(*cuts)))
        parts.append(reshape(part, (elements, 1, *aval_of(part).shape[1:])))
    return reshape(concat(parts, 1), (elements * size, *shape[:axis - 1], count, *shape[axis:]))


def max_pool(x: Any, window: Axes, strides: Axes, low: Axes, high: Axes, dilation: Axes) -> Any:
    """MaxPool."""
    return bind(interned(MaxPool, window, strides, low, high, dilation), (x,))


def sum_pool(x: Any, window: Axes, strides: Axes, low: Axes, high: Axes, x_dilation: Axes, dilation: Axes) -> Any:
    """SumPool, but the sum over parts of the axes where windows do not overlap: its gradient is a broadcast."""
    primitive = interned(SumPool, window, strides, low, high, x_dilation, dilation)
    if window != strides or any(low) or any(n > 0 for n in high) or max(x_dilation + dilation) > 1:
        return bind(primitive, (x,))
    parts = parts_of(x, primitive.abstract(aval_of(x).invariant).shape[2:], window)
    return sum_over(parts, tuple(range(3, 3 + 2 * len(window), 2)))
