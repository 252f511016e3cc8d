"""Updates of variables: the new value of input 0, and the directions of optimisers.

Operands that may be numbers or tensors: the attribute holds the number, or None; then the tensor is an input.
"""

import math
from typing import Any, Dict, Tuple

import numpy as np

from popfn.host.engine import emit
from popfn.host.engine.families.indexing import add_at
from popfn.host.engine.kernel import Kernel


def _factor(xp: Any, op: Any, name: str, arrays: Any) -> Any:
    """An operand that is a number, a tensor of one element, or None."""
    operands = op.attrs["operands"]
    return xp.reshape(arrays[operands.index(name)], ()) if name in operands else op.attrs[name]


def _times(factor: Any, x: Any) -> Any:
    """A product; where the factor is the number 1, what is multiplied, so that integers stay exact."""
    return x if isinstance(factor, float) and factor == 1 else x * factor


def scaled_add(xp: Any, op: Any, *arrays: Any) -> Any:
    """a X + b Y."""
    x, y = arrays[:2]
    return _times(_factor(xp, op, "a", arrays), x) + _times(_factor(xp, op, "b", arrays), y)


def increment_mod(xp: Any, op: Any, t: Any) -> Any:
    """The remainder of (t + increment) / modulus, with the sign of the dividend."""
    increment, modulus = (t.dtype.type(op.attrs[name]) for name in ("increment", "modulus"))
    return xp.fmod(t + increment, modulus)


def accumulate_square(xp: Any, op: Any, *arrays: Any) -> Any:
    """t + f X**2."""
    t, x = arrays[:2]
    return t + _times(_factor(xp, op, "f", arrays), x * x)


def accumulate_mean(xp: Any, op: Any, *arrays: Any) -> Any:
    """The mean of `step` values with the mean t, and X."""
    t, x = arrays[:2]
    step = _factor(xp, op, "step", arrays)
    return t * (step / (step + 1)) + x * (1 / (step + 1))


def accumulate_moving_average(xp: Any, op: Any, *arrays: Any) -> Any:
    """f t + (1 - f) X."""
    t, x = arrays[:2]
    f = _factor(xp, op, "f", arrays)
    return f * t + (1 - f) * x


def accumulate_moving_average_square(xp: Any, op: Any, *arrays: Any) -> Any:
    """f t + (1 - f) X**2."""
    t, x = arrays[:2]
    f = _factor(xp, op, "f", arrays)
    return f * t + (1 - f) * (x * x)


def accumulator_scale(xp: Any, op: Any, *arrays: Any) -> Any:
    """f t."""
    return _times(_factor(xp, op, "f", arrays), arrays[0])


def sparse_accumulate(xp: Any, op: Any, *arrays: Any) -> Any:
    """t with X, or f X, added to its parts at the indices."""
    t, x, indices = arrays[:3]
    f = _factor(xp, op, "f", arrays)
    x = (x if f is None else _times(f, x)).astype(t.dtype)
    return add_at(xp, t, op.attrs["axis"], indices, x)


# Optimisers


def _correction(xp: Any, op: Any, beta: str, arrays: Any) -> Any:
    """1 - beta**time_step, without the cancellation that beta near 1 would bring; 1 if there is no time step."""
    step, value = _factor_or_none(xp, op, "time_step", arrays), _factor(xp, op, beta, arrays)
    if step is None:
        return 1.0
    if isinstance(value, float):
        log = math.log(value) if value > 0 else -math.inf
        return -xp.expm1(step * np.float32(log)) if value >= 0 else 1 - xp.power(np.float32(value), step)
    return 1 - xp.power(value, step)


def _factor_or_none(xp: Any, op: Any, name: str, arrays: Any) -> Any:
    return _factor(xp, op, name, arrays) if name in op.attrs["operands"] else None


def _decay(xp: Any, op: Any, direction: Any, arrays: Any) -> Any:
    """The direction with the weight decay."""
    operands, decay = op.attrs["operands"], _factor(xp, op, "weight_decay", arrays)
    if "weight" not in operands or isinstance(decay, float) and decay == 0:
        return direction
    return direction + decay * arrays[operands.index("weight")]


def adam_updater(xp: Any, op: Any, *arrays: Any) -> Any:
    """m / (sqrt(v) + epsilon) + weight_decay * weight, both moments corrected for their beginning at 0."""
    m, v = arrays[:2]
    epsilon = _factor(xp, op, "epsilon", arrays)
    m = _times(1 / _correction(xp, op, "beta1", arrays), m)
    v = _times(1 / _correction(xp, op, "beta2", arrays), v)
    return _decay(xp, op, m / (xp.sqrt(v) + epsilon), arrays)


def adamax_updater(xp: Any, op: Any, *arrays: Any) -> Any:
    """m / (1 - beta1**time_step) / (v + epsilon) + weight_decay * weight."""
    m, v = arrays[:2]
    m = _times(1 / _correction(xp, op, "beta1", arrays), m)
    return _decay(xp, op, m / (v + _factor(xp, op, "epsilon", arrays)), arrays)


def adam_var_update(xp: Any, op: Any, *arrays: Any) -> Any:
    """t less learning_rate * ratio * x."""
    return arrays[0] - _step(xp, op, arrays) * arrays[1]


