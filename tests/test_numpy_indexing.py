"""Indexing of popfn.numpy and `x.at[...]`: against NumPy (values), JAX (dtypes), differences (derivatives); lowered."""
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from programs import lowered
from references import assert_within, jacobian, second_derivative, widened
from test_numpy import both, keys

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, DtypeError, RangeError, ShapeError

nan = np.nan
X = (np.arange(12, dtype=np.float32).reshape(3, 4) * 7 % 12 - 4.25) / 4
V = np.array([2.0, -1.0, 0.5], np.float32)
UFUNCS = dict(add=np.add, multiply=np.multiply, mul=np.multiply, max=np.maximum, min=np.minimum)


def written(name: str, x: np.ndarray, key: Any, values: Any) -> np.ndarray:
    """x.at[key] in NumPy: one update after the other."""
    out = np.array(x)
    if name == "set":
        out[key] = values
    else:
        UFUNCS[name].at(out, key, values)
    return out


def put(x: np.ndarray, indices: np.ndarray, values: Any, axis: int) -> np.ndarray:
    out = np.array(x)
    np.put_along_axis(out, indices, values, axis)
    return out


def traced(f: Callable[..., Any], *args: Any) -> np.ndarray:
    """f of arguments that are all traced."""
    return pf.make_jaxpr(f)(*args).check().eval(*args)[0]


def everywhere(f: Callable[..., Any], *args: np.ndarray) -> np.ndarray:
    """f of traced arguments; asserts that jit, vmap over equal lanes and the lowered program give the same bits."""
    want = traced(f, *args)
    np.testing.assert_array_equal(np.asarray(pf.jit(f)(*args)), want)
    lanes = pf.vmap(f)(*(np.stack([a, a]) for a in args))
    np.testing.assert_array_equal(np.asarray(lanes), np.stack([want, want]))
    np.testing.assert_array_equal(lowered(pf.make_jaxpr(f)(*args))(*args)[0], want)
    return want


# ---------------------------------------------------------------------------- a table of expressions
DATA: Dict[str, np.ndarray] = dict(
    x=X, v=V, t=np.arange(24, dtype=np.float32).reshape(2, 3, 4), h=X.astype(np.float16),
    z=np.zeros((2, 0), np.float32),
    i=np.array([[3, -2, 7], [0, 5, -9]], np.int32), u=np.array([[3, 0, 255], [1, 9, 2]], np.uint8),
    b=np.array([[True, False, True], [False, False, True]]), k=np.array([[1, 2], [0, -1]], np.int8),
    c=np.array([[0, -1, 2, 1]], np.int32), r=np.array([[1], [0], [-4]], np.int32),
    m=np.array([[2, 0, 1, -1], [0, 0, 3, 3], [1, 1, -2, 0]], np.int32))
SAME = [  # NumPy and JAX have them under the same names
    "xp.take(x,k,axis=1)", "xp.take(x,k,axis=0)", "xp.take(v,k)", "xp.take(t,k,axis=-2)", "xp.take(u,k,axis=1)",
    "xp.take(b,k[0],axis=1)", "xp.take_along_axis(x,m,axis=1)", "xp.take_along_axis(x,m,axis=-1)",
    "xp.take_along_axis(x,r,axis=1)", "xp.take_along_axis(x,c,axis=0)", "xp.take_along_axis(h,m[:,:2],axis=1)",
    "xp.take_along_axis(i,k,axis=1)", "xp.take_along_axis(t,k[:,:,None],axis=1)",
    "xp.take_along_axis(t,k[:,None,:1],axis=2)", "xp.take_along_axis(x[:1],m[:,:1],axis=1)",
    "xp.take_along_axis(b,k,axis=1)", "xp.take_along_axis(u[None],k[:,:,None],axis=2)",
    "xp.take_along_axis(t,m[None],axis=2)", "xp.take_along_axis(x,m[:,:0],axis=1)"]
