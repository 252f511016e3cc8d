"""Several processes that run one program together, its replicas between them.

PopDist's launcher (`poprun`) starts the same script in several processes and tells each one which replicas it has;
`pf.lower` reads that by itself. Without IPUs, `initialize` does the launcher's part in each process: it starts JAX's
distributed runtime, through which the XLA engine of the host lets the replicas meet.
"""
from __future__ import annotations

import math
import os
from typing import Any, Optional, Union

import numpy as np

from ._shard import Mesh, P
from .api import is_index
from .lower.instances import VARIABLES, Instance as Instance, box_of, launched
from .trace import tree
from .trace.array import Array
from .trace.errors import ArgumentError, DeviceError, TreeError, message, user_source
from .transforms.shard import spec_names


def instance() -> Optional[Instance]:
    """Which of the processes that run a program together this one is, as the launcher says; None if it runs alone.

    Raises DeviceError if only some of the launcher's variables are set, or if they contradict each other.

    >>> print(instance())
    None
    >>> os.environ.update(zip(VARIABLES, ("8", "4", "4")))  # a launcher does this
    >>> print(instance())
    instance 1 of 2, replicas 4 to 7 of 8
    >>> for name in VARIABLES:
    ...     del os.environ[name]
    """
    return launched()


def initialize(coordinator: str, processes: Optional[int] = None, process: Optional[int] = None,
               replicas: Union[None, int, Mesh] = None) -> Instance:
    """Do a launcher's part in each of several processes on the host, before anything else is done with popfn or JAX.

    It starts JAX's distributed runtime, sets the launcher's variables in `os.environ`, and chooses the XLA engine with
    POPFN_ENGINE if that is not set. From then on, `pf.lower` makes programs of all processes. `coordinator` is the
    address and port at which process 0 waits for the others, `"10.0.0.1:1234"`; this is process number `process` of
    `processes`, and each has as many of the `replicas`, a number or the mesh that has them. A process must have as many
    devices of JAX as all others, and they must divide its replicas. Under a launcher only `coordinator` is needed.

    Raises ArgumentError for numbers that do not fit together or are not those of a launcher, and for a coordinator
    without a port; DeviceError if JAX is missing, cannot start, or has no collectives between the processes of CPUs.

    >>> instance = initialize("10.0.0.1:1234", 2, 0, pf.Mesh(dp=2, tp=4))  # doctest: +SKIP
    >>> print(instance)  # doctest: +SKIP
    instance 0 of 2, replicas 0 to 3 of 8
    """
    wanted = _instance(processes, process, replicas)
    host, _, port = coordinator.rpartition(":") if isinstance(coordinator, str) else ("", "", "")
    if not host or not port.isdigit():
        raise ArgumentError(message(f"distributed.initialize: coordinator={coordinator!r} is no address with a port",
                                    'way out: "10.0.0.1:1234", with a free port of process 0', at=user_source(2)))
    try:
        import jax
    except ImportError as e:
        raise DeviceError(message(f"distributed.initialize needs JAX, which cannot be imported ({e})",
                                  'way out: pip install "popfn[xla]"', at=user_source(2))) from e
    has_collectives = hasattr(jax.config, "jax_cpu_collectives_implementation")
    try:
        if has_collectives:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, wanted.count, wanted.index)
        backend = jax.default_backend()
    except (RuntimeError, ValueError) as e:
        raise DeviceError(message(
            f"distributed.initialize: JAX's distributed runtime does not start at {coordinator!r}: {e}",
            "way out: call it once in each process, before anything is computed, with one free port of process 0",
            at=user_source(2))) from e
    if backend == "cpu" and not has_collectives and wanted.count > 1:
        jax.distributed.shutdown()
        raise DeviceError(message(
            f"distributed.initialize: JAX {jax.__version__} has no collectives between processes on CPUs",
            "way out: a newer JAX, or GPUs", at=user_source(2)))
    os.environ.update(zip(VARIABLES, map(str, (
        wanted.total_replicas, wanted.local_replicas, wanted.first_replica))))
    os.environ.setdefault("POPFN_ENGINE", "xla")
    return wanted


