"""What is known of dtypes: their limits, their kinds, what they become together."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import ml_dtypes
import numpy as np

from .._promotion import as_dtype
from ..trace.array import Array
from ..trace.aval import FLOATS, SHORT, bool_, float32, int32, promote_types
from ..trace.errors import DtypeError, located, message, user_source
from ..trace.jaxpr import Literal
from ..trace.tracer import aval_of

_KINDS: Dict[str, Tuple[np.dtype, ...]] = {
    "bool": (bool_,), "signed integer": tuple(d for d in SHORT if d.kind == "i"),
    "unsigned integer": tuple(d for d in SHORT if d.kind == "u"),
    "real floating": tuple(d for d in SHORT if d in FLOATS), "complex floating": ()}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"]


class FloatInfo(NamedTuple):
    """The limits of a float dtype, as Python numbers: what `finfo` gives."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


class IntegerInfo(NamedTuple):
    """The limits of an integer dtype: what `iinfo` gives."""

    bits: int
    max: int
    min: int
    dtype: np.dtype


def _dtype_of(x: Any) -> np.dtype:
    """The dtype of an array, or the dtype that is meant."""
    return x.dtype if isinstance(x, Array) else as_dtype(x.dtype if isinstance(x, (np.ndarray, np.generic)) else x)


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a float dtype, or of an array's. Raises DtypeError for other dtypes.

    >>> finfo("float16").max, finfo("float8_143").max
    (65504.0, 240.0)
    """
    d = _dtype_of(type)
    if d not in FLOATS:
        raise DtypeError(message(f"finfo takes a float dtype, got {d.name}", "way out: iinfo tells of integers",
                                 at=user_source(2)))
    info = ml_dtypes.finfo(d)
    return FloatInfo(info.bits, float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), d)


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype, or of an array's. Raises DtypeError for other dtypes.

    >>> iinfo("uint8").max
    255
    """
    d = _dtype_of(type)
    if d.kind not in "iu":
        raise DtypeError(message(f"iinfo takes an integer dtype, got {d.name}", "way out: finfo tells of floats",
                                 at=user_source(2)))
    info = np.iinfo(d)
    return IntegerInfo(info.bits, int(info.max), int(info.min), d)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, or of one of a tuple of kinds.

    A kind is a dtype or "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating"
    (which none is) or "numeric". Raises DtypeError for another.

    >>> isdtype(np.int8, "integral"), isdtype("float16", ("bool", "float32"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    d = as_dtype(dtype)
    return d in _KINDS[kind] if isinstance(kind, str) and kind in _KINDS else d == as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype that arrays, dtypes and Python numbers have together. Raises DtypeError if they have none.

    Python numbers are weak: they take the dtype of what they meet.

    >>> result_type(np.zeros(2, np.float16), 1.5).name, result_type("int32", "float16").name
    ('float16', 'float16')
    """
    if not arrays_and_dtypes:
        raise DtypeError(message("result_type of nothing", at=user_source(2)))
    types = [(a.dtype, a.weak) for a in map(aval_of, filter(_is_value, arrays_and_dtypes))]
    types += [(as_dtype(x), False) for x in arrays_and_dtypes if not _is_value(x)]
    dtype, weak = types[0]
    try:
        for d, w in types[1:]:
            dtype, weak = promote_types(dtype, weak, d, w)
    except DtypeError as e:
        raise located(e) from None
    return dtype


def _is_value(x: Any) -> bool:
    return isinstance(x, (Array, Literal, np.ndarray, np.generic, bool, int, float))


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion leads from a dtype, or an array's, to another: whether the two together are the second.

    >>> can_cast("int8", "int32"), can_cast("float32", "float16")
    (True, False)
    """
    target = as_dtype(to)
    try:
        return promote_types(_dtype_of(from_), False, target, False)[0] == target
    except DtypeError:
        return False


class NamespaceInfo:
    """What the standard's inspection functions tell of `popfn.numpy`."""

    def capabilities(self) -> Dict[str, Any]:
        """No boolean indexing and no shapes that depend on data: shapes are known while tracing."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": None}

    def default_device(self) -> str:
        """Arrays outside a program are on the host."""
        return "host"

    def devices(self) -> Tuple[str, ...]:
        """The one device that arrays outside a program are on."""
        return ("host",)

    def default_dtypes(self, *, device: Any = None) -> Dict[str, np.dtype]:
        """The dtypes of what is made without one."""
        return {"real floating": float32, "integral": int32, "indexing": int32}

    def dtypes(self, *, device: Any = None, kind: Optional[Any] = None) -> Dict[str, np.dtype]:
        """The supported dtypes by name, or those of a kind as in `isdtype`."""
        return {d.name: d for d in SHORT if d.name in _STANDARD and (kind is None or isdtype(d, kind))}


#: The dtypes that the standard knows.
_STANDARD = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32")


def __array_namespace_info__() -> NamespaceInfo:
    """The standard's inspection functions."""
    return NamespaceInfo()
