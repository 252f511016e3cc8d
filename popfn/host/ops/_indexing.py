"""Ops that pick elements by index, and `t[key]`.

Errors, unless a function says more: TypeError for an operand that is no Tensor or a number that is no int,
ValueError for a tensor of another graph, popart_exception for an axis that is out of range.
"""

import builtins
from typing import Any, List, Optional

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.ops import _build
from popfn.host.ops._elementwise import where
from popfn.host.ops._movement import slice, squeeze, subsample
from popfn.host.tensor import Constant, Tensor, constant
from popfn.host.utils import to_numpy

REDUCTIONS = ("sum", "max", "min", "none")


def _gather(kind: str, name: str, t: Tensor, indices: Tensor, axis: int, zero_OOR: bool) -> Tensor:
    graph = _build.checked(kind, t=t, indices=indices)
    rank, counted = len(t.shape), _build.as_axis(kind, "axis", axis, t)
    fault = None
    if (
        axis < 0
    ):  # PopXL takes the remainder of an unsigned 64-bit number: wrong unless the rank divides 2**64
        shaped = (2**64 + axis) % rank
        if shaped != counted:
            fault = f"for the negative axis {axis} of rank {rank}, PopXL infers a wrong shape; use {counted}"
        counted = shaped
    if not indices.dtype.is_int:
        fault = f"indices of {indices.dtype.name} are no integers"
    shape = t.shape[:counted] + indices.shape + t.shape[counted + 1 :]
    attrs = {"axis": counted, "zero_OOR": bool(zero_OOR)}
    return _build.emit(graph, "gather", (t, indices), shape, t.dtype, attrs, name, fault=fault)


