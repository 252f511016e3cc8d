"""custom_call: a user's NumPy function as an operation, its types, its rules, and what its errors say."""
import re
from typing import Any, Callable, List

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import (
    ArgumentError,
    InputError,
    JaxprError,
    LoweringError,
    MissingRuleError,
    ShapeError,
    TreeError,
)

X = np.float32([0.3, -1.2, 2.0])
ROWS = np.float32([[0.3, -1.2, 2.0], [1.1, 0.4, -0.7]])


def sinc_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return sinc(x), t * (pnp.cos(np.pi * x) - sinc(x)) / x


@pf.custom_call(result=lambda x: x, jvp=sinc_jvp, vmap="broadcast",
                lower=lambda px, x: px.ops.div(px.ops.sin(px.ops.mul(x, px.constant(np.pi, x.dtype))),
                                               px.ops.mul(x, px.constant(np.pi, x.dtype))))
def sinc(x):
    """sin(pi x) / (pi x)."""
    return np.sinc(x).astype(x.dtype)


def rolled(vmap, **rules):
    """The arguments are a tree, and so is the result."""
    def roll(pair, by):
        return {"rolled": np.roll(pair["x"], int(by)), "sum": np.sum(pair["x"] * pair["w"], dtype=np.float32)}
    return pf.custom_call(roll, result=lambda pair, by: {"rolled": pair["x"], "sum": pf.spec((), pair["x"].dtype)},
                          vmap=vmap, **rules)


def test_values_and_types():
    np.testing.assert_array_equal(np.asarray(sinc(X)), np.sinc(X).astype("f4"))
    got = rolled(None)({"x": X, "w": X}, 1)
    np.testing.assert_array_equal(np.asarray(got["rolled"]), np.roll(X, 1))
    np.testing.assert_allclose(float(got["sum"]), np.sum(X * X), rtol=1e-6)
    jaxpr = pf.make_jaxpr(rolled(None))({"x": X, "w": X}, 1)
    assert [str(a) for a in jaxpr.out_avals] == ["f32[3]", "f32[]"]
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["custom_call"]
    assert (sinc.__name__, sinc.__doc__) == ("sinc", "sin(pi x) / (pi x).")


def test_the_host_function_cannot_write_and_keeps_what_it_made():
    kept: List[Any] = []

    @pf.custom_call(result=lambda x: x)
    def f(x):
        with pytest.raises(ValueError):
            x[0] = 1
        kept.append(x + 1)
        return kept[-1]
    y = f(X.copy())
    kept[0][:] = 0
    np.testing.assert_array_equal(np.asarray(y), X + 1)
    assert kept[0].flags.writeable
    identity = pf.custom_call(lambda x: x, result=lambda x: x)
    data = X.copy()
    y = identity(data)
    data[:] = 0
    np.testing.assert_array_equal(np.asarray(y), X)


def plain(x):
    return jnp.sin(jnp.pi * x) / (jnp.pi * x)


@pytest.mark.parametrize("name, ours, theirs", [
    ("jit", lambda: pf.jit(sinc)(X), lambda: plain(X)),
    ("grad", lambda: pf.grad(lambda x: sinc(x).sum())(X), lambda: jax.grad(lambda x: plain(x).sum())(X)),
    ("jit of grad", lambda: pf.jit(pf.grad(lambda x: sinc(x).sum()))(X), lambda: jax.grad(lambda x: plain(x).sum())(X)),
    ("second", lambda: pf.hessian(lambda x: sinc(x).sum())(X), lambda: jax.hessian(lambda x: plain(x).sum())(X)),
    ("vmap of grad", lambda: pf.vmap(pf.grad(lambda x: sinc(x).sum()))(ROWS),
     lambda: jax.vmap(jax.grad(lambda x: plain(x).sum()))(ROWS)),
    ("checkpoint", lambda: pf.grad(pf.checkpoint(lambda x: sinc(x * x).sum()))(X),
     lambda: jax.grad(lambda x: plain(x * x).sum())(X)),
], ids=lambda x: x if isinstance(x, str) else "")
def test_derivatives_equal_jax(name, ours, theirs):
    np.testing.assert_allclose(np.asarray(ours()), np.asarray(jax.jit(theirs)()), rtol=2e-5, atol=2e-5)


