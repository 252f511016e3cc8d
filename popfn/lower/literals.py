"""Values as Python source: numbers, dtypes and arrays, exact to the last bit."""
from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

WIDTH = 100
SMALL = 32  # elements of an array that is written out
UNBROKEN = "\0"  # a space at which `wrapped` breaks no line


def wrapped(text: str, indent: str) -> str:
    """A statement, broken at spaces if it is too long for a line; those have to be inside brackets."""
    if len(indent) + len(text) > WIDTH:
        text = textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    ",
                             break_long_words=False, break_on_hyphens=False)
    else:
        text = indent + text
    return text.replace(UNBROKEN, " ")


def dtype_text(dtype: np.dtype) -> str:
    """`np.float32`; PopXL's structured dtypes of float8 in full."""
    if dtype.names:
        return f'np.dtype([("{dtype.names[0]}", "u1")])'
    return "np.bool_" if dtype == np.bool_ else f"np.{dtype.name}"


def number_text(x: Any) -> str:
    """A Python or NumPy number, as short as it can be said."""
    value = x[()] if isinstance(x, np.ndarray) else x
    if isinstance(value, (float, np.floating)):
        if value != value:
            return "np.nan"
        if value in (np.inf, -np.inf):
            return "np.inf" if value > 0 else "-np.inf"
        return repr(value) if isinstance(value, float) else str(value)
    return repr(value.item() if isinstance(value, np.generic) else value)


def has_plain_nans(x: np.ndarray) -> bool:
    """Whether all NaNs of an array have the bits of np.nan."""
    if x.dtype.kind != "f":
        return True
    plain = x.copy()
    plain[np.isnan(x)] = np.nan
    return plain.tobytes() == x.tobytes()


def is_small(x: np.ndarray) -> bool:
    """Whether `array_text` can write an array on a line or two."""
    return not x.dtype.names and has_plain_nans(x) and (x.size <= SMALL or is_uniform(x) or is_range(x))


def is_uniform(x: np.ndarray) -> bool:
    """Whether all elements have the same bits."""
    data = x.tobytes()
    return data == data[:x.itemsize] * x.size


def is_range(x: np.ndarray) -> bool:
    """Whether the elements are 0, 1, 2, ..."""
    return x.ndim == 1 and x.size > 1 and x.tobytes() == np.arange(x.size).astype(x.dtype).tobytes()


def array_text(x: np.ndarray) -> str:
    """An array that is small, uniform or a range."""
    dtype = dtype_text(x.dtype)
    if x.ndim and is_range(x):
        return f"np.arange({x.size}, dtype={dtype})"
    if x.size > 1 and is_uniform(x):
        first = number_text(x.reshape(-1)[:1].reshape(()))
        for f, value in (("zeros", 0), ("ones", 1)):
            if first == number_text(x.dtype.type(value)):
                return f"np.{f}({x.shape}, {dtype})"
        return f"np.full({x.shape}, {first}, {dtype})"
    return f"np.array({nested_text(x)}, {dtype})"


def nested_text(x: np.ndarray) -> str:
    """The elements as nested lists."""
    return number_text(x) if not x.ndim else "[" + ", ".join(nested_text(row) for row in x) + "]"


def bytes_text(x: np.ndarray, name: str) -> str:
    """`name = ...` for an array of any size and content."""
    rows = [f'    "{row}"' for row in textwrap.wrap(x.tobytes().hex(), WIDTH - 6)]
    shape = "" if x.ndim == 1 else f".reshape{x.shape}" if x.ndim else ".reshape(())"
    return "\n".join([f"{name} = np.frombuffer(bytes.fromhex(", *rows, f"), {dtype_text(x.dtype)}){shape}"])
