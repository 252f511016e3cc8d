"""Conversion of host data to NumPy arrays."""

import reprlib
from typing import Any, List, Optional

import numpy as np

from popfn.host import dtypes
from popfn.host.fp8_utils import host_pow2scale_cast_to_fp8

downcast_np_dtypes = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
}


def to_numpy(
    x: Any,
    dtype: Optional[dtypes.dtype] = None,
    downcast: bool = True,
    copy: bool = True,
    log2_scale: Optional[int] = None,
    nan_on_overflow: Optional[bool] = None,
) -> np.ndarray:
    """Return host data (a number, list, NumPy array or torch tensor) as a C-ordered array.

    With `dtype` the data is cast to it. Without, 64-bit numbers become 32-bit ones unless `downcast` is
    False. A `np.memmap` stays the object it is. `copy=False` allows the result to share memory with `x`.

    Raises:
        TypeError: If the data is not numeric; None counts as NaN, as in PopXL.
        ValueError: If the data is an empty list, lists of different lengths or text, or a memmap that would have
            to be converted.
        RuntimeError: If `log2_scale` or `nan_on_overflow` is given and `dtype` is no 8-bit float.

    Example:
        >>> import popfn.host as popxl
        >>> popxl.utils.to_numpy([1.5, 2]).dtype
        dtype('float32')
    """
    if dtype is not None and not isinstance(dtype, dtypes.dtype):
        raise TypeError(f"to_numpy: dtype must be a popxl dtype, not {dtype!r}.")
    float8 = dtype if dtype in (dtypes.float8_143, dtypes.float8_152) else None
    if float8 is None and not (log2_scale is None and nan_on_overflow is None):
        raise RuntimeError(
            f"to_numpy: log2_scale and nan_on_overflow are for 8-bit floats; the dtype is {dtype!r}."
        )
    if isinstance(x, np.memmap):
        return _checked_memmap(x, dtype, downcast)
    array = as_array(x)
    if array.dtype.kind not in "biufcV":
        array = _as_floats(array)
    if float8 is not None:
        array = _to_float8(array, float8, log2_scale, nan_on_overflow)
    else:
        target = dtype.as_numpy() if dtype else downcast_np_dtypes.get(array.dtype) if downcast else None
        if target is not None and target != array.dtype:
            with np.errstate(all="ignore"):  # values out of range wrap or become infinite, as on the device
                return array.astype(target, order="C")
    if copy and (array is x or array.base is not None):
        return np.array(array, order="C")
    return np.asarray(array, order="C")


def as_array(x: Any) -> np.ndarray:
    """Host data as an array of the dtype that NumPy gives it, which may be objects or text; a memmap as it is.

    Raises:
        TypeError, ValueError: If NumPy makes no array of it, or it is an empty list.
    """
    if isinstance(x, np.memmap):
        return x
    if type(x).__module__ == "torch":
        x = x.detach().cpu().numpy()
    if isinstance(x, (list, tuple)) and not x:
        raise ValueError(f"to_numpy: an empty {type(x).__name__} has no dtype: pass a NumPy array.")
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"to_numpy: the data is no array: {error}") from None


def check_numeric(array: np.ndarray) -> None:
    """Refuse what is no array of numbers but becomes one: NumPy reads text, and None as NaN and dates as numbers.

    Raises:
        TypeError: For None and dates.
        ValueError: For text.
    """
    if array.dtype.kind in "US":
        raise ValueError(f"it is text, {reprlib.repr(array.tolist())}")
    if array.dtype.kind in "Mm":
        raise TypeError(f"it is of {array.dtype}")
    for x in array.flat if array.dtype.kind == "O" else ():
        if x is None:
            raise TypeError("it has None")
        if isinstance(x, (str, bytes)):
            raise ValueError(f"it has {reprlib.repr(x)}")


def _checked_memmap(x: np.memmap, dtype: Optional[dtypes.dtype], downcast: bool) -> np.memmap:
    """A memmap is used in place, so no conversion is possible."""
    if dtype is not None and dtype.as_numpy() != x.dtype:
        problem = f"its dtype is {x.dtype}, not {dtype.as_numpy()}"
    elif dtype is None and downcast and x.dtype in downcast_np_dtypes:
        problem = f"its dtype, {x.dtype}, would be narrowed (downcast=False or dtype= keeps it)"
    elif not (x.flags.c_contiguous and x.flags.aligned):
        problem = "it is not C-contiguous and aligned"
    else:
        return x
    raise ValueError(f"to_numpy: the memmap cannot be used in place: {problem}.")


def _as_floats(array: np.ndarray) -> np.ndarray:
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"to_numpy: the data is not numeric: {error}") from None


def _to_float8(
    array: np.ndarray, dtype: dtypes.dtype, log2_scale: Optional[int], nan_on_overflow: Optional[bool]
) -> np.ndarray:
    if array.dtype == dtype.as_numpy():
        return array
    if array.dtype.kind != "f":
        raise TypeError(f"to_numpy: {dtype} cannot be made of {array.dtype} data.")
    return host_pow2scale_cast_to_fp8(
        array,
        dtype,
        0 if log2_scale is None else log2_scale,
        True if nan_on_overflow is None else nan_on_overflow,
    )


def table_to_string(rows: List[List[Any]], delimiter: str = " | ", header: bool = True) -> str:
    """Return rows of a table as text, with columns of equal width.

    Args:
        rows: The rows, each a list of as many cells.
        delimiter: What stands between two cells.
        header: Whether to draw a line below the first row.

    Example:
        >>> import popfn.host as popxl
        >>> print(popxl.utils.table_to_string([["op", "n"], ["matmul", 12]]))
        op     | n
        -----------
        matmul | 12
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts)]
    lines = [
        delimiter.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in texts
    ]
    if header and lines:
        lines.insert(1, "-" * (sum(widths) + len(delimiter) * (len(widths) - 1)))
    return "\n".join(lines)
