"""Random programs with remote buffers: what they read and write is what arrays in their place hold."""
import os
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple
from unittest import mock

import numpy as np
from control_flow import python_fori, python_scan
from hypothesis import given, settings, strategies as st
from serial_cases import IO_TILES, by_definition, by_session, by_text, close, f32, i32, same, specs

import popfn as pf
import popfn.numpy as pnp
from popfn._batch import IO_MODES

STEPS, ROWS = 3, 3
PART = (1, 2)
VALUE = (STEPS, *PART)
RUNS = 3


# ---------------------------------------------------------------------------- the definition
class Rows:
    """A buffer as its definition has it: an array."""

    def __init__(self) -> None:
        self.rows = np.zeros((ROWS, *VALUE), f32)

    def read(self, row: Any) -> Any:
        return pnp.asarray(self.rows[int(row)].copy())

    def write(self, row: Any, x: Any) -> None:
        self.rows[int(row)] = np.asarray(x)


class Remote(NamedTuple):
    """What pf.Remote says, of a buffer that is an array."""

    buffer: Rows
    row: Any = 0

    def at(self, row: Any) -> int:
        return 0 if self.row is None else int(self.row(row)) if callable(self.row) else int(row) + self.row


def python_serial(f: Callable[..., Any], steps: int, *, loads: Any = None, stores: Any = None, rows: int = 1,
                  io_mode: str = "") -> Callable[..., Any]:
    """A serialised function of one argument, whose rows are read before any is written."""
    def serial(x: Any, row: Any = 0) -> Any:
        parts = loads.buffer.read(loads.at(row)) if loads else x
        out = [f(part if loads else part[None]) for part in parts]
        if stores is None:
            return pnp.concat(out)
        stores.buffer.write(stores.at(row), pnp.stack(out))
    return serial


def python_while(cond: Any, body: Any, init: Any, max_steps: int) -> Any:
    for _ in range(max_steps):
        if not cond(init):
            break
        init = body(init)
    return init


PYTHON = SimpleNamespace(
    scan=python_scan, fori_loop=python_fori, cond=lambda p, t, f, *xs: t(*xs) if p else f(*xs), jit=lambda f: f,
    while_loop=python_while, remote=lambda x: x, load=lambda x: x, batch_serialise=python_serial, Remote=Remote,
    checkpoint=lambda f: f)


# ---------------------------------------------------------------------------- random programs
class Place(NamedTuple):
    """Where a statement finds things: the system, its mode, buffers a and b, values x and y, and rows r and q."""

    system: Any
    mode: str
    a: Any
    b: Any
    x: Any
    y: Any
    r: Any
    q: Any


def half(x: Any) -> Any:
    return x * 0.5 + 1.0


def write(p: Place) -> Any:
    p.a.write(p.r, p.x)


def write_twice(p: Place) -> Any:
    value = half(p.x)
    p.a.write(p.r, value)
    p.b.write(p.q, value)


def overwrite(p: Place) -> Any:
    p.a.write(p.r, half(p.x))
    p.a.write(p.r, half(p.y))
    return p.a.read(p.r)


def read(p: Place) -> Any:
    return p.a.read(p.r)


def compute(p: Place) -> Any:
    return p.x * 0.5 + p.y


def stored(p: Place) -> Any:
    return p.system.remote(half(p.x))


def made_and_written(p: Place) -> Any:
    value = p.system.scan(lambda c, v: (c, p.system.remote(half(v))), 0.0, p.x)[1]
    p.a.write(p.r, value)
    return value


def read_then_write(p: Place) -> Any:
    old = p.a.read(p.r)
    p.a.write(p.r, half(old))
    return old


def read_then_write_other(p: Place) -> Any:
    old = p.a.read(p.r)
    p.a.write(p.q, half(old))
    p.b.write(p.q, old)
    return old


def in_place(p: Place) -> Any:
    p.a.write(p.r, p.system.scan(lambda c, v: (c, p.system.remote(half(v))), 0.0, p.a.read(p.r))[1])


def shifted(p: Place) -> Any:
    """What is stored of a step is made of what was stored of others, which the loop may have overwritten."""
    old = p.a.read(p.r)
    p.a.write(p.r, p.system.scan(lambda c, v: (v, p.system.remote(c)), old[STEPS - 1], old)[1])


