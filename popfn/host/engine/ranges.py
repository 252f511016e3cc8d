"""Which offsets into remote buffers are in range whatever happens, so that a run need not check them.

The analysis knows integers of one element: constants, sums, differences and products of known ones, and what a loop
makes of its carry by adding a constant in each turn. Everything else may have any value.
"""

import math
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from popfn.host.tensor import Constant

Interval = Tuple[int, int]


class Shifted:
    """An input of a loop's body, by its number, and a constant added to it."""

    def __init__(self, number: int, by: int) -> None:
        self.number = number
        self.by = by


#: None is any value.
Known = Union[None, Interval, Shifted]
_REMOTE = frozenset(["remote_load", "remote_load_", "remote_store"])
_SAME = frozenset(["reshape", "identity", "io_tile_copy", "cast", "transpose", "flatten"])


def offsets_within(main: Any) -> Set[Any]:
    """The ops on remote buffers of a main graph, and of the graphs it calls, whose offsets are always in range."""
    found = _Ranges()
    if found.changes_numbers(main, set()):
        return set()
    found.graph(main, [])
    return {op for op, seen in found.offsets.items() if seen is not None
            and 0 <= seen[0] and seen[1] < op.attrs["buffer"].entries}


def is_number(t: Any) -> bool:
    """Whether a tensor is an integer of one element."""
    return math.prod(t.shape) == 1 and t.dtype.as_numpy().kind in "iu"


class _Ranges:
    def __init__(self) -> None:
        self.offsets: Dict[Any, Optional[Interval]] = {}
        self.known: Dict[Any, List[Known]] = {}
        self.looks = 0  # how many loops are looked at for what a turn adds; nothing counts meanwhile

    def changes_numbers(self, graph: Any, seen: Set[Any]) -> bool:
        """Whether an op writes into an integer of one element; then nothing is known."""
        if graph in seen:
            return False
        seen.add(graph)
        return any(
            op.kind.endswith("_") and is_number(op.inputs[0])
            or any(is_number(op.inputs[i]) for i in op.attrs.get("modified", ()) if i < len(op.inputs))
            or any(self.changes_numbers(called, seen) for called in op.called) for op in graph.ops)

    def graph(self, graph: Any, inputs: Sequence[Known]) -> List[Known]:
        """What the outputs of a graph are for inputs of which so much is known."""
        values = tuple([(x.number, x.by, "shifted") if isinstance(x, Shifted) else x for x in inputs])
        key = graph, self.looks > 0, values
        if key not in self.known:
            env: Dict[Any, Known] = dict(zip(graph.inputs, inputs))
            for op in graph.ops:
                outs = self.results(op, [self.value(t, env) for t in op.inputs], env)
                env.update(zip(op.outputs, outs))
            self.known[key] = [self.value(t, env) for t in graph.outputs]
        return self.known[key]

    def value(self, t: Any, env: Dict[Any, Known]) -> Known:
        if isinstance(t, Constant) and is_number(t):
            n = int(np.asarray(t.data).reshape(()))
            return n, n
        return env.get(t)

    def results(self, op: Any, inputs: List[Known], env: Dict[Any, Known]) -> Sequence[Known]:
        if op.kind in _REMOTE:
            self.note(op, inputs[-1])
        elif op.kind == "repeat":
            return self.repeat(op, inputs)
        elif op.kind == "call":
            return self.graph(op.called[0], inputs)
        elif op.called:
            for called in op.called:
                self.graph(called, [None] * len(called.inputs))
        elif op.kind in _SAME and is_number(op.outputs[0]) and is_number(op.inputs[0]):
            return inputs[:1]
        elif op.kind in ("add", "sub", "mul") and is_number(op.outputs[0]):
            return [combined(op.kind, *inputs)]
        return [None] * len(op.outputs)

    def note(self, op: Any, offset: Known) -> None:
        """An op sees this offset, besides those seen before."""
        if self.looks:
            return
        seen = self.offsets.get(op, offset)
        self.offsets[op] = None
        if isinstance(seen, tuple) and isinstance(offset, tuple):
            self.offsets[op] = min(seen[0], offset[0]), max(seen[1], offset[1])

    def repeat(self, op: Any, inputs: List[Known]) -> Sequence[Known]:
        """A loop: what a turn adds to its carry tells what that is in all turns."""
        body, count = op.called[0], op.attrs["count"]
        carried = len(body.outputs)
        if not count:
            return inputs[:carried]
        self.looks += 1
        turn = self.graph(body, [Shifted(i, 0) if x is not None else None for i, x in enumerate(inputs)])
        self.looks -= 1
        during: List[Known] = list(inputs)
        after: List[Known] = [None] * carried
        for i in range(carried):
            start, new = inputs[i], turn[i]
            during[i] = None
            if isinstance(start, tuple) and isinstance(new, Shifted) and new.number == i:
                last = (count - 1) * new.by
                during[i] = start[0] + min(last, 0), start[1] + max(last, 0)
                after[i] = start[0] + count * new.by, start[1] + count * new.by
        self.graph(body, during)
        return after


def combined(kind: str, x: Known, y: Known) -> Known:
    """A sum, difference or product."""
    if isinstance(y, Shifted) and kind == "add":
        x, y = y, x
    if isinstance(x, Shifted):
        if isinstance(y, tuple) and y[0] == y[1] and kind in ("add", "sub"):
            return Shifted(x.number, x.by + (y[0] if kind == "add" else -y[0]))
        return None
    if not isinstance(x, tuple) or not isinstance(y, tuple):
        return None
    if kind == "add":
        return x[0] + y[0], x[1] + y[1]
    if kind == "sub":
        return x[0] - y[1], x[1] - y[0]
    products = [a * b for a in x for b in y]
    return min(products), max(products)
