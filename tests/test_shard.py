"""shard: meshes and specs, where parts lie, every collective against NumPy, and types."""
import itertools
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from control_flow import all_equations, close, loss_of
from shard_worlds import Parts, Replicas, cut_whole, own_slices
from test_properties import assert_round_trip

import popfn as pf
import popfn.numpy as pnp
from popfn import random
from popfn.trace.errors import AxisError
from popfn.transforms.shard import Shard

P, f32, i32 = pf.P, np.float32, np.int32
MESH = pf.Mesh(dp=2, tp=2)
CUBE = pf.Mesh(dp=2, pp=2, tp=2)
rng = np.random.default_rng(0)
V = np.arange(8, dtype=f32)
X = rng.normal(size=(8, 4)).astype(f32)
W = rng.normal(size=(4, 6)).astype(f32)


def sharded(f: Callable[..., Any], in_specs: Any, out_specs: Any, mesh: pf.Mesh = MESH) -> Callable[..., Any]:
    return pf.shard(f, mesh, in_specs, out_specs)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------- meshes and specs
def test_a_mesh_is_its_axes_in_order():
    mesh = pf.Mesh(dp=2, tp=np.int64(4))
    assert (repr(mesh), mesh.size, mesh.axes) == ("Mesh(dp=2, tp=4)", 8, {"dp": 2, "tp": 4})
    assert mesh == pf.Mesh(dp=2, tp=4) and hash(mesh) == hash(pf.Mesh(dp=2, tp=4)) and mesh != "Mesh(dp=2, tp=4)"
    assert pf.Mesh(a=2, b=2) != pf.Mesh(b=2, a=2) and pf.Mesh(a=2) != pf.Mesh(a=3)
    mesh.axes["dp"] = 9
    assert mesh.axes == {"dp": 2, "tp": 4}


def test_a_spec_is_its_names():
    assert repr(P("dp", None, ("tp", "pp"))) == "P('dp', None, ('tp', 'pp'))"
    same = [P("dp"), P(("dp",)), P("dp", None), P("dp", (), None)]
    assert len(set(same)) == 1 and all(p == P("dp") for p in same)
    assert len({P(), P("dp"), P(None, "dp"), P(("dp", "tp")), P(("tp", "dp")), P("dp", "tp"), P("tp", "dp")}) == 7
    assert list(P("dp", None)) == ["dp", None] and P() != ()


SPECS = [P(*[names[0] if len(names) == 1 else names for names in (order[:a], order[a:])])
         for n in range(4) for order in itertools.permutations(("dp", "pp", "tp"), n) for a in range(n + 1)]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_parts_lie_where_the_spec_says(spec):
    """Every order of names, on one axis and on two: the parts of the replicas in the mesh's order are NumPy's."""
    x = np.arange(16 * 24).reshape(16, 24)[:8, :8].astype(i32)
    every = P(("dp", "pp", "tp"))
    got = np.asarray(sharded(lambda x: pf.pvary(x, ("dp", "pp", "tp"))[None], spec, every, CUBE)(x))
    entries = (*spec.spec, (), ())[:2]
    want = [x[own_slices(x.shape, entries, dict(zip(CUBE.axes, at)), CUBE.axes)]
            for at in np.ndindex(*CUBE.axes.values())]
    np.testing.assert_array_equal(got, np.stack(want))
    back = sharded(lambda x: x * 2, spec, spec, CUBE)
    np.testing.assert_array_equal(np.asarray(back(x)), x * 2)
    lanes = np.stack([x, -x], 1)
    np.testing.assert_array_equal(np.asarray(pf.vmap(back, 1, 1)(lanes)), lanes * 2)


def test_replica_numbers_follow_the_mesh():
    def number() -> Any:
        return ((pf.axis_index("dp") * pf.axis_size("pp") + pf.axis_index("pp")) * 2 + pf.axis_index("tp"))[None]
    assert sharded(number, (), P(("dp", "pp", "tp")), CUBE)().tolist() == list(range(8))
    assert sharded(number, (), P(("tp", "dp", "pp")), CUBE)().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


