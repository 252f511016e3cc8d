"""Collectives over named axes: psum, pmean, all_gather and their like, on pytrees."""
from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple, Union

import numpy as np

from . import numpy as pnp
from ._promotion import known
from .trace import prims, tree
from .trace.array import Array
from .trace.aval import accumulator_dtype, float32
from .trace.errors import ArgumentError, AxisError, ShapeError, message, user_source
from .trace.tracer import Tracer, aval_of, literal, named_axes

Names = Union[str, Sequence[str]]


def psum(x: Any, axis_name: Names) -> Any:
    """The sum over the lanes of a named axis (or of several), one value for all of them; `x` may be a pytree.

    Its derivative is that of the one function of all lanes: what comes back is handed to every lane. Raises AxisError
    for an axis that is not in scope, and for a value that does not vary over it, because then it is not clear whether
    the lanes' equal values are to be added up: `pvary` says that they are.

    >>> import numpy as np, popfn as pf
    >>> pf.vmap(lambda x: x / psum(x, "i"), axis_name="i")(np.array([1.0, 3.0], np.float32))
    Array([0.25, 0.75], dtype=float32)
    """
    return _reduce("psum", prims.psum, x, axis_name)


def pmean(x: Any, axis_name: Names) -> Any:
    """The mean over the lanes of a named axis (or of several); see `psum`. Integers give float32."""
    def mean(x: Any, names: Tuple[str, ...]) -> Any:
        count = 1
        for name in names:
            count *= size_in_scope("pmean", name)
        dtype = aval_of(x).dtype if aval_of(x).is_float else float32
        total = prims.psum(prims.convert(x, accumulator_dtype(dtype)), names)  # float16 may not hold it
        return prims.convert(prims.div(total, literal(float(count), aval_of(total))), dtype)
    return _reduce("pmean", mean, x, axis_name)


def pmax(x: Any, axis_name: Names) -> Any:
    """The largest over the lanes of a named axis (or of several); the cotangent is shared among the winners."""
    return _reduce("pmax", prims.pmax, x, axis_name)


def pmin(x: Any, axis_name: Names) -> Any:
    """The smallest over the lanes of a named axis (or of several); the cotangent is shared among the winners."""
    return _reduce("pmin", prims.pmin, x, axis_name)


def pvary(x: Any, axis_name: Names) -> Any:
    """One value for all lanes as one that may differ between them; its derivative is the sum over the lanes."""
    names = names_in_scope("pvary", axis_name)
    return tree.map(lambda leaf: prims.pvary(pnp.asarray(leaf), frozenset(names)), x)


def all_gather(x: Any, axis_name: str, *, axis: int = 0, tiled: bool = False) -> Any:
    """The values of all lanes, put together along a new axis, or with `tiled` along an old one; the same in all lanes.

    >>> import numpy as np, popfn as pf
    >>> pf.vmap(lambda x: all_gather(x, "i"), axis_name="i", out_axes=None)(np.arange(3))
    Array([0, 1, 2], dtype=int32)
    """
    def gather(x: Any) -> Any:
        x = _varying("all_gather", x, (axis_name,))
        if not tiled:
            return prims.all_gather(x, axis_name, size, _place("all_gather", axis, x.ndim + 1))
        at = _place("all_gather", axis, x.ndim)
        y = prims.all_gather(x, axis_name, size, at)
        return prims.reshape(y, x.shape[:at] + (size * x.shape[at],) + x.shape[at + 1:])
    size = size_in_scope("all_gather", axis_name)
    return tree.map(gather, x)


