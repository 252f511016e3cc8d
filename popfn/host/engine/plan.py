"""What runs, in which order, and which tensors share storage.

A graph becomes a `Plan`: a list of steps and, for each tensor, a `Place`: a root, which is one piece of storage, and
the strides of the tensor in it. Four passes make it:

1. `_Walk` follows the ops and gives each tensor a place. View twins and modifying ops share the root of their input.
2. `_order` goes back: it drops steps that nothing needs, and gathers the writes to variables, with the elementwise
   work that leads up to them, in a block at the end, so that a run which fails leaves the variables alone.
3. `_share_views` lets ops that rearrange elements (transpose, reshape, slice, ...) share the root of their input
   where no write to either side would be seen by the other.
4. `_find_homes` lets a value be computed where it is to be copied: in a variable or an output of the graph.
"""

import functools
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from popfn.host.engine import parts
from popfn.host.engine.kernels import KERNELS
from popfn.host.kernels.kernel import Kernel
from popfn.host.kernels.layout import Shape, c_strides, is_contiguous
from popfn.host.tensor import Constant, Shard, Tensor, Variable

# Kinds of roots: of this graph, of the program's state, fixed, of the calling graph, an array that the host gave.
LOCAL, VARIABLE, CONSTANT, INPUT, LOADED = "local", "variable", "constant", "input", "loaded"

# What is computed when the program is compiled, because it is constant, may not take more memory than this.
_FOLD_BYTES = 1 << 20

# A copy from place 1 to place 0, between views of one storage that no strides can express.
COPY = Kernel(None, lambda s: s.copy(s.out, s.ins[1]), writes=True, overwrites=True)


class Uses:
    """The positions of the steps that read and modify a root, ascending."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: List[int] = []
        self.writes: List[int] = []

    @property
    def last(self) -> int:
        """The last position, or -1."""
        return max(self.reads[-1] if self.reads else -1, self.writes[-1] if self.writes else -1)

    def between(self, start: int, stop: int) -> bool:
        """Whether there is a use after `start` and before `stop`."""
        return any(start < p < stop for p in self.reads) or any(start < p < stop for p in self.writes)

    def merge(self, other: "Uses") -> None:
        """Take in the uses of another root."""
        self.reads = sorted(self.reads + other.reads)
        self.writes = sorted(self.writes + other.writes)


class Root:
    """One piece of storage.

    Attributes:
        kind: One of the kinds above.
        label: The id of the tensor that it was made for.
        key: The variable, the array of a constant, or the index of an input.
        first: The place that is all of it.
        places: The tensors in it.
        uses: Which steps use it. Inputs by reference that may overlap have this in common.
        born: The position of the first step that uses it.
        is_modified: Whether some step modifies it.
        is_output: Whether an output of the graph is in it.
        home: Where a local root lives instead of memory of its own: another root, or the index of an output.
        maker: The step that made a constant.
        memory: For the compiler.
    """

    __slots__ = (
        "kind",
        "label",
        "key",
        "first",
        "places",
        "uses",
        "born",
        "is_modified",
        "is_output",
        "home",
        "maker",
        "memory",
    )

    def __init__(self, kind: str, shape: Shape, dtype: np.dtype, label: str, key: Any = None) -> None:
        self.kind = kind
        self.label = label
        self.key = key
        self.first = Place(self, shape, dtype, c_strides(shape, dtype.itemsize), 0, label)
        self.places = [self.first]
        self.uses = Uses()
        self.born = -1
        self.is_modified = False
        self.is_output = False
        self.home: Any = None
        self.maker: Any = None
        self.memory: Any = None

    @property
    def size(self) -> int:
        """The number of bytes."""
        return math.prod(self.first.shape) * self.first.dtype.itemsize

    @property
    def last(self) -> int:
        """The position of the last step that uses it."""
        return max(self.born, self.uses.last)


class Place:
    """Where in a root a tensor's elements are. `source` is the place, op and output index that a view comes from."""

    __slots__ = ("root", "shape", "dtype", "strides", "offset", "label", "source")

    def __init__(
        self,
        root: Root,
        shape: Shape,
        dtype: np.dtype,
        strides: Tuple[int, ...],
        offset: int,
        label: str,
        source: Any = None,
    ) -> None:
        self.root = root
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.offset = offset
        self.label = label
        self.source = source

    @property
    def is_whole(self) -> bool:
        """Whether this is all of the root, in C order."""
        size = self.dtype.itemsize
        return (
            self.offset == 0
            and math.prod(self.shape) * size == self.root.size
            and is_contiguous(self.shape, self.strides, size)
        )

    def same_as(self, other: "Place") -> bool:
        """Whether both have the same elements at the same indices."""
        return (
            self.root is other.root
            and self.shape == other.shape
            and self.strides == other.strides
            and self.offset == other.offset
        )


