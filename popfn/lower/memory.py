"""Values outside of the device: which remote buffers and streams they are in, and how they get there in parts.

A value in remote memory is a run of entries in a buffer. How many of its leading axes count entries follows from how it
is used: a scan over a stacked value wants an entry for each element, so that it can load one at a time.
"""
from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..trace.aval import DEVICE, REMOTE, Aval, Shape, bool_
from ..trace.errors import LoweringError, located
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Var
from ..trace.prims import cut, join, place
from ..trace.prims.binary import Gt
from ..trace.prims.collectives import Pvary
from ..trace.prims.memory import Parts, Place
from ..trace.prims.remote import Access, RemoteBuffer, RemoteRead, RemoteWrite
from ..trace.tracer import aval_of, bind, literal
from ..transforms.bodies import Subgraph, is_far, is_remote, rebuilt
from ..transforms.cond import Cond
from ..transforms.loop import While
from ..transforms.replay import inline, with_jaxprs
from ..transforms.scan import Scan


# ---------------------------------------------------------------------------- how values are laid out
class Layout:
    """The shape of the entries that each far value of a program consists of, in row-major order.

    Values that share a buffer are tied, and have the entries of the smallest of them.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.parent: Dict[Var, Var] = {}
        self.shape: Dict[Var, Shape] = {}
        self.seen: Set[int] = set()
        self.handles: Dict[RemoteBuffer, Var] = {}
        self.visit(jaxpr)

    def visit(self, jaxpr: Jaxpr) -> None:
        """Tie the values that share a buffer: operands of loops and calls, and the inputs that they become."""
        if id(jaxpr) in self.seen:
            return
        self.seen.add(id(jaxpr))
        for eqn in jaxpr.eqns:
            self.tie_graphs(eqn)

    def tie_graphs(self, eqn: Eqn) -> None:
        """Tie the values of an equation to those of the graphs that it calls, and those between which it moves."""
        if isinstance(eqn.primitive, Place) and is_far(eqn.inputs[0]) and is_far(eqn.outputs[0]):
            self.tie(eqn.inputs[0], eqn.outputs[0])
        if isinstance(eqn.primitive, RemoteRead):
            self.tie(self.handle(eqn.primitive), eqn.outputs[0])
        if isinstance(eqn.primitive, RemoteWrite):
            self.tie(self.handle(eqn.primitive), eqn.inputs[1])
        for a, v in same_entries(eqn):
            self.tie(a, v)
        for graph in subgraphs(eqn):
            for inner, outer in tied(graph.jaxpr, eqn):
                self.tie(inner, outer)
            self.visit(graph.jaxpr)

    def handle(self, access: Access) -> Var:
        """A value that stands for all of a buffer."""
        buffer = access.buffer
        found = self.handles.get(buffer)
        if found is None:
            aval = access.row_aval
            found = self.handles[buffer] = Var(aval.with_shape((buffer.rows, *aval.shape)))
            self.shape[found] = aval.shape[1:]
        return found

    def find(self, v: Var) -> Var:
        """The representative of all values that are tied to this one."""
        root = v
        while root in self.parent:
            root = self.parent[root]
        while v is not root:
            self.parent[v], v = root, self.parent[v]
        self.shape.setdefault(root, root.aval.shape)
        return root

    def tie(self, a: Atom, b: Atom) -> None:
        """Let two values have entries of one shape."""
        if isinstance(a, Var) and isinstance(b, Var):
            first, second = self.find(a), self.find(b)
            if first is not second:
                self.parent[second] = first
                self.shape[first] = min(self.shape[first], self.shape[second], key=math.prod)

    def entry_shape(self, a: Var) -> Shape:
        """The shape of an entry."""
        return self.shape[self.find(a)]

    def count(self, a: Var) -> int:
        """The number of entries of a value."""
        return a.aval.size // math.prod(self.entry_shape(a))


def subgraphs(eqn: Eqn) -> Sequence[Subgraph]:
    """The graphs that an equation calls, of the jaxprs that its primitive holds or made of them."""
    primitive: Any = eqn.primitive
    if not hasattr(type(primitive), "subgraphs"):
        return [Subgraph(j) for j in getattr(primitive, "jaxprs", ())]
    try:
        found: Sequence[Subgraph] = primitive.subgraphs
    except LoweringError as e:
        raise located(e, eqn.source) from None
    return found


def tied(jaxpr: Jaxpr, eqn: Eqn) -> List[Tuple[Atom, Atom]]:
    """The far values of a graph that an equation calls, each with that of the equation whose buffer it shares."""
    # From behind: the number of a branch stands before the operands, and the branch may not take it.
    pairs = [*zip(reversed(jaxpr.inputs), reversed(eqn.inputs)), *zip(jaxpr.outputs, eqn.outputs)]
    return [(inner, outer) for inner, outer in pairs if is_far(inner) and is_far(outer)]


# ---------------------------------------------------------------------------- programs made ready for it
def rewritten(jaxpr: Jaxpr, change: Callable[[Eqn], Sequence[Eqn]]) -> Jaxpr:
    """The program with other equations in place of each, in the jaxprs that it holds first.

    Jaxprs of which nothing changes stay what they are, and each is changed once.
    """
    made: Dict[int, Jaxpr] = {}

    def inside(jaxpr: Jaxpr) -> Jaxpr:
        found = made.get(id(jaxpr))
        if found is None:
            eqns: List[Eqn] = []
            for old in jaxpr.eqns:
                primitive = with_jaxprs(old.primitive, inside)
                eqns += change(old if primitive is old.primitive else old._replace(primitive=primitive))
            same = len(eqns) == len(jaxpr.eqns) and all(new is old for new, old in zip(eqns, jaxpr.eqns))
            found = made[id(jaxpr)] = jaxpr if same else with_eqns(jaxpr, eqns)
        return found
    return inside(jaxpr)


def with_eqns(jaxpr: Jaxpr, eqns: Sequence[Eqn], outputs: Optional[Sequence[Atom]] = None) -> Jaxpr:
    """The jaxpr with other equations, and other outputs if there are some."""
    return Jaxpr(jaxpr.inputs, jaxpr.outputs if outputs is None else outputs, eqns, jaxpr.constvars, jaxpr.constants,
                 jaxpr.name)


def wholes(jaxpr: Jaxpr) -> Dict[Atom, Atom]:
    """For each far value that is made of the entries of another one, that one.

    Such are values that are cut or put together as they lie, or handed to all lanes, and what becomes of the remote
    carry of a loop.
    """
    found: Dict[Atom, Atom] = {}
    for eqn in jaxpr.eqns:
        for a, v in same_entries(eqn):
            found[v] = found.get(a, a)
    return found


def same_entries(eqn: Eqn) -> List[Tuple[Atom, Var]]:
    """Pairs of an operand and a result that are the same entries of a buffer."""
    primitive = eqn.primitive
    if isinstance(primitive, (Parts, Pvary)):
        pairs = [(eqn.inputs[0], eqn.outputs[0])]
    elif isinstance(primitive, Scan):
        pairs = list(zip(primitive.parts(eqn.inputs)[1], eqn.outputs))
    else:
        return []
    return [(a, v) for a, v in pairs if is_far(v)]


def with_plain_control(jaxpr: Jaxpr) -> Jaxpr:
    """The program, where control flow over far values is made of what is lowered: scans, and choices of two."""
    def change(eqn: Eqn) -> Sequence[Eqn]:
        primitive = eqn.primitive
        remade = (primitive.cond,) if isinstance(primitive, While) else getattr(primitive, "branches", ())
        if not any(map(holds_far, remade)) and not any(map(is_far, (*eqn.inputs, *eqn.outputs))):
            return [eqn]
        if isinstance(primitive, While):
            try:
                return [eqn._replace(primitive=primitive.bounded())]
            except LoweringError as e:
                raise located(e, eqn.source) from None
        if isinstance(primitive, Cond) and len(primitive.branches) > 2:
            index = eqn.inputs[0]
            is_high = Var(Aval((), bool_))
            middle = literal(len(primitive.branches) // 2 - 1, index.aval)
            low, high = (rewritten(j, change) for j in primitive.halves())
            return [Eqn(Gt(), (index, middle), (is_high,), eqn.source),
                    eqn._replace(primitive=Cond((low, high)), inputs=(is_high, *eqn.inputs))]
        return [eqn]
    return rewritten(jaxpr, change)


def holds_far(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr, or one that it holds, makes far values."""
    found: bool = jaxpr.remember("holds far", lambda: any(
        any(map(is_far, eqn.outputs)) or any(map(holds_far, getattr(eqn.primitive, "jaxprs", ())))
        for eqn in jaxpr.eqns))
    return found


