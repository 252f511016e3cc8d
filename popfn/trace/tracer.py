"""Tracer, an Array that stands for a traced value, and Trace, which records calls of primitives as equations.

There is one current trace per context. A primitive called while there is one is recorded in it, whatever its operands
are; without one it is evaluated at once. An operand that belongs to an outer, still open trace becomes an extra input
of the current one (a capture); an operand of a trace that has ended is an error.
"""
from __future__ import annotations

import functools
import gc
import sys
from contextvars import ContextVar, Token
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from .array import Array
from .aval import DEVICE, Aval, AxisNames, Placement, as_numpy, aval_of_data, scalar_array
from .errors import IN_LIBRARY, ConcretizationError, LeakError, PopfnError, Source, located, message, user_source, where
from .jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from .primitive import MIXED, Primitive, eval_results, watchers

_current: ContextVar[Optional[Trace]] = ContextVar("popfn_trace", default=None)
_new_eqn = tuple.__new__  # a NamedTuple's own constructor takes twice the time


class Tracer(Array):
    """An Array that stands for a value in a trace. Made by a Trace only; never kept beyond it."""

    __slots__ = ("trace", "variable", "origin")

    trace: Trace
    variable: Var
    origin: Union[Source, int, None]  # the line that made it, or an input's number

    def __init__(self, aval: Aval, trace: Trace, variable: Var, origin: Union[Source, int, None]) -> None:
        self.aval = aval
        self.trace = trace
        self.variable = variable
        self.origin = origin

    def __repr__(self) -> str:
        return f"Tracer({self.aval} in {self.trace.name})"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def describe(self) -> str:
        """What the tracer is, for an error message: `f32[3], argument params['b'] of loss`."""
        if isinstance(self.origin, int):
            return f"{self.aval}, argument {self.trace.input_name(self.origin)} of {self.trace.name}"
        origin = self.origin
        if origin is None:  # it came out of a program that was put here
            origin = next((eqn.source for eqn in self.trace.eqns if self.variable in eqn.outputs), None)
        return f"{self.aval}, made at {where(origin)}"

    def depends_on(self) -> List[str]:
        """The names of the arguments that the value depends on, those of functions around this one included."""
        return self.trace.inputs_behind(self.variable)

    def __deepcopy__(self, memo: Any) -> Tracer:
        return self

    def __reduce__(self) -> Any:
        raise LeakError(message("a traced value cannot be pickled", f"the value: {self.describe()}",
                                at=user_source(2)))

    def followed(self) -> np.ndarray:
        if not self.trace.open:
            raise leak(self)
        return self.trace.value_of(self.variable)

    def known(self, what: str, branch: bool = False) -> np.ndarray:
        if not self.trace.open:
            raise leak(self)
        if self.trace.follow and (branch or not self.aval.is_float):
            return self.trace.value_of(self.variable)
        if self.trace.follow:
            raise ConcretizationError(message(
                f"{what} takes a value out of {self.trace.name} while that is differentiated: its derivative would "
                "be lost", f"the array: {self.describe()}", "way out: stay with popfn.numpy functions; only `if`, "
                "`while`, int(...) and indices follow a value that is differentiated", at=user_source(3)))
        depends = ", ".join(self.depends_on()) or "no argument"
        way = ("choose with pnp.where(condition, a, b), or let a Python value decide that the trace does not see"
               if what.startswith("bool") else
               "stay with popfn.numpy functions, or compute it outside the traced function and pass it in")
        raise ConcretizationError(message(
            f"{what} needs the value of an array that is not known while {self.trace.name} is traced",
            f"the array: {self.describe()}", f"it depends on: {depends}", f"way out: {way}",
            at=user_source(3)))


