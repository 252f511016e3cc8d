"""Conditions that differ between replicas: each replica takes its own branch, on both engines."""
import inspect

import numpy as np
import pytest
from interpreter import Interpreter

import popfn.host as popxl
from popfn.host import _placement
from popfn.host.errors import popart_exception

ops, collectives, updates = popxl.ops, popxl.ops.collectives, popxl.ops.var_updates
f32, i32, u32, boolean = popxl.float32, popxl.int32, popxl.uint32, popxl.bool
RNG = np.random.default_rng(3)
pytestmark = pytest.mark.usefixtures("engine")


def floats(*shape):
    return RNG.integers(-9, 10, shape).astype(np.float32)


class Run:
    """Two runs of a program for replicas of `body(ir, *tensors)`: a (replicas, ...) array comes from a stream.

    `results` are the outputs of the second run; all outputs and the state are compared with the naive interpreter's.
    """

    def __init__(self, replicas, body, *arrays):
        self.ir = ir = popxl.Ir(replicas)
        with ir.main_graph, popxl.in_sequence():
            inputs, tensors = {}, []
            for array in arrays:
                stream = popxl.h2d_stream(array.shape[1:], popxl.dtype.as_dtype(array.dtype))
                inputs[stream] = array
                tensors.append(ops.host_load(stream))
            outs = []
            for t in body(ir, *tensors):
                outs.append(popxl.d2h_stream(t.shape, t.dtype))
                ops.host_store(outs[-1], t)
        with popxl.Session(ir) as session:
            naive = Interpreter(ir)
            for _ in range(2):
                made = session.create_host_outputs()
                found, wanted = [{s: np.full_like(a, 55) for s, a in made.items()} for _ in "12"]
                session.run_with_outputs(inputs, found)
                split = {s: session._transfers("input", s, np.asarray(a)) for s, a in inputs.items()}
                naive.run(split, {s: session._transfers("output", s, a) for s, a in wanted.items()})
                for stream in wanted:
                    np.testing.assert_array_equal(found[stream], wanted[stream], str(stream))
            self.results = [found[out] for out in outs]
            self.state = {}
            for t in session._variables:
                holder = _placement.holder(t)
                self.state[t.name] = _placement._rows(t, session._executable.read(holder))
                np.testing.assert_array_equal(self.state[t.name], naive.read(holder), str(t))


CONDITIONS = [[1, 0], [0, 1], [1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0, 0], [0, 1] * 3, [1, 1, 0, 0, 1, 0, 1], [1, 0] * 4]
EQUAL = [[1, 1], [0, 0, 0]]


def conditions(rows):
    return np.array(rows, bool)


@pytest.mark.parametrize("rows", CONDITIONS + EQUAL)
def test_values(rows):
    def body(ir, c, x):
        up, down = ir.create_graph(lambda x: [x + 1.0, x], x), ir.create_graph(lambda x: [x * x, x - 5.0], x)
        return ops.conditional(c, up, down, [x], [x])

    x = floats(len(rows), 2, 3)
    c = conditions(rows).reshape(-1, 1, 1)
    first, second = Run(len(rows), body, conditions(rows), x).results
    np.testing.assert_array_equal(first, np.where(c, x + 1, x * x))
    np.testing.assert_array_equal(second, np.where(c, x, x - 5))


def test_equal_values_become_different():
    """Nothing but the condition differs."""
    def body(ir, c):
        x = popxl.variable(np.arange(3, dtype=np.float32), name="x")
        one, other = ir.create_graph(lambda x: x + 1.0, x), ir.create_graph(lambda: popxl.constant([7.0, 8.0, 9.0]))
        (y,) = ops.conditional(c, one, other, [x], [])
        updates.copy_var_update_(x, y)
        return [y]

    run = Run(3, body, conditions([[1], [0], [1]]))
    assert run.results[0].tolist() == [[2, 3, 4], [7, 8, 9], [2, 3, 4]]
    assert run.state["x"].tolist() == run.results[0].tolist()


