"""Reading along an axis by indices that are values."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple

import numpy as np

from ..aval import Aval
from ..errors import ShapeError
from ..primitive import Linear
from ..tracer import bind
from . import lowering
from .kinds import LinearOp, check_axes, check_dtype, interned


def in_range(index: np.ndarray, size: int) -> np.ndarray:
    """Indices with negative ones counted from the end and the rest clamped into range."""
    wide = index.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, size - 1)


@dataclass(frozen=True)
class Take(LinearOp):
    """x[..., indices, ...] along an axis: the axis is replaced by the axes of the indices.

    Negative indices count from the end; what is still out of range reads the nearest element.
    """

    axis: int

    def abstract(self, x: Aval, indices: Aval) -> Aval:
        check_axes("take", (self.axis,), x.ndim)
        check_dtype("take: an index", indices, "iu")
        if x.shape[self.axis] == 0 and indices.size:
            raise ShapeError(f"take: axis {self.axis} of {x} has no elements to read")
        return x.with_shape(x.shape[:self.axis] + indices.shape + x.shape[self.axis + 1:])

    def eval(self, x: np.ndarray, indices: np.ndarray) -> Any:
        return np.take(x, in_range(indices, x.shape[self.axis]), self.axis)

    def transpose(self, ct: Any, x: Linear, indices: Any) -> Tuple[Any, ...]:
        return bind(interned(TakeTranspose, self.axis, x.aval.shape[self.axis]), (ct, indices)), None

    def lower(self, px: Any, x: Any, indices: Any) -> Any:
        return px.ops.gather(x, lowering.clamped_index(px, indices, x.shape[self.axis]), self.axis)


@dataclass(frozen=True)
class TakeTranspose(LinearOp):
    """What `take` along `axis` read is added back to where it came from, in zeros with `size` along the axis.

    Indices mean what they mean for take, so a clamped read gives its cotangent to the element that was read. float16
    is accumulated in float32.
    """

    axis: int
    size: int

    def abstract(self, x: Aval, indices: Aval) -> Aval:
        check_dtype("take_transpose: an index", indices, "iu")
        end = self.axis + indices.ndim
        if x.shape[self.axis:end] != indices.shape:
            raise ShapeError(f"take_transpose: axes {self.axis} to {end} of {x} are those of the indices {indices}")
        return x.with_shape(x.shape[:self.axis] + (self.size,) + x.shape[end:])

    def eval(self, x: np.ndarray, indices: np.ndarray) -> Any:
        end = self.axis + indices.ndim
        rows = np.moveaxis(x.reshape(x.shape[:self.axis] + (indices.size,) + x.shape[end:]), self.axis, 0)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        out = np.zeros((self.size,) + rows.shape[1:], wide)
        np.add.at(out, in_range(indices, self.size).ravel(), rows.astype(wide))
        return np.moveaxis(out, 0, self.axis).astype(x.dtype)

    def transpose(self, ct: Any, x: Linear, indices: Any) -> Tuple[Any, ...]:
        return take(ct, indices, self.axis), None

    def lower(self, px: Any, x: Any, indices: Any) -> Any:
        end = self.axis + len(indices.shape)
        count = int(np.prod(indices.shape, dtype=int))
        index = lowering.reshape(px, lowering.clamped_index(px, indices, self.size), (count,))
        rows = lowering.reshape(px, x, tuple(x.shape[:self.axis]) + (count,) + tuple(x.shape[end:]))
        return lowering.in_float32(px, lambda t: px.ops.scatter_reduce(
            t, index, "sum", axis=self.axis, axis_size=self.size), rows)


def take(x: Any, indices: Any, axis: int) -> Any:
    """Take."""
    return bind(interned(Take, axis), (x, indices))
