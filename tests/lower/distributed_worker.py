"""Sharded programs for test_distributed.py, run as a process of its own.

    python distributed_worker.py RESULT NAMES [COORDINATOR PROCESSES PROCESS]

It writes what its sessions gave to RESULT, of the programs with these names. With a coordinator it is one of several
processes, which have the replicas of the same programs between them.
"""
import json
import sys
import types

import numpy as np

import popfn as pf
import popfn.host
import popfn.numpy as pnp
from popfn import P
from popfn.trace.tree import prefix_leaves

MESH = pf.Mesh(dp=2, tp=2)
LINE = pf.Mesh(dp=4)
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(0, 0.5, shape).astype(np.float32)


# Two layers with tensor parallelism, on rows that are cut over dp.
PARAMS = {"w1": normal(6, 8), "w2": normal(8, 6), "b": normal(6)}
CUT = {"w1": P(None, "tp"), "w2": P("tp"), "b": P()}
ROWS = [(normal(8, 6), normal(8, 6)) for _ in range(3)]
VECTORS = [normal(16), normal(16)]
LAYERS, STACK_CUT = {"w1": normal(3, 6, 8), "w2": normal(3, 8, 6)}, {"w1": P(None, None, "tp"), "w2": P(None, "tp")}
ADAM = pf.optim.adam(0.02)


def layer(p, x):
    return pf.psum(pnp.tanh(x @ p["w1"]) @ p["w2"], "tp")


def loss(p, x, y):
    return pf.pmean(pnp.mean((layer(p, x) + p["b"] - y) ** 2), "dp")


def train(params, x, y):
    """A step of gradient descent."""
    value, grads = pf.value_and_grad(loss)(params, x, y)
    new = pf.tree.map(lambda w, g: w - 0.1 * g, params, grads)
    return new, value, layer(params, x)


def zero(state, x, y):
    """A step of Adam for w1 and w2, whose moments are cut over dp (each replica updates its part of the weights)."""
    params, moments = state
    own = pf.tree.map(lambda w: pf.pvary(w, "dp"), params)
    value, grads = pf.value_and_grad(loss)(own, x, y)

    def mine(w):
        return w.reshape((pf.axis_size("dp"), -1))[pf.axis_index("dp")]

    parts = pf.tree.map(lambda g: pf.psum_scatter(g.reshape((pf.axis_size("dp"), -1)), "dp"), grads)
    parts, moments = ADAM.update(parts, moments, pf.tree.map(mine, own))
    new = pf.tree.map(lambda w, part: pf.all_gather(part, "dp").reshape(w.shape), params, parts)
    return (new, moments), value


def deep(params, x, y):
    """A step through layers whose weights are in remote memory, in parts of the batch."""
    def total(layers, x, y):
        def one(h, p):
            return h + layer(pf.load(p), h), None
        return pnp.mean((pf.scan(one, x, layers)[0] - y) ** 2)

    serial = pf.batch_serialise(total, 2, in_axes=(None, 0, 0), reduce="mean")
    value, grads = pf.value_and_grad(lambda p: pf.pmean(serial(p, x, y), "dp"))(params)
    return pf.tree.map(lambda w, g: pf.remote(pf.load(w) - 0.1 * g), params, grads), value


def line(count, x):
    """Replicas of a process are several along one axis, which is cut further; the rows are streamed in parts."""
    rows = pf.batch_serialise(lambda x: pnp.cumsum(x), 2, in_axes=0)(x)
    index = pf.axis_index("dp")
    return count + 1, (rows + pf.psum(rows[-1], "dp"), pf.ppermute(x, "dp", [(i, (i + 1) % 4) for i in range(4)]),
                       (index + count)[None])


def lowered(f, mesh, state, data, state_cut, out_cut, **options):
    sharded = pf.shard(f, mesh, (state_cut, *[P("dp")] * len(data)), (state_cut, *out_cut))
    return pf.lower(sharded, state, *data, state=0, target="host", **options)


def flat(x):
    return [np.asarray(leaf) for leaf in pf.tree.leaves(x)]


