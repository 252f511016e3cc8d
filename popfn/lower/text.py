"""A lowered program as a Python file: the calls that were made, written as a person would write them.

A result that one later call takes, and that was made just before it, is written inside that call, so that formulas
look like formulas; the order in which ops are made stays what it was. `ops.add(x, y)` is written `x + y`, which is
the same call.
"""
from __future__ import annotations

import builtins
import json
import keyword
import linecache
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ..trace.aval import DEVICE, Aval
from ..trace.errors import LoweringError, Source, source_line
from ..trace.jaxpr import Jaxpr
from . import mains
from .build import Built, Signature, type_text, unique
from .literals import UNBROKEN, WIDTH, array_text, bytes_text, is_small, number_text, wrapped
from .record import Block, Body, Call

ROOM = WIDTH - 20  # for an expression, beside the name that it is given
NEWLINE = "\n"
EQUALS = f"{UNBROKEN}={UNBROKEN}"
LONG_NAME = 16  # of a function: longer ones are not repeated in the names of its results
INLINE = 60  # the longest expression that is written inside another one
#: How tightly expressions hold together, the operators first.
SUM, PRODUCT, MINUS, ATOM = 1, 2, 3, 4
OPERATORS = {"ops.add": ("+", SUM), "ops.sub": ("-", SUM), "ops.mul": ("*", PRODUCT), "ops.div": ("/", PRODUCT),
             "ops.matmul": ("@", PRODUCT)}
#: Calls that declare what a program works on; they stand in front.
DECLARATIONS = ("ir.replica_grouping", "ir.replica_grouping_from_assignments", "h2d_stream", "d2h_stream", "variable",
                "remote_buffer", "remote_variable", "ops.host_load")
UPDATES = ("ops.host_store", "ops.var_updates.copy_var_update_")
RESERVED = {"popxl", "ops", "np", "build", "main", "ir", "loads", "variables", "stores"}
NUMBERS = {"0": "zero", "1": "one", "2": "two", "0.5": "half", "0.0": "zero", "1.0": "one", "2.0": "two",
           "-1": "minus_one", "-1.0": "minus_one", "True": "true", "False": "false", "np.nan": "nan", "np.inf": "inf"}


class Expr(NamedTuple):
    """An expression and how tightly it holds together."""

    text: str
    level: int = ATOM


class Pending(NamedTuple):
    """A result whose expression is not written yet, because the next call may take it in."""

    value: Any
    name: str
    expr: Expr
    line: Optional[str]


def program_text(name: str, built: Built, signature: Signature, jaxpr: Jaxpr) -> str:
    """The program as a Python file."""
    state = set(signature.state)
    loads = [Entry(n, v.aval, s.stream) for n, v, s in zip(signature.inputs, jaxpr.inputs, built.loads) if s]
    variables = [Entry(signature.inputs[i], jaxpr.inputs[i].aval, s.variables)
                 for i, s in zip(signature.state, built.variables) if s]
    stores = [Entry(n, a.aval, s.stream)
              for n, a, s in zip(signature.results, jaxpr.outputs[len(state):], built.stores) if s]
    streams = [(n, s) for n, s in zip((*signature.inputs, *signature.results), (*built.loads, *built.stores)) if s]
    named: List[Tuple[str, Any]] = [*streams]
    named += [(signature.inputs[i], v) for i, v in zip(signature.state, built.variables) if v]
    cuts = {n: (s.parts, s.axis, s.reverse) for n, s in streams if s.parts > 1}
    in_parts = bool(cuts or built.mesh) or any(len(v.handle) > 1 or v.aval.memory != DEVICE for v in variables)
    fed = [(n, v.aval) for i, (n, v) in enumerate(zip(signature.inputs, jaxpr.inputs)) if i not in state]
    kept = [(signature.inputs[i], jaxpr.inputs[i].aval) for i in signature.state]
    out = [(n, a.aval) for n, a in zip(signature.results, jaxpr.outputs[len(state):])]
    head = [f'"""{name} as a PopXL program.', ""]
    for title, rows in (("inputs", fed), ("state", kept), ("outputs", out)):
        if rows:
            types = ", ".join(f"{n}{UNBROKEN}{a.strong}" for n, a in rows)
            head.append(wrapped(f"{title}: {types}", ""))
    file = _File()
    for call in built.main.calls:
        if call.callee == "create_graph":
            file.functions[id(call.args[0])] = unique(call.args[0].name, file.taken)
    parts = [file.function(call.args[0]) for call in built.main.calls if call.callee == "create_graph"]
    parts += [file.build(built, loads, variables, stores, in_parts)]
    if in_parts:
        parts += [table("PARTS", "Into how many parts arrays are cut, along which axis, and if from the end.", cuts)]
        if built.mesh:
            parts += [table("MESH", "The axes of the replicas, the outermost first.", dict(built.mesh)), table(
                "SPECS", "Over which of them arrays are cut, for each of their axes; those not here are whole.", {
                    n: s.spec for n, s in named if s.spec})]
        parts.append(mains.CUTS)
    parts.append(mains.main_of_replicas(built.local.instance is not None, built.replica_state) if built.mesh else
                 mains.MAIN_OF_PARTS if in_parts else mains.MAIN)
    parts += ["\n".join(["\n# The values of large constants.", *file.data, ""])] if file.data else []
    return "\n".join([*head, '"""', "import numpy as np", "import popxl", "", "ops = popxl.ops", ""]) + "\n" + \
        "\n".join(f"\n{part.strip(NEWLINE)}\n" for part in parts) + mains.RUN


