"""jvp, linearize and transpose of jaxprs, and reverse mode made of them.

Forward mode replays the equations with the primitives' jvp rules. Because no equation that a rule records takes part in
both the result and its tangent, what depends on the tangents is a linear program of its own, and the rest is the
original program with the values that the linear part needs. Reverse mode walks the linear part backwards with the
transpose rules: no gradient is written twice.
"""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

from ..trace.aval import DEVICE, REMOTE, Aval
from ..trace.errors import MissingRuleError, located
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.primitive import Linear, Primitive, Zero
from ..trace.prims import add, instantiate, place
from ..trace.prims.collectives import AllGather, Psum, Pvary, psum
from ..trace.prims.elementwise import Convert, Div
from ..trace.prims.kinds import Mul, Neg, SafeMul
from ..trace.prims.memory import Place
from ..trace.prims.shaping import LinearOp, Reshape, Sum, Transpose
from ..trace.prims.structural import Slice, Squeeze
from ..trace.tracer import Trace, Tracer, bind
from .replay import checked, inline, sources, start_env
from .simplify import simplify

Mask = Tuple[bool, ...]


def push_forward(trace: Trace, jaxpr: Jaxpr, primals: Sequence[Any], tangents: Sequence[Any], rule: str = "jvp",
                 ) -> Tuple[List[Any], List[Any]]:
    """The outputs and their tangents under `trace`; tangents are tracers or Zero. `rule` is "jvp" or "linearize"."""
    env = start_env(jaxpr, primals)
    moving: Dict[Atom, Any] = {v: t for v, t in zip(jaxpr.inputs, tangents) if type(t) is not Zero}
    with sources(trace):
        for eqn in jaxpr.eqns:
            primitive, inputs, outputs, trace.source = eqn
            operands: List[Any] = []
            directions: List[Any] = []
            moves = False
            for a in inputs:
                operands.append(a if type(a) is Literal else env[a])  # type: ignore[index]
                t = moving.get(a)
                if t is not None:
                    moves = True
                directions.append(t)
            tangent: Any = None  # nothing moves
            if not moves or not primitive.multiple and not outputs[0].aval.is_float:
                out = bind(primitive, operands)
            else:
                for i, t in enumerate(directions):
                    if t is None:
                        directions[i] = Zero(inputs[i].aval)
                try:
                    out, tangent = getattr(primitive, rule)(operands, directions)
                except MissingRuleError as e:
                    raise located(e, trace.source) from None
            if not primitive.multiple:
                env[outputs[0]] = out
                if tangent is not None and type(tangent) is not Zero:
                    moving[outputs[0]] = tangent
                continue
            env.update(zip(outputs, out))
            for v, t in zip(outputs, tangent or ()):
                if type(t) is not Zero and v.aval.is_float:
                    moving[v] = t
    outs = [a if isinstance(a, Literal) else env[a] for a in jaxpr.outputs]
    return outs, [moving[a] if a in moving else Zero(a.aval) for a in jaxpr.outputs]


def split(trace: Trace, start: int, directions: Sequence[Tracer]) -> Tuple[List[Eqn], Set[Var]]:
    """Take the equations since `start` that depend on the directions out of the trace; with their variables."""
    linear = {t.variable for t in directions}
    kept: List[Eqn] = []
    taken: List[Eqn] = []
    for eqn in trace.eqns[start:]:
        for a in eqn.inputs:
            if a in linear:
                taken.append(eqn)
                linear.update(eqn.outputs)
                break
        else:
            kept.append(eqn)
    trace.eqns[start:] = kept
    return taken, linear


