"""Placement: what of a program is streamed or kept in remote memory, part by part, where the user leaves it open.

A serialised loop takes and gives stacked parts. Those of an argument are streamed from the host; they are put into
remote memory too if a later loop, say that of the derivative, wants them again. Those of a result are streamed to the
host. What one serialised loop hands to another stays in remote memory. Whatever else uses a value wants it whole.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..trace.aval import DEVICE, HOST, REMOTE
from ..trace.errors import LoweringError, PopfnError, located, message
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Var
from ..trace.prims.memory import Cut, Join, Place
from ..trace.tracer import Trace, bind
from ..transforms.call import Call
from ..transforms.replay import checked, inline, sources, start_env, with_jaxprs
from ..transforms.scan import Scan
from ..transforms.simplify import without_dead_code
from .memory import rewritten

Use = Tuple[int, int]  # the numbers of an equation and of its operand


class Streamed(NamedTuple):
    """How an argument or a result is streamed: the axis along which it is cut, and whether from its end."""

    axis: int
    reverse: bool


class Placed(NamedTuple):
    """A program in which every value has its place; `loads` and `stores` number the inputs and outputs streamed."""

    jaxpr: Jaxpr
    loads: Dict[int, Streamed]
    stores: Dict[int, Streamed]


def placed(jaxpr: Jaxpr, state: Sequence[int]) -> Placed:
    """Decide where the values of a program lie. Raises LoweringError if what the user asks for cannot be.

    `state` numbers the inputs that live on the device; their new values are the first outputs.
    """
    def held(jaxpr: Jaxpr) -> Jaxpr:
        placing = _Placing(jaxpr)
        placing.place_operands()
        placing.place_results(())
        placing.check_streams("it is inside of a loop, a branch or a function that is called")
        return placing.finished()

    def change(eqn: Eqn) -> Sequence[Eqn]:
        new = with_jaxprs(eqn.primitive, held)
        return [eqn if new is eqn.primitive else eqn._replace(primitive=new)]
    jaxpr = rewritten(with_loops_in_sight(jaxpr), change)
    placing = _Placing(jaxpr)
    placing.place_operands()
    placing.place_results(range(len(state), len(jaxpr.outputs)))
    placing.check_stored()
    stores = placing.streamed
    placing = _Placing(placing.finished())
    placing.place_arguments([i for i in range(len(jaxpr.inputs)) if i not in set(state)])
    return Placed(checked(placing.finished()), placing.streamed, stores)


def cannot_stream(eqn: Eqn, why: str) -> PopfnError:
    """The error for an array that the user wants to be streamed and that cannot be."""
    is_load = isinstance(eqn.primitive, Cut)
    option, aval, steps = ("loads", eqn.inputs[0].aval, eqn.outputs[0].aval.shape[0]) if is_load else (
        "stores", eqn.outputs[0].aval, eqn.inputs[0].aval.shape[0])
    return located(LoweringError(message(
        f"{option}=HostStream() asks to stream {aval} in {steps} parts, but {why}",
        f"way out: {option}=None lets the lowering decide")), eqn.source)


# ---------------------------------------------------------------------------- serialised loops
def is_serial(eqn: Eqn) -> bool:
    """Whether an equation is a serialised loop."""
    return isinstance(eqn.primitive, Scan) and bool(eqn.primitive.io_mode)


def has_serial(jaxpr: Jaxpr) -> bool:
    """Whether there is a serialised loop in a jaxpr, or in a function that it calls."""
    found: bool = jaxpr.remember("has_serial", lambda: any(
        is_serial(eqn) or isinstance(eqn.primitive, Call) and has_serial(eqn.primitive.jaxpr) for eqn in jaxpr.eqns))
    return found


def with_loops_in_sight(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with the functions in place that it calls and that have serialised loops."""
    if not any(isinstance(eqn.primitive, Call) and has_serial(eqn.primitive.jaxpr) for eqn in jaxpr.eqns):
        return jaxpr
    with Trace(jaxpr.name) as trace, sources(trace):
        env: Dict[Any, Any] = start_env(jaxpr, trace.add_inputs(jaxpr.in_avals))
        for primitive, inputs, outputs, trace.source in jaxpr.eqns:
            operands = [env[a] if isinstance(a, Var) else a for a in inputs]
            if isinstance(primitive, Call) and has_serial(primitive.jaxpr):
                results: Sequence[Any] = inline(with_loops_in_sight(primitive.jaxpr), operands)
            else:
                out = bind(primitive, operands)
                results = out if primitive.multiple else (out,)
            env.update(zip(outputs, results))
        return checked(trace.finish([env[a] if isinstance(a, Var) else a for a in jaxpr.outputs]))


