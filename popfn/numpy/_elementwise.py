"""Elementwise functions: arithmetic, rounding, mathematical functions, comparison, logic, bits."""
from __future__ import annotations

import builtins
from typing import Any, Callable, Optional, Sequence

import numpy as np

from .._promotion import PYTHON, as_array, convert_to, floats, in_float32, known_integer, pair
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import FLOAT8, bool_, float32, int32
from ..trace.errors import DtypeError, RangeError, message, user_source
from ..trace.tracer import Tracer, aval_of, literal
from ._create import asarray, astype, full


def _unary_float(primitive: Callable[[Any], Any], doc: str) -> Callable[[Any], Array]:
    def f(x: Any, /) -> Array:
        if type(x) is Tracer and x.aval.is_float:
            return primitive(x)
        return primitive(floats(x)[0])
    f.__name__ = f.__qualname__ = primitive.__name__.rstrip("_")
    f.__doc__ = doc + " Integers are taken as float32."
    return f


def _binary(primitive: Callable[[Any, Any], Any], name: str, doc: str,
            promote: Callable[[Any, Any], Sequence[Any]] = pair, bools: Any = None) -> Callable[[Any, Any], Array]:
    """A function of two operands: promotion, then the primitive; `bools` is what NumPy does for bools instead."""
    def f(x1: Any, x2: Any, /) -> Array:
        if not (type(x1) is Tracer and type(x2) is Tracer and x1.aval.dtype is x2.aval.dtype and promote is pair):
            x1, x2 = promote(x1, x2)
        if bools is not None and x1.aval.dtype is bool_:
            return bools(x1, x2)
        return primitive(x1, x2)
    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


def _no_bools(name: str, way: str) -> Callable[[Any, Any], Any]:
    def refuse(x1: Any, x2: Any) -> Any:
        raise DtypeError(message(f"{name} of bools is not defined, as in NumPy", f"way out: {way}", at=user_source(3)))
    return refuse


# ---------------------------------------------------------------------------- arithmetic
add = _binary(prims.add, "add", "x1 + x2, elementwise; logical or for bools.", bools=prims.or_)
multiply = _binary(prims.mul, "multiply", "x1 * x2, elementwise; logical and for bools.", bools=prims.and_)
subtract = _binary(prims.sub, "subtract", "x1 - x2, elementwise.",
                   bools=_no_bools("subtract", "use logical_xor (^), or convert with astype"))
divide = _binary(prims.div, "divide", "x1 / x2, elementwise; float32 for integers.", floats)
maximum = _binary(prims.maximum, "maximum", "The larger of x1 and x2; NaN if one is.", bools=prims.or_)
minimum = _binary(prims.minimum, "minimum", "The smaller of x1 and x2; NaN if one is.", bools=prims.and_)
floor_divide = _binary(prims.floor_divide, "floor_divide", "x1 / x2 rounded down; integers divided by 0 give 0.",
                       bools=_no_bools("floor_divide", "convert with astype"))
remainder = _binary(prims.remainder, "remainder", "x1 - floor(x1 / x2) x2, with the sign of x2.",
                    bools=_no_bools("remainder", "convert with astype"))
equal = _binary(prims.eq, "equal", "x1 == x2, elementwise, as bools.")
not_equal = _binary(prims.ne, "not_equal", "x1 != x2, elementwise, as bools.")
less = _binary(prims.lt, "less", "x1 < x2, elementwise, as bools.")
hypot = _binary(prims.hypot, "hypot", "sqrt(x1^2 + x2^2) without overflow; its derivative at (0, 0) is 0. Integers are "
                "taken as float32.", floats)
atan2 = _binary(prims.atan2, "atan2", "The angle of the point (x2, x1), from -pi to pi, by the signs of both. Integers "
                "are taken as float32.", floats)
logaddexp = _binary(prims.log_add_exp, "logaddexp", "log(exp(x1) + exp(x2)) without overflow. Integers are taken as "
                    "float32.", floats)
less_equal = _binary(prims.le, "less_equal", "x1 <= x2, elementwise, as bools.")
greater = _binary(prims.gt, "greater", "x1 > x2, elementwise, as bools.")
greater_equal = _binary(prims.ge, "greater_equal", "x1 >= x2, elementwise, as bools.")


