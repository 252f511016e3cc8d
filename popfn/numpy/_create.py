"""Arrays from data and from arrays: creation, dtypes, joining."""
from __future__ import annotations

import builtins
import math
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from .._promotion import (
    PYTHON,
    as_array,
    as_dtype,
    as_sizes,
    converted,
    filled,
    floats,
    holds_arrays,
    known,
    known_integer,
    one_axis,
    promoted,
)
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import FLOAT8, Aval, Shape, accumulator_dtype, bool_, float32, int32
from ..trace.errors import DtypeError, ShapeError, message, user_source
from ..trace.tracer import aval_of, literal


def asarray(x: Any, /, dtype: Any = None, *, copy: Optional[bool] = None) -> Array:
    """An Array of data, a number or a nested list; an Array is returned as it is.

    Data is always copied, so that `copy=False` is refused for it with a ValueError, as the standard says; an Array
    cannot be changed and needs no copy.
    """
    if copy is False and not isinstance(x, Array):
        raise ValueError(message(f"asarray: copy=False, but a {type(x).__name__} is always copied",
                                 "way out: leave copy out", at=user_source(2)))
    if isinstance(x, Array):
        return x if dtype is None else astype(x, dtype)
    if isinstance(x, (list, tuple)) and holds_arrays(x):
        stacked = stack([asarray(part) for part in x])
        return stacked if dtype is None else astype(stacked, dtype)
    return as_array(x) if dtype is None else Array(x, dtype)


def from_dlpack(x: Any, /) -> Array:
    """An Array with a copy of the data of another library's array on the host, by its `__dlpack__`."""
    if isinstance(x, Array):
        return x
    if not hasattr(x, "__dlpack__"):
        raise DtypeError(message(f"from_dlpack takes an object with __dlpack__, got {type(x).__name__}",
                                 "way out: asarray takes data of any kind", at=user_source(2)))
    return asarray(np.from_dlpack(x))


def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Array:
    """The values in another dtype; floats are cut off toward zero on their way to integers.

    Arrays cannot be changed, so that `copy` makes no difference.
    """
    x, d = asarray(x), as_dtype(dtype)
    return x if x.dtype == d and not x.aval.weak else prims.convert(x, d)


def full(shape: Union[int, Shape], fill_value: Any, *, dtype: Any = None) -> Array:
    """An array of one value, in the value's own dtype by default."""
    dtype = aval_of(fill_value).dtype if dtype is None else as_dtype(dtype)
    return filled(as_sizes(shape), fill_value, dtype)


def zeros(shape: Union[int, Shape], *, dtype: Any = float32) -> Array:
    """An array of zeros."""
    return full(shape, 0, dtype=dtype)


def ones(shape: Union[int, Shape], *, dtype: Any = float32) -> Array:
    """An array of ones."""
    return full(shape, 1, dtype=dtype)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None) -> Array:
    """An array of one value with the shape, and by default the dtype, of x."""
    aval = aval_of(x)
    return filled(aval.shape, fill_value, aval.dtype if dtype is None else as_dtype(dtype))


def empty(shape: Union[int, Shape], *, dtype: Any = float32) -> Array:
    """An array of zeros: nothing can be written into an array, so that none is left without values."""
    return full(shape, 0, dtype=dtype)


def empty_like(x: Any, /, *, dtype: Any = None) -> Array:
    """An array of zeros with the shape, and by default the dtype, of x."""
    return full_like(x, 0, dtype=dtype)


def zeros_like(x: Any, /, *, dtype: Any = None) -> Array:
    """An array of zeros with the shape, and by default the dtype, of x."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Any, /, *, dtype: Any = None) -> Array:
    """An array of ones with the shape, and by default the dtype, of x."""
    return full_like(x, 1, dtype=dtype)


def _constant(values: np.ndarray, dtype: np.dtype) -> Array:
    """64-bit values as an array of a dtype, rounded once."""
    with np.errstate(all="ignore"):
        data = values.astype(np.float32).astype(dtype) if dtype in FLOAT8 else values.astype(dtype)
    data.flags.writeable = False
    return Array.wrap(data, Aval._make(data.shape, dtype, False))


def arange(start: float, /, stop: Optional[float] = None, step: float = 1, *, dtype: Any = None) -> Array:
    """start, start + step, ... below stop, of Python numbers; from 0 if only one bound is given.

    int32 if all are integers, else float32. The length of floats is ceil((stop - start) / step), which rounding decides
    where stop is a multiple: `linspace` is told the length. Raises DtypeError for other than numbers.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    numbers = start, stop, step = known("arange: a bound or step", (start, stop, step))
    if not builtins.all(isinstance(n, (int, float, np.integer, np.floating)) and not isinstance(n, bool)
                        for n in numbers):
        raise DtypeError(message(f"arange takes Python numbers, got {start!r}, {stop!r}, {step!r}: the length of the "
                                 "result depends on them", "way out: pnp.arange(n) * step + start", at=user_source(2)))
    whole = builtins.all(isinstance(n, (int, np.integer)) for n in numbers)
    d = (int32 if whole else float32) if dtype is None else as_dtype(dtype)
    if not step or d == bool_:
        raise DtypeError(message(f"arange: a step of {step} in {d.name} does not count", at=user_source(2)))
    if not whole:
        count = math.ceil((stop - start) / step)
        return _constant(float(start) + float(step) * np.arange(builtins.max(count, 0)), d)
    line = range(int(start), int(stop), int(step))
    for n in (*line[:1], *line[-1:]):
        literal(n, Aval._make((), d, False))  # refuses what does not fit
    x = prims.iota(d, (len(line),), 0)
    if step != 1:
        x = prims.mul(x, literal(int(step), x.aval))
    return prims.add(x, literal(int(start), x.aval)) if start else asarray(x)


