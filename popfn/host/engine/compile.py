"""From an Ir to a program: straight-line Python over NumPy, with every buffer and view made beforehand.

Each graph becomes one function. Its parameters are its inputs, the arrays that take its outputs, and the streams that
it uses. Everything that does not change from run to run (buffers, variables, constants, views of them) is a global of
the generated module. Graphs that cannot run at the same time, those at the same depth of calls, share buffers.
"""

import gc
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

from popfn.host.engine.aliasing import Aliasing
from popfn.host.engine.batching import is_state
from popfn.host.engine.plan import Facts, callees, plan_graph
from popfn.host.engine.program import Journal, Pool, Program
from popfn.host.engine.ranges import offsets_within
from popfn.host.engine.replicas import Expansion
from popfn.host.engine.transfer import REMOTE
from popfn.host.engine.writer import Writer
from popfn.host.tensor import Shard, Tensor


class Executable:
    """A compiled program and its device storage.

    Attributes:
        source: The generated Python.
    """

    def __init__(
        self, source: str, main: Callable[..., None], storage: Dict[Tensor, np.ndarray], journal: Journal,
        replicas: int,
    ) -> None:
        self.source = source
        self._main = main
        self._storage = storage
        self._journal = journal
        self._lead = (replicas,) if replicas > 1 else ()

    def run(self, inputs: Mapping[Any, Sequence[np.ndarray]], outputs: Mapping[Any, Sequence[np.ndarray]]) -> None:
        """Run the program once. If it raises, the variables on the device and remote memory are as they were.

        But if it is interrupted, what it stored in remote memory stays there, where all offsets are known to be in
        range; and an interrupt from the keyboard while the variables are being written, at the end, may leave part
        of them new.

        Args:
            inputs: For each stream that the program loads, the tensors in order: C-contiguous arrays of the stream's
                shape and dtype, behind an axis for the replicas if there are several.
            outputs: For each stream that it stores to, the arrays to fill.
        """
        for stream, arrays in outputs.items():
            for array in arrays[:1]:  # a list of one, or views of one array
                if array.shape != self._lead + stream.shape or not array.flags.writeable:
                    raise ValueError(
                        f"the output array for {stream} cannot be filled: it has the shape {array.shape}, expected "
                        f"{self._lead + stream.shape}, and is {'writable' if array.flags.writeable else 'read-only'}."
                    )
        try:
            with np.errstate(all="ignore"):
                self._main(inputs, outputs)
        except BaseException:
            self._journal.undo()
            raise
        finally:
            self._journal.clear()

    def write(self, t: Tensor, array: np.ndarray) -> None:
        """Set a variable or shard on the device: to one value for all replicas, or to a row for each."""
        np.copyto(self._storage[t], array)

    def read(self, t: Tensor) -> np.ndarray:
        """Return a copy of a variable or shard on the device: the value on all replicas, or a row for each."""
        return self._storage[t].copy()


def compile_program(ir: Any) -> Executable:
    """Compile the main graph of an Ir and the graphs that it calls.

    Raises:
        NotImplementedError: If there is no kernel for an op.
        popart_exception: If a call gets different views of one storage by reference and writes to one of them, or
            something is written through a `concat_` of tensors that share elements.
    """
    is_collecting = gc.isenabled()
    gc.disable()  # nothing of what is made here is garbage before the end, and there are many small objects
    try:
        with np.errstate(all="ignore"):
            return _compile(ir)
    finally:
        if is_collecting:
            gc.enable()


def _compile(ir: Any) -> Executable:
    main_graph, states, program = ir.main_graph, {}, Program()
    replicas = ir.instance_replication_factor
    if ir.replication_factor != replicas:
        raise NotImplementedError(
            f"the engine 'numpy' runs all replicas in one process: this one has {replicas} of {ir.replication_factor}. "
            "Set POPFN_ENGINE=xla for several processes."
        )
    if replicas > 1 or any("group" in op.attrs for graph in _callees_first(main_graph) for op in graph.ops):
        expansion = Expansion(main_graph, replicas)
        main_graph, states = expansion.main_graph, expansion.states
        program = Program(replicas, frozenset(expansion.buffers), frozenset(expansion.uneven))
    graphs = _callees_first(main_graph)
    aliasing = Aliasing(main_graph)
    program.overlaps = aliasing.overlaps
    program.within = offsets_within(main_graph)
    program.may_fail = any(_may_fail(op, program) for graph in graphs for op in graph.ops)
    depth = dict.fromkeys(graphs, 0)
    for graph in reversed(graphs):
        for op in graph.ops:
            for called in callees(op):
                depth[called] = max(depth[called], depth[graph] + 1)
    facts: Dict[Any, Facts] = {}
    pools: Dict[int, Pool] = {}
    for graph in graphs:
        plan = plan_graph(graph, aliasing.together(graph), facts)
        facts[graph] = plan.facts
        Writer(program, pools.setdefault(depth[graph], Pool(program)), plan, facts).write()
    storage = {t: _storage(program, t, states) for t in ir.main_graph.tensors if is_state(t)}
    source, main = program.finish()
    return Executable(source, main, storage, program.journal, replicas)


def _may_fail(op: Any, program: Program) -> bool:
    """Whether a run may find an op to be at fault."""
    if op.kind in REMOTE:
        return op not in program.within
    return op.kind == "print_tensor" or op.kind == "conditional" and program.replicas > 1


def _storage(program: Program, t: Any, states: Dict[Tensor, Any]) -> np.ndarray:
    """The array that holds a variable or shard: its own, or an entry of a remote buffer."""
    if isinstance(t, Shard) or t._remote is None:
        array: np.ndarray = program.variable(states.get(t, t)).array
        return array
    buffer, offset = t._remote
    entry: np.ndarray = program.remote(buffer).array[offset, ...]
    return entry


def _callees_first(main: Any) -> List[Any]:
    ordered: Dict[Any, None] = {}

    def visit(graph: Any) -> None:
        if graph not in ordered:
            for op in graph.ops:
                for called in callees(op):
                    visit(called)
            ordered[graph] = None

    visit(main)
    return list(ordered)
