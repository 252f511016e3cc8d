"""jvp, linearize, transpose, simplify and Call on jaxprs: what is shared, what is passed on, what stays the same."""
import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import JaxprError, MissingRuleError, ShapeError, source_line
from popfn.trace.jaxpr import Eqn, Jaxpr, Literal, Var
from popfn.trace.prims.kinds import Add, Mul, Neg
from popfn.trace.tracer import Trace, bind
from popfn.transforms.call import Call
from popfn.transforms.differentiate import jvp_jaxpr, linearize_jaxpr, transpose_jaxpr, vjp_jaxpr
from popfn.transforms.replay import inline
from popfn.transforms.simplify import simplify

SCALAR, VECTOR = pf.spec(()), pf.spec(3)
X = np.float32([0.3, -1.2, 2.0])


def traced(f, *specs):
    return pf.make_jaxpr(f)(*specs).check()


def call(jaxpr, *args):
    return bind(Call(jaxpr), args)


def primitives(jaxpr):
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def called(jaxpr):
    """The jaxprs of all calls in a jaxpr, in their order."""
    return [eqn.primitive.jaxpr for eqn in jaxpr.eqns if isinstance(eqn.primitive, Call)]


def round_trip(jaxpr):
    again = pf.parse_jaxpr(str(jaxpr.check()))
    assert again == jaxpr
    return jaxpr


# ---------------------------------------------------------------------------- jvp
def test_jvp_takes_the_tangents_that_are_there():
    jaxpr = traced(lambda x, y: (x * y, y, x.sum(), 2.0), VECTOR, VECTOR)
    for mask, moves in [((True, True), (True, True, True, False)), ((True, False), (True, False, True, False)),
                        ((False, True), (True, True, False, False)), ((False, False), (False, False, False, False))]:
        program, got = jvp_jaxpr(jaxpr, mask)
        assert got == moves
        assert program.in_avals == (VECTOR, VECTOR) + (VECTOR,) * sum(mask)
        assert program.out_avals == jaxpr.out_avals + tuple(a for a, on in zip(jaxpr.out_avals, moves) if on)
        round_trip(program)


def test_transforms_of_one_jaxpr_are_remembered():
    """One jaxpr gives one graph, so that a transform must give one jaxpr."""
    jaxpr = traced(lambda x, y: x * y, VECTOR, VECTOR)
    assert jvp_jaxpr(jaxpr, (True, False)) is jvp_jaxpr(jaxpr, (True, False))
    assert jvp_jaxpr(jaxpr, (True, False)) is not jvp_jaxpr(jaxpr, (False, True))
    assert linearize_jaxpr(jaxpr, (True, True)) is linearize_jaxpr(jaxpr, (True, True))
    linear = linearize_jaxpr(jaxpr, (True, True)).linear
    assert transpose_jaxpr(linear, (False, False, True, True), (True,)) is \
        transpose_jaxpr(linear, (False, False, True, True), (True,))
    assert simplify(jaxpr) is simplify(jaxpr)


def test_integers_have_no_tangent():
    def f(x):
        n = (x * 10).astype(int)
        return n, n.astype("f32") * x, x > 0, pnp.argmax(x)
    program, moves = jvp_jaxpr(traced(f, VECTOR), (True,))
    assert moves == (False, True, False, False)
    got = program.eval(X, np.ones(3, np.float32))
    assert got[-1].tolist() == np.trunc(X * 10).tolist()


def test_what_does_not_depend_on_a_tangent_is_only_repeated():
    jaxpr = traced(lambda x, y: (pnp.exp(y) + pnp.sin(y)) * x, VECTOR, VECTOR)
    assert primitives(jvp_jaxpr(jaxpr, (True, False)).jaxpr) == ["exp", "sin", "add", "mul", "safe_mul"]


# ---------------------------------------------------------------------------- linearize
def evaluate_cut(jaxpr, primals, tangents):
    """Outputs and tangents by the two halves of a linearization of all inputs."""
    forward, linear, residuals, moves = linearize_jaxpr(jaxpr, (True,) * len(primals))
    results = forward.eval(*primals)
    kept = [(primals if where == "input" else results)[i] for where, i in residuals]
    return results[:len(jaxpr.outputs)], linear.eval(*kept, *tangents), moves