def pow(x1: Any, x2: Any, /) -> Array:
    """x1 to the power x2. A whole Python number as x2 is exact, also for integers and for negative x1.

    Powers of integers wrap, as in NumPy, those of bools are int32, and neither has a derivative. A negative exponent of
    integers is an error if it is known while tracing (DtypeError for a Python number, else RangeError); a traced one
    gives 0. In a PopXL program a traced exponent of integers takes a multiplication for each bit of its dtype.

    >>> import popfn as pf
    >>> pow(pf.Array([2, 3]), pf.Array([10, 2]))
    Array([1024,    9], dtype=int32)
    """
    if type(x2) is float and x2.is_integer() and builtins.abs(x2) <= 2 ** 16 and aval_of(x1).is_float:
        x2 = int(x2)
    if type(x2) is int:
        if aval_of(x1).dtype == bool_:
            x1 = convert_to(x1, int32, True)
        return prims.integer_pow(x1, x2)
    x1, x2 = pair(x1, x2)
    if aval_of(x1).is_float:
        return prims.pow_(x1, x2)
    if aval_of(x1).dtype == bool_:
        x1, x2 = convert_to(x1, int32, True), convert_to(x2, int32, True)
    if not isinstance(x2, Tracer):
        exponents = as_array(x2).value
        if (exponents < 0).any():
            raise RangeError(message(f"pow: integers have no power of the negative exponent {exponents.min()}",
                                     "way out: convert to float first", at=user_source(2)))
        if not exponents.ndim:
            return prims.integer_pow(x1, int(exponents))
    return prims.pow_(x1, x2)


def negative(x: Any, /) -> Array:
    """-x; unsigned integers wrap, bools are refused."""
    dtype = aval_of(x).dtype
    if dtype.kind == "u":
        return prims.sub(literal(0, aval_of(x)), x)
    if dtype == bool_:
        raise DtypeError(message("negative of bools is not defined, as in NumPy", "way out: use logical_not (~)",
                                 at=user_source(2)))
    return prims.neg(x)


def positive(x: Any, /) -> Array:
    """x itself."""
    return asarray(x)


def abs(x: Any, /) -> Array:
    """|x|; its derivative at 0 is 0."""
    return asarray(x) if aval_of(x).dtype.kind in "ub" else prims.abs_(x)


def sign(x: Any, /) -> Array:
    """-1, 0 or 1; NaN for NaN."""
    if aval_of(x).dtype.kind == "u":
        return astype(not_equal(x, 0), aval_of(x).dtype)
    return prims.sign(x)


def square(x: Any, /) -> Array:
    """x * x."""
    return multiply(x, x)


def floor(x: Any, /) -> Array:
    """The largest integer not above x, in x's dtype."""
    return prims.floor(x) if aval_of(x).is_float else asarray(x)


def ceil(x: Any, /) -> Array:
    """The smallest integer not below x, in x's dtype."""
    return prims.ceil(x) if aval_of(x).is_float else asarray(x)


def trunc(x: Any, /) -> Array:
    """The nearest integer not farther from 0 than x, in x's dtype."""
    if not aval_of(x).is_float:
        return asarray(x)
    x = asarray(x)
    return prims.select(prims.lt(x, literal(0.0, x.aval)), prims.ceil(x), prims.floor(x))


def round(x: Any, /, decimals: int = 0) -> Array:
    """The nearest integer, or multiple of 10 to the -`decimals`, in x's dtype; the even one of two equally near.

    Raises DtypeError for integers with negative `decimals`.

    >>> round(np.array([0.5, 1.5, -2.75], np.float32)), round(np.float32(-2.75), 1)
    (Array([ 0.,  2., -3.], dtype=float32), Array(-2.8, dtype=float32))
    """
    aval, decimals = aval_of(x), known_integer("round: the number of decimals", decimals)
    if not aval.is_float:
        if decimals < 0:
            raise DtypeError(message(f"round of {aval} to {decimals} decimals: integers have none to round",
                                     "way out: convert with astype(float) first", at=user_source(2)))
        return asarray(x)
    if not decimals:
        return prims.round_(x)
    unit = 10.0 ** builtins.abs(decimals)
    return in_float32(lambda x: divide(prims.round_(multiply(x, unit)), unit) if decimals > 0 else
                      multiply(prims.round_(divide(x, unit)), unit), x)


