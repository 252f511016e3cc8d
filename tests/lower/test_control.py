"""Lowered loops and branches: the PopXL that is made, which runs by itself, and nesting in any depth."""
import types

import numpy as np
import pytest
from lowering_cases import equal

import popfn as pf
import popfn.host
import popfn.numpy as pnp
from popfn.trace import tree

f32, f16, i32 = np.float32, np.float16, np.int32
rng = np.random.default_rng(0)
C, X = rng.normal(size=3).astype(f32), rng.normal(size=(4, 3)).astype(f32)


def stacked(c, xs):
    return pf.scan(lambda a, x: (pnp.sin(a) + x, (a, pnp.sum(x))), c, xs)


def backwards(c, xs):
    return pf.scan(lambda a, x: (pnp.sin(a) + x, a * x), c, xs, reverse=True)


def only_carry(c):
    return pf.fori_loop(0, 5, lambda i, a: pnp.sin(a) * 2, c)


def only_stacks(xs):
    return pf.map(lambda x: {"flag": x > 0, "half": x.astype("f16"), "byte": pnp.sum(x).astype("i8"), "one": 1}, xs)


def swapped(a, b):
    return pf.scan(lambda c, _: ((c[1], c[2], c[0]), None), (a, b, a), None, length=4)[0]


def same_twice(c):
    """One value as two parts of the carry, a result that is the carry, and a constant."""
    return pf.scan(lambda s, _: ((s[0] * 2, s[0] * 2), (s[0], s[0], s[1], 2.5)), (c, c), None, length=3)


def deep(c, xs):
    def inner(a, x):
        def innermost(b, v):
            return pf.cond(v[0] > 0, lambda b: pnp.sin(b) * v,
                           lambda b: pf.fori_loop(0, 2, lambda i, d: d + v, b), b), b
        b, rows = pf.scan(innermost, a, x)
        return b, rows.sum(0)
    branches = [lambda a, x: (a, a), lambda a, x: inner(a, pnp.stack([x, x * 2])), lambda a, x: (a * x, -a)]
    return pf.scan(lambda a, x: pf.switch(pnp.astype(a[0] > 0, "i32") + 1, branches, a, x), c, xs)


def in_branches(p, c, xs):
    """Loops with stacked results in a branch that is taken, and in one that is not."""
    return pf.cond(p, lambda: stacked(c, xs), lambda: pf.scan(lambda a, x: (a, (x, pnp.sum(a))), c, xs, reverse=True))


def bounded(x):
    return pf.while_loop(lambda a: pnp.sum(a) < 9, lambda a: a * 1.5 + 0.1, x, max_steps=20)


def empty(c, xs):
    none = pnp.zeros((0, 2))

    def body(carry, x):
        a, e = carry
        return (pnp.sin(a) + pnp.sum(e) + x, e * 2), (e, a)
    return pf.scan(body, (c, none), xs), pf.cond(pnp.sum(c) > 0, lambda: (none, c), lambda: (none * 2, -c))


def calls(c, xs):
    f = pf.jit(lambda a, x: pnp.sin(a) * x)
    return pf.scan(lambda a, x: (f(a, x), f(x, a)), f(c, c), xs)


def gradient(c, xs):
    return pf.grad(lambda c, xs: sum(pnp.sum(y * y) for y in tree.leaves(deep(c, xs))), (0, 1))(c, xs)


def lanes(c, xs):
    return pf.vmap(pf.grad(lambda c: pnp.sum(bounded(c)) + pnp.sum(deep(c, xs)[1])))(pnp.stack([c, c * 2]))


PROGRAMS = [(stacked, C, X), (backwards, C, X), (only_carry, C), (only_stacks, X), (swapped, C, C * 2), (same_twice, C),
            (deep, C, X), (in_branches, np.array(True), C, X), (in_branches, np.array(False), C, X), (bounded, abs(C)),
            (empty, C, X), (calls, C, X), (gradient, C, X), (lanes, abs(C), X)]
NAMES = [f"{f.__name__}-{i}" for i, (f, *_) in enumerate(PROGRAMS)]


