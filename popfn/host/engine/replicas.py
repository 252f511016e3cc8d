"""From a program for several replicas to one for a single machine that computes for all of them.

A tensor that varies between replicas gets a leading axis with the value of each. `Expansion` rewrites the graphs
accordingly: ops take the axis along where `engine.batching` knows how, and else run once for each replica; collectives
become reductions and rearrangements of the axis. A graph is rewritten for each pattern of inputs and outputs that vary.
"""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from popfn.host.engine import batching, collectives
from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import callees, evaluate
from popfn.host.engine.variance import GATHERING, SCATTERING, Pattern, Variance
from popfn.host.errors import popart_exception
from popfn.host.kernels.kernel import Kernel
from popfn.host.kernels.layout import Layout, Shape
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


class ExpandedOp:
    """An op of the rewritten program, with the attributes of `graph.Op` that the engine reads.

    `kernel` is that of an op of which the table has none.
    """

    __slots__ = ("kind", "inputs", "outputs", "attrs", "graph", "kernel")

    def __init__(
        self,
        kind: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Dict[str, Any],
        graph: Any,
        kernel: Optional[Kernel],
    ) -> None:
        self.kind = kind
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.attrs = attrs
        self.graph = graph
        self.kernel = kernel

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
    """

    def __init__(self, main_graph: Any, replicas: int) -> None:
        self.replicas = replicas
        self.variance = Variance(main_graph, replicas)
        self.buffers = self.variance.buffers
        self.states: Dict[Tensor, Value] = {}
        for t in self.variance.main.tensors:
            if batching.is_state(t):
                self.states[t] = Value(t, (replicas,) + t.shape, state=t)
        self._graphs: Dict[Any, ExpandedGraph] = {}
        self.main_graph = self.graph(main_graph, (), (False,) * len(main_graph.outputs))

    def graph(self, graph: Any, inputs: Pattern, outputs: Pattern) -> ExpandedGraph:
        """A graph for these varying inputs, in which at least these outputs vary."""
        key = graph, inputs, outputs
        if key not in self._graphs:
            self._graphs[key] = Expander(self, graph, inputs, outputs).made
        return self._graphs[key]


class Expander:
    """Rewrites one graph for one pattern."""

    def __init__(self, whole: Expansion, graph: Any, inputs: Pattern, outputs: Pattern) -> None:
        self.whole = whole
        self.graph = graph
        self.replicas = whole.replicas
        self.signature = whole.variance.of(graph, inputs)
        self.made = ExpandedGraph(graph)
        self.values: Dict[Tensor, Any] = {}
        for t in graph.inputs:
            self.values[t] = self.new(t) if self.varies(t) else t
        self.made.inputs = [self.values[t] for t in graph.inputs]
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
    ) -> None:
        """Add an op."""
        self.made.ops.append(ExpandedOp(kind, inputs, outputs, attrs, self.graph, kernel))

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
        self.emit(op.kind, inputs, [self.output(t) for t in op.outputs], {**op.attrs, **attrs})

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
        self.emit(op.kind, [self.at(t) for t in op.inputs], outs, op.attrs)
        for t, out in zip(op.outputs, outs):
            self.define(t, out)

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
        found = self.whole.variance.of(called, [self.varies(t) for t in op.inputs])
        outputs = self.wanted(op, found.outputs)
        self.emit_call(op, op.inputs, found.inputs, [self.whole.graph(called, found.inputs, outputs)])

    def repeat(self, op: Any) -> None:
        """An op that runs a graph a number of times."""
        (body,) = callees(op)
        count = len(op.outputs)
        found = self.whole.variance.of_loop(op, [self.varies(t) for t in op.inputs])
        outputs = found.inputs[:count] + found.outputs[count:]
        results = self.emit_call(op, op.inputs, found.inputs, [self.whole.graph(body, found.inputs, outputs)], outputs)
        for t, result in zip(op.outputs, results):
            self.define(t, result)

    def conditional(self, op: Any) -> None:
        """An op that runs one of two graphs."""
        then_count = op.attrs["then_count"]
        condition = self.at(op.inputs[0])
        if self.varies(op.inputs[0]):
            condition = self.op("agree", [condition], op.inputs[0].shape, kernel=_AGREE, replicas=self.replicas)
        graphs, patterns, outputs = callees(op), [], self.wanted(op, ())
        for graph, part in zip(graphs, (op.inputs[1 : 1 + then_count], op.inputs[1 + then_count :])):
            patterns.append(self.whole.variance.of(graph, [self.varies(t) for t in part]).inputs)
        made = []
        for graph, pattern in zip(graphs, patterns):
            further = (False,) * (len(graph.outputs) - len(outputs))
            made.append(self.whole.graph(graph, pattern, outputs + further))
        self.emit_call(op, op.inputs[1:], patterns[0] + patterns[1], made, first=[condition])

    def wanted(self, op: Any, outputs: Pattern) -> Pattern:
        """Which outputs of the called graph must vary: those of the op that do, and further ones as they are."""
        return tuple([self.varies(t) for t in op.outputs]) + outputs[len(op.outputs) :]

    def emit_call(
        self,
        op: Any,
        inputs: Sequence[Tensor],
        pattern: Pattern,
        graphs: Sequence[ExpandedGraph],
        outputs: Optional[Pattern] = None,
        first: Sequence[Any] = (),
    ) -> List[Any]:
        """Add a call of rewritten graphs, whose inputs have the leading axis in this pattern."""
        ins = [self.spread(t) if varies else self.at(t) for t, varies in zip(inputs, pattern)]
        if outputs is None:
            outs = [self.output(t) for t in op.outputs]
        else:
            lead = (self.replicas,)
            outs = [Value(t, (lead if varies else ()) + t.shape) for t, varies in zip(op.outputs, outputs)]
        self.emit(op.kind, [*first, *ins], outs, {**op.attrs, "graph": None, "graphs": tuple(graphs)})
        return outs


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


def _agree(xp: Any, op: Any, x: Any) -> Any:
    rows = x.reshape(op.attrs["replicas"], -1)
    if (rows != rows[0]).any():
        raise popart_exception(
            f"conditional: the condition {op.inputs[0].id} differs between the replicas, which run in step: it is true "
            f"on {np.flatnonzero(rows[:, 0]).tolist()} of {len(rows)}. Make it equal, for example by "
            "replicated_all_reduce."
        )
    return rows[0].reshape(op.outputs[0].shape)


_BROADCAST = Kernel(_broadcast, view=_view_broadcast)
_DIAGONAL = Kernel(_diagonal, view=_view_diagonal)
_AGREE = Kernel(_agree, effect=True)


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
