"""Cond: one of several jaxprs, chosen by a value."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..trace.aval import DEVICE, Aval, Placement, bool_, int32
from ..trace.errors import DtypeError, ShapeError
from ..trace.jaxpr import Jaxpr, Var
from ..trace.primitive import MIXED, Linear, MappedAxis, Zero
from ..trace.prims import argmax, convert, eq, ge, instantiate, le, place, select, stop_gradient, sub, take
from ..trace.prims.shaping import ranked
from ..trace.tracer import aval_of, bind, literal
from .accesses import reached_by_some
from .bodies import (
    Equations,
    GraphInput,
    HoldsJaxprs,
    Mask,
    Subgraph,
    at_home,
    behind,
    check_lanes_are_alone,
    chosen,
    cut,
    either,
    guard,
    is_tensor,
    moving,
    others,
    rebuilt,
    reordered,
    summed,
    unplaced,
    unsummed,
    varying,
    with_zeros,
)
from .custom import CustomVjp, Pullback
from .differentiate import jvp_jaxpr, linearize_jaxpr, moving_only, spread, transpose_jaxpr
from .replay import checked
from .simplify import without_dead_code
from .vmap import Places, batch_jaxpr, lanes_in_front


@dataclass(frozen=True)
class Cond(HoldsJaxprs):
    """The results of the branch with the number that the first operand says, for the other operands.

    The number is an int32 scalar, which is clamped into range, or a bool, which is False for the first of two branches.
    """

    branches: Tuple[Jaxpr, ...]
    multiple: ClassVar[bool] = True

    @property
    def jaxprs(self) -> Tuple[Jaxpr, ...]:
        """The jaxprs it holds."""
        return self.branches

    # ------------------------------------------------------------------ meaning
    def abstract(self, index: Aval, *avals: Aval) -> Tuple[Aval, ...]:
        if index.ndim or index.dtype not in (bool_, int32):
            raise DtypeError(f"cond: the number of a branch is an int32 or bool scalar, got {index}")
        if len(self.branches) < 2 or index.dtype == bool_ and len(self.branches) > 2:
            raise ShapeError(f"cond: {index} does not choose among {len(self.branches)} branches")
        first = self.branches[0]
        for jaxpr in self.branches:
            want = jaxpr.in_avals
            if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
                raise ShapeError(f"cond: {jaxpr.name or 'a branch'} takes ({', '.join(map(str, want))}), "
                                 f"got ({', '.join(map(str, avals))})")
            if [a.strong for a in jaxpr.out_avals] != [a.strong for a in first.out_avals] or \
                    [a.placement for a in want] != [a.placement for a in first.in_avals]:
                raise ShapeError(f"cond: branches differ in type: {types(first)} and {types(jaxpr)}")
        return first.out_avals

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        return [(avals[0].varying, DEVICE), *[a.placement for a in self.branches[0].in_avals]]

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        alone = all(avals[0].varying <= a.varying for j in self.branches for a in j.in_avals + j.out_avals)
        return super().typed(avals) if alone else MIXED

    def widened(self, avals: Sequence[Aval]) -> Cond:
        """Where the number varies over an axis, lanes are in different branches, and so all operands and results do."""
        axes = avals[0].varying
        ins = [a.over(a.varying | axes) for a in avals[1:]]
        with reached_by_some("cond", "a branch", self.branches, axes):
            branches = [varying(jaxpr, ins) for jaxpr in self.branches]
        outs = [axes.union(*[a.varying for a in column]) for column in zip(*[j.out_avals for j in branches])]
        return Cond(tuple([varying(jaxpr, ins, outs) for jaxpr in branches]))

    def eval(self, index: np.ndarray, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        return self.branches[min(max(int(index), 0), len(self.branches) - 1)].eval(*arrays)

    # ------------------------------------------------------------------ derivatives
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask, avals = moving(tangents)[1:], self.branches[0].out_avals
        pushed = [jvp_jaxpr(jaxpr, mask) for jaxpr in self.branches]
        wanted = either(*[moves for _, moves in pushed])
        cond = Cond(tuple([with_zeros(jaxpr, len(avals), moves, wanted, avals) for jaxpr, moves in pushed]))
        results = bind(cond, [*primals, *moving_only(tangents)])
        return results[:len(avals)], spread(results[len(avals):], wanted, avals)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask, avals = moving(tangents)[1:], self.branches[0].out_avals
        split = linearized(self.branches, mask)
        results = bind(Cond(split.forward), primals)
        kept = [primals[i + 1] for i in split.operands] + list(results[len(avals):])
        touts = bind(Cond(split.linear), [primals[0], *kept, *moving_only(tangents)])
        return results[:len(avals)], spread(touts, split.moves, avals)

    def transpose(self, ct: Sequence[Any], index: Any, *args: Any) -> Tuple[Any, ...]:
        linear = tuple(type(x) is Linear for x in args)
        pulled = [transpose_jaxpr(jaxpr, linear, moving(ct)) for jaxpr in self.branches]
        wanted, avals = either(*[moves for _, moves in pulled]), [x.aval for x in chosen(args, linear)]
        branches = [with_zeros(jaxpr, 0, moves, wanted, avals) for jaxpr, moves in pulled]
        every = (True,) * sum(wanted)
        branches, names = unsummed(unplaced(branches, every), every)
        cts = bind(Cond(tuple(branches)), [index, *others(args, linear), *moving_only(ct)])
        got = iter(spread(summed(cts, names), wanted, avals))
        return (None, *[at_home(next(got), x.aval) if on else None for x, on in zip(args, linear)])

    # ------------------------------------------------------------------ vmap
    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        if dims[0] is not None:
            return self.batch_lanes(axis, args, dims)
        places = tuple(dims[1:])
        mapped = either(*[[d is not None for d in batch_jaxpr(j, axis, places).dims] for j in self.branches])
        branches = tuple([batch_jaxpr(j, axis, places, mapped).jaxpr for j in self.branches])
        return bind(Cond(branches), args), tuple(0 if on else None for on in mapped)

    def batch_lanes(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        """Lanes choose for themselves: each branch that one of them takes is run for all, and each takes its own.

        A branch sees only operands of lanes that take it, so that nothing in it overflows or loops for the others.
        """
        check_lanes_are_alone("cond: lanes meet in a branch", axis, self.branches)
        index, operands = args[0], args[1:]
        operands, places = for_lanes(self.branches, axis, operands, dims[1:])
        every = (True,) * len(self.branches[0].outputs)
        silent = self.has_effect  # in lanes that do not take a branch
        batched = [batch_jaxpr(guard(j), axis, (0, *places), every).jaxpr if silent else
                   batch_jaxpr(j, axis, places, every).jaxpr for j in self.branches]
        out_avals = batched[0].out_avals
        if not axis.size:
            return tuple([instantiate(Zero(a)) for a in out_avals]), (0,) * len(every)
        if aval_of(index).dtype == bool_:
            index = convert(index, int32)
        last = len(self.branches) - 1
        results: List[Any] = []
        for k, jaxpr in enumerate(batched):
            number = literal(k, aval_of(index).strong)
            takes = eq(index, number) if 0 < k < last else (le if k == 0 else ge)(index, number)
            lane = argmax(convert(takes, int32), 0)
            skipped = rebuilt("skipped", jaxpr.in_avals, lambda *_: [instantiate(Zero(a)) for a in out_avals])
            seen = [x if d is None else of_lanes(takes, lane, x) for x, d in zip(operands, places)]
            outs = choose((skipped, jaxpr), take(takes, lane, 0), [takes, *seen] if silent else seen)
            results = [select(ranked(takes, aval_of(new).ndim - 1), new, old) for new, old in zip(outs, results)] \
                if results else list(outs)
        return tuple([place(y, a.memory) for y, a in zip(results, out_avals)]), (0,) * len(every)

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[Cond, List[Any]]:
        """The same without effects where the bool is False; see `bodies.guard`."""
        return Cond(tuple([guard(j) for j in self.branches])), [operands[0], on, *operands[1:]]

    # ------------------------------------------------------------------ programs
    def pruned(self, used: Sequence[bool]) -> Tuple[Cond, Mask, Mask]:
        """The cond that gives only the results in the mask; also which operands it takes and which results it gives."""
        outs = tuple(used)
        ins = either(*[behind(jaxpr, outs) for jaxpr in self.branches])
        if all(ins) and all(outs):
            return self, (True, *ins), outs
        branches = [without_dead_code(reordered(jaxpr, chosen(jaxpr.inputs, ins), chosen(jaxpr.outputs, outs)))
                    for jaxpr in self.branches]
        return Cond(tuple(branches)), (True, *ins), outs

    def halves(self) -> Tuple[Jaxpr, Jaxpr]:
        """The branches as two: of more than two, those of the lower numbers in one, and those of the higher."""
        if len(self.branches) == 2:
            return self.branches[0], self.branches[1]
        middle = len(self.branches) // 2
        index = Aval((), int32)

        def half(branches: Tuple[Jaxpr, ...], first: int) -> Jaxpr:
            avals = [index, *branches[0].in_avals]
            if len(branches) == 1:
                return reordered(branches[0], [Var(index), *branches[0].inputs], branches[0].outputs)
            # Branches that do nothing need no number.
            return without_dead_code(rebuilt("switch", avals, lambda i, *xs: bind(
                Cond(branches), [sub(i, literal(first, index)) if first else i, *xs])))
        return self.branches[0].remember(("halves", self.branches), lambda: (
            half(self.branches[:middle], 0), half(self.branches[middle:], middle)))

    @property
    def subgraphs(self) -> Tuple[Subgraph, ...]:
        """The graphs of the two halves."""
        return tuple(Branch(jaxpr) for jaxpr in self.halves())

    def lower(self, px: Any, *tensors: Any, graphs: Sequence[Any] = ()) -> Any:
        low, high = self.halves()
        index, *operands = tensors
        if len(self.branches) > 2:
            operands.insert(0, index)
        if str(index.dtype.name) != "bool":
            index = px.ops.greater(index, px.constant(len(self.branches) // 2 - 1, px.int32))
        count = len(operands) - len(Branch(low).destinations())
        low_in, high_in = ([x for x, on in zip(operands, Branch(j).taken()) if on] + operands[count:]
                           for j in (low, high))
        return px.ops.conditional(index, graphs[1], graphs[0], high_in, low_in)


@dataclass(frozen=True)
class Branch(Subgraph):
    """A branch as a graph. It takes only those operands that it reads, because each is copied."""

    def taken(self) -> List[bool]:
        """Which of the operands with elements the graph takes."""
        reads = behind(self.jaxpr, (True,) * len(self.jaxpr.outputs))
        return [on for v, on in zip(self.jaxpr.inputs, reads) if is_tensor(v)]

    def variables(self) -> List[Var]:
        """The jaxpr's inputs that the graph takes."""
        return chosen(list(filter(is_tensor, self.jaxpr.inputs)), self.taken())

    def inputs(self) -> List[GraphInput]:
        return self.named(self.variables()) + self.destinations()

    def emit(self, px: Any, equations: Equations, tensors: Sequence[Any]) -> List[Any]:
        variables = self.variables()
        values, destinations = cut(tensors, len(variables))
        return equations(dict(zip(variables, values)), destinations)


