"""From an Ir to a program: straight-line Python over NumPy, with every buffer and view made beforehand.

Each graph becomes one function. Its parameters are its inputs, the arrays that take its outputs, and the streams that
it uses. Everything that does not change from run to run (buffers, variables, constants, views of them) is a global of
the generated module. Graphs that cannot run at the same time, those at the same depth of calls, share buffers.
"""

import itertools
import keyword
import math
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from popfn.host.engine.layout import Shape, c_strides, is_contiguous, sliced
from popfn.host.engine.plan import (
    CONSTANT,
    INPUT,
    LOADED,
    LOCAL,
    VARIABLE,
    Facts,
    Place,
    Plan,
    Root,
    Step,
    plan_graph,
    storage_dtype,
)
from popfn.host.engine.values import window
from popfn.host.errors import popart_exception
from popfn.host.tensor import Variable

_RESERVED = frozenset([*keyword.kwlist, *dir(np), "cycle", "main"])
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


class Executable:
    """A compiled program and its device storage.

    Attributes:
        source: The generated Python.
    """

    def __init__(self, source: str, main: Callable[..., None], storage: Dict[Variable, np.ndarray]) -> None:
        self.source = source
        self._main = main
        self._storage = storage

    def run(self, inputs: Mapping[Any, Sequence[np.ndarray]], outputs: Mapping[Any, Sequence[np.ndarray]]) -> None:
        """Run the program once. If it raises, the variables are as they were.

        Args:
            inputs: For each stream that the program loads, the tensors in order: C-contiguous arrays of the stream's
                shape and dtype.
            outputs: For each stream that it stores to, the arrays to fill.
        """
        with np.errstate(all="ignore"):
            self._main(inputs, outputs)

    def write(self, variable: Variable, array: np.ndarray) -> None:
        """Set the value of a variable on the device."""
        np.copyto(self._storage[variable], array)

    def read(self, variable: Variable) -> np.ndarray:
        """Return a copy of the value of a variable on the device."""
        return self._storage[variable].copy()


def compile_program(ir: Any) -> Executable:
    """Compile the main graph of an Ir and the graphs that it calls.

    Raises:
        NotImplementedError: If there is no kernel for an op.
    """
    graphs = _callees_first(ir.main_graph)
    depth = {graph: 0 for graph in graphs}
    by_reference: Dict[Any, Set[int]] = {graph: set() for graph in graphs}
    for graph in reversed(graphs):
        for op in graph.ops:
            if op.kind == "call":
                called = op.attrs["graph"]
                depth[called] = max(depth[called], depth[graph] + 1)
                by_reference[called].update(op.attrs["modified"])
    facts: Dict[Any, Facts] = {}
    program = _Program()
    pools: Dict[int, _Pool] = {}
    for graph in graphs:
        plan = plan_graph(graph, by_reference[graph], facts)
        facts[graph] = plan.facts
        _Writer(program, pools.setdefault(depth[graph], _Pool(program)), plan, facts).write()
    storage = {variable: program.variable(variable).array for variable in ir.main_graph.variables}
    source, main = program.finish()
    return Executable(source, main, storage)


def _callees_first(main: Any) -> List[Any]:
    ordered: Dict[Any, None] = {}

    def visit(graph: Any) -> None:
        if graph not in ordered:
            for called in graph.called_graphs:
                visit(called)
            ordered[graph] = None

    visit(main)
    return list(ordered)


class _Memory:
    """What arrays of the program are views of: a buffer, an array that exists, or a local name of a function."""

    __slots__ = ("name", "size", "array", "shape", "dtype", "is_local")

    def __init__(self, name: str, size: int = 0, array: Any = None) -> None:
        self.name = name
        self.size = size
        self.array = array
        self.is_local = False


