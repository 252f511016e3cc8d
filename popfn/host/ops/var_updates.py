"""Updates of variables. Each writes its first tensor in place and returns a tensor of the same storage.

The updaters of optimisers are an exception: they return a new tensor. Factors are floats or scalar tensors.

Errors: TypeError for an operand that is no Tensor or a factor of the wrong type, ValueError for a tensor of another
graph.
"""

from typing import Any, Dict, Optional, Union

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.graph import Graph
from popfn.host.ops import _build
from popfn.host.ops._elementwise import add_
from popfn.host.tensor import Tensor, constant

__all__ = [
    "accumulate_",
    "accumulate_mean_",
    "accumulate_moving_average_",
    "accumulate_moving_average_square_",
    "accumulate_square_",
    "accumulator_scale_",
    "accumulator_zero_",
    "adam_updater",
    "adam_var_update",
    "adamax_updater",
    "copy_var_update_",
    "lamb_updater",
    "sparse_accumulate_",
]

Factor = Optional[Union[float, Tensor]]


def copy_var_update_(t: Tensor, X: Tensor) -> Tensor:
    """Let `t` take the value of `X`."""
    graph = _build.checked("copy_var_update_", t=t, X=X)
    fault = None
    if t.spec.to_tuple()[:2] != X.spec.to_tuple()[:2]:
        fault = f"{t!r} cannot take the value of {X!r}: shapes and dtypes must agree"
    return _build.emit_like(graph, "copy_var_update_", (t, X), None, "updated__" + t.name, fault)


def _accumulate(
    kind: str, name: str, operands: Dict[str, Any], factor: str, value: Factor, optional: bool = False
) -> Tensor:
    """Emit an update of `operands["t"]` with one factor."""
    attrs, tensors = _build.scalars(kind, **{factor: value})
    operands = {**operands, **tensors}
    graph = _build.checked(kind, **operands)
    t, X = operands["t"], operands.get("X")
    fault = _build.scalar_fault(tensors)
    if X is not None and t.shape != X.shape:
        fault = f"the shapes {t.shape} and {X.shape} differ"
    elif X is not None and t.dtype is not X.dtype and not _are_floats(t, X):
        fault = f"the dtypes {t.dtype.name} and {X.dtype.name} differ, and are not both floats"
    elif value is None and not optional:
        fault = f"{factor} is None: pass a float or a scalar tensor"
    all_attrs = {**attrs, "operands": tuple(operands)}
    return _build.emit_like(graph, kind, tuple(operands.values()), all_attrs, f"{name}__{t.name}", fault)


def _are_floats(*ts: Tensor) -> bool:
    return all(t.dtype.is_floating_point for t in ts)


def accumulate_(t: Tensor, X: Tensor, f: Factor = None) -> Tensor:
    """Add `X`, or `f` times `X`, to `t`. Float dtypes may differ.

    Args:
        t: The accumulator.
        X: What to add.
        f: The factor.

    Raises:
        popart_exception: If the factor is the number 0.
    """
    if isinstance(f, (int, float)) and f == 0:
        raise popart_exception("accumulate_: the factor f must not be 0.")
    return _accumulate("accumulate_", "accumulate", {"t": t, "X": X}, "f", f, optional=True)


def accumulate_square_(t: Tensor, X: Tensor, f: Factor = 1.0) -> Tensor:
    """Add `f` times the square of `X` to `t`."""
    return _accumulate("accumulate_square_", "accumulate_square", {"t": t, "X": X}, "f", f)


def accumulate_mean_(t: Tensor, X: Tensor, step: Factor) -> Tensor:
    """Let `t`, the mean of `step` values, be the mean of these and `X`."""
    return _accumulate("accumulate_mean_", "accumulate_mean", {"t": t, "X": X}, "step", step)


def accumulate_moving_average_(t: Tensor, X: Tensor, f: Factor) -> Tensor:
    """Let `t` be f t + (1 - f) X."""
    kind = "accumulate_moving_average_"
    return _accumulate(kind, "accumulate_moving_avg", {"t": t, "X": X}, "f", f)


def accumulate_moving_average_square_(t: Tensor, X: Tensor, f: Factor) -> Tensor:
    """Let `t` be f t + (1 - f) X**2."""
    kind = "accumulate_moving_average_square_"
    return _accumulate(kind, "accumulate_moving_avg_square", {"t": t, "X": X}, "f", f)


