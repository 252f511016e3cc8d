"""Loops and branches over graphs."""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from popfn.host import dtypes
from popfn.host.context import get_current_graph
from popfn.host.graph import Graph
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build, _call
from popfn.host.ops._call import CallSiteInfo
from popfn.host.tensor import Tensor, TensorLike


def repeat(
    graph: Graph,
    repeat_count: int,
    *inputs: Union[TensorLike, Iterable[TensorLike]],
    inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
) -> Tuple[Tensor, ...]:
    """Call a graph `repeat_count` times and return what the last call returned.

    With N outputs, output i of a call is input i of the next one. The other inputs get the same value each
    time; what the graph writes to those that it takes by reference stays for the next call, and reaches the
    caller.

    Args:
        graph: The graph.
        repeat_count: How often; with 0 the results are the first N inputs.
        *inputs, inputs_dict: As in `call`.

    Raises:
        TypeError: If `graph` is no Graph, or the count no int.
        ValueError: If the count is negative, the graph has fewer inputs than outputs, or as in `call`.
        popart_exception: If a shape or dtype is another than that of the graph's input.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> def body(x, total):
        ...     return x + 1, total + x
        >>> body = ir.create_graph(body, *[popxl.TensorSpec((), popxl.int32)] * 2)
        >>> with ir.main_graph:
        ...     x, total = popxl.ops.repeat(body, 3, 0, 0)
        >>> total.shape, total.dtype
        ((), popxl.dtypes.int32)
    """
    return repeat_with_info(graph, repeat_count, *inputs, inputs_dict=inputs_dict).outputs


def repeat_with_info(
    graph: Graph,
    repeat_count: int,
    *inputs: Union[TensorLike, Iterable[TensorLike]],
    inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
    check_inputs: bool = True,
) -> CallSiteInfo:
    """Call a graph as `repeat` does, and return the facts about the call.

    Args:
        graph, repeat_count, *inputs, inputs_dict: As in `repeat`.
        check_inputs: Whether missing inputs are a ValueError; else they are an IndexError.
    """
    parent = get_current_graph()
    _call.check_graph("repeat", graph)
    count = _build.as_int("repeat", "repeat_count", repeat_count)
    if count < 0:
        raise ValueError(f"repeat: repeat_count must not be negative: {count}.")
    carried = len(graph._outputs)
    if len(graph._inputs) < carried:
        raise ValueError(
            f"repeat: {graph!r} has {len(graph._inputs)} inputs and {carried} outputs: each output needs an "
            "input to become in the next step."
        )
    given = _call.match("repeat", graph, _call.flatten("repeat", inputs), inputs_dict or {}, check_inputs)
    fault = None
    for t, result in zip(graph._inputs, graph._outputs):
        if (t.shape, t.dtype) != (result.shape, result.dtype):
            fault = f"the output {result!r} cannot become the input {t!r}: shapes and dtypes must agree"
    with parent._undo_on_error():
        tensors = _call.operands("repeat", parent, graph, given)
        wrapper = _wrapped(graph)
        by_ref = [i for i, t in enumerate(wrapper._inputs) if i >= carried and t in wrapper._by_ref]
        attrs = {"graph": wrapper, "count": count, "modified": tuple(by_ref)}
        return CallSiteInfo(parent._add_op("repeat", tensors, _call.results_of(wrapper), attrs, fault))


def _wrapped(graph: Graph) -> Graph:
    """A graph that calls `graph`. Its outputs stay as many as they are when autodiff adds some to `graph`."""
    wrapper = graph.ir._new_graph(graph.ir._number(graph.name + "__loop_wrapper"))
    with wrapper:
        for t in graph._inputs:
            own = wrapper._add_tensor(Tensor, t.name, t.shape, t.dtype, t.meta_shape)
            wrapper._inputs.append(own)
            if t in graph._by_ref:
                wrapper._by_ref.add(own)
        wrapper._outputs.extend(_call.emit_call(wrapper, graph, wrapper.inputs).outputs)
    return wrapper


