"""Elements by index against NumPy, written out an element at a time."""
import numpy as np
import pytest
from kernel_checks import check, ops

from popfn.host.ops._indexing import grouped_scatter_reduce

DTYPES = [np.float32, np.float16, np.int32]


def data(shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * 10).astype(dtype)


# groupedgather


@pytest.mark.parametrize("axis,dtype", [(1, np.float32), (2, np.float16), (3, np.int32)])
@pytest.mark.parametrize("shape", [(2, 3), (2,), (2, 2, 2)], ids=str)
def test_groupedgather(shape, axis, dtype):
    t = data((2, 4, 5, 3), dtype)
    indices = np.random.default_rng(1).integers(0, 3, shape).astype(np.int32)
    expected = np.stack([np.take(t[g], indices[g], axis - 1) for g in range(2)])
    check(lambda t, i: ops.groupedgather(t, i, axis, 2), expected, t, indices, exact=True)


def test_groupedgather_out_of_range():
    t, indices = data((2, 3, 2)), np.array([[0, 3], [-1, 2]], np.int32)
    expected = np.stack([t[0, [0, 2]], t[1, [0, 2]]])
    expected[0, 1] = expected[1, 0] = 0
    check(lambda t, i: ops.groupedgather(t, i, 1, 2, zero_OOR=True), expected, t, indices, exact=True)
    # Without the zeros the nearest part, as gather has it.
    clamped = np.stack([t[0, [0, 2]], t[1, [0, 2]]])
    check(lambda t, i: ops.groupedgather(t, i, 1, 2), clamped, t, indices, exact=True)


def test_groupedgather_of_one_group_is_gather():
    t, indices = data((4, 3)), np.array([[1, 3]], np.int32)
    check(lambda t, i: ops.groupedgather(t, i, 0, 1), np.take(t, indices, 0), t, indices, exact=True)


# scatter


def scattered(t, indices, values, axis):
    result = t.copy()
    for place in np.ndindex(*indices.shape):
        target = list(place)
        target[axis] = indices[place]
        if 0 <= target[axis] < t.shape[axis]:
            result[tuple(target)] = values[place]
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_scatter(axis, dtype):
    t, values = data((3, 4, 5), dtype), data((2, 3, 4), dtype, 1)
    indices = np.random.default_rng(2).permuted(np.tile(np.arange(3)[:, None, None], (1, 3, 4)), axis=0)[:2]
    indices = np.moveaxis(indices, 0, axis) if axis % 3 == 0 else indices % 3
    indices = indices.astype(np.int32)
    if axis % 3:  # different places along the axis
        order = np.argsort(np.random.default_rng(3).random((2, 3, 4)), axis=axis)
        indices = order.astype(np.int32)
    check(lambda t, i, v: ops.scatter(t, i, v, axis), scattered(t, indices, values, axis % 3), t, indices, values,
          exact=True)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8])
def test_scatter_out_of_range_writes_nothing(dtype):
    t, values = data((3, 2)), data((3, 2), seed=1)
    indices = np.array([[0, -1], [3, 1], [2, 100]]).astype(dtype)
    check(lambda t, i, v: ops.scatter(t, i, v), scattered(t, indices.astype(np.int64), values, 0), t, indices, values,
          exact=True)


def test_scatter_of_equal_indices_keeps_the_last():
    t, values = data((3,)), data((4,), seed=1)
    indices = np.array([1, 0, 1, 1], np.int32)
    check(ops.scatter, scattered(t, indices, values, 0), t, indices, values, exact=True)


# scatter_reduce, and the same in groups

COMBINE = {"sum": lambda a, b: a + b, "max": max, "min": min, "none": lambda a, b: b}


def combined(x, indices, reduction, axis, length, initial):
    """One element after another."""
    shape = x.shape[:axis] + (length,) + x.shape[axis + 1 :]
    result = {} if initial is None else {i: initial[i].astype(np.float64) for i in np.ndindex(*shape)}
    for place in np.ndindex(*x.shape):
        target = list(place)
        target[axis] = indices[place]
        if 0 <= target[axis] < length:
            value = x[place].astype(np.float64)
            key = tuple(target)
            result[key] = COMBINE[reduction](result[key], value) if key in result else value
    return np.array([result.get(i, 0) for i in np.ndindex(*shape)]).reshape(shape).astype(x.dtype)


@pytest.mark.parametrize("axis,dtype", [(0, np.float32), (1, np.float16), (2, np.int32)])
@pytest.mark.parametrize("reduction", COMBINE)
def test_scatter_reduce(reduction, axis, dtype):
    x, initial = data((3, 4, 5), dtype), data((3, 4, 5), dtype, 1)
    length = 6
    initial = np.repeat(initial, 2, axis)[(slice(None),) * axis + (slice(length),)]
    rng = np.random.default_rng(2)
    elements = rng.integers(-1, length + 1, x.shape).astype(np.int32)
    vector = rng.integers(-1, length + 1, x.shape[axis]).astype(np.int32)
    along = [1] * 3
    along[axis] = -1
    spread = np.broadcast_to(vector.reshape(along), x.shape)
    for indices, full in ((elements, elements), (vector, spread), (vector.reshape(along), spread)):
        check(lambda x, i: ops.scatter_reduce(x, i, reduction, axis=axis, axis_size=length),
              combined(x, full, reduction, axis, length, None), x, indices)
    check(lambda x, i, s: ops.scatter_reduce(x, i, reduction, s, axis),
          combined(x, spread, reduction, axis, initial.shape[axis], initial), x, vector, initial)


@pytest.mark.parametrize("axis,dtype", [(1, np.float16), (2, np.float32), (1, np.int32)])
@pytest.mark.parametrize("reduction", COMBINE)
def test_grouped_scatter_reduce(reduction, axis, dtype):
    x, initial = data((2, 4, 5), dtype), data((2, 7, 5) if axis == 1 else (2, 4, 7), dtype, 1)
    rng = np.random.default_rng(2)
    elements = rng.integers(-1, 8, x.shape).astype(np.int32)
    vectors = rng.integers(-1, 8, (2, x.shape[axis])).astype(np.int32)
    spread = vectors.reshape((2, -1, 1) if axis == 1 else (2, 1, -1))
    for indices in (elements, vectors, spread):
        full = np.broadcast_to(spread if indices is vectors else indices, x.shape)
        check(lambda x, i: grouped_scatter_reduce(x, i, reduction, axis=axis, axis_size=7, group_size=2),
              combined(x, full, reduction, axis, 7, None), x, indices)
        check(lambda x, i, s: grouped_scatter_reduce(x, i, reduction, s, axis, group_size=2),
              combined(x, full, reduction, axis, 7, initial), x, indices, initial)


def test_scatter_reduce_of_special_values():
    x = np.array([np.inf, -np.inf, np.nan, -1], np.float32)
    indices = np.array([0, 1, 2, 3], np.int32)
    for reduction in ("max", "min", "sum"):
        check(lambda x, i, r=reduction: ops.scatter_reduce(x, i, r, axis_size=5),
              np.array([np.inf, -np.inf, np.nan, -1, 0], np.float32), x, indices)
