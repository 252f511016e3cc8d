"""Sorting along an axis, and reading along an axis at places that differ from lane to lane."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, List, Sequence, Tuple

import numpy as np

from ..aval import Aval, int32
from ..errors import ShapeError
from ..primitive import MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .indexing import take
from .kinds import add, mul
from .shaping import Dims, beside, check_axes, check_dtype, interned, reshape
from .structural import iota

#: Lowered, up to so many elements are sorted by comparing each with each; longer axes are merged from such blocks.
BLOCK = 64


def along_axis(x: Any, indices: Any, axis: int) -> Any:
    """`np.take_along_axis`: in each lane, the elements at that lane's indices, which are in range and int32."""
    shape, wanted = aval_of(x).shape, aval_of(indices).shape
    lanes, after = math.prod(shape[:axis]), math.prod(shape[axis + 1:])
    places = reshape(indices, (lanes, wanted[axis], after))
    if after > 1:
        places = mul(places, literal(after, aval_of(places)))
        places = add(places, iota(int32, (1, 1, after), 2))
    if lanes > 1:
        first = iota(int32, (lanes, 1, 1), 0)
        places = add(places, mul(first, literal(shape[axis] * after, aval_of(first))))
    return reshape(take(reshape(x, (aval_of(x).size,)), places, 0), wanted)


class Picking(Primitive):
    """Elements of the operand along an axis, and the indices they had, int32; tangents are picked by the indices."""

    axis: int
    multiple: ClassVar[bool] = True

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        values, order = bind(self, primals)
        t = tangents[0]
        moved = Zero(values.aval) if type(t) is Zero else along_axis(t, order, self.axis)
        return (values, order), (moved, Zero(order.aval))


@dataclass(frozen=True)
class Sort(Picking):
    """The elements along an axis in ascending order, and the indices they had, int32.

    Stable: equal elements, among them 0.0 and -0.0, keep their order. NaN comes last.
    """

    axis: int

    def abstract(self, x: Aval) -> Tuple[Aval, Aval]:
        check_dtype("sort", x, "iuf")
        check_axes("sort", (self.axis,), x.ndim)
        return x, Aval._make(x.shape, int32, False)

    def eval(self, x: np.ndarray) -> Tuple[Any, Any]:
        order = np.argsort(x, self.axis, kind="stable")
        return np.take_along_axis(x, order, self.axis), order.astype(np.int32)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        along, = beside((self.axis,), dims[0])
        return sort(args[0], along), (dims[0], dims[0])

    def lower(self, px: Any, x: Any) -> Tuple[Any, Any]:
        flat, n = laned(px, x, self.axis), x.shape[self.axis]
        values, places = sorted_lanes(px, flat, np.arange(n), n)
        return unlaned(px, values, x, self.axis), unlaned(px, places, x, self.axis)


@dataclass(frozen=True)
class Topk(Picking):
    """The k largest elements along an axis, largest first, and their indices, int32.

    The first of equal elements comes first, NaN being the largest.
    """

    k: int
    axis: int

    def abstract(self, x: Aval) -> Tuple[Aval, Aval]:
        check_dtype("topk", x, "iuf")
        check_axes("topk", (self.axis,), x.ndim)
        if not 0 <= self.k <= x.shape[self.axis]:
            raise ShapeError(f"topk: {self.k} elements of {x} along axis {self.axis}, which has {x.shape[self.axis]}")
        shape = x.shape[:self.axis] + (self.k,) + x.shape[self.axis + 1:]
        return x.with_shape(shape), Aval._make(shape, int32, False)

    def eval(self, x: np.ndarray) -> Tuple[Any, Any]:
        backwards = np.argsort(np.flip(x, self.axis), self.axis, kind="stable")
        order = np.take(x.shape[self.axis] - 1 - np.flip(backwards, self.axis), range(self.k), self.axis)
        return np.take_along_axis(x, order, self.axis), order.astype(np.int32)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        along, = beside((self.axis,), dims[0])
        return topk(args[0], self.k, along), (dims[0], dims[0])

    def lower(self, px: Any, x: Any) -> Tuple[Any, Any]:
        ops, n, k = px.ops, x.shape[self.axis], self.k
        flat, from_end = laned(px, x, self.axis), np.arange(n)[::-1]
        if lowering.is_float(x) and n > BLOCK:
            values, places = sorted_lanes(px, *selected(px, flat, from_end, k), n)
        else:
            values, places = sorted_lanes(px, flat, from_end, n)
        last = [ops.slice(t, [-1], [-k - 1], [-1], [1]) for t in (values, places)]
        places = ops.sub(px.constant(n - 1, px.int32), last[1])
        return unlaned(px, last[0], x, self.axis), unlaned(px, places, x, self.axis)


