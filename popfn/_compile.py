"""jit and lower: from a function to a program that runs."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _tracing as tracing
from ._promotion import known
from ._static import Static, StaticParameters
from .api import Function, check_callable, decorator, is_index, specs_from_annotations, wraps
from .lower.program import Program, build_program
from .lower.runner import compile_flat
from .trace import tree
from .trace.annotations import annotations_of
from .trace.array import Array
from .trace.aval import Aval, float64_enabled, scalar_array, spec as spec
from .trace.errors import ArgumentError, NarrowingError, function_name, message, user_source
from .trace.primitive import watchers
from .trace.tracer import bind, current_trace, named_axes
from .transforms.call import Call
from .transforms.custom import without_rules
from .transforms.replay import inline
from .transforms.shard import without_meshes
from .transforms.simplify import simplify

#: How many an IPU has, Mk2 or Bow. Those for input and output are missing where the program computes.
TILES = 1472

Runner = Callable[[Sequence[np.ndarray]], List[np.ndarray]]


class Signature(NamedTuple):
    """What a jitted function is compiled for: how it is called, and the types of the leaves."""

    positional: int
    keywords: Tuple[str, ...]
    structures: Tuple[tree.TreeDef, ...]
    avals: Tuple[Aval, ...]
    axes: Tuple[Tuple[str, int], ...] = ()  # the named axes in scope
    float64: bool = False  # whether names of dtypes mean it


class Entry:
    """A jitted function for one signature: traced once, and compiled when it first runs on concrete arrays."""

    def __init__(self, traced: tracing.Traced, names: List[str], reason: str) -> None:
        self.traced = traced
        self.jaxpr = simplify(traced.jaxpr)
        self.names = names
        self.reason = reason
        self.calls = 0
        self.run: Optional[Runner] = None

    def results(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves of the results: recorded as one call inside a trace, computed otherwise."""
        self.calls += 1
        if current_trace() is not None:
            return bind(Call(self.jaxpr), [*self.traced.captures, *leaves])
        if watchers:  # who looks at each operation sees none of a compiled program
            return inline(self.jaxpr, leaves)
        if self.run is None:
            self.run = compile_flat(without_meshes(without_rules(self.jaxpr)), self.names)
        outs = self.run(self.arrays(leaves))
        for y in outs:
            y.flags.writeable = False
        return [Array.wrap(y, a) for y, a in zip(outs, self.jaxpr.out_avals)]

    def arrays(self, leaves: Sequence[Any]) -> List[np.ndarray]:
        """Concrete leaves as the program takes them. Raises NarrowingError that names one that does not fit."""
        out: List[np.ndarray] = []
        try:
            for x, aval in zip(leaves, self.jaxpr.in_avals):
                out.append(data(x, aval))
        except NarrowingError as e:
            raise NarrowingError(message(f"argument {self.names[len(out)]} of {self.jaxpr.name}: {e}",
                                         at=user_source(3))) from None
        return out


def data(x: Any, aval: Aval) -> np.ndarray:
    """A concrete leaf as a NumPy array of the aval's dtype."""
    if isinstance(x, Array):
        return x.known("a jitted function")
    if isinstance(x, Aval):
        raise ArgumentError(message(f"a jitted function runs on arrays, got the aval {x}",
                                    "way out: pf.make_jaxpr and pf.lower take avals", at=user_source(3)))
    if type(x) is np.ndarray and x.dtype == aval.dtype:
        return x
    return scalar_array(x, aval.dtype) if aval.weak else Array(x).value


