"""The way back through a graph: from its ops to a grad graph."""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from popfn.host import context, ops
from popfn.host.errors import popart_exception
from popfn.host.gradients import REFUSED, RULES
from popfn.host.gradients.info import ExpectedConnection, ExpectedConnectionType, GradGraphInfo
from popfn.host.gradients.site import Site, zeros
from popfn.host.graph import Graph, Op
from popfn.host.tensor import Constant, Tensor

_VIEWS = frozenset(["reshape_", "transpose_", "slice_", "concat_", "detach_"])
_EFFECTS = frozenset(["host_load", "host_store", "remote_load", "remote_store"])


def _modifies(op: Op) -> bool:
    return bool(op.attrs.get("modified")) or op.kind.endswith("_") and op.kind not in _VIEWS


def _is_differentiable(op: Op) -> bool:
    return op.kind in RULES or op.kind in REFUSED or op.kind in ("call", "conditional")


class Run:
    """One use of autodiff: the grad graphs it has made so far, and how to take all of it back."""

    def __init__(self, ir: Any, given: Mapping[Graph, GradGraphInfo]) -> None:
        self.ir = ir
        self.infos: Dict[Graph, Optional[GradGraphInfo]] = dict(given)  # None: the graph has no gradients
        self._undo: List[Callable[[], Any]] = []
        self._active: List[Graph] = []

    def undo(self) -> None:
        """Take back all changes."""
        while self._undo:
            self._undo.pop()()

    def new_graph(self, name: str) -> Graph:
        """Make a graph with this name, and a number if there is such a graph."""
        taken = any(graph.name == name for graph in self.ir._graphs)
        made = self.ir._new_graph(self.ir._number(name) if taken else name)
        self._undo.append(lambda: self._drop(made))
        return made

    def _drop(self, graph: Graph) -> None:
        if graph in self.ir._graphs:
            self.ir._graphs.remove(graph)

    def info_of(self, graph: Graph) -> Optional[GradGraphInfo]:
        """The grad graph of a called graph: from the gradients of all its outputs to those of all its inputs."""
        if graph not in self.infos:
            if graph in self._active:
                raise popart_exception(f"autodiff: {graph!r} calls itself.")
            provided = tuple(dict.fromkeys([t for t in graph._outputs if t.dtype.is_floating_point]))
            self.infos[graph] = self.differentiate(graph, provided or graph.outputs, None)
        return self.infos[graph]

    def differentiate(
        self, graph: Graph, provided: Sequence[Tensor], required: Optional[Sequence[Tensor]]
    ) -> Optional[GradGraphInfo]:
        """Make a grad graph for the inputs that have gradients, or for all that are required. None if there is none."""
        for op in graph.ops:
            if _modifies(op):
                raise popart_exception(
                    f"autodiff: {graph!r} contains a modifying op, {op!r}: the values from before are lost. Use its "
                    "twin that makes a new tensor, or pass values instead of references."
                )
        self._active.append(graph)
        grad_graph = self.new_graph(graph.name + "_bwd")
        backward = Backward(self, graph, grad_graph)
        pairs = backward.gradients(provided, graph.inputs if required is None else required, required is None)
        self._active.pop()
        if not pairs:
            self._drop(grad_graph)
            return None
        grad_graph._outputs.extend([grad for _, grad in pairs])
        kept = sorted(backward.kept, key=lambda t: t.id)
        grad_graph._inputs.extend([backward.kept[t] for t in kept])
        known = set(graph._inputs + graph._outputs)
        self._add_outputs(graph, [t for t in kept if t not in known])
        seeds = [ExpectedConnection(t, ExpectedConnectionType.FwdGrad) for t in provided]
        values = [ExpectedConnection(t, ExpectedConnectionType.Fwd) for t in kept]
        grads = [ExpectedConnection(t, ExpectedConnectionType.FwdGrad) for t, _ in pairs]
        return GradGraphInfo(grad_graph, graph, seeds + values, grads)

    def _add_outputs(self, graph: Graph, tensors: Sequence[Tensor]) -> None:
        """Make tensors outputs of their graph and of all calls of the graph."""
        before = graph._outputs[:]
        graph._outputs.extend(tensors)
        self._undo.append(lambda: graph._outputs.__setitem__(slice(None), before))
        for parent in self.ir._graphs:
            for op in parent.ops:
                if op.kind == "call" and op.attrs["graph"] is graph:
                    self._extend_call(op, tensors)

    def _extend_call(self, op: Op, tensors: Sequence[Tensor]) -> None:
        with context._changed(scope=""):
            made = [op.graph._add_tensor(Tensor, t.id, t.shape, t.dtype, t.meta_shape) for t in tensors]
        for t in made:
            t.producer = op
        before = op.outputs
        op.outputs = before + tuple(made)

        def restore() -> None:
            op.outputs = before
            for t in made:
                del op.graph._tensors[t.id]

        self._undo.append(restore)


