"""What the ops compute: the value of each kind as a function of arrays.

`value(xp, op, *arrays)` works on the array module `xp`, NumPy or one with its functions. `op` is the host's Op: its
attrs, and the shapes and dtypes of its outputs. The functions do not round: the engine casts a result to the dtype of
its output, and gives float16 operands as float32 to the kernels that ask for it.
"""

import functools
import math
from typing import Any

import numpy as np

# gelu's tanh form is 0.5 x (1 + tanh(x (GELU_LINEAR + GELU_CUBIC x^2))).
GELU_LINEAR = 0.7978845608
GELU_CUBIC = 0.0356774081


def function(name: str) -> Any:
    """The value of an op that is a function of the array module."""
    return lambda xp, op, *xs: getattr(xp, name)(*xs)


def out_dtype(op: Any) -> np.dtype:
    """The NumPy dtype of the op's first output."""
    return op.outputs[0].dtype.as_numpy()


def is_float(x: Any) -> bool:
    """Whether the elements are floats."""
    return x.dtype.kind == "f"


# Elementwise


def mul(xp: Any, op: Any, x: Any, y: Any) -> Any:
    if x.dtype != y.dtype:  # a float16 tensor and a float32 scalar, which float16 may not hold
        x, y = x.astype(np.float32), y.astype(np.float32)
    return xp.multiply(x, y)


def div(xp: Any, op: Any, x: Any, y: Any) -> Any:
    if is_float(x):
        return xp.divide(x, y)
    return xp.floor_divide(x - xp.fmod(x, y), y)  # rounds toward zero


def power(xp: Any, op: Any, x: Any, y: Any) -> Any:
    if is_float(x) or y.dtype.kind == "u":
        return xp.power(x, y)
    # The powers of integers with a negative exponent, rounded toward zero: NumPy refuses them.
    one = xp.ones_like(x)
    sign = xp.where(y % 2 == 0, one, x)
    return xp.where(y >= 0, xp.power(x, xp.maximum(y, 0)), xp.where(xp.abs(x) == 1, sign, 0 * one))


def sign(xp: Any, op: Any, x: Any) -> Any:
    return xp.where(xp.isnan(x), xp.zeros_like(x), xp.sign(x)) if is_float(x) else xp.sign(x)


def maximum(xp: Any, op: Any, x: Any, *others: Any) -> Any:
    for y in others:
        x = xp.maximum(x, y)
    return x


def relu(xp: Any, op: Any, x: Any) -> Any:
    return xp.maximum(x, xp.zeros_like(x))


def clip(xp: Any, op: Any, x: Any) -> Any:
    low, high = np.asarray([op.attrs["min"], op.attrs["max"]], x.dtype)
    return xp.minimum(xp.maximum(x, low), high)


def gelu(xp: Any, op: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(x * (GELU_CUBIC * (x * x) + GELU_LINEAR)))


# sqrt(1 - exp(-t p(t) / q(t))) with t = x^2 is erf(x), with a relative error below 1e-9.
_ERF_P = (1.2732395433048906, 0.42042999166748274, 0.07987651294434356, 0.008500723136383108, 0.00037867902046240666)
_ERF_Q = (1.0, 0.360251818147481, 0.07089501377628749, 0.007805946113439668, 0.00037541550233018817)
_exact_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(xp: Any, x: Any) -> Any:
    """The error function in float64, exact enough to round to float32."""
    t = xp.minimum(x * x, 36.0)
    p, q = _ERF_P[4], _ERF_Q[4]
    for k in (3, 2, 1, 0):
        p, q = p * t + _ERF_P[k], q * t + _ERF_Q[k]
    return xp.copysign(xp.sqrt(-xp.expm1(-t * p / q)), x)


def geluerf(xp: Any, op: Any, x: Any) -> Any:
    wide = x.astype(np.float64)
    scaled = wide * math.sqrt(0.5)
    return 0.5 * wide * (1 + (_exact_erf(scaled) if x.dtype == np.float64 else erf(xp, scaled)))


def swish(xp: Any, op: Any, x: Any) -> Any:
    return x / (1 + xp.exp(-x))


def where(xp: Any, op: Any, condition: Any, x: Any, y: Any) -> Any:
    return xp.where(condition, x, y)


def cast(xp: Any, op: Any, x: Any) -> Any:
    dtype = out_dtype(op)
    return x != 0 if dtype.kind == "b" else x.astype(dtype)


# Along axes


