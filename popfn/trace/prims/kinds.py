"""The abstract kinds, which carry the rules that many primitives share, and the primitives those rules need.

Elementwise primitives broadcast as NumPy does, because PopXL's do; the cotangent of a broadcast operand is summed.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..aval import FLOAT8, SHORT, Aval, Shape, bool_, broadcast_shapes
from ..errors import DtypeError, ShapeError
from ..jaxpr import Literal
from ..primitive import Linear, Primitive, Zero
from ..tracer import aval_of, bind, literal
from . import lowering

#: One primitive per class and parameters where it is made often: equal ones then share their memo.
interned = functools.lru_cache(maxsize=8192, typed=True)(lambda cls, *params: cls(*params))

Axes = Tuple[int, ...]
#: A derivative: None for zero everywhere, a number, or a function that records it when it is wanted.
Slope = Union[None, int, float, Callable[[], Any]]

_LETTERS = {d: "b" if d == bool_ else d.kind if d not in FLOAT8 else "8" for d in SHORT}
_WORDS = {"b": "bool", "i": "signed integers", "u": "unsigned integers", "f": "float16, float32", "8": "float8"}


def check_dtype(name: str, aval: Aval, takes: str) -> None:
    """Raise DtypeError unless the aval's dtype is of one of the kinds in `takes` (letters of b i u f 8)."""
    if _LETTERS[aval.dtype] not in takes:
        kinds = [_WORDS[letter] for letter in takes]
        raise DtypeError(f"{name} takes {', '.join(kinds)}, got {aval}")


def check_axes(name: str, axes: Axes, ndim: int) -> None:
    """Raise ShapeError unless axes are distinct and in range, non-negative."""
    if len(set(axes)) != len(axes) or not all(isinstance(a, int) and 0 <= a < ndim for a in axes):
        raise ShapeError(f"{name}: axes {axes} are not distinct axes of a value of rank {ndim}")


# ---------------------------------------------------------------------------- structural ones that rules need
class LinearOp(Primitive):
    """Linear in its first operand; the others, if any, are indices without a derivative."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        y = bind(self, primals)
        t = tangents[0]
        return y, Zero(y.aval) if type(t) is Zero else bind(self, (t, *primals[1:]))


@dataclass(frozen=True)
class Reshape(LinearOp):
    """The elements in the same row-major order under another shape."""

    shape: Shape

    def abstract(self, x: Aval) -> Aval:
        out = x.with_shape(self.shape)
        if out.size != x.size:
            raise ShapeError(f"reshape: {x} has {x.size} elements, shape {self.shape} has {out.size}")
        return out

    def eval(self, x: np.ndarray) -> Any:
        return np.reshape(x, self.shape)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (reshape(ct, x.aval.shape),)

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.reshape(px, x, self.shape)


@dataclass(frozen=True)
class Broadcast(LinearOp):
    """NumPy's broadcasting to a shape: new axes in front, axes of size 1 repeated."""

    shape: Shape

    def abstract(self, x: Aval) -> Aval:
        lead = len(self.shape) - x.ndim
        if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, self.shape[lead:])):
            raise ShapeError(f"broadcast: {x} does not broadcast to shape {self.shape}")
        return x.with_shape(self.shape)

    def eval(self, x: np.ndarray) -> Any:
        return np.array(np.broadcast_to(x, self.shape))

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        return (unbroadcast(ct, x.aval),)

    def lower(self, px: Any, x: Any) -> Any:
        return lowering.broadcast(px, x, self.shape)


@dataclass(frozen=True)
class Sum(LinearOp):
    """Sum over axes. float16 is accumulated in float32 and rounded once; integers wrap."""

    axes: Axes

    def abstract(self, x: Aval) -> Aval:
        check_dtype("sum", x, "iuf")
        check_axes("sum", self.axes, x.ndim)
        return x.with_shape(tuple(n for i, n in enumerate(x.shape) if i not in self.axes))

    def eval(self, x: np.ndarray) -> Any:
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.sum(x, axis=self.axes, dtype=wide).astype(x.dtype)

    def transpose(self, ct: Any, x: Linear) -> Tuple[Any]:
        kept = tuple(1 if i in self.axes else n for i, n in enumerate(x.aval.shape))
        return (broadcast_to(reshape(ct, kept), x.aval.shape),)

    def lower(self, px: Any, x: Any) -> Any:
        if not self.axes:
            return x
        return lowering.in_float32(px, lambda t: px.ops.sum(t, list(self.axes)), x)


def reshape(x: Any, shape: Shape) -> Any:
    """Reshape, left out where it would change nothing."""
    return x if aval_of(x).shape == shape else bind(interned(Reshape, shape), (x,))


def broadcast_to(x: Any, shape: Shape) -> Any:
    """Broadcast, left out where it would change nothing."""
    return x if aval_of(x).shape == shape else bind(interned(Broadcast, shape), (x,))


def sum_over(x: Any, axes: Axes) -> Any:
    """Sum over axes, left out where there are none."""
    return bind(interned(Sum, axes), (x,)) if axes else x


def unbroadcast(ct: Any, aval: Aval) -> Any:
    """Sum a cotangent over the axes along which its operand, of this aval, was broadcast."""
    shape = aval_of(ct).shape
    if shape == aval.shape:
        return ct
    lead = len(shape) - aval.ndim
    axes = tuple(range(lead)) + tuple(i + lead for i, n in enumerate(aval.shape) if n == 1 and shape[i + lead] != 1)
    return reshape(sum_over(ct, axes), aval.shape)


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
