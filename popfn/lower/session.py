"""Session: a lowered program on a device, in terms of the user's arguments."""
from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Type

import numpy as np

from ..trace import tree
from ..trace.aval import Aval
from ..trace.errors import DeviceError, InputError, message, user_source
from ..trace.tree import TreeDef
from ..transforms.shard import Spec
from .build import Built
from .feed import flat_leaves, leaf_array, output_array, type_of
from .handles import row_fault
from .program import Program
from .transfer import Stream, parts_of_replicas


class Leaf(NamedTuple):
    """A leaf of an argument or a result: its path as code, its type, and its stream or variables if it has some.

    It is cut over the replicas as `spec` says. The type is that of what those of this process hold of the `whole`.
    """

    path: str
    aval: Aval
    handle: Any
    whole: Aval
    spec: Spec


class Way(NamedTuple):
    """How a leaf goes in a run: by which of PopXL's streams, None if it need not go, and what changes it for that."""

    stream: Any
    change: Optional[Stream]

    @classmethod
    def of(cls, stream: Optional[Stream], transfers: int) -> Way:
        """The way by a stream; most need no change, and a run has no time to find that out."""
        if stream is None:
            return cls(None, None)
        return cls(stream.stream, None if stream.is_plain(transfers) else stream)


class Session:
    """A program that is ready to run on a device.

    `state` holds the first values of the arguments that live on the device: the argument itself if there is one, a
    tuple of them if there are several. Inside `with session:` the session is attached to its device: the state is
    copied there on entry and back on exit, also when an exception leaves the block: what was trained is not lost.
    Blocks of one session nest; only the outermost attaches.

    Of several processes that run a program together (see `pf.distributed`), each has a session, which takes and gives
    what the replicas of its process hold of all arrays, the state included. All of them have to make the same runs.

    Args:
        program: What `pf.lower` made.
        state: Arrays in the structure of the state, of its shapes and dtypes.
        device: "host" for a program that was lowered for it; "ipu_hw" (the default), "ipu_model" or "cpu" with the SDK.

    Raises InputError if the state does not fit, and DeviceError if the program has no such device, or the processes
    cannot talk to each other.

    >>> import popfn as pf
    >>> program = pf.lower(lambda total, x: (total + x, total), pf.spec(()), pf.spec(()), state=0, target="host")
    >>> with Session(program, state=0.0) as session:
    ...     session.run(2.0), session.run(3.0)
    (array(0., dtype=float32), array(2., dtype=float32))
    >>> session.state
    array(5., dtype=float32)
    """

    def __init__(self, program: Program, state: Any = None, device: Optional[str] = None) -> None:
        if not isinstance(program, Program):
            raise InputError(message(f"Session takes a program first, got {type(program).__name__}",
                                     "way out: Session(pf.lower(f, ...), state=...)", at=user_source(2)))
        self.program = program
        device = program.target.device(device, program.name)
        arguments = [program.arguments[i] for i in program.state]
        if not arguments and state is not None:
            raise InputError(message(f"Session: {program.name} keeps nothing on the device, but state= was given",
                                     at=user_source(2)))
        self._state_def: TreeDef = arguments[0].treedef if len(arguments) == 1 else tree.structure(
            tuple(tree.unflatten(a.treedef, range(a.treedef.num_leaves)) for a in arguments))
        self._root = arguments[0].name if len(arguments) == 1 else "state"
        self._arguments = [(a.treedef, a.treedef.is_leaf(), a.name, f"argument {a.name} of {program.name}")
                           for a in program.inputs]
        built = program.take()
        avals = program.local_in_avals

        def leaf(i: int, handle: Any) -> Leaf:
            return Leaf(program.paths[i], avals[i], handle, program.in_avals[i], built.in_specs[i])
        self._transfers, self._local = built.transfers, built.local
        self._inputs = [leaf(i, built.loads[i]) for a in program.inputs for i in a.leaves]
        self._outputs = list(map(Leaf, program.out_paths, program.local_out_avals, built.stores, program.out_avals,
                                 built.out_specs[len(program.state_leaves):]))
        self._loads = [Way.of(leaf.handle, built.transfers) for leaf in self._inputs]
        self._stores = [Way.of(leaf.handle, built.transfers) for leaf in self._outputs]
        self._state = list(map(leaf, program.state_leaves, built.variables))
        self._kept: Dict[str, np.ndarray] = {}  # leaves that the program neither reads nor changes
        first = self._state_arrays(state, "Session(state=...)") if arguments else []
        self._unused = built.unused()
        self._accesses = built.main.accesses
        self._px = self._session_of(built, device)
        self._stale = False  # a run may have changed variables on the device
        if arguments:
            self._write(dict(zip((leaf.path for leaf in self._state), first)))

    def _session_of(self, built: Built, device: str) -> Any:
        """PopXL's own session. Raises DeviceError if the processes that it is for cannot talk to each other."""
        program, instance = self.program, built.local.instance
        if instance is None or instance.count == 1 or program.target.is_sdk:
            return program.target.module.Session(built.ir, device)
        engine = os.environ.get("POPFN_ENGINE") or "numpy"
        way = "way out: set POPFN_ENGINE=xla, and call pf.distributed.initialize first in every process"
        if engine == "numpy":
            raise DeviceError(message(
                f"Session: {program.name} runs in {instance.count} processes, which the engine {engine!r} cannot join",
                f"this process is {instance}", way, at=user_source(2)))
        try:
            return program.target.module.Session(built.ir, device)
        except ValueError as e:  # the runtime of JAX is not there, or has other processes
            raise DeviceError(message(
                f"Session: {program.name} runs in {instance.count} processes, which are not joined as it needs: {e}",
                f"this process is {instance}", way, at=user_source(2))) from e

    # ------------------------------------------------------------------ runs
    def run(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the program once on arguments, given as the function takes them but without the state.

        Returns the rest of the function's result beside the new state, as NumPy arrays: None if there is no rest.
        64-bit data is narrowed if every value survives and a Python number takes the dtype it meets; nothing else is
        converted. Raises InputError that names the argument and leaf, and ValueError outside of `with session:`. A run
        that fails leaves the state as it was.
        """
        outputs = [np.empty(leaf.aval.shape, leaf.aval.dtype) for leaf in self._outputs]
        self._run(args, kwargs, outputs)
        return tree.unflatten(self.program.out_tree, outputs)

    def run_with_outputs(self, args: Sequence[Any], outputs: Any) -> None:
        """`run(*args)`, with the results written into the arrays `outputs`: see `create_host_outputs`."""
        arrays = flat_leaves(outputs, self.program.out_tree, "out", f"outputs of {self.program.name}")
        for x, leaf in zip(arrays, self._outputs):
            what = f"output {leaf.path} of {self.program.name}"
            self._check_not_whole(x, leaf, what)
            output_array(x, leaf.aval, what)
        self._run(args, {}, arrays)

    def _run(self, args: Sequence[Any], kwargs: Dict[str, Any], outputs: Sequence[np.ndarray]) -> None:
        self._check_attached("run")
        if kwargs or len(args) != len(self._arguments):
            args = self._positional(args, kwargs)
        leaves: List[Any] = []
        for x, (treedef, is_leaf, name, what) in zip(args, self._arguments):
            if is_leaf:
                leaves.append(x)
            else:
                leaves += flat_leaves(x, treedef, name, what)
        feeds = {}
        for x, leaf, (stream, load) in zip(leaves, self._inputs, self._loads):
            aval = leaf.aval
            if type(x) is not np.ndarray or x.dtype is not aval.dtype or x.shape != aval.shape:
                x = self._array(x, leaf, "argument")
            if stream is not None:
                feeds[stream] = x if load is None else load.fed(x, self._transfers)
        results = dict(self._unused)
        for x, (stream, store) in zip(outputs, self._stores):
            if stream is not None:
                results[stream] = x if store is None else store.place_for(x, self._transfers)
        self._stale = True
        try:
            self._px.run_with_outputs(feeds, results)
        except Exception as e:
            fault = row_fault(e, self._accesses)
            if fault is None:
                raise
            raise fault from e
        for x, (stream, store) in zip(outputs, self._stores):
            if store is not None:
                store.fetch(results[stream], x)

    def _positional(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Any]:
        """All arguments in order. Raises InputError that names those that are missing, unknown or given twice."""
        program = self.program
        names = [a.name for a in program.inputs]
        takes = f"{program.name} takes {', '.join(names) or 'no arguments'}"
        state = [program.arguments[i].name for i in program.state]
        hint = f"{', '.join(state)} lives on the device and is not passed: see Session.state" if state else None
        if len(args) > len(names):
            raise InputError(message(f"run: {takes}; got {len(args)} arguments", hint, at=user_source(2)))
        given = dict(zip(names, args))
        for name, value in kwargs.items():
            if name in given:
                raise InputError(message(f"run: argument {name} of {program.name} was given twice",
                                         at=user_source(2)))
            if name not in names:
                raise InputError(message(f"run: {program.name} has no argument {name!r}", takes,
                                         hint if name in state else None, at=user_source(2)))
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(message(f"run: missing {', '.join(missing)}", takes, at=user_source(2)))
        return [given[name] for name in names]

    def expected_inputs(self) -> Dict[str, Any]:
        """The types that `run` takes: a tree of avals for each argument's name."""
        avals = self.program.local_in_avals
        return {a.name: tree.unflatten(a.treedef, [avals[i] for i in a.leaves]) for a in self.program.inputs}

    def create_host_outputs(self) -> Any:
        """Uninitialised arrays in the structure of what `run` returns, for `run_with_outputs`."""
        return tree.unflatten(self.program.out_tree,
                              [np.empty(leaf.aval.shape, leaf.aval.dtype) for leaf in self._outputs])

    # ------------------------------------------------------------------ state
    @property
    def state(self) -> Any:
        """The state as arrays on the host, in the structure of the argument (a tuple if there are several).

        Setting it replaces all of it. Raises InputError if structure, a shape or a dtype differs.
        """
        if not self.program.state:
            return None
        return tree.unflatten(self._state_def, [self._read(leaf) for leaf in self._state])

    @state.setter
    def state(self, value: Any) -> None:
        if not self.program.state:
            raise InputError(message(f"Session.state: {self.program.name} keeps nothing on the device",
                                     at=user_source(2)))
        arrays = self._state_arrays(value, "Session.state")
        self._write(dict(zip((leaf.path for leaf in self._state), arrays)))

    def get_variable_data(self, path: str) -> np.ndarray:
        """The value of one leaf of the state, named as code: `session.get_variable_data("params['w']")`.

        Raises InputError for an unknown leaf.
        """
        return self._read(self._leaf(path))

    def get_replica_data(self, path: str) -> np.ndarray:
        """What each replica has of one leaf of the state: its part, or its copy if the leaf is not cut.

        The first axis is that of the replicas of this process, in the order of their numbers, and of length 1 for a
        program without a mesh; the others are those of a part. It takes a program that was lowered with
        `replica_state=True`, and shows where copies differ that ought to be equal, while `state` has the first one.

        Raises InputError for a program lowered without that, and for an unknown leaf.

        >>> import popfn as pf
        >>> double = pf.shard(lambda w: (2 * w, None), pf.Mesh(dp=2), (pf.P("dp"),), (pf.P("dp"), pf.P()))
        >>> program = pf.lower(double, pf.spec(4), state=0, target="host", replica_state=True)
        >>> session = Session(program, state=np.float32([1, 2, 3, 4]))
        >>> session.get_replica_data("w")
        array([[1., 2.],
               [3., 4.]], dtype=float32)
        """
        leaf = self._leaf(path)
        if not self.program.replica_state:
            raise InputError(message(
                f"get_replica_data: {self.program.name} was lowered without what it takes to read {path} from each "
                "replica", "way out: pf.lower(..., replica_state=True)", at=user_source(2)))
        if leaf.handle is None:
            return np.array(parts_of_replicas(self._kept[path], leaf.spec, self._local.axes))
        x: np.ndarray = leaf.handle.rows(self._px.get_tensors_data(leaf.handle.variables))
        return x

    def write_variable_data(self, path: str, data: Any) -> None:
        """Set one leaf of the state. Raises InputError for an unknown leaf and for another shape or dtype."""
        leaf = self._leaf(path)
        array = self._array(data, leaf, "state")
        if self._px.is_attached and self._stale:  # PopXL sends all variables, so the others have to be current
            self.weights_to_host()
        self._write({path: array})

    def weights_to_host(self) -> None:
        """Copy the state from the device to the host; ValueError outside of `with session:`."""
        self._check_attached("weights_to_host")
        self._px.weights_to_host()
        self._stale = False

    def weights_from_host(self) -> None:
        """Copy the state from the host to the device; ValueError outside of `with session:`."""
        self._check_attached("weights_from_host")
        self._px.weights_from_host()
        self._stale = False

    def _leaf(self, path: str) -> Leaf:
        for leaf in self._state:
            if leaf.path == path:
                return leaf
        known = ", ".join(leaf.path for leaf in self._state[:20]) + " ..." * (len(self._state) > 20)
        raise InputError(message(f"{self.program.name} has no state {path!r}", f"its state: {known or 'none'}",
                                 at=user_source(2)))

    def _state_arrays(self, state: Any, what: str) -> List[np.ndarray]:
        """The leaves of a new state, checked."""
        if state is None and self._state_def.num_leaves:
            names = ", ".join(self.program.arguments[i].name for i in self.program.state)
            raise InputError(message(f"{what}: {self.program.name} keeps {names} on the device and needs first values",
                                     f"way out: Session(program, state={names if ',' not in names else f'({names})'})",
                                     at=user_source(2)))
        leaves = flat_leaves(state, self._state_def, self._root, f"{what.rstrip('=')} of {self.program.name}")
        return [self._array(x, leaf, "state") for x, leaf in zip(leaves, self._state)]

    def _array(self, x: Any, leaf: Leaf, kind: str) -> np.ndarray:
        """A leaf of an argument or the state as an array of its type."""
        what = f"{kind} {leaf.path} of {self.program.name}"
        self._check_not_whole(x, leaf, what)
        return leaf_array(x, leaf.aval, what)

    def _check_not_whole(self, x: Any, leaf: Leaf, what: str) -> None:
        """Raise InputError for a whole array where what this instance has of it is wanted."""
        if leaf.whole.shape != leaf.aval.shape and getattr(x, "shape", None) == leaf.whole.shape:
            raise InputError(message(
                f"{what}: expected {leaf.aval.strong}, got the whole array, {type_of(x)}",
                f"this process is {self._local.instance}, and takes and gives what its replicas have of it",
                "way out: pf.distributed.part_of(x, spec, mesh)", at=user_source(2)))

    def _write(self, arrays: Dict[str, np.ndarray]) -> None:
        data = {}
        for leaf in self._state:
            if leaf.path in arrays:
                if leaf.handle is None:
                    self._kept[leaf.path] = arrays[leaf.path].copy()
                else:
                    data.update(leaf.handle.written(arrays[leaf.path]))
        if data:
            self._px.write_variables_data(data)

    def _read(self, leaf: Leaf) -> np.ndarray:
        if leaf.handle is None:
            return self._kept[leaf.path].copy()
        x: np.ndarray = leaf.handle.read(self._px.get_tensors_data(leaf.handle.variables))
        return x

    # ------------------------------------------------------------------ attachment
    @property
    def is_attached(self) -> bool:
        """Whether the session is attached to its device."""
        return bool(self._px.is_attached)

    def _check_attached(self, what: str) -> None:
        if not self._px.is_attached:
            raise InputError(message(f"{what}: the session of {self.program.name} is not attached to its device",
                                     f"way out: call it inside a block, `with session: session.{what}(...)`",
                                     at=user_source(2)))

    def __enter__(self) -> Session:
        self._px.__enter__()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if kind is not None:
            # PopXL's own Session leaves the state on the device then. If the device is what failed, there is nothing to
            # copy, and the exception that is on its way says why.
            with contextlib.suppress(Exception):
                self._px.weights_to_host()
        self._px.__exit__(kind, value, traceback)

    def __repr__(self) -> str:
        return f"Session({self.program!r}, {'attached' if self.is_attached else 'detached'})"
