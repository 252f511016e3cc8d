"""Random numbers and dropout. A seed is a pair of uint32; equal seeds give equal numbers.

The bits are a function of the seed and the place of an element.

Errors: TypeError for an operand that is no Tensor or a parameter of the wrong type, ValueError for a tensor of
another graph.
"""

import math
from typing import Any, Dict, Iterable, Optional, Tuple

import numpy as np

from popfn.host import dtypes
from popfn.host.errors import popart_exception
from popfn.host.kernels import threefry
from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import _build
from popfn.host.tensor import Tensor, _as_shape, _check_dtype, constant


def _seed_fault(seed: Tensor) -> Optional[str]:
    """PopXL takes any tensor for a seed when the graph is built."""
    if seed.dtype is not dtypes.uint32 or seed.shape != (2,):
        return f"the seed {seed!r} is no pair of uint32"
    return None


def dropout(t: Tensor, seed_tensor: Tensor, p: float) -> Tensor:
    """Set elements to 0 with the probability `p`, and divide the others by 1 - p.

    Args:
        t: Floats.
        seed_tensor: The seed.
        p: The probability.
    """
    graph = _build.checked("dropout", t=t, seed_tensor=seed_tensor)
    ratio = _build.as_float("dropout", "p", p)
    fault = _seed_fault(seed_tensor) or _dropout_fault(t, ratio)
    return _build.emit_like(graph, "dropout", (t, seed_tensor), {"ratio": ratio}, None, fault)


def shaped_dropout(t: Tensor, seed_tensor: Tensor, shape: Iterable[int], ratio: float) -> Tensor:
    """`dropout` with one draw for all elements along the axes on which `shape` is 1.

    Args:
        t: Floats.
        seed_tensor: The seed.
        shape: A shape that broadcasts to that of `t`.
        ratio: The probability.

    Raises:
        popart_exception: If `shape` does not broadcast to that of `t`.
    """
    graph = _build.checked("shaped_dropout", t=t, seed_tensor=seed_tensor)
    shape = _as_shape("shaped_dropout", shape)
    ratio = _build.as_float("shaped_dropout", "ratio", ratio)
    try:
        fits = _build.broadcast_shapes(t.shape, shape) == t.shape
    except ValueError:
        fits = False
    if not fits:
        raise popart_exception(f"shaped_dropout: the shape {shape} does not broadcast to that of {t!r}.")
    fault = _seed_fault(seed_tensor) or _dropout_fault(t, ratio)
    attrs = {"shape": shape, "ratio": ratio}
    return _build.emit_like(graph, "shaped_dropout", (t, seed_tensor), attrs, "shapeddropout_out", fault)


def _dropout_fault(t: Tensor, ratio: float) -> Optional[str]:
    if t.dtype not in (dtypes.float16, dtypes.float32):
        return f"{t!r} is neither float16 nor float32"
    if not 0 <= ratio < 1:
        return f"the probability {ratio} is not in the range from 0 to below 1"
    return None


def _dropout_value(xp: Any, op: Any, t: Any, seed: Any) -> Any:
    """t / (1 - ratio), or 0 with the probability `ratio`; one draw for each element of the mask's shape."""
    ratio, shape = op.attrs["ratio"], op.attrs.get("shape", t.shape)
    bits = xp.reshape(threefry.bits(xp, seed, math.prod(shape)), shape)
    limit = np.uint32(min(round(ratio * 2**32), 2**32 - 1))
    return xp.where(bits >= limit, t * np.float32(1 / (1 - ratio)), xp.zeros_like(t))


def _draw(
    kind: str, seed: Tensor, shape: Iterable[int], dtype: dtypes.dtype, low: float, high: float
) -> Tensor:
    graph = _build.checked(kind, seed_tensor=seed)
    shape = _as_shape(kind, shape)
    names = ("low", "high") if kind == "random_uniform" else ("mean", "std")
    attrs = {name: _build.as_float(kind, name, value) for name, value in zip(names, (low, high))}
    _check_dtype(kind, dtype)
    fault = _seed_fault(seed)
    if dtype not in (dtypes.float16, dtypes.float32):
        fault = f"random numbers are float16 or float32, not {dtype.name}"
    return _build.emit(graph, kind, (seed,), shape, dtype, attrs, fault=fault)


