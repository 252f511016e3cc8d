"""Jaxpr: a typed program as data. Var, Literal, Eqn and Jaxpr; check, eval and the printed form.

A jaxpr is closed: the arrays that it needs beside its inputs are its `constants`, one for each of its `constvars`.
"""
from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from .aval import FLOAT8, SHORT, Aval, float64
from .errors import InputError, JaxprError, PopfnError, Source, located, where
from .primitive import Primitive, eval_results, result_avals, watchers


class Var:
    """A name for a value: an input, a constant or the result of one equation. Compared by identity."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var:{self.aval}"


class Literal:
    """A scalar written into an equation: a read-only 0-d array `value` with its `aval`."""

    __slots__ = ("value", "aval")

    def __init__(self, value: np.ndarray, aval: Aval) -> None:
        self.value = value
        self.aval = aval

    def key(self) -> Tuple[Any, ...]:
        """Equal for literals of the same value and type (0.0 and -0.0 differ, one NaN is like another)."""
        return b"nan" if self.value != self.value else self.value.tobytes(), self.aval

    def __repr__(self) -> str:
        return f"{scalar_text(self.value)}:{self.aval}"


Atom = Union[Var, Literal]


class Eqn(NamedTuple):
    """One equation: `outputs = primitive(inputs)`, and the user's line that it comes from."""

    primitive: Primitive
    inputs: Tuple[Atom, ...]
    outputs: Tuple[Var, ...]
    source: Optional[Source] = None


