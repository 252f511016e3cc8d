"""Streams with several transfers, and remote memory."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops = popxl.ops
f32, i32, u32 = popxl.float32, popxl.int32, popxl.uint32
A = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
# What these tests look at is the program of the NumPy engine.
numpy_only = pytest.mark.parametrize("engine", ["numpy"], indirect=True)
pytestmark = pytest.mark.usefixtures("engine")


# Streams


def loaded(count, transfers, data, steps=None):
    """What the loads of a run give: `count` of them, or one in each of `steps` steps of a loop before."""
    ir = popxl.Ir()
    ir.num_host_transfers = transfers
    with ir.main_graph:
        stream, out = popxl.h2d_stream((), f32), popxl.d2h_stream((), f32)

        def body():
            ops.host_store(out, ops.host_load(stream))

        if steps is not None:
            ops.repeat(ir.create_graph(body), steps)
        for _ in range(count):
            body()
    data = np.asarray(data, np.float32)
    with popxl.Session(ir) as session:
        first, second = session.run({stream: data}), session.run({stream: data})
    np.testing.assert_array_equal(first[out], second[out])  # each run starts at the beginning
    return first[out].tolist()


def test_each_load_takes_the_next_element():
    assert loaded(3, 3, [1, 2, 3]) == [1, 2, 3]


def test_loads_share_the_cursor_with_those_of_loops():
    assert loaded(2, 5, [1, 2, 3, 4, 5], steps=3) == [1, 2, 3, 4, 5]


def test_one_transfer_is_loaded_again():
    assert loaded(1, 1, 7, steps=2) == 7


def test_the_cursor_goes_back_at_the_end_of_the_array():
    assert loaded(5, 5, [1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5]
    assert loaded(3, 2, [1, 2]) == [1, 2]
    assert loaded(3, 2, [1, 2, 3]) == [3, 2]  # the third store overwrites the first


# Remote memory


def remote_program(offset=None, entries=3):
    """Loads an entry and stores twice its value back."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2, 3), f32, entries)
        variables = [popxl.remote_variable(A * (i + 1), buffer, i, name=f"w{i}") for i in range(entries)]
        stream, out = popxl.h2d_stream((), i32), popxl.d2h_stream((2, 3), f32)
        index = ops.host_load(stream)
        at = index if offset is None else offset
        value = ops.remote_load(buffer, at)
        ops.remote_store(buffer, at, value * popxl.constant(2.0))
        ops.host_store(out, value)
    return ir, stream, out, variables


@pytest.mark.parametrize("offset", [None, 1])
def test_entries(offset):
    ir, stream, out, variables = remote_program(offset)
    with popxl.Session(ir) as session:
        for k in (1, 2, 4):
            np.testing.assert_array_equal(session.run({stream: 1})[out], 2 * k * A)
        state = [session.get_tensor_data(t) for t in variables]
        np.testing.assert_array_equal(state, [A, 16 * A, 3 * A])
        session.write_variable_data(variables[1], A)
        np.testing.assert_array_equal(session.run({stream: 1})[out], A)


@pytest.mark.parametrize("offset", [-1, 3, 2**31 - 1])
def test_an_offset_that_is_out_of_range(offset):
    ir, stream, out, variables = remote_program()
    with popxl.Session(ir) as session:
        text = rf"remote_load: the offset {offset} is out of range for RemoteBuffer.*, which has the entries 0 to 2"
        with pytest.raises(popart_exception, match=text):
            session.run({stream: np.int32(offset)})
        np.testing.assert_array_equal(session.run({stream: 2})[out], 3 * A)  # the next run works


@pytest.mark.parametrize("act", [ops.remote_store, ops.remote_load_])
def test_a_static_offset_that_is_out_of_range(act):
    ir = popxl.Ir()
    with ir.main_graph:
        act(popxl.remote_buffer((2,), f32, 2), 2, popxl.variable(np.zeros(2, np.float32)))
    with popxl.Session(ir) as session:
        with pytest.raises(popart_exception, match=f"{act.__name__}: the offset 2 is out of range for RemoteBuffer"):
            session.run()


