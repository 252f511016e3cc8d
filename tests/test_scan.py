"""scan, map, fori_loop and associative_scan: against JAX under every transform, sizes of programs, texts of errors."""
import operator
from typing import Any, List, NamedTuple, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_flow import agree, all_equations, close, equations, message_of
from hypothesis import given, settings, strategies as st
from jax import lax
from test_rules import assert_jacobian, basis

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError
from popfn.transforms.differentiate import linearize_jaxpr, transpose_jaxpr
from popfn.transforms.scan import Scan
from popfn.transforms.simplify import simplify

f32, f16, i32 = np.float32, np.float16, np.int32
rng = np.random.default_rng(0)
W, C, X = (rng.normal(size=shape).astype(f32) / 2 for shape in ((2, 2), (2,), (4, 2)))


# ---------------------------------------------------------------------------- against JAX
def rnn(m, n, w, c, xs):
    return m.scan(lambda h, x: (n.tanh(h @ w + x), h * x), c, xs)


def backwards(m, n, w, c, xs):
    return m.scan(lambda h, x: (n.tanh(h @ w + x), (h, x)), c, xs, reverse=True)


def tree_carry(m, n, c, s, xs):
    def body(carry, x):
        a, count = carry["a"], carry["n"]
        new = {"a": n.sin(a) * x["p"] + s, "n": count + 1, "last": x["p"]}
        return new, {"sum": n.sum(a), "n": count, "none": None}
    return m.scan(body, {"a": c, "n": np.int32(3), "last": c * 0}, {"p": xs, "q": [xs[:, 0]]})


def no_carry(m, n, s, xs):
    return m.scan(lambda carry, x: (carry, n.exp(x) * s), None, xs)


def no_xs(m, n, c):
    return m.scan(lambda a, _: (n.sin(a) + a / 2, a * 2), c, None, length=5)


def weak_carry(m, n, xs):
    """A Python number becomes a vector's element type."""
    return m.scan(lambda a, x: (a + n.sum(x), a), 0, xs)


def swapped(m, n, a, b):
    return m.scan(lambda c, _: ((c[1], n.sin(c[0])), c[0]), (a, b), None, length=3)


def half(m, n, c, xs):
    return m.scan(lambda a, x: (a * x + 1, n.tanh(a)), c.astype(f16), xs.astype(f16))


def nested(m, n, w, c, xs):
    def outer(a, x):
        b, ys = m.scan(lambda h, v: (n.tanh(h * v + w[0] * a), h), a, xs)
        return b * x, n.sum(ys * w[1])
    return m.scan(outer, c, xs)


def closed_over(m, n, w, c, xs):
    """Values of functions further out, one of them a constant, one that depends on no step."""
    table = np.arange(4, dtype=f32).reshape(2, 2) / 4

    def body(a, x):
        u = n.exp(w) @ table
        return n.sin(a @ u) + x, n.sum(u * x)
    return m.scan(body, c, xs)


def with_jit(m, n, w, c, xs):
    step = m.jit(lambda a, x: n.tanh(a @ w) * x)
    return m.scan(lambda a, x: (step(step(a, x), x), step(x, a)), c, xs)


def with_grad(m, n, c, xs):
    def body(a, x):
        g = m.grad(lambda v: n.sum(n.sin(v * x) ** 2))(a)
        return a - 0.1 * g, g
    return m.scan(body, c, xs)


def with_vmap(m, n, w, xs):
    return m.scan(lambda a, x: (m.vmap(lambda r, s: n.tanh(r * s + x))(a, w), a), w, xs)


def with_branches(m, n, c, xs):
    def body(a, x):
        b = m.cond(n.sum(x) > 0, lambda a: n.sin(a), lambda a: m.scan(lambda h, v: (h * v, h), a, xs)[0] + a, a)
        return b, m.switch(n.sum(n.where(x > 0, 1, 0)), [lambda: x, lambda: x * a, lambda: n.exp(-a)])
    return m.scan(body, c, xs)


