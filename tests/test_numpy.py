"""popfn.numpy against NumPy (values), against JAX (dtypes), and against itself traced; indexing and operators."""
import itertools
import operator
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_texts import assert_error_text
from hypothesis import given, settings, strategies as st
from references import assert_within, rounded, widened
from scipy import special

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import DtypeError, NarrowingError, RangeError, ShapeError

PUBLIC = sorted(n for n, f in vars(pnp).items()
                if callable(f) and getattr(f, "__module__", "").startswith("popfn.numpy") and not n.startswith("_"))
EPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}


def both(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args) at once; asserts that the traced program gives the same bits and types."""
    eager = f(*args)
    jaxpr = pf.make_jaxpr(f)(*args).check()
    traced = jaxpr.eval(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))
    assert eager.aval is jaxpr.out_avals[0]
    np.testing.assert_array_equal(eager.value, traced[0])
    return eager


# ---------------------------------------------------------------------------- a table of expressions
DATA: Dict[str, np.ndarray] = dict(
    x=np.array([[0.5, -1.5, 2.0], [3.25, -0.25, 1.0]], np.float32),
    y=np.array([[1.5, 2.0, -0.5], [0.25, 4.0, 1.0]], np.float32),
    v=np.array([2.0, -1.0, 0.5], np.float32), s=np.array(1.5, np.float32), p=np.array([0.1, 1.0, 7.5], np.float32),
    h=np.array([[0.5, -1.5, 2.0], [3.25, -0.25, 1.0]], np.float16),
    t=np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 4 - 1,
    w=np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4) / 8 - 1, z=np.zeros((2, 0, 3), np.float32),
    i=np.array([[3, -2, 7], [0, 5, -9]], np.int32), j=np.array([2, -3, 4], np.int32),
    k=np.array([[1, 2], [0, 1]], np.int8),
    u=np.array([[3, 0, 255], [1, 9, 2]], np.uint8), b=np.array([[True, False, True], [False, False, True]]),
    c=np.array([True, True, False]), o=np.array([[[1.0]], [[2.0]]], np.float32))


def unary(names: str, operands: str) -> List[str]:
    return [f"xp.{n}({x})" for n in names.split() for x in operands.split()]


def binary(names: str, pairs: str) -> List[str]:
    return [f"xp.{n}({pair})" for n in names.split() for pair in pairs.split()]


NUMERIC = "x,y x,v s,x h,h i,j i,u x,i h,i x,2 2,x i,3 x,2.5 h,0.1 u,2 z,v x,h"
REDUCED = ["x", "x,axis=0", "x,axis=-1,keepdims=True", "t,axis=(0,2)", "t,axis=(-1,),keepdims=True", "h,axis=1",
           "i,axis=0",
           "u", "s", "t,axis=()", "o,axis=(1,2)"]
EXPRESSIONS = [
    *binary("add multiply subtract maximum minimum divide", NUMERIC),
    *binary("add multiply maximum minimum", "b,c"),
    *binary("floor_divide remainder", "x,y x,v i,j u,j x,2 i,3 7,j s,s h,2"),
    *binary("equal not_equal less less_equal greater greater_equal", "x,y i,j u,3 b,c h,0.5 x,i 2,x"),
    *binary("logical_and logical_or logical_xor", "b,c x,c i,u"),
    *unary("logical_not", "b x u"),
    *unary("negative abs sign square positive floor ceil", "x h i s"),
    *unary("negative", "u"),
    "xp.abs(u)", "xp.abs(b)", "xp.sign(u)",
    *unary("exp expm1 sin cos tanh erf", "x h i u b s z"),
    *unary("log sqrt rsqrt reciprocal", "p s"),
    *unary("log1p", "p i*i"),
    "xp.pow(p,2.5)", "xp.pow(x,3)", "xp.pow(x,2.0)", "xp.pow(i,3)", "xp.pow(u,2)", "xp.pow(p,x)", "xp.pow(2,x)",
    "xp.pow(h,2)", "xp.pow(p,-2)", "xp.pow(x,0)", "xp.clip(x,-1,1)", "xp.clip(i,0,None)", "xp.clip(h,None,0.5)",
    "xp.clip(x,v,2)", "xp.clip(u,2,100)", "xp.where(b,x,y)", "xp.where(c,i,0)", "xp.where(b,1.0,x)",
    "xp.where(x>0,x,h)", "xp.where(b,i,s)", "xp.where(u,x,0)", "xp.asarray(x)", "xp.asarray([[1,2],[3,4]])",
    "xp.asarray([1.5,2])", "xp.asarray(i,dtype='float16')", "xp.astype(x,'int32')", "xp.astype(i,'float16')",
    "xp.astype(x,'bool')", "xp.astype(b,'float32')", "xp.astype(u,'int8')", "xp.full((2,3),1.5)", "xp.full(3,7)",
    "xp.full((),True)", "xp.full((2,),s)", "xp.full((2,),2,dtype='float16')", "xp.zeros((2,3))",
    "xp.ones(2,dtype='int32')", "xp.zeros((0,2))", "xp.full_like(x,2)", "xp.full_like(i,3,dtype='float32')",
    "xp.zeros_like(h)", "xp.ones_like(b)", "xp.ones_like(x,dtype='int8')", "xp.arange(5)", "xp.arange(2,7)",
    "xp.arange(9,0,-2)", "xp.arange(3,3)", "xp.arange(4,dtype='float32')", "xp.eye(3)", "xp.eye(2,dtype='int32')",
    "xp.reshape(x,(3,2))", "xp.reshape(x,-1)", "xp.reshape(t,(2,-1))", "xp.reshape(z,(3,0))", "xp.reshape(s,(1,1))",
    "xp.permute_dims(t,(2,0,1))", "xp.permute_dims(t,(-1,-2,-3))", "xp.matrix_transpose(t)", "xp.matrix_transpose(x)",
    "xp.moveaxis(t,0,2)", "xp.moveaxis(t,-1,0)", "xp.squeeze(w)", "xp.squeeze(o,axis=1)", "xp.squeeze(o,axis=(1,-1))",
    "xp.expand_dims(x,axis=0)", "xp.expand_dims(x,axis=-1)", "xp.expand_dims(x,axis=1)", "xp.broadcast_to(v,(2,3))",
    "xp.broadcast_to(s,(2,2))", "xp.concat([x,y])", "xp.concat([x,y],axis=1)", "xp.concat([x,i],axis=-1)",
    "xp.concat([x,v],axis=None)", "xp.concat([x])", "xp.concatenate([h,h],axis=1)", "xp.concatenate((i,u))",
    "xp.stack([x,y])", "xp.stack([v,j],axis=1)", "xp.stack([x,y],axis=-1)", "xp.flip(t,axis=None)",
    "xp.flip(x,axis=1)", "xp.flip(t,axis=(0,-1))", "xp.pad(x,1)", "xp.pad(x,((0,2),(1,0)))",
    "xp.pad(x,(1,2),constant_values=3)", "xp.pad(i,((0,0),(1,1)),constant_values=-1)", "xp.take(x,k,axis=1)",
    "xp.take(x,np.array([2,-1,0]),axis=1)", "xp.take(t,np.array([-1]),axis=-2)", "xp.take(v,k)", "xp.take(x,5)",
    *[f"xp.{n}({x})" for n in "sum prod mean var std max min any all".split() for x in REDUCED],
    *unary("sum prod any all mean max min", "b"),
    *unary("sum prod any all", "z"),
    "xp.sum(z,axis=1)", "xp.max(z,axis=2)", "xp.sum(x,dtype='float16')", "xp.sum(b,dtype='float32')",
    "xp.prod(u,axis=0,dtype='int32')", "xp.var(x,correction=1)", "xp.std(t,axis=(0,1),correction=1)",
    "xp.var(i,axis=1)",
    *[f"xp.{n}({x})" for n in ("argmax", "argmin")
      for x in ("x", "x,axis=0", "x,axis=-1,keepdims=True", "i,axis=1", "u,axis=0", "b,axis=1", "h",
                "x,keepdims=True", "k")],
    *binary("matmul", "x,y.T x,v v,v v,y.T t,t.mT w,w.mT t,x.T i,i.T h,h.T u,u.T b,b.T x,i.T v,t.mT x,z.mT"),
    *binary("vecdot", "x,y x,v i,i"),
    "xp.vecdot(x,y,axis=0)", "xp.tensordot(t,x.T,axes=1)", "xp.tensordot(x,y,axes=2)", "xp.tensordot(v,x,axes=0)",
    "xp.tensordot(t,x,axes=((2,0),(1,0)))", "xp.tensordot(i,j,axes=1)",
]


def outside(xp: Any) -> Any:
    """NumPy or JAX under the array API standard's names, with the few functions that they lack."""
    more = dict(
        concat=lambda xs, axis=0: xp.concatenate(xs, axis=axis), permute_dims=xp.transpose, pow=xp.power,
        erf=special.erf if xp is np else jax.scipy.special.erf,
        matrix_transpose=lambda x: xp.swapaxes(x, -1, -2), astype=lambda x, dtype: xp.asarray(x).astype(dtype),
        vecdot=lambda x, y, axis=-1: xp.sum(x * y, axis), rsqrt=lambda x: 1 / xp.sqrt(x),
        reciprocal=lambda x: 1 / xp.asarray(x),
        sign=lambda x: x.astype(x.dtype) if x.dtype.kind == "b" else xp.sign(x),
        clip=lambda x, low, high: xp.minimum(xp.maximum(x, -99 if low is None else low), 99 if high is None else high),
        var=lambda x, axis=None, correction=0, keepdims=False: xp.var(x, axis=axis, ddof=correction, keepdims=keepdims),
        std=lambda x, axis=None, correction=0, keepdims=False: xp.std(x, axis=axis, ddof=correction, keepdims=keepdims))
    return SimpleNamespace(**{**{n: getattr(xp, n, None) for n in PUBLIC}, **more})


