"""Corners of shard: where gradients are added up, and where they lie, in loops and branches that meet each other.

The oracle is the function without a mesh.
"""
from collections import Counter

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn import P, zero
from popfn.errors import ArgumentError
from popfn.trace.prims.collectives import Collective, Pvary
from popfn.transforms.scan import Scan

MESH = pf.Mesh(dp=2)
RNG = np.random.default_rng(0)
LAYERS = RNG.normal(0, 0.5, (3, 4, 4)).astype(np.float32)
X = RNG.normal(size=(16, 4)).astype(np.float32)


def close(a, b, tol=2e-5):
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def met(jaxpr, in_loop=False):
    """How often each collective stands in a program, and how often in a loop."""
    found, looped = Counter(), Counter()
    for eqn in jaxpr.eqns:
        primitive = eqn.primitive
        if isinstance(primitive, Collective) and not isinstance(primitive, Pvary):
            (looped if in_loop else found)[primitive.name] += 1
        for held in getattr(primitive, "jaxprs", ()):
            for mine, more in zip((found, looped), met(held, in_loop or isinstance(primitive, Scan))):
                mine.update(more)
    return found, looped


# ---------------------------------------------------------------------------- stacked parameters
def layer(h, w):
    return pnp.tanh(h @ w), None


def layers(w, x):
    return pf.scan(layer, x, w)[0]


def mean_square(f):
    return lambda w, x: pnp.mean(f(w, x) ** 2)


@pf.custom_vjp
def custom(w, x):
    return layers(w, x)


custom.defvjp(lambda w, x: (layers(w, x), (w, x)), lambda kept, ct: pf.vjp(layers, *kept)[1](ct))

