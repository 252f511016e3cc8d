"""Jaxprs as data: printing, parsing, equality, the check, evaluation."""
import itertools
import re
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.aval import FLOAT8, SHORT
from popfn.trace.errors import InputError, JaxprError
from popfn.trace.jaxpr import Eqn, Jaxpr, Literal, Var
from popfn.trace.prims.kinds import Add, Neg
from popfn.trace.prims.shaping import Broadcast, Sum
from popfn.trace.tracer import Trace, bind
from popfn.transforms.call import Call


def f32(*shape):
    return pf.spec(shape)


def traced(f, *specs):
    return pf.make_jaxpr(f)(*specs)


def prims_call(jaxpr, *args):
    return bind(Call(jaxpr), args)


def literal(value, dtype="float32", weak=False):
    return Literal(np.asarray(value, pf.Aval((), dtype).dtype), pf.Aval((), dtype, weak))


def round_trip(jaxpr):
    """Check that a jaxpr is well formed and that its text gives it back; return the copy."""
    again = pf.parse_jaxpr(str(jaxpr.check()))
    assert again == jaxpr and hash(again) == hash(jaxpr) and str(again) == str(jaxpr)
    return again


# ---------------------------------------------------------------------------- print
def test_printed_form():
    table = np.ones((3, 2), np.float32)
    jaxpr = traced(lambda x, i: (pnp.tanh(x @ table) + 1, x.sum(0), i), f32(4, 3), pf.spec((), "int32"))
    assert str(jaxpr) == repr(jaxpr) == """\
{ lambda a:f32[3,2] ; b:f32[4,3] c:i32[] . let
    d:f32[4,2] = dot_general[x_contract=(1,) y_contract=(0,)] b a
    e:f32[4,2] = tanh d
    f:f32[4,2] = add e 1.0:f32[]
    g:f32[3] = sum[axes=(0,)] b
  in (f, g, c) }"""


def test_printed_form_of_small_ones():
    assert str(traced(lambda: ())) == "{ lambda ; . let\n  in () }"
    assert str(traced(lambda x: x, f32())) == "{ lambda ; a:f32[] . let\n  in (a,) }"
    assert str(traced(lambda: 2.5)) == "{ lambda ; . let\n  in (2.5:~f32[],) }"
    assert str(traced(lambda x: (x, x), f32())) == "{ lambda ; a:f32[] . let\n  in (a, a) }"


def test_a_call_prints_its_jaxpr_inside():
    inner = traced(lambda x, y: x * y, f32(), f32())
    with Trace("outer") as t:
        x = t.input(f32())
        a, = prims_call(inner, x, x)
        jaxpr = t.finish([a, *prims_call(inner, a, x)])
    assert str(jaxpr) == """\
{ lambda ; a:f32[] . let
    b:f32[] = call[jaxpr={ lambda ; a:f32[] b:f32[] . let
        c:f32[] = mul a b
      in (c,) }] a a
    c:f32[] = call[jaxpr={ lambda ; a:f32[] b:f32[] . let
        c:f32[] = mul a b
      in (c,) }] b a
  in (b, c) }"""
    round_trip(jaxpr)


def test_a_call_without_operands_or_results():
    nothing = traced(lambda: ())
    constant = traced(lambda: pnp.arange(3) * 2)
    with Trace("outer") as t:
        assert prims_call(nothing) == ()
        a, = prims_call(constant)
        prims_call(nothing)
        jaxpr = t.finish([a + 1])
    round_trip(jaxpr)
    assert jaxpr.eval()[0].tolist() == [1, 3, 5]


def test_many_names():
    """Names go on after z, and leave out the words of the printed form."""
    def f(x):
        for _ in range(26 * 27 + 400):
            x = pnp.sin(x)
        return x
    jaxpr = traced(f, f32())
    found = re.findall(r"^    (\w+):f32", str(jaxpr), re.M)
    assert found[:26] == list("bcdefghijklmnopqrstuvwxyz") + ["ba"] and len(found) == len(set(found)) == 26 * 27 + 400
    assert not {"in", "let", "inf", "nan"} & set(found) and {"im", "io"} <= set(found)
    round_trip(jaxpr)


