"""Simplification that changes no value: dead code, common subexpressions, scalars known already, chains of reshapes."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set

import numpy as np

from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.primitive import Primitive, eval_results
from ..trace.prims.collectives import Collective, Pvary
from ..trace.prims.shaping import Reshape
from ..trace.prims.structural import Squeeze
from .replay import checked, with_jaxprs


def simplify(jaxpr: Jaxpr) -> Jaxpr:
    """An equal program without dead and repeated equations, in its sub-programs too; remembered.

    An equation of literals becomes the literal that it evaluates to, and a reshape of a reshape one reshape. Nothing
    is reassociated and no identity such as x * 0 = 0 or x + 0 = x is used: every NaN, infinity and sign of zero stays
    what it was.
    """
    def make() -> Jaxpr:
        return checked(without_dead_code(with_shared_subexpressions(jaxpr)))
    return jaxpr.remember("simplify", make)


def with_shared_subexpressions(jaxpr: Jaxpr) -> Jaxpr:
    """Every equation whose primitive and operands are those of an earlier one gives way to it."""
    same: Dict[Atom, Atom] = {}  # a variable and the earlier one that stands for it
    seen: Dict[Any, Eqn] = {}
    by_data: Dict[Any, Var] = {}
    for v, c in zip(jaxpr.constvars, jaxpr.constants):
        if c is not None:
            first = by_data.setdefault((v.aval, c.tobytes()), v)
            if first is not v:
                same[v] = first
    before_reshape: Dict[Atom, Atom] = {}
    eqns: List[Eqn] = []
    for eqn in jaxpr.eqns:
        inputs = tuple([same.get(a, a) for a in eqn.inputs])
        primitive = with_jaxprs(eqn.primitive, simplify)
        folded = literal_result(primitive, inputs, eqn.outputs)
        if folded is not None:
            same[eqn.outputs[0]] = folded
            continue
        if isinstance(primitive, (Reshape, Squeeze)):
            out, = eqn.outputs
            source = before_reshape[out] = before_reshape.get(inputs[0], inputs[0])
            if source.aval is out.aval:
                same[out] = source
                continue
            primitive, inputs = Reshape(out.aval.shape), (source,)
        key = (primitive, tuple([a.key() if isinstance(a, Literal) else a for a in inputs]),
               tuple([v.aval for v in eqn.outputs]))
        earlier = seen.get(key)
        if earlier is not None and not (primitive.multiple and primitive.has_effect):
            same.update(zip(eqn.outputs, earlier.outputs))
            continue
        new = eqn if inputs == eqn.inputs and primitive is eqn.primitive else \
            Eqn(primitive, inputs, eqn.outputs, eqn.source)
        seen[key] = new
        eqns.append(new)
    outputs = [same.get(a, a) for a in jaxpr.outputs]
    return Jaxpr(jaxpr.inputs, outputs, eqns, jaxpr.constvars, jaxpr.constants, jaxpr.name)


def literal_result(primitive: Primitive, inputs: Sequence[Atom], outputs: Sequence[Var]) -> Optional[Literal]:
    """The scalar that an equation of literals gives, None if it is no such equation."""
    if not inputs or len(outputs) != 1 or outputs[0].aval.ndim or not all(type(a) is Literal for a in inputs):
        return None
    # A loop may take long, or never end; and what lanes have in common is not known here.
    if primitive.multiple or isinstance(primitive, Collective) and not isinstance(primitive, Pvary):
        return None
    with np.errstate(all="ignore"):
        value, = eval_results(primitive, [a.value for a in inputs if isinstance(a, Literal)])
    return Literal(value, outputs[0].aval)


def without_dead_code(jaxpr: Jaxpr, operands: bool = False) -> Jaxpr:
    """Without the equations and constants on which no output and no effect depends. The inputs stay as they are.

    With `operands` also without what primitives that hold jaxprs take and do not use.

    A primitive that can do without some of its results has a method `pruned`: for the results that are used it gives
    the primitive to put in its place, which of the operands that takes and which of the results that gives.
    """
    needed: Set[Atom] = set(jaxpr.outputs)
    eqns: List[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outputs) or eqn.primitive.multiple and eqn.primitive.has_effect:
            if (operands or not all(v in needed for v in eqn.outputs)) and hasattr(eqn.primitive, "pruned"):
                primitive, ins, outs = eqn.primitive.pruned([v in needed for v in eqn.outputs])
                eqn = Eqn(primitive, tuple([a for a, on in zip(eqn.inputs, ins) if on]),
                          tuple([v for v, on in zip(eqn.outputs, outs) if on]), eqn.source)
            eqns.append(eqn)
            needed.update(eqn.inputs)
    constants = [(v, c) for v, c in zip(jaxpr.constvars, jaxpr.constants) if v in needed]
    return Jaxpr(jaxpr.inputs, jaxpr.outputs, eqns[::-1], [v for v, _ in constants], [c for _, c in constants],
                 jaxpr.name)
