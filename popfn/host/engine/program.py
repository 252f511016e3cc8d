"""The generated program: its text, the names it is run with, and the memory behind them."""

import itertools
import keyword
import re
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import numpy as np

from popfn.host.engine.memory import uninitialised, zeros
from popfn.host.kernels.layout import Shape, c_strides, canonical_strides, is_contiguous
from popfn.host.tensor import Variable

# Names that the program's own must differ from.
_RESERVED = frozenset([*keyword.kwlist, *dir(np), "chain", "main", "range", "repeat"])


class Memory:
    """What arrays of the program are views of: a buffer, an array that exists, or a local name of a function."""

    __slots__ = ("name", "size", "array", "local_type")

    def __init__(
        self, name: str, size: int = 0, array: Any = None, local_type: Optional[Tuple[Shape, np.dtype]] = None
    ) -> None:
        self.name = name
        self.size = size  # of a buffer, in bytes
        self.array = array
        self.local_type = local_type  # the shape and dtype of what a local name stands for


class Operand:
    """An array that a line of the program names."""

    __slots__ = ("name", "shape", "dtype", "strides", "offset", "memory", "literal")

    def __init__(
        self, name: str, shape: Shape, dtype: np.dtype, strides: Tuple[int, ...], offset: int, memory: Memory
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.offset = offset
        self.memory = memory
        self.literal: Any = None  # the value, if it is a constant of one element

    @property
    def contiguous(self) -> bool:
        """Whether its elements are in C order without gaps."""
        return is_contiguous(self.shape, self.strides, self.dtype.itemsize)


class Journal:
    """The old values of what a run changes in remote memory, to go back to if it fails."""

    def __init__(self) -> None:
        self._kept: Dict[Tuple[int, int], Tuple[np.ndarray, np.ndarray]] = {}

    def keep(self, entry: np.ndarray) -> np.ndarray:
        """Copy an entry before the run's first change of it; return it."""
        key = entry.__array_interface__["data"][0], entry.nbytes
        if key not in self._kept:
            self._kept[key] = entry, entry.copy()
        return entry

    def undo(self) -> None:
        """Give all entries their old values. The last copy goes first: entries of all replicas and of one overlap."""
        for entry, old in reversed(list(self._kept.values())):
            np.copyto(entry, old)

    def clear(self) -> None:
        """Forget the old values."""
        self._kept.clear()


class Uneven:
    """A stream in a run of several replicas, each of which has its own place in it."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = [array.view(np.uint8) if array.dtype.fields else array for array in arrays]
        self._places = [0] * len(arrays[0])

    def load(self, taking: Optional[np.ndarray] = None) -> np.ndarray:
        """A row for each replica; those that are `taking` theirs move on."""
        rows = [self._arrays[place][replica] for replica, place in enumerate(self._places)]
        self._move(taking)
        return np.stack(rows)

    def store(self, value: np.ndarray, taking: Optional[np.ndarray] = None) -> None:
        """Copy a value, or one with a row for each replica, to the replicas that are `taking` it."""
        places = list(self._places)
        for replica in self._move(taking):
            array = self._arrays[places[replica]]
            np.copyto(array[replica, ...], value[replica] if value.ndim == array.ndim else value)

    def _move(self, taking: Optional[np.ndarray]) -> List[int]:
        """Move on, and back to the start at the end; return the replicas that do."""
        moving = [replica for replica in range(len(self._places)) if taking is None or taking[replica]]
        for replica in moving:
            self._places[replica] = (self._places[replica] + 1) % len(self._arrays)
        return moving


class Program:
    """The generated module: its text, and the names it is run with."""

    def __init__(
        self, replicas: int = 1, varying: FrozenSet[Any] = frozenset(), uneven: FrozenSet[Any] = frozenset()
    ) -> None:
        self.replicas = replicas
        self.varying = varying  # the remote buffers whose entries have a leading axis, the replicas
        self.uneven = uneven  # the streams of which not all replicas take the same transfers
        self.lines: List[str] = []
        self.names: Dict[str, Any] = {}
        self.functions: Dict[str, Any] = {}  # of NumPy
        self.bound: Dict[str, Operand] = {}
        self.operands: Dict[Any, Operand] = {}
        self.constants: Dict[Any, Operand] = {}
        self.buffers: List[Memory] = []
        self.variables: Dict[Variable, Memory] = {}
        self.remotes: Dict[Any, Memory] = {}
        self.callables: Dict[Any, str] = {}  # the names of graphs and streams
        self.journal = Journal()
        self.overlaps: Dict[Any, Dict[Tuple[int, int], str]] = {}  # see `aliasing.Aliasing`
        self.within: Set[Any] = set()  # the ops on remote buffers whose offsets are in range whatever happens
        self.may_fail = True  # whether a run may find a fault, after which remote memory has to be as it was
        self.keeper: Optional[str] = None  # the name of its function `keep`, if it is used

    def unique(self, wanted: str) -> str:
        """A name that nothing has yet."""
        if not (wanted.isascii() and wanted.isidentifier()):
            wanted = re.sub(r"\W+", "_", wanted, flags=re.ASCII)
            wanted = wanted if wanted.isidentifier() else "t" + wanted
        name, k = wanted, 1
        while name in self.names or name in _RESERVED:
            k += 1
            name = f"{wanted}_{k}"
        self.names[name] = None
        return name

    def function(self, name: str) -> str:
        """Bind a function of NumPy."""
        if name not in self.functions:
            self.functions[name] = getattr(np, name)
        return name

    def bind(self, wanted: str, value: Any) -> str:
        """Bind any value."""
        name = self.unique(wanted)
        self.names[name] = value
        return name

    def buffer(self, size: int) -> Memory:
        """A new buffer. It gets its memory when all sizes are known."""
        memory = Memory(f"b{len(self.buffers)}", size)
        self.buffers.append(memory)
        return memory

    def variable(self, variable: Variable) -> Memory:
        """The storage of a variable."""
        found = self.variables.get(variable)
        if found is None:
            array = zeros(variable.shape, variable.dtype.as_numpy())
            found = self.variables[variable] = Memory(self.unique("v_" + variable.name), 0, array)
        return found

    def lead(self, buffer: Any) -> Shape:
        """The leading axis of the entries of a remote buffer, if they have one."""
        return (self.replicas,) if buffer in self.varying else ()

    def remote(self, buffer: Any) -> Memory:
        """The memory of a remote buffer: its entries one after the other."""
        found = self.remotes.get(buffer)
        if found is None:
            shape = (buffer.entries,) + self.lead(buffer) + buffer.tensor_shape
            array = zeros(shape, buffer.tensor_dtype.as_numpy())
            found = self.remotes[buffer] = Memory(self.unique(f"remote_{buffer.remote_buffer_id}"), 0, array)
        return found

    def constant(self, value: Any, dtype: np.dtype) -> Operand:
        """A constant of one element."""
        array = np.asarray(value).astype(dtype)
        key = array.tobytes(), dtype
        found = self.constants.get(key)
        if found is None:
            text = str(array[()])
            text = text[:-2] if text.endswith(".0") else text
            text = text.replace("e-", "em").replace("e+", "e").replace("-", "minus_").replace(".", "p")
            found = self.constants[key] = self.constant_array(f"{dtype}_{text}", array)
            found.literal = value
        return found

    def constant_array(self, name: str, array: np.ndarray) -> Operand:
        """A constant array."""
        memory = Memory(self.unique(name), 0, array)
        return self.operand(memory, array.shape, array.dtype, c_strides(array.shape, array.itemsize), 0)

    def operand(self, memory: Memory, shape: Shape, dtype: np.dtype, strides: Tuple[int, ...], offset: int) -> Operand:
        """The view of a memory with this layout."""
        strides = canonical_strides(shape, strides, dtype.itemsize)
        key = (memory, shape, dtype, strides, offset)
        found = self.operands.get(key)
        if found is None:
            name = memory.name
            if name in self.bound or memory.array is None:
                name += "_" + ("x".join(map(str, shape)) or "scalar")
                if not is_contiguous(shape, strides, dtype.itemsize):
                    is_transposed = is_contiguous(shape[::-1], strides[::-1], dtype.itemsize)
                    name += "_T" if is_transposed else "_view"
                name = self.unique(name)
            found = self.operands[key] = self.bound[name] = Operand(name, shape, dtype, strides, offset, memory)
        return found

    def finish(self) -> Tuple[str, Callable[..., None]]:
        """Make the buffers and views, and run the module's text."""
        for buffer in self.buffers:
            buffer.array = uninitialised(buffer.size)
        names = dict(self.names, chain=itertools.chain, repeat=itertools.repeat, ndarray=np.ndarray, **self.functions)
        for name, x in self.bound.items():
            names[name] = np.ndarray(x.shape, x.dtype, _bytes(x.memory.array), x.offset, x.strides)
        used = ", ".join(sorted(self.functions))
        imports = f"from itertools import chain, repeat\nfrom numpy import {used}\n"
        source = imports + "\n".join(self.lines) + "\n"
        exec(compile("\n".join(["", "", *self.lines, ""]), "<popfn.host program>", "exec"), names)
        return source, names["main"]


def _bytes(array: np.ndarray) -> np.ndarray:
    """The array as its own bytes: np.ndarray takes its memory from any array but one of 8-bit floats."""
    return array.reshape(-1).view(np.uint8)


class Pool:
    """The buffers of the graphs at one depth of calls."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.all: List[Memory] = []
        self.free: List[Memory] = []

    def take(self, size: int) -> Memory:
        """A free buffer of at least `size` bytes: the one freed last of just this size, or the best fit."""
        best: Optional[Memory] = None
        for memory in reversed(self.free):
            if memory.size == size:
                best = memory
                break
            # One that is much too large is kept for others, one that is a little too small grows.
            if size <= 4 * memory.size and memory.size <= 4 * size + 1024:
                if best is None or abs(memory.size - size) < abs(best.size - size):
                    best = memory
        if best is None:
            best = self.program.buffer(size)
            self.all.append(best)
        else:
            self.free.remove(best)
            best.size = max(best.size, size)
        return best

    def give(self, memory: Memory) -> None:
        """Take a buffer back."""
        self.free.append(memory)

    def reset(self) -> None:
        """Take all buffers back."""
        self.free = list(self.all)
