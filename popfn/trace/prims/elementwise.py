"""Elementwise functions of one operand."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Sequence, Tuple

import numpy as np

from ..aval import FLOAT8, Aval, bool_, checked_dtype, float64
from ..jaxpr import Literal
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .kinds import Elementwise, Slope, add, mul, neg, scale, sub
from .shaping import Dims, interned, unbroadcast


def affine(x: Any, a: float, b: float) -> Any:
    """a * x + b."""
    aval = aval_of(x)
    return add(mul(x, literal(a, aval)), literal(b, aval))


def wide(f: Callable[[Any], Any], x: Any) -> Any:
    """`f` in float32 for float16, rounded once."""
    return f(x.astype(np.float32)).astype(np.float16) if x.dtype == np.float16 else f(x)


# ---------------------------------------------------------------------------- sign and rounding
@dataclass(frozen=True)
class Abs(Elementwise):
    """|x|; its derivative at 0 is 0."""

    takes: ClassVar[str] = "if"

    def eval(self, x: np.ndarray) -> Any:
        return np.abs(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: sign(x),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.abs(x)


@dataclass(frozen=True)
class Sign(Elementwise):
    """-1, 0 or 1; NaN for NaN."""

    takes: ClassVar[str] = "if"

    def eval(self, x: np.ndarray) -> Any:
        return np.sign(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (None,)

    def lower(self, px: Any, x: Any) -> Any:  # PopXL's sign of NaN is 0
        return px.ops.where(px.ops.isnan(x), x, px.ops.sign(x)) if lowering.is_float(x) else px.ops.sign(x)


@dataclass(frozen=True)
class Floor(Elementwise):
    """The largest integer that is not above x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.floor(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (None,)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.floor(x)


@dataclass(frozen=True)
class Ceil(Elementwise):
    """The smallest integer that is not below x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.ceil(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (None,)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.ceil(x)


@dataclass(frozen=True)
class Round(Elementwise):
    """The nearest integer, the even one of two equally near."""

    def eval(self, x: np.ndarray) -> Any:
        return np.rint(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (None,)

    def lower(self, px: Any, x: Any) -> Any:  # of |x|, whose distance from the integer below is exact
        ops, one, half = px.ops, lowering.scalar(px, 1, x), lowering.scalar(px, 0.5, x)
        a = ops.abs(x)
        down = ops.floor(a)
        rest = ops.sub(a, down)
        odd = ops.equal(ops.fmod(down, lowering.scalar(px, 2, x)), one)
        up = ops.logical_or(ops.greater(rest, half), ops.logical_and(ops.equal(rest, half), odd))
        y = ops.where(up, ops.add(down, one), down)
        y = ops.where(lowering.negative(px, x), ops.negate(y), y)
        return ops.where(ops.equal(x, lowering.scalar(px, 0, x)), x, y)


# ---------------------------------------------------------------------------- exponentials
@dataclass(frozen=True)
class Exp(Elementwise):
    """e to the x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.exp(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: y,)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.exp(x)


@dataclass(frozen=True)
class Expm1(Elementwise):
    """e to the x, minus 1, exact for small x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.expm1(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: affine(y, 1.0, 1.0),)

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.in_float32(px, lambda t: self.lower_float32(px, t), x)

    @staticmethod
    def lower_float32(px: Any, x: Any) -> Any:
        """(u - 1) x / log(u), u = exp(x): the rounding of u cancels (Kahan; Higham, Accuracy and Stability 1.14)."""
        ops, one = px.ops, px.constant(1.0, px.float32)
        u = ops.exp(x)
        less_one = ops.sub(u, one)
        y = ops.mul(less_one, ops.div(x, ops.log(u)))  # (u - 1) x would overflow before the result does
        y = ops.where(ops.equal(less_one, px.constant(-1.0, px.float32)), less_one, y)
        return ops.where(ops.equal(u, one), x, ops.where(ops.isinf(u), u, y))


@dataclass(frozen=True)
class Log(Elementwise):
    """The natural logarithm; -inf at 0, NaN below."""

    def eval(self, x: np.ndarray) -> Any:
        return np.log(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: reciprocal(x),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.log(x)


@dataclass(frozen=True)
class Log1p(Elementwise):
    """log(1 + x), exact for small x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.log1p(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: reciprocal(affine(x, 1.0, 1.0)),)

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.in_float32(px, lambda t: self.lower_float32(px, t), x)

    @staticmethod
    def lower_float32(px: Any, x: Any) -> Any:
        """log(u) x / (u - 1) with u = 1 + x: the rounding of u cancels (Kahan; Higham, problem 1.5)."""
        ops, one = px.ops, px.constant(1.0, px.float32)
        u = ops.add(x, one)
        y = ops.mul(ops.log(u), ops.div(x, ops.sub(u, one)))
        return ops.where(ops.equal(u, one), x, ops.where(ops.equal(u, x), ops.log(u), y))


@dataclass(frozen=True)
class Log2(Elementwise):
    """The logarithm to the base 2, exact for powers of 2 but where it is lowered: then it is within rounding."""

    def eval(self, x: np.ndarray) -> Any:
        return np.log2(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(reciprocal(x), literal(1 / math.log(2), y.aval)),)

    def lower(self, px: Any, x: Any) -> Any:
        scale_by = px.constant(1 / math.log(2), px.float32)
        return lowering.in_float32(px, lambda t: px.ops.mul(px.ops.log(t), scale_by), x)


@dataclass(frozen=True)
class Log10(Elementwise):
    """The logarithm to the base 10, exact for powers of 10 but where it is lowered: then it is within rounding."""

    def eval(self, x: np.ndarray) -> Any:
        # By way of float64, as the float32 kernels of some machines make 3.0000002 of 1000.
        return np.log10(x.astype(np.float64)).astype(x.dtype)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(reciprocal(x), literal(1 / math.log(10), y.aval)),)

    def lower(self, px: Any, x: Any) -> Any:
        scale_by = px.constant(1 / math.log(10), px.float32)
        return lowering.in_float32(px, lambda t: px.ops.mul(px.ops.log(t), scale_by), x)


