"""What several lowering rules need: constants, broadcasting and the ops PopXL has no name for, said in PopXL.

`px` is the module that offers the PopXL API; tensors are its tensors. Nothing here knows which module it is.
"""
from __future__ import annotations

import math
from typing import Any, Callable, Sequence, Tuple, Union

import numpy as np

from ..aval import FLOAT8, SHORT

_NAMES = {d: SHORT[d].replace("f8", "float8") if d in FLOAT8 else d.name for d in SHORT}



def px_dtype(px: Any, dtype: np.dtype) -> Any:
    """PopXL's dtype for a NumPy dtype."""
    return getattr(px, _NAMES[dtype])


def scalar(px: Any, value: Any, like: Any) -> Any:
    """A scalar constant of the dtype of the tensor `like`."""
    return px.constant(value, like.dtype)


def is_float(t: Any) -> bool:
    """Whether a tensor holds floats."""
    return bool(t.dtype.is_floating_point)


def is_half(t: Any) -> bool:
    """Whether a tensor holds float16."""
    return str(t.dtype.name) == "float16"


def in_float32(px: Any, f: Callable[..., Any], *tensors: Any) -> Any:
    """`f(*tensors)`; for float16 computed in float32 and rounded once at the end."""
    if not is_half(tensors[0]):
        return f(*tensors)
    wide = f(*(px.ops.cast(t, px.float32) for t in tensors))
    return px.ops.cast(wide, tensors[0].dtype)


def reshape(px: Any, t: Any, shape: Sequence[int]) -> Any:
    """`ops.reshape`, left out where it would change nothing."""
    return t if tuple(t.shape) == tuple(shape) else px.ops.reshape(t, tuple(shape))


def transpose(px: Any, t: Any, permutation: Sequence[int]) -> Any:
    """`ops.transpose`, left out where it would change nothing."""
    return t if list(permutation) == list(range(len(permutation))) else px.ops.transpose(t, tuple(permutation))


def grouped(px: Any, t: Any, groups: Sequence[Sequence[int]]) -> Any:
    """t with one axis for each group of its axes, in the order of the groups; all axes are in one of them.

    Axes that stand side by side are merged before anything is moved: what then is moved, if it is, are the two axes of
    a matrix, which a product takes as it is.
    """
    sizes = [math.prod(t.shape[a] for a in group) for group in groups]
    some = [tuple(group) for group in groups if len(group)]
    if all(group == tuple(range(group[0], group[-1] + 1)) for group in some):
        in_place = sorted(some)
        t = reshape(px, t, [math.prod(t.shape[a] for a in group) for group in in_place])
        t = transpose(px, t, [in_place.index(group) for group in some])
    else:
        t = transpose(px, t, [a for group in some for a in group])
    return reshape(px, t, sizes)


def broadcast(px: Any, t: Any, shape: Tuple[int, ...]) -> Any:
    """`t` with NumPy's broadcasting to `shape`. Not by adding zeros, which would lose the sign of -0."""
    if tuple(t.shape) == shape:
        return t
    return px.ops.where(px.constant(True), t, px.ops.init(shape, t.dtype))


def less(px: Any, a: Any, b: Any) -> Any:
    """a < b."""
    return px.ops.greater(b, a)


def negative(px: Any, t: Any) -> Any:
    """t < 0, False for NaN."""
    return px.ops.greater(scalar(px, 0, t), t)


def ordered(px: Any, t: Any) -> Any:
    """A tensor that `ops.greater` can order: bool as int32."""
    return px.ops.cast(t, px.int32) if str(t.dtype.name) == "bool" else t


def counted_index(px: Any, index: Any, size: Union[int, Sequence[int]]) -> Any:
    """Indices into an axis as int32, negative ones counted from the end; what was out of range still is.

    `size` is the axis's, or a size for each index of a vector.
    """
    ops = px.ops
    if str(index.dtype.name) == "uint32":  # what int32 cannot hold would turn negative
        top = px.constant(size, px.uint32)
        return ops.cast(ops.where(ops.greater(index, top), top, index), px.int32)
    index = index if str(index.dtype.name) == "int32" else ops.cast(index, px.int32)
    below = ops.greater(px.constant(0, px.int32), index)
    return ops.where(below, ops.add(index, px.constant(size, px.int32)), index)


def clamped(px: Any, index: Any, last: Union[int, Sequence[int]]) -> Any:
    """int32 indices clamped into 0 to `last`, which is one for all or one for each index of a vector."""
    ops = px.ops
    zero, top = px.constant(0, px.int32), px.constant(last, px.int32)
    index = ops.where(ops.greater(zero, index), zero, index)
    return ops.where(ops.greater(index, top), top, index)


def clamped_index(px: Any, index: Any, size: int) -> Any:
    """`counted_index`, clamped into range."""
    return clamped(px, counted_index(px, index, size), size - 1)