def test_the_two_halves_are_the_jvp():
    def f(x, y):
        h = pnp.tanh(x @ y)
        return h.sum() * pnp.exp(y), x, h, 3.0
    x, y, dx, dy = (np.random.default_rng(i).normal(size=s).astype("f4") for i, s in enumerate([(2, 3), 3, (2, 3), 3]))
    jaxpr = traced(f, x, y)
    outs, touts, moves = evaluate_cut(jaxpr, [x, y], [dx, dy])
    assert moves == (True, True, True, False)
    program, _ = jvp_jaxpr(jaxpr, (True, True))
    for a, b in zip([*outs, *touts], program.eval(x, y, dx, dy)):
        np.testing.assert_array_equal(a, b)


def test_residuals_that_are_inputs_or_outputs_are_not_passed_out():
    def f(x, w):
        y = pnp.exp(x)         # y is an output and the slope
        return y, x * w, pnp.sin(x)
    forward, linear, residuals, _ = linearize_jaxpr(traced(f, VECTOR, VECTOR), (True, True))
    assert sorted(residuals) == [("input", 0), ("input", 1), ("output", 0), ("output", 3)]
    assert primitives(forward) == ["exp", "mul", "sin", "cos"] and len(forward.outputs) == 4   # only cos(x) is more
    assert not {"exp", "sin", "cos"} & set(primitives(linear))
    round_trip(forward), round_trip(linear)


def test_a_linear_function_needs_no_residuals():
    table = np.ones((3, 4), np.float32)
    cut = linearize_jaxpr(traced(lambda x: (x @ table)[::-1] * 2, VECTOR), (True,))
    assert cut.residuals == () and len(cut.forward.outputs) == 1
    assert len(cut.linear.constants) == 1 and cut.linear.constants[0].tolist() == table.tolist()
    cut = linearize_jaxpr(traced(lambda x: (x, x, 1.0), VECTOR), (True,))
    assert cut.residuals == () and cut.linear.eqns == () and cut.moves == (True, True, False)


def test_a_residual_used_twice_is_passed_once():
    def f(x):
        y = pnp.exp(x)
        return y * y * y
    forward, linear, residuals, _ = linearize_jaxpr(traced(f, VECTOR), (True,))
    assert len(set(residuals)) == len(residuals)
    assert len(forward.outputs) == len(set(forward.outputs))
    assert len(linear.inputs) == len(residuals) + 1


# ---------------------------------------------------------------------------- transpose
def test_transpose_is_the_adjoint():
    def f(x, w):
        h = w @ x
        return h[::-1], pnp.concat([h, x]).sum(), x, x
    w = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
    jaxpr = traced(f, VECTOR, w)
    program, moves = transpose_jaxpr(jaxpr, (True, False), (True,) * 4)
    assert moves == (True,) and program.in_avals == (pf.spec((4, 3)), *jaxpr.out_avals)
    rng = np.random.default_rng(1)
    cts = [np.asarray(rng.normal(size=a.shape), "f4") for a in jaxpr.out_avals]
    back, = program.eval(w, *cts)
    outs = jaxpr.eval(X, w)
    assert sum(np.vdot(c, o) for c, o in zip(cts, outs)) == pytest.approx(np.vdot(back, X), rel=1e-5)


def test_transpose_of_what_is_not_asked_for_or_given():
    jaxpr = traced(lambda x, y: (x * 2, y * 3, x + y), VECTOR, VECTOR)
    for there, moves in [((True, False, False), (True, False)), ((False, True, False), (False, True)),
                         ((False, False, True), (True, True)), ((False, False, False), (False, False))]:
        program, got = transpose_jaxpr(jaxpr, (True, True), there)
        assert got == moves and len(program.inputs) == sum(there) and len(program.outputs) == sum(moves)
        round_trip(program)


def test_what_is_not_linear_has_no_transpose():
    with pytest.raises(MissingRuleError) as e:
        transpose_jaxpr(traced(pnp.exp, VECTOR), (True,), (True,))
    assert str(e.value).startswith("exp has no transpose rule: it is not linear in the argument asked for")


def test_vjp_of_outputs_that_are_inputs_or_constants():
    jaxpr = traced(lambda x, y: (x, x, 2.0, y), SCALAR, SCALAR)
    program = vjp_jaxpr(jaxpr, (True, True), (0, 1, 2))
    assert [float(v) for v in program.eval(*np.float32([1, 2, 10, 20, 30]))] == [1, 1, 2, 2, 30, 0]
    round_trip(program)