def table(name: str, comment: str, rows: Dict[str, Any]) -> str:
    """A table of the file by the names of arrays."""
    items = ", ".join(f'"{n}":{UNBROKEN}{str(x).replace(" ", UNBROKEN)}' for n, x in rows.items())
    return "\n".join([f"\n# {comment}", wrapped(f"{name}{EQUALS}{{{items}}}", ""), ""])


class Entry(NamedTuple):
    """A leaf of the program: its name and type, and its stream or its variables."""

    name: str
    aval: Aval
    handle: Any


class _File:
    """What the functions of one file share: its names and its large constants."""

    def __init__(self) -> None:
        self.taken: Set[str] = RESERVED | set(dir(builtins)) | set(keyword.kwlist)
        self.functions: Dict[int, str] = {}  # the names of sub-graphs' functions, by the id of the body
        self.data: List[str] = []

    def function(self, body: Body) -> str:
        """The function of a sub-graph."""
        writer = _Writer(self, body, "    ")
        params = [writer.define(value, name) + f":{UNBROKEN}popxl.TensorByRef" * by_reference
                  for name, value, by_reference in zip(body.param_names, body.params, body.by_reference)]
        writer.write()
        head = wrapped(f"def{UNBROKEN}{self.functions[id(body)]}({', '.join(params)}):", "")
        takes, gives = (", ".join(type_text(t) for t in values if hasattr(t, "dtype"))
                        for values in (body.params, body.outputs))
        types = wrapped(f'"""From {takes or "nothing"} to {gives}."""', "    ")
        return "\n".join(["", head, types, *writer.lines, ""])

    def build(self, built: Built, loads: Sequence[Entry], variables: Sequence[Entry], stores: Sequence[Entry],
              in_parts: bool) -> str:
        """The function that makes the Ir."""
        main = built.main
        writer = _Writer(self, main, "        ")
        named: Dict[int, str] = {}
        for e in variables:
            named.update((id(v), e.name) for v in e.handle)
            writer.define(e.handle[0], e.name)
            if len(e.handle) > 1:
                writer.rows.update((id(v), e) for v in e.handle)
        for e in (*loads, *stores):
            named[id(e.handle)] = e.name
            writer.define(e.handle, f"{e.name}_stream")
        for call in main.calls:
            if call.callee == "ops.host_load":
                writer.wish(call.result, named[id(call.args[0])])
            elif call.callee in UPDATES and id(call.args[0]) in named:
                writer.wish(call.args[1], "new_" * (call.callee != "ops.host_store") + named[id(call.args[0])])
        writer.write()
        replication = f"replication={json.dumps(built.local.replication)}" if built.mesh else ""
        gives = "the Ir, and by name the shape and the stream or variables of each input, state and output" \
            if in_parts else "the Ir and its input streams, variables and output streams by name"
        lines = ["", "def build():", f'    """Return {gives}."""', f"    ir = popxl.Ir({replication})",
                 *[f"    ir._pb_ir.getSessionOptions().numIOTiles = {built.io_tiles}"] * (built.io_tiles > 0),
                 *[f"    ir.num_host_transfers = {built.transfers}"] * (built.transfers > 1),
                 "    with ir.main_graph, popxl.in_sequence():", *writer.lines]

        def item(e: Entry) -> str:
            first = e.handle[0] if isinstance(e.handle, tuple) else e.handle
            value = writer.names[id(first)]
            if isinstance(e.handle, tuple) and len(e.handle) == 1 and in_parts:
                value = f"[{value}]"
            shape = str(e.aval.shape).replace(" ", UNBROKEN)
            return f'"{e.name}":{UNBROKEN}({shape},{UNBROKEN}{value})' if in_parts else f'"{e.name}":{UNBROKEN}{value}'
        for title, rows in (("loads", loads), ("variables", variables), ("stores", stores)):
            lines.append(wrapped(f"{title}{EQUALS}{{{', '.join(map(item, rows))}}}", "    "))
        return "\n".join([*lines, "    return ir, loads, variables, stores", ""])


