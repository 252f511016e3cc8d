"""Programs of several processes: what each takes and gives, what is refused, and that they compute what one does."""
import itertools
import json
import math
import os
import pathlib
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
from distributed_worker import PARAMS
from test_text import module

import popfn as pf
import popfn.numpy as pnp
from popfn import P
from popfn.distributed import Instance
from popfn.errors import ArgumentError, DeviceError, InputError, LoweringError
from popfn.host import _placement
from popfn.lower.instances import VARIABLES

MESH = pf.Mesh(dp=2, tp=4)
f32 = np.float32
WORKER = pathlib.Path(__file__).with_name("distributed_worker.py")
ROOT = WORKER.parents[2]


def launch(monkeypatch, total, local, first):
    """What a launcher does."""
    for name, value in zip(VARIABLES, (total, local, first)):
        monkeypatch.setenv(name, str(value))


@pytest.fixture(autouse=True)
def alone_at_first(monkeypatch):
    for name in (*VARIABLES, "POPFN_ENGINE"):
        monkeypatch.delenv(name, raising=False)


def lines(error):
    """The lines of a message without the user's, which has to be there."""
    first, at, *rest = [line.strip() for line in str(error.value).splitlines()]
    assert at.startswith("at ") and "test_distributed.py" in at
    return [first, *rest]


def step(params, x):
    y = pf.psum(x @ params["w"], "tp") + params["b"]
    return pf.tree.map(lambda w: 2 * w, params), (y, pf.pmean(pnp.mean(y), "dp"))


CUT = {"w": P("tp"), "b": P()}
ROWS = P("dp", "tp")


def program(mesh=MESH, **options):
    sharded = pf.shard(step, mesh, (CUT, ROWS), (CUT, (P("dp"), P())))
    params = {"w": pf.spec((8, 3)), "b": pf.spec((3,))}
    return pf.lower(sharded, params, pf.spec((4, 8)), state=0, target="host", **options)


# ---------------------------------------------------------------------------- the launcher
def test_who_this_is(monkeypatch):
    assert pf.distributed.instance() is None
    launch(monkeypatch, 8, 2, 4)
    assert pf.distributed.instance() == Instance(index=2, count=4, first_replica=4, local_replicas=2, total_replicas=8)
    assert str(pf.distributed.instance()) == "instance 2 of 4, replicas 4 to 5 of 8"
    launch(monkeypatch, 8, 1, 7)
    assert str(pf.distributed.instance()) == "instance 7 of 8, replica 7 of 8"


WAY = "way out: start it with a launcher, or pf.distributed.initialize, which set all of them; or unset them"
EVEN = "every process has equally many, one process after the other"


@pytest.mark.parametrize("values, fault", [
    (("8", None, "0"), "the environment has a launcher's variables, but no POPDIST_NUM_LOCAL_REPLICAS"),
    (("8", None, None), "the environment has a launcher's variables, but no POPDIST_NUM_LOCAL_REPLICAS, "
                        "POPDIST_REPLICA_INDEX_OFFSET"),
    (("8", "four", "0"), "the launcher's variables are not all numbers"),
    (("8", "3", "0"), "the launcher's variables give this process 3 replicas of 8, from number 0 on"),
    (("8", "4", "2"), "the launcher's variables give this process 4 replicas of 8, from number 2 on"),
    (("8", "4", "8"), "the launcher's variables give this process 4 replicas of 8, from number 8 on"),
    (("8", "4", "-4"), "the launcher's variables give this process 4 replicas of 8, from number -4 on"),
    (("8", "0", "0"), "the launcher's variables give this process 0 replicas of 8, from number 0 on"),
])
def test_a_launcher_that_contradicts_itself(monkeypatch, values, fault):
    given = {name: value for name, value in zip(VARIABLES, values) if value is not None}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = "seen: " + ", ".join(f"{name}={value}" for name, value in given.items())
    for f in (pf.distributed.instance, program):
        with pytest.raises(DeviceError) as e:
            f()
        assert lines(e) == [fault, seen, *[EVEN] * ("give" in fault), WAY]


