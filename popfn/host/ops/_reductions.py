"""Reductions. The result is of the dtype of the tensor.

`axis` is an axis, a list of axes, or None for all of them; with `keepdims` a reduced axis stays, of length 1.

Errors: TypeError for an operand that is no Tensor or axes that are no ints, ValueError for a tensor of
another graph, popart_exception for an axis that is out of range.
"""

import warnings
from typing import Iterable, List, Optional, Tuple, Union

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.ops import _build
from popfn.host.tensor import Shape, Tensor

Axes = Optional[Union[int, Iterable[int]]]


def _reduced(shape: Shape, axes: Tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple([1 if i in axes else n for i, n in enumerate(shape)])
    return tuple([n for i, n in enumerate(shape) if i not in axes])


def _as_axes(kind: str, t: Tensor, axis: Axes) -> Tuple[int, ...]:
    if axis is None:
        return tuple(range(len(t.shape)))
    if hasattr(axis, "__iter__"):
        return tuple(sorted({_build.as_axis(kind, "axis", a, t) for a in axis}))
    return (_build.as_axis(kind, "axis", axis, t),)


def _reduce(kind: str, t: Tensor, axis: Axes, keepdims: bool, needs_elements: bool = False) -> Tensor:
    graph = _build.checked(kind, t=t)
    axes = _as_axes(kind, t, axis)
    fault = None
    if needs_elements and 0 in [t.shape[a] for a in axes]:
        fault = f"there is no element to choose in the shape {t.shape}"
    shape = _reduced(t.shape, axes, keepdims)
    return _build.emit(
        graph, kind, (t,), shape, t.dtype, {"axes": axes, "keepdims": bool(keepdims)}, fault=fault
    )


def sum(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum."""
    return _reduce("sum", t, axis, keepdims)


def mean(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the arithmetic mean."""
    return _reduce("mean", t, axis, keepdims)


def max(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the largest element."""
    return _reduce("max", t, axis, keepdims, needs_elements=True)


def min(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element."""
    return _reduce("min", t, axis, keepdims, needs_elements=True)


def prod(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the product."""
    return _reduce("prod", t, axis, keepdims)


def l1(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum of the absolute values."""
    return _reduce("l1", t, axis, keepdims)


def l2(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the square root of the sum of the squares."""
    return _reduce("l2", t, axis, keepdims)


def sumsquare(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum of the squares."""
    return _reduce("sumsquare", t, axis, keepdims)


def logsum(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the logarithm of the sum."""
    return _reduce("logsum", t, axis, keepdims)


def logsumexp(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the logarithm of the sum of the exponentials, without overflow."""
    return _reduce("logsumexp", t, axis, keepdims)


def median(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the median: of an even number of elements the smaller one of the middle two."""
    graph = _build.checked("median", t=t)
    axes = _as_axes("median", t, axis)
    shape = _reduced(t.shape, axes, keepdims)
    fault = None
    if 0 in t.shape:
        fault = f"there is no element to choose in the shape {t.shape}"
    results = (("median_out", shape, t.dtype, ()), ("median_indices", shape, dtypes.int32, ()))
    attrs = {"axes": axes, "keepdims": bool(keepdims)}
    return graph._add_op("median", (t,), results, attrs, fault).outputs[0]


def lamb_square(t: Tensor) -> Tensor:
    """Return the sum of the squares as a float32 scalar."""
    graph = _build.checked("lamb_square", t=t)
    fault = None if t.dtype.is_floating_point else f"a tensor of {t.dtype.name} is no float"
    return _build.emit(graph, "lamb_square", (t,), (), dtypes.float32, fault=fault)


def check_increment(levels: Iterable[float]) -> None:
    """ValueError unless each level is larger than the one before."""
    levels = list(levels)
    if any(not low < high for low, high in zip(levels, levels[1:])):
        raise ValueError(f"histogram: the levels must increase, unlike {levels}.")


def histogram(t: Tensor, levels: List[float], absolute_of_input: bool) -> Tensor:
    """Count the elements below the first level, between each level and the next, and from the last one on.

    Args:
        t: Floats.
        levels: Numbers that increase; an element that equals one belongs to the bin above.
        absolute_of_input: Whether to count the absolute values.

    Returns:
        `len(levels) + 1` counts, as uint32.

    Raises:
        ValueError: If the levels do not increase.
        popart_exception: If `t` is neither float16 nor float32.
    """
    graph = _build.checked("histogram", t=t)
    bounds = tuple([_build.as_float("histogram", "a level", level) for level in levels])
    check_increment(bounds)
    if t.dtype not in (dtypes.float16, dtypes.float32):
        raise popart_exception(f"histogram: {t!r} must be float16 or float32.")
    attrs = {"levels": bounds, "absolute_of_input": bool(absolute_of_input)}
    return _build.emit(graph, "histogram", (t,), (len(bounds) + 1,), dtypes.uint32, attrs)


def _arg(kind: str, t: Tensor, dim: Optional[int], keepdim: Optional[bool]) -> Tensor:
    graph = _build.checked(kind, t=t)
    axis = _build.as_axis(kind, "dim", dim, t)
    attrs = {"axis": axis, "keepdims": bool(keepdim)}
    return _build.emit(graph, kind, (t,), _reduced(t.shape, (axis,), bool(keepdim)), dtypes.int32, attrs)


def argmax(t: Tensor, dim: Optional[int] = 0, keepdim: Optional[bool] = False) -> Tensor:
    """Return the index of the largest element along `dim`, the first of equal ones, as int32."""
    return _arg("argmax", t, dim, keepdim)


def argmin(t: Tensor, dim: Optional[int] = 0, keepdim: Optional[bool] = False) -> Tensor:
    """Return the index of the smallest element along `dim`, the first of equal ones, as int32."""
    return _arg("argmin", t, dim, keepdim)


def topk(
    t: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    available_memory_proportion: Optional[float] = None,
) -> Tuple[Tensor, Tensor]:
    """Return the `k` largest elements along `axis`, descending, or the smallest, ascending, and their places.

    Args:
        t: The tensor.
        k: How many.
        axis: The axis, counted from 0.
        largest: Whether to take the largest.
        sorted: False is not supported: the elements are sorted all the same, with a warning.
        available_memory_proportion: Has no effect on the host.

    Raises:
        popart_exception: If `axis` is negative or out of range, or `k` larger than its length.
    """
    graph = _build.checked("topk", t=t)
    k, axis = _build.as_int("topk", "k", k), _build.as_int("topk", "axis", axis)
    if not 0 <= axis < len(t.shape):
        raise popart_exception(
            f"topk: axis {axis} is out of range for the shape {t.shape}; it counts from 0."
        )
    if not 0 <= k <= t.shape[axis]:
        raise popart_exception(f"topk: there are no {k} elements along axis {axis} of {t.shape}.")
    if not sorted:
        warnings.warn("topk: sorted=False is not supported; the elements are sorted.", stacklevel=2)
    shape = t.shape[:axis] + (k,) + t.shape[axis + 1 :]
    results = (("topk_out_value", shape, t.dtype, ()), ("topk_out_indices", shape, dtypes.int32, ()))
    attrs = {"k": k, "axis": axis, "largest": bool(largest)}
    values, indices = graph._add_op("topk", (t,), results, attrs).outputs
    return values, indices
