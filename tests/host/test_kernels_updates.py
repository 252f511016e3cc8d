"""Updates of variables and the directions of optimisers against NumPy, written out in float64."""
import math

import numpy as np
import pytest
from engine_checks import check as check_numpy
from kernel_checks import check, modifying, ops

import popfn.host as popxl

var_updates = ops.var_updates
FLOATS = [np.float32, np.float16]
PAIRS = [(np.float32, np.float32), (np.float16, np.float16), (np.float32, np.float16), (np.float16, np.float32)]


def data(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


# Accumulators: with the factor as a number and as a tensor

ACCUMULATE = {
    "accumulate_square_": lambda t, x, f: t + f * x**2,
    "accumulate_mean_": lambda t, x, n: t * n / (n + 1) + x / (n + 1),
    "accumulate_moving_average_": lambda t, x, f: f * t + (1 - f) * x,
    "accumulate_moving_average_square_": lambda t, x, f: f * t + (1 - f) * x**2,
}


@pytest.mark.parametrize("dtypes", PAIRS, ids=lambda pair: "-".join(d.__name__ for d in pair))
@pytest.mark.parametrize("kind", ACCUMULATE)
def test_accumulators(kind, dtypes):
    t, x = data((3, 5), dtypes[0]), data((3, 5), dtypes[1], 1)
    update = getattr(var_updates, kind)
    for f in (0.75, 3.0) if dtypes[0] != dtypes[1] else (1.0, 0.0, -0.5):
        expected = ACCUMULATE[kind](t.astype(np.float64), x.astype(np.float64), f).astype(dtypes[0])
        check(modifying(lambda t, x, f=f: update(t, x, f)), expected, t, x)
        check(modifying(lambda t, x, f: update(t, x, f)), expected, t, x, scalar(f))


@pytest.mark.parametrize("dtype", FLOATS)
def test_accumulator_scale(dtype):
    t = data((3, 5), dtype)
    for f in (0.3, 1.0, 0.0):
        expected = (t.astype(np.float64) * np.float32(f)).astype(dtype)
        check(modifying(lambda t, f=f: var_updates.accumulator_scale_(t, f)), expected, t)
        check(modifying(lambda t, f: var_updates.accumulator_scale_(t, f)), expected, t, scalar(f))


def test_updates_reach_the_variable_through_views():
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(np.array([1, 2, 3, 4], np.float32), name="v")
        part = ops.slice_(v, 1, 3)
        var_updates.accumulate_moving_average_(part, ops.slice_(v, 0, 2), 0.5)
        var_updates.accumulate_square_(v, v, 2.0)
    with popxl.Session(ir) as session:
        session.run()
        found = session.get_tensor_data(v)
    x = np.array([1, 1.5, 2.5, 4])
    np.testing.assert_array_equal(found, (x + 2 * x**2).astype(np.float32))


def with_parts(t, x, indices, axis, f):
    """One part after another."""
    t, x = np.moveaxis(t.astype(np.float64), axis, 0).copy(), x.astype(np.float64)
    x = np.moveaxis(x.reshape(x.shape[:axis] + (-1,) + x.shape[axis + indices.ndim :]), axis, 0)
    for i, part in zip(indices.reshape(-1), x):
        if 0 <= i < len(t):
            t[i] += f * part
    return np.moveaxis(t, 0, axis)


@pytest.mark.parametrize("dtypes", PAIRS, ids=lambda pair: "-".join(d.__name__ for d in pair))
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("indices", [[0, 2, 0, 1], [[2, 2], [0, -1]], [1, 5]], ids=str)
def test_sparse_accumulate(indices, axis, dtypes):
    indices = np.array(indices, np.int32)
    t = data((3, 3, 3), dtypes[0])
    x = data(t.shape[:axis] + indices.shape + t.shape[axis + 1 :], dtypes[1], 1)
    for f in (None, 0.5):
        expected = with_parts(t, x, indices, axis, 1 if f is None else f).astype(dtypes[0])
        check(modifying(lambda t, x, i, f=f: var_updates.sparse_accumulate_(t, x, i, axis, f)), expected, t, x, indices)
    check(modifying(lambda t, x, i, f: var_updates.sparse_accumulate_(t, x, i, axis, f)),
          with_parts(t, x, indices, axis, 2).astype(dtypes[0]), t, x, indices, scalar(2))


def test_sparse_accumulate_by_unsigned_indices():
    t, x, indices = data((3, 2)), data((2, 2), seed=1), np.array([2, 2**32 - 1], np.uint32)
    expected = t.copy()
    expected[2] += x[0]
    check(modifying(lambda t, x, i: var_updates.sparse_accumulate_(t, x, i)), expected, t, x, indices)


# Elementwise


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_scaled_add(dtype):
    x, y = (data((2, 3), np.float64, k) * 10 for k in (0, 1))
    x, y = x.astype(dtype), y.astype(dtype)

    def formula(a, b):
        result = a * x.astype(np.float64) + b * y.astype(np.float64)
        return result.astype(dtype)

    check(ops.scaled_add, formula(1, 1), x, y)
    if dtype == np.int32:
        check(lambda x, y: ops.scaled_add(x, y, 2.0, -3.0), formula(2, -3), x, y)
        return
    check(lambda x, y: ops.scaled_add(x, y, 0.3, -1.7), formula(0.3, -1.7), x, y)
    check(lambda x, y, a, b: ops.scaled_add(x, y, a, b), formula(0.25, -1.5), x, y, scalar(0.25, dtype),
          scalar(-1.5, dtype))
    check(lambda x, y, b: ops.scaled_add(x, y, 1.0, b), formula(1, 4), x, y, scalar(4))
    check(modifying(lambda x, y: ops.scaled_add_(x, y, 0.5, 2.0)), formula(0.5, 2), x, y)


def test_scaled_add_of_large_integers_is_exact():
    x, y = np.array([2**30 + 1, -7], np.int32), np.array([2**30 - 3, 9], np.int32)
    check(ops.scaled_add, x + y, x, y)


def test_scaled_add_in_place_of_two_dtypes():
    for a, b in ((np.float32, np.float16), (np.float16, np.float32)):
        x, y = data((2, 3), a), data((2, 3), b, 1)
        expected = (0.5 * x.astype(np.float64) + 3 * y.astype(np.float64)).astype(a)
        check(modifying(lambda x, y: ops.scaled_add_(x, y, 0.5, 3.0)), expected, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint32, np.int8])
