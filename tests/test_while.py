"""while_loop and fori_loop with traced bounds: with a bound on the steps and without, lanes that end apart, errors."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_flow import agree, close, equations, message_of
from jax import lax

import popfn as pf
import popfn.numpy as pnp
from popfn.lower.runner import has_unbounded_loop
from popfn.trace.errors import ArgumentError, LoweringError, MissingRuleError
from popfn.transforms.loop import While
from popfn.transforms.simplify import simplify

f32, i32 = np.float32, np.int32


def grow(m, n, x, y, **bound):
    """The number of steps depends on both; one part of the carry is an integer."""
    def body(carry):
        a, b, k = carry
        return a * 1.4 + n.sin(b) * y, b * 0.9 + x, k + 1
    return m.while_loop(lambda c: c[0] < 20, body, (x, n.exp(y) * x, 0), **bound)


@pytest.mark.parametrize("x", [2.0, 6.0, 19.5, 50.0])
def test_a_bound_that_is_not_reached_changes_nothing(x):
    agree(lambda m, n, x, y: grow(m, n, x, y, max_steps=12), f32(x), f32(0.3), rtol=1e-4)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_bound_that_is_reached_ends_the_loop(bound):
    agree(lambda m, n, x, y: grow(m, n, x, y, max_steps=bound), f32(2), f32(0.3), second=False, rtol=1e-4)


@pytest.mark.parametrize("x", [2.0, 50.0])
def test_without_a_bound_there_are_values_and_forward_mode(x):
    agree(grow, f32(x), f32(0.3), reverse=False, lowers=False, rtol=1e-4)


def test_a_bounded_gradient_is_that_of_the_steps_that_are_taken():
    """Also where the step after the last would divide by zero."""
    def f(x, n, max_steps=9):
        return pf.while_loop(lambda c: c[1] > 0, lambda c: (c[0] * x / c[1], c[1] - 1), (x, n), max_steps)[0]
    for n, want in [(3.0, 4 * 2.0 ** 3 / 6), (0.0, 1.0), (1.0, 4.0)]:
        np.testing.assert_allclose(pf.grad(f)(f32(2), f32(n)), want, 1e-6)
        np.testing.assert_allclose(pf.jit(pf.grad(f))(f32(2), f32(n)), want, 1e-6)
    got = pf.jit(pf.vmap(pf.grad(f)))(np.full(3, 2, f32), f32([3, 0, 1]))
    np.testing.assert_allclose(got, [4 * 2.0 ** 3 / 6, 1, 4], 1e-6)
    np.testing.assert_allclose(pf.jit(pf.grad(f, 1))(f32(2), f32(3)), jax.grad(
        lambda n: 2.0 ** 4 / (n * (n - 1) * (n - 2)))(3.0), 1e-5)


def test_lanes_end_apart_and_see_safe_values_only():
    def f(x, n):
        """The inner loop does not end for a lane whose n is 0, nor for negative x."""
        def step(c):
            x, n = c
            y = pf.while_loop(lambda v: v < 1, lambda v: v * (1 + n), x)
            return pnp.sqrt(y), n - 1
        return pf.while_loop(lambda c: c[1] > 0, step, (x, n))
    xs, ns = f32([0.5, -1, 0.25, 3]), f32([2, 0, 3, 1])
    want = [f(x, n) for x, n in zip(xs, ns)]
    for run in (pf.vmap(f), pf.jit(pf.vmap(f))):
        got = run(xs, ns)
        for i in range(2):
            np.testing.assert_array_equal(got[i], [w[i] for w in want])
    assert pf.vmap(f)(xs[:0], ns[:0])[0].shape == (0,)


def test_lanes_that_end_together_share_the_counter():
    jaxpr = pf.make_jaxpr(pf.vmap(lambda x: pf.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))))(
        pf.spec((4, 2)))
    loop, = [e for e in jaxpr.eqns if isinstance(e.primitive, While)]
    assert [v.aval.shape for v in loop.outputs] == [(), (4, 2)]


def test_a_named_axis_in_the_condition_and_the_body():
    def f(x):
        return pf.while_loop(lambda c: c < 10, lambda c: c + pf.axis_index("i") + x, x)
    np.testing.assert_array_equal(pf.vmap(f, axis_name="i")(i32([4, 3, 10])), [12, 11, 10])

    def together(x):
        return pf.while_loop(lambda c: pf.pmax(c, "i") < 10, lambda c: c + x, x)
    np.testing.assert_array_equal(pf.vmap(together, axis_name="i")(i32([4, 3])), [12, 9])


def test_weak_numbers_take_the_type_of_the_step():
    got = pf.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + f32([1, 2])[0]), (0, 0))
    assert (str(got[0].aval), str(got[1].aval)) == ("~i32[]", "f32[]")


def test_dead_parts_of_a_loop_are_removed():
    def f(x, y):
        return pf.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + c[1], c[1], pnp.exp(c[2]) * y), (x, x, y))[0]
    loop, = simplify(pf.make_jaxpr(f)(f32(1), f32(2))).eqns
    assert (len(loop.inputs), len(loop.outputs)) == (2, 2)
    assert float(pf.jit(f)(f32(1), f32(2))) == float(f(f32(1), f32(2)))


def test_programs_do_not_grow_with_the_bound():
    def program(bound):
        g = pf.grad(lambda x, y: grow(pf, pnp, x, y, max_steps=bound)[0])
        jaxpr = pf.make_jaxpr(g)(f32(1), f32(1))
        text = pf.lower(g, f32(1), f32(1)).as_text()
        return equations(jaxpr), text.count("ops."), text.count("ops.repeat")
    assert program(10) == program(3000)


def test_jit_runs_a_loop_without_a_bound_on_the_host():
    def f(x):
        return {"loop": grow(pf, pnp, x, x), "x": x, "twice": x * 2}
    jaxpr = pf.make_jaxpr(f)(f32(2))
    assert has_unbounded_loop(jaxpr) and not has_unbounded_loop(pf.make_jaxpr(pnp.sin)(f32(2)))
    inner = pf.jit(f)
    outer = pf.jit(lambda x: inner(x)["loop"][0] + 1)  # in a call, and in a branch
    branch = pf.jit(lambda x: pf.cond(x > 0, lambda x: inner(x)["loop"][0], lambda x: x, x))
    want = grow(pf, pnp, f32(2), f32(2))[0]
    assert float(inner(f32(2))["loop"][0]) == float(want) == float(branch(f32(2)))
    assert float(outer(f32(2))) == float(want + 1)
    np.asarray(inner(f32(2))["x"])
    x = np.ones(2, f32)
    got = pf.jit(lambda x: (x, pf.while_loop(lambda c: c < 2, lambda c: c + 1, 0)))(x)[0]
    x[:] = 5  # the result is no view of what the caller owns
    np.testing.assert_array_equal(got, [1, 1])


def test_reverse_mode_where_nothing_of_the_loop_moves():
    """A loop over integers needs no bound."""
    def f(x):
        n = pf.while_loop(lambda n: n < 10, lambda n: n * 2, pnp.astype(pnp.floor(x), "i32"))
        return x * n
    assert float(pf.grad(f)(f32(3.5))) == 12


# ---------------------------------------------------------------------------- errors
def halve(c):
    return c * 0.5


def pair(c):
    return c, c


def shrink(c):
    return c[:1]


def test_reverse_mode_without_a_bound():
    def f(x):
        return pf.while_loop(lambda c: c > 1, halve, x)
    for call in (lambda: pf.grad(f)(f32(9)), lambda: pf.vjp(f, f32(9)), lambda: pf.grad(pf.jit(f))(f32(9)),
                 lambda: pf.vmap(pf.grad(f))(f32([9, 3]))):
        with pytest.raises(MissingRuleError) as error:
            call()
        assert message_of(error) == [
            "the while loop over halve has no bound on its steps, so that it cannot be differentiated backwards: that "
            "needs the values of all steps",
            "at tests/test_while.py, in f: return pf.while_loop(lambda c: c > 1, halve, x)",
            "way out: max_steps=, the most steps that it may take; or forward mode, pf.jvp"]
    with pytest.raises(MissingRuleError, match="max_steps="):
        pf.grad(lambda x, n: pf.fori_loop(0, n, lambda i, c: c * x, x))(f32(2), i32(3))
    with pytest.raises(MissingRuleError, match="max_steps="):
        pf.jit(pf.grad(lambda x, n: pf.fori_loop(0, n, lambda i, c: c * x, x)))(f32(2), i32(3))


def test_lowering_without_a_bound():
    def f(x):
        return pf.while_loop(lambda c: c > 1, halve, x)
    for g, x in [(f, f32(1)), (pf.jit(f), f32(1)), (pf.vmap(f), np.ones(3, f32)),
                 (lambda x: pf.scan(lambda c, _: (f(c), None), x, None, length=2)[0], f32(1))]:
        with pytest.raises(LoweringError) as error:
            pf.lower(g, x)
        assert message_of(error) == [
            "the while loop over halve has no bound on its steps, which a PopXL program needs",
            "at tests/test_while.py, in f: return pf.while_loop(lambda c: c > 1, halve, x)",
            "way out: max_steps=, the most steps that it may take; pf.jit runs it on the host as it is"]


HERE = "at tests/test_while.py, in <lambda>: "
ERRORS = [
    (lambda: pf.while_loop(lambda c: c, halve, 1.0), [
        "while_loop: <lambda>.<lambda> (tests/test_while.py) must return one bool, got ~f32[]",
        HERE + "(lambda: pf.while_loop(lambda c: c, halve, 1.0), ["]),
    (lambda: pf.while_loop(lambda c: c > 0, halve, np.ones(2, f32)), [
        "while_loop: <lambda>.<lambda> (tests/test_while.py) must return one bool, got bool[2]",
        HERE + "(lambda: pf.while_loop(lambda c: c > 0, halve, np.ones(2, f32)), ["]),
    (lambda: pf.while_loop(lambda c: True, pair, 1.0), [
        "while_loop: pair (tests/test_while.py) returns a carry of another structure than c",
        HERE + "(lambda: pf.while_loop(lambda c: True, pair, 1.0), [",
        "only in what it takes: c; only in what it returns: c[0], c[1]"]),
    (lambda: pf.while_loop(lambda c: True, shrink, np.ones(2, f32)), [
        "while_loop: the carry changes its type in shrink (tests/test_while.py)",
        HERE + "(lambda: pf.while_loop(lambda c: True, shrink, np.ones(2, f32)), [",
        "seen: it takes c as f32[2], and returns f32[1] for it",
        "way out: a carry keeps its shape; stack what grows as y of scan"]),
    (lambda: pf.while_loop(lambda c: c < 9, halve, i32(1)), [
        "while_loop: the carry changes its type in halve (tests/test_while.py)",
        HERE + "(lambda: pf.while_loop(lambda c: c < 9, halve, i32(1)), [",
        "seen: it takes c as i32[], and returns ~f32[] for it",
        "way out: give the first c, or what is returned for it, another dtype with astype"]),
    (lambda: pf.while_loop(lambda c: True, halve, 1.0, max_steps=-1), [
        "while_loop: max_steps is a number of 0 or more, got -1",
        HERE + "(lambda: pf.while_loop(lambda c: True, halve, 1.0, max_steps=-1), ["]),
]


@pytest.mark.parametrize("call, text", ERRORS, ids=[e[1][0] for e in ERRORS])
def test_errors(call, text):
    with pytest.raises(ArgumentError) as error:
        call()
    assert message_of(error) == text


def test_an_oracle_for_a_loop_with_traced_bounds():
    def f(m, n, lo, hi, x):
        return m.fori_loop(lo, hi, lambda i, c: c * x + i, x)
    for lo, hi in [(0, 4), (2, 2), (5, 1)]:
        close(pf.jit(lambda lo, hi, x: f(pf, pnp, lo, hi, x))(i32(lo), i32(hi), f32(2)),
              jax.jit(lambda lo, hi, x: f(lax, jnp, lo, hi, x))(i32(lo), i32(hi), f32(2)), "traced bounds")
