"""Serialised loops whose parts go through IO tiles: one part after the other, or the next while one is computed.

A step is cut in three: loads of parts on the IO tiles, the computation, stores on the IO tiles. With "io" they follow
one another. With "io_overlapped" the loop is peeled: load 0; load 1 beside computation 0; then in each turn store i - 2
and load i beside computation i - 1; store n - 2 beside computation n - 1; store n - 1.
"""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..trace.aval import DEVICE, HOST
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Var
from ..trace.prims.memory import Place
from ..transforms.bodies import GraphInput, Row, Subgraph, cut, is_far, is_remote, is_tensor
from ..transforms.replay import checked
from ..transforms.scan import Scan
from ..transforms.simplify import without_dead_code


class Stages(NamedTuple):
    """A step cut in three.

    `compute` takes what is equal in all steps and the carry, then an element of each array, all on the device; it gives
    the carry and an element of each stacked result. `loaded` and `stored` say which of these elements go through IO
    tiles, with the types that they have in the other memory.
    """

    compute: Jaxpr
    loaded: Tuple[Tuple[int, Var], ...]
    stored: Tuple[Tuple[int, Atom], ...]


def stages(scan: Scan) -> Stages:
    """Cut the step of a loop in three."""
    def make() -> Stages:
        body = scan.jaxpr
        start = scan.num_consts + scan.num_carry
        eqns = list(body.eqns)
        inputs: List[Var] = list(body.inputs)
        outputs: List[Atom] = list(body.outputs)
        loaded, stored = [], []
        for k, v in enumerate(body.inputs[start:], start):
            uses = [eqn for eqn in eqns if v in eqn.inputs]
            if uses and is_far(v) and v not in outputs and all(
                    isinstance(eqn.primitive, Place) and eqn.primitive.memory == DEVICE for eqn in uses):
                near = Var(v.aval.at(DEVICE))
                same: Dict[Atom, Atom] = {eqn.outputs[0]: near for eqn in uses}
                eqns = [eqn._replace(inputs=tuple([same.get(a, a) for a in eqn.inputs]))
                        for eqn in eqns if eqn not in uses]
                outputs = [same.get(a, a) for a in outputs]
                inputs[k] = near
                loaded.append((k - start, v))
        for k, a in list(enumerate(outputs))[scan.num_carry:]:
            made = next((eqn for eqn in eqns if a in eqn.outputs), None)
            if is_far(a) and made is not None and isinstance(made.primitive, Place) and \
                    made.inputs[0].aval.memory == DEVICE and not any(a in eqn.inputs for eqn in eqns):
                outputs[k] = made.inputs[0]
                stored.append((k - scan.num_carry, a))
        compute = without_dead_code(Jaxpr(inputs, outputs, eqns, body.constvars, body.constants, body.name))
        return Stages(checked(compute), tuple(loaded), tuple(stored))
    found: Stages = scan.jaxpr.remember(("stages", scan.num_consts, scan.num_carry), make)
    return found


def goes_through_io_tiles(eqn: Eqn) -> bool:
    """Whether an equation is a loop whose parts go through IO tiles."""
    scan = eqn.primitive
    if not isinstance(scan, Scan) or scan.io_mode not in ("io", "io_overlapped") or not scan.length:
        return False
    found = stages(scan)
    return bool(found.loaded or found.stored)


class Flow(NamedTuple):
    """What goes from step to step: the step's number on either tiles, the carry, parts loaded and results computed.

    There is no number on the compute tiles where nothing is stacked there.
    """

    counter: List[Any]
    number: List[Any]
    carry: List[Any]
    parts: List[Any]
    done: List[Any]


class Fixed(NamedTuple):
    """What is equal in all steps.

    Results that are stacked on the device, by reference; constants and the entries of a remote carry; arrays of which
    the computation takes elements, and the entries of remote ones; the first entries of what is loaded and of what is
    stored, on the IO tiles; and those of remote results that the computation stores itself.
    """

    rows: List[Any]
    consts: List[Any]
    arrays: List[Any]
    loads: List[Any]
    stores: List[Any]
    ends: List[Any]


