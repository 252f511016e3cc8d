"""How the NumPy engine writes down loads from and stores to the host and remote memory."""

import math
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from popfn.host.engine.plan import LOADED, Place, Step, storage_dtype
from popfn.host.engine.program import Operand
from popfn.host.errors import popart_exception
from popfn.host.kernels.layout import c_strides


def write_host_load(writer: Any, step: Step) -> None:
    """A load is the array itself unless that is modified."""
    (place,) = step.outs
    stream = step.op.attrs["stream"]
    if stream in writer.program.uneven:
        array = f"{writer.streams[stream]}.load({_taking(writer, step.ins)})"
    else:
        array = _next(writer, stream)
    if place.root.kind == LOADED:
        place.root.memory = writer.local_memory(place.label.rsplit("/", 1)[-1], place.shape, place.dtype)
        writer.line(f"{place.root.memory.name} = {array}")
    else:
        writer.line(f"{writer.program.function('copyto')}({writer.operand_of(place).name}, {array})")


def write_host_store(writer: Any, step: Step) -> None:
    """A store copies to the array."""
    stream, value = step.op.attrs["stream"], writer.operand_of(step.ins[0]).name
    if stream in writer.program.uneven:
        taking = _taking(writer, step.ins[1:])
        writer.line(f"{writer.streams[stream]}.store({', '.join([value, taking] if taking else [value])})")
    else:
        writer.line(f"{writer.program.function('copyto')}({_next(writer, stream)}, {value})")


def _taking(writer: Any, ins: Sequence[Place]) -> str:
    """The operand that says which replicas load or store, if not all do."""
    return "".join(writer.operand_of(place).name for place in ins)


def _next(writer: Any, stream: Any) -> str:
    as_bytes = '.view("uint8")' if storage_dtype(stream.dtype) != stream.dtype.as_numpy() else ""
    return f"{writer.streams[stream]}(){as_bytes}"


def write_remote_load(s: Any) -> None:
    """A copy of an entry."""
    for out, entry, _ in _entries(s, s.out, s.ins[-1]):
        s.line(f"{s.function('copyto')}({out.name}, {entry})")


def write_remote_store(s: Any) -> None:
    """A copy to an entry, whose old value is kept for the case that the run fails.

    Between the tensor and the offset may stand which replicas store.
    """
    t, *taking, offset = s.ins
    where = ""
    if taking:
        ones = (1,) * len(s.op.attrs["buffer"].tensor_shape)
        where = f", where={s.reshaped(taking[0], taking[0].shape + ones).name}"
    copy = s.function("copyto")
    for x, entry, replica in _entries(s, t, offset):
        if replica is None or not taking:
            s.line(f"{copy}({s.kept(entry)}, {x.name}{'' if replica is not None else where})")
        else:
            with s.block(f"if {taking[0].name}.item({replica}):"):
                s.line(f"{copy}({s.kept(entry)}, {x.name})")


def _entries(s: Any, t: Operand, offset: Operand) -> Iterator[Tuple[Operand, str, Optional[int]]]:
    """An operand, an expression for the entry at its offset, and None; or all three for each replica."""
    buffer, memory = s.op.attrs["buffer"], s.buffer(s.op.attrs["buffer"])
    lead, dtype = s.writer.program.lead(buffer), storage_dtype(buffer.tensor_dtype)
    shape = lead + buffer.tensor_shape
    size = math.prod(shape) * dtype.itemsize
    if offset.literal is not None and 0 <= offset.literal < buffer.entries:
        start = int(offset.literal) * size
        yield t, s.writer.operand(memory, shape, dtype, c_strides(shape, dtype.itemsize), start).name, None
        return
    entries = (buffer.entries,) + shape
    whole = s.writer.operand(memory, entries, dtype, c_strides(entries, dtype.itemsize), 0)
    check = None if s.op in s.writer.program.within else s.bind("entry", entry_check(s.op))

    def checked(i: str) -> str:
        return i if check is None else f"{check}({i})"

    # The ellipsis makes a view of an entry that is a scalar too.
    count = math.prod(offset.shape)
    if count == 1:
        yield t, f"{whole.name}[{checked(offset.name + '.item()')}, ...]", None
        return
    for i in range(count):
        place = checked(f"{offset.name}.item({i})") + (f", {i}" if lead else "")
        x = s.row(t, i) if len(t.shape) > len(buffer.tensor_shape) else t
        yield x, f"{whole.name}[{place}, ...]", i


def entry_check(op: Any) -> Callable[[int], int]:
    """A function that returns the offset of an op on a remote buffer, or refuses one outside the buffer."""
    entries = op.attrs["buffer"].entries

    def check(offset: int) -> int:
        if not 0 <= offset < entries:
            raise outside(op, offset)
        return offset

    return check


def outside(op: Any, offset: int) -> popart_exception:
    """The error for an offset outside the buffer."""
    buffer = op.attrs["buffer"]
    stored = f", stored: {op.inputs[0].id}" if op.kind == "remote_store" else ""
    made = "".join(f", loaded: {t.id}" for t in op.outputs)
    error = popart_exception(
        f"{op.kind}: the offset {offset} is out of range for {buffer!r}, which has the entries 0 to "
        f"{buffer.entries - 1} (the offset is the tensor {op.inputs[-1].id}{stored}{made}), at {op.user_line}."
    )
    error.outside = op, offset
    return error


STREAMS: Dict[str, Callable[[Any, Step], None]] = {"host_load": write_host_load, "host_store": write_host_store}
REMOTE: Dict[str, Callable[[Any], None]] = {
    "remote_load": write_remote_load,
    "remote_load_": write_remote_load,
    "remote_store": write_remote_store,
}
