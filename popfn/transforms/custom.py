"""Functions that bring their own derivative: CustomJvp and CustomVjp, which hold a jaxpr and the rule for it.

Where nothing is differentiated, both are the function that they hold. A rule is a program too. It is traced when it is
first asked for, because a rule may call the very function that it belongs to; batching a rule is put off likewise.
"""
from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Callable, ClassVar, Optional, Sequence, Tuple, Union

from ..trace.aval import Aval, AxisNames, Placement
from ..trace.errors import ArgumentError, LoweringError, MissingRuleError, Source, message, user_source
from ..trace.jaxpr import Jaxpr
from ..trace.primitive import Linear, MappedAxis, Zero
from ..trace.prims import instantiate
from ..trace.prims.collectives import pvary
from ..trace.prims.elementwise import convert
from ..trace.prims.shaping import sum_over, transpose
from ..trace.tracer import Trace, aval_of, bind, current_trace
from .bodies import HoldsJaxprs, is_over, more_axes, over_axes
from .call import Holder
from .differentiate import moving_only
from .inlining import inlined
from .linear import linear_parts
from .replay import checked, inline
from .simplify import simplify, without_dead_code
from .vmap import Batched, Places, batch_jaxpr


class Later:
    """A rule's program, made when it is first asked for."""

    def __init__(self, name: str, make: Callable[[], Jaxpr]) -> None:
        self.name = name
        self.make = make
        self.made: Optional[Jaxpr] = None

    @property
    def jaxpr(self) -> Jaxpr:
        """The program."""
        if self.made is None:
            self.made = self.make()
        return self.made

    def __repr__(self) -> str:  # printed jaxprs hold it, and strings can be read back
        return repr(self.name)


#: A string stands for a rule in a jaxpr that was read from its text.
Rule = Union[Jaxpr, Later, str]


class Custom(Holder):
    """What the two have in common.

    The operands are first those that `closed` describes: values that the function closes over, or takes for arguments
    that are not to be differentiated. Behind them stand the arguments.
    """

    closed: Tuple[str, ...]
    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """The function's name for errors."""
        return self.jaxpr.name or "a function"

    def program(self, rule: Rule) -> Jaxpr:
        """The program of a rule."""
        if isinstance(rule, str):
            raise MissingRuleError(f"the {self.kind} rule of {self.label} is not known: the jaxpr was read from "
                                   "its text, which names rules only")
        return rule if isinstance(rule, Jaxpr) else rule.jaxpr

    def widened(self, avals: Sequence[Aval]) -> Custom:
        """Like an operation's: where some operands vary, all do, and the results, and what the rules take and give."""
        axes = more_axes(avals, self.jaxpr.in_avals)
        rules = {f.name: self.widened_rule(getattr(self, f.name), axes) for f in fields(self)  # type: ignore[arg-type]
                 if f.name not in ("jaxpr", "closed")}
        return replace(self, jaxpr=over_axes(self.jaxpr, axes), **rules)  # type: ignore[type-var]

    def widened_rule(self, rule: Rule, axes: AxisNames) -> Later:
        """A rule for the widened function."""
        return self.later(lambda: over_axes(self.program(rule), axes))

    def arguments(self, tangents: Sequence[Any]) -> Sequence[Any]:
        """The tangents of the float arguments. Raises ArgumentError if one of what is closed over moves."""
        for t, what in zip(tangents, self.closed):
            if type(t) is not Zero:
                raise ArgumentError(message(
                    f"the {self.kind} rule of {self.label} gives no derivative by a value that "
                    f"{self.label} closes over, or takes by nondiff_argnums", f"the value: {what}",
                    f"way out: pass it to {self.label} as an argument that is differentiated", at=here()))
        return [t for t in tangents[len(self.closed):] if t.aval.is_float]

    def later(self, make: Callable[[], Jaxpr]) -> Later:
        """A rule for the batched function."""
        return Later(self.jaxpr.name, make)


def positions(avals: Sequence[Aval]) -> Sequence[int]:
    """The places of the floats."""
    return [i for i, a in enumerate(avals) if a.is_float]


def tangents_of(values: Sequence[Any], avals: Sequence[Aval]) -> Tuple[Any, ...]:
    """Tangents of floats among results of these types, Zero for the others."""
    rest = iter(values)
    return tuple(next(rest) if a.is_float else Zero(a) for a in avals)