def with_own_entries(jaxpr: Jaxpr) -> Jaxpr:
    """The program, where whatever has entries of its own is made there.

    Loops get copies of remote values as their first carry, which they change in place. In each jaxpr that is held, far
    outputs are neither inputs nor other outputs.
    """
    def change(eqn: Eqn) -> Sequence[Eqn]:
        primitive = eqn.primitive
        if not isinstance(primitive, Scan):
            new = with_jaxprs(primitive, lambda j: with_own_results(j, ()))
            return [eqn if new is primitive else eqn._replace(primitive=new)]
        start, count = primitive.num_consts, primitive.num_carry
        carry = range(start, start + count)
        new = with_jaxprs(primitive, lambda j: with_state_stored(with_own_results(j, carry), carry)[0])
        firsts = [i for i in carry if is_far(eqn.inputs[i])]
        if not firsts and new is primitive:
            return [eqn]
        copies = {i: Eqn(Place(eqn.inputs[i].aval.memory), (eqn.inputs[i],), (Var(eqn.inputs[i].aval),), eqn.source)
                  for i in firsts}
        inputs = tuple([copies[i].outputs[0] if i in copies else a for i, a in enumerate(eqn.inputs)])
        return [*copies.values(), eqn._replace(primitive=new, inputs=inputs)]
    return rewritten(jaxpr, change)


