"""The engines of popfn.host against jax.jit of the same maths, on one core; replicas on all.

    python benchmarks/host.py [--rounds N] [--core C] [steps | first | loops | replicas | memory ...]

Training steps of an MLP (784-512-512-10, batch 64) and of a transformer (4 layers of width 256, 4 sequences of 128
tokens), through pf.Session on either engine, against donated jax.jit; the time from a function to its first result for
6 and 12 equal layers on the XLA engine; the time to compile a loop of 512 steps against one of 8; a data-parallel step
of that MLP on 8 replicas against shard_map on 8 devices of XLA, which are threads of another process; and the memory
that a run takes against the live tensors of the program at its worst moment.
"""
from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import sys
import tracemalloc
from typing import Any, Callable, Dict, Iterator, List

import _one_core  # before the libraries that count cores
import jax
import jax.numpy as jnp
import numpy as np
from _compare import alternate
from _networks import mlp_data, mlp_ours, mlp_theirs, transformer_data, transformer_ours, transformer_theirs
from _replicas import REPLICAS, race

import popfn as pf
import popfn.host as popxl
from popfn.host.engine import compile_program, memory as engine_memory
from popfn.host.engine.kernels import KERNELS

MLP = (784, 512, 512, 10)


def row(name: str, ours: float, theirs: float, gate: float, unit: str = "ms", scale: float = 1e-3) -> None:
    """Print one comparison and whether it is within its gate."""
    ratio = ours / theirs
    print(f"{name:48} {ours / scale:9.2f} {unit} against {theirs / scale:9.2f} {unit}   ratio {ratio:6.3f}"
          f"   gate {gate:4.2f}   {'met' if ratio <= gate else 'missed'}", flush=True)


@contextlib.contextmanager
def engine(name: str) -> Iterator[None]:
    """Sessions that are made inside run on this engine."""
    os.environ["POPFN_ENGINE"] = name
    try:
        yield
    finally:
        del os.environ["POPFN_ENGINE"]


def session(step: Callable[..., Any], data: Any, name: str) -> pf.Session:
    """A session of a training step on an engine."""
    params, x, y = data
    with engine(name):
        return pf.Session(pf.lower(step, params, x, y, state=0, target="host"), state=params)


# ---------------------------------------------------------------------------- training steps and first results
def steps(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], data: Any, rounds: int,
          gates: Dict[str, float]) -> None:
    """Print the rows of one network's training step."""
    params, x, y = data
    jitted = jax.jit(theirs(), donate_argnums=0)
    state: List[Any] = [jax.tree_util.tree_map(jnp.asarray, params)]

    def step_theirs() -> Any:
        state[0], value = jitted(state[0], x, y)
        return value.block_until_ready()
    with session(ours(), data, "numpy") as numpy, session(ours(), data, "xla") as xla:
        losses = [float(numpy.run(x, y)), float(xla.run(x, y)), float(step_theirs())]
        if max(losses) - min(losses) > 1e-4 * abs(losses[2]):
            raise SystemExit(f"{name}: the losses differ: {losses}")
        numpy_s, xla_s, theirs_s = alternate([lambda: numpy.run(x, y), lambda: xla.run(x, y), step_theirs], rounds, 3)
    row(f"{name}, step, NumPy engine", numpy_s, theirs_s, gates["numpy"])
    row(f"{name}, step, XLA engine", xla_s, theirs_s, gates["xla"])


def first_results(layers: int, rounds: int, gate: float) -> None:
    """Print the row of the time from a function to its first result on the XLA engine."""
    data = transformer_data(layers)
    params, x, y = data

    def first_ours() -> None:
        with session(transformer_ours(), data, "xla") as s:
            s.run(x, y)

    def first_theirs() -> None:
        jax.jit(transformer_theirs())(params, x, y)[1].block_until_ready()
    ours_s, theirs_s = alternate([first_ours, first_theirs], rounds)
    row(f"{layers} equal layers, first result, XLA engine", ours_s, theirs_s, gate)