# ---------------------------------------------------------------------------- simplify
def test_repeated_equations_become_one():
    def f(x, y):
        a, b = pnp.exp(x) + y, pnp.exp(x) + y
        return a * b, pnp.exp(x)
    simple = simplify(traced(f, VECTOR, VECTOR))
    assert primitives(simple) == ["exp", "add", "mul"]
    assert len(simple.outputs) == 2 and simple.in_avals == (VECTOR, VECTOR)
    round_trip(simple)


def test_dead_equations_go_and_inputs_stay():
    def f(x, y):
        z = pnp.exp(y)
        pnp.sin(z)
        return x + np.float32([1, 2, 3]) * 0 if False else x
    simple = simplify(traced(f, VECTOR, VECTOR))
    assert simple.eqns == () and simple.in_avals == (VECTOR, VECTOR) and simple.constants == ()


def test_constants_that_are_equal_or_unused():
    one, same, other = (np.float32(c) for c in ([1, 2, 3], [1, 2, 3], [1, 2, 4]))
    jaxpr = traced(lambda x: ((x * one) + (x * same), (x * other, x))[0], VECTOR)
    assert len(jaxpr.constants) == 3
    simple = simplify(jaxpr)
    assert [c.tolist() for c in simple.constants] == [[1, 2, 3]] and primitives(simple) == ["mul", "add"]
    np.testing.assert_array_equal(simple.eval(X)[0], jaxpr.eval(X)[0])
    zeros = np.float32([0, 0, 0]), np.float32([-0.0, 0, 0])
    simple = simplify(traced(lambda x: (x * zeros[0], x * zeros[1]), VECTOR))
    assert len(simple.constants) == 2
    shapes = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    assert len(simplify(traced(lambda x: [x.sum() * s for s in shapes], VECTOR)).constants) == 2
    bytes_alike = np.zeros(3, np.int8), np.zeros(3, np.uint8), np.zeros(3, bool)
    assert len(simplify(traced(lambda x: [x == c for c in bytes_alike], pf.spec(3, bool))).constants) == 3


@pytest.mark.parametrize("f", [
    lambda x: (x * 0.0, x * -0.0), lambda x: (x + 0.0, x + -0.0, x - 0.0), lambda x: (x * 1.0, x / x, x - x),
    lambda x: (x * float("nan"), x + float("inf")), lambda x: (0.0 - x, -x), lambda x: (x / 0.0, x / -0.0),
    lambda x: (x * 2 / 2, (x + 1e8) - 1e8), lambda x: (pnp.where(x > 0, x, x), pnp.maximum(x, x)),
    lambda x: (x * 0.0 + x * 0.0, x * -0.0 + x * -0.0),
])
def test_no_value_changes(f):
    """NaN, infinities and signs of zero stay what they are, bit by bit."""
    edges = np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, 3e38])
    jaxpr = traced(f, edges)
    for a, b in zip(jaxpr.eval(edges), simplify(jaxpr).eval(edges)):
        assert a.tobytes() == b.tobytes()


def test_literals_that_look_equal_are_kept_apart():
    simple = simplify(traced(lambda x: (x * 0.0, x * -0.0, x * 0.0), SCALAR))
    assert len(simple.eqns) == 2
    x = Var(pf.spec((), "f16"))
    rows = [Eqn(Mul(), (x, Literal(np.array(1, "f2"), pf.Aval((), "f16", weak))), (Var(pf.spec((), "f16")),))
            for weak in (False, True)]
    assert len(simplify(Jaxpr([x], [r.outputs[0] for r in rows], rows)).eqns) == 2  # weak and strong


def test_simplify_looks_into_calls():
    inner = traced(lambda x: ((pnp.exp(x) + pnp.exp(x)), pnp.sin(x))[0], VECTOR)
    with Trace("outer") as t:
        x = t.input(VECTOR)
        a, = call(inner, x)
        b, = call(inner, x)
        c, = call(inner, a)
        jaxpr = t.finish([a * b, c])
    simple = simplify(jaxpr)
    assert primitives(simple) == ["call", "call", "mul"]
    assert called(simple)[0] is called(simple)[1] and primitives(called(simple)[0]) == ["exp", "add"]
    for a, b in zip(jaxpr.eval(X), simple.eval(X)):
        np.testing.assert_array_equal(a, b)