EDGES = [0.0, -0.0, 1.0, -1.5, 1e-45, -1e-38, 1.17549435e-38, 3.4028235e38, 0.1, 1 / 3, 16777217.0, 1e20, 123456.789,
         float("inf"), -float("inf"), float("nan"), -float("nan")]


@pytest.mark.parametrize("dtype", list(SHORT), ids=SHORT.get)
def test_literals_keep_their_bits(dtype):
    values = [True, False] if dtype.kind == "b" else np.array(EDGES).astype(np.float32) if dtype in FLOAT8 else EDGES
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = [info.min, info.max, 0, 1, 100]
    with np.errstate(all="ignore"):
        array = np.asarray(values).astype(dtype)
    for x, weak in itertools.product(array, (False, True)):
        v = np.array(x)
        with pf.enable_float64():
            jaxpr = Jaxpr([], [Literal(v, pf.Aval((), dtype, weak))], []).check()
        got = round_trip(jaxpr).outputs[0].value
        assert got.dtype == dtype and (got.tobytes() == v.tobytes() or got != got and v != v)


@given(st.integers(0, 2**32 - 1))
def test_any_float32_literal_keeps_its_bits(bits):
    value = np.frombuffer(struct.pack("<I", bits), "<f4")[0]
    got = round_trip(Jaxpr([], [literal(value)], [])).outputs[0].value
    assert got.tobytes() == value.tobytes() or np.isnan(got) and np.isnan(value)


# ---------------------------------------------------------------------------- parse
def test_what_is_parsed_can_be_evaluated():
    jaxpr = pf.parse_jaxpr("""
      { lambda c:f32[2] ; x:f32[2] y:~f32[] . let z:f32[2] = mul x c   w:f32[2] = add z y
        in (w, x, -2.5e-1:f16[], True:bool[], 7:i8[]) }  """, [[3.0, 4.0]])
    outs = jaxpr.eval(np.float32([1, 2]), np.float32(10))
    assert [x.tolist() for x in outs] == [[13.0, 18.0], [1.0, 2.0], -0.25, True, 7]
    assert [str(a) for a in jaxpr.out_avals] == ["f32[2]", "f32[2]", "f16[]", "bool[]", "i8[]"]


def test_constants_of_a_parsed_jaxpr():
    text = "{ lambda c:f32[2] ; . let in (c,) }"
    without = pf.parse_jaxpr(text)
    with pytest.raises(InputError) as e:
        without.eval()
    assert str(e.value) == "this jaxpr was parsed without its constants: give them to parse_jaxpr(text, constants)"
    mine = np.float32([1, 2])
    jaxpr = pf.parse_jaxpr(text, [mine])
    mine[0] = 9
    assert jaxpr.eval()[0].tolist() == [1, 2]
    assert jaxpr == without == pf.parse_jaxpr(text, [[1.0, 2.0]]) and jaxpr != pf.parse_jaxpr(text, [[9.0, 2.0]])
    with pytest.raises(JaxprError, match="^the jaxpr has 1 constants, got 2$"):
        pf.parse_jaxpr(text, [1, 2])
    with pytest.raises(JaxprError, match=r"^a constant is float32\[3\], its constvar f32\[2\]$"):
        pf.parse_jaxpr(text, [[1.0, 2.0, 3.0]])


START = "{ lambda ; a:f32[2] i:i32[] . let\n    "
END = "\n  in (b,) }"


