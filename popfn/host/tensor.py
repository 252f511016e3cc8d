"""Tensors: what a graph computes with. A Tensor has a shape, a dtype and a place in a graph, but no value."""

from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterable, Iterator, NewType, Optional, Tuple, Union

import numpy as np

from popfn.host import dtypes
from popfn.host.context import get_current_graph
from popfn.host.errors import UndefinedValue, popart_exception
from popfn.host.tensorlocation import TensorLocationInfo
from popfn.host.utils import to_numpy

Shape = Tuple[int, ...]
ScalarType = Union[int, float, bool]
HostTensor = Union[np.ndarray, Iterable[Any]]  # or a torch tensor
HostScalarTensor = Union[ScalarType, HostTensor]
host_tensor_types = (np.ndarray, list, tuple)


class TensorSpec(Mapping):
    """The type of a tensor: shape, dtype and meta_shape. It is a mapping of these three, and hashable.

    Example:
        >>> import popfn.host as popxl
        >>> popxl.TensorSpec((2, 3), popxl.float32)["shape"]
        (2, 3)
    """

    def __init__(self, shape: Shape, dtype: dtypes.dtype, meta_shape: Shape = ()) -> None:
        self.shape = shape
        self.dtype = dtype
        self.meta_shape = meta_shape

    def to_dict(self) -> Dict[str, Any]:
        """Return {"shape": ..., "dtype": ..., "meta_shape": ...}."""
        return {"shape": self.shape, "dtype": self.dtype, "meta_shape": self.meta_shape}

    def to_tuple(self) -> Tuple[Shape, dtypes.dtype, Shape]:
        """Return (shape, dtype, meta_shape)."""
        return self.shape, self.dtype, self.meta_shape

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __hash__(self) -> int:
        return hash(self.to_tuple())

    def __repr__(self) -> str:
        return "TensorSpec(shape={}, dtype={}, meta_shape={})".format(*self.to_tuple())


