"""How the NumPy engine writes down loads from and stores to the host and remote memory."""

import math
from typing import Any, Callable, Dict, Iterator, Tuple

from popfn.host.engine.plan import LOADED, Step, storage_dtype
from popfn.host.engine.program import Operand
from popfn.host.errors import popart_exception
from popfn.host.kernels.layout import c_strides


def write_host_load(writer: Any, step: Step) -> None:
    """A load is the array itself unless that is modified."""
    (place,) = step.outs
    array = _next(writer, step)
    if place.root.kind == LOADED:
        place.root.memory = writer.local_memory(place.label.rsplit("/", 1)[-1], place.shape, place.dtype)
        writer.line(f"{place.root.memory.name} = {array}")
    else:
        writer.line(f"{writer.program.function('copyto')}({writer.operand_of(place).name}, {array})")


def write_host_store(writer: Any, step: Step) -> None:
    """A store copies to the array."""
    array = _next(writer, step)
    writer.line(f"{writer.program.function('copyto')}({array}, {writer.operand_of(step.ins[0]).name})")


def _next(writer: Any, step: Step) -> str:
    stream = step.op.attrs["stream"]
    as_bytes = '.view("uint8")' if storage_dtype(stream.dtype) != stream.dtype.as_numpy() else ""
    return f"{writer.streams[stream]}(){as_bytes}"


def write_remote_load(s: Any) -> None:
    """A copy of an entry."""
    for out, entry in _entries(s, s.out, s.ins[-1]):
        s.line(f"{s.function('copyto')}({out.name}, {entry})")


def write_remote_store(s: Any) -> None:
    """A copy to an entry."""
    for t, entry in _entries(s, *s.ins):
        s.line(f"{s.function('copyto')}({entry}, {t.name})")


def _entries(s: Any, t: Operand, offset: Operand) -> Iterator[Tuple[Operand, str]]:
    """Pairs of an operand and an expression for the entry at its offset: one, or one for each replica."""
    buffer, memory = s.op.attrs["buffer"], s.buffer(s.op.attrs["buffer"])
    lead, dtype = s.writer.program.lead(buffer), storage_dtype(buffer.tensor_dtype)
    shape = lead + buffer.tensor_shape
    size = math.prod(shape) * dtype.itemsize
    if offset.literal is not None and 0 <= offset.literal < buffer.entries:
        start = int(offset.literal) * size
        yield t, s.writer.operand(memory, shape, dtype, c_strides(shape, dtype.itemsize), start).name
        return
    entries = (buffer.entries,) + shape
    whole = s.writer.operand(memory, entries, dtype, c_strides(entries, dtype.itemsize), 0)
    check = s.bind("entry", entry_check(s.op.kind, buffer))
    # The ellipsis makes a view of an entry that is a scalar too.
    count = math.prod(offset.shape)
    if count == 1:
        yield t, f"{whole.name}[{check}({offset.name}.item()), ...]"
        return
    for i in range(count):
        place = f"{check}({offset.name}.item({i}))" + (f", {i}" if lead else "")
        yield (s.row(t, i) if len(t.shape) > len(buffer.tensor_shape) else t), f"{whole.name}[{place}, ...]"


def entry_check(kind: str, buffer: Any) -> Callable[[int], int]:
    """A function that returns an offset, or refuses one outside the buffer."""
    entries = buffer.entries

    def check(offset: int) -> int:
        if not 0 <= offset < entries:
            raise popart_exception(
                f"{kind}: the offset {offset} is out of range for {buffer!r}, which has the entries 0 to {entries - 1}."
            )
        return offset

    return check


STREAMS: Dict[str, Callable[[Any, Step], None]] = {"host_load": write_host_load, "host_store": write_host_store}
REMOTE: Dict[str, Callable[[Any], None]] = {
    "remote_load": write_remote_load,
    "remote_load_": write_remote_load,
    "remote_store": write_remote_store,
}
