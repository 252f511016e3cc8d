"""What a grad graph takes and gives."""

from enum import Enum
from typing import Dict, Iterable, Tuple

from popfn.host.graph import Graph
from popfn.host.ops import CallSiteInfo
from popfn.host.tensor import Tensor


class ExpectedConnectionType(Enum):
    """What an input or output of a grad graph is: a forward tensor's value, or its gradient."""

    Fwd = "Fwd"
    FwdGrad = "FwdGrad"


class ExpectedConnection:
    """What one input or output of a grad graph is connected to."""

    __slots__ = ("_fwd_tensor", "_connection_type")

    def __init__(self, fwd_tensor: Tensor, connection_type: ExpectedConnectionType) -> None:
        self._fwd_tensor = fwd_tensor
        self._connection_type = connection_type

    @property
    def fwd_tensor(self) -> Tensor:
        """A tensor of the forward graph."""
        return self._fwd_tensor

    @property
    def connection_type(self) -> ExpectedConnectionType:
        """Whether it is the tensor's value or its gradient."""
        return self._connection_type

    def __repr__(self) -> str:
        return f"({self._connection_type}, {self._fwd_tensor!r})"


class GradGraphInfo:
    """A grad graph, and what each of its inputs and outputs is.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> fwd = ir.create_graph(popxl.ops.matmul, *[popxl.TensorSpec((2, 2), popxl.float32)] * 2)
        >>> info = popxl.transforms.autodiff(fwd)
        >>> with ir.main_graph:
        ...     x, w = popxl.variable([[1.0, 2.0], [3.0, 4.0]]), popxl.variable([[0.0, 1.0], [1.0, 0.0]])
        ...     call = popxl.ops.call_with_info(fwd, x, w)
        ...     seed = popxl.constant([[1.0, 1.0], [1.0, 1.0]])
        ...     to_x, to_w = popxl.ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
    """

    __slots__ = ("_graph", "_forward_graph", "_expected_inputs", "_expected_outputs")

    def __init__(
        self,
        graph: Graph,
        forward_graph: Graph,
        expected_inputs: Iterable[ExpectedConnection],
        expected_outputs: Iterable[ExpectedConnection],
    ) -> None:
        self._graph = graph
        self._forward_graph = forward_graph
        self._expected_inputs = tuple(expected_inputs)
        self._expected_outputs = tuple(expected_outputs)

    @property
    def graph(self) -> Graph:
        """The grad graph."""
        return self._graph

    @property
    def forward_graph(self) -> Graph:
        """The graph that was differentiated."""
        return self._forward_graph

    @property
    def expected_inputs(self) -> Tuple[ExpectedConnection, ...]:
        """What each input of the grad graph is: gradients of forward tensors, then forward values."""
        return self._expected_inputs

    @property
    def expected_outputs(self) -> Tuple[ExpectedConnection, ...]:
        """What each output of the grad graph is: the gradient of a forward tensor."""
        return self._expected_outputs

    @property
    def inputs(self) -> Tuple[Tensor, ...]:
        """The forward tensors of the inputs."""
        return tuple([connection.fwd_tensor for connection in self._expected_inputs])

    @property
    def outputs(self) -> Tuple[Tensor, ...]:
        """The forward tensors of the outputs."""
        return tuple([connection.fwd_tensor for connection in self._expected_outputs])

    def inputs_dict(self, fwd_call_info: CallSiteInfo) -> Dict[Tensor, Tensor]:
        """Return, for a call of the forward graph, what the grad graph's inputs that are forward values get.

        Args:
            fwd_call_info: The call.

        Raises:
            TypeError: If it calls another graph.
        """
        self._check_call("inputs_dict", fwd_call_info, self._forward_graph)
        return {
            own: fwd_call_info.graph_to_parent(connection.fwd_tensor)
            for own, connection in zip(self._graph.inputs, self._expected_inputs)
            if connection.connection_type is ExpectedConnectionType.Fwd
        }

    def fwd_graph_ins_to_grad_parent_outs(self, grad_call_info: CallSiteInfo) -> Dict[Tensor, Tensor]:
        """Return, for a call of the grad graph, the gradient of each tensor of the forward graph.

        Args:
            grad_call_info: The call.

        Raises:
            TypeError: If it calls another graph.
        """
        self._check_call("fwd_graph_ins_to_grad_parent_outs", grad_call_info, self._graph)
        return dict(zip(self.outputs, grad_call_info.outputs))

    def fwd_parent_ins_to_grad_parent_outs(
        self, fwd_call_info: CallSiteInfo, grad_call_info: CallSiteInfo
    ) -> Dict[Tensor, Tensor]:
        """Return, for calls of both graphs, the gradient of each tensor that was passed to the forward graph.

        Args:
            fwd_call_info: The call of the forward graph.
            grad_call_info: The call of the grad graph.

        Raises:
            TypeError: If either calls another graph.
        """
        self._check_call("fwd_parent_ins_to_grad_parent_outs", fwd_call_info, self._forward_graph)
        grads = self.fwd_graph_ins_to_grad_parent_outs(grad_call_info)
        return {fwd_call_info.graph_to_parent(t): grad for t, grad in grads.items()}

    def _check_call(self, method: str, info: CallSiteInfo, graph: Graph) -> None:
        if not isinstance(info, CallSiteInfo):
            raise TypeError(f"{method}: expected a CallSiteInfo, not {info!r}.")
        if info.called_graph is not graph:
            raise TypeError(f"{method}: the call is of {info.called_graph!r}, not of {graph!r}.")

    def __repr__(self) -> str:
        return (
            f"GradGraphInfo(graph={self._graph!r}, forward_graph={self._forward_graph!r}, "
            f"expected_inputs={self._expected_inputs!r}, expected_outputs={self._expected_outputs!r})"
        )
