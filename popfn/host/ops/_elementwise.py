"""Ops that work on each element by itself. The tensors must belong to the current graph.

Errors, unless a function says more: TypeError for an operand that is no Tensor, ValueError for one of another
graph, popart_exception for dtypes that differ or shapes that do not broadcast.
"""

from typing import Any, Optional

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.ops import _build
from popfn.host.tensor import Tensor, constant


def _unary(kind: str, t: Tensor, name: Optional[str] = None) -> Tensor:
    return _build.emit_like(_build.checked(kind, t=t), kind, (t,), None, name)


def _predicate(kind: str, t: Tensor) -> Tensor:
    return _build.emit(_build.checked(kind, t=t), kind, (t,), t.shape, dtypes.bool)


def _binary(kind: str, lhs: Tensor, rhs: Tensor) -> Tensor:
    graph = _build.checked(kind, lhs=lhs, rhs=rhs)
    _build.check_same_dtype(kind, lhs, rhs)
    shape = _build.broadcast(kind, lhs.shape, rhs.shape)
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


def relu(t: Tensor) -> Tensor:
    """Return the larger of `t` and 0."""
    return _unary("relu", t)


def relu_(t: Tensor) -> Tensor:
    """`relu` in place."""
    return _unary("relu_", t, "relu_inplace_out")


def gelu(t: Tensor) -> Tensor:
    """Return the Gaussian error linear unit in its tanh form, `t/2 (1 + tanh(0.79788 t + 0.035677 t**3))`."""
    return _unary("gelu", t)


def gelu_(t: Tensor) -> Tensor:
    """`gelu` in place."""
    return _unary("gelu_", t, "gelu_inplace_out")


def geluerf(t: Tensor) -> Tensor:
    """Return the Gaussian error linear unit, `t/2 (1 + erf(t / sqrt(2)))`."""
    return _unary("geluerf", t)


def geluerf_(t: Tensor) -> Tensor:
    """`geluerf` in place."""
    return _unary("geluerf_", t, "geluerf_inplace_out")


def swish(t: Tensor) -> Tensor:
    """Return `t` times its logistic sigmoid."""
    return _unary("swish", t)


def swish_(t: Tensor) -> Tensor:
    """`swish` in place."""
    return _unary("swish_", t, "swish_inplace_out")


def clip(t: Tensor, min: float = float("-inf"), max: float = float("inf")) -> Tensor:
    """Limit `t` to the range from `min` to `max`."""
    graph = _build.checked("clip", t=t)
    try:
        attrs = {"min": float(min), "max": float(max)}
    except (TypeError, ValueError):
        raise TypeError(f"clip: min and max must be floats, not {min!r} and {max!r}.") from None
    return _build.emit_like(graph, "clip", (t,), attrs)


clamp = clip


def softmax(t: Tensor, axis: int) -> Tensor:
    """Return exp(t), scaled to a sum of 1 along `axis`; TypeError if `axis` is no int."""
    graph = _build.checked("softmax", t=t)
    rank = len(t.shape)
    axis = _build.wrapped(_build.as_int("softmax", "axis", axis), rank)
    fault = None
    if not 0 <= axis < rank:
        fault = f"axis {axis} is out of range for the shape {t.shape}"
    return _build.emit_like(graph, "softmax", (t,), {"axis": axis}, None, fault)


def cumsum(t: Tensor, dim: Optional[int] = 0) -> Tensor:
    """Return the sums up to each element along `dim`; popart_exception if `dim` is out of range."""
    graph = _build.checked("cumsum", t=t)
    if dim is None:
        raise TypeError("cumsum: dim must be an int, not None.")
    axis = _build.wrapped(int(dim), len(t.shape))
    if not 0 <= axis < len(t.shape):
        raise popart_exception(f"cumsum: dim {dim} is out of range for the shape {t.shape}.")
    return _build.emit_like(graph, "cumsum", (t,), {"axis": axis})


def _increment_mod(kind: str, name: str, t: Tensor, increment: float, modulus: float) -> Tensor:
    graph = _build.checked(kind, t=t)
    attrs = {
        "increment": _build.as_float(kind, "increment", increment),
        "modulus": _build.as_float(kind, "modulus", modulus),
    }
    fault = None if attrs["modulus"] else "the modulus is 0"
    return _build.emit_like(graph, kind, (t,), attrs, name, fault)


def increment_mod(t: Tensor, increment: float, modulus: float) -> Tensor:
    """Return the remainder of (t + increment) / modulus, with the sign of the dividend."""
    return _increment_mod("increment_mod", "increment_mod_out", t, increment, modulus)