NUMPY, JAX = outside(np), outside(jnp)


class Wide(np.ndarray):
    """A NumPy array with `mT`, which NumPy 1 lacks."""

    mT = property(lambda self: np.swapaxes(self, -1, -2))


def used_names(text: str) -> List[str]:
    return [n for n in DATA if re.search(rf"\b{n}\b", text.split("(", 1)[1])]


#: What the files of the other families call.
TESTED_ELSEWHERE = {name for file in Path(__file__).parent.glob("test_numpy_*.py")
                    for name in re.findall(r"\b(?:xp|pnp)\.(\w+)", file.read_text("utf-8"))}


def test_every_public_function_is_in_a_table():
    assert len(PUBLIC) >= 75
    used = set(re.findall(r"xp\.(\w+)", " ".join(EXPRESSIONS)))
    assert set(PUBLIC) - used - TESTED_ELSEWHERE == set()


FLOATS = "exp expm1 sin cos tanh erf log sqrt rsqrt reciprocal log1p".split()


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_equals_numpy(text):
    names = used_names(text)
    code = compile(text, text, "eval")

    def f(*args: Any) -> Any:
        return eval(code, dict(zip(names, args), xp=pnp, np=np))
    got = both(f, *(pf.Array(DATA[n]) for n in names))
    with np.errstate(all="ignore"):
        floats = re.match(r"xp\.(\w+)", text).group(1) in FLOATS  # NumPy's of bools are in float16
        data = {n: DATA[n].astype(int) if floats and DATA[n].dtype == bool else DATA[n] for n in names}
        wide = {n: widened(x).view(Wide) for n, x in data.items()}
        want = np.asarray(eval(code, dict(wide, xp=NUMPY, np=np)))
    want = rounded(want, got.dtype)
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got.value, want)
    else:
        size = np.max(np.abs(widened(want)), initial=0.0, where=np.isfinite(widened(want)))
        assert_within(got.value, want, 4 * EPS[got.dtype.name] * size, text)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_has_the_dtype_of_jax(text):
    names = used_names(text)
    got = pf.eval_shape(lambda *xs: eval(text, dict(zip(names, xs), xp=pnp, np=np)), *(DATA[n] for n in names))
    want = jax.eval_shape(lambda *xs: eval(text, dict(zip(names, xs), xp=JAX, np=np)), *(DATA[n] for n in names))
    whole = text in ("xp.floor(i)", "xp.ceil(i)")  # JAX 0.4 gave float32, the array API standard says int32
    assert (got.dtype, got.shape) == (np.int32 if whole else want.dtype, want.shape)


