"""checkpoint: the same values and derivatives, fewer residuals, and a recomputation that is not merged away."""
import re
from typing import Any, Callable, Dict, List

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.parse import primitives
from popfn.transforms.checkpoint import DOTS, Checkpoint
from popfn.transforms.custom import without_rules
from popfn.transforms.differentiate import linearize_jaxpr
from popfn.transforms.replay import jaxprs_of

POLICIES: List[Any] = ["nothing", "everything", "dots", pf.save_only_names("a"), pf.save_only_names("a", "b"), ()]
rng = np.random.default_rng(0)
W = [np.asarray(rng.normal(size=(4, 4)) / 2, np.float32) for _ in range(3)]
X = np.asarray(rng.normal(size=(2, 4)), np.float32)


def block(w: Any, x: Any, np_: Any = pnp, name: Callable[..., Any] = pf.checkpoint_name) -> Any:
    """Residuals of the plain function: x, w, h, tanh(h), sin(a), cos(a), exp(s)."""
    h = name(x @ w, "h")
    a = name(np_.tanh(h), "a")
    return name(np_.exp(np_.sin(a)), "b")


def loss(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    def f(ws: Any, x: Any) -> Any:
        for w in ws:
            x = wrap(block)(w, x)
        return (x * x).sum()
    return f


PLAIN = loss(lambda f: f)


def jax_loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = block(w, x, jnp, lambda x, name: x)
    return (x * x).sum()


def second(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ws, x: pf.grad(lambda x: (pf.grad(f)(ws, x)[0] ** 2).sum() + (pf.grad(f, 1)(ws, x) ** 2).sum())(x)


NESTS: Dict[str, Callable[[Any], Callable[..., Any]]] = {
    "plain": lambda policy: loss(pf.checkpoint(policy=policy)),
    "of everything": lambda policy: pf.checkpoint(PLAIN, policy=policy),
    "nested": lambda policy: pf.checkpoint(loss(pf.checkpoint(policy=policy)), policy=policy),
    "of a jitted function": lambda policy: loss(lambda f: pf.checkpoint(pf.jit(f), policy=policy)),
    "in a jitted function": lambda policy: loss(lambda f: pf.jit(pf.checkpoint(f, policy=policy))),
}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("nest", NESTS)
def test_values_and_derivatives_are_those_without(nest, policy):
    f = NESTS[nest](policy)
    assert float(f(W, X)) == float(PLAIN(W, X))
    for transform in (lambda f: pf.grad(f, (0, 1)), lambda f: pf.jit(pf.grad(f, (0, 1))),
                      lambda f: pf.jit(pf.vmap(pf.grad(f), (None, 0))), second):
        args = (W, X[:, None]) if transform is not second else (W, X)
        for got, want in zip(pf.tree.leaves(transform(f)(*args)), pf.tree.leaves(transform(PLAIN)(*args))):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)
    tangents = [w * 2 for w in W], X
    np.testing.assert_array_equal(np.asarray(pf.jvp(f, (W, X), tangents)[1]),
                                  np.asarray(pf.jvp(PLAIN, (W, X), tangents)[1]))


def test_derivatives_equal_jax():
    got, want = pf.grad(loss(pf.checkpoint))(W, X), jax.jit(jax.grad(jax_loss))(W, X)
    for g, w in zip(got, want):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=2e-5, atol=2e-5)
    x = X[0]
    got = pf.hessian(lambda x: pf.checkpoint(block)(W[0], x).sum())(x)
    want = jax.jit(jax.hessian(lambda x: block(W[0], x, jnp, lambda x, name: x).sum()))(x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-4)
    got = pf.grad(lambda x: pf.vmap(pf.checkpoint(lambda x: block(W[0], x)))(x).sum())(X)
    want = jax.jit(jax.grad(lambda x: block(W[0], x, jnp, lambda x, name: x).sum()))(X)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------------------- what is kept
