"""Remote buffers by handle: memory that programs read and write as an effect, in the order in which they say so."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..aval import REMOTE, Aval, AxisNames, Placement
from ..errors import (
    ArgumentError,
    AxisError,
    DtypeError,
    InputError,
    MissingRuleError,
    RangeError,
    ShapeError,
    Source,
    message,
)
from ..primitive import MIXED, MappedAxis, Primitive, Zero
from ..tracer import bind, current_trace
from .collectives import shard_size
from .shaping import in_lanes

#: How many entries a buffer can have. PopXL numbers them by uint32; in the other half are rows that are not there.
MOST_ENTRIES = 2 ** 31
NOWHERE: AxisNames = frozenset()


class RemoteBuffer:
    """A buffer of `rows` times `steps` values of one type in remote memory; see `pf.remote_buffer`.

    The value of a step lies at entry row * steps + step. Eager programs and `pf.jit` read and write the rows that
    are `written`; a lowered program has a buffer of its own, which lasts as long as its session.
    """

    def __init__(self, spec: Aval, steps: int, rows: int, name: str, varying: Tuple[str, ...] = (),
                 shard_group: Tuple[str, ...] = ()) -> None:
        self.spec = spec.strong
        self.steps = steps
        self.rows = rows
        self.name = name
        self.varying = varying  # the axes along which each replica has a value of its own
        self.shard_group = shard_group  # those along which replicas keep parts of a value that they have in common
        self.written: Dict[int, np.ndarray] = {}  # the rows that eager programs wrote

    def entry(self, sizes: Mapping[str, int]) -> Aval:
        """The type of what a replica keeps of the value of a step."""
        if not self.shard_group:
            return self.spec
        return self.spec.with_shape((shard_size(self.spec.size, [(n, sizes[n]) for n in self.shard_group]),))

    def row(self, number: Any, source: Optional[Source] = None) -> int:
        """A row's number, checked. Raises RangeError, which whoever evaluates this gives the user's line."""
        k = int(number)
        if not 0 <= k < self.rows:
            raise RangeError(self.no_row(k, source))
        return k

    def no_row(self, number: int, at: Optional[Source] = None) -> str:
        """The text of the error for a row that is not there."""
        way = (f"remote_buffer(..., rows={number + 1})" if 0 <= number < MOST_ENTRIES // self.steps else
               f"rows are numbered from 0 to {self.rows - 1}")
        return message(f"row {number} of {self.name} is out of range: it has {self.rows} row{'s' * (self.rows > 1)}",
                       f"way out: {way}", at=at)

    def __repr__(self) -> str:  # printed jaxprs hold it, and strings can be read back
        return repr(self.name)


class Access(Primitive):
    """A read or write of a row of a buffer, which is never left out, merged or moved past another one.

    The first operand is the number of the row, an integer scalar. `axes` are those over which rows vary, with their
    sizes; vmap makes lanes of a row of them, one after the other, which `lanes` lists: each is an axis in front.
    """

    buffer: RemoteBuffer
    axes: Tuple[Tuple[str, int], ...]
    lanes: Tuple[str, ...]
    multiple: ClassVar[bool] = True
    has_effect: ClassVar[bool] = True

    @property
    def row_aval(self) -> Aval:
        """The type of a row."""
        sizes = dict(self.axes)
        entry = self.buffer.entry(sizes)
        lanes = [sizes[name] for name in self.lanes]
        return entry.with_shape((*lanes, self.buffer.steps, *entry.shape)).at(REMOTE).over(
            frozenset(sizes) - set(self.lanes))

    def uses_axis(self, name: str) -> bool:
        return name in dict(self.axes) and name not in self.lanes

    def order(self) -> List[int]:
        """Where a row that is kept has the axes of one with these lanes. Raises AxisError while lanes are missing."""
        if len(self.lanes) < len(self.axes):
            raise AxisError(f"{self.name}: {self.buffer!r} is one of replicas, it has no row outside of pf.shard")
        return [self.lanes.index(name) for name, _ in self.axes]

    def check_row(self, row: Aval) -> None:
        """Raise DtypeError unless this is the type of a row's number."""
        if not isinstance(self.buffer, RemoteBuffer):
            raise ShapeError(f"{self.name}: the buffer {self.buffer!r} is not known: the jaxpr was read from its text, "
                             "which names buffers only")
        if row.ndim or row.dtype.kind not in "iu":
            raise DtypeError(f"{self.name}: the number of a row is an integer scalar, got {row}")

    def check_varying(self, avals: Sequence[Aval]) -> None:
        """Raise AxisError for a row's number, or a value, that lanes have each of its own where the buffer is one."""
        own = frozenset(dict(self.axes)) - set(self.lanes)
        for aval, may in zip(avals, (NOWHERE, own)):
            if not aval.varying <= may:
                names = ", ".join(map(repr, sorted(aval.varying - may)))
                axes = names if len(aval.varying - may) == 1 else f"({names})"
                text = f"{self.name} of {aval}, which varies over {names}: {self.buffer!r}"
                raise AxisError(message(
                    f"{text} has one row for all at a time",
                    "way out: a row that is the same for all; pnp.where can choose among the values of several rows")
                    if aval is avals[0] else message(
                        f"{text} holds one value for all",
                        f"way out: remote_buffer(..., varying={axes}), or keep it as a value"))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        if axis.name is None or not self.uses_axis(axis.name) or dims[0] is not None:
            raise MissingRuleError(f"vmap of {self.name}: the lanes of {self.buffer!r} would meet in one buffer; "
                                   "use the buffer outside of vmap, or keep results as values")
        row, *values = args
        kind: Any = type(self)
        out = bind(kind(self.buffer, self.axes, (axis.name, *self.lanes)), [row, *(
            in_lanes(x, d, axis) for x, d in zip(values, dims[1:]))])
        return out, (0,) * len(out)

    def lower(self, px: Any, *tensors: Any) -> Any:
        raise NotImplementedError  # the builder knows the buffer