# ---------------------------------------------------------------------------- lowering
def test_types_are_those_of_an_instance(monkeypatch):
    whole = program()
    assert whole.instance is None and whole.local_in_avals == whole.in_avals and whole.ir.replication_factor == 8
    launch(monkeypatch, 8, 4, 4)
    made = program()
    assert (made.ir.replication_factor, made.ir.instance_replication_factor) == (8, 4)
    assert made.in_avals == whole.in_avals and str(made.jaxpr) == str(whole.jaxpr)
    assert list(map(str, made.local_in_avals)) == ["f32[3]", "f32[8,3]", "f32[2,8]"]
    assert list(map(str, made.local_out_avals)) == ["f32[2,3]", "f32[]"]
    assert repr(made) == repr(whole)[:-1] + "; instance 1 of 2, replicas 4 to 7 of 8)"
    launch(monkeypatch, 8, 2, 2)
    assert list(map(str, program().local_in_avals)) == ["f32[3]", "f32[4,3]", "f32[2,4]"]
    launch(monkeypatch, 8, 8, 0)
    made = program()
    assert made.local_in_avals == whole.in_avals and made.instance.count == 1


def test_what_has_no_mesh_runs_alone(monkeypatch):
    launch(monkeypatch, 8, 4, 4)
    made = pf.lower(lambda n, x: (n + x, n), pf.spec(()), pf.spec(()), state=0, target="host")
    assert made.instance is None and made.ir.replication_factor == 1 and "popxl.Ir()" in made.as_text()
    with pf.Session(made, state=f32(1)) as session:
        assert session.run(2.0) == 1
    assert session.state == 3
    total = pf.shard(lambda x: pf.psum(x, "dp"), pf.Mesh(dp=2), P("dp"), P())
    x = np.arange(4, dtype=f32)
    np.testing.assert_array_equal(total(x), [2, 4])
    np.testing.assert_array_equal(pf.jit(total)(x), [2, 4])


@pytest.mark.parametrize("mesh", [pf.Mesh(dp=4, tp=4), pf.Mesh(dp=1, tp=1)])
def test_a_mesh_of_another_size(monkeypatch, mesh):
    launch(monkeypatch, 8, 4, 0)
    with pytest.raises(LoweringError) as e:
        program(mesh)
    assert lines(e) == [
        f"{mesh} has {mesh.size} replicas, but the launcher started 8",
        "this process is instance 0 of 2, replicas 0 to 3 of 8",
        f"way out: a mesh of 8 replicas, or {mesh.size} replicas for the launcher or pf.distributed.initialize"]
    with pytest.raises(ArgumentError) as e:
        pf.distributed.part_of(np.zeros(8), P("dp"), mesh)
    assert lines(e) == [f"distributed.part_of: {mesh} has {mesh.size} replicas, but the launcher started 8",
                        "this process is instance 0 of 2, replicas 0 to 3 of 8"]


