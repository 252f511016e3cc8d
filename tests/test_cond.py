"""cond and switch: against JAX under every transform, lanes that differ, sizes of programs, texts of errors."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_flow import agree, all_equations, close, message_of
from hypothesis import given, settings, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, AxisError
from popfn.transforms.cond import Cond
from popfn.transforms.differentiate import linearize_jaxpr
from popfn.transforms.simplify import simplify

f32, f16, i32 = np.float32, np.float16, np.int32
X = f32([0.5, -1.5, 2.0])


def by_sum(m, n, x):
    return m.cond(n.sum(x) > 0.4, lambda x: n.sin(x) * x, lambda x: n.exp(x), x)


def by_flag(m, n, p, x):
    return m.cond(p, lambda a: {"y": a * 2, "n": n.sum(a), "i": 1}, lambda a: {"y": n.tanh(a), "n": a[0], "i": 2}, x)


def without_operands(m, n, p, x, y):
    return m.cond(p, lambda: (n.sin(x) @ y, y), lambda: (n.sum(x * x), n.exp(y) * n.arange(3)))


def by_number(m, n, i, x):
    return m.switch(i, [lambda x: x, n.exp, lambda x: x * x, lambda x: n.zeros(3, dtype=f32), lambda x: -x], x)


def nested(m, n, i, x):
    def inner(x):
        return m.cond(x[0] > 0, lambda x: n.sin(x), lambda x: m.fori_loop(0, 3, lambda k, a: n.sin(a) + x, x), x)
    return m.switch(i, [inner, lambda x: inner(-x) * x, lambda x: m.scan(lambda c, v: (c * v, c), x, x)[1][2]], x)


def half(m, n, p, x):
    return m.cond(p, lambda x: n.exp(x), lambda x: x * x, x.astype(f16))


def jitted_branches(m, n, p, x):
    f = m.jit(lambda a: n.sin(a) * a)
    return m.cond(p, lambda x: f(f(x)), lambda x: f(x), x)


CASES = [(by_sum, X), (by_sum, -X), *((f, p, X) for f in (by_flag, half, jitted_branches) for p in (True, False)),
         (without_operands, True, X, X * 2), (without_operands, False, X, X * 2),
         *((by_number, i32(i), X) for i in (-3, 0, 2, 4, 9)), *((nested, i32(i), X) for i in (0, 1, 2))]


@pytest.mark.parametrize("f, args", [(c[0], c[1:]) for c in CASES], ids=[f"{c[0].__name__}-{i}" for i, c in
                                                                        enumerate(CASES)])
def test_agrees_with_jax(f, args):
    agree(f, *args, second=f is not nested, rtol=1e-4)


@pytest.mark.parametrize("f, index, size", [(by_flag, np.array([True, False, True]), 3),
                                            (by_number, i32([-2, 4, 1, 1, 3, 2, 9]), 7), (nested, i32([2, 0, 1, 0]), 4),
                                            (by_flag, np.array([False, False]), 2)])
def test_lanes_choose_for_themselves(f, index, size):
    xs = (np.random.default_rng(0).normal(size=(size, 3)) * 2).astype(f32)
    def programs(m, n, system):
        def result(i, x):
            return f(m, n, i, x)

        def loss(i, x):
            return sum(n.sum(y * y) for y in pf.tree.leaves(result(i, x)))
        return (system.vmap(result), system.vmap(system.grad(loss, 1)),
                system.grad(lambda i, x: n.sum(system.vmap(loss)(i, x)), 1))
    for got, want in zip(programs(pf, pnp, pf), programs(jax.lax, jnp, jax)):
        value = jax.jit(want)(index, xs)
        close(got(index, xs), value, f.__name__, 1e-4)
        close(pf.jit(got)(index, xs), value, f.__name__, 1e-4)


def test_lanes_of_a_number_over_values_that_are_equal_in_all():
    got = pf.jit(pf.vmap(lambda i: by_number(pf, pnp, i, X)))(i32([1, 0, 7]))
    np.testing.assert_allclose(got, np.stack([np.exp(X), X, -X]), 1e-6)
    assert pf.vmap(lambda i: by_number(pf, pnp, i, X))(i32([])).shape == (0, 3)


def test_nothing_comes_from_a_lane_that_is_not_taken():
    """No NaN from a branch that another lane takes, and no loop that never ends in it."""
    def f(x):
        def halve(x):  # for ever, if x is negative: it stays below 1
            return pf.while_loop(lambda v: v < 1, lambda v: v * 2, x)
        return pf.cond(x > 0, lambda x: halve(x) + pnp.sqrt(x), lambda x: x * 3, x)
    xs = f32([0.3, -2, 0, 5, -1])
    want = [f(x) for x in xs]
    np.testing.assert_array_equal(pf.vmap(f)(xs), want)
    np.testing.assert_array_equal(pf.jit(pf.vmap(f))(xs), want)

    def root(x):
        return pf.cond(x > 0, pnp.sqrt, lambda x: x * 3, x)
    np.testing.assert_array_equal(pf.vmap(pf.grad(root))(f32([4, 0, -1])), f32([0.25, 3, 3]))
    seen = [e for e in all_equations(pf.make_jaxpr(pf.vmap(root))(xs)) if e.primitive.name == "sqrt"]
    assert len(seen) == 1


def test_a_branch_that_no_lane_takes_is_not_run():
    program = pf.vmap(lambda x: pf.cond(x > 0, lambda x: pf.while_loop(lambda v: v < 9, lambda v: v * 1, x),
                                        lambda x: x * 3, x))
    np.testing.assert_array_equal(program(f32([-1, -2])), f32([-3, -6]))  # the loop would not end


def test_a_named_axis_is_seen_in_branches():
    np.testing.assert_array_equal(pf.vmap(lambda x: pf.cond(True, lambda x: pf.psum(x, "i") + x, lambda x: x, x),
                                          axis_name="i")(f32([1, 2])), f32([4, 5]))
    got = pf.vmap(lambda x: pf.cond(x > 1, lambda x: x + pf.axis_index("i"), lambda x: 0.0, x), axis_name="i")
    np.testing.assert_array_equal(got(f32([1, 2, 3])), f32([0, 3, 5]))
    np.testing.assert_array_equal(
        pf.vmap(pf.grad(lambda x: pf.cond(x > 1, lambda x: x * x, lambda x: 0.0, x)), axis_name="i")(f32([1, 2, 3])),
        f32([0, 4, 6]))


def test_lanes_cannot_meet_where_only_some_get():
    def f(x):
        return pf.cond(x > 0, lambda x: pf.psum(x, "i") + x, lambda x: x * 0.0, x)

    def g(x):
        return pf.while_loop(lambda c: c < 10, lambda c: c + pf.psum(c, "i"), x)
    for call, what, line in [
            (lambda: pf.vmap(f, axis_name="i")(X), "cond: lanes meet in a branch", f'return {COND_LINE}'),
            (lambda: pf.vmap(pf.grad(f), axis_name="i")(X), "cond: lanes meet in a branch", f'return {COND_LINE}'),
            (lambda: pf.vmap(g, axis_name="i")(X), "while: lanes meet in a loop", f'return {WHILE_LINE}')]:
        with pytest.raises(AxisError) as error:
            call()
        assert message_of(error) == [
            f"{what} over axis 'i', while it depends on the lane whether they get there",
            f"at tests/test_cond.py, in {'g' if 'while' in what else 'f'}: {line}",
            "way out: use the collective outside, and pass what it gives"]


COND_LINE = 'pf.cond(x > 0, lambda x: pf.psum(x, "i") + x, lambda x: x * 0.0, x)'
WHILE_LINE = 'pf.while_loop(lambda c: c < 10, lambda c: c + pf.psum(c, "i"), x)'


# ---------------------------------------------------------------------------- types
def test_results_take_their_types_from_all_branches():
    def types(*functions):
        jaxpr = pf.make_jaxpr(lambda i, x: pf.switch(i, functions, x))(i32(0), f32(1))
        return str(jaxpr.out_avals[0])
    assert types(lambda x: 1, lambda x: x.astype(f16)) == "f16[]"
    assert types(lambda x: 2.5, lambda x: 1) == "~f32[]"
    assert types(lambda x: x, lambda x: 1, lambda x: 2.0) == "f32[]"
    assert types(lambda x: 1, lambda x: x.astype("u8"), lambda x: 3) == "u8[]"


def test_a_predicate_may_be_a_number():
    f = lambda p: pf.cond(p, lambda: 1, lambda: 2)  # noqa: E731
    assert [int(f(p)) for p in (True, False, 3, 0, 0.0, f32(0.5), np.nan)] == [1, 2, 1, 2, 2, 1, 1]
    assert [int(pf.jit(f)(p)) for p in (True, 3, f32(0))] == [1, 1, 2]


def test_an_index_of_any_integer_dtype_is_clamped():
    def f(i):
        return pf.switch(i, [lambda: 10, lambda: 11, lambda: 12])
    for dtype, index, want in [("u32", 2 ** 32 - 1, 12), ("u32", 1, 11), ("i8", -1, 10), ("u8", 255, 12),
                               ("i16", 2, 12)]:
        value = np.array(index, pf.spec((), dtype).dtype)
        assert int(f(value)) == int(pf.jit(f)(value)) == want


def test_one_branch_is_no_switch():
    jaxpr = pf.make_jaxpr(lambda i, x: pf.switch(i, [pnp.sin], x))(i32(0), X)
    assert [e.primitive.name for e in jaxpr.eqns] == ["sin"]


# ---------------------------------------------------------------------------- derivatives and sizes
def test_values_that_branches_keep_for_the_way_back_share_places():
    """Two values of one type each: two places, not four, beside the operands that are kept as they are."""
    def f(p, x):
        return pf.cond(p, lambda x: pnp.exp(pnp.sin(x)), lambda x: pnp.tanh(pnp.exp(x)), x)
    cut = linearize_jaxpr(pf.make_jaxpr(f)(True, X), (False, True))
    forward, = [e for e in cut.forward.eqns if isinstance(e.primitive, Cond)]
    assert len(forward.outputs) == 3


def test_what_no_branch_moves_has_no_tangent():
    def f(x):
        return pf.cond(x > 0, lambda x: (x * 2, 1.0), lambda x: (x, 2.0), x)
    cut = linearize_jaxpr(pf.make_jaxpr(f)(f32(1)), (True,))
    assert cut.moves == (True, False)


def test_dead_results_of_branches_are_removed():
    def f(p, x, y):
        a, _ = pf.cond(p, lambda x, y: (pnp.sin(x), pnp.exp(y)), lambda x, y: (x, pnp.log(y)), x, y)
        return a
    eqn, = simplify(pf.make_jaxpr(f)(True, X, X)).eqns
    assert (len(eqn.inputs), len(eqn.outputs)) == (2, 1)
    assert [e.primitive.name for e in all_equations(simplify(pf.make_jaxpr(f)(True, X, X)))] == ["cond", "sin"]
    np.testing.assert_array_equal(pf.jit(f)(True, X, X), f(True, X, X))


@given(st.lists(st.sampled_from(["sin", "exp", "same", "const", "first", "loop"]), min_size=2, max_size=6),
       st.integers(-1, 6))
@settings(max_examples=15)
def test_random_switches_agree_with_the_function_taken(names, index):
    functions = {
        "sin": lambda x, y: (pnp.sin(x) * y, y), "exp": lambda x, y: (pnp.exp(pnp.tanh(x * y)), pnp.sum(x)),
        "same": lambda x, y: (x, y), "const": lambda x, y: (pnp.ones(3, dtype=f32), 2.0),
        "first": lambda x, y: (x * x[0], x[1]),
        "loop": lambda x, y: (pf.fori_loop(0, 2, lambda i, a: pnp.sin(a) * y, x), y * y)}
    branches = [functions[n] for n in names]
    taken = branches[min(max(index, 0), len(branches) - 1)]

    def loss(f):
        def of(x, y):
            a, b = f(x, y)
            return pnp.sum(a * f32([1, 2, 3])) + b
        return of
    args = X, f32(0.7)
    for chosen in (lambda f: f, pf.jit):
        f = chosen(pf.grad(lambda x, y: loss(lambda x, y: pf.switch(i32(index), branches, x, y))(x, y), (0, 1)))
        close(f(*args), pf.grad(loss(taken), (0, 1))(*args), "grad")


# ---------------------------------------------------------------------------- errors
def tall(x):
    return {"a": x}


def wide(x):
    return {"a": pnp.stack([x, x])}


def whole(x):
    return {"a": x.astype("i32")}


def pair(x):
    return {"a": x, "b": x}


HERE = "at tests/test_cond.py, in <lambda>: "
ERRORS = [
    (lambda: pf.cond(True, tall, wide, X), [
        "cond: the branches return different types for result['a']", HERE + "(lambda: pf.cond(True, tall, wide, X), [",
        "seen: f32[2,3] from wide (tests/test_cond.py)", "seen: f32[3] from tall (tests/test_cond.py)",
        "way out: make the shapes equal, with pnp.broadcast_to, pnp.reshape or pnp.pad"]),
    (lambda: pf.switch(0, [tall, whole, tall], X), [
        "switch: the branches return different types for result['a']",
        HERE + "(lambda: pf.switch(0, [tall, whole, tall], X), [",
        "seen: f32[3] from tall (tests/test_cond.py)", "seen: i32[3] from whole (tests/test_cond.py)",
        "seen: f32[3] from tall (tests/test_cond.py)", "way out: convert with astype"]),
    (lambda: pf.cond(True, pair, tall, X), [
        "cond: the branches return different structures", HERE + "(lambda: pf.cond(True, pair, tall, X), [",
        "only in pair (tests/test_cond.py): result['b']"]),
    (lambda: pf.cond(X > 0, tall, tall, X), [
        "cond: pred is a scalar, got bool[3]", HERE + "(lambda: pf.cond(X > 0, tall, tall, X), [",
        "way out: pnp.where chooses element by element, pnp.all and pnp.any decide for all"]),
    (lambda: pf.cond(True, 1, tall), [
        "cond takes a function first, got int", HERE + "(lambda: pf.cond(True, 1, tall), [",
        "way out: cond(pred, true_fun, false_fun, *operands)"]),
    (lambda: pf.switch(1.5, [tall, tall], X), [
        "switch: the index is an integer, got ~f32[]", HERE + "(lambda: pf.switch(1.5, [tall, tall], X), ["]),
    (lambda: pf.switch(0, [], X), [
        "switch: there are no branches", HERE + "(lambda: pf.switch(0, [], X), ["]),
    (lambda: pf.cond(True, tall, tall, "x"), [
        "argument x of tall (tests/test_cond.py) is not an array: a value of type str is not an array or a number: 'x'",
        HERE + '(lambda: pf.cond(True, tall, tall, "x"), [', "seen: str, 'x'",
        "way out: close over values that are not arrays, or bind them with functools.partial; make a class of arrays a "
        "pytree with pf.tree.dataclass"]),
]


@pytest.mark.parametrize("call, text", ERRORS, ids=[e[1][0] for e in ERRORS])
def test_errors(call, text):
    with pytest.raises(ArgumentError) as error:
        call()
    assert message_of(error) == text
