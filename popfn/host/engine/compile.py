"""From an Ir to a program: straight-line Python over NumPy, with every buffer and view made beforehand.

Each graph becomes one function. Its parameters are its inputs, the arrays that take its outputs, and the streams that
it uses. Everything that does not change from run to run (buffers, variables, constants, views of them) is a global of
the generated module. Graphs that cannot run at the same time, those at the same depth of calls, share buffers.
"""

import gc
from typing import Any, Callable, Dict, List, Mapping, Sequence, Set

import numpy as np

from popfn.host.engine.plan import Facts, plan_graph
from popfn.host.engine.program import Pool, Program
from popfn.host.engine.writer import Writer
from popfn.host.tensor import Variable


class Executable:
    """A compiled program and its device storage.

    Attributes:
        source: The generated Python.
    """

    def __init__(self, source: str, main: Callable[..., None], storage: Dict[Variable, np.ndarray]) -> None:
        self.source = source
        self._main = main
        self._storage = storage

    def run(self, inputs: Mapping[Any, Sequence[np.ndarray]], outputs: Mapping[Any, Sequence[np.ndarray]]) -> None:
        """Run the program once. If it raises, the variables are as they were.

        Only an interrupt from the keyboard while the state is being written, at the end, may leave part of it new.

        Args:
            inputs: For each stream that the program loads, the tensors in order: C-contiguous arrays of the stream's
                shape and dtype.
            outputs: For each stream that it stores to, the arrays to fill.
        """
        with np.errstate(all="ignore"):
            self._main(inputs, outputs)

    def write(self, variable: Variable, array: np.ndarray) -> None:
        """Set the value of a variable on the device."""
        np.copyto(self._storage[variable], array)

    def read(self, variable: Variable) -> np.ndarray:
        """Return a copy of the value of a variable on the device."""
        return self._storage[variable].copy()


def compile_program(ir: Any) -> Executable:
    """Compile the main graph of an Ir and the graphs that it calls.

    Raises:
        NotImplementedError: If there is no kernel for an op.
        popart_exception: If a call gets different views of one storage by reference and writes to one of them.
    """
    is_collecting = gc.isenabled()
    gc.disable()  # nothing of what is made here is garbage before the end, and there are many small objects
    try:
        with np.errstate(all="ignore"):
            return _compile(ir.main_graph)
    finally:
        if is_collecting:
            gc.enable()


def _compile(main_graph: Any) -> Executable:
    graphs = _callees_first(main_graph)
    depth = dict.fromkeys(graphs, 0)
    by_reference: Dict[Any, Set[int]] = {graph: set() for graph in graphs}
    for graph in reversed(graphs):
        for op in graph.ops:
            if op.kind == "call":
                called = op.attrs["graph"]
                depth[called] = max(depth[called], depth[graph] + 1)
                by_reference[called].update(op.attrs["modified"])
    facts: Dict[Any, Facts] = {}
    program = Program()
    pools: Dict[int, Pool] = {}
    for graph in graphs:
        plan = plan_graph(graph, by_reference[graph], facts)
        facts[graph] = plan.facts
        Writer(program, pools.setdefault(depth[graph], Pool(program)), plan, facts).write()
    storage = {variable: program.variable(variable).array for variable in main_graph.variables}
    source, main = program.finish()
    return Executable(source, main, storage)


def _callees_first(main: Any) -> List[Any]:
    ordered: Dict[Any, None] = {}

    def visit(graph: Any) -> None:
        if graph not in ordered:
            for called in graph.called_graphs:
                visit(called)
            ordered[graph] = None

    visit(main)
    return list(ordered)
