"""Collectives: ops over the replicas of each group, or over the IPUs of one replica."""

import functools
from typing import Any, Dict, Iterable, List, Optional

from popfn.host.context import get_ir
from popfn.host.errors import UndefinedValue, popart_exception
from popfn.host.kernels.kernel import Kernel, elementwise
from popfn.host.ops import _build
from popfn.host.replica_grouping import ReplicaGrouping
from popfn.host.tensor import Shape, Tensor

OPERATORS = ("add", "mean", "mul", "min", "max", "and", "or", "square_add")


def checked_operator(function: str, op: Any) -> str:
    """Return the name of a reduction; ValueError if there is none of that name."""
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError("{}: op must be one of {}, not {!r}.".format(function, ", ".join(OPERATORS), op))
    return op


def _operator_fault(op: str) -> Optional[str]:
    if op == "mul":
        return 'op="mul" gives the mean in PopXL; use "mean", or ops.prod over replicated_all_gather'
    return None


def _group(function: str, group: Optional[ReplicaGrouping]) -> ReplicaGrouping:
    if group is None:
        return get_ir().replica_grouping()
    if not isinstance(group, ReplicaGrouping):
        raise TypeError(f"{function}: group must be a ReplicaGrouping, not {group!r}.")
    if not group.is_const:
        raise NotImplementedError(f"{function}: {group!r} has no single stride and group size.")
    return group


def _all_reduce(kind: str, t: Tensor, op: str, group: Optional[ReplicaGrouping]) -> Tensor:
    graph = _build.checked(kind, t=t)
    attrs = {"op": checked_operator(kind, op), "group": _group(kind, group)}
    return _build.emit_like(graph, kind, (t,), attrs, t.name + "_all_reduce", _operator_fault(op))


def replicated_all_reduce(t: Tensor, op: str = "add", group: Optional[ReplicaGrouping] = None) -> Tensor:
    """Combine `t` over the replicas of each group: each of them gets the result.

    Args:
        t: The tensor.
        op: "add", "mean", "min", "max", "and", "or" or "square_add", the sum of the squares.
        group: The groups, by default one of all replicas.

    Raises:
        ValueError: If there is no such `op`.
        NotImplementedError: If the grouping is not const.
    """
    return _all_reduce("replicated_all_reduce", t, op, group)


def replicated_all_reduce_(t: Tensor, op: str = "add", group: Optional[ReplicaGrouping] = None) -> Tensor:
    """`replicated_all_reduce` in place."""
    return _all_reduce("replicated_all_reduce_", t, op, group)


def replicated_all_gather(
    t: Tensor, axis: int = 0, group: Optional[ReplicaGrouping] = None, output_shape: str = "auto"
) -> Tensor:
    """Put the tensors of the replicas of each group together: each of them gets the result.

    Args:
        t: The tensor.
        axis: The axis to join along; a negative one counts as 0, as in PopXL.
        group: The groups, by default one of all replicas.
        output_shape: "concat" joins along `axis`; "new_axis" stacks along a new axis 0; "meta_shape" joins
            shards to the whole tensor; "auto" is "meta_shape" if `t` has one, else "concat".

    Raises:
        ValueError: If `axis` is no int, or there is no such `output_shape`.
        IndexError: If the axis is out of range.
        NotImplementedError: If the grouping is not const.
    """
    function = "replicated_all_gather"
    graph = _build.checked(function, t=t)
    grouping = _group(function, group)
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise ValueError(f"{function}: axis must be an int, not {axis!r}.")
    axis = max(axis, 0)
    mode = ("meta_shape" if t.meta_shape else "concat") if output_shape == "auto" else output_shape
    if mode != "meta_shape" and axis >= len(t.shape):
        raise IndexError(f"{function}: axis {axis} is out of range for {t!r}.")
    size, fault = grouping.group_size, None
    meta_shape: Shape = ()
    if mode == "concat":
        shape = t.shape[:axis] + (size * t.shape[axis],) + t.shape[axis + 1 :]
    elif mode == "new_axis":
        shape = (size,) + t.shape
        if axis:
            fault = "output_shape='new_axis' is right for axis 0 only in PopXL"
    elif mode == "meta_shape":
        shape = t.meta_shape
        if _build.nelms(shape) > size * _build.nelms(t.shape):
            fault = f"{size} shards of the shape {t.shape} do not make up the meta_shape {shape}"
    else:
        raise ValueError(
            f'{function}: output_shape must be "auto", "concat", "new_axis" or "meta_shape", not '
            f"{output_shape!r}."
        )
    attrs = {"axis": axis, "group": grouping, "output": mode}
    name = f"{t.name}_T_reshaped_all_gathered_reshaped_T" if axis else f"{t.name}_reshaped_all_gathered_reshaped"
    return _build.emit(graph, function, (t,), shape, t.dtype, attrs, name, meta_shape, fault)


