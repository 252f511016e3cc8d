"""Faults that were found by use, each as a test of its kind."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host import ops
from popfn.host.errors import popart_exception


def run(build, replicas=1):
    """What a program gives that `build(ir, v, w)` makes of two variables of ones."""
    ir = popxl.Ir(replication=replicas)
    with ir.main_graph, popxl.in_sequence():
        v, w = (popxl.variable(np.ones((1, 2), np.float32), name=name) for name in "vw")
        y = build(ir, v, w)
        store = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(store, y)
    with popxl.Session(ir) as session:
        return session.run()[store]


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("build", [
    lambda ir, v, w: ops.concat_([v, v], 0),
    lambda ir, v, w: ops.concat_([v, ops.slice_(v, 0, 1)], 0),
    lambda ir, v, w: ops.concat_([ops.reshape_(v, (1, 2)), ops.add_(v, v) * 0.5], 0),
    lambda ir, v, w: ops.concat_([ops.concat_([v, w], 0), v], 0),
])
def test_a_tensor_twice_in_a_view_of_several(engine, replicas, build):
    y = run(build, replicas)
    assert y.shape[-1] == 2 and (y == 1).mean() >= 0.5


@pytest.mark.parametrize("offset", [2**32, 2**32 + 1, 2**40])
def test_an_offset_that_does_not_fit(engine, offset):
    def build(ir, v, w):
        buffer = popxl.remote_buffer((), popxl.float32, 2)
        for i in range(2):
            popxl.remote_variable(np.float32(i), buffer, i)
        return ops.remote_load(buffer, offset)
    with pytest.raises(ValueError, match=rf"^remote_load: the offset does not fit uint32: {offset}\.$"):
        run(build)
    assert run(lambda ir, v, w: v).tolist() == [[1, 1]]


def test_variables_of_another_program(engine):
    irs = []
    for value in (1, 50):
        ir = popxl.Ir()
        with ir.main_graph:
            v = popxl.variable(np.full(2, value, np.float32), name="weights")
            v += 1.0
        irs.append((ir, v))
    (ir, v), (other, theirs) = irs
    with popxl.Session(ir) as session, popxl.Session(other) as second:
        second.run()
        with pytest.raises(ValueError, match=r"get_tensor_data: .*weights.* belongs to another Ir"):
            session.get_tensor_data(theirs)
        with pytest.raises(ValueError, match=r"write_variable_data: .*weights.* belongs to another Ir"):
            session.write_variable_data(theirs, np.zeros(2, np.float32))
        assert second.get_tensor_data(theirs).tolist() == [51, 51] and session.get_tensor_data(v).tolist() == [1, 1]


def doubled_and_added(x: popxl.TensorByRef, y):
    """x + 2 y into x, by way of a write to y."""
    ops.var_updates.accumulator_scale_(y, 2.0)
    ops.add_(x, y)


def in_a_loop(ir, v, y):
    """Three times x + 2 y, x being `v` by reference and y a value of the same storage."""
    body = ir.create_graph(doubled_and_added, v, y)
    ops.repeat(body, 3, v, y)
    return v


def in_a_call(ir, v, w):
    def inner(x: popxl.TensorByRef):
        ops.repeat(ir.create_graph(doubled_and_added, x, x), 3, x, x)
    ops.call(ir.create_graph(inner, v), v)
    return v


def beside_a_carry(ir, v, w):
    def inner(x: popxl.TensorByRef):
        return ops.repeat(ir.create_graph(carrying, x, x, x), 3, x, x, x)[0]

    def carrying(c, x: popxl.TensorByRef, y):
        doubled_and_added(x, y)
        return c + y
    return ops.call(ir.create_graph(inner, v), v)[0]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("build, want", [
    (lambda ir, v, w: in_a_loop(ir, v, v), 7),
    (lambda ir, v, w: in_a_loop(ir, v, ops.transpose_(ops.transpose_(v))), 7),
    (lambda ir, v, w: in_a_loop(ir, v, ops.reshape_(v, (1, 2))), 7),
    (lambda ir, v, w: in_a_loop(ir, v, w), 7),
    (in_a_call, 7),
    (beside_a_carry, 7),
])
def test_a_loop_that_changes_what_its_calls_get_by_value(engine, replicas, build, want):
    assert (run(build, replicas) == want).all()


def written_view(ir, v, w):
    t = ops.concat_([v, w], 1)

    def g(a: popxl.TensorByRef, b: popxl.TensorByRef):
        ops.add_(b, b)
        return a * 1.0
    return ops.call(ir.create_graph(g, v, t), v, t)[0]


def written_piece(ir, v, w):
    t = ops.concat_([v, w], 1)

    def g(a: popxl.TensorByRef, b: popxl.TensorByRef):
        ops.add_(a, a)
        return b * 1.0
    return ops.call(ir.create_graph(g, v, t), v, t)[0]


def modified_by_the_caller(ir, v, w):
    t = ops.concat_([v, w], 1)

    def g(a, b):
        ops.add_(b, b)
        ops.add_(a, ops.slice(b, 0, 2, 1, 1))
        return a
    info = ops.call_with_info(ir.create_graph(g, v, t), v, t)
    info.set_parent_input_modified(v)
    info.set_parent_input_modified(t)
    return info.outputs[0]


@pytest.mark.parametrize("build, want", [
    (written_view, [[2, 2]]), (written_piece, [[2, 2, 1, 1]]), (modified_by_the_caller, [[4, 4]])])
def test_a_joined_view_and_its_piece_by_reference(build, want, engine):
    """XLA has views of several tensors; the NumPy engine, which has not, refuses what it would get wrong."""
    if engine == "xla":
        assert run(build).tolist() == want
    else:
        with pytest.raises(popart_exception, match="are different views of one storage, .*Pass the storage once"):
            run(build)
    assert run(lambda ir, v, w: v).tolist() == [[1, 1]]


def test_one_tensor_twice_by_reference_and_joined(engine):
    def build(ir, v, w):
        def g(a: popxl.TensorByRef, b: popxl.TensorByRef):
            c = ops.concat_([a, b], 1)
            ops.var_updates.accumulator_scale_(a, -0.5)
            return c
        return ops.call(ir.create_graph(g, v, v), v, v)[0]
    assert run(build).tolist() == [[-0.5] * 4]


CHAINS = {  # what an optimiser of formulas would change; no number is subnormal, which XLA makes 0
    "a sum undone": (lambda x, c: (x + c(1.0)) - c(1.0), lambda x, f: (x + f(1.0)) - f(1.0)),
    "a sum in place": (lambda x, c: ops.add_(x + c(1.0), c(-1.0)), lambda x, f: (x + f(1.0)) + f(-1.0)),
    "differences": (lambda x, c: c(1.0) - (c(1.0) - x), lambda x, f: f(1.0) - (f(1.0) - x)),
    "three sums": (lambda x, c: ((x + c(1e8)) - c(1e8)) + c(0.5), lambda x, f: ((x + f(1e8)) - f(1e8)) + f(0.5)),
    "a product that would overflow": (lambda x, c: (x * c(1e30)) * c(1e30), lambda x, f: (x * f(1e30)) * f(1e30)),
    "minus zero": (lambda x, c: (x * c(0.0)) + c(0.0), lambda x, f: (x * f(0.0)) + f(0.0)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_constants_are_taken_one_after_the_other(engine, name):
    if engine == "xla" and not hasattr(pytest.importorskip("jax").lax, "optimization_barrier"):
        pytest.skip("JAX 0.4.13 cannot hide a constant from its compiler")
    build, expected = CHAINS[name]
    data = np.array([1e-5, -3e-4, 1e-8, 1e-20, 0.3, 1e-35], np.float32)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        load, store = (make((6,), popxl.float32) for make in (popxl.h2d_stream, popxl.d2h_stream))
        ops.host_store(store, build(ops.host_load(load), lambda value: popxl.constant(value, popxl.float32)))
    with popxl.Session(ir) as session:
        found = session.run({load: data})[store]
    with np.errstate(all="ignore"):
        want = expected(data, np.float32)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
