"""Pooling. The samples are of the shape (samples, channels, ...).

Errors: TypeError for an operand that is no Tensor or a parameter of the wrong type, ValueError for a tensor of
another graph, popart_exception for shapes that do not fit.
"""

import math
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from popfn.host.errors import popart_exception
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.ops._convolution import PAD_TYPES, PadType, padded, resolved_padding, window_counts
from popfn.host.tensor import Tensor


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
            f"{out_pads} or in_dilations {in_dilations} do not fit the {spatial} spatial axes of {t!r}."
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
        raise popart_exception(f"{kind}: the kernel {kernel} does not fit into {t!r}.")
    if ceil_mode:  # the last step may need more padding behind
        extra = [
            max(0, (count - 1) * s + span - n - padding[i] - padding[i + spatial])
            for i, (count, s, span, n) in enumerate(zip(counts, steps, spans, sizes))
        ]
        padding = padding[:spatial] + tuple([n + more for n, more in zip(padding[spatial:], extra)])
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    attrs["ceil_mode"] = bool(ceil_mode)
    return _build.emit(graph, kind, (t,), t.shape[:2] + counts, t.dtype, attrs, name, fault=fault)


def _combined(xp: Any, op: Any, t: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the elements of each window of padded samples, along one axis after another."""
    a = op.attrs
    for axis, count in enumerate(op.outputs[0].shape[2:], 2):
        size, step, distance = (a[name][axis - 2] for name in ("kernel", "stride", "dilation"))
        total = None
        for start in range(0, size * distance, distance):
            part = t[(slice(None),) * axis + (slice(start, start + step * (count - 1) + 1, step),)]
            total = part if total is None else combine(total, part)
        t = total
    return t


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


def _average_pool_value(xp: Any, op: Any, t: Any) -> Any:
    """The mean of each window, the padding left out."""
    total = _combined(xp, op, padded(xp, t, op.attrs["padding"], 0), xp.add)
    ones = padded(np, np.ones((1, 1) + t.shape[2:], np.float32), op.attrs["padding"], 0)
    return total / np.maximum(_combined(np, op, ones, np.add), np.float32(1))


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


def _max_pool_value(xp: Any, op: Any, t: Any) -> Any:
    """The largest element of each window."""
    lowest = -math.inf if t.dtype.kind == "f" else np.iinfo(t.dtype).min
    return _combined(xp, op, padded(xp, t, op.attrs["padding"], lowest), xp.maximum)


KERNELS: Dict[str, Kernel] = {
    "average_pool": Kernel(_average_pool_value, float32=True),
    "max_pool": Kernel(_max_pool_value),
}