OTHERS: List[Tuple[str, str]] = [  # and what NumPy says instead
    ("xp.put_along_axis(x,r,v[:,None],axis=1)", "put(x,r,v[:,None],1)"),
    ("xp.put_along_axis(x,m,h,axis=1)", "put(x,m,h,1)"), ("xp.put_along_axis(x,c,2,axis=0)", "put(x,c,2,0)"),
    ("xp.put_along_axis(x,m,7.5,axis=-1)", "put(x,m,7.5,1)"), ("xp.put_along_axis(i,k,k,axis=1)", "put(i,k,k,1)"),
    ("xp.put_along_axis(t,m[None,:,:2],x[:,:2],axis=2)", "put(t,m[None,:,:2],x[:,:2],2)"),
    ("xp.put_along_axis(h,m[:,:0],1,axis=1)", "h"),
    ("xp.dynamic_slice(x,(1,2),(2,2))", "x[1:3,2:4]"), ("xp.dynamic_slice(x,[np.int8(-1),0],(1,4))", "x[2:]"),
    ("xp.dynamic_slice(t,k[0,0]*np.array([1,-2,1],np.int8),(1,1,3))", "t[1:,1:2,1:4]"),
    ("xp.dynamic_slice(x,k[0],(1,1))", "x[1:2,2:3]"), ("xp.dynamic_slice(v,(k[1,1],),(1,))", "v[2:]"),
    ("xp.dynamic_slice(z,(1,0),(1,0))", "z[1:]"), ("xp.dynamic_slice(x[0,0],(),())", "x[0,0]"),
    ("xp.dynamic_slice(u,(k[1,0],k[0,1]),(2,1))", "u[:,2:]"),
    ("xp.dynamic_slice_in_dim(t,k[0,0],2,axis=1)", "t[:,1:3]"), ("xp.dynamic_slice_in_dim(t,-2,2)", "t[0:2]"),
    ("xp.dynamic_index_in_dim(t,k[1,1],axis=-1)", "t[:,:,3:]"),
    ("xp.dynamic_index_in_dim(t,k[0,0],keepdims=False)", "t[1]"), ("xp.dynamic_index_in_dim(h,2,axis=1)", "h[:,2:3]"),
    ("xp.dynamic_update_slice(x,v[None,:],(k[0,0],k[0,0]))", "written('set',x,np.s_[1:2,1:4],v)"),
    ("xp.dynamic_update_slice(x,h[:2,:2],(k[0,0],2))", "written('set',x,np.s_[1:3,2:4],h[:2,:2])"),
    ("xp.dynamic_update_slice(x,x[:1],(-1,0))", "written('set',x,2,x[0])"),
    ("xp.dynamic_update_slice(x,h,(0,k[1,0]))", "h.astype(x.dtype)"),
    ("xp.dynamic_update_slice_in_dim(t,t[:,:1],k[0,1],axis=1)", "written('set',t,np.s_[:,2:],t[:,:1])"),
    ("xp.dynamic_update_index_in_dim(t,t[:,0],k[0,1],axis=1)", "written('set',t,np.s_[:,2],t[:,0])"),
    ("xp.dynamic_update_index_in_dim(v,5,k[0,0])", "written('set',v,1,5)"),
    ("xp.dynamic_update_index_in_dim(x,x[:,:1],0,axis=1)", "x")]
JAX = SimpleNamespace(**{**{n: getattr(jax.lax, n) for n in dir(jax.lax) if n.startswith("dynamic")},
                         "take": jnp.take, "take_along_axis": jnp.take_along_axis})


def used_names(text: str) -> List[str]:
    return [n for n in DATA if re.search(rf"\b{n}\b", text.split("(", 1)[1])]


@pytest.mark.parametrize("text, want", [(t, t) for t in SAME] + OTHERS)
def test_expression_equals_numpy(text, want):
    names = used_names(text)

    def f(*args: Any) -> Any:
        return eval(text, dict(zip(names, args), xp=pnp, np=np))
    with np.errstate(all="ignore"):
        expected = np.asarray(eval(want, dict(DATA, xp=np, np=np, put=put, written=written)))
    data = [DATA[n] for n in names]
    for got in (both(f, *map(pf.Array, data)), both(pf.jit(f), *data)):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(got.value, expected)
    if all(d.size for d in data) and expected.size:
        np.testing.assert_array_equal(lowered(pf.make_jaxpr(f)(*data))(*data)[0], expected)


# JAX's lax neither promotes nor takes starts of two kinds, and its put_along_axis has other parameters.
TYPED = [text for text in SAME + [t for t, _ in OTHERS]
         if not re.search(r"put_|keepdims|_slice\(x,h|,5,|np.int8\(-1\)|\],2\)", text)]


@pytest.mark.parametrize("text", TYPED)
def test_expression_has_the_type_of_jax(text):
    names = used_names(text)
    got = pf.eval_shape(lambda *xs: eval(text, dict(zip(names, xs), xp=pnp, np=np)), *(DATA[n] for n in names))
    want, = jax.make_jaxpr(lambda *xs: eval(text, dict(zip(names, xs), xp=JAX, np=np)))(
        *(DATA[n] for n in names)).out_avals
    assert (got.dtype, got.shape, got.weak) == (want.dtype, want.shape, want.weak_type)


# ---------------------------------------------------------------------------- x.at[key] with any key
@settings(max_examples=max(300, settings.default.max_examples))
@given(st.lists(st.integers(0, 4), max_size=3).flatmap(lambda s: st.tuples(st.just(tuple(s)), keys(tuple(s)))),
       st.sampled_from(["set", "add", "multiply", "max", "min"]), st.sampled_from([np.float32, np.int32, np.float16]),
       st.integers(0, 2), st.booleans())
