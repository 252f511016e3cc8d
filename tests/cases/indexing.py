"""Rows of writing at indices, and of windows whose places are values. Those of take are in basic.py."""
from typing import Any, Callable

import numpy as np
import references
from references import read_index

from .table import LINEAR, P, inf, nan, row

LINEAR.update(scatter_set=[(0,), (2,), (0, 2)], scatter_add=[(0,), (2,), (0, 2)], dynamic_slice=[(0,)],
              dynamic_update_slice=[(0,), (1,), (0, 1)])


# ---------------------------------------------------------------------------- definitions
def scattering(f: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    """Each update in its turn: `f(element, update)` takes the element's place if the index is in range."""
    def scatter(p: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = np.moveaxis(np.array(x), p.axis, 0)
        lead = (slice(None),) * p.axis
        for at in np.ndindex(*indices.shape):
            i = int(indices[at])
            if -len(out) <= i < len(out):
                out[i] = f(out[i], updates[lead + at])
        return np.moveaxis(out, 0, p.axis)
    return scatter


def first_elements(p: Any, x: np.ndarray, sizes: Any, starts: np.ndarray) -> Any:
    """The indices that a window covers, for `np.ix_`."""
    ranges = [range(n) for n in x.shape]
    for a, n, start in zip(p.axes, sizes, starts):
        first = read_index(int(start), x.shape[a])
        first = min(first, x.shape[a] - n)
        ranges[a] = range(first, first + n)
    return np.ix_(*ranges)


def dynamic_slice(p: Any, x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return x[first_elements(p, x, p.sizes, starts)]


def dynamic_update_slice(p: Any, x: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
    out = np.array(x)
    out[first_elements(p, x, [update.shape[a] for a in p.axes], starts)] = update
    return out


references.REFERENCES.update(
    scatter_set=scattering(lambda a, u: u), scatter_add=scattering(np.add), scatter_max=scattering(np.maximum),
    scatter_min=scattering(np.minimum), dynamic_slice=dynamic_slice, dynamic_update_slice=dynamic_update_slice)

# ---------------------------------------------------------------------------- scatters
INDICES = np.array([[0, -1, 2], [5, -9, 1]], np.int32)  # negative, out of range on both sides
for f in (P.ScatterSet, P.ScatterAdd, P.ScatterMax, P.ScatterMin):
    row(f(0), "f32[4]", np.array([0, 3, 3, 1], np.int32), "f32[4]")
    row(f(0), "f32[3]", np.array(-2, np.int32), "f32[]")
    row(f(0), "f32[3,2]", np.array([1], np.uint8), "f32[1,2]")
    row(f(1), "f32[2,3]", np.array([[-4]], np.int32), "f32[2,1,1]")
    row(f(0), "f32[4,2]", INDICES, "f32[2,3,2]")
    row(f(1), "f32[2,3,2]", INDICES, "f32[2,2,3,2]")
    row(f(1), "f16[2,3]", np.array([2, 2, 2], np.int8), "f16[2,3]")
    row(f(0), "f32[3]", np.array([-2 ** 31, 2 ** 31 - 1, 3, -4], np.int32), "f32[4]")
    row(f(0), "f32[2]", np.array([2 ** 32 - 1, 0, 2], np.uint32), "f32[3]")
    row(f(0), "i32[3]", np.array([-1, 0, -1], np.int16), "i32[3]")
    row(f(0), "u8[200]", np.array([-1, -128, 127, 127], np.int8), "u8[4]")
    row(f(0), "i8[2,2]", np.array([1, 1], np.int32), "i8[2,2]")
    row(f(0), "f32[2,0]", np.array([1, 1], np.int32), "f32[2,0]")
    row(f(0), "f32[0]", np.array([0, -1], np.int32), "f32[2]")
    row(f(0), "f32[0]", np.zeros((0,), np.int32), "f32[0]")
    row(f(0), np.array([-0.0, 0.0, -0.0, nan, -inf, inf], np.float32), np.array([0, 1, 9, 3, 4, 5, 4], np.int32),
        np.array([-0.0, -0.0, 7, 1, nan, -inf, 2], np.float32), kind="edge")
    row(f(0), np.array([1, 2, 3], np.float32), np.array([0, 0, 1, 1, 2, -7], np.int32),  # ties, within and with x
        np.array([1, 1, 2, 5, 9, nan], np.float32), kind="edge")
    row(f(0), np.array([1, 2], np.float16), np.array([1, 1, 1], np.int32), np.array([2, 2, 2], np.float16), kind="edge")
row(P.ScatterSet(0), "bool[3]", np.array([2, 0, 2], np.int32), np.array([True, False, False]))
row(P.ScatterSet(0), "f16[3]", np.array([1, 1], np.int32), np.array([nan, -0.0], np.float16), kind="edge")
row(P.ScatterAdd(0), np.array([2048, 1], np.float16), np.array([0] * 8 + [2], np.int32),
    np.array([1] * 8 + [60000], np.float16), kind="edge")
row(P.ScatterAdd(0), np.array([100, -100], np.int8), np.array([0, 0, 1], np.int32), np.array([100, 100, -100], np.int8))

# ---------------------------------------------------------------------------- windows
for starts in ([0], [2], [-1], [-4], [9], [-9]):
    row(P.DynamicSlice((0,), (2,)), "f32[4]", np.array(starts, np.int32))
    row(P.DynamicUpdateSlice((0,)), "f32[4]", "f32[2]", np.array(starts, np.int32))
for starts in ([1, 1], [-2, 5], [-9, -1]):
    row(P.DynamicSlice((0, 2), (2, 1)), "f32[3,2,3]", np.array(starts, np.int32))
    row(P.DynamicSlice((2, 0), (2, 1)), "f16[2,2,3]", np.array(starts, np.int8))
    row(P.DynamicUpdateSlice((0, 2)), "f32[3,2,3]", "f32[2,2,1]", np.array(starts, np.int32))
    row(P.DynamicUpdateSlice((2, 0)), "f16[2,2,3]", "f16[1,2,2]", np.array(starts, np.int8))
row(P.DynamicSlice((1,), (3,)), "f32[2,3]", np.array([7], np.uint32))
row(P.DynamicSlice((0,), (1,)), "f32[3]", np.array([2 ** 32 - 1], np.uint32))
row(P.DynamicSlice((0,), (1,)), "f32[3]", np.array([-2 ** 31], np.int32))
row(P.DynamicSlice((0, 1), (1, 2)), "i32[2,3]", np.array([2 ** 32 - 1, 1], np.uint32))
row(P.DynamicSlice((0,), (1,)), "bool[3]", np.array([-2], np.int32))
row(P.DynamicSlice((0,), (0,)), "f32[3]", np.array([1], np.int32))
row(P.DynamicSlice((0,), (2,)), "u8[200,0]", np.array([-128], np.int8))
row(P.DynamicSlice((0,), (2,)), "u8[200]", np.array([-128], np.int8))
row(P.DynamicSlice((0,), (2,)), np.array([nan, -0.0, inf], np.float32), np.array([1], np.int32), kind="edge")
row(P.DynamicUpdateSlice((1,)), "f32[2,3]", "f32[2,3]", np.array([7], np.uint32))
row(P.DynamicUpdateSlice((0,)), "i8[3,2]", "i8[1,2]", np.array([2], np.uint8))
row(P.DynamicUpdateSlice((0,)), "bool[3]", "bool[2]", np.array([-2], np.int32))
row(P.DynamicUpdateSlice((0,)), "f32[3,0]", "f32[1,0]", np.array([1], np.int32))
row(P.DynamicUpdateSlice((0,)), np.array([1, 2, 3], np.float32), np.array([nan, -0.0], np.float32),
    np.array([1], np.int32), kind="edge")
