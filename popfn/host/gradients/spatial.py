"""Gradients of pools, interpolate and roi_align."""

from typing import Any, Callable, Dict

import numpy as np

from popfn.host import dtypes, ops
from popfn.host.errors import popart_exception
from popfn.host.gradients.site import Gradients, Rule, Site, cast, number, only_where, reshape, scaled, widened
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def _windows(site: Site) -> np.ndarray:
    """Which element of the flattened spatial axes each place of each window is, (windows, places); one too large for
    a place in the padding."""
    attrs = site.op.attrs
    sizes, out = site.op.inputs[0].shape[2:], site.op.outputs[0].shape[2:]
    rank = len(sizes)
    place, valid = np.zeros((1,) * (2 * rank), np.int64), np.ones((1,) * (2 * rank), bool)
    for i, (length, count) in enumerate(zip(sizes, out)):
        begin = np.arange(count)[:, None] * attrs["stride"][i] - attrs["padding"][i]
        along = begin + np.arange(attrs["kernel"][i]) * attrs["dilation"][i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = along.shape
        along = along.reshape(shape)
        place = place * length + along
        valid = valid & (along >= 0) & (along < length)
    total = _build.nelms(sizes)
    return np.where(valid, place, total).reshape(_build.nelms(out), -1).astype(np.int32)


def _placed(site: Site, parts: Tensor, windows: np.ndarray) -> Tensor:
    """Add parts of shape (images, windows, places) to the elements that they belong to."""
    shape = site.op.inputs[0].shape
    images, total = parts.shape[0], _build.nelms(shape[2:])
    vector = number(windows.reshape(-1), dtypes.int32)
    summed = ops.scatter_reduce(reshape(parts, (images, windows.size)), vector, "sum", axis=1, axis_size=total + 1)
    return reshape(ops.slice(summed, 0, total, axis=1), shape)


def _columns(t: Tensor) -> Tensor:
    """An output of a pool as (images, windows, 1)."""
    return reshape(t, (_build.nelms(t.shape[:2]), _build.nelms(t.shape[2:]), 1))


def _max_pool(site: Site) -> Gradients:
    """The gradient goes to each element that equals the largest of its window, as on the device."""
    windows, x = _windows(site), site.x()
    images, total = _build.nelms(x.shape[:2]), _build.nelms(x.shape[2:])
    edge = number(np.full((images, 1), -np.inf), x.dtype)
    flat = ops.concat([reshape(x, (images, total)), edge], 1)
    parts = reshape(ops.gather(flat, number(windows.reshape(-1), dtypes.int32), 1), (images,) + windows.shape)
    return [_placed(site, only_where(ops.equal(parts, _columns(site.y())), _columns(site.g)), windows)]


def _average_pool(site: Site) -> Gradients:
    site.x(), site.y()  # PopART's gradient op takes both, though it has no use for them
    windows, g = _windows(site), _columns(site.g)
    inside = windows < _build.nelms(site.op.inputs[0].shape[2:])
    share = inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)
    return [_placed(site, ops.mul(g, number(share[None], g.dtype)), windows)]


# Interpolation is linear and works along one axis after another.

