"""Losses."""

import math
from typing import Any, Dict, Optional, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.tensor import Shape, Tensor, constant

REDUCTIONS = ("mean", "sum", "none")


def nll_loss(
    probs: Tensor,
    labels: Tensor,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
    log_prob: bool = False,
) -> Tensor:
    """Return the negative logarithms of the probabilities of the true classes, reduced.

    Args:
        probs: Probabilities of classes, along the last axis, or with `log_prob` their logarithms.
        labels: The true classes, integers of the shape of `probs` without its last axis.
        ignore_index: A label that does not count: its loss is 0.
        reduction: "mean" over the labels that count, "sum", or "none".
        log_prob: Whether `probs` are logarithms.

    Raises:
        TypeError: If an operand is no Tensor, or `ignore_index` no int.
        ValueError: If a tensor is of another graph, there is no such reduction, or `probs` is a scalar.
        popart_exception: If the labels are floats.
    """
    graph = _build.checked("nll_loss", probs=probs, labels=labels)
    attrs = _attrs("nll_loss", probs, ignore_index, reduction)
    attrs["log_prob"] = bool(log_prob)
    if labels.dtype.is_floating_point:
        raise popart_exception(f"nll_loss: the labels {labels!r} must be integers.")
    shape = _loss_shape(labels, reduction)
    fault = _fault(probs, labels)
    return _build.emit(graph, "nll_loss", (probs, labels), shape, probs.dtype, attrs, "loss", fault=fault)


# The least probability whose logarithm is taken.
_FLOORS = {dtypes.float16: 6.104e-05}
_FLOOR = 1e-7


def _nll_loss_value(xp: Any, op: Any, probs: Any, labels: Any) -> Any:
    """The negative logarithms of the probabilities at the labels, reduced."""
    labels, kept = _checked_labels(xp, op, labels)
    p = xp.take_along_axis(probs, _places(xp, labels, probs), axis=-1)[..., 0]
    if not op.attrs["log_prob"]:
        p = xp.log(xp.maximum(p, np.float32(_FLOORS.get(op.inputs[0].dtype, _FLOOR))))
    return _reduced(xp, op, -p, kept)


def nll_loss_with_softmax_grad(
    probs: Tensor,
    labels: Tensor,
    loss_grad: Any = 1,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
) -> Tuple[Tensor, Tensor]:
    """Return the loss of `nll_loss`, and its gradient with respect to the logits that softmax made `probs` of.

    Args:
        probs, labels, ignore_index, reduction: As in `nll_loss`.
        loss_grad: The gradient of the loss: a number or a scalar tensor.

    Raises:
        TypeError: If an operand is no Tensor, or `ignore_index` no int.
        ValueError: If a tensor is of another graph, there is no such reduction, `probs` is a scalar, or
            `loss_grad` no number.
    """
    function = "nll_loss_with_softmax_grad"
    graph = _build.checked(function, probs=probs, labels=labels)
    attrs = _attrs(function, probs, ignore_index, reduction)
    with graph._undo_on_error():
        if not isinstance(loss_grad, Tensor):
            loss_grad = constant(loss_grad, probs.dtype)
        _build.checked(function, probs=probs, labels=labels, loss_grad=loss_grad)
        fault = _fault(probs, labels)
        if _build.nelms(loss_grad.shape) != 1:
            fault = f"loss_grad, {loss_grad!r}, is no scalar"
        results = (
            ("loss", _loss_shape(labels, reduction), probs.dtype, ()),
            ("dx", probs.shape, probs.dtype, ()),
        )
        loss, dx = graph._add_op(function, (probs, labels, loss_grad), results, attrs, fault).outputs
    return loss, dx


def _nll_loss_with_softmax_grad_value(xp: Any, op: Any, probs: Any, labels: Any, loss_grad: Any) -> Tuple[Any, Any]:
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


def _attrs(function: str, probs: Tensor, ignore_index: Optional[int], reduction: str) -> Any:
    if ignore_index is not None:
        ignore_index = _build.as_int(function, "ignore_index", ignore_index)
    if reduction not in REDUCTIONS:
        raise ValueError(f'{function}: the reduction must be "mean", "sum" or "none", not {reduction!r}.')
    if not probs.shape:
        raise ValueError(f"{function}: {probs!r} has no axis for the classes.")
    return {"ignore_index": ignore_index, "reduction": reduction}


def _loss_shape(labels: Tensor, reduction: str) -> Shape:
    return labels.shape if reduction == "none" else ()


def _fault(probs: Tensor, labels: Tensor) -> Optional[str]:
    """What PopXL does not check when the graph is built."""
    if not probs.dtype.is_floating_point:
        return f"the probabilities {probs!r} are no floats"
    if not labels.dtype.is_int:
        return f"the labels {labels!r} are no integers"
    if labels.shape != probs.shape[:-1]:
        return f"the labels, of the shape {labels.shape}, do not fit the probabilities, {probs.shape}"
    return None


# What the values share


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
    "nll_loss": Kernel(_nll_loss_value, float32=True),
    "nll_loss_with_softmax_grad": Kernel(_nll_loss_with_softmax_grad_value, float32=True),
}
