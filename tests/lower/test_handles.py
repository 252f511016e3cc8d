"""Remote buffers by handle: a lowered program reads and writes them in the order in which the function says so."""
import re
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from serial_cases import Ran, by_definition, by_session, by_text, close, f32, i32, leaves, same, specs
from test_text import module

import popfn as pf
import popfn.numpy as pnp

STEPS, ROWS = 3, 3
PART = (1, 2)
VALUE = (STEPS, *PART)


# ---------------------------------------------------------------------------- the order of reads and writes
def buffer(name: str = "buffer", rows: int = ROWS) -> Any:
    return pf.remote_buffer(pf.spec(PART), STEPS, rows, name=name)


def old_after_a_write(b: Any, x: Any, row: Any) -> Any:
    b.write(row, x)
    old = b.read(row)
    b.write(row, x + 1)
    return old * 2, b.read(row)


def old_result_after_a_write(b: Any, x: Any, row: Any) -> Any:
    b.write(row, x)
    old = b.read(row)
    b.write(row, old + 1)
    b.write(row, x + 2)
    return old, b.read(row)


def alternating(b: Any, x: Any, row: Any) -> Any:
    out = []
    for i in range(4):
        b.write(row, x * i)
        out.append(b.read(row))
    return out


def another_row(b: Any, x: Any, row: Any) -> Any:
    b.write(0, x)
    b.write(1, x + 1)
    old = b.read(0)
    b.write(row, x + 2)  # row 0 or 1
    return old, b.read(0), b.read(1)


def swapped_rows(b: Any, x: Any, row: Any) -> Any:
    b.write(0, x)
    b.write(1, x * 2)
    first, second = b.read(0), b.read(1)
    b.write(0, second)
    b.write(1, first)
    return b.read(0), b.read(1), first - second


def read_twice(b: Any, x: Any, row: Any) -> Any:
    b.write(row, x)
    first = b.read(row)
    second = b.read(row)
    b.write(row, first + second)
    return first, second, b.read(row)


def read_in_a_call(b: Any, x: Any, row: Any) -> Any:
    b.write(row, x)
    old = pf.jit(b.read)(row)
    pf.jit(lambda x: b.write(row if isinstance(row, int) else 0, x))(x + 1)
    return old


def scanned_rows(b: Any, x: Any, row: Any) -> Any:
    b.write(0, x)

    def body(c: Any, r: Any) -> Any:
        old = b.read(r)
        b.write(r + 1, old * 2 + c)
        return c + 1, old
    return pf.scan(body, 0.5, np.arange(ROWS - 1))[1], b.read(ROWS - 1)


def a_row_of_floats_and_one_of_others(b: Any, x: Any, row: Any) -> Any:
    out = []
    for dtype in (np.float16, i32, np.bool_, np.uint8):
        other = pf.remote_buffer(pf.spec(PART, dtype), STEPS)
        other.write(0, (x * 3).astype(dtype))
        old = other.read(0)
        other.write(0, old[::-1])
        out += [old, other.read(0)]
    return out


def a_buffer_of_scalars(b: Any, x: Any, row: Any) -> Any:
    other = pf.remote_buffer(pf.spec(()), 4, 2)
    other.write(row, x[0, 0, 0] + pnp.arange(4.0))
    serial = pf.batch_serialise(lambda s: s * 2, 4, loads=pf.Remote(other), stores=pf.Remote(other), rows=2)
    serial(None, row=row)
    return other.read(row)


def one_step(b: Any, x: Any, row: Any) -> Any:
    other = pf.remote_buffer(pf.spec(PART), 1, 2)
    serial = pf.batch_serialise(lambda x: x * 2, 1, loads=pf.Remote(other), stores=pf.Remote(other, lambda r: 1 - r),
                                rows=2)
    other.write(row, x[:1])
    serial(None, row=row)
    return other.read(1 - row)


def one_value_twice(b: Any, x: Any, row: Any) -> Any:
    other, value = buffer("other"), x + 2
    b.write(0, value)
    other.write(row, value)
    b.write(1, value)
    return b.read(0), other.read(row), b.read(1)


