"""Sums with factors, and counters that start again.

Errors: TypeError for an operand that is no Tensor or a factor of the wrong type, ValueError for a tensor of another
graph.
"""

from typing import Any, Dict

from popfn.host.kernels import emit
from popfn.host.kernels.kernel import Kernel, between_updates, update
from popfn.host.ops import _build
from popfn.host.ops._factors import emit_product, factor_operand, factor_value, scalar_fault, scalars, times
from popfn.host.tensor import Tensor


def _scaled_add(kind: str, name: str, X: Tensor, Y: Tensor, a: Any, b: Any) -> Tensor:
    attrs, tensors = scalars(kind, a=a, b=b)
    operands = {"X": X, "Y": Y, **tensors}
    graph = _build.checked(kind, **operands)
    fault = scalar_fault(tensors)
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


def _scaled_add_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """a X + b Y."""
    x, y = arrays[:2]
    return times(factor_value(xp, op, "a", arrays), x) + times(factor_value(xp, op, "b", arrays), y)


def _emit_scaled_add(s: Any) -> None:
    """Emit a X + b Y."""
    if s.out.dtype.kind != "f":
        emit.call_value(s)
        return
    x, y = s.ins[:2]
    a, b = (factor_operand(s, name, s.out.dtype) for name in ("a", "b"))
    if b.literal != 1 or a.literal != 1:
        y = emit_product(s, y, b)
    if a.literal != 1:
        s.apply("multiply", x, a)
        x = s.out
    s.apply("add", x, y)


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


def _increment_mod_value(xp: Any, op: Any, t: Any) -> Any:
    """The remainder of (t + increment) / modulus, with the sign of the dividend."""
    increment, modulus = (t.dtype.type(op.attrs[name]) for name in ("increment", "modulus"))
    return xp.fmod(t + increment, modulus)


KERNELS: Dict[str, Kernel] = {
    "scaled_add": between_updates(_scaled_add_value, _emit_scaled_add, (0, 1)),
    "scaled_add_": update(_scaled_add_value, _emit_scaled_add),
    "increment_mod": between_updates(_increment_mod_value),
    "increment_mod_": update(_increment_mod_value),
}
