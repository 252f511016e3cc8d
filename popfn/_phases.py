"""fwd_and_grad: a serialised function and its derivative as two phases, which a program can place apart."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _tracing as tracing
from ._batch import batch_serialise, check_options, given_row
from ._promotion import known
from ._remote import Remote, loaded, row_number
from ._shard import P
from .api import Function, Pullback, check_callable, is_index, vjp
from .trace import tree
from .trace.errors import ArgumentError, TreeError, function_name, message, user_source
from .trace.prims import cut, join
from .trace.tracer import aval_of

NAME = "fwd_and_grad"


def fwd_and_grad(f: Function, steps: int, in_axes: Any = 0, out_axes: Any = 0, reduce: Any = None, *,
                 argnums: Union[None, int, Sequence[int]] = None, loads: Any = None, stores: Any = None,
                 cotangents: Any = None, gradients: Any = None, rows: int = 1, io_mode: str = "compute",
                 residuals: Union[str, P] = "remote") -> Tuple[Function, Function]:
    """The two phases of a serialised function's derivative, as `fwd` and `grad`.

    `fwd(*args)` gives the result and what the derivative needs, `grad(residuals, ct)` the gradients of the arguments
    that `argnums` numbers, as a tuple: of those that consist of floats unless it says otherwise. In between, a program
    may do what it likes. Residuals are a pytree. All other options are those of `batch_serialise`; of `loads`
    and `stores` only `pf.Remote` is left to say. `cotangents` is a tree of such entries above the result, and
    `gradients` a tuple with one for each gradient. What lies in a buffer is passed as None and given as None, and both
    functions take `row=`.

    An argument that is loaded from a buffer is a residual as it lies there: its row must not be overwritten before
    `grad` has run, or it is copied before that.

    Raises ArgumentError for an argument in `argnums` that is no tree of floats, and what `batch_serialise` raises.

    >>> import numpy as np
    >>> fwd, grad = fwd_and_grad(lambda w, x: x * w, 2, in_axes=(None, 0))
    >>> y, residuals = fwd(np.float32(3.0), np.arange(4, dtype=np.float32))
    >>> grad(residuals, np.ones(4, np.float32))
    (Array(6., dtype=float32), Array([3., 3., 3., 3.], dtype=float32))
    """
    check_callable(NAME, f, "fwd_and_grad(f, steps)")
    steps, rows = check_options(NAME, steps, rows, io_mode, residuals)
    given: Any = known(f"{NAME}: argnums", argnums)
    numbers = None if given is None else tuple(given) if isinstance(given, (tuple, list, range)) else (given,)

    def fwd(*args: Any, row: Any = 0) -> Tuple[Any, Any]:
        row = given_row(NAME, row, rows)
        values, axes = _arguments(f, args, in_axes, loads, row, steps)
        chosen = _differentiated(f, values, numbers)
        serial = batch_serialise(f, steps, tuple(axes), out_axes, reduce, rows=rows, io_mode=io_mode,
                                 residuals=residuals)

        def of_chosen(*some: Any) -> Any:
            by_number = dict(zip(chosen, some))
            return serial(*[by_number.get(i, x) for i, x in enumerate(values)])
        out, pull_back = vjp(of_chosen, *[values[i] for i in chosen])
        return _stored(out, stores, out_axes, reduce, row, steps, f"result of {function_name(f)}"), _Residuals(
            pull_back, tuple([axes[i] for i in chosen]))

    def grad(residuals: Any, ct: Any = None, *, row: Any = 0) -> Tuple[Any, ...]:
        if not isinstance(residuals, _Residuals):
            raise ArgumentError(message(f"{NAME}: grad takes the residuals that fwd gave first, got "
                                        f"{type(residuals).__name__}", at=user_source(2)))
        row = given_row(NAME, row, rows)
        ct = _taken(ct, cotangents, out_axes, residuals.pull_back.out_tree, row, steps)
        got = residuals.pull_back(ct)
        entries = gradients if isinstance(gradients, (tuple, list)) else (gradients,) * len(got)
        if len(entries) != len(got):
            raise ArgumentError(message(f"{NAME}: gradients has {len(entries)} entries for {len(got)} gradients",
                                        at=user_source(2)))
        return tuple([_stored(g, entry, axis, None, row, steps, f"gradient {i}")
                      for i, (g, entry, axis) in enumerate(zip(got, entries, residuals.axes))])
    return fwd, grad


@dataclass(frozen=True)
class _Residuals:
    """What fwd hands to grad, with the axes along which the differentiated arguments were cut."""

    pull_back: Pullback
    axes: Tuple[Any, ...]


tree.register(_Residuals, lambda r: ((r.pull_back,), r.axes), lambda axes, some: _Residuals(next(iter(some)), axes))


def _arguments(f: Function, args: Sequence[Any], in_axes: Any, loads: Any, row: Any, steps: int,
               ) -> Tuple[List[Any], List[Any]]:
    """The arguments, those in buffers as values put together of their parts, and the entries of in_axes for them."""
    axes = list(in_axes) if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
    entries = loads if isinstance(loads, (tuple, list)) else (loads,) * len(args)
    names = tracing.argument_names(f, args, {})
    for option, seen in (("in_axes", axes), ("loads", entries)):
        if len(seen) != len(args):
            raise ArgumentError(message(f"{NAME}: {option} has {len(seen)} entries, but {function_name(f)} was called "
                                        f"with {len(args)} arguments", at=user_source(3)))
    values = list(args)
    for i, (entry, x, name) in enumerate(zip(entries, args, names)):
        if entry is None:
            continue
        if not isinstance(entry, Remote):
            raise ArgumentError(message(f"{NAME}: loads has None or pf.Remote(buffer) for each argument, got {entry!r}",
                                        at=user_source(3)))
        _check_parts(entry, f"argument {name} of {function_name(f)}")
        values[i] = join(loaded(NAME, entry, x, row, steps, f"argument {name} of {function_name(f)}"), 0)
        axes[i] = 0
    return values, axes


def _check_parts(entry: Remote, what: str) -> None:
    """Raise ArgumentError for a buffer of scalars, which have no axis to be put together along."""
    if not entry.buffer.spec.ndim:
        raise ArgumentError(message(f"{NAME}: {what} lies in {entry.buffer.name}, whose values are scalars: they have "
                                    "no axis of the batch", "way out: a buffer of pf.spec((1,))", at=user_source(4)))


def _differentiated(f: Function, args: Sequence[Any], numbers: Optional[Sequence[int]]) -> List[int]:
    """The numbers of the arguments by which is differentiated."""
    if numbers is not None:
        for n in numbers:
            if not is_index(n) or not -len(args) <= n < len(args):
                raise ArgumentError(message(f"{NAME}: argnums names argument {n!r}, but {function_name(f)} was called "
                                            f"with {len(args)} arguments", at=user_source(3)))
        chosen = [int(n) % len(args) for n in numbers]
        if len(set(chosen)) < len(chosen):
            raise ArgumentError(message(f"{NAME}: argnums={tuple(numbers)} names an argument twice", at=user_source(3)))
        for i in chosen:
            for path, leaf in zip(tree.paths(tree.structure(args[i]), tracing.argument_names(f, args, {})[i]),
                                  tree.leaves(args[i])):
                aval = tracing.argument_aval(leaf)
                if not aval.is_float:
                    raise ArgumentError(message(
                        f"{NAME}: argnums names argument {path} of {function_name(f)}, which is {aval}; a derivative "
                        "needs floats", at=user_source(3)))
        return chosen
    avals = [list(map(tracing.argument_aval, tree.leaves(x))) for x in args]
    return [i for i, some in enumerate(avals) if some and all(a.is_float for a in some)]


def _stored(x: Any, entries: Any, axes: Any, reduce: Any, row: Any, steps: int, what: str) -> Any:
    """A tree with None in place of the leaves that go to buffers."""
    leaves, structure = tree.flatten(x)
    try:
        options, dims, ways = (tree.prefix_leaves(option, structure) for option in (entries, axes, reduce))
    except TreeError as e:
        raise ArgumentError(message(f"{NAME}: stores, gradients, out_axes or reduce is no tree above the {what}: {e}",
                                    at=user_source(3))) from None
    out: List[Any] = []
    for leaf, entry, axis, way, path in zip(leaves, options, dims, ways, tree.paths(structure, what)):
        if entry is None:
            out.append(leaf)
            continue
        axis = None if way is not None or not aval_of(leaf).ndim else axis
        if not isinstance(entry, Remote) or axis is None:
            raise ArgumentError(message(f"{NAME}: {path} can go to a pf.Remote(buffer) if it has an axis of the batch, "
                                        f"got {entry!r} and axis {axis!r}", at=user_source(3)))
        parts = cut(leaf, steps, axis % aval_of(leaf).ndim)
        entry.check(parts.aval.with_shape(parts.aval.shape[1:]), steps, f"{NAME}: {path}")
        entry.buffer.check_varying(parts.aval)
        entry.buffer.set_values(row_number(entry.buffer, entry.at(row)), parts)
        out.append(None)
    return tree.unflatten(structure, out)


def _taken(ct: Any, entries: Any, axes: Any, structure: tree.TreeDef, row: Any, steps: int) -> Any:
    """A cotangent with what lies in buffers in place of None."""
    try:
        options, dims = tree.prefix_leaves(entries, structure), tree.prefix_leaves(axes, structure)
    except TreeError as e:
        raise ArgumentError(message(f"{NAME}: cotangents or out_axes is no tree above the result: {e}",
                                    at=user_source(3))) from None
    for entry in options:
        if entry is not None and not isinstance(entry, Remote):
            raise ArgumentError(message(f"{NAME}: cotangents has None or pf.Remote(buffer) for each result, got "
                                        f"{entry!r}", at=user_source(3)))
    if ct is None and None in options:
        raise ArgumentError(message(f"{NAME}: grad takes the cotangent of the result behind the residuals",
                                    "way out: grad(residuals, ct), or cotangents=pf.Remote(buffer)", at=user_source(3)))
    if not any(isinstance(entry, Remote) for entry in options):
        return ct
    holes = iter([ct] if structure.is_leaf() else tree.prefix_leaves(ct, structure))
    paths = tree.paths(structure, "cotangent")
    return tree.unflatten(structure, [
        x if entry is None else join(loaded(NAME, entry, x, row, steps, path), axis)
        for x, entry, axis, path in zip(holes, options, dims, paths)])
