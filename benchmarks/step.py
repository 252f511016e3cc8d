"""A training step on the host against jax.jit of the same maths, and the time to the first result of either.

    python benchmarks/step.py [--rounds N] [--core C]

Two networks with gelu and cross entropy, gradient descent, batch 64, float32: digits (64-128-128-10) and an MLP
(784-512-512-10). Each side keeps its parameters where it computes: popfn as device state of a session, JAX donated from
call to call. Steps alternate in one run on one core, which is the only one that this process and its threads may use.
The first result is tracing, lowering, compiling and one step for popfn, and for JAX what jax.jit does up to its first
result; both start from functions that were never traced before.
"""
from __future__ import annotations

import os
import sys

CORE = int(sys.argv[sys.argv.index("--core") + 1]) if "--core" in sys.argv else 0
os.sched_setaffinity(0, {CORE})  # before any library counts the cores
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse  # noqa: E402
import functools  # noqa: E402
from typing import Any, Callable, List, Sequence, Tuple  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from compare import alternate, row  # noqa: E402

import popfn as pf  # noqa: E402

BATCH = 64


def make_ours() -> Callable[..., Any]:
    """The step in popfn: a new function each time, so that nothing answers from a cache."""
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = pf.nn.gelu(x @ w + b)
        w, b = params[-1]
        return pf.nn.cross_entropy(x @ w + b, y)

    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = pf.value_and_grad(loss)(params, x, y)
        return pf.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
    return step


def make_theirs() -> Callable[..., Any]:
    """The same step in JAX."""
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = jax.nn.gelu(x @ w + b, approximate=True)
        w, b = params[-1]
        z = x @ w + b
        chosen = y[:, None] == jnp.arange(z.shape[-1])
        return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.sum(jnp.where(chosen, z, 0.0), -1))

    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads), value
    return step


def parameters(sizes: Sequence[int]) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Random weights, zero biases."""
    rng = np.random.default_rng(0)
    return [(rng.normal(0, n ** -0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32))
            for n, m in zip(sizes, sizes[1:])]


def first_ours(params: Any, x: np.ndarray, y: np.ndarray) -> float:
    """From a function to the first loss in popfn."""
    program = pf.lower(make_ours(), params, pf.spec(x.shape), pf.spec(y.shape, "int32"), state=0)
    with pf.Session(program, state=params) as session:
        return float(session.run(x, y))


def first_theirs(params: Any, x: np.ndarray, y: np.ndarray) -> float:
    """From a function to the first loss in JAX."""
    return float(jax.jit(make_theirs())(params, x, y)[1])


def compare(name: str, sizes: Sequence[int], rounds: int) -> None:
    """Print the rows for one network."""
    rng = np.random.default_rng(1)
    x = rng.random((BATCH, sizes[0]), np.float32)
    y = rng.integers(0, 10, BATCH).astype(np.int32)
    params = parameters(sizes)
    ours, theirs = first_ours(params, x, y), first_theirs(params, x, y)
    if abs(ours - theirs) > 1e-5 * abs(theirs):
        raise SystemExit(f"{name}: the two do not compute the same: {ours} and {theirs}")

    program = pf.lower(make_ours(), params, pf.spec(x.shape), pf.spec(y.shape, "int32"), state=0)
    jitted = jax.jit(make_theirs(), donate_argnums=0)
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