def random_uniform(
    seed_tensor: Tensor,
    shape: Iterable[int],
    low: float = 0.0,
    high: float = 1.0,
    dtype: dtypes.dtype = dtypes.float32,
) -> Tensor:
    """Draw numbers from `low` to below `high`, all equally likely, as float16 or float32."""
    return _draw("random_uniform", seed_tensor, shape, dtype, low, high)


def _random_uniform_value(xp: Any, op: Any, seed: Any) -> Any:
    """Numbers from `low` to below `high`."""
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype.as_numpy()
    low, high = np.float32(op.attrs["low"]), np.float32(op.attrs["high"])
    drawn = low + xp.reshape(threefry.uniform(xp, seed, math.prod(shape)), shape) * (high - low)
    # Rounding, of the sum or to float16, may reach the upper end, which does not belong to the range.
    below = np.nextafter(dtype.type(high), dtype.type(low))
    return xp.minimum(drawn, np.float32(below)) if low < high else drawn


def random_normal(
    seed_tensor: Tensor,
    shape: Iterable[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: dtypes.dtype = dtypes.float32,
) -> Tensor:
    """Draw numbers from the normal distribution of this mean and standard deviation."""
    return _draw("random_normal", seed_tensor, shape, dtype, mean, std)


def _random_normal_value(xp: Any, op: Any, seed: Any) -> Any:
    """Numbers of a normal distribution."""
    shape = op.outputs[0].shape
    drawn = xp.reshape(threefry.normal(xp, seed, math.prod(shape)), shape)
    return np.float32(op.attrs["mean"]) + drawn * np.float32(op.attrs["std"])


def create_random_seed(seed: Tensor, modifier: Tensor) -> Tensor:
    """Return a new seed, which `seed` and the integer `modifier` determine."""
    graph = _build.checked("create_random_seed", seed=seed, modifier=modifier)
    fault = _seed_fault(seed)
    if not modifier.dtype.is_int or _build.nelms(modifier.shape) != 1:
        fault = f"the modifier {modifier!r} is not one integer"
    return _build.emit_like(graph, "modify_random_seed", (seed, modifier), None, "modified_seed", fault)


def _modify_random_seed_value(xp: Any, op: Any, seed: Any, modifier: Any) -> Any:
    """The seed with the number `modifier` of those made of `seed`."""
    return threefry.child(xp, seed, modifier)


def split_random_seed(seed: Tensor, n: int = 2) -> Tuple[Tensor, ...]:
    """Return `n` new seeds.

    Raises:
        TypeError: If `n` is no int.
        ValueError: If the seed is no pair of uint32.

    Example:
        >>> import popfn.host as popxl
        >>> with popxl.Ir().main_graph:
        ...     seed = popxl.variable(popxl.create_seeds(42))
        ...     first, second = popxl.ops.split_random_seed(seed)
    """
    graph = _build.checked("split_random_seed", seed=seed)
    if _seed_fault(seed):
        raise ValueError(f"split_random_seed: {_seed_fault(seed)}.")
    n = _build.as_int("split_random_seed", "n", n)
    with graph._undo_on_error():
        return tuple([create_random_seed(seed, constant(i, dtypes.uint32)) for i in range(n)])


KERNELS: Dict[str, Kernel] = {
    "dropout": Kernel(_dropout_value, float32=True),
    "shaped_dropout": Kernel(_dropout_value, float32=True),
    "random_uniform": Kernel(_random_uniform_value, float32=True),
    "random_normal": Kernel(_random_normal_value, float32=True),
    "modify_random_seed": Kernel(_modify_random_seed_value),
}