def reduction(name: str) -> Any:
    """The value of a reduction that is a function of the array module; integers keep their dtype."""

    def value(xp: Any, op: Any, x: Any) -> Any:
        options = {} if name in ("max", "min") else {"dtype": x.dtype}
        return getattr(xp, name)(x, axis=op.attrs["axes"], keepdims=op.attrs["keepdims"], **options)

    return value


_sum = reduction("sum")


def mean(xp: Any, op: Any, x: Any) -> Any:
    count = math.prod([x.shape[axis] for axis in op.attrs["axes"]])
    if is_float(x):
        return _sum(xp, op, x) / count
    return xp.trunc(_sum(xp, op, x.astype(np.float64)) / count)


def l1(xp: Any, op: Any, x: Any) -> Any:
    return _sum(xp, op, xp.abs(x))


def l2(xp: Any, op: Any, x: Any) -> Any:
    return xp.sqrt(_sum(xp, op, x * x))


def sumsquare(xp: Any, op: Any, x: Any) -> Any:
    return _sum(xp, op, x * x)


def logsum(xp: Any, op: Any, x: Any) -> Any:
    return xp.log(_sum(xp, op, x))


def logsumexp(xp: Any, op: Any, x: Any) -> Any:
    axes, keep = op.attrs["axes"], op.attrs["keepdims"]
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))  # -inf - -inf would be NaN
    total = xp.log(xp.sum(xp.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keep else xp.reshape(total, op.outputs[0].shape)


def softmax(xp: Any, op: Any, x: Any) -> Any:
    axis = op.attrs["axis"]
    e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return e / xp.sum(e, axis=axis, keepdims=True)


def cumsum(xp: Any, op: Any, x: Any) -> Any:
    return xp.cumsum(x, axis=op.attrs["axis"], dtype=x.dtype)


def argmax(xp: Any, op: Any, x: Any) -> Any:
    return xp.reshape(xp.argmax(x, axis=op.attrs["axis"]), op.outputs[0].shape)


def argmin(xp: Any, op: Any, x: Any) -> Any:
    return xp.reshape(xp.argmin(x, axis=op.attrs["axis"]), op.outputs[0].shape)


def topk(xp: Any, op: Any, x: Any) -> Any:
    axis, k = op.attrs["axis"], op.attrs["k"]
    # An order-reversing key keeps equal elements in the order of their places, and NaN last.
    key = x if not op.attrs["largest"] else -x if is_float(x) else ~x
    order = xp.argsort(key, axis=axis, kind="stable")[(slice(None),) * axis + (slice(k),)]
    return xp.take_along_axis(x, order, axis=axis), order


# Elements by index


def gather(xp: Any, op: Any, t: Any, indices: Any) -> Any:
    axis = op.attrs["axis"]
    result = xp.take(t, indices, axis=axis, mode="clip")
    if op.attrs["zero_OOR"]:
        inside = (indices >= 0) & (indices < t.shape[axis])
        inside = inside.reshape(inside.shape + (1,) * (t.ndim - 1 - axis))
        result = xp.where(inside, result, np.zeros((), result.dtype))
    return result


def onehot(xp: Any, op: Any, t: Any, values: Any) -> Any:
    axis, count = op.attrs["axis"], op.attrs["num_classes"]
    classes = xp.arange(count).reshape((count,) + (1,) * (t.ndim - axis))
    return xp.where(xp.expand_dims(t, axis) == classes, values[1], values[0])


_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def scatter_reduce(xp: Any, op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """NumPy only. Indices that are out of range are left out."""
    axis, reduction = op.attrs["axis"], op.attrs["reduction"]
    result = np.zeros(op.outputs[0].shape, data.dtype) if initial is None else np.array(initial, data.dtype)
    rows, source = np.moveaxis(result, axis, 0), np.moveaxis(data, axis, 0)
    if indices.size == data.shape[axis] and indices.shape != data.shape:
        where: Any = indices.reshape(-1)
        valid = (where >= 0) & (where < len(rows))
        where, source = where[valid], source[valid]
        order = np.argsort(where, kind="stable")
        where, source = where[order], source[order]
        starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]][: len(where)])
    else:
        # Each element has an index of its own: number the elements of the result in one sequence.
        places = np.moveaxis(indices, axis, 0)
        valid = (places >= 0) & (places < len(rows))
        lanes = np.arange(math.prod(places.shape[1:])).reshape(places.shape[1:])
        where = (places.astype(np.int64) * lanes.size + lanes)[valid]
        order = np.argsort(where, kind="stable")
        where, source = where[order], source[valid][order]
        starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]][: len(where)])
        flat = rows.reshape(-1)  # a copy unless axis is 0
        _combine(flat, where, source, starts, reduction, initial is None)
        rows[...] = flat.reshape(rows.shape)
        return result
    _combine(rows, where, source, starts, reduction, initial is None)
    return result


