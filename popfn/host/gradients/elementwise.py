"""Gradients of ops that work on each element by itself, and of softmax and cumsum."""

import math
from typing import Any, Callable, Dict

import numpy as np

from popfn.host import dtypes, ops
from popfn.host.gradients.site import (
    Gradients,
    Rule,
    Site,
    again,
    cast,
    in_float32,
    number,
    only_where,
    reversed_along,
    scaled,
    sum_to,
    zeros,
)
from popfn.host.tensor import Constant, Tensor

Formula = Callable[[Tensor, Tensor], Tensor]


def _of_input(formula: Formula) -> Rule:
    """The rule of an op whose gradient is a formula of the output's gradient and the input."""
    return lambda site: [formula(site.g, site.x())]


def _of_output(formula: Formula) -> Rule:
    """The rule of an op whose gradient is a formula of the output's gradient and the output."""
    return lambda site: [formula(site.g, site.y())]


def _passes(site: Site) -> Gradients:
    return [site.g]


def _zero(site: Site) -> Gradients:
    return [zeros(site.x())]


def _one_plus(t: Tensor) -> Tensor:
    return ops.add(t, number(1, t.dtype))


def _one_minus(t: Tensor) -> Tensor:
    return ops.sub(number(1, t.dtype), t)


def _cos(g: Tensor, x: Tensor) -> Tensor:
    return ops.negate(ops.mul(g, ops.sin(x)))


@in_float32
def _tanh(g: Tensor, y: Tensor) -> Tensor:
    return ops.mul(g, _one_minus(ops.mul(y, y)))


def _sqrt(g: Tensor, y: Tensor) -> Tensor:
    return ops.div(g, scaled(y, 2))


def _relu(g: Tensor, y: Tensor) -> Tensor:
    return only_where(ops.greater(y, number(0, y.dtype)), g)


# t/2 (1 + tanh(LINEAR t + CUBIC t**3)), see ops.gelu
LINEAR, CUBIC = 0.7978845608, 0.0356774081


@in_float32
def _gelu(g: Tensor, x: Tensor) -> Tensor:
    square = ops.mul(x, x)
    bend = ops.tanh(ops.mul(x, ops.add(scaled(square, CUBIC), number(LINEAR, x.dtype))))
    slope = ops.add(scaled(square, 3 * CUBIC), number(LINEAR, x.dtype))
    curve = ops.mul(ops.mul(x, _one_minus(ops.mul(bend, bend))), slope)
    return ops.mul(g, scaled(ops.add(_one_plus(bend), curve), 0.5))


@in_float32
def _geluerf(g: Tensor, x: Tensor) -> Tensor:
    tiny = number(1e-20, x.dtype)
    # geluerf(x) / x is the distribution function. Close to 0, where the quotient has no meaning, it is that of `tiny`.
    safe = ops.where(ops.greater(ops.abs(x), tiny), x, tiny)
    distribution = ops.div(ops.geluerf(safe), safe)
    density = scaled(ops.exp(scaled(ops.mul(x, x), -0.5)), math.sqrt(0.5 / math.pi))
    return ops.mul(g, ops.add(distribution, ops.mul(x, density)))


@in_float32
def _swish(g: Tensor, x: Tensor) -> Tensor:
    logistic = scaled(_one_plus(ops.tanh(scaled(x, 0.5))), 0.5)  # does not overflow
    return ops.mul(g, ops.mul(logistic, _one_plus(ops.mul(x, _one_minus(logistic)))))


def _clip(site: Site) -> Gradients:
    g, y = site.g, site.y()
    low, high = site.op.attrs["min"], site.op.attrs["max"]
    if not low == -math.inf:
        g = only_where(ops.greater(y, number(low, y.dtype)), g)
    if not high == math.inf:
        g = only_where(ops.greater(number(high, y.dtype), y), g)
    return [g]


def _softmax(site: Site) -> Gradients:
    @in_float32
    def formula(g: Tensor, y: Tensor) -> Tensor:
        weighted = ops.mul(g, y)
        return ops.sub(weighted, ops.mul(y, ops.sum(weighted, site.op.attrs["axis"], True)))

    return [formula(site.g, site.y())]


def _cumsum(site: Site) -> Gradients:
    site.x()  # PopART's gradient op takes the input, though it has no use for it
    axis = site.op.attrs["axis"]
    return [reversed_along(again(site, reversed_along(site.g, axis)), axis)]


def _cast(site: Site) -> Gradients:
    return [cast(site.g, site.op.inputs[0].dtype)]


def _to_float8(site: Site) -> Gradients:
    dtype = site.op.inputs[0].dtype
    scale = site.x(1)
    if dtype in (dtypes.float8_143, dtypes.float8_152):
        return []
    return [ops.pow2scale_cast_from_fp8(site.g, scale, dtype)]


