"""What the primitives that hold jaxprs share: making new bodies of old ones, and the graphs that bodies become."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from ..trace.aval import DEVICE, HOST, NO_AXES, REMOTE, Aval, AxisNames, Shape, bool_
from ..trace.errors import AxisError, MissingRuleError, located, message
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var, names
from ..trace.primitive import MIXED, MappedAxis, Primitive, Zero
from ..trace.prims import instantiate
from ..trace.prims.collectives import AxisIndex, Collective, Psum, Pvary, psum, pvary
from ..trace.prims.memory import Place, place
from ..trace.prims.shaping import Broadcast
from ..trace.tracer import Trace, bind, current_trace
from .differentiate import spread
from .replay import checked, inline, start_env
from .simplify import without_dead_code

Mask = Tuple[bool, ...]
Names = Tuple[str, ...]


class HoldsJaxprs(Primitive):
    """A primitive that holds jaxprs; their inputs say how its operands are placed, in `operand_placements`.

    Where operands vary over more axes, its jaxprs are made anew for that by `widened`.
    """

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        out = self.abstract(*avals)
        return out if [a.placement for a in avals] == list(self.operand_placements(avals)) else MIXED

    def uses_axis(self, name: str) -> bool:
        return any(is_over(jaxpr, name) for jaxpr in getattr(self, "jaxprs", ()))


# ---------------------------------------------------------------------------- values by groups
def cut(xs: Sequence[Any], *sizes: int) -> List[List[Any]]:
    """The values in groups of these sizes; the last group is what is left."""
    out, at = [], 0
    for n in sizes:
        out.append(list(xs[at:at + n]))
        at += n
    return [*out, list(xs[at:])]


def chosen(xs: Sequence[Any], mask: Sequence[bool]) -> List[Any]:
    """The values at the places in the mask."""
    return [x for x, on in zip(xs, mask) if on]


def others(xs: Sequence[Any], mask: Sequence[bool]) -> List[Any]:
    """The values at the places that are not in the mask."""
    return [x for x, on in zip(xs, mask) if not on]


def moving(xs: Sequence[Any]) -> Mask:
    """Which tangents or cotangents are not symbolic zeros."""
    return tuple(type(x) is not Zero for x in xs)


def either(*masks: Sequence[bool]) -> Mask:
    """The places that are in one of the masks."""
    return tuple(any(row) for row in zip(*masks))


# ---------------------------------------------------------------------------- bodies
def rebuilt(name: str, avals: Sequence[Aval], f: Callable[..., Sequence[Any]]) -> Jaxpr:
    """The jaxpr of `f`, recorded on inputs of these types, as from the line that is being transformed."""
    outer = current_trace()
    with Trace(name) as trace:
        trace.source = None if outer is None else outer.source
        result = trace.finish(f(*trace.add_inputs(avals)))
    return checked(result)


def is_over(jaxpr: Jaxpr, name: str) -> bool:
    """Whether a mapped axis of this name is in the types of a jaxpr, so that vmap has to change it."""
    return jaxpr.uses_axis(name) or any(name in a.varying for a in jaxpr.in_avals + jaxpr.out_avals)


def varying(jaxpr: Jaxpr, avals: Sequence[Aval], outs: Sequence[AxisNames] = ()) -> Jaxpr:
    """The jaxpr for inputs that vary also over the axes of these types; its first outputs do over those in `outs`."""
    wide = tuple([a.over(a.varying | more.varying) for a, more in zip(jaxpr.in_avals, avals)])
    if wide == tuple(jaxpr.in_avals) and all(axes <= a.varying for a, axes in zip(jaxpr.out_avals, outs)):
        return jaxpr

    def f(*args: Any) -> Sequence[Any]:
        results = inline(jaxpr, args)
        return [pvary(y, axes) for y, axes in zip(results, outs)] + results[len(outs):]
    found: Jaxpr = jaxpr.remember(("varying", wide, tuple(outs)), lambda: rebuilt(jaxpr.name, wide, f))
    return found


def over_axes(jaxpr: Jaxpr, axes: AxisNames) -> Jaxpr:
    """The jaxpr whose inputs and outputs all vary over these axes too."""
    return varying(jaxpr, [a.over(axes) for a in jaxpr.in_avals], [axes] * len(jaxpr.outputs))


def more_axes(avals: Sequence[Aval], than: Sequence[Aval]) -> AxisNames:
    """The axes over which some of these types vary though the others do not."""
    return NO_AXES.union(*[a.varying - b.varying for a, b in zip(avals, than)])


def reordered(jaxpr: Jaxpr, inputs: Sequence[Var], outputs: Sequence[Atom]) -> Jaxpr:
    """The same equations between these inputs, all old ones among them, and these outputs."""
    return Jaxpr(inputs, outputs, jaxpr.eqns, jaxpr.constvars, jaxpr.constants, jaxpr.name)


def unplaced(jaxprs: Sequence[Jaxpr], wanted: Sequence[bool]) -> List[Jaxpr]:
    """The jaxprs without the last step of those outputs in the mask that all of them put from the device elsewhere.

    These are cotangents, which are to be added up on the device first. Some jaxprs may have one there already; what is
    made elsewhere in one of them is put there in all.
    """
    before: List[Dict[Atom, Atom]] = [{e.outputs[0]: e.inputs[0] for e in jaxpr.eqns if isinstance(
        e.primitive, Place) and e.inputs[0].aval.memory == DEVICE} for jaxpr in jaxprs]
    columns = list(zip(*[j.outputs for j in jaxprs]))
    places = {i for i, column in enumerate(columns) if wanted[i] and any(a in of for a, of in zip(column, before))
              and all(a in of or a.aval.memory == DEVICE for a, of in zip(column, before))}
    new = [without_dead_code(reordered(jaxpr, jaxpr.inputs, [
        of.get(a, a) if i in places else a for i, a in enumerate(jaxpr.outputs)])) for jaxpr, of in zip(
            jaxprs, before)] if places else list(jaxprs)
    memories = [{j.outputs[i].aval.memory for j in new} for i in range(len(columns))]
    if all(len(found) == 1 for found in memories):
        return new
    homes = [max(found, key=lambda memory: memory != DEVICE) for found in memories]
    return [rebuilt(j.name, j.in_avals, lambda *args, j=j: list(
        map(place, inline(j, args), homes))) for j in new]


def unsummed(jaxprs: Sequence[Jaxpr], wanted: Sequence[bool]) -> Tuple[List[Jaxpr], List[Names]]:
    """The jaxprs without the last step of the outputs in the mask where that is a sum over the same named axes in all.

    Also those axes for each of the outputs. These are cotangents, of which loops, branches and calls give what is to be
    added up: whoever called them adds up once, with what comes from elsewhere. A branch may give zeros instead.
    """
    sums: List[Dict[Atom, Eqn]] = [{e.outputs[0]: e for e in j.eqns if isinstance(e.primitive, Psum)} for j in jaxprs]
    for jaxpr, of in zip(jaxprs, sums):
        for a in {a for eqn in jaxpr.eqns for a in eqn.inputs} if of else ():
            of.pop(a, None)  # something else is made of it

    def axes(i: int) -> Names:
        """The axes over which all jaxprs sum the output last; none if they do not."""
        outs = [(j.outputs[i], of) for j, of in zip(jaxprs, sums) if not is_zero(j, j.outputs[i])]
        found: Set[Names] = {of[a].primitive.names if a in of else () for a, of in outs}  # type: ignore[attr-defined]
        return found.pop() if len(found) == 1 else ()
    names_of: List[Names] = [axes(i) if on and any(sums) else () for i, on in enumerate(wanted)]
    if not any(names_of):
        return list(jaxprs), names_of
    new = [without_dead_code(reordered(jaxpr, jaxpr.inputs, [
        of[a].inputs[0] if names and a in of else a for names, a in zip(names_of, jaxpr.outputs)]))
        for jaxpr, of in zip(jaxprs, sums)]
    wide = [NO_AXES.union(*[j.outputs[i].aval.varying for j in new]) for i in range(len(wanted))]
    return [varying(jaxpr, jaxpr.in_avals, wide) for jaxpr in new], names_of


def is_zero(jaxpr: Jaxpr, a: Atom) -> bool:
    """Whether an output is a zero that was written out."""
    if isinstance(a, Literal):
        return not a.value.any()
    made = next((eqn for eqn in jaxpr.eqns if a in eqn.outputs), None)
    return made is not None and isinstance(made.primitive, Broadcast) and is_zero(jaxpr, made.inputs[0])


def summed(cts: Sequence[Any], names_of: Sequence[Names]) -> List[Any]:
    """Cotangents, the first of which are still to be added up over these named axes."""
    return [psum(c, names) if names else c for c, names in zip(cts, names_of)] + list(cts[len(names_of):])


def at_home(ct: Any, aval: Aval) -> Any:
    """The cotangent of a value of this type in the memory where that lies."""
    return ct if type(ct) is Zero else place(ct, aval.memory)


def without_constants(jaxpr: Jaxpr) -> Tuple[Jaxpr, List[Any]]:
    """The jaxpr with its constants as its first inputs, and the constants, so that equal bodies become one graph."""
    if not jaxpr.constvars:
        return jaxpr, []
    inside = Jaxpr(jaxpr.constvars + jaxpr.inputs, jaxpr.outputs, jaxpr.eqns, name=jaxpr.name)
    return inside, list(jaxpr.constants)


def with_zeros(jaxpr: Jaxpr, before: int, moves: Mask, wanted: Mask, avals: Sequence[Aval]) -> Jaxpr:
    """A jaxpr that gives tangents also where they are zero.

    Behind the first `before` outputs it gives those of the values in `moves`; the new one gives all that are `wanted`.
    """
    if moves == wanted:
        return jaxpr

    def f(*args: Any) -> Sequence[Any]:
        outs = inline(jaxpr, args)
        every = spread(outs[before:], moves, avals)
        return outs[:before] + [instantiate(t) for t in chosen(every, wanted)]
    return rebuilt(jaxpr.name, jaxpr.in_avals, f)


def reach(jaxpr: Jaxpr, mask: Sequence[bool]) -> Mask:
    """Which outputs depend on the inputs in the mask."""
    known: Set[Atom] = set(chosen(jaxpr.inputs, mask))
    for eqn in jaxpr.eqns:
        if any(a in known for a in eqn.inputs):
            known.update(eqn.outputs)
    return tuple(a in known for a in jaxpr.outputs)


def behind(jaxpr: Jaxpr, mask: Sequence[bool]) -> Mask:
    """Which inputs the outputs in the mask and the effects depend on."""
    def find() -> Mask:
        inside = without_dead_code(reordered(jaxpr, jaxpr.inputs, chosen(jaxpr.outputs, mask)))
        used = {*inside.outputs, *(a for eqn in inside.eqns for a in eqn.inputs)}
        return tuple(v in used for v in jaxpr.inputs)
    found: Mask = jaxpr.remember(("behind", tuple(mask)), find)
    return found


def carried(mask: Mask, start: int, count: int, step: Callable[[Mask], Sequence[bool]]) -> Mask:
    """The least mask above this one that a loop keeps.

    `step` says which results of the body are on for inputs in a mask; the first `count` of them are the inputs from
    `start` on of the next step.
    """
    while True:
        now = mask[start:start + count]
        new = either(now, step(mask)[:count])
        if new == now:
            return mask
        mask = mask[:start] + new + mask[start + count:]


def guard(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with a bool before its inputs; where that is False, it has its results and no effects.

    A primitive with effects has a method `guarded`: the primitive and the operands to put in its place. Raises
    MissingRuleError if one has none.
    """
    def f(on: Any, *args: Any) -> Sequence[Any]:
        env: Dict[Any, Any] = start_env(jaxpr, args)
        trace = current_trace()
        for eqn in jaxpr.eqns:
            if trace is not None:
                trace.source = eqn.source
            primitive = eqn.primitive
            operands = [env[a] if isinstance(a, Var) else a for a in eqn.inputs]
            if primitive.multiple and primitive.has_effect:
                if not hasattr(primitive, "guarded"):
                    raise located(MissingRuleError(f"{primitive.name} with an effect inside, such as debug.print, "
                                                   "cannot be run for some lanes only"), eqn.source)
                primitive, operands = primitive.guarded(on, operands)
            results = bind(primitive, operands)
            env.update(zip(eqn.outputs, results if primitive.multiple else (results,)))
        return [env[a] if isinstance(a, Var) else a for a in jaxpr.outputs]
    found: Jaxpr = jaxpr.remember("guard", lambda: rebuilt(jaxpr.name, [Aval((), bool_), *jaxpr.in_avals], f))
    return found


