"""Updates of variables. Each writes its first tensor in place and returns a tensor of the same storage.

The updaters of optimisers are an exception: they return a new tensor. Factors are floats or scalar tensors.

Errors: TypeError for an operand that is no Tensor or a factor of the wrong type, ValueError for a tensor of another
graph.

The value of an update is the new value of input 0. Emitters work without temporaries; what else an op reads is read
before input 0 is written.
"""

import math
from typing import Any, Dict, Optional, Union

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.graph import Graph
from popfn.host.kernels import emit
from popfn.host.kernels.kernel import Kernel, between_updates, update
from popfn.host.ops import _build
from popfn.host.ops._elementwise import add_
from popfn.host.ops._factors import emit_product, factor_operand, factor_value, scalar_fault, scalars, times
from popfn.host.ops._indexing import add_at
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


def _copy_var_update_value(xp: Any, op: Any, t: Any, x: Any) -> Any:
    return x


def _emit_copy_var_update(s: Any) -> None:
    s.copy(s.out, s.ins[1])


def _accumulate(
    kind: str, name: str, operands: Dict[str, Any], factor: str, value: Factor, optional: bool = False
) -> Tensor:
    """Emit an update of `operands["t"]` with one factor."""
    attrs, tensors = scalars(kind, **{factor: value})
    operands = {**operands, **tensors}
    graph = _build.checked(kind, **operands)
    t, X = operands["t"], operands.get("X")
    fault = scalar_fault(tensors)
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


def _accumulate_value(xp: Any, op: Any, t: Any, x: Any, f: Any = None) -> Any:
    wide = np.promote_types(t.dtype, x.dtype)
    x = x.astype(wide)
    if f is None:
        f = op.attrs["f"]
    if f is not None:
        x = x * np.asarray(f, wide).reshape(())
    return t.astype(wide) + x


def _emit_accumulate(s: Any) -> None:
    t, x = s.ins[0], s.ins[1]
    f = s.op.attrs["f"] if len(s.ins) < 3 else s.reshaped(s.ins[2], ())
    if f is None:
        s.apply("add", t, x)
        return
    product = s.scratch(x.shape, t.dtype)
    s.apply("multiply", x, s.constant(f, t.dtype) if isinstance(f, float) else f, out=product)
    s.apply("add", t, product)


def accumulate_square_(t: Tensor, X: Tensor, f: Factor = 1.0) -> Tensor:
    """Add `f` times the square of `X` to `t`."""
    return _accumulate("accumulate_square_", "accumulate_square", {"t": t, "X": X}, "f", f)


def _accumulate_square_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """t + f X**2."""
    t, x = arrays[:2]
    return t + times(factor_value(xp, op, "f", arrays), x * x)


def _emit_accumulate_square(s: Any) -> None:
    """Emit t + f X**2."""
    t, x = s.ins[:2]
    square, f = emit_product(s, x, x), factor_operand(s, "f", s.out.dtype)
    if f.literal != 1:
        s.apply("multiply", square, f, out=square)
    s.apply("add", t, square)


def accumulate_mean_(t: Tensor, X: Tensor, step: Factor) -> Tensor:
    """Let `t`, the mean of `step` values, be the mean of these and `X`."""
    return _accumulate("accumulate_mean_", "accumulate_mean", {"t": t, "X": X}, "step", step)


def _accumulate_mean_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """The mean of `step` values with the mean t, and X."""
    t, x = arrays[:2]
    step = factor_value(xp, op, "step", arrays)
    return t * (step / (step + 1)) + x * (1 / (step + 1))


def accumulate_moving_average_(t: Tensor, X: Tensor, f: Factor) -> Tensor:
    """Let `t` be f t + (1 - f) X."""
    kind = "accumulate_moving_average_"
    return _accumulate(kind, "accumulate_moving_avg", {"t": t, "X": X}, "f", f)


def _accumulate_moving_average_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """f t + (1 - f) X."""
    t, x = arrays[:2]
    f = factor_value(xp, op, "f", arrays)
    return f * t + (1 - f) * x


def accumulate_moving_average_square_(t: Tensor, X: Tensor, f: Factor) -> Tensor:
    """Let `t` be f t + (1 - f) X**2."""
    kind = "accumulate_moving_average_square_"
    return _accumulate(kind, "accumulate_moving_avg_square", {"t": t, "X": X}, "f", f)


def _accumulate_moving_average_square_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """f t + (1 - f) X**2."""
    t, x = arrays[:2]
    f = factor_value(xp, op, "f", arrays)
    return f * t + (1 - f) * (x * x)


def _emit_moving_average(power: int) -> Any:
    """Emit f t + (1 - f) X**power."""

    def emitter(s: Any) -> None:
        t, x = s.ins[:2]
        f, dtype = factor_operand(s, "f", s.out.dtype), s.out.dtype
        if s.op.attrs["f"] is None:
            rest = s.scratch((), dtype)
            s.apply("subtract", s.constant(1, dtype), f, out=rest)
        else:
            rest = s.constant(1 - s.op.attrs["f"], dtype)
        part = emit_product(s, x, x if power == 2 else rest)
        if power == 2:
            s.apply("multiply", part, rest, out=part)
        s.apply("multiply", t, f)
        s.apply("add", s.out, part)

    return emitter


