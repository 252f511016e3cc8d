"""popfn.numpy by the rules of the Python array API standard, version 2023.12: https://data-apis.org/array-api/2023.12

The standard's own suite needs float64 and 64-bit integers, which an IPU does not have, so its rules are written here
once more: names, signatures, the dtypes of results, broadcasting, and the tables of special cases.
"""
import inspect
import itertools
import math
import re
from typing import Any, Callable, Dict, List, Set, Tuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.numpy._left_out import LEFT_OUT

inf, nan, pi = math.inf, math.nan, math.pi

# ---------------------------------------------------------------------------- names and signatures
UNARY = """abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf
isnan log log1p log2 log10 logical_not negative positive real round sign signbit sin sinh square sqrt tan tanh trunc"""
BINARY = """add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum minimum
multiply not_equal pow remainder subtract"""
#: The parameters as in the standard; `device` of the creation functions is left out here, see DEVICE.
SIGNATURES: Dict[str, str] = {
    **dict.fromkeys(UNARY.split(), "x, /"), **dict.fromkeys(BINARY.split(), "x1, x2, /"),
    **dict.fromkeys("all any".split(), "x, /, *, axis=None, keepdims=False"),
    **dict.fromkeys("max min mean".split(), "x, /, *, axis=None, keepdims=False"),
    **dict.fromkeys("argmax argmin".split(), "x, /, *, axis=None, keepdims=False"),
    **dict.fromkeys("sum prod".split(), "x, /, *, axis=None, dtype=None, keepdims=False"),
    **dict.fromkeys("std var".split(), "x, /, *, axis=None, correction=0.0, keepdims=False"),
    **dict.fromkeys("sort argsort".split(), "x, /, *, axis=-1, descending=False, stable=True"),
    **dict.fromkeys("unique_all unique_counts unique_inverse unique_values nonzero".split(), "x, /"),
    "arange": "start, /, stop=None, step=1, *, dtype=None", "asarray": "obj, /, *, dtype=None, copy=None",
    "astype": "x, dtype, /, *, copy=True", "broadcast_arrays": "*arrays", "broadcast_to": "x, /, shape",
    "can_cast": "from_, to, /", "clip": "x, /, min=None, max=None", "concat": "arrays, /, *, axis=0",
    "cumulative_sum": "x, /, *, axis=None, dtype=None, include_initial=False", "empty": "shape, *, dtype=None",
    "empty_like": "x, /, *, dtype=None", "expand_dims": "x, /, *, axis=0",
    "eye": "n_rows, n_cols=None, /, *, k=0, dtype=None", "finfo": "type, /", "flip": "x, /, *, axis=None",
    "from_dlpack": "x, /", "full": "shape, fill_value, *, dtype=None", "full_like": "x, /, fill_value, *, dtype=None",
    "iinfo": "type, /", "isdtype": "dtype, kind", "linspace": "start, stop, /, num, *, dtype=None, endpoint=True",
    "matmul": "x1, x2, /", "matrix_transpose": "x, /", "meshgrid": "*arrays, indexing='xy'",
    "moveaxis": "x, source, destination, /", "ones": "shape, *, dtype=None", "ones_like": "x, /, *, dtype=None",
    "permute_dims": "x, /, axes", "repeat": "x, repeats, /, *, axis=None", "reshape": "x, /, shape, *, copy=None",
    "result_type": "*arrays_and_dtypes", "roll": "x, /, shift, *, axis=None",
    "searchsorted": "x1, x2, /, *, side='left', sorter=None", "squeeze": "x, /, axis", "stack": "arrays, /, *, axis=0",
    "take": "x, indices, /, *, axis=None", "tensordot": "x1, x2, /, *, axes=2", "tile": "x, repetitions, /",
    "tril": "x, /, *, k=0", "triu": "x, /, *, k=0", "unstack": "x, /, *, axis=0", "vecdot": "x1, x2, /, *, axis=-1",
    "where": "condition, x1, x2, /", "zeros": "shape, *, dtype=None", "zeros_like": "x, /, *, dtype=None",
    "__array_namespace_info__": ""}