def written_and_then_carried(b: Any, x: Any, row: Any) -> Any:
    value = pf.scan(lambda c, v: (c, pf.remote(v * 2)), 0.0, x)[1]
    b.write(row, value)
    pf.scan(lambda c, r: (pf.remote(c * 3), b.write(r, c)), value, np.full(2, 2))
    return b.read(row), b.read(2)


def carried_and_then_written(b: Any, x: Any, row: Any) -> Any:
    value = pf.scan(lambda c, v: (c, pf.remote(v * 2)), 0.0, x)[1]
    last = pf.scan(lambda c, _: (pf.remote(c * 3), None), value, None, length=2)[0]
    b.write(row, last)
    b.write(2, value)
    return b.read(row), b.read(2), value, last


def made_before_a_read(b: Any, x: Any, row: Any) -> Any:
    b.write(row, x)
    value = pf.scan(lambda c, v: (c, pf.remote(v * 2)), 0.0, x)[1]
    old = b.read(row) * 1
    b.write(row, value)
    return old, b.read(row)


def given_by_loops(b: Any, x: Any, row: Any) -> Any:
    b.write(0, x)
    b.write(1, x * 2)
    rows = pf.scan(lambda c, r: (c, b.read(r)), 0.0, np.arange(2))[1]
    last = pf.scan(lambda c, r: (b.read(r), None), pf.remote(x), np.arange(2))[0]
    b.write(row, x * 3)
    return rows, last


def given_by_calls(b: Any, x: Any, row: Any) -> Any:
    b.write(row, x)
    out = [pf.jit(lambda r: (b.read(r), b.read(r)))(row), pf.checkpoint(lambda r: b.read(r))(row),
           pf.cond(x[0, 0, 0] > 0, lambda: b.read(row), lambda: b.read(row))]
    b.write(row, x * 3)
    return out


def conditions(b: Any, x: Any, row: Any) -> Any:
    """What decides about a loop's end is read anew in each step."""
    b.write(row, x * 0 + 1)

    def body(c: Any) -> Any:
        b.write(row, b.read(row) * 2)
        return c + 1
    counts = [pf.while_loop(lambda c: pnp.sum(b.read(row)) < 100, body, 0, max_steps=9),
              pf.while_loop(lambda c: pf.cond(c < 2, lambda: pnp.sum(b.read(row)) > 0, lambda: False), body, 0,
                            max_steps=9),
              pf.while_loop(lambda c: pnp.sum(pf.remote(x * 0 + c)) < 20, lambda c: c + 1, 0, max_steps=9)]
    return counts, b.read(row)


def branches_of_four(b: Any, x: Any, row: Any) -> Any:
    b.write(0, x)
    b.write(1, x * 2)

    def written(k: int, n: float) -> Callable[[], Any]:
        return lambda: b.write(k, x * n)
    pf.switch(row, [written(1, 5.0), written(0, 6.0), lambda: None, lambda: None])
    return [pf.switch(row + k, [lambda: b.read(0) * 1, lambda: b.read(1) * 3, lambda: b.read(0) + b.read(1), lambda: x])
            for k in range(3)]


ORDERS = (old_after_a_write, old_result_after_a_write, alternating, another_row, swapped_rows, read_twice,
          read_in_a_call, scanned_rows, a_row_of_floats_and_one_of_others, a_buffer_of_scalars, one_step,
          one_value_twice, written_and_then_carried, carried_and_then_written, made_before_a_read, given_by_loops,
          given_by_calls, conditions, branches_of_four)
X = np.random.default_rng(1).normal(size=VALUE).astype(f32)


@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
@pytest.mark.parametrize("f", ORDERS, ids=lambda f: f.__name__)
def test_reads_and_writes_take_place_in_their_order(f: Callable[..., Any], traced: bool) -> None:
    for row in (0, 1):
        def g(x: Any, r: Any, row: int = row) -> Any:
            return f(buffer(), x, r if traced else row)
        want = leaves(f(buffer(), X, row))
        for run in (g, pf.jit(g)):
            same(Ran([leaves(run(X, i32(row)))], []), Ran([want], []), "eager and jit")
        program = pf.lower(g, *specs((X, i32(0))), target="host")
        got = by_session(program, [(X, i32(row))] * 2)
        same(Ran(got.results, []), Ran([want, want], []), "lowered")
        same(by_text(program, (X, i32(row))), got, "the text")