class Tensor:
    """A value that a graph will compute. Ops, `graph_input`, `variable` and `constant` make tensors.

    Operators add ops to the current graph. The other operand may be a host value: it becomes a constant of
    this tensor's dtype. `==` compares identity.
    """

    __slots__ = ("id", "name", "shape", "dtype", "meta_shape", "graph", "producer", "consumer")

    # The functions behind the operators: `popfn.host` puts itself here. Ops make tensors, so the modules that
    # define ops cannot be imported by this one.
    _popxl: Any = None

    id: str  # unique in the Ir
    name: str  # the id without the graph's part
    shape: Shape
    dtype: dtypes.dtype
    meta_shape: Shape  # of the whole tensor that this one is a part of, or ()
    graph: Any
    producer: Any  # the Op that makes this tensor, or None
    consumer: Any  # the first Op that uses it, or None

    def __init__(self) -> None:
        raise RuntimeError(
            "a Tensor cannot be constructed: ops, graph inputs, variables and constants make them."
        )

    # Facts

    @property
    def scope(self) -> str:
        """The graph's part of the id."""
        return self.graph.name

    @property
    def ir(self) -> Any:
        """The Ir of the graph."""
        return self.graph.ir

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and meta_shape."""
        return TensorSpec(self.shape, self.dtype, self.meta_shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nelms(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ipu(self) -> int:
        """The virtual IPU that holds the tensor; UndefinedValue if no op makes or uses it yet."""
        return self._place()[0]

    @property
    def tile_set(self) -> str:
        """The tiles that hold the tensor, "compute" or "io"; UndefinedValue if no op makes or uses it yet."""
        return self._place()[1]

    def _place(self) -> Tuple[int, str]:
        """The IPU and the tile set. What a call makes or takes is where the called graph has it."""
        op = self.producer
        if op is not None:
            place = op.ipu, op.tile_set
            return op.called[0]._outputs[op.outputs.index(self)]._place_or(place) if op.called else place
        op = self.consumer
        if op is None:
            raise UndefinedValue(f"the place of {self!r} is not known before an op uses it.")
        if op.kind in ("call", "repeat"):
            return op.called[0]._inputs[op.inputs.index(self)]._place_or((op.ipu, op.tile_set))
        return op.attrs.get("source", (op.ipu, op.tile_set))

    def _place_or(self, default: Tuple[int, str]) -> Tuple[int, str]:
        try:
            return self._place()
        except UndefinedValue:
            return default

    @property
    def location_info(self) -> Any:
        """Where the tensor is stored: on the chip, and whole."""
        return TensorLocationInfo()

    @property
    def in_sync_with_ipu(self) -> bool:
        """Whether the host's copy is the device's. Only variables have one (popart_exception)."""
        raise popart_exception(f"in_sync_with_ipu: {self!r} has no copy on the host.")

    def strides(self, shape: Optional[Iterable[int]] = None) -> Tuple[int, ...]:
        """Return the bytes from one element to the next along each axis of `shape`, or of the tensor."""
        size, result = self.dtype.as_numpy().itemsize, []
        for length in reversed(self.shape if shape is None else tuple(shape)):
            result.append(size)
            size *= length
        return tuple(reversed(result))

    def __len__(self) -> int:
        if not self.shape:
            raise ValueError(f"{self!r} is a scalar: it has no len().")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Tensor[{self.id} {self.dtype.name} {self.shape}]"

    __iter__ = None
    __contains__ = None
    __array_ufunc__ = None  # so that `array + tensor` comes to Tensor.__radd__

    # Methods: see the ops of these names

    @property
    def T(self) -> "Tensor":
        """The transpose: all axes reversed."""
        return self.transpose()

    @property
    def T_(self) -> "Tensor":
        """The transpose as a view."""
        return self.transpose_()

    def transpose(self, permutation: Optional[Iterable[int]] = None) -> "Tensor":
        """See `ops.transpose`."""
        return self._popxl.ops.transpose(self, permutation)

    def transpose_(self, permutation: Optional[Iterable[int]] = None) -> "Tensor":
        """See `ops.transpose_`."""
        return self._popxl.ops.transpose_(self, permutation)

    def reshape(self, shape: Iterable[int]) -> "Tensor":
        """See `ops.reshape`."""
        return self._popxl.ops.reshape(self, shape)

    def reshape_(self, shape: Iterable[int]) -> "Tensor":
        """See `ops.reshape_`."""
        return self._popxl.ops.reshape_(self, shape)

    def flatten(self) -> "Tensor":
        """See `ops.flatten`."""
        return self._popxl.ops.flatten(self)

    def flatten_(self) -> "Tensor":
        """See `ops.flatten_`."""
        return self._popxl.ops.flatten_(self)

    def detach(self) -> "Tensor":
        """See `ops.detach`."""
        return self._popxl.ops.detach(self)

    def detach_(self) -> "Tensor":
        """See `ops.detach_`."""
        return self._popxl.ops.detach_(self)

    def copy_to_ipu(self, destination: int, source: Optional[int] = None) -> "Tensor":
        """See `ops.ipu_copy`."""
        return self._popxl.ops.ipu_copy(self, destination, source)

    def diag(self) -> "Tensor":
        """Return every (columns + 1)-th element of a matrix, its diagonal; ValueError unless it is one."""
        if len(self.shape) != 2:
            raise ValueError(f"diag: {self!r} has rank {len(self.shape)}, not 2.")
        with get_current_graph()._undo_on_error():
            return self._popxl.ops.subsample(self.flatten(), [self.shape[1] + 1])

    # Operators

    def _apply(self, op: Callable[..., "Tensor"], other: Any, reflected: bool = False) -> "Tensor":
        if isinstance(other, Tensor):
            return op(self, other)
        with get_current_graph()._undo_on_error():
            other = self._constant_like(other)
            return op(other, self) if reflected else op(self, other)

    def _constant_like(self, data: Any) -> "Tensor":
        array = to_numpy(data, self.dtype)
        if not array.size:
            raise ValueError(f"an operand of shape {array.shape} has no elements.")
        return _add_constant(array, self.dtype)

    def __add__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.add, other)

    def __radd__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.add, other, True)

    def __iadd__(self, other: Any) -> "Tensor":
        self._apply(self._popxl.ops.add_, other)
        return self

    def __sub__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.sub, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.sub, other, True)

    def __mul__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.mul, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.mul, other, True)

    def __truediv__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.div, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.div, other, True)

    def __mod__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.fmod, other)

    def __rmod__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.fmod, other, True)

    def __matmul__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.matmul, other)

    def __rmatmul__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.matmul, other, True)

    def __and__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.logical_and, other)

    def __rand__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.logical_and, other, True)

    def __or__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.logical_or, other)

    def __ror__(self, other: Any) -> "Tensor":
        return self._apply(self._popxl.ops.logical_or, other, True)

    def __pow__(self, other: Any) -> "Tensor":
        return self._popxl.ops.pow(self, other)

    def __rpow__(self, other: Any) -> "Tensor":
        with get_current_graph()._undo_on_error():  # as in PopXL, the constant keeps its own dtype
            return self._popxl.ops.pow(constant(other), self)

    def __neg__(self) -> "Tensor":
        return self._popxl.ops.negate(self)

    def __invert__(self) -> "Tensor":
        return self._popxl.ops.logical_not(self)

    def __getitem__(self, key: Any) -> "Tensor":
        return self._popxl.ops._getitem(self, key)


TensorByRef = NewType("TensorByRef", Tensor)
"""Annotates a parameter of a function for `create_graph` whose tensor is passed by reference."""


TensorLike = Union[Tensor, HostScalarTensor]


class Variable(Tensor):
    """State of the program: it starts from the host's data and keeps its value from run to run."""

    __slots__ = ("data", "retrieval_mode", "_grouping", "_remote", "_shard", "_shard_over")
    data: np.ndarray  # the host's copy, C-ordered; a memmap stays aliased to its file
    retrieval_mode: str
    _grouping: Any  # a ReplicaGrouping, or None for one group of all replicas
    _remote: Any  # the RemoteBuffer and the entry that hold the variable, or None
    _shard: Optional["Shard"]  # what holds the variable on the device, if that is not this tensor
    _shard_over: Optional[int]  # into how many of these it is cut

    @property
    def replica_grouping(self) -> Any:
        """Which replicas have the same value."""
        return self.ir.replica_grouping() if self._grouping is None else self._grouping

    @property
    def shape_on_replica(self) -> Shape:
        """The shape on the device; popart_exception if the replica grouping is not const."""
        if self._grouping is not None and not self._grouping.is_const:
            raise popart_exception(f"shape_on_replica: the grouping of {self!r} is not const; use shape.")
        return self.shape

    @property
    def shape_on_host(self) -> Shape:
        """The shape of the host's data: that on the device, after an axis for the groups if there are several."""
        groups = 1 if self._grouping is None else self._grouping.num_groups
        return self.shape if groups == 1 else (groups,) + self.shape

    def copy_to_ipu(self, dst: int, src: int) -> Tensor:  # type: ignore[override]
        """See `ops.ipu_copy`; a variable has no IPU of its own, so the source must be given."""
        return self._popxl.ops.ipu_copy(self, dst, src)


