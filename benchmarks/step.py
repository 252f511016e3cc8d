"""A training step on the host against jax.jit of the same maths, and the time to the first result of either.

    python benchmarks/step.py [--rounds N] [--core C]

Two networks with gelu and cross entropy, gradient descent, batch 64, float32: digits (64-128-128-10) and an MLP
(784-512-512-10). Each side keeps its parameters where it computes: popfn as device state of a session, JAX donated from
call to call. Steps alternate in one run on one core, which is the only one that this process and its threads may use.
The first result is tracing, lowering, compiling and one step for popfn, and for JAX what jax.jit does up to its first
result; both start from functions that were never traced before.
"""
from __future__ import annotations

import argparse
import functools
from typing import Any, Sequence

import _one_core  # noqa: F401  before the libraries that count cores
import jax
import jax.numpy as jnp
import numpy as np
from _compare import alternate, row
from _networks import mlp_data, mlp_ours, mlp_theirs

import popfn as pf


def first_ours(params: Any, x: np.ndarray, y: np.ndarray) -> float:
    """From a function to the first loss in popfn."""
    program = pf.lower(mlp_ours(), params, x, y, state=0, target="host")
    with pf.Session(program, state=params) as session:
        return float(session.run(x, y))


def first_theirs(params: Any, x: np.ndarray, y: np.ndarray) -> float:
    """From a function to the first loss in JAX."""
    return float(jax.jit(mlp_theirs())(params, x, y)[1])


def compare(name: str, sizes: Sequence[int], rounds: int) -> None:
    """Print the rows for one network."""
    params, x, y = mlp_data(sizes)
    ours, theirs = first_ours(params, x, y), first_theirs(params, x, y)
    if abs(ours - theirs) > 1e-5 * abs(theirs):
        raise SystemExit(f"{name}: the two do not compute the same: {ours} and {theirs}")

    program = pf.lower(mlp_ours(), params, x, y, state=0, target="host")
    jitted = jax.jit(mlp_theirs(), donate_argnums=0)
    state = [jax.tree_util.tree_map(jnp.asarray, params)]

    def step_theirs() -> None:
        state[0], value = jitted(state[0], x, y)
        value.block_until_ready()
    with pf.Session(program, state=params) as session:
        for _ in range(5):
            session.run(x, y)
            step_theirs()
        ours_s, theirs_s = alternate([lambda: session.run(x, y), step_theirs], rounds, repeat=5)
        row(f"{name}, step", ours_s, theirs_s, 1e-6, "us")
    ours_s, theirs_s = alternate([functools.partial(first_ours, params, x, y),
                                  functools.partial(first_theirs, params, x, y)], max(5, rounds // 8))
    row(f"{name}, first result", ours_s, theirs_s, 1e-3, "ms")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--core", type=int, default=0)
    rounds = parser.parse_args().rounds
    compare("digits", (64, 128, 128, 10), rounds)
    compare("MLP 784-512-512-10", (784, 512, 512, 10), rounds)


if __name__ == "__main__":
    main()
