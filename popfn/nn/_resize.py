"""Resizing of samples (batch, channels, *sizes)."""
from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from .. import numpy as pnp
from .._promotion import as_float, in_float32, known
from ..trace import prims
from ..trace.array import Array
from ..trace.errors import ArgumentError, ShapeError, message, user_source

#: Where the centre of an element of the result lies among those of the samples: f(index, scale, size, new size).
COORDINATES: Dict[str, Callable[[int, Fraction, int, int], Fraction]] = {
    "half_pixel": lambda i, scale, n, new: (i + Fraction(1, 2)) / scale - Fraction(1, 2),
    "pytorch_half_pixel": lambda i, scale, n, new:
        (i + Fraction(1, 2)) / scale - Fraction(1, 2) if new > 1 else Fraction(0),
    "align_corners": lambda i, scale, n, new: Fraction(i * (n - 1), max(new - 1, 1)),
    "asymmetric": lambda i, scale, n, new: i / scale,
}
ROUNDING: Dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda c: math.ceil(c - Fraction(1, 2)),
    "round_prefer_ceil": lambda c: math.floor(c + Fraction(1, 2)),
    "floor": math.floor,
    "ceil": math.ceil,
}
Numbers = Union[int, float, Sequence[Union[int, float]]]


def interpolate(x: Any, *, size: Union[None, int, Sequence[int]] = None, scale: Optional[Numbers] = None,
                mode: str = "nearest", coordinates: str = "half_pixel",
                rounding: str = "round_prefer_floor") -> Array:
    """Samples x (batch, channels, *sizes) resized to `size`, or to floor(sizes * scale): one number or one for each
    spatial axis. 0.1 is a tenth: a scale is the nearest fraction with a denominator of a million at most.

    An element of the result lies at a place among the samples' elements that `coordinates` gives, by ONNX's names:
    "half_pixel" (i + 0.5) / scale - 0.5, "pytorch_half_pixel" the same but 0 for a single element, "align_corners"
    i (size - 1) / (new size - 1), "asymmetric" i / scale. Mode "nearest" takes the element there, with a `rounding` of
    "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil"; "linear" mixes the two neighbours along each axis.
    Beyond the ends is the last element. Integers are taken as float32; float16 is mixed in float32.

    Raises ShapeError for sizes that do not fit the samples, ArgumentError for unknown words and if not one of size and
    scale is given.

    >>> import numpy as np
    >>> interpolate(np.array([[[0.0, 1.0]]]), scale=2)
    Array([[[0., 0., 1., 1.]]], dtype=float32)
    >>> interpolate(np.array([[[0.0, 1.0]]]), size=3, mode="linear", coordinates="align_corners")
    Array([[[0. , 0.5, 1. ]]], dtype=float32)
    """
    x = as_float(x)
    if x.ndim < 3:
        raise ShapeError(message(f"interpolate takes samples (batch, channels, *sizes), got {x.aval}",
                                 at=user_source(2)))
    for name, word, words in (("mode", mode, ("nearest", "linear")), ("coordinates", coordinates, tuple(COORDINATES)),
                              ("rounding", rounding, tuple(ROUNDING))):
        if word not in words:
            raise ArgumentError(message(f"interpolate: {name} is one of {', '.join(map(repr, words))}, got {word!r}",
                                        at=user_source(2)))
    plan = [(axis, *_places(n, new, by, coordinates)) for axis, (n, new, by) in enumerate(_sizes(x, size, scale), 2)]
    if mode == "nearest":
        for axis, n, at in plan:
            x = _read(x, axis, [min(max(ROUNDING[rounding](c), 0), n - 1) for c in at])
        return x

    def f(x: Array) -> Array:
        for axis, n, at in plan:
            at = [min(max(c, Fraction(0)), Fraction(n - 1)) for c in at]
            low = [math.floor(c) for c in at]
            share = np.array([float(c - i) for c, i in zip(at, low)], x.dtype)
            if not share.any():
                x = _read(x, axis, low)
                continue
            share = share.reshape((-1,) + (1,) * (x.ndim - axis - 1))
            weights = [prims.convert(Array.wrap(w, x.aval.with_shape(w.shape)), x.dtype) for w in (1 - share, share)]
            parts = _read(x, axis, low), _read(x, axis, [min(i + 1, n - 1) for i in low])
            x = prims.add(*(prims.safe_mul(part, weight) for part, weight in zip(parts, weights)))
        return x
    return in_float32(f, x)


def _sizes(x: Array, size: Any, scale: Any) -> List[Tuple[int, int, Fraction]]:
    """The size, the new size and the scale of each spatial axis."""
    if (size is None) == (scale is None):
        raise ArgumentError(message("interpolate takes either size or scale, got " +
                                    ("none" if size is None else "both"), at=user_source(3)))
    name, given = ("size", known("interpolate: the size", size)) if scale is None else ("scale", scale)
    number: Any = (int, np.integer) if scale is None else (int, float, np.integer, np.floating)
    rank = x.ndim - 2
    each = tuple(given) if isinstance(given, (tuple, list)) else (given,) * rank
    if not all(isinstance(n, number) and not isinstance(n, bool) for n in each):
        raise ArgumentError(message(f"interpolate: {name} is a number or one for each spatial axis, got {given!r}",
                                    at=user_source(3)))
    if len(each) != rank or not all(0 < n < math.inf for n in each):
        raise ShapeError(message(f"interpolate: {name} is above 0, one for each of the {rank} spatial axes of "
                                 f"{x.aval}, got {given!r}", at=user_source(3)))
    out = []
    for n, v in zip(x.shape[2:], each):
        by = Fraction(int(v), max(n, 1)) if scale is None else Fraction(float(v)).limit_denominator(10 ** 6)
        out.append((n, math.floor(n * by), by))
    if any(n < 1 or new < 1 for n, new, _ in out):
        raise ShapeError(message(f"interpolate: {x.aval} resized by {name} {given!r} has no elements",
                                 at=user_source(3)))
    return out


def _places(n: int, new: int, scale: Fraction, coordinates: str) -> Tuple[int, List[Fraction]]:
    """The size of an axis, and where the elements of the new one lie in it."""
    return n, [COORDINATES[coordinates](i, scale, n, new) for i in range(new)]


def _read(x: Array, axis: int, indices: List[int]) -> Array:
    """The elements at known indices along an axis."""
    n, new = x.shape[axis], len(indices)
    if new % n == 0 and indices == [i // (new // n) for i in range(new)]:  # each of them as often: no gather
        shape = x.shape[:axis] + (n, new // n) + x.shape[axis + 1:]
        x = prims.broadcast_to(pnp.expand_dims(x, axis=axis + 1), shape)
        return prims.reshape(x, shape[:axis] + (new,) + shape[axis + 2:])
    return pnp.take(x, np.array(indices, np.int32), axis=axis)
