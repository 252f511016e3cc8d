"""From a jaxpr to a PopXL Ir: one graph per jaxpr, in the order of its equations.

PopXL has no tensors without elements. A value of size 0 gets none: equations that give nothing else are left out, and
those that take one are replaced by what they come to (`Builder.without_empty`).
"""
from __future__ import annotations

import inspect
import itertools
import keyword
import math
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ..trace.aval import BY_NAME, DEVICE, FLOAT8, HOST, REMOTE, SHORT, Aval, AxisNames
from ..trace.errors import InputError, LoweringError, located, message, user_source
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.primitive import Primitive, eval_results
from ..trace.prims.collectives import Collective, Pvary
from ..trace.prims.effects import Print
from ..trace.prims.memory import Parts, Place
from ..trace.prims.remote import Access, RemoteBuffer, RemoteRead, RemoteWrite
from ..trace.prims.shaping import Broadcast
from ..trace.prims.structural import Concat, Pad
from ..transforms.bodies import GraphInput, Row, Subgraph, is_far, is_remote
from ..transforms.shard import Axes, Spec, spec_names
from . import collectives
from .handles import first_entry, made_in_place, with_handles
from .instances import LocalMesh, here
from .memory import (
    Layout,
    by_entries,
    same_entries,
    subgraphs,
    tied,
    wholes,
    with_own_entries,
    with_plain_control,
    with_results_near,
    with_state_stored,
)
from .pipeline import Pipeline, goes_through_io_tiles
from .placement import Streamed, placed
from .record import Body, Recording
from .replicas import groups, localised
from .target import Target
from .transfer import Stored, Stream

#: The remote buffer or stream that a value outside of the device is in.
Bound = Dict[Any, Any]


class Signature(NamedTuple):
    """What the inputs and outputs of a program's jaxpr are called, and which of them are its state.

    The jaxpr's first outputs are the new values of the inputs that `state` numbers; `results` names the others.
    """

    inputs: Tuple[str, ...]
    state: Tuple[int, ...]
    results: Tuple[str, ...]


class Built(NamedTuple):
    """An Ir and what goes in and out of it; None stands where nothing is to be transferred.

    `loads` has a stream for each input of the jaxpr that is not state and that something reads, `variables` the
    variables of each leaf of the state that changes or is read, `stores` a stream for each result that is not empty.
    Inputs and outputs are cut over the mesh as `in_specs` and `out_specs` say; this process has `local` of it.
    """

    ir: Any
    loads: Tuple[Optional[Stream], ...]
    variables: Tuple[Optional[Stored], ...]
    stores: Tuple[Optional[Stream], ...]
    main: Body
    io_tiles: int
    local: LocalMesh
    in_specs: Tuple[Spec, ...]
    out_specs: Tuple[Spec, ...]
    replica_state: bool

    @property
    def mesh(self) -> Axes:
        """The axes of all replicas."""
        return self.local.whole

    @property
    def transfers(self) -> int:
        """How many elements of a stream a run takes at most."""
        return int(self.ir.num_host_transfers)

    def unused(self) -> Dict[Any, np.ndarray]:
        """Arrays for the output streams that are no results."""
        results = {store.stream for store in self.stores if store is not None}
        lead = [n for n in (self.transfers, self.local.size) if n > 1]
        return {s: np.empty((*lead, *s.shape), s.dtype.as_numpy())
                for s in self.ir.get_all_d2h_streams() if s not in results}