def test_at_equals_numpy(shape_and_key, name, dtype, trailing, lower):
    shape, key = shape_and_key
    x = (np.arange(np.prod(shape, dtype=int)) * 5 % 7 - 3).astype(dtype).reshape(shape)
    target = x[key].shape
    sizes = target[min(trailing, len(target)):]  # values broadcast
    values = (np.arange(np.prod(sizes, dtype=int)) * 3 % 5 - 2).astype(dtype).reshape(sizes)
    want = written(name, x, key, values)

    def f(a: Any, v: Any) -> Any:
        return getattr(a.at[key], name)(v)
    got = both(f, pf.Array(x), pf.Array(values))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.value, want)
    places = [n for n, item in enumerate(key) if isinstance(item, np.ndarray)]

    def indices_traced(a: Any, v: Any, *indices: Any) -> Any:
        items = list(key)
        for n, index in zip(places, indices):
            items[n] = index
        return f_at(a, tuple(items), v)

    def f_at(a: Any, items: Any, v: Any) -> Any:
        return getattr(a.at[items], name)(v)
    args = [x, values, *(key[n].astype(np.int32) for n in places)]
    np.testing.assert_array_equal(traced(indices_traced, *args), want)
    if lower and all(a.size for a in args) and x[key].size:
        np.testing.assert_array_equal(lowered(pf.make_jaxpr(indices_traced)(*args))(*args)[0], want)


@pytest.mark.parametrize("name", ["set", "add", "multiply", "mul", "max", "min"])
@pytest.mark.parametrize("x, values", [
    (X, 2), (X, 2.5), (X, np.float16(1.5)), (X, np.int8(3)), (X, True), (X.astype(np.float16), 2.5),
    (np.int32([1, 2]), 3), (np.int32([1, 2]), np.int8(3)), (np.int8([1, 2]), 3), (1.0, 2), (2, 3)])
def test_at_keeps_the_dtype(name, x, values):
    key = (Ellipsis,) if np.ndim(x) == 0 else 1
    got = getattr(pnp.asarray(x).at[key], name)(values)
    a = jnp.asarray(x)
    want = getattr(a.at[key], name)(values)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got.value, np.asarray(want))


# ---------------------------------------------------------------------------- derivatives
KEYS: List[Any] = [
    1, np.s_[1:], np.s_[:, ::-2], np.s_[2:0:-1, 1:3], np.s_[..., None, 0], (np.array([0, 2, 0]),),
    (slice(None), np.array([[1, -1], [1, 2]])), (np.array([0, 0, -1]), np.array([1, 1, 2])), (0, np.array([3, 3, 1])),
    (np.array([1, 1]), slice(None, None, 2)), (np.array([[2], [2]]), None, np.array([0, 0])), np.array(-1), ()]


def values_at(key: Any) -> np.ndarray:
    shape = X[key].shape
    n = int(np.prod(shape, dtype=int))
    return (((np.arange(n) * 11 % 13) / 5 - 1.1) * (1 + np.arange(n) / 50)).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("name", ["set", "add", "multiply", "max", "min"])
@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_derivatives_of_at_equal_differences(name, key):
    values = values_at(key)
    ct = ((np.arange(X.size) * 5 % 12 + 1) / 7).reshape(X.shape).astype(np.float32)

    def f(x: Any, v: Any) -> Any:
        return getattr(x.at[key], name)(v)

    def wide(x: Any, v: Any) -> Any:
        return written(name, x, key, v)
    xs = [widened(X), widened(values)]
    tangents = [np.cos(np.arange(a.size)).reshape(a.shape).astype(np.float32) for a in xs]
    want = [jacobian(wide, xs, i) for i in (0, 1)]
    got = pf.grad(lambda x, v: (f(x, v) * ct).sum(), argnums=(0, 1))(X, values)
    for i in (0, 1):
        assert_within(got[i].value, (ct.ravel() @ want[i]).reshape(xs[i].shape), 2e-6)
    _, forward = pf.jvp(f, (X, values), tuple(tangents))
    assert_within(forward.value.ravel(), sum(w @ t.ravel() for w, t in zip(want, tangents)), 2e-6)

    def along(x: Any, v: Any) -> Any:
        grads = pf.grad(lambda x, v: (f(x, v) * ct).sum(), argnums=(0, 1))(x, v)
        return sum((g * t).sum() for g, t in zip(grads, tangents))
    second = pf.grad(along, argnums=(0, 1))(X, values)
    for i in (0, 1):
        wanted = second_derivative(lambda *at: float((wide(*at) * ct).sum()), xs, tangents, i)
        assert_within(second[i].value, wanted, 1e-5)


def test_multiply_is_exact_with_zeros():
    x = np.array([0.0, 3.0, 2.0], np.float32)
    v = np.array([0.0, 5.0, 0.0, 0.0, 7.0], np.float32)
    i = np.array([0, 0, 1, 1, 2], np.int32)
    grads = pf.grad(lambda x, v: (x.at[i].multiply(v) * np.float32([1, 10, 100])).sum(), argnums=(0, 1))
    for g in (grads, pf.jit(grads)):
        by_x, by_v = g(x, v)
        assert by_x.tolist() == [0, 0, 700] and by_v.tolist() == [0, 0, 0, 0, 200]
    v[3], x[0] = 4.0, 2.0
    by_x, by_v = grads(x, v)
    assert by_x.tolist() == [0, 0, 700] and by_v.tolist() == [10, 0, 120, 0, 200]
    both_modes = [pf.jvp(lambda v: pf.Array(x).at[i].multiply(v), (v,), (e,))[1].value @ np.float32([1, 10, 100])
                  for e in np.eye(5, dtype=np.float32)]
    assert both_modes == by_v.tolist()


