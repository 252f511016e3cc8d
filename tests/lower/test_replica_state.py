"""State read from each replica: its own part or copy, also where copies differ that ought to be equal."""
from unittest import mock

import numpy as np
import pytest
from test_text import module

import popfn as pf
from popfn import P
from popfn.errors import ArgumentError, InputError

MESH = pf.Mesh(dp=2, tp=2)
f32 = np.float32
rng = np.random.default_rng(0)
VALUES = {"rows": rng.normal(size=(4, 6)).astype(f32), "both": rng.normal(size=(4, 6)).astype(f32),
          "minor": rng.normal(size=(8,)).astype(f32), "whole": rng.normal(size=(2, 3)).astype(f32),
          "scalar": f32(2), "halves": rng.normal(size=(2, 4)).astype(np.float16), "count": np.int32(3),
          "empty": np.zeros((0, 4), f32)}
CUT = {"rows": P("dp"), "both": P("tp", "dp"), "minor": P(("tp", "dp")), "whole": P(), "scalar": P(),
       "halves": P(None, "tp"), "count": P(), "empty": P(None, "tp")}
#: What replica (i, j) has of each, written out.
PARTS = {
    "rows": lambda x, i, j: x[2 * i:2 * i + 2], "both": lambda x, i, j: x[2 * j:2 * j + 2, 3 * i:3 * i + 3],
    "minor": lambda x, i, j: x[4 * j + 2 * i:4 * j + 2 * i + 2], "whole": lambda x, i, j: x,
    "scalar": lambda x, i, j: x, "halves": lambda x, i, j: x[:, 2 * j:2 * j + 2], "count": lambda x, i, j: x,
    "empty": lambda x, i, j: x[:, 2 * j:2 * j + 2]}


def parts(name, x):
    return np.stack([PARTS[name](np.asarray(x), i, j) for i in range(2) for j in range(2)])


def double(state):
    return pf.tree.map(lambda x: x + x, state), None


def program(far=False, f=double, **options):
    state = pf.tree.map(lambda x: pf.spec(x.shape, x.dtype), VALUES)
    if far:
        state, near = pf.tree.map(pf.remote, state), f

        def f(state):
            return pf.tree.map(pf.remote, near(pf.tree.map(pf.load, state))[0]), None
    return pf.lower(pf.shard(f, MESH, (CUT,), (CUT, P())), state, state=0, target="host", **options)


def check(session, values):
    for name, x in values.items():
        got = session.get_replica_data(f"state['{name}']")
        want = parts(name, x)
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        np.testing.assert_array_equal(got, want, err_msg=name)
        np.testing.assert_array_equal(session.state[name], x, err_msg=name)
        np.testing.assert_array_equal(session.get_variable_data(f"state['{name}']"), x, err_msg=name)


@pytest.mark.parametrize("engine", ["numpy", "xla"])
@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
def test_each_replica_has_its_part(far, engine):
    if engine == "xla":
        pytest.importorskip("jax")
    with mock.patch.dict("os.environ", POPFN_ENGINE=engine):
        session = pf.Session(program(far, replica_state=True), state=VALUES)
    check(session, VALUES)
    twice = pf.tree.map(lambda x: np.asarray(2 * x, x.dtype), VALUES)
    with session:
        check(session, VALUES)
        session.run()
        check(session, twice)
        session.state = VALUES
        check(session, VALUES)
        session.run()
        new = np.full_like(VALUES["both"], 7)
        session.write_variable_data("state['both']", new)
        check(session, {**twice, "both": new})
    check(session, {**twice, "both": new})


@pytest.mark.parametrize("engine", ["numpy", "xla"])
@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
def test_replicas_that_differ_are_seen(far, engine):
    """Replicas are made to differ beneath the session, by PopXL's own way to write what each of them has."""
    if engine == "xla":
        pytest.importorskip("jax")
    made = program(far, replica_state=True)
    with mock.patch.dict("os.environ", POPFN_ENGINE=engine):
        session = pf.Session(made, state=VALUES)
    own = {name: rng.normal(size=parts(name, VALUES[name]).shape).astype(f32) for name in ("whole", "rows", "scalar")}
    with session:
        for name, rows in own.items():
            variables = made.variables[f"state['{name}']"]
            variables = variables if far else (variables,)
            session._px.write_variables_data(
                {v: np.ascontiguousarray(rows.reshape(4, len(variables), *v.shape)[:, i])
                 for i, v in enumerate(variables)})
        session.run()
        for name, rows in own.items():
            np.testing.assert_array_equal(session.get_replica_data(f"state['{name}']"), 2 * rows)
        # The state has the values of the first replicas with the same part: of tp, or of all.
        np.testing.assert_array_equal(session.state["whole"], 2 * own["whole"][0])
        np.testing.assert_array_equal(session.state["scalar"], 2 * own["scalar"][0])
        np.testing.assert_array_equal(session.state["rows"], np.concatenate([2 * own["rows"][0], 2 * own["rows"][2]]))
        check(session, {"both": 2 * VALUES["both"]})


