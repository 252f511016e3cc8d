"""Gradients of matrix products and convolutions."""

from typing import Dict, Sequence, Tuple

from popfn.host import ops
from popfn.host.context import get_current_graph
from popfn.host.gradients.site import Gradients, Rule, Site, cast, padded, reshape, reversed_along, spaced, sum_to
from popfn.host.ops import _build
from popfn.host.tensor import Shape, Tensor


def _swapped(t: Tensor) -> Tensor:
    """The transposes of the matrices that the last two axes are."""
    rank = len(t.shape)
    return ops.transpose(t, tuple(range(rank - 2)) + (rank - 1, rank - 2))


def _matmul(site: Site) -> Gradients:
    lhs, rhs = site.op.inputs
    row = (1,) * (len(lhs.shape) == 1) + lhs.shape  # a vector on the left is a row, one on the right a column
    column = rhs.shape + (1,) * (len(rhs.shape) == 1)
    batch = _build.broadcast_shapes(row[:-2], column[:-2])
    g = reshape(cast(site.g, lhs.dtype), batch + (row[-2], column[-1]))
    left = right = None
    if site.wanted[0]:
        product = ops.matmul(g, _swapped(reshape(site.x(1), column)))
        left = reshape(sum_to(product, row), lhs.shape)
    if site.wanted[1]:
        value = reshape(site.x(0), row)
        if len(column) == 2 and len(row) > 2:  # the sum over the batch is a part of one product
            rows = _build.nelms(row[:-1])
            value, g = reshape(value, (rows, row[-1])), reshape(g, (rows, column[-1]))
        product = ops.matmul(_swapped(value), g)
        right = reshape(sum_to(product, column), rhs.shape)
    return [left, right]


def _convolution(
    t: Tensor, weight: Tensor, shape: Shape, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """A conv without padding, with a result of the shape `shape`."""
    padding = (0,) * 2 * len(stride)
    attrs = {"stride": tuple(stride), "padding": padding, "dilation": tuple(dilation), "groups": groups}
    return _build.emit(get_current_graph(), "conv", (t, weight), shape, t.dtype, attrs)


def _grouped_swap(t: Tensor, groups: int) -> Tensor:
    """Exchange axis 0 with axis 1 inside each group: (groups * a, b, ...) becomes (groups * b, a, ...)."""
    a, b, rest = t.shape[0] // groups, t.shape[1], t.shape[2:]
    t = ops.transpose(reshape(t, (groups, a, b) + rest), (0, 2, 1) + tuple(range(3, 3 + len(rest))))
    return reshape(t, (groups * b, a) + rest)


def _conv(site: Site) -> Gradients:
    attrs = site.op.attrs
    t, weight = site.op.inputs
    sizes, kernel = t.shape[2:], weight.shape[2:]
    spatial = range(len(sizes))
    stride, dilation, groups = attrs["stride"], attrs["dilation"], attrs["groups"]
    before = attrs["padding"][: len(sizes)]
    ones = (1,) * len(sizes)
    to_data = to_weight = None
    if site.wanted[0]:
        # Output o met input o * stride + k * dilation - before through weight k. So the gradient, spread out by the
        # stride, meets the reversed weights.
        g, flipped, edges = site.g, site.x(1), []
        for i in spatial:
            length = (g.shape[2 + i] - 1) * stride[i] + 1
            g = spaced(g, 2 + i, stride[i], length)
            flipped = reversed_along(flipped, 2 + i)
            reach = (kernel[i] - 1) * dilation[i]
            edges.append((reach - before[i], sizes[i] - length + before[i]))
        g = _with_edges(g, edges)
        to_data = _convolution(g, _grouped_swap(flipped, groups), t.shape, ones, dilation, groups)
    if site.wanted[1]:
        # The batch takes the part of the channels, and stride and dilation change places.
        x, batch, out = site.x(0), t.shape[0], site.g.shape
        edges = []
        for i in spatial:
            needed = (out[2 + i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1
            edges.append((before[i], needed - sizes[i] - before[i]))
        x = _with_edges(x, edges)
        channels = weight.shape[1]
        x = reshape(x, (batch, groups, channels) + x.shape[2:])
        x = ops.transpose(x, (2, 1, 0) + tuple(range(3, 3 + len(sizes))))
        x = reshape(x, (channels, groups * batch) + x.shape[3:])
        g = ops.transpose(site.g, (1, 0) + tuple(range(2, 2 + len(sizes))))
        swapped = (channels, weight.shape[0]) + kernel
        to_weight = _convolution(x, g, swapped, dilation, stride, groups)
        to_weight = ops.transpose(to_weight, (1, 0) + tuple(range(2, 2 + len(sizes))))
    return [to_data, to_weight]


def _with_edges(t: Tensor, edges: Sequence[Tuple[int, int]]) -> Tensor:
    """Add zeros before and after the spatial axes, or cut elements off where a number is negative."""
    for axis, (before, after) in enumerate(edges, 2):
        t = padded(t, axis, max(before, 0), max(after, 0))
        if before < 0 or after < 0:
            t = ops.slice(t, max(-before, 0), t.shape[axis] - max(-after, 0), axis=axis)
    return t


RULES: Dict[str, Rule] = {"matmul": _matmul, "conv": _conv}
