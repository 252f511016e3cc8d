"""Elements of a place in storage, as arrays of booleans. For `Place` and `Root` see `engine.plan`."""

from typing import Any, Callable

import numpy as np


def copy_where(where: np.ndarray) -> Callable[[Any], None]:
    """An emitter that copies some elements."""

    def emit(s: Any) -> None:
        chosen = s.constant_array("where", where)
        s.line(f"{s.function('copyto')}({s.out.name}, {s.ins[1].name}, where={chosen.name})")

    return emit


def at(place: Any, elements: np.ndarray) -> np.ndarray:
    """What an array of booleans for the elements of a root has for those of a place."""
    size = place.dtype.itemsize
    strides = tuple([stride // size for stride in place.strides])
    return np.ndarray(place.shape, np.bool_, elements, place.offset // size, strides)


def in_root(place: Any, where: Any) -> np.ndarray:
    """For each element of a root whether it is one of those of a place that `where` says."""
    elements = np.zeros(place.root.size // place.dtype.itemsize, np.bool_)
    at(place, elements)[...] = where
    return elements
