"""popfn.random: random numbers as functions of a key.

A key is a uint32[2] array. The same key gives the same numbers, so each use needs a key of its own: `split` makes
several of one, `fold_in` one of a key and a number. popfn's host draws the same bits eagerly, jitted, on both engines
and for any number of replicas; on an IPU the generator is the chip's own, and only the distribution is promised.

>>> from popfn import random
>>> first, second = random.split(random.key(0))
>>> random.uniform(first, (2,))
Array([0.08062434, 0.08395094], dtype=float32)
"""
from __future__ import annotations

import math
from typing import Any, Callable, Optional, Union

import numpy as np

from . import numpy as pnp
from ._promotion import as_dtype, as_float, as_sizes, known, one_axis
from .trace import prims
from .trace.array import Array
from .trace.aval import Shape, broadcast_shapes, float16, float32, int32, uint32
from .trace.errors import ArgumentError, DtypeError, RangeError, ShapeError, message, user_source
from .trace.tracer import Tracer, aval_of

Sizes = Union[int, Shape]


# ---------------------------------------------------------------------------- keys
def key(seed: Any) -> Array:
    """The key of a seed, an integer from 0 to 2^64 - 1 or an integer scalar.

    Raises RangeError for a Python integer that is out of range, DtypeError for what is no integer.
    """
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if not 0 <= seed < 2 ** 64:
            raise RangeError(message(f"random.key takes a seed from 0 to 2^64 - 1, got {seed}", at=user_source(2)))
        return Array(np.array([int(seed) >> 32, int(seed) & 0xFFFFFFFF], np.uint32))
    aval = aval_of(seed)
    if aval.ndim or aval.dtype.kind not in "iu":
        raise DtypeError(message(f"random.key takes an integer, got {aval}", at=user_source(2)))
    low = prims.reshape(prims.convert(pnp.asarray(seed), uint32), (1,))
    return pnp.concat([pnp.zeros(1, dtype=uint32), low])


def split(key: Any, num: int = 2) -> Array:
    """`num` new keys, of shape (num, 2)."""
    key, num = _key("split", key), known("random.split: the number of keys", num)
    if not isinstance(num, (int, np.integer)) or num < 1:
        raise ArgumentError(message(f"random.split: the number of keys is 1 or more, got {num!r}", at=user_source(2)))
    return prims.split_key(key, int(num))


def fold_in(key: Any, data: Any) -> Array:
    """The new key that a key and an integer scalar give: one for each step of a loop, say."""
    key, aval = _key("fold_in", key), aval_of(data)
    if aval.ndim or aval.dtype.kind not in "iu":
        raise DtypeError(message(f"random.fold_in takes an integer scalar, got {aval}", at=user_source(2)))
    # The last of the keys that `split` could make, so that none of those is met again.
    own = prims.child_key(key, np.uint32(2 ** 32 - 1))
    return prims.child_key(own, prims.convert(pnp.asarray(data), uint32))


def _key(name: str, key: Any) -> Array:
    aval = aval_of(key)
    if aval.dtype != uint32 or aval.shape != (2,):
        way = "way out: make one with random.key(seed)"
        if aval.dtype == uint32 and aval.ndim > 1 and aval.shape[-1] == 2:
            way = "way out: take one of the keys, or map over them with pf.vmap"
        raise DtypeError(message(f"random.{name} takes a key, u32[2], got {aval}", way, at=user_source(3)))
    return pnp.asarray(key)


def _float(name: str, dtype: Any) -> np.dtype:
    dtype = as_dtype(dtype)
    if dtype not in (float16, float32):
        raise DtypeError(message(f"random.{name} gives float16 or float32, not {dtype.name}", at=user_source(3)))
    return dtype


def _check_known(name: str, text: str, holds: Callable[..., Any], *values: Any) -> None:
    """Raise RangeError if parameters that are all known while tracing do not meet a condition."""
    if not any(isinstance(v, Tracer) for v in values):
        seen = [np.asarray(v, np.float64) for v in values]
        if not np.all(holds(*seen)):
            raise RangeError(message(f"random.{name}: {text}: {', '.join(str(v.tolist()) for v in seen)}",
                                     at=user_source(3)))


# ---------------------------------------------------------------------------- distributions
def bits(key: Any, shape: Sizes = ()) -> Array:
    """Random uint32 of a shape, all equally likely."""
    halves = prims.random_uniform(_key("bits", key), (2, *as_sizes(shape)))
    whole = prims.convert(prims.convert(prims.floor(halves * 65536.0), int32), uint32)
    return whole[0] * 65536 + whole[1]


def uniform(key: Any, shape: Sizes = (), dtype: Any = float32, minval: Any = 0.0, maxval: Any = 1.0) -> Array:
    """Numbers from `minval` to below `maxval`, which broadcast to the shape; float32 has 24 random bits.

    Raises RangeError if the first bound is known to be above the second.
    """
    key, dtype, shape = _key("uniform", key), _float("uniform", dtype), as_sizes(shape)
    u = prims.random_uniform(key, shape)
    low, high = (prims.convert(pnp.asarray(v), float32) for v in (minval, maxval))
    _check_broadcast("uniform", shape, minval, maxval)
    _check_known("uniform", "minval is above maxval", np.less_equal, minval, maxval)
    y = pnp.astype(u * (high - low) + low, dtype)
    low, high = pnp.astype(low, dtype), pnp.astype(high, dtype)
    return pnp.where(y < high, y, low)  # rounding may reach the upper end, which does not belong to the range


