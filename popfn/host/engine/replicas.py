"""From a program for several replicas to one for a single machine that computes for all of them.

A tensor that varies between replicas gets a leading axis with the value of each. `Expansion` rewrites the graphs
accordingly: ops take the axis along where `engine.batching` knows how, and else run once for each replica; collectives
become reductions and rearrangements of the axis. A graph is rewritten for each pattern of inputs and outputs that vary.

If a condition varies, both branches run, each for all replicas, and every replica keeps what its own branch gave. What
a branch does besides, to streams or remote memory say, it does for the replicas that take it: its graph has these as
one more input, the last one.
"""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.engine import batching, collectives
from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import callees, evaluate
from popfn.host.engine.variance import (
    ACTING,
    GATHERING,
    SCATTERING,
    Pattern,
    Variance,
    acts,
    collective_in,
    disagreement,
)
from popfn.host.kernels.kernel import Kernel
from popfn.host.kernels.layout import Layout, Shape
from popfn.host.ops._print import print_value
from popfn.host.tensor import Constant, Tensor


class Value:
    """A tensor of the rewritten program. `state` is the variable or shard of which it holds all values, if any."""

    __slots__ = ("id", "name", "shape", "dtype", "state")

    def __init__(self, t: Any, shape: Shape, dtype: Any = None, state: Any = None) -> None:
        self.id: str = t.id
        self.name: str = t.id if state is None else t.name
        self.shape = shape
        self.dtype = dtype or t.dtype
        self.state = state


class _Named(NamedTuple):
    """What a Value is made from that stands for no tensor."""

    id: str
    dtype: Any


_TAKING = _Named("taking", dtypes.bool)  # which replicas take the branch


class ExpandedOp:
    """An op of the rewritten program, with the attributes of `graph.Op` that the engine reads.

    `kernel` is that of an op of which the table has none.
    """

    __slots__ = ("kind", "inputs", "outputs", "attrs", "graph", "kernel", "user_line")

    def __init__(
        self,
        kind: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Dict[str, Any],
        graph: Any,
        kernel: Optional[Kernel],
        user_line: Optional[str],
    ) -> None:
        self.kind = kind
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.attrs = attrs
        self.graph = graph
        self.kernel = kernel
        self.user_line = user_line

    @property
    def called(self) -> Tuple[Any, ...]:
        """The graphs that the op calls."""
        return self.attrs.get("graphs", ())