def accumulator_scale_(t: Tensor, f: Factor) -> Tensor:
    """Multiply `t` by `f`."""
    return _accumulate("accumulator_scale_", "accumulator_scale", {"t": t}, "f", f)


def accumulator_zero_(t: Tensor) -> Tensor:
    """Set `t` to 0."""
    graph = _build.checked("accumulator_zero_", t=t)
    return _build.emit_like(graph, "accumulator_zero_", (t,), None, "accumulator_scale__" + t.name)


def sparse_accumulate_(
    t: Tensor, X: Tensor, indices: Tensor, axis: int = 0, f: Factor = None, W: Optional[Tensor] = None
) -> Tensor:
    """Add `X`, or `f` times `X`, to the parts of `t` at `indices` along `axis`; equal indices add up.

    Args:
        t: The accumulator.
        X: What to add: of the shape of `t`, but as long along `axis` as there are indices.
        indices: Integers.
        axis: The axis, counted from 0.
        f: The factor.
        W: The variable that `t` accumulates for: matters to the device's layout only.

    Raises:
        TypeError: If `axis` is negative.
    """
    kind = "sparse_accumulate_"
    attrs, tensors = _build.scalars(kind, f=f)
    operands = {"t": t, "X": X, "indices": indices, **tensors}
    graph = _build.checked(kind, **operands, **({} if W is None else {"W": W}))
    axis = _build.as_int(kind, "axis", axis)
    if axis < 0:
        raise TypeError(f"{kind}: axis must not be negative: {axis}.")
    fault = _build.scalar_fault(tensors)
    if axis >= len(t.shape) or X.shape != t.shape[:axis] + indices.shape + t.shape[axis + 1 :]:
        fault = f"{X.shape} at indices of the shape {indices.shape} does not fit {t.shape} along axis {axis}"
    elif not indices.dtype.is_int:
        fault = f"indices of {indices.dtype.name} are no integers"
    elif t.dtype is not X.dtype and not _are_floats(t, X):
        fault = f"the dtypes {t.dtype.name} and {X.dtype.name} differ, and are not both floats"
    all_attrs = {**attrs, "axis": axis, "operands": tuple(operands)}
    name = f"sparse_accumulate__{t.name}"
    return _build.emit_like(graph, kind, tuple(operands.values()), all_attrs, name, fault)


# Optimisers


def adam_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Optional[Tensor] = None,
    time_step: Optional[Tensor] = None,
    weight_decay: Factor = None,
    beta1: Factor = None,
    beta2: Factor = None,
    epsilon: Union[float, Tensor] = 1e-07,
) -> Tensor:
    """Return the direction of Adam: m / (sqrt(v) + epsilon) + weight_decay * weight.

    With `time_step`, which is incremented first, the moments are divided by 1 - beta**time_step.

    Args:
        acc_first_order, acc_second_order: The moments m and v, which `accumulate_moving_average_` and its
            twin for squares update.
        weight: The variable, for the weight decay.
        time_step: A float32 scalar: the number of steps done.
        weight_decay: The factor of the weight decay. PopXL runs none but those with a number here: pass 0.0.
        beta1, beta2: The factors of the moving averages.
        epsilon: What is added to the square root.

    Raises:
        ValueError: If there is a weight decay and no weight, or `time_step` without both betas.
    """
    values = {"weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return _updater("adam_updater", acc_first_order, acc_second_order, weight, time_step, values)


def lamb_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Optional[Tensor] = None,
    time_step: Optional[Tensor] = None,
    weight_decay: Factor = None,
    beta1: Factor = None,
    beta2: Factor = None,
    epsilon: Union[float, Tensor] = 1e-07,
) -> Tensor:
    """Return the direction of LAMB, which is that of Adam: see `adam_updater`."""
    values = {"weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return _updater("lamb_updater", acc_first_order, acc_second_order, weight, time_step, values)


def adamax_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Optional[Tensor] = None,
    time_step: Optional[Tensor] = None,
    weight_decay: Factor = None,
    beta1: Factor = 0.9,
    epsilon: Union[float, Tensor] = 1e-07,
) -> Tensor:
    """Return the direction of AdaMax: m / (1 - beta1**time_step) / (v + epsilon) + weight_decay * weight.

    The arguments are those of `adam_updater`; `time_step` must be given.

    Raises:
        ValueError: If there is a weight decay and no weight, or no `time_step`.
    """
    kind = "adamax_updater"
    if time_step is None:
        raise ValueError(f"{kind}: time_step must be given.")
    values = {"weight_decay": weight_decay, "beta1": beta1, "epsilon": epsilon}
    return _updater(kind, acc_first_order, acc_second_order, weight, time_step, values)