def both_ways(p: Place) -> Any:
    old = p.a.read(p.r)
    other = p.b.read(p.q)
    p.b.write(p.q, old)
    p.a.write(p.r, other)


def all_rows(p: Place) -> Any:
    def body(c: Any, r: Any) -> Any:
        p.a.write(r, p.a.read(r) * 0.5 + c)
        return c + 1.0, pnp.sum(p.a.read(r))
    c, sums = p.system.scan(body, 0.5, pnp.arange(ROWS))
    return p.x + c + sums[:, None, None] * 0.1


def moved_along(p: Place) -> Any:
    def body(c: Any, r: Any) -> Any:
        x = p.a.read(r)
        p.a.write((r + 1) % ROWS, half(x))
        p.b.write(r, p.a.read((r + 1) % ROWS))
        return c, None
    p.system.scan(body, 0.0, pnp.arange(ROWS))


def backwards(p: Place) -> Any:
    def body(c: Any, r: Any) -> Any:
        old = p.b.read(r)
        p.b.write(r, c)
        return half(old), None
    return p.system.scan(body, p.x, pnp.arange(ROWS), reverse=True)[0]


def counted(p: Place) -> Any:
    def body(i: Any, c: Any) -> Any:
        p.a.write(p.r, c)
        return p.a.read(p.q) * 0.5
    return p.system.fori_loop(0, 3, body, p.x)


def while_(p: Place) -> Any:
    def body(c: Any) -> Any:
        p.b.write(p.q, c)
        return c * 0.5 + p.a.read(p.r) * 0.1
    return p.system.while_loop(lambda c: pnp.sum(c) > 1.0, body, p.x, max_steps=3)


def one_branch(p: Place) -> Any:
    def taken(x: Any) -> Any:
        p.a.write(p.r, half(x))
        return p.b.read(p.q) * 1.0
    return p.system.cond(pnp.sum(p.x) > 0, taken, lambda x: x, p.x)


def both_branches(p: Place) -> Any:
    old = p.a.read(p.q)
    p.system.cond(pnp.sum(p.x) > 0, lambda: p.a.write(p.r, half(p.x)), lambda: p.a.write(p.q, p.y))
    return old


def called(p: Place) -> Any:
    def f(x: Any, r: Any) -> Any:
        old = p.a.read(r)
        p.a.write(r, x)
        return old
    g = p.system.jit(f)
    return g(g(p.x, p.r), p.q)


def read_in_a_scan(p: Place) -> Any:
    rows = p.system.scan(lambda c, r: (c, p.a.read(r)), 0.0, pnp.arange(ROWS))[1]
    p.a.write(p.r, rows[ROWS - 1] * 0.5)
    return rows[0]


def carried(p: Place) -> Any:
    def body(c: Any, r: Any) -> Any:
        old = p.a.read(r)
        p.a.write(r, c)
        return old, None
    return p.system.scan(body, p.system.remote(p.x), pnp.arange(ROWS))[0]


def read_in_a_branch(p: Place) -> Any:
    return p.system.cond(pnp.sum(p.x) > 0, lambda: p.a.read(p.r), lambda: p.b.read(p.q))


def serial_rows(p: Place) -> Any:
    s = p.system
    g = s.batch_serialise(half, STEPS, loads=s.Remote(p.a), stores=s.Remote(p.b), rows=ROWS, io_mode=p.mode)
    g(None, row=p.r)


def serial_in_place(p: Place) -> Any:
    s = p.system
    g = s.batch_serialise(half, STEPS, loads=s.Remote(p.a), stores=s.Remote(p.a), rows=ROWS, io_mode=p.mode)
    g(None, row=p.q)


def serial_next(p: Place) -> Any:
    s = p.system
    g = s.batch_serialise(half, STEPS, loads=s.Remote(p.a), stores=s.Remote(p.a, 1), rows=ROWS - 1, io_mode=p.mode)
    s.scan(lambda c, r: (g(None, row=r), None), None, pnp.arange(ROWS - 1))


def serial_callable(p: Place) -> Any:
    s = p.system
    g = s.batch_serialise(half, STEPS, loads=s.Remote(p.a, lambda r: ROWS - 1 - r), stores=s.Remote(p.b, None),
                          rows=ROWS, io_mode=p.mode)
    g(None, row=p.r)


