"""Sessions: trees in and out, what is accepted and what is refused, attachment, and the state."""
import os
from collections import namedtuple

import numpy as np
import pytest
from lowering_cases import boolean, f16, i32, lower, program, s

from popfn.lower.session import Session
from popfn.trace import prims, tree
from popfn.trace.array import Array
from popfn.trace.aval import Aval, float8_143
from popfn.trace.errors import InputError, NarrowingError, file_name
from popfn.trace.tracer import literal

f32 = np.float32
Pair = namedtuple("Pair", "first second")
STRUCTURE = "the structure is not that which the program was lowered for"


def lines(error):
    """The lines of a message without the one that names the place in the tests, which has to be there."""
    found = [line.strip() for line in str(error.value).splitlines()]
    assert found[1].startswith(f"at {os.path.dirname(file_name(__file__))}")
    return found[:1] + found[2:]


def identity(*leaves):
    """The arguments themselves."""
    return leaves[0] if len(leaves) == 1 else leaves


def count(n, x):
    """A counter as state, and the sum of all inputs so far."""
    return {"runs": prims.add(n["runs"], literal(1, s(dtype=i32))), "sum": prims.add(n["sum"], x)}, \
        prims.add(n["sum"], x)


COUNT = [{"runs": s(dtype=i32), "sum": s(2)}, s(2)]
ZERO = {"runs": np.zeros((), i32), "sum": np.zeros(2, f32)}
ONES = np.ones(2, f32)


def counter():
    return Session(lower(count, *COUNT, state=(0,), names=["n", "x"]), ZERO)


# ---------------------------------------------------------------------------- trees
def test_results_have_the_structure_that_the_function_returns():
    made = lower(lambda x: {"a": [x, None], "b": Pair(prims.neg(x), ())}, s(2))
    with Session(made) as session:
        out = session.run(ONES)
        assert isinstance(out["b"], Pair) and out["a"][1] is None and out["b"].second == ()
        np.testing.assert_array_equal(out["b"].first, -ONES)
        assert type(out["a"][0]) is np.ndarray and out["a"][0].flags.writeable


@pytest.mark.parametrize("f, want", [
    (lambda n, x: (prims.add(n, x),), None),
    (lambda n, x: prims.add(n, x), None),
    (lambda n, x: (n, x), 5),
    (lambda n, x: (n, (x,)), (5,)),
    (lambda n, x: (n, x, prims.neg(x)), (5, -5)),
    (lambda n, x: (n, None), None),
])
def test_a_run_returns_what_follows_the_state(f, want):
    with Session(lower(f, s(), s(), state=(0,)), 1.0) as session:
        assert tree.map(float, session.run(5.0)) == want


def test_arguments_are_trees_by_position_or_name():
    made = lower(lambda a, b, c: prims.sub(prims.sub(a["x"], b[0]), c), {"x": s(), "y": s()}, [s()], s(),
                 names=["a", "b", "c"])
    with Session(made) as session:
        assert session.run({"x": 9.0, "y": 1.0}, [2.0], 3.0) == 4
        assert session.run({"y": 1.0, "x": 9.0}, c=3.0, b=[2.0]) == 4
        assert session.run(c=3.0, b=[2.0], a={"x": 9.0, "y": 1.0}) == 4


def test_each_run_gives_fresh_arrays():
    with Session(lower(identity, s(2))) as session:
        x = np.ones(2, f32)
        first = session.run(x)
        x[:] = 7
        second = session.run(x)
        assert first is not second and first.tolist() == [1, 1] and second.tolist() == [7, 7]


def test_expected_inputs_and_types():
    session = counter()
    assert session.expected_inputs() == {"x": s(2)}
    made = lower(lambda batch: batch["x"], {"x": s(2), "y": s(3, dtype=i32)}, names=["batch"])
    assert Session(made).expected_inputs() == {"batch": {"x": s(2), "y": s(3, dtype=i32)}}
    assert repr(made) == "Program(<lambda>(batch['x']: f32[2], batch['y']: i32[3]) -> f32[2]; host)"
    assert repr(session) == (
        "Session(Program(count(x: f32[2]) -> f32[2]; state n['runs']: i32[], n['sum']: f32[2]; host), detached)")


