"""Gradients of what all replicas have in common, through loops over parts of a batch: one sum, behind the loop."""
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn import P

MESH = pf.Mesh(dp=2)
STEPS = 4

#: Losses of a part of the rows, in which the parameter goes some way before it meets them.
LOSSES = {
    "as it is": lambda w, x: pnp.mean(pnp.tanh(x @ w) ** 2),
    "with a penalty": lambda w, x: pnp.mean(pnp.tanh(x @ w) ** 2) + 0.1 * pnp.sum(w ** 2),
    "with a linear penalty": lambda w, x: pnp.mean((x @ w) ** 2) + pnp.sum(w),
    "elementwise": lambda w, x: pnp.mean((x @ pnp.tanh(w)) ** 2),
    "a product": lambda w, x: pnp.mean((x @ (w @ w)) ** 2),
    "normalised": lambda w, x: pnp.mean((x @ (w / pnp.sqrt(pnp.sum(w * w)))) ** 2),
    "an element and all": lambda w, x: pnp.mean((x @ w) ** 2) * pnp.exp(w[0, 0]),
    "in a call": lambda w, x: pf.jit(lambda w, x: pnp.mean((x @ pnp.tanh(w)) ** 2))(w, x),
    "again in a loop": lambda w, x: pf.scan(
        lambda c, row: (c + pnp.mean((row @ pnp.tanh(w)) ** 2) / x.shape[0], None), 0.0, x)[0],
    "recomputed": lambda w, x: pf.checkpoint(lambda w, x: pnp.mean((x @ pnp.tanh(w)) ** 2))(w, x),
    "float16": lambda w, x: pnp.mean((x @ pnp.astype(pnp.astype(w, "float16"), "float32")) ** 2),
}


def data():
    rng = np.random.default_rng(0)
    return rng.normal(0, 0.5, (4, 4)).astype(np.float32), rng.normal(size=(16, 4)).astype(np.float32)


def in_loops(jaxpr, inside=False):
    """How many sums over replicas are in a loop."""
    return sum((eqn.primitive.name == "psum" and inside) + sum(
        in_loops(j, inside or eqn.primitive.name == "scan") for j in getattr(eqn.primitive, "jaxprs", ()))
        for eqn in jaxpr.eqns)


def by_batch(f):
    """Over parts of the rows by batch_serialise."""
    return pf.batch_serialise(f, STEPS, in_axes=(None, 0), reduce="mean")


def by_scan(f):
    """Over parts of the rows by scan."""
    def all_rows(w, x):
        parts = x.reshape(STEPS, -1, x.shape[1])
        return pf.scan(lambda c, part: (c + f(w, part) / STEPS, None), 0.0, parts)[0]
    return all_rows


@pytest.mark.parametrize("loop", [by_batch, by_scan])
@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_is_added_up_once_behind_the_loop(name, loop):
    f, (w, x) = LOSSES[name], data()
    want = pf.grad(f)(w, x)
    grads = pf.shard(pf.grad(lambda w, x: pf.pmean(loop(f)(w, x), "dp")), MESH, (P(), P("dp")), P())
    program = pf.lower(grads, w, x)
    assert in_loops(program.jaxpr) == 0
    assert program.as_text().count("replicated_all_reduce(") == 1
    tolerance = 2e-3 if name == "float16" else 1e-5
    np.testing.assert_allclose(grads(w, x), want, tolerance, tolerance)
    with pf.Session(program) as session:
        np.testing.assert_allclose(session.run(w, x), want, tolerance, tolerance)


@pytest.mark.parametrize("name", LOSSES)
def test_a_gathered_leaf_gets_one_reduce_scatter(name):
    f, (w, x) = LOSSES[name], data()
    want = pf.grad(f)(w, x)
    grads = pf.shard(pf.grad(lambda p, x: pf.pmean(by_batch(f)(pf.zero.gather(p, w, "dp"), x), "dp")), MESH,
                     (P("dp"), P("dp")), P("dp"))
    flat = pf.zero.flatten(w, 2)
    program = pf.lower(grads, flat, x)
    text = program.as_text()
    counts = [text.count(f"replicated_{op}(") for op in ("all_gather", "reduce_scatter", "all_reduce", "slice")]
    assert counts == [1, 1, 0, 0]
    with pf.Session(program) as session:
        tolerance = 2e-3 if name == "float16" else 1e-5
        np.testing.assert_allclose(pf.zero.restore(session.run(flat, x), w), want, tolerance, tolerance)


