"""The XLA engine on random PopXL programs: values and final state, against the naive interpreter and the NumPy engine.

The programs have integers only, so that results are exact: graphs that are called, repeated and branched to, in-place
ops on views, inputs by reference, streams, remote buffers, collectives, one to eight replicas.
"""
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from naive import Naive

import popfn.host as popxl
from popfn.host.engine import compile_program

pytest.importorskip("jax")
ops, updates, collectives = popxl.ops, popxl.ops.var_updates, popxl.ops.collectives
SHAPES = [(2, 3), (3, 2), (6,), (1, 6)]
SPECS = [popxl.TensorSpec(shape, popxl.int32) for shape in SHAPES[:3]]


class Lines:
    """Adds ops to a graph: the numbers choose operands and parameters."""

    def __init__(self, program, tensors):
        self.program = program
        self.tensors = list(tensors)

    def number(self, below):
        return next(self.program.numbers) % below

    def pick(self, shape=None, size=None):
        found = [t for t in self.tensors if shape in (None, t.shape) and size in (None, t.nelms)]
        return found[self.number(len(found))]

    def shaped(self, shape):
        """A tensor of this shape: a view, if there is none."""
        if any(t.shape == shape for t in self.tensors):
            return self.pick(shape)
        size = int(np.prod(shape))
        if any(t.nelms == size for t in self.tensors):
            return ops.reshape_(self.pick(size=size), shape)
        return ops.init(shape, popxl.int32)

    def line(self, kind):
        made = getattr(self, kind)()
        self.tensors += made if isinstance(made, (tuple, list)) else [] if made is None else [made]

    # Values

    def add(self):
        t = self.pick()
        return t + self.pick(t.shape)

    def mul(self):
        t = self.pick()
        return t * self.pick(t.shape)

    def where(self):
        t = self.pick()
        u = self.pick(t.shape)
        return ops.where(ops.greater(t, u), u, self.pick(t.shape))

    def constant(self):
        shape = SHAPES[self.number(4)]
        return popxl.constant(np.arange(np.prod(shape)).reshape(shape) - self.number(9), popxl.int32)

    def sum(self):
        return ops.sum(self.pick(), 0, keepdims=True)

    def dynamic(self):
        t = self.pick()
        return ops.dynamic_slice(t, self.index(), [0], [1 + self.number(t.shape[0])], True)

    def copy(self):
        t = self.pick()
        kind = self.number(4)
        if kind == 0:
            return ops.transpose(t)
        if kind == 1:
            return ops.slice(t, [t.shape[-1] - 1], [-t.shape[-1] - 1], [-1], [len(t.shape) - 1])
        if kind == 2 and t.shape[0] > 1:
            return ops.split(t, [1, t.shape[0] - 1], 0)
        return ops.concat([t, self.pick(t.shape)], 0)

    def index(self, below=5):
        """An index that depends on values: one uint32."""
        t = ops.reshape(self.pick(), (-1,))
        t = ops.slice(t, 0, 1)
        return ops.cast(t * t, popxl.uint32) if below is None else ops.maximum(t, popxl.constant([0], popxl.int32))

    # Views and writes

    def transpose_view(self):
        return ops.transpose_(self.pick())

    def reshape_view(self):
        return ops.reshape_(self.pick(), (-1,) if self.number(2) else (1, -1))

    def slice_view(self):
        t = self.pick()
        axis = self.number(len(t.shape))
        start = self.number(t.shape[axis])
        if self.number(2):
            return ops.slice_(t, [start], [t.shape[axis]], [1], [axis])
        return ops.slice_(t, [start], [-t.shape[axis] - 1], [-1], [axis])

    def concat_view(self):
        t = self.pick()
        return ops.concat_([ops.identity(t), self.pick(t.shape)], 0)

    def add_write(self):
        t = self.pick()
        return ops.add_(t, self.pick(t.shape))

    def copy_write(self):
        t = self.pick()
        return updates.copy_var_update_(t, self.pick(t.shape))

    def accumulate_write(self):
        t = self.pick()
        return updates.accumulate_(t, self.pick(t.shape))

    def zero_write(self):
        return updates.accumulator_zero_(self.pick())

    def dynamic_write(self):
        t = self.pick()
        part = ops.slice(t, [0], [1], [1], [0])
        return ops.dynamic_update_(t, self.index(), part, [0], [1], True)

    # The world outside

    def load(self):
        return ops.host_load(self.program.loads)

    def store(self):
        ops.host_store(self.program.stores, self.shaped((2, 3)))

    def remote_load(self):
        return ops.remote_load(self.program.buffer, self.number(3))

    def remote_load_write(self):
        return ops.remote_load_(self.program.buffer, self.remote_index(), self.shaped((6,)))

    def remote_store(self):
        ops.remote_store(self.program.buffer, self.remote_index(), self.shaped((6,)))

    def remote_index(self):
        """An entry that depends on values."""
        t = ops.slice(ops.reshape(self.pick(), (-1,)), 0, 1)
        return ops.where(ops.greater(t, popxl.constant([0], popxl.int32)), *[
            popxl.constant([self.number(3)], popxl.int32) for _ in range(2)])

    def reduce(self):
        how = ("add", "mean", "min", "max", "square_add")[self.number(5)]
        function = (collectives.replicated_all_reduce, collectives.replicated_all_reduce_)[self.number(2)]
        return function(self.pick(), how, self.group())

    def gather(self):
        mode = ("concat", "new_axis", "meta")[self.number(3)]
        if mode == "meta":
            group = self.group()
            return collectives.replicated_all_gather(collectives.replica_sharded_slice(self.pick(), group), 0, group)
        return collectives.replicated_all_gather(self.pick(), 0, self.group(), mode)

    def scatter(self):
        return collectives.replicated_reduce_scatter(self.pick(), "add", self.group())

    def part(self):
        group = self.group()
        t = self.pick()
        return collectives.replicated_slice(ops.concat([t] * group.group_size, 0), 0, group)

    def group(self):
        groups = self.program.groups
        return groups[self.number(len(groups))]

    # Graphs

    def call(self):
        info = ops.call_with_info(self.program.callee, *self.given())
        if self.number(2):
            info.set_parent_input_modified(info.inputs[0])
        return info.outputs

    def repeat(self):
        info = ops.repeat_with_info(self.program.body, self.number(4), *self.given())
        if self.number(2):
            info.set_parent_input_modified(info.inputs[2])
        return info.outputs

    def conditional(self):
        t = ops.slice(ops.reshape(self.pick(), (-1,)), 0, 1)
        condition = ops.greater(t, popxl.constant([2], popxl.int32))
        given = self.given()
        return ops.conditional(condition, *self.program.branches, given, given)

    def given(self):
        return [self.shaped(spec.shape) for spec in SPECS]