# ---------------------------------------------------------------------------- promotion
DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"]
VALUES = [*((d, (2,)) for d in DTYPES), *((d, ()) for d in DTYPES),
          (True, None), (2, None), (1.5, None), ("weak", 2), ("weak", 1.5)]


def value(kind: Any, xp: Any) -> Any:
    """An operand: an array of a dtype, a Python number, or an array that is weak because it was one."""
    what, more = kind
    if what == "weak":
        return xp.asarray(more)
    return np.ones(more, what) if isinstance(what, str) else what


def promoting(name: str, xp: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: xp.where(np.True_, x, y) if name == "where" else getattr(xp, name)(x, y)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "divide", "less", "where"])
def test_promotion_equals_jax(name):
    for a, b in itertools.product(VALUES, repeat=2):
        want = jax.make_jaxpr(promoting(name, jnp))(value(a, jnp), value(b, jnp)).out_avals[0]
        got = both(promoting(name, pnp), value(a, pnp), value(b, pnp)).aval
        weak = want.weak_type and name != "less"  # a bool is never weak
        assert (got.dtype, got.weak, got.shape) == (want.dtype, weak, want.shape), (name, a, b)


def test_promotion_of_python_numbers_in_the_function_equals_jax():
    for d, number in itertools.product(DTYPES, (True, 2, 1.5)):
        for name in ("add", "multiply", "maximum", "divide"):
            for swap in (False, True):
                def f(x: Any, xp: Any, name: str = name, n: Any = number, swap: bool = swap) -> Any:
                    return getattr(xp, name)(n, x) if swap else getattr(xp, name)(x, n)
                want = jax.make_jaxpr(lambda x: f(x, jnp))(np.ones(2, d)).out_avals[0]
                got = both(lambda x: f(x, pnp), np.ones(2, d)).aval
                assert (got.dtype, got.weak) == (want.dtype, want.weak_type), (name, d, number)


