"""Rows of remote buffers that are not there: the error of every run says which one, of which buffer, and where."""
import re
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest
from serial_cases import IO_TILES, Ran, f32, i32, leaves, same, specs
from test_handles import PART, ROWS, SERIAL, STEPS, X, buffer, halved

import popfn as pf
import popfn.numpy as pnp

# Programs that read or write a row of b whose number is traced, each with the text of that line.
TRACED: Dict[str, Tuple[Callable[..., Any], str]] = {
    "read": (lambda b, r: b.read(r) * 1, "b.read(r) * 1"),
    "write": (lambda b, r: (b.write(r, X), r)[1], "b.write(r, X)"),
    "a value made there": (lambda b, r: (b.write(r, pf.scan(lambda c, x: (c, x * 2), None, X)[1]), r)[1],
                           "b.write(r, pf"),
    "loads": (lambda b, r: SERIAL(halved, STEPS, loads=pf.Remote(b), rows=ROWS)(None, row=r), "loads=pf.Remote(b)"),
    "stores": (lambda b, r: (SERIAL(lambda x: x[0], STEPS, stores=pf.Remote(b), rows=ROWS)(X, row=r), r)[1],
               "stores=pf.Remote(b)"),
    "jit": (lambda b, r: pf.jit(lambda r: b.read(r) - 1)(r), "b.read(r) - 1"),
    "jit in jit": (lambda b, r: pf.jit(lambda r: pf.jit(lambda r: b.read(r) - 1)(r))(r), "b.read(r) - 1"),
    "scan": (lambda b, r: pf.scan(lambda c, k: (c + b.read(r)[0], k), np.zeros(PART, f32), np.arange(2)),
             "b.read(r)[0]"),
    "reversed": (lambda b, r: pf.scan(lambda c, x: (c, x * 2), None, b.read(r), reverse=True)[1], "b.read(r), rev"),
    "cond": (lambda b, r: pf.cond(r != 1, lambda: b.read(r) * 3, lambda: X), "b.read(r) * 3"),
    "grad": (lambda b, r: pf.grad(lambda x: pnp.sum(x * b.read(r)))(X), "b.read(r)))(X)"),
    "vmap": (lambda b, r: pf.vmap(lambda x: x * b.read(r)[0])(X), "b.read(r)[0])"),
}
# Rows that are not there; what is far away could wrap to one that is: (2**32 + 2) / STEPS is a whole number.
ROWS_OUT = [i32(3), i32(-1), i32(-100), i32(2 ** 31 - 1), i32(-2 ** 31), i32(-1431655764), np.uint32(2 ** 32 - 1),
            np.uint32(1431655766), np.uint32(2863311531), np.uint8(255), np.int8(-1), np.int8(3), np.uint16(65535)]


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("row", ROWS_OUT, ids=lambda r: f"{r.dtype}-{r}")
def test_a_traced_row_out_of_range(name: str, row: Any) -> None:
    """Every run says which row of which buffer, and where; the next run is as if there had not been this one."""
    f, line = TRACED[name]
    b = buffer("b")
    for k in range(ROWS):
        b.write(k, X + k)
    kept = {k: v.copy() for k, v in b.written.items()}

    def g(r: Any, first: Any) -> Any:
        pf.cond(first, lambda: [b.write(k, X + k) for k in range(ROWS)] and None, lambda: None)
        return pf.tree.map(lambda y: y + 0, f(b, r))
    one = row.dtype.type(1)
    want = leaves(f(b, pnp.asarray(one)))
    b.written.update(kept)
    at_once = [] if name in ("loads", "stores") else [lambda r: f(b, pnp.asarray(r))]  # checked against rows= first
    for run in (*at_once, pf.jit(lambda r: f(b, r))):
        with pytest.raises(pf.errors.RangeError) as e:
            run(row)
        check_row_error(str(e.value), row, line)
        same(Ran([leaves(run(one))], []), Ran([want], []), "the next")
    b.written.clear()
    with pf.Session(pf.lower(g, *specs((row, np.True_)), target="host")) as session:
        session.run(one, True)
        with pytest.raises(pf.errors.RangeError) as e:
            session.run(row, False)
        check_row_error(str(e.value), row, line)
        same(Ran([leaves(session.run(one, False))], []), Ran([want], []), "the next")


def check_row_error(text: str, row: Any, line: str) -> None:
    """Far beyond the entries that can be numbered, and for what was made a 32-bit row, the text says so much only."""
    first, at, *more = [line for line in text.split("\n  ") if not line.startswith("seen: in the branch ")]
    far = abs(int(row)) >= 2 ** 31 // STEPS
    assert first in ([f"row {row} of b is out of range: it has 3 rows"] + far * [
        "a row beyond 715827881 of b is out of range: it has 3 rows",
        "row 2147483647 of b is out of range: it has 3 rows"])
    assert re.match(r"at tests/lower/test_handle_rows.py:\d+, in ", at) and line in at, at
    ways = [f"way out: remote_buffer(..., rows={int(row) + 1})", "way out: rows are numbered from 0 to 2"]
    assert more in ([[ways[0]]] if row > 0 and not far else [[ways[1]]]), more