class Operand:
    """An array that a line of the program names."""

    __slots__ = ("name", "shape", "dtype", "strides", "offset", "memory", "literal")

    def __init__(
        self, name: str, shape: Shape, dtype: np.dtype, strides: Tuple[int, ...], offset: int, memory: _Memory
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


class _Program:
    """The generated module: its text, and the names it is run with."""

    def __init__(self) -> None:
        self.lines: List[str] = []
        self.names: Dict[str, Any] = {}
        self.functions: Dict[str, Any] = {}  # of NumPy
        self.bound: Dict[str, Operand] = {}
        self.operands: Dict[Any, Operand] = {}
        self.constants: Dict[Any, Operand] = {}
        self.buffers: List[_Memory] = []
        self.variables: Dict[Variable, _Memory] = {}
        self.callables: Dict[Any, str] = {}  # the names of graphs and streams

    def unique(self, wanted: str) -> str:
        """A name that nothing has yet."""
        name = wanted = re.sub(r"\W+", "_", wanted) or "t"
        if name[0].isdigit():
            name = wanted = "t" + name
        for k in itertools.count(2):
            if name not in self.names and name not in _RESERVED:
                break
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

    def buffer(self, size: int) -> _Memory:
        """A new buffer. It gets its memory when all sizes are known."""
        memory = _Memory(f"b{len(self.buffers)}", size)
        self.buffers.append(memory)
        return memory

    def variable(self, variable: Variable) -> _Memory:
        """The storage of a variable."""
        found = self.variables.get(variable)
        if found is None:
            array = _aligned(math.prod(variable.shape) * variable.dtype.as_numpy().itemsize)
            array[...] = 0
            array = array.view(variable.dtype.as_numpy()).reshape(variable.shape)
            found = self.variables[variable] = _Memory(self.unique("v_" + variable.name), 0, array)
        return found

    def constant(self, value: Any, dtype: np.dtype) -> Operand:
        """A constant of one element."""
        key = (value, math.copysign(1, value), dtype)
        found = self.constants.get(key)
        if found is None:
            with np.errstate(over="ignore"):
                array = np.asarray(value).astype(dtype)
            text = repr(value).replace("-", "minus_").replace(".", "p").replace("+", "")
            found = self.constants[key] = self.constant_array(f"{dtype}_{text}", array)
            found.literal = value
        return found

    def constant_array(self, name: str, array: np.ndarray) -> Operand:
        """A constant array."""
        memory = _Memory(self.unique(name), 0, array)
        return self.operand(memory, array.shape, array.dtype, c_strides(array.shape, array.itemsize), 0)

    def operand(
        self, memory: _Memory, shape: Shape, dtype: np.dtype, strides: Tuple[int, ...], offset: int
    ) -> Operand:
        """The view of a memory with this layout."""
        key = (memory, shape, dtype, strides, offset)
        found = self.operands.get(key)
        if found is None:
            name = memory.name
            if name in self.bound or memory.array is None:
                name += "_" + ("x".join(map(str, shape)) or "scalar")
                if len(shape) > 1 and is_contiguous(shape[::-1], strides[::-1], dtype.itemsize):
                    name += "_T"
                name = self.unique(name)
            found = self.operands[key] = self.bound[name] = Operand(name, shape, dtype, strides, offset, memory)
        return found

    def finish(self) -> Tuple[str, Callable[..., None]]:
        """Make the buffers and views, and run the module's text."""
        for buffer in self.buffers:
            buffer.array = _aligned(buffer.size)
        names = dict(self.names, cycle=itertools.cycle, ndarray=np.ndarray, **self.functions)
        for name, x in self.bound.items():
            names[name] = np.ndarray(x.shape, x.dtype, _bytes(x.memory.array), x.offset, x.strides)
        imports = "from itertools import cycle\nfrom numpy import {}\n".format(", ".join(sorted(self.functions)))
        source = imports + "\n".join(self.lines) + "\n"
        exec(compile("\n".join(["", "", *self.lines, ""]), "<popfn.host program>", "exec"), names)
        return source, names["main"]


def _aligned(size: int) -> np.ndarray:
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def _bytes(array: np.ndarray) -> np.ndarray:
    """The array as its own bytes: np.ndarray takes its memory from any array but one of 8-bit floats."""
    return array.reshape(-1).view(np.uint8)


class _Pool:
    """The buffers of the graphs at one depth of calls."""

    def __init__(self, program: _Program) -> None:
        self.program = program
        self.all: List[_Memory] = []
        self.free: List[_Memory] = []

    def take(self, size: int) -> _Memory:
        """A free buffer of at least `size` bytes: the one freed last of just this size, or the best fit."""
        best: Optional[_Memory] = None
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

    def give(self, memory: _Memory) -> None:
        """Take a buffer back."""
        self.free.append(memory)

    def reset(self) -> None:
        """Take all buffers back."""
        self.free = list(self.all)


class Site:
    """What an emitter sees of one step: operands, and ways to add lines."""

    __slots__ = ("writer", "op", "kernel", "ins", "outs", "taken")

    def __init__(self, writer: "_Writer", step: Step, ins: List[Operand], outs: List[Operand]) -> None:
        self.writer = writer
        self.op = step.op
        self.kernel = step.kernel
        self.ins = ins
        self.outs = outs
        self.taken: List[_Memory] = []

    @property
    def out(self) -> Operand:
        """The first output."""
        return self.outs[0]

    def line(self, text: str) -> None:
        """Add a line."""
        self.writer.line(text)

    def function(self, name: str) -> str:
        """Bind a function of NumPy and return its name."""
        return self.writer.program.function(name)

    def apply(self, name: str, *operands: Operand, out: Optional[Operand] = None, options: str = "") -> None:
        """Add a call of a ufunc."""
        arguments = ", ".join([x.name for x in operands])
        self.writer.line(f"{self.function(name)}({arguments}, out={(out or self.outs[0]).name}{options})")

    def copy(self, target: Operand, source: Operand) -> None:
        """Add a copy, with conversion, unless both are the same."""
        if target is not source:
            unsafe = "" if np.can_cast(source.dtype, target.dtype, "same_kind") else ', casting="unsafe"'
            self.line(f"{self.function('copyto')}({target.name}, {source.name}{unsafe})")

    def constant(self, value: Any, dtype: np.dtype) -> Operand:
        """A constant of one element."""
        return self.writer.program.constant(value, dtype)

    def scratch(self, shape: Shape, dtype: np.dtype) -> Operand:
        """Memory for the duration of the step."""
        memory = self.writer.pool.take(math.prod(shape) * dtype.itemsize)
        self.taken.append(memory)
        return self.writer.operand(memory, shape, dtype, c_strides(shape, dtype.itemsize), 0)

    def compact(self, x: Operand) -> Operand:
        """A copy in C order."""
        copied = self.scratch(x.shape, x.dtype)
        self.copy(copied, x)
        return copied

    def bits(self, x: Operand, dtype: np.dtype) -> Operand:
        """The same elements, read as another dtype of equal size."""
        return self.writer.operand(x.memory, x.shape, dtype, x.strides, x.offset)

    def reshaped(self, x: Operand, shape: Shape) -> Operand:
        """A contiguous operand in another shape, in which one axis may be -1."""
        if -1 in shape:
            rest = -math.prod(shape)
            shape = tuple([math.prod(x.shape) // rest if n == -1 else n for n in shape])
        return self.writer.operand(x.memory, shape, x.dtype, c_strides(shape, x.dtype.itemsize), x.offset)

    def section(self, x: Operand, axis: int, start: int, stop: int) -> Operand:
        """The part of an operand from `start` to `stop` along an axis."""
        shape = x.shape[:axis] + (stop - start,) + x.shape[axis + 1 :]
        return self.writer.operand(x.memory, shape, x.dtype, x.strides, x.offset + start * x.strides[axis])

    def bind_value(self) -> str:
        """Bind the kernel's value as a function of the operands' arrays."""
        value, op = self.kernel.value, self.op
        assert value is not None
        return self.writer.program.bind(op.kind, lambda *arrays: value(np, op, *arrays))

    def bind_window(self) -> str:
        """Bind the function that gives the slices of a dynamic window."""
        op = self.op
        return self.writer.program.bind("window", lambda t, index: window(op, t, index))


class _Writer:
    """Writes one graph down, as it decides which buffer holds what."""

    def __init__(self, program: _Program, pool: _Pool, plan: Plan, facts: Dict[Any, Facts]) -> None:
        self.program = program
        self.pool = pool
        self.plan = plan
        self.facts = facts
        self.note = ""
        self.indent = "    "
        self.locals: Dict[Any, Operand] = {}
        self.streams: Dict[Any, str] = {}
        self.results: List[_Memory] = []
        self.deaths: List[List[Root]] = [[] for _ in plan.steps]
        for root in plan.roots:
            if root.kind == LOCAL and root.home is None and not root.is_output and root.last >= 0:
                self.deaths[root.last].append(root)

    def line(self, text: str) -> None:
        self.program.lines.append(f"{self.indent}{text}{self.note}")

    # The frame of the function

    def write(self) -> None:
        """Write the function."""
        graph, plan = self.plan.graph, self.plan
        is_main = graph is graph.main_graph
        self.pool.reset()
        name = "main" if is_main else self.program.unique(graph.name)
        self.program.callables[graph] = name
        for place in plan.inputs:
            place.root.memory = self.local_memory(place.label.rsplit("/", 1)[-1], place.shape, place.dtype)
        self.results = [
            self.local_memory(f"out_{i}", place.shape, place.dtype) for i, place in enumerate(plan.outputs)
        ]
        for stream in plan.facts.streams:
            self.streams[stream] = self.program.unique("next_" + stream.tensor_id)
        if is_main:
            self.program.lines += ["", "", "def main(inputs, outputs):"]
            self.open_streams()
        else:
            parameters = [place.root.memory.name for place in plan.inputs] + [m.name for m in self.results]
            parameters += self.streams.values()
            self.program.lines += ["", "", f"def {name}({', '.join(parameters)}):"]
        if plan.unsafe:
            self.write_guarded()
        else:
            self.write_steps()

    def open_streams(self) -> None:
        loads = {op.attrs["stream"] for g in self.program.callables for op in g.ops if op.kind == "host_load"}
        for stream, name in self.streams.items():
            key = self.program.bind("stream_" + stream.tensor_id, stream)
            arrays = f"{'inputs' if stream in loads else 'outputs'}[{key}]"
            self.line(f"{name} = cycle({arrays}).__next__")

    def write_guarded(self) -> None:
        """Write the steps so that variables which they modify early get their values back if a later one raises."""
        pairs = []
        for root in self.plan.unsafe:
            operand = self.operand_of(root.first)
            saved = self.program.buffer(root.size)
            first = root.first
            pairs.append((operand, self.operand(saved, first.shape, first.dtype, first.strides, 0)))
        copy = self.program.function("copyto")
        for operand, kept in pairs:
            self.line(f"{copy}({kept.name}, {operand.name})")
        self.line("try:")
        self.indent = "        "
        self.write_steps()
        self.indent = "    "
        self.line("except BaseException:")
        for operand, kept in pairs:
            self.line(f"    {copy}({operand.name}, {kept.name})")
        self.line("    raise")

    def write_steps(self) -> None:
        start = len(self.program.lines)
        in_commit = False
        for position, step in enumerate(self.plan.steps):
            if step.is_commit and not in_commit:
                in_commit = True
                self.line("# From here on the state changes, and nothing fails.")
            if not step.is_done:
                label = ", ".join(place.label for place in step.outs)
                self.note = "  # {}{}".format(step.op.kind if step.op else "copy", label and " -> " + label)
                self.write_step(position, step)
            for root in self.deaths[position]:
                if root.memory is not None:
                    self.pool.give(root.memory)
                    root.memory = None
        self.note = "  # output"
        for place, memory in zip(self.plan.outputs, self.results):
            result = self.operand(
                memory, place.shape, place.dtype, c_strides(place.shape, place.dtype.itemsize), 0
            )
            value = self.operand_of(place)
            if value is not result:
                self.line(f"{self.program.function('copyto')}({result.name}, {value.name})")
        self.note = ""
        if len(self.program.lines) == start:
            self.line("pass")

    # Operands

    def local_memory(self, wanted: str, shape: Shape, dtype: np.dtype) -> _Memory:
        """Memory that a local name of the function stands for: an array in C order."""
        memory = _Memory(self.program.unique(wanted))
        memory.is_local, memory.shape, memory.dtype = True, shape, dtype
        strides = c_strides(shape, dtype.itemsize)
        whole = Operand(memory.name, shape, dtype, strides, 0, memory)
        self.locals[memory, shape, dtype, strides, 0] = whole
        return memory

    def operand(
        self, memory: _Memory, shape: Shape, dtype: np.dtype, strides: Tuple[int, ...], offset: int
    ) -> Operand:
        """The view of a memory with this layout; of a local one it is made where it is first used."""
        if not memory.is_local:
            return self.program.operand(memory, shape, dtype, strides, offset)
        key = (memory, shape, dtype, strides, offset)
        found = self.locals.get(key)
        if found is None:
            name = self.program.unique(memory.name + "_" + ("x".join(map(str, shape)) or "scalar"))
            found = self.locals[key] = Operand(name, shape, dtype, strides, offset, memory)
            self.line(f"{name} = {_view_text(found)}")
        return found

    def operand_of(self, place: Place) -> Operand:
        """The array of a tensor."""
        memory = self.memory_of(place.root)
        found = self.operand(memory, place.shape, place.dtype, place.strides, place.offset)
        if place.root.kind == CONSTANT and found.literal is None and math.prod(place.shape) == 1:
            found.literal = place.root.key.reshape(-1)[place.offset // place.dtype.itemsize].item()
        return found

    def memory_of(self, root: Root) -> _Memory:
        if root.home is not None:
            return self.results[root.home] if isinstance(root.home, int) else self.memory_of(root.home)
        if root.memory is None:
            if root.kind == VARIABLE:
                root.memory = self.program.variable(root.key)
            elif root.kind == CONSTANT:
                root.memory = _Memory(self.program.unique("c_" + root.label.rsplit("/", 1)[-1]), 0, root.key)
            else:
                root.memory = self.pool.take(root.size)
        return root.memory

    # Steps

    def write_step(self, position: int, step: Step) -> None:
        op, kernel = step.op, step.kernel
        if op is not None and op.kind == "host_load":
            self.write_load(step)
            return
        if op is not None and op.kind == "host_store":
            self.write_store(step)
            return
        ins = [self.operand_of(place) for place in step.ins]
        if not step.modified and kernel.inplace:
            self.take_over(position, step)
        site = Site(self, step, ins, [self.operand_of(place) for place in step.outs])
        if op is not None and op.kind == "call":
            self.write_call(position, step, site)
        elif kernel.view is not None:
            self.write_view(step, site)
        else:
            if kernel.writes:  # an operand that overlaps the target otherwise than element by element
                for k, place in enumerate(step.ins[1:], 1):
                    if place.root.uses is step.ins[0].root.uses and not place.same_as(step.ins[0]):
                        ins[k] = site.compact(ins[k])
            self.emit(site)
        for memory in site.taken:
            self.pool.give(memory)

    def take_over(self, position: int, step: Step) -> None:
        """Let the output have the memory of an operand that dies here."""
        out = step.outs[0]
        if out.root.home is not None:
            return
        for i in step.kernel.inplace:
            if i >= len(step.ins):
                break
            x = step.ins[i]
            root = x.root
            if (
                root.kind == LOCAL
                and root.home is None
                and not root.is_output
                and root.last == position
                and x.shape == out.shape
                and x.dtype == out.dtype
                and x.is_whole
                and all(y.root is not root or y.same_as(x) for y in step.ins)
            ):
                out.root.memory, root.memory = root.memory, None
                return

    def emit(self, site: Site) -> None:
        """Write the lines of the kernel; float16 in float32 where it says so."""
        half, single = np.dtype(np.float16), np.dtype(np.float32)
        if site.kernel.float32 and any(x.dtype == half for x in site.ins + site.outs):
            outs = site.outs
            site.ins = [self.widened(site, x) if x.dtype == half else x for x in site.ins]
            site.outs = [site.scratch(x.shape, single) if x.dtype == half else x for x in outs]
            site.kernel.emit(site)
            for out, wide in zip(outs, site.outs):
                site.copy(out, wide)
        else:
            site.kernel.emit(site)

    def widened(self, site: Site, x: Operand) -> Operand:
        single = np.dtype(np.float32)
        if x.literal is not None:
            return self.program.constant_array(x.name + "_float32", x.memory.array.astype(single).reshape(x.shape))
        wide = site.scratch(x.shape, single)
        site.copy(wide, x)
        return wide

    def write_view(self, step: Step, site: Site) -> None:
        """Copy what the op shows, because it could not share its input's storage."""
        x, place, out = site.ins[0], step.ins[0], site.out
        assert step.kernel.view is not None
        layout = step.kernel.view(step.op, step.index, place)
        if layout is None:
            site.copy(site.reshaped(out, x.shape), x)
        else:
            site.copy(out, self.operand(x.memory, out.shape, x.dtype, layout[0], x.offset + layout[1]))

    def write_load(self, step: Step) -> None:
        (place,) = step.outs
        stream = step.op.attrs["stream"]
        array = self.streams[stream] + "()" + _view_as_bytes(stream)
        if place.root.kind == LOADED:
            place.root.memory = self.local_memory(place.label.rsplit("/", 1)[-1], place.shape, place.dtype)
            self.line(f"{place.root.memory.name} = {array}")
        else:
            self.line(f"{self.program.function('copyto')}({self.operand_of(place).name}, {array})")

    def write_store(self, step: Step) -> None:
        stream = step.op.attrs["stream"]
        array = self.streams[stream] + "()" + _view_as_bytes(stream)
        self.line(f"{self.program.function('copyto')}({array}, {self.operand_of(step.ins[0]).name})")

    def write_call(self, position: int, step: Step, site: Site) -> None:
        called = step.op.attrs["graph"]
        facts, by_reference = self.facts[called], step.op.attrs["modified"]
        arguments: List[str] = []
        back: List[Tuple[Operand, Operand]] = []
        for i, (place, x) in enumerate(zip(step.ins, site.ins)):
            root = place.root
            if i in by_reference:
                if not x.contiguous:
                    self.check_alone(step, i)
                    copied = site.compact(x)
                    if i in facts.written:
                        back.append((x, copied))
                    x = copied
            elif i in facts.written:
                dies = root.kind == LOCAL and root.home is None and not root.is_output and root.last == position
                if not (dies and place.is_whole and sum(y.root is root for y in step.ins) == 1):
                    x = site.compact(x)
            elif not x.contiguous or any(root.uses is other.uses for other in step.modified):
                x = site.compact(x)
            arguments.append(x.name)
        arguments += [x.name for x in site.outs]
        arguments += [self.streams[stream] for stream in facts.streams]
        self.line(f"{self.program.callables[called]}({', '.join(arguments)})")
        for x, copied in back:
            site.copy(x, copied)

    def check_alone(self, step: Step, i: int) -> None:
        """Refuse a copy for an input by reference if another one would have to follow it."""
        written = self.facts[step.op.attrs["graph"]].written
        for k in step.op.attrs["modified"]:
            if k != i and step.ins[k].root.uses is step.ins[i].root.uses and (i in written or k in written):
                raise popart_exception(
                    f"call: the inputs {i} and {k} of {step.op.attrs['graph']!r} are different views of one storage, "
                    f"{step.ins[i].label} and {step.ins[k].label}, passed by reference, and one of them is written. "
                    "Pass the storage once."
                )


def _view_as_bytes(stream: Any) -> str:
    return '.view("uint8")' if storage_dtype(stream.dtype) != stream.dtype.as_numpy() else ""


def _view_text(x: Operand) -> str:
    """An expression for the view of a local array."""
    memory, size = x.memory, x.dtype.itemsize
    text = memory.name
    if memory.dtype != x.dtype:
        text += f'.view("{x.dtype}")'
    if x.offset == 0 and math.prod(x.shape) == math.prod(memory.shape):
        if is_contiguous(x.shape, x.strides, size):
            return text if x.shape == memory.shape else f"{text}.reshape({x.shape})"
        strides = c_strides(memory.shape, size)
        if len(set(strides)) == len(strides) and sorted(x.strides) == sorted(strides):
            order = tuple([strides.index(stride) for stride in x.strides])
            if tuple([memory.shape[axis] for axis in order]) == x.shape:
                return f"{text}.transpose({order})"
    return f'ndarray({x.shape}, "{x.dtype}", {memory.name}, {x.offset}, {x.strides})'
