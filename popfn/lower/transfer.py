"""What goes between a program and the host: the streams of arguments and results, and the variables of the state."""
from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ..trace.aval import DEVICE, Aval, AxisNames, Shape
from ..trace.prims.memory import cut_array, join_array
from ..transforms.shard import Axes, Spec, spec_names
from .instances import LocalMesh
from .replicas import of_groups, on_replicas, split, united


class Stream(NamedTuple):
    """A host stream for a leaf.

    It goes in `parts`, for which it is cut along an axis, perhaps from its end. On the replicas of a mesh it is cut
    before that as the spec says; `mesh` has those of this process.
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
        """The axis of the replicas, if there are several in this process."""
        count = math.prod(size for _, size in self.mesh)
        return (count,) if count > 1 else ()

    def is_plain(self, transfers: int) -> bool:
        """Whether a run takes or gives a leaf as it is."""
        return transfers == 1 and not self.mesh and self.view is None

    def fed(self, x: np.ndarray, transfers: int) -> np.ndarray:
        """A leaf as the array that a run takes, with an axis of host transfers if there are several.

        What a stream has fewer elements of than the program has transfers is filled up; nobody reads that.
        """
        if self.mesh:
            x = parts_of_replicas(x, self.spec, self.mesh)
            x = x if self.lead else x[0, ...]
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
            x = united(of_groups(x if self.lead else x[None], self.spec, self.mesh), self.spec, self.mesh)
        view[...] = x.reshape(view.shape)


class Stored(NamedTuple):
    """The variables of a leaf of the state: one on the device, or one for each entry of a remote buffer.

    On the replicas of a mesh, each holds the part of every group of replicas that the spec tells apart, or of every
    replica (`each`). PopXL takes and gives those of all instances; an instance reads and writes those of its own
    replicas, and `aval` is what these hold together.
    """

    variables: Tuple[Any, ...]
    aval: Aval
    spec: Spec = ()
    local: LocalMesh = LocalMesh((), (), ())
    each: bool = False

    @property
    def view(self) -> Optional[np.dtype]:
        """PopXL's structured dtype for float8, None for all other dtypes."""
        dtype: np.dtype = self.variables[0].dtype.as_numpy()
        return dtype if dtype.names else None

    @property
    def names(self) -> AxisNames:
        """The axes of the mesh along which replicas have values of their own in the variables."""
        return frozenset(name for name, _ in self.local.whole) if self.each else spec_names(self.spec)

    def written(self, x: np.ndarray) -> Dict[Any, np.ndarray]:
        """The values of the variables for a leaf's."""
        lead: Tuple[int, ...] = ()
        if self.names:
            parts = (parts_of_replicas if self.each else split)(x, self.spec, self.local.axes)
            count, own = self.local.groups(self.names)
            lead = (count,)
            if len(own) == count:
                x = np.ascontiguousarray(parts)
            else:
                x = np.zeros((count, *parts.shape[1:]), parts.dtype)  # those of others are not looked at here
                x[own] = parts
        x = x if self.view is None else np.ascontiguousarray(x).view(self.view)
        if self.aval.memory == DEVICE:
            return {self.variables[0]: x}
        rows = np.ascontiguousarray(x).reshape(*lead, len(self.variables), *self.variables[0].shape)
        return {v: (rows[:, i, ...] if lead else rows[i, ...]).copy() for i, v in enumerate(self.variables)}

    def rows(self, data: Dict[Any, np.ndarray]) -> np.ndarray:
        """The parts of the groups or replicas that have one of their own here, along a first axis.

        It has one element if all have the same.
        """
        lead = 1 if self.names else 0
        if self.aval.memory == DEVICE:
            x = np.array(data[self.variables[0]])
        else:
            x = np.stack([data[v] for v in self.variables], axis=lead)
        x = x if self.view is None else x.view(self.aval.dtype)
        count, own = self.local.groups(self.names)
        x = x.reshape(count, *part_shape(self.aval.shape, self.spec, self.local.axes))
        return x if len(own) == count else x[own]

    def read(self, data: Dict[Any, np.ndarray]) -> np.ndarray:
        """The leaf for the variables' values."""
        x = self.rows(data)
        if self.each:
            x = of_groups(x, self.spec, self.local.axes)
        return united(x, self.spec, self.local.axes).reshape(self.aval.shape)


def part_shape(shape: Shape, spec: Spec, mesh: Axes) -> Shape:
    """The shape of a replica's part of an array."""
    part = list(shape)
    for k, names in enumerate(spec):
        part[k] //= math.prod(size for name, size in mesh if name in names)
    return tuple(part)


def parts_of_replicas(x: np.ndarray, spec: Spec, mesh: Axes) -> np.ndarray:
    """The parts that the replicas of a mesh have of an array, in order, along a first axis."""
    return on_replicas(split(x, spec, mesh), spec, mesh)
