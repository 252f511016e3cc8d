"""What an op computes, as a function of arrays: what the values of several families share.

`value(xp, op, *arrays)` works on the array module `xp`, NumPy or one with its functions: it writes nothing in place,
and its shapes depend on shapes alone. `op` is the host's Op: its attrs, and the shapes and dtypes of its inputs and
outputs. What NumPy does faster in its own way stands beside that.

A value does not round: the engine casts the result to the dtype of the op's output, and gives float16 operands as
float32 to the kernels that ask for it.
"""

from typing import Any, Callable

import numpy as np


def function(name: str) -> Callable[..., Any]:
    """The value of an op that is a function of the array module."""
    return lambda xp, op, *xs: getattr(xp, name)(*xs)


def same(xp: Any, op: Any, x: Any) -> Any:
    """The value of an op that gives what it gets."""
    return x


def out_dtype(op: Any) -> np.dtype:
    """The NumPy dtype of the op's first output."""
    return op.outputs[0].dtype.as_numpy()


def is_float(x: Any) -> bool:
    """Whether the elements are floats."""
    return x.dtype.kind == "f"
