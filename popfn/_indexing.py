"""Keys: ints, slices, `...`, None, integer arrays and masks, with NumPy's meaning, for `x[key]` and `x.at[key]`."""
from __future__ import annotations

import functools
import math
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ._promotion import known
from .numpy._indexing import indices_in, read
from .trace import prims
from .trace.array import Array
from .trace.aval import Shape, broadcast_shapes
from .trace.errors import PopfnError, RangeError, ShapeError, message, user_source
from .trace.tracer import Tracer, aval_of, literal


def index(x: Array, key: Any) -> Array:
    """x[key]. Raises RangeError, an IndexError, where NumPy does, and for traced masks, which give no static shape."""
    return Selection(x, key).read(x)


class Selection:
    """What a key picks out of x: a part that slices cut out, and the rows of the part that index arrays name.

    `shape` is that of x[key]. `mode` says what becomes of indices that are out of range, see `popfn.numpy._indexing`;
    `way_out` is what the error for a mask recommends.
    """

    def __init__(self, x: Array, key: Any, mode: Optional[str] = None, way_out: Optional[str] = None) -> None:
        key = without_masks(x, key if isinstance(key, tuple) else (key,), way_out)
        items = normalized(x, key, mode)
        self.x_shape, self.expanded, self.mode = x.shape, x.shape, mode
        if len(items) != x.ndim:  # a new axis is an axis of size 1 that is read whole
            sizes = iter(x.shape)
            self.expanded = tuple([1 if item is None else next(sizes) for item in items])
            items = [slice(None) if item is None else item for item in items]
        #: The axes that the key's ints and index arrays name, and the indices if there are arrays.
        self.axes = tuple([i for i, item in enumerate(items) if not isinstance(item, slice)])
        self.indices: List[Any] = []
        if any(is_array(items[a]) for a in self.axes):
            self.indices = [items[a] for a in self.axes]
            items = [item if isinstance(item, slice) else slice(None) for item in items]
        self.cut = Cut(self.expanded, items)
        part = self.cut.shape
        rest = tuple([n for a, n in enumerate(part) if a not in self.axes])
        self.shape: Shape = rest
        if self.indices:
            self.sizes = [part[a] for a in self.axes]
            try:
                shape = broadcast_shapes(*(np.shape(i) for i in self.indices))
            except ShapeError:
                types = ", ".join(str(aval_of(i)) for i in self.indices)
                raise RangeError(message(f"index arrays do not broadcast: {types}", at=user_source(2))) from None
            # Their axes come where the first one stands, or in front if they are separate, as in NumPy.
            self.place = 0 if apart(key) else self.axes[0]
            self.shape = (*rest[:self.place], *shape, *rest[self.place:])
            others = [i for i in range(len(part)) if i not in self.axes]
            self.order = (*others[:self.place], *self.axes, *others[self.place:])

    # ------------------------------------------------------------------ reading
    def read(self, x: Array, fill_value: Any = None) -> Array:
        """x[key]."""
        if not self.indices:
            return prims.squeeze(self.cut.read(prims.reshape(x, self.expanded)), self.axes)
        # A single index is taken as it is: the primitive counts and clamps it.
        index = self.indices[0] if len(self.axes) == 1 else self.flat_index(clamp=self.mode != "fill")
        return read("x.at[...].get", self.rows(x), index, self.place, self.mode, fill_value)

    def rows(self, x: Array) -> Array:
        """The part of x, with the axes that index arrays name as one, at `place`."""
        moved = prims.transpose(self.cut.read(prims.reshape(x, self.expanded)), self.order)
        shape = moved.shape
        return prims.reshape(moved, (*shape[:self.place], math.prod(self.sizes),
                                     *shape[self.place + len(self.axes):]))

    def flat_index(self, clamp: bool) -> Any:
        """The index of a row for each element of the index arrays; of several axes those of one row together.

        With `clamp` each is clamped into its axis, else what is out of range gets an index beyond all rows.
        """
        if not any(isinstance(i, Tracer) for i in self.indices):
            return self.known_index(clamp)
        if len(self.axes) == 1 and not clamp:
            return self.indices[0]
        flat: Any = None
        inside = []
        for i, n in zip(self.indices, self.sizes):
            i = prims.wrapped(i, n) if clamp else prims.counted_indices(i, n)
            inside.append(prims.in_bounds(i, n))
            flat = i if flat is None else prims.add(prims.mul(flat, np.int32(n)), i)
        return flat if clamp else prims.select(functools.reduce(prims.and_, inside), flat,
                                               np.int32(math.prod(self.sizes)))

    def known_index(self, clamp: bool) -> np.ndarray:
        """`flat_index` of data, computed now."""
        flat: Any = np.int64(0)
        inside: Any = True
        for index, n in zip(self.indices, self.sizes):
            i = np.asarray(index, np.int64)
            i = np.where(i < 0, i + n, i)
            inside = inside & (i >= 0) & (i < n)
            flat = flat * n + (np.clip(i, 0, n - 1) if clamp else i)
        return np.where(inside | clamp, flat, math.prod(self.sizes)).astype(np.int32)

    def distinct(self) -> bool:
        """Whether no two indices name the same row, as far as that is known."""
        count = math.prod(broadcast_shapes(*(np.shape(i) for i in self.indices)))
        return count == 1 or not any(isinstance(i, Tracer) for i in self.indices) and \
            len(np.unique(self.known_index(self.mode == "clip"))) == count

    # ------------------------------------------------------------------ writing
    def put(self, x: Array, value: Any) -> Array:
        """x with a value of the shape of x[key] in its place, for a key without index arrays."""
        return self.put_part(x, prims.reshape(value, self.cut.shape))

    def put_rows(self, x: Array, rows: Any) -> Array:
        """x with other `rows`."""
        part = self.cut.shape
        back = sorted(range(len(part)), key=self.order.__getitem__)
        return self.put_part(x, prims.transpose(prims.reshape(rows, tuple(part[a] for a in self.order)), tuple(back)))

    def put_part(self, x: Array, part: Any) -> Array:
        """x with another part."""
        return prims.reshape(self.cut.put(prims.reshape(x, self.expanded), part), self.x_shape)


