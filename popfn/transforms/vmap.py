"""vmap of jaxprs: every equation over one more axis, by the primitives' batch rules.

Only what depends on a mapped input gets the axis; it may have another place in each value. An equation that nothing
mapped goes into is recorded once, as it is.
"""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..trace.aval import Aval
from ..trace.errors import JaxprError, MissingRuleError, located
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal
from ..trace.primitive import MappedAxis
from ..trace.prims.memory import place
from ..trace.prims.shaping import in_lanes
from ..trace.tracer import Trace, aval_of, bind
from . import replay

Places = Tuple[Optional[int], ...]


class Batched(NamedTuple):
    """A jaxpr over one more axis, and where its outputs have it; None for those that are equal in all lanes."""

    jaxpr: Jaxpr
    dims: Places


def batch_jaxpr(jaxpr: Jaxpr, axis: MappedAxis, dims: Places, in_front: Tuple[bool, ...] = ()) -> Batched:
    """The jaxpr over the axis, which its inputs have at `dims`; remembered.

    Outputs in the mask `in_front` get the axis in front, even if they are equal in all lanes.
    """
    def make() -> Batched:
        with Trace(jaxpr.name) as trace:
            args = [trace.input(mapped_aval(a, axis, d)) for a, d in zip(jaxpr.in_avals, dims)]
            outs, out_dims = push_lanes(trace, jaxpr, axis, args, dims)
            for i, on in enumerate(in_front):
                if on:
                    outs[i], out_dims[i] = lanes_in_front(outs[i], out_dims[i], axis), 0
            result = trace.finish(outs)
        return Batched(replay.checked(result), tuple(out_dims))
    return jaxpr.remember(("vmap", axis, dims, in_front), make)


def lanes_in_front(x: Any, dim: Optional[int], axis: MappedAxis) -> Any:
    """x with the mapped axis in front, repeated along it if it has none, in the memory where it lies."""
    return place(in_lanes(x, dim, axis), aval_of(x).memory)


def mapped_aval(aval: Aval, axis: MappedAxis, dim: Optional[int]) -> Aval:
    """The type of a value of this type with the mapped axis at `dim`."""
    if axis.name in aval.varying:
        aval = aval.over(aval.varying - {axis.name})
    return aval if dim is None else aval.with_shape(aval.shape[:dim] + (axis.size,) + aval.shape[dim:])


def lane_aval(aval: Aval, dim: int, axis: MappedAxis) -> Aval:
    """The type of one lane of a value with the mapped axis at `dim`."""
    lane = aval.with_shape(aval.shape[:dim] + aval.shape[dim + 1:])
    return lane if axis.name is None else lane.over(aval.varying | {axis.name})


def push_lanes(trace: Trace, jaxpr: Jaxpr, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Optional[int]],
               ) -> Tuple[List[Any], List[Optional[int]]]:
    """The outputs for mapped inputs under `trace`, and where they have the axis."""
    env: Dict[Any, Any] = replay.start_env(jaxpr, args)
    places: Dict[Atom, int] = {v: d for v, d in zip(jaxpr.inputs, dims) if d is not None}
    checks = replay.checks_are_on()
    with replay.sources(trace):
        for eqn in jaxpr.eqns:
            primitive, inputs, outputs, trace.source = eqn
            operands: List[Any] = []
            at: List[Optional[int]] = []
            mapped = axis.name is not None and primitive.uses_axis(axis.name)
            for a in inputs:
                if type(a) is Literal:
                    operands.append(lane_literal(a, axis))
                    at.append(None)
                    continue
                operands.append(env[a])
                dim = places.get(a)
                at.append(dim)
                if dim is not None:
                    mapped = True
            dims_out: Any = (None,) * len(outputs) if primitive.multiple else None
            if not mapped:
                out = bind(primitive, operands)
            else:
                try:
                    out, dims_out = primitive.batch(axis, operands, at)
                except MissingRuleError as e:
                    raise located(e, eqn.source) from None
            if not primitive.multiple:  # most of them, and so without a loop
                v, = outputs
                env[v] = out
                if dims_out is not None:
                    places[v] = dims_out
                out, dims_out = (out,), (dims_out,)
            else:
                env.update(zip(outputs, out))
                places.update((v, d) for v, d in zip(outputs, dims_out) if d is not None)
            if checks:
                check_types(eqn, axis, out, dims_out)
    outs = [lane_literal(a, axis) if isinstance(a, Literal) else env[a] for a in jaxpr.outputs]
    return outs, [places.get(a) for a in jaxpr.outputs]


def lane_literal(a: Literal, axis: MappedAxis) -> Literal:
    """A literal outside of the mapped axis."""
    return Literal(a.value, mapped_aval(a.aval, axis, None)) if axis.name in a.aval.varying else a


def check_types(eqn: Eqn, axis: MappedAxis, results: Sequence[Any], dims: Sequence[Optional[int]]) -> None:
    """Raise JaxprError unless a batch rule gave results of the equation's types with the mapped axis."""
    got = [aval_of(x) for x in results]
    want = [mapped_aval(v.aval, axis, d) for v, d in zip(eqn.outputs, dims)]
    if got != want or len(got) != len(eqn.outputs):
        raise JaxprError(f"the batch rule of {eqn.primitive.name} gives {', '.join(map(str, got))}, but the results "
                         f"over the mapped axis are {', '.join(map(str, want))}")