def test_every_equation_keeps_its_line():
    """grad, jvp and simplify: the user's lines survive."""
    def f(x):
        y = pnp.exp(x)
        z = pnp.sin(y) * y
        return z.sum()
    def square(x):
        return f(x * x)
    lines = {f.__code__: {1, 2, 3}, square.__code__: {1}}
    jaxpr = traced(f, VECTOR)
    for program in (jaxpr, simplify(jaxpr), jvp_jaxpr(jaxpr, (True,)).jaxpr, traced(pf.grad(f), VECTOR),
                    simplify(traced(pf.grad(pf.grad(square)), SCALAR)), linearize_jaxpr(jaxpr, (True,)).linear):
        seen = [(eqn.source[0], source_line(eqn.source) - eqn.source[0].co_firstlineno) for eqn in program.eqns]
        assert sum(line in lines.get(code, ()) for code, line in seen) >= len(seen) - 1   # one: the last sum of two
        assert all(code.co_filename == __file__ for code, _ in seen)


@given(st.data())
def test_simplify_of_any_program(data):
    """A random graph of few operations on few variables, so that repeats and dead code abound."""
    x, y = Var(VECTOR), Var(VECTOR)
    atoms, eqns = [x, y, Literal(np.array(0, "f4"), SCALAR), Literal(np.array(-0.0, "f4"), SCALAR)], []
    for _ in range(data.draw(st.integers(0, 15))):
        primitive = data.draw(st.sampled_from([Add(), Mul(), Neg()]))
        operands = tuple(data.draw(st.sampled_from(atoms)) for _ in range(1 if isinstance(primitive, Neg) else 2))
        out = Var(VECTOR if any(a.aval is VECTOR for a in operands) else SCALAR)
        eqns.append(Eqn(primitive, operands, (out,)))
        atoms.append(out)
    outputs = data.draw(st.lists(st.sampled_from(atoms), max_size=3))
    jaxpr = Jaxpr([x, y], outputs, eqns).check()
    simple = simplify(jaxpr).check()
    assert simplify(simple) == simple and len(simple.eqns) <= len(eqns)
    rows = [(e.primitive, tuple(a.key() if isinstance(a, Literal) else a for a in e.inputs)) for e in simple.eqns]
    assert len(set(rows)) == len(rows)
    used = set(itertools.chain(simple.outputs, *(e.inputs for e in simple.eqns)))
    assert all(e.outputs[0] in used for e in simple.eqns)
    arrays = np.float32([np.inf, -0.0, np.nan]), np.float32([0.0, -1, 2])
    for a, b in zip(jaxpr.eval(*arrays), simple.eval(*arrays)):
        assert a.tobytes() == b.tobytes()


# ---------------------------------------------------------------------------- Call
def block(h, w):
    """A layer, as it is called many times."""
    return pnp.tanh(h @ w) + h


W = np.random.default_rng(0).normal(size=(3, 3)).astype("f4") / 2


def stacked(n, layer=None):
    """A program of n calls of one jaxpr, and the same program inlined."""
    inner = traced(layer or block, VECTOR, pf.spec((3, 3)))

    def with_calls(x, w):
        for _ in range(n):
            x, = call(inner, x, w)
        return pnp.sum(x * x)

    def flat(x, w):
        for _ in range(n):
            x = (layer or block)(x, w)
        return pnp.sum(x * x)
    return inner, with_calls, flat


def test_one_jaxpr_for_all_call_sites():
    inner, with_calls, flat = stacked(3)
    jaxpr = round_trip(traced(with_calls, X, W))
    assert called(jaxpr) == [inner] * 3 and all(j is inner for j in called(jaxpr))
    np.testing.assert_array_equal(jaxpr.eval(X, W)[0], traced(flat, X, W).eval(X, W)[0])


