"""Writing along an axis at indices that are values.

All of them take x, the indices, and updates that have the axes of the indices in the place of x's axis. Negative
indices count from the end; an update whose index is still out of range is dropped.
"""
from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Sequence, Tuple

import numpy as np

from ..aval import Aval, accumulator_dtype, int32
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .binary import eq, select
from .elementwise import convert, div
from .indexing import (
    axes_behind,
    axes_behind_back,
    counted,
    counted_indices,
    in_bounds,
    is_inside,
    lane_starts,
    take,
    take_where,
)
from .kinds import add, safe_mul
from .shaping import Dims, broadcast_to, check_axes, check_dtype, in_lanes, interned, reshape, to_front
from .structural import instantiate, iota


class Scatter(Primitive):
    """The rules that all scatters share."""

    axis: int
    takes: ClassVar[str] = "iuf"

    def abstract(self, x: Aval, indices: Aval, updates: Aval) -> Aval:
        check_axes(self.name, (self.axis,), x.ndim)
        check_dtype(f"{self.name}: an index", indices, "iu")
        check_dtype(self.name, x, self.takes)
        if updates.dtype != x.dtype:
            raise DtypeError(f"{self.name}: updates have the operand's dtype, got {updates} for {x}: "
                             "convert one with astype")
        if updates.shape != x.shape[:self.axis] + indices.shape + x.shape[self.axis + 1:]:
            raise ShapeError(f"{self.name}: updates have the axes of the indices {indices} in the place of axis "
                             f"{self.axis} of {x}, got {updates}")
        return Aval._make(x.shape, x.dtype, x.weak and updates.weak)

    def eval(self, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> Any:
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        out = x.astype(wide)
        parts = updates.reshape(x.shape[:self.axis] + (indices.size,) + x.shape[self.axis + 1:]).astype(wide)
        size = x.shape[self.axis]
        places = counted(indices, size).ravel()
        inside = (places >= 0) & (places < size)
        self.write(np.moveaxis(out, self.axis, 0), places[inside], np.moveaxis(parts, self.axis, 0)[inside])
        return out.astype(x.dtype)

    @abc.abstractmethod
    def write(self, rows: np.ndarray, places: np.ndarray, parts: np.ndarray) -> None:
        """Write a part to the row at each place, which is in range, in order."""

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, indices, updates), (i, j, k) = args, dims
        x, updates, first = in_lanes(x, i, axis), in_lanes(updates, k, axis), self.axis + 1
        if j is None:
            return bind(interned(type(self), first), (x, indices, updates)), 0
        # The lanes of x one after the other, so that one write along one axis serves all of them.
        x, size, count = axes_behind(x, first, 1), aval_of(x).shape[first], aval_of(indices).ndim - 1
        lanes = lane_starts(axis, count, size)
        index = counted_indices(to_front(indices, j), size)
        beyond = literal(axis.size * size, lanes.aval)
        index = select(in_bounds(index, size), add(index, lanes), beyond)
        shape = aval_of(x).shape
        y = bind(interned(type(self), 0), (reshape(x, (axis.size * size, *shape[2:])), index,
                                           axes_behind(updates, first, count)))
        return axes_behind_back(reshape(y, shape), first, 1), 0

    def lower(self, px: Any, x: Any, indices: Any, updates: Any) -> Any:
        ops, size = px.ops, x.shape[self.axis]
        count = math.prod(indices.shape)
        index = lowering.reshape(px, lowering.counted_index(px, indices, size), (count,))
        place = lowering.clamped(px, index, size - 1)
        inside = ops.equal(index, place)
        parts = lowering.reshape(px, updates, (*x.shape[:self.axis], count, *x.shape[self.axis + 1:]))
        return self.lower_write(px, x, place, inside, parts)

    @abc.abstractmethod
    def lower_write(self, px: Any, x: Any, place: Any, inside: Any, parts: Any) -> Any:
        """`lower` with a vector of places in range and of whether to write, and a part for each."""

    def along_axis(self, px: Any, vector: Any, rank: int) -> Any:
        """A vector along the axis, to broadcast with tensors of a rank."""
        return lowering.reshape(px, vector, (*vector.shape, *(1,) * (rank - 1 - self.axis)))


