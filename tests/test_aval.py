"""Avals: what they hold, how dtypes promote and shapes broadcast, how data is narrowed."""
import copy
import itertools
import pickle
import threading

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import popfn as pf
from popfn.trace.aval import (
    BY_NAME,
    SHORT,
    as_numpy,
    aval_of_data,
    broadcast_shapes,
    canonical_dtype,
    promote_types,
    scalar_array,
)
from popfn.trace.errors import DtypeError, NarrowingError, ShapeError

DTYPES = list(SHORT)
PLAIN = [d for d in DTYPES if not SHORT[d].startswith("f8")]
FLOAT8 = [d for d in DTYPES if SHORT[d].startswith("f8")]

dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
#: A dtype with a weak flag that a value can have: weak types come from Python numbers.
types = st.one_of(st.tuples(st.sampled_from(PLAIN), st.just(False)),
                  st.sampled_from([(np.dtype("int32"), True), (np.dtype("float32"), True)]))


def fault(e):
    """The first line of an error; the line of the user's file may follow, which test_errors.py looks at."""
    return str(e.value).split("\n")[0]


# ---------------------------------------------------------------------------- Aval
def test_fields():
    a = pf.Aval((4, 2), "float32")
    assert (a.shape, a.dtype, a.weak, a.ndim, a.size, a.is_float) == ((4, 2), np.float32, False, 2, 8, True)
    assert a.strong is a
    weak = pf.Aval((), int, weak=True)
    assert (weak.dtype, weak.weak, weak.size, weak.is_float) == (np.int32, True, 1, False)
    assert weak.strong is pf.Aval((), "int32")
    assert pf.Aval((3, 0, 2)).size == 0


@pytest.mark.parametrize("aval, text", [
    (pf.Aval((4, 2), "float32"), "f32[4,2]"),
    (pf.Aval(()), "f32[]"),
    (pf.Aval((0,), bool), "bool[0]"),
    (pf.Aval((), int, True), "~i32[]"),
    (pf.Aval((2,), pf.float8_143), "f8_143[2]"),
    (pf.Aval((2,), pf.float8_152), "f8_152[2]"),
    (pf.spec(64, "uint16"), "u16[64]"),
])
def test_printed(aval, text):
    assert repr(aval) == str(aval) == text


@given(shapes, dtypes, st.booleans())
def test_equal_avals_are_one_object(shape, dtype, weak):
    a = pf.Aval(shape, dtype, weak)
    assert pf.Aval(list(shape), SHORT[dtype], weak) is a
    assert pf.Aval((np.int64(n) for n in shape), dtype.type, weak) is a
    assert all(type(n) is int for n in a.shape)
    for other in (copy.copy(a), copy.deepcopy(a), *(pickle.loads(pickle.dumps(a, p)) for p in range(2, 6))):
        assert other is a
    assert len({a, pf.Aval(shape, dtype, weak), pf.Aval((*shape, 1), dtype, weak)}) == 2