@pytest.mark.parametrize("eqn, text", [
    ("b:f32[2] = expp a", "expected the name of a primitive at 'expp a'"),
    ("b:f32[2] = elementwise a", "expected the name of a primitive at 'elementwise '"),
    ("b:f32[2] = exp c", "expected a variable that is defined at 'c'"),
    ("b:f32[2] = exp b", "expected a variable that is defined at 'b'"),
    ("a:f32[2] = exp a", "expected a new name, a is taken at ':f32[2] = ex'"),
    ("b:f33[2] = exp a", "expected a dtype at 'f33[2] = exp'"),
    ("b:f32[-2] = exp a", "expected a size at '-2] = exp a'"),
    ("b:f32[1.5] = exp a", "expected a size at '1.5] = exp a'"),
    ("b:f32[2 = exp a", "expected a size at '= exp a'"),
    ("b:f32[2] exp a", "expected '=' at 'exp a'"),
    ("b:f32[2], c:f32[2] = exp a", "expected '=' at ', c:f32[2] ='"),
    ("b:f32[2] = exp", "expected the operands of exp (missing a required argument: 'x') at 'exp'"),
    ("b:f32[2] = exp a a", "expected the operands of exp (too many positional arguments) at 'exp a a'"),
    ("b:f32[2] = exp[n=2] a", "expected the parameters of exp (none) at 'exp[n=2] a'"),
    ("b:f32[] = sum a", "expected the parameters of sum (axes) at 'sum a'"),
    ("b:f32[] = sum[axes=(0,) n=1] a", "expected the parameters of sum (axes) at 'sum[axes=(0,'"),
    ("b:f32[] = sum[axes=zero] a", "expected a parameter's value at 'zero] a'"),
    ("b:f32[] = sum[axes=(0,", "expected a parameter's value at 'in (b,) }'"),
    ("b:f32[2] = add a 1.5:i32[]", "expected a scalar of type i32[] at '1.5:i32[]'"),
    ("b:f32[2] = add a 300:i8[]", "expected a scalar of type i8[] at '300:i8[]'"),
    ("b:f32[2] = add a nan:i32[]", "expected a scalar of type i32[] at 'nan:i32[]'"),
    ("b:f32[2] = add a True:f32[]", "expected a scalar of type f32[] at 'True:f32[]'"),
    ("b:f32[2] = add a 1:bool[]", "expected a scalar of type bool[] at '1:bool[]'"),
    ("b:f32[2] = add a 1.0:f32[2]", "expected a scalar of type f32[2] at '1.0:f32[2]'"),
    ("b:f32[2] = add a 1.0", "expected ':' at 'in (b,) }'"),
    ("b:f32[2] = exp a # why", "expected a token at '# why'"),
])
def test_what_cannot_be_read(eqn, text):
    with pytest.raises(JaxprError) as e:
        pf.parse_jaxpr(START + eqn + END)
    line = "3: in (b,) }" if text.endswith("at 'in (b,) }'") else f"2: {eqn}"
    assert str(e.value).splitlines() == [f"cannot read the jaxpr: {text}", f"  in line {line}"]
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize("text, lines", [
    ("", ["cannot read the jaxpr: expected '{' at the end", "  in line 1: "]),
    ("{ lambda", ["cannot read the jaxpr: expected ';' at the end", "  in line 1: { lambda"]),
    ("{ lambda ; . let\n in (\n\n", ["cannot read the jaxpr: expected a variable that is defined at the end",
                                     "  in line 2: in ("]),
    ("{ lambda ; . let in () } x", ["cannot read the jaxpr: expected the end at 'x'",
                                    "  in line 1: { lambda ; . let in () } x"]),
])
def test_text_that_ends_too_early_or_too_late(text, lines):
    with pytest.raises(JaxprError) as e:
        pf.parse_jaxpr(text)
    assert str(e.value).splitlines() == lines


@pytest.mark.parametrize("eqn, text", [
    ("b:f32[3] = exp a", "gives (f32[2],), but its variables are (f32[3],)"),
    ("b:f32[2] c:f32[2] = exp a", "gives (f32[2],), but its variables are (f32[2], f32[2])"),
    ("b:f32[2] = add a i", "is ill typed: add: operands have one dtype, got f32[2] and i32[]: convert one with astype"),
    ("b:f32[] = sum[axes=(1,)] a", "is ill typed: sum: axes (1,) are not distinct axes of a value of rank 1"),
    ("b:f32[] = sum[axes=0] a", "is ill typed: "),
    ("b:f32[] = slice[starts=None stops=(1,) strides=(1,)] a", "is ill typed: "),
])
def test_ill_typed_text(eqn, text):
    with pytest.raises(JaxprError) as e:
        pf.parse_jaxpr(START + eqn + END)
    name = re.search(r"= (\w+)", eqn).group(1)
    assert str(e.value).startswith(f"equation 0 ({name}, an unknown place) {text}")


