"""8-bit floats: they are made and used with a scale, a power of two.

Errors: TypeError for an operand that is no Tensor or a scale that is no int32, ValueError for a tensor of another
graph or a scale that is no scalar.
"""

from typing import Optional

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.graph import Graph
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
    shape = product_shape(kind, lhs.shape, rhs.shape)
    return _build.emit(graph, kind, (lhs, rhs, log2_scale), shape, dtypes.float16)
