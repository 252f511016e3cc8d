"""What Array's operators and methods call: popfn.numpy's functions, and the few that only an operator has.

Importing this module hands it down to Array, which stands floors below.
"""
from __future__ import annotations

import sys
from typing import Any

from ._indexing import index as index
from .numpy import abs as abs
from .numpy import add as add
from .numpy import all as all
from .numpy import any as any
from .numpy import argmax as argmax
from .numpy import argmin as argmin
from .numpy import astype as astype
from .numpy import clip as clip
from .numpy import divide as divide
from .numpy import equal as equal
from .numpy import floor_divide as floor_divide
from .numpy import greater as greater
from .numpy import greater_equal as greater_equal
from .numpy import less as less
from .numpy import less_equal as less_equal
from .numpy import matmul as matmul
from .numpy import matrix_transpose as matrix_transpose
from .numpy import max as max
from .numpy import mean as mean
from .numpy import min as min
from .numpy import multiply as multiply
from .numpy import negative as negative
from .numpy import not_equal as not_equal
from .numpy import permute_dims as permute_dims
from .numpy import positive as positive
from .numpy import pow as pow
from .numpy import prod as prod
from .numpy import remainder as remainder
from .numpy import reshape as reshape
from .numpy import squeeze as squeeze
from .numpy import std as std
from .numpy import subtract as subtract
from .numpy import sum as sum
from .numpy import var as var
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
