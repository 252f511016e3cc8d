"""What the functions of popfn.numpy and popfn.nn begin with: promotion, and the reading of shapes and axes."""
from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple, Union

import numpy as np

from .trace import prims
from .trace.array import Array
from .trace.aval import SHORT, Aval, Shape, as_numpy, bool_, canonical_dtype, float32, promote_types
from .trace.errors import (
    ArgumentError,
    ConcretizationError,
    DtypeError,
    RangeError,
    ShapeError,
    located,
    message,
    user_source,
)
from .trace.jaxpr import Literal
from .trace.tracer import Tracer, aval_of, literal

Axis = Union[None, int, Sequence[int]]
#: Python's number types in the order of promotion.
PYTHON = {bool: 0, int: 1, float: 2}
_KINDS = {d: 0 if d == bool_ else 1 if d.kind in "iu" else 2 for d in SHORT}
_kind = _KINDS.__getitem__


def convert_to(x: Any, dtype: np.dtype, weak: bool = False) -> Any:
    """x in a dtype: an equation for an Array, done at once for data."""
    if isinstance(x, Array):
        return x if x.aval.dtype == dtype else prims.convert(x, dtype, weak)
    if isinstance(x, Literal):
        x = x.value.item()
    if type(x) in PYTHON:
        return literal(x, Aval._make((), dtype, weak))
    value = as_numpy(x).astype(dtype)
    value.flags.writeable = False
    return Array.wrap(value, Aval._make(value.shape, dtype, weak))


def promoted(*xs: Any) -> Sequence[Any]:
    """The operands in their common dtype."""
    avals = [aval_of(x) for x in xs]
    dtype, weak = avals[0].dtype, avals[0].weak
    try:
        for a in avals[1:]:
            dtype, weak = promote_types(dtype, weak, a.dtype, a.weak)
    except DtypeError as e:
        raise located(e) from None
    return [convert_to(x, dtype, weak) for x in xs]


def pair(x: Any, y: Any) -> Sequence[Any]:
    """`promoted` of two operands, with the common cases first."""
    if isinstance(x, Array):
        a = x.aval
        if isinstance(y, Array):
            if a.dtype is y.aval.dtype:
                return x, y
        elif PYTHON.get(type(y), 3) <= _kind(a.dtype):
            return x, literal(y, a)
    elif isinstance(y, Array) and PYTHON.get(type(x), 3) <= _kind(y.aval.dtype):
        return literal(x, y.aval), y
    return promoted(x, y)


def floats(*xs: Any) -> Sequence[Any]:
    """The operands in their common dtype, integers and bools as float32."""
    xs = tuple(promoted(*xs)) if len(xs) > 1 else xs
    if aval_of(xs[0]).is_float:
        return xs
    weak = all(aval_of(x).weak for x in xs)
    return [convert_to(x, float32, weak) for x in xs]


def as_array(x: Any) -> Array:
    """x as an Array."""
    return x if isinstance(x, Array) else Array.wrap(x.value, x.aval) if isinstance(x, Literal) else Array(x)


def as_float(x: Any) -> Array:
    """x as an Array of floats, integers and bools as float32."""
    return as_array(floats(as_array(x))[0])


def converted(x: Any, dtype: np.dtype) -> Array:
    """x in the dtype that another value has, strong."""
    x = as_array(x)
    return x if x.dtype == dtype and not x.aval.weak else prims.convert(x, dtype)


def filled(shape: Shape, value: Any, dtype: np.dtype) -> Array:
    """An array of one value in the dtype that another value has."""
    value = convert_to(value, dtype) if type(value) in PYTHON else converted(value, dtype)
    return prims.broadcast_to(value, shape) if shape else as_array(value)


def in_float32(f: Callable[[Array], Array], x: Any) -> Array:
    """f of x as floats; float16 is computed in float32 and rounded once."""
    x = as_float(x)
    return prims.convert(f(prims.convert(x, float32)), x.dtype) if x.dtype == np.float16 else f(x)


# ---------------------------------------------------------------------------- shapes and axes
def as_dtype(dtype: Any) -> np.dtype:
    """`canonical_dtype`, whose error names the user's line."""
    try:
        return canonical_dtype(dtype)
    except DtypeError as e:
        raise located(e) from None


def holds_arrays(x: Any) -> bool:
    """Whether there are Arrays in a nested list."""
    return any(holds_arrays(part) if isinstance(part, (list, tuple)) else isinstance(part, Array) for part in x)


