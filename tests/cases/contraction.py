"""Rows of convolution and pooling, and their definitions in 64 bits."""
import itertools
from typing import Any, Iterator, Sequence, Tuple

import numpy as np
from references import REFERENCES

from .table import LINEAR, P, inf, nan, row, values

LINEAR.update(conv=[(0,), (1,)], sum_pool=[(0,)])


# ---------------------------------------------------------------------------- definitions
def windows(sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], low: Sequence[int],
            high: Sequence[int], x_dilation: Sequence[int], dilation: Sequence[int]) -> Iterator[Tuple[Any, Any, Any]]:
    """Each place of the window, each element of it, and the element of the samples that it lies on, if any."""
    room = [(n - 1) * d + 1 + lo + hi if n else lo + hi for n, d, lo, hi in zip(sizes, x_dilation, low, high)]
    starts = [range(0, r - (k - 1) * d, s) for r, k, d, s in zip(room, window, dilation, strides)]
    for place in itertools.product(*(range(len(r)) for r in starts)):
        for element in np.ndindex(*window):
            at = [r[i] + e * d - lo for r, i, e, d, lo in zip(starts, place, element, dilation, low)]
            inside = all(a % d == 0 and 0 <= a // d < n for a, d, n in zip(at, x_dilation, sizes))
            yield place, element, tuple(a // d for a, d in zip(at, x_dilation)) if inside else None


def counts(places: Sequence[Tuple[int, ...]], rank: int) -> Tuple[int, ...]:
    return tuple(max((place[i] + 1 for place in places), default=0) for i in range(rank))


def conv(p: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    rank, g = x.ndim - 2, p.groups
    found = list(windows(x.shape[2:], w.shape[2:], p.strides, p.low, p.high, p.x_dilation, p.w_dilation))
    out = np.zeros((x.shape[0], w.shape[0]) + counts([place for place, *_ in found], rank))
    if not out.size:
        room = [(n - 1) * d + 1 + lo + hi for n, d, lo, hi in zip(x.shape[2:], p.x_dilation, p.low, p.high)]
        sizes = [max((r - (k - 1) * d - 1) // s + 1, 0) for r, k, d, s in zip(
            room, w.shape[2:], p.w_dilation, p.strides)]
        return np.zeros((x.shape[0], w.shape[0], *sizes))
    inputs, outputs = x.shape[1] // g, w.shape[0] // g
    for place, element, at in found:
        for group in range(g) if at is not None else ():
            these = slice(group * outputs, (group + 1) * outputs)
            samples = x[(slice(None), slice(group * inputs, (group + 1) * inputs), *at)]
            kernels = w[(these, slice(None), *element)]
            out[(slice(None), these, *place)] += (samples[:, None, :] * kernels[None]).sum(-1)
    return out


def pool(p: Any, x: np.ndarray, x_dilation: Sequence[int], start: float, combine: Any) -> np.ndarray:
    rank = x.ndim - 2
    found = list(windows(x.shape[2:], p.window, p.strides, p.low, p.high, x_dilation, p.dilation))
    out = np.full(x.shape[:2] + counts([place for place, *_ in found], rank), start)
    for place, _, at in found:
        if at is not None:
            where = (slice(None), slice(None), *place)
            out[where] = combine(out[where], x[(slice(None), slice(None), *at)])
    return out


REFERENCES.update(
    conv=conv, sum_pool=lambda p, x: pool(p, x, p.x_dilation, 0.0, np.add),
    max_pool=lambda p, x: pool(p, x, (1,) * (x.ndim - 2), -inf, np.maximum))

# ---------------------------------------------------------------------------- convolution
ONE, NO = (1,), (0,)
row(P.Conv(ONE, NO, NO, ONE, ONE), "f32[1,1,4]", "f32[1,1,2]")
row(P.Conv(ONE, NO, NO, ONE, ONE), "f32[2,2,4]", "f32[3,2,3]")
row(P.Conv((2,), (1,), (2,), ONE, ONE), "f32[1,2,4]", "f32[2,2,3]")
row(P.Conv((3,), NO, (1,), ONE, ONE), "f32[1,1,6]", "f32[1,1,2]")
row(P.Conv(ONE, (2,), (1,), (2,), ONE), "f32[1,2,3]", "f32[2,2,2]")
row(P.Conv(ONE, (1,), (2,), (3,), ONE), "f32[2,1,3]", "f32[2,1,3]")
row(P.Conv((2,), (1,), NO, (3,), (2,)), "f32[1,1,4]", "f32[1,1,2]")
row(P.Conv(ONE, (3,), (4,), (2,), ONE), "f32[1,1,3]", "f32[1,1,2]")  # padding beyond what a transpose takes
row(P.Conv((2,), (-1,), (-1,), ONE, ONE), "f32[1,1,7]", "f32[1,1,2]")
row(P.Conv(ONE, (-2,), (1,), (2,), ONE), "f32[1,1,4]", "f32[1,1,3]")
row(P.Conv(ONE, (-5,), (9,), ONE, ONE), "f32[1,1,3]", "f32[1,1,2]")  # all of the samples cut off
row(P.Conv(ONE, NO, NO, ONE, (3,)), "f32[1,1,7]", "f32[2,1,3]")
row(P.Conv(ONE, (1,), (1,), ONE, ONE, 2), "f32[1,4,3]", "f32[2,2,2]")
row(P.Conv((2,), (1,), NO, ONE, ONE, 2), "f32[2,2,4]", "f32[4,1,2]")
row(P.Conv(ONE, (1,), (1,), (2,), ONE, 3), "f32[1,3,2]", "f32[6,1,2]")
row(P.Conv((1, 1), (0, 0), (0, 0), (1, 1), (1, 1)), "f32[1,2,3,3]", "f32[2,2,2,2]")
row(P.Conv((2, 1), (1, 0), (0, 1), (1, 1), (1, 2)), "f32[1,1,4,3]", "f32[2,1,3,2]")
row(P.Conv((1, 1), (1, 1), (1, 0), (2, 1), (1, 1), 2), "f32[1,2,2,3]", "f32[2,1,2,2]")
row(P.Conv((1, 3), (0, 2), (0, 1), (1, 2), (2, 1)), "f32[2,1,3,3]", "f32[1,1,2,2]")
row(P.Conv((1, 2, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1), (1, 1, 1)), "f32[1,1,2,3,2]", "f32[2,1,2,2,1]")
row(P.Conv((1, 1, 1), (0, 1, 1), (0, 1, 0), (1, 2, 1), (1, 1, 2), 2), "f32[1,2,2,2,2]", "f32[2,1,1,2,2]")
row(P.Conv(ONE, NO, NO, ONE, ONE), "f16[1,2,4]", "f16[2,2,2]")
row(P.Conv((2,), (1,), (1,), (1,), ONE, 2), "f16[1,2,4]", "f16[2,1,3]")
row(P.Conv(ONE, (1,), NO, (2,), ONE), "f16[1,1,3]", "f16[1,1,2]")
row(P.Conv(ONE, NO, NO, ONE, ONE), "~f32[1,1,2]", "~f32[1,1,2]")
row(P.Conv(ONE, NO, NO, ONE, ONE), "f32[0,2,3]", "f32[1,2,2]")
row(P.Conv(ONE, NO, NO, ONE, ONE), "f32[1,2,3]", "f32[0,2,2]")
row(P.Conv(ONE, NO, NO, ONE, ONE), "f32[1,0,3]", "f32[2,0,2]")
row(P.Conv((2,), NO, NO, ONE, ONE), "f32[1,1,2]", "f32[1,1,3]")  # no place for the kernel
row(P.Conv(ONE, NO, NO, ONE, ONE), np.array([[[2048] + [1] * 8]], np.float16), np.ones((1, 1, 9), np.float16))
row(P.Conv(ONE, NO, NO, ONE, ONE), np.full((1, 1, 4), 300, np.float16), np.full((1, 1, 4), 300, np.float16),
    kind="edge")
row(P.Conv(ONE, (1,), NO, (2,), ONE), np.array([[[inf, 1, nan]]], np.float32), np.array([[[1, 2]]], np.float32),
    kind="values")

# ---------------------------------------------------------------------------- pooling
row(P.SumPool((2,), (2,), NO, NO, ONE, ONE), "f32[1,2,4]")
row(P.SumPool((3,), (2,), (1,), (1,), ONE, ONE), "f32[1,1,5]")
row(P.SumPool((2,), ONE, (1,), (2,), (3,), ONE), "f32[2,1,3]")
row(P.SumPool((2,), (2,), (-1,), (1,), (2,), (2,)), "f32[1,1,5]")
row(P.SumPool((2, 2), (1, 2), (0, 1), (1, 0), (1, 1), (1, 1)), "f32[1,2,3,3]")
row(P.SumPool((2, 1, 2), (1, 1, 1), (0, 0, 0), (0, 1, 0), (1, 1, 1), (1, 1, 2)), "f32[1,1,2,2,3]")
row(P.SumPool((2,), ONE, NO, NO, ONE, ONE), "f16[1,2,4]")
row(P.SumPool((2,), ONE, NO, NO, ONE, ONE), "~f32[1,1,2]")
row(P.SumPool((2,), ONE, NO, NO, ONE, ONE), "f32[0,1,3]")
values(P.SumPool((3,), ONE, NO, NO, ONE, ONE), [[[60000, 60000, -60000, 1, 2048, 1]]], "f16")
values(P.SumPool((2,), ONE, (1,), NO, ONE, ONE), [[[inf, 1, nan, 2, 3, -inf]]], "f32")
row(P.MaxPool((2,), (2,), NO, NO, ONE), "f32[1,2,4]")
row(P.MaxPool((3,), (2,), (1,), (1,), ONE), "f32[1,1,5]")
row(P.MaxPool((2,), (2,), (1,), NO, ONE), "f32[2,1,5]")
row(P.MaxPool((2,), ONE, (1,), (1,), (2,)), "f32[1,1,5]")
row(P.MaxPool((2, 2), (2, 2), (0, 0), (0, 0), (1, 1)), "f32[1,2,4,5]")
row(P.MaxPool((2, 3), (1, 2), (1, 1), (0, 1), (1, 1)), "f32[1,1,3,4]")
row(P.MaxPool((2, 1, 2), (1, 1, 2), (0, 0, 1), (0, 0, 0), (1, 1, 1)), "f32[1,1,2,2,3]")
row(P.MaxPool((2,), (2,), NO, NO, ONE), "f16[1,2,5]")
row(P.MaxPool((2,), ONE, NO, NO, ONE), "~f32[1,1,3]")
row(P.MaxPool((2,), ONE, NO, NO, ONE), "f32[0,1,3]")
row(P.MaxPool((4,), ONE, NO, NO, ONE), "f32[1,1,3]")  # no place for the window
values(P.MaxPool((3,), ONE, (1,), (1,), ONE), [[[1, 3, 3, 3, 2, 2, -inf, -inf, -inf, 0.0]]], "f32")
values(P.MaxPool((2,), (2,), (1,), (1,), ONE), [[[-inf, -inf, nan, nan, inf, -inf]]], "f32")
values(P.MaxPool((2,), ONE, (1,), NO, (2,)), [[[nan, 1, 2, 2, 2, inf]]], "f32")
values(P.MaxPool((2, 2), (2, 2), (0, 0), (0, 0), (1, 1)), [[[[1, 1, 0, 5], [1, 1, 5, 0]]]], "f16")
