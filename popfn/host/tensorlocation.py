"""Where tensors are stored."""

import enum


class TensorStorage(enum.Enum):
    """The memory that holds a tensor."""

    OnChip = "OnChip"
    OffChip = "OffChip"


class ReplicatedTensorSharding(enum.Enum):
    """Whether each replica holds a part of a tensor only."""

    On = "On"
    Off = "Off"


class TileSet(enum.Enum):
    """The tiles of an IPU that hold a tensor."""

    Compute = "compute"
    IO = "io"
    Undefined = "undefined"


class ExecutionContext(enum.Enum):
    """The program fragment that an op belongs to."""

    Normal = "Normal"
    AccumulateOuterFragment = "AccumulateOuterFragment"
    WeightsFromHostFragment = "WeightsFromHostFragment"
    WeightsToHostFragment = "WeightsToHostFragment"
    OptimizerFromHostFragment = "OptimizerFromHostFragment"
    Subgraph = "Subgraph"


class TensorLocation:
    """A kind of memory, and whether the replicas share out the tensor."""

    def __init__(
        self,
        storage: TensorStorage = TensorStorage.OnChip,
        replicated_tensor_sharding: ReplicatedTensorSharding = ReplicatedTensorSharding.Off,
    ) -> None:
        self._storage = storage
        self._sharding = replicated_tensor_sharding

    @property
    def storage(self) -> TensorStorage:
        """The memory."""
        return self._storage

    @property
    def replicated_tensor_sharding(self) -> ReplicatedTensorSharding:
        """Whether the replicas share out the tensor."""
        return self._sharding


class TensorLocationInfo:
    """What `Tensor.location_info` returns: whether the tensor is in remote memory, and whether it is sharded."""

    def __init__(self, is_remote: bool = False, is_sharded: bool = False) -> None:
        self._is_remote = is_remote
        self._is_sharded = is_sharded

    def isRemote(self) -> bool:
        """Whether the tensor is in memory outside the device."""
        return self._is_remote

    def isSharded(self) -> bool:
        """Whether each replica holds a part only."""
        return self._is_sharded
