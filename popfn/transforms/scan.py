"""Scan: a jaxpr run a fixed number of times, with values that one step hands to the next.

All transforms of a scan are scans again, of a transformed body, so that no program grows with the number of steps.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ..trace.aval import DEVICE, NO_AXES, Aval, Placement, float16, float32
from ..trace.errors import ShapeError
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Var
from ..trace.primitive import Linear, MappedAxis, Zero
from ..trace.prims import add, convert, instantiate, of_shards, place, shard_of, transpose
from ..trace.prims.collectives import pvary
from ..trace.prims.lowering import px_dtype
from ..trace.tracer import aval_of, bind
from .bodies import (
    Equations,
    GraphInput,
    HoldsJaxprs,
    Mask,
    Names,
    Row,
    Subgraph,
    behind,
    carried,
    chosen,
    cut,
    guard,
    is_far,
    is_remote,
    is_tensor,
    moving,
    others,
    reach,
    rebuilt,
    reordered,
    summed,
    unplaced,
    unsummed,
    varying,
    with_zeros,
)
from .boundary import boundary_axes
from .differentiate import jvp_jaxpr, linearize_jaxpr, spread, transpose_jaxpr
from .replay import checked, inline
from .simplify import without_dead_code
from .vmap import batch_jaxpr, lanes_in_front


@dataclass(frozen=True)
class Scan(HoldsJaxprs):
    """`length` steps of a jaxpr.

    The operands are constants, equal in all steps; the first carry; and arrays with one element for each step along
    their first axis. The jaxpr takes the constants, the carry and an element of each array, and gives the next carry
    and further values. The results are the last carry, and those values of all steps, stacked. With `reverse` the
    steps go from the last element to the first. What is stacked lies where the element lies: a remote array is loaded
    element by element.

    An `io_mode` marks the steps of `batch_serialise`, whose arrays may be streamed: how that is done, with "compute",
    "io" or "io_overlapped". What the derivative needs from each step is kept in the memory `residuals`; what replicas
    have in common is kept in parts by those along the axes `shards`.
    """

    jaxpr: Jaxpr
    length: int
    num_consts: int
    num_carry: int
    reverse: bool = False
    io_mode: str = ""
    residuals: str = DEVICE
    shards: Tuple[Tuple[str, int], ...] = ()
    multiple: ClassVar[bool] = True

    @property
    def jaxprs(self) -> Tuple[Jaxpr, ...]:
        """The jaxprs it holds."""
        return (self.jaxpr,)

    def parts(self, xs: Sequence[Any]) -> List[List[Any]]:
        """Operands, or what belongs to them, as constants, carry and the rest."""
        return cut(xs, self.num_consts, self.num_carry)

    def of(self, jaxpr: Jaxpr, num_consts: int, num_carry: int, reverse: Optional[bool] = None) -> Scan:
        """As many steps, of the same kind, of another jaxpr."""
        return replace(self, jaxpr=jaxpr, num_consts=num_consts, num_carry=num_carry,
                       reverse=self.reverse if reverse is None else reverse)

    def stacked(self, aval: Aval) -> Aval:
        """The type of the values of all steps."""
        return aval.with_shape((self.length, *aval.shape))

    # ------------------------------------------------------------------ meaning
    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        consts, carry, xs = self.parts(self.jaxpr.in_avals)
        want = [*consts, *carry, *map(self.stacked, xs)]
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
            raise ShapeError(f"scan: {self.jaxpr.name or 'the body'} takes ({', '.join(map(str, want))}) for "
                             f"{self.length} steps, got ({', '.join(map(str, avals))})")
        new, ys = cut(self.jaxpr.out_avals, self.num_carry)
        if [(a.shape, a.dtype, a.placement) for a in new] != [(a.shape, a.dtype, a.placement) for a in carry]:
            raise ShapeError(f"scan: {self.jaxpr.name or 'the body'} takes the carry ({', '.join(map(str, carry))}), "
                             f"and gives ({', '.join(map(str, new))})")
        return (*new, *map(self.stacked, ys))

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        return [a.placement for a in self.jaxpr.in_avals]

    def widened(self, avals: Sequence[Aval]) -> Scan:
        consts, carry, xs = self.parts(avals)
        while True:
            body = varying(self.jaxpr, [*consts, *carry, *xs])
            new = [a.over(a.varying | y.varying) for a, y in zip(carry, body.out_avals)]
            if new == carry:
                outs = [a.varying for a in self.parts(body.in_avals)[1]]
                return replace(self, jaxpr=varying(body, body.in_avals, outs))
            carry = new

    def eval(self, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        consts, carry, xs = self.parts(arrays)
        ys = [np.empty((self.length, *a.shape), a.dtype) for a in self.jaxpr.out_avals[self.num_carry:]]
        steps = range(self.length)
        for i in reversed(steps) if self.reverse else steps:
            outs = self.jaxpr.eval(*consts, *carry, *[x[i, ...] for x in xs])
            carry = list(outs[:self.num_carry])
            for y, new in zip(ys, outs[self.num_carry:]):
                y[i] = new
        return (*carry, *ys)

    # ------------------------------------------------------------------ derivatives
    def mask_of(self, tangents: Sequence[Any], moves: Callable[[Mask], Mask]) -> Mask:
        """Which operands move: those with a tangent, and the parts of the carry that come to."""
        return carried(moving(tangents), self.num_consts, self.num_carry, moves)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = self.mask_of(tangents, lambda m: jvp_jaxpr(self.jaxpr, m).moves)
        pushed, moves = jvp_jaxpr(self.jaxpr, mask)
        sizes = [sum(part) for part in self.parts(mask)]
        wanted = (*self.parts(mask)[1], *moves[self.num_carry:])

        def make() -> Jaxpr:
            avals = self.jaxpr.out_avals
            body = with_zeros(pushed, len(avals), moves, wanted, avals)
            ins, t_ins = cut(body.inputs, len(mask))
            outs, touts = cut(body.outputs, len(avals))
            return reordered(body, self.joined(ins, t_ins, sizes), [
                *outs[:self.num_carry], *touts[:sizes[1]], *outs[self.num_carry:], *touts[sizes[1]:]])
        body = self.jaxpr.remember(("jvp of scan", self.num_consts, self.num_carry, mask), make)
        scan = self.of(body, self.num_consts + sizes[0], self.num_carry + sizes[1])
        directions = [instantiate(t) for t in chosen(tangents, mask)]
        results = bind(scan, self.joined(primals, directions, sizes))
        carry, t_carry, ys, t_ys = cut(results, self.num_carry, sizes[1], len(moves) - self.num_carry)
        return (*carry, *ys), spread(t_carry + t_ys, wanted, self.out_avals)

    @property
    def out_avals(self) -> List[Aval]:
        """The results' types."""
        carry, ys = cut(self.jaxpr.out_avals, self.num_carry)
        return [*carry, *map(self.stacked, ys)]

    def joined(self, xs: Sequence[Any], ts: Sequence[Any], sizes: Sequence[int]) -> List[Any]:
        """Operands and their tangents, of which there are so many, as operands of one scan."""
        return [x for part in zip(self.parts(xs), cut(ts, *sizes[:2])) for group in part for x in group]

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = self.mask_of(tangents, lambda m: linearize_jaxpr(self.jaxpr, m).moves)
        axes = self.jaxpr.remember(("boundary", mask[:self.num_consts]), lambda: boundary_axes(
            self.jaxpr, mask[:self.num_consts]))
        if any(axes):
            every = [*axes, *[NO_AXES] * (len(mask) - self.num_consts)]
            body = varying(self.jaxpr, [a.over(a.varying | more) for a, more in zip(self.jaxpr.in_avals, every)])
            if body.out_avals == self.jaxpr.out_avals:
                return replace(self, jaxpr=body).linearize(
                    list(map(pvary, primals, every)),
                    [t if type(t) is Zero else pvary(t, more) for t, more in zip(tangents, every)])
        key = "linearized scan", self.num_consts, self.num_carry, self.residuals, self.shards, mask
        split: Linearized = self.jaxpr.remember(key, lambda: linearized(self, mask))
        consts, carry, xs = self.parts(primals)
        kept = inline(split.invariant, consts)
        scan = self.of(split.forward, self.num_consts + len(kept), self.num_carry)
        results = bind(scan, [*consts, *kept, *carry, *xs])
        n = len(self.jaxpr.outputs)
        sources = {"const": consts, "kept": kept, "x": xs, "result": results}
        t_consts, t_carry, t_xs = self.parts([instantiate(t) if on else None for t, on in zip(tangents, mask)])
        t_consts, t_carry, t_xs = ([t for t in part if t is not None] for part in (t_consts, t_carry, t_xs))
        once, each = ([sources[where][i] for where, i in places] for places in (split.once, split.each))
        linear = self.of(split.linear, len(once) + len(t_consts), len(t_carry))
        touts = bind(linear, [*once, *t_consts, *t_carry, *each, *t_xs])
        return results[:n], spread(touts, split.moves, self.out_avals)

    def transpose(self, ct: Sequence[Any], *args: Any) -> Tuple[Any, ...]:
        """One scan in the other direction, which carries the cotangents of the carry and adds up those of constants."""
        asked = tuple(type(x) is Linear for x in args)
        if not self.length:  # the first carry is the result, whatever a step would make of it
            zeros = [Zero(aval_of(x)) for x in args]
            every = [*zeros[:self.num_consts], *ct[:self.num_carry], *zeros[self.num_consts + self.num_carry:]]
            return tuple(c if on else None for c, on in zip(every, asked))
        linear = carried(asked, self.num_consts, self.num_carry, lambda m: reach(self.jaxpr, m))
        others_of, xs_of, carry_values = self.fixed_operands(args, linear)
        live = reach(self.jaxpr, linear)
        given = tuple(on and known for on, known in zip(live, moving(ct)))
        start = self.num_consts
        carry_linear = linear[start:start + self.num_carry]

        def moves(mask: Mask) -> Mask:
            """The cotangents of the carry that a step gives, for those of results in the mask."""
            _, got = transpose_jaxpr(self.jaxpr, linear, mask)
            n = sum(linear[:start])
            every = iter(got[n:n + sum(carry_linear)])
            return tuple(on and next(every) for on in carry_linear)
        given = carried(given, 0, self.num_carry, moves)
        key = "transpose of scan", self.num_consts, self.num_carry, linear, given
        body, wanted, sums = self.jaxpr.remember(key, lambda: transposed(self, linear, given))

        totals = [instantiate(Zero(a)) for a in body.in_avals[len(others_of):][:sum(wanted[:start])]]
        carry_cts = [instantiate(c) for c in chosen(ct[:self.num_carry], given)]
        y_cts = chosen(ct[self.num_carry:], given[self.num_carry:])
        scan = self.of(body, len(others_of), len(totals) + len(carry_cts), not self.reverse)
        results = bind(scan, [*others_of, *totals, *carry_cts, *carry_values, *xs_of, *y_cts])
        totals, carry_cts, x_cts = cut(summed(results, sums), len(totals), len(carry_cts))
        totals = [place(convert(t, x.aval.dtype, x.aval.weak), x.aval.memory)
                  for t, x in zip(totals, chosen(args[:start], wanted[:start]))]
        mask = (*wanted[:start], *given[:self.num_carry], *wanted[start + self.num_carry:])
        gathered = spread([*totals, *carry_cts, *x_cts], mask, [aval_of(x) for x in args])
        return tuple(c if on else None for c, on in zip(gathered, asked))

    def fixed_operands(self, args: Sequence[Any], linear: Mask) -> Tuple[List[Any], List[Any], List[Any]]:
        """The constants and the arrays that are not linear, and the values that a carry that is not has in each step.

        The last are found by a scan of their own.
        """
        consts, carry, xs = (others(part, on) for part, on in zip(self.parts(args), self.parts(linear)))
        if not carry:
            return consts, xs, []
        c_vars, k_vars, x_vars = (others(part, on) for part, on in zip(self.parts(self.jaxpr.inputs),
                                                                      self.parts(linear)))
        news = others(self.jaxpr.outputs[:self.num_carry], self.parts(linear)[1])
        body = checked(without_dead_code(reordered(self.jaxpr, [*c_vars, *k_vars, *x_vars], [*news, *k_vars])))
        results = bind(self.of(body, len(consts), len(carry)), [*consts, *carry, *xs])
        return consts, xs, list(results[len(carry):])

    # ------------------------------------------------------------------ vmap
    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        consts, carry, xs = self.parts(args)
        c_dims, k_dims, x_dims = self.parts(dims)
        # Behind the axis of the steps, which stays in front.
        xs = [transpose(x, (1, 0, *range(2, aval_of(x).ndim))) if d == 0 else x for x, d in zip(xs, x_dims)]
        x_dims = [None if d is None else max(d - 1, 0) for d in x_dims]

        def in_body(mask: Sequence[bool]) -> Tuple[Optional[int], ...]:
            return (*c_dims, *[0 if on else None for on in mask[len(c_dims):len(c_dims) + len(carry)]], *x_dims)

        def moves(mask: Mask) -> Mask:
            return tuple(d is not None for d in batch_jaxpr(self.jaxpr, axis, in_body(mask)).dims)
        mask = carried(tuple(d is not None for d in dims), len(consts), len(carry), moves)
        mapped = mask[len(consts):len(consts) + len(carry)]
        body, out_dims = batch_jaxpr(self.jaxpr, axis, in_body(mask),
                                     mapped + (False,) * (len(self.jaxpr.outputs) - len(carry)))
        carry = [lanes_in_front(x, d, axis) if on else x for x, d, on in zip(carry, k_dims, mapped)]
        results = bind(self.of(body, self.num_consts, self.num_carry), [*consts, *carry, *xs])
        new, ys = cut(out_dims, self.num_carry)
        return results, (*new, *[None if d is None else d + 1 for d in ys])

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[Scan, List[Any]]:
        """The same without effects where the bool is False; see `bodies.guard`."""
        return self.of(guard(self.jaxpr), self.num_consts + 1, self.num_carry), [on, *operands]

    # ------------------------------------------------------------------ programs
    def pruned(self, used: Sequence[bool]) -> Tuple[Scan, Mask, Mask]:
        """The scan that gives only the results in the mask, and such parts of the carry as they need.

        Also which operands it takes and which results it gives.
        """
        start = self.num_consts

        def needs(mask: Mask) -> Mask:
            return behind(self.jaxpr, mask)[start:start + self.num_carry]
        outs = carried(tuple(used), 0, self.num_carry, needs)
        ins = behind(self.jaxpr, outs)
        ins = ins[:start] + outs[:self.num_carry] + ins[start + self.num_carry:]
        if all(ins) and all(outs):
            return self, ins, outs
        body = reordered(self.jaxpr, chosen(self.jaxpr.inputs, ins), chosen(self.jaxpr.outputs, outs))
        return self.of(without_dead_code(body), sum(ins[:start]), sum(outs[:self.num_carry])), ins, outs

    @property
    def subgraphs(self) -> Tuple[Step, ...]:
        """The graph of a step; none where there are no steps."""
        if not self.length:
            return ()
        outs = self.jaxpr.outputs[self.num_carry:]
        counted = any(map(is_tensor, (*self.parts(self.jaxpr.inputs)[2], *outs)))
        return (Step(self.jaxpr, self.length if counted else 0, self.num_consts, self.num_carry, self.reverse),)

    def lower(self, px: Any, *tensors: Any, graphs: Sequence[Any] = ()) -> Any:
        variables = [list(filter(is_tensor, part)) for part in self.parts(self.jaxpr.inputs)]
        consts, carry, xs = cut(tensors, *map(len, variables[:2]))
        far = list(map(is_remote, variables[1]))  # a carry in remote memory is changed where it lies
        consts, carry = consts + chosen(carry, far), others(carry, far)
        if not self.length:
            return carry
        step = self.subgraphs[0]
        rows = [px.ops.init(i.shape, px_dtype(px, i.dtype)) for i in step.inputs() if i.by_reference]
        # PopXL's dynamic ops take the index as a tensor of one element; it is carried, there being no counter.
        first = self.length - 1 if self.reverse else 0
        counter = [px.constant(np.array([first], np.uint32), px.uint32)] if step.length else []
        results = px.ops.repeat(graphs[0], self.length, *counter, *carry, *rows, *consts, *xs)
        return [*results[len(counter):], *rows]


