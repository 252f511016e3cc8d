"""Sharded functions lowered to replicas: the results are those of the global functions, also of the text by itself.

The oracle is the function without a mesh. Collectives are counted, and compared with NumPy written out per replica.
"""
import numpy as np
import pytest
from test_text import module

import popfn as pf
import popfn.numpy as pnp
from popfn import P
from popfn.errors import AxisError, LoweringError
from popfn.trace import tree

MESH = pf.Mesh(dp=2, tp=4)
RNG = np.random.default_rng(0)
W1, W2, B, X, LONG, Y = (RNG.normal(0, 0.5, shape).astype(np.float32) for shape in (
    (8, 16), (16, 8), (8,), (6, 8), (12, 8), (8, 4)))
CUT = (P(None, "tp"), P("tp"), P())
MODES = ("compute", "io", "io_overlapped")


def dense(w1, w2, b, x):
    return pf.nn.gelu(x @ w1) @ w2 + b


def parallel(w1, w2, b, x):
    return pf.psum(pf.nn.gelu(x @ w1) @ w2, "tp") + b


SHARDED = pf.shard(parallel, MESH, (*CUT, P("dp")), P("dp"))


def close(a, b):
    pf.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5), a, b)


def lowered(f, args, state=None, **options):
    specs = tree.map(lambda x: pf.spec(np.shape(x), x.dtype), args)
    return pf.lower(f, *specs, state=state, target="host", **options)


def check(f, oracle, *args, **options):
    """The lowered function's results are the oracle's, and those of its text; and so are the eager ones."""
    made = lowered(f, args, **options)
    with pf.Session(made) as session:
        got = session.run(*args)
    close(oracle(*args), got)
    close(f(*args), got)
    results = module(made.as_text())["main"](dict(zip(made.signature.inputs, tree.leaves(args))))
    for name, want in zip(made.signature.results, tree.leaves(got)):
        np.testing.assert_array_equal(results[name], want)
    return made


def mean_square(f):
    return lambda *args: pnp.mean(f(*args) ** 2)


# ---------------------------------------------------------------------------- values and gradients
def test_forward():
    check(SHARDED, dense, W1, W2, B, X)


def test_gradients_from_outside():
    check(pf.grad(mean_square(SHARDED), (0, 1, 2, 3)), pf.grad(mean_square(dense), (0, 1, 2, 3)), W1, W2, B, X)


def test_gradients_from_inside():
    def inside(w1, w2, b, x):
        return pf.grad(lambda *w: pf.pmean(pnp.mean(parallel(*w, x) ** 2), "dp"), (0, 1, 2))(w1, w2, b)
    check(pf.shard(inside, MESH, (*CUT, P("dp")), CUT), pf.grad(mean_square(dense), (0, 1, 2)), W1, W2, B, X)


def test_second_derivatives():
    def of(f):
        return pf.grad(lambda w: pnp.sum(pf.grad(mean_square(f))(w, W2, B, X) ** 2))
    check(of(SHARDED), of(dense), W1)