class ConditionalSiteInfo(CallSiteInfo):
    """One conditional: which tensors of the calling graph, the parents, meet those of the two branches.

    The op's inputs are the condition, those of the then-branch, and those of the else-branch.
    """

    @property
    def called_graph(self) -> Tuple[Graph, Graph]:  # type: ignore[override]
        """The two branches."""
        return self._op.attrs["graphs"]

    def is_parent_index_in_then_branch(self, idx: int) -> bool:
        """Whether the op's input `idx` goes to the then-branch; IndexError for the condition, or no input."""
        if not 1 <= idx < len(self._op.inputs):
            raise IndexError(f"the conditional has no branch input {idx}: they are 1 to {self._last}.")
        return idx <= self._op.attrs["then_count"]

    @property
    def _last(self) -> int:
        return len(self._op.inputs) - 1

    def _first_input(self, then_branch: bool) -> int:
        return 1 if then_branch else 1 + self._op.attrs["then_count"]

    def graph_to_parent_input_index(self, idx: int, then_branch: bool = True) -> int:
        """Return the index among the op's inputs of input `idx` of a branch; IndexError if it has none."""
        branch = self.called_graph[0 if then_branch else 1]
        if not 0 <= idx < len(branch._inputs):
            raise IndexError(f"{branch!r} has no input {idx}: there are {len(branch._inputs)}.")
        return idx + self._first_input(then_branch)

    def parent_to_graph_input_index(self, idx: int) -> int:
        """Return the index among its branch's inputs of the op's input `idx`; IndexError if it has none."""
        return idx - self._first_input(self.is_parent_index_in_then_branch(idx))

    def graph_to_parent_output_index(self, idx: int, then_branch: bool = True) -> int:
        """Return the index among the op's outputs of output `idx` of a branch: the same, if it exists."""
        _call._at(self._op.outputs, idx)
        return idx

    def parent_to_graph_output_index(self, idx: int, then_branch: bool = True) -> int:
        """Return the index among a branch's outputs of the op's output `idx`: the same, if it exists."""
        _call._at(self._op.outputs, idx)
        return idx

    def graph_to_parent(self, graph_tensor: Tensor) -> Tensor:
        """Return the parent of an input or output of a branch; ValueError if it is neither."""
        _call._check_tensor("graph_to_parent", graph_tensor)
        for then_branch, branch in zip((True, False), self.called_graph):
            if graph_tensor in branch._inputs:
                index = self.graph_to_parent_input_index(branch._inputs.index(graph_tensor), then_branch)
                return self._op.inputs[index]
            if graph_tensor in branch._outputs:
                return self._op.outputs[branch._outputs.index(graph_tensor)]
        raise ValueError(f"graph_to_parent: {graph_tensor!r} is neither an input nor an output of a branch.")

    def parent_to_graph(self, parent_tensor: Tensor) -> Tensor:
        """Return the first branch input that gets `parent_tensor`; ValueError if it is no input of the op.

        IndexError if it is the condition.
        """
        _call._check_tensor("parent_to_graph", parent_tensor)
        if parent_tensor not in self._op.inputs:
            raise ValueError(f"parent_to_graph: {parent_tensor!r} is no input of the conditional.")
        index = self._op.inputs.index(parent_tensor)
        branch = self.called_graph[0 if self.is_parent_index_in_then_branch(index) else 1]
        return branch._inputs[self.parent_to_graph_input_index(index)]

    def set_parent_input_modified(self, parent_tensor: Tensor, infer_modified_regions: bool = True) -> None:
        """Not possible: a branch cannot write to its inputs (NotImplementedError)."""
        raise NotImplementedError("set_parent_input_modified: the branches of a conditional take values only.")


