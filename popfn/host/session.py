"""Sessions: a compiled program, its device and its weights."""

import numbers
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Union

import numpy as np

from popfn.host import dtypes
from popfn.host.engine import compile_program
from popfn.host.errors import popart_exception
from popfn.host.graph import Op
from popfn.host.ir import Ir
from popfn.host.streams import DeviceToHostStream, HostToDeviceStream, Stream
from popfn.host.tensor import Constant, Variable
from popfn.host.utils import to_numpy

_DEVICES = ("ipu_hw", "ipu_model", "cpu")
_FLOAT8 = (dtypes.float8_143, dtypes.float8_152)
# The ops that move elements and so take 8-bit floats, for which arithmetic is not defined.
_MOVES = frozenset(
    "accumulator_zero_ call concat concat_ copy_var_update_ detach detach_ dynamic_slice dynamic_update "
    "dynamic_update_ gather host_load host_store identity init io_tile_copy ipu_copy reshape reshape_ slice "
    "slice_ split subsample transpose transpose_ where".split()
)


class Session:
    """A program that is ready to run. It takes over the Ir, to which nothing can be added afterwards.

    Inside `with session:` the session is attached to its device: on entry the weights are copied there, on
    exit back to the host. Blocks of one session nest; only the outermost attaches.

    Args:
        ir: The program.
        device_desc: "cpu", "ipu_model" or "ipu_hw". All of them are this machine.
        weights_to_host_on_exit: Whether weights are copied back on exit. They are not if an exception leaves
            the block, or the Ir has a variable whose data is a read-only `np.memmap`.

    Raises:
        RuntimeError: If the Ir has no ops.
        ValueError: If the device is unknown.
        popart_exception: If an op cannot run on any device.

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
        if device_desc not in _DEVICES:
            raise ValueError(f"Session: the device must be one of {_DEVICES}, not {device_desc!r}.")
        if ir.main_graph.inputs:
            raise popart_exception(f"Session: nothing feeds the main graph's inputs, {ir.main_graph.inputs}.")
        for graph in graphs:
            for op in graph.ops:
                _check_runs(op)
        with ir._handed_over(graphs):
            self._executable = compile_program(ir)
        self._ir = ir
        self._lead = (ir.num_host_transfers,) if ir.num_host_transfers > 1 else ()  # axes of arrays
        self._inputs = ir.get_all_h2d_streams()
        self._outputs = ir.get_all_d2h_streams()
        self._variables = [t for t in ir.main_graph.variables if t.consumer is not None]
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

        With d = `ir.num_host_transfers`, an array has the shape of its stream, after a leading axis of length
        d if that is above 1. An input may be longer along that axis.

        Args:
            inputs: Data for each stream of `expected_inputs()`: arrays, numbers or lists, of the stream's
                dtype.
            downcast_inputs: Whether 64-bit inputs are narrowed to 32 bits.

        Raises:
            ValueError: If the session is not attached, a stream is missing or not expected, or a shape is
                wrong.
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
        """`run`, but write the results into the arrays `outputs`: see `create_host_outputs`."""
        self._check_attached("run")
        arrays = {
            stream: to_numpy(data, None, downcast_inputs, False) for stream, data in (inputs or {}).items()
        }
        outputs = outputs or {}
        self._check_streams("input", arrays, self._inputs)
        self._check_streams("output", outputs, self._outputs)
        read = {stream: self._transfers("input", stream, array) for stream, array in arrays.items()}
        written = {stream: self._transfers("output", stream, array) for stream, array in outputs.items()}
        self._host_is_stale = True
        self._executable.run(read, written)

    def expected_inputs(self) -> Set[HostToDeviceStream]:
        """Return the streams that need data in each run."""
        return set(self._inputs)

    def create_host_outputs(self) -> Dict[DeviceToHostStream, np.ndarray]:
        """Return an uninitialised array for each output stream, as `run_with_outputs` takes them."""
        return {s: np.empty(self._lead + s.shape, s.dtype.as_numpy()) for s in self._outputs}

    def _check_streams(self, kind: str, arrays: Mapping[Any, Any], expected: Set[Any]) -> None:
        if set(arrays) != expected:
            unexpected, missing = _names(set(arrays) - expected), _names(expected - set(arrays))
            raise ValueError(f"Unexpected/Missing {kind}.\n  Unexpected: {unexpected}\n  Missing: {missing}")
        for stream, array in arrays.items():
            self._check_shape(kind, stream, array)

    def _check_shape(self, kind: str, stream: Stream, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"the {kind} for {stream} must be a NumPy array, not {array!r}.")
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
        if payload != stream.shape and not (set(payload) <= {1} and set(stream.shape) <= {1}):
            raise ValueError(
                f"shape mismatch: the {kind} for {stream} has the shape {array.shape}, expected "
                f"{lead + stream.shape}."
            )

    def _transfers(self, kind: str, stream: Stream, array: np.ndarray) -> List[np.ndarray]:
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
        if not self._lead:
            return [array.reshape(stream.shape)]
        return [array[i : i + 1].reshape(stream.shape) for i in range(array.shape[0])]

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
                np.copyto(t.data, self._executable.read(t))
            self._host_is_stale = False
        for t in self._ir.main_graph.variables:
            if isinstance(t.data, np.memmap):
                t.data.flush()

    def weights_from_host(self) -> None:
        """Copy the variables from the host to the device; ValueError if the session is not attached."""
        self._check_attached("weights_from_host")
        for t in self._variables:
            self._executable.write(t, t.data)
        self._host_is_stale = False

    def get_tensor_data(self, tensor: Union[Variable, Constant]) -> np.ndarray:
        """Return the value of a variable or constant: the array that the host keeps, so copy it to keep it.

        If the session is attached, what runs have changed is copied to the host first.

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
        if self._is_attached and self._host_is_stale and any(isinstance(t, Variable) for t in tensors):
            self.weights_to_host()
        return {t: t.data for t in tensors}

    def write_variable_data(self, tensor: Variable, data: np.ndarray) -> None:
        """Set a variable on the host and, if the session is attached, copy all variables to the device.

        What runs have changed on the device is lost unless it was copied to the host before.

        Args:
            tensor: The variable.
            data: An array of its shape and dtype, or for any shape of one element a number.

        Raises:
            TypeError: If `tensor` is no variable, or the dtype differs.
            ValueError: If the shape differs.
        """
        self.write_variables_data({tensor: data})

    def write_variables_data(self, tensors: Mapping[Variable, np.ndarray]) -> None:
        """`write_variable_data` for several variables, with one copy to the device."""
        arrays = {t: _checked_data(t, data) for t, data in tensors.items()}
        for t, array in arrays.items():
            np.copyto(t.data, array)
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

    def _check_attached(self, function: str) -> None:
        if not self._is_attached:
            raise ValueError(
                f"{function}: the session is not attached to its device. Put the call inside `with session:`."
            )