class _Writer:
    """Writes the calls of one body as statements."""

    def __init__(self, file: _File, body: Body, indent: str) -> None:
        self.file, self.body, self.indent = file, body, indent
        self.lines: List[str] = []
        self.names: Dict[int, str] = {}
        self.wishes: Dict[int, str] = dict(body.wishes)
        self.taken = set(file.taken)
        self.uses: Dict[int, int] = {}
        self.pending: List[Pending] = []
        self.scalars: Dict[int, Call] = {}  # constants that are written where they are used
        self.rows: Dict[int, Entry] = {}  # variables of a leaf that has several
        self.line: Optional[str] = None
        self.block: Optional[Block] = None
        self.count(body.outputs)
        for call in body.calls:
            self.count((*call.args, *call.kwargs.values()))

    def count(self, values: Iterable[Any]) -> None:
        """Count what is used."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self.count(value)
            else:
                self.uses[id(value)] = self.uses.get(id(value), 0) + 1

    def define(self, value: Any, name: str) -> str:
        """Give a value a name of its own."""
        self.names[id(value)] = name = unique(name, self.taken)
        return name

    def wish(self, value: Any, name: str) -> None:
        """Ask for a name for a value; the first wish counts."""
        if id(value) not in self.names:
            self.wishes.setdefault(id(value), name)

    # ------------------------------------------------------------------ statements
    def write(self) -> None:
        """Write all calls, and the return of a sub-graph."""
        declared = [c for c in self.body.calls if self.is_declared(c)]
        constants = [c for c in self.body.calls if c.callee == "constant" and id(c.result) in self.uses]
        for call in declared:
            self.call(call)
        for call in constants:
            if self.uses[id(call.result)] == 1 and is_scalar(call.args[0]):
                self.scalars[id(call.result)] = call
            else:
                self.constant(call)
        if self.lines:
            self.lines.append("")
        for call in self.body.calls:
            if call.callee in UPDATES and call.block is None and self.line is not None:
                self.flush()
                self.line = None
                self.lines.append("")
            if not self.is_declared(call) and call.callee != "constant":
                self.enter(call.block)
                self.call(call)
        self.enter(None)
        if self.body.outputs:
            line = self.pending[-1].line if self.pending else None
            inner = self.operands(self.body.outputs, line)
            text = self.listed(self.body.outputs, inner)
            if inner and len(text) > ROOM - len(self.indent):
                self.flush()
                inner, text = {}, self.listed(self.body.outputs, {})
            del self.pending[len(self.pending) - len(inner):]
            self.statement(f"return {text}", line if inner else None, f"return{UNBROKEN}({text})")

    def is_declared(self, call: Call) -> bool:
        """Whether a call stands in front, where the program says what it works on."""
        return call.callee in DECLARATIONS and call.block is None and (
            call.callee != "ops.host_load" or not self.body.params)

    def enter(self, block: Optional[Block]) -> None:
        """Go on in another context."""
        if block == self.block:
            return
        self.flush()
        if self.block is not None:
            self.indent = self.indent[:-4]
        if block is not None:
            self.lines.append(f"{self.indent}with popxl.{block.context}():")
            self.indent += "    "
        self.block = block

    def call(self, call: Call) -> None:
        """Write a call, or leave its expression to the next one."""
        line = place(call.source)
        result = call.result
        if id(result) in self.rows:
            self.variables(call, self.rows[id(result)])
            return
        expr = self.called(call, line)
        if isinstance(result, (tuple, list)) and result:
            base = base_name(call, self)
            names = [self.define(t, self.wishes.get(id(t), base)) if id(t) in self.uses else "_" for t in result]
            target = ", ".join(names) + ("," if len(names) == 1 else "")
            whole = target.replace(" ", UNBROKEN) if len(target) < WIDTH // 2 else f"({target})"
            self.statement(f"{target} = {expr.text}" if set(names) != {"_"} else expr.text, line,
                           f"{whole}{EQUALS}{expr.text}" if set(names) != {"_"} else None)
        elif result is None or isinstance(result, (tuple, list)) or (
                id(result) not in self.uses and id(result) not in self.names):
            self.statement(expr.text, line)
        elif id(result) in self.wishes or self.uses.get(id(result), 0) != 1 or len(expr.text) > INLINE or \
                call.callee in DECLARATIONS or call.callee == "create_graph":
            self.assign(result, base_name(call, self), expr, line)
        else:
            self.pending.append(Pending(result, base_name(call, self), expr, line))

    def variables(self, call: Call, entry: Entry) -> None:
        """Write all remote variables of a leaf at the first of them."""
        if call.result is not entry.handle[0]:
            return
        data, buffer, _, *rest = call.args
        before, after = ([self.expr(v, {}).text for v in some] for some in ((data, buffer), rest))
        options = [f"{k}={self.expr(v, {}).text}" for k, v in call.kwargs.items() if k != "name"]
        args = ", ".join([*before, "i", *after, *options])
        name = self.names[id(call.result)]
        text = f'[popxl.remote_variable({args}, name=f"{entry.name}_{{i}}") for i in range({len(entry.handle)})]'
        self.statement(f"{name} = {text}", None, f"{name}{EQUALS}{text}")

    def assign(self, value: Any, base: str, expr: Expr, line: Optional[str]) -> None:
        """Write `name = expression`."""
        self.flush()
        name = self.names.get(id(value)) or self.define(value, self.wishes.get(id(value), base))
        bracketed = expr.text if expr.level == ATOM else f"({expr.text})"
        self.statement(f"{name} = {expr.text}", line, f"{name}{EQUALS}{bracketed}")

    def flush(self, count: Optional[int] = None) -> None:
        """Write the pending expressions, or the first of them."""
        count = len(self.pending) if count is None else count
        waiting, rest, self.pending = self.pending[:count], self.pending[count:], []
        for p in waiting:
            self.assign(p.value, p.name, p.expr, p.line)
        self.pending = rest

    def statement(self, text: str, line: Optional[str], if_long: Optional[str] = None) -> None:
        """Write a statement below its user's line; `if_long` is a form of it that can be broken at any space."""
        self.flush()
        if line is not None and line != self.line:
            room = WIDTH - len(self.indent) - 2
            self.lines.append(f"{self.indent}# {line if len(line) <= room else line[:room - 4] + ' ...'}")
            self.line = line
        fits = len(self.indent) + len(text) <= WIDTH
        self.lines.append(wrapped(text if fits or if_long is None else if_long, self.indent))

    def constant(self, call: Call) -> None:
        """Write a constant in a line of its own."""
        data = call.args[0]
        base = NUMBERS.get(number_text(data), "constant") if is_scalar(data) else "table"
        self.statement(f"{self.define(call.result, base)}{EQUALS}{self.called(call, None).text}", None)

    # ------------------------------------------------------------------ expressions
    def operands(self, values: Sequence[Any], line: Optional[str]) -> Dict[int, Expr]:
        """The pending expressions that a call takes in: the last ones, if it uses them in the order they are in.

        What else it uses is written before.
        """
        used = [id(v) for v in flat(values) if any(p.value is v for p in self.pending)]
        for k in range(min(len(used), len(self.pending)), -1, -1):
            tail = self.pending[len(self.pending) - k:]
            keys = [id(p.value) for p in tail]
            if keys == [u for u in used if u in keys] and all(p.line == line for p in tail):
                break
        if k < len(used):
            self.flush(len(self.pending) - k)
        return {id(p.value): p.expr for p in tail}

    def called(self, call: Call, line: Optional[str]) -> Expr:
        """The expression of a call."""
        values = (*call.args, *call.kwargs.values())
        inner = self.operands(values, line)
        expr = self.call_text(call, values, inner)
        while inner and len(expr.text) > ROOM - len(self.indent):
            inner.pop(next(iter(inner)))
            self.flush(len(self.pending) - len(inner))
            expr = self.call_text(call, values, inner)
        del self.pending[len(self.pending) - len(inner):]
        return expr

    def call_text(self, call: Call, values: Sequence[Any], inner: Dict[int, Expr]) -> Expr:
        """The expression of a call with some of its operands' expressions in it."""
        operator, level = OPERATORS.get(call.callee, ("", ATOM))
        if operator and len(values) == 2:
            # A number stands for a constant of the other operand's dtype.
            x, y = values
            number = x.dtype == y.dtype and not (id(x) in self.scalars and id(y) in self.scalars)
            left, right = (self.expr(v, inner, number) for v in values)
            return Expr(f"{bracket(left, level)} {operator} {bracket(right, level + 1)}", level)
        if call.callee == "ops.negate":
            return Expr(f"-{bracket(self.expr(values[0], inner), MINUS)}", MINUS)
        if call.callee == "create_graph":  # of a body, what fills it, and what the body's function takes
            return Expr(f"ir.create_graph({self.listed((call.args[0], *call.args[2:]), inner)})")
        args = ", ".join([self.expr(v, inner).text for v in call.args]
                         + [f"{k}={self.expr(v, inner).text}" for k, v in call.kwargs.items()])
        return Expr(f"{'' if call.callee.startswith(('ops.', 'ir.')) else 'popxl.'}{call.callee}({args})")

    def listed(self, values: Iterable[Any], inner: Dict[int, Expr]) -> str:
        """The expressions of several operands."""
        return ", ".join(self.expr(v, inner).text for v in values)

    def expr(self, value: Any, inner: Dict[int, Expr], as_number: bool = False) -> Expr:
        """The expression of an operand."""
        found = inner.get(id(value))
        if found is not None:
            return found
        name = self.names.get(id(value)) or self.file.functions.get(id(value))
        if name is not None:
            return Expr(name)
        scalar = self.scalars.get(id(value))
        if scalar is not None:
            text = number_text(scalar.args[0])
            if as_number:
                return Expr(text, MINUS if text[0] == "-" else ATOM)
            return Expr(f"popxl.constant({self.listed(scalar.args, inner)})")
        if isinstance(value, (list, tuple)):
            items = self.listed(value, inner)
            return Expr(f"[{items}]" if isinstance(value, list) else f"({items},)" if len(value) == 1 else f"({items})")
        if isinstance(value, np.ndarray) and (value.ndim or value.dtype.names):
            return Expr(array_text(value) if is_small(value) else self.large(value))
        if isinstance(value, str):
            return Expr(json.dumps(value))
        if value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray)):
            return Expr(number_text(value))
        if hasattr(value, "as_numpy"):
            return Expr(f"popxl.{value.name}")
        if type(value).__name__ == "TensorSpec":
            return Expr(f"popxl.TensorSpec({value.shape}, popxl.{value.dtype.name})")
        raise LoweringError(f"a lower rule used {value!r}, which was not made by a call of px: rules call px alone, "
                            "never the operators or methods of tensors")

    def large(self, x: np.ndarray) -> str:
        """The name of an array whose bytes are written at the end of the file."""
        name = unique("DATA", self.file.taken)
        self.taken.add(name)
        self.file.data.append(bytes_text(x, name))
        return name


def flat(values: Iterable[Any]) -> List[Any]:
    """Values, those in lists and tuples included."""
    return [v for value in values for v in (flat(value) if isinstance(value, (list, tuple)) else (value,))]


def bracket(expr: Expr, level: int) -> str:
    """An expression as an operand of an operator of this level."""
    return expr.text if expr.level >= level else f"({expr.text})"


def is_scalar(value: Any) -> bool:
    """Whether a constant's data is one number."""
    return not isinstance(value, np.ndarray) or not value.ndim and not value.dtype.names


def base_name(call: Call, writer: _Writer) -> str:
    """What a call's result is called."""
    if call.callee == "create_graph":
        return f"{writer.file.functions[id(call.args[0])]}_graph"
    if call.callee in ("ops.call", "ops.repeat"):
        name = writer.names[id(call.args[0])].replace("_graph", "")
        return name if len(name) <= LONG_NAME else "call"
    return call.callee.split(".")[-1].strip("_")


def place(source: Optional[Source]) -> Optional[str]:
    """`model.py:12: h = x @ w` for a line."""
    if source is None:
        return None
    file, line = source[0].co_filename, source_line(source)
    return f"{os.path.basename(file)}:{line}: {linecache.getline(file, line).strip()}".rstrip(": ")
