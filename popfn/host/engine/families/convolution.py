"""Convolutions over any number of spatial axes, as products of matrices."""

import math
from typing import Any, Callable, Dict, List, Sequence

import numpy as np

from popfn.host.engine.families.float8 import decoded, power_of_two
from popfn.host.engine.families.linear import product
from popfn.host.engine.kernel import Kernel

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


def correlate(
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


def conv(xp: Any, op: Any, t: Any, weight: Any) -> Any:
    """The correlation of samples with kernels."""
    a = op.attrs
    return correlate(xp, t, weight, a["stride"], a["padding"], a["dilation"], a["groups"], product(xp, op))


def conv_transpose(xp: Any, op: Any, t: Any, weight: Any) -> Any:
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
    return correlate(xp, t, weight, ones, before + behind, ones, groups, product(xp, op))


def _spread(xp: Any, t: Any, axis: int, step: int) -> Any:
    """Put step - 1 zeros between the elements along an axis."""
    if step == 1:
        return t
    count = t.shape[axis]
    t = xp.expand_dims(t, axis + 1)
    t = xp.pad(t, [(0, step - 1 if i == axis + 1 else 0) for i in range(t.ndim)])
    t = xp.reshape(t, (*t.shape[:axis], count * step, *t.shape[axis + 2 :]))
    return t[(slice(None),) * axis + (slice(step * (count - 1) + 1),)]


def _scaled(value: Callable[..., Any]) -> Callable[..., Any]:
    """The same of 8-bit floats, times a power of two."""

    def scaled(xp: Any, op: Any, t: Any, weight: Any, log2_scale: Any) -> Any:
        t, weight = decoded(xp, op.inputs[0].dtype, t), decoded(xp, op.inputs[1].dtype, weight)
        return value(xp, op, t, weight) * power_of_two(xp, log2_scale)

    return scaled


KERNELS: Dict[str, Kernel] = {
    "conv": Kernel(conv, float32=True),
    "conv_transpose": Kernel(conv_transpose, float32=True),
    "conv_pow2scaled": Kernel(_scaled(conv), float32=True),
    "conv_transpose_pow2scaled": Kernel(_scaled(conv_transpose), float32=True),
}