# ---------------------------------------------------------------------------- what is accepted
@pytest.mark.parametrize("dtype, x", [
    (f32, np.array([1, 2], f32)), (f32, np.array([1.0, 2.0])), (f32, Array([1.0, 2.0])), (i32, np.array([1, 2])),
    (f32, np.array([[1, 5], [2, 5]], f32)[:, 0]), (f32, np.array([1, 2], ">f4")), (boolean, np.array([True, False])),
    (f16, np.array([1, 2], f16))])
def test_arrays_that_fit(dtype, x):
    with Session(lower(identity, s(2, dtype=dtype))) as session:
        got = session.run(x)
        assert got.dtype == dtype and got.tolist() == np.asarray(x).tolist()


@pytest.mark.parametrize("dtype, x", [(f32, 2.5), (f32, 2), (f16, 0.5), (i32, -3), (np.uint8, 255), (boolean, True),
                                      (f32, np.float64(2.5)), (f32, Array(2.5))])
def test_numbers_take_the_dtype_that_they_meet(dtype, x):
    with Session(lower(identity, s(dtype=dtype))) as session:
        got = session.run(x)
        assert got.dtype == dtype and got.shape == () and got == np.asarray(x)


def test_nan_and_inf_pass_through():
    with Session(lower(prims.neg, s(3))) as session:
        np.testing.assert_array_equal(session.run(np.array([np.nan, np.inf, -0.0], f32)), [np.nan, -np.inf, 0.0])


def test_float8_passes_through():
    x = np.array([1.5, -2.0], float8_143)
    with Session(lower(lambda state, x: (state, prims.stop_gradient(x), state), s(2, dtype=float8_143),
                       s(2, dtype=float8_143), state=(0,)), x) as session:
        got, kept = session.run(x)
        assert got.dtype == kept.dtype == float8_143 and got.tobytes() == kept.tobytes() == x.tobytes()
    assert session.state.tobytes() == x.tobytes() and session.state.dtype == float8_143


def test_an_unused_argument_is_checked_and_ignored():
    with Session(lower(lambda x, y: prims.neg(x), s(2), s(3), names=["x", "y"])) as session:
        assert session.run(ONES, np.zeros(3, f32)).tolist() == [-1, -1]
        with pytest.raises(InputError, match=r"^argument y of <lambda>: expected f32\[3\], got f32\[4\]"):
            session.run(ONES, np.zeros(4, f32))