def unused_parts(m, n, w, c, xs):
    """A carry that only feeds itself, and results nobody looks at."""
    (a, _), (y, _) = m.scan(lambda h, x: ((n.sin(h[0]) * x, h[1] * 2), (h[0], h[1] + 1)), (c, w), xs)
    return a, y


def in_loop(m, n, c, xs):
    return m.fori_loop(1, 4, lambda i, a: n.sin(a * i) + m.map(lambda x: n.sum(x * a), xs)[0], c)


def mapped(m, n, xs):
    return m.map(lambda x: {"a": n.sin(x), "b": n.sum(x) > 0}, xs)


def integers(m, n, k, xs):
    return m.scan(lambda a, x: (a * 3 + n.astype(n.floor(x[0] * 4), i32) if n is pnp else
                                a * 3 + n.floor(x[0] * 4).astype(i32), a > 0), k, xs)


CASES = [(rnn, W, C, X), (backwards, W, C, X), (tree_carry, C, f32(0.3), X), (no_carry, f32(0.7), X), (no_xs, C),
         (weak_carry, X), (swapped, C, C * 2), (half, C, X), (nested, W, C, X), (closed_over, W, C, X),
         (with_jit, W, C, X), (with_grad, C, X), (with_vmap, W, X), (with_branches, C, X), (unused_parts, W, C, X),
         (in_loop, C, X), (mapped, X), (integers, i32(2), X)]


@pytest.mark.parametrize("f, args", [(c[0], c[1:]) for c in CASES], ids=[c[0].__name__ for c in CASES])
def test_agrees_with_jax(f, args):
    agree(f, *args, second=f is not half, rtol=2e-3 if f is half else 1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, 3, 4, 9, True])
def test_unrolled_is_the_same(unroll, reverse):
    def f(m, n, c, xs):
        return m.scan(lambda a, x: (n.sin(a) * x, (a, n.sum(x))), c, xs, reverse=reverse,
                      **({"unroll": unroll} if m is pf else {}))
    agree(f, C, X, oracle="python", rtol=1e-4)


@pytest.mark.parametrize("bounds", [(0, 5), (2, 7), (-3, 2), (3, 3), (4, -1)])
def test_fori_loop_with_known_and_traced_bounds(bounds):
    lower, upper = bounds

    def known(m, n, x):
        return m.fori_loop(lower, upper, lambda i, a: (n.sin(a[0]) * i + x, a[1] + i), (x, 0))

    def traced(m, n, lo, hi, x):
        more = {"max_steps": 9} if m is pf else {}
        return m.fori_loop(lo, hi, lambda i, a: n.sin(a) * i + x, x, **more)
    agree(known, f32(0.4), oracle="jax" if lower <= upper else "python")  # JAX 0.4.13 takes no bounds in reverse
    agree(traced, i32(lower), i32(upper), f32(0.4), reverse=False)
    want = jax.grad(lambda x: lax.fori_loop(lower, max(lower, upper), lambda i, a: jnp.sin(a) * i + x, x))(f32(0.4))
    close(pf.jit(pf.grad(lambda x, lo, hi: traced(pf, pnp, lo, hi, x)))(f32(0.4), i32(lower), i32(upper)), want, "grad")


def test_the_counter_is_weak_like_the_bounds():
    seen = []

    def body(i, x):
        seen.append(i.aval)
        return x * i
    assert pf.fori_loop(0, 3, body, np.int8(1)).dtype == np.int8
    pf.fori_loop(np.uint8(0), 3, lambda i, x: seen.append(i.aval) or x, 1.0)
    assert [str(a) for a in seen] == ["~i32[]", "u8[]"]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(n, reverse):
    matrices = rng.normal(size=(n, 2, 2)).astype(f32)
    pairs = (matrices, np.arange(2 * n, dtype=f32).reshape(n, 2))
    if n:
        agree(lambda m, _, x: m.associative_scan(operator.matmul, x, reverse=reverse), matrices, second=n < 4,
              oracle="python", rtol=1e-4)
        agree(lambda m, _, x, y: m.associative_scan(
            lambda a, b: (a[0] @ b[0], (a[1][:, None] @ b[0])[:, 0] + b[1]), (x, y), reverse=reverse), *pairs,
            second=False, oracle="python", rtol=1e-4)
    got = pf.associative_scan(pnp.maximum, matrices, reverse=reverse, axis=-1)
    want = np.maximum.accumulate(matrices[..., ::-1] if reverse else matrices, axis=-1)
    np.testing.assert_array_equal(got, want[..., ::-1] if reverse else want)