class Pipeline:
    """A loop whose parts go through IO tiles, in the course of being lowered.

    `builder` is the `Builder`, which stands above; `bound` has the buffers and streams of the loop's operands.
    """

    def __init__(self, builder: Any, eqn: Eqn, bound: Dict[Any, Any]) -> None:
        scan: Any = eqn.primitive
        self.builder, self.eqn, self.bound = builder, eqn, bound
        self.scan: Scan = scan
        self.is_overlapped = scan.io_mode == "io_overlapped" and scan.length > 1
        self.start = scan.num_consts + scan.num_carry
        found = stages(scan)
        self.compute = Subgraph(found.compute)
        loaded, stored = dict(found.loaded), dict(found.stored)
        inputs, outputs = found.compute.inputs, found.compute.outputs
        self.consts = list(filter(is_tensor, inputs[:scan.num_consts]))
        carry = list(filter(is_tensor, inputs[scan.num_consts:self.start]))
        self.carry, self.far_carry = [v for v in carry if not is_far(v)], list(filter(is_far, carry))
        #: The loop's operands and results that go through IO tiles, with the step's part and its value on the device.
        self.loaded = [(eqn.inputs[self.start + k], v, inputs[self.start + k]) for k, v in loaded.items()
                       if v.aval.size]
        self.stored = [(eqn.outputs[scan.num_carry + k], a, outputs[scan.num_carry + k]) for k, a in stored.items()
                       if a.aval.size]
        self.order = [v for v in inputs[self.start:] if is_tensor(v)]
        self.arrays = [v for v in self.order if all(v is not part for _, _, part in self.loaded)]
        self.outputs = [(k, a) for k, a in enumerate(outputs[scan.num_carry:]) if a.aval.size and not is_far(a)]
        self.stored_numbers = set(stored)
        self.rows = [a for k, a in self.outputs if k not in stored]
        self.counts = bool(self.arrays or self.rows or any(map(is_remote, outputs[scan.num_carry:])))

    # ------------------------------------------------------------------ graphs
    def graphs(self) -> Tuple[Any, ...]:
        """The graph of the computation, and that of a turn if there is one."""
        builder, eqn, jaxpr = self.builder, self.eqn, self.compute.jaxpr
        pairs = [*zip(jaxpr.inputs, eqn.inputs), *zip(jaxpr.outputs, eqn.outputs)]
        graph = builder.graph(self.compute, (), {inner: self.bound[outer] for inner, outer in pairs if is_far(inner)})
        if self.is_overlapped and self.scan.length == 2:
            return (graph,)
        places = [self.bound[x] for x, *_ in (*self.loaded, *self.stored)]
        key = "turn", self.scan, graph, tuple(places)
        name = f"{jaxpr.name or 'body'}_turn"
        return graph, builder.new_graph_of(key, name, self.inputs(), [graph], places, lambda t: self.turn(graph, t))

    def inputs(self) -> List[GraphInput]:
        """What a turn takes: what goes from step to step, then what is equal in all of them."""
        length, named = self.scan.length, self.compute.named
        entry = GraphInput("entry", (1,), np.dtype(np.uint32))
        flow = [entry._replace(name="step")] * self.counts + [entry._replace(name="index")] + named(self.carry)
        if self.is_overlapped:
            flow += [GraphInput("part", v.aval.shape, v.aval.dtype) for _, _, v in self.loaded]
            flow += [GraphInput("done", self.builder.layout.entry_shape(a), a.aval.dtype) for _, a, _ in self.stored]
        rows = [GraphInput("rows", (length, *a.aval.shape), a.aval.dtype, True) for a in self.rows]
        arrays = [i if is_remote(v) else i._replace(shape=(length, *i.shape))
                  for v, i in zip(self.arrays, named(self.arrays))]
        far = sum(is_remote(a) for _, a, _ in (*self.loaded, *self.stored))
        return [*flow, *rows, *named(self.consts + self.far_carry), *arrays, *[entry] * far,
                *self.compute.destinations()]

    def fixed(self, tensors: Sequence[Any]) -> Fixed:
        """What is equal in all steps, in the order in which a turn takes it."""
        return Fixed(*cut(tensors, len(self.rows), len(self.consts) + len(self.far_carry), len(self.arrays),
                          sum(is_remote(v) for _, v, _ in self.loaded), sum(is_remote(a) for _, a, _ in self.stored)))

    def flow(self, tensors: Sequence[Any]) -> Flow:
        """What goes from step to step, in the order in which a turn takes it."""
        n = len(self.loaded) if self.is_overlapped else 0
        return Flow(*cut(tensors, int(self.counts), 1, len(self.carry), n))

    def turn(self, graph: Any, tensors: Sequence[Any]) -> List[Any]:
        """One turn of the loop, in its graph."""
        length = int(self.counts) + 1 + len(self.carry) + (
            len(self.loaded) + len(self.stored) if self.is_overlapped else 0)
        flow, fixed = self.flow(tensors[:length]), self.fixed(tensors[length:])
        flow = self.overlapped_turn(graph, flow, fixed) if self.is_overlapped else self.plain_turn(graph, flow, fixed)
        return [t for group in flow for t in group]

    # ------------------------------------------------------------------ steps
    def plain_turn(self, graph: Any, flow: Flow, fixed: Fixed) -> Flow:
        """Load, compute and store one step."""
        flow = flow._replace(parts=self.near(self.exchange(flow.number, flow.number, [], fixed, loads=True)))
        flow = self.step(graph, flow, fixed)
        self.exchange(flow.number, flow.number, flow.done, fixed, loads=False)
        return flow._replace(number=self.moved(flow.number, 1), parts=[], done=[])

    def overlapped_turn(self, graph: Any, flow: Flow, fixed: Fixed) -> Flow:
        """Store a step and load the one after the next, beside the computation of the one between."""
        loaded = self.exchange(flow.number, self.stored_number(flow, -2), flow.done, fixed, loads=True)
        flow = self.step(graph, flow, fixed)
        return flow._replace(parts=self.near(loaded), number=self.moved(flow.number, 1))

    def exchange(self, load: List[Any], store: List[Any], done: Sequence[Any], fixed: Fixed, loads: bool) -> List[Any]:
        """Load the parts of a step and store what is done of another one, on the IO tiles; the parts there."""
        builder, ops = self.builder, self.builder.px.ops
        taken = self.loaded if loads else []
        given = self.stored if done else []
        if not taken and not given:
            return []
        with builder.recording.within("io_tiles"):
            load_entries = [builder.entry(Row(first, load[0]), v)
                            for first, v in zip(fixed.loads, [v for _, v, _ in taken if is_remote(v)])]
            store_entries = [builder.entry(Row(first, store[0]), a)
                             for first, a in zip(fixed.stores, [a for _, a, _ in given if is_remote(a)])]
        sources, ends = iter(load_entries), iter(store_entries)
        with builder.recording.within("transforms.io_tile_exchange" if self.is_overlapped else "io_tiles"):
            parts = [ops.host_load(self.bound[x]) if x.aval.memory == HOST else
                     ops.remote_load(self.bound[x], next(sources)) for x, _, _ in taken]
            for (x, _, _), t in zip(given, done):
                if x.aval.memory == HOST:
                    ops.host_store(self.bound[x], t)
                else:
                    ops.remote_store(self.bound[x], next(ends), t)
        return parts

    def near(self, parts: Sequence[Any]) -> List[Any]:
        """Parts, copied to the compute tiles."""
        ops = self.builder.px.ops
        copies = [ops.io_tile_copy(t) for t in parts]
        return [t if tuple(t.shape) == v.aval.shape else ops.reshape(t, v.aval.shape)
                for t, (_, _, v) in zip(copies, self.loaded)]

    def step(self, graph: Any, flow: Flow, fixed: Fixed) -> Flow:
        """Compute a step of the parts that are there; what is to be stored of it goes to the IO tiles."""
        builder, ops = self.builder, self.builder.px.ops
        near = {v: t for (_, _, v), t in zip(self.loaded, flow.parts)}
        for v, x in zip(self.arrays, fixed.arrays):
            near[v] = builder.entry(Row(x, flow.counter[0]), v) if is_remote(v) else ops.reshape(
                ops.dynamic_slice(x, flow.counter[0], [0], [1], True), v.aval.shape)
        consts, far_carry = cut(fixed.consts, len(self.consts))
        carry: Dict[Any, Any] = {**dict(zip(self.carry, flow.carry)), **dict(zip(self.far_carry, far_carry))}
        variables = self.compute.jaxpr.inputs[self.scan.num_consts:self.start]
        stays = sum(map(is_remote, self.compute.jaxpr.outputs[:self.scan.num_carry]))
        far = list(filter(is_remote, self.compute.jaxpr.outputs))
        ends = [end if k < stays else builder.entry(Row(end, flow.counter[0]), a)
                for k, (end, a) in enumerate(zip(fixed.ends, far))]
        outs = ops.call(graph, *consts, *[carry[v] for v in variables if is_tensor(v)],
                        *[near[v] for v in self.order], *ends)
        new, elements = cut(outs, len(self.carry))
        done, rows = [], iter(fixed.rows)
        for (k, a), t in zip(self.outputs, elements):
            if k in self.stored_numbers:
                done.append(t)
            else:
                ops.dynamic_update_(next(rows), flow.counter[0], ops.reshape(t, (1, *a.aval.shape)), [0], [1], True)
        shapes = [builder.layout.entry_shape(a) for _, a, _ in self.stored]
        done = [t if tuple(t.shape) == shape else ops.reshape(t, shape) for t, shape in zip(done, shapes)]
        return flow._replace(counter=self.counted(flow.counter), carry=new, done=[ops.io_tile_copy(t) for t in done])

    def counted(self, counter: Sequence[Any]) -> List[Any]:
        """The number of the next step on the compute tiles."""
        return [self.shifted(t, 1) for t in counter]

    def moved(self, index: Sequence[Any], by: int) -> List[Any]:
        """The number of another step on the IO tiles."""
        with self.builder.recording.within("io_tiles"):
            return [self.shifted(t, by) for t in index]

    def stored_number(self, flow: Flow, by: int) -> List[Any]:
        """The number of the step that is stored; none is needed by streams."""
        return self.moved(flow.number, by) if any(is_remote(a) for _, a, _ in self.stored) else []

    def shifted(self, t: Any, by: int) -> Any:
        """The number of the step that comes so many steps later."""
        px = self.builder.px
        by = -by if self.scan.reverse else by
        number = px.constant(np.array([abs(by)], np.uint32), px.uint32)
        return (px.ops.add if by > 0 else px.ops.sub)(t, number)

    # ------------------------------------------------------------------ the loop
    def lower(self, graphs: Sequence[Any], operands: Sequence[Any], ends: Sequence[Any]) -> List[Any]:
        """The results on the device; `operands` are the tensors of the loop's operands, `ends` where results go."""
        builder, px, scan = self.builder, self.builder.px, self.scan
        tensors = dict(zip([k for k, a in enumerate(self.eqn.inputs) if is_tensor(a)], operands))
        by_input = dict(zip(self.compute.jaxpr.inputs, range(len(self.eqn.inputs))))
        results = dict(zip(filter(is_remote, self.eqn.outputs), ends))
        first = px.constant(np.array([scan.length - 1 if scan.reverse else 0], np.uint32), px.uint32)

        def on_io_tiles(t: Any) -> Any:
            return px.ops.io_tile_copy(t)
        loads = [on_io_tiles(tensors[by_input[v]]) for _, a, v in self.loaded if is_remote(a)]
        stores = [on_io_tiles(results[y]) for y, a, _ in self.stored if is_remote(a)]
        stored = [y for y, _, _ in self.stored]
        rows = [px.ops.init((scan.length, *a.aval.shape), builder.dtype(a.aval.dtype)) for a in self.rows]
        fixed = Fixed(rows, [tensors[by_input[v]] for v in self.consts + self.far_carry],
                      [tensors[by_input[v]] for v in self.arrays], loads, stores,
                      [end for y, end in results.items() if all(y is not x for x in stored)])
        flow = Flow([first] * self.counts, [on_io_tiles(first)], [tensors[by_input[v]] for v in self.carry], [], [])
        if not self.is_overlapped:
            flow = self.repeated(graphs[1], scan.length, flow, fixed)
        else:
            flow = flow._replace(parts=self.near(self.exchange(flow.number, [], [], fixed, loads=True)))
            flow = flow._replace(number=self.moved(flow.number, 1))
            loaded = self.exchange(flow.number, [], [], fixed, loads=True)
            flow = self.step(graphs[0], flow, fixed)
            flow = flow._replace(parts=self.near(loaded), number=self.moved(flow.number, 1))
            if scan.length > 2:
                flow = self.repeated(graphs[1], scan.length - 2, flow, fixed)
            self.exchange([], self.stored_number(flow, -2), flow.done, fixed, loads=False)
            flow = self.step(graphs[0], flow, fixed)
            self.exchange([], self.stored_number(flow, -1), flow.done, fixed, loads=False)
        return [*flow.carry, *rows]

    def repeated(self, graph: Any, count: int, flow: Flow, fixed: Fixed) -> Flow:
        """What comes of so many turns."""
        carried = [t for group in flow for t in group]
        outs = self.builder.px.ops.repeat(graph, count, *carried, *[t for group in fixed for t in group])
        return self.flow(outs)
