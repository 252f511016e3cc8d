"""Forward mode and a custom_vjp: refused where the function is used, as its rule is for reverse mode only."""
from pathlib import Path

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import MissingRuleError
from popfn.transforms.linear import linear_parts


@pf.custom_vjp
def twice_the_slope(x):
    return pnp.sin(x)


twice_the_slope.defvjp(lambda x: (pnp.sin(x), x), lambda x, ct: (2 * ct * pnp.cos(x),))
UNUSED = {
    "plain": lambda x: (twice_the_slope(x), x * x)[1], "jit": pf.jit(lambda x: (twice_the_slope(x), x * x)[1]),
    "a result of scan": lambda x: pf.scan(lambda c, _: (c * c, twice_the_slope(c)), x, None, length=1)[0],
    "in scan": lambda x: pf.scan(lambda c, _: ((twice_the_slope(c), c * c)[1], None), x, None, length=1)[0],
    "a carry": lambda x: pf.scan(lambda c, _: ((c[0] * c[0], twice_the_slope(c[1])), None), (x, x), None,
                                 length=1)[0][0],
    "cond": lambda x: pf.cond(x > 0, lambda: (twice_the_slope(x), x * x)[1], lambda: x),
    "checkpoint": pf.checkpoint(lambda x: (twice_the_slope(x), x * x)[1]),
    "used where it stands still": lambda x: x * x + twice_the_slope(pf.stop_gradient(x)) * 0,
    "vmap": lambda x: pf.vmap(lambda x: (twice_the_slope(x), x * x)[1])(x[None])[0],
    "batch_serialise": lambda x: pf.batch_serialise(lambda x: (twice_the_slope(x), x * x)[1], 1)(x[None])[0]}


@pytest.mark.parametrize("name", UNUSED)
@pytest.mark.parametrize("run", [lambda f: f, pf.jit], ids=["eager", "jit"])
def test_forward_mode_where_a_rule_for_reverse_mode_is_not_used(name, run):
    f, x, one = UNUSED[name], np.float32(0.5), np.float32(1)
    for got in (run(lambda x: pf.jvp(f, (x,), (one,))[1])(x), run(lambda x: pf.linearize(f, x)[1](one))(x),
                run(pf.jacfwd(f))(x), run(pf.grad(f))(x), run(pf.jacfwd(pf.jacfwd(f)))(x) / 2):
        assert got.item() == 1


AROUND = {
    "plain": lambda f: f, "jit": pf.jit, "vmap": lambda f: lambda x: pf.vmap(f)(x[None])[0],
    "scan": lambda f: lambda x: pf.scan(lambda c, _: (f(c), c), x, None, length=3)[0],
    "scan of results": lambda f: lambda x: pf.scan(lambda c, v: (c, f(v)), 0.0, x * pnp.arange(3.0))[1].sum(),
    "while_loop": lambda f: lambda x: pf.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x),
                                                    max_steps=3)[1],
    "cond": lambda f: lambda x: pf.cond(x > 0, f, lambda x: x, x), "checkpoint": pf.checkpoint,
    "batch_serialise": lambda f: lambda x: pf.batch_serialise(f, 2)(x * pnp.arange(4.0)).sum(),
    "batch_serialise of a sum": lambda f: lambda x: pf.batch_serialise(
        lambda x: f(x).sum(), 2, reduce="sum", residuals="recompute")(x * pnp.arange(4.0)),
    "scan of scan": lambda f: lambda x: pf.scan(lambda c, _: (pf.scan(lambda c, _: (f(c), None), c, None, length=2)[0],
                                                              None), x, None, length=2)[0]}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("run", [lambda f: f, pf.jit], ids=["eager", "jit"])
def test_forward_mode_over_reverse_mode_of_a_rule(name, run):
    """grad has put the programs of the rule in place, and those have a forward mode. Against differences."""
    f, x, h = AROUND[name](twice_the_slope), np.float32(0.5), 1e-2
    slope = pf.grad(f)
    want = (slope(np.float32(x + h)).item() - slope(np.float32(x - h)).item()) / (2 * h)
    for got in (run(lambda x: pf.jvp(slope, (x,), (np.float32(1),))[1])(x),
                run(lambda x: pf.linearize(slope, x)[1](np.float32(1)))(x),
                run(pf.jacfwd(slope))(x), run(pf.hessian(f))(x) if name == "plain" else run(pf.grad(slope))(x)):
        np.testing.assert_allclose(got, want, rtol=1e-2)
    with pytest.raises(MissingRuleError, match="twice_the_slope has a custom_vjp rule, which forward mode cannot use"):
        run(lambda x: pf.jvp(f, (x,), (np.float32(1),)))(x)


def test_residuals_that_nobody_takes_may_depend_on_tangents():
    """A rule, found by a random program, that keeps for a checkpoint's derivative what only dead code there takes."""
    jaxpr = pf.parse_jaxpr((Path(__file__).parent / "data" / "linear_rule.jaxpr").read_text())
    parts = linear_parts(jaxpr, (False,) * 4 + (True,) * 3, "the rule is not linear")
    assert parts.moves == (False, False, True, True)
