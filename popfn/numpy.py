"""popfn.numpy: array functions under the Python array API standard's names.

They promote as JAX does (weak Python scalars, 32 bits), broadcast as NumPy does, and are built from popfn's primitives,
so that they run at once on concrete arrays and are recorded on traced ones. Where NumPy defines a value, the value is
NumPy's. `axis` is an int, a tuple of ints or None for all axes wherever more than one axis makes sense.

>>> import popfn.numpy as pnp
>>> pnp.mean(pnp.asarray([[1, 2], [3, 5]]), axis=0)
Array([2. , 3.5], dtype=float32)
"""
from __future__ import annotations

import builtins
import math
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

from ._promotion import (
    PYTHON,
    Axis,
    all_axes,
    as_array,
    as_dtype,
    as_shape,
    as_sizes,
    convert_to,
    floats,
    holds_arrays,
    in_float32,
    one_axis,
    pair,
    promoted,
)
from .trace import prims
from .trace.array import Array
from .trace.aval import Aval, Shape, as_numpy, bool_, broadcast_shapes, float32, int32, uint32
from .trace.errors import DtypeError, RangeError, ShapeError, message, user_source
from .trace.tracer import Tracer, aval_of, literal

e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None

def _unary_float(primitive: Callable[[Any], Any], doc: str) -> Callable[[Any], Array]:
    def f(x: Any, /) -> Array:
        if type(x) is Tracer and x.aval.is_float:
            return primitive(x)
        return primitive(floats(x)[0])
    f.__name__ = f.__qualname__ = primitive.__name__.rstrip("_")
    f.__doc__ = doc + " Integers are taken as float32."
    return f


def _binary(primitive: Callable[[Any, Any], Any], name: str, doc: str,
            promote: Callable[[Any, Any], Sequence[Any]] = pair, bools: Any = None) -> Callable[[Any, Any], Array]:
    """A function of two operands: promotion, then the primitive; `bools` is what NumPy does for bools instead."""
    def f(x1: Any, x2: Any, /) -> Array:
        if not (type(x1) is Tracer and type(x2) is Tracer and x1.aval.dtype is x2.aval.dtype and promote is pair):
            x1, x2 = promote(x1, x2)
        if bools is not None and x1.aval.dtype is bool_:
            return bools(x1, x2)
        return primitive(x1, x2)
    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


def _no_bools(name: str, way: str) -> Callable[[Any, Any], Any]:
    def refuse(x1: Any, x2: Any) -> Any:
        raise DtypeError(message(f"{name} of bools is not defined, as in NumPy", f"way out: {way}", at=user_source(3)))
    return refuse


# ---------------------------------------------------------------------------- arithmetic
add = _binary(prims.add, "add", "x1 + x2, elementwise; logical or for bools.", bools=prims.or_)
multiply = _binary(prims.mul, "multiply", "x1 * x2, elementwise; logical and for bools.", bools=prims.and_)
subtract = _binary(prims.sub, "subtract", "x1 - x2, elementwise.",
                   bools=_no_bools("subtract", "use logical_xor (^), or convert with astype"))
divide = _binary(prims.div, "divide", "x1 / x2, elementwise; float32 for integers.", floats)
maximum = _binary(prims.maximum, "maximum", "The larger of x1 and x2; NaN if one is.", bools=prims.or_)
minimum = _binary(prims.minimum, "minimum", "The smaller of x1 and x2; NaN if one is.", bools=prims.and_)
floor_divide = _binary(prims.floor_divide, "floor_divide", "x1 / x2 rounded down; integers divided by 0 give 0.",
                       bools=_no_bools("floor_divide", "convert with astype"))
remainder = _binary(prims.remainder, "remainder", "x1 - floor(x1 / x2) x2, with the sign of x2.",
                    bools=_no_bools("remainder", "convert with astype"))
equal = _binary(prims.eq, "equal", "x1 == x2, elementwise, as bools.")
not_equal = _binary(prims.ne, "not_equal", "x1 != x2, elementwise, as bools.")
less = _binary(prims.lt, "less", "x1 < x2, elementwise, as bools.")
less_equal = _binary(prims.le, "less_equal", "x1 <= x2, elementwise, as bools.")
greater = _binary(prims.gt, "greater", "x1 > x2, elementwise, as bools.")
greater_equal = _binary(prims.ge, "greater_equal", "x1 >= x2, elementwise, as bools.")


