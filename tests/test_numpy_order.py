"""Sorting, scans, counts and quantiles of popfn.numpy: against NumPy (values) and JAX (dtypes, gradients)."""
import re
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_texts import assert_error_text
from hypothesis import given, settings, strategies as st
from references import assert_within, rounded, widened
from test_numpy import EPS, both

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, DtypeError, RangeError, ShapeError

nan, inf = np.nan, np.inf
DATA: Dict[str, np.ndarray] = dict(
    x=np.array([[0.5, -1.5, 2.0, 0.25], [3.25, -0.25, 1.0, -4.0]], np.float32),
    h=np.array([[0.5, -1.5, 2.0], [3.25, -0.25, 1.0]], np.float16),
    t=(np.arange(24, dtype=np.float32) * 7 % 23 / 4 - 2).reshape(2, 4, 3),
    v=np.array([2.0, -1.0, 0.5, 2.0, 7.0, -1.0], np.float32), s=np.array(1.5, np.float32),
    e=np.array([1.0, nan, -inf, 0.0, nan, 1.0, inf, -0.0], np.float32),
    a=np.array([-1.0, 0.5, 0.5, 2.0, 7.0], np.float32), an=np.array([-inf, 0.0, 1.0, inf, nan, nan], np.float32),
    i=np.array([[3, -2, 7, 3], [0, 5, -9, 0]], np.int32), j=np.array([4, 1, 1, 3, -2, 9, 1], np.int32),
    k=np.array([100, 100, -128, 1], np.int8), u=np.array([[200, 100, 255], [1, 9, 1]], np.uint8),
    b=np.array([[True, False, True], [False, False, True]]), z=np.zeros((2, 0, 3), np.float32),
    w=np.array([0.5, 1.0, 2.0, -1.0, 3.0, 4.0, 0.25], np.float32), o=np.array([1, 0, 3, 2, 4], np.int32))

SORTED = ["x", "x,axis=0", "x,axis=-2", "t,axis=1", "h", "i", "i,axis=0", "u", "b", "k", "e", "z,axis=1", "z",
          *(f"{x},descending=True" for x in ("v", "x,axis=0", "u", "k", "b", "e")), "i,descending=True,stable=False"]
SCANNED = ["x,axis=0", "x,axis=-1", "t,axis=1", "h,axis=1", "i,axis=1", "u,axis=0", "b,axis=1", "k,axis=0", "z,axis=1",
           "v,axis=0"]
