"""Programs of several compiled functions: what is compiled once, what a part may take the memory of, stand-ins."""
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import popfn.host as popxl
from popfn.host.engine import compile_program
from popfn.host.engine.xla_sharing import stand_in

jax = pytest.importorskip("jax")
xla_parts = pytest.importorskip("popfn.host.engine.xla_parts")
ops, updates = popxl.ops, popxl.ops.var_updates
F32 = popxl.float32


# The parts of a program of JAX


def kept(f):
    """The function, so that its calls are parts."""
    f.__name__ = xla_parts.PREFIX + f.__name__
    return jax.jit(f)


def layer(x, y):
    """A function that is called often, and the same in NumPy."""
    return x * y + 1, x - y


STEPS = [  # what a step makes of two values, and whether it is a kept call
    (lambda x, y: layer(x, y), True),
    (lambda x, y: (x + y, x), False),
    (lambda x, y: (y >> 1, x >> 1), False),
    (lambda x, y: (x, y), False),
]


def random_program(steps, outputs):
    """A function of three arrays: each step takes two of the values so far, by number, and adds two."""
    def program(call, arrays):
        values = list(arrays)
        for kind, i, k in steps:
            f, is_kept = STEPS[kind]
            x, y = values[i % len(values)], values[k % len(values)]
            values += call(x, y) if is_kept else f(x, y)
        return [values[i % len(values)] for i in outputs]
    return program


@settings(max_examples=30, deadline=None)
@example(steps=[(0, 0, 0)], outputs=[3], donated=3, size=2000)  # what is given up is given twice
@given(steps=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 20), st.integers(0, 20)), max_size=8),
       outputs=st.lists(st.integers(0, 20), min_size=1, max_size=4), donated=st.integers(0, 3),
       size=st.sampled_from([1, 2000]))
def test_a_program_in_parts_computes_what_it_did(steps, outputs, donated, size):
    program = random_program(steps, outputs)
    arrays = [(np.arange(size) * (k + 1) % 7).astype(np.int32) for k in range(3)]
    call = kept(lambda x, y: layer(x, y))
    closed = jax.make_jaxpr(lambda *xs: program(call, xs))(*arrays)
    compiled = xla_parts.Program(closed, donated, {})
    for _ in range(2):
        given_arrays = [jax.numpy.array(x) for x in arrays]
        found = compiled(given_arrays[:donated], given_arrays[donated:])
        for x, wanted in zip(found, program(layer, arrays)):
            np.testing.assert_array_equal(x, wanted)
        # All results can be given up in the next call: they are other arrays than each other and than what was kept.
        assert len({x.unsafe_buffer_pointer() for x in found}) == len(found)
        assert not any(x is y for x in found for y in given_arrays[donated:])
        for y, x in zip(given_arrays[donated:], arrays[donated:]):
            np.testing.assert_array_equal(y, x)


def test_parts_that_are_alike_are_compiled_once():
    @kept
    def dense(x, w):
        return jax.numpy.tanh(x @ w)

    def program(x, *weights):
        for w in weights:
            x = dense(x * 2 + 1, w)
        return [x] + [w - 0.1 * x for w in weights]
    avals = [jax.ShapeDtypeStruct((4, 4), np.float32)] * 6
    compiled = xla_parts.Program(jax.make_jaxpr(program)(*avals), 0, {})
    assert len(compiled._parts) == 11  # 5 calls, what is before each of them, and the updates
    assert len(compiled._functions) == 3
    assert compiled.as_text().count("ENTRY") == 3


@pytest.mark.parametrize("change", [
    lambda x: x * 3 + 1, lambda x: x * 2 - 1, lambda x: 1 + x * 2 + 0 * x, lambda x: jax.numpy.sin(x),
    lambda x: x * 2 + np.float32(-0.0), lambda x: x[::-1] * 2 + 1, lambda x: x * np.arange(4, dtype=np.float32) + 1,
])
def test_parts_that_differ_are_not_taken_for_each_other(change):
    @kept
    def dense(x, w):
        return x @ w

    def program(x, w):
        x = dense(dense(x * 2 + 1, w) * 2 + 1, w)
        return [dense(change(x), w) * x]
    x, w = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
    compiled = xla_parts.Program(jax.make_jaxpr(program)(x, w), 0, {})
    y = ((x * 2 + 1) @ w * 2 + 1) @ w
    np.testing.assert_allclose(compiled([x, w])[0], np.asarray(change(y)) @ w * y, 1e-4, 1e-4)


def test_large_values_are_computed_just_before_they_are_used():
    @kept
    def dense(x, w):
        return x @ w

    def program(x, *weights):
        wide = [w.astype(np.float32) for w in weights]
        for w in wide:
            x = dense(x, w)
        return [x]
    avals = [jax.ShapeDtypeStruct((64, 64), t) for t in [np.float32] + [np.float16] * 3]
    parts = xla_parts.Program(jax.make_jaxpr(program)(*avals), 0, {})._parts
    assert [(len(part.inputs), len(part.outputs)) for part in parts] == [(1, 1), (2, 1)] * 3


