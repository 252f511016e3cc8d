"""Activations."""
from __future__ import annotations

from typing import Any

from .. import numpy as pnp
from .._promotion import all_axes, as_float, in_float32, one_axis
from ..trace import prims
from ..trace.array import Array


def relu(x: Any) -> Array:
    """max(x, 0), elementwise; the derivative at 0 is 0."""
    return prims.relu(as_float(x))


def gelu(x: Any) -> Array:
    """x times the normal distribution function, in the IPU's tanh form (arXiv 1606.08415, section 2)."""
    return prims.gelu(as_float(x))


def sigmoid(x: Any) -> Array:
    """1 / (1 + exp(-x)), elementwise. float16 is computed in float32."""
    return in_float32(lambda x: pnp.reciprocal(1.0 + pnp.exp(-x)), x)


def silu(x: Any) -> Array:
    """x sigmoid(x), elementwise; also called swish."""
    return in_float32(lambda x: x * sigmoid(x), x)


def softmax(x: Any, axis: int = -1) -> Array:
    """exp(x) over its sum along an axis. NaN where every element is -inf."""
    x = as_float(x)
    return prims.softmax(x, one_axis(axis, x.ndim, "softmax"))


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
    return in_float32(lambda x: x - logsumexp(x, one_axis(axis, x.ndim, "log_softmax"), keepdims=True), x)
