"""Gradients of normalisation, loss and dropout."""

from typing import Dict

import numpy as np

from popfn.host import dtypes, ops
from popfn.host.gradients.site import (
    Gradients,
    Rule,
    Site,
    again,
    cast,
    in_float32,
    number,
    only_where,
    reshape,
    widened,
)
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def _group_norm(site: Site) -> Gradients:
    mean, inverse, x, weight = site.y(1), site.y(2), site.x(0), site.x(1)
    if site.grads[0] is None:
        return []
    batch, channels = x.shape[:2]
    groups = site.op.attrs["num_groups"]
    inner = _build.nelms(x.shape[1:]) // groups
    grouped, per_group = (batch, groups, inner), (batch, groups, 1)
    over_channels = (1, channels) + (1,) * (len(x.shape) - 2)
    others = [i for i in range(len(x.shape)) if i != 1]

    @in_float32
    def formula(g: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor) -> Gradients:
        inverse = reshape(inverse, per_group)
        normal = ops.mul(ops.sub(reshape(x, grouped), reshape(mean, per_group)), inverse)
        to_x = to_weight = to_bias = None
        if site.wanted[0]:
            weighted = reshape(ops.mul(g, reshape(weight, over_channels)), grouped)
            tilt = ops.mul(normal, ops.mean(ops.mul(weighted, normal), 2, True))
            centred = ops.sub(ops.sub(weighted, ops.mean(weighted, 2, True)), tilt)
            to_x = reshape(ops.mul(inverse, centred), x.shape)
        if site.wanted[1]:
            to_weight = ops.sum(ops.mul(g, reshape(normal, x.shape)), others)
        if site.wanted[2]:
            to_bias = ops.sum(g, others)
        return [to_x, to_weight, to_bias]

    return formula(site.g, x, mean, inverse, weight)


def _nll_loss(site: Site) -> Gradients:
    attrs, probs, labels = site.op.attrs, site.x(0), site.x(1)
    dtype, classes = probs.dtype, probs.shape[-1]
    column = labels.shape + (1,)
    labels = reshape(labels, column)
    hit = ops.equal(labels, number(np.arange(classes), dtypes.int32))
    kept = None
    if attrs["ignore_index"] is not None:
        kept = ops.logical_not(ops.equal(labels, number(attrs["ignore_index"], dtypes.int32)))
        hit = ops.logical_and(hit, kept)
    share = widened(site.g)  # of the loss in each entry
    if attrs["reduction"] == "none":
        share = reshape(share, column)
    elif attrs["reduction"] == "mean":
        if kept is None:
            count = number(_build.nelms(column), share.dtype)
        else:
            count = ops.clip(ops.sum(cast(kept, share.dtype)), 1.0)
        share = ops.div(share, count)
    if not attrs["log_prob"]:
        floor = 6.104e-05 if dtype is dtypes.float16 else 1e-7
        share = ops.div(share, ops.clip(widened(probs), floor))
    return [cast(only_where(hit, ops.negate(share)), dtype)]


def _dropout(site: Site) -> Gradients:
    return [again(site, site.g, site.x(1))]  # the same seed gives the same mask


RULES: Dict[str, Rule] = {
    "group_norm": _group_norm,
    "nll_loss": _nll_loss,
    "dropout": _dropout,
    "shaped_dropout": _dropout,
}
