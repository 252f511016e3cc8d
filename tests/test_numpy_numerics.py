"""Elementwise functions, creation, shapes, dtypes, bits and 8-bit floats: against NumPy, and JAX for dtypes,
gradients."""
import itertools
import operator
import re
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from error_texts import assert_error_text
from hypothesis import given, strategies as st
from programs import lowered
from references import assert_within, rounded, widened
from test_numpy import EPS, both

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import DtypeError, NarrowingError, ShapeError

nan, inf = np.nan, np.inf
DATA: Dict[str, np.ndarray] = dict(
    x=np.array([[0.5, -1.5, 2.0], [3.25, -0.25, 1.0]], np.float32),
    y=np.array([[1.5, 2.0, -0.5], [0.25, 4.0, 1.0]], np.float32), v=np.array([2.0, -1.0, 0.5], np.float32),
    p=np.array([0.1, 1.5, 7.5], np.float32), q=np.array([-0.9, 0.0, 0.3, 0.75], np.float32),
    g=np.array([1.0, 1.25, 40.0], np.float32), s=np.array(1.5, np.float32),
    n=np.array([0.0, -0.0, inf, -inf, nan, 1.0, -2.5], np.float32),
    h=np.array([[0.5, -1.5, 2.5], [3.25, -0.25, 1.0]], np.float16), r=np.array([0.125, 0.5, -0.75], np.float16),
    t=np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 4 - 1, z=np.zeros((2, 0, 3), np.float32),
    i=np.array([[3, -2, 7], [0, 5, -9]], np.int32), j=np.array([2, -3, 4], np.int32),
    m=np.array([[1, -128], [127, -1]], np.int8), u=np.array([[3, 0, 255], [1, 9, 2]], np.uint8),
    w=np.array([1, 2 ** 32 - 1, 2 ** 31], np.uint32), c=np.array([0, 1, 3], np.int32),
    b=np.array([[True, False, True], [False, False, True]]), o=np.array([True, True, False]))


def calls(names: str, operands: str) -> List[str]:
    return [f"{n}({x})" for n in names.split() for x in operands.split()]


#: Expressions whose gradients are compared too.
SMOOTH = [
    *calls("xp.sinh xp.cosh xp.asinh xp.atan", "x h s z i"), *calls("xp.tan", "x s i"),
    *calls("xp.asin xp.acos xp.atanh", "q r"), *calls("xp.acosh", "g"), *calls("xp.log2 xp.log10", "p s"),
    *calls("xp.exp2", "x h i"),
    *calls("xp.hypot xp.atan2 xp.logaddexp", "x,v h,h 0.5,x z,v x,y s,p x,2.0 h,2 i,j x,i"),
    *calls("xp.copysign", "x,y x,v p,-1.0 h,h i,x"), "xp.linspace(x,y,3)", "xp.linspace(v,1.0,5,endpoint=False)",
    "xp.linspace(s,2.0,4)", "xp.linspace(h,h,2)", "xp.triu(t,k=1)",
    "xp.repeat(x,(1,0,2),axis=1)", "xp.tile(x,(2,1,3))", "xp.roll(t,(1,2),axis=(0,2))", "xp.moveaxis(t,(0,1),(-1,0))"]