def build(jaxpr: Jaxpr, signature: Signature, target: Target, io_tiles: int = 0, replica_state: bool = False) -> Built:
    """The Ir of a jaxpr, with so many IO tiles; with `replica_state`, state can be read from each replica.

    Raises LoweringError, with the user's line, if a lower rule fails or breaks its contract.
    """
    if any(c is None for c in jaxpr.constants):
        raise InputError(message("this jaxpr was parsed without its constants",
                                 "way out: parse_jaxpr(text, constants)", at=user_source(2)))
    state, whole, sharded = signature.state, jaxpr.in_avals, jaxpr
    jaxpr, in_specs, out_specs, mesh = localised(with_results_near(jaxpr, state), state)
    local = here(sharded, mesh)
    jaxpr = collectives.sums_scattered(jaxpr)
    jaxpr, cut_loads, cut_stores = placed(with_plain_control(jaxpr), state)
    jaxpr, written = with_state_stored(with_own_entries(with_handles(jaxpr)), state)
    layout = Layout(jaxpr)
    for new, old in written.items():
        layout.tie(new, old)
    jaxpr = by_entries(jaxpr, layout)
    builder = Builder(target, layout, io_tiles, local, replica_state)
    px = builder.px
    ir = builder.ir
    new_state, results = jaxpr.outputs[:len(state)], jaxpr.outputs[len(state):]
    on_device = set(state)
    read = variables_read(jaxpr)
    read.update(results)
    read.update(new for i, new in zip(state, new_state) if new is not jaxpr.inputs[i])
    with np.errstate(all="ignore"), ir.main_graph, target.module.in_sequence():
        loads: List[Optional[Stream]] = [None] * len(jaxpr.inputs)
        for i, v in enumerate(jaxpr.inputs):
            if v in read and v.aval.size and i not in on_device:
                loads[i] = builder.stream(px.h2d_stream, v, signature.inputs[i], in_specs[i], cut_loads.get(i))
        stores = [builder.stream(px.d2h_stream, a, name, out_specs[i], cut_stores.get(i)) if a.aval.size else None
                  for i, (a, name) in enumerate(zip(results, signature.results), len(state))]
        transfers = max([s.parts for s in (*loads, *stores) if s is not None], default=1)
        if transfers > 1:
            ir.num_host_transfers = transfers
        env: Dict[Atom, Any] = {}
        bound: Bound = {}
        variables: List[Optional[Stored]] = []
        for i, new in zip(state, new_state):
            old = jaxpr.inputs[i]
            stored = builder.stored(old, signature.inputs[i], whole[i], in_specs[i], bound) if old.aval.size and (
                old in read or new is not old) else None
            variables.append(stored)
            env[old] = None if stored is None else 0 if is_far(old) else stored.variables[0]
        for v, load in zip(jaxpr.inputs, loads):
            if load is not None:
                if v.aval.memory == HOST:
                    bound[v] = load.stream
                else:
                    env[v] = px.ops.host_load(load.stream)
        for a, store in zip(results, stores):
            if store is not None and a.aval.memory == HOST:
                bound[a] = store.stream
        bound.update((new, bound[old]) for new, old in written.items())
        builder.equations(jaxpr, env, builder.bind(jaxpr, bound))
        for a, store in zip(results, stores):
            if store is not None and a.aval.memory != HOST:
                px.ops.host_store(store.stream, builder.tensor(a, jaxpr, env))
        news = [(s.variables[0], builder.tensor(new, jaxpr, env)) for s, new in zip(variables, new_state)
                if s is not None and s.aval.memory == DEVICE]
        updates = [(v, new) for v, new in news if new is not v]
        for v, new in values_before(px, updates):
            px.ops.var_updates.copy_var_update_(v, new)
        if not updates and all(s is None for s in stores):
            # PopXL makes no session of an Ir without ops.
            px.ops.host_store(px.d2h_stream((), px.bool, name="nothing"), px.constant(False, px.bool))
    return Built(ir, tuple(loads), tuple(variables), tuple(stores), builder.recording.main, io_tiles, local,
                 in_specs, out_specs, replica_state)


def variables_read(jaxpr: Jaxpr) -> Set[Atom]:
    """What the equations take that have something to compute."""
    return {a for eqn in jaxpr.eqns if does_something(eqn) for a in eqn.inputs}


def does_something(eqn: Eqn) -> bool:
    """Whether an equation has an effect or a result with elements."""
    return any(v.aval.size for v in eqn.outputs) or eqn.primitive.has_effect


def values_before(px: Any, updates: Sequence[Tuple[Any, Any]]) -> Iterator[Tuple[Any, Any]]:
    """The updates `(variable, new value)`, with a copy where the new value is a variable that is updated too."""
    written = {id(v) for v, _ in updates}
    copies = {id(new): px.ops.identity(new) for _, new in updates if id(new) in written}
    for v, new in updates:
        yield v, copies.get(id(new), new)


