"""A program as several compiled functions, so that what it repeats is compiled once.

XLA compiles a function again for each of its calls. So a program with kept calls becomes a list of parts, compiled on
their own: a part for each call, and parts for the equations between them. Parts that are alike share one compiled
function. An equation belongs to the first part in which its operands are there, except that large values that need no
call are computed just before they are used.
"""

import math
import os
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

import jax
import jax.numpy as jnp
import numpy as np

# The start of the names of the functions whose calls are parts.
PREFIX = "part_"


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Most of the time to compile a part goes to kernels that take little time to run. With these options of XLA it takes a
# third of the time, and a part a twentieth longer. The code is split into one module for each core to compile.
_QUICK_OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": _cores(),
}
# Values of more bytes are not computed before they are used.
_SMALL_BYTES = 4096


class Part(NamedTuple):
    """A compiled function, and the registers that it reads, sets, and is the last one to read."""

    function: Any
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    released: Tuple[int, ...]


class Piece(NamedTuple):
    """Equations in order, as a function of some variables to some others."""

    eqns: Sequence[Any]
    inputs: List[Any]
    outputs: List[Any]

    @property
    def called(self) -> Any:
        """The closed jaxpr that it calls, if it is one kept call."""
        return self.eqns[0].params["jaxpr"] if len(self.eqns) == 1 and _is_kept(self.eqns[0]) else None


class Program:
    """A compiled program. Call it with lists of arrays; the result is a list of arrays.

    Args:
        closed: The program, as `jax.make_jaxpr` gives it.
        donated: How many of its first inputs the caller gives up.
        options: What XLA must be told.
    """

    def __init__(self, closed: Any, donated: int, options: Dict[str, Any]) -> None:
        jaxpr = closed.jaxpr
        self._jaxpr = jaxpr
        self._options = options
        self._constants = {id(v): x for v, x in zip(jaxpr.constvars, closed.consts)}
        self._functions: Dict[Any, Any] = {}
        self._registers: List[Any] = [None] * len(jaxpr.invars)
        self._places: Dict[Any, int] = {v: i for i, v in enumerate(jaxpr.invars)}
        pieces = _pieces(jaxpr, set(jaxpr.constvars))
        last = {v: i for i, piece in enumerate(pieces) for v in piece.inputs if not _is_literal(v)}
        given_up = {v for v in jaxpr.invars[:donated] if not any(v is out for out in jaxpr.outvars)}
        ends = {id(v) for v in jaxpr.outvars}
        self._parts: List[Part] = []
        self._made = [list(map(_bytes, piece.outputs)) for piece in pieces]
        for i, piece in enumerate(pieces):
            gone = [not _is_literal(v) and last[v] == i and id(v) not in ends for v in piece.inputs]
            free = _reused(piece, [g and v in given_up for g, v in zip(gone, piece.inputs)])
            inputs = tuple(map(self._place, piece.inputs))
            released = tuple(dict.fromkeys(place for place, g in zip(inputs, gone) if g))
            self._parts.append(Part(self._compiled(piece, free), inputs, self._new(piece.outputs), released))
        self._results = tuple(map(self._place, jaxpr.outvars))
        uses = [place for part in self._parts for place in part.inputs]
        self._shared = [i for i in range(len(jaxpr.invars)) if uses.count(i) > 1]
        # A result has an array of its own: not that of another one, nor one that the caller keeps.
        owned = {place for part in self._parts for place in part.outputs} | set(range(donated))
        self._copied = tuple(
            i for i, place in enumerate(self._results) if place not in owned or place in self._results[:i]
        )

    def as_text(self) -> str:
        """The compiled functions as text, each once."""
        return "\n".join(function.as_text() for function in self._functions.values())

    @property
    def peak_bytes(self) -> int:
        """The memory that a run takes at most: the arrays that are there, and the scratch memory of a part."""
        sizes = dict(enumerate(map(_bytes, self._jaxpr.invars)))
        sizes.update((i, x.nbytes) for i, x in enumerate(self._registers) if x is not None)
        total = peak = sum(sizes.values())
        for (function, _, outputs, released), made in zip(self._parts, self._made):
            stats = function.memory_analysis()
            sizes.update(zip(outputs, made))
            total += sum(made) - stats.alias_size_in_bytes
            peak = max(peak, total + stats.temp_size_in_bytes)
            # What was given up is an output now.
            total -= sum(sizes[i] for i in released) - stats.alias_size_in_bytes
        return peak

    def __call__(self, *groups: Sequence[Any]) -> List[Any]:
        given = [array for group in groups for array in group]
        registers = given + self._registers[len(given) :]
        for i in self._shared:
            if isinstance(registers[i], np.ndarray):
                registers[i] = jax.device_put(registers[i])
        for function, inputs, outputs, released in self._parts:
            results = function(*[registers[i] for i in inputs])
            for i in released:
                registers[i] = None
            for i, array in zip(outputs, results):
                registers[i] = array
        arrays = [registers[i] for i in self._results]
        for i in self._copied:
            arrays[i] = jnp.array(arrays[i])
        return arrays

    # Registers

    def _place(self, v: Any) -> int:
        """The register of a variable, or one that holds a constant."""
        if _is_literal(v):
            self._registers.append(jnp.asarray(v.val, v.aval.dtype))
            return len(self._registers) - 1
        if id(v) in self._constants and v not in self._places:
            self._places[v] = len(self._registers)
            self._registers.append(jnp.asarray(self._constants[id(v)]))
        return self._places[v]

    def _new(self, variables: Sequence[Any]) -> Tuple[int, ...]:
        start = len(self._registers)
        self._places.update((v, start + i) for i, v in enumerate(variables))
        self._registers += [None] * len(variables)
        return tuple(range(start, len(self._registers)))

    # Functions

    def _compiled(self, piece: Piece, free: Sequence[int]) -> Any:
        """The compiled function of a piece, which may be that of an earlier one. `free` inputs are given up."""
        called = piece.called
        key = (_key(piece, self._constants) if called is None else id(called)), tuple(free)
        function = self._functions.get(key)
        if function is None:
            avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in piece.inputs]
            jitted = jax.jit(_function(piece, self._constants, self._jaxpr), donate_argnums=tuple(free))
            function = self._functions[key] = _quickly_compiled(jitted.lower(*avals), self._options)
        return function


