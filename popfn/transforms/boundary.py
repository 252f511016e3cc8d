"""Constants of a loop that come to vary over named axes in it: they may as well at its boundary.

The transpose of a `pvary` is a sum over lanes. In the loop there is one in each step; at the boundary there is one for
all steps, of what they have added up.
"""
from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from ..trace.aval import DEVICE, AxisNames
from ..trace.jaxpr import Atom, Jaxpr
from ..trace.prims.collectives import Pvary


def boundary_axes(jaxpr: Jaxpr, moving: Sequence[bool]) -> Tuple[AxisNames, ...]:
    """For each constant of a loop the axes over which it may vary from the boundary on; none if it is not `moving`.

    They are those over which something comes to vary that is made of constants alone. What differs from step to step
    and is equal in all lanes stays so: it may be kept in parts, and its cotangent is added up anyway.
    """
    found: List[Set[str]] = [set() for _ in moving]
    for name in sorted(set(varied(jaxpr))):
        places = at_boundary(jaxpr, moving, name)
        for i, names in enumerate(found):
            if places >> i & 1:
                names.add(name)
    return tuple(map(frozenset, found))


def varied(jaxpr: Jaxpr) -> Iterator[str]:
    """The axes over which something comes to vary in a jaxpr, or in one that it holds."""
    for eqn in jaxpr.eqns:
        if isinstance(eqn.primitive, Pvary):
            yield from eqn.primitive.names
        for held in getattr(eqn.primitive, "jaxprs", ()):
            yield from varied(held)


def at_boundary(jaxpr: Jaxpr, moving: Sequence[bool], name: str) -> int:
    """The numbers of the constants that may vary over one axis from the boundary on, as the bits of an integer."""
    behind: Dict[Atom, int] = {}  # for what would vary, of which constants it is made
    for i, (v, on) in enumerate(zip(jaxpr.inputs, moving)):
        if on and v.aval.memory == DEVICE and name not in v.aval.varying:
            behind[v] = 1 << i
    changing: Set[Atom] = set(jaxpr.inputs[len(moving):])  # from step to step
    wanted = refused = 0
    for eqn in jaxpr.eqns:
        primitive: Any = eqn.primitive
        bits, changes = 0, False
        for a in eqn.inputs:
            bits |= behind.get(a, 0)
            changes = changes or a in changing
        if changes:
            changing.update(eqn.outputs)
        if not bits:
            continue
        held = getattr(primitive, "jaxprs", ())
        if isinstance(primitive, Pvary) and name in primitive.names or any(name in varied(j) for j in held):
            wanted |= bits
        if primitive.has_effect or len(held) > 1:  # lanes would part in a branch, or write what is one for all
            refused |= bits
        for v in eqn.outputs:
            if name not in v.aval.varying:
                behind[v] = bits
                if changes:
                    refused |= bits
    for a in jaxpr.outputs:
        refused |= behind.get(a, 0)
    return wanted & ~refused
