"""Writes a planned graph down as a function, and decides which buffer holds what."""

import contextlib
import math
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from popfn.host.engine import control, transfer
from popfn.host.engine.plan import CONSTANT, LOCAL, VARIABLE, Facts, Place, Plan, Root, Step
from popfn.host.engine.program import Memory, Operand, Pool, Program, Uneven
from popfn.host.kernels.kernel import Kernel
from popfn.host.kernels.layout import Shape, c_strides, canonical_strides, is_contiguous
from popfn.host.ops._movement import window


class Site:
    """What an emitter sees of one step: operands, and ways to add lines."""

    __slots__ = ("writer", "op", "kernel", "ins", "outs", "taken")

    def __init__(self, writer: "Writer", op: Any, kernel: Kernel, ins: List[Operand], outs: List[Operand]) -> None:
        self.writer = writer
        self.op = op
        self.kernel = kernel
        self.ins = ins
        self.outs = outs
        self.taken: List[Memory] = []

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

    def constant_array(self, name: str, array: np.ndarray) -> Operand:
        """A constant array."""
        return self.writer.program.constant_array(name, array)

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

    def matrix(self, x: Operand) -> Operand:
        """A stack of one matrix as that matrix."""
        return self.writer.operand(x.memory, x.shape[-2:], x.dtype, x.strides[-2:], x.offset)

    def expanded(self, x: Operand, axis: int) -> Operand:
        """An operand with one more axis, of length 1."""
        shape, strides = x.shape[:axis] + (1,) + x.shape[axis:], x.strides[:axis] + (0,) + x.strides[axis:]
        return self.writer.operand(x.memory, shape, x.dtype, strides, x.offset)

    def section(self, x: Operand, axis: int, start: int, stop: int) -> Operand:
        """The part of an operand from `start` to `stop` along an axis."""
        shape = x.shape[:axis] + (stop - start,) + x.shape[axis + 1 :]
        return self.writer.operand(x.memory, shape, x.dtype, x.strides, x.offset + start * x.strides[axis])

    def row(self, x: Operand, index: int) -> Operand:
        """The part of an operand at an index of its first axis."""
        return self.writer.operand(x.memory, x.shape[1:], x.dtype, x.strides[1:], x.offset + index * x.strides[0])

    def nested(self, op: Any, kernel: Kernel, ins: List[Operand], outs: List[Operand]) -> None:
        """Add what a kernel computes for an op from other operands."""
        site = Site(self.writer, op, kernel, ins, outs)
        kernel.emit(site)
        self.writer.give_back(site)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines of the `with` block under a line."""
        self.line(head)
        indent = self.writer.indent
        self.writer.indent = indent + "    "
        yield
        self.writer.indent = indent

    def facts(self, graph: Any) -> Facts:
        """What is known of a graph that the op calls."""
        return self.writer.facts[graph]

    def function_of(self, graph: Any) -> str:
        """The name of the function that a graph has become."""
        return self.writer.program.callables[graph]

    def stream(self, stream: Any) -> str:
        """The name of the function that gives a stream's next array."""
        return self.writer.streams[stream]

    def buffer(self, buffer: Any) -> Memory:
        """The memory of a remote buffer."""
        return self.writer.program.remote(buffer)

    def kept(self, entry: str) -> str:
        """The expression of an entry of remote memory, whose old value is kept if the run may fail."""
        program = self.writer.program
        if not program.may_fail:
            return entry
        if program.keeper is None:
            program.keeper = program.bind("kept", program.journal.keep)
        return f"{program.keeper}({entry})"

    def bind(self, wanted: str, value: Any) -> str:
        """Bind any value."""
        return self.writer.program.bind(wanted, value)

    def bind_value(self) -> str:
        """Bind the kernel's value as a function of the operands' arrays."""
        value, op = self.kernel.value, self.op
        assert value is not None
        return self.writer.program.bind(op.kind, lambda *arrays: value(np, op, *arrays))

    def bind_window(self) -> str:
        """Bind the function that gives the slices of a dynamic window."""
        op = self.op
        return self.writer.program.bind("window", lambda t, index: window(op, t, index))