@dataclass(frozen=True)
class RemoteRead(Access):
    """A row of a buffer as it is now, a value in remote memory."""

    buffer: RemoteBuffer
    axes: Tuple[Tuple[str, int], ...] = ()
    lanes: Tuple[str, ...] = ()

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        self.check_varying(avals)
        return self.abstract(*avals)

    def abstract(self, row: Aval) -> Tuple[Aval, ...]:
        self.check_row(row)
        return (self.row_aval,)

    def eval(self, row: np.ndarray) -> Tuple[np.ndarray, ...]:
        buffer = self.buffer
        k = buffer.row(row)
        if k not in buffer.written:
            raise InputError(f"row {k} of {buffer.name} is read, but nothing was written there")
        n, kept = len(self.lanes), buffer.written[k]
        found = np.array(kept.transpose(*np.argsort(self.order()), *range(n, kept.ndim)))
        if found.shape != self.row_aval.shape:
            raise AxisError(message(f"row {k} of {buffer.name} was written on replicas of another mesh than "
                                    + " x ".join(f"{name}={size}" for name, size in self.axes),
                                    "way out: a buffer for each mesh"))
        return (found,)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        out = bind(self, primals)
        return out, (Zero(out[0].aval),)

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[RemoteRead, Sequence[Any]]:
        """The same, as a read that nobody uses does no harm."""
        return self, operands


@dataclass(frozen=True)
class RemoteWrite(Access):
    """Put a value, the second operand, into a row of a buffer."""

    buffer: RemoteBuffer
    axes: Tuple[Tuple[str, int], ...] = ()
    lanes: Tuple[str, ...] = ()

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        row, x = avals
        return [super().operand_placements([row])[0], self.row_aval.placement]

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        self.check_row(avals[0])
        self.check_varying(avals)
        wanted = self.operand_placements(avals)
        return self.abstract(*avals) if [a.placement for a in avals] == list(wanted) else MIXED

    def abstract(self, row: Aval, x: Aval) -> Tuple[Aval, ...]:
        self.check_row(row)
        want = self.row_aval
        if (x.shape, x.dtype) != (want.shape, want.dtype):
            raise ShapeError(f"{self.name}: a row of {self.buffer!r} is {want}, got {x}")
        return ()

    def eval(self, row: np.ndarray, x: np.ndarray) -> Tuple[np.ndarray, ...]:
        k = self.buffer.row(row)
        self.buffer.written[k] = np.array(x.transpose(*self.order(), *range(len(self.lanes), x.ndim)))
        return ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        if type(tangents[1]) is not Zero:
            raise ArgumentError(message(
                f"a value that is differentiated is written to {self.buffer.name}, through which no derivative goes",
                "way out: hand it on as a value; or stop_gradient, if that is meant; or differentiate each phase for "
                "itself, by pf.fwd_and_grad", at=getattr(current_trace(), "source", None)))
        return bind(self, primals), ()

    def guarded(self, on: Any, operands: Sequence[Any]) -> Any:
        """A row has nothing to keep in the lanes that do not write: the branch cannot become a selection."""
        raise MissingRuleError(message(
            f"a write to {self.buffer.name} cannot be run for some lanes only",
            "way out: write outside of the branch, in each lane the value that pnp.where chooses",
            at=getattr(current_trace(), "source", None)))