# ---------------------------------------------------------------------------- derivatives
Slot = Tuple[str, int]


class Linearized(NamedTuple):
    """A scan cut in two.

    `invariant` gives, from the constants, what the linear part needs and is equal in all steps. `forward` takes that
    behind the constants, and gives behind the results what the linear part needs from each step. `linear` takes the
    values at the places `once`, the constants' tangents, the carry's, the values at `each` and the arrays' tangents. A
    place is the number of a "const", of a value that was "kept" by `invariant`, of an "x" or of a "result".
    """

    invariant: Jaxpr
    forward: Jaxpr
    linear: Jaxpr
    once: Tuple[Slot, ...]
    each: Tuple[Slot, ...]
    moves: Mask


def linearized(scan: Scan, mask: Mask) -> Linearized:
    """The two halves of a scan whose operands in the mask move."""
    forward, linear, residuals, moves = linearize_jaxpr(scan.jaxpr, mask)
    num_consts, num_carry = scan.num_consts, scan.num_carry
    consts, carry, xs = scan.parts(forward.inputs)
    invariant = invariant_vars(forward, num_consts)
    n = len(scan.jaxpr.outputs)
    outputs: List[Atom] = list(forward.outputs[:n])
    kept: Dict[Atom, int] = {}
    stacked: Dict[Atom, int] = {a: i for i, a in enumerate(outputs) if i >= num_carry}
    places: List[Slot] = []
    for where, i in residuals:
        a: Atom = forward.inputs[i] if where == "input" else forward.outputs[i]
        if where == "input" and i < num_consts:
            places.append(("const", i))
        elif where == "input" and i >= num_consts + num_carry:
            places.append(("x", i - num_consts - num_carry))
        elif a in invariant:
            places.append(("kept", kept.setdefault(a, len(kept))))
        else:
            if a not in stacked:
                stacked[a] = len(outputs)
                outputs.append(a)
            places.append(("result", stacked[a]))
    # Where a kept value comes from an equation with several results, the body is to have none of them twice.
    for eqn in forward.eqns:
        if any(v in kept for v in eqn.outputs):
            for v in eqn.outputs:
                kept.setdefault(v, len(kept))
    outside = without_dead_code(Jaxpr(consts, list(kept), [e for e in forward.eqns if e.outputs and all(
        v in invariant for v in e.outputs)], forward.constvars, forward.constants, forward.name))
    inside = without_dead_code(Jaxpr([*consts, *kept, *carry, *xs], outputs, [  # type: ignore[list-item]
        e for e in forward.eqns if not any(v in kept for v in e.outputs)],
        forward.constvars, forward.constants, forward.name))
    moved = {i: a.aval for i, a in enumerate(outputs) if i >= n and a.aval.memory == DEVICE != scan.residuals}
    if moved:
        inner = inside
        inside = rebuilt(inner.name, inner.in_avals, lambda *args: [
            stored(scan, y) if i in moved else y for i, y in enumerate(inline(inner, args))])

    wanted = (*scan.parts(mask)[1], *moves[num_carry:])
    program = with_zeros(linear, 0, moves, wanted, scan.jaxpr.out_avals)
    far = {k: i for k, (where, i) in enumerate(places) if where == "result" and i in moved}
    if far:
        near = program
        avals = [inside.out_avals[far[k]] if k in far else a for k, a in enumerate(near.in_avals)]
        program = rebuilt(near.name, avals, lambda *args: inline(near, [
            loaded(scan, x, near.in_avals[k]) if k in far else x for k, x in enumerate(args)]))
    values, directions = cut(program.inputs, len(places))
    t_consts, t_carry, t_xs = cut(directions, *(sum(part) for part in scan.parts(mask)[:2]))
    each = [where in ("x", "result") for where, _ in places]
    program = reordered(program, [*others(values, each), *t_consts, *t_carry, *chosen(values, each), *t_xs],
                        program.outputs)
    return Linearized(checked(outside), checked(inside), checked(program), tuple(others(places, each)),
                      tuple(chosen(places, each)), wanted)


