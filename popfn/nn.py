"""popfn.nn: activations and losses, composed of primitives.

>>> import numpy as np, popfn as pf
>>> pf.nn.relu(np.array([-1.0, 2.0], np.float32))
Array([0., 2.], dtype=float32)
"""
from __future__ import annotations

from typing import Any

from . import numpy as pnp
from ._promotion import all_axes, in_float32
from .trace import prims
from .trace.array import Array
from .trace.aval import float32, int32
from .trace.errors import DtypeError, ShapeError, message, user_source
from .trace.tracer import aval_of


def _float(x: Any) -> Array:
    x = pnp.asarray(x)
    return x if x.aval.is_float else pnp.astype(x, float32)


def _axis(axis: int, x: Array, name: str) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(message(f"{name}: axis {axis} is not an axis of {x.aval}", at=user_source(3)))
    return axis % x.ndim


def relu(x: Any) -> Array:
    """max(x, 0), elementwise; the derivative at 0 is 0."""
    return prims.relu(_float(x))


def gelu(x: Any) -> Array:
    """x times the normal distribution function, in the IPU's tanh form (arXiv 1606.08415, section 2)."""
    return prims.gelu(_float(x))


def sigmoid(x: Any) -> Array:
    """1 / (1 + exp(-x)), elementwise, as (1 + tanh(x / 2)) / 2, which cannot overflow."""
    return pnp.tanh(_float(x) * 0.5) * 0.5 + 0.5


def silu(x: Any) -> Array:
    """x sigmoid(x), elementwise; also called swish."""
    x = _float(x)
    return x * sigmoid(x)


def softmax(x: Any, axis: int = -1) -> Array:
    """exp(x) over its sum along an axis. NaN where every element is -inf."""
    x = _float(x)
    return prims.softmax(x, _axis(axis, x, "softmax"))


def logsumexp(x: Any, axis: pnp.Axis = None, *, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over axes, without overflow; -inf where every element is -inf. float16 runs in float32."""
    def f(x: Array) -> Array:
        top = prims.stop_gradient(pnp.max(x, axis, keepdims=True))
        top = pnp.where(pnp.abs(top) == pnp.inf, 0.0, top)
        total = pnp.log(pnp.sum(pnp.exp(x - top), axis, keepdims=True)) + top
        return total if keepdims else pnp.squeeze(total, all_axes(axis, x.ndim, "logsumexp"))
    return in_float32(f, x)


def log_softmax(x: Any, axis: int = -1) -> Array:
    """log(softmax(x)) along an axis, without overflow. float16 is computed in float32."""
    return in_float32(lambda x: x - logsumexp(x, _axis(axis, x, "log_softmax"), keepdims=True), x)


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

    `logits` have shape (..., classes), `labels` are integers of shape (...) in [0, classes). float16 is computed in
    float32. Raises ShapeError and DtypeError if the two do not go together.

    >>> import numpy as np
    >>> cross_entropy(np.zeros((2, 4), np.float32), np.array([0, 3]))
    Array(1.3862944, dtype=float32)
    """
    logits = _float(logits)
    aval = aval_of(labels)
    if not logits.ndim or aval.shape != logits.shape[:-1]:
        raise ShapeError(message(f"cross_entropy: labels are of the logits' shape without its last axis, got "
                                 f"{aval} for {logits.aval}", at=user_source(2)))
    chosen = one_hot(labels, logits.shape[-1], dtype=bool)

    def f(x: Array) -> Array:
        picked = pnp.sum(pnp.where(chosen, x, 0.0), -1)
        return pnp.mean(logsumexp(x, -1) - picked)
    return in_float32(f, logits)
