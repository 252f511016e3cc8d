"""jacfwd, jacrev, hessian, linear_transpose, and vjp with aux: against JAX, finite differences and each other."""
from typing import Any, Callable, List

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError

X = np.float32([0.3, -1.2, 2.0])
M = np.float32([[0.3, -1.2, 2.0], [1.1, 0.4, -0.7]])


def vector(np_: Any, x: Any) -> Any:
    return np_.sin(x) * x.sum()


def scalar(np_: Any, x: Any) -> Any:
    return (np_.exp(x * 0.3) * x).sum()


def matrix(np_: Any, x: Any) -> Any:
    return np_.tanh(x[:, None] * np_.asarray(M).T) @ np_.asarray(M)


def tree_in(np_: Any, p: Any) -> Any:
    return p["w"] @ p["b"] + np_.exp(p["s"][0])


def tree_out(np_: Any, x: Any) -> Any:
    return {"a": x * x, "b": (np_.cos(x).sum(), x[:2] * 2.0)}


def tree_both(np_: Any, p: Any) -> Any:
    return [p["w"] * p["s"][0], {"z": p["b"] * p["b"], "const": np_.ones(2, dtype="float32")}]


P = {"w": M, "b": X, "s": (np.float32(0.5),)}
CASES = [(vector, X), (scalar, X), (matrix, X), (tree_out, X), (tree_in, P), (tree_both, P),
         (scalar, np.float32(0.7)), (vector, np.zeros(0, np.float32))]