OTHERS = [
    "xp.tril(x)", "xp.tril(t,k=-1)", "xp.triu(x,k=-1)",
    "xp.expand_dims(x,axis=(0,-1))", "xp.expand_dims(s,axis=(0,1))",
    "xp.moveaxis(t,(2,),(0,))", "xp.swapaxes(t,0,-1)", "xp.swapaxes(x,1,1)", "xp.tile(x,(2,))",
    "xp.tile(v,(2,2))", "xp.tile(x,2)", "xp.tile(z,(1,2,1))", "xp.tile(x,(0,1))", "xp.tile(s,(2,))",
    "xp.repeat(x,2,axis=0)", "xp.repeat(x,3)", "xp.repeat(v,np.array([2]))",
    "xp.repeat(x,0,axis=1)", "xp.repeat(v,[0,3,1],axis=-1)", "xp.roll(x,1)", "xp.roll(x,-1,axis=1)",
    "xp.roll(t,1,axis=(1,2))", "xp.roll(x,7,axis=1)", "xp.roll(z,1,axis=1)",
    "xp.roll(x,(1,1),axis=(1,1))", "xp.roll(s,3)", *[f"xp.unstack(t,axis={a})[{k}]" for a in (0, -1) for k in (0, 1)],
    *[f"xp.split(t,2,axis=1)[{k}]" for k in (0, 1)], *[f"xp.split(v,[1,1])[{k}]" for k in (0, 1, 2)],
    *[f"xp.array_split(v,2)[{k}]" for k in (0, 1)],
    *[f"xp.array_split(x,5,axis=1)[{k}]" for k in (2, 3)], "xp.array_split(v,[1])[1]",
    *[f"xp.broadcast_arrays(x,v,s)[{k}]" for k in (0, 1, 2)], *[f"xp.meshgrid(v,p,q)[{k}]" for k in (0, 1, 2)],
    *[f"xp.meshgrid(v,q,indexing='ij')[{k}]" for k in (0, 1)], "xp.meshgrid(v)[0]", "xp.reshape(x,(3,2),copy=True)",
    "xp.astype(x,'float16',copy=False)", "xp.asarray(x,copy=True)",
    *calls("xp.trunc xp.round", "x h n i u"), *calls("xp.isnan xp.isinf xp.isfinite xp.signbit", "x n h i u b z"),
    "xp.signbit(s)",
    "xp.round(7.125*x,1)", "xp.round(h,2)", "xp.round(100*x,-1)", "xp.round(i,2)", "xp.round(n,1)",
    *calls("xp.bitwise_and xp.bitwise_or xp.bitwise_xor", "i,j m,m u,u i,u b,o b,i i,12 u,5 3,j w,w w,7"),
    *calls("xp.bitwise_left_shift xp.bitwise_right_shift", "i,c u,u m,3 i,2 1,c w,3 u,1 w,31 i,40"),
    *calls("xp.bitwise_invert", "i m u b w"), "xp.empty_like(i)", "xp.empty((2,3))", "xp.tril(i)", "xp.triu(b)",
    "xp.tril(z)", "xp.eye(2,3)", "xp.eye(3,2,k=-1)", "xp.eye(3,k=1,dtype='int8')", "xp.eye(2,4,k=9)", "xp.eye(0)",
    "xp.arange(2.5)", "xp.arange(0,1,0.25)", "xp.arange(3,0.5,-0.5)", "xp.arange(0.0,3)", "xp.arange(5.0,1)",
    "xp.arange(0,2.5,0.5,dtype='float16')", "xp.arange(np.int64(4))", "xp.linspace(0,1,5)", "xp.linspace(1,0,4)",
    "xp.linspace(0,1,3,endpoint=False)", "xp.linspace(2,5,0)", "xp.linspace(-1,1,1)",
    "xp.linspace(0,7,4,dtype='int32')",
    "xp.linspace(-2,2,3,dtype='float16')", "xp.repeat(i,2,axis=1)", "xp.repeat(b,2)", "xp.roll(b,1)", "xp.tile(b,2)",
    "xp.from_dlpack(i)"]
EXPRESSIONS = SMOOTH + OTHERS
#: The names of NumPy 1 and of JAX where they are not the standard's.
OLD = dict(asin="arcsin", acos="arccos", atan="arctan", atan2="arctan2", asinh="arcsinh", acosh="arccosh",
           atanh="arctanh", bitwise_invert="invert", bitwise_left_shift="left_shift",
           bitwise_right_shift="right_shift")