def test_float8_promotes_with_itself_and_numbers_only():
    x = pf.Array(np.ones(2, np.float32), "float8_143")
    assert pnp.where(np.array([True, False]), x, 0.0).dtype == pf.float8_143
    for d in ("float16", "float32", "float8_152"):
        with pytest.raises(DtypeError, match="have no common dtype: convert one of them with astype"):
            pnp.where(True, x, pf.Array(np.ones(2, np.float32), d))


def test_python_integers_must_fit():
    for d, number in (("int8", 300), ("uint8", -1), ("int32", 2 ** 31), ("uint8", 256), ("float16", 70000)):
        for f in (operator.add, lambda x, n: n * x, pnp.maximum, lambda x, n: x == n):
            with pytest.raises(OverflowError, match=f"Python integer {number} does not fit {d}") as e:
                f(pf.Array(np.ones(2, d)), number)
            assert isinstance(e.value, NarrowingError)


# ---------------------------------------------------------------------------- operators
BINARY_OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
                    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
OPERANDS = [np.array([3.0, -2.0, 5.5], np.float32), np.array([2, 3, -4], np.int32), np.array(2.5, np.float32)]


@pytest.mark.parametrize("op", BINARY_OPERATORS, ids=lambda f: f.__name__)
def test_operators_with_arrays_on_either_side(op):
    for x, y in itertools.product(OPERANDS, repeat=2):
        want = op(widened(x), widened(y))
        results = [both(op, pf.Array(x), pf.Array(y)), both(lambda a, y=y: op(a, y), pf.Array(x)), op(pf.Array(x), y),
                   both(lambda b, x=x: op(x, b), pf.Array(y)), op(x, pf.Array(y))]
        for got in results:
            assert type(got) is pf.Array and got.aval is results[0].aval
            assert_within(got.value, want, 1e-5, op.__name__)


