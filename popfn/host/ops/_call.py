"""Calls of graphs."""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from popfn.host.context import get_current_graph
from popfn.host.errors import popart_exception
from popfn.host.graph import Graph, Op
from popfn.host.kernels.kernel import Kernel
from popfn.host.tensor import Tensor, TensorLike, constant


class CallSiteInfo:
    """One call of a graph: which tensors of the calling graph, the parents, meet those of the called one.

    In PopXL the op of a repeat has two inputs of its own before those of the graph, and the graph has an
    output of its own: the indices of a repeat are shifted accordingly.
    """

    def __init__(self, subgraph_op: Op) -> None:
        self._op = subgraph_op
        is_repeat = subgraph_op.kind == "repeat"
        self._own_inputs = 2 if is_repeat else 0
        self._own_outputs = 1 if is_repeat else 0

    @property
    def called_graph(self) -> Graph:
        """The graph that is called: for a repeat, one that calls the repeated graph."""
        return self._op.attrs["graph"]

    @property
    def inputs(self) -> Tuple[Tensor, ...]:
        """The parent tensors that are passed in."""
        return self._op.inputs

    @property
    def outputs(self) -> Tuple[Tensor, ...]:
        """The parent tensors that come out."""
        return self._op.outputs

    def graph_to_parent_input_index(self, idx: int) -> int:
        """Return the index among the op's inputs of the called graph's input `idx`: the same."""
        return idx

    def parent_to_graph_input_index(self, idx: int) -> int:
        """Return the index among the called graph's inputs of the op's input `idx`: the same."""
        return idx

    def graph_to_parent_output_index(self, idx: int) -> int:
        """Return the index among the op's outputs of the called graph's output `idx`."""
        return idx - self._own_outputs

    def parent_to_graph_output_index(self, idx: int) -> int:
        """Return the index among the called graph's outputs of the op's output `idx`."""
        return idx + self._own_outputs

    def parent_input(self, idx: int) -> Tensor:
        """Return the op's input `idx`; IndexError if there is none."""
        return _at(self._op.inputs, idx, self._own_inputs)

    def parent_output(self, idx: int) -> Tensor:
        """Return the op's output `idx`; IndexError if there is none."""
        return _at(self._op.outputs, idx)

    def graph_to_parent(self, graph_tensor: Tensor) -> Tensor:
        """Return the parent of an input or output of the called graph; ValueError if it is neither."""
        _check_tensor("graph_to_parent", graph_tensor)
        for own, parents in (
            (self.called_graph.inputs, self._op.inputs),
            (self.called_graph.outputs, self._op.outputs),
        ):
            if graph_tensor in own:
                return parents[own.index(graph_tensor)]
        raise ValueError(
            f"graph_to_parent: {graph_tensor!r} is neither an input nor an output of {self.called_graph!r}."
        )

    def parent_to_graph(self, parent_tensor: Tensor) -> Tensor:
        """Return the first input of the called graph that gets `parent_tensor`; ValueError if none does."""
        _check_tensor("parent_to_graph", parent_tensor)
        if parent_tensor not in self._op.inputs:
            raise ValueError(f"parent_to_graph: {parent_tensor!r} is no input of the call.")
        return self.called_graph.inputs[self._op.inputs.index(parent_tensor)]

    def set_parent_input_modified(self, parent_tensor: Tensor, infer_modified_regions: bool = False) -> None:
        """Let what the called graph writes to an input reach `parent_tensor`, which is passed there.

        The inputs that a repeat carries from step to step start from a copy: marking them has no effect.

        Args:
            parent_tensor: An input of the call.
            infer_modified_regions: Has no effect on the host.

        Raises:
            TypeError: If it is no Tensor.
            popart_exception: If it is no input of the call.
        """
        _check_tensor("set_parent_input_modified", parent_tensor)
        found = {i for i, t in enumerate(self._op.inputs) if t is parent_tensor}
        if not found:
            raise popart_exception(f"set_parent_input_modified: {parent_tensor!r} is no input of the call.")
        if self._op.kind == "repeat":
            found = {i for i in found if i >= len(self._op.outputs)}
            _mark_modified(self.called_graph.ops[0], found)
        _mark_modified(self._op, found)


def _mark_modified(op: Op, indices: Iterable[int]) -> None:
    op.attrs["modified"] = tuple(sorted(set(op.attrs["modified"]).union(indices)))


def _at(tensors: Tuple[Tensor, ...], idx: int, first: int = 0) -> Tensor:
    if not first <= idx < first + len(tensors):
        raise IndexError(f"the call has no tensor at index {idx}: there are {len(tensors)}, from {first} on.")
    return tensors[idx - first]