def test_multiply_by_many_factors_for_one_element():
    rng = np.random.default_rng(1)
    x, v = rng.uniform(0.5, 1.5, (2, 3)).astype(np.float32), rng.uniform(0.7, 1.4, (2, 37)).astype(np.float32)
    v[rng.random(v.shape) < 0.05] = 0
    i = rng.integers(-4, 4, 37).astype(np.int32)
    inside = (i >= -3) & (i < 3)

    def wide(x: Any, v: Any) -> Any:
        return written("multiply", x, (slice(None), i[inside]), v[:, inside])
    got = traced(lambda x, i, v: x.at[:, i].multiply(v), x, i, v)
    xs = [widened(x), widened(v)]
    assert_within(got, wide(*xs), 1e-5)
    ct = rng.uniform(1, 2, x.shape).astype(np.float32)
    grads = pf.jit(pf.grad(lambda x, i, v: (x.at[:, i].multiply(v) * ct).sum(), argnums=(0, 2)))(x, i, v)
    for k, g in enumerate(grads):
        assert_within(g.value, (ct.ravel() @ jacobian(wide, xs, k)).reshape(xs[k].shape), 1e-5)


@pytest.mark.parametrize("name, sign", [("max", 1), ("min", -1)])
def test_ties_share_the_cotangent(name, sign):
    """Equally among all that are as large, x's own element being one of them; the sum is always the cotangent."""
    x = sign * np.array([1.0, 2.0, 3.0, -5.0], np.float32)
    v = sign * np.array([1.0, 1.0, 2.0, 1.0, 4.0, 4.0, 4.0, -9.0], np.float32)
    i = np.array([0, 0, 1, 1, 3, 3, 3, 2], np.int32)
    ct = np.array([6.0, 8.0, 5.0, 9.0], np.float32)

    def total(x: Any, i: Any, v: Any) -> Any:
        return (getattr(x.at[i], name)(v) * ct).sum()
    grad = pf.grad(total, argnums=(0, 2))
    for g in (grad, pf.jit(grad)):
        by_x, by_v = g(x, i, v)
        np.testing.assert_allclose(by_x, [2, 4, 5, 0])
        np.testing.assert_allclose(by_v, [2, 2, 4, 0, 3, 3, 3, 0], rtol=1e-6)
    many = np.full(70_000, 1, np.float16)  # more winners than float16 counts
    by_x, by_v = pf.grad(lambda x, v: x.at[np.zeros(70_000, np.int32)].max(v).sum().astype("float32"), argnums=(0, 1))(
        np.float16([1]), many)
    np.testing.assert_allclose(by_v.value.astype(np.float64), 1 / 70_001, rtol=2e-3)


# ---------------------------------------------------------------------------- the corners of CONVENTIONS
def test_negative_index_static_or_traced_counts_from_the_end():
    x = np.arange(5, dtype=np.float32)
    for i in range(-5, 0):
        at = np.array(i, np.int32)
        assert everywhere(lambda x, i: x[i], x, at) == everywhere(lambda x, i: pnp.take(x, i), x, at) == x[i]
        assert everywhere(lambda x, i: pnp.take(x, i, mode="fill"), x, at) == x[i]
        assert everywhere(lambda x, i: pnp.dynamic_slice(x, (i,), (1,)), x, at) == x[i]
        assert x[i] == pf.Array(x)[i] == pnp.take(x, i) == pnp.dynamic_slice(x, (i,), (1,))[0]
        want = written("set", x, i, 9)
        for mode in (None, "drop", "clip"):
            np.testing.assert_array_equal(everywhere(lambda x, i, m=mode: x.at[i].set(9, mode=m), x, at), want)
            np.testing.assert_array_equal(everywhere(
                lambda x, i, m=mode: pnp.dynamic_update_index_in_dim(x, 9, i, mode=m), x, at), want)
    for start in (-5, -4, -3, -2):  # a window of two
        at = np.array(start, np.int32)
        np.testing.assert_array_equal(everywhere(lambda x, i: pnp.dynamic_slice(x, (i,), (2,)), x, at),
                                      x[start + 5:start + 7])


READS = [  # what reads, what a traced index out of range gives below and above, and the gradient to x
    (lambda x, i: x[i], 0.0, 4.0), (lambda x, i: pnp.take(x, i), 0.0, 4.0), (lambda x, i: x.at[i].get(), 0.0, 4.0),
    (lambda x, i: x.at[i].get(mode="clip"), 0.0, 4.0), (lambda x, i: pnp.take(x, i, mode="clip"), 0.0, 4.0),
    (lambda x, i: x.at[i].get(mode="fill", fill_value=-7), -7, -7),
    (lambda x, i: pnp.take(x, i, mode="fill"), nan, nan),
    (lambda x, i: pnp.take_along_axis(x, i[None])[0], 0.0, 4.0),
    (lambda x, i: pnp.take_along_axis(x, i[None], mode="fill", fill_value=2.5)[0], 2.5, 2.5),
    (lambda x, i: pnp.dynamic_index_in_dim(x, i)[0], 0.0, 4.0),
    (lambda x, i: x[None, :][0, i], 0.0, 4.0), (lambda x, i: x[:, None].at[i, 0].get(mode="fill", fill_value=8), 8, 8)]


