"""custom_jvp, custom_vjp and custom_call: against JAX's, nested in every transform, and what their errors say."""
import functools
import inspect
import re
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import (
    ArgumentError,
    LeakError,
    LoweringError,
    MissingRuleError,
    ShapeError,
)
from popfn.trace.jaxpr import Jaxpr
from popfn.transforms.custom import CustomJvp, CustomVjp, without_rules
from popfn.transforms.differentiate import jvp_jaxpr
from popfn.transforms.replay import jaxprs_of

OURS = SimpleNamespace(np=pnp, custom_jvp=pf.custom_jvp, custom_vjp=pf.custom_vjp, jit=pf.jit, scan=pf.scan,
                       cond=pf.cond, jvp=pf.jvp, grad=pf.grad, vmap=pf.vmap)


def unrolled(step, carry, xs):
    """JAX's own scan forgets rules on the way to second derivatives."""
    ys = []
    for x in xs:
        carry, y = step(carry, x)
        ys.append(y)
    return carry, jnp.stack(ys)


THEIRS = SimpleNamespace(np=jnp, custom_jvp=jax.custom_jvp, custom_vjp=jax.custom_vjp, jit=jax.jit, scan=unrolled,
                         cond=jax.lax.cond, jvp=jax.jvp, grad=jax.grad, vmap=jax.vmap)
X = np.float32([0.3, -1.2, 2.0])
ROWS = np.float32([[0.3, -1.2, 2.0], [1.1, 0.4, -0.7]])


# ---------------------------------------------------------------------------- functions with rules, in either library
def softplus(lib):
    """The rule calls the function itself."""
    @lib.custom_jvp
    def f(x):
        return lib.np.log(1.0 + lib.np.exp(x))

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x), t * (1.0 - lib.np.exp(-f(x)))
    return f


def wrong(lib):
    """Its derivative is none that could be found by itself."""
    @lib.custom_jvp
    def f(x):
        return lib.np.sin(x)
    f.defjvp(lambda primals, tangents: (f(*primals), 5.0 * primals[0] ** 2 * tangents[0]))
    return f


def trees(lib):
    def numbers(x):
        """An integer among the results, on whose tangent the versions of JAX do not agree."""
        return {"n": lib.np.argmax(x)} if lib is OURS else {}

    @lib.custom_jvp
    def f(params, x):
        return {"y": params["w"] * x, **numbers(x)}, lib.np.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        (params, x), (dparams, dx) = primals, tangents
        out = f(params, x)
        dy = {"y": 2.0 * dparams["w"] * x + params["w"] * dx, **numbers(x)}
        return out, (dy, 3.0 * dx * x)
    return lambda x: f({"w": x * 2.0}, x)[0]["y"] + f({"w": x}, x * x)[1]


def by_argument(lib):
    @lib.custom_jvp
    def f(x, y, z):
        return x * y * z
    f.defjvps(lambda t, out, x, y, z: 7.0 * t * out, None, lambda t, out, x, y, z: t * x)
    return lambda x: f(x, x * x, 2.0 * x)


def nondiff_jvp(lib):
    @functools.partial(lib.custom_jvp, nondiff_argnums=(0, 2))
    def apply(g, x, n):
        return g(x) * n
    apply.defjvp(lambda g, n, primals, tangents: (apply(g, *primals, n), 10.0 * n * g(primals[0]) * tangents[0]))
    return lambda x: apply(lib.np.sin, x, 3)


def nondiff_vjp(lib):
    @functools.partial(lib.custom_vjp, nondiff_argnums=(1,))
    def apply(x, g):
        return g(x)
    apply.defvjp(lambda x, g: (g(x), (x, g(x))), lambda g, res, ct: (ct * g(res[0]) * res[1],))
    return lambda x: apply(x, lib.np.cos)


def clipped(lib):
    """The backward rule is not linear."""
    @lib.custom_vjp
    def f(x):
        return x * 1.0
    f.defvjp(lambda x: (x, None), lambda _, ct: (lib.np.clip(ct, -0.5, 0.5),))
    return lambda x: lib.np.sin(f(x) * x)


