"""How often a run of a program stores to each stream, as far as that is known before it runs."""

from typing import Any, Dict, Tuple

# The least and the greatest number of stores to each stream.
Counts = Dict[Any, Tuple[int, int]]


def store_counts(main: Any) -> Counts:
    """The least and the greatest number of stores in a run, for each stream that a graph or one it calls stores to.

    A run may take any branch, each replica its own.
    """
    known: Dict[Any, Counts] = {}

    def of(graph: Any) -> Counts:
        if graph not in known:
            found: Counts = {}
            for op in graph.ops:
                for stream, (least, greatest) in of_op(op).items():
                    before = found.get(stream, (0, 0))
                    found[stream] = before[0] + least, before[1] + greatest
            known[graph] = found
        return known[graph]

    def of_op(op: Any) -> Counts:
        if op.kind == "host_store":
            return {op.attrs["stream"]: (1, 1)}
        parts = [of(called) for called in op.called]
        if op.kind == "conditional":
            then, otherwise = parts
            pairs = {s: (then.get(s, (0, 0)), otherwise.get(s, (0, 0))) for s in {**then, **otherwise}}
            return {s: (min(x[0], y[0]), max(x[1], y[1])) for s, (x, y) in pairs.items()}
        times = op.attrs["count"] if op.kind == "repeat" else 1
        return {s: (times * least, times * greatest) for part in parts for s, (least, greatest) in part.items()}

    return of(main)