@pytest.mark.parametrize("n", range(len(READS)))
@pytest.mark.parametrize("i", [-6, -100, -2 ** 31, 5, 6, 2 ** 31 - 1])
def test_traced_index_out_of_range_read(n, i):
    """Clamped to the valid range, or a fill value; the gradient of a clamped read goes to the element read."""
    f, below, above = READS[n]
    x, at = np.arange(5, dtype=np.float32), np.array(i, np.int32)
    want = below if i < 0 else above
    np.testing.assert_array_equal(everywhere(f, x, at), np.float32(want))
    grad = pf.jit(pf.grad(lambda x, i: f(x, i) * 3))(x, at)
    clamped = want in (0.0, 4.0)
    assert grad.tolist() == [3.0 * (clamped and k == want) for k in range(5)]


def test_traced_index_out_of_range_of_a_window_moves_it():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for i, j, want in ((9, 9, np.s_[1:3, 2:4]), (-9, 1, np.s_[0:2, 1:3]), (2, -1, np.s_[1:3, 2:4]),
                       (-1, -4, np.s_[1:3, 0:2])):
        args = x, np.array(i, np.int32), np.array(j, np.int8)

        def f(x: Any, i: Any, j: Any) -> Any:
            return pnp.dynamic_slice(x, (i, j), (2, 2))
        np.testing.assert_array_equal(everywhere(f, *args), x[want])
        grad = pf.jit(pf.grad(lambda x, i, j: (f(x, i, j) * f(x, i, j)).sum()))(*args)
        np.testing.assert_array_equal(grad, written("set", np.zeros_like(x), want, 2 * x[want]))


def test_traced_index_out_of_range_write_is_dropped():
    x, v = np.array([1.0, -0.0, 3.0], np.float32), np.array([7.0, nan, 8.0], np.float32)
    i = np.array([-4, 3, 2 ** 31 - 1], np.int32)
    for name in ("set", "add", "multiply", "max", "min"):
        def f(x: Any, i: Any, v: Any, name: str = name) -> Any:
            return getattr(x.at[i], name)(v)

        def f2(x: Any, i: Any, v: Any, name: str = name) -> Any:
            return getattr(x[None].at[0 * i, i], name)(v)[0]
        for g in (f, f2, lambda x, i, v: f(x, i[0], v[0]), lambda x, i, v: f(x, i[1], v[1])):
            got = everywhere(g, x, i, v)
            assert got.tobytes() == x.tobytes()  # the sign of -0.0 too
        total = pf.grad(lambda x, i, v: (f(x, i, v) * np.float32([1, 2, 3])).sum(), argnums=(0, 2))
        by_x, by_v = pf.jit(total)(x, i, v)
        assert by_x.tolist() == [1, 2, 3] and by_v.tolist() == [0, 0, 0]
        known = getattr(pf.Array(x).at[i], name)(v, mode="drop")
        np.testing.assert_array_equal(known.value, x)
    for start in (-3, 2, 100):
        def h(x: Any, i: Any, u: Any) -> Any:
            return pnp.dynamic_update_slice(x, u, (i,))
        args = x, np.array(start - 1 if start < 0 else start, np.int32), v[:2]
        assert everywhere(h, *args).tobytes() == x.tobytes()
        by_x, by_u = pf.jit(pf.grad(lambda *a: (h(*a) * np.float32([1, 2, 3])).sum(), argnums=(0, 2)))(*args)
        assert by_x.tolist() == [1, 2, 3] and by_u.tolist() == [0, 0]
    whole = pf.jit(lambda x, i: pnp.dynamic_update_slice(x, x + 1, (i,)))
    assert whole(x, np.int32(0)).tolist() == [2, 1, 4] and whole(x, np.int32(1)).tolist() == [1, 0, 3]


def test_write_clipped_goes_to_the_nearest_element():
    x, i = np.zeros(3, np.float32), np.array([-9, 9, 3], np.int32)
    for f, want in ((lambda x, i: x.at[i].add(1, mode="clip"), [1, 0, 2]),
                    (lambda x, i: x[None].at[0, i].add(1, mode="clip")[0], [1, 0, 2]),
                    (lambda x, i: x.at[i].set(np.float32([1, 2, 3]), mode="clip"), [1, 0, 3]),
                    (lambda x, i: pnp.put_along_axis(x, i, 5, axis=0, mode="clip"), [5, 0, 5]),
                    (lambda x, i: pnp.dynamic_update_slice(x, np.float32([1, 2]), (i[0],), mode="clip"), [1, 2, 0]),
                    (lambda x, i: pnp.dynamic_update_slice_in_dim(x, x[:2] + 1, i[1], mode="clip"), [0, 1, 1])):
        assert everywhere(f, x, i).tolist() == want
    for f, want in ((lambda x: x.at[i].add(1, mode="clip"), [1, 0, 2]),
                    (lambda x: x.at[5].add(1, mode="clip"), [0, 0, 1]),
                    (lambda x: x.at[-5].set(1, mode="drop"), [0, 0, 0])):  # known indices
        assert f(pf.Array(x)).tolist() == traced(f, x).tolist() == want


