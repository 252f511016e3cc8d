"""Trigonometric and hyperbolic functions and their inverses, and the length of a hypotenuse.

PopXL has sin, cos, tanh, exp, log and sqrt; the rest is made of them, so that small arguments keep their digits and
large ones do not overflow before the result does.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Sequence, Tuple

import numpy as np

from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import eq, select
from .elementwise import Expm1, Log1p, affine, div, reciprocal, rsqrt
from .kinds import Elementwise, Slope, mul, neg


# ---------------------------------------------------------------------------- what the rules share
def constant(px: Any, value: float) -> Any:
    """A float32 scalar."""
    return px.constant(value, px.float32)


def sign_bit(px: Any, t: Any) -> Any:
    """Whether floats are negative, -0 included; False for NaN, whose sign cannot be seen."""
    return px.ops.logical_or(lowering.negative(px, t), lowering.negative(px, px.ops.div(lowering.scalar(px, 1, t), t)))


def odd(px: Any, f: Callable[[Any], Any], x: Any) -> Any:
    """f(|x|) with the sign of x, which +0 and -0 keep too."""
    y = f(px.ops.abs(x))
    y = px.ops.where(lowering.negative(px, x), px.ops.negate(y), y)
    return px.ops.where(px.ops.equal(x, lowering.scalar(px, 0, x)), x, y)


def near_one(x: Any) -> Any:
    """1 - x^2 as (1 - x) (1 + x), exact near 1 and -1."""
    return mul(affine(x, -1.0, 1.0), affine(x, 1.0, 1.0))


class InFloat32(Elementwise):
    """Lowered in float32; float16 is rounded once."""

    def lower(self, px: Any, *tensors: Any) -> Any:
        return lowering.in_float32(px, lambda *ts: self.lower_float32(px, *ts), *tensors)

    def lower_float32(self, px: Any, *tensors: Any) -> Any:
        """The lowering for float32."""
        raise NotImplementedError(self.name)


# ---------------------------------------------------------------------------- a right-angled triangle
@dataclass(frozen=True)
class Hypot(InFloat32):
    """sqrt(x^2 + y^2) without overflow; inf if either is infinite. The derivative at (0, 0) is 0."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.hypot(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return (lambda: div(x, filled(z))), (lambda: div(y, filled(z)))

    def lower_float32(self, px: Any, x: Any, y: Any) -> Any:
        ops, one = px.ops, constant(px, 1.0)
        low, high = ordered(px, ops.abs(x), ops.abs(y))
        q = ratio(px, low, high)
        z = ops.mul(high, ops.sqrt(ops.add(ops.mul(q, q), one)))
        infinite = ops.logical_or(ops.isinf(x), ops.isinf(y))
        return ops.where(infinite, constant(px, math.inf), z)


def ordered(px: Any, a: Any, b: Any) -> Tuple[Any, Any]:
    """The smaller and the larger of two tensors; the smaller is NaN if one is."""
    swap = px.ops.greater(a, b)
    low, high = px.ops.where(swap, b, a), px.ops.where(swap, a, b)
    return px.ops.where(px.ops.isnan(high), high, low), high


def ratio(px: Any, low: Any, high: Any) -> Any:
    """low / high for 0 <= low <= high: 0 for 0 / 0, 1 for inf / inf."""
    ops, zero = px.ops, constant(px, 0.0)
    equal = ops.where(ops.equal(high, zero), zero, constant(px, 1.0))
    return ops.where(ops.equal(low, high), equal, ops.div(low, high))


def filled(z: Any) -> Any:
    """z with 1 in place of 0, to divide by."""
    return select(eq(z, literal(0.0, aval_of(z))), literal(1.0, aval_of(z)), z)