def test_increment_mod(dtype):
    t = np.array([0, 1, 3, 4, 7, 100], dtype)
    expected = np.array([math.fmod(x + 2, 5) for x in t.tolist()], dtype)
    check(lambda t: ops.increment_mod(t, 2.0, 5.0), expected, t)
    check(modifying(lambda t: ops.increment_mod_(t, 2.0, 5.0)), expected, t)


def test_increment_mod_has_the_sign_of_the_dividend():
    for dtype in (np.float32, np.int32):
        t = np.array([-7, -2, 4], dtype)
        check(lambda t: ops.increment_mod(t, 1.0, 3.0), np.array([0, -1, 2], dtype), t)
        check(lambda t: ops.increment_mod(t, -1.0, 3.0), np.array([-2, 0, 0], dtype), t)
    t = np.array([0.25, -3.5], np.float32)
    check(lambda t: ops.increment_mod(t, 0.5, 0.6), np.fmod(t + 0.5, np.float32(0.6)).astype(np.float32), t)


# Optimisers


def corrected(m, beta, step):
    return m if step is None else m / (1 - beta**step)


@pytest.mark.parametrize("dtypes", [(np.float32,) * 3, (np.float16, np.float32, np.float16), (np.float16,) * 3],
                         ids=lambda ds: "-".join(d.__name__ for d in ds))
@pytest.mark.parametrize("kind", ["adam_updater", "lamb_updater"])
def test_adam_and_lamb_updaters(kind, dtypes):
    m, v = data((4, 3), dtypes[0]), np.abs(data((4, 3), dtypes[1], 1))
    w = data((4, 3), dtypes[2], 2)
    updater = getattr(var_updates, kind)
    wide = [x.astype(np.float64) for x in (m, v, w)]

    def formula(step, decay, beta1=0.9, beta2=0.999, eps=1e-5):
        mc, vc = corrected(wide[0], beta1, step), corrected(wide[1], beta2, step)
        return (mc / (np.sqrt(vc) + eps) + decay * wide[2]).astype(m.dtype)

    check(lambda m, v: updater(m, v, weight_decay=0.0, epsilon=1e-5), formula(None, 0), m, v)
    check(lambda m, v, w: updater(m, v, w, weight_decay=0.1, epsilon=1e-5), formula(None, 0.1), m, v, w)
    for done in (0, 9, 5000):
        def with_step(m, v, w, step, *factors, decay=0.1, beta1=0.9, beta2=0.999, eps=1e-5):
            step = ops.identity(step)
            if factors:
                decay, beta1, beta2, eps = factors
            x = updater(m, v, w, step, decay, beta1, beta2, eps)
            return x, step

        expected = formula(done + 1, 0.1), scalar(done + 1)
        check(with_step, expected, m, v, w, scalar(done))
        factors = [scalar(x) for x in (0.1, 0.9, 0.999, 1e-5)]
        # With beta2 as a float32 tensor, what is left of 1 - beta2 has few digits.
        rounded = formula(done + 1, *[float(x) for x in factors]), scalar(done + 1)
        check(with_step, rounded, m, v, w, scalar(done), *factors, ulps=4 if m.dtype == np.float16 else 2048)