# ---------------------------------------------------------------------------- what is refused
REFUSED = [
    (s(3), np.zeros(4, f32), InputError, [
        "argument x of f: expected f32[3], got f32[4]",
        "way out: give data of the shape that the program was lowered for, or lower it again for this one"]),
    (s(2, 2), np.zeros(4, f32), InputError, [
        "argument x of f: expected f32[2,2], got f32[4]",
        "way out: reshape it, or lower the program again for this shape"]),
    (s(1), np.float32(0), InputError, [
        "argument x of f: expected f32[1], got f32[]",
        "way out: reshape it, or lower the program again for this shape"]),
    (s(3), np.zeros(3, i32), InputError, [
        "argument x of f: expected f32[3], got i32[3]",
        "way out: x.astype(np.float32); nothing is converted unseen"]),
    (s(3, dtype=i32), np.zeros(3), InputError, [
        "argument x of f: expected i32[3], got f64[3]",
        "way out: x.astype(np.int32); nothing is converted unseen"]),
    (s(3, dtype=f16), np.zeros(3, f32), InputError, [
        "argument x of f: expected f16[3], got f32[3]",
        "way out: x.astype(np.float16); nothing is converted unseen"]),
    (s(3), Array([1, 2, 3]), InputError, [
        "argument x of f: expected f32[3], got i32[3]",
        "way out: x.astype(np.float32); nothing is converted unseen"]),
    (s(3, dtype=i32), np.array([0, 2 ** 40, 0]), NarrowingError, [
        "argument x of f: expected i32[3], got int64[3]: int64 data is narrowed to int32, but "
        f"{2 ** 40} at index [1] does not survive; use x.astype(np.int32) to convert it all the same"]),
    (s(2), [1.0, 2.0], InputError, [
        "argument x of f: expected f32[2], got a list", "way out: np.asarray(..., np.float32)"]),
    (s(2), {"x": 1}, InputError, ["argument x of f: expected f32[2], got a dict"]),
    (s(2), None, InputError, ["argument x of f: expected f32[2], got a NoneType"]),
    (s(2), "ab", InputError, ["argument x of f: expected f32[2], got a str"]),
    (s(2), np.array(["a", "b"]), None, ["argument x of f: expected f32[2], got str"]),
    (s(2), 1.0, InputError, ["argument x of f: expected f32[2], got the Python float 1.0"]),
    (s(dtype=i32), 1.0, InputError, ["argument x of f: expected i32[], got the Python float 1.0"]),
    (s(dtype=f32), True, InputError, ["argument x of f: expected f32[], got the Python bool True"]),
    (s(dtype=boolean), 1, InputError, ["argument x of f: expected bool[], got the Python int 1"]),
    (s(dtype=np.uint8), 300, NarrowingError, [
        "argument x of f: expected u8[]: Python integer 300 does not fit uint8 (0 to 255)"]),
]


@pytest.mark.parametrize("aval, x, kind, text", REFUSED)
def test_data_that_does_not_fit(aval, x, kind, text):
    with Session(lower(identity, aval, name="f", names=["x"])) as session:
        with pytest.raises((kind or Exception, ValueError, TypeError)) as error:
            session.run(x)
    assert kind is None or type(error.value) is kind
    assert [got[:len(want)] for got, want in zip(lines(error), text)] == text
    assert kind is None or len(lines(error)) == len(text)


def test_an_error_names_the_leaf():
    made = lower(lambda batch: batch["y"][1], {"x": s(2), "y": [s(), s(3)]}, name="loss", names=["batch"])
    with Session(made) as session:
        with pytest.raises(InputError) as error:
            session.run({"x": ONES, "y": [0.0, np.zeros(3, i32)]})
        assert lines(error)[0] == "argument batch['y'][1] of loss: expected f32[3], got i32[3]"
        for batch, text in [
            ({"x": ONES, "y": [0.0]}, "missing: batch['y'][1]"),
            ({"x": ONES, "y": [0.0, ONES], "z": 1.0}, "not expected: batch['z']"),
            ({"x": ONES, "z": 1.0}, "missing: batch['y'][0], batch['y'][1]; not expected: batch['z']"),
        ]:
            with pytest.raises(InputError) as error:
                session.run(batch)
            assert lines(error) == [f"argument batch of loss: {STRUCTURE}", text]
        with pytest.raises(InputError) as error:
            session.run({"x": ONES, "y": (0.0, ONES)})
        assert [line.split("(")[0] for line in lines(error)[1:]] == ["expected: PyTreeSpec", "got: PyTreeSpec"]


def test_arguments_that_do_not_fit_the_function():
    made = lower(lambda w, x, y: (w, prims.add(x, y)), s(), s(), s(), state=(0,), name="f")
    state = "w lives on the device and is not passed: see Session.state"
    with Session(made, 0.0) as session:
        for args, kwargs, text in [
            ((1.0,), {}, ["run: missing y", "f takes x, y"]),
            ((), {}, ["run: missing x, y", "f takes x, y"]),
            ((1.0, 2.0, 3.0), {}, ["run: f takes x, y; got 3 arguments", state]),
            ((1.0,), {"z": 2.0}, ["run: f has no argument 'z'", "f takes x, y"]),
            ((1.0, 2.0), {"w": 2.0}, ["run: f has no argument 'w'", "f takes x, y", state]),
            ((1.0, 2.0), {"x": 2.0}, ["run: argument x of f was given twice"]),
        ]:
            with pytest.raises(InputError) as error:
                session.run(*args, **kwargs)
            assert lines(error) == text
        assert session.run(1.0, y=2.0) == 3


