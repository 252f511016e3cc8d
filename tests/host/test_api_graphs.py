"""Ir, graphs, contexts and calls: what popfn.host builds, and what it refuses."""
import threading
from typing import List, Tuple

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import UndefinedValue, popart_exception

ops = popxl.ops
F32 = popxl.float32


def spec(*shape, dtype=F32):
    return popxl.TensorSpec(shape, dtype)


@pytest.fixture
def ir():
    return popxl.Ir()


@pytest.fixture
def main(ir):
    with ir.main_graph:
        yield ir.main_graph


class TestIr:
    def test_defaults(self, ir):
        assert (ir.num_host_transfers, ir.replication_factor, ir.instance_replication_factor) == (1, 1, 1)
        assert ir.main_graph is ir.main_graph and ir.main_graph.main_graph is ir.main_graph
        assert ir.main_graph.name == "" and ir.main_graph.ir is ir

    def test_identity(self, ir):
        assert ir == ir and ir != popxl.Ir() and len({ir, ir, popxl.Ir()}) == 2
        with pytest.raises(TypeError, match="an Ir can be compared with an Ir only, not with 3"):
            _ = ir == 3

    def test_replication(self, ir):
        assert popxl.Ir(4).replication_factor == popxl.Ir(4).instance_replication_factor == 4
        ir.replication_factor = 2
        options = ir._pb_ir.getSessionOptions()
        assert (options.enableReplicatedGraphs, options.replicatedGraphCount) == (True, 2)
        options.replicatedGraphCount = 8
        assert ir.replication_factor == 8
        with pytest.raises(TypeError, match="replication_factor must be an int, not 'popdist'"):
            ir.replication_factor = "popdist"

    def test_replication_by_a_launcher(self, monkeypatch):
        with pytest.raises(RuntimeError, match="not started by a launcher, which sets POPDIST_NUM_TOTAL_REPLICAS"):
            popxl.Ir("popdist")
        for name, value in (("TOTAL_REPLICAS", 8), ("LOCAL_REPLICAS", 2)):
            monkeypatch.setenv("POPDIST_NUM_" + name, str(value))
        monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "4")
        ir = popxl.Ir("popdist")
        assert (ir.replication_factor, ir.instance_replication_factor, ir._replica_offset) == (8, 2, 4)
        assert ir.replica_grouping(stride=4).assignment == [0, 1, 2, 3, 0, 1, 2, 3]

    @pytest.mark.parametrize("replication", [1.5, None, [2]])
    def test_replication_is_an_int(self, replication):
        with pytest.raises(TypeError, match='replication must be an int or "popdist"'):
            popxl.Ir(replication)

    def test_num_host_transfers_is_an_int(self, ir):
        ir.num_host_transfers = 8
        with pytest.raises(TypeError, match="must be an int, not 1.5"):
            ir.num_host_transfers = 1.5
        assert ir.num_host_transfers == 8

    def test_streams_in_use(self, ir, main):
        x, unused = popxl.h2d_stream((2,), F32), popxl.h2d_stream((2,), F32)
        y = popxl.d2h_stream((2,), F32)
        assert ir.get_all_h2d_streams() == ir.get_all_d2h_streams() == set()

        def inner():
            ops.host_store(y, ops.host_load(x))

        ir.create_graph(inner)
        assert ir.get_all_h2d_streams() == {x} and ir.get_all_d2h_streams() == {y}
        assert x != unused and x.tensor_id == "h2d_stream" and unused.tensor_id.startswith("h2d_stream__t")


