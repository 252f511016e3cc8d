"""Streams between the host and the device."""

from typing import Iterable, Optional, Type, TypeVar

from popfn.host import dtypes
from popfn.host.context import get_main_graph
from popfn.host.tensor import Shape, Tensor, TensorSpec, _as_shape, _check_dtype, _check_name

S = TypeVar("S", bound="Stream")


class Stream:
    """A named channel of tensors of one type. `h2d_stream` and `d2h_stream` make streams."""

    __slots__ = ("_tensor",)
    _tensor: Tensor

    def __init__(self) -> None:
        raise NotImplementedError("a stream cannot be constructed: use h2d_stream or d2h_stream.")

    @property
    def dtype(self) -> dtypes.dtype:
        """The dtype of each tensor."""
        return self._tensor.dtype

    @property
    def shape(self) -> Shape:
        """The shape of each tensor, for one replica and one transfer."""
        return self._tensor.shape

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return self._tensor.spec

    @property
    def tensor_id(self) -> str:
        """The name of the stream, unique in the Ir."""
        return self._tensor.id

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.tensor_id} {self.dtype} {self.shape}"

    __repr__ = __str__


class HostToDeviceStream(Stream):
    """A stream that `ops.host_load` reads."""

    __slots__ = ()


class DeviceToHostStream(Stream):
    """A stream that `ops.host_store` writes."""

    __slots__ = ()


def h2d_stream(shape: Iterable[int], dtype: dtypes.dtype, name: Optional[str] = None) -> HostToDeviceStream:
    """Make a stream from the host to the device, in the Ir of the current graph.

    Args:
        shape: The shape of one transfer to one replica.
        dtype: The dtype.
        name: The name, by default "h2d_stream".

    Raises:
        TypeError: If an argument has the wrong type.
        RuntimeError: If there is no current graph.
    """
    return _make(HostToDeviceStream, "h2d_stream", shape, dtype, name)


def d2h_stream(shape: Iterable[int], dtype: dtypes.dtype, name: Optional[str] = None) -> DeviceToHostStream:
    """Make a stream from the device to the host; the arguments are those of `h2d_stream`."""
    return _make(DeviceToHostStream, "d2h_stream", shape, dtype, name)


def _make(cls: Type[S], function: str, shape: Iterable[int], dtype: dtypes.dtype, name: Optional[str]) -> S:
    graph = get_main_graph()
    _check_name(function, name)
    _check_dtype(function, dtype)
    stream = object.__new__(cls)
    stream._tensor = graph._add_tensor(Tensor, name or function, _as_shape(function, shape), dtype)
    return stream