WRAPPERS = {
    "jit": lambda f: lambda w, x: pf.jit(f)(w, W2, B, x),
    "checkpoint": lambda f: lambda w, x: pf.checkpoint(f)(w, W2, B, x),
    "vmap": lambda f: lambda w, x: pf.vmap(lambda s: f(w * s, W2, B, x))(np.float32([1, 2])),
    "scan": lambda f: lambda w, x: pf.scan(lambda h, s: (f(w * s, W2, B, h) * 0.1, None), x, np.float32([1, 2, 3]))[0],
    "cond": lambda f: lambda w, x: pf.cond(pnp.sum(w) > 0, lambda w: f(w, W2, B, x), lambda w: f(-w, W2, B, x), w),
    "while": lambda f: lambda w, x: pf.while_loop(lambda h: pnp.max(h) < 9, lambda h: f(w, W2, B, h) + h + 1, x,
                                                  max_steps=4),
    "switch": lambda f: lambda w, x: pf.switch(pnp.sum(w).astype("int32") % 3, [
        lambda w: f(w, W2, B, x), lambda w: x, lambda w: f(w * 2, W2, B, x)], w),
    "twice": lambda f: lambda w, x: f(w, W2, B, pnp.tanh(f(w, W2, B, x)) + 1),
    "what stands between": lambda f: lambda w, x: f(w + 1, W2, B, x)[::-1].sum(0) @ w,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_in_other_transforms(wrapper):
    wrap = WRAPPERS[wrapper]
    check(wrap(SHARDED), wrap(dense), W1, X)
    check(pf.grad(lambda w, x: pnp.sum(wrap(SHARDED)(w, x) ** 2), (0, 1)),
          pf.grad(lambda w, x: pnp.sum(wrap(dense)(w, x) ** 2), (0, 1)), W1, X)


@pytest.mark.parametrize("mode", MODES)
def test_with_batch_serialise(mode):
    def serial(f):
        return pf.batch_serialise(lambda w, x: f(w, W2, B, x), 3, in_axes=(None, 0), io_mode=mode)

    def loss(f):
        return lambda w, x: pnp.sum(serial(f)(w, x) ** 2)
    check(serial(SHARDED), serial(dense), W1, LONG, io_tiles=32)
    check(pf.grad(loss(SHARDED), (0, 1)), pf.grad(loss(dense), (0, 1)), W1, LONG, io_tiles=32)

    def inside(w1, w2, b, x):
        each = pf.batch_serialise(lambda *args: pnp.mean(parallel(*args) ** 2), 3, in_axes=(None, None, None, 0),
                                  reduce="mean", io_mode=mode)
        return pf.grad(lambda *w: pf.pmean(each(*w, x), "dp"), (0, 1, 2))(w1, w2, b)
    made = check(pf.shard(inside, MESH, (*CUT, P("dp")), CUT), pf.grad(mean_square(dense), (0, 1, 2)), W1, W2, B, LONG,
                 io_tiles=32)
    assert made.ir.num_host_transfers == 3


@pytest.mark.parametrize("kept, counts", (("remote", [1, 0]), (P("tp"), [0, 1])))
def test_residuals_in_parts(kept, counts):
    """What all replicas along tp have in common is kept by each in part; the numbers are those of all io modes."""
    def network(w1, b1, w2, b2, x, join):
        return pf.nn.gelu(join(pf.nn.gelu(x @ w1 + b1) @ w2) + b2)

    def gradients(f):
        return lambda w1, b1, w2, b2, x, ct: pf.vjp(f, w1, b1, w2, b2, x)[1](ct)

    args = [RNG.normal(0, 0.5, shape).astype(np.float32) for shape in (
        (8, 16), (16,), (16, 16), (16,), (24, 8), (24, 16))]
    cut = P(None, "tp"), P("tp"), P("tp"), P()
    want = gradients(lambda *args: network(*args, lambda y: y))(*args)
    results = []
    for mode in MODES:
        each = pf.batch_serialise(lambda *args: network(*args, lambda y: pf.psum(y, "tp")), 3,
                                  in_axes=(None,) * 4 + (0,), io_mode=mode, residuals=kept)
        f = pf.shard(gradients(each), MESH, (*cut, P("dp"), P("dp")), (*cut, P("dp")))
        made = lowered(f, args, io_tiles=64)
        # The sum of the layers' parts, 4 rows of 16 in each step, is what all have in common.
        buffers = [line for line in made.as_text().split("\n") if "= popxl.remote_buffer(" in line]
        assert [sum(f"({shape}, " in line for line in buffers) for shape in ("(4, 16)", "(16,)")] == counts
        with pf.Session(made) as session:
            results.append(session.run(*args))
        pf.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), want, results[-1])
    for other in results[1:]:
        pf.tree.map(np.testing.assert_array_equal, results[0], other)


def test_residuals_over_no_axis():
    with pytest.raises(AxisError, match=r"residuals=P\('tp'\) names 'tp', which is no axis here") as e:
        pf.batch_serialise(pnp.sin, 3, residuals=P("tp"))(X)
    assert "test_replicas.py" in str(e.value)


# ---------------------------------------------------------------------------- state
def training(loss):
    def step(params, x):
        value, grads = pf.value_and_grad(lambda p: loss(p, x))(params)
        return pf.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
    return step


