"""Elementwise functions of two operands, comparisons, and the choice between two values."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Sequence, Tuple

import numpy as np

from ..aval import Aval, accumulator_dtype, bool_, float64
from ..errors import DtypeError
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .bits import width
from .elementwise import Log1p, log, sigmoid
from .kinds import Elementwise, Slope, batch_broadcasting, broadcast_operands, mul, neg, safe_mul, scale, sub
from .shaping import Dims, broadcast_to, interned, unbroadcast


# ---------------------------------------------------------------------------- powers
@dataclass(frozen=True)
class Pow(Elementwise):
    """x to the y. By y the derivative at x = 0 is 0; by x it is 0 where y = 0.

    Integers wrap, and are 0 where y is negative.
    """

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        if x.dtype.kind == "f":
            return np.power(x, y)
        return np.where(y < 0, x.dtype.type(0), np.power(x, np.maximum(y, 0)))

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        def by_x() -> Any:  # no choice by y, whose own derivative that would cut off
            return scale(lambda: y, pow_(x, sub(y, literal(1.0, aval_of(y)))))

        def by_y() -> Any:
            base = select(eq(x, literal(0.0, aval_of(x))), literal(1.0, aval_of(x)), x)
            return safe_mul(log(base), z)
        return by_x, by_y

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.pow(x, y) if lowering.is_float(x) else self.products(px, x, y)

    @staticmethod
    def products(px: Any, x: Any, y: Any) -> Any:
        """The power of integers as products of squares, one for each bit of y."""
        ops, one, two, rest = px.ops, lowering.scalar(px, 1, x), lowering.scalar(px, 2, x), y
        result, square = one, x
        for bit in reversed(range(width(y) - y.dtype.is_signed)):
            half = ops.div(rest, two)
            even = ops.equal(rest, ops.mul(half, two))
            result = ops.mul(result, ops.where(even, one, square))
            if bit:
                square, rest = ops.mul(square, square), half
        return ops.where(lowering.negative(px, y), lowering.scalar(px, 0, x), result) if y.dtype.is_signed else result


@dataclass(frozen=True)
class IntegerPow(Elementwise):
    """x to a whole number that is known while tracing; of integers only to a non-negative one."""

    exponent: int
    takes: ClassVar[str] = "iuf"

    def abstract(self, *avals: Aval) -> Aval:
        x, = avals
        if self.exponent < 0 and not x.is_float:
            raise DtypeError(f"integer_pow: {x} to the power {self.exponent} is not an integer: convert to float first")
        return super().abstract(x)

    def eval(self, x: np.ndarray) -> Any:
        if x.dtype.kind == "f":
            wide = accumulator_dtype(x.dtype) if abs(self.exponent) < 2 ** 24 else float64
            return np.power(x.astype(wide), wide.type(self.exponent)).astype(x.dtype)
        return np.power(x, x.dtype.type(self.exponent)) if self.exponent <= np.iinfo(x.dtype).max else \
            np.power(x.astype(np.int64), self.exponent).astype(x.dtype)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        n = self.exponent
        return (None if n == 0 else 1 if n == 1 else
                lambda: mul(integer_pow(x, n - 1), literal(float(n), y.aval)),)

    def lower(self, px: Any, x: Any) -> Any:
        if 0 <= self.exponent <= 2:  # one rounding in float16 too
            return self.products(px, x)
        return lowering.in_float32(px, lambda t: self.products(px, t), x)

    def products(self, px: Any, x: Any) -> Any:
        """The power as products of squares."""
        n = abs(self.exponent)
        if n == 0:
            return lowering.broadcast(px, lowering.scalar(px, 1, x), tuple(x.shape))
        result, square = None, x
        while n:
            if n & 1:
                result = square if result is None else px.ops.mul(result, square)
            n >>= 1
            if n:
                square = px.ops.mul(square, square)
        return px.ops.div(lowering.scalar(px, 1, x), result) if self.exponent < 0 else result


@dataclass(frozen=True)
class LogAddExp(Elementwise):
    """log(exp(x) + exp(y)) without overflow."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.logaddexp(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        def share(a: Any, b: Any) -> Any:
            d = sub(a, b)  # NaN for equal infinities, which share alike
            return sigmoid(select(ne(d, d), literal(0.0, aval_of(d)), d))
        return (lambda: share(x, y)), (lambda: share(y, x))

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return lowering.in_float32(px, lambda a, b: self.lower_float32(px, a, b), x, y)

    @staticmethod
    def lower_float32(px: Any, x: Any, y: Any) -> Any:
        """The larger, and what the smaller adds to it."""
        ops = px.ops
        d = ops.sub(x, y)
        more = Log1p.lower_float32(px, ops.exp(ops.negate(ops.abs(d))))
        z = ops.add(ops.where(ops.greater(x, y), x, y), more)
        return ops.where(ops.isnan(d), ops.add(x, y), z)