#: Losses of a part, and beside them something that is the same on all replicas.
KEPT = {
    "a penalty": lambda w, x: (pnp.mean((x @ w) ** 2), pnp.sum(w ** 2)),
    "a branch": lambda w, x: (pnp.mean(x @ pf.cond(w[0, 0] > 0, pnp.tanh, pnp.exp, w)), 0.0),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_one_value_stays_one(name):
    f, (w, x) = KEPT[name], data()

    def total(w, x, mean):
        loss, extra = pf.batch_serialise(f, STEPS, in_axes=(None, 0), reduce="mean")(w, x)
        return mean(loss) + 0.1 * extra
    want = pf.grad(lambda w, x: total(w, x, lambda v: v))(w, x)
    grads = pf.shard(pf.grad(lambda w, x: total(w, x, lambda v: pf.pmean(v, "dp"))), MESH, (P(), P("dp")), P())
    np.testing.assert_allclose(grads(w, x), want, 1e-5, 1e-5)
    with pf.Session(pf.lower(grads, w, x)) as session:
        np.testing.assert_allclose(session.run(w, x), want, 1e-5, 1e-5)


def test_what_differs_from_step_to_step_and_not_between_replicas_does_not_come_to_vary():
    """A scale of activations that are the same along tp: its gradient needs no sum over tp."""
    mesh = pf.Mesh(tp=2)

    def layer(scale, w1, w2, x):
        return pf.psum(pnp.tanh((x * scale) @ w1) @ w2, "tp")

    def loss(scale, w1, w2, x):
        return pf.batch_serialise(lambda s, a, b, x: pnp.mean(layer(s, a, b, x) ** 2), STEPS,
                                  in_axes=(None, None, None, 0), reduce="mean")(scale, w1, w2, x)
    rng = np.random.default_rng(1)
    scale, w1, w2, x = (rng.normal(0, 0.5, s).astype(np.float32) for s in ((4,), (4, 6), (6, 4), (8, 4)))
    specs = (P(), P(None, "tp"), P("tp"), P())
    grads = pf.shard(pf.grad(loss, (0, 1, 2)), mesh, specs, specs[:3])
    text = pf.lower(grads, scale, w1, w2, x).as_text()
    assert text.count("replicated_all_reduce(") == 2  # forward, and backward to the activations
    plain = pf.grad(lambda s, a, b, x: pnp.mean((pnp.tanh((x * s) @ a) @ b) ** 2), (0, 1, 2))(scale, w1, w2, x)
    for got, want in zip(grads(scale, w1, w2, x), plain):
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)


def test_what_is_the_same_along_an_axis_is_still_kept_in_parts():
    """A scale meets activations that are the same along tp, and weights that are cut over it.

    If it varied from the boundary on, so would the activations, and each replica would keep all of them.
    """
    def part(scale, w1, w2, x):
        h = pnp.tanh(x * scale)
        return pnp.mean(pf.psum(pnp.tanh(h @ (w1 * scale[:, None])) @ w2, "tp") ** 2)
    rng = np.random.default_rng(1)
    args = [rng.normal(0, 0.5, s).astype(np.float32) for s in ((4,), (4, 6), (6, 4), (8, 4))]
    specs = (P(), P(None, "tp"), P("tp"), P())
    loss = pf.batch_serialise(part, STEPS, in_axes=(None, None, None, 0), reduce="mean", residuals=P("tp"))
    grads = pf.shard(pf.grad(loss, (0, 1, 2)), pf.Mesh(tp=2), specs, specs[:3])
    text = pf.lower(grads, *args).as_text()
    assert text.count("popxl.remote_buffer((4,), popxl.float32, 4)") == 2  # halves of what is f32[2,4] in each step
    plain = pf.grad(lambda s, a, b, x: pnp.mean((pnp.tanh(pnp.tanh(x * s) @ (a * s[:, None])) @ b) ** 2), (0, 1, 2))
    for got, want in zip(grads(*args), plain(*args)):
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)
