"""A naive interpreter of Irs: one array for each replica and tensor, op by op, in the order of creation.

What an op without replicas computes it takes from the table of kernels, which has tests of its own; storage, control
flow, transfers and collectives are written out here.
"""
import numpy as np

from popfn.host import _placement
from popfn.host.engine.kernels import KERNELS
from popfn.host.engine.plan import evaluate, storage_dtype
from popfn.host.tensor import Constant, Shard, Variable

VIEWS = {
    "reshape_": lambda op, x: x.reshape(op.outputs[0].shape),
    "transpose_": lambda op, x: x.transpose(op.attrs["permutation"]),
    "slice_": lambda op, x: x[op.attrs["slices"]],
    "detach_": lambda op, x: x[...],
}
REDUCTIONS = {
    "add": np.add.reduce,
    "mean": lambda xs: (np.add.reduce(xs.astype(np.float64)) / len(xs)).astype(xs.dtype),
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "and": lambda xs: np.logical_and.reduce(xs).astype(xs.dtype),
    "or": lambda xs: np.logical_or.reduce(xs).astype(xs.dtype),
    "square_add": lambda xs: np.add.reduce(xs * xs),
}


class Interpreter:
    """The state of a program on all replicas, from the host's data on."""

    def __init__(self, ir):
        self.ir = ir
        self.replicas = ir.replication_factor
        self.state, self.remote = {}, {}
        for t in ir.main_graph.variables:
            if not _placement.is_stored(t):
                continue
            values, holder = _placement.to_device(t), _placement.holder(t)
            shape = holder.shape if t._remote is None else t._remote[0].tensor_shape
            values = np.broadcast_to(values, (self.replicas,) + shape)
            if t._remote is None:
                self.state[holder] = [np.array(value) for value in values]
            else:
                for replica, value in enumerate(values):
                    self.entry(t._remote[0], replica, t._remote[1])[...] = value

    def entry(self, buffer, replica, offset):
        assert 0 <= offset < buffer.entries
        if (buffer, replica, offset) not in self.remote:
            self.remote[buffer, replica, offset] = np.zeros(buffer.tensor_shape, storage_dtype(buffer.tensor_dtype))
        return self.remote[buffer, replica, offset]

    def read(self, t):
        """The values of a variable or shard on the replicas."""
        if isinstance(t, Variable) and t._remote is not None:
            return np.stack([self.entry(t._remote[0], replica, t._remote[1]) for replica in range(self.replicas)])
        return np.stack(self.state[t])

    def run(self, inputs, outputs):
        """As `Executable.run`."""
        self.streams = {**inputs, **outputs}
        self.places = {(stream, r): 0 for stream in self.streams for r in range(self.replicas)}
        self.taking = list(range(self.replicas))  # the replicas that take the branch
        self.graph(self.ir.main_graph, {})

    def rows(self, stream):
        """The rows of the replicas that take the branch, by their numbers; they move on."""
        rows = {}
        for replica in self.taking:
            place = self.places[stream, replica]
            self.places[stream, replica] = (place + 1) % len(self.streams[stream])
            array = self.streams[stream][place]
            rows[replica] = (array if self.replicas > 1 else array[np.newaxis])[replica, ...]
        return rows

    def all_rows(self, rows):
        """Rows for all replicas: those that do not take the branch get any."""
        first = next(iter(rows.values()))
        return [np.array(rows.get(replica, first)) for replica in range(self.replicas)]

    def graph(self, graph, values):
        for op in graph.ops:
            self.op(op, values)
        return [self.value(t, values) for t in graph.outputs]

    def value(self, t, values):
        if t not in values:
            if isinstance(t, Constant):
                values[t] = [np.array(t.data) for _ in range(self.replicas)]
            else:
                assert isinstance(t, (Variable, Shard))
                values[t] = self.state[t]
        return values[t]

    def op(self, op, values):
        ins = [self.value(t, values) for t in op.inputs]
        if hasattr(self, op.kind):
            results = getattr(self, op.kind)(op, ins)
        elif "group" in op.attrs:
            results = [self.collective(op, ins[0])]
        elif op.kind in VIEWS:
            results = [[VIEWS[op.kind](op, x) for x in ins[0]]]
            assert all(np.shares_memory(x, y) for x, y in zip(results[0], ins[0]))
        else:
            kernel = KERNELS[op.kind]
            rows = [evaluate(op, kernel, [x[r] for x in ins]) for r in range(self.replicas)]
            if kernel.writes:
                for x, row in zip(ins[0], rows):
                    x[...] = row[0]
                results = [ins[0]]
            else:
                results = [[np.array(row[i]) for row in rows] for i in range(len(op.outputs))]
        values.update(zip(op.outputs, results))

    def collective(self, op, xs):
        group, kind = op.attrs["group"], op.kind
        results = [None] * self.replicas
        for members in group._members():
            size, parts = len(members), np.stack([xs[replica] for replica in members])
            for k, replica in enumerate(members):
                if kind in ("replicated_all_reduce", "replicated_all_reduce_"):
                    result = REDUCTIONS[op.attrs["op"]](parts)
                elif kind == "replicated_all_gather":
                    how, axis = op.attrs["output"], op.attrs["axis"]
                    if how == "concat":
                        result = np.concatenate(parts, axis)
                    elif how == "new_axis":
                        result = parts
                    else:
                        shape = op.outputs[0].shape
                        result = parts.reshape(-1)[: int(np.prod(shape))].reshape(shape)
                elif kind == "replicated_slice":
                    axis = op.attrs["axis"]
                    result = np.split(xs[replica], size, axis)[k].reshape(op.outputs[0].shape)
                else:
                    length = op.outputs[0].shape[0]
                    flat = np.zeros((size, length * size), parts.dtype)
                    flat[:, : xs[replica].size] = parts.reshape(size, -1)
                    is_slice = kind == "replica_sharded_slice"
                    total = flat[k] if is_slice else REDUCTIONS[op.attrs["op"]](flat)
                    result = total[k * length : (k + 1) * length]
                results[replica] = np.array(result)
        if kind.endswith("_"):
            for x, result in zip(xs, results):
                x[...] = result
            return xs
        return results

    # Ops that the engines have no kernels for

    def host_load(self, op, ins):
        return [self.all_rows(self.rows(op.attrs["stream"]))]

    def host_store(self, op, ins):
        for replica, row in self.rows(op.attrs["stream"]).items():
            row[...] = ins[0][replica]
        return []

    def remote_load(self, op, ins):
        return [self.all_rows({r: self.entry(op.attrs["buffer"], r, ins[0][r].item()) for r in self.taking})]

    def remote_load_(self, op, ins):
        for r in self.taking:
            ins[0][r][...] = self.entry(op.attrs["buffer"], r, ins[1][r].item())
        return [ins[0]]

    def remote_store(self, op, ins):
        for r in self.taking:
            self.entry(op.attrs["buffer"], r, ins[1][r].item())[...] = ins[0][r]
        return []

    def remote_code_load(self, op, ins):
        return []

    def call(self, op, ins):
        return self.called(op.attrs["graph"], ins, op.attrs["modified"])

    def called(self, graph, ins, modified=()):
        args = [x if i in modified else [y.copy() for y in x] for i, x in enumerate(ins)]
        return [[y.copy() for y in x] for x in self.graph(graph, dict(zip(graph.inputs, args)))]

    def repeat(self, op, ins):
        count = len(op.outputs)
        values = [[y.copy() for y in x] for x in ins[:count]]
        for _ in range(op.attrs["count"]):
            values = self.called(op.attrs["graph"], values + ins[count:], op.attrs["modified"])
        return values

    def conditional(self, op, ins):
        """Each replica takes its own branch."""
        first, before = 1 + op.attrs["then_count"], self.taking
        rows = [{} for _ in op.outputs]
        for is_true, graph, part in zip((True, False), op.attrs["graphs"], (ins[1:first], ins[first:])):
            self.taking = [replica for replica in before if bool(ins[0][replica].item()) == is_true]
            if self.taking:
                for found, values in zip(rows, self.called(graph, part)):
                    found.update({replica: values[replica] for replica in self.taking})
            self.taking = before
        return [self.all_rows(found) for found in rows]
