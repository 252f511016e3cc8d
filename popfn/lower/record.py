"""The record of a lowering: every call that it makes on PopXL, in order, for `Program.as_text`."""
from __future__ import annotations

import contextlib
import functools
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ..trace.errors import Source


class Block(NamedTuple):
    """A context in which calls were made: `with popxl.io_tiles():`; each has a number of its own."""

    context: str
    number: int


class Call(NamedTuple):
    """`result = callee(*args, **kwargs)`, the callee as a path below the module, and the user's line it comes from."""

    callee: str
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]
    result: Any
    source: Optional[Source]
    block: Optional[Block] = None


class Body:
    """What was called while one graph was current. `params` are a sub-graph's inputs, then the graphs that it calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: List[Call] = []
        self.param_names: Tuple[str, ...] = ()
        self.by_reference: Tuple[bool, ...] = ()  # for each of them
        self.params: Tuple[Any, ...] = ()
        self.outputs: Tuple[Any, ...] = ()
        self.accesses: List[Any] = []  # of the main graph: see `handles.Accesses`
        self.constants: Dict[Any, Any] = {}
        self.wishes: Dict[int, str] = {}  # what results are to be called, by their id


class Recording:
    """A record in the making. `px` is the PopXL module as lower rules see it; `source` is the line being lowered."""

    def __init__(self, module: Any) -> None:
        self.main = self.body = Body("main")
        self.source: Optional[Source] = None
        self.block: Optional[Block] = None
        self.blocks = 0
        self.module = module
        self.px: Any = Namespace(self, module, "")
        self._constant = self.px.constant
        self.px.constant = self.constant

    def wrap(self, callee: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """`f`, recorded under the path `callee`."""
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = f(*args, **kwargs)
            self.body.calls.append(Call(callee, args, kwargs, result, self.source, self.block))
            return result
        return recorded

    def constant(self, data: Any, dtype: Any = None) -> Any:
        """`px.constant`, called once per graph, value and context: a constant is on the tiles where it is used."""
        if isinstance(data, np.ndarray):
            key: Any = (id(data), dtype) if data.size > 1 else (data.tobytes(), data.dtype, data.shape, dtype)
        elif dtype is None or dtype.as_numpy().names:
            key = type(data), repr(data), dtype
        else:  # 0 and 0.0 are one value of a dtype, 0.0 and -0.0 are two
            key = np.asarray(data, dtype.as_numpy()).tobytes(), dtype
        key = key, self.block is not None
        found = self.body.constants.get(key)
        if found is None:
            args = (data,) if dtype is None else (data, dtype)
            found = self.body.constants[key] = self._constant(*args)
        return found

    @contextlib.contextmanager
    def within(self, context: str) -> Iterator[None]:
        """Make calls in a context of PopXL's, named as a path below the module: `io_tiles`."""
        manager = functools.reduce(getattr, context.split("."), self.module)
        outer, self.blocks = self.block, self.blocks + 1
        self.block = Block(context, self.blocks)
        try:
            with manager():
                yield
        finally:
            self.block = outer

    @contextlib.contextmanager
    def inside(self, body: Body) -> Iterator[None]:
        """Record the calls made here in another body."""
        outer, self.body, self.block = (self.body, self.source, self.block), body, None
        try:
            yield
        finally:
            self.body, self.source, self.block = outer


class Namespace:
    """A module whose functions are recorded when they are called; all else in it is passed on."""

    constant: Any

    def __init__(self, recording: Recording, module: Any, path: str) -> None:
        self.__dict__["_of"] = recording, module, path

    def __getattr__(self, name: str) -> Any:  # once per name: what is found becomes an attribute
        recording, module, path = self._of
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            value = Namespace(recording, value, f"{path}{name}.")
        elif callable(value) and not isinstance(value, type):
            value = recording.wrap(path + name, value)
        self.__dict__[name] = value
        return value
