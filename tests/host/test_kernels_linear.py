"""float16 sums by option, and 8-bit floats against ml_dtypes and against their definition."""
import ml_dtypes
import numpy as np
import pytest
from kernel_checks import check, on_both, ops

import popfn.host as popxl
from popfn.host.ops import _float8, _linear

FORMATS = [(popxl.float8_143, ml_dtypes.float8_e4m3fnuz), (popxl.float8_152, ml_dtypes.float8_e5m2fnuz)]
inf, nan = np.inf, np.nan


def with_half_partials(function):
    """The function, in a program whose products have float16 sums."""

    def built(*ts):
        ts[0].ir._pb_ir.getSessionOptions().partialsTypeMatMuls = "half"
        return function(*ts)

    return built


def half_sums(x, y):
    """A product of matrices, each partial sum of which is a float16."""
    total = np.zeros((x.shape[0], y.shape[1]), np.float16)
    for k in range(x.shape[1]):
        exact = x[:, k : k + 1].astype(np.float64) * y[k].astype(np.float64)
        total = (total + exact).astype(np.float16)
    return total


def test_matmul_accumulates_in_float16_by_option():
    ones = np.ones((1, 4096), np.float16), np.ones((4096, 1), np.float16)
    check(ops.matmul, np.array([[4096]], np.float16), *ones)
    check(with_half_partials(ops.matmul), np.array([[2048]], np.float16), *ones, alone=True)
    # float32 does not change, and other options do not either.
    ones = [x.astype(np.float32) for x in ones]
    check(with_half_partials(ops.matmul), np.array([[4096]], np.float32), *ones, alone=True)


def test_half_sums_of_matrices_vectors_and_stacks(monkeypatch):
    monkeypatch.setattr(_linear, "_BLOCK", 8)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(np.float16) for shape in ((5, 300), (300, 4)))
    expected = half_sums(x, y)
    assert (expected != (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float16)).any()
    check(with_half_partials(ops.matmul), expected, x, y, exact=True, alone=True)
    check(with_half_partials(ops.matmul), expected[0], x[0], y, exact=True, alone=True)
    check(with_half_partials(ops.matmul), expected[:, 0], x, y[:, 0], exact=True, alone=True)
    check(with_half_partials(ops.matmul), expected[0, 0], x[0], y[:, 0], exact=True, alone=True)
    stack = np.stack([y, y[::-1]])
    check(with_half_partials(ops.matmul), np.stack([expected, half_sums(x, y[::-1])]), x, stack, exact=True, alone=True)


def test_half_sums_overflow_where_float32_sums_do_not():
    x = np.array([[60000, 60000, -60000]], np.float16)
    y = np.ones((3, 1), np.float16)
    check(ops.matmul, np.array([[60000]], np.float16), x, y)
    check(with_half_partials(ops.matmul), np.array([[inf]], np.float16), x, y, alone=True)


def test_rounding_to_float16():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    x = np.concatenate([halves, middles, [65504, 65519, 65520, 65536, 1e30, 1e-30, inf, nan]]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(inf))])
    x = np.concatenate([x, -x])
    rounded = x.copy()
    with np.errstate(all="ignore"):
        _linear._round_to_half(rounded, np.empty_like(rounded))
        np.testing.assert_array_equal(rounded, x.astype(np.float16).astype(np.float32))


# 8-bit floats: all codes, all float16 numbers, and the neighbours of each limit


def encoded(x, dtype, scale=0):
    """The codes by the NumPy engine, which must be those on XLA."""
    arrays = x, np.array(scale, np.int32)

    def cast(t, s):
        return ops.pow2scale_cast_to_fp8(t, s, dtype)

    (codes,), (compiled,) = on_both(cast, arrays)
    np.testing.assert_array_equal(compiled.view(np.uint8), codes.view(np.uint8))
    return codes.view(np.uint8)


