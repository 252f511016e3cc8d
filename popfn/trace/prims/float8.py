"""8-bit floats: numbers are scaled by a power of two on their way to them, and products on their way back.

The scale is known while tracing. Derivatives are those of exact arithmetic; the derivative by an 8-bit value is 8-bit
itself, so that it is rounded like one, and NaN where it is too large.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from ..aval import FLOAT8, Aval, accumulator_dtype, float16, float32, float64
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis
from ..tracer import aval_of, bind
from . import lowering
from .contract import dot_general
from .elementwise import as_float8, convert
from .kinds import Bilinear
from .shaping import Dims, LinearOp, check_dtype, in_lanes, interned, transpose

#: The scales that PopXL takes.
SCALES = range(-32, 32)


def check_scale(name: str, log2_scale: int) -> None:
    """Raise DtypeError unless a scale is an integer that PopXL takes."""
    if type(log2_scale) is not int or log2_scale not in SCALES:
        raise DtypeError(f"{name}: log2_scale is a Python integer from {SCALES[0]} to {SCALES[-1]}, got {log2_scale!r}")


@dataclass(frozen=True)
class CastToFloat8(LinearOp):
    """x times 2 to the `log2_scale` as 8-bit floats, rounded to the nearest; NaN where that is too large."""

    dtype: np.dtype
    log2_scale: int

    def abstract(self, x: Aval) -> Aval:
        check_dtype(self.name, x, "f")
        check_scale(self.name, self.log2_scale)
        if self.dtype not in FLOAT8:
            raise DtypeError(f"{self.name} gives float8_143 or float8_152, not {self.dtype.name}")
        return Aval._make(x.shape, self.dtype, False)

    def eval(self, x: np.ndarray) -> Any:
        return as_float8(np.ldexp(x.astype(accumulator_dtype(x.dtype)), self.log2_scale), self.dtype)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (cast_from_float8(ct, x.aval.dtype, self.log2_scale),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return bind(self, args), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        scale = px.constant(self.log2_scale, px.int32)
        return px.ops.pow2scale_cast_to_fp8(x, scale, lowering.px_dtype(px, self.dtype))


@dataclass(frozen=True)
class CastFromFloat8(LinearOp):
    """8-bit floats times 2 to the `log2_scale` as float16 or float32, or float64 on the host."""

    dtype: np.dtype
    log2_scale: int

    def abstract(self, x: Aval) -> Aval:
        check_dtype(self.name, x, "8")
        check_scale(self.name, self.log2_scale)
        if self.dtype not in (float16, float32, float64):
            raise DtypeError(f"{self.name} gives float16 or float32, not {self.dtype.name}")
        return Aval._make(x.shape, self.dtype, False)

    def eval(self, x: np.ndarray) -> Any:
        return np.ldexp(x.astype(np.float32), self.log2_scale).astype(self.dtype)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (cast_to_float8(ct, x.aval.dtype, self.log2_scale),)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return bind(self, args), dims[0]

    def lower(self, px: Any, x: Any) -> Any:
        scale = px.constant(self.log2_scale, px.int32)
        return px.ops.pow2scale_cast_from_fp8(x, scale, lowering.px_dtype(px, self.dtype))


@dataclass(frozen=True)
class MatmulPow2scaled(Bilinear):
    """(..., m, k) @ (..., k, n) of 8-bit floats times 2 to the `log2_scale`, as float16; accumulated in float32."""

    log2_scale: int

    def abstract(self, x: Aval, y: Aval) -> Aval:
        check_dtype(self.name, x, "8")
        check_dtype(self.name, y, "8")
        check_scale(self.name, self.log2_scale)
        if x.ndim < 2 or x.shape[:-2] != y.shape[:-2] or x.shape[-1:] != y.shape[-2:-1]:
            raise ShapeError(f"{self.name}: {x} @ {y} do not go together")
        return Aval(x.shape[:-1] + y.shape[-1:], float16)

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        product = np.matmul(x.astype(np.float32), y.astype(np.float32))
        return np.ldexp(product, self.log2_scale).astype(np.float16)

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        def product(a: Any, b: Any, dtype: np.dtype) -> Any:
            a, b = convert(a, float32), convert(b, float32)
            ndim = aval_of(a).ndim
            batch = tuple(range(ndim - 2))
            wide = dot_general(a, b, (ndim - 1,), (ndim - 2,), batch, batch)
            return cast_to_float8(wide, dtype, self.log2_scale)
        if type(x) is Linear:
            return product(ct, swapped(y), x.aval.dtype), None
        return None, product(swapped(x), ct, y.aval.dtype)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return bind(self, [in_lanes(x, d, axis) for x, d in zip(args, dims)]), 0

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.matmul_pow2scaled(x, y, px.constant(self.log2_scale, px.int32))


def swapped(x: Any) -> Any:
    """The last two axes swapped."""
    ndim = aval_of(x).ndim
    return transpose(x, (*range(ndim - 2), ndim - 1, ndim - 2))


def cast_to_float8(x: Any, dtype: np.dtype, log2_scale: int) -> Any:
    """CastToFloat8."""
    return bind(interned(CastToFloat8, dtype, log2_scale), (x,))


def cast_from_float8(x: Any, dtype: np.dtype, log2_scale: int) -> Any:
    """CastFromFloat8."""
    return bind(interned(CastFromFloat8, dtype, log2_scale), (x,))


def matmul_pow2scaled(x: Any, y: Any, log2_scale: int) -> Any:
    """MatmulPow2scaled."""
    return bind(interned(MatmulPow2scaled, log2_scale), (x, y))
