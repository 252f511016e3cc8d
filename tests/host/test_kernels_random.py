"""Random numbers: equal bits for equal seeds on both array modules, the distributions, and dropout."""
import numpy as np
import pytest
from engine_checks import run
from kernel_checks import check, on_both, ops
from scipy import stats

import popfn.host as popxl
from popfn.host.kernels import threefry

SEED = popxl.create_seeds(42)
COUNT = 20000


def drawn(function, *arrays):
    """The result on the NumPy engine, which must be that on XLA but for the last places."""
    (result,), (compiled,) = on_both(function, arrays)
    eps = np.finfo(result.dtype).eps if result.dtype.kind == "f" else 0
    np.testing.assert_allclose(result, compiled, 16 * eps, 16 * eps)
    return result


def test_a_block_of_bits_is_that_of_the_paper():
    """The test vectors of Threefry 2x32 with 20 rounds."""
    for key, counter, expected in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        words = [np.full(1, x, np.uint32) for x in key + counter]
        found = threefry.threefry(np, tuple(words[:2]), tuple(words[2:]))
        assert tuple(int(x[0]) for x in found) == expected


@pytest.mark.parametrize("dtype", [popxl.float32, popxl.float16], ids=str)
def test_uniform(dtype):
    x = drawn(lambda s: ops.random_uniform(s, (COUNT,), -2.0, 6.0, dtype), SEED)
    assert x.dtype == dtype.as_numpy() and x.min() >= -2 and x.max() < 6
    assert stats.kstest(x.astype(np.float64), stats.uniform(-2, 8).cdf).pvalue > 0.01


@pytest.mark.parametrize("dtype", [popxl.float32, popxl.float16], ids=str)
@pytest.mark.parametrize("low,high", [(0.0, 1.0), (1.0, 1.001), (-1e-3, 0.0), (3.0, 3.0)])
def test_uniform_does_not_reach_the_upper_end(low, high, dtype):
    x = drawn(lambda s: ops.random_uniform(s, (COUNT,), low, high, dtype), SEED)
    ends = np.array([low, high], x.dtype)
    assert x.min() >= ends[0] and (x.max() < ends[1] or ends[0] == ends[1] == x.max())


@pytest.mark.parametrize("dtype", [popxl.float32, popxl.float16], ids=str)
def test_normal(dtype):
    x = drawn(lambda s: ops.random_normal(s, (COUNT // 100, 100), 3.0, 0.5, dtype), SEED)
    assert x.shape == (COUNT // 100, 100) and x.dtype == dtype.as_numpy() and np.isfinite(x).all()
    assert stats.kstest(x.reshape(-1).astype(np.float64), stats.norm(3, 0.5).cdf).pvalue > 0.01
    flat = x.reshape(-1).astype(np.float64)
    assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 0.03


def test_seeds_decide_the_numbers():
    def draw(seed, shape=(64,)):
        return drawn(lambda s: ops.random_uniform(s, shape), seed)

    np.testing.assert_array_equal(draw(SEED), draw(SEED))
    assert (draw(SEED) != draw(popxl.create_seeds(43))).all()
    # A number depends on its place, not on the shape.
    np.testing.assert_array_equal(draw(SEED, (63,)), draw(SEED)[:63])
    np.testing.assert_array_equal(draw(SEED, (8, 8)).reshape(-1), draw(SEED))


def test_the_seeds_made_of_a_seed():
    arrays = [drawn(lambda s, i=i: ops.split_random_seed(s, 5)[i], SEED) for i in range(5)]
    assert all(a.dtype == np.uint32 and a.shape == (2,) for a in arrays)
    assert len({tuple(a.tolist()) for a in arrays} | {tuple(SEED.tolist())}) == 6
    np.testing.assert_array_equal(arrays[1], drawn(lambda s: ops.split_random_seed(s, 2)[1], SEED))
    other = drawn(lambda s: ops.split_random_seed(s, 2)[1], popxl.create_seeds(7))
    assert (arrays[1] != other).all()
    # What is drawn from a seed differs from the seeds that are made of it.
    bits = threefry.bits(np, SEED, 10)
    assert not set(bits.tolist()) & {int(x) for a in arrays for x in a}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.75])
def test_dropout(p, dtype):
    t = np.random.default_rng(0).normal(size=(COUNT // 10, 10)).astype(dtype) + dtype(10)
    y = drawn(lambda t, s: ops.dropout(t, s, p), t, SEED)
    kept = y != 0
    np.testing.assert_allclose(y[kept], (t.astype(np.float64) / (1 - p)).astype(dtype)[kept],
                               2 * np.finfo(dtype).eps)
    assert abs(kept.mean() - (1 - p)) < 4 * np.sqrt(p * (1 - p) / COUNT) + 1e-9
    np.testing.assert_array_equal(y, drawn(lambda t, s: ops.dropout(t, s, p), t, SEED))


def test_dropout_of_infinities_and_nan():
    t = np.full(64, np.nan, np.float32)
    y = drawn(lambda t, s: ops.dropout(t, s, 0.5), t, SEED)
    assert set(np.isnan(y).tolist()) == {True, False} and (y[~np.isnan(y)] == 0).all()


def test_shaped_dropout_shares_its_mask():
    t = np.ones((40, 30, 5), np.float32)
    y = drawn(lambda t, s: ops.shaped_dropout(t, s, (40, 1, 5), 0.5), t, SEED)
    assert set(np.unique(y)) == {0, 2} and (y == y[:, :1]).all() and 60 < (y[:, 0] == 0).sum() < 140
    y = drawn(lambda t, s: ops.shaped_dropout(t, s, (5,), 0.5), t, SEED)
    assert (y == y[:1, :1]).all()


def test_the_gradient_of_dropout_has_the_same_mask():
    def both(t, s):
        return ops.dropout(t, s, 0.3), ops.dropout(ops.mul(t, t), s, 0.3)

    t = np.full((50,), 2, np.float32)
    (y, g), _ = run(both, (t, SEED))
    np.testing.assert_array_equal(y != 0, g != 0)


def test_a_seed_that_is_a_variable():
    ir = popxl.Ir()
    with ir.main_graph:
        seed = popxl.variable(SEED)
        out = popxl.d2h_stream((4,), popxl.float32)
        ops.host_store(out, ops.random_normal(seed, (4,)))
    with popxl.Session(ir) as session:
        first, second = session.run()[out], session.run()[out]
    np.testing.assert_array_equal(first, second)
    check(lambda s: ops.random_normal(s, (4,)), first, SEED)