@pytest.mark.skipif(sys.version_info < (3, 9), reason="the JAX for Python 3.8 may copy instead")
def test_given_up_inputs_lend_their_memory():
    @kept
    def dense(x, w):
        return x @ w

    def program(w, x):
        for _ in range(3):
            x = dense(x, w)
        return [w - 0.1 * x, x]
    w, x = [jax.numpy.array(np.eye(64, dtype=np.float32)) for _ in range(2)]
    compiled = xla_parts.Program(jax.make_jaxpr(program)(w, x), 1, {})
    place = w.unsafe_buffer_pointer()
    found = compiled([w], [x])
    assert compiled.peak_bytes <= 64 * 64 * 4 * 3  # w, x and one product
    assert w.is_deleted() and not x.is_deleted() and found[0].unsafe_buffer_pointer() == place


def test_options_that_xla_does_not_know(monkeypatch):
    monkeypatch.setattr(xla_parts, "_QUICK_OPTIONS", {"xla_no_such_option": 1, "xla_cpu_enable_fast_math": False})
    closed = jax.make_jaxpr(lambda x: [x + 1])(np.float32(1))
    assert xla_parts.Program(closed, 0, {})([np.float32(2)])[0] == 3
    assert xla_parts._QUICK_OPTIONS == {"xla_cpu_enable_fast_math": False}
    with pytest.raises(RuntimeError, match="xla_neither_this"):  # one that is needed
        xla_parts.Program(closed, 0, {"xla_neither_this": True})


# Graphs in the place of others


def graphs(part, whole, count=3):
    """Two graphs of (3, 3) inputs."""
    ir = popxl.Ir()
    with ir.main_graph:
        xs = [popxl.variable(np.zeros((3, 3), np.float32)) for _ in range(count)]
        return ir.create_graph(part, *xs[:part.__code__.co_argcount]), ir.create_graph(whole, *xs)


def whole(x, w, other):
    y = x @ w
    z = ops.gelu(y) * 2.0
    return ops.transpose(other) @ w, y, ops.sum(z, 1), z


@pytest.mark.parametrize("part, inputs, outputs", [
    (lambda x, w: x @ w, (0, 1, None), (1,)),
    (lambda w, x: x @ w, (1, 0, None), (1,)),
    (lambda x, w: ops.gelu(x @ w) * 2.0, (0, 1, None), (3,)),
    (lambda x, w: (lambda y: (y, ops.sum(ops.gelu(y) * 2.0, 1)))(x @ w), (0, 1, None), (1, 2)),
    (lambda x, w: (x @ w, x @ w), None, None),  # one output twice
    (lambda x, w: (ops.gelu(x @ w) * 2.0, x @ w), None, None),  # another order
    (lambda x, w: ops.gelu(x @ w) * 3.0, None, None),
    (lambda x, w: ops.gelu(x @ w), None, None),  # not an output
    (lambda x, w: ops.sum(ops.gelu(x @ w) * 2.0, 0), None, None),
    (lambda x, w: ops.relu(x @ w) * 2.0, None, None),
    (lambda x: x @ x, (0, 0, None), (1,)),
    (lambda x, w: (ops.transpose(w) @ w, x @ w), (0, 1, 1), (0, 1)),
    (lambda x, w: (ops.add_(x, w), x @ w)[1], None, None),
    (lambda x, w: (ops.transpose(w) @ x, x @ w), None, None),  # one weight would have two values
])
def test_stand_ins(part, inputs, outputs):
    found = stand_in(*graphs(part, whole))
    if outputs is None:
        assert found is None
    else:
        assert (found.inputs, found.outputs) == (inputs, outputs)


def network(in_loop=False):
    """A program whose first layer makes less than the others do."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        load, store = popxl.h2d_stream((3, 3), F32), popxl.d2h_stream((3, 3), F32)
        x = ops.host_load(load)
        weights = [popxl.variable(np.full((3, 3), k + 1, np.float32) / 5) for k in range(4)]
        first = ir.create_graph(lambda x, w: ops.tanh(x @ w), x, weights[0])
        layer = ir.create_graph(lambda x, w: (lambda y: (ops.tanh(y), ops.cos(y)))(x @ w), x, weights[0])
        if in_loop:
            x, = ops.repeat(ir.create_graph(lambda x, w: ops.call(first, x, w), x, weights[0]), 2, x, weights[0])
        else:
            x, = ops.call(first, x, weights[0])
        for w in weights[1:]:
            x, y = ops.call(layer, x, w)
            updates.accumulate_(w, y)
        ops.host_store(store, x)
    return ir, load, store, weights


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_layer_that_makes_less_is_not_compiled(in_loop):
    found = {}
    for engine in ("numpy", "xla"):
        ir, load, store, weights = network(in_loop)
        executable = compile_program(ir, engine)
        for w in weights:
            executable.write(w, w.data)
        out = np.zeros((3, 3), np.float32)
        for _ in range(2):
            executable.run({load: [np.eye(3, dtype=np.float32)]}, {store: [out]})
        found[engine] = [out] + [executable.read(w) for w in weights]
    for x, y in zip(found["xla"], found["numpy"]):
        np.testing.assert_allclose(x, y, 1e-5)
    (compiled,) = executable._compiled.values()
    texts = [function.as_text() for function in compiled.function._functions.values()]
    assert sum(" tanh(" in text and " cosine(" in text for text in texts) == 1
    # In a loop nothing is gained by more work.
    assert sum(" tanh(" in text and " cosine(" not in text for text in texts) == in_loop
