"""From a user's arguments to the arrays that a program takes, with errors that name the leaf."""
from __future__ import annotations

from typing import Any, List

import numpy as np

from ..trace import tree
from ..trace.array import Array
from ..trace.aval import SHORT, Aval, as_numpy, scalar_array
from ..trace.errors import DtypeError, InputError, NarrowingError, message, user_source


def type_of(x: Any) -> str:
    """What a leaf is, for an error: `f32[3]`, `f64[3]`, `a list`."""
    if isinstance(x, Array):
        return str(x.aval.strong)
    if isinstance(x, Aval):
        return f"the aval {x}"
    if isinstance(x, np.ndarray):
        return f"{SHORT.get(x.dtype, x.dtype.name)}[{','.join(map(str, x.shape))}]"
    return f"the Python {type(x).__name__} {x!r}" if isinstance(x, (bool, int, float)) else f"a {type(x).__name__}"


def leaf_array(x: Any, aval: Aval, what: str) -> np.ndarray:
    """A leaf as an array of exactly this type; `what` names it in errors (`argument x of step`).

    64-bit data is narrowed if every value survives, and a Python number takes the dtype if it fits; nothing else is
    converted. Raises InputError, or NarrowingError for a value that does not survive.
    """
    if isinstance(x, Array):
        x = x.known(f"a session's {what}")
    if type(x) in (bool, int, float):
        return scalar_leaf(x, aval, what)
    if isinstance(x, (list, tuple, dict, str)) or x is None or not hasattr(x, "__array__"):
        raise InputError(message(
            f"{what}: expected {aval.strong}, got {type_of(x)}",
            f"way out: np.asarray(..., np.{aval.dtype.name})" if isinstance(x, (list, tuple)) else None,
            at=user_source(2)))
    try:
        array = as_numpy(x)
    except (DtypeError, NarrowingError) as e:
        raise type(e)(message(f"{what}: expected {aval.strong}, got {type_of(np.asarray(x))}: {e}",
                              at=user_source(2))) from None
    if array.shape != aval.shape:
        raise InputError(message(
            f"{what}: expected {aval.strong}, got {type_of(np.asarray(x))}",
            "way out: reshape it, or lower the program again for this shape" if array.size == aval.size else
            "way out: give data of the shape that the program was lowered for, or lower it again for this one",
            at=user_source(2)))
    if array.dtype != aval.dtype:
        raise InputError(message(
            f"{what}: expected {aval.strong}, got {type_of(np.asarray(x))}",
            f"way out: x.astype(np.{aval.dtype.name}); nothing is converted unseen", at=user_source(2)))
    return np.ascontiguousarray(array) if array.ndim else array


def scalar_leaf(x: Any, aval: Aval, what: str) -> np.ndarray:
    """A Python number as a scalar of this type. Raises InputError or NarrowingError."""
    integer, boolean = aval.dtype.kind in "iu", aval.dtype == np.bool_
    if aval.ndim or isinstance(x, bool) != boolean or isinstance(x, float) and integer:
        raise InputError(message(f"{what}: expected {aval.strong}, got {type_of(x)}", at=user_source(2)))
    try:
        return scalar_array(x, aval.dtype)
    except NarrowingError as e:
        raise NarrowingError(message(f"{what}: expected {aval.strong}: {e}", at=user_source(2))) from None


def output_array(x: Any, aval: Aval, what: str) -> np.ndarray:
    """A leaf that results are written into. Raises InputError unless it is a writeable array of exactly this type."""
    if not isinstance(x, np.ndarray) or (x.shape, x.dtype) != (aval.shape, aval.dtype):
        raise InputError(message(f"{what}: expected a NumPy array {aval.strong} to write into, got {type_of(x)}",
                                 at=user_source(2)))
    if not x.flags.writeable:
        raise InputError(message(f"{what}: the array is read-only; results are written into it", at=user_source(2)))
    return x


def flat_leaves(x: Any, treedef: tree.TreeDef, root: str, what: str) -> List[Any]:
    """The leaves of a tree of this structure. Raises InputError that names those that are missing or not expected."""
    if treedef.is_leaf():
        return [x]
    leaves, got = tree.flatten(x)
    if got != treedef:
        raise InputError(message(f"{what}: the structure is not that which the program was lowered for",
                                 structure_note(root, treedef, got), at=user_source(2)))
    return leaves


def structure_note(root: str, want: tree.TreeDef, got: tree.TreeDef) -> str:
    """For an error: which leaves are missing and which are not expected, or the structures if the leaves agree."""
    want_paths, got_paths = tree.paths(want, root), tree.paths(got, root)
    notes = []
    for name, some in (("missing", [p for p in want_paths if p not in set(got_paths)]),
                       ("not expected", [p for p in got_paths if p not in set(want_paths)])):
        if some:
            notes.append(f"{name}: {', '.join(some[:5])}{' ...' if len(some) > 5 else ''}")
    return "; ".join(notes) or f"expected: {want}\n  got: {got}"
