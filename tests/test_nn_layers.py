"""Layers, losses and initialisers of popfn.nn against NumPy written out, with derivatives against differences."""
import re
from pathlib import Path

import numpy as np
import pytest
from references import jacobian
from scipy import special

import popfn as pf
import popfn.numpy as pnp
from popfn import nn
from popfn.trace.errors import ArgumentError, DtypeError, RangeError, ShapeError

f32, f16 = np.float32, np.float16
rng = np.random.default_rng(1)
X = rng.normal(size=(2, 4, 6)).astype(f32) * 3 + 1
SCALE, BIAS = rng.normal(size=6).astype(f32), rng.normal(size=6).astype(f32)
Q, K, V = (rng.normal(size=s).astype(f32) for s in ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)))
MASK = rng.random((5, 7)) < 0.6
MASK[2] = False  # a query that sees nothing
MASK[:2, 0] = True
LOGITS = rng.normal(size=(5, 4)).astype(f32)
LABELS = np.array([0, 3, 1, -1, 2])
TARGETS = rng.random((5, 4)).astype(f32)
WHERE = np.array([True, False, True, True, False])


def standard(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def soft(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attend(q, k, v, mask=None, bias=0.0, scale=None):
    s = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if mask is None:
        return soft(s) @ v
    top = np.where(mask, s, -1e9).max(-1, keepdims=True)
    e = np.exp(np.minimum(s - top, 0)) * mask
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * base ** (-np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], -1)


def smooth(x, labels, s):
    p = np.log(soft(x))
    return -(1 - s) * p[np.arange(len(p)), labels] - s * p.mean(-1)


CAUSAL = np.tril(np.ones((5, 7), bool), 2)
LAYERS = {  # the function, its definition on float64, operands
    "layer_norm": (lambda x, s, b: nn.layer_norm(x, s, b), lambda x, s, b: standard(x, (-1,)) * s + b,
                   (X, SCALE, BIAS)),
    "layer_norm plain": (lambda x: nn.layer_norm(x, axis=(1, 2), eps=0.1), lambda x: standard(x, (1, 2), 0.1), (X,)),
    "rms_norm": (lambda x, s: nn.rms_norm(x, s),
                 lambda x, s: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * s, (X, SCALE)),
    "group_norm": (lambda x, s, b: nn.group_norm(x, 2, s, b),
                   lambda x, s, b: standard(x.reshape(2, 2, 12), (-1,)).reshape(x.shape) * s[:, None] + b[:, None],
                   (X, SCALE[:4], BIAS[:4])),
    "batch_norm": (lambda x, s: nn.batch_norm(x, (np.zeros(4, f32), np.ones(4, f32)), s, training=True)[0],
                   lambda x, s: standard(x, (0, 2)) * s[:, None], (X, SCALE[:4])),
    "batch_norm not training": (
        lambda x, m, v: nn.batch_norm(x, (m, v), training=False)[0],
        lambda x, m, v: (x - m[:, None]) / np.sqrt(v[:, None] + 1e-5), (X, BIAS[:4], np.abs(SCALE[:4]) + 0.5)),
    "attention": (nn.attention, attend, (Q, K, V)),
    "attention masked": (lambda q, k, v: nn.attention(q, k, v, mask=MASK),
                         lambda q, k, v: attend(q, k, v, MASK), (Q, K, V)),
    "attention causal": (lambda q, k, v: nn.attention(q, k, v, causal=True),
                         lambda q, k, v: attend(q, k, v, CAUSAL), (Q, K, V)),
    "attention all": (
        lambda q, k, v, b: nn.attention(q, k, v, mask=MASK, causal=True, bias=b, scale=0.3),
        lambda q, k, v, b: attend(q, k, v, MASK & CAUSAL, b, 0.3), (Q, K, V, rng.normal(size=(3, 5, 7)).astype(f32))),
    "rotary_embedding": (nn.rotary_embedding, lambda x: rotate(x, range(4)), (X,)),
    "rotary_embedding positions": (lambda x: nn.rotary_embedding(x, np.array([3, 0, 2, 9]), base=50.0),
                                   lambda x: rotate(x, [3, 0, 2, 9], 50.0), (X,)),
    "embedding": (lambda t: nn.embedding(t, np.array([[0, 2], [-1, 0]])),
                  lambda t: t[np.array([[0, 2], [-1, 0]])], (X[0],)),
    "cross_entropy smooth": (lambda x: nn.cross_entropy(x, LABELS, label_smoothing=0.2),
                             lambda x: smooth(x, LABELS, 0.2).mean(), (LOGITS,)),
    "cross_entropy some": (lambda x: nn.cross_entropy(x, np.where(WHERE, LABELS, 99), where=WHERE),
                           lambda x: smooth(x, LABELS, 0.0)[WHERE].mean(), (LOGITS,)),
    "cross_entropy each": (lambda x: nn.cross_entropy(x, LABELS, reduction="none"),
                           lambda x: smooth(x, LABELS, 0.0), (LOGITS,)),
    "cross_entropy sum": (lambda x: nn.cross_entropy(x, LABELS, reduction="sum"),
                          lambda x: smooth(x, LABELS, 0.0).sum(), (LOGITS,)),
    "nll": (lambda x: nn.nll(nn.log_softmax(x), LABELS), lambda x: smooth(x, LABELS, 0.0).mean(), (LOGITS,)),
    "mse": (nn.mse, lambda x, y: ((x - y) ** 2).mean(), (LOGITS, TARGETS)),
    "mse some": (lambda x, y: nn.mse(x, y, where=np.stack([WHERE] * 4, 1), reduction="sum"),
                 lambda x, y: ((x - y) ** 2)[WHERE].sum(), (LOGITS, TARGETS)),
    "l1": (nn.l1, lambda x, y: np.abs(x - y).mean(), (LOGITS, TARGETS)),
    "huber": (lambda x, y: nn.huber(x, y, delta=0.7), lambda x, y: np.mean(
        special.huber(0.7, x - y)), (LOGITS, TARGETS)),
    "binary_cross_entropy": (nn.binary_cross_entropy, lambda x, t: np.mean(
        -t * np.log(special.expit(x)) - (1 - t) * np.log(special.expit(-x))), (LOGITS, TARGETS)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name):
    f, definition, xs = LAYERS[name]
    wide = [x.astype(float) for x in xs]
    want = definition(*wide)
    got = f(*xs)
    assert got.dtype == f32 and got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, 3e-5, 3e-6)
    np.testing.assert_allclose(pf.jit(f)(*xs), want, 3e-5, 3e-6)
    halves = f(*(x.astype(f16) for x in xs))
    assert halves.dtype == f16
    np.testing.assert_allclose(np.asarray(halves, f32), want, 2e-2, 2e-2)
    weights = np.cos(np.arange(np.size(want))).reshape(np.shape(want))
    gradients = pf.grad(lambda *xs: pnp.sum(f(*xs) * weights.astype(f32)), tuple(range(len(xs))))(*xs)
    for i, g in enumerate(gradients):
        slope = jacobian(lambda *xs: np.sum(definition(*xs) * weights), wide, i).reshape(xs[i].shape)
        np.testing.assert_allclose(g, slope, 2e-3, 2e-4 * max(1, np.abs(slope).max()))
    lanes = pf.vmap(f)(*(np.stack([x, x + 1]) for x in xs))
    np.testing.assert_allclose(lanes[0], want, 3e-5, 3e-6)


@pytest.mark.parametrize("layer", [
    lambda x: nn.layer_norm(x), lambda x: nn.rms_norm(x), lambda x: nn.group_norm(x, 1),
    lambda x: nn.batch_norm(x, (np.zeros(512, f32), np.ones(512, f32)), training=True)[0]])
def test_float16_does_not_overflow(layer):
    x = np.full((4, 512), 60000, f16) * np.linspace(0.5, 1, 512).astype(f16)
    assert np.isfinite(np.asarray(layer(x), f32)).all() and np.abs(np.asarray(layer(x), f32)).max() < 50


def test_batch_statistics():
    mean, var = np.full(4, 0.5, f32), np.full(4, 2.0, f32)
    _, new = nn.batch_norm(X, (mean, var), training=True, momentum=0.8)
    assert isinstance(new, nn.BatchStatistics)
    np.testing.assert_allclose(new.mean, 0.8 * mean + 0.2 * X.mean((0, 2)), 1e-5)
    np.testing.assert_allclose(new.var, 0.8 * var + 0.2 * X.var((0, 2), ddof=1), 1e-5)
    _, same = nn.batch_norm(X, (mean, var), training=False)
    np.testing.assert_array_equal(same.var, var)

    def lane(x):
        return nn.batch_norm(x, (mean, var), training=True, momentum=0.8, axis_name="i")
    y, together = pf.vmap(lane, axis_name="i", out_axes=(0, None))(X[:, None])
    np.testing.assert_allclose(y[:, 0], nn.batch_norm(X, (mean, var), training=True)[0], 1e-4, 1e-5)
    np.testing.assert_allclose(together.var, new.var, 1e-5)


def test_a_query_that_sees_nothing_leaks_nothing():
    y = nn.attention(Q, K, V, mask=MASK)
    np.testing.assert_array_equal(y[:, :, 2], np.zeros((2, 3, 6)))
    g = pf.grad(lambda q: pnp.sum(nn.attention(q, K, V, mask=MASK)))(Q)
    assert np.isfinite(np.asarray(g)).all() and not np.asarray(g)[:, :, 2].any()


def test_multi_head_attention():
    params = {n: rng.normal(size=(6, 6)).astype(f32) for n in ("q", "k", "v", "out")}
    params["q_bias"] = params["out_bias"] = BIAS

    def heads(t, n):
        return t.reshape(2, -1, n, 6 // n).swapaxes(1, 2)

    def definition(x, c, n, mask=None):
        y = attend(heads(x @ params["q"] + BIAS, n), heads(c @ params["k"], n), heads(c @ params["v"], n), mask)
        return y.swapaxes(1, 2).reshape(2, -1, 6) @ params["out"] + BIAS
    np.testing.assert_allclose(nn.multi_head_attention(params, X, 3), definition(X, X, 3), 1e-4, 1e-4)
    context = rng.normal(size=(2, 5, 6)).astype(f32)
    np.testing.assert_allclose(nn.multi_head_attention(params, X, 2, context=context), definition(X, context, 2),
                               1e-4, 1e-4)
    np.testing.assert_allclose(nn.multi_head_attention(params, X, 1, causal=True),
                               definition(X, X, 1, np.tril(np.ones((4, 4), bool))), 1e-4, 1e-4)
    q, k = (rotate(X @ params[n] + b, range(4)) for n, b in (("q", BIAS), ("k", 0)))
    turned = attend(q, k, X @ params["v"]) @ params["out"] + BIAS
    np.testing.assert_allclose(nn.multi_head_attention(params, X, 1, rotary=True), turned, 1e-3, 1e-3)


def test_rotations_depend_on_distances_only():
    q, k = X[0, :1], X[0, 1:2]

    def product(i, j):
        return float(np.sum(np.asarray(nn.rotary_embedding(q, np.array([i]))) *
                            np.asarray(nn.rotary_embedding(k, np.array([j])))))
    assert abs(product(3, 5) - product(10, 12)) < 1e-3 and abs(product(3, 5) - product(3, 6)) > 1e-3


def test_dropout():
    x = np.ones((200, 50), f32)
    y = np.asarray(nn.dropout(pf.random.key(0), x, 0.25))
    assert set(np.unique(y)) == {0, f32(4 / 3)} and abs(y.mean() - 1) < 0.03
    rows = np.asarray(nn.dropout(pf.random.key(0), x, 0.25, shared_axes=1))
    assert (rows == rows[:, :1]).all() and 0.15 < (rows == 0).mean() < 0.35
    np.testing.assert_array_equal(nn.dropout(pf.random.key(0), x, 0.0), x)


@pytest.mark.parametrize("name, variance", [
    ("glorot_uniform", 2 / (200 + 100)), ("glorot_normal", 2 / 300), ("he_uniform", 2 / 200), ("he_normal", 2 / 200),
    ("lecun_normal", 1 / 200), ("normal", 1e-4), ("uniform", 1e-4 / 3), ("truncated_normal", 1e-4), ("ones", 0),
    ("zeros", 0)])
def test_initial_values(name, variance):
    f = getattr(nn.init, name)
    w = np.asarray(f(pf.random.key(2), (200, 100)), float)
    assert w.shape == (200, 100) and abs(w.var() - variance) <= 0.05 * variance
    assert abs(w.mean() - (name == "ones")) <= 0.02
    assert f(pf.random.key(2), (4, 4), f16).dtype == f16


def test_initial_values_of_convolutions():
    w = np.asarray(nn.init.he_normal(pf.random.key(2), (50, 20, 3, 3), convolution=True))
    assert abs(w.var() - 2 / 180) < 0.05 * 2 / 180


def test_every_public_function_is_tested():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_n*.py"))
    public = [n for n, f in {**vars(nn), **vars(nn.init)}.items()
              if callable(f) and getattr(f, "__module__", "").startswith("popfn.nn") and not n.startswith("_")]
    assert len(public) > 30 and [n for n in public if not re.search(rf"\bnn\.(init\.)?{n}\b|\"{n}\b", text)] == []


@pytest.mark.parametrize("call, error, line", [
    (lambda: nn.layer_norm(X, SCALE[:5]), ShapeError,
     "layer_norm: scale has shape (6,) for f32[2,4,6], got f32[5]"),
    (lambda: nn.rms_norm(X, SCALE[:5]), ShapeError, "rms_norm: scale has shape (6,)"),
    (lambda: nn.group_norm(X, 3), ShapeError,
     "group_norm: the channels, axis 1 of f32[2,4,6], are not divided by 3 groups"),
    (lambda: nn.batch_norm(SCALE, (SCALE, SCALE), training=True), ShapeError,
     "batch_norm: f32[6] has no axes for samples and channels"),
    (lambda: nn.batch_norm(X, (SCALE, SCALE), training=True), ShapeError, "batch_norm: mean has shape (4,)"),
    (lambda: nn.attention(Q, V, V), ShapeError, "attention: queries (..., n, width), keys (..., m, width)"),
    (lambda: nn.attention(Q, K, V, mask=MASK.astype(f32)), DtypeError, "attention: a mask is bool, got f32[5,7]"),
    (lambda: nn.multi_head_attention({n: np.eye(6, dtype=f32) for n in "qkv"}, X, 4), ShapeError,
     "multi_head_attention: 4 heads do not divide the width of q, f32[2,4,6]"),
    (lambda: nn.rotary_embedding(X[..., :5]), ShapeError, "rotary_embedding: x is (..., length, even width)"),
    (lambda: nn.rotary_embedding(X, np.arange(3)), ShapeError, "one position for each of 4 places, got i32[3]"),
    (lambda: nn.embedding(X, np.array([0])), ShapeError, "embedding: a table (entries, width) and integer ids"),
    (lambda: nn.embedding(X[0], np.array([4])), RangeError, "index 4 is out of range for axis 0 of size 4"),
    (lambda: nn.dropout(3, X, 0.5), DtypeError, "dropout takes a key, u32[2], got ~i32[]"),
    (lambda: nn.dropout(pf.random.key(0), X, 1.0), ArgumentError, "the rate is a Python number from 0 to below 1"),
    (lambda: nn.mse(LOGITS, TARGETS[0]), ShapeError, "mse: predictions and targets have one shape"),
    (lambda: nn.mse(LOGITS, TARGETS, reduction="avg"), ArgumentError,
     'mse: reduction is "mean", "sum" or "none", got \'avg\''),
    (lambda: nn.cross_entropy(LOGITS, LABELS, where=WHERE[:3]), ShapeError,
     "cross_entropy: where is bools of shape (5,), got bool[3]"),
    (lambda: nn.nll(LOGITS, LABELS[:2]), ShapeError, "nll: labels are of the log_probs' shape without its last axis"),
    (lambda: nn.init.he_normal(pf.random.key(0), 3), ShapeError,
     "nn.init.he_normal: a weight has axes of inputs and of outputs, got shape (3,)"),
])
def test_errors(call, error, line):
    with pytest.raises(error, match=re.escape(line)) as caught:
        call()
    assert re.search(r"at \S*test_nn_layers\.py:\d+, in <lambda>", str(caught.value)), str(caught.value)
