"""batch_serialise as a user meets it: a function of a batch as a loop over parts of the batch."""
from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _tracing as tracing, numpy as pnp
from ._axes import argument_axes, argument_entries, result_entries
from ._promotion import known
from ._remote import Buffer, Remote, known_index, loaded, row_number
from ._shard import P
from .api import Function, decorator, is_index, wraps
from .trace import prims, tree
from .trace.aval import DEVICE, FLOAT8, HOST, REMOTE, Aval, bool_, int32, uint32
from .trace.errors import ArgumentError, AxisError, RangeError, function_name, message, user_source
from .trace.jaxpr import Jaxpr
from .trace.primitive import Zero
from .trace.prims import instantiate
from .trace.tracer import aval_of, bind, literal, named_axes
from .transforms.bodies import chosen, cut, others, rebuilt, without_constants
from .transforms.checkpoint import Checkpoint
from .transforms.replay import constant_arrays, inline
from .transforms.scan import Scan, wide

NAME = "batch_serialise"
IO_MODES = ("compute", "io", "io_overlapped")
RECOMPUTE = "recompute"
RESIDUALS = (REMOTE, DEVICE, RECOMPUTE)
SUM, MEAN = "sum", "mean"
KEY = "key"
TOP = np.uint32(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class HostStream:
    """Says in `loads` or `stores` of `batch_serialise` that an array is streamed, part by part, from or to the host.

    >>> HostStream()
    HostStream()
    """


@decorator
def batch_serialise(f: Function, steps: int, in_axes: Any = 0, out_axes: Any = 0, reduce: Any = None, *,
                    loads: Any = None, stores: Any = None, rows: int = 1, io_mode: str = "compute",
                    residuals: Union[str, P] = "remote") -> Function:
    """A function that cuts its arguments into `steps` equal parts, and applies `f` to one part after the other.

    Where `f` treats the elements of a batch by themselves, the results are those of f, from less memory on the chip.

    `in_axes` says along which axis each array is cut: an integer (negative ones count from the end), None for what each
    step sees whole, or a tuple with such an entry for each positional argument, where an entry may be a tree whose
    leaves stand above the argument's. Arguments by keyword are cut along their first axis. An f32[12,4] that is cut
    along axis 0 in 3 steps is an f32[4,4] in f. The entry "key" stands above a random key, u32[2]: step i gets the i-th
    key of `random.split(key, steps)`, so that no two steps draw the same numbers, and every `io_mode` draws the same.

    The parts of a result are put together along its axis in `out_axes`, an integer or a tree of them above the result.
    A result whose entry in `reduce`, a tree too, is "sum" or "mean" is added up over the steps instead; its `out_axes`
    does not matter. float16 is added up in float32 and rounded once, integers in their own dtype.

    `loads` (a tree, or a tuple of one for each positional argument) and `stores` (a tree above the result) say where
    the whole of an array lies that is cut, or put together: "device" is on the chip, `HostStream()` with the host, and
    with None popfn decides. With `Remote(buffer)` the parts are read from a `remote_buffer`, and None is passed for the
    argument, whose entry in `in_axes` does not matter; or they are written there, and the result is None. Then the
    function is called with `row=`, of `rows` rows that it may serve, so that one program serves several rows. A row
    that is traced is checked when it is used, against the buffer's rows alone.

    `io_mode` says how parts are moved: "compute", "io" (by tiles of their own, of which `pf.lower` takes the number) or
    "io_overlapped" (the next part while f works on this one); the results are the same. `residuals` says what becomes
    of what the derivative needs from each step: it is kept in "remote" memory or on the "device", or computed once more
    from the parts ("recompute"), which are then what remote memory keeps. Inside of `shard`, `residuals=P("tp")` keeps
    it in remote memory, and of what all replicas along tp have in common each keeps a part. It is one loop, whatever
    `steps` is: `f` is traced once, and the program does not grow.

    Raises ArgumentError that names the argument or result if an axis does not exist or does not divide into `steps`, if
    nothing is cut, if what is to be streamed has no parts, if a scalar result is neither reduced nor has an axis, or if
    an option has a value not named here.

    >>> import popfn as pf, popfn.numpy as pnp
    >>> x = pnp.reshape(pnp.arange(6.0), (6, 1))
    >>> batch_serialise(lambda x, w: (x @ w, pnp.mean(x)), 3, in_axes=(0, None), reduce=(None, "mean"))(x, x[2:3])
    (Array([[ 0.],
           [ 2.],
           [ 4.],
           [ 6.],
           [ 8.],
           [10.]], dtype=float32), Array(2.5, dtype=float32))
    >>> noisy = batch_serialise(lambda key, x: x + pf.random.normal(key, x.shape), 2, in_axes=("key", 0))
    >>> y = noisy(pf.random.key(0), pnp.zeros(4))
    >>> first, second = pf.random.split(pf.random.key(0), 2)
    >>> bool(pnp.all(y == pnp.concat([pf.random.normal(first, 2), pf.random.normal(second, 2)])))
    True
    """
    steps, rows = check_options(NAME, steps, rows, io_mode, residuals)
    shared = residuals
    if isinstance(residuals, P):
        residuals = REMOTE
    for option, places in (("loads", loads), ("stores", stores)):
        for entry in tree.leaves(places):
            _memory(option, entry)
    count = int(steps)
    takes_row = takes_by_keyword(f, "row")
    has_handles = any(isinstance(x, Remote) for x in tree.leaves((loads, stores)))

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not has_handles and "row" in kwargs and not takes_row:
            raise ArgumentError(message(f"{NAME}: row= says where handles read and write, and {function_name(f)} has "
                                        "none", "way out: pf.Remote(buffer) in loads or stores", at=user_source(2)))
        row = given_row(NAME, kwargs.pop("row", 0), rows) if has_handles else 0
        values, from_buffers = _loaded(f, args, loads, row, count)
        given = tracing.arguments(NAME, f, values, kwargs, arrays=True)
        stacks = _stacks(f, count, in_axes, loads, given, from_buffers)
        buffers = [from_buffers.get(id(x)) for x in given.leaves]
        avals = [b.value_aval if b is not None else a if s is None else _element(s)
                 for a, s, b in zip(given.avals, stacks, buffers)]
        traced = tracing.trace(f, given._replace(avals=avals))
        outcomes = _outcomes(f, traced, out_axes, reduce, stores, row, count)
        jaxpr, _ = without_constants(traced.jaxpr)
        whole = [*constant_arrays(traced.jaxpr), *traced.captures, *given.leaves]
        is_whole = [True] * (len(whole) - len(stacks)) + [s is None for s in stacks]
        ins = [None] * (len(whole) - len(stacks)) + buffers
        body, totals = _body(jaxpr, [_element(s) for s in stacks if s is not None], is_whole, ins, outcomes,
                             residuals == RECOMPUTE)
        loop = Scan(body, count, sum(is_whole), len(totals), io_mode=io_mode,
                    residuals=REMOTE if residuals == RECOMPUTE else residuals, shards=_shards(shared))
        results = bind(loop, [*chosen(whole, is_whole), *(instantiate(Zero(a)) for a in totals),
                              *(s for s in stacks if s is not None)])
        sums, ys = map(iter, cut(results, len(totals)))
        return traced.outputs([
            o.given(next(ys)) if o.reduce is None else _total(next(sums), o.reduce, count, a)
            for o, a in zip(outcomes, jaxpr.out_avals)])
    return wrapper


def takes_by_keyword(f: Function, name: str) -> bool:
    """Whether f may have an argument of this name."""
    try:
        parameters = inspect.signature(f).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_options(name: str, steps: Any, rows: Any, io_mode: Any, residuals: Any) -> Tuple[int, int]:
    """The steps and rows. Raises ArgumentError for a number that is none of 1 or more, or a choice that is none."""
    steps, rows = known(f"{name}: steps", steps), known(f"{name}: rows", rows)
    for option, n in (("steps", steps), ("rows", rows)):
        if not is_index(n) or n < 1:
            raise ArgumentError(message(f"{name}: {option} is a number of 1 or more, got {n!r}", at=user_source(3)))
    for option, choice, choices in (("io_mode", io_mode, IO_MODES), ("residuals", residuals, RESIDUALS)):
        if not (isinstance(choice, str) and choice in choices or option == "residuals" and isinstance(choice, P)):
            raise ArgumentError(message(f"{name}: {option} is one of {', '.join(map(repr, choices))}, got {choice!r}",
                                        at=user_source(3)))
    return int(steps), int(rows)


def _shards(residuals: Union[str, P]) -> Tuple[Tuple[str, int], ...]:
    """The axes of replicas that keep what they have in common in parts. Raises AxisError for one not in scope."""
    if not isinstance(residuals, P):
        return ()
    axes = named_axes()
    names = [name for cut in residuals.spec for name in cut]
    for name in names:
        if name not in axes:
            raise AxisError(message(f"{NAME}: residuals={residuals!r} names {name!r}, which is no axis here",
                                    f"in scope: {', '.join(map(repr, axes)) or 'none'}", at=user_source(3)))
    return tuple([(name, axes[name]) for name in names])


def _element(stack: Any) -> Aval:
    """The type of what a step sees of stacked values."""
    aval = aval_of(stack)
    return aval.with_shape(aval.shape[1:])


# ---------------------------------------------------------------------------- what goes in
def given_row(name: str, row: Any, rows: int) -> Any:
    """The row that a function with handles is called with.

    Raises RangeError if it is known and out of range, ArgumentError if it is no integer.
    """
    aval = None if row is None or isinstance(row, str) else tracing.argument_aval(row)
    if aval is None or aval.ndim or aval.dtype.kind not in "iu":
        raise ArgumentError(message(f"{name}: row is the number of a row, got {row!r:.60}", at=user_source(3)))
    k = known_index(row)
    if k is not None:
        if not 0 <= k < rows:
            raise RangeError(message(
                f"{name}: row {k} is out of range, the function serves {rows} row{'s' * (rows > 1)}",
                f"way out: {name}(..., rows={k + 1})" if k >= 0 else
                f"way out: rows are numbered from 0 to {rows - 1}", at=user_source(3)))
        return k
    # Handles add to it, and 8 bits would wrap. What is too large for 32 bits stays out of range.
    return pnp.asarray(pnp.minimum(row, TOP) if aval.dtype == uint32 else row, dtype=int32)


def _loaded(f: Function, args: Sequence[Any], loads: Any, row: Any, steps: int,
            ) -> Tuple[Sequence[Any], Dict[int, Buffer]]:
    """The positional arguments with what lies in buffers in place of None, and the buffers of these stacked values
    by their ids."""
    entries = loads if isinstance(loads, (tuple, list)) else (loads,) * len(args)
    if len(entries) != len(args) or not any(isinstance(x, Remote) for x in tree.leaves(tuple(entries))):
        return args, {}
    names = tracing.argument_names(f, args, {})
    found: List[Tuple[Any, Buffer]] = []
    values = [loaded(NAME, entry, value, row, steps, f"argument {name} of {function_name(f)}", found)
              for entry, value, name in zip(entries, args, names)]
    return values, {id(x): buffer for x, buffer in found}


def _stacks(f: Function, steps: int, in_axes: Any, loads: Any, given: tracing.Arguments,
            ready: Dict[int, Buffer]) -> List[Any]:
    """For each leaf of the arguments, what the steps see of it, stacked; None for what they see whole."""
    entries = argument_entries(NAME, "in_axes", f, in_axes, given, 0)
    stacked = [id(x) in ready for x in given.leaves]
    entries = [None if on else e for e, on in zip(entries, stacked)]
    keys = [isinstance(e, str) and e == KEY for e in entries]
    dims = argument_axes(NAME, f, [None if key else e for e, key in zip(entries, keys)], given, "cut along",
                         "what each step sees whole")
    places = argument_entries(NAME, "loads", f, _apart(loads), given, None)
    memories = [_memory("loads", e) for e in places]

    def path(i: int) -> str:
        return f"argument {tracing.leaf_names(f, given.args, given.kwargs)[i]} of {function_name(f)}"
    if not any(keys) and not any(stacked) and all(d is None for d in dims):
        raise ArgumentError(message(f"{NAME}: no argument of {function_name(f)} is cut: each step would do the same",
                                    "way out: give an argument an axis in in_axes", at=user_source(3)))
    for i, (d, key, aval) in enumerate(zip(dims, keys, given.avals)):
        if key and (aval.dtype != uint32 or aval.shape != (2,)):
            raise ArgumentError(message(
                f"{NAME}: {path(i)} is {aval}, but in_axes says 'key', which stands above a random key, u32[2]",
                "way out: make a key with pf.random.key(seed), or cut an array of keys along an axis",
                at=user_source(3)))
        if d is not None and aval.shape[d] % steps:
            raise ArgumentError(message(
                f"{NAME}: {path(i)} is {aval}: {aval.shape[d]} elements along axis {d} do not divide into {steps} "
                "equal parts", f"way out: let steps divide {aval.shape[d]}, or pad the array", at=user_source(3)))
    idle = _without_parts(places, [d is None and not on for d, on in zip(dims, stacked)])
    if idle is not None:
        why = "each step gets a key of its own" if keys[idle] else "each step sees it whole"
        raise ArgumentError(message(f"{NAME}: loads=HostStream() asks to stream {path(idle)}, but {why}",
                                    "way out: None for it in loads"
                                    + ("" if keys[idle] else ", or an axis in in_axes along which it is cut"),
                                    at=user_source(3)))
    return [x if on else prims.split_key(x, steps) if key else None if d is None else prims.cut(x, steps, d, memory)
            for x, on, key, d, memory in zip(given.leaves, stacked, keys, dims, memories)]


def _memory(option: str, entry: Any) -> str:
    """Where an entry of `loads` or `stores` says that the whole array lies; "" leaves it to the lowering."""
    if entry is None:
        return ""
    if isinstance(entry, str) and entry == DEVICE:
        return DEVICE
    if isinstance(entry, HostStream):
        return HOST
    if isinstance(entry, Remote):
        return REMOTE
    raise ArgumentError(message(f"{NAME}: {option} has None, 'device', pf.HostStream() or pf.Remote(buffer) for each "
                                f"array, got {entry!r}", at=user_source(3)))


def _apart(option: Any) -> Any:
    """`loads` or `stores` with an object of its own for each stream that is asked for."""
    return tree.map(lambda e: HostStream() if isinstance(e, HostStream) else e, option)


def _without_parts(entries: Sequence[Any], whole: Sequence[bool]) -> Optional[int]:
    """The first leaf below a HostStream() that stands only above what is `whole` in each step, if there is one."""
    streamed = {id(e) for e, on in zip(entries, whole) if not on}
    return next((i for i, e in enumerate(entries) if isinstance(e, HostStream) and id(e) not in streamed), None)


# ---------------------------------------------------------------------------- what comes out
class Outcome(NamedTuple):
    """What becomes of the parts of a result: added up if there is a `reduce`, written to the row of a buffer if there
    is one, else put together along an axis.
    """

    reduce: Optional[str]
    axis: int
    memory: str
    buffer: Optional[Buffer] = None
    row: Any = None
    handle: Any = None

    def given(self, parts: Any) -> Any:
        """What the caller gets of the stacked parts."""
        if self.buffer is None:
            return prims.join(parts, self.axis, self.memory)
        self.buffer.keep(self.row, parts)
        return None


def _outcomes(f: Function, traced: tracing.Traced, out_axes: Any, reduce: Any, stores: Any, row: Any, steps: int,
              ) -> List[Outcome]:
    """What becomes of each leaf of the result."""
    columns = [result_entries(NAME, option, f, value, traced) for option, value in (
        ("out_axes", out_axes), ("reduce", reduce), ("stores", _apart(stores)))]
    idle = _without_parts(columns[2], [way is not None for way in columns[1]])
    out: List[Outcome] = []
    for i, (aval, axis, way, store) in enumerate(zip(traced.jaxpr.out_avals, *columns)):
        memory = _memory("stores", store)

        def fault(text: str, advice: Optional[str], i: int = i, aval: Aval = aval) -> ArgumentError:
            path = tree.paths(traced.out_tree, "result")[i]
            return ArgumentError(message(f"{NAME}: {path} of {function_name(f)} is {aval} in each step, {text}",
                                         f"way out: {advice}" if advice else None, at=user_source(4)))
        if way is not None:
            if isinstance(store, Remote):
                raise fault(f"which is reduced: it has no parts to put into {store.buffer.name}",
                            "leave it out of stores, or out of reduce")
            if i == idle:
                raise fault("which is reduced: it has no parts to stream", "leave it out of stores, or out of reduce")
            if not isinstance(way, str) or way not in (SUM, MEAN):
                raise ArgumentError(message(
                    f"{NAME}: reduce has None, {SUM!r} or {MEAN!r} for each result, got {way!r}", at=user_source(3)))
            if aval.dtype == bool_ or aval.dtype in FLOAT8 or way == MEAN and not aval.is_float:
                raise fault(f"which has no {way}", "convert it to a wider float with astype" if aval.is_float else
                            "convert it to float32 with astype" if way == MEAN else "convert it to int32 with astype")
            out.append(Outcome(way, 0, ""))
            continue
        if isinstance(store, Remote):
            store.buffer.check_varying(aval)
            store.check(aval, steps, f"{NAME}: {tree.paths(traced.out_tree, 'result')[i]} of {function_name(f)}")
            if any(o.buffer is store.buffer and store.row in (None, o.handle.row) for o in out):
                raise fault(f"and goes to the row of {store.buffer.name} where another result goes",
                            "a buffer, or a row, for each result")
            out.append(Outcome(None, 0, "", store.buffer, row_number(store.buffer, store.at(row)), store))
            continue
        if not aval.ndim:
            raise fault("a scalar, whose parts cannot be put together along an axis",
                        f"add it up with reduce={SUM!r} or {MEAN!r}, or keep the axis of the batch")
        axis = known(f"{NAME}: an axis in out_axes", axis)
        if not is_index(axis) or not -aval.ndim <= axis < aval.ndim:
            raise fault(f"which has no axis {axis!r} to be put together along",
                        f"name an axis in out_axes, or add it up with reduce={SUM!r} or {MEAN!r}")
        out.append(Outcome(None, int(axis) % aval.ndim, memory))
    return out


def _total(total: Any, way: str, steps: int, aval: Aval) -> Any:
    """The sum or the mean, in the type that the result has in a step."""
    if way == MEAN:
        total = prims.div(total, literal(float(steps), aval_of(total)))
    return prims.convert(total, aval.dtype, aval.weak)


# ---------------------------------------------------------------------------- the loop
def _body(jaxpr: Jaxpr, parts: Sequence[Aval], is_whole: Sequence[bool], ins: Sequence[Optional[Buffer]],
          outcomes: Sequence[Outcome], again: bool) -> Tuple[Jaxpr, List[Aval]]:
    """A step of the loop, and the types of the sums that it carries.

    It takes what is whole, the sums so far and what is cut, of these types; and gives the sums and the results that are
    put together. `ins` are the buffers that inputs come from. With `again`, reverse mode computes what it needs of the
    step once more.
    """
    reduced = [o.reduce is not None for o in outcomes]
    totals = [wide(a).at(DEVICE) for a in chosen(jaxpr.out_avals, reduced)]

    def step(*args: Any) -> Sequence[Any]:
        whole, sums, news = map(iter, cut(args, sum(is_whole), len(totals)))
        operands = [next(whole if on else news) for on in is_whole]
        operands = [x if b is None else b.whole(x) for x, b in zip(operands, ins)]
        outs = bind(Checkpoint(jaxpr), operands) if again else inline(jaxpr, operands)
        outs = [y if o.buffer is None else o.buffer.part(y) for y, o in zip(outs, outcomes)]
        added = [prims.add(s, prims.convert(y, a.dtype, a.weak)) for s, y, a in zip(
            sums, chosen(outs, reduced), totals)]
        return [*added, *others(outs, reduced)]
    return rebuilt(jaxpr.name, [*chosen(jaxpr.in_avals, is_whole), *totals, *parts], step), totals