class Builder:
    """Builds the graphs of one Ir."""

    def __init__(self, target: Target, layout: Layout, io_tiles: int, local: LocalMesh, replica_state: bool) -> None:
        self.module = target.module
        self.local, self.mesh, self.replica_state = local, local.whole, replica_state
        self.groups: Dict[AxisNames, Any] = {}
        self.io_tiles = io_tiles
        self.layout = layout
        self.recording = Recording(target.module)
        self.px = self.recording.px
        self.ir = target.module.Ir(replication=local.replication)
        if io_tiles:
            self.ir._pb_ir.getSessionOptions().numIOTiles = io_tiles
        self.create_graph = self.recording.wrap("create_graph", self.new_graph)
        self.graphs: Dict[Any, Any] = {}  # by the sub-graph and the buffers and streams that its far values are in
        self.graph_names: Dict[int, str] = {}  # by the graph's id
        self.names: Set[str] = set()
        self.handles: Dict[RemoteBuffer, Any] = {}
        self._dtypes: Dict[np.dtype, Any] = {}

    def dtype(self, dtype: np.dtype) -> Any:
        """PopXL's dtype for a NumPy dtype."""
        found = self._dtypes.get(dtype)
        if found is None:
            name = SHORT[dtype].replace("f8", "float8") if dtype in FLOAT8 else dtype.name
            found = self._dtypes[dtype] = getattr(self.px, name)
        return found

    def constant(self, value: np.ndarray) -> Any:
        """A constant of the current graph."""
        dtype = self.dtype(value.dtype)
        if value.dtype in FLOAT8:
            return self.px.constant(value.view(dtype.as_numpy()), dtype)
        return self.px.constant(value if value.ndim else short_scalar(value), dtype)

    def tensor(self, a: Atom, jaxpr: Jaxpr, env: Dict[Atom, Any]) -> Any:
        """The tensor of an atom that is not empty, made now if it is a constant."""
        found = env.get(a)
        if found is None:
            if isinstance(a, Literal):
                return self.constant(a.value)
            found = env[a] = self.constant(jaxpr.constants[jaxpr.constvars.index(a)])  # type: ignore[arg-type]
        return found

    # ------------------------------------------------------------------ far values
    def stream(self, make: Any, a: Atom, name: str, spec: Spec, cut: Optional[Streamed]) -> Stream:
        """A stream for an input or a result of the program, which may be streamed in parts."""
        shape, parts = a.aval.shape, 1
        if isinstance(a, Var) and a.aval.memory == HOST:
            shape, parts = self.layout.entry_shape(a), self.layout.count(a)
        axis, reverse = cut or (None, False)
        return Stream(make(shape, self.dtype(a.aval.dtype), name=name), parts, axis, reverse, spec, self.local.axes)

    def buffer(self, v: Var) -> Any:
        """A remote buffer for a value."""
        return self.px.remote_buffer(self.layout.entry_shape(v), self.dtype(v.aval.dtype), self.layout.count(v))

    def stored(self, v: Var, name: str, aval: Aval, spec: Spec, bound: Bound) -> Stored:
        """The variables of a leaf of the state, of this type, and the buffer of those in remote memory."""
        px, dtype = self.px, self.dtype(v.aval.dtype)
        lead: Tuple[int, ...] = ()
        options: Dict[str, Any] = {}
        every = frozenset(axis for axis, _ in self.mesh)
        own = every if self.replica_state else spec_names(spec)
        aval = self.local.aval(aval, spec)
        rest: Tuple[Any, ...] = aval, spec, self.local, self.replica_state
        if own:  # replicas with the same part are one group
            lead = (math.prod(size for axis, size in self.mesh if axis in own),)
            options["replica_grouping"] = self.group_of(every - own)
        if not is_far(v):
            start = np.zeros((*lead, *v.aval.shape), dtype.as_numpy())
            return Stored((px.variable(start, dtype, name=name, **options),), *rest)
        buffer = bound[v] = self.buffer(v)
        start = np.zeros((*lead, *self.layout.entry_shape(v)), dtype.as_numpy())
        count = self.layout.count(v)
        return Stored(tuple([px.remote_variable(start, buffer, i, dtype, name=name if count == 1 else f"{name}_{i}",
                                                **options) for i in range(count)]), *rest)

    def meeting(self, eqn: Eqn, scattered: Dict[Atom, Atom], jaxpr: Jaxpr, env: Dict[Atom, Any]) -> Any:
        """The result of a collective; `scattered` are sums of which only one's own element is taken."""
        primitive: Any = eqn.primitive
        summed = scattered.get(eqn.inputs[0]) if eqn.inputs else None
        if summed is not None:
            return collectives.reduce_scattered(primitive, self.px, self.group_of, self.tensor(summed, jaxpr, env))
        return collectives.lowered(primitive, self.px, self.mesh, self.group_of,
                                   *[self.tensor(a, jaxpr, env) for a in eqn.inputs])

    def meetings(self, jaxpr: Jaxpr) -> List[AxisNames]:
        """The axes along which replicas meet in the collectives of a jaxpr."""
        return [names for eqn in jaxpr.eqns if isinstance(eqn.primitive, Collective)
                for names in collectives.meetings(eqn.primitive, self.mesh)]

    def group_of(self, names: AxisNames) -> Any:
        """The replica grouping of the replicas that differ along these axes of the mesh alone."""
        found = self.groups.get(names)
        if found is None:
            strided, assignments = groups(self.mesh, names)
            if strided is None:
                make = self.recording.wrap("ir.replica_grouping_from_assignments",
                                           self.ir.replica_grouping_from_assignments)
                found = make(assignments)
            else:
                found = self.recording.wrap("ir.replica_grouping", self.ir.replica_grouping)(*strided)
            self.groups[names] = found
        return found

    def bind(self, jaxpr: Jaxpr, given: Bound) -> Bound:
        """The buffer or stream of each far value of a jaxpr; those that are not given get a buffer of their own."""
        bound = dict(given)
        whole = wholes(jaxpr)
        bound.update((whole[a], bound[a]) for a in given if a in whole)
        bound.update((v, self.handle(write.primitive))
                     for v, write in made_in_place(jaxpr).items())
        for eqn in jaxpr.eqns:
            if isinstance(eqn.primitive, RemoteRead):
                bound[eqn.outputs[0]] = self.handle(eqn.primitive)
            for v in eqn.outputs:
                if v in whole:
                    bound[v] = bound[whole[v]]
                elif is_far(v) and v not in bound:
                    bound[v] = self.buffer(v)
        return bound

    def handle(self, access: Any) -> Any:
        """The program's own of a buffer that the user knows."""
        buffer = access.buffer
        found = self.handles.get(buffer)
        if found is None:
            found = self.handles[buffer] = self.buffer(self.layout.handle(access))
            self.recording.main.wishes[id(found)] = identifier(buffer.name) or "buffer"
        return found

    def row_entry(self, access: Eqn, x: Any, jaxpr: Jaxpr, env: Dict[Atom, Any]) -> Any:
        """The first entry of the row of a buffer in which a value lies that an equation reads or writes."""
        row = access.inputs[0]
        self.recording.main.accesses.append((self.handle(access.primitive), access))
        known = row if isinstance(row, Literal) else self.tensor(row, jaxpr, env)
        return first_entry(self.px, access, known, self.layout.count(x))

    def entry(self, where: Any, a: Any) -> Any:
        """The number of a value's first entry, as a tensor unless it is known."""
        if not isinstance(where, Row):
            return where
        px, ops, count = self.px, self.px.ops, self.layout.count(a)
        step = where.step if count == 1 else ops.mul(where.step, px.constant(np.array([count], np.uint32), px.uint32))
        return ops.add(where.first, step)

    def as_tensor(self, entry: Any) -> Any:
        """An entry's number as a tensor."""
        return self.px.constant(np.array([entry], np.uint32), self.px.uint32) if isinstance(entry, int) else entry

    def move(self, eqn: Eqn, jaxpr: Jaxpr, env: Dict[Atom, Any], bound: Bound) -> None:
        """Lower a move of a value that is one entry."""
        (x,), (y,) = eqn.inputs, eqn.outputs
        ops = self.px.ops
        t: Any = ops.remote_load(bound[x], env[x]) if x.aval.memory == REMOTE else self.tensor(x, jaxpr, env)
        if is_far(x) and tuple(t.shape) != x.aval.shape:
            t = ops.reshape(t, x.aval.shape)
        if y.aval.memory == DEVICE:
            env[y] = t
            return
        if tuple(t.shape) != self.layout.entry_shape(y):
            t = ops.reshape(t, self.layout.entry_shape(y))
        if y.aval.memory == HOST:
            ops.host_store(bound[y], t)
        else:
            ops.remote_store(bound[y], env[y], t)

    # ------------------------------------------------------------------ equations
    def equations(self, jaxpr: Jaxpr, env: Dict[Atom, Any], bound: Bound) -> None:
        """Lower all equations in order, keeping their results in `env`.

        Of a value in remote memory that is the number of its first entry in the buffer that it is bound to.
        """
        recording, px = self.recording, self.px
        made, scattered = made_in_place(jaxpr), collectives.scatters(jaxpr) if self.mesh else {}
        for eqn in jaxpr.eqns:
            results = [v for v in eqn.outputs if v.aval.size and v.aval.memory == DEVICE]
            if not does_something(eqn):
                continue
            recording.source = eqn.source
            primitive: Any = eqn.primitive
            env.update((v, env[a]) for a, v in same_entries(eqn))
            if isinstance(primitive, Access):
                if isinstance(primitive, RemoteWrite) and all(eqn is not write for write in made.values()):
                    raise LoweringError(message("the value of a write to a buffer is not made there: a fault of popfn, "
                                                "please report the program", at=eqn.source))
                env.update((v, self.row_entry(eqn, v, jaxpr, env)) for v in eqn.outputs)
                continue
            env.update((v, self.row_entry(made[v], v, jaxpr, env)) for v in eqn.outputs if v in made)
            for v in eqn.outputs:
                if is_remote(v):
                    env.setdefault(v, 0)
            if isinstance(primitive, (Parts, Pvary)) and is_far(eqn.inputs[0]):
                continue
            if isinstance(primitive, Collective):
                if eqn.outputs[0] not in scattered:
                    env.update(zip(results, self.checked(eqn, eqn.inputs, results, self.meeting(
                        eqn, scattered, jaxpr, env))))
                continue
            if isinstance(primitive, Place):
                self.move(eqn, jaxpr, env, bound)
                continue
            collectives.check_branch(eqn)
            atoms: Sequence[Atom] = eqn.inputs
            jaxprs = getattr(primitive, "jaxprs", None)
            if not all(a.aval.size for a in atoms):
                if jaxprs is None and not any(a.aval.size for a in atoms):
                    values = eval_results(primitive, [np.zeros(a.aval.shape, a.aval.dtype) for a in atoms])
                    env.update((v, self.constant(x)) for v, x in zip(eqn.outputs, values) if x.size)
                    continue
                primitive, atoms = without_empty(eqn)
            operands = [self.as_tensor(env[a]) if is_remote(a) else env[a] if a in env else self.tensor(a, jaxpr, env)
                        for a in atoms if a.aval.memory != HOST]
            try:
                if jaxprs is None:
                    got = primitive.lower(px, *operands)
                else:
                    graphs = self.graphs_of(eqn, operands, bound)
                    ends = [self.as_tensor(env[v]) for v in eqn.outputs if is_remote(v)]
                    got = Pipeline(self, eqn, bound).lower(graphs, operands, ends) if goes_through_io_tiles(eqn) else \
                        primitive.lower(px, *operands, *ends, graphs=graphs)
            except LoweringError as e:
                raise located(e, eqn.source) from e.__cause__
            except Exception as e:
                raise LoweringError(message(
                    f"the lower rule of {primitive.name} failed: {type(e).__name__}: {e}", call_note(primitive, atoms),
                    at=eqn.source)) from e
            if isinstance(primitive, Print):  # it gives back what the program goes on with
                env.update((a, t) for a, t in zip(atoms, got) if isinstance(a, Var))
                continue
            env.update(zip(results, self.checked(eqn, atoms, results, got)))
        recording.source = None

    def checked(self, eqn: Eqn, atoms: Sequence[Atom], results: Sequence[Var], got: Any) -> Sequence[Any]:
        """The tensors that a rule returned. Raises LoweringError if they are not of the types of its results."""
        tensors = (got,) if not isinstance(got, (tuple, list)) else got
        if len(tensors) == len(results):
            for t, v in zip(tensors, results):
                if getattr(t, "shape", None) != v.aval.shape or t.dtype != self.dtype(v.aval.dtype):
                    break
            else:
                return tensors
        raise LoweringError(message(
            f"the lower rule of {eqn.primitive.name} gives {', '.join(map(type_text, tensors)) or 'nothing'}, "
            f"but the result is {', '.join(str(v.aval.strong) for v in results)}",
            call_note(eqn.primitive, atoms), "the fault is in the rule, not in the program", at=eqn.source))

    # ------------------------------------------------------------------ sub-graphs
    def graphs_of(self, eqn: Eqn, operands: Sequence[Any], bound: Bound) -> Tuple[Any, ...]:
        """The graphs that an equation calls. `operands` are those of the call, if it is known."""
        if goes_through_io_tiles(eqn):
            if not self.io_tiles:
                mode = eqn.primitive.io_mode  # type: ignore[attr-defined]
                raise LoweringError(message(f"io_mode={mode!r} needs IO tiles, and the program has none",
                                            "way out: pf.lower(..., io_tiles=32), or io_mode='compute'", at=eqn.source))
            return Pipeline(self, eqn, bound).graphs()
        return tuple([self.graph(g, operands, {inner: bound[outer] for inner, outer in tied(g.jaxpr, eqn)})
                      for g in subgraphs(eqn)])

    def graph(self, subgraph: Subgraph, operands: Sequence[Any], given: Bound) -> Any:
        """A graph, made where it is first called, in the main graph; `given` are the buffers and streams it knows."""
        jaxpr = subgraph.jaxpr
        key = subgraph, tuple([given.get(a) for a in (*jaxpr.inputs, *jaxpr.outputs)])
        found = self.graphs.get(key)
        if found is None:
            bound = self.bind(jaxpr, given)
            nested = {id(g): g for eqn in jaxpr.eqns if does_something(eqn) for g in self.graphs_of(eqn, (), bound)}
            inputs = subgraph.inputs()
            stand_in = type(subgraph) is Subgraph and fits(operands, inputs)  # others take more, in another order
            like = list(operands) if stand_in and self.recording.body is self.recording.main else None

            def equations(env: Dict[Atom, Any], destinations: Sequence[Any]) -> List[Any]:
                for v in jaxpr.inputs:
                    if is_remote(v) and v in env:  # a branch takes only what it reads
                        env[v] = self.entry(env[v], v)
                    elif v.aval.size and v.aval.memory == HOST:  # each execution takes one element, whoever reads it
                        env[v] = self.px.ops.host_load(bound[v])
                whole = wholes(jaxpr)
                env.update((whole.get(a, a), self.entry(end, a))
                           for a, end in zip(filter(is_remote, jaxpr.outputs), destinations))
                self.equations(jaxpr, env, bound)
                return [self.tensor(a, jaxpr, env) for a in jaxpr.outputs if a.aval.size and not is_far(a)]
            found = self.new_graph_of(
                key, jaxpr.name, inputs, list(nested.values()),
                [*(bound[a] for a in far_values(jaxpr)), *(self.group_of(names) for names in self.meetings(jaxpr))],
                lambda tensors: subgraph.emit(self.px, equations, tensors), like)
        return found

    def new_graph_of(self, key: Any, name: str, inputs: Sequence[GraphInput], called: Sequence[Any],
                     places: Sequence[Any], emit: Callable[[Sequence[Any]], Sequence[Any]],
                     like: Optional[Sequence[Any]] = None) -> Any:
        """The graph of this key, made now if there is none.

        It takes inputs, and uses graphs that it calls and buffers and streams; `emit` gives its outputs. `like` are
        tensors of the inputs' types.
        """
        found = self.graphs.get(key)
        if found is None:
            places = list({id(x): x for x in places}.values())
            if like is None:
                like = [self.px.TensorSpec(i.shape, self.dtype(i.dtype)) for i in inputs]
            body = Body(unique(identifier(name) or "graph", self.names))
            taken: Set[str] = set()
            names = [*(i.name for i in inputs), *(f"{self.graph_names[id(g)]}_graph" for g in called),
                     *("buffer" if hasattr(x, "entries") else "group" if hasattr(x, "group_size") else "stream"
                       for x in places)]
            body.param_names = tuple([unique(identifier(name), taken) for name in names])
            body.by_reference = tuple([i.by_reference for i in inputs] + [False] * (len(called) + len(places)))

            def fill(tensors: Sequence[Any]) -> Sequence[Any]:
                return emit(tensors[:len(inputs)])
            found = self.graphs[key] = self.create_graph(body, fill, *like, *called, *places)
            self.graph_names[id(found)] = body.name
        return found

    def new_graph(self, body: Body, fill: Callable[[Sequence[Any]], Sequence[Any]], *args: Any) -> Any:
        """`ir.create_graph` of a function that makes the ops of a graph."""
        def lowered(*params: Any) -> Tuple[Any, ...]:
            with self.recording.inside(body):
                body.params = params
                body.outputs = self.own(fill(params))
            return body.outputs

        lowered.__name__ = lowered.__qualname__ = body.name
        lowered.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                              annotation=self.module.TensorByRef if by_reference else inspect.Parameter.empty)
            for name, by_reference in zip(body.param_names, body.by_reference)])
        return self.ir.create_graph(lowered, *args)

    def own(self, tensors: Sequence[Any]) -> Tuple[Any, ...]:
        """The outputs of a graph, each a tensor of its own that the graph makes or takes."""
        constants = self.recording.body.constants.values()
        outputs: List[Any] = []
        for t in tensors:
            shared = any(t is u for u in outputs) or any(t is c for c in constants)
            outputs.append(self.px.ops.identity(t) if shared else t)
        return tuple(outputs)