VALUES = ["add", "mul", "where", "constant", "sum", "copy", "dynamic"]
VIEWS = ["transpose_view", "reshape_view", "slice_view", "concat_view"]
WRITES = ["add_write", "copy_write", "accumulate_write", "zero_write", "dynamic_write"]
WORLD = ["load", "store", "remote_load", "remote_load_write", "remote_store"]
BETWEEN = ["reduce", "gather", "scatter", "part"]
LOCAL = VALUES + VIEWS + WRITES


class Program:
    def __init__(self, numbers, replicas, transfers, callee, body, branches, main):
        self.numbers = itertools.cycle(numbers)
        self.ir = ir = popxl.Ir(replication=replicas)
        ir.num_host_transfers = transfers
        self.groups = [ir.replica_grouping(stride, size) for stride in range(1, replicas + 1)
                       for size in range(1, replicas + 1) if replicas % (stride * size) == 0]
        with ir.main_graph:
            self.loads = popxl.h2d_stream((2, 3), popxl.int32, name="in")
            self.stores = popxl.d2h_stream((2, 3), popxl.int32, name="out")
            self.buffer = popxl.remote_buffer((6,), popxl.int32, 3)
            data = np.arange(6, dtype=np.int32)
            group = self.groups[next(self.numbers) % len(self.groups)]
            grouped = np.stack([data - 3 * k for k in range(group.num_groups)])
            self.variables = [popxl.variable(data.reshape(2, 3), name="v"), popxl.variable(
                grouped.reshape(-1, 3, 2) if group.num_groups > 1 else data.reshape(3, 2), replica_grouping=group),
                popxl.variable(data * 2, name="w")]

        def graph(kinds, by_reference, returned=3):
            def build(a, b, c):
                lines = Lines(self, [a, b, c])
                for kind in kinds:
                    lines.line(kind)
                return [lines.shaped(spec.shape) for spec in SPECS[:returned]]
            if by_reference is not None:
                build.__annotations__[by_reference] = popxl.TensorByRef
            return ir.create_graph(build, *SPECS)

        self.callee = graph(callee, "b")
        self.body = graph(body, "c", 2)
        self.branches = [graph(kinds, None) for kinds in branches]
        with ir.main_graph:
            lines = Lines(self, self.variables)
            for kind in main:
                lines.line(kind)
            lines.line("store")


