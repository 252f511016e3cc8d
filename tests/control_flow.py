"""What the tests of loops and branches share: two oracles for every transform, and the texts of errors.

A function under test takes two modules first: one with the control flow (popfn or an oracle), one with the array
functions (popfn.numpy or jax.numpy). JAX is the first oracle. The second has Python's own loops, which popfn writes out
step by step, and takes its derivatives through operations that are tested elsewhere.
"""
import re
from types import SimpleNamespace
from typing import Any, Callable, List, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.jaxpr import Jaxpr

LANES = 3


def bounded_while(cond: Any, body: Any, init: Any, max_steps: Any = None) -> Any:
    """JAX's while_loop, or what is the same for so many steps as a scan that can be differentiated backwards."""
    if max_steps is None:
        return lax.while_loop(cond, body, init)

    def step(carry: Any, _: None) -> Any:
        return lax.cond(cond(carry), body, lambda c: c, carry), None
    init = jax.tree_util.tree_map(jnp.asarray, init)
    return lax.scan(step, init, None, length=max_steps)[0]


LAX = SimpleNamespace(scan=lax.scan, cond=lax.cond, switch=lax.switch, map=lax.map, fori_loop=lax.fori_loop,
                      while_loop=bounded_while, associative_scan=lax.associative_scan, vmap=jax.vmap, grad=jax.grad,
                      jit=jax.jit)


def python_scan(f: Any, init: Any, xs: Any, length: Any = None, reverse: bool = False) -> Any:
    """A loop written out."""
    leaves = pf.tree.leaves(xs)
    steps = range(len(leaves[0]) if leaves else length)
    carry, rows = pf.tree.map(pnp.asarray, init), []
    for i in reversed(steps) if reverse else steps:
        carry, y = f(carry, pf.tree.map(lambda x, i=i: x[i], xs))
        rows.insert(0 if reverse else len(rows), y)
    return carry, pf.tree.map(lambda *ys: pnp.stack([pnp.asarray(y) for y in ys]), *rows)


def python_fori(lower: int, upper: int, body: Any, init: Any) -> Any:
    """A loop written out."""
    for i in range(lower, upper):
        init = body(i, init)
    return init


def python_cond(pred: Any, true_fun: Any, false_fun: Any, *operands: Any) -> Any:
    """Both branches, of which one is selected."""
    return pf.tree.map(lambda a, b: pnp.where(pred, a, b), true_fun(*operands), false_fun(*operands))


def python_associative_scan(fn: Any, elems: Any, reverse: bool = False) -> Any:
    """A fold written out."""
    count = len(pf.tree.leaves(elems)[0])
    rows: List[Any] = []
    for i in reversed(range(count)) if reverse else range(count):
        row = pf.tree.map(lambda x, i=i: x[i:i + 1], elems)
        rows.append(fn(rows[-1], row) if rows else row)
    return pf.tree.map(lambda *parts: pnp.concat(parts), *(rows[::-1] if reverse else rows))


PYTHON = SimpleNamespace(scan=python_scan, fori_loop=python_fori, cond=python_cond,
                         associative_scan=python_associative_scan)


def close(got: Any, want: Any, what: str, rtol: float = 2e-5) -> None:
    """Equal trees: dtypes, shapes, and values within rounding."""
    got_leaves, want_leaves = pf.tree.leaves(got), jax.tree_util.tree_leaves(want)
    assert len(got_leaves) == len(want_leaves), what
    for a, b in zip(map(np.asarray, got_leaves), map(np.asarray, want_leaves)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), what
        if a.dtype.kind == "f":
            scale = np.max(np.abs(b[np.isfinite(b)]), initial=0.1)
            tolerance = 4e-3 if a.dtype == np.float16 else rtol
            np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), tolerance, tolerance * scale, err_msg=what)
        else:
            np.testing.assert_array_equal(a, b, err_msg=what)


def is_float(x: Any) -> bool:
    return np.asarray(x).dtype.kind == "f"


def loss_of(f: Callable[..., Any], array: Any) -> Callable[..., Any]:
    """A scalar to which each float element of a result contributes with a weight of its own."""
    def loss(*args: Any) -> Any:
        total = array.sum(array.zeros(1, dtype=np.float32))
        for i, y in enumerate(pf.tree.leaves(f(*args))):
            if str(y.dtype) in ("float16", "float32") and np.prod(y.shape):
                weights = np.cos(np.arange(np.prod(y.shape), dtype="f4") + i).reshape(y.shape)
                total = total + array.sum(y.astype(np.float32) * weights)
        return total
    return loss


