"""Sessions: a compiled program, its device and its weights."""

import numbers
import reprlib
import warnings
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Union

import numpy as np

from popfn.host import _placement, dtypes
from popfn.host.engine import compile_program
from popfn.host.engine.stores import store_counts
from popfn.host.errors import HostDeviceWarning, popart_exception
from popfn.host.graph import Op
from popfn.host.ir import Ir
from popfn.host.streams import DeviceToHostStream, HostToDeviceStream, Stream
from popfn.host.tensor import Constant, Variable
from popfn.host.utils import as_array, check_numeric, downcast_np_dtypes, to_numpy

_FLOAT8 = (dtypes.float8_143, dtypes.float8_152)
# The ops that move elements and so take 8-bit floats, for which arithmetic is not defined, and those with a scale.
_TAKE_FLOAT8 = frozenset(
    "accumulator_zero_ call concat concat_ conditional conv_pow2scaled conv_transpose_pow2scaled copy_var_update_ "
    "detach detach_ dynamic_slice dynamic_update dynamic_update_ gather groupedgather host_load host_store identity "
    "init io_tile_copy ipu_copy matmul_pow2scaled pow2scale_cast_from_fp8 pow2scale_cast_to_fp8 print_tensor "
    "remote_load remote_load_ remote_store repeat replica_sharded_slice replicated_all_gather replicated_slice "
    "reshape reshape_ scatter slice slice_ split subsample transpose transpose_ where".split()
)
_told: Set[str] = set()  # the devices that a notice was given for


