"""popfn.nn: values against 64-bit definitions, gradients against differences of these and against JAX."""
import re
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import lowered
from references import assert_within, jacobian, widened
from scipy import special

import popfn as pf
import popfn.numpy as pnp
from popfn import nn
from popfn.trace.errors import DtypeError, ShapeError

EPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def entropy(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    picked = np.take_along_axis(special.log_softmax(x, -1), np.expand_dims(labels, -1), -1)
    return np.asarray(-picked.mean())


LABELS = np.array([2, 0], np.int32)
# name, popfn's, the definition in 64 bits, JAX's
FUNCTIONS: List[Tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = [
    ("relu", nn.relu, lambda x: np.maximum(x, 0), jax.nn.relu),
    ("gelu", nn.gelu, tanh_gelu, lambda x: jax.nn.gelu(x, approximate=True)),
    ("sigmoid", nn.sigmoid, special.expit, jax.nn.sigmoid),
    ("silu", nn.silu, lambda x: x * special.expit(x), jax.nn.silu),
    ("softmax", nn.softmax, lambda x: special.softmax(x, -1), jax.nn.softmax),
    ("softmax axis 0", lambda x: nn.softmax(x, 0), lambda x: special.softmax(x, 0), lambda x: jax.nn.softmax(x, 0)),
    ("log_softmax", nn.log_softmax, lambda x: special.log_softmax(x, -1), jax.nn.log_softmax),
    ("log_softmax axis 0", lambda x: nn.log_softmax(x, 0), lambda x: special.log_softmax(x, 0),
     lambda x: jax.nn.log_softmax(x, 0)),
    ("logsumexp", nn.logsumexp, special.logsumexp, jax.nn.logsumexp),
    ("logsumexp axis 1", lambda x: nn.logsumexp(x, 1, keepdims=True), lambda x: special.logsumexp(x, 1, keepdims=True),
     lambda x: jax.nn.logsumexp(x, 1, keepdims=True)),
    ("cross_entropy", lambda x: nn.cross_entropy(x, LABELS), lambda x: entropy(x, LABELS),
     lambda x: -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), LABELS[:, None], 1)))]
INPUTS: Dict[str, np.ndarray] = {
    "moderate": np.array([[0.5, -1.5, 2.0], [3.25, -0.25, 1.0]]),
    "large": np.array([[80.0, -90.0, 1.0], [30.0, 29.0, -40.0]]),
    "small": np.array([[1e-3, -2e-3, 1e-4], [3e-3, -1e-4, 5e-3]])}
functions = pytest.mark.parametrize("name, f, definition, theirs", FUNCTIONS, ids=[row[0] for row in FUNCTIONS])
inputs = pytest.mark.parametrize("which", INPUTS)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float16"])


def scale(x: np.ndarray) -> float:
    return max(1.0, float(np.max(np.abs(widened(x)))))


@functions
@inputs
@dtypes
def test_values(name, f, definition, theirs, which, dtype):
    x = INPUTS[which].astype(dtype)
    want = definition(widened(x))
    jaxpr = pf.make_jaxpr(f)(x).check()
    bound = 4 * EPS[dtype] * np.maximum(np.abs(want), np.max(np.abs(x)) if dtype == "float32" else 0.1)
    for got in (f(x), jaxpr.eval(x)[0], lowered(jaxpr)(x)[0], pf.jit(f)(x)):
        assert np.asarray(got).dtype == dtype
        assert_within(np.asarray(got), want, bound, name)
    assert f(x).value.tobytes() == jaxpr.eval(x)[0].tobytes()


@functions
@inputs
@dtypes
def test_gradients(name, f, definition, theirs, which, dtype):
    x = INPUTS[which].astype(dtype)
    y, pull = pf.vjp(f, x)
    ct = np.cos(np.arange(y.size)).astype(dtype).reshape(y.shape)
    got, = pull(ct)
    assert (got.shape, got.dtype) == (x.shape, x.dtype)
    bound = 32 * EPS[dtype] * scale(ct)
    exact = jacobian(definition, [widened(x)], 0).T @ widened(ct).ravel()
    assert_within(got.value, exact.reshape(x.shape), bound + 1e-8 * scale(x), "differences")
    _, their_pull = jax.vjp(theirs, jnp.asarray(x, "float32"))
    assert_within(got.value, np.asarray(their_pull(jnp.asarray(ct, "float32"))[0]), bound, "JAX")
    _, tangent = pf.jvp(f, (x,), (x,))
    assert_within(np.sum(widened(tangent.value) * widened(ct)), np.sum(exact * widened(x).ravel()),
                  bound * x.size * scale(x), "forward")


@functions
def test_second_derivatives(name, f, definition, theirs):
    x = INPUTS["moderate"].astype("float32")

    def ours(x: Any) -> Any:
        y = f(x)
        return pnp.sum(y * np.cos(np.arange(y.size)).astype("float32").reshape(y.shape))

    def other(x: Any) -> Any:
        y = theirs(x)
        return jnp.sum(y * np.cos(np.arange(y.size)).astype("float32").reshape(y.shape))
    got = pf.grad(lambda x: pnp.sum(pf.grad(ours)(x) * x))(x)
    want = jax.grad(lambda x: jnp.sum(jax.grad(other)(x) * x))(x)
    assert_within(got.value, np.asarray(want), 1e-5, name)


