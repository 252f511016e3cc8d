"""vmap as a user meets it, and the collectives between its lanes: against loops, JAX and differences."""
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace import prims
from popfn.trace.errors import ArgumentError, AxisError, ShapeError
from popfn.trace.parse import primitives
from popfn.trace.prims.collectives import Collective
from popfn.transforms.differentiate import vjp_jaxpr

f32 = np.float32
X = np.arange(12, dtype=f32).reshape(3, 4) / 7 - 0.6
W = np.linspace(-1, 1, 4, dtype=f32)
TREE = {"a": X, "b": (X[:, 0], np.array([1, 2, 3], np.int32))}


def close(got, want, tolerance=2e-6):
    flat, structure = jax.tree_util.tree_flatten(jax.tree_util.tree_map(np.asarray, got))
    other, other_structure = jax.tree_util.tree_flatten(jax.tree_util.tree_map(np.asarray, want))
    assert structure == other_structure
    for g, w in zip(flat, other):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, tolerance, tolerance)


# ---------------------------------------------------------------------------- where the axis is
CALLS = {
    "one axis for all": (lambda m, x, y: m.vmap(lambda a, b: a * b)(x, y), (X, X)),
    "the last axis": (lambda m, x: m.vmap(lambda a: a.sum(), in_axes=-1)(x), (X,)),
    "not all mapped": (lambda m, x, w: m.vmap(lambda a, b: a @ b, in_axes=(0, None))(x, w), (X, W)),
    "a tree above the argument": (
        lambda m, t: m.vmap(lambda t: t["a"].sum() + t["b"][0], in_axes=({"a": 0, "b": (0, None)},))(t), (TREE,)),
    "an entry for a subtree": (
        lambda m, t: m.vmap(lambda t, s: t["a"] * s + t["b"][0], in_axes=({"a": 1, "b": None}, 0))(t, W),
        ({"a": X, "b": (f32(2.0), f32(1.0))},)),
    "a list": (lambda m, x, w: m.vmap(lambda a, b: a * b, in_axes=[1, 0])(x, w), (X, W)),
    "results elsewhere": (lambda m, x: m.vmap(lambda a: (a, {"s": a.sum()}), out_axes=(1, 0))(x), (X,)),
    "results at the end": (lambda m, x: m.vmap(lambda a: a * 2, out_axes=-1)(x), (X,)),
    "a result that no lane changes": (lambda m, x: m.vmap(lambda a: (a, W), out_axes=(0, None))(x), (X,)),
    "repeated for all lanes": (lambda m, x: m.vmap(lambda a: (a, W))(x), (X,)),
    "nothing mapped": (lambda m, x: m.vmap(lambda a: a + 1, in_axes=None, axis_size=2)(x), (W,)),
    "by keyword": (lambda m, x: m.vmap(lambda a, *, b: a - b)(x, b=x), (X,)),
    "twice": (lambda m, x: m.vmap(m.vmap(lambda a: a * a, in_axes=0, out_axes=0), in_axes=1, out_axes=1)(x), (X,)),
    "an outer product": (
        lambda m, x: m.vmap(m.vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))(x[0], x[:, 0]), (X,)),
    "closed-over lanes": (lambda m, x: m.vmap(lambda a: m.vmap(lambda b: b @ a)(x))(x), (X,)),
    "of grad": (lambda m, x: m.vmap(m.grad(lambda a: (a ** 3).sum()))(x), (X,)),
    "in grad": (lambda m, x: m.grad(lambda x: (m.vmap(lambda a: a @ a)(x) ** 2).sum())(x), (X,)),
    "of jit": (lambda m, x: m.vmap(m.jit(lambda a: a.sum() * a))(x), (X,)),
    "in jit": (lambda m, x: m.jit(m.vmap(lambda a: a.sum() * a))(x), (X,)),
    "per-example gradients": (
        lambda m, w, x: m.vmap(m.grad(lambda w, a: (a @ w) ** 2), in_axes=(None, 0))(w, x), (W, X)),
    "of jvp": (lambda m, x: m.vmap(lambda a: m.jvp(lambda b: b * b.sum(), (a,), (a,)))(x), (X,)),
    "a Hessian": (lambda m, w: m.vmap(lambda v: m.jvp(m.grad(lambda w: (w ** 3).sum() * w[0]), (w,), (v,))[1])(
        np.eye(4, dtype=f32)), (W,)),
    "zero lanes": (lambda m, x: m.vmap(lambda a: a.sum())(x[:0]), (X,)),
}


