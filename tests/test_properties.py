"""Random programs: the same numbers on every path; the same derivatives forwards, backwards, in JAX, by differences."""
from typing import Any, List, Sequence, Tuple

import jax
import numpy as np
import pytest
import translation
from cases import P
from hypothesis import Phase, given, settings
from programs import Program, lowered, programs, tolerance
from references import Stopped, assert_within, evaluate, widened

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.jaxpr import Jaxpr
from popfn.transforms.differentiate import jvp_jaxpr, vjp_jaxpr
from popfn.transforms.simplify import simplify

Bounds = Tuple[List[np.ndarray], List[Any]]


def examples(n: int, **options: Any) -> Any:
    """`n` examples in the usual run, and in a longer one as many as its profile asks for."""
    most = settings.default.max_examples
    return settings(max_examples=n if most <= 100 else most, **options)


def arrays(tree: Any) -> List[np.ndarray]:
    return [np.asarray(x) for x in pf.tree.leaves(tree)]


def assert_bits(got: Sequence[np.ndarray], want: Sequence[np.ndarray], what: str) -> None:
    assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in want], what
    for i, (g, w) in enumerate(zip(got, want)):
        if g.tobytes() != w.tobytes():  # NaNs may differ in their bits
            np.testing.assert_array_equal(g, w, err_msg=f"{what}: output {i}")


def assert_close(jaxpr: Jaxpr, inputs: Sequence[np.ndarray], *ways: Tuple[str, Sequence[Any]]) -> Bounds:
    """Results of the jaxpr, got in several ways, are within what rounding may do; gives what `tolerance` gives."""
    exact, bounds = tolerance(jaxpr, inputs)
    for what, results in ways:
        assert len(results) == len(exact)
        for i, (got, want, bound) in enumerate(zip(results, exact, bounds)):
            assert_within(np.asarray(got), want, bound, f"{what}: output {i}")
    return exact, bounds


def assert_round_trip(jaxpr: Jaxpr) -> None:
    back = pf.parse_jaxpr(str(jaxpr.check()), jaxpr.constants)
    assert back == jaxpr and str(back) == str(jaxpr)


def gradient(program: Program) -> Tuple[Jaxpr, Jaxpr, Tuple[bool, ...]]:
    """The loss of a program, its value and gradient, and which inputs that is by."""
    loss = pf.make_jaxpr(program.loss)(*program.inputs)
    mask = tuple(i in program.floats for i in range(len(program.inputs)))
    return loss, vjp_jaxpr(loss, mask, (0,)), mask


ONE = np.float32(1)


# ---------------------------------------------------------------------------- values
@examples(120)
@given(programs())
def test_eager_traced_jitted_and_exact_values_agree(program):
    jaxpr = pf.make_jaxpr(program)(*program.inputs)
    assert_round_trip(jaxpr)
    want = list(jaxpr.eval(*program.inputs))
    assert_bits(list(simplify(jaxpr).check().eval(*program.inputs)), want, "simplified")
    assert_close(jaxpr, program.inputs, ("traced", want), ("jitted", arrays(pf.jit(program)(*program.inputs))),
                 ("eager, but for the functions in it", arrays(program(*program.inputs))))


@examples(100)
@given(programs(wild=True, jit=False))
def test_wild_programs_agree_bit_by_bit(program):
    """Whatever the values, eager and traced evaluation are the same, and so is the result beside a derivative."""
    jaxpr = pf.make_jaxpr(program)(*program.inputs)
    assert_round_trip(jaxpr)
    want = list(jaxpr.eval(*program.inputs))
    assert_bits(arrays(program(*program.inputs)), want, "eager")
    assert_bits(list(simplify(jaxpr).eval(*program.inputs)), want, "simplified")
    loss, grad, mask = gradient(program)
    value, = loss.eval(*program.inputs)
    tangents = [program.inputs[i] for i in program.floats]
    assert_bits([grad.eval(*program.inputs, ONE)[0]], [value], "value beside the gradient")
    assert_bits([jvp_jaxpr(loss, mask).jaxpr.eval(*program.inputs, *tangents)[0]], [value], "value beside the tangent")


# ---------------------------------------------------------------------------- derivatives
@examples(120)
@given(programs())
def test_forward_equals_reverse_equals_differences(program):
    loss, grad, mask = gradient(program)
    inputs, floats = program.inputs, program.floats
    got = list(grad.eval(*inputs, ONE))
    exact, bounds = assert_close(grad, [*inputs, ONE], ("gradient", got))
    assert_bits(arrays(pf.grad(program.loss, floats)(*inputs)), got[1:], "pf.grad")
    for made in (loss, grad, simplify(grad)):
        assert_round_trip(made)

    random = np.random.RandomState(len(loss.eqns))
    directions = [random.uniform(-1, 1, inputs[i].shape).astype(inputs[i].dtype) for i in floats]
    along = np.asarray(sum(np.sum(g * widened(t)) for g, t in zip(exact[1:], directions)))
    bound = sum(np.sum(b * np.abs(widened(t))) for b, t in zip(bounds[1:], directions))
    pushed, moves = jvp_jaxpr(loss, mask)
    assert_round_trip(pushed)
    if moves[0]:
        results = pushed.eval(*inputs, *directions)
        _, forward = assert_close(pushed, [*inputs, *directions], ("forward mode", results))
        assert_within(results[1], along, bound + forward[1], "forward against reverse")

    at, step = list(map(widened, inputs)), dict(zip(floats, map(widened, directions)))
    stopped = Stopped()
    evaluate(loss, at, watch=stopped.record)
    ends = [evaluate(loss, [x + h * step[i] if i in step else x for i, x in enumerate(at)], watch=stopped.replay())[0]
            for h in (1e-6, -1e-6)]
    difference = (ends[0] - ends[1]) / 2e-6
    halves = any(v.aval.dtype == np.float16 for eqn in loss.eqns for v in eqn.outputs)
    close = 2e-3 if halves else 1e-5  # the constants in a slope are rounded to its dtype
    assert_within(along, difference, close * (1 + np.abs(difference)), "against differences")


