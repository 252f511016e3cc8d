"""popfn.numpy.linalg: the functions of the array API standard's linear algebra that need no decomposition.

>>> import numpy as np
>>> vector_norm(np.array([3.0, 4.0]))
Array(5., dtype=float32)
"""
from __future__ import annotations

import math
from typing import Any, Union

import numpy as np

from .._promotion import Axis, all_axes, converted, in_float32, known, known_integer, one_axis, pair
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import bool_, broadcast_shapes
from ..trace.errors import ArgumentError, ShapeError, message, user_source
from ._contract import matmul as matmul, tensordot as tensordot, vecdot as vecdot
from ._create import asarray, eye, stack
from ._einsum import diagonal_of, einsum
from ._elementwise import abs, multiply, not_equal, pow, sqrt, subtract
from ._reduce import max, min, sum
from ._shapes import broadcast_to, matrix_transpose as matrix_transpose


def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: Union[int, float] = 2) -> Array:
    """The norm of vectors along an axis, or of all elements over several: sum(abs(x) ** ord) ** (1 / ord).

    For ord 0 it is how many elements are not 0, for inf and -inf the largest and the smallest size. The gradient at the
    zero vector is 0. float16 is computed in float32. Raises ShapeError for no elements if ord is inf or
    -inf, ArgumentError if ord is no number.
    """
    x = asarray(x)
    axes = all_axes(axis, x.ndim, "vector_norm")
    if isinstance(ord, bool) or not isinstance(ord, (int, float, np.integer, np.floating)):
        raise ArgumentError(message(f"vector_norm: ord is a number, got {ord!r}", at=user_source(2)))

    def f(x: Array) -> Array:
        if ord == 2:
            return sqrt(sum(multiply(x, x), axes, keepdims=keepdims))
        if ord == 0:
            return sum(converted(not_equal(x, 0), x.dtype), axes, keepdims=keepdims)
        x = abs(x)
        if math.isinf(ord):
            return (max if ord > 0 else min)(x, axes, keepdims=keepdims)
        if ord == 1:
            return sum(x, axes, keepdims=keepdims)
        return pow(sum(pow(x, float(ord)), axes, keepdims=keepdims), 1 / float(ord))
    return in_float32(f, x)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Union[int, float, str] = "fro") -> Array:
    """The norm of matrices (..., m, n): the root of the sum of squares for ord "fro", the largest or smallest sum of
    sizes down the columns for 1 and -1, along the rows for inf and -inf.

    The gradient at zero is 0. float16 is computed in float32. Raises ShapeError for what has no two axes, ArgumentError
    for any other ord: 2, -2 and "nuc" need singular values.
    """
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(message(f"matrix_norm: {x.aval} has no two axes", at=user_source(2)))
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(message(f'matrix_norm: ord is "fro", 1, -1, inf or -inf, got {ord!r}',
                                    "the norms by singular values need a decomposition, which popfn does not have",
                                    at=user_source(2)))
    down = -2 if ord in (1, -1) else -1

    def f(x: Array) -> Array:
        y = (max if ord in (1, math.inf) else min)(sum(abs(x), down, keepdims=True), -3 - down, keepdims=True)
        return y if keepdims else prims.squeeze(y, (y.ndim - 2, y.ndim - 1))
    return in_float32(f, x)


def outer(x1: Any, x2: Any, /) -> Array:
    """All products of the elements of two vectors: shapes (m,) and (n,) give (m, n)."""
    x, y = (asarray(v) for v in pair(x1, x2))
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(message(f"outer takes two vectors, got {x.aval} and {y.aval}",
                                 "way out: reshape them, or use tensordot(x, y, axes=0)", at=user_source(2)))
    return einsum("i,j->ij", x, y)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The cross products of vectors of three elements along an axis; the other axes broadcast.

    `axis` counts from the end where the two are not of one rank. Raises ShapeError for vectors of another size.
    """
    x, y = (asarray(v) for v in pair(x1, x2))
    x_axis, y_axis = one_axis(axis, x.ndim, "cross"), one_axis(axis, y.ndim, "cross")
    if x.shape[x_axis] != 3 or y.shape[y_axis] != 3 or x.ndim - x_axis != y.ndim - y_axis:
        raise ShapeError(message(f"cross: axis {axis} of {x.aval} and {y.aval} is not one axis of size 3 of both",
                                 at=user_source(2)))
    try:
        shape = broadcast_shapes(x.shape, y.shape)
    except ShapeError:
        raise ShapeError(message(f"cross: {x.aval} and {y.aval} do not broadcast", at=user_source(2))) from None
    along = one_axis(axis, len(shape), "cross") if axis < 0 else axis
    lead = (slice(None),) * along
    a, b = ([broadcast_to(v, shape)[(*lead, i)] for i in range(3)] for v in (x, y))
    parts = [subtract(multiply(a[i], b[j]), multiply(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
    return stack(parts, axis=along)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices (..., m, n), `offset` above the main one, or below it if negative: the last axis."""
    x, offset = asarray(x), known_integer("diagonal: the offset", offset)
    if x.ndim < 2:
        raise ShapeError(message(f"diagonal: {x.aval} has no two axes", at=user_source(2)))
    down, right = (-offset, 0) if offset < 0 else (0, offset)
    *lead, m, n = x.shape
    size = m - down if m - down < n - right else n - right
    size = size if size > 0 else 0
    down, right = (down, right) if size else (0, 0)
    stops = (*lead, down + size, right + size)
    return diagonal_of(prims.slice_(x, (0,) * len(lead) + (down, right), stops, (1,) * x.ndim))


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sums of the diagonals of matrices (..., m, n): shape (...). `offset` is that of `diagonal`."""
    return sum(diagonal(x, offset=offset), -1, dtype=dtype)


def matrix_power(x: Any, n: int, /) -> Array:
    """Square matrices (..., m, m) times themselves, n times in all; the identity for n = 0.

    Raises ShapeError for what is not square, ArgumentError for a negative n, which would need an inverse.
    """
    x, n = asarray(x), known("matrix_power: n", n)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(message(f"matrix_power: {x.aval} is not a square matrix", at=user_source(2)))
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise ArgumentError(message(f"matrix_power: n is an integer of 0 or more, got {n!r}",
                                    "a negative power needs an inverse, which popfn does not have", at=user_source(2)))
    if n == 0:
        return broadcast_to(converted(eye(x.shape[-1], dtype=bool_), x.dtype), x.shape)
    if n == 1:
        return x
    half = matrix_power(matmul(x, x), n // 2)
    return matmul(half, x) if n % 2 else half