EXPRESSIONS = [
    *(f"xp.{f}({x})" for f in ("sort", "argsort") for x in SORTED),
    *(f"xp.{f}({x})" for f in ("cumulative_sum", "cumulative_prod", "cumsum", "cumprod", "cummax", "cummin")
      for x in SCANNED),
    *(f"xp.{f}({x},include_initial=True)" for f in ("cumulative_sum", "cumulative_prod") for x in SCANNED),
    *(f"xp.{f}({x})" for f in ("cumsum", "cumprod", "cummax", "cummin") for x in ("x", "i", "b", "s")),
    *(f"xp.{f}({x})" for f in ("cummax", "cummin") for x in ("e", "e[::-1]", "e[2:]")),
    "xp.cumulative_sum(v)", "xp.cumulative_prod(v)", "xp.cumulative_sum(x,axis=1,dtype='float16')",
    "xp.cumsum(b,dtype='float32')", "xp.cumulative_sum(k,dtype='int8')",
    *(f"xp.logcumsumexp({x})" for x in ("x", "x,axis=0", "t,axis=1", "h,axis=1", "100*x,axis=1", "i,axis=1", "z,axis=1",
                                        "e[2:4]", "e[:2]", "e[5:]")),
    *(f"xp.topk({x})[{n}]" for n in (0, 1) for x in (
        "x,2", "x,1,axis=0", "t,3,axis=1", "h,2", "i,4", "u,2", "b,2", "k,3", "e,5", "v,0", "v,6")),
    *(f"xp.searchsorted({x},side='{side}')" for side in ("left", "right") for x in (
        "a,v", "a,x", "a,s", "a,i", "an,e", "an[:4],e", "a[:0],v", "a[:1],v", "a[:4],v", "np.arange(5),k",
        "np.array([False,True]),b", "a,z")),
    "xp.searchsorted(a,v)", "xp.searchsorted(v[:5],a,sorter=np.array([1,2,0,3,4]))",
    "xp.searchsorted(v[:5],a,sorter=o,side='right')", "xp.searchsorted(a,2)",
    "xp.bincount(j,length=5)", "xp.bincount(j,w,length=4)", "xp.bincount(u[1],length=12)", "xp.bincount(j,length=0)",
    "xp.bincount(k,length=200)", "xp.bincount(j,j,length=4)", "xp.bincount(i[0],k,length=4)",
    *(f"xp.histogram({x})[{n}]" for n in (0, 1) for x in (
        "x", "x,4", "v,3,range=(0,6)", "e,4,range=(-1,1)", "w,np.array([0.,1.,2.5,4.])", "i,5", "h,4", "v[:1],2",
        "w,4,weights=v.sum()*w", "v,4,density=True", "z", "v,np.array([0,2,2,3])")),
    *(f"xp.quantile({x})" for x in (
        "x,0.3", "x,np.float32(0.5),axis=1", "t,np.array([0.,0.25,1.],np.float32),axis=(0,2)", "h,0.7,axis=0",
        "x,0.4,axis=1,keepdims=True", "i,0.2", "x,np.array([.1,.9],np.float32),keepdims=True", "v[:1],0.3", "s,0.3",
        *(f"x,np.array([.12,.25,.5,.8],np.float32),axis={axis},method='{m}'" for axis in (1, None)
          for m in ("linear", "lower", "higher", "midpoint", "nearest")))),
    "xp.quantile(e,0.5)", "xp.quantile(np.array([[1,nan],[3,4]],np.float32),0.5,axis=1)",
    *(f"xp.median({x})" for x in ("x", "x,axis=0", "x,axis=1,keepdims=True", "t,axis=(0,2)", "v", "v[:5]", "h", "i",
                                  "e", "np.array([inf,inf],np.float32)")),
    *(f"xp.diff({x})" for x in ("x", "x,axis=0", "x,n=2", "x,n=4", "x,n=0", "i", "b", "u,axis=0", "h", "z,axis=1",
                                "x,prepend=0", "v,append=v[:2]", "i,prepend=i[:,:1],append=7", "x,n=9")),
    *(f"xp.count_nonzero({x})" for x in ("x", "i", "i,axis=0", "b,axis=1,keepdims=True", "e", "z", "z,axis=(0,1)")),
    "xp.argmin(u,axis=1)", "xp.argmin(k)", "xp.argmin(b,axis=0)", "xp.argmin(e)",
]


