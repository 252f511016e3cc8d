"""The state of a program on its devices: variables, shards and remote buffers as arrays of JAX."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from popfn.host.engine.memory import zeros

# Tensors of at most so many bytes share arrays, because each array takes time in a call.
_PACKED_BYTES = 4096
# But not if the state is larger than this. Then a run takes much longer than to pass its arrays, and packing would only
# cost: XLA takes long to compile operations on parts of an array.
_PACKED_STATE_BYTES = 1 << 20
# Nor if there are few.
_PACKED_COUNT = 8


class Devices:
    """Where arrays are: on one device, or with the axis of the replicas spread over several.

    Args:
        replicas: The number of replicas, of all processes.
        local: That of this process.
        first: The first replica of this process.

    Raises:
        ValueError: If the replicas of several processes cannot be spread over their devices evenly.
    """

    def __init__(self, replicas: int, local: int, first: int) -> None:
        self.replicas = replicas
        self.local = local
        self.sharding: Dict[bool, Any] = {}
        self.is_shared = replicas > local  # by several processes
        devices = jax.devices()
        if self.is_shared:
            own = [device for device in devices if device.process_index == jax.process_index()]
            if len(devices) * local != replicas * len(own) or local % len(own) or first != jax.process_index() * local:
                raise ValueError(
                    f"the XLA engine cannot spread {replicas} replicas, of which this process has {local} from number "
                    f"{first} on, over {len(devices)} devices, of which it has {len(own)} as process "
                    f"{jax.process_index()}: call jax.distributed.initialize first, with as many processes and in the "
                    "same order as the launcher, and give each the same number of devices, which divides its replicas."
                )
            devices = sorted(devices, key=lambda device: (device.process_index, device.id))
        else:
            devices = jax.local_devices()
            count = max(n for n in range(1, len(devices) + 1) if replicas % n == 0)
            devices = devices[:count]
        self.is_spread = len(devices) > 1
        if self.is_spread:
            mesh = Mesh(np.array(devices), ("replica",))
            for mapped in (False, True):
                self.sharding[mapped] = NamedSharding(mesh, PartitionSpec("replica") if mapped else PartitionSpec())

    def put(self, array: np.ndarray, mapped: bool) -> Any:
        """Copy an array to the devices. The process gives the rows of its own replicas."""
        if not self.is_spread:
            return jax.device_put(array)
        sharding = self.sharding[mapped]
        if not self.is_shared:
            return jax.device_put(array, sharding)
        own = [device for device in sharding.mesh.devices.flat if device.process_index == jax.process_index()]
        parts = np.split(array, len(own)) if mapped else [array] * len(own)
        shape = (self.replicas,) + array.shape[1:] if mapped else array.shape
        arrays = [jax.device_put(part, device) for part, device in zip(parts, own)]
        return jax.make_array_from_single_device_arrays(shape, sharding, arrays)

    def get(self, array: Any, mapped: bool) -> np.ndarray:
        """The array, or of one with an axis for the replicas the rows of this process."""
        if not self.is_shared:
            return np.asarray(array)
        shards = array.addressable_shards
        if not mapped:
            return np.asarray(shards[0].data)
        shards = sorted(shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])


class Slot(NamedTuple):
    """A tensor that persists."""

    key: Any  # a Variable, a Shard or a RemoteBuffer
    shape: Tuple[int, ...]
    dtype: np.dtype
    mapped: bool  # it may differ between replicas
    written: bool  # by runs

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Group:
    """One array of the state: a tensor, or several small ones one after the other.

    The truth is on the host from the first write on, until a run needs it on the devices.
    """

    def __init__(self, slots: Sequence[Slot], devices: Devices) -> None:
        self.slots = slots
        self.mapped, self.written, self.dtype = slots[0].mapped, slots[0].written, slots[0].dtype
        self.shape = slots[0].shape if len(slots) == 1 else (sum(slot.size for slot in slots),)
        self.starts = np.cumsum([0] + [slot.size for slot in slots]).tolist()
        self.devices = devices
        self.on_device: Any = None
        self.on_host: Optional[np.ndarray] = zeros(self.lead(devices.local) + self.shape, self.dtype)

    def lead(self, replicas: int) -> Tuple[int, ...]:
        """The leading axis of the stored array: one entry for each replica where they differ."""
        return (replicas,) if self.mapped else ()

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of all of it, in all processes."""
        return jax.ShapeDtypeStruct(self.lead(self.devices.replicas) + self.shape, self.dtype)

    def array(self) -> Any:
        """The array on the devices."""
        if self.on_host is not None:
            self.on_device, self.on_host = self.devices.put(self.on_host, self.mapped), None
        return self.on_device

    def part(self, i: int, to_write: bool) -> np.ndarray:
        """The i-th tensor on the host: a view."""
        array = self.on_host
        if array is None:
            array = self.devices.get(self.on_device, self.mapped)
            if to_write:
                array = self.on_host = np.array(array)
                self.on_device = None
        if len(self.slots) == 1:
            return array
        part = array[..., self.starts[i] : self.starts[i + 1]]
        return part.reshape(self.lead(self.devices.local) + self.slots[i].shape)

    def unpacked(self, array: Any) -> List[Any]:
        """The tensors in the array, while a program is traced."""
        if len(self.slots) == 1:
            return [array]
        lead = array.shape[:-1]
        return [
            jnp.reshape(array[..., start : start + slot.size], lead + slot.shape)
            for slot, start in zip(self.slots, self.starts)
        ]

    def packed(self, arrays: Sequence[Any]) -> Any:
        """The array of these tensors, while a program is traced."""
        if len(self.slots) == 1:
            return arrays[0]
        lead = self.lead(self.devices.replicas)
        return jnp.concatenate([jnp.reshape(array, lead + (-1,)) for array in arrays], axis=-1)


def grouped(slots: Sequence[Slot], devices: Devices) -> List[Group]:
    """The groups of all tensors: first those that runs change."""
    groups: Dict[Any, List[Slot]] = {}
    is_light = sum(slot.size * slot.dtype.itemsize for slot in slots) <= _PACKED_STATE_BYTES
    for slot in sorted(slots, key=lambda slot: not slot.written):
        is_small = is_light and slot.size * slot.dtype.itemsize <= _PACKED_BYTES
        key = (slot.mapped, slot.written, slot.dtype) if is_small else slot.key
        groups.setdefault(key, []).append(slot)
    result = []
    for found in groups.values():
        parts = [found] if len(found) >= _PACKED_COUNT else [[slot] for slot in found]
        result += [Group(part, devices) for part in parts]
    return result