def test_a_rule_for_reverse_mode():
    def fwd(pair, by):
        return f(pair, by), (pair, by)

    def bwd(kept, ct):
        pair, by = kept
        back = f({"x": ct["rolled"], "w": ct["rolled"]}, -by)["rolled"]
        return {"x": back + ct["sum"] * pair["w"], "w": ct["sum"] * pair["x"]}, None
    f = rolled("sequential", vjp=(fwd, bwd))

    def loss(x, w):
        out = f({"x": x, "w": w}, 1)
        return (out["rolled"] * ROWS[0]).sum() * out["sum"]
    want = jax.grad(lambda x, w: (jnp.roll(x, 1) * ROWS[0]).sum() * (x * w).sum(), (0, 1))
    for got, w in zip(pf.grad(loss, (0, 1))(X, ROWS[1]), want(X, ROWS[1])):
        np.testing.assert_allclose(np.asarray(got), np.asarray(w), rtol=1e-5)
    for got, w in zip(pf.vmap(pf.grad(loss, (0, 1)), (0, None))(ROWS, X), jax.vmap(want, (0, None))(ROWS, X)):
        np.testing.assert_allclose(np.asarray(got), np.asarray(w), rtol=1e-5)


def by_rule(size, in_batched, pair, by):
    """Only x and w mapped."""
    assert size == 2 and in_batched == ({"x": True, "w": False}, False)
    return ({"rolled": pnp.roll(pair["x"], 1, 1), "sum": pnp.sum(pair["x"] * pair["w"], 1)},
            {"rolled": True, "sum": True})


@pytest.mark.parametrize("vmap", ["sequential", by_rule], ids=["sequential", "rule"])
def test_vmap_equals_a_loop(vmap):
    f = rolled(vmap)
    got = pf.vmap(lambda x: f({"x": x, "w": X}, 1))(ROWS)
    for i, x in enumerate(ROWS):
        one = f({"x": x, "w": X}, 1)
        for k in one:
            np.testing.assert_allclose(np.asarray(got[k])[i], np.asarray(one[k]), rtol=1e-6)


def test_vmap_places():
    """Mapped axes anywhere, several mappings, no lanes, lanes that share an operand."""
    f = pf.custom_call(lambda x, y: x * y.sum(dtype=np.float32), result=lambda x, y: x, vmap="sequential")
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    got = pf.vmap(pf.vmap(f, (0, None)), (2, 0))(cube, np.ones((4, 5), np.float32))
    np.testing.assert_array_equal(np.asarray(got), np.moveaxis(cube, 2, 0) * 5)
    assert pf.vmap(f, (0, None))(np.zeros((0, 3), np.float32), X).shape == (0, 3)
    got = pf.vmap(sinc, 1, 1)(ROWS)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(sinc(ROWS)))


def test_lowered():
    program = pf.lower(lambda x: sinc(x) + 1.0, pf.spec(3), target="host")
    assert "ops.sin" in program.as_text()
    with pf.Session(program) as session:
        np.testing.assert_allclose(np.asarray(session.run(X)), np.sinc(X) + 1, rtol=1e-6)


# ---------------------------------------------------------------------------- errors
def error(kind: type, f: Callable[..., Any], *args: Any) -> List[str]:
    """The lines of the error, the user's files and line numbers left out."""
    with pytest.raises(kind) as e:
        f(*args)
    text = re.sub(r"\(\S+\.py:\d+\)", "(file)", str(e.value))
    return [re.sub(r"^at \S+\.py:\d+, in \S+: ", "at ", line) for line in text.split("\n  ")]


def cube(**rules):
    def cube(x):
        return x ** 3
    return pf.custom_call(cube, **{"result": lambda x: x, **rules})


NAME = "custom_call cube.cube (file)"


def test_no_lowering():
    f = cube()
    np.testing.assert_array_equal(np.asarray(f(X)), X ** 3)

    def g(x):
        return f(x)
    want = [f"{NAME} has no PopXL lowering: pf.jit and pf.lower cannot take it", "at return f(x)",
            "way out: pass lower=f to pf.custom_call, where f(px, *tensors) makes the result of PopXL ops"]
    assert error(LoweringError, pf.jit(g), X) == want
    assert error(LoweringError, pf.lower, g, X) == want