def numpy_argsort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Stable, NaN last: in descending order what NumPy makes of the negative numbers."""
    return np.argsort(-np.asarray(x, np.float64) if descending else x, axis=axis, kind="stable")


def numpy_sort(x: Any, axis: int = -1, **how: Any) -> Any:
    return np.take_along_axis(x, numpy_argsort(x, axis, **how), axis)


def numpy_topk(x: np.ndarray, k: int, axis: int = -1) -> Tuple[np.ndarray, np.ndarray]:
    x = np.moveaxis(x, axis, -1)
    order = np.argsort(np.where(np.isnan(x), -np.inf, -np.asarray(x, np.float64)), axis=-1, kind="stable")
    nans = np.argsort(~np.isnan(np.take_along_axis(x, order, -1)), axis=-1, kind="stable")
    order = np.take_along_axis(order, nans, -1)[..., :k]
    return np.moveaxis(np.take_along_axis(x, order, -1), -1, axis), np.moveaxis(order, -1, axis)


def numpy_cumulative(f: Any, start: int) -> Callable[..., Any]:
    def cumulative(x: Any, axis: int = 0, dtype: Any = None, include_initial: bool = False) -> Any:
        x = x.astype(int) if x.dtype == bool else x
        y = f(x, axis=axis)
        return np.insert(y, 0, start, axis) if include_initial else y
    return cumulative


def numpy_bincount(x: Any, weights: Any = None, *, length: int) -> Any:
    weights = np.ones(x.shape) if weights is None else weights
    return np.array([weights[x == n].sum() for n in range(length)])


def numpy_scan(f: Any) -> Callable[..., Any]:
    return lambda x, axis=None: f.accumulate(np.ravel(x), 0) if axis is None else f.accumulate(x, axis)


NUMPY = SimpleNamespace(
    sort=numpy_sort, argsort=numpy_argsort, topk=numpy_topk, cumsum=np.cumsum, cumprod=np.cumprod,
    cumulative_sum=numpy_cumulative(np.cumsum, 0), cumulative_prod=numpy_cumulative(np.cumprod, 1),
    cummax=numpy_scan(np.maximum), cummin=numpy_scan(np.minimum), logcumsumexp=numpy_scan(np.logaddexp),
    searchsorted=np.searchsorted, bincount=numpy_bincount, median=np.median, quantile=np.quantile, argmin=np.argmin,
    histogram=np.histogram, diff=np.diff,
    count_nonzero=lambda x, axis=None, keepdims=False: (x != 0).sum(axis=axis, keepdims=keepdims))


def jax_scan(f: Any) -> Callable[..., Any]:
    def scan(x: Any, axis: Any = None) -> Any:
        x = jnp.ravel(x) if axis is None else jnp.asarray(x)
        x = x.astype(jnp.float32) if f is jax.lax.cumlogsumexp and x.dtype.kind != "f" else x
        return f(x, axis=(axis or 0) % x.ndim)
    return scan


def jax_topk(x: Any, k: int, axis: int = -1) -> Any:
    values, order = jax.lax.top_k(jnp.moveaxis(x, axis, -1), k)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(order, -1, axis)


def jax_sorting(f: Any) -> Callable[..., Any]:
    def sorting(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
        return jnp.flip(f(x, axis=axis), axis) if descending else f(x, axis=axis)
    return sorting


def jax_cumulative(f: Any, start: int) -> Callable[..., Any]:
    def cumulative(x: Any, axis: int = 0, dtype: Any = None, include_initial: bool = False) -> Any:
        y = f(x, axis=axis, dtype=dtype)
        if include_initial:
            shape = tuple(1 if n == axis % y.ndim else m for n, m in enumerate(y.shape))
            y = jnp.concatenate([jnp.full(shape, start, y.dtype), y], axis)
        return y
    return cumulative


def jax_searchsorted(x1: Any, x2: Any, side: str = "left", sorter: Any = None) -> Any:
    return jnp.searchsorted(x1 if sorter is None else jnp.take(x1, sorter), x2, side=side)


# What JAX 0.4 lacks is written with what it has.
JAX = SimpleNamespace(**{**{n: getattr(jnp, n, None) for n in vars(NUMPY)}, **dict(
    topk=jax_topk, sort=jax_sorting(jnp.sort), argsort=jax_sorting(jnp.argsort), searchsorted=jax_searchsorted,
    cumulative_sum=jax_cumulative(jnp.cumsum, 0), cumulative_prod=jax_cumulative(jnp.cumprod, 1),
    cummax=jax_scan(jax.lax.cummax), cummin=jax_scan(jax.lax.cummin),
    logcumsumexp=jax_scan(jax.lax.cumlogsumexp))})


def used_names(text: str) -> List[str]:
    return [n for n in DATA if re.search(rf"\b{n}\b", text.split("(", 1)[1])]


def run(text: str, xp: Any, *args: Any) -> Any:
    return eval(text, dict(zip(used_names(text), args), xp=xp, np=np, nan=nan, inf=inf))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_equals_numpy(text):
    names = used_names(text)
    got = both(lambda *args: run(text, pnp, *args), *(pf.Array(DATA[n]) for n in names))
    with np.errstate(all="ignore"):
        want = np.asarray(run(text, NUMPY, *(widened(DATA[n]) for n in names)))
    want = rounded(want, got.dtype)
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got.value, want)
    else:
        size = np.max(np.abs(widened(want)), initial=0.0, where=np.isfinite(widened(want)))
        assert_within(got.value, want, 4 * EPS[got.dtype.name] * size, text)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_lowered_equals_eager(text):
    names = used_names(text)

    def f(*args: Any) -> Any:
        return run(text, pnp, *args)
    want = np.asarray(f(*(pf.Array(DATA[n]) for n in names)))
    got = np.asarray(pf.jit(f)(*(DATA[n] for n in names)))
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    size = np.max(np.abs(widened(want)), initial=0.0, where=np.isfinite(widened(want)))
    assert_within(got, want, 4 * EPS.get(got.dtype.name, 0) * size, text)


#: What JAX refuses, or has other dtypes for.
NOT_AS_JAX = {
    **{f"xp.{f}({x})": "bool" for f in ("cummax", "cummin") for x in ("b", "b,axis=1")},
    "xp.bincount(k,length=200)": "int32", "xp.histogram(z)[1]": "float32",
    "xp.bincount(i[0],k,length=4)": "int32",  # 32 bits, as sums have: JAX keeps 8
    **{f"xp.{f}({x},axis=0{more})": dtype for f in ("cumsum", "cumprod", "cumulative_sum", "cumulative_prod")
       for x, dtype in (
        ("k", "int32"), ("u", "uint32")) for more in ("", ",include_initial=True")},
    **{text: "int32" for text in EXPRESSIONS  # counts, as in NumPy: JAX's are floats, in which large ones are not exact
       if text.startswith("xp.histogram") and text.endswith("[0]") and "weights" not in text and "density" not in text}}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_has_the_dtype_of_jax(text):
    data = [DATA[n] for n in used_names(text)]
    got = pf.eval_shape(lambda *xs: run(text, pnp, *xs), *data)
    want = NOT_AS_JAX.get(text) or jax.eval_shape(lambda *xs: run(text, JAX, *xs), *data).dtype
    assert got.dtype == want


def weak_result(f: Callable[..., Any], number: Any) -> Any:
    return pf.make_jaxpr(lambda n: f(pnp.broadcast_to(n, (3,))))(number).out_avals[0]


def test_weak_types_are_those_of_jax():
    for f in ("sort", "argsort", "cummax", "cummin", "logcumsumexp", "diff", "median"):
        for number in (2, 1.5) if f != "logcumsumexp" else (1.5,):
            got = weak_result(getattr(pnp, f), number)
            want = jax.make_jaxpr(lambda n, f=f: getattr(JAX, f)(jnp.broadcast_to(n, (3,))))(number).out_avals[0]
            assert (got.dtype, got.weak) == (want.dtype, want.weak_type), (f, number)


def test_scans_are_as_weak_as_reductions():
    """JAX 0.4 has them weak, JAX 0.10 has not: both for both."""
    for number in (2, 1.5):
        for f in ("cumsum", "cumprod", "cumulative_sum", "cumulative_prod"):
            assert weak_result(getattr(pnp, f), number).weak == weak_result(pnp.sum, number).weak


# ---------------------------------------------------------------------------- derivatives
GRADIENTS = [
    "xp.sort(x)", "xp.sort(t,axis=1)", "xp.sort(x,axis=0,descending=True)", "xp.topk(x,2)[0]", "xp.topk(t,3,axis=1)[0]",
    "xp.cumsum(x,axis=1)", "xp.cumulative_sum(t,axis=1,include_initial=True)", "xp.cumprod(x,axis=1)",
    "xp.cumprod(t,axis=1)", "xp.cummax(x,axis=1)", "xp.cummin(t,axis=1)", "xp.cummax(x)", "xp.logcumsumexp(x,axis=1)",
    "xp.logcumsumexp(100*x,axis=1)", "xp.logcumsumexp(v)", "xp.diff(x,n=2)", "xp.median(x)", "xp.median(t,axis=1)",
    "xp.quantile(x,np.array([.12,.25,.8],np.float32),axis=1)", "xp.quantile(t,np.float32(0.3),axis=(0,1))",
    "xp.bincount(o,v[:5]**2,length=4)", "xp.cumprod(v*(v<5)*(v>-1))"]


@pytest.mark.parametrize("text", GRADIENTS)
def test_gradients_equal_those_of_jax(text):
    """Of a loss with weights of its own for each element; second derivatives are compared in test_rules.py."""
    data = [DATA[n] for n in used_names(text)]
    at = tuple(n for n, x in enumerate(data) if x.dtype.kind == "f")

    def loss(xp: Any, np_like: Any, *xs: Any) -> Any:
        y = run(text, xp, *xs)
        return np_like.sum(np_like.sin(y) * np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape))
    got = pf.grad(lambda *xs: loss(pnp, pnp, *xs), argnums=at)(*data)
    want = jax.jit(jax.grad(lambda *xs: loss(JAX, jnp, *xs), argnums=at))(*data)
    for g, w in zip(got, want):
        assert g.dtype == w.dtype
        assert_within(np.asarray(g), np.asarray(w), 3e-5 * max(1.0, np.abs(w).max(initial=0)), text)


def gradient(f: Callable[..., Any], x: Any) -> np.ndarray:
    return np.asarray(pf.grad(lambda x: pnp.sum(f(x)))(np.asarray(x, np.float32)))


def test_cumprod_is_differentiated_exactly_where_there_are_zeros():
    np.testing.assert_array_equal(gradient(pnp.cumprod, [2, 0, 3, 4]), [1, 2 * (1 + 3 + 12), 0, 0])
    np.testing.assert_array_equal(gradient(pnp.cumprod, [0, 5, 0, 2]), [1 + 5, 0, 0, 0])


def test_ties_give_the_derivative_to_the_first():
    np.testing.assert_array_equal(gradient(pnp.cummax, [1, 1, 0, 2, 2]), [3, 0, 0, 2, 0])
    np.testing.assert_array_equal(gradient(pnp.cummin, [1, 1, 2, 0, 0]), [3, 0, 0, 2, 0])
    np.testing.assert_array_equal(gradient(lambda x: pnp.sort(x) * np.array([1, 2, 4]), [5, 5, 5]), [1, 2, 4])
    np.testing.assert_array_equal(gradient(lambda x: pnp.topk(x, 2)[0] * np.array([1, 2]), [5, 7, 5]), [2, 1, 0])


def test_masked_elements_get_no_gradient_from_logcumsumexp():
    np.testing.assert_array_equal(gradient(pnp.logcumsumexp, [-inf, -inf]), [1, 0])  # of the first it is x itself
    np.testing.assert_allclose(gradient(pnp.logcumsumexp, [-inf, 0, -inf]), [1, 2, 0])


# ---------------------------------------------------------------------------- conventions
def test_nan_comes_last_in_both_directions_and_first_in_topk():
    x = np.array([nan, 1, inf, nan, -inf], np.float32)
    np.testing.assert_array_equal(pnp.argsort(x), [4, 1, 2, 0, 3])
    np.testing.assert_array_equal(pnp.argsort(x, descending=True), [2, 1, 4, 0, 3])
    np.testing.assert_array_equal(pnp.topk(x, 4)[1], [0, 3, 2, 1])
    assert pnp.topk(x, 1)[1][0] == pnp.argmax(x)


def test_ties_keep_their_order_in_both_directions():
    x = np.array([0.0, 1, -0.0, 1, 0.0], np.float32)
    for y in (x, x.astype(np.int8), x.astype(bool)):
        np.testing.assert_array_equal(pnp.argsort(y), [0, 2, 4, 1, 3])
        np.testing.assert_array_equal(pnp.argsort(y, descending=True), [1, 3, 0, 2, 4])
        np.testing.assert_array_equal(pnp.topk(y, 3)[1], [1, 3, 0])


def test_a_quantile_at_an_infinite_element_is_that_element():
    """NumPy 2 has NaN, by way of 0 * inf."""
    x = np.array([-inf, 0, 1, inf], np.float32)
    np.testing.assert_array_equal(pnp.quantile(x, np.array([0.0, 1.0], np.float32)), [-inf, inf])


def test_float16_is_accumulated_in_float32():
    x = np.array([2048] + [1] * 8, np.float16)
    np.testing.assert_array_equal(pnp.cumsum(x), np.cumsum(x.astype(np.float32)).astype(np.float16))
    assert pnp.cumsum(x)[8] == 2056 and pnp.quantile(np.array([60000, 65000], np.float16), 0.5) == 62500
    np.testing.assert_array_equal(pf.grad(lambda x: pnp.cumsum(x)[8] + pnp.cumsum(x)[0])(x), [2] + [1] * 8)


def test_a_histogram_counts_what_is_within_its_edges():
    """Each bin has its lower edge, the last its upper edge; NaN and what is outside is not counted."""
    x = np.array([-1, 0, 0.5, 1, 2, 2.5, nan, inf, -inf], np.float32)
    np.testing.assert_array_equal(pnp.histogram(x, np.array([0, 1, 2], np.float32))[0], [2, 2])


def test_histograms_of_random_data_equal_those_of_numpy_for_the_same_edges():
    random = np.random.RandomState(0)
    for dtype, bins in (("float32", 7), ("float16", 10), ("int32", 13)):
        x = (random.standard_normal(500) * 9).astype(dtype)
        counts, edges = pnp.histogram(x, bins)
        np.testing.assert_array_equal(counts, np.histogram(x, np.asarray(edges))[0])
        assert int(pnp.sum(counts)) == 500 and len(edges) == bins + 1


def test_reading_by_argsort_is_differentiated_like_sort():
    weights = np.array([[1.0, 2, 4]], np.float32)
    for axis, shape in ((0, (3, 1)), (1, (1, 3))):
        x, w = np.array([3.0, 1, 2], np.float32).reshape(shape), weights.reshape(shape)
        by_index = pf.grad(lambda x, axis=axis, w=w: pnp.sum(
            pnp.take(pnp.reshape(x, -1), pnp.reshape(pnp.argsort(x, axis), -1), axis=0) * w.ravel()))(x)
        np.testing.assert_array_equal(by_index, pf.grad(lambda x, axis=axis, w=w: pnp.sum(pnp.sort(x, axis) * w))(x))
        np.testing.assert_array_equal(np.ravel(by_index), [4, 1, 2])


# ---------------------------------------------------------------------------- properties
NUMBERS = {"f": st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, inf, -inf, nan]), "i": st.integers(-3, 3),
           "u": st.integers(0, 5)}


@st.composite
def arrays(draw: Any, sizes: Any) -> Tuple[np.ndarray, int]:
    """An array with many ties, and one of its axes."""
    dtype = np.dtype(draw(st.sampled_from(["float32", "float16", "int32", "int8", "uint8", "uint32"])))
    shape = list(draw(st.sampled_from([(), (2,), (3, 2)])))
    axis = draw(st.integers(0, len(shape)))
    shape.insert(axis, draw(sizes))
    pool = np.array(draw(st.lists(NUMBERS[dtype.kind], min_size=1, max_size=8)), dtype)
    seed = draw(st.integers(0, 2 ** 16))
    return pool[np.random.RandomState(seed).randint(0, len(pool), shape)], axis


@settings(deadline=None, max_examples=max(20, settings.default.max_examples // 5))
@given(arrays(st.integers(1, 300)), st.data())
def test_compiled_order_equals_numpy(array_and_axis, data):
    """What a network of comparisons makes of an axis, and the k-th value of a long one, against NumPy's sort."""
    x, axis = array_and_axis
    k = data.draw(st.integers(1, x.shape[axis]))

    def f(x: Any) -> Any:
        return (pnp.sort(x, axis), pnp.argsort(x, axis), pnp.argsort(x, axis, descending=True), *pnp.topk(x, k, axis))
    want = (numpy_sort(x, axis), numpy_argsort(x, axis), numpy_argsort(x, axis, descending=True),
            *numpy_topk(x, k, axis))
    for got in (f(pf.Array(x)), pf.jit(f)(x)):
        for y, w in zip(got, want):
            np.testing.assert_array_equal(np.asarray(y), w)