# ---------------------------------------------------------------------------- collectives
Collective = Tuple[Callable[[Any, Any], Any], Any]
ROWS = [(0, 1), (1, 0), (2, 3)]
#: What each does with parts of two axes that are cut over dp and tp, in either world, and the spec of its result.
COLLECTIVES: Dict[str, Collective] = {
    "psum": (lambda w, x: w.psum(x, "dp"), P(None, "tp")),
    "psum of both": (lambda w, x: w.psum(x, ("tp", "dp")), P()),
    "psum in turn": (lambda w, x: w.psum(w.psum(x, "tp"), "dp"), P()),
    "pmean": (lambda w, x: w.pmean(x, "tp"), P("dp")),
    "pmean of both": (lambda w, x: w.pmean(x, ("dp", "tp")), P()),
    "pmax": (lambda w, x: w.pmax(x, "dp"), P(None, "tp")),
    "pmax of both": (lambda w, x: w.pmax(x, ("dp", "tp")), P()),
    "pmin": (lambda w, x: w.pmin(x, "tp"), P("dp")),
    "pmin of both": (lambda w, x: w.pmin(x, ("tp", "dp")), P()),
    "all_gather": (lambda w, x: w.all_gather(x, "tp"), P(None, "dp")),
    "all_gather, last": (lambda w, x: w.all_gather(x, "dp", axis=2), P(None, "tp")),
    "all_gather, tiled": (lambda w, x: w.all_gather(x, "dp", tiled=True), P(None, "tp")),
    "all_gather, tiled, along the other": (lambda w, x: w.all_gather(x, "dp", axis=1, tiled=True), P(None, "tp")),
    "psum_scatter": (lambda w, x: w.psum_scatter(w.each(lambda np, x: np.reshape(x, (size_of(w, "tp"), -1)), x), "tp"),
                     P(("dp", "tp"))),
    "psum_scatter, last": (lambda w, x: w.psum_scatter(w.each(
        lambda np, x: np.reshape(x, (-1, size_of(w, "dp"))), x), "dp", axis=1), P(("tp", "dp"))),
    "psum_scatter, tiled": (lambda w, x: w.psum_scatter(x, "tp", tiled=True), P(("dp", "tp"))),
    "psum_scatter, tiled, last": (lambda w, x: w.psum_scatter(x, "dp", axis=1, tiled=True), P(None, ("tp", "dp"))),
    "all_to_all": (lambda w, x: w.all_to_all(w.each(
        lambda np, x: np.reshape(x, (size_of(w, "dp"), -1)), x), "dp", 0, 0), P("tp", "dp")),
    "all_to_all, to the end": (lambda w, x: w.all_to_all(w.each(
        lambda np, x: np.reshape(x, (-1, size_of(w, "tp"))), x), "tp", 1, 1), P("dp", "tp")),
    "ppermute": (lambda w, x: w.ppermute(x, "dp", [(0, 1), (1, 0)]), P("dp", "tp")),
    "ppermute of one": (lambda w, x: w.ppermute(x, "tp", [(0, 1)]), P("dp", "tp")),
    "ppermute of none": (lambda w, x: w.ppermute(x, "tp", []), P("dp", "tp")),
    "axis_index": (lambda w, x: w.each(lambda np, x, i, j: x + 10 * i + j, x, w.index("dp"), w.index("tp")),
                   P("dp", "tp")),
    "pvary": (lambda w, x: w.vary(w.psum(x, "dp"), "dp"), P("dp", "tp")),
    "own part": (lambda w, x: w.each(lambda np, x, i: np.take(x, i, axis=0), w.all_gather(x, "dp"), w.index("dp")),
                 P("dp", "tp")),
}
LINEAR = sorted(set(COLLECTIVES) - {"axis_index"} - {name for name in COLLECTIVES if name[:4] in ("pmax", "pmin")})
MESHES = {"2x2": pf.Mesh(dp=2, tp=2), "2x4": pf.Mesh(dp=2, tp=4), "2x2x2": CUBE, "1x2": pf.Mesh(dp=1, tp=2),
          "tp first": pf.Mesh(tp=2, dp=2)}


def size_of(w: Any, name: str) -> int:
    return int(w.sizes[name]) if isinstance(w, Replicas) else pf.axis_size(name)


def whole(mesh: pf.Mesh, dtype: Any = f32) -> np.ndarray:
    """Rows for dp and columns for tp, so that each part has four of each."""
    shape = (4 * mesh.axes["dp"], 4 * mesh.axes["tp"])
    return np.random.default_rng(1).permutation(np.arange(np.prod(shape)) % 120).reshape(shape).astype(dtype)


def collective(name: str, mesh: pf.Mesh) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """A collective as a function of global arrays, and what NumPy has on every replica for it, cut into its parts."""
    f, spec = COLLECTIVES[name]
    ours = sharded(lambda x: f(Parts(mesh.axes), x), P("dp", "tp"), spec, mesh)

    def theirs(x: np.ndarray) -> np.ndarray:
        return np.asarray(f(Replicas(mesh.axes), cut_whole(x, (("dp",), ("tp",)), mesh.axes)))
    return ours, theirs