class _Loop:
    """The changes to a loop: operands in other memories, and further results."""

    def __init__(self, eqn: Eqn) -> None:
        self.eqn = eqn
        self.operands: Dict[int, Var] = {}
        self.again: Dict[int, int] = {}  # operands that have the elements of another one, by its number
        self.results: List[Tuple[Atom, Var]] = []

    def add_result(self, inner: Atom, memory: str) -> Var:
        """One more result: a value of each step, stacked in a memory."""
        scan: Any = self.eqn.primitive
        self.results.append((inner, Var(scan.stacked(inner.aval).at(memory))))
        return self.results[-1][1]

    def finished(self) -> Eqn:
        """The loop with what was decided."""
        scan: Any = self.eqn.primitive
        body = scan.jaxpr
        inputs: List[Var] = list(body.inputs)
        loads: List[Eqn] = []
        for k, x in self.operands.items():
            inputs[k] = Var(inputs[k].aval.at(x.aval.memory))
            loads.append(Eqn(Place(DEVICE), (inputs[k],), (body.inputs[k],), self.eqn.source))
        for k, first in self.again.items():
            loads.append(Eqn(Place(DEVICE), (inputs[first],), (body.inputs[k],), self.eqn.source))
        stores = [Eqn(Place(y.aval.memory), (a,), (Var(a.aval.at(y.aval.memory)),), self.eqn.source)
                  for a, y in self.results]
        taken = [k for k in range(len(inputs)) if k not in self.again]
        new = Jaxpr([inputs[k] for k in taken], [*body.outputs, *(eqn.outputs[0] for eqn in stores)],
                    [*loads, *body.eqns, *stores], body.constvars, body.constants, body.name)
        operands = [self.operands.get(k, self.eqn.inputs[k]) for k in taken]
        return Eqn(scan.of(checked(new), scan.num_consts, scan.num_carry), tuple(operands),
                   (*self.eqn.outputs, *(y for _, y in self.results)), self.eqn.source)


