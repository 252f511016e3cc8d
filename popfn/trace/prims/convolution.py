"""Convolution over any number of spatial axes. Its two transposes are convolutions again."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from ..aval import Aval, Shape
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis
from ..tracer import aval_of, bind, literal
from . import lowering
from .kinds import Bilinear
from .shaping import Axes, Dims, broadcast_to, check_dtype, interned, reshape, to_front, transpose
from .structural import Pad, reverse

STILL = (0, 0)  #: What is padded of the axes of samples and channels.


def span(size: int, dilation: int) -> int:
    """How far an axis of this size reaches when its elements are `dilation` apart."""
    return (size - 1) * dilation + 1 if size else 0


def spans(sizes: Sequence[int], dilations: Sequence[int]) -> Tuple[int, ...]:
    """The span of each axis."""
    return tuple(map(span, sizes, dilations))


def steps(room: Sequence[int], window: Sequence[int], strides: Sequence[int]) -> Tuple[int, ...]:
    """How many places a window of this span has in each axis, `strides` apart."""
    return tuple(max((n - k) // s + 1, 0) for n, k, s in zip(room, window, strides))


def swapped_in_groups(w: Any, groups: int) -> Any:
    """Kernels (outputs, channels / groups, *sizes) as (channels, outputs / groups, *sizes), or the other way round."""
    m, n, *sizes = aval_of(w).shape
    split = reshape(w, (groups, m // groups, n, *sizes))
    return reshape(transpose(split, (0, 2, 1, *range(3, 3 + len(sizes)))), (groups * n, m // groups, *sizes))


def spread(x: np.ndarray, low: Axes, shape: Shape, dilation: Axes) -> np.ndarray:
    """Zeros of a spatial shape with the elements of x from `low` on, `dilation` apart; what is outside is left out."""
    out = np.zeros(x.shape[:2] + shape, x.dtype)
    source, target = [slice(None)] * 2, [slice(None)] * 2
    for n, lo, size, d in zip(x.shape[2:], low, shape, dilation):
        first = max(-(lo // d), 0)
        last = min((size - 1 - lo) // d, n - 1)
        if first > last:
            return out
        source.append(slice(first, last + 1))
        target.append(slice(lo + first * d, lo + last * d + 1, d))
    out[tuple(target)] = x[tuple(source)]
    return out


@dataclass(frozen=True)
class Conv(Bilinear):
    """Kernels (outputs, channels / groups, *sizes) slid over samples (batch, channels, *sizes); they are not mirrored.

    `x_dilation` puts zeros between the samples' elements, `low` and `high` put zeros around them (negative ones cut
    off), `w_dilation` puts the kernels' elements apart, `strides` is the distance of the windows. The channels and the
    outputs are divided into `groups`; each of the outputs' groups sees its own group of channels. float16 is
    accumulated in float32.
    """

    strides: Axes
    low: Axes
    high: Axes
    x_dilation: Axes
    w_dilation: Axes
    groups: int = 1

    def room(self, x_sizes: Sequence[int]) -> Tuple[int, ...]:
        """The samples' spatial shape with all the zeros between and around them."""
        return tuple(n + lo + hi for n, lo, hi in zip(spans(x_sizes, self.x_dilation), self.low, self.high))

    def abstract(self, x: Aval, w: Aval) -> Aval:
        check_dtype("conv", x, "f")
        if x.dtype != w.dtype:
            raise DtypeError(f"conv: operands have one dtype, got {x} and {w}: convert one with astype")
        rank = x.ndim - 2
        parameters = (self.strides, self.low, self.high, self.x_dilation, self.w_dilation)
        if rank < 1 or w.ndim != x.ndim or any(len(v) != rank for v in parameters):
            raise ShapeError(f"conv: samples (batch, channels, *sizes) and kernels (outputs, channels, *sizes) have as "
                             f"many spatial axes, at least one, as there are parameters, got {x} and {w} for {self}")
        if min(self.strides + self.x_dilation + self.w_dilation) < 1 or self.groups < 1:
            raise ShapeError(f"conv: strides, dilations and groups are 1 or more, got {self}")
        if w.shape[1] * self.groups != x.shape[1] or w.shape[0] % self.groups:
            raise ShapeError(f"conv: kernels {w} in {self.groups} groups do not fit the channels of {x}")
        sizes = steps(self.room(x.shape[2:]), spans(w.shape[2:], self.w_dilation), self.strides)
        return Aval._make((x.shape[0], w.shape[0]) + sizes, x.dtype, x.weak and w.weak)

    def eval(self, x: np.ndarray, w: np.ndarray) -> Any:
        """All windows as the rows of one matrix, times the kernels as the columns of another, for each group."""
        room, window, rank = self.room(x.shape[2:]), spans(w.shape[2:], self.w_dilation), x.ndim - 2
        sizes = steps(room, window, self.strides)
        out, groups = (x.shape[0], w.shape[0]) + sizes, self.groups
        if not (math.prod(out) and x.size and w.size):
            return np.zeros(out, x.dtype)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        full = spread(x.astype(wide), self.low, room, self.x_dilation)
        windows = np.lib.stride_tricks.sliding_window_view(full, window, tuple(range(2, 2 + rank)))
        windows = windows[(slice(None),) * 2 + tuple(slice(None, None, s) for s in self.strides + self.w_dilation)]
        windows = windows.reshape((x.shape[0], groups, -1) + windows.shape[2:])
        places, elements = tuple(range(3, 3 + rank)), tuple(range(3 + rank, 3 + 2 * rank))
        rows = windows.transpose((1, 0, *places, 2, *elements)).reshape(groups, x.shape[0] * math.prod(sizes), -1)
        columns = w.astype(wide).reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)
        y = (rows @ columns).reshape(groups, x.shape[0], *sizes, -1)
        y = y.transpose((1, 0, 2 + rank, *range(2, 2 + rank)))
        return y.reshape(out).astype(x.dtype)

    def transpose(self, ct: Any, x: Any, w: Any) -> Tuple[Any, ...]:
        sizes, kernel, got = x.aval.shape[2:], w.aval.shape[2:], aval_of(ct).shape[2:]
        x_spans, w_spans = spans(sizes, self.x_dilation), spans(kernel, self.w_dilation)
        ct_spans = spans(got, self.strides)
        if type(x) is Linear:  # ct with its elements apart, under the mirrored kernels
            low = tuple(k - 1 - lo for k, lo in zip(w_spans, self.low))
            high = tuple((n - 1) * d + k - c - lo for n, d, k, c, lo in
                         zip(sizes, self.x_dilation, w_spans, ct_spans, low))
            w = reverse(swapped_in_groups(w, self.groups), tuple(range(2, 2 + len(kernel))))
            return conv(ct, w, self.x_dilation, low, high, self.strides, self.w_dilation, self.groups), None
        # The samples under ct as a kernel: each channel's samples are now those of one place in the groups of outputs.
        high = tuple((k - 1) * d + c - n - lo for k, d, c, n, lo in
                     zip(kernel, self.w_dilation, ct_spans, x_spans, self.low))
        batch, channels = x.aval.shape[:2]
        rest = range(3, 3 + len(kernel))
        x = reshape(x, (batch, self.groups, channels // self.groups, *sizes))
        x = reshape(transpose(x, (2, 1, 0, *rest)), (channels // self.groups, self.groups * batch, *sizes))
        got = conv(x, transpose(ct, (1, 0, *range(2, 2 + len(kernel)))), self.w_dilation, self.low, high,
                   self.x_dilation, self.strides, self.groups)
        return None, transpose(got, (1, 0, *range(2, 2 + len(kernel))))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        """Mapped samples are more samples, mapped kernels more outputs of each group, both together more groups."""
        x, w = (v if d is None else to_front(v, d) for v, d in zip(args, dims))
        x_aval, w_aval = (aval_of(v) if d is None else aval_of(v).with_shape(aval_of(v).shape[1:])
                          for v, d in zip((x, w), dims))
        out = self.abstract(x_aval, w_aval).shape
        n, g, a, b = axis.size, self.groups, x_aval.shape, w_aval.shape
        if not n:  # there are no convolutions in 0 groups
            return broadcast_to(literal(0, x_aval.strong), (0, *out)), 0
        if dims[1] is None:
            return reshape(self.apply(reshape(x, (n * a[0], *a[1:])), w, g), (n, *out)), 0
        if dims[0] is not None:
            x = reshape(transpose(x, (1, 0, *range(2, 1 + len(a)))), (a[0], n * a[1], *a[2:]))
            return reshape(self.apply(x, reshape(w, (n * b[0], *b[1:])), n * g), (out[0], n, *out[1:])), 1
        w = transpose(reshape(w, (n, g, b[0] // g, *b[1:])), (1, 0, *range(2, 2 + len(b))))
        y = self.apply(x, reshape(w, (n * b[0], *b[1:])), g)
        y = reshape(y, (out[0], g, n, b[0] // g, *out[2:]))
        return reshape(transpose(y, (2, 0, 1, *range(3, 2 + len(b)))), (n, *out)), 0

    def apply(self, x: Any, w: Any, groups: int) -> Any:
        """The same convolution of other operands, in other groups."""
        return conv(x, w, self.strides, self.low, self.high, self.x_dilation, self.w_dilation, groups)

    def lower(self, px: Any, x: Any, w: Any) -> Any:
        apart = max(self.x_dilation) > 1
        y = self.lower_as_transpose(px, x, w) if apart else None
        if y is not None:
            return y
        padding = self.low + self.high
        if apart or min(padding) < 0:
            gaps = tuple(d - 1 for d in self.x_dilation)
            x = Pad(STILL + self.low, STILL + self.high, STILL + gaps).lower(px, x, lowering.scalar(px, 0, x))
            padding = (0,) * len(padding)
        return px.ops.conv(x, w, self.strides, padding, self.w_dilation, self.groups)

    def lower_as_transpose(self, px: Any, x: Any, w: Any) -> Any:
        """The gradient of strided windows as `ops.conv_transpose`, which multiplies no zeros; None for all else."""
        window = w.shape[2:]
        before = tuple(k - 1 - lo for k, lo in zip(window, self.low))
        behind = tuple(max(k - 1 - hi, 0) for k, hi in zip(window, self.high))
        extra = tuple(max(hi - k + 1, 0) for k, hi in zip(window, self.high))
        if max(self.strides + self.w_dilation) > 1 or min(before) < 0 or any(
                n >= d for n, d in zip(extra, self.x_dilation)):  # an output padding is less than the stride
            return None
        g, sizes = self.groups, tuple(window)
        w = lowering.reshape(px, w, (g, w.shape[0] // g, *w.shape[1:]))
        w = lowering.transpose(px, w, (0, 2, 1, *range(3, 3 + len(sizes))))
        w = lowering.reshape(px, w, (g * w.shape[1], *w.shape[2:]))
        axes = list(range(2, 2 + len(sizes)))
        w = px.ops.slice(w, [-1] * len(axes), [-n - 1 for n in sizes], [-1] * len(axes), axes)
        return px.ops.conv_transpose(x, w, self.x_dilation, before + behind, (1,) * len(sizes), g,
                                     output_padding=extra)


def conv(x: Any, w: Any, strides: Axes, low: Axes, high: Axes, x_dilation: Axes, w_dilation: Axes,
         groups: int = 1) -> Any:
    """Conv; zeros where there is nothing to multiply."""
    primitive = interned(Conv, strides, low, high, x_dilation, w_dilation, groups)
    a, b = aval_of(x), aval_of(w)
    if not (a.size and b.size):
        return broadcast_to(literal(0, a.strong), primitive.abstract(a.invariant, b.invariant).shape)
    return bind(primitive, (x, w))
