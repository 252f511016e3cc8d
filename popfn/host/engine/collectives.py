"""Collectives as reductions and rearrangements of the leading axis, the replicas.

Replica b * g * s + k * s + j is member k of group (b, j), where g is the size of the groups and s their stride: the
axis of the replicas in the shape (b, g, s) has the members of the groups along its second axis.
"""

import math
from typing import Any, Callable, Dict, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.kernels.layout import Shape
from popfn.host.tensor import Tensor

_REDUCTIONS = {
    "add": "sum",
    "mean": "mean",
    "min": "min",
    "max": "max",
    "and": "min",
    "or": "max",
    "square_add": "sumsquare",
}


def expand(x: Any, op: Any) -> None:
    """Add the ops that compute the output of a collective."""
    t = op.inputs[0]
    if op.kind == "replicated_all_reduce_":
        result = _all_reduce(x, op, t)
        x.emit("copy_var_update_", [x.at(t), result], [x.output(op.outputs[0])], {})
    else:
        x.define(op.outputs[0], _RULES[op.kind](x, op, t))


def _layout(x: Any, op: Any) -> Tuple[int, int, int]:
    """The shape (b, g, s) of the replicas."""
    group = op.attrs["group"]
    size, stride = group.group_size, group.stride
    return x.replicas // (size * stride), size, stride


def _reduce(x: Any, value: Any, operator: str, axis: int, keepdims: bool = False) -> Any:
    """A reduction along an axis."""
    kept = (1,) if keepdims else ()
    shape = value.shape[:axis] + kept + value.shape[axis + 1 :]
    attrs = {"axes": (axis,), "keepdims": keepdims}
    if operator in ("and", "or") and value.dtype.as_numpy().kind != "b":
        truth = x.op("cast", [value], value.shape, dtypes.bool)
        return x.op("cast", [x.op(_REDUCTIONS[operator], [truth], shape, **attrs)], shape, value.dtype)
    return x.op(_REDUCTIONS[operator], [value], shape, **attrs)


def _all_reduce(x: Any, op: Any, t: Tensor) -> Any:
    return _reduced(x, op, t, x.at(t), t.shape)


def _reduced(x: Any, op: Any, t: Tensor, value: Any, shape: Shape) -> Any:
    """The reduction over the groups: without the leading axis if it is equal on all replicas."""
    operator = op.attrs["op"]
    blocks, size, stride = _layout(x, op)
    if not x.varies(t):
        if operator in ("min", "max", "mean"):
            return x.op("identity", [value], shape)
        return _reduce(x, x.broadcast(value, (size,) + shape), operator, 0)
    if size == x.replicas:
        return _contraction(x, operator, t) or _reduce(x, value, operator, 0)
    parts = x.reshape(value, (blocks, size, stride) + shape)
    total = _reduce(x, parts, operator, 1, True)
    return x.reshape(x.broadcast(total, parts.shape), value.shape)


def _contraction(x: Any, operator: str, t: Tensor) -> Any:
    """The sum over the replicas of a product of matrices, as one product: the replicas become rows of the factors."""
    op = t.producer
    if operator not in ("add", "mean") or op is None or op.kind != "matmul" or t.dtype.as_numpy() != np.float32:
        return None
    lhs, rhs = op.inputs
    if not (x.varies(lhs) and x.varies(rhs) and len(lhs.shape) == len(rhs.shape) == 2):
        return None
    if any(x.is_written(value) for value in (lhs, rhs, t)):
        return None
    rows, inner = lhs.shape
    left = x.reshape(x.permute(x.at(lhs), 1, 0, 2), (rows, x.replicas * inner))
    right = x.reshape(x.at(rhs), (x.replicas * inner, rhs.shape[1]))
    total = x.op("matmul", [left, right], t.shape, t.dtype, **op.attrs)
    if operator == "add":
        return total
    return x.op("div", [total, x.constant(np.array(x.replicas, np.float32), t)], t.shape)


def _all_gather(x: Any, op: Any, t: Tensor) -> Any:
    blocks, size, stride = _layout(x, op)
    value, out = x.at(t), op.outputs[0].shape
    if not x.varies(t):
        return _joined(x, op, x.broadcast(value, (size,) + t.shape), (), out)
    if size == x.replicas:
        return _joined(x, op, value, (), out)
    parts = x.reshape(value, (blocks, size, stride) + t.shape)
    rest = tuple(range(3, len(parts.shape)))
    joined = _joined(x, op, x.permute(parts, 0, 2, 1, *rest), (blocks, stride), out)
    single = x.reshape(joined, (blocks, 1, stride) + out)
    return x.reshape(x.broadcast(single, (blocks, size, stride) + out), (x.replicas,) + out)


