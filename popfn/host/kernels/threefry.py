"""Random bits: Threefry 2x32 with 20 rounds, a function of a key and a counter without any state.

A seed, which is the key, is a pair of uint32. The functions work on the array module `xp`, NumPy or one with its
functions, and give the same bits on each: the result depends on the seed and on the place of an element alone, not on
how many elements or replicas there are. Leading axes of a seed, one for replicas say, are leading axes of the result.

Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from typing import Any, Tuple

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
# The second word of the counter: what is drawn from a seed, and the seeds that are made of it, do not meet.
_DRAW, _CHILD = 0, 1


def _rotated(x: Any, count: int) -> Any:
    return (x << np.uint32(count)) | (x >> np.uint32(32 - count))


def threefry(xp: Any, key: Tuple[Any, Any], counter: Tuple[Any, Any]) -> Tuple[Any, Any]:
    """Encrypt the two words of a counter: arrays of uint32, as are the two words of the key; they broadcast."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(_PARITY))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for i in range(5):
        for count in _ROTATIONS[i % 2]:
            x = x + y
            y = _rotated(y, count) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def _words(seed: Any) -> Tuple[Any, Any]:
    """The words of a seed, with an axis for the counter: of arrays, because scalars of NumPy warn where they wrap."""
    return seed[..., 0:1], seed[..., 1:2]


def child(xp: Any, seed: Any, number: Any) -> Any:
    """The seed that has this number, an array of one uint32, among those made of `seed`: shape (..., 2)."""
    counter = xp.reshape(number, (1,)).astype(np.uint32)
    return xp.concatenate(threefry(xp, _words(seed), (counter, np.full(1, _CHILD, np.uint32))), axis=-1)


def split(xp: Any, seed: Any, n: int) -> Any:
    """The first `n` seeds that are made of `seed`: shape (..., n, 2)."""
    counter = np.arange(n, dtype=np.uint32), np.full(n, _CHILD, np.uint32)
    return xp.stack(threefry(xp, _words(seed), counter), axis=-1)


def bits(xp: Any, seed: Any, count: int) -> Any:
    """`count` words of 32 random bits: uint32 of the shape (..., count)."""
    blocks = (count + 1) // 2
    # Of the array module: a constant of XLA would take as much memory and time to compile as there are elements.
    counter = xp.arange(blocks, dtype=np.uint32), xp.full(blocks, _DRAW, dtype=np.uint32)
    pair = xp.stack(threefry(xp, _words(seed), counter), axis=-1)
    return xp.reshape(pair, pair.shape[:-2] + (2 * blocks,))[..., :count]


def uniform(xp: Any, seed: Any, count: int) -> Any:
    """`count` float32 from 0 to below 1: the multiples of 2^-24, all equally likely."""
    return (bits(xp, seed, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(xp: Any, seed: Any, count: int) -> Any:
    """`count` float32 of the standard normal distribution, by the method of Box and Muller.

    The bits agree on all array modules. Logarithm, sine and cosine may differ in the last place.
    """
    pairs = (count + 1) // 2
    u = uniform(xp, seed, 2 * pairs)
    # 1 - u is above 0, and exact.
    radius = xp.sqrt(np.float32(-2.0) * xp.log(np.float32(1.0) - u[..., 0::2]))
    angle = np.float32(2.0 * np.pi) * u[..., 1::2]
    pair = xp.stack([radius * xp.cos(angle), radius * xp.sin(angle)], axis=-1)
    return xp.reshape(pair, pair.shape[:-2] + (2 * pairs,))[..., :count]