class Trace:
    """A recorder of equations: enter it, make inputs, call primitives, `finish` with the outputs.

    `follow` says that the inputs' values are known: when Python asks a tracer for its value, as in `if x > 0:`, what it
    depends on is evaluated. `input_names` is called for the inputs' names when an error wants them. `axes` are the
    named axes that the traced function is mapped over, with their sizes.
    """

    # Handed down by prims.collectives and prims.memory, which stand above.
    pvary: ClassVar[Callable[[Any, AxisNames], Any]]
    place: ClassVar[Callable[[Any, str], Any]]

    def __init__(self, name: str, input_names: Callable[[], Sequence[str]] = tuple, follow: bool = False,
                 axes: Optional[Dict[str, int]] = None) -> None:
        self.name = name
        self.axes = axes
        self.input_names = input_names
        self.follow = follow
        self.open = False
        self.parent: Optional[Trace] = None
        self.eqns: List[Eqn] = []
        self.inputs: List[Var] = []
        self.source: Optional[Source] = None  # while a transform replays an equation: the line that it came from
        self.captures: List[Tracer] = []
        self.values: Dict[Var, np.ndarray] = {}  # in a following trace: the inputs', and what was asked for
        self.moved: Dict[Tuple[Atom, Placement], Tracer] = {}  # what was placed otherwise because an operation asked
        self._captured: Dict[int, Tracer] = {}
        self._constants: Dict[int, Tuple[Any, Var, np.ndarray]] = {}

    def __enter__(self) -> Trace:
        self.parent = _current.get()
        self._token: Token[Optional[Trace]] = _current.set(self)
        self.open = True
        # Tracing makes many small objects and no garbage; collections would cost a third of its time.
        self._collecting = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *_: Any) -> None:
        self.open = False
        _current.reset(self._token)
        if self._collecting:
            gc.enable()

    # ------------------------------------------------------------------ values
    def input(self, aval: Aval) -> Tracer:
        """A new input."""
        var = Var(aval)
        self.inputs.append(var)
        return Tracer(aval, self, var, len(self.inputs) - 1)

    def add_inputs(self, avals: Sequence[Aval]) -> List[Tracer]:
        """New inputs, one for each aval."""
        start = len(self.inputs)
        self.inputs += [Var(a) for a in avals]
        return [Tracer(v.aval, self, v, i) for i, v in enumerate(self.inputs[start:], start)]

    def stand_in(self, x: Tracer) -> Tracer:
        """A new input that stands for another trace's tracer, which may have ended; whoever calls keeps `x` alive."""
        inner = self._captured[id(x)] = self.input(x.aval)
        return inner

    def tracer(self, var: Var) -> Tracer:
        """A tracer for a variable of this trace."""
        return Tracer(var.aval, self, var, self.source)

    def array_of(self, atom: Atom) -> Array:
        """An atom of this trace as a user sees it."""
        return self.tracer(atom) if isinstance(atom, Var) else Array.wrap(atom.value, atom.aval)

    def atom(self, x: Any) -> Atom:
        """What stands for a value in this trace's equations."""
        kind = type(x)
        if kind is Tracer:
            return x.variable if x.trace is self else self.capture(x).variable
        if kind is Literal or kind is Var:  # a transform's rules hand on variables as they are
            return x  # type: ignore[no-any-return]
        value, aval = (x.value, x.aval) if isinstance(x, Array) else concrete(x)
        key = id(value if isinstance(x, Array) else x)
        found = self._constants.get(key)
        if found is not None and (isinstance(x, Array) or found[2].tobytes() == value.tobytes()):
            return found[1]
        if not isinstance(x, Array):
            value = np.array(value)  # the caller may write to theirs before the program runs, or before its next use
            value.flags.writeable = False
        if not aval.ndim:
            return Literal(value, aval)
        if found is not None:
            key = id(value)
        self._constants[key] = x, Var(aval), value  # x is kept, so that its id stays its own
        return self._constants[key][1]

    def capture(self, x: Tracer) -> Tracer:
        """The input that stands for an outer trace's tracer. Raises LeakError if that trace is not open around us."""
        inner = self._captured.get(id(x))
        if inner is None:
            outer = self.parent
            while outer is not x.trace and (outer is None or id(x) not in outer._captured):
                if outer is None:
                    raise leak(x)
                outer = outer.parent
            inner = self._captured[id(x)] = Tracer(x.aval, self, Var(x.aval), x.origin)
            self.captures.append(x)
        return inner

    def value_of(self, var: Var) -> np.ndarray:
        """In a following trace: a variable's value, evaluated from the inputs' with what it depends on."""
        known = self.values
        for outer in self.captures:
            inner = self._captured[id(outer)].variable
            if inner not in known:
                known[inner] = outer.followed()
        known.update((v, c) for _, v, c in self._constants.values())
        missing: Set[Var] = set() if var in known else {var}
        todo: List[Eqn] = []
        for eqn in reversed(self.eqns):
            if not missing:
                break
            if not missing.isdisjoint(eqn.outputs):
                todo.append(eqn)
                missing.difference_update(eqn.outputs)
                missing.update(a for a in eqn.inputs if isinstance(a, Var) and a not in known)
        with np.errstate(all="ignore"):
            for eqn in reversed(todo):
                arrays = [a.value if isinstance(a, Literal) else known[a] for a in eqn.inputs]
                try:
                    known.update(zip(eqn.outputs, eval_results(eqn.primitive, arrays)))
                except PopfnError as e:
                    raise located(e, eqn.source) from None
        return known[var]

    def finish(self, outputs: Sequence[Any]) -> Jaxpr:
        """The jaxpr of what was recorded; its first inputs are the captures, in the order of `captures`."""
        atoms = [self.atom(x) for x in outputs]
        inputs = [self._captured[id(x)].variable for x in self.captures] + self.inputs
        constants = list(self._constants.values())
        return Jaxpr(inputs, atoms, self.eqns, [v for _, v, _ in constants], [c for _, _, c in constants], self.name)

    # ------------------------------------------------------------------ for error messages
    def input_name(self, i: int) -> str:
        """The i-th input's name, as code."""
        known = self.input_names()
        return known[i] if i < len(known) else f"number {i}"

    def inputs_behind(self, var: Var) -> List[str]:
        """The names of the inputs that a variable depends on."""
        needed = {var}
        for eqn in reversed(self.eqns):
            if any(v in needed for v in eqn.outputs):
                needed.update(a for a in eqn.inputs if isinstance(a, Var))
        outer = [name for x in self.captures if self._captured[id(x)].variable in needed for name in x.depends_on()]
        return outer + [self.input_name(i) for i, v in enumerate(self.inputs) if v in needed]