# ---------------------------------------------------------------------------- outputs of one's own
def test_run_with_outputs():
    made = lower(lambda x: {"a": prims.neg(x), "e": prims.slice_(x, (0,), (0,), (1,))}, s(2), name="f")
    with Session(made) as session:
        outputs = session.create_host_outputs()
        assert tree.map(lambda x: Aval(x.shape, x.dtype), outputs) == {"a": s(2), "e": s(0)}
        session.run_with_outputs((ONES,), outputs)
        assert outputs["a"].tolist() == [-1, -1]
        fixed = np.zeros(2, f32)
        fixed.flags.writeable = False
        for bad, text in [
            ({"a": outputs["a"]}, f"outputs of f: {STRUCTURE}"),
            ({"a": np.zeros(2), "e": outputs["e"]},
             "output out['a'] of f: expected a NumPy array f32[2] to write into, got f64[2]"),
            ({"a": [0, 0], "e": outputs["e"]}, f"outputs of f: {STRUCTURE}"),
            ({"a": Array(ONES), "e": outputs["e"]},
             "output out['a'] of f: expected a NumPy array f32[2] to write into, got f32[2]"),
            ({"a": fixed, "e": outputs["e"]},
             "output out['a'] of f: the array is read-only; results are written into it"),
        ]:
            with pytest.raises(InputError) as error:
                session.run_with_outputs((ONES,), bad)
            assert lines(error)[0] == text
        with pytest.raises(InputError, match="^run: missing x"):
            session.run_with_outputs((), outputs)


# ---------------------------------------------------------------------------- attachment
def test_detached_sessions_do_not_run():
    session = counter()
    assert not session.is_attached
    for name, f in [("run", lambda: session.run(ONES)), ("run", lambda: session.run_with_outputs((ONES,), ONES.copy())),
                    ("weights_to_host", session.weights_to_host), ("weights_from_host", session.weights_from_host)]:
        with pytest.raises(ValueError) as error:
            f()
        assert lines(error) == [f"{name}: the session of count is not attached to its device",
                                f"way out: call it inside a block, `with session: session.{name}(...)`"]
    with session:
        session.run(ONES)
    with pytest.raises(ValueError):
        session.run(ONES)


def test_blocks_nest_and_the_state_goes_on():
    session = counter()
    with session as entered:
        assert entered is session and session.is_attached
        session.run(ONES)
        with session:
            session.run(ONES)
        assert session.is_attached
        session.run(ONES)
    assert not session.is_attached and session.state["runs"] == 3
    with session:
        session.run(ONES)
        assert session.state["runs"] == 4
    assert session.state["sum"].tolist() == [4, 4]


@pytest.mark.parametrize("look", [False, True])
def test_an_exception_leaves_the_block_detached_and_loses_nothing(look):
    session = counter()
    with pytest.raises(KeyError), session:
        session.run(ONES)
        assert not look or session.state["runs"] == 1
        session.run(ONES)
        raise KeyError
    assert not session.is_attached and session.state["runs"] == 2
    with session:
        assert session.run(ONES).tolist() == [3, 3]


def test_two_sessions_of_one_program_do_not_share_their_state():
    made = lower(count, *COUNT, state=(0,), names=["n", "x"])
    first, second = Session(made, ZERO), Session(made, {"runs": 10, "sum": ONES})
    with first, second:
        first.run(ONES)
        second.run(ONES)
        assert (first.state["runs"], second.state["runs"]) == (1, 11)
    assert (first.state["runs"], second.state["runs"]) == (1, 11)
    with first:
        assert first.run(ONES).tolist() == [2, 2]