class Writer:
    """Writes one graph down, as it decides which buffer holds what."""

    def __init__(self, program: Program, pool: Pool, plan: Plan, facts: Dict[Any, Facts]) -> None:
        self.program = program
        self.pool = pool
        self.plan = plan
        self.facts = facts
        self.note = ""
        self.indent = "    "
        self.locals: Dict[Any, Operand] = {}
        self.known: Dict[Place, Operand] = {}
        self.streams: Dict[Any, str] = {}
        self.results: Dict[int, Memory] = {}  # where the outputs go, but for those that are inputs
        self.deaths: List[List[Root]] = [[] for _ in plan.steps]
        for root in plan.roots:
            if root.kind == LOCAL and root.home is None and not root.is_output and root.last >= 0:
                self.deaths[root.last].append(root)

    def line(self, text: str) -> None:
        """Add a line, with a comment that names the step."""
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
        self.results = {
            i: self.local_memory(f"out_{i}", place.shape, place.dtype)
            for i, place in enumerate(plan.outputs)
            if i not in plan.facts.kept
        }
        for stream in plan.facts.streams:
            self.streams[stream] = self.program.unique("next_" + stream.tensor_id)
        if is_main:
            self.program.lines += ["", "", "def main(inputs, outputs):"]
            self._open_streams()
        else:
            parameters = [place.root.memory.name for place in plan.inputs] + [m.name for m in self.results.values()]
            parameters += self.streams.values()
            self.program.lines += ["", "", f"def {name}({', '.join(parameters)}):"]
        if plan.unsafe:
            self._write_guarded()
        else:
            self._write_steps()

    def _open_streams(self) -> None:
        loads = {op.attrs["stream"] for g in self.program.callables for op in g.ops if op.kind == "host_load"}
        for stream, name in self.streams.items():
            key = self.program.bind("stream_" + stream.tensor_id, stream)
            arrays = f"{'inputs' if stream in loads else 'outputs'}[{key}]"
            if stream in self.program.uneven:
                self.line(f"{name} = {self.program.bind('uneven', Uneven)}({arrays})")
            else:
                # One after the other, and from the first again; `cycle` would keep all that it has seen.
                self.line(f"{name} = chain.from_iterable(repeat({arrays})).__next__")

    def _write_guarded(self) -> None:
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
        self._write_steps()
        self.indent = "    "
        self.line("except BaseException:")
        for operand, kept in pairs:
            self.line(f"    {copy}({operand.name}, {kept.name})")
        self.line("    raise")

    def _write_steps(self) -> None:
        start = len(self.program.lines)
        in_commit = False
        for position, step in enumerate(self.plan.steps):
            if step.is_commit and not in_commit:
                in_commit = True
                self.note = ""
                self.line("# From here on the state changes, and nothing fails.")
            if not step.is_done:
                label = ", ".join([place.label for place in step.outs])
                label = label if label.isprintable() else repr(label)
                self.note = "  # {}{}".format(step.op.kind if step.op else "copy", label and " -> " + label)
                self._write_step(position, step)
            for root in self.deaths[position]:
                if root.memory is not None:
                    self.pool.give(root.memory)
                    root.memory = None
        self.note = "  # output"
        for i, memory in self.results.items():
            place = self.plan.outputs[i]
            result = self.operand(memory, place.shape, place.dtype, c_strides(place.shape, place.dtype.itemsize), 0)
            value = self.operand_of(place)
            if value is not result:
                self.line(f"{self.program.function('copyto')}({result.name}, {value.name})")
        self.note = ""
        if all(line.lstrip().startswith("#") for line in self.program.lines[start:]):
            self.line("pass")

    # Operands

    def local_memory(self, wanted: str, shape: Shape, dtype: np.dtype) -> Memory:
        """Memory that a local name of the function stands for: an array in C order."""
        memory = Memory(self.program.unique(wanted), local_type=(shape, dtype))
        strides = c_strides(shape, dtype.itemsize)
        whole = Operand(memory.name, shape, dtype, strides, 0, memory)
        self.locals[memory, shape, dtype, strides, 0] = whole
        return memory

    def operand(self, memory: Memory, shape: Shape, dtype: np.dtype, strides: Tuple[int, ...], offset: int) -> Operand:
        """The view of a memory with this layout; of a local one it is made where it is first used."""
        if memory.local_type is None:
            return self.program.operand(memory, shape, dtype, strides, offset)
        strides = canonical_strides(shape, strides, dtype.itemsize)
        key = (memory, shape, dtype, strides, offset)
        found = self.locals.get(key)
        if found is None:
            name = self.program.unique(memory.name + "_" + ("x".join(map(str, shape)) or "scalar"))
            found = self.locals[key] = Operand(name, shape, dtype, strides, offset, memory)
            self.line(f"{name} = {_view_text(found)}")
        return found

    def operand_of(self, place: Place) -> Operand:
        """The array of a tensor."""
        found = self.known.get(place)
        if found is None:
            root = place.root
            if root.kind == CONSTANT and not root.first.shape:
                found = self.program.constant(root.key.item(), root.first.dtype)
                root.memory = found.memory
            if found is None or place.shape:
                found = self.operand(self._memory_of(root), place.shape, place.dtype, place.strides, place.offset)
            self.known[place] = found
        return found

    def _memory_of(self, root: Root) -> Memory:
        if root.home is not None:
            return self.results[root.home] if isinstance(root.home, int) else self._memory_of(root.home)
        if root.memory is None:
            if root.kind == VARIABLE:
                root.memory = self.program.variable(root.key)
            elif root.kind == CONSTANT:
                root.memory = Memory(self.program.unique("c_" + root.label.rsplit("/", 1)[-1]), 0, root.key)
            else:
                root.memory = self.pool.take(root.size)
        return root.memory

    # Steps

    def _write_step(self, position: int, step: Step) -> None:
        op, kernel = step.op, step.kernel
        if op is not None and op.kind in transfer.STREAMS:
            transfer.STREAMS[op.kind](self, step)
            return
        ins = [self.operand_of(place) for place in step.ins]
        if not step.modified and kernel.inplace:
            self._take_over(position, step)
        site = Site(self, op, kernel, ins, [self.operand_of(place) for place in step.outs])
        if op is not None and op.called:
            control.WRITERS[op.kind](site, step, position)
        elif op is not None and op.kind in transfer.REMOTE:
            transfer.REMOTE[op.kind](site)
        elif kernel.view is not None:
            self._write_view(step, site)
        else:
            self._emit(site)
        self.give_back(site)

    def give_back(self, site: Site) -> None:
        """Take back the memory that a site asked for."""
        for memory in site.taken:
            self.pool.give(memory)

    def _take_over(self, position: int, step: Step) -> None:
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

    def _emit(self, site: Site) -> None:
        """Write the lines of the kernel; float16 in float32 where it says so."""
        half, single = np.dtype(np.float16), np.dtype(np.float32)
        if site.kernel.float32 and any(x.dtype == half for x in site.ins + site.outs):
            outs = site.outs
            site.ins = [self._widened(site, x) if x.dtype == half else x for x in site.ins]
            site.outs = [site.scratch(x.shape, single) if x.dtype == half else x for x in outs]
            site.kernel.emit(site)
            for out, wide in zip(outs, site.outs):
                site.copy(out, wide)
        else:
            site.kernel.emit(site)

    def _widened(self, site: Site, x: Operand) -> Operand:
        single = np.dtype(np.float32)
        if x.literal is not None:
            return self.program.constant_array(x.name + "_float32", x.memory.array.astype(single).reshape(x.shape))
        wide = site.scratch(x.shape, single)
        site.copy(wide, x)
        return wide

    def _write_view(self, step: Step, site: Site) -> None:
        """Copy what the op shows, because it could not share its input's storage."""
        x, place, out = site.ins[0], step.ins[0], site.out
        assert step.kernel.view is not None
        layout = step.kernel.view(step.op, step.index, place)
        if layout is None:
            site.copy(site.reshaped(out, x.shape), x)
        else:
            site.copy(out, self.operand(x.memory, out.shape, x.dtype, layout[0], x.offset + layout[1]))


def _view_text(x: Operand) -> str:
    """An expression for the view of a local array."""
    assert x.memory.local_type is not None
    name, size = x.memory.name, x.dtype.itemsize
    shape, dtype = x.memory.local_type
    text = name if dtype == x.dtype else f'{name}.view("{x.dtype}")'
    if x.offset == 0 and math.prod(x.shape) == math.prod(shape):
        if is_contiguous(x.shape, x.strides, size):
            return text if x.shape == shape else f"{text}.reshape({x.shape})"
        strides = c_strides(shape, size)
        if len(set(strides)) == len(strides) and sorted(x.strides) == sorted(strides):
            order = tuple([strides.index(stride) for stride in x.strides])
            if tuple([shape[axis] for axis in order]) == x.shape:
                return f"{text}.transpose({order})"
    return f'ndarray({x.shape}, "{x.dtype}", {name}, {x.offset}, {x.strides})'
