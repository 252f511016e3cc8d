"""Fusion of loads and stores."""

import contextlib
from typing import Iterator, List, Set

from popfn.host.context import get_current_graph, in_sequence, io_tiles
from popfn.host.graph import Op
from popfn.host.tensor import Tensor

EXCHANGES = frozenset(("host_load", "host_store", "remote_load", "remote_load_", "remote_store"))


@contextlib.contextmanager
def merge_exchange() -> Iterator[None]:
    """Fuse the loads and stores of the current graph that are made inside, so that they run at one time.

    They must not depend on each other. The host runs them in the order of their making all the same.
    """
    get_current_graph()
    yield


@contextlib.contextmanager
def io_tile_exchange(verify_overlap: bool = True) -> Iterator[None]:
    """Place loads and stores on the IO tiles and fuse them, so that they can overlap with computation.

    Args:
        verify_overlap: Whether to check on exit that they fuse to one op.

    Raises:
        RuntimeError: If something but loads, stores and `ops.init` was made inside, or one of them depends on
            another.

    Example:
        >>> import popfn.host as popxl
        >>> with popxl.Ir().main_graph:
        ...     x, y = [popxl.h2d_stream((2,), popxl.float32) for _ in range(2)]
        ...     with popxl.transforms.io_tile_exchange():
        ...         xs = popxl.ops.host_load(x), popxl.ops.host_load(y)
    """
    graph = get_current_graph()
    first = len(graph.ops)
    with io_tiles(), merge_exchange(), in_sequence(False):
        yield
    if verify_overlap:
        _check_overlap(graph.ops[first:])


def _check_overlap(made: List[Op]) -> None:
    others = [op for op in made if op.kind not in EXCHANGES and op.kind != "init"]
    loaded: Set[Tensor] = set()
    for op in made:
        if op.kind in EXCHANGES:
            waiting = loaded.intersection(op.inputs)
            if waiting:
                raise RuntimeError(
                    f"io_tile_exchange: {op!r} waits for {waiting.pop()!r}, which is loaded in the same block. "
                    "Use two blocks."
                )
            loaded.update(op.outputs)
    if others and (loaded or len(others) > 1):
        raise RuntimeError(
            f"io_tile_exchange: {others[0]!r} is neither a load nor a store. Keep computations outside the block."
        )