def same(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    assert jax.tree_util.tree_structure(pf.tree.map(np.asarray, got)) == jax.tree_util.tree_structure(want)
    for g, w in zip(pf.tree.leaves(got), jax.tree_util.tree_leaves(want)):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("f, x", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_equal_to_jax(f, x, name):
    ours, theirs = getattr(pf, name), getattr(jax, name)
    want = jax.jit(theirs(lambda x: f(jnp, x)))(x)
    same(ours(lambda x: f(pnp, x))(x), want)
    same(pf.jit(ours(lambda x: f(pnp, x)))(x), want)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("argnums", [1, (0,), (1, 0), (0, 2), [2, 1], -1])
def test_argnums(name, argnums):
    def f(np_: Any) -> Callable[..., Any]:
        return lambda x, p, y: np_.sin(x * y) * p["w"].sum(0) + p["b"]
    p = {"w": M, "b": X}
    got = getattr(pf, name)(f(pnp), argnums)(X, p, X[::-1])
    want = jax.jit(getattr(jax, name)(f(jnp), argnums if isinstance(argnums, int) else tuple(argnums)))(X, p, X[::-1])
    same(got, want)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
def test_aux(name):
    def f(x: Any, n: Any) -> Any:
        return pnp.sin(x) * 2.0, {"x": x, "n": n}
    jacobian, aux = getattr(pf, name)(f, has_aux=True)(X, 3)
    np.testing.assert_array_equal(np.asarray(jacobian), np.asarray(getattr(pf, name)(lambda x: pnp.sin(x) * 2.0)(X)))
    np.testing.assert_array_equal(np.asarray(aux["x"]), X)
    assert int(aux["n"]) == 3 and aux["n"].dtype == np.int32


def test_half_precision_and_mixtures_keep_their_dtypes():
    def f(x: Any, y: Any) -> Any:
        return x * 2, y * x.astype("float32")
    x = X.astype(np.float16)
    for name in ("jacfwd", "jacrev"):
        (xx, xy), (yx, yy) = getattr(pf, name)(f, (0, 1))(x, X)
        np.testing.assert_array_equal(np.asarray(xx), 2 * np.eye(3))
        np.testing.assert_array_equal(np.asarray(xy), np.zeros((3, 3)))
        np.testing.assert_allclose(np.asarray(yx), np.diag(X), rtol=1e-3)
        np.testing.assert_allclose(np.asarray(yy), np.diag(x.astype("f4")))
        assert (xx.dtype, yy.dtype) == (np.float16, np.float32)


def test_nested_in_other_transforms():
    def ours(x: Any) -> Any:
        return pf.jacfwd(lambda y: vector(pnp, y * x))(x)

    def theirs(x: Any) -> Any:
        return jax.jacfwd(lambda y: vector(jnp, y * x))(x)
    same(pf.vmap(ours)(M), jax.jit(jax.vmap(theirs))(M))
    same(pf.jacrev(ours)(X), jax.jit(jax.jacrev(theirs))(X), 1e-4)
    same(pf.jacfwd(pf.jacfwd(pf.jacrev(lambda x: scalar(pnp, x))))(X),
         jax.jit(jax.jacfwd(jax.jacfwd(jax.jacrev(lambda x: scalar(jnp, x)))))(X))
    got = pf.scan(lambda c, x: (c, pf.jacrev(lambda y: vector(pnp, y * c))(x)), X, M)[1]
    same(got, jax.jit(lambda c, xs: jnp.stack([jax.jacrev(lambda y: vector(jnp, y * c))(x) for x in xs]))(X, M))


def test_differences():
    def f(x: Any) -> Any:
        return pnp.tanh(x * x[::-1]) + pnp.exp(0.1 * x)
    step = 1e-2
    want = np.stack([(np.asarray(f(X + e), float) - np.asarray(f(X - e), float)) / (2 * step)
                     for e in step * np.eye(3, dtype=np.float32)], 1)
    for jacobian in (pf.jacfwd(f), pf.jacrev(f)):
        np.testing.assert_allclose(np.asarray(jacobian(X)), want, atol=2e-3)


def test_primals_are_computed_once():
    """Only what depends on the unit vectors gets lanes."""
    jaxpr = pf.make_jaxpr(pf.jacfwd(lambda x: pnp.exp(x)))(X)
    exp, = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "exp"]
    assert exp.outputs[0].aval.shape == (3,)


def test_python_follows_values():
    def f(x: Any) -> Any:
        return x * x if x[0] > 0 else x
    np.testing.assert_array_equal(np.asarray(pf.jacfwd(f)(X)), np.diag(2 * X))
    np.testing.assert_array_equal(np.asarray(pf.jacrev(f)(-X)), np.eye(3))


# ---------------------------------------------------------------------------- vjp with aux
def test_vjp_with_aux():
    def f(x: Any) -> Any:
        return {"y": pnp.sin(x)}, (x.sum(), pnp.argmax(x))
    y, pull, aux = pf.vjp(f, X, has_aux=True)
    np.testing.assert_array_equal(np.asarray(y["y"]), np.sin(X))
    np.testing.assert_allclose(np.asarray(pull({"y": X})[0]), X * np.cos(X), rtol=1e-6)
    assert (float(aux[0]), int(aux[1])) == (float(X.sum()), 2)
    with pytest.raises(ArgumentError, match=r"vjp: with has_aux, .* must return a pair \(value, aux\), got f32\[3\]"):
        pf.vjp(lambda x: x, X, has_aux=True)
    with pytest.raises(ArgumentError, match="vjp: the cotangent has another structure than the result"):
        pull(X)


# ---------------------------------------------------------------------------- linear_transpose
LINEAR = [
    (lambda np_, x: x * 3.0 + x[::-1], X),
    (lambda np_, x: np_.asarray(M) @ x, X),
    (lambda np_, x: (x.sum(), {"r": np_.reshape(x, (3, 1)) / 2.0}), X),
    (lambda np_, x: np_.where(np_.asarray(X) > 0, x, -x), X),
    (lambda np_, p: p["a"] - p["b"].sum(0), {"a": X, "b": M}),
]


@pytest.mark.parametrize("f, x", LINEAR, ids=range(len(LINEAR)))
def test_linear_transpose_equals_jax_and_is_the_adjoint(f, x):
    def ours(x: Any) -> Any:
        return f(pnp, x)
    y = pf.tree.map(np.asarray, ours(x))
    want = jax.linear_transpose(lambda x: f(jnp, x), x)(y)
    for example in (x, pf.tree.map(lambda a: pf.spec(a.shape), x)):
        for transposed in (pf.linear_transpose(ours, example), pf.linear_transpose(pf.jit(ours), example)):
            same(transposed(y), want)
    inner = sum(float((np.asarray(a) * b).sum()) for a, b in zip(pf.tree.leaves(y), pf.tree.leaves(y)))
    other = sum(float((np.asarray(a) * b).sum()) for a, b in zip(pf.tree.leaves(want[0]), pf.tree.leaves(x)))
    assert inner == pytest.approx(other, rel=1e-5)


def test_linear_transpose_in_other_transforms():
    """It is linear itself, closes over tracers, and looks into loops and custom rules."""
    def f(w: Any, ct: Any) -> Any:
        def sums(x: Any) -> Any:
            return pf.scan(lambda c, row: (c + row * w * x, c), x * 0.0, M)[0]
        return pf.linear_transpose(sums, pf.spec(3))(ct)[0]
    want = M.sum(0) * X * 2.0
    np.testing.assert_allclose(np.asarray(f(X, 2.0 * np.ones(3, np.float32))), want, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(pf.jit(f)(X, 2.0 * np.ones(3, np.float32))), want, rtol=1e-6)
    got = pf.grad(lambda w: (f(w, X) ** 2).sum())(X)
    np.testing.assert_allclose(np.asarray(got), 2 * X ** 3 * M.sum(0) ** 2, rtol=1e-5)
    g = pf.custom_vjp(lambda x: x * 2.0)
    g.defvjp(lambda x: (x * 2.0, None), lambda _, ct: (ct * 7.0,))
    np.testing.assert_array_equal(np.asarray(pf.linear_transpose(g, X)(X)[0]), 7 * X)


NOT_LINEAR = [
    lambda x: pnp.exp(x), lambda x: x * x, lambda x: pnp.where(x > 0, x, 0.0), lambda x: pnp.max(x),
    lambda x: pf.jit(lambda x: pnp.tanh(x))(x), lambda x: 1.0 / x, lambda x: pf.checkpoint(pnp.sin)(x),
    lambda x: pf.scan(lambda c, y: (pnp.sin(c * y), c), x, M)[0], lambda x: pf.cond(x[0] > 0, lambda x: x, pnp.cos, x)]


@pytest.mark.parametrize("f", NOT_LINEAR, ids=range(len(NOT_LINEAR)))
def test_what_is_not_linear_has_no_transpose(f):
    got = lines(pf.linear_transpose, f, X)
    assert got[0].startswith("linear_transpose: <lambda> (tests/test_derivatives.py:") and got[0].endswith("not linear")
    assert len(got) == 2 and got[1].startswith("seen: tests/test_derivatives.py:")


# ---------------------------------------------------------------------------- errors
def lines(f: Callable[..., Any], *args: Any) -> List[str]:
    with pytest.raises(ArgumentError) as e:
        f(*args)
    return str(e.value).split("\n  ")


def named(x: Any, n: Any) -> Any:
    return x * n


@pytest.mark.parametrize("name", ["jacfwd", "jacrev"])
def test_errors_of_jacobians(name):
    jacobian = getattr(pf, name)
    got = lines(jacobian(named, 1), X, 3)
    assert got[0] == f"{name}: argument n is ~i32[]; a derivative needs floats"
    assert got[1].startswith("at tests/test_derivatives.py:")
    assert got[2] == "way out: leave it out of argnums, or close over it"
    got = lines(jacobian(lambda x: {"k": pnp.argmax(x)}), X)
    assert got[0].startswith(f"{name}: result['k'] of ") and got[0].endswith("is i32[]; a derivative needs floats")
    assert got[2] == "way out: convert it with astype, or return it beside the result with has_aux=True"
    assert lines(jacobian(named, 2), X, 3)[0].startswith(f"{name}: argnums=2, but named (")
    assert lines(jacobian(named, has_aux=True), X, 3)[0].startswith(f"{name}: with has_aux, named (")
    assert lines(jacobian, 3.0)[0] == f"{name} takes a function first, got float"


def test_errors_of_linear_transpose():
    assert lines(pf.linear_transpose, named, X, 3)[0] == \
        "linear_transpose: argument n is ~i32[]; a derivative needs floats"
    assert lines(pf.linear_transpose(lambda x: x, X), X[:2])[0] == \
        "linear_transpose: the cotangent of result is f32[2], expected f32[3]"
    assert lines(pf.linear_transpose, 3.0, X)[0] == "linear_transpose takes a function first, got float"
