"""Functions that move elements."""
from __future__ import annotations

import builtins
import math
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from .._promotion import Axis, all_axes, as_shape, as_sizes, convert_to, known, known_integer, one_axis
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import Shape, broadcast_shapes as shapes_broadcast, int32
from ..trace.errors import ArgumentError, DtypeError, ShapeError, located, message, user_source
from ._create import asarray


def reshape(x: Any, /, shape: Union[int, Sequence[int]], *, copy: Optional[bool] = None) -> Array:
    """Another shape of the same size, in row-major order; one size may be -1.

    Arrays cannot be changed, so that `copy` makes no difference.
    """
    x, new = asarray(x), list(as_shape(shape))
    if new.count(-1) == 1:
        known = math.prod(n for n in new if n != -1)
        if known and x.size % known == 0:
            new[new.index(-1)] = x.size // known
    if math.prod(new) != x.size or builtins.min(new, default=0) < 0:
        raise ShapeError(message(f"reshape: {x.aval} has {x.size} elements, which do not fit shape {as_shape(shape)}",
                                 at=user_source(2)))
    return prims.reshape(x, tuple(new))


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """The axes in another order."""
    x = asarray(x)
    return prims.transpose(x, tuple([one_axis(a, x.ndim, "permute_dims") for a in axes]))


def matrix_transpose(x: Any, /) -> Array:
    """The last two axes swapped."""
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(message(f"matrix_transpose: {x.aval} has no two axes", at=user_source(2)))
    return prims.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: Any, source: Union[int, Sequence[int]], destination: Union[int, Sequence[int]], /) -> Array:
    """Axes moved to other places, the rest keeping their order. Raises ShapeError if there are not as many places."""
    x = asarray(x)
    ends = [[one_axis(a, x.ndim, "moveaxis") for a in _several(axes)] for axes in (source, destination)]
    if len(ends[0]) != len(ends[1]) or builtins.any(len(set(axes)) != len(axes) for axes in ends):
        raise ShapeError(message(f"moveaxis: {source} and {destination} are not as many distinct axes and places",
                                 at=user_source(2)))
    order = [i for i in range(x.ndim) if i not in ends[0]]
    for place, axis in sorted(zip(ends[1], ends[0])):
        order.insert(place, axis)
    return prims.transpose(x, tuple(order))


def swapaxes(x: Any, axis1: int, axis2: int, /) -> Array:
    """Two axes swapped."""
    x = asarray(x)
    a, b = (one_axis(axis, x.ndim, "swapaxes") for axis in (axis1, axis2))
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return prims.transpose(x, tuple(order))


def _several(axes: Any) -> Sequence[Any]:
    axes = known("an axis", axes)
    return tuple(axes) if isinstance(axes, (tuple, list, range)) else (axes,)


def squeeze(x: Any, /, axis: Axis = None) -> Array:
    """Without axes of size 1: all of them, or those given."""
    x = asarray(x)
    axes = tuple(i for i, n in enumerate(x.shape) if n == 1) if axis is None else all_axes(axis, x.ndim, "squeeze")
    return prims.squeeze(x, axes)


def expand_dims(x: Any, /, axis: Union[int, Sequence[int]] = 0) -> Array:
    """With new axes of size 1, whose places are counted in the result."""
    x = asarray(x)
    given = _several(axis)
    ndim = x.ndim + len(given)
    axes = [one_axis(a, ndim, "expand_dims") for a in given]
    if len(set(axes)) != len(axes):
        raise ShapeError(message(f"expand_dims: axes {axis} are not distinct", at=user_source(2)))
    rest = iter(x.shape)
    return prims.reshape(x, tuple(1 if i in axes else next(rest) for i in range(ndim)))


def broadcast_to(x: Any, /, shape: Union[int, Shape]) -> Array:
    """NumPy's broadcasting to a shape."""
    return prims.broadcast_to(asarray(x), as_sizes(shape))


def broadcast_arrays(*arrays: Any) -> Tuple[Array, ...]:
    """Arrays broadcast to their common shape. Raises ShapeError if there is none."""
    xs = [asarray(x) for x in arrays]
    try:
        shape = shapes_broadcast(*(x.shape for x in xs))
    except ShapeError as e:
        raise located(e) from None
    return tuple(prims.broadcast_to(x, shape) for x in xs)


def flip(x: Any, /, *, axis: Axis = None) -> Array:
    """The elements in reverse order along axes."""
    x = asarray(x)
    return prims.reverse(x, all_axes(axis, x.ndim, "flip"))


def pad(x: Any, pad_width: Any, *, constant_values: Any = 0) -> Array:
    """x with `pad_width` = (before, after) copies of a scalar around it; one pair for all axes or one pair for each."""
    x, pad_width = asarray(x), known("pad: a width", pad_width)
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
    except ValueError:
        widths = np.array(np.nan)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise ShapeError(message(f"pad: widths are pairs of integers of 0 or more, one for all axes or one for each of "
                                 f"the {x.ndim}, got {pad_width}", at=user_source(2)))
    low, high = (tuple(int(n) for n in widths[:, i]) for i in (0, 1))
    return prims.pad(x, convert_to(constant_values, x.dtype), low, high, (0,) * x.ndim)