class _Branch(NamedTuple):
    """A branch of a conditional, seen from the grad graph."""

    info: Optional[GradGraphInfo]  # None: the branch has no gradients
    inputs: List[Tensor]  # of its grad graph
    first: int  # the op's input that is the branch's first


class Backward:
    """The way back through one graph, which fills its grad graph."""

    def __init__(self, run: Run, graph: Graph, grad_graph: Graph) -> None:
        self._run = run
        self.graph = graph
        self.grad_graph = grad_graph
        self.kept: Dict[Tensor, Tensor] = {}  # forward tensors and the grad graph's inputs for their values
        self._partial: Dict[Tensor, List[Tensor]] = {}  # forward tensors and the parts of their gradients
        self._clones: Dict[Op, Op] = {}
        callers = [op for parent in run.ir._graphs for op in parent.ops if graph in op.called]
        self._recompute = any(op.kind != "call" for op in callers)  # a loop or branch cannot have more outputs

    def gradients(
        self, provided: Sequence[Tensor], required: Sequence[Tensor], as_possible: bool
    ) -> List[Tuple[Tensor, Tensor]]:
        """Return the required tensors with their gradients; popart_exception for a missing one unless `as_possible`."""
        on_the_way = self._depending_on(required)
        with context._changed(graph=self.grad_graph, scope=""):
            for t in provided:
                seed = self.grad_graph._add_tensor(Tensor, "Gradient___" + t.name, t.shape, t.dtype, t.meta_shape)
                self.grad_graph._inputs.append(seed)
                self._partial.setdefault(t, []).append(seed)
            for op in reversed(self.graph.ops):
                wanted = [t in on_the_way for t in op.inputs]
                if any(wanted) and _is_differentiable(op) and any(t in self._partial for t in op.outputs):
                    with context._changed(ipu=op.ipu, tile_set=op.tile_set):
                        self._visit(op, wanted)
            pairs = [(t, self._total(t)) for t in required]
        missing = [t for t, grad in pairs if grad is None]
        if missing and not as_possible:
            ends = ", ".join(repr(t) for t in provided) or "an output"
            raise popart_exception(
                f"autodiff: {self.graph!r} has no gradient of {missing[0]!r}: no differentiable way leads from there "
                f"to {ends}{self._stops_after(missing[0])}. Leave it out of grads_required."
            )
        return [(t, grad) for t, grad in pairs if grad is not None]

    def _depending_on(self, required: Sequence[Tensor]) -> Set[Tensor]:
        found = set(required)
        for op in self.graph.ops:
            if _is_differentiable(op) and not found.isdisjoint(op.inputs):
                found.update(op.outputs)
        return found

    def _stops_after(self, t: Tensor) -> str:
        found = self._depending_on([t])
        stops = {op.kind for op in self.graph.ops if not _is_differentiable(op) and not found.isdisjoint(op.inputs)}
        return " (what has no gradient here: {})".format(", ".join(sorted(stops))) if stops else ""

    def _visit(self, op: Op, wanted: Sequence[bool]) -> None:
        """Add the gradients of one op's inputs."""
        if op.kind in REFUSED:
            raise popart_exception(
                f"autodiff: the op {op.kind} cannot be differentiated; it is on the way from {self.graph!r}'s required "
                f"tensors to its outputs, as {op!r}. Detach its operands, or leave the tensors out of grads_required."
            )
        site = Site(op, [self._total(t) for t in op.outputs], wanted, self.keep)
        if op.kind == "call":
            grads: Sequence[Optional[Tensor]] = self._call(site)
        elif op.kind == "conditional":
            grads = self._conditional(site)
        else:
            grads = RULES[op.kind](site) if op.fault is None else self._faulty(site)
        for t, is_wanted, grad in zip(op.inputs, wanted, grads):
            if is_wanted and grad is not None:
                self._partial.setdefault(t, []).append(self._of_type(op, t, grad))

    def _of_type(self, op: Op, t: Tensor, grad: Tensor) -> Tensor:
        """A gradient that carries the meta_shape of its tensor, if the op's output does."""
        assert (grad.shape, grad.dtype) == (t.shape, t.dtype), (op, t, grad)
        if op.kind in ("floor", "ceil", "sign") or not op.outputs or op.outputs[0].meta_shape != t.meta_shape:
            return grad
        if grad.meta_shape != t.meta_shape:
            if grad in self._partial_values():
                grad = ops.identity(grad)
            grad.meta_shape = t.meta_shape
        return grad

    def _partial_values(self) -> List[Tensor]:
        return [grad for grads in self._partial.values() for grad in grads]

    def _total(self, t: Tensor) -> Optional[Tensor]:
        """The gradient of a tensor: the sum of those that its uses give."""
        parts = self._partial.get(t)
        if parts is None:
            return None
        parts[:] = [_sum(parts)]
        return parts[0]

    # Forward values

    def keep(self, t: Tensor) -> Tensor:
        """The value of a forward tensor in the grad graph."""
        if t in self.kept:
            return self.kept[t]
        if self._recompute and t not in self.graph._inputs and t not in self.graph._outputs:
            return self._recomputed(t)
        made = self.grad_graph._add_tensor(Tensor, t.name, t.shape, t.dtype, t.meta_shape)
        self.kept[t] = made
        return made

    def _recomputed(self, t: Tensor) -> Tensor:
        if isinstance(t, Constant):
            raise popart_exception(
                f"autodiff: {self.graph!r} is called by a conditional or a repeat, so its grad graph computes values "
                f"again, which PopXL cannot do for the constant {t!r}. Pass it in as an input."
            )
        pending = [t.producer]
        while pending:
            op = pending[-1]
            before = [x.producer for x in op.inputs if self._must_clone(x)]
            if op in self._clones:
                pending.pop()
            elif before:
                pending.extend(before)
            else:
                self._clone(op)
                pending.pop()
        return self._clones[t.producer].outputs[t.producer.outputs.index(t)]

    def _must_clone(self, t: Tensor) -> bool:
        if t in self.graph._inputs or t in self.graph._outputs or isinstance(t, Constant):
            return False
        return t.producer not in self._clones

    def _clone(self, op: Op) -> None:
        if _has_effect(op):
            raise popart_exception(
                f"autodiff: {self.graph!r} is called by a conditional or a repeat, so its grad graph computes values "
                f"again, and {op!r} can run only once. Move it out, or return its result."
            )
        results = [(t.name, t.shape, t.dtype, t.meta_shape) for t in op.outputs]
        with context._changed(ipu=op.ipu, tile_set=op.tile_set):
            inputs = tuple([self.keep(t) for t in op.inputs])
            self._clones[op] = self.grad_graph._add_op(op.kind, inputs, results, dict(op.attrs))
        self._clones[op].fault, self._clones[op].user_line = op.fault, op.user_line

    # Ops that need more than a rule

    def _faulty(self, site: Site) -> List[Optional[Tensor]]:
        """The gradients of an op that no device can run: of the right types, and with the same fault."""
        kept, has_grad = self._tried(site.op, site.wanted)
        for t in kept:
            self.keep(t)
        grads: List[Optional[Tensor]] = []
        for t, makes_one in zip(site.op.inputs, has_grad):
            made = zeros(t) if makes_one else None
            if made is not None:
                made.producer.fault, made.producer.user_line = site.op.fault, site.op.user_line
            grads.append(made)
        return grads

    def _tried(self, op: Op, wanted: Sequence[bool]) -> Tuple[List[Tensor], List[bool]]:
        """Which values the rule of an op keeps and for which inputs it makes gradients.

        A rule may stumble over what is wrong with the op: then all operands of floats have gradients.
        """
        kept: List[Tensor] = []
        scratch = Graph._make(self._run.ir, "scratch")

        def copy(t: Tensor) -> Tensor:
            return scratch._add_tensor(Tensor, t.name, t.shape, t.dtype, t.meta_shape)

        def keep(t: Tensor) -> Tensor:
            kept.append(t)
            return copy(t)

        with context._changed(graph=scratch):
            try:
                grads = RULES[op.kind](Site(op, [copy(t) for t in op.outputs], wanted, keep))
            except (popart_exception, ValueError, TypeError, ArithmeticError, LookupError):
                return kept, [t.dtype.is_floating_point or i == 0 for i, t in enumerate(op.inputs)]
        return kept, [grad is not None for grad in grads]

    def _call(self, site: Site) -> List[Optional[Tensor]]:
        op = site.op
        grads: List[Optional[Tensor]] = [None] * len(op.inputs)
        info = self._run.info_of(op.attrs["graph"])
        if info is None:
            return grads
        self._check_seeds(info, site)
        called = info.forward_graph
        outputs = ops.call(info.graph, *self._grad_inputs(info, site, op.inputs))
        for t, grad in zip(info.outputs, outputs):
            if t not in called._inputs:
                continue
            if grad.spec.to_tuple()[:2] != t.spec.to_tuple()[:2]:
                raise popart_exception(
                    f"autodiff: the grad graph of {called!r} gives {grad!r} as the gradient of {t!r}."
                )
            grads[called._inputs.index(t)] = grad
        return grads

    def _grad_inputs(self, info: GradGraphInfo, site: Site, parents: Sequence[Tensor]) -> List[Tensor]:
        """What to pass to the grad graph of a called graph, whose inputs are `parents`."""
        called, op = info.forward_graph, site.op
        if len(info.graph._inputs) != len(info.expected_inputs):
            raise popart_exception(
                f"autodiff: the grad graph of {called!r} has {len(info.graph._inputs)} inputs, its info tells of "
                f"{len(info.expected_inputs)}: it cannot be called by another grad graph."
            )
        given = []
        for connection in info.expected_inputs:
            t = connection.fwd_tensor
            if connection.connection_type is ExpectedConnectionType.Fwd and t in called._inputs:
                given.append(self.keep(parents[called._inputs.index(t)]))
            elif t not in called._outputs:
                raise popart_exception(f"autodiff: the grad graph of {called!r} needs {t!r}, which is no output of it.")
            elif connection.connection_type is ExpectedConnectionType.Fwd:
                given.append(self.keep(op.outputs[called._outputs.index(t)]))
            else:
                grads = [grad for own, grad in zip(called._outputs, site.grads) if own is t and grad is not None]
                given.append(_sum(grads) if grads else zeros(t))
        return given

    def _check_seeds(self, info: GradGraphInfo, site: Site) -> None:
        """A gradient that a grad graph has no input for would be lost."""
        taken = [c.fwd_tensor for c in info.expected_inputs if c.connection_type is ExpectedConnectionType.FwdGrad]
        for t, grad in zip(info.forward_graph._outputs, site.grads):
            if grad is not None and t.dtype.is_floating_point and t not in taken:
                raise popart_exception(
                    f"autodiff: {site.op!r} has a gradient of its output {t!r}, but the grad graph of the called graph "
                    "does not take one. Add the output to grads_provided there."
                )

    def _conditional(self, site: Site) -> List[Optional[Tensor]]:
        """A conditional on the same condition. Each branch gives zeros for the inputs of the other one."""
        op = site.op
        grads: List[Optional[Tensor]] = [None] * len(op.inputs)
        then_count = op.attrs["then_count"]
        branches, places = [], []
        for graph, first, last in zip(
            op.attrs["graphs"], (1, 1 + then_count), (1 + then_count, len(op.inputs))
        ):
            info = self._run.info_of(graph)
            inputs: List[Tensor] = []
            if info is not None:
                self._check_seeds(info, site)
                inputs = self._grad_inputs(info, site, op.inputs[first:last])
                places += [first + graph._inputs.index(t) for t in info.outputs if t in graph._inputs]
            branches.append(_Branch(info, inputs, first))
        if not places:
            return grads
        graphs = [self._branch_graph(graph, branch, op, places) for graph, branch in zip(op.attrs["graphs"], branches)]
        inputs = [self.keep(op.inputs[0])] + branches[0].inputs + branches[1].inputs
        attrs = {"graphs": tuple(graphs), "then_count": len(branches[0].inputs)}
        results = [("Gradient___" + op.inputs[i].name,) + op.inputs[i].spec.to_tuple() for i in places]
        made = self.grad_graph._add_op("conditional", tuple(inputs), results, attrs, op.fault)
        made.user_line = op.user_line
        for i, grad in zip(places, made.outputs):
            grads[i] = grad
        return grads

    def _branch_graph(self, graph: Graph, branch: _Branch, op: Op, places: Sequence[int]) -> Graph:
        """A graph that calls a branch's grad graph and returns gradients of all the conditional's inputs `places`."""
        made = self._run.new_graph(graph.name + "_bwd_branch")
        with context._changed(graph=made, scope=""):
            for t in branch.inputs:
                made._inputs.append(made._add_tensor(Tensor, t.name, t.shape, t.dtype, t.meta_shape))
            known: Dict[int, Tensor] = {}
            if branch.info is not None:
                outputs = ops.call(branch.info.graph, *made.inputs)
                for t, grad in zip(branch.info.outputs, outputs):
                    if t in graph._inputs:
                        known[branch.first + graph._inputs.index(t)] = grad
            made._outputs.extend([known[i] if i in known else zeros(op.inputs[i]) for i in places])
        return made


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for t in tensors[1:]:
        total = ops.add(total, t)
    return total


def _has_effect(op: Op) -> bool:
    return op.kind in _EFFECTS or any(_has_effect(inner) for graph in op.called for inner in graph.ops)
