"""Corner cases of derivatives, each with one answer on every path; test_conventions.py lists them."""
from typing import Any

import numpy as np
import pytest
from conventions import f16, f32, i32, inf, nan, pytest_generate_tests as pytest_generate_tests, same

import popfn as pf
import popfn.numpy as pnp

norm = pnp.linalg.vector_norm


# ---------------------------------------------------------------------------- kinks and ties
def test_kinks(gradient):
    x = f32(-1, -0.0, 0.0, 2)
    same(gradient(lambda x: pf.nn.relu(x).sum(), x), f32(0, 0, 0, 1))
    same(np.abs(gradient(lambda x: abs(x).sum(), x)), f32(1, 0, 0, 1))
    same(gradient(lambda x: pnp.maximum(x, 0.0).sum(), x), f32(0, 0.5, 0.5, 1))
    same(gradient(lambda x: pnp.minimum(2.0, x).sum(), x), f32(1, 1, 1, 0.5))
    same(gradient(lambda x: pnp.maximum(x, x).sum(), x), f32(1, 1, 1, 1))
    same(gradient(lambda x: pnp.minimum(x, x[::-1]).sum(), f32(1, 3, 3, 2)), f32(2, 1, 1, 0))


def test_ties_of_reductions_share_the_cotangent(gradient):
    same(gradient(lambda x: 3 * x.max(), f32(1, 2, 2, 2)), f32(0, 1, 1, 1))
    same(gradient(lambda x: x.min(), f32(1, 1, 2, 2)), f32(0.5, 0.5, 0, 0))
    same(gradient(lambda x: (x.max(axis=1) * f32(1, 10)).sum(), f32([0, 0], [1, 0])), f32([0.5, 0.5], [10, 0]))
    same(gradient(lambda x: norm(x, ord=inf), f32(1, -2, 2)), f32(0, -0.5, 0.5))
    same(gradient(lambda x: x.max(), np.full(8, -inf, np.float32)), np.full(8, 1 / 8, np.float32))


def test_ties_of_a_pool_go_to_the_first_winner(gradient):
    def pooled(x: Any, **options: Any) -> Any:
        return (pf.nn.max_pool(x[None, None], 2, **options)[0, 0] * f32(1, 10, 100)).sum()
    same(gradient(lambda x: pooled(x, strides=1), f32(5, 5, 5, 5)), f32(1, 10, 100, 0))
    same(gradient(pooled, f32(1, 2, 3, 3, 2, 1)), f32(0, 1, 10, 0, 100, 0))
    same(gradient(lambda x: pf.nn.max_pool(x[None, None], (2, 2)).sum(), f32([7, 7], [7, 7])), f32([1, 0], [0, 0]))
    same(gradient(lambda x: pnp.cummax(x).sum(), f32(2, 2, 1, 2)), f32(4, 0, 0, 0))


def test_clip_at_a_bound(gradient):
    same(gradient(lambda x: pnp.clip(x, -1, 1).sum(), f32(-2, -1, 0, 1, 2)), f32(0, 0, 1, 0, 0))
    same(gradient(lambda x: pnp.clip(x, None, 1).sum(), f32(0, 1, 2)), f32(1, 0, 0))
    same(gradient(lambda x: pnp.clip(x, f32(0, 0, 1)).sum(), f32(0, 1, 1)), f32(0, 1, 0))


def test_powers(gradient):
    x = f32(0, -1, 2)
    same(gradient(lambda x: (x ** 0).sum(), x), f32(0, 0, 0))
    same(gradient(lambda x: (x ** 0.0).sum(), x), f32(0, 0, 0))
    same(gradient(lambda x: pnp.pow(x, f32(0)).sum(), x), f32(0, 0, 0))
    same(gradient(lambda y: pnp.pow(f32(0), y).sum(), f32(2, 1, 0.5)), f32(0, 0, 0))
    same(gradient(lambda y: (0.0 ** y).sum(), f32(2, 1, 0.5)), f32(0, 0, 0))
    same(gradient(lambda x: pnp.pow(x, f32(0.5, 1, 2, 0)).sum(), f32(0, 0, 0, -2)), f32(inf, 1, 0, 0))
    same(gradient(lambda x: (x ** 2).sum(), x), f32(0, -2, 4))
    same(gradient(lambda x: (x ** 1).sum(), x), f32(1, 1, 1))


