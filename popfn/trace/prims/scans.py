"""Scans: sums, products and the like of all elements along an axis up to each.

Lowered, and in derivatives, they take the logarithm of the axis' size in steps, each of which doubles how many elements
a partial result covers (Hillis and Steele 1986).
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, List, Sequence, Tuple

import numpy as np

from ..aval import Aval, accumulator_dtype, float32, int32
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import and_, eq, maximum, ne, select
from .elementwise import Log1p, abs_, convert, exp, log, reciprocal, stop_gradient
from .kinds import add, mul, neg, safe_mul, sub
from .order import Picking
from .shaping import Dims, LinearOp, beside, check_axes, check_dtype, interned
from .structural import concat, reverse, slice_axis

#: From the partial results before and those at a place to those that cover both, part by part.
Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def doubled(combine: Combine, parts: Sequence[Any], size: int, cut: Callable[[Any, int, int], Any],
            join: Callable[[Any, Any], Any]) -> Sequence[Any]:
    """Values of several parts, scanned along an axis of `size`, of which `cut` takes a range and `join` joins two."""
    width = 1
    while width < size:
        before, here = ([cut(p, start, start + size - width) for p in parts] for start in (0, width))
        parts = [join(cut(p, 0, width), c) for p, c in zip(parts, combine(before, here))]
        width *= 2
    return parts


def scanned(combine: Combine, parts: Sequence[Any], axis: int) -> Sequence[Any]:
    """A scan of traced values, in float32 if they are float16."""
    wide = [x if aval_of(x).dtype != np.float16 else convert(x, float32) for x in parts]
    return doubled(combine, wide, aval_of(parts[0]).shape[axis],
                   lambda x, start, stop: slice_axis(x, axis, start, stop), lambda x, y: concat((x, y), axis))


def scanned_tensors(px: Any, combine: Combine, parts: Sequence[Any], axis: int) -> Sequence[Any]:
    """A scan of PopXL tensors."""
    return doubled(combine, parts, parts[0].shape[axis],
                   lambda t, start, stop: px.ops.slice(t, [start], [stop], None, [axis]),
                   lambda a, b: px.ops.concat([a, b], axis))


class Scan(Primitive):
    """One result of the operand's type, each element of which is made of the elements up to it."""

    axis: int
    takes: ClassVar[str] = "iuf"

    def abstract(self, x: Aval) -> Any:
        check_dtype(self.name, x, self.takes)
        check_axes(self.name, (self.axis,), x.ndim)
        return x

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        return bind(interned(type(self), *beside((self.axis,), dims[0])), args), dims[0]


@dataclass(frozen=True)
class Cumsum(Scan, LinearOp):
    """Sums of the elements up to each. float16 is accumulated in float32 and each sum rounded once; integers wrap."""

    axis: int

    def eval(self, x: np.ndarray) -> Any:
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.cumsum(x, self.axis, dtype=wide).astype(x.dtype)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (reverse(cumsum(reverse(ct, (self.axis,)), self.axis), (self.axis,)),)

    def lower(self, px: Any, x: Any) -> Any:
        if lowering.is_float(x):
            return lowering.in_float32(px, lambda t: px.ops.cumsum(t, self.axis), x)
        y, = scanned_tensors(px, lambda a, b: [px.ops.add(a[0], b[0])], [x], self.axis)  # ops.cumsum is of floats
        return y