ROW_WANT: Dict[str, List[float]] = {  # of x = 1, what each result is
    "old_after_a_write": [2, 2], "old_result_after_a_write": [1, 3], "alternating": [0, 1, 2, 3],
    "swapped_rows": [2, 1, -1], "read_twice": [1, 1, 2], "read_in_a_call": [1], "one_step": [2],
    "one_value_twice": [3, 3, 3], "written_and_then_carried": [2, 6], "carried_and_then_written": [18, 2, 2, 18],
    "conditions": [5, 2, 4, 128], "branches_of_four": [1, 15, 6],
    "made_before_a_read": [1, 2], "given_by_loops": [1, 2], "given_by_calls": [1, 1, 1, 1]}


@pytest.mark.parametrize("name", ROW_WANT)
def test_what_eager_reads_are(name: str) -> None:
    """By hand, so that the definition is not only compared with itself."""
    f = next(f for f in ORDERS if f.__name__ == name)
    got = leaves(f(buffer(), np.ones(VALUE, f32), 0))
    assert [float(x.ravel()[0]) for x in got] == ROW_WANT[name]


@pytest.mark.parametrize("run", ["eager", "jit", "session"])
def test_what_was_written_stays(run: str) -> None:
    def count(b: Any, first: Any, x: Any) -> Any:
        pf.cond(first, lambda: b.write(1, x), lambda: b.write(1, b.read(1) + x))
        return b.read(1)
    b = buffer()

    def f(first: Any, x: Any) -> Any:
        return count(b, first, x)
    args = [(np.bool_(n == 0), X) for n in range(3)]
    want = Ran([[X * (n + 1)] for n in range(3)], [[]] * 3)
    if run == "session":
        program = pf.lower(f, *specs(args[0]), target="host")
        close(by_session(program, args), want, "a session")
        close(by_session(program, args), want, "another session has a buffer of its own")
        assert not b.written
    else:
        close(by_definition(f if run == "eager" else pf.jit(f), args), want, run)
        np.testing.assert_allclose(b.written[1], X * 3, rtol=1e-6)
        assert list(b.written) == [1]


def test_buffers_of_one_name_are_two() -> None:
    def f(x: Any) -> Any:
        a, b = buffer("same"), buffer("same")
        a.write(0, x)
        b.write(0, x * 2)
        return a.read(0), b.read(0)
    program = pf.lower(f, *specs((X,)), target="host")
    got = by_session(program, [(X,)])
    same(Ran(got.results, []), Ran([[X, X * 2]], []), "two buffers")
    same(by_text(program, (X,)), got, "the text")


def test_a_failed_run_leaves_the_buffers_as_they_were() -> None:
    b = buffer()

    def f(row: Any, x: Any) -> Any:
        b.write(0, x)
        b.write(row, x)
        return b.read(0)
    program = pf.lower(lambda row, x: (f(row, x), None)[0], *specs((i32(0), X)), target="host")
    with pf.Session(program) as session:
        session.run(i32(0), X)
        with pytest.raises(Exception, match="out of range|entries|beyond"):
            session.run(i32(7), X)
        np.testing.assert_array_equal(session.run(i32(1), X * 2), X * 2)


# ---------------------------------------------------------------------------- errors
def halved(x: Any) -> Any:
    return x * 0.5


def integers(x: Any) -> Any:
    return x[0].astype(i32)


def two(x: Any) -> Any:
    return x[0], x[0] * 2