def stored(scan: Scan, x: Any) -> Any:
    """A value that the derivative needs, where it is kept: in parts, if replicas have it in common."""
    return place(shard_of(x, in_common(scan, aval_of(x))), scan.residuals)


def loaded(scan: Scan, x: Any, aval: Aval) -> Any:
    """A value of this type that was kept."""
    axes = in_common(scan, aval)
    return of_shards(place(x, DEVICE), axes, aval.shape) if axes else place(x, DEVICE)


def in_common(scan: Scan, aval: Aval) -> Tuple[Tuple[str, int], ...]:
    """The axes along which replicas keep parts of such a value."""
    return tuple([(name, size) for name, size in scan.shards if name not in aval.varying])


def invariant_vars(jaxpr: Jaxpr, num_consts: int) -> Set[Atom]:
    """The results of equations that depend on nothing but the first inputs."""
    known: Set[Atom] = {*jaxpr.inputs[:num_consts], *jaxpr.constvars}
    found: Set[Atom] = set()
    eqn: Eqn
    for eqn in jaxpr.eqns:
        if not (eqn.primitive.multiple and eqn.primitive.has_effect) and all(
                not isinstance(a, Var) or a in known for a in eqn.inputs):
            known.update(eqn.outputs)
            found.update(eqn.outputs)
    return found