def boxes(sizes, local):
    """Whether `local` replicas from each multiple of it on are a box in a mesh of these sizes, found by looking."""
    places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), -1)
    return all(math.prod(np.ptp(own, axis=0) + 1) == local for own in np.split(places, len(places) // local))


@pytest.mark.parametrize("sizes", [(12,), (2, 6), (3, 4), (4, 3), (2, 3, 2), (3, 1, 4), (6, 2)])
def test_replicas_that_are_no_box(monkeypatch, sizes):
    mesh = pf.Mesh(**{f"a{i}": n for i, n in enumerate(sizes)})
    for local in (1, 2, 3, 4, 6, 12):
        launch(monkeypatch, 12, local, 12 - local)

        def lower(mesh=mesh):
            every = P(tuple(mesh.axes))
            return pf.lower(pf.shard(lambda y: y, mesh, every, every), pf.spec(24))
        if boxes(sizes, local):
            made, x = lower(), np.arange(24)
            assert made.local_in_avals[0].shape == (2 * local,)
            np.testing.assert_array_equal(pf.distributed.part_of(x, P(tuple(mesh.axes)), mesh), x[-2 * local:])
            continue
        for f in (lower, lambda mesh=mesh: pf.distributed.part_of(0, P(), mesh)):
            with pytest.raises(LoweringError) as e:
                f()
            assert lines(e) == [
                f"the {local} replicas of an instance are no box in {mesh}", f"this process is "
                f"{pf.distributed.instance()}",
                "an instance has the innermost axes whole, an equal part of the next one, and one place along the rest",
                "way out: other sizes or another order of the axes, or other numbers of replicas for the instances"]


def test_the_environment_changes_after_lowering(monkeypatch):
    launch(monkeypatch, 8, 4, 4)
    monkeypatch.setenv("POPFN_ENGINE", "xla")
    made = program()
    made.take()
    launch(monkeypatch, 8, 4, 0)
    with pytest.raises(InputError) as e:
        pf.Session(made, state=None)
    assert lines(e) == ["step was lowered for instance 1 of 2, replicas 4 to 7 of 8, but this process is instance 0 of "
                        "2, replicas 0 to 3 of 8", "way out: lower it again"]


def test_text_of_an_instance(monkeypatch):
    launch(monkeypatch, 8, 4, 4)
    text = program().as_text()
    assert 'ir = popxl.Ir(replication="popdist")' in text
    ir, loads, variables, stores = module(text)["build"]()
    assert (ir.replication_factor, ir.instance_replication_factor) == (8, 4)
    monkeypatch.undo()
    assert text.replace('"popdist"', "8").split("def groups_of")[0] == program().as_text().split("def groups_of")[0]


# ---------------------------------------------------------------------------- parts of arrays
def own_part(x, cut, mesh, first, local):
    """What these replicas hold of a global array, by their places: along each axis the parts that one of them has."""
    places = np.stack(np.unravel_index(np.arange(first, first + local), list(mesh.values())), -1)
    here = {name: set(places[:, i].tolist()) for i, name in enumerate(mesh)}
    for axis, names in enumerate(cut):
        parts = np.split(x, math.prod(mesh[name] for name in names), axis)
        every = list(itertools.product(*(range(mesh[name]) for name in names)))
        x = np.concatenate([part for part, place in zip(parts, every) if all(
            i in here[name] for i, name in zip(place, names))], axis)
    return x


SPECS = [P(), P("dp"), P("tp"), P(None, "dp"), P("dp", "tp"), P("tp", "dp"), P(("dp", "tp")), P(("tp", "dp")),
         P(None, ("tp", "dp"))]


@pytest.mark.parametrize("local", [1, 2, 4, 8])
def test_part_of(monkeypatch, local):
    x = np.arange(16 * 16).reshape(16, 16)
    for spec in SPECS:
        assert pf.distributed.part_of(x, spec, MESH) is x
    for first in range(0, 8, local):
        launch(monkeypatch, 8, local, first)
        for spec in SPECS:
            np.testing.assert_array_equal(pf.distributed.part_of(x, spec, MESH),
                                          own_part(x, spec.spec, MESH.axes, first, local))
    empty = np.zeros((0, 8))
    assert pf.distributed.part_of(empty, P("dp", "tp"), MESH).shape[0] == 0


def test_part_of_a_tree(monkeypatch):
    launch(monkeypatch, 8, 4, 4)
    got = pf.distributed.part_of({"w": pf.Array(np.arange(4)), "b": [1.0, np.arange(6)]},
                                 {"w": P("dp"), "b": [P(), P("dp")]}, MESH)
    np.testing.assert_array_equal(got["w"], [2, 3])
    np.testing.assert_array_equal(got["b"][1], [3, 4, 5])
    assert got["b"][0] == 1.0


@pytest.mark.parametrize("x, spec, fault", [
    (np.zeros(4), P("pp"), "distributed.part_of: P('pp') for x names 'pp', which is no axis of Mesh(dp=2, tp=4)"),
    ({"w": np.zeros(6)}, P("tp"),
     "distributed.part_of: P('tp') cuts axis 0 of x['w'] into 4 parts, which is of the shape (6,)"),
    (np.zeros(4), P(None, "tp"),
     "distributed.part_of: P(None, 'tp') cuts axis 1 of x into 4 parts, which is of the shape (4,)"),
    (np.zeros(4), "dp", "distributed.part_of: the spec of x is a pf.P, got 'dp'"),
])
def test_part_of_what_cannot_be_cut(monkeypatch, x, spec, fault):
    for _ in range(2):  # without a launcher, and under one
        with pytest.raises(ArgumentError) as e:
            pf.distributed.part_of(x, spec, MESH)
        assert lines(e)[0] == fault
        launch(monkeypatch, 8, 4, 4)
    with pytest.raises(ArgumentError, match="distributed.part_of takes a mesh, got dict"):
        pf.distributed.part_of(np.zeros(4), P("dp"), MESH.axes)
    with pytest.raises(ArgumentError, match="distributed.part_of: the spec is no tree above x"):
        pf.distributed.part_of([np.zeros(4)], (P(), P()), MESH)


# ---------------------------------------------------------------------------- sessions
def test_the_numpy_engine_cannot_join_processes(monkeypatch):
    launch(monkeypatch, 8, 4, 4)
    state = {"w": np.zeros((8, 3), f32), "b": np.zeros(3, f32)}
    way = "way out: set POPFN_ENGINE=xla, and call pf.distributed.initialize first in every process"
    with pytest.raises(DeviceError) as e:
        pf.Session(program(), state=state)
    assert lines(e) == ["Session: step runs in 2 processes, which the engine 'numpy' cannot join",
                        "this process is instance 1 of 2, replicas 4 to 7 of 8", way]
    pytest.importorskip("jax")
    monkeypatch.setenv("POPFN_ENGINE", "xla")
    with pytest.raises(DeviceError) as e:
        pf.Session(program(), state=state)
    assert lines(e)[1:] == ["this process is instance 1 of 2, replicas 4 to 7 of 8", way]
    assert lines(e)[0].startswith("Session: step runs in 2 processes, which are not joined as it needs: the XLA engine "
                                  "cannot spread 8 replicas")


def test_one_process_needs_nothing_else(monkeypatch):
    launch(monkeypatch, 8, 8, 0)
    rng = np.random.default_rng(0)
    state = {"w": rng.normal(size=(8, 3)).astype(f32), "b": rng.normal(size=3).astype(f32)}
    x = rng.normal(size=(4, 8)).astype(f32)
    made = program()
    assert 'Ir(replication="popdist")' in made.as_text()
    with pf.Session(made, state=state) as session:
        y, mean = session.run(x)
    np.testing.assert_allclose(y, x @ state["w"] + state["b"], 1e-5, 1e-5)
    np.testing.assert_allclose(mean, y.mean(), 1e-5, 1e-5)
    np.testing.assert_array_equal(session.state["w"], 2 * state["w"])
    results = module(made.as_text())["main"]({"x": x}, {f"params_{k}": v for k, v in state.items()})
    np.testing.assert_array_equal(results["out_0"], y)


class Recorded:
    """A session of PopXL that runs nothing: it says what it was given."""

    def __init__(self, ir, device):
        self.ir, self.data, self.is_attached = ir, {}, False

    def write_variables_data(self, data):
        for v, x in data.items():
            assert x.shape == v.shape_on_host and x.dtype == v.dtype.as_numpy()
        self.data.update(data)

    def get_tensors_data(self, variables):
        return {v: self.data[v] for v in variables}

    def run_with_outputs(self, feeds, results):
        self.fed = {stream.tensor_id if hasattr(stream, "tensor_id") else str(stream): x for stream, x in feeds.items()}
        for x in results.values():
            x[...] = np.arange(x.size).reshape(x.shape)

    def __enter__(self):
        self.is_attached = True

    def __exit__(self, *_):
        self.is_attached = False


@pytest.fixture
def recorded(monkeypatch):
    """Sessions under a launcher, without anybody to talk to."""
    monkeypatch.setenv("POPFN_ENGINE", "xla")
    monkeypatch.setattr("popfn.host.Session", Recorded)
    return lambda total, local, first: launch(monkeypatch, total, local, first)


@pytest.mark.parametrize("local", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"replica_state": True}])
def test_arrays_are_those_of_an_instance(recorded, local, options):
    rng = np.random.default_rng(0)
    whole = {"w": rng.normal(size=(8, 3)).astype(f32), "b": rng.normal(size=3).astype(f32)}
    x = np.arange(32, dtype=f32).reshape(4, 8)
    for first in range(0, 8, local):
        recorded(8, local, first)
        made = program(**options)
        mine = pf.distributed.part_of(whole, CUT, MESH)
        session = pf.Session(made, state=mine)
        # PopXL takes the values of all groups, and looks at those of the replicas here.
        for path, name in (("params['w']", "w"), ("params['b']", "b")):
            np.testing.assert_array_equal(session.state[name], mine[name])
            variable = made.variables[path]
            rows = session._px.data[variable]
            groups = variable.replica_grouping.assignment
            assert len(set(groups)) == (8 if options else 4 if name == "w" else 1)
            for replica in range(first, first + local):
                want = np.split(whole["w"], 4)[replica % 4] if name == "w" else whole["b"]
                np.testing.assert_array_equal(rows[groups[replica]] if len(set(groups)) > 1 else rows, want)
                if options:
                    np.testing.assert_array_equal(session.get_replica_data(path)[replica - first], want)
        fits = own_part(x, ROWS.spec, MESH.axes, first, local)
        assert str(session.expected_inputs()) == str({"x": pf.spec(fits.shape)})
        assert [y.shape for y in session.create_host_outputs()] == [y.shape for y in made.local_out_avals]
        with session:
            y, mean = session.run(pf.distributed.part_of(x, ROWS, MESH))
        fed, = session._px.fed.values()
        fed = fed if local > 1 else fed[None]
        for k, part in enumerate(fed):
            i, j = divmod(first + k, 4)
            np.testing.assert_array_equal(part, x[2 * i:2 * i + 2, 2 * j:2 * j + 2])
        assert y.shape == (2, 3) and mean.shape == ()
        np.testing.assert_array_equal(y, np.arange(6).reshape(2, 3))