_COORDINATES: Dict[str, Callable[[np.ndarray, int, int, float], np.ndarray]] = {
    "half_pixel": lambda i, length, out, scale: (i + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda i, length, out, scale: (i + 0.5) / scale - 0.5 if out > 1 else 0 * i,
    "align_corners": lambda i, length, out, scale: i * (length - 1) / max(out - 1, 1),
    "asymmetric": lambda i, length, out, scale: i / scale,
}
_ROUNDINGS: Dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_SHARPNESS = -0.75  # of the cubic kernel


def _cubic(distance: np.ndarray) -> np.ndarray:
    d, a = np.abs(distance), _SHARPNESS
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = (((d - 5) * d + 8) * d - 4) * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _interpolation_matrix(length: int, out: int, scale: float, attrs: Dict[str, Any]) -> np.ndarray:
    """What each element along an axis gives to each element of the result, (out, length)."""
    x = _COORDINATES[attrs["coordinate_transformation_mode"]](np.arange(out, dtype=np.float64), length, out, scale)
    matrix = np.zeros((out, length))
    rows = np.arange(out)

    def add(place: np.ndarray, weight: Any) -> None:
        np.add.at(matrix, (rows, np.clip(place, 0, length - 1).astype(int)), weight)

    if attrs["mode"] == "nearest":
        add(_ROUNDINGS[attrs["nearest_mode"]](x), 1.0)
        return matrix
    low = np.floor(x)
    if attrs["mode"] == "linear":
        add(low, 1 - (x - low))
        add(low + 1, x - low)
    else:
        for k in (-1, 0, 1, 2):
            add(low + k, _cubic(x - low - k))
    return matrix


def _interpolate(site: Site) -> Gradients:
    attrs, shape = site.op.attrs, site.op.inputs[0].shape
    g = widened(site.g)
    for axis, scale in enumerate(attrs["scale_factor"]):
        matrix = _interpolation_matrix(shape[axis], g.shape[axis], scale, attrs)
        if np.array_equal(matrix, np.eye(shape[axis])[: len(matrix)]) and len(matrix) == shape[axis]:
            continue
        order = tuple([i for i in range(len(shape)) if i != axis] + [axis])
        g = ops.matmul(ops.transpose(g, order), number(matrix, g.dtype))
        g = ops.transpose(g, tuple([order.index(i) for i in range(len(shape))]))
    return [cast(g, site.g.dtype)]


def _roi_align(site: Site) -> Gradients:
    """Each bin is a mean over samples, each a bilinear mix: along either axis a product with a matrix of weights."""
    attrs = site.op.attrs
    site.x(0)  # PopART's gradient op takes it, though it has no use for it
    rois, batch_index = widened(site.x(1)), site.x(2)
    shape, samples = site.op.inputs[0].shape, attrs["sampling_ratio"]
    if samples < 1:
        raise popart_exception(
            f"autodiff: roi_align with sampling_ratio {samples} takes a number of samples that depends on the values "
            "of the regions; its gradient needs a fixed one. Give a positive sampling_ratio."
        )
    out_rows, out_columns = site.g.shape[2:]
    rows = _roi_weights(rois, 1, shape[2], out_rows, samples, attrs["spatial_scale"])
    columns = _roi_weights(rois, 0, shape[3], out_columns, samples, attrs["spatial_scale"])
    g = widened(site.g)
    spread = ops.matmul(ops.matmul(ops.transpose(rows, (0, 1, 3, 2)), g), columns)
    images = ops.scatter_reduce(
        reshape(spread, (rois.shape[0], _build.nelms(shape[1:]))), batch_index, "sum", axis=0, axis_size=shape[0]
    )
    return [cast(reshape(images, shape), site.g.dtype)]


def _roi_weights(rois: Tensor, first: int, length: int, bins: int, samples: int, scale: float) -> Tensor:
    """The weights of the `length` places along one axis in each bin: (regions, 1, bins, length)."""
    count = rois.shape[0]

    def corner(column: int) -> Tensor:
        return scaled(reshape(ops.slice(rois, column, column + 1, axis=1), (count, 1, 1, 1)), scale)

    start = corner(first)
    size = ops.sub(corner(first + 2), start)
    one, zero = number(1, rois.dtype), number(0, rois.dtype)
    size = ops.where(ops.greater(one, size), one, size)
    steps = (np.arange(bins * samples) + 0.5) / (bins * samples)
    at = ops.add(start, ops.mul(size, number(steps.reshape(1, bins, samples, 1), rois.dtype)))
    outside = ops.logical_or(
        ops.greater(number(-1, rois.dtype), at), ops.greater(at, number(length, rois.dtype))
    )
    weights = ops.sub(one, ops.abs(ops.sub(ops.clip(at, 0, length - 1), number(np.arange(length), rois.dtype))))
    weights = ops.where(outside, zero, ops.relu(weights))
    return reshape(ops.mean(weights, 2), (count, 1, bins, length))


RULES: Dict[str, Rule] = {
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "interpolate": _interpolate,
    "roi_align": _roi_align,
}
