"""einsum and popfn.numpy.linalg against NumPy in 64 bits (values), differences (gradients) and JAX (dtypes)."""
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_texts import assert_error_text
from hypothesis import given, strategies as st
from programs import lowered
from references import assert_within, jacobian, widened
from test_numpy import both

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, ShapeError

EPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}
LINALG = {n for n, f in vars(pnp.linalg).items() if getattr(f, "__module__", "").startswith("popfn.numpy")}


def some(shape: Tuple[int, ...], seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(dtype)


def near(got: Any, want: np.ndarray, factor: float = 8) -> None:
    """Equal within rounding, relative to the largest element."""
    want = np.asarray(want)
    assert got.shape == want.shape
    eps = EPS.get(got.dtype.name, 0.0)
    assert_within(np.asarray(got), want, factor * eps * np.max(np.abs(want), initial=1.0))


# ---------------------------------------------------------------------------- einsum
EINSUMS: List[Tuple[str, List[Tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk->ki", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]),
    ("ba,cb", [(3, 2), (4, 3)]), (" i j , j k -> i k ", [(2, 3), (3, 4)]),
    ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("ij->j", [(2, 3)]), ("ji", [(2, 3)]), ("i->i", [(3,)]), ("", [()]),
    ("ii", [(3, 3)]), ("ii->i", [(3, 3)]), ("iij->ji", [(3, 3, 2)]), ("iii->i", [(2, 2, 2)]),
    ("ijij->ij", [(2, 3, 2, 3)]),
    ("ijj,j->i", [(2, 3, 3), (3,)]), ("ii,ij->j", [(3, 3), (3, 2)]),
    ("i,i", [(3,), (3,)]), ("i,j", [(2,), (3,)]), ("i,i->i", [(3,), (3,)]), ("i,j->ji", [(2,), (3,)]),
    (",", [(), ()]), ("ij,->ji", [(2, 3), ()]), (",ij->j", [(), (2, 3)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]), ("bij,bj->bi", [(2, 3, 4), (2, 4)]), ("bij,j->bij", [(2, 3, 4), (4,)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 3, 4)]), ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 3, 2, 4)]),
    ("ij,kl->", [(2, 3), (2, 2)]), ("ij,jk->", [(2, 3), (3, 2)]), ("ij,ik->j", [(2, 3), (2, 2)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 2)]), ("...ij,...jk", [(2, 1, 2, 3), (4, 3, 2)]),
    ("...,...->...", [(2, 3), (3,)]), ("i...->...i", [(2, 3, 4)]), ("...i->...", [(2, 3)]), ("...", [(2, 3)]),
    ("a...b,b...->a...", [(2, 3, 4), (4, 3)]), ("...ii->...i", [(2, 3, 3)]), ("...,i->i...", [(), (3,)]),
    ("i,i->i", [(1,), (3,)]), ("ij,jk->ik", [(2, 1), (3, 4)]), ("ii->i", [(1, 1)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]), ("ij,j,k,kl->il", [(2, 3), (3,), (4,), (4, 2)]),
    ("i,i,i->i", [(3,), (3,), (3,)]), ("ij,jk,ki->", [(2, 3), (3, 4), (4, 2)]), ("a,b,c->cba", [(2,), (3,), (2,)]),
    ("aab,bc,c->a", [(2, 2, 3), (3, 2), (2,)]), ("...i,ij,...j->...", [(2, 3), (3, 3), (2, 3)]),
    ("ab,cd,ab,ef,cd->", [(2, 3), (2, 2), (2, 3), (1, 2), (2, 2)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]), ("ij->i", [(2, 0)]), ("ij,jk->ik", [(0, 2), (2, 3)]), ("ii->i", [(0, 0)]),
    ("ij,jk,kl->il", [(2, 0), (0, 3), (3, 2)]),
]


def parts(shapes: List[Tuple[int, ...]], dtype: str = "float32") -> List[np.ndarray]:
    return [some(shape, n, dtype) for n, shape in enumerate(shapes)]


