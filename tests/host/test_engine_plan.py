"""What the engine makes of a program: shared storage where that is safe, and the block of state writes at the end."""
import re

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.engine.kernels import KERNELS
from popfn.host.kernels.kernel import Kernel

ops = popxl.ops
copy_ = ops.var_updates.copy_var_update_
f32 = popxl.float32


class Run:
    """A program of variables and one function of them, after one run."""

    def __init__(self, body, *values):
        self.ir = ir = popxl.Ir()
        values = [np.asarray(value, np.float32) for value in values]
        with ir.main_graph:
            variables = [popxl.variable(value, name=f"v{i}") for i, value in enumerate(values)]
            results = body(ir, *variables) or ()
            streams = [popxl.d2h_stream(t.shape, t.dtype, name=f"out{i}") for i, t in enumerate(results)]
            for stream, t in zip(streams, results):
                ops.host_store(stream, t)
        with popxl.Session(ir) as session:
            self.source = session._executable.source
            outputs = session.run()
            self.results = [outputs[stream] for stream in streams]
            self.state = [session.get_tensor_data(t) for t in variables]

    def lines(self, function=None):
        """The lines of the program without comments, or those that call `function`."""
        found = [line.split("  #")[0].strip() for line in self.source.splitlines()]
        return [line for line in found if line and (function is None or line.startswith(function + "("))]


A = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
B = np.arange(6, dtype=np.float32).reshape(3, 2) - 2
SQUARE = np.arange(6400, dtype=np.float32).reshape(80, 80) % 7


def number(value):
    return popxl.constant(value, f32)


# Views


def test_a_transpose_is_a_view_that_blas_reads():
    run = Run(lambda ir, a, b: [ops.transpose(a) @ ops.transpose(b)], A, B)
    np.testing.assert_array_equal(run.results[0], A.T @ B.T)
    assert len(run.lines("copyto")) == 1, run.source  # the store


def test_a_copy_is_a_copy_where_its_source_changes():
    def body(ir, a):
        b = a + number(1)
        old = ops.reshape(b, (3, 2))
        b += a
        return [old, b]

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], (A + 1).reshape(3, 2))
    np.testing.assert_array_equal(run.results[1], 2 * A + 1)


def test_a_copy_is_a_copy_where_it_changes():
    def body(ir, a):
        b = a + number(1)
        c = ops.identity(b)
        c += a
        return [b, c]

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], A + 1)
    np.testing.assert_array_equal(run.results[1], 2 * A + 1)


def test_a_view_may_be_written_once_its_source_is_dead():
    def body(ir, a):
        c = ops.reshape(a + number(1), (6,))
        c += number(1)
        return [c]

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], A.reshape(-1) + 2)
    assert len(run.lines("copyto")) == 1, run.source


def test_a_view_twin_of_a_copy_that_no_strides_can_express():
    def body(ir, a):
        c = ops.flatten_(ops.transpose(a))  # the transpose must not become a view of a
        c += number(1)
        return [c, a]

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], A.T.reshape(-1) + 1)
    np.testing.assert_array_equal(run.state[0], A)


def test_a_view_twin_that_no_strides_can_express():
    def body(ir, a):
        flat = ops.flatten_(ops.transpose_(a))
        ops.slice_(flat, 0, 2) + number(0)
        part = ops.slice_(flat, 0, 2)
        part += number(10)
        return [flat]

    expected = A.copy()
    expected[0, 0] += 10
    expected[1, 0] += 10
    run = Run(body, A)
    np.testing.assert_array_equal(run.state[0], expected)
    np.testing.assert_array_equal(run.results[0], expected.T.reshape(-1))


