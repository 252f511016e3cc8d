"""Calls put where they stand: a program without the equations that hold jaxprs of some kinds."""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence, Tuple, Type

from ..trace.jaxpr import Jaxpr, Literal
from ..trace.primitive import Primitive
from ..trace.tracer import Trace, bind
from .call import Holder
from .replay import checked, sources, start_env

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
    with sources(trace):
        for primitive, inputs, outputs, source in jaxpr.eqns:
            trace.source = source
            operands = [a if type(a) is Literal else env[a] for a in inputs]
            if isinstance(primitive, kinds):
                env.update(zip(outputs, placed(trace, primitive.jaxpr, operands, kinds, deep)))
                continue
            out = bind(with_inlined(primitive, kinds) if deep else primitive, operands)
            env.update(zip(outputs, out if primitive.multiple else (out,)))
    return [a if type(a) is Literal else env[a] for a in jaxpr.outputs]


def bodies(primitive: Primitive) -> Dict[str, Tuple[Jaxpr, ...]]:
    """The jaxprs that a primitive has for parameters, by name: one, or a tuple of them."""
    found = {}
    for name, value in primitive.params().items():
        several = value if isinstance(value, tuple) else (value,)
        if several and all(isinstance(v, Jaxpr) for v in several):
            found[name] = several
    return found


def holds(jaxpr: Jaxpr, kinds: Kinds, deep: bool) -> bool:
    """Whether a primitive of these kinds is in the program."""
    return any(isinstance(eqn.primitive, kinds) or deep and any(
        holds(j, kinds, deep) for several in bodies(eqn.primitive).values() for j in several) for eqn in jaxpr.eqns)


def with_inlined(primitive: Primitive, kinds: Kinds) -> Primitive:
    """A primitive with its jaxprs inlined."""
    changes: Dict[str, Any] = {}
    for name, several in bodies(primitive).items():
        new = tuple(inlined(j, kinds, deep=True) for j in several)
        if any(a is not b for a, b in zip(new, several)):
            changes[name] = new if isinstance(getattr(primitive, name), tuple) else new[0]
    return dataclasses.replace(primitive, **changes) if changes else primitive  # type: ignore[type-var]
