"""How the host's data of a variable is laid out on the replicas of this process, and back.

An array "on the device" is either one value, the same on all replicas, or has a leading axis with the value of each.
"""

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from popfn.host.errors import popart_exception
from popfn.host.tensor import Shape, Tensor, Variable


def holder(t: Variable) -> Tensor:
    """The tensor that the engine keeps: the shard of a variable that is sharded on the device, else itself."""
    return t if t._shard is None else t._shard


def is_stored(t: Variable) -> bool:
    """Whether the device has the variable: an unused one it has not, a remote one it has."""
    return t._remote is not None or holder(t).consumer is not None


def check(t: Variable) -> None:
    """popart_exception unless the device can hold the variable."""
    replicas = t.ir.replication_factor
    if t._grouping is not None and len(t._grouping.assignment) != replicas:
        raise popart_exception(
            f"Session: {t!r} has a grouping for {len(t._grouping.assignment)} replicas; there are {replicas}."
        )
    if t._remote is None:
        return
    buffer, offset = t._remote
    if not 0 <= offset < buffer.entries:
        raise popart_exception(f"Session: {t!r} is in entry {offset} of {buffer!r}, which has {buffer.entries}.")
    is_sharded = _is_sharded(t)
    if t.dtype is not buffer.tensor_dtype or not is_sharded and t.shape != buffer.tensor_shape:
        raise popart_exception(f"Session: {t!r} does not fit {buffer!r}: shapes and dtypes must agree.")
    shards = _shard_count(t)
    if shards * _stored_size(t) < t.nelms:
        raise popart_exception(f"Session: {shards} shards in {buffer!r} are too small for {t!r}.")


def wants_all(t: Any) -> bool:
    """Whether the host gets the values of all replicas, although some of them share one."""
    return (
        isinstance(t, Variable)
        and t.retrieval_mode == "all_replicas"
        and t.replica_grouping.group_size > 1
    )


def _shard_count(t: Variable) -> int:
    """Into how many parts the variable is cut.

    A buffer that was not made for shards does not say: the group size, or as many as make parts of the buffer's size.
    """
    if not _is_sharded(t):
        return 1
    group_size = t.replica_grouping.const_rg.group_size
    known: Optional[int] = t._shard_over if t._remote is None else t._remote[0]._shard_over
    if known is not None and group_size % known == 0:
        return known
    size = _stored_size(t)
    fitting = (n for n in range(group_size, 0, -1) if group_size % n == 0 and -(-t.nelms // n) == size)
    return next(fitting, group_size)


def _is_sharded(t: Variable) -> bool:
    return t._shard is not None or t._remote is not None and bool(t._remote[0].meta_shape)


def _stored_shape(t: Variable) -> Shape:
    if t._shard is not None:
        return t._shard.shape
    return t.shape if t._remote is None else t._remote[0].tensor_shape


def _stored_size(t: Variable) -> int:
    return int(np.prod(_stored_shape(t), dtype=np.int64))


def _local(t: Variable) -> range:
    """The replicas of this process."""
    first = t.ir._replica_offset
    return range(first, first + t.ir.instance_replication_factor)


def _places(t: Variable) -> Tuple[List[int], List[int]]:
    """The group of each replica, and which member of it the replica is."""
    groups = t.replica_grouping.assignment
    seen = [0] * (max(groups) + 1)
    members = []
    for group in groups:
        members.append(seen[group])
        seen[group] += 1
    return groups, members


def to_device(t: Variable) -> np.ndarray:
    """Return the value on each replica, or the one that all have."""
    is_grouped = t.shape_on_host != t.shape
    shards = _shard_count(t)
    if shards == 1 and not is_grouped:
        return t.data.reshape(_stored_shape(t))
    rows = t.data if is_grouped else t.data[np.newaxis]
    groups, members = _places(t)
    if shards == 1:
        chosen = rows[[groups[replica] for replica in _local(t)]]
        return chosen.reshape((-1,) + _stored_shape(t))
    flat = rows.reshape(len(rows), -1)
    size = _stored_size(t)
    padded = np.zeros((len(rows), shards * size), flat.dtype)
    padded[:, : flat.shape[1]] = flat
    parts = padded.reshape(len(rows), shards, size)
    chosen = np.stack([parts[groups[replica], members[replica] % shards] for replica in _local(t)])
    return chosen.reshape((-1,) + _stored_shape(t))


def _rows(t: Variable, values: np.ndarray) -> np.ndarray:
    stored = _stored_shape(t)
    return values if values.ndim > len(stored) else np.broadcast_to(values, (len(_local(t)),) + stored)


def _wholes(t: Variable, values: np.ndarray) -> Dict[int, np.ndarray]:
    """The value of each group that the replicas of this process hold completely, of the first ones if several do."""
    local, shards, rows = _local(t), _shard_count(t), _rows(t, values)
    groups, members = _places(t)
    parts: Dict[int, Dict[int, np.ndarray]] = {}
    for row, replica in zip(rows, local):
        parts.setdefault(groups[replica], {}).setdefault(members[replica] % shards, row)
    if shards == 1:
        return {group: found[0].reshape(t.shape) for group, found in parts.items()}
    return {
        group: np.concatenate([found[k].reshape(-1) for k in range(shards)])[: t.nelms].reshape(t.shape)
        for group, found in parts.items()
        if len(found) == shards
    }


def to_host(t: Variable, values: np.ndarray) -> None:
    """Store the values of the device in the host's data: of each group, the first replica's."""
    is_grouped = t.shape_on_host != t.shape
    if not is_grouped and _shard_count(t) == 1:  # the usual case: one value, or the first of several
        np.copyto(t.data, values.reshape((-1,) + t.shape)[0])
        return
    for group, whole in _wholes(t, values).items():
        np.copyto(t.data[group, ...] if is_grouped else t.data, whole)


def on_all_replicas(t: Variable, values: np.ndarray) -> np.ndarray:
    """Return the values of the device with a leading axis for the replicas; shards are put together."""
    if _shard_count(t) > 1:
        groups, wholes = _places(t)[0], _wholes(t, values)
        return np.stack([wholes[groups[replica]] for replica in _local(t)])
    return np.array(_rows(t, values))
