"""Which tensors differ between replicas.

What is equal on all replicas is computed and stored once. A tensor varies if the host gives each replica a value of
its own (a stream, a grouped or sharded variable), if a collective does, or if it is computed from, or in storage shared
with, one that varies.
"""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import callees
from popfn.host.errors import popart_exception
from popfn.host.tensor import Shard, Tensor, Variable

Pattern = Tuple[bool, ...]  # which of several tensors vary
GATHERING = ("replicated_all_reduce", "replicated_all_reduce_", "replicated_all_gather")
SCATTERING = ("replicated_reduce_scatter", "replica_sharded_slice", "replicated_slice")

# Loads too: they move on in their stream, or fail if their offset is wrong.
ACTING = frozenset(["host_load", "host_store", "remote_load", "remote_load_", "remote_store", "print_tensor"])


class Signature(NamedTuple):
    """What varies in a graph.

    Attributes:
        inputs: The inputs that vary: those that the caller said, and those to which something is written that varies.
        outputs: The outputs that vary.
        tensors: All tensors that vary.
        written: All tensors that some op modifies.
    """

    inputs: Pattern
    outputs: Pattern
    tensors: Set[Tensor]
    written: Set[Tensor]


class Variance:
    """The analysis of a program.

    Attributes:
        buffers: The remote buffers that vary.
        main: The signature of the main graph.
    """

    def __init__(self, main_graph: Any, replicas: int) -> None:
        self.replicas = replicas
        self.buffers: Set[Any] = set()
        for t in main_graph.variables:
            if t._remote is not None and (_is_grouped(t) or t._remote[0].meta_shape):
                self.buffers.add(t._remote[0])
        self._known: Dict[Tuple[Any, Pattern, bool], Signature] = {}
        while True:
            count = len(self.buffers)
            self._known.clear()
            self.main = self.of(main_graph, ())
            if len(self.buffers) == count:
                break

    def of(self, graph: Any, inputs: Iterable[bool], in_branch: bool = False) -> Signature:
        """The signature of a graph for these varying inputs, and inside a branch that not all replicas take or not."""
        key = graph, tuple(inputs), in_branch
        if key not in self._known:
            self._known[key] = _Walk(self, *key).signature()
        return self._known[key]

    def of_loop(self, op: Any, inputs: Iterable[bool], in_branch: bool = False) -> Signature:
        """The signature of the body of a repeat, where what is carried varies from the beginning if it ever does."""
        (body,) = callees(op)
        found = self.of(body, inputs, in_branch)
        while True:
            carried = [x or y for x, y in zip(found.inputs, found.outputs[: len(op.outputs)])]
            again = self.of(body, carried + list(found.inputs[len(carried) :]), in_branch)
            if again.inputs == found.inputs:
                return found
            found = again


def _is_grouped(t: Variable) -> bool:
    return t._grouping is not None and t._grouping.num_groups > 1


def _reached(graphs: Iterable[Any]) -> Iterator[Any]:
    """The ops of graphs and of those that they call."""
    seen: Set[Any] = set()
    queue = list(graphs)
    while queue:
        graph = queue.pop()
        if graph not in seen:
            seen.add(graph)
            for op in graph.ops:
                yield op
                queue.extend(op.called)


def acts(graph: Any) -> bool:
    """Whether a graph, or one that it calls, does more than compute its outputs and modify its inputs."""
    return any(op.kind in ACTING for op in _reached([graph]))


def collective_in(op: Any) -> Optional[str]:
    """The kind of a collective over replicas in the graphs that an op calls, if there is one."""
    kinds = (inner.kind for inner in _reached(op.called))
    return next((kind for kind in kinds if kind in GATHERING or kind in SCATTERING), None)


def disagreement(op: Any, count: int, replicas: int) -> popart_exception:
    """The error for a conditional with a collective in a branch whose condition is true on some replicas only."""
    return popart_exception(
        f"conditional: the condition {op.inputs[0].id} differs between the replicas, it is true on {count} of "
        f"{replicas}, and a branch runs {collective_in(op)}, in which all replicas take part. Move that out of the "
        "branches, or make the condition equal, for example by replicated_all_reduce. The conditional is at "
        f"{op.user_line}."
    )