@pytest.mark.parametrize("op", BINARY_OPERATORS, ids=lambda f: f.__name__)
def test_operators_with_numbers_on_either_side(op):
    for x, n in itertools.product(OPERANDS, (2, -3, 2.5)):
        for f, want in ((lambda a, n=n: op(a, n), op(widened(x), n)), (lambda a, n=n: op(n, a), op(n, widened(x)))):
            got = both(f, pf.Array(x))
            assert_within(got.value, np.asarray(want), 1e-5, op.__name__)
            whole = x.dtype == np.int32 and isinstance(n, int) and op is not operator.truediv
            assert got.dtype == (bool if want.dtype == bool else np.int32 if whole else np.float32)


def test_the_other_operators():
    x, i, b = (pf.Array(v) for v in (OPERANDS[0], OPERANDS[1], np.array([True, False, True])))
    m = np.arange(6, dtype=np.float32).reshape(3, 2)
    for f, args, want in [
            (lambda x: -x, (x,), -OPERANDS[0]), (lambda x: +x, (x,), OPERANDS[0]), (abs, (x,), abs(OPERANDS[0])),
            (lambda x: x ** 2, (x,), OPERANDS[0] ** 2), (lambda i: 2.0 ** i, (i,), 2.0 ** OPERANDS[1]),
            (lambda x: x @ m, (x,), OPERANDS[0] @ m), (lambda x: m.T @ x, (x,), m.T @ OPERANDS[0]),
            (lambda b: ~b, (b,), [False, True, False]),
            (lambda b: b & np.array([True, True, False]), (b,), [True, False, False]),
            (lambda b: np.array([True, True, False]) | b, (b,), [True, True, True]),
            (lambda b: True ^ b, (b,), [False, True, False]),
            (lambda x: divmod(x, 2)[0], (x,), OPERANDS[0] // 2), (lambda x: divmod(7, x)[1], (x,), 7 % OPERANDS[0])]:
        np.testing.assert_allclose(both(f, *args).value, np.asarray(want), rtol=1e-6)


METHODS = ["x.T", "x.mT", "x.astype('float16')", "x.reshape(3,2)", "x.reshape((3,2))", "x.reshape(-1)", "x.transpose()",
           "x.transpose(1,0)", "x.transpose((1,0))", "x.ravel()", "x.flatten()",
           "x[None].squeeze()", "x[None].squeeze(0)",
           *[f"x.{n}({a})" for n in ("sum", "mean", "prod", "max", "min", "any", "all")
             for a in ("", "0", "axis=1", "-1,keepdims=True")],
           "x.argmax()", "x.argmin(1)", "x.clip(-1,1)", "x.dot(x.T)", "x.var()", "x.std(0)"]


@pytest.mark.parametrize("text", METHODS)
def test_methods_equal_numpy(text):
    got = both(lambda x: eval(text), pf.Array(DATA["x"]))
    want = eval(text, dict(x=DATA["x"].view(Wide)))
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.value, np.asarray(want), rtol=1e-6)


# ---------------------------------------------------------------------------- indexing
@st.composite
def keys(draw: Any, shape: Tuple[int, ...]) -> Tuple[Any, ...]:
    """A key into an array of a shape: ints, slices with any steps, `...`, None, integer arrays that broadcast."""
    used = draw(st.integers(0, len(shape)))
    head = draw(st.integers(0, used))
    axes = list(range(head)) + list(range(len(shape) - used + head, len(shape)))
    common = draw(st.sampled_from([(), (3,), (2, 1), (2, 3), (0,)]))
    key: List[Any] = []
    for axis in axes:
        n = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "slice", "array"] if n else ["slice"]))
        if kind == "int":
            key.append(draw(st.integers(-n, n - 1)))
        elif kind == "array":
            suffix = common[draw(st.integers(0, len(common))):]
            sizes = tuple(1 if m != 1 and draw(st.integers(0, 4)) == 0 else m for m in suffix)
            count = int(np.prod(sizes, dtype=int))
            flat = draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count))
            key.append(np.array(flat, draw(st.sampled_from([np.int32, np.int64, np.int8]))).reshape(sizes))
        else:
            ends = st.one_of(st.none(), st.integers(-n - 2, n + 2))
            step = draw(st.one_of(st.none(), st.integers(-3, 3).filter(bool)))
            key.append(slice(draw(ends), draw(ends), step))
    if used < len(shape) or draw(st.booleans()):
        if head < used or draw(st.booleans()):
            key.insert(head, Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


@settings(max_examples=max(300, settings.default.max_examples))
@given(st.lists(st.integers(0, 4), max_size=3).flatmap(lambda s: st.tuples(st.just(tuple(s)), keys(tuple(s)))))
def test_indexing_equals_numpy(shape_and_key):
    shape, key = shape_and_key
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    want = x[key]
    got = both(lambda a: a[key], pf.Array(x))
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.value, want)
    if len(key) == 1:
        np.testing.assert_array_equal(pf.Array(x)[key[0]].value, want)
    places = [n for n, item in enumerate(key) if isinstance(item, np.ndarray)]

    def traced(a: Any, *indices: Any) -> Any:
        items = list(key)
        for n, index in zip(places, indices):
            items[n] = index
        return a[tuple(items)]
    np.testing.assert_array_equal(both(traced, pf.Array(x), *(key[n].astype(np.int32) for n in places)).value, want)
    np.testing.assert_array_equal(traced(pf.Array(x), *(key[n].tolist() for n in places)).value, want)