def test_branches_that_give_back_and_overwrite_what_they_get():
    def body(ir, c, x, y):
        def first(x, y):
            ops.add_(x, y)
            return [y, x]

        return [*ops.conditional(c, ir.create_graph(first, x, y), ir.create_graph(lambda x, y: [x, y], x, y),
                                 [x, y], [x, y]), x, y]

    Run(4, body, conditions([0, 1, 1, 0]), floats(4, 3), floats(4, 3))


@pytest.mark.parametrize("rows", CONDITIONS)
def test_nested(rows):
    """A varying condition, one that is equal, and another varying one, in each other; calls and loops between them."""
    count = len(rows)

    def body(ir, c, d, x):
        def innermost(x):
            return ops.repeat(ir.create_graph(lambda x: x * 2.0 + 1.0, x), 3, x)

        def inner(d, x):
            return ops.conditional(d, ir.create_graph(innermost, x), ir.create_graph(lambda x: x - 1.0, x), [x], [x])

        def equal(d, x):
            branches = ir.create_graph(inner, d, x), ir.create_graph(lambda d, x: x, d, x)
            return ops.conditional(popxl.constant(True), *branches, [d, x], [d, x])

        def outer(d, x):
            return ops.call(ir.create_graph(equal, d, x), d, x)

        def loop(c, d, x):
            return [c, d, *ops.conditional(c, ir.create_graph(outer, d, x), ir.create_graph(
                lambda d, x: x + 100.0, d, x), [d, x], [d, x])]

        return ops.repeat(ir.create_graph(loop, c, d, x), 2, c, d, x)[2:]

    c, d, x = conditions(rows), np.arange(count) % 3 == 0, floats(count, 2)

    def step(x):
        return np.where(c[:, None], np.where(d[:, None], 8 * x + 7, x - 1), x + 100)

    np.testing.assert_array_equal(Run(count, body, c, d, x).results[0], step(step(x)))


# Side effects


@pytest.mark.parametrize("rows", CONDITIONS)
@pytest.mark.parametrize("offset", [1, None], ids=["constant", "tensor"])
def test_a_store_in_a_branch(rows, offset):
    """To remote memory, of what is equal and of what is not, at places that are equal and that are not."""
    count = len(rows)

    def body(ir, c, i, x):
        buffer = popxl.remote_buffer((2,), f32, 3)
        for k in range(3):
            popxl.remote_variable(np.full(2, k, np.float32), buffer, k, name=f"r{k}")

        def store(i, x):
            ops.remote_store(buffer, i if offset is None else offset, x)
            ops.remote_store(buffer, 2, popxl.constant([5.0, 6.0]))

        def other(i, x):
            ops.remote_store(buffer, 0, x + 20.0)

        ops.conditional(c, ir.create_graph(store, i, x), ir.create_graph(other, i, x), [i, x], [i, x])
        return []

    places = np.where(rows, np.arange(count) % 2, 99).astype(np.int32)  # 99 is out of range: nobody looks there
    x = floats(count, 2)
    state = Run(count, body, conditions(rows), places, x).state
    for k, taken in enumerate(rows):
        wanted = [[0, 0], [1, 1], [2, 2]]
        if taken:
            wanted[places[k] if offset is None else offset] = x[k].tolist()
            wanted[2] = [5, 6]
        else:
            wanted[0] = (x[k] + 20).tolist()
        assert [state[f"r{e}"][k].tolist() for e in range(3)] == wanted


@pytest.mark.parametrize("into", [False, True])
def test_a_load_in_a_branch(into):
    def body(ir, c, i, x):
        buffer = popxl.remote_buffer((2,), f32, 3)
        group = ir.replica_grouping(group_size=1)
        for k in range(3):
            popxl.remote_variable(floats(4, 2), buffer, k, name=f"r{k}", replica_grouping=group)

        def load(i, x):
            return ops.remote_load_(buffer, i, ops.identity(x)) if into else ops.remote_load(buffer, i) + x

        return ops.conditional(c, ir.create_graph(load, i, x), ir.create_graph(lambda x: x, x), [i, x], [x])

    Run(4, body, conditions([1, 0, 1, 0]), np.array([2, -1, 0, 2**31 - 1], np.int32), floats(4, 2))