CUBE = pf.Mesh(dp=2, tp=2, pp=2)
CUBE_SPECS = {name: P(*entries) for name, entries in {
    "dp": ("dp",), "tp": (None, "tp"), "pp": ("pp",), "outer": ("pp", "dp"), "minor": (("pp", "tp"),),
    "all": (("tp", "dp"), "pp"), "whole": ()}.items()}


@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
@pytest.mark.parametrize("options", [{}, {"replica_state": True}], ids=["", "each"])
def test_the_host_puts_state_where_it_belongs(recorded, options, far):
    """Also for groups without one stride, such as those of all replicas along dp and pp."""
    whole = {name: np.arange(16, dtype=f32).reshape(4, 4) + 16 * i for i, name in enumerate(CUBE_SPECS)}

    def double(state):
        new = pf.tree.map(lambda x: 2 * pf.load(x), state)
        return (pf.tree.map(pf.remote, new) if far else new), None
    f = pf.shard(double, CUBE, (CUBE_SPECS,), (CUBE_SPECS, P()))
    for local, first in ((1, 5), (2, 2), (4, 4), (8, 0)):
        recorded(8, local, first)
        made = pf.lower(f, pf.tree.map(pf.remote, whole) if far else whole, state=0, target="host", **options)
        session = pf.Session(made, state=pf.distributed.part_of(whole, CUBE_SPECS, CUBE))
        for name, spec in CUBE_SPECS.items():
            variables = made.variables[f"state['{name}']"]
            on_replicas = []
            for v in variables if far else (variables,):
                np.copyto(v.data, session._px.data[v])
                values = _placement.to_device(v)
                values = values if values.ndim > len(v.shape) else np.stack([values] * local)
                on_replicas.append(values)
                _placement.to_host(v, 2 * values)
                session._px.data[v] = v.data
            for k in range(local):
                want = own_part(whole[name], spec.spec, CUBE.axes, first + k, 1)
                np.testing.assert_array_equal(np.stack([x[k] for x in on_replicas]).reshape(want.shape), want)
            want = own_part(2 * whole[name], spec.spec, CUBE.axes, first, local)
            np.testing.assert_array_equal(session.state[name], want)