def test_concat_as_a_view_follows_and_is_followed():
    def body(ir, a, b):
        both = ops.concat_([a, b])
        a += number(1)
        first = ops.identity(both)
        both += number(10)
        return [first, both]

    run = Run(body, A, 2 * A)
    both = np.concatenate([A + 1, 2 * A])
    np.testing.assert_array_equal(run.results[0], both)
    np.testing.assert_array_equal(run.results[1], both + 10)
    np.testing.assert_array_equal(run.state[0], A + 11)
    np.testing.assert_array_equal(run.state[1], 2 * A + 10)


def test_in_place_on_a_constant_leaves_the_constant():
    def body(ir, a):
        c = popxl.constant(A)
        d = c + number(0)
        c += a
        z = ops.init((2, 3), f32)
        z += a
        return [c, d, z]

    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(A, name="a")
        streams = [popxl.d2h_stream((2, 3), f32) for _ in range(3)]
        for stream, t in zip(streams, body(ir, a)):
            ops.host_store(stream, t)
    with popxl.Session(ir) as session:
        for _ in range(2):
            c, d, z = [session.run()[stream] for stream in streams]
            np.testing.assert_array_equal(c, 2 * A)
            np.testing.assert_array_equal(d, A)
            np.testing.assert_array_equal(z, A)


def test_in_place_on_an_input_leaves_the_array_of_the_user():
    ir = popxl.Ir()
    with ir.main_graph:
        stream, out = popxl.h2d_stream((2, 3), f32), popxl.d2h_stream((2, 3), f32)
        x = ops.host_load(stream)
        x += number(1)
        ops.host_store(out, x)
    data = A.copy()
    with popxl.Session(ir) as session:
        np.testing.assert_array_equal(session.run({stream: data})[out], A + 1)
    np.testing.assert_array_equal(data, A)


# Buffers


def test_a_chain_needs_one_buffer():
    def body(ir, a):
        for _ in range(10):
            a = ops.tanh(a * number(0.5)) + number(1)
        return [a]

    run = Run(body, A)
    expected = A
    for _ in range(10):
        expected = np.tanh(expected * np.float32(0.5)) + np.float32(1)
    np.testing.assert_allclose(run.results[0], expected, rtol=1e-6)
    assert set(re.findall(r"out=(\w+)", run.source)) == {"b0_2x3"}, run.source


def test_an_operand_of_another_layout_keeps_its_storage():
    """`where` writes its output in several passes: it must not be where an operand is that it still reads."""

    def body(ir, a):
        b = a + number(1)
        return [ops.where(ops.greater(a, number(4)), b, ops.transpose(b))]

    run = Run(body, SQUARE)
    np.testing.assert_array_equal(run.results[0], np.where(SQUARE > 4, SQUARE + 1, SQUARE.T + 1))


def test_an_operand_that_is_an_output_keeps_its_storage():
    def body(ir, a):
        def inner(x):
            y = x + number(1)
            return ops.slice(y, 0, 1), ops.sum(y * number(2))

        return ops.call(ir.create_graph(inner, a), a)

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], A[:1] + 1)
    assert run.results[1] == np.sum(2 * (A + 1))


def test_outputs_are_computed_where_the_caller_wants_them():
    def body(ir, a, b):
        def inner(x, y):
            return ops.reshape(ops.reshape(x, (1, 2, 3)) @ ops.reshape(y, (1, 3, 2)), (2, 2))

        return ops.call(ir.create_graph(inner, a, b), a, b)

    run = Run(body, A, B)
    np.testing.assert_array_equal(run.results[0], A @ B)
    assert len(run.lines("copyto")) == 1, run.source


def test_zeros_take_no_time():
    run = Run(lambda ir, a: [ops.init((4, 2, 3), f32) + a], A)
    np.testing.assert_array_equal(run.results[0], np.broadcast_to(A, (4, 2, 3)))
    assert len(run.lines("copyto")) == len(run.lines("add")) == 1, run.source


def test_work_on_constants_is_done_when_the_program_is_compiled():
    run = Run(lambda ir, a: [a + ops.cast(ops.exp(popxl.constant(np.ones(3, np.float16))), f32)], A)
    assert not run.lines("exp") and len(run.lines("copyto")) == 1, run.source
    np.testing.assert_array_equal(run.results[0], A + np.float32(np.float16(np.e)))