def together(parts: np.ndarray, spec: Any, mesh: pf.Mesh) -> np.ndarray:
    """The global array of the parts of all replicas, which are equal where they are one."""
    n = len(mesh.axes)
    local = parts.shape[n:]
    entries = (*spec.spec, *[()] * len(local))[:len(local)]
    shape = [size * int(np.prod([mesh.axes[a] for a in names])) for size, names in zip(local, entries)]
    out = np.zeros(shape, parts.dtype)
    for at in np.ndindex(*parts.shape[:n]):
        out[own_slices(shape, entries, dict(zip(mesh.axes, at)), mesh.axes)] = parts[at]
    np.testing.assert_array_equal(cut_whole(out, entries, mesh.axes), parts)
    return out


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_numpy_s(name, mesh):
    """Eagerly, jitted, in lanes of vmap, for floats and integers."""
    spec = COLLECTIVES[name][1]
    mesh = MESHES[mesh]
    if name.startswith("ppermute") and mesh.axes["dp"] == 1:
        pytest.skip("there is nobody to give to")
    ours, theirs = collective(name, mesh)
    for dtype in (f32, i32):
        x = whole(mesh, dtype)
        want = together(theirs(x), spec, mesh)
        for got in (ours(x), pf.jit(ours)(x) if dtype is f32 else ours(x)):
            assert got.dtype == (f32 if "pmean" in name else dtype)
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
    lanes = np.stack([x, x[::-1], -x], axis=1)
    got = pf.vmap(ours, 1, axis_name="lane")(lanes)
    np.testing.assert_allclose(np.asarray(got), [together(theirs(lanes[:, i]), spec, mesh) for i in range(3)], 1e-6)


@pytest.mark.parametrize("name", LINEAR)
def test_derivatives_of_linear_collectives_are_numpy_s_matrices(name):
    """Jacobians forwards and backwards are the matrix of what NumPy does with a basis."""
    mesh = pf.Mesh(dp=2, tp=2)
    ours, theirs = collective(name, mesh)
    spec, shape = COLLECTIVES[name][1], (8, 8)
    basis = np.eye(64).reshape(64, *shape)
    want = np.stack([together(theirs(e), spec, mesh) for e in basis], axis=-1)
    x = whole(mesh)
    for jacobian in (pf.jacfwd(ours)(x), pf.jacrev(ours)(x)):
        np.testing.assert_allclose(np.asarray(jacobian).reshape(want.shape), want, atol=1e-6)
    ct = np.cos(np.arange(want[..., 0].size, dtype=f32)).reshape(want.shape[:-1])
    got, = pf.linear_transpose(ours, x)(ct) if name != "own part" else pf.vjp(ours, x)[1](ct)
    np.testing.assert_allclose(np.asarray(got), np.tensordot(ct, want, ct.ndim).reshape(shape), atol=1e-5)


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_winners_on_several_replicas_share_the_cotangent(name):
    x = np.array([1, 3, 3, 2, 3, 0, 1, 1], f32) * (1 if name == "pmax" else -1)
    f = sharded(lambda x: getattr(pf, name)(x, ("dp", "tp")), P(("dp", "tp")), P())
    g = pf.grad(lambda x: (f(x) * np.array([1, 10], f32)).sum())(x)
    pairs = np.abs(x).reshape(4, 2)
    wins = pairs == pairs.max(0)
    np.testing.assert_allclose(np.asarray(g).reshape(4, 2), wins / wins.sum(0) * [1, 10], rtol=1e-6)


def test_collectives_of_other_dtypes():
    def run(f: Callable[..., Any], x: Any, spec: Any = None) -> Any:
        return sharded(f, P("dp"), P() if spec is None else spec)(x)
    assert run(lambda x: pf.psum(x, "dp"), np.full(2, 100, np.int8)).tolist() == [-56]
    half = np.full(2, 40000, np.float16)
    assert run(lambda x: pf.pmean(x, "dp"), half).tolist() == [40000]
    assert run(lambda x: pf.pmax(x, "dp"), half).dtype == np.float16
    bits = np.array([True, False])
    assert run(lambda x: pf.all_gather(x, "dp", tiled=True), bits).tolist() == [True, False]
    assert run(lambda x: pf.ppermute(x, "dp", [(0, 1)]), bits, P("dp")).tolist() == [False, True]
    tree = run(lambda x: pf.psum({"a": x, "b": [x.sum(), None]}, "dp"), V)
    close(tree, {"a": V[:4] + V[4:], "b": [f32(28), None]}, "tree")


# ---------------------------------------------------------------------------- layers, by hand
def mlp(w1: Any, w2: Any, b: Any, x: Any) -> Any:
    return pf.nn.gelu(x @ w1) @ w2 + b


def mlp_parts(w1: Any, w2: Any, b: Any, x: Any) -> Any:
    return pf.psum(pf.nn.gelu(x @ w1) @ w2, "tp") + b