def several(lib):
    @lib.custom_vjp
    def f(params, x, n):
        return params["w"] * x, lib.np.exp(x), n

    def fwd(params, x, n):
        return f(params, x, n), {"x": x, "w": (params["w"], lib.np.exp(x))}

    def bwd(res, cts):
        w, e = res["w"]
        zero = None if lib is OURS else res["x"] * 0.0  # old versions of JAX take None for whole arguments only
        return {"w": cts[0] * res["x"] * 2.0, "b": zero}, cts[0] * w + cts[1] * e * 3.0, None
    f.defvjp(fwd, bwd)

    def g(x):
        a, b, _ = f({"w": x, "b": x}, x * x, 3)
        return a + b
    return g


def closing(lib):
    """The function and its rules close over values that are not differentiated, traced ones among them."""
    def g(x):
        scale = lib.np.sum(lib.np.ones(3, dtype="float32")) * 0.5

        @lib.custom_jvp
        def f(x):
            return x * scale * lib.np.asarray(ROWS[0])
        f.defjvp(lambda p, t: (f(*p), t[0] * scale * lib.np.asarray(ROWS[1]) * p[0]))

        @lib.custom_vjp
        def h(x):
            return x * scale
        h.defvjp(lambda x: (x * scale, x), lambda x, ct: (ct * scale * x,))
        return f(x) * h(x)
    return g


def jitted(lib):
    @lib.custom_jvp
    def f(x):
        return lib.jit(lib.np.sin)(x)

    @f.defjvp
    @lib.jit
    def rule(primals, tangents):
        def slope(x, t):
            return lib.np.cos(x) * t * 2.0, x
        return f(*primals), lib.jit(slope)(primals[0], tangents[0])[0]
    return lib.jit(f)


def nested(lib):
    inner, other = softplus(lib), clipped(lib)

    @lib.custom_jvp
    def f(x):
        return inner(x) * 2.0
    f.defjvp(lambda p, t: lib.jvp(lambda x: inner(inner(x)), p, t))

    @lib.custom_vjp
    def g(x):
        return f(x) + other(x)
    g.defvjp(lambda x: (g(x), x), lambda x, ct: (ct * f(x) * other(x),))
    return lambda x: g(f(x))


def looped(lib):
    f, g = wrong(lib), several(lib)

    def step(carry, x):
        carry = lib.np.sin(f(carry) * 0.3) + lib.np.cos(g(x) * 0.3)
        return carry, f(carry)
    return lambda x: lib.scan(step, x, lib.np.stack([x, x * 0.5, x * 0.1]))[1].sum(0)


def branching(lib):
    f, g = wrong(lib), clipped(lib)
    return lambda x: lib.cond(x.sum() > 0, lambda x: f(x) * x, g, x)


FUNCTIONS: List[Callable[..., Any]] = [
    softplus, wrong, trees, by_argument, nondiff_jvp, nondiff_vjp, clipped, several, closing, jitted, nested, looped,
    branching]
REVERSE = [nested, looped]  # whose forward rules give values of functions with a custom_vjp
FORWARD = [softplus, wrong, trees, by_argument, nondiff_jvp, jitted]


def loss(lib, f):
    return lambda x: lib.np.sum(f(x) * lib.np.asarray(ROWS[1]))


def second(lib, f):
    return lib.grad(lambda x: lib.np.sum(lib.grad(loss(lib, f))(x) ** 2))


