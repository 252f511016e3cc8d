"""Programs that are linear in some of their inputs: what depends on those apart from what does not."""
from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Set

from ..trace.errors import ArgumentError, message, where
from ..trace.jaxpr import Atom, Eqn, Jaxpr
from ..trace.primitive import Zero
from ..trace.prims import instantiate
from ..trace.tracer import Trace
from .call import Call
from .checkpoint import Checkpoint
from .differentiate import Mask, jvp_jaxpr, linearize_jaxpr
from .inlining import inlined
from .replay import checked, inline, jaxprs_of
from .simplify import without_dead_code


class Parts(NamedTuple):
    """A program that is linear in some inputs, cut in two.

    `fixed` takes the other inputs; it gives the outputs that do not depend on the linear ones, then the residuals.
    `linear` takes the residuals and the linear inputs; it gives the outputs in `moves`.
    """

    fixed: Jaxpr
    linear: Jaxpr
    moves: Mask


def linear_parts(jaxpr: Jaxpr, mask: Mask, fault: str) -> Parts:
    """Cut a program that is linear in the inputs in the mask; remembered.

    A linear function is its own derivative, anywhere: it is linearized at zero. Raises ArgumentError, which begins with
    `fault` and names the user's line, if a residual depends on one of those inputs.
    """
    def make() -> Parts:
        cut = linearize_jaxpr(inlined(jaxpr, (Call,)), mask)
        forward = cut.forward
        residuals: List[Atom] = [(forward.inputs if place == "input" else forward.outputs)[i]
                                 for place, i in cut.residuals]
        still = [a for a, on in zip(forward.outputs, cut.moves) if not on]
        forward = without_dead_code(Jaxpr(forward.inputs, still + residuals, forward.eqns, forward.constvars,
                                          forward.constants, jaxpr.name))
        # A checkpoint's tangents are found in one equation with its results, which may be all that is used of it.
        linear = flattened(cut.linear)
        taken = {a for eqn in linear.eqns for a in eqn.inputs}.union(linear.outputs)
        flat = flattened(Jaxpr(forward.inputs, still + [a for v, a in zip(linear.inputs, residuals) if v in taken],
                               forward.eqns, forward.constvars, forward.constants))
        culprit, unsure = dependent(flat, mask)
        if unsure and not culprit and any(jvp_jaxpr(flat, mask).moves):
            culprit = unsure
        moving = {v for v, on in zip(forward.inputs, mask) if on}
        inside = {v for v, a in zip(linear.inputs, residuals) if a in moving}
        culprit = culprit or next((e for e in linear.eqns if not inside.isdisjoint(e.inputs)), None)
        if culprit:
            raise ArgumentError(message(fault, f"seen: {where(culprit.source)}"))
        with Trace(jaxpr.name) as trace:
            args: List[Any] = [instantiate(Zero(a)) if on else trace.input(a) for a, on in zip(jaxpr.in_avals, mask)]
            fixed = trace.finish(inline(forward, args))
        return Parts(checked(without_dead_code(fixed)), cut.linear, cut.moves)
    return jaxpr.remember(("linear parts", mask), make)


def flattened(jaxpr: Jaxpr) -> Jaxpr:
    """The program in which what is computed and not used has no place to hide."""
    return without_dead_code(inlined(jaxpr, (Call, Checkpoint), deep=True), operands=True)


class Dependent(NamedTuple):
    """The first equation that takes what some inputs make, and the first with jaxprs, whose results may not."""

    simple: Optional[Eqn]
    holding: Optional[Eqn]


def dependent(jaxpr: Jaxpr, mask: Sequence[bool]) -> Dependent:
    """The equations that depend on the inputs in the mask. What comes out of one with jaxprs is not followed."""
    known: Set[Atom] = {v for v, on in zip(jaxpr.inputs, mask) if on}
    simple = holding = None
    for eqn in jaxpr.eqns:
        if any(a in known for a in eqn.inputs):
            if any(map(jaxprs_of, eqn.primitive.params().values())):
                holding = holding or eqn
            else:
                simple = simple or eqn
                known.update(eqn.outputs)
    return Dependent(simple, holding)
