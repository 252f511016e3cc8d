"""Normalisation, losses and the orders and counts of elements against NumPy, written out."""
import numpy as np
import pytest
from engine_checks import quiet
from kernel_checks import check, ops

FLOATS = [np.float32, np.float16]
nan, inf = np.nan, np.inf


def data(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# Normalisation


def normalised(t, w, b, groups, eps):
    """One group of channels of one sample after another."""
    t, w, b = (x.astype(np.float64) for x in (t, w, b))
    result, size = np.zeros(t.shape), t.shape[1] // groups
    for n in range(len(t)):
        for g in range(groups):
            part = slice(g * size, (g + 1) * size)
            result[n, part] = (t[n, part] - t[n, part].mean()) / np.sqrt(t[n, part].var() + eps)
    along = (-1,) + (1,) * (t.ndim - 2)
    return result * w.reshape(along) + b.reshape(along)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,groups,eps", [((3, 8), 1, 1e-5), ((2, 6, 5), 3, 1e-3), ((2, 4, 3, 2), 4, 0.5)])
def test_group_norm(shape, groups, eps, dtype):
    t, w, b = data(shape, dtype) * 3 + 1, data(shape[1:2], dtype, 1), data(shape[1:2], dtype, 2)
    check(lambda t, w, b: ops.group_norm(t, w, b, groups, eps),
          normalised(t, w, b, groups, eps).astype(dtype), t, w, b, ulps=16)
    if groups == 1:
        check(lambda t, w, b: ops.layer_norm(t, w, b, eps), normalised(t, w, b, 1, eps).astype(dtype), t, w, b, ulps=16)


def test_layer_norm_of_rank_3_is_over_all_axes_but_the_first():
    t, w, b = data((2, 3, 4)), data((3,), seed=1), data((3,), seed=2)
    check(ops.layer_norm, normalised(t, w, b, 1, 1e-5).astype(np.float32), t, w, b, ulps=16)


def test_group_norm_gives_its_statistics():
    t = data((2, 4, 3)) * 2 + 5
    rows = t.astype(np.float64).reshape(4, -1)

    def statistics_of(t, w, b):
        y = ops.group_norm(t, w, b, 2, 0.1)
        return y.producer.outputs[1:]

    expected = rows.mean(1).astype(np.float32), (1 / np.sqrt(rows.var(1) + 0.1)).astype(np.float32)
    check(statistics_of, expected, t, np.ones(4, np.float32), np.zeros(4, np.float32), ulps=16)


def test_norms_of_large_float16():
    t = np.array([[60000, 50000, -60000, 0]], np.float16)
    ones, zeros = np.ones(4, np.float16), np.zeros(4, np.float16)
    check(ops.layer_norm, normalised(t, ones, zeros, 1, 1e-5).astype(np.float16), t, ones, zeros)


def test_a_constant_row_is_normalised_to_the_bias():
    t, w, b = np.full((2, 4), 7, np.float32), np.ones(4, np.float32), data((4,))
    check(ops.layer_norm, np.stack([b, b]), t, w, b)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 2, 4), (1, 2, 2, 1, 3)], ids=str)
def test_batch_norm_inference(shape, dtype):
    t = data(shape, dtype)
    scale, bias, mean = (data(shape[1:2], dtype, k) for k in (1, 2, 3))
    var = np.abs(data(shape[1:2], dtype, 4))
    along = (-1,) + (1,) * (len(shape) - 2)

    def formula(t, scale, bias, mean, var):
        scale, bias, mean, var = (x.reshape(along) for x in (scale, bias, mean, var))
        return (t - mean) / np.sqrt(var + 1e-3) * scale + bias

    check(lambda *ts: ops.batch_norm_inference(*ts, epsilon=1e-3), quiet(formula, t, scale, bias, mean, var),
          t, scale, bias, mean, var, ulps=16)


# Losses

LABELS = np.array([2, 0, 4, 0, 1], np.int32)


def probabilities(dtype=np.float32):
    x = np.exp(data((5, 5), np.float64))
    p = (x / x.sum(1, keepdims=True)).astype(dtype)
    p[0, 2] = 0
    return p


def losses(p, labels, floor, log_prob, ignored):
    """Entry by entry."""
    found = [-p[i, label] if log_prob else -np.log(max(p[i, label], floor)) if label != ignored else 0.0
             for i, label in enumerate(labels)]
    return np.array([0.0 if label == ignored else x for x, label in zip(found, labels)])


