"""Calls put where they stand: a program without the equations that hold jaxprs of some kinds."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Type

from ..trace.jaxpr import Jaxpr, Literal
from ..trace.tracer import Trace, bind
from .call import Holder
from .replay import checked, jaxprs_of, sources, start_env, with_jaxprs

Kinds = Tuple[Type[Holder], ...]


def inlined(jaxpr: Jaxpr, kinds: Kinds, deep: bool = False) -> Jaxpr:
    """The program with the equations of the jaxprs that primitives of these kinds hold in their place; remembered.

    `deep` does the same in the jaxprs of all other primitives.
    """
    def make() -> Jaxpr:
        if not holds(jaxpr, kinds, deep):
            return jaxpr
        with Trace(jaxpr.name) as trace:
            return checked(trace.finish(placed(trace, jaxpr, trace.add_inputs(jaxpr.in_avals), kinds, deep)))
    return jaxpr.remember(("inlined", kinds, deep), make)


def placed(trace: Trace, jaxpr: Jaxpr, args: Sequence[Any], kinds: Kinds, deep: bool) -> List[Any]:
    """The outputs of a jaxpr for `args` under `trace`."""
    env: Dict[Any, Any] = start_env(jaxpr, args)

    def inside(jaxpr: Jaxpr) -> Jaxpr:
        return inlined(jaxpr, kinds, deep=True)
    with sources(trace):
        for primitive, inputs, outputs, source in jaxpr.eqns:
            trace.source = source
            operands = [a if type(a) is Literal else env[a] for a in inputs]
            if isinstance(primitive, kinds):
                env.update(zip(outputs, placed(trace, primitive.jaxpr, operands, kinds, deep)))
                continue
            out = bind(with_jaxprs(primitive, inside) if deep else primitive, operands)
            env.update(zip(outputs, out if primitive.multiple else (out,)))
    return [a if type(a) is Literal else env[a] for a in jaxpr.outputs]


def holds(jaxpr: Jaxpr, kinds: Kinds, deep: bool) -> bool:
    """Whether a primitive of these kinds is in the program."""
    return any(isinstance(eqn.primitive, kinds) or deep and any(
        holds(j, kinds, deep) for value in eqn.primitive.params().values() for j in jaxprs_of(value))
        for eqn in jaxpr.eqns)