def pow(x1: Any, x2: Any, /) -> Array:
    """x1 to the power x2. A whole Python number as x2 is exact, also for integers and for negative x1."""
    if type(x2) is float and x2.is_integer() and builtins.abs(x2) <= 2 ** 16 and aval_of(x1).is_float:
        x2 = int(x2)
    if type(x2) is int:
        if aval_of(x1).dtype == bool_:
            x1 = convert_to(x1, int32, True)
        return prims.integer_pow(x1, x2)
    x1, x2 = pair(x1, x2)
    if not aval_of(x1).is_float:
        raise DtypeError(message(f"pow of {aval_of(x1)} and {aval_of(x2)}: an integer power by an array is not defined "
                                 "for negative exponents", "way out: convert with astype(float), or use a Python "
                                 "integer as the exponent", at=user_source(2)))
    return prims.pow_(x1, x2)


def negative(x: Any, /) -> Array:
    """-x; unsigned integers wrap, bools are refused."""
    dtype = aval_of(x).dtype
    if dtype.kind == "u":
        return prims.sub(literal(0, aval_of(x)), x)
    if dtype == bool_:
        raise DtypeError(message("negative of bools is not defined, as in NumPy", "way out: use logical_not (~)",
                                 at=user_source(2)))
    return prims.neg(x)


def positive(x: Any, /) -> Array:
    """x itself."""
    return asarray(x)


def abs(x: Any, /) -> Array:
    """|x|; its derivative at 0 is 0."""
    return asarray(x) if aval_of(x).dtype.kind in "ub" else prims.abs_(x)


def sign(x: Any, /) -> Array:
    """-1, 0 or 1; NaN for NaN."""
    if aval_of(x).dtype.kind == "u":
        return astype(not_equal(x, 0), aval_of(x).dtype)
    return prims.sign(x)


def square(x: Any, /) -> Array:
    """x * x."""
    return multiply(x, x)


def floor(x: Any, /) -> Array:
    """The largest integer not above x, in x's dtype."""
    return prims.floor(x) if aval_of(x).is_float else asarray(x)


def ceil(x: Any, /) -> Array:
    """The smallest integer not below x, in x's dtype."""
    return prims.ceil(x) if aval_of(x).is_float else asarray(x)


