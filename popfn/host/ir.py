"""The Ir: one program, made of a main graph and the graphs it calls."""

import contextlib
import inspect
import itertools
import os
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Set,
    Tuple,
    Union,
    get_args,
    get_origin,
)

from popfn.host.errors import popart_exception
from popfn.host.graph import Graph
from popfn.host.module import Module
from popfn.host.options import Backend
from popfn.host.replica_grouping import ReplicaGrouping
from popfn.host.streams import DeviceToHostStream, HostToDeviceStream
from popfn.host.tensor import Tensor, TensorByRef, TensorSpec

_ids = itertools.count()
Parameter = inspect.Parameter


class Ir:
    """A program: build it in `main_graph`, then give it to a `Session`.

    Args:
        replication: The number of replicas, or "popdist" to take it from the launcher of this process.

    Raises:
        TypeError: If `replication` is not an int or "popdist".
        RuntimeError: If it is "popdist" and no launcher has set the environment.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> with ir.main_graph:
        ...     x = popxl.ops.host_load(popxl.h2d_stream((2,), popxl.float32, name="x"))
        >>> ir.main_graph.tensors[-1]
        Tensor[x_hostload float32 (2,)]
    """

    def __init__(self, replication: Union[int, str] = 1) -> None:
        self._pb_ir = Backend()
        if isinstance(replication, int):
            self._set_replication(replication)
        elif replication == "popdist":
            _read_launcher(self._pb_ir.getSessionOptions())
        else:
            raise TypeError(f'Ir: replication must be an int or "popdist", not {replication!r}.')
        self._id = next(_ids)
        self._prepared = False  # a Session has compiled it
        self._has_read_only_memmap = False
        self._is_placed = False  # an op lives elsewhere than on IPU 0 and its compute tiles
        self._num_host_transfers = 1
        self._tensor_numbers = itertools.count()
        self._hook_handles = itertools.count(1)
        self._graph_numbers = itertools.count()
        self._buffer_numbers = itertools.count(1)
        self._graphs: List[Graph] = []
        self._main_graph = self._new_graph("")

    @property
    def id(self) -> int:
        """A number of its own."""
        return self._id

    @property
    def main_graph(self) -> Graph:
        """The graph that a Session runs."""
        return self._main_graph

    @property
    def num_host_transfers(self) -> int:
        """How many elements each host array holds per run, along its leading axis; 1 means no such axis.

        Settable until a Session exists (RuntimeError). It makes no loop.
        """
        return self._num_host_transfers

    @num_host_transfers.setter
    def num_host_transfers(self, value: int) -> None:
        if not isinstance(value, int):
            raise TypeError(f"num_host_transfers must be an int, not {value!r}.")
        if self._prepared:
            raise RuntimeError("num_host_transfers cannot change after a Session was made from the Ir.")
        self._num_host_transfers = value

    @property
    def replication_factor(self) -> int:
        """The number of replicas, of all processes. Settable until a Session exists (RuntimeError)."""
        options = self._pb_ir.getSessionOptions()
        if options.enableDistributedReplicatedGraphs:
            return options.globalReplicationFactor
        return options.replicatedGraphCount if options.enableReplicatedGraphs else 1

    @replication_factor.setter
    def replication_factor(self, value: int) -> None:
        if not isinstance(value, int):
            raise TypeError(f"replication_factor must be an int, not {value!r}.")
        if self._prepared:
            raise RuntimeError("replication_factor cannot change after a Session was made from the Ir.")
        self._set_replication(value)

    @property
    def instance_replication_factor(self) -> int:
        """The number of replicas of this process."""
        options = self._pb_ir.getSessionOptions()
        return options.replicatedGraphCount if options.enableReplicatedGraphs else 1

    @property
    def _replica_offset(self) -> int:
        """The first replica of this process."""
        options = self._pb_ir.getSessionOptions()
        return options.globalReplicaOffset if options.enableDistributedReplicatedGraphs else 0

    def _set_replication(self, value: int) -> None:
        options = self._pb_ir.getSessionOptions()
        options.enableReplicatedGraphs, options.replicatedGraphCount = value != 1, value
        options.enableDistributedReplicatedGraphs = False

    def replica_grouping(self, stride: int = 1, group_size: Optional[int] = None) -> ReplicaGrouping:
        """Divide the replicas into groups: replicas at a distance of `stride`, `group_size` of them.

        Args:
            stride: The distance of neighbours in a group.
            group_size: The size of the groups, by default the number of replicas divided by `stride`.

        Raises:
            TypeError: If an argument is no int.
            ValueError: If the groups do not fill up the replicas.

        Example:
            >>> import popfn.host as popxl
            >>> popxl.Ir(replication=8).replica_grouping(stride=2, group_size=2).assignment
            [0, 1, 0, 1, 2, 3, 2, 3]
        """
        return ReplicaGrouping._strided(self, stride, group_size)

    def replica_grouping_from_assignments(self, assignment: List[int]) -> ReplicaGrouping:
        """Divide the replicas into groups by the group number of each.

        Raises:
            ValueError: If there are not as many entries as replicas, the groups differ in size, are of one
                replica, or are not numbered from 0 in the order of their first replica.
        """
        return ReplicaGrouping._assigned(self, assignment)

    def dot_checkpoint(self, check: str, save_dir: Optional[str] = None) -> None:
        """Write a picture of the graphs to `save_dir`, in the language of Graphviz, if its time has come.

        Args:
            check: The name of this moment. The file is written if the session option `dotChecks` contains it
                or "All".
            save_dir: The directory, by default the current one.
        """
        if not isinstance(check, str):
            raise TypeError(f"dot_checkpoint: the name must be a str, not {check!r}.")
        wanted = {str(name).upper() for name in self._pb_ir.getSessionOptions().dotChecks}
        if wanted & {check.upper(), "ALL"}:
            with open(os.path.join(save_dir or os.curdir, check + ".dot"), "w") as file:
                file.writelines(_dot(self._graphs))

    def get_all_h2d_streams(self) -> Set[HostToDeviceStream]:
        """Return the streams that some graph loads from."""
        return self._streams("host_load")

    def get_all_d2h_streams(self) -> Set[DeviceToHostStream]:
        """Return the streams that some graph stores to."""
        return self._streams("host_store")

    def _streams(self, kind: str) -> Set[Any]:
        return {op.attrs["stream"] for graph in self._graphs for op in graph.ops if op.kind == kind}

    def create_empty_graph(self, name: Optional[str] = None) -> Graph:
        """Return a new graph without inputs and outputs; fill it inside `with graph:`.

        Example:
            >>> import popfn.host as popxl
            >>> ir = popxl.Ir()
            >>> double = ir.create_empty_graph("double")
            >>> with double:
            ...     x = popxl.graph_input((2,), popxl.float32, "x")
            ...     popxl.graph_output(x + x)
            >>> double.outputs
            (Tensor[double_subgraph(0)/add_out float32 (2,)],)
        """
        if name is not None and not isinstance(name, str):
            raise TypeError(f"create_empty_graph: the name must be a str, not {name!r}.")
        return self._new_graph(self._number(name or "graph"))

    def create_graph(
        self,
        fn: Union[Callable[..., Union[None, Tensor, Iterable[Tensor]]], Module],
        *args: Any,
        **kwargs: Any,
    ) -> Graph:
        """Return the graph of the ops that `fn(*args, **kwargs)` makes.

        Each argument that is a Tensor or TensorSpec becomes an input of the graph, of its shape, dtype and
        meta_shape and with the parameter's name; a list or tuple of them, or `*args`, a list of inputs.
        Everything else reaches `fn` as it is. An input whose parameter is annotated `popxl.TensorByRef` (for
        a list: `List[popxl.TensorByRef]`) is by reference. What `fn` returns becomes the outputs.

        Args:
            fn: A function that returns None, a Tensor or Tensors, or a Module.
            *args, **kwargs: Its arguments.

        Raises:
            TypeError: If `fn` is not a function or Module, or a list mixes tensors with other things.
            ValueError: If the arguments do not fit the signature, or `fn` returns anything but tensors.

        Example:
            >>> import popfn.host as popxl
            >>> ir = popxl.Ir()
            >>> def linear(x, w, scale):
            ...     return (x @ w) * scale
            >>> x, w = popxl.TensorSpec((4, 2), popxl.float32), popxl.TensorSpec((2, 3), popxl.float32)
            >>> ir.create_graph(linear, x, w, 0.5).outputs
            (Tensor[linear_subgraph(0)/mul_out float32 (4, 3)],)
        """
        if isinstance(fn, Module):
            build, name = fn.build, type(fn).__qualname__
        elif callable(fn) and hasattr(fn, "__qualname__"):
            build, name = fn, fn.__qualname__
        else:
            raise TypeError(f"create_graph: expected a function or a popxl.Module, not {fn!r}.")
        bound = _bind(build, args, kwargs)
        graph = self._new_graph(self._number(name.replace(".<locals>", "")))
        try:
            with graph:
                _make_inputs(graph, bound)
                graph._outputs.extend(_checked_outputs(name, fn(*bound.args, **bound.kwargs)))
        except BaseException:
            self._graphs.remove(graph)
            raise
        return graph

    def _new_graph(self, name: str) -> Graph:
        graph = Graph._make(self, name)
        self._graphs.append(graph)
        return graph

    def _number(self, name: str) -> str:
        return f"{name}_subgraph({next(self._graph_numbers)})"

    def _next_tensor_number(self) -> int:
        return next(self._tensor_numbers)

    def _next_buffer_number(self) -> int:
        return next(self._buffer_numbers)

    def _next_hook_handle(self) -> int:
        return next(self._hook_handles)

    def _reached_graphs(self) -> List[Graph]:
        """The main graph and all that it calls, in the order of making; popart_exception for a recursion."""
        reached: Dict[Graph, bool] = {}  # False while the calls of the graph are being followed

        def visit(graph: Graph) -> None:
            reached[graph] = False
            for called in graph.called_graphs:
                if called not in reached:
                    visit(called)
                elif not reached[called]:
                    raise popart_exception(f"{called!r} calls itself, by way of {graph!r}.")
            reached[graph] = True

        visit(self._main_graph)
        return [graph for graph in self._graphs if graph in reached]

    @contextlib.contextmanager
    def _handed_over(self, graphs: List[Graph]) -> Iterator[None]:
        """Drop all but these graphs and close the Ir to changes, unless the block raises."""
        before = self._graphs, self._prepared
        self._graphs, self._prepared = graphs, True
        try:
            yield
        except BaseException:
            self._graphs, self._prepared = before
            raise

    def __eq__(self, value: Any) -> bool:
        if not isinstance(value, Ir):
            raise TypeError(f"an Ir can be compared with an Ir only, not with {value!r}.")
        return self is value

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"Ir[id={self._id}]"


