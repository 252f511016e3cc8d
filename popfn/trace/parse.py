"""parse_jaxpr: the printed form of a jaxpr back to a jaxpr."""
from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np

from .aval import BY_NAME, DEVICE, MEMORIES, Aval, as_numpy, bool_, enable_float64, float64, scalar_array
from .errors import JaxprError, NarrowingError
from .jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from .primitive import Primitive, primitive_name

_TOKEN = re.compile(r"\s*(?:(?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w]))|(?P<name>[A-Za-z_]\w*)"
                    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>[{}()\[\]:;.,=~@]))")


def parse_jaxpr(text: str, constants: Optional[Sequence[Any]] = None) -> Jaxpr:
    """Read a printed jaxpr back; `parse_jaxpr(str(jaxpr)) == jaxpr`.

    `constants` are the arrays for the variables before the semicolon. Without them the jaxpr can be compared,
    transformed and printed, but not evaluated. Raises JaxprError with the line that cannot be read, or for an
    ill-typed program.

    >>> print(parse_jaxpr("{ lambda ; a:f32[2] . let b:f32[2] = exp a in (b,) }"))
    { lambda ; a:f32[2] . let
        b:f32[2] = exp a
      in (b,) }
    """
    if not isinstance(text, str):
        raise JaxprError(f"parse_jaxpr takes the text of a jaxpr, got {type(text).__name__}")
    parser = _Parser(text)
    jaxpr = parser.jaxpr(constants)
    if parser.peek()[0] != "end":
        raise parser.error("the end")
    return jaxpr.check()


def primitives() -> Dict[str, Type[Primitive]]:
    """Every primitive that can be made, by name."""
    found: Dict[str, Type[Primitive]] = {}
    todo: List[Type[Primitive]] = [Primitive]  # type: ignore[type-abstract]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if not inspect.isabstract(cls):
            found[primitive_name(cls)] = cls
    return found


def scalar(text: str, aval: Aval) -> Optional[np.ndarray]:
    """The read-only 0-d array that a literal is written as, None if it is not of the aval's type."""
    is_bool = text in ("True", "False")
    if aval.ndim or is_bool != (aval.dtype == bool_):
        return None
    try:
        number = text == "True" if is_bool else int(text) if aval.dtype.kind in "iu" else float(text)
        value = scalar_array(number, aval.dtype)
    except (ValueError, NarrowingError):
        return None
    value.flags.writeable = False
    return value


