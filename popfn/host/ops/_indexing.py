"""Ops that pick elements by index, and `t[key]`.

Errors, unless a function says more: TypeError for an operand that is no Tensor or a number that is no int,
ValueError for a tensor of another graph, popart_exception for an axis that is out of range.

When the ops run, an index that is out of range reads the nearest element, or 0 if so asked, and writes nothing. NumPy
reads and writes in place; on other array modules `.at[...]`, as JAX arrays have it, stands for writing.
"""

import builtins
import math
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels import emit
from popfn.host.kernels.kernel import Kernel
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


def _gather_value(xp: Any, op: Any, t: Any, indices: Any) -> Any:
    axis = op.attrs["axis"]
    result = xp.take(t, indices, axis=axis, mode="clip")
    if op.attrs["zero_OOR"]:
        inside = (indices >= 0) & (indices < t.shape[axis])
        inside = inside.reshape(inside.shape + (1,) * (t.ndim - 1 - axis))
        result = xp.where(inside, result, np.zeros((), result.dtype))
    return result


def _emit_gather(s: Any) -> None:
    if s.op.attrs["zero_OOR"]:
        emit.call_value(s)
    else:
        t, indices = s.ins
        s.line(
            f'{s.function("take")}({t.name}, {indices.name}, axis={s.op.attrs["axis"]}, out={s.out.name}, mode="clip")'
        )


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


def _groupedgather_value(xp: Any, op: Any, t: Any, indices: Any) -> Any:
    """In each group, the parts of `t` at `indices` along the axis."""
    axis, count = op.attrs["axis"], indices.ndim - 1
    rows = xp.moveaxis(t, axis, 1)
    groups = np.arange(t.shape[0]).reshape((-1,) + (1,) * count)
    result = rows[groups, xp.clip(indices, 0, t.shape[axis] - 1)]
    if op.attrs["zero_OOR"]:
        inside = (indices >= 0) & (indices < t.shape[axis])
        inside = xp.reshape(inside, inside.shape + (1,) * (t.ndim - 2))
        result = xp.where(inside, result, xp.zeros_like(result))
    return xp.moveaxis(result, tuple(range(1, 1 + count)), tuple(range(axis, axis + count)))


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


def _scatter_value(xp: Any, op: Any, t: Any, indices: Any, elements: Any) -> Any:
    """`t` with the elements at their indices along the axis; of those with the same place the last one."""
    axis = op.attrs["axis"]
    places = _outside_beyond(xp, indices, t.shape[axis])
    if xp is not np:
        return t.at[_coordinates(axis, places)].set(elements, mode="drop")
    result = t.copy()
    inside = places < t.shape[axis]
    result[tuple([np.broadcast_to(x, places.shape)[inside] for x in _coordinates(axis, places)])] = elements[inside]
    return result


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