@dataclass(frozen=True)
class Cumprod(Scan):
    """Products of the elements up to each; float16 is multiplied in float32 and each product rounded once.

    The derivative is made of products, never of a quotient, so that zeros are exact. Lowered, products of neighbours
    are formed on the way, which may overflow or underflow where a product from the front does not.
    """

    axis: int

    def eval(self, x: np.ndarray) -> Any:
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.cumprod(x, self.axis, dtype=wide).astype(x.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y, t = bind(self, primals), tangents[0]
        if type(t) is Zero:
            return y, Zero(y.aval)

        def product(before: Sequence[Any], here: Sequence[Any]) -> Sequence[Any]:
            (a, da), (b, db) = before, here
            return mul(a, b), add(safe_mul(b, da), safe_mul(a, db))
        _, total = scanned(product, (primals[0], t), self.axis)
        return y, convert(total, y.aval.dtype)

    def lower(self, px: Any, x: Any) -> Any:
        def products(t: Any) -> Any:
            return scanned_tensors(px, lambda a, b: [px.ops.mul(a[0], b[0])], [t], self.axis)[0]
        return lowering.in_float32(px, products, x)


@dataclass(frozen=True)
class Cummax(Scan, Picking):
    """The largest of the elements up to each, and its index, int32: the first of equal ones, NaN being the largest.

    The tangent is that of the element at the index, as in a pool whose window grows.
    """

    axis: int

    def abstract(self, x: Aval) -> Tuple[Aval, Aval]:
        return super().abstract(x), Aval._make(x.shape, int32, False)

    def eval(self, x: np.ndarray) -> Tuple[Any, Any]:
        top = np.moveaxis(np.maximum.accumulate(x, self.axis), self.axis, -1)
        rises = (top[..., 1:] != top[..., :-1]) & (top[..., :-1] == top[..., :-1])  # NaN stays
        places = np.zeros(top.shape, np.int32)
        places[..., 1:] = np.maximum.accumulate(np.where(rises, np.arange(1, x.shape[self.axis]), 0), -1)
        places = np.moveaxis(places, -1, self.axis)
        return np.take_along_axis(x, places, self.axis), places

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        results, dim = super().batch(axis, args, dims)
        return results, (dim, dim)

    def lower(self, px: Any, x: Any) -> Tuple[Any, Any]:
        ops = px.ops

        def larger(before: Sequence[Any], here: Sequence[Any]) -> List[Any]:
            rises = ops.greater(here[0], before[0])
            if lowering.is_float(x):
                first_nan = ops.logical_and(ops.isnan(here[0]), ops.logical_not(ops.isnan(before[0])))
                rises = ops.logical_or(rises, first_nan)
            return [ops.where(rises, b, a) for a, b in zip(before, here)]
        line = np.arange(x.shape[self.axis], dtype=np.int32)
        column = px.constant(line.reshape([-1 if i == self.axis else 1 for i in range(len(x.shape))]), px.int32)
        value, place = scanned_tensors(px, larger, [x, lowering.broadcast(px, column, tuple(x.shape))], self.axis)
        return value, place


@dataclass(frozen=True)
class Cumlogsumexp(Scan):
    """log(sum(exp(x))) of the elements up to each, without overflow; float16 is computed in float32.

    Where it is infinite because elements are, nothing flows from those that are infinite together.
    """

    axis: int
    takes: ClassVar[str] = "f"

    def eval(self, x: np.ndarray) -> Any:
        return np.logaddexp.accumulate(x.astype(accumulator_dtype(x.dtype)), self.axis).astype(x.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y, t = bind(self, primals), tangents[0]
        if type(t) is Zero:
            return y, Zero(y.aval)
        _, total = scanned(weighted, (primals[0], t), self.axis)
        return y, convert(total, y.aval.dtype)

    def lower(self, px: Any, x: Any) -> Any:
        ops = px.ops

        def combined(before: Sequence[Any], here: Sequence[Any]) -> List[Any]:
            a, b = before[0], here[0]
            larger = ops.where(ops.greater(a, b), a, b)
            apart = ops.where(ops.equal(a, b), px.constant(0.0, px.float32), ops.sub(a, b))  # equal infinities too
            return [ops.add(larger, Log1p.lower_float32(px, ops.exp(ops.negate(ops.abs(apart)))))]
        return lowering.in_float32(px, lambda t: scanned_tensors(px, combined, [t], self.axis)[0], x)


def weighted(before: Sequence[Any], here: Sequence[Any]) -> Sequence[Any]:
    """log(exp(a) + exp(b)) and its tangent, for values a and b with tangents; both may be differentiated again."""
    (a, da), (b, db) = before, here
    one, zero = (literal(c, aval_of(a)) for c in (1.0, 0.0))
    top = stop_gradient(maximum(a, b))
    top = select(eq(abs_(top), literal(math.inf, aval_of(top))), zero, top)
    y = add(log(add(exp(sub(a, top)), exp(sub(b, top)))), top)
    apart = sub(a, b)
    together = and_(eq(a, b), ne(apart, apart))  # the same infinity
    by_a, by_b = (select(together, zero, reciprocal(add(exp(d), one))) for d in (neg(apart), apart))
    return y, add(safe_mul(by_a, da), safe_mul(by_b, db))


def cumsum(x: Any, axis: int) -> Any: return bind(interned(Cumsum, axis), (x,))
def cumprod(x: Any, axis: int) -> Any: return bind(interned(Cumprod, axis), (x,))
def cummax(x: Any, axis: int) -> Any: return bind(interned(Cummax, axis), (x,))
def cumlogsumexp(x: Any, axis: int) -> Any: return bind(interned(Cumlogsumexp, axis), (x,))