def gather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    available_memory_proportion: Optional[float] = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Return the parts of `t` at `indices` along `axis`; the axes of `indices` take the place of that axis.

    Args:
        t: The tensor.
        indices: Integers of any shape. One that is out of range gives an undefined part.
        axis: The axis. Count it from 0: PopXL misreads negative ones for some ranks.
        available_memory_proportion: Has no effect on the host.
        zero_OOR: Whether an index that is out of range gives zeros.
    """
    return _gather("gather", "gather_out", t, indices, axis, zero_OOR)


def tied_gather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    available_memory_proportion: Optional[float] = None,
    zero_OOR: bool = False,
) -> Tensor:
    """`gather`, for a tensor that is an operand of a matmul too."""
    return _gather("tied_gather", "tiedgather_out", t, indices, axis, zero_OOR)


def groupedgather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    group_size: int = 1,
    available_memory_proportion: Optional[float] = None,
    zero_OOR: bool = False,
) -> Tensor:
    """`gather` in each of several groups, which axis 0 of `t` and of `indices` counts.

    Args:
        t, indices: As in `gather`, after an axis of length `group_size`.
        axis: The axis of `t`, from 1 on.
        group_size: The number of groups; 1 means `gather`.
        available_memory_proportion: Has no effect on the host.
        zero_OOR: As in `gather`.
    """
    if group_size == 1:
        return _gather("groupedgather", "gather_out", t, indices, axis, zero_OOR)
    graph = _build.checked("groupedgather", t=t, indices=indices)
    groups = _build.as_int("groupedgather", "group_size", group_size)
    axis = _build.as_axis("groupedgather", "axis", axis, t)
    fault = None
    if axis == 0:
        fault = "axis 0 is that of the groups"
    elif t.shape[:1] != (groups,) or indices.shape[:1] != (groups,):
        fault = f"the shapes {t.shape} and {indices.shape} have no leading axis for {groups} groups"
    elif not indices.dtype.is_int:
        fault = f"indices of {indices.dtype.name} are no integers"
    shape = t.shape[:axis] + indices.shape[1:] + t.shape[axis + 1 :]
    attrs = {"axis": axis, "group_size": groups, "zero_OOR": bool(zero_OOR)}
    return _build.emit(
        graph, "groupedgather", (t, indices), shape, t.dtype, attrs, "gather_out", fault=fault
    )


def scatter(
    t: Tensor,
    indices: Tensor,
    values: Tensor,
    axis: int = 0,
    available_memory_proportion: Optional[float] = None,
) -> Tensor:
    """Return a copy of `t` in which each value has replaced the element at its index along `axis`.

    Args:
        t: The tensor.
        indices: Where each value goes along `axis`; along the other axes it keeps its own place.
        values: The values, of the shape of `indices` and the dtype of `t`.
        axis: The axis.
        available_memory_proportion: Has no effect on the host.
    """
    graph = _build.checked("scatter", t=t, indices=indices, values=values)
    axis = _build.as_axis("scatter", "axis", axis, t)
    fault = None
    if indices.shape != values.shape or len(t.shape) != len(values.shape):
        fault = f"the indices {indices.shape} and values {values.shape} must have one shape, of rank {t.rank}"
    elif any(n > m for i, (n, m) in enumerate(zip(values.shape, t.shape)) if i != axis):
        fault = f"the values {values.shape} exceed the shape {t.shape} elsewhere than on axis {axis}"
    elif not indices.dtype.is_int:
        fault = f"indices of {indices.dtype.name} are no integers"
    elif t.dtype is not values.dtype:
        fault = f"the dtypes {t.dtype.name} and {values.dtype.name} differ"
    return _build.emit(graph, "scatter", (t, indices, values), t.shape, t.dtype, {"axis": axis}, fault=fault)


def scatter_reduce(
    data: Tensor,
    indices: Tensor,
    reduction: str,
    initial_values: Optional[Tensor] = None,
    axis: int = 0,
    axis_size: Optional[int] = None,
    enable_index_broadcast: int = True,
    available_memory_proportion: Optional[float] = None,
) -> Tensor:
    """Combine the parts of `data` that have the same index along `axis`.

    Args:
        data: The values.
        indices: Where each goes: of the shape of `data`, or a vector along `axis`.
        reduction: "sum", "max", "min" or "none", which overwrites.
        initial_values: What the result starts from; without it, positions that no index names are 0.
        axis: The axis.
        axis_size: The length of the axis in the result, where there are no initial values.
        enable_index_broadcast: Whether a vector of indices may stand for all other axes.
        available_memory_proportion: Has no effect on the host.

    Raises:
        ValueError: If the reduction is unknown, or neither `initial_values` nor `axis_size` is given.
    """
    return _scatter_reduce("scatter_reduce", data, indices, reduction, initial_values, axis, axis_size, 1)


def grouped_scatter_reduce(
    data: Tensor,
    indices: Tensor,
    reduction: str,
    initial_values: Optional[Tensor] = None,
    axis: int = 0,
    axis_size: Optional[int] = None,
    group_size: int = 1,
    enable_index_broadcast: bool = True,
    available_memory_proportion: Optional[float] = None,
) -> Tensor:
    """`scatter_reduce` in each of several groups, which axis 0 of all operands counts.

    Args:
        group_size: The number of groups; 1 means `scatter_reduce`.
        data, ..., available_memory_proportion: As in `scatter_reduce`.
    """
    groups = _build.as_int("grouped_scatter_reduce", "group_size", group_size)
    kind = "scatter_reduce" if groups == 1 else "grouped_scatter_reduce"
    return _scatter_reduce(kind, data, indices, reduction, initial_values, axis, axis_size, groups)


def _scatter_reduce(
    kind: str,
    data: Tensor,
    indices: Tensor,
    reduction: str,
    initial_values: Optional[Tensor],
    axis: int,
    axis_size: Optional[int],
    groups: int,
) -> Tensor:
    operands = {"data": data, "indices": indices}
    if initial_values is not None:
        operands["initial_values"] = initial_values
    graph = _build.checked(kind, **operands)
    if reduction not in REDUCTIONS:
        raise ValueError(f'{kind}: the reduction must be "sum", "max", "min" or "none", not {reduction!r}.')
    axis = _build.as_axis(kind, "axis", axis, data)
    lead, tail = data.shape[:axis], data.shape[axis + 1 :]
    if initial_values is not None:
        shape, dtype = initial_values.shape, initial_values.dtype
    elif axis_size is not None:
        shape, dtype = lead + (_build.as_int(kind, "axis_size", axis_size),) + tail, data.dtype
    else:
        raise ValueError(f"{kind}: give initial_values or axis_size.")
    fault = None
    own = 0 if groups == 1 else 1  # the axis of the groups
    vector = data.shape[:own] + (1,) * (axis - own) + data.shape[axis : axis + 1] + (1,) * len(tail)
    if indices.shape not in (data.shape, vector, data.shape[:own] + data.shape[axis : axis + 1]):
        fault = f"indices of shape {indices.shape} do not fit data of shape {data.shape} along axis {axis}"
    if not indices.dtype.is_int:
        fault = f"indices of {indices.dtype.name} are no integers"
    if dtype is not data.dtype:
        fault = f"the dtypes {data.dtype.name} and {dtype.name} differ"
    if len(shape) != len(data.shape) or shape[:axis] + shape[axis + 1 :] != lead + tail:
        fault = f"initial values of shape {shape} do not fit data of shape {data.shape} along axis {axis}"
    if own and (axis == 0 or data.shape[0] != groups):
        fault = f"axis 0 of {data.shape} must be that of the {groups} groups, and another one reduced"
    attrs = {"reduction": reduction, "axis": axis}
    if own:
        attrs["group_size"] = groups
    inputs = tuple(operands.values())
    return _build.emit(graph, kind, inputs, shape, dtype, attrs, "scatterreduce_out", fault=fault)


def onehot(t: Tensor, num_classes: Tensor, values: Tensor, axis: int) -> Tensor:
    """Return, for each class index in `t`, a vector of `values[1]` at that index and `values[0]` elsewhere.

    Args:
        t: Integers.
        num_classes: The length of the vectors, a constant.
        values: The two values; the result is of their dtype.
        axis: The axis of the result that the vectors lie along; -1 is the last.
    """
    graph = _build.checked("onehot", t=t, num_classes=num_classes, values=values)
    rank = len(t.shape) + 1
    axis = _build.as_int("onehot", "axis", axis)
    if not -1 <= axis < rank:
        raise popart_exception(f"onehot: axis {axis} is out of range for a result of rank {rank}.")
    if not isinstance(num_classes, Constant) or num_classes.data.size != 1:
        raise popart_exception(f"onehot: num_classes must be a constant of one element, not {num_classes!r}.")
    axis, count = axis % rank, int(num_classes.data.reshape(()))
    fault = None
    if values.shape != (2,):
        fault = f"values of shape {values.shape} are not [off, on]"
    if not t.dtype.is_int:
        fault = f"classes of {t.dtype.name} are no integers"
    shape = t.shape[:axis] + (count,) + t.shape[axis:]
    attrs = {"num_classes": count, "axis": axis}
    return _build.emit(graph, "onehot", (t, values), shape, values.dtype, attrs, fault=fault)


def getitem(t: Tensor, key: Any) -> Tensor:
    """`t[key]`: the key is of ints and slices, or an array of integers (gather) or bools (0 where False)."""
    graph = _build.checked("t[...]", t=t)
    with graph._undo_on_error():
        if _is_basic(key):
            return _slices(t, [key])
        if isinstance(key, tuple) and all(_is_basic(k) for k in key):
            return _slices(t, list(key))
        if not isinstance(key, Tensor):
            key = _constant_key(key)
        if key.dtype.is_int:
            return gather(t, key)
        if key.dtype is dtypes.bool:
            return where(key, t, constant(0, t.dtype))
        raise TypeError(f"t[...]: a key of {key.dtype.name} picks nothing; use integers or bools.")


def _is_basic(key: Any) -> bool:
    return isinstance(key, builtins.slice) or isinstance(key, int) and not isinstance(key, bool)


def _constant_key(key: Any) -> Tensor:
    if isinstance(key, (tuple, list, np.ndarray)):
        if isinstance(key, tuple) and Ellipsis in key:
            raise ValueError(f"t[...]: an ellipsis in a key is not supported: {key!r}.")
        array = to_numpy(key)
        if array.dtype.kind in "biu":
            return constant(array)
    raise TypeError(
        f"t[...]: {key!r} is no key: use ints, slices, or a tensor, array or list of integers or bools."
    )


def _slices(t: Tensor, keys: List[Any]) -> Tensor:
    """PopXL's own way: a slice of length 1 for each int, then the steps, then the ints' axes are squeezed."""
    start: List[Optional[int]] = []
    stop: List[Optional[int]] = []
    step: List[Optional[int]] = []
    strides: List[int] = []
    ints: List[int] = []
    for i, key in enumerate(keys):
        if isinstance(key, int):
            key = builtins.slice(key, key + 1)
            ints.append(i)
        stride = 1 if key.step is None else _build.as_int("t[...]", "a step", key.step)
        start.append(key.start)
        stop.append(key.stop)
        step.append(-1 if stride < 0 else 1)
        strides.append(-stride if stride < 0 else stride)
    result = slice(t, start, stop, step)
    if any(stride != 1 for stride in strides):
        result = subsample(result, strides)
    return squeeze(result, ints) if ints else result