@decorator
def jit(f: Function, *, static_argnums: Union[int, Sequence[int]] = (), static_argnames: Union[str, Sequence[str]] = (),
        donate_argnums: Union[int, Sequence[int]] = ()) -> Function:
    """`f`, traced and compiled once for each signature: the structures of its arguments and their leaves' types.

    On concrete arrays the compiled program runs on the host and gives Arrays. Inside another traced function the call
    is recorded as one equation, so that the program has one sub-graph for `f`, however often it is called. Python code
    in `f` runs only while it is traced; an `if` on an array is an error.

    Static arguments, given by number or by name and passed either way, are Python values that `f` is traced for: it is
    compiled once for each of them, 1, 1.0 and True being three. They must be hashable. Arrays among the arguments in
    `donate_argnums` are given up: their memory is free for the call, and using them afterwards is a DonationError.

    The wrapper's `explain()` says what was compiled and why; `cache_clear()` forgets it.

    >>> double = jit(lambda x: x * 2)
    >>> double(np.arange(3))
    Array([0, 2, 4], dtype=int32)
    """
    cache: Dict[Signature, Entry] = {}
    static = StaticParameters("jit", f, static_argnums, static_argnames)
    numbers: Any = known("jit: donate_argnums", donate_argnums)
    donated = tuple(numbers) if isinstance(numbers, (tuple, list, range)) else (numbers,)
    if not all(map(is_index, donated)):
        raise ArgumentError(message("jit: donate_argnums numbers arguments, by an integer or several, got "
                                    f"{donate_argnums!r}", at=user_source(2)))

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = dict(sorted(kwargs.items()))
        if static:
            args, kwargs = static.hide(args, kwargs)
        given = tracing.arguments("jit", f, args, kwargs)
        signature = Signature(len(args), tuple(kwargs), tuple(given.structures), tuple(given.avals),
                              tuple(sorted(named_axes().items())), float64_enabled())
        entry = cache.get(signature)
        if entry is None:
            names = tracing.leaf_names(f, args, kwargs)
            why = reason(cache, signature, names, tracing.argument_names(f, args, kwargs))
            entry = Entry(tracing.trace(f, given), names, why)
            if not entry.traced.captures:  # what closes over tracers is good for this trace only
                cache[signature] = entry
        results = entry.results(given.leaves)
        if donated:
            give_up(f, args, donated, results)
        return entry.traced.outputs(results)

    def explain() -> str:
        """What was compiled, how often it was called, and why it was compiled again."""
        lines = [f"{function_name(f)}: compiled for {len(cache)} signature{'s' * (len(cache) != 1)}"]
        for i, entry in enumerate(cache.values(), 1):
            lines.append(f"  {i}. called {entry.calls} time{'s' * (entry.calls != 1)}; {entry.reason}")
        return "\n".join(lines)
    wrapper.explain = explain  # type: ignore[attr-defined]
    wrapper.cache_clear = cache.clear  # type: ignore[attr-defined]
    return wrapper


def give_up(f: Function, args: Sequence[Any], numbers: Sequence[int], results: Sequence[Any]) -> None:
    """Take the values out of donated Arrays, unless they are traced or are results themselves."""
    if current_trace() is not None:
        return
    kept = {id(y) for y in results}
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise ArgumentError(message(f"jit: donate_argnums names argument {n!r}, but {function_name(f)} was called "
                                        f"with {len(args)} positional arguments", at=user_source(3)))
        for x in tree.leaves(args[n]):
            if type(x) is Array and id(x) not in kept:
                x.donate(f"{function_name(f)}, argument {n}")


def reason(cache: Dict[Signature, Entry], new: Signature, names: Sequence[str], arguments: Sequence[str]) -> str:
    """Why a signature is not in the cache: where it differs from the most similar one that is."""
    if not cache:
        return "the first call"

    def differences(old: Signature) -> List[str]:
        if (old.positional, old.keywords) != (new.positional, new.keywords):
            return [f"it is called with {new.positional} positional arguments and keywords {list(new.keywords)}, "
                    f"before with {old.positional} and {list(old.keywords)}"] * (len(names) + 2)
        if old.structures != new.structures:
            i = next(i for i, (a, b) in enumerate(zip(old.structures, new.structures)) if a != b)
            before, now = (tree.unflatten(s, range(s.num_leaves)) for s in (old.structures[i], new.structures[i]))
            if isinstance(before, Static) and isinstance(now, Static):
                return [f"static argument {arguments[i]} is {now!r}, before {before!r}"]
            return [f"argument {arguments[i]} has another structure: "
                    + tree.first_difference(before, now, "the old", "the new", arguments[i])] * (len(names) + 1)
        found = [f"{name} is {b}, before {a}" for name, a, b in zip(names, old.avals, new.avals) if a is not b]
        if old.float64 != new.float64:
            found.append(f"float64 is {'asked for, before not' if new.float64 else 'not asked for, before it was'}")
        return found
    fewest = min([differences(old) for old in cache], key=lambda d: len(d))
    return "; ".join(dict.fromkeys(fewest))