@examples(30, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # making an example smaller compiles for minutes
@given(programs(most=20))
def test_values_and_gradients_equal_jax(program):
    loss, grad, _ = gradient(program)
    xs = list(map(jax.numpy.asarray, program.inputs))
    value, grads = jax.value_and_grad(lambda *xs: translation.run(loss, *xs)[0], program.floats)(*xs)
    assert_close(grad, [*program.inputs, ONE], ("JAX", arrays([value, grads])),
                 ("popfn", grad.eval(*program.inputs, ONE)))


# ---------------------------------------------------------------------------- lowering
@examples(60)
@given(programs())
def test_lowered_programs_and_gradients_equal_eval(program):
    jaxpr = pf.make_jaxpr(program)(*program.inputs)
    assert_close(jaxpr, program.inputs, ("lowered", lowered(jaxpr)(*program.inputs)))
    _, grad, _ = gradient(program)
    assert_close(grad, [*program.inputs, ONE], ("lowered gradient", lowered(grad)(*program.inputs, ONE)))


@examples(40)
@given(programs(most=20))
def test_jit_of_grad_and_grad_of_jit(program):
    _, grad, _ = gradient(program)
    outside = pf.value_and_grad(lambda *xs: pf.jit(program.loss)(*xs), program.floats)
    inside = pf.jit(pf.value_and_grad(program.loss, program.floats))
    assert_close(grad, [*program.inputs, ONE], ("jit(grad)", arrays(inside(*program.inputs))),
                 ("grad(jit)", arrays(outside(*program.inputs))))


SEVERAL_PASSES = [
    pf.nn.gelu, pf.nn.softmax, pf.nn.silu, pnp.expm1, pnp.log1p, pnp.erf, pnp.sign, lambda x: pnp.maximum(x, -x),
    lambda x: pnp.where(x > 0, x, -2 * x), lambda x: pnp.where(x > 0, -2 * x, x), lambda x: x % 0.25,
    lambda x: 0.7 // x, lambda x: (x + 2) ** (x + 1)]


@pytest.mark.parametrize("f", SEVERAL_PASSES)
def test_kernels_of_several_passes_over_a_moved_value(f):
    """Found by the above: the result was written over the operand that it was still read from."""
    x = np.array([[0.3], [-0.4]], np.float32)
    for moved in (lambda y: y.T, lambda y: pnp.reshape(y, (1, 2)), lambda y: y[None], lambda y: y.T[:, ::-1]):
        jaxpr = pf.make_jaxpr(lambda x, moved=moved: f(moved(pnp.sin(x))))(x)
        assert_close(jaxpr, [x], ("lowered", lowered(jaxpr)(x)))


# ---------------------------------------------------------------------------- the tests find what they are for
def a_little_off(rule: Any) -> Any:
    """A derivative that is a little off."""
    return lambda self, *args: tuple(s if s is None else 1.01 if not callable(s) else lambda s=s: s() * 1.01
                                     for s in rule(self, *args))


def swapped(rule: Any) -> Any:
    """The cotangents of two operands in each other's place where they are of one type."""
    def transpose(self: Any, ct: Any, x: Any, y: Any) -> Any:
        a, b = rule(self, ct, x, y)
        return (a, b) if a is None or b is None or a.aval is not b.aval else (b, a)
    return transpose


def without_negative_indices(rule: Any) -> Any:
    return lambda self, x, i: rule(self, x, np.maximum(i, 0))


PLANTED = [
    (P.Sin, "slopes", a_little_off, test_forward_equals_reverse_equals_differences),
    (P.Tanh, "slopes", a_little_off, test_values_and_gradients_equal_jax),
    (P.Reverse, "transpose", lambda rule: lambda self, ct, x: (ct,), test_forward_equals_reverse_equals_differences),
    (P.Sub, "transpose", swapped, test_forward_equals_reverse_equals_differences),
    (P.Take, "eval", without_negative_indices, test_eager_traced_jitted_and_exact_values_agree),
    (P.Maximum, "lower", lambda rule: P.Minimum.lower, test_lowered_programs_and_gradients_equal_eval),
    (P.Select, "lower", lambda rule: lambda self, px, c, x, y: rule(self, px, c, y, x),
     test_jit_of_grad_and_grad_of_jit)]


@pytest.mark.parametrize("primitive, rule, fault, test", PLANTED, ids=lambda v: getattr(v, "__name__", None))
def test_a_planted_fault_is_found(monkeypatch, primitive, rule, fault, test):
    monkeypatch.setattr(primitive, rule, fault(getattr(primitive, rule)))
    search = settings(max_examples=400, database=None, phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError):
        search(given(programs())(test.hypothesis.inner_test))()