def test_associative_scan_takes_logarithmic_rounds():
    def combinations(n):
        calls = []
        pf.make_jaxpr(lambda x: pf.associative_scan(lambda a, b: calls.append(0) or a * b, x))(pf.spec(n))
        return len(calls)
    assert [combinations(n) for n in (1, 2, 1000, 2000)] == [0, 1, 18, 20]


# ---------------------------------------------------------------------------- zero steps
def test_no_steps_give_the_first_carry_and_empty_results():
    def f(c, xs):
        return pf.scan(lambda a, x: (pnp.sin(a) * x, {"y": a, "n": 1}), c, xs)
    program = pf.lower(f, C, X[:0])
    assert "repeat" not in program.as_text()
    for run in (f, pf.jit(f)):
        carry, ys = run(C, X[:0])
        np.testing.assert_array_equal(carry, C)
        assert (ys["y"].shape, ys["y"].dtype, ys["n"].shape, ys["n"].dtype) == ((0, 2), f32, (0,), i32)
    close(pf.jit(pf.grad(lambda c: pnp.sum(f(c, X[:0])[0] * 3)))(C), np.full(2, 3, f32), "grad")
    assert pf.fori_loop(5, 2, lambda i, x: x * 0, 1.0) == 1.0
    assert pf.while_loop(lambda x: x < 0, lambda x: x * 0, 1.0) == 1.0
    assert pf.map(lambda x: x.astype("f16"), X[:0]).dtype == f16


# ---------------------------------------------------------------------------- corners of derivatives
def test_a_constant_s_gradient_in_float16_is_added_up_in_float32():
    """3000 steps of 1: float16 would stop at 2048."""
    def f(w):
        return pf.scan(lambda a, _: (a, w * 1), None, None, length=3000)[1].astype("f32").sum()
    assert float(pf.grad(f)(f16(1))) == 3000
    assert float(pf.jit(pf.grad(f))(f16(1))) == 3000


def test_a_zero_cotangent_stays_zero():
    """The derivative of a square root at 0 is infinite; a step that takes no part contributes nothing."""
    def f(x, xs):
        ys = pf.scan(lambda a, v: (a, pnp.where(v > 0, pnp.sqrt(a * v), 0.0)), x, xs)[1]
        return pnp.sum(ys)
    for run in (pf.grad(f, (0, 1)), pf.jit(pf.grad(f, (0, 1)))):
        by_x, by_xs = run(f32(4), f32([0, 1, -1]))
        np.testing.assert_array_equal(by_xs, f32([0, 1, 0]))
        assert float(by_x) == 0.25


def test_grad_follows_values_around_a_scan():
    def f(x, xs):
        y = pf.scan(lambda a, v: (a * v, None), x, xs)[0]
        return y * 2 if y > 0 else y * 3
    assert float(pf.grad(f)(f32(1), f32([2, 3]))) == 12
    assert float(pf.grad(f)(f32(-1), f32([2, 3]))) == 18


