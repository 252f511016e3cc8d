"""Normalisation and losses."""

import math
from typing import Any, Dict, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.engine.kernel import Kernel


def group_norm(xp: Any, op: Any, t: Any, weight: Any, bias: Any) -> Tuple[Any, Any, Any]:
    """Groups of channels with mean 0 and variance 1, scaled and shifted; the means, and 1 / sqrt(variance + eps)."""
    groups = op.attrs["num_groups"]
    x = xp.reshape(t, (t.shape[0] * groups, math.prod(t.shape[1:]) // groups))
    mean = xp.mean(x, axis=1, keepdims=True)
    x = x - mean
    inverse = 1 / xp.sqrt(xp.mean(x * x, axis=1, keepdims=True) + np.float32(op.attrs["eps"]))
    normal = xp.reshape(x * inverse, t.shape)
    result = normal * _per_channel(xp, weight, t) + _per_channel(xp, bias, t)
    return result, xp.reshape(mean, (-1,)), xp.reshape(inverse, (-1,))


def emit_group_norm(s: Any) -> None:
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


def batch_norm_inference(xp: Any, op: Any, t: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Channels less a given mean, over a given standard deviation, scaled and shifted."""
    factor = scale / xp.sqrt(var + np.float32(op.attrs["eps"]))
    return (t - _per_channel(xp, mean, t)) * _per_channel(xp, factor, t) + _per_channel(xp, bias, t)


def _per_channel(xp: Any, x: Any, t: Any) -> Any:
    return xp.reshape(x, (-1,) + (1,) * (t.ndim - 2))


# The least probability whose logarithm is taken.
_FLOORS = {dtypes.float16: 6.104e-05}
_FLOOR = 1e-7


def nll_loss(xp: Any, op: Any, probs: Any, labels: Any) -> Any:
    """The negative logarithms of the probabilities at the labels, reduced."""
    labels, kept = _checked_labels(xp, op, labels)
    p = xp.take_along_axis(probs, _places(xp, labels, probs), axis=-1)[..., 0]
    if not op.attrs["log_prob"]:
        p = xp.log(xp.maximum(p, np.float32(_FLOORS.get(op.inputs[0].dtype, _FLOOR))))
    return _reduced(xp, op, -p, kept)


def nll_loss_with_softmax_grad(xp: Any, op: Any, probs: Any, labels: Any, loss_grad: Any) -> Tuple[Any, Any]:
    """The loss, and its gradient with respect to the operand of the softmax that gave the probabilities."""
    labels, kept = _checked_labels(xp, op, labels)
    p = xp.take_along_axis(probs, _places(xp, labels, probs), axis=-1)[..., 0]
    loss = _reduced(xp, op, -xp.log(p + np.float32(_FLOOR)), kept)
    is_label = labels[..., None] == np.arange(probs.shape[-1], dtype=np.int32)
    grad = (probs - is_label.astype(probs.dtype)) * xp.reshape(loss_grad, ())
    if op.attrs["reduction"] == "mean":
        grad = grad / _count(xp, labels, kept)
    if kept is not None:
        grad = xp.where(kept[..., None], grad, xp.zeros_like(grad))
    return loss, grad


def _checked_labels(xp: Any, op: Any, labels: Any) -> Tuple[Any, Any]:
    """The labels as int32, and which of them count: None if all do."""
    labels, ignored = labels.astype(np.int32), op.attrs["ignore_index"]
    return labels, None if ignored is None else labels != ignored


def _places(xp: Any, labels: Any, probs: Any) -> Any:
    """Where the probabilities at the labels are, an ignored one being anywhere."""
    return xp.clip(labels, 0, probs.shape[-1] - 1)[..., None]


def _count(xp: Any, labels: Any, kept: Any) -> Any:
    if kept is None:
        return np.float32(max(math.prod(labels.shape), 1))
    return xp.maximum(xp.sum(kept), 1).astype(np.float32)


def _reduced(xp: Any, op: Any, losses: Any, kept: Any) -> Any:
    if kept is not None:
        losses = xp.where(kept, losses, xp.zeros_like(losses))
    if op.attrs["reduction"] == "none":
        return losses
    total = xp.sum(losses)
    return total / _count(xp, losses, kept) if op.attrs["reduction"] == "mean" else total


KERNELS: Dict[str, Kernel] = {
    "group_norm": Kernel(group_norm, emit_group_norm, (0,), float32=True),
    "batch_norm_inference": Kernel(batch_norm_inference, float32=True),
    "nll_loss": Kernel(nll_loss, float32=True),
    "nll_loss_with_softmax_grad": Kernel(nll_loss_with_softmax_grad, float32=True),
}