def _from_float8(site: Site) -> Gradients:
    return [ops.pow2scale_cast_to_fp8(site.g, site.x(1), site.op.inputs[0].dtype)]


def _print_tensor(site: Site) -> Gradients:
    attrs = dict(site.op.attrs)
    if not attrs["print_gradient"]:
        return [site.g]
    attrs.update(title="Gradient___" + attrs["title"], print_self=True, print_gradient=False)
    (made,) = site.g.graph._add_op("print_tensor", (site.g,), [("print_out",) + site.g.spec.to_tuple()], attrs).outputs
    return [made]


# Several operands. PopART's gradient ops of these take the operands and the output, whatever they need.


def _all_values(site: Site) -> Any:
    return (site.y(),) + tuple([site.x(i) for i in range(len(site.op.inputs))])


def _to_operands(site: Site, *grads: Any) -> Gradients:
    """Sum gradients, of the shape of the output, over the axes along which the operands were broadcast."""
    return [g if g is None else sum_to(g, t.shape) for g, t in zip(grads, site.op.inputs)]


def _add(site: Site) -> Gradients:
    return _to_operands(site, *[site.g if wanted else None for wanted in site.wanted])


def _sub(site: Site) -> Gradients:
    left, right = site.wanted
    if right:
        _all_values(site)
    return _to_operands(site, site.g if left else None, ops.negate(site.g) if right else None)


def _mul(site: Site) -> Gradients:
    _, lhs, rhs = _all_values(site)
    if lhs.dtype is rhs.dtype:
        left = ops.mul(site.g, rhs) if site.wanted[0] else None
        right = ops.mul(site.g, lhs) if site.wanted[1] else None
        return _to_operands(site, left, right)
    # A float16 tensor and one float32 element; the product is float16.
    g, lhs, rhs = [cast(t, dtypes.float32) for t in (site.g, lhs, rhs)]
    products = [ops.mul(g, other) if wanted else None for other, wanted in zip((rhs, lhs), site.wanted)]
    grads = _to_operands(site, *products)
    return [t if t is None else cast(t, operand.dtype) for t, operand in zip(grads, site.op.inputs)]


def _div(site: Site) -> Gradients:
    y, _, rhs = _all_values(site)
    left = ops.div(site.g, rhs)
    right = ops.negate(ops.mul(left, y)) if site.wanted[1] else None
    return _to_operands(site, left, right)


def _pow(site: Site) -> Gradients:
    y, base, exponent = _all_values(site)
    left = right = None
    if site.wanted[0]:
        lowered = ops.pow(base, ops.sub(exponent, number(1, exponent.dtype)))
        left = ops.mul(site.g, ops.mul(exponent, lowered))
        if _may_be_zero(site.op.inputs[1]):  # 0 times an infinity, where the base is 0
            left = ops.where(ops.equal(exponent, number(0, exponent.dtype)), number(0, left.dtype), left)
    if site.wanted[1]:
        one = number(1, base.dtype)
        safe = ops.where(ops.equal(base, number(0, base.dtype)), one, base)
        right = ops.mul(site.g, ops.mul(y, ops.log(safe)))
    return _to_operands(site, left, right)


def _may_be_zero(t: Tensor) -> bool:
    return not isinstance(t, Constant) or not np.all(t.data)


def _fmod(site: Site) -> Gradients:
    _all_values(site)
    return _to_operands(site, site.g, None)


def _maximum(site: Site) -> Gradients:
    y = site.y()
    return [only_where(ops.equal(site.x(i), y), site.g) if wanted else None for i, wanted in enumerate(site.wanted)]


def _where(site: Site) -> Gradients:
    condition, g = site.x(), site.g
    left = only_where(condition, g) if site.wanted[1] else None
    right = ops.where(condition, number(0, g.dtype), g) if site.wanted[2] else None
    return _to_operands(site, None, left, right)


RULES: Dict[str, Rule] = {
    "abs": _of_input(lambda g, x: ops.mul(ops.sign(x), g)),
    "negate": lambda site: [ops.negate(site.g)],
    "ceil": _zero,
    "floor": _zero,
    "sign": _zero,
    "exp": _of_output(ops.mul),
    "log": _of_input(ops.div),
    "sqrt": _of_output(_sqrt),
    "sin": _of_input(lambda g, x: ops.mul(g, ops.cos(x))),
    "cos": _of_input(_cos),
    "tanh": _of_output(_tanh),
    "relu": _of_output(_relu),
    "gelu": _of_input(_gelu),
    "geluerf": _of_input(_geluerf),
    "swish": _of_input(_swish),
    "clip": _clip,
    "softmax": _softmax,
    "cumsum": _cumsum,
    "cast": _cast,
    "pow2scale_cast_to_fp8": _to_float8,
    "pow2scale_cast_from_fp8": _from_float8,
    "identity": _passes,
    "print_tensor": _print_tensor,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "fmod": _fmod,
    "maximum": _maximum,
    "where": _where,
}
