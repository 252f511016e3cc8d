"""Sharded variables: flattened, padded with zeros and cut into `shard_over` parts, by default the group size."""
import numpy as np
import pytest
from engine_checks import session_on

import popfn.host as popxl

ops, f32 = popxl.ops, popxl.float32
collectives = ops.collectives
SIZES = [1, 2, 3, 5, 8, 9]


def groupings(replicas):
    """(stride, size) of the groups, and how many shards."""
    for size in (n for n in range(1, replicas + 1) if replicas % n == 0):
        for stride in dict.fromkeys((1, replicas // size)):
            yield from ((stride, size, over) for over in range(1, size + 1) if size % over == 0)
            yield stride, size, None


def cut(rows, assignment, over):
    """The shard of each replica, by the rule as it is documented."""
    shards = []
    for replica, group in enumerate(assignment):
        flat = rows[group].reshape(-1).tolist()
        length = -(-len(flat) // over)
        member = assignment[:replica].count(group) % over
        shards.append((flat + [0] * (over * length - len(flat)))[member * length:(member + 1) * length])
    return np.array(shards, np.float32)


def make(kind, ir, data, grouping, over):
    """A sharded variable, its shard, and how to write that."""
    if kind == "device":
        whole, shard = popxl.replica_sharded_variable(data, replica_grouping=grouping, shard_over=over)
        return whole, shard, lambda x: ops.var_updates.copy_var_update_(shard, x)
    buffer = popxl.replica_sharded_buffer(data.shape, f32, grouping, over, entries=2)
    if kind == "buffer of one's own":
        buffer = popxl.remote_buffer(buffer.tensor_shape, f32, entries=2)
    whole = popxl.remote_replica_sharded_variable(data, buffer, 1, replica_grouping=grouping)
    return whole, ops.remote_load(buffer, 1), lambda x: ops.remote_store(buffer, 1, x)


def check(engine, replicas, kind, cases):
    """Shards, their reductions and gathered wholes, in one program; then the host's values."""
    rng = np.random.default_rng(replicas)
    ir = popxl.Ir(replicas)
    wanted, variables = [], []
    with ir.main_graph, popxl.in_sequence():
        for n, grouping, over in cases(ir):
            groups = grouping.num_groups
            rows = rng.integers(1, 10, (groups, n)).astype(np.float32)
            data = rows if groups > 1 else rows[0]
            whole, shard, write = make(kind, ir, data, grouping, over)
            over = over or grouping.const_rg.group_size
            expected = cut(rows, grouping.assignment, over)
            results = [(shard, expected)]
            if grouping.is_const:
                each = np.array([grouping.group_size // over * np.sum(rows[g] ** 2) for g in grouping.assignment])
                results.append((collectives.replicated_all_reduce(ops.sumsquare(shard), group=grouping), each))
                if over > 1:  # the first `over` members of a group have its shards, and so have the next ones
                    gathered = collectives.replicated_all_gather(
                        shard, group=ir.replica_grouping(grouping.stride, over))
                    results.append((gathered, rows[grouping.assignment]))
            for t, value in results:
                out = popxl.d2h_stream(t.shape, f32)
                ops.host_store(out, t)
                wanted.append((out, value, (kind, n, grouping, over)))
            write(shard * 2.0)
            variables.append((whole, data))
    with session_on(engine, ir) as session:
        found = session.run()
        for out, value, case in wanted:
            np.testing.assert_array_equal(found[out], value, str(case))
        for whole, data in variables:
            np.testing.assert_array_equal(session.get_tensor_data(whole), 2 * data)
            session.write_variable_data(whole, data)
        found = session.run()
        for out, value, case in wanted:
            np.testing.assert_array_equal(found[out], value, str(case))


@pytest.mark.parametrize("kind", ["device", "remote"])
@pytest.mark.parametrize("replicas", [2, 3, 4, 6, 8])
def test_every_size_and_group(kind, replicas):
    check("numpy", replicas, kind, lambda ir: (
        (n, ir.replica_grouping(stride, size), over)
        for n in SIZES for stride, size, over in groupings(replicas)))


@pytest.mark.parametrize("kind", ["device", "remote"])
def test_groups_that_are_not_evenly_spaced(kind):
    check("numpy", 8, kind, lambda ir: (
        (n, ir.replica_grouping_from_assignments([0, 0, 1, 1, 0, 0, 1, 1]), over)
        for n in SIZES for over in (None, 1, 2)))


@pytest.mark.parametrize("kind", ["device", "remote"])
def test_on_each_engine(engine, kind):
    check(engine, 4, kind, lambda ir: [
        (2, ir.replica_grouping(), None), (2, ir.replica_grouping(), 2), (1, ir.replica_grouping(2, 2), None)])


@pytest.mark.parametrize("over, sizes", [(None, SIZES), (2, (3, 5, 7, 8)), (1, (2, 8))])
def test_a_buffer_of_ones_own(over, sizes):
    """A buffer says nothing of the number of shards: it is the group size where that fits, else what does."""
    check("numpy", 4, "buffer of one's own", lambda ir: [(n, ir.replica_grouping(), over) for n in sizes])


def test_the_norm_of_a_small_variable(engine):
    ir = popxl.Ir(4)
    with ir.main_graph:
        _, shard = popxl.replica_sharded_variable(np.array([1, 2], np.float32))
        out = popxl.d2h_stream((), f32)
        ops.host_store(out, collectives.replicated_all_reduce(ops.sumsquare(shard)))
    with session_on(engine, ir) as session:
        assert session.run()[out].tolist() == [5, 5, 5, 5]