def wide(aval: Aval) -> Aval:
    """The type in which cotangents of a constant are added up over the steps: float16 in float32, on the device."""
    aval = aval.at(DEVICE)
    return Aval._make(aval.shape, float32, aval.weak, aval.placement) if aval.dtype == float16 else aval


def transposed(scan: Scan, linear: Mask, given: Mask) -> Tuple[Jaxpr, Mask, List[Names]]:
    """The body of a transposed scan, which operands of the scan it gives cotangents of, and what is left to be done.

    That is, over which named axes the results are to be added up behind the loop.
    It takes the constants that are not linear; the cotangents of constants so far and those of the carry in `given`;
    the carry and the arrays that are not linear; and the cotangents of the stacked results in `given`.
    """
    program, moves = transpose_jaxpr(scan.jaxpr, linear, given)
    avals = scan.jaxpr.in_avals
    got_of = iter(moves)
    wanted = tuple(on and next(got_of) for on in linear)
    consts, carry, xs = (others(part, on) for part, on in zip(scan.parts(avals), scan.parts(linear)))
    w_consts, w_carry, w_xs = scan.parts(wanted)
    # What is in remote memory is added up element by element: it is not to be on the device as a whole.
    late = (*(True,) * sum(w_consts), *(False,) * sum(w_carry),
            *[a.memory == DEVICE for a in chosen(scan.parts(avals)[2], w_xs)])
    (program,), names = unsummed(unplaced([program], late), late)
    totals = [wide(a).over(a.varying | got.varying)
              for a, got in zip(chosen(scan.parts(avals)[0], w_consts), program.out_avals)]
    carry_cts, y_cts = (chosen(part, on) for part, on in zip(cut(scan.jaxpr.out_avals, scan.num_carry),
                                                            cut(given, scan.num_carry)))

    def step(*args: Any) -> Sequence[Any]:
        fixed, so_far, cts, values, elements, rest = cut(args, *map(len, (consts, totals, carry_cts, carry, xs)))
        got = inline(program, [*fixed, *values, *elements, *cts, *rest])
        by_const, by_carry, by_x = cut(got, sum(w_consts), sum(w_carry))
        so_far = [add(s, convert(c, a.dtype, a.weak)) for s, c, a in zip(so_far, by_const, totals)]
        every = chosen(spread(by_carry, w_carry, scan.parts(avals)[1]), given[:scan.num_carry])
        return [*so_far, *[place(instantiate(c), a.memory) for c, a in zip(every, carry_cts)],
                *[place(c, a.memory) for c, a in zip(by_x, chosen(scan.parts(avals)[2], w_xs))]]
    body = rebuilt(program.name, [*consts, *totals, *carry_cts, *carry, *xs, *y_cts], step)
    of_consts, _, of_xs = cut(names, len(totals), sum(w_carry))
    return body, wanted, [*of_consts, *[()] * len(carry_cts), *of_xs]


