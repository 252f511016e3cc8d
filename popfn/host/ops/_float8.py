"""8-bit floats: they are made and used with a scale, a power of two.

Errors: TypeError for an operand that is no Tensor or a scale that is no int32, ValueError for a tensor of another
graph or a scale that is no scalar.
"""

from typing import Any, Dict, Optional

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.graph import Graph
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.ops._linear import product_shape
from popfn.host.tensor import Tensor

FLOAT8 = (dtypes.float8_143, dtypes.float8_152)


def check_scale(op: str, log2_scale: Tensor) -> None:
    """TypeError unless the scale is an int32 tensor, ValueError unless it is a scalar."""
    if not isinstance(log2_scale, Tensor):
        raise TypeError(f"{op}: log2_scale must be a Tensor, not {log2_scale!r}.")
    if log2_scale.shape != ():
        raise ValueError(f"{op}: log2_scale must be a scalar, not {log2_scale!r}.")
    if log2_scale.dtype is not dtypes.int32:
        raise TypeError(f"{op}: log2_scale must be int32, not {log2_scale!r}.")


def check_operands(op: str, lhs: Tensor, rhs: Tensor, log2_scale: Tensor) -> None:
    """TypeError unless both operands are of 8-bit floats; and `check_scale`."""
    for t in (lhs, rhs):
        if t.dtype not in FLOAT8:
            raise TypeError(f"{op}: {t!r} must be of 8-bit floats.")
    check_scale(op, log2_scale)


def _cast(kind: str, graph: Graph, t: Tensor, log2_scale: Tensor, dtype: dtypes.dtype, fault: Optional[str]) -> Tensor:
    name = f"{t.name}_{dtype.name}"
    return _build.emit(
        graph, kind, (t, log2_scale), t.shape, dtype, {"dtype": dtype}, name, t.meta_shape, fault
    )


def pow2scale_cast_to_fp8(t: Tensor, log2_scale: Tensor, data_type: dtypes.dtype) -> Tensor:
    """Convert `t` times 2**log2_scale to 8-bit floats; what is too large becomes NaN.

    Args:
        t: float16 or float32.
        log2_scale: An int32 scalar from -32 to 31.
        data_type: float8_143 or float8_152, else TypeError.
    """
    kind = "pow2scale_cast_to_fp8"
    graph = _build.checked(kind, t=t, log2_scale=log2_scale)
    if data_type not in FLOAT8:
        raise TypeError(f"{kind}: data_type must be float8_143 or float8_152, not {data_type!r}.")
    check_scale(kind, log2_scale)
    fault = None
    if t.dtype not in (dtypes.float16, dtypes.float32):
        fault = f"{t!r} is neither float16 nor float32"
    return _cast(kind, graph, t, log2_scale, data_type, fault)


def _pow2scale_cast_to_fp8_value(xp: Any, op: Any, t: Any, log2_scale: Any) -> Any:
    """The codes of t * 2**log2_scale."""
    return encoded(xp, op.outputs[0].dtype, t.astype(np.float32) * power_of_two(xp, log2_scale))


def pow2scale_cast_from_fp8(t: Tensor, log2_scale: Tensor, data_type: dtypes.dtype) -> Tensor:
    """Convert 8-bit floats and multiply them by 2**log2_scale.

    Args:
        t: 8-bit floats, else popart_exception.
        log2_scale: An int32 scalar from -32 to 31.
        data_type: float16 or float32, else TypeError.
    """
    kind = "pow2scale_cast_from_fp8"
    graph = _build.checked(kind, t=t, log2_scale=log2_scale)
    if data_type not in (dtypes.float16, dtypes.float32):
        raise TypeError(f"{kind}: data_type must be float16 or float32, not {data_type!r}.")
    check_scale(kind, log2_scale)
    if t.dtype not in FLOAT8:
        raise popart_exception(f"{kind}: {t!r} is not of 8-bit floats.")
    return _cast(kind, graph, t, log2_scale, data_type, None)


def _pow2scale_cast_from_fp8_value(xp: Any, op: Any, t: Any, log2_scale: Any) -> Any:
    """The numbers of codes, times 2**log2_scale."""
    return decoded(xp, op.inputs[0].dtype, t) * power_of_two(xp, log2_scale)


def matmul_pow2scaled(
    lhs: Tensor, rhs: Tensor, log2_scale: Tensor, available_memory_proportion: Optional[float] = None
) -> Tensor:
    """Return the float16 product of 8-bit floats, as in `matmul`, times 2**log2_scale.

    Args:
        lhs, rhs: 8-bit floats, else TypeError; the formats may differ.
        log2_scale: An int32 scalar from -32 to 31.
        available_memory_proportion: Has no effect on the host.
    """
    kind = "matmul_pow2scaled"
    graph = _build.checked(kind, lhs=lhs, rhs=rhs, log2_scale=log2_scale)
    check_operands(kind, lhs, rhs, log2_scale)
    shape = product_shape(kind, lhs, rhs)
    return _build.emit(graph, kind, (lhs, rhs, log2_scale), shape, dtypes.float16)


def _matmul_pow2scaled_value(xp: Any, op: Any, x: Any, y: Any, log2_scale: Any) -> Any:
    """(x @ y) * 2**log2_scale of 8-bit floats."""
    x, y = decoded(xp, op.inputs[0].dtype, x), decoded(xp, op.inputs[1].dtype, y)
    return xp.matmul(x, y) * power_of_two(xp, log2_scale)


# The engines keep 8-bit floats as bytes, their codes. There is one code for NaN, 0x80, no infinity and no negative
# zero. Of a sign's 127 codes each higher one stands for a larger number, so encoding is a search among the limits
# between neighbours.

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


KERNELS: Dict[str, Kernel] = {
    "pow2scale_cast_to_fp8": Kernel(_pow2scale_cast_to_fp8_value),
    "pow2scale_cast_from_fp8": Kernel(_pow2scale_cast_from_fp8_value, float32=True),
    "matmul_pow2scaled": Kernel(_matmul_pow2scaled_value, float32=True),
}
