"""Linear algebra."""

import math
from typing import Any, Callable, Dict, Optional

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels import emit
from popfn.host.kernels.kernel import Kernel
from popfn.host.kernels.values import out_dtype
from popfn.host.ops import _build
from popfn.host.tensor import Shape, Tensor


def matmul(
    lhs: Tensor,
    rhs: Tensor,
    available_memory_proportion: Optional[float] = None,
    output_type: Optional[dtypes.dtype] = None,
    partials_type: Optional[dtypes.dtype] = None,
) -> Tensor:
    """Multiply matrices, as `numpy.matmul` does: leading axes broadcast, a vector is a row or a column.

    Args:
        lhs, rhs: The operands, of one dtype.
        available_memory_proportion: Has no effect on the host.
        output_type: The dtype of the result, by default that of `lhs`.
        partials_type: float16 or float32, the dtype of intermediate sums; by default that of the session
            option `partialsTypeMatMuls`, else float32.

    Raises:
        TypeError: If an operand is no Tensor, or a type no popxl dtype.
        ValueError: If an operand is of another graph, or `partials_type` another dtype.
        popart_exception: If the shapes do not fit, an operand is a scalar, or of an 8-bit float dtype.

    Example:
        >>> import popfn.host as popxl
        >>> ir = popxl.Ir()
        >>> x, w = popxl.TensorSpec((4, 2), popxl.float32), popxl.TensorSpec((2, 3), popxl.float32)
        >>> ir.create_graph(popxl.ops.matmul, x, w).outputs[0].shape
        (4, 3)
    """
    graph = _build.checked("matmul", lhs=lhs, rhs=rhs)
    for name, given in (("output_type", output_type), ("partials_type", partials_type)):
        if given is not None and not isinstance(given, dtypes.dtype):
            raise TypeError(f"matmul: {name} must be a popxl dtype, not {given!r}.")
    if partials_type not in (None, dtypes.float16, dtypes.float32):
        raise ValueError(f"matmul: partials_type must be float16 or float32, not {partials_type.name}.")
    for t in (lhs, rhs):
        if t.dtype in (dtypes.float8_143, dtypes.float8_152):
            raise popart_exception(f"matmul: operands of {t.dtype.name} need a scale.")
    shape = product_shape("matmul", lhs, rhs)
    dtype = output_type or lhs.dtype
    fault = None
    if lhs.dtype is not rhs.dtype:
        fault = f"the dtypes {lhs.dtype.name} and {rhs.dtype.name} differ"
    elif lhs.dtype.is_floating_point and not dtype.is_floating_point:
        fault = f"the product of {lhs.dtype.name} tensors cannot be {dtype.name}"
    attrs = {"partials_type": partials_type}
    return _build.emit(graph, "matmul", (lhs, rhs), shape, dtype, attrs, fault=fault)


def _matmul_value(xp: Any, op: Any, x: Any, y: Any) -> Any:
    """The product of matrices, vectors being rows or columns."""
    if not _has_half_partials(op):
        dtype = out_dtype(op)
        if dtype.kind != x.dtype.kind or dtype.itemsize > x.dtype.itemsize:
            x, y = x.astype(dtype), y.astype(dtype)
        return xp.matmul(x, y)
    x = x if x.ndim > 1 else x[None]
    y = y if y.ndim > 1 else y[:, None]
    return xp.reshape(_half_product(xp, x, y), op.outputs[0].shape)


def _emit_matmul(s: Any) -> None:
    """Let BLAS do it unless the sums are float16."""
    if _has_half_partials(s.op):
        emit.call_value(s)
        return
    x, y, out = s.ins[0], s.ins[1], s.out
    if x.dtype != out.dtype:
        if x.dtype.kind != "f":
            emit.call_value(s)
            return
        out = s.scratch(out.shape, x.dtype)
    if x.dtype.kind == "f":
        x, y = (t if _suits_blas(t) else s.compact(t) for t in (x, y))
        if len(x.shape) > 2 and len(y.shape) > 1 and x.contiguous and math.prod(y.shape[:-2]) == 1:
            # One product of all rows instead of one for each batch.
            x, y = s.reshaped(x, (-1, x.shape[-1])), s.matrix(y)
            s.apply("matmul", x, y, out=s.reshaped(out, (-1, out.shape[-1])))
        else:
            s.apply("matmul", x, y, out=out)
    else:
        s.apply("matmul", x, y, out=out)
    if out is not s.out:
        s.copy(s.out, out)