# ---------------------------------------------------------------------------- PopXL
@dataclass(frozen=True)
class Step(Subgraph):
    """One step as a graph for `ops.repeat`, which feeds the first outputs back into the first inputs.

    It takes the number of the step if anything is stacked, the carry, the stacked results on the device by reference,
    the constants and the arrays, and where remote results go. `length` is 0 where nothing is stacked, so that loops of
    all lengths share the graph.
    """

    length: int
    num_consts: int
    num_carry: int
    reverse: bool

    def parts(self) -> List[List[Var]]:
        """The inputs of the jaxpr that have a tensor: what is equal in all steps, carry, elements of arrays."""
        consts, carry, xs = (list(filter(is_tensor, part)) for part in cut(self.jaxpr.inputs, self.num_consts,
                                                                           self.num_carry))
        far = list(map(is_remote, carry))
        return [consts + chosen(carry, far), others(carry, far), xs]

    def elements(self) -> List[Atom]:
        """The outputs of the jaxpr that are stacked."""
        return [a for a in self.jaxpr.outputs[self.num_carry:] if a.aval.size]

    def inputs(self) -> List[GraphInput]:
        consts, carry, xs = self.parts()
        counter = [GraphInput("step", (1,), np.dtype(np.uint32))] if self.length else []
        rows = [GraphInput("rows", (self.length, *a.aval.shape), a.aval.dtype, True)
                for a in self.elements() if not is_far(a)]
        arrays = [i if is_remote(v) else i._replace(shape=(self.length, *i.shape)) for v, i in zip(xs, self.named(xs))]
        return [*counter, *self.named(carry), *rows, *self.named(consts), *arrays, *self.destinations()]

    def emit(self, px: Any, equations: Equations, tensors: Sequence[Any]) -> List[Any]:
        ops = px.ops
        consts, carry, xs = self.parts()
        near = [a for a in self.elements() if not is_far(a)]
        counter, carry_in, rows, const_in, x_in, ends = cut(
            tensors, int(self.length > 0), len(carry), len(near), len(consts), len(xs))
        env: Dict[Any, Any] = dict(zip(carry, carry_in))
        env.update(zip(consts, const_in))
        for v, x in zip(xs, x_in):
            env[v] = Row(x, counter[0]) if is_remote(v) else ops.reshape(
                ops.dynamic_slice(x, counter[0], [0], [1], True), v.aval.shape)
        stays = sum(map(is_remote, self.jaxpr.outputs[:self.num_carry]))
        new, elements = cut(equations(env, [*ends[:stays], *(Row(first, counter[0]) for first in ends[stays:])]),
                            len(carry))
        for row, a, y in zip(rows, near, elements):
            ops.dynamic_update_(row, counter[0], ops.reshape(y, (1, *a.aval.shape)), [0], [1], True)
        # The values of the next step are copied one after the other: none may lie in the place of another.
        new = [ops.identity(t) if any(t is x for j, x in enumerate(carry_in) if j != i) else t
               for i, t in enumerate(new)]
        if counter:
            one = px.constant(np.array([1], np.uint32), px.uint32)
            counter = [(ops.sub if self.reverse else ops.add)(counter[0], one)]
        return [*counter, *new]