def with_own_results(jaxpr: Jaxpr, carry: Sequence[int]) -> Jaxpr:
    """The jaxpr with copies where far outputs are inputs or other outputs.

    The first outputs are the new values of the inputs numbered by `carry`; one that stays what it is needs no copy.
    """
    outputs: List[Atom] = []
    copies: List[Eqn] = []
    whole = wholes(jaxpr)
    taken: Set[Atom] = set(jaxpr.inputs)
    stays = [jaxpr.inputs[i] for i in carry]
    for k, a in enumerate(jaxpr.outputs):
        made = whole.get(a, a)
        if is_far(a) and made in taken and not (k < len(stays) and made is stays[k]):
            copies.append(Eqn(Place(a.aval.memory), (a,), (Var(a.aval),)))
            made = a = copies[-1].outputs[0]
        taken.add(made)
        outputs.append(a)
    return with_eqns(jaxpr, [*jaxpr.eqns, *copies], outputs) if copies else jaxpr


def by_entries(jaxpr: Jaxpr, layout: Layout) -> Jaxpr:
    """The program with loops in place of the moves of values that have several entries."""
    def change(eqn: Eqn) -> Sequence[Eqn]:
        if not isinstance(eqn.primitive, Place):
            return [eqn]
        x = eqn.inputs[0]
        far = [a for a in (x, *eqn.outputs) if isinstance(a, Var) and is_far(a)]
        if not far or layout.count(far[0]) == 1:
            return [eqn]
        loop = move(x.aval, eqn.primitive.memory, layout.entry_shape(far[0]))
        same: Dict[Atom, Any] = {loop.inputs[0]: x, loop.outputs[0]: eqn.outputs[0]}
        eqns = [Eqn(e.primitive, tuple([same.get(a, a) for a in e.inputs]),
                    tuple([same.get(v, v) for v in e.outputs]), eqn.source) for e in loop.eqns]
        for e in eqns:
            layout.tie_graphs(e)
        return eqns
    return rewritten(jaxpr, change)


def move(aval: Aval, memory: str, shape: Shape) -> Jaxpr:
    """The program that moves a value to another memory by entries of a shape, one after the other."""
    count = aval.size // math.prod(shape)
    step = rebuilt("move", [aval.with_shape(shape)], lambda x: [placed(x, memory)])

    def f(x: Any) -> Sequence[Any]:
        y, = bind(Scan(step, count, 0, 0), [to_entries(x, count, shape)])
        return [from_entries(y, shape, aval.shape)]
    return rebuilt("move", [aval], f)