@pytest.mark.parametrize("call", CALLS)
def test_vmap_equals_jax(call):
    f, args = CALLS[call]
    close(f(pf, *map_arrays(pnp.asarray, args)), f(jax, *map_arrays(jnp.asarray, args)))


def map_arrays(f, tree):
    return jax.tree_util.tree_map(f, tree)


def test_what_does_not_depend_on_the_lane_is_computed_once():
    def f(x, w):
        return x * pnp.exp(w)
    eqns = pf.make_jaxpr(pf.vmap(f, in_axes=(0, None)))(pf.spec((8, 4)), pf.spec(4)).eqns
    assert [(e.primitive.name, str(e.outputs[0].aval)) for e in eqns] == [("exp", "f32[4]"), ("mul", "f32[8,4]")]


def test_vmap_keeps_name_and_docstring():
    def area(r):
        """pi r^2"""
        return 3.14 * r * r
    assert pf.vmap(area).__name__ == "area" and pf.vmap(area).__doc__ == "pi r^2"
    assert pf.vmap(in_axes=1)(area).__name__ == "area"


def test_python_sees_no_values_under_vmap():
    with pytest.raises(pf.errors.ConcretizationError, match="not known while"):
        pf.vmap(lambda a: a if a > 0 else -a)(W)


def ruled():
    """A function with a rule of its own for reverse mode."""
    f = pf.custom_vjp(lambda a: a ** 3)
    f.defvjp(lambda a: (a ** 3, a), lambda a, ct: (3 * a * a * ct,))
    return f


# ---------------------------------------------------------------------------- collectives
def lanes(m, f, *args, **options):
    return m.vmap(f, axis_name="i", **options)(*args)


COLLECTIVES = {  # functions of one lane, for popfn and for JAX alike
    "psum": lambda m, a: m.psum(a * a, "i") * a,
    "pmean": lambda m, a: a - m.pmean(a, "i"),
    "pmax": lambda m, a: m.pmax(a, "i") + a,
    "pmin": lambda m, a: m.pmin(a, "i") * a,
    "all_gather": lambda m, a: m.all_gather(a, "i", axis=1).sum() + a,
    "all_gather tiled": lambda m, a: m.all_gather(a, "i", axis=0, tiled=True)[:4] + a,
    "ppermute": lambda m, a: m.ppermute(a, "i", [(0, 1), (1, 2), (2, 0)]) - a,
    "ppermute with gaps": lambda m, a: m.ppermute(a, "i", [(2, 0)]),
    "axis_index": lambda m, a: a * m.axis_index("i"),
    "axis_index alone": lambda m, a: m.axis_index("i"),
    "all_to_all": lambda m, a: m.all_to_all(a[:3].reshape(3, 1), "i", 0, 1),
    "psum of a tree": lambda m, a: m.psum({"s": a, "t": (a.sum(),)}, "i")["t"][0] * a,
}


class Lax:
    """JAX under popfn's names."""

    vmap = staticmethod(jax.vmap)

    def __getattr__(self, name):
        return getattr(jax.lax, name)


@pytest.mark.parametrize("name", [n for n in COLLECTIVES if n != "ppermute with gaps"])  # which JAX's vmap refuses
def test_collectives_equal_jax(name):
    f = COLLECTIVES[name]
    close(lanes(pf, lambda a: f(pf, a), X), lanes(Lax(), lambda a: f(Lax(), a), jnp.asarray(X)))


@pytest.mark.parametrize("name", [n for n in COLLECTIVES if "alone" not in n])
def test_collectives_have_the_derivative_of_the_whole_function(name):
    """Outside of the lanes: forward, reverse and differences agree."""
    f = COLLECTIVES[name]

    def whole(x):
        return (lanes(pf, lambda a: f(pf, a), x) ** 2).sum()
    t = np.cos(np.arange(12, dtype=f32)).reshape(3, 4)
    gradient = np.asarray(pf.grad(whole)(X))
    tangent = float(pf.jvp(whole, (X,), (t,))[1])
    step = 1e-2
    slope = (float(whole(X + step * t)) - float(whole(X - step * t))) / (2 * step)
    assert abs((gradient * t).sum() - tangent) <= 1e-4 * max(1, abs(tangent))
    assert abs(tangent - slope) <= 5e-3 * max(1, abs(slope))


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "all_gather"])
def test_grad_inside_the_lanes_is_that_of_the_whole_function(name):
    """A loss that all lanes share, differentiated in each lane by its own part."""
    f = COLLECTIVES[name]

    def share(a):
        return pf.psum((f(pf, a) ** 2).sum(), "i")
    inside = lanes(pf, pf.grad(share), X)
    outside = pf.grad(lambda x: lanes(pf, share, x, out_axes=None))(X)
    close(inside, outside, 1e-5)


