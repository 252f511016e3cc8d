"""Corner cases of types and literals, each with one answer on every path; test_conventions.py lists them."""
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conventions import f16, f32, i32, inf, nan, pytest_generate_tests as pytest_generate_tests, same

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.tracer import Tracer

TINY = {"int8": 100, "int16": 30000, "int32": 2 ** 31 - 1, "uint8": 255, "uint16": 65535, "uint32": 2 ** 32 - 1}
DTYPES = ["bool", *TINY, "float16", "float32", "float8_143", "float8_152"]


# ---------------------------------------------------------------------------- dtypes
def test_default_types(run):
    same(run(lambda x: x, np.array([1.5, 0.1])), f32(1.5, 0.1))
    same(run(lambda x: x, np.array([1, -(2 ** 31)])), i32(1, -(2 ** 31)))
    same(run(lambda x: x, np.array([2 ** 32 - 1], np.uint64)), np.array([2 ** 32 - 1], np.uint32))
    same(run(lambda x: x, np.array([inf, nan])), f32(inf, nan))
    for made, dtype in ((1.5, "float32"), (3, "int32"), (True, "bool"), ([1.0, 2], "float32"), ([1, 2], "int32")):
        assert pnp.asarray(made).dtype == dtype and run(lambda x, made=made: pnp.asarray(made), f32(1)).dtype == dtype
    for f, dtype in ((lambda: pnp.zeros(2), "float32"), (lambda: pnp.arange(2), "int32"),
                     (lambda: pnp.linspace(0, 1, 3), "float32"), (lambda: pnp.full(2, 3), "int32")):
        assert run(lambda x, f=f: f(), f32(1)).dtype == dtype


def test_narrowing_loses_no_value(run):
    for data, text in ((np.array([1, 2 ** 31]), r"2147483648\)? at index \[(\d, )?1\]"),
                       (np.array([[1.0, 1e39]]), r"1e\+?39"),
                       (np.array([1e-60]), "1e-60"), (np.array([2 ** 32], np.uint64), "4294967296")):
        with pytest.raises(OverflowError, match=text):
            run(lambda x: x, data)
        with pytest.raises(OverflowError, match=text):
            run(lambda x, data=data: x + pnp.sum(data), f32(1))


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(run, name):
    dtype = np.dtype(getattr(pf, name + "_" if name == "bool" else name))
    x = np.array([1, 0, 1], np.float32).astype(dtype)
    got = run(lambda x: x[::-1], x)
    assert got.dtype == dtype and got.tobytes() == x.tobytes()
    assert pf.spec(3, dtype).dtype == dtype


def test_float8_formats_are_those_of_ml_dtypes():
    assert (pf.float8_143, pf.float8_152) == (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)


def test_float64_on_request(run, request):
    x = np.array([0.1, 1e300])
    if request.node.callspec.id in ("lowered", "xla"):
        for f, arg in ((lambda x: x * 0.3, x), (lambda x: pnp.astype(x, "float64") / 3, f32(1))):
            with pf.enable_float64(), pytest.raises(pf.errors.LoweringError, match="float64 is for the host"):
                run(f, arg)
        return
    with pf.enable_float64():
        same(run(lambda x: x * 0.3, x), x * 0.3)
        same(run(lambda x: x + pnp.astype(x, "float32") * 0, x[:1]), x[:1])
        same(run(lambda x: pnp.astype(x, "float64") / 3, f32(1)), np.array([1 / 3]))
        same(run(lambda x: x + 1, np.array([1], np.int64)), i32(2))
        same(run(lambda x: x * pnp.zeros(1), f32(1)), f32(0))
    same(run(lambda x: pnp.astype(x, "float64") / 3, f32(1)), f32(1 / 3))
    with pytest.raises(OverflowError, match="1e\\+300"):
        run(lambda x: x, x)


def test_refused_dtypes(run):
    for data, reason in ((np.array([1j]), "complex64|complex numbers have no form on the IPU"),
                         (np.array([1], ml_dtypes.bfloat16), "bfloat16 has no form on the IPU: use float16 or")):
        with pytest.raises(TypeError, match=reason):
            run(lambda x: x, data)
        with pytest.raises(TypeError, match=reason):
            run(lambda x, data=data: pnp.astype(x, data.dtype), f32(1))
        with pytest.raises(TypeError, match=reason):
            pf.spec(1, data.dtype)


# ---------------------------------------------------------------------------- literals
def test_python_scalars_are_weak(run):
    same(run(lambda x: x * 2.5, f16(2)), f16(5))
    same(run(lambda x: 1 + x, f16(2)), f16(3))
    same(run(lambda x: x + 1, np.array([1], np.int8)), np.array([2], np.int8))
    same(run(lambda x: x + 0.5, np.array([True])), f32(1.5))
    same(run(lambda x: x + 1, np.array([True])), i32(2))
    same(run(lambda x: pnp.where(x > 0, x, 0.0), f16(-1)), f16(0))
    same(run(lambda x: pnp.maximum(x, 1), f16(0.5)), f16(1))
    same(run(lambda x: x.at[0].set(2), f16(0.5)), f16(2))