def _quickly_compiled(lowered: Any, options: Dict[str, Any]) -> Any:
    while True:
        try:
            return lowered.compile(compiler_options={**_QUICK_OPTIONS, **options})
        except RuntimeError as error:  # of a class that depends on the release, as do the options that there are
            refused = [name for name in _QUICK_OPTIONS if name in str(error)]
            if not refused:
                raise
            del _QUICK_OPTIONS[refused[0]]


def _is_literal(v: Any) -> bool:
    return hasattr(v, "val")


def _is_kept(eqn: Any) -> bool:
    return str(eqn.params.get("name", "")).startswith(PREFIX)


# Pieces


def _pieces(jaxpr: Any, constants: Set[Any]) -> List[Piece]:
    """The equations that the outputs need: kept calls, and what is before and between them."""
    eqns = _needed(jaxpr)
    levels = _levels(eqns, jaxpr)
    count = 1 + max(levels, default=0)
    plain: List[List[Any]] = [[] for _ in range(count)]
    kept: List[List[Any]] = [[] for _ in range(count)]
    for eqn, level in zip(eqns, levels):
        (kept if _is_kept(eqn) else plain)[level].append(eqn)
    groups = [group for k in range(count) for group in [plain[k]] + [[eqn] for eqn in kept[k]] if group]
    # What a group makes is an output of it if a later one needs it.
    needed = {v for v in jaxpr.outvars if not _is_literal(v)}
    pieces: List[Piece] = []
    for group in reversed(groups):
        made = [v for eqn in group for v in eqn.outvars]
        is_call = _is_kept(group[0])
        inputs = list(group[0].invars) if is_call else _inputs(group, constants)
        pieces.append(Piece(group, inputs, made if is_call else [v for v in made if v in needed]))
        needed.update(v for v in inputs if not _is_literal(v))
    return pieces[::-1]