def test_grad_inside_by_what_all_lanes_share_is_summed():
    def loss(w, a):
        return ((a @ w) ** 2).sum()
    inside = lanes(pf, pf.grad(loss), W, X, in_axes=(None, 0), out_axes=None)
    close(inside, 2 * X.T @ (X @ W), 1e-5)
    mean = lanes(pf, pf.grad(lambda w, a: pf.pmean(loss(w, a), "i")), W, X, in_axes=(None, 0), out_axes=None)
    close(mean, 2 * X.T @ (X @ W) / 3, 1e-5)


@pytest.mark.parametrize("name, f", [
    ("jit", pf.jit(lambda a: a * a.sum())),
    ("scan", lambda a: pf.scan(lambda c, x: (c * x, None), a, a)[0]),
    ("cond", lambda a: pf.cond(a.sum() > 0, lambda a: a * a, pnp.sin, a)),
    ("custom_vjp", ruled()),
])
def test_what_all_lanes_share_goes_into_a_body_that_varies(name, f):
    """A cotangent that is one for all lanes: its gradient is the sum over them."""
    def lane(a):
        return pf.grad(lambda c: pf.vjp(f, a)[1](c)[0].sum())(W)

    def whole(c):
        return sum(pf.vjp(f, a)[1](c)[0].sum() for a in X)
    close(lanes(pf, lane, X, out_axes=None), pf.grad(whole)(W), 1e-5)


def test_second_order_through_collectives():
    def whole(x):
        return lanes(pf, lambda a: pf.psum(pf.pmax(a, "i").sum() * a ** 3, "i").sum(), x, out_axes=None)

    def plain(x):
        return (jnp.max(x, 0).sum() * x ** 3).sum()
    t = np.cos(X)
    got = pf.jvp(pf.grad(whole), (X,), (t,))[1]
    close(got, jax.jvp(jax.grad(plain), (jnp.asarray(X),), (jnp.asarray(t),))[1], 1e-4)


def test_lanes_without_a_source_get_zeros():
    got = lanes(pf, lambda a: pf.ppermute(a, "i", [(2, 0)]), X)
    np.testing.assert_array_equal(got, np.stack([X[2], 0 * X[0], 0 * X[0]]))


def test_two_axes():
    def f(a):
        return pf.psum(a, ("i", "j")) + pf.axis_index("i") * 10 + pf.axis_index("j") + pf.psum(a, "j")
    got = pf.vmap(pf.vmap(f, axis_name="j"), axis_name="i")(X)
    want = X.sum() + 10 * np.arange(3)[:, None] + np.arange(4) + X.sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, 1e-5)
    assert pf.vmap(lambda a: a * pf.axis_size("i"), axis_name="i")(X)[0, 0] == X[0, 0] * 3


def test_the_inner_of_two_axes_of_one_name_is_meant():
    got = pf.vmap(lambda row: pf.vmap(lambda a: pf.psum(a, "i"), axis_name="i", out_axes=None)(row), axis_name="i")(X)
    np.testing.assert_allclose(got, X.sum(1), 1e-5)


def test_types_show_the_axes():
    seen = []

    def f(a):
        seen.append(str(pf.make_jaxpr(lambda w: pf.psum(w * a, "i") + w)(W)))
        return a
    lanes(pf, f, X)
    assert seen[0] == """{ lambda ; a:f32[4]{i} b:f32[4] . let
    c:f32[4]{i} = pvary[names=('i',)] b
    d:f32[4]{i} = mul c a
    e:f32[4] = psum[names=('i',)] d
    f:f32[4] = add e b
  in (f,) }"""
    assert str(pf.parse_jaxpr(seen[0])) == seen[0]