class Cut:
    """The part of arrays of one shape that a slice for each axis cuts out, or an int as a slice of size 1."""

    def __init__(self, full: Shape, items: Sequence[Any]) -> None:
        starts, stops, strides, counts, reversed_axes = [], [], [], [], []
        for axis, (item, n) in enumerate(zip(items, full)):
            start, stop, step = item.indices(n) if isinstance(item, slice) else (item, item + 1, 1)
            count = len(range(start, stop, step))
            if step < 0:  # the same elements in ascending order, then reversed
                start, stop, step = start + (count - 1) * step, start + 1, -step
                reversed_axes.append(axis)
            starts.append(start if count else 0)
            stops.append(start + (count - 1) * step + 1 if count else 0)
            strides.append(step if count > 1 else 1)
            counts.append(count)
        self.full, self.shape, self.reversed_axes = full, tuple(counts), tuple(reversed_axes)
        self.starts, self.stops, self.strides = tuple(starts), tuple(stops), tuple(strides)

    def read(self, x: Array) -> Array:
        """The part."""
        return prims.reverse(prims.slice_(x, self.starts, self.stops, self.strides), self.reversed_axes)

    def put(self, x: Array, part: Any) -> Array:
        """x with another part."""
        part = prims.reverse(part, self.reversed_axes)
        axes = tuple(a for a, (m, n) in enumerate(zip(self.shape, self.full)) if m != n)
        if all(s == 1 for s in self.strides):
            starts = np.array([self.starts[a] for a in axes], np.int32)
            return prims.dynamic_update_slice(x, part, starts, axes)
        high = tuple(n - stop for n, stop in zip(self.full, self.stops))
        spread = prims.pad(part, literal(0, aval_of(part)), self.starts, high, tuple(s - 1 for s in self.strides))
        written = np.ones((), np.bool_)
        for a in axes:
            along = np.zeros((self.full[a],) + (1,) * (len(self.full) - 1 - a), np.bool_)
            along[self.starts[a]:self.stops[a]:self.strides[a]] = True
            written = written & along
        return prims.select(written, spread, x)


def apart(key: Tuple[Any, ...]) -> bool:
    """Whether something, be it an `...` for no axis, stands between ints and index arrays in a key."""
    kinds = [is_array(item) or isinstance(item, (int, np.integer)) for item in key]
    first, last = kinds.index(True), len(kinds) - kinds[::-1].index(True)
    return not all(kinds[first:last])


