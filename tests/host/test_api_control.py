"""Repeats, conditionals, hooks, contexts, transforms and modules: what popfn.host builds, and what it refuses."""
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops = popxl.ops
F32, I32 = popxl.float32, popxl.int32


def spec(*shape, dtype=F32):
    return popxl.TensorSpec(shape, dtype)


def raises(error, text):
    return pytest.raises(error, match=text)


@pytest.fixture
def ir():
    return popxl.Ir()


@pytest.fixture
def main(ir):
    with ir.main_graph:
        yield ir.main_graph


def tensor(*shape, dtype=np.float32):
    return popxl.variable(np.zeros(shape, dtype))


class TestRepeat:
    @pytest.fixture
    def body(self, ir):
        def body(x: popxl.Tensor, total: popxl.TensorByRef):
            total += x
            return (x + 1.0,)

        return ir.create_graph(body, spec(2), spec(2))

    def test_structure(self, body, main):
        x, total = tensor(2), tensor(2)
        (y,) = ops.repeat(body, 3, x, total)
        op = y.producer
        assert (op.kind, op.inputs, op.attrs["count"], op.attrs["modified"]) == ("repeat", (x, total), 3, (1,))
        wrapper = op.attrs["graph"]
        assert wrapper.name.endswith("body_subgraph(0)__loop_wrapper_subgraph(1)")
        assert [o.kind for o in wrapper.ops] == ["call"] and wrapper.called_graphs == (body,)
        assert wrapper.ops[0].attrs["modified"] == (1,) and main.called_graphs == (wrapper,)

    def test_outputs_that_the_body_gets_later_change_nothing(self, body, main):
        info = ops.repeat_with_info(body, 3, tensor(2), tensor(2))
        with body:
            popxl.graph_output(ops.exp(body.inputs[0]))
        assert len(info.outputs) == len(info.called_graph.outputs) == 1

    def test_info(self, ir, main):
        def step(x, scale):
            return x * scale

        graph = ir.create_graph(step, spec(2), spec(2))
        x, scale = tensor(2), tensor(2)
        info = ops.repeat_with_info(graph, 2, x, inputs_dict={graph.inputs[1]: scale})
        assert info.inputs == (x, scale) and info.called_graph is not graph
        assert info.parent_input(2) is x and info.parent_input(3) is scale and info.parent_output(0) is info.outputs[0]
        for index in (-1, 0, 1, 4):
            with raises(IndexError, "there are 2, from 2 on"):
                info.parent_input(index)
        assert (info.graph_to_parent_output_index(0), info.parent_to_graph_output_index(1)) == (-1, 2)
        assert info.graph_to_parent(info.called_graph.inputs[1]) is scale
        with raises(ValueError, "neither an input nor an output"):
            info.graph_to_parent(graph.inputs[0])
        info.set_parent_input_modified(scale)
        info.set_parent_input_modified(x)  # it is carried: no effect
        assert info.outputs[0].producer.attrs["modified"] == (1,)
        assert info.called_graph.ops[0].attrs["modified"] == (1,)

    def test_refused(self, ir, body, main):
        x = tensor(2)
        pair = ir.create_graph(lambda x: (x, x), spec(2))
        for act, error, text in (
            (lambda: ops.repeat(body, -1, x, x), ValueError, "repeat_count must not be negative: -1"),
            (lambda: ops.repeat(body, 1.0, x, x), TypeError, "repeat_count must be an int, not 1.0"),
            (lambda: ops.repeat(body, 2, x), ValueError, "has 2 inputs; missing: total"),
            (lambda: ops.repeat(pair, 2, x), ValueError, "has 1 inputs and 2 outputs: each output needs an input"),
            (lambda: ops.repeat(body, 2, x, tensor(3)), popart_exception, "shapes and dtypes must agree"),
            (lambda: ops.repeat(3, 2, x), TypeError, "repeat: expected a Graph, not 3"),
        ):
            with raises(error, text):
                act()
        assert not any(op.kind == "repeat" for op in main.ops)

    def test_a_carried_type_that_changes(self, ir, main):
        ops.repeat(ir.create_graph(lambda x: ops.sum(x), spec(2)), 2, tensor(2))
        with raises(popart_exception, r"repeat of .*, which .* cannot run: the output .* cannot become the input"):
            popxl.Session(ir)


class TestPlaces:
    def test_of_what_calls_take_and_make(self, ir, main):
        def move(x, y):
            with popxl.io_tiles():
                x = x + 1.0
            return x, ops.io_tile_copy(x)

        graph = ir.create_graph(move, spec(2), spec(2))
        x, y = tensor(2), tensor(2)
        for made in (ops.call(graph, x, y), ops.repeat(graph, 2, x, y)):
            assert [t.tile_set for t in made] == ["io", "compute"]
        assert (x.tile_set, y.tile_set) == ("io", "compute")