def test_duplicate_indices_set_last_wins():
    rng = np.random.default_rng(0)
    for shape, n in (((4,), 9), ((3, 2), 20), ((5, 0), 3)):
        x = np.zeros(shape, np.float32)
        v = rng.normal(size=(n, *shape[1:])).astype(np.float32)
        i = rng.integers(-shape[0] - 1, shape[0] + 1, n).astype(np.int32)
        inside = (i >= -shape[0]) & (i < shape[0])
        want = x.copy()
        for k in np.flatnonzero(inside):
            want[i[k]] = v[k]
        if x.size:
            np.testing.assert_array_equal(everywhere(lambda x, i, v: x.at[i].set(v), x, i, v), want)
            by_v = pf.jit(pf.grad(lambda x, i, v: x.at[i].set(v).sum(), argnums=2))(x, i, v)
            last = [inside[k] and i[k] % shape[0] not in i[k + 1:][inside[k + 1:]] % shape[0] for k in range(n)]
            np.testing.assert_array_equal(by_v.value, np.reshape(last, (n,) + (1,) * (len(shape) - 1)) + 0 * v)
            lanes = np.stack([i, i[::-1], i * 0])
            each = np.asarray(pf.vmap(lambda x, i, v: x.at[i].set(v), in_axes=(None, 0, None))(x, lanes, v))
            for got, row in zip(each, lanes):
                np.testing.assert_array_equal(got, traced(lambda x, i, v: x.at[i].set(v), x, row, v))


def test_add_accumulates_in_float32():
    x, v = np.array([2048, 0], np.float16), np.ones(8, np.float16)
    i = np.zeros(8, np.int32)
    assert everywhere(lambda x, i, v: x.at[i].add(v), x, i, v).tolist() == [2056, 0]
    assert pf.Array(x).at[i].add(v).tolist() == [2056, 0]
    u = np.array([300, 300, 0.01, 0.5], np.float16)
    assert everywhere(lambda x, i, u: x.at[i].multiply(u), np.float16([1, 2]), i[:4], u).tolist() == [
        float(np.float16(300 * 300 * np.float32(np.float16(0.01)) * 0.5)), 2]


def test_at_of_empty_arrays_and_empty_keys():
    x = pf.Array(np.zeros((0, 3), np.float32))
    assert x.at[:, 1].set(2).shape == (0, 3) and x.at[np.zeros(0, np.int32)].add(1).shape == (0, 3)
    y = pf.Array(V)
    for f in (lambda y: y.at[1:1].set(5), lambda y: y.at[np.zeros(0, np.int32)].multiply(5), lambda y: y.at[[]].max(9)):
        assert f(y).tolist() == V.tolist()
        assert lowered(pf.make_jaxpr(f)(V))(V)[0].tolist() == V.tolist()
    fill = pf.jit(lambda x, i: x.at[i].get(mode="fill", fill_value=1))(np.zeros((0, 2), np.float32), np.int32([0, 3]))
    assert fill.tolist() == [[1, 1], [1, 1]]
    assert pf.jit(lambda x, i: x.at[i].set(1))(np.zeros((0, 2), np.float32), np.int32([0, 3])).shape == (0, 2)


@pytest.mark.parametrize("dtype, value", [("float32", nan), ("float16", nan), ("int8", -128), ("int32", -2 ** 31),
                                          ("uint8", 255), ("bool", True)])
def test_what_is_filled_in_by_default(dtype, value):
    x = np.zeros(2, dtype)
    for got in (pf.Array(x).at[np.array([1, 5])].get(mode="fill"), pnp.take(x, [1, 5], mode="fill"),
                pnp.take_along_axis(x, [1, 5], mode="fill")):
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got.value, np.array([0, value]).astype(dtype))
    want = jnp.asarray(x).at[jnp.array([1, 5])].get(mode="fill")
    np.testing.assert_array_equal(got.value, np.asarray(want))


# ---------------------------------------------------------------------------- programs
def primitives_of(f: Callable[..., Any], *args: Any) -> Counter:
    return Counter(e.primitive.name for e in pf.make_jaxpr(f)(*args).eqns)


def ops_of(f: Callable[..., Any], *args: Any) -> Counter:
    """The ops of a lowered program by name."""
    text = pf.lower(f, *(pf.spec(np.shape(a), np.asarray(a).dtype) for a in args)).as_text()
    return Counter(re.findall(r"ops\.(\w+)\(", text))