def check_lanes_are_alone(what: str, axis: MappedAxis, jaxprs: Sequence[Jaxpr]) -> None:
    """Raise AxisError if jaxprs that some lanes run and others do not need values of all lanes."""
    trace = current_trace()
    if axis.name is not None and any(asks_lanes(jaxpr, axis.name) for jaxpr in jaxprs):
        raise AxisError(message(
            f"{what} over axis {axis.name!r}, while it depends on the lane whether they get there",
            "way out: use the collective outside, and pass what it gives", at=trace.source if trace else None))


def asks_lanes(jaxpr: Jaxpr, name: str) -> bool:
    """Whether an equation needs the values of all lanes of an axis."""
    return any(isinstance(eqn.primitive, Collective) and not isinstance(eqn.primitive, (AxisIndex, Pvary))
               and name in eqn.primitive.axes
               or any(asks_lanes(j, name) for j in getattr(eqn.primitive, "jaxprs", ())) for eqn in jaxpr.eqns)


# ---------------------------------------------------------------------------- graphs
class GraphInput(NamedTuple):
    """An input of a graph; one by reference is written to, and whoever calls the graph sees it."""

    name: str
    shape: Shape
    dtype: np.dtype
    by_reference: bool = False


class Row(NamedTuple):
    """Where an element of a stacked value lies in a remote buffer: `step` elements behind the entry `first`."""

    first: Any
    step: Any


