"""A run that fails leaves variables and remote memory as they were, on both engines, and the next run works."""
import inspect
import re
import sys

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.engine import compile_program
from popfn.host.errors import popart_exception

ops, updates = popxl.ops, popxl.ops.var_updates
f32, i32, u32 = popxl.float32, popxl.int32, popxl.uint32
ENTRIES = 4
pytestmark = pytest.mark.usefixtures("engine")


def load(buffer, i, w):
    ops.add_(w, ops.remote_load(buffer, i))


def load_into(buffer, i, w):
    ops.remote_load_(buffer, i, w)


def store(buffer, i, w):
    ops.remote_store(buffer, i, w)


ACTS = {"remote_load": load, "remote_load_": load_into, "remote_store": store}


def once(ir, act, i, w):
    act(i, w)


def in_a_call(ir, act, i, w):
    def body(i, w: popxl.TensorByRef):
        act(i, w)

    ops.call(ir.create_graph(body, i, w), i, w)


def in_a_loop(ir, act, i, w):
    """Of the two steps the last one has the offset."""
    def body(i, w: popxl.TensorByRef):
        act(i, w)
        return [i + 1]

    ops.repeat(ir.create_graph(body, i, w), 2, i - 1, w)


def in_a_branch_in_a_loop(ir, act, i, w):
    def taken(i, w):
        w = ops.identity(w)
        act(i, w)
        return w

    branches = [ir.create_graph(taken, i, w), ir.create_graph(lambda i, w: w + 1.0, i, w)]

    def body(k, i, w: popxl.TensorByRef):
        condition = ops.equal(k, popxl.constant(1, i32))
        updates.copy_var_update_(w, *ops.conditional(condition, *branches, [i, w], [i, w]))
        return [k + 1]

    ops.repeat(ir.create_graph(body, popxl.constant(0, i32), i, w), 2, 0, i, w)


def line_of(act):
    """Where the one line of a function is."""
    return f"{__file__}:{inspect.getsourcelines(act)[1] + 1}"


WAYS = [once, in_a_call, in_a_loop, in_a_branch_in_a_loop]