SERIAL = pf.batch_serialise
READ = SERIAL(halved, STEPS, loads=pf.Remote(buffer()), rows=ROWS)
PARTS_OF = pf.spec((STEPS, 2))
BAD: Dict[str, Tuple[Callable[[], Any], type, str, List[str]]] = {
    "read a row": (lambda: buffer().read(3), pf.errors.RangeError, "row 3 of buffer is out of range: it has 3 rows",
                   ["way out: remote_buffer(..., rows=4)"]),
    "read a row below": (lambda: buffer().read(-1), pf.errors.RangeError,
                         "row -1 of buffer is out of range: it has 3 rows", ["way out: rows are numbered from 0 to 2"]),
    "write a row": (lambda: buffer("b", 1).write(1, X), pf.errors.RangeError,
                    "row 1 of b is out of range: it has 1 row", ["way out: remote_buffer(..., rows=2)"]),
    "read half a row": (lambda: buffer().read(0.5), pf.errors.ArgumentError,
                        "the number of a row of buffer is an integer, got ~f32[]", []),
    "read rows": (lambda: buffer().read(np.arange(2)), pf.errors.ArgumentError,
                  "the number of a row of buffer is an integer, got i32[2]", []),
    "read a truth": (lambda: buffer().read(True), pf.errors.ArgumentError,
                     "the number of a row of buffer is an integer, got bool[]", []),
    "write another shape": (lambda: buffer().write(0, X[:2]), pf.errors.ShapeError,
                            "a row of buffer is f32[3,1,2], got f32[2,1,2]", []),
    "write another dtype": (lambda: buffer().write(0, X.astype(np.float16)), pf.errors.ShapeError,
                            "a row of buffer is f32[3,1,2], got f16[3,1,2]", []),
    "write one step": (lambda: buffer().write(0, X[0]), pf.errors.ShapeError,
                       "a row of buffer is f32[3,1,2], got f32[1,2]", []),
    "a value and a buffer": (
        lambda: READ(X), pf.errors.ArgumentError,
        "batch_serialise: argument x of halved is loaded from buffer, but a value was passed for it",
        ["way out: pass None for it"]),
    "other steps loaded": (
        lambda: SERIAL(halved, 2, loads=pf.Remote(buffer()))(None), pf.errors.ArgumentError,
        "batch_serialise: argument x of halved lies in buffer, which is laid out for 3 steps, not for 2",
        ["way out: remote_buffer(..., steps=2)"]),
    "other steps stored": (lambda: SERIAL(halved, 1, stores=pf.Remote(buffer()))(X[0]), pf.errors.ArgumentError,
                           "batch_serialise: result of halved lies in buffer, which is laid out for 3 steps, not for 1",
                           ["way out: remote_buffer(..., steps=1)"]),
    "another shape stored": (
        lambda: SERIAL(halved, 3, stores=pf.Remote(buffer()))(X), pf.errors.ArgumentError,
        "batch_serialise: result of halved is f32[1,1,2] in each step, but buffer holds f32[1,2]", []),
    "another dtype stored": (
        lambda: SERIAL(integers, 3, stores=pf.Remote(buffer()))(X), pf.errors.ArgumentError,
        "batch_serialise: result of integers is i32[1,2] in each step, but buffer holds f32[1,2]", []),
    "a row that it does not serve": (lambda: READ(None, row=3), pf.errors.RangeError,
                                     "batch_serialise: row 3 is out of range, the function serves 3 rows",
                                     ["way out: batch_serialise(..., rows=4)"]),
    "a row below": (lambda: READ(None, row=-1), pf.errors.RangeError,
                    "batch_serialise: row -1 is out of range, the function serves 3 rows",
                    ["way out: rows are numbered from 0 to 2"]),
    "a row behind the buffer": (lambda: SERIAL(halved, 3, loads=pf.Remote(buffer(), 2), rows=2)(None, row=1),
                                pf.errors.RangeError, "row 3 of buffer is out of range: it has 3 rows",
                                ["way out: remote_buffer(..., rows=4)"]),
    "a callable's row": (lambda: SERIAL(halved, 3, loads=pf.Remote(buffer(), lambda r: 9))(None), pf.errors.RangeError,
                         "row 9 of buffer is out of range: it has 3 rows", ["way out: remote_buffer(..., rows=10)"]),
    "a callable's float": (lambda: SERIAL(halved, 3, loads=pf.Remote(buffer(), lambda r: 0.5))(None),
                           pf.errors.ArgumentError, "the number of a row of buffer is an integer, got ~f32[]", []),
    "no row": (lambda: READ(None, row=None), pf.errors.ArgumentError,
               "batch_serialise: row is the number of a row, got None", []),
    "a text for a row": (lambda: READ(None, row="a"), pf.errors.ArgumentError,
                         "batch_serialise: row is the number of a row, got 'a'", []),
    "a truth for a row": (lambda: READ(None, row=True), pf.errors.ArgumentError,
                          "batch_serialise: row is the number of a row, got True", []),
    "a sum in a buffer": (
        lambda: SERIAL(halved, 3, reduce="sum", stores=pf.Remote(buffer()))(X), pf.errors.ArgumentError,
        "batch_serialise: result of halved is f32[1,1,2] in each step, which is reduced: it has no parts to put into "
        "buffer", ["way out: leave it out of stores, or out of reduce"]),
    "two results in one row": (
        lambda: SERIAL(two, 3, stores=pf.Remote(buffer()))(X), pf.errors.ArgumentError,
        "batch_serialise: result[1] of two is f32[1,2] in each step, and goes to the row of buffer where another "
        "result goes", ["way out: a buffer, or a row, for each result"]),
    "a buffer for Remote": (
        lambda: SERIAL(halved, 3, loads=buffer())(None), pf.errors.ArgumentError,
        "batch_serialise: loads has None, 'device', pf.HostStream() or pf.Remote(buffer) for each array, got 'buffer'",
        []),
    "rows": (lambda: SERIAL(halved, 3, rows=0), pf.errors.ArgumentError,
             "batch_serialise: rows is a number of 1 or more, got 0", []),
    "half a row to serve": (lambda: SERIAL(halved, 3, rows=1.5), pf.errors.ArgumentError,
                            "batch_serialise: rows is a number of 1 or more, got 1.5", []),
    "rows of fwd_and_grad": (lambda: pf.fwd_and_grad(halved, 3, rows=0), pf.errors.ArgumentError,
                             "fwd_and_grad: rows is a number of 1 or more, got 0", []),
    "Remote of a spec": (lambda: pf.Remote(pf.spec(2)), pf.errors.ArgumentError,
                         "Remote takes a buffer first, got Aval", ["way out: Remote(pf.remote_buffer(spec, steps))"]),
    "Remote below": (lambda: pf.Remote(buffer(), -1), pf.errors.ArgumentError,
                     "Remote: row is a number of 0 or more, None or a function, got -1", []),
    "Remote of a row that is not there": (lambda: pf.Remote(buffer(), 3), pf.errors.RangeError,
                                          "row 3 of buffer is out of range: it has 3 rows",
                                          ["way out: remote_buffer(..., rows=4)"]),
    "a row without handles": (lambda: SERIAL(halved, 3)(X, row=1), pf.errors.ArgumentError,
                              "batch_serialise: row= says where handles read and write, and halved has none",
                              ["way out: pf.Remote(buffer) in loads or stores"]),
    "Remote of a text": (lambda: pf.Remote(buffer(), "0"), pf.errors.ArgumentError,
                         "Remote: row is a number of 0 or more, None or a function, got '0'", []),
    "a buffer of arrays": (lambda: pf.remote_buffer(X[0], 3), pf.errors.ArgumentError,
                           "remote_buffer: spec is the type of an array with elements, got a value of type ndarray",
                           ["way out: remote_buffer(pf.spec((16, 32)), steps=4)"]),
    "an empty buffer": (lambda: pf.remote_buffer(pf.spec((0, 2)), 3), pf.errors.ArgumentError,
                        "remote_buffer: spec is the type of an array with elements, got f32[0,2]",
                        ["way out: remote_buffer(pf.spec((16, 32)), steps=4)"]),
    "a buffer of no steps": (lambda: pf.remote_buffer(PARTS_OF, 0), pf.errors.ArgumentError,
                             "remote_buffer: steps is a number of 1 or more, got 0", []),
    "a buffer of no rows": (lambda: pf.remote_buffer(PARTS_OF, 1, -1), pf.errors.ArgumentError,
                            "remote_buffer: rows is a number of 1 or more, got -1", []),
    "too many entries": (lambda: pf.remote_buffer(PARTS_OF, 2 ** 16, 2 ** 16), pf.errors.ArgumentError,
                         "remote_buffer: 65536 rows of 65536 steps are 4294967296 entries, a buffer has at most "
                         "2147483648", ["way out: several buffers, or larger entries"]),
    "too many NumPy entries": (lambda: pf.remote_buffer(PARTS_OF, np.int32(2 ** 30), np.int32(4)),
                               pf.errors.ArgumentError, "remote_buffer: 4 rows of 1073741824 steps are 4294967296 "
                               "entries, a buffer has at most 2147483648", ["way out: several buffers, or larger "
                                                                           "entries"]),
    "a number for a name": (lambda: pf.remote_buffer(PARTS_OF, 1, name=3), pf.errors.ArgumentError,
                            "remote_buffer: name is a text, got 3", []),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_line(name: str) -> None:
    """Every line, eagerly and while a function is traced."""
    f, kind, text, more = BAD[name]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(f32(0))):
        with pytest.raises(kind) as e:
            run()
        lines = [re.sub(r" \(tests/lower/test_handles.py:\d+\)", "", line) for line in str(e.value).split("\n  ")]
        assert lines[0] == text and lines[2:] == more, lines
        assert re.match(r"at tests/lower/test_handles.py:\d+, in ", lines[1]), lines