@pytest.mark.parametrize("kind", ["remote_load", "remote_store"])
def test_an_offset_that_is_out_of_range_in_the_branch_that_a_replica_takes(kind):
    def body(ir, c, i, x):
        buffer = popxl.remote_buffer((2,), f32, 3)

        def use(i, x):
            return ops.remote_load(buffer, i) if kind == "remote_load" else ops.remote_store(buffer, i, x) or x

        places.append(f"{__file__}:{inspect.getsourcelines(use)[1] + 1}")

        return ops.conditional(c, ir.create_graph(use, i, x), ir.create_graph(lambda x: x, x), [i, x], [x])

    places = []
    with pytest.raises(popart_exception, match=f"{kind}: the offset 7 is out of range for RemoteBuffer") as e:
        Run(3, body, conditions([0, 1, 1]), np.array([9, 0, 7], np.int32), floats(3, 2))
    assert str(e.value).endswith(f", at {places[0]}.")


@pytest.mark.parametrize("transfers", [1, 3])
@pytest.mark.parametrize("dtype", [f32, popxl.float8_143], ids=str)
def test_streams_in_a_branch(transfers, dtype):
    """Each replica has a place of its own in a stream: those that take the branch move on."""
    ir = popxl.Ir(3)
    ir.num_host_transfers = transfers
    with ir.main_graph, popxl.in_sequence():
        c, load = popxl.h2d_stream((), boolean), popxl.h2d_stream((2,), dtype, name="load")
        store, other = popxl.d2h_stream((2,), dtype, name="store"), popxl.d2h_stream((2,), dtype, name="other")

        def taken():
            ops.host_store(store, ops.host_load(load))
            return []

        def body():
            ops.conditional(ops.host_load(c), ir.create_graph(taken), ir.create_graph(lambda: []))
            return []

        ops.repeat(ir.create_graph(body), transfers)
        ops.host_store(other, ops.host_load(load))
    rows = conditions([[0, 1, 1], [0, 1, 0], [1, 1, 0]])[:transfers]
    data = np.arange(transfers * 6, dtype=np.uint8).reshape(transfers, 3, 2) + 1
    data = data.astype(np.float32) if dtype is f32 else data.view(dtype.as_numpy())
    with popxl.Session(ir) as session:
        for _ in range(2):
            outputs = {s: np.zeros_like(a) for s, a in session.create_host_outputs().items()}
            lead = slice(None) if transfers > 1 else 0
            session.run_with_outputs({c: rows[lead], load: data[lead]}, outputs)
            stored, last = outputs[store].reshape(data.shape), outputs[other].reshape(data.shape)
            for replica, count in enumerate(rows.sum(0)):
                assert stored[:count, replica].tobytes() == data[:count, replica].tobytes()
                assert not stored[count:, replica].tobytes().strip(b"\0")
                assert last[0, replica].tobytes() == data[count % transfers, replica].tobytes()


def test_an_equal_value_is_stored_where_the_branch_is_taken():
    def body(ir, c):
        out = popxl.d2h_stream((2,), f32, name="out")
        ops.conditional(c, ir.create_graph(lambda: ops.host_store(out, popxl.constant([1.0, 2.0]))),
                        ir.create_graph(lambda: None))
        return []

    Run(4, body, conditions([0, 1, 0, 1]))


def test_prints(capfd):
    ir = popxl.Ir(4)
    with ir.main_graph, popxl.in_sequence():
        c, d, x = [popxl.h2d_stream((), dtype) for dtype in (boolean, boolean, f32)]
        c, d, x = map(ops.host_load, (c, d, x))

        def inner(x):
            return ops.print_tensor(x, "inner")

        def taken(d, x):
            ops.print_tensor(x, "taken")
            ops.print_tensor(popxl.constant(5.0), "once")
            graph = ir.create_graph(inner, x)
            (y,) = ops.call(graph, x)
            return ops.conditional(d, graph, ir.create_graph(lambda x: x, x), [y], [x])

        def other(x):
            return ops.print_tensor(x, "other")

        (y,) = ops.conditional(c, ir.create_graph(taken, d, x), ir.create_graph(other, x), [d, x], [x])
        ops.print_tensor(y, "all")
        load = [s for s in ir.get_all_h2d_streams() if s.dtype is f32][0]
        flags = [op.attrs["stream"] for op in ir.main_graph.ops if op.kind == "host_load"][:2]
    with popxl.Session(ir) as session:
        session.run({flags[0]: conditions([1, 0, 1, 1]), flags[1]: conditions([1, 1, 0, 1]),
                     load: np.arange(4, dtype=np.float32)})
    lines = capfd.readouterr().err.split()
    found = {}
    for title, value in zip(lines[::2], lines[1::2]):
        found.setdefault(title.strip(":"), []).append(float(value))
    assert found == {"taken": [0, 2, 3], "once": [5], "inner": [0, 2, 3, 0, 3], "other": [1], "all": [0, 1, 2, 3]}


