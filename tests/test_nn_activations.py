"""Activations: values against 64-bit definitions, gradients against differences of these, tails, kinks and masks."""
import re
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from programs import lowered
from references import assert_within, jacobian, widened
from scipy import special

import popfn as pf
import popfn.numpy as pnp
from popfn import nn
from popfn.trace.errors import ShapeError

inf, nan = np.inf, np.nan
EPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0.0)


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


# popfn's, and the definition in 64 bits
FUNCTIONS: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (nn.relu, lambda x: np.maximum(x, 0)), "relu6": (nn.relu6, lambda x: np.clip(x, 0, 6)),
    "leaky_relu": (nn.leaky_relu, lambda x: np.where(x < 0, 0.01 * x, x)),
    "leaky_relu 0.2": (lambda x: nn.leaky_relu(x, 0.2), lambda x: np.where(x < 0, 0.2 * x, x)),
    "hard_tanh": (nn.hard_tanh, lambda x: np.clip(x, -1, 1)),
    "hard_sigmoid": (nn.hard_sigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "hard_silu": (nn.hard_silu, lambda x: x * np.clip(x + 3, 0, 6) / 6), "sigmoid": (nn.sigmoid, special.expit),
    "log_sigmoid": (nn.log_sigmoid, lambda x: -np.logaddexp(-x, 0)), "softplus": (nn.softplus, softplus),
    "softsign": (nn.softsign, lambda x: x / (1 + np.abs(x))), "silu": (nn.silu, lambda x: x * special.expit(x)),
    "mish": (nn.mish, lambda x: x * np.tanh(softplus(x))), "elu": (nn.elu, elu),
    "elu 0.5": (lambda x: nn.elu(x, 0.5), lambda x: elu(x, 0.5)), "celu": (nn.celu, elu),
    "celu 2": (lambda x: nn.celu(x, 2.0), lambda x: elu(x / 2, 1.0) * 2),
    "selu": (nn.selu, lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772)),
    "gelu": (nn.gelu, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))),
    "gelu exact": (lambda x: nn.gelu(x, approximate=False), lambda x: x * special.ndtr(x)),
    "glu": (lambda x: nn.glu(x, 0), lambda x: x[:2] * special.expit(x[2:])),
    "softmax": (nn.softmax, lambda x: special.softmax(x, -1)),
    "log_softmax": (lambda x: nn.log_softmax(x, 0), lambda x: special.log_softmax(x, 0)),
    "logsumexp": (nn.logsumexp, special.logsumexp)}
INPUTS = {"moderate": np.array([[0.5, -1.5], [2.0, 3.25], [-0.25, 0.75], [-3.5, -2.25]]),
          "large": np.array([[80.0, -90.0], [1.5, 30.0], [29.0, -40.0], [7.0, -7.0]]),
          "small": np.array([[1e-3, -2e-3], [1e-4, 3e-3], [-1e-4, 5e-3], [2e-3, -3e-3]])}
functions = pytest.mark.parametrize("name", FUNCTIONS)


def test_every_activation_is_in_the_table():
    module = nn.relu.__module__
    names = {n for n, f in vars(nn).items() if getattr(f, "__module__", "") == module}
    assert len(names) >= 19 and {name.split()[0] for name in FUNCTIONS} == names