def test_the_corrections_do_not_cancel():
    """In the first step of Adam the direction is that of the sign, exactly."""
    g = np.array([3, -2, 0.5, -1e-3], np.float32)
    m, v = (0.1 * g).astype(np.float32), (0.001 * g.astype(np.float64) ** 2).astype(np.float32)
    check(lambda m, v, t: var_updates.adam_updater(m, v, None, ops.identity(t), 0.0, 0.9, 0.999, 0.0),
          np.sign(g), m, v, scalar(0), ulps=4)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_adam_updater_with_small_betas(beta):
    m, v = data((4,)), np.abs(data((4,), seed=1))
    expected = corrected(m.astype(np.float64), beta, 2) / (np.sqrt(corrected(v.astype(np.float64), beta, 2)) + 1e-7)
    check(lambda m, v, t: var_updates.adam_updater(m, v, None, ops.identity(t), 0.0, beta, beta),
          expected.astype(np.float32), m, v, scalar(1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_adamax_updater(dtype):
    m, v, w = data((4, 3), dtype), np.abs(data((4, 3), dtype, 1)), data((4, 3), dtype, 2)
    wide = [x.astype(np.float64) for x in (m, v, w)]
    expected = corrected(wide[0], 0.8, 4) / (wide[1] + 1e-4) + 0.2 * wide[2]
    check(lambda m, v, w, t: var_updates.adamax_updater(m, v, w, ops.identity(t), 0.2, 0.8, 1e-4),
          expected.astype(dtype), m, v, w, scalar(3))
    check(lambda m, v, w, t, d, b, e: var_updates.adamax_updater(m, v, w, ops.identity(t), d, b, e),
          expected.astype(dtype), m, v, w, scalar(3), scalar(0.2), scalar(0.8), scalar(1e-4), ulps=16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("r1,r2,limit,ratio", [
    (4.0, 16.0, 10.0, 0.5), (400.0, 16.0, 10.0, 2.5), (0.0, 16.0, 10.0, 1), (4.0, 0.0, 10.0, 1), (4.0, 16.0, 0.0, 1),
])
def test_adam_var_update(r1, r2, limit, ratio, dtype):
    t, x = data((4, 3), dtype), data((4, 3), dtype, 1)
    expected = (t.astype(np.float64) - 0.25 * ratio * x.astype(np.float64)).astype(dtype)
    norms = scalar(r1), scalar(r2)
    check(modifying(lambda t, x, r1, r2: var_updates.adam_var_update(t, x, r1, r2, 0.25, limit)), expected, t, x,
          *norms)
    check(modifying(lambda t, x, r1, r2, lr, m: var_updates.adam_var_update(t, x, r1, r2, lr, m)), expected, t, x,
          *norms, scalar(0.25), scalar(limit))


def test_a_step_of_lamb():
    """The kernels together, as an optimiser uses them."""
    w, g = data((5, 3)), data((5, 3), seed=1)

    def step(w, g):
        m, v = ops.init(w.shape, w.dtype), ops.init(w.shape, w.dtype)
        var_updates.accumulate_moving_average_(m, g, 0.9)
        var_updates.accumulate_moving_average_square_(v, g, 0.99)
        x = var_updates.lamb_updater(m, v, w, None, 0.01, epsilon=1e-6)
        return var_updates.adam_var_update(w, x, ops.lamb_square(w), ops.lamb_square(x), 0.1, 100.0)

    wide, gradient = w.astype(np.float64), g.astype(np.float64)
    x = 0.1 * gradient / (np.sqrt(0.01 * gradient**2) + 1e-6) + 0.01 * wide
    expected = wide - 0.1 * np.sqrt((wide**2).sum() / (x**2).sum()) * x
    check_numpy(modifying(step), expected.astype(np.float32), w, g, ulps=16)
