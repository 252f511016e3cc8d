"""The corner cases that have one answer each, on every path: eager, traced, jitted, lowered, forwards, backwards."""
import operator
import re
from typing import Any, Callable, Dict

import ml_dtypes
import numpy as np
import pytest
from programs import lowered

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.tracer import Tracer
from popfn.transforms.simplify import simplify

inf, nan = np.inf, np.nan


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def f16(*values: Any) -> np.ndarray:
    return np.array(values, np.float16)


# ---------------------------------------------------------------------------- the paths
def traced(f: Callable[..., Any], *args: Any) -> Any:
    jaxpr = pf.make_jaxpr(f)(*args)
    return jaxpr.eval(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))[0]


def simplified(f: Callable[..., Any], *args: Any) -> Any:
    jaxpr = pf.make_jaxpr(f)(*args)
    return simplify(jaxpr).eval(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))[0]


def as_program(f: Callable[..., Any], *args: Any) -> Any:
    jaxpr = pf.make_jaxpr(f)(*args)
    return lowered(jaxpr)(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))[0]


VALUE_PATHS: Dict[str, Callable[..., Any]] = dict(
    eager=lambda f, *args: f(*map(pf.Array, args)), traced=traced, simplified=simplified,
    jitted=lambda f, *args: pf.jit(f)(*args),
    nested=lambda f, *args: traced(lambda *xs: pf.jit(f)(*xs), *args), lowered=as_program)


def reverse(f: Callable[..., Any], x: np.ndarray) -> Any:
    return pf.grad(f)(x)


def forward(f: Callable[..., Any], x: Any) -> Any:
    units = np.eye(x.size, dtype=x.dtype)
    return pnp.reshape(pnp.stack([pf.jvp(f, (x,), (e.reshape(x.shape),))[1] for e in units]), x.shape)


def under(path: Callable[..., Any], derivative: Callable[..., Any]) -> Callable[..., Any]:
    return lambda f, x: path(lambda x: derivative(f, x), x)


GRADIENT_PATHS: Dict[str, Callable[..., Any]] = dict(
    reverse=reverse, forward=forward, reverse_of_jitted=lambda f, x: reverse(pf.jit(f), x),
    forward_of_jitted=lambda f, x: forward(pf.jit(f), x),
    **{f"{name}_{d.__name__}": under(VALUE_PATHS[name], d) for name in ("traced", "jitted", "lowered")
       for d in (reverse, forward)})


@pytest.fixture(params=VALUE_PATHS)
def run(request):
    """The value of a function on a path, as a NumPy array."""
    return lambda f, *args: np.asarray(VALUE_PATHS[request.param](f, *args))


@pytest.fixture(params=GRADIENT_PATHS)
def gradient(request):
    """The gradient of a scalar function of one array on a path, as a NumPy array."""
    return lambda f, x: np.asarray(GRADIENT_PATHS[request.param](f, x))


def same(got: Any, want: Any) -> None:
    """Equal values and signs of zero, and the dtype if `want` has one."""
    got = np.asarray(got)
    np.testing.assert_array_equal(got, want)
    if isinstance(want, np.ndarray):
        assert got.dtype == want.dtype
        if want.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


# ---------------------------------------------------------------------------- types and literals
def test_default_types_and_narrowing(run):
    same(run(lambda x: x, np.array([1.5, 0.1])), f32(1.5, 0.1))
    same(run(lambda x: x, np.array([1, -(2 ** 31)])), np.array([1, -(2 ** 31)], np.int32))
    same(run(lambda x: x, np.array([2 ** 32 - 1], np.uint64)), np.array([2 ** 32 - 1], np.uint32))
    for data, text in ((np.array([1, 2 ** 31]), r"2147483648\)? at index \[1\]"), (np.array([[1.0, 1e39]]), r"1e\+?39"),
                       (np.array([1e-60]), "1e-60"), (np.array([2 ** 32], np.uint64), "4294967296")):
        with pytest.raises(OverflowError, match=text):
            run(lambda x: x, data)
        with pytest.raises(OverflowError, match=text):
            run(lambda x, data=data: x + pnp.sum(data), f32(1))
    same(run(lambda x: x, np.array([inf, nan])), f32(inf, nan))