def conditional(
    cond: Tensor,
    then_branch: Graph,
    else_branch: Graph,
    then_inputs: Optional[Iterable[TensorLike]] = None,
    else_inputs: Optional[Iterable[TensorLike]] = None,
    then_inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
    else_inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
) -> Tuple[Tensor, ...]:
    """Call `then_branch` if `cond` is true, else `else_branch`, and return the outputs.

    Args:
        cond: One bool. If it differs between replicas, each takes its own branch; a run in which it does is a
            popart_exception if a branch has a collective over replicas.
        then_branch, else_branch: Graphs with the same number of outputs, of the same types.
        then_inputs, else_inputs: Their inputs: tensors of the current graph or host values.
        then_inputs_dict, else_inputs_dict: Further inputs, by the tensors of the branches.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the numbers of outputs differ, or as in `call`.
        NotImplementedError: If a branch takes an input by reference.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> spec = popxl.TensorSpec((), popxl.float32)
        >>> up, down = ir.create_graph(lambda x: x + 1, spec), ir.create_graph(lambda x: x - 1, spec)
        >>> with ir.main_graph:
        ...     x = popxl.variable(3.0)
        ...     y, = popxl.ops.conditional(popxl.constant(True), up, down, [x], [x])
    """
    return conditional_with_info(
        cond, then_branch, else_branch, then_inputs, else_inputs, then_inputs_dict, else_inputs_dict
    ).outputs


def conditional_with_info(
    cond: Tensor,
    then_branch: Graph,
    else_branch: Graph,
    then_inputs: Optional[Iterable[TensorLike]] = None,
    else_inputs: Optional[Iterable[TensorLike]] = None,
    then_inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
    else_inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
    check_inputs: bool = True,
) -> ConditionalSiteInfo:
    """Call one of two graphs as `conditional` does, and return the facts about the call.

    Args:
        cond, ..., else_inputs_dict: As in `conditional`.
        check_inputs: Whether missing inputs are a ValueError; else they are an IndexError.
    """
    parent = _build.checked("conditional", cond=cond)
    branches = then_branch, else_branch
    for branch in branches:
        _call.check_graph("conditional", branch)
    counts = [len(branch._outputs) for branch in branches]
    if counts[0] != counts[1]:
        raise ValueError(f"conditional: the branches must have as many outputs: {counts[0]}, {counts[1]}.")
    for branch in branches:
        if branch._by_ref:
            raise NotImplementedError(f"conditional: {branch!r} takes an input by reference; pass values.")
    given = [
        _matched(branch, inputs, inputs_dict, check_inputs)
        for branch, inputs, inputs_dict in zip(
            branches, (then_inputs, else_inputs), (then_inputs_dict, else_inputs_dict)
        )
    ]
    with parent._undo_on_error():
        tensors = [
            _call.operands("conditional", parent, branch, values, check_types=False)
            for branch, values in zip(branches, given)
        ]
        inputs = (cond,) + tensors[0] + tensors[1]
        attrs = {"graphs": branches, "then_count": len(tensors[0])}
        results = _call.results_of(then_branch)
        op = parent._add_op("conditional", inputs, results, attrs, _fault(cond, branches, tensors))
        return ConditionalSiteInfo(op)


def _matched(graph: Graph, inputs: Any, inputs_dict: Any, check_inputs: bool) -> List[Any]:
    if isinstance(inputs, Tensor):
        raise TypeError(f"conditional: the inputs of a branch are a list, not {inputs!r}.")
    flat = _call.flatten("conditional", inputs or ())
    return _call.match("conditional", graph, flat, inputs_dict or {}, check_inputs)


def _fault(
    cond: Tensor, branches: Tuple[Graph, Graph], tensors: List[Tuple[Tensor, ...]]
) -> Optional[str]:
    """What PopXL does not check when the graph is built."""
    if cond.dtype is not dtypes.bool or _build.nelms(cond.shape) != 1:
        return f"the condition {cond!r} is not one bool"
    for branch, passed in zip(branches, tensors):
        for t, value in zip(branch._inputs, passed):
            if (t.shape, t.dtype) != (value.shape, value.dtype):
                return f"the input {t!r} cannot take {value!r}: shapes and dtypes must agree"
    for lhs, rhs in zip(branches[0]._outputs, branches[1]._outputs):
        if (lhs.shape, lhs.dtype) != (rhs.shape, rhs.dtype):
            return f"the branches give {lhs!r} and {rhs!r}: shapes and dtypes must agree"
    return None


# How graphs are called is the engines' own business.
KERNELS: Dict[str, Kernel] = {
    "repeat": Kernel(None),
    "conditional": Kernel(None),
}
