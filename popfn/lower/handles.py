"""Remote buffers by handle: reads that need no copy, and writes that are made where the value is computed.

A read gives a value, that of the row at this point of the program. It can lie in the buffer itself as long as nothing
is written there before its last use. A value that is only written to a buffer can be made there, if nobody looks at the
buffer in between. Which rows are meant is not asked: a row may be traced.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..trace.aval import REMOTE
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Var
from ..trace.prims.collectives import Pvary
from ..trace.prims.memory import Parts, Place
from ..trace.prims.remote import Access, RemoteBuffer, RemoteRead, RemoteWrite
from ..transforms.replay import with_jaxprs
from .memory import overwrites_safely, rewritten, wholes, with_eqns


def touched(eqn: Eqn, kind: Any) -> Set[RemoteBuffer]:
    """The buffers that an equation reads or writes."""
    primitive: Any = eqn.primitive
    if isinstance(primitive, Access):
        return {primitive.buffer} if isinstance(primitive, kind) else set()
    found: Set[RemoteBuffer] = set()
    for jaxpr in getattr(primitive, "jaxprs", ()):
        found |= jaxpr.remember(("buffers touched", kind), lambda j=jaxpr: frozenset().union(
            *(touched(e, kind) for e in j.eqns)))
    return found


def made_in_place(jaxpr: Jaxpr) -> Dict[Atom, Eqn]:
    """The values that are made in a row of a buffer, with the writes that put them there.

    Such a value is used by the write alone, and nothing touches the buffer between the equation that makes it and the
    write, that equation included.
    """
    def find() -> Dict[Atom, Eqn]:
        whole = wholes(jaxpr)
        found: Dict[Atom, Eqn] = {}
        for n, write in enumerate(jaxpr.eqns):
            if not isinstance(write.primitive, RemoteWrite):
                continue
            buffer, (row, x) = write.primitive.buffer, write.inputs
            value = whole.get(x, x)
            same = {a for a, b in whole.items() if b is value} | {value}
            m = next((i for i, eqn in enumerate(jaxpr.eqns[:n]) if value in eqn.outputs), None)
            if m is None or isinstance(jaxpr.eqns[m].primitive, Access) or not same.isdisjoint(jaxpr.outputs):
                continue
            known = not isinstance(row, Var) or row in jaxpr.inputs or row in jaxpr.constvars or any(
                row in eqn.outputs for eqn in jaxpr.eqns[:m])
            others = [eqn for eqn in jaxpr.eqns if eqn is not write and not same.isdisjoint(eqn.inputs)
                      and not (isinstance(eqn.primitive, (Parts, Pvary)) and set(eqn.outputs) <= same)]
            if known and not others and not any(buffer in touched(eqn, Access) for eqn in jaxpr.eqns[m:n]):
                found[value] = write
        return found
    result: Dict[Atom, Eqn] = jaxpr.remember("made in place", find)
    return result


def with_handles(jaxpr: Jaxpr) -> Jaxpr:
    """The program with copies wherever values cannot be read or written in a buffer itself."""
    return in_all(in_all(jaxpr, with_writes_in_place), with_safe_reads)


def in_all(jaxpr: Jaxpr, change: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
    """The program with each jaxpr changed, those that it holds first."""
    def held(eqn: Eqn) -> Sequence[Eqn]:
        new = with_jaxprs(eqn.primitive, change)
        return [eqn if new is eqn.primitive else eqn._replace(primitive=new)]
    return change(rewritten(jaxpr, held))


def with_writes_in_place(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with copies of what is written to a buffer and not made there: the copies are."""
    made = made_in_place(jaxpr)
    eqns: List[Eqn] = []
    for eqn in jaxpr.eqns:
        if isinstance(eqn.primitive, RemoteWrite) and all(eqn is not write for write in made.values()):
            row, x = eqn.inputs
            copy = Var(x.aval)
            eqns.append(Eqn(Place(REMOTE), (x,), (copy,), eqn.source))
            eqn = eqn._replace(inputs=(row, copy))
        eqns.append(eqn)
    return jaxpr if len(eqns) == len(jaxpr.eqns) else with_eqns(jaxpr, eqns)


def with_safe_reads(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with copies of what is read from a buffer and used after something may have been written there."""
    if not any(isinstance(eqn.primitive, RemoteRead) for eqn in jaxpr.eqns):
        return jaxpr
    whole, made = wholes(jaxpr), made_in_place(jaxpr)
    # Into which buffer something is written when, and which value that is, if it is made there.
    writes: List[Tuple[RemoteBuffer, int, Optional[Atom]]] = []
    for i, eqn in enumerate(jaxpr.eqns):
        value = next((v for v, write in made.items() if write is eqn), None)
        time = i if value is None else next(k for k, e in enumerate(jaxpr.eqns) if value in e.outputs)
        writes += [(buffer, time, value) for buffer in touched(eqn, RemoteWrite)]
    eqns: List[Eqn] = []
    instead: Dict[Atom, Atom] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        eqns.append(eqn._replace(inputs=tuple([instead.get(a, a) for a in eqn.inputs])))
        if not isinstance(eqn.primitive, RemoteRead):
            continue
        v, = eqn.outputs
        same = {a for a, b in whole.items() if b is v} | {v}
        uses = [k for k, e in enumerate(jaxpr.eqns) if not same.isdisjoint(e.inputs)]
        last = max(uses, default=i)
        if not same.isdisjoint(jaxpr.outputs) or any(buffer is eqn.primitive.buffer and i < time <= last and not (
                time == last and value is not None and overwrites_safely(jaxpr, v, value))
               for buffer, time, value in writes):
            instead[v] = Var(v.aval)
            eqns.append(Eqn(Place(REMOTE), (v,), (instead[v],), eqn.source))  # type: ignore[arg-type]
    return with_eqns(jaxpr, eqns, [instead.get(a, a) for a in jaxpr.outputs]) if instead else jaxpr
