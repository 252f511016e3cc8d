"""One side of the data-parallel comparison in host.py: a step for each line of the input.

    python benchmarks/_replicas.py numpy | xla | shard-numpy | shard-xla | shard_map

The first two are PopXL programs, the next two are made by pf.shard. `race` lets several of them run in turns.
"""
from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List, Sequence, Set, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from _networks import RATE, mlp_data, mlp_theirs

import popfn as pf
import popfn.host as popxl
from popfn.host import ops

MLP = (784, 512, 512, 10)
REPLICAS = 8


def replicated_mlp(name: str) -> Any:
    """A function that makes a data-parallel step of the MLP on replicas of an engine and returns the loss."""
    params, x, y = mlp_data(MLP)
    flat = [array for layer in params for array in layer]
    ir = popxl.Ir(replication=REPLICAS)
    with ir.main_graph, popxl.in_sequence():
        load_x = popxl.h2d_stream((len(x) // REPLICAS, x.shape[1]), popxl.float32)
        load_y = popxl.h2d_stream((len(x) // REPLICAS,), popxl.int32)
        store = popxl.d2h_stream((), popxl.float32)
        variables = [popxl.variable(array, name=f"p{i}") for i, array in enumerate(flat)]

        def loss(x: Any, y: Any, *args: Any) -> Any:
            for w, b in zip(args[:-2:2], args[1:-2:2]):
                x = ops.gelu(x @ w + b)
            return ops.nll_loss(ops.softmax(x @ args[-2] + args[-1], 1), y)
        inputs = [ops.host_load(load_x), ops.host_load(load_y)] + variables
        forward = ir.create_graph(loss, inputs[0], inputs[1], *variables)
        call = ops.call_with_info(forward, *inputs)
        backward = popxl.transforms.autodiff(forward, grads_required=forward.inputs[2:])
        grads = ops.call(backward.graph, popxl.constant(1.0), inputs_dict=backward.inputs_dict(call))
        ops.host_store(store, call.outputs[0])
        for v, grad in zip(variables, grads):
            ops.var_updates.accumulate_(v, ops.collectives.replicated_all_reduce(grad, "mean"), -RATE)
    os.environ["POPFN_ENGINE"] = name
    session = popxl.Session(ir)
    session.__enter__()  # it stays attached while the process lasts
    feeds = {load_x: x.reshape(REPLICAS, -1, x.shape[1]), load_y: y.reshape(REPLICAS, -1)}
    return lambda: float(session.run(feeds)[store].mean())


def sharded_mlp() -> Any:
    """The same by shard_map on as many devices."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    shard_map: Any = jax.shard_map if hasattr(jax, "shard_map") else __import__(
        "jax.experimental.shard_map", fromlist=["shard_map"]).shard_map
    unchecked = "check_vma" if hasattr(jax, "shard_map") else "check_rep"
    params, x, y = mlp_data(MLP)
    local = mlp_theirs()

    def step(params: Any, x: Any, y: Any) -> Any:
        new, value = local(params, x, y)  # by plain gradient descent the mean of the steps is the step by the mean
        return jax.lax.pmean(new, "r"), jax.lax.pmean(value, "r")
    mesh = Mesh(np.array(jax.devices()), ("r",))
    rows, same = PartitionSpec("r"), PartitionSpec()
    # unchecked: the gradient of a device is that of its own rows; typed replication would have summed it already
    jitted = jax.jit(shard_map(step, mesh=mesh, in_specs=(same, rows, rows), out_specs=(same, same),
                               **{unchecked: False}), donate_argnums=0)
    # copies on each device: donated views of one NumPy array would be written by all of them at once
    state = [jax.device_put(jax.tree_util.tree_map(jnp.array, params), NamedSharding(mesh, same))]

    def run() -> float:
        state[0], value = jitted(state[0], x, y)
        jax.block_until_ready(state[0])
        return float(value)
    return run


def data_parallel_step() -> Any:
    """A training step of the MLP on replicas, by pf.shard."""
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = pf.nn.gelu(x @ w + b)
        w, b = params[-1]
        return pf.pmean(pf.nn.cross_entropy(x @ w + b, y), "dp")

    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = pf.value_and_grad(loss)(params, x, y)
        return pf.tree.map(lambda p, g: p - RATE * g, params, grads), value
    return pf.shard(step, pf.Mesh(dp=REPLICAS), (pf.P(), pf.P("dp"), pf.P("dp")), (pf.P(), pf.P()))


def by_shard(name: str) -> Any:
    """A function that makes such a step on an engine and returns the loss."""
    params, x, y = mlp_data(MLP)
    os.environ["POPFN_ENGINE"] = name
    session = pf.Session(pf.lower(data_parallel_step(), params, x, y, state=0, target="host"), state=params)
    session.__enter__()  # it stays attached while the process lasts
    return lambda: float(session.run(x, y))


def race(names: Sequence[str], rounds: int, whole_machine: Tuple[Dict[str, str], Set[int]]) -> Dict[str, float]:
    """The median seconds of a step of each side, each in a process of its own, by the clock.

    They have the environment and the cores of `whole_machine`.
    """
    environment, cores = whole_machine
    before = os.sched_getaffinity(0)
    devices = f"--xla_force_host_platform_device_count={REPLICAS} {environment.get('XLA_FLAGS', '')}"
    os.sched_setaffinity(0, cores)  # which the processes inherit
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(subprocess.Popen(
            [sys.executable, __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "JAX_PLATFORMS": "cpu", **({"XLA_FLAGS": devices} if name == "shard_map" else {})},
        )) for name in names}
        times: Dict[str, List[float]] = {name: [] for name in names}
        for i in range(rounds + 3):  # the first ones compile and warm up
            losses = {}
            for name, side in sides.items():
                assert side.stdin is not None and side.stdout is not None
                print(file=side.stdin, flush=True)
                losses[name], seconds = map(float, side.stdout.readline().split())
                times[name].append(seconds)
            if max(losses.values()) - min(losses.values()) > 1e-3 * abs(losses["shard_map"]):
                raise SystemExit(f"the losses of the replicas differ in step {i}: {losses}")
    os.sched_setaffinity(0, before)
    return {name: statistics.median(seen[3:]) for name, seen in times.items()}


def main() -> None:
    """Make a step for each line of the input, and answer with the loss and the seconds."""
    name = sys.argv[1]
    if name == "shard_map" and len(jax.devices()) != REPLICAS:
        raise SystemExit(f"{REPLICAS} devices are wanted, {len(jax.devices())} are there: see XLA_FLAGS")
    run = sharded_mlp() if name == "shard_map" else by_shard(name[6:]) if name.startswith("shard-") else \
        replicated_mlp(name)
    for _ in sys.stdin:
        start = time.perf_counter()
        value = run()
        print(value, time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