#: From a library, a function, a point and rows of points.
TRANSFORMS: Dict[str, Callable[..., Any]] = {
    "jitted": lambda lib, f, x, xs: lib.jit(f)(x),
    "grad": lambda lib, f, x, xs: lib.grad(loss(lib, f))(x),
    "jit of grad": lambda lib, f, x, xs: lib.jit(lib.grad(loss(lib, f)))(x),
    "grad of jit": lambda lib, f, x, xs: lib.grad(lib.jit(loss(lib, f)))(x),
    "vmap": lambda lib, f, x, xs: lib.vmap(f)(xs),
    "vmap of grad": lambda lib, f, x, xs: lib.vmap(lib.grad(loss(lib, f)))(xs),
    "grad of vmap": lambda lib, f, x, xs: lib.grad(lambda xs: lib.np.sum(lib.vmap(f)(xs) ** 2))(xs),
    "second": lambda lib, f, x, xs: second(lib, f)(x),
    "forward over reverse": lambda lib, f, x, xs: lib.jvp(lib.grad(loss(lib, f)), (x,), (xs[1],))[1],
    "vmap of second": lambda lib, f, x, xs: lib.vmap(second(lib, f))(xs),
}


@pytest.mark.parametrize("function, what", [
    (f, what) for f in FUNCTIONS for what in TRANSFORMS if f not in (looped, branching) or what != "vmap of second"],
    ids=lambda x: getattr(x, "__name__", x))  # two of them would take ten seconds each
def test_equal_to_jax(function, what):
    if what == "forward over reverse" and function in REVERSE:
        with pytest.raises(MissingRuleError, match="has a custom_vjp rule, which forward mode cannot use"):
            TRANSFORMS[what](OURS, function(OURS), X, ROWS)
        return
    got = TRANSFORMS[what](OURS, function(OURS), X, ROWS)
    if function is closing and what == "grad of jit":  # which JAX cannot
        what = "grad"
    want = jax.jit(functools.partial(TRANSFORMS[what], THEIRS, function(THEIRS)))(X, ROWS)  # compiled once
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-5)
    assert got.dtype == want.dtype


@pytest.mark.parametrize("function", FORWARD, ids=lambda f: f.__name__)
def test_forward_mode_equals_jax(function):
    got = pf.jvp(function(OURS), (X,), (ROWS[1],))
    want = jax.jit(lambda x, t: jax.jvp(function(THEIRS), (x,), (t,)))(X, ROWS[1])
    for g, w in zip(got, want):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=2e-5, atol=2e-5)
    batched = pf.vmap(lambda x: pf.jvp(function(OURS), (x,), (x,))[1])(ROWS)
    want = jax.jit(jax.vmap(lambda x: jax.jvp(function(THEIRS), (x,), (x,))[1]))(ROWS)
    np.testing.assert_allclose(np.asarray(batched), np.asarray(want), rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------------------- what the programs are
def all_equations(jaxpr: Jaxpr) -> List[str]:
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    return names + [n for eqn in jaxpr.eqns for value in eqn.primitive.params().values() for j in jaxprs_of(value)
                    for n in all_equations(j)]


def test_without_a_derivative_it_is_the_function():
    jaxpr = pf.make_jaxpr(lambda x: pf.scan(lambda c, y: (softplus(OURS)(c) + clipped(OURS)(y), y), x, x[None])[0])(X)
    assert {"custom_jvp", "custom_vjp"} < set(all_equations(jaxpr))
    plain = without_rules(jaxpr)
    assert not {"custom_jvp", "custom_vjp", "call"} & set(all_equations(plain))
    np.testing.assert_array_equal(plain.eval(X)[0], jaxpr.eval(X)[0])
    program = pf.lower(softplus(OURS), pf.spec(3), target="host")
    assert [eqn.primitive.name for eqn in program.jaxpr.eqns] == ["exp", "add", "log"]
    assert "call" not in program.as_text()


def test_a_program_without_rules_is_itself():
    jaxpr = pf.make_jaxpr(pnp.sin)(X)
    assert without_rules(jaxpr) == jaxpr


def test_rules_are_traced_only_when_they_are_needed_and_once():
    seen: List[str] = []

    @pf.custom_jvp
    def f(x):
        return pnp.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        seen.append("jvp")
        return f(*primals), tangents[0]

    @pf.custom_vjp
    def g(x):
        return x

    def fwd(x):
        seen.append("fwd")
        return x, x

    def bwd(x, ct):
        seen.append("bwd")
        return (ct,)
    g.defvjp(fwd, bwd)
    h = pf.jit(lambda x: g(f(x)).sum())
    h(X), pf.vmap(f)(X), g(X)
    assert seen == []
    pf.grad(h)(X)
    assert sorted(seen) == ["bwd", "fwd", "jvp"]
    pf.grad(h)(X * 2)
    assert sorted(seen) == ["bwd", "fwd", "jvp"]


def test_only_wanted_cotangents_are_computed():
    @pf.custom_vjp
    def f(x, y):
        return x * y
    f.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * pnp.sin(res[1]), ct * pnp.exp(res[0])))
    names = all_equations(pf.make_jaxpr(pf.grad(lambda x, y: f(x, y).sum()))(X, X))
    assert "sin" in names and "exp" not in names


