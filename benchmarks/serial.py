"""What serialising costs on the host: more steps, memory, and the loop against a loop in Python.

    python benchmarks/serial.py [--rounds N] [--core C] [compile | memory | steps ...]

A training step of an MLP (64-128-128-10) over parts of 16 rows, by batch_serialise with remote residuals: the time to
trace, lower and compile 512 steps against 8; the memory of 512 steps against 8, less what is streamed and what lies in
remote memory; and the time per step, with the state on the device, against a Python loop over one compiled step of a
part.
"""
from __future__ import annotations

import argparse
import gc
import os
import sys
import tracemalloc
from typing import Any, Callable, List, Tuple

import _one_core  # noqa: F401  before the libraries that count cores
import numpy as np
from _compare import alternate
from _networks import mlp_data

import popfn as pf
from popfn.host.engine import memory as engine_memory

SIZES, PART = (64, 128, 128, 10), 16
PARTS = ("compile", "memory", "steps")


def row(name: str, ours: float, theirs: float, gate: float, unit: str, scale: float) -> None:
    """Print one comparison and whether it is within its gate."""
    ratio = ours / theirs
    print(f"{name:56} {ours / scale:9.3f} {unit} against {theirs / scale:9.3f} {unit}   ratio {ratio:6.3f}"
          f"   gate {gate:4.2f}   {'met' if ratio <= gate else 'missed'}", flush=True)


def loss(params: Any, x: Any, y: Any) -> Any:
    """The mean cross entropy of a part."""
    for w, b in params[:-1]:
        x = pf.nn.gelu(x @ w + b)
    w, b = params[-1]
    return pf.nn.cross_entropy(x @ w + b, y)


def step_of(steps: int) -> Callable[..., Any]:
    """A training step over so many parts."""
    serial = pf.batch_serialise(loss, steps, in_axes=(None, 0, 0), reduce="mean")

    def step(params: Any, x: Any, y: Any) -> Tuple[Any, Any]:
        value, grads = pf.value_and_grad(serial)(params, x, y)
        return pf.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
    return step


def session(steps: int, params: Any) -> pf.Session:
    """A compiled session for so many parts."""
    program = pf.lower(step_of(steps), params, pf.spec((steps * PART, SIZES[0])), pf.spec(steps * PART, "int32"),
                       state=0, target="host")
    return pf.Session(program, state=params)


def compiling(rounds: int, name: str) -> None:
    """Print the row of what more steps cost before the first run."""
    params = mlp_data(SIZES)[0]
    many, few = alternate([lambda n=n: session(n, params) for n in (512, 8)], rounds)
    row(f"trace, lower and compile 512 steps or 8, {name}", many, few, 1.05, "ms", 1e-3)


def bytes_of_run(steps: int) -> int:
    """The most bytes that a session and a run take, less remote memory: what is streamed is there before."""
    params, x, y = mlp_data(SIZES, steps * PART)
    program = pf.lower(step_of(steps), params, x, y, state=0, target="host")
    remote = {op.attrs["buffer"] for graph in graphs_below(program.ir.main_graph) for op in graph.ops
              if "buffer" in op.attrs}
    gc.collect()
    tracemalloc.start()
    with pf.Session(program, state=params) as made:
        made.run(x, y)
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - sum(b.entries * int(np.prod(b.tensor_shape)) * b.tensor_dtype.as_numpy().itemsize for b in remote)


def graphs_below(graph: Any) -> List[Any]:
    """A graph and those that it calls."""
    found = [graph]
    for g in found:
        found += [c for op in g.ops for c in op.called if c not in found]
    return found


def memory() -> None:
    """Print the row of what more steps cost in memory."""
    engine_memory.OWN_PAGES_BYTES = sys.maxsize  # tracemalloc sees the heap only
    row("memory of 512 steps or 8, NumPy engine", bytes_of_run(512), bytes_of_run(8), 1.05, "kB", 1e3)


def stepping(rounds: int, name: str) -> None:
    """Print the row of the time per step against a Python loop over one compiled step of a part."""
    steps = 32
    params, x, y = mlp_data(SIZES, steps * PART)
    made = session(steps, params)

    def part(state: Any, x: Any, y: Any) -> Tuple[Any, Any]:
        params, sums = state
        value, grads = pf.value_and_grad(loss)(params, x, y)
        return (params, pf.tree.map(lambda s, g: s + g, sums, grads)), value
    sums = pf.tree.map(np.zeros_like, params)
    one = pf.Session(pf.lower(part, (params, sums), x[:PART], y[:PART], state=0, target="host"), state=(params, sums))
    with made, one:
        def ours() -> Any:
            return made.run(x, y)

        def theirs() -> Any:
            return [one.run(x[i:i + PART], y[i:i + PART]) for i in range(0, len(x), PART)]
        ours_s, theirs_s = alternate([ours, theirs], rounds)
    row(f"one of {steps} steps, {name}", ours_s / steps, theirs_s / steps, 1.15, "ms", 1e-3)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("parts", nargs="*", help="what to measure: all unless told", default=PARTS)
    arguments = parser.parse_args()
    for engine in ("numpy", "xla"):
        os.environ["POPFN_ENGINE"] = engine
        if "compile" in arguments.parts:
            compiling(arguments.rounds if engine == "numpy" else 3, f"{engine} engine")
        if "memory" in arguments.parts and engine == "numpy":
            memory()
        if "steps" in arguments.parts:
            stepping(arguments.rounds, f"{engine} engine")


if __name__ == "__main__":
    main()