def test_a_whole_array_is_refused(recorded):
    recorded(8, 2, 6)
    seen = "this process is instance 3 of 4, replicas 6 to 7 of 8, and takes and gives what its replicas have of it"
    way = "way out: pf.distributed.part_of(x, spec, mesh)"
    whole, x = {"w": np.zeros((8, 3), f32), "b": np.zeros(3, f32)}, np.zeros((4, 8), f32)
    mine = pf.distributed.part_of(whole, CUT, MESH)
    session = pf.Session(program(), state=mine)

    def set_state():
        session.state = whole
    calls = [
        (lambda: pf.Session(program(), state=whole),
         "state params['w'] of step: expected f32[4,3], got the whole array, f32[8,3]"),
        (set_state, "state params['w'] of step: expected f32[4,3], got the whole array, f32[8,3]"),
        (lambda: session.write_variable_data("params['w']", whole["w"]),
         "state params['w'] of step: expected f32[4,3], got the whole array, f32[8,3]"),
        (lambda: session.run(x), "argument x of step: expected f32[2,4], got the whole array, f32[4,8]"),
        (lambda: session.run_with_outputs([x[:2, :4]], (np.zeros((4, 3), f32), np.zeros((), f32))),
         "output out[0] of step: expected f32[2,3], got the whole array, f32[4,3]")]
    with session:
        for f, fault in calls:
            with pytest.raises(InputError) as e:
                f()
            assert lines(e) == [fault, seen, way]
        with pytest.raises(InputError, match=r"argument x of step: expected f32\[2,4\], got f32\[2,5\]"):
            session.run(np.zeros((2, 5), f32))


