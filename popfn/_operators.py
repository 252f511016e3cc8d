"""What Array's operators and methods call: popfn.numpy's functions, and the few that only an operator has.

Importing this module hands it down to Array, which stands floors below.
"""
from __future__ import annotations

import sys
from typing import Any, Tuple

from . import numpy as numpy
from ._at import At as At
from ._indexing import index as index
from .numpy import (
    abs as abs,
    add as add,
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    astype as astype,
    bitwise_and as bitwise_and,
    bitwise_invert as bitwise_invert,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_xor as bitwise_xor,
    clip as clip,
    divide as divide,
    equal as equal,
    floor_divide as floor_divide,
    greater as greater,
    greater_equal as greater_equal,
    less as less,
    less_equal as less_equal,
    matmul as matmul,
    matrix_transpose as matrix_transpose,
    max as max,
    mean as mean,
    min as min,
    multiply as multiply,
    negative as negative,
    not_equal as not_equal,
    permute_dims as permute_dims,
    positive as positive,
    pow as pow,
    prod as prod,
    remainder as remainder,
    reshape as reshape,
    round as round,
    squeeze as squeeze,
    std as std,
    subtract as subtract,
    sum as sum,
    var as var,
)
from .trace.array import Array, install_operations


def divmod_(x1: Any, x2: Any) -> Tuple[Array, Array]:
    """divmod(x1, x2)."""
    return floor_divide(x1, x2), remainder(x1, x2)


install_operations(sys.modules[__name__])
