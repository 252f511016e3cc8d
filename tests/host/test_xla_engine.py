"""The XLA engine: how it is chosen, state, transfers, loops, calls that are kept, printing."""
import subprocess
import sys

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.engine import compile_program
from popfn.host.errors import popart_exception

pytest.importorskip("jax")
ops, updates = popxl.ops, popxl.ops.var_updates


def run(executable, inputs, outputs):
    """Run with one array for each stream; return those of the outputs."""
    arrays = {stream: [np.zeros(stream.shape, stream.dtype.as_numpy())] for stream in outputs}
    executable.run({stream: [array] for stream, array in inputs.items()}, arrays)
    return [arrays[stream][0] for stream in outputs]


# The choice


def counting_program():
    ir = popxl.Ir()
    with ir.main_graph:
        count = popxl.variable(3, name="count")
        count += 1
    return ir, count


def test_the_engine_is_an_argument_or_an_environment_variable(monkeypatch):
    ir, _ = counting_program()
    names = {name: type(compile_program(ir, name)).__module__ for name in ("numpy", "xla")}
    assert names == {"numpy": "popfn.host.engine.compile", "xla": "popfn.host.engine.xla"}
    for value, module in (("xla", "xla"), ("numpy", "compile"), ("", "compile")):
        monkeypatch.setenv("POPFN_ENGINE", value)
        assert type(compile_program(ir)).__module__ == "popfn.host.engine." + module
    monkeypatch.setenv("POPFN_ENGINE", "cuda")
    with pytest.raises(ValueError) as error:
        compile_program(ir)
    assert str(error.value) == (
        "there is no engine 'cuda' (from the environment variable POPFN_ENGINE): use one of numpy, xla.")
    with pytest.raises(ValueError, match="^there is no engine 'tpu': use one of numpy, xla.$"):
        compile_program(ir, "tpu")