def _checked_data(t: Any, data: Any) -> np.ndarray:
    if not isinstance(t, Variable):
        raise TypeError(f"write_variable_data: {t!r} is not a Variable.")
    dtype = t.dtype.as_numpy()
    if isinstance(data, numbers.Number):
        if t.dtype in _FLOAT8:
            raise TypeError(f"write_variable_data: {t!r} takes an array of the dtype {dtype}, not a number.")
        data = np.array(data).astype(dtype)
    if getattr(data, "dtype", None) != dtype:
        found = getattr(data, "dtype", type(data).__name__)
        raise TypeError(f"write_variable_data: the dtype {found} is not that of {t!r}, {dtype}.")
    if data.shape != t.shape_on_host:
        raise ValueError(f"write_variable_data: the shape {data.shape} is not that of {t!r}.")
    return data


def _check_runs(op: Op) -> None:
    """Refuse an op that PopXL lets a graph contain but no device runs."""
    fault = op.fault
    if fault is None and op.kind not in _MOVES:
        for t in op.inputs + op.outputs:
            if t.dtype in _FLOAT8:
                fault = f"there is no arithmetic for {t.dtype.name}"
    if fault is not None:
        made = ", ".join(repr(t) for t in op.outputs)
        raise popart_exception(f"Session: {op.kind}, which makes {made}, cannot run: {fault}.")


def _names(streams: Iterable[Any]) -> str:
    return "{" + ", ".join(sorted(str(s) for s in streams)) + "}"