# ---------------------------------------------------------------------------- division with a remainder
def nonzero_divisor(px: Any, y: Any) -> Tuple[Any, Any]:
    """Where an integer divisor is 0, and the divisor with 1 there: NumPy gives 0 for the quotient and the remainder."""
    zero = px.ops.equal(y, lowering.scalar(px, 0, y))
    return zero, px.ops.where(zero, lowering.scalar(px, 1, y), y)


def opposite_signs(px: Any, r: Any, y: Any) -> Any:
    """Where a remainder is not zero and has another sign than the divisor."""
    ops = px.ops
    differ = ops.logical_not(ops.equal(lowering.negative(px, r), lowering.negative(px, y)))
    return ops.logical_and(ops.logical_not(ops.equal(r, lowering.scalar(px, 0, r))), differ)


@dataclass(frozen=True)
class FloorDivide(Elementwise):
    """The quotient rounded down, as NumPy does it; integers divided by 0 give 0."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.floor_divide(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return None, None

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        ops = px.ops
        if lowering.is_float(x):
            return lowering.in_float32(px, lambda a, b: self.lower_float32(px, a, b), x, y)
        zero, divisor = nonzero_divisor(px, y)
        q = ops.div(x, divisor)  # truncates
        if x.dtype.is_signed:
            down = opposite_signs(px, ops.sub(x, ops.mul(q, divisor)), divisor)
            q = ops.where(down, ops.sub(q, lowering.scalar(px, 1, q)), q)
        return ops.where(zero, lowering.scalar(px, 0, q), q)

    @staticmethod
    def lower_float32(px: Any, x: Any, y: Any) -> Any:
        """NumPy's way: from the exact remainder, so that the quotient cannot round up across an integer."""
        ops = px.ops
        zero, one, half = (px.constant(c, px.float32) for c in (0.0, 1.0, 0.5))
        r = ops.fmod(x, y)
        q = ops.div(ops.sub(x, r), y)
        q = ops.where(opposite_signs(px, r, y), ops.sub(q, one), q)
        down = ops.floor(q)
        whole = ops.where(ops.greater(ops.sub(q, down), half), ops.add(down, one), down)
        exact = ops.div(x, y)
        whole = ops.where(ops.equal(q, zero), ops.mul(zero, exact), whole)
        return ops.where(ops.equal(y, zero), exact, whole)


@dataclass(frozen=True)
class Remainder(Elementwise):
    """x - floor(x / y) y, with the divisor's sign, as NumPy does it; integers divided by 0 give 0."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.remainder(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return 1, lambda: neg(floor_divide(x, y))

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        ops = px.ops
        if lowering.is_float(x):
            r = ops.fmod(x, y)
            r = ops.where(opposite_signs(px, r, y), ops.add(r, y), r)
            zero = lowering.scalar(px, 0, r)
            signed_zero = ops.where(lowering.negative(px, y), ops.negate(zero), zero)
            return ops.where(ops.equal(r, zero), signed_zero, r)
        zero_divisor, divisor = nonzero_divisor(px, y)
        r = ops.sub(x, ops.mul(ops.div(x, divisor), divisor))
        if x.dtype.is_signed:
            r = ops.where(opposite_signs(px, r, divisor), ops.add(r, divisor), r)
        return ops.where(zero_divisor, lowering.scalar(px, 0, r), r)


# ---------------------------------------------------------------------------- the larger and the smaller
def tie_slope(wins: Callable[[Any, Any], Any], a: Any, b: Any, z: Any) -> Callable[[], Any]:
    """1 where `a` wins over `b`, 1/2 where they are equal, 0 elsewhere."""
    def slope() -> Any:
        one, half, zero = (literal(c, z.aval) for c in (1.0, 0.5, 0.0))
        return select(wins(a, b), one, select(eq(a, b), half, zero))
    return slope


@dataclass(frozen=True)
class Maximum(Elementwise):
    """The larger of two values; NaN if one is. The derivative of a tie is split in halves."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.maximum(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return tie_slope(gt, x, y, z), tie_slope(gt, y, x, z)

    def lower(self, px: Any, x: Any, y: Any) -> Any:  # ops.maximum does not broadcast, and says nothing of NaN
        takes_x = px.ops.greater(x, y)
        if lowering.is_float(x):
            takes_x = px.ops.logical_or(px.ops.isnan(x), takes_x)
        return px.ops.where(takes_x, x, y)


@dataclass(frozen=True)
class Minimum(Elementwise):
    """The smaller of two values; NaN if one is. The derivative of a tie is split in halves."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.minimum(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return tie_slope(lt, x, y, z), tie_slope(lt, y, x, z)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        takes_x = px.ops.greater(y, x)
        if lowering.is_float(x):
            takes_x = px.ops.logical_or(px.ops.isnan(x), takes_x)
        return px.ops.where(takes_x, x, y)


# ---------------------------------------------------------------------------- comparisons
class Comparison(Elementwise):
    """A bool for each pair of elements; False for NaN, but for Ne."""

    takes: ClassVar[str] = "biuf"
    result: ClassVar[np.dtype] = bool_

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return self.compare(px.ops, lowering.ordered(px, x), lowering.ordered(px, y))

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        """The comparison of tensors that PopXL can order."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True)
class Eq(Comparison):
    """x == y."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.equal(x, y)

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        return ops.equal(x, y)


@dataclass(frozen=True)
class Ne(Comparison):
    """x != y."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.not_equal(x, y)

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        return ops.logical_not(ops.equal(x, y))


