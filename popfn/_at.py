"""`x.at[key]`: x with other elements at a key, as a new array."""
from __future__ import annotations

import math
from typing import Any, Callable, Optional, Tuple

import numpy as np

from ._indexing import Selection, check_mask, is_mask, too_many
from ._promotion import as_array
from .numpy._indexing import READ, WRITE, broadcast_into, check_mode, converted
from .trace import prims
from .trace.array import Array
from .trace.aval import Shape, bool_, float32
from .trace.errors import DtypeError, ShapeError, message, user_source
from .trace.prims.structural import slice_axis
from .trace.tracer import Tracer, aval_of, literal


class At:
    """What `x.at` is: `x.at[key]` names elements of x, with NumPy's keys of ints, slices, integer arrays and masks."""

    __slots__ = ("x",)

    def __init__(self, x: Array) -> None:
        self.x = x

    def __getitem__(self, key: Any) -> AtKey:
        return AtKey(self.x, key)


class AtKey:
    """What `x.at[key]` is: its methods give x with other elements at the key; x itself stays as it is.

    Values broadcast to the shape of `x[key]` and take x's dtype, which must be able to hold them (DtypeError).
    Indices count from the end if they are negative. One that is out of range is an error (RangeError, an IndexError) if
    it is known while tracing, else it reads the nearest element and writes nothing. With a `mode` known indices are
    like traced ones: "drop" writes nothing, "clip" writes to or reads the nearest element, "fill" reads `fill_value`.

    A mask, an array of bools over the first axes or all, may be traced where it is the whole key of a write. Then the
    values broadcast to one element of what it picks (a scalar always does), or have the rank of x and broadcast to it:
    the same as pnp.where(mask, new, x). What a traced mask picks cannot be read, as its shape would not be known.

    >>> import popfn as pf
    >>> x = pf.Array([1.0, 2.0, 3.0])
    >>> x.at[1].set(9), x.at[[0, 0]].add(1), x.at[1:].multiply(2)
    (Array([1., 9., 3.], dtype=float32), Array([3., 2., 3.], dtype=float32), Array([1., 4., 6.], dtype=float32))
    """

    __slots__ = ("x", "key")

    def __init__(self, x: Array, key: Any) -> None:
        self.x = x
        self.key = key

    def get(self, *, mode: Optional[str] = None, fill_value: Any = None) -> Array:
        """x[key], with a mode "clip" or "fill" for indices that are out of range.

        The fill value is NaN, the lowest signed or highest unsigned integer, or True by default.
        """
        check_mode("x.at[...].get", mode, READ)
        return Selection(self.x, self.key, mode).read(self.x, fill_value)

    def set(self, values: Any, *, mode: Optional[str] = None) -> Array:
        """x with values at the key. Of several values for one element the last one stays."""
        return self._write("set", values, mode, lambda old, new: new, prims.scatter_set)

    def add(self, values: Any, *, mode: Optional[str] = None) -> Array:
        """x with values added at the key, all of them where indices repeat; float16 is rounded once."""
        return self._write("add", values, mode, prims.add, prims.scatter_add)

    def multiply(self, values: Any, *, mode: Optional[str] = None) -> Array:
        """x multiplied by values at the key, by all of them where indices repeat; float16 is rounded once.

        The derivative is exact where factors are zero. Traced indices are sorted, because they may repeat.
        """
        return self._write("multiply", values, mode, prims.mul, None)

    mul = multiply

    def max(self, values: Any, *, mode: Optional[str] = None) -> Array:
        """x with the larger of its elements and the values at the key; NaN if one is.

        The cotangent of an element is shared equally among all that are as large, x's own being one of them.
        """
        return self._write("max", values, mode, prims.maximum, prims.scatter_max)

    def min(self, values: Any, *, mode: Optional[str] = None) -> Array:
        """x with the smaller of its elements and the values at the key; NaN if one is. Ties as in `max`."""
        return self._write("min", values, mode, prims.minimum, prims.scatter_min)

    def _write(self, name: str, values: Any, mode: Optional[str], combine: Callable[[Any, Any], Any],
               scatter: Optional[Callable[..., Any]]) -> Array:
        what = f"x.at[...].{name}"
        check_mode(what, mode, WRITE)
        x = self.x
        if x.dtype == bool_ and name != "set":
            raise DtypeError(message(f"{what} of bools is not defined, the array is {x.aval}",
                                     "way out: x.at[...].set, or convert with astype", at=user_source(2)))
        values, mask = converted(what, values, x.aval), whole_mask(self.key)
        if isinstance(mask, Tracer):
            return write_masked(name, x, mask, values, combine)
        at = Selection(x, self.key, mode, way_out="way out: pnp.where(mask, value, x)")
        if mask is not None and not broadcasts(values, at.shape) and fits(values, x):
            return write_masked(name, x, mask, values, combine)
        values = broadcast_into(what, values, at.shape)
        if not math.prod(at.shape):
            return x
        if not at.indices:
            return as_array(at.put(x, combine(at.read(x), values)))
        rows, index = at.rows(x), at.flat_index(clamp=mode == "clip")
        if scatter is None:
            return at.put_rows(x, multiplied(rows, index, values, at.place, at.distinct()))
        return at.put_rows(x, scatter(rows, index, values, at.place))


