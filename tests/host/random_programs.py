"""Random PopXL programs, drawn from a tape of numbers: calls, loops, branches, updates in place, transfers, replicas.

All tensors are of int32, so that results are exact in whatever order sums are taken.
"""
import itertools

import numpy as np

import popfn.host as popxl

ops, collectives = popxl.ops, popxl.ops.collectives
I32 = popxl.int32
SHAPES = [(2, 3), (3,), (), (3, 2), (6,), (2, 2)]


class Program:
    """A random program in `ir`, and data for its streams."""

    def __init__(self, tape, replicas, transfers=1):
        self.tape = iter(tape)
        self.ir = ir = popxl.Ir(replicas)
        ir.num_host_transfers = transfers
        self.transfers, self.replicas = transfers, replicas
        self.is_apart = False  # whether the ops are in a branch that not all replicas need to take, without collectives
        self.numbers = itertools.count()
        rng = np.random.default_rng(len(tape))
        self.data = lambda *shape: rng.integers(-4, 5, shape).astype(np.int32)
        sizes = [size for size in range(1, replicas + 1) if replicas % size == 0]
        self.groups = [
            ir.replica_grouping(stride, size) for size in sizes for stride in sizes if replicas % (stride * size) == 0
        ]
        with ir.main_graph:
            self.h2d = [popxl.h2d_stream(shape, I32, name=f"x{i}") for i, shape in enumerate(SHAPES[:2])]
            self.d2h = [popxl.d2h_stream(shape, I32, name=f"y{i}") for i, shape in enumerate(SHAPES[:3])]
            self.buffers = [popxl.remote_buffer((2, 3), I32, 3), popxl.remote_buffer((), I32, 2)]
            self.variables = [self.variable(shape) for shape in SHAPES[:4]]
            self.remote = popxl.remote_variable(self.data(2, 3), self.buffers[0], 1, name="r0")
            grouping = self.pick(self.groups)
            rows = (grouping.num_groups,) if grouping.num_groups > 1 else ()
            popxl.remote_variable(self.data(*rows), self.buffers[1], 1, name="r1", replica_grouping=grouping)
            pool = list(self.variables)
            if replicas > 1:
                _, shard = popxl.replica_sharded_variable(self.data(5), name="sharded")
                shard += self.constant(shard.shape)
                pool.append(collectives.replicated_all_gather(shard))
            pool.append(ops.host_load(self.h2d[0]))
            self.body(pool, 16, 0)
            for t in pool[-3:]:
                self.store(t)

    def next(self):
        return next(self.tape, 0)

    def pick(self, items):
        return items[self.next() % len(items)]

    def constant(self, shape):
        return popxl.constant(self.data(*shape), I32)

    def variable(self, shape):
        grouping = self.pick(self.groups)
        rows = (grouping.num_groups,) if grouping.num_groups > 1 else ()
        name = f"v{next(self.numbers)}"
        return popxl.variable(self.data(*rows, *shape), name=name, replica_grouping=grouping)

    def store(self, t):
        """Store a tensor to the stream of its shape, if there is one."""
        for stream in self.d2h:
            if stream.shape == t.shape:
                ops.host_store(stream, t)

    def like(self, pool, shape):
        """A tensor of this shape."""
        return self.pick([t for t in pool if t.shape == shape] or [self.constant(shape)])

    def shaped(self, pool):
        """The tensors that are no scalars."""
        return [t for t in pool if t.shape] or [self.constant((3,))]

    def body(self, pool, count, depth):
        """Add some steps to the current graph."""
        for _ in range(count):
            made = self.step(pool, depth)
            pool.extend(t for t in made if len(t.shape) < 3 and t.nelms <= 12)

    def step(self, pool, depth):
        simple = [
            self.unary, self.binary, self.broadcast, self.rearrange, self.part, self.join, self.reduce, self.pick_rows,
            self.product, self.choose, self.window,
        ]
        changing = [self.update, self.update, self.update_view, self.update_window]
        moving = [self.load, self.store_any, self.remote_load, self.remote_store, self.remote_load_into]
        across = [self.all_reduce, self.gather, self.scatter, self.split]
        across = across if self.replicas > 1 and not self.is_apart else []
        control = [self.call, self.repeat, self.branch] * 2 if depth < 3 else []
        return self.pick(simple + changing + moving + across * 2 + control)(pool, depth)

    # Values

    def unary(self, pool, depth):
        return [self.pick([ops.negate, ops.abs, ops.relu, ops.sign, ops.identity])(self.pick(pool))]

    def binary(self, pool, depth):
        x = self.pick(pool)
        return [self.pick([ops.add, ops.sub, ops.mul, ops.maximum])(x, self.like(pool, x.shape))]

    def broadcast(self, pool, depth):
        shapes = self.pick([((2, 3), (3,)), ((3,), (2, 3)), ((), (2, 3)), ((3, 2), ()), ((6,), ())])
        x, y = [self.like(pool, shape) for shape in shapes]
        return [self.pick([ops.add, ops.mul, ops.sub])(x, y)]

    def rearrange(self, pool, depth):
        x = self.pick(self.shaped(pool))
        if len(x.shape) == 2 and self.next() % 2:
            return [ops.transpose(x)]
        return [ops.reshape(x, self.pick([(-1,), (1, -1), (-1, 1)]))]

    def part(self, pool, depth):
        x = self.pick(self.shaped(pool))
        axis = self.next() % len(x.shape)
        stop = 1 + self.next() % x.shape[axis]
        if self.next() % 3 == 0:
            return [ops.slice(x, None, None, -1, axis)]
        return [ops.slice(x, self.next() % stop, stop, 1, axis)]

    def join(self, pool, depth):
        x = self.pick(self.shaped(pool))
        return [ops.concat([x, self.like(pool, x.shape)], self.next() % len(x.shape))]

    def reduce(self, pool, depth):
        x = self.pick(self.shaped(pool))
        axis = self.next() % len(x.shape)
        if self.next() % 4 == 0:
            return [ops.cumsum(x, axis)]
        return [self.pick([ops.sum, ops.max, ops.min, ops.prod])(x, axis, self.next() % 2 == 0)]

    def pick_rows(self, pool, depth):
        x = self.pick(self.shaped(pool))
        indices = ops.clip(self.like(pool, self.pick([(3,), ()])), 0, 10)
        return [ops.gather(x, indices, self.next() % len(x.shape))]

    def product(self, pool, depth):
        shapes = self.pick([((2, 3), (3, 2)), ((3, 2), (2, 3)), ((2, 3), (3,)), ((3,), (3, 2)), ((3,), (3,))])
        return [ops.matmul(*[self.like(pool, shape) for shape in shapes])]

    def choose(self, pool, depth):
        x = self.pick(pool)
        y, z = self.like(pool, x.shape), self.like(pool, self.pick([x.shape, ()]))
        return [ops.where(ops.greater(x, y), y, z)]

    def window(self, pool, depth):
        x = self.pick(self.shaped(pool))
        index = ops.reshape(self.like(pool, ()), (1,))
        return [ops.dynamic_slice(x, index, [0], [1], True)]

    # Changes of what is there

    def update(self, pool, depth):
        x = self.pick(pool)
        how = self.next() % 4
        if how == 0:
            ops.var_updates.copy_var_update_(x, self.like(pool, x.shape))
        elif how == 1:
            return [ops.relu_(x)]
        elif how == 2:
            ops.var_updates.accumulate_(x, self.like(pool, x.shape))
        else:
            return [ops.add_(x, self.like(pool, self.pick([x.shape, ()])))]
        return []

    def update_view(self, pool, depth):
        x = self.pick(self.shaped(pool))
        axis = self.next() % len(x.shape)
        view = ops.slice_(x, 0, 1 + self.next() % x.shape[axis], 1, axis)
        if self.next() % 4 == 0:
            view = ops.detach_(view)
        if self.next() % 2:
            view = ops.transpose_(view)
        view += self.like(pool, self.pick([view.shape, ()]))
        return [view] if self.next() % 2 else []

    def update_window(self, pool, depth):
        x = self.like(pool, (2, 3))
        index = ops.reshape(self.like(pool, ()), (1,))
        change = ops.reshape(self.like(pool, (3,)), (1, 3))
        return [self.pick([ops.dynamic_update, ops.dynamic_update_])(x, index, change, [0], [1], True)]

    # Transfers

    def load(self, pool, depth):
        return [ops.host_load(self.pick(self.h2d))]

    def store_any(self, pool, depth):
        self.store(self.pick(pool))
        return []

    def offset(self, pool, buffer):
        """An offset in the buffer."""
        if self.next() % 2:
            return self.next() % buffer.entries
        return ops.clip(self.like(pool, ()), 0, buffer.entries - 1)

    def remote_load(self, pool, depth):
        buffer = self.pick(self.buffers)
        return [ops.remote_load(buffer, self.offset(pool, buffer))]

    def remote_load_into(self, pool, depth):
        buffer = self.pick(self.buffers)
        return [ops.remote_load_(buffer, self.offset(pool, buffer), self.like(pool, buffer.tensor_shape))]

    def remote_store(self, pool, depth):
        buffer = self.pick(self.buffers)
        ops.remote_store(buffer, self.offset(pool, buffer), self.like(pool, buffer.tensor_shape))
        return []

    # Replicas

    def all_reduce(self, pool, depth):
        function = self.pick([collectives.replicated_all_reduce, collectives.replicated_all_reduce_])
        how = self.pick(["add", "min", "max", "and", "or", "square_add"])
        return [function(self.pick(pool), how, self.pick(self.groups))]

    def gather(self, pool, depth):
        x = self.pick(self.shaped(pool))
        if self.next() % 2:
            return [collectives.replicated_all_gather(x, 0, self.pick(self.groups), "new_axis")]
        return [collectives.replicated_all_gather(x, self.next() % len(x.shape), self.pick(self.groups), "concat")]

    def scatter(self, pool, depth):
        x, group = self.pick(self.shaped(pool)), self.pick(self.groups)
        if self.next() % 2:
            how = self.pick(["add", "max", "square_add"])
            return [collectives.replicated_reduce_scatter(x, how, group)]
        shard = collectives.replica_sharded_slice(x, group)
        return [shard, collectives.replicated_all_gather(shard, group=group)]

    def split(self, pool, depth):
        x, group = self.like(pool, (6,)), self.pick(self.groups)
        return [collectives.replicated_slice(x, 0, group)] if 6 % group.group_size == 0 else []

    # Control flow

    def graph(self, inputs, by_ref, depth, outputs):
        """A graph with these inputs, and as outputs a tensor of each of these shapes."""
        graph = self.ir.create_empty_graph()
        with graph:
            pool = [popxl.graph_input(t.shape, I32, by_ref=is_ref) for t, is_ref in zip(inputs, by_ref)]
            pool = pool or [self.constant((3,))]
            self.body(pool, 1 + self.next() % 4, depth + 1)
            for shape in outputs:
                popxl.graph_output(self.like(pool, shape))
        return graph

    def call(self, pool, depth):
        inputs = [self.pick(pool) for _ in range(1 + self.next() % 3)]
        by_ref = [self.next() % 2 == 0 and inputs.count(t) == 1 and t in self.variables for t in inputs]
        graph = self.graph(inputs, by_ref, depth, [self.pick(SHAPES) for _ in range(self.next() % 3)])
        results = ops.call(graph, *inputs)
        if self.next() % 3 == 0 and not any(by_ref):
            results += ops.call(graph, *[self.like(pool, t.shape) for t in inputs])
        return results

    def repeat(self, pool, depth):
        inputs = [self.pick(pool) for _ in range(1 + self.next() % 3)]
        carried = self.next() % (len(inputs) + 1)
        by_ref = [
            i >= carried and self.next() % 2 == 0 and inputs.count(t) == 1 and t in self.variables
            for i, t in enumerate(inputs)
        ]
        graph = self.graph(inputs, by_ref, depth, [t.shape for t in inputs[:carried]])
        return ops.repeat(graph, self.next() % 5, *inputs)

    def branch(self, pool, depth):
        t = ops.sum(self.pick(pool)) if self.next() % 2 else self.like(pool, ())
        was, self.is_apart = self.is_apart, self.is_apart or self.replicas > 1 and self.next() % 2 == 0
        if self.replicas > 1 and not self.is_apart:
            t = collectives.replicated_all_reduce(t)
        outputs = [self.pick(SHAPES) for _ in range(self.next() % 3)]
        inputs = [[self.pick(pool) for _ in range(self.next() % 3)] for _ in range(2)]
        graphs = [self.graph(chosen, [False] * len(chosen), depth, outputs) for chosen in inputs]
        self.is_apart = was
        return ops.conditional(ops.greater(t, self.constant(())), *graphs, *inputs)

    # Data

    def inputs(self, session):
        lead = ((self.transfers,) if self.transfers > 1 else ()) + ((self.replicas,) if self.replicas > 1 else ())
        return {stream: self.data(*lead, *stream.shape) for stream in sorted(session.expected_inputs(), key=str)}
