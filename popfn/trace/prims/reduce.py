"""Reductions. Sum stands in kinds.py."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Sequence, Tuple

import numpy as np

from ..aval import Aval, accumulator_dtype, int32
from ..errors import ShapeError
from ..primitive import MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind
from . import lowering
from .binary import eq
from .elementwise import convert, div
from .kinds import add, mul, safe_mul, sub
from .shaping import (
    Axes,
    Dims,
    beside,
    broadcast_to,
    check_axes,
    check_dtype,
    interned,
    reshape,
    sum_over,
    transpose,
    without,
)
from .structural import concat, slice_axis


def reduced(shape: Sequence[int], axes: Axes, keep: bool = False) -> Tuple[int, ...]:
    """A shape without the reduced axes, or with size 1 there."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)


class Extremum(Primitive):
    """The largest or smallest element over axes; the cotangent is shared equally among the winners."""

    axes: Axes
    op: ClassVar[str]

    def abstract(self, x: Aval) -> Aval:
        check_dtype(self.name, x, "iuf")
        check_axes(self.name, self.axes, x.ndim)
        if any(x.shape[a] == 0 for a in self.axes):
            raise ShapeError(f"{self.name} of no elements: {x} over axes {self.axes}")
        return x.with_shape(reduced(x.shape, self.axes))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        y = bind(self, primals)
        if type(t) is Zero:
            return y, Zero(y.aval)
        kept = reduced(aval_of(x).shape, self.axes, keep=True)
        wins = convert(eq(x, reshape(y, kept)), y.aval.dtype)
        share = div(wins, reshape(sum_over(wins, self.axes), kept))
        return y, sum_over(safe_mul(share, t), self.axes)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        axes = beside(self.axes, dims[0])
        return bind(interned(type(self), axes), args), without(axes, dims[0])

    def lower(self, px: Any, x: Any) -> Any:
        if not self.axes:
            return x
        y = getattr(px.ops, self.op)(x, list(self.axes))
        if not lowering.is_float(x):
            return y
        nans = px.ops.sum(px.ops.cast(px.ops.isnan(x), px.float32), list(self.axes))
        found = px.ops.greater(nans, px.constant(0.0, px.float32))
        return px.ops.where(found, lowering.scalar(px, math.nan, x), y)


@dataclass(frozen=True)
class Max(Extremum):
    """The largest element over axes; NaN if there is one."""

    axes: Axes
    op: ClassVar[str] = "max"

    def eval(self, x: np.ndarray) -> np.ndarray:
        return np.max(x, axis=self.axes)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Min(Extremum):
    """The smallest element over axes; NaN if there is one."""

    axes: Axes
    op: ClassVar[str] = "min"

    def eval(self, x: np.ndarray) -> np.ndarray:
        return np.min(x, axis=self.axes)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Prod(Primitive):
    """The product over axes; its derivative is a product too, never a quotient, so that zeros are exact."""

    axes: Axes

    def abstract(self, x: Aval) -> Aval:
        check_dtype("prod", x, "iuf")
        check_axes("prod", self.axes, x.ndim)
        return x.with_shape(reduced(x.shape, self.axes))

    def eval(self, x: np.ndarray) -> Any:
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.prod(x, axis=self.axes, dtype=wide).astype(x.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        y = bind(self, primals)
        if type(t) is Zero:
            return y, Zero(y.aval)
        x, t = self.to_front(x), self.to_front(t)
        while x.aval.shape[0] > 1:  # pairs (product, tangent) are folded in halves
            n = x.aval.shape[0]
            half = n // 2
            (a, b), (da, db) = (tuple(slice_axis(v, 0, i * half, (i + 1) * half) for i in (0, 1)) for v in (x, t))
            rest, drest = slice_axis(x, 0, 2 * half, n), slice_axis(t, 0, 2 * half, n)
            x, t = mul(a, b), add(safe_mul(b, da), safe_mul(a, db))
            if n % 2:
                x, t = (concat((v, r), 0) for v, r in ((x, rest), (t, drest)))
        return y, sum_over(t, (0,))

    def to_front(self, x: Any) -> Any:
        """The reduced axes as one axis, in front."""
        shape = aval_of(x).shape
        rest = tuple(i for i in range(len(shape)) if i not in self.axes)
        return reshape(transpose(x, self.axes + rest), (math.prod(shape[a] for a in self.axes),
                                                        *(shape[i] for i in rest)))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        axes = beside(self.axes, dims[0])
        return bind(interned(type(self), axes), args), without(axes, dims[0])

    def lower(self, px: Any, x: Any) -> Any:
        if not self.axes:
            return x
        return lowering.in_float32(px, lambda t: px.ops.prod(t, list(self.axes)), x)


@dataclass(frozen=True)
class Argmax(Primitive):
    """The index of the largest element along an axis, int32; the first of equal ones, NaN being the largest."""

    axis: int

    def abstract(self, x: Aval) -> Aval:
        check_dtype("argmax", x, "iuf")
        check_axes("argmax", (self.axis,), x.ndim)
        if x.shape[self.axis] == 0:
            raise ShapeError(f"argmax of no elements: {x} along axis {self.axis}")
        return Aval._make(reduced(x.shape, (self.axis,)), int32, False)

    def eval(self, x: np.ndarray) -> Any:
        return np.argmax(x, self.axis).astype(np.int32)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        along, = beside((self.axis,), dims[0])
        return argmax(args[0], along), without((along,), dims[0])

    def lower(self, px: Any, x: Any) -> Any:
        ops = px.ops
        y = ops.argmax(x, self.axis)
        if not lowering.is_float(x):
            return y
        nan = ops.cast(ops.isnan(x), px.float32)
        found = ops.greater(ops.sum(nan, [self.axis]), px.constant(0.0, px.float32))
        return ops.where(found, ops.argmax(nan, self.axis), y)


@dataclass(frozen=True)
class Softmax(Primitive):
    """exp(x) over its sum along an axis, the largest element subtracted first; float16 is computed in float32."""

    axis: int

    def abstract(self, x: Aval) -> Aval:
        check_dtype("softmax", x, "f")
        check_axes("softmax", (self.axis,), x.ndim)
        return x

    def eval(self, x: np.ndarray) -> Any:
        if not x.size:
            return x.copy()
        wide = x.astype(accumulator_dtype(x.dtype))
        e = np.exp(wide - wide.max(self.axis, keepdims=True))
        return (e / e.sum(self.axis, keepdims=True)).astype(x.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y, t = bind(self, primals), tangents[0]
        if type(t) is Zero:
            return y, Zero(y.aval)
        kept = reduced(y.aval.shape, (self.axis,), keep=True)
        inner = reshape(sum_over(safe_mul(y, t), (self.axis,)), kept)
        return y, safe_mul(y, sub(t, broadcast_to(inner, y.aval.shape)))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        along, = beside((self.axis,), dims[0])
        return softmax(args[0], along), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.in_float32(px, lambda t: px.ops.softmax(t, self.axis), x)


def max_over(x: Any, axes: Axes) -> Any: return bind(interned(Max, axes), (x,))
def min_over(x: Any, axes: Axes) -> Any: return bind(interned(Min, axes), (x,))
def prod_over(x: Any, axes: Axes) -> Any: return bind(interned(Prod, axes), (x,))
def argmax(x: Any, axis: int) -> Any: return bind(interned(Argmax, axis), (x,))
def softmax(x: Any, axis: int) -> Any: return bind(interned(Softmax, axis), (x,))
