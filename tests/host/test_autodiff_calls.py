"""autodiff of graphs that call graphs: calls, conditionals, repeats."""
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception
from popfn.host.transforms.autodiff import ExpectedConnection, ExpectedConnectionType, GradGraphInfo, autodiff

ops = popxl.ops
F16, F32, I32 = popxl.float16, popxl.float32, popxl.int32
Fwd, FwdGrad = ExpectedConnectionType.Fwd, ExpectedConnectionType.FwdGrad


def spec(*shape, dtype=F32):
    return popxl.TensorSpec(shape, dtype)


def raises(error, text):
    return pytest.raises(error, match=text)


def inputs_of(info):
    return [(c.connection_type.name, c.fwd_tensor.name) for c in info.expected_inputs]


def names(tensors):
    return [t.name for t in tensors]


def kinds(graph):
    return [op.kind for op in graph.ops]


@pytest.fixture
def ir():
    return popxl.Ir()


def evaluate(ir, tensors):
    """The values of tensors of the main graph."""
    with ir.main_graph:
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in tensors]
        for stream, t in zip(streams, tensors):
            ops.host_store(stream, t)
    with popxl.Session(ir) as session:
        out = session.run()
    return [out[s] for s in streams]


def gradients_in(ir, fn, *values):
    """The gradients of the sum of what `fn` gives first, with respect to the float arrays among the values."""
    with ir.main_graph:
        operands = [popxl.variable(v) for v in values]
        fwd = ir.create_graph(fn, *operands)
        y = fwd.outputs[0]
        info = autodiff(fwd, grads_required=[t for t in fwd.inputs if t.dtype.is_floating_point])
        call = ops.call_with_info(fwd, *operands)
        seed = popxl.constant(np.ones(y.shape, np.float32))
        grads = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
    return evaluate(ir, grads)


