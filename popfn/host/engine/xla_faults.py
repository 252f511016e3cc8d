"""What is wrong with a run of a compiled program, which cannot raise: it makes a record, from which the host raises.

A record is 3 int32: 1 + the number of the op, or 0, and the halves of an integer. It is part of the state of a run, so
it goes through loops, and of two branches that of the one that runs counts.
"""

from typing import Any, Dict

import jax.numpy as jnp
import numpy as np

from popfn.host.engine.transfer import outside
from popfn.host.engine.variance import disagreement
from popfn.host.engine.xla_storage import Cell, Value

KEY = ("fault",)
REMOTE = frozenset(["remote_load", "remote_load_", "remote_store"])


def none() -> np.ndarray:
    """The record of a run, or a replica, without a fault."""
    return np.zeros(3, np.int32)


def is_within(op: Any, offset: Any) -> bool:
    """Whether an offset, an array or None, is known to be inside the remote buffer of an op."""
    return isinstance(offset, np.ndarray) and 0 <= int(offset.reshape(())) < op.attrs["buffer"].entries


def note(tracing: Any, op: Any, bad: Value, number: Value) -> None:
    """Record a fault of an op where `bad`, with an integer, unless there is one already."""
    cell: Cell = tracing.effects[KEY]
    place = np.int32(1 + tracing.facts.numbers[op])

    def later(record: Any, bad: Any, number: Any) -> Any:
        wide = jnp.reshape(number, ()).astype(np.int64)
        halves = [(wide & 0xFFFFFFFF).astype(np.uint32).astype(np.int32), (wide >> 32).astype(np.int32)]
        return jnp.where((record[0] == 0) & bad, jnp.stack([jnp.asarray(place), *halves]), record)

    cell.write(tracing.one(later, cell.value, bad, number))


def note_offset(tracing: Any, op: Any, offset: Value) -> None:
    """Record the offset of an op on a remote buffer if it is out of range."""

    def is_outside(i: Any) -> Any:
        i = jnp.reshape(i, ())
        i = i if i.dtype == np.uint64 else i.astype(np.int64)
        return (i < 0) | (i >= i.dtype.type(op.attrs["buffer"].entries))

    note(tracing, op, tracing.one(is_outside, offset), offset)


def agreed(tracing: Any, op: Any, condition: Value) -> Value:
    """The condition of a conditional that must be equal on all replicas; it is a fault if it is not."""
    if not condition.mapped:
        return condition
    count = tracing.across(lambda c: jnp.sum(c, dtype=np.int32), condition, False)
    note(tracing, op, tracing.one(lambda n: (n > 0) & (n < tracing.replicas), count), count)
    value: Value = tracing.across(lambda c: c[0], condition, False)
    return value


def first(tracing: Any) -> Any:
    """The record of all replicas, at the end of a trace: that of the first one with a fault."""
    value = tracing.effects[KEY].value
    return value.array[jnp.argmax(value.array[:, 0] != 0)] if value.mapped else jnp.asarray(value.array)


def check(numbers: Dict[Any, int], replicas: int, record: Any) -> None:
    """Raise what a record of a program for so many replicas says.

    Raises:
        popart_exception: If there is a fault.
    """
    place, low, high = [int(x) for x in record]
    if place:
        op = next(op for op, number in numbers.items() if number == place - 1)
        if op.kind == "conditional":
            raise disagreement(op, low, replicas)
        is_unsigned = op.inputs[-1].dtype.as_numpy().kind == "u"
        number = (low & 0xFFFFFFFF) + ((high & 0xFFFFFFFF if is_unsigned else high) << 32)
        raise outside(op, number)
