"""What ops compute under jax.numpy, where the common values of `popfn.host.ops` are written for NumPy only."""

from typing import Any, Callable, Dict, List, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import storage_dtype
from popfn.host.kernels.kernel import Kernel
from popfn.host.tensor import Constant

_HALF = np.dtype(np.float16)


def compute(op: Any, arrays: Sequence[Any]) -> List[Any]:
    """The outputs of an op, of their shapes and dtypes."""
    kernel: Kernel = KERNELS[op.kind]
    if kernel.float32:
        arrays = [x.astype(np.float32) if x.dtype == _HALF else x for x in arrays]
    value = VALUES.get(op.kind) or kernel.value
    if value is None:
        raise AssertionError(f"{op!r} has no value")
    arrays = [_opaque(x) if opaque else x for x, opaque in zip(arrays, _hidden(op))] if _is_chained(op) else arrays
    results = value(jnp, op, *arrays)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    return [fitted(result, t) for result, t in zip(results, op.outputs)]


# XLA computes (x + 1) - 1 as x + 0, and (x * c) * d as x * (c * d), which rounds and overflows otherwise; and it takes
# x + 0 for x, though -0.0 + 0.0 is 0.0.
_SUMS = frozenset(("add", "add_", "sub"))
_PRODUCTS = frozenset(("mul",))


def _is_chained(op: Any) -> bool:
    """Whether an op with a constant follows, or comes before, another one of its kind with a constant, or adds 0."""
    kinds = _SUMS if op.kind in _SUMS else _PRODUCTS if op.kind in _PRODUCTS else ()
    if not kinds or not any(map(_is_constant, op.inputs)):
        return False
    if kinds is _SUMS and any(_is_constant(t) and not np.any(t.data) for t in op.inputs):
        return True
    neighbours = [*(t.producer for t in op.inputs), op.outputs[0].consumer]
    return any(o is not None and o.kind in kinds and any(map(_is_constant, o.inputs)) for o in neighbours)


def _is_constant(t: Any) -> bool:
    return isinstance(t, Constant) and t.dtype.is_floating_point


def _hidden(op: Any) -> List[bool]:
    return [_is_constant(t) for t in op.inputs]


def _opaque(x: Any) -> Any:
    """A constant whose value the compiler does not use; JAX of Python 3.8 has no way to say so."""
    return lax.optimization_barrier(jnp.asarray(x)) if hasattr(lax, "optimization_barrier") else x


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
    """XLA has the complementary error function, which keeps its precision where the result is close to 0."""
    return 0.5 * x * lax.erfc(x * -(0.5**0.5))


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


VALUES: Dict[str, Callable[..., Any]] = {
    "topk": _topk,
    "geluerf": _geluerf,
    "geluerf_": _geluerf,
    "accumulate_": _accumulate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "dynamic_update_": _dynamic_update,
}
