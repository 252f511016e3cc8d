"""The abstract kinds, which carry the rules that many primitives share, and the arithmetic those rules need.

Elementwise primitives broadcast as NumPy does, because PopXL's do; the cotangent of a broadcast operand is summed.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..aval import Aval, Shape, broadcast_shapes
from ..errors import DtypeError, ShapeError
from ..jaxpr import Literal
from ..primitive import Linear, MappedAxis, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering
from .shaping import Dims, broadcast_to, check_dtype, ranked, to_front, unbroadcast

#: A derivative: None for zero everywhere, a number, or a function that records it when it is wanted.
Slope = Union[None, int, float, Callable[[], Any]]


# ---------------------------------------------------------------------------- elementwise
class Elementwise(Primitive):
    """One result element per element of the broadcast operands, which share one dtype.

    A subclass says which dtypes it takes (`takes`, letters of `b i u f 8`) and, if it has a derivative, its `slopes`.
    """

    takes: ClassVar[str] = "f"
    result: ClassVar[Optional[np.dtype]] = None  # the result's dtype where it is not the operands'

    def abstract(self, *avals: Aval) -> Aval:
        first = avals[0]
        check_dtype(self.name, first, self.takes)
        shape, weak = first.shape, first.weak
        for other in avals[1:]:
            if other.dtype != first.dtype:
                raise DtypeError(f"{self.name}: operands have one dtype, got {' and '.join(map(str, avals))}: "
                                 "convert one with astype")
            weak = weak and other.weak
            if other.shape != shape:
                shape = broadcast_operands(self.name, avals)
        return Aval._make(shape, self.result or first.dtype, weak and self.result is None)

    def slopes(self, *args: Any, **_: Any) -> Sequence[Slope]:
        """The derivative of the result by each operand; called with the result, then the operands."""
        raise NotImplementedError(self.name)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        total: Any = None
        for slope, t in zip(self.slopes(y, *primals), tangents):
            if slope is not None and type(t) is not Zero:
                part = scale(slope, t)
                total = part if total is None else add(total, part)
        return y, Zero(y.aval) if total is None else broadcast_to(total, y.aval.shape)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
        return batch_broadcasting(self, args, dims)


def batch_broadcasting(primitive: Primitive, args: Sequence[Any], dims: Dims) -> Tuple[Any, int]:
    """The batch rule of a primitive that broadcasts its operands as NumPy does."""
    if len(args) == 1:
        return bind(primitive, args), dims[0]
    if len(args) == 2 and dims[0] == dims[1] and aval_of(args[0]).ndim == aval_of(args[1]).ndim:
        return bind(primitive, args), dims[0]
    ndims = [aval_of(x).ndim - (d is not None) for x, d in zip(args, dims)]
    ndim = max(ndims)
    at = {d for d in dims if d is not None}
    dim = min(at)
    # The mapped axis may stay where it is if all have it there, and none broadcasts along it.
    if len(at) > 1 or any(n != ndim if d is not None else n > ndim - dim for n, d in zip(ndims, dims)):
        args = [x if d is None else ranked(to_front(x, d), ndim) for x, d in zip(args, dims)]
        dim = 0
    return bind(primitive, args), dim


def broadcast_operands(name: str, avals: Sequence[Aval]) -> Shape:
    """The common shape, or a ShapeError that shows the operands' types."""
    try:
        return broadcast_shapes(*(a.shape for a in avals))
    except ShapeError:
        raise ShapeError(f"{name}: shapes do not broadcast: {' and '.join(map(str, avals))}") from None


def scale(slope: Union[int, float, Callable[[], Any]], t: Any) -> Any:
    """slope * t for a tangent or cotangent t; exactly 0 where either is 0, whatever the other."""
    if not callable(slope):
        return t if slope == 1 else neg(t) if slope == -1 else mul(t, literal(slope, t.aval))
    s = slope()
    if type(s) is Literal and math.isfinite(s.value) and s.value != 0:
        return mul(t, s)
    return safe_mul(s, t)


def add_tangents(a: Any, b: Any) -> Any:
    """a + b where either may be Zero."""
    return b if type(a) is Zero else a if type(b) is Zero else add(a, b)


@dataclass(frozen=True)
class Neg(Elementwise):
    """-x."""

    takes: ClassVar[str] = "if"

    def eval(self, x: np.ndarray) -> Any:
        return np.negative(x)

    def slopes(self, y: Any, x: Any) -> Sequence[Slope]:
        return (-1,)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (neg(ct),)

    def lower(self, px: Any, x: Any) -> Any:
        return px.ops.negate(x)


@dataclass(frozen=True)
class Add(Elementwise):
    """x + y."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.add(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return 1, 1

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        return tuple(unbroadcast(ct, a.aval) if type(a) is Linear else None for a in (x, y))

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.add(x, y)


@dataclass(frozen=True)
class Sub(Elementwise):
    """x - y."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.subtract(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return 1, -1

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        return (unbroadcast(ct, x.aval) if type(x) is Linear else None,
                neg(unbroadcast(ct, y.aval)) if type(y) is Linear else None)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.sub(x, y)


@dataclass(frozen=True)
class Mul(Elementwise):
    """x * y."""

    takes: ClassVar[str] = "iuf"

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.multiply(x, y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return (lambda: y), (lambda: x)

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        if type(x) is Linear:
            return unbroadcast(scale(lambda: y, ct), x.aval), None
        return None, unbroadcast(scale(lambda: x, ct), y.aval)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        return px.ops.mul(x, y)


@dataclass(frozen=True)
class SafeMul(Elementwise):
    """x * y, and exactly 0 where either is 0, so that an infinite slope does not make NaN of nothing.

    Derivatives are multiplied with it, forwards and backwards, so that both modes agree: 0 * inf is 0 in either order.
    """

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.where((x == 0) | (y == 0), x.dtype.type(0), x * y)

    def slopes(self, z: Any, x: Any, y: Any) -> Sequence[Slope]:
        return (lambda: y), (lambda: x)

    def transpose(self, ct: Any, x: Any, y: Any) -> Tuple[Any, ...]:
        if type(x) is Linear:
            return unbroadcast(scale(lambda: y, ct), x.aval), None
        return None, unbroadcast(scale(lambda: x, ct), y.aval)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        ops, zero = px.ops, lowering.scalar(px, 0, x)
        return ops.where(ops.logical_or(ops.equal(x, zero), ops.equal(y, zero)), zero, ops.mul(x, y))


_NEG, _ADD, _SUB, _MUL, _SAFE_MUL = Neg(), Add(), Sub(), Mul(), SafeMul()


def neg(x: Any) -> Any:
    """-x."""
    return bind(_NEG, (x,))


def add(x: Any, y: Any) -> Any:
    """x + y."""
    return bind(_ADD, (x, y))


def sub(x: Any, y: Any) -> Any:
    """x - y."""
    return bind(_SUB, (x, y))


def mul(x: Any, y: Any) -> Any:
    """x * y."""
    return bind(_MUL, (x, y))


def safe_mul(x: Any, y: Any) -> Any:
    """x * y, and 0 where either is 0."""
    return bind(_SAFE_MUL, (x, y))


# ---------------------------------------------------------------------------- bilinear
class Bilinear(Primitive):
    """Linear in each of its two operands."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        z = bind(self, primals)
        total: Any = Zero(z.aval)
        for i, t in enumerate(tangents):
            if type(t) is not Zero:
                operands: List[Any] = list(primals)
                operands[i] = t
                total = add_tangents(total, bind(self, operands))
        return z, total