ARGS = (W, rng.normal(size=(6, 4)).astype(f32), rng.normal(size=4).astype(f32), X)
MLP = sharded(mlp_parts, (P(None, "tp"), P("tp"), P(), P("dp")), P("dp"))


def all_of(f: Callable[..., Any]) -> Any:
    """Values and derivatives of both orders."""
    loss = loss_of(f, pnp)
    slope = loss_of(pf.grad(loss, (0, 1, 2, 3)), pnp)
    return (f(*ARGS), pf.grad(loss, (0, 1, 2, 3))(*ARGS), pf.grad(slope, (0, 1, 2, 3))(*ARGS),
            pf.jvp(f, ARGS, tuple(map(np.cos, ARGS))), pf.hessian(lambda b: loss(*ARGS[:2], b, X))(ARGS[2]))


def test_a_layer_and_its_derivatives():
    close(all_of(MLP), all_of(mlp), "eager", 1e-4)
    close(pf.jit(lambda: all_of(MLP))(), all_of(mlp), "jit", 1e-4)


def test_a_training_step_inside():
    """Gradients of a mean over dp: those of the batch."""
    def step(w1: Any, w2: Any, b: Any, x: Any) -> Any:
        loss, grads = pf.value_and_grad(lambda p: pf.pmean(pnp.mean(mlp_parts(*p, x) ** 2), "dp"))((w1, w2, b))
        return loss, tuple(p - 0.1 * g for p, g in zip((w1, w2, b), grads))
    specs = (P(None, "tp"), P("tp"), P())
    got = sharded(step, (*specs, P("dp")), (P(), specs))(*ARGS)
    loss, grads = pf.value_and_grad(lambda p: pnp.mean(mlp(*p, X) ** 2))(ARGS[:3])
    close(got, (loss, tuple(p - 0.1 * g for p, g in zip(ARGS, grads))), "step", 1e-4)


def test_a_pair_of_custom_rules():
    """Tensor parallelism as it is written by hand: what is summed forwards is handed over backwards, and reversed."""
    into = pf.custom_vjp(lambda x: pf.pvary(x, "tp"))
    into.defvjp(lambda x: (pf.pvary(x, "tp"), None), lambda _, ct: (pf.psum(ct, "tp"),))
    out = pf.custom_vjp(lambda x: pf.psum(x, "tp"))
    out.defvjp(lambda x: (pf.psum(x, "tp"), None), lambda _, ct: (pf.pvary(ct, "tp"),))
    f = sharded(lambda w1, w2, b, x: out(pf.nn.gelu(into(x) @ w1) @ w2) + b, (P(None, "tp"), P("tp"), P(), P("dp")),
                P("dp"))
    for run in (lambda f: f, pf.jit):
        close(run(pf.grad(loss_of(f, pnp), (0, 1, 2, 3)))(*ARGS), pf.grad(loss_of(mlp, pnp), (0, 1, 2, 3))(*ARGS),
              "grad", 1e-4)


def test_a_custom_jvp_inside():
    g = pf.custom_jvp(lambda x: pf.psum(x * x, "dp"))
    g.defjvp(lambda p, t: (pf.psum(p[0] * p[0], "dp"), 3 * pf.psum(p[0] * t[0], "dp")))
    f = sharded(g, P("dp"), P())
    np.testing.assert_allclose(np.asarray(pf.grad(lambda x: f(x).sum())(V)), 3 * V)
    close(pf.jvp(f, (V,), (V,)), ((V[:4] ** 2 + V[4:] ** 2), 3 * (V[:4] ** 2 + V[4:] ** 2)), "jvp")


# ---------------------------------------------------------------------------- arguments and results
def test_trees_and_entries_above_them():
    def f(batch: Any, w: Any, *, scale: Any) -> Any:
        assert batch["none"] is None and [x.shape for x in batch["x"]] == [(4, 4), (4, 2)] and w.shape == (2, 6)
        y = batch["x"][1] @ w
        return {"y": pf.psum(y, "tp") * scale, "k": (batch["k"] + 1, None), "n": batch["x"][0]}
    made = sharded(f, ({"x": [P("dp"), P("dp", "tp")], "k": P("tp"), "none": None}, P("tp")),
                   {"y": P("dp"), "k": P("tp"), "n": P("dp")})
    batch = {"x": [X, X * 2], "k": np.arange(4), "none": None}
    close(made(batch, W, scale=3.0), {"y": X * 2 @ W * f32(3), "k": (np.arange(1, 5, dtype=i32), None), "n": X}, "tree",
          1e-4)
    one = sharded(lambda t, u: [t["a"] + u, t["b"]], P("dp"), P("dp"))
    close(one({"a": V, "b": X}, V), [2 * V, X], "one for all")
    listed = sharded(lambda t, u: (t[0] * u, t[1]), [(P("dp"), P()), P("dp")], (P("dp"), P()))
    close(listed((V, X), V), (V * V, X), "a list")


