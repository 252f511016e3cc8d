"""autodiff: what the grad graph takes and gives, what happens to the forward graph, numbers, refusals."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception
from popfn.host.transforms.autodiff import ExpectedConnection, ExpectedConnectionType, autodiff

ops = popxl.ops
F16, F32, I32 = popxl.float16, popxl.float32, popxl.int32
Fwd = ExpectedConnectionType.Fwd


def spec(*shape, dtype=F32):
    return popxl.TensorSpec(shape, dtype)


def raises(error, text):
    return pytest.raises(error, match=text)


def inputs_of(info):
    return [(c.connection_type.name, c.fwd_tensor.name) for c in info.expected_inputs]


def outputs_of(info):
    return [(c.connection_type.name, c.fwd_tensor.name) for c in info.expected_outputs]


def names(tensors):
    return [t.name for t in tensors]


def kinds(graph):
    return [op.kind for op in graph.ops]


def evaluate(ir, tensors):
    """The values of tensors of the main graph."""
    with ir.main_graph:
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in tensors]
        for stream, t in zip(streams, tensors):
            ops.host_store(stream, t)
    with popxl.Session(ir) as session:
        out = session.run()
    return [out[s] for s in streams]


def gradients(fn, *values, seeds=None, replication=1, **options):
    """The gradients of the sum of what `fn` gives, or of it times `seeds`, with respect to float arrays."""
    ir = popxl.Ir(replication)
    with ir.main_graph:
        operands = [popxl.variable(v) for v in values]
        fwd = ir.create_graph(fn, *operands)
        required = [t for t in fwd.inputs if t.dtype.is_floating_point]
        count = len(fwd.outputs)
        info = autodiff(fwd, grads_required=required, **options)
        call = ops.call_with_info(fwd, *operands)
        given = [
            popxl.constant(np.ones(t.shape) if seeds is None else seeds[i], t.dtype)
            for i, t in enumerate(call.outputs[:count])
        ]
        grads = ops.call(info.graph, *given, inputs_dict=info.inputs_dict(call))
    return evaluate(ir, grads)


def linear(x, w, b):
    return ops.relu(x @ w + b) * 2.0


@pytest.fixture
def ir():
    return popxl.Ir()


class TestInfo:
    def test_seeds_come_first_and_values_in_the_order_of_their_ids(self, ir):
        fwd = ir.create_graph(linear, spec(2, 3), spec(3, 4), spec(4))
        info = autodiff(fwd)
        assert inputs_of(info) == [("FwdGrad", "mul_out")] + [
            ("Fwd", name) for name in ("mul_out", "relu_out", "t", "w", "x")
        ]
        assert outputs_of(info) == [("FwdGrad", "x"), ("FwdGrad", "w"), ("FwdGrad", "b")]
        assert info.graph.name == "linear_subgraph(0)_bwd" and info.forward_graph is fwd
        assert [t.spec for t in info.graph.inputs] == [t.spec for t in info.inputs]
        assert [t.spec for t in info.graph.outputs] == [t.spec for t in info.outputs] == [t.spec for t in fwd.inputs]
        assert info.inputs == tuple(c.fwd_tensor for c in info.expected_inputs)
        assert info.graph.inputs[0].name == "Gradient___mul_out"

    def test_repr(self, ir):
        info = autodiff(ir.create_graph(ops.exp, spec(2)))
        assert repr(ExpectedConnection(info.inputs[0], Fwd)) == (
            "(ExpectedConnectionType.Fwd, Tensor[exp_subgraph(0)/exp_out float32 (2,)])"
        )
        assert repr(info).startswith("GradGraphInfo(graph=Graph[exp_subgraph(0)_bwd], forward_graph=")

    def test_provided_and_required_decide_what_goes_in_and_out(self, ir):
        fwd = ir.create_graph(lambda x, y: [ops.exp(x), ops.sin(x), x * y], spec(2), spec(2))
        x, y = fwd.inputs
        info = autodiff(fwd, grads_provided=[fwd.outputs[1], fwd.outputs[0]], grads_required=(x,))
        assert inputs_of(info) == [("FwdGrad", "sin_out"), ("FwdGrad", "exp_out"), ("Fwd", "exp_out"), ("Fwd", "x")]
        assert outputs_of(info) == [("FwdGrad", "x")]
        assert outputs_of(autodiff(fwd, [fwd.outputs[2]], [y, x])) == [("FwdGrad", "y"), ("FwdGrad", "x")]

    def test_an_intermediate_tensor_may_be_required(self, ir):
        kept = []

        def fn(x):
            kept.append(ops.exp(x))
            return ops.sin(kept[0])

        fwd = ir.create_graph(fn, spec(2))
        assert outputs_of(autodiff(fwd, grads_required=kept)) == [("FwdGrad", "exp_out")]

    def test_maps_of_a_call(self, ir):
        fwd = ir.create_graph(lambda x, y: x * ops.sin(y), spec(2), spec(2))
        info = autodiff(fwd, grads_required=[fwd.inputs[1]])
        with ir.main_graph:
            x, y, seed = [popxl.variable([1.0, 2.0], name=name) for name in ("x", "y", "seed")]
            call = ops.call_with_info(fwd, x, y)
            wired = info.inputs_dict(call)
            grad_call = ops.call_with_info(info.graph, seed, inputs_dict=wired)
        assert names(wired) == names(info.graph.inputs[1:])
        assert names(wired.values()) == ["mul_out", "sin_out", "x", "y"]
        (grad,) = grad_call.outputs
        assert info.fwd_graph_ins_to_grad_parent_outs(grad_call) == {fwd.inputs[1]: grad}
        assert info.fwd_parent_ins_to_grad_parent_outs(call, grad_call) == {y: grad}
        with raises(TypeError, r"inputs_dict: the call is of Graph\[.*_bwd.*\], not of Graph\[.*_subgraph\(0\)\]"):
            info.inputs_dict(grad_call)
        with raises(TypeError, "fwd_graph_ins_to_grad_parent_outs: the call is of"):
            info.fwd_graph_ins_to_grad_parent_outs(call)
        with raises(TypeError, "fwd_parent_ins_to_grad_parent_outs: expected a CallSiteInfo, not Graph"):
            info.fwd_parent_ins_to_grad_parent_outs(fwd, grad_call)


class TestForwardGraph:
    def test_values_become_outputs_of_the_graph_and_of_its_calls(self, ir):
        fwd = ir.create_graph(linear, spec(2, 3), spec(3, 4), spec(4))
        with ir.main_graph:
            x, w, b = [popxl.variable(np.ones(t.shape, np.float32)) for t in fwd.inputs]
            before = ops.call_with_info(fwd, x, w, b)
            y = before.outputs[0]
        autodiff(fwd)
        assert names(fwd.outputs) == ["mul_out", "relu_out", "t"]
        assert len(before.outputs) == 3 and before.outputs[0] is y
        assert before.outputs[1].name == "linear_subgraph(0)/relu_out" and before.outputs[1].producer is y.producer
        assert [t.spec for t in before.outputs] == [t.spec for t in fwd.outputs]
        with ir.main_graph:
            assert len(ops.call(fwd, x, w, b)) == 3
        values = evaluate(ir, before.outputs)
        np.testing.assert_array_equal(values[0], np.full((2, 4), 8.0))
        np.testing.assert_array_equal(values[1], np.full((2, 4), 4.0))
        assert values[2] == 2.0

    def test_a_second_time_adds_nothing(self, ir):
        fwd = ir.create_graph(linear, spec(2, 3), spec(3, 4), spec(4))
        provided = fwd.outputs
        first = autodiff(fwd, provided)
        count = len(fwd.outputs)
        second = autodiff(fwd, provided)
        assert len(fwd.outputs) == count and inputs_of(first) == inputs_of(second)
        assert first.graph is not second.graph

    def test_names_do_not_depend_on_the_context(self, ir):
        fwd = ir.create_graph(linear, spec(2, 3), spec(3, 4), spec(4))
        with ir.main_graph, popxl.name_scope("scope"), popxl.ipu(1):
            call = ops.call_with_info(fwd, *[popxl.variable(np.ones(t.shape, np.float32)) for t in fwd.inputs])
            info = autodiff(fwd)
            assert popxl.gcg() is ir.main_graph
        assert not any("scope" in t.name for t in info.graph.tensors)
        assert call.outputs[1].name == "linear_subgraph(0)/relu_out"
        assert {op.ipu for op in info.graph.ops} == {0}

    def test_gradient_ops_are_where_the_forward_ops_are(self, ir):
        def fn(x):
            with popxl.ipu(1):
                return ops.sin(x)

        info = autodiff(ir.create_graph(fn, spec(2)))
        assert {op.ipu for op in info.graph.ops} == {1}


class TestNumbers:
    def test_a_canonical_use(self):
        x, w, b = np.array([[1.0, -2.0]]), np.array([[1.0, 2.0, 0.5], [0.0, 3.0, -1.0]]), np.array([0.5, 0.0, 0.0])
        grads = gradients(linear, *[v.astype(np.float32) for v in (x, w, b)])
        back = 2.0 * (x @ w + b > 0)
        for grad, expected in zip(grads, (back @ w.T, x.T @ back, back[0])):
            np.testing.assert_allclose(grad, expected)

    def test_a_tensor_that_is_used_several_times_gets_the_sum(self):
        (grad,) = gradients(lambda x: ops.exp(x) + x * x + x, np.array([0.5, -1.0], np.float32))
        np.testing.assert_allclose(grad, np.exp([0.5, -1.0]) + [2.0, -1.0], rtol=1e-6)

    def test_a_gradient_may_be_the_one_that_is_given(self):
        ones, seeds = np.ones(2, np.float32), [[1, 2], [3, 4], [5, 6]]
        grads = gradients(lambda x, y: [ops.identity(x), x, y], ones, ones, seeds=seeds)
        np.testing.assert_array_equal(grads, [[4, 6], [5, 6]])

    def test_gradients_do_not_pass_what_is_detached_or_has_none(self):
        def fn(x):
            return x * x.detach() + ops.reshape_(ops.sin(x), (2,)) + ops.detach_(x)

        (grad,) = gradients(fn, np.array([3.0, 4.0], np.float32))
        np.testing.assert_array_equal(grad, [3, 4])

    def test_an_integer_output_leads_nowhere(self):
        def fn(x):
            values, indices = ops.topk(x, 2, 0, True, True)
            return [values, indices, ops.argmax(x)]

        (grad,) = gradients(fn, np.array([1.0, 3.0, 2.0], np.float32))
        np.testing.assert_array_equal(grad, [0, 1, 1])

    def test_zero_gradients(self):
        ir = popxl.Ir()
        info = autodiff(ir.create_graph(ops.floor, spec(2)))
        assert inputs_of(info) == [("FwdGrad", "floor_out"), ("Fwd", "t")]
        (grad,) = gradients(lambda x: ops.floor(x) + ops.ceil(x) + ops.sign(x), np.array([1.5, -2.0], np.float32))
        np.testing.assert_array_equal(grad, [0, 0])

    @pytest.mark.parametrize(
        "fn, x, expected",
        [
            (ops.relu, [-1, 0, 2], [0, 0, 1]),
            (ops.abs, [-1, 0, 2], [-1, 0, 1]),
            (lambda x: ops.clip(x, -1, 2), [-1, 0, 2], [0, 1, 0]),
            (ops.max, [3, 1, 3], [1, 0, 1]),
            (ops.min, [1, 1, 3], [1, 1, 0]),
            (lambda x: ops.maximum(x, ops.identity(x)), [3, 1], [2, 2]),
            (ops.prod, [0, 2, 3], [6, 0, 0]),
            (ops.prod, [0, 2, 0], [0, 0, 0]),
            (ops.l2, [0, 0], [0, 0]),
            (ops.l2, [3, 4], [0.6, 0.8]),
            (lambda x: ops.pow(x, popxl.constant([0.0, 1.0, 2.0])), [0, 0, 0], [0, 1, 0]),
            (lambda x: ops.pow(popxl.constant([0.0, 1.0, 2.0]), x), [2, 2, 0], [0, 0, np.log(2)]),
            (ops.gelu, [-100, 0, 100], [0, 0.5, 1]),
            (ops.geluerf, [-100, 0, 100], [0, 0.5, 1]),
            (ops.swish, [-200, 0, 200], [0, 0.5, 1]),
            (lambda x: ops.topk(x, 1, 0, True, True)[0], [3, 1, 3], [1, 0, 0]),
        ],
    )
    def test_kinks_and_extremes(self, fn, x, expected):
        (grad,) = gradients(lambda x: ops.sum(fn(x)), np.array(x, np.float32))
        np.testing.assert_allclose(grad, expected, rtol=1e-6, atol=1e-30)

    def test_max_pool_gives_the_gradient_to_all_that_are_largest(self):
        (grad,) = gradients(lambda x: ops.max_pool(x, (2, 2)), np.array([[[[1, 1, 0], [1, 0, 0]]]], np.float32))
        np.testing.assert_array_equal(grad, [[[[1, 2, 0], [1, 0, 0]]]])

    def test_mul_of_float16_with_one_float32(self):
        x, y = np.array([1.5, 2.0], np.float16), np.array([0.1], np.float32)
        to_x, to_y = gradients(lambda x, y: x * y, x, y)
        assert (to_x.dtype, to_y.dtype) == (np.float16, np.float32)
        np.testing.assert_array_equal(to_x, np.full(2, 0.1, np.float16))
        np.testing.assert_array_equal(to_y, [3.5])

    def test_a_grad_graph_can_be_differentiated(self, ir):
        with ir.main_graph:
            x, one = popxl.variable([0.5, 2.0]), popxl.constant([1.0, 1.0])
            first = autodiff(ir.create_graph(ops.sin, x))
            second = autodiff(first.graph, grads_required=first.graph.inputs[1:])
            call = ops.call_with_info(first.forward_graph, x)
            grad_call = ops.call_with_info(first.graph, one, inputs_dict=first.inputs_dict(call))
            grads = ops.call(second.graph, one, inputs_dict=second.inputs_dict(grad_call))
        np.testing.assert_allclose(evaluate(ir, grads), [-np.sin([0.5, 2.0])], rtol=1e-6)

    def test_long_chains(self):
        def fn(x):
            for _ in range(3000):
                x = x + 0.001
            return x

        np.testing.assert_array_equal(gradients(fn, np.ones(1, np.float32)), [[1]])

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_casts_to_and_from_8_bit_floats(self, dtype):
        def fn(x):
            coarse = ops.pow2scale_cast_to_fp8(x, popxl.constant(2), popxl.float8_143)
            return ops.pow2scale_cast_from_fp8(coarse, popxl.constant(-1), x.dtype)

        (grad,) = gradients(fn, np.array([0.5, 1.5, -3.0], dtype), seeds=[[1, -2, 0.5]])
        np.testing.assert_array_equal(grad, np.array([2, -4, 1], dtype))
        assert grad.dtype == dtype

    @pytest.mark.parametrize("print_gradient", [False, True])
    def test_print_tensor(self, ir, print_gradient):
        fwd = ir.create_graph(lambda x: ops.print_tensor(x, "here", print_gradient=print_gradient), spec(2))
        info = autodiff(fwd)
        assert kinds(info.graph) == ["print_tensor"] * print_gradient
        assert all(op.attrs["title"] == "Gradient___here" for op in info.graph.ops)


class TestMetaShape:
    def test_gradients_carry_it_where_the_op_does(self, ir):
        def fn(x):
            return [ops.sin(x), ops.reshape(x, (2, 3)), ops.floor(x)]

        fwd = ir.create_graph(fn, popxl.TensorSpec((6,), F32, (2, 3)))
        for output, expected in zip(fwd.outputs, [(2, 3), (), ()]):
            assert autodiff(fwd, [output]).graph.outputs[0].meta_shape == expected

    def test_it_does_not_reach_a_gradient_that_has_another_use(self, ir):
        fwd = ir.create_graph(lambda x, y: x + y, popxl.TensorSpec((6,), F32, (2, 3)), spec(6))
        assert [t.meta_shape for t in autodiff(fwd).graph.outputs] == [(2, 3), (2, 3)]


class TestRefusals:
    def test_arguments(self, ir):
        fwd, other = [ir.create_graph(ops.sin, spec(2)) for _ in range(2)]
        with raises(TypeError, "autodiff: expected a Graph, not <function"):
            autodiff(linear)
        with raises(TypeError, "grads_required must be Tensors, not 'x'"):
            autodiff(fwd, grads_required="x")
        with raises(popart_exception, r"grads_required has Tensor\[sin_subgraph\(1\)/.*, which does not belong to"):
            autodiff(fwd, grads_required=other.inputs)
        with raises(popart_exception, "grads_provided has Tensor"):
            autodiff(fwd, grads_provided=other.outputs)
        with raises(popart_exception, r"no tensor of Graph\[sin_subgraph\(0\)\] is required"):
            autodiff(fwd, grads_required=[])
        with raises(TypeError, r"called_graphs_grad_info maps Graph\[.*\] to Graph\[.*\], not a Graph to its info"):
            autodiff(fwd, called_graphs_grad_info={other: fwd})
        with raises(popart_exception, r"called_graphs_grad_info maps Graph\[.*\] to the info of Graph\[.*\]\."):
            autodiff(fwd, called_graphs_grad_info={other: autodiff(fwd)})

    def test_no_way(self, ir):
        fwd = ir.create_graph(lambda x, y: ops.sin(x) + ops.detach(y), spec(2), spec(2))
        with raises(
            popart_exception,
            r"has no gradient of Tensor\[.*/y float32 \(2,\)\]: no differentiable way leads from there to .*add_out.*"
            r"\(what has no gradient here: detach\)\. Leave it out of grads_required",
        ):
            autodiff(fwd)
        assert outputs_of(autodiff(fwd, grads_required=[fwd.inputs[0]])) == [("FwdGrad", "x")]

    @pytest.mark.parametrize("fn", [lambda x: ops.equal(x, x), ops.logical_not, lambda x: ops.greater(x, x)])
    def test_comparisons_on_the_way(self, ir, fn):
        fwd = ir.create_graph(lambda x: x * ops.cast(fn(x), F32), spec(2))
        with raises(popart_exception, "autodiff: the op [a-z_]+ cannot be differentiated; it is on the way"):
            autodiff(fwd)
        aside = ir.create_graph(lambda x, y: x * ops.cast(fn(y), F32), spec(2), spec(2))
        assert kinds(autodiff(aside, grads_required=[aside.inputs[0]]).graph) == ["mul"]
        as_condition = ir.create_graph(lambda x: ops.where(fn(x), x, x * 2.0), spec(2))
        autodiff(as_condition)

    @pytest.mark.parametrize("fn", [ops.relu_, lambda x: ops.add_(x, x), ops.var_updates.accumulator_zero_])
    def test_modifying_ops(self, ir, fn):
        fwd = ir.create_graph(lambda x, y: [fn(x), ops.sin(y)], spec(2), spec(2))
        with raises(popart_exception, r"Graph\[.*\] contains a modifying op, Op\(.*: the values from before are lost"):
            autodiff(fwd, grads_required=[fwd.inputs[1]])

    def test_calls_that_modify(self, ir):
        def update(x: popxl.TensorByRef):
            ops.var_updates.accumulator_zero_(x)

        graph = ir.create_graph(update, spec(2))

        def fn(x, y):
            ops.call(graph, x)
            return ops.sin(y)

        with raises(popart_exception, "contains a modifying op, Op\\(call: .* or pass values instead of references"):
            autodiff(ir.create_graph(fn, spec(2), spec(2)))

    def test_a_modifying_op_in_a_called_graph(self, ir):
        graph = ir.create_graph(lambda x: ops.relu_(ops.identity(x)), spec(2))
        with raises(popart_exception, r"Graph\[.*\] contains a modifying op, Op\(relu_"):
            autodiff(ir.create_graph(lambda x: ops.call(graph, x)[0], spec(2)))

    def test_a_failure_leaves_nothing_behind(self, ir):
        layer = ir.create_graph(lambda x: ops.sin(ops.exp(x)), spec(2))
        fwd = ir.create_graph(lambda x, y: ops.call(layer, ops.exp(x))[0] + ops.detach(y), spec(2), spec(2))
        with ir.main_graph:
            call = ops.call_with_info(layer, popxl.variable([1.0, 2.0]))
        before = list(ir._graphs), [(g.outputs, g.ops[:], g.tensors) for g in ir._graphs]
        with raises(popart_exception, "has no gradient"):
            autodiff(fwd)
        assert before == (list(ir._graphs), [(g.outputs, g.ops[:], g.tensors) for g in ir._graphs])
        assert len(call.outputs) == 1
        autodiff(fwd, grads_required=[fwd.inputs[0]])
        assert len(call.outputs) == 2

    def test_after_a_session(self, ir):
        fwd = ir.create_graph(ops.sin, spec(2))
        with ir.main_graph:
            ops.call(fwd, popxl.variable([1.0, 2.0]))
        popxl.Session(ir)
        with raises(RuntimeError, "the Ir belongs to a Session"):
            autodiff(fwd)

    def test_all_reduce_of_another_kind(self, ir):
        def fn(x, y):
            return ops.collectives.all_reduce([x, y], [0, 1], "max")[0]

        with raises(popart_exception, 'all_reduce over IPUs has a gradient for op="add" only, not for .max.'):
            autodiff(ir.create_graph(fn, spec(2), spec(2)))


class TestReplicas:
    """The gradient ops of collectives, by the values that they give on each replica."""

    def run(self, fn, x, seed, replication=2):
        """`x` and `seed` have a row per replica; the gradients have too."""
        ir = popxl.Ir(replication)
        with ir.main_graph:
            group = ir.replica_grouping(group_size=1)
            operand, given = [popxl.variable(np.float32(v), replica_grouping=group) for v in (x, seed)]
            fwd = ir.create_graph(fn, operand)
            info = autodiff(fwd)
            call = ops.call_with_info(fwd, operand)
            (grad,) = ops.call(info.graph, given, inputs_dict=info.inputs_dict(call))
        return evaluate(ir, [grad])[0]

    def test_all_gather(self):
        seed = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
        grad = self.run(lambda x: ops.collectives.replicated_all_gather(x), [[[0, 0]], [[0, 0]]], seed)
        np.testing.assert_array_equal(grad, [[[1, 2]], [[7, 8]]])
        grad = self.run(lambda x: ops.collectives.replicated_all_gather(x, 1), [[[0], [0]], [[0], [0]]], seed)
        np.testing.assert_array_equal(grad, [[[1], [3]], [[6], [8]]])

    def test_new_axis(self):
        seed = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
        grad = self.run(
            lambda x: ops.collectives.replicated_all_gather(x, output_shape="new_axis"), [[0, 0], [0, 0]], seed
        )
        np.testing.assert_array_equal(grad, [[1, 2], [7, 8]])

    def test_slice(self):
        grad = self.run(lambda x: ops.collectives.replicated_slice(x), [[1, 2, 3, 4]] * 2, [[5, 6], [7, 8]])
        np.testing.assert_array_equal(grad, [[5, 6, 7, 8]] * 2)
        grad = self.run(lambda x: ops.collectives.replicated_slice(x), [[1, 2]] * 2, [5, 7])
        np.testing.assert_array_equal(grad, [[5, 7]] * 2)

    def test_sharded_slice(self):
        grad = self.run(lambda x: ops.collectives.replica_sharded_slice(x), [[1, 2, 3, 4]] * 2, [[5, 6], [7, 8]])
        np.testing.assert_array_equal(grad, [[5, 6, 7, 8]] * 2)


# The function of an operand and a group, the operand's shape for groups of `n`, and the loss whose gradient a replica
# gets. "own": that of the replica, of its operand. The others are for operands that are the same on the replicas of a
# group, of that common operand: "sum" is that of all in the group, "equal" that of each, which have equal seeds.
COLLECTIVES = {
    "gather": (lambda x, group: ops.collectives.replicated_all_gather(x, 0, group), lambda n: (2, 2), "own"),
    "gather on an axis": (lambda x, group: ops.collectives.replicated_all_gather(x, 1, group), lambda n: (2, 2), "own"),
    "gather on a new axis": (
        lambda x, group: ops.collectives.replicated_all_gather(x, 0, group, "new_axis"), lambda n: (3,), "own"),
    "gather of shards": (
        lambda x, group: ops.collectives.replicated_all_gather(
            ops.collectives.replica_sharded_slice(x, group), 0, group), lambda n: (5,), "equal"),
    "slice": (lambda x, group: ops.collectives.replicated_slice(x, 0, group), lambda n: (2 * n, 2), "sum"),
    "slice of length 1": (lambda x, group: ops.collectives.replicated_slice(x, 0, group), lambda n: (n, 2), "sum"),
    "slice on an axis": (lambda x, group: ops.collectives.replicated_slice(x, 1, group), lambda n: (2, 2 * n), "sum"),
    "sharded slice": (lambda x, group: ops.collectives.replica_sharded_slice(x, group), lambda n: (2 * n,), "sum"),
    "sharded slice with padding": (
        lambda x, group: ops.collectives.replica_sharded_slice(x, group), lambda n: (2 * n - 1,), "sum"),
    "slice of a gather": (
        lambda x, group: ops.collectives.replicated_slice(
            ops.collectives.replicated_all_gather(x, 0, group), 0, group), lambda n: (2, 2), "own"),
}  # fmt: skip
GROUPS = [(2, 1, 2), (4, 1, 4), (4, 1, 2), (4, 2, 2), (2, 1, 1)]  # replicas, stride, size


@pytest.mark.usefixtures("engine")
class TestGradientsOfCollectives:
    """Against finite differences of the program for all replicas."""

    def program(self, fn, shape, replicas, stride, size):
        """What gives, for operands with a row for each replica, the output, and of seeds also the gradient."""
        ir = popxl.Ir(replicas)
        with ir.main_graph:
            group = ir.replica_grouping(stride, size)
            fwd = ir.create_graph(lambda x: fn(ops.sin(x) * 2.0, group), popxl.TensorSpec(shape, F32))
            (out,) = fwd.outputs
            info = autodiff(fwd)
            loads = [popxl.h2d_stream(s, F32) for s in (shape, out.shape)]
            x, seed = map(ops.host_load, loads)
            call = ops.call_with_info(fwd, x)
            (grad,) = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
            stores = [popxl.d2h_stream(s, F32) for s in (out.shape, shape)]
            for stream, t in zip(stores, (call.outputs[0], grad)):
                ops.host_store(stream, t)
        session = popxl.Session(ir)

        def run(x, seed):
            found = session.run({loads[0]: np.float32(x), loads[1]: np.float32(seed)})
            return [found[s].astype(np.float64) for s in stores]

        return session, run, (replicas,) + tuple(out.shape), group._members()

    @pytest.mark.parametrize("kind", COLLECTIVES)
    @pytest.mark.parametrize("groups", GROUPS, ids=str)
    def test_gradient(self, kind, groups):
        fn, shape_of, loss = COLLECTIVES[kind]
        shape = shape_of(groups[2])
        session, run, out_shape, members = self.program(fn, shape, *groups)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(groups[0],) + shape)
        seed, step = rng.normal(size=out_shape), 0.05
        for group in members if loss != "own" else []:
            x[list(group)] = x[group[0]]
            if loss == "equal":
                seed[list(group)] = seed[group[0]]
        with session:
            _, grad = run(x, seed)
            wanted = np.zeros_like(x)
            for index in np.ndindex(*shape):
                for together in members if loss != "own" else [[replica] for replica in range(groups[0])]:
                    rows = list(together)
                    losses = []
                    for sign in (1, -1):
                        moved = x.copy()
                        moved[(rows,) + index] += sign * step
                        losses.append((run(moved, seed)[0][rows] * seed[rows]).sum())
                    slope = (losses[0] - losses[1]) / (2 * step)
                    wanted[(rows,) + index] = slope / len(rows) if loss == "equal" else slope
        np.testing.assert_allclose(grad, wanted, 2e-2, 1e-3)
        assert np.abs(wanted).max() > 0.1

    @pytest.mark.parametrize("kind", ["replicated_all_reduce", "replicated_reduce_scatter"])
    def test_sums_over_replicas_have_none(self, kind):
        ir = popxl.Ir(2)
        fwd = ir.create_graph(getattr(ops.collectives, kind), spec(4))
        with raises(popart_exception, rf"has no gradient of .* \(what has no gradient here: {kind}\)"):
            autodiff(fwd)
