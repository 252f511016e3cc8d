"""Convolutions. The samples are of the shape (samples, channels, ...): any number of spatial axes may follow.

Errors: TypeError for an operand that is no Tensor or a parameter of the wrong type, ValueError for a tensor of
another graph or an unknown `pad_type`, popart_exception for shapes that do not fit, and for 8-bit floats where
there is no scale.
"""

import math
from typing import Any, Callable, Dict, Iterable, List, Literal, Optional, Sequence, Tuple, get_args

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.ops._float8 import FLOAT8, check_operands, check_scale, decoded, power_of_two
from popfn.host.ops._linear import product
from popfn.host.tensor import Shape, Tensor

PadType = Literal["not_set", "same_upper", "same_lower", "valid"]
PAD_TYPES = get_args(PadType)


def conv(
    t: Tensor,
    weight: Tensor,
    stride: Tuple[int, ...] = (1, 1),
    padding: Tuple[int, ...] = (0, 0, 0, 0),
    dilation: Tuple[int, ...] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    available_memory_proportions: Optional[Iterable[float]] = None,
    partials_types: Optional[Iterable[str]] = None,
    enable_conv_dithering: Optional[Iterable[int]] = None,
) -> Tensor:
    """Correlate samples with kernels (the kernels are not flipped).

    Args:
        t: The samples.
        weight: The kernels, of the shape (output channels, channels / groups, ...).
        stride: The steps along the spatial axes.
        padding: The zeros before the spatial axes, then those behind them.
        dilation: The distances of a kernel's elements.
        groups: The number of groups of channels that are independent of each other.
        pad_type: "not_set" for `padding`; "valid" for none; "same_upper" or "same_lower" for as many zeros as
            let the output be ceil(input / stride), an odd one at the end or at the beginning.
        available_memory_proportions, partials_types, enable_conv_dithering: Have no effect on the host.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> x, w = popxl.TensorSpec((2, 3, 8, 8), popxl.float32), popxl.TensorSpec((4, 3, 3, 3), popxl.float32)
        >>> ir.create_graph(popxl.ops.conv, x, w).outputs[0].shape
        (2, 4, 6, 6)
    """
    graph = _build.checked("conv", t=t, weight=weight)
    _check_options("conv", available_memory_proportions, partials_types, enable_conv_dithering)
    _refuse_float8("conv", t, weight)
    attrs, shape, fault = _conv("conv", t, weight, stride, padding, dilation, groups, pad_type)
    fault = fault or _dtype_fault(t, weight)
    return _build.emit(graph, "conv", (t, weight), shape, t.dtype, attrs, fault=fault)


def _conv_value(xp: Any, op: Any, t: Any, weight: Any) -> Any:
    """The correlation of samples with kernels."""
    a = op.attrs
    return _correlate(xp, t, weight, a["stride"], a["padding"], a["dilation"], a["groups"], product(xp, op))


def conv_pow2scaled(
    t: Tensor,
    weight: Tensor,
    log2_scale: Tensor,
    stride: Tuple[int, ...] = (1, 1),
    padding: Tuple[int, ...] = (0, 0, 0, 0),
    dilation: Tuple[int, ...] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    available_memory_proportions: Optional[Iterable[float]] = None,
    enable_conv_dithering: Optional[Iterable[int]] = None,
) -> Tensor:
    """`conv` of 8-bit floats, times 2**log2_scale, as float16.

    Args:
        t, weight: 8-bit floats, else TypeError; the formats may differ.
        log2_scale: An int32 scalar.
        stride, ..., enable_conv_dithering: As in `conv`.
    """
    kind = "conv_pow2scaled"
    graph = _build.checked(kind, t=t, weight=weight)
    _check_options(kind, available_memory_proportions, None, enable_conv_dithering)
    _check_scaled(kind, t, weight, log2_scale)
    attrs, shape, fault = _conv(kind, t, weight, stride, padding, dilation, groups, pad_type)
    inputs = (t, weight, log2_scale)
    return _build.emit(graph, kind, inputs, shape, dtypes.float16, attrs, "conv_out", fault=fault)