def pull_back(trace: Trace, eqns: Sequence[Eqn], linear: Set[Var], cts: Dict[Var, Any]) -> Dict[Var, Any]:
    """Walk linear equations backwards under `trace`, from cotangents of results to those of what they depend on.

    What is added up over named axes, where one value was handed to all lanes, is added up late: behind operations that
    only move elements, and once for the sum of several, those among them that loops, branches and calls give. So a
    parameter's cotangent is reduced once, however many parts of it are used.
    """
    late: Dict[Var, Any] = {}  # a sum over named axes, and what it is the sum of

    def summed(x: Any, names: Tuple[str, ...]) -> Any:
        total = psum(x, names)
        late[total.variable] = x
        return total

    def summands(c: Any) -> Any:
        return late.get(c.variable) if type(c) is Tracer else None
    with sources(trace):
        for primitive, inputs, outputs, source in reversed(eqns):
            if primitive.multiple:
                if not any(v in cts for v in outputs):
                    continue
                ct: Any = tuple([cts.pop(v) if v in cts else Zero(v.aval) for v in outputs])
            else:
                ct = cts.pop(outputs[0], None)
                if ct is None:
                    continue
            trace.source = source
            operands = [Linear(a.aval) if a in linear else a for a in inputs]
            parts = summands(ct) if late and keeps_sums(primitive, outputs, inputs) else None
            start = len(trace.eqns)
            try:
                if isinstance(primitive, Pvary):  # in a jaxpr that was widened, the operand may vary already
                    names = tuple([n for n in primitive.names if n not in inputs[0].aval.varying])
                    in_cts: Sequence[Any] = (summed(ct, names) if names else ct,)
                elif parts is not None:
                    names = tuple(sorted(parts.aval.varying - ct.aval.varying))
                    in_cts = tuple([c if c is None or type(c) is Zero else summed(c, names)
                                    for c in primitive.transpose(parts, *operands)])
                else:
                    in_cts = primitive.transpose(ct, *operands)
            except MissingRuleError as e:
                raise located(e, source) from None
            if primitive.multiple:  # a loop or a call whose cotangents are added up behind it
                late.update((eqn.outputs[0], trace.array_of(eqn.inputs[0])) for eqn in trace.eqns[start:]
                            if type(eqn.primitive) is Psum and type(eqn.inputs[0]) is Var)
            for a, c in zip(inputs, in_cts):
                if c is not None and type(c) is not Zero and a in linear:
                    before = cts.get(a)
                    old, new = summands(before), summands(c)
                    if before is None:
                        cts[a] = c
                    elif old is not None and new is not None and old.aval is new.aval:
                        cts[a] = summed(add(old, new), tuple(sorted(old.aval.varying - c.aval.varying)))
                    else:
                        cts[a] = place(add(before, c), a.aval.memory)
    return cts


def keeps_sums(primitive: Primitive, outputs: Sequence[Var], inputs: Sequence[Atom]) -> bool:
    """Whether cotangents may as well be added up over lanes behind the transpose of an operation.

    So it is where that moves elements, multiplies them by a known number, or makes them wider: then sums are the more
    exact for it.
    """
    if type(primitive) is Convert:
        return inputs[0].aval.dtype.itemsize >= outputs[0].aval.dtype.itemsize
    if type(primitive) in (Neg, Mul, SafeMul, Div):
        return sum(type(a) is not Literal or a.aval.ndim > 0 for a in inputs) == 1
    return isinstance(primitive, LinearOp) and type(primitive) not in (Place, Sum)  # a sum's cotangent is spread


def directions_of(trace: Trace, avals: Sequence[Aval], mask: Mask) -> List[Any]:
    """A fresh tracer for each tangent in the mask, Zero for the others."""
    return [trace.tracer(Var(a)) if on else Zero(a) for a, on in zip(avals, mask)]


def moving_only(xs: Sequence[Any]) -> List[Any]:
    """Without the symbolic zeros."""
    return [x for x in xs if type(x) is not Zero]


def spread(values: Sequence[Any], mask: Sequence[bool], avals: Sequence[Aval]) -> Tuple[Any, ...]:
    """The values at the places in the mask, Zero at the others."""
    rest = iter(values)
    return tuple(next(rest) if on else Zero(a) for on, a in zip(mask, avals))


