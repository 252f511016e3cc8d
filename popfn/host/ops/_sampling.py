"""Resampling: elements read between the places of a grid, along one axis after another.

Errors: TypeError for an operand that is no Tensor or a parameter of the wrong type, ValueError for a tensor of
another graph, popart_exception for shapes that do not fit.
"""

from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

from popfn.host.errors import popart_exception
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.tensor import Tensor

MODES = ("nearest", "linear", "cubic")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
COORDINATE_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")


def interpolate(
    t: Tensor,
    scale_factor: Tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:
    """Resample `t` to floor(length * scale) elements along each axis.

    Args:
        t: The tensor.
        scale_factor: The scale of each axis.
        mode: "nearest", "linear" or "cubic".
        nearest_mode: How "nearest" rounds: "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil".
        coordinate_transformation_mode: Where the centres of the elements are: "half_pixel",
            "pytorch_half_pixel", "align_corners" or "asymmetric".

    Raises:
        ValueError: If there is no such mode.
    """
    graph = _build.checked("interpolate", t=t)
    if isinstance(scale_factor, str) or not hasattr(scale_factor, "__iter__"):
        raise TypeError(f"interpolate: scale_factor must be a list of floats, not {scale_factor!r}.")
    scales = tuple([_build.as_float("interpolate", "a scale", scale) for scale in scale_factor])
    attrs: Dict[str, Any] = {
        "mode": mode,
        "nearest_mode": nearest_mode,
        "coordinate_transformation_mode": coordinate_transformation_mode,
    }
    for (name, value), known in zip(attrs.items(), (MODES, NEAREST_MODES, COORDINATE_MODES)):
        if value not in known:
            raise ValueError("interpolate: {} must be one of {}, not {!r}.".format(name, ", ".join(known), value))
    if len(scales) != len(t.shape):
        raise popart_exception(f"interpolate: {t!r} needs {len(t.shape)} scales, not {scales}.")
    shape = tuple([int(n * scale) for n, scale in zip(t.shape, scales)])
    fault = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        fault = "no device supports tf_crop_and_resize"
    elif any(scale <= 0 for scale in scales) or 0 in shape:
        fault = f"the scales {scales} leave nothing of the shape {t.shape}"
    attrs["scale_factor"] = scales
    return _build.emit(graph, "interpolate", (t,), shape, t.dtype, attrs, fault=fault)


def _interpolate_value(xp: Any, op: Any, t: Any) -> Any:
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


def _cubic_weight(distance: np.ndarray) -> np.ndarray:
    d, a = np.abs(distance), _CUBIC
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def roi_align(
    t: Tensor,
    rois: Tensor,
    batch_index: Tensor,
    output_size: Iterable[int],
    spatial_scale: float,
    sampling_ratio: int,
) -> Tensor:
    """Average regions of samples, each to a grid of `output_size`.

    Args:
        t: The samples, of the shape (samples, channels, height, width).
        rois: The regions, of the shape (regions, 4): x1, y1, x2, y2.
        batch_index: The sample of each region.
        output_size: The height and the width of the result.
        spatial_scale: What the coordinates are multiplied by.
        sampling_ratio: How many points along each axis a cell of the grid is the mean of.

    Returns:
        A tensor of the shape (regions, channels, height, width).
    """
    graph = _build.checked("roi_align", t=t, rois=rois, batch_index=batch_index)
    size = _build.as_ints("roi_align", "output_size", output_size)
    if len(size) < 2 or min(size) < 0:
        raise TypeError(f"roi_align: output_size must be two positive ints, not {output_size!r}.")
    attrs = {
        "output_size": size[:2],
        "spatial_scale": _build.as_float("roi_align", "spatial_scale", spatial_scale),
        "sampling_ratio": _build.as_int("roi_align", "sampling_ratio", sampling_ratio),
    }
    if len(t.shape) != 4:
        raise popart_exception(f"roi_align: {t!r} must have 4 axes.")
    if len(rois.shape) != 2:
        raise popart_exception(f"roi_align: the regions {rois!r} must be a matrix with 4 columns.")
    fault = None
    if rois.shape[1] != 4 or batch_index.shape != rois.shape[:1]:
        fault = f"regions of the shape {rois.shape} and samples of {batch_index.shape} do not fit"
    elif rois.dtype is not t.dtype or not batch_index.dtype.is_int:
        fault = f"the dtypes of {t!r}, {rois!r} and {batch_index!r} do not fit"
    shape = (rois.shape[0], t.shape[1]) + size[:2]
    return _build.emit(graph, "roi_align", (t, rois, batch_index), shape, t.dtype, attrs, fault=fault)


def _roi_align_value(xp: Any, op: Any, t: Any, rois: Any, batch_index: Any) -> Any:
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
    "interpolate": Kernel(_interpolate_value, float32=True),
    "roi_align": Kernel(_roi_align_value, float32=True),
}