class Failing:
    """A program that changes a variable, a remote variable and an entry before it uses an offset from a stream."""

    def __init__(self, way, act, replicas=1, dtype=i32):
        self.ir = ir = popxl.Ir(replicas)
        self.replicas, self.dtype = replicas, dtype.as_numpy()
        with ir.main_graph, popxl.in_sequence():
            buffer = popxl.remote_buffer((3,), f32, ENTRIES)
            rows = np.arange(3 * ENTRIES, dtype=np.float32).reshape(ENTRIES, 3)
            self.remote = [popxl.remote_variable(rows[k], buffer, k, name=f"r{k}") for k in range(ENTRIES)]
            self.w = popxl.variable(np.ones(3, np.float32), name="w")
            self.stream, self.out = popxl.h2d_stream((), dtype, name="place"), popxl.d2h_stream((3,), f32)
            i = ops.host_load(self.stream)
            self.w += 1.0
            ops.remote_store(buffer, 0, self.w * 5.0)
            way(ir, lambda i, w: act(buffer, i, w), i, self.w)
            ops.remote_store(buffer, 1, self.w * 7.0)
            self.w += 1.0
            ops.host_store(self.out, self.w)
        self.session = popxl.Session(ir)

    def run(self, offset):
        """Run with an offset, of several replicas on the last one and 1 on the others; return the output."""
        data = np.array([1] * (self.replicas - 1) + [offset]).astype(self.dtype)
        return self.session.run({self.stream: data if self.replicas > 1 else data[0]}, downcast_inputs=False)[
            self.out]

    def state(self):
        read = self.session._executable.read
        shape = (self.replicas, 3)
        return [np.broadcast_to(read(t), shape).tolist() for t in (self.w, *self.remote)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_offset_that_is_out_of_range(way, kind, replicas):
    program, wanted = Failing(way, ACTS[kind], replicas), Failing(way, ACTS[kind], replicas)
    with program.session, wanted.session:
        for offset in (2, ENTRIES, 3, -1, 3):
            before = program.state()
            if offset in (2, 3):
                np.testing.assert_array_equal(program.run(offset), wanted.run(offset))
                assert program.state() == wanted.state() != before
                continue
            first = -2 if way is in_a_loop and offset == -1 else offset  # where the first step fails already
            with pytest.raises(popart_exception) as error:
                program.run(offset)
            text = rf"{kind}: the offset {first} is out of range for RemoteBuffer\[.*\], which has the entries 0 to 3 "
            text += rf"\(the offset is the tensor (.*/)?(i|t|place\S*)[,)].*, at {re.escape(line_of(ACTS[kind]))}\.$"
            assert re.match(text, str(error.value))
            assert program.state() == before


@pytest.mark.parametrize("offset", [2**32 - 1, 2**31, 2**16])
def test_a_large_unsigned_offset(offset):
    program = Failing(once, load, dtype=u32)
    with program.session:
        before = program.state()
        with pytest.raises(popart_exception, match=f"the offset {offset} is out of range"):
            program.run(offset)
        assert program.state() == before


@pytest.mark.parametrize("dtype", [popxl.int8, popxl.uint16, popxl.int64, popxl.uint64])
def test_offsets_of_any_integer_type(dtype):
    program = Failing(once, store, dtype=dtype)
    largest = int(np.iinfo(dtype.as_numpy()).max)
    with program.session:
        program.run(3)
        before = program.state()
        with pytest.raises(popart_exception, match=f"the offset {largest} is out of range"):
            program.run(largest)
        assert program.state() == before


def test_offsets_of_many_replicas():
    program = Failing(in_a_call, store, 8)
    with program.session:
        before = program.state()
        with pytest.raises(popart_exception, match="the offset 99 is out of range"):
            program.run(99)
        assert program.state() == before
        program.run(2)


def test_a_constant_offset_fails_where_it_is_used_only():
    ir = popxl.Ir()
    with ir.main_graph:
        buffer, x = popxl.remote_buffer((2,), f32, 2), popxl.variable(np.ones(2, np.float32), name="x")
        stream = popxl.h2d_stream((), popxl.bool)
        bad = ir.create_graph(lambda x: ops.remote_load(buffer, 5) + x, x)
        good = ir.create_graph(lambda x: x * 3.0, x)
        updates.copy_var_update_(x, *ops.conditional(ops.host_load(stream), bad, good, [x], [x]))
    with popxl.Session(ir) as session:
        session.run({stream: False})
        with pytest.raises(popart_exception, match=r"remote_load: the offset 5 is out of range .* loaded: "):
            session.run({stream: True})
        assert session.get_tensor_data(x).tolist() == [3, 3]


def test_a_loaded_and_a_stored_tensor_are_named():
    ir = popxl.Ir()
    with ir.main_graph:
        buffer, x = popxl.remote_buffer((2,), f32, 2), popxl.variable(np.ones(2, np.float32), name="weights")
        ops.remote_store(buffer, popxl.variable(2, name="which"), x)
    with popxl.Session(ir) as session:
        with pytest.raises(popart_exception, match=r"\(the offset is the tensor which, stored: weights\), at \S+\.$"):
            session.run()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("module, is_named", [("popfn.models", False), ("popfn", False), ("popfn_models", True)])
def test_the_line_is_the_last_one_outside_popfn(module, is_named, replicas):
    """The functions of popfn are no place to look for a fault."""
    names = {"__name__": module, "ops": ops}
    exec(compile("def load(buffer, i):\n    return ops.remote_load(buffer, i)", "inside.py", "exec"), names)
    ir = popxl.Ir(replicas)
    with ir.main_graph:
        _, here = names["load"](popxl.remote_buffer((2,), f32, 2), popxl.variable(2)), sys._getframe().f_lineno
    with popxl.Session(ir) as session, pytest.raises(popart_exception) as error:
        session.run()
    assert str(error.value).endswith(", at inside.py:2." if is_named else f", at {__file__}:{here}.")


def counting(replicas=1):
    ir = popxl.Ir(replicas)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2,), f32)
        far = popxl.remote_variable(np.zeros(2, np.float32), buffer, name="far")
        near = popxl.variable(np.zeros(2, np.float32), name="near")
        near += 1.0
        ops.remote_store(buffer, 0, near * 2.0)
        outs = [popxl.d2h_stream((2,), f32, name=f"out{k}") for k in range(2)]
        for out in outs:
            ops.host_store(out, near)
    return ir, far, near, outs


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("how", ["read-only", "shape"])
def test_an_output_that_cannot_be_written(how, replicas):
    ir, far, near, outs = counting(replicas)
    executable = compile_program(ir)
    arrays = {out: [np.zeros((replicas, 2)[replicas == 1:], np.float32)] for out in outs}
    executable.run({}, arrays)
    bad = arrays[outs[1]][0][..., :1] if how == "shape" else arrays[outs[1]][0].copy()
    bad.flags.writeable = how == "shape"
    with pytest.raises(ValueError):
        executable.run({}, {outs[0]: arrays[outs[0]], outs[1]: [bad]})
    for t, wanted in ((near, 1), (far, 2)):
        np.testing.assert_array_equal(np.unique(executable.read(t)), wanted)
    executable.run({}, arrays)
    np.testing.assert_array_equal(np.unique(executable.read(near)), 2)


def test_a_print_that_fails(monkeypatch, capfd):
    """Standard error may be a closed pipe."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2,), f32)
        far = popxl.remote_variable(np.zeros(2, np.float32), buffer, name="far")
        near = popxl.variable(np.zeros(2, np.float32), name="near")
        near += 1.0
        ops.remote_store(buffer, 0, near * 2.0)
        ops.print_tensor(near, "near")

    class Broken:
        def write(self, text):
            raise BrokenPipeError("nobody reads this")

    with popxl.Session(ir) as session:
        session.run()
        with monkeypatch.context() as patch, pytest.raises(BrokenPipeError, match="nobody reads this"):
            patch.setattr(sys, "stderr", Broken())
            session.run()
        assert session.get_tensor_data(near).tolist() == [1, 1] and session.get_tensor_data(far).tolist() == [2, 2]
        session.run()
        assert session.get_tensor_data(near).tolist() == [2, 2] and session.get_tensor_data(far).tolist() == [4, 4]
    assert capfd.readouterr().err.count("near: ") == 2


def test_a_program_that_fails_leaves_no_context_and_the_next_one_works():
    program = Failing(once, store)
    with pytest.raises(popart_exception, match="out of range"):
        with program.session:
            program.run(9)
    assert not program.session.is_attached
    with pytest.raises(ValueError, match="is not attached"):
        program.run(1)
    with program.session:
        assert program.state()[0] == [[1, 1, 1]]
        program.run(1)
    other = Failing(in_a_loop, load)
    with other.session:
        np.testing.assert_array_equal(other.run(3), 3 + np.arange(6, 9) + np.arange(9, 12))


def test_a_build_that_fails_leaves_no_context():
    ir = popxl.Ir()
    with pytest.raises(ValueError, match="must not be negative"):
        with ir.main_graph:
            ops.remote_load(popxl.remote_buffer((2,), f32), -1)
    with pytest.raises(RuntimeError):
        popxl.get_current_graph()
    program = Failing(once, load)
    with program.session:
        program.run(1)