class Step:
    """One thing to do. An op is one step, or if it has views, one for each output; `op` is None for a COPY.

    Attributes:
        modified: The roots of which it changes the content. Other outputs are new roots.
        index: The number of the output, for an op of several steps.
        is_commit: Whether it is in the block at the end of the main graph.
        is_done: Whether nothing is left to do: the output is where the input is.
    """

    __slots__ = ("op", "kernel", "ins", "outs", "modified", "index", "is_commit", "is_done")

    def __init__(
        self,
        op: Any,
        kernel: Kernel,
        ins: Sequence[Place],
        outs: Sequence[Place],
        modified: Sequence[Root] = (),
        index: int = 0,
    ) -> None:
        self.op = op
        self.kernel = kernel
        self.ins = ins
        self.outs = outs
        self.modified = modified
        self.index = index
        self.is_commit = False
        self.is_done = False

    @property
    def reads(self) -> List[Root]:
        """The roots of the operands."""
        return [place.root for place in (self.ins[1:] if self.kernel.overwrites else self.ins)]


class Facts(NamedTuple):
    """What the graphs that call a graph need to know of it."""

    written: Set[int]  # the inputs that it modifies
    kept: Set[int]  # the outputs that are the input of the same index, as it is in the end
    streams: Sequence[Any]  # those that it or a graph it calls uses, in the order of its parameters
    has_effect: bool  # whether one of these does more than compute outputs and modify inputs


class Plan(NamedTuple):
    """A graph that is ready to be written down."""

    graph: Any
    steps: List[Step]
    inputs: List[Place]
    outputs: List[Place]
    roots: List[Root]
    unsafe: List[Root]  # the variables that are modified before the block at the end
    facts: Facts


def callees(op: Any) -> Tuple[Any, ...]:
    """The graphs that an op calls.

    That of a repeat as the API makes it calls the body and does nothing else: the body stands for it.
    """
    called: Tuple[Any, ...] = op.called
    return (called[0].ops[0].attrs["graph"],) if op.kind == "repeat" and op.attrs["graph"] is not None else called


@functools.lru_cache(maxsize=None)
def storage_dtype(dtype: Any) -> np.dtype:
    """The NumPy dtype that the engine keeps a host dtype in: 8-bit floats are bytes to it."""
    found: np.dtype = dtype.as_numpy()
    return np.dtype(np.uint8) if found.fields else found


def plan_graph(graph: Any, together: Iterable[Iterable[int]], facts: Dict[Any, Facts]) -> Plan:
    """Plan one graph.

    Args:
        graph: The graph.
        together: The inputs that may share elements; see `aliasing.Aliasing`.
        facts: Those of the graphs that it calls.

    Raises:
        NotImplementedError: If there is no kernel for an op.
    """
    walk = _Walk(graph, together, facts)
    is_main = graph is graph.main_graph
    outputs = [] if is_main else [walk.place(t) for t in graph.outputs]
    for place in outputs:
        place.root.is_output = True
    steps = _order(walk.steps, outputs, facts, is_main)
    has_effect = any(_has_effect(step, facts) for step in steps)
    for position, step in enumerate(steps):
        for root in step.reads:
            root.uses.reads.append(position)
        for root in step.modified:
            root.uses.writes.append(position)
            root.is_modified = True
        for place in step.outs:
            if place.root.born < 0:
                place.root.born = position
    _share_views(steps)
    _find_homes(steps, outputs)
    streams: Dict[Any, None] = {}
    for step in steps:
        if step.op is None:
            continue
        for called in callees(step.op):
            streams.update(dict.fromkeys(facts[called].streams))
        if "stream" in step.op.attrs:
            streams[step.op.attrs["stream"]] = None
    unsafe = [r for r in walk.roots if r.kind == VARIABLE and any(not steps[p].is_commit for p in r.uses.writes)]
    written = {i for i, place in enumerate(walk.inputs) if place.root.is_modified}
    kept = {i for i, (x, y) in enumerate(zip(walk.inputs, outputs)) if y.same_as(x)}
    known = Facts(written, kept, list(streams), has_effect)
    return Plan(graph, steps, walk.inputs, outputs, walk.roots, unsafe, known)


