"""Convolutions, pools, interpolate and roi_align against NumPy, written out, and against XLA's convolutions."""
import itertools
import math

import numpy as np
import pytest
from engine_checks import run
from kernel_checks import check, jax, ops

import popfn.host as popxl
from popfn.host.ops import _convolution

FLOATS = [np.float32, np.float16]


def data(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def convolved(t, w, stride, padding, dilation, groups):
    """Each element of a convolution as one sum."""
    t, w = t.astype(np.float64), w.astype(np.float64)
    rank = t.ndim - 2
    before, behind = padding[:rank], padding[rank:]
    t = np.pad(t, [(0, 0), (0, 0), *zip(before, behind)])
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(t.shape[2:], w.shape[2:], stride, dilation)]
    result = np.zeros((t.shape[0], w.shape[0], *sizes))
    inputs, outputs = t.shape[1] // groups, w.shape[0] // groups
    for n, m, *place in np.ndindex(*result.shape):
        first = m // outputs * inputs
        window = tuple(slice(p * s, p * s + d * (k - 1) + 1, d)
                       for p, s, d, k in zip(place, stride, dilation, w.shape[2:]))
        result[(n, m, *place)] = (t[(n, slice(first, first + inputs), *window)] * w[m]).sum()
    return result


CONVOLUTIONS = [
    ((2, 3, 7, 6), (4, 3, 3, 2), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((2, 4, 7, 6), (6, 2, 3, 3), (2, 1), (1, 0, 2, 1), (1, 2), 2),
    ((1, 4, 5, 5), (4, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    ((2, 2, 5, 4), (3, 2, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((2, 2, 9), (3, 2, 3), (2,), (2, 1), (3,), 1),
    ((1, 2, 4, 5, 3), (2, 2, 2, 3, 2), (1, 2, 1), (0, 1, 0, 1, 0, 1), (1, 1, 1), 1),
    ((1, 1, 3, 3), (1, 1, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_conv(case, dtype):
    shape, kernel, stride, padding, dilation, groups = case
    t, w = data(shape, dtype), data(kernel, dtype, 1)
    expected = convolved(t, w, stride, padding, dilation, groups).astype(dtype)
    check(lambda t, w: ops.conv(t, w, stride, padding, dilation, groups), expected, t, w, ulps=16)


@pytest.mark.parametrize("pad_type", ["same_upper", "same_lower", "valid"])
def test_conv_pads_by_type(pad_type):
    t, w = data((1, 2, 6, 7)), data((2, 2, 4, 3), seed=1)
    padding = {"same_upper": (1, 1, 1, 1), "same_lower": (1, 1, 1, 1), "valid": (0, 0, 0, 0)}[pad_type]
    expected = convolved(t, w, (2, 2), padding, (1, 1), 1).astype(np.float32)
    check(lambda t, w: ops.conv(t, w, (2, 2), pad_type=pad_type), expected, t, w, ulps=16)


def test_conv_cuts_off_negative_padding():
    t, w = data((1, 2, 8, 7)), data((3, 2, 3, 3), seed=1)
    expected = convolved(t[:, :, 1:, :-2], w, (1, 1), (0, 1, 2, 0), (1, 1), 1).astype(np.float32)
    check(lambda t, w: ops.conv(t, w, padding=(-1, 1, 2, -2)), expected, t, w, ulps=16)


def test_conv_of_many_samples(monkeypatch):
    """In parts, so that the windows fit into a cache."""
    monkeypatch.setattr(_convolution, "_COLUMNS", 300)
    t, w = data((7, 2, 5, 5)), data((3, 2, 3, 3), seed=1)
    check(lambda t, w: ops.conv(t, w), convolved(t, w, (1, 1), (0,) * 4, (1, 1), 1).astype(np.float32), t, w, ulps=16)


def test_conv_accumulates_in_float32():
    t, w = np.ones((1, 4096, 1, 1), np.float16), np.ones((1, 4096, 1, 1), np.float16)
    check(lambda t, w: ops.conv(t, w), np.full((1, 1, 1, 1), 4096, np.float16), t, w)


def with_half_partials(function):
    """The function, in a program whose products have float16 sums."""

    def run(*ts):
        ts[0].ir._pb_ir.getSessionOptions().partialsTypeMatMuls = "half"
        return function(*ts)

    return run


def test_conv_accumulates_in_float16_by_option():
    t, w = np.ones((2, 3000, 1, 1), np.float16), np.ones((1, 3000, 1, 1), np.float16)
    check(with_half_partials(lambda t, w: ops.conv(t, w)), np.full((2, 1, 1, 1), 2048, np.float16), t, w, alone=True)
    t, w = t.astype(np.float32), w.astype(np.float32)
    check(with_half_partials(lambda t, w: ops.conv(t, w)), np.full((2, 1, 1, 1), 3000, np.float32), t, w, alone=True)


def transposed(t, w, stride, padding, groups, output_padding):
    """Each element of the samples times its kernels, where they fall."""
    t, w = t.astype(np.float64), w.astype(np.float64)
    rank, per_group = t.ndim - 2, w.shape[1]
    before, behind = padding[:rank], padding[rank:]
    full = [s * (n - 1) + k for n, k, s in zip(t.shape[2:], w.shape[2:], stride)]
    result = np.zeros((t.shape[0], per_group * groups, *[n + more for n, more in zip(full, output_padding)]))
    for n, c, *place in np.ndindex(*t.shape):
        first = c // (t.shape[1] // groups) * per_group
        window = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, stride, w.shape[2:]))
        result[(n, slice(first, first + per_group), *window)] += t[(n, c, *place)] * w[c]
    cut = tuple(slice(b, n - e) for b, e, n in zip(before, behind, result.shape[2:]))
    return result[(slice(None), slice(None), *cut)]


TRANSPOSED = [
    ((2, 3, 4, 3), (3, 4, 3, 2), (1, 1), (0, 0, 0, 0), 1, (0, 0)),
    ((2, 4, 4, 3), (4, 3, 3, 3), (2, 3), (1, 0, 2, 1), 2, (0, 0)),
    ((1, 2, 3, 4), (2, 2, 2, 3), (2, 2), (0, 1, 1, 1), 1, (1, 1)),
    ((1, 2, 5), (2, 3, 4), (3,), (2, 1), 1, (2,)),
    ((1, 2, 2, 3, 2), (2, 1, 2, 2, 3), (1, 2, 1), (0, 0, 1, 0, 1, 0), 1, (0, 0, 0)),
    ((1, 1, 6, 6), (1, 1, 1, 2), (1, 1), (2, 3, 1, 1), 1, (0, 0)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose(case, dtype):
    shape, kernel, stride, padding, groups, more = case
    t, w = data(shape, dtype), data(kernel, dtype, 1)
    rank = len(stride)

    def function(t, w):
        return ops.conv_transpose(t, w, stride, padding, (1,) * rank, groups, output_padding=more)

    check(function, transposed(t, w, stride, padding, groups, more).astype(dtype), t, w, ulps=16)


@pytest.mark.parametrize("pad_type", ["same_upper", "same_lower"])
def test_conv_transpose_to_a_shape(pad_type):
    t, w = data((1, 2, 4, 4)), data((2, 1, 3, 3), seed=1)
    padding = (0, 1, 1, 1) if pad_type == "same_upper" else (1, 1, 0, 1)
    expected = transposed(t, w, (2, 2), padding, 1, (0, 0)).astype(np.float32)
    check(lambda t, w: ops.conv_transpose(t, w, (2, 2), pad_type=pad_type, output_shape=(8, 7)), expected, t, w,
          ulps=16)
    expected = transposed(t, w, (2, 2), (0,) * 4, 1, (1, 2)).astype(np.float32)
    check(lambda t, w: ops.conv_transpose(t, w, (2, 2), pad_type=pad_type, output_shape=(10, 11)), expected, t, w,
          ulps=16)


@pytest.mark.skipif(jax is None, reason="needs jax")
@pytest.mark.parametrize("stride,padding,groups", [((1, 2), (1, 0, 0, 2), 1), ((2, 1), (0, 1, 1, 0), 2)])
def test_convolutions_are_those_of_xla(stride, padding, groups):
    t, w = data((2, 4, 9, 8)), data((6, 4 // groups, 3, 3), seed=1)
    pads = list(zip(padding[:2], padding[2:]))
    expected = jax.lax.conv_general_dilated(t, w, stride, pads, feature_group_count=groups)
    check(lambda t, w: ops.conv(t, w, stride, padding, groups=groups), np.asarray(expected), t, w, ulps=32)
    # The transpose is the gradient with respect to the samples.
    g = data(expected.shape, seed=2)
    _, back = jax.vjp(lambda t: jax.lax.conv_general_dilated(t, w, stride, pads, feature_group_count=groups), t)
    more = [n - (s * (m - 1) + 3 - sum(p)) for n, s, m, p in zip(t.shape[2:], stride, g.shape[2:], pads)]
    check(lambda g, w: ops.conv_transpose(g, w, stride, padding, groups=groups, output_padding=more),
          np.asarray(back(g)[0]), g, w, ulps=32)


# Pools


def pooled(t, kernel, stride, padding, sizes, reduce):
    """The reduction of each window, without what lies outside."""
    rank = len(kernel)
    result = np.zeros((*t.shape[:2], *sizes))
    for place in np.ndindex(*sizes):
        window = tuple(slice(max(p * s - b, 0), max(p * s - b + k, 0))
                       for p, s, b, k in zip(place, stride, padding, kernel))
        part = t[(slice(None), slice(None), *window)].astype(np.float64)
        result[(slice(None), slice(None), *place)] = reduce(part, axis=tuple(range(2, 2 + rank)))
    return result


POOLS = [
    ((2, 3, 6, 5), (2, 3), (1, 1), (0, 0, 0, 0), False),
    ((2, 3, 6, 7), (3, 2), (2, 3), (1, 0, 1, 1), False),
    ((1, 2, 6, 7), (3, 2), (2, 3), (1, 0, 1, 1), True),
    ((1, 2, 9), (4,), (3,), (1, 2), True),
    ((1, 2, 3, 4, 5), (2, 2, 2), (1, 2, 2), (0, 0, 1, 0, 1, 1), False),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pools(case, dtype):
    shape, kernel, stride, padding, ceil_mode = case
    rank = len(kernel)
    rounded = math.ceil if ceil_mode else math.floor
    sizes = [rounded((n + padding[i] + padding[i + rank] - kernel[i]) / stride[i]) + 1
             for i, n in enumerate(shape[2:])]
    t = data(shape, dtype)
    for kind, reduce in (("max_pool", np.max), ("average_pool", np.mean)):
        expected = pooled(t, kernel, stride, padding, sizes, reduce).astype(dtype)
        check(lambda t, kind=kind: getattr(ops, kind)(t, kernel, stride, padding, ceil_mode=ceil_mode), expected, t)


def test_pools_have_stride_1_by_default():
    t = data((1, 1, 4, 4))
    check(lambda t: ops.max_pool(t, (2, 2)), pooled(t, (2, 2), (1, 1), (0, 0), (3, 3), np.max).astype(np.float32), t)


def test_pools_pad_by_type():
    t = data((1, 1, 5, 5))
    expected = pooled(t, (2, 2), (2, 2), (1, 1), (3, 3), np.mean).astype(np.float32)
    check(lambda t: ops.average_pool(t, (2, 2), (2, 2), auto_pad="same_lower"), expected, t)


def test_pools_of_special_values():
    t = np.array([[[1, np.nan, -np.inf, -np.inf, 2, np.inf]]], np.float32)
    check(lambda t: ops.max_pool(t, (2,), padding=(1, 0)),
          np.array([[[1, np.nan, np.nan, -np.inf, 2, np.inf]]], np.float32), t)
    check(lambda t: ops.average_pool(t, (2,), padding=(1, 0)),
          np.array([[[1, np.nan, np.nan, -np.inf, -np.inf, np.inf]]], np.float32), t)


def test_average_pool_of_float16_does_not_overflow():
    t = np.full((1, 1, 8, 8), 60000, np.float16)
    check(lambda t: ops.average_pool(t, (8, 8)), np.full((1, 1, 1, 1), 60000, np.float16), t)


# Interpolation: the definitions of ONNX, an element at a time


def place_of(mode, i, length, count, scale):
    if mode == "align_corners":
        return 0.0 if count == 1 else i * (length - 1) / (count - 1)
    if mode == "asymmetric":
        return i / scale
    if mode == "pytorch_half_pixel" and count == 1:
        return 0.0
    return (i + 0.5) / scale - 0.5


def rounded(mode, x):
    if mode in ("floor", "ceil"):
        return int(getattr(math, mode)(x))
    if x - math.floor(x) == 0.5:
        return math.floor(x) if mode == "round_prefer_floor" else math.ceil(x)
    return int(math.floor(x + 0.5))


def cubic(x, a=-0.75):
    """The kernel of Keys with slope a at distance 1."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def resampled(x, scale, mode, nearest_mode, coordinates):
    """Along the first axis."""
    length = len(x)
    count = int(length * scale)
    result = []
    for i in range(count):
        at = place_of(coordinates, i, length, count, scale)

        def read(k):
            return x[min(max(k, 0), length - 1)].astype(np.float64)

        low = math.floor(at)
        if mode == "nearest":
            result.append(read(rounded(nearest_mode, at)))
        elif mode == "linear":
            result.append(read(low) * (low + 1 - at) + read(low + 1) * (at - low))
        else:
            result.append(sum(read(low + k) * cubic(at - low - k) for k in range(-1, 3)))
    return np.array(result)


def interpolated(t, scales, *modes):
    for axis, scale in enumerate(scales):
        t = np.moveaxis(resampled(np.moveaxis(t, axis, 0), scale, *modes), 0, axis)
    return t


COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("scales", [(1.0, 1.0, 2.0, 3.0), (1.0, 1.0, 0.6, 1.5), (1.0, 2.0, 0.25, 1.0)], ids=str)
def test_interpolate(scales, coordinates):
    t = data((2, 2, 5, 4))
    for mode in ("linear", "cubic"):
        expected = interpolated(t, scales, mode, "floor", coordinates).astype(np.float32)
        check(lambda t, m=mode: ops.interpolate(t, scales, m, "floor", coordinates), expected, t, ulps=16)
    for nearest_mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        expected = interpolated(t, scales, "nearest", nearest_mode, coordinates).astype(np.float32)
        check(lambda t, n=nearest_mode: ops.interpolate(t, scales, "nearest", n, coordinates), expected, t, exact=True)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_interpolate_float16(mode):
    t = data((1, 2, 3, 5), np.float16)
    scales = (1.0, 1.0, 2.0, 1.4)
    expected = interpolated(t, scales, mode, "round_prefer_floor", "half_pixel").astype(np.float16)
    check(lambda t: ops.interpolate(t, scales, mode), expected, t)


def test_interpolate_keeps_an_axis_of_scale_1():
    """So that an infinity does not meet a weight of 0."""
    t = np.array([[[1, np.inf, 2]]], np.float32)
    check(lambda t: ops.interpolate(t, (1.0, 1.0, 1.0), "cubic"), t, t, exact=True)


# Regions


def regions(t, rois, batch_index, size, scale, ratio):
    """A cell as the mean of bilinear samples, one by one."""
    t, rois = t.astype(np.float64), rois.astype(np.float64)
    height, width = t.shape[2:]
    result = np.zeros((len(rois), t.shape[1], *size))

    def sample(image, y, x):
        if y < -1 or y > height or x < -1 or x > width:
            return np.zeros(image.shape[0])
        y, x = max(y, 0), max(x, 0)
        top, left = min(int(y), height - 1), min(int(x), width - 1)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        v = 0.0 if top == height - 1 else y - top
        h = 0.0 if left == width - 1 else x - left
        return ((image[:, top, left] * (1 - h) + image[:, top, right] * h) * (1 - v)
                + (image[:, bottom, left] * (1 - h) + image[:, bottom, right] * h) * v)

    for r, (x1, y1, x2, y2) in enumerate(rois * scale):
        cell_h, cell_w = max(y2 - y1, 1) / size[0], max(x2 - x1, 1) / size[1]
        rows = ratio if ratio > 0 else math.ceil(cell_h)
        columns = ratio if ratio > 0 else math.ceil(cell_w)
        for i, k in itertools.product(range(size[0]), range(size[1])):
            total = sum(sample(t[batch_index[r]], y1 + (i + (a + 0.5) / rows) * cell_h,
                               x1 + (k + (b + 0.5) / columns) * cell_w)
                        for a, b in itertools.product(range(rows), range(columns)))
            result[r, :, i, k] = total / (rows * columns)
    return result


ROIS = np.array([[0.3, 0.7, 5.1, 4.2], [2, 2, 2.1, 2.2], [-3, -4, 3, 9], [4, 1, 30, 3]])
BATCH = np.array([1, 0, 1, 1], np.int32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size,scale,ratio", [((2, 3), 1.0, 2), ((1, 1), 0.5, 1), ((3, 2), 1.7, 3)])
def test_roi_align(size, scale, ratio, dtype):
    t, rois = data((2, 3, 6, 7), dtype), ROIS.astype(dtype)
    expected = regions(t, rois, BATCH, size, scale, ratio).astype(dtype)
    check(lambda t, r, b: ops.roi_align(t, r, b, size, scale, ratio), expected, t, rois, BATCH, ulps=16)


def test_roi_align_takes_samples_by_the_size_of_a_region():
    t, rois = data((2, 3, 6, 7)), ROIS.astype(np.float32)
    expected = regions(t, rois, BATCH, (2, 2), 1.0, 0).astype(np.float32)

    def function(t, r, b):
        return ops.roi_align(t, r, b, (2, 2), 1.0, 0)

    check(function, expected, t, rois, BATCH, ulps=16, on_xla=False)
    if jax is not None:
        with pytest.raises(NotImplementedError, match="sampling_ratio=0 the number of samples depends on the values"):
            run(function, (t, rois, BATCH), "xla")


def test_roi_align_keeps_infinities_where_they_are():
    t = np.ones((1, 1, 8, 8), np.float32)
    t[0, 0, 7, 7] = np.inf
    rois = np.array([[0, 0, 4, 4]], np.float32)
    check(lambda t, r, b: ops.roi_align(t, r, b, (2, 2), 1.0, 2), np.ones((1, 1, 2, 2), np.float32), t, rois,
          np.zeros(1, np.int32))


@pytest.mark.parametrize("dtype", [popxl.float8_143, popxl.float8_152], ids=str)
def test_convolutions_of_8_bit_floats(dtype):
    def encode(x, kind=dtype):
        return popxl.fp8_utils.host_pow2scale_cast_to_fp8(x, kind)

    t, w = encode(data((1, 2, 5, 4))), encode(data((2, 2, 3, 2), seed=1), popxl.float8_143)
    wide = [popxl.fp8_utils.host_pow2scale_cast_from_fp8(x, popxl.float32) for x in (t, w)]
    scale = np.array(-3, np.int32)
    expected = (convolved(*wide, (1, 2), (1, 0, 0, 1), (1, 1), 1) / 8).astype(np.float16)
    check(lambda t, w, s: ops.conv_pow2scaled(t, w, s, (1, 2), (1, 0, 0, 1)), expected, t, w, scale)
    expected = (transposed(*wide, (2, 1), (1, 0, 0, 1), 1, (0, 0)) / 8).astype(np.float16)
    check(lambda t, w, s: ops.conv_transpose_pow2scaled(t, w, s, (2, 1), (1, 0, 0, 1)), expected, t, w, scale)