class _Placing:
    """The uses of a jaxpr's values, and the changes that are decided."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr = jaxpr
        self.inputs = list(jaxpr.inputs)
        self.outputs = list(jaxpr.outputs)
        self.loops = {i: _Loop(eqn) for i, eqn in enumerate(jaxpr.eqns) if isinstance(eqn.primitive, Scan)}
        self.behind: Dict[int, Eqn] = {}  # equations that come behind others
        self.instead: Dict[Atom, Atom] = {}  # values that others stand for
        self.streamed: Dict[int, Streamed] = {}
        self.uses: Dict[Atom, List[Use]] = {}
        for i, eqn in enumerate(jaxpr.eqns):
            for k, a in enumerate(eqn.inputs):
                self.uses.setdefault(a, []).append((i, k))

    def finished(self) -> Jaxpr:
        """The jaxpr with what was decided."""
        if not any(loop.operands or loop.results for loop in self.loops.values()):
            return self.jaxpr
        eqns: List[Eqn] = []
        for i, eqn in enumerate(self.jaxpr.eqns):
            eqns.append(self.loops[i].finished() if i in self.loops else eqn)
            eqns += [self.behind[i]] if i in self.behind else []
        eqns = [eqn._replace(inputs=tuple([self.instead.get(a, a) for a in eqn.inputs])) for eqn in eqns]
        return without_dead_code(Jaxpr(self.inputs, [self.instead.get(a, a) for a in self.outputs], eqns,
                                       self.jaxpr.constvars, self.jaxpr.constants, self.jaxpr.name))

    def scan(self, i: int) -> Scan:
        """The loop that equation i is."""
        primitive = self.jaxpr.eqns[i].primitive
        assert isinstance(primitive, Scan)
        return primitive

    def takes_parts(self, use: Use) -> bool:
        """Whether a use is that of a serialised loop, which takes one part in each step."""
        i, k = use
        return is_serial(self.jaxpr.eqns[i]) and k >= self.scan(i).num_consts + self.scan(i).num_carry

    # ------------------------------------------------------------------ operands of loops
    def place_operands(self) -> None:
        """Let serialised loops take parts of values in remote memory as they lie there, not of the whole on the device.

        Such wholes come from derivatives: the cotangent of what was put into remote memory part by part.
        """
        made = {v: i for i, eqn in enumerate(self.jaxpr.eqns) for v in eqn.outputs}
        for i, loop in self.loops.items():
            for k, a in enumerate(self.jaxpr.eqns[i].inputs):
                cut = self.jaxpr.eqns[made[a]] if a in made and self.takes_parts((i, k)) else None
                if cut is None or not isinstance(cut.primitive, Cut) or cut.primitive.axis or cut.primitive.memory:
                    continue
                whole = cut.inputs[0]
                load = self.jaxpr.eqns[made[whole]] if whole in made else None
                if load is not None and isinstance(load.primitive, Place) and load.inputs[0].aval.memory == REMOTE:
                    parts = self.behind.setdefault(made[a], Eqn(  # type: ignore[index]
                        cut.primitive, load.inputs, (Var(a.aval.at(REMOTE)),), cut.source))
                    loop.operands[k] = parts.outputs[0]

    # ------------------------------------------------------------------ results of loops
    def place_results(self, results: Sequence[int]) -> None:
        """Let stacked results of loops lie where they are used; the outputs that `results` numbers are streamed."""
        for i in self.loops:
            scan, eqn = self.scan(i), self.jaxpr.eqns[i]
            for inner, y in list(zip(scan.jaxpr.outputs, eqn.outputs))[scan.num_carry:]:
                if y.aval.memory == DEVICE and y.aval.size:
                    self.place_result(i, inner, y, results if is_serial(eqn) else ())

    def place_result(self, i: int, inner: Atom, y: Var, results: Sequence[int]) -> None:
        """Let the uses of a result of loop i that want it elsewhere have it there."""
        remote: List[Var] = []

        def in_remote_memory() -> Var:
            if not remote:
                remote.append(self.loops[i].add_result(inner, REMOTE))
            return remote[0]
        keeps = not is_serial(self.jaxpr.eqns[i]) or self.scan(i).residuals == DEVICE
        for use in self.uses.get(y, []):
            eqn = self.jaxpr.eqns[use[0]]
            if isinstance(eqn.primitive, Place):
                self.instead[eqn.outputs[0]] = in_remote_memory()
            elif self.takes_parts(use) and not keeps:
                self.loops[use[0]].operands[use[1]] = in_remote_memory()
            elif isinstance(eqn.primitive, Join):
                self.place_joined(i, inner, use[0], in_remote_memory, results)

    def place_joined(self, i: int, inner: Atom, j: int, in_remote_memory: Callable[[], Var],
                     results: Sequence[int]) -> None:
        """The same for the uses of the whole that equation j puts together of a result's parts."""
        whole, = self.jaxpr.eqns[j].outputs
        join: Any = self.jaxpr.eqns[j].primitive
        if join.memory == DEVICE:
            return
        for o in results:
            if self.outputs[o] is whole:
                self.outputs[o] = self.loops[i].add_result(inner, HOST)
                self.streamed[o] = Streamed(join.axis, self.scan(i).reverse)
        for n, _ in self.uses.get(whole, []):
            eqn = self.jaxpr.eqns[n]
            if isinstance(eqn.primitive, Place) and join.axis == 0:
                if j not in self.behind:
                    self.behind[j] = Eqn(Join(0), (in_remote_memory(),), (Var(whole.aval.at(REMOTE)),), eqn.source)
                self.instead[eqn.outputs[0]] = self.behind[j].outputs[0]
            elif isinstance(eqn.primitive, Cut) and eqn.primitive.memory == "" and (
                    eqn.primitive.steps, eqn.primitive.axis) == (self.scan(i).length, join.axis):
                for use in self.uses.get(eqn.outputs[0], []):
                    if self.takes_parts(use):
                        self.loops[use[0]].operands[use[1]] = in_remote_memory()

    # ------------------------------------------------------------------ arguments
    def place_arguments(self, arguments: Sequence[int]) -> None:
        """Stream the inputs with these numbers of which only serialised loops want parts."""
        for n in arguments:
            v = self.jaxpr.inputs[n]
            cuts = [self.jaxpr.eqns[i] for i, _ in self.uses.get(v, [])]
            why = self.why_whole(v, cuts)
            if why is None:
                self.stream(n, cuts)
        for eqn in self.asked_to_stream(Cut):
            x = eqn.inputs[0]
            n = self.jaxpr.inputs.index(x) if x in self.jaxpr.inputs else -1
            if n in self.streamed:
                continue
            why = "it is computed by the program" if n < 0 else "it is state of the program" \
                if n not in set(arguments) else self.why_whole(self.jaxpr.inputs[n], [
                    self.jaxpr.eqns[i] for i, _ in self.uses[x]])
            raise cannot_stream(eqn, str(why))

    # ------------------------------------------------------------------ what the user asks for
    def asked_to_stream(self, kind: Any) -> List[Eqn]:
        """The cuts or joins whose whole the user wants to be streamed."""
        return [eqn for eqn in self.jaxpr.eqns if isinstance(eqn.primitive, kind) and eqn.inputs[0].aval.size
                and eqn.primitive.memory == HOST]

    def check_streams(self, why: str) -> None:
        """Raise LoweringError if the user wants a stream here."""
        for eqn in self.asked_to_stream((Cut, Join)):
            raise cannot_stream(eqn, why)

    def check_stored(self) -> None:
        """Raise LoweringError for a result that the user wants to be streamed, and that is not."""
        for eqn in self.asked_to_stream(Join):
            whole, = eqn.outputs
            if whole in self.outputs or whole not in self.jaxpr.outputs:
                raise cannot_stream(eqn, "it is not among what a run gives back")

    def why_whole(self, v: Var, cuts: Sequence[Eqn]) -> Optional[str]:
        """Why an argument has to be on the device as a whole; None if it can be streamed."""
        kinds = {(p.steps, p.axis) if isinstance(p, Cut) else None for p in (eqn.primitive for eqn in cuts)}
        uses = [use for eqn in cuts for v in eqn.outputs for use in self.uses.get(v, [])]
        if not v.aval.size or v.aval.memory != DEVICE or not cuts:
            return "nothing reads it"
        if v in self.outputs:
            return "it is a result of the program too"
        if None in kinds:
            return "it is used as a whole too"
        if len(kinds) > 1:
            return "it is cut in different ways too"
        if any(isinstance(eqn.primitive, Cut) and eqn.primitive.memory == DEVICE for eqn in cuts):
            return "another use asks for it on the device"
        if not uses or not all(map(self.takes_parts, uses)) or any(eqn.outputs[0] in self.outputs for eqn in cuts):
            return "something else than serialised loops uses its parts"
        if len({i for i, _ in uses}) > 1 and any(self.scan(i).residuals == DEVICE for i, _ in uses):
            return "several loops use it, and residuals='device' keeps it on the device for them"
        return None

    def stream(self, n: int, cuts: Sequence[Eqn]) -> None:
        """Stream an input: the first loop takes its parts, and puts them into remote memory for later ones."""
        cut: Any = cuts[0].primitive
        (first, k), *rest = sorted(use for eqn in cuts for use in self.uses[eqn.outputs[0]])
        self.inputs[n] = self.loops[first].operands[k] = Var(cuts[0].outputs[0].aval.at(HOST))
        self.streamed[n] = Streamed(cut.axis, self.scan(first).reverse)
        kept: Optional[Var] = None
        for j, m in rest:
            if j == first:
                self.loops[j].again[m] = k
                continue
            kept = kept or self.loops[first].add_result(self.scan(first).jaxpr.inputs[k], REMOTE)
            self.loops[j].operands[m] = kept