def to_entries(x: Any, count: int, shape: Shape) -> Any:
    """A value as so many entries of a shape."""
    while aval_of(x).ndim > max(len(shape), 1):
        x = join(x, 0)
    return cut(x, count, 0) if shape else x


def from_entries(x: Any, entry: Shape, shape: Shape) -> Any:
    """The value of a shape that entries are."""
    x = join(x, 0) if entry else x
    for i in range(len(shape) - max(len(entry), 1), 0, -1):
        x = cut(x, math.prod(shape[:i]), 0)
    return x


def placed(x: Any, memory: str) -> Any:
    """x moved to a memory, even if it lies in it: a copy then."""
    return bind(Place(memory), [x])


# ---------------------------------------------------------------------------- what a program takes and gives
def with_results_near(jaxpr: Jaxpr, state: Sequence[int]) -> Jaxpr:
    """The jaxpr without values in remote memory among its inputs and outputs, save for those of the state.

    What a run takes and gives comes from the host and goes there. New state goes to where the old one lies.
    """
    wanted = [jaxpr.inputs[i].aval.memory for i in state] + [
        DEVICE if a.aval.memory == REMOTE else a.aval.memory for a in jaxpr.outputs[len(state):]]
    given = [a.at(DEVICE) if a.memory == REMOTE and i not in state else a for i, a in enumerate(jaxpr.in_avals)]
    if list(jaxpr.in_avals) == given and [a.aval.memory for a in jaxpr.outputs] == wanted:
        return jaxpr

    def near(*args: Any) -> Sequence[Any]:
        outs = inline(jaxpr, [place(x, a.memory) for x, a in zip(args, jaxpr.in_avals)])
        return [place(y, memory) for y, memory in zip(outs, wanted)]
    return rebuilt(jaxpr.name, given, near)


def with_state_stored(jaxpr: Jaxpr, state: Sequence[int]) -> Tuple[Jaxpr, Dict[Atom, Var]]:
    """The jaxpr with copies of the new remote state that cannot be written where the old one lies while it is made.

    Also the values that are written there, with the old state of each.
    """
    outputs = list(jaxpr.outputs)
    whole = wholes(jaxpr)
    written: Dict[Atom, Var] = {}
    first: List[Eqn] = []
    then: List[Eqn] = []
    for k, i in enumerate(state):
        old, new = jaxpr.inputs[i], outputs[k]
        made = whole.get(new, new)
        if not is_remote(old) or made is old:
            continue
        if made not in written and overwrites_safely(jaxpr, old, new):
            written[made] = old
            continue
        if made in jaxpr.inputs:  # other state, which may be overwritten before it is copied
            kept = Var(new.aval)
            first.append(Eqn(Place(REMOTE), (new,), (kept,)))
            new = kept
        copy = Var(new.aval)
        then.append(Eqn(Place(REMOTE), (new,), (copy,)))
        written[copy], outputs[k] = old, copy
    if not then:
        return jaxpr, written
    return with_eqns(jaxpr, [*jaxpr.eqns, *first, *then], outputs), written


def overwrites_safely(jaxpr: Jaxpr, old: Var, new: Atom) -> bool:
    """Whether a new value may be written where the old one lies: nobody reads the old one from then on."""
    whole = wholes(jaxpr)
    new = whole.get(new, new)
    made = next((i for i, eqn in enumerate(jaxpr.eqns) if new in eqn.outputs), None)
    same = {a for a, b in whole.items() if b is old} | {old}
    if made is None or not same.isdisjoint(jaxpr.outputs) or any(
            not same.isdisjoint(eqn.inputs) for eqn in jaxpr.eqns[made + 1:]):
        return False
    eqn = jaxpr.eqns[made]
    uses = [i for i, a in enumerate(eqn.inputs) if a in same]
    if not uses:
        return True
    primitive: Any = eqn.primitive
    held = [graph.jaxpr for graph in subgraphs(eqn)]
    if len(uses) != 1 or len(held) != 1 or isinstance(primitive, Scan) and \
            uses[0] < primitive.num_consts + primitive.num_carry:
        return False
    inner = held[0]
    element = inner.inputs[uses[0] - len(eqn.inputs)]
    return overwrites_safely(inner, element, inner.outputs[eqn.outputs.index(new)])
