"""The XLA engine: an Ir becomes a compiled function of JAX, from state and streams to state and streams.

The state is donated, so it is updated where it is. A graph that is called often is compiled once for all its calls,
which makes the program a list of compiled functions (see `xla_parts`). A repeat is a loop, a conditional a branch. The
axis of the replicas is spread over the devices of JAX, if there are several; with `jax.distributed`, over those of
several processes.
"""

import contextlib
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import jax
import jax.experimental
import numpy as np

from popfn.host.engine import xla_faults, xla_parts
from popfn.host.engine.aliasing import Aliasing
from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import storage_dtype
from popfn.host.engine.xla_state import Devices, Group, Slot, grouped
from popfn.host.engine.xla_storage import Cell, Value
from popfn.host.engine.xla_trace import SPECIAL, Facts, Tracing
from popfn.host.tensor import Shard, Variable

# Where the block that gives JAX 64-bit types is depends on the release.
enable_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else vars(jax.experimental)["enable_x64"]

# Larger constants are arguments of the compiled function: XLA takes long to compile a program that contains them.
_EMBEDDED_BYTES = 1 << 14


class Compiled(NamedTuple):
    """The function for certain numbers of transfers."""

    function: Any
    outputs: Sequence[Tuple[Any, bool]]  # streams, and whether the array has an axis for the replicas
    done: Tuple[Any, ...]  # how many slots of each a run stores to, at least
    counted: Sequence[Tuple[int, bool]]  # the outputs for which the run tells that, and whether it differs by replica