einsums = pytest.mark.parametrize("text, shapes", EINSUMS, ids=[f"{t} {s}" for t, s in EINSUMS])


@einsums
def test_einsum_equals_numpy(text, shapes):
    xs = parts(shapes)
    got = both(lambda *xs: pnp.einsum(text, *xs), *xs)
    near(got, np.einsum(text, *map(widened, xs)))
    if all(x.size for x in xs):
        jaxpr = pf.make_jaxpr(lambda *xs: pnp.einsum(text, *xs))(*xs)
        near(lowered(jaxpr)(*xs)[0], got.value)


@einsums
def test_einsum_in_float16_is_rounded_once(text, shapes):
    xs = parts(shapes, "float16")
    got = both(lambda *xs: pnp.einsum(text, *xs), *xs)
    want = np.einsum(text, *map(widened, xs))
    assert got.dtype == np.float16
    assert_within(got.value, want, 2.0 ** -11 * np.abs(want) * 1.01 + 2.0 ** -19)


def test_einsum_in_float16_does_not_overflow_between_its_products():
    x = np.full((1, 4), 200, np.float16)
    assert float(pnp.einsum("ij,kj,kl->il", x, x, np.full((1, 1), 2.0 ** -10, np.float16))) == 156.25
    assert float(pnp.einsum("ij,i->", np.full((2, 2), 60000, np.float16), np.array([1, -1], np.float16))) == 0


@einsums
def test_einsum_gradients_equal_differences(text, shapes):
    """It is linear in each operand, so that a difference of any length is the derivative."""
    xs = parts(shapes)
    wide = [widened(x) for x in xs]
    y, pull = pf.vjp(lambda *xs: pnp.einsum(text, *xs), *xs)
    ct = some(y.shape, 9)
    for k, got in enumerate(pull(ct)):
        want = np.zeros(xs[k].shape)
        for at in np.ndindex(*xs[k].shape):
            unit = np.zeros(xs[k].shape)
            unit[at] = 1
            want[at] = np.sum(np.einsum(text, *wide[:k], unit, *wide[k + 1:]) * ct)
        near(got, want, 16)


@pytest.mark.parametrize("text, shapes", [EINSUMS[0], EINSUMS[11], EINSUMS[45]])
def test_second_derivatives_of_einsum_equal_jax(text, shapes):
    xs = parts(shapes)

    def twice(lib: Any, xp: Any) -> Any:
        def loss(*xs: Any) -> Any:
            return xp.sum(xp.sin(xp.einsum(text, *xs)))
        return lib.grad(lambda *xs: xp.sum(xp.sin(lib.grad(loss)(*xs))), argnums=tuple(range(len(xs))))(*xs)
    for g, w in zip(twice(pf, pnp), twice(jax, jnp)):
        near(g, np.asarray(w), 64)


@pytest.mark.parametrize("text, dtypes", [
    ("ij,jk->ik", ("int32", "int32")), ("ij,jk->ik", ("int8", "float32")), ("ij,jk->ik", ("float16", "float32")),
    ("ii->", ("int8",)), ("ij,jk->i", ("uint8", "uint8")), ("i,ij->ij", ("bool", "int16"))])
def test_einsum_dtypes_equal_jax(text, dtypes):
    xs = [np.ones((3,) * len(part), d) for part, d in zip(text.partition("->")[0].split(","), dtypes)]
    got = both(lambda *xs: pnp.einsum(text, *xs), *xs)
    assert got.dtype == jax.eval_shape(lambda *xs: jnp.einsum(text, *xs), *xs).dtype
    near(got, np.einsum(text, *map(widened, xs)))


