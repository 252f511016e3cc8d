"""Elementwise functions: arithmetic, comparison, logic."""
from __future__ import annotations

import builtins
from typing import Any, Callable, Sequence

from .._promotion import PYTHON, convert_to, floats, pair
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import bool_, int32
from ..trace.errors import DtypeError, message, user_source
from ..trace.tracer import Tracer, aval_of, literal
from ._create import asarray, astype


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
less_equal = _binary(prims.le, "less_equal", "x1 <= x2, elementwise, as bools.")
greater = _binary(prims.gt, "greater", "x1 > x2, elementwise, as bools.")
greater_equal = _binary(prims.ge, "greater_equal", "x1 >= x2, elementwise, as bools.")


def pow(x1: Any, x2: Any, /) -> Array:
    """x1 to the power x2. A whole Python number as x2 is exact, also for integers and for negative x1."""
    if type(x2) is float and x2.is_integer() and builtins.abs(x2) <= 2 ** 16 and aval_of(x1).is_float:
        x2 = int(x2)
    if type(x2) is int:
        if aval_of(x1).dtype == bool_:
            x1 = convert_to(x1, int32, True)
        return prims.integer_pow(x1, x2)
    x1, x2 = pair(x1, x2)
    if not aval_of(x1).is_float:
        raise DtypeError(message(f"pow of {aval_of(x1)} and {aval_of(x2)}: an integer power by an array is not defined "
                                 "for negative exponents", "way out: convert with astype(float), or use a Python "
                                 "integer as the exponent", at=user_source(2)))
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


exp = _unary_float(prims.exp, "e to the x.")
expm1 = _unary_float(prims.expm1, "e to the x, minus 1, exact for small x.")
log = _unary_float(prims.log, "The natural logarithm; -inf at 0, NaN below.")
log1p = _unary_float(prims.log1p, "log(1 + x), exact for small x.")
sqrt = _unary_float(prims.sqrt, "The square root; NaN below 0.")
rsqrt = _unary_float(prims.rsqrt, "1 / sqrt(x).")
reciprocal = _unary_float(prims.reciprocal, "1 / x.")
sin = _unary_float(prims.sin, "The sine of x in radians.")
cos = _unary_float(prims.cos, "The cosine of x in radians.")
tanh = _unary_float(prims.tanh, "The hyperbolic tangent.")
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