def known(what: str, value: Any, way: str = "") -> Any:
    """A size, an axis or a count: integer arrays, also those in a list or a tuple, as Python integers.

    Anything else is left for the one who asks. Raises ConcretizationError for what is not known while tracing.
    """
    if type(value) in (list, tuple):
        return type(value)([v if type(v) is int else known(what, v, way) for v in value])
    if not isinstance(value, (Array, np.ndarray)) or value.dtype.kind not in "iu":
        return value
    try:
        return value.tolist()
    except ConcretizationError:
        assert isinstance(value, Tracer)
        raise ConcretizationError(message(
            f"{what} must be known while tracing, got {value.aval}", f"the array: {value.describe()}",
            f"it depends on: {', '.join(value.depends_on()) or 'no argument'}",
            f"way out: {way}a Python number, which jit takes by static_argnums, or x.shape, which is known",
            at=user_source(3))) from None


def known_integer(what: str, value: Any) -> int:
    """A count or a shift. Raises ArgumentError for what is no integer, ConcretizationError for what is not known."""
    value = known(what, value)
    if not isinstance(value, (int, np.integer)):
        raise ArgumentError(message(f"{what} is an integer, got {value!r}", at=user_source(3)))
    return int(value)


def check_number(name: str, what: str, value: Any, holds: Callable[[float], bool], text: str) -> None:
    """Raise ArgumentError for a number, known while tracing, for which a condition, put in words by `text`, fails."""
    if isinstance(value, Tracer):
        return
    try:
        fine = holds(float(value))
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise ArgumentError(message(f"{name}: {what} is a number {text}, got {value!r}", at=user_source(3)))


def as_shape(shape: Any) -> Shape:
    """A shape, given as one or as a single size. Raises ShapeError for what is no integer."""
    if type(shape) is tuple and set(map(type, shape)) == {int}:
        return shape
    if type(shape) is not int:
        shape = known("a shape", shape)
    scalar = isinstance(shape, (Array, np.ndarray)) and not shape.ndim  # of floats: integers are known by now
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else \
        tuple(shape) if hasattr(shape, "__iter__") and not scalar else ("",)
    if not all(isinstance(n, (int, np.integer)) for n in sizes):
        raise ShapeError(message(f"a shape is a tuple of integers, got {shape!r}", at=user_source(3)))
    return tuple(int(n) for n in sizes)


def as_sizes(shape: Any) -> Shape:
    """`as_shape`, or a ShapeError if a size is negative."""
    shape = as_shape(shape)
    if min(shape, default=0) < 0:
        raise ShapeError(message(f"a shape holds sizes of 0 or more, got {shape}", at=user_source(3)))
    return shape


def one_axis(axis: int, ndim: int, name: str) -> int:
    """An axis counted from the front, or a ShapeError that names the function."""
    if type(axis) is int and -ndim <= axis < ndim:
        return axis % ndim
    if isinstance(axis, (Array, np.ndarray)):
        axis = known(f"{name}: an axis", axis)
    if not isinstance(axis, (int, np.integer)) or not -ndim <= axis < ndim:
        raise ShapeError(message(f"{name}: axis {axis!r} is not an axis of a value of rank {ndim}", at=user_source(3)))
    return int(axis) % ndim


def all_axes(axis: Axis, ndim: int, name: str) -> Tuple[int, ...]:
    """The axes meant, counted from the front and ascending, or a ShapeError that names the function."""
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int:
        return (one_axis(axis, ndim, name),)
    if isinstance(axis, (Array, np.ndarray)):
        axis = known(f"{name}: an axis", axis)
    axes = tuple(one_axis(a, ndim, name) for a in (axis if isinstance(axis, (tuple, list, range)) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ShapeError(message(f"{name}: axes {axis} are not distinct", at=user_source(3)))
    return tuple(sorted(axes))


def integer_indices(indices: Any) -> Any:
    """Indices as they are. Raises DtypeError if they are no integers."""
    aval = aval_of(indices)
    if aval.dtype.kind not in "iu":
        raise DtypeError(message(f"an index is an integer, got {aval}", "way out: a mask chooses with pnp.where"
                                 if aval.dtype == bool_ else None, at=user_source(2)))
    return indices


def checked_indices(indices: Any, size: int, axis: int) -> Any:
    """Indices as integers, in range if they are known. Raises RangeError (an IndexError) and DtypeError."""
    integer_indices(indices)
    if not isinstance(indices, Tracer):
        data = indices.value if isinstance(indices, Array) else as_numpy(indices)
        bad = data[(data < -size) | (data >= size)]
        if bad.size:
            raise RangeError(message(f"index {int(bad.flat[0])} is out of range for axis {axis} of size {size}",
                                     at=user_source(2)))
    return indices
