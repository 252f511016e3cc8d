"""Corner cases of collectives over named axes and of random numbers; test_conventions.py lists them."""
from typing import Any, Callable

import numpy as np
import pytest
from conventions import f32, pytest_generate_tests as pytest_generate_tests, same

import popfn as pf
import popfn.numpy as pnp
from popfn import random

X = f32([1, 2], [3, 5], [-2, 4])


# ---------------------------------------------------------------------------- collectives
def share(w: Any, x: Any) -> Any:
    """A loss that all lanes share: the square of the sum over lanes of w . x, which is (-2 w0 + 11 w1 + ...)^2."""
    return pf.psum((w * x).sum(), "i") ** 2


def lanes(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return pf.vmap(f, axis_name="i", **options)


def test_gradient_of_psum_outside(run):
    """Differentiated around the lanes, by their values and by what they share."""
    w = f32(1, -1)
    total = (X * w).sum()  # -9
    whole = lanes(share, in_axes=(None, 0), out_axes=None)
    same(run(lambda w, x: whole(w, x), w, X), np.float32(total ** 2))
    same(run(pf.grad(whole), w, X), 2 * total * X.sum(0))
    same(run(pf.grad(whole, 1), w, X), 2 * total * np.broadcast_to(w, X.shape))


def test_gradient_of_psum_inside(run):
    """Differentiated in each lane: that of the one function of all lanes, by the lane's part and by what is shared."""
    w = f32(1, -1)
    total = (X * w).sum()
    same(run(lanes(pf.grad(share, 1), in_axes=(None, 0)), w, X), 2 * total * np.broadcast_to(w, X.shape))
    same(run(lanes(pf.grad(share), in_axes=(None, 0), out_axes=None), w, X), 2 * total * X.sum(0))
    mean = lanes(pf.grad(lambda w, x: pf.pmean(((w * x).sum() ** 2), "i")), in_axes=(None, 0), out_axes=None)
    np.testing.assert_allclose(run(mean, w, X), 2 * ((X @ w)[:, None] * X).mean(0), 1e-6)


def test_forward_and_reverse_mode_of_psum_agree(run):
    w = f32(1, -1)
    whole = lanes(share, in_axes=(None, 0), out_axes=None)
    for v in np.eye(2, dtype=np.float32):
        got = run(lambda w, x, v=v: pf.jvp(lambda w: whole(w, x), (w,), (v,))[1], w, X)
        same(got, np.asarray(pf.grad(whole)(w, X)) @ v)


def test_psum_of_a_value_that_does_not_vary(run):
    def f(w: Any, x: Any) -> Any:
        return pf.psum(w, "i") * x
    for wrap in (lambda f: f, lambda f: pf.grad(lambda w, x: f(w, x).sum())):
        with pytest.raises(pf.errors.AxisError) as error:
            run(wrap(lanes(f, in_axes=(None, 0))), f32(1, 2), X)
        text = str(error.value)
        assert "psum" in text and "does not vary over 'i'" in text and "f32[2]" in text
        assert "return pf.psum(w, \"i\") * x" in text and "pvary" in text.split("way out:")[1]
    varies = lanes(lambda w, x: pf.psum(pf.pvary(w, "i"), "i") * x, in_axes=(None, 0))
    same(run(varies, f32(1, 2), X), 3 * f32(1, 2) * X)


# ---------------------------------------------------------------------------- random numbers
def rotated(x: np.ndarray, by: int) -> np.ndarray:
    return x << np.uint32(by) | x >> np.uint32(32 - by)


def threefry(key: Any, counter: Any) -> np.ndarray:
    """Threefry 2x32 of 20 rounds, from Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011)."""
    with np.errstate(over="ignore"):
        k = [np.uint32(key[0]), np.uint32(key[1])]
        k.append(k[0] ^ k[1] ^ np.uint32(0x1BD11BDA))
        x, y = np.uint32(counter[0]) + k[0], np.uint32(counter[1]) + k[1]
        for i in range(5):
            for by in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
                x = x + y
                y = rotated(y, by) ^ x
            x, y = x + k[(i + 1) % 3], y + k[(i + 2) % 3] + np.uint32(i + 1)
        return np.array([x, y])


def test_the_oracle_has_the_published_values():
    same(threefry((0, 0), (0, 0)), np.array([0x6B200159, 0x99BA4EFE], np.uint32))
    same(threefry((2 ** 32 - 1,) * 2, (2 ** 32 - 1,) * 2), np.array([0x1CB996FC, 0xBB002BE7], np.uint32))
    same(threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)), np.array([0xC4923A9C, 0x483DF7A0], np.uint32))