def test_no_rules():
    def g(x):
        return cube()(x).sum()
    assert error(MissingRuleError, pf.grad(g), X) == [
        f"{NAME} has no gradient rule", "at return cube()(x).sum()",
        "way out: pass jvp=rule or vjp=(fwd, bwd) to pf.custom_call"]
    assert error(MissingRuleError, pf.vmap(g), ROWS) == [
        f"{NAME} does not say what vmap makes of it", "at return cube()(x).sum()",
        "way out: pass vmap='sequential', vmap='broadcast' or a rule to pf.custom_call"]
    assert error(MissingRuleError, pf.jvp, cube(vjp=(lambda x: (x, x), lambda x, ct: (ct,))), (X,), (X,))[0] == \
        "cube has a custom_vjp rule, which forward mode cannot use"


@pytest.mark.parametrize("result, text, way", [
    (lambda x: pf.spec(4), "computes result as float32[3], but result=... says f32[4]", None),
    (lambda x: pf.spec(3, "float16"), "computes result as float32[3], but result=... says f16[3]",
     "way out: .astype(np.float16)"),
])
def test_a_result_of_another_type(result, text, way):
    got = error(InputError, cube(result=result), X)
    assert got[0] == f"{NAME} {text}" and got[2:] == [way] * bool(way)


def test_a_result_of_another_structure():
    got = error(TreeError, cube(result=lambda x: (x, x)), X)
    assert got[0] == f"{NAME}: it computes another structure than result=... says"
    assert error(ArgumentError, cube(result=lambda x: {"y": "f32"}), X)[::2] == [
        f"{NAME}: result=... gives no type as result['y']", "seen: 'f32'"]


def test_vmap_of_another_type():
    f = cube(result=lambda x: pf.spec(3), vmap="broadcast")
    assert error(ShapeError, pf.vmap(f), ROWS)[0] == f"{NAME}: under vmap result is f32[3], expected f32[2,3]"
    f = cube(vmap=lambda size, batched, x: x)
    assert error(ArgumentError, pf.vmap(f), ROWS)[0].startswith(
        f"{NAME}: the vmap rule must return a pair (result, where it has the axis), got")
    f = cube(vmap=lambda size, batched, x: (x, {"a": True}))
    assert error(ArgumentError, pf.vmap(f), ROWS)[0].startswith(
        f"{NAME}: the vmap rule does not say where the result has the axis: ")
    f = cube(vmap=lambda size, batched, x: (x[0], True))
    assert error(ShapeError, pf.vmap(f), ROWS)[0] == f"{NAME}: under vmap result is f32[3], expected f32[2,3]"
    f = cube(vmap=lambda size, batched, x: (x[0], False))
    np.testing.assert_array_equal(np.asarray(pf.vmap(f, out_axes=None)(ROWS)), ROWS[0])


@pytest.mark.parametrize("rules, text", [
    ({"result": pf.spec(3)}, "custom_call: result is a function, got f32[3]"),
    ({"lower": 3}, "custom_call: lower is a function, got 3"),
    ({"jvp": "x"}, "custom_call: jvp is a function, got 'x'"),
    ({"vjp": len}, "custom_call: vjp is a pair of functions (fwd, bwd), got <built-in function len>"),
    ({"vmap": "loop"}, "custom_call: vmap is 'sequential', 'broadcast' or a rule, got 'loop'"),
    ({"jvp": len, "vjp": (len, len)}, "custom_call takes jvp or vjp, not both"),
])
def test_rules_of_a_wrong_kind(rules, text):
    assert error(ArgumentError, lambda: cube(**rules))[0] == text


def test_text_names_the_operation_and_does_not_hold_it():
    jaxpr = pf.make_jaxpr(cube())(X)
    assert "custom_call[operation='" in str(jaxpr)
    with pytest.raises(JaxprError, match="is not known: the jaxpr was read from its text, which names operations only"):
        pf.parse_jaxpr(str(jaxpr))
