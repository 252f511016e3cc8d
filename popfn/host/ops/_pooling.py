"""Pooling and resampling. The samples are of the shape (samples, channels, ...).

Errors: TypeError for an operand that is no Tensor or a parameter of the wrong type, ValueError for a tensor of
another graph, popart_exception for shapes that do not fit.
"""

from typing import Any, Dict, Iterable, Optional, Tuple

from popfn.host.errors import popart_exception
from popfn.host.ops import _build
from popfn.host.ops._convolution import PAD_TYPES, PadType, resolved_padding, window_counts
from popfn.host.tensor import Tensor

MODES = ("nearest", "linear", "cubic")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
COORDINATE_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")


def _pool(
    kind: str,
    name: str,
    t: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    out_pads: Any,
    dilation: Any,
    in_dilations: Any,
    auto_pad: Any,
    ceil_mode: bool,
) -> Tensor:
    graph = _build.checked(kind, t=t)
    kernel = _build.as_ints(kind, "kernel_size", kernel_size)
    spatial = len(t.shape) - 2
    if spatial < 0:
        raise ValueError(f"{kind}: {t!r} has no axes for samples and channels.")
    if auto_pad not in PAD_TYPES:
        raise KeyError("{}: auto_pad must be one of {}, not {!r}.".format(kind, ", ".join(PAD_TYPES), auto_pad))
    stride, padding, out_pads, dilation, in_dilations = [
        _build.as_ints(kind, what, value) if value is not None else (default,) * length
        for what, value, default, length in (
            ("stride", stride, 1, spatial),
            ("padding", padding, 0, 2 * spatial),
            ("out_pads", out_pads, 0, 2 * spatial),
            ("dilation", dilation, 1, spatial),
            ("in_dilations", in_dilations, 1, spatial),
        )
    ]
    lengths = [len(kernel), len(stride), len(dilation), len(in_dilations), len(padding) / 2, len(out_pads) / 2]
    if spatial < 1 or any(length != spatial for length in lengths):
        raise popart_exception(
            f"{kind}: kernel_size {kernel}, stride {stride}, padding {padding}, dilation {dilation}, out_pads "
            f"{out_pads} or in_dilations {in_dilations} do not fit the {spatial} spatial axes of {t.shape}."
        )
    fault = None
    if any(n != 1 for n in dilation + in_dilations) or any(out_pads):
        fault = "no device runs a pooling with dilations or out_pads"
    if any(n < 1 for n in kernel + stride) or any(n < 0 for n in padding):
        fault = f"kernel {kernel} and stride {stride} must be 1 or more, padding {padding} not negative"
    sizes = tuple([d * (n - 1) + 1 for d, n in zip(in_dilations, t.shape[2:])])
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    steps = tuple([max(s, 1) if s else max(n, 1) for s, n in zip(stride, sizes)])  # a stride of 0: one step
    padding = resolved_padding(sizes, spans, steps, padding, auto_pad)
    counts = window_counts(sizes, spans, steps, padding, bool(ceil_mode))
    counts = tuple([n + out_pads[i] + out_pads[i + spatial] for i, n in enumerate(counts)])
    if any(n < 1 for n in counts):
        raise popart_exception(f"{kind}: the kernel {kernel} does not fit into {t.shape}.")
    if ceil_mode:  # the last step may need more padding behind
        extra = [
            max(0, (count - 1) * s + span - n - padding[i] - padding[i + spatial])
            for i, (count, s, span, n) in enumerate(zip(counts, steps, spans, sizes))
        ]
        padding = padding[:spatial] + tuple([n + more for n, more in zip(padding[spatial:], extra)])
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    attrs["ceil_mode"] = bool(ceil_mode)
    return _build.emit(graph, kind, (t,), t.shape[:2] + counts, t.dtype, attrs, name, fault=fault)


def average_pool(
    t: Tensor,
    kernel_size: Tuple[int, ...],
    stride: Optional[Tuple[int, ...]] = None,
    padding: Optional[Tuple[int, ...]] = None,
    out_pads: Optional[Tuple[int, ...]] = None,
    dilation: Optional[Tuple[int, ...]] = None,
    in_dilations: Optional[Tuple[int, ...]] = None,
    auto_pad: PadType = "not_set",
    ceil_mode: bool = False,
) -> Tensor:
    """Return the mean of each window; what is padded does not count.

    Args:
        t: The samples.
        kernel_size: The shape of a window.
        stride: The steps along the spatial axes, 1 by default.
        padding: The padding before the spatial axes, then that behind them; 0 by default.
        out_pads, dilation, in_dilations: No device supports any but the defaults.
        auto_pad: As `pad_type` in `conv`.
        ceil_mode: Whether a last window counts that goes beyond the padding.

    Raises:
        KeyError: If there is no such `auto_pad`.
    """
    return _pool(
        "average_pool",
        "averagepool_out",
        t,
        kernel_size,
        stride,
        padding,
        out_pads,
        dilation,
        in_dilations,
        auto_pad,
        ceil_mode,
    )


def max_pool(
    t: Tensor,
    kernel_size: Tuple[int, ...],
    stride: Optional[Tuple[int, ...]] = None,
    padding: Optional[Tuple[int, ...]] = None,
    out_pads: Optional[Tuple[int, ...]] = None,
    dilation: Optional[Tuple[int, ...]] = None,
    in_dilations: Optional[Tuple[int, ...]] = None,
    auto_pad: PadType = "not_set",
    ceil_mode: bool = False,
    storage_order: str = "row",
) -> Tensor:
    """Return the largest element of each window. The arguments are those of `average_pool`.

    Args:
        storage_order: Has no effect; "column" is refused (popart_exception).

    Raises:
        KeyError: If there is no such `auto_pad`.
    """
    _build.checked("max_pool", t=t)
    if storage_order == "column":
        raise popart_exception('max_pool: storage_order="column" is not supported.')
    return _pool(
        "max_pool",
        "maxpool_out",
        t,
        kernel_size,
        stride,
        padding,
        out_pads,
        dilation,
        in_dilations,
        auto_pad,
        ceil_mode,
    )


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
        raise popart_exception(f"interpolate: the shape {t.shape} needs {len(t.shape)} scales, not {scales}.")
    shape = tuple([int(n * scale) for n, scale in zip(t.shape, scales)])
    fault = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        fault = "no device supports tf_crop_and_resize"
    elif any(scale <= 0 for scale in scales) or 0 in shape:
        fault = f"the scales {scales} leave nothing of the shape {t.shape}"
    attrs["scale_factor"] = scales
    return _build.emit(graph, "interpolate", (t,), shape, t.dtype, attrs, fault=fault)


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