@dataclass(frozen=True)
class Lt(Comparison):
    """x < y."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.less(x, y)

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        return ops.greater(y, x)


@dataclass(frozen=True)
class Le(Comparison):
    """x <= y."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.less_equal(x, y)

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        return ops.logical_or(ops.greater(y, x), ops.equal(x, y))


@dataclass(frozen=True)
class Gt(Comparison):
    """x > y."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.greater(x, y)

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        return ops.greater(x, y)


@dataclass(frozen=True)
class Ge(Comparison):
    """x >= y."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.greater_equal(x, y)

    def compare(self, ops: Any, x: Any, y: Any) -> Any:
        return ops.logical_or(ops.greater(x, y), ops.equal(x, y))


@dataclass(frozen=True)
class And(Elementwise):
    """Logical and of bools."""

    takes: ClassVar[str] = "b"
    result: ClassVar[np.dtype] = bool_

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.logical_and(x, y)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.logical_and(x, y)


@dataclass(frozen=True)
class Or(Elementwise):
    """Logical or of bools."""

    takes: ClassVar[str] = "b"
    result: ClassVar[np.dtype] = bool_

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.logical_or(x, y)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.logical_or(x, y)


@dataclass(frozen=True)
class Select(Primitive):
    """x where the condition holds, y elsewhere; the derivative of the branch not taken is exactly 0."""

    def abstract(self, c: Aval, x: Aval, y: Aval) -> Aval:
        if c.dtype != bool_:
            raise DtypeError(f"select: the condition is bool, got {c}")
        if x.dtype != y.dtype:
            raise DtypeError(f"select: both values have one dtype, got {x} and {y}: convert one with astype")
        return Aval._make(broadcast_operands("select", (c, x, y)), x.dtype, x.weak and y.weak)

    def eval(self, c: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
        return np.where(c, x, y)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        c, (_, dx, dy) = primals[0], tangents
        z = bind(self, primals)
        if type(dx) is Zero and type(dy) is Zero:
            return z, Zero(z.aval)
        zero = literal(0.0, z.aval)
        t = select(c, zero if type(dx) is Zero else dx, zero if type(dy) is Zero else dy)
        return z, broadcast_to(t, z.aval.shape)

    def transpose(self, ct: Any, c: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        zero = literal(0.0, aval_of(ct))
        return (None, unbroadcast(select(c, ct, zero), x.aval) if type(x) is Linear else None,
                unbroadcast(select(c, zero, ct), y.aval) if type(y) is Linear else None)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return batch_broadcasting(self, args, dims)

    def lower(self, px: Any, c: Any, x: Any, y: Any) -> Any:
        return px.ops.where(c, x, y)


_POW, _FLOOR_DIVIDE, _REMAINDER, _MAXIMUM, _MINIMUM = Pow(), FloorDivide(), Remainder(), Maximum(), Minimum()
_LOG_ADD_EXP = LogAddExp()
_EQ, _NE, _LT, _LE, _GT, _GE, _AND, _OR, _SELECT = Eq(), Ne(), Lt(), Le(), Gt(), Ge(), And(), Or(), Select()


def pow_(x: Any, y: Any) -> Any: return bind(_POW, (x, y))
def integer_pow(x: Any, n: int) -> Any: return bind(interned(IntegerPow, n), (x,))
def log_add_exp(x: Any, y: Any) -> Any: return bind(_LOG_ADD_EXP, (x, y))
def floor_divide(x: Any, y: Any) -> Any: return bind(_FLOOR_DIVIDE, (x, y))
def remainder(x: Any, y: Any) -> Any: return bind(_REMAINDER, (x, y))
def maximum(x: Any, y: Any) -> Any: return bind(_MAXIMUM, (x, y))
def minimum(x: Any, y: Any) -> Any: return bind(_MINIMUM, (x, y))
def eq(x: Any, y: Any) -> Any: return bind(_EQ, (x, y))
def ne(x: Any, y: Any) -> Any: return bind(_NE, (x, y))
def lt(x: Any, y: Any) -> Any: return bind(_LT, (x, y))
def le(x: Any, y: Any) -> Any: return bind(_LE, (x, y))
def gt(x: Any, y: Any) -> Any: return bind(_GT, (x, y))
def ge(x: Any, y: Any) -> Any: return bind(_GE, (x, y))
def and_(x: Any, y: Any) -> Any: return bind(_AND, (x, y))
def or_(x: Any, y: Any) -> Any: return bind(_OR, (x, y))
def select(c: Any, x: Any, y: Any) -> Any: return bind(_SELECT, (c, x, y))