class TestCreateGraph:
    def test_arguments(self, ir, main):
        got = {}

        def f(x, xs, n, d, *rest, scale=2.0, **named):
            got.update(x=x, xs=xs, n=n, d=d, rest=rest, scale=scale, named=named)
            return x, xs[1]

        value = popxl.variable(np.zeros((2, 3), np.float32))
        g = ir.create_graph(f, value, (spec(1), spec(2)), 7, {"a": value}, spec(4), spec(5), k=spec(6))
        assert list(g.inputs_by_name) == ["x", "xs_0", "xs_1", "rest_0", "rest_1", "k"]
        assert [t.shape for t in g.inputs] == [(2, 3), (1,), (2,), (4,), (5,), (6,)]
        assert got["x"] is g.inputs[0] and isinstance(got["xs"], list) and got["d"] == {"a": value}
        assert got["rest"] == g.inputs[3:5] and got["named"] == {"k": g.inputs[5]}
        assert (got["n"], got["scale"]) == (7, 2.0)
        assert g.outputs == (g.inputs[0], g.inputs[2])
        assert g.id == g.name == "TestCreateGraph.test_arguments.f_subgraph(0)"
        assert g.inputs[0].id == g.name + "/x" and g.inputs[0].scope == g.name and g.inputs[0].name == "x"

    def test_inputs_made_inside_come_last_and_keep_meta_shape(self, ir):
        def f(x):
            return popxl.graph_input((3,), popxl.int32, "late", meta_shape=(3, 3))

        g = ir.create_graph(f, popxl.TensorSpec((6,), F32, (2, 3)))
        assert [(t.name, t.meta_shape) for t in g.inputs] == [("x", (2, 3)), ("late", (3, 3))]
        assert g.outputs == (g.inputs[1],)

    def test_names_are_numbered_over_the_ir(self, ir):
        assert [ir.create_empty_graph(n).name for n in (None, "a", "")] == [
            "graph_subgraph(0)",
            "a_subgraph(1)",
            "graph_subgraph(2)",
        ]
        assert ir.create_graph(ops.add, spec(2), spec(2)).name == "add_subgraph(3)"

    def test_module(self, ir):
        class Scale(popxl.Module):
            def build(self, x, factor=2.0):
                return x * factor

        g = ir.create_graph(Scale(), spec(2))
        assert g.name == "TestCreateGraph.test_module.Scale_subgraph(0)" and list(g.inputs_by_name) == ["x"]
        with pytest.raises(NotImplementedError, match="Module has no build method"):
            ir.create_graph(popxl.Module())

    @pytest.mark.parametrize(
        "f, args, error, text",
        [
            (1, (), TypeError, "expected a function or a popxl.Module, not 1"),
            (lambda x: x, (), ValueError, "the arguments do not fit .*<lambda>: missing a required argument: 'x'"),
            (lambda x: x, (spec(1), spec(1)), ValueError, "do not fit .*: too many positional arguments"),
            (lambda x: 1, (spec(1),), ValueError, "must return None, a Tensor or Tensors; it returned 1"),
            (lambda x: "ab", (spec(1),), ValueError, "it returned 'a'"),
            (lambda x: {"a": x}, (spec(1),), ValueError, "it returned 'a'"),
            (lambda x: None, ([spec(1), 1],), TypeError, "the argument 'x' mixes tensors with other things"),
            (lambda x: None, ([1, spec(1)],), TypeError, "the argument 'x' mixes tensors with other things"),
            (lambda x: x[0], ([[spec(1)]],), ValueError, "it returned TensorSpec"),
        ],
    )
    def test_refused(self, ir, f, args, error, text):
        with pytest.raises(error, match=text):
            ir.create_graph(f, *args)
        assert ir._graphs == [ir.main_graph]

    def test_a_function_that_raises_leaves_no_graph_and_no_context(self, ir):
        def f(x):
            with popxl.name_scope("a"), popxl.ipu(1):
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            ir.create_graph(f, spec(2))
        assert ir._graphs == [ir.main_graph]
        with pytest.raises(RuntimeError):
            popxl.gcg()

    def test_by_reference(self, ir):
        ref = popxl.TensorByRef

        def f(a: ref, b: List[ref], c: Tuple[ref], d, *e: ref):
            assert a.shape == (1,)

        g = ir.create_graph(f, spec(1), [spec(2)], (spec(3),), spec(4), spec(5))
        assert [t in g._by_ref for t in g.inputs] == [True, True, True, False, True]

    def test_a_captured_tensor_is_refused(self, ir, main):
        w = popxl.variable(np.zeros(2, np.float32), name="w")
        with pytest.raises(ValueError, match=r"add: rhs is Tensor\[w .* belong to the current graph.*Pass it in"):
            ir.create_graph(lambda x: x + w, spec(2))


class TestGraph:
    def test_contents(self, ir, main):
        v, c = popxl.variable(1.0, name="v"), popxl.constant(2.0, name="c")
        y = v + c
        assert main.variables == (v,) and main.constants == (c,) and main.tensors == (v, c, y)
        assert v in main and main.get_tensor("add_out") is y
        g = ir.create_graph(lambda x: x, spec())
        assert v not in g
        ops.call(g, v)
        ops.call(g, v)
        assert main.called_graphs == (g,)

    def test_refusals(self, main):
        with pytest.raises(TypeError, match="a graph contains tensors, not int"):
            _ = 1 in main
        with pytest.raises(popart_exception, match="has no tensor with the id 'x'"):
            main.get_tensor("x")

    def test_hooks(self, ir):
        g, seen = ir.create_empty_graph(), []
        handle = g.register_op_created_hook(lambda op: seen.append(op.kind))
        with g:
            x = popxl.graph_input((2,), F32)
            ops.relu(x + x)
            ir.create_graph(lambda y: ops.exp(y), x)
        assert handle == 1 and seen == ["add", "relu"]
        g.remove_op_created_hook(handle)
        with pytest.raises(ValueError, match="has no hook with the handle 1"):
            g.remove_op_created_hook(handle)

    def test_names_of_tensors(self, ir, main):
        with popxl.name_scope("a"):
            with popxl.name_scope("b"):
                x = popxl.variable(1.0, name="x")
            y = popxl.variable(1.0)
        z, z2, z3 = (popxl.variable(1.0, name="z") for _ in range(3))
        assert [t.name for t in (x, y, z, z2, z3)] == ["a/b/x", "a/t", "z", "z__t0", "z__t1"]

    def test_an_op_records_what_it_does(self, main):
        x = popxl.variable(np.zeros((2, 3), np.float32))
        y = ops.sum(x, -1, keepdims=True)
        op, = main.ops
        assert (op.kind, op.inputs, op.outputs, op.attrs) == ("sum", (x,), (y,), {"axes": (1,), "keepdims": True})
        assert y.producer is op and x.consumer is op and x.producer is None and op.graph is main


