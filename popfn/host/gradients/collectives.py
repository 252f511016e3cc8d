"""Gradients of collectives."""

from typing import Dict

from popfn.host.context import get_current_graph
from popfn.host.errors import popart_exception
from popfn.host.gradients.site import Gradients, Rule, Site, reshape
from popfn.host.ops import _build
from popfn.host.tensor import Tensor


def _of_input_type(site: Site, kind: str, g: Tensor, **attrs: object) -> Tensor:
    t = site.op.inputs[0]
    attrs["group"] = site.op.attrs["group"]
    return _build.emit(get_current_graph(), kind, (g,), t.shape, t.dtype, attrs)


def _replicated_all_gather(site: Site) -> Gradients:
    """The part that this replica gave, not summed over the replicas."""
    output = site.op.attrs["output"]
    if output == "meta_shape":
        made = _of_input_type(site, "replica_sharded_slice", site.g)
        made.meta_shape = site.op.inputs[0].meta_shape
        return [made]
    axis = site.op.attrs["axis"] if output == "concat" else 0
    return [_of_input_type(site, "replicated_slice", site.g, axis=axis)]


def _replica_sharded_slice(site: Site) -> Gradients:
    made = _of_input_type(site, "replicated_all_gather", site.g, axis=0, output="meta_shape")
    made.meta_shape = site.op.outputs[0].meta_shape
    return [made]


def _replicated_slice(site: Site) -> Gradients:
    t, axis = site.op.inputs[0], site.op.attrs["axis"]
    part = t.shape[:axis] + (t.shape[axis] // site.op.attrs["group"].group_size,) + t.shape[axis + 1 :]
    g = reshape(site.g, part)  # where the part is of length 1, the op drops the axis
    return [_of_input_type(site, "replicated_all_gather", g, axis=axis, output="concat")]


def _all_reduce(site: Site) -> Gradients:
    attrs = site.op.attrs
    if attrs["op"] != "add":
        raise popart_exception(
            'autodiff: an all_reduce over IPUs has a gradient for op="add" only, not for {!r}.'.format(attrs["op"])
        )
    grads = tuple([site.grad_or_zeros(i) for i in range(len(site.grads))])
    if attrs["identical_grad_inputs"]:
        return grads
    results = [(f"all_reduce_out_{i}",) + t.spec.to_tuple() for i, t in enumerate(grads)]
    plain = {**attrs, "identical_inputs": False}
    return get_current_graph()._add_op("all_reduce", grads, results, plain).outputs


RULES: Dict[str, Rule] = {
    "replicated_all_gather": _replicated_all_gather,
    "replica_sharded_slice": _replica_sharded_slice,
    "replicated_slice": _replicated_slice,
    "all_reduce": _all_reduce,
}
