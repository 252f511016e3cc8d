"""popfn.random: distributions against SciPy's, the same numbers on every path, errors."""
import re

import numpy as np
import pytest
from scipy import special, stats

import popfn as pf
import popfn.numpy as pnp
from popfn import random
from popfn.trace.errors import ArgumentError, DtypeError, RangeError, ShapeError

K = random.key(7)
N = 4000
f32 = np.float32

CONTINUOUS = {
    "uniform": (lambda k, s: random.uniform(k, s), stats.uniform()),
    "uniform between": (lambda k, s: random.uniform(k, s, minval=-2, maxval=3), stats.uniform(-2, 5)),
    "uniform float16": (lambda k, s: random.uniform(k, s, "float16"), stats.uniform()),
    "normal": (lambda k, s: random.normal(k, s), stats.norm()),
    "normal float16": (lambda k, s: random.normal(k, s, np.float16), stats.norm()),
    "truncated_normal": (lambda k, s: random.truncated_normal(k, -1.0, 2.0, s), stats.truncnorm(-1, 2)),
    "truncated_normal in a tail": (lambda k, s: random.truncated_normal(k, 2.5, 4.0, s), stats.truncnorm(2.5, 4)),
    "truncated_normal without bounds": (
        lambda k, s: random.truncated_normal(k, -np.inf, np.inf, s), stats.norm()),
    "exponential": (lambda k, s: random.exponential(k, s), stats.expon()),
    "gumbel": (lambda k, s: random.gumbel(k, s), stats.gumbel_r()),
}
P = np.array([0.1, 0.0, 0.5, 0.4], f32)
DISCRETE = {  # the values and their probabilities
    "bernoulli": (lambda k, s: random.bernoulli(k, 0.3, s), {0: 0.7, 1: 0.3}),
    "rademacher": (lambda k, s: random.rademacher(k, s, "int8"), {-1: 0.5, 1: 0.5}),
    "randint": (lambda k, s: random.randint(k, s, -2, 3), dict.fromkeys(range(-2, 3), 0.2)),
    "randint uint8": (lambda k, s: random.randint(k, s, 250, 256, "uint8"), dict.fromkeys(range(250, 256), 1 / 6)),
    "categorical": (lambda k, s: random.categorical(k, np.log(np.maximum(P, 1e-30)), shape=s), dict(enumerate(P))),
    "choice": (lambda k, s: random.choice(k, np.array([5, 6, 7, 8]), s, p=P), dict(zip((5, 6, 7, 8), P))),
    "choice of a range": (lambda k, s: random.choice(k, 3, s), dict.fromkeys(range(3), 1 / 3)),
    "bits modulo 7": (lambda k, s: random.bits(k, s) % 7, dict.fromkeys(range(7), 1 / 7)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_distribution(name):
    f, distribution = CONTINUOUS[name]
    x = np.asarray(f(K, (N,)), np.float64)
    low, high = distribution.support()
    assert (x >= low).all() and (x <= high).all() and np.isfinite(x).all()
    assert stats.kstest(x, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_frequencies(name):
    f, probabilities = DISCRETE[name]
    x = np.asarray(f(K, (N,)), np.int64)
    counts = np.array([(x == v).sum() for v in probabilities])
    want = np.array(list(probabilities.values()), np.float64) * N
    assert counts.sum() == N and (counts[want == 0] == 0).all()
    assert stats.chisquare(counts[want > 0], want[want > 0] * N / want.sum()).pvalue > 1e-3


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_the_same_on_every_path(name):
    f = {**CONTINUOUS, **DISCRETE}[name][0]
    eager = np.asarray(f(K, (5, 3)))
    jitted = np.asarray(pf.jit(lambda k: f(k, (5, 3)))(K))
    assert (eager.dtype, eager.shape) == (jitted.dtype, jitted.shape)
    np.testing.assert_allclose(eager.astype(f32), jitted.astype(f32), 2e-6, 2e-6)
    keys = random.split(K, 3)
    together = np.asarray(pf.vmap(lambda k: f(k, (5,)))(keys))
    np.testing.assert_array_equal(together, np.stack([np.asarray(f(k, (5,))) for k in keys]))
    assert np.asarray(f(K, ())).shape == ()


def test_keys():
    assert np.asarray(random.key(5)).tolist() == [0, 5]
    assert np.asarray(random.key(2 ** 64 - 1)).tolist() == [2 ** 32 - 1] * 2
    assert np.asarray(pf.jit(random.key)(np.int32(5))).tolist() == [0, 5]
    first, second = random.split(K)
    many = np.asarray(random.split(K, 1000))
    assert many[0].tolist() == np.asarray(first).tolist() and many[1].tolist() == np.asarray(second).tolist()
    folded = np.stack([np.asarray(random.fold_in(K, i)) for i in range(50)])
    everything = np.concatenate([many, folded, np.asarray(K)[None]])
    assert len({tuple(k) for k in everything.tolist()}) == len(everything)
    traced = pf.jit(lambda k, i: random.fold_in(k, i))(K, np.int32(7))
    assert np.asarray(traced).tolist() == folded[7].tolist()


def test_keys_are_independent():
    keys = random.split(K, 200)
    x = np.asarray(pf.vmap(lambda k: random.normal(k, (100,)))(keys))
    assert np.abs(np.corrcoef(x)[np.triu_indices(200, 1)]).max() < 0.5
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(x[:, 0], "norm").pvalue > 1e-3


def test_permutation_and_choice_without_replacement():
    x = np.arange(50).reshape(10, 5)
    p = np.asarray(random.permutation(K, x))
    assert sorted(p[:, 0]) == sorted(x[:, 0]) and p.tolist() != x.tolist() and (p[:, 1] - p[:, 0] == 1).all()
    assert np.asarray(random.permutation(K, x, axis=1)).shape == (10, 5)
    first = np.asarray(pf.vmap(lambda k: random.permutation(k, 4)[0])(random.split(K, 1000)))
    assert stats.chisquare(np.bincount(first, minlength=4)).pvalue > 1e-3
    some = np.asarray(random.choice(K, 100, (40,), replace=False))
    assert len(set(some.tolist())) == 40
    weighted = np.asarray(random.choice(K, 4, (3,), replace=False, p=P))
    assert set(weighted.tolist()) == {0, 2, 3}


def test_bounds_are_respected():
    u = np.asarray(random.uniform(K, (20000,), np.float16, minval=1.0, maxval=1.01))
    assert u.min() >= np.float16(1.0) and u.max() < np.float16(1.01)
    t = np.asarray(random.truncated_normal(K, -0.001, 0.001, (1000,)))
    assert np.abs(t).max() <= f32(0.001)
    wide = np.asarray(random.randint(K, (1000,), -2 ** 31, 2 ** 31))
    assert wide.min() < -2 ** 30 and wide.max() > 2 ** 30
    assert np.asarray(random.randint(K, (100,), np.array(3), np.array(4))).tolist() == [3] * 100
    b = np.asarray(random.bits(K, (4000,))).astype(np.uint64)
    assert all(0.45 < ((b >> np.uint64(i)) & np.uint64(1)).mean() < 0.55 for i in range(32))


def test_the_inverse_error_function():
    x = np.concatenate([np.linspace(-0.9999, 0.9999, 401), [1 - 2.0 ** -24, 2.0 ** -24, 1e-6]]).astype(f32)
    got = np.asarray(random._erf_inv(pnp.asarray(x)))
    np.testing.assert_allclose(got, special.erfinv(x.astype(float)), 2e-5)
    assert np.asarray(random._erf_inv(pnp.asarray([1.0, -1.0]))).tolist() == [np.inf, -np.inf]


def test_reparametrised_gradients():
    def f(scale):
        return pnp.sum(random.normal(K, (10,)) * scale + random.uniform(K, (10,), minval=scale, maxval=3.0))
    n, u = np.asarray(random.normal(K, (10,))), np.asarray(random.uniform(K, (10,)))
    np.testing.assert_allclose(pf.grad(f)(f32(2)), n.sum() + (1 - u).sum(), 1e-5)


def test_dropout_draws_its_mask_again():
    """Its derivative keeps the key instead of the mask."""
    from popfn.trace import prims
    x = np.ones((64, 64), f32)

    def loss(x):
        return pnp.sum(prims.dropout(x, K, 0.5, (64, 64)) * 3)
    y = np.asarray(prims.dropout(x, K, 0.5, (64, 64)))
    np.testing.assert_array_equal(pf.grad(loss)(x), 3 * y)
    text = pf.lower(pf.grad(loss), x).as_text()
    assert text.count("ops.dropout(") == 1 and "bool" not in text


@pytest.mark.parametrize("call, error, line", [
    (lambda: random.key(-1), RangeError, "random.key takes a seed from 0 to 2^64 - 1, got -1"),
    (lambda: random.key(1.0), DtypeError, "random.key takes an integer, got ~f32[]"),
    (lambda: random.split(3), DtypeError, "random.split takes a key, u32[2], got ~i32[]"),
    (lambda: random.normal(random.split(K)), DtypeError,
     "way out: take one of the keys, or map over them with pf.vmap"),
    (lambda: random.uniform(np.zeros(2, f32)), DtypeError, "way out: make one with random.key(seed)"),
    (lambda: random.split(K, 0), ArgumentError, "random.split: the number of keys is 1 or more, got 0"),
    (lambda: random.fold_in(K, 0.5), DtypeError, "random.fold_in takes an integer scalar, got ~f32[]"),
    (lambda: random.normal(K, (2,), "int32"), DtypeError, "random.normal gives float16 or float32, not int32"),
    (lambda: random.uniform(K, (2,), minval=np.zeros(3)), ShapeError,
     "random.uniform: f32[3] does not broadcast to shape (2,)"),
    (lambda: random.randint(K, (2,), 3, 3), RangeError, "random.randint: there are no int32 from 3 to below 3"),
    (lambda: random.randint(K, (2,), 0, 300, "uint8"), RangeError,
     "random.randint: there are no uint8 from 0 to below 300"),
    (lambda: random.randint(K, (2,), 0.0, 3), DtypeError, "random.randint: minval is an integer, got ~f32[]"),
    (lambda: random.randint(K, (2,), 0, 3, "float32"), DtypeError, "random.randint gives integers, not float32"),
    (lambda: random.bernoulli(K, np.zeros(3), (2,)), ShapeError, "does not broadcast to shape (2,)"),
    (lambda: random.categorical(K, np.zeros((3, 2)), shape=(2,)), ShapeError, "random.categorical: logits f32[3,2]"),
    (lambda: random.choice(K, 3, (4,), replace=False), ArgumentError, "random.choice: 4 of 3 parts"),
    (lambda: random.choice(K, 3, (4,), p=P), ShapeError, "random.choice: one probability for each of 3 parts"),
    (lambda: random.normal(K, (-1,)), ShapeError, "a shape holds sizes of 0 or more, got (-1,)"),
])
def test_errors(call, error, line):
    with pytest.raises(error, match=re.escape(line)) as caught:
        call()
    assert re.search(r"at \S*test_random\.py:\d+, in <lambda>", str(caught.value))