def test_products_with_zeros(gradient):
    same(gradient(lambda x: x.prod(), f32(2, 0, 3)), f32(0, 6, 0))
    same(gradient(lambda x: x.prod(), f32(0, 0, 3)), f32(0, 0, 0))
    same(gradient(lambda x: x.prod(axis=1).sum(), f32([0, 5], [2, 3])), f32([5, 0], [3, 2]))
    weights = f32(1, 10, 100)
    same(gradient(lambda x: (pnp.cumprod(x) * weights).sum(), f32(2, 0, 3)), f32(1, 620, 0))
    same(gradient(lambda x: (pnp.cumprod(x) * weights).sum(), f32(0, 0, 3)), f32(1, 0, 0))
    # No division by the value: these are exact, and quotients of tiny and huge values would not be.
    same(gradient(lambda x: x.prod(), f32(2.0 ** 100, 2.0 ** -100, 2.0 ** -20)), f32(2.0 ** -120, 2.0 ** 80, 1))
    same(gradient(lambda x: pnp.cumprod(x)[1], f32(2.0 ** -120, 3)), f32(3, 2.0 ** -120))


# ---------------------------------------------------------------------------- 0 * inf
def test_zero_times_infinity_is_zero(gradient):
    same(gradient(lambda x: pnp.sqrt((x * x).sum()), f32(0, 0)), f32(0, 0))
    same(gradient(lambda x: x.std(), f32(2, 2, 2)), f32(0, 0, 0))
    same(gradient(lambda x: (pnp.sqrt(x) * f32(0, 1)).sum(), f32(0, 4)), f32(0, 0.25))
    same(gradient(lambda x: (pnp.log(x) * f32(0, 1)).sum(), f32(0, 4)), f32(0, 0.25))
    same(gradient(lambda x: pnp.sqrt(x).sum(), f32(0, 4)), f32(inf, 0.25))


@pytest.mark.parametrize("name, at", [("reciprocal", 0), ("rsqrt", 0), ("log2", 0), ("log10", 0), ("log1p", -1),
                                      ("asin", -1), ("acos", 1), ("atanh", 1), ("acosh", 1)])
def test_zero_cotangent_of_an_infinite_slope(gradient, name, at):
    f = getattr(pnp, name)
    same(gradient(lambda x: (f(x) * f32(0)).sum(), f32(at)), f32(0))
    same(gradient(lambda x: pnp.where(x == at, 0.0, f(x)).sum(), f32(at)), f32(0))


def test_norm_at_zero_is_zero(gradient):
    same(gradient(norm, f32(0, 0, 0)), f32(0, 0, 0))
    same(gradient(norm, f16(0, 0)), f16(0, 0))
    same(gradient(lambda x: pnp.linalg.matrix_norm(x), f32([0, 0], [0, 0])), f32([0, 0], [0, 0]))
    same(gradient(lambda x: norm(x, axis=1).sum(), f32([0, 0], [3, 4])), f32([0, 0], [0.6, 0.8]))
    same(gradient(lambda x: norm(x, ord=3), f32(0, 0)), f32(0, 0))


def test_the_branch_not_taken_contributes_nothing(gradient):
    x = f32(-1, 0, 4)
    same(gradient(lambda x: pnp.where(x > 0, pnp.sqrt(x), 0.0).sum(), x), f32(0, 0, 0.25))
    same(gradient(lambda x: pnp.where(x > 0, pnp.log(x), -x).sum(), x), f32(-1, -1, 0.25))
    same(gradient(lambda x: pnp.where(x == x, x, 1 / (x * 0)).sum(), x), f32(1, 1, 1))
    same(gradient(lambda x: pnp.where(x > 0, x, pnp.nan).sum(), x), f32(0, 0, 1))
    same(gradient(lambda x: pnp.where(x > 0, pnp.exp(x * -inf), x * 2).sum(), f32(-1, -2)), f32(2, 2))
    same(gradient(lambda x: pf.cond(x.sum() > 9, lambda x: pnp.log(x).sum(), lambda x: x.sum(), x), x), f32(1, 1, 1))


def test_masked_softmax_has_no_nan_in_its_gradient(gradient):
    mask = np.array([[True, True], [False, False], [False, True]])
    x = f32([0, 0], [nan, -inf], [inf, 3])
    same(gradient(lambda x: (pf.nn.softmax(x, where=mask) * f32(1, 3)).sum(), x), f32([-0.5, 0.5], [0, 0], [0, 0]))


def test_gradient_of_a_clamped_read_goes_to_the_element_read(gradient):
    i = i32(-1, 9, -9, 0)
    read = pf.jit(lambda x, i: x[i])  # inside, the indices are not known
    same(gradient(lambda x: (read(x, i) * f32(1, 2, 4, 8)).sum(), f32(1, 2, 3)), f32(12, 0, 3))
    filled = pf.jit(lambda x, i: x.at[i].get(mode="fill", fill_value=0))
    same(gradient(lambda x: (filled(x, i) * f32(1, 2, 4, 8)).sum(), f32(1, 2, 3)), f32(8, 0, 1))