@given(st.data())
def test_damaged_text_is_refused_or_read(data):
    """Whatever is cut out of or put into a printed jaxpr: a JaxprError, or a jaxpr that checks."""
    text = str(traced(lambda x: (pnp.concat([x, x[::-1] * 2.5])[:3], x.sum() > 0), f32(4)))
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 12)))
    new = data.draw(st.one_of(st.sampled_from(list("{}()[]:;.,=~ \n'\"-") + [
        "in", "let", "1", "-1", "1e9", "nan", "f32", "i8", "a", "True", "None", "call", "sum", "~f32[]", "2.5:f32[]"]),
        st.text(max_size=3)))
    try:
        jaxpr = pf.parse_jaxpr(text[:start] + new + text[stop:])
    except JaxprError as e:
        assert str(e)
    else:
        assert round_trip(jaxpr) == jaxpr


def test_sizes_that_numpy_computed():
    """NumPy's integers in parameters print as plain numbers."""
    sizes = tuple(np.array([2, 3]))
    round_trip(traced(lambda x: pnp.broadcast_to(x, sizes), f32(3)))
    round_trip(traced(lambda x: pnp.reshape(x, sizes), f32(6)))
    round_trip(traced(lambda x: x[np.int64(1):np.int64(3)].sum(np.int64(0)), f32(6)))
    round_trip(traced(lambda x: pnp.pad(x, np.array([1, 2])) + pnp.full((np.int32(9),), 1.0), f32(6)))
    round_trip(Jaxpr([x := Var(f32(3))], [y := Var(f32(2, 3))], [Eqn(Broadcast(sizes), (x,), (y,))]))


# ---------------------------------------------------------------------------- equality
def test_equality_is_up_to_names():
    one = traced(lambda x, y: (x + y) * 2, f32(3), f32(3))
    two = traced(lambda longer, names: (longer + names) * 2, f32(3), f32(3))
    assert one == two and hash(one) == hash(two) and one.name == two.name == "<lambda>"
    assert len({one, two}) == 1 and not one != two
    assert one != str(one) and one != None  # noqa: E711


@pytest.mark.parametrize("other", [
    lambda x, y: (y + x) * 2, lambda x, y: (x + y) * 3, lambda x, y: (x + y) * 2.0 + 0, lambda x, y: (x - y) * 2,
    lambda x, y: ((x + y) * 2, x), lambda x, y: 2 * (x + y), lambda x, y: (x + y) * np.float32(-2),
])
def test_what_is_unequal(other):
    assert traced(other, f32(3), f32(3)) != traced(lambda x, y: (x + y) * 2, f32(3), f32(3))


def test_types_and_parameters_take_part_in_equality():
    assert traced(lambda x: x * 2, f32(3)) != traced(lambda x: x * 2, f32(4))
    assert traced(lambda x: x * 2, f32()) != traced(lambda x: x * 2, 1.0)           # strong and weak
    assert traced(lambda x: x.sum(0), f32(3, 3)) != traced(lambda x: x.sum(1), f32(3, 3))
    assert traced(lambda x: x * 0.0, f32()) != traced(lambda x: x * -0.0, f32())
    nan = np.array([np.inf, -np.nan, np.nan], np.float32)
    assert traced(lambda x: x * nan[1], f32()) == traced(lambda x: x * nan[2], f32())
    assert traced(lambda x, y: x, f32(), f32()) != traced(lambda x, y: y, f32(), f32())


def test_constants_take_part_in_equality_but_not_in_the_hash():
    def with_constant(c):
        return traced(lambda x: x + c, f32(2))
    one, same, other = (with_constant(np.float32(c)) for c in ([1, 2], [1, 2], [1, 3]))
    assert one == same and one != other and hash(one) == hash(other)
    assert pf.parse_jaxpr(str(one)) == one == same