def is_writing(op: Any) -> bool:
    """Whether an op modifies its first input."""
    return op.kind == "replicated_all_reduce_" or op.kind in KERNELS and KERNELS[op.kind].writes


class _Walk:
    """The analysis of one graph for one pattern of inputs."""

    def __init__(self, whole: Variance, graph: Any, inputs: Pattern, in_branch: bool) -> None:
        self.whole = whole
        self.graph = graph
        self.in_branch = in_branch
        self.parent: Dict[Tensor, Tensor] = {}  # of tensors that share storage
        self.varying: Set[Tensor] = set()  # one tensor of each storage
        for op in graph.ops:
            if op.kind.endswith("_") or is_writing(op):
                for t in op.inputs if op.kind == "concat_" else op.inputs[:1]:
                    part, joined = self.storage(t), self.storage(op.outputs[0])
                    if part is not joined:  # a tensor may stand in a concat_ twice
                        self.parent[part] = joined
        self.written = {self.storage(op.inputs[0]) for op in graph.ops if is_writing(op)}
        for op in graph.ops:
            self.written.update([self.storage(op.inputs[i]) for i in op.attrs.get("modified", ())])
        self.mark([t for t, varies in zip(graph.inputs, inputs) if varies])
        if graph is graph.main_graph and whole.replicas > 1:
            self.mark([t for t in graph.tensors if isinstance(t, Shard) or isinstance(t, Variable) and _is_grouped(t)])

    def storage(self, t: Tensor) -> Tensor:
        """The tensor that stands for the storage of `t`."""
        while t in self.parent:
            t = self.parent[t]
        return t

    def varies(self, t: Tensor) -> bool:
        """Whether the storage of `t` varies."""
        return self.storage(t) in self.varying

    def mark(self, tensors: Iterable[Tensor]) -> None:
        """Note that tensors vary."""
        self.varying.update([self.storage(t) for t in tensors])

    def signature(self) -> Signature:
        """Follow the ops until nothing changes: a write to storage makes the tensors vary that were read before."""
        count = -1
        while count != len(self.varying):
            count = len(self.varying)
            for op in self.graph.ops:
                self.follow(op)
        graph = self.graph
        return Signature(
            tuple([self.varies(t) for t in graph.inputs]),
            tuple([self.varies(t) for t in graph.outputs]),
            {t for t in graph.tensors if self.varies(t)},
            {t for t in graph.tensors if self.storage(t) in self.written},
        )

    def follow(self, op: Any) -> None:
        """Mark the outputs of an op that vary, and what it writes."""
        ins = [self.varies(t) for t in op.inputs]
        kind = op.kind
        if kind == "host_load":
            varies = self.whole.replicas > 1
        elif kind in GATHERING:
            varies = any(ins) and op.attrs["group"].num_groups > 1
        elif kind in SCATTERING:
            varies = any(ins) or op.attrs["group"].group_size > 1
        elif kind in ("remote_load", "remote_load_"):
            varies = op.attrs["buffer"] in self.whole.buffers or ins[-1]
        elif kind == "remote_store":
            varies = False
            if any(ins) or self.in_branch:
                self.whole.buffers.add(op.attrs["buffer"])
        elif op.called:
            self.called(op, ins)
            return
        else:
            varies = any(ins)
        if varies:
            self.mark(op.outputs)

    def called(self, op: Any, ins: List[bool]) -> None:
        if op.kind == "conditional":
            then_count = op.attrs["then_count"]
            parts = ins[1 : 1 + then_count], ins[1 + then_count :]
            parts_ways = ins[0] and collective_in(op) is None
            in_branch = self.in_branch or parts_ways
            both = [self.whole.of(g, p, in_branch).outputs for g, p in zip(callees(op), parts)]
            outputs = [parts_ways or any(pair) for pair in zip(*both)]
        elif op.kind == "repeat":
            found = self.whole.of_loop(op, ins, self.in_branch)
            outputs = list(found.inputs[: len(op.outputs)])
        else:
            found = self.whole.of(callees(op)[0], ins, self.in_branch)
            outputs = list(found.outputs)
        self.mark([t for t, varies in zip(op.outputs, outputs) if varies])
        if op.kind != "conditional":
            self.mark([op.inputs[i] for i in op.attrs["modified"] if found.inputs[i]])
