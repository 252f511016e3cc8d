"""batch_serialise: it is the function it wraps, and a Python loop over parts of the batch, under every transform."""
import inspect
import re
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest
from control_flow import all_equations, close, equations, loss_of
from hypothesis import given, strategies as st
from jaxtyping import Float32

import popfn as pf
import popfn.numpy as pnp
from popfn import random
from popfn._batch import IO_MODES, RESIDUALS
from popfn.trace.errors import AnnotationError, ArgumentError
from popfn.transforms.scan import Scan

f32, f16, i32 = np.float32, np.float16, np.int32
rng = np.random.default_rng(0)
X = rng.normal(size=(6, 2)).astype(f32)
W = rng.normal(size=(2, 3)).astype(f32)
KEY = np.array([3, 5], np.uint32)


def python_loop(f: Callable[..., Any], steps: int, in_axes: Any = 0, out_axes: Any = 0, reduce: Any = None,
                ) -> Callable[..., Any]:
    """The definition: Python's loop over parts, for arguments that are single arrays."""
    def leaves_below(prefix: Any, whole: Any) -> List[Any]:
        return pf.tree.prefix_leaves(prefix, pf.tree.structure(whole))

    def part(x: Any, axis: Any, i: int) -> Any:
        if axis is None:
            return x
        if axis == "key":
            return random.split(x, steps)[i]
        size = x.shape[axis] // steps
        return pnp.moveaxis(pnp.moveaxis(x, axis, 0)[i * size:(i + 1) * size], 0, axis)

    def loop(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        outs = [f(*(part(pnp.asarray(x), axis, i) for x, axis in zip(args, axes))) for i in range(steps)]
        rows = zip(*map(pf.tree.leaves, outs))
        ways, places = leaves_below(reduce, outs[0]), leaves_below(out_axes, outs[0])
        return pf.tree.unflatten(pf.tree.structure(outs[0]), [
            pnp.concat(row, axis=axis) if way is None else total(row, way)
            for row, way, axis in zip(rows, ways, places)])

    def total(row: Sequence[Any], way: str) -> Any:
        wide = [pnp.astype(y, f32) if y.dtype == f16 else y for y in row]
        added = sum(wide[1:], wide[0])
        return pnp.astype(added if way == "sum" else added / steps, row[0].dtype)
    return loop


# ---------------------------------------------------------------------------- laws
class Law(NamedTuple):
    """A function of rows and weights for which serialising changes nothing: `reduce` says which results are sums."""

    f: Callable[..., Any]
    reduce: Any = None
    dtype: Any = f32


LAWS = {
    "a layer": Law(lambda x, w: pnp.tanh(x @ w)),
    "a tree": Law(lambda x, w: {"y": x * w[0, 0], "n": [pnp.astype(x > 0, i32), (x[:, :1] > w[0, 0])], "none": None}),
    "rows of higher rank": Law(lambda x, w: (x[:, :, None] * w, pf.nn.softmax(x))),
    "a sum": Law(lambda x, w: pnp.sum((x @ w) ** 2), "sum"),
    "a sum of vectors": Law(lambda x, w: pnp.sum(pnp.sin(x @ w), axis=0), "sum"),
    "a mean": Law(lambda x, w: pnp.mean((x @ w) ** 2), "mean"),
    "rows and sums": Law(lambda x, w: (pnp.exp(x), {"s": x.sum(0), "m": (x @ w).mean(0), "n": (x > 0).sum()}),
                         (None, {"s": "sum", "m": "mean", "n": "sum"})),
    "all summed": Law(lambda x, w: [(x @ w).sum(), {"s": x.sum(0)}], "sum"),
    "half": Law(lambda x, w: (pnp.tanh(x @ w), pnp.sum(x @ w, axis=0)), (None, "sum"), f16),
    "a result that nothing feeds": Law(lambda x, w: (x * 0 + 1, w * 0), (None, "mean")),
}
#: What stands around the function that is serialised; each takes f and gives a function of the same arguments.
AROUND: Dict[str, Callable[..., Any]] = {
    "nothing": lambda f: f,
    "jit": pf.jit,
    "checkpoint": pf.checkpoint,
    "vmap": lambda f: lambda x, w: pf.vmap(f, (None, 0))(x, pnp.stack([w, w * 0.5])),
    "vmap of rows": lambda f: lambda x, w: pf.vmap(f, (-1, None), -1)(pnp.stack([x, x * 0.5, -x], axis=-1), w),
    "scan": lambda f: lambda x, w: pf.scan(
        lambda c, v: (c * 0.5, f(x, v * pnp.astype(c, v.dtype))), 1.0, pnp.stack([w, w * 0.5]))[1],
    "cond": lambda f: lambda x, w: pf.cond(w[0, 0] > 0, lambda x: f(x, w), lambda x: f(-x, w), x),
    "named lanes": lambda f: lambda x, w: pf.vmap(
        lambda x, v: f(x, pf.psum(v, "i") * v), (None, 0), axis_name="i")(x, pnp.stack([w, w * 0.5])),
}


@st.composite
def serialised(draw: Any, laws: Sequence[str] = tuple(LAWS)) -> Tuple[Any, Any, Any, Any]:
    """The function of a law, with its rows anywhere; the function serialised; the loop; and arguments."""
    law = LAWS[draw(st.sampled_from(laws))]
    steps = draw(st.sampled_from([1, 2, 3, 6]))
    rows, out = draw(st.sampled_from([0, 1, -1, -2])), draw(st.sampled_from([0, 1, -1]))

    def f(x: Any, w: Any) -> Any:
        result = law.f(pnp.moveaxis(x, rows, 0), w)
        reduced = pf.tree.prefix_leaves(law.reduce, pf.tree.structure(result))
        leaves, structure = pf.tree.flatten(result)
        return pf.tree.unflatten(structure, [pnp.moveaxis(y, 0, out) if way is None else y
                                             for y, way in zip(leaves, reduced)])
    options = dict(in_axes=(rows, None), out_axes=out, reduce=law.reduce)
    made = pf.batch_serialise(f, steps, io_mode=draw(st.sampled_from(IO_MODES)),
                              residuals=draw(st.sampled_from(RESIDUALS)), **options)
    if draw(st.booleans()) and steps < 6:
        made = pf.batch_serialise(made, 6 // steps, residuals=draw(st.sampled_from(RESIDUALS)), **options)
    around = AROUND[draw(st.sampled_from(sorted(AROUND)))]
    x = np.moveaxis(X, 0, rows).astype(law.dtype)
    return around(f), around(made), around(python_loop(f, steps, **options)), (x, W.astype(law.dtype))


@given(serialised())
def test_it_is_the_function_and_the_loop(drawn):
    f, made, loop, args = drawn
    got = made(*args)
    close(got, f(*args), "the function", 1e-4)
    close(got, loop(*args), "the loop", 1e-4)


@given(serialised([name for name in LAWS if LAWS[name].dtype == f32]))  # float16 rounds differently where it is cut
def test_its_derivatives_are_the_function_s(drawn):
    f, made, _, args = drawn

    def derivatives(f: Callable[..., Any]) -> Any:
        loss = loss_of(f, pnp)
        direction = tuple(map(np.cos, args))
        return pf.grad(loss, (0, 1))(*args), pf.jvp(loss, args, direction)[1], pf.vjp(f, *args)[0]
    close(derivatives(made), derivatives(f), "the function", 1e-4)


@pytest.mark.parametrize("residuals", RESIDUALS)
@pytest.mark.parametrize("name", ["a layer", "rows and sums", "a mean"])
def test_second_derivatives(name, residuals):
    law = LAWS[name]
    made = pf.batch_serialise(law.f, 3, (0, None), reduce=law.reduce, residuals=residuals)

    def derivatives(f: Callable[..., Any]) -> Any:
        loss = loss_of(f, pnp)
        slope = loss_of(pf.grad(loss, (0, 1)), pnp)
        return (pf.grad(slope, (0, 1))(X, W), pf.hessian(lambda w: loss(X, w))(W),
                pf.jvp(lambda w: pf.grad(loss)(X, w), (W,), (np.cos(W),))[1],
                pf.vmap(pf.grad(loss, (0, 1)), (None, 0))(X, np.stack([W, 2 * W])))
    close(derivatives(made), derivatives(law.f), "the function", 1e-4)


def test_what_is_closed_over_is_differentiated_and_mapped():
    def f(w: Any, table: Any) -> Any:
        g = pf.batch_serialise(lambda x: pnp.sin(x @ w) @ table + W[0], 2, reduce=None)
        return g(X)
    table = np.eye(3, dtype=f32) / 2
    close(pf.grad(loss_of(f, pnp), (0, 1))(W, table),
          pf.grad(loss_of(lambda w, t: pnp.sin(X @ w) @ t + W[0], pnp), (0, 1))(W, table), "grad")
    close(pf.vmap(f, (0, None))(np.stack([W, -W]), table), np.stack([np.sin(X @ v) @ table + W[0] for v in (W, -W)]),
          "vmap")


def test_parts_depend_on_their_place():
    """Where rows are not treated by themselves, it is the loop that is meant."""
    def f(x: Any) -> Any:
        return x - x.mean(0), x.max(0)
    got = pf.batch_serialise(f, 3, reduce=(None, "sum"))(X)
    close(got, python_loop(f, 3, 0, 0, (None, "sum"))(X), "the loop")
    assert not np.allclose(np.asarray(got[0]), X - X.mean(0))


def test_trees_of_axes_and_arguments_by_keyword():
    def f(batch: Any, w: Any, *, scale: Any) -> Any:
        return {"y": batch["x"].T @ w * scale[:, None], "k": batch["k"] + batch["bias"]}
    made = pf.batch_serialise(f, 2, in_axes=({"x": -1, "k": 1, "bias": None}, None), out_axes={"y": 0, "k": -1})
    batch = {"x": X.T, "k": np.arange(12, dtype=i32).reshape(2, 6), "bias": np.int32(4)}
    scale = np.arange(6, dtype=f32)
    close(made(batch, W, scale=scale), f({k: pnp.asarray(v) for k, v in batch.items()}, W, scale=scale), "tree")


def test_arrays_may_be_of_different_sizes():
    got = pf.batch_serialise(lambda a, b: (a.sum(), b * 2), 2, reduce=("sum", None))(np.arange(4), np.arange(6))
    close(got, (np.int32(6), np.arange(6, dtype=i32) * 2), "sizes")


def test_no_elements():
    y, s = pf.batch_serialise(lambda x: (x * 2, x.sum(0)), 3, reduce=(None, "mean"))(X[:0])
    assert y.shape == (0, 2) and np.asarray(s).tolist() == [0, 0]


# ---------------------------------------------------------------------------- sums
def test_float16_is_added_up_in_float32():
    big = np.full(4, 60000, f16)
    assert float(pf.batch_serialise(lambda x: x.sum(), 4, reduce="mean")(big)) == 60000
    ones = np.array([2048] + [1] * 8, f16)
    made = pf.batch_serialise(lambda x: x[0], 9, reduce="sum")
    assert made(ones).dtype == f16 and float(made(ones)) == 2056
    np.testing.assert_array_equal(np.asarray(pf.grad(lambda x: made(x))(ones)), np.ones(9, f16))


def test_gradients_of_float16_weights_are_added_up_in_float32():
    made = pf.batch_serialise(lambda x, w: x * w, 9, (0, None))
    got = pf.grad(lambda w: made(np.array([2048] + [1] * 8, f16), w).astype(f32).sum())(f16(1))
    assert got.dtype == f16 and float(got) == 2056


@pytest.mark.parametrize("dtype", [np.int8, np.int16, i32, np.uint8, np.uint32])
def test_integers_are_added_up_in_their_dtype(dtype):
    x = np.array([100, 100, 100], dtype)
    got = pf.batch_serialise(lambda x: x[0], 3, reduce="sum")(x)
    assert got.dtype == dtype and got.tolist() == np.sum(x, dtype=dtype)


def test_python_numbers_keep_their_weak_type():
    y = pf.batch_serialise(lambda x: (2, 1.5), 3, reduce=("sum", "mean"))(X)
    assert [str(a.aval) for a in y] == ["~i32[]", "~f32[]"] and [float(a) for a in y] == [6, 1.5]


# ---------------------------------------------------------------------------- keys
def noisy(key: Any, x: Any) -> Any:
    return x + random.normal(key, x.shape)


@pytest.mark.parametrize("io_mode", IO_MODES)
@pytest.mark.parametrize("run", [lambda f: f, pf.jit], ids=["eager", "jit"])
def test_each_step_has_a_key_of_its_own(run, io_mode):
    made = run(pf.batch_serialise(noisy, 3, ("key", 0), io_mode=io_mode))
    want = np.concatenate([np.asarray(random.normal(k, (2, 2))) for k in np.asarray(random.split(KEY, 3))])
    np.testing.assert_array_equal(np.asarray(made(KEY, X * 0)), want)
    assert len(np.unique(want)) == want.size


def test_keys_in_trees_lanes_and_serialised_functions():
    def f(state: Any, x: Any) -> Any:
        return noisy(state["key"], x) * state["scale"]
    axes = {"key": "key", "scale": None}
    state = {"key": KEY, "scale": f32(2)}
    made = pf.batch_serialise(f, 3, (axes, 0))
    close(made(state, X), python_loop(noisy, 3, ("key", 0))(KEY, X) * 2, "tree")
    keys = np.asarray(random.split(KEY, 2))
    close(pf.vmap(pf.batch_serialise(noisy, 3, ("key", 0)), (0, None))(keys, X),
          np.stack([np.asarray(python_loop(noisy, 3, ("key", 0))(k, X)) for k in keys]), "vmap")
    twice = pf.batch_serialise(pf.batch_serialise(noisy, 3, ("key", 0)), 2, ("key", 0))
    close(twice(KEY, X), python_loop(python_loop(noisy, 3, ("key", 0)), 2, ("key", 0))(KEY, X), "twice")


@pytest.mark.parametrize("residuals", RESIDUALS)
def test_the_backward_pass_draws_the_same_numbers(residuals):
    made = pf.batch_serialise(lambda k, x: pnp.sin(x) * random.uniform(k, x.shape), 3, ("key", 0), residuals=residuals)
    u = np.concatenate([np.asarray(random.uniform(k, (2, 2))) for k in np.asarray(random.split(KEY, 3))])
    close(pf.grad(lambda x: made(KEY, x).sum())(X), np.cos(X) * u, residuals)


def test_keys_alone_are_enough():
    made = pf.batch_serialise(lambda k: random.normal(k, (2,)).sum(), 4, "key", reduce="mean")
    each = [random.normal(k, (2,)).sum() for k in np.asarray(random.split(KEY, 4))]
    close(made(KEY), np.mean(each, dtype=f32), "keys")


# ---------------------------------------------------------------------------- the program
def step(x: Any, w: Any) -> Any:
    return pnp.tanh(x @ w), pnp.sum(pnp.sin(x @ w))


def loss(made: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: (lambda y, s: (y * y).sum() + s)(*made(x, w))


def scans(f: Callable[..., Any], *args: Any) -> List[Any]:
    return [e for e in all_equations(pf.make_jaxpr(f)(*args)) if isinstance(e.primitive, Scan)]


def test_one_loop():
    jaxpr = pf.make_jaxpr(pf.batch_serialise(step, 3, (0, None), reduce=(None, "sum")))(X, W)
    assert [e.primitive.name for e in jaxpr.eqns] == ["cut", "scan", "join"]
    loop = jaxpr.eqns[1].primitive
    assert (loop.length, loop.num_consts, loop.num_carry, loop.reverse) == (3, 1, 1, False)
    assert pf.parse_jaxpr(str(jaxpr), jaxpr.constants) == jaxpr
    one = pf.make_jaxpr(pf.batch_serialise(step, 1, (0, None), reduce=(None, "mean")))(X, W)
    assert [e.primitive.name for e in one.eqns] == ["cut", "scan", "join", "div"] and one.eqns[1].primitive.length == 1


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: pf.grad(loss(f), (0, 1)), lambda f: pf.vmap(f, (None, 0)),
                                       lambda f: lambda x, w: pf.jvp(f, (x, w), (x, w))],
                         ids=["value", "grad", "vmap", "jvp"])
def test_the_program_does_not_grow_with_the_steps(transform):
    def size(steps: int, residuals: str) -> int:
        made = pf.batch_serialise(step, steps, (0, None), reduce=(None, "mean"), residuals=residuals)
        return equations(pf.make_jaxpr(transform(made))(np.zeros((60, 2), f32), np.zeros((2, 2, 2), f32)))
    for residuals in RESIDUALS:
        assert len({size(n, residuals) for n in (1, 2, 12, 60)}) == 1


def test_it_is_traced_once():
    calls = []
    pf.batch_serialise(lambda x: calls.append(x.shape) or x, 3)(X)
    assert calls == [(2, 2)]


@pytest.mark.parametrize("io_mode", IO_MODES)
@pytest.mark.parametrize("residuals", RESIDUALS)
def test_the_loops_know_their_mode_under_every_transform(io_mode, residuals):
    made = pf.batch_serialise(step, 3, (0, None), reduce=(None, "sum"), io_mode=io_mode, residuals=residuals)
    for f in (made, pf.grad(loss(made)), pf.vmap(made, (None, None), axis_size=2),
              lambda x, w: pf.jvp(made, (x, w), (x, w)), pf.grad(lambda x, w: pf.grad(loss(made))(x, w).sum())):
        found = scans(f, X, W)
        assert found and {(e.primitive.io_mode, e.primitive.residuals) for e in found} == {
            (io_mode, "device" if residuals == "device" else "remote")}


@pytest.mark.parametrize("residuals, kept", [
    ("device", ["f32[3,2,3]"] * 2), ("remote", ["f32[3,2,3]@remote"] * 2), ("recompute", [])])
def test_what_is_kept_of_each_step(residuals, kept):
    """The slope of tanh and that of sin."""
    made = pf.batch_serialise(step, 3, (0, None), reduce=(None, "sum"), residuals=residuals)
    forward, backward = scans(pf.grad(loss(made), (0, 1)), X, W)
    assert [str(v.aval) for v in forward.outputs[2:]] == kept
    assert backward.primitive.reverse and not forward.primitive.reverse


def test_loads_and_stores_are_said_of_the_arrays_alone():
    made = pf.batch_serialise(
        lambda a, b, w: (a["p"] @ w, {"c": a["q"].T + b, "s": b.sum()}), 2, (0, 1, None), out_axes=(0, 1),
        reduce=(None, {"c": None, "s": "sum"}), loads=({"p": pf.HostStream(), "q": None}, "device", None),
        stores=("device", pf.HostStream()))
    args = {"p": X, "q": X[:4]}, np.ones((1, 4), f32), W

    def memories(f: Callable[..., Any], *args: Any) -> List[Tuple[str, str]]:
        return [(e.primitive.name, e.primitive.memory) for e in pf.make_jaxpr(f)(*args).eqns
                if e.primitive.name in ("cut", "join")]
    forward = [("cut", "host"), ("cut", ""), ("cut", "device"), ("join", "device"), ("join", "host")]
    assert memories(made, *args) == forward
    assert memories(pf.vmap(made), *pf.tree.map(lambda x: np.stack([x, -x]), args)) == forward
    pushed = memories(lambda *xs: pf.jvp(made, xs, xs), *args)
    assert sorted(pushed) == sorted([*forward, *[("cut", "")] * 3, *[("join", "")] * 2])
    derived = memories(pf.grad(loss_of(made, pnp), (0, 1, 2)), *args)
    assert derived[:5] == forward and {m for _, m in derived[5:]} == {""} and len(derived) == 10
    jaxpr = pf.make_jaxpr(made)(*args)
    assert pf.parse_jaxpr(str(jaxpr), jaxpr.constants) == jaxpr
    plain = pf.batch_serialise(lambda x: x * 2, 2, loads=pf.HostStream(), stores="device")
    assert memories(plain, X) == [("cut", "host"), ("join", "device")]
    assert memories(lambda x: plain(x=x), X) == [("cut", ""), ("join", "device")]


STREAM = pf.HostStream()


def test_a_stream_above_several_arrays_is_for_those_with_parts():
    """One entry for all arguments, or for a dict of which something is cut; what is whole stays as it is."""
    def memories(made: Callable[..., Any], *args: Any) -> List[str]:
        return [e.primitive.memory for e in pf.make_jaxpr(made)(*args).eqns if e.primitive.name in ("cut", "join")]
    assert memories(pf.batch_serialise(lambda w, x: x @ w, 2, (None, 0), loads=STREAM), W, X) == ["host", ""]
    assert memories(pf.batch_serialise(lambda t: t["x"] @ t["w"], 2, ({"w": None, "x": 0},), loads=(STREAM,)),
                    {"w": W, "x": X}) == ["host", ""]
    made = pf.batch_serialise(lambda x: {"y": x, "s": x.sum()}, 2, reduce={"y": None, "s": "sum"}, stores=STREAM)
    assert memories(made, X) == ["", "host"]


def test_host_streams_are_values():
    assert pf.HostStream() == pf.HostStream() and len({pf.HostStream(), pf.HostStream()}) == 1


# ---------------------------------------------------------------------------- as functions
def test_it_keeps_what_python_knows_of_the_function():
    @pf.batch_serialise(steps=3, in_axes=(0, None))
    def area(x: Any, w: Any) -> Any:
        """x w"""
        return x @ w
    assert area.__name__ == "area" and area.__doc__ == "x w"
    assert list(inspect.signature(area).parameters) == ["x", "w"]
    close(area(X, W), X @ W, "decorated")
    assert pf.make_jaxpr(area)(X, W).eqns[1].primitive.jaxpr.name == "area"


def test_steps_may_be_a_numpy_integer_and_axes_a_list():
    close(pf.batch_serialise(lambda x, w: x @ w, np.int64(2), [np.int32(0), None])(X, W), X @ W, "numpy")


def test_annotations_are_of_the_parts():
    def f(x: Float32[pf.Array, "batch 2"], y: Float32[pf.Array, "batch"]) -> Float32[pf.Array, "batch"]:
        return x[:, 0] * y
    close(pf.batch_serialise(f, 3)(X, X[:, 1]), X[:, 0] * X[:, 1], "annotated")
    with pytest.raises(AnnotationError, match="batch"):
        pf.batch_serialise(f, 3, (0, None))(X, X[:, 1])


def test_python_sees_no_values():
    with pytest.raises(pf.errors.ConcretizationError, match="not known while"):
        pf.batch_serialise(lambda x: x if x[0, 0] > 0 else -x, 3)(X)


def test_remote_arrays_are_cut_too():
    made = pf.batch_serialise(step, 3, (0, None), reduce=(None, "sum"))
    close(made(pf.remote(X), pf.remote(W)), made(X, W), "eager")
    close(pf.jvp(made, (pf.remote(X), pf.remote(W)), (X, W)), pf.jvp(made, (X, W), (X, W)), "jvp")
    assert [str(a) for a in pf.make_jaxpr(made)(pf.remote(X), pf.remote(W)).out_avals] == ["f32[6,3]", "f32[]"]


# ---------------------------------------------------------------------------- lowered
def run(f: Callable[..., Any], *args: Any) -> Any:
    with pf.Session(pf.lower(f, *args), device="host") as session:
        return session.run(*args)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_lowered_forward(name):
    law = LAWS[name]
    args = X.astype(law.dtype), W.astype(law.dtype)
    for steps in (1, 3):
        made = pf.batch_serialise(law.f, steps, (0, None), reduce=law.reduce)
        close(run(made, *args), law.f(*map(pnp.asarray, args)), name, 1e-4)


@pytest.mark.parametrize("residuals", RESIDUALS)
@pytest.mark.parametrize("name", ["rows of higher rank", "rows and sums"])
def test_lowered_derivatives(name, residuals):
    law = LAWS[name]
    options = dict(in_axes=(0, None), reduce=law.reduce, residuals=residuals)
    made, one = (pf.batch_serialise(law.f, steps, **options) for steps in (3, 1))
    nested = pf.batch_serialise(pf.batch_serialise(law.f, 3, **options), 2, **options)

    def derivatives(f: Callable[..., Any]) -> Callable[..., Any]:
        loss = loss_of(f, pnp)
        return lambda x, w: (pf.grad(loss, (0, 1))(x, w), pf.jvp(loss, (x, w), (x, w))[1],
                             pf.vmap(pf.grad(loss), (None, 0))(x, pnp.stack([w, w * 2])))
    for f in (made, one, nested, lambda x, w: pf.checkpoint(pf.jit(made))(x, w)):
        close(run(derivatives(f), X, W), derivatives(law.f)(X, W), name, 1e-4)


@pytest.mark.parametrize("residuals", ["remote", "recompute"])
@pytest.mark.parametrize("memory", [pf.HostStream(), "device"], ids=["host", "device"])
def test_lowered_loads_and_stores(memory, residuals):
    made = pf.batch_serialise(step, 3, (0, None), reduce=(None, "sum"), loads=(memory, None), stores=(memory, None),
                              residuals=residuals)
    close(run(made, X, W), step(*map(pnp.asarray, (X, W))), "forward", 1e-4)
    inside = pf.batch_serialise(step, 3, (0, None), reduce=(None, "sum"), loads=(memory, None), residuals=residuals)
    close(run(pf.grad(loss(inside), (0, 1)), X, W), pf.grad(loss(step), (0, 1))(X, W), "grad", 1e-4)


def test_lowered_columns_keys_and_state():
    def f(key: Any, x: Any, w: Any) -> Any:
        return noisy(key, x.T) @ w
    made = pf.batch_serialise(f, 3, ("key", 1, None))
    close(run(made, KEY, X.T.copy(), W), made(KEY, X.T, W), "keys")

    def train(w: Any, x: Any) -> Any:
        serial = pf.batch_serialise(lambda x, w: ((x @ w) ** 2).mean(), 3, (0, None), reduce="mean", residuals="device")
        value, grads = pf.value_and_grad(serial, 1)(x, w)
        return w - 0.1 * grads, value
    program = pf.lower(train, W, X, state=0)
    with pf.Session(program, state=W, device="host") as session:
        values = [float(session.run(X)) for _ in range(3)]
        w = W
        for value in values:
            new, want = train(w, X)
            np.testing.assert_allclose(value, float(want), 1e-5)
            w = np.asarray(new)
        close(session.state, w, "state")


# ---------------------------------------------------------------------------- errors
serial = pf.batch_serialise
STEPS = "steps is a number of 1 or more, got "
MODES = "io_mode is one of 'compute', 'io', 'io_overlapped', got "
REDUCE = "way out: add it up with reduce='sum' or 'mean', or keep the axis of the batch"
OUT_AXES = "way out: name an axis in out_axes, or add it up with reduce='sum' or 'mean'"
WHOLE = "write None in in_axes for what each step sees whole"
KEYS = "way out: make a key with pf.random.key(seed), or cut an array of keys along an axis"
MEMORY = " has None, 'device', pf.HostStream() or pf.Remote(buffer) for each array, got "
ERRORS = {  # the lines of the error but that of the place; "..." stands for what others say
    "no steps": (lambda: serial(step, 0), STEPS + "0"),
    "negative steps": (lambda: serial(step, -2), STEPS + "-2"),
    "half steps": (lambda: serial(step, 2.0), STEPS + "2.0"),
    "bool steps": (lambda: serial(step, True), STEPS + "True"),
    "text steps": (lambda: serial(step, steps="4"), STEPS + "'4'"),
    "a stream of what is whole": (
        lambda: serial(lambda w, x: x @ w, 2, (None, 0), loads=(STREAM, STREAM))(W, X),
        "loads=HostStream() asks to stream argument w of F, but each step sees it whole",
        "way out: None for it in loads, or an axis in in_axes along which it is cut"),
    "a stream of a whole leaf": (
        lambda: serial(lambda t: t["x"] @ t["w"], 2, ({"w": None, "x": 0},), loads=({"w": STREAM, "x": None},))(
            {"w": W, "x": X}), "loads=HostStream() asks to stream argument t['w'] of F, but each step sees it whole",
        "way out: None for it in loads, or an axis in in_axes along which it is cut"),
    "a stream of keys": (
        lambda: serial(lambda k, x: x, 2, ("key", 0), loads=(STREAM, None))(pf.random.key(0), X),
        "loads=HostStream() asks to stream argument k of F, but each step gets a key of its own",
        "way out: None for it in loads"),
    "a stream of a sum": (
        lambda: serial(lambda x: x.sum(), 2, reduce="sum", stores=STREAM)(X),
        "result of F is f32[] in each step, which is reduced: it has no parts to stream",
        "way out: leave it out of stores, or out of reduce"),
    "a stream of a mean beside parts": (
        lambda: serial(lambda x: (x, x.sum()), 2, reduce=(None, "mean"), stores=(STREAM, STREAM))(X),
        "result[1] of F is f32[] in each step, which is reduced: it has no parts to stream",
        "way out: leave it out of stores, or out of reduce"),
    "io_mode": (lambda: serial(step, 2, io_mode="fast"), MODES + "'fast'"),
    "no io_mode": (lambda: serial(step, 2, io_mode=None), MODES + "None"),
    "an array for io_mode": (lambda: serial(step, 2, io_mode=X[0]), MODES + "array(..."),
    "residuals": (lambda: serial(step, 2, residuals="host"),
                  "residuals is one of 'remote', 'device', 'recompute', got 'host'"),
    "unequal parts": (
        lambda: serial(lambda t: t["x"][1], 4)({"x": (X[:4], X)}),
        "argument t['x'][1] of F is f32[6,2]: 6 elements along axis 0 do not divide into 4 equal parts",
        "way out: let steps divide 6, or pad the array"),
    "unequal parts by keyword": (
        lambda: serial(lambda x, *, y: x, 3)(X, y=X[:4]),
        "argument y of F is f32[4,2]: 4 elements along axis 0 do not divide into 3 equal parts",
        "way out: let steps divide 4, or pad the array"),
    "more steps than elements": (
        lambda: serial(lambda x: x, 4, -1)(X),
        "argument x of F is f32[6,2]: 2 elements along axis 1 do not divide into 4 equal parts",
        "way out: let steps divide 2, or pad the array"),
    "a scalar": (lambda: serial(lambda x, s: x * s, 2)(X, f32(1)),
                 "argument s of F is f32[], which has no axis 0 to cut along", "way out: " + WHOLE),
    "a scalar by keyword": (lambda: serial(lambda x, s: x * s, 2)(X, s=1.0),
                            "argument s of F is ~f32[], which has no axis 0 to cut along",
                            "way out: pass it by position, and " + WHOLE),
    "no such axis": (lambda: serial(lambda x: x, 2, 2)(X),
                     "argument x of F is f32[6,2], which has no axis 2 to cut along"),
    "a word": (lambda: serial(lambda x: x, 2, "rows")(X),
               "argument x of F is f32[6,2], which has no axis 'rows' to cut along"),
    "too many axes": (lambda: serial(lambda x: x, 2, (0, 0))(X),
                      "in_axes has 2 entries, but F was called with 1 positional arguments", "seen: in_axes=(0, 0)"),
    "axes of another tree": (lambda: serial(lambda t: t["x"], 2, ({"y": 0},))({"x": X}),
                             "in_axes for argument t of F is no tree above it: ...", "seen: {'y': 0}"),
    "nothing cut": (lambda: serial(lambda x: x, 2, None)(X), "no argument of F is cut: each step would do the same",
                    "way out: give an argument an axis in in_axes"),
    "no arguments": (lambda: serial(lambda: 1.0, 2)(), "no argument of F is cut: each step would do the same",
                     "way out: give an argument an axis in in_axes"),
    "no key": (lambda: serial(lambda k, x: x, 2, ("key", 0))(X[0], X),
               "argument k of F is f32[2], but in_axes says 'key', which stands above a random key, u32[2]", KEYS),
    "many keys": (lambda: serial(lambda k, x: x, 2, ("key", 0))(np.stack([KEY, KEY]), X),
                  "argument k of F is u32[2,2], but in_axes says 'key', which stands above a random key, u32[2]", KEYS),
    "an aval": (lambda: serial(lambda x: x, 2)(pf.spec(4)), "argument x of F is the aval f32[4], not an array",
                "way out: pf.make_jaxpr(batch_serialise(f))(...) and pf.lower take avals"),
    "a scalar result": (
        lambda: serial(lambda x: (x, {"s": x.sum()}), 2)(X),
        "result[1]['s'] of F is f32[] in each step, a scalar, whose parts cannot be put together along an axis",
        REDUCE),
    "no axis of a result": (
        lambda: serial(lambda x: x, 2, out_axes=2)(X),
        "result of F is f32[3,2] in each step, which has no axis 2 to be put together along", OUT_AXES),
    "None for a result": (
        lambda: serial(lambda x: x, 2, out_axes=None)(X),
        "result of F is f32[3,2] in each step, which has no axis None to be put together along", OUT_AXES),
    "out_axes of another tree": (lambda: serial(lambda x: x, 2, out_axes=(0, 1))(X),
                                 "out_axes is no tree above the result of F: ...", "seen: out_axes=(0, 1)"),
    "reduce": (lambda: serial(lambda x: x, 2, reduce="max")(X),
               "reduce has None, 'sum' or 'mean' for each result, got 'max'"),
    "a number for reduce": (lambda: serial(lambda x: x, 2, reduce=0)(X),
                            "reduce has None, 'sum' or 'mean' for each result, got 0"),
    "reduce of another tree": (lambda: serial(lambda x: (x, x), 2, reduce=("sum",))(X),
                               "reduce is no tree above the result of F: ...", "seen: reduce=('sum',)"),
    "a sum of bools": (lambda: serial(lambda x: {"p": x > 0}, 2, reduce="sum")(X),
                       "result['p'] of F is bool[3,2] in each step, which has no sum",
                       "way out: convert it to int32 with astype"),
    "a mean of bools": (lambda: serial(lambda x: x > 0, 2, reduce="mean")(X),
                        "result of F is bool[3,2] in each step, which has no mean",
                        "way out: convert it to float32 with astype"),
    "a mean of integers": (lambda: serial(lambda x: pnp.astype(x, i32), 2, reduce="mean")(X),
                           "result of F is i32[3,2] in each step, which has no mean",
                           "way out: convert it to float32 with astype"),
    "a sum of float8": (lambda: serial(lambda x: pnp.astype(x, pf.float8_143), 2, reduce="sum")(X),
                        "result of F is f8_143[3,2] in each step, which has no sum",
                        "way out: convert it to a wider float with astype"),
    "loads": (lambda: serial(lambda x: x, 2, loads="host")(X), f"loads{MEMORY}'host'"),
    "a class for loads": (lambda: serial(lambda x: x, 2, loads=(pf.HostStream,))(X),
                          f"loads{MEMORY}<class 'popfn._batch.HostStream'>"),
    "loads of another tree": (lambda: serial(lambda x, y: x, 2, loads=("device",))(X, X),
                              "loads has 1 entries, but F was called with 2 positional arguments",
                              "seen: loads=('device',)"),
    "stores": (lambda: serial(lambda x: x, 2, stores=3)(X), f"stores{MEMORY}3"),
    "stores of another tree": (lambda: serial(lambda x: x, 2, stores={"y": "device"})(X),
                               "stores is no tree above the result of F: ...", "seen: stores={'y': 'device'}"),
}
SHARED = {  # what every transform says
    "no function": (lambda: serial(X, 2), "batch_serialise takes a function first, got ndarray",
                    "way out: batch_serialise(f)(x), not batch_serialise(f(x))"),
    "an object": (lambda: serial(lambda x: len, 2)(X), "result of F is not an array: ...",
                  "seen: builtin_function_or_method, <built-in function len>",
                  "way out: return arrays and containers of arrays only"),
    "an object in a tree": (lambda: serial(lambda x: {"a": [x, "b"]}, 2)(X), "result['a'][1] of F is not an array: ...",
                            "seen: str, 'b'", "way out: return arrays and containers of arrays only"),
    "an argument that is none": (
        lambda: serial(lambda x: x, 2)({"a": "b"}), "argument x['a'] of F is not an array: ...", "seen: str, 'b'",
        "way out: close over values that are not arrays, or bind them with functools.partial; make a class of arrays a "
        "pytree with pf.tree.dataclass"),
}


@pytest.mark.parametrize("name", [*ERRORS, *SHARED])
def test_errors(name):
    """Every line, eagerly and while a function is traced."""
    f, *want = (ERRORS if name in ERRORS else SHARED)[name]
    want[0] = f"batch_serialise: {want[0]}" if name in ERRORS else want[0]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(f32(0))):
        with pytest.raises(ArgumentError) as e:
            run()
        text = re.sub(r"(<lambda>\.)*<lambda> \([^()]*\.py:\d+\)", "F", str(e.value))
        lines = text.split("\n  ")
        places = [line for line in lines if line.startswith("at ")]
        assert all("test_batch_serialise.py:" in line for line in places) and len(places) == 1, text
        lines.remove(places[0])
        assert len(lines) == len(want), text
        for line, w in zip(lines, want):
            assert line == w or w.endswith("...") and line.startswith(w[:-3]), text