@dataclass(frozen=True)
class Sqrt(Elementwise):
    """The square root; NaN below 0."""

    def eval(self, x: np.ndarray) -> Any:
        return np.sqrt(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(reciprocal(y), literal(0.5, y.aval)),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.sqrt(x)


@dataclass(frozen=True)
class Rsqrt(Elementwise):
    """1 / sqrt(x); inf at 0, NaN below."""

    def eval(self, x: np.ndarray) -> Any:
        return wide(lambda t: np.divide(np.float32(1), np.sqrt(t)), x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(mul(y, reciprocal(x)), literal(-0.5, y.aval)),)

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.in_float32(px, lambda t: px.ops.div(px.constant(1.0, px.float32), px.ops.sqrt(t)), x)


# ---------------------------------------------------------------------------- trigonometric and the like
@dataclass(frozen=True)
class Sin(Elementwise):
    """The sine of x in radians."""

    def eval(self, x: np.ndarray) -> Any:
        return np.sin(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: cos(x),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.sin(x)


@dataclass(frozen=True)
class Cos(Elementwise):
    """The cosine of x in radians."""

    def eval(self, x: np.ndarray) -> Any:
        return np.cos(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: neg(sin(x)),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.cos(x)


@dataclass(frozen=True)
class Tanh(Elementwise):
    """The hyperbolic tangent."""

    def eval(self, x: np.ndarray) -> Any:
        return np.tanh(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: sub(literal(1.0, y.aval), mul(y, y)),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.tanh(x)


_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Erf(Elementwise):
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.asarray(_erf(x.astype(np.float64))).astype(x.dtype)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(exp(neg(mul(x, x))), literal(2 / math.sqrt(math.pi), aval_of(x))),)

    # erf(x) = x P(x^2) / Q(x^2) on [-4, 4], beyond which float32 rounds to 1: the minimax fit that Eigen uses.
    P: ClassVar[Tuple[float, ...]] = (
        -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
        -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
    Q: ClassVar[Tuple[float, ...]] = (
        -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
        -1.42647390514189e-02)

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.in_float32(px, lambda t: self.lower_float32(px, t), x)

    def lower_float32(self, px: Any, x: Any) -> Any:
        """The rational fit, by Horner's rule; NaN passes through the clamp."""
        ops = px.ops
        four, minus_four = px.constant(4.0, px.float32), px.constant(-4.0, px.float32)
        t = ops.where(ops.greater(x, four), four, ops.where(ops.greater(minus_four, x), minus_four, x))
        z = ops.mul(t, t)

        def horner(coefficients: Tuple[float, ...]) -> Any:
            total = px.constant(coefficients[0], px.float32)
            for c in coefficients[1:]:
                total = ops.add(ops.mul(total, z), px.constant(c, px.float32))
            return total
        return ops.div(ops.mul(t, horner(self.P)), horner(self.Q))


# ---------------------------------------------------------------------------- activations with a PopXL op of their own
@dataclass(frozen=True)
class Relu(Elementwise):
    """max(x, 0); its derivative at 0 is 0."""

    def eval(self, x: np.ndarray) -> Any:
        return np.maximum(x, x.dtype.type(0))

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: sign(y),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.relu(x)


@dataclass(frozen=True)
class Gelu(Elementwise):
    """x times the normal distribution function, in the tanh form: what popxl.ops.gelu computes.

    0.5 x (1 + tanh(C0 x + C1 x^3)); Hendrycks and Gimpel, arXiv 1606.08415, section 2.
    """

    C0: ClassVar[float] = math.sqrt(2 / math.pi)
    C1: ClassVar[float] = 0.044715 * C0

    def eval(self, x: np.ndarray) -> Any:
        def f(t: Any) -> Any:
            one, half, c0, c1 = (t.dtype.type(c) for c in (1, 0.5, self.C0, self.C1))
            return half * t * (one + np.tanh(t * (c0 + c1 * t * t)))
        return wide(f, x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        def slope() -> Any:
            z = mul(x, x)
            t = tanh(mul(x, affine(z, self.C1, self.C0)))
            bell = mul(affine(mul(t, t), -0.5, 0.5), affine(z, 3 * self.C1, self.C0))
            return add(affine(t, 0.5, 0.5), mul(x, bell))
        return (slope,)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.gelu(x)


@dataclass(frozen=True)
class Sigmoid(Elementwise):
    """1 / (1 + exp(-x)); its derivative keeps its digits on both sides."""

    def eval(self, x: np.ndarray) -> Any:
        return wide(lambda t: np.float32(1) / (np.float32(1) + np.exp(-t)), x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(y, sigmoid(neg(x))),)

    def lower(self, px: Any, x: Any) -> Any:
        one = px.constant(1.0, px.float32)
        return lowering.in_float32(
            px, lambda t: px.ops.div(one, px.ops.add(one, px.ops.exp(px.ops.negate(t)))), x)


# ---------------------------------------------------------------------------- logic and dtypes
@dataclass(frozen=True)
class Not(Elementwise):
    """Logical not of bools."""

    takes: ClassVar[str] = "b"
    result: ClassVar[np.dtype] = bool_

    def eval(self, x: np.ndarray) -> Any:
        return np.logical_not(x)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.logical_not(x)


def as_float8(x: np.ndarray, dtype: np.dtype) -> Any:
    """Numbers as 8-bit floats, rounded once. ml_dtypes converts float32 only."""
    y = x.astype(np.float32)
    if x.dtype == float64:  # what is cut off on the way is marked in the last bit, so that no tie comes about
        y = np.where(np.abs(y) > np.abs(x), np.nextafter(y, np.float32(0)), y)
        y = (y.view(np.uint32) | (y != x)).view(np.float32)
    return y.astype(dtype)


@dataclass(frozen=True)
class Convert(Primitive):
    """The values in another dtype, or with another weak flag.

    Floats are cut off toward zero on their way to integers, anything nonzero is True, a float8 overflow is NaN.
    """

    dtype: np.dtype
    weak: bool = False

    def abstract(self, x: Aval) -> Aval:
        return Aval._make(x.shape, checked_dtype(self.dtype), self.weak)

    def eval(self, x: np.ndarray) -> Any:
        if self.dtype in FLOAT8:
            return as_float8(x, self.dtype)
        if x.dtype in FLOAT8:  # ml_dtypes converts to and from float32 only
            x = x.astype(np.float32)
        return x.astype(self.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        t = tangents[0]
        return y, Zero(y.aval) if type(t) is Zero or not y.aval.is_float else bind(self, (t,))

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (convert(ct, x.aval.dtype, x.aval.weak),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return bind(self, args), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        to = lowering.px_dtype(px, self.dtype)
        if x.dtype == to:
            return x
        none = px.constant(0, px.int32) if self.dtype in FLOAT8 or str(x.dtype.name).startswith("float8") else None
        if none is None:
            return px.ops.cast(x, to)
        if str(x.dtype.name).startswith("float8"):
            y = px.ops.pow2scale_cast_from_fp8(x, none, px.float32)
            return y if to == px.float32 else Convert(self.dtype).lower(px, y)
        y = x if lowering.is_float(x) else px.ops.cast(x, px.float32)
        return px.ops.pow2scale_cast_to_fp8(y, none, to)


@dataclass(frozen=True)
class StopGradient(Elementwise):
    """The value, without its derivative."""

    takes: ClassVar[str] = "biuf8"

    def eval(self, x: np.ndarray) -> Any:
        return x.copy()

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (None,)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.detach(x)


# Div stands here and not in binary.py because the slopes above are written with it.
@dataclass(frozen=True)
class Div(Elementwise):
    """x / y of floats."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.divide(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return (lambda: reciprocal(y)), (lambda: neg(div(z, y)))

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        return unbroadcast(scale(lambda: reciprocal(y), ct), x.aval), None

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.div(x, y)


_ABS, _SIGN, _FLOOR, _CEIL, _ROUND, _NOT, _STOP = Abs(), Sign(), Floor(), Ceil(), Round(), Not(), StopGradient()
_EXP, _EXPM1, _LOG, _LOG1P, _SQRT, _RSQRT = Exp(), Expm1(), Log(), Log1p(), Sqrt(), Rsqrt()
_LOG2, _LOG10, _SIGMOID = Log2(), Log10(), Sigmoid()
_SIN, _COS, _TANH, _ERF, _RELU, _GELU, _DIV = Sin(), Cos(), Tanh(), Erf(), Relu(), Gelu(), Div()


def abs_(x: Any) -> Any: return bind(_ABS, (x,))
def sign(x: Any) -> Any: return bind(_SIGN, (x,))
def floor(x: Any) -> Any: return bind(_FLOOR, (x,))
def ceil(x: Any) -> Any: return bind(_CEIL, (x,))
def round_(x: Any) -> Any: return bind(_ROUND, (x,))
def exp(x: Any) -> Any: return bind(_EXP, (x,))
def expm1(x: Any) -> Any: return bind(_EXPM1, (x,))
def log(x: Any) -> Any: return bind(_LOG, (x,))
def log1p(x: Any) -> Any: return bind(_LOG1P, (x,))
def log2(x: Any) -> Any: return bind(_LOG2, (x,))
def log10(x: Any) -> Any: return bind(_LOG10, (x,))
def sqrt(x: Any) -> Any: return bind(_SQRT, (x,))
def rsqrt(x: Any) -> Any: return bind(_RSQRT, (x,))
def sin(x: Any) -> Any: return bind(_SIN, (x,))
def cos(x: Any) -> Any: return bind(_COS, (x,))
def tanh(x: Any) -> Any: return bind(_TANH, (x,))
def erf(x: Any) -> Any: return bind(_ERF, (x,))
def relu(x: Any) -> Any: return bind(_RELU, (x,))
def gelu(x: Any) -> Any: return bind(_GELU, (x,))
def sigmoid(x: Any) -> Any: return bind(_SIGMOID, (x,))
def div(x: Any, y: Any) -> Any: return bind(_DIV, (x, y))
def not_(x: Any) -> Any: return bind(_NOT, (x,))
def stop_gradient(x: Any) -> Any: return bind(_STOP, (x,))


def convert(x: Any, dtype: np.dtype, weak: bool = False) -> Any:
    """Convert, left out where it would change nothing."""
    aval = aval_of(x)
    return x if aval.dtype == dtype and aval.weak == weak else bind(interned(Convert, dtype, weak), (x,))


def reciprocal(x: Any) -> Any:
    """1 / x; at once for a literal."""
    if type(x) is Literal:
        with np.errstate(all="ignore"):
            return Literal(Div().eval(np.ones_like(x.value), x.value), x.aval)
    return div(literal(1.0, aval_of(x)), x)
