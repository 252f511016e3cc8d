"""What Array's operators and methods call: popfn.numpy's functions, and the few that only an operator has.

Importing this module hands it down to Array, which stands floors below.
"""
from __future__ import annotations

import sys
from typing import Any, Tuple

from ._indexing import index as index
from .numpy import (
    abs as abs,
    add as add,
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    astype as astype,
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
    squeeze as squeeze,
    std as std,
    subtract as subtract,
    sum as sum,
    var as var,
)
from .trace import prims
from .trace.array import Array, install_operations
from .trace.aval import bool_
from .trace.errors import DtypeError, message, user_source
from .trace.tracer import aval_of


def _bools_only(sign: str, *xs: Any) -> None:
    for x in xs:
        if aval_of(x).dtype != bool_:
            raise DtypeError(message(
                f"{sign} takes bools, got {' and '.join(str(aval_of(x)) for x in xs)}: PopXL has no bitwise operations",
                "way out: logical_and, logical_or, logical_xor and logical_not take numbers as truth values",
                at=user_source(3)))


def divmod_(x1: Any, x2: Any) -> Tuple[Array, Array]:
    """divmod(x1, x2)."""
    return floor_divide(x1, x2), remainder(x1, x2)


def and_(x1: Any, x2: Any) -> Array:
    """x1 & x2 of bools."""
    _bools_only("&", x1, x2)
    return prims.and_(x1, x2)


def or_(x1: Any, x2: Any) -> Array:
    """x1 | x2 of bools."""
    _bools_only("|", x1, x2)
    return prims.or_(x1, x2)


def xor(x1: Any, x2: Any) -> Array:
    """x1 ^ x2 of bools."""
    _bools_only("^", x1, x2)
    return prims.ne(x1, x2)


def invert(x: Any) -> Array:
    """~x of bools."""
    _bools_only("~", x)
    return prims.not_(x)


install_operations(sys.modules[__name__])