class TestConditional:
    @pytest.fixture
    def graphs(self, ir):
        def up(x, y):
            return x + y

        def down(x):
            return x - 1.0

        return ir.create_graph(up, spec(2), spec(2)), ir.create_graph(down, spec(2))

    def test_info(self, graphs, main):
        up, down = graphs
        cond, x, y, z = popxl.variable(True), tensor(2), tensor(2), tensor(2)
        info = ops.conditional_with_info(cond, up, down, [x], [z], then_inputs_dict={up.inputs[1]: y})
        assert info.called_graph == (up, down) and info.inputs == (cond, x, y, z)
        assert info.outputs[0].shape == (2,) and main.called_graphs == (up, down)
        assert [info.is_parent_index_in_then_branch(i) for i in (1, 2, 3)] == [True, True, False]
        assert [info.graph_to_parent(t) for t in up.inputs + down.inputs] == [x, y, z]
        assert info.graph_to_parent(down.outputs[0]) is info.outputs[0]
        assert (info.parent_to_graph(y), info.parent_to_graph(z)) == (up.inputs[1], down.inputs[0])
        assert info.graph_to_parent_input_index(0, False) == 3 and info.parent_to_graph_input_index(3) == 0
        assert info.graph_to_parent_output_index(0) == info.parent_to_graph_output_index(0, False) == 0
        for act, error, text in (
            (lambda: info.parent_to_graph(cond), IndexError, "no branch input 0: they are 1 to 3"),
            (lambda: info.graph_to_parent_input_index(1, False), IndexError, "has no input 1: there are 1"),
            (lambda: info.parent_to_graph(tensor(2)), ValueError, "is no input of the conditional"),
            (lambda: info.set_parent_input_modified(x), NotImplementedError, "take values only"),
        ):
            with raises(error, text):
                act()

    def test_refused(self, ir, graphs, main):
        def write(x: popxl.TensorByRef):
            x += 1.0
            return x

        up, down = graphs
        cond, x = popxl.variable(True), tensor(2)
        no_output = ir.create_graph(lambda x: None, spec(2))
        for act, error, text in (
            (lambda: ops.conditional(True, up, down, [x, x], [x]), TypeError, "cond must be a Tensor, not True"),
            (lambda: ops.conditional(cond, down, no_output, [x], [x]), ValueError, "as many outputs: 1, 0"),
            (lambda: ops.conditional(cond, down, down, x, x), TypeError, "the inputs of a branch are a list"),
            (lambda: ops.conditional(cond, down, 3, [x], [x]), TypeError, "expected a Graph, not 3"),
            (
                lambda: ops.conditional(cond, *[ir.create_graph(write, spec(2))] * 2, [x], [x]),
                NotImplementedError,
                "takes an input by reference; pass values",
            ),
        ):
            with raises(error, text):
                act()

    @pytest.mark.parametrize("value", [1.0, [True, False]])
    def test_a_condition_that_is_no_bool(self, ir, graphs, main, value):
        ops.conditional(popxl.variable(value), graphs[1], graphs[1], [tensor(2)], [tensor(2)])
        with raises(popart_exception, "conditional of .*, which .* cannot run: the condition .* is not one bool"):
            popxl.Session(ir)


class TestContext:
    def test_it_follows_the_blocks(self, ir):
        context = popxl.context.get_current_context()
        with raises(RuntimeError, "there is no current graph"):
            _ = context.graph
        with ir.main_graph, popxl.name_scope("a"), popxl.ipu(1), popxl.io_tiles():
            assert (context.graph, context.main_graph, context.ir) == (ir.main_graph, ir.main_graph, ir)
            assert (context.ipu_id, context.io_tile_set, context.name_scopes) == (1, True, ["a"])
            context.push_name_scope("b")
            assert popxl.constant(1).name == "a/b/t" and context.pop_name_scope() == "b"
            inner = ir.create_empty_graph()
            context.push_graph(inner)
            assert context.pop_graph() is inner and context.graph is ir.main_graph

    def test_hooks_of_all_graphs(self, ir, main):
        context, seen = popxl.context.get_current_context(), []
        handle = context.register_op_created_hook(lambda op: seen.append(op.kind))
        try:
            ir.create_graph(lambda x: ops.exp(x), spec(2))
            ops.abs(tensor(2))
        finally:
            context.remove_op_created_hook(handle)
        ops.abs(tensor(2))
        assert seen == ["exp", "abs"]
        with raises(ValueError, "there is no hook with the handle"):
            context.remove_op_created_hook(handle)