class Jaxpr:
    """A closed, typed program: inputs, equations in order, outputs, and the constants it uses.

    `name` is the traced function's; it takes no part in equality, which is up to the names of variables. A parsed
    jaxpr whose constants were not given holds None in their place: it compares by their avals and cannot be evaluated.
    """

    __slots__ = ("inputs", "outputs", "eqns", "constvars", "constants", "name", "memo", "_key")

    def __init__(self, inputs: Sequence[Var], outputs: Sequence[Atom], eqns: Sequence[Eqn],
                 constvars: Sequence[Var] = (), constants: Sequence[Optional[np.ndarray]] = (),
                 name: str = "") -> None:
        self.inputs, self.outputs, self.eqns = tuple(inputs), tuple(outputs), tuple(eqns)
        self.constvars, self.constants = tuple(constvars), tuple(constants)
        self.name = name
        self.memo: Dict[Any, Any] = {}  # what transforms made of this jaxpr, so that one jaxpr gives one graph
        self._key: Any = None

    @property
    def in_avals(self) -> Tuple[Aval, ...]:
        """The inputs' avals."""
        return tuple(v.aval for v in self.inputs)

    @property
    def out_avals(self) -> Tuple[Aval, ...]:
        """The outputs' avals."""
        return tuple(a.aval for a in self.outputs)

    def remember(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, computed once for this jaxpr and `key`."""
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = make()
        return found

    @property
    def has_effect(self) -> bool:
        """Whether an equation does more than compute its results."""
        return self.remember("has_effect", lambda: any(  # type: ignore[no-any-return]
            eqn.primitive.has_effect for eqn in self.eqns))

    @property
    def has_float64(self) -> bool:
        """Whether a value is float64, in the jaxpr or in one that it holds."""
        return self.remember("has_float64", lambda: (  # type: ignore[no-any-return]
            any(a.aval.dtype == float64 for a in (*self.constvars, *self.inputs, *self.outputs))
            or any(map(eqn_has_float64, self.eqns))))

    def uses_axis(self, name: str) -> bool:
        """Whether an equation depends on the lane of a mapped axis of this name, as `axis_index` does."""
        return self.remember(  # type: ignore[no-any-return]
            ("uses_axis", name), lambda: any(eqn.primitive.uses_axis(name) for eqn in self.eqns))

    # ------------------------------------------------------------------ equality
    def key(self) -> Tuple[Any, ...]:
        """A structure that is equal for jaxprs equal up to variable names; constants take part by their avals."""
        if self._key is None:
            number: Dict[Var, int] = {v: i for i, v in enumerate(itertools.chain(self.constvars, self.inputs))}
            rows: List[Any] = [tuple(v.aval for v in self.constvars), self.in_avals]

            def atoms(xs: Sequence[Atom]) -> Tuple[Any, ...]:
                return tuple(number[x] if isinstance(x, Var) else x.key() for x in xs)
            for eqn in self.eqns:
                row = eqn.primitive, atoms(eqn.inputs), tuple(v.aval for v in eqn.outputs)
                for v in eqn.outputs:
                    number[v] = len(number)
                rows.append(row)
            rows.append(atoms(self.outputs))
            self._key = tuple(rows)
        return self._key  # type: ignore[no-any-return]

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Jaxpr):
            return NotImplemented
        return self is other or self.key() == other.key() and all(
            a is None or b is None or a is b or a.tobytes() == b.tobytes()
            for a, b in zip(self.constants, other.constants))

    def __hash__(self) -> int:
        return hash(self.key())

    # ------------------------------------------------------------------ check
    def check(self) -> Jaxpr:
        """Return the jaxpr itself if it is well formed. Raises JaxprError that names the equation and its line."""
        known: Dict[Var, bool] = {}

        def define(v: Any, what: str) -> None:
            if type(v) is not Var:
                raise JaxprError(f"{what} is not a Var: {v!r}")
            if v in known:
                raise JaxprError(f"{what} is defined twice: {v!r}")
            known[v] = True

        def use(a: Any, what: str) -> None:
            if type(a) is Literal:
                if a.aval.ndim or (a.value.shape, a.value.dtype) != ((), a.aval.dtype):
                    raise JaxprError(f"{what} is no scalar of its type: {a!r}")
            elif a not in known:
                raise JaxprError(f"{what} is used before it is defined: {a!r}")
        if len(self.constvars) != len(self.constants):
            raise JaxprError(f"{len(self.constvars)} constvars but {len(self.constants)} constants")
        for v, c in zip(self.constvars, self.constants):
            define(v, "a constvar")
            if c is not None and (c.shape, c.dtype) != (v.aval.shape, v.aval.dtype):
                raise JaxprError(f"a constant is {c.dtype}{list(c.shape)}, its constvar {v.aval}")
        for i, v in enumerate(self.inputs):
            define(v, f"input {i}")
        for i, eqn in enumerate(self.eqns):
            at = f"equation {i} ({eqn.primitive.name}, {where(eqn.source)})"
            for a in eqn.inputs:
                use(a, f"an operand of {at}")
            try:
                want = result_avals(eqn.primitive, tuple(a.aval for a in eqn.inputs))
            except Exception as e:  # parameters of a wrong type make a rule fail in any way
                raise JaxprError(f"{at} is ill typed: {e}") from e
            got = tuple(v.aval for v in eqn.outputs)
            if want != got:
                raise JaxprError(f"{at} gives {want}, but its variables are {got}")
            for v in eqn.outputs:
                define(v, f"a result of {at}")
        for i, a in enumerate(self.outputs):
            use(a, f"output {i}")
        return self

    # ------------------------------------------------------------------ eval
    def eval(self, *arrays: Any) -> Tuple[np.ndarray, ...]:
        """The outputs for NumPy inputs, equation by equation with the primitives' `eval` rules.

        Raises InputError if the arrays do not have the inputs' shapes and dtypes.
        """
        got = tuple(np.asarray(x) for x in arrays)
        want = self.in_avals
        if len(got) != len(want) or any((x.shape, x.dtype) != (a.shape, a.dtype) for x, a in zip(got, want)):
            have = ", ".join(f"{SHORT.get(x.dtype, x.dtype)}[{','.join(map(str, x.shape))}]" for x in got)
            raise InputError(f"{self.name or 'the jaxpr'} takes ({', '.join(map(str, want))}), got ({have})")
        if any(c is None for c in self.constants):
            raise InputError("this jaxpr was parsed without its constants: give them to parse_jaxpr(text, constants)")
        env: Dict[Var, Any] = dict(zip(self.constvars, self.constants))
        env.update(zip(self.inputs, got))
        last = self.remember("last_uses", lambda: last_uses(self))
        with np.errstate(all="ignore"):
            for i, eqn in enumerate(self.eqns):
                values = [a.value if type(a) is Literal else env[a] for a in eqn.inputs]  # type: ignore[index]
                try:
                    results = eval_results(eqn.primitive, values)
                except PopfnError as e:
                    raise located(e, eqn.source) from None
                if watchers:
                    for watch in watchers:
                        watch(eqn.primitive, values, results, eqn.source)
                env.update(zip(eqn.outputs, results))
                for v in last.get(i, ()):
                    del env[v]
        return tuple(a.value if isinstance(a, Literal) else env[a] for a in self.outputs)

    # ------------------------------------------------------------------ text
    def __str__(self) -> str:
        return jaxpr_text(self)

    def __repr__(self) -> str:
        return jaxpr_text(self)


def eqn_has_float64(eqn: Eqn) -> bool:
    """Whether an equation takes, gives or computes with float64."""
    return any(a.aval.dtype == float64 for a in (*eqn.inputs, *eqn.outputs)) or any(
        inner.has_float64 for inner in getattr(eqn.primitive, "jaxprs", ()))


def last_uses(jaxpr: Jaxpr) -> Dict[int, List[Var]]:
    """For each equation's index, the variables whose value nobody needs after it."""
    seen = {a for a in jaxpr.outputs if isinstance(a, Var)}
    out: Dict[int, List[Var]] = {}
    for i in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[i]
        for a in itertools.chain(eqn.inputs, eqn.outputs):
            if isinstance(a, Var) and a not in seen:
                seen.add(a)
                out.setdefault(i, []).append(a)
    return out


# ---------------------------------------------------------------------------- the printed form
def names() -> Iterator[str]:
    """a b ... z ba bb ..., without the words of the printed form."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    for n in itertools.count():
        name = ""
        while True:
            n, digit = divmod(n, 26)
            name = letters[digit] + name
            if not n:
                break
        if name not in ("in", "let", "inf", "nan"):
            yield name


def scalar_text(x: np.ndarray) -> str:
    """A scalar so that reading it back gives the same bits (a NaN's payload aside)."""
    if x.dtype == np.bool_:
        return str(bool(x))
    if x.dtype.kind in "iu":
        return str(int(x))
    if x.dtype in FLOAT8:
        return repr(float(x))
    return str(x[()])


def param_text(value: Any, indent: str) -> str:
    """A parameter as it is printed and parsed: numbers, strings, tuples, dtypes by short name, jaxprs."""
    if isinstance(value, Jaxpr):
        return jaxpr_text(value, indent)
    if isinstance(value, np.dtype):
        return SHORT[value]
    if isinstance(value, tuple):
        inside = ", ".join(param_text(v, indent) for v in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return repr(value.item() if isinstance(value, np.generic) else value)


def jaxpr_text(jaxpr: Jaxpr, indent: str = "") -> str:
    """The printed form; `parse_jaxpr` reads it back."""
    name: Dict[Var, str] = {}
    fresh = names()

    def define(v: Var) -> str:
        name[v] = next(fresh)
        return f"{name[v]}:{v.aval}"

    def atom(a: Atom) -> str:
        return name[a] if isinstance(a, Var) else repr(a)
    inner = indent + "    "
    constants = "".join(" " + define(v) for v in jaxpr.constvars)
    inputs = "".join(" " + define(v) for v in jaxpr.inputs)
    lines = []
    for eqn in jaxpr.eqns:
        params = " ".join(f"{k}={param_text(v, inner)}" for k, v in eqn.primitive.params(defaults=False).items())
        operands = "".join(" " + atom(a) for a in eqn.inputs)
        results = " ".join(map(define, eqn.outputs))
        lines.append(f"{inner}{results} = {eqn.primitive.name}{f'[{params}]' if params else ''}{operands}\n")
    outputs = ", ".join(map(atom, jaxpr.outputs))
    if len(jaxpr.outputs) == 1:
        outputs += ","
    return f"{{ lambda{constants} ;{inputs} . let\n{''.join(lines)}{indent}  in ({outputs}) }}"


