"""Time per equation of tracing, of gradients and of vmap, against jax.make_jaxpr on the same functions.

    python benchmarks/trace.py [--rounds N]

The last row is popfn alone: what a gradient of a long loop costs to trace and to lower, against that of a short one.

popfn runs as it always does: with source lines, leak checks and weak types. An equation is one of the function's own,
as popfn writes it; both sides are divided by the same number. Each call traces a new function object, so that neither
side answers from a cache of whole functions; JAX keeps its caches of single operations.
"""
from __future__ import annotations

import argparse
import functools
from typing import Any, Callable, List

import jax
import jax.numpy as jnp
import numpy as np
from _compare import alternate, row
from _networks import transformer_data, transformer_layer

import popfn as pf
import popfn.numpy as pnp


def mlp(np_like: Any, layers: int) -> Callable[..., Any]:
    """The mean square of an MLP with tanh layers."""
    def f(params: Any, x: Any) -> Any:
        for w, b in params:
            x = np_like.tanh(x @ w + b)
        return np_like.mean(x * x)
    return f


def chain(np_like: Any, count: int) -> Callable[..., Any]:
    """`count` elementwise operations, one after the other."""
    def f(x: Any) -> Any:
        y = x
        for _ in range(count // 4):
            y = np_like.sin(y) * x
            y = y + x
            y = y * 0.5
        return np_like.sum(y)
    return f


def transformer(np_like: Any, softmax: Callable[..., Any], gelu: Callable[..., Any]) -> Callable[..., Any]:
    """The mean square of a transformer; the layers are written out, one after the other."""
    layer = transformer_layer(np_like, softmax, gelu, heads=8)

    def f(layers: Any, x: Any) -> Any:
        for p in layers:
            x = layer(p, x)
        return np_like.mean(x * x)
    return f


def trace_ours(f: Callable[..., Any], args: List[Any]) -> Any:
    """A jaxpr by popfn, which keeps none."""
    return pf.make_jaxpr(f)(*args)


def trace_theirs(f: Callable[..., Any], args: List[Any]) -> Any:
    """A jaxpr by JAX, of a function that it has not seen."""
    return jax.make_jaxpr(lambda *a: f(*a))(*args)


def compare(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], args: List[Any], rounds: int) -> None:
    """Print the rows for one function."""
    count = len(pf.make_jaxpr(ours)(*args).eqns)

    for what, f, g in ((f"{name}, trace", ours, theirs),
                       (f"{name}, grad", pf.value_and_grad(ours), jax.value_and_grad(theirs))):
        ours_s, theirs_s = alternate([functools.partial(trace_ours, f, args), functools.partial(trace_theirs, g, args)],
                                     rounds, repeat=3)
        row(what, ours_s / count, theirs_s / count, 1e-6, "us/eqn")


def compare_vmap(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], args: List[Any], rounds: int) -> None:
    """Print the row for vmap over the last argument of a function that is differentiated by the first."""
    count = len(pf.make_jaxpr(ours)(*args).eqns)
    lanes = [*args[:-1], np.stack([args[-1]] * 2)]
    axes = (*[None] * (len(args) - 1), 0)
    f, g = pf.vmap(pf.value_and_grad(ours), axes), jax.vmap(jax.value_and_grad(theirs), axes)
    ours_s, theirs_s = alternate([functools.partial(trace_ours, f, lanes), functools.partial(trace_theirs, g, lanes)],
                                 rounds, repeat=1)
    row(f"{name}, vmap of grad", ours_s / count, theirs_s / count, 1e-6, "us/eqn")


def lower_grad_of_scan(length: int) -> pf.Program:
    """The program of the gradient of a loop of so many steps."""
    def loss(w: Any, h: Any) -> Any:
        h, ys = pf.scan(lambda h, _: (pnp.tanh(h @ w) + h, h * h), h, None, length=length)
        return pnp.sum(h) + pnp.mean(ys)
    return pf.lower(lambda *args: pf.grad(loss, (0, 1))(*args), pf.spec((16, 16)), pf.spec((8, 16)))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    params = [(np.zeros((64, 64), np.float32), np.zeros(64, np.float32)) for _ in range(20)]
    x = np.zeros((8, 64), np.float32)
    compare("20-layer MLP", mlp(pnp, 20), mlp(jnp, 20), [params, x], rounds)
    compare("1,000 elementwise operations", chain(pnp, 1000), chain(jnp, 1000), [np.zeros(16, np.float32)], rounds)
    layers, x, _ = transformer_data(6)
    networks = transformer(pnp, pf.nn.softmax, pf.nn.gelu), \
        transformer(jnp, jax.nn.softmax, lambda x: jax.nn.gelu(x, approximate=True))
    compare("6-layer transformer", *networks, [layers, x], rounds)
    compare_vmap("6-layer transformer", *networks, [layers, x], rounds)
    long_s, short_s = alternate([lambda: lower_grad_of_scan(3000), lambda: lower_grad_of_scan(10)], rounds, repeat=3)
    print(f"{'grad of a scan, traced and lowered':36} 3,000 steps {long_s * 1e3:6.2f} ms   "
          f"10 steps {short_s * 1e3:6.2f} ms   ratio {long_s / short_s:6.3f}")


if __name__ == "__main__":
    main()
