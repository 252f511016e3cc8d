"""Replicas: what is equal on all of them is computed once, the rest with a leading axis or one after the other."""
import numpy as np
import pytest
from interpreter import Interpreter

import popfn.host as popxl
from popfn.host import _placement
from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.replicas import Expansion
from popfn.host.engine.variance import Variance
from popfn.host.errors import popart_exception

ops, collectives = popxl.ops, popxl.ops.collectives
updates = ops.var_updates
f32, f16, i32 = popxl.float32, popxl.float16, popxl.int32
RNG = np.random.default_rng(0)
# What these tests look at is the program of the NumPy engine.
numpy_only = pytest.mark.parametrize("engine", ["numpy"], indirect=True)
pytestmark = pytest.mark.usefixtures("engine")


def number(value):
    return popxl.constant(value, f32)


def half(values):
    return popxl.constant(values, f16)


class Run:
    """A program for replicas of a function of host arrays: a (replicas, ...) array comes from a stream.

    `results` are the outputs on all replicas; they are compared with those of the naive interpreter.
    """

    def __init__(self, replicas, body, *arrays, ulps=None):
        self.ir = ir = popxl.Ir(replicas)
        with ir.main_graph:
            inputs = {}
            tensors = []
            for array in arrays:
                stream = popxl.h2d_stream(array.shape[1:], popxl.dtype.as_dtype(array.dtype))
                inputs[stream] = array
                tensors.append(ops.host_load(stream))
            outs = []
            for t in body(ir, *tensors):
                outs.append(popxl.d2h_stream(t.shape, t.dtype))
                ops.host_store(outs[-1], t)
        with popxl.Session(ir) as session:
            self.source = session._executable.source
            naive, wanted = Interpreter(ir), session.create_host_outputs()
            results = session.run(inputs)
            self.state = {t: session.get_tensor_data(t) for t in session._variables}
            with np.errstate(all="ignore"):
                naive.run({s: [a] for s, a in inputs.items()}, {s: [a] for s, a in wanted.items()})
            self.results = [results[out] for out in outs]
            for out in outs:
                compare(results[out], wanted[out], ulps, self.source)
            for t in session._variables:
                holder = _placement.holder(t)
                compare(_placement._rows(t, session._executable.read(holder)), naive.read(holder), ulps, self.source)


def compare(found, wanted, ulps, source):
    if ulps is None or wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted, source)
    else:
        tolerance = ulps * np.finfo(wanted.dtype).eps
        np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=source)


