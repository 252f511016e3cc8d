"""Updates of variables. Each writes its first tensor in place and returns a tensor of the same storage.

Errors: TypeError for an operand that is no Tensor, ValueError for one of another graph.
"""

from typing import Optional, Union

from popfn.host.errors import popart_exception
from popfn.host.ops import _build
from popfn.host.tensor import Tensor

__all__ = ["accumulate_", "accumulator_zero_", "copy_var_update_"]


def copy_var_update_(t: Tensor, X: Tensor) -> Tensor:
    """Let `t` take the value of `X`."""
    graph = _build.checked("copy_var_update_", t=t, X=X)
    fault = None
    if t.spec.to_tuple()[:2] != X.spec.to_tuple()[:2]:
        fault = f"{t!r} cannot take the value of {X!r}: shapes and dtypes must agree"
    return _build.emit_like(graph, "copy_var_update_", (t, X), None, "updated__" + t.name, fault)


def accumulate_(t: Tensor, X: Tensor, f: Optional[Union[float, Tensor]] = None) -> Tensor:
    """Add `X`, or `f` times `X`, to `t`. The dtypes may differ.

    Args:
        t: The accumulator.
        X: What to add.
        f: The factor: a number or a scalar tensor.

    Raises:
        popart_exception: If the factor is the number 0.
    """
    operands = {"t": t, "X": X}
    if isinstance(f, Tensor):
        operands["f"] = f
    elif f is not None:
        if not isinstance(f, (int, float)):
            raise TypeError(f"accumulate_: f must be a float or a Tensor, not {f!r}.")
        f = float(f)
        if f == 0:
            raise popart_exception("accumulate_: the factor f must not be 0.")
    graph = _build.checked("accumulate_", **operands)
    fault = None
    if t.shape != X.shape:
        fault = f"the shapes {t.shape} and {X.shape} differ"
    elif isinstance(f, Tensor) and _build.nelms(f.shape) != 1:
        fault = f"the factor {f!r} is no scalar"
    attrs = {"f": None if isinstance(f, Tensor) else f}
    return _build.emit_like(
        graph, "accumulate_", tuple(operands.values()), attrs, "accumulate__" + t.name, fault
    )


def accumulator_zero_(t: Tensor) -> Tensor:
    """Set `t` to 0."""
    graph = _build.checked("accumulator_zero_", t=t)
    return _build.emit_like(graph, "accumulator_zero_", (t,), None, "accumulator_scale__" + t.name)