def infer_at(primitive: Primitive, avals: Tuple[Aval, ...], source: Optional[Source]) -> Any:
    """The avals of a primitive's results; an error of its `abstract` rule gets the user's line."""
    try:
        return primitive.infer(avals)
    except PopfnError as e:
        raise located(e, source) from None


def leak(x: Tracer) -> LeakError:
    """The error for a tracer used where its trace is not open."""
    return LeakError(message(
        f"a traced value was used outside the trace of {x.trace.name} that it belongs to",
        f"the value: {x.describe()}",
        "way out: return it from the function instead of keeping it in a global, an attribute or a list",
        at=user_source(2)))


def current_trace() -> Optional[Trace]:
    """The trace that records what is called now, None if operations run at once."""
    return _current.get()


def named_axes() -> Dict[str, int]:
    """The named axes in scope and their sizes; those of inner functions hide outer ones of the same name."""
    found: Dict[str, int] = {}
    trace = _current.get()
    while trace is not None:
        for name, size in (trace.axes or {}).items():
            found.setdefault(name, size)
        trace = trace.parent
    return found


def bind(primitive: Primitive, args: Sequence[Any]) -> Any:
    """Apply a primitive: record it in the current trace, or evaluate it at once if there is none.

    Returns the result's array or tracer; a tuple of them if the primitive has several results.
    """
    trace = _current.get()
    if trace is None:
        return evaluate(primitive, args)
    # One and two operands are written out: this is the path that the time of tracing depends on.
    inputs: Tuple[Atom, ...]
    avals: Tuple[Aval, ...]
    if len(args) == 2:
        x, y = args
        a = x.variable if type(x) is Tracer and x.trace is trace else trace.atom(x)
        b = y.variable if type(y) is Tracer and y.trace is trace else trace.atom(y)
        inputs, avals = (a, b), (a.aval, b.aval)
    elif len(args) == 1:
        x, = args
        a = x.variable if type(x) is Tracer and x.trace is trace else trace.atom(x)
        inputs, avals = (a,), (a.aval,)
    else:
        inputs = tuple([trace.atom(x) for x in args])
        avals = tuple([a.aval for a in inputs])
    source = trace.source
    if source is None:  # user_source, written out where it is hot
        frame: Any = sys._getframe(1)
        while IN_LIBRARY[frame.f_code.co_filename] and frame.f_back is not None:
            frame = frame.f_back
        source = frame.f_code, frame.f_lasti
    out = primitive.memo.get(avals)
    if out is None:
        out = infer_at(primitive, avals, source)
    if type(out) is Aval:
        var = Var(out)
        trace.eqns.append(_new_eqn(Eqn, (primitive, inputs, (var,), source)))
        return Tracer(out, trace, var, source)
    if out is MIXED:
        primitive = primitive.widened(avals)
        return bind(primitive, placed_alike(trace, primitive, inputs, avals))
    outputs = tuple(Var(a) for a in out)
    trace.eqns.append(Eqn(primitive, inputs, outputs, source))
    return tuple(Tracer(v.aval, trace, v, source) for v in outputs)


