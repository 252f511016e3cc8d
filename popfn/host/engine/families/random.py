"""Random numbers and dropout. The bits are a function of the seed and the place of an element."""

import math
from typing import Any, Dict

import numpy as np

from popfn.host.engine import threefry
from popfn.host.engine.kernel import Kernel


def modify_random_seed(xp: Any, op: Any, seed: Any, modifier: Any) -> Any:
    """The seed with the number `modifier` of those made of `seed`."""
    return threefry.child(xp, seed, modifier)


def random_uniform(xp: Any, op: Any, seed: Any) -> Any:
    """Numbers from `low` to below `high`."""
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype.as_numpy()
    low, high = np.float32(op.attrs["low"]), np.float32(op.attrs["high"])
    drawn = low + xp.reshape(threefry.uniform(xp, seed, math.prod(shape)), shape) * (high - low)
    # Rounding, of the sum or to float16, may reach the upper end, which does not belong to the range.
    below = np.nextafter(dtype.type(high), dtype.type(low))
    return xp.minimum(drawn, np.float32(below)) if low < high else drawn


def random_normal(xp: Any, op: Any, seed: Any) -> Any:
    """Numbers of a normal distribution."""
    shape = op.outputs[0].shape
    drawn = xp.reshape(threefry.normal(xp, seed, math.prod(shape)), shape)
    return np.float32(op.attrs["mean"]) + drawn * np.float32(op.attrs["std"])


def shaped_dropout(xp: Any, op: Any, t: Any, seed: Any) -> Any:
    """t / (1 - ratio), or 0 with the probability `ratio`; one draw for each element of the mask's shape."""
    ratio, shape = op.attrs["ratio"], op.attrs.get("shape", t.shape)
    bits = xp.reshape(threefry.bits(xp, seed, math.prod(shape)), shape)
    limit = np.uint32(min(round(ratio * 2**32), 2**32 - 1))
    return xp.where(bits >= limit, t * np.float32(1 / (1 - ratio)), xp.zeros_like(t))


KERNELS: Dict[str, Kernel] = {
    "modify_random_seed": Kernel(modify_random_seed),
    "random_uniform": Kernel(random_uniform, float32=True),
    "random_normal": Kernel(random_normal, float32=True),
    "dropout": Kernel(shaped_dropout, float32=True),
    "shaped_dropout": Kernel(shaped_dropout, float32=True),
}