def test_a_branch_that_is_not_taken_checks_nothing():
    ir = popxl.Ir()
    with ir.main_graph:
        buffer, x = popxl.remote_buffer((2,), f32, 2), popxl.variable(np.ones(2, np.float32))
        condition = popxl.variable(False)
        bad = ir.create_graph(lambda x: ops.remote_load(buffer, 5) + x, x)
        good = ir.create_graph(lambda x: x * popxl.constant(3.0), x)
        (y,) = ops.conditional(condition, bad, good, [x], [x])
        out = popxl.d2h_stream((2,), f32)
        ops.host_store(out, y)
    with popxl.Session(ir) as session:
        np.testing.assert_array_equal(session.run()[out], [3, 3])


def test_a_load_before_a_store_keeps_the_old_value():
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2, 3), f32, 2)
        popxl.remote_variable(A, buffer, 0)

        def step(i):
            old = ops.remote_load(buffer, i)
            ops.remote_store(buffer, i, old + popxl.constant(1.0))
            return [old]

        graph = ir.create_graph(step, popxl.TensorSpec((), u32))
        outs = [popxl.d2h_stream((2, 3), f32) for _ in range(3)]
        (first,), (second,) = ops.call(graph, 0), ops.call(graph, 0)
        new = ops.remote_load_(buffer, 0, ops.init((2, 3), f32))
        for out, t in zip(outs, (first, second, new)):
            ops.host_store(out, t)
    with popxl.Session(ir) as session:
        results = session.run()
    np.testing.assert_array_equal([results[out] for out in outs], [A, A + 1, A + 2])


def test_a_graph_that_only_stores():
    ir = popxl.Ir()
    with ir.main_graph:
        buffer, x = popxl.remote_buffer((2, 3), f32), popxl.variable(A, name="x")
        store = ir.create_graph(lambda x: ops.remote_store(buffer, 0, x), x)
        outer = ir.create_graph(lambda x: (ops.call(store, x), None)[1], x)
        ops.call(outer, x)
        out = popxl.d2h_stream((2, 3), f32)
        ops.host_store(out, ops.remote_load(buffer, 0))
    with popxl.Session(ir) as session:
        np.testing.assert_array_equal(session.run()[out], A)


def test_a_load_into_a_variable_that_fails():
    """The state is written at the end, but what can fail comes before."""
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2, 3), f32)
        a, b, i = popxl.variable(A, name="a"), popxl.variable(A, name="b"), popxl.variable(7, name="i")
        a += b
        ops.remote_load_(buffer, i, b)
    with popxl.Session(ir) as session:
        with pytest.raises(popart_exception, match="remote_load_: the offset 7 is out of range"):
            session.run()
        for t in (a, b):
            np.testing.assert_array_equal(session._executable.read(t), A)


@numpy_only
def test_a_scalar_in_float8_and_a_large_buffer():
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((), popxl.float8_143, 2**30)  # entries that are never written take no memory
        x = popxl.variable(np.float32(0.75), popxl.float8_143, name="x")
        y = popxl.variable(np.float32(0), popxl.float8_143, name="y")
        ops.remote_store(buffer, 2**30 - 1, x)
        index = popxl.variable(2**30 - 1, name="i")
        ops.var_updates.copy_var_update_(y, ops.remote_load(buffer, index))
    with popxl.Session(ir) as session:
        session.run()
        assert session.get_tensor_data(y).tobytes() == b"\x3c"


def test_two_transfers_in_a_program_of_replicas():
    ir = popxl.Ir(2)
    ir.num_host_transfers = 3
    with ir.main_graph:
        stream, out = popxl.h2d_stream((2,), f32), popxl.d2h_stream((2,), f32)

        def body(total):
            total = total + ops.host_load(stream)
            ops.host_store(out, total)
            return [total]

        zero = popxl.constant(np.zeros(2, np.float32))
        ops.repeat(ir.create_graph(body, zero), 3, zero)
    data = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    with popxl.Session(ir) as session:
        np.testing.assert_array_equal(session.run({stream: data})[out], np.cumsum(data, 0))
