"""popfn's primitives in JAX, written from their definitions: what random programs are compared with.

`run(jaxpr, *arrays)` is a function that JAX can differentiate. Where JAX would round a float16 result more than once,
the translation computes in float32 and rounds once, as popfn promises.
"""
from typing import Any, Callable, Dict, List

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from popfn.trace.jaxpr import Jaxpr, Literal

# Hundreds of small kernels are compiled and run once each.
jax.config.update("jax_disable_most_optimizations", True)
HIGHEST = lax.Precision.HIGHEST


def wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f(p, *xs)` in float32 for float16."""
    def g(p: Any, *xs: Any) -> Any:
        if xs[0].dtype != jnp.float16:
            return f(p, *xs)
        return f(p, *(x.astype(jnp.float32) if x.dtype == jnp.float16 else x for x in xs)).astype(jnp.float16)
    return g


def simple(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *xs: f(*xs)


def take(p: Any, x: Any, indices: Any) -> Any:
    n = x.shape[p.axis]
    return jnp.take(x, jnp.where(indices < 0, indices + n, indices), axis=p.axis, mode="clip")


def take_transpose(p: Any, x: Any, indices: Any) -> Any:
    i = jnp.clip(jnp.where(indices < 0, indices + p.size, indices), 0, p.size - 1)
    chosen = jax.nn.one_hot(i, p.size, dtype=x.dtype)  # indices..., size
    axes = list(range(p.axis, p.axis + i.ndim)), list(range(i.ndim))
    return jnp.moveaxis(jnp.tensordot(x, chosen, axes, precision=HIGHEST), -1, p.axis)


def dot_general(p: Any, x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, ((p.x_contract, p.y_contract), (p.x_batch, p.y_batch)), precision=HIGHEST)


def convert(p: Any, x: Any) -> Any:
    return x != 0 if p.dtype.kind == "b" else x.astype(p.dtype)


def pad(p: Any, x: Any, value: Any) -> Any:  # not lax.pad of both: its transpose fails where only the value is linear
    widths = list(zip(p.low, p.high, p.interior))
    inside = lax.pad(jnp.ones(x.shape, jnp.int32), 0, widths) == 1
    return jnp.where(inside, lax.pad(x, jnp.zeros((), x.dtype), widths), value)


PRIMITIVES: Dict[str, Callable[..., Any]] = {name: simple(f) for name, f in dict(
    abs=jnp.abs, sign=jnp.sign, neg=jnp.negative, floor=jnp.floor, ceil=jnp.ceil, exp=jnp.exp, expm1=jnp.expm1,
    log=jnp.log, log1p=jnp.log1p, sqrt=jnp.sqrt, sin=jnp.sin, cos=jnp.cos, tanh=jnp.tanh, relu=jax.nn.relu,
    stop_gradient=lax.stop_gradient, add=jnp.add, sub=jnp.subtract, mul=jnp.multiply, safe_mul=jnp.multiply,
    div=jnp.divide, maximum=jnp.maximum, minimum=jnp.minimum, floor_divide=jnp.floor_divide, remainder=jnp.remainder,
    eq=jnp.equal, ne=jnp.not_equal, lt=jnp.less, le=jnp.less_equal, gt=jnp.greater, ge=jnp.greater_equal,
    select=jnp.where).items()}
PRIMITIVES.update({name: wide(simple(f)) for name, f in dict(
    rsqrt=lax.rsqrt, erf=lax.erf, sigmoid=jax.nn.sigmoid, pow=jnp.power,
    gelu=lambda x: jax.nn.gelu(x, approximate=True)).items()})
PRIMITIVES.update({name: wide(f) for name, f in dict(
    integer_pow=lambda p, x: lax.integer_pow(x, p.exponent), sum=lambda p, x: jnp.sum(x, p.axes, dtype=x.dtype),
    prod=lambda p, x: jnp.prod(x, p.axes, dtype=x.dtype), softmax=lambda p, x: jax.nn.softmax(x, p.axis),
    dot_general=dot_general, take_transpose=take_transpose).items()})
PRIMITIVES.update({
    "not": simple(jnp.logical_not), "and": simple(jnp.logical_and), "or": simple(jnp.logical_or), "convert": convert,
    "take": take,
    "reshape": lambda p, x: jnp.reshape(x, p.shape), "broadcast": lambda p, x: jnp.broadcast_to(x, p.shape),
    "transpose": lambda p, x: jnp.transpose(x, p.permutation), "squeeze": lambda p, x: jnp.squeeze(x, p.axes),
    "slice": lambda p, x: lax.slice(x, p.starts, p.stops, p.strides), "reverse": lambda p, x: lax.rev(x, p.axes),
    "concat": lambda p, *xs: jnp.concatenate(xs, p.axis),
    "pad": pad,
    "iota": lambda p: lax.broadcasted_iota(p.dtype, p.shape, p.axis),
    "max": lambda p, x: jnp.max(x, p.axes), "min": lambda p, x: jnp.min(x, p.axes),
    "argmax": lambda p, x: jnp.argmax(x, p.axis).astype(jnp.int32),
    "call": lambda p, *xs: run(p.jaxpr, *xs),
})


def run(jaxpr: Jaxpr, *arrays: Any) -> List[Any]:
    """A jaxpr's outputs in JAX."""
    env: Dict[Any, Any] = dict(zip(jaxpr.constvars, map(jnp.asarray, jaxpr.constants)))
    env.update(zip(jaxpr.inputs, arrays))

    def value(atom: Any) -> Any:
        return jnp.asarray(np.asarray(atom.value)) if isinstance(atom, Literal) else env[atom]
    for eqn in jaxpr.eqns:
        out = PRIMITIVES[eqn.primitive.name](eqn.primitive, *map(value, eqn.inputs))
        outs = out if eqn.primitive.multiple else [out]
        for v, y in zip(eqn.outputs, outs):
            assert (y.shape, y.dtype) == (v.aval.shape, v.aval.dtype), (eqn.primitive, y.shape, y.dtype, v.aval)
            env[v] = y
    return [value(a) for a in jaxpr.outputs]