# ---------------------------------------------------------------------------- initialize
@pytest.mark.parametrize("args, fault", [
    (("a:1", None, 0, 8), "distributed.initialize: processes= is missing, and no launcher says it"),
    (("a:1", 2, None, 8), "distributed.initialize: process= is missing, and no launcher says it"),
    (("a:1", 2, 0), "distributed.initialize: replicas= is missing, and no launcher says it"),
    (("a:1", 0, 0, 8), "distributed.initialize: processes=0 is no number of 1 or more"),
    (("a:1", 2, -1, 8), "distributed.initialize: process=-1 is no number of 0 or more"),
    (("a:1", 2, 2, 8), "distributed.initialize: process=2 of processes=2"),
    (("a:1", 2, 0, "8"), "distributed.initialize: replicas='8' is no number of 1 or more"),
    (("a:1", 3, 0, MESH), "distributed.initialize: 8 replicas cannot be shared out evenly to 3 processes"),
])
def test_initialize_with_wrong_numbers(args, fault):
    with pytest.raises(ArgumentError) as e:
        pf.distributed.initialize(*args)
    assert lines(e)[0] == fault and pf.distributed.instance() is None


def test_initialize_under_a_launcher(monkeypatch):
    launch(monkeypatch, 8, 4, 4)
    with pytest.raises(ArgumentError) as e:
        pf.distributed.initialize("a:1", process=0)
    assert lines(e) == ["distributed.initialize: process=0, but for the launcher it is 1",
                        "this process is instance 1 of 2, replicas 4 to 7 of 8", "way out: leave process= out"]


def test_initialize_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(DeviceError) as e:
        pf.distributed.initialize("a:1", 2, 0, MESH)
    assert lines(e)[0].startswith("distributed.initialize needs JAX, which cannot be imported")
    assert lines(e)[1] == 'way out: pip install "popfn[xla]"' and pf.distributed.instance() is None


# ---------------------------------------------------------------------------- several processes
REPLICAS = 4
ALL = "text,train,zero,deep,line,alone"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(*arguments, devices=1, script=WORKER):
    env = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    env.update(JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT), POPFN_ENGINE="xla",
               XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
    return subprocess.Popen([sys.executable, str(script), *map(str, arguments)], env=env, cwd=str(WORKER.parent),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)