def outside(xp: Any) -> Any:
    """NumPy or JAX under the array API standard's names."""
    def triangle(name: str) -> Any:
        return lambda x, k=0: getattr(xp, name)(x, k)
    more = dict(
        unstack=lambda x, axis=0: [xp.squeeze(part, axis) for part in xp.split(x, x.shape[axis], axis)],
        astype=lambda x, dtype, copy=True: xp.asarray(x).astype(dtype), asarray=lambda x, copy=None: xp.asarray(x),
        reshape=lambda x, shape, copy=None: xp.reshape(x, shape), tril=triangle("tril"), triu=triangle("triu"),
        eye=lambda n, m=None, *, k=0, dtype="float32": xp.eye(n, m, k=k, dtype=dtype),
        empty=lambda shape: xp.zeros(shape, "float32"), empty_like=xp.zeros_like,
        repeat=lambda x, n, axis=None: xp.repeat(x, np.asarray(n) if isinstance(n, (list, tuple)) else n, axis=axis),
        isnan=quiet(xp.isnan, False), isinf=quiet(xp.isinf, False), isfinite=quiet(xp.isfinite, True),
        signbit=lambda x: x < 0 if x.dtype.kind in "iu" else quiet(xp.signbit, False)(x), from_dlpack=xp.asarray)
    return SimpleNamespace(**{**{n: getattr(xp, OLD.get(n, n), None) for n in NAMES}, **more})


def quiet(f: Callable[[Any], Any], otherwise: bool) -> Callable[[Any], Any]:
    """f, which JAX's old releases refuse for bools and NumPy's for none."""
    return lambda x: f(x) if x.dtype.kind == "f" else (x == x) == otherwise


NAMES = sorted(set(re.findall(r"xp\.(\w+)", " ".join(EXPRESSIONS))))
NUMPY, JAX = outside(np), outside(jnp)
WHOLE = ("trunc", "round")  # JAX's of integers were float32, the standard says that the dtype is kept


def used(text: str) -> List[str]:
    return [n for n in DATA if re.search(rf"\b{n}\b", text.split("(", 1)[1])]


def function_of(text: str) -> str:
    found = re.match(r"xp\.(\w+)", text)
    assert found
    return found.group(1)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_equals_numpy(text):
    names = used(text)
    code = compile(text, text, "eval")

    def f(*args: Any) -> Any:
        return eval(code, dict(zip(names, args), xp=pnp, np=np))
    got = both(f, *(pf.Array(DATA[n]) for n in names))
    bits = text.startswith("xp.bitwise")
    with np.errstate(all="ignore"):
        data = {n: DATA[n] if bits else widened(DATA[n]) for n in names}
        want = np.asarray(eval(code, dict(data, xp=NUMPY, np=np)))
    want = rounded(want, got.dtype)
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got.value, want)
    else:
        size = np.max(np.abs(widened(want)), initial=0.0, where=np.isfinite(widened(want)))
        assert_within(got.value, want, 4 * EPS[got.dtype.name] * size, text)
        if "copysign" in text or function_of(text) in WHOLE:
            np.testing.assert_array_equal(np.signbit(got.value), np.signbit(want))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_has_the_dtype_of_jax(text):
    names = used(text)
    got = pf.eval_shape(lambda *xs: eval(text, dict(zip(names, xs), xp=pnp, np=np)), *(DATA[n] for n in names))
    want = jax.eval_shape(lambda *xs: eval(text, dict(zip(names, xs), xp=JAX, np=np)), *(DATA[n] for n in names))
    whole = function_of(text) in WHOLE and DATA[names[0]].dtype.kind in "iu"
    expected = DATA[names[0]].dtype if whole else want.dtype
    assert (got.dtype, got.shape) == (expected, want.shape)


def some_of_each(texts: List[str]) -> List[str]:
    """The first three expressions of floats of each function: JAX takes its time."""
    floats = [t for t in texts if "(i" not in t and ",i)" not in t]
    return [t for k, t in enumerate(floats) if list(map(function_of, floats[:k])).count(function_of(t)) < 3]


@pytest.mark.parametrize("text", some_of_each(SMOOTH))
def test_gradient_equals_jax(text):
    names = used(text)
    floats = tuple(range(len(names)))

    def total(xp: Any, sum_of: Callable[[Any], Any]) -> Callable[..., Any]:
        def f(*xs: Any) -> Any:
            out = eval(text, dict(zip(names, xs), xp=xp, np=np))
            weights = np.cos(np.arange(out.size)).reshape(out.shape).astype(np.float32)
            return sum_of(out.astype("float32") * weights)
        return f
    args = [DATA[n] for n in names]
    got = pf.grad(total(pnp, pnp.sum), argnums=floats)(*args)
    want = jax.grad(total(JAX, jnp.sum), argnums=floats)(*(jnp.asarray(x) for x in args))
    for g, w, x in zip(got, want, args):
        w = np.asarray(w)
        size = np.max(np.abs(w.astype(np.float64)), initial=1.0, where=np.isfinite(w))
        assert g.dtype == x.dtype
        assert_within(g.value, w, 8 * EPS[x.dtype.name] * size, text)