def derived(ours: Any, array: Any, system: Any, floats: Sequence[int], in_axes: Sequence[Any], reverse: bool,
            second: bool) -> Any:
    """The transforms of a function, by name, each a function of the same arguments and of those with lanes."""
    loss = loss_of(ours, array)

    def jvp(*xs: Any) -> Any:
        def of_floats(*some: Any) -> Any:
            rest = iter(some)
            return loss(*[next(rest) if i in floats else x for i, x in enumerate(xs)])
        directions = [(np.cos(np.arange(np.prod(xs[i].shape)) + i) / 2).reshape(xs[i].shape) for i in floats]
        return system.jvp(of_floats, tuple(xs[i] for i in floats), tuple(
            d.astype(str(xs[i].dtype)) for i, d in zip(floats, directions)))[1]
    out = {"value": (ours, False), "vmap": (system.vmap(ours, tuple(in_axes)), True), "jvp": (jvp, False)}
    if reverse:
        grad = system.grad(loss, tuple(floats))
        out["grad"] = grad, False
        out["vmap of grad"] = system.vmap(grad, tuple(in_axes)), True
        out["grad of vmap"] = system.grad(lambda *xs: array.sum(system.vmap(loss, tuple(in_axes))(*xs)),
                                          tuple(floats)), True
        if second:
            out["grad of grad"] = system.grad(loss_of(grad, array), tuple(floats)), False
    return out if floats else {"value": (ours, False)}


def agree(f: Callable[..., Any], *args: Any, reverse: bool = True, second: bool = True, lowers: bool = True,
          oracle: str = "jax", rtol: float = 2e-5) -> None:
    """f and its transforms agree with an oracle: forward and reverse mode, twice, and vmap, eager and jitted.

    `reverse` says whether the oracle can differentiate it backwards, `lowers` whether it can be lowered.
    """
    wide = [np.asarray(x) for x in args]
    floats = tuple(i for i, x in enumerate(wide) if is_float(x))
    in_axes = [0 if i in floats else None for i in range(len(wide))]
    mixed = [np.stack([x, x * 0.5, x * 0.25]).astype(x.dtype) if a == 0 else x for x, a in zip(wide, in_axes)]
    options = floats, in_axes, reverse, second
    ours = derived(lambda *xs: f(pf, pnp, *xs), pnp, pf, *options)

    def results(transforms: Any, wide: Any, mixed: Any) -> Any:
        return {name: g(*(mixed if lanes else wide)) for name, (g, lanes) in transforms.items()}
    if oracle == "jax":  # all in one program, because XLA takes long for each
        theirs = derived(lambda *xs: jax.tree_util.tree_map(jnp.asarray, f(LAX, jnp, *xs)), jnp, jax, *options)
        wanted = jax.jit(lambda wide, mixed: results(theirs, wide, mixed))(wide, mixed)
    else:
        theirs = derived(lambda *xs: pf.tree.map(pnp.asarray, f(PYTHON, pnp, *xs)), pnp, pf, *options)
        wanted = results(theirs, wide, mixed)
    for name, got in results(ours, wide, mixed).items():
        close(got, wanted[name], name, rtol)
    # One program of all transforms: what they share becomes one graph.
    for name, got in pf.jit(lambda wide, mixed: results(ours, wide, mixed))(wide, mixed).items():
        close(got, wanted[name], f"jit of {name}", rtol)
    if lowers:
        with pf.Session(pf.lower(ours["value"][0], *wide)) as session:
            close(session.run(*wide), wanted["value"], "the lowered program", rtol)


def equations(jaxpr: Jaxpr) -> int:
    """The number of equations, those in jaxprs included."""
    return sum(1 + sum(map(equations, getattr(eqn.primitive, "jaxprs", ()))) for eqn in jaxpr.eqns)


def all_equations(jaxpr: Jaxpr) -> List[Any]:
    """Every equation, those in jaxprs included."""
    return [e for eqn in jaxpr.eqns
            for e in (eqn, *(e for j in getattr(eqn.primitive, "jaxprs", ()) for e in all_equations(j)))]


def message_of(error: Any) -> List[str]:
    """The lines of an error, without the numbers of lines in files."""
    return [re.sub(r"([\w/]+\.py):\d+", r"\1", line.strip()) for line in str(error.value).splitlines()]
