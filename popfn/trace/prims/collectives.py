"""Collectives: primitives over a named mapped axis, and the types that go with them.

A value's type says over which named axes it varies (`f32[4]{i}`): there it may differ between the lanes; what does not
vary is one value for all of them. A value that varies and one that does not meet through `pvary`, which `bind` inserts.
So a derivative is that of the one function of all lanes: `pvary` hands one value to every lane, and its transpose
`psum` adds up what comes back from them; the transpose of `psum` is `pvary`.
"""
from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ..aval import DEVICE, Aval, AxisNames, int32
from ..errors import AxisError, ShapeError
from ..primitive import MIXED, Linear, MappedAxis, Primitive, Zero
from ..tracer import Trace, aval_of, bind, literal
from .binary import eq, select
from .elementwise import convert, div
from .indexing import take
from .kinds import mul, safe_mul
from .reduce import max_over, min_over
from .shaping import Dims, check_axes, check_dtype, in_lanes, interned, moved, reshape, sum_over, to_front, transpose
from .structural import iota, pad, slice_axis

Names = Tuple[str, ...]


class Collective(Primitive):
    """An operation between the lanes of named axes, which says itself over which axes its result varies.

    There are no lanes outside of a mapped axis, so that `eval` and `lower` have nothing to work on; vmap makes it an
    operation along the mapped axis.
    """

    @property
    def axes(self) -> Names:
        """The names of the axes."""
        names: Names = self.names if hasattr(self, "names") else (self.axis_name,)  # type: ignore[attr-defined]
        return names

    def eval(self, *xs: np.ndarray) -> Any:
        raise AxisError(f"{self.name} over {quoted(self.axes)} has no value outside of the mapped axis")

    def lower(self, px: Any, *xs: Any) -> Any:
        raise AxisError(f"{self.name} over {quoted(self.axes)} cannot be lowered: vmap has not been applied")

    def uses_axis(self, name: str) -> bool:
        return name in self.axes

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        x, = avals
        if x.memory != DEVICE:
            return MIXED
        missing = [n for n in self.axes if n not in x.varying]
        if missing:
            raise AxisError(f"{self.name} of {x}, which does not vary over {quoted(missing)}")
        return self.abstract(x.invariant).over(x.varying - set(self.axes))


class LinearCollective(Collective):
    """One that is linear in its operand."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y, t = bind(self, primals), tangents[0]
        return y, Zero(y.aval) if type(t) is Zero else bind(self, (t,))


class Reduction(Collective):
    """A reduction over the lanes of several axes: one value for all lanes."""

    names: Names

    def abstract(self, x: Aval) -> Aval:
        check_dtype(self.name, x, "iuf")
        return x

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Optional[int]]:
        (x,), (dim,) = args, dims
        if axis.name not in self.names:
            return bind(self, args), dim
        y = self.over_equal_lanes(x, axis.size) if dim is None else self.over_lanes(x, dim)
        rest = tuple(n for n in self.names if n != axis.name)
        return bind(interned(type(self), rest), (y,)) if rest else y, None

    @abc.abstractmethod
    def over_lanes(self, x: Any, dim: int) -> Any:
        """The reduction along the mapped axis."""

    def over_equal_lanes(self, x: Any, size: int) -> Any:
        """The reduction of one value for each of `size` lanes."""
        return x


@dataclass(frozen=True)
class Pvary(LinearCollective):
    """One value for all lanes as a value that may differ between them."""

    names: Names

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        x, = avals
        return x.over(x.varying | set(self.names))

    def abstract(self, x: Aval) -> Aval:
        return x

    def eval(self, *xs: np.ndarray) -> Any:  # of what is known before there are lanes, as a literal is
        return xs[0]

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        missing = tuple([n for n in self.names if n not in x.aval.varying])
        return (psum(ct, missing) if missing else ct,)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Optional[int]]:
        return pvary(args[0], frozenset(self.names) - {axis.name or ""}), dims[0]


@dataclass(frozen=True)
class Psum(Reduction, LinearCollective):
    """The sum over the lanes, one value for all of them."""

    names: Names

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (pvary(ct, frozenset(self.names)),)

    def over_lanes(self, x: Any, dim: int) -> Any:
        return sum_over(x, (dim,))

    def over_equal_lanes(self, x: Any, size: int) -> Any:
        return mul(x, literal(size, aval_of(x)))


class Pextremum(Reduction):
    """The largest or smallest over the lanes; the cotangent is shared equally among the winners."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        y = bind(self, primals)
        if type(t) is Zero:
            return y, Zero(y.aval)
        wins = convert(eq(x, y), y.aval.dtype)
        return y, psum(safe_mul(div(wins, psum(wins, self.names)), t), self.names)


