"""Collectives over the axes of a mesh in PopXL: over the groups of replicas that differ along these axes alone."""
from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from ..trace.aval import DEVICE, AxisNames
from ..trace.errors import LoweringError, message
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal
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
    psum,
)
from ..trace.prims.elementwise import Convert, Div
from ..trace.prims.kinds import Add, Mul, Neg, SafeMul, Sub
from ..trace.prims.memory import Place
from ..trace.prims.shaping import Reshape, Transpose
from ..trace.prims.structural import Pad, Slice, Squeeze
from ..trace.tracer import Trace, aval_of, bind, literal
from ..transforms.cond import Cond
from ..transforms.loop import While
from ..transforms.replay import checked, sources, start_env, with_jaxprs
from ..transforms.shard import Axes
from ..transforms.simplify import without_dead_code
from .replicas import groups

OPS = {Psum: "add", Pmax: "max", Pmin: "min"}
#: What may be done to own elements alone, on its way from a sum over replicas to them.
BY_ELEMENT = (Add, Sub, Neg, Mul, SafeMul, Div, Convert)


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


def sums_scattered(jaxpr: Jaxpr) -> Jaxpr:
    """The program in which a replica takes its own element of a sum over replicas itself, so that `scatters` finds it.

    It may be taken of what is made of the sum, if nothing else is: by operations that only move elements, which then
    come before the sum, or that work element by element, which then work on own elements. A sum over other axes too is
    finished on own elements. But for the order of such sums no value changes. Remembered.
    """
    def make() -> Jaxpr:
        if not has_own_slice(jaxpr):
            return jaxpr
        with Trace(jaxpr.name) as trace, sources(trace):
            env: Dict[Any, Any] = start_env(jaxpr, trace.add_inputs(jaxpr.in_avals))
            early = _EarlySlices(jaxpr, env)
            for eqn in jaxpr.eqns:
                trace.source = eqn.source
                if isinstance(eqn.primitive, OwnSlice):
                    env[eqn.outputs[0]] = early.taken(eqn.inputs[0], [eqn.primitive])
                    continue
                out = bind(with_jaxprs(eqn.primitive, sums_scattered), [env.get(a, a) for a in eqn.inputs])
                env.update(zip(eqn.outputs, out if eqn.primitive.multiple else (out,)))
            return checked(without_dead_code(trace.finish([env.get(a, a) for a in jaxpr.outputs])))
    found: Jaxpr = jaxpr.remember("sums scattered", make)
    return found


def has_own_slice(jaxpr: Jaxpr) -> bool:
    """Whether replicas take own elements in a program, or in a jaxpr that it holds."""
    found: bool = jaxpr.remember("has own slice", lambda: any(
        isinstance(eqn.primitive, OwnSlice) or any(map(has_own_slice, getattr(eqn.primitive, "jaxprs", ())))
        for eqn in jaxpr.eqns))
    return found


class _EarlySlices:
    """Of the values of a jaxpr, as they are in `env`, what is left of them after some last steps."""

    def __init__(self, jaxpr: Jaxpr, env: Dict[Any, Any]) -> None:
        self.env = env
        self.made: Dict[Atom, Eqn] = {e.outputs[0]: e for e in jaxpr.eqns if not e.primitive.multiple}
        self.uses = Counter(chain(jaxpr.outputs, *(set(e.inputs) for e in jaxpr.eqns)))

    def taken(self, a: Atom, steps: List[Any]) -> Any:
        """The value after these steps, of which the last one is an OwnSlice."""
        if not self.reaches_sum(a, steps):
            return after(steps, self.env.get(a, a))
        primitive, inputs, _, _ = self.made[a]
        if isinstance(primitive, Psum):
            name = steps[-1].axis_name
            own = bind(steps[-1], (psum(after(steps[:-1], self.env.get(inputs[0], inputs[0])), (name,)),))
            rest = tuple(n for n in primitive.names if n != name)
            return psum(own, rest) if rest else own
        if isinstance(primitive, Place):
            return self.taken(self.stored(inputs[0]), steps)
        if only_moves(primitive, inputs):
            return self.taken(inputs[0], [primitive, *steps])
        every = scalars(self.made[a])
        parts = {b: self.env.get(b, b) if b in every else self.taken(b, steps) for b in inputs}
        return bind(primitive, [parts[b] for b in inputs])

    def reaches_sum(self, a: Optional[Atom], steps: Sequence[Any]) -> bool:
        """Whether the steps may be done before what makes a value of a sum over the axis of the last of them."""
        eqn = None if a is None else self.made.get(a)
        if a is None or eqn is None or self.uses[a] > 1:
            return False
        primitive, inputs, (out,), _ = eqn
        if isinstance(primitive, Psum):
            return steps[-1].axis_name in primitive.names
        if isinstance(primitive, Place):
            return self.reaches_sum(self.stored(inputs[0]), steps)
        if only_moves(primitive, inputs):
            return self.reaches_sum(inputs[0], [primitive, *steps])
        padded, every = any(isinstance(step, Pad) for step in steps), scalars(eqn)
        return (isinstance(primitive, BY_ELEMENT) and all(b in every or b.aval.shape == out.aval.shape for b in inputs)
                and not (padded and makes_something_of_zeros(primitive, inputs, every))
                and any(self.reaches_sum(b, steps) for b in inputs if b not in every))

    def stored(self, a: Atom) -> Any:
        """The value on the device that was put elsewhere, from where it comes back once; None if it is another one."""
        eqn = self.made.get(a)
        there = eqn is not None and isinstance(eqn.primitive, Place) and self.uses[a] == 1
        return eqn.inputs[0] if eqn is not None and there and eqn.inputs[0].aval.memory == DEVICE else None


def only_moves(primitive: Any, inputs: Sequence[Atom]) -> bool:
    """Whether a primitive moves elements, and puts at most zeros between them."""
    return isinstance(primitive, (Reshape, Squeeze, Transpose, Slice)) or isinstance(primitive, Pad) and isinstance(
        inputs[1], Literal) and not inputs[1].value.any()


def scalars(eqn: Eqn) -> List[Atom]:
    """The operands of an elementwise operation that are one number for all elements."""
    return [b for b in eqn.inputs if not b.aval.ndim and (isinstance(b, Literal) or eqn.outputs[0].aval.ndim)]


def makes_something_of_zeros(primitive: Any, inputs: Sequence[Atom], every: Sequence[Atom]) -> bool:
    """Whether a primitive may give another element than zero where all operands are zero but the numbers in `every`."""
    if isinstance(primitive, Div):
        return not (isinstance(inputs[1], Literal) and inputs[1].value != 0)
    if isinstance(primitive, (Add, Sub)):
        return bool(every)
    return isinstance(primitive, Mul) and not all(isinstance(b, Literal) and np.isfinite(b.value) for b in every)


def after(steps: Sequence[Any], x: Any) -> Any:
    """x after some steps: moves, pads of zeros, an own slice."""
    for step in steps:
        x = bind(step, (x, literal(0, aval_of(x)))) if isinstance(step, Pad) else bind(step, (x,))
    return x


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
