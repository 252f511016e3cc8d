"""Pools: what is combined lies along one spatial axis after another."""

import math
from typing import Any, Callable, Dict

import numpy as np

from popfn.host.engine.families.convolution import padded
from popfn.host.engine.kernel import Kernel


def _combined(xp: Any, op: Any, t: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the elements of each window of padded samples."""
    a = op.attrs
    for axis, count in enumerate(op.outputs[0].shape[2:], 2):
        size, step, distance = (a[name][axis - 2] for name in ("kernel", "stride", "dilation"))
        total = None
        for start in range(0, size * distance, distance):
            part = t[(slice(None),) * axis + (slice(start, start + step * (count - 1) + 1, step),)]
            total = part if total is None else combine(total, part)
        t = total
    return t


def max_pool(xp: Any, op: Any, t: Any) -> Any:
    """The largest element of each window."""
    lowest = -math.inf if t.dtype.kind == "f" else np.iinfo(t.dtype).min
    return _combined(xp, op, padded(xp, t, op.attrs["padding"], lowest), xp.maximum)


def average_pool(xp: Any, op: Any, t: Any) -> Any:
    """The mean of each window, the padding left out."""
    total = _combined(xp, op, padded(xp, t, op.attrs["padding"], 0), xp.add)
    ones = padded(np, np.ones((1, 1) + t.shape[2:], np.float32), op.attrs["padding"], 0)
    return total / np.maximum(_combined(np, op, ones, np.add), np.float32(1))


KERNELS: Dict[str, Kernel] = {
    "max_pool": Kernel(max_pool),
    "average_pool": Kernel(average_pool, float32=True),
}