def _comparable(x: Any) -> Any:
    """x, 8-bit floats as float32."""
    return convert_to(x, float32) if aval_of(x).dtype in FLOAT8 else x


def isnan(x: Any, /) -> Array:
    """Whether x is NaN, elementwise, as bools; integers never are."""
    x = _comparable(x)
    aval = aval_of(x)
    return prims.ne(x, x) if aval.is_float else full(aval.shape, False)


def isinf(x: Any, /) -> Array:
    """Whether x is inf or -inf, elementwise, as bools; integers never are."""
    x = _comparable(x)
    aval = aval_of(x)
    return prims.eq(prims.abs_(x), literal(np.inf, aval)) if aval.is_float else full(aval.shape, False)


def isfinite(x: Any, /) -> Array:
    """Whether x is neither infinite nor NaN, elementwise, as bools; integers always are."""
    x = _comparable(x)
    aval = aval_of(x)
    return prims.lt(prims.abs_(x), literal(np.inf, aval)) if aval.is_float else full(aval.shape, True)


def signbit(x: Any, /) -> Array:
    """Whether x is negative, -0.0 included, as bools; False for NaN, whose sign an IPU cannot see."""
    aval = aval_of(x)
    if aval.dtype.kind in "ub":
        return full(aval.shape, False)
    below = less(x, 0)
    return prims.or_(below, less(reciprocal(x), 0)) if aval.is_float else below


def copysign(x1: Any, x2: Any, /) -> Array:
    """|x1| with the sign of x2; that of NaN counts as positive. Integers are taken as float32."""
    x1, x2 = floats(x1, x2)
    size = prims.abs_(x1)
    return prims.select(signbit(x2), prims.neg(size), size)


def exp2(x: Any, /) -> Array:
    """2 to the x; exact for whole x. Integers are taken as float32."""
    x, = floats(x)
    return prims.pow_(literal(2.0, aval_of(x)), x)