def test_bits_are_those_of_threefry(run):
    """The key encrypts the place of a pair of words, and 0 for a draw or 1 for the key made of it."""
    key = np.array([0x13198A2E, 0x03707344], np.uint32)
    words = np.concatenate([threefry(key, (i, 0)) for i in range(3)])
    same(run(lambda k: random.uniform(k, (5,)), key), (words[:5] >> 8).astype(np.float32) / np.float32(2 ** 24))
    same(run(lambda k: random.split(k, 3), key), np.stack([threefry(key, (i, 1)) for i in range(3)]))
    same(run(lambda k: random.fold_in(k, 7), key), threefry(threefry(key, (2 ** 32 - 1, 1)), (7, 1)))


def test_keys_are_two_words():
    for seed in (0, 7, 2 ** 32 - 1, 2 ** 40 + 3, 2 ** 64 - 1):
        key = random.key(seed)
        assert key.shape == (2,) and key.dtype == np.uint32
    keys = random.split(random.key(3), 4)
    assert keys.shape == (4, 2) and keys.dtype == np.uint32 and random.fold_in(keys[0], 1).shape == (2,)
    for bad in (0, np.zeros(2, np.int32), np.zeros(3, np.uint32)):
        with pytest.raises((TypeError, ValueError), match=r"takes a key, u(int)?32\[2\], got"):
            random.uniform(bad, (2,))


DRAWS = {
    "bits": lambda k: random.bits(k, (5,)), "uniform": lambda k: random.uniform(k, (3, 2)),
    "float16": lambda k: random.uniform(k, (4,), "float16"), "normal": lambda k: random.normal(k, (3,)),
    "randint": lambda k: random.randint(k, (4,), 0, 10), "bernoulli": lambda k: random.bernoulli(k, 0.5, (7,)),
    "split": lambda k: random.split(k, 3), "fold_in": lambda k: random.fold_in(k, 9),
    "permutation": lambda k: random.permutation(k, 6),
    "dropout": lambda k: pf.nn.dropout(k, np.ones(9, np.float32), 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_equal_bits_on_every_path(run, name):
    """Alone, and beside another key in lanes. Normal is made with log and cos, whose last place is not the same."""
    compare = same if name != "normal" else lambda got, want: np.testing.assert_allclose(got, want, 3e-7)
    key = np.asarray(random.key(11))
    want = np.asarray(DRAWS[name](key))
    compare(run(DRAWS[name], key), want)
    compare(run(lambda k: pf.vmap(DRAWS[name])(pnp.stack([k + np.uint32(1), k]))[1], key), want)


def test_no_hidden_state():
    key = random.key(5)
    for draw in DRAWS.values():
        first = np.asarray(draw(key))
        random.normal(random.key(1), (3,))
        np.random.seed(0)
        same(draw(key), first)
        jitted = pf.jit(draw)
        same(jitted(key), first)
        same(jitted(key), first)


def test_equal_bits_for_any_number_of_lanes():
    keys = np.asarray(random.split(random.key(2), 6))
    want = np.stack([np.asarray(random.normal(k, (3,))) for k in keys])
    for n in (1, 2, 3, 6):
        in_groups = keys.reshape(n, 6 // n, 2)
        got = pf.jit(pf.vmap(lambda ks: pf.map(lambda k: random.normal(k, (3,)), ks)))(in_groups)
        same(np.asarray(got).reshape(6, 3), want)
