"""Ops that work on each element by itself. The tensors must belong to the current graph.

Errors, unless a function says more: TypeError for an operand that is no Tensor, ValueError for one of another
graph, popart_exception for dtypes that differ or shapes that do not broadcast.
"""

import math
from typing import Any, Dict, Optional

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels import emit
from popfn.host.kernels.kernel import SAME, Kernel, elementwise, in_place, ufunc
from popfn.host.kernels.values import is_float, out_dtype
from popfn.host.ops import _build
from popfn.host.tensor import Tensor, constant


def _unary(kind: str, t: Tensor, name: Optional[str] = None) -> Tensor:
    return _build.emit_like(_build.checked(kind, t=t), kind, (t,), None, name)


def _predicate(kind: str, t: Tensor) -> Tensor:
    return _build.emit(_build.checked(kind, t=t), kind, (t,), t.shape, dtypes.bool)


def _binary(kind: str, lhs: Tensor, rhs: Tensor) -> Tensor:
    graph = _build.checked(kind, lhs=lhs, rhs=rhs)
    _build.check_same_dtype(kind, lhs, rhs)
    shape = lhs.shape if lhs.shape == rhs.shape else _build.broadcast(kind, lhs, rhs)
    meta_shape = _build.common_meta_shape(kind, lhs, rhs) if lhs.meta_shape or rhs.meta_shape else ()
    return _build.emit(graph, kind, (lhs, rhs), shape, lhs.dtype, None, None, meta_shape)


def abs(t: Tensor) -> Tensor:
    """Return the absolute value."""
    return _unary("abs", t)


def ceil(t: Tensor) -> Tensor:
    """Round up."""
    return _unary("ceil", t)


def floor(t: Tensor) -> Tensor:
    """Round down."""
    return _unary("floor", t)


def sign(t: Tensor) -> Tensor:
    """Return -1, 0 or 1; 0 for NaN."""
    return _unary("sign", t)


def _sign_value(xp: Any, op: Any, x: Any) -> Any:
    if not is_float(x):
        return xp.sign(x)
    one = xp.ones_like(x)  # not xp.sign, which is -0.0 for -0.0 in JAX and 0.0 in NumPy
    return xp.where(x > 0, one, xp.where(x < 0, -one, xp.zeros_like(x)))


def _emit_sign(s: Any) -> None:
    s.apply("sign", *s.ins)
    if s.out.dtype.kind == "f":
        is_nan = s.scratch(s.out.shape, np.dtype(np.bool_))
        s.apply("isnan", s.out, out=is_nan)
        s.line(f"{s.function('copyto')}({s.out.name}, {s.constant(0, s.out.dtype).name}, where={is_nan.name})")


def cos(t: Tensor) -> Tensor:
    """Return the cosine."""
    return _unary("cos", t)


def sin(t: Tensor) -> Tensor:
    """Return the sine."""
    return _unary("sin", t)