class TestCalledGraphs:
    def layer(self, ir):
        return ir.create_graph(lambda x, w: ops.sin(ops.exp(x) @ w), spec(2, 2), spec(2, 2))

    def stack(self, ir, depth=2):
        layer = self.layer(ir)

        def fn(x, w):
            for _ in range(depth):
                (x, *_) = ops.call(layer, x, w)
            return x * w

        return layer, ir.create_graph(fn, spec(2, 2), spec(2, 2))

    def test_a_call_becomes_a_call_of_one_grad_graph(self, ir):
        layer, fwd = self.stack(ir, 3)
        infos = autodiff(fwd, return_all_grad_graphs=True)
        assert set(infos) == {layer, fwd} and all(isinstance(info, GradGraphInfo) for info in infos.values())
        grad_graph = infos[fwd].graph
        assert grad_graph.called_graphs == (infos[layer].graph,)
        assert kinds(grad_graph).count("call") == 3
        assert names(layer.outputs) == ["sin_out", "exp_out", "matmul_out"]
        assert all(len(op.outputs) == 3 for op in fwd.ops if op.kind == "call")
        assert [c.connection_type for c in infos[layer].expected_inputs] == [FwdGrad, Fwd, Fwd, Fwd]

    def test_numbers(self):
        def inlined(x, w):
            for _ in range(2):
                x = ops.sin(ops.exp(x) @ w)
            return x * w

        ir = popxl.Ir()
        values = [np.array(v, np.float32) for v in ([[0.1, 0.2], [0.3, -0.4]], [[0.5, -0.6], [0.7, 0.8]])]
        with ir.main_graph:
            _, fwd = self.stack(ir)
            operands = [popxl.variable(v) for v in values]
            info = autodiff(fwd)
            call = ops.call_with_info(fwd, *operands)
            seed = popxl.constant(np.ones((2, 2), np.float32))
            grads = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
        for grad, expected in zip(evaluate(ir, grads), gradients_in(popxl.Ir(), inlined, *values)):
            np.testing.assert_allclose(grad, expected, rtol=1e-5)

    def test_given_grad_graphs_are_used(self, ir):
        layer, fwd = self.stack(ir)
        given = autodiff(layer)
        graphs = len(ir._graphs)
        infos = autodiff(fwd, called_graphs_grad_info={layer: given}, return_all_grad_graphs=True)
        assert infos[layer] is given and len(ir._graphs) == graphs + 1
        assert infos[fwd].graph.called_graphs == (given.graph,)

    def test_a_gradient_of_ones_own(self):
        ir = popxl.Ir()
        with ir.main_graph:
            square = ir.create_graph(lambda x: x * x, spec(2))
            own = ir.create_graph(lambda g, x: g * x * 100.0, spec(2), spec(2))
            (x,), (y,) = square.inputs, square.outputs
            takes = [ExpectedConnection(y, FwdGrad), ExpectedConnection(x, Fwd)]
            gives = [ExpectedConnection(x, FwdGrad)]
            given = GradGraphInfo(own, square, takes, gives)
            fwd = ir.create_graph(lambda x: ops.call(square, x)[0] + 1.0, spec(2))
            info = autodiff(fwd, called_graphs_grad_info={square: given})
            call = ops.call_with_info(fwd, popxl.constant([1.0, 2.0]))
            grads = ops.call(info.graph, popxl.constant([1.0, 1.0]), inputs_dict=info.inputs_dict(call))
        np.testing.assert_array_equal(evaluate(ir, grads), [[100, 200]])

    def test_a_gradient_of_ones_own_of_a_wrong_shape(self, ir):
        square = ir.create_graph(lambda x: x * x, spec(2))
        own = ir.create_graph(lambda g: ops.sum(g), spec(2))
        takes, gives = [[ExpectedConnection(t, FwdGrad)] for t in square.outputs + square.inputs]
        fwd = ir.create_graph(lambda x: ops.call(square, x)[0], spec(2))
        with raises(popart_exception, r"gives Tensor\[.* float32 \(\)\] as the gradient of Tensor\[.*/x float32"):
            autodiff(fwd, called_graphs_grad_info={square: GradGraphInfo(own, square, takes, gives)})

    def test_a_gradient_that_a_given_graph_does_not_take_is_not_lost(self, ir):
        pair = ir.create_graph(lambda x: [ops.sin(x), ops.cos(x)], spec(2))
        given = autodiff(pair, grads_provided=[pair.outputs[0]])
        fwd = ir.create_graph(lambda x: ops.call(pair, x)[1], spec(2))
        with raises(popart_exception, "has a gradient of its output .*cos_out.* Add the output to grads_provided"):
            autodiff(fwd, called_graphs_grad_info={pair: given})

    def test_outputs_that_are_not_used_have_zeros_for_gradients(self, ir):
        pair = ir.create_graph(lambda x, n: [ops.sin(x), ops.exp(x), n], spec(2), spec(2, dtype=I32))

        def fn(x, n):
            return ops.call(pair, x, n)[0]

        (grad,) = gradients_in(ir, fn, np.array([0.5, 1.0], np.float32), np.array([1, 2], np.int32))
        np.testing.assert_allclose(grad, np.cos([0.5, 1.0]), rtol=1e-6)

    def test_one_tensor_passed_twice(self, ir):
        product = ir.create_graph(lambda x, y: x * y, spec(2), spec(2))
        (grad,) = gradients_in(ir, lambda x: ops.call(product, x, x)[0], np.array([3.0, 4.0], np.float32))
        np.testing.assert_array_equal(grad, [6, 8])

    def test_an_output_that_comes_out_twice(self, ir):
        def twice(x):
            y = ops.sin(x)
            return [y, y]

        twice = ir.create_graph(twice, spec(2))

        def fn(x):
            first, second = ops.call(twice, x)
            return first + second * 10.0

        (grad,) = gradients_in(ir, fn, np.array([0.5, 1.0], np.float32))
        np.testing.assert_allclose(grad, 11 * np.cos([0.5, 1.0]), rtol=1e-6)

    def test_a_called_graph_without_gradients_stops_them(self, ir):
        rounded = ir.create_graph(lambda x: ops.cast(ops.detach(x), F16), spec(2))
        fwd = ir.create_graph(lambda x: x + ops.cast(ops.call(rounded, x)[0], F32), spec(2))
        graphs = len(ir._graphs)
        assert kinds(autodiff(fwd).graph) == ["cast"]
        assert len(ir._graphs) == graphs + 1
        with raises(popart_exception, "no differentiable way"):
            autodiff(ir.create_graph(lambda x: ops.call(rounded, x)[0], spec(2)))


def random_weights(shapes, rng=np.random.default_rng(5)):  # noqa: B008  all calls share it
    return [(rng.standard_normal(shape) * 0.5).astype(np.float32) for shape in shapes]


