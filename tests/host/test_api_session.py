"""Sessions: construction, attachment, runs, weights, and numbers that come out right."""
import doctest
import fractions
import importlib
import warnings

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import HostDeviceWarning, popart_exception

ops = popxl.ops
F32, I32 = popxl.float32, popxl.int32


class Program:
    """y = 2 x + w, and w grows by 1 in each run."""

    def __init__(self, transfers=1, shape=(2, 4), **options):
        self.ir = popxl.Ir()
        self.ir.num_host_transfers = transfers
        with self.ir.main_graph, popxl.in_sequence():
            self.x, self.y = popxl.h2d_stream(shape, F32, "x"), popxl.d2h_stream(shape, F32, "y")
            self.w = popxl.variable(np.zeros(shape, np.float32), name="w")
            self.c = popxl.constant(2.0, name="c")
            for _ in range(transfers):
                ops.host_store(self.y, ops.host_load(self.x) * self.c + self.w)
            self.w += 1.0
        self.session = popxl.Session(self.ir, **options)

    def run(self, x=0.0):
        return self.session.run({self.x: np.full(self.x.shape, x, np.float32)})[self.y]


def raises(error, text):
    return pytest.raises(error, match=text)


class OfShape(tuple):
    """A value and a dtype, for an array of the shape of the stream."""


# Data for a stream, the class of the error, how the message shows the data, and its reason.
NO_NUMBERS = {
    "None": (None, TypeError, "None", "it has None"),
    "array of None": (OfShape((None, object)), TypeError, "array of object and the shape SHAPE", "it has None"),
    "list with None": ([1.0, None], TypeError, "[1.0, None]", "it has None"),
    "text": ("ones", ValueError, "'ones'", "it is text"),
    "a number as text": ("3.5", ValueError, "'3.5'", "it is text"),
    "bytes": (b"3", ValueError, "b'3'", "it is text"),
    "array of text": (OfShape(("3", "U1")), ValueError, "array of <U1 and the shape SHAPE", "it is text"),
    "array of texts as objects": (OfShape(("3", object)), ValueError, "array of object", "it has '3'"),
    "list of texts and numbers": ([1.0, "3"], ValueError, "[1.0, '3']", "it is text"),
    "dates": (OfShape(("2020-01-01", "M8[D]")), TypeError, "array of datetime64[D]", "datetime64[D]"),
    "times": (OfShape((3, "m8[s]")), TypeError, "array of timedelta64[s]", "timedelta64[s]"),
    "ragged lists": ([[1.0], [2.0, 3.0]], ValueError, "[[1.0], [2.0, 3.0]]", "sequence"),
    "long ragged lists": ([[1.0] * n for n in range(90)], ValueError, "[[], [1.0], ", "sequence"),
    "dict": ({"x": 1.0}, TypeError, "{'x': 1.0}", "dict"),
    "set": ({1.0}, TypeError, "{1.0}", "set"),
    "object": (OfShape((raises, object)), TypeError, "array of object", "function"),
    "function": (raises, TypeError, "function raises", "function"),
    "generator": ((x for x in [1.0]), TypeError, "generator object", "generator"),
    "empty list": ([], ValueError, "[]", "an empty list has no dtype"),
    "dtype": (F32, TypeError, repr(F32), ""),
}


@pytest.fixture
def program():
    return Program()