def replicated_reduce_scatter(
    t: Tensor,
    op: str = "add",
    group: Optional[ReplicaGrouping] = None,
    configure_output_for_replicated_tensor_sharding: bool = False,
) -> Tensor:
    """Combine `t` over the replicas of each group: each of them gets a part of the result.

    `t` counts as a vector, padded with zeros to equal parts; member k of a group gets part k.

    Args:
        t: The tensor.
        op: As in `replicated_all_reduce`.
        group: The groups, by default one of all replicas.
        configure_output_for_replicated_tensor_sharding: Whether the result's meta_shape is the shape of `t`.

    Raises:
        ValueError: If there is no such `op`.
        NotImplementedError: If the grouping is not const.
    """
    function = "replicated_reduce_scatter"
    graph = _build.checked(function, t=t)
    attrs = {"op": checked_operator(function, op), "group": _group(function, group)}
    shape = _part(t, _group(function, group))
    meta_shape = t.shape if configure_output_for_replicated_tensor_sharding else ()
    name = t.name + "_reduce_scattered"
    return _build.emit(graph, function, (t,), shape, t.dtype, attrs, name, meta_shape, _operator_fault(op))


def replica_sharded_slice(t: Tensor, group: Optional[ReplicaGrouping] = None) -> Tensor:
    """Return the shard of `t` that a replica would hold: part k for member k of a group.

    `t`, which must be equal on the replicas of a group, counts as a vector, padded with zeros to equal parts.
    The result's meta_shape is the shape of `t`. NotImplementedError if the grouping is not const.
    """
    function = "replica_sharded_slice"
    graph = _build.checked(function, t=t)
    grouping = _group(function, group)
    name = t.name + "_sharded_slice"
    return _build.emit(
        graph, function, (t,), _part(t, grouping), t.dtype, {"group": grouping}, name, t.shape
    )