exp = _unary_float(prims.exp, "e to the x.")
expm1 = _unary_float(prims.expm1, "e to the x, minus 1, exact for small x.")
log = _unary_float(prims.log, "The natural logarithm; -inf at 0, NaN below.")
log1p = _unary_float(prims.log1p, "log(1 + x), exact for small x.")
sqrt = _unary_float(prims.sqrt, "The square root; NaN below 0.")
rsqrt = _unary_float(prims.rsqrt, "1 / sqrt(x).")
reciprocal = _unary_float(prims.reciprocal, "1 / x.")
sin = _unary_float(prims.sin, "The sine of x in radians.")
cos = _unary_float(prims.cos, "The cosine of x in radians.")
tanh = _unary_float(prims.tanh, "The hyperbolic tangent.")
erf = _unary_float(prims.erf, "The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """x cut off at the bounds, which broadcast with it; the derivative there is 0. NaN where a bound is."""
    for bound, beyond in ((min, prims.le), (max, prims.ge)):
        if bound is not None:
            x, b = pair(x, bound)
            cut = beyond(x, b)
            if aval_of(b).is_float and not (type(bound) in PYTHON and bound == bound):
                cut = prims.or_(cut, prims.ne(b, b))
            x = prims.select(cut, b, x)
    return asarray(x)


# ---------------------------------------------------------------------------- logic
def _truth(x: Any) -> Any:
    return x if aval_of(x).dtype == bool_ else not_equal(x, 0)


def logical_and(x1: Any, x2: Any, /) -> Array:
    """x1 and x2 as truth values, elementwise."""
    return prims.and_(_truth(x1), _truth(x2))


def logical_or(x1: Any, x2: Any, /) -> Array:
    """x1 or x2 as truth values, elementwise."""
    return prims.or_(_truth(x1), _truth(x2))


def logical_xor(x1: Any, x2: Any, /) -> Array:
    """Whether exactly one of x1 and x2 is nonzero, elementwise."""
    return prims.ne(_truth(x1), _truth(x2))


def logical_not(x: Any, /) -> Array:
    """Whether x is zero, elementwise."""
    return prims.not_(_truth(x))


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """x1 where the condition holds, x2 elsewhere; the derivative of what is not chosen is exactly 0."""
    x1, x2 = pair(x1, x2)
    return prims.select(_truth(condition), x1, x2)


# ---------------------------------------------------------------------------- creation and dtypes
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
    return asarray(add(multiply(line, step) if step != 1 else line, start) if start or step != 1 else line)


def eye(n: int, /, *, dtype: Any = float32) -> Array:
    """The identity matrix."""
    return astype(prims.eq(prims.iota(int32, (n, n), 0), prims.iota(int32, (n, n), 1)), dtype)


# ---------------------------------------------------------------------------- shapes
def reshape(x: Any, /, shape: Union[int, Sequence[int]]) -> Array:
    """Another shape of the same size, in row-major order; one size may be -1."""
    x, new = asarray(x), list(as_shape(shape))
    if new.count(-1) == 1:
        known = math.prod(n for n in new if n != -1)
        if known and x.size % known == 0:
            new[new.index(-1)] = x.size // known
    if math.prod(new) != x.size or builtins.min(new, default=0) < 0:
        raise ShapeError(message(f"reshape: {x.aval} has {x.size} elements, which do not fit shape {as_shape(shape)}",
                                 at=user_source(2)))
    return prims.reshape(x, tuple(int(n) for n in new))


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """The axes in another order."""
    x = asarray(x)
    return prims.transpose(x, tuple(one_axis(a, x.ndim, "permute_dims") for a in axes))


def matrix_transpose(x: Any, /) -> Array:
    """The last two axes swapped."""
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(message(f"matrix_transpose: {x.aval} has no two axes", at=user_source(2)))
    return prims.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: Any, source: int, destination: int, /) -> Array:
    """One axis moved to another place."""
    x = asarray(x)
    source, destination = one_axis(source, x.ndim, "moveaxis"), one_axis(destination, x.ndim, "moveaxis")
    order = [i for i in range(x.ndim) if i != source]
    order.insert(destination, source)
    return prims.transpose(x, tuple(order))


def squeeze(x: Any, /, axis: Axis = None) -> Array:
    """Without axes of size 1: all of them, or those given."""
    x = asarray(x)
    axes = tuple(i for i, n in enumerate(x.shape) if n == 1) if axis is None else all_axes(axis, x.ndim, "squeeze")
    return prims.squeeze(x, axes)


def expand_dims(x: Any, /, axis: int = 0) -> Array:
    """With a new axis of size 1 at a place."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim + 1, "expand_dims")
    return prims.reshape(x, x.shape[:axis] + (1,) + x.shape[axis:])


def broadcast_to(x: Any, /, shape: Union[int, Shape]) -> Array:
    """NumPy's broadcasting to a shape."""
    return prims.broadcast_to(asarray(x), as_sizes(shape))


def concat(arrays: Sequence[Any], /, *, axis: Optional[int] = 0) -> Array:
    """Arrays joined along an axis; flattened first if axis is None."""
    if not len(arrays):
        raise ShapeError(message("concat of no arrays", at=user_source(2)))
    xs = [asarray(x) for x in (promoted(*arrays) if len(arrays) > 1 else arrays)]
    if axis is None:
        xs, axis = [reshape(x, (-1,)) for x in xs], 0
    return prims.concat(xs, one_axis(axis, xs[0].ndim, "concat")) if len(xs) > 1 else xs[0]


def concatenate(arrays: Sequence[Any], /, axis: Optional[int] = 0) -> Array:
    """`concat` under NumPy's name."""
    return concat(arrays, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    return concat([expand_dims(x, axis) for x in arrays], axis=axis)


def flip(x: Any, /, *, axis: Axis = None) -> Array:
    """The elements in reverse order along axes."""
    x = asarray(x)
    return prims.reverse(x, all_axes(axis, x.ndim, "flip"))


def pad(x: Any, pad_width: Any, *, constant_values: Any = 0) -> Array:
    """x with `pad_width` = (before, after) copies of a scalar around it; one pair for all axes or one pair for each."""
    x = asarray(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
    except ValueError:
        widths = np.array(np.nan)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise ShapeError(message(f"pad: widths are pairs of integers of 0 or more, one for all axes or one for each of "
                                 f"the {x.ndim}, got {pad_width}", at=user_source(2)))
    low, high = (tuple(int(n) for n in widths[:, i]) for i in (0, 1))
    return prims.pad(x, convert_to(constant_values, x.dtype), low, high, (0,) * x.ndim)


def take(x: Any, indices: Any, /, *, axis: Optional[int] = None) -> Array:
    """x[..., indices, ...] along an axis, of the flat array by default.

    Negative indices count from the end; traced ones that are out of range read the nearest element. Raises
    RangeError (an IndexError) for indices out of range that are known while tracing.
    """
    x = asarray(x)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim, "take")
    return prims.take(x, checked_indices(indices, x.shape[axis], axis), axis)


def checked_indices(indices: Any, size: int, axis: int) -> Any:
    """Indices as integers, in range if they are known. Raises RangeError (an IndexError) and DtypeError."""
    aval = aval_of(indices)
    if aval.dtype.kind not in "iu":
        raise DtypeError(message(f"an index is an integer, got {aval}", "way out: a mask chooses with pnp.where"
                                 if aval.dtype == bool_ else None, at=user_source(2)))
    if not isinstance(indices, Tracer):
        data = indices.value if isinstance(indices, Array) else as_numpy(indices)
        bad = data[(data < -size) | (data >= size)]
        if bad.size:
            raise RangeError(message(f"index {int(bad.flat[0])} is out of range for axis {axis} of size {size}",
                                     at=user_source(2)))
    return indices


# ---------------------------------------------------------------------------- reductions
def _keep(y: Any, shape: Shape, axes: Tuple[int, ...], keepdims: bool) -> Array:
    if not keepdims:
        return asarray(y)
    return prims.reshape(y, tuple(1 if i in axes else n for i, n in enumerate(shape)))


def _accumulator(x: Array, dtype: Any) -> Array:
    if dtype is not None:
        return astype(x, dtype)
    kind = x.dtype.kind
    return x if x.aval.is_float else convert_to(x, uint32 if kind == "u" else int32)


def sum(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Sum over axes; bools and small integers in 32 bits, float16 accumulated in float32."""
    x = _accumulator(asarray(x), dtype)
    axes = all_axes(axis, x.ndim, "sum")
    return _keep(prims.sum_over(x, axes), x.shape, axes, keepdims)


def prod(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Product over axes; bools and small integers in 32 bits, float16 accumulated in float32."""
    x = _accumulator(asarray(x), dtype)
    axes = all_axes(axis, x.ndim, "prod")
    return _keep(prims.prod_over(x, axes), x.shape, axes, keepdims)


def mean(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Mean over axes; float16 accumulated in float32. NaN for no elements."""
    def f(x: Array) -> Array:
        axes = all_axes(axis, x.ndim, "mean")
        count = math.prod(x.shape[a] for a in axes)
        total = prims.sum_over(x, axes)
        return _keep(prims.div(total, literal(float(count), x.aval)), x.shape, axes, keepdims)
    return in_float32(f, x)


def var(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variance over axes: squared distances from the mean, over n - correction; float16 accumulated in float32."""
    def f(x: Array) -> Array:
        axes = all_axes(axis, x.ndim, "var")
        count = math.prod(x.shape[a] for a in axes) - correction
        d = prims.sub(x, mean(x, axes, keepdims=True))
        total = prims.sum_over(prims.mul(d, d), axes)
        return _keep(prims.div(total, literal(float(builtins.max(count, 0)), x.aval)), x.shape, axes, keepdims)
    return in_float32(f, x)


def std(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviation over axes: the root of `var`; its derivative where that is 0 is 0."""
    return in_float32(lambda x: prims.sqrt(var(x, axis, correction=correction, keepdims=keepdims)), x)


def _extremum(primitive: Any, on_bools: Any, name: str, x: Any, axis: Axis, keepdims: bool) -> Array:
    x = asarray(x)
    axes = all_axes(axis, x.ndim, name)
    if x.dtype == bool_:
        return on_bools(x, axis, keepdims=keepdims)
    return _keep(primitive(x, axes), x.shape, axes, keepdims)


def max(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Largest element over axes; NaN if there is one. Raises ShapeError for no elements."""
    return _extremum(prims.max_over, any, "max", x, axis, keepdims)


def min(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Smallest element over axes; NaN if there is one. Raises ShapeError for no elements."""
    return _extremum(prims.min_over, all, "min", x, axis, keepdims)


def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether any element over axes is nonzero; False for no elements."""
    return greater(sum(_truth(asarray(x)), axis, keepdims=keepdims), 0)


def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether all elements over axes are nonzero; True for no elements."""
    return equal(sum(logical_not(asarray(x)), axis, keepdims=keepdims), 0)


def argmax(x: Any, /, axis: Optional[int] = None, *, keepdims: bool = False) -> Array:
    """Index of the largest element, int32: the first of equals, NaN being the largest; of the flat array by default."""
    x = asarray(x)
    x = convert_to(x, int32) if x.dtype == bool_ else x
    if axis is None:
        flat = prims.argmax(prims.reshape(x, (x.size,)), 0)
        return prims.reshape(flat, (1,) * x.ndim) if keepdims else flat
    axis = one_axis(axis, x.ndim, "argmax")
    return _keep(prims.argmax(x, axis), x.shape, (axis,), keepdims)


def argmin(x: Any, /, axis: Optional[int] = None, *, keepdims: bool = False) -> Array:
    """Index of the smallest element, int32: the first of equals, NaN being smallest; of the flat array by default."""
    x = asarray(x)
    if x.dtype.kind == "f":
        return argmax(prims.neg(x), axis, keepdims=keepdims)
    if x.dtype.kind == "u":
        return argmax(prims.sub(literal(np.iinfo(x.dtype).max, x.aval), x), axis, keepdims=keepdims)
    x = convert_to(x, int32)
    return argmax(prims.sub(literal(-1, x.aval), x), axis, keepdims=keepdims)  # -1 - x cannot overflow


# ---------------------------------------------------------------------------- contraction
def matmul(x1: Any, x2: Any, /) -> Array:
    """x1 @ x2 by NumPy's rules: vectors as rows or columns, leading axes broadcast; logical for bools.

    float16 is accumulated in float32. Raises ShapeError where the inner axes differ.
    """
    x, y = pair(x1, x2)
    a, b = aval_of(x), aval_of(y)
    if a.dtype is bool_:
        return not_equal(matmul(convert_to(x, int32), convert_to(y, int32)), 0)
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ShapeError(message(f"matmul: {a} @ {b} do not go together: the last axis of the first is contracted with "
                                 "the last but one of the second", at=user_source(2)))
    if b.ndim <= 2:
        return prims.dot_general(x, y, (a.ndim - 1,), (0,))
    x, y = asarray(x), asarray(y)
    if x.ndim == 1:
        return prims.dot_general(y, x, (y.ndim - 2,), (0,))
    lead = x.shape[:-2]
    if lead != y.shape[:-2]:
        try:
            common = broadcast_shapes(lead, y.shape[:-2])
        except ShapeError:
            raise ShapeError(message(f"matmul: {a} @ {b} do not go together: the leading axes do not broadcast",
                                     at=user_source(2))) from None
        x, y = broadcast_to(x, common + x.shape[-2:]), broadcast_to(y, common + y.shape[-2:])
        lead = common
    batch = tuple(range(len(lead)))
    return prims.dot_general(x, y, (x.ndim - 1,), (y.ndim - 2,), batch, batch)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Sum of products along an axis."""
    return sum(multiply(x1, x2), axis)


def tensordot(x1: Any, x2: Any, /, *, axes: Union[int, Tuple[Sequence[int], Sequence[int]]] = 2) -> Array:
    """Sum of products over pairs of axes: the last n of x1, the first n of x2, or those listed; logical for bools."""
    x, y = (asarray(v) for v in pair(x1, x2))
    if x.dtype == bool_:
        return not_equal(tensordot(convert_to(x, int32), convert_to(y, int32), axes=axes), 0)
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= builtins.min(x.ndim, y.ndim):
            raise ShapeError(message(f"tensordot: axes={axes}, but the operands are {x.aval} and {y.aval}",
                                     at=user_source(2)))
        axes = (range(x.ndim - axes, x.ndim), range(axes))
    groups: List[Tuple[int, ...]] = []
    for v, group in zip((x, y), axes):
        some: Sequence[int] = (int(group),) if isinstance(group, (int, np.integer)) else tuple(group)
        groups.append(tuple(one_axis(a, v.ndim, "tensordot") for a in some))
    x_axes, y_axes = groups
    return prims.dot_general(x, y, x_axes, y_axes)