class TestModel:
    """Two layers of a transformer, each a call of one graph, against JAX."""

    tokens = np.array([3, 1, 4, 1, 0], np.int32)
    shapes = [(8, 8), (8, 8), (8, 8), (8,), (8, 12), (12, 8)]
    embedding, head = random_weights([(6, 8), (8, 6)])
    layers = [random_weights(shapes), random_weights(shapes)]

    @staticmethod
    def layer(x, query, key, value, scale, up, down):
        centred = x - ops.mean(x, -1, True)
        normal = centred / ops.sqrt(ops.mean(centred * centred, -1, True) + 1e-5) * scale

        def heads(w):
            return ops.transpose(ops.reshape(normal @ w, (5, 2, 4)), (1, 0, 2))

        scores = heads(query) @ ops.transpose(heads(key), (0, 2, 1)) * 0.5
        mixed = ops.reshape(ops.transpose(ops.softmax(scores, -1) @ heads(value), (1, 0, 2)), (5, 8))
        return x + mixed + ops.gelu(normal @ up) @ down

    def loss(self, layer):
        def loss(tokens, embedding, head, *weights):
            x = ops.gather(embedding, tokens)
            for i in range(2):
                (x, *_) = ops.call(layer, x, *weights[6 * i : 6 * i + 6])
            logits = x @ head
            hit = ops.onehot(tokens, popxl.constant(6), popxl.constant([0.0, 1.0]), 1)
            return ops.mean(ops.logsumexp(logits, 1) - ops.sum(logits * hit, 1))

        return loss

    def expected(self):
        def layer(x, query, key, value, scale, up, down):
            centred = x - x.mean(-1, keepdims=True)
            normal = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale
            query, key, value = [(normal @ w).reshape(5, 2, 4).transpose(1, 0, 2) for w in (query, key, value)]
            mixed = jax.nn.softmax(query @ key.transpose(0, 2, 1) * 0.5, -1) @ value
            return x + mixed.transpose(1, 0, 2).reshape(5, 8) + jax.nn.gelu(normal @ up) @ down

        def loss(embedding, head, layers):
            x = embedding[self.tokens]
            for weights in layers:
                x = layer(x, *weights)
            return -jax.nn.log_softmax(x @ head)[jnp.arange(5), self.tokens].mean()

        embedding, head, layers = jax.grad(loss, (0, 1, 2))(self.embedding, self.head, self.layers)
        return [embedding, head] + layers[0] + layers[1]

    def test_gradients(self, ir):
        layer = ir.create_graph(self.layer, spec(5, 8), *[spec(*shape) for shape in self.shapes])
        values = [self.tokens, self.embedding, self.head] + self.layers[0] + self.layers[1]
        grads = gradients_in(ir, self.loss(layer), *values)
        for grad, expected in zip(grads, self.expected()):
            np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-6)
        assert [graph.name.count("_bwd") for graph in ir._graphs if "layer" in graph.name] == [0, 1]