@pytest.mark.parametrize("dtype,reference", FORMATS, ids=str)
def test_decoding_of_all_codes(dtype, reference):
    codes = np.arange(256, dtype=np.uint8)
    wide = codes.view(reference).astype(np.float32)
    assert np.isnan(wide).sum() == 1
    for target, name in ((popxl.float32, np.float32), (popxl.float16, np.float16)):
        for scale in (0, 3, -5, 31, -32):
            with np.errstate(over="ignore"):
                expected = (wide.astype(np.float64) * 2.0**scale).astype(name)
            check(lambda t, s, d=target: ops.pow2scale_cast_from_fp8(t, s, d), expected,
                  codes.view(dtype.as_numpy()), np.array(scale, np.int32), exact=True)


@pytest.mark.parametrize("dtype,reference", FORMATS, ids=str)
def test_encoding_of_all_float16(dtype, reference):
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    for scale in (0, 5, -3):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            scaled = x.astype(np.float32) * np.float32(2.0**scale)
        np.testing.assert_array_equal(encoded(x, dtype, scale), scaled.astype(reference).view(np.uint8))


@pytest.mark.parametrize("dtype,reference", FORMATS, ids=str)
def test_encoding_at_the_limits(dtype, reference):
    """Codes are rounded to the nearest, ties to even: so say ml_dtypes and the host's own conversion."""
    values = np.sort(np.arange(128, dtype=np.uint8).view(reference).astype(np.float32))
    middles = (values[1:] + values[:-1]) / 2
    top = 2 * values[-1] - values[-2]
    x = np.concatenate([values, middles, [(top + values[-1]) / 2, top, 1e30, 1e-40, inf, nan, 0.0]]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(inf))])
    x = np.concatenate([x, -x])
    codes = encoded(x, dtype)
    np.testing.assert_array_equal(codes, x.astype(reference).view(np.uint8))
    np.testing.assert_array_equal(codes, popxl.fp8_utils.host_pow2scale_cast_to_fp8(x, dtype).view(np.uint8))


def test_pinned_codes():
    for value, dtype, scale, code in ((0.75, popxl.float8_143, 0, 0x3C), (0.75, popxl.float8_143, -2, 0x2C),
                                      (0.75, popxl.float8_143, 1, 0x44), (0.25, popxl.float8_152, 0, 0x38),
                                      (0.25, popxl.float8_152, -3, 0x2C)):
        assert encoded(np.array([value, -value], np.float32), dtype, scale).tolist() == [code, code | 0x80]


@pytest.mark.parametrize("scale", [-32, -7, 0, 9, 31])
def test_scales_are_exact(scale):
    x = np.array([1.0, -1.5, 2.0**-20, 3e4, 0.0], np.float32)
    for dtype, _ in FORMATS:
        expected = popxl.fp8_utils.host_pow2scale_cast_to_fp8(x, dtype, scale).view(np.uint8)
        np.testing.assert_array_equal(encoded(x, dtype, scale), expected)


def test_powers_of_two():
    exponents = np.arange(-126, 128)
    np.testing.assert_array_equal(_float8.power_of_two(np, exponents), np.ldexp(1.0, exponents))


@pytest.mark.parametrize("dtype,reference", FORMATS, ids=str)
def test_matmul_pow2scaled(dtype, reference):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(kind) for shape, kind in
            (((2, 3, 40), reference), ((40, 5), ml_dtypes.float8_e4m3fnuz)))
    product = x.astype(np.float64) @ y.astype(np.float64)
    codes = x.view(np.uint8).view(dtype.as_numpy()), y.view(np.uint8).view(popxl.float8_143.as_numpy())
    for scale in (0, -4):
        check(ops.matmul_pow2scaled, (product * 2.0**scale).astype(np.float16), *codes, np.array(scale, np.int32))
    vector = product[0, 0, 0].astype(np.float16)
    check(ops.matmul_pow2scaled, vector, codes[0][0, 0], codes[1][:, 0].copy(), np.array(0, np.int32))
