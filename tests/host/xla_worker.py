"""A program for test_xla_devices.py: data-parallel training, run as a process of its own.

    python xla_worker.py RESULT REPLICAS [PORT PROCESSES PROCESS]

It writes the losses, the weights and what some replicas store to RESULT. With a port it is one of several processes,
which share the replicas.
"""
import os
import sys

import numpy as np

result, replicas = sys.argv[1], int(sys.argv[2])
if len(sys.argv) > 3:
    port, processes, process = map(int, sys.argv[3:6])
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    os.environ.update(
        POPDIST_NUM_TOTAL_REPLICAS=str(replicas), POPDIST_NUM_LOCAL_REPLICAS=str(replicas // processes),
        POPDIST_REPLICA_INDEX_OFFSET=str(process * replicas // processes))
else:
    processes, process = 1, 0

import popfn.host as popxl  # noqa: E402  after the settings above
from popfn.host.engine import compile_program  # noqa: E402

ops = popxl.ops
ir = popxl.Ir(replication="popdist" if processes > 1 else replicas)
local = ir.instance_replication_factor
with ir.main_graph:
    x_stream, y_stream = popxl.h2d_stream((4, 6), popxl.float32), popxl.h2d_stream((4, 3), popxl.float32)
    out = popxl.d2h_stream((), popxl.float32)
    x, y = ops.host_load(x_stream), ops.host_load(y_stream)
    rng = np.random.default_rng(0)
    w = popxl.variable(rng.normal(size=(6, 3)).astype(np.float32))
    own = popxl.variable(np.arange(replicas, dtype=np.float32), replica_grouping=ir.replica_grouping(group_size=1))
    _, shard = popxl.replica_sharded_variable(np.arange(10, dtype=np.float32))
    shard += 1.0
    error = x @ w - y
    gradient = ops.transpose(x) @ error
    total = ops.collectives.replicated_all_reduce(gradient, "mean")
    ops.var_updates.accumulate_(w, total, -0.02)
    ops.add_(own, ops.sum(error))
    loss = ops.collectives.replicated_all_reduce(ops.mean(error * error) + 0.0 * own, "mean")
    whole = ops.collectives.replicated_all_gather(shard)
    ops.host_store(out, loss + 0.001 * ops.sum(whole))
    # Of two slots, the replicas fill as many as the sums of their errors decide.
    some_stream = popxl.d2h_stream((2,), popxl.float32)

    def store_some(own):
        ops.host_store(some_stream, ops.concat([ops.reshape(own, (1,))] * 2))

    branches = ir.create_graph(store_some, own), ir.create_graph(lambda own: None, own)
    for limit in (0.0, 4.0):
        ops.conditional(ops.greater(ops.sum(error), popxl.constant(limit)), *branches, [own], [own])

executable = compile_program(ir, "xla")
first = process * local
executable.write(w, w.data)
executable.write(own, np.arange(replicas, dtype=np.float32)[first:first + local])
padded = np.zeros(shard.nelms * replicas, np.float32)
padded[:10] = np.arange(10)
executable.write(shard, padded.reshape(replicas, -1)[first:first + local])
losses, some = [], []
for _ in range(3):
    x, y = rng.normal(size=(replicas, 4, 6)), rng.normal(size=(replicas, 4, 3))
    x, y = x.astype(np.float32)[first:first + local], y.astype(np.float32)[first:first + local]
    loss = np.zeros(local, np.float32)
    given = {x_stream: [x], y_stream: [y]} if local > 1 else {x_stream: [x[0]], y_stream: [y[0]]}
    slots = [np.full((local, 2), -99, np.float32) for _ in range(2)]
    executable.run(given, {out: [loss if local > 1 else loss.reshape(())],
                           some_stream: slots if local > 1 else [slot[0] for slot in slots]})
    losses.append(loss)
    some.append(np.stack(slots, 1))
np.savez(result, losses=losses, some=some, w=executable.read(w), own=executable.read(own), shard=executable.read(shard),
         devices=len(executable._devices.sharding[True].device_set) if executable._devices.is_spread else 1)
