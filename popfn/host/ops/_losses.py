"""Losses."""

from typing import Any, Optional, Tuple

from popfn.host.errors import popart_exception
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