def test_what_nobody_needs_is_not_computed():
    def body(ir, a):
        ops.exp(a + number(1))
        return [a]

    assert not Run(body, A).lines("exp")


# State


def test_an_update_is_computed_in_the_variable():
    def body(ir, p, g):
        copy_(p, p - g * number(0.5))

    run = Run(body, A, 2 * A)
    np.testing.assert_array_equal(run.state[0], 0 * A)
    np.testing.assert_array_equal(run.state[1], 2 * A)
    assert run.lines("subtract") == ["subtract(v_v0, b0_2x3, out=v_v0)"], run.source
    assert not run.lines("copyto")


def test_state_is_written_behind_everything_that_can_fail():
    def body(ir, p, q):
        new = p + q
        copy_(p, new)
        q += number(1)
        x = q @ ops.transpose(q)  # reads q after the write, so it cannot come before it
        copy_(q, q * number(2))
        return [x]

    run = Run(body, A, 2 * A)
    lines = run.source.splitlines()
    commit = next(i for i, line in enumerate(lines) if "From here on the state changes" in line)
    assert all(not re.search(r"out=v_v0|copyto\(v_v0", line) for line in lines[:commit])
    np.testing.assert_array_equal(run.state[0], 3 * A)
    np.testing.assert_array_equal(run.state[1], 2 * (2 * A + 1))
    np.testing.assert_array_equal(run.results[0], (2 * A + 1) @ (2 * A + 1).T)


def test_a_variable_that_takes_its_own_value():
    run = Run(lambda ir, p: copy_(p, p) and None, A)
    np.testing.assert_array_equal(run.state[0], A)
    assert not run.lines("copyto")


def test_two_variables_swap():
    def body(ir, p, q):
        old_p, old_q = ops.identity(p), ops.identity(q)
        copy_(p, old_q)
        copy_(q, old_p)

    run = Run(body, A, 2 * A)
    np.testing.assert_array_equal(run.state[0], 2 * A)
    np.testing.assert_array_equal(run.state[1], A)


def test_a_value_outlives_the_variable_it_was_copied_to():
    def body(ir, p, q):
        new = p + number(1)
        copy_(p, new)
        p += number(5)
        copy_(q, new)

    run = Run(body, A, 0 * A)
    np.testing.assert_array_equal(run.state[0], A + 6)
    np.testing.assert_array_equal(run.state[1], A + 1)


def test_a_value_that_changes_after_it_was_copied_to_a_variable():
    def body(ir, p, q):
        new = p + number(1)
        copy_(p, new)
        new += number(5)
        copy_(q, new)

    run = Run(body, A, 0 * A)
    np.testing.assert_array_equal(run.state[0], A + 1)
    np.testing.assert_array_equal(run.state[1], A + 6)


@pytest.mark.parametrize("function, expected", [
    (lambda p: ops.where(ops.greater(p, number(4)), p, ops.transpose(p)), lambda p: np.where(p > 4, p, p.T)),
    (lambda p: p + ops.transpose(p), lambda p: p + p.T),
    (lambda p: p @ p, lambda p: p @ p),
    (ops.transpose, lambda p: p.T),
])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_an_update_that_reads_the_variable_in_another_order(function, expected, is_guarded):
    def body(ir, p):
        if is_guarded:  # a write that something reads: the values of before the run are kept, and writes may be early
            p += number(0)
            return_value = [p @ p]
        else:
            return_value = []
        copy_(p, function(p))
        return return_value

    run = Run(body, SQUARE)
    np.testing.assert_array_equal(run.state[0], expected(SQUARE), run.source)