def random(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


# What varies


@numpy_only
def test_what_is_equal_is_computed_once():
    def body(ir, x):
        w = popxl.variable(random(3, 3), name="w")
        double = w * number(2)
        return [x @ double]

    run = Run(4, body, random(4, 2, 3), ulps=4)
    assert "multiply(v_w, float32_2, out=b0_3x3)" in run.source, run.source
    assert run.source.count("matmul(") == 1


def test_storage_varies_if_something_is_written_that_does():
    def body(ir, x):
        w = popxl.variable(np.zeros(3, np.float32), name="w")
        before = w + number(1)
        updates.accumulate_(w, x)
        c = popxl.constant(np.ones(3, np.float32))
        c += x
        d = popxl.variable(np.ones(3, np.float32), name="v") + number(1)
        d += x
        z = ops.init((3,), f32)
        z += x
        part = ops.slice_(z, 0, 2)
        part += number(5)
        return [before, c, z, d]

    run = Run(3, body, random(3, 3))
    w = run.ir.main_graph.variables[0]
    np.testing.assert_array_equal(run.results[0], np.ones((3, 3)))
    assert run.state[w].shape == (3,)  # the host sees the first replica


def test_a_concat_in_place_makes_its_operands_vary():
    ir = popxl.Ir(2)
    with ir.main_graph:
        stream, out = popxl.h2d_stream((2,), f32), popxl.d2h_stream((2,), f32)
        v = popxl.variable(np.ones(2, np.float32), name="v")
        u, x = v * number(2), ops.host_load(stream)
        both = ops.concat_([x, u])
        both += number(np.arange(4))
        ops.host_store(out, u + x)
    with popxl.Session(ir) as session:
        found = session.run({stream: np.array([[1, 2], [3, 4]], np.float32)})[out]
    np.testing.assert_array_equal(found, [[1 + 0 + 2 + 2, 2 + 1 + 2 + 3], [3 + 0 + 2 + 2, 4 + 1 + 2 + 3]])


def test_a_signature():
    ir = popxl.Ir(2)
    with ir.main_graph:
        x = ops.host_load(popxl.h2d_stream((2,), f32))
        v = popxl.variable(np.zeros(2, np.float32), name="v")
        w = popxl.variable(np.zeros((2, 2), np.float32), name="w", replica_grouping=ir.replica_grouping(group_size=1))

        def body(a, b, c: popxl.TensorByRef):
            c += a
            return a + b, b * b

        graph = ir.create_graph(body, x, v, v)
        u, s = ops.call(graph, w, popxl.constant(np.ones(2, np.float32)), v)
        total = collectives.replicated_all_reduce(u)
        pairs = collectives.replicated_all_reduce(u, group=ir.replica_grouping(group_size=1))
    found = Variance(ir.main_graph, 2).main.tensors
    assert {x, v, w, u, pairs} <= found and not {s, total} & found


def test_a_call_may_need_more_than_it_gets():
    """The graph makes its input vary, or one caller wants an output to vary that another does not."""

    def body(ir, x):
        def function(a, b):
            b += a
            return b, a * number(2)

        graph = ir.create_graph(function, x, x)
        ones = popxl.constant(np.ones(3, np.float32))
        first, _ = ops.call(graph, x, ones)
        second, third = ops.call(graph, ones, ones)
        second += x
        return [first, second, third]

    Run(2, body, random(2, 3))


def test_a_loop_that_begins_to_vary():
    def body(ir, x):
        def step(a, b, c, x):
            return b, c + x, c, x

        graph = ir.create_graph(step, x, x, x, x)
        zero = popxl.constant(np.zeros(3, np.float32))
        a, b, c, _ = ops.repeat(graph, 4, zero, zero, zero, x)
        untouched = ops.repeat(ir.create_graph(lambda a, x: a * number(2), x, x), 3, number(np.ones(3)), x)
        return [a, b, c, *untouched]

    Run(4, body, random(4, 3))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_loop_whose_beginning_or_body_is_equal(count):
    def body(ir, x):
        grows = ir.create_graph(lambda a, x: a + x, x, x)
        resets = ir.create_graph(lambda a: number(np.ones(3)), x)
        return [*ops.repeat(grows, count, number(np.ones(3)), x), *ops.repeat(resets, count, x)]

    Run(2, body, random(2, 3))


# Ops with the leading axis


@pytest.mark.parametrize("vary", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "left, right",
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((6, 1, 2, 3), (5, 3, 4)),
    ],
)
def test_matmul(left, right, vary):
    constants = [random(*shape) for shape in (left, right)]

    def body(ir, *loaded):
        loaded = iter(loaded)
        operands = [next(loaded) if varies else popxl.constant(c) for c, varies in zip(constants, vary)]
        return [ops.matmul(*operands)]

    arrays = [random(2, *shape) for shape, varies in zip((left, right), vary) if varies]
    Run(2, body, *arrays, ulps=16)


