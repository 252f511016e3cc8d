"""Static arguments: Python values that a function is traced for, instead of arrays that flow through the trace."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Sequence, Tuple, Union

import numpy as np

from ._promotion import known
from .trace import tree
from .trace.errors import ArgumentError, function_name, message, user_source


class Static:
    """A static argument in the place of its value: a container without leaves.

    Two are equal if their values are, and are of the same types: 1, 1.0 and True are three different ones.
    """

    __slots__ = ("value", "_key")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = typed_key(value)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"{self.value!r} ({type(self.value).__name__})"


tree.register(Static, lambda s: ((), s), lambda s, _: s)


def typed_key(value: Any) -> Any:
    """What is equal for values that are equal in all their types."""
    if isinstance(value, tuple):
        return type(value), tuple(map(typed_key, value))
    if isinstance(value, float):
        return float, repr(value)  # 0.0 and -0.0 are two values, and NaN is one
    return type(value), value


class StaticParameters:
    """The static parameters of a function, named by number or by name, and found however they are passed."""

    def __init__(self, transform: str, f: Callable[..., Any], argnums: Union[int, Sequence[int]],
                 argnames: Union[str, Sequence[str]]) -> None:
        self.transform, self.f = transform, f
        numbers: Any = known(f"{transform}: static_argnums", argnums)
        numbers = tuple(numbers) if isinstance(numbers, (tuple, list, range, set, frozenset)) else (numbers,)
        names: Any = tuple(argnames) if isinstance(argnames, (tuple, list, set, frozenset)) else (argnames,)
        if any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in numbers):
            raise self.error(f"static_argnums numbers arguments, by an integer or several, got {argnums!r}")
        if not all(isinstance(name, str) for name in names):
            raise self.error(f"static_argnames names arguments, by a text or several, got {argnames!r}")
        self.numbers = set(map(int, numbers))
        self.names = set(names)
        try:
            parameters = list(inspect.signature(f).parameters.values())
        except (TypeError, ValueError):  # a built-in without a signature
            parameters = []
        named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD or p.kind is p.KEYWORD_ONLY]
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        open_ended = {p.kind for p in parameters}
        for n in self.numbers:
            if not (-len(positional) <= n < len(positional)
                                              or inspect.Parameter.VAR_POSITIONAL in open_ended or not parameters):
                raise self.error(f"static_argnums names argument {n!r}, but {function_name(f)} has {len(positional)}")
        for name in self.names:
            if name not in named and inspect.Parameter.VAR_KEYWORD not in open_ended and parameters:
                raise self.error(f"static_argnames names {name!r}, but {function_name(f)} has {', '.join(named)}")
        for i, p in enumerate(positional):  # a number means the name too, and the other way round
            if i in self.numbers or i - len(positional) in self.numbers:
                self.numbers = (self.numbers - {i - len(positional)}) | {i}
                if p.kind is p.POSITIONAL_OR_KEYWORD:
                    self.names.add(p.name)
            elif p.name in self.names:
                self.numbers.add(i)

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def error(self, text: str, way: str = "") -> ArgumentError:
        """An error at the user's line."""
        return ArgumentError(message(f"{self.transform}: {text}", f"way out: {way}" if way else None,
                                     at=user_source(4)))

    def hide(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
        """The arguments with static ones hidden from the tracer. Raises ArgumentError for one that has no hash."""
        return (tuple([self.static(i, x) if i in self.numbers else x for i, x in enumerate(args)]),
                {k: self.static(k, x) if k in self.names else x for k, x in kwargs.items()})

    def static(self, place: Union[int, str], value: Any) -> Static:
        """The static argument of a value."""
        try:
            hidden = Static(value)
            hash(hidden)
        except TypeError:
            what = f"argument {place}" if isinstance(place, int) else f"argument {place!r}"
            raise self.error(f"the static {what} of {function_name(self.f)} cannot be hashed: it is a "
                             f"{type(value).__name__}", "pass a tuple for a list, or let it be an array that is traced",
                             ) from None
        return hidden


def shown(x: Any) -> Any:
    """An argument as the function sees it: the value of a static one."""
    return x.value if type(x) is Static else x