def linspace(start: Any, stop: Any, /, num: int, *, dtype: Any = None, endpoint: bool = True) -> Array:
    """`num` numbers evenly spaced from start to stop, float32 by default; without the last one if not `endpoint`.

    Python numbers are spaced in 64 bits and rounded once, down for integer dtypes. Arrays, which broadcast, are spaced
    along a new first axis, and are differentiated. Raises ShapeError for a negative `num`.

    >>> linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    num, = as_sizes(known_integer("linspace: the number of elements", num))
    if type(start) in PYTHON and type(stop) in PYTHON:
        d = float32 if dtype is None else as_dtype(dtype)
        values = np.linspace(start, stop, num, endpoint=endpoint)
        return _constant(np.floor(values) if d.kind in "iu" else values, d)
    a, b = (asarray(x) for x in floats(start, stop))
    wide = [prims.convert(x, accumulator_dtype(a.dtype)) for x in (a, b)]
    places = _constant(np.linspace(0, 1, num, endpoint=endpoint), wide[0].dtype)
    places = prims.reshape(places, (num,) + (1,) * builtins.max(a.ndim, b.ndim))
    rest = prims.sub(literal(1.0, places.aval), places)
    line = prims.add(prims.mul(wide[0], rest), prims.mul(wide[1], places))
    return converted(line, a.dtype if dtype is None else as_dtype(dtype))


def meshgrid(*arrays: Any, indexing: str = "xy") -> Tuple[Array, ...]:
    """Each vector repeated along the axes of all others, its own elements along its axis.

    With `indexing="xy"` the first vector runs along axis 1 and the second along axis 0; with "ij" each runs along the
    axis of its number. Raises ShapeError for arrays of more than one axis, ValueError for another `indexing`.
    """
    xs = [asarray(x) for x in arrays]
    if not isinstance(indexing, str) or indexing not in ("xy", "ij"):
        raise ValueError(message(f"meshgrid: indexing is 'xy' or 'ij', got {indexing!r}", at=user_source(2)))
    for x in xs:
        if x.ndim > 1:
            raise ShapeError(message(f"meshgrid takes vectors, got {x.aval}", at=user_source(2)))
    axes: List[int] = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        axes[:2] = 1, 0
    shape = [0] * len(xs)
    for x, axis in zip(xs, axes):
        shape[axis] = x.size
    return tuple(prims.broadcast_to(prims.reshape(x, tuple(x.size if i == axis else 1 for i in range(len(xs)))),
                                    tuple(shape)) for x, axis in zip(xs, axes))


def eye(n_rows: int, n_cols: Optional[int] = None, /, *, k: int = 0, dtype: Any = float32) -> Array:
    """Ones on a diagonal, `k` places to the right of the main one, zeros elsewhere; square by default."""
    shape, k = as_sizes((n_rows, n_rows if n_cols is None else n_cols)), known_integer("eye: k", k)
    rows, columns = (prims.iota(int32, shape, axis) for axis in (0, 1))
    return astype(prims.eq(prims.add(rows, literal(k, rows.aval)) if k else rows, columns), dtype)


def _triangle(x: Any, k: int, lower: bool, name: str) -> Array:
    x, k = asarray(x), known_integer(f"{name}: k", k)
    if x.ndim < 2:
        raise ShapeError(message(f"{name}: {x.aval} has no two axes", at=user_source(3)))
    rows, columns = (prims.iota(int32, x.shape[-2:], axis) for axis in (0, 1))
    rows = prims.add(rows, literal(k, rows.aval)) if k else rows
    return prims.select((prims.ge if lower else prims.le)(rows, columns), x, literal(0, x.aval))


def tril(x: Any, /, *, k: int = 0) -> Array:
    """The matrices in the last two axes with zeros above a diagonal, `k` places to the right of the main one."""
    return _triangle(x, k, True, "tril")


def triu(x: Any, /, *, k: int = 0) -> Array:
    """The matrices in the last two axes with zeros below a diagonal, `k` places to the right of the main one."""
    return _triangle(x, k, False, "triu")


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