# ---------------------------------------------------------------------------- what the rules share
def types(jaxpr: Jaxpr) -> str:
    """A jaxpr's type for an error message."""
    return f"({', '.join(map(str, jaxpr.in_avals))}) -> ({', '.join(map(str, jaxpr.out_avals))})"


def for_lanes(jaxprs: Sequence[Jaxpr], axis: MappedAxis, operands: Sequence[Any], dims: Sequence[Any],
              ) -> Tuple[List[Any], Places]:
    """The operands of jaxprs that only some lanes run, and where they have the axis: in front, if at all.

    A rule of the user's for reverse mode may give anything but 0 for the cotangent 0 of a lane that does not run it. So
    where there is one, no float is shared between the lanes: its cotangent would be the sum of theirs.
    """
    own = any(map(has_backward_rule, jaxprs))
    places = tuple([0 if d is not None or own and aval_of(x).is_float else None for x, d in zip(operands, dims)])
    return [x if at is None else lanes_in_front(x, d, axis) for x, d, at in zip(operands, dims, places)], places


def has_backward_rule(jaxpr: Jaxpr) -> bool:
    """Whether a function with a custom_vjp rule is in a jaxpr, or in one that it holds."""
    def find() -> bool:
        return any(isinstance(eqn.primitive, (CustomVjp, Pullback))
                   or any(map(has_backward_rule, getattr(eqn.primitive, "jaxprs", ()))) for eqn in jaxpr.eqns)
    found: bool = jaxpr.remember("has_backward_rule", find)
    return found