class TestConstruction:
    @pytest.mark.filterwarnings("ignore::popfn.host.errors.HostDeviceWarning")
    @pytest.mark.parametrize("device", ["cpu", "ipu_model", "ipu_hw"])
    def test_devices(self, device):
        session = Program(device_desc=device).session
        assert not session.is_attached

    def test_one_notice_for_each_device_that_there_is_not(self, monkeypatch):
        monkeypatch.setattr("popfn.host.session._told", set())
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            for device in ("cpu", "ipu_hw", "ipu_hw", "cpu", "ipu_model", "ipu_hw", "gpu", "ipu_model", "cpu", "gpu"):
                Program(device_desc=device)
        assert [str(notice.message) for notice in notices] == [
            f"Session: there is no device {device!r}: the program runs on this machine, as with 'cpu'."
            for device in ("ipu_hw", "ipu_model", "gpu")
        ]
        assert {notice.category for notice in notices} == {HostDeviceWarning}
        assert {notice.filename for notice in notices} == {__file__}  # Program makes the sessions
        with raises(TypeError, "the device must be a str, not 3"):
            Program(device_desc=3)

    def test_refusals(self):
        ir = popxl.Ir()
        with ir.main_graph:
            popxl.variable(1.0)
        with raises(RuntimeError, r"Session: Ir\[id=\d+\] has no ops: add some to its main graph"):
            popxl.Session(ir)
        with ir.main_graph:
            ops.exp(popxl.constant(1.0))
        with raises(TypeError, "expected an Ir, not Graph"):
            popxl.Session(ir.main_graph)
        with ir.main_graph:  # a refused session has not taken the Ir over
            popxl.variable(1.0)

    def test_a_faulty_op_is_named(self):
        ir = popxl.Ir()
        with ir.main_graph:
            ops.matmul(popxl.variable(np.ones((2, 2), np.float32)), popxl.constant(np.ones((2, 2), np.float16)))
        text = r"matmul of .*, which makes .*matmul_out.* cannot run: the dtypes .* \(.*test_api_session.py:\d+\)"
        with raises(popart_exception, text):
            popxl.Session(ir)

    def test_no_arithmetic_on_float8(self):
        ir = popxl.Ir()
        with ir.main_graph:
            x = popxl.variable(np.zeros(2, popxl.float8_143.as_numpy()))
            ops.reshape(x, (2, 1))
            x + x
        with raises(popart_exception, "add of .*, which makes .* cannot run: there is no arithmetic for float8_143"):
            popxl.Session(ir)

    def test_recursion(self):
        ir = popxl.Ir()
        with ir.main_graph:
            ops.call(ir.main_graph)
        with raises(popart_exception, "calls itself"):
            popxl.Session(ir)

    def test_inputs_of_the_main_graph(self):
        ir = popxl.Ir()
        with ir.main_graph:
            ops.exp(popxl.graph_input((2,), F32, "x"))
        with raises(popart_exception, "nothing feeds the main graph's inputs"):
            popxl.Session(ir)

    def test_the_ir_is_taken_over(self, program):
        ir = program.ir
        with ir.main_graph:
            for add in (lambda: popxl.variable(1.0), lambda: ops.exp(program.w), lambda: popxl.h2d_stream((), F32)):
                with raises(RuntimeError, "nothing can be added. Build the whole program first"):
                    add()
        with raises(RuntimeError, "num_host_transfers cannot change"):
            ir.num_host_transfers = 3
        with raises(RuntimeError, "replication_factor cannot change"):
            ir.replication_factor = 1
        assert program.session.ir is ir

    def test_graphs_that_nobody_calls_are_dropped(self):
        ir = popxl.Ir()
        with ir.main_graph:
            x = popxl.h2d_stream((), F32)
            ir.create_graph(lambda: ops.host_load(x))
            ops.exp(popxl.constant(1.0))
        assert ir.get_all_h2d_streams() == {x}
        assert popxl.Session(ir).expected_inputs() == set()


class TestAttachment:
    def test_with(self, program):
        session = program.session
        with session as entered:
            assert entered is session and session.is_attached
            with session:
                program.run()
            assert session.is_attached and program.run()[0, 0] == 1
        assert not session.is_attached
        np.testing.assert_array_equal(program.w.data, np.full((2, 4), 2))
        with session:  # the host's weights are the source again
            assert program.run()[0, 0] == 2

    def test_detached_calls(self, program):
        session = program.session
        for call in (
            program.run,
            lambda: session.run_with_outputs({}, {}),
            session.weights_to_host,
            session.weights_from_host,
        ):
            with raises(ValueError, "the session is not attached to its device. Put the call inside `with session:`"):
                call()
        assert session.get_tensor_data(program.w).sum() == 0

    def test_an_exception_keeps_the_hosts_weights(self, program):
        with pytest.raises(KeyError):
            with program.session:
                program.run()
                raise KeyError
        assert not program.session.is_attached and program.w.data.sum() == 0

    def test_weights_to_host_on_exit_can_be_switched_off(self):
        program = Program(weights_to_host_on_exit=False)
        with program.session:
            program.run()
        assert program.w.data.sum() == 0