def test_einsum_of_bools_is_logical():
    x = np.array([[True, True, False], [False, False, False]])
    for text in ("ij,kj->ik", "ij->i", "ij,ij->ij", "ij,kj,kl->il"):
        xs = [x] * (text.count(",") + 1)
        got = both(lambda *xs, text=text: pnp.einsum(text, *xs), *xs)
        assert got.dtype == np.bool_
        np.testing.assert_array_equal(got.value, np.einsum(text, *xs))


def test_einsum_of_weak_numbers_stays_weak():
    assert str(pnp.einsum(",", 2, 1.5).aval) == "~f32[]"
    assert str(pnp.einsum("i,", np.ones(2, np.float16), 1.5).aval) == "f16[2]"


@st.composite
def subscripts(draw: Any) -> Tuple[str, List[Tuple[int, ...]]]:
    """Up to four operands of up to three axes, with `...`, diagonals, and axes of size 1 that broadcast."""
    sizes = {letter: draw(st.integers(0, 3)) for letter in "abcd"}
    dots = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    texts, shapes = [], []
    with_dots = draw(st.booleans())
    for _ in range(draw(st.integers(1, 4))):
        letters = draw(st.lists(st.sampled_from("abcd"), max_size=3))
        text, shape = list(letters), [sizes[n] for n in letters]
        for i, n in enumerate(letters):
            if letters.count(n) == 1 and draw(st.integers(0, 5)) == 0 and sizes[n]:
                shape[i] = 1
        if with_dots and draw(st.booleans()):
            at = draw(st.integers(0, len(text)))
            hidden = [1 if draw(st.integers(0, 3)) == 0 else n for n in dots[draw(st.integers(0, len(dots))):]]
            text.insert(at, "...")
            shape[at:at] = hidden
        texts.append("".join(text))
        shapes.append(tuple(shape))
    used = sorted(set("".join(texts)) - {"."})
    out = draw(st.permutations(used))[:draw(st.integers(0, len(used)))] if used else []
    text = ",".join(texts)
    if draw(st.booleans()):
        text += "->" + "..." * ("..." in text) + "".join(out)
    return text, shapes


@given(subscripts())
def test_einsum_of_random_subscripts_equals_numpy(case):
    text, shapes = case
    xs = parts(shapes)
    near(both(lambda *xs: pnp.einsum(text, *xs), *xs), np.einsum(text, *map(widened, xs)), 16)


def equations(f: Callable[..., Any], *args: Any) -> List[str]:
    return [e.primitive.name for e in pf.make_jaxpr(f)(*args).eqns]


def test_a_product_of_two_operands_is_one_equation():
    x, y = some((2, 3, 4)), some((2, 5, 4))
    for text in ("bij,bkj->bik", "bij,bkj->bki"):
        assert equations(lambda x, y, text=text: pnp.einsum(text, x, y), x, y) == ["dot_general"]
    assert equations(lambda x: pnp.einsum("...", x), x) == []


def test_the_cheapest_order_is_taken():
    matrix, vector = some((50, 50)), some((50,))
    jaxpr = pf.make_jaxpr(lambda a, b, v: pnp.einsum("ij,jk,k->i", a, b, v))(matrix, matrix, vector)
    assert [e.outputs[0].aval.shape for e in jaxpr.eqns if e.primitive.name == "dot_general"] == [(50,), (50,)]


def test_vmap_of_einsum():
    x, y = some((5, 2, 3)), some((3, 4, 5), 1)
    got = pf.vmap(lambda x, y: pnp.einsum("ij,jk->ki", x, y), in_axes=(0, 2))(x, y)
    near(got, np.einsum("bij,jkb->bki", widened(x), widened(y)))