def test_a_function_may_have_an_argument_called_row() -> None:
    np.testing.assert_array_equal(SERIAL(lambda x, row: x * row, STEPS)(X, row=np.ones(3, f32)), X)
    np.testing.assert_array_equal(SERIAL(lambda x, **k: x * k["row"], STEPS)(X, row=np.ones(3, f32)), X)


def test_a_row_that_was_never_written() -> None:
    b = buffer("b")
    b.write(1, X)
    with pytest.raises(pf.errors.InputError) as e:
        b.read(0)
    assert str(e.value).split("\n")[0] == "row 0 of b is read, but nothing was written there"
    assert "test_handles.py" in str(e.value)
    with pytest.raises(pf.errors.InputError, match="row 2 of b is read, but nothing was written there"):
        pf.jit(b.read)(i32(2))

    def inside(r: Any) -> Any:
        return b.read(r) * 1
    for f in (pf.jit(inside), lambda r: pf.jit(lambda r: pf.jit(inside)(r) + 1)(r), inside,
              lambda r: pf.scan(lambda c, r: (c, inside(r)), 0, np.array([r])),
              lambda r: pf.grad(lambda x: pnp.sum(x * inside(r)))(X)):
        with pytest.raises(pf.errors.InputError, match="row 2 of b is read, but nothing was written there") as e:
            f(i32(2))
        assert "in inside: return b.read(r) * 1" in str(e.value)
    with pytest.raises(pf.errors.InputError, match="row 0 of b is read, but nothing was written there"):
        SERIAL(halved, STEPS, loads=pf.Remote(b), rows=ROWS)(None)


