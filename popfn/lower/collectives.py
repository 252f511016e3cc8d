"""Collectives over the axes of a mesh in PopXL: over the groups of replicas that differ along these axes alone."""
from __future__ import annotations

from itertools import chain
from typing import Any, Callable, Dict, Iterator, List

import numpy as np

from ..trace.aval import AxisNames
from ..trace.errors import LoweringError, message
from ..trace.jaxpr import Atom, Eqn, Jaxpr
from ..trace.prims.collectives import (
    AllGather,
    AllToAll,
    AxisIndex,
    Collective,
    OwnSlice,
    Pmax,
    Pmin,
    Ppermute,
    Psum,
    Pvary,
)
from ..transforms.cond import Cond
from ..transforms.loop import While
from ..transforms.shard import Axes
from .replicas import groups

OPS = {Psum: "add", Pmax: "max", Pmin: "min"}


def meetings(primitive: Collective, mesh: Axes) -> List[AxisNames]:
    """The axes along which replicas meet, one after the other: PopXL wants a group to have one stride."""
    if isinstance(primitive, Pvary):
        return []
    names = frozenset(primitive.axes)
    return [names] if groups(mesh, names)[0] is not None else [frozenset((name,)) for name in sorted(names)]


def check_branch(eqn: Eqn) -> None:
    """Raise LoweringError for a branch or loop that only some replicas get to, if it has what all take part in."""
    primitive: Any = eqn.primitive
    differs = eqn.inputs[0].aval if isinstance(primitive, Cond) else primitive.cond.out_avals[0] if isinstance(
        primitive, While) else None
    if differs is None or not differs.varying:
        return
    for name in chain.from_iterable(map(taken_part_in, primitive.jaxprs)):
        raise LoweringError(message(
            f"{primitive.name}: its condition varies over {', '.join(map(repr, sorted(differs.varying)))}, and all "
            f"replicas take part in {name}, which is in it",
            f"way out: use {name} outside, and pass what it gives", at=eqn.source))


def taken_part_in(jaxpr: Jaxpr) -> Iterator[str]:
    """The names of the collectives of a jaxpr, and of those that it holds."""
    for eqn in jaxpr.eqns:
        if isinstance(eqn.primitive, Collective) and not isinstance(eqn.primitive, Pvary):
            yield eqn.primitive.name
        for held in getattr(eqn.primitive, "jaxprs", ()):
            yield from taken_part_in(held)


def scatters(jaxpr: Jaxpr) -> Dict[Atom, Atom]:
    """For each sum over replicas of which each keeps its own element alone, what is added up.

    That is one operation in PopXL, a reduce-scatter.
    """
    found: Dict[Atom, Atom] = {}
    for eqn in jaxpr.eqns:
        if isinstance(eqn.primitive, Psum) and len(eqn.primitive.names) == 1 and eqn.outputs[0] not in jaxpr.outputs:
            uses = [e.primitive for e in jaxpr.eqns if eqn.outputs[0] in e.inputs]
            if len(uses) == 1 and isinstance(uses[0], OwnSlice) and uses[0].axis_name == eqn.primitive.names[0]:
                found[eqn.outputs[0]] = eqn.inputs[0]
    return found


def reduce_scattered(primitive: OwnSlice, px: Any, group_of: Callable[[AxisNames], Any], x: Any) -> Any:
    """Each replica's own element, along an axis, of the sum of all their values."""
    order = [primitive.axis, *(i for i in range(len(x.shape)) if i != primitive.axis)]
    moved = px.ops.transpose(x, order) if primitive.axis else x
    flat = px.ops.collectives.replicated_reduce_scatter(moved, "add", group_of(frozenset((primitive.axis_name,))))
    return px.ops.reshape(flat, tuple(moved.shape[1:]))


def lowered(primitive: Collective, px: Any, mesh: Axes, group_of: Callable[[AxisNames], Any], *tensors: Any) -> Any:
    """The result of a collective over axes of a mesh; `group_of` gives the replica grouping of some of them."""
    if isinstance(primitive, Pvary):
        return tensors[0]
    if isinstance(primitive, (Psum, Pmax, Pmin)):
        y = tensors[0]
        for names in meetings(primitive, mesh):
            y = px.ops.collectives.replicated_all_reduce(y, OPS[type(primitive)], group_of(names))
        return y
    found: Any = primitive
    group = group_of(frozenset((found.axis_name,)))
    if isinstance(primitive, AxisIndex):
        return own_element(px, np.arange(primitive.size, dtype=np.int32), group)
    x, = tensors
    if isinstance(primitive, OwnSlice):
        return px.ops.collectives.replicated_slice(x, primitive.axis, group)
    if x.shape:
        gathered = px.ops.collectives.replicated_all_gather(x, 0, group, "new_axis")
    else:  # there is no axis 0 to put a new one before
        gathered = px.ops.collectives.replicated_all_gather(px.ops.reshape(x, (1,)), 0, group, "concat")
    if isinstance(primitive, AllGather):
        return with_axis_at(px, gathered, primitive.axis)
    if isinstance(primitive, AllToAll):
        mine = px.ops.collectives.replicated_slice(gathered, primitive.split + 1, group)
        return with_axis_at(px, mine, primitive.concat)
    assert isinstance(primitive, Ppermute)
    source: Dict[int, int] = {target: lane for lane, target in primitive.pairs}
    lanes = np.array([source.get(k, 0) for k in range(primitive.size)], np.uint32)
    lane = px.ops.reshape(own_element(px, lanes, group), (1,))
    y = px.ops.reshape(px.ops.dynamic_slice(gathered, lane, [0], [1], True), tuple(x.shape))
    if len(source) == primitive.size:
        return y
    gets = own_element(px, np.array([k in source for k in range(primitive.size)]), group)
    return px.ops.where(gets, y, px.constant(0, x.dtype))


def own_element(px: Any, table: np.ndarray, group: Any) -> Any:
    """On each replica of a group its own element of a table, a scalar."""
    return px.ops.collectives.replicated_slice(px.constant(table, getattr(px, table.dtype.name)), 0, group)


def with_axis_at(px: Any, x: Any, axis: int) -> Any:
    """x with its first axis at another place."""
    order = list(range(1, len(x.shape)))
    order.insert(axis, 0)
    return px.ops.transpose(x, order) if axis else x