def test_indices_out_of_range():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    bad: List[Tuple[Any, str]] = [
        (2, "index 2 is out of range for axis 0 of f32[2,3]"), (-3, "index -3 is out of range for axis 0"),
        ((0, 3), "index 3 is out of range for axis 1"),
        ((slice(None), np.array([0, -4])), "index -4 is out of range for axis 1 of size 3"),
        ([0, 5], "index 5 is out of range for axis 0 of size 2"),
        ((0, 0, 0), "3 indices for f32[2,3], which has 2 axes"),
        ((..., ...), "one `...` at most"), (1.5, "an int, a slice, `...`, None or an integer array, got 1.5"),
        (np.array([True, False, True]), "a mask has the sizes of the axes that it stands for: bool[3] at axis 0"),
        ("a", "an int, a slice, `...`, None or an integer array, got 'a'")]
    for key, text in bad:
        for run in (lambda a, key=key: a[key], pf.make_jaxpr(lambda a, key=key: a[key])):
            with pytest.raises(IndexError, match=re.escape(text)) as e:
                run(pf.Array(x))
            assert "test_numpy.py" in str(e.value)
        with pytest.raises(IndexError):
            x[key]


def test_traced_indices_out_of_range_read_the_nearest_element():
    x = pf.Array(np.arange(3, dtype=np.float32))
    read = pf.make_jaxpr(lambda x, i: x[i])
    for i, want in ((-9, 0), (-4, 0), (-3, 0), (-1, 2), (2, 2), (3, 2), (100, 2)):
        i = np.array(i, np.int32)
        assert read(x, i).eval(x, i)[0] == want
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    i, j = np.array([-5, 7, 1], np.int32), np.array([1, 9, -2], np.int32)
    np.testing.assert_array_equal(pf.make_jaxpr(lambda x, i, j: x[i, j])(grid, i, j).eval(grid, i, j)[0], [1, 5, 4])


