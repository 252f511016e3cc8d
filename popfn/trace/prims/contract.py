"""Contraction of axes: products of matrices and their like."""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from ..aval import Aval
from ..errors import DtypeError, ShapeError
from ..primitive import Linear, MappedAxis
from ..tracer import aval_of, bind
from . import lowering
from .kinds import Bilinear, safe_mul
from .shaping import Axes, Dims, beside, check_axes, check_dtype, interned, reshape, transpose


@functools.lru_cache(maxsize=4096)
def rest(ndim: int, *used: Axes) -> Axes:
    """The axes that are in none of the groups, ascending."""
    return tuple(i for i in range(ndim) if not any(i in group for group in used))


def pick(shape: Sequence[int], axes: Axes) -> Tuple[int, ...]:
    """The sizes of axes."""
    return tuple(shape[a] for a in axes)


@functools.lru_cache(maxsize=4096)
def ascending(axes: Axes, by: Axes) -> Axes:
    """Axes in the order in which their partners `by` ascend: that of the free axes that a product leaves of them."""
    return tuple(a for _, a in sorted(zip(by, axes)))


def unpermuted(got: Any, axes: Axes) -> Any:
    """A value whose axis i is axis axes[i] of what is wanted, with its axes in place."""
    return transpose(got, tuple(sorted(range(len(axes)), key=axes.__getitem__)))


def outer(ct: Any, y: Any, batch: int, free: int, y_batch: Axes, y_contract: Axes) -> Any:
    """ct times y where nothing is summed: axes batch, ct's free ones, y's contracted ones.

    Not a DotGeneral, because here 0 * inf can be kept 0: the derivative of sqrt(x @ x) at 0.
    """
    ct_shape, y_shape = aval_of(ct).shape, aval_of(y).shape
    y = transpose(y, y_batch + y_contract)
    ct = reshape(ct, ct_shape + (1,) * len(y_contract))
    return safe_mul(ct, reshape(y, pick(y_shape, y_batch) + (1,) * free + pick(y_shape, y_contract)))