@dataclass(frozen=True)
class CustomJvp(Custom):
    """A function whose derivative is a program of its own.

    `rule` takes the operands and tangents of the float arguments; it gives the outputs and tangents of the float ones.
    It is linear in the tangents, so that reverse mode is its transpose.
    """

    jaxpr: Jaxpr
    rule: Rule
    closed: Tuple[str, ...] = ()
    kind: ClassVar[str] = "custom_jvp"

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        directions = [instantiate(t) for t in self.arguments(tangents)]
        results = inline(self.program(self.rule), [*primals, *directions])
        n = len(self.jaxpr.outputs)
        return tuple(results[:n]), tangents_of(results[n:], self.jaxpr.out_avals)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        directions = self.arguments(tangents)
        rule, n = self.program(self.rule), len(self.jaxpr.outputs)
        mask = (False,) * len(primals) + tuple(type(t) is not Zero for t in directions)
        fixed, linear, moves = linear_parts(
            rule, mask, f"the custom_jvp rule of {self.label} is not linear in the tangents")
        if any(moves[:n]):
            raise ArgumentError(message(
                f"the custom_jvp rule of {self.label} gives a result that depends on the tangents", at=here()))
        # Tangents that stand still are zero in both halves.
        still = [instantiate(t) for t in directions if type(t) is Zero]
        results = inline(fixed, [*primals, *still])
        residuals = results[len(moves) - sum(moves):]
        moved = iter(inline(linear, [*residuals, *moving_only(directions)]))
        floats = [a for a in self.jaxpr.out_avals if a.is_float]
        touts = [next(moved) if on else Zero(a) for on, a in zip(moves[n:], floats)]
        return tuple(results[:n]), tangents_of(touts, self.jaxpr.out_avals)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        jaxpr, out_dims = batched(self.jaxpr, axis, tuple(dims))
        by_argument = [dims[i] for i in positions(self.jaxpr.in_avals) if i >= len(self.closed)]
        rule = self.later(lambda: batched(self.program(self.rule), axis, (*dims, *by_argument)).jaxpr)
        return bind(CustomJvp(jaxpr, rule, self.closed), args), out_dims


@dataclass(frozen=True)
class CustomVjp(Custom):
    """A function whose reverse mode is two programs of its own.

    `forward` takes the operands; it gives the outputs, then residuals. `backward` takes what is closed over, the
    residuals and cotangents of the float outputs; it gives cotangents of the float arguments.
    """

    jaxpr: Jaxpr
    forward: Rule
    backward: Rule
    closed: Tuple[str, ...] = ()
    kind: ClassVar[str] = "custom_vjp"
    reverse_only: ClassVar[bool] = True

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        raise forward_mode(self.jaxpr.name)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        directions = self.arguments(tangents)
        results = inline(self.program(self.forward), primals)
        n = len(self.jaxpr.outputs)
        backward = self.program(self.backward)
        wanted = [a for a, t in zip(backward.outputs, directions) if type(t) is not Zero]
        backward = without_dead_code(Jaxpr(backward.inputs, wanted, backward.eqns, backward.constvars,
                                           backward.constants, self.jaxpr.name))
        kept = [*primals[:len(self.closed)], *results[n:]]
        touts = bind(Pullback(backward, len(kept)), [*kept, *moving_only(directions)])
        return tuple(results[:n]), tangents_of(touts, self.jaxpr.out_avals)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        jaxpr, out_dims = batched(self.jaxpr, axis, tuple(dims))
        n, closed = len(jaxpr.outputs), len(self.closed)

        def forward() -> Batched:
            old = self.program(self.forward)
            in_front = differs(self.jaxpr.out_avals, axis) + (False,) * (len(old.outputs) - n)
            return batch_jaxpr(old, axis, tuple(dims), in_front)
        by_argument = [dims[i] for i in positions(self.jaxpr.in_avals) if i >= closed]
        backward = self.later(lambda: batch_backward(
            self.program(self.backward), axis, (*dims[:closed], *forward().dims[n:]), by_argument))
        rule = CustomVjp(jaxpr, self.later(lambda: forward().jaxpr), backward, self.closed)
        return bind(rule, args), out_dims