# ---------------------------------------------------------------------------- linalg
M, SQUARE, CUBE = some((3, 4)), some((3, 3), 1), some((2, 3, 3), 2)
NORMS: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {}
for order in (2, 1, 0, 3, 2.5, -1, np.inf, -np.inf):
    for axis in (None, 0, -1, (0, 1)):
        for keep in (False, True):
            def ours(x: Any, order: Any = order, axis: Any = axis, keep: bool = keep) -> Any:
                return pnp.linalg.vector_norm(x, ord=order, axis=axis, keepdims=keep)

            def theirs(x: Any, order: Any = order, axis: Any = axis, keep: bool = keep) -> Any:
                axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
                rest = tuple(i for i in range(x.ndim) if i not in tuple(a % x.ndim for a in axes))
                flat = np.transpose(x, (*rest, *axes)).reshape([x.shape[i] for i in rest] + [-1])
                y = np.linalg.norm(flat, ord=order, axis=-1)
                return y.reshape([x.shape[i] if i in rest else 1 for i in range(x.ndim)]) if keep else y
            NORMS[f"vector {order} {axis} {keep}"] = ours, theirs
for order in ("fro", 1, -1, np.inf, -np.inf):
    for keep in (False, True):
        NORMS[f"matrix {order} {keep}"] = (
            lambda x, order=order, keep=keep: pnp.linalg.matrix_norm(x, ord=order, keepdims=keep),
            lambda x, order=order, keep=keep: np.linalg.norm(x, ord=order, axis=(-2, -1), keepdims=keep))


@pytest.mark.parametrize("name", NORMS)
def test_norms_equal_numpy_and_their_gradients_differences(name):
    f, definition = NORMS[name]
    for x in (M, CUBE, np.array([[2, -3], [0, 4]], np.int32) + 1, M.astype(np.float16)):
        got = both(f, x)
        assert got.dtype == (np.float16 if x.dtype == np.float16 else np.float32)
        near(got, definition(widened(x)), 8)
    near(lowered(pf.make_jaxpr(f)(M))(M)[0], f(M).value)
    y, pull = pf.vjp(f, M)
    ct = some(y.shape, 9)
    got, = pull(ct)
    want = jacobian(lambda x: np.asarray(definition(x)), [widened(M)], 0).T @ widened(ct).ravel()
    near(got, want.reshape(M.shape), 64)


@pytest.mark.parametrize("f", [
    pnp.linalg.vector_norm, pnp.linalg.matrix_norm, lambda x: pnp.linalg.vector_norm(x, ord=1),
    lambda x: pnp.linalg.vector_norm(x, ord=3), lambda x: pnp.linalg.vector_norm(x, axis=0).sum()])
def test_the_gradient_of_a_norm_at_zero_is_zero(f):
    x = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(pf.grad(f)(x).value, 0)
    np.testing.assert_array_equal(pf.jvp(f, (x,), (np.zeros_like(x),))[1].value, 0)


def test_norms_of_float16_do_not_overflow():
    x = np.full((2, 2), 300, np.float16)
    assert float(pnp.linalg.vector_norm(x)) == float(pnp.linalg.matrix_norm(x)) == 600


def test_norms_of_no_elements():
    x = np.zeros((2, 0), np.float32)
    np.testing.assert_array_equal(pnp.linalg.vector_norm(x, axis=1).value, [0, 0])
    with pytest.raises(ShapeError, match="max of no elements"):
        pnp.linalg.vector_norm(x, ord=np.inf)


