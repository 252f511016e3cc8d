"""The contract of a primitive: one final class, its parameters as fields, its rules as methods.

The set of rules is closed and the set of primitives is open, so a primitive carries its rules itself:

* ``abstract(*avals)``: the result's aval, or a ShapeError / DtypeError;
* ``eval(*arrays)``: the meaning, in NumPy;
* ``jvp(primals, tangents)``: the result and its tangent, tangents being arrays or `Zero`;
* ``transpose(ct, *args)``: for linear primitives, cotangents of the arguments that arrive as `Linear`;
* ``batch(axis, args, dims)``: the primitive over one more axis, which has another place in each operand;
* ``lower(px, *tensors)``: the same in PopXL, ``px`` being the SDK's module or popfn's host twin of it.

A primitive of several results sets ``multiple`` and deals in tuples. Parameters are the fields of a frozen dataclass,
so two primitives are equal if they are of one class and their parameters are equal.
"""
from __future__ import annotations

import abc
import dataclasses
from typing import Any, Callable, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from .aval import COMMON, DEVICE, NO_AXES, Aval, Placement
from .errors import MissingRuleError, ShapeError

Result = Union[Aval, Tuple[Aval, ...]]


class Mixed:
    """See MIXED."""


#: What `infer` gives for operands that are not placed as `operand_placements` says; `bind` then takes the primitive
#: that is `widened` for them, and places them.
MIXED = Mixed()


class Zero:
    """A symbolic zero: the tangent or cotangent of a value on which nothing depends.

    `aval` is the type that the zero would have if it were written out.
    """

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Zero({self.aval})"


class Linear:
    """In a transpose rule, an argument whose cotangent is wanted; only its aval is known."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Linear({self.aval})"


class MappedAxis(NamedTuple):
    """The axis that vmap adds: its size, and the name by which collectives know it."""

    size: int
    name: Optional[str] = None


class Primitive(abc.ABC):
    """An operation with all its rules; see the module's docstring for the contract of each."""

    multiple: ClassVar[bool] = False
    reverse_only: ClassVar[bool] = False  # whether it has no forward mode, because a rule for reverse mode stands in
    memo: Dict[Tuple[Aval, ...], Any]  # results of `abstract`, kept by `infer`

    def __new__(cls, *args: Any, **kwargs: Any) -> Primitive:
        self = super().__new__(cls)
        self.__dict__["memo"] = {}
        return self

    @property
    def has_effect(self) -> bool:
        """Whether it does more than compute its results, as a primitive that holds such jaxprs does."""
        return any(jaxpr.has_effect for jaxpr in getattr(self, "jaxprs", ()))

    @property
    def name(self) -> str:
        """The name in jaxprs and errors: the class's name in snake case."""
        return primitive_name(type(self))

    def infer(self, avals: Tuple[Aval, ...]) -> Any:
        """The results' avals, remembered; MIXED if the operands are not placed as they should be."""
        out = self.memo.get(avals)
        if out is None:
            out = self.memo[avals] = self.typed(avals)
        return out

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        """`abstract`, where results vary over the axes of the operands, and are on the device as they are."""
        if all(a.placement == COMMON for a in avals):
            return self.abstract(*avals)
        wanted = self.operand_placements(avals)
        if any(a.placement != placement for a, placement in zip(avals, wanted)):
            return MIXED
        out = self.abstract(*[a.invariant for a in avals])
        axes = NO_AXES.union(*[axes for axes, _ in wanted])
        return out.over(axes) if isinstance(out, Aval) else tuple([a.over(axes) for a in out])

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        """How each operand is to be placed: on the device, varying over the axes of all operands together."""
        return ((NO_AXES.union(*[a.varying for a in avals]), DEVICE),) * len(avals)

    def widened(self, avals: Sequence[Aval]) -> Primitive:
        """The same for operands that may vary over more axes than its jaxprs' inputs, if it holds such."""
        return self

    @abc.abstractmethod
    def abstract(self, *avals: Any) -> Any:
        """The result's aval (a tuple of avals if `multiple`). Raises ShapeError or DtypeError."""

    @abc.abstractmethod
    def eval(self, *arrays: Any) -> Any:
        """The result for NumPy arrays, of the dtype that `abstract` says."""

    @abc.abstractmethod
    def lower(self, px: Any, *tensors: Any) -> Any:
        """The result as PopXL tensors, by calls of `px` alone."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        """The result and its tangent (an array or Zero; tuples of them if `multiple`)."""
        raise MissingRuleError(f"{self.name} has no jvp rule: it cannot be differentiated")

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        """`jvp`, recorded so that no equation takes both part in the result and in its tangent.

        Every jvp rule of a simple primitive does that already. Primitives that hold jaxprs override it, because there
        one equation would compute both; they hand what the tangent needs from one equation to the other as residuals.
        """
        return self.jvp(primals, tangents)

    def transpose(self, ct: Any, *args: Any) -> Tuple[Any, ...]:
        """A cotangent, `Zero` or None for each argument; None for those that are not `Linear`."""
        raise MissingRuleError(f"{self.name} has no transpose rule: it is not linear in the argument asked for")

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        """The result over the mapped axis and that axis's place in it (tuples of both if `multiple`).

        `dims` holds the axis's place in each operand, None for those that have none; at least one has it.
        """
        raise MissingRuleError(f"{self.name} has no batch rule: vmap does not know it")

    def uses_axis(self, name: str) -> bool:
        """Whether the result depends on the lane of a mapped axis of this name though no operand does."""
        return False

    def params(self, defaults: bool = True) -> Dict[str, Any]:
        """The parameters by name, in the order of the fields; without those left at their default if asked to."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)  # type: ignore[arg-type]
                if defaults or getattr(self, f.name) != f.default}


#: Who sees each operation as it is evaluated: functions of the primitive, its operands, its results and its source.
watchers: List[Callable[[Primitive, Sequence[np.ndarray], Sequence[np.ndarray], Any], None]] = []


def primitive_name(cls: type) -> str:
    """The name of a primitive's class in snake case: DotGeneral is `dot_general`."""
    name = cls.__name__
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


def result_avals(primitive: Primitive, avals: Tuple[Aval, ...]) -> Tuple[Aval, ...]:
    """The avals of a primitive's results as a tuple, whether it has one or several.

    Raises ShapeError if the operands are not placed as the primitive wants them.
    """
    out = primitive.infer(avals)
    if out is MIXED:
        raise ShapeError(f"{primitive.name}: operands vary over the same axes and are in the memory where the "
                         f"primitive wants them, got {', '.join(map(str, avals))}")
    return out if isinstance(out, tuple) else (out,)


def eval_results(primitive: Primitive, arrays: Sequence[np.ndarray]) -> Tuple[np.ndarray, ...]:
    """The results of `eval` as a tuple of arrays, whether there is one or several."""
    out = primitive.eval(*arrays)
    return tuple(out) if primitive.multiple else (np.asarray(out),)