def test_integers_bools_and_numbers():
    f = sharded(lambda n, m, x, k: (x * k + n, ~m, pf.psum(pf.pvary(k, "dp"), "dp"), n),
                (P("dp"), P("dp"), P("dp"), P()), (P("dp"), P("dp"), P(), P("dp")))
    n = np.arange(8, dtype=np.int16)
    for run in (f, pf.jit(f)):
        got = run(n, V > 3, V, 3)
        close(got[:2], (V * 3 + n, V <= 3), "values")
        assert int(got[2]) == 6 and got[3].dtype == np.int16
    assert [str(y.aval) for y in sharded(lambda a, b: (a, b * 2), P(), P())(2, 1.5)] == ["~i32[]", "~f32[]"]
    close(pf.grad(lambda x: f(n, V > 3, x, 3)[0].sum())(V), np.full(8, 3, f32), "grad by one of them")


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0), (0,)])
def test_no_elements(shape):
    x = np.zeros(shape, f32)

    def f(x: Any) -> Any:
        return pnp.sin(x), pf.psum(x.sum(), "dp"), pf.psum(x.sum(0), "dp"), pf.all_gather(x, "dp", tiled=True)
    made = sharded(f, P("dp"), (P("dp"), P(), P(), P()))
    for run in (made, pf.jit(made), lambda x: pf.make_jaxpr(made)(x).eval(x)):
        assert [np.asarray(y).tolist() for y in run(x)] == [x.tolist(), 0, x.sum(0).tolist(), x.tolist()]
    assert pf.grad(lambda x: sum(y.sum() for y in made(x)))(x).shape == shape
    assert pf.vmap(made)(np.zeros((2, *shape), f32))[0].shape == (2, *shape)


def test_what_is_closed_over_is_whole():
    table = np.arange(2, dtype=f32)

    def f(w: Any, x: Any) -> Any:
        made = sharded(lambda x: pf.psum((x * w[:2] + table + W[0, 0]).sum(0), "dp"), P("dp"), P())
        return made(x)
    x = X[:, :2]

    def want(w: Any, x: Any) -> Any:
        return (x * w[:2] + table + W[0, 0]).sum(0)
    w, lanes = W[:, 0], W.T
    close(f(w, x), want(w, x), "value", 1e-4)
    close(pf.jit(f)(w, x), want(w, x), "jit", 1e-4)
    close(pf.grad(loss_of(f, pnp), (0, 1))(w, x), pf.grad(loss_of(want, pnp), (0, 1))(w, x), "grad", 1e-4)
    close(pf.vmap(f, (0, None))(lanes, x), np.stack([want(w, x) for w in lanes]), "vmap", 1e-4)


def test_random_numbers_are_those_of_the_key():
    """One key gives all replicas the same numbers, and one that is folded with the place gives each its own."""
    key = random.key(3)
    same = sharded(lambda k: random.normal(k, (3,)), P(), P())(key)
    np.testing.assert_array_equal(np.asarray(same), np.asarray(random.normal(key, (3,))))
    own = sharded(lambda k: random.normal(random.fold_in(k, pf.axis_index("dp")), (3,)), P(), P("dp"))(key)
    want = np.concatenate([np.asarray(random.normal(random.fold_in(key, i), (3,))) for i in range(2)])
    np.testing.assert_array_equal(np.asarray(own), want)
    with pytest.raises(AxisError, match="varies over 'dp'"):
        sharded(lambda k: random.normal(random.fold_in(k, pf.axis_index("dp")), (3,)), P(), P())(key)


@pytest.mark.parametrize("kind", ["jit", "checkpoint", "custom_vjp"])
def test_one_function_on_meshes_of_different_sizes(kind):
    """What is remembered of it is not taken for another mesh."""
    def mean(x: Any) -> Any:
        return pf.psum(x, "dp") / pf.axis_size("dp")
    g = getattr(pf, kind)(mean)
    if kind == "custom_vjp":
        g.defvjp(lambda x: (mean(x), None), lambda _, ct: (pf.pvary(ct, "dp") / pf.axis_size("dp"),))
    for size in (2, 4, 1, 2):
        f = sharded(g, P("dp"), P(), pf.Mesh(dp=size))
        close(f(V), V.reshape(size, -1).mean(0), "value")
        close(pf.grad(lambda v, f=f: f(v).sum())(V), np.full(8, 1 / size, f32), "grad")