ELEMENTS = [
    ("aligned", lambda a, b, i: ops.sum(a, 0) + b, True),
    ("where", lambda a, b, i: ops.where(ops.greater(b, number(0)), a, number(1)), True),
    ("mixed", lambda a, b, i: ops.cast(a, f16) * ops.sum(b), True),
    ("maximum", lambda a, b, i: ops.maximum(number(np.ones((2, 3))), number(np.zeros((2, 3))), a), True),
    ("softmax", lambda a, b, i: ops.softmax(a, 1), True),
    ("logsumexp", lambda a, b, i: ops.logsumexp(a, 0), True),
    ("cumsum", lambda a, b, i: ops.cumsum(a, 1), True),
    ("argmax", lambda a, b, i: ops.argmax(a, 1), True),
    ("topk", lambda a, b, i: ops.topk(a, 2, 1, True, True)[1], True),
    ("mean", lambda a, b, i: ops.mean(ops.cast(a, f16), (0, 1), True), True),
    ("split", lambda a, b, i: ops.split(a, 2, 0)[1], True),
    ("concat", lambda a, b, i: ops.concat([a, number(np.ones((2, 1)))], 1), True),
    ("reversed", lambda a, b, i: a[::-1, 1:], True),
    ("subsample", lambda a, b, i: ops.subsample(a, [2, 2]), True),
    ("transpose", lambda a, b, i: ops.reshape(ops.transpose(a), (2, 3)), True),
    ("gather", lambda a, b, i: ops.gather(number(np.arange(8).reshape(4, 2)), i, 0), True),
    ("gather columns", lambda a, b, i: ops.gather(a, popxl.constant([2, 0]), 1), True),
    ("gather zero", lambda a, b, i: ops.gather(number(np.arange(2) + 1), i, 0, True), True),
    ("gather both", lambda a, b, i: ops.gather(b, i, 0), False),
    ("gather across", lambda a, b, i: ops.gather(number(np.arange(8).reshape(2, 4)), i, 1), False),
    ("onehot", lambda a, b, i: ops.onehot(i, popxl.constant(4), number([0, 1]), 1), True),
    ("onehot values", lambda a, b, i: ops.onehot(i, popxl.constant(4), ops.slice(b, 0, 2), 0), False),
    ("window", lambda a, b, i: ops.dynamic_slice(a, popxl.constant([1]), [1], [2], True), True),
    ("window that moves", lambda a, b, i: ops.dynamic_slice(a, ops.slice(i, 0, 1), [1], [2], True), False),
    ("scatter", lambda a, b, i: ops.scatter_reduce(b, i, "sum", axis=0, axis_size=4), False),
    ("dropout", lambda a, b, i: ops.dropout(a, popxl.constant([1, 2], popxl.uint32), 0.5), False),
    ("half", lambda a, b, i: ops.group_norm(ops.cast(a, f16), half([1, 2, 3]), half([0, 0, 1]), 1, 1e-5)[0], False),
    ("copies", lambda a, b, i: ops.io_tile_copy(ops.ipu_copy(ops.identity(ops.detach(a)), 1)), True),
    ("isnan", lambda a, b, i: ops.cast(ops.isnan(a / ops.relu(a)), f32), True),
]


@pytest.mark.parametrize("name, function, is_vectorised", ELEMENTS, ids=[case[0] for case in ELEMENTS])
def test_ops(name, function, is_vectorised):
    def body(ir, a, b, i):
        return [function(a, b, i)]

    run = Run(3, body, random(3, 2, 3), random(3, 3), RNG.integers(0, 4, (3, 3)).astype(np.int32), ulps=4)
    expanded = Expansion(run.ir.main_graph, 3).main_graph.ops
    looped = [op.kind for op in expanded if op.kernel is not None and op.kind in KERNELS]
    assert bool(looped) is not is_vectorised, (looped, run.source)


def test_updates_of_grouped_state():
    def body(ir, x, f):
        pairs = ir.replica_grouping(group_size=2)
        v = popxl.variable(random(2, 3), name="v", replica_grouping=pairs)
        m = popxl.variable(random(3), name="m")
        s = popxl.variable(np.float32(1), name="s")
        updates.accumulate_(v, x, 0.5)
        updates.accumulate_moving_average_(m, x, popxl.constant(0.25))
        updates.accumulate_moving_average_square_(v, x, f)
        updates.accumulate_(s, f, f)
        step = ops.adam_updater(m, ops.abs(v)) if hasattr(ops, "adam_updater") else m
        return [v * number(1), m * number(1), s * number(1), step]

    Run(4, body, random(4, 3), np.abs(random(4)), ulps=8)


