"""Reads and writes of remote buffers where only some lanes get to: in a branch or loop that their values decide on."""
from __future__ import annotations

import contextlib
from itertools import chain
from typing import Iterator, List, Sequence

from ..trace.aval import AxisNames
from ..trace.errors import AxisError, message
from ..trace.jaxpr import Jaxpr
from ..trace.prims.remote import Access, RemoteBuffer, RemoteWrite


def accesses(jaxpr: Jaxpr) -> Iterator[Access]:
    """The reads and writes of a program, and of those that it holds."""
    for eqn in jaxpr.eqns:
        if isinstance(eqn.primitive, Access):
            yield eqn.primitive
        for held in getattr(eqn.primitive, "jaxprs", ()):
            yield from accesses(held)


def written_for_all(jaxpr: Jaxpr, name: str) -> List[RemoteBuffer]:
    """The buffers that a program writes of which lanes along an axis have one together."""
    return [a.buffer for a in accesses(jaxpr) if isinstance(a, RemoteWrite) and name not in a.buffer.varying]


def written_by_some(kind: str, place: str, jaxprs: Sequence[Jaxpr], name: str) -> Iterator[str]:
    """The texts of errors of the programs in `place`, a branch or a loop that only some lanes along an axis get to."""
    for buffer in chain.from_iterable(written_for_all(jaxpr, name) for jaxpr in jaxprs):
        yield message(
            f"{kind}: {place} writes to {buffer!r}, which is one for all replicas along axis {name!r}, while it "
            "depends on the replica whether they get there", "way out: write outside, or make the buffer with varying=")


@contextlib.contextmanager
def reached_by_some(kind: str, place: str, jaxprs: Sequence[Jaxpr], axes: AxisNames) -> Iterator[None]:
    """While programs that lanes along these axes get to by themselves are given operands that vary over the axes.

    What they read and write may be the same for all lanes before that. An error says then what is wrong: not that it
    varies.
    """
    try:
        yield
    except AxisError as e:
        at = [line for line in str(e).split("\n  ") if line.startswith("at ")]
        texts = [text for name in sorted(axes) for text in written_by_some(kind, place, jaxprs, name)]
        texts += [message(
            f"{kind}: {place} uses a row of {access.buffer!r} whose number comes from outside, while it depends on the "
            f"replica along {', '.join(map(repr, sorted(axes)))} whether they get there",
            "way out: read or write outside, and choose the value with pnp.where") for access in chain.from_iterable(
                map(accesses, jaxprs))]
        if not axes or not texts:
            raise
        first, *notes = texts[0].split("\n  ")
        raise AxisError("\n  ".join([first, *at, *notes])) from None
