"""Remote buffers by handle: reads that need no copy, and writes that are made where the value is computed.

A read gives a value, that of the row at this point of the program. It can lie in the buffer itself as long as nothing
is written there before its last use. A value that is only written to a buffer can be made there, if nobody looks at the
buffer in between. Which rows are meant is not asked: a row may be traced.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from ..trace.aval import REMOTE
from ..trace.errors import RangeError, message, where
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.prims.collectives import Pvary
from ..trace.prims.memory import Parts, Place
from ..trace.prims.remote import MOST_ENTRIES, Access, RemoteBuffer, RemoteRead, RemoteWrite
from ..transforms.replay import with_jaxprs
from .memory import overwrites_safely, rewritten, wholes, with_eqns

#: The buffers of a program with the equations that read or write a row of them.
Accesses = List[Tuple[Any, Eqn]]


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


# ---------------------------------------------------------------------------- rows that are traced
def first_entry(px: Any, access: Any, row: Any, count: int) -> Any:
    """The first of the `count` entries of the row of an access: an int if the row is known, else a u32[1].

    Where a product would wrap, it is an entry that is not there.
    """
    if isinstance(row, Literal):
        return access.primitive.buffer.row(row.value, access.source) * count
    ops = px.ops
    number = ops.reshape(ops.cast(row, px.uint32), (1,))
    if count == 1:
        return number

    def constant(n: int) -> Any:
        return px.constant(np.array([n], np.uint32), px.uint32)
    kind, last = row.dtype.as_numpy(), last_row(count)
    if np.iinfo(kind).max > last:
        signed = kind.kind == "i"
        shifted = ops.add(number, constant(last)) if signed else number
        number = ops.where(ops.greater(shifted, constant(last * (1 + signed))), constant(last + 1), number)
    return ops.mul(number, constant(count))


def last_row(count: int) -> int:
    """The last row of which all `count` entries have numbers below MOST_ENTRIES."""
    return MOST_ENTRIES // count - 1


def row_fault(error: Exception, accesses: Accesses) -> Optional[RangeError]:
    """The error of a run in terms of the user's buffer, if it is that of a row that is not there; None otherwise."""
    op, offset = getattr(error, "outside", None) or (None, 0)
    if op is None:
        return None
    found = [eqn for px_buffer, eqn in accesses if px_buffer is op.attrs["buffer"] and isinstance(eqn.inputs[0], Var)]
    kind = RemoteWrite if op.kind == "remote_store" else RemoteRead
    found = [eqn for eqn in found if isinstance(eqn.primitive, kind)] or found
    if not found:
        return None
    buffer: RemoteBuffer = found[0].primitive.buffer  # type: ignore[attr-defined]
    count = op.attrs["buffer"].entries // buffer.rows
    below = offset >= MOST_ENTRIES + count * (count > 1) and any(eqn.inputs[0].aval.dtype.kind == "i" for eqn in found)
    row = (offset - 2 * MOST_ENTRIES * below) // count
    text, way = buffer.no_row(row).split("\n  ")
    if count > 1 and row > last_row(count):
        text = text.replace(f"row {row}", f"a row beyond {last_row(count)}")
    first, *others = dict.fromkeys(where(eqn.source) for eqn in found)
    return RangeError(message(text, f"at {first}", *(f"or at {place}" for place in others), way))


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
