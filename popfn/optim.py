"""popfn.optim: optimisers as pairs of pure functions over pytrees, gradient clipping and loss scaling.

An optimiser has `init(params)`, which gives its state, and `update(grads, state, params)`, which gives new parameters
and the new state. Both are pytrees, so they live on the device as the state of a program; moments are float32 whatever
the parameters' dtype, and float64 only for float64. A learning rate is a number, a scalar array, or a function of the
step's number (an int32 scalar that begins at 0).

>>> import numpy as np
>>> opt = sgd(0.5)
>>> params = {"w": np.array([1.0, 2.0], np.float32)}
>>> params, state = opt.update({"w": np.array([2.0, 2.0], np.float32)}, opt.init(params), params)
>>> params["w"]
Array([0., 1.], dtype=float32)
"""
from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple, Union

from . import numpy as pnp
from ._collectives import names_in_scope, pmin, psum
from ._promotion import check_number, converted, filled
from .trace import tree
from .trace.array import Array
from .trace.aval import accumulator_dtype, float32, int32
from .trace.errors import ArgumentError, DtypeError, TreeError, message, user_source
from .trace.tracer import aval_of

Rate = Union[float, Array, Callable[[Array], Any]]
#: Named axes; leaves that vary over one are parts of whole leaves, as `popfn.zero` makes them.
Names = Union[str, Sequence[str]]
#: (grads, state, params) -> (new params, new state)
Update = Callable[[Any, Any, Any], Tuple[Any, Any]]


class Optimiser(NamedTuple):
    """`init(params) -> state` and `update(grads, state, params) -> (params, state)`."""

    init: Callable[[Any], Any]
    update: Update


class SgdState(NamedTuple):
    """The number of steps taken, and the momentum's velocity; None without momentum."""

    step: Any
    velocity: Any


class AdamState(NamedTuple):
    """The number of steps taken, and the running means of the gradients and of their squares."""

    step: Any
    mean: Any
    square: Any