def accumulator_scale_(t: Tensor, f: Factor) -> Tensor:
    """Multiply `t` by `f`."""
    return _accumulate("accumulator_scale_", "accumulator_scale", {"t": t}, "f", f)


def _accumulator_scale_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """f t."""
    return times(factor_value(xp, op, "f", arrays), arrays[0])


def _emit_accumulator_scale(s: Any) -> None:
    """Emit f t."""
    s.apply("multiply", s.ins[0], factor_operand(s, "f", s.out.dtype))


def accumulator_zero_(t: Tensor) -> Tensor:
    """Set `t` to 0."""
    graph = _build.checked("accumulator_zero_", t=t)
    return _build.emit_like(graph, "accumulator_zero_", (t,), None, "accumulator_scale__" + t.name)


def _accumulator_zero_value(xp: Any, op: Any, t: Any) -> Any:
    return xp.zeros_like(t)


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
    attrs, tensors = scalars(kind, f=f)
    operands = {"t": t, "X": X, "indices": indices, **tensors}
    graph = _build.checked(kind, **operands, **({} if W is None else {"W": W}))
    axis = _build.as_int(kind, "axis", axis)
    if axis < 0:
        raise TypeError(f"{kind}: axis must not be negative: {axis}.")
    fault = scalar_fault(tensors)
    if axis >= len(t.shape) or X.shape != t.shape[:axis] + indices.shape + t.shape[axis + 1 :]:
        fault = f"{X.shape} at indices of the shape {indices.shape} does not fit {t.shape} along axis {axis}"
    elif not indices.dtype.is_int:
        fault = f"indices of {indices.dtype.name} are no integers"
    elif t.dtype is not X.dtype and not _are_floats(t, X):
        fault = f"the dtypes {t.dtype.name} and {X.dtype.name} differ, and are not both floats"
    all_attrs = {**attrs, "axis": axis, "operands": tuple(operands)}
    name = f"sparse_accumulate__{t.name}"
    return _build.emit_like(graph, kind, tuple(operands.values()), all_attrs, name, fault)


def _sparse_accumulate_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """t with X, or f X, added to its parts at the indices."""
    t, x, indices = arrays[:3]
    f = factor_value(xp, op, "f", arrays)
    x = (x if f is None else times(f, x)).astype(t.dtype)
    return add_at(xp, t, op.attrs["axis"], indices, x)


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


def _adam_updater_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """m / (sqrt(v) + epsilon) + weight_decay * weight, both moments corrected for their beginning at 0."""
    m, v = arrays[:2]
    epsilon = factor_value(xp, op, "epsilon", arrays)
    m = times(1 / _correction(xp, op, "beta1", arrays), m)
    v = times(1 / _correction(xp, op, "beta2", arrays), v)
    return _decay(xp, op, m / (xp.sqrt(v) + epsilon), arrays)


def _emit_adam_updater(s: Any) -> None:
    """Emit m / (sqrt(v) * (c1 / sqrt(c2)) + epsilon * c1) + weight_decay * weight, with the corrections c1 and c2."""
    op, (m, v), operands = s.op, s.ins[:2], s.op.attrs["operands"]

    def scales(*arrays: Any) -> Any:
        first, second = _correction(np, op, "beta1", arrays), _correction(np, op, "beta2", arrays)
        return first / np.sqrt(second), factor_value(np, op, "epsilon", arrays) * first

    size = s.scratch(v.shape, s.out.dtype)
    s.apply("sqrt", v, out=size)
    if set(operands) & {"time_step", "epsilon"}:
        name = s.writer.program.bind("scales", scales)
        factor, summand = (s.writer.program.unique(f"{name}_{i}") for i in (0, 1))
        s.line(f"{factor}, {summand} = {name}({', '.join(x.name for x in s.ins)})")
        s.line(f"{s.function('multiply')}({size.name}, {factor}, out={size.name})")
        s.line(f"{s.function('add')}({size.name}, {summand}, out={size.name})")
    else:
        s.apply("add", size, s.constant(op.attrs["epsilon"], s.out.dtype), out=size)
    s.apply("divide", m, size)
    decay = factor_operand(s, "weight_decay", s.out.dtype)
    if "weight" in operands and decay.literal != 0:
        weight = s.ins[operands.index("weight")]
        s.apply("multiply", weight, decay, out=size)
        s.apply("add", s.out, size)


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


def _adamax_updater_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """m / (1 - beta1**time_step) / (v + epsilon) + weight_decay * weight."""
    m, v = arrays[:2]
    m = times(1 / _correction(xp, op, "beta1", arrays), m)
    return _decay(xp, op, m / (v + factor_value(xp, op, "epsilon", arrays)), arrays)