# Collectives

GROUPS = [(1, 8), (1, 1), (1, 2), (2, 2), (2, 4), (4, 2)]


@pytest.mark.parametrize("stride, size", GROUPS)
@pytest.mark.parametrize("is_equal", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.bool_])
def test_collectives(stride, size, is_equal, dtype):
    data = RNG.integers(-3, 4, (8, 2, 8)).astype(dtype)
    names = ["min", "max", "and", "or"] + (["add", "mean", "square_add"] if dtype is np.float32 else [])

    def body(ir, x):
        group = ir.replica_grouping(stride, size)
        if is_equal:
            x = popxl.constant(data[0])
        results = [collectives.replicated_all_reduce(x, name, group) for name in names]
        results += [collectives.replicated_reduce_scatter(x, name, group) for name in names]
        part = ops.slice(x, 0, 7, 1, 1)
        results.append(collectives.replicated_reduce_scatter(part, "max", group))
        shard = collectives.replica_sharded_slice(part, group)
        results += [shard, collectives.replicated_all_gather(shard, group=group)]
        for axis in (0, 1):
            results.append(collectives.replicated_all_gather(x, axis, group))
        results.append(collectives.replicated_all_gather(x, 0, group, "new_axis"))
        results.append(collectives.replicated_slice(x, 1, group))
        results.append(collectives.replicated_slice(ops.reshape(x, (8, 2)), 0, group))
        return results

    Run(8, body, data, ulps=2)


def test_an_all_reduce_in_place_on_a_view():
    def body(ir, x):
        group = ir.replica_grouping(2)
        part = ops.slice_(x, 0, 1, 1, 1)
        collectives.replicated_all_reduce_(part, "add", group)
        everywhere = ops.slice_(x, 1, 2, 1, 1)
        collectives.replicated_all_reduce_(everywhere)
        return [x]

    Run(4, body, random(4, 2, 3), ulps=4)


def test_an_all_reduce_in_place_on_an_input_by_reference():
    def body(ir, x):
        v = popxl.variable(random(4, 3), name="v", replica_grouping=ir.replica_grouping(group_size=1))

        def function(v: popxl.TensorByRef, x):
            v += x
            collectives.replicated_all_reduce_(v, "max")
            collectives.replicated_all_reduce_(v, "and")

        ops.call(ir.create_graph(function, v, x), v, x)
        return []

    Run(4, body, random(4, 3))


def test_float16_is_added_in_float32():
    data = np.array([60000, 60000, -60000, -60000], np.float16)
    ir = popxl.Ir(4)
    with ir.main_graph:
        stream, out = popxl.h2d_stream((), f16), popxl.d2h_stream((), f16)
        ops.host_store(out, collectives.replicated_all_reduce(ops.host_load(stream)))
    with popxl.Session(ir) as session:
        assert session.run({stream: data})[out].tolist() == [0] * 4


@numpy_only
@pytest.mark.parametrize("how", ["add", "mean"])
def test_a_gradient_is_added_up_in_one_product(how):
    def body(ir, x, y):
        w = popxl.variable(random(3, 4), name="w")
        gradient = ops.transpose(x) @ y
        updates.accumulate_(w, collectives.replicated_all_reduce(gradient, how))
        return []

    run = Run(8, body, random(8, 5, 3), random(8, 5, 4), ulps=16)
    assert run.source.count("matmul(") == 1 and "add.reduce" not in run.source, run.source
    assert "3x40" in run.source and "copyto" not in run.source, run.source


