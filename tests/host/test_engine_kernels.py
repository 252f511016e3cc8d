"""Every other kernel against NumPy, written out: along axes, by index, movement, matmul, updates."""

import numpy as np
import pytest
from engine_checks import FLOATS, INTS, OTHER_INTS, PLAIN, POSITIVE, as_dtype, check, inf, nan, quiet, run

import popfn.host as popxl

ops = popxl.ops
var_updates = ops.var_updates


# Along axes

AXES = [None, 0, 1, [0, 1], -1, []]
REDUCTIONS = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "l1": lambda x, **k: np.sum(np.abs(x), **k),
    "l2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "sumsquare": lambda x, **k: np.sum(x * x, **k),
    "logsum": lambda x, **k: np.log(np.sum(x, **k)),
    "logsumexp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind, dtype, axis):
    x = POSITIVE.astype(dtype)
    for keepdims in (False, True):
        where = {"axis": tuple(axis) if isinstance(axis, list) else axis, "keepdims": keepdims}
        expected = quiet(lambda a, w=where: REDUCTIONS[kind](a, **w), x)
        check(lambda t, k=keepdims: getattr(ops, kind)(t, axis, k), expected, x)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_reductions_of_integers(kind, axis):
    for dtype in (np.int32, np.int8, np.uint16):
        x = as_dtype(OTHER_INTS, dtype)
        exact = getattr(as_dtype(OTHER_INTS, dtype).astype(np.int64), kind)(axis).astype(dtype)
        check(lambda t: getattr(ops, kind)(t, axis), exact, x)
    check(lambda t: ops.mean(t, 0), np.array([0, 2, 0, 5], np.int32), OTHER_INTS.astype(np.int32))


def test_float16_accumulates_in_float32():
    x = np.full((4, 4096), 60000, np.float16)
    check(lambda t: ops.mean(t), np.float16(60000), x)
    check(lambda t: ops.mean(t, 1), np.full(4, 60000, np.float16), x)
    ones = np.ones((1, 4096), np.float16)
    check(lambda t: ops.sum(t, 1), np.full(1, 4096, np.float16), ones)
    check(lambda t: ops.cumsum(t, 1), np.arange(1, 4097).reshape(1, -1).astype(np.float16), ones)
    tiny = np.full((1, 4096), 2.0**-10, np.float16)
    check(lambda t: ops.sumsquare(t), np.float16(4096 * 2.0**-20), tiny)
    check(lambda a, b: ops.matmul(a, b), np.array([[4096]], np.float16), ones, np.ones((4096, 1), np.float16))


def test_extremes_of_nan_and_infinities():
    x = np.array([[1, nan, 3], [-inf, inf, 0], [-inf, -inf, -inf]], np.float32)
    check(lambda t: ops.max(t, 1), np.max(x, 1), x)
    check(lambda t: ops.min(t, 1), np.min(x, 1), x)
    check(lambda t: ops.logsumexp(t, 1), np.array([nan, inf, -inf], np.float32), x)
    check(lambda t: ops.softmax(t, 1), np.full((1, 3), nan, np.float32), x[2:])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis, dtype):
    x = (PLAIN * 100).astype(dtype)

    def softmax(a):
        e = np.exp(a - a.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    check(lambda t: ops.softmax(t, axis), quiet(softmax, x), x)
    check(lambda t: ops.softmax(t + t, axis), quiet(softmax, x + x), x)


def test_cumsum():
    for dtype in (np.float32, np.int8):
        x = as_dtype(OTHER_INTS, dtype)
        for axis in (0, 1):
            check(lambda t, a=axis: ops.cumsum(t, a), np.cumsum(x, axis, dtype=dtype), x)


def test_argmax_and_argmin_take_the_first():
    x = np.array([[1, 5, 5, 0], [0, 0, -1, -1], [2, nan, 1, nan]], np.float32)
    for axis in (0, 1):
        for keepdims in (False, True):
            largest, smallest = np.argmax(x, axis).astype(np.int32), np.argmin(x, axis).astype(np.int32)
            if keepdims:
                largest, smallest = np.expand_dims(largest, axis), np.expand_dims(smallest, axis)
            check(lambda t, a=axis, k=keepdims: ops.argmax(t, a, k), largest, x)
            check(lambda t, a=axis, k=keepdims: ops.argmin(t, a, k), smallest, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint16])
