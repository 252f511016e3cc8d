"""Gradients of ops that rearrange, cut, join, pick and place elements."""

import itertools
from typing import Any, Dict, Iterable, Optional, Tuple

import numpy as np

from popfn.host import dtypes, ops
from popfn.host.gradients.site import (
    Gradients,
    Rule,
    Site,
    again,
    cast,
    elements,
    number,
    only_where,
    padded,
    reshape,
    reversed_along,
    spaced,
    zeros,
)
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def _reshape(site: Site) -> Gradients:
    return [reshape(site.g, site.op.inputs[0].shape)]


def _transpose(site: Site) -> Gradients:
    order = site.op.attrs["permutation"]
    return [ops.transpose(site.g, tuple(np.argsort(order).tolist())) if order else site.g]


def _concat(site: Site) -> Gradients:
    axis = site.op.attrs["axis"]
    return ops.split(site.g, [t.shape[axis] for t in site.op.inputs], axis)


def _split(site: Site) -> Gradients:
    return [ops.concat([site.grad_or_zeros(i) for i in range(len(site.grads))], site.op.attrs["axis"])]


def _slice(site: Site) -> Gradients:
    g, shape = site.g, site.op.inputs[0].shape
    for axis, (part, length) in enumerate(zip(site.op.attrs["slices"], shape)):
        places = range(*part.indices(length))
        if part.step == -1 and places:
            g = reversed_along(g, axis)
            places = places[::-1]
        before = places[0] if places else 0
        g = padded(g, axis, before, length - len(places) - before)
    return [g]


def _subsample(site: Site) -> Gradients:
    g = site.g
    for axis, (step, length) in enumerate(zip(site.op.attrs["strides"], site.op.inputs[0].shape)):
        g = spaced(g, axis, step, length)
    return [g]


def _window(site: Site) -> Tuple[Any, Any, bool]:
    return site.op.attrs["axes"], site.op.attrs["sizes"], True


def _dynamic_slice(site: Site) -> Gradients:
    return [ops.dynamic_update(zeros(site.op.inputs[0]), site.x(1), site.g, *_window(site))]


def _dynamic_update(site: Site) -> Gradients:
    index, update = site.x(1), site.op.inputs[2]
    rest = ops.dynamic_update(site.g, index, zeros(update), *_window(site)) if site.wanted[0] else None
    part = ops.dynamic_slice(site.g, index, *_window(site)) if site.wanted[2] else None
    return [rest, None, part]


def _gather(site: Site) -> Gradients:
    t, axis = site.op.inputs[0], site.op.attrs["axis"]
    indices, room = _indices_and_room(site, t.shape[axis])
    summed = _placed(site.g, indices, axis, len(indices.shape), room)
    return [reshape(_without_room(summed, t.shape[axis]), t.shape)]


def _indices_and_room(site: Site, length: int) -> Tuple[Tensor, int]:
    """The indices, and how many places they name: with zero_OOR one too many, for what is out of range."""
    indices = cast(site.x(1), dtypes.int32)
    if not site.op.attrs["zero_OOR"]:
        return indices, length
    last = number(length, dtypes.int32)
    indices = ops.where(ops.greater(indices, number(-1, dtypes.int32)), indices, last)
    return ops.where(ops.greater(last, indices), indices, last), length + 1


def _without_room(t: Tensor, length: int) -> Tensor:
    return ops.slice(t, 0, length, axis=1) if t.shape[1] > length else t


def _placed(g: Tensor, indices: Tensor, axis: int, rank: int, length: int) -> Tensor:
    """Add the parts of `g`, which lie along `rank` axes from `axis` on, to their places along one of `length`."""
    lead, parts, tail = g.shape[:axis], g.shape[axis : axis + rank], g.shape[axis + rank :]
    shape = _build.nelms(lead), _build.nelms(parts), _build.nelms(tail)
    vector = reshape(indices, (shape[1],))
    return ops.scatter_reduce(reshape(g, shape), vector, "sum", axis=1, axis_size=length)


