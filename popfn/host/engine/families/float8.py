"""8-bit floats, which the engines keep as bytes: their codes.

There is one code for NaN, 0x80, no infinity and no negative zero. Of a sign's 127 codes each higher one stands for a
larger number, so encoding is a search among the limits between neighbours.
"""

from typing import Any, Dict

import numpy as np

from popfn.host import dtypes
from popfn.host.engine.kernel import Kernel

_NAN = 0x80
# Of each format the bits of the mantissa, and the exponent of the smallest normal number.
_FORMATS = {dtypes.float8_143: (3, -7), dtypes.float8_152: (2, -15)}


def _magnitudes(dtype: dtypes.dtype) -> np.ndarray:
    """The numbers of the codes from 0 on, and the one that would follow the largest."""
    bits, lowest = _FORMATS[dtype]
    code = np.arange(_NAN + 1)
    exponent, mantissa = code >> bits, code & ((1 << bits) - 1)
    units = np.where(exponent > 0, mantissa + (1 << bits), mantissa)
    return np.ldexp(units.astype(np.float64), np.maximum(exponent, 1) - 1 + lowest - bits)


def _limits(dtype: dtypes.dtype) -> np.ndarray:
    """For each code the largest float32 that still has it: ties go to the even one of two codes."""
    numbers = _magnitudes(dtype)
    middles = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    is_odd = np.arange(len(middles)) % 2 == 1
    return np.where(is_odd, np.nextafter(middles, np.float32(0)), middles)


def _numbers(dtype: dtypes.dtype) -> np.ndarray:
    """The numbers of all codes."""
    magnitudes = _magnitudes(dtype)[:-1]
    numbers = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    numbers[_NAN] = np.nan
    return numbers


_LIMITS = {dtype: _limits(dtype) for dtype in _FORMATS}
_NUMBERS = {dtype: _numbers(dtype) for dtype in _FORMATS}
_EXPONENTS = np.arange(-126, 128)
_POWERS = np.ldexp(np.ones(len(_EXPONENTS), np.float32), _EXPONENTS)


def power_of_two(xp: Any, exponent: Any) -> Any:
    """2**exponent as float32, exactly."""
    return xp.take(xp.asarray(_POWERS), exponent - _EXPONENTS[0], mode="clip")


def encoded(xp: Any, dtype: dtypes.dtype, x: Any) -> Any:
    """The codes of float32 numbers, rounded to the nearest; of what is too large, that of NaN."""
    code = xp.searchsorted(xp.asarray(_LIMITS[dtype]), xp.abs(x), side="left").astype(np.int32)
    code = xp.where((x < 0) & (code > 0) & (code < _NAN), code + _NAN, code)
    return xp.where(xp.isnan(x), _NAN, code).astype(np.uint8)


def decoded(xp: Any, dtype: dtypes.dtype, codes: Any) -> Any:
    """The float32 numbers of codes."""
    return xp.take(xp.asarray(_NUMBERS[dtype]), codes.astype(np.int32), mode="clip")


def pow2scale_cast_to_fp8(xp: Any, op: Any, t: Any, log2_scale: Any) -> Any:
    """The codes of t * 2**log2_scale."""
    return encoded(xp, op.outputs[0].dtype, t.astype(np.float32) * power_of_two(xp, log2_scale))


def pow2scale_cast_from_fp8(xp: Any, op: Any, t: Any, log2_scale: Any) -> Any:
    """The numbers of codes, times 2**log2_scale."""
    return decoded(xp, op.inputs[0].dtype, t) * power_of_two(xp, log2_scale)


KERNELS: Dict[str, Kernel] = {
    "pow2scale_cast_to_fp8": Kernel(pow2scale_cast_to_fp8),
    "pow2scale_cast_from_fp8": Kernel(pow2scale_cast_from_fp8, float32=True),
}