VALUES = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128 e inf nan
newaxis pi
fft linalg __array_api_version__"""
#: Functions of the version after it that are here already or are left out with a reason.
LATER = "count_nonzero cumulative_prod diff nextafter reciprocal take_along_axis"
#: Why no creation function has the parameter `device`: where data is kept is said by the program that holds it.
DEVICE = "arange asarray empty empty_like eye from_dlpack full full_like linspace ones ones_like zeros zeros_like"
#: Methods and attributes of the array object that an Array has not, with reasons.
ARRAY_LEFT_OUT = {
    "__complex__": "complex numbers have no form on the IPU",
    "__dlpack__": "an Array's data is read-only, which NumPy's old releases do not export: np.asarray(x) takes it",
    "__dlpack_device__": "as __dlpack__", "device": "an Array is on the host, or it is traced and nowhere",
    "to_device": "as device",
    **dict.fromkeys("""__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __ipow__ __imod__ __imatmul__ __iand__
                    __ior__ __ixor__ __ilshift__ __irshift__""".split(),
                    "Arrays cannot be changed: Python makes x = x + y of x += y")}
ARRAY = """T mT dtype ndim shape size __abs__ __add__ __and__ __array_namespace__ __bool__ __eq__ __float__ __floordiv__
__ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__
__neg__
__or__ __pos__ __pow__ __rshift__ __setitem__ __sub__ __truediv__ __xor__ __radd__ __rsub__ __rmul__ __rtruediv__
__rfloordiv__ __rpow__ __rmod__ __rmatmul__ __rand__ __ror__ __rxor__ __rlshift__ __rrshift__"""


def test_every_name_of_the_standard_is_there_or_left_out_with_a_reason():
    names = set(SIGNATURES) | set(VALUES.split()) | set(LATER.split())
    assert len(names) == 155
    there = {n for n in names if hasattr(pnp, n)}
    assert {n for n in there if n in LEFT_OUT} == set(), "there, and in the list of what is not"
    assert names - there - set(LEFT_OUT) == set(), "neither there nor in the list"
    assert set(LEFT_OUT) <= names and all(len(reason) > 20 for reason in LEFT_OUT.values())


def test_the_reason_is_told():
    for name, reason in LEFT_OUT.items():
        with pytest.raises(AttributeError, match=re.escape(f"popfn.numpy has no {name}: {reason}")):
            getattr(pnp, name)
    with pytest.raises(AttributeError, match="popfn.numpy has no arrange$"):
        getattr(pnp, "arrange")  # noqa: B009


def test_the_array_object():
    names = set(ARRAY.split()) | set(ARRAY_LEFT_OUT)
    there = {n for n in names if hasattr(pf.Array, n)}
    assert there & set(ARRAY_LEFT_OUT) == set() and names - there == set(ARRAY_LEFT_OUT)


def standard(name: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {re.sub(', /$', ', /', SIGNATURES[name])}: 0"))


@pytest.mark.parametrize("name", [n for n in SIGNATURES if n not in LEFT_OUT])
def test_signature(name):
    """What the standard lets a caller write is taken, and means the same where it is left out."""
    given, wanted = inspect.signature(getattr(pnp, name)), standard(name)
    for i, (key, p) in enumerate(wanted.parameters.items()):
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            q = list(given.parameters.values())[i]
            assert q.kind == p.kind or p.kind == p.POSITIONAL_ONLY and q.kind == p.POSITIONAL_OR_KEYWORD
        else:
            q = given.parameters[key]
            assert q.kind in (p.kind, p.POSITIONAL_OR_KEYWORD)
        if p.default is not p.empty and key != "dtype":  # a dtype may be float32 outright
            assert q.default == p.default
    extra = [q for key, q in given.parameters.items() if key not in wanted.parameters and q.default is q.empty]
    assert sum(p.default is p.empty for p in wanted.parameters.values()) >= len(extra)
    assert ("device" in given.parameters) is False or name not in DEVICE.split()


# ---------------------------------------------------------------------------- dtypes and shapes
BOOL, FLOAT = ["bool"], ["float32"]
SIGNED, UNSIGNED = ["int8", "int16", "int32"], ["uint8", "uint16", "uint32"]
INTEGER = SIGNED + UNSIGNED
NUMERIC = INTEGER + FLOAT
ALL = BOOL + NUMERIC
#: The dtypes that the standard says a function takes, and what it gives: "same" or a dtype.
TAKES: Dict[Tuple[str, ...], Tuple[List[str], str]] = {
    tuple("acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 sin sinh sqrt tan tanh".split()):
        (FLOAT, "same"),
    tuple("abs ceil floor positive round square trunc".split()): (NUMERIC, "same"),
    ("negative", "sign"): (NUMERIC, "same"), ("signbit",): (FLOAT, "bool"),
    ("isfinite", "isinf", "isnan"): (NUMERIC, "bool"), ("logical_not",): (BOOL, "bool"),
    ("bitwise_invert",): (BOOL + INTEGER, "same"),
    ("add", "subtract", "multiply", "maximum", "minimum"): (NUMERIC, "same"),
    ("floor_divide", "remainder"): (NUMERIC, "same"), ("divide", "atan2", "copysign", "hypot", "logaddexp"):
        (FLOAT, "same"),
    ("pow",): (FLOAT, "same"),
    ("bitwise_and", "bitwise_or", "bitwise_xor"): (BOOL + INTEGER, "same"),
    ("bitwise_left_shift", "bitwise_right_shift"): (INTEGER, "same"),
    ("equal", "not_equal"): (ALL, "bool"), ("less", "less_equal", "greater", "greater_equal"): (NUMERIC, "bool"),
    ("logical_and", "logical_or", "logical_xor"): (BOOL, "bool")}
ELEMENTWISE = [(n, dtypes, out) for names, (dtypes, out) in TAKES.items() for n in names]


def promoted(a: str, b: str) -> str:
    """The standard's table of two dtypes of one kind; of int32 and uint32, which it sends to int64, popfn makes
    int32."""
    if a == b:
        return a
    signed = [d for d in (a, b) if d in SIGNED]
    if len(signed) != 1:
        return max(a, b, key=lambda d: int(d.strip("uint")))
    small = int(signed[0].strip("int"))
    wide = 2 * int((a if b == signed[0] else b).strip("uint"))
    return f"int{min(max(small, wide), 32)}"


def test_promotion_table():
    for kind in (SIGNED, UNSIGNED, INTEGER, FLOAT, BOOL):
        for a, b in itertools.product(kind, repeat=2):
            assert pnp.result_type(a, b).name == promoted(a, b), (a, b)


def operand(dtype: str, shape: Tuple[int, ...]) -> np.ndarray:
    return np.ones(shape, dtype)


@pytest.mark.parametrize("name, dtypes, out", ELEMENTWISE, ids=[n for n, _, _ in ELEMENTWISE])
def test_elementwise_dtypes(name, dtypes, out):
    f = getattr(pnp, name)
    if name in UNARY.split():
        for d in dtypes:
            assert f(operand(d, (2,))).dtype == (d if out == "same" else out)
        return
    for a, b in itertools.product(dtypes, repeat=2):
        if (a == "bool") == (b == "bool") and (a in FLOAT) == (b in FLOAT):  # mixed kinds are undefined
            assert f(operand(a, (2,)), operand(b, (1, 2))).dtype == (promoted(a, b) if out == "same" else out)
    for d in dtypes:  # Python scalars of the same kind or a lower one keep the array's dtype
        number: Any = True if d == "bool" else 1
        assert f(operand(d, (2,)), number).dtype == f(number, operand(d, (2,))).dtype == (d if out == "same" else out)
    if "float32" in dtypes:
        assert f(operand("float32", (2,)), 1.5).dtype == ("float32" if out == "same" else out)


def test_reductions_keep_or_widen_as_the_standard_says():
    for d in NUMERIC:
        x = operand(d, (2, 2))
        wide = "float32" if d in FLOAT else "int32" if d in SIGNED else "uint32"
        assert pnp.sum(x).dtype == pnp.prod(x).dtype == wide
        assert pnp.max(x).dtype == pnp.min(x).dtype == d
        assert pnp.sum(x, dtype="float32").dtype == np.float32
        assert pnp.argmax(x).dtype == pnp.argmin(x).dtype == np.int32
    for d in ALL:
        assert pnp.any(operand(d, (2,))).dtype == pnp.all(operand(d, (2,))).dtype == bool


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=60)
@given(shapes, shapes, st.sampled_from(BINARY.split()))
def test_binary_functions_broadcast(a, b, name):
    dtype = "int32" if "bitwise" in name else "float32"
    x, y = operand(dtype, a), operand(dtype, b)
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ValueError, match="do not broadcast"):
            getattr(pnp, name)(x, y)
    else:
        assert getattr(pnp, name)(x, y).shape == want


@settings(max_examples=60)
@given(shapes, st.sampled_from([n for n in UNARY.split() if n not in LEFT_OUT]))
def test_unary_functions_keep_the_shape(shape, name):
    assert getattr(pnp, name)(operand("int32" if "bitwise" in name else "float32", shape)).shape == shape


# ---------------------------------------------------------------------------- special cases
#: name: "x -> result", split at commas; `~` means any value within 4 units in the last place of the number.
SPECIAL_UNARY: Dict[str, str] = {
    "abs": "nan->nan, -0->0, inf->inf, -inf->inf",
    "acos": "nan->nan, 1.5->nan, -1.5->nan, 1->0",
    "acosh": "nan->nan, 0.5->nan, 1->0, inf->inf",
    "asin": "nan->nan, 1.5->nan, -1.5->nan, 0->0, -0->-0",
    "asinh": "nan->nan, 0->0, -0->-0, inf->inf, -inf->-inf",
    "atan": "nan->nan, 0->0, -0->-0, inf->~pi/2, -inf->~-pi/2",
    "atanh": "nan->nan, 1.5->nan, -1.5->nan, -1->-inf, 1->inf, 0->0, -0->-0",
    "ceil": "3->3, -2->-2, inf->inf, -inf->-inf, 0->0, -0->-0, nan->nan, -0.5->-0",
    "cos": "nan->nan, 0->1, -0->1, inf->nan, -inf->nan",
    "cosh": "nan->nan, 0->1, -0->1, inf->inf, -inf->inf",
    "exp": "nan->nan, 0->1, -0->1, inf->inf, -inf->0",
    "expm1": "nan->nan, 0->0, -0->-0, inf->inf, -inf->-1",
    "floor": "3->3, -2->-2, inf->inf, -inf->-inf, 0->0, -0->-0, nan->nan",
    "log": "nan->nan, -1->nan, 0->-inf, -0->-inf, 1->0, inf->inf",
    "log1p": "nan->nan, -2->nan, -1->-inf, -0->-0, 0->0, inf->inf",
    "log2": "nan->nan, -1->nan, 0->-inf, -0->-inf, 1->0, inf->inf",
    "log10": "nan->nan, -1->nan, 0->-inf, -0->-inf, 1->0, inf->inf",
    "round": "3->3, inf->inf, -inf->-inf, 0->0, -0->-0, nan->nan, 0.5->0, 1.5->2, 2.5->2, -0.5->-0, -1.5->-2",
    "sign": "-3->-1, 0->0, -0->0, 2.5->1, nan->nan, inf->1, -inf->-1",
    "sin": "nan->nan, 0->0, -0->-0, inf->nan, -inf->nan",
    "sinh": "nan->nan, 0->0, -0->-0, inf->inf, -inf->-inf",
    "square": "nan->nan, inf->inf, -inf->inf, -0->0",
    "sqrt": "nan->nan, -1->nan, 0->0, -0->-0, inf->inf",
    "tan": "nan->nan, 0->0, -0->-0, inf->nan, -inf->nan",
    "tanh": "nan->nan, 0->0, -0->-0, inf->1, -inf->-1",
    "trunc": "3->3, -2->-2, inf->inf, -inf->-inf, 0->0, -0->-0, nan->nan, -0.5->-0, 2.5->2, -2.5->-2",
    "isfinite": "inf->False, -inf->False, nan->False, 1->True",
    "isinf": "inf->True, -inf->True, nan->False, 1->False",
    "isnan": "nan->True, inf->False, 0->False",
    "signbit": "0->False, -0->True, inf->False, -inf->True, 2->False, -2->True",
    "negative": "nan->nan, 0->-0, -0->0, inf->-inf",
    "reciprocal": "0->inf, -0->-inf, inf->0, -inf->-0, nan->nan"}
#: name: "x1 x2 -> result".
SPECIAL_BINARY: Dict[str, str] = {
    "add": "nan 1->nan, inf -inf->nan, -inf inf->nan, inf inf->inf, inf 1->inf, 1 -inf->-inf, -0 -0->-0, -0 0->0, "
           "2 -2->0",
    "atan2": "nan 1->nan, 1 nan->nan, 1 0->~pi/2, 1 -0->~pi/2, 0 1->0, 0 0->0, 0 -0->~pi, 0 -1->~pi, -0 1->-0, "
             "-0 0->-0, -0 -0->~-pi, -0 -1->~-pi, -1 0->~-pi/2, -1 -0->~-pi/2, 1 inf->0, 1 -inf->~pi, -1 inf->-0, "
             "-1 -inf->~-pi, inf 1->~pi/2, -inf 1->~-pi/2, inf inf->~pi/4, inf -inf->~3*pi/4, -inf inf->~-pi/4, "
             "-inf -inf->~-3*pi/4",
    "copysign": "0 2->0, 0 -2->-0, 3 -0->-3, -3 0->3, -3 inf->3, 3 -inf->-3",
    "divide": "nan 1->nan, inf inf->nan, inf -inf->nan, 0 0->nan, -0 0->nan, 0 1->0, -0 1->-0, 0 -1->-0, 1 0->inf, "
              "1 -0->-inf, -1 0->-inf, -1 -0->inf, inf 2->inf, inf -2->-inf, -inf -2->inf, 2 inf->0, 2 -inf->-0, "
              "-2 inf->-0",
    "floor_divide": "nan 1->nan, inf inf->nan, 0 0->nan, 0 1->0, -0 1->-0, 0 -1->-0, 1 0->inf, 1 -0->-inf, "
                    "-1 0->-inf, 1 inf->0, -1 inf->-1, 1 -inf->-1, -1 -inf->0",
    "hypot": "inf 1->inf, -inf 1->inf, 1 -inf->inf, inf nan->inf, nan -inf->inf, nan 1->nan, 0 -3->3, -0 -0->0",
    "logaddexp": "nan 1->nan, 1 nan->nan, inf 1->inf, 1 inf->inf, -inf -inf->-inf, inf -inf->inf",
    "maximum": "nan 1->nan, 1 nan->nan, inf 1->inf, -inf 1->1",
    "minimum": "nan 1->nan, 1 nan->nan, inf 1->1, -inf 1->-inf",
    "multiply": "nan 1->nan, inf 0->nan, -inf -0->nan, inf -2->-inf, -0 2->-0, -0 -2->0, 0 -2->-0",
    "pow": "2 0->1, nan 0->1, 2 -0->1, nan 1->nan, 2 nan->nan, 2 inf->inf, 2 -inf->0, -2 inf->inf, 1 inf->1, "
           "-1 inf->1, 0.5 inf->0, 0.5 -inf->inf, inf 2->inf, inf -2->0, -inf 3->-inf, -inf 2->inf, -inf -3->-0, "
           "-inf -2->0, 0 2->0, 0 -2->inf, -0 3->-0, -0 2->0, -0 -3->-inf, -0 -2->inf, -2 0.5->nan",
    "remainder": "nan 1->nan, 1 nan->nan, inf 1->nan, 1 0->nan, 1 -0->nan, 0 2->0, -0 2->0, 0 -2->-0, -0 -2->-0, "
                 "1 inf->1, -1 -inf->-1, 5 -3->-1, -5 3->1",
    "subtract": "nan 1->nan, inf inf->nan, -inf -inf->nan, inf -inf->inf, 1 inf->-inf, 0 0->0, -0 0->-0"}
SPECIAL = [(name, *case.strip().split("->")) for table in (SPECIAL_UNARY, SPECIAL_BINARY)
           for name, cases in table.items() for case in cases.split(",")]


def test_the_special_cases_are_many():
    known: Set[str] = set(SPECIAL_UNARY) | set(SPECIAL_BINARY)
    assert len(SPECIAL) > 250 and known <= set(SIGNATURES) | set(LATER.split())


PATHS: Dict[str, Callable[..., Any]] = {"eager": lambda f: f, "jitted": pf.jit}


@pytest.mark.parametrize("name", [*SPECIAL_UNARY, *SPECIAL_BINARY])
@pytest.mark.parametrize("path", PATHS)
def test_special_cases(name, path):
    """All cases of a function as one array, on both paths; the sign of zero counts."""
    rows = [(operands, result) for n, operands, result in SPECIAL if n == name]
    numbers = [[float(word) for word in operands.split()] for operands, _ in rows]
    got = PATHS[path](getattr(pnp, name))(*np.array(numbers, np.float32).T)
    for g, (operands, result) in zip(np.asarray(got), rows):
        want = eval(result.lstrip("~"))
        want = -0.0 if result == "-0" else want
        what = f"{name}({operands}) is {g}, not {result}"
        if isinstance(want, bool) or not result.startswith("~"):
            assert g == want or want != want and g != g, what
            assert want != 0 or isinstance(want, bool) or np.signbit(g) == np.signbit(want), what
        else:
            assert abs(g - want) <= 4 * 2.0 ** -23 * abs(want), what


def test_special_cases_of_reductions():
    empty = np.zeros((0,), np.float32)
    assert pnp.sum(empty) == 0 and pnp.prod(empty) == 1 and np.isnan(pnp.mean(empty).value)
    assert pnp.all(empty) and not pnp.any(empty) and pnp.any([nan]) and pnp.all([nan, inf])
    assert np.isnan(pnp.max([1.0, nan]).value) and np.isnan(pnp.min([nan, 1.0]).value)
    assert np.isnan(pnp.std([1.0], correction=1).value) and np.isnan(pnp.sum([nan, 1.0]).value)