@settings(deadline=None, max_examples=max(50, settings.default.max_examples // 2))
@given(arrays(st.integers(0, 40)), st.data())
def test_searchsorted_equals_numpy(array_and_axis, data):
    lane = np.sort(array_and_axis[0].ravel())
    v = np.array(data.draw(st.lists(NUMBERS[lane.dtype.kind], max_size=9)), lane.dtype)
    for side in ("left", "right"):
        np.testing.assert_array_equal(pnp.searchsorted(lane, v, side=side), np.searchsorted(lane, v, side=side))


@pytest.mark.parametrize("f", [
    lambda x, v: pnp.searchsorted(pnp.sort(x), v), lambda x, v: pnp.histogram(x, 5, weights=v)[0],
    lambda x, v: pnp.bincount(pnp.astype(x * 3, "int32"), v, length=4), lambda x, v: pnp.quantile(x, 0.3) * v,
    lambda x, v: pnp.topk(x + v, 3)[0], lambda x, v: pnp.diff(pnp.cumprod(x) + v, prepend=0),
    lambda x, v: pnp.logcumsumexp(x * v)])
def test_vmap_equals_a_loop(f):
    random = np.random.RandomState(0)
    x, v = (random.standard_normal((4, 9)).astype(np.float32) for _ in range(2))
    for axes in ((0, 0), (0, None), (None, 0)):
        got = pf.vmap(f, in_axes=axes)(*(a if d == 0 else a[0] for a, d in zip((x, v), axes)))
        want = [f(*(a[n] if d == 0 else a[0] for a, d in zip((x, v), axes))) for n in range(4)]
        np.testing.assert_allclose(got, np.stack([np.asarray(w) for w in want]), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------------- errors
x, i, v = (pf.Array(DATA[n]) for n in "xiv")
ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: pnp.sort(x, axis=2), ShapeError, "sort: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.sort(1.5), ShapeError, "sort: axis -1 is not an axis of a value of rank 0"),
    (lambda: pnp.argsort(x, -3), ShapeError, "argsort: axis -3 is not an axis"),
    (lambda: pnp.topk(x, 5), ShapeError, "topk: k is a count of at most 4 elements along axis 1 of f32[2,4], got 5"),
    (lambda: pnp.topk(x, -1), ShapeError, "topk: k is a count of at most 4 elements"),
    (lambda: pnp.topk(x, 1.5, axis=0), ShapeError, "a count of at most 2 elements along axis 0 of f32[2,4], got 1.5"),
    (lambda: pnp.topk(x, i), ShapeError, "topk: k is a count of at most 4"),
    (lambda: pnp.searchsorted(x, v), ShapeError, "searchsorted: x1 has one axis, got f32[2,4]"),
    (lambda: pnp.searchsorted(v, x, side="middle"), ArgumentError,
     "searchsorted: side is 'left' or 'right', got 'middle'"),
    (lambda: pnp.searchsorted(v, x, sorter=np.array([0, 9])), RangeError,
     "index 9 is out of range for axis 0 of size 6"),
    (lambda: pnp.bincount(x, length=3), DtypeError, "bincount counts integers, got f32[2,4]\n"),
    (lambda: pnp.bincount(i, x[0], length=3), ShapeError, "weights have the shape of x, got f32[4] for i32[2,4]"),
    (lambda: pnp.bincount(i, length=-1), ShapeError, "bincount: length is a count of 0 or more, got -1"),
    (lambda: pnp.histogram(x, 0), ShapeError, "histogram: a number of bins is 1 or more, got 0"),
    (lambda: pnp.histogram(x, x), ShapeError, "edges are an array of one axis with two elements or more, got f32[2,4]"),
    (lambda: pnp.quantile(x, 1.5), RangeError, "quantile: q lies within 0 and 1, got 1.5"),
    (lambda: pnp.quantile(x, np.array([0.5, nan])), RangeError, "quantile: q lies within 0 and 1, got [0.5, nan]"),
    (lambda: pnp.quantile(x, x), ShapeError, "quantile: q is a number or has one axis, got f32[2,4]"),
    (lambda: pnp.quantile(x, 0.5, method="best"), ArgumentError, "quantile: method is one of linear, lower, higher, "
     "midpoint, nearest, got 'best'"),
    (lambda: pnp.median(pnp.zeros((0, 2)), axis=0), ShapeError, "median of no elements: f32[0,2] over axes (0,)"),
    (lambda: pnp.cumulative_sum(x), ShapeError, "cumulative_sum: an axis may be left out only where there is one, got "
     "f32[2,4]"),
    (lambda: pnp.cumulative_prod(x, axis=2), ShapeError, "cumulative_prod: axis 2 is not an axis"),
    (lambda: pnp.cumsum(x, 2), ShapeError, "cumsum: axis 2 is not an axis"),
    (lambda: pnp.cummin(x, 2), ShapeError, "cummin: axis 2 is not an axis"),
    (lambda: pnp.logcumsumexp(x, 2), ShapeError, "logcumsumexp: axis 2 is not an axis"),
    (lambda: pnp.diff(x, n=-1), ShapeError, "diff: n is a count of 0 or more, got -1"),
    (lambda: pnp.diff(x, axis=5), ShapeError, "diff: axis 5 is not an axis"),
    *((lambda f=f: f(x), ShapeError,
       f"{f.__name__}: how many different values there are depends on the values, and a shape cannot\n")
      for f in (pnp.unique, pnp.unique_all, pnp.unique_counts, pnp.unique_inverse, pnp.unique_values))]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    assert_error_text(*ERRORS[n], __file__)


def test_refusals_name_a_way_out():
    for f, text in ((lambda: pnp.unique(x), "way out: s = pnp.sort(x); pnp.diff(s) != 0 marks where"),
                    (lambda: pnp.bincount(x, length=3), "way out: histogram counts floats"),
                    (lambda: pnp.cumulative_sum(x), "way out: axis=0, or another")):
        with pytest.raises(ValueError if "bincount" not in text and "histogram" not in text else TypeError,
                           match=re.escape(text)):
            f()
