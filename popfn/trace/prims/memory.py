"""Memory: moving values between the chip, the streaming memory beside it and the host, and cutting them into parts.

A value's type says where it lies (`f32[4,2]@remote`). Whatever computes wants its operands on the device, so `bind`
moves what lies elsewhere there with `place`; loops and calls take values as they are, and move inside what they need.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from ..aval import REMOTE, Aval, Placement
from ..errors import ShapeError
from ..primitive import Linear, MappedAxis, Zero
from ..tracer import Trace, aval_of, bind
from .shaping import Dims, LinearOp, interned, transpose


@dataclass(frozen=True)
class Place(LinearOp):
    """The value itself, in another memory: a load from remote memory or from the host, or a store there."""

    memory: str

    def abstract(self, x: Aval) -> Aval:
        return x

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        return avals[0].at(self.memory)

    def eval(self, x: np.ndarray) -> Any:
        return x

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (place(ct, x.aval.memory),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        return bind(self, args), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        return x


def place(x: Any, memory: str) -> Any:
    """x in a memory, which is x itself if it lies there."""
    return x if aval_of(x).memory == memory else bind(interned(Place, memory), (x,))


class Parts(LinearOp):
    """Cut and Join. Along the first axis, parts of a value in remote memory are entries of its buffer as it lies."""

    axis: int

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        x, = avals
        stays = self.axis == 0 and x.memory == REMOTE
        return [x.placement] if stays else super().operand_placements(avals)

    def batched(self, x: Any, y: Any) -> Any:
        """The result of the batch rule, y, in the memory where the one for an element of x would be."""
        return place(y, self.operand_placements([aval_of(x)])[0][1])


@dataclass(frozen=True)
class Cut(Parts):
    """A value in equal parts along an axis, stacked: f32[6,4] in 3 parts along axis 0 is f32[3,2,4].

    `memory` says where the whole value is to lie while the parts are taken: on the "device", or with the "host", from
    where each part is streamed; "" leaves that to the lowering. It is said of this value, not of its derivatives.
    """

    steps: int
    axis: int
    memory: str = ""

    def abstract(self, x: Aval) -> Aval:
        if self.steps < 1 or not 0 <= self.axis < x.ndim or x.shape[self.axis] % self.steps:
            raise ShapeError(f"cut: {x} has no {self.steps} equal parts along axis {self.axis}")
        shape = list(x.shape)
        shape[self.axis] //= self.steps
        return x.with_shape((self.steps, *shape))

    def eval(self, x: np.ndarray) -> Any:
        return cut_array(x, self.steps, self.axis)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y, t = bind(self, primals), tangents[0]
        return y, Zero(aval_of(y)) if type(t) is Zero else cut(t, self.steps, self.axis)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (join(ct, self.axis),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        x, dim = args[0], dims[0]
        at = self.axis + (dim <= self.axis)  # behind the mapped axis, unless that stands behind it
        return self.batched(x, cut(x, self.steps, at, self.memory)), dim + 1

    def lower(self, px: Any, x: Any) -> Any:
        shape = (*x.shape[:self.axis], self.steps, x.shape[self.axis] // self.steps, *x.shape[self.axis + 1:])
        order = [self.axis, *(i for i in range(len(shape)) if i != self.axis)]
        y = px.ops.reshape(x, shape)
        return px.ops.transpose(y, order) if self.axis else y


@dataclass(frozen=True)
class Join(Parts):
    """Stacked parts put together along an axis: the reverse of Cut, and `memory` as there."""

    axis: int
    memory: str = ""

    def abstract(self, x: Aval) -> Aval:
        if not 0 <= self.axis < x.ndim - 1:
            raise ShapeError(f"join: the parts of {x} have no axis {self.axis}")
        steps, *shape = x.shape
        shape[self.axis] *= steps
        return x.with_shape(tuple(shape))

    def eval(self, x: np.ndarray) -> Any:
        return join_array(x, self.axis)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y, t = bind(self, primals), tangents[0]
        return y, Zero(aval_of(y)) if type(t) is Zero else join(t, self.axis)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (cut(ct, x.aval.shape[0], self.axis),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        x, dim = args[0], dims[0]
        parts = x
        if dim == 0:  # the steps stay in front
            parts, dim = transpose(x, (1, 0, *range(2, aval_of(x).ndim))), 1
        return self.batched(x, join(parts, self.axis + (dim - 1 <= self.axis), self.memory)), dim - 1

    def lower(self, px: Any, x: Any) -> Any:
        steps, *shape = x.shape
        order = [*range(1, self.axis + 1), 0, *range(self.axis + 1, len(x.shape))]
        shape[self.axis] *= steps
        return px.ops.reshape(px.ops.transpose(x, order) if self.axis else x, tuple(shape))


def cut(x: Any, steps: int, axis: int, memory: str = "") -> Any:
    """x in `steps` equal parts along an axis, stacked. Raises ShapeError if the axis does not divide."""
    return bind(interned(Cut, steps, axis, memory), (x,))


def join(x: Any, axis: int, memory: str = "") -> Any:
    """Stacked parts put together along an axis."""
    return bind(interned(Join, axis, memory), (x,))


def cut_array(x: np.ndarray, steps: int, axis: int) -> np.ndarray:
    """`cut` of a NumPy array."""
    shape = x.shape
    parts = x.reshape(*shape[:axis], steps, shape[axis] // steps, *shape[axis + 1:])
    return np.ascontiguousarray(np.moveaxis(parts, axis, 0))


def join_array(x: np.ndarray, axis: int) -> np.ndarray:
    """`join` of a NumPy array."""
    steps, *shape = x.shape
    shape[axis] *= steps
    return np.ascontiguousarray(np.moveaxis(x, 0, axis)).reshape(shape)


Trace.place = staticmethod(place)
