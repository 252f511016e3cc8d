"""What the gradient of an op is made from, and the small expressions that gradients share.

A rule writes the gradient of one op: `rule(site)` adds ops to the current graph, which is the grad graph, and
returns the gradient of each input, in order. None, or a list that ends early, says that there is none.
"""

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from popfn.host import dtypes, ops
from popfn.host.context import get_current_graph
from popfn.host.graph import Op
from popfn.host.ops import _build
from popfn.host.tensor import Shape, Tensor, constant

Gradients = Sequence[Optional[Tensor]]


class Site:
    """One op of the forward graph, as its rule sees it."""

    __slots__ = ("op", "grads", "wanted", "_keep")

    def __init__(
        self, op: Op, grads: Sequence[Optional[Tensor]], wanted: Sequence[bool], keep: Callable[[Tensor], Tensor]
    ) -> None:
        self.op = op
        self.grads = grads  # of the outputs; None for one that has none
        self.wanted = wanted  # which inputs lead to a tensor whose gradient is required
        self._keep = keep

    @property
    def g(self) -> Tensor:
        """The gradient of output 0, in ops for which it exists."""
        assert self.grads[0] is not None
        return self.grads[0]

    def x(self, i: int = 0) -> Tensor:
        """The value of input i: the forward graph keeps it for the grad graph."""
        return self._keep(self.op.inputs[i])

    def y(self, i: int = 0) -> Tensor:
        """The value of output i, kept likewise."""
        return self._keep(self.op.outputs[i])

    def grad_or_zeros(self, i: int) -> Tensor:
        """The gradient of output i, zeros if it has none."""
        g = self.grads[i]
        return zeros(self.op.outputs[i]) if g is None else g


Rule = Callable[[Site], Gradients]


def number(value: Any, dtype: dtypes.dtype) -> Tensor:
    """A constant: a number or an array."""
    return constant(value, dtype)


def zeros(like: Tensor) -> Tensor:
    """Zeros of the shape and dtype of a tensor of any graph."""
    return full_of_zeros(like.shape, like.dtype)


def full_of_zeros(shape: Shape, dtype: dtypes.dtype) -> Tensor:
    """Zeros of a shape."""
    return _build.emit(get_current_graph(), "init", (), shape, dtype, {"init_type": "zero"}, "zeros")


def reshape(t: Tensor, shape: Sequence[int]) -> Tensor:
    """`t` in another shape, axes of length 0 included, which `ops.reshape` refuses."""
    shape = tuple(shape)
    if t.shape == shape:
        return t
    return _build.emit(t.graph, "reshape", (t,), shape, t.dtype, None, t.name + "_reshaped")


def cast(t: Tensor, dtype: dtypes.dtype) -> Tensor:
    """`t` as a dtype."""
    return t if t.dtype is dtype else _build.emit_cast(t, dtype)


def widened(t: Tensor) -> Tensor:
    """`t` as float32 if it is of float16."""
    return cast(t, dtypes.float32) if t.dtype is dtypes.float16 else t


def scaled(t: Tensor, factor: float) -> Tensor:
    """`factor * t`."""
    return ops.mul(t, number(factor, t.dtype))


def broadcast_to(t: Tensor, shape: Shape) -> Tensor:
    """`t`, repeated along axes that it lacks or that are of length 1."""
    return t if t.shape == shape else ops.add(full_of_zeros(shape, t.dtype), t)


def sum_to(t: Tensor, shape: Shape) -> Tensor:
    """The sum over those axes along which `shape` broadcasts to the shape of `t`."""
    if t.shape == shape:
        return t
    lead = len(t.shape) - len(shape)
    axes = [i for i, n in enumerate(t.shape) if i < lead or n != shape[i - lead]]
    return reshape(ops.sum(t, axes) if axes else t, shape)


def only_where(condition: Tensor, t: Tensor) -> Tensor:
    """`t` where the condition is true, else 0. Both broadcast."""
    return ops.where(condition, t, number(0, t.dtype))


def reversed_along(t: Tensor, axis: int) -> Tensor:
    """The elements in the opposite order along an axis."""
    return ops.slice(t, step=-1, axis=axis)


def padded(t: Tensor, axis: int, before: int, after: int) -> Tensor:
    """`t` with zeros before and after it along an axis."""

    def block(length: int) -> List[Tensor]:
        shape = t.shape[:axis] + (length,) + t.shape[axis + 1 :]
        return [full_of_zeros(shape, t.dtype)] if length else []

    return ops.concat(block(before) + [t] + block(after), axis) if before or after else t


def spaced(t: Tensor, axis: int, step: int, length: int) -> Tensor:
    """Zeros of a length along an axis, with the elements of `t` at every step-th place: undoes a subsample."""
    count = t.shape[axis]
    if step > 1 and count:
        lead, tail = t.shape[:axis], t.shape[axis + 1 :]
        t = padded(reshape(t, lead + (count, 1) + tail), axis + 1, 0, step - 1)
        t = reshape(t, lead + (count * step,) + tail)
    if t.shape[axis] > length:
        return ops.slice(t, 0, length, axis=axis)
    return padded(t, axis, 0, length - t.shape[axis])


def elements(t: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The element of `t` that each index names along an axis, its place on the other axes being that of the index."""
    stride = _build.nelms(t.shape[axis + 1 :])
    place = np.zeros(indices.shape, np.int32)
    for i, along in enumerate(np.indices(indices.shape, np.int32, sparse=True)):
        if i != axis:
            place = place + along * np.int32(_build.nelms(t.shape[i + 1 :]))
    flat = ops.add(scaled(cast(indices, dtypes.int32), stride), number(place, dtypes.int32))
    return ops.gather(reshape(t, (_build.nelms(t.shape),)), flat)


def again(site: Site, t: Tensor, *others: Tensor) -> Tensor:
    """The op of the site, on other operands."""
    return _build.emit_like(get_current_graph(), site.op.kind, (t,) + others, dict(site.op.attrs))


def in_float32(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a formula on float16 operands in float32 and round its results once, at the end."""

    def on_any(*ts: Tensor) -> Any:
        made = formula(*[widened(t) for t in ts])
        if all(t.dtype is not dtypes.float16 for t in ts):
            return made
        if isinstance(made, Tensor):
            return cast(made, dtypes.float16)
        return [t if t is None else cast(t, dtypes.float16) for t in made]

    return on_any


def axes_kept(shape: Shape, axes: Tuple[int, ...]) -> Shape:
    """The shape after a reduction that keeps the reduced axes, of length 1."""
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])
