"""8-bit floats, with the powers of two that scale numbers into their range."""
from __future__ import annotations

from typing import Any

from .._promotion import as_dtype, as_float
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import broadcast_shapes, float8_143
from ..trace.errors import ShapeError, message, user_source
from ._create import asarray


def cast_to_float8(x: Any, log2_scale: int = 0, *, dtype: Any = float8_143) -> Array:
    """x times 2 to the `log2_scale` in an 8-bit dtype, rounded to the nearest; NaN where that is too large.

    float8_143 holds numbers up to 240 and 3 binary places, float8_152 up to 57344 and 2. `log2_scale` is a Python
    integer from -32 to 31. A gradient that passes comes in the 8-bit dtype, and is NaN where that cannot hold it.
    Raises DtypeError for other scales and dtypes.

    >>> import numpy as np
    >>> cast_from_float8(cast_to_float8(np.array([0.7, 300.0], np.float32), -1), 1)
    Array([  0.6875, 288.    ], dtype=float32)
    """
    return prims.cast_to_float8(as_float(x), as_dtype(dtype), log2_scale)


def cast_from_float8(x: Any, log2_scale: int = 0, *, dtype: Any = "float32") -> Array:
    """8-bit floats times 2 to the `log2_scale`, as float32 or float16.

    The scale that undoes `cast_to_float8` is its negative. Raises DtypeError for other dtypes, and for scales that are
    no Python integers from -32 to 31.
    """
    return prims.cast_from_float8(asarray(x), as_dtype(dtype), log2_scale)


def matmul_pow2scaled(x1: Any, x2: Any, /, log2_scale: int = 0) -> Array:
    """x1 @ x2 of 8-bit floats, times 2 to the `log2_scale`, as float16; accumulated in float32.

    Vectors are rows or columns and leading axes broadcast as in `matmul`; the two formats may differ. With operands
    that were scaled by a and b the product is restored by -a - b. Raises DtypeError for operands that are no 8-bit
    floats, ShapeError where they do not go together.

    >>> import numpy as np
    >>> x = cast_to_float8(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), 3)
    >>> matmul_pow2scaled(x, x, -6)
    Array([[ 7., 10.],
           [15., 22.]], dtype=float16)
    """
    x, y = asarray(x1), asarray(x2)
    shapes = [(1, *x.shape) if x.ndim == 1 else x.shape, (*y.shape, 1) if y.ndim == 1 else y.shape]
    fault = message(f"matmul_pow2scaled: {x.aval} @ {y.aval} do not go together: the last axis of the first is "
                    "contracted with the last but one of the second, and the axes before these broadcast",
                    at=user_source(2))
    if not x.ndim or not y.ndim or shapes[0][-1] != shapes[1][-2]:
        raise ShapeError(fault)
    try:
        lead = broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    except ShapeError:
        raise ShapeError(fault) from None
    x2d, y2d = (prims.broadcast_to(prims.reshape(v, s), lead + s[-2:]) for v, s in zip((x, y), shapes))
    product = prims.matmul_pow2scaled(x2d, y2d, log2_scale)
    rows, columns = x.shape[-2:-1], y.shape[-1:] if y.ndim > 1 else ()
    return prims.reshape(product, lead + rows + columns)