def placed_alike(trace: Trace, primitive: Primitive, inputs: Sequence[Atom], avals: Sequence[Aval]) -> List[Any]:
    """The operands, placed as the primitive wants them.

    They vary over its axes, as what is equal in all lanes differs in none, and are moved into its memories, each value
    once.
    """
    out: List[Any] = []
    for atom, aval, placement in zip(inputs, avals, primitive.operand_placements(avals)):
        axes, memory = placement
        if isinstance(atom, Literal) and memory == aval.memory:
            out.append(Literal(atom.value, aval.placed(placement)))
            continue
        moved: Any = atom
        if aval.memory != memory:
            moved = trace.moved.get((atom, (aval.varying, memory)))
            if moved is None:
                moved = trace.moved[atom, (aval.varying, memory)] = Trace.place(atom, memory)
        if aval.varying != axes:
            varied = trace.moved.get((atom, placement))
            if varied is None:
                varied = trace.moved[atom, placement] = Trace.pvary(moved, axes - aval.varying)
            moved = varied
        out.append(moved)
    return out


def evaluate(primitive: Primitive, args: Sequence[Any]) -> Any:
    """Apply a primitive to concrete operands with its `eval` rule."""
    values, avals = [], []
    for x in args:
        if type(x) is Array or type(x) is Literal:
            values.append(x.value)
            avals.append(x.aval)
        elif isinstance(x, Tracer):
            raise leak(x)
        else:  # a copy, because the result may be a view and the caller may write to their array later
            value, aval = concrete(x)
            values.append(np.array(value))
            avals.append(aval)
    key = tuple(avals)
    out = primitive.memo.get(key)
    if out is None:
        out = infer_at(primitive, key, user_source(2))
    if out is MIXED:
        return evaluate(primitive, [Array.wrap(x, a.placed(placement)) for x, a, placement in zip(
            values, avals, primitive.operand_placements(avals))])
    with np.errstate(all="ignore"):
        try:
            results = eval_results(primitive, values)
        except PopfnError as e:
            raise located(e) from None
    if watchers:
        for watch in watchers:
            watch(primitive, values, results, user_source(2))
    for r in results:
        r.flags.writeable = False
    if type(out) is Aval:
        return Array.wrap(results[0], out)
    return tuple(map(Array.wrap, results, out))


def aval_of(x: Any) -> Aval:
    """The aval of anything that a primitive takes."""
    try:
        return x.aval  # type: ignore[no-any-return]
    except AttributeError:
        return concrete(x)[1]


def concrete(x: Any) -> Tuple[np.ndarray, Aval]:
    """Data that a user hands to an operation, with its aval. An error about it names the user's line."""
    try:
        return as_numpy(x), aval_of_data(x)
    except PopfnError as e:
        raise located(e) from None


def literal(value: Union[bool, int, float], like: Aval) -> Literal:
    """A scalar of `like`'s dtype and weak flag, on the device. Raises NarrowingError if an integer does not fit."""
    try:
        if value and value == value:
            return _literal(value, like)
        return Literal(scalar_array(value, like.dtype), like.with_shape(()).at(DEVICE))
    except PopfnError as e:
        raise located(e) from None


@functools.lru_cache(maxsize=4096, typed=True)
def _literal(value: Union[bool, int, float], like: Aval) -> Literal:
    """`literal`, kept; not for 0.0 and -0.0, which are equal but not the same, nor for NaN."""
    return Literal(scalar_array(value, like.dtype), like.with_shape(()).at(DEVICE))