# ---------------------------------------------------------------------------- inside each other
def test_lanes_around_and_inside():
    """The replicas meet those of the same lane, and lanes those of the same replica."""
    f = sharded(lambda x: pf.psum(x, "dp") + pf.pmax(pf.psum(x, "dp"), "lane"), P("dp"), P())
    xs = np.stack([V, 10 - V, 3 * V])
    sums = xs[:, :4] + xs[:, 4:]
    close(pf.vmap(f, axis_name="lane")(xs), sums + sums.max(0), "around")
    close(pf.vmap(f, 1, 1, axis_name="lane")(xs.T), (sums + sums.max(0)).T, "around, elsewhere")

    def inside(x: Any) -> Any:
        return pf.vmap(lambda row: pf.psum(row, ("lane", "tp")) * pf.axis_index("dp"), axis_name="lane",
                       out_axes=None)(x)
    close(sharded(inside, P("dp", "tp"), P("dp"))(X), np.concatenate([0 * X[0, :2], (X[4:, :2] + X[4:, 2:]).sum(0)]),
          "inside")


def test_a_name_may_be_used_again_for_lanes_inside():
    f = sharded(lambda x: pf.vmap(lambda y: pf.psum(x.sum() * y, "dp"), axis_name="dp", out_axes=None)(
        np.array([1, 10, 100], f32))[None], P("dp"), P("dp"))
    assert f(V).tolist() == [666, 2442]


def test_meshes_in_each_other():
    """Both orders, with lanes between them, and derivatives through all."""
    def inner(x: Any, w: Any) -> Any:
        return pf.psum(pnp.sin(x @ w), "inner")
    small = sharded(inner, (P(None, "inner"), P("inner")), P(), pf.Mesh(inner=2))
    f = sharded(lambda x, w: pf.psum(pf.vmap(small, (0, None))(x, w).sum(0), "dp"), (P("dp"), P()), P())
    big = np.stack([X, 2 * X])

    def want(x: Any, w: Any) -> Any:
        return (pnp.sin(x[..., :2] @ w[:2]) + pnp.sin(x[..., 2:] @ w[2:])).sum(0)
    for run in (lambda g: g, pf.jit):
        close(run(f)(big, W), want(big, W), "value", 1e-4)
        close(run(pf.grad(loss_of(f, pnp), (0, 1)))(big, W), pf.grad(loss_of(want, pnp), (0, 1))(big, W), "grad", 1e-4)
    hvp = lambda f: pf.jvp(pf.grad(loss_of(f, pnp), (0, 1)), (big, W), (big, W))[1]  # noqa: E731
    close(hvp(f), hvp(want), "hvp", 1e-3)


def test_branches_and_loops_that_differ_between_replicas():
    number = sharded(lambda: pf.axis_index("dp")[None], (), P("dp"))().tolist()
    assert number == [0, 1]
    f = sharded(lambda x: (pf.cond(pf.axis_index("dp") > 0, lambda x: x * 2, lambda x: -x, x),
                           pf.fori_loop(0, pf.axis_index("dp") + 1, lambda _, c: c + 1, x),
                           pf.switch(pf.axis_index("dp"), [pnp.sin, pnp.cos], x), x.at[pf.axis_index("dp")].set(9.0)),
                P(), P("dp"))
    x = V[:2]
    want = ([-0.0, -1, 0, 2], [1, 2, 2, 3], np.concatenate([np.sin(x), np.cos(x)]), [9, 1, 0, 9])
    for run in (f, pf.jit(f)):
        close(run(x), tuple(np.asarray(y, f32) for y in want), "values")
    scale = sharded(lambda x: pf.psum(pf.cond(pf.axis_index("dp") > 0, lambda x: x * x, pnp.sin, x), "dp"), P(), P())
    close(pf.grad(lambda x: scale(x).sum())(x), 2 * x + np.cos(x), "grad")
    # A branch may hold collectives over the axes on which the choice does not depend.
    g = sharded(lambda x: pf.cond(pf.axis_index("dp") > 0, lambda x: pf.psum(x, "tp"), lambda x: pf.pmax(x, "tp"), x),
                P(("dp", "tp")), P("dp"))
    assert g(V).tolist() == [2, 3, 10, 12]


# ---------------------------------------------------------------------------- types
def test_types_say_where_a_value_varies():
    text = str(pf.make_jaxpr(MLP)(*ARGS))
    for part in ("a:f32[4,3]{tp}", "d:f32[4,4]{dp}", "{dp,tp} = pvary[names=('tp',)] d", "= psum[names=('tp',)]",
                 "mesh=(('dp', 2), ('tp', 2))", "in_specs=(((), ('tp',)), (('tp',),), (), (('dp',),))",
                 "out_specs=((('dp',),),)"):
        assert part in text, text
    seen: List[str] = []

    def f(x: Any, y: Any) -> Any:
        seen.extend(str(v.aval) for v in (x, y, x * y, pf.psum(x * y, "dp"), pf.psum(x * y, ("dp", "tp")), x * 0, x > 0,
                                          pf.stop_gradient(x), pf.axis_index("tp"), pnp.zeros(2),
                                          pf.all_gather(y, "tp")))
        return pf.psum(x.sum(), "dp")
    sharded(f, (P("dp"), P("tp")), P())(V, V)
    assert seen == ["f32[4]{dp}", "f32[4]{tp}", "f32[4]{dp,tp}", "f32[4]{tp}", "f32[4]", "f32[4]{dp}", "bool[4]{dp}",
                    "f32[4]{dp}", "i32[]{tp}", "f32[2]", "f32[2,4]"]


