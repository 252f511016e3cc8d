"""Products of matrices: float16 sums where the program asks for them, and 8-bit floats."""

from typing import Any, Callable, Dict

import numpy as np

from popfn.host import dtypes
from popfn.host.engine import emit, values
from popfn.host.engine.families.float8 import decoded, power_of_two
from popfn.host.engine.kernel import Kernel

# As many sums as stay in a core's cache.
_BLOCK = 1 << 15


def has_half_partials(op: Any) -> bool:
    """Whether the sums of a product are float16: if the session options say so and the operands are."""
    options = op.graph.ir._pb_ir.getSessionOptions()
    return options.partialsTypeMatMuls == "half" and op.inputs[0].dtype is dtypes.float16


def product(xp: Any, op: Any) -> Callable[[Any, Any], Any]:
    """The function that multiplies stacks of matrices for an op."""
    return (lambda x, y: half_product(xp, x, y)) if has_half_partials(op) else xp.matmul


def half_product(xp: Any, x: Any, y: Any) -> Any:
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


def matmul(xp: Any, op: Any, x: Any, y: Any) -> Any:
    """The product of matrices, vectors being rows or columns."""
    if not has_half_partials(op):
        return values.matmul(xp, op, x, y)
    x = x if x.ndim > 1 else x[None]
    y = y if y.ndim > 1 else y[:, None]
    return xp.reshape(half_product(xp, x, y), op.outputs[0].shape)


def emit_matmul(s: Any) -> None:
    """Let BLAS do it unless the sums are float16."""
    if has_half_partials(s.op):
        emit.call_value(s)
    else:
        emit.matmul(s)


def matmul_pow2scaled(xp: Any, op: Any, x: Any, y: Any, log2_scale: Any) -> Any:
    """(x @ y) * 2**log2_scale of 8-bit floats."""
    x, y = decoded(xp, op.inputs[0].dtype, x), decoded(xp, op.inputs[1].dtype, y)
    return xp.matmul(x, y) * power_of_two(xp, log2_scale)


KERNELS: Dict[str, Kernel] = {
    "matmul": Kernel(matmul, emit_matmul, float32=True),
    "matmul_pow2scaled": Kernel(matmul_pow2scaled, float32=True),
}
