"""An interpreter of PopXL programs of integers without any cleverness: op by op, one value for each replica.

The memory of a replica is a list of cells, a tensor an array of cell numbers. A fresh value gets fresh cells, a view
rearranges cell numbers, a write goes to the cells. All replicas have the same cells; in the branches of a conditional
those that are not there do not write.
"""
import numpy as np

from popfn.host.tensor import Constant


def flat_parts(x, size):
    """The array as `size` equal vectors, padded with zeros."""
    length = -(-x.size // size)
    return np.pad(x.reshape(-1), (0, length * size - x.size)).reshape(size, length)


REDUCE = {
    "add": lambda x: x.sum(0), "mean": lambda x: np.trunc(x.sum(0).astype(np.int32) / len(x)),
    "min": lambda x: x.min(0), "max": lambda x: x.max(0), "square_add": lambda x: (x * x).sum(0),
}


def window(op, t, index):
    key = [slice(None)] * t.ndim
    for axis, size, start in zip(op.attrs["axes"], op.attrs["sizes"], index):
        start = max(0, min(int(start), t.shape[axis] - size))
        key[axis] = slice(start, start + size)
    return tuple(key)


def updated(op, t, index, update):
    t = t.copy()
    t[window(op, t, index)] = update
    return t


# Ops whose outputs are fresh: functions of the op and the arrays of one replica.
PURE = {
    "add": lambda op, x, y: x + y, "sub": lambda op, x, y: x - y, "mul": lambda op, x, y: x * y,
    "greater": lambda op, x, y: x > y, "where": lambda op, c, x, y: np.where(c, x, y),
    "maximum": lambda op, x, y: np.maximum(x, y), "cast": lambda op, x: x,
    "sum": lambda op, x: x.sum(op.attrs["axes"], keepdims=op.attrs["keepdims"]),
    "max": lambda op, x: x.max(op.attrs["axes"], keepdims=op.attrs["keepdims"]),
    "matmul": lambda op, x, y: x @ y, "identity": lambda op, x: x, "init": lambda op: np.zeros(op.outputs[0].shape),
    "reshape": lambda op, x: x.reshape(op.outputs[0].shape),
    "transpose": lambda op, x: x.transpose(op.attrs["permutation"]),
    "slice": lambda op, x: x[op.attrs["slices"]], "subsample": lambda op, x: x,
    "concat": lambda op, *xs: np.concatenate(xs, op.attrs["axis"]),
    "dynamic_slice": lambda op, t, i: t[window(op, t, i)], "dynamic_update": updated,
}
VIEWS = {
    "reshape_": lambda op, x: x.reshape(op.outputs[0].shape),
    "transpose_": lambda op, x: x.transpose(op.attrs["permutation"]), "slice_": lambda op, x: x[op.attrs["slices"]],
    "concat_": lambda op, *xs: np.concatenate(xs, op.attrs["axis"]), "detach_": lambda op, x: x,
}
WRITES = {
    "add_": lambda op, x, y: x + y, "copy_var_update_": lambda op, x, y: y, "accumulator_zero_": lambda op, x: 0 * x,
    "accumulate_": lambda op, x, y: x + y, "dynamic_update_": updated,
}


class Naive:
    def __init__(self, ir):
        self.ir = ir
        self.replicas = ir.replication_factor
        self.memory = np.zeros((self.replicas, 0), np.int64)
        self.here = np.ones(self.replicas, bool)
        self.remote = {}
        self.variables = {}
        for t in ir.main_graph.variables:
            self.variables[t] = self.fresh(np.array([
                t.data[t.replica_grouping.assignment[r]] if t.shape_on_host != t.shape else t.data
                for r in range(self.replicas)]))

    # Memory

    def fresh(self, value):
        value = self.wrapped(value)
        shape = value.shape[1:]
        cells = np.arange(int(np.prod(shape))).reshape(shape) + self.memory.shape[1]
        self.memory = np.concatenate([self.memory, value.reshape(self.replicas, -1)], 1)
        return cells

    @staticmethod
    def wrapped(value):
        return np.asarray(value).astype(np.int64).astype(np.int32).astype(np.int64)

    def read(self, cells):
        return self.memory[:, cells]

    def write(self, cells, value):
        new = np.broadcast_to(self.wrapped(value), self.read(cells).shape)
        for r in np.flatnonzero(self.here):
            self.memory[r, cells] = new[r]

    def on_each(self, function, op, operands):
        return np.stack([function(op, *[x[r] for x in operands]) for r in range(self.replicas)])

    # Runs

    def run(self, loaded, slots):
        """`loaded`: arrays (transfers, replicas, *shape) by stream; returns those that were stored, and where."""
        self.loaded, self.slots = loaded, slots
        self.places = {}
        self.stored = {s: np.zeros((n, self.replicas) + s.shape, np.int64) for s, n in slots.items()}
        self.is_stored = {s: np.zeros((n, self.replicas), bool) for s, n in slots.items()}
        self.graph(self.ir.main_graph, dict(self.variables))
        return self.stored, self.is_stored

    def value_of(self, t):
        """A variable on all replicas."""
        return self.read(self.variables[t])

    def next_place(self, stream, count):
        place = self.places.setdefault(stream, np.zeros(self.replicas, int))
        now = place.copy()
        place[self.here] = (place[self.here] + 1) % count
        return now

    def graph(self, graph, env):
        for op in graph.ops:
            results = self.op(op, [self.cells(t, env) for t in op.inputs])
            env.update(zip(op.outputs, results))
        return [self.cells(t, env) for t in graph.outputs]

    def cells(self, t, env):
        if t not in env:
            assert isinstance(t, Constant)
            env[t] = self.fresh(np.stack([t.data] * self.replicas))
        return env[t]

    def call(self, graph, cells, modified):
        given = [c if i in modified else self.fresh(self.read(c)) for i, c in enumerate(cells)]
        return [self.fresh(self.read(c)) for c in self.graph(graph, dict(zip(graph.inputs, given)))]

    def op(self, op, cells):
        kind, attrs = op.kind, op.attrs
        if kind in VIEWS:
            return [VIEWS[kind](op, *cells)]
        if kind == "call":
            return self.call(attrs["graph"], cells, attrs["modified"])
        if kind == "repeat":
            n = len(op.outputs)
            state = [self.fresh(self.read(c)) for c in cells[:n]]
            rest = [c if n + i in attrs["modified"] else self.fresh(self.read(c)) for i, c in enumerate(cells[n:])]
            for _ in range(attrs["count"]):
                state = self.call(attrs["graph"], state + rest, attrs["modified"])
            return state
        if kind == "conditional":
            return self.conditional(op, cells)
        xs = [self.read(c) for c in cells]
        if kind in PURE:
            return [self.fresh(self.on_each(PURE[kind], op, xs) if xs else np.stack([PURE[kind](op)] * self.replicas))]
        if kind == "split":
            ends = np.cumsum(attrs["sizes"])[:-1]
            return [self.fresh(part) for part in np.split(xs[0], ends, attrs["axis"] + 1)]
        if kind in WRITES:
            self.write(cells[0], self.on_each(WRITES[kind], op, xs))
            return [cells[0]]
        if kind == "host_load":
            data = self.loaded[attrs["stream"]]
            place = self.next_place(attrs["stream"], len(data))
            return [self.fresh(np.stack([data[place[r], r] for r in range(self.replicas)]))]
        if kind == "host_store":
            stream = attrs["stream"]
            place = self.next_place(stream, self.slots[stream])
            for r in np.flatnonzero(self.here):
                self.stored[stream][place[r], r] = xs[0][r]
                self.is_stored[stream][place[r], r] = True
            return []
        if kind.startswith("remote"):
            buffer = attrs["buffer"]
            memory = self.remote.setdefault(buffer, np.zeros(
                (self.replicas, buffer.entries) + buffer.tensor_shape, np.int64))
            where = [int(x) for x in xs[-1].reshape(self.replicas)]
            if kind == "remote_store":
                for r in np.flatnonzero(self.here):
                    memory[r, where[r]] = xs[0][r]
                return []
            value = np.stack([memory[r, where[r]] for r in range(self.replicas)])
            if kind == "remote_load":
                return [self.fresh(value)]
            self.write(cells[0], value)
            return [cells[0]]
        return self.collective(op, cells, xs[0])

    def conditional(self, op, cells):
        n = op.attrs["then_count"]
        chosen, was = self.read(cells[0]).reshape(self.replicas) != 0, self.here
        results = []
        for graph, given, mask in zip(op.attrs["graphs"], (cells[1:1 + n], cells[1 + n:]), (chosen, ~chosen)):
            self.here = was & mask
            results.append(self.call(graph, given, ()) if self.here.any() else None)
        self.here = was
        outputs = []
        for i in range(len(op.outputs)):
            a, b = [self.read(r[i]) if r is not None else None for r in results]
            a, b = (b if a is None else a), (a if b is None else b)
            outputs.append(self.fresh(np.stack([a[r] if chosen[r] else b[r] for r in range(self.replicas)])))
        return outputs

    def collective(self, op, cells, x):
        attrs, result = op.attrs, [None] * self.replicas
        for members in attrs["group"]._members():
            values = x[list(members)]
            for k, r in enumerate(members):
                if op.kind in ("replicated_all_reduce", "replicated_all_reduce_"):
                    result[r] = REDUCE[attrs["op"]](values)
                elif op.kind == "replicated_reduce_scatter":
                    result[r] = flat_parts(REDUCE[attrs["op"]](values), len(members))[k]
                elif op.kind == "replica_sharded_slice":
                    result[r] = flat_parts(x[r], len(members))[k]
                elif op.kind == "replicated_slice":
                    part = np.split(x[r], len(members), attrs["axis"])[k]
                    result[r] = part.reshape(op.outputs[0].shape)
                elif op.kind == "replicated_all_gather" and attrs["output"] == "concat":
                    result[r] = np.concatenate(list(values), attrs["axis"])
                elif op.kind == "replicated_all_gather" and attrs["output"] == "new_axis":
                    result[r] = values
                else:
                    assert op.kind == "replicated_all_gather" and attrs["output"] == "meta_shape", op
                    shape = op.outputs[0].shape
                    result[r] = values.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        if op.kind.endswith("_"):
            self.write(cells[0], np.stack(result))
            return cells
        return [self.fresh(np.stack(result))]