class TestRun:
    def test_values(self, program):
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        with program.session as session:
            for run in range(3):
                y = session.run({program.x: x})[program.y]
                np.testing.assert_array_equal(y, 2 * x + run)
                assert y.dtype == np.float32

    @pytest.mark.parametrize("x", [[[1.0] * 4] * 2, np.ones((2, 4)), np.ones((2, 4), order="F")])
    def test_inputs_are_converted(self, program, x):
        with program.session as session:
            assert session.run({program.x: x})[program.y].tolist() == [[2.0] * 4] * 2

    def test_run_with_outputs(self, program):
        with program.session as session:
            outputs = session.create_host_outputs()
            array = outputs[program.y]
            assert set(outputs) == {program.y} and (array.shape, array.dtype) == ((2, 4), np.float32)
            assert session.run_with_outputs({program.x: np.ones((2, 4))}, outputs) is None
            assert outputs[program.y] is array and array.tolist() == [[2.0] * 4] * 2
            wide = np.zeros((2, 8), np.float32)
            session.run_with_outputs({program.x: np.ones((2, 4))}, {program.y: wide[:, ::2]})
            assert wide.tolist() == [[3.0, 0.0] * 4] * 2

    def test_streams(self, program):
        x, y = program.x, program.y
        right = np.zeros((2, 4), np.float32)
        with program.session as session:
            with raises(ValueError, r"Unexpected/Missing input.\n  Unexpected: \{\}\n  Missing: \{HostToDeviceS"):
                session.run()
            with raises(ValueError, r"Missing input.\n  Unexpected: \{DeviceToHostStream y .*\}\n  Missing: \{\}"):
                session.run({x: right, y: right})
            with raises(ValueError, r"Missing output.\n  Unexpected: \{\}\n  Missing: \{DeviceToHostStream y "):
                session.run_with_outputs({x: right})
            assert session.expected_inputs() == {x}

    def test_shapes(self, program):
        with program.session as session:
            for shape in ((4, 2), (2,), (1, 2, 4), (), (1,)):
                text = r"shape mismatch: the input for HostToDeviceStream x .* has the shape .*, expected \(2, 4\)"
                with raises(ValueError, text):
                    session.run({program.x: np.zeros(shape, np.float32)})
            with raises(ValueError, "shape mismatch: the output for DeviceToHostStream y "):
                session.run_with_outputs({program.x: np.zeros((2, 4))}, {program.y: np.zeros((4, 2), np.float32)})
            with raises(TypeError, "the output for .* must be a NumPy array"):
                session.run_with_outputs({program.x: np.zeros((2, 4))}, {program.y: [0.0]})

    @pytest.mark.parametrize("shape", [(2, 4), ()])
    @pytest.mark.parametrize("name", NO_NUMBERS)
    def test_data_that_is_no_array_of_numbers(self, name, shape):
        program = Program(shape=shape)
        data, error, given, reason = NO_NUMBERS[name]
        data = np.full(shape, data[0], data[1]) if isinstance(data, OfShape) else data
        with program.session as session:
            with pytest.raises(error) as e:
                session.run({program.x: data})
            text = str(e.value)
            expected = f"expected an array of numbers of the shape {shape} and the dtype float32"
            assert text.startswith(f"the input for HostToDeviceStream x {F32} {shape} is ") and expected in text
            assert given.replace("SHAPE", str(shape)) in text and reason in text and len(text) < 500
            assert program.run().sum() == 0  # nothing has happened to the state

    def test_numbers_of_any_kind_are_data(self, program):
        halves = [[fractions.Fraction(1, 2)] * 4] * 2
        with program.session as session:
            for run, x in enumerate((halves, np.array(halves, object), [[np.float16(0.5)] * 4] * 2)):
                if run < 2:
                    assert session.run({program.x: x})[program.y].tolist() == [[1.0 + run] * 4] * 2
            with raises(popart_exception, "the input for .* is of float16, expected float32"):
                session.run({program.x: x})

    def test_dtypes(self, program):
        right, y = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
        with program.session as session:
            for x, options in (
                (np.zeros((2, 4), np.int32), {}),
                (np.zeros((2, 4), np.float16), {}),
                (np.zeros((2, 4)), {"downcast_inputs": False}),
            ):
                with raises(popart_exception, "type discrepancy: the input for .* is of .*, expected float32"):
                    session.run({program.x: x}, **options)
            with raises(popart_exception, "type discrepancy: the output for .* is of float64, expected float32"):
                session.run_with_outputs({program.x: right}, {program.y: y.astype(np.float64)})
            y.flags.writeable = False
            with raises(ValueError, "the output for .* is read-only"):
                session.run_with_outputs({program.x: right}, {program.y: y})
            assert program.run()[0, 0] == 0  # no refused run has changed the state

    def test_int64_data_for_an_int32_stream(self):
        ir = popxl.Ir()
        with ir.main_graph:
            x, y = popxl.h2d_stream((2,), I32), popxl.d2h_stream((2,), I32)
            ops.host_store(y, ops.host_load(x) + 1)
        with popxl.Session(ir) as session:
            for downcast in (True, False):
                assert session.run({x: np.array([1, 2])}, downcast_inputs=downcast)[y].tolist() == [2, 3]

    @pytest.mark.parametrize("stream, shapes", [((), [(), (1,), (1, 1)]), ((1,), [(1,), (), (1, 1)])])
    def test_one_element_of_any_rank(self, stream, shapes):
        program = Program(shape=stream)
        with program.session as session:
            for run, shape in enumerate(shapes):
                y = np.zeros(shape, np.float32)
                session.run_with_outputs({program.x: np.full(shape, 3.0)}, {program.y: y})
                assert y.item() == 6 + run

    @pytest.mark.parametrize("stream", [(2, 4), (), (1,)])
    def test_transfers(self, stream):
        program = Program(transfers=3, shape=stream)
        count = int(np.prod(stream))
        x = np.arange(5 * count, dtype=np.float32).reshape((5,) + stream)
        with program.session as session:
            assert session.create_host_outputs()[program.y].shape == (3,) + stream
            for run in range(2):
                y = session.run({program.x: x})[program.y]  # a longer input is accepted
                np.testing.assert_array_equal(y, 2 * x[:3] + run)
            with raises(ValueError, r"axis 0 \(2\) of the input for .* is not large enough: num_host_transfers is 3"):
                session.run({program.x: x[:2]})
            with raises(IndexError, "has no axis for 3 transfers"):
                session.run({program.x: 1.0})

    def test_a_cursor_goes_round(self):
        ir = popxl.Ir()
        ir.num_host_transfers = 2
        with ir.main_graph, popxl.in_sequence():
            x, y = popxl.h2d_stream((), F32), popxl.d2h_stream((), F32)
            loads = [ops.host_load(x) for _ in range(3)]
            ops.host_store(y, loads[0] + loads[2])
            ops.host_store(y, loads[1])
        with popxl.Session(ir) as session:
            assert session.run({x: [1.0, 10.0]})[y].tolist() == [2.0, 10.0]
            assert session.run({x: [1.0, 10.0, 100.0]})[y].tolist() == [101.0, 10.0]


