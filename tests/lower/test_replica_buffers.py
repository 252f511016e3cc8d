"""Remote buffers inside of shard: one for all replicas, one of each, and in parts.

The oracle is what goes in: the function of whole arrays without a buffer. A program's results are also those of its
text, and equal bit by bit in all io modes.
"""
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from test_replicas import MESH, MODES, check, lowered
from test_text import module

import popfn as pf
import popfn.numpy as pnp
from popfn import P
from popfn.errors import ArgumentError, AxisError, MissingRuleError

STEPS = 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5)).astype(np.float32)
KINDS = {
    "of each along dp": {"varying": "dp"},
    "of each": {"varying": ("dp", "tp")},
    "of each, named the other way round": {"varying": ["tp", "dp"]},
    "of each along dp, in parts": {"varying": "dp", "shard_group": "tp"},
    "of each along dp, in parts of one": {"varying": "dp", "shard_group": ("tp",)},
}


def buffer(kind, shape=(4, 5), rows=2):
    return pf.remote_buffer(pf.spec(shape), STEPS, rows, name="b", **kind)


# ---------------------------------------------------------------------------- programs on what a replica along dp has
def serialised(b, mode):
    def f(x):
        pf.batch_serialise(lambda x: x * 2, STEPS, stores=pf.Remote(b, 1), io_mode=mode)(x)
        return pf.batch_serialise(lambda v: v + 1, STEPS, loads=pf.Remote(b, 1), io_mode=mode)(None)
    return f, lambda x: 2 * x + 1


def by_row(b, mode):
    def f(x):
        b.write(0, x.reshape(STEPS, *b.spec.shape))
        b.write(1, b.read(0) + 1)
        return (pf.load(b.read(0)) * pf.load(b.read(1))).reshape(x.shape)
    return f, lambda x: x * (x + 1)


def in_phases(b, mode):
    fwd, grad = pf.fwd_and_grad(pnp.sin, STEPS, stores=pf.Remote(b, 1), gradients=pf.Remote(b, 0), io_mode=mode)

    def f(x):
        _, residuals = fwd(x)
        grad(residuals, pf.load(b.read(1)).reshape(x.shape))
        return pf.load(b.read(0)).reshape(x.shape)
    return f, lambda x: np.sin(x) * np.cos(x)


def from_a_buffer(b, mode):
    """The seed's sharded activations: cotangents that lie in parts in remote memory."""
    fwd, grad = pf.fwd_and_grad(lambda x: pf.psum(x, "tp") ** 2 if "tp" in b.varying else x ** 2, STEPS,
                                cotangents=pf.Remote(b, 1), io_mode=mode, residuals=P("tp"))

    def f(x):
        b.write(1, x.reshape(STEPS, *b.spec.shape))
        return grad(fwd(x)[1])[0]
    return f, lambda x: (8 if "tp" in b.varying else 2) * x * x


def in_layers(b, mode):
    """One serialised function for all rows, in a loop over them."""
    layer = pf.batch_serialise(lambda x: x * 0.5, STEPS, loads=pf.Remote(b), stores=pf.Remote(b, 1), io_mode=mode,
                               rows=b.rows - 1)

    def f(x):
        b.write(0, x.reshape(STEPS, *b.spec.shape))
        pf.fori_loop(0, b.rows - 1, lambda i, c: (layer(None, row=i), c)[1], np.float32(0))
        return pf.load(b.read(b.rows - 1)).reshape(x.shape)
    return f, lambda x: x * 0.5 ** (b.rows - 1)


PROGRAMS = {f.__name__: f for f in (serialised, by_row, in_phases, from_a_buffer, in_layers)}


def sharded(f, b):
    """On the mesh; with a value on each replica along tp they are equal, and so is their mean."""
    if "tp" in b.varying:
        return pf.shard(lambda x: pf.pmean(f(pf.pvary(x, "tp")), "tp"), MESH, P("dp"), P("dp"))
    return pf.shard(f, MESH, P("dp"), P("dp"))


def agree(program, kind, x, shape):
    results = []
    for mode in MODES:
        f, oracle = program(buffer(kind, shape), mode)
        on_mesh = sharded(f, buffer(kind))
        made = check(on_mesh, oracle, x, io_tiles=32)
        with pf.Session(made) as session:
            results.append(session.run(x))
            np.testing.assert_array_equal(session.run(x), results[0])
        np.testing.assert_allclose(pf.jit(on_mesh)(x), oracle(x), rtol=2e-5, atol=2e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, kind):
    made = agree(PROGRAMS[name], KINDS[kind], X, (4, 5))
    entry = "(5,)" if "parts" in kind else "(4, 5)"
    assert re.search(rf"= popxl.remote_buffer\({re.escape(entry)}, popxl.float32, {2 * STEPS}\)", made.as_text())


