"""Loads from and stores to the host."""

from typing import Optional

from popfn.host.context import get_current_graph
from popfn.host.ops import _build
from popfn.host.streams import DeviceToHostStream, HostToDeviceStream, Stream
from popfn.host.tensor import Tensor, _check_name


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