def test_a_gradient_that_is_used_otherwise_too():
    def body(ir, x, y):
        gradient = ops.transpose(x) @ y
        total = collectives.replicated_all_reduce(gradient)
        y += number(1)
        again = collectives.replicated_all_reduce(gradient)
        return [gradient, total, again, collectives.replicated_all_reduce(ops.transpose(x) @ y)]

    Run(8, body, random(8, 5, 3), random(8, 5, 4), ulps=16)


def test_over_ipus():
    def body(ir, x, y):
        z = ops.ipu_copy(y, 1)
        results = []
        for name in ("add", "mean", "min", "square_add"):
            results += collectives.all_reduce([x, z], [0, 1], name)
        results += collectives.all_reduce_identical_inputs([x, z], [0, 1])
        return results

    run = Run(2, body, random(2, 3), random(2, 3), ulps=4)
    np.testing.assert_array_equal(run.results[0], run.results[1])


# Variables and remote memory


def test_grouped_variables():
    ir = popxl.Ir(4)
    with ir.main_graph:
        group = ir.replica_grouping(stride=2, group_size=2)
        v = popxl.variable(np.array([[1, 1], [5, 5]], np.float32), replica_grouping=group)
        mixed = ir.replica_grouping_from_assignments([0, 1, 1, 0])
        u = popxl.variable(np.array([1, 2], np.float32), replica_grouping=mixed, retrieval_mode="all_replicas")
        out, seen = popxl.d2h_stream((2,), f32), popxl.d2h_stream((), f32)
        ops.host_store(out, collectives.replicated_all_reduce(v, "add", group))
        ops.host_store(seen, u)
        v += ops.host_load(popxl.h2d_stream((2,), f32, name="x"))
        u += number(10)
    with popxl.Session(ir) as session:
        (stream,) = session.expected_inputs()
        found = session.run({stream: np.arange(8, dtype=np.float32).reshape(4, 2)})
        np.testing.assert_array_equal(found[out], [[2, 2], [10, 10], [2, 2], [10, 10]])
        np.testing.assert_array_equal(found[seen], [1, 2, 2, 1])
        np.testing.assert_array_equal(session.get_tensor_data(v), [[1, 2], [7, 8]])
        np.testing.assert_array_equal(session.get_tensor_data(u), [11, 12, 12, 11])
        session.write_variable_data(v, np.array([[3, 3], [4, 4]], np.float32))
        found = session.run({stream: np.zeros((4, 2), np.float32)})
        np.testing.assert_array_equal(found[out], [[6, 6], [8, 8], [6, 6], [8, 8]])


def test_shards_on_the_device_and_in_remote_memory():
    ir = popxl.Ir(4)
    data = np.arange(10, dtype=np.float32)
    with ir.main_graph:
        w, shard = popxl.replica_sharded_variable(data, name="w")
        buffer = popxl.replica_sharded_buffer((10,), f32, entries=2)
        r = popxl.remote_replica_sharded_variable(data * 2, buffer, 1)
        loaded = ops.remote_load(buffer, 1)
        shard += loaded
        ops.remote_store(buffer, 1, loaded * number(3))
        out = popxl.d2h_stream((10,), f32)
        ops.host_store(out, collectives.replicated_all_gather(shard))
    with popxl.Session(ir) as session:
        assert session._executable.read(shard).shape == (4, 3)
        np.testing.assert_array_equal(session.run()[out], np.tile(3 * data, (4, 1)))
        np.testing.assert_array_equal(session.get_tensor_data(w), 3 * data)
        np.testing.assert_array_equal(session.get_tensor_data(r), 6 * data)
        np.testing.assert_array_equal(session.run()[out], np.tile(9 * data, (4, 1)))


