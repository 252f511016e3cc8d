"""The primitives that the kinds of primitives are written with: they give a value another shape, or sum over axes.

Also what the batch rules share. A batch rule gets operands with one more axis, at a place of its own in each of them
(`dims`; None for an operand that has none), and gives a result with that axis.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ..aval import FLOAT8, SHORT, Aval, Shape, bool_
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind
from . import lowering

#: One primitive per class and parameters where it is made often: equal ones then share their memo.
interned = functools.lru_cache(maxsize=8192, typed=True)(lambda cls, *params: cls(*params))

Axes = Tuple[int, ...]
#: Where each operand of a batch rule has the mapped axis; None where it has none.
Dims = Sequence[Any]

_LETTERS = {d: "b" if d == bool_ else d.kind if d not in FLOAT8 else "8" for d in SHORT}
_WORDS = {"b": "bool", "i": "signed integers", "u": "unsigned integers", "f": "float16, float32", "8": "float8"}


def check_dtype(name: str, aval: Aval, takes: str) -> None:
    """Raise DtypeError unless the aval's dtype is of one of the kinds in `takes` (letters of b i u f 8)."""
    if _LETTERS[aval.dtype] not in takes:
        kinds = [_WORDS[letter] for letter in takes]
        raise DtypeError(f"{name} takes {', '.join(kinds)}, got {aval}")


def check_axes(name: str, axes: Axes, ndim: int) -> None:
    """Raise ShapeError unless axes are distinct and in range, non-negative."""
    if len(set(axes)) != len(axes) or not all(isinstance(a, int) and 0 <= a < ndim for a in axes):
        raise ShapeError(f"{name}: axes {axes} are not distinct axes of a value of rank {ndim}")