def test_topk_is_stable(dtype):
    x = np.array([[3, 1, 3, 2], [0, 0, 7, 7]], dtype)
    check(lambda t: ops.topk(t, 3, 1, True, True),
          (np.array([[3, 3, 2], [7, 7, 0]], dtype), np.array([[0, 2, 3], [2, 3, 0]], np.int32)), x)
    check(lambda t: ops.topk(t, 3, 1, False, True),
          (np.array([[1, 2, 3], [0, 0, 7]], dtype), np.array([[1, 3, 0], [0, 1, 2]], np.int32)), x)
    check(lambda t: ops.topk(t, 1, 0, True, True), (x.max(0, keepdims=True), x.argmax(0)[None].astype(np.int32)), x)


def test_topk_puts_nan_last():
    x = np.array([nan, 1, -inf, inf, nan], np.float32)
    check(lambda t: ops.topk(t, 5, 0, True, True),
          (np.array([inf, 1, -inf, nan, nan], np.float32), np.array([3, 1, 2, 0, 4], np.int32)), x)
    check(lambda t: ops.topk(t, 5, 0, False, True),
          (np.array([-inf, 1, inf, nan, nan], np.float32), np.array([2, 1, 3, 0, 4], np.int32)), x)


# Elements by index


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.bool_])
def test_gather(dtype):
    x = as_dtype(INTS, dtype)
    for index in (np.array([2, 0, 2]), np.array([[1, 0], [2, 2]]), np.array(1)):
        for index_dtype in (np.int32, np.uint32, np.int8):
            i = index.astype(index_dtype)
            check(lambda t, u: ops.gather(t, u, 0), np.take(x, i, 0), x, i)
            check(lambda t, u: ops.gather(t, u, 1), np.take(x, i, 1), x, i)
    outside = np.array([-1, 1, 3, 2**31 - 1], np.int32)
    zeroed = x[[0, 1, 0, 0]] * np.array([[0], [1], [0], [0]], dtype)
    check(lambda t, u: ops.gather(t, u, 0, zero_OOR=True), zeroed, x, outside)
    check(lambda t, u: ops.gather(t, u, 1, zero_OOR=True), zeroed.T.copy(), x.T.copy(), outside)
    run(lambda t, u: ops.gather(t, u, 0), [x, outside])  # undefined, but it does not fail


def test_onehot():
    classes = np.array([[0, 2], [1, 5]], np.int32)
    values = np.array([-1, 3], np.float32)
    eye = np.concatenate([np.eye(3), np.zeros((3, 3))])[classes].astype(np.float32)
    expected = np.where(eye, np.float32(3), np.float32(-1))

    def onehot(axis):
        return lambda t, v: ops.onehot(t, popxl.constant(3, popxl.int32), v, axis)

    (result,), _ = run(onehot(-1), [classes, values])
    np.testing.assert_array_equal(result, expected)
    for axis in (0, 1):
        (result,), _ = run(onehot(axis), [classes, values])
        np.testing.assert_array_equal(result, np.moveaxis(expected, -1, axis))
    (result,), _ = run(onehot(-1), [classes, values], is_constant=True)
    np.testing.assert_array_equal(result, expected)
    many = 300  # more classes than the dtype of the indices can count
    (result,), _ = run(lambda t, v: ops.onehot(t, popxl.constant(many, popxl.int32), v, 0),
                       [np.array([5, -1, 127], np.int8), values])
    np.testing.assert_array_equal(np.argmax(result, 0), [5, 0, 127])
    assert result[result == 3].size == 2