@dataclass(frozen=True)
class Pmax(Pextremum):
    """The largest over the lanes, one value for all of them; NaN if there is one."""

    names: Names

    def over_lanes(self, x: Any, dim: int) -> Any:
        return max_over(x, (dim,))


@dataclass(frozen=True)
class Pmin(Pextremum):
    """The smallest over the lanes, one value for all of them; NaN if there is one."""

    names: Names

    def over_lanes(self, x: Any, dim: int) -> Any:
        return min_over(x, (dim,))


@dataclass(frozen=True)
class AllGather(LinearCollective):
    """The values of all lanes along a new axis, one value for all of them."""

    axis_name: str
    size: int
    axis: int

    def abstract(self, x: Aval) -> Aval:
        check_axes("all_gather", (self.axis,), x.ndim + 1)
        return x.with_shape(x.shape[:self.axis] + (self.size,) + x.shape[self.axis:])

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (own_slice(ct, self.axis_name, self.size, self.axis),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Optional[int]]:
        (x,), (dim,) = args, dims
        if axis.name == self.axis_name:
            return moved(in_lanes(x, dim, axis), 0, self.axis), None
        return all_gather(to_front(x, dim), self.axis_name, self.size, self.axis + 1), 0


@dataclass(frozen=True)
class OwnSlice(LinearCollective):
    """x[..., lane, ...] along an axis of one element for each lane, without that axis."""

    axis_name: str
    size: int
    axis: int

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        x, = avals
        if self.axis_name in x.varying:
            raise AxisError(f"own_slice of {x}, which varies over {self.axis_name!r}")
        return self.abstract(x.invariant).over(x.varying | {self.axis_name})

    def abstract(self, x: Aval) -> Aval:
        check_axes("own_slice", (self.axis,), x.ndim)
        if x.shape[self.axis] != self.size:
            raise ShapeError(f"own_slice: axis {self.axis} of {x} has no element for each of {self.size} lanes")
        return x.with_shape(x.shape[:self.axis] + x.shape[self.axis + 1:])

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (all_gather(ct, self.axis_name, self.size, self.axis),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x,), (dim,) = args, dims
        if axis.name == self.axis_name:
            return x, self.axis
        return own_slice(to_front(x, dim), self.axis_name, self.size, self.axis + 1), 0


@dataclass(frozen=True)
class Ppermute(LinearCollective):
    """Lane `target` gets the value of lane `source` for each pair (source, target); the others get zeros."""

    axis_name: str
    size: int
    pairs: Tuple[Tuple[int, int], ...]

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        out = super().typed(avals)
        return out.over(out.varying | {self.axis_name})

    def abstract(self, x: Aval) -> Aval:
        return x

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (ppermute(ct, self.axis_name, self.size, tuple((b, a) for a, b in self.pairs)),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Optional[int]]:
        (x,), (dim,) = args, dims
        if axis.name != self.axis_name:
            return bind(self, args), dim
        source = np.full(self.size, -1, np.int32)
        for a, b in self.pairs:
            source[b] = a
        y = take(in_lanes(x, dim, axis), np.maximum(source, 0), 0)
        if (source < 0).any():
            gets = (source >= 0).reshape((-1,) + (1,) * (aval_of(y).ndim - 1))
            y = select(gets, y, literal(0, aval_of(y)))
        return y, 0