def of_lanes(active: Any, lane: Any, x: Any) -> Any:
    """x, whose first axis is the mapped one, with the value of one lane wherever a lane is not active.

    That lane's value is a constant for the others: what a derivative gives for them goes nowhere.
    """
    borrowed = take(x, lane, 0)
    return select(ranked(active, aval_of(x).ndim - 1), x, stop_gradient(borrowed) if x.aval.is_float else borrowed)


def choose(branches: Sequence[Jaxpr], index: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of the branch that the index says."""
    outs: Sequence[Any] = bind(Cond(tuple(branches)), [index, *operands])
    return outs


# ---------------------------------------------------------------------------- linearize
class Linearized(NamedTuple):
    """Branches cut in two.

    `forward` gives behind the results what the linear parts need. `linear` takes the operands with these numbers, those
    further values, and the tangents.
    """

    forward: Tuple[Jaxpr, ...]
    linear: Tuple[Jaxpr, ...]
    operands: Tuple[int, ...]
    moves: Mask


def linearized(branches: Tuple[Jaxpr, ...], mask: Mask) -> Linearized:
    """The two halves of branches whose operands in the mask move.

    The linear part of one branch needs other values than that of another. Values of one type share a place; what the
    branch that is taken does not need is zero.
    """
    cuts = [linearize_jaxpr(jaxpr, mask) for jaxpr in branches]
    avals = branches[0].out_avals
    moves = either(*[half.moves for half in cuts])
    operands = sorted({i for half in cuts for where, i in half.residuals if where == "input"})
    slots: List[Aval] = []
    places: List[Dict[int, int]] = []  # for each branch, an output that it hands over, and the slot of it
    for half in cuts:
        free = list(range(len(slots)))
        mine: Dict[int, int] = {}
        for i in [i for where, i in half.residuals if where == "output"]:
            aval = half.forward.outputs[i].aval
            slot = next((k for k in free if slots[k] is aval), None)
            if slot is None:
                slot = len(slots)
                slots.append(aval)
            else:
                free.remove(slot)
            mine[i] = slot
        places.append(mine)
    forward, linear = [], []
    for half, mine in zip(cuts, places):
        by_slot = {slot: i for i, slot in mine.items()}
        wanted = tuple(k in by_slot for k in range(len(slots)))
        given = reordered(half.forward, half.forward.inputs, [
            *half.forward.outputs[:len(avals)], *[half.forward.outputs[by_slot[k]] for k in sorted(by_slot)]])
        forward.append(with_zeros(given, len(avals), wanted, (True,) * len(slots), slots))
        program = with_zeros(half.linear, 0, half.moves, moves, avals)
        inputs: List[Var] = [Var(branches[0].in_avals[i]) for i in operands] + [Var(a) for a in slots]
        for v, (where, i) in zip(program.inputs, half.residuals):
            inputs[operands.index(i) if where == "input" else len(operands) + mine[i]] = v
        directions = program.inputs[len(half.residuals):]
        linear.append(checked(reordered(program, [*inputs, *directions], program.outputs)))
    return Linearized(tuple(forward), tuple(linear), tuple(operands), moves)