class TestTransforms:
    def test_io_tile_exchange(self, ir, main):
        streams = [popxl.h2d_stream((2,), F32) for _ in range(2)]
        with popxl.transforms.io_tile_exchange():
            loaded = [ops.host_load(stream) for stream in streams]
        assert {t.tile_set for t in loaded} == {"io"}
        with raises(RuntimeError, "waits for Tensor.*, which is loaded in the same block"):
            with popxl.transforms.io_tile_exchange():
                ops.host_store(popxl.d2h_stream((2,), F32), ops.host_load(streams[0]))
        with raises(RuntimeError, "is neither a load nor a store. Keep computations outside"):
            with popxl.transforms.io_tile_exchange():
                ops.exp(ops.host_load(streams[0]))
        with popxl.transforms.io_tile_exchange(verify_overlap=False):
            ops.exp(ops.host_load(streams[0]))

    def test_the_others(self, ir, main):
        with popxl.transforms.merge_exchange():
            ops.host_load(popxl.h2d_stream((2,), F32))
        assert popxl.transforms.decompose_sum(main) is main
        with raises(TypeError, "decompose_sum: expected a Graph, not 1"):
            popxl.transforms.decompose_sum(1)

    def test_dot_checkpoint(self, ir, main, tmp_path):
        ops.exp(popxl.variable(1.0, name="x"))
        ir.dot_checkpoint("early", str(tmp_path))
        ir._pb_ir.getSessionOptions().dotChecks = {"EARLY"}
        assert not list(tmp_path.iterdir())
        ir.dot_checkpoint("early", str(tmp_path))
        assert '"x" -> "#0";' in (tmp_path / "early.dot").read_text()

    def test_code_loading(self, ir, main):
        graph = ir.create_graph(lambda x: ops.exp(x), spec(2))
        assert ops.remote_code_load(graph, "executable") is None
        assert main.ops[-1].kind == "remote_code_load" and main.called_graphs == ()
        with raises(NotImplementedError, "the destination must be \"executable\", not 'buffer'"):
            ops.remote_code_load(graph, "buffer")
        with raises(ValueError, "is the current graph"):
            ops.remote_code_load(main, "executable")


class TestModules:
    @pytest.mark.parametrize(
        "path, name",
        [
            ("ops.call", "CallSiteInfo"),
            ("ops.conditional", "ConditionalSiteInfo"),
            ("ops.collectives.replicated_all_gather", "replicated_all_gather"),
            ("ops.var_updates.accumulate", "accumulate_"),
            ("ops.matmul", "matmul_pow2scaled"),
            ("ops.max", "maximum"),
            ("transforms.autodiff", "ExpectedConnectionType"),
            ("tensor", "remote_variable"),
            ("remote_buffer", "RemoteBuffer"),
        ],
    )
    def test_paths_of_popxl(self, path, name):
        assert hasattr(importlib.import_module("popfn.host." + path), name)
        assert callable(ops.call) and callable(ops.conditional) and callable(popxl.remote_buffer)

    SCRIPT = """
import sys
import popart
import popxl
from popxl import ops
from popxl.ops.call import CallSiteInfo
import popxl.ops.collectives.replicated_all_gather
ir = popxl.Ir()
with ir.main_graph:
    y = popxl.d2h_stream((), popxl.float32)
    ops.host_store(y, popxl.variable(2.0) * 3.0)
with popxl.Session(ir, "cpu") as session:
    print(sys.argv[1:], session.run()[y], __name__, popart.popart_exception.__name__)
try:
    popart.DeviceManager
except AttributeError as error:
    print(error)
"""

    def run(self, *arguments, **options):
        command = [sys.executable, "-m", "popfn.host", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)

    def test_scripts(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(self.SCRIPT)
        done = self.run(script, "a", "--b")
        assert done.stdout.splitlines()[0] == "['a', '--b'] 6.0 __main__ popart_exception", done.stderr
        assert "popart.DeviceManager is not available in popfn.host" in done.stdout

    def test_an_sdk_goes_first(self, tmp_path):
        (tmp_path / "sdk").mkdir()
        (tmp_path / "sdk" / "popxl.py").write_text("name = 'the SDK'")
        script = tmp_path / "script.py"
        script.write_text("import popxl\nprint(popxl.__name__, getattr(popxl, 'name', 'host'))")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "sdk")}
        done = self.run(script, env=environment)
        assert done.stdout == "popxl the SDK\n" and "popxl is installed here" in done.stderr
        assert self.run("--force", script, env=environment).stdout == "popfn.host host\n"

    def test_no_script(self, tmp_path):
        done = self.run()
        assert done.returncode == 2 and done.stderr.startswith("usage: python -m popfn.host")
        done = self.run(tmp_path / "nothing.py")
        assert done.returncode == 2 and "popfn.host: there is no file" in done.stderr
        assert self.run("--help").returncode == 0