def scattered(start, data, indices, reduction, axis):
    """One element at a time."""
    result, touched = start.copy(), np.zeros(start.shape, bool)
    for place in np.ndindex(*data.shape):
        index = indices.reshape(-1)[place[axis]] if indices.shape != data.shape else indices[place]
        if 0 <= index < result.shape[axis]:
            target = place[:axis] + (index,) + place[axis + 1 :]
            value = data[place]
            if reduction != "none" and (touched[target] or reduction == "sum"):
                value = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduction](result[target], value)
            result[target] = value
            touched[target] = True
    return result


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "none"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_reduce(reduction, axis):
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.int32, np.float16):
        data = rng.integers(-9, 9, (6, 5)).astype(dtype)
        shape = (4, 5) if axis == 0 else (6, 4)
        initial = rng.integers(-9, 9, shape).astype(dtype)
        for indices in (rng.integers(-1, 6, data.shape[axis]), rng.integers(-1, 6, data.shape)):
            indices = indices.astype(np.int32)
            check(lambda d, i: ops.scatter_reduce(d, i, reduction, axis=axis, axis_size=4),
                  scattered(np.zeros(shape, dtype), data, indices, reduction, axis), data, indices)
            begun = scattered(initial, data, indices, reduction, axis)
            if reduction in ("max", "min"):
                combine = np.maximum if reduction == "max" else np.minimum
                begun = np.where(begun != initial, combine(begun, initial), initial)
            check(lambda d, i, s: ops.scatter_reduce(d, i, reduction, initial_values=s, axis=axis),
                  begun, data, indices, initial)


def test_dynamic_slice_and_update():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    update = -np.ones((2, 3), np.float32)
    for start in ([1, 2], [0, 0], [2, 3], [9, -4]):
        index = np.array(start, np.int32)
        row, column = min(max(start[0], 0), 2), min(max(start[1], 0), 3)
        (result,), _ = run(lambda t, i: ops.dynamic_slice(t, i, [0, 1], [2, 3], True), [x, index])
        np.testing.assert_array_equal(result, x[row : row + 2, column : column + 3])
        expected = x.copy()
        expected[row : row + 2, column : column + 3] = -1
        check(lambda t, i, u: ops.dynamic_update(t, i, u, [0, 1], [2, 3], True), expected, x, index, update)
        check(lambda t, i, u: ops.dynamic_update(t + t, i, u, [0, 1], [2, 3], True),
              np.where(expected == -1, expected, 2 * x), x, index, update)

        def in_place(t, i, u):
            t = ops.identity(t)
            ops.dynamic_update_(t, i, u, [0, 1], [2, 3], True)
            return t

        check(in_place, expected, x, index, update)


# Shape and movement


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.bool_])
def test_movement(dtype):
    x = as_dtype(INTS, dtype)
    check(lambda t: ops.reshape(t, (2, 6)), x.reshape(2, 6), x)
    check(ops.flatten, x.reshape(-1), x)
    check(ops.transpose, x.T.copy(), x)
    check(lambda t: ops.transpose(ops.reshape(t, (3, 2, 2)), (2, 0, 1)), x.reshape(3, 2, 2).transpose(2, 0, 1), x)
    check(lambda t: ops.slice(t, [0, 1], [2, 4]), x[:2, 1:4], x)
    check(lambda t: ops.slice(t, None, None, [-1], [0]), x[::-1], x)
    check(lambda t: ops.subsample(t, [2, 3]), x[::2, ::3], x)
    check(lambda t: ops.split(t, [1, 3], 1), (x[:, :1], x[:, 1:]), x)
    check(lambda t: ops.split(t, 3, 0), (x[:1], x[1:2], x[2:]), x)
    check(lambda t: ops.concat([t, t, ops.transpose(ops.transpose(t))], 1), np.concatenate([x, x, x], 1), x)
    check(lambda t: ops.concat([t, t], 0), np.concatenate([x, x], 0), x)
    check(ops.identity, x, x)
    check(ops.detach, x, x)
    check(lambda t: t[1], x[1], x)
    check(lambda t: t[::-1, 1:3], x[::-1, 1:3], x)


