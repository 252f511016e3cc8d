"""Putting a jaxpr where it is called, and what else the transforms share: checks, source lines, the first env."""
from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from ..trace.array import Array
from ..trace.aval import as_numpy
from ..trace.errors import JaxprError
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.primitive import Primitive
from ..trace.prims.collectives import pvary
from ..trace.tracer import Trace, bind, current_trace

#: Whether every new jaxpr is checked (`set_checks`).
_checks = [False]


def set_checks(on: bool) -> bool:
    """Check every jaxpr that is traced or made by a transform, or stop checking; returns what was set before.

    An ill-typed jaxpr, the mark of a wrong rule, is then a JaxprError at once. Off by default, because it takes as long
    as tracing itself; popfn's own tests switch it on.

    >>> before = set_checks(True)
    >>> set_checks(before)
    True
    """
    before, _checks[0] = _checks[0], on
    return before


def checks_are_on() -> bool:
    """Whether new jaxprs are checked."""
    return _checks[0]


def checked(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr itself, checked if checks are on."""
    return jaxpr.check() if _checks[0] else jaxpr


@contextlib.contextmanager
def sources(trace: Trace) -> Iterator[None]:
    """Give back the trace's own source line at the end of a replay."""
    before = trace.source
    try:
        yield
    finally:
        trace.source = before


def constant_arrays(jaxpr: Jaxpr) -> List[Array]:
    """The constants as Arrays. Raises JaxprError if the jaxpr was parsed without them."""
    arrays = []
    for v, c in zip(jaxpr.constvars, jaxpr.constants):
        if c is None:
            raise JaxprError("this jaxpr was parsed without its constants: give them to parse_jaxpr(text, constants)")
        arrays.append(Array.wrap(c, v.aval))
    return arrays


def start_env(jaxpr: Jaxpr, args: Sequence[Any]) -> Dict[Var, Any]:
    """Inputs and constants by variable."""
    env: Dict[Var, Any] = dict(zip(jaxpr.constvars, constant_arrays(jaxpr)))
    env.update(zip(jaxpr.inputs, args))
    return env


def inline(jaxpr: Jaxpr, args: Sequence[Any], once: bool = False) -> List[Any]:
    """The outputs of a jaxpr for `args`: recorded in the current trace, or evaluated at once without one.

    A jaxpr that is put nowhere else, `once`, gives its own equations to the trace; of any other copies are recorded.
    """
    trace = current_trace()
    if trace is None:
        arrays = [x.known("a transform") if isinstance(x, Array) else x.value if isinstance(x, Literal) else as_numpy(x)
                  for x in args]
        callers = {id(x) for x in arrays}
        outs = [y.copy() if id(y) in callers else y for y in jaxpr.eval(*arrays)]
        return [Array.wrap(frozen(y), a) for y, a in zip(outs, jaxpr.out_avals)]
    atoms: Dict[Any, Atom] = {v: trace.atom(x) for v, x in zip(jaxpr.inputs, args)}
    if any(a.aval is not v.aval for v, a in atoms.items()):
        # What is equal in all lanes is also good where the jaxpr takes what may differ: the psum in it counts on that.
        args = [pvary(a, v.aval.varying) for v, a in atoms.items()]
        atoms = {v: trace.atom(x) for v, x in zip(jaxpr.inputs, args)}
        if any(a.aval is not v.aval for v, a in atoms.items()):  # a weak type where a strong one was, or the reverse
            return replay(trace, jaxpr, args)
    atoms.update((v, trace.atom(c)) for v, c in zip(jaxpr.constvars, constant_arrays(jaxpr)))
    append, new_eqn, around = trace.eqns.append, tuple.__new__, trace.source
    for eqn in jaxpr.eqns:
        primitive, inputs, outputs, source = eqn
        if once:
            for a in inputs:
                if a in atoms:
                    operands = tuple([atoms.get(a, a) for a in inputs])
                    append(new_eqn(Eqn, (primitive, operands, outputs, source or around)))
                    break
            else:
                append(eqn if source or around is None else eqn._replace(source=around))
            continue
        operands = tuple([a if type(a) is Literal else atoms[a] for a in inputs])
        if len(outputs) == 1:
            old, = outputs
            var = atoms[old] = Var(old.aval)
            new: Tuple[Var, ...] = (var,)
        else:
            new = tuple([Var(v.aval) for v in outputs])
            atoms.update(zip(outputs, new))
        append(new_eqn(Eqn, (primitive, operands, new, source or around)))
    return [trace.array_of(atoms.get(a, a)) for a in jaxpr.outputs]


def replay(trace: Trace, jaxpr: Jaxpr, args: Sequence[Any]) -> List[Any]:
    """`inline` equation by equation, so that every type is inferred anew."""
    env = start_env(jaxpr, args)
    with sources(trace):
        for eqn in jaxpr.eqns:
            trace.source = eqn.source
            out = bind(eqn.primitive, [a if type(a) is Literal else env[a] for a in eqn.inputs])  # type: ignore[index]
            if eqn.primitive.multiple:
                env.update(zip(eqn.outputs, out))
            else:
                env[eqn.outputs[0]] = out
    return [trace.array_of(trace.atom(env[a] if isinstance(a, Var) else a)) for a in jaxpr.outputs]


def frozen(x: Any) -> Any:
    """An array that nobody writes to any more; a copy if it belongs to somebody else."""
    if x.flags.writeable and x.base is None:
        x.flags.writeable = False
        return x
    if x.flags.writeable:
        x = x.copy()
        x.flags.writeable = False
    return x


def jaxprs_of(value: Any) -> Tuple[Jaxpr, ...]:
    """The jaxprs that a parameter of a primitive is: one, several in a tuple, or none."""
    several = (value,) if isinstance(value, Jaxpr) else value
    return several if isinstance(several, tuple) and all(isinstance(j, Jaxpr) for j in several) else ()


def with_jaxprs(primitive: Primitive, change: Callable[[Jaxpr], Jaxpr]) -> Primitive:
    """A primitive with its jaxprs changed; the primitive itself if each of them stays the same."""
    changes: Dict[str, Any] = {}
    for k, v in primitive.params().items():
        jaxprs = jaxprs_of(v)
        new = tuple([change(j) for j in jaxprs])
        if any(a is not b for a, b in zip(jaxprs, new)):
            changes[k] = new[0] if isinstance(v, Jaxpr) else new
    return dataclasses.replace(primitive, **changes) if changes else primitive  # type: ignore[type-var]
