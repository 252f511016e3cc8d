"""What the engines know of one kind of op. The table of all kinds is in `engine.kernels`."""

from typing import Any, Callable, NamedTuple, Optional, Tuple

from popfn.host.kernels import emit, values
from popfn.host.kernels.emit import Emitter, call_value
from popfn.host.kernels.layout import Layout


class Kernel(NamedTuple):
    """One kind of op.

    Attributes:
        value: The outputs as a function `value(xp, op, *arrays)` of the inputs; see `kernels.values`.
        emit: How the NumPy engine computes them: appends source lines to a Site; see `kernels.emit`.
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
    emit: Emitter = call_value
    inplace: Tuple[int, ...] = ()
    safe: bool = False
    float32: bool = False
    view: Optional[Callable[[Any, int, Any], Optional[Layout]]] = None
    writes: bool = False
    overwrites: bool = False
    effect: bool = False
    elementwise: bool = False


def elementwise(
    value: Callable[..., Any],
    emitter: Emitter = call_value,
    inplace: Tuple[int, ...] = (0, 1),
    float32: bool = False,
) -> Kernel:
    """The kernel of an op that works on each element by itself."""
    return Kernel(value, emitter, inplace, True, float32, elementwise=True)


def ufunc(name: str) -> Kernel:
    """The kernel of an op that is one function of NumPy."""
    return elementwise(values.function(name), emit.ufunc(name))


def in_place(kernel: Kernel) -> Kernel:
    """The kernel of an op's in-place twin, which computes what the original does."""
    return kernel._replace(writes=True, inplace=())


def update(value: Callable[..., Any], emitter: Emitter = call_value) -> Kernel:
    """The kernel of an update of a variable, input 0."""
    return Kernel(value, emitter, float32=True, writes=True)


def between_updates(
    value: Callable[..., Any], emitter: Emitter = call_value, inplace: Tuple[int, ...] = ()
) -> Kernel:
    """The kernel of an op that stands between updates in a step of an optimiser."""
    return Kernel(value, emitter, inplace, safe=True, float32=True)


def _view_same(op: Any, i: int, x: Any) -> Layout:
    return x.strides, 0


SAME = Kernel(values.same, view=_view_same)
"""The kernel of an op that copies its input."""