exp = _unary_float(prims.exp, "e to the x.")
expm1 = _unary_float(prims.expm1, "e to the x, minus 1, exact for small x.")
log = _unary_float(prims.log, "The natural logarithm; -inf at 0, NaN below.")
log1p = _unary_float(prims.log1p, "log(1 + x), exact for small x.")
log2 = _unary_float(prims.log2, "The logarithm to the base 2.")
log10 = _unary_float(prims.log10, "The logarithm to the base 10.")
sqrt = _unary_float(prims.sqrt, "The square root; NaN below 0.")
rsqrt = _unary_float(prims.rsqrt, "1 / sqrt(x).")
reciprocal = _unary_float(prims.reciprocal, "1 / x.")
sin = _unary_float(prims.sin, "The sine of x in radians.")
cos = _unary_float(prims.cos, "The cosine of x in radians.")
tan = _unary_float(prims.tan, "The tangent of x in radians.")
asin = _unary_float(prims.asin, "The angle from -pi/2 to pi/2 whose sine is x; NaN beyond 1.")
acos = _unary_float(prims.acos, "The angle from 0 to pi whose cosine is x; NaN beyond 1.")
atan = _unary_float(prims.atan, "The angle from -pi/2 to pi/2 whose tangent is x.")
sinh = _unary_float(prims.sinh, "The hyperbolic sine.")
cosh = _unary_float(prims.cosh, "The hyperbolic cosine.")
tanh = _unary_float(prims.tanh, "The hyperbolic tangent.")
asinh = _unary_float(prims.asinh, "The number whose hyperbolic sine is x.")
acosh = _unary_float(prims.acosh, "The number not below 0 whose hyperbolic cosine is x; NaN below 1.")
atanh = _unary_float(prims.atanh, "The number whose hyperbolic tangent is x; infinite at 1 and -1, NaN beyond.")
erf = _unary_float(prims.erf, "The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """x cut off at the bounds, which broadcast with it; the derivative there is 0. NaN where a bound is."""
    for bound, beyond in ((min, prims.le), (max, prims.ge)):
        if bound is not None:
            x, b = pair(x, bound)
            cut = beyond(x, b)
            if aval_of(b).is_float and not (type(bound) in PYTHON and bound == bound):
                cut = prims.or_(cut, prims.ne(b, b))
            x = prims.select(cut, b, x)
    return asarray(x)


# ---------------------------------------------------------------------------- logic
def truth(x: Any) -> Any:
    """x as bools: whether each element is nonzero."""
    return x if aval_of(x).dtype == bool_ else not_equal(x, 0)


def logical_and(x1: Any, x2: Any, /) -> Array:
    """x1 and x2 as truth values, elementwise."""
    return prims.and_(truth(x1), truth(x2))


def logical_or(x1: Any, x2: Any, /) -> Array:
    """x1 or x2 as truth values, elementwise."""
    return prims.or_(truth(x1), truth(x2))


def logical_xor(x1: Any, x2: Any, /) -> Array:
    """Whether exactly one of x1 and x2 is nonzero, elementwise."""
    return prims.ne(truth(x1), truth(x2))


def logical_not(x: Any, /) -> Array:
    """Whether x is zero, elementwise."""
    return prims.not_(truth(x))


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """x1 where the condition holds, x2 elsewhere; the derivative of what is not chosen is exactly 0."""
    x1, x2 = pair(x1, x2)
    return prims.select(truth(condition), x1, x2)


# ---------------------------------------------------------------------------- bits
def _bitwise(name: str, doc: str, primitive: Callable[[Any, Any], Any],
             bools: Optional[Callable[[Any, Any], Any]] = None) -> Callable[[Any, Any], Array]:
    """A function of two integers; `bools` is what it is of bools, None if they are refused."""
    def f(x1: Any, x2: Any, /) -> Array:
        if not _are_integers(x1, x2, bools=bools is not None):
            _refuse_bits(name, x1, x2, bools=bools is not None)
        x1, x2 = pair(x1, x2)
        return bools(x1, x2) if bools is not None and aval_of(x1).dtype == bool_ else primitive(x1, x2)
    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc + " On the IPU slow: PopXL has no bitwise operations, it is done by arithmetic on single bits."
    return f


def _are_integers(*xs: Any, bools: bool) -> bool:
    kinds = [aval_of(x).dtype.kind for x in xs]
    return builtins.all(kind in "biu" for kind in kinds) and (bools or not builtins.all(kind == "b" for kind in kinds))


def _refuse_bits(name: str, *xs: Any, bools: bool) -> None:
    raise DtypeError(message(
        f"{name} takes integers{' or bools' if bools else ''}, got {' and '.join(str(aval_of(x)) for x in xs)}",
        "way out: convert with astype; logical_and, logical_or, logical_xor and logical_not take any numbers as truth "
        "values" if bools else "way out: convert with astype", at=user_source(3)))


bitwise_and = _bitwise("bitwise_and", "The bits that x1 and x2 both have, of integers or bools.", prims.bitwise_and,
                       prims.and_)
bitwise_or = _bitwise("bitwise_or", "The bits that x1 or x2 has, of integers or bools.", prims.bitwise_or, prims.or_)
bitwise_xor = _bitwise("bitwise_xor", "The bits that just one of x1 and x2 has, of integers or bools.",
                       prims.bitwise_xor, prims.ne)
bitwise_left_shift = _bitwise("bitwise_left_shift", "The bits of x1 moved x2 places up, modulo the range of the dtype; "
                              "0 where x2 is negative or not below the width.", prims.shift_left)
bitwise_right_shift = _bitwise("bitwise_right_shift", "The bits of x1 moved x2 places down, the sign being repeated; "
                               "0, or -1 for negative x1, where x2 is negative or not below the width.",
                               prims.shift_right)


def bitwise_invert(x: Any, /) -> Array:
    """The bits that x has not, of integers or bools: -1 - x of signed integers."""
    if not _are_integers(x, bools=True):
        _refuse_bits("bitwise_invert", x, bools=True)
    aval = aval_of(x)
    if aval.dtype == bool_:
        return prims.not_(x)
    return prims.sub(literal(-1 if aval.dtype.kind == "i" else int(np.iinfo(aval.dtype).max), aval), x)
