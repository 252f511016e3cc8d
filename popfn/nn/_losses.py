"""Losses."""
from __future__ import annotations

from typing import Any

from .. import numpy as pnp
from .._promotion import as_float, checked_indices, in_float32
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import float32, int32
from ..trace.errors import DtypeError, ShapeError, message, user_source
from ..trace.tracer import aval_of
from ._activations import logsumexp


def one_hot(labels: Any, classes: int, *, dtype: Any = float32) -> Array:
    """1 at each label's place along a new last axis, 0 elsewhere; all 0 for a label that is not in range.

    `labels` are integers of any shape; the result has shape (*labels.shape, classes).
    """
    labels = pnp.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise DtypeError(message(f"one_hot takes integer labels, got {labels.aval}", at=user_source(2)))
    labels = pnp.astype(labels, int32)  # a small dtype may not hold the number of classes
    return pnp.astype(pnp.expand_dims(labels, -1) == prims.iota(int32, (classes,), 0), dtype)


def cross_entropy(logits: Any, labels: Any) -> Array:
    """The mean over all labels of -log(softmax(logits)) at the label: a scalar in the logits' dtype.

    `logits` have shape (..., classes), `labels` are integers of shape (...) in [-classes, classes), negative ones
    counted from the end; traced labels that are out of range mean the nearest class. float16 is computed in float32.
    Raises ShapeError and DtypeError if the two do not go together or are empty, RangeError (an IndexError) for known
    labels that are out of range.

    >>> import numpy as np
    >>> cross_entropy(np.zeros((2, 4), np.float32), np.array([0, 3]))
    Array(1.3862944, dtype=float32)
    """
    logits = as_float(logits)
    aval = aval_of(labels)
    if not logits.ndim or aval.shape != logits.shape[:-1]:
        raise ShapeError(message(f"cross_entropy: labels are of the logits' shape without its last axis, got "
                                 f"{aval} for {logits.aval}", at=user_source(2)))
    if not logits.size:
        raise ShapeError(message(f"cross_entropy: there is no mean of no labels, got {logits.aval}",
                                 "way out: leave empty batches out", at=user_source(2)))
    if aval.dtype.kind not in "iu":
        raise DtypeError(message(f"cross_entropy takes integer labels, got {aval}", at=user_source(2)))
    n = logits.shape[-1]
    labels = pnp.astype(checked_indices(labels, n, logits.ndim - 1), int32)
    chosen = one_hot(pnp.clip(pnp.where(labels < 0, labels + n, labels), 0, n - 1), n, dtype=bool)

    def f(x: Array) -> Array:
        picked = pnp.sum(pnp.where(chosen, x, 0.0), -1)
        return pnp.mean(logsumexp(x, -1) - picked)
    return in_float32(f, logits)