def _pow2scaled_value(value: Callable[..., Any]) -> Callable[..., Any]:
    """The same of 8-bit floats, times a power of two."""

    def scaled(xp: Any, op: Any, t: Any, weight: Any, log2_scale: Any) -> Any:
        t, weight = decoded(xp, op.inputs[0].dtype, t), decoded(xp, op.inputs[1].dtype, weight)
        return value(xp, op, t, weight) * power_of_two(xp, log2_scale)

    return scaled


def conv_transpose(
    t: Tensor,
    weight: Tensor,
    stride: Tuple[int, ...] = (1, 1),
    padding: Tuple[int, ...] = (0, 0, 0, 0),
    dilation: Tuple[int, ...] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    output_padding: Tuple[int, ...] = (),
    output_shape: Tuple[int, ...] = (),
    available_memory_proportions: Optional[Iterable[float]] = None,
    partials_types: Optional[Iterable[str]] = None,
    enable_conv_dithering: Optional[Iterable[int]] = None,
) -> Tensor:
    """Apply the transpose of a convolution to samples.

    Args:
        t: The samples.
        weight: The kernels, of the shape (channels, output channels / groups, ...).
        stride, padding, groups: Those of the convolution.
        dilation: Must be 1 everywhere.
        pad_type: Where the odd zero is cut off if `output_shape` is given.
        output_padding: What is added to the output behind each spatial axis.
        output_shape: The shape of the output, or its spatial part; it decides on the padding.
        available_memory_proportions, partials_types, enable_conv_dithering: Have no effect on the host.
    """
    kind = "conv_transpose"
    graph = _build.checked(kind, t=t, weight=weight)
    _check_options(kind, available_memory_proportions, partials_types, enable_conv_dithering)
    _refuse_float8(kind, t, weight)
    attrs, shape, fault = _conv_transpose(
        kind, t, weight, stride, padding, dilation, groups, pad_type, output_padding, output_shape
    )
    fault = fault or _dtype_fault(t, weight)
    return _build.emit(
        graph, kind, (t, weight), shape, t.dtype, attrs, "convtranspose_out", fault=fault
    )


