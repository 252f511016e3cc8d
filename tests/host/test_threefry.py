"""The random bits: known answers, the same on both array modules, for any number of elements and replicas."""
import warnings

import numpy as np
import pytest

from popfn.host.kernels import threefry

SEED = np.array([1234, 0xFFFFFFFF], np.uint32)

# From the authors' test vectors, kat_vectors of Random123: key, counter, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("key,counter,wanted", KNOWN)
def test_known_answers(key, counter, wanted):
    def words(pair):
        return tuple(np.array([x], np.uint32) for x in pair)
    found = threefry.threefry(np, words(key), words(counter))
    assert [int(x[0]) for x in found] == list(wanted)


@pytest.mark.parametrize("function", [threefry.bits, threefry.split, threefry.uniform])
@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_numpy_and_jax_agree(function, count):
    jax = pytest.importorskip("jax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = function(np, SEED, count)
        found = jax.jit(lambda seed: function(jax.numpy, seed, count))(SEED)
    assert wanted.dtype == found.dtype
    np.testing.assert_array_equal(found, wanted)


def test_normal_numbers_agree_but_for_the_last_places():
    jax = pytest.importorskip("jax")
    wanted = threefry.normal(np, SEED, 10001)
    found = jax.jit(lambda seed: threefry.normal(jax.numpy, seed, 10001))(SEED)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


def test_fewer_elements_are_the_first_of_more():
    for function in (threefry.bits, threefry.split, threefry.uniform, threefry.normal):
        np.testing.assert_array_equal(function(np, SEED, 5), function(np, SEED, 100)[:5])


def test_each_replica_draws_what_its_seed_gives():
    seeds = threefry.split(np, SEED, 6).reshape(2, 3, 2)
    for function in (threefry.bits, threefry.split, threefry.uniform, threefry.normal):
        found = function(np, seeds, 5)
        for place in np.ndindex(2, 3):
            np.testing.assert_array_equal(found[place], function(np, seeds[place], 5))


def test_child_is_one_of_split():
    children = threefry.split(np, SEED, 4)
    assert len({tuple(x) for x in children.tolist()}) == 4
    for i in range(4):
        np.testing.assert_array_equal(threefry.child(np, SEED, np.uint32(i)), children[i])
    # The children and what is drawn from the seed do not meet.
    assert not set(children.reshape(-1).tolist()) & set(threefry.bits(np, SEED, 1000).tolist())


def test_moments():
    n = 200_000
    u, z = threefry.uniform(np, SEED, n), threefry.normal(np, SEED, n)
    assert u.dtype == z.dtype == np.float32
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 1 / 2) < 4 * (1 / 12 / n) ** 0.5
    assert abs(z.mean()) < 4 * n**-0.5 and abs(z.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs((z**4).mean() - 3) < 4 * (96 / n) ** 0.5
    assert abs(np.mean(u[1:] * u[:-1]) - 1 / 4) < 4 * (7 / 144 / n) ** 0.5  # neighbours are independent
    counts = np.bincount((u * 64).astype(int), minlength=64)
    assert ((counts - n / 64) ** 2).sum() / (n / 64) < 63 + 5 * (2 * 63) ** 0.5