def test_a_jitted_function_is_traced_anew_for_another_size():
    scale = pf.jit(lambda a: a * pf.axis_size("i"))
    np.testing.assert_allclose(lanes(pf, scale, X), X * 3)
    np.testing.assert_allclose(lanes(pf, scale, X[:2]), X[:2] * 2)


def test_pvary_counts_each_lane():
    assert float(lanes(pf, lambda a: pf.psum(pf.pvary(f32(2), "i"), "i"), X, out_axes=None)) == 6
    got = pf.grad(lambda w: lanes(pf, lambda a: pf.psum(pf.pvary(w, "i") * a, "i"), X, out_axes=None).sum())(f32(1))
    np.testing.assert_allclose(got, X.sum(), 1e-5)


def test_psum_scatter():
    close(lanes(pf, lambda a: pf.psum_scatter(a[:3], "i"), X), X[:, :3].sum(0), 1e-5)
    wide = np.arange(18, dtype=f32).reshape(3, 6)
    close(lanes(pf, lambda a: pf.psum_scatter(a, "i", tiled=True), wide), wide.sum(0).reshape(3, 2), 1e-5)


def test_integers_and_float16():
    got = lanes(pf, lambda a: pf.pmean(a, "i"), np.array([1, 2, 4], np.int32), out_axes=None)
    assert got.dtype == f32 and abs(float(got) - 7 / 3) < 1e-6
    assert float(lanes(pf, lambda a: pf.pmean(a, "i"), np.full(4, 60000, np.float16), out_axes=None)) == 60000


def test_every_collective_is_tested():
    """As it is written, or as the transpose of one that is."""
    seen = set()

    def record(f):
        def lane(a):
            jaxpr = pf.make_jaxpr(lambda a: f(pf, a))(a)
            mask = tuple(v.aval.is_float for v in jaxpr.inputs)
            seeds = [0] if jaxpr.out_avals[0].is_float else []
            for made in (jaxpr, vjp_jaxpr(jaxpr, mask, seeds)):
                seen.update(e.primitive.name for e in made.eqns if isinstance(e.primitive, Collective))
            return a
        return lane
    for f in COLLECTIVES.values():
        lanes(pf, record(f), X)
    assert seen == {name for name, cls in primitives().items() if issubclass(cls, Collective)}