def increment_mod_(t: Tensor, increment: float, modulus: float) -> Tensor:
    """`increment_mod` in place."""
    return _increment_mod("increment_mod_", "increment_mod_inplace_out", t, increment, modulus)


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
    if _build.broadcast("add_", lhs.shape, rhs.shape) != lhs.shape:
        fault = f"a right operand of shape {rhs.shape} does not fit into the shape {lhs.shape}"
    return _build.emit_like(graph, "add_", (lhs, rhs), None, "add_lhs_inplace_out", fault)


def _scaled_add(kind: str, name: str, X: Tensor, Y: Tensor, a: Any, b: Any) -> Tensor:
    attrs, tensors = _build.scalars(kind, a=a, b=b)
    operands = {"X": X, "Y": Y, **tensors}
    graph = _build.checked(kind, **operands)
    fault = _build.scalar_fault(tensors)
    if X.shape != Y.shape:
        fault = f"the shapes {X.shape} and {Y.shape} differ"
    elif X.dtype is not Y.dtype and not (kind == "scaled_add_" and _both_floats(X, Y)):
        fault = f"the dtypes {X.dtype.name} and {Y.dtype.name} differ"
    elif "a" in tensors and "b" not in tensors:
        fault = "a is a tensor and b a number; let both be tensors"
    elif "b" in tensors and "a" not in tensors and attrs["a"] != 1:
        fault = f"b is a tensor, so a must be a tensor or 1, not {attrs['a']}"
    return _build.emit_like(
        graph, kind, tuple(operands.values()), {**attrs, "operands": tuple(operands)}, name, fault
    )


def _both_floats(X: Tensor, Y: Tensor) -> bool:
    return X.dtype.is_floating_point and Y.dtype.is_floating_point


def scaled_add(X: Tensor, Y: Tensor, a: Any = 1.0, b: Any = 1.0) -> Tensor:
    """Return a X + b Y.

    Args:
        X, Y: Tensors of one type; there is no broadcasting.
        a, b: The factors: two floats, two scalar tensors, or 1 and a scalar tensor.
    """
    return _scaled_add("scaled_add", "scaled_add_out", X, Y, a, b)


def scaled_add_(X: Tensor, Y: Tensor, a: Any = 1.0, b: Any = 1.0) -> Tensor:
    """`scaled_add` into `X`. The float dtypes of `X` and `Y` may differ."""
    return _scaled_add("scaled_add_", f"scaled_add__{getattr(X, 'name', '')}", X, Y, a, b)


def sub(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs - rhs."""
    return _binary("sub", lhs, rhs)


def mul(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs * rhs. A float32 operand of one element may scale a float16 one: the result is float16."""
    kinds = getattr(lhs, "dtype", None), getattr(rhs, "dtype", None)
    if kinds == (dtypes.float16, dtypes.float32) or kinds == (dtypes.float32, dtypes.float16):
        graph = _build.checked("mul", lhs=lhs, rhs=rhs)
        if _build.nelms((rhs if kinds[0] is dtypes.float16 else lhs).shape) == 1:
            shape = _build.broadcast("mul", lhs.shape, rhs.shape)
            return _build.emit(graph, "mul", (lhs, rhs), shape, dtypes.float16)
    return _binary("mul", lhs, rhs)


def div(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return lhs / rhs, for integers rounded toward zero."""
    return _binary("div", lhs, rhs)


def pow(t: Tensor, e: Any) -> Tensor:
    """Return `t` to the power of `e`, a Tensor or a host value, which keeps its own dtype: `pow(t, 2.0)`."""
    graph = _build.checked("pow", t=t)
    if isinstance(e, Tensor):
        return _binary("pow", t, e)
    with graph._undo_on_error():
        return _binary("pow", t, constant(e))


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
        raise popart_exception(
            "maximum: the shapes {} differ.".format(" and ".join(str(t.shape) for t in ts))
        )
    return _build.emit_like(graph, "maximum", ts)


def equal(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return whether the operands are equal, as bool; False for NaN."""
    graph = _build.checked("equal", lhs=lhs, rhs=rhs)
    return _build.emit(
        graph, "equal", (lhs, rhs), _build.broadcast("equal", lhs.shape, rhs.shape), dtypes.bool
    )


def greater(input: Tensor, other: Tensor) -> Tensor:
    """Return input > other, as bool."""
    graph = _build.checked("greater", input=input, other=other)
    shape = _build.broadcast("greater", input.shape, other.shape)
    return _build.emit(graph, "greater", (input, other), shape, dtypes.bool)


def _logical(kind: str, name: str, lhs: Tensor, rhs: Tensor) -> Tensor:
    graph = _build.checked(kind, lhs=lhs, rhs=rhs)
    shape = _build.broadcast(kind, lhs.shape, rhs.shape)
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
    shape = _build.broadcast("where", condition.shape, lhs.shape, rhs.shape)
    return _build.emit(graph, "where", (_build.as_bool(condition), lhs, rhs), shape, lhs.dtype)