def test_a_condition_that_writes() -> None:
    """It would be evaluated when the loop has ended."""
    b = buffer("b")

    def f(x: Any) -> Any:
        def cond(c: Any) -> Any:
            b.write(0, b.read(0) * c[1])
            return c[0] < 2
        b.write(0, X)
        out = pf.while_loop(cond, lambda c: (c[0] + 1, c[1]), (0, pf.stop_gradient(x)), max_steps=5)
        return out[1] * x, b.read(0)
    np.testing.assert_array_equal(f(f32(2))[1], X * 8)
    np.testing.assert_array_equal(pf.jit(f)(f32(2))[1], X * 8)
    with pytest.raises(pf.errors.LoweringError) as e:
        pf.lower(f, pf.spec(()))
    lines = str(e.value).split("\n  ")
    assert re.match("the condition of the while loop over .* writes to b: with a bound it is evaluated max_steps "
                    "times, also when the loop has ended$", lines[0])
    assert "test_handles.py" in lines[1] and "pf.while_loop(cond" in lines[1]
    assert lines[2] == "way out: write in the body"


LOST = "a value that is differentiated is written to b, through which no derivative goes"
WAY_OUT = ("way out: hand it on as a value; or stop_gradient, if that is meant; or differentiate each phase for "
           "itself, by pf.fwd_and_grad")
