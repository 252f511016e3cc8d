"""Losses: scalars in the dtype of the predictions, or one value per sample with reduction="none".

Means and sums are accumulated in float32. The mean over an empty batch is NaN, as NumPy's, its sum 0; and the mean is 0
where there are samples, or none, of which `where` says that none counts.
"""
from __future__ import annotations

from typing import Any, Optional

from .. import numpy as pnp
from .._promotion import as_float, check_number, checked_indices, floats, in_float32, known_integer
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import accumulator_dtype, bool_, float32, int32
from ..trace.errors import ArgumentError, DtypeError, ShapeError, message, user_source
from ..trace.tracer import Tracer, aval_of
from ._activations import logsumexp


def one_hot(labels: Any, classes: int, *, dtype: Any = float32) -> Array:
    """1 at each label's place along a new last axis, 0 elsewhere; all 0 for a label that is not in range.

    `labels` are integers of any shape; the result has shape (*labels.shape, classes).
    """
    labels, classes = pnp.asarray(labels), known_integer("one_hot: the number of classes", classes)
    if labels.dtype.kind not in "iu":
        raise DtypeError(message(f"one_hot takes integer labels, got {labels.aval}", at=user_source(2)))
    labels = pnp.astype(labels, int32)  # a small dtype may not hold the number of classes
    return pnp.astype(pnp.expand_dims(labels, -1) == prims.iota(int32, (classes,), 0), dtype)


def cross_entropy(logits: Any, labels: Any, *, where: Any = None, label_smoothing: float = 0.0,
                  reduction: str = "mean") -> Array:
    """-log(softmax(logits)) at each label, and the mean over all labels: a scalar in the logits' dtype.

    `logits` have shape (..., classes), `labels` are integers of shape (...) in [-classes, classes), negative ones
    counted from the end; traced labels that are out of range mean the nearest class. Only labels where the bools
    `where` are True count; if there are none the mean is 0. With `label_smoothing` s the target is 1 - s at the label
    plus s / classes everywhere. `reduction` is "mean", "sum" or "none"; the mean of no labels is NaN. float16 is
    computed in float32.

    Raises ShapeError and DtypeError if the two do not go together or there are no classes, RangeError (an IndexError)
    for known labels that are out of range, ArgumentError for another smoothing than from 0 to 1.

    >>> import numpy as np
    >>> cross_entropy(np.zeros((2, 4), np.float32), np.array([0, 3]))
    Array(1.3862944, dtype=float32)
    """
    check_number("cross_entropy", "label_smoothing", label_smoothing, lambda s: 0 <= s <= 1, "from 0 to 1")
    smooth = isinstance(label_smoothing, Tracer) or label_smoothing
    logits = as_float(logits)
    chosen = _chosen("cross_entropy", "logits", logits, labels, where)

    def f(x: Array) -> Array:
        picked = pnp.sum(pnp.where(chosen, x, 0.0), -1)
        total = logsumexp(x, -1)
        if smooth:
            picked = picked * (1 - label_smoothing) + pnp.mean(x, -1) * label_smoothing
        return _reduced("cross_entropy", total - picked, where, reduction)
    return in_float32(f, logits)


def nll(log_probs: Any, labels: Any, *, where: Any = None, reduction: str = "mean") -> Array:
    """-log_probs at each label, and the mean over all labels; see `cross_entropy`, which does `log_softmax` itself."""
    log_probs = as_float(log_probs)
    chosen = _chosen("nll", "log_probs", log_probs, labels, where)

    def f(x: Array) -> Array:
        return _reduced("nll", -pnp.sum(pnp.where(chosen, x, 0.0), -1), where, reduction)
    return in_float32(f, log_probs)