def test_calls_of_equal_jaxprs_are_equal():
    def outer(f):
        with Trace("outer") as t:
            return t.finish(prims_call(traced(f, f32()), t.input(f32())))
    assert outer(lambda x: x + 1) == outer(lambda y: y + 1) != outer(lambda x: x + 2)


# ---------------------------------------------------------------------------- check
def parts():
    x, y = Var(f32(3)), Var(f32(3))
    return x, y, Eqn(Neg(), (x,), (y,))


def here():
    with Trace("f") as t:
        x = t.input(f32(3))
        return t.finish([-x])  # the line


def test_a_good_jaxpr_is_returned():
    x, y, eqn = parts()
    jaxpr = Jaxpr([x], [y], [eqn])
    assert jaxpr.check() is jaxpr


def test_what_the_check_finds():
    x, y, eqn = parts()
    free, at = Var(f32(3)), "equation 0 (neg, an unknown place)"
    wrong = np.zeros(4, np.float32)
    for jaxpr, text in [
        (Jaxpr([], [y], [eqn]), f"an operand of {at} is used before it is defined: Var:f32[3]"),
        (Jaxpr([x], [free], [eqn]), "output 0 is used before it is defined: Var:f32[3]"),
        (Jaxpr([x, x], [y], [eqn]), "input 1 is defined twice: Var:f32[3]"),
        (Jaxpr([x], [y], [eqn, eqn]), "a result of equation 1 (neg, an unknown place) is defined twice: Var:f32[3]"),
        (Jaxpr([x], [x], [Eqn(Neg(), (x,), (x,))]), f"a result of {at} is defined twice: Var:f32[3]"),
        (Jaxpr([x], [x], [Eqn(Neg(), (x,), ())]), f"{at} gives (f32[3],), but its variables are ()"),
        (Jaxpr([x], [x], [Eqn(Neg(), (x,), (Var(f32(4)),))]), f"{at} gives (f32[3],), but its variables are (f32[4],)"),
        (Jaxpr([x], [x], [Eqn(Sum((3,)), (x,), (y,))]),
         "equation 0 (sum, an unknown place) is ill typed: sum: axes (3,) "
                                                       "are not distinct axes of a value of rank 1"),
        (Jaxpr([x], [x], [Eqn(Add(), (x, literal([1, 2])), (y,))]),
         "an operand of equation 0 (add, an unknown place) is no scalar of its type: [1. 2.]:f32[]"),
        (Jaxpr([x], [Literal(np.zeros((), "f2"), f32())], []), "output 0 is no scalar of its type: 0.0:f32[]"),
        (Jaxpr([literal(1.0)], [], []), "input 0 is not a Var: 1.0:f32[]"),
        (Jaxpr([x], ["x"], []), "output 0 is used before it is defined: 'x'"),
        (Jaxpr([x], [x], [], [y], []), "1 constvars but 0 constants"),
        (Jaxpr([x], [x], [], [y], [wrong]), "a constant is float32[4], its constvar f32[3]"),
        (Jaxpr([x], [x], [], [x], [wrong[:3]]), "input 0 is defined twice: Var:f32[3]"),
    ]:
        with pytest.raises(JaxprError) as e:
            jaxpr.check()
        assert str(e.value) == text


def test_the_check_names_the_line():
    jaxpr = here()
    bad = Jaxpr(jaxpr.inputs, jaxpr.outputs, jaxpr.eqns * 2)
    with pytest.raises(JaxprError) as e:
        bad.check()
    line = here.__code__.co_firstlineno + 3
    assert re.fullmatch(rf"a result of equation 1 \(neg, .*test_jaxpr\.py:{line}, in here: return t\.finish\(\[-x\]\)  "
                        r"# the line\) is defined twice: Var:f32\[3\]", str(e.value))


