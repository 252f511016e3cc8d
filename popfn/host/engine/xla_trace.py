"""Tracing of graphs into JAX: calls, loops and branches, streams, remote buffers.

`Tracing` follows the ops of a graph and applies each to arrays of `jax.numpy`. A value that may differ between replicas
has a leading axis for them, all others are computed once. Which are which is found by a walk that computes nothing
(`abstractly`), because a loop must know it before its body is traced.
"""

import contextlib
import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from popfn.host.engine import xla_collectives, xla_faults, xla_parts
from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import storage_dtype
from popfn.host.engine.ranges import offsets_within
from popfn.host.engine.stores import store_counts
from popfn.host.engine.variance import collective_in
from popfn.host.engine.xla_sharing import StandIn, stand_in
from popfn.host.engine.xla_storage import Cell, Value, View
from popfn.host.engine.xla_values import compute
from popfn.host.ops._print import print_value
from popfn.host.tensor import Constant

# A graph that is called at least so often stays a function of the program, which saves time to compile it again.
_KEPT_CALLS = 3
# Unless it is small: a function that is called is not fused with what is around it.
_HEAVY = frozenset(["matmul", "matmul_pow2scaled", "conv", "conv_pow2scaled", "conv_transpose"])
# A graph may be called in the place of another if it is at most so many times as much work.
_STAND_IN_WORK = 1.5


class Facts:
    """What is known of the graphs of a program before it is traced."""

    def __init__(self, main: Any) -> None:
        self.graphs: Dict[Any, None] = {}
        self.calls: Dict[Any, int] = {}  # how many ops call a graph
        self.numbers: Dict[Any, int] = {}  # of the ops that may find something wrong with a run
        self.stores = store_counts(main)
        self.within = offsets_within(main)  # the ops on remote buffers whose offsets are in range whatever happens
        self._effects: Dict[Any, Dict[Any, None]] = {}
        self._works: Dict[Any, int] = {}
        self._stand_ins: Dict[Any, Optional[StandIn]] = {}
        self._visit(main)

    def _visit(self, graph: Any) -> None:
        if graph in self.graphs:
            return
        self.graphs[graph] = None
        for op in graph.ops:
            if op.kind in xla_faults.REMOTE or self.must_agree(op):
                self.numbers[op] = len(self.numbers)
            for called in op.called:
                self.calls[called] = self.calls.get(called, 0) + 1
                self._visit(called)

    def effects(self, graph: Any) -> Dict[Any, None]:
        """The keys of the state that a graph and those it calls use besides their inputs, in order."""
        found = self._effects.get(graph)
        if found is None:
            found = self._effects[graph] = {}
            for op in graph.ops:
                if op.kind in ("host_load", "host_store"):
                    found[op.kind, op.attrs["stream"]] = None  # the position
                if op.kind == "host_store":
                    found["stored", op.attrs["stream"]] = None
                    found["done", op.attrs["stream"]] = None
                elif op.kind in xla_faults.REMOTE:
                    found["remote", op.attrs["buffer"]] = None
                    offset = op.inputs[-1]
                    if op not in self.within and not xla_faults.is_within(
                        op, offset.data if isinstance(offset, Constant) else None
                    ):
                        found[xla_faults.KEY] = None
                elif self.must_agree(op):
                    found[xla_faults.KEY] = None
                for called in op.called if op.kind != "remote_code_load" else ():
                    found.update(self.effects(called))
        return found

    def must_agree(self, op: Any) -> bool:
        """Whether an op is a conditional whose condition must be equal on all replicas."""
        return op.kind == "conditional" and collective_in(op) is not None

    def is_kept(self, graph: Any) -> bool:
        """Whether calls of a graph are calls in the compiled program too."""
        return self.calls.get(graph, 0) >= _KEPT_CALLS and not self.effects(graph) and self._work(graph) > 0

    def _work(self, graph: Any) -> int:
        """How many multiplications its heavy ops make."""
        if graph not in self._works:
            total = 0
            for op in graph.ops:
                total += sum(map(self._work, op.called))
                if op.kind in _HEAVY:
                    x, y = op.inputs[:2]
                    each = x.shape[-1] if op.kind.startswith("matmul") else math.prod(y.shape[1:])
                    total += each * math.prod(op.outputs[0].shape)
            self._works[graph] = total
        return self._works[graph]

    def stand_in(self, graph: Any) -> Optional[StandIn]:
        """A kept graph to call in the place of this one, if there is one that is not much more work."""
        if graph not in self._stand_ins:
            limit = 0.0 if self.is_kept(graph) or self.effects(graph) else _STAND_IN_WORK * self._work(graph)
            wholes = [whole for whole in self.graphs if self.is_kept(whole) and self._work(whole) <= limit]
            self._stand_ins[graph] = next(filter(None, (stand_in(graph, whole) for whole in wholes)), None)
        return self._stand_ins[graph]