def test_transpose_of_a_scan_with_a_carry_that_is_not_linear():
    """A counter beside a linear carry: its values in all steps come from a scan of their own."""
    def f(k, w, c, xs):
        def body(carry, x):
            i, a, b = carry
            scale = pnp.sin(w) + i.astype("f32")
            return (i + k, a * scale + x, b * 2), (a * i.astype("f32"), x * w)
        return pf.scan(body, (np.int32(1), c, w), xs)
    jaxpr = pf.make_jaxpr(f)(i32(2), C, C, X)
    scan, = [e for e in jaxpr.eqns if isinstance(e.primitive, Scan)]
    linear = (False, False, True, True)
    outs = (False, True, False, True, True)
    pulled, moves = transpose_jaxpr(jaxpr, linear, outs)
    assert moves == (True, True)
    pulled.check()

    def columns(k: int, e: np.ndarray) -> np.ndarray:
        zero = [np.zeros_like(C), np.zeros_like(X)]
        at = [e if i == k else z for i, z in enumerate(zero)]
        return [y for y, on in zip(jaxpr.eval(i32(2), C, *at), outs) if on]
    avals = [a for a, on in zip(jaxpr.out_avals, outs) if on]
    for n, aval in enumerate(avals):
        for row in range(aval.size):
            cts = [basis(a)[row] if i == n else np.zeros(a.shape, f32) for i, a in enumerate(avals)]
            got = pulled.eval(i32(2), C, *cts)
            for k, like in enumerate((C, X)):
                want = [columns(k, e)[n].ravel()[row] for e in basis(pf.spec(like.shape))]
                assert_jacobian(got[k].reshape(1, -1), np.array(want)[None], [np.dtype(f32)], 8)
    assert scan.primitive.num_carry == 3


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)])
def test_the_linear_part_of_a_scan_and_its_transpose_are_adjoint(mask):
    """<ct, L t> = <L' ct, t> for the scan that linearize makes, by each operand."""
    jaxpr = pf.make_jaxpr(lambda w, c, xs: rnn(pf, pnp, w, c, xs))(W, C, X)
    cut = linearize_jaxpr(jaxpr, mask)
    results = cut.forward.eval(W, C, X)
    residuals = [((W, C, X) if where == "input" else results)[i] for where, i in cut.residuals]
    tangents = [rng.normal(size=a.shape).astype(f32) for a, on in zip(jaxpr.in_avals, mask) if on]
    cts = [rng.normal(size=a.shape).astype(f32) for a, on in zip(jaxpr.out_avals, cut.moves) if on]
    pushed = cut.linear.eval(*residuals, *tangents)
    linear = (False,) * len(residuals) + (True,) * len(tangents)
    pulled, moves = transpose_jaxpr(cut.linear, linear, (True,) * len(cts))
    assert all(moves)
    left = sum(np.sum(c * y) for c, y in zip(cts, pushed))
    right = sum(np.sum(t * y) for t, y in zip(tangents, pulled.check().eval(*residuals, *cts)))
    np.testing.assert_allclose(left, right, 1e-5)


# ---------------------------------------------------------------------------- sizes
def gradient_of(length: int) -> Any:
    def loss(w, c, xs):
        h, ys = rnn(pf, pnp, w, c, xs)
        return pnp.sum(h) + pnp.sum(ys * ys)
    return pf.grad(loss, (0, 1, 2)), (pf.spec((2, 2)), pf.spec(2), pf.spec((length, 2)))


def test_no_program_grows_with_the_number_of_steps():
    sizes = []
    for length in (10, 3000):
        g, specs = gradient_of(length)
        jaxprs = [pf.make_jaxpr(g)(*specs), pf.make_jaxpr(lambda *xs, g=g: pf.jvp(g, xs, xs))(*specs)]
        text = pf.lower(g, *specs).as_text()
        sizes.append([*map(equations, jaxprs), equations(simplify(jaxprs[0])), text.count("ops.")])
    assert sizes[0] == sizes[1]


