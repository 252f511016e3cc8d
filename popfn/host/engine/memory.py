"""Memory of the state and of buffers: aligned, and zeroed no sooner than it is touched."""

import math
import mmap
from typing import Any, Callable, Tuple

import numpy as np

from popfn.host.kernels.layout import Shape

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

# Above this, memory comes in pages of its own, which the system zeroes when they are first touched and takes back at
# once. What comes from the heap is zeroed here and now if it was used before, and remote buffers are large.
OWN_PAGES_BYTES = 1 << 20
_PRIVATE: Tuple[int, ...] = ()
if hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS"):
    _PRIVATE = (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,)


def zeros(shape: Shape, dtype: Any) -> np.ndarray:
    """An array of zeros."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < OWN_PAGES_BYTES:
        raw = _aligned(np.zeros, size)
    else:
        raw = np.frombuffer(mmap.mmap(-1, size, *_PRIVATE), np.uint8)
    return raw.view(dtype).reshape(shape)


def uninitialised(size: int) -> np.ndarray:
    """So many bytes."""
    return _aligned(np.empty, size)


def _aligned(make: Callable[..., np.ndarray], size: int) -> np.ndarray:
    raw = make(size + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + size]