def reduced(x, labels, reduction, ignored):
    if reduction == "none":
        return x
    return x.sum() / (max(sum(label != ignored for label in labels), 1) if reduction == "mean" else 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ignored", [None, 0, -100])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss(reduction, ignored, dtype):
    p, floor = probabilities(dtype), 1e-7 if dtype == np.float32 else 6.104e-05
    for log_prob in (False, True):
        expected = reduced(losses(p.astype(np.float64), LABELS, floor, log_prob, ignored), LABELS, reduction, ignored)
        check(lambda p, y, lp=log_prob: ops.nll_loss(p, y, ignored, reduction, lp), expected.astype(dtype), p, LABELS,
              ulps=8)


@pytest.mark.parametrize("dtype", [np.uint32, np.int16, np.uint8])
def test_nll_loss_with_labels_of_other_dtypes(dtype):
    p = probabilities()
    expected = reduced(losses(p.astype(np.float64), LABELS, 1e-7, False, -1), LABELS, "mean", -1)
    check(lambda p, y: ops.nll_loss(p, y, -1), expected.astype(np.float32), p, LABELS.astype(dtype))


def test_nll_loss_of_more_axes():
    p, y = probabilities().reshape(1, 5, 5), LABELS.reshape(1, 5)
    expected = losses(p[0].astype(np.float64), LABELS, 1e-7, False, None).reshape(1, 5).astype(np.float32)
    check(lambda p, y: ops.nll_loss(p, y, reduction="none"), expected, p, y)


def test_the_mean_loss_where_no_label_counts_is_0():
    y = np.full(5, -1, np.int32)
    check(lambda p, y: ops.nll_loss(p, y, -1), np.float32(0), probabilities(), y)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ignored", [None, 0, -100])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss_with_softmax_grad(reduction, ignored, dtype):
    p = probabilities(dtype)
    wide = p.astype(np.float64)
    each = np.array([0.0 if y == ignored else -np.log(row[y] + 1e-7) for row, y in zip(wide, LABELS)])
    grad = 3 * (wide - np.eye(5)[LABELS])
    grad[LABELS == ignored] = 0
    if reduction == "mean":
        grad /= max(sum(LABELS != ignored), 1)
    expected = reduced(each, LABELS, reduction, ignored).astype(dtype), grad.astype(dtype)
    check(lambda p, y: ops.nll_loss_with_softmax_grad(p, y, 3.0, ignored, reduction), expected, p, LABELS, ulps=8)


def test_the_softmax_gradient_is_that_of_the_loss():
    """By finite differences of softmax and loss in float64."""
    x = data((3, 4), np.float64)
    labels = np.array([3, 1, 0], np.int32)

    def softmax(x):
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def loss(x):
        return -np.mean(np.log(softmax(x)[np.arange(3), labels]))

    grad = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        step = np.zeros(x.shape)
        step[i] = 1e-5
        grad[i] = (loss(x + step) - loss(x - step)) / 2e-5
    check(lambda p, y: ops.nll_loss_with_softmax_grad(p, y)[1], grad.astype(np.float32), softmax(x).astype(np.float32),
          labels, ulps=20)


# Order and counts


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize("axis", [None, 0, 1, [0, 2], -1, []], ids=str)
def test_median(axis, dtype):
    t = np.random.default_rng(0).integers(-3, 4, (3, 4, 5)).astype(dtype)
    axes = tuple(range(3)) if axis is None else tuple(np.atleast_1d(np.array(axis, int)) % 3)
    others = tuple(i for i in range(3) if i not in axes)
    rows = t.transpose(others + axes).reshape([t.shape[i] for i in others] + [-1])
    middle = (rows.shape[-1] - 1) // 2
    values = np.sort(rows, -1)[..., middle]
    # Equal elements are in the order of their places: of those that equal the median, as many come before it.
    before = middle - (rows < values[..., None]).sum(-1)
    places = np.zeros(values.shape, np.int32)
    for i in np.ndindex(*values.shape):
        places[i] = np.flatnonzero(rows[i] == values[i])[before[i]]
    for keepdims in (False, True):
        kept = [1 if i in axes else n for i, n in enumerate(t.shape)]
        wanted = [x.reshape(kept) if keepdims else x for x in (values, places)]
        check(lambda t, k=keepdims: ops.median(t, axis, k), wanted[0], t)
        check(lambda t, k=keepdims: ops.median(t, axis, k).producer.outputs[1], wanted[1], t)


def test_median_is_the_lower_one_and_nan_the_largest():
    t = np.array([[4, 1, 3, 2], [nan, 1, nan, inf], [nan, nan, 1, nan]], np.float32)
    check(lambda t: ops.median(t, 1), np.array([2, inf, nan], np.float32), t)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("absolute", [False, True])
def test_histogram(absolute, dtype):
    levels = [-1.0, 0.1, 0.5, 2.0]
    t = np.concatenate([np.array([-1, 0.1, 0.5, 2, -2, inf, -inf], dtype), data((50,), dtype)]).reshape(3, 19)
    bounds = [-inf, *np.array(levels, dtype).astype(np.float64), inf]
    x = np.abs(t) if absolute else t
    expected = [((x >= low) & (x < high)).sum() for low, high in zip(bounds, bounds[1:])]
    expected[-1] += np.isposinf(x).sum()
    assert sum(expected) == t.size
    check(lambda t: ops.histogram(t, levels, absolute), np.array(expected, np.uint32), t)


def test_histogram_without_levels_and_of_nan():
    t = np.array([nan, 1], np.float32)
    check(lambda t: ops.histogram(t, [], False), np.array([2], np.uint32), t)
    check(lambda t: ops.histogram(t, [0.0, 2.0], False), np.array([0, 1, 1], np.uint32), t)


@pytest.mark.parametrize("dtype", FLOATS)
def test_lamb_square(dtype):
    t = data((6, 7), dtype) * 100
    check(ops.lamb_square, np.float32((t.astype(np.float64) ** 2).sum()), t)
    big = np.full((4,), 60000, dtype)
    check(ops.lamb_square, np.float32(4 * 6e4**2), big)