# ---------------------------------------------------------------------------- small things
def far_values(jaxpr: Jaxpr) -> List[Var]:
    """The far values that a graph moves itself: for their buffers and streams."""
    moved = [a for eqn in jaxpr.eqns if isinstance(eqn.primitive, Place) or goes_through_io_tiles(eqn)
             for a in (*eqn.inputs, *eqn.outputs)]
    streamed = [v for v in jaxpr.inputs if v.aval.memory == HOST]
    return [a for a in (*streamed, *moved) if isinstance(a, Var) and is_far(a)]


def without_empty(eqn: Eqn) -> Tuple[Primitive, Sequence[Atom]]:
    """A primitive and operands that give the same result, none of them without elements.

    Raises LoweringError if it is not known what the primitive makes of an empty operand beside others.
    """
    full = [a for a in eqn.inputs if a.aval.size]
    # A graph has no empty inputs either, and there is nothing to print of them.
    if isinstance(eqn.primitive, (Concat, Print)) or hasattr(eqn.primitive, "jaxprs"):
        return eqn.primitive, full
    if isinstance(eqn.primitive, Pad):  # there is nothing but the padding
        return Broadcast(eqn.outputs[0].aval.shape), full
    raise LoweringError(message(
        f"{eqn.primitive.name} takes an operand without elements, which PopXL does not have",
        call_note(eqn.primitive, eqn.inputs), "way out: leave the empty array out of this operation", at=eqn.source))