def _check_tensor(function: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{function}: expected a Tensor, not {t!r}.")


def call(
    graph: Graph,
    *inputs: Union[TensorLike, Iterable[TensorLike]],
    inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
) -> Tuple[Tensor, ...]:
    """Call a graph and return its outputs.

    Inputs are passed by value, except those that the graph takes by reference: writes to these reach
    the caller.

    Args:
        graph: The graph.
        *inputs: Its inputs in order: tensors of the current graph, host values, or lists of them.
        inputs_dict: Further inputs, by the tensors of `graph` that they are for.

    Raises:
        ValueError: If there are too many or too few inputs, one is given twice, or a tensor is of another
            graph.
        popart_exception: If a shape or dtype is another than that of the graph's input.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> square = ir.create_graph(lambda x: x * x, popxl.TensorSpec((2,), popxl.float32))
        >>> with ir.main_graph:
        ...     y, = popxl.ops.call(square, popxl.variable([1.0, 2.0]))
        >>> y.shape
        (2,)
    """
    return call_with_info(graph, *inputs, inputs_dict=inputs_dict).outputs


def call_with_info(
    graph: Graph,
    *inputs: Union[TensorLike, Iterable[TensorLike]],
    inputs_dict: Optional[Mapping[Tensor, TensorLike]] = None,
    check_inputs: bool = True,
) -> CallSiteInfo:
    """Call a graph as `call` does, and return the facts about the call.

    Args:
        graph, *inputs, inputs_dict: As in `call`.
        check_inputs: Whether missing inputs are a ValueError; else they are an IndexError.
    """
    parent = get_current_graph()
    check_graph("call", graph)
    given = match("call", graph, flatten("call", inputs), inputs_dict or {}, check_inputs)
    with parent._undo_on_error():
        return CallSiteInfo(emit_call(parent, graph, operands("call", parent, graph, given)))


def emit_call(parent: Graph, graph: Graph, tensors: Tuple[Tensor, ...]) -> Op:
    """Add the call of `graph` with these tensors, which fit it, to `parent`."""
    modified = tuple([i for i, t in enumerate(graph._inputs) if t in graph._by_ref])
    return parent._add_op("call", tensors, results_of(graph), {"graph": graph, "modified": modified})


def results_of(graph: Graph) -> List[Any]:
    """What the tensors are like that a call of `graph` makes."""
    return [(t.name, t.shape, t.dtype, t.meta_shape) for t in graph._outputs]


def check_graph(op: str, graph: Any) -> None:
    """TypeError for anything but a Graph, ValueError for one of another Ir than the current graph's."""
    if not isinstance(graph, Graph):
        raise TypeError(f"{op}: expected a Graph, not {graph!r}.")
    if graph.ir is not get_current_graph().ir:
        raise ValueError(f"{op}: {graph!r} belongs to another Ir.")


def flatten(op: str, inputs: Iterable[Any]) -> List[Any]:
    """Open lists and arrays, one level deep. Tensors have no iterator."""
    flat: List[Any] = []
    for value in inputs:
        if isinstance(value, (str, bytes)):
            raise TypeError(f"{op}: {value!r} is no input.")
        if getattr(type(value), "__iter__", None) is not None and getattr(value, "shape", None) != ():
            flat.extend(value)
        else:
            flat.append(value)
    return flat


def match(
    op: str, graph: Graph, inputs: List[Any], inputs_dict: Mapping[Tensor, Any], check_inputs: bool
) -> List[Any]:
    """Put the inputs into the order of the graph's inputs."""
    wanted = graph._inputs
    if len(inputs) > len(wanted):
        raise ValueError(f"{op}: {graph!r} has {len(wanted)} inputs, {len(inputs)} were given.")
    given: Dict[int, Any] = dict(enumerate(inputs))
    for key, value in inputs_dict.items():
        _check_tensor(f"{op}: a key of inputs_dict", key)
        if key.graph is not graph:
            raise ValueError(f"{op}: inputs_dict names {key!r}, which is not in {graph!r}.")
        if key not in wanted:
            raise popart_exception(f"{op}: inputs_dict names {key!r}, which is no input of {graph!r}.")
        if wanted.index(key) in given:
            raise ValueError(f"{op}: the input {key!r} is given twice.")
        given[wanted.index(key)] = value
    missing = [t.name for i, t in enumerate(wanted) if i not in given]
    if missing:
        error = ValueError if check_inputs else IndexError
        raise error("{}: {!r} has {} inputs; missing: {}.".format(op, graph, len(wanted), ", ".join(missing)))
    return [given[i] for i in range(len(wanted))]


def operands(
    op: str, parent: Graph, graph: Graph, given: List[Any], check_types: bool = True
) -> Tuple[Tensor, ...]:
    """Make tensors of the inputs: host values become constants of the dtype of the graph's input."""
    return tuple([_as_operand(op, parent, t, value, check_types) for t, value in zip(graph._inputs, given)])


def _as_operand(op: str, parent: Graph, wanted: Tensor, value: Any, check_types: bool) -> Tensor:
    if not isinstance(value, Tensor):
        value = constant(value, wanted.dtype)
    elif value.graph is not parent:
        raise ValueError(
            f"{op}: {value!r}, for the input {wanted!r}, does not belong to the current graph, {parent!r}."
        )
    if check_types and (value.shape != wanted.shape or value.dtype is not wanted.dtype):
        raise popart_exception(
            f"{op}: the input {wanted!r} cannot take {value!r}: shapes and dtypes must agree."
        )
    return value


# How graphs are called is the engines' own business.
KERNELS: Dict[str, Kernel] = {"call": Kernel(None)}