JAXPRS: Dict[str, Callable[[], Any]] = {
    "value": lambda: pf.make_jaxpr(MLP)(*ARGS),
    "grad": lambda: pf.make_jaxpr(pf.grad(loss_of(MLP, pnp), (0, 1, 2, 3)))(*ARGS),
    "hessian": lambda: pf.make_jaxpr(pf.hessian(lambda b: loss_of(MLP, pnp)(*ARGS[:2], b, X)))(ARGS[2]),
    "jvp": lambda: pf.make_jaxpr(lambda *args: pf.jvp(MLP, args, args))(*ARGS),
    "vmap": lambda: pf.make_jaxpr(pf.vmap(MLP, (None, None, 0, None)))(*ARGS[:2], np.ones((3, 4), f32), X),
    "jit": lambda: pf.make_jaxpr(pf.jit(MLP))(*ARGS),
    "scan": lambda: pf.make_jaxpr(lambda x: pf.scan(lambda c, _: (MLP(*ARGS[:3], c), None), x, None, length=2))(X),
    "cond": lambda: pf.make_jaxpr(lambda x: pf.cond(x[0, 0] > 0, lambda x: MLP(*ARGS[:3], x), lambda x: x, x))(X),
    "closed over": lambda: pf.make_jaxpr(lambda w: sharded(lambda x: x @ w + V[:6], P("dp"), P("dp"))(X))(W),
    "several names": lambda: pf.make_jaxpr(sharded(lambda x: pf.ppermute(x, "tp", [(0, 1)]), P(("tp", "dp")),
                                                   P(("tp", "dp"))))(V),
    "nested": lambda: pf.make_jaxpr(sharded(sharded(lambda x: pf.psum(x, ("inner", "dp")), P("inner"), P(),
                                                    pf.Mesh(inner=2)), P("dp"), P()))(V),
    "collectives": lambda: pf.make_jaxpr(sharded(lambda x: (
        pf.all_gather(x, "dp"), pf.psum_scatter(x, "dp", tiled=True), pf.all_to_all(x.reshape(2, 2), "dp", 0, 1),
        pf.pmax(x, "dp"), pf.pmin(x, "dp")), P("dp"), (P(), P("dp"), P("dp"), P(), P())))(V),
}


@pytest.mark.parametrize("name", JAXPRS)
def test_programs_can_be_read_back(name):
    jaxpr = JAXPRS[name]()
    assert any(isinstance(e.primitive, Shard) for e in all_equations(jaxpr))
    assert_round_trip(jaxpr)
    for eqn in all_equations(jaxpr):
        if isinstance(eqn.primitive, Shard):
            eqn.primitive.jaxpr.check()


def test_the_program_does_not_grow_with_the_mesh():
    def size(n: int) -> int:
        f = sharded(lambda x: pf.psum(pnp.sin(x).sum(), ("dp", "tp")), P(("dp", "tp")), P(), pf.Mesh(dp=n, tp=n))
        return len(str(pf.make_jaxpr(pf.grad(f))(np.ones(128, f32))).splitlines())
    assert size(2) == size(8)


# ---------------------------------------------------------------------------- what random programs have found
def with_rule(f: Callable[..., Any]) -> Any:
    g = pf.custom_jvp(f)
    g.defjvp(lambda primals, tangents: pf.jvp(f, primals, tangents))
    return g


#: Functions of an array that are cut over dp inside, their derivative inside, and what it is.
ZEROS: Dict[str, Callable[[Any], Any]] = {
    "vjp": lambda x: pf.vjp(lambda x: 1.0, x)[1](1.0)[0],
    "vjp of a sum": lambda x: pf.vjp(lambda x: pf.psum(pf.stop_gradient(x).sum(), "dp"), x)[1](1.0)[0],
    "jvp": lambda x: pf.jvp(pf.stop_gradient, (x,), (x,))[1],
    "linearize": lambda x: pf.linearize(pf.stop_gradient, x)[1](x),
    "grad": lambda x: pf.grad(lambda x: 1.0 + 0 * pf.psum(pf.stop_gradient(x).sum(), "dp"))(x),
    "grad by one of two": lambda x: pf.grad(lambda x, y: pf.psum(y.sum(), "dp"), 0)(x, x),
}


