"""From a Python function on pytrees to a jaxpr on leaves, and back: what every wrapper in `api` begins with."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ._static import shown
from .trace import tree
from .trace.annotations import annotations_of, check_arguments, check_result
from .trace.array import Array
from .trace.aval import INTERNED, KEPT, Aval, aval_of_data, float64
from .trace.errors import ArgumentError, DtypeError, NarrowingError, function_name, message, user_source
from .trace.jaxpr import Jaxpr
from .trace.tracer import Trace, Tracer, aval_of, current_trace
from .transforms.replay import checked


class Traced(NamedTuple):
    """A traced function: `jaxpr` takes the captures, then the leaves of the arguments."""

    jaxpr: Jaxpr
    captures: Tuple[Tracer, ...]
    out_tree: tree.TreeDef

    def outputs(self, values: Sequence[Any]) -> Any:
        """The function's result tree with these leaves."""
        return tree.unflatten(self.out_tree, values)


class Arguments(NamedTuple):
    """A call's arguments, taken apart: all leaves, each argument's structure, each leaf's aval."""

    args: Sequence[Any]
    kwargs: Dict[str, Any]
    leaves: List[Any]
    structures: List[tree.TreeDef]
    avals: List[Aval]


def argument_names(f: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]) -> List[str]:
    """What the user calls each argument: the parameters' names, `xs[1]` for the second of `*xs`."""
    names: List[str] = []
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        parameters = []
    for i in range(len(args)):
        if i < len(parameters) and parameters[i].kind in (inspect.Parameter.POSITIONAL_ONLY,
                                                          inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameters[i].name)
        else:
            rest = [(j, p) for j, p in enumerate(parameters) if p.kind is inspect.Parameter.VAR_POSITIONAL]
            names.append(f"{rest[0][1].name}[{i - rest[0][0]}]" if rest else f"argument {i}")
    return names + list(kwargs)


def leaf_names(f: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]) -> List[str]:
    """The leaves of all arguments as code: `params['w1']`."""
    values = [*args, *kwargs.values()]
    return [path for name, value in zip(argument_names(f, args, kwargs), values)
            for path in tree.paths(tree.structure(value), name)]


def flatten_arguments(args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[List[Any], List[tree.TreeDef]]:
    """All leaves, and the structure of each argument: positional ones first, then those by keyword."""
    leaves: List[Any] = []
    structures = []
    for value in (*args, *kwargs.values()):
        some, structure = tree.flatten(value)
        leaves += some
        structures.append(structure)
    return leaves, structures


def unflatten_arguments(leaves: Sequence[Any], structures: Sequence[tree.TreeDef], positional: int,
                        keywords: Sequence[str]) -> Tuple[List[Any], Dict[str, Any]]:
    """The reverse of `flatten_arguments`."""
    values, at = [], 0
    for structure in structures:
        n = structure.num_leaves
        values.append(tree.unflatten(structure, leaves[at:at + n]))
        at += n
    return values[:positional], dict(zip(keywords, values[positional:]))


def argument_aval(x: Any) -> Aval:
    """The aval of an argument's leaf: an array, a number, an aval or whatever has a shape and a dtype."""
    if isinstance(x, Array):
        return x.aval
    if type(x) is np.ndarray and x.dtype in KEPT:
        return Aval._make(x.shape, x.dtype, False)
    if isinstance(x, Aval):
        return x
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and not hasattr(x, "__array__"):
        return Aval(shape, dtype)
    return aval_of_data(x)


def argument_avals(name: str, f: Callable[..., Any], leaves: Sequence[Any], args: Sequence[Any],
                   kwargs: Dict[str, Any], arrays: bool = False) -> List[Aval]:
    """The avals of all leaves.

    An error names the leaf: ArgumentError for what is no array (or an aval, if `arrays` are needed), NarrowingError for
    64-bit data that does not survive.
    """
    avals: List[Aval] = []
    for i, x in enumerate(leaves):
        known = INTERNED.get((x.shape, x.dtype, False)) if type(x) is np.ndarray else None
        if known is not None and known.dtype != float64:
            avals.append(known)
            continue
        try:
            if arrays and isinstance(x, Aval):
                raise ArgumentError(message(
                    f"{name}: argument {leaf_names(f, args, kwargs)[i]} of {function_name(f)} is the aval {x}, not an "
                    "array", f"way out: pf.make_jaxpr({name}(f))(...) and pf.lower take avals", at=user_source(2)))
            avals.append(argument_aval(x))
        except DtypeError as e:
            raise ArgumentError(message(
                f"argument {leaf_names(f, args, kwargs)[i]} of {function_name(f)} is not an array: {e}",
                f"seen: {type(x).__name__}, {x!r:.60}",
                "way out: close over values that are not arrays, or bind them with functools.partial; make a class "
                "of arrays a pytree with pf.tree.dataclass", at=user_source(2))) from None
        except NarrowingError as e:
            raise NarrowingError(message(f"argument {leaf_names(f, args, kwargs)[i]} of {function_name(f)}: {e}",
                                         at=user_source(2))) from None
    return avals


def arguments(name: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any],
              arrays: bool = False) -> Arguments:
    """The arguments of a call that the transform `name` was given; see `argument_avals` for the errors."""
    leaves, structures = flatten_arguments(args, kwargs)
    return Arguments(args, kwargs, leaves, structures, argument_avals(name, f, leaves, args, kwargs, arrays))


def follows() -> bool:
    """Whether a trace that begins here can follow concrete values: no trace around it hides them."""
    outer = current_trace()
    return outer is None or outer.follow


def trace(f: Callable[..., Any], given: Arguments, follow: bool = False, axes: Optional[Dict[str, int]] = None,
          ) -> Traced:
    """Trace `f`, mapped over the named `axes`.

    With `follow`, Python sees the arguments' values; the caller vouches that they are known.
    """
    args, kwargs, leaves, structures, avals = given
    name = getattr(f, "__name__", type(f).__name__)
    with Trace(name, lambda: leaf_names(f, args, kwargs), follow, axes) as t:
        tracers = t.add_inputs(avals)
        if follow:
            t.values = {v.variable: (x if isinstance(x, Array) else Array(x)).followed()
                        for v, x in zip(tracers, leaves)}
        traced_args, traced_kwargs = unflatten_arguments(tracers, structures, len(args), list(kwargs))
        bindings = None
        if annotations_of(f) is not None:
            bindings = check_arguments(f, bound_arguments(f, traced_args, traced_kwargs))
        result = f(*map(shown, traced_args), **{k: shown(x) for k, x in traced_kwargs.items()})
        if bindings is not None:
            check_result(bindings, result)
        outs, out_tree = tree.flatten(result)
        for i, x in enumerate(outs):
            if not isinstance(x, Array):
                check_output(f, x, out_tree, i)
        jaxpr = checked(t.finish(outs))
    return Traced(jaxpr, tuple(t.captures), out_tree)


def bound_arguments(f: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments by parameter."""
    return dict(inspect.signature(f).bind(*args, **kwargs).arguments)


def check_output(f: Callable[..., Any], x: Any, out_tree: tree.TreeDef, i: int) -> None:
    """Raise ArgumentError, naming its place in the result, for an output that is no array."""
    try:
        aval_of(x)
    except DtypeError as e:
        path = tree.paths(out_tree, "result")[i]
        raise ArgumentError(message(
            f"{path} of {function_name(f)} is not an array: {e}", f"seen: {type(x).__name__}, {x!r:.60}",
            "way out: return arrays and containers of arrays only")) from None