TABLE, IDS = np.ones((9, 4), np.float32), np.array([[0, 3, 3], [8, -1, 2]], np.int32)


def test_an_embedding_is_one_gather_and_its_gradient_one_scatter():
    assert ops_of(lambda t, i: pnp.take(t, i, axis=0), TABLE, IDS)["gather"] == 1
    back = ops_of(pf.grad(lambda t, i: (t[i] * 2).sum()), TABLE, IDS)
    assert (back["scatter_reduce"], back["gather"]) == (1, 0)


@pytest.mark.parametrize("f, args, wanted", [
    (lambda t, i: t[i], (np.ones((2, 9, 4), np.float32), IDS), dict(gather=1)),
    (lambda t, i: t.at[i].add(1), (np.ones((2, 9, 4), np.float32), IDS), dict(scatter_reduce=1)),
    (lambda t, i: pnp.dynamic_slice_in_dim(t, i, 3), (np.ones((2, 9, 4), np.float32), IDS[:, 0]), dict(gather=1)),
    (lambda t, i: t.at[i].set(0), (np.ones((2, 9, 4), np.float32), IDS[:, 0]), dict(scatter_reduce=1, gather=1)),
    (lambda t, i: pnp.take_along_axis(t, i[:, None], axis=0), (np.ones((2, 9, 4), np.float32), IDS), dict(gather=1))])
def test_lanes_with_indices_of_their_own_are_read_and_written_at_once(f, args, wanted):
    batched = pf.vmap(f)
    assert {n: ops_of(batched, *args)[n] for n in wanted} == wanted
    want = np.stack([traced(f, *lane) for lane in zip(*args)])
    np.testing.assert_array_equal(traced(batched, *args), want)


def test_one_element_is_written_by_one_dynamic_update():
    ops = ops_of(lambda t, i: t.at[i].set(5), TABLE, np.int32(1))
    assert (ops["dynamic_update"], ops["scatter_reduce"], ops["gather"]) == (1, 0, 0)
    assert ops_of(lambda t: t.at[2:5].set(5), TABLE)["dynamic_update"] == 1
    ops = ops_of(lambda t, u, i: pnp.dynamic_update_slice_in_dim(t, u, i, mode="clip"), TABLE, TABLE[:2], np.int32(1))
    assert (ops["dynamic_update"], ops["dynamic_slice"]) == (1, 0)


def test_indices_that_are_known_take_no_arithmetic():
    assert set(primitives_of(lambda t: t[np.array([0, -1]), np.array([1, 2])], TABLE)) <= {
        "transpose", "reshape", "take"}
    assert set(primitives_of(lambda t: t.at[np.array([0, -1])].multiply(2.0), TABLE)) == {
        "broadcast", "take", "mul", "scatter_set"}