# ---------------------------------------------------------------------------- jaxpr -> jaxpr
class Jvp(NamedTuple):
    """`jaxpr` takes the inputs and the tangents in the mask; it gives the outputs and the tangents in `moves`."""

    jaxpr: Jaxpr
    moves: Mask


def jvp_jaxpr(jaxpr: Jaxpr, mask: Mask) -> Jvp:
    """The jaxpr with the tangents of its outputs, for tangents of the inputs in the mask; remembered."""
    def make() -> Jvp:
        with Trace(f"jvp({jaxpr.name})") as trace:
            primals = [trace.input(a) for a in jaxpr.in_avals]
            tangents = [trace.input(a) if on else Zero(a) for a, on in zip(jaxpr.in_avals, mask)]
            outs, touts = push_forward(trace, for_forward_mode(jaxpr), primals, tangents)
            result = trace.finish(outs + moving_only(touts))
        return Jvp(checked(result), tuple(type(t) is not Zero for t in touts))
    return jaxpr.remember(("jvp", mask), make)


def for_forward_mode(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr, without dead code if something in it has reverse mode only: that stops forward mode if it is used."""
    return simplify(jaxpr) if has_reverse_only(jaxpr) else jaxpr


def has_reverse_only(jaxpr: Jaxpr) -> bool:
    """Whether there is a primitive in a jaxpr, or in one that it holds, for which there is no forward mode."""
    found: bool = jaxpr.remember("has reverse only", lambda: any(
        e.primitive.reverse_only or any(map(has_reverse_only, getattr(e.primitive, "jaxprs", ()))) for e in jaxpr.eqns))
    return found


class Linearized(NamedTuple):
    """A program cut in two.

    `forward` takes the inputs and gives the outputs and further values. `linear` takes residuals and the tangents in
    the mask and gives the tangents of the outputs in `moves`. `residuals` says where each residual comes from:
    ("input", i) or ("output", i) of `forward`.
    """

    forward: Jaxpr
    linear: Jaxpr
    residuals: Tuple[Tuple[str, int], ...]
    moves: Mask


def linearize_jaxpr(jaxpr: Jaxpr, mask: Mask) -> Linearized:
    """Cut a jaxpr in two at given tangents of the inputs in the mask; remembered."""
    def make() -> Linearized:
        with Trace(jaxpr.name) as trace:
            primals = [trace.input(a) for a in jaxpr.in_avals]
            tangents = directions_of(trace, jaxpr.in_avals, mask)
            outs, touts = push_forward(trace, jaxpr, primals, tangents, "linearize")
            eqns, linear = split(trace, 0, moving_only(tangents))
            whole = trace.finish(outs)
        constants = dict(zip(whole.constvars, whole.constants))
        results: List[Atom] = list(whole.outputs)
        places: Dict[Atom, Tuple[str, int]] = {v: ("output", i) for i, v in enumerate(results)}
        places.update((v, ("input", i)) for i, v in enumerate(whole.inputs))
        used: Dict[Var, Any] = {}
        again: Set[Atom] = set()
        found = found_again(whole)
        moves = tuple(type(t) is not Zero for t in touts)
        touts = moving_only(touts)
        for a in [a for eqn in eqns for a in eqn.inputs] + [t.variable for t in touts]:
            while a in found and a not in again:
                again.add(a)
                a = found[a].inputs[0]
            if isinstance(a, Var) and a not in linear and a not in constants and a not in used and a not in again:
                if a not in places:
                    places[a] = "output", len(results)
                    results.append(a)
                used[a] = places[a]
        forward = Jaxpr(whole.inputs, results, whole.eqns, whole.constvars, whole.constants, jaxpr.name)
        program = Jaxpr([*used, *(t.variable for t in moving_only(tangents))], [t.variable for t in touts],
                        [*(e for e in whole.eqns if again.intersection(e.outputs)), *eqns], list(constants),
                        list(constants.values()), f"linear({jaxpr.name})")
        return Linearized(checked(forward), checked(program), tuple(used.values()), moves)
    return jaxpr.remember(("linearize", mask), make)


def found_again(jaxpr: Jaxpr) -> Dict[Atom, Eqn]:
    """What a derivative does not keep on the device, but gets again, with the equations that make it.

    That is what is loaded from remote memory, and what replicas gather of parts that are loaded, or that the jaxpr
    takes; also in another shape or dtype.
    """
    found: Dict[Atom, Eqn] = {}
    inputs = set(jaxpr.inputs)
    for eqn in jaxpr.eqns:
        primitive, operands, results, _ = eqn
        if isinstance(primitive, Place):
            comes = operands[0].aval.memory == REMOTE and primitive.memory == DEVICE
        elif isinstance(primitive, AllGather):
            comes = operands[0] in found or operands[0] in inputs
        else:
            comes = bool(found) and isinstance(primitive, (
                Reshape, Squeeze, Slice, Transpose, Convert, Pvary)) and operands[0] in found
        if comes:
            found[results[0]] = eqn
    return found


def transpose_jaxpr(jaxpr: Jaxpr, linear: Mask, given: Mask) -> Tuple[Jaxpr, Mask]:
    """The transpose of a program that is linear in the inputs in the mask; remembered.

    It takes the other inputs and cotangents of the outputs in `given`, and gives cotangents of the linear inputs in the
    mask that is returned.
    """
    def make() -> Tuple[Jaxpr, Mask]:
        with Trace(f"transpose({jaxpr.name})") as trace:
            others = [trace.input(v.aval) for v, on in zip(jaxpr.inputs, linear) if not on]
            cotangents = iter([trace.input(a.aval) for a, on in zip(jaxpr.outputs, given) if on])
            directions = directions_of(trace, jaxpr.in_avals, linear)
            rest = iter(others)
            args = [d if on else next(rest) for d, on in zip(directions, linear)]
            results = inline(jaxpr, args)
            eqns, moving = split(trace, 0, [d for d, on in zip(directions, linear) if on])
            cts: Dict[Var, Any] = {}
            for x, on in zip(results, given):
                if on:
                    accumulate(cts, x, next(cotangents), moving)
            pull_back(trace, eqns, moving, cts)
            got = [cts.get(d.variable) for d, on in zip(directions, linear) if on]
            result = trace.finish([c for c in got if c is not None])
        return checked(result), tuple(c is not None for c in got)
    return jaxpr.remember(("transpose", linear, given), make)


def accumulate(cts: Dict[Var, Any], x: Any, ct: Any, linear: Set[Var]) -> None:
    """Add a cotangent to that of a linear tracer; one of anything else goes nowhere."""
    if isinstance(x, Tracer) and x.variable in linear:
        cts[x.variable] = place(add(cts[x.variable], ct), x.aval.memory) if x.variable in cts else ct


def vjp_jaxpr(jaxpr: Jaxpr, mask: Mask, seeds: Sequence[int]) -> Jaxpr:
    """The outputs, and the gradients of the inputs in the mask, in one program.

    It takes the inputs and a cotangent for each output whose index is in `seeds`.
    """
    with Trace(f"grad({jaxpr.name})") as trace:
        primals = [trace.input(a) for a in jaxpr.in_avals]
        cotangents = [trace.input(jaxpr.outputs[i].aval) for i in seeds]
        directions = directions_of(trace, jaxpr.in_avals, mask)
        outs, touts = push_forward(trace, jaxpr, primals, directions, "linearize")
        eqns, linear = split(trace, 0, moving_only(directions))
        cts: Dict[Var, Any] = {}
        for i, ct in zip(seeds, cotangents):
            accumulate(cts, touts[i], ct, linear)
        pull_back(trace, eqns, linear, cts)
        grads = [cts[d.variable] if d.variable in cts else instantiate(Zero(d.aval)) for d in moving_only(directions)]
        return checked(trace.finish(outs + grads))