@settings(max_examples=max(10, settings.default.max_examples // 10))
@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(KINDS)), st.integers(1, 3), st.integers(1, 4))
def test_random_sizes(name, kind, n, m):
    """Parts are padded where they do not divide."""
    x = np.linspace(-2, 2, 2 * STEPS * n * m, dtype=np.float32).reshape(-1, m)
    agree(PROGRAMS[name], KINDS[kind], x, (n, m))


@pytest.mark.parametrize("kind", ("of each along dp", "of each along dp, in parts"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_xla(name, kind, monkeypatch):
    monkeypatch.setenv("POPFN_ENGINE", "xla")
    b = buffer(KINDS[kind])
    f, oracle = PROGRAMS[name](b, "io_overlapped")
    with pf.Session(lowered(sharded(f, b), (X,), io_tiles=32)) as session:
        np.testing.assert_allclose(session.run(X), oracle(X), rtol=2e-5, atol=2e-5)


def test_each_replica_has_its_own():
    b = buffer({"varying": ("tp", "dp")}, (1,))

    def f(x):
        b.write(1, x.reshape(STEPS, 1))
        pf.psum(x, ("dp", "tp"))
        return pf.load(b.read(1)).reshape(-1)
    x = np.arange(24, dtype=np.float32)
    check(pf.shard(f, MESH, P(("dp", "tp")), P(("dp", "tp"))), lambda x: x, x)


@pytest.mark.parametrize("names", list(itertools.permutations("abc")))
def test_names_in_any_order(names):
    """A row that one mesh wrote is that of each of its replicas, in whatever order the buffer names the axes."""
    b = buffer({"varying": names}, (1,), 1)
    whole = P(("a", "b", "c"))

    def f(x):
        b.write(0, x.reshape(STEPS, 1))
        return pf.load(b.read(0)).reshape(-1)
    x = np.arange(STEPS * 12, dtype=np.float32)
    mesh = pf.Mesh(a=2, b=3, c=2)
    check(pf.shard(f, mesh, whole, whole), lambda x: x, x)
    np.testing.assert_array_equal(pf.shard(lambda: pf.load(b.read(0)).reshape(-1), mesh, (), whole)(), x)


def test_rows_last_over_runs_and_calls():
    b = buffer(KINDS["of each along dp, in parts"])
    put = pf.shard(lambda x: (b.write(0, x.reshape(STEPS, 4, 5)), x)[1], MESH, P("dp"), P("dp"))
    get = pf.shard(lambda: pf.load(b.read(0)).reshape(12, 5), MESH, (), P("dp"))
    put(X)
    np.testing.assert_array_equal(get(), X)
    np.testing.assert_array_equal(pf.jit(get)(), X)

    def both(is_new, x):
        pf.cond(is_new, lambda: b.write(0, x.reshape(STEPS, 4, 5)), lambda: None)
        return pf.load(b.read(0)).reshape(12, 5)
    made = pf.lower(pf.shard(both, MESH, (P(), P("dp")), P("dp")), np.array(True), X)
    with pf.Session(made) as session:
        session.run(np.array(True), X)
        np.testing.assert_array_equal(session.run(np.array(False), X * 0), X)


def test_one_for_all_replicas():
    b = buffer({}, (8,))

    def f(x):
        pf.batch_serialise(lambda x: pf.psum(x[0], ("dp", "tp")), STEPS, stores=pf.Remote(b), rows=2)(x, row=1)
        return pf.batch_serialise(lambda x: x * 2, STEPS, loads=pf.Remote(b), rows=2)(None, row=1)
    x = RNG.normal(size=(24, 8)).astype(np.float32)
    check(pf.shard(f, MESH, P(("dp", "tp")), P()), lambda x: 2 * x.reshape(8, STEPS, 8).sum(0).reshape(-1), x)


@pytest.mark.parametrize("kind", ({}, {"varying": "dp"}))
def test_programs_that_only_write(kind):
    b = buffer(kind)

    def f(x):
        pf.batch_serialise(lambda x: pf.psum(x, "dp") if not kind else x, STEPS, stores=pf.Remote(b))(x)
    on_mesh = pf.shard(f, MESH, P("dp"), None)
    made = lowered(on_mesh, (X,))
    assert made.ir.num_host_transfers == STEPS
    with pf.Session(made) as session:
        assert session.run(X) is None
    assert pf.jit(on_mesh)(X) is None
    assert module(made.as_text())["main"]({"x": X}) == {}


# ---------------------------------------------------------------------------- errors
ROW = np.ones((3, 4, 5), np.float32)
ONE, EACH = buffer({}), buffer({"varying": "dp"})
PARTS = buffer(KINDS["of each along dp, in parts"])
BAD = {
    "a value of each": (
        lambda x: ONE.write(0, x.reshape(3, 4, 5)), AxisError,
        "b holds one value for all replicas along 'dp', got f32[3,4,5]{dp}",
        "way out: remote_buffer(..., varying='dp'), or keep it as a value"),
    "parts of what differs": (
        lambda x: PARTS.write(0, pf.axis_index("tp") + x.reshape(3, 4, 5)), AxisError,
        "b holds one value for all replicas along 'tp', got f32[3,4,5]{dp,tp}",
        "way out: remote_buffer(..., varying='tp'), or keep it as a value"),
    "stored": (
        lambda x: pf.batch_serialise(lambda x: x, 3, stores=pf.Remote(ONE))(x), AxisError,
        "b holds one value for all replicas along 'dp', got f32[4,5]{dp}",
        "way out: remote_buffer(..., varying='dp'), or keep it as a value"),
    "of a phase": (
        lambda x: pf.fwd_and_grad(lambda x: x, 3, stores=pf.Remote(ONE))[0](x), AxisError,
        "b holds one value for all replicas along 'dp', got f32[3,4,5]{dp}",
        "way out: remote_buffer(..., varying='dp'), or keep it as a value"),
    "a row of each": (
        lambda x: EACH.read(pf.axis_index("dp")), AxisError,
        "remote_read of i32[]{dp}, which varies over 'dp': 'b' has one row for all at a time",
        "way out: a row that is the same for all; pnp.where can choose among the values of several rows"),
    "a row of each is written": (
        lambda x: EACH.write(pf.axis_index("dp"), ROW), AxisError,
        "remote_write of i32[]{dp}, which varies over 'dp': 'b' has one row for all at a time",
        "way out: a row that is the same for all; pnp.where can choose among the values of several rows"),
    "a value of each, by hand": (
        lambda x: pf.jit(lambda x: ONE.keep(0, x))(pf.remote(x.reshape(3, 4, 5))), AxisError,
        "remote_write of f32[3,4,5]{dp}@remote, which varies over 'dp': 'b' holds one value for all",
        "way out: remote_buffer(..., varying='dp'), or keep it as a value"),
    **{f"{what} in {where}": (
        lambda x, around=around, write=write: (lambda s: around(x[0, 0] > 0, lambda: write(s)))(pf.psum(x[0, 0], "dp")),
        AxisError,
        f"{kind} writes to 'b', which is one for all replicas along axis 'dp', while it depends on the replica whether "
        "they get there", "way out: write outside, or make the buffer with varying=")
       for where, kind, around in (
           ("a branch", "cond: a branch", lambda on, f: pf.cond(on, f, lambda: None)),
           ("a loop", "while: a loop", lambda on, f: pf.while_loop(lambda c: c, lambda c: (f(), ~c)[1], on)),
           ("a branch in a loop", "cond: a branch", lambda on, f: pf.scan(
               lambda c, r: (pf.cond(on, f, lambda: None), (c, r))[1], 0, np.arange(2))))
       for what, write in (
           ("a constant", lambda s: ONE.write(0, ROW)), ("a value of all", lambda s: ONE.write(0, ROW * s)),
           ("a stored constant", lambda s: pf.batch_serialise(lambda x: x, 3, stores=pf.Remote(ONE))(
               ROW.reshape(12, 5))),
           ("a constant in jit", lambda s: pf.jit(lambda: ONE.write(0, ROW))()))},
    **{f"{what} at a row from outside": (
        lambda x, use=use: use(pf.psum(pf.axis_index("dp"), "dp") * 0, x[0, 0] > 0), AxisError,
        "cond: a branch uses a row of 'b' whose number comes from outside, while it depends on the replica along 'dp' "
        "whether they get there", "way out: read or write outside, and choose the value with pnp.where")
       for what, use in (
           ("a read", lambda r, on: pf.cond(on, lambda: pf.load(EACH.read(r)), lambda: pnp.zeros((3, 4, 5)))),
           ("a write", lambda r, on: pf.cond(on, lambda: EACH.write(r, ROW), lambda: None)))},
    "in a branch for some": (
        lambda x: pf.cond(x[0, 0] > 0, lambda: ONE.write(0, pnp.ones((3, 4, 5))), lambda: None), AxisError,
        "cond: a branch writes to 'b', which is one for all replicas along axis 'dp', while it depends on the replica "
        "whether they get there", "way out: write outside, or make the buffer with varying="),
    "of other replicas": (
        lambda x: buffer({"varying": "pp"}).read(0), AxisError,
        "b is a buffer of replicas along 'pp', which is no axis here",
        "way out: read and write it inside of pf.shard, over a mesh with this axis"),
}


@pytest.mark.parametrize("run", (lambda f: f(X), lambda f: lowered(f, (X,))))
@pytest.mark.parametrize("name", BAD)
def test_errors(name, run):
    access, kind, text, advice = BAD[name]
    with pytest.raises(kind) as e:
        run(pf.shard(lambda x: (access(x), x)[1], MESH, P("dp"), P("dp")))
    lines = str(e.value).split("\n  ")
    assert lines[0] == text and re.match(r"at .*test_replica_buffers.py:\d+", lines[1]), lines
    assert advice is None or lines[2] == advice


@pytest.mark.parametrize("run", (lambda f: f(), lambda f: pf.jit(f)()), ids=("eager", "jit"))
@pytest.mark.parametrize("kind", ({"varying": ("dp", "tp")}, {"varying": "dp", "shard_group": "tp"}))
def test_rows_of_another_mesh(kind, run):
    b = buffer(kind, (1, 6))
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    meshes = pf.Mesh(dp=2, tp=3), pf.Mesh(dp=3, tp=2)
    own = P(("dp", "tp")) if "shard_group" not in kind else P("dp")
    pf.shard(lambda x: (b.write(0, pnp.broadcast_to(x[:1], (3, 1, 6))), x)[1], meshes[0], own, own)(x)
    get = [lambda mesh=mesh: pf.shard(lambda: pf.load(b.read(0))[0], mesh, (), own)() for mesh in meshes]
    with pytest.raises(AxisError, match=r"row 0 of b was written on replicas of another mesh than dp=3 x tp=2") as e:
        run(get[1])
    assert "way out: a buffer for each mesh" in str(e.value) and "test_replica_buffers.py" in str(e.value)
    np.testing.assert_array_equal(run(get[0]), x if own == P(("dp", "tp")) else x[::3])


@pytest.mark.parametrize("run", (lambda f: f(X), lambda f: pf.jit(f)(X)), ids=("eager", "jit"))
def test_writes_of_some_lanes(run):
    """On replicas, and not in lanes that go through both branches."""
    b = buffer(KINDS["of each along dp"])

    def f(x):
        b.write(0, x.reshape(3, 4, 5))
        pf.cond(pf.axis_index("dp") > 0, lambda: b.write(0, x.reshape(3, 4, 5) * 2), lambda: None)
        return pf.load(b.read(0)).reshape(x.shape)
    on_mesh = pf.shard(f, MESH, P("dp"), P("dp"))
    with pf.Session(lowered(on_mesh, (X,))) as session:
        np.testing.assert_array_equal(session.run(X), X * np.repeat([[1], [2]], 12, 0))
    with pytest.raises(MissingRuleError, match="a write to b cannot be run for some lanes only") as e:
        run(on_mesh)
    assert "way out: write outside of the branch" in str(e.value) and "test_replica_buffers.py" in str(e.value)


@pytest.mark.parametrize("call, kind, text", (
    (lambda: EACH.read(0), AxisError, "b is a buffer of replicas along 'dp', which is no axis here"),
    (lambda: PARTS.write(0, np.ones((3, 4, 5), np.float32)), AxisError, "b is a buffer of replicas along 'dp'"),
    (lambda: buffer({"varying": 3}), ArgumentError,
     "remote_buffer: varying and shard_group name axes, each once, got 3 and ()"),
    (lambda: buffer({"varying": "dp", "shard_group": ("tp", "dp")}), ArgumentError,
     "remote_buffer: varying and shard_group name axes, each once, got 'dp' and ('tp', 'dp')"),
    (lambda: pf.Remote(PARTS, shard_group="dp"), ArgumentError,
     "Remote: b was made with shard_group=('tp',), got 'dp'"),
    (lambda: pf.Remote(EACH, shard_group="tp"), ArgumentError, "Remote: b was made with shard_group=(), got 'tp'"),
))
def test_errors_outside(call, kind, text):
    with pytest.raises(kind, match=re.escape(text)) as e:
        call()
    assert "test_replica_buffers.py" in str(e.value)


def test_the_group_may_be_said_again():
    assert pf.Remote(PARTS, shard_group="tp") != pf.Remote(PARTS, 1, shard_group=("tp",))
    assert "shard_group" not in repr(pf.Remote(PARTS, shard_group="tp"))
