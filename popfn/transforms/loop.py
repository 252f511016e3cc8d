"""While: a jaxpr run for as long as another one says."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, List, Optional, Sequence, Tuple

import numpy as np

from ..trace.aval import Aval, Placement, bool_, int32
from ..trace.errors import LoweringError, MissingRuleError, ShapeError, message
from ..trace.jaxpr import Jaxpr, Var
from ..trace.primitive import MIXED, MappedAxis, Zero
from ..trace.prims import argmax, convert, gt, instantiate, place, select, sum_over
from ..trace.prims.remote import RemoteWrite
from ..trace.prims.shaping import ranked
from ..trace.tracer import aval_of, bind, current_trace, literal
from .accesses import accesses, reached_by_some
from .bodies import (
    HoldsJaxprs,
    Mask,
    Subgraph,
    behind,
    carried,
    check_lanes_are_alone,
    chosen,
    cut,
    either,
    guard,
    moving,
    rebuilt,
    reordered,
    varying,
    with_zeros,
)
from .cond import choose, for_lanes, of_lanes
from .differentiate import jvp_jaxpr, linearize_jaxpr, spread
from .replay import inline
from .scan import Scan
from .simplify import without_dead_code
from .vmap import batch_jaxpr, lanes_in_front


@dataclass(frozen=True)
class While(HoldsJaxprs):
    """A carry that `body` replaces for as long as `cond` is true of it.

    Both take the constants, which are the first operands, and the carry. With `max_steps` the loop ends after so many
    steps, whatever `cond` says; then it is also a scan, which can be differentiated backwards and lowered.
    """

    cond: Jaxpr
    body: Jaxpr
    num_consts: int
    max_steps: Optional[int] = None
    multiple: ClassVar[bool] = True

    @property
    def jaxprs(self) -> Tuple[Jaxpr, ...]:
        """The jaxprs it holds."""
        return self.cond, self.body

    # ------------------------------------------------------------------ meaning
    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        for jaxpr in (self.cond, self.body):
            want = jaxpr.in_avals
            if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
                raise ShapeError(f"while: {jaxpr.name or 'the body'} takes ({', '.join(map(str, want))}), "
                                 f"got ({', '.join(map(str, avals))})")
        carry, new = self.body.in_avals[self.num_consts:], self.body.out_avals
        if [a.strong for a in carry] != [a.strong for a in new]:
            raise ShapeError(f"while: {self.body.name or 'the body'} takes the carry ({', '.join(map(str, carry))}), "
                             f"and gives ({', '.join(map(str, new))})")
        if [(a.shape, a.dtype) for a in self.cond.out_avals] != [((), bool_)]:
            raise ShapeError(f"while: the condition is a bool scalar, got ({', '.join(map(str, self.cond.out_avals))})")
        return new

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        return [a.placement for a in self.body.in_avals]

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        ins, axes = self.body.in_avals, self.cond.out_avals[0].varying
        alike = ins == self.cond.in_avals and all(axes <= a.varying for a in ins)
        return super().typed(avals) if alike else MIXED

    def widened(self, avals: Sequence[Aval]) -> While:
        """Where the condition varies over an axis, lanes take different numbers of steps, and so all operands do."""
        ins, start = list(avals), self.num_consts
        while True:
            cond = varying(self.cond, ins)
            axes = cond.out_avals[0].varying
            with reached_by_some("while", "a loop", self.jaxprs, axes):
                body = varying(self.body, ins)
            new = [a.over(axes.union(a.varying, b.varying, c.varying))
                   for a, b, c in zip(ins, cond.in_avals, body.in_avals)]
            new[start:] = [a.over(a.varying | y.varying) for a, y in zip(new[start:], body.out_avals)]
            if new == ins:
                return While(cond, varying(body, ins, [a.varying for a in ins[start:]]), start, self.max_steps)
            ins = new

    def eval(self, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        consts, carry = arrays[:self.num_consts], arrays[self.num_consts:]
        steps = 0
        while steps != self.max_steps and self.cond.eval(*consts, *carry)[0]:
            carry = self.body.eval(*consts, *carry)
            steps += 1
        return carry

    # ------------------------------------------------------------------ derivatives
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        avals, start = self.body.out_avals, self.num_consts
        mask = self.mask_of(tangents, lambda m: jvp_jaxpr(self.body, m).moves)
        pushed, moves = jvp_jaxpr(self.body, mask)
        moved = mask[start:]

        def make() -> Tuple[Jaxpr, Jaxpr]:
            body = with_zeros(pushed, len(avals), moves, moved, avals)
            unused = [Var(v.aval) for v in body.inputs[len(mask):]]
            cond = reordered(self.cond, self.joined(self.cond.inputs, unused, mask), self.cond.outputs)
            return cond, reordered(body, self.joined(body.inputs[:len(mask)], body.inputs[len(mask):], mask),
                                   body.outputs)
        cond, body = self.body.remember(("jvp of while", self.cond, start, mask), make)
        loop = While(cond, body, start + sum(mask[:start]), self.max_steps)
        results = bind(loop, self.joined(primals, [instantiate(t) for t in chosen(tangents, mask)], mask))
        return results[:len(avals)], spread(results[len(avals):], moved, avals)

    def mask_of(self, tangents: Sequence[Any], moves: Callable[[Mask], Mask]) -> Mask:
        """Which operands move: those with a tangent, and the parts of the carry that come to."""
        return carried(moving(tangents), self.num_consts, len(self.body.outputs), moves)

    def joined(self, xs: Sequence[Any], ts: Sequence[Any], mask: Mask) -> List[Any]:
        """Operands and the tangents of those in the mask as operands of one loop."""
        (consts, carry), (t_consts, t_carry) = cut(xs, self.num_consts), cut(ts, sum(mask[:self.num_consts]))
        return [*consts, *t_consts, *carry, *t_carry]

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        if not any(self.mask_of(tangents, lambda m: linearize_jaxpr(self.body, m).moves)[self.num_consts:]):
            results = bind(self, primals)
            return results, tuple([Zero(a) for a in self.body.out_avals])
        if self.max_steps is None:
            raise MissingRuleError(message(
                f"the while loop over {self.body.name} has no bound on its steps, so that it cannot be differentiated "
                "backwards: that needs the values of all steps",
                "way out: max_steps=, the most steps that it may take; or forward mode, pf.jvp"))
        return self.as_scan().linearize(primals, tangents)

    def as_scan(self) -> Scan:
        """The same as `max_steps` steps, each of which does nothing where the condition is false.

        Raises LoweringError if the condition, which each step evaluates, writes to a buffer.
        """
        start = self.num_consts
        for access in accesses(self.cond):
            if isinstance(access, RemoteWrite):
                raise LoweringError(message(
                    f"the condition of the while loop over {self.body.name} writes to {access.buffer.name}: with a "
                    "bound it is evaluated max_steps times, also when the loop has ended", "way out: write in the body",
                    at=getattr(current_trace(), "source", None)))

        def stay(*args: Any) -> Sequence[Any]:
            return args[start:]

        def step(*args: Any) -> Sequence[Any]:
            goes, = inline(self.cond, args)
            return choose((rebuilt("done", self.body.in_avals, stay), self.body), goes, args)
        body = self.body.remember(("while as scan", self.cond, start), lambda: rebuilt(
            self.body.name, self.body.in_avals, step))
        return Scan(body, self.max_steps or 0, start, len(self.body.outputs))

    # ------------------------------------------------------------------ vmap
    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        start, count = self.num_consts, len(self.body.outputs)
        c_dims = tuple(dims[:start])

        def places(mask: Sequence[bool]) -> Tuple[Optional[int], ...]:
            return (*c_dims, *[0 if on else None for on in mask[start:]])

        def moves(mask: Mask) -> Mask:
            return tuple(d is not None for d in batch_jaxpr(self.body, axis, places(mask)).dims)
        mask = carried(tuple(d is not None for d in dims), start, count, moves)
        cond = batch_jaxpr(self.cond, axis, places(mask))
        if cond.dims[0] is not None:
            return self.batch_lanes(axis, args, dims)
        mapped = mask[start:]
        body = batch_jaxpr(self.body, axis, places(mask), mapped).jaxpr
        carry = [lanes_in_front(x, d, axis) if on else x for x, d, on in zip(args[start:], dims[start:], mapped)]
        return (bind(While(cond.jaxpr, body, start, self.max_steps), [*args[:start], *carry]),
                tuple(0 if on else None for on in mapped))

    def batch_lanes(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        """Lanes go on for as long as they want to: until all are done, those that are keep their carry.

        The body sees only operands of lanes that go on, so that nothing in it overflows or loops for the others.
        """
        check_lanes_are_alone("while: lanes meet in a loop", axis, self.jaxprs)
        start, count = self.num_consts, len(self.body.outputs)
        consts, places = for_lanes(self.jaxprs, axis, args[:start], dims[:start])
        carry = [lanes_in_front(x, d, axis) for x, d in zip(args[start:], dims[start:])]
        places += (0,) * count
        cond = batch_jaxpr(self.cond, axis, places, (True,)).jaxpr
        body = batch_jaxpr(self.body, axis, places, (True,) * count).jaxpr
        silent = batch_jaxpr(guard(self.body), axis, (0, *places), (True,) * count).jaxpr if self.has_effect else None
        if not axis.size:
            return tuple([instantiate(Zero(a)) for a in body.out_avals]), (0,) * count

        def any_goes(*operands: Any) -> Sequence[Any]:
            going = convert(operands[start], int32)
            return [gt(sum_over(going, (0,)), literal(0, aval_of(going).strong))]

        def step(*operands: Any) -> Sequence[Any]:
            fixed, (goes, *old) = operands[:start], operands[start:]
            lane = argmax(convert(goes, int32), 0)
            seen = [x if d is None else of_lanes(goes, lane, x) for x, d in zip([*fixed, *old], places)]
            outs = inline(body, seen) if silent is None else inline(silent, [goes, *seen])
            new = [place(select(ranked(goes, aval_of(x).ndim - 1), y, x), aval_of(x).memory)
                   for x, y in zip(old, outs)]
            return [*inline(cond, [*fixed, *new]), *new]
        goes, = inline(cond, [*consts, *carry])
        avals = [*body.in_avals[:start], cond.out_avals[0], *body.in_avals[start:]]
        test, turn = self.body.remember(("lanes of while", self.cond, axis, places), lambda: (
            rebuilt(self.cond.name, avals, any_goes), rebuilt(self.body.name, avals, step)))
        return bind(While(test, turn, start, self.max_steps), [*consts, goes, *carry])[1:], (0,) * count

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[While, List[Any]]:
        """The same without effects where the bool is False; see `bodies.guard`."""
        return While(guard(self.cond), guard(self.body), self.num_consts + 1, self.max_steps), [on, *operands]

    # ------------------------------------------------------------------ programs
    def pruned(self, used: Sequence[bool]) -> Tuple[While, Mask, Mask]:
        """The loop over only the parts of the carry that the results in the mask need; also which operands it takes."""
        start = self.num_consts
        asks = behind(self.cond, (True,))

        def needs(mask: Mask) -> Mask:
            return behind(self.body, mask)[start:]
        outs = carried(either(used, asks[start:]), 0, len(used), needs)
        ins = either(asks, behind(self.body, outs))[:start] + outs
        if all(ins):
            return self, ins, outs
        cond = reordered(self.cond, chosen(self.cond.inputs, ins), self.cond.outputs)
        body = reordered(self.body, chosen(self.body.inputs, ins), chosen(self.body.outputs, outs))
        return While(cond, without_dead_code(body), sum(ins[:start]), self.max_steps), ins, outs

    def bounded(self) -> Scan:
        """The scan that is lowered. Raises LoweringError where there is no bound."""
        if self.max_steps is None:
            raise LoweringError(message(
                f"the while loop over {self.body.name} has no bound on its steps, which a PopXL program needs",
                "way out: max_steps=, the most steps that it may take; pf.jit runs it on the host as it is"))
        return self.as_scan()

    @property
    def subgraphs(self) -> Tuple[Subgraph, ...]:
        """The graph of a step."""
        return self.bounded().subgraphs

    def lower(self, px: Any, *tensors: Any, graphs: Sequence[Any] = ()) -> Any:
        return self.bounded().lower(px, *tensors, graphs=graphs)


def has_unbounded_loop(jaxpr: Jaxpr) -> bool:
    """Whether there is a while loop without a bound in a jaxpr, or in one that it holds."""
    def find() -> bool:
        return any(isinstance(eqn.primitive, While) and eqn.primitive.max_steps is None
                   or any(map(has_unbounded_loop, getattr(eqn.primitive, "jaxprs", ()))) for eqn in jaxpr.eqns)
    found: bool = jaxpr.remember("has_unbounded_loop", find)
    return found