@pytest.mark.parametrize("name", ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32",
                                  "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_dtypes(run, name):
    dtype = np.dtype(getattr(ml_dtypes, name) if "float8" in name else name)
    x = np.array([1, 0, 1], np.float32).astype(dtype)
    got = run(lambda x: x[::-1], x)
    assert got.dtype == dtype and got.tobytes() == x.tobytes()
    assert pf.spec(3, name if "float8" not in name else dtype).dtype == dtype


def test_refused_dtypes(run):
    for data, reason in ((np.array([1j]), "complex64|complex numbers have no form on the IPU"),
                         (np.array([1], ml_dtypes.bfloat16), "bfloat16 has no form on the IPU: use float16 or")):
        with pytest.raises(TypeError, match=reason):
            run(lambda x: x, data)


def test_python_scalars_are_weak(run):
    same(run(lambda x: x * 2.5, f16(2)), f16(5))
    same(run(lambda x: 1 + x, f16(2)), f16(3))
    same(run(lambda x: x + 1, np.array([1], np.int8)), np.array([2], np.int8))
    same(run(lambda x: x * 0.5, np.array([3], np.int32)), f32(1.5))
    same(run(lambda x: x + 0.5, np.array([True])), f32(1.5))
    same(run(lambda x: x + 1, np.array([True])), np.array([2], np.int32))
    same(run(lambda x: pnp.where(x > 0, x, 0.0), f16(-1)), f16(0))


def test_python_integers_that_do_not_fit(run):
    for dtype, n in (("int8", 300), ("int8", -129), ("uint8", -1), ("int32", 2 ** 31), ("float16", 10 ** 5)):
        for op in (operator.add, operator.mul, operator.lt):
            with pytest.raises(OverflowError, match=f"Python integer {n} does not fit {dtype}"):
                run(lambda x, op=op, n=n: op(x, n), np.ones(2, dtype))


def test_numpy_scalars_are_strong(run):
    same(run(lambda x: x * np.float32(2), f16(2)), f32(4))
    same(run(lambda x: x + np.array(1, np.int32), np.array([1], np.int8)), np.array([2], np.int32))
    same(run(lambda x, s: x * s, f16(2), np.float32(2)), f32(4))


def test_equality_of_traced_values_is_elementwise(run):
    same(run(lambda x: x == x, f32(1, nan)), np.array([True, False]))
    same(run(lambda x: x != 1, f32(1, 2)), np.array([False, True]))

    def f(x: Any) -> Any:
        y = x == 1.0
        assert isinstance(y, Tracer) and y.shape == (2,) and y.dtype == bool
        with pytest.raises(TypeError, match="is not known while f is traced"):
            bool(y[0])
        return y
    pf.make_jaxpr(f)(f32(1, 2))


def test_integer_division(run):
    x, y = np.array([7, -7, 7, -7, 3], np.int32), np.array([2, 2, -2, -2, 0], np.int32)
    same(run(lambda x, y: x / y, x[:4], y[:4]), f32(3.5, -3.5, -3.5, 3.5))
    same(run(lambda x, y: x // y, x, y), np.array([3, -4, -4, 3, 0], np.int32))
    same(run(lambda x, y: x % y, x, y), np.array([1, 1, -1, -1, 0], np.int32))
    same(run(lambda x: x // 2, f32(7, -7, inf)), f32(3, -4, nan))
    same(run(lambda x: x % 2.5, f32(7, -7)), f32(2, 0.5))
    same(run(lambda x: -7 // x, np.array([2], np.int8)), np.array([-4], np.int8))


def test_mixed_dtypes(run):
    same(run(lambda x, y: x + y, f16(1.5), f32(2.25)), f32(3.75))
    same(run(lambda x, y: x * y, f16(1.5), np.array([3], np.int32)), f16(4.5))
    same(run(lambda x, y: x + y, np.array([200], np.uint8), np.array([-1], np.int8)), np.array([199], np.int16))
    same(run(lambda x, y: pnp.concat([x, y]), np.array([1], np.int8), f16(2)), f16(1, 2))
    same(run(lambda x, y: x @ y, f16(1, 2), f32(2, 4)), np.float32(10))


# ---------------------------------------------------------------------------- values
def test_float16_accumulates_in_float32(run):
    big = np.full(4, 60000, np.float16)
    same(run(pnp.mean, big), np.float16(60000))
    same(run(lambda x: x.sum() / 4, f16(60000, 60000, -60000, -59008)), np.float16(248))
    same(run(pnp.sum, f16(2048, *[1] * 8)), np.float16(2056))
    same(run(pnp.std, f16(-300, 300)), np.float16(300))
    same(run(pnp.var, f16(-200, 200)), np.float16(40000))
    same(run(lambda x: pnp.mean(x, axis=0), np.full((70000, 1), 0.5, np.float16)), f16(0.5))
    same(run(pnp.prod, f16(300, 300, 0.001)), np.float16(np.float32(np.float16(0.001)) * 90000))
    same(run(lambda x: x @ x, f16(200, 1, *[0.01] * 2)), np.float16(40001))
    same(run(lambda x: pf.nn.logsumexp(x), np.full(4096, 8, np.float16)), np.float16(8 + np.log(4096)))
    same(run(lambda x: pf.nn.log_softmax(x)[0], np.zeros(4096, np.float16)), np.float16(-np.log(4096)))
    same(run(lambda x: pf.nn.softmax(x)[0], np.zeros(4096, np.float16)), np.float16(1 / 4096))


def test_logsumexp_and_softmax_of_nothing_but_minus_infinity(run):
    x = f32(-inf, -inf)
    same(run(pf.nn.logsumexp, x), np.float32(-inf))
    same(run(pf.nn.softmax, x), f32(nan, nan))
    same(run(lambda x: pf.nn.softmax(x), f32(-inf, 0)), f32(0, 1))


def test_no_identity_changes_a_value(run):
    x = f32(nan, inf, -inf, -0.0, 0.0, 2.0)
    same(run(lambda x: x * 0, x), f32(nan, nan, nan, -0.0, 0.0, 0.0))
    same(run(lambda x: x + 0, x), f32(nan, inf, -inf, 0.0, 0.0, 2.0))
    same(run(lambda x: x - x, x), f32(nan, nan, nan, 0.0, 0.0, 0.0))
    same(run(lambda x: pnp.stack([x * 0.0, x * -0.0])[:, 5], x), f32(0.0, -0.0))
    same(run(lambda x: x * 1, x), x)
    same(run(lambda x: pnp.negative(-x), x), x)
    same(run(lambda x: 0 - x, x), f32(nan, -inf, inf, 0.0, 0.0, -2.0))
    same(run(lambda x: pnp.broadcast_to(x[3], (2,)), x), f32(-0.0, -0.0))


def test_nan_wins(run):
    x = f32(1, nan, 3)
    for f in (pnp.max, pnp.min, pnp.sum, pnp.mean, lambda x: pnp.max(x[::-1]), lambda x: pnp.maximum(x, 2)[1],
              lambda x: pnp.minimum(2, x)[1], lambda x: pnp.clip(x, 0, 1)[1], lambda x: pf.nn.relu(x)[1]):
        assert np.isnan(run(f, x))
    np.testing.assert_array_equal(run(pnp.sign, f32(nan, -0.0, -2)), f32(nan, 0, -1))


def test_argmax_ties(run):
    same(run(pnp.argmax, f32(1, 3, 3)), np.int32(1))
    same(run(pnp.argmin, f32(1, 0, 0)), np.int32(1))
    same(run(lambda x: pnp.argmax(x, axis=1), f32([0.0, -0.0, 0.0], [-inf, -inf, -inf])), np.array([0, 0], np.int32))
    same(run(pnp.argmax, f32(1, nan, nan, 5)), np.int32(1))
    same(run(pnp.argmin, f32(1, nan, nan, -5)), np.int32(1))
    same(run(pnp.argmin, np.array([3, -128, -128], np.int8)), np.int32(1))
    same(run(pnp.argmin, np.array([3, -(2 ** 31), 2 ** 31 - 1], np.int32)), np.int32(1))
    same(run(pnp.argmax, np.array([0, 255, 255], np.uint8)), np.int32(1))


def test_zero_sized_arrays(run):
    x = np.zeros((0, 3), np.float32)
    same(run(pnp.sum, x), np.float32(0))
    same(run(lambda x: pnp.sum(x, axis=0), x), f32(0, 0, 0))
    same(run(pnp.prod, x), np.float32(1))
    same(run(lambda x: pnp.sum(x * 2, axis=1), x), np.zeros(0, np.float32))
    same(run(lambda x: x.T @ x, x), np.zeros((3, 3), np.float32))
    same(run(lambda x: pnp.concat([x, x + 1, np.ones((1, 3), np.float32)]), x), f32([1, 1, 1]))
    same(run(lambda x: pnp.pad(x, 1), x), np.zeros((2, 5), np.float32))
    same(run(lambda x: pnp.all(x), x), np.array(True))
    assert np.isnan(run(pnp.mean, x))
    for f in (pnp.max, pnp.min, lambda x: pnp.argmax(x, axis=0)):
        with pytest.raises(ValueError, match="of no elements"):
            run(f, x)


def test_lowered_programs_contain_no_zero_sized_tensor():
    def f(x: Any, y: Any) -> Any:
        return pnp.concat([x, y]), x * 2, pnp.sum(x), y[:0]
    program = pf.lower(f, pf.spec((0, 2)), pf.spec((1, 2)))
    shapes = re.findall(r"(?:stream|init)\((\(.*?\))", program.as_text())
    assert shapes and not any(re.search(r"\b0\b", shape) for shape in shapes)
    with pf.Session(program) as session:
        both, twice, total, none = session.run(np.zeros((0, 2), np.float32), f32([1, 2]))
    same(both, f32([1, 2]))
    same(twice, np.zeros((0, 2), np.float32))
    same(total, np.float32(0))
    same(none, np.zeros((0, 2), np.float32))


def test_static_indices(run):
    x = f32(1, 2, 3)
    same(run(lambda x: x[-1], x), np.float32(3))
    same(run(lambda x: x[-3], x), np.float32(1))
    same(run(lambda x: x[np.array([-1, 0])], x), f32(3, 1))
    for key in (3, -4, np.array([0, 3])):
        with pytest.raises(IndexError, match="is out of range for axis 0"):
            run(lambda x, key=key: x[key], x)


def test_traced_indices(run):
    x, i = f32(1, 2, 3), np.array([-1, -3, -4, 3, 100, -100], np.int32)
    want = f32(3, 1, 1, 3, 3, 1)
    same(run(lambda x, i: pf.jit(lambda x, i: x[i])(x, i), x, i), want)  # inside, the indices are not known


def test_gradient_of_a_clamped_read_goes_to_the_element_read(gradient):
    i = np.array([-1, 9, -9, 0], np.int32)
    read = pf.jit(lambda x, i: x[i])  # inside, the indices are not known
    same(gradient(lambda x: (read(x, i) * f32(1, 2, 4, 8)).sum(), f32(1, 2, 3)), f32(12, 0, 3))


# ---------------------------------------------------------------------------- derivatives
def test_kinks(gradient):
    x = f32(-1, -0.0, 0.0, 2)
    same(gradient(lambda x: pf.nn.relu(x).sum(), x), f32(0, 0, 0, 1))
    same(np.abs(gradient(lambda x: abs(x).sum(), x)), f32(1, 0, 0, 1))
    same(gradient(lambda x: pnp.maximum(x, 0.0).sum(), x), f32(0, 0.5, 0.5, 1))
    same(gradient(lambda x: pnp.minimum(2.0, x).sum(), x), f32(1, 1, 1, 0.5))
    same(gradient(lambda x: pnp.maximum(x, x).sum(), x), f32(1, 1, 1, 1))


def test_ties_of_reductions_share_the_cotangent(gradient):
    same(gradient(lambda x: 3 * x.max(), f32(1, 2, 2, 2)), f32(0, 1, 1, 1))
    same(gradient(lambda x: x.min(), f32(1, 1, 2, 2)), f32(0.5, 0.5, 0, 0))
    same(gradient(lambda x: (x.max(axis=1) * f32(1, 10)).sum(), f32([0, 0], [1, 0])), f32([0.5, 0.5], [10, 0]))


def test_clip_at_a_bound(gradient):
    same(gradient(lambda x: pnp.clip(x, -1, 1).sum(), f32(-2, -1, 0, 1, 2)), f32(0, 0, 1, 0, 0))


def test_powers(gradient):
    x = f32(0, -1, 2)
    same(gradient(lambda x: (x ** 0).sum(), x), f32(0, 0, 0))
    same(gradient(lambda x: (x ** 0.0).sum(), x), f32(0, 0, 0))
    same(gradient(lambda x: pnp.pow(x, f32(0)).sum(), x), f32(0, 0, 0))
    same(gradient(lambda y: pnp.pow(f32(0), y).sum(), f32(2, 1, 0.5)), f32(0, 0, 0))
    same(gradient(lambda x: pnp.pow(x, f32(0.5, 1, 2, 0)).sum(), f32(0, 0, 0, -2)), f32(inf, 1, 0, 0))
    same(gradient(lambda x: (x ** 2).sum(), x), f32(0, -2, 4))
    same(gradient(lambda x: (x ** 1).sum(), x), f32(1, 1, 1))


def test_products_with_zeros(gradient):
    same(gradient(lambda x: x.prod(), f32(2, 0, 3)), f32(0, 6, 0))
    same(gradient(lambda x: x.prod(), f32(0, 0, 3)), f32(0, 0, 0))
    same(gradient(lambda x: x.prod(axis=1).sum(), f32([0, 5], [2, 3])), f32([5, 0], [3, 2]))


def test_zero_times_infinity_is_zero(gradient):
    same(gradient(lambda x: pnp.sqrt((x * x).sum()), f32(0, 0)), f32(0, 0))
    same(gradient(lambda x: x.std(), f32(2, 2, 2)), f32(0, 0, 0))
    same(gradient(lambda x: (pnp.sqrt(x) * f32(0, 1)).sum(), f32(0, 4)), f32(0, 0.25))
    same(gradient(lambda x: (pnp.log(x) * f32(0, 1)).sum(), f32(0, 4)), f32(0, 0.25))
    same(gradient(lambda x: pnp.sqrt(x).sum(), f32(0, 4)), f32(inf, 0.25))


def test_the_branch_not_taken_contributes_nothing(gradient):
    x = f32(-1, 0, 4)
    same(gradient(lambda x: pnp.where(x > 0, pnp.sqrt(x), 0.0).sum(), x), f32(0, 0, 0.25))
    same(gradient(lambda x: pnp.where(x > 0, pnp.log(x), -x).sum(), x), f32(-1, -1, 0.25))
    same(gradient(lambda x: pnp.where(x == x, x, 1 / (x * 0)).sum(), x), f32(1, 1, 1))
    same(gradient(lambda x: pnp.where(x > 0, x, pnp.nan).sum(), x), f32(0, 0, 1))


def test_integers_are_not_differentiated():
    def f(x: Any, i: Any) -> Any:
        return (x * i).sum()
    x, i = f32(1, 2), np.array([3, 4], np.int32)
    for wrap in (lambda f: f, pf.jit, lambda f: pf.make_jaxpr(f)):
        text = r"argument i is i32\[2\]; a derivative needs floats(\n.*)*way out:.*allow_int=True"
        with pytest.raises(TypeError, match=text):
            wrap(pf.grad(f, 1))(x, i)
    by_x, by_i = pf.grad(f, (0, 1), allow_int=True)(x, i)
    same(by_x, f32(3, 4))
    same(by_i, np.array([0, 0], np.int32))
    with pytest.raises(TypeError, match=r"argument b is bool\[\]"):
        pf.grad(lambda b: pnp.where(b, 1.0, 2.0))(True)