def _step(xp: Any, op: Any, arrays: Any) -> Any:
    """The learning rate times the ratio of the norms, which is 1 if one of them or their limit is 0."""
    r1, r2, limit = arrays[2], arrays[3], _factor(xp, op, "max_weight_norm", arrays)
    weight_norm = xp.minimum(xp.sqrt(xp.reshape(r1, ())), limit)
    norm = xp.sqrt(xp.reshape(r2, ()))
    has_norms = (weight_norm != 0) & (norm != 0)
    ratio = xp.where(has_norms, weight_norm / xp.where(has_norms, norm, xp.ones_like(norm)), xp.ones_like(norm))
    return _factor(xp, op, "learning_rate", arrays) * ratio


# How the NumPy engine computes them, without temporaries. What else an op reads is read before input 0 is written.


def _factor_operand(s: Any, name: str, dtype: np.dtype) -> Any:
    """The operand of a factor: a constant, or a scalar."""
    operands = s.op.attrs["operands"]
    if name in operands:
        return s.reshaped(s.ins[operands.index(name)], ())
    return s.constant(s.op.attrs[name], dtype)


def _product(s: Any, x: Any, factor: Any) -> Any:
    product = s.scratch(x.shape, s.out.dtype)
    s.apply("multiply", x, factor, out=product)
    return product


def emit_scaled_add(s: Any) -> None:
    """Emit a X + b Y."""
    if s.out.dtype.kind != "f":
        emit.call_value(s)
        return
    x, y = s.ins[:2]
    a, b = (_factor_operand(s, name, s.out.dtype) for name in ("a", "b"))
    if b.literal != 1 or a.literal != 1:
        y = _product(s, y, b)
    if a.literal != 1:
        s.apply("multiply", x, a)
        x = s.out
    s.apply("add", x, y)


def emit_accumulate_square(s: Any) -> None:
    """Emit t + f X**2."""
    t, x = s.ins[:2]
    square, f = _product(s, x, x), _factor_operand(s, "f", s.out.dtype)
    if f.literal != 1:
        s.apply("multiply", square, f, out=square)
    s.apply("add", t, square)


def emit_moving_average(power: int) -> Any:
    """Emit f t + (1 - f) X**power."""

    def emitter(s: Any) -> None:
        t, x = s.ins[:2]
        f, dtype = _factor_operand(s, "f", s.out.dtype), s.out.dtype
        if s.op.attrs["f"] is None:
            rest = s.scratch((), dtype)
            s.apply("subtract", s.constant(1, dtype), f, out=rest)
        else:
            rest = s.constant(1 - s.op.attrs["f"], dtype)
        part = _product(s, x, x if power == 2 else rest)
        if power == 2:
            s.apply("multiply", part, rest, out=part)
        s.apply("multiply", t, f)
        s.apply("add", s.out, part)

    return emitter


def emit_accumulator_scale(s: Any) -> None:
    """Emit f t."""
    s.apply("multiply", s.ins[0], _factor_operand(s, "f", s.out.dtype))


def emit_adam_updater(s: Any) -> None:
    """Emit m / (sqrt(v) * (c1 / sqrt(c2)) + epsilon * c1) + weight_decay * weight, with the corrections c1 and c2."""
    op, (m, v), operands = s.op, s.ins[:2], s.op.attrs["operands"]

    def scales(*arrays: Any) -> Any:
        first, second = _correction(np, op, "beta1", arrays), _correction(np, op, "beta2", arrays)
        return first / np.sqrt(second), _factor(np, op, "epsilon", arrays) * first

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
    decay = _factor_operand(s, "weight_decay", s.out.dtype)
    if "weight" in operands and decay.literal != 0:
        weight = s.ins[operands.index("weight")]
        s.apply("multiply", weight, decay, out=size)
        s.apply("add", s.out, size)


def emit_adam_var_update(s: Any) -> None:
    """Emit t - (learning_rate * ratio) * x."""
    op, t, x = s.op, s.ins[0], s.ins[1]
    name = s.writer.program.bind("step", lambda *arrays: _step(np, op, (None, None, *arrays)))
    step = f"{name}({', '.join(y.name for y in s.ins[2:])})"
    product = s.scratch(x.shape, s.out.dtype)
    s.line(f"{s.function('multiply')}({x.name}, {step}, out={product.name})")
    s.apply("subtract", t, product)


def _update(value: Any, emitter: Any = emit.call_value) -> Kernel:
    return Kernel(value, emitter, float32=True, writes=True)


def _fresh(value: Any, emitter: Any = emit.call_value, inplace: Tuple[int, ...] = ()) -> Kernel:
    """What stands between updates in a step of an optimiser."""
    return Kernel(value, emitter, inplace, safe=True, float32=True)


KERNELS: Dict[str, Kernel] = {
    "scaled_add": _fresh(scaled_add, emit_scaled_add, (0, 1)),
    "scaled_add_": _update(scaled_add, emit_scaled_add),
    "increment_mod": _fresh(increment_mod),
    "increment_mod_": _update(increment_mod),
    "accumulate_square_": _update(accumulate_square, emit_accumulate_square),
    "accumulate_mean_": _update(accumulate_mean),
    "accumulate_moving_average_": _update(accumulate_moving_average, emit_moving_average(1)),
    "accumulate_moving_average_square_": _update(accumulate_moving_average_square, emit_moving_average(2)),
    "accumulator_scale_": _update(accumulator_scale, emit_accumulator_scale),
    "sparse_accumulate_": _update(sparse_accumulate),
    "adam_updater": _fresh(adam_updater, emit_adam_updater, (0, 1)),
    "lamb_updater": _fresh(adam_updater, emit_adam_updater, (0, 1)),
    "adamax_updater": _fresh(adamax_updater),
    "adam_var_update": _update(adam_var_update, emit_adam_var_update),
}