class _Transfers(Sequence[np.ndarray]):
    """The tensors of a stream's transfers, views of one array that are made when they are asked for."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return _Transfers(self._array[i])
        return self._array[i, ...]


_SHORT = reprlib.Repr()  # shows data in errors
_SHORT.maxother = 70


class Session:
    """A program that is ready to run. It takes over the Ir, to which nothing can be added afterwards.

    Inside `with session:` the session is attached to its device: on entry the weights are copied there, on
    exit back to the host. Blocks of one session nest; only the outermost attaches.

    Args:
        ir: The program.
        device_desc: "cpu", or any other name. All of them are this machine; each name but "cpu" gives one
            `HostDeviceWarning` a process.
        weights_to_host_on_exit: Whether weights are copied back on exit. They are not if an exception leaves
            the block, or the Ir has a variable whose data is a read-only `np.memmap`.

    Raises:
        RuntimeError: If the Ir has no ops.
        ValueError: If the number of replicas or transfers is not positive.
        popart_exception: If an op cannot run on any device, or a grouping is for another number of replicas.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> with ir.main_graph:
        ...     count = popxl.variable(0)
        ...     count += 1
        >>> with popxl.Session(ir) as session:
        ...     _ = session.run(), session.run()
        >>> session.get_tensor_data(count)
        array(2, dtype=int32)
    """

    def __init__(self, ir: Ir, device_desc: str = "cpu", weights_to_host_on_exit: bool = True) -> None:
        if not isinstance(ir, Ir):
            raise TypeError(f"Session: expected an Ir, not {ir!r}.")
        graphs = ir._reached_graphs()
        if not any(graph.ops for graph in graphs):
            raise RuntimeError(f"Session: {ir!r} has no ops: add some to its main graph.")
        _tell_where_it_runs(device_desc)
        if ir.instance_replication_factor < 1 or ir.num_host_transfers < 1:
            raise ValueError(
                f"Session: the numbers of replicas ({ir.replication_factor}) and of transfers "
                f"({ir.num_host_transfers}) must be positive."
            )
        if ir.main_graph.inputs:
            raise popart_exception(f"Session: nothing feeds the main graph's inputs, {ir.main_graph.inputs}.")
        for graph in graphs:
            for op in graph.ops:
                _check_runs(op, ir.replication_factor)
        for t in ir.main_graph.variables:
            _placement.check(t)
        with ir._handed_over(graphs):
            self._executable = compile_program(ir)
        self._ir = ir
        replicas = ir.instance_replication_factor
        self._lead = (ir.num_host_transfers,) if ir.num_host_transfers > 1 else ()  # axes of arrays
        self._replicas = (replicas,) if replicas > 1 else ()
        self._inputs = ir.get_all_h2d_streams()
        self._outputs = ir.get_all_d2h_streams()
        counts = store_counts(ir.main_graph)
        self._partly_stored = {s for s in self._outputs if counts[s][0] < ir.num_host_transfers}
        # The dtypes and shapes of arrays that need no conversion; 64-bit inputs may have to be narrowed.
        self._types = {
            s: (s.dtype.as_numpy(), self._replicas + s.shape)
            for s in self._inputs | self._outputs
            if not self._lead and s.dtype.as_numpy() not in downcast_np_dtypes
        }
        self._variables = [t for t in ir.main_graph.variables if _placement.is_stored(t)]
        self._retrieved: Dict[Variable, np.ndarray] = {}  # the values on all replicas, of those that want them
        self._is_attached = False
        self._was_attached: List[bool] = []  # at the entry of each open `with` block
        self._host_is_stale = False  # a run may have changed variables on the device
        self.weights_to_host_on_exit = weights_to_host_on_exit and not ir._has_read_only_memmap

    @property
    def ir(self) -> Ir:
        """The program."""
        return self._ir

    @property
    def is_attached(self) -> bool:
        """Whether the session is attached to its device."""
        return self._is_attached

    # Runs

    def run(
        self, inputs: Optional[Mapping[HostToDeviceStream, Any]] = None, downcast_inputs: bool = True
    ) -> Dict[DeviceToHostStream, np.ndarray]:
        """Run the program once and return an array for each output stream.

        With d = `ir.num_host_transfers` and r replicas in this process, an array has the shape of its stream,
        after leading axes of the lengths d and r, each if it is above 1. An input may be longer along the axis
        of the transfers. What a run does not store to, such as a stream in a branch that it does not take, or the
        last transfers of one that it stores to less than d times, is 0.

        Args:
            inputs: Data for each stream of `expected_inputs()`: arrays, numbers or lists, of the stream's
                dtype.
            downcast_inputs: Whether 64-bit inputs are narrowed to 32 bits.

        Raises:
            ValueError: If the session is not attached, a stream is missing or not expected, or a shape is
                wrong; for text, and lists of different lengths.
            TypeError: If an input is no array of numbers: None is no NaN.
            popart_exception: If an input's dtype is not its stream's.
        """
        self._check_attached("run")
        outputs = self.create_host_outputs()
        self.run_with_outputs(inputs, outputs, downcast_inputs)
        return outputs

    def run_with_outputs(
        self,
        inputs: Optional[Mapping[HostToDeviceStream, Any]] = None,
        outputs: Optional[Mapping[DeviceToHostStream, np.ndarray]] = None,
        downcast_inputs: bool = True,
    ) -> None:
        """`run`, but write the results into the arrays `outputs`: see `create_host_outputs`.

        What the run does not store to keeps its values.
        """
        self._check_attached("run")
        inputs, outputs = inputs or {}, outputs or {}
        if self._fit(inputs, self._inputs) and self._fit(outputs, self._outputs):
            read: Dict[Any, Sequence[np.ndarray]] = {stream: [array] for stream, array in inputs.items()}
            written: Dict[Any, Sequence[np.ndarray]] = {stream: [array] for stream, array in outputs.items()}
        else:
            self._check_streams("input", inputs, self._inputs)
            arrays = {stream: self._as_array(stream, data, downcast_inputs) for stream, data in inputs.items()}
            self._check_shapes("input", arrays)
            self._check_streams("output", outputs, self._outputs)
            self._check_shapes("output", outputs)
            read = {stream: self._transfers("input", stream, array) for stream, array in arrays.items()}
            written = {stream: self._transfers("output", stream, array) for stream, array in outputs.items()}
        self._host_is_stale = True
        self._executable.run(read, written)

    def expected_inputs(self) -> Set[HostToDeviceStream]:
        """Return the streams that need data in each run."""
        return set(self._inputs)

    def create_host_outputs(self) -> Dict[DeviceToHostStream, np.ndarray]:
        """Return an array for each output stream, as `run_with_outputs` takes them.

        It is of zeros if a run may store less to it than it holds, else uninitialised.
        """
        lead = self._lead + self._replicas
        return {
            s: (np.zeros if s in self._partly_stored else np.empty)(lead + s.shape, s.dtype.as_numpy())
            for s in self._outputs
        }

    def _fit(self, arrays: Mapping[Any, Any], expected: Set[Any]) -> bool:
        """Whether there is an array for each stream that needs neither conversion nor further checks."""
        if len(arrays) != len(expected):
            return False
        for stream, x in arrays.items():
            if type(x) is not np.ndarray or (x.dtype, x.shape) != self._types.get(stream) or not x.flags.carray:
                return False
            if stream not in expected:
                return False
        return True

    def _check_streams(self, kind: str, arrays: Mapping[Any, Any], expected: Set[Any]) -> None:
        if set(arrays) != expected:
            unexpected, missing = _names(set(arrays) - expected), _names(expected - set(arrays))
            raise ValueError(f"Unexpected/Missing {kind}.\n  Unexpected: {unexpected}\n  Missing: {missing}")

    def _as_array(self, stream: HostToDeviceStream, data: Any, downcast: bool) -> np.ndarray:
        try:
            array = as_array(data)
            check_numeric(array)
            return to_numpy(array, None, downcast, False)
        except (TypeError, ValueError) as error:
            is_array, reason = isinstance(data, np.ndarray), str(error).rstrip(".")
            given = f"an array of {data.dtype} and the shape {data.shape}" if is_array else _SHORT.repr(data)
            raise (TypeError if isinstance(error, TypeError) else ValueError)(
                f"the input for {stream} is {given}, expected an array of numbers of the shape "
                f"{self._lead + self._replicas + stream.shape} and the dtype {stream.dtype.as_numpy()} "
                f"({self._axes()}): {reason}."
            ) from None

    def _check_shapes(self, kind: str, arrays: Mapping[Any, Any]) -> None:
        for stream, array in arrays.items():
            self._check_shape(kind, stream, array)

    def _check_shape(self, kind: str, stream: Stream, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"the {kind} for {stream} must be a NumPy array of the shape "
                f"{self._lead + self._replicas + stream.shape}, not {_SHORT.repr(array)}."
            )
        lead = self._lead
        if lead:
            if not array.shape:
                raise IndexError(f"the {kind} for {stream} has no axis for {lead[0]} transfers.")
            if array.shape[0] < lead[0]:
                raise ValueError(
                    f"axis 0 ({array.shape[0]}) of the {kind} for {stream} is not large enough: "
                    f"num_host_transfers is {lead[0]}."
                )
        payload = array.shape[len(lead) :]
        replicas, payload = payload[: len(self._replicas)], payload[len(self._replicas) :]
        is_one = set(payload) <= {1} and set(stream.shape) <= {1}
        if replicas != self._replicas or payload != stream.shape and not is_one:
            raise ValueError(
                f"shape mismatch: the {kind} for {stream} has the shape {array.shape}, expected "
                f"{lead + self._replicas + stream.shape}: {self._axes()}."
            )

    def _axes(self) -> str:
        """What the axes of an array are."""
        axes = [f"{n} transfers" for n in self._lead] + [f"{n} replicas" for n in self._replicas]
        return ", ".join(axes + ["the axes of the stream"])

    def _transfers(self, kind: str, stream: Stream, array: np.ndarray) -> Sequence[np.ndarray]:
        """Split an array into the tensors of its transfers."""
        dtype = stream.dtype.as_numpy()
        if kind == "output" and not array.flags.writeable:
            raise ValueError(f"the output for {stream} is read-only.")
        if array.dtype != dtype:
            if stream.dtype in _FLOAT8 and array.dtype == np.uint8:
                array = array.view(dtype)
            elif kind == "input" and array.dtype == np.int64 and dtype == np.int32:
                array = array.astype(dtype)
            else:
                raise popart_exception(
                    f"type discrepancy: the {kind} for {stream} is of {array.dtype}, expected {dtype}."
                )
        shape = self._replicas + stream.shape
        if not self._lead:
            return [array.reshape(shape)]
        return _Transfers(array.reshape((len(array),) + shape))

    # Weights

    def weights_to_host(self) -> None:
        """Copy the variables from the device to the host.

        Raises:
            Exception: If the Ir has a variable whose data is a read-only memmap.
            ValueError: If the session is not attached.
        """
        if self._ir._has_read_only_memmap:
            raise Exception(
                "weights_to_host: the data of a variable is a read-only memmap, it cannot be written."
            )
        self._check_attached("weights_to_host")
        if self._host_is_stale:
            for t in self._variables:
                values = self._executable.read(_placement.holder(t))
                _placement.to_host(t, values)
                if _placement.wants_all(t):
                    self._retrieved[t] = _placement.on_all_replicas(t, values)
            self._host_is_stale = False
        for t in self._ir.main_graph.variables:
            if isinstance(t.data, np.memmap):
                t.data.flush()

    def weights_from_host(self) -> None:
        """Copy the variables from the host to the device; ValueError if the session is not attached."""
        self._check_attached("weights_from_host")
        for t in self._variables:
            self._executable.write(_placement.holder(t), _placement.to_device(t))
        self._retrieved.clear()
        self._host_is_stale = False

    def get_tensor_data(self, tensor: Union[Variable, Constant]) -> np.ndarray:
        """Return the value of a variable or constant: the array that the host keeps, so copy it to keep it.

        If the session is attached, what runs have changed is copied to the host first. The shape is
        `shape_on_host`, of a variable with `retrieval_mode="all_replicas"` that several replicas share
        (replicas, *shape).

        Raises:
            TypeError: If `tensor` is neither a variable nor a constant.
        """
        return self.get_tensors_data([tensor])[tensor]

    def get_tensors_data(
        self, tensors: Iterable[Union[Variable, Constant]]
    ) -> Dict[Union[Constant, Variable], np.ndarray]:
        """`get_tensor_data` for several tensors, with one copy to the host."""
        tensors = list(tensors)
        for t in tensors:
            if not isinstance(t, (Variable, Constant)):
                raise TypeError(f"get_tensor_data: {t!r} is neither a Variable nor a Constant.")
            self._check_own("get_tensor_data", t)
        if self._is_attached and self._host_is_stale and any(isinstance(t, Variable) for t in tensors):
            self.weights_to_host()
        return {t: self._host_value(t) for t in tensors}

    def _host_value(self, t: Union[Variable, Constant]) -> np.ndarray:
        if not isinstance(t, Variable) or not _placement.wants_all(t):
            return t.data
        if t not in self._retrieved:
            self._retrieved[t] = _placement.on_all_replicas(t, _placement.to_device(t))
        return self._retrieved[t]

    def write_variable_data(self, tensor: Variable, data: np.ndarray) -> None:
        """Set a variable on the host and, if the session is attached, copy all variables to the device.

        What runs have changed on the device is lost unless it was copied to the host before.

        Args:
            tensor: The variable.
            data: An array of its `shape_on_host` and dtype, or for any shape of one element a number.

        Raises:
            TypeError: If `tensor` is no variable, or the dtype differs.
            ValueError: If the shape differs.
            NotImplementedError: If replicas share it and its retrieval_mode is "all_replicas".
        """
        self.write_variables_data({tensor: data})

    def write_variables_data(self, tensors: Mapping[Variable, np.ndarray]) -> None:
        """`write_variable_data` for several variables, with one copy to the device."""
        arrays = {t: _checked_data(t, data) for t, data in tensors.items()}
        for t in arrays:
            self._check_own("write_variable_data", t)
        for t, array in arrays.items():
            np.copyto(t.data, array)
            self._retrieved.pop(t, None)
        if self._is_attached:
            self.weights_from_host()

    # Attachment

    def __enter__(self) -> "Session":
        self._was_attached.append(self._is_attached)
        if not self._is_attached:
            self._is_attached = True
            try:
                self.weights_from_host()
            except BaseException:
                self._is_attached = self._was_attached.pop()
                raise
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, exc_tb: Any) -> None:
        if self._was_attached.pop():
            return
        try:
            if exc_type is None and self.weights_to_host_on_exit:
                self.weights_to_host()
        finally:
            self._is_attached = False

    def _check_own(self, function: str, t: Union[Variable, Constant]) -> None:
        if t.graph.ir is not self._ir:
            raise ValueError(f"{function}: {t!r} belongs to another Ir than this session's.")

    def _check_attached(self, function: str) -> None:
        if not self._is_attached:
            raise ValueError(
                f"{function}: the session is not attached to its device. Put the call inside `with session:`."
            )


def _checked_data(t: Any, data: Any) -> np.ndarray:
    if not isinstance(t, Variable):
        raise TypeError(f"write_variable_data: {t!r} is not a Variable.")
    if _placement.wants_all(t):
        raise NotImplementedError(
            f'write_variable_data: {t!r} cannot be written: its retrieval_mode is "all_replicas".'
        )
    dtype = t.dtype.as_numpy()
    if isinstance(data, numbers.Number):
        if t.dtype in _FLOAT8:
            raise TypeError(f"write_variable_data: {t!r} takes an array of the dtype {dtype}, not a number.")
        data = np.array(data).astype(dtype)
    if getattr(data, "dtype", None) != dtype:
        found = getattr(data, "dtype", type(data).__name__)
        raise TypeError(f"write_variable_data: the dtype {found} is not that of {t!r}, {dtype}.")
    if data.shape != t.shape_on_host:
        raise ValueError(f"write_variable_data: the shape {data.shape} is not that of {t!r}, {t.shape_on_host}.")
    return data


def _tell_where_it_runs(device_desc: Any) -> None:
    """Give one notice a process for each device that is not there."""
    if not isinstance(device_desc, str):
        raise TypeError(f"Session: the device must be a str, not {device_desc!r}.")
    if device_desc == "cpu" or device_desc in _told:
        return
    _told.add(device_desc)
    warnings.warn(
        f"Session: there is no device {device_desc!r}: the program runs on this machine, as with 'cpu'.",
        HostDeviceWarning,
        stacklevel=3,
    )


def _check_runs(op: Op, replicas: int) -> None:
    """Refuse an op that PopXL lets a graph contain but no device runs."""
    fault = op.fault
    group = op.attrs.get("group")
    if fault is None and group is not None and len(group.assignment) != replicas:
        fault = f"{group!r} is for {len(group.assignment)} replicas, and there are {replicas}"
    if fault is None and op.kind not in _TAKE_FLOAT8:
        for t in op.inputs + op.outputs:
            if t.dtype in _FLOAT8:
                fault = f"there is no arithmetic for {t.dtype.name}"
    if fault is not None:
        taken, made = [", ".join(map(repr, ts)) for ts in (op.inputs, op.outputs)]
        which = f" of {taken}" * bool(taken) + f", which makes {made}," * bool(made)
        place = f" ({op.user_line})" if op.user_line else ""
        raise popart_exception(f"Session: {op.kind}{which} cannot run: {fault}{place}.")


def _names(streams: Iterable[Any]) -> str:
    return "{" + ", ".join(sorted(str(s) for s in streams)) + "}"