# ---------------------------------------------------------------------------- state
def test_a_run_that_fails_leaves_the_state():
    with counter() as session:
        session.run(ONES)
        for bad in (np.ones(3, f32), np.ones(2, i32), "ab"):
            with pytest.raises(InputError):
                session.run(bad)
        assert session.state["runs"] == 1 and session.run(ONES).tolist() == [2, 2]


def test_state_is_copied_in_and_out():
    first = {"runs": np.zeros((), i32), "sum": np.zeros(2, f32)}
    session = Session(lower(count, *COUNT, state=(0,), names=["n", "x"]), first)
    first["sum"][:] = 100
    with session:
        assert session.run(ONES).tolist() == [1, 1]
        state = session.state
        state["sum"][:] = 100
        assert session.run(ONES).tolist() == [2, 2]
        session.get_variable_data("n['sum']")[:] = 100
        assert session.run(ONES).tolist() == [3, 3]


def test_state_can_be_set_as_a_whole_and_by_leaf():
    session = counter()
    session.state = {"runs": 5, "sum": np.array([1, 2], f32)}
    assert session.get_variable_data("n['sum']").tolist() == [1, 2]
    with session:
        assert session.run(ONES).tolist() == [2, 3]
        session.write_variable_data("n['runs']", 20)  # the other leaf keeps what the run made of it
        assert session.run(ONES).tolist() == [3, 4]
        assert session.state["runs"] == 21
        session.state = ZERO
        assert session.run(ONES).tolist() == [1, 1]
    assert session.get_variable_data("n['runs']") == 1
    session.write_variable_data("n['sum']", np.zeros(2))
    with session:
        assert session.run(ONES).tolist() == [1, 1]


def test_weights_from_host_goes_back_to_the_last_copy():
    with counter() as session:
        session.run(ONES)
        session.weights_to_host()
        session.run(ONES)
        session.weights_from_host()
        assert session.run(ONES).tolist() == [2, 2]


def test_several_state_arguments():
    made, args, state = program("swap")
    with Session(made, state) as session:
        session.run(*args)
        a, b = session.state
        np.testing.assert_array_equal(a, state[1])
        np.testing.assert_array_equal(b, state[0])
        session.state = (args[0], args[0])
        np.testing.assert_array_equal(session.get_variable_data("b"), args[0])


def test_state_that_the_program_does_not_touch_is_kept():
    made, args, state = program("passing")
    with Session(made, state) as session:
        session.run(*args)
        np.testing.assert_array_equal(session.state[0], state[0])
        session.write_variable_data("kept", np.array([7, 8], f32))
    assert session.get_variable_data("kept").tolist() == [7, 8]
    np.testing.assert_array_equal(session.state[1], state[1])


@pytest.mark.parametrize("state, text", [
    (None, ["Session(state=...): count keeps n on the device and needs first values",
            "way out: Session(program, state=n)"]),
    ({"runs": 0}, [f"Session(state=...) of count: {STRUCTURE}", "missing: n['sum']"]),
    ({"runs": 0, "sum": np.zeros(3, f32)}, [
        "state n['sum'] of count: expected f32[2], got f32[3]",
        "way out: give data of the shape that the program was lowered for, or lower it again for this one"]),
    ({"runs": 0.5, "sum": np.zeros(2, f32)}, ["state n['runs'] of count: expected i32[], got the Python float 0.5"]),
])
def test_first_state_that_does_not_fit(state, text):
    with pytest.raises(InputError) as error:
        Session(lower(count, *COUNT, state=(0,), names=["n", "x"]), state)
    assert lines(error) == text