def _read_launcher(options: Any) -> None:
    """Take the numbers of replicas from the environment that PopDist's launcher sets."""
    names = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
    try:
        total, local, offset = [int(os.environ[name]) for name in names]
    except (KeyError, ValueError):
        raise RuntimeError(
            'Ir("popdist"): this process was not started by a launcher, which sets {}.'.format(", ".join(names))
        ) from None
    options.enableReplicatedGraphs, options.replicatedGraphCount = local != 1, local
    options.enableDistributedReplicatedGraphs, options.globalReplicationFactor = True, total
    options.globalReplicaOffset = offset


def _dot(graphs: Iterable[Graph]) -> Iterator[str]:
    yield "digraph {\n"
    for graph in graphs:
        for i, op in enumerate(graph.ops):
            node = f"{graph.name}#{i}"
            yield f'  "{node}" [label="{op.kind}" shape=box];\n'
            for t in op.inputs:
                yield f'  "{t.id}" -> "{node}";\n'
            for t in op.outputs:
                yield f'  "{node}" -> "{t.id}";\n'
    yield "}\n"


def _bind(build: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> inspect.BoundArguments:
    try:
        bound = inspect.signature(build).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        name = getattr(build, "__qualname__", build)
        raise ValueError(f"create_graph: the arguments do not fit {name}: {error}.") from None
    bound.apply_defaults()
    return bound


def _make_inputs(graph: Graph, bound: inspect.BoundArguments) -> None:
    """Put an input of the graph in the place of each tensor among the arguments."""
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        annotation = parameter.annotation
        by_ref = annotation is TensorByRef
        list_by_ref = get_origin(annotation) in (list, tuple) and get_args(annotation) == (TensorByRef,)
        if parameter.kind is Parameter.VAR_KEYWORD:
            made: Any = {key: _as_input(graph, key, item, by_ref, list_by_ref) for key, item in value.items()}
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            made = _as_input(graph, name, value, by_ref, by_ref or list_by_ref)
        else:
            made = _as_input(graph, name, value, by_ref, list_by_ref)
        bound.arguments[name] = made


def _as_input(graph: Graph, name: str, value: Any, by_ref: bool, list_by_ref: bool) -> Any:
    if isinstance(value, (Tensor, TensorSpec)):
        made = graph._add_tensor(Tensor, name, value.shape, value.dtype, value.meta_shape)
        graph._inputs.append(made)
        if by_ref:
            graph._by_ref.add(made)
        return made
    if isinstance(value, (list, tuple)):
        are_tensors = {isinstance(item, (Tensor, TensorSpec)) for item in value}
        if len(are_tensors) == 2:
            raise TypeError(
                f"create_graph: the argument {name!r} mixes tensors with other things: {value!r}."
            )
        if True in are_tensors:
            return [_as_input(graph, f"{name}_{i}", item, list_by_ref, False) for i, item in enumerate(value)]
    return value


def _checked_outputs(name: str, returned: Any) -> Iterable[Tensor]:
    if returned is None:
        return ()
    if isinstance(returned, Tensor):
        returned = (returned,)
    try:
        wrong = [item for item in returned if not isinstance(item, Tensor)]
    except TypeError:
        wrong = [returned]
    if wrong:
        raise ValueError(
            f"create_graph: {name} must return None, a Tensor or Tensors; it returned {wrong[0]!r}."
        )
    return returned  # an iterator is used up by the check, in PopXL too: it gives no outputs