def _instance(processes: Optional[int], process: Optional[int], replicas: Union[None, int, Mesh]) -> Instance:
    """The instance of these numbers; what is None is the launcher's."""
    found = launched()
    total = replicas.size if isinstance(replicas, Mesh) else replicas
    numbers = [("processes", processes, found and found.count), ("process", process, found and found.index),
               ("replicas", total, found and found.total_replicas)]
    chosen = []
    for name, given, known in numbers:
        if given is None and known is None:
            raise ArgumentError(message(f"distributed.initialize: {name}= is missing, and no launcher says it",
                                        "way out: initialize(coordinator, processes, process, mesh)",
                                        at=user_source(3)))
        if given is not None and (not is_index(given) or given < (name != "process")):
            raise ArgumentError(message(f"distributed.initialize: {name}={given!r} is no number of "
                                        f"{int(name != 'process')} or more", at=user_source(3)))
        if given is not None and known is not None and given != known:
            raise ArgumentError(message(f"distributed.initialize: {name}={given}, but for the launcher it is {known}",
                                        f"this process is {found}", f"way out: leave {name}= out", at=user_source(3)))
        chosen.append(int(known if given is None else given))  # type: ignore[arg-type]
    count, index, total = chosen
    if index >= count:
        raise ArgumentError(message(f"distributed.initialize: process={index} of processes={count}",
                                    f"way out: a number from 0 to {count - 1}", at=user_source(3)))
    if total % count:
        raise ArgumentError(message(f"distributed.initialize: {total} replicas cannot be shared out evenly to {count} "
                                    "processes", "way out: a mesh whose size they divide", at=user_source(3)))
    local = total // count
    return Instance(index, count, index * local, local, total)


def part_of(x: Any, spec: Any, mesh: Mesh) -> Any:
    """What the replicas of this process hold of whole arrays, which are cut over the mesh as `spec` says.

    That is what a session takes in a process that a launcher started; in one that runs alone it is all of x, so that a
    script can use it in either case. `x` is an array or a pytree of them, and `spec` a P or a tree of them above it.
    The results are NumPy arrays.

    Raises ArgumentError if a leaf is no array or cannot be cut so, or the mesh has another number of replicas than the
    launcher says, and LoweringError if the replicas of this process do not lie together in the mesh.

    >>> os.environ.update(zip(VARIABLES, ("4", "2", "2")))  # the second of two processes, started by a launcher
    >>> part_of(np.arange(4), P("dp"), Mesh(dp=2, tp=2))
    array([2, 3])
    >>> for name in VARIABLES:
    ...     del os.environ[name]
    >>> part_of(np.arange(4), P("dp"), Mesh(dp=2, tp=2))
    array([0, 1, 2, 3])
    """
    if not isinstance(mesh, Mesh):
        raise ArgumentError(message(f"distributed.part_of takes a mesh, got {type(mesh).__name__}",
                                    "way out: pf.Mesh(dp=2)", at=user_source(2)))
    leaves, structure = tree.flatten(x)
    try:
        specs = tree.prefix_leaves(spec, structure)
    except TreeError as e:
        raise ArgumentError(message(f"distributed.part_of: the spec is no tree above x: {e}", f"seen: {spec!r}",
                                    at=user_source(2))) from None
    arrays = [x.known("distributed.part_of") if isinstance(x, Array) else np.asarray(x) for x in leaves]
    for path, array, entry in zip(tree.paths(structure, "x"), arrays, specs):
        _check_cut(path, array, entry, mesh)
    found = launched()
    if found is None:
        return tree.unflatten(structure, arrays)
    if found.total_replicas != mesh.size:
        raise ArgumentError(message(
            f"distributed.part_of: {mesh} has {mesh.size} replicas, but the launcher started {found.total_replicas}",
            f"this process is {found}", at=user_source(2)))
    box = box_of(tuple(mesh.axes.items()), found)
    return tree.unflatten(structure, [box.part_of(array, entry.spec) for array, entry in zip(arrays, specs)])


def _check_cut(path: str, x: np.ndarray, entry: Any, mesh: Mesh) -> None:
    """Raise ArgumentError if a leaf is no array, or cannot be cut so."""
    if x.dtype.kind in "OSUMm":
        raise ArgumentError(message(f"distributed.part_of: {path} is not an array", f"seen: {x.tolist()!r:.60}",
                                    "way out: leave it out of the tree", at=user_source(3)))
    if not isinstance(entry, P):
        raise ArgumentError(message(f"distributed.part_of: the spec of {path} is a pf.P, got {entry!r}",
                                    "way out: pf.P() is for an array that all replicas have", at=user_source(3)))
    for name in sorted(spec_names(entry.spec)):
        if name not in mesh.axes:
            raise ArgumentError(message(f"distributed.part_of: {entry!r} for {path} names {name!r}, which is no axis "
                                        f"of {mesh}", at=user_source(3)))
    for k, names in enumerate(entry.spec):
        count = math.prod(mesh.axes[name] for name in names)
        if k >= x.ndim or x.shape[k] % count:
            raise ArgumentError(message(
                f"distributed.part_of: {entry!r} cuts axis {k} of {path} into {count} parts, which is of the shape "
                f"{x.shape}", at=user_source(3)))