@dataclass(frozen=True)
class Pullback(HoldsJaxprs):
    """The linear map whose transpose is a program; only the transpose is known.

    `backward` takes residuals, as many as said, and cotangents; the operands are the residuals and tangents. Where it
    gives cotangents that vary between lanes, so do the tangents: that of a value that does not is handed to every lane,
    and so its cotangent is the sum of theirs.
    """

    backward: Jaxpr
    residuals: int
    multiple: ClassVar[bool] = True
    reverse_only: ClassVar[bool] = True

    def uses_axis(self, name: str) -> bool:
        return is_over(self.backward, name)

    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        return self.backward.in_avals[self.residuals:]

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        jaxpr = self.backward
        return [a.placement for a in jaxpr.in_avals[:self.residuals] + jaxpr.out_avals]

    def widened(self, avals: Sequence[Aval]) -> Pullback:
        jaxpr = self.backward
        axes = more_axes(avals, jaxpr.in_avals[:self.residuals] + jaxpr.out_avals)
        return Pullback(over_axes(jaxpr, axes), self.residuals)

    def eval(self, *arrays: Any) -> Any:
        raise forward_mode(self.backward.name)

    def lower(self, px: Any, *tensors: Any) -> Any:
        raise LoweringError(str(forward_mode(self.backward.name)))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        raise forward_mode(self.backward.name)

    def transpose(self, ct: Any, *args: Any) -> Tuple[Any, ...]:
        k = self.residuals
        grads = inline(self.backward, [*args[:k], *(instantiate(c) for c in ct)])
        return (None,) * k + tuple(g if type(x) is Linear else None for g, x in zip(grads, args[k:]))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        k = self.residuals
        backward = batch_backward(self.backward, axis, tuple(dims[:k]), dims[k:])
        return bind(Pullback(backward, k), args), front(self.backward.in_avals[k:], axis)


def forward_mode(name: str) -> MissingRuleError:
    """The error for a function with a rule for reverse mode only."""
    return MissingRuleError(message(
        f"{name} has a custom_vjp rule, which forward mode cannot use",
        "way out: reverse mode (grad, vjp, jacrev), or a custom_jvp rule, which serves both", at=here()))


def here() -> Optional[Source]:
    """The user's line: of the equation that a transform is at, or the one that runs."""
    trace = current_trace()
    return trace.source if trace is not None and trace.source is not None else user_source(3)


# ---------------------------------------------------------------------------- batched rules
def differs(avals: Sequence[Aval], axis: MappedAxis) -> Tuple[bool, ...]:
    """Which values may differ between the lanes: all, but with a name for the axis the types know better."""
    return tuple(axis.name is None or axis.name in a.varying for a in avals)


def front(avals: Sequence[Aval], axis: MappedAxis) -> Places:
    """The place of the axis for values that have it in front wherever they may differ."""
    return tuple(0 if on else None for on in differs(avals, axis))


def batched(jaxpr: Jaxpr, axis: MappedAxis, dims: Places) -> Batched:
    """A jaxpr over a mapped axis, which its outputs have in front, so that a rule agrees with its function."""
    return batch_jaxpr(jaxpr, axis, dims, differs(jaxpr.out_avals, axis))


def batch_backward(backward: Jaxpr, axis: MappedAxis, kept: Places, dims: Sequence[Any]) -> Jaxpr:
    """A backward program over a mapped axis, which the cotangents that it takes have in front.

    `kept` is where what it takes before them has the axis, `dims` where the arguments have it of which it gives
    cotangents: one that all lanes share gets the sum of theirs.
    """
    jaxpr, places = batched(backward, axis, (*kept, *front(backward.in_avals[len(kept):], axis)))

    def placed(x: Any, place: Optional[int], dim: Optional[int]) -> Any:
        if place is None:  # summed over the lanes already
            return x
        if dim is None:
            return sum_over(x, (0,))
        return transpose(x, (*range(1, dim + 1), 0, *range(dim + 1, aval_of(x).ndim)))
    with Trace(backward.name) as trace:
        outs = inline(jaxpr, trace.add_inputs(jaxpr.in_avals))
        return checked(trace.finish([placed(*row) for row in zip(outs, places, dims)]))


# ---------------------------------------------------------------------------- what rules give
def fitted(x: Any, aval: Aval) -> Any:
    """What a rule gives, in the type that is wanted; shape and dtype are right already."""
    return convert(pvary(x, aval.varying), aval.dtype, aval.weak)


def without_rules(jaxpr: Jaxpr) -> Jaxpr:
    """The simplified program with the functions themselves where custom rules were: nothing is differentiated now."""
    return simplify(inlined(jaxpr, (CustomJvp, CustomVjp), deep=True))
