"""Bitwise operations on integers of any width, negative ones in two's complement.

PopXL has none, so they are lowered to arithmetic: an operand becomes its bits along a new axis in front, which costs
some dozen steps and, while they run, one integer per bit. On the IPU that is slow, and meant for small arrays.
"""
from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, List, Sequence, Tuple

import numpy as np

from ..tracer import bind
from . import lowering
from .kinds import Elementwise, Slope


# ---------------------------------------------------------------------------- integers in PopXL
def width(t: Any) -> int:
    """The number of bits of a tensor's integers."""
    return int("".join(c for c in str(t.dtype.name) if c.isdigit()))


def powers(px: Any, t: Any, count: int, rank: int = 0) -> Any:
    """1, 2, 4, ... in a tensor's dtype, along an axis in front of `rank` others; of the sign bit the lowest number."""
    dtype = np.dtype(str(t.dtype.name))
    line = (2 ** np.arange(count, dtype=np.int64)).astype(dtype)
    return lowering.reshape(px, px.constant(line, t.dtype), (count,) + (1,) * rank)


def lowest(t: Any) -> int:
    """The lowest number of a tensor's signed dtype."""
    return -(1 << width(t) - 1)


def complement(px: Any, t: Any) -> Any:
    """~t of signed integers, which cannot overflow."""
    return px.ops.sub(lowering.scalar(px, -1, t), t)


class Bitwise(Elementwise):
    """Each bit of the result from the bits of both operands."""

    takes: ClassVar[str] = "iu"

    def slopes(self, *args: Any, **_: Any) -> Sequence[Slope]:
        return None, None

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        ops, signed = px.ops, x.dtype.is_signed
        count, rank = width(x) - signed, max(len(x.shape), len(y.shape))
        value = powers(px, x, count, rank)
        one, two = lowering.scalar(px, 1, x), lowering.scalar(px, 2, x)
        signs: List[Any] = []
        planes: List[Any] = []
        for t in (x, y):
            if signed:  # the sign bit apart, so that the rest divides like a natural number
                signs.append(lowering.negative(px, t))
                t = ops.where(signs[-1], ops.sub(t, lowering.scalar(px, lowest(t), t)), t)
            t = lowering.reshape(px, t, (1,) + (1,) * (rank - len(t.shape)) + tuple(t.shape))
            t = ops.div(t, value)
            t = ops.sub(t, ops.mul(two, ops.div(t, two)))
            planes.append(ops.equal(t, one))
        bits = ops.where(self.combine(ops, *planes), value, lowering.scalar(px, 0, x))
        total = ops.sum(bits, [0])
        if not signed:
            return total
        negative = ops.where(self.combine(ops, *signs), lowering.scalar(px, lowest(x), x), lowering.scalar(px, 0, x))
        return ops.add(total, negative)

    @staticmethod
    @abc.abstractmethod
    def combine(ops: Any, x: Any, y: Any) -> Any:
        """The operation on bools."""


@dataclass(frozen=True)
class BitwiseAnd(Bitwise):
    """The bits that both have."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.bitwise_and(x, y)

    @staticmethod
    def combine(ops: Any, x: Any, y: Any) -> Any:
        return ops.logical_and(x, y)


@dataclass(frozen=True)
class BitwiseOr(Bitwise):
    """The bits that one has, or both."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.bitwise_or(x, y)

    @staticmethod
    def combine(ops: Any, x: Any, y: Any) -> Any:
        return ops.logical_or(x, y)


@dataclass(frozen=True)
class BitwiseXor(Bitwise):
    """The bits that one has, but not both."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.bitwise_xor(x, y)

    @staticmethod
    def combine(ops: Any, x: Any, y: Any) -> Any:
        return ops.logical_not(ops.equal(x, y))


# ---------------------------------------------------------------------------- shifts
class Shift(Elementwise):
    """The bits moved by y places, by all of them if y is negative or not below the width."""

    takes: ClassVar[str] = "iu"

    def slopes(self, *args: Any, **_: Any) -> Sequence[Slope]:
        return None, None

    @staticmethod
    def power(px: Any, y: Any, count: int) -> Tuple[Any, Any]:
        """2 to the y, and where y is beyond the first `count` powers; there it is 1."""
        ops, zero = px.ops, lowering.scalar(px, 0, y)
        beyond = ops.logical_or(lowering.negative(px, y), ops.greater(y, lowering.scalar(px, count - 1, y)))
        index = ops.where(beyond, zero, y)
        index = index if str(index.dtype.name) == "int32" else ops.cast(index, px.int32)
        return ops.gather(powers(px, y, count), index), beyond


@dataclass(frozen=True)
class ShiftLeft(Shift):
    """x times 2 to the y, modulo the range of the dtype; 0 where y is negative or not below the width."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.left_shift(x, y)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        power, beyond = self.power(px, y, width(x))
        return px.ops.where(beyond, lowering.scalar(px, 0, x), px.ops.mul(x, power))


@dataclass(frozen=True)
class ShiftRight(Shift):
    """x over 2 to the y, rounded down; 0, or -1 for negative x, where y is negative or not below the width."""

    def eval(self, x: np.ndarray, y: np.ndarray) -> Any:
        return np.right_shift(x, y)

    def lower(self, px: Any, x: Any, y: Any) -> Any:
        ops = px.ops
        power, beyond = self.power(px, y, width(x) - x.dtype.is_signed)
        zero = lowering.scalar(px, 0, x)
        if not x.dtype.is_signed:
            return ops.where(beyond, zero, ops.div(x, power))
        below = lowering.negative(px, x)
        quotient = ops.where(beyond, zero, ops.div(ops.where(below, complement(px, x), x), power))
        return ops.where(below, complement(px, quotient), quotient)


_AND, _OR, _XOR, _LEFT, _RIGHT = BitwiseAnd(), BitwiseOr(), BitwiseXor(), ShiftLeft(), ShiftRight()


def bitwise_and(x: Any, y: Any) -> Any: return bind(_AND, (x, y))
def bitwise_or(x: Any, y: Any) -> Any: return bind(_OR, (x, y))
def bitwise_xor(x: Any, y: Any) -> Any: return bind(_XOR, (x, y))
def shift_left(x: Any, y: Any) -> Any: return bind(_LEFT, (x, y))
def shift_right(x: Any, y: Any) -> Any: return bind(_RIGHT, (x, y))