STACKS = {  # functions of stacked layers, f32[3,4,4], and of a replica's rows
    "scan": layers,
    "checkpoint of a layer": lambda w, x: pf.scan(pf.checkpoint(layer), x, w)[0],
    "jit of a layer": lambda w, x: pf.scan(pf.jit(layer), x, w)[0],
    "jit": pf.jit(layers),
    "jit of checkpoints": pf.jit(lambda w, x: pf.scan(pf.checkpoint(layer), x, w)[0]),
    "checkpoint": pf.checkpoint(layers),
    "custom_vjp": custom,
    "half precision": lambda w, x: pf.scan(
        lambda h, w: (pnp.tanh(h.astype("float16") @ w.astype("float16")).astype("float32"), None), x, w)[0],
    "vmap": lambda w, x: pf.vmap(lambda row: layers(w, row[None])[0])(x),
    "backwards": lambda w, x: pf.scan(layer, x, w, reverse=True)[0],
    "twice": lambda w, x: layers(w, layers(w, x)),
    "twice in a loop": lambda w, x: pf.scan(lambda h, _: (layers(w, h), None), x, None, length=2)[0],
    "a part of it": lambda w, x: layers(w[1:], x) + x @ w[0],
    "a branch": lambda w, x: pf.cond(pnp.sum(w) < 100, layers, lambda w, x: x @ w[0], w, x),
    "a branch that may leave it out": lambda w, x: pf.cond(pnp.sum(w) < 100, layers, lambda w, x: x, w, x),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", STACKS)
def test_gradients_of_stacked_layers_are_added_up_behind_loops(name, steps):
    use = mean_square(STACKS[name])
    each = pf.batch_serialise(use, steps, in_axes=(None, 0), reduce="mean")
    f = pf.shard(pf.grad(lambda w, x: pf.pmean(each(w, x), "dp")), MESH, (P(), P("dp")), P())
    program = pf.lower(f, LAYERS, X, target="host")
    assert met(program.jaxpr) == ({"psum": 1}, {}) and program.as_text().count("all_reduce(") == 1
    with pf.Session(program) as session:
        close(session.run(LAYERS, X), pf.grad(use)(LAYERS, X), 1e-3 if "half" in name else 2e-5)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", STACKS)
def test_gradients_of_stacked_layers_that_are_gathered_are_scattered_behind_loops(name, steps):
    use = mean_square(STACKS[name])
    each = pf.batch_serialise(use, steps, in_axes=(None, 0), reduce="mean")
    whole = pf.vmap(lambda part: zero.gather(part, LAYERS[0], "dp"))
    f = pf.shard(pf.grad(lambda parts, x: pf.pmean(each(whole(parts), x), "dp")), MESH, (P(None, "dp"), P("dp")),
                 P(None, "dp"))
    parts = LAYERS.reshape(3, 16)
    program = pf.lower(f, parts, X, target="host")
    assert met(program.jaxpr) == ({"all_gather": 1, "psum": 1, "own_slice": 1}, {})
    text = program.as_text()
    assert text.count("reduce_scatter(") == 1 and "all_reduce(" not in text
    with pf.Session(program) as session:
        got = session.run(parts, X)
    close(np.reshape(got, LAYERS.shape), pf.grad(use)(LAYERS, X), 1e-3 if "half" in name else 2e-5)


def test_layers_in_remote_memory_are_added_up_one_by_one():
    """The sum of all would bring all of them to the chip."""
    def step(w, x):
        return w - 0.1 * pf.grad(lambda w: pf.pmean(mean_square(layers)(w, x), "dp"))(w)
    f = pf.shard(lambda w, x: (step(w, x), None), MESH, (P(), P("dp")), P())
    program = pf.lower(f, pf.remote(pf.spec(LAYERS.shape)), pf.spec(X.shape), state=0, target="host")
    assert met(program.jaxpr) == ({}, {"psum": 1})
    with pf.Session(program, state=LAYERS) as session:
        session.run(X)
        close(session.state, LAYERS - 0.1 * np.asarray(pf.grad(mean_square(layers))(LAYERS, X)))


# ---------------------------------------------------------------------------- branches of parameters in remote memory
def wide(w, x):
    """Of each replica's own copy, whose cotangents are added up on the device."""
    return x @ pf.pvary(w, "dp")[0]


BRANCHES = {  # functions of stacked layers in remote memory and of rows; as plain ones, and on a replica
    "layers": (layers, layers),
    "one": (lambda w, x: x @ w[1],) * 2,
    "none": (lambda w, x: 2 * x,) * 2,
    "custom": (layers, custom),
    "checkpoint": (layers, pf.checkpoint(layers)),
    "wide": (lambda w, x: x @ w[0], wide),
    "wide in jit": (lambda w, x: x @ w[0], pf.jit(wide)),
}


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("first", BRANCHES)
@pytest.mark.parametrize("second", BRANCHES)
def test_branches_whose_gradients_are_made_in_different_memories(first, second, is_remote):
    branches = list(zip(BRANCHES[first], BRANCHES[second]))

    def loss(two, i, w, x):
        return pnp.mean(pf.switch(i, two, w, x) ** 2)

    def step(w, x, i):
        value, grad = pf.value_and_grad(lambda w: pf.pmean(loss(branches[1], i, w, x), "dp"))(w)
        return w - 0.1 * grad, value
    spec = pf.spec(LAYERS.shape)
    program = pf.lower(pf.shard(step, MESH, (P(), P("dp"), P()), (P(), P())), pf.remote(spec) if is_remote else spec,
                       pf.spec(X.shape), pf.spec((), "int32"), state=0, target="host")
    for i in range(2):
        with pf.Session(program, state=LAYERS) as session:
            value = session.run(X, np.int32(i))
            new = session.state
        want, grad = pf.value_and_grad(lambda w, i=i: loss(branches[0], i, w, X))(LAYERS)
        close(value, want)
        close(new, LAYERS - 0.1 * np.asarray(grad))


# ---------------------------------------------------------------------------- what pf.distributed is given
@pytest.mark.parametrize("x, seen", [("text", "'text'"), (pf.spec((4,)), "f32[4]"), (object, "<class 'object'>")])
@pytest.mark.parametrize("cut", [P(), P("dp")])
def test_part_of_what_is_no_array(x, seen, cut):
    with pytest.raises(ArgumentError) as e:
        pf.distributed.part_of({"a": X, "b": x}, cut, MESH)
    first, at, *rest = str(e.value).split("\n")
    assert first == "distributed.part_of: x['b'] is not an array" and "in test_part_of_what_is_no_array" in at
    assert rest == [f"  seen: {seen}", "  way out: leave it out of the tree"]


@pytest.mark.parametrize("coordinator", ["10.0.0.1", ":1234", "10.0.0.1:", "10.0.0.1:http", 8080, None])
def test_a_coordinator_without_a_port(coordinator):
    with pytest.raises(ArgumentError) as e:
        pf.distributed.initialize(coordinator, 2, 0, MESH)
    first, at, *rest = str(e.value).split("\n")
    assert first == f"distributed.initialize: coordinator={coordinator!r} is no address with a port"
    assert "in test_a_coordinator_without_a_port" in at
    assert rest == ['  way out: "10.0.0.1:1234", with a free port of process 0']
    assert pf.distributed.instance() is None