class ExpandedGraph:
    """A graph of the rewritten program."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.name: str = original.name
        self.ops: List[Any] = []
        self.inputs: List[Any] = []
        self.outputs: List[Any] = []
        self.has_taking = False  # whether the last input says which replicas take the branch that the graph is in

    @property
    def main_graph(self) -> Optional["ExpandedGraph"]:
        """The graph itself, if it is the main graph."""
        return self if self.original is self.original.main_graph else None

    def __repr__(self) -> str:
        return repr(self.original)


class Expansion:
    """The rewritten program.

    Attributes:
        main_graph: Its main graph.
        states: The values that hold variables and shards which vary.
        buffers: The remote buffers whose entries have a leading axis.
        uneven: The streams of which not all replicas take the same transfers.
    """

    def __init__(self, main_graph: Any, replicas: int) -> None:
        self.replicas = replicas
        self.variance = Variance(main_graph, replicas)
        self.buffers = self.variance.buffers
        self.uneven: Set[Any] = set()
        self.states: Dict[Tensor, Value] = {}
        for t in self.variance.main.tensors:
            if batching.is_state(t):
                self.states[t] = Value(t, (replicas,) + t.shape, state=t)
        self._graphs: Dict[Any, ExpandedGraph] = {}
        self.main_graph = self.graph(main_graph, (), (False,) * len(main_graph.outputs))

    def graph(self, graph: Any, inputs: Pattern, outputs: Pattern, in_branch: bool = False) -> ExpandedGraph:
        """A graph for these varying inputs, in which at least these outputs vary; see `Variance.of`."""
        key = graph, inputs, outputs, in_branch
        if key not in self._graphs:
            self._graphs[key] = Expander(self, graph, inputs, outputs, in_branch).made
        return self._graphs[key]


class Expander:
    """Rewrites one graph for one pattern."""

    def __init__(self, whole: Expansion, graph: Any, inputs: Pattern, outputs: Pattern, in_branch: bool) -> None:
        self.whole = whole
        self.in_branch = in_branch
        self.graph = graph
        self.replicas = whole.replicas
        self.signature = whole.variance.of(graph, inputs, in_branch)
        self.made = ExpandedGraph(graph)
        self.values: Dict[Tensor, Any] = {}
        for t in graph.inputs:
            self.values[t] = self.new(t) if self.varies(t) else t
        self.made.inputs = [self.values[t] for t in graph.inputs]
        self.taking: Optional[Value] = None
        if in_branch and acts(graph):
            self.taking = Value(_TAKING, (self.replicas,))
            self.made.inputs.append(self.taking)
            self.made.has_taking = True
        for op in graph.ops:
            self.expand(op)
        self.made.outputs = [self.spread(t) if varies else self.at(t) for t, varies in zip(graph.outputs, outputs)]

    # Tensors

    def varies(self, t: Tensor) -> bool:
        """Whether a tensor has a value for each replica."""
        return t in self.signature.tensors

    def constant(self, data: np.ndarray, like: Tensor) -> Constant:
        """A constant of the dtype of a tensor."""
        made = object.__new__(Constant)
        made.id, made.shape, made.dtype, made.data = "replicas", data.shape, like.dtype, data
        return made

    def is_written(self, t: Tensor) -> bool:
        """Whether some op of the graph modifies a tensor."""
        return t in self.signature.written

    def new(self, t: Tensor) -> Value:
        """A value for a tensor, with the leading axis if it varies."""
        return Value(t, (self.replicas,) + t.shape if self.varies(t) else t.shape)

    def at(self, t: Tensor) -> Any:
        """What stands for a tensor."""
        if t not in self.values:
            found = self.whole.states.get(t, t)
            if self.varies(t) and isinstance(t, Constant):
                found = self.broadcast(t, (self.replicas,) + t.shape)
            self.values[t] = found
        return self.values[t]

    def spread(self, t: Tensor) -> Any:
        """What stands for a tensor, with the leading axis."""
        return self.at(t) if self.varies(t) else self.broadcast(self.at(t), (self.replicas,) + t.shape)

    def aligned(self, t: Tensor, rank: int) -> Any:
        """What stands for a tensor, with axes of length 1 behind the leading one up to a rank without that."""
        x = self.at(t)
        if not self.varies(t) or len(t.shape) >= rank:
            return x
        return self.reshape(x, (self.replicas,) + (1,) * (rank - len(t.shape)) + t.shape)

    # Ops

    def emit(
        self,
        kind: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Dict[str, Any],
        kernel: Optional[Kernel] = None,
        user_line: Optional[str] = None,
    ) -> None:
        """Add an op."""
        self.made.ops.append(ExpandedOp(kind, inputs, outputs, attrs, self.graph, kernel, user_line))

    def op(
        self,
        kind: str,
        inputs: Sequence[Any],
        shape: Shape,
        dtype: Any = None,
        like: Any = None,
        kernel: Optional[Kernel] = None,
        **attrs: Any,
    ) -> Value:
        """Add an op with one output and return that. It has the name of the first input, or of `like`."""
        out = Value(like or inputs[0], shape, dtype)
        self.emit(kind, inputs, [out], attrs, kernel)
        return out

    def reshape(self, x: Any, shape: Shape) -> Any:
        """A value in another shape."""
        return x if x.shape == shape else self.op("reshape", [x], shape)

    def permute(self, x: Any, *permutation: int) -> Value:
        """A value with its axes in another order."""
        shape = tuple([x.shape[axis] for axis in permutation])
        return self.op("transpose", [x], shape, permutation=permutation)

    def broadcast(self, x: Any, shape: Shape) -> Value:
        """A value repeated along axes of length 1, and along new ones in front."""
        return self.op("broadcast", [x], shape, kernel=_BROADCAST)

    def diagonal(self, x: Any, first: int, second: int) -> Value:
        """The elements with equal indices along two axes, which become one at the place of the first."""
        shape = x.shape[:second] + x.shape[second + 1 :]
        return self.op("diagonal", [x], shape, kernel=_DIAGONAL, axes=(first, second))

    def apply(self, op: Any, inputs: Sequence[Any], **attrs: Any) -> None:
        """Add an op that takes the leading axis along, with some other attributes."""
        self.emit(op.kind, inputs, [self.output(t) for t in op.outputs], {**op.attrs, **attrs}, user_line=op.user_line)

    def output(self, t: Tensor) -> Value:
        """Make the value that stands for an output."""
        self.values[t] = found = self.new(t)
        return found

    def define(self, t: Tensor, x: Any) -> None:
        """Let a value stand for an output, which may vary although the value does not."""
        is_spread = len(x.shape) > len(t.shape)
        self.values[t] = self.broadcast(x, (self.replicas,) + t.shape) if self.varies(t) and not is_spread else x

    def expand(self, op: Any) -> None:
        """Rewrite one op."""
        kind = op.kind
        if kind in GATHERING or kind in SCATTERING:
            collectives.expand(self, op)
        elif op.called:
            _CONTROL[kind](self, op)
        elif self.taking is not None and kind in ACTING:
            self.act(op, self.taking)
        elif kind in ("host_load", "host_store", "remote_load_", "remote_store"):
            self.apply(op, [self.at(t) for t in op.inputs])
        elif not self.varies_with(op):
            self.once(op)
        elif kind == "remote_load":
            self.apply(op, [self.at(t) for t in op.inputs])
        elif not batching.expand(self, op):
            self.each(op)

    def varies_with(self, op: Any) -> bool:
        """Whether what an op computes varies."""
        return any(self.varies(t) for t in op.inputs) or op.attrs.get("buffer") in self.whole.buffers

    def once(self, op: Any) -> None:
        """Run the op once for all replicas. An output that is modified later may have to be repeated for them."""
        outs = [Value(t, t.shape) for t in op.outputs]
        self.emit(op.kind, [self.at(t) for t in op.inputs], outs, op.attrs, user_line=op.user_line)
        for t, out in zip(op.outputs, outs):
            self.define(t, out)

    def act(self, op: Any, taking: Value) -> None:
        """Do what the op does for the replicas that take the branch."""
        kind, ins = op.kind, [self.at(t) for t in op.inputs]
        if kind in ("host_load", "host_store"):
            self.whole.uneven.add(op.attrs["stream"])
            self.apply(op, [*ins, taking])
        elif kind == "remote_store":
            self.apply(op, [ins[0], taking, ins[1]])
        elif not self.varies_with(op):
            self.once(op)
        elif kind == "print_tensor":
            self.emit(kind, [ins[0], taking], [self.output(t) for t in op.outputs], op.attrs, _print(op))
        else:
            if self.varies(op.inputs[-1]):
                ins[-1] = self.op("offset", [ins[-1], taking], ins[-1].shape, kernel=_OFFSET)
            self.apply(op, ins)

    def each(self, op: Any) -> None:
        """Run the op once for each replica."""
        varying = [self.varies(t) for t in op.inputs]
        ins = [self.at(t) for t in op.inputs]
        outs = [self.output(t) for t in op.outputs]
        self.emit(op.kind, ins, outs, op.attrs, _each(op, varying, self.replicas))

    # Control flow

    def call(self, op: Any) -> None:
        """An op that runs a graph once."""
        (called,) = callees(op)
        found = self.whole.variance.of(called, [self.varies(t) for t in op.inputs], self.in_branch)
        graph = self.whole.graph(called, found.inputs, self.wanted(op, found.outputs), self.in_branch)
        ins = self.arguments(op.inputs, found.inputs, graph, self.taking)
        self.emit_call(op, op.kind, ins, [self.output(t) for t in op.outputs], [graph])

    def repeat(self, op: Any) -> None:
        """An op that runs a graph a number of times."""
        (body,) = callees(op)
        count = len(op.outputs)
        found = self.whole.variance.of_loop(op, [self.varies(t) for t in op.inputs], self.in_branch)
        outputs = found.inputs[:count] + found.outputs[count:]
        graph = self.whole.graph(body, found.inputs, outputs, self.in_branch)
        lead = (self.replicas,)
        outs = [Value(t, (lead if varies else ()) + t.shape) for t, varies in zip(op.outputs, outputs)]
        self.emit_call(op, op.kind, self.arguments(op.inputs, found.inputs, graph, self.taking), outs, [graph])
        for t, result in zip(op.outputs, outs):
            self.define(t, result)

    def conditional(self, op: Any) -> None:
        """An op that runs one of two graphs, or if the condition varies both."""
        first = 1 + op.attrs["then_count"]
        condition = self.at(op.inputs[0])
        taking: List[Any] = [self.taking, self.taking]
        parts_ways = self.varies(op.inputs[0]) and collective_in(op) is None
        if parts_ways:
            condition = self.reshape(condition, (self.replicas,))
            taking = [condition, self.op("logical_not", [condition], condition.shape)]
            if self.taking is not None:
                taking = [self.op("logical_and", [self.taking, x], x.shape) for x in taking]
        elif self.varies(op.inputs[0]):
            condition = self.op("agree", [condition], op.inputs[0].shape, kernel=_agree(op, self.replicas))
        outputs, in_branch = self.wanted(op, ()), self.in_branch or parts_ways
        made: List[ExpandedGraph] = []
        ins: List[List[Any]] = []
        for graph, tensors, branch in zip(callees(op), (op.inputs[1:first], op.inputs[first:]), taking):
            pattern = self.whole.variance.of(graph, [self.varies(t) for t in tensors], in_branch).inputs
            further = (False,) * (len(graph.outputs) - len(outputs))
            made.append(self.whole.graph(graph, pattern, outputs + further, in_branch))
            ins.append(self.arguments(tensors, pattern, made[-1], branch))
        kind, before = ("branches", taking) if parts_ways else (op.kind, [condition])
        outs = [self.output(t) for t in op.outputs]
        self.emit_call(op, kind, [*before, *ins[0], *ins[1]], outs, made, then_count=len(ins[0]))

    def wanted(self, op: Any, outputs: Pattern) -> Pattern:
        """Which outputs of the called graph must vary: those of the op that do, and further ones as they are."""
        return tuple([self.varies(t) for t in op.outputs]) + outputs[len(op.outputs) :]

    def arguments(
        self, tensors: Sequence[Tensor], pattern: Pattern, graph: ExpandedGraph, taking: Optional[Value]
    ) -> List[Any]:
        """What stands for tensors that are given to a rewritten graph, whose inputs vary in this pattern."""
        found = [self.spread(t) if varies else self.at(t) for t, varies in zip(tensors, pattern)]
        return [*found, taking] if graph.has_taking else found

    def emit_call(
        self, op: Any, kind: str, ins: Sequence[Any], outs: Sequence[Any], graphs: Sequence[ExpandedGraph], **attrs: Any
    ) -> None:
        """Add a call of rewritten graphs."""
        attrs = {**op.attrs, "graph": None, "graphs": tuple(graphs), **attrs}
        self.emit(kind, ins, outs, attrs, _BRANCHES if kind == "branches" else None)


_CONTROL = {"call": Expander.call, "repeat": Expander.repeat, "conditional": Expander.conditional}


# Kernels of ops that only the rewritten program has


def _broadcast(xp: Any, op: Any, x: Any) -> Any:
    return xp.broadcast_to(x, op.outputs[0].shape)


def _view_broadcast(op: Any, i: int, x: Any) -> Layout:
    shape = op.outputs[0].shape
    new = len(shape) - len(x.shape)
    kept = [0 if n == 1 != shape[new + axis] else x.strides[axis] for axis, n in enumerate(x.shape)]
    return (0,) * new + tuple(kept), 0


def _diagonal(xp: Any, op: Any, x: Any) -> Any:
    first, second = op.attrs["axes"]
    return xp.moveaxis(xp.diagonal(x, 0, first, second), -1, first)


def _view_diagonal(op: Any, i: int, x: Any) -> Layout:
    first, second = op.attrs["axes"]
    strides = list(x.strides)
    strides[first] += strides.pop(second)
    return tuple(strides), 0


def _offset(xp: Any, op: Any, offsets: Any, taking: Any) -> Any:
    """An offset that no replica uses is 0, which is in any buffer."""
    return xp.where(taking.reshape((-1,) + (1,) * (offsets.ndim - 1)), offsets, 0)


_BROADCAST = Kernel(_broadcast, view=_view_broadcast)
_DIAGONAL = Kernel(_diagonal, view=_view_diagonal)
_OFFSET = Kernel(_offset)
_BRANCHES = Kernel(None)


def _agree(op: Any, replicas: int) -> Kernel:
    """The kernel that makes one condition of those of all replicas, which must be equal."""

    def value(xp: Any, agree: Any, x: Any) -> Any:
        rows = x.reshape(replicas, -1)
        if (rows != rows[0]).any():
            raise disagreement(op, int(rows.sum()), replicas)
        return rows[0].reshape(agree.outputs[0].shape)

    return Kernel(value, effect=True)


def _print(op: Any) -> Kernel:
    """The kernel that prints the values of the replicas that take a branch."""

    def value(xp: Any, _: Any, x: Any, taking: Any) -> Any:
        if op.attrs["print_self"]:
            for row in x[taking]:
                print_value(op, row)
        return x

    return Kernel(value, effect=True)


def _each(op: Any, varying: Sequence[bool], replicas: int) -> Kernel:
    """The kernel that runs an op's kernel for each replica."""
    kernel = KERNELS.get(op.kind)
    if kernel is None:
        made = ", ".join(t.id for t in op.outputs) or "no tensor"
        raise NotImplementedError(f"the host has no kernel for the op {op.kind!r}, which makes {made}.")

    def rows(arrays: Iterable[Any], replica: int) -> List[Any]:
        return [x[replica] if varies else x for x, varies in zip(arrays, varying)]

    def value(xp: Any, _: Any, *arrays: np.ndarray) -> Any:
        results = [evaluate(op, kernel, rows(arrays, replica)) for replica in range(replicas)]
        stacked = tuple([np.stack(parts) for parts in zip(*results)])
        return stacked if len(stacked) > 1 else stacked[0]

    def emit(s: Any) -> None:
        for replica in range(replicas):
            ins = [s.row(x, replica) if varies else x for x, varies in zip(s.ins, varying)]
            s.nested(op, kernel, ins, [s.row(x, replica) for x in s.outs])

    return kernel._replace(value=value if kernel.value is not None else None, emit=emit, inplace=())