# ---------------------------------------------------------------------------- angles
@dataclass(frozen=True)
class Tan(InFloat32):
    """The tangent of x in radians."""

    def eval(self, x: np.ndarray) -> Any:
        return np.tan(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: affine(mul(y, y), 1.0, 1.0),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        return px.ops.div(px.ops.sin(x), px.ops.cos(x))


@dataclass(frozen=True)
class Atan(InFloat32):
    """The angle from -pi/2 to pi/2 whose tangent is x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.arctan(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        def slope() -> Any:  # 1 / (1 + x^2), whose square would overflow
            z = reciprocal(hypot(x, literal(1.0, aval_of(x))))
            return mul(z, z)
        return (slope,)

    #: atan(z) = z + z^3 P(z^2) for |z| below tan(pi/8): the minimax fit of Cephes' atanf.
    P: ClassVar[Tuple[float, ...]] = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)

    def lower_float32(self, px: Any, x: Any) -> Any:
        return odd(px, lambda a: self.positive(px, a), x)

    @classmethod
    def positive(cls, px: Any, a: Any) -> Any:
        """The angle for a >= 0: above tan(pi/8) and tan(3 pi/8) it is taken from pi/4 and pi/2."""
        ops, one = px.ops, constant(px, 1.0)
        middle, high = (ops.greater(a, constant(px, math.tan(k * math.pi / 8))) for k in (1, 3))
        z = ops.where(middle, ops.div(ops.sub(a, one), ops.add(a, one)), a)
        z = ops.where(high, ops.div(constant(px, -1.0), a), z)
        start = ops.where(middle, constant(px, math.pi / 4), constant(px, 0.0))
        start = ops.where(high, constant(px, math.pi / 2), start)
        square = ops.mul(z, z)
        total = constant(px, cls.P[0])
        for c in cls.P[1:]:
            total = ops.add(ops.mul(total, square), constant(px, c))
        return ops.add(start, ops.add(z, ops.mul(ops.mul(total, square), z)))


@dataclass(frozen=True)
class Atan2(InFloat32):
    """The angle of the point (x, y), y first: from -pi to pi, by the signs of both. The derivative at (0, 0) is 0."""

    def eval(self, y: np.ndarray, x: np.ndarray) -> Any:
        return np.arctan2(y, x)

    def slopes(self, z: Any, y: Any, x: Any) -> Sequence[Slope]:
        def over_square(v: Any) -> Any:  # v / (x^2 + y^2), whose squares would overflow
            h = filled(hypot(x, y))
            return div(div(v, h), h)
        return (lambda: over_square(x)), (lambda: neg(over_square(y)))

    def lower_float32(self, px: Any, y: Any, x: Any) -> Any:
        ops = px.ops
        ay, ax = ops.abs(y), ops.abs(x)
        angle = Atan.positive(px, ratio(px, *ordered(px, ax, ay)))
        angle = ops.where(ops.greater(ay, ax), ops.sub(constant(px, math.pi / 2), angle), angle)
        angle = ops.where(sign_bit(px, x), ops.sub(constant(px, math.pi), angle), angle)
        return ops.where(sign_bit(px, y), ops.negate(angle), angle)


@dataclass(frozen=True)
class Asin(InFloat32):
    """The angle from -pi/2 to pi/2 whose sine is x; NaN beyond 1."""

    def eval(self, x: np.ndarray) -> Any:
        return np.arcsin(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: rsqrt(near_one(x)),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops, one, two = px.ops, constant(px, 1.0), constant(px, 2.0)

        def positive(a: Any) -> Any:  # the tangent of half the angle
            root = ops.sqrt(ops.mul(ops.sub(one, a), ops.add(one, a)))
            return ops.mul(two, Atan.positive(px, ops.div(a, ops.add(one, root))))
        return odd(px, positive, x)


@dataclass(frozen=True)
class Acos(InFloat32):
    """The angle from 0 to pi whose cosine is x; NaN beyond 1."""

    def eval(self, x: np.ndarray) -> Any:
        return np.arccos(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: neg(rsqrt(near_one(x))),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops, one = px.ops, constant(px, 1.0)
        half = ops.sqrt(ops.div(ops.sub(one, x), ops.add(one, x)))  # the tangent of half the angle
        return ops.mul(constant(px, 2.0), Atan.positive(px, half))


# ---------------------------------------------------------------------------- hyperbolic
#: exp overflows above it, a little before sinh and cosh do.
LARGEST_EXP = 88.0


def half_exp(px: Any, a: Any) -> Any:
    """exp(a) / 2, also where exp(a) overflows."""
    t = px.ops.exp(px.ops.mul(a, constant(px, 0.5)))
    return px.ops.mul(px.ops.mul(t, constant(px, 0.5)), t)


@dataclass(frozen=True)
class Sinh(InFloat32):
    """The hyperbolic sine."""

    def eval(self, x: np.ndarray) -> Any:
        return np.sinh(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: cosh(x),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops = px.ops

        def positive(a: Any) -> Any:
            e = Expm1.lower_float32(px, a)
            y = ops.mul(constant(px, 0.5), ops.add(e, ops.div(e, ops.add(e, constant(px, 1.0)))))
            return ops.where(ops.greater(a, constant(px, LARGEST_EXP)), half_exp(px, a), y)
        return odd(px, positive, x)


@dataclass(frozen=True)
class Cosh(InFloat32):
    """The hyperbolic cosine."""

    def eval(self, x: np.ndarray) -> Any:
        return np.cosh(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: sinh(x),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops, a = px.ops, px.ops.abs(x)
        e = ops.exp(a)
        y = ops.mul(constant(px, 0.5), ops.add(e, ops.div(constant(px, 1.0), e)))
        return ops.where(ops.greater(a, constant(px, LARGEST_EXP)), half_exp(px, a), y)


#: Above it asinh and acosh are log(2 x) in float32.
LARGE = 1e4


def log_of_double(px: Any, a: Any) -> Any:
    """log(2 a), also where 2 a overflows."""
    return px.ops.add(px.ops.log(a), constant(px, math.log(2)))


@dataclass(frozen=True)
class Asinh(InFloat32):
    """The number whose hyperbolic sine is x."""

    def eval(self, x: np.ndarray) -> Any:
        return np.arcsinh(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: reciprocal(hypot(x, literal(1.0, aval_of(x)))),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops, one = px.ops, constant(px, 1.0)

        def positive(a: Any) -> Any:  # log(a + sqrt(a^2 + 1)), the 1 of it taken out
            square = ops.mul(a, a)
            more = ops.div(square, ops.add(one, ops.sqrt(ops.add(square, one))))
            y = Log1p.lower_float32(px, ops.add(a, more))
            return ops.where(ops.greater(a, constant(px, LARGE)), log_of_double(px, a), y)
        return odd(px, positive, x)


@dataclass(frozen=True)
class Acosh(InFloat32):
    """The number that is not negative and whose hyperbolic cosine is x; NaN below 1."""

    def eval(self, x: np.ndarray) -> Any:
        return np.arccosh(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: mul(rsqrt(affine(x, 1.0, -1.0)), rsqrt(affine(x, 1.0, 1.0))),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops = px.ops
        t = ops.sub(x, constant(px, 1.0))
        root = ops.mul(ops.sqrt(t), ops.sqrt(ops.add(t, constant(px, 2.0))))
        y = Log1p.lower_float32(px, ops.add(t, root))
        return ops.where(ops.greater(x, constant(px, LARGE)), log_of_double(px, x), y)


@dataclass(frozen=True)
class Atanh(InFloat32):
    """The number whose hyperbolic tangent is x: infinite at 1 and -1, NaN beyond."""

    def eval(self, x: np.ndarray) -> Any:
        return np.arctanh(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (lambda: reciprocal(near_one(x)),)

    def lower_float32(self, px: Any, x: Any) -> Any:
        ops, one, half = px.ops, constant(px, 1.0), constant(px, 0.5)

        def positive(a: Any) -> Any:
            return ops.mul(half, Log1p.lower_float32(px, ops.div(ops.add(a, a), ops.sub(one, a))))
        return odd(px, positive, x)


_HYPOT, _TAN, _ATAN, _ATAN2, _ASIN, _ACOS = Hypot(), Tan(), Atan(), Atan2(), Asin(), Acos()
_SINH, _COSH, _ASINH, _ACOSH, _ATANH = Sinh(), Cosh(), Asinh(), Acosh(), Atanh()


def hypot(x: Any, y: Any) -> Any: return bind(_HYPOT, (x, y))
def tan(x: Any) -> Any: return bind(_TAN, (x,))
def atan(x: Any) -> Any: return bind(_ATAN, (x,))
def atan2(y: Any, x: Any) -> Any: return bind(_ATAN2, (y, x))
def asin(x: Any) -> Any: return bind(_ASIN, (x,))
def acos(x: Any) -> Any: return bind(_ACOS, (x,))
def sinh(x: Any) -> Any: return bind(_SINH, (x,))
def cosh(x: Any) -> Any: return bind(_COSH, (x,))
def asinh(x: Any) -> Any: return bind(_ASINH, (x,))
def acosh(x: Any) -> Any: return bind(_ACOSH, (x,))
def atanh(x: Any) -> Any: return bind(_ATANH, (x,))