# ---------------------------------------------------------------------------- corners
def test_gradients_at_corners_are_finite():
    f32 = np.float32
    grads: List[Tuple[Callable[..., Any], Tuple[float, ...], Tuple[float, ...]]] = [
        (pnp.hypot, (0.0, 0.0), (0.0, 0.0)), (pnp.atan2, (0.0, 0.0), (0.0, 0.0)),
        (pnp.logaddexp, (-inf, -inf), (0.5, 0.5)), (pnp.logaddexp, (inf, inf), (0.5, 0.5)),
        (pnp.logaddexp, (-inf, 1.0), (0.0, 1.0)), (pnp.logaddexp, (1e4, 9999.0), (0.7310586, 0.26894143)),
        (pnp.logaddexp, (3.0, 3.0), (0.5, 0.5)), (pnp.hypot, (3e30, 4e30), (0.6, 0.8)),
        (pnp.atan2, (3e30, 4e30), (1.6e-31, -1.2e-31)), (pnp.copysign, (0.0, -1.0), (0.0, 0.0))]
    for f, at, want in grads:
        for derivative in (pf.grad(f, argnums=(0, 1)), pf.jit(pf.grad(f, argnums=(0, 1)))):
            got = derivative(*map(f32, at))
            np.testing.assert_allclose([g.value for g in got], want, rtol=1e-6, err_msg=f"{f.__name__}{at}")


def test_zero_cotangents_stay_zero_where_slopes_are_infinite():
    for f, at in ((pnp.asin, 1.0), (pnp.acos, -1.0), (pnp.acosh, 1.0), (pnp.atanh, 1.0), (pnp.log2, 0.0)):
        masked = pf.grad(lambda x, f=f: pnp.where(x > 9, f(x), 2 * x))(np.float32(at))
        assert masked.value == 2, f.__name__


def test_float16_slopes_do_not_overflow():
    for f, at, want in ((pnp.atan, 300.0, 1 / 90001), (pnp.asinh, 300.0, 1 / 300.0017), (pnp.acosh, 300.0, 1 / 300.0)):
        got = pf.grad(f)(np.float16(at)).value
        np.testing.assert_allclose(got, want, rtol=5e-3)


def test_powers_are_exact():
    k = np.arange(-20, 21, dtype=np.float32)
    np.testing.assert_array_equal(pnp.exp2(k).value, 2.0 ** k.astype(float))
    np.testing.assert_array_equal(pnp.log2(pnp.exp2(k)).value, k)
    np.testing.assert_array_equal(pnp.log10(np.array([1, 10, 1000, 1e10], np.float32)).value, [0, 1, 3, 10])