def test_gradient_of_a_dropped_write_is_zero(gradient):
    write = pf.jit(lambda x, v, i: x.at[i].set(v))
    i = i32(1, 9, -9, 1)
    same(gradient(lambda v: (write(f32(1, 2, 3), v, i) * f32(1, 10, 100)).sum(), f32(4, 5, 6, 7)), f32(0, 0, 0, 10))
    same(gradient(lambda x: (write(x, f32(4, 5, 6, 7), i) * f32(1, 10, 100)).sum(), f32(1, 2, 3)), f32(1, 0, 100))


# ---------------------------------------------------------------------------- loops
def test_bounded_while_loop_has_the_exact_gradient(gradient):
    """Three steps are taken of at most nine; a fourth would divide by zero."""
    def f(x: Any) -> Any:
        def step(c: Any) -> Any:
            y, n = c
            return y * x / n, n - 1
        return pf.while_loop(lambda c: c[1] > 0, step, (x, x[0] * 0 + 2.0), max_steps=9)[0].sum()
    same(gradient(f, f32(2, -1)), f32(6, 1.5))  # x^3 / 2
    same(gradient(lambda x: pf.while_loop(lambda c: c.sum() < 0, pnp.sqrt, x, max_steps=4).sum(), f32(0, 1)), f32(1, 1))


def test_while_loop_without_a_bound():
    def f(x: Any) -> Any:
        return pf.while_loop(lambda c: c > 1, lambda c: c * 0.5, x)
    x = np.float32(9)
    for call in (lambda: pf.grad(f)(x), lambda: pf.vjp(f, x), lambda: pf.grad(pf.jit(f))(x),
                 lambda: pf.make_jaxpr(pf.grad(f))(x), lambda: pf.vmap(pf.grad(f))(f32(9, 3)),
                 lambda: pf.grad(lambda xs: pf.vmap(f)(xs).sum())(f32(9, 3)),
                 lambda: pf.lower(pf.grad(f), pf.spec(())), lambda: pf.grad(pf.checkpoint(f))(x)):
        with pytest.raises(pf.errors.MissingRuleError, match=r"(?s)no bound on its steps.*way out: max_steps="):
            call()
    same(pf.jvp(f, (x,), (np.float32(1),))[1], np.float32(1 / 16))


# ---------------------------------------------------------------------------- what has no derivative
@pytest.mark.parametrize("wrap", [
    lambda f: f, pf.jit, pf.checkpoint, pf.make_jaxpr, lambda f: lambda *args: pf.lower(f, *args),
], ids=["eager", "jit", "checkpoint", "make_jaxpr", "lower"])
def test_integers_are_not_differentiated(wrap):
    def f(x: Any, i: Any) -> Any:
        return (x * i).sum()
    x, i = f32(1, 2), i32(3, 4)
    text = r"argument i is i32\[2\]; a derivative needs floats(\n.*)*way out:.*allow_int=True"
    with pytest.raises(TypeError, match=text):
        wrap(pf.grad(f, 1))(x, i)
    with pytest.raises(TypeError, match=r"argument b is bool\[\]"):
        wrap(pf.grad(lambda b: pnp.where(b, 1.0, 2.0)))(np.bool_(True))


def test_integers_beside_floats():
    def f(x: Any, i: Any) -> Any:
        return (x * i).sum()
    x, i = f32(1, 2), i32(3, 4)
    for wrap in (lambda f: f, pf.jit):
        by_x, by_i = wrap(pf.grad(f, (0, 1), allow_int=True))(x, i)
        same(by_x, f32(3, 4))
        same(by_i, i32(0, 0))


# ---------------------------------------------------------------------------- custom rules
def closing(kind: str) -> Any:
    def loss(w: Any, x: Any) -> Any:
        def f(x: Any) -> Any:
            return x * w["scale"]
        g = getattr(pf, kind)(f)
        if kind == "custom_jvp":
            g.defjvp(lambda p, t: (f(*p), t[0] * w["scale"]))
        else:
            g.defvjp(lambda x: (f(x), None), lambda _, ct: (ct * w["scale"],))
        return g(x).sum()
    return loss


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_custom_rule_closing_over_a_differentiated_value(kind):
    loss, w, x = closing(kind), {"scale": f32(2, 3)}, f32(1, 1)
    for wrap in (lambda f: f, pf.jit, pf.make_jaxpr, lambda f: lambda w, x: pf.vmap(f, (None, 0))(w, x[None])):
        with pytest.raises(TypeError, match=r"(?s)gives no derivative by a value that f closes over.*the value: "
                                            r"f32\[2\], argument w\['scale'\] of loss.*way out: pass it to f as an"):
            wrap(pf.grad(loss))(w, x)
        if wrap is not pf.make_jaxpr:
            same(np.asarray(wrap(pf.grad(loss, 1))(w, x)).reshape(2), f32(2, 3))


