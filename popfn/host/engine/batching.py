"""How ops take along a leading axis, the replicas, that some of their inputs have.

A rule gets the Expander (see `engine.replicas`) and the op, and adds the op with shifted axes and aligned operands. It
returns False where it does not know how: then the op runs once for each replica.
"""

import math
from typing import Any, Callable, Dict

from popfn.host.engine.kernels import KERNELS
from popfn.host.tensor import Shard, Tensor, Variable

Rule = Callable[[Any, Any], bool]


def is_state(t: Tensor) -> bool:
    """Whether a tensor is kept from run to run."""
    return isinstance(t, (Variable, Shard))


def expand(x: Any, op: Any) -> bool:
    """Add the op with the leading axis, if there is a rule for that."""
    kernel = KERNELS.get(op.kind)
    rule = _elementwise if kernel is not None and kernel.elementwise else _RULES.get(op.kind)
    return rule is not None and rule(x, op)


def _elementwise(x: Any, op: Any) -> bool:
    rank = len(op.outputs[0].shape)
    x.apply(op, [x.aligned(t, rank) for t in op.inputs])
    return True


def _updater(x: Any, op: Any) -> bool:
    """Elementwise, with operands of one element that the kernel takes as numbers."""
    shape = op.outputs[0].shape
    if math.prod(shape) == 1 or any(x.varies(t) and t.shape != shape for t in op.inputs):
        return False
    x.apply(op, [x.at(t) for t in op.inputs])
    return True


def _along_axis(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(op.inputs[0])], axis=op.attrs["axis"] + 1)
    return True


def _along_axes(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(op.inputs[0])], axes=tuple([axis + 1 for axis in op.attrs["axes"]]))
    return True


def _reshape(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(op.inputs[0])])
    return True


def _transpose(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(op.inputs[0])], permutation=(0,) + tuple([axis + 1 for axis in op.attrs["permutation"]]))
    return True


def _slice(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(op.inputs[0])], slices=(slice(0, x.replicas, 1),) + tuple(op.attrs["slices"]))
    return True


def _subsample(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(op.inputs[0])], strides=(1,) + tuple(op.attrs["strides"]))
    return True


def _concat(x: Any, op: Any) -> bool:
    x.apply(op, [x.spread(t) for t in op.inputs], axis=op.attrs["axis"] + 1)
    return True


def _gather(x: Any, op: Any) -> bool:
    t, indices = op.inputs
    axis = op.attrs["axis"]
    if x.varies(indices) and (x.varies(t) or axis):
        return False
    x.apply(op, [x.at(t), x.at(indices)], axis=axis + 1 if x.varies(t) else axis)
    return True


def _onehot(x: Any, op: Any) -> bool:
    return not x.varies(op.inputs[1]) and _with_rest(x, op)


def _with_rest(x: Any, op: Any) -> bool:
    x.apply(op, [x.at(t) for t in op.inputs], axis=op.attrs["axis"] + 1)
    return True


def _window(x: Any, op: Any) -> bool:
    t, index, *update = op.inputs
    if x.varies(index):
        return False
    axes = tuple([axis + 1 for axis in op.attrs["axes"]])
    x.apply(op, [x.spread(t), x.at(index), *[x.at(u) for u in update]], axes=axes)
    return True


def _matmul(x: Any, op: Any) -> bool:
    """Align the batch axes; vectors become matrices for the time being."""
    lhs, rhs = op.inputs
    rank = max(len(lhs.shape), len(rhs.shape), 2)
    ins = []
    for t, matrix in ((lhs, (1,) + lhs.shape), (rhs, rhs.shape + (1,))):
        shape = matrix if len(t.shape) == 1 else t.shape
        lead = (x.replicas,) + (1,) * (rank - len(shape)) if x.varies(t) else ()
        ins.append(x.reshape(x.at(t), lead + shape))
    (out,) = op.outputs
    shape = (x.replicas,) + out.shape
    if len(rhs.shape) == 1:
        shape += (1,)
    if len(lhs.shape) == 1:
        shape = shape[:-1] + (1,) + shape[-1:]
    if shape == (x.replicas,) + out.shape:
        x.apply(op, ins)
    else:
        x.define(out, x.reshape(x.op(op.kind, ins, shape, out.dtype, **op.attrs), (x.replicas,) + out.shape))
    return True


_RULES: Dict[str, Rule] = {
    "matmul": _matmul,
    "gather": _gather,
    "onehot": _onehot,
    "dynamic_slice": _window,
    "dynamic_update": _window,
    "dynamic_update_": _window,
}
for _kind in ("softmax", "cumsum", "argmax", "argmin", "topk", "split"):
    _RULES[_kind] = _along_axis
for _kind in ("sum", "mean", "max", "min", "prod", "sumsquare", "l1", "l2", "logsum", "logsumexp"):
    _RULES[_kind] = _along_axes
for _kind in ("reshape", "identity", "detach", "ipu_copy", "io_tile_copy"):
    _RULES[_kind] = _reshape
for _kind, _rule in (("transpose", _transpose), ("slice", _slice), ("subsample", _subsample), ("concat", _concat)):
    _RULES[_kind] = _rule
for _kind in ("reshape", "detach", "transpose", "slice", "concat"):
    _RULES[_kind + "_"] = _RULES[_kind]
for _kind in (
    "copy_var_update_",
    "accumulator_zero_",
    "accumulate_",
    "accumulate_square_",
    "accumulate_mean_",
    "accumulate_moving_average_",
    "accumulate_moving_average_square_",
    "accumulator_scale_",
    "scaled_add",
    "scaled_add_",
    "increment_mod",
    "increment_mod_",
    "adam_updater",
    "lamb_updater",
    "adamax_updater",
    "adam_var_update",
):
    _RULES[_kind] = _updater
