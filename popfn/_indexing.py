"""x[key]: ints, slices, `...`, None and integer arrays, with NumPy's meaning."""
from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from . import numpy as pnp
from ._promotion import checked_indices
from .trace import prims
from .trace.array import Array
from .trace.aval import broadcast_shapes, int32
from .trace.errors import PopfnError, RangeError, ShapeError, message, user_source
from .trace.tracer import aval_of


def index(x: Array, key: Any) -> Array:
    """x[key]. Raises RangeError, an IndexError, where NumPy does, and for masks, which give no static shape."""
    key = key if isinstance(key, tuple) else (key,)
    items = normalized(x, key)
    new = [i for i, item in enumerate(items) if item is None]
    if new:  # a new axis is an axis of size 1 that is read whole
        rest = iter(x.shape)
        x = prims.reshape(x, tuple(1 if item is None else next(rest) for item in items))
        items = [slice(None) if item is None else item for item in items]
    if any(is_array(item) for item in items):
        return by_arrays(x, items, apart(key))
    ints = tuple(i for i, item in enumerate(items) if not isinstance(item, slice))
    return prims.squeeze(sliced(x, items), ints)


def apart(key: Tuple[Any, ...]) -> bool:
    """Whether something, be it an `...` for no axis, stands between ints and index arrays in a key."""
    kinds = [is_array(item) or isinstance(item, (int, np.integer, list, range)) for item in key]
    first, last = kinds.index(True), len(kinds) - kinds[::-1].index(True)
    return not all(kinds[first:last])


def is_array(item: Any) -> bool:
    """Whether an item of a key is an index array, of any rank."""
    return isinstance(item, (Array, np.ndarray))


def normalized(x: Array, key: Tuple[Any, ...]) -> List[Any]:
    """The key with `...` spelt out and every item an int, a slice, None or an integer array; ints checked."""
    items: List[Any] = []
    for item in key:
        if isinstance(item, (list, range)):
            item = np.asarray(item, None if len(item) else np.int32)
        if isinstance(item, (bool, np.bool_)) or is_array(item) and item.dtype.kind == "b":
            raise RangeError(message("a mask cannot index: the result's shape would depend on its values",
                                     "way out: pnp.where(mask, x, 0) keeps the shape", at=user_source(2)))
        if not (item is None or item is Ellipsis or isinstance(item, (slice, int, np.integer)) or is_array(item)):
            raise RangeError(message(f"an index is an int, a slice, `...`, None or an integer array, got {item!r}",
                                     at=user_source(2)))
        items.append(item)
    if sum(item is Ellipsis for item in items) > 1:
        raise RangeError(message("an index holds one `...` at most", at=user_source(2)))
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.ndim:
        raise RangeError(message(f"{used} indices for {x.aval}, which has {x.ndim} axes", at=user_source(2)))
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    items[at:at + 1] = [slice(None)] * (x.ndim - used)
    axis = 0
    for i, item in enumerate(items):
        if item is None:
            continue
        if isinstance(item, (int, np.integer)):
            n = x.shape[axis]
            if not -n <= item < n:
                raise RangeError(message(f"index {int(item)} is out of range for axis {axis} of {x.aval}",
                                         at=user_source(2)))
            items[i] = int(item) % n
        elif isinstance(item, slice):
            check_slice(item)
        elif is_array(item):
            checked_indices(item, x.shape[axis], axis)
        axis += 1
    return items


def check_slice(item: slice) -> None:
    """Raise RangeError for bounds that are no integers, and for a step of 0."""
    try:
        item.indices(1)
    except PopfnError:
        raise
    except (TypeError, ValueError) as e:
        raise RangeError(message(f"a slice has integer bounds and a step that is not 0, got {item}: {e}",
                                 at=user_source(2))) from None


def sliced(x: Array, items: List[Any]) -> Array:
    """x read along every axis by a slice, or by an int as a slice of size 1; index arrays read everything here."""
    starts, stops, strides, reversed_axes = [], [], [], []
    for axis, (item, n) in enumerate(zip(items, x.shape)):
        if is_array(item):
            item = slice(None)
        start, stop, step = item.indices(n) if isinstance(item, slice) else (item, item + 1, 1)
        count = len(range(start, stop, step))
        if step < 0:  # the same elements in ascending order, then reversed
            start, stop, step = start + (count - 1) * step, start + 1, -step
            reversed_axes.append(axis)
        starts.append(start if count else 0)
        stops.append(start + (count - 1) * step + 1 if count else 0)
        strides.append(step if count > 1 else 1)
    x = prims.slice_(x, tuple(starts), tuple(stops), tuple(strides))
    return prims.reverse(x, tuple(reversed_axes))


def by_arrays(x: Array, items: List[Any], separate: bool) -> Array:
    """x read by index arrays, among which ints count as scalars: their axes become those of the broadcast indices.

    These come where the first index array stands, or in front if the indices are separate, as in NumPy.
    """
    axes = [i for i, item in enumerate(items) if not isinstance(item, slice)]
    x = sliced(x, [item if isinstance(item, slice) else slice(None) for item in items])
    if len(axes) == 1:
        return prims.take(x, items[axes[0]], axes[0])
    place = 0 if separate else axes[0]
    sizes = [x.shape[a] for a in axes]
    rest = [i for i in range(x.ndim) if i not in axes]
    x = prims.transpose(x, (*rest[:place], *axes, *rest[place:]))
    shape = x.shape
    flat = prims.reshape(x, (*shape[:place], int(np.prod(sizes)), *shape[place + len(axes):]))
    try:
        broadcast_shapes(*(np.shape(items[a]) for a in axes))
    except ShapeError:
        types = ", ".join(str(aval_of(items[a])) for a in axes)
        raise RangeError(message(f"index arrays do not broadcast: {types}", at=user_source(2))) from None
    where: Any = None
    for item, n in zip((items[a] for a in axes), sizes):
        i = pnp.astype(pnp.asarray(item), int32)
        i = pnp.clip(pnp.where(i < 0, i + n, i), 0, n - 1)
        where = i if where is None else where * n + i
    return prims.take(flat, where, place)