class TestContext:
    def test_outside_of_any_graph(self):
        for f in (popxl.gcg, popxl.gmg, popxl.gir, lambda: popxl.variable(1.0), lambda: popxl.h2d_stream((), F32)):
            with pytest.raises(RuntimeError, match="there is no current graph"):
                f()

    def test_nesting(self, ir):
        g = ir.create_empty_graph()
        with ir.main_graph, g:
            assert popxl.gcg() is popxl.get_current_graph() is g
            assert popxl.gmg() is ir.main_graph and popxl.gir() is ir
            with g:
                pass
            assert popxl.gcg() is g
        with pytest.raises(RuntimeError):
            popxl.gcg()

    def test_two_irs(self, ir, main):
        text = r"cannot enter Graph\[main graph\]: the current graph, Graph\[main graph\], belongs to another Ir"
        with pytest.raises(RuntimeError, match=text):
            with popxl.Ir().main_graph:
                pass
        assert popxl.gcg() is main

    def test_threads_do_not_share_it(self, main):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(popxl.context._current.get().graph))
        thread.start()
        thread.join()
        assert seen == [None] and popxl.gcg() is main

    @pytest.mark.parametrize("mode", [True, False, "pass"])
    def test_in_sequence(self, main, mode):
        @popxl.in_sequence(mode)
        def decorated(x):
            return x + x

        with popxl.in_sequence(mode):
            t = decorated(popxl.variable(1.0))
        assert t.producer is main.ops[0]

    @pytest.mark.parametrize(
        "enter, error, text",
        [
            (lambda: popxl.in_sequence(None), TypeError, "mode must be True, False"),
            (lambda: popxl.in_sequence(1), ValueError, "mode must be True, False"),
            (lambda: popxl.in_sequence("x"), ValueError, "mode must be True, False"),
            (lambda: popxl.ipu("a"), TypeError, "the IPU must be an int"),
            (lambda: popxl.name_scope(3), TypeError, "the name must be a str"),
        ],
    )
    def test_refusals(self, main, enter, error, text):
        with pytest.raises(error, match=text):
            with enter():
                pass
        assert popxl.variable(1.0).name == "t"  # nothing is left behind

    def test_places(self, main):
        v = popxl.variable(np.zeros(2, np.float32))
        with pytest.raises(UndefinedValue, match="not known before an op uses it"):
            _ = v.ipu
        with popxl.ipu(1):
            on_one = ops.relu(v)
        assert (v.ipu, on_one.ipu, on_one.tile_set) == (1, 1, "compute")
        here = ops.relu(popxl.constant([1.0, 2.0]))
        with pytest.raises(ValueError, match=r"add: .*lhs is on the compute tiles of IPU 1, rhs .* IPU 0\. Move them"):
            on_one + here
        moved = on_one.copy_to_ipu(0)
        assert (moved.ipu, moved.name) == (0, "relu_out_c0") and (moved + here).ipu == 0
        with popxl.io_tiles():
            on_io = ops.relu(popxl.constant([1.0, 2.0]))
        back = ops.io_tile_copy(on_io)
        assert (on_io.tile_set, back.tile_set, (back + here).tile_set) == ("io", "compute", "compute")
        assert ops.io_tile_copy(back).tile_set == "io"

    def test_the_source_of_a_copy_must_be_known(self, main):
        v = popxl.variable(1.0)
        with pytest.raises(ValueError, match="pass source"):
            ops.ipu_copy(v, 1)
        assert v.copy_to_ipu(1, 0).ipu == 1


