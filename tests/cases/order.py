"""Rows of sorting and of scans along an axis, with their definitions in 64 bits."""
import functools
import math
from typing import Any, Callable, List, Tuple

import numpy as np
from references import REFERENCES

from .table import LINEAR, ULPS, P, inf, nan, row, values

LINEAR["cumsum"] = [(0,)]
ULPS.update(cumprod=8, cumlogsumexp=8)


# ---------------------------------------------------------------------------- definitions
def in_lanes(f: Callable[[List[Any]], List[Any]], axis: int, x: np.ndarray, dtype: Any = None) -> np.ndarray:
    """`f` of the elements along an axis as a list, for every lane."""
    out = np.empty(x.shape, x.dtype if dtype is None else dtype)
    for lane in np.ndindex(*x.shape[:axis], *x.shape[axis + 1:]):
        at = (*lane[:axis], slice(None), *lane[axis:])
        out[at] = f(x[at].tolist())
    return out


def order(line: List[Any]) -> List[int]:
    """By NaN or not, then by value, then by place."""
    def before(i: int, j: int) -> int:
        a, b = line[i], line[j]
        if (a != a) != (b != b):
            return 1 if a != a else -1
        return -1 if a < b else 1 if a > b else i - j
    return sorted(range(len(line)), key=functools.cmp_to_key(before))


def leaders(line: List[Any]) -> List[int]:
    """For each place the first of the largest up to it; the first NaN is the largest."""
    best: List[int] = []
    for i, v in enumerate(line):
        top = line[best[-1]] if best else None
        best.append(i if not best or top == top and (v > top or v != v) else best[-1])
    return best