def serial_value(p: Place) -> Any:
    s = p.system
    g = s.batch_serialise(lambda x: half(x[0]), STEPS, stores=s.Remote(p.a), rows=ROWS, io_mode=p.mode)
    g(p.x, row=p.r)


def serial_result(p: Place) -> Any:
    s = p.system
    g = s.batch_serialise(half, STEPS, loads=s.Remote(p.a, 0), rows=ROWS, io_mode=p.mode)
    return pnp.reshape(g(None, row=p.q), VALUE)


STATEMENTS: Dict[str, Callable[[Place], Any]] = {f.__name__: f for f in (
    write, write_twice, overwrite, read, compute, stored, made_and_written, read_then_write, read_then_write_other,
    in_place, shifted, both_ways, all_rows, moved_along, backwards, counted, while_, one_branch, both_branches, called,
    read_in_a_scan, carried, read_in_a_branch, serial_rows, serial_in_place, serial_next, serial_callable, serial_value,
    serial_result)}


class Random(NamedTuple):
    """Statements with the buffers, the values (counted from the newest) and the rows that they name."""

    statements: Tuple[Tuple[str, bool, int, int, int, int], ...]
    shown: Tuple[int, ...]

    def step(self, system: Any, buffers: Sequence[Any], mode: str = "compute") -> Callable[..., Any]:
        def step(first: Any, x: Any, row: Any) -> Any:
            def fill(x: Any) -> Any:
                for k, buffer in enumerate(buffers):
                    for r in range(ROWS):
                        buffer.write(r, x + (ROWS * k + r))
                return x
            values = [x, system.cond(first, fill, lambda x: x, x)]
            rows = [0, 1, 2, row, (row + 1) % ROWS]
            for name, swapped, i, j, r, q in self.statements:
                a, b = buffers[::-1] if swapped else buffers
                new = STATEMENTS[name](Place(system, mode, a, b, values[-1 - i % len(values)],
                                             values[-1 - j % len(values)], rows[r], rows[q]))
                values += [] if new is None else [new]
            after = [system.load(b.read(r)) for b in buffers for r in range(ROWS)]
            return [system.load(values[-1 - i % len(values)]) for i in self.shown], after
        return step


@st.composite
def random_programs(draw: Any) -> Random:
    number, row = st.integers(0, 5), st.integers(0, 4)
    statement = st.tuples(st.sampled_from(sorted(STATEMENTS)), st.booleans(), number, number, row, row)
    return Random(tuple(draw(st.lists(statement, min_size=1, max_size=6))),
                  tuple(draw(st.lists(number, min_size=1, max_size=3))))


def buffers() -> List[Any]:
    return [pf.remote_buffer(pf.spec(PART), STEPS, ROWS, name=name) for name in ("first", "second")]


def arguments() -> List[Tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    return [(np.bool_(n == 0), rng.normal(0, 0.5, VALUE).astype(f32), i32(n)) for n in range(RUNS)]


@settings(max_examples=max(40, settings.default.max_examples // 2))
@given(random_programs())
def test_random_programs(p: Random) -> None:
    runs = arguments()
    want = by_definition(p.step(PYTHON, [Rows(), Rows()]), runs)
    close(by_definition(p.step(pf, buffers()), runs), want, "eager")
    close(by_definition(pf.jit(p.step(pf, buffers())), runs), want, "jit")
    before = None
    for mode in IO_MODES:
        program = pf.lower(p.step(pf, buffers(), mode), *specs(runs[0]), io_tiles=IO_TILES, target="host")
        got = by_session(program, runs)
        close(got, want, mode)
        same(by_text(program, runs[0]), got, f"the text with io_mode={mode}")
        if before is not None:
            same(got, before, mode)
        before = got


@settings(max_examples=max(2, settings.default.max_examples // 200))
@given(random_programs())
def test_random_programs_on_xla(p: Random) -> None:
    runs = arguments()
    with mock.patch.dict(os.environ, POPFN_ENGINE="xla"):
        got = by_session(pf.lower(p.step(pf, buffers()), *specs(runs[0]), target="host"), runs)
    close(got, by_definition(p.step(PYTHON, [Rows(), Rows()]), runs), "XLA")