def test_remote_entries_of_each_replica():
    def body(ir, x, i):
        buffer, other = popxl.remote_buffer((3,), f32, 4), popxl.remote_buffer((3,), f32, 2)
        popxl.remote_variable(random(4, 3), buffer, 1, replica_grouping=ir.replica_grouping(group_size=1))
        popxl.remote_variable(random(3), other, 1)
        first = ops.remote_load(buffer, 1)
        ops.remote_store(buffer, i, x)
        ops.remote_store(buffer, 3, number(np.ones(3)))
        return [first, *[ops.remote_load(buffer, k) for k in (0, 1, 2, 3, i)], ops.remote_load(other, 1)]

    run = Run(4, body, random(4, 3), np.array([0, 2, 1, 3], np.int32))
    assert len({tuple(row) for row in run.results[-1].tolist()}) == 1


def test_a_buffer_that_begins_to_vary_behind_a_load():
    ir = popxl.Ir(2)
    with ir.main_graph:
        buffer = popxl.remote_buffer((), f32)
        popxl.remote_variable(np.float32(5), buffer)
        stream, out = popxl.h2d_stream((), f32), popxl.d2h_stream((), f32)
        ops.host_store(out, *ops.call(ir.create_graph(lambda: ops.remote_load(buffer, 0))))
        ops.remote_store(buffer, 0, ops.host_load(stream))
    with popxl.Session(ir) as session:
        assert session.run({stream: np.array([1, 2], np.float32)})[out].tolist() == [5, 5]
        assert session.run({stream: np.array([1, 2], np.float32)})[out].tolist() == [1, 2]


def test_an_offset_of_one_replica_is_out_of_range():
    with pytest.raises(popart_exception, match="remote_store: the offset 9 is out of range for RemoteBuffer"):

        def body(ir, x, i):
            ops.remote_store(popxl.remote_buffer((3,), f32, 4), i, x)
            return []

        Run(2, body, random(2, 3), np.array([0, 9], np.int32))


# Control flow and the rest


def conditional_program(ir, x, c):
    graphs = [ir.create_graph(lambda x: x + number(1), x), ir.create_graph(lambda x: number(np.zeros(3)), x)]
    return ops.conditional(ops.greater(c, number(0)), *graphs, [x], [x])


@pytest.mark.parametrize("condition", [[1.0, 2.0], [-1.0, -2.0]])
def test_a_condition_that_is_equal(condition):
    Run(2, conditional_program, random(2, 3), np.array(condition, np.float32))


def test_a_condition_that_differs():
    run = Run(3, conditional_program, random(3, 3), np.array([-1, 1, 2], np.float32))
    assert run.results[0][0].tolist() == [0, 0, 0]


def test_all_ops_of_a_program_print_once_or_once_a_replica(capfd):
    def body(ir, x):
        ops.print_tensor(popxl.constant([1.0]), "same")
        return [ops.print_tensor(x, "mine")]

    ir = popxl.Ir(3)
    with ir.main_graph:
        stream, out = popxl.h2d_stream((1,), f32), popxl.d2h_stream((1,), f32)
        ops.host_store(out, body(ir, ops.host_load(stream))[0])
    with popxl.Session(ir) as session:
        for _ in range(2):
            session.run({stream: np.array([[1], [2], [3]], np.float32)})
    lines = capfd.readouterr().err.split("\n")
    assert sum("same" in line for line in lines) == 2
    assert sum("mine" in line for line in lines) == 6


def test_code_loads_do_nothing():
    def body(ir, x):
        graph = ir.create_graph(lambda x: x * number(2), x)
        ops.remote_code_load(graph, "executable")
        return ops.call(graph, x)

    Run(2, body, random(2, 3))


def test_several_processes_are_not_for_this_engine(monkeypatch):
    for name, value in (("TOTAL_REPLICAS", "4"), ("LOCAL_REPLICAS", "2")):
        monkeypatch.setenv("POPDIST_NUM_" + name, value)
    monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "0")
    monkeypatch.delenv("POPFN_ENGINE", raising=False)
    ir = popxl.Ir("popdist")
    with ir.main_graph:
        v = popxl.variable(0)
        v += 1
    with pytest.raises(NotImplementedError, match="this one has 2 of 4. Set POPFN_ENGINE=xla"):
        popxl.Session(ir)