def _joined(x: Any, op: Any, value: Any, lead: Shape, out: Shape) -> Any:
    """The tensors of the members, which lie along the axis behind `lead`, put together."""
    first, rank = len(lead), len(value.shape)
    if op.attrs["output"] == "concat":
        axis = first + op.attrs["axis"]
        order = [*range(first), *range(first + 1, axis + 1), first, *range(axis + 1, rank)]
        value = x.permute(value, *order)
    elif op.attrs["output"] == "meta_shape":
        value = x.reshape(value, lead + (math.prod(value.shape[first:]),))
        size = math.prod(out)
        slices = tuple([slice(0, n, 1) for n in lead]) + (slice(0, size, 1),)
        value = x.op("slice", [value], lead + (size,), slices=slices)
    return x.op("reshape", [value], lead + out)


def _flat_parts(x: Any, value: Any, lead: Shape, size: int, length: int) -> Any:
    """The elements behind `lead` padded with zeros and cut into `size` parts of a length."""
    count = math.prod(value.shape[len(lead) :])
    value = x.reshape(value, lead + (count,))
    if count < size * length:
        padding = x.op("init", (), lead + (size * length - count,), value.dtype, like=value, init_type="zero")
        value = x.op("concat", [value, padding], lead + (size * length,), axis=len(lead))
    return x.reshape(value, lead + (size, length))


def _reduce_scatter(x: Any, op: Any, t: Tensor) -> Any:
    blocks, size, stride = _layout(x, op)
    (length,) = op.outputs[0].shape
    value = x.at(t)
    if size == 1 and not x.varies(t):
        return x.op("reshape", [_reduced(x, op, t, value, t.shape)], (length,))
    if not x.varies(t) or size == x.replicas:
        return _dealt(x, op, _flat_parts(x, _reduced(x, op, t, value, t.shape), (), size, length))
    total = _reduce(x, x.reshape(value, (blocks, size, stride) + t.shape), op.attrs["op"], 1)
    parts = _flat_parts(x, total, (blocks, stride), size, length)
    return x.op("reshape", [x.permute(parts, 0, 2, 1, 3)], (x.replicas, length))


def _dealt(x: Any, op: Any, parts: Any) -> Any:
    """Part k for member k of each group, where all groups have the same parts."""
    blocks, size, stride = _layout(x, op)
    rest = parts.shape[1:]
    single = x.reshape(parts, (1, size, 1) + rest)
    return x.op("reshape", [x.broadcast(single, (blocks, size, stride) + rest)], (x.replicas,) + rest)


def _sharded_slice(x: Any, op: Any, t: Tensor) -> Any:
    blocks, size, stride = _layout(x, op)
    (length,) = op.outputs[0].shape
    value = x.at(t)
    if not x.varies(t):
        if size == 1:
            return x.op("reshape", [value], (length,))
        return _dealt(x, op, _flat_parts(x, value, (), size, length))
    parts = x.reshape(_flat_parts(x, value, (x.replicas,), size, length), (blocks, size, stride, size, length))
    return x.op("reshape", [x.diagonal(parts, 1, 3)], (x.replicas, length))


def _slice(x: Any, op: Any, t: Tensor) -> Any:
    blocks, size, stride = _layout(x, op)
    axis, value, out = op.attrs["axis"], x.at(t), op.outputs[0].shape
    cut = t.shape[:axis] + (size, t.shape[axis] // size) + t.shape[axis + 1 :]
    if not x.varies(t):
        if size == 1:
            return x.op("reshape", [value], out)
        rest = [*range(axis), *range(axis + 1, len(cut))]
        dealt = _dealt(x, op, x.permute(x.reshape(value, cut), axis, *rest))
    else:
        dealt = x.diagonal(x.reshape(value, (blocks, size, stride) + cut), 1, 3 + axis)
    return x.op("reshape", [dealt], (x.replicas,) + out)


_RULES: Dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "replicated_all_reduce": _all_reduce,
    "replicated_all_gather": _all_gather,
    "replicated_reduce_scatter": _reduce_scatter,
    "replica_sharded_slice": _sharded_slice,
    "replicated_slice": _slice,
}