@pytest.mark.parametrize("name", ZEROS)
def test_a_derivative_that_is_zero_varies_as_its_argument_does(name):
    f = sharded(ZEROS[name], P("dp"), P("dp"))
    for run in (f, pf.jit(f)):
        close(run(V), 0 * V, name)
    with pytest.raises(AxisError, match="varies over 'dp'"):
        sharded(ZEROS[name], P("dp"), P())(V)


SIN = sharded(pnp.sin, P("dp"), P("dp"))
UNUSED = sharded(lambda q, x: x * 0.5, P(), P())
HALF = sharded(lambda x: 0.5 * x - 0.25, P(), P())
FOUND: Dict[str, Tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a branch, in lanes with a name": (
        lambda x: pf.vmap(lambda p: pf.cond(p > 0, SIN, lambda x: x, x), axis_name="lane")(np.array([1, -1])),
        lambda x: np.stack([np.sin(x), x])),
    "a step of a loop, in lanes with a name": (
        lambda x: pf.vmap(lambda p: pf.scan(lambda c, _: (SIN(c) * p, SIN(x)), x, None, length=2), axis_name="lane")(
            np.array([1, -1]))[0], lambda x: np.stack([np.sin(np.sin(x)), np.sin(np.sin(x))])),
    "an argument that no replica uses, in a branch": (
        lambda x: pf.cond(x[1] > 0, lambda x: UNUSED(x[0] + 2, x), lambda x: x, x), lambda x: x * f32(0.5)),
    "a mesh in a mesh, backwards": (
        lambda x: pf.vjp(sharded(lambda x: pf.psum(HALF(x).sum(), "outer"), P("outer"), P(), pf.Mesh(outer=2)), x)[1](
            f32(1))[0], lambda x: 0 * x + f32(0.5)),
    "a rule that pushes forward": (
        lambda x: pf.grad(lambda x: with_rule(lambda x: SIN(x * 2))(x).sum())(x), lambda x: 2 * np.cos(2 * x)),
    "a rule that pushes a checkpoint forward": (
        lambda x: pf.grad(lambda x: with_rule(lambda x: sharded(pf.checkpoint(pnp.sin), P("dp"), P("dp"))(x * 2))(
            x).sum())(x), lambda x: 2 * np.cos(2 * x)),
    "a rule that pushes a checkpoint of jit forward": (
        lambda x: pf.grad(lambda x: with_rule(pf.checkpoint(pf.jit(pnp.sin)))(x).sum())(x), np.cos),
    "a rule that pushes a checkpoint of a scan forward": (
        lambda x: pf.grad(lambda x: with_rule(pf.checkpoint(
            lambda x: pf.scan(lambda c, _: (c * c, None), x, None, length=2)[0]))(x).sum())(x), lambda x: 4 * x ** 3),
    "a rule that pushes a checkpoint of a branch forward": (
        lambda x: pf.grad(lambda x: with_rule(pf.checkpoint(
            lambda x: pf.cond(x[1] > 0, pnp.sin, pnp.cos, x)))(x).sum())(x), np.cos),
    "a rule that pushes a checkpoint of parts forward": (
        lambda x: pf.grad(lambda x: with_rule(pf.checkpoint(pf.batch_serialise(pnp.sin, 2)))(x).sum())(x), np.cos),
    "sums over no axes": (
        lambda x: sharded(lambda x: pf.psum(x, ()) + pf.pmean(x, ()) + pf.pmax(x, ()), P("dp"), P("dp"))(x),
        lambda x: 3 * x),
}


@pytest.mark.parametrize("run", [lambda f: f, pf.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", FOUND)
def test_found_by_random_programs(name, run):
    f, want = FOUND[name]
    close(run(f)(V), want(V), name)


SUMS = sharded(lambda x: pf.psum(pf.batch_serialise(lambda x: pnp.tanh(x).sum(), 2, reduce="sum")(x), "dp"), P("dp"),
               P())
LOWERED: Dict[str, Tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "scalars gathered": (sharded(lambda x: pf.all_gather(x.sum(), "dp"), P("dp"), P()),
                         lambda x: x.reshape(2, 4).sum(1)),
    "remote residuals in a branch": (
        pf.grad(lambda x: pf.cond(x[0] >= 0, SUMS, lambda x: x.sum(), x)), lambda x: 1 - np.tanh(x) ** 2),
}


@pytest.mark.parametrize("name", LOWERED)
def test_found_by_random_programs_that_are_lowered(name):
    f, want = LOWERED[name]
    close(f(V), want(V), name)
    with pf.Session(pf.lower(f, V)) as session:
        close(session.run(V), want(V), name)