# ---------------------------------------------------------------------------- eval
def test_eval_checks_its_inputs():
    def loss(x, n):
        return x * 2, n
    jaxpr = traced(loss, f32(2), pf.spec((), "int32"))
    assert [x.tolist() for x in jaxpr.eval([np.float32(1), np.float32(2)], np.int32(3))] == [[2, 4], 3]
    for arrays, got in [((np.zeros(2, np.float32),), "f32[2]"), ((), ""),
                        ((np.zeros(3, np.float32), np.int32(1)), "f32[3], i32[]"),
                        ((np.zeros(2), 1), "f64[2], int64[]"),
                        ((np.zeros(2, "f4"), np.float32(1)), "f32[2], f32[]"),
                        ((np.zeros(2, "f4"), np.int32(1), 1), "f32[2], i32[], int64[]")]:
        with pytest.raises(InputError) as e:
            jaxpr.eval(*arrays)
        assert str(e.value) == f"loss takes (f32[2], i32[]), got ({got})"
    with pytest.raises(InputError, match=r"^the jaxpr takes \(\), got \(int64\[\]\)$"):
        pf.parse_jaxpr("{ lambda ; . let in () }").eval(1)


def test_eval_keeps_what_is_needed_again():
    def f(x):
        y = x + 1
        z = y * y
        return z, y, x, y, 3, z
    got = traced(f, f32()).eval(np.float32(2))
    assert [float(v) for v in got] == [9, 3, 2, 3, 3, 9]


def test_eval_raises_no_warnings_and_leaves_its_inputs():
    x = np.array([-1, 0, np.inf], np.float32)
    outs = traced(lambda x: (pnp.log(x), 1 / x, x - x, x * 1e38 * 10), f32(3)).eval(x)
    np.testing.assert_array_equal(outs[0], np.float32([np.nan, -np.inf, np.inf]))
    np.testing.assert_array_equal(x, np.float32([-1, 0, np.inf]))


def test_an_unused_equation_is_evaluated_without_harm():
    jaxpr = traced(lambda x: (pnp.exp(x), x)[1], f32(3))
    assert len(jaxpr.eqns) == 1 and jaxpr.eval(np.ones(3, np.float32))[0].tolist() == [1, 1, 1]


# ---------------------------------------------------------------------------- any program
def programs():
    """Random functions of two arrays (3,) f32 and one (3,) i32, as lists of steps."""
    unary = [pnp.tanh, pnp.exp, pnp.abs, pnp.negative, lambda x: x[::-1], lambda x: x[1:], lambda x: x.reshape(1, -1),
             lambda x: x.sum(), lambda x: x.max(), lambda x: x.astype("f16"), lambda x: x.astype(int),
             lambda x: x * 0.3,
             lambda x: x > 0, lambda x: 1.5 - x, lambda x: x ** 3, lambda x: pnp.pad(x, 1),
             lambda x: pnp.where(x > 0, x, -0.0),
             lambda x: pnp.argmax(x), lambda x: pf.nn.softmax(x * 1.0, -1), lambda x: x * np.float32([1, 2, 3])]
    binary = [pnp.add, pnp.multiply, pnp.subtract, pnp.maximum, pnp.less, lambda x, y: pnp.stack([x, y]),
              pnp.logical_and]
    return st.lists(st.one_of(st.tuples(st.sampled_from(unary), st.integers(0, 40)),
                              st.tuples(st.sampled_from(binary), st.integers(0, 40), st.integers(0, 40))), max_size=12)


@given(programs())
def test_any_program_prints_parses_and_evaluates(steps):
    def run(*values):
        values = list(values)
        for step, *places in steps:
            try:
                values.append(step(*(values[i % len(values)] for i in places)))
            except (TypeError, ValueError, IndexError):
                pass  # types that do not go together: nothing is recorded
        return values[-1], values[len(values) // 2]
    arrays = np.float32([0.5, -1, 2]), np.float32([1, 0, -0.0]), np.int32([3, -1, 0])
    jaxpr = traced(run, *arrays)
    again = round_trip(jaxpr)
    copy = pf.parse_jaxpr(str(again), jaxpr.constants)
    eager = run(*map(pf.Array, arrays))
    for a, b, c, aval in zip(eager, jaxpr.eval(*arrays), copy.eval(*arrays), jaxpr.out_avals):
        assert a.aval is aval and b.dtype == aval.dtype and b.shape == aval.shape
        np.testing.assert_array_equal(a.value, b)
        np.testing.assert_array_equal(b, c)