def test_float8_moves():
    for dtype in (popxl.float8_143, popxl.float8_152):
        data = np.arange(12, dtype=np.uint8).reshape(3, 4).view(dtype.as_numpy())
        ir = popxl.Ir()
        with ir.main_graph:
            stream, out = popxl.h2d_stream((3, 4), dtype), popxl.d2h_stream((4, 6), dtype)
            v = popxl.variable(data, dtype, name="v")
            t = ops.host_load(stream)
            ops.host_store(out, ops.transpose(ops.concat([t, v], 0)))
            var_updates.copy_var_update_(v, t)
        with popxl.Session(ir) as session:
            result = session.run({stream: data[::-1].copy()})[out]
            state = session.get_tensor_data(v)
        assert result.dtype == dtype.as_numpy()
        np.testing.assert_array_equal(result.view(np.uint8), np.concatenate([data[::-1], data]).T.view(np.uint8))
        np.testing.assert_array_equal(state.view(np.uint8), data[::-1].view(np.uint8))


# Linear algebra

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (1, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((1, 4), (4, 1)),
    ((3, 1), (1, 5)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_matmul(shapes, dtype):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, shape).astype(dtype) for shape in shapes)
    check(ops.matmul, np.matmul(x.astype(np.int64), y.astype(np.int64)).astype(dtype), x, y)


def test_matmul_of_operands_that_blas_cannot_read():
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    check(lambda t: ops.subsample(t, [2, 2]) @ ops.transpose(ops.subsample(t, [2, 2])),
          x[::2, ::2] @ x[::2, ::2].T, x)
    check(lambda t: ops.slice(t, None, None, [-1, -1]) @ ops.transpose(t), x[::-1, ::-1] @ x.T, x)
    check(lambda t: ops.slice(t, [1, 2], [5, 7]) @ ops.transpose(ops.slice(t, [1, 2], [5, 7])),
          x[1:5, 2:7] @ x[1:5, 2:7].T, x)
    three = x.reshape(2, 3, 8)
    check(lambda t: ops.transpose(t, (1, 0, 2)) @ ops.transpose(t, (1, 2, 0)),
          three.transpose(1, 0, 2) @ three.transpose(1, 2, 0), three)


def test_matmul_with_another_output_type():
    x = np.full((2, 300), 100, np.float16)
    check(lambda a, b: ops.matmul(a, b, output_type=popxl.float32), np.full((2, 2), 3e6, np.float32), x, x.T.copy())
    wide = x.astype(np.float32)
    check(lambda a, b: ops.matmul(a, b, output_type=popxl.float16),
          np.full((2, 2), 3e4, np.float16), wide / 100, wide.T.copy())


# Updates


@pytest.mark.parametrize("dtype, other", [(np.float32,) * 2, (np.float16,) * 2, (np.float32, np.float16),
                                          (np.float16, np.float32)])
@pytest.mark.parametrize("factor", [None, 0.3, "tensor"])
def test_accumulate(dtype, other, factor):
    t, x = PLAIN.astype(dtype), (PLAIN[::-1] * 3).astype(other)

    def function(t, x):
        t = ops.identity(t)
        f = popxl.constant(np.float32(0.3)) if factor == "tensor" else factor
        return var_updates.accumulate_(t, x, f), t

    f = 1.0 if factor is None else float(np.float32(0.3))
    expected = (t.astype(np.float64) + f * x.astype(np.float64)).astype(dtype)
    check(function, (expected, expected), t, x)


def test_copy_and_zero():
    x, y = PLAIN.astype(np.float32), POSITIVE.astype(np.float32)

    def copied(t, u):
        t = ops.identity(t)
        var_updates.copy_var_update_(ops.slice_(t, 1, 2), ops.slice(u, 0, 1))
        return t

    expected = x.copy()
    expected[1] = y[0]
    check(copied, expected, x, y)

    def zeroed(t):
        t = ops.identity(t)
        var_updates.accumulator_zero_(ops.transpose_(ops.slice_(t, 1, 2)))
        return t

    expected = x.copy()
    expected[1] = 0
    check(zeroed, expected, x)


def test_zero_sized_tensors_do_no_harm():
    x = np.zeros((0, 3), np.float32)
    check(lambda t: t + t, x, x)
    check(lambda t: ops.sum(t, 0), np.zeros(3, np.float32), x)