# ---------------------------------------------------------------------------- errors
x, i, b, m = (pf.Array(DATA[n]) for n in "xibt")
ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: pnp.subtract(b, b), DtypeError, "subtract of bools is not defined, as in NumPy"),
    (lambda: pnp.negative(b), DtypeError, "negative of bools is not defined"),
    (lambda: b // True, DtypeError, "floor_divide of bools is not defined"),
    (lambda: pnp.pow(i, i), RangeError, "pow: integers have no power of the negative exponent -"),
    (lambda: i ** -1, DtypeError, "to the power -1 is not an integer: convert to float first"),
    (lambda: pnp.add(x, m.mT), ShapeError, "add: shapes do not broadcast: f32[2,3] and f32[2,3,2]"),
    (lambda: pnp.where(b, x, m.mT), ShapeError, "select: shapes do not broadcast"),
    (lambda: pnp.reshape(x, (4, 2)), ShapeError, "f32[2,3] has 6 elements, which do not fit shape (4, 2)"),
    (lambda: pnp.reshape(x, (-1, 4)), ShapeError, "which do not fit shape (-1, 4)"),
    (lambda: pnp.reshape(x, (-1, -1)), ShapeError, "do not fit shape (-1, -1)"),
    (lambda: pnp.permute_dims(x, (0, 0)), ShapeError, "(0, 0) is not a permutation of the axes of f32[2,3]"),
    (lambda: pnp.permute_dims(x, (0, 2)), ShapeError, "permute_dims: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.matrix_transpose(x[0]), ShapeError, "matrix_transpose: f32[3] has no two axes"),
    (lambda: pnp.squeeze(x, 0), ShapeError, "squeeze: axis 0 of f32[2,3] is of size 2, not 1"),
    (lambda: pnp.expand_dims(x, 4), ShapeError, "expand_dims: axis 4 is not an axis of a value of rank 3"),
    (lambda: pnp.broadcast_to(x, (3, 2)), ShapeError, "f32[2,3] does not broadcast to (3, 2)"),
    (lambda: pnp.concat([]), ShapeError, "concat of no arrays"),
    (lambda: pnp.concat([x, x.T]), ShapeError, "concat: shapes agree but for axis 0, got f32[2,3], f32[3,2]"),
    (lambda: pnp.concat([x, x], axis=2), ShapeError, "concat: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.stack([x, x[0]]), ShapeError, "concat: shapes agree"),
    (lambda: pnp.pad(x, -1), ShapeError, "pad: widths are integers of 0 or more, got -1"),
    (lambda: pnp.take(x, 0.5, axis=0), DtypeError, "an index is an integer, got ~f32[]"),
    (lambda: pnp.take(x, 7, axis=0), IndexError, "index 7 is out of range for axis 0 of size 2"),
    (lambda: pnp.take(x, b, axis=0), DtypeError, "a mask chooses with pnp.where"),
    (lambda: pnp.sum(x, axis=2), ShapeError, "sum: axis 2 is not an axis of a value of rank 2"),
    (lambda: pnp.mean(x, axis=(0, 0)), ShapeError, "mean: axes (0, 0) are not distinct"),
    (lambda: pnp.sum(x, axis=1.0), ShapeError, "sum: axis 1.0 is not an axis"),
    (lambda: pnp.max(pnp.zeros((0, 2)), axis=0), ShapeError, "max of no elements: f32[0,2] over axes (0,)"),
    (lambda: pnp.argmax(pnp.zeros(0)), ShapeError, "argmax of no elements: f32[0] along axis 0"),
    (lambda: pnp.matmul(x, x), ShapeError, "matmul: f32[2,3] @ f32[2,3] do not go together"),
    (lambda: pnp.matmul(x, pf.Array(2.0)), ShapeError, "matmul: f32[2,3] @"),
    (lambda: pnp.tensordot(x, x, axes=1), ShapeError, "dot_general: contracted axes differ in size"),
    (lambda: pnp.zeros((-1,)), ShapeError, "a shape holds sizes of 0 or more, got (-1,)"),
    (lambda: pnp.sign(b), DtypeError, "sign takes signed integers and float16 and float32, got bool[2,3]")]
DATA_ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: pnp.asarray("text"), DtypeError, "a value of type str is not an array or a number: 'text'"),
    (lambda: pnp.asarray(object()), DtypeError, "a value of type object is not an array or a number"),
    (lambda: pnp.astype(x, "complex64"), DtypeError, "complex numbers have no form on the IPU"),
    (lambda: pnp.zeros(2, dtype="bfloat16"), DtypeError, "bfloat16 has no form on the IPU: use float16 or float32"),
    (lambda: pnp.asarray(np.array([1, 2 ** 40])), NarrowingError, "1099511627776 at index [1] does not survive"),
    (lambda: pnp.full((2,), 300, dtype="int8"), NarrowingError, "Python integer 300 does not fit int8")]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    assert_error_text(*ERRORS[n], __file__)


@pytest.mark.parametrize("n", range(len(DATA_ERRORS)))
def test_data_error_text(n):
    f, error, text = DATA_ERRORS[n]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(x)):
        with pytest.raises(error, match=re.escape(text)):
            run()