# ---------------------------------------------------------------------------- single facts
def test_relu_at_zero():
    x = np.array([0.0, -0.0, 1e-30, -1e-30], np.float32)
    np.testing.assert_array_equal(pf.grad(lambda x: nn.relu(x).sum())(x).value, [0, 0, 1, 0])


def test_extreme_logits_have_finite_losses_and_gradients():
    for dtype in ("float32", "float16"):
        x = np.array([[60000, -60000, 0], [60000, 60000, 60000]], dtype)
        value, grad = pf.value_and_grad(lambda x: nn.cross_entropy(x, np.array([0, 1])))(x)
        assert_within(value.value, np.asarray(np.log(3) / 2), 1e-3, "loss")
        third = np.array([[0, 0, 0], [1 / 6, 1 / 6 - 0.5, 1 / 6]])
        assert_within(grad.value, third, 1e-3, "gradient")


def test_minus_infinity_masks():
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf] * 3], np.float32)
    np.testing.assert_array_equal(nn.logsumexp(x, -1).value, np.array([np.log1p(np.e), -np.inf], np.float32))
    assert nn.softmax(x).value[0, 1] == 0 and np.isnan(nn.softmax(x).value[1]).all()
    grad = pf.grad(lambda x: nn.logsumexp(x, -1)[0])(x).value
    np.testing.assert_allclose(grad[0], special.softmax([0, -np.inf, 1]), rtol=1e-6)
    np.testing.assert_array_equal(grad[1], [0, 0, 0])
    assert nn.logsumexp(np.array([np.inf, 1.0], np.float32)).value == np.inf
    assert np.isnan(nn.logsumexp(np.array([np.nan, 1.0], np.float32)).value)


def test_float16_is_summed_in_float32():
    x = np.zeros((1, 4096), np.float16)
    assert nn.logsumexp(x, -1).value[0] == np.float16(np.log(4096))
    assert nn.softmax(x).value[0, 0] == np.float16(1 / 4096)
    loss = nn.cross_entropy(np.zeros((70000, 2), np.float16), np.zeros(70000, np.int32))
    assert loss.dtype == np.float16 and loss.value == np.float16(np.log(2))


def test_cross_entropy_over_more_axes_is_the_mean_over_all_labels():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 5
    labels = np.array([[0, 1, 2], [3, 3, 0]], np.int8)
    want = entropy(widened(x), labels.astype(int))
    assert_within(nn.cross_entropy(x, labels).value, want, 1e-6)
    single = nn.cross_entropy(x[0, 0], np.int32(2))
    assert_within(single.value, entropy(widened(x[0, :1]), np.array([2])), 1e-6)


def test_one_hot():
    got = nn.one_hot(np.array([[0, 2], [-1, 3]], np.int32), 3)
    np.testing.assert_array_equal(got.value, [[[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]])
    assert got.dtype == np.float32
    assert nn.one_hot(np.array(1, np.uint8), 2, dtype="float16").dtype == np.float16
    np.testing.assert_array_equal(nn.one_hot(np.array([1], np.int8), 300).value.sum(-1), [1])
    assert nn.one_hot(np.zeros((0,), np.int32), 3).shape == (0, 3)


def test_integers_are_taken_as_float32():
    for f in (nn.relu, nn.gelu, nn.sigmoid, nn.silu, nn.softmax, nn.log_softmax):
        got = f(np.array([1, -2], np.int32))
        assert got.dtype == np.float32 and got.value.tobytes() == f(np.array([1, -2], np.float32)).value.tobytes()


ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: nn.softmax(np.zeros((2, 3), np.float32), 2), ShapeError,
     "softmax: axis 2 is not an axis of a value of rank 2"),
    (lambda: nn.log_softmax(np.zeros(3, np.float32), 1), ShapeError,
     "log_softmax: axis 1 is not an axis of a value of rank 1"),
    (lambda: nn.logsumexp(np.zeros(3, np.float32), 1), ShapeError, "axis 1 is not an axis of a value of rank 1"),
    (lambda: nn.one_hot(np.zeros(3, np.float32), 2), DtypeError, "one_hot takes integer labels, got f32[3]"),
    (lambda: nn.cross_entropy(np.zeros((2, 3), np.float32), np.zeros(3, np.int32)), ShapeError,
     "labels are of the logits' shape without its last axis, got i32[3] for f32[2,3]"),
    (lambda: nn.cross_entropy(np.zeros((2, 3), np.float32), np.zeros(2, np.float32)), DtypeError,
     "cross_entropy takes integer labels, got f32[2]")]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    f, error, text = ERRORS[n]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(1.0)):
        with pytest.raises(error, match=re.escape(text)) as e:
            run()
        assert "test_nn.py" in str(e.value)
