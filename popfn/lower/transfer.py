"""What goes between a program and the host: the streams of arguments and results, and the variables of the state."""
from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ..trace.aval import DEVICE, Aval
from ..trace.prims.memory import cut_array, join_array
from ..transforms.shard import Axes, Spec
from .replicas import of_groups, on_replicas, split, united


class Stream(NamedTuple):
    """A host stream for a leaf.

    It goes in `parts`, for which it is cut along an axis, perhaps from its end. On the replicas of a mesh it is cut
    before that as the spec says.
    """

    stream: Any
    parts: int = 1
    axis: Optional[int] = None
    reverse: bool = False
    spec: Spec = ()
    mesh: Axes = ()

    @property
    def view(self) -> Optional[np.dtype]:
        """PopXL's structured dtype for float8, None for all other dtypes."""
        dtype: np.dtype = self.stream.dtype.as_numpy()
        return dtype if dtype.names else None

    @property
    def lead(self) -> Tuple[int, ...]:
        """The axis of the replicas, if there is one."""
        return (math.prod(size for _, size in self.mesh),) if self.mesh else ()

    def fed(self, x: np.ndarray, transfers: int) -> np.ndarray:
        """A leaf as the array that a run takes, with an axis of host transfers if there are several.

        What a stream has fewer elements of than the program has transfers is filled up; nobody reads that.
        """
        if self.mesh:
            x = on_replicas(split(x, self.spec, self.mesh), self.spec, self.mesh)
        if self.view is not None:
            x = np.ascontiguousarray(x).view(self.view)
        if transfers == 1:
            return x
        shape = (*self.lead, *self.stream.shape)
        if self.axis is not None:
            x = cut_array(x, self.parts, self.axis + len(self.lead))[::-1 if self.reverse else 1]
        x = x.reshape(self.parts, *shape)
        if self.parts == 1:
            return np.broadcast_to(x, (transfers, *shape))
        return x if self.parts == transfers else np.concatenate(
            [x, np.zeros((transfers - self.parts, *shape), x.dtype)])

    def place_for(self, out: np.ndarray, transfers: int) -> np.ndarray:
        """The array that a run writes a leaf into: the leaf's own memory if it can be."""
        if self.view is not None:
            out = out.view(self.view)
        shape = (*self.lead, *self.stream.shape)
        if self.mesh:
            return np.empty((transfers, *shape) if transfers > 1 else shape, out.dtype)
        if transfers == 1:
            return out
        if self.parts == transfers and not self.axis and not self.reverse and out.flags.c_contiguous:
            return out.reshape(transfers, *shape)
        return np.empty((transfers, *shape), out.dtype)

    def fetch(self, written: np.ndarray, out: np.ndarray) -> None:
        """Bring what a run wrote into the leaf."""
        view = out if self.view is None else out.view(self.view)
        if np.shares_memory(written, view):
            return
        used = written[None] if written.ndim == len(self.lead) + len(self.stream.shape) else written
        used = used[:self.parts][::-1 if self.reverse else 1]
        x = join_array(used, self.axis + len(self.lead)) if self.axis is not None else used[0, ...]
        if self.mesh:
            x = united(of_groups(x, self.spec, self.mesh), self.spec, self.mesh)
        view[...] = x.reshape(view.shape)


class Stored(NamedTuple):
    """The variables of a leaf of the state: one on the device, or one for each entry of a remote buffer.

    On the replicas of a mesh, each holds the part of every group of replicas that the spec tells apart.
    """

    variables: Tuple[Any, ...]
    aval: Aval
    spec: Spec = ()
    mesh: Axes = ()

    @property
    def view(self) -> Optional[np.dtype]:
        """PopXL's structured dtype for float8, None for all other dtypes."""
        dtype: np.dtype = self.variables[0].dtype.as_numpy()
        return dtype if dtype.names else None

    def written(self, x: np.ndarray) -> Dict[Any, np.ndarray]:
        """The values of the variables for a leaf's."""
        lead: Tuple[int, ...] = ()
        if self.spec:
            x = np.ascontiguousarray(split(x, self.spec, self.mesh))
            lead = x.shape[:1]
        x = x if self.view is None else np.ascontiguousarray(x).view(self.view)
        if self.aval.memory == DEVICE:
            return {self.variables[0]: x}
        rows = np.ascontiguousarray(x).reshape(*lead, len(self.variables), *self.variables[0].shape)
        return {v: (rows[:, i, ...] if lead else rows[i, ...]).copy() for i, v in enumerate(self.variables)}

    def read(self, data: Dict[Any, np.ndarray]) -> np.ndarray:
        """The leaf for the variables' values."""
        if self.aval.memory == DEVICE:
            x = np.array(data[self.variables[0]])
        else:
            x = np.stack([data[v] for v in self.variables], axis=1 if self.spec else 0)
        x = x if self.view is None else x.view(self.aval.dtype)
        if self.spec:
            part = list(self.aval.shape)
            for k, names in enumerate(self.spec):
                part[k] //= math.prod(size for name, size in self.mesh if name in names)
            x = united(x.reshape(-1, *part), self.spec, self.mesh)
        return x.reshape(self.aval.shape)