class TestWeights:
    def test_reading(self, program):
        with program.session as session:
            program.run()
            data = session.get_tensors_data([program.w, program.c])
            assert data[program.w].tolist() == [[1.0] * 4] * 2 and data[program.c] == 2.0
            assert session.get_tensor_data(program.w) is data[program.w]
            program.run()
            assert data[program.w][0, 0] == 1  # stale until the host asks again
            session.weights_to_host()
            assert data[program.w][0, 0] == 2
        with raises(TypeError, "is neither a Variable nor a Constant"):
            program.session.get_tensor_data(program.w.consumer.outputs[0])

    def test_reading_a_constant_copies_nothing(self, program):
        with program.session as session:
            program.run()
            session.get_tensor_data(program.c)
            assert program.w.data.sum() == 0

    def test_writing(self, program):
        session, w = program.session, program.w
        session.write_variable_data(w, np.full((2, 4), 5, np.float32))
        with session:
            assert program.run()[0, 0] == 5
            session.write_variable_data(w, np.full((2, 4), 7, np.float32))
            assert program.run()[0, 0] == 7
        assert w.data[0, 0] == 8

    def test_writing_one_sends_all(self):
        ir = popxl.Ir()
        with ir.main_graph:
            a, b = popxl.variable(0.0), popxl.variable(0.0)
            a += 1.0
            b += 1.0
        with popxl.Session(ir) as session:
            session.run()
            session.write_variable_data(a, 10)
            assert session.get_tensor_data(b) == 0  # what was not yet on the host is lost
            session.run()
            assert (session.get_tensor_data(a), session.get_tensor_data(b)) == (11, 1)

    def test_refused_writes(self, program):
        session, w = program.session, program.w
        right = np.ones((2, 4), np.float32)
        for t, data, error, text in (
            (program.c, right, TypeError, r"Tensor\[c .* is not a Variable"),
            (w, right.astype(np.float64), TypeError, "the dtype float64 is not that of"),
            (w, [1.0], TypeError, "the dtype list is not that of"),
            (w, right.T, ValueError, r"the shape \(4, 2\) is not that of"),
            (w, 1.0, ValueError, r"the shape \(\) is not that of"),
        ):
            with raises(error, "write_variable_data: .*" + text):
                session.write_variables_data({t: data})
        with raises(TypeError, "is not a Variable"):
            session.write_variables_data({w: right, program.c: right})
        assert w.data.sum() == 0

    def test_memmap(self, tmp_path):
        m = np.memmap(str(tmp_path / "w"), np.float32, "w+", shape=(2,))
        ir = popxl.Ir()
        with ir.main_graph:
            w = popxl.variable(m)
            w += 3.0
        with popxl.Session(ir) as session:
            session.run()
        assert session.get_tensor_data(w) is m
        assert np.fromfile(str(tmp_path / "w"), np.float32).tolist() == [3.0, 3.0]

    def test_read_only_memmap(self, tmp_path):
        np.ones(2, np.float32).tofile(str(tmp_path / "w"))
        ir = popxl.Ir()
        with ir.main_graph:
            w = popxl.variable(np.memmap(str(tmp_path / "w"), np.float32, "r"))
            w += 3.0
        session = popxl.Session(ir)
        assert not session.weights_to_host_on_exit
        with session:
            session.run()
            with raises(Exception, "is a read-only memmap, it cannot be written"):
                session.weights_to_host()
        assert w.data.tolist() == [1.0, 1.0]

    def test_a_variable_that_no_op_uses(self):
        ir = popxl.Ir()
        with ir.main_graph:
            unused = popxl.variable([1.0, 2.0])
            ops.exp(popxl.variable(1.0))
        with popxl.Session(ir) as session:
            session.run()
            assert session.get_tensor_data(unused).tolist() == [1.0, 2.0]
            session.write_variable_data(unused, np.float32([3, 4]))
            assert session.get_tensor_data(unused).tolist() == [3.0, 4.0]