WRITES: Dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda b, x: b.write(0, x),
    "jit": lambda b, x: pf.jit(lambda x: b.write(0, x))(x),
    "scan": lambda b, x: pf.scan(lambda c, r: (b.write(r, x * c), (c, None))[1], 1.0, np.arange(2)),
    "cond": lambda b, x: pf.cond(x[0, 0, 0] > 0, lambda x: b.write(0, x), lambda x: None, x),
    "serialised": lambda b, x: SERIAL(lambda x: x[0], STEPS, stores=pf.Remote(b))(x),
    "checkpoint": lambda b, x: pf.checkpoint(lambda x: (b.write(0, x), x * 2)[1])(x),
}
DERIVATIVES: Dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda f: pf.grad(f)(X), "jvp": lambda f: pf.jvp(f, (X,), (X,)), "vjp": lambda f: pf.vjp(f, X),
    "linearize": lambda f: pf.linearize(f, X), "lowered": lambda f: pf.lower(pf.grad(f), *specs((X,)))}


@pytest.mark.parametrize("way", DERIVATIVES)
@pytest.mark.parametrize("name", WRITES)
def test_no_derivative_goes_through_a_write(name: str, way: str) -> None:
    b = buffer("b")
    with pytest.raises(pf.errors.ArgumentError) as e:
        DERIVATIVES[way](lambda x: (WRITES[name](b, x), pnp.sum(x * x))[1])
    lines = str(e.value).split("\n  ")
    assert (lines[0], lines[2:]) == (LOST, [WAY_OUT])
    assert re.match(r"at tests/lower/test_handles.py:\d+, in ", lines[1]), lines


@pytest.mark.parametrize("name", WRITES)
def test_what_is_not_differentiated_is_written(name: str) -> None:
    b = buffer("b")
    got = pf.grad(lambda y: (WRITES[name](b, X), pnp.sum(y * y))[1])(X)
    np.testing.assert_allclose(got, 2 * X, rtol=1e-6)
    assert b.written or name == "cond"
    got = pf.grad(lambda x: (WRITES[name](b, pf.stop_gradient(x)), pnp.sum(x * x))[1])(X)
    np.testing.assert_allclose(got, 2 * X, rtol=1e-6)


def test_what_is_read_is_a_constant() -> None:
    def f(b: Any, x: Any, y: Any) -> Any:
        b.write(0, y)
        return pnp.sum(b.read(0) * x * x)
    want = 2 * X * np.abs(X)
    np.testing.assert_allclose(pf.grad(lambda x, y: f(buffer(), x, y))(X, np.abs(X)), want, rtol=1e-5)
    program = pf.lower(lambda x, y: pf.grad(lambda x: f(buffer(), x, y))(x), *specs((X, X)), target="host")
    close(by_session(program, [(X, np.abs(X))]), Ran([[want]], [[]]), "lowered")


@pytest.mark.parametrize("f", [
    lambda b, x: b.read((x[0, 0, 0] > 0).astype(i32)), lambda b, x: (b.write(0, x), x)[1],
    lambda b, x: (b.write((x[0, 0, 0] > 0).astype(i32), X), x)[1],
    lambda b, x: SERIAL(halved, STEPS, loads=pf.Remote(b), rows=2)(None, row=(x[0, 0, 0] > 0).astype(i32)),
    lambda b, x: (SERIAL(lambda x: x[0], STEPS, stores=pf.Remote(b))(x), x)[1],
], ids=["a row of lanes is read", "values", "a row of lanes is written", "loads", "stores"])
def test_lanes_would_meet_in_one_buffer(f: Callable[..., Any]) -> None:
    b = buffer("b")
    b.write(0, X)
    for lanes in (lambda x: pf.vmap(lambda x: f(b, x))(x), lambda x: pf.lower(pf.vmap(lambda x: f(b, x)), specs(x))):
        with pytest.raises(pf.errors.MissingRuleError) as e:
            lanes(np.stack([X, X]))
        lines = str(e.value).split("\n  ")
        assert re.match(r"vmap of remote_(read|write): the lanes of 'b' would meet in one buffer; use the buffer "
                        "outside of vmap, or keep results as values", lines[0])
        assert "test_handles.py" in lines[1]


@pytest.mark.parametrize("read", [lambda b: b.read(1), lambda b: SERIAL(halved, STEPS, loads=pf.Remote(b, 1))(
    None) * 2], ids=["read", "loads"])