#: The tensors of the outputs on the device, for those of the inputs, and for the entries where remote outputs go.
Equations = Callable[[Dict[Atom, Any], Sequence[Any]], List[Any]]


def is_tensor(a: Atom) -> bool:
    """Whether a graph has a tensor for the value: for one on the device itself, for a remote one the entry's number."""
    return bool(a.aval.size) and a.aval.memory != HOST


def is_far(a: Atom) -> bool:
    """Whether the value is in remote memory or with the host."""
    return bool(a.aval.size) and a.aval.memory != DEVICE


def is_remote(a: Atom) -> bool:
    """Whether the value is in remote memory."""
    return bool(a.aval.size) and a.aval.memory == REMOTE


@dataclass(frozen=True)
class Subgraph:
    """A jaxpr as a PopXL graph. Equal ones become one graph.

    `inputs` says what the graph takes: for a value in remote memory the number of its first entry in a buffer, which
    the graph knows; and last, the entries where its remote outputs go. `emit` puts the equations into it: it gets the
    tensors of the inputs, and a function that makes the outputs of the jaxpr. Neither knows values without elements.
    """

    jaxpr: Jaxpr

    def named(self, variables: Sequence[Var]) -> List[GraphInput]:
        """Inputs of the jaxpr as inputs of the graph, under the names that they have in the printed jaxpr."""
        jaxpr = self.jaxpr
        letters = dict(zip(jaxpr.constvars + jaxpr.inputs, names()))
        return [entry(letters[v]) if is_remote(v) else GraphInput(letters[v], v.aval.shape, v.aval.dtype)
                for v in variables if is_tensor(v)]

    def destinations(self) -> List[GraphInput]:
        """The entries where remote outputs go."""
        return [entry("out") for a in self.jaxpr.outputs if is_remote(a)]

    def inputs(self) -> List[GraphInput]:
        """What the graph takes, in order."""
        return self.named(self.jaxpr.inputs) + self.destinations()

    def emit(self, px: Any, equations: Equations, tensors: Sequence[Any]) -> List[Any]:
        """The outputs of the graph for the tensors of its inputs."""
        values, destinations = cut(tensors, sum(map(is_tensor, self.jaxpr.inputs)))
        return equations(dict(zip(filter(is_tensor, self.jaxpr.inputs), values)), destinations)


def entry(name: str) -> GraphInput:
    """An entry's number in a remote buffer as an input of a graph."""
    return GraphInput(f"{name}_entry", (1,), np.dtype(np.uint32))