def normal(key: Any, shape: Sizes = (), dtype: Any = float32) -> Array:
    """Numbers of the standard normal distribution."""
    key, dtype = _key("normal", key), _float("normal", dtype)
    return pnp.astype(prims.random_normal(key, as_sizes(shape)), dtype)


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Optional[Sizes] = None, dtype: Any = float32) -> Array:
    """Numbers of the standard normal distribution given that they lie between `lower` and `upper`.

    By default of the shape to which the bounds broadcast. Raises RangeError if the lower one is known to be above the
    other.
    """
    key, dtype = _key("truncated_normal", key), _float("truncated_normal", dtype)
    sizes = broadcast_shapes(aval_of(lower).shape, aval_of(upper).shape) if shape is None else as_sizes(shape)
    _check_broadcast("truncated_normal", sizes, lower, upper)
    _check_known("truncated_normal", "lower is above upper", np.less_equal, lower, upper)
    low, high = (prims.convert(pnp.asarray(v), float32) for v in (lower, upper))
    root = math.sqrt(2.0)
    a, b = pnp.erf(low / root), pnp.erf(high / root)
    y = root * _erf_inv(prims.random_uniform(key, sizes) * (b - a) + a)
    return pnp.astype(pnp.clip(y, low, high), dtype)


# erf^-1(x) = x p(w), w = -log((1 - x) (1 + x)): Giles, Approximating the erfinv function (2012), single precision.
_CENTRAL = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
            -0.00417768164, 0.246640727, 1.50140941)
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
         1.00167406, 2.83297682)


def _erf_inv(x: Array) -> Array:
    w = -pnp.log((1.0 - x) * (1.0 + x))
    central = w < 5.0
    w = pnp.where(central, w - 2.5, pnp.sqrt(w) - 3.0)
    p = pnp.where(central, _CENTRAL[0], _TAIL[0])
    for c, t in zip(_CENTRAL[1:], _TAIL[1:]):
        p = p * w + pnp.where(central, c, t)
    return pnp.where(pnp.abs(x) == 1.0, x * math.inf, p * x)


def bernoulli(key: Any, p: Any = 0.5, shape: Optional[Sizes] = None) -> Array:
    """True with probability `p`; bools of p's shape by default, to which p broadcasts otherwise.

    Raises RangeError for a p that is known and not within 0 and 1.
    """
    _check_known("bernoulli", "p lies within 0 and 1, got", lambda p: (p >= 0) & (p <= 1), p)
    key, p = _key("bernoulli", key), as_float(p)
    sizes = p.shape if shape is None else as_sizes(shape)
    _check_broadcast("bernoulli", sizes, p)
    return prims.lt(prims.random_uniform(key, sizes), prims.convert(p, float32))


def rademacher(key: Any, shape: Sizes = (), dtype: Any = float32) -> Array:
    """-1 and 1, equally likely."""
    return pnp.where(bernoulli(_key("rademacher", key), 0.5, shape), pnp.asarray(1, dtype), pnp.asarray(-1, dtype))


def randint(key: Any, shape: Sizes, minval: Any, maxval: Any, dtype: Any = int32) -> Array:
    """Integers from `minval` to below `maxval`, which broadcast to the shape.

    An integer is too likely by at most (maxval - minval) / 2^32 of its probability. Raises RangeError for known bounds
    between which there is no integer or that do not fit the dtype.
    """
    key, d, shape = _key("randint", key), as_dtype(dtype), as_sizes(shape)
    if d.kind not in "iu":
        raise DtypeError(message(f"random.randint gives integers, not {d.name}", at=user_source(2)))
    for name, value in (("minval", minval), ("maxval", maxval)):
        if not isinstance(value, int) and aval_of(value).dtype.kind not in "iu":
            raise DtypeError(message(f"random.randint: {name} is an integer, got {aval_of(value)}", at=user_source(2)))
    _check_broadcast("randint", shape, minval, maxval)
    limits = np.iinfo(d)
    known = not isinstance(minval, Tracer) and not isinstance(maxval, Tracer)
    if known:
        low, high = (np.asarray(v, np.int64) for v in (minval, maxval))
        if (low >= high).any() or (low < limits.min).any() or (high > int(limits.max) + 1).any():
            raise RangeError(message(f"random.randint: there are no {d.name} from {minval} to below {maxval}",
                                     at=user_source(2)))
    start = _wrapped_uint32(minval)
    span = prims.sub(_wrapped_uint32(maxval), start)
    # A span of 2^32 wraps to 0: then every word will do.
    drawn = bits(key, shape)
    drawn = prims.add(pnp.where(span == 0, drawn, prims.remainder(drawn, span)), start)
    return pnp.astype(prims.convert(drawn, int32) if d.kind == "i" else drawn, d)