U, V = some((2, 3)), some((4, 2, 3), 5)
FUNCTIONS: Dict[str, Tuple[Callable[..., Any], Callable[..., Any], Tuple[np.ndarray, ...]]] = {
    "outer": (pnp.linalg.outer, np.outer, (M[0], SQUARE[0])),
    "outer of ints": (pnp.linalg.outer, np.outer, (np.array([1, 2]), np.array([3, -4, 5]))),
    "outer with nothing": (pnp.linalg.outer, np.outer, (M[0], np.zeros(0, np.float32))),
    "cross": (pnp.linalg.cross, np.cross, (U, U[::-1].copy())),
    "cross that broadcasts": (pnp.linalg.cross, np.cross, (U[0], V)),
    "cross along 1": (lambda x, y: pnp.linalg.cross(x, y, axis=1), lambda x, y: np.cross(x, y, axis=1),
                      (CUBE, CUBE[::-1].copy())),
    "cross along -2": (lambda x, y: pnp.linalg.cross(x, y, axis=-2), lambda x, y: np.cross(x, y, axis=-2),
                       (CUBE, SQUARE)),
    "matmul": (pnp.linalg.matmul, np.matmul, (SQUARE, M)),
    "vecdot": (pnp.linalg.vecdot, lambda x, y: (x * y).sum(-1), (U, U)),
    "tensordot": (pnp.linalg.tensordot, np.tensordot, (CUBE, SQUARE[:, :, None] + CUBE.T[:, :, :1])),
    "matrix_transpose": (pnp.linalg.matrix_transpose, lambda x: np.swapaxes(x, -1, -2), (CUBE,)),
    **{f"diagonal {k}": (lambda x, k=k: pnp.linalg.diagonal(x, offset=k),
                         lambda x, k=k: np.diagonal(x, k, -2, -1), (x,))
       for k in (0, 1, -1, 3, -2, 7, -7) for x in (M,)},
    **{f"trace {k}": (lambda x, k=k: pnp.linalg.trace(x, offset=k), lambda x, k=k: np.trace(x, k, -2, -1), (CUBE,))
       for k in (0, 1, -2, 5)},
    "trace of bytes": (pnp.linalg.trace, np.trace, (np.full((3, 3), 100, np.int8),)),
    "trace as float": (lambda x: pnp.linalg.trace(x, dtype="float32"), np.trace, (np.full((3, 3), 100, np.int8),)),
    **{f"matrix_power {n}": (lambda x, n=n: pnp.linalg.matrix_power(x, n),
                             lambda x, n=n: np.linalg.matrix_power(x, n), (CUBE,)) for n in range(8)},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_numpy(name):
    f, definition, xs = FUNCTIONS[name]
    got = both(f, *xs)
    want = definition(*map(widened, xs))
    near(got, want, 32)
    if got.size and all(x.size for x in xs):
        near(lowered(pf.make_jaxpr(f)(*xs))(*xs)[0], got.value)
    if got.dtype != np.float32 or any(x.dtype != np.float32 for x in xs):
        return
    # The functions are products of their operands' elements: differences with a long step are exact.
    direction = [some(x.shape, 9 + n) for n, x in enumerate(xs)]
    _, tangent = pf.jvp(f, xs, direction)
    step = 1e-4
    ends = [definition(*(widened(x) + s * step * v for x, v in zip(xs, direction))) for s in (1, -1)]
    want = (ends[0] - ends[1]) / (2 * step)
    assert_within(tangent.value, want, 1e-5 * max(1, np.abs(want).max(initial=0)))
    _, pull = pf.vjp(f, *xs)
    ct = some(got.shape, 20)
    total = sum(np.sum(widened(g.value) * v) for g, v in zip(pull(ct), direction))
    assert abs(total - np.sum(want * ct)) < 1e-4 * max(1, np.abs(want).sum())


def test_every_function_of_linalg_is_tested():
    assert {name.split()[0] for name in FUNCTIONS} | {"vector_norm", "matrix_norm"} == {
        n for n in LINALG if vars(pnp.linalg)[n].__module__ == "popfn.numpy.linalg" and n[0] != "_"} | {
        "matmul", "vecdot", "tensordot", "matrix_transpose"}


# ---------------------------------------------------------------------------- errors
x, v = pf.Array(M), pf.Array(M[0])
ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: pnp.einsum(x, "ij"), ShapeError, "einsum takes subscripts and then arrays, got"),
    (lambda: pnp.einsum("ij"), ShapeError, "einsum takes subscripts and then arrays, got 'ij' and 0 arrays"),
    (lambda: pnp.einsum("ij,jk", x), ShapeError,
     'einsum "ij,jk" of f32[3,4]: there are 2 operands in the subscripts, and 1 arrays'),
    (lambda: pnp.einsum("ijk", x), ShapeError, "'ijk' names 3 axes of an array of rank 2"),
    (lambda: pnp.einsum("i", x), ShapeError, "'i' names 1 axes of an array of rank 2"),
    (lambda: pnp.einsum("ijk...", x), ShapeError, "'ijk...' names 3 axes of an array of rank 2"),
    (lambda: pnp.einsum("i1", x), ShapeError, "'1' is no letter in 'i1'"),
    (lambda: pnp.einsum("i.j", x), ShapeError, "'.' is no letter in 'i.j'"),
    (lambda: pnp.einsum("......", x), ShapeError, "'.' is no letter"),
    (lambda: pnp.einsum("ij->ik", x), ShapeError, "the output's 'k' is in no operand"),
    (lambda: pnp.einsum("ij->ii", x), ShapeError, "the output's 'i' is there twice"),
    (lambda: pnp.einsum("ij->i->j", x), ShapeError, "'-' is no letter in 'i->j'"),
    (lambda: pnp.einsum("...j->j", x), ShapeError, "the output leaves out `...`, which stands for 1 axes"),
    (lambda: pnp.einsum("ij,ij", x, x.T), ShapeError,
     'einsum "ij,ij" of f32[3,4], f32[4,3]: axes \'i\' are of sizes 3 and 4'),
    (lambda: pnp.einsum("...,...", x, x.T), ShapeError, "axes that `...` stands for are of sizes 4 and 3"),
    (lambda: pnp.einsum("ii", x), ShapeError, "the axes 'i' of f32[3,4] are of sizes 3 and 4: there is no diagonal"),
    (lambda: pnp.einsum("ii", x[:1]), ShapeError, "the axes 'i' of f32[1,4] are of sizes 1 and 4"),
    (lambda: pnp.linalg.outer(x, v), ShapeError, "outer takes two vectors, got f32[3,4] and f32[4]"),
    (lambda: pnp.linalg.cross(x, x), ShapeError, "cross: axis -1 of f32[3,4] and f32[3,4] is not one axis of size 3"),
    (lambda: pnp.linalg.cross(x[:, :3], x[0, :3], axis=0), ShapeError,
     "cross: axis 0 of f32[3,3] and f32[3] is not one axis of size 3 of both"),
    (lambda: pnp.linalg.cross(x[:, :3], x[:2, :3]), ShapeError, "cross: f32[3,3] and f32[2,3] do not broadcast"),
    (lambda: pnp.linalg.diagonal(v), ShapeError, "diagonal: f32[4] has no two axes"),
    (lambda: pnp.linalg.trace(v), ShapeError, "diagonal: f32[4] has no two axes"),
    (lambda: pnp.linalg.matrix_norm(v), ShapeError, "matrix_norm: f32[4] has no two axes"),
    (lambda: pnp.linalg.matrix_norm(x, ord=2), ArgumentError, 'matrix_norm: ord is "fro", 1, -1, inf or -inf, got 2'),
    (lambda: pnp.linalg.matrix_norm(x, ord="nuc"), ArgumentError, "need a decomposition, which popfn does not have"),
    (lambda: pnp.linalg.vector_norm(x, ord="fro"), ArgumentError, "vector_norm: ord is a number, got 'fro'"),
    (lambda: pnp.linalg.vector_norm(x, axis=2), ShapeError, "vector_norm: axis 2 is not an axis"),
    (lambda: pnp.linalg.matrix_power(x, 2), ShapeError, "matrix_power: f32[3,4] is not a square matrix"),
    (lambda: pnp.linalg.matrix_power(x[:, :3], -1), ArgumentError,
     "matrix_power: n is an integer of 0 or more, got -1"),
    (lambda: pnp.linalg.matrix_power(x[:, :3], 1.5), ArgumentError, "matrix_power: n is an integer of 0 or more")]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    assert_error_text(*ERRORS[n], __file__)