def tanh(t: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return _unary("tanh", t)


def exp(t: Tensor) -> Tensor:
    """Return e to the power of `t`."""
    return _unary("exp", t)


def exp_(t: Tensor) -> Tensor:
    """`exp` in place."""
    return _unary("exp_", t, "exp_inplace_out")


def log(t: Tensor) -> Tensor:
    """Return the natural logarithm."""
    return _unary("log", t)


def log2(t: Tensor) -> Tensor:
    """Return the logarithm to the base 2, as the quotient of two natural ones."""
    with _build.checked("log2", t=t)._undo_on_error():
        return div(log(t), log(constant(2, t.dtype)))


def sqrt(t: Tensor) -> Tensor:
    """Return the square root."""
    return _unary("sqrt", t)


def negate(t: Tensor) -> Tensor:
    """Return -t."""
    return _unary("negate", t)


def clip(t: Tensor, min: float = float("-inf"), max: float = float("inf")) -> Tensor:
    """Limit `t` to the range from `min` to `max`."""
    graph = _build.checked("clip", t=t)
    try:
        attrs = {"min": float(min), "max": float(max)}
    except (TypeError, ValueError):
        raise TypeError(f"clip: min and max must be floats, not {min!r} and {max!r}.") from None
    return _build.emit_like(graph, "clip", (t,), attrs)


clamp = clip


def _clip_value(xp: Any, op: Any, x: Any) -> Any:
    low, high = np.asarray([op.attrs["min"], op.attrs["max"]], x.dtype)
    return xp.minimum(xp.maximum(x, low), high)


def _emit_clip(s: Any) -> None:
    x, low, high = s.ins[0], s.op.attrs["min"], s.op.attrs["max"]
    if low != -math.inf or high == math.inf:
        s.apply("maximum", x, s.constant(low, x.dtype))
        x = s.out
    if high != math.inf:
        s.apply("minimum", x, s.constant(high, x.dtype))


def isnan(t: Tensor) -> Tensor:
    """Return whether each element is NaN."""
    return _predicate("isnan", t)


def isinf(t: Tensor) -> Tensor:
    """Return whether each element is infinite."""
    return _predicate("isinf", t)


def isfinite(t: Tensor) -> Tensor:
    """Return whether each element is neither NaN nor infinite; popart_exception if `t` has no elements."""
    _build.checked("isfinite", t=t)
    if 0 in t.shape:
        raise popart_exception(f"isfinite: {t!r} has no elements.")
    return _predicate("isfinite", t)


def cast(t: Tensor, data_type: dtypes.dtype) -> Tensor:
    """Convert to `data_type`: floats to ints toward zero, anything to bool by `!= 0`.

    Raises:
        TypeError: If `data_type` is no popxl dtype, or an 8-bit float.
    """
    _build.checked("cast", t=t)
    if not isinstance(data_type, dtypes.dtype):
        raise TypeError(f"cast: data_type must be a popxl dtype such as popxl.float32, not {data_type!r}.")
    if data_type in (dtypes.float8_143, dtypes.float8_152):
        raise TypeError(f"cast: there is no plain cast to {data_type}; it needs a scale.")
    return _build.emit_cast(t, data_type)


def _cast_value(xp: Any, op: Any, x: Any) -> Any:
    dtype = out_dtype(op)
    return x != 0 if dtype.kind == "b" else x.astype(dtype)


def _emit_cast(s: Any) -> None:
    (x,) = s.ins
    if s.out.dtype.kind == "b":
        s.apply("not_equal", x, s.constant(0, x.dtype))
    else:
        s.copy(s.out, x)


def identity(t: Tensor, output_name: Optional[str] = None) -> Tensor:
    """Return a copy, named `output_name` if that is given."""
    graph = _build.checked("identity", t=t)
    return _build.emit_like(graph, "identity", (t,), None, output_name or "identity_" + t.name)


rename = identity


def detach(t: Tensor) -> Tensor:
    """Return a copy through which no gradient flows."""
    return _unary("detach", t)


def detach_(t: Tensor) -> Tensor:
    """`detach` as a view."""
    return _unary("detach_", t, "detach_out")


def add(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs + rhs."""
    return _binary("add", lhs, rhs)


def add_(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Add `rhs` to `lhs` in place. The result has the shape of `lhs`."""
    graph = _build.checked("add_", lhs=lhs, rhs=rhs)
    _build.check_same_dtype("add_", lhs, rhs)
    fault = None
    if _build.broadcast("add_", lhs, rhs) != lhs.shape:
        fault = f"a right operand of shape {rhs.shape} does not fit into the shape {lhs.shape}"
    return _build.emit_like(graph, "add_", (lhs, rhs), None, "add_lhs_inplace_out", fault)


def sub(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs - rhs."""
    return _binary("sub", lhs, rhs)


def mul(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs * rhs. A float32 operand of one element may scale a float16 one: the result is float16."""
    kinds = getattr(lhs, "dtype", None), getattr(rhs, "dtype", None)
    if kinds == (dtypes.float16, dtypes.float32) or kinds == (dtypes.float32, dtypes.float16):
        graph = _build.checked("mul", lhs=lhs, rhs=rhs)
        if _build.nelms((rhs if kinds[0] is dtypes.float16 else lhs).shape) == 1:
            shape = _build.broadcast("mul", lhs, rhs)
            return _build.emit(graph, "mul", (lhs, rhs), shape, dtypes.float16)
    return _binary("mul", lhs, rhs)


def _mul_value(xp: Any, op: Any, x: Any, y: Any) -> Any:
    if x.dtype != y.dtype:  # a float16 tensor and a float32 scalar, which float16 may not hold
        x, y = x.astype(np.float32), y.astype(np.float32)
    return xp.multiply(x, y)


def _emit_mul(s: Any) -> None:
    x, y = s.ins
    if x.dtype != y.dtype:  # a float16 tensor and a float32 scalar, which float16 may not hold
        s.apply("multiply", x, y, options=', dtype="float32", casting="same_kind"')
    else:
        s.apply("multiply", x, y)


def div(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs / rhs, for integers rounded toward zero."""
    return _binary("div", lhs, rhs)


def _div_value(xp: Any, op: Any, x: Any, y: Any) -> Any:
    if is_float(x):
        return xp.divide(x, y)
    return xp.floor_divide(x - xp.fmod(x, y), y)  # rounds toward zero


def _emit_div(s: Any) -> None:
    x, y = s.ins
    if x.dtype.kind == "f":
        s.apply("divide", x, y)
    elif x.dtype.kind == "u":
        s.apply("floor_divide", x, y)
    else:  # rounds toward zero
        rest = s.scratch(s.out.shape, s.out.dtype)
        s.apply("fmod", x, y, out=rest)
        s.apply("subtract", x, rest, out=rest)
        s.apply("floor_divide", rest, y)


def pow(t: Tensor, e: Any) -> Tensor:
    """Return `t` to the power of `e`, a Tensor or a host value, which keeps its own dtype: `pow(t, 2.0)`."""
    graph = _build.checked("pow", t=t)
    if isinstance(e, Tensor):
        return _binary("pow", t, e)
    with graph._undo_on_error():
        return _binary("pow", t, constant(e))


def _pow_value(xp: Any, op: Any, x: Any, y: Any) -> Any:
    if is_float(x):
        # For one exponent of 0.5 NumPy takes a root, which differs from the power for -inf and -0.
        return xp.where((y == 0.5) & ((x == 0) | (x == -np.inf)), xp.abs(x), xp.power(x, y))
    if y.dtype.kind == "u":
        return xp.power(x, y)
    # The powers of integers with a negative exponent, rounded toward zero: NumPy refuses them.
    one = xp.ones_like(x)
    sign = xp.where(y % 2 == 0, one, x)
    return xp.where(y >= 0, xp.power(x, xp.maximum(y, 0)), xp.where(xp.abs(x) == 1, sign, 0 * one))


def _emit_pow(s: Any) -> None:
    x, y = s.ins
    if y.literal == 2 and x.dtype.kind == "f":
        s.apply("multiply", x, x)
    elif y.dtype.kind == "u" or x.dtype.kind == "f" and y.literal not in (None, 0.5):
        s.apply("power", x, y)
    else:
        emit.call_value(s)


def fmod(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the remainder of lhs / rhs, with the sign of `lhs`."""
    return _binary("fmod", lhs, rhs)


def maximum(*ts: Tensor) -> Tensor:
    """Return the largest of the tensors at each position; they must all be of one shape and dtype."""
    graph, ts = _build.checked_list("maximum", ts)
    if not ts:
        raise popart_exception("maximum: there must be at least one tensor.")
    _build.check_same_dtype("maximum", *ts)
    if any(t.shape != ts[0].shape for t in ts):
        raise popart_exception("maximum: the shapes of {} differ.".format(" and ".join(map(repr, ts))))
    return _build.emit_like(graph, "maximum", ts)


def _maximum_value(xp: Any, op: Any, x: Any, *others: Any) -> Any:
    for y in others:
        x = xp.maximum(x, y)
    return x


def _emit_maximum(s: Any) -> None:
    if len(s.ins) == 1:
        s.copy(s.out, s.ins[0])
        return
    s.apply("maximum", s.ins[0], s.ins[1])
    for x in s.ins[2:]:
        s.apply("maximum", s.out, x)


def equal(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return whether the operands are equal, as bool; False for NaN."""
    graph = _build.checked("equal", lhs=lhs, rhs=rhs)
    return _build.emit(graph, "equal", (lhs, rhs), _build.broadcast("equal", lhs, rhs), dtypes.bool)


def greater(input: Tensor, other: Tensor) -> Tensor:
    """Return input > other, as bool."""
    graph = _build.checked("greater", input=input, other=other)
    shape = _build.broadcast("greater", input, other)
    return _build.emit(graph, "greater", (input, other), shape, dtypes.bool)


def _logical(kind: str, name: str, lhs: Tensor, rhs: Tensor) -> Tensor:
    graph = _build.checked(kind, lhs=lhs, rhs=rhs)
    shape = _build.broadcast(kind, lhs, rhs)
    return _build.emit(
        graph, kind, (_build.as_bool(lhs), _build.as_bool(rhs)), shape, dtypes.bool, None, name
    )


def logical_and(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return whether both operands, cast to bool, are true."""
    return _logical("logical_and", "and_out", lhs, rhs)


def logical_or(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return whether one of the operands, cast to bool, is true."""
    return _logical("logical_or", "or_out", lhs, rhs)


def logical_not(t: Tensor) -> Tensor:
    """Return whether `t`, cast to bool, is false."""
    graph = _build.checked("logical_not", t=t)
    return _build.emit(graph, "logical_not", (_build.as_bool(t),), t.shape, dtypes.bool, None, "not_out")


def where(condition: Tensor, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return `lhs` where `condition`, cast to bool, is true, else `rhs`. All three broadcast."""
    graph = _build.checked("where", condition=condition, lhs=lhs, rhs=rhs)
    _build.check_same_dtype("where", lhs, rhs)
    shape = _build.broadcast("where", condition, lhs, rhs)
    return _build.emit(graph, "where", (_build.as_bool(condition), lhs, rhs), shape, lhs.dtype)


def _where_value(xp: Any, op: Any, condition: Any, x: Any, y: Any) -> Any:
    return xp.where(condition, x, y)


# From this many elements on, `where` selects bits without branches: NumPy's masked copies mispredict on noisy masks.
_BITWISE_FROM = 4096


def _emit_where(s: Any) -> None:
    condition, x, y = s.ins
    out = s.out
    if x is y or condition.literal is not None:
        s.copy(out, x if x is y or condition.literal else y)
    elif math.prod(out.shape) >= _BITWISE_FROM:
        _where_bits(s)
    elif out is x:
        otherwise = s.scratch(condition.shape, condition.dtype)
        s.apply("logical_not", condition, out=otherwise)
        s.line(f"{s.function('copyto')}({out.name}, {y.name}, where={otherwise.name})")
    else:
        s.copy(out, y)
        s.line(f"{s.function('copyto')}({out.name}, {x.name}, where={condition.name})")


def _where_bits(s: Any) -> None:
    condition, x, y = s.ins
    bits = np.dtype(f"i{s.out.dtype.itemsize}")
    out, mask = s.bits(s.out, bits), s.scratch(condition.shape, bits)
    s.copy(mask, s.bits(condition, np.dtype(np.int8)))
    if _is_zero(x):
        s.apply("subtract", mask, s.constant(1, bits), out=mask)  # all bits of an element tell that it is y's
        s.apply("bitwise_and", s.bits(y, bits), mask, out=out)
        return
    s.apply("negative", mask, out=mask)  # all bits of an element tell that it is x's
    if _is_zero(y):
        s.apply("bitwise_and", s.bits(x, bits), mask, out=out)
        return
    t = s.scratch(s.out.shape, bits) if s.out is y else out
    x, y = s.bits(x, bits), s.bits(y, bits)
    s.apply("bitwise_xor", x, y, out=t)
    s.apply("bitwise_and", t, mask, out=t)
    s.apply("bitwise_xor", t, y, out=out)


def _is_zero(x: Any) -> bool:
    """Whether the operand is a constant all bits of which are 0."""
    return x.literal is not None and not x.literal and math.copysign(1, x.literal) > 0


_exp_kernel, _add_kernel = ufunc("exp"), ufunc("add")

KERNELS: Dict[str, Kernel] = {
    "abs": ufunc("absolute"),
    "ceil": ufunc("ceil"),
    "floor": ufunc("floor"),
    "sign": elementwise(_sign_value, _emit_sign),
    "cos": ufunc("cos"),
    "sin": ufunc("sin"),
    "tanh": ufunc("tanh"),
    "exp": _exp_kernel,
    "exp_": in_place(_exp_kernel),
    "log": ufunc("log"),
    "sqrt": ufunc("sqrt"),
    "negate": ufunc("negative"),
    "clip": elementwise(_clip_value, _emit_clip),
    "isnan": ufunc("isnan"),
    "isinf": ufunc("isinf"),
    "isfinite": ufunc("isfinite"),
    "cast": elementwise(_cast_value, _emit_cast),
    "identity": SAME,
    "detach": SAME,
    "detach_": SAME,
    "add": _add_kernel,
    "add_": in_place(_add_kernel),
    "sub": ufunc("subtract"),
    "mul": elementwise(_mul_value, _emit_mul),
    "div": elementwise(_div_value, _emit_div),
    "pow": elementwise(_pow_value, _emit_pow),
    "fmod": ufunc("fmod"),
    "maximum": elementwise(_maximum_value, _emit_maximum),
    "equal": ufunc("equal"),
    "greater": ufunc("greater"),
    "logical_and": ufunc("logical_and"),
    "logical_or": ufunc("logical_or"),
    "logical_not": ufunc("logical_not"),
    "where": elementwise(_where_value, _emit_where, (1, 2)),
}