class TestConditional:
    def build(self, ir):
        then = ir.create_graph(lambda x, y: ops.sin(ops.exp(x)) * y, spec(2), spec(2))
        other = ir.create_graph(lambda y, z: y * y + ops.floor(z), spec(2), spec(2))

        def fn(cond, x, y, z):
            return ops.conditional(cond, then, other, [x, y], [y, z])[0] + 2.0 * y

        return then, other, fn

    @pytest.mark.parametrize("cond", [True, False])
    def test_numbers(self, ir, cond):
        _, _, fn = self.build(ir)
        x, y, z = [np.array(v, np.float32) for v in ([0.1, 0.2], [3.0, 4.0], [5.5, 6.5])]
        to_x, to_y, to_z = gradients_in(ir, fn, np.array(cond), x, y, z)
        e = np.exp(x)
        np.testing.assert_allclose(to_x, np.cos(e) * e * y if cond else [0, 0], rtol=1e-5)
        np.testing.assert_allclose(to_y, (np.sin(e) if cond else 2 * y) + 2, rtol=1e-5)
        np.testing.assert_array_equal(to_z, [0, 0])

    def test_branches_keep_their_outputs(self, ir):
        then, other, fn = self.build(ir)
        fwd = ir.create_graph(fn, spec(dtype=popxl.bool), spec(2), spec(2), spec(2))
        infos = autodiff(fwd, grads_required=fwd.inputs[1:], return_all_grad_graphs=True)
        assert (len(then.outputs), len(other.outputs)) == (1, 1)
        assert inputs_of(infos[then])[1:] == [("Fwd", "mul_out"), ("Fwd", "x"), ("Fwd", "y")]
        assert "exp" in kinds(infos[then].graph) and "exp" not in names(infos[then].graph.inputs)
        (op,) = [op for op in infos[fwd].graph.ops if op.kind == "conditional"]
        assert [len(graph.outputs) for graph in op.attrs["graphs"]] == [4, 4]

    def test_a_value_that_cannot_be_computed_again(self, ir):
        with ir.main_graph:
            stream = popxl.h2d_stream((2,), F32)
        loading = ir.create_graph(lambda x: x * ops.exp(ops.host_load(stream)), spec(2))
        plain = ir.create_graph(lambda x: ops.exp(x), spec(2))
        fwd = ir.create_graph(
            lambda c, x: ops.conditional(c, loading, plain, [x], [x])[0], spec(dtype=popxl.bool), spec(2)
        )
        with raises(popart_exception, "is called by a conditional .* Op\\(host_load: .* only once. Move it out"):
            autodiff(fwd, grads_required=fwd.inputs[1:])

    def test_ops_made_again_have_the_lines_of_the_first_ones(self, ir):
        """What later errors name is the user's op, not the call of autodiff."""
        faulty = ir.create_graph(lambda x: ops.sin(ops.softmax(x, 3) * ops.matmul(x, x)), spec(2))
        other = ir.create_graph(lambda x: x * x, spec(2))
        fwd = ir.create_graph(
            lambda c, x: ops.conditional(c, faulty, other, [x], [x])[0], spec(dtype=popxl.bool), spec(2)
        )
        infos = autodiff(fwd, grads_required=fwd.inputs[1:], return_all_grad_graphs=True)
        line = sys._getframe().f_lineno
        faults = [(op.kind, op.user_line) for op in infos[faulty].graph.ops if op.fault]
        assert set(faults) == {(kind, f"{__file__}:{line - 6}") for kind in ("softmax", "init")}
        places = [op.user_line for op in infos[fwd].graph.ops if op.kind == "conditional"]
        assert places == [f"{__file__}:{line - 3}"]

    def test_branches_that_call_graphs(self, ir):
        inner = ir.create_graph(lambda x: ops.sin(ops.exp(x)), spec(2))
        then = ir.create_graph(lambda x: ops.call(inner, ops.call(inner, x)[0])[0], spec(2))
        other = ir.create_graph(lambda x: ops.detach(x), spec(2))
        x = np.array([0.1, 0.2], np.float32)
        (grad,) = gradients_in(ir, lambda c, x: ops.conditional(c, then, other, [x], [x])[0], np.array(True), x)
        y = np.sin(np.exp(x))
        np.testing.assert_allclose(grad, np.cos(np.exp(y)) * np.exp(y) * np.cos(np.exp(x)) * np.exp(x), rtol=1e-5)


    def test_constants_of_a_branch(self, ir):
        then, other = [ir.create_graph(lambda x: x * 2.0, spec(2)) for _ in range(2)]
        fwd = ir.create_graph(
            lambda c, x: ops.conditional(c, then, other, [x], [x])[0], spec(dtype=popxl.bool), spec(2)
        )
        with raises(popart_exception, "which PopXL cannot do for the constant Tensor.*. Pass it in as an input"):
            autodiff(fwd, grads_required=fwd.inputs[1:])


class TestRepeat:
    def test_a_body_is_differentiated_by_itself(self, ir):
        body = ir.create_graph(lambda x: ops.sin(ops.exp(x)), spec(2))
        with ir.main_graph:
            info = ops.repeat_with_info(body, 3, popxl.variable([0.1, 0.2]))
        made = autodiff(body)
        assert names(body.outputs) == ["sin_out", "exp_out"] and len(info.outputs) == 1
        assert made.outputs == body.inputs

    def test_a_loop_is_refused(self, ir):
        body = ir.create_graph(ops.sin, spec(2))
        fwd = ir.create_graph(lambda x: ops.repeat(body, 3, x)[0] * x, spec(2))
        with raises(popart_exception, "the op repeat cannot be differentiated; it is on the way .*Detach its operands"):
            autodiff(fwd)