# Collectives

KINDS = {
    "replicated_all_reduce": lambda x: collectives.replicated_all_reduce(x),
    "replicated_all_reduce_": lambda x: collectives.replicated_all_reduce_(ops.identity(x)),
    "replicated_all_gather": lambda x: ops.sum(collectives.replicated_all_gather(x, 0), 0, keepdims=False) + x,
    "replicated_reduce_scatter": lambda x: x + ops.sum(collectives.replicated_reduce_scatter(x)),
    "replica_sharded_slice": lambda x: x + ops.sum(collectives.replica_sharded_slice(x)),
    "replicated_slice": lambda x: x + collectives.replicated_slice(ops.concat([x] * 3, 0)),
}


@pytest.mark.parametrize("depth", ["branch", "call", "loop", "branch in a branch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_in_a_branch_needs_equal_conditions(kind, depth):
    def body(ir, c, x):
        def taken(x):
            return KINDS[kind](x)

        graph = ir.create_graph(taken, x)
        outer = {
            "branch": None,
            "call": lambda x: ops.call(graph, x),
            "loop": lambda x: ops.repeat(graph, 2, x),
            "branch in a branch": lambda x: ops.conditional(popxl.constant(True), graph, graph, [x], [x]),
        }[depth]
        branch = graph if outer is None else ir.create_graph(outer, x)
        return [*ops.conditional(c, branch, ir.create_graph(lambda x: x, x), [x], [x]), x]

    x = floats(3, 1)
    for rows in ([1, 1, 1], [0, 0, 0]):
        Run(3, body, conditions(rows), x)
    text = (
        rf"^conditional: the condition .* differs between the replicas, it is true on 1 of 3, and a branch runs "
        rf"{kind}, in which all replicas take part. Move that out of the branches, or make the condition equal"
    )
    with pytest.raises(popart_exception, match=text) as e:
        Run(3, body, conditions([0, 1, 0]), x)
    last = inspect.getsourcelines(body)[1] + len(inspect.getsourcelines(body)[0]) - 1
    assert str(e.value).endswith(f" The conditional is at {__file__}:{last}.")


def test_a_run_that_is_refused_changes_nothing():
    ir = popxl.Ir(2)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((), f32)
        far = popxl.remote_variable(np.float32(5), buffer, name="far")
        near = popxl.variable(np.float32(1), name="near")
        stream = popxl.h2d_stream((), boolean)
        near += 1.0
        ops.remote_store(buffer, 0, near)
        branches = ir.create_graph(KINDS["replicated_all_reduce"], near), ir.create_graph(lambda x: x, near)
        updates.copy_var_update_(near, *ops.conditional(ops.host_load(stream), *branches, [near], [near]))
    with popxl.Session(ir) as session:
        with pytest.raises(popart_exception, match="differs between the replicas"):
            session.run({stream: conditions([1, 0])})
        assert [np.unique(session._executable.read(t)).tolist() for t in (near, far)] == [[1], [5]]
        session.run({stream: conditions([1, 1])})
        assert [np.unique(session._executable.read(t)).tolist() for t in (near, far)] == [[4], [2]]


def test_a_remote_variable_of_no_axes():
    ir = popxl.Ir(2)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((), f32, 2)
        v = popxl.remote_variable(np.float32(5), buffer, 1, name="v")
        ops.remote_store(buffer, 1, ops.remote_load(buffer, 1) + 1.0)
    with popxl.Session(ir) as session:
        session.run()
        assert session.get_tensor_data(v) == 6
        session.write_variable_data(v, np.array(9, np.float32))
        session.run()
        assert session.get_tensor_data(v) == 10