def outputs(processes):
    """What the processes print, and whether one of them failed."""
    out = []
    for process in processes:
        try:
            out.append(process.communicate(timeout=280)[0])
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            raise
    return "\n".join(out), any(process.returncode for process in processes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of one process."""
    pytest.importorskip("jax")
    path = tmp_path_factory.mktemp("alone") / "result.npz"
    printed, failed = outputs([start(path, ALL)])
    assert not failed, printed
    found = dict(np.load(path))
    for name in ("train", "zero", "deep"):
        losses = [float(found[f"{name}/out{i}.0"]) for i in range(3)]
        assert losses[0] > losses[2] and len(set(losses)) == 3
    assert found["train/each/params['w1']"].shape == (REPLICAS, 6, 4)
    return found


def has_collectives():
    jax = pytest.importorskip("jax")
    return hasattr(jax.config, "jax_cpu_collectives_implementation")


def check_texts(found, alone, first, local):
    """The text gives what one process gives, in the parts of its replicas; the rest is zero, or what it was."""
    axes = {"dp": 2, "tp": 2}
    before = {**{f"params_{name}": x for name, x in PARAMS.items()}, "out_0": np.zeros(()), "out_1": np.zeros((8, 6))}
    for each in (0, 1):
        for name, cut in (("out_0", ()), ("out_1", (("dp",),)), ("params_w1", ((), ("tp",))), ("params_w2", (("tp",),)),
                          ("params_b", ())):
            got, want = found[f"text{each}/{name}"], before[name].copy()
            own = own_part(np.arange(want.size).reshape(want.shape), cut, axes, first, local)
            want.flat[own] = alone[f"text{each}/{name}"].flat[own]
            np.testing.assert_allclose(got, want, 1e-5, 1e-5, err_msg=name)


@pytest.mark.parametrize("processes, devices, names", [(2, 1, ALL), (2, 2, "zero,line"), (4, 1, "text,train,line")])
def test_several_processes_give_what_one_gives(tmp_path, alone, processes, devices, names):
    if not has_collectives():
        pytest.skip("this JAX has no collectives between processes on CPUs")
    port, paths = free_port(), [tmp_path / f"{i}.npz" for i in range(processes)]
    printed, failed = outputs([start(path, names, f"127.0.0.1:{port}", processes, i, devices=devices)
                               for i, path in enumerate(paths)])
    assert not failed, printed
    cuts, local, parts = json.loads(str(alone["cuts"])), REPLICAS // processes, 0
    assert {"train/out0.1", "zero/state.4", "deep/state.1", "line/out1.2"} <= set(cuts)
    wanted = {name: x for name, x in alone.items() if re.match(r"\w*?(?=\d?/)", name + "/")[0] in names.split(",")}
    for i, path in enumerate(paths):
        found, first = dict(np.load(path)), i * local
        assert found.keys() == {*wanted, "cuts"} and len(found) > 10
        for name, want in wanted.items():
            if name in cuts:
                axes, cut = cuts[name]
                want = own_part(want, cut, axes, first, local)
                parts += want.shape != alone[name].shape
            elif "/each/" in name:
                want = want[first:first + local]
            elif name.startswith("text") or want.dtype.kind == "U":
                continue
            assert (found[name].shape, found[name].dtype) == (want.shape, want.dtype), name
            np.testing.assert_allclose(found[name], want, 1e-5, 1e-5, err_msg=name)
        if "text" in names:
            check_texts(found, alone, first, local)
        assert str(found["line/repr"]).endswith(f"; instance {i} of {processes}, " + (
            f"replica {first} of 4)" if local == 1 else f"replicas {first} to {first + local - 1} of 4)"))
    assert parts > 5 * processes


def test_the_page_shows_a_script_that_runs(tmp_path):
    page = (ROOT / "docs" / "shard.md").read_text(encoding="utf-8")
    text, = re.findall(r"```py\n(.*?)```", page, re.S)
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    of_two, alone = re.findall(r"`([^`]+ \(8, 3\) True)`", " ".join(page.split()))
    printed, failed = outputs([start(script=script)])
    assert not failed and alone in printed.splitlines(), printed
    if not has_collectives():
        pytest.skip("this JAX has no collectives between processes on CPUs")
    port = free_port()
    printed, failed = outputs([start(f"127.0.0.1:{port}", 2, i, script=script) for i in range(2)])
    assert not failed and of_two in printed.splitlines(), printed
    assert of_two.replace("instance 1", "instance 0").replace("2 to 3", "0 to 1") in printed.splitlines()


def test_cpus_without_collectives(tmp_path):
    if has_collectives():
        pytest.skip("this JAX has collectives between processes on CPUs")
    port = free_port()
    printed, failed = outputs([start(tmp_path / f"{i}.npz", "line", f"127.0.0.1:{port}", 2, i) for i in range(2)])
    assert failed and printed.count("has no collectives between processes on CPUs") == 2, printed
