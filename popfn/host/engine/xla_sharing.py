"""Graphs that compute a part of what another graph computes.

The layers of a network are one graph, but often the first or the last is a graph of its own: nobody wants the gradient
of the network's input, so it has fewer outputs. Such a graph need not be compiled if the other one is: that can be
called in its place, and what it makes besides is dropped.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from popfn.host.tensor import Constant


class StandIn(NamedTuple):
    """A graph that can be called in the place of another.

    Attributes:
        graph: The graph.
        inputs: For each of its inputs, which input of the other graph it gets. None if its value does not matter.
        outputs: For each output of the other graph, which of its outputs that is.
    """

    graph: Any
    inputs: Tuple[Optional[int], ...]
    outputs: Tuple[int, ...]


def stand_in(part: Any, whole: Any) -> Optional[StandIn]:
    """How to call `whole` in the place of `part`, if it makes all outputs of `part`, in the same order.

    Neither may use state or streams.
    """
    if not _only_computes(part) or not _only_computes(whole):
        return None
    matching = _Matching(part, whole)
    outputs: List[int] = []
    for t in part.outputs:
        start = outputs[-1] + 1 if outputs else 0
        found = next((i for i in range(start, len(whole.outputs)) if matching.add(t, whole.outputs[i])), None)
        if found is None:
            return None
        outputs.append(found)
    places = {t: i for i, t in enumerate(part.inputs)}
    inputs = tuple(None if matching.found.get(t) is None else places[matching.found[t]] for t in whole.inputs)
    return StandIn(whole, inputs, tuple(outputs))


class _Matching:
    """Which tensors of a graph compute the same as tensors of another."""

    def __init__(self, part: Any, whole: Any) -> None:
        self._made = [{t: (op, i) for op in graph.ops for i, t in enumerate(op.outputs)} for graph in (part, whole)]
        self._inputs = [set(graph.inputs) for graph in (part, whole)]
        self.found: Dict[Any, Any] = {}  # from tensors of `whole` to those of `part`

    def add(self, t: Any, u: Any) -> bool:
        """Match `t` of the part with `u`, and all that they are made of; change nothing if that fails."""
        new: Dict[Any, Any] = {}
        pairs = [(t, u)]
        while pairs:
            t, u = pairs.pop()
            known = new.get(u, self.found.get(u))
            if known is not None:
                if known is not t and not _are_equal_constants(known, t):
                    return False
                continue
            if t.shape != u.shape or t.dtype != u.dtype:
                return False
            new[u] = t
            if t in self._inputs[0] or u in self._inputs[1]:
                if t not in self._inputs[0] or u not in self._inputs[1]:
                    return False
            elif isinstance(t, Constant) or isinstance(u, Constant):
                if not _are_equal_constants(t, u):
                    return False
            else:
                (op, i), (other, k) = self._made[0][t], self._made[1][u]
                if i != k or op.kind != other.kind or op.attrs != other.attrs or len(op.inputs) != len(other.inputs):
                    return False
                pairs += zip(op.inputs, other.inputs)
        self.found.update(new)
        return True


def _only_computes(graph: Any) -> bool:
    """Whether its ops make new tensors, and write no others."""
    return not any(op.kind.endswith("_") or op.called for op in graph.ops)


def _are_equal_constants(t: Any, u: Any) -> bool:
    if not isinstance(t, Constant) or not isinstance(u, Constant):
        return False
    return t.data.dtype == u.data.dtype and t.shape == u.shape and t.data.tobytes() == u.data.tobytes()