@pytest.mark.parametrize("f, args", [(f, args) for f, *args in PROGRAMS], ids=NAMES)
def test_the_program_computes_what_eval_does(f, args):
    program = pf.lower(f, *args)
    with pf.Session(program) as session:
        for _ in range(2):  # nothing is left in the buffers that are written in place
            got = tree.leaves(session.run(*args))
            want = program.jaxpr.eval(*args)
            assert len(got) == len(want)
            for x, y in zip(got, want):
                np.testing.assert_allclose(np.asarray(x), y, 1e-5, 1e-5)
                assert x.dtype == y.dtype


@pytest.mark.parametrize("f, args", [(f, args) for f, *args in PROGRAMS], ids=NAMES)
def test_the_text_runs_by_itself_and_computes_the_same(f, args):
    program = pf.lower(f, *args)
    text = program.as_text()
    module = types.ModuleType("program")
    exec(compile(text.replace("import popxl", "import popfn.host as popxl"), "program.py", "exec"), module.__dict__)
    got = module.main(dict(zip(program.signature.inputs, args)))
    want = dict(zip(program.signature.results, program.jaxpr.eval(*args)))
    for name, value in got.items():
        np.testing.assert_allclose(np.asarray(value).astype("f8"), want[name].astype("f8"), 1e-5, 1e-5)
    assert popfn.host


def test_a_loop_in_popxl():
    """One graph for the step, buffers by reference, constants behind the carry."""
    def scaled(w, c, xs):
        return pf.scan(lambda a, x: (a * w, a + x), c, xs)
    text = pf.lower(scaled, C, C, X).as_text()
    body = text[text.index("def "):text.index("def build")]
    assert [line.strip() for line in body.splitlines() if line.strip() and "#" not in line] == [
        "def lambda_(step, b, rows: popxl.TensorByRef, a, c):",
        '"""From u32[1], f32[3], f32[4,3], f32[3], f32[4,3] to u32[1], f32[3]."""',
        "table = popxl.constant(np.array([1], np.uint32), popxl.uint32)",
        "reshape = ops.reshape(ops.dynamic_slice(c, step, [0], [1], True), (3,))",
        "mul = b * a",
        "add = b + reshape",
        "ops.dynamic_update_(rows, step, ops.reshape(add, (1, 3)), [0], [1], True)",
        "return step + table, mul"]
    assert text.count("create_graph(") == text.count("ops.repeat(") == 1


def test_a_branch_in_popxl_takes_what_it_reads():
    def f(p, x, y):
        return pf.cond(p, lambda: x * 2, lambda: pnp.sin(y))
    text = pf.lower(f, True, C, C).as_text()
    call, = [line.strip() for line in text.splitlines() if "ops.conditional(" in line]
    assert call == "out, = ops.conditional(p, lambda__graph, lambda__1_graph, [x], [y])" \
        or call == "out, = ops.conditional(p, lambda__1_graph, lambda__graph, [x], [y])"


def test_loops_over_one_body_share_its_graph():
    def body(i, a):
        return pnp.sin(a)

    def f(a, b):
        return pf.fori_loop(0, 3, body, a), pf.fori_loop(0, 3000, body, b)
    text = pf.lower(f, C, C).as_text()
    assert (text.count("create_graph("), text.count("ops.repeat(")) == (1, 2)


def test_a_swap_is_not_done_in_place():
    """A runtime may copy the values of the next step one after the other."""
    text = pf.lower(swapped, C, C).as_text()
    assert text.count("ops.identity(") == 3


def test_a_loop_on_the_device_s_state():
    def step(state, xs):
        new, ys = pf.scan(lambda a, x: ({"n": a["n"] + 1, "v": a["v"] * 0.5 + x}, a["v"]), state, xs)
        return new, ys
    state = {"n": i32(0), "v": C}
    with pf.Session(pf.lower(step, state, X, state=0), state=state) as session:
        first, second = session.run(X), session.run(X)
        after = session.state
    want = step(step(state, X)[0], X)
    equal(np.asarray(first), np.asarray(step(state, X)[1]))
    np.testing.assert_allclose(second, want[1], 1e-6)
    assert int(after["n"]) == 8
    np.testing.assert_allclose(after["v"], want[0]["v"], 1e-6)
