"""Memory as a user meets it: asking for values to lie outside of the chip."""
from __future__ import annotations

from typing import Any

from ._tracing import argument_aval
from .trace import tree
from .trace.aval import DEVICE, REMOTE, Aval
from .trace.errors import ArgumentError, DtypeError, message, user_source
from .trace.prims import place


def remote(x: Any) -> Any:
    """The arrays or avals of a tree, in remote memory: streaming memory beside the chip.

    State that is given to `pf.lower` so, `pf.lower(step, pf.remote(params), x, state=0)`, becomes remote variables. In
    a traced function the values are stored; what is computed with them is loaded first. A `scan` over remote arrays
    loads one element in each step, so that of the stacked parameters of all layers one layer's are on the chip. Types
    say where a value lies: `f32[12,4,4]@remote`.

    Raises ArgumentError for a leaf that is neither an array nor an aval.

    >>> remote({"w": Aval((4, 2))})
    {'w': f32[4,2]@remote}
    """
    return tree.map(lambda leaf: _moved("remote", leaf, REMOTE), x)


def load(x: Any) -> Any:
    """The arrays or avals of a tree, on the device.

    What is computed with is loaded anyway; this says when, and that it is kept there from then on. Errors as in
    `remote`.

    >>> load(remote(Aval((4, 2))))
    f32[4,2]
    """
    return tree.map(lambda leaf: _moved("load", leaf, DEVICE), x)


def _moved(name: str, leaf: Any, memory: str) -> Any:
    if isinstance(leaf, Aval):
        return leaf.at(memory)
    try:
        argument_aval(leaf)
    except DtypeError as e:
        raise ArgumentError(message(f"{name} takes arrays and avals: {e}", at=user_source(3))) from None
    return place(leaf, memory)