@pytest.mark.parametrize("mode", ("io", "io_overlapped"))
@pytest.mark.parametrize("steps", (1, 2, 3, 5))
@pytest.mark.parametrize("row", ROWS_OUT[:6], ids=str)
def test_a_traced_row_out_of_range_on_io_tiles(mode: str, steps: int, row: Any) -> None:
    """Also where the first entries are loaded before the loop, and in that of a derivative, which runs backwards."""
    b = pf.remote_buffer(pf.spec(PART), steps, ROWS, name="b")
    x = np.arange(2 * steps, dtype=f32).reshape(steps, 2)

    def load(w: Any, r: Any) -> Any:
        return pnp.sum(pf.batch_serialise(lambda w, x: pnp.tanh(x @ w), steps, (None, 0), rows=ROWS, io_mode=mode,
                                          loads=(None, pf.Remote(b)), residuals="recompute")(w, None, row=r))

    def store(w: Any, r: Any) -> Any:
        pf.batch_serialise(lambda x: x @ w, steps, rows=ROWS, stores=pf.Remote(b), io_mode=mode)(x, row=r)
        return w
    for f in (load, pf.grad(load), store):
        with pf.Session(pf.lower(f, np.eye(2, dtype=f32), row, io_tiles=IO_TILES)) as session:
            session.run(np.eye(2, dtype=f32), i32(1))
            with pytest.raises(pf.errors.RangeError, match="of b is out of range: it has 3 rows") as e:
                session.run(np.eye(2, dtype=f32), row)
            assert "tests/lower/test_handle_rows.py" in str(e.value)
            session.run(np.eye(2, dtype=f32), i32(2))


def test_lines_that_may_be_that_of_a_row_out_of_range() -> None:
    """A device says which entry of which buffer it was: of several lines that may be meant all are named."""
    b, other = buffer("b"), buffer("other")

    def f(x: Any, r: Any, s: Any) -> Any:
        b.write(r, x)
        other.write(r, x)
        return (b.read(r) - x,
                b.read(s) + x, b.read(2) * x)
    with pf.Session(pf.lower(f, *specs((X, i32(0), i32(0))), target="host")) as session:
        for args, here in (((X, i32(0), i32(4)), ("b.read(r) - x", "b.read(s) + x")),
                           ((X, i32(4), i32(0)), ("b.write(r, x)",))):
            with pytest.raises(pf.errors.RangeError, match="^row 4 of b is out of range: it has 3 rows\n") as e:
                session.run(*args)
            _, *places, way = str(e.value).split("\n  ")
            assert way == "way out: remote_buffer(..., rows=5)" and len(places) == len(here)
            for i, (place, text) in enumerate(zip(places, here)):
                assert place.startswith("or at " if i else "at ") and text in place


KNOWN: Dict[str, Callable[[int], Any]] = {
    "Python": int, "NumPy": np.int64, "unsigned": np.uint32, "an array": np.array,
    "an Array": lambda n: pf.Array(i32(n)), "weak": lambda n: pnp.asarray(n)}


@pytest.mark.parametrize("kind", KNOWN)
def test_a_known_row_is_checked_while_tracing(kind: str) -> None:
    b = buffer("b")
    for k in range(ROWS):
        b.write(k, X + k)
    serial = SERIAL(halved, STEPS, loads=pf.Remote(b, 1), rows=2)
    fwd, _ = pf.fwd_and_grad(halved, STEPS, loads=pf.Remote(b), rows=2)
    three = KNOWN[kind](3)
    for f, text in ((b.read, "row 3 of b is out of range: it has 3 rows"),
                    (lambda r: b.write(r, X), "row 3 of b is out of range: it has 3 rows"),
                    (lambda r: serial(None, row=r),
                     "batch_serialise: row 3 is out of range, the function serves 2 rows"),
                    (lambda r: fwd(None, row=r), "fwd_and_grad: row 3 is out of range, the function serves 2 rows")):
        for run in (lambda f=f: f(three), lambda f=f: pf.make_jaxpr(lambda a: f(three))(X)):
            with pytest.raises(pf.errors.RangeError) as e:
                run()
            lines = str(e.value).split("\n  ")
            assert lines[0] == text and re.match(r"at tests/lower/test_handle_rows.py:\d+, in ", lines[1]), lines
    assert str(pf.make_jaxpr(lambda: b.read(KNOWN[kind](2)))()) == str(pf.make_jaxpr(lambda: b.read(2))())
    np.testing.assert_array_equal(serial(None, row=KNOWN[kind](1)), (X + 2)[:, 0] * 0.5)