def sgd(learning_rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimiser:
    """Gradient descent, with momentum if asked for (Sutskever et al., 2013).

    With momentum m the velocity v becomes m v + g, and the step goes along v, with `nesterov` along g + m v.
    `weight_decay` times the parameter is added to its gradient.
    """
    _check_factors("sgd", momentum=momentum, weight_decay=weight_decay)

    def init(params: Any) -> SgdState:
        return SgdState(_zero(), tree.map(_moment, params) if momentum else None)

    def update(grads: Any, state: SgdState, params: Any) -> Tuple[Any, SgdState]:
        grads = _matching("sgd", grads, params)
        if weight_decay:
            grads = tree.map(lambda g, p: g + weight_decay * _wide(p), grads, params)
        velocity, direction = state.velocity, grads
        if momentum:
            velocity = tree.map(lambda v, g: momentum * v + g, state.velocity, grads)
            direction = tree.map(lambda v, g: g + momentum * v, velocity, grads) if nesterov else velocity
        rate = _rate(learning_rate, state.step)
        return tree.map(lambda p, d: _moved(p, rate * d), params, direction), SgdState(state.step + 1, velocity)
    return Optimiser(init, update)


def adam(learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimiser:
    """Kingma and Ba, arXiv 1412.6980: steps along mean / (sqrt(square) + eps), both corrected for their start at 0."""
    return _adam("adam", learning_rate, b1, b2, eps, 0.0)


def adamw(learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
          weight_decay: float = 0.01) -> Optimiser:
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101): learning rate x decay x parameter."""
    return _adam("adamw", learning_rate, b1, b2, eps, weight_decay)


def _adam(name: str, learning_rate: Rate, b1: float, b2: float, eps: float, weight_decay: float) -> Optimiser:
    _check_rates(name, b1=b1, b2=b2)
    _check_factors(name, eps=eps, weight_decay=weight_decay)

    def update(grads: Any, state: AdamState, params: Any) -> Tuple[Any, AdamState]:
        grads = _matching(name, grads, params)
        new, direction = _adam_direction(grads, state, b1, b2, eps)
        rate = _rate(learning_rate, state.step)

        def moved(p: Any, d: Any) -> Any:
            return _moved(p, rate * (d + weight_decay * _wide(p)) if weight_decay else rate * d)
        return tree.map(moved, params, direction), new
    return Optimiser(_adam_init, update)


def lamb(learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, weight_decay: float = 0.01,
         max_weight_norm: float = float("inf"), axis_name: Names = ()) -> Optimiser:
    """Adam's direction with weight decay, scaled per leaf by the norm of the parameter over that of the direction.

    The ratio is 1 where either norm is 0. Norms are those of whole leaves also where each replica along `axis_name` has
    a part. You et al., arXiv 1904.00962.
    """
    _check_rates("lamb", b1=b1, b2=b2)
    _check_factors("lamb", eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm)

    def update(grads: Any, state: AdamState, params: Any) -> Tuple[Any, AdamState]:
        grads = _matching("lamb", grads, params)
        new, direction = _adam_direction(grads, state, b1, b2, eps)
        rate = _rate(learning_rate, state.step)

        def moved(p: Any, d: Any) -> Any:
            wide = _wide(p)
            d = d + weight_decay * wide
            weight_norm = pnp.minimum(global_norm(wide, axis_name), max_weight_norm)
            norm = global_norm(d, axis_name)
            both = pnp.logical_and(weight_norm > 0, norm > 0)
            ratio = pnp.where(both, weight_norm / pnp.where(both, norm, 1.0), 1.0)
            return _moved(p, rate * ratio * d)
        return tree.map(moved, params, direction), new
    return Optimiser(_adam_init, update)


def _adam_init(params: Any) -> AdamState:
    return AdamState(_zero(), tree.map(_moment, params), tree.map(_moment, params))


def _adam_direction(grads: Any, state: AdamState, b1: float, b2: float, eps: float) -> Tuple[AdamState, Any]:
    mean = tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
    square = tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, state.square, grads)
    step = state.step + 1
    weights = {}
    for d in dict.fromkeys(aval_of(m).dtype for m in tree.leaves(mean)):
        count = converted(step, d)
        weights[d] = 1 - pnp.pow(b1, count), 1 - pnp.pow(b2, count)

    def one(m: Any, s: Any) -> Any:
        first, second = weights[aval_of(m).dtype]
        return m / first / (pnp.sqrt(s / second) + eps)
    direction = tree.map(one, mean, square)
    return AdamState(step, mean, square), direction


# ---------------------------------------------------------------------------- gradients
def global_norm(values: Any, axis_name: Names = ()) -> Array:
    """The Euclidean norm of all leaves together, a float32 scalar; float64 if a leaf is.

    Leaves that vary over an axis of `axis_name` are parts of whole leaves, of which it is the norm, on all replicas;
    without it the norm would be that of a replica's parts. Raises AxisError for an axis that is not in scope.

    >>> import numpy as np, popfn as pf
    >>> pf.shard(lambda x: global_norm(x, "dp"), pf.Mesh(dp=2), pf.P("dp"), pf.P())(np.float32([3, 4]))
    Array(5., dtype=float32)
    """
    names = names_in_scope("global_norm", axis_name)
    totals: Dict[Tuple[str, ...], Any] = {(): pnp.asarray(0.0, float32)}
    for leaf in tree.leaves(values):
        wide = _wide(leaf)
        over = _cut_over(wide, names)
        square = pnp.sum(wide * wide)
        totals[over] = totals[over] + square if over in totals else square
    total = totals.pop(())
    for over, part in totals.items():
        total = total + psum(part, over)
    return pnp.sqrt(total)


def clip_by_global_norm(grads: Any, max_norm: float, axis_name: Names = ()) -> Tuple[Any, Array]:
    """The gradients, scaled down so that their global norm is at most `max_norm`, and the norm that they had.

    The norm is that of `global_norm(grads, axis_name)`. Raises ArgumentError for a negative `max_norm`. Pascanu,
    Mikolov and Bengio, arXiv 1211.5063.
    """
    check_number("clip_by_global_norm", "max_norm", max_norm, lambda n: n >= 0, "of 0 or more")
    norm = global_norm(grads, axis_name)
    factor = pnp.where(norm > max_norm, max_norm / pnp.where(norm > 0, norm, 1.0), 1.0)
    return tree.map(lambda g: converted(_wide(g) * factor, aval_of(g).dtype), grads), norm


def all_finite(values: Any, axis_name: Names = ()) -> Array:
    """Whether every element of every leaf is finite: a bool. Of all parts of leaves that vary over `axis_name`."""
    found = pnp.asarray(True)
    names = names_in_scope("all_finite", axis_name)
    for leaf in tree.leaves(values):
        found = pnp.logical_and(found, pnp.all(pnp.abs(_wide(leaf)) < float("inf")))
    over = _cut_over(found, names)
    return pmin(pnp.astype(found, int32), over) > 0 if over else found


class LossScale(NamedTuple):
    """Dynamic loss scaling: the factor, and the number of steps since it changed (Micikevicius et al., 1710.03740)."""

    scale: Any
    good_steps: Any


def loss_scale(initial: float = 2.0 ** 15) -> LossScale:
    """A LossScale to begin with."""
    return LossScale(pnp.asarray(initial, float32), _zero())


def scaled(loss: Any, state: LossScale) -> Array:
    """The loss times the scale, in the loss's dtype: differentiate this."""
    return converted(_wide(loss) * state.scale, aval_of(loss).dtype)


def unscaled(grads: Any, state: LossScale) -> Any:
    """Gradients of the scaled loss divided by the scale, in float32 or float64."""
    return tree.map(lambda g: _wide(g) / state.scale, grads)


def adjusted(state: LossScale, finite: Any, *, growth_interval: int = 2000, growth: float = 2.0,
             backoff: float = 0.5) -> LossScale:
    """The scale for the next step: smaller if gradients were not finite, larger after an interval of good steps.

    Leave out the step itself where they were not: `select(finite, new, old)`.
    """
    grown = state.good_steps + 1 >= growth_interval
    scale = pnp.where(finite, pnp.where(grown, state.scale * growth, state.scale), state.scale * backoff)
    steps = pnp.where(pnp.logical_and(finite, pnp.logical_not(grown)), state.good_steps + 1, 0)
    return LossScale(pnp.clip(scale, 1.0, 2.0 ** 24), pnp.astype(steps, int32))


def select(condition: Any, new: Any, old: Any) -> Any:
    """`new` if a bool scalar is True, `old` otherwise, leaf by leaf."""
    return tree.map(lambda a, b: pnp.where(condition, a, b), new, old)


# ---------------------------------------------------------------------------- small things
def _zero() -> Array:
    return pnp.asarray(0, int32)


def _wide(x: Any) -> Any:
    return converted(x, accumulator_dtype(aval_of(x).dtype))


def _moment(p: Any) -> Array:
    return filled(aval_of(p).shape, 0, accumulator_dtype(aval_of(p).dtype))


def _cut_over(x: Any, names: Tuple[str, ...]) -> Tuple[str, ...]:
    """The axes along which replicas have parts of a leaf."""
    return tuple([name for name in names if name in aval_of(x).varying])


def _rate(learning_rate: Rate, step: Array) -> Any:
    return learning_rate(step) if callable(learning_rate) else learning_rate


def _moved(p: Any, step: Any) -> Array:
    """The parameter less the step, in its own dtype."""
    return converted(_wide(p) - step, aval_of(p).dtype)


def _check_rates(name: str, **rates: Any) -> None:
    """Raise ArgumentError for a part of a running mean that is not kept from 0 to below 1."""
    for what, value in rates.items():
        check_number(name, what, value, lambda b: 0 <= b < 1, "from 0 to below 1")


def _check_factors(name: str, **factors: Any) -> None:
    """Raise ArgumentError for a negative number."""
    for what, value in factors.items():
        check_number(name, what, value, lambda n: n >= 0, "of 0 or more")


def _matching(name: str, grads: Any, params: Any) -> Any:
    """The gradients, widened; TreeError or ArgumentError if their structure or shapes are not the parameters'."""
    if tree.structure(grads) != tree.structure(params):
        raise TreeError(message(f"{name}: the gradients have another structure than the parameters",
                                tree.first_difference(params, grads, "the parameters", "the gradients", "params"),
                                at=user_source(3)))
    for g, p, path in zip(tree.leaves(grads), tree.leaves(params), tree.paths(tree.structure(params), "params")):
        try:
            aval_of(g)
        except DtypeError as e:
            raise ArgumentError(message(f"{name}: the gradient of {path} is not an array: {e}",
                                        at=user_source(3))) from None
        if aval_of(g).shape != aval_of(p).shape:
            raise ArgumentError(message(f"{name}: the gradient of {path} is {aval_of(g)}, the parameter {aval_of(p)}",
                                        at=user_source(3)))
    return tree.map(lambda g, p: _wide(g), grads, params)