def test_what_is_equal_in_all_steps_is_computed_once_and_not_stacked():
    """Residuals that depend on constants alone leave the loop; x is not stacked again, as it is there already."""
    def f(w, c, xs):
        return pf.scan(lambda a, x: (a * pnp.exp(w) * x, None), c, xs)[0]
    cut = linearize_jaxpr(pf.make_jaxpr(f)(C, C, X), (True, True, True))
    forward, = [e for e in cut.forward.eqns if isinstance(e.primitive, Scan)]
    assert [e.primitive.name for e in all_equations(cut.forward)].count("exp") == 1
    assert "exp" not in [e.primitive.name for e in forward.primitive.jaxpr.eqns]
    # The carry of each step, and the product that x scales.
    assert [v.aval.shape for v in forward.outputs] == [(2,), (4, 2), (4, 2)]


def test_dead_parts_of_a_scan_are_removed():
    def f(c, w, xs):
        (a, _), (y, _) = pf.scan(lambda h, x: ((pnp.sin(h[0]), h[1] * x), (h[0], pnp.exp(h[1]))), (c, w), xs)
        return y
    scan, = simplify(pf.make_jaxpr(f)(C, C, X)).eqns
    assert [e.primitive.name for e in scan.primitive.jaxpr.eqns] == ["sin"]
    assert (len(scan.inputs), len(scan.outputs), scan.primitive.num_carry) == (1, 2, 1)
    np.testing.assert_array_equal(pf.jit(f)(C, C, X), f(C, C, X))


def test_a_body_is_traced_once_and_its_lines_survive():
    calls = []

    def body(a, x):
        calls.append(0)
        return pnp.sin(a) * x, a
    jaxpr = pf.make_jaxpr(pf.grad(lambda c, xs: pnp.sum(pf.scan(body, c, xs)[0])))(C, X)
    assert len(calls) == 1
    for eqn in all_equations(jaxpr):
        assert eqn.source is not None and eqn.source[0].co_filename == __file__


# ---------------------------------------------------------------------------- random bodies
class Leaf(NamedTuple):
    shape: Tuple[int, ...]
    dtype: Any


LEAVES = [Leaf((), f32), Leaf((2,), f32), Leaf((2,), f16), Leaf((), i32), Leaf((2,), i32)]
OPS = ["sin", "mul", "add", "where", "cond", "scan", "fori", "const"]


class Drawn(NamedTuple):
    carry: Tuple[Leaf, ...]
    steps: Tuple[Tuple[str, int, int], ...]
    outputs: Tuple[int, ...]
    reverse: bool

    def fit(self, n: Any, v: Any, leaf: Leaf) -> Any:
        if v.shape != leaf.shape:
            v = n.sum(v) if not leaf.shape else v + n.zeros(2, dtype=f32)
        return v.astype(leaf.dtype)

    def __call__(self, m: Any, n: Any, w: Any, init: Any, xs: Any) -> Any:
        def as_float(v: Any) -> Any:
            return v.astype(f32)

        def body(carry: Any, x: Any) -> Any:
            pool: List[Any] = [w, x, *carry]
            for op, i, j in self.steps:
                a, b = as_float(pool[i % len(pool)]), as_float(pool[j % len(pool)])
                pool.append({
                    "sin": lambda a, b: n.sin(a), "mul": lambda a, b: n.tanh(a) * n.cos(b),
                    "add": lambda a, b: n.tanh(a + b), "where": lambda a, b: n.where(a > b + 0.123, n.sin(a), b),
                    "cond": lambda a, b: m.cond(n.sum(a) > 0.0123, lambda a, b: n.sin(a) + b,
                                                lambda a, b: n.tanh(b) * n.exp(-a * a), a, b),
                    "scan": lambda a, b: m.scan(lambda c, v: (n.sin(c + v * w), c), n.sum(a), b * n.ones(2, dtype=f32)
                                                )[1] * 0.5,
                    "fori": lambda a, b: m.fori_loop(0, 2, lambda k, c: n.sin(c) + b * k, a + b * 0),
                    "const": lambda a, b: n.sin(a) + n.exp(w),
                }[op](a, b))
            new = tuple(self.fit(n, pool[-1 - k % len(pool)], leaf) for k, leaf in enumerate(self.carry))
            return new, [pool[i % len(pool)] for i in self.outputs]
        return m.scan(body, tuple(init), xs, reverse=self.reverse)