def test_all_lanes_read_one_row(read: Callable[..., Any]) -> None:
    def f(x: Any) -> Any:
        b = buffer()
        b.write(1, X)
        return pf.vmap(lambda x: x * pnp.reshape(read(b), VALUE))(x)
    x = np.stack([X, X + 1, X * 2])
    close(by_definition(f, [(x,)]), Ran([[x * X]], [[]]), "eager")
    close(by_session(pf.lower(f, specs(x), target="host"), [(x,)]), Ran([[x * X]], [[]]), "lowered")


@pytest.mark.parametrize("name", ("_", "__", "1", "class", "a b"))
def test_names_that_are_no_identifiers(name: str) -> None:
    b = buffer(name)

    def f(x: Any) -> Any:
        b.write(0, x)
        return b.read(0)
    text = pf.lower(f, pf.spec(VALUE)).as_text()
    out, = module(text)["main"]({"x": np.ones(VALUE, f32)}).values()
    np.testing.assert_array_equal(out, np.ones(VALUE, f32))


def test_rows_of_8_bits_do_not_wrap() -> None:
    b = pf.remote_buffer(pf.spec(PART), STEPS, 301)

    def f(row: Any) -> Any:
        for k in (44, 200, 300):
            b.write(k, np.full(VALUE, k, f32))
        return pf.load(b.read(row))[0, 0, 0], SERIAL(lambda v: v, STEPS, loads=pf.Remote(b, 100), rows=201)(
            None, row=row)[0, 0], pf.scan(lambda c, r: (c, b.read(r)), None, row[None])[1][0, 0, 0, 0]
    row = np.array(200, np.uint8)
    with pf.Session(pf.lower(f, row)) as session:
        for got in (f(pnp.asarray(row)), pf.jit(f)(row), session.run(row)):
            np.testing.assert_array_equal(got, [200, 300, 200])


# ---------------------------------------------------------------------------- checkpoint
OF_A_ROW = {
    "plain": lambda b, w: pnp.sin(w * b.read(0)),
    "jit": lambda b, w: pf.jit(lambda w: pnp.sin(w * b.read(0)))(w),
    "scan": lambda b, w: pf.scan(lambda c, _: (pnp.sin(c * b.read(0)).sum(), None), w, None, length=2)[0],
    "while_loop": lambda b, w: pf.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, pnp.sin(c[1] * b.read(0)).sum()), (0, w), max_steps=3)[1],
    "cond": lambda b, w: pf.cond(w > 0, lambda: pnp.sin(w * b.read(0)), lambda: pnp.cos(w * b.read(0))),
    "checkpoint": lambda b, w: pf.checkpoint(lambda w: pnp.sin(w * b.read(0)))(w),
    "batch_serialise": lambda b, w: SERIAL(lambda w, v: pnp.sin(w * v), STEPS, (None, 0), loads=(None, pf.Remote(b)))(
        w, None),
    "recomputed": lambda b, w: SERIAL(lambda x: pnp.sin(w * x * b.read(0)).sum(), 2, reduce="sum",
                                      residuals="recompute")(np.arange(4, dtype=np.float32)),
}


@pytest.mark.parametrize("policy", ("nothing", "dots"))
@pytest.mark.parametrize("name", OF_A_ROW)
def test_what_was_read_is_not_read_again(name: str, policy: str) -> None:
    """The derivative is that of the values of the forward pass, whatever lies in the row later."""
    def gradient(wrap: Any) -> Any:
        b = buffer()

        def loss(w: Any) -> Any:
            b.write(0, np.full((STEPS, *PART), 3, np.float32))
            y = pnp.sum(wrap(lambda w: OF_A_ROW[name](b, w))(w))
            b.write(0, np.full((STEPS, *PART), 7, np.float32))
            return y
        return pf.grad(loss)
    w = np.float32(0.5)
    want = gradient(lambda f: f)(w)
    f = gradient(lambda f: pf.checkpoint(f, policy=policy))
    with pf.Session(pf.lower(f, w)) as session:
        for got in (f(w), pf.jit(f)(w), session.run(w)):
            np.testing.assert_allclose(got, want, rtol=1e-5)