def weight_decay_is_required(weight_decay: Factor) -> bool:
    """Whether the weight decay has an effect, so that the weight is needed."""
    return isinstance(weight_decay, Tensor) or bool(weight_decay)


def _updater(
    kind: str, m: Tensor, v: Tensor, weight: Optional[Tensor], time_step: Optional[Tensor], values: Dict[str, Any]
) -> Tensor:
    attrs, tensors = _build.scalars(kind, **values)
    operands: Dict[str, Any] = {"acc_first_order": m, "acc_second_order": v}
    if weight is not None:
        operands["weight"] = weight
    if time_step is not None:
        operands["time_step"] = time_step
    operands.update(tensors)
    graph = _build.checked(kind, **operands)
    if weight_decay_is_required(values["weight_decay"]) and weight is None:
        raise ValueError(f"{kind}: the weight decay needs the weight.")
    if time_step is not None and any(values.get(name, 0) is None for name in ("beta1", "beta2")):
        if kind != "adamax_updater":
            raise ValueError(f"{kind}: time_step needs beta1 and beta2.")
    fault = _updater_fault(operands, values, tensors)
    with graph._undo_on_error():
        if time_step is not None:
            operands["time_step"] = _incremented(graph, time_step, fault)
        all_attrs = {**attrs, "operands": tuple(operands)}
        return _build.emit_like(graph, kind, tuple(operands.values()), all_attrs, "Updater", fault)


def _updater_fault(
    operands: Dict[str, Tensor], values: Dict[str, Any], tensors: Dict[str, Tensor]
) -> Optional[str]:
    """What PopXL does not check when the graph is built."""
    m, v, step = operands["acc_first_order"], operands["acc_second_order"], operands.get("time_step")
    weight = operands.get("weight", m)
    if values["weight_decay"] is None:
        return "weight_decay is None: pass 0.0"
    if step is not None and (step.dtype is not dtypes.float32 or _build.nelms(step.shape) != 1):
        return f"time_step, {step!r}, is no float32 scalar"
    if step is not None and values["beta1"] is None:
        return "beta1 is None"
    if m.shape != v.shape or m.shape != weight.shape:
        return f"the shapes of {m!r}, {v!r} and {weight!r} differ"
    if not _are_floats(m, v, weight):
        return f"{m!r}, {v!r} and {weight!r} are not all floats"
    return _build.scalar_fault(tensors)


def _incremented(graph: Graph, time_step: Tensor, fault: Optional[str]) -> Tensor:
    return time_step if fault else add_(time_step, constant(1, time_step.dtype))


def adam_var_update(
    t: Tensor, x: Tensor, r1: Tensor, r2: Tensor, learning_rate: Factor = None, max_weight_norm: Factor = None
) -> Tensor:
    """Subtract learning_rate * ratio * x from `t`, with ratio = min(sqrt(r1), max_weight_norm) / sqrt(r2).

    The ratio is 1 if `r1`, `r2` or `max_weight_norm` is 0.

    Args:
        t: The weight.
        x: The direction, of an updater.
        r1, r2: The squared norms of the weight and of the direction, of `ops.lamb_square`.
        learning_rate, max_weight_norm: Both must be given for a device to run the op.

    Raises:
        popart_exception: If a factor is a tensor of another graph.
    """
    kind = "adam_var_update"
    attrs, tensors = _build.scalars(kind, learning_rate=learning_rate, max_weight_norm=max_weight_norm)
    operands = {"t": t, "x": x, "r1": r1, "r2": r2}
    graph = _build.checked(kind, **operands)
    for name, factor in tensors.items():
        if factor.graph is not graph:
            raise popart_exception(f"{kind}: {name}, {factor!r}, does not belong to the current graph.")
    operands.update(tensors)
    fault = _build.scalar_fault({"r1": r1, "r2": r2, **tensors})
    if learning_rate is None or max_weight_norm is None:
        fault = "learning_rate or max_weight_norm is None: pass floats"
    elif t.shape != x.shape:
        fault = f"the shapes of {t!r} and {x!r} differ"
    elif not _are_floats(t, x, r1, r2):
        fault = f"{t!r}, {x!r}, {r1!r} and {r2!r} are not all floats"
    all_attrs = {**attrs, "operands": tuple(operands)}
    name = "adam_var_update_out"
    return _build.emit_like(graph, kind, tuple(operands.values()), all_attrs, name, fault)