class LinearOp(Primitive):
    """Linear in its first operand; the others, if any, are indices without a derivative."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        t = tangents[0]
        return y, Zero(y.aval) if type(t) is Zero else bind(self, (t, *primals[1:]))


@dataclass(frozen=True)
class Reshape(LinearOp):
    """The elements in the same row-major order under another shape."""

    shape: Shape

    def abstract(self, x: Aval) -> Aval:
        out = x.with_shape(self.shape)
        if out.size != x.size:
            raise ShapeError(f"reshape: {x} has {x.size} elements, shape {self.shape} has {out.size}")
        return out

    def eval(self, x: np.ndarray) -> Any:
        return np.reshape(x, self.shape)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (reshape(ct, x.aval.shape),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return reshape(to_front(args[0], dims[0]), (axis.size, *self.shape)), 0

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.reshape(px, x, self.shape)


@dataclass(frozen=True)
class Broadcast(LinearOp):
    """NumPy's broadcasting to a shape: new axes in front, axes of size 1 repeated."""

    shape: Shape

    def abstract(self, x: Aval) -> Aval:
        lead = len(self.shape) - x.ndim
        if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, self.shape[lead:])):
            raise ShapeError(f"broadcast: {x} does not broadcast to shape {self.shape}")
        return x.with_shape(self.shape)

    def eval(self, x: np.ndarray) -> Any:
        return np.array(np.broadcast_to(x, self.shape))

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (unbroadcast(ct, x.aval),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return broadcast_to(ranked(to_front(args[0], dims[0]), len(self.shape)), (axis.size, *self.shape)), 0

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.broadcast(px, x, self.shape)


@dataclass(frozen=True)
class Sum(LinearOp):
    """Sum over axes. float16 is accumulated in float32 and rounded once; integers wrap."""

    axes: Axes

    def abstract(self, x: Aval) -> Aval:
        check_dtype("sum", x, "iuf")
        check_axes("sum", self.axes, x.ndim)
        return x.with_shape(tuple(n for i, n in enumerate(x.shape) if i not in self.axes))

    def eval(self, x: np.ndarray) -> Any:
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.sum(x, axis=self.axes, dtype=wide).astype(x.dtype)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        kept = tuple(1 if i in self.axes else n for i, n in enumerate(x.aval.shape))
        return (broadcast_to(reshape(ct, kept), x.aval.shape),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        axes, dim = beside(self.axes, dims[0]), dims[0]
        return sum_over(args[0], axes), without(axes, dim)

    def lower(self, px: Any, x: Any) -> Any:
        if not self.axes:
            return x
        return lowering.in_float32(px, lambda t: px.ops.sum(t, list(self.axes)), x)


@dataclass(frozen=True)
class Transpose(LinearOp):
    """Axis i of the result is axis permutation[i] of the operand."""

    permutation: Axes

    def abstract(self, x: Aval) -> Aval:
        if sorted(self.permutation) != list(range(x.ndim)):
            raise ShapeError(f"transpose: {self.permutation} is not a permutation of the axes of {x}")
        return x.with_shape(tuple(x.shape[i] for i in self.permutation))

    def eval(self, x: np.ndarray) -> Any:
        return np.transpose(x, self.permutation)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        inverse = sorted(range(len(self.permutation)), key=self.permutation.__getitem__)
        return (transpose(ct, tuple(inverse)),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return transpose(args[0], (dims[0], *beside(self.permutation, dims[0]))), 0

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.transpose(px, x, self.permutation)


def reshape(x: Any, shape: Shape) -> Any:
    """Reshape, left out where it would change nothing."""
    return x if aval_of(x).shape == shape else bind(interned(Reshape, shape), (x,))


def broadcast_to(x: Any, shape: Shape) -> Any:
    """Broadcast, left out where it would change nothing."""
    return x if aval_of(x).shape == shape else bind(interned(Broadcast, shape), (x,))


def sum_over(x: Any, axes: Axes) -> Any:
    """Sum over axes, left out where there are none."""
    return bind(interned(Sum, axes), (x,)) if axes else x


def unbroadcast(ct: Any, aval: Aval) -> Any:
    """Sum a cotangent over the axes along which its operand, of this aval, was broadcast."""
    shape = aval_of(ct).shape
    if shape == aval.shape:
        return ct
    lead = len(shape) - aval.ndim
    axes = tuple(range(lead)) + tuple(i + lead for i, n in enumerate(aval.shape) if n == 1 and shape[i + lead] != 1)
    return reshape(sum_over(ct, axes), aval.shape)


def transpose(x: Any, permutation: Axes) -> Any:
    """Transpose, left out where it would change nothing."""
    return x if permutation == tuple(range(aval_of(x).ndim)) else bind(interned(Transpose, permutation), (x,))


# ---------------------------------------------------------------------------- what the batch rules share
def to_front(x: Any, dim: int) -> Any:
    """x with its mapped axis in front."""
    return transpose(x, (dim, *(i for i in range(aval_of(x).ndim) if i != dim)))


def moved(x: Any, dim: int, to: int) -> Any:
    """x with its mapped axis at another place."""
    order = [i for i in range(aval_of(x).ndim) if i != dim]
    order.insert(to, dim)
    return transpose(x, tuple(order))


def ranked(x: Any, ndim: int) -> Any:
    """x, whose first axis is the mapped one, with `ndim` axes behind that: new ones of size 1 come before the old."""
    shape = aval_of(x).shape
    return reshape(x, shape[:1] + (1,) * (ndim + 1 - len(shape)) + shape[1:])


def in_lanes(x: Any, dim: Optional[int], axis: MappedAxis) -> Any:
    """x with the mapped axis in front, repeated along it if it has none."""
    if dim is not None:
        return to_front(x, dim)
    return broadcast_to(x, (axis.size, *aval_of(x).shape))


def beside(axes: Axes, dim: int) -> Axes:
    """Where a value's axes are once there is a mapped axis at `dim` among them."""
    return tuple(a + (a >= dim) for a in axes)


def without(axes: Axes, dim: int) -> int:
    """Where the mapped axis at `dim` is once the axes are gone, which are counted with it."""
    return dim - sum(a < dim for a in axes)
