"""Elements by index. An index that is out of range reads the nearest element, or 0 if so asked, and writes nothing.

NumPy reads and writes in place; on other array modules `.at[...]`, as JAX arrays have it, stands for writing.
"""

import math
from typing import Any, Dict, Tuple

import numpy as np

from popfn.host.engine import values
from popfn.host.engine.kernel import Kernel


def groupedgather(xp: Any, op: Any, t: Any, indices: Any) -> Any:
    """In each group, the parts of `t` at `indices` along the axis."""
    axis, count = op.attrs["axis"], indices.ndim - 1
    rows = xp.moveaxis(t, axis, 1)
    groups = np.arange(t.shape[0]).reshape((-1,) + (1,) * count)
    result = rows[groups, xp.clip(indices, 0, t.shape[axis] - 1)]
    if op.attrs["zero_OOR"]:
        inside = (indices >= 0) & (indices < t.shape[axis])
        inside = xp.reshape(inside, inside.shape + (1,) * (t.ndim - 2))
        result = xp.where(inside, result, xp.zeros_like(result))
    return xp.moveaxis(result, tuple(range(1, 1 + count)), tuple(range(axis, axis + count)))


def _coordinates(axis: int, places: Any) -> Tuple[Any, ...]:
    """The indices of elements whose place along `axis` is given, and along the other axes their own."""
    own = np.meshgrid(*[np.arange(n) for n in places.shape], indexing="ij", sparse=True)
    return (*own[:axis], places, *own[axis + 1 :])


def _outside_beyond(xp: Any, indices: Any, length: int) -> Any:
    """The indices as int32, those out of range being `length`: JAX would count negative ones from the end."""
    inside = (indices >= 0) & (indices < length)
    return xp.where(inside, indices, length).astype(np.int32)


def scatter(xp: Any, op: Any, t: Any, indices: Any, elements: Any) -> Any:
    """`t` with the elements at their indices along the axis; of those with the same place the last one."""
    axis = op.attrs["axis"]
    places = _outside_beyond(xp, indices, t.shape[axis])
    if xp is not np:
        return t.at[_coordinates(axis, places)].set(elements, mode="drop")
    result = t.copy()
    inside = places < t.shape[axis]
    result[tuple([np.broadcast_to(x, places.shape)[inside] for x in _coordinates(axis, places)])] = elements[inside]
    return result


def scatter_reduce(xp: Any, op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """The parts of `data` with the same index along the axis combined, with the initial values if there are any."""
    if xp is np:
        return values.scatter_reduce(np, op, data, indices, initial)
    axis, reduction, shape = op.attrs["axis"], op.attrs["reduction"], op.outputs[0].shape
    places = _outside_beyond(xp, indices, shape[axis])
    if indices.shape == data.shape:
        where = _coordinates(axis, places)
    else:
        where = (slice(None),) * axis + (xp.reshape(places, (-1,)),)
    start = xp.zeros(shape, data.dtype) if initial is None else initial
    if initial is None and reduction in ("max", "min"):
        start = start + _neutral(reduction, data.dtype)
    method = {"sum": "add", "max": "max", "min": "min", "none": "set"}[reduction]
    result = getattr(start.at[where], method)(data, mode="drop")
    if initial is None and reduction in ("max", "min"):
        is_hit = xp.zeros(shape, np.bool_).at[where].set(True, mode="drop")
        result = xp.where(is_hit, result, xp.zeros_like(result))
    return result


def _neutral(reduction: str, dtype: np.dtype) -> Any:
    """What does not change a maximum or minimum."""
    if dtype.kind == "f":
        return dtype.type(-math.inf if reduction == "max" else math.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if reduction == "max" else limits.max)


def grouped_scatter_reduce(xp: Any, op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """`scatter_reduce` in each group: with an index for each element, the groups are an axis like the others."""
    axis = op.attrs["axis"]
    if indices.ndim < data.ndim:
        shape = [n if i in (0, axis) else 1 for i, n in enumerate(data.shape)]
        indices = xp.reshape(indices, shape)
    return scatter_reduce(xp, op, data, xp.broadcast_to(indices, data.shape), initial)


def add_at(xp: Any, t: Any, axis: int, indices: Any, parts: Any) -> Any:
    """`t` with parts added at indices along an axis; the axes of `indices` stand in the place of that axis."""
    places = xp.reshape(_outside_beyond(xp, indices, t.shape[axis]), (-1,))
    parts = xp.reshape(parts, t.shape[:axis] + (places.size,) + t.shape[axis + 1 :])
    if xp is not np:
        return t.at[(slice(None),) * axis + (places,)].add(parts, mode="drop")
    result = t.copy()
    inside = places < t.shape[axis]
    np.add.at(np.moveaxis(result, axis, 0), places[inside], np.moveaxis(parts, axis, 0)[inside])
    return result


KERNELS: Dict[str, Kernel] = {
    "groupedgather": Kernel(groupedgather),
    "scatter": Kernel(scatter),
    "scatter_reduce": Kernel(scatter_reduce, float32=True),
    "grouped_scatter_reduce": Kernel(grouped_scatter_reduce, float32=True),
}