class LinearScatter(Scatter):
    """Linear in x and the updates together."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        tx, _, tu = tangents
        if type(tx) is Zero and type(tu) is Zero:
            return y, Zero(y.aval)
        return y, bind(self, (instantiate(tx), primals[1], instantiate(tu)))


@dataclass(frozen=True)
class ScatterSet(LinearScatter):
    """x with the updates in the place of what was there; of several at one place the last one stays."""

    axis: int
    takes: ClassVar[str] = "biuf8"

    def write(self, rows: np.ndarray, places: np.ndarray, parts: np.ndarray) -> None:
        rows[places] = parts  # NumPy promises that of equal places the last one wins

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any) -> Tuple[Any, ...]:
        by_x = by_updates = None
        zero = literal(0, aval_of(ct))
        if type(x) is Linear:
            shape = aval_of(ct).shape
            shape = shape[:self.axis] + aval_of(indices).shape + shape[self.axis + 1:]
            by_x = scatter_set(ct, indices, broadcast_to(zero, shape), self.axis)
        if type(updates) is Linear:
            stays = last_writes(indices, aval_of(ct).shape[self.axis])
            by_updates = take_where(stays, ct, indices, self.axis, zero)
        return by_x, None, by_updates

    def lower_write(self, px: Any, x: Any, place: Any, inside: Any, parts: Any) -> Any:
        ops, axis, size, count = px.ops, self.axis, x.shape[self.axis], place.shape[0]
        if count == 1:
            old = ops.dynamic_slice(x, place, [axis], [1], True)
            new = ops.where(lowering.reshape(px, inside, ()), parts, old)
            return ops.dynamic_update(x, place, new, [axis], [1], True)
        # PopXL leaves open which of several writes to one place wins. So each place reads from the last one.
        nothing = px.constant(-1, px.int32)
        number = px.constant(np.arange(count, dtype=np.int32), px.int32)
        last = ops.scatter_reduce(ops.where(inside, number, nothing), place, "max",
                                  initial_values=lowering.broadcast(px, nothing, (size,)))
        written = ops.greater(last, nothing)
        new = ops.gather(parts, ops.where(written, last, px.constant(0, px.int32)), axis)
        return ops.where(self.along_axis(px, written, len(x.shape)), new, x)


@dataclass(frozen=True)
class ScatterAdd(LinearScatter):
    """x with the updates added to what is there. float16 is accumulated in float32 and rounded once; integers wrap."""

    axis: int

    def write(self, rows: np.ndarray, places: np.ndarray, parts: np.ndarray) -> None:
        np.add.at(rows, places, parts)

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any) -> Tuple[Any, ...]:
        by_updates = None
        if type(updates) is Linear:
            inside = is_inside(indices, aval_of(ct).shape[self.axis])
            by_updates = take_where(inside, ct, indices, self.axis, literal(0, aval_of(ct)))
        return ct if type(x) is Linear else None, None, by_updates

    def lower_write(self, px: Any, x: Any, place: Any, inside: Any, parts: Any) -> Any:
        nothing = lowering.scalar(px, -0.0 if lowering.is_float(x) else 0, x)  # adding 0.0 makes 0.0 of -0.0
        parts = px.ops.where(self.along_axis(px, inside, len(x.shape)), parts, nothing)
        return lowering.in_float32(px, lambda t, p: px.ops.scatter_reduce(
            p, place, "sum", initial_values=t, axis=self.axis), x, parts)


class ScatterExtremum(Scatter):
    """The largest or smallest of what is at a place and of the updates that go there; NaN if one of them is.

    The cotangent is shared equally among the winners, of which what was there before is one like the others.
    """

    op: ClassVar[str]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        (x, indices, updates), (tx, _, tu) = primals, tangents
        y = bind(self, primals)
        if not y.aval.size or type(tx) is Zero and type(tu) is Zero:
            return y, Zero(y.aval)

        def part(wins: Any, winners: Any, t: Any) -> Any:
            return t if type(t) is Zero else safe_mul(convert(div(wins, winners), y.aval.dtype), t)
        wide = accumulator_dtype(y.aval.dtype)  # counted in float32, because float16 ends at 65504
        x_wins = convert(eq(x, y), wide)
        updates_win = convert(eq(updates, take(y, indices, self.axis)), wide)
        winners = scatter_add(x_wins, indices, updates_win, self.axis)
        tx = part(x_wins, winners, tx)
        tu = part(updates_win, take(winners, indices, self.axis), tu)
        return y, scatter_add(instantiate(tx), indices, instantiate(tu), self.axis)

    def lower_write(self, px: Any, x: Any, place: Any, inside: Any, parts: Any) -> Any:
        ops, dtype = px.ops, np.dtype(x.dtype.as_numpy())
        low, high = (-math.inf, math.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        nothing = lowering.scalar(px, low if self.op == "max" else high, x)
        parts = ops.where(self.along_axis(px, inside, len(x.shape)), parts, nothing)
        y = ops.scatter_reduce(parts, place, self.op, initial_values=x, axis=self.axis)
        if dtype.kind != "f":
            return y
        nans = ops.scatter_reduce(ops.cast(ops.isnan(parts), px.float32), place, "sum",
                                  initial_values=ops.cast(ops.isnan(x), px.float32), axis=self.axis)
        return ops.where(ops.greater(nans, px.constant(0.0, px.float32)), lowering.scalar(px, math.nan, x), y)


@dataclass(frozen=True)
class ScatterMax(ScatterExtremum):
    """x with the larger of the updates and what is there; NaN if there is one."""

    axis: int
    op: ClassVar[str] = "max"

    def write(self, rows: np.ndarray, places: np.ndarray, parts: np.ndarray) -> None:
        np.maximum.at(rows, places, parts)


@dataclass(frozen=True)
class ScatterMin(ScatterExtremum):
    """x with the smaller of the updates and what is there; NaN if there is one."""

    axis: int
    op: ClassVar[str] = "min"

    def write(self, rows: np.ndarray, places: np.ndarray, parts: np.ndarray) -> None:
        np.minimum.at(rows, places, parts)


def last_writes(indices: Any, size: int) -> Any:
    """Whether each index into an axis of `size` is in range and the last one that names its element."""
    shape = aval_of(indices).shape
    count = math.prod(shape)
    if count == 1 or not size:
        return is_inside(indices, size)
    number = iota(int32, (count,), 0)
    last = scatter_max(broadcast_to(literal(-1, number.aval), (size,)), reshape(indices, (count,)), number, 0)
    return eq(take(last, indices, 0), reshape(number, shape))


def _scatter(cls: type, x: Any, indices: Any, updates: Any, axis: int) -> Any:
    """A scatter, left out where there is nothing to write."""
    return bind(interned(cls, axis), (x, indices, updates)) if aval_of(x).size and aval_of(updates).size else x


def scatter_set(x: Any, indices: Any, updates: Any, axis: int) -> Any: return _scatter(
    ScatterSet, x, indices, updates, axis)
def scatter_add(x: Any, indices: Any, updates: Any, axis: int) -> Any: return _scatter(
    ScatterAdd, x, indices, updates, axis)
def scatter_max(x: Any, indices: Any, updates: Any, axis: int) -> Any: return _scatter(
    ScatterMax, x, indices, updates, axis)
def scatter_min(x: Any, indices: Any, updates: Any, axis: int) -> Any: return _scatter(
    ScatterMin, x, indices, updates, axis)