def is_array(item: Any) -> bool:
    """Whether an item of a key is an index array, of any rank."""
    return isinstance(item, (Array, np.ndarray))


def without_masks(x: Array, key: Tuple[Any, ...], way_out: Optional[str]) -> Tuple[Any, ...]:
    """The key with lists as arrays, and known masks as the index arrays of their True elements, one for each axis."""
    items = tuple([np.asarray(item, None if len(item) else np.int32) if isinstance(item, (list, range)) else item
                   for item in key])
    if not any(map(is_mask, items)):
        return items
    counts = [item.ndim if is_mask(item) and np.ndim(item) else 0 if item is None or item is Ellipsis else 1
              for item in items]
    spread = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    if sum(counts) > x.ndim:
        raise too_many(sum(counts), x)
    out: List[Any] = []
    for i, item in enumerate(items):
        if not is_mask(item):
            out.append(item)
            continue
        check_mask(item, x, sum(counts[:i]) if i < spread else x.ndim - sum(counts[i:]))
        if isinstance(item, Tracer) and not item.trace.follow:
            raise RangeError(message(
                "a traced mask cannot index: the result's shape would depend on its values", f"the mask: "
                f"{item.describe()}", way_out or "way out: pnp.where(mask, x, 0) keeps the shape, and so does "
                "x.at[mask].set(value)", at=user_source(2)))
        # The values are known, if only to a trace that follows them.
        out += [part.astype(np.int32) for part in np.nonzero(np.asarray(item))]
    return tuple(out)


def is_mask(item: Any) -> bool:
    """Whether an item of a key is a bool, or an array of bools."""
    return isinstance(item, (bool, np.bool_)) or is_array(item) and item.dtype.kind == "b"


def check_mask(mask: Any, x: Array, axis: int) -> None:
    """Raise RangeError unless a mask, traced or not, fits the axes of x from `axis` on."""
    if not np.ndim(mask):
        raise RangeError(message("a bool scalar cannot index: a mask has axes", "way out: pnp.where(condition, x, y)",
                                 at=user_source(2)))
    if np.shape(mask) != x.shape[axis:axis + np.ndim(mask)]:
        raise RangeError(message(f"a mask has the sizes of the axes that it stands for: {aval_of(mask)} at axis {axis} "
                                 f"of {x.aval}", at=user_source(2)))


def too_many(count: int, x: Array) -> RangeError:
    """The error for more indices than axes."""
    return RangeError(message(f"{count} indices for {x.aval}, which has {x.ndim} axes", at=user_source(2)))


def normalized(x: Array, key: Tuple[Any, ...], mode: Optional[str]) -> List[Any]:
    """The key with `...` spelt out and every item an int, a slice, None or an integer array.

    Known indices are in range, unless a mode is given: then ints that are out of range become arrays.
    """
    items: List[Any] = []
    for item in key:
        if not (item is None or item is Ellipsis or isinstance(item, (slice, int, np.integer)) or is_array(item)):
            raise RangeError(message(f"an index is an int, a slice, `...`, None or an integer array, got {item!r}",
                                     at=user_source(2)))
        items.append(item)
    if sum(item is Ellipsis for item in items) > 1:
        raise RangeError(message("an index holds one `...` at most", at=user_source(2)))
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.ndim:
        raise too_many(used, x)
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
            if mode is not None and not -n <= item < n:
                items[i] = np.array(item, np.int64)
            elif not -n <= item < n:
                raise RangeError(message(f"index {int(item)} is out of range for axis {axis} of {x.aval}",
                                         at=user_source(2)))
            else:
                items[i] = int(item) % n
        elif isinstance(item, slice):
            items[i] = known_slice(item)
        elif is_array(item):
            indices_in(mode, item, x.shape[axis], axis)
        axis += 1
    return items


def known_slice(item: slice) -> slice:
    """A slice of Python integers. Raises RangeError for bounds that are none, and for a step of 0."""
    item = slice(*[known("a bound or step of a slice", n, way="pnp.dynamic_slice, whose starts may be traced; ")
                   for n in (item.start, item.stop, item.step)])
    try:
        item.indices(1)
    except PopfnError:
        raise
    except (TypeError, ValueError) as e:
        raise RangeError(message(f"a slice has integer bounds and a step that is not 0, got {item}: {e}",
                                 at=user_source(2))) from None
    return item
