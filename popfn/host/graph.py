"""Graphs and their ops: what the API builds and the engine compiles."""

import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Type, TypeVar

from popfn.host import context, dtypes
from popfn.host.errors import popart_exception
from popfn.host.tensor import Constant, Shape, Tensor, Variable

T = TypeVar("T", bound=Tensor)
Result = Tuple[
    str, Shape, dtypes.dtype, Shape
]  # the name, shape, dtype and meta_shape of a tensor to be made


# The ops that may fail when they run, and one that may be refused when a Session is made.
_MAY_FAIL = frozenset(["concat_", "conditional", "remote_load", "remote_load_", "remote_store"])


class Op:
    """One step of a graph: `outputs = kind(*inputs, **attrs)`, run in the order of creation.

    `kind` is the name of the PopXL op. One that ends in an underscore works in place: the output of a view
    twin shares the storage of its inputs, a modifying one writes input 0 and its output is that storage. All
    others make fresh values. `attrs` holds normalised parameters: axes are tuples of non-negative ints,
    slices are a tuple of one clipped `slice` per axis. A call has `graph` and `modified`, the indices of the
    inputs that it writes through; all its other inputs are by value. A repeat has `count` too; a conditional
    has `graphs`, its two branches. `fault` says why no device can run the op, which PopXL finds only when a
    Session is made. `user_line` is the file and line outside popfn that made the op, of those which a
    message may be about later.
    """

    __slots__ = ("kind", "inputs", "outputs", "attrs", "graph", "ipu", "tile_set", "fault", "user_line")

    kind: str
    inputs: Tuple[Tensor, ...]
    outputs: Tuple[Tensor, ...]
    attrs: Dict[str, Any]
    graph: "Graph"
    ipu: int  # that holds the outputs
    tile_set: str
    fault: Optional[str]
    user_line: Optional[str]

    @property
    def called(self) -> Tuple["Graph", ...]:
        """The graphs that the op calls."""
        if "graph" in self.attrs:
            return (self.attrs["graph"],)
        return self.attrs.get("graphs", ())

    def __repr__(self) -> str:
        return "Op({}: {} -> {})".format(
            self.kind, ", ".join(t.id for t in self.inputs), ", ".join(t.id for t in self.outputs)
        )


