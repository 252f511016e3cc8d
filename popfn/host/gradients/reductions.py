"""Gradients of reductions."""

from typing import Callable, Dict

import numpy as np

from popfn.host import dtypes, ops
from popfn.host.gradients.site import (
    Gradients,
    Rule,
    Site,
    axes_kept,
    broadcast_to,
    in_float32,
    number,
    only_where,
    reshape,
    scaled,
)
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def _kept(site: Site, t: Tensor) -> Tensor:
    """A tensor of the output's shape, so reshaped that it broadcasts to the input."""
    return reshape(t, axes_kept(site.op.inputs[0].shape, site.op.attrs["axes"]))


def _sum(site: Site) -> Gradients:
    return [broadcast_to(_kept(site, site.g), site.op.inputs[0].shape)]


def _mean(site: Site) -> Gradients:
    shape = site.op.inputs[0].shape
    count = max(_build.nelms(tuple([shape[axis] for axis in site.op.attrs["axes"]])), 1)
    return [broadcast_to(ops.div(_kept(site, site.g), number(count, site.g.dtype)), shape)]


def _extreme(site: Site) -> Gradients:
    return [only_where(ops.equal(site.x(), _kept(site, site.y())), _kept(site, site.g))]


def _of_input(formula: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda site: [formula(_kept(site, site.g), site.x())]


def _of_both(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Rule:
    return lambda site: [formula(_kept(site, site.g), site.x(), _kept(site, site.y()))]


@in_float32
def _l2(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    zero, one = number(0, y.dtype), number(1, y.dtype)
    return ops.mul(x, ops.div(g, ops.where(ops.equal(y, zero), one, y)))


@in_float32
def _logsumexp(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ops.mul(g, ops.exp(ops.sub(x, y)))


def _logsum(site: Site) -> Gradients:
    @in_float32
    def formula(g: Tensor, y: Tensor) -> Tensor:
        return ops.div(g, ops.exp(y))

    return [broadcast_to(_kept(site, formula(site.g, site.y())), site.op.inputs[0].shape)]


def _prod(site: Site) -> Gradients:
    axes = site.op.attrs["axes"]

    @in_float32
    def formula(g: Tensor, x: Tensor) -> Tensor:
        """The product of the others. With one zero among the factors only its own is not 0, with two none is."""
        zero, one = number(0, x.dtype), number(1, x.dtype)
        is_zero = ops.equal(x, zero)
        safe = ops.where(is_zero, one, x)
        zeros_elsewhere = ops.sub(
            ops.sum(ops.where(is_zero, one, zero), axes, True) if axes else ops.where(is_zero, one, zero),
            ops.where(is_zero, one, zero),
        )
        others = ops.div(ops.prod(safe, axes, True), safe)
        return ops.mul(g, only_where(ops.equal(zeros_elsewhere, zero), others))

    return [formula(_kept(site, site.g), site.x())]


def _median(site: Site) -> Gradients:
    if site.grads[0] is None:
        return []
    shape, axes = site.op.inputs[0].shape, site.op.attrs["axes"]
    reduced = tuple([n if i in axes else 1 for i, n in enumerate(shape)])
    place = np.arange(_build.nelms(reduced), dtype=np.int32).reshape(reduced)
    return [only_where(ops.equal(_kept(site, site.y(1)), number(place, dtypes.int32)), _kept(site, site.g))]


def _topk(site: Site) -> Gradients:
    indices = site.y(1)
    if site.grads[0] is None:
        return []
    axis = site.op.attrs["axis"]
    length = site.op.inputs[0].shape[axis]
    return [ops.scatter_reduce(site.g, indices, "sum", axis=axis, axis_size=length)]


RULES: Dict[str, Rule] = {
    "sum": _sum,
    "mean": _mean,
    "max": _extreme,
    "min": _extreme,
    "prod": _prod,
    "median": _median,
    "l1": _of_input(lambda g, x: ops.mul(ops.sign(x), g)),
    "l2": _of_both(_l2),
    "sumsquare": _of_input(lambda g, x: ops.mul(scaled(x, 2), g)),
    "logsum": _logsum,
    "logsumexp": _of_both(_logsumexp),
    "topk": _topk,
}
