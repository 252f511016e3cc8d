"""Scans along an axis, and differences."""
from __future__ import annotations

from typing import Any, Callable, List, Optional

import numpy as np

from .._promotion import as_float, convert_to, known, one_axis, promoted
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import bool_, int32
from ..trace.errors import ShapeError, message, user_source
from ..trace.tracer import literal
from ._create import asarray
from ._elementwise import not_equal, subtract
from ._reduce import accumulator, mirrored
from ._shapes import broadcast_to, reshape


def _of_line(primitive: Callable[[Array, int], Any], name: str, x: Array, axis: Optional[int]) -> Any:
    """A scan along an axis, by default of the flat array."""
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    return primitive(x, one_axis(axis, x.ndim, name))


def _cumulative(primitive: Callable[[Array, int], Any], name: str, start: int, x: Any, axis: Optional[int], dtype: Any,
                include_initial: bool) -> Array:
    x = accumulator(asarray(x), dtype)
    if axis is None and x.ndim != 1:
        raise ShapeError(message(f"{name}: an axis may be left out only where there is one, got {x.aval}",
                                 "way out: axis=0, or another", at=user_source(3)))
    axis = one_axis(0 if axis is None else axis, x.ndim, name)
    y = asarray(primitive(x, axis))
    if not include_initial:
        return y
    first = broadcast_to(literal(start, x.aval), tuple(1 if i == axis else n for i, n in enumerate(x.shape)))
    return asarray(prims.concat((first, y), axis))


def cumulative_sum(x: Any, /, *, axis: Optional[int] = None, dtype: Any = None,
                   include_initial: bool = False) -> Array:
    """Sums of the elements up to each along an axis, of x's shape; with a 0 in front if `include_initial`.

    `axis` may be left out if there is only one. Bools and small integers are summed in 32 bits, float16 in float32.
    Raises ShapeError for an axis that there is not, or that is left out where there are several.

    >>> import popfn.numpy as pnp
    >>> pnp.cumulative_sum(pnp.asarray([1, 2, 3]), include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    return _cumulative(prims.cumsum, "cumulative_sum", 0, x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: Optional[int] = None, dtype: Any = None,
                    include_initial: bool = False) -> Array:
    """Products of the elements up to each along an axis, of x's shape; with a 1 in front if `include_initial`.

    `axis`, dtypes and errors as for `cumulative_sum`. The derivative is exact where elements are 0. Compiled, products
    of neighbours are formed on the way, which may overflow where those from the front do not.
    """
    return _cumulative(prims.cumprod, "cumulative_prod", 1, x, axis, dtype, include_initial)


def cumsum(x: Any, /, axis: Optional[int] = None, *, dtype: Any = None) -> Array:
    """`cumulative_sum` under NumPy's name: without an axis, of the flat array."""
    return asarray(_of_line(prims.cumsum, "cumsum", accumulator(asarray(x), dtype), axis))


def cumprod(x: Any, /, axis: Optional[int] = None, *, dtype: Any = None) -> Array:
    """`cumulative_prod` under NumPy's name: without an axis, of the flat array."""
    return asarray(_of_line(prims.cumprod, "cumprod", accumulator(asarray(x), dtype), axis))


def cummax(x: Any, /, axis: Optional[int] = None) -> Array:
    """The largest of the elements up to each along an axis, by default of the flat array; NaN from the first NaN on.

    The derivative goes to the first of equal elements, as in a pool.

    >>> import popfn.numpy as pnp
    >>> pnp.cummax(pnp.asarray([2, 1, 3, 2]))
    Array([2, 2, 3, 3], dtype=int32)
    """
    x = asarray(x)
    if x.dtype == bool_:
        return convert_to(cummax(convert_to(x, int32), axis), bool_)
    return _of_line(prims.cummax, "cummax", x, axis)[0]


def cummin(x: Any, /, axis: Optional[int] = None) -> Array:
    """The smallest of the elements up to each along an axis, by default of the flat array; NaN from the first NaN on.

    The derivative goes to the first of equal elements, as in a pool.
    """
    x = asarray(x)
    if x.dtype == bool_:
        return convert_to(cummin(convert_to(x, int32), axis), bool_)
    return mirrored(_of_line(prims.cummax, "cummin", mirrored(x), axis)[0])


def logcumsumexp(x: Any, /, axis: Optional[int] = None) -> Array:
    """log(cumsum(exp(x))) along an axis, by default of the flat array, without overflow; float16 runs in float32.

    -inf as long as every element is -inf.
    """
    return asarray(_of_line(prims.cumlogsumexp, "logcumsumexp", as_float(x), axis))


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """The differences of neighbours along an axis, taken n times; of bools, whether they differ.

    `prepend` and `append` are joined to x first: arrays, or scalars for one more element. Raises ShapeError for an
    axis that there is not and for a negative n.
    """
    x = asarray(x)
    axis, n = one_axis(axis, x.ndim, "diff"), known("diff: n", n)
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise ShapeError(message(f"diff: n is a count of 0 or more, got {n!r}", at=user_source(2)))
    one = tuple(1 if i == axis else m for i, m in enumerate(x.shape))
    ends = [None if end is None else asarray(end) for end in (prepend, append)]
    parts: List[Array] = [part if part.ndim else broadcast_to(part, one)
                          for part in (ends[0], x, ends[1]) if part is not None]
    if len(parts) > 1:
        x = asarray(prims.concat(promoted(*parts), axis))
    for _ in range(n):
        size = x.shape[axis]
        later, earlier = (x[(slice(None),) * axis + (slice(start, start + max(size - 1, 0)),)] for start in (1, 0))
        x = not_equal(later, earlier) if x.dtype == bool_ else subtract(later, earlier)
    return x
