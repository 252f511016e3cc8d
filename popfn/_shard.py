"""shard as a user meets it: meshes, specs, and functions that every replica runs on its part of global arrays."""
from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from . import _tracing as tracing
from ._axes import argument_entries, result_entries
from .api import Function, decorator, is_index, wraps
from .trace import tree
from .trace.aval import Aval
from .trace.errors import ArgumentError, AxisError, function_name, message, user_source, where
from .trace.tracer import bind, named_axes
from .transforms.bodies import without_constants
from .transforms.replay import constant_arrays
from .transforms.shard import Shard, Spec, check_meetings, spec_names

NAME = "shard"


class Mesh:
    """Replicas in the order of named axes, the first one outermost: `Mesh(dp=2, tp=4)` are 8 replicas.

    Replica number dp * 4 + tp has the place (dp, tp). Raises ArgumentError for no axes, or sizes that are no numbers of
    1 or more.

    >>> mesh = Mesh(dp=2, tp=4)
    >>> mesh, mesh.size, mesh.axes
    (Mesh(dp=2, tp=4), 8, {'dp': 2, 'tp': 4})
    """

    def __init__(self, **axes: int) -> None:
        if not axes:
            raise ArgumentError(message("Mesh has no axes", "way out: Mesh(dp=2)", at=user_source(2)))
        for name, size in axes.items():
            if not name.isidentifier():
                raise ArgumentError(message(f"Mesh: the name of an axis is an identifier, got {name!r}",
                                            at=user_source(2)))
            if not is_index(size) or size < 1:
                raise ArgumentError(message(f"Mesh: the size of axis {name!r} is a number of 1 or more, got {size!r}",
                                            at=user_source(2)))
        self._axes = {name: int(size) for name, size in axes.items()}

    @property
    def axes(self) -> Dict[str, int]:
        """The axes' sizes by name, the outermost first."""
        return dict(self._axes)

    @property
    def size(self) -> int:
        """The number of replicas."""
        return math.prod(self._axes.values())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Mesh) and list(self._axes.items()) == list(other._axes.items())

    def __hash__(self) -> int:
        return hash(tuple(self._axes.items()))

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self._axes.items())})"


Entry = Union[None, str, Tuple[str, ...]]


class P:
    """How an array is cut over a mesh: for each of its axes the name of an axis of the mesh, several, or None.

    `P("dp", None, "tp")` cuts the first axis over dp and the third over tp; `P(("dp", "tp"))` cuts the first over both,
    dp being the major one. Axes behind the last entry are whole, so that `P()` is an array that all replicas have.
    Raises ArgumentError for an entry of another kind, or a name that stands there twice.

    >>> P("dp", None, ("tp", "pp"))
    P('dp', None, ('tp', 'pp'))
    """

    def __init__(self, *entries: Entry) -> None:
        names = [name for e in entries for name in (e if isinstance(e, tuple) else () if e is None else (e,))]
        if not all(isinstance(name, str) for name in names):
            raise ArgumentError(message(f"P has the name of an axis, a tuple of names or None for each axis, got "
                                        f"{entries!r}", at=user_source(2)))
        for name in names:
            if names.count(name) > 1:
                raise ArgumentError(message(f"P{entries!r} names {name!r} twice: an array is cut over an axis once",
                                            at=user_source(2)))
        self.entries = entries

    @property
    def spec(self) -> Spec:
        """For each axis the names over which it is cut."""
        cut = [e if isinstance(e, tuple) else () if e is None else (e,) for e in self.entries]
        while cut and not cut[-1]:
            cut.pop()
        return tuple(cut)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, P) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self.entries))})"


@decorator
def shard(f: Function, mesh: Mesh, in_specs: Any, out_specs: Any) -> Function:
    """A function of global arrays, of which each replica of a mesh applies `f` to its parts.

    `in_specs` has a `P` for all arguments, or a tuple with one for each positional argument, which may be a tree of
    them above the argument; `out_specs` is a P or a tree of them above the result. In f an array has the shape of a
    part, and its type says over which axes of the mesh it may differ, `f32[4]{tp}`. `psum` and its like work between
    replicas.

    A result may not vary over an axis that its spec does not name, because then the replicas would have different ones:
    a missing `psum` is an error. Neither may it be equal on replicas whose spec says that they have different parts.
    Derivatives are those of the function of global arrays, inside f and outside.

    Raises ArgumentError that names the leaf, the axis and both sizes if an array cannot be cut so, and AxisError if a
    result is not of the type that its spec says.

    >>> import numpy as np, popfn as pf
    >>> mesh = pf.Mesh(dp=2)
    >>> total = pf.shard(lambda w, x: pf.psum((x @ w).sum(), "dp"), mesh, (pf.P(), pf.P("dp")), pf.P())
    >>> total(np.float32([1, 2]), np.ones((4, 2), np.float32))
    Array(12., dtype=float32)
    """
    if not isinstance(mesh, Mesh):
        raise ArgumentError(message(f"{NAME} takes a mesh, got {type(mesh).__name__}", "way out: pf.Mesh(dp=2)",
                                    at=user_source(2)))
    axes = mesh.axes

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        taken = [name for name in axes if name in named_axes()]
        if taken:
            raise AxisError(message(f"{NAME}: the axis {taken[0]!r} of {mesh} is in scope already",
                                    "way out: give one of the two another name", at=user_source(2)))
        given = tracing.arguments(NAME, f, args, kwargs, arrays=True)
        specs = _input_specs(f, mesh, in_specs, given)
        parts = [_part(a, spec, axes) for a, spec in zip(given.avals, specs)]
        traced = tracing.trace(f, given._replace(avals=parts), axes=axes)
        results = _output_specs(f, mesh, out_specs, traced)
        check_meetings(traced.jaxpr, frozenset(axes))
        jaxpr, _ = without_constants(traced.jaxpr)
        closed = [*constant_arrays(traced.jaxpr), *traced.captures]
        outs = bind(Shard(jaxpr, tuple(axes.items()), ((),) * len(closed) + tuple(specs), tuple(results)),
                    [*closed, *given.leaves])
        return traced.outputs(outs)
    return wrapper