def test_interned_by_threads_at_once():
    """Two threads that make one new aval get one object."""
    for n in range(100):
        start, made = threading.Barrier(4), []

        def make(shape, start=start, made=made):
            start.wait()
            made.append(pf.Aval(shape, "int8"))
        threads = [threading.Thread(target=make, args=((7919, n),)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(made) == 4 and len(set(map(id, made))) == 1


def test_immutable():
    with pytest.raises(AttributeError, match="^an Aval cannot be changed; shape is fixed$"):
        pf.Aval((3,)).shape = (4,)
    with pytest.raises(AttributeError, match="^an Aval cannot be changed; new is fixed$"):
        pf.Aval((3,)).new = 1


@pytest.mark.parametrize("shape, text", [
    ((-1,), "a shape holds sizes of 0 or more, got (-1,)"),
    ((2, 3.0), "a shape holds sizes of 0 or more, got (2, 3.0)"),
    ((1.0,), "a shape holds sizes of 0 or more, got (1.0,)"),     # equal to (1,), and hashed like it
    ((True,), "a shape holds sizes of 0 or more, got (True,)"),
    ("ab", "a shape holds sizes of 0 or more, got ('a', 'b')"),
    ((None,), "a shape holds sizes of 0 or more, got (None,)"),
    (3.5, "a shape is a tuple of sizes, got 3.5"),
    (None, "a shape is a tuple of sizes, got None"),
])
def test_bad_shapes(shape, text):
    pf.Aval((1,)), pf.Aval((2, 3))  # must not be taken for what they are equal to
    for make in (pf.Aval, pf.spec):
        with pytest.raises(ShapeError) as e:
            make(shape)
        assert fault(e) == text


def test_spec():
    assert pf.spec(3) is pf.spec((3,)) is pf.spec(np.int64(3)) is pf.spec([3]) is pf.Aval((3,), "f32")
    assert pf.spec(np.array([2, 3]), int) is pf.Aval((2, 3), "int32")
    assert pf.spec(()) is pf.Aval(())


# ---------------------------------------------------------------------------- dtypes
@pytest.mark.parametrize("written, name", [
    (float, "float32"), (int, "int32"), (bool, "bool"), (np.float64, "float32"), (np.int64, "int32"),
    ("uint64", "uint32"), ("float64", "float32"), ("f16", "float16"), ("half", "float16"), (">f4", "float32"),
    (">i8", "int32"), ("i8", "int8"), ("u8", "uint8"), (np.dtype("i8"), "int32"), ("longlong", "int32"),
    ("float8_143", "float8_e4m3fnuz"), (ml_dtypes.float8_e5m2fnuz, "float8_e5m2fnuz"),
])
def test_canonical_dtype(written, name):
    d = canonical_dtype(written)
    assert d.name == name and d.isnative and d in SHORT


def test_popxl_dtypes_are_known_by_their_names():
    import popfn.host as popxl
    for name in ("bool", "int8", "uint16", "int32", "float16", "float32", "float8_143", "float8_152"):
        assert canonical_dtype(getattr(popxl, name)) is BY_NAME[name]


@pytest.mark.parametrize("written, text", [
    (complex, "dtype complex128 is not supported: complex numbers have no form on the IPU: "
              "carry real and imaginary part"),
    (ml_dtypes.bfloat16, "dtype bfloat16 is not supported: bfloat16 has no form on the IPU: use float16 or float32"),
    ("datetime64[s]", "dtype datetime64[s] is not supported: convert the data to numbers first"),
    (object, "dtype object is not supported: convert the data to numbers first"),
    ("f33", "'f33' is not a dtype popfn knows; it has bool, i8, i16, i32, u8, u16, u32, f16, f32, "),
    (3, "3 is not a dtype popfn knows; it has bool, i8, "),
])
def test_unsupported_dtypes(written, text):
    for use in (canonical_dtype, lambda d: pf.Aval((), d), lambda d: pf.Array(1, d), pf.Array([1.0]).astype):
        with pytest.raises(DtypeError) as e:
            use(written)
        assert fault(e).startswith(text)
    assert isinstance(e.value, TypeError)


# ---------------------------------------------------------------------------- promotion
@given(types, types)
def test_promotion_commutes(a, b):
    assert promote_types(*a, *b) == promote_types(*b, *a)


@given(types)
def test_promotion_with_itself_changes_nothing(a):
    assert promote_types(*a, *a) == a


@given(types, types)
def test_promotion_is_an_upper_bound(a, b):
    """What an operation gives, it gives again with either operand."""
    top = promote_types(*a, *b)
    assert promote_types(*top, *a)[0] == promote_types(*top, *b)[0] == top[0]
    assert not top[1] or a[1] or b[1]


@given(types, types)
def test_a_weak_type_gives_way_within_its_kind(a, b):
    kind = {"b": 0, "i": 1, "u": 1, "f": 2}
    if a[1] and not b[1] and kind[a[0].kind] <= kind[b[0].kind]:
        assert promote_types(*a, *b) == b


def test_promotion_is_that_of_jax():
    """All pairs of dtypes and Python numbers, in results' dtypes and weak flags; float64 is in test_float64.py."""
    def sides(d):
        return (pf.Array(np.zeros(2, d)), jnp.zeros(2, d))
    values = [sides(d) for d in PLAIN if d != "float64"] + [(1, 1), (1.0, 1.0), (True, True)]
    values += [(pf.Array(1), jnp.asarray(1)), (pf.Array(1.0), jnp.asarray(1.0))]  # weak arrays
    for (a, ja), (b, jb) in itertools.product(values, values):
        if not isinstance(a, pf.Array) and not isinstance(b, pf.Array):
            continue
        ours, theirs = pf.numpy.maximum(a, b), jnp.maximum(ja, jb)
        assert (ours.dtype, ours.aval.weak) == (theirs.dtype, theirs.weak_type), (a, b)


@pytest.mark.parametrize("other", [d for d in PLAIN if d.kind == "f"] + FLOAT8)
@pytest.mark.parametrize("float8", FLOAT8)
def test_float8_meets_no_other_float(float8, other):
    if other == float8:
        assert promote_types(float8, False, other, False) == (float8, False)
        return
    with pytest.raises(DtypeError) as e:
        promote_types(float8, False, other, False)
    assert fault(e) == (f"{SHORT[float8]} and {SHORT[other]} have no common dtype: "
                            "convert one of them with astype")


@given(st.lists(shapes, min_size=1, max_size=4))
def test_broadcasting_is_numpys(many):
    try:
        want = np.broadcast_shapes(*many)
    except ValueError:
        with pytest.raises(ShapeError) as e:
            broadcast_shapes(*many)
        assert fault(e) == "shapes " + " and ".join(map(str, many)) + " do not broadcast"
    else:
        assert broadcast_shapes(*many) == want


# ---------------------------------------------------------------------------- data
@pytest.mark.parametrize("data, aval", [
    (1, "~i32[]"), (1.5, "~f32[]"), (True, "bool[]"), (np.float32(1), "f32[]"), (np.float64(1), "f32[]"),
    (np.bool_(True), "bool[]"), (np.array(1), "i32[]"), ([1, 2], "i32[2]"), ([1, 2.5], "f32[2]"), ([], "f32[0]"),
    ([True, False], "bool[2]"), (np.zeros((2, 0)), "f32[2,0]"), (np.float16(2), "f16[]"), (range(3), "i32[3]"),
    (np.ones(3, ">f4"), "f32[3]"), (np.ones(3, ">i8"), "i32[3]"), (np.uint64(7), "u32[]"), ([[1], [2]], "i32[2,1]"),
])
def test_aval_of_data(data, aval):
    assert str(aval_of_data(data)) == aval
    assert str(pf.Array(data).aval) == aval


INT32, UINT32, FLOAT32 = np.iinfo(np.int32), np.iinfo(np.uint32), np.finfo(np.float32)


@given(st.lists(st.integers(-2**63, 2**63 - 1), min_size=1, max_size=4))
def test_64_bit_integers_survive_or_are_named(values):
    bad = [(i, v) for i, v in enumerate(values) if not INT32.min <= v <= INT32.max]
    data = np.array(values, np.int64)
    if not bad:
        assert as_numpy(data).dtype == np.int32 and as_numpy(data).tolist() == values
        return
    with pytest.raises(NarrowingError) as e:
        as_numpy(data)
    i, v = bad[0]
    assert fault(e) == (f"int64 data is narrowed to int32, but {v} at index [{i}] does not survive; "
                            "use x.astype(np.int32) to convert it all the same")
    assert isinstance(e.value, OverflowError)


@given(st.lists(st.floats(width=64), min_size=1, max_size=4))
def test_64_bit_floats_keep_their_size_or_are_named(values):
    data = np.array(values)
    with np.errstate(all="ignore"):
        want = data.astype(np.float32)
    bad = [v for v, w in zip(values, want) if np.isfinite(v) and (np.isinf(w) or w == 0 != v)]
    if not bad:
        np.testing.assert_array_equal(as_numpy(data), want)
        assert (np.signbit(as_numpy(data)) == np.signbit(data)).all()
        return
    with pytest.raises(NarrowingError) as e:
        as_numpy(data)
    assert fault(e).startswith(f"float64 data is narrowed to float32, but {bad[0]!r} at index [")


@pytest.mark.parametrize("data, text", [
    (np.array([[1, 2], [3, 2**40]]),
     "int64 data is narrowed to int32, but 1099511627776 at index [1, 1] does not survive; "
     "use x.astype(np.int32) to convert it all the same"),
    (np.uint64(2**32), "uint64 data is narrowed to uint32, but 4294967296 does not survive; "
                       "use x.astype(np.uint32) to convert it all the same"),
    (np.array([1e300], ">f8"), "float64 data is narrowed to float32, but 1e+300 at index [0] does not survive; "
                               "use x.astype(np.float32) to convert it all the same, or "
                               "pf.enable_float64() to keep it on the host"),
    (1e-300, "float64 data is narrowed to float32, but 1e-300 does not survive; "
             "use x.astype(np.float32) to convert it all the same"),
])
def test_narrowing_errors(data, text):
    with pytest.raises(NarrowingError) as e:
        pf.Array(data)
    assert fault(e) == text


@pytest.mark.parametrize("data, text", [
    ("relu", "a value of type str is not an array or a number: 'relu'"),
    (b"x", "a value of type bytes is not an array or a number: b'x'"),
    (None, "a value of type NoneType is not an array or a number: None"),
    ([1, None], "a value of type list holds what is no number: [1, None]"),
    (["a", "b"], "a value of type list holds what is no number: ['a', 'b']"),
    (np.array(["a"]), "a value of type ndarray holds what is no number: array(['a'], dtype='<U1')"),
    ([1j], "dtype complex128 is not supported: complex numbers have no form on the IPU: carry real and imaginary part"),
    (np.array(["2020"], "M8[D]"), "dtype datetime64[D] is not supported: convert the data to numbers first"),
])
def test_what_is_no_array(data, text):
    with pytest.raises(DtypeError) as e:
        pf.Array(data)
    assert fault(e) == text


@given(st.integers(-2**40, 2**40), st.sampled_from([d for d in PLAIN if d.kind in "iu"]))
def test_python_integers_fit_or_raise(value, dtype):
    info = np.iinfo(dtype)
    if info.min <= value <= info.max:
        assert scalar_array(value, dtype).dtype == dtype and int(scalar_array(value, dtype)) == value
        return
    with pytest.raises(NarrowingError) as e:
        scalar_array(value, dtype)
    assert fault(e) == f"Python integer {value} does not fit {dtype.name} ({info.min} to {info.max})"


@pytest.mark.parametrize("value, dtype, text", [
    (300, "int8", "Python integer 300 does not fit int8 (-128 to 127)"),
    (-1, "uint8", "Python integer -1 does not fit uint8 (0 to 255)"),
    (3_000_000_000, "int32", "Python integer 3000000000 does not fit int32 (-2147483648 to 2147483647)"),
    (70000, "float16", "Python integer 70000 does not fit float16"),
    (10**40, "float32", f"Python integer {10**40} does not fit float32"),
])
def test_python_integers_next_to_an_array(value, dtype, text):
    x = pf.Array(np.ones(2, dtype))
    for f in (lambda x: x + value, lambda x: value - x, lambda x: x == value, lambda x: pf.numpy.where(True, x, value)):
        for call in (lambda f: f(x), lambda f: pf.make_jaxpr(f)(x)):
            with pytest.raises(OverflowError) as e:
                call(f)
            assert fault(e).startswith(text)


def test_python_floats_next_to_an_array():
    half = pf.Array(np.ones(2, np.float16))
    assert (half * 1e6).tolist() == [np.inf, np.inf] and (half * 1e6).dtype == np.float16
    assert (half * float("nan")).dtype == np.float16
    assert (pf.Array([1, 2]) * 1.5).tolist() == [1.5, 3.0]
    assert (pf.Array(np.array([200], np.uint8)) + 100).tolist() == [44]  # integers wrap, as in NumPy


@pytest.mark.parametrize("dtype", FLOAT8)
def test_structured_float8_of_popxl(dtype):
    """PopXL's NumPy form of float8 is a structure of one byte."""
    values = np.array([0.5, -2.0, 0.0]).astype(dtype)
    structured = values.view(np.uint8).view([(SHORT[dtype].replace("f8", "float8"), "u1")])
    a = pf.Array(structured)
    assert a.dtype == dtype and a.astype("f32").tolist() == [0.5, -2.0, 0.0]