def test_lanes_that_share_an_argument():
    """Its gradient is the sum over the lanes."""
    def gradient(lib, x, xs):
        f = several(lib)
        return lib.grad(lambda x: lib.vmap(lambda y: f(y) * f(x))(xs).sum())(x)
    want = jax.jit(functools.partial(gradient, THEIRS))(X, ROWS)
    np.testing.assert_allclose(np.asarray(gradient(OURS, X, ROWS)), np.asarray(want), rtol=2e-5)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_between_the_lanes_of_a_named_axis(kind):
    """A weight that all lanes share gets the sum of their cotangents, and psum works inside."""
    f = getattr(pf, kind)(lambda w, x: w * x)
    if kind == "custom_jvp":
        f.defjvp(lambda p, t: (p[0] * p[1], 3.0 * (t[0] * p[1] + p[0] * t[1])))
    else:
        f.defvjp(lambda w, x: (w * x, (w, x)), lambda res, ct: (3.0 * ct * res[1], 3.0 * ct * res[0]))

    def total(w, xs):
        return pf.vmap(lambda x: pf.psum(f(w, x), "i"), axis_name="i", out_axes=None)(xs).sum()
    by_w, by_x = pf.grad(total, (0, 1))(X, ROWS)
    np.testing.assert_allclose(np.asarray(by_w), 3 * ROWS.sum(0), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(by_x), 3 * np.stack([X, X]), rtol=1e-6)

    def inside(f, w, xs):
        """A gradient in a lane by what is one for all lanes is that of their sum."""
        return pf.vmap(lambda x: pf.grad(lambda w: f(w, x).sum())(w), axis_name="i")(xs)
    np.testing.assert_allclose(np.asarray(inside(f, X, ROWS)),
                               np.asarray(inside(lambda w, x: 3.0 * w * x, X, ROWS)), rtol=1e-6)

    summed = getattr(pf, kind)(lambda x: pf.psum(x, "i"))
    if kind == "custom_jvp":
        summed.defjvp(lambda p, t: (summed(*p), 5.0 * pf.psum(t[0], "i")))
    else:
        summed.defvjp(lambda x: (summed(x), None), lambda _, ct: (5.0 * ct,))
    both = pf.vmap(lambda x: summed(x), axis_name="i", out_axes=None)
    np.testing.assert_allclose(np.asarray(both(ROWS)), ROWS.sum(0), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(pf.grad(lambda xs: both(xs).sum())(ROWS)), np.full((2, 3), 5.0), rtol=1e-6)


def test_python_follows_values_in_the_function():
    @pf.custom_jvp
    def f(x):
        return x * 2.0 if x > 0 else -x
    f.defjvp(lambda p, t: (p[0] * 2.0, t[0] * 7.0))
    assert float(pf.grad(f)(1.0)) == 7.0 and float(f(-1.0)) == 1.0


