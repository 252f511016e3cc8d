"""Loops and branches: what they compute, and that nothing is copied or compiled needlessly."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops = popxl.ops
f32, i32 = popxl.float32, popxl.int32
copy_ = ops.var_updates.copy_var_update_
A = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
# What these tests look at is the program of the NumPy engine.
numpy_only = pytest.mark.parametrize("engine", ["numpy"], indirect=True)
pytestmark = pytest.mark.usefixtures("engine")


def number(value):
    return popxl.constant(value, f32)


class Run:
    """A program of variables and one function of them, after one run."""

    def __init__(self, body, *values):
        self.ir = ir = popxl.Ir()
        with ir.main_graph:
            variables = [popxl.variable(np.asarray(v), name=f"v{i}") for i, v in enumerate(values)]
            streams = []
            for t in body(ir, *variables):
                streams.append(popxl.d2h_stream(t.shape, t.dtype))
                ops.host_store(streams[-1], t)
        with popxl.Session(ir) as session:
            self.source = session._executable.source
            outputs = session.run()
            self.results = [outputs[stream] for stream in streams]
            self.state = [session.get_tensor_data(t) for t in variables]

    def first_body(self):
        """The lines of the first function without comments."""
        lines = self.source.split("def ")[1].strip().splitlines()[1:]
        return [line.split("  #")[0].strip() for line in lines]


# Loops


@pytest.mark.parametrize("count", range(6))
def test_repeat_carries_its_outputs(count):
    def program(ir, w):
        def body(x, total, w):
            return x + number(1), total + x * w

        x, total = number(0), number(0)
        return ops.repeat(ir.create_graph(body, x, total, w), count, x, total, w)

    run = Run(program, np.float32(10))
    assert (run.results[0], run.results[1]) == (count, 10 * sum(range(count)))


@pytest.mark.parametrize("count", range(5))
def test_values_may_change_places_in_a_loop(count):
    def program(ir, a, b):
        return ops.repeat(ir.create_graph(lambda x, y: (y, x), a, b), count, a, b)

    run = Run(program, A, 2 * A)
    expected = [A, 2 * A] if count % 2 == 0 else [2 * A, A]
    np.testing.assert_array_equal(run.results, expected)
    np.testing.assert_array_equal(run.state, [A, 2 * A])


@pytest.mark.parametrize("count", range(5))
def test_a_body_that_modifies_its_inputs_does_not_reach_the_caller(count):
    def program(ir, a, w):
        def body(x, w):
            x += w
            w += w  # a value again in each step
            return [x * number(2)]

        (result,) = ops.repeat(ir.create_graph(body, a, w), count, a, w)
        return [result, a, w]

    run = Run(program, A, np.float32(3))
    expected = A
    for _ in range(count):
        expected = (expected + 3) * 2
    np.testing.assert_array_equal(run.results[0], expected)
    np.testing.assert_array_equal(run.results[1], A)
    assert run.results[2] == 3


def test_values_in_a_loop_never_meet():
    """`swish` takes its output for scratch while it still reads its operand, which the body may modify."""

    def program(ir, a):
        def body(x):
            x += number(1)
            return [ops.swish(x)]

        graph = ir.create_graph(body, a)
        return [ops.repeat(graph, count, a)[0] for count in (1, 2, 3, 4)]

    x, expected = A, []
    for _ in range(4):
        x = (x + 1) / (1 + np.exp(-x - 1))
        expected.append(x)
    np.testing.assert_allclose(Run(program, A).results, expected, 1e-5)


@pytest.mark.parametrize("count", [None, 1, 2, 3])
def test_one_storage_by_value_and_by_reference(count):
    def program(ir, a):
        def body(x, state: popxl.TensorByRef, value):
            state += number(1)
            return [x + value]

        graph, zero = ir.create_graph(body, a, a, a), popxl.constant(np.zeros_like(A))
        return ops.call(graph, zero, a, a) if count is None else ops.repeat(graph, count, zero, a, a)

    run = Run(program, A)
    np.testing.assert_array_equal(run.results[0], (count or 1) * A)
    np.testing.assert_array_equal(run.state[0], A + (count or 1))


def test_a_graph_that_gets_an_output_after_its_call():
    def program(ir, a):
        graph = ir.create_graph(lambda x, y: x + y, a, a)
        before = ops.call(graph, a, a)
        with graph:
            popxl.graph_output(graph.inputs[1])
        return [*before, *ops.call(graph, a, a)]

    np.testing.assert_array_equal(Run(program, A).results, [2 * A, 2 * A, A])


@pytest.mark.parametrize("count", range(4))
def test_inputs_by_reference_keep_what_is_written(count):
    def program(ir, state, step):
        def body(i, state: popxl.TensorByRef, step):
            state += step * i
            return [i + number(1)]

        ops.repeat(ir.create_graph(body, number(0), state, step), count, number(1), state, step)
        return [state + number(0)]

    run = Run(program, A, np.float32(2))
    expected = A + 2 * sum(range(1, count + 1))
    np.testing.assert_array_equal(run.results[0], expected)
    np.testing.assert_array_equal(run.state[0], expected)


def test_an_input_marked_as_modified():
    def program(ir, a):
        def body(x, a):
            a += x
            return [x]

        info = ops.repeat_with_info(ir.create_graph(body, number(0), a), 3, number(1), a)
        info.set_parent_input_modified(a)
        return []

    np.testing.assert_array_equal(Run(program, A).state[0], A + 3)


def test_a_view_by_reference():
    def program(ir, a):
        def body(x, part: popxl.TensorByRef):
            part += x
            return [x + number(1)]

        part = ops.transpose_(ops.slice_(a, 0, 2, 1, 1))
        ops.repeat(ir.create_graph(body, number(0), part), 3, number(1), part)
        return []

    expected = A.copy()
    expected[:, :2] += 6
    np.testing.assert_array_equal(Run(program, A).state[0], expected)


@numpy_only
def test_what_stays_in_place_is_not_copied_in_each_step():
    def program(ir, a, w):
        def body(total, w):
            total += w
            return total, w

        return ops.repeat(ir.create_graph(body, a, w), 4, a, w)

    run = Run(program, A, 2 * A)
    np.testing.assert_array_equal(run.results[0], 9 * A)
    np.testing.assert_array_equal(run.results[1], 2 * A)
    assert run.first_body() == ["add(total, w, out=total)"], run.source


@numpy_only
def test_a_loop_needs_two_buffers_for_each_value():
    def program(ir, a):
        return ops.repeat(ir.create_graph(lambda x: ops.tanh(x) * number(2), a), 7, a)

    run = Run(program, A)
    expected = A
    for _ in range(7):
        expected = np.tanh(expected) * np.float32(2)
    np.testing.assert_allclose(run.results[0], expected, 1e-6)
    main = run.source.split("def main")[1]
    assert "for _ in range(3):" in main and main.count("copyto") == 1, run.source


def test_nested_loops():
    def program(ir, a):
        inner = ir.create_graph(lambda x, i: (x + i, i), a, number(0))

        def outer(x, i):
            x, _ = ops.repeat(inner, 3, x, i)
            return x, i + number(1)

        return ops.repeat(ir.create_graph(outer, a, number(0)), 4, a, number(1))

    run = Run(program, A)
    np.testing.assert_array_equal(run.results[0], A + 3 * (1 + 2 + 3 + 4))


@numpy_only
def test_the_program_does_not_grow_with_the_steps():
    def source(count):
        return Run(lambda ir, a: ops.repeat(ir.create_graph(lambda x: ops.sin(x), a), count, a), A).source

    assert len(source(512)) - len(source(8)) == len("255") - len("3")


def test_a_body_with_more_outputs_than_the_loop():
    """Autodiff adds outputs to a graph, which the loops that were there before do not have."""
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(A, name="x")
        graph = ir.create_graph(lambda x: ops.sin(ops.sin(x)), x)
        (y,) = ops.repeat(graph, 2, x)
        popxl.transforms.autodiff(graph)
        assert len(graph.outputs) > 1
        out = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(out, y)
    with popxl.Session(ir) as session:
        np.testing.assert_allclose(session.run()[out], np.sin(np.sin(np.sin(np.sin(A)))), 1e-6)


# Branches


@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_conditional_runs_one_branch(value):
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.float32(value), name="x")
        out, seen = popxl.d2h_stream((), f32), [popxl.d2h_stream((), f32, name=name) for name in ("up", "down")]

        def branch(stream, change):
            def function(x):
                ops.host_store(stream, x)
                x += number(change)
                return x * number(2)

            return ir.create_graph(function, x)

        graphs = [branch(stream, change) for stream, change in zip(seen, (10, 20))]
        (y,) = ops.conditional(ops.greater(x, number(0)), *graphs, [x], [x])
        ops.host_store(out, y)
    with popxl.Session(ir) as session:
        outputs = {out: np.zeros((), np.float32), **{stream: np.full((), np.nan, np.float32) for stream in seen}}
        session.run_with_outputs({}, outputs)
        assert session.get_tensor_data(x) == value
    assert outputs[out] == 2 * (value + (10 if value > 0 else 20))
    assert np.isnan([outputs[stream] for stream in seen]).tolist() == [value < 0, value > 0]


def test_a_branch_that_returns_its_input():
    def program(ir, c, a, b):
        graph = ir.create_graph(lambda x: x, a)
        (result,) = ops.conditional(c, graph, graph, [a], [b])
        result += number(1)
        return [result]

    for value in (True, False):
        run = Run(program, value, A, 2 * A)
        np.testing.assert_array_equal(run.results[0], (A if value else 2 * A) + 1)
        np.testing.assert_array_equal(run.state[1:], [A, 2 * A])


def test_a_branch_in_a_loop_in_a_branch():
    def program(ir, c):
        x, spec = number(0), popxl.TensorSpec((), f32)
        add, double = ir.create_graph(lambda x: x + number(1), spec), ir.create_graph(lambda x: x * number(2), spec)

        def body(x):
            return ops.conditional(ops.greater(number(3), x), add, double, [x], [x])

        loop = ir.create_graph(body, spec)
        then_graph = ir.create_graph(lambda x: ops.repeat(loop, 6, x), spec)
        return ops.conditional(c, then_graph, add, [x], [x])

    assert Run(program, True).results[0] == 24  # 1, 2, 3, 6, 12, 24
    assert Run(program, False).results[0] == 1


def test_a_condition_of_one_element_in_axes():
    def program(ir, c):
        spec = popxl.TensorSpec((), f32)
        up, down = ir.create_graph(lambda x: x + number(1), spec), ir.create_graph(lambda x: x - number(1), spec)
        return ops.conditional(c, up, down, [number(0)], [number(0)])

    assert Run(program, np.array([[True]])).results[0] == 1


def test_a_failure_in_a_loop_leaves_the_state_alone():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(A, name="a")
        buffer = popxl.remote_buffer((2, 3), f32, 3)

        def body(i, a: popxl.TensorByRef):
            a += ops.remote_load(buffer, i) + number(1)
            return [i + popxl.constant(1, i32)]

        i = popxl.constant(0, i32)
        ops.repeat(ir.create_graph(body, i, a), 4, i, a)
    with popxl.Session(ir) as session:
        with pytest.raises(popart_exception, match=r"remote_load: the offset 3 is out of range for RemoteBuffer\[1 "):
            session.run()
        np.testing.assert_array_equal(session._executable.read(a), A)