def test_one_jaxpr_for_all_call_sites_after_grad():
    """n calls give n forward calls of one jaxpr and n backward calls of another, whatever n is."""
    for n in (1, 2, 5):
        _, with_calls, flat = stacked(n)
        jaxpr = round_trip(simplify(traced(pf.grad(with_calls, argnums=(0, 1)), X, W)))
        jaxprs = called(jaxpr)
        assert len(jaxprs) == 2 * n and len(set(map(id, jaxprs))) == 2
        assert [jaxprs.index(j) for j in jaxprs] == [0] * n + [n] * n
        for a, b in zip(jaxpr.eval(X, W), pf.grad(flat, argnums=(0, 1))(X, W)):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_forward_mode_calls_one_jaxpr_too():
    _, with_calls, flat = stacked(3)
    def along(f):
        return lambda x, w: pf.jvp(f, (x, w), (w @ x, w))
    jaxpr = round_trip(traced(along(with_calls), X, W))
    assert len(called(jaxpr)) == 3 and len(set(map(id, called(jaxpr)))) == 1
    for a, b in zip(jaxpr.eval(X, W), along(flat)(X, W)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_call_passes_out_no_residual_that_is_an_input():
    inner = traced(lambda x, y: x * y, VECTOR, VECTOR)
    jaxpr = traced(pf.grad(lambda x, y: call(inner, x, y)[0].sum(), argnums=(0, 1)), VECTOR, VECTOR)
    forward = called(jaxpr)[0]
    assert forward.out_avals == (VECTOR,)         # the product, and nothing beside it
    backward, = called(simplify(jaxpr))           # nobody needs the product
    assert backward.in_avals == (VECTOR,) * 3 and backward.out_avals == (VECTOR, VECTOR)
    for a, b in zip(jaxpr.eval(X, 2 * X), (2 * X, X)):
        np.testing.assert_array_equal(a, b)


def test_calls_that_only_some_inputs_differentiate():
    inner, with_calls, flat = stacked(2)
    for argnums in (0, 1):
        got = traced(pf.grad(with_calls, argnums), X, W).eval(X, W)[0]
        np.testing.assert_allclose(got, pf.grad(flat, argnums)(X, W), rtol=1e-5)
    jaxpr = traced(pf.grad(lambda y: y * with_calls(X, W)), SCALAR)  # nothing moves inside
    assert all(j is inner for j in called(jaxpr))


@pytest.mark.parametrize("layer", [
    block, lambda h, w: (h @ w) * (w @ h), lambda h, w: pnp.sin(h) * w.sum(0), lambda h, w: h + w[0], lambda h, w: h,
    lambda h, w: w[0], lambda h, w: h * np.float32([1, 2, 3]), lambda h, w: pnp.where(h > 0, h, h * h),
    lambda h, w: pnp.zeros(3), lambda h, w: h * 2 + w[1] * 3,
], ids=range(10))
def test_derivatives_of_calls_up_to_the_third(layer):
    """Forward over reverse and reverse over forward, through calls and without."""
    _, with_calls, flat = stacked(2, layer)
    def wider(f):
        return lambda x: f(x * x + 1, W * x[0])
    def third(f):
        second = lambda x: pf.jvp(pf.grad(wider(f)), (x,), (X,))[1]  # noqa: E731
        return pf.grad(lambda x: (second(x) * X).sum())
    def mixed(f):
        along = lambda x: pf.jvp(wider(f), (x,), (X,))[1]  # noqa: E731
        return pf.grad(lambda x: (pf.grad(along)(x) * X).sum())
    for order in (lambda f: pf.grad(wider(f)), lambda f: pf.grad(lambda x: (pf.grad(wider(f))(x) * X).sum()), third,
                  mixed):
        got, want = round_trip(traced(order(with_calls), X)).eval(X)[0], order(flat)(X)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(order(with_calls)(X), want, rtol=1e-4, atol=1e-4)   # concrete
    np.testing.assert_allclose(third(flat)(X), mixed(flat)(X), rtol=1e-3, atol=1e-3)


def test_calls_of_calls():
    inner = traced(lambda x: pnp.exp(x) * x, VECTOR)
    middle = traced(lambda x: call(inner, call(inner, x)[0])[0] * 0.1, VECTOR)
    outer = lambda x: (call(middle, x)[0] + call(inner, x)[0]).sum()  # noqa: E731
    flat_inner = lambda x: pnp.exp(x) * x  # noqa: E731
    flat = lambda x: (flat_inner(flat_inner(x)) * 0.1 + flat_inner(x)).sum()  # noqa: E731
    x = X / 4
    for f, g in ((outer, flat), (pf.grad(outer), pf.grad(flat)),
                 (pf.grad(lambda x: pf.grad(outer)(x).sum()), pf.grad(lambda x: pf.grad(flat)(x).sum()))):
        jaxpr = round_trip(traced(f, x))
        np.testing.assert_allclose(jaxpr.eval(x)[0], g(x), rtol=1e-4)
        np.testing.assert_allclose(simplify(jaxpr).eval(x)[0], g(x), rtol=1e-4)


def test_calls_with_many_results_some_of_which_do_not_move():
    def several(x, n):
        return x * n.astype("f32"), n + 1, x > 0, x, 2.5
    inner = traced(several, VECTOR, pf.spec((), int))
    def f(x, n, g=lambda x, n: call(inner, x, n)):
        y, m, positive, same, constant = g(x, n)
        return pnp.where(positive, y * same, y).sum() * constant + m.astype("f32")
    n = np.int32(3)
    jaxpr = round_trip(traced(pf.grad(f), X, n))
    want = pf.grad(lambda x, n: f(x, n, several))(X, n)
    np.testing.assert_allclose(jaxpr.eval(X, n)[0], want, rtol=1e-6)
    np.testing.assert_allclose(pf.grad(f)(X, n), want, rtol=1e-6)


def test_a_call_takes_what_its_jaxpr_takes():
    inner = traced(lambda first, second: first, VECTOR, SCALAR)
    for args in ([X, X], [X], [X, np.float32(1), X], [X.astype("f2"), np.float32(1)]):
        with pytest.raises(ShapeError, match=r"^call: <lambda> takes \(f32\[3\], f32\[\]\), got \("):
            call(inner, *args)
    assert call(inner, X, 1.0)[0].tolist() == X.tolist()   # a weak scalar will do


def test_following_a_value_through_a_call():
    inner = traced(lambda x: x * 2, SCALAR)
    assert pf.grad(lambda x: x * x if call(inner, x)[0] > 4 else x)(3.0).item() == 6


# ---------------------------------------------------------------------------- inline
def test_inline_at_once_and_in_a_trace():
    jaxpr = traced(lambda x, y: (x * y, x, 2.0, np.float32([1, 2, 3])), VECTOR, SCALAR)
    outs = inline(jaxpr, [X, 3.0])
    assert all(isinstance(o, pf.Array) for o in outs) and outs[0].tolist() == (X * 3).tolist()
    inside = traced(lambda x: inline(jaxpr, [x, 3.0]), VECTOR)
    for a, b in zip(outs, inside.eval(X)):
        np.testing.assert_array_equal(a, b)


def test_inline_with_types_that_are_weak_or_not():
    """Where a strong type stood in the jaxpr, a weak value may come, and the reverse."""
    jaxpr = traced(lambda x, y: x + y, SCALAR, 1.0)
    weak = traced(lambda x, y: inline(jaxpr, [x, y])[0], 1.0, 1.0).check()
    assert weak.eval(np.float32(1), np.float32(2))[0] == 3
    strong = traced(lambda x, y: inline(jaxpr, [x, y])[0], SCALAR, SCALAR).check()
    assert strong.eval(np.float32(1), np.float32(2))[0] == 3


def test_a_jaxpr_without_its_constants_cannot_be_inlined():
    jaxpr = pf.parse_jaxpr("{ lambda c:f32[3] ; a:f32[3] . let b:f32[3] = mul a c in (b,) }")
    with pytest.raises(JaxprError, match="^this jaxpr was parsed without its constants"):
        traced(lambda x: inline(jaxpr, [x]), VECTOR)


# ---------------------------------------------------------------------------- checks
def test_a_wrong_rule_is_found_when_checks_are_on():
    class Broken(Neg):
        def jvp(self, primals, tangents):
            t = bind(Neg(), (tangents[0],))
            t.trace.eqns.append(t.trace.eqns[-1])   # defines its variable twice
            return bind(self, primals), t
    f = lambda x: bind(Broken(), (x,))  # noqa: E731
    with pytest.raises(JaxprError, match="is defined twice"):
        pf.jvp(f, (X,), (X,))
    pf.set_checks(False)
    try:
        assert pf.jvp(f, (X,), (X,))[1].tolist() == (-X).tolist()
    finally:
        pf.set_checks(True)
