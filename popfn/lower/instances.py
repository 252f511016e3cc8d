"""Instances: the processes that have the replicas of a program between them, and what of its arrays each one has.

A launcher, PopDist's `poprun`, starts the same program in several processes, and tells each by its environment which
replicas it has. These lie together in the mesh, as a box, so that what they hold of an array is an array too.
"""
from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..trace.aval import Aval, AxisNames
from ..trace.errors import DeviceError, LoweringError, located, message, user_source
from ..trace.jaxpr import Eqn, Jaxpr
from ..transforms.shard import Axes, Spec, has_mesh, spec_names
from .replicas import find_meshes, mesh_text, split, united

#: The variables in which a launcher says how many replicas there are, how many this process has, and the first of them.
TOTAL, LOCAL, FIRST = VARIABLES = (
    "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET")


@dataclass(frozen=True)
class Instance:
    """One of the processes that run a program together.

    It is number `index` of `count`, and has `local_replicas` of all `total_replicas`, from `first_replica` on.
    """

    index: int
    count: int
    first_replica: int
    local_replicas: int
    total_replicas: int

    def __str__(self) -> str:
        last = self.first_replica + self.local_replicas - 1
        own = f"replica {last}" if self.local_replicas == 1 else f"replicas {self.first_replica} to {last}"
        return f"instance {self.index} of {self.count}, {own} of {self.total_replicas}"


def launched() -> Optional[Instance]:
    """This process as the launcher's environment describes it; None if no launcher started it.

    Raises DeviceError if only some of the variables are set, or if they contradict each other.
    """
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not found:
        return None
    seen = f"seen: {', '.join(f'{name}={value}' for name, value in found.items())}"
    way = "way out: start it with a launcher, or pf.distributed.initialize, which set all of them; or unset them"
    if len(found) < len(VARIABLES):
        missing = [name for name in VARIABLES if name not in found]
        raise DeviceError(message(f"the environment has a launcher's variables, but no {', '.join(missing)}", seen, way,
                                  at=user_source(2)))
    try:
        total, local, first = [int(found[name]) for name in VARIABLES]
    except ValueError:
        raise DeviceError(message("the launcher's variables are not all numbers", seen, way,
                                  at=user_source(2))) from None
    if local < 1 or total < 1 or total % local or first % local or not 0 <= first < total:
        raise DeviceError(message(
            f"the launcher's variables give this process {local} replicas of {total}, from number {first} on",
            seen, "every process has equally many, one process after the other", way, at=user_source(2)))
    return Instance(first // local, total // local, first, local, total)


class LocalMesh(NamedTuple):
    """The replicas of this process in a mesh: those of a box, `axes` with sizes, that begins at the place `start`.

    Where no launcher started the process, which makes it an instance, they are all of them.
    """

    whole: Axes
    axes: Axes
    start: Tuple[int, ...]
    instance: Optional[Instance] = None

    @property
    def replication(self) -> Union[int, str]:
        """The number of replicas as an Ir takes it."""
        return math.prod(size for _, size in self.whole) if self.instance is None else "popdist"

    @property
    def size(self) -> int:
        """The number of replicas here."""
        return math.prod(size for _, size in self.axes)

    def groups(self, names: AxisNames) -> Tuple[int, List[int]]:
        """How many groups of replicas the axes of these names tell apart, and the numbers of those with replicas here.

        They are numbered in the order of their places along the axes, as `split` orders parts.
        """
        own = [i for i, (name, _) in enumerate(self.whole) if name in names]
        numbers = np.arange(math.prod(self.whole[i][1] for i in own)).reshape([self.whole[i][1] for i in own])
        here = numbers[tuple([slice(self.start[i], self.start[i] + self.axes[i][1]) for i in own])]
        return numbers.size, here.reshape(-1).tolist()

    def aval(self, aval: Aval, spec: Spec) -> Aval:
        """The type of what the replicas here hold of an array."""
        if self.axes == self.whole:
            return aval
        here, whole = dict(self.axes), dict(self.whole)
        shape = list(aval.shape)
        for k, names in enumerate(spec):
            shape[k] = shape[k] // math.prod(whole[name] for name in names) * math.prod(here[name] for name in names)
        return aval.with_shape(tuple(shape))

    def part_of(self, x: np.ndarray, spec: Spec) -> np.ndarray:
        """What the replicas here hold of a global array."""
        if self.axes == self.whole or not spec:
            return x
        _, own = self.groups(spec_names(spec))
        return united(split(x, spec, self.whole)[own], spec, self.axes)


def here(jaxpr: Jaxpr, mesh: Axes) -> LocalMesh:
    """What this process has of the mesh that a program is lowered for, which may be none.

    A program without sharded functions is run by each process alone. Raises LoweringError if the mesh of a sharded
    function has another number of replicas than the launcher says.
    """
    if not has_mesh(jaxpr):
        return LocalMesh((), (), ())
    meshes: Dict[Axes, Eqn] = {}
    find_meshes(jaxpr, meshes)
    instance = launched()
    if instance is not None:
        for found, eqn in meshes.items():
            size = math.prod(size for _, size in found)
            if size != instance.total_replicas:
                raise located(LoweringError(message(
                    f"{mesh_text(found)} has {size} replicas, but the launcher started {instance.total_replicas}",
                    f"this process is {instance}", f"way out: a mesh of {instance.total_replicas} replicas, or {size} "
                    "replicas for the launcher or pf.distributed.initialize")), eqn.source)
    if not mesh:
        return LocalMesh((), (), ())
    if instance is None:
        return LocalMesh(mesh, mesh, (0,) * len(mesh))
    return box_of(mesh, instance, meshes[mesh])


def box_of(mesh: Axes, instance: Instance, eqn: Optional[Eqn] = None) -> LocalMesh:
    """The replicas of an instance in a mesh of all replicas; `eqn` is what wants the mesh.

    Raises LoweringError if they are no box.
    """
    rest, own = instance.local_replicas, []
    for _, size in reversed(mesh):
        own.append(math.gcd(size, rest))
        rest //= own[-1]
        if own[-1] < size and rest > 1:
            raise located(LoweringError(message(
                f"the {instance.local_replicas} replicas of an instance are no box in {mesh_text(mesh)}",
                f"this process is {instance}",
                "an instance has the innermost axes whole, an equal part of the next one, and one place along the rest",
                "way out: other sizes or another order of the axes, or other numbers of replicas for the instances")),
                eqn and eqn.source)
    sizes = [size for _, size in mesh]
    return LocalMesh(mesh, tuple([(name, size) for (name, _), size in zip(mesh, reversed(own))]),
                     tuple([int(i) for i in np.unravel_index(instance.first_replica, sizes)]), instance)