class _Walk:
    """The first pass."""

    def __init__(self, graph: Any, together: Iterable[Iterable[int]], facts: Dict[Any, Facts]) -> None:
        self.facts = facts
        self.steps: List[Step] = []
        self.roots: List[Root] = []
        self.places: Dict[Tensor, Place] = {}
        self.links: List[Tuple[Place, Place]] = []  # copies, and the views that they stand for
        self.inputs: List[Place] = []
        for i, t in enumerate(graph.inputs):
            self.inputs.append(self.new(INPUT, t, i))
        for group in together:
            shared = Uses()
            for i in group:
                self.inputs[i].root.uses = shared
        for op in graph.ops:
            self.follow(op)

    def new(self, kind: str, t: Tensor, key: Any = None) -> Place:
        """Make a root for a tensor."""
        root = Root(kind, t.shape, storage_dtype(t.dtype), t.id, key)
        self.roots.append(root)
        self.places[t] = root.first
        return root.first

    def place(self, t: Tensor) -> Place:
        """The place of a tensor."""
        found = self.places.get(t)
        if found is None:
            if isinstance(t, Constant):
                found = self.new(CONSTANT, t, _stored(t.data, storage_dtype(t.dtype)))
            elif isinstance(t, (Variable, Shard)) or getattr(t, "state", None) is not None:
                found = self.new(VARIABLE, t, t)
            else:
                raise AssertionError(f"{t!r} is used before it is made")
        return found

    def follow(self, op: Any) -> None:
        """Make the steps of an op."""
        kernel = getattr(op, "kernel", None) or KERNELS.get(op.kind)
        if op.kind == "remote_code_load":
            return
        if kernel is None:
            made = ", ".join(t.id for t in op.outputs) or "no tensor"
            raise NotImplementedError(f"the host has no kernel for the op {op.kind!r}, which makes {made}.")
        ins = [self.place(t) for t in op.inputs]
        if kernel.writes:
            self.modify(ins[0].root)
            self.places[op.outputs[0]] = ins[0]
            self.steps.append(Step(op, kernel, ins, ins[:1], [ins[0].root]))
            self.refresh(ins[:1])
        elif op.kind.endswith("_"):
            self.view(op, kernel, ins)
        elif op.called:
            self.call(op, kernel, ins)
        elif not self.fold(op, kernel, ins):
            outs = [self.new(LOADED if op.kind == "host_load" else LOCAL, t) for t in op.outputs]
            if kernel.view is None:
                self.steps.append(Step(op, kernel, ins, outs))
            else:
                self.steps.extend([Step(op, kernel, ins, [out], (), i) for i, out in enumerate(outs)])

    def call(self, op: Any, kernel: Kernel, ins: Sequence[Place]) -> None:
        """A call, repeat or conditional."""
        facts = [self.facts[called] for called in callees(op)]
        written = [ins[i] for i in op.attrs.get("modified", ()) if i in facts[0].written]
        modified = list(dict.fromkeys(place.root for place in written))
        for root in modified:
            self.modify(root)
        outs = [self.new(LOCAL, t) for t in op.outputs]
        self.steps.append(Step(op, kernel, ins, outs, modified))
        if written:
            self.refresh(written)

    def fold(self, op: Any, kernel: Kernel, ins: Sequence[Place]) -> bool:
        """Compute the outputs now, if they are constant and not too large. Zeros take no memory until written."""
        if kernel.value is None or kernel.effect or any(x.root.kind != CONSTANT for x in ins):
            return False
        if op.kind != "init" and sum(math.prod(t.shape) for t in op.outputs) * 4 > _FOLD_BYTES:
            return False
        results = evaluate(op, kernel, [op_input(x, t) for x, t in zip(ins, op.inputs)])
        for t, result in zip(op.outputs, results):
            self.new(CONSTANT, t, result).root.maker = op
        return True

    def modify(self, root: Root) -> None:
        """Make ready for a step that modifies a root: a constant gets a copy that is."""
        if root.kind == LOADED:
            root.kind = LOCAL
        elif root.kind == CONSTANT:
            op = root.maker
            if op is not None and op.kind == "init":
                self.steps.insert(0, Step(op, KERNELS["init"], (), [root.first]))
            else:
                fixed = Root(CONSTANT, root.first.shape, root.first.dtype, root.label, root.key)
                self.roots.append(fixed)
                self.steps.insert(0, Step(None, COPY, [root.first, fixed.first], [root.first], [root]))
            root.kind, root.key = LOCAL, None

    def view(self, op: Any, kernel: Kernel, ins: Sequence[Place]) -> None:
        """A view twin. Where no strides can express it, it is a copy that follows its original and is followed."""
        (t,), x = op.outputs, ins[0]
        layout = kernel.view(op, 0, x) if kernel.view is not None else None
        if layout is not None:
            made = Place(x.root, t.shape, x.dtype, layout[0], x.offset + layout[1], t.id, (x, op, 0))
            x.root.places.append(made)
            self.places[t] = made
            return
        copied = self.new(LOCAL, t)
        offset, axis = 0, op.attrs.get("axis", 0)
        for x in ins:
            strides = c_strides(x.shape, x.dtype.itemsize) if op.kind == "reshape_" else copied.strides
            part = Place(copied.root, x.shape, x.dtype, strides, offset, t.id)
            if op.kind == "concat_":
                offset += copied.strides[axis] * x.shape[axis]
            self.links.append((part, x))
            self.copy(x, part)

    def copy(self, source: Place, target: Place, where: Optional[np.ndarray] = None) -> None:
        """Add a step that copies, all elements or those that `where` says."""
        self.modify(target.root)
        kernel = COPY if where is None else COPY._replace(emit=parts.copy_where(where), overwrites=False)
        self.steps.append(Step(None, kernel, [target, source], [target], [target.root]))

    def refresh(self, places: Sequence[Place]) -> None:
        """After a step that modified places: bring the copies that stand for views, and their originals, up to date.

        If the step modified several roots, then perhaps an original as well as its copy, in different elements. So of
        a copy only those go back that the step modified.
        """
        if not self.links:
            return
        several = any(place.root is not places[0].root for place in places)
        queue = [(place.root, parts.in_root(place, True)) for place in places]
        changed = [root for root, _ in queue]
        written_back: Set[int] = set()  # the links of which all elements are
        for root, is_new in queue:
            for i, (part, original) in enumerate(self.links):
                where = parts.at(part, is_new) if part.root is root and i not in written_back else None
                if where is None or not where.any():
                    continue
                if where.all() or not several:
                    written_back.add(i)
                    where = np.ones_like(where)
                self.copy(part, original, None if where.all() else where)
                changed.append(original.root)
                queue.append((original.root, parts.in_root(original, where)))
        for i, (part, original) in enumerate(self.links):
            # Inputs by reference that are one tensor have their uses in common.
            if i not in written_back and any(original.root.uses is root.uses for root in changed):
                self.copy(original, part)
                changed.append(part.root)