def call_note(primitive: Primitive, atoms: Sequence[Atom]) -> str:
    """For an error: the call of a rule."""
    return f"the rule: {type(primitive).__name__}.lower of {', '.join(str(a.aval.strong) for a in atoms) or 'nothing'}"


def type_text(t: Any) -> str:
    """The type of what a rule returned, written like an aval."""
    if not hasattr(t, "shape") or not hasattr(t, "dtype"):
        return f"a {type(t).__name__}"
    name = str(getattr(t.dtype, "name", t.dtype))
    short = SHORT[BY_NAME[name]] if name in BY_NAME else name
    return f"{short}[{','.join(map(str, t.shape))}]"


def short_scalar(value: np.ndarray) -> Any:
    """A scalar as the shortest Python number that stands for it: 0.1 for float32's 0.100000001."""
    number = value.item()
    if value.dtype.kind == "f":
        short = float(str(value[()]))
        return short if value.dtype.type(short) == value or number != number else number
    return number


def fits(tensors: Sequence[Any], inputs: Sequence[GraphInput]) -> bool:
    """Whether tensors have the shapes of inputs, so that they can stand for them."""
    return len(tensors) == len(inputs) and all(t.shape == i.shape for t, i in zip(tensors, inputs))


def identifier(text: str) -> str:
    """A path or another text as a Python identifier: `params['w1']` is params_w1."""
    name = re.sub(r"\W+", "_", text).strip("_")
    return f"_{name}" if name[:1].isdigit() else f"{name}_" if keyword.iskeyword(name) else name


def unique(name: str, taken: Set[str]) -> str:
    """The name, with a number behind it if it is taken; it is taken from now on."""
    new = name if name not in taken else next(
        n for n in (f"{name}_{i}" for i in itertools.count(1)) if n not in taken)
    taken.add(new)
    return new
