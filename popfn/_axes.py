"""Options that are trees above a function's arguments or its results, such as in_axes: which entry each leaf has."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from . import _tracing as tracing
from ._promotion import known
from .api import Function, is_index
from .trace import tree
from .trace.errors import ArgumentError, TreeError, function_name, message, user_source


def argument_entries(name: str, option: str, f: Function, value: Any, given: tracing.Arguments,
                     by_keyword: Any) -> List[Any]:
    """For each leaf of the arguments, the entry above it.

    The option is one entry for all positional arguments or a tuple of an entry for each; what is passed by keyword has
    `by_keyword`. Raises ArgumentError for another number of entries, or for one that is no tree above its argument.
    """
    count = len(given.args)
    entries = value if isinstance(value, (tuple, list)) else (value,) * count
    if len(entries) != count:
        raise ArgumentError(message(
            f"{name}: {option} has {len(entries)} entries, but {function_name(f)} was called with {count} positional "
            "arguments", f"seen: {option}={value!r}", at=user_source(3)))
    names = tracing.argument_names(f, given.args, given.kwargs)
    out: List[Any] = []
    for entry, structure, argument in zip([*entries, *[by_keyword] * len(given.kwargs)], given.structures, names):
        try:
            out += tree.prefix_leaves(entry, structure)
        except TreeError as e:
            raise ArgumentError(message(
                f"{name}: {option} for argument {argument} of {function_name(f)} is no tree above it: {e}",
                f"seen: {entry!r}", at=user_source(3))) from None
    return out


def result_entries(name: str, option: str, f: Function, value: Any, traced: tracing.Traced) -> List[Any]:
    """For each leaf of the result, the entry above it. Raises ArgumentError if the option is no tree above it."""
    try:
        return tree.prefix_leaves(value, traced.out_tree)
    except TreeError as e:
        raise ArgumentError(message(f"{name}: {option} is no tree above the result of {function_name(f)}: {e}",
                                    f"seen: {option}={value!r}", at=user_source(3))) from None


def argument_axes(name: str, f: Function, entries: Sequence[Any], given: tracing.Arguments, use: str,
                  shared: str) -> List[Optional[int]]:
    """The axis of each leaf that its entry says, counted from the front; None where it says None.

    Raises ArgumentError for a leaf without that axis: `use` says what it was wanted for, `shared` when None is right.
    """
    dims: List[Optional[int]] = []
    for i, (d, aval) in enumerate(zip(entries, given.avals)):
        d = known(f"{name}: an axis in in_axes", d)
        if d is not None and (not is_index(d) or not -aval.ndim <= d < aval.ndim):
            path = tracing.leaf_names(f, given.args, given.kwargs)[i]
            way = None
            if not aval.ndim:
                by_keyword = i >= sum(s.num_leaves for s in given.structures[:len(given.args)])
                way = (f"way out: {'pass it by position, and ' if by_keyword else ''}write None in in_axes for "
                       f"{shared}")
            raise ArgumentError(message(f"{name}: argument {path} of {function_name(f)} is {aval}, which has no axis "
                                        f"{d!r} to {use}", way, at=user_source(3)))
        dims.append(None if d is None else int(d) % aval.ndim)
    return dims