# ---------------------------------------------------------------------------- repeating and parting
def tile(x: Any, repetitions: Union[int, Sequence[int]], /) -> Array:
    """x repeated whole along its axes; missing axes are in front, missing repetitions are 1."""
    x, counts = asarray(x), as_sizes(repetitions)
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    counts = (1,) * (len(shape) - len(counts)) + counts
    split = prims.reshape(x, tuple(n for size in shape for n in (1, size)))
    wide = prims.broadcast_to(split, tuple(n for pair in zip(counts, shape) for n in pair))
    return prims.reshape(wide, tuple(c * n for c, n in zip(counts, shape)))


def repeat(x: Any, repeats: Any, /, axis: Optional[int] = None) -> Array:
    """Each element repeated along an axis, all as often or each as often as a known vector says; flat by default.

    Raises ShapeError for a wrong number of repeats or a negative one, DtypeError for other than integers.
    """
    x = asarray(x)
    if axis is None:
        x, axis = prims.reshape(x, (x.size,)), 0
    axis = one_axis(axis, x.ndim, "repeat")
    counts = np.asarray(known("repeat: a number of repeats", repeats))
    n = x.shape[axis]
    if counts.dtype.kind not in "iu" and counts.size:
        raise DtypeError(message(f"repeat: repeats are integers, got {repeats!r}", at=user_source(2)))
    if counts.ndim > 1 or counts.ndim and counts.size not in (1, n) or (counts < 0).any():
        raise ShapeError(message(f"repeat: repeats are one number of 0 or more or one for each of the {n} elements "
                                 f"along axis {axis} of {x.aval}, got {repeats!r}", at=user_source(2)))
    if counts.size == 1:
        count = int(counts.reshape(()))
        split = prims.reshape(x, x.shape[:axis + 1] + (1,) + x.shape[axis + 1:])
        wide = prims.broadcast_to(split, x.shape[:axis + 1] + (count,) + x.shape[axis + 1:])
        return prims.reshape(wide, x.shape[:axis] + (n * count,) + x.shape[axis + 1:])
    return prims.take(x, asarray(np.repeat(np.arange(n), counts.astype(int)), int32), axis)


def roll(x: Any, /, shift: Union[int, Sequence[int]], axis: Axis = None) -> Array:
    """The elements moved along axes, those that leave at the end coming in at the beginning; flat by default.

    `shift` is one for all axes or one for each. Raises ShapeError where there are not as many shifts as axes.
    """
    x = asarray(x)
    if axis is None:
        return prims.reshape(roll(prims.reshape(x, (x.size,)), shift, 0), x.shape)
    axes = [one_axis(a, x.ndim, "roll") for a in _several(axis)]
    shifts = [known_integer("roll: a shift", s) for s in _several(known("roll: a shift", shift))]
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise ShapeError(message(f"roll: shifts {shift} are not one for each of the axes {axis}", at=user_source(2)))
    for s, a in zip(shifts, axes):
        n = x.shape[a]
        if n and s % n:
            x = prims.concat(_parts(x, [n - s % n], a)[::-1], a)
    return x


def _parts(x: Array, places: Sequence[int], axis: int) -> List[Array]:
    """x cut along an axis before the places, which are read as those of Python's slices."""
    n = x.shape[axis]
    cuts = [slice(low, high).indices(n)[:2] for low, high in zip([0, *places], [*places, n])]
    return [asarray(prims.slice_axis(x, axis, low, builtins.max(low, high))) for low, high in cuts]


def unstack(x: Any, /, *, axis: int = 0) -> Tuple[Array, ...]:
    """The arrays that lie along an axis, which they lose."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim, "unstack")
    return tuple(prims.squeeze(part, (axis,)) for part in _parts(x, range(1, x.shape[axis]), axis)) \
        if x.shape[axis] else ()


def split(x: Any, indices_or_sections: Union[int, Sequence[int]], /, axis: int = 0) -> List[Array]:
    """x cut along an axis into a number of equal parts, or before the places in a list, as NumPy reads them.

    Raises ShapeError where the parts would not be equal.
    """
    x = asarray(x)
    axis = one_axis(axis, x.ndim, "split")
    n = x.shape[axis]
    indices_or_sections = known("split: a number of parts or a place", indices_or_sections)
    if isinstance(indices_or_sections, (int, np.integer)):
        if indices_or_sections < 1 or n % indices_or_sections:
            raise ShapeError(message(f"split: axis {axis} of {x.aval} has no {indices_or_sections} equal parts",
                                     "way out: array_split cuts into nearly equal ones", at=user_source(2)))
        return array_split(x, indices_or_sections, axis)
    if not isinstance(indices_or_sections, (tuple, list, range)):
        raise ArgumentError(message("split takes a number of parts or a list of places, got "
                                    f"{indices_or_sections!r}", at=user_source(2)))
    return _parts(x, [known_integer("split: a place", i) for i in indices_or_sections], axis)


def array_split(x: Any, indices_or_sections: Union[int, Sequence[int]], /, axis: int = 0) -> List[Array]:
    """`split` that cuts into parts of nearly equal sizes, the larger ones first, where equal ones are not possible."""
    x = asarray(x)
    axis = one_axis(axis, x.ndim, "array_split")
    indices_or_sections = known("array_split: a number of parts or a place", indices_or_sections)
    if not isinstance(indices_or_sections, (int, np.integer)):
        return split(x, indices_or_sections, axis)
    if indices_or_sections < 1:
        raise ShapeError(message(f"array_split: there are no {indices_or_sections} parts", at=user_source(2)))
    size, more = divmod(x.shape[axis], int(indices_or_sections))
    return _parts(x, [i * size + builtins.min(i, more) for i in range(1, int(indices_or_sections))], axis)
