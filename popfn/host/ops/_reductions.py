"""Reductions. The result is of the dtype of the tensor.

`axis` is an axis, a list of axes, or None for all of them; with `keepdims` a reduced axis stays, of length 1.

Errors: TypeError for an operand that is no Tensor or axes that are no ints, ValueError for a tensor of
another graph, popart_exception for an axis that is out of range.
"""

import math
import warnings
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels import emit
from popfn.host.kernels.kernel import Kernel
from popfn.host.kernels.values import is_float
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


def _reduction(name: str) -> Callable[..., Any]:
    """The value of a reduction that is a function of the array module; integers keep their dtype."""

    def value(xp: Any, op: Any, x: Any) -> Any:
        options = {} if name in ("max", "min") else {"dtype": x.dtype}
        return getattr(xp, name)(x, axis=op.attrs["axes"], keepdims=op.attrs["keepdims"], **options)

    return value


def sum(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum."""
    return _reduce("sum", t, axis, keepdims)


_sum_value = _reduction("sum")


def mean(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the arithmetic mean."""
    return _reduce("mean", t, axis, keepdims)


def _mean_value(xp: Any, op: Any, x: Any) -> Any:
    count = math.prod([x.shape[axis] for axis in op.attrs["axes"]])
    if is_float(x):
        return _sum_value(xp, op, x) / count
    return xp.trunc(_sum_value(xp, op, x.astype(np.float64)) / count)


def _emit_mean(s: Any) -> None:
    (x,) = s.ins
    if x.dtype.kind != "f":
        emit.call_value(s)
        return
    axes = s.op.attrs["axes"]
    emit.reduce(s, "add", x, s.out, axes, s.op.attrs["keepdims"])
    s.apply("divide", s.out, s.constant(math.prod([x.shape[axis] for axis in axes]), s.out.dtype))


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


def _l1_value(xp: Any, op: Any, x: Any) -> Any:
    return _sum_value(xp, op, xp.abs(x))


def l2(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the square root of the sum of the squares."""
    return _reduce("l2", t, axis, keepdims)


def _l2_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.sqrt(_sum_value(xp, op, x * x))


def sumsquare(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum of the squares."""
    return _reduce("sumsquare", t, axis, keepdims)


def _sumsquare_value(xp: Any, op: Any, x: Any) -> Any:
    return _sum_value(xp, op, x * x)


def logsum(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the logarithm of the sum."""
    return _reduce("logsum", t, axis, keepdims)


def _logsum_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.log(_sum_value(xp, op, x))


def logsumexp(t: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the logarithm of the sum of the exponentials, without overflow."""
    return _reduce("logsumexp", t, axis, keepdims)


def _logsumexp_value(xp: Any, op: Any, x: Any) -> Any:
    axes, keep = op.attrs["axes"], op.attrs["keepdims"]
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))  # -inf - -inf would be NaN
    total = xp.log(xp.sum(xp.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keep else xp.reshape(total, op.outputs[0].shape)


def cumsum(t: Tensor, dim: Optional[int] = 0) -> Tensor:
    """Return the sums up to each element along `dim`; popart_exception if `dim` is out of range."""
    graph = _build.checked("cumsum", t=t)
    if dim is None:
        raise TypeError("cumsum: dim must be an int, not None.")
    axis = _build.wrapped(int(dim), len(t.shape))
    if not 0 <= axis < len(t.shape):
        raise popart_exception(f"cumsum: dim {dim} is out of range for {t!r}.")
    return _build.emit_like(graph, "cumsum", (t,), {"axis": axis})


def _cumsum_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.cumsum(x, axis=op.attrs["axis"], dtype=x.dtype)


def _emit_cumsum(s: Any) -> None:
    (x,) = s.ins
    s.line(
        f'{s.function("add")}.accumulate({x.name}, axis={s.op.attrs["axis"]}, dtype="{s.out.dtype}", out={s.out.name})'
    )


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


def _median_value(xp: Any, op: Any, t: Any) -> Tuple[Any, Any]:
    """The lower median, and its place among the reduced elements, the first of equal ones. NaN is the largest."""
    axes, shape = op.attrs["axes"], op.outputs[0].shape
    others = [axis for axis in range(t.ndim) if axis not in axes]
    rows = xp.transpose(t, (*others, *axes))
    rows = xp.reshape(rows, (math.prod(shape), math.prod([t.shape[axis] for axis in axes])))
    # JAX sorts in a stable way without being told.
    order = np.argsort(rows, axis=1, kind="stable") if xp is np else xp.argsort(rows, axis=1)
    middle = (rows.shape[1] - 1) // 2
    index = order[:, middle : middle + 1]
    return xp.reshape(xp.take_along_axis(rows, index, axis=1), shape), xp.reshape(index, shape)


def lamb_square(t: Tensor) -> Tensor:
    """Return the sum of the squares as a float32 scalar."""
    graph = _build.checked("lamb_square", t=t)
    fault = None if t.dtype.is_floating_point else f"a tensor of {t.dtype.name} is no float"
    return _build.emit(graph, "lamb_square", (t,), (), dtypes.float32, fault=fault)


def _lamb_square_value(xp: Any, op: Any, t: Any) -> Any:
    """The sum of the squares."""
    return xp.sum(t * t)


def _emit_lamb_square(s: Any) -> None:
    """Emit the sum of the squares."""
    (x,) = s.ins
    square = s.scratch(x.shape, x.dtype)
    s.apply("multiply", x, x, out=square)
    s.line(f"{s.function('add')}.reduce({square.name}, axis=None, out={s.out.name})")


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


def _histogram_value(xp: Any, op: Any, t: Any) -> Any:
    """How many elements are below the first level, from each level to the next, and from the last one on, with NaN."""
    # A level is of the dtype of the tensor, as an element that equals it is.
    levels = np.asarray(op.attrs["levels"], op.inputs[0].dtype.as_numpy()).astype(t.dtype)
    t = xp.abs(t) if op.attrs["absolute_of_input"] else t
    below = [xp.sum(t < level) for level in levels]
    edges = [np.int32(0), *below, np.int32(math.prod(t.shape))]
    return xp.stack([after - before for before, after in zip(edges, edges[1:])])


def _arg(kind: str, t: Tensor, dim: Optional[int], keepdim: Optional[bool]) -> Tensor:
    graph = _build.checked(kind, t=t)
    axis = _build.as_axis(kind, "dim", dim, t)
    attrs = {"axis": axis, "keepdims": bool(keepdim)}
    return _build.emit(graph, kind, (t,), _reduced(t.shape, (axis,), bool(keepdim)), dtypes.int32, attrs)


def argmax(t: Tensor, dim: Optional[int] = 0, keepdim: Optional[bool] = False) -> Tensor:
    """Return the index of the largest element along `dim`, the first of equal ones, as int32."""
    return _arg("argmax", t, dim, keepdim)


def _argmax_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.reshape(xp.argmax(x, axis=op.attrs["axis"]), op.outputs[0].shape)


def argmin(t: Tensor, dim: Optional[int] = 0, keepdim: Optional[bool] = False) -> Tensor:
    """Return the index of the smallest element along `dim`, the first of equal ones, as int32."""
    return _arg("argmin", t, dim, keepdim)


def _argmin_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.reshape(xp.argmin(x, axis=op.attrs["axis"]), op.outputs[0].shape)


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
        raise popart_exception(f"topk: axis {axis} is out of range for {t!r}; it counts from 0.")
    if not 0 <= k <= t.shape[axis]:
        raise popart_exception(f"topk: there are no {k} elements along axis {axis} of {t!r}.")
    if not sorted:
        warnings.warn("topk: sorted=False is not supported; the elements are sorted.", stacklevel=2)
    shape = t.shape[:axis] + (k,) + t.shape[axis + 1 :]
    results = (("topk_out_value", shape, t.dtype, ()), ("topk_out_indices", shape, dtypes.int32, ()))
    attrs = {"k": k, "axis": axis, "largest": bool(largest)}
    values, indices = graph._add_op("topk", (t,), results, attrs).outputs
    return values, indices


def _topk_value(xp: Any, op: Any, x: Any) -> Any:
    axis, k = op.attrs["axis"], op.attrs["k"]
    # An order-reversing key keeps equal elements in the order of their places, and NaN last.
    key = x if not op.attrs["largest"] else -x if is_float(x) else ~x
    order = xp.argsort(key, axis=axis, kind="stable")[(slice(None),) * axis + (slice(k),)]
    return xp.take_along_axis(x, order, axis=axis), order


KERNELS: Dict[str, Kernel] = {
    "sum": Kernel(_sum_value, emit.reduction("add"), float32=True),
    "mean": Kernel(_mean_value, _emit_mean, float32=True),
    "max": Kernel(_reduction("max"), emit.reduction("maximum")),
    "min": Kernel(_reduction("min"), emit.reduction("minimum")),
    "prod": Kernel(_reduction("prod"), emit.reduction("multiply"), float32=True),
    "l1": Kernel(_l1_value, emit.reduction("add", "absolute"), float32=True),
    "l2": Kernel(_l2_value, emit.reduction("add", "multiply", "sqrt"), float32=True),
    "sumsquare": Kernel(_sumsquare_value, emit.reduction("add", "multiply"), float32=True),
    "logsum": Kernel(_logsum_value, emit.reduction("add", None, "log"), float32=True),
    "logsumexp": Kernel(_logsumexp_value, float32=True),
    "cumsum": Kernel(_cumsum_value, _emit_cumsum, float32=True),
    "median": Kernel(_median_value),
    "lamb_square": Kernel(_lamb_square_value, _emit_lamb_square, safe=True, float32=True),
    "histogram": Kernel(_histogram_value, float32=True),
    "argmax": Kernel(_argmax_value),
    "argmin": Kernel(_argmin_value),
    "topk": Kernel(_topk_value),
}