def whole_mask(key: Any) -> Any:
    """The mask that a key consists of; None for other keys."""
    if isinstance(key, tuple) and len(key) == 1:
        key, = key
    return key if is_mask(key) else None


def broadcasts(values: Any, shape: Shape) -> bool:
    """Whether values broadcast to a shape."""
    v = aval_of(values).shape
    return len(v) <= len(shape) and all(m in (1, n) for m, n in zip(v[::-1], shape[::-1]))


def fits(values: Any, x: Array) -> bool:
    """Whether values have x's rank and broadcast to it, so that a mask picks their elements as it picks those of x."""
    return aval_of(values).ndim == x.ndim and broadcasts(values, x.shape)


def write_masked(name: str, x: Array, mask: Any, values: Any, combine: Callable[[Any, Any], Any]) -> Array:
    """x with values where a mask over its first axes holds.

    Other values than these would mean something else if the mask were known: one after the other for what it picks.
    """
    if aval_of(mask).ndim > x.ndim:
        raise too_many(aval_of(mask).ndim, x)
    check_mask(mask, x, 0)
    rest = x.shape[aval_of(mask).ndim:]
    if not fits(values, x):
        if not broadcasts(values, (1, *rest)):
            raise ShapeError(message(
                f"x.at[mask].{name}: {aval_of(values)} does not broadcast to the shape {(1, *rest)} of what a traced "
                f"mask picks, nor has it the rank of {x.aval}", "way out: a scalar, or pnp.where(mask, values, x)",
                at=user_source(2)))
        values = prims.reshape(values, aval_of(values).shape[-len(rest):] if rest else ())
    mask = prims.reshape(mask, aval_of(mask).shape + (1,) * len(rest))
    values = prims.broadcast_to(values, x.shape)
    return as_array(prims.select(mask, combine(x, values), x))


def multiplied(rows: Any, index: Any, values: Any, axis: int, distinct: bool) -> Any:
    """Rows multiplied by all values that have their index."""
    dtype = aval_of(rows).dtype
    if dtype == np.float16:
        values = prims.convert(values, float32)
    if not distinct:
        index, values = running_products(index, values, axis, aval_of(rows).shape[axis])
    old = prims.convert(prims.take(rows, index, axis), aval_of(values).dtype)
    return prims.scatter_set(rows, index, prims.convert(prims.mul(old, values), dtype), axis)


def running_products(index: Any, values: Any, axis: int, size: int) -> Tuple[Any, Any]:
    """The indices in order, and for each the product of its value and all before it that have the same index.

    So the last of those with one index, which is the one that a scatter leaves there, has the product of all. The
    products of 1, 2, 4, ... neighbours come from one another; without a quotient, zeros are exact in derivatives too.
    """
    shape, count = aval_of(values).shape, math.prod(aval_of(index).shape)
    values = prims.reshape(values, (*shape[:axis], count, *shape[axis + aval_of(index).ndim:]))
    index = prims.reshape(prims.counted_indices(index, size), (count,))
    index = prims.select(prims.in_bounds(index, size), index, literal(size, aval_of(index)))
    index, order = prims.sort(index, 0)
    values = prims.take(values, order, axis)
    one = literal(1, aval_of(values))
    step = 1
    while step < count:
        same = prims.eq(slice_axis(index, 0, step, count), slice_axis(index, 0, 0, count - step))
        same = prims.reshape(same, (count - step,) + (1,) * (aval_of(values).ndim - 1 - axis))
        before = prims.select(same, slice_axis(values, axis, 0, count - step), one)
        products = prims.mul(slice_axis(values, axis, step, count), before)
        values = prims.concat((slice_axis(values, axis, 0, step), products), axis)
        step *= 2
    return index, values