drawn = st.builds(
    Drawn, st.lists(st.sampled_from(LEAVES), max_size=3).map(tuple),
    st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5).map(tuple),
    st.lists(st.integers(0, 9), max_size=2).map(tuple), st.booleans())


@given(drawn, st.integers(1, 3))
@settings(max_examples=20)
def test_random_bodies_agree_with_python_loops(body, length):
    random = np.random.default_rng(length)
    init = [(random.normal(size=leaf.shape) * 2).astype(leaf.dtype) for leaf in body.carry]
    xs = random.normal(size=(length, 2)).astype(f32)
    agree(lambda m, n, w, xs, *init: body(m, n, w, init, xs), f32(0.3), xs, *init, second=False,
          oracle="python", rtol=5e-4)


# ---------------------------------------------------------------------------- errors
def body_of_one(a, x):
    return a


def body_of_another_shape(a, x):
    return pnp.stack([a, a]), x


def body_of_another_dtype(a, x):
    return {"p": a["p"], "q": a["q"].astype("f32")}, x


def body_of_another_tree(a, x):
    return {"p": a["p"]}, x


def body_with_if(a, x):
    return (a if a.sum() > 0 else -a), x


HERE = "at tests/test_scan.py, in <lambda>: "
ERRORS = [
    (lambda: pf.scan(body_of_one, C, X), ArgumentError, [
        "scan: body_of_one (tests/test_scan.py) must return a pair (carry, y), got one array",
        HERE + "(lambda: pf.scan(body_of_one, C, X), ArgumentError, ["]),
    (lambda: pf.scan(body_of_another_shape, C, X), ArgumentError, [
        "scan: the carry changes its type in body_of_another_shape (tests/test_scan.py)",
        HERE + "(lambda: pf.scan(body_of_another_shape, C, X), ArgumentError, [",
        "seen: it takes a as f32[2], and returns f32[2,2] for it",
        "way out: a carry keeps its shape; stack what grows as y of scan"]),
    (lambda: pf.scan(body_of_another_dtype, {"p": 1, "q": i32(2)}, X), ArgumentError, [
        "scan: the carry changes its type in body_of_another_dtype (tests/test_scan.py)",
        HERE + '(lambda: pf.scan(body_of_another_dtype, {"p": 1, "q": i32(2)}, X), ArgumentError, [',
        "seen: it takes a['q'] as i32[], and returns f32[] for it",
        "way out: give the first a['q'], or what is returned for it, another dtype with astype"]),
    (lambda: pf.scan(body_of_another_tree, {"p": 1, "q": i32(2)}, X), ArgumentError, [
        "scan: body_of_another_tree (tests/test_scan.py) returns a carry of another structure than a",
        HERE + '(lambda: pf.scan(body_of_another_tree, {"p": 1, "q": i32(2)}, X), ArgumentError, [',
        "only in what it takes: a['q']"]),
    (lambda: pf.scan(rnn, C, {"p": X, "q": C}), ShapeError, [
        "scan: the number of steps is not clear", HERE + '(lambda: pf.scan(rnn, C, {"p": X, "q": C}), ShapeError, [',
        "seen: 4 along the first axis of xs['p'], f32[4,2]", "seen: 2 along the first axis of xs['q'], f32[2]"]),
    (lambda: pf.scan(rnn, C, X, length=3), ShapeError, [
        "scan: the number of steps is not clear", HERE + "(lambda: pf.scan(rnn, C, X, length=3), ShapeError, [",
        "seen: 4 along the first axis of xs, f32[4,2]", "seen: length=3"]),
    (lambda: pf.scan(rnn, C, [f32(1)]), ShapeError, [
        "scan: xs[0] is f32[], which has no axis to go along",
        HERE + "(lambda: pf.scan(rnn, C, [f32(1)]), ShapeError, [",
        "way out: close over what is the same in all steps"]),
    (lambda: pf.scan(rnn, C), ArgumentError, [
        "scan: there are no arrays in xs that say how many steps there are",
        HERE + "(lambda: pf.scan(rnn, C), ArgumentError, [", "way out: pass length="]),
    (lambda: pf.scan(rnn, C, None, -1), ArgumentError, [
        "scan: length is a number of 0 or more, got -1",
        HERE + "(lambda: pf.scan(rnn, C, None, -1), ArgumentError, ["]),
    (lambda: pf.scan(C, C, X), ArgumentError, [
        "scan takes a function first, got ndarray", HERE + "(lambda: pf.scan(C, C, X), ArgumentError, [",
        "way out: scan(f, init, xs)"]),
    (lambda: pf.scan(lambda a, x: (a, x), C, X, unroll=0), ArgumentError, [
        "scan: unroll is True or a number of 1 or more, got 0",
        HERE + "(lambda: pf.scan(lambda a, x: (a, x), C, X, unroll=0), ArgumentError, ["]),
    (lambda: pf.map(pnp.sin, f32(1)), ShapeError, [
        "map: xs is f32[], which has no axis to go along", HERE + "(lambda: pf.map(pnp.sin, f32(1)), ShapeError, [",
        "way out: close over what is the same in all steps"]),
    (lambda: pf.fori_loop(0, 2.5, body_of_one, 1), DtypeError, [
        "fori_loop: upper is an integer, got ~f32[]",
        HERE + "(lambda: pf.fori_loop(0, 2.5, body_of_one, 1), DtypeError, ["]),
    (lambda: pf.fori_loop(0, 2, body_of_another_shape, C), ArgumentError, [
        "fori_loop: body_of_another_shape (tests/test_scan.py) returns a carry of another structure than x",
        HERE + "(lambda: pf.fori_loop(0, 2, body_of_another_shape, C), ArgumentError, [",
        "only in what it takes: x; only in what it returns: x[0], x[1]"]),
    (lambda: pf.fori_loop(0, 2, lambda i, x: x[:1], C), ArgumentError, [
        "fori_loop: the carry changes its type in <lambda>.<lambda> (tests/test_scan.py)",
        HERE + "(lambda: pf.fori_loop(0, 2, lambda i, x: x[:1], C), ArgumentError, [",
        "seen: it takes x as f32[2], and returns f32[1] for it",
        "way out: a carry keeps its shape; stack what grows as y of scan"]),
    (lambda: pf.associative_scan(pnp.add, {"a": X, "b": C}), ShapeError, [
        "associative_scan: the arrays differ in size along the axis",
        HERE + '(lambda: pf.associative_scan(pnp.add, {"a": X, "b": C}), ShapeError, [',
        "seen: elems['a'] is f32[4,2]", "seen: elems['b'] is f32[2]"]),
    (lambda: pf.associative_scan(pnp.add, X, axis=2), ShapeError, [
        "associative_scan: elems is f32[4,2], which has no axis 2",
        HERE + "(lambda: pf.associative_scan(pnp.add, X, axis=2), ShapeError, ["]),
    (lambda: pf.associative_scan(lambda a, b: (a, b), X), ArgumentError, [
        "associative_scan: <lambda>.<lambda> (tests/test_scan.py) returns another structure than it takes",
        HERE + "(lambda: pf.associative_scan(lambda a, b: (a, b), X), ArgumentError, [",
        "only in elems: elems; only in the result: elems[0], elems[1]"]),
]


@pytest.mark.parametrize("call, kind, text", ERRORS, ids=[e[2][0] for e in ERRORS])
def test_errors(call, kind, text):
    with pytest.raises(kind) as error:
        call()
    assert message_of(error) == text


def test_an_if_in_a_body_names_its_line():
    with pytest.raises(ConcretizationError, match="bool.* needs the value of an array that is not known while "
                                                  "body_with_if is traced") as error:
        pf.grad(lambda c: pf.scan(body_with_if, c, X)[0].sum())(C)
    assert "in body_with_if: return (a if a.sum() > 0 else -a), x" in str(error.value)