class Tracing:
    """One trace of a program.

    Args:
        facts: Those of the program.
        replicas: The number of replicas.
        is_spread: Whether the replicas are on several devices.
        is_abstract: Whether to compute nothing but which values are mapped and which state is written.
    """

    def __init__(self, facts: Facts, replicas: int, is_spread: bool, is_abstract: bool = False) -> None:
        self.facts = facts
        self.replicas = replicas
        self.is_spread = is_spread
        self.is_abstract = is_abstract
        # Positions in streams, what was stored to them and how many slots that filled, remote buffers, the fault.
        self.effects: Dict[Any, Cell] = {}
        self.loaded: Dict[Any, Tuple[Value, int]] = {}  # the data of streams, and how many transfers it is
        self.slots: Dict[Any, int] = {}  # the number of transfers of the streams that are stored to
        self.makes_parts = False  # whether kept calls are compiled on their own
        self.constants: Dict[Any, Any] = {}  # arrays for constants that are arguments of the program
        self.print_errors: List[BaseException] = []  # of the runs
        self.taking: Optional[Value] = None  # inside a branch that not all replicas take: which ones do
        self._kept: Dict[Any, Tuple[Any, List[bool]]] = {}

    # Values

    def apply(self, fn: Callable[..., Sequence[Any]], values: Sequence[Value], count: int) -> List[Value]:
        """Apply a function of the arrays of one replica that returns `count` arrays."""
        mapped = [value.mapped for value in values]
        if self.is_abstract:
            return [Value(None, any(mapped))] * count
        arrays = [value.array for value in values]
        if any(mapped):
            results = jax.vmap(lambda *xs: tuple(fn(*xs)), [0 if m else None for m in mapped])(*arrays)
            return [Value(x, True) for x in results]
        return [Value(x) for x in fn(*arrays)]

    def one(self, fn: Callable[..., Any], *values: Value) -> Value:
        """Apply a function that returns one array."""
        return self.apply(lambda *xs: (fn(*xs),), values, 1)[0]

    def across(self, fn: Callable[[Any], Any], value: Value, mapped: bool) -> Value:
        """Apply a function of an array with or without the axis of the replicas, as it is."""
        return Value(None if self.is_abstract else fn(value.array), mapped)

    def promoted(self, value: Value, mapped: bool) -> Value:
        """The value with an axis for the replicas, if `mapped`."""
        if value.mapped or not mapped:
            return value
        if self.is_abstract:
            return Value(None, True)
        array = value.array
        return Value(jnp.broadcast_to(array, (self.replicas,) + np.shape(array)), True)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A block that traces what runs inside a loop or a branch."""
        was, self.makes_parts = self.makes_parts, False
        try:
            yield
        finally:
            self.makes_parts = was

    @contextlib.contextmanager
    def abstractly(self) -> Iterator[None]:
        """A block in which nothing is computed and no state is changed."""
        was, self.is_abstract = self.is_abstract, True
        effects = dict(self.effects)
        try:
            yield
        finally:
            self.is_abstract = was
            self.effects = effects

    # Graphs

    def effects_of(self, *graphs: Any) -> List[Any]:
        """The keys of the state that graphs use besides their inputs, as far as this trace has that."""
        keys = dict.fromkeys(key for graph in graphs for key in self.facts.effects(graph))
        return [key for key in keys if key in self.effects]

    def follow(self, graph: Any, env: Dict[Any, Any]) -> None:
        """Trace the ops of a graph. `env` has the storage of its inputs, and gets that of all its tensors."""
        for op in graph.ops:
            special = SPECIAL.get(op.kind)
            if special is not None:
                special(self, op, env)
            elif KERNELS[op.kind].writes:
                target = self.storage(op.inputs[0], env)
                target.write(self.computed(op, [self.read(t, env) for t in op.inputs])[0])
                env[op.outputs[0]] = target
            elif op.kind.endswith("_"):
                env[op.outputs[0]] = View(self, op, [self.storage(t, env) for t in op.inputs])
            else:
                results = self.computed(op, [self.read(t, env) for t in op.inputs])
                env.update(zip(op.outputs, map(Cell, results)))

    def storage(self, t: Any, env: Dict[Any, Any]) -> Any:
        """What stands for a tensor."""
        found = env.get(t)
        if found is None:
            if not isinstance(t, Constant):
                raise AssertionError(f"{t!r} is used before it is made")
            array = self.constants.get(t)
            if array is None:
                array = t.data.view(storage_dtype(t.dtype)) if t.data.dtype.fields else t.data
            found = env[t] = Cell(Value(array))
        return found

    def read(self, t: Any, env: Dict[Any, Any]) -> Value:
        """The value of a tensor."""
        value: Value = self.storage(t, env).read()
        return value

    def computed(self, op: Any, values: Sequence[Value]) -> List[Value]:
        """The results of an op that only computes."""
        results = self.apply(lambda *xs: compute(op, [jnp.asarray(x) for x in xs]), values, len(op.outputs))
        if op.kind == "matmul" and len(op.inputs[0].shape) == len(op.inputs[1].shape) == 2:
            if op.outputs[0].dtype is op.inputs[0].dtype:
                results = [results[0]._replace(product=(values[0], values[1]))]
        return results

    def body(self, graph: Any, inputs: Sequence[Any]) -> List[Value]:
        """Trace a graph with this storage for its inputs; return its outputs."""
        env = dict(zip(graph.inputs, inputs))
        self.follow(graph, env)
        return [self.read(t, env) for t in graph.outputs]

    # Calls

    def call(self, op: Any, env: Dict[Any, Any]) -> None:
        """An op that runs a graph once."""
        graph, modified = op.attrs["graph"], op.attrs["modified"]
        inputs = [self.storage(t, env) for t in op.inputs]
        other = self.facts.stand_in(graph) if self.makes_parts and self.replicas == 1 else None
        if other is not None:
            outputs = self.call_in_place(other, inputs)
        elif not self.is_abstract and self._keeps(graph) and _are_apart([inputs[i] for i in modified]):
            outputs = self.kept_call(graph, modified, inputs)
        else:
            outputs = self.body(graph, [x if i in modified else Cell(x.read()) for i, x in enumerate(inputs)])
        env.update(zip(op.outputs, map(Cell, outputs)))

    def _keeps(self, graph: Any) -> bool:
        """Whether to keep a call: not where what a graph does depends on more than its inputs."""
        return self.taking is None and self.facts.is_kept(graph)

    def kept_call(self, graph: Any, modified: Sequence[int], inputs: Sequence[Any]) -> List[Value]:
        """Call a graph as a function that stays one, which is traced and compiled once for all its calls."""
        values = [x.read() for x in inputs]
        mapped = tuple(value.mapped for value in values)
        key = graph, tuple(modified), mapped
        if key not in self._kept:
            out_mapped: List[bool] = []

            def function(*arrays: Any) -> Tuple[Any, ...]:
                inner = Tracing(self.facts, self.replicas, self.is_spread)
                inner._kept, inner.print_errors = self._kept, self.print_errors
                cells = [Cell(Value(array, m)) for array, m in zip(arrays, mapped)]
                results = inner.body(graph, cells) + [cells[i].value for i in modified]
                out_mapped[:] = [value.mapped for value in results]
                return tuple(value.array for value in results)

            function.__name__ = xla_parts.PREFIX + "".join(c if c.isalnum() else "_" for c in graph.name)
            self._kept[key] = jax.jit(function), out_mapped
        function, out_mapped = self._kept[key]
        arrays = function(*[value.array for value in values])
        results = [Value(array, m) for array, m in zip(arrays, out_mapped)]
        for i, value in zip(modified, results[len(graph.outputs) :]):
            inputs[i].write(value)
        return results[: len(graph.outputs)]

    def call_in_place(self, other: StandIn, inputs: Sequence[Any]) -> List[Value]:
        """Call another graph that makes the outputs too. What does not matter to them is any value of the type."""
        types = [(t.shape, t.dtype) for t in other.graph.inputs]
        any_of = {kind: inputs[i] for kind, i in zip(types, other.inputs) if i is not None}
        given = []
        for kind, i in zip(types, other.inputs):
            if i is None and kind not in any_of:
                any_of[kind] = Cell(Value(jnp.zeros(kind[0], storage_dtype(kind[1]))))
            given.append(any_of[kind] if i is None else inputs[i])
        made = self.kept_call(other.graph, (), given)
        return [made[i] for i in other.outputs]

    # Loops

    def repeat(self, op: Any, env: Dict[Any, Any]) -> None:
        """An op that runs a graph a number of times, as a rolled loop."""
        graph, count, modified = op.attrs["graph"], op.attrs["count"], op.attrs["modified"]
        inputs = [self.storage(t, env) for t in op.inputs]
        n = len(op.outputs)
        state = [x.read() for x in inputs[:n]]
        if count:
            invariant = {i: x.read() for i, x in enumerate(inputs) if i >= n and i not in modified}
            roots = list(dict.fromkeys(cell for i in modified for cell in inputs[i].cells()))
            keys = self.effects_of(graph)
            cells = roots + [self.effects[key] for key in keys]

            def step(values: Sequence[Value]) -> List[Value]:
                moved = {cell: Cell(value) for cell, value in zip(cells, values[n:])}
                self.effects.update({key: moved[self_cell] for key, self_cell in zip(keys, cells[len(roots) :])})
                given = [Cell(value) for value in values[:n]]
                for i in range(n, len(inputs)):
                    given.append(inputs[i].moved(moved) if i in modified else Cell(invariant[i]))
                return self.body(graph, given) + [moved[cell].value for cell in cells]

            with self.inside():
                state = self.loop(step, state + [cell.value for cell in cells], count)
            for cell, value in zip(cells, state[n:]):
                cell.write(value)
            self.effects.update(zip(keys, cells[len(roots) :]))
        env.update((t, Cell(value._replace(product=None))) for t, value in zip(op.outputs, state))

    def loop(self, step: Callable[..., List[Value]], state: List[Value], count: int) -> List[Value]:
        """Apply `step` to the state `count` times."""
        mapped = [value.mapped for value in state]
        while self.replicas > 1:
            with self.abstractly():
                after = [a or b.mapped for a, b in zip(mapped, step([Value(None, m) for m in mapped]))]
            if after == mapped:
                break
            mapped = after
        if self.is_abstract:
            step([Value(None, m) for m in mapped])
            return [Value(None, m) for m in mapped]
        first = tuple(jnp.asarray(self.promoted(value, m).array) for value, m in zip(state, mapped))

        def body(carry: Tuple[Any, ...], _: Any) -> Tuple[Tuple[Any, ...], None]:
            results = step([Value(array, m) for array, m in zip(carry, mapped)])
            return tuple(jnp.asarray(self.promoted(value, m).array) for value, m in zip(results, mapped)), None

        arrays, _ = lax.scan(body, first, None, length=count)
        return [Value(array, m) for array, m in zip(arrays, mapped)]

    # Branches

    def conditional(self, op: Any, env: Dict[Any, Any]) -> None:
        """An op that runs one of two graphs."""
        first = 1 + op.attrs["then_count"]
        values = [self.read(t, env) for t in op.inputs]
        branches = list(zip(op.attrs["graphs"], (values[1:first], values[first:])))
        keys = self.effects_of(*op.attrs["graphs"])
        cells = [self.effects[key] for key in keys]
        before = [cell.value for cell in cells]

        def branch(graph: Any, given: Sequence[Value]) -> List[Value]:
            moved = [Cell(value) for value in before]
            self.effects.update(zip(keys, moved))
            with self.inside():
                results = self.body(graph, [Cell(value) for value in given])
            self.effects.update(zip(keys, cells))
            return results + [cell.value for cell in moved]

        condition = self.one(lambda c: jnp.reshape(c, ()) != 0, values[0])
        if self.facts.must_agree(op):
            condition = xla_faults.agreed(self, op, condition)
            before = [cell.value for cell in cells]
        with self.abstractly():
            both = [branch(*b) for b in branches]
        mapped = [condition.mapped or a.mapped or b.mapped for a, b in zip(*both)]
        if self.is_abstract:
            results = [Value(None, m) for m in mapped]
        elif condition.mapped:
            both = []
            for b, is_true in zip(branches, (True, False)):
                with self.among(condition, is_true):
                    both.append(branch(*b))
            results = [self.one(jnp.where, condition, a, b) for a, b in zip(*both)]
        else:
            functions = [
                lambda b=b: tuple(jnp.asarray(self.promoted(v, m).array) for v, m in zip(branch(*b), mapped))
                for b in branches
            ]
            results = [Value(x, m) for x, m in zip(lax.cond(condition.array, *functions), mapped)]
        for cell, value in zip(cells, results[len(op.outputs) :]):
            cell.write(value)
        env.update(zip(op.outputs, map(Cell, results)))

    @contextlib.contextmanager
    def among(self, condition: Value, is_true: bool) -> Iterator[None]:
        """A block that traces a branch which only those replicas take whose condition says so."""
        was = self.taking
        taking = self.one(lambda c: c == is_true, condition)
        self.taking = taking if was is None else self.one(jnp.logical_and, was, taking)
        try:
            yield
        finally:
            self.taking = was

    # Streams

    def host_load(self, op: Any, env: Dict[Any, Any]) -> None:
        """Take the next slot of a stream."""
        stream = op.attrs["stream"]
        data, count = self.loaded[stream]
        if count > 1:
            data = self.one(_at, data, self.next_slot("host_load", stream, count))
        env[op.outputs[0]] = Cell(data)

    def host_store(self, op: Any, env: Dict[Any, Any]) -> None:
        """Fill the next slot of a stream."""
        stream = op.attrs["stream"]
        count, value = self.slots[stream], self.read(op.inputs[0], env)
        cell = self.effects["stored", stream]
        if count > 1:
            value = self.one(_put_at, cell.value, self.next_slot("host_store", stream, count), value)
        cell.write(value._replace(product=None))
        done = self.effects.get(("done", stream))
        if done is not None:
            done.write(self.one(lambda n: jnp.minimum(n + np.int32(1), np.int32(count)), done.value))

    def next_slot(self, kind: str, stream: Any, count: int) -> Value:
        """The position in a stream, which moves on, and back to the start at the end."""
        cell = self.effects[kind, stream]
        place = cell.value
        cell.write(self.one(lambda i: (i + np.int32(1)) % np.int32(count), place))
        return place

    # Remote buffers

    def remote_load(self, op: Any, env: Dict[Any, Any]) -> None:
        """Read an entry of a remote buffer."""
        value = self.one(_at, self.effects["remote", op.attrs["buffer"]].value, self.offset(op, env))
        if op.kind == "remote_load_":
            target = self.storage(op.inputs[0], env)
            target.write(value)
            env[op.outputs[0]] = target
        else:
            env[op.outputs[0]] = Cell(value)

    def remote_store(self, op: Any, env: Dict[Any, Any]) -> None:
        """Write an entry of a remote buffer."""
        cell = self.effects["remote", op.attrs["buffer"]]
        cell.write(self.one(_put_at, cell.value, self.offset(op, env), self.read(op.inputs[0], env)))

    def offset(self, op: Any, env: Dict[Any, Any]) -> Value:
        """The offset of an op on a remote buffer. It is checked unless it is known."""
        value = self.read(op.inputs[-1], env)
        if op in self.facts.within or xla_faults.is_within(op, value.array):
            return value
        xla_faults.note_offset(self, op, value)
        return value if self.is_abstract else Value(jnp.asarray(value.array), value.mapped)

    def nothing(self, op: Any, env: Dict[Any, Any]) -> None:
        """An op without a numeric effect."""

    def collective(self, op: Any, env: Dict[Any, Any]) -> None:
        """An op over groups of replicas."""
        value = xla_collectives.computed(self, op, self.read(op.inputs[0], env))
        if op.kind.endswith("_"):
            target = self.storage(op.inputs[0], env)
            target.write(value)
            env[op.outputs[0]] = target
        else:
            env[op.outputs[0]] = Cell(value)

    def print_tensor(self, op: Any, env: Dict[Any, Any]) -> None:
        """Print a value while the program runs."""
        value = self.read(op.inputs[0], env)
        if op.attrs["print_self"] and not self.is_abstract:
            is_mapped, errors = value.mapped, self.print_errors
            taking = True if self.taking is None else self.taking.array

            def write(array: Any, taking: Any) -> None:
                # JAX does not recover from an error in a callback that has to keep its place: the run raises it.
                try:
                    rows = np.asarray(array) if is_mapped else np.asarray(array)[None]
                    for row in rows[np.broadcast_to(taking if is_mapped else np.any(taking), len(rows))]:
                        print_value(op, row)
                except Exception as error:
                    errors.append(error)

            jax.debug.callback(write, value.array, taking, ordered=not self.is_spread)
        env[op.outputs[0]] = Cell(value)

    def over_ipus(self, op: Any, env: Dict[Any, Any]) -> None:
        """An op over the IPUs of one replica."""
        values = [self.read(t, env) for t in op.inputs]
        if not op.attrs["identical_inputs"]:
            total = self.one(lambda *xs: xla_collectives.reduced(jnp.stack(xs), op.attrs["op"], 0, True), *values)
            values = [total] * len(values)
        env.update((t, Cell(value)) for t, value in zip(op.outputs, values))


def _are_apart(storages: Sequence[Any]) -> bool:
    """Whether no two of these share storage."""
    seen: Set[Cell] = set()
    for storage in storages:
        cells = set(storage.cells())
        if seen & cells:
            return False
        seen |= cells
    return True


def _index(i: Any) -> Any:
    """An index of any integer type, as one that XLA does not misread: it keeps those that do not fit out of range."""
    return jnp.minimum(jnp.reshape(i, ()).astype(np.int64), 2**31 - 1).astype(np.int32)


def _at(array: Any, i: Any) -> Any:
    if isinstance(i, np.ndarray):
        return array[int(i.reshape(()))]
    return lax.dynamic_index_in_dim(array, _index(i), 0, keepdims=False)


def _put_at(array: Any, i: Any, x: Any) -> Any:
    return lax.dynamic_update_index_in_dim(array, x, _index(i), 0)


SPECIAL: Dict[str, Callable[[Tracing, Any, Dict[Any, Any]], None]] = {
    "call": Tracing.call,
    "repeat": Tracing.repeat,
    "conditional": Tracing.conditional,
    "host_load": Tracing.host_load,
    "host_store": Tracing.host_store,
    "remote_load": Tracing.remote_load,
    "remote_load_": Tracing.remote_load,
    "remote_store": Tracing.remote_store,
    "remote_code_load": Tracing.nothing,
    "all_reduce": Tracing.over_ipus,
    "print_tensor": Tracing.print_tensor,
}
for _kind in xla_collectives.KINDS:
    SPECIAL[_kind] = Tracing.collective
