"""The table of kernels: one entry for each kind of op says what it computes, how, and what it does to storage."""

from typing import Any, Dict, Optional, Tuple

from popfn.host.engine import emit, values
from popfn.host.engine.families import (
    convolution,
    float8,
    indexing,
    linear,
    norm_loss,
    pooling,
    printing,
    random,
    sampling,
    statistics,
    updates,
)
from popfn.host.engine.kernel import Kernel
from popfn.host.engine.layout import Layout, permuted, reshaped, sliced


def _elementwise(
    value: Any, emitter: Any = emit.call_value, inplace: Tuple[int, ...] = (0, 1), float32: bool = False
) -> Kernel:
    return Kernel(value, emitter, inplace, True, float32, elementwise=True)


def _ufunc(name: str) -> Kernel:
    return _elementwise(values.function(name), emit.ufunc(name))


def _reduction(value: Any, name: str, before: Optional[str] = None, after: Optional[str] = None) -> Kernel:
    return Kernel(value, emit.reduction(name, before, after), float32=True)


def _view_same(op: Any, i: int, x: Any) -> Layout:
    return x.strides, 0


def _view_reshape(op: Any, i: int, x: Any) -> Optional[Layout]:
    strides = reshaped(x.shape, x.strides, op.outputs[0].shape, x.dtype.itemsize)
    return None if strides is None else (strides, 0)


def _view_transpose(op: Any, i: int, x: Any) -> Layout:
    return permuted(x.strides, op.attrs["permutation"]), 0


def _view_slice(op: Any, i: int, x: Any) -> Layout:
    return sliced(x.shape, x.strides, op.attrs["slices"])


def _view_subsample(op: Any, i: int, x: Any) -> Layout:
    return tuple([stride * step for stride, step in zip(x.strides, op.attrs["strides"])]), 0


def _view_split(op: Any, i: int, x: Any) -> Layout:
    return x.strides, x.strides[op.attrs["axis"]] * sum(op.attrs["sizes"][:i])


_same = Kernel(values.same, view=_view_same)

KERNELS: Dict[str, Kernel] = {
    # Elementwise
    "abs": _ufunc("absolute"),
    "negate": _ufunc("negative"),
    "sign": _elementwise(values.sign, emit.sign),
    "exp": _ufunc("exp"),
    "log": _ufunc("log"),
    "sqrt": _ufunc("sqrt"),
    "sin": _ufunc("sin"),
    "cos": _ufunc("cos"),
    "tanh": _ufunc("tanh"),
    "floor": _ufunc("floor"),
    "ceil": _ufunc("ceil"),
    "relu": _elementwise(values.relu, emit.relu),
    "clip": _elementwise(values.clip, emit.clip),
    "gelu": _elementwise(values.gelu, emit.gelu, float32=True),
    "geluerf": _elementwise(values.geluerf, float32=True),
    "swish": _elementwise(values.swish, emit.swish, float32=True),
    "isnan": _ufunc("isnan"),
    "isinf": _ufunc("isinf"),
    "isfinite": _ufunc("isfinite"),
    "logical_not": _ufunc("logical_not"),
    "logical_and": _ufunc("logical_and"),
    "logical_or": _ufunc("logical_or"),
    "cast": _elementwise(values.cast, emit.cast),
    "add": _ufunc("add"),
    "sub": _ufunc("subtract"),
    "mul": _elementwise(values.mul, emit.mul),
    "div": _elementwise(values.div, emit.div),
    "pow": _elementwise(values.power, emit.power),
    "fmod": _ufunc("fmod"),
    "maximum": _elementwise(values.maximum, emit.maximum),
    "equal": _ufunc("equal"),
    "greater": _ufunc("greater"),
    "where": _elementwise(values.where, emit.where, (1, 2)),
    # Along axes
    "sum": _reduction(values.reduction("sum"), "add"),
    "prod": _reduction(values.reduction("prod"), "multiply"),
    "max": Kernel(values.reduction("max"), emit.reduction("maximum")),
    "min": Kernel(values.reduction("min"), emit.reduction("minimum")),
    "mean": Kernel(values.mean, emit.mean, float32=True),
    "l1": _reduction(values.l1, "add", "absolute"),
    "l2": _reduction(values.l2, "add", "multiply", "sqrt"),
    "sumsquare": _reduction(values.sumsquare, "add", "multiply"),
    "logsum": _reduction(values.logsum, "add", None, "log"),
    "logsumexp": Kernel(values.logsumexp, float32=True),
    "softmax": Kernel(values.softmax, emit.softmax, (0,), float32=True),
    "cumsum": Kernel(values.cumsum, emit.cumsum, float32=True),
    "argmax": Kernel(values.argmax),
    "argmin": Kernel(values.argmin),
    "topk": Kernel(values.topk),
    # Elements by index
    "gather": Kernel(values.gather, emit.gather),
    "onehot": Kernel(values.onehot, emit.onehot),
    "scatter_reduce": Kernel(values.scatter_reduce, float32=True),
    "dynamic_slice": Kernel(values.dynamic_slice, emit.dynamic_slice),
    "dynamic_update": Kernel(values.dynamic_update, emit.dynamic_update, (0,), True),
    # Shape and movement
    "init": Kernel(values.init, emit.init),
    "identity": _same,
    "detach": _same,
    "ipu_copy": _same,
    "io_tile_copy": _same,
    "reshape": Kernel(values.reshape, view=_view_reshape),
    "transpose": Kernel(values.transpose, view=_view_transpose),
    "slice": Kernel(values.part, view=_view_slice),
    "subsample": Kernel(values.subsample, view=_view_subsample),
    "split": Kernel(values.split, view=_view_split),
    "concat": Kernel(values.concat, emit.concat),
    "host_load": Kernel(None, effect=True),
    "host_store": Kernel(None, effect=True),
    # Linear algebra
    "matmul": Kernel(values.matmul, emit.matmul, float32=True),
    # Updates of input 0
    "copy_var_update_": Kernel(values.replace, emit.copy_update, writes=True, overwrites=True),
    "accumulator_zero_": Kernel(values.zero, emit.fill_zero, writes=True, overwrites=True),
    "accumulate_": Kernel(values.accumulate, emit.accumulate, float32=True, writes=True),
    # Calls of graphs are the engine's own business
    "call": Kernel(None),
    "repeat": Kernel(None),
    "conditional": Kernel(None),
    "remote_code_load": Kernel(None),
    # Over the IPUs of a replica
    "all_reduce": _elementwise(values.all_reduce, inplace=(), float32=True),
    # Between remote memory and the device
    "remote_load": Kernel(None, effect=True),
    "remote_load_": Kernel(None, effect=True, writes=True, overwrites=True),
    "remote_store": Kernel(None, effect=True),
}
for _family in (
    convolution,
    float8,
    indexing,
    linear,
    norm_loss,
    pooling,
    printing,
    random,
    sampling,
    statistics,
    updates,
):
    KERNELS.update(_family.KERNELS)
# The in-place twins compute what their originals do.
for _kind in ("add", "exp", "relu", "gelu", "geluerf", "swish", "dynamic_update"):
    KERNELS[_kind + "_"] = KERNELS[_kind]._replace(writes=True, inplace=())
for _kind in ("reshape", "transpose", "slice", "detach", "concat"):
    KERNELS[_kind + "_"] = KERNELS[_kind]