def residuals(policy: Any, f: Callable[..., Any] = block, *args: Any) -> List[str]:
    """The types of what a linearization keeps beside the inputs, and how many inputs it keeps."""
    wrapped = pf.checkpoint(f, policy=policy) if policy is not None else f
    jaxpr = pf.make_jaxpr(wrapped)(*(args or (W[0], X)))
    cut = linearize_jaxpr(jaxpr, (True,) * len(jaxpr.inputs))
    kept = [str(cut.forward.outputs[i].aval) for where, i in cut.residuals if where == "output"]
    return [f"{sum(where == 'input' for where, _ in cut.residuals)} inputs"] + kept


def test_what_each_policy_keeps():
    plain = residuals(None)
    assert plain == ["2 inputs"] + ["f32[2,4]"] * 3  # the slopes of tanh, sin and exp
    assert residuals("nothing") == ["2 inputs"]
    assert residuals("everything") == plain
    assert residuals("dots") == ["2 inputs", "f32[2,4]"]
    assert residuals(pf.save_only_names("a")) == ["2 inputs", "f32[2,4]"]
    assert residuals(pf.save_only_names("h", "a")) == ["2 inputs", "f32[2,4]"]  # tanh needs its result alone
    assert residuals(pf.save_only_names("a", "b")) == ["2 inputs", "f32[2,4]", "f32[2,4]"]
    assert residuals(pf.save_only_names("c")) == ["2 inputs"]


def test_policies_look_into_functions_that_are_called():
    assert residuals("dots", pf.jit(block)) == ["2 inputs", "f32[2,4]"]
    assert residuals(pf.save_only_names("a"), pf.jit(lambda w, x: pf.jit(block)(w, x))) == ["2 inputs", "f32[2,4]"]


def test_inputs_that_are_not_needed_are_not_kept():
    assert residuals("nothing", lambda w, x: pnp.sin(w) + x.sum(), W[0], X) == ["1 inputs"]
    assert residuals("nothing", lambda w, x: w[0] + x * 2.0, W[0], X) == ["0 inputs"]


def test_what_crosses_to_the_backward_pass_does_not_grow():
    """A chain of blocks keeps one value for each, the block's input; a block of many steps no more than a short one."""
    def chain(n: int, wrap: Callable[..., Any]) -> Callable[..., Any]:
        def f(x: Any) -> Any:
            for _ in range(n):
                x = pnp.sin(pnp.exp(x * 0.5))
            return x
        return wrap(f)
    for n in (2, 10):
        assert residuals(None, chain(n, lambda f: f), X)[1:] == ["f32[2,4]"] * 2 * n
        assert residuals(None, chain(n, pf.checkpoint), X) == ["1 inputs"]


def test_a_scan_stacks_the_carry_only():
    def total(wrap: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, ws: pf.scan(lambda c, w: (wrap(block)(w, c), None), x, ws)[0].sum()
    ws = np.stack(W)

    def stacked(wrap: Callable[..., Any]) -> int:
        jaxpr = pf.make_jaxpr(total(wrap))(X, ws)
        cut = linearize_jaxpr(jaxpr, (True,) * len(jaxpr.inputs))
        return sum(cut.forward.outputs[i].aval.shape[:1] == (3,) for where, i in cut.residuals if where == "output")
    assert stacked(pf.checkpoint) == 1 < stacked(lambda f: f)
    for got, want in zip(pf.grad(total(pf.checkpoint), (0, 1))(X, ws), pf.grad(total(lambda f: f), (0, 1))(X, ws)):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)
    got, want = (pf.jit(pf.vmap(pf.grad(total(f)), (0, None)))(X[:, None], ws) for f in (pf.checkpoint, lambda f: f))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)


def count(jaxpr: Jaxpr, name: str) -> int:
    """How often a primitive runs, called functions included."""
    return sum((eqn.primitive.name == name) + sum(
        count(j, name) for value in eqn.primitive.params().values() for j in jaxprs_of(value))
               for eqn in jaxpr.eqns)


