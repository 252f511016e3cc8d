"""Where a new op goes: the current graph, its name scope, IPU and tile set.

The state is a chain of immutable frames in a context variable. Leaving a block puts back the frame that was
current before it, so a block that raises leaves nothing behind, and threads do not see each other's graphs.
"""

import contextlib
import itertools
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Union

__all__ = [
    "gcg",
    "get_current_graph",
    "get_ir",
    "get_main_graph",
    "gir",
    "gmg",
    "in_sequence",
    "io_tiles",
    "ipu",
    "name_scope",
]


class Frame:
    """One level of nested contexts. `scope` is a prefix of names: empty, or names each with a slash."""

    __slots__ = ("graph", "scope", "ipu", "tile_set", "outer")

    def __init__(self, graph: Any, scope: str, ipu: int, tile_set: str, outer: Optional["Frame"]) -> None:
        self.graph = graph
        self.scope = scope
        self.ipu = ipu
        self.tile_set = tile_set
        self.outer = outer


_outside = Frame(None, "", 0, "compute", None)
_current: "ContextVar[Frame]" = ContextVar("popfn.host", default=_outside)
current_frame = _current.get


def push_graph(graph: Any) -> None:
    """Make `graph` the current graph; RuntimeError if the graph that is current belongs to another Ir."""
    frame = _current.get()
    if frame.graph is not None and frame.graph.ir is not graph.ir:
        raise RuntimeError(
            f"cannot enter {graph!r}: the current graph, {frame.graph!r}, belongs to another Ir. Leave the "
            "graphs of one Ir before entering those of another."
        )
    _current.set(Frame(graph, frame.scope, frame.ipu, frame.tile_set, frame))


def pop_graph() -> None:
    """Undo the latest `push_graph`."""
    outer = _current.get().outer
    assert outer is not None, "a graph was left that had not been entered"
    _current.set(outer)


@contextlib.contextmanager
def _changed(**changes: Any) -> Iterator[None]:
    frame = _current.get()
    new = Frame(frame.graph, frame.scope, frame.ipu, frame.tile_set, frame)
    for key, value in changes.items():
        setattr(new, key, value)
    _current.set(new)
    try:
        yield
    finally:
        _current.set(frame)


def get_current_graph() -> Any:
    """Return the graph that new ops go to: the innermost `with graph:` block, or the graph being made.

    Raises:
        RuntimeError: If no graph is current.
    """
    graph = _current.get().graph
    if graph is None:
        raise RuntimeError(
            "there is no current graph: work inside a graph, for example `with ir.main_graph:`."
        )
    return graph


def get_main_graph() -> Any:
    """Return the main graph of the current graph's Ir; RuntimeError if no graph is current."""
    return get_current_graph().ir.main_graph


def get_ir() -> Any:
    """Return the Ir of the current graph; RuntimeError if no graph is current."""
    return get_current_graph().ir


gcg = get_current_graph
gmg = get_main_graph
gir = get_ir


@contextlib.contextmanager
def in_sequence(mode: Union[bool, Literal["pass"]] = True) -> Iterator[None]:
    """Run the ops made inside in the order of their making (`True`), or leave their order open.

    The host always runs ops in creation order, which every mode allows. TypeError for None, ValueError for
    anything but True, False and "pass".
    """
    if mode is None:
        raise TypeError('in_sequence(mode=None): mode must be True, False or "pass".')
    if not (mode is True or mode is False or (isinstance(mode, str) and mode == "pass")):
        raise ValueError(f'in_sequence(mode={mode!r}): mode must be True, False or "pass".')
    yield


@contextlib.contextmanager
def ipu(ipu: int) -> Iterator[None]:
    """Place the ops made inside on this virtual IPU (0 by default); TypeError unless `ipu` is an int."""
    if not isinstance(ipu, int) or isinstance(ipu, bool):
        raise TypeError(f"ipu({ipu!r}): the IPU must be an int.")
    with _changed(ipu=ipu):
        yield


@contextlib.contextmanager
def io_tiles() -> Iterator[None]:
    """Place the ops made inside on the IO tiles."""
    with _changed(tile_set="io"):
        yield


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Prefix the names of tensors made inside with `name` and a slash; TypeError unless `name` is a str."""
    if not isinstance(name, str):
        raise TypeError(f"name_scope({name!r}): the name must be a str.")
    with _changed(scope=_current.get().scope + name + "/"):
        yield


op_hooks: Dict[int, Callable[[Any], Any]] = {}  # called for each op that is made, in any graph
_handles = itertools.count()


class Context:
    """The current graph, name scopes, IPU and tile set, as attributes: what `get_current_context` returns."""

    __slots__ = ()

    @property
    def graph(self) -> Any:
        """The current graph; RuntimeError if there is none."""
        return get_current_graph()

    @property
    def main_graph(self) -> Any:
        """The main graph of the current graph's Ir."""
        return get_main_graph()

    @property
    def ir(self) -> Any:
        """The current graph's Ir."""
        return get_ir()

    @property
    def ipu_id(self) -> Optional[int]:
        """The virtual IPU of new ops."""
        return _current.get().ipu

    @property
    def io_tile_set(self) -> bool:
        """Whether new ops are on the IO tiles."""
        return _current.get().tile_set == "io"

    @property
    def name_scopes(self) -> List[str]:
        """The name scopes, the outermost first."""
        return _current.get().scope.split("/")[:-1]

    @property
    def in_sequence(self) -> bool:
        """Whether new ops run in the order of their making: always, on the host."""
        return True

    def push_graph(self, g: Any) -> None:
        """Make `g` the current graph."""
        push_graph(g)

    def pop_graph(self) -> Any:
        """Undo the latest `push_graph` and return its graph."""
        graph = get_current_graph()
        pop_graph()
        return graph

    def push_name_scope(self, name: str) -> None:
        """Prefix the names of new tensors with `name` and a slash."""
        frame = _current.get()
        _current.set(Frame(frame.graph, frame.scope + name + "/", frame.ipu, frame.tile_set, frame))

    def pop_name_scope(self) -> str:
        """Undo the latest `push_name_scope` and return its name."""
        *_, name = self.name_scopes
        pop_graph()
        return name

    def register_op_created_hook(self, fn: Callable[[Any], Any]) -> int:
        """Call `fn(op)` for each op made in any graph from now on; return the handle that removes it."""
        handle = next(_handles)
        op_hooks[handle] = fn
        return handle

    def remove_op_created_hook(self, handle: int) -> None:
        """Remove the hook that got this handle; ValueError if there is none."""
        if handle not in op_hooks:
            raise ValueError(f"there is no hook with the handle {handle!r}.")
        del op_hooks[handle]


_context = Context()


def get_current_context() -> Context:
    """Return the `Context`, which follows the blocks that are entered and left."""
    return _context


@contextlib.contextmanager
def debug_context_frame_offset(i: int) -> Iterator[None]:
    """Look for the user's line `i` frames further out: no effect on the host, which finds it by itself."""
    yield
