"""Linear algebra."""

from typing import Optional

from popfn.host import dtypes
from popfn.host.errors import popart_exception
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
    shape = product_shape("matmul", lhs.shape, rhs.shape)
    dtype = output_type or lhs.dtype
    fault = None
    if lhs.dtype is not rhs.dtype:
        fault = f"the dtypes {lhs.dtype.name} and {rhs.dtype.name} differ"
    elif lhs.dtype.is_floating_point and not dtype.is_floating_point:
        fault = f"the product of {lhs.dtype.name} tensors cannot be {dtype.name}"
    attrs = {"partials_type": partials_type}
    return _build.emit(graph, "matmul", (lhs, rhs), shape, dtype, attrs, fault=fault)


def product_shape(op: str, lhs: Shape, rhs: Shape) -> Shape:
    """Return the shape of a matrix product, or raise popart_exception."""
    if not lhs or not rhs:
        raise popart_exception(f"{op}: the shapes are {lhs} and {rhs}: an operand is a scalar.")
    rows, columns = lhs[-2:-1], rhs[-1:] if len(rhs) > 1 else ()
    if lhs[-1] != rhs[-2 if len(rhs) > 1 else -1]:
        raise popart_exception(f"{op}: the shapes {lhs} and {rhs} do not fit: the inner axes differ.")
    return _build.broadcast(op, lhs[:-2], rhs[:-2]) + rows + columns