@pytest.mark.parametrize("policy, times", [("nothing", 2), ("everything", 1), (("a",), 1), (("b",), 2)], ids=str)
def test_the_recomputation_outlives_simplification(policy, times):
    f = pf.grad(loss(pf.checkpoint(policy=policy)))
    plain = without_rules(pf.make_jaxpr(pf.grad(PLAIN))(W, X))
    assert count(plain, "tanh") == 3
    jaxpr = without_rules(pf.make_jaxpr(f)(W, X))
    assert count(jaxpr, "tanh") == 3 * times
    assert count(without_rules(jaxpr), "tanh") == 3 * times


def test_the_recomputation_is_lowered():
    """As graphs of the forward and the backward pass, each made once for all blocks."""
    def step(ws: Any, x: Any) -> Any:
        return pf.grad(loss(pf.checkpoint))(ws, x)
    program = pf.lower(step, W, X, target="host")
    text = program.as_text()
    functions = re.findall(r"^def (?!build|main)", text, re.M)
    assert len(functions) == len(re.findall(r"= ops\.tanh\(", text)) == 3  # the first block has no gradient by x
    assert len(re.findall(r"ops\.call\(", text)) == 6
    with pf.Session(program) as session:
        for got, want in zip(session.run(W, X), pf.grad(PLAIN)(W, X)):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)


def test_without_a_derivative_nothing_is_computed_twice():
    jaxpr = pf.make_jaxpr(loss(pf.checkpoint))(W, X)
    assert count(jaxpr, "tanh") == 3
    assert [eqn.primitive.name for eqn in jaxpr.eqns][:3] == ["checkpoint"] * 3
    pushed = pf.make_jaxpr(lambda x: pf.jvp(pf.checkpoint(pnp.tanh), (x,), (x,)))(X)
    assert count(pushed, "tanh") == 1


def test_python_follows_values_and_closures():
    def f(x: Any) -> Any:
        return pf.checkpoint(lambda y: y * x if x > 0 else y)(x * 2.0)
    assert float(pf.grad(f)(3.0)) == 12.0 and float(pf.grad(f)(-3.0)) == 2.0
    assert pf.remat is pf.checkpoint


def test_names_are_only_names():
    x = {"a": X, "b": (W[0], 2.0)}
    named = pf.checkpoint_name(x, "n")
    for got, want in zip(pf.tree.leaves(named), pf.tree.leaves(x)):
        np.testing.assert_array_equal(np.asarray(got), want)
    named = pf.lower(lambda x: pf.checkpoint_name(x, "n") + 1, X, target="host")
    assert [call.callee for call in named.built.main.calls if call.callee.startswith("ops.")] == [
        "ops.host_load", "ops.add", "ops.host_store"]


def test_policies_keep_primitives_that_there_are():

    assert DOTS < set(primitives())


@pytest.mark.parametrize("f, text", [
    (lambda: pf.checkpoint(pnp.sin, policy="all"),
     "checkpoint: policy is one of 'nothing', 'everything', 'dots' or pf.save_only_names(...), got 'all'"),
    (lambda: pf.checkpoint(pnp.sin, policy=("a", 1)),
     "checkpoint: policy is one of 'nothing', 'everything', 'dots' or pf.save_only_names(...), got ('a', 1)"),
    (lambda: pf.checkpoint(3.0), "checkpoint takes a function first, got float"),
    (lambda: pf.save_only_names(["a"]), "save_only_names takes names, got ['a']"),
    (lambda: pf.checkpoint_name(X, 3), "checkpoint_name takes a name, got 3"),
])
def test_errors(f, text):
    with pytest.raises(ArgumentError) as e:
        f()
    lines = str(e.value).split("\n  ")
    assert lines[0] == text and lines[1].startswith("at tests/test_checkpoint.py:")


def test_printed_and_parsed_back():
    jaxpr = pf.make_jaxpr(pf.grad(loss(pf.checkpoint(policy=("a",)))))(W, X)
    assert pf.parse_jaxpr(str(jaxpr), jaxpr.constants) == jaxpr
    assert Checkpoint(jaxpr, ("a",)) == Checkpoint(jaxpr, ("a",)) != Checkpoint(jaxpr)
