"""vmap as a user meets it: which leaves have the mapped axis, and where."""
from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Union

from . import _tracing as tracing, numpy as pnp
from ._axes import argument_axes, argument_entries, result_entries
from ._promotion import known
from .api import Function, decorator, is_index, wraps
from .trace import tree
from .trace.aval import Aval
from .trace.errors import ArgumentError, function_name, message, user_source
from .trace.primitive import MappedAxis
from .transforms.replay import inline
from .transforms.vmap import batch_jaxpr, lane_aval


@decorator
def vmap(f: Function, in_axes: Any = 0, out_axes: Any = 0, *, axis_size: Optional[int] = None,
         axis_name: Optional[str] = None) -> Function:
    """A function that applies `f` to each element along an axis of its arguments, as one program over that axis.

    `in_axes` says which axis of each array is mapped: an integer (negative ones count from the end), None for what is
    the same for every element, or a tuple with such an entry for each positional argument, where an entry may be a tree
    whose leaves stand above the argument's. Arguments by keyword are mapped over their first axis. `out_axes` says
    where the results have the axis, an integer or a tree of them; None is for results that do not depend on mapped
    ones. `axis_size` is needed only where nothing is mapped. With an `axis_name`, collectives such as `psum` work
    between the elements, which are the lanes of that axis.

    Derivatives that are taken inside, over a named axis, are those of the one function of all lanes. What does not vary
    over the axis is one value for all lanes, so that its gradient (`grad`, `vjp`, `jacrev`) is the sum of what the
    lanes contribute, the same in each of them; without a name the lanes are on their own. `pvary` says first that each
    lane has its own. In forward mode (`jvp`, `linearize`, `jacfwd`) a lane gives the derivative of its own result, one
    part of the result of all lanes along one direction; reverse mode is the transpose of that.

    Raises ArgumentError that names the arguments if sizes along the axis differ, if an array has no such axis, or if a
    result with `out_axes` None does depend on the element.

    >>> import numpy as np
    >>> vmap(lambda x, y: x @ y, in_axes=(0, None))(np.eye(2, dtype=np.float32), np.array([3.0, 4.0], np.float32))
    Array([3., 4.], dtype=float32)
    >>> import popfn as pf
    >>> xs = np.array([1.0, 2.0, 3.0], np.float32)
    >>> vmap(pf.grad(lambda w, x: w * x), in_axes=(None, 0), axis_name="i")(2.0, xs)
    Array([6., 6., 6.], dtype=float32)
    >>> vmap(lambda w, x: pf.grad(lambda w: w * x)(pf.pvary(w, "i")), in_axes=(None, 0), axis_name="i")(2.0, xs)
    Array([1., 2., 3.], dtype=float32)
    >>> vmap(pf.jacfwd(lambda w, x: w * x), in_axes=(None, 0), axis_name="i")(2.0, xs)
    Array([1., 2., 3.], dtype=float32)
    """
    axis_size = known("vmap: axis_size", axis_size)
    if axis_name is not None and not (isinstance(axis_name, str) and axis_name.isidentifier()):
        raise ArgumentError(message(f"vmap: axis_name is a name, got {axis_name!r}", at=user_source(2)))

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = tracing.arguments("vmap", f, args, kwargs, arrays=True)
        entries = argument_entries("vmap", "in_axes", f, in_axes, given, 0)
        dims = argument_axes("vmap", f, entries, given, "map over", "what is the same for every element")
        size = _size(f, given, dims, axis_size)
        axis = MappedAxis(size, axis_name)
        lanes = [a if d is None else lane_aval(a, d, axis) for a, d in zip(given.avals, dims)]
        traced = tracing.trace(f, given._replace(avals=lanes), axes={axis_name: size} if axis_name else None)
        wanted = result_entries("vmap", "out_axes", f, out_axes, traced)
        every = (None,) * len(traced.captures) + tuple(dims)
        batched = batch_jaxpr(traced.jaxpr, axis, every)
        outs = inline(batched.jaxpr, [*traced.captures, *given.leaves], once=True)
        return traced.outputs([
            _placed(f, traced, i, *result, axis) for i, result in enumerate(zip(outs, batched.dims, wanted))])
    return wrapper


def _size(f: Function, given: tracing.Arguments, dims: Sequence[Optional[int]], axis_size: Optional[int]) -> int:
    """The size of the mapped axis."""
    sizes: Dict[int, int] = {}  # a size and the first leaf that has it
    for i, (d, aval) in enumerate(zip(dims, given.avals)):
        if d is not None:
            sizes.setdefault(aval.shape[d], i)
    if axis_size is not None and (not is_index(axis_size) or axis_size < 0):
        raise ArgumentError(message(f"vmap: axis_size is a size of 0 or more, got {axis_size!r}", at=user_source(3)))
    if not sizes and axis_size is None:
        raise ArgumentError(message(f"vmap: no argument of {function_name(f)} is mapped, so that the size is not known",
                                    "way out: give an argument an axis in in_axes, or pass axis_size=",
                                    at=user_source(3)))
    if len(sizes) > 1 or axis_size is not None and any(n != axis_size for n in sizes):
        paths = tracing.leaf_names(f, given.args, given.kwargs)
        seen = [f"{n} along axis {dims[i]} of {paths[i]}, {given.avals[i]}" for n, i in sizes.items()]
        seen += [f"axis_size={axis_size}"] * (axis_size is not None)
        raise ArgumentError(message(f"vmap: the mapped axes of {function_name(f)}'s arguments differ in size",
                                    *(f"seen: {s}" for s in seen), at=user_source(3)))
    return next(iter(sizes)) if axis_size is None else int(axis_size)


def _placed(f: Function, traced: tracing.Traced, i: int, x: Any, dim: Optional[int], want: Union[None, int, Any],
            axis: MappedAxis) -> Any:
    """A result with the axis where it is wanted."""
    aval: Aval = traced.jaxpr.out_avals[i]

    def fault(text: str, way: Optional[str]) -> ArgumentError:
        path = tree.paths(traced.out_tree, "result")[i]
        return ArgumentError(message(f"vmap: {path} of {function_name(f)}, {aval} for each element, {text}",
                                     f"way out: {way}" if way else None, at=user_source(4)))
    want = known("vmap: an axis in out_axes", want)
    if want is None:
        if dim is not None:
            raise fault("depends on the element, but out_axes says None", "give it an axis in out_axes")
        return x
    if not is_index(want) or not -aval.ndim - 1 <= want <= aval.ndim:
        raise fault(f"cannot have the mapped axis at {want!r}", None)
    if dim is None:
        x, dim = pnp.broadcast_to(x, (axis.size, *aval.shape)), 0
    return pnp.moveaxis(x, dim, int(want))
