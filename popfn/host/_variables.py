"""Variables: on the device, in remote memory, and shared out over the replicas."""

import warnings
from typing import Any, Optional, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.context import get_current_graph
from popfn.host.errors import popart_exception
from popfn.host.remote_buffer import RemoteBuffer, checked_shard_over, replica_sharded_buffer
from popfn.host.replica_grouping import ReplicaGrouping
from popfn.host.tensor import Shard, Tensor, Variable, _check_name
from popfn.host.utils import to_numpy

_MODES = ("one_per_group", "all_replicas")


def variable(
    data: Any,
    dtype: Optional[dtypes.dtype] = None,
    name: Optional[str] = None,
    downcast: bool = True,
    replica_grouping: Optional[ReplicaGrouping] = None,
    retrieval_mode: Optional[str] = None,
    log2_scale: Optional[int] = None,
    nan_on_overflow: Optional[bool] = None,
) -> Variable:
    """Add a variable to the main graph, which must be the current one.

    Args:
        data: A number, list, NumPy array or torch tensor; copied, except for a `np.memmap`, which stays
            aliased and is written when weights are copied to the host. If the replicas form several groups,
            it has a leading axis with an entry for each.
        dtype: The dtype; by default that of the data, with 64-bit numbers narrowed to 32 bits.
        name: The name, by default "t".
        downcast: Whether to narrow.
        replica_grouping: The replicas that share a value; by default all.
        retrieval_mode: What the host gets: "one_per_group" (default), the value of the first replica of each
            group, or "all_replicas".
        log2_scale, nan_on_overflow: How to make 8-bit floats; see `utils.to_numpy`.

    Raises:
        ValueError: If the current graph is not the main graph, or the retrieval mode is unknown.
        TypeError: If the data is not numeric or the name is not a str.
        popart_exception: If the data has no leading axis with an entry for each group.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir(replication=4)
        >>> with ir.main_graph:
        ...     w = popxl.variable([[1.0, 2.0]], name="w")
        ...     v = popxl.variable([[1.0, 1.0], [5.0, 5.0]], replica_grouping=ir.replica_grouping(stride=2))
        >>> w, v.shape, v.shape_on_host
        (Tensor[w float32 (1, 2)], (2,), (2, 2))
    """
    return _add_variable(
        data, dtype, name, downcast, replica_grouping, retrieval_mode, log2_scale, nan_on_overflow
    )


def remote_variable(
    data: Any,
    remote_buffer: RemoteBuffer,
    offset: int = 0,
    dtype: Optional[dtypes.dtype] = None,
    name: Optional[str] = None,
    downcast: bool = True,
    replica_grouping: Optional[ReplicaGrouping] = None,
    retrieval_mode: Optional[str] = "one_per_group",
    log2_scale: Optional[int] = None,
    nan_on_overflow: Optional[bool] = None,
) -> Variable:
    """Add a variable that is kept in entry `offset` of a remote buffer.

    Ops reach it by `ops.remote_load` and `ops.remote_store`, a Session by the variable that is returned.

    Args:
        data: The data, as in `variable`: of the buffer's shape and dtype for each group.
        remote_buffer: The buffer.
        offset: The entry.
        dtype, ..., nan_on_overflow: As in `variable`.

    Raises:
        TypeError: If `remote_buffer` is no RemoteBuffer, or `offset` no int; else as in `variable`.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> with ir.main_graph:
        ...     buffer = popxl.remote_buffer((2,), popxl.float32)
        ...     w = popxl.remote_variable([1.0, 2.0], buffer)
        ...     popxl.ops.remote_store(buffer, 0, popxl.ops.remote_load(buffer, 0) * 2.0)
    """
    _check_buffer("remote_variable", remote_buffer, offset)
    made = _add_variable(
        data, dtype, name, downcast, replica_grouping, retrieval_mode, log2_scale, nan_on_overflow
    )
    made._remote = remote_buffer, offset
    return made


def remote_replica_sharded_variable(
    data: Any,
    remote_buffer: RemoteBuffer,
    offset: int = 0,
    dtype: Optional[dtypes.dtype] = None,
    name: Optional[str] = None,
    downcast: bool = True,
    replica_grouping: Optional[ReplicaGrouping] = None,
    retrieval_mode: Optional[str] = "one_per_group",
    log2_scale: Optional[int] = None,
    nan_on_overflow: Optional[bool] = None,
) -> Variable:
    """Add a variable of which entry `offset` of each replica's remote buffer holds a shard.

    The buffer is of the kind that `replica_sharded_buffer` makes; its meta_shape becomes the shape of the
    variable. The arguments are those of `remote_variable`.

    Raises:
        ValueError: If there is one replica only, or the buffer holds shards of tensors of another shape.
    """
    function = "remote_replica_sharded_variable"
    _check_buffer(function, remote_buffer, offset)
    graph = get_current_graph()
    _check_replicas(function, graph.ir)
    with graph._undo_on_error():
        made = _add_variable(
            data, dtype, name, downcast, replica_grouping, retrieval_mode, log2_scale, nan_on_overflow
        )
        if remote_buffer.meta_shape and remote_buffer.meta_shape != made.shape:
            raise ValueError(
                f"{function}: {remote_buffer!r} holds shards of tensors of the shape "
                f"{remote_buffer.meta_shape}, not {made.shape}."
            )
    remote_buffer.meta_shape = made.shape
    made._remote = remote_buffer, offset
    return made