def frozen_copy(x: Any, aval: Aval) -> np.ndarray:
    """Data for a constant of this type as an array that nobody else can write to."""
    with enable_float64(aval.dtype == float64):
        value = np.array(as_numpy(x))
    value.flags.writeable = False
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: List[Tuple[str, str, int]] = []
        self.primitives = primitives()
        end = len(text.rstrip())
        at = 0
        while at < end:
            m = _TOKEN.match(text, at)
            if m is None:
                raise self.error("a token", len(text) - len(text[at:].lstrip()))
            kind = m.lastgroup or ""
            self.tokens.append((kind, m.group(kind), m.start(kind)))
            at = m.end()
        self.tokens.append(("end", "", end))

    def error(self, wanted: str, at: Optional[int] = None) -> JaxprError:
        at = self.tokens[self.at][2] if at is None else at
        number = self.text.count("\n", 0, at) + 1
        line = self.text.split("\n")[number - 1].strip()
        seen = repr(self.text[at:at + 12].split("\n")[0]) if self.text[at:].strip() else "the end"
        return JaxprError(f"cannot read the jaxpr: expected {wanted} at {seen}\n  in line {number}: {line}")

    def peek(self, ahead: int = 0) -> Tuple[str, str]:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][:2]

    def take(self, kind: str, value: Optional[str] = None) -> str:
        got = self.peek()
        if got[0] != kind or value is not None and got[1] != value:
            raise self.error(repr(value) if value else f"a {kind}")
        self.at += 1
        return got[1]

    def sign(self, value: str) -> bool:
        if self.peek() == ("sign", value):
            self.at += 1
            return True
        return False

    # ------------------------------------------------------------------ grammar
    def aval(self) -> Aval:
        weak = self.sign("~")
        dtype = self.dtype()
        self.take("sign", "[")
        shape: List[int] = []
        while not self.sign("]"):
            if not self.peek()[1].isdigit():
                raise self.error("a size")
            shape.append(int(self.take("number")))
            self.sign(",")
        axes: List[str] = []
        if self.sign("{"):
            while not self.sign("}"):
                axes.append(self.take("name"))
                self.sign(",")
        memory = self.take("name") if self.sign("@") else DEVICE
        if memory not in MEMORIES:
            raise self.error(f"a memory, one of {', '.join(MEMORIES)}")
        return Aval._make(tuple(shape), dtype, weak, (frozenset(axes), memory))  # a text that says f64 means it

    def dtype(self) -> np.dtype:
        if self.peek()[1] not in BY_NAME:
            raise self.error("a dtype")
        return BY_NAME[self.take("name")]

    def binders(self, env: Dict[str, Var]) -> List[Var]:
        out = []
        while self.peek()[0] == "name" and self.peek(1) == ("sign", ":") and self.peek()[1] not in ("True", "False"):
            name = self.take("name")
            if name in env:
                raise self.error(f"a new name, {name} is taken")
            self.take("sign", ":")
            env[name] = Var(self.aval())
            out.append(env[name])
        return out

    def atom(self, env: Dict[str, Var]) -> Atom:
        kind, text = self.peek()
        if kind == "number" or text in ("True", "False"):
            start = self.tokens[self.at][2]
            self.at += 1
            self.take("sign", ":")
            aval = self.aval()
            value = scalar(text, aval)
            if value is None:
                raise self.error(f"a scalar of type {aval}", start)
            return Literal(value, aval)
        if text not in env:
            raise self.error("a variable that is defined")
        return env[self.take("name")]

    def eqn(self, env: Dict[str, Var]) -> Eqn:
        outer = dict(env)
        outputs = self.binders(env)
        self.take("sign", "=")
        cls = self.primitives.get(self.peek()[1])
        if cls is None:
            raise self.error("the name of a primitive")
        start = self.tokens[self.at][2]
        self.take("name")
        params: Dict[str, Any] = {}
        if self.sign("["):
            while not self.sign("]"):
                name = self.take("name")
                self.take("sign", "=")
                params[name] = self.value()
        try:
            primitive = cls(**params)
            hash(primitive)
        except Exception:
            fields = ", ".join(f.name for f in dataclasses.fields(cls)) or "none"  # type: ignore[arg-type]
            raise self.error(f"the parameters of {primitive_name(cls)} ({fields})", start) from None
        inputs = []
        while self.peek()[0] == "number" or self.peek()[0] == "name" and not (
                self.peek(1) == ("sign", ":") and self.peek()[1] not in ("True", "False")) and self.peek()[1] != "in":
            inputs.append(self.atom(outer))
        try:
            inspect.signature(primitive.eval).bind(*inputs)
        except TypeError as e:
            raise self.error(f"the operands of {primitive.name} ({e})", start) from None
        return Eqn(primitive, tuple(inputs), tuple(outputs))

    def value(self) -> Any:
        kind, text = self.peek()
        if (kind, text) == ("sign", "{"):
            return self.jaxpr(None)
        if self.sign("("):
            items = []
            while not self.sign(")"):
                items.append(self.value())
                self.sign(",")
            return tuple(items)
        self.at += 1
        if kind == "number":
            return int(text) if text.lstrip("-").isdigit() else float(text)
        if kind == "string":
            return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
        if kind == "name" and text in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[text]
        if kind == "name" and text in BY_NAME:
            return BY_NAME[text]
        self.at -= 1
        raise self.error("a parameter's value")

    def jaxpr(self, constants: Optional[Sequence[Any]]) -> Jaxpr:
        env: Dict[str, Var] = {}
        self.take("sign", "{")
        self.take("name", "lambda")
        constvars = self.binders(env)
        self.take("sign", ";")
        inputs = self.binders(env)
        self.take("sign", ".")
        self.take("name", "let")
        eqns = []
        while self.peek() != ("name", "in"):
            eqns.append(self.eqn(env))
        self.take("name", "in")
        self.take("sign", "(")
        outputs = []
        while not self.sign(")"):
            outputs.append(self.atom(env))
            self.sign(",")
        self.take("sign", "}")
        if constants is not None and len(constants) != len(constvars):
            raise JaxprError(f"the jaxpr has {len(constvars)} constants, got {len(constants)}")
        given = [None] * len(constvars) if constants is None else [
            frozen_copy(c, v.aval) for c, v in zip(constants, constvars)]
        return Jaxpr(inputs, outputs, eqns, constvars, given)