@dataclass(frozen=True)
class AllToAll(LinearCollective):
    """Lane i sends element j along axis `split` to lane j, which puts what it gets from lane i at i along `concat`.

    `split` is an axis of one element for each lane, and goes; `concat` is a new one.
    """

    axis_name: str
    size: int
    split: int
    concat: int

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        out = super().typed(avals)
        return out.over(out.varying | {self.axis_name})

    def abstract(self, x: Aval) -> Aval:
        check_axes("all_to_all", (self.split,), x.ndim)
        check_axes("all_to_all", (self.concat,), x.ndim)
        if x.shape[self.split] != self.size:
            raise ShapeError(f"all_to_all: axis {self.split} of {x} has no element for each of {self.size} lanes")
        rest = x.shape[:self.split] + x.shape[self.split + 1:]
        return x.with_shape(rest[:self.concat] + (self.size,) + rest[self.concat:])

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (all_to_all(ct, self.axis_name, self.size, self.concat, self.split),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        x, dim = in_lanes(args[0], dims[0], axis), dims[0]
        if axis.name != self.axis_name:
            return all_to_all(to_front(args[0], dim), self.axis_name, self.size, self.split + 1, self.concat + 1), 0
        senders_first = transpose(x, (self.split + 1, *(i for i in range(aval_of(x).ndim) if i != self.split + 1)))
        # axes: receiver, sender, rest
        rest = list(range(2, aval_of(x).ndim))
        rest.insert(self.concat, 1)
        return transpose(senders_first, (0, *rest)), 0


@dataclass(frozen=True)
class AxisIndex(Collective):
    """The number of the lane, int32."""

    axis_name: str
    size: int

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        return self.abstract().over(frozenset((self.axis_name,)))

    def abstract(self) -> Aval:
        return Aval._make((), int32, False)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return iota(int32, (self.size,), 0), 0


def quoted(names: Sequence[str]) -> str:
    """Names of axes as an error shows them."""
    return ", ".join(map(repr, names))


def pvary(x: Any, names: AxisNames) -> Any:
    """Pvary over the axes over which x does not vary yet."""
    missing = tuple(sorted(names - aval_of(x).varying))
    return bind(interned(Pvary, missing), (x,)) if missing else x


def psum(x: Any, names: Names) -> Any: return bind(interned(Psum, names), (x,))
def pmax(x: Any, names: Names) -> Any: return bind(interned(Pmax, names), (x,))
def pmin(x: Any, names: Names) -> Any: return bind(interned(Pmin, names), (x,))
def all_gather(x: Any, name: str, size: int, axis: int) -> Any: return bind(interned(AllGather, name, size, axis), (x,))
def own_slice(x: Any, name: str, size: int, axis: int) -> Any: return bind(interned(OwnSlice, name, size, axis), (x,))
def axis_index(name: str, size: int) -> Any: return bind(interned(AxisIndex, name, size), ())


def ppermute(x: Any, name: str, size: int, pairs: Tuple[Tuple[int, int], ...]) -> Any:
    """Ppermute."""
    return bind(interned(Ppermute, name, size, pairs), (x,))


def all_to_all(x: Any, name: str, size: int, split: int, concat: int) -> Any:
    """AllToAll."""
    return bind(interned(AllToAll, name, size, split, concat), (x,))


def shard_of(x: Any, axes: Sequence[Tuple[str, int]]) -> Any:
    """Of a value that all lanes along some axes have in common the part that a lane keeps: flat, padded with zeros."""
    for name, size in axes:
        n = aval_of(x).size
        x = reshape(x, (n,))
        if n % size:
            x = pad(x, literal(0, aval_of(x)), (0,), (-n % size,), (0,))
        x = own_slice(reshape(x, (size, -(-n // size))), name, size, 0)
    return x


def of_shards(x: Any, axes: Sequence[Tuple[str, int]], shape: Tuple[int, ...]) -> Any:
    """The value of this shape of which each lane along the axes has a part."""
    for k in reversed(range(len(axes))):
        whole = all_gather(x, *axes[k], 0)
        x = slice_axis(reshape(whole, (aval_of(whole).size,)), 0, 0, shard_size(math.prod(shape), axes[:k]))
    return reshape(x, shape)


def shard_size(size: int, axes: Sequence[Tuple[str, int]]) -> int:
    """How many elements a lane keeps of so many."""
    for _, count in axes:
        size = -(-size // count)
    return size


Trace.pvary = staticmethod(pvary)
