"""Conversion between 8-bit floats and others on the host.

A format has a sign bit, an exponent and a mantissa, whose values below the smallest exponent are evenly spaced.
The code 0x80 is NaN; there is no infinity, and one zero.
"""

from typing import Any, Optional, Tuple

import numpy as np

from popfn.host import dtypes

min_scaling_bias = -31
max_scaling_bias = 31
_NAN = 0x80
_MANTISSA_BITS = {dtypes.float8_143: 3, dtypes.float8_152: 2}
_BIAS = {dtypes.float8_143: 8, dtypes.float8_152: 16}


def host_pow2scale_cast_to_fp8(
    src: Any, dtype: Optional[dtypes.dtype] = None, log2_scale: int = 0, nan_on_overflow: bool = True
) -> np.ndarray:
    """Convert `src` times 2**log2_scale to 8-bit floats, rounding to the nearest, ties to even.

    Args:
        src: A float or an array of float16, float32 or float64.
        dtype: float8_143 or float8_152.
        log2_scale: The exponent of the scale.
        nan_on_overflow: Whether what is too large becomes NaN; else it becomes the largest number.

    Returns:
        An array of the structured one-byte type `dtype.as_numpy()`.

    Raises:
        RuntimeError: If `src` is not of floats, or `dtype` no 8-bit float.
        TypeError: If `log2_scale` is no int.

    Example:
        >>> import popfn.host as popxl
        >>> popxl.fp8_utils.host_pow2scale_cast_to_fp8([0.75, 1.0], popxl.float8_143).view("uint8")
        array([60, 64], dtype=uint8)
    """
    function = "host_pow2scale_cast_to_fp8"
    array = _as_array(src)
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise RuntimeError(f"{function}: the data must be float16, float32 or float64, not {src!r}.")
    if dtype not in _BIAS:
        raise RuntimeError(f"{function}: dtype must be float8_143 or float8_152, not {dtype!r}.")
    scaled = np.ldexp(array.astype(np.float64), _as_int(function, log2_scale))
    codes = _encode(scaled, _MANTISSA_BITS[dtype], _BIAS[dtype], bool(nan_on_overflow))
    return codes.view(dtype.as_numpy())


def _encode(x: np.ndarray, bits: int, bias: int, nan_on_overflow: bool) -> np.ndarray:
    lowest = 1 - bias  # the exponent of the smallest normal number
    with np.errstate(invalid="ignore"):
        size = np.abs(x)
        exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, lowest), lowest)
        units = np.rint(np.ldexp(size, bits - exponent))  # of the last bit; may round up to the next exponent
        code = units + (exponent - lowest) * 2.0**bits
        is_large = code > 0x7F
        code = np.where(is_large, 0x7F, code)
        code = np.where((x < 0) & (code > 0), code + 0x80, code)
        is_nan = ~np.isfinite(x) | (is_large & nan_on_overflow)
        return np.ascontiguousarray(np.where(is_nan, _NAN, code), np.uint8).reshape(x.shape)


def host_pow2scale_cast_from_fp8(
    src: np.ndarray, dtype: Optional[dtypes.dtype] = None, log2_scale: int = 0
) -> np.ndarray:
    """Convert 8-bit floats to `dtype` and multiply them by 2**log2_scale.

    Args:
        src: An array of the structured one-byte type of an 8-bit float.
        dtype: float16, float32 or float64.
        log2_scale: The exponent of the scale: minus that of the conversion to 8-bit floats.

    Raises:
        TypeError: If `src` is no array, or `log2_scale` no int.
        RuntimeError: If `src` is not of 8-bit floats, or `dtype` is another.

    Example:
        >>> import popfn.host as popxl
        >>> codes = popxl.fp8_utils.host_pow2scale_cast_to_fp8([0.75], popxl.float8_143)
        >>> popxl.fp8_utils.host_pow2scale_cast_from_fp8(codes, popxl.float32)
        array([0.75], dtype=float32)
    """
    function = "host_pow2scale_cast_from_fp8"
    if not isinstance(src, (np.ndarray, np.generic)):
        raise TypeError(f"{function}: expected an array, not {src!r}.")
    found = [d for d in _BIAS if d.as_numpy() == src.dtype]
    if not found:
        raise RuntimeError(f"{function}: the data must be of 8-bit floats, not {src.dtype}.")
    if dtype not in (dtypes.float16, dtypes.float32, dtypes.float64):
        raise RuntimeError(f"{function}: dtype must be float16, float32 or float64, not {dtype!r}.")
    codes = np.ascontiguousarray(src).view(np.uint8).reshape(np.shape(src)).astype(np.int64)
    values = _decode(codes, _MANTISSA_BITS[found[0]], _BIAS[found[0]])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.ldexp(values, _as_int(function, log2_scale))).astype(dtype.as_numpy())


def _decode(codes: np.ndarray, bits: int, bias: int) -> np.ndarray:
    exponent = (codes & 0x7F) >> bits
    mantissa = codes & ((1 << bits) - 1)
    units = np.where(exponent > 0, mantissa + (1 << bits), mantissa)
    values = np.ldexp(units.astype(np.float64), np.maximum(exponent, 1) - bias - bits)
    return np.where(codes == _NAN, np.nan, np.where(codes > _NAN, -values, values))


def host_fp8_mse_scale(src: Any, dtype: Optional[dtypes.dtype] = None) -> Tuple[float, int]:
    """Find the scale with which 8-bit floats represent `src` best.

    Args:
        src: A float or an array of float16, float32 or float64.
        dtype: float8_143 or float8_152.

    Returns:
        The mean squared error, and the log2_scale from -31 to 31 for `host_pow2scale_cast_to_fp8`.

    Raises:
        RuntimeError: If `src` is not of floats, or `dtype` no 8-bit float.
    """
    array = _as_array(src).astype(np.float64) if _as_array(src).dtype.kind == "f" else _as_array(src)
    best = np.inf, 0
    for scale in sorted(range(min_scaling_bias, max_scaling_bias + 1), key=abs):
        codes = host_pow2scale_cast_to_fp8(array, dtype, scale)
        back = host_pow2scale_cast_from_fp8(codes, dtypes.float64, -scale)
        error = np.mean((back - array) ** 2, dtype=np.float64) if array.size else 0.0
        if error < best[0]:
            best = float(error), scale
    return best


def host_fp8_mse_scale_pb(src: Any, dtype: Optional[dtypes.dtype] = None) -> int:
    """Return the log2_scale that `host_fp8_mse_scale` finds."""
    return host_fp8_mse_scale(src, dtype)[1]


def _as_array(src: Any) -> np.ndarray:
    if type(src).__module__ == "torch":
        src = src.detach().cpu().numpy()
    return np.asarray(src)


def _as_int(function: str, log2_scale: Any) -> int:
    try:
        return int(log2_scale.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{function}: log2_scale must be an int, not {log2_scale!r}.") from None