def _correction(xp: Any, op: Any, beta: str, arrays: Any) -> Any:
    """1 - beta**time_step, without the cancellation that beta near 1 would bring; 1 if there is no time step."""
    step, value = _factor_or_none(xp, op, "time_step", arrays), factor_value(xp, op, beta, arrays)
    if step is None:
        return 1.0
    if isinstance(value, float):
        log = math.log(value) if value > 0 else -math.inf
        return -xp.expm1(step * np.float32(log)) if value >= 0 else 1 - xp.power(np.float32(value), step)
    return 1 - xp.power(value, step)


def _factor_or_none(xp: Any, op: Any, name: str, arrays: Any) -> Any:
    return factor_value(xp, op, name, arrays) if name in op.attrs["operands"] else None


def _decay(xp: Any, op: Any, direction: Any, arrays: Any) -> Any:
    """The direction with the weight decay."""
    operands, decay = op.attrs["operands"], factor_value(xp, op, "weight_decay", arrays)
    if "weight" not in operands or isinstance(decay, float) and decay == 0:
        return direction
    return direction + decay * arrays[operands.index("weight")]


def weight_decay_is_required(weight_decay: Factor) -> bool:
    """Whether the weight decay has an effect, so that the weight is needed."""
    return isinstance(weight_decay, Tensor) or bool(weight_decay)


def _updater(
    kind: str, m: Tensor, v: Tensor, weight: Optional[Tensor], time_step: Optional[Tensor], values: Dict[str, Any]
) -> Tensor:
    attrs, tensors = scalars(kind, **values)
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
    return scalar_fault(tensors)


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
    attrs, tensors = scalars(kind, learning_rate=learning_rate, max_weight_norm=max_weight_norm)
    operands = {"t": t, "x": x, "r1": r1, "r2": r2}
    graph = _build.checked(kind, **operands)
    for name, factor in tensors.items():
        if factor.graph is not graph:
            raise popart_exception(f"{kind}: {name}, {factor!r}, does not belong to the current graph.")
    operands.update(tensors)
    fault = scalar_fault({"r1": r1, "r2": r2, **tensors})
    if learning_rate is None or max_weight_norm is None:
        fault = "learning_rate or max_weight_norm is None: pass floats"
    elif t.shape != x.shape:
        fault = f"the shapes of {t!r} and {x!r} differ"
    elif not _are_floats(t, x, r1, r2):
        fault = f"{t!r}, {x!r}, {r1!r} and {r2!r} are not all floats"
    all_attrs = {**attrs, "operands": tuple(operands)}
    name = "adam_var_update_out"
    return _build.emit_like(graph, kind, tuple(operands.values()), all_attrs, name, fault)


def _adam_var_update_value(xp: Any, op: Any, *arrays: Any) -> Any:
    """t less learning_rate * ratio * x."""
    return arrays[0] - _step(xp, op, arrays) * arrays[1]


def _emit_adam_var_update(s: Any) -> None:
    """Emit t - (learning_rate * ratio) * x."""
    op, t, x = s.op, s.ins[0], s.ins[1]
    name = s.writer.program.bind("step", lambda *arrays: _step(np, op, (None, None, *arrays)))
    step = f"{name}({', '.join(y.name for y in s.ins[2:])})"
    product = s.scratch(x.shape, s.out.dtype)
    s.line(f"{s.function('multiply')}({x.name}, {step}, out={product.name})")
    s.apply("subtract", t, product)


def _step(xp: Any, op: Any, arrays: Any) -> Any:
    """The learning rate times the ratio of the norms, which is 1 if one of them or their limit is 0."""
    r1, r2, limit = arrays[2], arrays[3], factor_value(xp, op, "max_weight_norm", arrays)
    weight_norm = xp.minimum(xp.sqrt(xp.reshape(r1, ())), limit)
    norm = xp.sqrt(xp.reshape(r2, ()))
    has_norms = (weight_norm != 0) & (norm != 0)
    ratio = xp.where(has_norms, weight_norm / xp.where(has_norms, norm, xp.ones_like(norm)), xp.ones_like(norm))
    return factor_value(xp, op, "learning_rate", arrays) * ratio


KERNELS: Dict[str, Kernel] = {
    "copy_var_update_": Kernel(_copy_var_update_value, _emit_copy_var_update, writes=True, overwrites=True),
    "accumulate_": update(_accumulate_value, _emit_accumulate),
    "accumulate_square_": update(_accumulate_square_value, _emit_accumulate_square),
    "accumulate_mean_": update(_accumulate_mean_value),
    "accumulate_moving_average_": update(_accumulate_moving_average_value, _emit_moving_average(1)),
    "accumulate_moving_average_square_": update(_accumulate_moving_average_square_value, _emit_moving_average(2)),
    "accumulator_scale_": update(_accumulator_scale_value, _emit_accumulator_scale),
    "accumulator_zero_": Kernel(_accumulator_zero_value, emit.fill_zero, writes=True, overwrites=True),
    "sparse_accumulate_": update(_sparse_accumulate_value),
    "adam_updater": between_updates(_adam_updater_value, _emit_adam_updater, (0, 1)),
    "lamb_updater": between_updates(_adam_updater_value, _emit_adam_updater, (0, 1)),
    "adamax_updater": between_updates(_adamax_updater_value),
    "adam_var_update": update(_adam_var_update_value, _emit_adam_var_update),
}