def test_an_update_reads_what_was_there_when_it_was_written_down():
    def body(ir, p):
        x = p * number(2)
        new = x + number(1)
        x += number(100)
        copy_(p, new)
        return [ops.sum(x)]

    run = Run(body, A)
    np.testing.assert_array_equal(run.state[0], 2 * A + 1)
    assert run.results[0] == np.sum(2 * A + 100)


def test_a_failed_run_leaves_the_state_alone_that_an_early_value_goes_to():
    ir = popxl.Ir()
    with ir.main_graph:
        p = popxl.variable(SQUARE, name="p")
        new = p @ p
        copy_(p, new)
        stream = popxl.d2h_stream(SQUARE.shape, f32)
        ops.host_store(stream, new)
    with popxl.Session(ir) as session:
        read_only = np.zeros(SQUARE.shape, np.float32)
        read_only.flags.writeable = False
        with pytest.raises(ValueError):
            session._executable.run({}, {stream: [read_only]})
        np.testing.assert_array_equal(session._executable.read(p), SQUARE)


def test_a_kernel_that_fails_leaves_the_state_alone(monkeypatch):
    def fail(xp, op, x):
        raise FloatingPointError("half-way")

    monkeypatch.setitem(KERNELS, "fail", Kernel(fail))
    ir = popxl.Ir()
    with ir.main_graph as g:
        early, late, called = (popxl.variable(A, name=name) for name in ("early", "late", "called"))
        early += number(1)

        def inner(x: popxl.TensorByRef):
            x += number(1)

        ops.call(ir.create_graph(inner, called), called)
        copy_(late, early * number(2))
        out = popxl.d2h_stream((2, 3), f32)
        ops.host_store(out, g._add_op("fail", (early + called,), [("failed", (2, 3), f32, ())], {}).outputs[0])
    with popxl.Session(ir) as session:
        with pytest.raises(FloatingPointError, match="half-way"):
            session.run()
        for t in (early, late, called):
            np.testing.assert_array_equal(session._executable.read(t), A)


def test_a_window_of_a_variable_is_written_where_it_is():
    def body(ir, cache, row):
        index = popxl.constant(np.array([1], np.int32))
        copy_(cache, ops.dynamic_update(cache, index, row, [0], [1], True))

    run = Run(body, A, -A[:1])
    np.testing.assert_array_equal(run.state[0], np.concatenate([A[:1], -A[:1]]))
    assert not run.lines("copyto"), run.source


# Calls


def test_inputs_by_value_and_by_reference_of_one_storage():
    def body(ir, p):
        def inner(x, y: popxl.TensorByRef):
            y += number(1)
            return ops.identity(x)

        return ops.call(ir.create_graph(inner, p, p), p, p)

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], A)
    np.testing.assert_array_equal(run.state[0], A + 1)


def test_inputs_by_reference_that_overlap():
    def body(ir, p):
        def inner(x: popxl.TensorByRef, y: popxl.TensorByRef):
            old = ops.identity(x)
            y += number(1)
            return old, ops.identity(x)

        return ops.call(ir.create_graph(inner, p, p), p, p)

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], A)
    np.testing.assert_array_equal(run.results[1], A + 1)


def test_one_tensor_for_two_inputs_by_value():
    def body(ir, p):
        def inner(x, y):
            x += number(1)
            return x, ops.identity(y)

        t = p * number(2)
        return ops.call(ir.create_graph(inner, p, p), t, t)

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[0], 2 * A + 1)
    np.testing.assert_array_equal(run.results[1], 2 * A)


def test_an_input_is_copied_only_if_the_graph_writes_it():
    def body(ir, p):
        def reads(x):
            return x + number(1)

        def writes(x):
            x += number(1)
            return x * number(2)

        first, second = ir.create_graph(reads, p), ir.create_graph(writes, p)
        return [*ops.call(first, p), *ops.call(second, p)]

    run = Run(body, A)
    np.testing.assert_array_equal(run.results[1], 2 * (A + 1))
    np.testing.assert_array_equal(run.state[0], A)
    assert len([line for line in run.lines("copyto") if "v_v0" in line]) == 1, run.source


