"""Collectives: reductions, gathers and slices over groups of the axis that stands for the replicas."""

import math
from typing import Any, Tuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from popfn.host.engine.xla_storage import Value

KINDS = (
    "replicated_all_reduce",
    "replicated_all_reduce_",
    "replicated_all_gather",
    "replicated_reduce_scatter",
    "replica_sharded_slice",
    "replicated_slice",
)
# Up to so many replicas are reduced by additions one by one: XLA fuses these, but not a reduction of the axis.
_UNROLLED = 16


def computed(tracing: Any, op: Any, value: Value) -> Value:
    """The output of a collective on all replicas."""
    kind, group = op.kind, op.attrs["group"]
    if kind.startswith("replicated_all_reduce"):
        return all_reduce(tracing, op, value)
    if kind == "replicated_all_gather":
        return tracing.one(lambda x: _joined(op, x), gathered(tracing, group, value))
    if kind == "replicated_reduce_scatter":
        value = all_reduce(tracing, op, value)
    k = _members(tracing, group)
    if kind == "replicated_slice":
        axis, length = op.attrs["axis"], op.inputs[0].shape[op.attrs["axis"]] // group.group_size
        return tracing.one(
            lambda x, i: jnp.reshape(
                lax.dynamic_slice_in_dim(x, i * np.int32(length), length, axis), op.outputs[0].shape
            ),
            value,
            k,
        )
    (length,) = op.outputs[0].shape
    padding = length * group.group_size - math.prod(op.inputs[0].shape)
    return tracing.one(
        lambda x, i: lax.dynamic_slice_in_dim(
            jnp.pad(jnp.reshape(x, -1), (0, padding)), i * np.int32(length), length
        ),
        value,
        k,
    )


def _members(tracing: Any, group: Any) -> Value:
    """Which member of its group each replica is."""
    if group.group_size == 1:
        return Value(None if tracing.is_abstract else jnp.zeros((), np.int32))
    place = np.zeros(tracing.replicas, np.int32)
    for members in group._members():
        place[list(members)] = np.arange(len(members))
    return Value(None if tracing.is_abstract else jnp.asarray(place), True)


def _split(group: Any) -> Tuple[int, int, int]:
    """The axis of the replicas as three axes, of which the second is that of the members."""
    size, stride = group.group_size, group.stride
    return len(group.assignment) // (size * stride), size, stride


def all_reduce(tracing: Any, op: Any, value: Value) -> Value:
    """The reduction on all replicas: without their axis, if they form one group."""
    how, group = op.attrs["op"], op.attrs["group"]
    size = group.group_size
    if not value.mapped:
        return tracing.one(lambda x: _repeated(x, how, size), value)
    if size == 1:
        return tracing.one(lambda x: reduced(x[None], how, 0, True), value)
    if group.num_groups == 1:
        product = value.product
        if how in ("add", "mean") and product and product[0].mapped and product[1].mapped:
            if op.inputs[0].dtype.as_numpy() == np.float32:
                return tracing.across(lambda _: _contracted(product, size if how == "mean" else 1), value, False)
        return tracing.across(lambda x: reduced(x, how, 0, not tracing.is_spread), value, False)
    split = _split(group)

    def reduce(x: Any) -> Any:
        parts = jnp.reshape(x, split + x.shape[1:])
        total = jnp.expand_dims(reduced(parts, how, 1, not tracing.is_spread), 1)
        return jnp.reshape(jnp.broadcast_to(total, parts.shape), x.shape)

    return tracing.across(reduce, value, True)


def _contracted(product: Any, divisor: int) -> Any:
    """The sum over the replicas of a matrix product, as one matrix product."""
    x, y = product[0].array, product[1].array
    total = lax.dot_general(x, y, (((0, 2), (0, 1)), ((), ())))
    return total / np.float32(divisor) if divisor > 1 else total


def _repeated(x: Any, how: str, size: int) -> Any:
    """The reduction of `size` equal arrays."""
    if how == "add":
        return x * np.asarray(size).astype(x.dtype)
    if how == "square_add":
        return reduced(x[None], how, 0, True) * np.asarray(size).astype(x.dtype)
    return reduced(x[None], how, 0, True)


def reduced(x: Any, how: str, axis: int, unroll: bool) -> Any:
    """Reduce one axis. float16 is added up in float32."""
    dtype, count = x.dtype, x.shape[axis]
    if how in ("and", "or"):
        return (jnp.all if how == "and" else jnp.any)(x != 0, axis=axis).astype(dtype)
    if how in ("min", "max"):
        return (jnp.min if how == "min" else jnp.max)(x, axis=axis)
    if dtype == np.float16:
        x = x.astype(np.float32)
    if how == "square_add":
        x = x * x
    if unroll and count <= _UNROLLED:
        total = lax.index_in_dim(x, 0, axis, keepdims=False)
        for i in range(1, count):
            total = total + lax.index_in_dim(x, i, axis, keepdims=False)
    else:
        total = jnp.sum(x, axis=axis, dtype=x.dtype)
    if how == "mean" and count > 1:
        if dtype.kind in "iu":
            total = jnp.trunc(total.astype(np.float64) / count)
        else:
            total = total / np.asarray(count, x.dtype)
    return total.astype(dtype)


def gathered(tracing: Any, group: Any, value: Value) -> Value:
    """The values of the members of each replica's group, along a new first axis."""
    size = group.group_size
    if not value.mapped:
        return tracing.one(lambda x: jnp.broadcast_to(x, (size,) + x.shape), value)
    if group.num_groups == 1:
        return tracing.across(lambda x: x, value, False)
    outer, _, stride = _split(group)

    def gather(x: Any) -> Any:
        parts = jnp.moveaxis(jnp.reshape(x, (outer, size, stride) + x.shape[1:]), 1, 2)
        parts = jnp.broadcast_to(parts[:, None], (outer, size, stride, size) + x.shape[1:])
        return jnp.reshape(parts, (outer * size * stride, size) + x.shape[1:])

    return tracing.across(gather, value, True)


def _joined(op: Any, x: Any) -> Any:
    """The output of an all-gather from the values of the members, which are along axis 0."""
    shape = op.outputs[0].shape
    if op.attrs["output"] == "new_axis":
        return x
    if op.attrs["output"] == "meta_shape":
        return jnp.reshape(jnp.reshape(x, -1)[: math.prod(shape)], shape)
    return jnp.reshape(jnp.moveaxis(x, 0, op.attrs["axis"]), shape)
