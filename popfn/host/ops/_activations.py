"""Activations.

Errors: TypeError for an operand that is no Tensor, ValueError for one of another graph.
"""

import math
from typing import Any, Dict, Optional

import numpy as np

from popfn.host.kernels import emit
from popfn.host.kernels.kernel import Kernel, elementwise, in_place
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def _activation(kind: str, t: Tensor, name: Optional[str] = None) -> Tensor:
    return _build.emit_like(_build.checked(kind, t=t), kind, (t,), None, name)


def relu(t: Tensor) -> Tensor:
    """Return the larger of `t` and 0."""
    return _activation("relu", t)


def relu_(t: Tensor) -> Tensor:
    """`relu` in place."""
    return _activation("relu_", t, "relu_inplace_out")


def _relu_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.maximum(x, xp.zeros_like(x))


def _emit_relu(s: Any) -> None:
    s.apply("maximum", s.ins[0], s.constant(0, s.out.dtype))


def gelu(t: Tensor) -> Tensor:
    """Return the Gaussian error linear unit in its tanh form, `t/2 (1 + tanh(0.79788 t + 0.035677 t**3))`."""
    return _activation("gelu", t)


def gelu_(t: Tensor) -> Tensor:
    """`gelu` in place."""
    return _activation("gelu_", t, "gelu_inplace_out")


# gelu's tanh form is 0.5 x (1 + tanh(x (_GELU_LINEAR + _GELU_CUBIC x^2))).
_GELU_LINEAR = 0.7978845608
_GELU_CUBIC = 0.0356774081


def _gelu_value(xp: Any, op: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(x * (_GELU_CUBIC * (x * x) + _GELU_LINEAR)))


def _emit_gelu(s: Any) -> None:
    x, dtype = s.ins[0], s.out.dtype
    t = s.scratch(x.shape, dtype) if x is s.out else s.out
    s.apply("multiply", x, x, out=t)
    s.apply("multiply", t, s.constant(_GELU_CUBIC, dtype), out=t)
    s.apply("add", t, s.constant(_GELU_LINEAR, dtype), out=t)
    s.apply("multiply", t, x, out=t)
    s.apply("tanh", t, out=t)
    s.apply("add", t, s.constant(1, dtype), out=t)
    s.apply("multiply", t, x, out=t)
    s.apply("multiply", t, s.constant(0.5, dtype))


def geluerf(t: Tensor) -> Tensor:
    """Return the Gaussian error linear unit, `t/2 (1 + erf(t / sqrt(2)))`."""
    return _activation("geluerf", t)


def geluerf_(t: Tensor) -> Tensor:
    """`geluerf` in place."""
    return _activation("geluerf_", t, "geluerf_inplace_out")


def _geluerf_value(xp: Any, op: Any, x: Any) -> Any:
    wide = x.astype(np.float64)
    scaled = wide * math.sqrt(0.5)
    return 0.5 * wide * (1 + (_exact_erf(scaled) if x.dtype == np.float64 else _erf(xp, scaled)))


# sqrt(1 - exp(-t p(t) / q(t))) with t = x^2 is erf(x), with a relative error below 1e-9.
_ERF_P = (1.2732395433048906, 0.42042999166748274, 0.07987651294434356, 0.008500723136383108, 0.00037867902046240666)
_ERF_Q = (1.0, 0.360251818147481, 0.07089501377628749, 0.007805946113439668, 0.00037541550233018817)
_exact_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf(xp: Any, x: Any) -> Any:
    """The error function in float64, exact enough to round to float32."""
    t = xp.minimum(x * x, 36.0)
    p, q = _ERF_P[4], _ERF_Q[4]
    for k in (3, 2, 1, 0):
        p, q = p * t + _ERF_P[k], q * t + _ERF_Q[k]
    return xp.copysign(xp.sqrt(-xp.expm1(-t * p / q)), x)


def swish(t: Tensor) -> Tensor:
    """Return `t` times its logistic sigmoid."""
    return _activation("swish", t)


def swish_(t: Tensor) -> Tensor:
    """`swish` in place."""
    return _activation("swish_", t, "swish_inplace_out")


def _swish_value(xp: Any, op: Any, x: Any) -> Any:
    return x / (1 + xp.exp(-x))


def _emit_swish(s: Any) -> None:
    x, dtype = s.ins[0], s.out.dtype
    t = s.scratch(x.shape, dtype) if x is s.out else s.out
    s.apply("negative", x, out=t)
    s.apply("exp", t, out=t)
    s.apply("add", t, s.constant(1, dtype), out=t)
    s.apply("divide", x, t)


def softmax(t: Tensor, axis: int) -> Tensor:
    """Return exp(t), scaled to a sum of 1 along `axis`; TypeError if `axis` is no int."""
    graph = _build.checked("softmax", t=t)
    rank = len(t.shape)
    axis = _build.wrapped(_build.as_int("softmax", "axis", axis), rank)
    fault = None
    if not 0 <= axis < rank:
        fault = f"axis {axis} is out of range for the shape {t.shape}"
    return _build.emit_like(graph, "softmax", (t,), {"axis": axis}, None, fault)


def _softmax_value(xp: Any, op: Any, x: Any) -> Any:
    axis = op.attrs["axis"]
    e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return e / xp.sum(e, axis=axis, keepdims=True)


def _emit_softmax(s: Any) -> None:
    (x,), axis = s.ins, s.op.attrs["axis"]
    across = s.scratch(x.shape[:axis] + (1,) + x.shape[axis + 1 :], x.dtype)
    emit.reduce(s, "maximum", x, across, (axis,), True)
    s.apply("subtract", x, across)
    s.apply("exp", s.out)
    emit.reduce(s, "add", s.out, across, (axis,), True)
    s.apply("divide", s.out, across)


_relu_kernel = elementwise(_relu_value, _emit_relu)
_gelu_kernel = elementwise(_gelu_value, _emit_gelu, float32=True)
_geluerf_kernel = elementwise(_geluerf_value, float32=True)
_swish_kernel = elementwise(_swish_value, _emit_swish, float32=True)

KERNELS: Dict[str, Kernel] = {
    "relu": _relu_kernel,
    "relu_": in_place(_relu_kernel),
    "gelu": _gelu_kernel,
    "gelu_": in_place(_gelu_kernel),
    "geluerf": _geluerf_kernel,
    "geluerf_": in_place(_geluerf_kernel),
    "swish": _swish_kernel,
    "swish_": in_place(_swish_kernel),
    "softmax": Kernel(_softmax_value, _emit_softmax, (0,), float32=True),
}