def psum_scatter(x: Any, axis_name: str, *, axis: int = 0, tiled: bool = False) -> Any:
    """The sum over the lanes, of which lane i keeps element i along an axis, or with `tiled` the i-th equal part.

    Raises ShapeError if the axis does not have one element, or with `tiled` one equal part, for each lane.
    """
    size = size_in_scope("psum_scatter", axis_name)

    def scatter(x: Any) -> Any:
        x = _varying("psum_scatter", x, (axis_name,))
        at = _place("psum_scatter", axis, x.ndim)
        n = x.shape[at]
        if n % size or not tiled and n != size:
            raise ShapeError(message(
                f"psum_scatter: axis {axis} of {x.aval.invariant} has {n} elements for {size} lanes of {axis_name!r}",
                "way out: tiled=True gives each lane an equal part" if not n % size else None, at=user_source(4)))
        parts = prims.reshape(x, x.shape[:at] + (size, n // size) + x.shape[at + 1:]) if tiled else x
        return prims.own_slice(prims.psum(parts, (axis_name,)), axis_name, size, at)
    return tree.map(scatter, x)


def all_to_all(x: Any, axis_name: str, split_axis: int, concat_axis: int) -> Any:
    """Lane i gives element j along `split_axis` to lane j, which finds it at i along the new `concat_axis`.

    `split_axis` has one element for each lane, and goes. Raises ShapeError if it does not.
    """
    size = size_in_scope("all_to_all", axis_name)

    def exchange(x: Any) -> Any:
        x = _varying("all_to_all", x, (axis_name,))
        split = _place("all_to_all", split_axis, x.ndim)
        if x.shape[split] != size:
            raise ShapeError(message(f"all_to_all: axis {split_axis} of {x.aval.invariant} has {x.shape[split]} "
                                     f"elements for {size} lanes of {axis_name!r}", at=user_source(4)))
        return prims.all_to_all(x, axis_name, size, split, _place("all_to_all", concat_axis, x.ndim))
    return tree.map(exchange, x)


def ppermute(x: Any, axis_name: str, perm: Sequence[Tuple[int, int]]) -> Any:
    """Lane `target` gets the value of lane `source` for each pair (source, target); the others get zeros.

    Raises ArgumentError if a lane is a source or a target twice, or is out of range.
    """
    size = size_in_scope("ppermute", axis_name)
    pairs = tuple((int(a), int(b)) for a, b in perm)
    for what, lanes in (("source", [a for a, _ in pairs]), ("target", [b for _, b in pairs])):
        bad = [n for n in lanes if not 0 <= n < size or lanes.count(n) > 1]
        if bad:
            raise ArgumentError(message(f"ppermute: lane {bad[0]} as a {what} "
                                        + ("is out of range" if not 0 <= bad[0] < size else "stands there twice")
                                        + f": {axis_name!r} has {size} lanes", f"seen: perm={list(pairs)}",
                                        at=user_source(2)))
    return tree.map(lambda leaf: prims.ppermute(_varying("ppermute", leaf, (axis_name,)), axis_name, size, pairs), x)


def axis_index(axis_name: str) -> Array:
    """The number of the lane along a named axis, int32.

    >>> import numpy as np, popfn as pf
    >>> pf.vmap(lambda x: x + axis_index("i"), axis_name="i")(np.zeros(3, np.int32))
    Array([0, 1, 2], dtype=int32)
    """
    return prims.axis_index(axis_name, size_in_scope("axis_index", axis_name))


def axis_size(axis_name: str) -> int:
    """The number of lanes along a named axis, a Python integer."""
    return size_in_scope("axis_size", axis_name)


# ---------------------------------------------------------------------------- what they share
def _reduce(name: str, primitive: Callable[[Any, Tuple[str, ...]], Any], x: Any, axis_name: Names) -> Any:
    names = names_in_scope(name, axis_name)
    if not names:
        return tree.map(pnp.asarray, x)
    return tree.map(lambda leaf: primitive(_varying(name, leaf, names), names), x)


def names_in_scope(name: str, axis_name: Names) -> Tuple[str, ...]:
    """The names of axes, each in scope."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list, set, frozenset)) else (axis_name,)
    for n in names:
        size_in_scope(name, n)
        if names.count(n) > 1:
            raise ArgumentError(message(f"{name}: the axis {n!r} is named twice", f"seen: {names}",
                                        at=user_source(3)))
    return names


def size_in_scope(name: str, axis_name: str) -> int:
    """The size of a named axis, or an AxisError."""
    axes = named_axes()
    if not isinstance(axis_name, str) or axis_name not in axes:
        raise AxisError(message(f"{name}: there is no axis {axis_name!r} here",
                                f"in scope: {', '.join(map(repr, axes)) or 'none'}",
                                'way out: call it in a function that is mapped with pf.vmap(f, axis_name=...), or '
                                'sharded over a mesh with such an axis',
                                at=user_source(3)))
    return axes[axis_name]


def _varying(name: str, x: Any, names: Tuple[str, ...]) -> Array:
    """x as an array that varies over the axes, or an AxisError."""
    x = pnp.asarray(x)
    missing = [n for n in names if n not in x.aval.varying]
    if missing:
        what = x.describe() if isinstance(x, Tracer) else f"{x.aval}, a constant"
        over = ", ".join(map(repr, missing))
        times = f", multiply by pf.axis_size({over})," if name == "psum" else ""
        raise AxisError(message(
            f"{name} of a value that does not vary over {over}: it is one and the same in all lanes",
            f"the value: {what}", f"way out: leave {name} out{times} or say with "
            f"pf.pvary(x, {over}) that each lane contributes its own", at=user_source(4)))
    return x


def _place(name: str, axis: int, ndim: int) -> int:
    """An axis counted from the front."""
    axis = known(f"{name}: an axis", axis)
    if not isinstance(axis, (int, np.integer)) or not -ndim <= axis < ndim:
        raise ShapeError(message(f"{name}: axis {axis!r} is not an axis of a value of rank {ndim}", at=user_source(4)))
    return int(axis) % ndim
