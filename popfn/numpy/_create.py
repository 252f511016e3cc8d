"""Arrays from data and from arrays: creation, dtypes, joining."""
from __future__ import annotations

import builtins
from typing import Any, Optional, Sequence, Union

from .._promotion import PYTHON, as_array, as_dtype, as_sizes, convert_to, holds_arrays, one_axis, promoted
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import Aval, Shape, bool_, float32, int32
from ..trace.errors import DtypeError, ShapeError, message, user_source
from ..trace.tracer import aval_of, literal


def asarray(x: Any, /, dtype: Any = None) -> Array:
    """An Array of data, a number or a nested list; an Array is returned as it is."""
    if isinstance(x, Array):
        return x if dtype is None else astype(x, dtype)
    if isinstance(x, (list, tuple)) and holds_arrays(x):
        stacked = stack([asarray(part) for part in x])
        return stacked if dtype is None else astype(stacked, dtype)
    return as_array(x) if dtype is None else Array(x, dtype)


def astype(x: Any, dtype: Any, /) -> Array:
    """The values in another dtype; floats are cut off toward zero on their way to integers."""
    x, d = asarray(x), as_dtype(dtype)
    return x if x.dtype == d and not x.aval.weak else prims.convert(x, d)


def full(shape: Union[int, Shape], fill_value: Any, *, dtype: Any = None) -> Array:
    """An array of one value, in the value's own dtype by default."""
    dtype = aval_of(fill_value).dtype if dtype is None else as_dtype(dtype)
    value = convert_to(fill_value, dtype) if type(fill_value) in PYTHON else astype(fill_value, dtype)
    shape = as_sizes(shape)
    return prims.broadcast_to(value, shape) if shape else asarray(value)


def zeros(shape: Union[int, Shape], *, dtype: Any = float32) -> Array:
    """An array of zeros."""
    return full(shape, 0, dtype=dtype)


def ones(shape: Union[int, Shape], *, dtype: Any = float32) -> Array:
    """An array of ones."""
    return full(shape, 1, dtype=dtype)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None) -> Array:
    """An array of one value with the shape, and by default the dtype, of x."""
    aval = aval_of(x)
    return full(aval.shape, fill_value, dtype=aval.dtype if dtype is None else dtype)


def zeros_like(x: Any, /, *, dtype: Any = None) -> Array:
    """An array of zeros with the shape, and by default the dtype, of x."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Any, /, *, dtype: Any = None) -> Array:
    """An array of ones with the shape, and by default the dtype, of x."""
    return full_like(x, 1, dtype=dtype)


def arange(start: int, /, stop: Optional[int] = None, step: int = 1, *, dtype: Any = int32) -> Array:
    """start, start + step, ... below stop, of Python integers; from 0 if only one bound is given."""
    start, stop = (0, start) if stop is None else (start, stop)
    if not builtins.all(type(n) is int for n in (start, stop, step)):
        raise DtypeError(message(f"arange takes Python integers, got {start!r}, {stop!r}, {step!r}",
                                 "way out: pnp.arange(n) * step + start", at=user_source(2)))
    d = as_dtype(dtype)
    if not step or d == bool_:
        raise DtypeError(message(f"arange: a step of {step} in {d.name} does not count", at=user_source(2)))
    numbers = range(start, stop, step)
    for n in (*numbers[:1], *numbers[-1:]):
        literal(n, Aval((), d))  # refuses what does not fit
    line = prims.iota(d, (len(numbers),), 0)
    if step != 1:
        line = prims.mul(line, literal(step, line.aval))
    return prims.add(line, literal(start, line.aval)) if start else asarray(line)


def eye(n: int, /, *, dtype: Any = float32) -> Array:
    """The identity matrix."""
    return astype(prims.eq(prims.iota(int32, (n, n), 0), prims.iota(int32, (n, n), 1)), dtype)


def concat(arrays: Sequence[Any], /, *, axis: Optional[int] = 0) -> Array:
    """Arrays joined along an axis; flattened first if axis is None."""
    if not len(arrays):
        raise ShapeError(message("concat of no arrays", at=user_source(2)))
    xs = [asarray(x) for x in (promoted(*arrays) if len(arrays) > 1 else arrays)]
    if axis is None:
        xs, axis = [prims.reshape(x, (x.size,)) for x in xs], 0
    return prims.concat(xs, one_axis(axis, xs[0].ndim, "concat")) if len(xs) > 1 else xs[0]


def concatenate(arrays: Sequence[Any], /, axis: Optional[int] = 0) -> Array:
    """`concat` under NumPy's name."""
    return concat(arrays, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    xs = [asarray(x) for x in (promoted(*arrays) if len(arrays) > 1 else arrays)]
    if not xs:
        raise ShapeError(message("stack of no arrays", at=user_source(2)))
    axis = one_axis(axis, xs[0].ndim + 1, "stack")
    return concat([prims.reshape(x, x.shape[:axis] + (1,) + x.shape[axis:]) for x in xs], axis=axis)