@pytest.mark.parametrize("engine", ["numpy", "xla"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_sharded_state(is_remote, engine, monkeypatch):
    monkeypatch.setenv("POPFN_ENGINE", engine)
    state = (W1, W2, B)
    parts = pf.shard(training(lambda p, x: pf.pmean(pnp.mean(parallel(*p, x) ** 2), "dp")), MESH, (CUT, P("dp")),
                     (CUT, P()))
    whole = training(lambda p, x: pnp.mean(dense(*p, x) ** 2))
    specs = tree.map(lambda x: pf.spec(x.shape), state)
    made, oracle = (pf.lower(f, pf.remote(specs) if is_remote else specs, pf.spec(X.shape), state=0, target="host")
                    for f in (parts, whole))
    with pf.Session(made, state=state) as session, pf.Session(oracle, state=state) as other:
        for _ in range(3):
            close(session.run(X), other.run(X))
        close(session.state, other.state)
        session.write_variable_data("params[0]", W1 + 1)
        np.testing.assert_array_equal(session.get_variable_data("params[0]"), W1 + 1)
    held = dict(zip(made.signature.inputs, state))
    module(made.as_text())["main"]({made.signature.inputs[3]: X}, held)
    with pf.Session(made, state=state) as session:
        session.run(X)
    for name, want in zip(made.signature.inputs, session.state):
        np.testing.assert_array_equal(held[name], want)


def test_layers_with_sharded_parameters_in_remote_memory():
    layers = tree.map(lambda x: np.stack([x * k for k in (0.5, 1.0, 1.5)]), (W1, W2, B))
    cut = tuple(P(None, *p) for p in CUT)

    def model(f):
        return lambda p, x: pf.scan(lambda h, w: (f(*w, h), None), x, p)[0]

    def update(f):
        return training(lambda p, x: f(pnp.mean(model(parallel if f is not pnp.mean else dense)(p, x) ** 2)))
    parts = pf.shard(update(lambda v: pf.pmean(v, "dp")), MESH, (cut, P("dp")), (cut, P()))
    specs = tree.map(lambda x: pf.spec(x.shape), layers)
    made = pf.lower(parts, pf.remote(specs), pf.spec(X.shape), state=0, target="host")
    oracle = pf.lower(update(pnp.mean), specs, pf.spec(X.shape), state=0, target="host")
    with pf.Session(made, state=layers) as session, pf.Session(oracle, state=layers) as other:
        for _ in range(2):
            close(session.run(X), other.run(X))
        close(session.state, other.state)
    held = dict(zip(made.signature.inputs, layers))
    module(made.as_text())["main"]({made.signature.inputs[3]: X}, held)
    with pf.Session(made, state=layers) as session:
        session.run(X)
    for name, want in zip(made.signature.inputs, session.state):
        np.testing.assert_array_equal(held[name], want)


@pytest.mark.parametrize("size", [2, 8])
def test_adam_with_sharded_state_is_adam(size):
    """Optimiser state in equal parts of flattened, padded parameters; the sums are in one order, so bit for bit."""
    mesh = pf.Mesh(dp=size)
    n = -(-W1.size // size) * size
    flat = np.zeros(n, np.float32)
    flat[:W1.size] = W1.reshape(-1)
    grads = RNG.normal(size=(20, n)).astype(np.float32)
    optimiser = pf.optim.adam(0.01)

    def step(state, g):
        w, moments = state
        updates, moments = optimiser.update(g, moments, w)
        return (pf.tree.map(lambda a, u: a + u, w, updates), moments), pnp.sum(w)
    start = (flat, optimiser.init(flat))
    spec = tree.map(lambda x: P("dp") if np.ndim(x) else P(), start)

    def parts(state, g):
        new, _ = step(state, g)
        return new, pf.psum(pnp.sum(state[0]), "dp")
    made = lowered(pf.shard(parts, mesh, (spec, P("dp")), (spec, P())), (start, flat), state=0)
    oracle = lowered(step, (start, flat), state=0)
    with pf.Session(made, state=start) as session, pf.Session(oracle, state=start) as other:
        for g in grads:
            close(session.run(g), other.run(g))
        pf.tree.map(np.testing.assert_array_equal, session.state, other.state)


# ---------------------------------------------------------------------------- collectives
def collectives(x):
    i, j = pf.axis_index("tp"), pf.axis_index("dp")
    stack = pnp.stack([x * k for k in range(1, 5)])
    return (pf.pvary(pf.all_gather(x, "tp"), "tp"), pf.pvary(pf.all_gather(x, "dp", axis=1, tiled=True), "dp"),
            pf.psum_scatter(stack, "tp"), pf.ppermute(x, "tp", [(0, 1), (1, 2), (3, 0)]),
            pf.ppermute(x, "dp", [(0, 1), (1, 0)]), pf.all_to_all(stack, "tp", 0, 1), pf.pmax(x, "tp"),
            pf.pmin(x, ("dp", "tp")), pf.psum(x * (i + 10 * j).astype("float32"), ("tp", "dp")), (i + 10 * j)[None])


def written_out(x):
    """The same for all replicas at once: x has their axes in front."""
    dp, tp = x.shape[:2]
    out = []
    for j in range(dp):
        for i in range(tp):
            stacks = [np.stack([x[j, t] * k for k in range(1, 5)]) for t in range(tp)]
            sent = np.zeros_like(x[j, i]) if i == 3 else x[j, {1: 0, 2: 1, 0: 3}[i]]
            out.append((np.stack([x[j, t] for t in range(tp)]), np.concatenate([x[d, i] for d in range(dp)], 1),
                        sum(s[i] for s in stacks), sent, x[1 - j, i], np.stack([s[i] for s in stacks], 1),
                        x[j].max(0), x.min((0, 1)), sum(x[d, t] * (t + 10 * d) for d in range(dp) for t in range(tp)),
                        np.int32([i + 10 * j])))
    return out


def test_collectives():
    every = ("dp", "tp")
    own = P(every)
    specs = (P(None, every), own, own, own, own, own, P("dp"), P(), P(), own)
    made = lowered(pf.shard(collectives, MESH, own, specs), (Y,))
    with pf.Session(made) as session:
        got = session.run(Y)
    rows = written_out(Y.reshape(2, 4, 1, 4))
    for k, (spec, value) in enumerate(zip(specs, got)):
        parts = [row[k] for row in rows]
        want = parts[0] if spec == P() else np.concatenate(parts[::4] if spec == P("dp") else parts,
                                                           1 if spec == P(None, every) else 0)
        np.testing.assert_allclose(value, want, rtol=1e-6)


def heads(x, count):
    return pnp.permute_dims(x.reshape(*x.shape[:2], count, -1), (0, 2, 1, 3))


def block(params, x, count, join):
    """A transformer block, of which each replica has some heads and some of the hidden units."""
    qkv, out, up, down, scales = params
    h = pf.nn.layer_norm(x) * scales[0]
    q, k, v = (heads(h @ w, count) for w in qkv)
    a = pf.nn.softmax(q @ pnp.matrix_transpose(k) * 0.5) @ v
    x = x + join(pnp.permute_dims(a, (0, 2, 1, 3)).reshape(*x.shape[:2], -1) @ out)
    h = pf.nn.layer_norm(x) * scales[1]
    return x + join(pf.nn.gelu(h @ up) @ down)


@pytest.mark.parametrize("name, f", {
    "psum": lambda x: pf.psum(x.sum(), "dp")[None],
    "pmax": lambda x: pf.pmax(x.sum(), ("dp", "tp"))[None],
    "all_gather": lambda x: pf.all_gather(x.sum(), "tp"),
    "ppermute": lambda x: pf.ppermute(x.sum(), "tp", [(0, 1), (1, 3)])[None],
    "a cycle": lambda x: pf.ppermute(x.sum(), "tp", [(0, 1), (1, 2), (2, 3), (3, 0)])[None],
}.items())
def test_collectives_of_scalars(name, f):
    specs = {"psum": P("tp"), "pmax": P(), "all_gather": P("dp")}.get(name, P(("dp", "tp")))
    sharded = pf.shard(f, MESH, P(("dp", "tp")), specs)
    check(sharded, sharded, np.arange(16, dtype=np.float32) ** 2)


def test_a_block_has_the_collectives_of_the_textbook():
    """Two all-reduces forward, two backward, and one for each leaf of parameters over dp, besides that of the loss."""
    width, hidden = 16, 32
    params = tuple(RNG.normal(0, 0.3, s).astype(np.float32) for s in (
        (3, width, width), (width, width), (width, hidden), (hidden, width), (2, width)))
    cut = (P(None, None, "tp"), P("tp"), P(None, "tp"), P("tp"), P())
    x = RNG.normal(size=(4, 5, width)).astype(np.float32)

    def loss(params, x, steps):
        each = pf.batch_serialise(lambda p, x: pnp.mean(block(p, x, 1, lambda y: pf.psum(y, "tp")) ** 2), steps,
                                  in_axes=(None, 0), reduce="mean")
        return pf.pmean(each(params, x), "dp")

    def oracle(params, x):
        return pf.value_and_grad(lambda p: pnp.mean(block(p, x, 4, lambda y: y) ** 2))(params)
    for steps in (1, 2):
        f = pf.shard(lambda p, x, n=steps: pf.value_and_grad(lambda p: loss(p, x, n))(p), MESH, (cut, P("dp")),
                     (P(), cut))
        made = lowered(f, (params, x))
        with pf.Session(made) as session:
            close(oracle(params, x), session.run(params, x))
        text = made.as_text()
        assert text.count("replicated_all_reduce(") == 2 + 2 + len(params) + 1


@pytest.mark.parametrize("kind, name, f", (
    ("cond", "psum", lambda x: pf.cond(pf.axis_index("dp") > 0, lambda x: pf.psum(x, "tp") + x, lambda x: x, x)),
    ("cond", "axis_index", lambda x: pf.cond(x[0, 0] > 0, lambda x: x + pf.axis_index("dp"), lambda x: x, x)),
    ("cond", "all_gather", lambda x: pf.cond(pf.axis_index("dp") > 0, lambda x: pf.fori_loop(
        0, 2, lambda i, x: x + pf.all_gather(x, "tp").sum(0), x), lambda x: x, x)),
    ("while", "psum", lambda x: pf.while_loop(
        lambda x: pf.psum(x[0, 0], "tp") < 9, lambda x: x + 1 + 0 * pf.psum(x, "tp"), x, max_steps=9)),
))
def test_only_some_replicas_get_to_a_collective(kind, name, f):
    """That is a value, but no program of replicas: all take part in PopXL's collectives, whatever their group is."""
    sharded = pf.shard(f, MESH, P(("dp", "tp")), P(("dp", "tp")))
    sharded(LONG[:8, :1])
    with pytest.raises(LoweringError, match=f"{kind}: its condition varies over 'dp'.*, and all replicas take part in "
                                            f"{name}, which is in it") as e:
        lowered(sharded, (LONG[:8, :1],))
    assert "test_replicas.py" in str(e.value) and f"way out: use {name} outside, and pass what it" in str(e.value)


# ---------------------------------------------------------------------------- meshes
def test_a_mesh_of_one_replica():
    mesh = pf.Mesh(dp=1, tp=1)
    f = pf.shard(parallel, mesh, (*CUT, P("dp")), P("dp"))
    assert check(f, dense, W1, W2, B, X).ir.replication_factor == 1


def test_axes_that_do_not_stand_together():
    mesh = pf.Mesh(a=2, b=2, c=2)
    f = pf.shard(lambda x: pf.psum(x, ("a", "c")), mesh, P(("a", "b", "c")), P("b"))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    check(f, lambda x: x.reshape(2, 2, 2, 2).sum((0, 2)), x)


def test_two_meshes_are_refused():
    def f(x):
        y = pf.shard(lambda x: x * 2, pf.Mesh(dp=2), P("dp"), P("dp"))(x)
        return pf.shard(lambda x: x * 2, pf.Mesh(tp=2), P("tp"), P("tp"))(y)
    with pytest.raises(LoweringError) as error:
        lowered(f, (X,))
    assert str(error.value).startswith(
        "a program is lowered for one mesh, but functions are sharded over Mesh(dp=2) and Mesh(tp=2)")
    close(pf.jit(f)(X), X * 4)


def test_keys_are_equal_on_all_replicas_unless_folded():
    def f(key, x):
        own = pf.random.fold_in(key, pf.axis_index("dp"))
        return pf.pvary(pf.random.normal(key, x.shape), ("dp", "tp")), pf.random.normal(own, x.shape)
    made = lowered(pf.shard(f, MESH, (P(), P()), (P(("dp", "tp")), P("dp"))), (np.zeros(2, np.uint32), B))
    with pf.Session(made) as session:
        same, own = session.run(pf.random.key(1), B)
    assert all(np.array_equal(part, same[:8]) for part in same.reshape(8, 8))
    assert not np.array_equal(own[:8], own[8:])
    np.testing.assert_array_equal(same[:8], pf.random.normal(pf.random.key(1), (8,)))