class Executable:
    """A compiled program and its device storage."""

    def __init__(self, ir: Any) -> None:
        main = ir.main_graph
        self._ir = ir
        self._replicas = ir.replication_factor
        self._devices = Devices(self._replicas, ir.instance_replication_factor, ir._replica_offset)
        self._facts = Facts(main)
        Aliasing(main)  # it refuses writes that have no meaning
        _check_kinds(self._facts.graphs)
        self._loads = [key[1] for key in self._facts.effects(main) if key[0] == "host_load"]
        self._stores = [key[1] for key in self._facts.effects(main) if key[0] == "host_store"]
        # What a run looks up for each stream: the dtype that the engine keeps it in, and the shape of an array.
        lead = (self._devices.local,) if self._devices.local > 1 else ()
        self._dtypes = {stream: storage_dtype(stream.dtype) for stream in self._loads + self._stores}
        self._shapes = {stream: lead + stream.shape for stream in self._stores}
        self._prints = any(op.kind == "print_tensor" for graph in self._facts.graphs for op in graph.ops)
        self._errors: List[BaseException] = []  # what went wrong when values were printed
        has_kept = any(map(self._facts.is_kept, self._facts.graphs))
        self._has_parts = has_kept and not self._prints and not self._devices.is_spread
        self._is_wide = _has_dtype(self._facts.graphs, 8)
        self._options = {"xla_allow_excess_precision": False} if _has_dtype(self._facts.graphs, 2) else {}
        self._has_faults = False
        self._groups = grouped(self._find_state(), self._devices)
        self._places: Dict[Any, Tuple[Group, int]] = {
            slot.key: (group, i) for group in self._groups for i, slot in enumerate(group.slots)
        }
        self._written = [group for group in self._groups if group.written]
        self._kept = [group for group in self._groups if not group.written]
        # How many arrays of the state a run may overwrite: not if it may fail, after which they are needed.
        self._donated = 0 if self._has_faults or self._prints else len(self._written)
        constants = dict.fromkeys(t for t in main.constants if t.data.nbytes > _EMBEDDED_BYTES)
        self._constants = {t: self._devices.put(_stored(t.data, t.dtype), False) for t in constants}
        self._compiled: Dict[Tuple[int, ...], Compiled] = {}
        transfers = ir.num_host_transfers
        self._for_transfers((transfers,) * (len(self._loads) + len(self._stores)))

    @property
    def source(self) -> str:
        """The compiled program as text."""
        text: str = next(iter(self._compiled.values())).function.as_text()
        return text

    @property
    def peak_bytes(self) -> int:
        """The memory of the devices that a run takes at most, with the state."""
        function = next(iter(self._compiled.values())).function
        if isinstance(function, xla_parts.Program):
            return function.peak_bytes
        stats = function.memory_analysis()
        sizes = (stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.temp_size_in_bytes)
        total: int = sum(sizes) - stats.alias_size_in_bytes
        return total

    # Runs

    def run(self, inputs: Mapping[Any, Sequence[np.ndarray]], outputs: Mapping[Any, Sequence[np.ndarray]]) -> None:
        """Run the program once. If it raises, the variables on the devices and remote memory are as they were.

        But after an error of JAX, or an interrupt from the keyboard while the devices run, they may be lost or new.

        Args:
            inputs: For each stream that the program loads, the tensors in order: C-contiguous arrays of the stream's
                shape and dtype, with a leading axis if there are several replicas.
            outputs: For each stream that it stores to, the arrays to fill.

        Raises:
            ValueError: If an array to fill is read-only or of another shape.
            popart_exception: If an offset into a remote buffer is out of range.
        """
        self._check_outputs(outputs)
        counts = [len(inputs[s]) for s in self._loads] + [len(outputs[s]) for s in self._stores]
        compiled = self._for_transfers(tuple(counts))
        loaded = [self._loaded(inputs[s], self._dtypes[s]) for s in self._loads]
        if self._prints and hasattr(compiled.function, "_call"):
            # In later runs JAX 0.4.13 would take a short cut that forgets what keeps the prints in order, and fail.
            compiled.function._call = None
        with self._wide():
            results = compiled.function(
                [group.array() for group in self._written],
                [group.array() for group in self._kept],
                list(self._constants.values()),
                loaded,
            )
            if self._has_faults:
                xla_faults.check(self._facts.numbers, self._replicas, self._devices.get(results[-1], False))
            if self._prints:
                self._finish_printing()
            for group, array in zip(self._written, results):
                group.on_device = array
            stored = results[len(self._written) :]
            done: Sequence[Any] = compiled.done
            if compiled.counted:
                done = list(done)
                for (i, mapped), array in zip(compiled.counted, stored[len(done) :]):
                    done[i] = self._devices.get(array, mapped)
            for (stream, mapped), array, slots in zip(compiled.outputs, stored, done):
                self._fill(outputs[stream], self._devices.get(array, mapped), mapped, self._dtypes[stream], slots)
        # The devices may read the inputs where the caller has them, who may change them from now on. What was stored
        # tells that all is over, unless that was the work of an earlier part.
        if self._has_parts or not compiled.outputs:
            jax.block_until_ready(results)

    def _check_outputs(self, outputs: Mapping[Any, Sequence[np.ndarray]]) -> None:
        """Refuse arrays that cannot be filled, before anything changes."""
        for stream, shape in self._shapes.items():
            for array in outputs[stream]:
                if array.shape != shape or not array.flags.writeable:
                    raise ValueError(
                        f"the output array for {stream} cannot be filled: it has the shape {array.shape}, expected "
                        f"{shape}, and is {'writable' if array.flags.writeable else 'read-only'}."
                    )

    def _finish_printing(self) -> None:
        """Wait until all is printed, and raise the first error in that."""
        jax.effects_barrier()
        errors, self._errors[:] = self._errors[:], []
        if errors:
            raise errors[0]

    def _loaded(self, arrays: Sequence[np.ndarray], dtype: np.dtype) -> Any:
        is_mapped = self._replicas > 1
        if len(arrays) == 1:
            array = _viewed(arrays[0], dtype)
        else:
            array = _viewed(np.stack(arrays, axis=1 if self._devices.local > 1 else 0), dtype)
        if is_mapped and self._devices.local == 1:  # the arrays of a process with one replica have no axis for it
            array = array[None]
        return self._devices.put(array, is_mapped) if self._devices.is_spread else array

    def _fill(self, arrays: Sequence[np.ndarray], value: np.ndarray, mapped: bool, dtype: np.dtype, done: Any) -> None:
        """Copy the first `done` slots, a number or one for each replica: the others keep their values."""
        if not mapped and len(arrays) == 1 and type(done) is int and done:
            _viewed(arrays[0], dtype)[...] = value
            return
        rows = None
        if not isinstance(done, int) and done.ndim:
            rows, done = done, done.max()
        if mapped and self._devices.local == 1:
            value, mapped, rows = value[0], False, None
        for i, array in enumerate(arrays if done >= len(arrays) else arrays[:done]):
            part = value
            if len(arrays) > 1:
                part = value[:, i] if mapped else value[i]
            if rows is None:
                np.copyto(_viewed(array, dtype), part)
            else:
                is_done = (rows > i).reshape((-1,) + (1,) * (array.ndim - 1))
                np.copyto(_viewed(array, dtype), part, where=is_done)

    # Storage

    def write(self, variable: Any, array: np.ndarray) -> None:
        """Set the value of a variable, or of a shard, on the device.

        Args:
            variable: The Variable or Shard.
            array: The value on all replicas, or one with a leading axis for the replicas of this process.
        """
        np.copyto(self._part(variable, True), _stored(np.ascontiguousarray(array), variable.dtype))

    def read(self, variable: Any) -> np.ndarray:
        """Return a copy of the value of a variable or a shard: one for all replicas, or one for each."""
        return np.array(self._part(variable, False)).view(variable.dtype.as_numpy())

    def _part(self, variable: Any, to_write: bool) -> np.ndarray:
        remote = getattr(variable, "_remote", None)
        group, i = self._places[variable if remote is None else remote[0]]
        with self._wide():
            part = group.part(i, to_write)
        return part if remote is None else part[:, remote[1]] if group.mapped else part[remote[1], ...]

    def _wide(self) -> Any:
        """A block in which JAX has 64-bit types, if the program has them."""
        return enable_x64(True) if self._is_wide else contextlib.nullcontext()

    # Compilation

    def _find_state(self) -> List[Slot]:
        """What persists, by a walk that finds what runs change and what may differ between replicas."""
        main = self._ir.main_graph
        state: Dict[Any, Tuple[Any, Any, bool]] = {}
        for t in main.variables:
            if t._remote is None and t._shard is None:
                state[t] = t.shape, t.dtype, t.shape_on_host != t.shape
            elif t._shard is not None:
                state[t._shard] = t._shard.shape, t.dtype, True
        for key in self._facts.effects(main):
            if key[0] == "remote":
                state[key[1]] = (key[1].entries,) + key[1].tensor_shape, key[1].tensor_dtype, False
        for t in main.variables:
            if t._remote is not None:
                buffer = t._remote[0]
                mapped = bool(buffer.meta_shape) or t.shape_on_host != t.shape
                mapped = mapped or buffer in state and state[buffer][2]
                state[buffer] = (buffer.entries,) + buffer.tensor_shape, buffer.tensor_dtype, mapped
        facts = [(mapped and self._replicas > 1, False) for _, _, mapped in state.values()]
        while True:
            tracing = self._tracing((1,) * (len(self._loads) + len(self._stores)), True)
            fault = tracing.effects.get(xla_faults.KEY)
            fault = fault and Cell(fault.value)  # the cell changes
            values = [Value(None, mapped) for mapped, _ in facts]
            cells = self._follow(tracing, dict(zip(state, values)))
            after = [
                (before.mapped or cells[key].value.mapped, cells[key].value is not before)
                for key, before in zip(state, values)
            ]
            is_stable = [mapped for mapped, _ in after] == [mapped for mapped, _ in facts]
            facts = after
            if is_stable:
                self._has_faults = fault is not None and tracing.effects[xla_faults.KEY].value is not fault.value
                break
        return [
            Slot(key, tuple(shape), storage_dtype(dtype), mapped, written)
            for (key, (shape, dtype, _)), (mapped, written) in zip(state.items(), facts)
        ]

    def _tracing(self, counts: Sequence[int], is_abstract: bool) -> Tracing:
        tracing = Tracing(self._facts, self._replicas, self._devices.is_spread, is_abstract)
        tracing.print_errors = self._errors
        if xla_faults.KEY in self._facts.effects(self._ir.main_graph):
            tracing.effects[xla_faults.KEY] = Cell(Value(None if is_abstract else xla_faults.none()))
        is_mapped = self._replicas > 1
        for stream, count in zip(self._loads, counts):
            tracing.loaded[stream] = Value(None, is_mapped), count
            tracing.effects["host_load", stream] = Cell(Value(None if is_abstract else np.zeros((), np.int32)))
        for stream, count in zip(self._stores, counts[len(self._loads) :]):
            tracing.slots[stream] = count
            tracing.effects["host_store", stream] = Cell(Value(None if is_abstract else np.zeros((), np.int32)))
            shape = ((count,) if count > 1 else ()) + stream.shape
            zeros = None if is_abstract else np.zeros(shape, storage_dtype(stream.dtype))
            tracing.effects["stored", stream] = Cell(Value(zeros))
        for stream in self._counted(counts):
            tracing.effects["done", stream] = Cell(Value(None if is_abstract else np.zeros((), np.int32)))
        return tracing

    def _counted(self, counts: Sequence[int]) -> List[Any]:
        """The streams for which it depends on the run how many of their slots are stored to."""
        slots = zip(self._stores, counts[len(self._loads) :])
        return [s for s, count in slots if self._facts.stores[s][0] < min(count, self._facts.stores[s][1])]

    def _follow(self, tracing: Tracing, values: Mapping[Any, Value]) -> Dict[Any, Cell]:
        """Trace the main graph from this state; return the state after it."""
        cells = {key: Cell(value) for key, value in values.items()}
        for key, cell in cells.items():
            if not isinstance(key, (Variable, Shard)):
                tracing.effects["remote", key] = cell
        tracing.follow(self._ir.main_graph, dict(cells))
        return {key: tracing.effects.get(("remote", key), cell) for key, cell in cells.items()}

    def _for_transfers(self, counts: Tuple[int, ...]) -> Compiled:
        found = self._compiled.get(counts)
        if found is None:
            found = self._compiled[counts] = self._compile(counts)
        return found

    def _compile(self, counts: Tuple[int, ...]) -> Compiled:
        is_mapped = self._replicas > 1
        counted = self._counted(counts)
        stored_mapped: List[bool] = []

        def program(written: List[Any], kept: List[Any], constants: List[Any], loaded: List[Any]) -> Any:
            tracing = self._tracing(counts, False)
            tracing.makes_parts = self._has_parts
            tracing.constants.update(zip(self._constants, constants))
            for stream, array, count in zip(self._loads, loaded, counts):
                tracing.loaded[stream] = Value(array, is_mapped), count
            values = {}
            for group, array in zip(self._written + self._kept, written + kept):
                for slot, part in zip(group.slots, group.unpacked(array)):
                    values[slot.key] = Value(part, group.mapped)
            cells = self._follow(tracing, values)
            results = []
            for group in self._written:
                parts = [tracing.promoted(cells[slot.key].value, group.mapped).array for slot in group.slots]
                results.append(group.packed(parts))
            stored = [tracing.effects["stored", stream].value for stream in self._stores]
            stored += [tracing.effects["done", stream].value for stream in counted]
            if self._devices.is_spread:
                stored = [tracing.promoted(value, True) for value in stored]
            stored_mapped[:] = [value.mapped for value in stored]
            results += [value.array for value in stored]
            return results + [xla_faults.first(tracing)] if self._has_faults else results

        avals = [
            [group.aval for group in self._written],
            [group.aval for group in self._kept],
            [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self._constants.values()],
            [self._stream_aval(stream, count) for stream, count in zip(self._loads, counts)],
        ]
        compiled: Any
        with enable_x64(True):
            if self._has_parts:
                compiled = xla_parts.Program(jax.make_jaxpr(program)(*avals), self._donated, self._options)
            else:
                jitted = self._jit(program, avals, len(counted))
                options = {"compiler_options": self._options} if self._options else {}
                compiled = jitted.lower(*avals).compile(**options)
        return Compiled(
            compiled,
            list(zip(self._stores, stored_mapped)),
            tuple([self._facts.stores[stream][0] for stream in self._stores]),
            list(zip(map(self._stores.index, counted), stored_mapped[len(self._stores) :])),
        )

    def _jit(self, program: Any, avals: Any, counted: int) -> Any:
        donated = (0,) if self._donated else ()
        if not self._devices.is_spread:
            return jax.jit(program, donate_argnums=donated)
        sharding = self._devices.sharding
        written = [sharding[group.mapped] for group in self._written]
        ins = (
            written,
            [sharding[group.mapped] for group in self._kept],
            [sharding[False] for _ in self._constants],
            [sharding[True] for _ in self._loads],
        )
        outs = written + [sharding[True]] * (len(self._stores) + counted) + [sharding[False]] * self._has_faults
        return jax.jit(program, in_shardings=ins, out_shardings=outs, donate_argnums=donated)

    def _stream_aval(self, stream: Any, count: int) -> Any:
        lead = ((self._replicas,) if self._replicas > 1 else ()) + ((count,) if count > 1 else ())
        return jax.ShapeDtypeStruct(lead + stream.shape, storage_dtype(stream.dtype))


def compile_program(ir: Any) -> Executable:
    """Compile the main graph of an Ir and the graphs that it calls.

    Raises:
        NotImplementedError: If there is no kernel for an op.
        ValueError: If the replicas cannot be spread over the devices of several processes.
        popart_exception: If something is written through a `concat_` of tensors that share elements.
    """
    return Executable(ir)


def _stored(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array as the engine keeps it: 8-bit floats are bytes to it."""
    return _viewed(array, storage_dtype(dtype))


def _viewed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype is dtype or array.dtype == dtype else array.view(dtype)


def _has_dtype(graphs: Any, size: int) -> bool:
    """Whether some tensor has floats or integers of this size: 8 bytes, or floats of 2."""
    return any(
        t.dtype.as_numpy().itemsize == size and (size == 8 or t.dtype.name == "float16")
        for graph in graphs
        for t in graph.tensors
    )


def _check_kinds(graphs: Any) -> None:
    for graph in graphs:
        for op in graph.ops:
            if op.kind not in KERNELS and op.kind not in SPECIAL:
                made = ", ".join(t.id for t in op.outputs) or "no tensor"
                raise NotImplementedError(f"the host has no kernel for the op {op.kind!r}, which makes {made}.")