def with_backward(bwd: Any) -> Any:
    def f(x: Any, y: Any) -> Any:
        return x["a"] * y
    g = pf.custom_vjp(f)
    g.defvjp(lambda x, y: (f(x, y), None), bwd)
    return lambda x, y: g({"a": x}, y).sum()


def test_none_of_a_custom_backward_is_zero(run):
    x, y = f32(1, 2), f32(3, 4)
    for bwd, by_x, by_y in ((lambda _, ct: (None, ct * 2), 0, 2), (lambda _, ct: ({"a": None}, None), 0, 0),
                            (lambda _, ct: ({"a": ct}, None), 1, 0)):
        same(run(pf.grad(with_backward(bwd)), x, y), f32(by_x, by_x))
        same(run(pf.grad(with_backward(bwd), 1), x, y), f32(by_y, by_y))


@pytest.mark.parametrize("bwd, error, text", [
    (lambda _, ct: (ct,), TypeError, r"returns 1 cotangents, but \S*f \(.*\) has 2 arguments to differentiate"),
    (lambda _, ct: ({"a": ct}, ct, ct), TypeError, r"returns 3 cotangents, but \S*f \(.*\) has 2 arguments"),
    (lambda _, ct: ({"a": ct[None]}, ct), ValueError, r"the cotangent of x\['a'\] as f32\[1,2\], expected f32\[2\]"),
    (lambda _, ct: ({"a": ct}, ct.sum()), ValueError, r"the cotangent of y as f32\[\], expected f32\[2\]"),
], ids=["too few", "too many", "wrong shape", "wrong shape of a scalar"])
def test_wrong_results_of_a_custom_backward(bwd, error, text):
    for wrap in (lambda f: f, pf.jit, pf.make_jaxpr, lambda f: lambda *a: pf.vmap(f)(*(x[None] for x in a))):
        with pytest.raises(error, match=text):
            wrap(pf.grad(with_backward(bwd)))(f32(1, 2), f32(3, 4))


# ---------------------------------------------------------------------------- branches in lanes
def halves(x: Any) -> Any:
    """An endless loop for a negative x, because it stays below 1."""
    return pf.while_loop(lambda v: v < 1, lambda v: v * 2, x, max_steps=9)


@pytest.mark.parametrize("wrap", [lambda f: f, pf.jit], ids=["eager", "jit"])
def test_vmap_of_cond_masks_the_branch_not_taken(wrap):
    def root(x: Any) -> Any:
        return pf.cond(x > 0, pnp.sqrt, lambda x: x * 3, x)

    def endless(x: Any) -> Any:
        return pf.cond(x > 0, lambda x: pf.while_loop(lambda v: v < 1, lambda v: v * 2, x), lambda x: x * 3, x)
    xs = f32(4, 0, -1)
    same(wrap(pf.vmap(root))(xs), f32(2, 0, -3))
    same(wrap(pf.vmap(pf.grad(root)))(xs), f32(0.25, 3, 3))
    same(wrap(pf.grad(lambda xs: pf.vmap(root)(xs).sum()))(xs), f32(0.25, 3, 3))
    same(wrap(lambda xs: pf.jvp(pf.vmap(root), (xs,), (xs,))[1])(xs), f32(1, 0, -3))
    same(wrap(pf.vmap(endless))(f32(0.25, -1, 0, 5)), f32(1, -3, 0, 5))
    same(wrap(pf.vmap(lambda x: pf.jvp(endless, (x,), (x,))[1]))(f32(0.25, -1)), f32(1, -3))


def test_vmap_of_cond_in_a_lowered_program(run):
    def f(x: Any) -> Any:
        return pf.cond(x > 0, lambda x: halves(x) + pnp.sqrt(x), lambda x: x * 3, x)
    xs = f32(0.25, -2, 0, 4)
    same(run(lambda xs: pf.vmap(f)(xs), xs), f32(1.5, -6, 0, 6))
    same(run(lambda xs: pf.vmap(pf.grad(f))(xs), xs), f32(5, 3, 3, 1.25))
