"""Values as text: what `print_tensor` writes to stderr."""

import math
import sys
from typing import Any, Callable, Dict

import numpy as np

from popfn.host.engine.families.float8 import decoded
from popfn.host.engine.kernel import Kernel


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


def print_tensor(xp: Any, op: Any, t: Any) -> Any:
    """The value; NumPy's is written to stderr behind the title."""
    if op.attrs["print_self"] and xp is np:
        print_value(op, t)
    return t


def print_value(op: Any, t: np.ndarray) -> None:
    """Write the value of an op's input to stderr."""
    dtype = op.inputs[0].dtype
    array = decoded(np, dtype, t) if dtype.as_numpy().fields else np.asarray(t)
    sys.stderr.write(f"{op.attrs['title']}: {tensor_text(op.attrs, array)}\n")


KERNELS: Dict[str, Kernel] = {"print_tensor": Kernel(print_tensor, effect=True)}
