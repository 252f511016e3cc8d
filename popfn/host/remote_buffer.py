"""Remote buffers: arrays of tensors in memory outside the device, one per replica."""

from typing import Any, Iterable, Optional

from popfn.host import dtypes
from popfn.host.context import get_ir
from popfn.host.replica_grouping import ReplicaGrouping
from popfn.host.tensor import Shape, Tensor, _as_shape, _check_dtype


class RemoteBuffer:
    """`entries` tensors of one type in memory outside the device. Each replica has a buffer of its own.

    `ops.remote_store` and `ops.remote_load` move entries. What was stored stays from run to run; an entry
    that was never written is undefined.

    Args:
        tensor_shape: The shape of each entry.
        tensor_dtype: The dtype.
        entries: How many.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `entries` is below 1.
        RuntimeError: If there is no current graph.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> with ir.main_graph:
        ...     buffer = popxl.remote_buffer((2,), popxl.float32, entries=3)
        ...     popxl.ops.remote_store(buffer, 1, popxl.variable([1.0, 2.0]))
        >>> buffer.entries
        3
    """

    def __init__(self, tensor_shape: Iterable[int], tensor_dtype: dtypes.dtype, entries: int) -> None:
        ir = get_ir()
        self.meta_shape: Shape = ()
        self.set_remote_buffer_info(tensor_dtype, tensor_shape, entries)
        self._ir = ir
        self._id = ir._next_buffer_number()

    @property
    def remote_buffer_id(self) -> int:
        """The number of the buffer in its Ir, from 1."""
        return self._id

    @property
    def tensor_shape(self) -> Shape:
        """The shape of each entry."""
        return self._shape

    @property
    def tensor_dtype(self) -> dtypes.dtype:
        """The dtype of each entry."""
        return self._dtype

    @property
    def entries(self) -> int:
        """The number of entries; settable, ValueError below 1."""
        return self._entries

    @entries.setter
    def entries(self, value: int) -> None:
        try:
            entries = int(value.__index__())
        except (AttributeError, TypeError):
            raise TypeError(f"RemoteBuffer: entries must be an int, not {value!r}.") from None
        if entries < 1:
            raise ValueError(f"RemoteBuffer: entries must be 1 or more, not {entries}.")
        self._entries = entries

    @property
    def meta_shape(self) -> Shape:
        """The shape of the whole tensor of which each entry is a shard, or ()."""
        return self._meta_shape

    @meta_shape.setter
    def meta_shape(self, value: Iterable[int]) -> None:
        self._meta_shape = _as_shape("RemoteBuffer: meta_shape", value)

    def set_remote_buffer_info(
        self, tensor_dtype: dtypes.dtype, tensor_shape: Iterable[int], entries: int
    ) -> None:
        """Change the type and the number of the entries; the arguments are those of the constructor."""
        _check_dtype("RemoteBuffer", tensor_dtype)
        self._shape = _as_shape("RemoteBuffer", tensor_shape)
        self._dtype = tensor_dtype
        self.entries = entries
        self._shard_over: Optional[int] = None  # how many shards a tensor has, if the entries are shards

    def validate_tensor_matches_buffer(self, t: Tensor, num_shards: int = 1) -> None:
        """ValueError unless an entry can hold `t`, or one of `num_shards` shards of it."""
        shape = t.shape if num_shards == 1 else (-(-t.nelms // num_shards),)
        if t.dtype is not self._dtype or shape != self._shape:
            what = f"{t!r}" if num_shards == 1 else f"a shard of 1/{num_shards} of {t!r}"
            raise ValueError(
                f"{self!r} cannot hold {what}: shape {shape} and dtype {t.dtype.name} must be those of the "
                "buffer."
            )

    def __hash__(self) -> int:
        return hash((self._ir, self._id))

    def __eq__(self, other: Any) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"RemoteBuffer[{self._id} {self._dtype.name} {self._shape} entries={self._entries}]"


def remote_buffer(tensor_shape: Iterable[int], tensor_dtype: dtypes.dtype, entries: int = 1) -> RemoteBuffer:
    """Make a `RemoteBuffer`."""
    return RemoteBuffer(tensor_shape, tensor_dtype, entries)


def replica_sharded_buffer(
    shape: Iterable[int],
    dtype: dtypes.dtype,
    replica_grouping: Optional[ReplicaGrouping] = None,
    shard_over: Optional[int] = None,
    entries: int = 1,
) -> RemoteBuffer:
    """Make a buffer for the shards of tensors that the replicas of each group hold together.

    An entry is a vector: the tensor flattened, padded with zeros and cut into `shard_over` parts. Members
    0 to `shard_over` - 1 of a group hold parts 0 to `shard_over` - 1, and the members after them the same
    parts again. The meta_shape of the buffer is the shape of the whole tensor.

    Args:
        shape: The shape of the whole tensor, after a leading axis for the groups if there are several.
        dtype: The dtype.
        replica_grouping: The replicas that hold one tensor together; all, if it is not given.
        shard_over: The number of parts, by default the group size.
        entries: The number of entries.

    Raises:
        TypeError: If an argument has the wrong type, or the tensor is a scalar.
        ValueError: If `shard_over` does not divide the group size.

    Example:
        >>> import popfn.host as popxl
        >>> with popxl.Ir(replication=2).main_graph:
        ...     buffer = popxl.replica_sharded_buffer((5,), popxl.float32)
        >>> buffer.tensor_shape, buffer.meta_shape
        ((3,), (5,))
    """
    grouping = get_ir().replica_grouping() if replica_grouping is None else replica_grouping.const_rg
    full = _as_shape("replica_sharded_buffer", shape)
    if grouping.num_groups > 1:
        full = full[1:]
    if not full:
        raise TypeError(f"replica_sharded_buffer: a scalar has no shards: {shape!r} for {grouping!r}.")
    shards = checked_shard_over("replica_sharded_buffer", grouping, shard_over)
    size = 1
    for n in full:
        size *= n
    buffer = RemoteBuffer((-(-size // shards),), dtype, entries)
    buffer.meta_shape = full
    buffer._shard_over = shards
    return buffer


def checked_shard_over(function: str, grouping: ReplicaGrouping, shard_over: Optional[int]) -> int:
    """Return the number of shards, by default the group size; ValueError unless it divides that."""
    size = grouping.group_size
    shards = size if shard_over is None else shard_over
    if not isinstance(shards, int):
        raise TypeError(f"{function}: shard_over must be an int, not {shard_over!r}.")
    if shards < 1 or size % shards:
        raise ValueError(f"{function}: shard_over must divide the group size, {size}; it is {shard_over}.")
    return shards