def _needed(jaxpr: Any) -> List[Any]:
    """The equations without those that nothing needs."""
    needed = {v for v in jaxpr.outvars if not _is_literal(v)}
    eqns = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if not _is_literal(v))
    return eqns[::-1]


def _levels(eqns: Sequence[Any], jaxpr: Any) -> List[int]:
    """How many kept calls must be over before each equation."""
    made: Dict[Any, int] = {}
    levels = []
    for eqn in eqns:
        level = max([made.get(v, 0) for v in eqn.invars if not _is_literal(v)], default=0)
        levels.append(level)
        made.update((v, level + _is_kept(eqn)) for v in eqn.outvars)
    # Large values that no call is needed for wait for their use.
    used: Dict[Any, int] = {}
    results = {v for v in jaxpr.outvars if not _is_literal(v)}
    for k in reversed(range(len(eqns))):
        eqn = eqns[k]
        waits = levels[k] == 0 and not _is_kept(eqn) and not any(v in results for v in eqn.outvars)
        if waits and sum(_bytes(v) for v in eqn.outvars) > _SMALL_BYTES:
            levels[k] = min(used[v] for v in eqn.outvars if v in used)
        for v in eqn.invars:
            if not _is_literal(v):
                used[v] = min(levels[k], used.get(v, levels[k]))
    return levels


def _bytes(v: Any) -> int:
    return math.prod(v.aval.shape) * np.dtype(v.aval.dtype).itemsize


def _inputs(group: Sequence[Any], constants: Set[Any]) -> List[Any]:
    """The variables that a group takes, in the order of their use; constants are part of it."""
    made: Set[Any] = set(constants)
    found: Dict[Any, None] = {}
    for eqn in group:
        found.update((v, None) for v in eqn.invars if not _is_literal(v) and v not in made)
        made.update(eqn.outvars)
    return list(found)


def _reused(piece: Piece, is_free: Sequence[bool]) -> List[int]:
    """Which free inputs some output of the same type can take the memory of."""
    types = [(tuple(v.aval.shape), v.aval.dtype) for v in piece.outputs]
    result = []
    for i, (v, free) in enumerate(zip(piece.inputs, is_free)):
        wanted = tuple(v.aval.shape), v.aval.dtype
        if free and wanted in types and sum(v is u for u in piece.inputs) == 1:
            types.remove(wanted)
            result.append(i)
    return result


def _key(piece: Piece, constants: Dict[int, Any]) -> Any:
    """What is equal for pieces that compute the same from inputs of the same types."""
    numbers: Dict[Any, int] = {}

    def number(v: Any) -> Any:
        if _is_literal(v):
            return np.asarray(v.val).tobytes(), str(v.aval)
        if id(v) in constants:
            return "constant", id(constants[id(v)])
        return numbers.setdefault(v, len(numbers))

    inputs = tuple((number(v), str(v.aval)) for v in piece.inputs)
    eqns = tuple(
        (
            eqn.primitive.name,
            tuple(map(number, eqn.invars)),
            tuple((number(v), str(v.aval)) for v in eqn.outvars),
            tuple((name, _hashable(value)) for name, value in sorted(eqn.params.items())),
        )
        for eqn in piece.eqns
    )
    return inputs, eqns, tuple(map(number, piece.outputs))


def _hashable(x: Any) -> Any:
    """The value of a parameter, or what it is if it has no hash: then only the same object is equal."""
    try:
        hash(x)
    except TypeError:
        return id(x)
    return type(x), x


def _function(piece: Piece, constants: Dict[int, Any], program: Any) -> Callable[..., List[Any]]:
    """The function that a piece of a program is."""
    called = piece.called
    if called is not None:
        return lambda *arrays: jax.core.eval_jaxpr(called.jaxpr, called.consts, *arrays)
    used = list(dict.fromkeys(v for eqn in piece.eqns for v in eqn.invars if id(v) in constants))
    jaxpr = program.replace(constvars=used, invars=piece.inputs, outvars=piece.outputs, eqns=list(piece.eqns))
    return lambda *arrays: jax.core.eval_jaxpr(jaxpr, [constants[id(v)] for v in used], *arrays)