def _conv_transpose_value(xp: Any, op: Any, t: Any, weight: Any) -> Any:
    """Each element times the kernels (channels, outputs / groups, ...), added up where they overlap.

    This is a correlation, with mirrored kernels, of the samples with zeros between their elements.
    """
    a, kernel = op.attrs, weight.shape[2:]
    spatial, groups = len(kernel), a["groups"]
    for axis, step in enumerate(a["stride"], 2):
        t = _spread(xp, t, axis, step)
    weight = xp.flip(weight, axis=tuple(range(2, weight.ndim)))
    weight = xp.reshape(weight, (groups, weight.shape[0] // groups, *weight.shape[1:]))
    weight = xp.swapaxes(weight, 1, 2)
    weight = xp.reshape(weight, (groups * weight.shape[1], *weight.shape[2:]))
    before = [k - 1 - n for k, n in zip(kernel, a["padding"])]
    behind = [k - 1 - n + extra for k, n, extra in zip(kernel, a["padding"][spatial:], a["output_padding"])]
    ones = (1,) * spatial
    return _correlate(xp, t, weight, ones, before + behind, ones, groups, product(xp, op))


def _spread(xp: Any, t: Any, axis: int, step: int) -> Any:
    """Put step - 1 zeros between the elements along an axis."""
    if step == 1:
        return t
    count = t.shape[axis]
    t = xp.expand_dims(t, axis + 1)
    t = xp.pad(t, [(0, step - 1 if i == axis + 1 else 0) for i in range(t.ndim)])
    t = xp.reshape(t, (*t.shape[:axis], count * step, *t.shape[axis + 2 :]))
    return t[(slice(None),) * axis + (slice(step * (count - 1) + 1),)]


def conv_transpose_pow2scaled(
    t: Tensor,
    weight: Tensor,
    log2_scale: Tensor,
    stride: Tuple[int, ...] = (1, 1),
    padding: Tuple[int, ...] = (0, 0, 0, 0),
    dilation: Tuple[int, ...] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    output_padding: Tuple[int, ...] = (),
    output_shape: Tuple[int, ...] = (),
    available_memory_proportions: Optional[Iterable[float]] = None,
    enable_conv_dithering: Optional[Iterable[int]] = None,
) -> Tensor:
    """`conv_transpose` of 8-bit floats, times 2**log2_scale, as float16.

    Args:
        t, weight: 8-bit floats, else TypeError; the formats may differ.
        log2_scale: An int32 scalar.
        stride, ..., enable_conv_dithering: As in `conv_transpose`.
    """
    kind = "conv_transpose_pow2scaled"
    graph = _build.checked(kind, t=t, weight=weight)
    _check_options(kind, available_memory_proportions, None, enable_conv_dithering)
    _check_scaled(kind, t, weight, log2_scale)
    attrs, shape, fault = _conv_transpose(
        kind, t, weight, stride, padding, dilation, groups, pad_type, output_padding, output_shape
    )
    inputs = (t, weight, log2_scale)
    return _build.emit(graph, kind, inputs, shape, dtypes.float16, attrs, "convtranspose_out", fault=fault)


# Checks


def _check_options(op: str, memory: Any, partials: Any, dithering: Any) -> None:
    names = ("available_memory_proportions", "partials_types", "enable_conv_dithering")
    for name, value in zip(names, (memory, partials, dithering)):
        if value is not None and (isinstance(value, str) or not hasattr(value, "__iter__")):
            raise TypeError(f"{op}: {name} must be a list, not {value!r}.")


def _refuse_float8(op: str, *ts: Tensor) -> None:
    for t in ts:
        if t.dtype in FLOAT8:
            raise popart_exception(f"{op}: operands of {t.dtype.name} need a scale; see ops.{op}_pow2scaled.")


def _check_scaled(op: str, t: Tensor, weight: Tensor, log2_scale: Tensor) -> None:
    check_scale(op, log2_scale)
    check_operands(op, t, weight, log2_scale)
    if log2_scale.graph is not t.graph:
        raise popart_exception(f"{op}: {log2_scale!r} does not belong to the current graph, {t.graph!r}.")


def _dtype_fault(t: Tensor, weight: Tensor) -> Optional[str]:
    if t.dtype is not weight.dtype or not t.dtype.is_floating_point:
        return f"the dtypes {t.dtype.name} and {weight.dtype.name} must be one float dtype"
    return None


def _per_axis(op: str, name: str, values: Any, t: Tensor, length: int, default: int) -> Tuple[int, ...]:
    """One int for each spatial axis of `t`, or two. If all are the default, there may be fewer."""
    ints = _build.as_ints(op, name, values)
    if len(ints) < length and all(n == default for n in ints):
        ints += (default,) * (length - len(ints))
    if len(ints) != length:
        raise popart_exception(f"{op}: {name} must have {length} entries for {t!r}, not {len(ints)}: {ints}.")
    return ints


def _checked_parameters(
    op: str, t: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: Any, pad_type: Any
) -> Tuple[Dict[str, Any], Optional[str]]:
    if pad_type not in PAD_TYPES:
        raise ValueError("{}: pad_type must be one of {}, not {!r}.".format(op, ", ".join(PAD_TYPES), pad_type))
    spatial = len(t.shape) - 2
    attrs: Dict[str, Any] = {
        "stride": _per_axis(op, "stride", stride, t, spatial, 1),
        "padding": _per_axis(op, "padding", padding, t, 2 * spatial, 0),
        "dilation": _per_axis(op, "dilation", dilation, t, spatial, 1),
        "groups": _build.as_int(op, "groups", groups),
    }
    if spatial < 1 or len(weight.shape) != len(t.shape):
        raise popart_exception(f"{op}: {t!r} and {weight!r} must be of one rank, 3 or more.")
    if attrs["groups"] < 1:
        raise popart_exception(f"{op}: groups must be 1 or more, not {attrs['groups']}.")
    fault = None
    if any(n < 1 for n in attrs["stride"] + attrs["dilation"]):
        fault = f"strides and dilations must be 1 or more: {attrs}"
    return attrs, fault


def _conv(
    op: str, t: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: Any, pad_type: Any
) -> Tuple[Dict[str, Any], Shape, Optional[str]]:
    attrs, fault = _checked_parameters(op, t, weight, stride, padding, dilation, groups, pad_type)
    if weight.shape[1] * attrs["groups"] != t.shape[1] or weight.shape[0] % attrs["groups"]:
        raise popart_exception(
            f"{op}: the kernels {weight!r} in {attrs['groups']} groups do not fit {t!r}."
        )
    if fault:
        return attrs, weight.shape, fault
    spans = [d * (k - 1) + 1 for d, k in zip(attrs["dilation"], weight.shape[2:])]
    attrs["padding"] = resolved_padding(t.shape[2:], spans, attrs["stride"], attrs["padding"], pad_type)
    sizes = window_counts(t.shape[2:], spans, attrs["stride"], attrs["padding"])
    if any(n < 1 for n in sizes):
        raise popart_exception(f"{op}: the kernels {weight!r} do not fit into {t!r}.")
    return attrs, (t.shape[0], weight.shape[0]) + sizes, None


def resolved_padding(
    sizes: Shape, spans: Iterable[int], stride: Tuple[int, ...], padding: Tuple[int, ...], pad_type: str
) -> Tuple[int, ...]:
    """Return the padding that `pad_type` means: that before the axes, then that behind them."""
    if pad_type == "valid":
        return (0,) * len(padding)
    if pad_type == "not_set":
        return padding
    totals = [max(0, (-(-n // s) - 1) * s + span - n) for n, s, span in zip(sizes, stride, spans)]
    return split_padding(totals, pad_type)


def split_padding(totals: Iterable[int], pad_type: str) -> Tuple[int, ...]:
    """Divide paddings between the beginning and the end; "same_upper" puts the odd one at the end."""
    smaller = tuple([n // 2 for n in totals])
    larger = tuple([n - n // 2 for n in totals])
    return smaller + larger if pad_type == "same_upper" else larger + smaller


def window_counts(
    sizes: Shape, spans: Iterable[int], stride: Tuple[int, ...], padding: Tuple[int, ...], ceil: bool = False
) -> Shape:
    """Return how many steps a window makes along each axis."""
    spatial = len(sizes)
    room = [
        n + before + behind - span
        for n, before, behind, span in zip(sizes, padding[:spatial], padding[spatial:], spans)
    ]
    return tuple([(-(-n // s) if ceil else n // s) + 1 for n, s in zip(room, stride)])


def _conv_transpose(
    op: str,
    t: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    pad_type: Any,
    output_padding: Any,
    output_shape: Any,
) -> Tuple[Dict[str, Any], Shape, Optional[str]]:
    attrs, fault = _checked_parameters(op, t, weight, stride, padding, dilation, groups, pad_type)
    spatial = len(t.shape) - 2
    if any(n != 1 for n in attrs["dilation"]):
        raise popart_exception(f"{op}: the dilation must be 1, not {attrs['dilation']}.")
    if weight.shape[0] != t.shape[1]:
        raise popart_exception(f"{op}: the kernels {weight!r} do not fit {t!r}.")
    if t.shape[1] % attrs["groups"]:
        fault = f"the {t.shape[1]} channels cannot be divided into {attrs['groups']} groups"
    behind = _build.as_ints(op, "output_padding", output_padding) or (0,) * spatial
    wanted = _build.as_ints(op, "output_shape", output_shape)[-spatial:]
    if len(behind) != spatial or wanted and len(wanted) != spatial:
        raise popart_exception(
            f"{op}: output_padding {behind} and output_shape {wanted} need {spatial} entries each for {t!r}."
        )
    full = [s * (n - 1) + k for n, k, s in zip(t.shape[2:], weight.shape[2:], attrs["stride"])]
    if wanted:
        missing = [w - n for n, w in zip(full, wanted)]
        behind = tuple([max(0, n) for n in missing])
        attrs["padding"] = split_padding([max(0, -n) for n in missing], pad_type)
    attrs["output_padding"] = behind
    pads = attrs["padding"]
    sizes = tuple([n - pads[i] - pads[i + spatial] + behind[i] for i, n in enumerate(full)])
    if any(n < 1 for n in sizes):
        raise popart_exception(
            f"{op}: the padding {pads} leaves nothing of the spatial shape {tuple(full)}, to which {weight!r} extends "
            f"{t!r}."
        )
    return attrs, (t.shape[0], weight.shape[1] * attrs["groups"]) + sizes, fault


# Convolutions as products of matrices


# The elements of the copies of windows that NumPy makes at a time: a share of a core's cache.
_COLUMNS = 1 << 20


def padded(xp: Any, t: Any, padding: Sequence[int], value: float) -> Any:
    """Pad the spatial axes: before all of them, then behind. A negative padding cuts off."""
    spatial = len(padding) // 2
    before, behind = padding[:spatial], padding[spatial:]
    if any(n > 0 for n in padding):
        widths = [(0, 0)] * (t.ndim - spatial) + [(max(b, 0), max(e, 0)) for b, e in zip(before, behind)]
        t = xp.pad(t, widths, constant_values=value)
    if any(n < 0 for n in padding):
        cuts = [slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(before, behind, t.shape[-spatial:])]
        t = t[(Ellipsis, *cuts)]
    return t


def _correlate(
    xp: Any,
    t: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    multiply: Callable[[Any, Any], Any],
) -> Any:
    """Multiply the kernels (outputs, channels / groups, ...) with the windows of samples (samples, channels, ...)."""
    t = padded(xp, t, padding, 0)
    kernel = weight.shape[2:]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(t.shape[2:], kernel, stride, dilation)]
    places = [
        tuple([slice(i * d, i * d + s * (count - 1) + 1, s) for i, s, d, count in zip(place, stride, dilation, counts)])
        for place in np.ndindex(*kernel)
    ]
    weight = xp.reshape(weight, (groups, weight.shape[0] // groups, math.prod(weight.shape[1:])))

    def result_of(samples: Any) -> Any:
        parts = [samples[(slice(None), slice(None), *place)] for place in places]
        columns = xp.stack(parts, axis=2) if len(parts) > 1 else parts[0]
        columns = xp.reshape(columns, (len(samples), groups, weight.shape[2], math.prod(counts)))
        return multiply(weight, columns)

    size = t.shape[1] * len(places) * math.prod(counts)
    step = max(1, _COLUMNS // max(size, 1))
    if xp is np and step < len(t):
        results: List[Any] = [result_of(t[i : i + step]) for i in range(0, len(t), step)]
        result = np.concatenate(results)
    else:
        result = result_of(t)
    return xp.reshape(result, (len(t), groups * weight.shape[1], *counts))


KERNELS: Dict[str, Kernel] = {
    "conv": Kernel(_conv_value, float32=True),
    "conv_pow2scaled": Kernel(_pow2scaled_value(_conv_value), float32=True),
    "conv_transpose": Kernel(_conv_transpose_value, float32=True),
    "conv_transpose_pow2scaled": Kernel(_pow2scaled_value(_conv_transpose_value), float32=True),
}
