"""Which tensors share elements, across the calls of a program.

A walk from the main graph follows what views show. It finds which inputs by reference of a graph share elements in some
call, and refuses writes through a `concat_` that shows an element twice. A graph is walked once for each way in which
the inputs of its calls overlap.
"""

import itertools
import math
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import numpy as np

from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import callees
from popfn.host.errors import popart_exception
from popfn.host.kernels.layout import Shape

# How two tensors share elements.
PART, SAME = "part", "same"

_VIEWS = frozenset(["concat_", "detach_", "reshape_", "slice_", "transpose_"])


class Region:
    """Where the elements of a tensor are: in storage of its own, or where those of other tensors are.

    Attributes:
        label: The id of the tensor.
        shape: Its shape.
        op: The op that makes the view, or None.
        bases: What that is a view of.
        storage: The regions without bases behind it.
        joins: The regions that a `concat_` makes, among those behind it and itself, in order.
    """

    __slots__ = ("label", "shape", "op", "bases", "storage", "joins")

    storage: FrozenSet["Region"]
    joins: Tuple["Region", ...]

    def __init__(self, label: str, shape: Shape, op: Any = None, bases: Sequence["Region"] = ()) -> None:
        self.label = label
        self.shape = shape
        self.op = op
        self.bases = tuple(bases)
        own: FrozenSet[Region] = frozenset([self])
        none: FrozenSet[Region] = frozenset()
        self.storage = (own if op is None else none).union(*[base.storage for base in bases])
        joins = [join for base in bases for join in base.joins] + [self] * (op is not None and op.kind == "concat_")
        self.joins = tuple(dict.fromkeys(joins))


def overlap(x: Region, y: Region) -> str:
    """Whether two regions have elements in common: "" for no, PART, or SAME if they show the same everywhere."""
    if x.storage.isdisjoint(y.storage):
        return ""
    size, numbers = 0, {}
    for region in x.storage | y.storage:
        count = math.prod(region.shape)
        numbers[region] = np.arange(size, size + count).reshape(region.shape)
        size += count
    is_in = np.zeros(size, np.bool_)
    first, second = _numbers(x, numbers), _numbers(y, numbers)
    is_in[first] = True
    if not is_in[second].any():
        return ""
    return SAME if np.array_equal(first, second) else PART


def _numbers(region: Region, known: Dict[Region, np.ndarray]) -> np.ndarray:
    """The numbers of the elements, as the view shows them."""
    found = known.get(region)
    if found is None:
        value = KERNELS[region.op.kind].value
        assert value is not None
        found = known[region] = value(np, region.op, *[_numbers(base, known) for base in region.bases])
    return found


class Aliasing:
    """What is known of a program.

    Args:
        main: Its main graph.

    Attributes:
        overlaps: For each call, the pairs of inputs by reference that may share elements, and how:
            SAME if they are the same whenever the call is made.

    Raises:
        popart_exception: If a `concat_` shows an element twice, and something is written through it.
    """

    def __init__(self, main: Any) -> None:
        self.overlaps: Dict[Any, Dict[Tuple[int, int], str]] = {}
        self._pairs: Dict[Any, Set[Tuple[int, int]]] = {}
        self._written: Dict[Any, Set[int]] = {}
        self._twice: Dict[Region, Optional[Tuple[Region, Region]]] = {}
        self._walk(main, {})

    def together(self, graph: Any) -> List[Set[int]]:
        """The inputs of a graph that may share elements: sets without a common member, of two or more."""
        found: List[Set[int]] = []
        for pair in self._pairs.get(graph, ()):
            near = [group for group in found if not group.isdisjoint(pair)]
            found = [group for group in found if group.isdisjoint(pair)] + [set(pair).union(*near)]
        return found

    def _walk(self, graph: Any, regions: Dict[Any, Region]) -> Set[int]:
        """Follow the ops; return which inputs are written through. `regions` has the inputs that are not apart."""

        def at(t: Any) -> Region:
            found = regions.get(t)
            if found is None:
                found = regions[t] = Region(t.id, t.shape)
            return found

        inputs = [at(t) for t in graph.inputs]
        written: Set[Region] = set()
        for op in graph.ops:
            if op.called:
                for i in self._call(op, at):
                    self._write(op, at(op.inputs[i]), written)
            elif op.kind in _VIEWS:
                (t,) = op.outputs
                regions[t] = Region(t.id, t.shape, op, [at(base) for base in op.inputs])
            elif op.kind.endswith("_") or op.kind in KERNELS and KERNELS[op.kind].writes:
                regions[op.outputs[0]] = at(op.inputs[0])
                self._write(op, at(op.inputs[0]), written)
        return {i for i, region in enumerate(inputs) if region in written}

    def _call(self, op: Any, at: Callable[[Any], Region]) -> List[int]:
        """Walk the graphs that an op calls; return the inputs by reference that these write through."""
        passed = {i: at(op.inputs[i]) for i in op.attrs.get("modified", ())}
        pairs = _overlapping(passed)
        known = self.overlaps.setdefault(op, pairs)
        if known is not pairs:
            same = {pair for pair, how in pairs.items() if how == known.get(pair) == SAME}
            self.overlaps[op] = {pair: SAME if pair in same else PART for pair in {**known, **pairs}}
        shared = sorted({i for pair in pairs for i in pair})
        names: Dict[Region, int] = {}
        key = tuple([(i, _structure(passed[i], names)) for i in shared])
        written: Set[int] = set()
        for graph in callees(op):
            self._pairs.setdefault(graph, set()).update(pairs)
            if (graph, key) not in self._written:
                self._written[graph, key] = self._walk(graph, {graph.inputs[i]: passed[i] for i in shared})
            written |= self._written[graph, key]
        return [i for i in passed if i in written]

    def _write(self, op: Any, region: Region, written: Set[Region]) -> None:
        """Note a write through a region, or refuse it."""
        for join in region.joins:
            if join not in self._twice:
                pairs = itertools.combinations(join.bases, 2)
                self._twice[join] = next((pair for pair in pairs if overlap(*pair)), None)
            pair = self._twice[join]
            if pair is not None:
                what = f"{op.kind} of {callees(op)[0]!r}" if op.called else op.kind
                to = region.label if region is join else f"{region.label}, which shows {join.label}"
                raise popart_exception(
                    f"Session: {what} writes to {to}, which concat_ makes of {pair[0].label} and {pair[1].label}, "
                    f"which share elements ({join.op.user_line}): what is there twice could not have both values. "
                    "Write to those tensors one by one, or join copies of them: ops.concat."
                )
        queue = [region]
        while queue:
            region = queue.pop()
            if region not in written:
                written.add(region)
                queue += region.bases


def _overlapping(regions: Dict[int, Region]) -> Dict[Tuple[int, int], str]:
    """The pairs of indices, the lower one first, of regions that overlap, and how."""
    users: Dict[Region, List[int]] = {}
    for i, region in sorted(regions.items()):
        for base in region.storage:
            users.setdefault(base, []).append(i)
    pairs = {pair for indices in users.values() for pair in itertools.combinations(indices, 2)}
    found = {(i, k): overlap(regions[i], regions[k]) for i, k in sorted(pairs)}
    return {pair: how for pair, how in found.items() if how}


def _structure(region: Region, names: Dict[Region, int]) -> Any:
    """What is equal for regions that relate to others, which `names` numbers, in the same way."""
    if region.op is None:
        return names.setdefault(region, len(names)), region.shape
    return (region.op, *[_structure(base, names) for base in region.bases])

