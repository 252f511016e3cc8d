"""Sizes of loops: no transform of a loop grows with the number of its steps, and loops without any are right."""
from typing import Any, Callable

import numpy as np
import pytest
from control_flow import agree, equations

import popfn as pf
import popfn.numpy as pnp
from popfn.transforms.simplify import simplify

f32 = np.float32
W = np.linspace(-0.5, 0.5, 9, dtype=f32).reshape(3, 3)
C = np.linspace(-1, 1, 3, dtype=f32)


# ---------------------------------------------------------------------------- sizes
def rows(w: Any, c: Any, n: int) -> Any:
    """A scan over arrays, with a carry of two leaves."""
    carry, ys = pf.scan(lambda c, x: ((pnp.tanh(c[0] @ w + x), c[1] * x), c[0] * x), (c, c), pnp.ones((n, 3)))
    return pnp.sum(carry[0] * carry[1]) + pnp.sum(ys)


def counted(w: Any, c: Any, n: int) -> Any:
    return pnp.sum(pf.fori_loop(0, n, lambda i, c: pnp.sin(c @ w) * (i + 1), c))


def bounded(w: Any, c: Any, n: int) -> Any:
    return pnp.sum(pf.while_loop(lambda c: pnp.sum(c) < 1, lambda c: pnp.sin(c @ w), c, max_steps=n))


def inside(w: Any, c: Any, n: int) -> Any:
    """A loop in a branch in a loop."""
    def step(c: Any, _: None) -> Any:
        return pf.cond(pnp.sum(c) > 0, lambda c: pf.fori_loop(0, n, lambda i, c: pnp.sin(c @ w), c), pnp.cos, c), None
    return pnp.sum(pf.scan(step, c, None, length=n)[0])


def mapped(w: Any, c: Any, n: int) -> Any:
    return pnp.sum(pf.map(pf.checkpoint(lambda x: pnp.tanh(x @ w)), pnp.ones((n, 3)) * c))


def transformed(f: Any, n: int, transform: str) -> Any:
    def g(w: Any, c: Any) -> Any:
        return f(w, c, n)
    grad = pf.grad(g, (0, 1))
    if transform == "grad":
        return grad, (W, C)
    if transform == "grad of grad":
        return pf.grad(lambda w, c: sum(pnp.sum(pnp.sin(x)) for x in grad(w, c))), (W, C)
    if transform == "vmap of grad":
        return pf.vmap(grad, (None, 0)), (W, np.stack([C, C]))
    return lambda w, c: pf.jvp(g, (w, c), (w, c)), (W, C)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap of grad", "grad of grad"])
@pytest.mark.parametrize("f", [rows, counted, bounded, inside, mapped], ids=lambda f: f.__name__)
def test_transforms_do_not_grow_with_the_number_of_steps(f, transform):
    def sizes(n: int) -> Any:
        g, args = transformed(f, n, transform)
        jaxpr = pf.make_jaxpr(g)(*args)
        text = pf.lower(g, *(pf.spec(x.shape) for x in args)).as_text()
        return equations(jaxpr), equations(simplify(jaxpr)), text.count("ops.")
    assert sizes(7) == sizes(500)  # not 3: arrays of equal shapes may be one array


# ---------------------------------------------------------------------------- no steps
def nothing_carried(m: Any, n: Any, c: Any, x: Any) -> Any:
    """Found by random programs: the step's result does not depend on the carry, and the loop's does."""
    return m.scan(lambda c, _: (n.zeros(3, dtype=f32), None), c, None, length=0)[0] * x


NO_STEPS = [
    nothing_carried,
    lambda m, n, c, x: m.scan(lambda c, _: (x, c), c, None, length=0),
    lambda m, n, c, x: m.scan(lambda c, _: ((c[1], n.sin(c[0])), c[0] * x), (c, x), None, length=0),
    lambda m, n, c, x: m.scan(lambda c, y: (n.tanh(c) + y * x, y), c, n.zeros((0, 3)), reverse=True),
    lambda m, n, c, x: m.scan(lambda c, y: (c, n.sin(y)), None, x[:0]),
    lambda m, n, c, x: m.fori_loop(2, 2, lambda i, c: x * i, c),  # not 1: JAX 0.4.13 does not take that
    lambda m, n, c, x: m.while_loop(lambda c: n.sum(c) < 9, lambda c: n.sin(x), c, 0),
    lambda m, n, c, x: m.while_loop(lambda c: n.sum(c) > 9, lambda c: n.sin(x), c, 2),
    lambda m, n, c, x: m.fori_loop(0, 2, lambda i, c: m.scan(lambda d, _: (x * i, c), c, None, length=0)[0], c),
    lambda m, n, c, x: m.cond(n.sum(x) > 0, lambda c: m.fori_loop(0, 0, lambda i, c: x * i, c), n.sin, c)]


@pytest.mark.parametrize("f", NO_STEPS)
def test_loops_without_steps(f: Callable[..., Any]):
    agree(f, C, C * C + f32(0.5))