def test_it_looks_like_the_function():
    def f(x, scale=2.0):
        """Scaled."""
        return x * scale
    g = pf.custom_vjp(f)
    g.defvjp(lambda x, scale: (x * scale, scale), lambda scale, ct: (ct * scale, None))
    assert (g.__name__, g.__doc__, inspect.signature(g)) == ("f", "Scaled.", inspect.signature(f))
    assert float(pf.grad(g)(3.0)) == 2.0 and float(pf.grad(lambda x: g(x, scale=5.0))(3.0)) == 5.0


def test_text_names_the_rule_and_does_not_hold_it():
    jaxpr = pf.make_jaxpr(softplus(OURS))(X)
    back = pf.parse_jaxpr(str(jaxpr))
    assert isinstance(back.eqns[0].primitive, CustomJvp) and str(back) == str(jaxpr)
    np.testing.assert_array_equal(back.eval(X)[0], jaxpr.eval(X)[0])
    with pytest.raises(MissingRuleError, match="the custom_jvp rule of a function is not known: the jaxpr was read "
                                               "from its text, which names rules only"):
        jvp_jaxpr(back, (True,))
    back = pf.parse_jaxpr(str(pf.make_jaxpr(clipped(OURS))(X)))
    assert isinstance(back.eqns[0].primitive, CustomVjp)


# ---------------------------------------------------------------------------- errors
def error(kind: type, f: Callable[..., Any], *args: Any) -> List[str]:
    """The lines of the error, the user's files and line numbers left out."""
    with pytest.raises(kind) as e:
        f(*args)
    text = re.sub(r"\(\S+\.py:\d+\)", "(file)", str(e.value))
    return [re.sub(r"^at \S+\.py:\d+, in \w+: ", "at ", line) for line in text.split("\n  ")]


def with_jvp(rule, f=lambda x: pnp.sin(x)):
    g = pf.custom_jvp(f)
    g.defjvp(rule)
    return lambda x: g(x).sum()


def with_vjp(fwd, bwd, f=lambda x, y: x["a"] * y):
    g = pf.custom_vjp(f)
    g.defvjp(fwd, bwd)
    return lambda x: g({"a": x}, x).sum()


def good(x, y):
    return x["a"] * y, None


def test_a_rule_is_missing():
    def f(x):
        return x
    assert error(ArgumentError, pf.custom_jvp(f), X) == [
        "custom_jvp: error.test_a_rule_is_missing.f (file) has no rule yet".replace("error.", ""),
        "at f(*args)", "way out: give it one with defjvp or defjvps"]
    assert error(ArgumentError, pf.custom_vjp(f), X)[2:] == ["way out: give it one with defvjp(fwd, bwd)"]
    with pytest.raises(TypeError, match="defjvp takes a function first, got int"):
        pf.custom_jvp(f).defjvp(3)
    with pytest.raises(TypeError, match=r"custom_vjp takes a function first, got float\n.*\n  way out: "
                                        r"custom_vjp\(f\)\(x\)"):
        pf.custom_vjp(2.0)


def test_forward_mode_of_a_rule_for_reverse_mode():
    f = pf.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))

    def g(x):
        return f(x)
    want = ["<lambda> has a custom_vjp rule, which forward mode cannot use", "at return f(x)",
            "way out: reverse mode (grad, vjp, jacrev), or a custom_jvp rule, which serves both"]
    assert error(MissingRuleError, pf.jvp, g, (X,), (X,)) == want
    assert error(MissingRuleError, pf.jacfwd(g), X) == want
    assert error(MissingRuleError, pf.jvp, pf.vmap(g), (X,), (X,)) == want
    push = pf.linearize(g, X)[1]
    assert error(MissingRuleError, push, X)[::2] == want[::2]
    assert error(LoweringError, pf.jit(lambda x, t: pf.linearize(g, x)[1](t)), X, X)[0] == want[0]


