"""The engines of popfn.host against jax.jit of the same maths, on one core.

    python benchmarks/host.py [--rounds N] [--core C]

Training steps of an MLP (784-512-512-10, batch 64) and of a transformer (4 layers of width 256, 4 sequences of 128
tokens), through pf.Session on either engine, against donated jax.jit; the time from a function to its first result for
6 and 12 equal layers on the XLA engine; and the time to compile a loop of 512 steps against one of 8.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import Any, Callable, Iterator, List

import _one_core  # noqa: F401  before the libraries that count cores
import jax
import jax.numpy as jnp
import numpy as np
from _compare import alternate, row
from _networks import mlp_data, mlp_ours, mlp_theirs, transformer_data, transformer_ours, transformer_theirs

import popfn as pf
import popfn.host as popxl


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


def steps(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], data: Any, rounds: int) -> None:
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
    row(f"{name}, NumPy engine", numpy_s, theirs_s, 1e-3, "ms")
    row(f"{name}, XLA engine", xla_s, theirs_s, 1e-3, "ms")


def first_results(layers: int, rounds: int) -> None:
    """Print the row of the time from a function to its first result on the XLA engine."""
    data = transformer_data(layers)
    params, x, y = data

    def first_ours() -> None:
        with session(transformer_ours(), data, "xla") as s:
            s.run(x, y)

    def first_theirs() -> None:
        jax.jit(transformer_theirs())(params, x, y)[1].block_until_ready()
    ours_s, theirs_s = alternate([first_ours, first_theirs], rounds)
    row(f"{layers} equal layers, first result, XLA", ours_s, theirs_s, 1e-3, "ms")


def loop(count: int, name: str) -> float:
    """Seconds to prepare a program whose loop runs `count` times."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones((64, 64), np.float32), name="x")
        body = ir.create_graph(lambda x: popxl.ops.tanh(x @ x) * 0.5, x)
        y, = popxl.ops.repeat(body, count, x)
        popxl.ops.var_updates.copy_var_update_(x, y)
    start = time.process_time()
    with engine(name), popxl.Session(ir) as s:
        s.run()
        return time.process_time() - start


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--core", type=int, default=0)
    rounds = parser.parse_args().rounds
    steps("MLP 784-512-512-10", mlp_ours, mlp_theirs, mlp_data((784, 512, 512, 10)), rounds)
    steps("transformer, 4 layers", transformer_ours, transformer_theirs, transformer_data(4), max(5, rounds // 3))
    first_results(6, max(3, rounds // 7))
    first_results(12, max(3, rounds // 7))
    for name in ("numpy", "xla"):
        few, many = ([loop(n, name) for _ in range(5)] for n in (8, 512))
        print(f"loop, {name}: first result with 512 steps {min(many) * 1e3:.1f} ms, with 8 steps "
              f"{min(few) * 1e3:.1f} ms (the steps themselves included)", flush=True)


if __name__ == "__main__":
    main()