class TestCall:
    @pytest.fixture
    def sub(self, ir):
        return ir.create_graph(lambda x, y: (x - y, y), spec(2), spec(3, 2))

    def test_call(self, main, sub):
        x, y = popxl.variable([1.0, 2.0]), popxl.variable(np.zeros((3, 2), np.float32))
        outputs = ops.call(sub, x, y)
        assert [t.shape for t in outputs] == [(3, 2), (3, 2)] and [t.graph for t in outputs] == [main, main]
        assert main.ops[-1].kind == "call" and main.ops[-1].attrs == {"graph": sub, "modified": ()}
        assert main.ops[-1].inputs == (x, y)

    def test_lists_dicts_and_host_values(self, main, sub):
        x, y = popxl.variable([1.0, 2.0]), popxl.variable(np.zeros((3, 2), np.float32))
        for inputs, named in (
            (([x, y],), None),
            ((x,), {sub.inputs[1]: y}),
            ((), {sub.inputs[1]: y, sub.inputs[0]: x}),
        ):
            assert ops.call_with_info(sub, *inputs, inputs_dict=named).inputs == (x, y)
        info = ops.call_with_info(sub, x, inputs_dict={sub.inputs[1]: np.ones((3, 2))})
        assert info.inputs[1].data.dtype == np.float32

    def test_no_outputs(self, ir, main):
        assert ops.call(ir.create_graph(lambda x: None, spec(2)), popxl.variable([1.0, 2.0])) == ()

    def test_refusals(self, ir, main, sub):
        x, y = popxl.variable([1.0, 2.0]), popxl.variable(np.zeros((3, 2), np.float32))
        first, second = sub.inputs
        other = popxl.Ir().create_empty_graph()
        cases = [
            ((), {}, ValueError, "has 2 inputs; missing: x, y"),
            ((x,), {}, ValueError, "missing: y"),
            ((x, y, y), {}, ValueError, "has 2 inputs, 3 were given"),
            ((x, y), {first: x}, ValueError, "is given twice"),
            ((x,), {x: y}, ValueError, "which is not in"),
            ((x,), {sub.outputs[0]: y}, popart_exception, "which is no input of"),
            ((x,), {"y": y}, TypeError, "expected a Tensor, not 'y'"),
            ((x, first), {}, ValueError, "does not belong to the current graph"),
            ((x, x), {}, popart_exception, "cannot take .*shapes and dtypes must agree"),
            ((x, ops.cast(y, popxl.int32)), {}, popart_exception, "shapes and dtypes must agree"),
            ((x, 1.0), {}, popart_exception, "shapes and dtypes must agree"),
            ((x, "a"), {}, TypeError, "'a' is no input"),
        ]
        for inputs, named, error, text in cases:
            before = main.tensors, list(main.ops)
            with pytest.raises(error, match=text):
                ops.call(sub, *inputs, inputs_dict=named)
            assert (main.tensors, main.ops) == before
        with pytest.raises(TypeError, match="expected a Graph, not 1"):
            ops.call(1)
        with pytest.raises(ValueError, match="belongs to another Ir"):
            ops.call(other)
        with pytest.raises(IndexError, match="missing: y"):
            ops.call_with_info(sub, x, check_inputs=False)

    def test_call_site(self, main, sub):
        x, y = popxl.variable([1.0, 2.0]), popxl.variable(np.zeros((3, 2), np.float32))
        info = ops.call_with_info(sub, x, y)
        first, second = sub.inputs
        assert (info.called_graph, info.inputs) == (sub, (x, y)) and len(info.outputs) == 2
        assert info.parent_input(1) is y and info.parent_output(0) is info.outputs[0]
        assert info.graph_to_parent(first) is x and info.graph_to_parent(second) is y
        assert info.graph_to_parent(sub.outputs[0]) is info.outputs[0]
        assert info.parent_to_graph(y) is second
        for index in ("graph_to_parent_input_index", "parent_to_graph_output_index"):
            assert getattr(info, index)(7) == 7
        for call, error, text in (
            (lambda: info.parent_input(2), IndexError, "no tensor at index 2: there are 2"),
            (lambda: info.parent_output(-1), IndexError, "no tensor at index -1"),
            (lambda: info.graph_to_parent(x), ValueError, "neither an input nor an output"),
            (lambda: info.graph_to_parent(1), TypeError, "expected a Tensor"),
            (lambda: info.parent_to_graph(first), ValueError, "is no input of the call"),
            (lambda: info.set_parent_input_modified(first), popart_exception, "is no input of the call"),
        ):
            with pytest.raises(error, match=text):
                call()

    def test_modified_inputs(self, ir, main):
        def f(x: popxl.TensorByRef, y):
            x += y

        g = ir.create_graph(f, spec(2), spec(2))
        x, y = popxl.variable([1.0, 2.0]), popxl.variable([1.0, 2.0])
        info = ops.call_with_info(g, x, y)
        assert main.ops[-1].attrs["modified"] == (0,)
        info.set_parent_input_modified(y)
        assert main.ops[-1].attrs["modified"] == (0, 1)