def op_input(place: Place, t: Tensor) -> np.ndarray:
    """The array of a constant that an op takes."""
    data: np.ndarray = place.root.key
    if not place.is_whole:
        data = np.ndarray(place.shape, data.dtype, data.reshape(-1).data, place.offset, place.strides)
    return data.reshape(t.shape)


def evaluate(op: Any, kernel: Kernel, arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
    """The outputs of an op, by the value of its kernel, rounded to their dtypes."""
    assert kernel.value is not None
    half = np.dtype(np.float16)
    if kernel.float32:
        arrays = [a.astype(np.float32) if a.dtype == half else a for a in arrays]
    results = kernel.value(np, op, *arrays)
    if len(op.outputs) == 1:
        results = (results,)
    return [_stored(np.asarray(r), storage_dtype(t.dtype)).reshape(t.shape) for r, t in zip(results, op.outputs)]


def _stored(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An array as the engine keeps it: in C order, 8-bit floats as bytes."""
    data = data.view(np.uint8) if data.dtype.fields else data.astype(dtype, copy=False)
    return np.asarray(data, order="C")


def _has_effect(step: Step, facts: Dict[Any, Facts]) -> bool:
    """Whether a step, whatever becomes of its outputs, must stay, and in its place among others like it."""
    called = () if step.op is None else callees(step.op)
    return step.kernel.effect or any(facts[graph].has_effect for graph in called)


def _order(steps: List[Step], outputs: Sequence[Place], facts: Dict[Any, Facts], is_main: bool) -> List[Step]:
    """The second pass."""
    needed = {place.root for place in outputs}
    body: List[Step] = []
    commit: List[Step] = []
    read: Set[Root] = set()  # by the steps of the body that are behind
    written: Set[Root] = set()
    for step in reversed(steps):
        makes = [place.root for place in step.outs]
        changes = [*makes, *step.modified]
        is_needed = any(root in needed or root.kind in (VARIABLE, INPUT) for root in changes)
        if not is_needed and not _has_effect(step, facts):
            continue
        reads = step.reads
        needed.update(reads)
        # A step can move behind the body if it cannot fail and nothing in between is in its way.
        if (
            is_main
            and not step.kernel.effect
            and (step.kernel.safe or step.kernel.writes or step.kernel.view is not None)
            and not any(root in read or root in written for root in changes)
            and not any(root in written for root in reads)
        ):
            step.is_commit = True
            commit.append(step)
        else:
            body.append(step)
            read.update(reads)
            written.update(changes)
    return body[::-1] + commit[::-1]


def _share_views(steps: List[Step]) -> None:
    """The third pass."""
    for position, step in enumerate(steps):
        if step.kernel.view is None:
            continue
        source, view = step.ins[0], step.outs[0].root
        root = source.root
        last = len(steps) if view.is_output else view.last
        if any(position < p <= last for p in root.uses.writes):
            continue  # the view would change
        layout = step.kernel.view(step.op, step.index, source)
        if layout is None:
            continue
        if view.uses.writes:
            if root.kind != LOCAL or root.is_output or root.last >= view.uses.writes[0]:
                continue  # writes to the view would be seen
            if any(n > 1 and stride == 0 for n, stride in zip(step.outs[0].shape, layout[0])):
                continue  # its elements are not storage of their own
        layouts = _moved(view, layout[0], source.offset + layout[1])
        if layouts is None:
            continue
        for place, (strides, offset) in zip(view.places, layouts):
            place.root, place.strides, place.offset = root, strides, offset
        root.places.extend(view.places)
        root.uses.merge(view.uses)
        root.is_output = root.is_output or view.is_output
        step.is_done = True


def _moved(root: Root, strides: Tuple[int, ...], offset: int) -> Optional[List[Tuple[Tuple[int, ...], int]]]:
    """The layouts of all places of a root if its first gets this one; None if some view would not be possible."""
    layouts = {root.first: (strides, offset)}
    for place in root.places[1:]:
        if place.source is None:
            return None
        above, op, index = place.source
        strides, offset = layouts[above]
        probe = Place(root, above.shape, above.dtype, strides, offset, "")
        layout = KERNELS[op.kind].view(op, index, probe)  # type: ignore[misc]
        if layout is None:
            return None
        layouts[place] = layout[0], offset + layout[1]
    return list(layouts.values())


def _find_homes(steps: List[Step], outputs: Sequence[Place]) -> None:
    """The fourth pass."""
    for i, place in enumerate(outputs):
        if place.root.kind == LOCAL and place.root.home is None and place.is_whole:
            place.root.home = i
    for position, step in enumerate(steps):
        if step.op is None or step.op.kind != "copy_var_update_":
            continue
        target, value = step.ins[0], step.ins[1]
        home, root = target.root, value.root
        if not (
            root.kind == LOCAL
            and root.home is None
            and not root.is_output
            and home.kind in (VARIABLE, INPUT)
            and target.is_whole
            and value.is_whole
            and value.shape == target.shape
        ):
            continue
        maker, uses = steps[root.born], home.uses
        if home.kind == VARIABLE and not maker.is_commit and all(steps[p].is_commit for p in uses.writes):
            continue  # a run that failed after the maker would have changed the variable
        if uses.between(root.born, position) or (root.last > position and uses.writes[-1] > position):
            continue
        if root.uses.writes and root.uses.writes[-1] > position:
            continue
        if root.born in uses.writes or (root.born in uses.reads and not _works_in_place(maker, target)):
            continue
        root.home = home
        uses.merge(root.uses)
        uses.writes = sorted([*uses.writes, root.born])
        step.is_done = True


def _works_in_place(step: Step, place: Place) -> bool:
    """Whether the step may overwrite one of its operands with its output, as far as operands overlap `place`."""
    out = step.outs[0]
    return len(step.outs) == 1 and all(
        i in step.kernel.inplace and x.root is place.root and x.is_whole and x.shape == out.shape
        for i, x in enumerate(step.ins)
        if x.root.uses is place.root.uses
    )