class Results:
    """Arrays by name, and over which mesh and how those are cut of which a process has a part."""

    def __init__(self):
        self.arrays, self.cuts = {}, {}

    def add(self, name, arrays, cuts, mesh):
        for k, (array, cut) in enumerate(zip(arrays, cuts)):
            self.arrays[f"{name}.{k}"] = array
            self.cuts[f"{name}.{k}"] = mesh.axes, cut.spec

    def run(self, name, program, mesh, state, state_cut, out_cut, batches):
        """Add the outputs of each run, and the state in between and at the end."""
        part = pf.distributed.part_of
        cuts = prefix_leaves(state_cut, pf.tree.structure(state))
        with pf.Session(program, state=part(state, state_cut, mesh)) as session:
            for i, batch in enumerate(batches):
                out = session.run(*part(batch, P("dp"), mesh))
                self.add(f"{name}/out{i}", flat(out), prefix_leaves(out_cut, pf.tree.structure(out)), mesh)
            self.add(f"{name}/state", flat(session.state), cuts, mesh)
            for path in [program.paths[i] for i in program.state_leaves] if program.replica_state else ():
                self.arrays[f"{name}/each/{path}"] = session.get_replica_data(path)
        self.add(f"{name}/after", flat(session.state), cuts, mesh)


def text_run(program, inputs, state):
    """What the text of the program computes by itself, for whole arrays."""
    module = types.ModuleType("written")
    before, sys.modules["popxl"] = sys.modules.get("popxl"), popfn.host
    try:
        exec(compile(program.as_text(), "written.py", "exec"), module.__dict__)
    finally:
        sys.modules.pop("popxl") if before is None else sys.modules.update(popxl=before)
    return module.main(inputs, state)


# ---------------------------------------------------------------------------- what is run
def run_text(found):
    for each in (False, True):
        program = lowered(train, MESH, PARAMS, ROWS[0], CUT, (P(), P("dp")), replica_state=each)
        state = {"params_" + name: w.copy() for name, w in PARAMS.items()}
        out = text_run(program, dict(zip(("x", "y"), ROWS[0])), state)
        found.arrays.update((f"text{int(each)}/{name}", x) for name, x in {**out, **state}.items())


def run_train(found):
    program = lowered(train, MESH, PARAMS, ROWS[0], CUT, (P(), P("dp")), replica_state=True)
    found.run("train", program, MESH, PARAMS, CUT, (P(), P("dp")), ROWS)


def run_zero(found):
    # A moment has the parts of a replica's part of the weights: first over tp, as the weights are, then over dp.
    moments = ADAM.init(pf.tree.map(lambda w: w.reshape(-1), PARAMS))
    over = {PARAMS["w1"].size: P(("tp", "dp")), PARAMS["b"].size: P("dp")}
    state, state_cut = (PARAMS, moments), (CUT, pf.tree.map(lambda m: over[m.size] if m.ndim else P(), moments))
    program = lowered(zero, MESH, state, ROWS[0], state_cut, (P(),))
    found.run("zero", program, MESH, state, state_cut, P(), ROWS)


def run_deep(found):
    program = lowered(deep, MESH, pf.tree.map(pf.remote, LAYERS), ROWS[0], STACK_CUT, (P(),), replica_state=True)
    assert any(len(v) == 3 for v in program.variables.values()) and program.ir.num_host_transfers == 2
    found.run("deep", program, MESH, LAYERS, STACK_CUT, P(), ROWS)


def run_line(found):
    program = lowered(line, LINE, np.int32(1), VECTORS[:1], P(), (P("dp"),))
    found.run("line", program, LINE, np.int32(1), P(), P("dp"), [(x,) for x in VECTORS])
    found.arrays["line/repr"] = np.array(repr(program))


def run_alone(found):
    """What has no mesh is run by each process alone."""
    alone = pf.lower(lambda total, x: (total + x, x * total), pf.spec(2), pf.spec(2), state=0, target="host")
    with pf.Session(alone, state=np.float32([1, 2])) as session:
        found.arrays["alone/out"] = session.run(np.float32([3, 4]))
    found.arrays["alone/state"], found.arrays["alone/replicas"] = session.state, alone.ir.replication_factor
    sharded = pf.shard(lambda x: pf.psum(x, "dp"), MESH, P("dp"), P())
    for name, f in (("jit", pf.jit(sharded)), ("eager", sharded)):
        found.arrays[f"alone/{name}"] = np.asarray(f(VECTORS[0]))


def main(result, names, coordinator=None, processes=1, process=0):
    if coordinator:
        instance = pf.distributed.initialize(coordinator, int(processes), int(process), MESH)
        assert instance == pf.distributed.instance() and instance.index == int(process)
    found = Results()
    for name in names.split(","):
        globals()[f"run_{name}"](found)
    np.savez(result, cuts=json.dumps(found.cuts), **found.arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