def test_int_array_with_python_float_is_float32(run):
    x = i32(3, -3)
    same(run(lambda x: x * 0.5, x), f32(1.5, -1.5))
    same(run(lambda x: 0.5 + x, x), f32(3.5, -2.5))
    same(run(lambda x: x ** 0.5, i32(4, 9)), f32(2, 3))
    same(run(lambda x: pnp.maximum(x, 0.5), x), f32(3, 0.5))
    same(run(lambda x: x > 2.5, x), np.array([True, False]))
    same(run(lambda x: pnp.where(x > 0, x, 0.5), x), f32(3, 0.5))
    for dtype in ("int8", "int16", "uint8", "uint32"):
        same(run(lambda x: x * 0.5, np.array([3], dtype)), f32(1.5))


@pytest.mark.parametrize("dtype, n", [("int8", 300), ("int8", -129), ("uint8", -1), ("int32", 2 ** 31),
                                      ("uint32", 2 ** 32), ("float16", 10 ** 5)])
def test_python_integer_that_does_not_fit(run, dtype, n):
    for op in (operator.add, operator.mul, operator.lt, lambda x, n: n - x, pnp.maximum):
        with pytest.raises(OverflowError, match=f"Python integer {n} does not fit {dtype}"):
            run(lambda x, op=op: op(x, n), np.ones(2, dtype))


@pytest.mark.parametrize("dtype", TINY)
def test_python_integer_that_just_fits(run, dtype):
    n = TINY[dtype]
    same(run(lambda x: pnp.maximum(x, n), np.ones(2, dtype)), np.full(2, n, dtype))


def test_numpy_scalars_are_strong(run):
    same(run(lambda x: x * np.float32(2), f16(2)), f32(4))
    same(run(lambda x: x + np.array(1, np.int32), np.array([1], np.int8)), i32(2))
    same(run(lambda x, s: x * s, f16(2), np.float32(2)), f32(4))
    same(run(lambda x: x + pnp.asarray(np.float16(1)), np.array([1], np.int8)), f16(2))


# ---------------------------------------------------------------------------- operators
def test_equality_is_elementwise(run):
    same(run(lambda x: x == x, f32(1, nan)), np.array([True, False]))
    same(run(lambda x: x != 1, f32(1, 2)), np.array([False, True]))
    same(run(lambda x: x == np.float32(2), np.float32(2)), np.array(True))

    def f(x: Any) -> Any:
        y = x == 1.0
        assert isinstance(y, Tracer) and y.shape == (2,) and y.dtype == bool
        with pytest.raises(TypeError, match="is not known while f is traced"):
            bool(y[0])
        return y
    pf.make_jaxpr(f)(f32(1, 2))


def test_integer_division(run):
    x, y = i32(7, -7, 7, -7, 3), i32(2, 2, -2, -2, 0)
    same(run(lambda x, y: x / y, x[:4], y[:4]), f32(3.5, -3.5, -3.5, 3.5))
    same(run(lambda x, y: x // y, x, y), i32(3, -4, -4, 3, 0))
    same(run(lambda x, y: x % y, x, y), i32(1, 1, -1, -1, 0))
    same(run(lambda x: x // 2, f32(7, -7, inf)), f32(3, -4, nan))
    same(run(lambda x: x % 2.5, f32(7, -7)), f32(2, 0.5))
    same(run(lambda x: -7 // x, np.array([2], np.int8)), np.array([-4], np.int8))
    same(run(lambda x: x / 2, np.array([7], np.uint8)), f32(3.5))
    for dtype in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):
        x = np.array([0, 1, 5, 7, 100, 101], dtype)
        x, by = (np.concatenate([x, -x]), (1, 3, 7, -3)) if dtype[0] == "i" else (x, (1, 3, 7))
        got = run(lambda x, by=by: pnp.stack([f(x, n) for n in by for f in (operator.floordiv, operator.mod)]), x)
        same(got, np.stack([f(x, np.array(n, dtype)) for n in by for f in (np.floor_divide, np.remainder)]))


def test_mixed_dtypes(run):
    same(run(lambda x, y: x + y, f16(1.5), f32(2.25)), f32(3.75))
    same(run(lambda x, y: x * y, f16(1.5), i32(3)), f16(4.5))
    same(run(lambda x, y: x + y, np.array([200], np.uint8), np.array([-1], np.int8)), np.array([199], np.int16))
    same(run(lambda x, y: pnp.concat([x, y]), np.array([1], np.int8), f16(2)), f16(1, 2))
    same(run(lambda x, y: x @ y, f16(1, 2), f32(2, 4)), np.float32(10))
    same(run(lambda x, y: pnp.where(x > 0, x, y), f16(-1), i32(7)), f16(7))
    same(run(lambda x, y: x < y, f16(2049), i32(2049)), np.array([False]))  # both are 2048 as float16