def test_closing_over_a_differentiated_value():
    def loss(w, x):
        f = pf.custom_jvp(lambda x: x * w["scale"])
        f.defjvp(lambda p, t: (f(*p), t[0] * w["scale"]))
        return f(x).sum()
    want = ["the custom_jvp rule of <lambda> gives no derivative by a value that <lambda> closes over, or takes by "
            "nondiff_argnums", "at return f(x).sum()", "the value: f32[3], argument w['scale'] of loss",
            "way out: pass it to <lambda> as an argument that is differentiated"]
    w = {"scale": X}
    assert error(ArgumentError, pf.grad(loss), w, X) == want
    np.testing.assert_array_equal(np.asarray(pf.grad(loss, 1)(w, X)), X)

    def reverse(w, x):
        f = pf.custom_vjp(lambda x: x * w)
        f.defvjp(lambda x: (x * w, None), lambda _, ct: (ct * w,))
        return f(x).sum()
    assert error(ArgumentError, pf.grad(reverse), X, X)[0].startswith("the custom_vjp rule of <lambda> gives no")
    np.testing.assert_array_equal(np.asarray(pf.grad(pf.jit(reverse), 1)(X, X)), X)

    def by_number(w, x):
        f = pf.custom_vjp(lambda w, x: x * w, nondiff_argnums=0)
        f.defvjp(lambda w, x: (x * w, None), lambda w, _, ct: (ct * w,))
        return f(w, x).sum()
    assert error(ArgumentError, pf.grad(by_number), X, X)[2] == "the value: f32[3], argument w of by_number"
    np.testing.assert_array_equal(np.asarray(pf.jit(pf.grad(by_number, 1))(X, X)), X)


def test_a_rule_closing_over_what_the_function_does_not_use():
    def loss(w, x):
        f = pf.custom_jvp(lambda x: x * 2.0)
        f.defjvp(lambda p, t: (f(*p), t[0] * w))
        return f(x).sum()
    got = error(LeakError, pf.grad(loss, 1), X, X)
    name = "test_a_rule_closing_over_what_the_function_does_not_use.loss.<lambda> (file)"
    assert got[0] == f"the custom_jvp rule {name} closes over a traced value that {name} does not use"
    assert got[2:] == ["the value: f32[3], argument w of loss", f"way out: pass it to {name} as an argument"]

    def outer(w):
        return pf.grad(lambda x: loss(w, x))(X).sum()
    assert error(LeakError, pf.jit(outer), X)[2] == "the value: f32[3], argument w of outer"


@pytest.mark.parametrize("rule, kind, text", [
    (lambda p, t: p[0], ArgumentError, "must return a pair (result, tangent), got f32[3]"),
    (lambda p, t: (p[0],), ArgumentError, "must return a pair (result, tangent), got a tuple of 1"),
    (lambda p, t: None, ArgumentError, "must return a pair (result, tangent), got a NoneType"),
    (lambda p, t: (p[0][:2], t[0]), ShapeError, "returns result as f32[2], expected f32[3]"),
    (lambda p, t: (p[0], t[0].sum()), ShapeError, "returns tangent as f32[], expected f32[3]"),
    (lambda p, t: (p[0], t[0].astype("float16")), ShapeError, "returns tangent as f16[3], expected f32[3]"),
    (lambda p, t: ((p[0], p[0]), t[0]), ArgumentError, "returns a result of another structure than <lambda> (file)"),
    (lambda p, t: (p[0], "t"), ArgumentError, "returns no array as tangent: cannot interpret 't' as an array"),
])
def test_what_a_jvp_rule_returns(rule, kind, text):
    got = error(kind, pf.grad(with_jvp(rule)), X)[0]
    assert got.startswith("the custom_jvp rule <lambda> (file) ") and text.split(":")[0] in got


def test_a_jvp_rule_that_is_not_linear():
    got = error(ArgumentError, pf.grad(with_jvp(lambda p, t: (p[0], pnp.tanh(t[0])))), X)
    assert got[0] == "the custom_jvp rule of <lambda> is not linear in the tangents"
    assert got[1].startswith("seen: tests/test_custom.py:")
    got = error(ArgumentError, pf.grad(with_jvp(lambda p, t: (p[0], t[0] * t[0]))), X)
    assert got[0] == "the custom_jvp rule of <lambda> is not linear in the tangents"
    got = error(ArgumentError, pf.grad(with_jvp(lambda p, t: (p[0] + t[0], t[0]))), X)
    assert got[0] == "the custom_jvp rule of <lambda> gives a result that depends on the tangents"