# ---------------------------------------------------------------------------- errors
x, i, b = pf.Array(X), pf.Array(DATA["i"]), pf.Array(DATA["b"])
OUT = "index {} is out of range for axis {}"
MODES = "{}: a mode is {}, got 'wrap'"
ERRORS: List[Tuple[Callable[[], Any], type, List[str]]] = [
    (lambda: x.at[3].set(0), RangeError, [OUT.format(3, 0) + " of f32[3,4]"]),
    (lambda: x.at[[0, 5]].add(0), RangeError, [OUT.format(5, 0) + " of size 3"]),
    (lambda: x.at[:, np.array([-5])].min(0), RangeError, [OUT.format(-5, 1) + " of size 4"]),
    (lambda: x.at[0, 0, 0].get(), RangeError, ["3 indices for f32[3,4], which has 2 axes"]),
    (lambda: x.at[True].get(), RangeError, ["a bool scalar cannot index: a mask has axes",
                                            "way out: pnp.where(condition, x, y)"]),
    (lambda: x.at[0.5].set(0), RangeError, ["an index is an int, a slice, `...`, None or an integer array, got 0.5"]),
    (lambda: x.at[x].set(0), DtypeError, ["an index is an integer, got f32[3,4]"]),
    (lambda: x.at[[0, 1], [0, 1, 2]].set(0), RangeError, ["index arrays do not broadcast: i32[2], i32[3]"]),
    (lambda: x.at[0].set(np.zeros(3, np.float32)), ShapeError, [
        "x.at[...].set: f32[3] does not broadcast to the shape (4,) of what it is written to"]),
    (lambda: x.at[0, 0].add([[1.0]]), ShapeError, [
        "x.at[...].add: f32[1,1] does not broadcast to the shape () of what it is written to"]),
    (lambda: i.at[0].set(0.5), DtypeError, ["x.at[...].set: ~f32[] does not fit into int32, the array is i32[2,3]",
                                            "way out: convert one of them with astype, to int32 or float32"]),
    (lambda: x.astype("float16").at[0].multiply(X[0]), DtypeError, [
        "x.at[...].multiply: f32[4] does not fit into float16, the array is f16[3,4]",
        "way out: convert one of them with astype, to float16 or float32"]),
    (lambda: b.at[0].add(True), DtypeError, ["x.at[...].add of bools is not defined, the array is bool[2,3]",
                                             "way out: x.at[...].set, or convert with astype"]),
    (lambda: x.at[0].get(mode="wrap"), ArgumentError, [MODES.format("x.at[...].get", "'clip' or 'fill'")]),
    (lambda: x.at[0].set(1, mode="wrap"), ArgumentError, [MODES.format("x.at[...].set", "'drop' or 'clip'")]),
    (lambda: pnp.take(x, 0, axis=0, mode="wrap"), ArgumentError, [MODES.format("take", "'clip' or 'fill'")]),
    (lambda: pnp.take(i, 0, axis=0, mode="fill", fill_value=0.5), DtypeError, [
        "take: ~f32[] does not fit into int32, the array is i32[2,3]",
        "way out: convert one of them with astype, to int32 or float32"]),
    (lambda: pnp.take(x, 0, axis=0, mode="fill", fill_value=[0.5]), ShapeError, [
        "take: a fill value is a scalar, got f32[1]"]),
    (lambda: pnp.take_along_axis(x, [[4]], axis=1), RangeError, [OUT.format(4, 1) + " of size 4"]),
    (lambda: pnp.take_along_axis(x, [0], axis=1), ShapeError, [
        "take_along_axis: indices have the rank of the array and its sizes, or 1, along the axes other than 1, got "
        "i32[1] for f32[3,4]"]),
    (lambda: pnp.take_along_axis(x, np.zeros((2, 1), np.int32), axis=1), ShapeError, [
        "take_along_axis: indices have the rank of the array and its sizes, or 1, along the axes other than 1, got "
        "i32[2,1] for f32[3,4]"]),
    (lambda: pnp.put_along_axis(x[:1], np.zeros((3, 1), np.int32), 0, axis=1), ShapeError, [
        "put_along_axis: i32[3,1] has more lanes than f32[1,4]"]),
    (lambda: pnp.put_along_axis(x, [[0]], X, axis=1), ShapeError, [
        "put_along_axis: f32[3,4] does not broadcast to the shape (3, 1) of what it is written to"]),
    (lambda: pnp.dynamic_slice(x, (2, 0), (2, 2)), RangeError, [
        "dynamic_slice: a window of 2 from 2 on is out of range for axis 0 of f32[3,4]"]),
    (lambda: pnp.dynamic_slice_in_dim(x, -1, 2, axis=1), RangeError, [
        "dynamic_slice_in_dim: a window of 2 from -1 on is out of range for axis 1 of f32[3,4]"]),
    (lambda: pnp.dynamic_index_in_dim(x, 3), RangeError, [
        "dynamic_index_in_dim: a window of 1 from 3 on is out of range for axis 0 of f32[3,4]"]),
    (lambda: pnp.dynamic_update_slice(x, x[:2], (2, 0)), RangeError, [
        "dynamic_update_slice: a window of 2 from 2 on is out of range for axis 0 of f32[3,4]"]),
    (lambda: pnp.dynamic_slice(x, (0,), (2, 2)), ShapeError, [
        "dynamic_slice: a start for each of the 2 axes of f32[3,4], got (0,)"]),
    (lambda: pnp.dynamic_slice(x, 1, (2, 2)), ShapeError, [
        "dynamic_slice: a start for each of the 2 axes of f32[3,4], got 1"]),
    (lambda: pnp.dynamic_slice(x, i, (2, 2)), ShapeError, [
        "dynamic_slice: a start for each of the 2 axes of f32[3,4], got i32[2,3]"]),
    (lambda: pnp.dynamic_slice(x, (i, 0), (2, 2)), ShapeError, ["dynamic_slice: a start is a scalar, got i32[2,3]"]),
    (lambda: pnp.dynamic_slice(x, (0.5, 0), (2, 2)), DtypeError, ["an index is an integer, got ~f32[]"]),
    (lambda: pnp.dynamic_slice(x, (0, 0), (2, 5)), ShapeError, [
        "dynamic_slice: a window of sizes (2, 5) does not fit f32[3,4]"]),
    (lambda: pnp.dynamic_slice(x, (0, 0), (2,)), ShapeError, [
        "dynamic_slice: a window of sizes (2,) does not fit f32[3,4]"]),
    (lambda: pnp.dynamic_update_slice(x, x[0], (0, 0)), ShapeError, [
        "dynamic_update_slice: the update has the rank of the array, got f32[4] for f32[3,4]"]),
    (lambda: pnp.dynamic_update_slice(i, x[:1], (0, 0)), DtypeError, [
        "dynamic_update_slice: f32[1,4] does not fit into int32, the array is i32[2,3]",
        "way out: convert one of them with astype, to int32 or float32"])]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    f, error, lines = ERRORS[n]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(x)):
        with pytest.raises(error) as e:
            run()
        first, at, *rest = str(e.value).split("\n  ")
        assert [first, *rest] == lines
        assert at.startswith("at tests/test_numpy_indexing.py:") and at.count(", in <lambda>: ") == 1
