"""Errors, and the places in a user's file that they name.

Every error of popfn is a `PopfnError` and, beside that, the built-in exception that a Python programmer would expect.
A message says what is wrong, where in the user's file, what was seen and what to do; `message` puts the lines together,
so that every error is laid out alike.
"""
from __future__ import annotations

import dis
import functools
import linecache
import os
import sys
from types import CodeType
from typing import Any, Dict, Optional, Tuple

import numpy as np

#: A place in a program: a code object and the offset of an instruction in it. Cheap to take, formatted only when asked.
Source = Tuple[CodeType, int]

# A user's line lies outside popfn, and outside NumPy where NumPy calls an Array's methods.
LIBRARY = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
           os.path.dirname(np.__file__) + os.sep, "<__array_function__")


class _Files(Dict[str, bool]):
    """Whether a file is popfn's own, or NumPy's."""

    def __missing__(self, name: str) -> bool:
        inside = self[name] = name.startswith(LIBRARY)
        return inside


IN_LIBRARY = _Files()


class PopfnError(Exception):
    """The base of all errors that popfn raises on purpose."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "popfn.errors"  # where users import it from


class ShapeError(PopfnError, ValueError):
    """Shapes do not go together."""


class DtypeError(PopfnError, TypeError):
    """A dtype is not supported, or dtypes do not go together."""


class RangeError(PopfnError, IndexError):
    """An index is out of range, or is none."""


class NarrowingError(PopfnError, OverflowError):
    """A value does not fit the dtype that it has to take."""


class ConcretizationError(PopfnError, TypeError):
    """Python asked a traced value for a number that is not known while the function is traced."""


class LeakError(PopfnError, RuntimeError):
    """A traced value was used after its trace had ended, or outside of it."""


class AxisError(PopfnError, ValueError):
    """A named axis is not in scope, or a value does not vary over it as it must."""


class DonationError(PopfnError, RuntimeError):
    """An array was used after a call to which it was donated."""


class NotFiniteError(PopfnError, ArithmeticError):
    """An operation made a NaN or an infinity, where `debug.nans` looks for them."""


class MissingRuleError(PopfnError, NotImplementedError):
    """A primitive lacks the rule that a transform needs."""


class JaxprError(PopfnError, ValueError):
    """A jaxpr is ill-formed, or its text cannot be read."""


class ArgumentError(PopfnError, TypeError):
    """An argument of a transform, or of a function that it wraps, is of the wrong kind."""


class TreeError(PopfnError, ValueError):
    """Two pytrees that should have the same structure do not."""


class AnnotationError(PopfnError, TypeError):
    """An argument does not have the type that its jaxtyping annotation asks for."""


class InputError(PopfnError, ValueError):
    """Data given to a program or a session does not fit it."""


class LoweringError(PopfnError, RuntimeError):
    """A lowering rule broke its contract, or a program cannot be said in PopXL."""


class DeviceError(PopfnError, RuntimeError):
    """The device or the SDK that was asked for is not there."""


def user_source(depth: int = 1) -> Optional[Source]:
    """The innermost place outside popfn's and NumPy's files, `depth` frames up to begin with."""
    frame = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        if not IN_LIBRARY[code.co_filename]:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


def source_line(source: Source) -> int:
    """The line number of a place."""
    code, lasti = source
    line = code.co_firstlineno
    for start, number in dis.findlinestarts(code):
        if start > lasti:
            break
        if number is not None:
            line = number
    return line


def file_name(path: str) -> str:
    """A path as short as it can be shown: relative to the working directory if it lies below it."""
    here = os.getcwd() + os.sep
    return path[len(here):] if path.startswith(here) else path


def where(source: Optional[Source]) -> str:
    """`file.py:12, in loss: h = x @ w` for a place, "an unknown place" for None."""
    if source is None:
        return "an unknown place"
    code, line = source[0], source_line(source)
    text = linecache.getline(code.co_filename, line).strip()
    return f"{file_name(code.co_filename)}:{line}, in {code.co_name}" + (f": {text}" if text else "")


def function_name(f: Any) -> str:
    """`loss (model.py:12)` for a function, a method or what wraps one; any other callable's type and `__call__`."""
    while isinstance(f, functools.partial) or hasattr(f, "__wrapped__"):
        f = f.func if isinstance(f, functools.partial) else f.__wrapped__
    name: str = getattr(f, "__qualname__", None) or getattr(f, "__name__", None) or type(f).__name__
    name = name.replace("<locals>.", "")
    code = getattr(f, "__code__", None) or callable(f) and getattr(type(f).__call__, "__code__", None)
    return name if not code else f"{name} ({file_name(code.co_filename)}:{code.co_firstlineno})"


def located(e: PopfnError, source: Optional[Source] = None) -> PopfnError:
    """An error with the user's line, by default the one that is running; as it is if it names a line already."""
    text = str(e)
    if "\n  at " in text:
        return e
    first, *notes = text.split("\n  ")
    return type(e)(message(first, *notes, at=source or user_source(2)))


def message(what: str, *notes: Optional[str], at: Optional[Source] = None) -> str:
    """Lay out an error: the fault, the user's line, what was seen, the way out, a line each."""
    lines = [what] + ([f"at {where(at)}"] if at is not None else []) + [n for n in notes if n]
    return "\n  ".join(lines)