def _combine(rows: Any, where: Any, source: Any, starts: Any, reduction: str, fresh: bool) -> None:
    """Combine the rows of `source`, sorted by the place `where` each goes to, into `rows`."""
    if not len(starts):
        return
    places = where[starts]
    if reduction == "none":
        rows[places] = source[np.r_[starts[1:], len(where)] - 1]
        return
    combine = _COMBINE[reduction]
    groups = combine.reduceat(source, starts, axis=0, dtype=source.dtype)
    rows[places] = groups if fresh else combine(rows[places], groups)


def window(op: Any, t: Any, index: Any) -> Any:
    """The slices of a window of `t` at an index, moved inside where it would leave `t`."""
    slices = [slice(None)] * t.ndim
    for axis, size, start in zip(op.attrs["axes"], op.attrs["sizes"], index.reshape(-1).tolist()):
        start = max(0, min(start, t.shape[axis] - size))
        slices[axis] = slice(start, start + size)
    return tuple(slices)


def dynamic_slice(xp: Any, op: Any, t: Any, index: Any) -> Any:
    """NumPy only."""
    return t[window(op, t, index)]


def dynamic_update(xp: Any, op: Any, t: Any, index: Any, update: Any) -> Any:
    """NumPy only."""
    result = t.copy()
    result[window(op, t, index)] = update
    return result


# Shape and movement


def init(xp: Any, op: Any) -> Any:
    return xp.zeros(op.outputs[0].shape, out_dtype(op))


def same(xp: Any, op: Any, x: Any) -> Any:
    return x


def reshape(xp: Any, op: Any, x: Any) -> Any:
    return xp.reshape(x, op.outputs[0].shape)


def transpose(xp: Any, op: Any, x: Any) -> Any:
    return xp.transpose(x, op.attrs["permutation"])


def part(xp: Any, op: Any, x: Any) -> Any:
    return x[op.attrs["slices"]]


def subsample(xp: Any, op: Any, x: Any) -> Any:
    return x[tuple([slice(None, None, step) for step in op.attrs["strides"]])]


def concat(xp: Any, op: Any, *xs: Any) -> Any:
    return xp.concatenate(xs, axis=op.attrs["axis"])


def split(xp: Any, op: Any, x: Any) -> Any:
    ends = np.cumsum(op.attrs["sizes"])[:-1]
    parts = xp.split(x, ends.tolist(), axis=op.attrs["axis"])
    return tuple(parts) if len(parts) > 1 else parts[0]


def matmul(xp: Any, op: Any, x: Any, y: Any) -> Any:
    dtype = out_dtype(op)
    if dtype.kind != x.dtype.kind or dtype.itemsize > x.dtype.itemsize:
        x, y = x.astype(dtype), y.astype(dtype)
    return xp.matmul(x, y)


# Over the IPUs of a replica


def combine(xp: Any, operator: str, xs: Any) -> Any:
    """The reduction of several arrays by an operator of a collective."""
    if operator in ("and", "or"):
        xs = [x != 0 for x in xs]
    elif operator == "square_add":
        xs = [x * x for x in xs]
    join = {"min": xp.minimum, "max": xp.maximum, "and": xp.logical_and, "or": xp.logical_or}.get(operator, xp.add)
    total = functools.reduce(join, xs)
    return xp.divide(total, len(xs)) if operator == "mean" else total


def all_reduce(xp: Any, op: Any, *xs: Any) -> Any:
    if op.attrs["identical_inputs"]:
        return xs if len(xs) > 1 else xs[0]
    total = combine(xp, op.attrs["op"], xs)
    return (total,) * len(xs) if len(xs) > 1 else total


# Updates: the new value of input 0


def accumulate(xp: Any, op: Any, t: Any, x: Any, f: Any = None) -> Any:
    wide = np.promote_types(t.dtype, x.dtype)
    x = x.astype(wide)
    if f is None:
        f = op.attrs["f"]
    if f is not None:
        x = x * np.asarray(f, wide).reshape(())
    return t.astype(wide) + x


def replace(xp: Any, op: Any, t: Any, x: Any) -> Any:
    return x


def zero(xp: Any, op: Any, t: Any) -> Any:
    return xp.zeros_like(t)