def _scatter_reduce_value(xp: Any, op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """The parts of `data` with the same index along the axis combined, with the initial values if there are any."""
    if xp is np:
        return _scatter_reduce_numpy(op, data, indices, initial)
    axis, reduction, shape = op.attrs["axis"], op.attrs["reduction"], op.outputs[0].shape
    places = _outside_beyond(xp, indices, shape[axis])
    if indices.shape == data.shape:
        where = _coordinates(axis, places)
    else:
        where = (builtins.slice(None),) * axis + (xp.reshape(places, (-1,)),)
    start = xp.zeros(shape, data.dtype) if initial is None else initial
    if initial is None and reduction in ("max", "min"):
        start = start + _neutral(reduction, data.dtype)
    method = {"sum": "add", "max": "max", "min": "min", "none": "set"}[reduction]
    result = getattr(start.at[where], method)(data, mode="drop")
    if initial is None and reduction in ("max", "min"):
        is_hit = xp.zeros(shape, np.bool_).at[where].set(True, mode="drop")
        result = xp.where(is_hit, result, xp.zeros_like(result))
    return result


def _neutral(reduction: str, dtype: np.dtype) -> Any:
    """What does not change a maximum or minimum."""
    if dtype.kind == "f":
        return dtype.type(-math.inf if reduction == "max" else math.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if reduction == "max" else limits.max)


def _scatter_reduce_numpy(op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """Indices that are out of range are left out."""
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


_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


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


def _grouped_scatter_reduce_value(xp: Any, op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """`scatter_reduce` in each group: with an index for each element, the groups are an axis like the others."""
    axis = op.attrs["axis"]
    if indices.ndim < data.ndim:
        shape = [n if i in (0, axis) else 1 for i, n in enumerate(data.shape)]
        indices = xp.reshape(indices, shape)
    return _scatter_reduce_value(xp, op, data, xp.broadcast_to(indices, data.shape), initial)


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
        raise popart_exception(f"onehot: axis {axis} is out of range for a result of rank {rank}, made of {t!r}.")
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


def _onehot_value(xp: Any, op: Any, t: Any, values: Any) -> Any:
    axis, count = op.attrs["axis"], op.attrs["num_classes"]
    classes = xp.arange(count).reshape((count,) + (1,) * (t.ndim - axis))
    return xp.where(xp.expand_dims(t, axis) == classes, values[1], values[0])


def _emit_onehot(s: Any) -> None:
    (t, values), axis, out = s.ins, s.op.attrs["axis"], s.out
    count = s.op.attrs["num_classes"]
    if count > np.iinfo(t.dtype).max:  # the classes would not fit into the indices' dtype
        emit.call_value(s)
        return
    classes = s.constant_array(
        "classes", np.arange(count, dtype=t.dtype).reshape((count,) + (1,) * (len(t.shape) - axis))
    )
    is_on = s.scratch(out.shape, np.dtype(np.bool_))
    s.apply("equal", s.expanded(t, axis), classes, out=is_on)
    off, on = (s.reshaped(s.section(values, 0, k, k + 1), ()) for k in (0, 1))
    s.copy(out, off)
    s.line(f"{s.function('copyto')}({out.name}, {on.name}, where={is_on.name})")


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


# Places


def _coordinates(axis: int, places: Any) -> Tuple[Any, ...]:
    """The indices of elements whose place along `axis` is given, and along the other axes their own."""
    own = np.meshgrid(*[np.arange(n) for n in places.shape], indexing="ij", sparse=True)
    return (*own[:axis], places, *own[axis + 1 :])


def _outside_beyond(xp: Any, indices: Any, length: int) -> Any:
    """The indices as int32, those out of range being `length`: JAX would count negative ones from the end."""
    inside = (indices >= 0) & (indices < length)
    return xp.where(inside, indices, length).astype(np.int32)


def add_at(xp: Any, t: Any, axis: int, indices: Any, parts: Any) -> Any:
    """`t` with parts added at indices along an axis; the axes of `indices` stand in the place of that axis."""
    places = xp.reshape(_outside_beyond(xp, indices, t.shape[axis]), (-1,))
    parts = xp.reshape(parts, t.shape[:axis] + (places.size,) + t.shape[axis + 1 :])
    if xp is not np:
        return t.at[(builtins.slice(None),) * axis + (places,)].add(parts, mode="drop")
    result = t.copy()
    inside = places < t.shape[axis]
    np.add.at(np.moveaxis(result, axis, 0), places[inside], np.moveaxis(parts, axis, 0)[inside])
    return result


KERNELS: Dict[str, Kernel] = {
    "gather": Kernel(_gather_value, _emit_gather),
    "groupedgather": Kernel(_groupedgather_value),
    "scatter": Kernel(_scatter_value),
    "scatter_reduce": Kernel(_scatter_reduce_value, float32=True),
    "grouped_scatter_reduce": Kernel(_grouped_scatter_reduce_value, float32=True),
    "onehot": Kernel(_onehot_value, _emit_onehot),
}