def result(build, *arrays):
    """Run `build(*variables)` and return what it stores."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        t = build(*[popxl.variable(a) for a in arrays])
        y = popxl.d2h_stream(t.shape, t.dtype)
        ops.host_store(y, t)
    with popxl.Session(ir) as session:
        return session.run()[y]


class TestMeaning:
    X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5

    def test_by_value_by_reference_and_modified(self):
        def f(x: popxl.TensorByRef, y, z):
            x += 1.0
            y += 1.0
            z += 1.0
            return x + y

        def build(x, y, z):
            spec = popxl.TensorSpec((), F32)
            info = ops.call_with_info(popxl.gir().create_graph(f, spec, spec, spec), x, y, z)
            info.set_parent_input_modified(z)
            return ops.concat([ops.reshape(t, (1,)) for t in (x, y, z, info.outputs[0])])

        assert result(build, *np.float32([10, 20, 30])).tolist() == [11, 20, 31, 32]

    def test_one_graph_called_twice(self):
        def build(x):
            f = popxl.gir().create_graph(lambda t: t * 2.0 + 1.0, x)
            return ops.call(f, *ops.call(f, x))[0]

        np.testing.assert_array_equal(result(build, self.X), self.X * 4 + 3)

    def test_views_and_copies(self):
        def build(x):
            ops.slice_(x, 1, 2).flatten_().__iadd__(100.0)  # writes through to x
            ops.slice(x, 0, 1).__iadd__(100.0)  # a copy
            ops.var_updates.accumulator_zero_(x.T_)
            ops.var_updates.copy_var_update_(ops.slice_(x, 2, 3), x[0:1] + 7.0)
            return x

        expected = np.zeros((3, 4), np.float32)
        expected[2] = 7
        np.testing.assert_array_equal(result(build, self.X), expected)

    def test_what_is_read_before_a_write(self):
        def build(x):
            before = x * 1.0
            x += 1.0
            return before + x

        np.testing.assert_array_equal(result(build, self.X), 2 * self.X + 1)

    @pytest.mark.parametrize(
        "build, expected",
        [
            (lambda x: x[1:, ::-1], lambda x: x[1:, ::-1]),
            (lambda x: x[2, ::2], lambda x: x[2, ::2]),
            (lambda x: x[[2, 0]], lambda x: x[[2, 0]]),
            (lambda x: x[ops.greater(x, popxl.constant(0.0))], lambda x: np.where(x > 0, x, 0)),
            (lambda x: ops.flatten(x).reshape((2, -1)).T, lambda x: x.reshape(2, 6).T),
            (lambda x: ops.log2(x * x + 1.0), lambda x: np.log2(x * x + 1)),
            (lambda x: ops.softmax(x, -1), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
            (lambda x: ops.mean(x, 0, keepdims=True), lambda x: x.mean(0, keepdims=True)),
            (lambda x: 2.0 - x / 4.0, lambda x: 2 - x / 4),
            (lambda x: x @ x.T, lambda x: x @ x.T),
            (lambda x: ops.topk(x, 2, 1, True, True)[0], lambda x: -np.sort(-x)[:, :2]),
            (lambda x: ops.concat(ops.split(x, [1, 3], 1)[::-1], 1), lambda x: np.roll(x, -1, 1)),
            (lambda x: ops.subsample(x, [2]), lambda x: x[::2]),
            (lambda x: ops.cumsum(x, 1), lambda x: x.cumsum(1)),
            (lambda x: ops.argmax(x, 1), lambda x: x.argmax(1).astype(np.int32)),
            (lambda x: x[:, :3].diag(), lambda x: x.diagonal()),
        ],
    )
    def test_values(self, build, expected):
        got, want = result(build, self.X), expected(self.X)
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)

    def test_power(self):
        np.testing.assert_array_equal(result(lambda x: x**2.0, self.X), self.X**2)


MODULES = """
._variables .dtypes .fp8_utils .ir .module .ops._call .ops._control .ops._convolution .ops._linear .ops._random
.random_seed .remote_buffer .replica_grouping .session .tensor .transforms.merge_exchange .utils
""".split()


@pytest.mark.parametrize("module", ["", *MODULES])
def test_the_examples_in_docstrings(module):
    found = doctest.testmod(importlib.import_module("popfn.host" + module))
    assert found.attempted and not found.failed