# ---------------------------------------------------------------------------- bits
INTEGERS = [np.dtype(d) for d in ("int8", "int16", "int32", "uint8", "uint16", "uint32")]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@st.composite
def integers(draw: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Two arrays of one dtype, their bits drawn evenly, and small numbers often."""
    dtype = draw(st.sampled_from(INTEGERS))
    info = np.iinfo(dtype)
    one = st.one_of(st.integers(int(info.min), int(info.max)), st.integers(0, 8 * dtype.itemsize))
    return tuple(np.array(draw(st.lists(one, min_size=4, max_size=4)), dtype) for _ in range(2))  # type: ignore


@given(integers(), st.sampled_from(BITS))
def test_bit_operators_equal_numpy(pair, op):
    x, y = pair
    want = op(x, y)
    for got in (op(pf.Array(x), pf.Array(y)), op(pf.Array(x), y), op(x, pf.Array(y)), op(pf.Array(x), y[0]),
                op(x[0], pf.Array(y))):
        assert type(got) is pf.Array and got.dtype == x.dtype
    np.testing.assert_array_equal(both(lambda x, y: op(pnp.asarray(x), y), x, y).value, want)
    np.testing.assert_array_equal((~pf.Array(x)).value, ~x)


@pytest.mark.parametrize("op", BITS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_lowered_bit_operators_equal_numpy(op, dtype):
    random = np.random.RandomState(0)
    info = np.iinfo(dtype)
    x = random.randint(int(info.min), int(info.max) + 1, (64, 1), np.int64).astype(dtype)
    y = random.randint(0, 8 * dtype.itemsize, 40).astype(dtype) if "shift" in op.__name__ else \
        random.randint(int(info.min), int(info.max) + 1, 40, np.int64).astype(dtype)
    got, = lowered(pf.make_jaxpr(op)(x, y))(x, y)
    np.testing.assert_array_equal(got, op(x, y))


def test_bit_operators_with_numbers():
    i = pf.Array(np.array([5, -6, 7], np.int16))
    for f in (lambda i: i & 3, lambda i: 3 & i, lambda i: i | 8, lambda i: 8 ^ i, lambda i: i << 2, lambda i: 1 << i,
              lambda i: i >> 1, lambda i: -100 >> i):
        got = both(f, i)
        assert got.dtype == np.int16
        np.testing.assert_array_equal(got.value, f(i.value))
    i &= 4
    np.testing.assert_array_equal(i.value, [4, 0, 4])


def test_round_operator_and_method():
    x = pf.Array(np.array([0.5, 1.5, -2.55], np.float32))
    np.testing.assert_array_equal(round(x).value, [0, 2, -3])
    np.testing.assert_array_equal(round(x, 1).value, np.float32([0.5, 1.5, -2.6]))
    np.testing.assert_array_equal(x.round(1).value, round(x, 1).value)
    assert pnp.round(np.float16(60000.0), 2).value == 60000


# ---------------------------------------------------------------------------- creation
def test_arange_of_floats_is_rounded_once():
    np.testing.assert_array_equal(pnp.arange(0.0, 1.0, 0.1).value, np.arange(0.0, 1.0, 0.1).astype(np.float32))
    got = pnp.linspace(0, 1, 1001, dtype="float16")
    np.testing.assert_array_equal(got.value, np.linspace(0, 1, 1001).astype(np.float16))
    assert pnp.linspace(0, 1, 3, dtype=pf.float8_143).dtype == pf.float8_143


def test_linspace_of_arrays_meets_its_ends():
    a, b = np.float32([0.1, -3e30]), np.float32([0.7, 1e-3])
    got = pnp.linspace(a, b, 7).value
    np.testing.assert_array_equal(got[[0, -1]], [a, b])
    traced, = pf.make_jaxpr(lambda a, b: pnp.linspace(a, b, 7))(a, b).eval(a, b)
    np.testing.assert_array_equal(traced, got)


def test_asarray_and_dlpack():
    data = np.arange(3, dtype=np.float32)
    x = pf.Array(data)
    assert pnp.asarray(x, copy=False) is x and pnp.from_dlpack(x) is x
    assert pnp.from_dlpack(np.arange(3.0)).dtype == np.float32
    copied = pnp.from_dlpack(data)
    data[0] = 7
    assert copied.value[0] == 0
    with pytest.raises(ValueError, match="asarray: copy=False, but a ndarray is always copied"):
        pnp.asarray(data, copy=False)


def test_repeat_and_roll_of_nothing():
    assert pnp.repeat(np.zeros((0, 2), np.float32), [], axis=0).shape == (0, 2)
    assert pnp.unstack(np.zeros((0, 2), np.float32)) == () and len(pnp.unstack(np.zeros((2, 0), np.float32))) == 2
    assert pnp.broadcast_arrays() == () and pnp.meshgrid() == ()


def test_what_numpy_takes_and_jax_does_not():
    x, s = DATA["v"], DATA["s"]
    for got, want in ((pnp.split(x, (2, -2, 9)), np.split(x, (2, -2, 9))), (pnp.meshgrid(x, s), np.meshgrid(x, s)),
                      (pnp.split(x, []), np.split(x, []))):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            np.testing.assert_array_equal(g.value, w)


# ---------------------------------------------------------------------------- dtypes
NAMED = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"]


def test_result_type_is_that_of_addition():
    for a, b in itertools.product(NAMED, repeat=2):
        x, y = pnp.zeros(2, dtype=a), pnp.zeros((), dtype=b)
        want = pnp.add(x, y).dtype
        assert pnp.result_type(a, b) == pnp.result_type(x, y) == pnp.result_type(x, b) == want
        assert pnp.result_type(np.dtype(a), y.value) == want
        assert pnp.can_cast(a, b) == pnp.can_cast(x, np.dtype(b)) == (want == np.dtype(b))
    for a, number in itertools.product(NAMED, (True, 2, 1.5)):
        assert pnp.result_type(a, number) == pnp.result_type(number, a) == pnp.add(pnp.zeros(2, dtype=a), number).dtype
    assert pnp.result_type(1, 1.5) == np.float32 and pnp.result_type(pnp.float16) == np.float16
    assert not pnp.can_cast("float8_143", "float16") and pnp.can_cast("float8_143", "float8_143")


def test_limits_of_dtypes():
    for name in ("float16", "float32"):
        got, want = pnp.finfo(name), np.finfo(name)
        assert (got.bits, got.eps, got.max, got.min, got.smallest_normal, got.dtype) == (
            want.bits, want.eps, want.max, want.min, want.tiny, want.dtype)
        assert all(type(v) is float for v in got[1:5])
        assert pnp.finfo(pnp.zeros(2, dtype=name)) == pnp.finfo(np.zeros(2, name)) == got
    assert pnp.finfo(pf.float8_152).max == float(ml_dtypes.finfo(pf.float8_152).max) == 57344
    for name in NAMED[1:7]:
        got, want = pnp.iinfo(name), np.iinfo(name)
        assert (got.bits, got.max, got.min, got.dtype) == (want.bits, want.max, want.min, want.dtype)


def test_kinds_of_dtypes():
    kinds = {"bool": ["bool"], "signed integer": NAMED[1:4], "unsigned integer": NAMED[4:7], "integral": NAMED[1:7],
             "real floating": ["float16", "float32", "float8_143", "float8_152"], "complex floating": []}
    kinds["numeric"] = kinds["integral"] + kinds["real floating"]
    for kind, members in kinds.items():
        for name in [*NAMED, "float8_143", "float8_152"]:
            assert pnp.isdtype(name, kind) == (name in members)
    assert pnp.isdtype("int8", (np.int16, "int8")) and not pnp.isdtype("int8", ()) and pnp.isdtype("int8", np.int8)


def test_inspection():
    info = pnp.__array_namespace_info__()
    assert pf.Array(1.0).__array_namespace__() is pnp and pnp.__array_api_version__ == "2023.12"
    assert info.default_device() in info.devices()
    assert info.capabilities()["boolean indexing"] is info.capabilities()["data-dependent shapes"] is False
    made = {"real floating": pnp.asarray(1.5), "integral": pnp.asarray(1), "indexing": pnp.argmax(pnp.zeros(2))}
    assert info.default_dtypes() == {kind: x.dtype for kind, x in made.items()}
    assert info.dtypes(kind="real floating") == {"float32": np.float32}
    assert set(info.dtypes()) == set(NAMED) - {"float16"}
    for name, d in info.dtypes().items():
        assert getattr(pnp, name) == d


# ---------------------------------------------------------------------------- 8-bit floats
FORMATS = [pf.float8_143, pf.float8_152]


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@pytest.mark.parametrize("scale", [-31, -3, 0, 5, 31])
def test_casts_to_float8_and_back(dtype, scale):
    x = np.float32([0, 1, -3.3, 0.07, 200, 1e-9, nan, inf]) * np.float32(2.0) ** -scale
    want = rounded(widened(x) * 2.0 ** scale, dtype)
    got = pnp.cast_to_float8(x, scale, dtype=dtype)
    traced, = pf.make_jaxpr(lambda x: pnp.cast_to_float8(x, scale, dtype=dtype))(x).eval(x)
    assert got.value.tobytes() == traced.tobytes()
    np.testing.assert_array_equal(widened(got.value), widened(want))
    for back in ("float32", "float16"):
        restored = both(lambda x, back=back: pnp.cast_from_float8(x, -scale, dtype=back), got)
        np.testing.assert_array_equal(restored.value, rounded(widened(want) * 2.0 ** -scale, np.dtype(back)))
    assert pnp.cast_to_float8(np.float16([1, 2])).dtype == pf.float8_143
    assert pnp.cast_to_float8(np.int32([1, 2])).dtype == pf.float8_143


def test_nan_of_float8_is_found():
    x = pnp.cast_to_float8(np.float32([1, 1e9, nan, -240]))
    np.testing.assert_array_equal(pnp.isnan(x).value, [False, True, True, False])
    np.testing.assert_array_equal(pnp.isfinite(x).value, [True, False, False, True])
    assert not pnp.isinf(x).value.any()


SHAPES = [((2, 3), (3, 4)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3, 2)), ((2, 1, 2, 3), (4, 3,
                                                                                                               1)),
          ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((2, 0), (0, 3))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_float8_matmul_equals_numpy(shapes):
    random = np.random.RandomState(0)
    x, y = (random.randint(-8, 9, s).astype(np.float32) / 4 for s in shapes)
    for a, b in itertools.product(FORMATS, repeat=2):
        def f(x: Any, y: Any, a: Any = a, b: Any = b) -> Any:
            return pnp.matmul_pow2scaled(pnp.cast_to_float8(x, 2, dtype=a), pnp.cast_to_float8(y, 1, dtype=b), -3)
        x8, y8 = (rounded(widened(v) * s, d) for v, s, d in ((x, 4, a), (y, 2, b)))
        want = np.matmul(widened(x8), widened(y8)) / 8
        got = both(f, x, y)
        assert got.dtype == np.float16 and got.shape == want.shape
        assert_within(got.value, want, 2.0 ** -10 * np.max(np.abs(want), initial=0.0))
        if x.size:
            assert_within(lowered(pf.make_jaxpr(f)(x, y))(x, y)[0], got.value, 2.0 ** -9 * np.abs(want).max())


def test_float8_gradients_are_those_of_the_products():
    x, y = np.float32([[1, 2], [-0.5, 1]]), np.float32([[0.25, 1], [2, -1]])

    def loss(x: Any, y: Any) -> Any:
        x8, y8 = pnp.cast_to_float8(x, 1), pnp.cast_to_float8(y, 1)
        return pnp.sum(pnp.matmul_pow2scaled(x8, y8, -2).astype("float32") * np.float32([[1, 2], [3, 4]]))
    got = pf.grad(loss, argnums=(0, 1))(x, y)
    want = pf.grad(lambda x, y: pnp.sum(x @ y * np.float32([[1, 2], [3, 4]])), argnums=(0, 1))(x, y)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g.value, w.value, rtol=2.0 ** -4)


# ---------------------------------------------------------------------------- errors
x, i, b, v = (pf.Array(DATA[n]) for n in "xibv")
f8 = pnp.cast_to_float8(x)
ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: i & 1.5, DtypeError, "bitwise_and takes integers or bools, got i32[2,3] and ~f32[]"),
    (lambda: x | i, DtypeError, "bitwise_or takes integers or bools, got f32[2,3] and i32[2,3]"),
    (lambda: ~x, DtypeError, "bitwise_invert takes integers or bools, got f32[2,3]"),
    (lambda: b << b, DtypeError, "bitwise_left_shift takes integers, got bool[2,3] and bool[2,3]"),
    (lambda: x >> 1, DtypeError, "bitwise_right_shift takes integers, got f32[2,3] and ~i32[]"),
    (lambda: pnp.bitwise_xor(i, v), DtypeError, "logical_xor and logical_not take any numbers as truth values"),
    (lambda: pnp.round(i, -1), DtypeError, "round of i32[2,3] to -1 decimals: integers have none to round"),
    (lambda: pnp.arange(x[0, 0]), DtypeError, "arange takes Python numbers, got 0, "),
    (lambda: pnp.arange(True), DtypeError, "arange takes Python numbers, got 0, True, 1"),
    (lambda: pnp.arange(3, step=0), DtypeError, "arange: a step of 0 in int32 does not count"),
    (lambda: pnp.linspace(0, 1, -1), ShapeError, "a shape holds sizes of 0 or more, got (-1,)"),
    (lambda: pnp.meshgrid(x), ShapeError, "meshgrid takes vectors, got f32[2,3]"),
    (lambda: pnp.meshgrid(v, indexing="yx"), ValueError, "meshgrid: indexing is 'xy' or 'ij', got 'yx'"),
    (lambda: pnp.tril(v), ShapeError, "tril: f32[3] has no two axes"),
    (lambda: pnp.triu(v), ShapeError, "triu: f32[3] has no two axes"),
    (lambda: pnp.expand_dims(x, (0, 0)), ShapeError, "expand_dims: axes (0, 0) are not distinct"),
    (lambda: pnp.moveaxis(x, (0, 1), (0,)), ShapeError, "moveaxis: (0, 1) and (0,) are not as many distinct axes"),
    (lambda: pnp.moveaxis(x, (0, 0), (0, 1)), ShapeError, "moveaxis: (0, 0) and (0, 1) are not as many distinct axes"),
    (lambda: pnp.moveaxis(x, 2, 0), ShapeError, "moveaxis: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.swapaxes(x, 0, 2), ShapeError, "swapaxes: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.broadcast_arrays(x, x.T), ShapeError, "shapes (2, 3) and (3, 2) do not broadcast"),
    (lambda: pnp.tile(v, -1), ShapeError, "a shape holds sizes of 0 or more, got (-1,)"),
    (lambda: pnp.repeat(v, -1), ShapeError, "repeat: repeats are one number of 0 or more or one for each of the 3"),
    (lambda: pnp.repeat(v, [1, 2]), ShapeError, "elements along axis 0 of f32[3], got [1, 2]"),
    (lambda: pnp.repeat(v, 1.5), DtypeError, "repeat: repeats are integers, got 1.5"),
    (lambda: pnp.roll(x, (1, 2), axis=0), ShapeError, "roll: shifts (1, 2) are not one for each of the axes 0"),
    (lambda: pnp.unstack(x, axis=2), ShapeError, "unstack: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.split(v, 2), ShapeError, "split: axis 0 of f32[3] has no 2 equal parts"),
    (lambda: pnp.array_split(v, 0), ShapeError, "array_split: there are no 0 parts"),
    (lambda: pnp.from_dlpack(3), DtypeError, "from_dlpack takes an object with __dlpack__, got int"),
    (lambda: pnp.finfo("int8"), DtypeError, "finfo takes a float dtype, got int8"),
    (lambda: pnp.iinfo("float16"), DtypeError, "iinfo takes an integer dtype, got float16"),
    (lambda: pnp.isdtype("int8", "whole"), DtypeError, "'whole' is not a dtype popfn knows"),
    (lambda: pnp.result_type(), DtypeError, "result_type of nothing"),
    (lambda: pnp.result_type("float8_143", "float16"), DtypeError, "f8_143 and f16 have no common dtype"),
    (lambda: pnp.cast_to_float8(x, 40), DtypeError, "log2_scale is a Python integer from -32 to 31, got 40"),
    (lambda: pnp.cast_to_float8(x, dtype="float16"), DtypeError, "gives float8_143 or float8_152, not float16"),
    (lambda: pnp.cast_from_float8(x), DtypeError, "cast_from_float8 takes float8, got f32[2,3]"),
    (lambda: pnp.cast_from_float8(f8, dtype="int8"), DtypeError, "gives float16 or float32, not int8"),
    (lambda: pnp.matmul_pow2scaled(x, x.T), DtypeError, "matmul_pow2scaled takes float8, got f32[2,3]"),
    (lambda: pnp.matmul_pow2scaled(f8, f8), ShapeError, "matmul_pow2scaled: f8_143[2,3] @ f8_143[2,3] do not go"),
    (lambda: pnp.matmul_pow2scaled(f8, f8.T, 1.0), DtypeError, "Python integer from -32 to 31, got 1.0")]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    assert_error_text(*ERRORS[n], __file__)


def test_python_integers_must_fit():
    with pytest.raises(NarrowingError, match="Python integer 300 does not fit int8"):
        pf.Array(DATA["m"]) & 300
