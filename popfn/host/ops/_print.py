"""Printing of values while a program runs."""

import math
import sys
from typing import Any, Callable, Dict, Optional

import numpy as np

from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.ops._float8 import decoded
from popfn.host.tensor import Tensor

FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


def print_tensor(
    t: Tensor,
    title: Optional[str] = None,
    print_self: bool = True,
    print_gradient: bool = False,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 75,
    digits: int = 8,
    float_format: str = "auto",
    separator: str = " ",
    open_bracket: str = "[",
    close_bracket: str = "]",
) -> Tensor:
    """Return a copy, and print the value to stderr each time it is computed.

    Args:
        t: The tensor.
        title: What is printed before the value, by default the tensor's name.
        print_self: Whether to print the value.
        print_gradient: Whether to print the gradient.
        summarise_threshold: The number of elements above which only the edges are printed.
        edge_items: How many elements are printed at the edges.
        max_line_width: The length of a line.
        digits: The digits of a number.
        float_format: "auto", "fixed", "scientific" or "none".
        separator, open_bracket, close_bracket: One character each.

    Raises:
        TypeError: If `t` is no Tensor.
        ValueError: If `t` is of another graph, or a separator or bracket is not one character.
        KeyError: If there is no such `float_format`.
    """
    graph = _build.checked("print_tensor", t=t)
    for name, text in (
        ("separator", separator),
        ("open_bracket", open_bracket),
        ("close_bracket", close_bracket),
    ):
        if not isinstance(text, str) or len(text) != 1:
            raise ValueError(f"print_tensor: {name} must be one character, not {text!r}.")
    if float_format not in FLOAT_FORMATS:
        formats = ", ".join(FLOAT_FORMATS)
        raise KeyError(f"print_tensor: float_format must be one of {formats}, not {float_format!r}.")
    attrs = {
        "title": f"print_{t.name}" if title is None else title,
        "print_self": bool(print_self),
        "print_gradient": bool(print_gradient),
        "summarise_threshold": _build.as_int("print_tensor", "summarise_threshold", summarise_threshold),
        "edge_items": _build.as_int("print_tensor", "edge_items", edge_items),
        "max_line_width": _build.as_int("print_tensor", "max_line_width", max_line_width),
        "digits": _build.as_int("print_tensor", "digits", digits),
        "float_format": float_format,
        "separator": separator,
        "open_bracket": open_bracket,
        "close_bracket": close_bracket,
    }
    return _build.emit_like(graph, "print_tensor", (t,), attrs, "print_out")


def _print_tensor_value(xp: Any, op: Any, t: Any) -> Any:
    """The value; NumPy's is written to stderr behind the title."""
    if op.attrs["print_self"] and xp is np:
        print_value(op, t)
    return t


def print_value(op: Any, t: np.ndarray) -> None:
    """Write the value of an op's input to stderr."""
    dtype = op.inputs[0].dtype
    array = decoded(np, dtype, t) if dtype.as_numpy().fields else np.asarray(t)
    sys.stderr.write(f"{op.attrs['title']}: {tensor_text(op.attrs, array)}\n")


def tensor_text(attrs: Dict[str, Any], array: np.ndarray) -> str:
    """The text of a value, in rows of aligned numbers, one bracket for each axis.

    `digits` counts those of a number without its exponent; 0 leaves out the alignment. "fixed" is of the form -12.5,
    "scientific" of the form -1.25e+01, "none" is the shortest exact text; "auto" is fixed unless the digits would not
    do. Of a value with more than `summarise_threshold` elements only `edge_items` at each edge of an axis are shown.

    >>> attrs = {"summarise_threshold": 9, "edge_items": 1, "max_line_width": 75, "digits": 3, "float_format": "auto"}
    >>> attrs.update(separator=",", open_bracket="{", close_bracket="}")
    >>> print(tensor_text(attrs, np.array([[1, -2.5], [0, 12]])))
    {{ 1.0,-2.5},
     { 0.0,12.0}}
    """
    form = _number_form(attrs, array)
    shown = _shown(attrs, array)
    width = max([len(form(x)) for x in shown.reshape(-1).tolist()], default=0) if attrs["digits"] else 0
    text = np.array2string(
        array,
        max_line_width=max(attrs["max_line_width"], 1),
        separator=attrs["separator"],
        threshold=attrs["summarise_threshold"],
        edgeitems=attrs["edge_items"],
        formatter={"all": lambda x: form(x).rjust(width)},
    )
    return text.translate(str.maketrans({"[": attrs["open_bracket"], "]": attrs["close_bracket"]}))


def _shown(attrs: Dict[str, Any], array: np.ndarray) -> np.ndarray:
    """The elements that the text contains."""
    edge = attrs["edge_items"]
    if array.size > attrs["summarise_threshold"]:
        for axis, length in enumerate(array.shape):
            if length > 2 * edge:
                array = np.take(array, [*range(edge), *range(length - edge, length)], axis=axis)
    return array


def _number_form(attrs: Dict[str, Any], array: np.ndarray) -> Callable[[Any], str]:
    form, digits = attrs["float_format"], attrs["digits"]
    if array.dtype.kind != "f":
        return lambda x: str(int(x))
    if form == "none" or digits == 0:
        return lambda x: str(array.dtype.type(x))
    sizes = np.abs(_shown(attrs, array).astype(np.float64))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    whole = math.floor(math.log10(sizes.max())) + 1 if sizes.size else 1
    if form == "auto":
        is_fixed = whole <= digits and (not sizes.size or sizes.min() >= 10.0 ** -(digits // 2))
        form = "fixed" if is_fixed else "scientific"
    if form == "fixed":
        decimals = max(digits - max(whole, 1), 0)
        return lambda x: f"{x:.{decimals}f}"
    return lambda x: f"{x:.{digits - 1}e}"


KERNELS: Dict[str, Kernel] = {"print_tensor": Kernel(_print_tensor_value, effect=True)}