def _suits_blas(t: Any) -> bool:
    """Whether BLAS reads the matrices of `t` where they are; NumPy's own loops are ten times slower."""
    size = t.dtype.itemsize
    if len(t.shape) == 1:
        return t.strides[0] == size or t.shape[0] == 1
    (rows, columns), (down, along) = t.shape[-2:], t.strides[-2:]
    if rows == 1 or columns == 1:
        return t.contiguous
    return (along == size and down >= size * columns and down % size == 0) or (
        down == size and along >= size * rows and along % size == 0
    )


def product_shape(op: str, lhs: Tensor, rhs: Tensor) -> Shape:
    """Return the shape of a matrix product, or raise popart_exception."""
    x, y = lhs.shape, rhs.shape
    if not x or not y:
        raise popart_exception(f"{op}: {lhs!r} and {rhs!r} have no product: an operand is a scalar.")
    rows, columns = x[-2:-1], y[-1:] if len(y) > 1 else ()
    if x[-1] != y[-2 if len(y) > 1 else -1]:
        raise popart_exception(f"{op}: the shapes of {lhs!r} and {rhs!r} do not fit: the inner axes differ.")
    try:
        return _build.broadcast_shapes(x[:-2], y[:-2]) + rows + columns
    except ValueError:
        raise popart_exception(
            f"{op}: the shapes of {lhs!r} and {rhs!r} do not fit: the leading axes do not broadcast."
        ) from None


# Sums of float16


# As many sums as stay in a core's cache.
_BLOCK = 1 << 15


def _has_half_partials(op: Any) -> bool:
    """Whether the sums of a product are float16: if the session options say so and the operands are."""
    options = op.graph.ir._pb_ir.getSessionOptions()
    return options.partialsTypeMatMuls == "half" and op.inputs[0].dtype is dtypes.float16


def product(xp: Any, op: Any) -> Callable[[Any, Any], Any]:
    """The function that multiplies stacks of matrices for an op."""
    return (lambda x, y: _half_product(xp, x, y)) if _has_half_partials(op) else xp.matmul


def _half_product(xp: Any, x: Any, y: Any) -> Any:
    """A product of stacks of matrices as float32, each partial sum of which is rounded to float16."""
    x, y = x.astype(np.float32), y.astype(np.float32)
    if xp is np:
        return _half_product_numpy(x, y)
    from jax import lax

    def step(k: Any, total: Any) -> Any:
        row = lax.dynamic_index_in_dim(x, k, x.ndim - 1)
        column = lax.dynamic_index_in_dim(y, k, y.ndim - 2)
        return (total + row * column).astype(np.float16).astype(np.float32)

    shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2]) + (x.shape[-2], y.shape[-1])
    return lax.fori_loop(0, x.shape[-1], step, xp.zeros(shape, np.float32))


def _half_product_numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    (rows, inner), columns = x.shape[-2:], y.shape[-1]
    x, y = np.broadcast_to(x, lead + x.shape[-2:]), np.broadcast_to(y, lead + y.shape[-2:])
    result = np.zeros(lead + (rows, columns), np.float32)
    height = max(1, _BLOCK // max(columns, 1))
    for place in np.ndindex(*lead):
        for start in range(0, rows, height):
            block, total = x[place][start : start + height], result[place][start : start + height]
            part, unit = np.empty(total.shape, np.float32), np.empty(total.shape, np.float32)
            for k in range(inner):
                np.multiply(block[:, k : k + 1], y[place][k], out=part)
                np.add(total, part, out=total)
                _round_to_half(total, unit)
    return result


def _round_to_half(x: np.ndarray, scratch: np.ndarray) -> None:
    """Round float32 numbers to float16 ones, in place. NumPy converts one number at a time, which takes much longer."""
    # x + c - c is x rounded to the last bit of c, which is that of a float16 if c is 1.5 * 2**13 times the power of two
    # in x. The powers are limited: below 2**-14 float16 is evenly spaced, and from 2**16 on it is infinite.
    np.bitwise_and(x.view(np.int32), np.int32(0x7F800000), out=scratch.view(np.int32))
    np.maximum(scratch, np.float32(2.0**-14), out=scratch)
    np.minimum(scratch, np.float32(2.0**16), out=scratch)
    np.multiply(scratch, np.float32(1.5 * 2**13), out=scratch)
    np.add(x, scratch, out=x)
    np.subtract(x, scratch, out=x)
    np.multiply(x, np.float32(2.0**112), out=x)
    np.multiply(x, np.float32(2.0**-112), out=x)


KERNELS: Dict[str, Kernel] = {
    "matmul": Kernel(_matmul_value, _emit_matmul, float32=True),
}
