"""Remote buffers as a user meets them: handles on memory that serialised functions read from and write to."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import numpy as pnp
from ._promotion import known
from .api import is_index
from .trace.array import Array
from .trace.aval import DEVICE, REMOTE, Aval
from .trace.errors import ArgumentError, AxisError, ShapeError, message, user_source
from .trace.prims import of_shards, place, shard_of
from .trace.prims.remote import MOST_ENTRIES, RemoteBuffer, RemoteRead, RemoteWrite
from .trace.tracer import aval_of, bind, named_axes
from .transforms.bodies import rebuilt
from .transforms.scan import Scan

Row = Union[int, None, Callable[[Any], Any]]
Names = Union[str, Sequence[str], None]


class Buffer(RemoteBuffer):
    """What `pf.remote_buffer` makes.

    Attributes:
        spec: The type of the value of a step.
        steps: How many steps a row has.
        rows: How many rows there are.
        name: What it is called in printed programs and errors.
        varying: The axes of replicas along which each has a value of its own.
        shard_group: The axes along which replicas keep parts of what they have in common.
    """

    def read(self, row: Any) -> Any:
        """The values of all steps of a row as they are now, stacked: a value in remote memory.

        Raises RangeError for a row that is not there, InputError if nothing was written there yet, AxisError outside of
        `shard` for a buffer of replicas. In a lowered program, whether the row of a traced number is there is seen when
        it runs, on the host, which names all lines that may be meant; with the SDK nothing is checked then, and on
        neither whether something was written.
        """
        return self.values(row_number(self, row))

    def write(self, row: Any, x: Any) -> None:
        """Put the stacked values of all steps into a row.

        Raises ShapeError if they are of another type, RangeError for a row that is not there, as `read` does, AxisError
        for values that differ between replicas where the buffer has one for all.
        """
        aval, shape = aval_of(x), (self.steps, *self.spec.shape)
        if (aval.shape, aval.dtype) != (shape, self.spec.dtype):
            raise ShapeError(message(f"a row of {self.name} is {self.spec.with_shape(shape)}, got {aval.at(DEVICE)}",
                                     at=user_source(2)))
        number = row_number(self, row)
        self.check_varying(aval)
        self.set_values(number, x)

    def values(self, number: Any) -> Any:
        """The values of all steps of a row."""
        rows = self.kept(number)
        return self.each_step(rows, self.whole) if self.shard_group else rows

    def set_values(self, number: Any, x: Any) -> None:
        """Write the values of all steps of a row."""
        self.keep(number, self.each_step(x, self.part) if self.shard_group else x)

    def kept(self, number: Any) -> Any:
        """A row as it is kept: on a replica, if the buffer is one of replicas."""
        return bind(RemoteRead(self, self.axes()), [number])[0]

    def keep(self, number: Any, rows: Any) -> None:
        """Write a row as it is kept."""
        bind(RemoteWrite(self, self.axes()), [number, rows])

    @property
    def value_aval(self) -> Aval:
        """The type of the value of a step on a replica."""
        return self.spec.over(frozenset(self.varying)).at(REMOTE)

    def axes(self) -> Tuple[Tuple[str, int], ...]:
        """The axes over which rows vary, with their sizes. Raises AxisError for one not in scope."""
        return self.sizes((*self.varying, *self.shard_group))

    def sizes(self, names: Tuple[str, ...]) -> Tuple[Tuple[str, int], ...]:
        """Axes with their sizes. Raises AxisError for one not in scope."""
        found = named_axes() if names else {}
        for name in names:
            if name not in found:
                raise AxisError(message(
                    f"{self.name} is a buffer of replicas along {name!r}, which is no axis here",
                    "way out: read and write it inside of pf.shard, over a mesh with this axis", at=user_source(3)))
        return tuple([(name, found[name]) for name in names])

    def check_varying(self, aval: Aval) -> None:
        """Raise AxisError for a value that differs between replicas where the buffer has one for all."""
        names = sorted(aval.varying - set(self.varying))
        if names:
            text = ", ".join(map(repr, names))
            raise AxisError(message(
                f"{self.name} holds one value for all replicas along {text}, got {aval.at(DEVICE)}",
                f"way out: remote_buffer(..., varying={tuple(names) if len(names) > 1 else names[0]!r}), or keep it as "
                "a value", at=user_source(3)))

    def part(self, x: Any) -> Any:
        """What a replica keeps of the value of a step."""
        return shard_of(x, self.sizes(self.shard_group))

    def whole(self, x: Any) -> Any:
        """The value of a step, of which replicas keep parts."""
        return of_shards(x, self.sizes(self.shard_group), self.spec.shape) if self.shard_group else x

    def each_step(self, rows: Any, change: Callable[[Any], Any]) -> Any:
        """Stacked values, changed step by step, in remote memory."""
        aval = aval_of(rows)
        body = rebuilt(self.name, [aval.with_shape(aval.shape[1:]).at(REMOTE)],
                       lambda x: [place(change(place(x, DEVICE)), REMOTE)])
        return bind(Scan(body, self.steps, 0, 0), [place(rows, REMOTE)])[0]


def remote_buffer(spec: Aval, steps: int, rows: int = 1, *, name: Optional[str] = None, varying: Names = (),
                  shard_group: Names = ()) -> Buffer:
    """A buffer in remote memory with `rows` rows, each with a value of type `spec` for each of `steps` steps.

    It is a reference. `batch_serialise` takes it in `loads` and `stores`, in a `pf.Remote`; then the parts of an array
    come from a row, or go there, one in each step: that of step s of row r is entry r * steps + s. What was written
    stays there until it is overwritten: for later calls, and in a session for later runs. Reads and writes take place
    in the order in which the program says them.

    Raises ArgumentError if `spec` is no type of an array with elements, or `steps` or `rows` is no number of 1 or more,
    if there are more than 2 ** 31 entries, or `varying` and `shard_group` do not name axes, each once.

    >>> import numpy as np
    >>> buffer = remote_buffer(Aval((2,)), steps=3, name="activations")
    >>> buffer.write(0, np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> buffer.read(0)
    Array([[0., 1.],
           [2., 3.],
           [4., 5.]], dtype=float32)
    """
    if not isinstance(spec, Aval) or not spec.size:
        got = repr(spec) if isinstance(spec, Aval) else f"a value of type {type(spec).__name__}"
        raise ArgumentError(message(f"remote_buffer: spec is the type of an array with elements, got {got}",
                                    "way out: remote_buffer(pf.spec((16, 32)), steps=4)", at=user_source(2)))
    steps, rows = known("remote_buffer: steps", steps), known("remote_buffer: rows", rows)
    for what, n in (("steps", steps), ("rows", rows)):
        if not is_index(n) or n < 1:
            raise ArgumentError(message(f"remote_buffer: {what} is a number of 1 or more, got {n!r}",
                                        at=user_source(2)))
    entries = int(steps) * int(rows)
    if entries > MOST_ENTRIES:
        raise ArgumentError(message(f"remote_buffer: {rows} rows of {steps} steps are {entries} entries, a buffer has "
                                    f"at most {MOST_ENTRIES}", "way out: several buffers, or larger entries",
                                    at=user_source(2)))
    if name is not None and not isinstance(name, str):
        raise ArgumentError(message(f"remote_buffer: name is a text, got {name!r}", at=user_source(2)))
    names = tuple([(x,) if isinstance(x, str) else tuple(x) if isinstance(x, (tuple, list)) else (x,)
                   for x in (varying, shard_group)])
    if not all(isinstance(x, str) for x in names[0] + names[1]) or len({*names[0], *names[1]}) < len(sum(names, ())):
        raise ArgumentError(message("remote_buffer: varying and shard_group name axes, each once, got "
                                    f"{varying!r} and {shard_group!r}", at=user_source(2)))
    return Buffer(spec, int(steps), int(rows), name or "buffer", *names)


def known_index(n: Any) -> Optional[int]:
    """An integer whose value is known now: a Python or NumPy one, or an Array of one that is not traced."""
    if is_index(n):
        return int(n)
    value = n.value if type(n) is Array else n
    if isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "iu":
        return int(value)
    return None


def row_number(buffer: RemoteBuffer, row: Any) -> Any:
    """The number of a row as an operand. Raises RangeError if it is known and not there, ArgumentError for none."""
    k = known_index(row)
    if k is not None:
        return buffer.row(k, user_source(3))
    aval = aval_of(row)
    if aval.ndim or aval.dtype.kind not in "iu":
        raise ArgumentError(message(f"the number of a row of {buffer.name} is an integer, got {aval}",
                                    at=user_source(3)))
    return pnp.asarray(row)


@dataclass(frozen=True)
class Remote:
    """Says in `loads` or `stores` of `batch_serialise` that parts lie in a row of a remote buffer.

    The serialised function is called with `row=r`, 0 unless said. `row` here says which row of the buffer that means:
    an integer k is row r + k, None is row 0 whatever r is, and a function gives the row for r. `shard_group` says again
    which replicas keep parts of a value; it is that of the buffer.

    Raises ArgumentError for what is no buffer, or no row, RangeError for a number k that is no row of the buffer.

    >>> Remote(remote_buffer(Aval((2,)), steps=3, rows=4, name="x"), row=1)
    Remote(buffer='x', row=1)
    """

    buffer: Buffer
    row: Row = 0
    shard_group: Names = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Buffer):
            raise ArgumentError(message(f"Remote takes a buffer first, got {type(self.buffer).__name__}",
                                        "way out: Remote(pf.remote_buffer(spec, steps))", at=user_source(3)))
        if self.row is not None and not callable(self.row) and (not is_index(self.row) or self.row < 0):
            raise ArgumentError(message(f"Remote: row is a number of 0 or more, None or a function, got {self.row!r}",
                                        at=user_source(3)))
        if is_index(self.row):  # what is added to it is 0 or more
            self.buffer.row(self.row, user_source(3))
        group = self.shard_group
        if group is not None and ((group,) if isinstance(group, str) else group) != self.buffer.shard_group:
            raise ArgumentError(message(f"Remote: {self.buffer.name} was made with shard_group="
                                        f"{self.buffer.shard_group!r}, got {group!r}", at=user_source(3)))

    def at(self, row: Any) -> Any:
        """The number of the row in the buffer when the function is called with a row."""
        if self.row is None:
            return 0
        if callable(self.row):
            return self.row(row)
        return int(row) + int(self.row) if is_index(row) else row + int(self.row)

    def check(self, part: Aval, steps: int, what: str) -> None:
        """Raise ArgumentError unless the buffer holds such parts for so many steps."""
        buffer = self.buffer
        if buffer.steps != steps:
            raise ArgumentError(message(
                f"{what} lies in {buffer.name}, which is laid out for {buffer.steps} steps, not for {steps}",
                f"way out: remote_buffer(..., steps={steps})", at=user_source(4)))
        if (part.shape, part.dtype) != (buffer.spec.shape, buffer.spec.dtype):
            raise ArgumentError(message(
                f"{what} is {part.at(DEVICE).strong} in each step, but {buffer.name} holds {buffer.spec}",
                at=user_source(4)))


def loaded(name: str, option: Any, value: Any, row: Any, steps: int, path: str,
           found: Optional[List[Tuple[Any, Buffer]]] = None) -> Any:
    """An argument with what its entry of `loads` says in place of None: the stacked values of all steps.

    With a list `found` these are as they are kept, and added to it with their buffers. Raises ArgumentError if a value
    was passed for one.
    """
    if isinstance(option, Remote):
        if value is not None:
            raise ArgumentError(message(f"{name}: {path} is loaded from {option.buffer.name}, but a value was "
                                        "passed for it", "way out: pass None for it", at=user_source(4)))
        option.check(option.buffer.spec, steps, f"{name}: {path}")
        number = row_number(option.buffer, option.at(row))
        if found is None:
            return option.buffer.values(number)
        found.append((option.buffer.kept(number), option.buffer))
        return found[-1][0]
    if isinstance(option, dict) and isinstance(value, dict) and option.keys() == value.keys():
        return {k: loaded(name, option[k], value[k], row, steps, f"{path}[{k!r}]", found) for k in value}
    if isinstance(option, (list, tuple)) and type(option) is type(value) and len(option) == len(value):
        items = [loaded(name, o, v, row, steps, f"{path}[{i}]", found) for i, (o, v) in enumerate(zip(option, value))]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
