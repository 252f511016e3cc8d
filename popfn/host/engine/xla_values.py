"""What ops compute under jax.numpy, where the common values of `engine.kernels` are written for NumPy only."""

from typing import Any, Callable, Dict, List, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from popfn.host.engine.kernels import KERNELS, Kernel
from popfn.host.engine.plan import storage_dtype

_HALF = np.dtype(np.float16)


def compute(op: Any, arrays: Sequence[Any]) -> List[Any]:
    """The outputs of an op, of their shapes and dtypes."""
    kernel: Kernel = KERNELS[op.kind]
    if kernel.float32:
        arrays = [x.astype(np.float32) if x.dtype == _HALF else x for x in arrays]
    value = VALUES.get(op.kind) or kernel.value
    if value is None:
        raise AssertionError(f"{op!r} has no value")
    results = value(jnp, op, *arrays)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    return [fitted(result, t) for result, t in zip(results, op.outputs)]


def fitted(array: Any, t: Any) -> Any:
    """The array in the shape and dtype of a tensor, and never of a weak type."""
    array = lax.convert_element_type(array, storage_dtype(t.dtype))
    return array if array.shape == t.shape else jnp.broadcast_to(array, t.shape)


def _topk(xp: Any, op: Any, x: Any) -> Any:
    """NumPy and JAX disagree on how to ask for a stable order."""
    axis, k = op.attrs["axis"], op.attrs["k"]
    key = x if not op.attrs["largest"] else -x if x.dtype.kind == "f" else ~x
    order = lax.slice_in_dim(jnp.argsort(key, axis=axis), 0, k, axis=axis)
    return jnp.take_along_axis(x, order, axis=axis), order


def _geluerf(xp: Any, op: Any, x: Any) -> Any:
    """XLA has the error function."""
    return 0.5 * x * (1 + lax.erf(x * 0.5**0.5))


def _accumulate(xp: Any, op: Any, t: Any, x: Any, f: Any = None) -> Any:
    """The factor may be traced."""
    wide = np.promote_types(t.dtype, x.dtype)
    x = x.astype(wide)
    f = op.attrs["f"] if f is None else jnp.reshape(f, ())
    if f is not None:
        x = x * jnp.asarray(f, wide)
    return t.astype(wide) + x


def _starts(op: Any, t: Any, index: Any) -> List[Any]:
    """Where a window begins; XLA moves it inside."""
    starts: List[Any] = [np.int32(0)] * t.ndim
    index = jnp.clip(index.reshape(-1).astype(np.int64), 0, 2**31 - 1).astype(np.int32)
    for i, axis in enumerate(op.attrs["axes"]):
        starts[axis] = index[i]
    return starts


def _dynamic_slice(xp: Any, op: Any, t: Any, index: Any) -> Any:
    sizes = list(t.shape)
    for axis, size in zip(op.attrs["axes"], op.attrs["sizes"]):
        sizes[axis] = size
    return lax.dynamic_slice(t, _starts(op, t, index), sizes)


def _dynamic_update(xp: Any, op: Any, t: Any, index: Any, update: Any) -> Any:
    return lax.dynamic_update_slice(t, update, _starts(op, t, index))


def scatter_reduce(xp: Any, op: Any, data: Any, indices: Any, initial: Any = None) -> Any:
    """Of the values that go to one place with "none", the last stays. Indices that are out of range are left out."""
    shape = initial.shape if initial is not None else op.outputs[0].shape
    return scattered(data, indices, initial, shape, op.attrs["axis"], op.attrs["reduction"])


def scattered(data: Any, indices: Any, initial: Any, shape: Any, axis: int, reduction: str) -> Any:
    """Combine the elements of `data` into an array by their indices along an axis."""
    is_fresh = initial is None
    start = jnp.zeros(shape, data.dtype)
    if not is_fresh:
        start = initial.astype(data.dtype)
    elif reduction in ("max", "min"):
        start = jnp.full(shape, _limit(data.dtype, reduction), data.dtype)
    rows, source = jnp.moveaxis(start, axis, 0), jnp.moveaxis(data, axis, 0)
    if indices.size == data.shape[axis] and indices.shape != data.shape:
        where: Any = (_inside(indices.reshape(-1), len(rows)),)
    else:
        places = _inside(jnp.moveaxis(indices, axis, 0), len(rows))
        lanes = jnp.meshgrid(*[jnp.arange(n) for n in places.shape], indexing="ij")[1:]
        where = (places, *lanes)
    method = {"sum": "add", "none": "set"}.get(reduction, reduction)
    rows = getattr(rows.at[where], method)(source, mode="drop")
    if is_fresh and reduction in ("max", "min"):
        hit = jnp.zeros(rows.shape, np.bool_).at[where].set(True, mode="drop")
        rows = jnp.where(hit, rows, jnp.zeros((), rows.dtype))
    return jnp.moveaxis(rows, 0, axis)


def _inside(indices: Any, count: int) -> Any:
    """The indices, with those below 0 out of range above instead: JAX counts them from the end."""
    indices = indices.astype(np.int64)
    return jnp.where(indices < 0, count, indices)


def _limit(dtype: np.dtype, reduction: str) -> Any:
    """What every element replaces."""
    if dtype.kind == "f":
        return -np.inf if reduction == "max" else np.inf
    if dtype.kind == "b":
        return reduction == "min"
    return np.iinfo(dtype).min if reduction == "max" else np.iinfo(dtype).max


VALUES: Dict[str, Callable[..., Any]] = {
    "topk": _topk,
    "geluerf": _geluerf,
    "geluerf_": _geluerf,
    "accumulate_": _accumulate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "dynamic_update_": _dynamic_update,
    "scatter_reduce": scatter_reduce,
}