def test_jax_is_imported_only_when_chosen_and_missed_with_advice():
    script = """
import sys
import popfn.host as popxl
from popfn.host.engine import compile_program
from popfn.host.errors import popart_exception
ir = popxl.Ir()
with ir.main_graph:
    v = popxl.variable(0)
    v += 1
compile_program(ir, "numpy")
assert not any(name.split(".")[0] in ("jax", "jaxlib") for name in sys.modules)
sys.modules["jax"] = None
try:
    compile_program(ir, "xla")
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert 'the engine "xla" needs JAX, which cannot be imported' in found.stdout
    assert 'run `pip install "popfn[xla]"`, or unset POPFN_ENGINE' in found.stdout


def test_a_session_runs_on_the_engine(monkeypatch):
    monkeypatch.setenv("POPFN_ENGINE", "xla")
    ir, count = counting_program()
    with popxl.Session(ir) as session:
        session.run()
        session.run()
        assert session.get_tensor_data(count) == 5
        session.write_variable_data(count, 10)
        session.run()
    assert session.get_tensor_data(count) == 11


def test_a_kind_without_a_kernel_is_named():
    ir, count = counting_program()
    ir.main_graph.ops[0].kind = "frobnicate"
    with pytest.raises(NotImplementedError, match="no kernel for the op 'frobnicate', which makes "):
        compile_program(ir, "xla")


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_64_bit_inputs_are_narrowed_unless_told(engine, monkeypatch):
    """Whatever the stream is of."""
    monkeypatch.setenv("POPFN_ENGINE", engine)
    ir = popxl.Ir()
    with ir.main_graph:
        load, store = popxl.h2d_stream((2,), popxl.float64), popxl.d2h_stream((2,), popxl.float64)
        ops.host_store(store, ops.host_load(load) + 1.0)
    data = np.array([0.1, 0.2])
    with popxl.Session(ir) as session:
        np.testing.assert_array_equal(session.run({load: data}, downcast_inputs=False)[store], data + 1)
        with pytest.raises(popart_exception, match="type discrepancy: the input for .* is of float32"):
            session.run({load: data})


# State


def test_small_variables_share_arrays_and_keep_their_values():
    ir = popxl.Ir()
    with ir.main_graph:
        stream = popxl.d2h_stream((3,), popxl.float32)
        variables = [popxl.variable(np.full((k + 1,), k, np.float32), name=f"v{k}") for k in range(9)]
        constant = popxl.variable(np.full((3,), 7, np.float32), name="constant")
        big = popxl.variable(np.zeros((2000,), np.float32), name="big")
        for v in variables[:-1]:
            v += 1.0
        big += 1.0
        ops.host_store(stream, variables[2] + constant)
    executable = compile_program(ir, "xla")
    # The changing ones share an array; the big one has its own, and the two that do not change are too few.
    assert sorted(len(group.slots) for group in executable._groups) == [1, 1, 1, 8]
    for v in (*variables, constant, big):
        executable.write(v, v.data)
    run(executable, {}, [stream])
    executable.write(variables[1], np.array([50, 60], np.float32))
    (found,) = run(executable, {}, [stream])
    np.testing.assert_array_equal(found, np.float32(2 + 2 + 7))
    np.testing.assert_array_equal(executable.read(variables[0]), [2])
    np.testing.assert_array_equal(executable.read(variables[1]), [51, 61])
    np.testing.assert_array_equal(executable.read(variables[8]), np.full(9, 8))
    np.testing.assert_array_equal(executable.read(big), np.full(2000, 2))
    kept = executable.read(big)
    run(executable, {}, [stream])
    assert kept[0] == 2  # what was read is a copy


def test_state_that_may_differ_between_replicas_gets_an_axis_and_no_other():
    ir = popxl.Ir(replication=4)
    with ir.main_graph:
        stream = popxl.h2d_stream((2,), popxl.float32)
        same, sums, apart = [popxl.variable(np.zeros(2, np.float32), name=n) for n in ("same", "sums", "apart")]
        x = ops.host_load(stream)
        same += 1.0
        ops.add_(sums, ops.collectives.replicated_all_reduce(x))
        ops.add_(apart, x)
    executable = compile_program(ir, "xla")
    for v in (same, sums, apart):
        executable.write(v, v.data)
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    executable.run({stream: [data]}, {})
    np.testing.assert_array_equal(executable.read(same), [1, 1])
    np.testing.assert_array_equal(executable.read(sums), data.sum(0))
    np.testing.assert_array_equal(executable.read(apart), data)


def test_float8_state_and_streams():
    ir = popxl.Ir()
    dtype = popxl.float8_143
    with ir.main_graph:
        load, store = popxl.h2d_stream((3,), dtype), popxl.d2h_stream((3,), dtype)
        v = popxl.variable(np.array([1.0, 0.5, 0.75]), dtype, log2_scale=0)
        ops.host_store(store, ops.identity(v))
        updates.copy_var_update_(v, ops.host_load(load))
    executable = compile_program(ir, "xla")
    executable.write(v, v.data)
    given = np.array([1, 2, 0x80], np.uint8).view(dtype.as_numpy())
    (found,) = run(executable, {load: given}, [store])
    assert found.tobytes() == v.data.tobytes()
    assert executable.read(v).dtype == dtype.as_numpy() and executable.read(v).tobytes() == given.tobytes()


def test_float16_rounds_after_each_op():
    """XLA would keep the sum in float32 for the product, if it were allowed to."""
    ir = popxl.Ir()
    x = np.array([1.0, 1.0009765625, 1234.5], np.float16)
    y = np.array([0.0007, 0.0007, 0.3], np.float16)
    with ir.main_graph:
        load, other = [popxl.h2d_stream((3,), popxl.float16) for _ in range(2)]
        store = popxl.d2h_stream((3,), popxl.float16)
        t, u = ops.host_load(load), ops.host_load(other)
        ops.host_store(store, ((t + u) - t) * u)
    (found,) = run(compile_program(ir, "xla"), {load: x, other: y}, [store])
    np.testing.assert_array_equal(found, ((x + y) - x) * y)


def test_float64_and_int64():
    ir = popxl.Ir()
    with ir.main_graph:
        load, store = popxl.h2d_stream((2,), popxl.int64), popxl.d2h_stream((), popxl.float64)
        v = popxl.variable(np.array(0.1), popxl.float64, downcast=False)
        ops.host_store(store, ops.sum(ops.cast(ops.host_load(load), popxl.float64)) + v)
        ops.add_(v, v)
    executable = compile_program(ir, "xla")
    executable.write(v, v.data)
    (found,) = run(executable, {load: np.array([2**40, 1])}, [store])
    assert found == 2.0**40 + 1 + 0.1
    assert executable.read(v).dtype == np.float64 and executable.read(v) == 0.2


def test_large_constants():
    ir = popxl.Ir()
    data = np.arange(10000, dtype=np.float32)
    with ir.main_graph:
        store = popxl.d2h_stream((10000,), popxl.float32)
        ops.host_store(store, popxl.constant(data) * 2.0)
    executable = compile_program(ir, "xla")
    np.testing.assert_array_equal(run(executable, {}, [store])[0], data * 2)
    assert len(executable.source) < 10000


# Streams


def test_transfers_may_be_more_than_announced():
    ir = popxl.Ir()
    ir.num_host_transfers = 2
    with ir.main_graph:
        load, store = popxl.h2d_stream((), popxl.int32), popxl.d2h_stream((), popxl.int32)

        def body():
            ops.host_store(store, ops.host_load(load) * 10)
        ops.repeat(ir.create_graph(body), 3)
    executable = compile_program(ir, "xla")
    # Of two transfers the first is loaded, and stored to, a second time.
    for count, wanted in ((2, [10, 20]), (3, [10, 20, 30]), (4, [10, 20, 30, 0])):
        inputs = [np.array(i, np.int32) for i in (1, 2, 3, 4)[:count]]
        outputs = [np.zeros((), np.int32) for _ in range(count)]
        executable.run({load: inputs}, {store: outputs})
        assert [int(x) for x in outputs] == wanted


def test_inputs_may_change_after_a_run():
    """The array is where XLA reads it without a copy, and nothing but the state tells that the run is over."""
    ir, n = popxl.Ir(), 600
    with ir.main_graph:
        load = popxl.h2d_stream((n, n), popxl.float32)
        v = popxl.variable(np.zeros((n, n), np.float32), name="v")
        x = ops.host_load(load)
        updates.copy_var_update_(v, x @ x @ x @ x + x)
    executable = compile_program(ir, "xla")
    executable.write(v, v.data)
    room = np.zeros(n * n + 16, np.float32)
    start = -room.ctypes.data // 4 % 16
    data = room[start:start + n * n].reshape(n, n)
    assert data.ctypes.data % 64 == 0
    for _ in range(3):
        data[...] = np.eye(n)
        executable.run({load: [data]}, {})
        data[...] = 7
        np.testing.assert_array_equal(executable.read(v), 2 * np.eye(n))


# Loops and calls


def loop_program(count):
    ir = popxl.Ir()
    with ir.main_graph:
        load, store = popxl.h2d_stream((4, 4), popxl.float32), popxl.d2h_stream((4, 4), popxl.float32)
        x = ops.host_load(load)
        body = ir.create_graph(lambda t, w: ops.tanh(t @ w), x, x)
        x, = ops.repeat(body, count, x, x)
        ops.host_store(store, x)
    return compile_program(ir, "xla"), load, store


def test_loops_stay_loops():
    sources = [loop_program(count)[0].source for count in (8, 512)]
    assert all(" while(" in source and source.count(" tanh(") == 1 for source in sources)
    assert abs(len(sources[0]) - len(sources[1])) < 100


def test_a_graph_that_is_called_often_is_traced_once(monkeypatch):
    from popfn.host.engine import xla_trace, xla_values

    traced = []
    monkeypatch.setattr(xla_trace, "compute", lambda op, xs: traced.append(op.kind) or xla_values.compute(op, xs))
    ir = popxl.Ir()

    def layer(x, w: popxl.TensorByRef, scale):
        y = ops.gelu(x @ w) * scale
        w += 1.0
        return y
    with ir.main_graph:
        load, store = popxl.h2d_stream((4, 4), popxl.float32), popxl.d2h_stream((4, 4), popxl.float32)
        x = ops.host_load(load)
        weights = [popxl.variable(np.full((4, 4), k, np.float32)) for k in range(5)]
        graph = ir.create_graph(layer, x, weights[0], popxl.TensorSpec((), popxl.float32))
        for w in weights[:4]:
            x, = ops.call(graph, x, w, 0.1)
        x, = ops.call(graph, x, ops.transpose_(weights[4]), 0.1)
        ops.host_store(store, x)
    found = {}
    for engine in ("numpy", "xla"):
        executable = compile_program(ir, engine)
        for w in weights:
            executable.write(w, w.data)
        data = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
        found[engine] = run(executable, {load: data}, [store]) + [executable.read(w) for w in weights]
    assert traced.count("matmul") == 1
    for x, y in zip(found["xla"], found["numpy"]):
        np.testing.assert_allclose(x, y, 1e-5)


def test_a_gradient_summed_over_replicas_is_one_product():
    ir = popxl.Ir(replication=4)
    with ir.main_graph:
        load, store = popxl.h2d_stream((5, 6), popxl.float32), popxl.d2h_stream((6, 6), popxl.float32)
        x = ops.host_load(load)
        total = ops.collectives.replicated_all_reduce(ops.transpose(x) @ x, "mean")
        ops.host_store(store, total)
    executable = compile_program(ir, "xla")
    data = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    out = np.zeros((4, 6, 6), np.float32)
    executable.run({load: [data]}, {store: [out]})
    assert "f32[4,6,6]" not in executable.source
    np.testing.assert_allclose(out, np.broadcast_to(np.einsum("rbi,rbj->ij", data, data) / 4, out.shape), 1e-5, 1e-6)


# Printing


@pytest.mark.parametrize("replicas", [1, 2])
def test_print_tensor(capfd, replicas):
    ir = popxl.Ir(replication=replicas)
    with ir.main_graph:
        load = popxl.h2d_stream((2,), popxl.float32)

        def body(x):
            return ops.print_tensor(x, "value") + 1.0
        ops.repeat(ir.create_graph(body, popxl.TensorSpec((2,), popxl.float32)), 2, ops.host_load(load))
    executable = compile_program(ir, "xla")
    data = np.array([[1, 2], [5, 6]], np.float32)[:replicas].reshape((replicas, 2)[replicas == 1:])
    executable.run({load: [data]}, {})
    lines = capfd.readouterr().err.splitlines()
    found = [np.array(line.split(":")[1].strip(" []").split(), float).tolist() for line in lines]
    if replicas == 1:
        assert found == [[1, 2], [2, 3]]
    else:
        assert found == [[1, 2], [5, 6], [2, 3], [6, 7]]