def test_state_that_does_not_fit_changes_nothing():
    with counter() as session:
        session.run(ONES)
        with pytest.raises(InputError, match=r"^state n\['sum'\] of count: expected f32\[2\], got i32\[2\]"):
            session.state = {"runs": 9, "sum": np.zeros(2, i32)}
        with pytest.raises(InputError, match=r"^Session.state of count: the structure is not"):
            session.state = [9, ONES]
        with pytest.raises(InputError, match=r"^state n\['sum'\] of count: expected f32\[2\], got f32\[1\]"):
            session.write_variable_data("n['sum']", np.zeros(1, f32))
        with pytest.raises(InputError) as error:
            session.write_variable_data("n['total']", ONES)
        assert lines(error) == ["count has no state \"n['total']\"", "its state: n['runs'], n['sum']"]
        with pytest.raises(InputError, match="^count has no state 'sum'"):
            session.get_variable_data("sum")
        assert session.state["runs"] == 1


def test_a_program_without_state():
    made = lower(prims.exp, s(2), name="f")
    with pytest.raises(InputError, match=r"^Session: f keeps nothing on the device, but state= was given\n"):
        Session(made, ONES)
    session = Session(made)
    assert session.state is None
    with pytest.raises(InputError, match="^Session.state: f keeps nothing on the device"):
        session.state = ONES
    with pytest.raises(InputError) as error:
        session.get_variable_data("x")
    assert lines(error) == ["f has no state 'x'", "its state: none"]


# ---------------------------------------------------------------------------- results that do not begin with the state
P = {"w": s(3), "b": s()}


@pytest.mark.parametrize("f, text", [
    (lambda p, x: x, ["f keeps p on the device, so it has to return a tuple that begins with the new p",
                      "it returns: f32[3]", "way out: return p, result"]),
    (lambda p, x: [p, x], ["f keeps p on the device, so it has to return a tuple that begins with the new p",
                           "it returns: [{'w': f32[3], 'b': f32[]}, f32[3]]", "way out: return p, result"]),
    (lambda p, x: (x, p), ["f returns a new p of another structure than the p that it takes",
                           "missing: p['b'], p['w']; not expected: p"]),
    (lambda p, x: ({"w": p["w"], "c": p["b"]}, x), ["f returns a new p of another structure than the p that it takes",
                                                    "missing: p['b']; not expected: p['c']"]),
    (lambda p, x: ({"w": prims.convert(p["w"], np.dtype(f16)), "b": p["b"]}, x), [
        "f takes p['w'] as f32[3] and returns the new one as f16[3]", "what lives on the device keeps its type",
        "way out: .astype(np.float32)"]),
    (lambda p, x: {"w": p["w"], "b": x}, ["f takes p['b'] as f32[] and returns the new one as f32[3]",
                                          "what lives on the device keeps its type"]),
])
def test_a_result_that_does_not_begin_with_the_state(f, text):
    with pytest.raises(InputError) as error:
        lower(f, P, s(3), state=(0,), name="f", names=["p", "x"])
    assert lines(error) == text


def test_results_of_several_states():
    for f in (lambda a, b: a, lambda a, b: (a,)):
        with pytest.raises(InputError) as error:
            lower(f, s(), s(), state=(0, 1), name="f", names=["a", "b"])
        assert lines(error)[::2] == [
            "f keeps a, b on the device, so it has to return a tuple that begins with the new a, b",
            "way out: return a, b, result"]
    with pytest.raises(InputError, match=r"^f takes b as i32\[\] and returns the new one as f32\[\]"):
        lower(lambda a, b: (a, a), s(), s(dtype=i32), state=(0, 1), name="f", names=["a", "b"])
    with pytest.raises(InputError, match=r"^state=\(0, 0\) names an argument twice\n"):
        lower(lambda a: (a, a), s(), state=(0, 0))


def test_the_types_that_a_program_knows():
    made = lower(count, *COUNT, state=(0,), names=["n", "x"])
    assert made.in_avals == (Aval((), i32), Aval((2,), f32), Aval((2,), f32)) and made.out_avals == (s(2),)
    assert made.paths == ("n['runs']", "n['sum']", "x") and made.out_paths == ("out",) and made.state_leaves == (0, 1)