@functions
@pytest.mark.parametrize("which", INPUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_value_and_gradient(name, which, dtype):
    f, definition = FUNCTIONS[name]
    x = INPUTS[which].astype(dtype)
    wide = widened(x)
    got, want = f(x), definition(wide)
    assert got.dtype == dtype
    size = 1.0 if "softm" in name else np.maximum(np.abs(want), np.abs(wide) if "gelu" in name else 1e-2)
    assert_within(got.value, want, 8 * EPS[dtype] * size, name)
    weights = np.cos(np.arange(np.size(want))).reshape(np.shape(want)).astype(np.float32)

    def loss(x: Any) -> Any:
        return pnp.sum(f(x).astype("float32") * weights)
    grad = pf.grad(loss)(x).value
    slope = jacobian(lambda v: np.asarray(np.sum(definition(v) * weights)), [wide], 0).reshape(x.shape)
    scale = np.abs(wide).max() if "gelu" in name else 1.0
    assert grad.dtype == dtype
    assert_within(grad, slope, 16 * EPS[dtype] * np.maximum(1.0, scale), f"gradient of {name}")


@functions
def test_lowered_equals_eager(name):
    f, _ = FUNCTIONS[name]
    x = np.concatenate([INPUTS["moderate"], INPUTS["large"]], 1).astype(np.float32)
    got, = lowered(pf.make_jaxpr(f)(x))(x)
    want = f(x).value
    assert_within(got, want, 8 * EPS["float32"] * np.maximum(np.abs(want), np.abs(x).max() if "elu" in name else 1e-3))


def test_sigmoid_keeps_its_digits_on_both_sides():
    x = np.float32([-80, -30, -10, 10, 16])
    wide = widened(x)
    np.testing.assert_allclose(nn.sigmoid(x).value, special.expit(wide), rtol=1e-6)
    slope = special.expit(wide) * special.expit(-wide)
    for f in (nn.sigmoid, lambda x: -nn.sigmoid(-x)):
        np.testing.assert_allclose(pf.grad(lambda x, f=f: pnp.sum(f(x)))(x).value, slope, rtol=4e-6)
    second = pf.grad(lambda x: pnp.sum(pf.grad(lambda x: pnp.sum(nn.sigmoid(x)))(x)))(x).value
    np.testing.assert_allclose(second, slope * (special.expit(-wide) - special.expit(wide)), rtol=1e-5)


def test_softplus_keeps_its_digits_on_both_sides():
    x = np.float32([-80, -20, 0, 20, 100, 3e38, -inf, inf])
    np.testing.assert_allclose(nn.softplus(x).value, np.logaddexp(widened(x), 0), rtol=1e-6)
    np.testing.assert_allclose(nn.log_sigmoid(-x).value, -np.logaddexp(widened(x), 0), rtol=1e-6)
    np.testing.assert_allclose(pf.grad(lambda x: pnp.sum(nn.softplus(x)))(x).value[:-2], special.expit(widened(x[:-2])),
                               rtol=1e-6)


KINKS: List[Tuple[Callable[..., Any], float, float]] = [
    (nn.relu, 0.0, 0.0), (nn.relu6, 0.0, 0.0), (nn.relu6, 6.0, 0.0), (nn.leaky_relu, 0.0, 1.0), (nn.hard_tanh, 1.0,
                                                                                                 0.0),
    (nn.hard_tanh, -1.0, 0.0), (nn.hard_sigmoid, 3.0, 0.0), (nn.elu, 0.0, 1.0), (nn.celu, 0.0, 1.0),
    (nn.softsign, 0.0, 1.0), (nn.elu, 200.0, 1.0), (nn.selu, 3e38, 1.0507009873554805), (nn.mish, 300.0, 1.0)]


@pytest.mark.parametrize("n", range(len(KINKS)))
def test_derivative_at_a_kink_or_far_out(n):
    f, at, want = KINKS[n]
    assert pf.grad(f)(np.float32(at)).value == np.float32(want)


# ---------------------------------------------------------------------------- masks
MASK = np.array([[True, True, False], [False, False, False], [True, True, True], [False, True, False]])
X = np.array([[1.0, 2.0, 900.0], [3.0, inf, -inf], [0.5, 0.25, -0.5], [nan, 7.0, -inf]], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_masked_rows(dtype):
    x = X.astype(dtype)
    soft = np.zeros((4, 3))
    logs, total = np.full((4, 3), -inf), np.full(4, -inf)
    for row in (0, 2, 3):
        taken = widened(x)[row, MASK[row]]
        soft[row, MASK[row]], logs[row, MASK[row]] = special.softmax(taken), special.log_softmax(taken)
        total[row] = special.logsumexp(taken)
    for f, want in ((nn.softmax, soft), (nn.log_softmax, logs), (lambda x, where: nn.logsumexp(x, -1, where=where),
                                                                 total)):
        for run in (f, pf.jit(f)):
            got = run(x, where=MASK)
            assert got.dtype == dtype
            assert_within(got.value, want, 8 * EPS[dtype] * 8)
    by_column = nn.softmax(x.T, 0, where=MASK.T)
    np.testing.assert_array_equal(by_column.value.T, nn.softmax(x, where=MASK).value)


def test_gradients_of_masked_rows_are_finite_and_only_where_taken():
    weights = np.cos(np.arange(12)).reshape(4, 3).astype(np.float32)
    for f in (lambda x: nn.softmax(x, where=MASK) * weights,
              lambda x: pnp.where(MASK, nn.log_softmax(x, where=MASK), 0.0) * weights,
              lambda x: nn.logsumexp(x, -1, where=MASK) * weights[:, 0]):
        got = pf.grad(lambda x, f=f: pnp.sum(f(x)))(X).value
        assert np.isfinite(got).all() and (got[~MASK] == 0).all() and got[2].any()
        row = pf.grad(lambda x, f=f: pnp.sum(f(pnp.concat([X[:2], x[None], X[3:]]))))(X[2]).value
        np.testing.assert_allclose(row, got[2], rtol=1e-6)


def test_a_mask_broadcasts_and_may_be_numbers():
    x = X[[0, 2]]
    want = nn.softmax(x, where=np.array([[True, True, False]] * 2)).value
    for mask in (np.array([True, True, False]), np.array([2, 1, 0]), [True, True, False]):
        np.testing.assert_array_equal(nn.softmax(x, where=mask).value, want)


ERRORS: List[Tuple[Callable[[], Any], str]] = [
    (lambda: nn.softmax(X, where=np.ones((2, 4, 3), bool)),
     "softmax: where broadcasts to the shape of f32[4,3], got bool[2,4,3]"),
    (lambda: nn.log_softmax(X, where=np.ones(4, bool)),
     "log_softmax: where broadcasts to the shape of f32[4,3], got bool[4]"),
    (lambda: nn.logsumexp(X, where=np.ones(4, bool)),
     "logsumexp: where broadcasts to the shape of f32[4,3], got bool[4]"),
    (lambda: nn.glu(X), "glu: axis 1 of f32[4,3] has no two halves"),
    (lambda: nn.glu(X, 2), "glu: axis 2 is not an axis of a value of rank 2"),
    (lambda: nn.softmax(X, 2), "softmax: axis 2 is not an axis of a value of rank 2"),
    (lambda: nn.log_softmax(X, 2), "log_softmax: axis 2 is not an axis of a value of rank 2")]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    f, text = ERRORS[n]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(1.0)):
        with pytest.raises(ShapeError, match=re.escape(text)) as e:
            run()
        assert "test_nn_activations.py" in str(e.value)