# ---------------------------------------------------------------------------- loops
def loop_program(count: int) -> Any:
    """A program whose loop runs `count` times."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones((64, 64), np.float32), name="x")
        body = ir.create_graph(lambda x: popxl.ops.tanh(x @ x) * 0.5, x)
        y, = popxl.ops.repeat(body, count, x)
        popxl.ops.var_updates.copy_var_update_(x, y)
    return ir


def loops(rounds: int) -> None:
    """Print the rows of what more steps of a loop cost the compiler. Nothing is run."""
    many, few = loop_program(512), loop_program(8)
    for name, repeat in (("numpy", 20), ("xla", 1)):
        many_s, few_s = alternate(
            [lambda ir=ir, name=name: compile_program(ir, name) for ir in (many, few)], rounds, repeat)
        row(f"compile a loop of 512 steps or 8, {name}", many_s, few_s, 1.05)


# ---------------------------------------------------------------------------- replicas
def replicas(rounds: int) -> None:
    """Print the rows of the data-parallel step: each side in a process of its own, on every core, by the clock."""
    times = race(("numpy", "xla", "shard_map"), rounds, _one_core.WHOLE_MACHINE)
    numpy_s, xla_s, theirs_s = times["numpy"], times["xla"], times["shard_map"]
    row(f"MLP, {REPLICAS} replicas, step, NumPy engine", numpy_s, theirs_s, 0.5)
    row(f"MLP, {REPLICAS} replicas, step, XLA engine", xla_s, theirs_s, 0.5)


# ---------------------------------------------------------------------------- memory
def size(t: Any) -> int:
    """The bytes of a tensor."""
    return math.prod(t.shape) * t.dtype.as_numpy().itemsize


def live_bytes(graph: Any) -> int:
    """The most bytes that the tensors which a graph makes need at one time, those of the graphs it calls included.

    Views need none. The inputs are not counted, nor are variables and constants.
    """
    owner: Dict[Any, Any] = {}  # the tensor whose memory a view shows
    last: Dict[Any, int] = {t: len(graph.ops) for t in graph.outputs}
    for i, op in enumerate(graph.ops):
        kernel = KERNELS.get(op.kind)
        is_view = kernel is not None and (kernel.view is not None or kernel.writes) or op.kind.endswith("_")
        for t in op.outputs:
            owner[t] = owner.get(op.inputs[0], op.inputs[0]) if is_view and op.inputs else t
        for t in op.inputs:
            last[owner.get(t, t)] = max(i, last.get(owner.get(t, t), 0))
    for t in graph.outputs:
        last[owner.get(t, t)] = len(graph.ops)
    live = peak = 0
    for i, op in enumerate(graph.ops):
        made = [t for t in op.outputs if owner[t] is t]
        live += sum(map(size, made))
        inside = max([live_bytes(g) - sum(map(size, g.outputs)) for g in op.called], default=0)
        peak = max(peak, live + max(inside, 0))
        gone = {owner.get(t, t) for t in (*op.inputs, *op.outputs)}
        live -= sum(size(t) for t in gone if t in owner and owner[t] is t and last.get(t, i) <= i)
    return peak


def memory(name: str, step: Callable[[], Any], data: Any) -> None:
    """Print the rows of the memory of one network's training step."""
    engine_memory.OWN_PAGES_BYTES = sys.maxsize  # tracemalloc sees the heap only
    params, x, y = data
    wanted = {}
    for engine_name in ("numpy", "xla"):
        ir = pf.lower(step(), params, x, y, state=0, target="host").take().ir
        wanted[engine_name] = live_bytes(ir.main_graph) + sum(map(size, ir.main_graph.variables))
        feeds = {s: [np.zeros(s.shape, s.dtype.as_numpy())] for s in ir.get_all_h2d_streams()}
        results = {s: [np.zeros(s.shape, s.dtype.as_numpy())] for s in ir.get_all_d2h_streams()}
        if engine_name == "xla":
            peak = compile_program(ir, engine_name).peak_bytes
        else:
            gc.collect()
            tracemalloc.start()
            executable = compile_program(ir, engine_name)
            executable.run(feeds, results)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        row(f"{name}, memory of a run, {engine_name}", peak, wanted[engine_name], 1.5, "MB", 1e6)


PARTS = ("steps", "first", "loops", "replicas", "memory")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("parts", nargs="*", help="what to measure: all unless told", default=PARTS)
    arguments = parser.parse_args()
    rounds, parts = arguments.rounds, arguments.parts
    if "steps" in parts:
        steps("MLP", mlp_ours, mlp_theirs, mlp_data(MLP), rounds, {"numpy": 1.7, "xla": 1.05})
        steps("transformer", transformer_ours, transformer_theirs, transformer_data(4), max(5, rounds // 3),
              {"numpy": 0.9, "xla": 0.85})
    if "first" in parts:
        first_results(6, max(3, rounds // 7), 0.5)
        first_results(12, max(3, rounds // 7), 0.3)
    if "loops" in parts:
        loops(rounds)
    if "replicas" in parts:
        replicas(rounds)
    if "memory" in parts:
        memory("MLP", mlp_ours, mlp_data(MLP))
        memory("transformer", transformer_ours, transformer_data(4))


if __name__ == "__main__":
    main()