@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
def test_without_a_mesh_there_is_one(far):
    state = {"w": np.arange(6, dtype=f32).reshape(2, 3), "n": np.int32(3), "kept": f32(4),
             "empty": np.zeros((0, 2), f32)}

    def f(s):
        new = {**s, "w": s["w"] * 2, "n": s["n"] + 1}
        return (pf.tree.map(pf.remote, new) if far else new), None
    made = pf.lower(f, pf.tree.map(pf.remote, state) if far else state, state=0, target="host", replica_state=True)
    with pf.Session(made, state=state) as session:
        session.run()
        for name, want in {**state, "w": 2 * state["w"], "n": np.int32(4)}.items():
            got = session.get_replica_data(f"s['{name}']")
            assert got.shape == (1, *want.shape) and got.dtype == want.dtype
            np.testing.assert_array_equal(got[0], want)


def test_state_that_nothing_touches():
    """It stays on the host, but a replica would have its part."""
    made = program(f=lambda state: ({**state, "whole": state["whole"] * 2}, None), replica_state=True)
    assert set(made.variables) == {"state['whole']"}
    with pf.Session(made, state=VALUES) as session:
        session.run()
        check(session, {**VALUES, "whole": 2 * VALUES["whole"]})
        session.get_replica_data("state['both']")[...] = 0  # it is a copy
        check(session, {"both": VALUES["both"]})


def test_axes_of_one_replica():
    mesh = pf.Mesh(one=1, dp=3)
    cut = {"a": P("one", "dp"), "b": P("one")}
    made = pf.lower(pf.shard(double, mesh, (cut,), (cut, P())), {"a": pf.spec((1, 3)), "b": pf.spec(2)}, state=0,
                    target="host", replica_state=True)
    with pf.Session(made, state={"a": f32([[1, 2, 3]]), "b": f32([4, 5])}) as session:
        session.run()
        np.testing.assert_array_equal(session.get_replica_data("state['a']"), [[[2]], [[4]], [[6]]])
        np.testing.assert_array_equal(session.get_replica_data("state['b']"), [[8, 10]] * 3)


@pytest.mark.parametrize("dtype", [pf.float8_143, pf.float8_152])
def test_float8(dtype):
    x = np.arange(4, dtype=f32).astype(dtype)
    f = pf.shard(lambda w, v: (v, w), MESH, (P("dp"), P("dp")), (P("dp"), P("dp")))
    made = pf.lower(f, pf.spec(4, dtype), pf.spec(4, dtype), state=0, target="host", replica_state=True)
    with pf.Session(made, state=x) as session:
        session.run(x[::-1].copy())
        got = session.get_replica_data("w")
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.astype(f32), [[3, 2], [3, 2], [1, 0], [1, 0]])


def test_it_is_asked_for():
    made = program()
    session = pf.Session(made, state=VALUES)
    with pytest.raises(InputError) as e:
        session.get_replica_data("state['rows']")
    first, at, *rest = str(e.value).split("\n  ")
    assert first == "get_replica_data: double was lowered without what it takes to read state['rows'] from each replica"
    assert "test_replica_state.py" in at and rest == ["way out: pf.lower(..., replica_state=True)"]
    assert made.variables["state['rows']"].replica_grouping.num_groups == 2
    asked = program(replica_state=True)
    assert {v.replica_grouping.num_groups for v in asked.variables.values()} == {4}
    for each in (made, asked):
        with pytest.raises(InputError, match=r"double has no state 'rows'\n.*\n  its state: state\['"):
            pf.Session(each, state=VALUES).get_replica_data("rows")
    with pytest.raises(ArgumentError, match="lower: replica_state is True or False, got 'all'"):
        program(replica_state="all")


@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
def test_the_text_reads_and_writes_all(far):
    made = program(far, replica_state=True)
    written = {f"state_{name}": x for name, x in VALUES.items() if x.size}
    state = dict(written)
    module(made.as_text())["main"]({}, state)
    assert "ir.replica_grouping(1, 1)" in made.as_text() and state.keys() == written.keys()
    for name, x in written.items():
        np.testing.assert_array_equal(state[name], 2 * x)