# ---------------------------------------------------------------------------- errors
@pytest.mark.parametrize("call, error, lines", [
    (lambda: pf.vmap(lambda a, b: a)(X, W), ArgumentError,
     ["vmap: the mapped axes of <lambda> (FILE)'s arguments differ in size",
      "seen: 3 along axis 0 of a, f32[3,4]", "seen: 4 along axis 0 of b, f32[4]"]),
    (lambda: pf.vmap(lambda a: a, axis_size=5)(X), ArgumentError, ["seen: axis_size=5"]),
    (lambda: pf.vmap(lambda a: a)(f32(1)), ArgumentError,
     ["vmap: argument a of <lambda> (FILE) is f32[], which has no axis 0 to map over",
      "way out: write None in in_axes for what is the same for every element"]),
    (lambda: pf.vmap(lambda a: a, in_axes=2)(X), ArgumentError,
     ["vmap: argument a of <lambda> (FILE) is f32[3,4], which has no axis 2 to map over"]),
    (lambda: pf.vmap(lambda a: a, in_axes=(0, 0))(X), ArgumentError,
     ["vmap: in_axes has 2 entries, but <lambda> (FILE) was called with 1 positional arguments",
      "seen: in_axes=(0, 0)"]),
    (lambda: pf.vmap(lambda t: t, in_axes=({"a": 0},))(TREE), ArgumentError,
     ["vmap: in_axes for argument t of <lambda> (FILE) is no tree above it", "seen: {'a': 0}"]),
    (lambda: pf.vmap(lambda a: a, in_axes=None)(X), ArgumentError,
     ["vmap: no argument of <lambda> (FILE) is mapped, so that the size is not known",
      "way out: give an argument an axis in in_axes, or pass axis_size="]),
    (lambda: pf.vmap(lambda a: {"r": a}, out_axes=None)(X), ArgumentError,
     ["vmap: result['r'] of <lambda> (FILE), f32[4] for each element, depends on the element, but out_axes says None",
      "way out: give it an axis in out_axes"]),
    (lambda: pf.vmap(lambda a: a, out_axes=3)(X), ArgumentError,
     ["vmap: result of <lambda> (FILE), f32[4] for each element, cannot have the mapped axis at 3"]),
    (lambda: pf.vmap(lambda a: a, out_axes=(0, 1))(X), ArgumentError,
     ["vmap: out_axes is no tree above the result of <lambda> (FILE)", "seen: out_axes=(0, 1)"]),
    (lambda: pf.vmap(lambda a: a, axis_size=-1)(X), ArgumentError,
     ["vmap: axis_size is a size of 0 or more, got -1"]),
    (lambda: pf.vmap(lambda a: a, axis_name="not a name")(X), ArgumentError,
     ["vmap: axis_name is a name, got 'not a name'"]),
    (lambda: pf.vmap(X), ArgumentError, ["vmap takes a function first, got ndarray"]),
    (lambda: pf.psum(X, "i"), AxisError,
     ["psum: there is no axis 'i' here", "in scope: none",
      "way out: call it in a function that is mapped with pf.vmap(f, axis_name=...)"]),
    (lambda: lanes(pf, lambda a: pf.axis_index("j"), X), AxisError,
     ["axis_index: there is no axis 'j' here", "in scope: 'i'"]),
    (lambda: lanes(pf, lambda a: pf.psum(W, "i"), X), AxisError,
     ["psum of a value that does not vary over 'i': it is one and the same in all lanes",
      "the value: f32[4], a constant", "way out: leave psum out, multiply by pf.axis_size('i'), or say with "
      "pf.pvary(x, 'i') that each lane contributes its own"]),
    (lambda: lanes(pf, lambda a, w: pf.psum(w * 2, "i"), X, W, in_axes=(0, None)), AxisError,
     ["psum of a value that does not vary over 'i'", "the value: f32[4], made at FILE, in <lambda>"]),
    (lambda: lanes(pf, lambda a: pf.psum(pf.psum(a, "i"), "i"), X), AxisError,
     ["psum of a value that does not vary over 'i'"]),
    (lambda: lanes(pf, lambda a: pf.ppermute(a, "i", [(0, 1), (0, 2)]), X), ArgumentError,
     ["ppermute: lane 0 as a source stands there twice: 'i' has 3 lanes", "seen: perm=[(0, 1), (0, 2)]"]),
    (lambda: lanes(pf, lambda a: pf.ppermute(a, "i", [(0, 3)]), X), ArgumentError,
     ["ppermute: lane 3 as a target is out of range: 'i' has 3 lanes"]),
    (lambda: lanes(pf, lambda a: pf.psum_scatter(a, "i"), X), ShapeError,
     ["psum_scatter: axis 0 of f32[4] has 4 elements for 3 lanes of 'i'"]),
    (lambda: lanes(pf, lambda a: pf.psum_scatter(pnp.concat([a, a, a]), "i"), X), ShapeError,
     ["psum_scatter: axis 0 of f32[12] has 12 elements for 3 lanes of 'i'",
      "way out: tiled=True gives each lane an equal part"]),
    (lambda: lanes(pf, lambda a: pf.all_to_all(a, "i", 0, 0), X), ShapeError,
     ["all_to_all: axis 0 of f32[4] has 4 elements for 3 lanes of 'i'"]),
    (lambda: lanes(pf, lambda a: pf.all_gather(a, "i", axis=2), X), ShapeError,
     ["all_gather: axis 2 is not an axis of a value of rank 2"]),
])
def test_errors(call, error, lines):
    with pytest.raises(error) as caught:
        call()
    text = re.sub(r"[^\s(]*test_vmap\.py:\d+", "FILE", str(caught.value)).replace("<lambda>.<lambda>", "<lambda>")
    for line in lines:
        assert line in text, text
    assert "\n  at FILE, in <lambda>" in text
    np.testing.assert_allclose(pf.vmap(lambda a: a + 1)(X), X + 1)  # and the next call works


def test_a_collective_has_no_value_outside():
    jaxprs = []
    lanes(pf, lambda a: jaxprs.append(pf.make_jaxpr(lambda a: pf.psum(a, "i"))(a)) or a, X)
    with pytest.raises(AxisError, match="psum over 'i' has no value outside of the mapped axis"):
        jaxprs[0].eval(W)
    with pytest.raises(AxisError, match=r"psum of f32\[4\], which does not vary over 'i'"):
        prims.psum(W, ("i",))