class Shard(Tensor):
    """The part of a variable that one replica keeps: state on the device; see `replica_sharded_variable`."""

    __slots__ = ()


class Constant(Tensor):
    """A value that is fixed when the graph is built."""

    __slots__ = ("data",)
    data: np.ndarray

    def copy_to_ipu(self, dst: int, src: int) -> Tensor:  # type: ignore[override]
        """See `ops.ipu_copy`; a constant has no IPU of its own, so the source must be given."""
        return self._popxl.ops.ipu_copy(self, dst, src)


def constant(
    data: Any,
    dtype: Optional[dtypes.dtype] = None,
    name: Optional[str] = None,
    downcast: bool = True,
    log2_scale: Optional[int] = None,
    nan_on_overflow: Optional[bool] = None,
) -> Constant:
    """Add a constant to the current graph.

    Args:
        data: A number, list, NumPy array or torch tensor.
        dtype: The dtype; by default that of the data, with 64-bit numbers narrowed to 32 bits.
        name: The name, by default "t".
        downcast: Whether to narrow.
        log2_scale, nan_on_overflow: How to make 8-bit floats; see `utils.to_numpy`.

    Raises:
        TypeError: If the data is not numeric, is of 8-bit floats while no dtype is given, or the name is not
            a str.
        RuntimeError: If there is no current graph.
    """
    get_current_graph()
    _check_name("constant", name)
    array = to_numpy(data, dtype, downcast, True, log2_scale, nan_on_overflow)
    found = dtypes.dtype.as_dtype(array.dtype)
    if dtype is None and found in (dtypes.float8_143, dtypes.float8_152):
        raise TypeError(f"constant: data of {found} needs the argument dtype={found}.")
    return _add_constant(array, found, name)


def _add_constant(array: np.ndarray, dtype: dtypes.dtype, name: Optional[str] = None) -> Constant:
    made = get_current_graph()._add_tensor(Constant, name or "t", array.shape, dtype)
    made.data = np.array(array) if isinstance(array, np.memmap) else array
    made.data.flags.writeable = False
    return made


def graph_input(
    shape: Iterable[int],
    dtype: dtypes.dtype,
    name: Optional[str] = None,
    by_ref: bool = False,
    meta_shape: Optional[Iterable[int]] = None,
) -> Tensor:
    """Add an input to the current graph, after those it has.

    Args:
        shape: The shape.
        dtype: The dtype.
        name: The name, by default "t".
        by_ref: Whether writes to the input reach the tensor that a call passes.
        meta_shape: The shape of the whole tensor that this one is a part of.

    Raises:
        TypeError: If an argument has the wrong type.
        RuntimeError: If there is no current graph.
    """
    graph = get_current_graph()
    _check_name("graph_input", name)
    _check_dtype("graph_input", dtype)
    made = graph._add_tensor(
        Tensor, name or "t", _as_shape("graph_input", shape), dtype, tuple(meta_shape or ())
    )
    graph._inputs.append(made)
    if by_ref:
        graph._by_ref.add(made)
    return made


def graph_output(t: Tensor) -> None:
    """Add `t` to the outputs of the current graph; ValueError if it belongs to another one."""
    graph = get_current_graph()
    if not isinstance(t, Tensor):
        raise TypeError(f"graph_output: expected a Tensor, not {t!r}.")
    if t.graph is not graph:
        raise ValueError(f"graph_output: {t!r} does not belong to the current graph, {graph!r}.")
    graph._outputs.append(t)


def _check_name(function: str, name: Optional[str]) -> None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{function}: the name must be a str, not {name!r}.")


def _check_dtype(function: str, dtype: dtypes.dtype) -> None:
    if not isinstance(dtype, dtypes.dtype):
        raise TypeError(f"{function}: the dtype must be a popxl dtype such as popxl.float32, not {dtype!r}.")


def _as_shape(function: str, shape: Iterable[int]) -> Shape:
    try:
        return tuple([int(n.__index__()) for n in shape])
    except (TypeError, AttributeError):
        raise TypeError(f"{function}: a shape is a sequence of ints, not {shape!r}.") from None
