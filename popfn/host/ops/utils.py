"""Checks that libraries on top of PopXL use in ops of their own."""

from typing import Any

from popfn.host import dtypes
from popfn.host.graph import Graph
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def check_in_graph(graph: Graph, *args: Any, **tensors: Tensor) -> None:
    """Check that all tensors belong to `graph`.

    Raises:
        TypeError: If an argument is no Tensor.
        ValueError: If one belongs to another graph.
    """
    _build.check_in_graph("check_in_graph", graph, _named(args, tensors))


def check_tensor_ipu_and_tile_set(*args: Any, **tensors: Tensor) -> None:
    """Check that the tensors whose place is known are on one IPU and tile set; else ValueError."""
    _build.check_places("check_tensor_ipu_and_tile_set", _named(args, tensors))


def _named(args: Any, tensors: Any) -> Any:
    return {**{f"tensor {i}": t for i, t in enumerate(args)}, **tensors}


def cast_if_needed(t: Tensor, data_type: dtypes.dtype) -> Tensor:
    """Return `t`, or a cast of it if its dtype is another."""
    return t if t.dtype is data_type else _build.emit_cast(t, data_type)


def handle_negative_axis(t: Tensor, axis: int) -> int:
    """Return the axis, counted from 0."""
    return axis if axis >= 0 else axis + len(t.shape)