@dataclass(frozen=True)
class DotGeneral(Bilinear):
    """Sum of products over pairs of contracted axes, for each index of the pairs of batch axes.

    The result's axes are the batch axes, the free axes of x, the free axes of y. float16 is accumulated in float32.
    """

    x_contract: Axes
    y_contract: Axes
    x_batch: Axes = ()
    y_batch: Axes = ()

    def free(self, x_ndim: int, y_ndim: int) -> Tuple[Axes, Axes]:
        """The axes of either operand that are neither contracted nor batch axes."""
        return rest(x_ndim, self.x_contract, self.x_batch), rest(y_ndim, self.y_contract, self.y_batch)

    def abstract(self, x: Aval, y: Aval) -> Aval:
        check_dtype("dot_general", x, "iuf")
        if x.dtype != y.dtype:
            raise DtypeError(f"dot_general: operands have one dtype, got {x} and {y}: convert one with astype")
        check_axes("dot_general", self.x_contract + self.x_batch, x.ndim)
        check_axes("dot_general", self.y_contract + self.y_batch, y.ndim)
        for kind, of_x, of_y in (("contracted", self.x_contract, self.y_contract),
                                 ("batch", self.x_batch, self.y_batch)):
            if len(of_x) != len(of_y):
                raise ShapeError(f"dot_general: {kind} axes {of_x} of {x} and {of_y} of {y} are not pairs of axes")
            if pick(x.shape, of_x) != pick(y.shape, of_y):
                raise ShapeError(f"dot_general: {kind} axes differ in size: {x} over {of_x}, {y} over {of_y}")
        x_free, y_free = self.free(x.ndim, y.ndim)
        shape = pick(x.shape, self.x_batch) + pick(x.shape, x_free) + pick(y.shape, y_free)
        return Aval._make(shape, x.dtype, x.weak and y.weak)

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:  # einsum, which shares no arithmetic with lower
        dtype = x.dtype
        if dtype == np.float16:
            x, y = x.astype(np.float32), y.astype(np.float32)
        x_names = list(range(x.ndim))
        y_names = list(range(x.ndim, x.ndim + y.ndim))
        for i, j in zip(self.x_contract + self.x_batch, self.y_contract + self.y_batch):
            y_names[j] = x_names[i]
        x_free, y_free = self.free(x.ndim, y.ndim)
        out = pick(x_names, self.x_batch + x_free) + pick(y_names, y_free)
        return np.einsum(x, x_names, y, y_names, out, optimize=True).astype(dtype)

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        # ct keeps its place next to the operand whose free axes it shares, so that neither has to be transposed.
        x_free, y_free = self.free(x.aval.ndim, y.aval.ndim)
        b, m, n = len(self.x_batch), len(x_free), len(y_free)
        batch, of_x, of_y = (tuple(range(i, j)) for i, j in ((0, b), (b, b + m), (b + m, b + m + n)))
        if type(x) is Linear:
            if not n:
                got = outer(ct, y, b, m, self.y_batch, self.y_contract)
                return unpermuted(got, self.x_batch + x_free + self.x_contract), None
            got = dot_general(ct, y, of_y, y_free, batch, self.y_batch)
            return unpermuted(got, self.x_batch + x_free + ascending(self.x_contract, self.y_contract)), None
        if not m:
            got = outer(ct, x, b, n, self.x_batch, self.x_contract)
            return None, unpermuted(got, self.y_batch + y_free + self.y_contract)
        got = dot_general(x, ct, x_free, of_x, self.x_batch, batch)
        return None, unpermuted(got, self.y_batch + ascending(self.y_contract, self.x_contract) + y_free)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        (x, y), (i, j) = args, dims
        x_contract, x_batch = (axes if i is None else beside(axes, i) for axes in (self.x_contract, self.x_batch))
        y_contract, y_batch = (axes if j is None else beside(axes, j) for axes in (self.y_contract, self.y_batch))
        if i is not None and j is not None:
            return dot_general(x, y, x_contract, y_contract, (i, *x_batch), (j, *y_batch)), 0
        # The mapped axis is one more free axis of its operand.
        x_free = rest(aval_of(x).ndim, x_contract, x_batch)
        y_free = rest(aval_of(y).ndim, y_contract, y_batch)
        dim = x_free.index(i) if i is not None else len(x_free) + y_free.index(j)
        return dot_general(x, y, x_contract, y_contract, x_batch, y_batch), len(x_batch) + dim

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        """(batch, m, k) @ (batch, k, n), with axes moved and merged only where that is needed."""
        x_free, y_free = self.free(len(x.shape), len(y.shape))
        batch, m, n, k = (pick(t.shape, axes) for t, axes in (
            (x, self.x_batch), (x, x_free), (y, y_free), (x, self.x_contract)))
        x = lowering.grouped(px, x, [*[(a,) for a in self.x_batch], x_free, self.x_contract])
        y = lowering.grouped(px, y, [*[(a,) for a in self.y_batch], self.y_contract, y_free])
        if lowering.is_float(x):
            return lowering.reshape(px, px.ops.matmul(x, y), (*batch, *m, *n))
        # There is no integer matmul on the chip.
        x = lowering.reshape(px, x, (*batch, math.prod(m), math.prod(k), 1))
        y = lowering.reshape(px, y, (*batch, 1, math.prod(k), math.prod(n)))
        return lowering.reshape(px, px.ops.sum(px.ops.mul(x, y), [len(batch) + 1]), (*batch, *m, *n))


def dot_general(x: Any, y: Any, x_contract: Axes, y_contract: Axes, x_batch: Axes = (), y_batch: Axes = ()) -> Any:
    """DotGeneral."""
    return bind(interned(DotGeneral, x_contract, y_contract, x_batch, y_batch), (x, y))
