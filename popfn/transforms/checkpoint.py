"""Checkpoint: a function of which the backward pass keeps little, and computes again what it needs.

What is computed again stands in a jaxpr of its own, which takes what was kept and the cotangents. So no simplification
merges it with the forward pass, and it becomes a PopXL graph that runs when the cotangents are there.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, NamedTuple, Sequence, Set, Tuple, Union

import numpy as np

from ..trace.aval import Aval
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Var
from ..trace.primitive import MappedAxis, Primitive, Zero
from ..trace.prims.remote import RemoteRead
from ..trace.tracer import Trace, bind
from .bodies import guard
from .call import Call, Routine
from .differentiate import Mask, linearize_jaxpr, moving_only, spread
from .inlining import inlined
from .replay import checked, inline
from .simplify import without_dead_code

#: What is kept beside the inputs: one of POLICIES, or the values of these names (`CheckpointName`).
Policy = Union[str, Tuple[str, ...]]
POLICIES = ("nothing", "everything", "dots")
#: The primitives whose results "dots" keeps.
DOTS = frozenset(("dot_general", "conv", "matmul_pow2scaled"))


@dataclass(frozen=True)
class CheckpointName(Primitive):
    """The value itself, under a name by which a policy keeps it. Its tangent has no name."""

    label: str

    def abstract(self, x: Aval) -> Aval:
        return x

    def eval(self, x: np.ndarray) -> Any:
        return x

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        return bind(self, primals), tangents[0]

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, int]:
        return bind(self, args), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        return x


@dataclass(frozen=True)
class Checkpoint(Routine):
    """The outputs of a jaxpr for the operands; of what its derivative needs, only what `policy` says is kept."""

    jaxpr: Jaxpr
    policy: Policy = "nothing"

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        cut = rematerialized(self.jaxpr, self.policy, tuple(type(t) is not Zero for t in tangents))
        results = bind(self.of(cut.forward), primals)
        n = len(cut.moves)
        kept = [*(primals[i] for i in cut.inputs), *results[n:]]
        touts = bind(self.of(cut.linear), [*kept, *moving_only(tangents)])
        return results[:n], spread(touts, cut.moves, self.jaxpr.out_avals)


class Rematerialized(NamedTuple):
    """A program cut in two, the second of which computes again what it needs of the first.

    `forward` takes the inputs and gives the outputs and what is kept. `linear` takes the inputs numbered by `inputs`,
    what is kept and the tangents in the mask; it gives the tangents of the outputs in `moves`.
    """

    forward: Jaxpr
    linear: Jaxpr
    inputs: Tuple[int, ...]
    moves: Mask


def rematerialized(jaxpr: Jaxpr, policy: Policy, mask: Mask) -> Rematerialized:
    """Cut a jaxpr in two for tangents of the inputs in the mask, keeping what the policy says; remembered."""
    def make() -> Rematerialized:
        # What a policy looks for may stand in functions that are called. It does not look into loops and branches.
        body = jaxpr if policy == "nothing" else inlined(jaxpr, (Call,))
        forward, linear, places, moves = linearize_jaxpr(body, mask)
        residuals = [(forward.inputs if where == "input" else forward.outputs)[i] for where, i in places]
        again, kept = recomputed(forward, residuals, policy)
        taken = [v for v in forward.inputs if v in again.inputs]
        outputs = [*forward.outputs[:len(moves)], *kept]
        first = without_dead_code(Jaxpr(forward.inputs, outputs, forward.eqns, forward.constvars, forward.constants,
                                        jaxpr.name))
        with Trace(f"linear({jaxpr.name})") as trace:
            values = [trace.input(v.aval) for v in again.inputs]
            tangents = [trace.input(a) for a, on in zip(jaxpr.in_avals, mask) if on]
            found = inline(guard(again), [np.False_, *values]) if again.has_effect else inline(again, values)
            second = trace.finish(inline(linear, [*found, *tangents]))
        return Rematerialized(checked(first), checked(second), tuple(map(forward.inputs.index, taken)), moves)
    return jaxpr.remember(("checkpoint", policy, mask), make)


def recomputed(forward: Jaxpr, residuals: Sequence[Atom], policy: Policy) -> Tuple[Jaxpr, List[Var]]:
    """The program that computes the residuals from inputs of `forward` and what is kept of it, and what that is."""
    may_keep: Set[Atom] = {a for eqn in forward.eqns for a in values_kept(eqn, policy)} - {*forward.inputs}
    needed: Set[Atom] = set(residuals)
    eqns: List[Eqn] = []
    for eqn in reversed(forward.eqns):
        if any(v in needed and v not in may_keep for v in eqn.outputs):
            may_keep.difference_update(eqn.outputs)
            needed.update(eqn.inputs)
            eqns.append(eqn)
    inputs = [v for v in forward.inputs if v in needed]
    kept = [v for eqn in forward.eqns for v in eqn.outputs if v in needed and v in may_keep]
    return without_dead_code(Jaxpr([*inputs, *kept], residuals, eqns[::-1], forward.constvars, forward.constants,
                                   forward.name)), kept


def values_kept(eqn: Eqn, policy: Policy) -> Sequence[Atom]:
    """What a policy keeps at an equation: its results, or the value that it gives a name.

    What was read from a buffer is kept by all of them: something else may lie there by the time of the second pass.
    """
    if reads_buffer(eqn):
        return eqn.outputs
    if isinstance(policy, str):
        return eqn.outputs if policy == "everything" or policy == "dots" and eqn.primitive.name in DOTS else ()
    named = isinstance(eqn.primitive, CheckpointName) and eqn.primitive.label in policy
    return [a for a in eqn.inputs if named and isinstance(a, Var)]


def reads_buffer(eqn: Eqn) -> bool:
    """Whether the equation, or one in a jaxpr that it holds, reads a remote buffer."""
    primitive: Any = eqn.primitive
    return isinstance(primitive, RemoteRead) or any(
        any(map(reads_buffer, jaxpr.eqns)) for jaxpr in getattr(primitive, "jaxprs", ()))
