"""Operands that may be numbers or tensors of one element, as factors of updates are.

The attribute holds the number, or None; then the tensor is an input of the op, and the attribute `operands`, the names
of all inputs, tells which.
"""

from typing import Any, Dict, Optional, Tuple

import numpy as np

from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def scalars(op: str, **values: Any) -> Tuple[Dict[str, Optional[float]], Dict[str, Tensor]]:
    """Sort operands that are a float, None or a tensor of one element: attributes, and tensors by name.

    The attribute of a tensor is None. TypeError for anything else.
    """
    attrs: Dict[str, Optional[float]] = {}
    tensors: Dict[str, Tensor] = {}
    for name, value in values.items():
        attrs[name] = None
        if isinstance(value, Tensor):
            tensors[name] = value
        elif value is not None:
            if not isinstance(value, (int, float)):
                raise TypeError(f"{op}: {name} must be a float or a Tensor, not {value!r}.")
            attrs[name] = float(value)
    return attrs, tensors


def scalar_fault(tensors: Dict[str, Tensor]) -> Optional[str]:
    """What is wrong with the tensors of `scalars`."""
    for name, t in tensors.items():
        if _build.nelms(t.shape) != 1:
            return f"{name}, {t!r}, is no scalar"
    return None


def factor_value(xp: Any, op: Any, name: str, arrays: Any) -> Any:
    """An operand that is a number, a tensor of one element, or None."""
    operands = op.attrs["operands"]
    return xp.reshape(arrays[operands.index(name)], ()) if name in operands else op.attrs[name]


def times(factor: Any, x: Any) -> Any:
    """A product; where the factor is the number 1, what is multiplied, so that integers stay exact."""
    return x if isinstance(factor, float) and factor == 1 else x * factor


def factor_operand(s: Any, name: str, dtype: np.dtype) -> Any:
    """The operand of a factor for an emitter: a constant, or a scalar."""
    operands = s.op.attrs["operands"]
    if name in operands:
        return s.reshaped(s.ins[operands.index(name)], ())
    return s.constant(s.op.attrs[name], dtype)


def emit_product(s: Any, x: Any, factor: Any) -> Any:
    """Emit the product of `x` and a factor into scratch memory, which is returned."""
    product = s.scratch(x.shape, s.out.dtype)
    s.apply("multiply", x, factor, out=product)
    return product