def sort(p: Any, x: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    return in_lanes(lambda line: [line[i] for i in order(line)], p.axis, x), in_lanes(order, p.axis, x, np.int64)


def topk(p: Any, x: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Each time the first of the largest of what is left."""
    lanes = np.moveaxis(x, p.axis, -1)
    places = np.zeros((*lanes.shape[:-1], p.k), np.int64)
    for at in np.ndindex(*lanes.shape[:-1]):
        left = list(range(x.shape[p.axis]))
        for n in range(p.k):
            places[at][n] = left.pop(leaders([lanes[at][i] for i in left])[-1])
    return tuple(np.moveaxis(y, -1, p.axis) for y in (np.take_along_axis(lanes, places, -1), places))


def cummax(p: Any, x: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    return in_lanes(lambda line: [line[i] for i in leaders(line)], p.axis, x), in_lanes(leaders, p.axis, x, np.int64)


def prefixes(f: Callable[[List[Any]], Any]) -> Callable[[Any, np.ndarray], np.ndarray]:
    """`f` of the elements up to each."""
    return lambda p, x: in_lanes(lambda line: [f(line[:i + 1]) for i in range(len(line))], p.axis, x)


def logsumexp(line: List[float]) -> float:
    top = max(line)
    if any(v != v for v in line) or math.isinf(top):
        return sum(line) if any(v != v for v in line) else top
    return top + math.log(math.fsum(math.exp(v - top) for v in line))


REFERENCES.update(sort=sort, topk=topk, cummax=cummax, cumsum=prefixes(lambda line: np.sum(line)),
                  cumprod=prefixes(lambda line: np.prod(line)), cumlogsumexp=prefixes(logsumexp))

# ---------------------------------------------------------------------------- rows
TIES = [[1, nan, 1, nan, -inf], [inf, nan, inf, 0, -0.0], [-0.0, 0.0, 2, 2, -0.0], [nan, 1, 0, -1, inf]]
for f in (P.Sort, P.Cummax, P.Cumsum, P.Cumprod, P.Cumlogsumexp):
    row(f(0), "f32[5]")
    row(f(1), "f32[2,3]")
    row(f(1), "f32[2,4,2]")
    row(f(0), "f32[1,2]")
    row(f(0), "f32[0]")
    row(f(1), "f32[0,3]")
    row(f(0), "f16[6]")
    row(f(1), "f16[2,5]")
    values(f(1), TIES, "f32")
    values(f(1), TIES, "f16")
for f in (P.Cumsum, P.Cumprod, P.Cumlogsumexp):
    row(f(0), "~f32[3]")
for f in (P.Sort, P.Cummax, P.Cumsum, P.Cumprod):
    row(f(0), "i32[5]")
    row(f(1), "u8[2,5]")
    values(f(1), [[3, -128, 3, 127, -128], [0, 0, 1, -1, 0]], "i8")
    values(f(0), [2 ** 31 - 1, -2 ** 31, 0, -1, 2 ** 31 - 1], "i32")
    values(f(0), [2 ** 32 - 1, 0, 2 ** 31, 7, 2 ** 31 - 1], "u32")
    values(f(0), [40000, 3, 65535, 3], "u16")
LONG = np.array([math.sin(7.0 * i) for i in range(200)]).round(1)  # with many ties
for n in (64, 65, 200):  # a block, two, and four: see prims/order.py
    values(P.Sort(0), np.where(np.arange(n) % 11 == 3, nan, LONG[:n]), "f32", kind="values")
    values(P.Sort(1), [10 * LONG[:n], -10 * LONG[:n]], "i8", kind="values")
values(P.Sort(0), [[inf, -inf]] * 70 + [[nan, inf]], "f16", kind="values")
values(P.Sort(0), [2 ** 32 - 1] * 66 + [0] * 4, "u32", kind="values")
for f in (P.Cummax, P.Cumsum, P.Cumlogsumexp):
    values(f(0), LONG[:33], "f32", kind="values")
row(P.Topk(2, 0), "f32[5]")
row(P.Topk(1, 1), "f32[2,3]")
row(P.Topk(3, 1), "f32[2,4,2]")
row(P.Topk(4, 0), "f16[4,2]")
row(P.Topk(0, 0), "f32[3,2]")
row(P.Topk(2, 1), "f32[0,3]")
row(P.Topk(2, 1), "i32[3,4]")
row(P.Topk(2, 1), "~f32[1,3]", kind="values")
for k in (1, 3, 5):
    values(P.Topk(k, 1), TIES, "f32")
    values(P.Topk(k, 1), TIES, "f16")
values(P.Topk(3, 0), [3, -128, 3, 127, -128], "i8")
values(P.Topk(3, 0), [2 ** 32 - 1, 0, 2 ** 31, 7, 2 ** 31 - 1], "u32")
for k in (1, 7, 66, 200):
    values(P.Topk(k, 0), np.where(np.arange(200) % 80 == 13, nan, LONG), "f32", kind="values")
    values(P.Topk(k, 1), [LONG.round(0), -LONG.round(0)], "f16", kind="values")
values(P.Topk(3, 0), [[nan, -inf, inf]] * 20 + [[inf, -inf, -inf]] * 50, "f32", kind="values")
values(P.Topk(30, 0), [[nan, -inf, inf]] * 20 + [[inf, -inf, -0.0], [0.0, 0.0, 0.0]] * 25, "f32", kind="values")
values(P.Topk(5, 0), [-3] * 66 + [7, 9, 9], "i32", kind="values")
values(P.Cumsum(0), [2048] + [1] * 8, "f16")
values(P.Cumsum(0), [60000, 60000, -60000, -59000], "f16")
values(P.Cumprod(0), [300, 300, 0.01, -2], "f16")
values(P.Cumprod(1), [[2, 0, 3, 4], [0, 5, 0, 2], [1.5, -2, 0, 0]], "f32", kind="smooth")
row(P.Cumprod(0), "f32[7] 0.5:2")
values(P.Cumlogsumexp(1), [[-inf, -inf, 0, 1], [1e4, 0, -1e4, 1e4], [inf, 0, inf, -inf], [-90, -95, 2, 2]], "f32")
values(P.Cumlogsumexp(0), [1, 1, 2, 2, 2.6931472], "f32", kind="smooth")  # ties, with derivatives of their own
values(P.Cumlogsumexp(0), [60000, 59900, -60000], "f16")
