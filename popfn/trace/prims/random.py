"""Random numbers: functions of a key, a pair of uint32, and of nothing else.

The bits are those of Threefry 2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011):
the key encrypts a counter of two words, the place of an element and what is drawn. popfn's host implementation of PopXL
counts alike, so that a program draws the same bits wherever it runs there; on an IPU the generator is the chip's own.

A key may have leading axes, for lanes of vmap: then there is one draw for each of them.
"""
from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence, Tuple

import numpy as np

from ..aval import Aval, Shape, accumulator_dtype, float32, uint32
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis, Primitive
from ..tracer import aval_of, bind
from . import lowering
from .shaping import Dims, LinearOp, check_dtype, in_lanes, interned, moved, to_front

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
#: The counter's second word: what is drawn from a key, and keys made of it.
DRAW, CHILD = 0, 1


def threefry(key: np.ndarray, first: np.ndarray, second: int) -> Tuple[np.ndarray, np.ndarray]:
    """The encrypted counters, for keys (..., 2) and first words (n,): two words of shape (..., n)."""
    k0, k1 = key[..., 0:1].astype(np.uint32), key[..., 1:2].astype(np.uint32)
    schedule = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x = first.astype(np.uint32) + k0
    y = np.full(first.shape, second, np.uint32) + k1
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << np.uint32(r)) | (y >> np.uint32(32 - r))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def words(key: np.ndarray, count: int) -> np.ndarray:
    """The first `count` random words of keys (..., 2): uint32 of shape (..., count)."""
    pairs = np.stack(threefry(key, np.arange((count + 1) // 2), DRAW), -1)
    return pairs.reshape(key.shape[:-1] + (-1,))[..., :count]


def fractions(key: np.ndarray, count: int) -> np.ndarray:
    """`count` multiples of 2^-24 from 0 to below 1 for each key, float32."""
    return (words(key, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0 ** -24)


def check_key(name: str, key: Aval) -> Shape:
    """The leading axes of a key. Raises DtypeError or ShapeError for what is none."""
    if key.dtype != uint32:
        raise DtypeError(f"{name} takes a key, uint32[2], got {key}: make one with pf.random.key(seed)")
    if not key.ndim or key.shape[-1] != 2:
        raise ShapeError(f"{name} takes a key, uint32[2], got {key}: make one with pf.random.key(seed)")
    return key.shape[:-1]


class Draw(Primitive):
    """Something drawn from one key for each of its leading axes."""

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return bind(self, (to_front(args[0], dims[0]),)), 0

    def lower(self, px: Any, key: Any) -> Any:
        return for_each_key(px, lambda k: self.lower_one(px, k), key)

    @abc.abstractmethod
    def lower_one(self, px: Any, key: Any) -> Any:
        """The lowering for one key."""


def for_each_key(px: Any, f: Callable[..., Any], key: Any, *others: Any) -> Any:
    """`f(key, *others)` for each of the keys, whose leading axes the others have too: PopXL takes one key at a time."""
    lead = tuple(key.shape[:-1])
    if not lead:
        return f(key, *others)
    count = math.prod(lead)
    rows = [lowering.reshape(px, t, (count, *t.shape[len(lead):])) for t in (key, *others)]
    parts = []
    for i in range(count):
        one = f(*(lowering.reshape(px, px.ops.slice(t, [i], [i + 1], None, [0]), t.shape[1:]) for t in rows))
        parts.append(lowering.reshape(px, one, (1, *one.shape)))
    together = px.ops.concat(parts, 0) if count > 1 else parts[0]
    return lowering.reshape(px, together, (*lead, *together.shape[1:]))


@dataclass(frozen=True)
class RandomUniform(Draw):
    """float32 from 0 to below 1, multiples of 2^-24, all equally likely."""

    shape: Shape

    def abstract(self, key: Aval) -> Aval:
        return Aval._make(check_key("random_uniform", key) + self.shape, float32, False)

    def eval(self, key: np.ndarray) -> Any:
        return fractions(key, math.prod(self.shape)).reshape(key.shape[:-1] + self.shape)

    def lower_one(self, px: Any, key: Any) -> Any:
        return px.ops.random_uniform(key, self.shape)


@dataclass(frozen=True)
class RandomNormal(Draw):
    """float32 of the standard normal distribution.

    By pairs, sqrt(-2 log(1 - u)) times the cosine and the sine of 2 pi v (Box and Muller, 1958).
    """

    shape: Shape

    def abstract(self, key: Aval) -> Aval:
        return Aval._make(check_key("random_normal", key) + self.shape, float32, False)

    def eval(self, key: np.ndarray) -> Any:
        count = math.prod(self.shape)
        u = fractions(key, count + count % 2)
        radius = np.sqrt(np.float32(-2) * np.log(np.float32(1) - u[..., ::2]))
        turn = np.float32(2 * np.pi) * u[..., 1::2]
        pairs = np.stack([radius * np.cos(turn), radius * np.sin(turn)], -1)
        return pairs.reshape(key.shape[:-1] + (-1,))[..., :count].reshape(key.shape[:-1] + self.shape)

    def lower_one(self, px: Any, key: Any) -> Any:
        return px.ops.random_normal(key, self.shape)


@dataclass(frozen=True)
class SplitKey(Draw):
    """`count` new keys, of shape (count, 2)."""

    count: int

    def abstract(self, key: Aval) -> Aval:
        return Aval._make(check_key("split_key", key) + (self.count, 2), uint32, False)

    def eval(self, key: np.ndarray) -> Any:
        return np.stack(threefry(key, np.arange(self.count), CHILD), -1)

    def lower_one(self, px: Any, key: Any) -> Any:
        keys = [lowering.reshape(px, k, (1, 2)) for k in px.ops.split_random_seed(key, self.count)]
        return px.ops.concat(keys, 0) if len(keys) > 1 else keys[0]


@dataclass(frozen=True)
class ChildKey(Primitive):
    """The new key that a number gives: one uint32 for each key."""

    def abstract(self, key: Aval, number: Aval) -> Aval:
        lead = check_key("child_key", key)
        if number.dtype != uint32 or number.shape != lead:
            raise ShapeError(f"child_key: the number is one uint32 for each key, got {number} for {key}")
        return Aval._make(key.shape, uint32, False)

    def eval(self, key: np.ndarray, number: np.ndarray) -> Any:
        return np.stack(threefry(key, number[..., None], CHILD), -1)[..., 0, :]

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return bind(self, tuple([in_lanes(x, d, axis) for x, d in zip(args, dims)])), 0

    def lower(self, px: Any, key: Any, number: Any) -> Any:
        return for_each_key(px, px.ops.random_seed.create_random_seed, key, number)


@dataclass(frozen=True)
class Dropout(LinearOp):
    """Zero with a probability of `rate` and x / (1 - rate) otherwise, by one draw for each element of `shape`.

    The key's leading axes are x's first ones; `shape` broadcasts to the others. The derivative draws the mask again
    instead of keeping it.
    """

    rate: float
    shape: Shape

    def abstract(self, x: Aval, key: Aval) -> Aval:
        check_dtype("dropout", x, "f")
        lead = check_key("dropout", key)
        if not 0 <= self.rate < 1:
            raise ShapeError(f"dropout: the rate is a probability below 1, got {self.rate}")
        rest = x.shape[len(lead):]
        if x.shape[:len(lead)] != lead or len(self.shape) != len(rest) or any(
                n not in (1, m) for n, m in zip(self.shape, rest)):
            raise ShapeError(f"dropout: a mask of shape {self.shape} for each of the keys {key} does not fit {x}")
        return x

    def eval(self, x: np.ndarray, key: np.ndarray) -> Any:
        drawn = words(key, math.prod(self.shape)).reshape(key.shape[:-1] + self.shape)
        keep = drawn >= np.uint32(min(round(self.rate * 2 ** 32), 2 ** 32 - 1))
        wide = accumulator_dtype(x.dtype)
        scaled = (x.astype(wide) * wide.type(1 / (1 - self.rate))).astype(x.dtype)
        return np.where(keep, scaled, x.dtype.type(0))

    def transpose(self, ct: Any, x: Linear, key: Any) -> Tuple[Any, ...]:
        return bind(self, (ct, key)), None

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, key), (i, j) = args, dims
        if j is not None:
            return bind(self, (in_lanes(x, i, axis), to_front(key, j))), 0
        dim = aval_of(key).ndim - 1  # one draw serves all lanes: the mapped axis comes behind those of the keys
        return bind(interned(Dropout, self.rate, (1, *self.shape)), (moved(x, i, dim), key)), dim

    def lower(self, px: Any, x: Any, key: Any) -> Any:
        def one(key: Any, x: Any) -> Any:
            if tuple(x.shape) == self.shape:
                return px.ops.dropout(x, key, self.rate)
            return px.ops.shaped_dropout(x, key, self.shape, self.rate)
        return for_each_key(px, one, key, x)


def random_uniform(key: Any, shape: Shape) -> Any: return bind(interned(RandomUniform, shape), (key,))
def random_normal(key: Any, shape: Shape) -> Any: return bind(interned(RandomNormal, shape), (key,))
def split_key(key: Any, count: int) -> Any: return bind(interned(SplitKey, count), (key,))
def child_key(key: Any, number: Any) -> Any: return bind(_CHILD_KEY, (key, number))


_CHILD_KEY = ChildKey()


def dropout(x: Any, key: Any, rate: float, shape: Shape) -> Any:
    """Dropout."""
    return bind(interned(Dropout, rate, shape), (x, key))
