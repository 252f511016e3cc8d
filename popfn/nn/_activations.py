"""Activations, elementwise and along an axis. float16 is computed in float32 and rounded once."""
from __future__ import annotations

import math
from typing import Any, Optional

from .. import numpy as pnp
from .._promotion import all_axes, as_float, in_float32, one_axis
from ..trace import prims
from ..trace.array import Array
from ..trace.errors import ShapeError, message, user_source


# ---------------------------------------------------------------------------- piecewise linear
def relu(x: Any) -> Array:
    """max(x, 0), elementwise; the derivative at 0 is 0."""
    return prims.relu(as_float(x))


def relu6(x: Any) -> Array:
    """x between 0 and 6, elementwise; the derivative at the bounds is 0."""
    return pnp.clip(as_float(x), 0.0, 6.0)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Array:
    """x, and `negative_slope` times x below 0, elementwise; the derivative at 0 is 1."""
    x = as_float(x)
    return pnp.where(x >= 0, x, x * negative_slope)


def hard_tanh(x: Any) -> Array:
    """x between -1 and 1, elementwise; the derivative at the bounds is 0."""
    return pnp.clip(as_float(x), -1.0, 1.0)


def hard_sigmoid(x: Any) -> Array:
    """relu6(x + 3) / 6, elementwise."""
    return in_float32(lambda x: relu6(x + 3.0) / 6.0, x)


def hard_silu(x: Any) -> Array:
    """x relu6(x + 3) / 6, elementwise; also called hard_swish."""
    return in_float32(lambda x: x * hard_sigmoid(x), x)


# ---------------------------------------------------------------------------- exponential
def sigmoid(x: Any) -> Array:
    """1 / (1 + exp(-x)), elementwise; value and derivative keep their digits on both sides."""
    return prims.sigmoid(as_float(x))


def log_sigmoid(x: Any) -> Array:
    """log(sigmoid(x)), elementwise, without overflow."""
    return -softplus(-as_float(x))


def softplus(x: Any) -> Array:
    """log(1 + exp(x)), elementwise, without overflow."""
    return pnp.logaddexp(as_float(x), 0.0)


def softsign(x: Any) -> Array:
    """x / (1 + |x|), elementwise."""
    return in_float32(lambda x: x / (pnp.abs(x) + 1.0), x)


def silu(x: Any) -> Array:
    """x sigmoid(x), elementwise; also called swish."""
    return in_float32(lambda x: x * sigmoid(x), x)


def mish(x: Any) -> Array:
    """x tanh(softplus(x)), elementwise (arXiv 1908.08681)."""
    return in_float32(lambda x: x * pnp.tanh(softplus(x)), x)


def elu(x: Any, alpha: float = 1.0) -> Array:
    """x, and alpha (exp(x) - 1) where x is not above 0, elementwise (arXiv 1511.07289)."""
    def f(x: Array) -> Array:
        return pnp.where(x > 0, x, pnp.expm1(pnp.where(x > 0, 0.0, x)) * alpha)
    return in_float32(f, x)


def celu(x: Any, alpha: float = 1.0) -> Array:
    """x, and alpha (exp(x / alpha) - 1) where x is not above 0, elementwise (arXiv 1704.07483)."""
    def f(x: Array) -> Array:
        return pnp.where(x > 0, x, pnp.expm1(pnp.where(x > 0, 0.0, x) / alpha) * alpha)
    return in_float32(f, x)


def selu(x: Any) -> Array:
    """elu with the factors that keep mean and variance over layers, elementwise (arXiv 1706.02515, section 2)."""
    return in_float32(lambda x: elu(x, 1.6732632423543772) * 1.0507009873554805, x)


def gelu(x: Any, approximate: bool = True) -> Array:
    """x times the normal distribution function, elementwise: in the IPU's tanh form, or by erf if not `approximate`.

    arXiv 1606.08415, section 2. The two differ by at most 5e-4.
    """
    if approximate:
        return prims.gelu(as_float(x))
    return in_float32(lambda x: x * (pnp.erf(x * math.sqrt(0.5)) + 1.0) * 0.5, x)


def glu(x: Any, axis: int = -1) -> Array:
    """The first half along an axis times the sigmoid of the second. Raises ShapeError if its size is odd."""
    x = as_float(x)
    axis = one_axis(axis, x.ndim, "glu")
    if x.shape[axis] % 2:
        raise ShapeError(message(f"glu: axis {axis} of {x.aval} has no two halves", at=user_source(2)))

    def f(x: Array) -> Array:
        value, gate = pnp.split(x, 2, axis)
        return value * sigmoid(gate)
    return in_float32(f, x)


# ---------------------------------------------------------------------------- along an axis
def softmax(x: Any, axis: int = -1, *, where: Optional[Any] = None) -> Array:
    """exp(x) over its sum along an axis. NaN where every element is -inf.

    With `where`, bools that broadcast to x, only the elements are taken for which it holds, and the others are 0: all
    of them if there are none to take, with no derivative.

    >>> import numpy as np
    >>> softmax(np.zeros((2, 3), np.float32), where=np.array([[True, True, False], [False, False, False]]))
    Array([[0.5, 0.5, 0. ],
           [0. , 0. , 0. ]], dtype=float32)
    """
    x = as_float(x)
    axis = one_axis(axis, x.ndim, "softmax")
    if where is None:
        return prims.softmax(x, axis)
    taken = _mask(where, x, "softmax")
    empty = pnp.logical_not(pnp.any(taken, axis, keepdims=True))
    return pnp.where(taken, prims.softmax(pnp.where(taken, x, pnp.where(empty, 0.0, -pnp.inf)), axis), 0.0)


def log_softmax(x: Any, axis: int = -1, *, where: Optional[Any] = None) -> Array:
    """log(softmax(x)) along an axis, without overflow. NaN where every element is -inf.

    With `where`, bools that broadcast to x, only the elements are taken for which it holds, and the others are -inf.
    """
    x = as_float(x)
    axis = one_axis(axis, x.ndim, "log_softmax")
    taken = None if where is None else _mask(where, x, "log_softmax")

    def f(x: Array) -> Array:
        y = x - logsumexp(x, axis, keepdims=True, where=taken)
        return y if taken is None else pnp.where(taken, y, -pnp.inf)
    return in_float32(f, x)


def logsumexp(x: Any, axis: pnp.Axis = None, *, keepdims: bool = False, where: Optional[Any] = None) -> Array:
    """log(sum(exp(x))) over axes, without overflow; -inf where every element is -inf.

    With `where`, bools that broadcast to x, only the elements are taken for which it holds: -inf if there are none.
    """
    x = as_float(x)
    axes = all_axes(axis, x.ndim, "logsumexp")
    taken = None if where is None else _mask(where, x, "logsumexp")

    def f(x: Array) -> Array:
        x = x if taken is None else pnp.where(taken, x, -pnp.inf)
        top = prims.stop_gradient(pnp.max(x, axes, keepdims=True))
        top = pnp.where(pnp.abs(top) == pnp.inf, 0.0, top)
        total = pnp.log(pnp.sum(pnp.exp(x - top), axes, keepdims=True)) + top
        return total if keepdims else pnp.squeeze(total, axes)
    return in_float32(f, x)


def _mask(where: Any, x: Array, name: str) -> Array:
    """`where` in the shape of x, as bools."""
    mask = pnp.asarray(where)
    try:
        return pnp.broadcast_to(mask if mask.dtype == bool else mask != 0, x.shape)
    except ShapeError:
        raise ShapeError(message(f"{name}: where broadcasts to the shape of {x.aval}, got {mask.aval}",
                                 at=user_source(3))) from None
