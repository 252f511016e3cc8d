"""Printing of values while a program runs."""

from typing import Optional

from popfn.host.ops import _build
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
