"""Reverse-mode differentiation of graphs: from a graph to its grad graph."""

from typing import Dict, Iterable, Mapping, Optional, Tuple, Union

from popfn.host.errors import popart_exception
from popfn.host.gradients.backward import Run
from popfn.host.gradients.info import (
    ExpectedConnection as ExpectedConnection,
    ExpectedConnectionType as ExpectedConnectionType,
    GradGraphInfo as GradGraphInfo,
)
from popfn.host.graph import Graph
from popfn.host.tensor import Tensor

__all__ = ["ExpectedConnection", "ExpectedConnectionType", "GradGraphInfo", "autodiff"]


def autodiff(
    graph: Graph,
    grads_provided: Optional[Iterable[Tensor]] = None,
    grads_required: Optional[Iterable[Tensor]] = None,
    called_graphs_grad_info: Optional[Mapping[Graph, GradGraphInfo]] = None,
    return_all_grad_graphs: bool = False,
) -> Union[GradGraphInfo, Dict[Graph, GradGraphInfo]]:
    """Make the graph that computes gradients of `graph` from gradients of its outputs.

    The grad graph's inputs are the gradients of `grads_provided`, then those values of `graph` that it needs,
    in the order of their ids. Of these, the ones that are neither inputs nor outputs of `graph` become outputs
    of it, of its calls too; where `graph` is a branch of a conditional, the grad graph computes them again.
    Graphs that `graph` calls are differentiated as well.

    Args:
        graph: The graph.
        grads_provided: The tensors whose gradients are given, by default the outputs.
        grads_required: The tensors whose gradients are wanted, by default the inputs. These are the grad
            graph's outputs.
        called_graphs_grad_info: The grad graphs to use for graphs that `graph` calls.
        return_all_grad_graphs: Whether to return those of called graphs as well.

    Returns:
        The GradGraphInfo, or with `return_all_grad_graphs` a dict of them by their forward graphs.

    Raises:
        TypeError: If an argument has the wrong type.
        popart_exception: If a gradient that is required does not exist, no gradient is required, a tensor is
            of another graph, an op modifies a tensor in place, or an op on the way has no gradient.

    Example: see `GradGraphInfo`.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"autodiff: expected a Graph, not {graph!r}.")
    graph._check_open()
    provided = _checked("grads_provided", graph, graph.outputs if grads_provided is None else grads_provided)
    required = _checked("grads_required", graph, graph.inputs if grads_required is None else grads_required)
    provided = tuple(dict.fromkeys(provided))
    if not required:
        raise popart_exception(f"autodiff: there is no gradient to compute: no tensor of {graph!r} is required.")
    given = dict(called_graphs_grad_info or {})
    for called, known in given.items():
        if not isinstance(called, Graph) or not isinstance(known, GradGraphInfo):
            raise TypeError(f"autodiff: called_graphs_grad_info maps {called!r} to {known!r}, not a Graph to its info.")
        if known.forward_graph is not called:
            raise popart_exception(
                f"autodiff: called_graphs_grad_info maps {called!r} to the info of {known.forward_graph!r}."
            )
    run = Run(graph.ir, given)
    try:
        info = run.differentiate(graph, provided, required)
    except BaseException:
        run.undo()
        raise
    assert info is not None
    if return_all_grad_graphs:
        return {**{called: made for called, made in run.infos.items() if made is not None}, graph: info}
    return info


def _checked(name: str, graph: Graph, tensors: Iterable[Tensor]) -> Tuple[Tensor, ...]:
    tensors = tuple(tensors)
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"autodiff: {name} must be Tensors, not {t!r}.")
        if t.graph is not graph:
            raise popart_exception(f"autodiff: {name} has {t!r}, which does not belong to {graph!r}.")
    return tensors