def _chosen(name: str, what: str, x: Array, labels: Any, where: Any) -> Array:
    """Bools of x's shape that are True at the labels."""
    aval = aval_of(labels)
    if not x.ndim or aval.shape != x.shape[:-1]:
        raise ShapeError(message(f"{name}: labels are of the {what}' shape without its last axis, got {aval} for "
                                 f"{x.aval}", at=user_source(3)))
    if not x.shape[-1]:
        raise ShapeError(message(f"{name}: there are no classes, got {x.aval}", at=user_source(3)))
    if aval.dtype.kind not in "iu":
        raise DtypeError(message(f"{name} takes integer labels, got {aval}", at=user_source(3)))
    n = x.shape[-1]
    if where is None:  # labels that do not count may be anything
        labels = checked_indices(labels, n, x.ndim - 1)
    labels = pnp.astype(labels, int32)
    return one_hot(pnp.clip(pnp.where(labels < 0, labels + n, labels), 0, n - 1), n, dtype=bool)


def mse(predictions: Any, targets: Any, *, where: Any = None, reduction: str = "mean") -> Array:
    """The squares of predictions - targets, of one shape, and their mean."""
    return _elementwise("mse", lambda d: d * d, predictions, targets, where, reduction)


def l1(predictions: Any, targets: Any, *, where: Any = None, reduction: str = "mean") -> Array:
    """The sizes of predictions - targets, of one shape, and their mean; the derivative at 0 is 0."""
    return _elementwise("l1", pnp.abs, predictions, targets, where, reduction)


def huber(predictions: Any, targets: Any, *, delta: float = 1.0, where: Any = None, reduction: str = "mean") -> Array:
    """d^2 / 2 for d = predictions - targets up to `delta`, delta (|d| - delta / 2) beyond, and their mean.

    Raises ArgumentError unless delta is above 0. Huber, Robust estimation of a location parameter, 1964.
    """
    check_number("huber", "delta", delta, lambda d: d > 0, "above 0")

    def f(d: Array) -> Array:
        size = pnp.abs(d)
        near = pnp.minimum(size, delta)
        return near * (size - 0.5 * near)
    return _elementwise("huber", f, predictions, targets, where, reduction)


def binary_cross_entropy(logits: Any, targets: Any, *, where: Any = None, reduction: str = "mean") -> Array:
    """-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) for logits x and targets t in [0, 1], and the mean."""
    x, t = _pair("binary_cross_entropy", logits, targets)
    wide = accumulator_dtype(x.dtype)

    def f(x: Array) -> Array:
        value = pnp.maximum(x, 0.0) - x * prims.convert(t, wide) + pnp.log1p(pnp.exp(-pnp.abs(x)))
        return _reduced("binary_cross_entropy", value, where, reduction)
    return prims.convert(f(prims.convert(x, wide)), x.dtype)


def _elementwise(name: str, f: Any, predictions: Any, targets: Any, where: Any, reduction: str) -> Array:
    x, y = _pair(name, predictions, targets)
    wide = accumulator_dtype(x.dtype)
    difference = prims.convert(x, wide) - prims.convert(y, wide)
    return prims.convert(_reduced(name, f(difference), where, reduction), x.dtype)


def _pair(name: str, x: Any, y: Any) -> Any:
    """Two arrays of one shape and a common float dtype."""
    x, y = (pnp.asarray(v) for v in floats(x, y))
    if x.shape != y.shape:  # which would broadcast, and mean something else
        raise ShapeError(message(f"{name}: predictions and targets have one shape, got {x.aval} and {y.aval}",
                                 at=user_source(4)))
    return x, y


def _reduced(name: str, losses: Array, where: Optional[Any], reduction: str) -> Array:
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(message(f'{name}: reduction is "mean", "sum" or "none", got {reduction!r}',
                                    at=user_source(4)))
    if where is not None:
        if aval_of(where).dtype != bool_ or aval_of(where).shape != losses.shape:
            raise ShapeError(message(f"{name}: where is bools of shape {losses.shape}, got {aval_of(where)}",
                                     at=user_source(4)))
        losses = pnp.where(where, losses, 0.0)
    if reduction == "none":
        return losses
    total = pnp.sum(losses)
    if reduction == "sum":
        return total
    count: Any = float(losses.size) if where is None else pnp.maximum(pnp.sum(where), 1)
    return total / count
