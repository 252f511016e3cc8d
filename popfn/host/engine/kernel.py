"""What the engines know of one kind of op. The table of all kinds is in `engine.kernels`."""

from typing import Any, Callable, NamedTuple, Optional, Tuple

from popfn.host.engine import emit
from popfn.host.engine.layout import Layout


class Kernel(NamedTuple):
    """One kind of op.

    Attributes:
        value: The outputs as a function `value(xp, op, *arrays)` of the inputs; see `engine.values`.
        emit: How the NumPy engine computes them: appends source lines to a Site; see `engine.emit`.
        inplace: The inputs whose storage the output may take, if they die there and have its shape and dtype.
        safe: Whether it does little work and does not fail, whatever the values. Such a step may stand between writes
            to the program's state. View kernels and those that write are safe too.
        float32: Whether float16 is computed in float32 and rounded once, at the end. Kernels of one NumPy function
            need not say so, it does this itself.
        view: The layout of output i within input 0: `view(op, i, x)` gives its strides and offset, or None where
            there is none. An op with a view gets no storage where sharing that of its input is safe.
        writes: Whether the op modifies input 0, whose storage output 0 then is. Other inputs may overlap it, so `emit`
            reads them before it writes, or leaves that to NumPy, whose functions take care of it.
        overwrites: Whether it does so without reading it.
        effect: Whether it does more than compute its outputs.
        elementwise: Whether an element of the output depends on those of the inputs at its indices, where inputs of
            lower rank are broadcast.
    """

    value: Optional[Callable[..., Any]]
    emit: Callable[[Any], None] = emit.call_value
    inplace: Tuple[int, ...] = ()
    safe: bool = False
    float32: bool = False
    view: Optional[Callable[[Any, int, Any], Optional[Layout]]] = None
    writes: bool = False
    overwrites: bool = False
    effect: bool = False
    elementwise: bool = False