class Graph:
    """A list of ops with inputs and outputs; `with graph:` makes it the current one, to which ops are added.

    An Ir makes its graphs; the constructor raises TypeError.
    """

    __slots__ = ("ir", "name", "ops", "_prefix", "_inputs", "_outputs", "_by_ref", "_tensors", "_hooks")

    ir: Any
    name: str
    ops: List[Op]  # in the order of creation, which is the order of execution
    _prefix: str  # of the ids of tensors
    _inputs: List[Tensor]
    _outputs: List[Tensor]
    _by_ref: Set[Tensor]
    _tensors: Dict[str, Tensor]
    _hooks: Dict[int, Callable[[Op], Any]]

    def __init__(self) -> None:
        raise TypeError(
            "a Graph cannot be constructed: use ir.create_graph, ir.create_empty_graph or ir.main_graph."
        )

    @classmethod
    def _make(cls, ir: Any, name: str) -> "Graph":
        graph = object.__new__(cls)
        graph.ir = ir
        graph.name = name
        graph.ops = []
        graph._prefix = name + "/" if name else ""
        graph._inputs = []
        graph._outputs = []
        graph._by_ref = set()
        graph._tensors = {}
        graph._hooks = {}
        return graph

    # What is in it

    @property
    def id(self) -> str:
        """The same as the name."""
        return self.name

    @property
    def main_graph(self) -> "Graph":
        """The main graph of the Ir."""
        return self.ir.main_graph

    @property
    def inputs(self) -> Tuple[Tensor, ...]:
        """The inputs, in order."""
        return tuple(self._inputs)

    @property
    def inputs_by_name(self) -> Dict[str, Tensor]:
        """The inputs by their names."""
        return {t.name: t for t in self._inputs}

    @property
    def outputs(self) -> Tuple[Tensor, ...]:
        """The outputs, in order."""
        return tuple(self._outputs)

    @property
    def tensors(self) -> Tuple[Tensor, ...]:
        """All tensors of the graph, in the order of their making."""
        return tuple(self._tensors.values())

    @property
    def variables(self) -> Tuple[Variable, ...]:
        """The variables of the graph."""
        return tuple(t for t in self._tensors.values() if isinstance(t, Variable))

    @property
    def constants(self) -> Tuple[Constant, ...]:
        """The constants of the graph."""
        return tuple(t for t in self._tensors.values() if isinstance(t, Constant))

    @property
    def called_graphs(self) -> Tuple["Graph", ...]:
        """The graphs that ops of this one call, each once."""
        return tuple(dict.fromkeys(graph for op in self.ops for graph in op.called))

    def get_tensor(self, tensor_id: str) -> Tensor:
        """Return the tensor of this id; popart_exception if the graph has none."""
        try:
            return self._tensors[tensor_id]
        except KeyError:
            raise popart_exception(f"{self!r} has no tensor with the id {tensor_id!r}.") from None

    def __contains__(self, value: Tensor) -> bool:
        if not isinstance(value, Tensor):
            raise TypeError(f"a graph contains tensors, not {type(value).__name__}.")
        return value.graph is self

    def __repr__(self) -> str:
        return f"Graph[{self.name or 'main graph'}]"

    # The current graph

    def __enter__(self) -> "Graph":
        context.push_graph(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        context.pop_graph()

    # Hooks

    def register_op_created_hook(self, fn: Callable[[Op], Any]) -> int:
        """Call `fn(op)` for each op made in this graph from now on; return the handle that removes it."""
        handle = self.ir._next_hook_handle()
        self._hooks[handle] = fn
        return handle

    def remove_op_created_hook(self, handle: int) -> None:
        """Remove the hook that got this handle; ValueError if there is none."""
        if handle not in self._hooks:
            raise ValueError(f"{self!r} has no hook with the handle {handle!r}.")
        del self._hooks[handle]

    # Growth: for the modules of popfn.host

    def _add_tensor(
        self, cls: Type[T], name: str, shape: Shape, dtype: dtypes.dtype, meta_shape: Shape = ()
    ) -> T:
        self._check_open()
        name = context.current_frame().scope + name
        tensor_id = self._prefix + name
        if tensor_id in self._tensors:
            name = f"{name}__t{self.ir._next_tensor_number()}"
            tensor_id = self._prefix + name
        tensor = object.__new__(cls)
        tensor.id = tensor_id
        tensor.name = name
        tensor.shape = shape
        tensor.dtype = dtype
        tensor.meta_shape = meta_shape
        tensor.graph = self
        tensor.producer = tensor.consumer = None
        self._tensors[tensor_id] = tensor
        return tensor

    def _add_op(
        self,
        kind: str,
        inputs: Tuple[Tensor, ...],
        results: Sequence[Result],
        attrs: Dict[str, Any],
        fault: Optional[str] = None,
    ) -> Op:
        self._check_open()
        frame = context.current_frame()
        op = object.__new__(Op)
        op.kind = kind
        op.inputs = inputs
        op.attrs = attrs
        op.graph = self
        op.ipu = frame.ipu
        op.tile_set = frame.tile_set
        op.fault = fault
        # Not of all ops: it would take a third of the time to make one.
        op.user_line = _running_line() if fault is not None or kind in _MAY_FAIL or "group" in attrs else None
        if frame.ipu or frame.tile_set != "compute":
            self.ir._is_placed = True
        op.outputs = tuple([self._add_tensor(Tensor, *result) for result in results])
        for t in op.outputs:
            t.producer = op
        for t in inputs:
            if t.consumer is None:
                t.consumer = op
        self.ops.append(op)
        for hook in self._hooks.values():
            hook(op)
        for hook in context.op_hooks.values():
            hook(op)
        return op

    def _check_open(self) -> None:
        if self.ir._prepared:
            raise RuntimeError(
                "the Ir belongs to a Session, which has compiled it: nothing can be added. Build the whole "
                "program first, or make a new Ir."
            )

    def _undo_on_error(self) -> "_Undo":
        """A block that, if it raises, takes away what it added to this graph."""
        return _Undo(self)


def _running_line() -> str:
    """The file and line outside popfn that is running."""
    frame: Any = sys._getframe()
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__") or ""
        if not (module == "popfn" or module.startswith("popfn.")):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Undo:
    __slots__ = ("graph", "ops", "tensors")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops = len(graph.ops)
        self.tensors = len(graph._tensors)

    def __enter__(self) -> None:
        pass

    def __exit__(self, exc_type: Any, *exc: Any) -> None:
        if exc_type is None:
            return
        for op in self.graph.ops[self.ops :]:
            for t in op.inputs:
                if t.consumer is op:
                    t.consumer = None
        del self.graph.ops[self.ops :]
        while len(self.graph._tensors) > self.tensors:
            self.graph._tensors.popitem()
