"""Values in parts: the laws of flatten, restore, gather and scatter, norms of parts, and what errors say."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn import P, optim, zero
from popfn.errors import ArgumentError, AxisError, TreeError

DTYPES = ("float32", "float16")
SHAPES = st.lists(st.integers(1, 7), max_size=3).map(tuple)
LEAVES = st.builds(lambda shape, dtype, seed: np.random.default_rng(seed).normal(size=shape).astype(dtype), SHAPES,
                   st.sampled_from(DTYPES), st.integers(0, 99))
TREES = st.recursive(LEAVES, lambda tree: st.lists(tree, max_size=3) | st.dictionaries(
    st.sampled_from("abc"), tree, max_size=3) | st.tuples(tree, st.none()), max_leaves=5)
PARTS = st.integers(1, 8)


def equal(a, b):
    def leaf(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    pf.tree.map(leaf, a, b)


def inside(f, n, in_specs, out_specs):
    return pf.shard(f, pf.Mesh(dp=n), in_specs, out_specs)


# ---------------------------------------------------------------------------- laws
@given(TREES, PARTS)
def test_restore_undoes_flatten(tree, n):
    flat = zero.flatten(tree, n)
    equal(zero.restore(flat, tree), tree)
    equal(pf.jit(lambda t: zero.flatten(t, n))(tree), flat)
    for x, whole in zip(pf.tree.leaves(flat), pf.tree.leaves(tree)):
        assert x.shape == (-(-whole.size // n) * n,) and not np.any(x[whole.size:])
    avals = pf.eval_shape(lambda t: zero.flatten(t, n), pf.tree.map(lambda x: pf.spec(x.shape, x.dtype), tree))
    assert [a.shape for a in pf.tree.leaves(avals)] == [x.shape for x in pf.tree.leaves(flat)]


@given(TREES, PARTS)
def test_gather_undoes_flatten_and_scatter(tree, n):
    avals = pf.tree.map(lambda x: pf.spec(x.shape, x.dtype), tree)
    flat = zero.flatten(tree, n)
    equal(inside(lambda parts: zero.gather(parts, avals, "dp"), n, P("dp"), P())(flat), tree)
    equal(inside(lambda whole: zero.scatter(whole, "dp"), n, P(), P("dp"))(tree), flat)
    equal(inside(lambda whole: zero.gather(zero.scatter(whole, "dp"), whole, "dp"), n, P(), P())(tree), tree)


@given(LEAVES, PARTS)
def test_scatter_of_contributions_has_parts_of_their_sum(x, n):
    """Small whole numbers, whose sums are exact in any order."""
    rows = np.stack([np.round(4 * x) + i for i in range(n)]).astype(x.dtype)
    got = inside(lambda rows: zero.scatter(rows[0], "dp"), n, P("dp"), P("dp"))(rows)
    equal(zero.restore(got, x), rows.sum(0).astype(x.dtype))


@given(LEAVES, PARTS)
def test_gather_and_scatter_are_transposes(x, n):
    """Of the one function of all replicas: the cotangent of the parts is the flat one of the whole, with zeros."""
    flat = zero.flatten(x, n)
    gather = inside(lambda part: zero.gather(part, x, "dp"), n, P("dp"), P())
    equal(pf.vjp(gather, flat)[1](x)[0], flat)
    scatter = inside(lambda whole: zero.scatter(whole, "dp"), n, P(), P("dp"))
    equal(pf.vjp(scatter, x)[1](flat)[0], x)


def test_in_vmap_each_element_has_its_own_parts():
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    flat = pf.vmap(lambda row: zero.flatten(row, 4))(x)
    assert flat.shape == (2, 8)
    np.testing.assert_array_equal(flat, np.pad(x, ((0, 0), (0, 3))))
    cut = P(None, "dp")
    scatter = inside(lambda x: pf.vmap(lambda row: zero.scatter(row, "dp"))(x), 4, P(), cut)
    gather = inside(lambda x: pf.vmap(lambda part: zero.gather(part, pf.spec((5,)), "dp"))(x), 4, cut, P())
    equal(scatter(x), flat)
    equal(gather(flat), x)


def test_over_a_mapped_axis():
    parts = np.float32([[1, 2], [3, 0]])
    f = pf.vmap(lambda part: zero.gather(part, pf.spec((3,)), "i"), axis_name="i", out_axes=None)
    np.testing.assert_array_equal(f(parts), [1, 2, 3])
    g = pf.vmap(lambda _: zero.scatter(np.float32([1, 2, 3]), "i"), axis_name="i")
    np.testing.assert_array_equal(g(parts), parts)


def test_without_elements():
    empty = np.zeros((0, 3), np.float32)
    assert zero.flatten(empty, 4).shape == (0,) and zero.restore(zero.flatten(empty, 4), empty).shape == (0, 3)


OPS = {  # what may be made of a sum on its way to parts of it; u is as large, s a number
    "negative": lambda x, u, s: -x,
    "a known factor": lambda x, u, s: x * 0.5,
    "a known divisor": lambda x, u, s: x / 3.0,
    "infinity": lambda x, u, s: x * np.float32("inf"),
    "one more": lambda x, u, s: x + 1.0,
    "a factor": lambda x, u, s: x * s,
    "a divisor": lambda x, u, s: x / s,
    "others": lambda x, u, s: x - u,
    "of others": lambda x, u, s: u / x,
    "times others": lambda x, u, s: u * x,
    "twice": lambda x, u, s: x * x,
    "half": lambda x, u, s: pnp.astype(pnp.astype(x, "float16"), "float32"),
    "turned": lambda x, u, s: x.mT.mT + x,
    "backwards": lambda x, u, s: x[::-1],
    "a row": lambda x, u, s: x + u[0],
    "pieces": lambda x, u, s: pnp.concat([x[:1], u[1:]]),
    "padded": lambda x, u, s: pnp.pad(x, ((0, 1), (0, 0)))[:-1],
    "padded with ones": lambda x, u, s: pnp.pad(x, ((0, 1), (0, 0)), constant_values=1.0)[1:],
    "by rows": lambda x, u, s: (x.reshape(-1) * 2).reshape(x.shape),
}


@given(st.lists(st.sampled_from(sorted(OPS)), max_size=5), st.sampled_from([(3, 5), (4, 2), (1, 1)]),
       st.sampled_from([0.0, 2.0, float("inf")]), st.booleans())
def test_what_is_made_of_a_sum_is_the_same_in_a_program(ops, shape, s, whole_too):
    """A program may take its part of the sum itself if that changes nothing: neither elements nor zeros behind them."""
    rng = np.random.default_rng(0)
    x, u = rng.integers(-3, 4, (4, *shape)).astype(np.float32), rng.integers(-2, 3, shape).astype(np.float32)

    def f(x, u, s):
        y = total = pf.psum(x[0], "dp")
        for op in ops:
            y = OPS[op](y, u, s)
        return zero.scatter(y, "dp"), total if whole_too else u
    f = inside(f, 4, (P("dp"), P(), P()), (P("dp"), P()))
    made = pf.lower(f, pf.spec(x.shape), pf.spec(shape), pf.spec(()), target="host")
    with np.errstate(all="ignore"), pf.Session(made) as session:
        equal(session.run(x, u, np.float32(s)), f(x, u, np.float32(s)))
    text = made.as_text()
    assert text.count("all_reduce(") + text.count("reduce_scatter(") == 1  # it is added up once
    if not ops:
        assert ("reduce_scatter(" in text) == (not whole_too)


EVEN = {"negative", "a known factor", "a known divisor", "infinity", "one more", "a factor", "a divisor", "others",
        "times others", "of others", "twice", "half", "by rows", "padded"}
PADDED = EVEN - {"infinity", "one more", "a factor", "a divisor", "of others"}


@pytest.mark.parametrize("shape, scattered", [((4, 2), EVEN), ((3, 5), PADDED)])
def test_of_what_is_made_of_a_sum_parts_are_scattered(shape, scattered):
    def program(op):
        f = inside(lambda x, u, s: zero.scatter(OPS[op](pf.psum(x[0], "dp"), u, s), "dp"), 4, (P("dp"), P(), P()),
                   P("dp"))
        return pf.lower(f, pf.spec((4, *shape)), pf.spec(shape), pf.spec(()), target="host")
    assert {op for op in OPS if "reduce_scatter(" in program(op).as_text()} == scattered


# ---------------------------------------------------------------------------- norms
VALUES = {"w": np.arange(15, dtype=np.float32).reshape(3, 5) - 7, "b": np.float32([3, -4, 5]),
          "half": np.float16([1, 2])}


def of_parts(f, n=4, out_specs=None):
    """f of the parts of values on each replica."""
    return inside(f, n, P("dp"), P() if out_specs is None else out_specs)(zero.flatten(VALUES, n))


def test_the_norm_of_parts_is_that_of_the_whole():
    want = optim.global_norm(VALUES)
    np.testing.assert_allclose(of_parts(lambda v: optim.global_norm(v, "dp")), want, rtol=1e-6)
    with pytest.raises(AxisError, match=r"varies over 'dp', but its spec P\(\) does not name it"):
        of_parts(optim.global_norm)


def test_clipping_of_parts_is_that_of_the_whole():
    want, norm = optim.clip_by_global_norm(VALUES, 2.0)
    got, found = of_parts(lambda v: optim.clip_by_global_norm(v, 2.0, "dp"), out_specs=(P("dp"), P()))
    np.testing.assert_allclose(found, norm, rtol=1e-6)
    pf.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3 if b.dtype == np.float16 else 1e-6),
                zero.restore(got, VALUES), want)


def test_leaves_that_are_cut_and_leaves_that_are_not():
    """Each is counted once, over which axes ever it is cut."""
    mesh = pf.Mesh(dp=2, tp=2)
    x = np.arange(1, 5, dtype=np.float32)
    f = pf.shard(lambda *v: optim.global_norm(v, ("dp", "tp")), mesh, (P("dp"), P("tp"), P(("tp", "dp")), P()), P())
    np.testing.assert_allclose(f(x, 2 * x, 3 * x, 4 * x), optim.global_norm([x, 2 * x, 3 * x, 4 * x]), rtol=1e-6)
    made = pf.lower(f, *[pf.spec(4)] * 4)
    assert made.as_text().count("all_reduce(") == 3  # one for all leaves that are cut alike


@pytest.mark.parametrize("bad", [None, 0, 14])
def test_all_finite_asks_all_parts(bad):
    values = {k: v.copy() for k, v in VALUES.items()}
    if bad is not None:
        values["w"].flat[bad] = np.inf
    f = inside(lambda v: optim.all_finite(v, "dp"), 4, P("dp"), P())
    assert bool(f(zero.flatten(values, 4))) == (bad is None) == bool(optim.all_finite(values))


def test_lamb_of_parts_is_that_of_the_whole():
    params = {"w": VALUES["w"] + 0.5, "b": VALUES["b"]}
    grads = [pf.tree.map(lambda p, k=k: np.float32(np.sin(k + p)), params) for k in range(5)]
    opt, in_parts = optim.lamb(0.1), optim.lamb(0.1, axis_name="dp")
    spec = optim.AdamState(P(), P("dp"), P("dp"))
    update = inside(in_parts.update, 4, (P("dp"), spec, P("dp")), (P("dp"), spec))
    whole, state = params, opt.init(params)
    parts = zero.flatten(params, 4)
    part_state = in_parts.init(parts)
    for g in grads:
        whole, state = opt.update(g, state, whole)
        parts, part_state = update(zero.flatten(g, 4), part_state, parts)
    pf.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), zero.restore(parts, params), whole)


# ---------------------------------------------------------------------------- errors
W = {"w": np.ones((3, 5), np.float32)}
FLAT = {"w": np.ones(16, np.float32)}


def gathered(like, parts=FLAT, spec=None):
    return inside(lambda p: zero.gather(p, like, "dp"), 4, spec or P("dp"), P())(parts)


@pytest.mark.parametrize("call, kind, text", [
    (lambda: zero.flatten(W, 0), ArgumentError, "zero.flatten: n is the number of parts, 1 or more, got 0\n  at HERE"),
    (lambda: zero.flatten(W, 2.0), ArgumentError,
     "zero.flatten: n is the number of parts, 1 or more, got 2.0\n  at HERE"),
    (lambda: zero.flatten({"step": np.int32(3), **W}, 2), ArgumentError,
     "zero.flatten: values['step'] is i32[]: parts are of parameters, gradients and moments, which are floats\n"
     "  at HERE\n  way out: leave it whole, and give it the spec pf.P()"),
    (lambda: zero.flatten({"name": "w"}, 2), ArgumentError,
     "zero.flatten: values['name'] is not an array: a value of type str is not an array or a number: 'w'\n  at HERE"),
    (lambda: inside(lambda x: zero.scatter(x, "dp"), 4, P(), P("dp"))(np.arange(3)), ArgumentError,
     "zero.scatter: values is i32[3]: parts are of parameters, gradients and moments, which are floats\n  at HERE\n"
     "  way out: leave it whole, and give it the spec pf.P()"),
    (lambda: zero.restore(FLAT, {"v": W["w"]}), TreeError,
     "zero.restore: flat has another structure than `like`\n  at HERE\n"
     "  only in `like`: flat['v']; only in flat: flat['w']"),
    (lambda: zero.restore(FLAT, {"w": "w"}), ArgumentError,
     "zero.restore: like['w'] is not an array: a value of type str is not an array or a number: 'w'\n  at HERE"),
    (lambda: zero.restore(W, W), ArgumentError,
     "zero.restore: flat['w'] is f32[3,5], not the flat form of f32[3,5]: that is f32[15] or has zeros behind\n"
     "  at HERE"),
    (lambda: zero.restore({"w": FLAT["w"][:12]}, W), ArgumentError,
     "zero.restore: flat['w'] is f32[12], not the flat form of f32[3,5]: that is f32[15] or has zeros behind\n"
     "  at HERE"),
    (lambda: zero.restore(FLAT, {"w": pf.spec((3, 5), "float16")}), ArgumentError,
     "zero.restore: flat['w'] is f32[16], not the flat form of f16[3,5]: that is f16[15] or has zeros behind\n"
     "  at HERE\n  way out: a `like` of dtype float32, and convert the result"),
    (lambda: gathered({"v": W["w"]}), TreeError,
     "zero.gather: parts has another structure than `like`\n  at HERE\n"
     "  only in `like`: parts['v']; only in parts: parts['w']"),
    (lambda: gathered({"w": pf.spec((4, 5))}), ArgumentError,
     "zero.gather: parts['w'] is f32[4]{dp}, no part of f32[4,5]: each of 4 replicas along 'dp' has f32[5] of it\n"
     "  at HERE\n  way out: parts are made by pf.zero.flatten(values, 4) outside of pf.shard, by "
     "pf.zero.scatter(values, 'dp') inside"),
    (lambda: gathered({"w": pf.spec((3, 5), "float16")}), ArgumentError,
     "zero.gather: parts['w'] is f32[4]{dp}, no part of f16[3,5]: each of 4 replicas along 'dp' has f16[4] of it\n"
     "  at HERE\n  way out: a `like` of dtype float32, and convert the result"),
    (lambda: gathered(W, {"w": FLAT["w"][:4]}, P()), AxisError,
     "zero.gather: parts['w'] is f32[4], which does not vary over 'dp': all replicas have the same, not parts\n"
     "  at HERE\n  way out: cut it by in_specs=pf.P('dp'), or take parts with pf.zero.scatter"),
    (lambda: zero.gather(FLAT, W, "dp"), AxisError,
     "zero.gather: there is no axis 'dp' here\n  at HERE\n  in scope: none\n"
     "  way out: call it in a function that is mapped with pf.vmap(f, axis_name=...), or sharded over a mesh with such "
     "an axis"),
    (lambda: inside(lambda x: zero.scatter(x, "tp"), 4, P(), P("dp"))(W), AxisError,
     "zero.scatter: there is no axis 'tp' here\n  at HERE\n  in scope: 'dp'\n"
     "  way out: call it in a function that is mapped with pf.vmap(f, axis_name=...), or sharded over a mesh with such "
     "an axis"),
    (lambda: optim.global_norm(W, "dp"), AxisError,
     "global_norm: there is no axis 'dp' here\n  at HERE\n  in scope: none\n"
     "  way out: call it in a function that is mapped with pf.vmap(f, axis_name=...), or sharded over a mesh with such "
     "an axis"),
])
def test_errors(call, kind, text):
    with pytest.raises(kind) as e:
        call()
    lines = str(e.value).split("\n")
    assert [line for line in lines if not line.startswith("  at ")] == text.replace("  at HERE\n", "").replace(
        "\n  at HERE", "").split("\n")
    assert sum(line.startswith("  at ") and "test_zero.py" in line for line in lines) == 1
