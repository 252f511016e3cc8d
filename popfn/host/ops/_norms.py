"""Normalisation. The channels of a tensor lie along axis 1.

Errors: TypeError for an operand that is no Tensor or a parameter of the wrong type, ValueError for a tensor of
another graph, popart_exception for a rank that is too low.
"""

import math
from typing import Any, Dict, Optional, Tuple

import numpy as np

from popfn.host.errors import popart_exception
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def layer_norm(t: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-05) -> Tensor:
    """`group_norm` with one group: for a matrix, each row is normalised.

    The statistics of a tensor of a higher rank are over all axes but axis 0.
    """
    return _group_norm("layer_norm", t, weight, bias, 1, eps)


def group_norm(t: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float = 1e-05) -> Tensor:
    """Normalise groups of channels of each sample to the mean 0 and the variance 1, then scale and shift.

    Args:
        t: The samples, of the shape (samples, channels, ...).
        weight, bias: The scale and the shift of each channel.
        num_groups: The number of groups, which divides that of the channels.
        eps: What is added to the variance.
    """
    return _group_norm("group_norm", t, weight, bias, num_groups, eps)


def _group_norm(
    function: str, t: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float
) -> Tensor:
    graph = _build.checked(function, t=t, weight=weight, bias=bias)
    groups = _build.as_int(function, "num_groups", num_groups)
    attrs = {"num_groups": groups, "eps": _build.as_float(function, "eps", eps)}
    if len(t.shape) < 2:
        raise popart_exception(f"{function}: {t!r} has no axes for samples and channels.")
    fault = _channel_fault(t, weight=weight, bias=bias)
    if groups < 1 or t.shape[1] % groups:
        fault = f"the {t.shape[1]} channels cannot be divided into {groups} groups"
    statistics = (t.shape[0] * groups,)
    results = (
        ("group_norm_out", t.shape, t.dtype, t.meta_shape),
        ("group_norm_mean", statistics, t.dtype, ()),
        ("group_norm_inv_std_dev", statistics, t.dtype, ()),
    )
    return graph._add_op("group_norm", (t, weight, bias), results, attrs, fault).outputs[0]


def _group_norm_value(xp: Any, op: Any, t: Any, weight: Any, bias: Any) -> Tuple[Any, Any, Any]:
    """Groups of channels with mean 0 and variance 1, scaled and shifted; the means, and 1 / sqrt(variance + eps)."""
    groups = op.attrs["num_groups"]
    x = xp.reshape(t, (t.shape[0] * groups, math.prod(t.shape[1:]) // groups))
    mean = xp.mean(x, axis=1, keepdims=True)
    x = x - mean
    inverse = 1 / xp.sqrt(xp.mean(x * x, axis=1, keepdims=True) + np.float32(op.attrs["eps"]))
    normal = xp.reshape(x * inverse, t.shape)
    result = normal * _per_channel(xp, weight, t) + _per_channel(xp, bias, t)
    return result, xp.reshape(mean, (-1,)), xp.reshape(inverse, (-1,))


def _emit_group_norm(s: Any) -> None:
    """Emit it in place of the result."""
    (x, weight, bias), (out, mean, inverse) = s.ins, s.outs
    count = mean.shape[0]
    size = math.prod(x.shape) // max(count, 1)
    x = s.reshaped(x if x.contiguous else s.compact(x), (count, size))
    rows, (mean, inverse) = s.reshaped(out, (count, size)), (s.reshaped(y, (count, 1)) for y in (mean, inverse))
    square, length = s.scratch((count, size), out.dtype), s.constant(size, out.dtype)
    add = s.function("add")
    s.line(f"{add}.reduce({x.name}, axis=1, keepdims=True, out={mean.name})")
    s.apply("divide", mean, length, out=mean)
    s.apply("subtract", x, mean, out=rows)
    s.apply("multiply", rows, rows, out=square)
    s.line(f"{add}.reduce({square.name}, axis=1, keepdims=True, out={inverse.name})")
    s.apply("divide", inverse, length, out=inverse)
    s.apply("add", inverse, s.constant(s.op.attrs["eps"], out.dtype), out=inverse)
    s.apply("sqrt", inverse, out=inverse)
    s.apply("divide", s.constant(1, out.dtype), inverse, out=inverse)
    s.apply("multiply", rows, inverse, out=rows)
    channels = (-1,) + (1,) * (len(out.shape) - 2)
    weight, bias = (s.reshaped(y if y.contiguous else s.compact(y), channels) for y in (weight, bias))
    s.apply("multiply", out, weight)
    s.apply("add", out, bias)


def _per_channel(xp: Any, x: Any, t: Any) -> Any:
    return xp.reshape(x, (-1,) + (1,) * (t.ndim - 2))


def _channel_fault(t: Tensor, **parameters: Tensor) -> Optional[str]:
    """What PopXL does not check when the graph is built."""
    if not t.dtype.is_floating_point:
        return f"{t!r} is of no float dtype"
    for name, parameter in parameters.items():
        if parameter.shape != t.shape[1:2]:
            return f"{name}, of the shape {parameter.shape}, does not fit the {t.shape[1]} channels"
        if not parameter.dtype.is_floating_point:
            return f"{name}, {parameter!r}, is of no float dtype"
    return None


def batch_norm_inference(
    t: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
) -> Tensor:
    """Normalise channels by a given mean and variance, then scale and shift.

    Args:
        t: The samples, of the shape (samples, channels, ...) and at least rank 3.
        scale, bias, mean, var: One element for each channel.
        epsilon: What is added to the variance.
        momentum: Has no effect.
    """
    operands = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    graph = _build.checked("batch_norm_inference", t=t, **operands)
    eps = _build.as_float("batch_norm_inference", "epsilon", epsilon)
    if len(t.shape) < 3:
        raise popart_exception(f"batch_norm_inference: {t!r} must have at least 3 axes.")
    fault = _channel_fault(t, **operands)
    inputs = (t, scale, bias, mean, var)
    return _build.emit_like(graph, "batch_norm_inference", inputs, {"eps": eps}, "batch_norm_out", fault)


def _batch_norm_inference_value(xp: Any, op: Any, t: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Channels less a given mean, over a given standard deviation, scaled and shifted."""
    factor = scale / xp.sqrt(var + np.float32(op.attrs["eps"]))
    return (t - _per_channel(xp, mean, t)) * _per_channel(xp, factor, t) + _per_channel(xp, bias, t)


KERNELS: Dict[str, Kernel] = {
    "group_norm": Kernel(_group_norm_value, _emit_group_norm, (0,), float32=True),
    "batch_norm_inference": Kernel(_batch_norm_inference_value, float32=True),
}