def test_views_by_reference():
    def body(ir, p):
        def inner(x: popxl.TensorByRef):
            x += number(1)

        ops.call(ir.create_graph(inner, popxl.TensorSpec((3, 2), f32)), ops.transpose_(p))
        ops.call(ir.create_graph(inner, popxl.TensorSpec((1, 3), f32)), ops.slice_(p, 1, 2))

    expected = A + 1
    expected[1] += 1
    np.testing.assert_array_equal(Run(body, A).state[0], expected)


def test_different_views_of_one_storage_by_reference_are_refused():
    def body(ir, p):
        def inner(x: popxl.TensorByRef, y: popxl.TensorByRef):
            x += number(1)

        ops.call(ir.create_graph(inner, p, popxl.TensorSpec((3, 2), f32)), p, ops.transpose_(p))

    with pytest.raises(popxl.errors.popart_exception, match="different views of one storage, p_T|v0_T"):
        Run(body, A)


def test_graphs_at_one_depth_share_buffers():
    def body(ir, p):
        def first(x):
            return ops.exp(x * number(2) + number(1)) @ x

        def second(x):
            return ops.tanh(x * number(3) + number(1)) @ x

        return [*ops.call(ir.create_graph(first, p), p), *ops.call(ir.create_graph(second, p), p)]

    run = Run(body, SQUARE / 10)
    buffers = [set(re.findall(r"\bb\d+", part)) for part in run.source.split("def ")[1:]]
    assert buffers[0] == buffers[1] and not buffers[0] & buffers[2], run.source
    p = SQUARE / 10
    np.testing.assert_allclose(run.results[0], np.exp(p * 2 + 1) @ p, rtol=1e-5)
    np.testing.assert_allclose(run.results[1], np.tanh(p * 3 + 1) @ p, rtol=1e-5)


def test_streams_in_graphs_share_a_cursor():
    ir = popxl.Ir()
    ir.num_host_transfers = 3
    with ir.main_graph:
        stream, out = popxl.h2d_stream((2,), f32), popxl.d2h_stream((2,), f32)

        def inner():
            x = ops.host_load(stream)
            ops.host_store(out, x * popxl.constant(2.0))

        graph = ir.create_graph(inner)
        ops.call(graph)
        ops.host_store(out, ops.host_load(stream))
        ops.call(graph)
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    with popxl.Session(ir) as session:
        for _ in range(2):
            np.testing.assert_array_equal(session.run({stream: data})[out], data * np.array([[2], [1], [2]]))


# Text and errors


def test_each_line_names_its_op_and_tensor():
    run = Run(lambda ir, a: [ops.gelu(a)], A)
    body = run.source.split("def main")[1].splitlines()[2:]
    assert len(body) > 5
    for line in body[:-1]:
        assert line.endswith("  # gelu -> gelu_out"), line


def test_an_op_without_a_kernel_is_named():
    ir = popxl.Ir()
    with ir.main_graph as g:
        a = popxl.variable(A, name="a")
        g._add_op("frobnicate", (a,), [("result", (2, 3), f32, ())], {})
    with pytest.raises(NotImplementedError, match="no kernel for the op 'frobnicate', which makes result"):
        popxl.Session(ir)


def test_names_of_tensors_may_be_anything():
    def body(ir, a):
        graph = ir.create_empty_graph("lambda")
        with graph:
            for name in ("class", "add", "copyto", "b0_2x3", "1 2", "main", "None", "ndarray", "\ufb01", "a\nraise"):
                popxl.graph_input((2, 3), f32, name)
            total = graph.inputs[0]
            for i, t in enumerate(graph.inputs[1:]):
                total = ops.identity(total + t, f"line {i}\n    raise")
            popxl.graph_output(total)
        return ops.call(graph, *[a] * 10)

    np.testing.assert_array_equal(Run(body, A).results[0], 10 * A)
