"""Sums as chains of additions."""

from popfn.host.graph import Graph


def decompose_sum(graph: Graph) -> Graph:
    """Make chains of additions of the sums of several tensors in a graph, and return the graph.

    The graphs of the host have no other sums of several tensors than chains, those that `autodiff` makes
    included, so that the graph stays as it is. TypeError if it is no Graph.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"decompose_sum: expected a Graph, not {graph!r}.")
    return graph