def _groupedgather(site: Site) -> Gradients:
    """The gradient of a gather from the groups laid end to end."""
    t, indices = site.op.inputs
    axis = site.op.attrs["axis"]
    groups, length = t.shape[0], t.shape[axis]
    kept, room = _indices_and_room(site, length)
    offsets = np.arange(groups, dtype=np.int32).reshape((groups,) + (1,) * (len(indices.shape) - 1)) * np.int32(room)
    kept = ops.add(kept, number(offsets, dtypes.int32))
    rank = len(indices.shape) - 1
    lead, tail = t.shape[1:axis], t.shape[axis + 1 :]
    # (groups, lead, indices, tail) -> (groups, indices, lead, tail)
    order = _order(0, range(axis, axis + rank), range(1, axis), range(axis + rank, len(site.g.shape)))
    summed = _placed(ops.transpose(site.g, order), kept, 0, 1 + rank, groups * room)
    summed = _without_room(reshape(summed, (groups, room) + lead + tail), length)
    return [ops.transpose(summed, _order(0, range(2, axis + 1), [1], range(axis + 1, len(t.shape))))]


def _order(first: int, *others: Iterable[int]) -> Tuple[int, ...]:
    return (first, *itertools.chain(*others))


def _scatter(site: Site) -> Gradients:
    axis, values = site.op.attrs["axis"], site.op.inputs[2]
    indices = site.x(1)
    rest = again(site, site.g, indices, zeros(values)) if site.wanted[0] else None
    return [rest, None, elements(site.g, indices, axis) if site.wanted[2] else None]


def _scatter_reduce(site: Site) -> Gradients:
    data, reduction = site.op.inputs[0], site.op.attrs["reduction"]
    axis = site.op.attrs["axis"]
    has_initial = len(site.op.inputs) == 3
    indices = site.x(1)

    def at_indices(t: Tensor) -> Tensor:
        if indices.shape == data.shape and len(data.shape) > 1:
            return elements(t, indices, axis)
        return ops.gather(t, reshape(indices, (data.shape[axis],)), axis)

    rest: Optional[Tensor] = None
    if reduction == "sum":
        return [at_indices(site.g) if site.wanted[0] else None, None, site.g][: len(site.op.inputs)]
    if reduction == "none":
        site.x(0)  # PopART's gradient op takes the data, though it has no use for it
        if has_initial and site.wanted[2]:
            rest = ops.scatter_reduce(zeros(data), indices, "none", site.g, axis)
        return [at_indices(site.g) if site.wanted[0] else None, None, rest]
    y, values = site.y(), site.x(0)
    if has_initial:
        rest = only_where(ops.equal(site.x(2), y), site.g)
    return [only_where(ops.equal(values, at_indices(y)), at_indices(site.g)), None, rest]


def _onehot(site: Site) -> Gradients:
    """The sums of the gradient where the class is another, and where it is this one."""
    axis, count = site.op.attrs["axis"], site.op.attrs["num_classes"]
    classes = site.x(0)
    column = classes.shape[:axis] + (1,) + classes.shape[axis:]
    row = np.arange(count, dtype=np.int32).reshape((count,) + (1,) * (len(classes.shape) - axis))
    hit = ops.equal(reshape(classes, column), number(row, dtypes.int32))
    on = ops.sum(only_where(hit, site.g))
    off = ops.sum(ops.where(hit, number(0, site.g.dtype), site.g))
    return [None, ops.concat([reshape(off, (1,)), reshape(on, (1,))])]


RULES: Dict[str, Rule] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "concat": _concat,
    "concat_": _concat,
    "split": _split,
    "slice": _slice,
    "subsample": _subsample,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "gather": _gather,
    "groupedgather": _groupedgather,
    "scatter": _scatter,
    "scatter_reduce": _scatter_reduce,
    "onehot": _onehot,
}