def lists(kinds, size):
    return st.lists(st.sampled_from(kinds), max_size=size)


programs = st.builds(
    Program,
    st.lists(st.integers(0, 10**6), min_size=10, max_size=40),
    st.sampled_from([1, 1, 2, 3, 4, 8]),
    st.sampled_from([1, 3]),
    lists([*LOCAL, *WORLD, *BETWEEN], 5),
    lists([*LOCAL, *WORLD, *BETWEEN, "call"], 5),
    st.tuples(lists([*LOCAL, *WORLD], 4), lists([*LOCAL, *WORLD], 4)),
    lists([*LOCAL, *WORLD, *BETWEEN, "call", "call", "repeat", "repeat", "conditional"], 10),
)


def started(program, engine):
    executable = compile_program(program.ir, engine)
    for t in program.variables:
        data = t.data
        if t.shape_on_host != t.shape:
            data = data[t.replica_grouping.assignment]
        executable.write(t, data)
    return executable


def check(program, engine, expect):
    """Two runs of a program; `expect(inputs, slots)` gives what is stored, where, and the variables."""
    ir = program.ir
    replicas, transfers = ir.replication_factor, ir.num_host_transfers
    executable = started(program, engine)
    for run in range(2):
        shape = (transfers, replicas, 2, 3)
        data = (np.arange(np.prod(shape), dtype=np.int32).reshape(shape) - 5) * (1 - 2 * run)
        inputs = list(data) if replicas > 1 else list(data[:, 0])
        outputs = [np.full((replicas, 2, 3)[replicas == 1:], -77, np.int32) for _ in range(transfers)]
        loads = {program.loads: inputs} if program.loads in ir.get_all_h2d_streams() else {}
        executable.run(loads, {program.stores: outputs})
        stored, is_stored, variables = expect(data)
        for found, wanted, mask in zip(outputs, stored, is_stored):
            found = found.reshape(replicas, 2, 3)
            np.testing.assert_array_equal(found[mask], wanted[mask])
            np.testing.assert_array_equal(found[~mask], -77)
        for t, wanted in zip(program.variables, variables):
            found = np.broadcast_to(executable.read(t), wanted.shape)
            np.testing.assert_array_equal(found, wanted, str(t))


def expectation(program):
    naive = Naive(program.ir)

    def expect(data):
        stored, is_stored = naive.run({program.loads: data}, {program.stores: program.ir.num_host_transfers})
        return stored[program.stores], is_stored[program.stores], [naive.value_of(t) for t in program.variables]
    return expect


@settings(max_examples=max(60, settings.default.max_examples // 2))
@given(programs)
def test_xla_runs_programs_as_written(program):
    check(program, "xla", expectation(program))


@settings(max_examples=max(60, settings.default.max_examples // 2))
@given(programs)
def test_numpy_runs_programs_as_written(program):
    check(program, "numpy", expectation(program))