@pytest.mark.parametrize("fwd, bwd, kind, text", [
    (lambda x, y: x["a"], None, ArgumentError, "must return a pair (result, residuals), got f32[3]"),
    (lambda x, y: (y[:1], None), None, ShapeError, "returns result as f32[1], expected f32[3]"),
    (lambda x, y: (y, {"k": "no"}), None, ArgumentError, "returns no array as residuals['k']"),
    (good, lambda _, ct: ct, ArgumentError, "must return a tuple of 2 cotangents, got f32[3]"),
    (good, lambda _, ct: (ct,), ArgumentError,
     "returns 1 cotangents, but <lambda> (file) has 2 arguments to differentiate"),
    (good, lambda _, ct: ({"a": ct, "b": ct}, ct), ArgumentError,
     "returns a cotangent of x of another structure than x"),
    (good, lambda _, ct: ({"a": ct[None]}, ct), ShapeError,
     "returns the cotangent of x['a'] as f32[1,3], expected f32[3]"),
    (good, lambda _, ct: ({"a": ct}, ct.astype("float16")), ShapeError,
     "returns the cotangent of y as f16[3], expected f32[3]"),
    (good, lambda _, ct: ({"a": "c"}, ct), ArgumentError, "returns no array as the cotangent of x['a']"),
])
def test_what_vjp_rules_return(fwd, bwd, kind, text):
    got = error(kind, pf.grad(with_vjp(fwd, bwd or (lambda _, ct: (None, None)))), X)[0]
    assert got.startswith("the custom_vjp rule ") and text in got
    assert issubclass(kind, ValueError if kind is ShapeError else TypeError)


def test_none_is_a_zero_cotangent():
    for bwd, want in [(lambda _, ct: (None, None), 0 * X), (lambda _, ct: ({"a": None}, ct), X / X),
                      (lambda _, ct: [{"a": ct * 2}, None], 2 * X / X)]:
        np.testing.assert_array_equal(np.asarray(pf.grad(with_vjp(good, bwd))(X)), want)


def test_arguments_that_rules_cannot_take():
    def f(x, *, scale):
        return x * scale
    g = pf.custom_jvp(f)
    g.defjvp(lambda p, t: (p[0], t[0]))
    assert error(ArgumentError, lambda: g(X, scale=2.0))[::2] == [
        "custom_jvp: test_arguments_that_rules_cannot_take.f (file) has arguments that cannot be given by position",
        "seen: scale"]
    h = pf.custom_vjp(lambda x: x, nondiff_argnums=(1,))
    h.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    assert error(ArgumentError, pf.grad(lambda x: h(x)), 1.0)[0] == \
        "custom_vjp: nondiff_argnums=(1,), but test_arguments_that_rules_cannot_take.<lambda> (file) was called " \
        "with 1 positional arguments"
    assert "number other arguments" in "".join(error(ArgumentError, pf.grad(with_vjp(
        lambda x, y: (y, {"k": len}), lambda _, ct: (None, None))), X))
    by = pf.custom_jvp(lambda x, y: x * y)
    by.defjvps(lambda t, out, x, y: t)
    assert error(ArgumentError, pf.grad(by), 1.0, 2.0)[0] == \
        "defjvps got 1 rules, but test_arguments_that_rules_cannot_take.<lambda> (file) was called with 2 arguments"


def test_python_asking_a_rule_for_values():
    f = with_jvp(lambda p, t: (p[0], t[0] if p[0].sum() > 0 else t[0]))
    got = error(TypeError, pf.grad(f), X)
    assert got[0].endswith("needs the value of an array that is not known while <lambda> is traced")
    assert got[3] == "it depends on: x"