def _part(aval: Aval, spec: Spec, axes: Dict[str, int]) -> Aval:
    """The type of a replica's part."""
    shape = list(aval.shape)
    for k, names in enumerate(spec):
        shape[k] //= math.prod(axes[name] for name in names)
    return aval.with_shape(tuple(shape)).over(aval.varying | spec_names(spec))


def _checked(entry: Any, option: str, what: str, mesh: Mesh) -> Spec:
    """An entry of in_specs or out_specs as a spec. Raises ArgumentError unless it is a P of the mesh's axes."""
    if not isinstance(entry, P):
        raise ArgumentError(message(f"{NAME}: {option} has a pf.P for {what}, got {entry!r}",
                                    "way out: pf.P() is for an array that all replicas have", at=user_source(4)))
    for name in sorted(spec_names(entry.spec)):
        if name not in mesh.axes:
            raise ArgumentError(message(f"{NAME}: {entry!r} for {what} names {name!r}, which is no axis of {mesh}",
                                        at=user_source(4)))
    return entry.spec


def _input_specs(f: Function, mesh: Mesh, in_specs: Any, given: tracing.Arguments) -> List[Spec]:
    """The spec of each leaf of the arguments."""
    entries = argument_entries(NAME, "in_specs", f, in_specs, given, P())
    out: List[Spec] = []
    for i, (entry, aval) in enumerate(zip(entries, given.avals)):
        what = f"argument {tracing.leaf_names(f, given.args, given.kwargs)[i]} of {function_name(f)}"
        spec = _checked(entry, "in_specs", what, mesh)
        if len(spec) > aval.ndim:
            raise ArgumentError(message(f"{NAME}: {entry!r} cuts axis {len(spec) - 1} of {what}, which is {aval}",
                                        at=user_source(3)))
        for k, names in enumerate(spec):
            count = math.prod(mesh.axes[name] for name in names)
            if aval.shape[k] % count:
                raise ArgumentError(message(
                    f"{NAME}: {what} is {aval}: the {aval.shape[k]} elements along axis {k} do not divide into "
                    f"{count} parts, the size of {', '.join(map(repr, names))} in {mesh}",
                    "way out: pad the array, or cut another axis", at=user_source(3)))
        out.append(spec)
    return out


def _output_specs(f: Function, mesh: Mesh, out_specs: Any, traced: tracing.Traced) -> List[Spec]:
    """The spec of each leaf of the result, which is of the type that it says."""
    out: List[Spec] = []
    for i, (entry, aval) in enumerate(zip(result_entries(NAME, "out_specs", f, out_specs, traced),
                                          traced.jaxpr.out_avals)):
        what = f"{tree.paths(traced.out_tree, 'result')[i]} of {function_name(f)}"
        spec = _checked(entry, "out_specs", what, mesh)
        if len(spec) > aval.ndim:
            raise ArgumentError(message(f"{NAME}: {entry!r} puts {what} together along axis {len(spec) - 1}, but it is "
                                        f"{aval} on each replica", at=user_source(3)))
        varies = aval.varying & frozenset(mesh.axes)
        made = next((f"made at {where(eqn.source)}" for eqn in traced.jaxpr.eqns
                     if traced.jaxpr.outputs[i] in eqn.outputs), None)
        more, less = (_quoted(mesh, some) for some in (varies - spec_names(spec), spec_names(spec) - varies))
        if more:
            raise AxisError(message(
                f"{NAME}: {what} is {aval}, which varies over {more}, but its spec {entry!r} does not name it: the "
                "replicas have different results, and none of them is the result", made,
                f"way out: pf.psum or pf.pmean over {more}, or name it in out_specs", at=user_source(3)))
        if less:
            raise AxisError(message(
                f"{NAME}: {what} is {aval}, which is equal on all replicas of {less}, but its spec {entry!r} says that "
                "each has a part of its own", made, f"way out: leave {less} out of the spec, or say with "
                f"pf.pvary(x, {less}) that equal parts are meant", at=user_source(3)))
        out.append(spec)
    return out


def _quoted(mesh: Mesh, names: Any) -> Optional[str]:
    """Names of axes in the order of the mesh, as an error shows them; None if there are none."""
    return ", ".join(repr(name) for name in mesh.axes if name in names) or None
