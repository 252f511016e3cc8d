"""Loads from and stores to the host and remote memory."""

from typing import Dict, Optional, Union

from popfn.host import dtypes
from popfn.host.context import get_current_graph
from popfn.host.graph import Graph
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.remote_buffer import RemoteBuffer
from popfn.host.streams import DeviceToHostStream, HostToDeviceStream, Stream
from popfn.host.tensor import Tensor, _check_name, constant


def host_load(h2d_stream: HostToDeviceStream, name: Optional[str] = None) -> Tensor:
    """Return the next tensor of a stream from the host.

    All loads of one stream share its cursor, which each run starts at element 0.

    Raises:
        TypeError: If `h2d_stream` is no host-to-device stream.
        ValueError: If it belongs to another Ir.
    """
    graph = get_current_graph()
    _check_name("host_load", name)
    if not isinstance(h2d_stream, HostToDeviceStream):
        raise TypeError(f"host_load: expected a HostToDeviceStream, not {h2d_stream!r}.")
    _check_ir("host_load", h2d_stream)
    name = (name or h2d_stream.tensor_id) + "_hostload"
    return _build.emit(
        graph, "host_load", (), h2d_stream.shape, h2d_stream.dtype, {"stream": h2d_stream}, name
    )


def host_store(d2h_stream: DeviceToHostStream, t: Tensor) -> None:
    """Write `t` as the next tensor of a stream to the host.

    What no store of a run reaches in the host's array keeps its value; see `Session.run`.

    Raises:
        TypeError: If `d2h_stream` is no device-to-host stream, or `t` no Tensor.
        ValueError: If `t` has another shape or dtype than the stream, or one belongs elsewhere.
    """
    if not isinstance(d2h_stream, DeviceToHostStream):
        raise TypeError(f"host_store: expected a DeviceToHostStream, not {d2h_stream!r}.")
    graph = _build.checked("host_store", t=t)
    _check_ir("host_store", d2h_stream)
    if t.dtype is not d2h_stream.dtype or t.shape != d2h_stream.shape:
        raise ValueError(f"host_store: {t!r} does not fit the stream {d2h_stream}.")
    graph._add_op("host_store", (t,), (), {"stream": d2h_stream})


def _check_ir(op: str, stream: Stream) -> None:
    if stream._tensor.graph.ir is not get_current_graph().ir:
        raise ValueError(f"{op}: the stream {stream} belongs to another Ir.")


def remote_load(
    remote_buffer: RemoteBuffer, offset: Union[int, Tensor], name: Optional[str] = None
) -> Tensor:
    """Return a copy of an entry of a remote buffer, with the buffer's meta_shape.

    Loads and stores run in the order of their making.

    Args:
        remote_buffer: The buffer.
        offset: The entry: an int, or a tensor of one integer.
        name: What the name of the result begins with.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a tensor or the buffer belongs elsewhere.
    """
    graph = _checked_buffer("remote_load", remote_buffer)
    _check_name("remote_load", name)
    with graph._undo_on_error():
        offset = _as_offset("remote_load", offset)
        _build.checked("remote_load", offset=offset)
        name = name or f"id_{remote_buffer.remote_buffer_id}_offset_{offset.name}"
        return _build.emit(
            graph,
            "remote_load",
            (offset,),
            remote_buffer.tensor_shape,
            remote_buffer.tensor_dtype,
            {"buffer": remote_buffer},
            name + "_remote_loaded",
            remote_buffer.meta_shape,
            _offset_fault(offset),
        )


def remote_load_(remote_buffer: RemoteBuffer, offset: Union[int, Tensor], t: Tensor) -> Tensor:
    """Overwrite `t` with an entry of a remote buffer.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `t` does not fit the buffer, or a tensor or the buffer belongs elsewhere.
    """
    graph = _checked_buffer("remote_load_", remote_buffer)
    with graph._undo_on_error():
        offset = _as_offset("remote_load_", offset)
        _build.checked("remote_load_", t=t, offset=offset)
        remote_buffer.validate_tensor_matches_buffer(t)
        return _build.emit(
            graph,
            "remote_load_",
            (t, offset),
            t.shape,
            t.dtype,
            {"buffer": remote_buffer},
            "remote_load_inplace_out",
            t.meta_shape,
            _offset_fault(offset),
        )


def remote_store(remote_buffer: RemoteBuffer, offset: Union[int, Tensor], t: Tensor) -> None:
    """Copy `t` to an entry of a remote buffer.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `t` does not fit the buffer, or a tensor or the buffer belongs elsewhere.
    """
    graph = _checked_buffer("remote_store", remote_buffer)
    with graph._undo_on_error():
        offset = _as_offset("remote_store", offset)
        _build.checked("remote_store", t=t, offset=offset)
        remote_buffer.validate_tensor_matches_buffer(t)
        graph._add_op("remote_store", (t, offset), (), {"buffer": remote_buffer}, _offset_fault(offset))


def _checked_buffer(op: str, remote_buffer: RemoteBuffer) -> Graph:
    graph = get_current_graph()
    if not isinstance(remote_buffer, RemoteBuffer):
        raise TypeError(f"{op}: expected a RemoteBuffer, not {remote_buffer!r}.")
    if remote_buffer._ir is not graph.ir:
        raise ValueError(f"{op}: {remote_buffer!r} belongs to another Ir.")
    return graph


def _as_offset(op: str, offset: Union[int, Tensor]) -> Tensor:
    if isinstance(offset, Tensor):
        return offset
    if not isinstance(offset, int):
        raise TypeError(f"{op}: the offset must be an int or a Tensor, not {offset!r}.")
    if offset < 0:
        raise ValueError(f"{op}: the offset must not be negative: {offset}.")
    if offset >= 2**32:
        raise ValueError(f"{op}: the offset does not fit uint32: {offset}.")
    return constant(offset, dtypes.uint32, "offset")


def _offset_fault(offset: Tensor) -> Optional[str]:
    """What PopXL does not check when the graph is built."""
    if not offset.dtype.is_int or _build.nelms(offset.shape) != 1:
        return f"the offset {offset!r} is not one integer"
    return None


def remote_code_load(graph: Graph, destination: str) -> None:
    """Load the code of a graph ahead of its calls: no effect on the host.

    Args:
        graph: The graph, which must not be the current one.
        destination: "executable".

    Raises:
        TypeError: If `graph` is no Graph.
        NotImplementedError: If the destination is another.
        ValueError: If the graph is the current one.
    """
    code_copy(graph, "remote_buffer", destination)


def code_copy(graph: Graph, source: str, destination: str) -> None:
    """`remote_code_load`, which is the one copy that PopXL has: from "remote_buffer" to "executable"."""
    current = get_current_graph()
    if not isinstance(graph, Graph):
        raise TypeError(f"remote_code_load: expected a Graph, not {graph!r}.")
    if graph is current:
        raise ValueError(f"remote_code_load: {graph!r} is the current graph, whose code is running.")
    if source != "remote_buffer" or destination != "executable":
        raise NotImplementedError(
            f'remote_code_load: the destination must be "executable", not {destination!r} (from {source!r}).'
        )
    current._add_op("remote_code_load", (), (), {"code": graph, "destination": destination})


# The engines have their own ways to move data and code.
KERNELS: Dict[str, Kernel] = {
    "host_load": Kernel(None, effect=True),
    "host_store": Kernel(None, effect=True),
    "remote_load": Kernel(None, effect=True),
    "remote_load_": Kernel(None, effect=True, writes=True, overwrites=True),
    "remote_store": Kernel(None, effect=True),
    "remote_code_load": Kernel(None),
}
