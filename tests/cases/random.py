"""Rows of the random primitives. What is drawn is defined by Threefry, written here with Python's integers."""
import math
from typing import Any, List, Tuple

import numpy as np
from references import REFERENCES

from .table import LINEAR, P, row

KEY = np.array([3, 4000000000], np.uint32)
KEYS = np.array([[0, 0], [1, 2], [2 ** 32 - 1, 7]], np.uint32)
MASK = 2 ** 32 - 1


def encrypted(key: Any, counter: Tuple[int, int]) -> Tuple[int, int]:
    """Threefry 2x32, 20 rounds, of one counter."""
    ks = [int(key[0]), int(key[1])]
    ks.append(ks[0] ^ ks[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + ks[0]) & MASK, (counter[1] + ks[1]) & MASK
    for i, r in enumerate([13, 15, 26, 6, 17, 29, 16, 24] * 2 + [13, 15, 26, 6]):
        x = (x + y) & MASK
        y = ((y << r | y >> (32 - r)) & MASK) ^ x
        if i % 4 == 3:
            n = i // 4 + 1
            x, y = (x + ks[n % 3]) & MASK, (y + ks[(n + 1) % 3] + n) & MASK
    return x, y


def drawn(key: Any, count: int) -> List[int]:
    return [encrypted(key, (i // 2, 0))[i % 2] for i in range(count)]


def for_each(key: np.ndarray, shape: Tuple[int, ...], f: Any, dtype: Any) -> np.ndarray:
    """f(key) of a shape for each key."""
    rows = [np.asarray(f(k), dtype).reshape(shape) for k in key.reshape(-1, 2)]
    return np.stack(rows).reshape(key.shape[:-1] + shape) if rows else np.zeros(key.shape[:-1] + shape, dtype)


def uniform(p: Any, key: np.ndarray) -> np.ndarray:
    return for_each(key, p.shape, lambda k: [w // 256 / 2 ** 24 for w in drawn(k, math.prod(p.shape))], float)


def normal(p: Any, key: np.ndarray) -> np.ndarray:
    def one(k: Any) -> List[float]:
        n = math.prod(p.shape)
        u = [w // 256 / 2 ** 24 for w in drawn(k, n + n % 2)]
        out = []
        for a, b in zip(u[::2], u[1::2]):
            r = math.sqrt(-2 * math.log(1 - a))
            out += [r * math.cos(2 * math.pi * b), r * math.sin(2 * math.pi * b)]
        return out[:n]
    return for_each(key, p.shape, one, float)


def dropout(p: Any, x: np.ndarray, key: np.ndarray) -> np.ndarray:
    limit = min(round(p.rate * 2 ** 32), MASK)
    keep = for_each(key, p.shape, lambda k: [w >= limit for w in drawn(k, math.prod(p.shape))], bool)
    return np.where(np.broadcast_to(keep, x.shape), x / (1 - p.rate), 0.0)


REFERENCES.update({
    "random_uniform": uniform, "random_normal": normal, "dropout": dropout,
    "split_key": lambda p, key: for_each(
        key, (p.count, 2), lambda k: [encrypted(k, (i, 1)) for i in range(p.count)], np.int64),
    "child_key": lambda p, key, number: np.array(
        [encrypted(k, (int(n), 1)) for k, n in zip(key.reshape(-1, 2), number.reshape(-1))]).reshape(key.shape),
})
LINEAR["dropout"] = [(0,)]

for draw in (P.RandomUniform, P.RandomNormal):
    for shape in ((), (5,), (2, 3), (0,), (2, 0)):
        row(draw(shape), KEY, kind="values")
    row(draw((2, 2)), KEYS, kind="values")
    row(draw((3,)), KEYS.reshape(1, 3, 2), kind="values")
for count in (1, 2, 5):
    row(P.SplitKey(count), KEY, kind="values")
row(P.SplitKey(3), KEYS, kind="values")
row(P.ChildKey(), KEY, np.uint32(0), kind="values")
row(P.ChildKey(), KEY, np.uint32(2 ** 32 - 1), kind="values")
row(P.ChildKey(), KEYS, np.array([5, 6, 7], np.uint32), kind="values")
row(P.Dropout(0.5, (2, 3)), "f32[2,3]", KEY)
row(P.Dropout(0.25, (4,)), "f16[4]", KEY)
row(P.Dropout(0.0, (4,)), "f32[4]", KEY)
row(P.Dropout(0.3, (1, 5)), "f32[4,5]", KEY)
row(P.Dropout(0.3, (1, 1)), "f32[4,5]", KEY)
row(P.Dropout(0.9, (2, 4)), "f32[3,2,4]", KEYS)
row(P.Dropout(0.5, (1, 4)), "f16[3,2,4]", KEYS)
row(P.Dropout(0.5, ()), "f32[]", KEY)
row(P.Dropout(0.5, ()), "f32[3]", KEYS)
row(P.Dropout(0.5, (0, 2)), "f32[0,2]", KEY)
row(P.Dropout(0.5, (6,)), np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38], np.float32), KEY, kind="edge")