def lower(f: Function, *args: Any, state: Union[None, int, Sequence[int]] = None, target: str = "auto",
          io_tiles: int = 0, replica_state: bool = False, **kwargs: Any) -> Program:
    """The PopXL program of `f` for arguments of these types: arrays, avals (`pf.spec`) or a mix of them.

    `state` names the arguments, by number, that live on the device. `f` then returns their new values first: a tuple
    (new state, result), or for several state arguments (new, ..., new, result). Without any arguments the types are
    taken from f's jaxtyping annotations. `target` is "sdk" for Graphcore's PopXL, "host" for popfn's own, "auto" for
    the SDK where there is one. `io_tiles` sets so many tiles of each IPU apart for input and output, which the io modes
    "io" and "io_overlapped" of `batch_serialise` need. With `replica_state`, what each replica has of the state can be
    read, by `Session.get_replica_data`: for debugging, because the host then keeps as many copies.

    Raises InputError where the new state is not of the state's type, LoweringError for float64, which no IPU has, and
    what tracing raises.

    >>> program = lower(lambda count, x: (count + 1, x * count), spec(()), spec(3), state=0)
    >>> print(program.jaxpr)
    { lambda ; a:f32[] b:f32[3] . let
        c:f32[] = add a 1.0:f32[]
        d:f32[3] = mul b a
      in (c, d) }
    """
    check_callable("lower", f, "pf.lower(f, x)")
    if not args and not kwargs and annotations_of(f) is not None:
        args = specs_from_annotations(f)
    state, io_tiles = known("lower: state", state), known("lower: io_tiles", io_tiles)
    numbers = () if state is None else tuple(state) if isinstance(state, (tuple, list, range)) else (state,)
    count = len(args) + len(kwargs)
    for n in numbers:
        if not is_index(n) or not -count <= n < count:
            raise ArgumentError(message(f"lower: state={state!r}, but {function_name(f)} has {count} arguments here",
                                        at=user_source(2)))
    if not isinstance(target, str):
        raise ArgumentError(message(f'target= is "auto", "host" or "sdk", got {target!r}', at=user_source(2)))
    if not is_index(io_tiles) or not 0 <= io_tiles < TILES:
        raise ArgumentError(message(f"lower: io_tiles is a number from 0 to below the {TILES} tiles of an IPU, got "
                                    f"{io_tiles!r}", "way out: io_tiles=32, which leaves most tiles to the computation",
                                    at=user_source(2)))
    if not isinstance(replica_state, bool):
        raise ArgumentError(message(f"lower: replica_state is True or False, got {replica_state!r}", at=user_source(2)))
    given = tracing.arguments("lower", f, args, kwargs)
    traced = tracing.trace(f, given)
    if traced.captures:
        raise ArgumentError(message(f"lower: {function_name(f)} closes over values of a trace that is still open",
                                    f"seen: {traced.captures[0].describe()}",
                                    "way out: call pf.lower outside of traced functions", at=user_source(2)))
    names = tracing.argument_names(f, args, kwargs)
    return build_program(without_rules(traced.jaxpr), list(zip(names, given.structures)),
                         tuple(n % count for n in numbers), traced.out_tree, target=target, name=traced.jaxpr.name,
                         io_tiles=io_tiles, replica_state=replica_state)