# ---------------------------------------------------------------------------- lowering
def laned(px: Any, x: Any, axis: int) -> Any:
    """x as (lanes, size of the axis)."""
    lanes = [i for i in range(len(x.shape)) if i != axis]
    moved = lowering.transpose(px, x, (*lanes, axis))
    return lowering.reshape(px, moved, (math.prod(x.shape[i] for i in lanes), x.shape[axis]))


def unlaned(px: Any, flat: Any, like: Any, axis: int) -> Any:
    """The opposite of `laned`, for the axes of `like`; the axis may have got another size."""
    lanes = [i for i in range(len(like.shape)) if i != axis]
    moved = lowering.reshape(px, flat, (*(like.shape[i] for i in lanes), flat.shape[1]))
    return lowering.transpose(px, moved, sorted(range(len(like.shape)), key=(*lanes, axis).__getitem__))


def counted(px: Any, condition: Any) -> Any:
    """A condition as 0 and 1, to be added up: float32, in which numbers below 2 ** 24 are exact."""
    return px.ops.cast(condition, px.float32)


def selected(px: Any, x: Any, places: np.ndarray, k: int) -> Tuple[Any, Any]:
    """The k largest of each lane of floats in the order in which they stand there, and what `places` has for them.

    Of ops.topk only the k-th value is used: which of equal elements it takes, and what it makes of NaN, is not said.
    """
    ops = px.ops
    nan = ops.isnan(x)
    key = ops.where(nan, lowering.scalar(px, math.inf, x), x)
    least = ops.slice(ops.topk(key, k, 1, True, True)[0], [k - 1], [k], None, [1])
    above = ops.logical_or(nan, ops.greater(key, least))
    equal = ops.logical_and(ops.equal(key, least), ops.logical_not(nan))
    room = ops.sub(px.constant(float(k), px.float32), ops.sum(counted(px, above), [1], keepdims=True))
    late = ops.greater(ops.cumsum(counted(px, equal), 1), room)
    taken = ops.logical_or(above, ops.logical_and(equal, ops.logical_not(late)))
    slot = ops.cumsum(counted(px, taken), 1)
    end = px.constant(float(k + 1), px.float32)  # where the others go
    slot = ops.where(ops.logical_and(taken, ops.greater(end, slot)), slot, end)
    slot = ops.sub(ops.cast(slot, px.int32), px.constant(1, px.int32))
    every = lowering.broadcast(px, px.constant(places.astype(np.int32).reshape(1, -1), px.int32), tuple(x.shape))
    kept = [ops.scatter_reduce(t, slot, "none", axis=1, axis_size=k + 1) for t in (x, every)]
    return tuple(ops.slice(t, [0], [k], None, [1]) for t in kept)