def _part(t: Tensor, grouping: ReplicaGrouping) -> Shape:
    return (-(-_build.nelms(t.shape) // grouping.group_size),)


def replicated_slice(t: Tensor, axis: int = 0, group: Optional[ReplicaGrouping] = None) -> Tensor:
    """Cut `t` along `axis` into equal parts: member k of a group gets part k, without the axis if that is 1.

    Raises:
        TypeError: If `axis` is no int.
        IndexError: If the axis is out of range.
        ValueError: If the axis cannot be cut into as many parts as a group has members.
        NotImplementedError: If the grouping is not const.
    """
    function = "replicated_slice"
    graph = _build.checked(function, t=t)
    grouping = _group(function, group)
    axis = _build.as_int(function, "axis", axis)
    if not -len(t.shape) <= axis < len(t.shape):
        raise IndexError(f"{function}: axis {axis} is out of range for {t!r}.")
    axis %= len(t.shape)
    part, rest = divmod(t.shape[axis], grouping.group_size)
    if rest:
        raise ValueError(
            f"{function}: axis {axis} of {t!r} has no {grouping.group_size} equal parts, one for each "
            "member of a group."
        )
    shape = t.shape[:axis] + (() if part == 1 else (part,)) + t.shape[axis + 1 :]
    attrs = {"axis": axis, "group": grouping}
    return _build.emit(
        graph, function, (t,), shape, t.dtype, attrs, t.name + "_reshaped_replicated_slice_reshaped"
    )


def _over_ipus(
    function: str, ts: Iterable[Tensor], ipus: Optional[List[int]], op: str, **flags: bool
) -> List[Tensor]:
    if isinstance(ts, Tensor):
        raise TypeError(f"{function}: ts must be a list of tensors, not {ts!r}.")
    ts = tuple(ts)
    for i, t in enumerate(ts):  # each may be on an IPU of its own
        _build.checked(function, **{f"tensor {i}": t})
    places = [_ipu_of(function, t) for t in ts] if ipus is None else list(ipus)
    if len(places) != len(ts):
        raise ValueError(f"{function}: there are {len(ts)} tensors and {len(places)} IPUs.")
    attrs = {"op": checked_operator(function, op), "identical_inputs": False, "identical_grad_inputs": False}
    attrs.update(flags)
    if not ts:
        raise popart_exception(f"{function}: there must be at least one tensor.")
    if any((t.shape, t.dtype) != (ts[0].shape, ts[0].dtype) for t in ts):
        listed = " and ".join(repr(t) for t in ts)
        raise popart_exception(f"{function}: {listed} must agree in shape and dtype.")
    results = [(f"all_reduce_out_{i}", t.shape, t.dtype, t.meta_shape) for i, t in enumerate(ts)]
    attrs["ipus"] = tuple(places)
    fault = _operator_fault(op)
    if len(set(places)) < len(places):
        fault = f"the tensors must be on different IPUs, not on {places}"
    return list(ts[0].graph._add_op("all_reduce", ts, results, attrs, fault).outputs)


def _ipu_of(function: str, t: Tensor) -> int:
    try:
        return t.ipu
    except UndefinedValue:
        raise ValueError(f"{function}: where {t!r} is, is not known: pass ipus.") from None


def all_reduce(ts: List[Tensor], ipus: Optional[List[int]] = None, op: str = "add") -> List[Tensor]:
    """Combine tensors on several IPUs: the result is on each of them.

    Args:
        ts: The tensors, of one shape and dtype.
        ipus: The IPU of each; by default where it is.
        op: As in `replicated_all_reduce`.

    Raises:
        TypeError: If `ts` is no list of tensors.
        ValueError: If the numbers of tensors and IPUs differ, an IPU is not known, or there is no such `op`.
        popart_exception: If the types of the tensors differ.
    """
    return _over_ipus("all_reduce", ts, ipus, op)


def all_reduce_identical_inputs(
    ts: List[Tensor], ipus: Optional[List[int]] = None, op: str = "add"
) -> List[Tensor]:
    """Return copies of tensors that are all equal; their gradients are combined as in `all_reduce`."""
    return _over_ipus("all_reduce_identical_inputs", ts, ipus, op, identical_inputs=True)


def all_reduce_identical_grad_inputs(
    ts: List[Tensor], ipus: Optional[List[int]] = None, op: str = "add"
) -> List[Tensor]:
    """`all_reduce` of tensors whose gradients will be equal, so that these are copied."""
    return _over_ipus("all_reduce_identical_grad_inputs", ts, ipus, op, identical_grad_inputs=True)


def _all_reduce_value(xp: Any, op: Any, *xs: Any) -> Any:
    if op.attrs["identical_inputs"]:
        return xs if len(xs) > 1 else xs[0]
    total = _combine(xp, op.attrs["op"], xs)
    return (total,) * len(xs) if len(xs) > 1 else total


def _combine(xp: Any, operator: str, xs: Any) -> Any:
    """The reduction of several arrays by an operator of a collective."""
    if operator in ("and", "or"):
        xs = [x != 0 for x in xs]
    elif operator == "square_add":
        xs = [x * x for x in xs]
    join = {"min": xp.minimum, "max": xp.maximum, "and": xp.logical_and, "or": xp.logical_or}.get(operator, xp.add)
    total = functools.reduce(join, xs)
    return xp.divide(total, len(xs)) if operator == "mean" else total


# The engines make other ops of collectives over replicas, see `engine.collectives`.
KERNELS: Dict[str, Kernel] = {
    "all_reduce": elementwise(_all_reduce_value, inplace=(), float32=True),
}
