"""Elements read between the places of a grid: `interpolate` and `roi_align`, along one axis after another."""

from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from popfn.host.engine.kernel import Kernel

# The place in the input of each place in the output: of its number, the lengths of both and the scale.
_PLACES: Dict[str, Callable[[np.ndarray, int, int, float], np.ndarray]] = {
    "half_pixel": lambda i, length, count, scale: (i + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda i, length, count, scale: (i + 0.5) / scale - 0.5 if count > 1 else np.zeros(1),
    "align_corners": lambda i, length, count, scale: i * ((length - 1) / max(count - 1, 1)),
    "asymmetric": lambda i, length, count, scale: i / scale,
}
_ROUNDINGS: Dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_CUBIC = -0.75  # the slope of the cubic kernel at distance 1


def _cubic_weight(distance: np.ndarray) -> np.ndarray:
    d, a = np.abs(distance), _CUBIC
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _taps(attrs: Dict[str, Any], length: int, count: int, scale: float) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Which elements along an axis make up each of the output, and with which weights."""
    at = _PLACES[attrs["coordinate_transformation_mode"]](np.arange(count, dtype=np.float64), length, count, scale)
    if attrs["mode"] == "nearest":
        taps = [(_ROUNDINGS[attrs["nearest_mode"]](at), np.ones(count))]
    else:
        low = np.floor(at)
        if attrs["mode"] == "linear":
            taps = [(low, low + 1 - at), (low + 1, at - low)]
        else:
            taps = [(low + k, _cubic_weight(at - low - k)) for k in (-1, 0, 1, 2)]
    return [(np.clip(place, 0, length - 1).astype(np.int32), weight) for place, weight in taps]


def interpolate(xp: Any, op: Any, t: Any) -> Any:
    """Elements at other places; those beyond the edges are the ones at the edges."""
    for axis, scale in enumerate(op.attrs["scale_factor"]):
        count = op.outputs[0].shape[axis]
        taps = _taps(op.attrs, t.shape[axis], count, scale)
        if len(taps) == 1:
            t = xp.take(t, taps[0][0], axis=axis)
            continue
        if np.array_equal(taps[0][0], np.arange(t.shape[axis])) and (taps[0][1] == 1).all():
            continue  # the axis stays as it is
        along = (count,) + (1,) * (t.ndim - 1 - axis)
        total = 0
        for place, weight in taps:
            if weight.any():
                total = total + xp.take(t, place, axis=axis) * weight.astype(np.float32).reshape(along)
        t = total
    return t


def roi_align(xp: Any, op: Any, t: Any, rois: Any, batch_index: Any) -> Any:
    """The means of a grid of cells in each region, of samples that lie evenly in a cell."""
    samples = op.attrs["sampling_ratio"]
    if samples > 0:
        images = xp.take(t, batch_index, axis=0, mode="clip")
        return _cells(xp, op, images, rois * op.attrs["spatial_scale"], samples, samples)
    if xp is not np:
        raise NotImplementedError(
            f"roi_align: with sampling_ratio={samples} the number of samples depends on the values of the regions, "
            "which a compiled program does not know. Give a positive sampling_ratio, or use the numpy engine."
        )
    results = []
    for roi, image in zip(rois, np.take(t, batch_index, axis=0, mode="clip")):
        roi = roi[None] * op.attrs["spatial_scale"]
        rows, columns = (
            int(np.ceil(np.nan_to_num(_extent(np, roi, first)[1][0] / count)))
            for first, count in zip((1, 0), op.attrs["output_size"])
        )
        results.append(_cells(np, op, image[None], roi, rows, columns))
    return np.concatenate(results) if results else np.zeros(op.outputs[0].shape, t.dtype)


def _cells(xp: Any, op: Any, images: Any, rois: Any, rows: int, columns: int) -> Any:
    height, width = op.attrs["output_size"]
    means = _means(xp, images, 2, _extent(xp, rois, 1), height, rows)
    return _means(xp, means, 3, _extent(xp, rois, 0), width, columns)


def _extent(xp: Any, rois: Any, first: int) -> Tuple[Any, Any]:
    """The beginning of regions along an axis, and their length, which is 1 or more."""
    start = rois[:, first]
    return start, xp.maximum(rois[:, first + 2] - start, np.float32(1))


def _means(xp: Any, t: Any, axis: int, extent: Tuple[Any, Any], cells: int, samples: int) -> Any:
    """The means, along an axis, of the samples in each cell of a region; outside of the image they are 0."""
    start, size = extent
    last = t.shape[axis] - 1
    steps = (np.arange(cells * samples, dtype=np.float32) + np.float32(0.5)) / np.float32(samples * cells)
    at = start[:, None] + size[:, None] * steps
    inside = (at >= -1) & (at <= last + 1)
    at = xp.clip(at, 0, last)
    low = xp.clip(xp.floor(at).astype(np.int32), 0, last)
    along = (len(start), 1) + ((cells * samples, 1) if axis == 2 else (1, cells * samples))
    low, at, inside = (xp.reshape(x, along) for x in (low, at, inside))
    share = at - low
    values = xp.take_along_axis(t, low, axis=axis) * (1 - share)
    values = values + xp.take_along_axis(t, xp.minimum(low + 1, last), axis=axis) * share
    values = xp.where(inside, values, xp.zeros_like(values))
    shape = values.shape[:axis] + (cells, samples) + values.shape[axis + 1 :]
    return xp.mean(xp.reshape(values, shape), axis=axis + 1)


KERNELS: Dict[str, Kernel] = {
    "interpolate": Kernel(interpolate, float32=True),
    "roi_align": Kernel(roi_align, float32=True),
}