def sorted_lanes(px: Any, x: Any, places: Any, limit: int) -> Tuple[Any, Any]:
    """The lanes of x sorted, equal elements by their `places`, and the places in that order.

    `places` are different integers below `limit` in each lane: data for all lanes, or a tensor. So all pairs of an
    element and its place are different, and no op has to break a tie; NaN becomes infinity with a place beyond the
    limit, and what fills the last block has places beyond that. Blocks are sorted, then merged two by two by a
    bitonic network (Batcher 1968).
    """
    ops, (lanes, n) = px.ops, x.shape
    if isinstance(places, np.ndarray):
        places = px.constant(places.astype(np.int32).reshape(1, -1), px.int32)
    beyond = px.constant(limit, px.int32)
    if lowering.is_float(x):
        nan = ops.isnan(x)
        key = ops.where(nan, lowering.scalar(px, math.inf, x), x)
        places = ops.where(nan, ops.add(places, beyond), places)
    else:
        key = x if str(x.dtype.name) in ("int32", "uint32") else ops.cast(x, px.int32)
        places = lowering.broadcast(px, places, tuple(x.shape))
    size = n if n <= BLOCK else BLOCK << math.ceil(math.log2(-(-n // BLOCK)))
    pair: Sequence[Any] = filled(px, key, places, size, 2 * limit)
    pair = ranked(px, pair, min(size, BLOCK))
    width = 2 * BLOCK
    while width <= size:
        pair = merged(px, pair, width)
        width *= 2
    key, places = (lowering.reshape(px, t, (lanes, size)) for t in pair)
    if size > n:
        key, places = (ops.slice(t, [0], [n], None, [1]) for t in (key, places))
    if lowering.is_float(x):
        nan = ops.greater(places, px.constant(limit - 1, px.int32))
        key = ops.where(nan, lowering.scalar(px, math.nan, key), key)
        places = ops.where(nan, ops.sub(places, beyond), places)
    return key if key.dtype == x.dtype else ops.cast(key, x.dtype), places


def filled(px: Any, key: Any, places: Any, size: int, first: int) -> Tuple[Any, Any]:
    """Lanes of `size`, with pairs at their end that come after all others: their places count up from `first`."""
    lanes, n = key.shape
    if n == size:
        return key, places
    largest = math.inf if lowering.is_float(key) else np.iinfo(key.dtype.as_numpy()).max
    beyond = px.constant(np.arange(first, first + size - n, dtype=np.int32).reshape(1, -1), px.int32)
    shape = (lanes, size - n)
    return (px.ops.concat([key, lowering.broadcast(px, lowering.scalar(px, largest, key), shape)], 1),
            px.ops.concat([places, lowering.broadcast(px, beyond, shape)], 1))


def comes_after(px: Any, a: Sequence[Any], b: Sequence[Any]) -> Any:
    """Whether pair a comes after pair b: by the elements, then by the places."""
    ops = px.ops
    return ops.logical_or(ops.greater(a[0], b[0]),
                          ops.logical_and(ops.equal(a[0], b[0]), ops.greater(a[1], b[1])))


def ranked(px: Any, pair: Sequence[Any], block: int) -> Sequence[Any]:
    """Each block of the pairs sorted: where one goes is how many it comes after."""
    count = math.prod(pair[0].shape) // block
    rows = [lowering.reshape(px, t, (count, block, 1)) for t in pair]
    columns = [lowering.reshape(px, t, (count, 1, block)) for t in pair]
    rank = px.ops.sum(px.ops.cast(comes_after(px, rows, columns), px.int32), [2])
    return [px.ops.scatter(px.ops.init((count, block), t.dtype), rank, lowering.reshape(px, t, (count, block)), axis=1)
            for t in pair]


def merged(px: Any, pair: Sequence[Any], width: int) -> Sequence[Any]:
    """Runs of `width` sorted, both halves of which are."""
    ops, half = px.ops, width // 2
    count = math.prod(pair[0].shape) // width
    runs = [lowering.reshape(px, t, (count, width)) for t in pair]
    low = [ops.slice(t, [0], [half], None, [1]) for t in runs]
    high = [ops.slice(t, [-1], [half - width - 1], [-1], [1]) for t in runs]  # backwards
    pair = exchanged(px, low, high)
    while half > BLOCK:  # every half holds what belongs into it, in no order that matters
        half //= 2
        runs = [lowering.reshape(px, t, (-1, 2 * half)) for t in pair]
        pair = exchanged(px, [ops.slice(t, [0], [half], None, [1]) for t in runs],
                         [ops.slice(t, [half], [2 * half], None, [1]) for t in runs])
    return ranked(px, pair, BLOCK)


def exchanged(px: Any, a: Sequence[Any], b: Sequence[Any]) -> List[Any]:
    """Of each pair in a and its opposite in b: what comes first where a was, beside it the other where b was."""
    swap = comes_after(px, a, b)
    return [px.ops.concat([px.ops.where(swap, t, s), px.ops.where(swap, s, t)], 1) for s, t in zip(a, b)]


def sort(x: Any, axis: int) -> Any: return bind(interned(Sort, axis), (x,))
def topk(x: Any, k: int, axis: int) -> Any: return bind(interned(Topk, k, axis), (x,))