def _wrapped_uint32(x: Any) -> Any:
    """Integers modulo 2^32."""
    if isinstance(x, (int, np.integer)):
        return pnp.asarray(np.uint32(int(x) % 2 ** 32))
    return prims.convert(pnp.asarray(x), uint32)


def exponential(key: Any, shape: Sizes = (), dtype: Any = float32) -> Array:
    """Numbers of the exponential distribution with mean 1."""
    key, dtype = _key("exponential", key), _float("exponential", dtype)
    return pnp.astype(-pnp.log1p(-prims.random_uniform(key, as_sizes(shape))), dtype)


def gumbel(key: Any, shape: Sizes = (), dtype: Any = float32) -> Array:
    """Numbers of the standard Gumbel distribution, -log(-log(u))."""
    key, dtype = _key("gumbel", key), _float("gumbel", dtype)
    return pnp.astype(_gumbel(key, as_sizes(shape)), dtype)


def _gumbel(key: Any, shape: Shape) -> Array:
    u = prims.random_uniform(key, shape) + 2.0 ** -25  # between 0 and 1, neither of which has a logarithm's logarithm
    return -pnp.log(-pnp.log(u))


def categorical(key: Any, logits: Any, axis: int = -1, shape: Optional[Sizes] = None) -> Array:
    """Indices along an axis of `logits`, drawn with probabilities softmax(logits); int32.

    The result has the logits' shape without the axis, which must broadcast to `shape` if that is given.
    """
    key, logits = _key("categorical", key), as_float(logits)
    axis = one_axis(axis, logits.ndim, "categorical")
    rest = logits.shape[:axis] + logits.shape[axis + 1:]
    sizes = rest if shape is None else as_sizes(shape)
    if not _fits(rest, sizes):
        raise ShapeError(message(f"random.categorical: logits {logits.aval} without axis {axis} do not broadcast to "
                                 f"shape {sizes}", at=user_source(2)))
    place = len(sizes) - len(rest) + axis
    noise = _gumbel(key, sizes[:place] + (logits.shape[axis],) + sizes[place:])
    return pnp.argmax(pnp.astype(logits, float32) + noise, axis=place)


def permutation(key: Any, x: Any, axis: int = 0) -> Array:
    """The parts of `x` along an axis in random order; of 0 ... x - 1 if x is a Python integer."""
    key = _key("permutation", key)
    x = x if np.ndim(x) else known("random.permutation: the number of elements", x)
    if isinstance(x, (int, np.integer)):
        x = pnp.arange(int(x))
    x = pnp.asarray(x)
    axis = one_axis(axis, x.ndim, "permutation")
    order = pnp.argsort(bits(key, (x.shape[axis],)))
    return pnp.take(x, order, axis=axis)


def choice(key: Any, a: Any, shape: Sizes = (), replace: bool = True, p: Any = None, axis: int = 0) -> Array:
    """Random parts of `a` along an axis (of 0 ... a - 1 if a is a Python integer), with probabilities `p`.

    Raises ArgumentError if more parts are wanted without replacement than there are, RangeError for probabilities that
    are known to be negative or all 0.
    """
    key, sizes = _key("choice", key), as_sizes(shape)
    a = a if np.ndim(a) else known("random.choice: the number of parts", a)
    a = pnp.arange(int(a)) if isinstance(a, (int, np.integer)) else pnp.asarray(a)
    axis = one_axis(axis, a.ndim, "choice")
    n, count = a.shape[axis], math.prod(sizes)
    if n < 1 or not replace and count > n:
        raise ArgumentError(message(f"random.choice: {count} of {n} parts", "way out: replace=True draws parts again"
                                    if n else None, at=user_source(2)))
    if p is not None and aval_of(p).shape != (n,):
        raise ShapeError(message(f"random.choice: one probability for each of {n} parts, got {aval_of(p)}",
                                 at=user_source(2)))
    if p is not None:
        _check_known("choice", "probabilities are 0 or more, and not all 0, got", lambda p: (p >= 0) & (p.sum() > 0), p)
    if p is None:
        index = randint(key, sizes, 0, n) if replace else pnp.reshape(permutation(key, n)[:count], sizes)
    elif replace:
        index = categorical(key, pnp.log(as_float(p)), shape=(*sizes,))
    else:  # the largest of log p + Gumbel noise: Efraimidis and Spirakis, 2006
        scores = pnp.log(as_float(p)) + _gumbel(key, (n,))
        index = pnp.reshape(pnp.argsort(-scores)[:count], sizes)
    return pnp.take(a, index, axis=axis)


def _fits(shape: Shape, into: Shape) -> bool:
    """Whether a shape broadcasts to another one."""
    try:
        return broadcast_shapes(shape, into) == into
    except ShapeError:
        return False


def _check_broadcast(name: str, shape: Shape, *values: Any) -> None:
    for v in values:
        if np.ndim(v) and not _fits(aval_of(v).shape, shape):
            raise ShapeError(message(f"random.{name}: {aval_of(v)} does not broadcast to shape {shape}",
                                     at=user_source(3)))