def replica_sharded_variable(
    data: Any,
    dtype: Optional[dtypes.dtype] = None,
    name: Optional[str] = None,
    downcast: bool = True,
    replica_grouping: Optional[ReplicaGrouping] = None,
    shard_over: Optional[int] = None,
    retrieval_mode: Optional[str] = "one_per_group",
    log2_scale: Optional[int] = None,
    nan_on_overflow: Optional[bool] = None,
) -> Tuple[Variable, Tensor]:
    """Add a variable that the replicas of each group hold together, a shard each.

    Args:
        data, dtype, name, downcast, replica_grouping: As in `variable`.
        shard_over: The number of shards, by default the group size; see `replica_sharded_buffer`.
        retrieval_mode, log2_scale, nan_on_overflow: As in `variable`.

    Returns:
        The variable, for a Session to read and write as a whole, and the shard, for ops.

    Raises:
        TypeError: If the variable is a scalar; else as in `variable`.
        ValueError: If there is one replica only, or `shard_over` does not divide the group size.

    Example:
        >>> import popfn.host as popxl
        >>> with popxl.Ir(replication=2).main_graph:
        ...     whole, shard = popxl.replica_sharded_variable([1.0, 2.0, 3.0, 4.0], name="w")
        >>> whole.shape, shard.shape, shard.meta_shape
        ((4,), (2,), (4,))
    """
    function = "replica_sharded_variable"
    graph = get_current_graph()
    _check_replicas(function, graph.ir)
    grouping = graph.ir.replica_grouping() if replica_grouping is None else replica_grouping
    if len(np.shape(data)) < (2 if grouping.num_groups > 1 else 1):
        raise TypeError(f"{function}: a scalar has no shards: data of the shape {np.shape(data)}.")
    with graph._undo_on_error():
        made = _add_variable(data, dtype, name, downcast, grouping, retrieval_mode, log2_scale, nan_on_overflow)
        made._shard_over = checked_shard_over(function, grouping.const_rg, shard_over)
        full = (grouping.const_rg.num_groups,) + made.shape if grouping.num_groups > 1 else made.shape
        buffer = replica_sharded_buffer(full, made.dtype, grouping, shard_over)
        made._shard = graph._add_tensor(
            Shard, made.name + "_rts_remote_loaded", buffer.tensor_shape, made.dtype, made.shape
        )
    return made, made._shard


def _check_buffer(function: str, remote_buffer: Any, offset: Any) -> None:
    if not isinstance(remote_buffer, RemoteBuffer):
        raise TypeError(f"{function}: expected a RemoteBuffer, not {remote_buffer!r}.")
    if not isinstance(offset, int):
        raise TypeError(f"{function}: the offset must be an int, not {offset!r}.")


def _check_replicas(function: str, ir: Any) -> None:
    if ir.replication_factor <= 1:
        raise ValueError(
            f"{function}: there must be several replicas to hold the shards; the replication factor is "
            f"{ir.replication_factor}."
        )


def _add_variable(
    data: Any,
    dtype: Optional[dtypes.dtype],
    name: Optional[str],
    downcast: bool,
    grouping: Optional[ReplicaGrouping],
    retrieval_mode: Optional[str],
    log2_scale: Optional[int],
    nan_on_overflow: Optional[bool],
) -> Variable:
    graph = get_current_graph()
    if graph is not graph.ir.main_graph:
        raise ValueError(f"variables live in the main graph; the current graph is {graph!r}.")
    if grouping is not None and not isinstance(grouping, ReplicaGrouping):
        raise TypeError(f"variable: replica_grouping must be a ReplicaGrouping, not {grouping!r}.")
    if retrieval_mode is not None and retrieval_mode not in _MODES:
        raise ValueError(
            f'variable: retrieval_mode must be "one_per_group" or "all_replicas", not {retrieval_mode!r}.'
        )
    _check_name("variable", name)
    array = to_numpy(data, dtype, downcast, True, log2_scale, nan_on_overflow)
    shape = array.shape
    if grouping is not None and grouping.num_groups > 1:
        if not shape or shape[0] != grouping.num_groups:
            raise popart_exception(
                f"variable: data of the shape {shape} has no leading axis for the {grouping.num_groups} groups "
                f"of {grouping!r}."
            )
        shape = shape[1:]
        if isinstance(array, np.memmap) and not grouping.is_const:
            warnings.warn(f"the memmap is copied: {grouping!r} is not const.", stacklevel=3)
            array = np.array(array)
    made = graph._add_tensor(Variable, name or "t", shape, dtypes.dtype.as_dtype(array.dtype))
    made.data = array
    made.retrieval_mode = retrieval_mode or "one_per_group"
    made._grouping = grouping
    made._remote = made._shard = made._shard_over = None
    if isinstance(array, np.memmap) and not array.flags.writeable:
        graph.ir._has_read_only_memmap = True
    return made
