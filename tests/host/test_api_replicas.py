"""Replica groupings, remote buffers, variables over replicas, collectives, and how a Session lays data out."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host import _placement
from popfn.host.errors import popart_exception

ops, collectives = popxl.ops, popxl.ops.collectives
F32 = popxl.float32


def raises(error, text):
    return pytest.raises(error, match=text)


def array(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


class TestGroupings:
    @pytest.mark.parametrize(
        "replicas, stride, size, assignment",
        [
            (4, 1, 4, [0, 0, 0, 0]),
            (4, 1, 1, [0, 1, 2, 3]),
            (4, 1, 2, [0, 0, 1, 1]),
            (4, 2, None, [0, 1, 0, 1]),
            (8, 2, 2, [0, 1, 0, 1, 2, 3, 2, 3]),
            (8, 4, 2, [0, 1, 2, 3, 0, 1, 2, 3]),
            (12, 3, 2, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]),
        ],
    )
    def test_strides(self, replicas, stride, size, assignment):
        group = popxl.Ir(replicas).replica_grouping(stride, size)
        assert group.assignment == assignment and group.is_const
        assert (group.num_groups, group.group_size) == (max(assignment) + 1, assignment.count(0))
        assert group.stride == (1 if group.group_size == 1 else stride)
        assert group.transpose().transpose() == group and group.const_rg is group
        assert group.to_device_map is None and group.to_host_map is None

    def test_one_that_is_not_const(self):
        group = popxl.Ir(8).replica_grouping_from_assignments([0, 0, 1, 1, 0, 0, 1, 1])
        assert not group.is_const and group.const_rg.assignment == [0, 0, 1, 1, 2, 2, 3, 3]
        assert (group.to_device_map, group.to_host_map) == ([0, 1, 0, 1], [0, 1])
        assert group.transpose().assignment == [0, 1, 0, 1, 2, 3, 2, 3]
        with raises(NotImplementedError, r"ReplicaGrouping\(\[0, 0, 1, 1, 0, 0, 1, 1\]\) has no single stride"):
            _ = group.stride
        group = popxl.Ir(8).replica_grouping_from_assignments([0, 1, 1, 0, 0, 1, 1, 0])
        assert group.const_rg.assignment == list(range(8))

    @pytest.mark.parametrize(
        "arguments, error, text",
        [
            ((3, None), ValueError, "the stride must divide the number of replicas, 8, not 3"),
            ((0, None), ValueError, "must divide the number of replicas, 8, not 0"),
            ((1, 9), ValueError, "group_size must be from 1 to the number of replicas, 8, not 9"),
            ((1, 3), ValueError, "8 replicas cannot be divided into groups of 3 at the stride 1"),
            (("1", 2), TypeError, "stride must be an int, not '1'"),
        ],
    )
    def test_refused(self, arguments, error, text):
        with raises(error, text):
            popxl.Ir(8).replica_grouping(*arguments)

    @pytest.mark.parametrize(
        "assignment, text",
        [
            ([0, 1], "there are 2 entries for 4 replicas"),
            ([1, 0, 1, 0], "numbered from 0 in the order of their first replica"),
            ([0, 0, 0, 1], r"not of equal size: \[3, 1\]"),
            ([0, 1, 2, 3], "no groups of one replica"),
        ],
    )
    def test_refused_assignments(self, assignment, text):
        with raises(ValueError, text):
            popxl.Ir(4).replica_grouping_from_assignments(assignment)

    def test_equality(self):
        ir = popxl.Ir(4)
        assert ir.replica_grouping(1, 2) == ir.replica_grouping_from_assignments([0, 0, 1, 1])
        assert ir.replica_grouping(1, 2) != popxl.Ir(4).replica_grouping(1, 2)
        with raises(TypeError, "can be compared with another one only, not with 1"):
            _ = ir.replica_grouping() == 1


@pytest.fixture
def ir():
    return popxl.Ir(4)


@pytest.fixture
def main(ir):
    with ir.main_graph:
        yield ir.main_graph


class TestRemoteBuffers:
    def test_facts(self, main):
        first, buffer = popxl.remote_buffer((1,), F32), popxl.RemoteBuffer((2, 3), F32, 4)
        assert (first.remote_buffer_id, buffer.remote_buffer_id, first.entries) == (1, 2, 1)
        assert (buffer.tensor_shape, buffer.tensor_dtype, buffer.entries, buffer.meta_shape) == ((2, 3), F32, 4, ())
        assert len({first, buffer, buffer}) == 2
        buffer.entries = 7
        buffer.set_remote_buffer_info(popxl.int32, [5], 2)
        assert (buffer.tensor_shape, buffer.tensor_dtype, buffer.entries) == ((5,), popxl.int32, 2)

    def test_refused(self, main):
        buffer = popxl.remote_buffer((2,), F32, 2)
        t = popxl.variable(np.zeros(3, np.float32), name="t")
        for act, error, text in (
            (lambda: popxl.remote_buffer((2,), F32, 0), ValueError, "entries must be 1 or more, not 0"),
            (lambda: popxl.remote_buffer((2,), F32, 1.5), TypeError, "entries must be an int, not 1.5"),
            (lambda: popxl.remote_buffer((2,), "f"), TypeError, "dtype must be a popxl dtype"),
            (lambda: ops.remote_store(buffer, 0, t), ValueError, r"cannot hold Tensor\[t float32 \(3,\)\]"),
            (lambda: ops.remote_load(buffer, "0"), TypeError, "the offset must be an int or a Tensor, not '0'"),
            (lambda: ops.remote_load(buffer, -1), ValueError, "the offset must not be negative: -1"),
            (lambda: ops.remote_load(3, 0), TypeError, "remote_load: expected a RemoteBuffer, not 3"),
        ):
            with raises(error, text):
                act()
        with raises(TypeError, "expected a RemoteBuffer"):
            popxl.remote_variable([1.0], 3)

    def test_ops(self, main):
        buffer = popxl.remote_buffer((2,), F32, 2)
        offset, t = popxl.variable(1, name="i"), popxl.variable([1.0, 2.0])
        loaded = ops.remote_load(buffer, 1)
        assert loaded.name == "id_1_offset_offset_remote_loaded" and loaded.producer.attrs == {"buffer": buffer}
        assert loaded.producer.inputs[0].dtype is popxl.uint32
        assert ops.remote_load(buffer, offset, "x").name == "x_remote_loaded"
        assert ops.remote_load_(buffer, offset, t).producer.inputs == (t, offset)
        assert ops.remote_store(buffer, offset, t) is None and main.ops[-1].inputs == (t, offset)

    def test_a_buffer_of_another_ir(self, main):
        buffer = popxl.remote_buffer((2,), F32)
        other = popxl.Ir()
        graph = other.create_empty_graph()
        popxl.context.pop_graph()  # the fixture's graph; its Ir differs
        try:
            with graph, raises(ValueError, r"remote_load: RemoteBuffer\[1 .* belongs to another Ir"):
                ops.remote_load(buffer, 0)
        finally:
            popxl.context.push_graph(main)

    def test_shards(self, ir, main):
        buffer = popxl.replica_sharded_buffer((5,), F32)
        assert (buffer.tensor_shape, buffer.meta_shape) == ((2,), (5,))
        pairs = ir.replica_grouping(group_size=2)
        assert popxl.replica_sharded_buffer((2, 5), F32, pairs).tensor_shape == (3,)
        assert popxl.replica_sharded_buffer((5,), F32, shard_over=2).tensor_shape == (3,)
        with raises(ValueError, "shard_over must divide the group size, 4; it is 3"):
            popxl.replica_sharded_buffer((5,), F32, shard_over=3)
        with raises(TypeError, "a scalar has no shards"):
            popxl.replica_sharded_buffer((), F32)


class TestVariables:
    def test_groups(self, ir, main):
        v = popxl.variable(array(2, 3), replica_grouping=ir.replica_grouping(stride=2))
        assert (v.shape, v.shape_on_host, v.shape_on_replica) == ((3,), (2, 3), (3,))
        w = popxl.variable(array(2, 3))
        assert (w.shape, w.shape_on_host, w.replica_grouping) == ((2, 3), (2, 3), ir.replica_grouping())
        with raises(popart_exception, r"data of the shape \(3,\) has no leading axis for the 4 groups"):
            popxl.variable(array(3), replica_grouping=ir.replica_grouping(group_size=1))
        loose = popxl.variable(array(2, 3), replica_grouping=ir.replica_grouping_from_assignments([0, 1, 1, 0]))
        with raises(popart_exception, "is not const; use shape"):
            _ = loose.shape_on_replica

    def test_sharded(self, ir, main):
        whole, shard = popxl.replica_sharded_variable(array(2, 3), name="w", shard_over=2)
        assert (whole.shape, shard.shape, shard.meta_shape) == ((2, 3), (3,), (2, 3))
        assert shard.name == "w_rts_remote_loaded"
        gathered = collectives.replicated_all_gather(shard, group=ir.replica_grouping(group_size=2))
        assert (gathered.shape, gathered.meta_shape) == ((2, 3), ())
        with raises(ValueError, "shard_over must divide the group size"):
            popxl.replica_sharded_variable(array(2, 3), shard_over=3)
        assert len(main.tensors) == 3  # the refused one has left nothing behind

    def test_sharding_needs_replicas(self):
        with popxl.Ir().main_graph, raises(ValueError, "there must be several replicas .* factor is 1"):
            popxl.replica_sharded_variable(array(4))

    def test_remote_sharded(self, main):
        buffer = popxl.remote_buffer((2,), F32)
        popxl.remote_replica_sharded_variable(array(5), buffer)
        assert buffer.meta_shape == ops.remote_load(buffer, 0).meta_shape == (5,)
        with raises(ValueError, r"holds shards of tensors of the shape \(5,\), not \(6,\)"):
            popxl.remote_replica_sharded_variable(array(6), buffer)

    def test_memmaps(self, tmp_path, ir, main):
        data = np.memmap(tmp_path / "data", np.float32, "w+", shape=(2, 3))
        assert popxl.variable(data, replica_grouping=ir.replica_grouping(stride=2)).data is data
        with pytest.warns(UserWarning, match="the memmap is copied"):
            copied = popxl.variable(data, replica_grouping=ir.replica_grouping_from_assignments([0, 1, 1, 0]))
        assert not isinstance(copied.data, np.memmap)


class TestCollectives:
    @pytest.fixture
    def t(self, main):
        return popxl.variable(array(4, 3), name="t")

    def test_shapes(self, ir, t):
        pairs = ir.replica_grouping(group_size=2)
        gather, scatter = collectives.replicated_all_gather, collectives.replicated_reduce_scatter
        assert collectives.replicated_all_reduce(t, "max", pairs).producer.attrs == {"op": "max", "group": pairs}
        assert collectives.replicated_all_reduce_(t).producer.attrs["group"] == ir.replica_grouping()
        assert gather(t).shape == (16, 3) and gather(t, 1, pairs).shape == (4, 6)
        assert gather(t, output_shape="new_axis").shape == (4, 4, 3)
        assert scatter(t).shape == (3,) and scatter(t).meta_shape == ()
        assert scatter(t, configure_output_for_replicated_tensor_sharding=True).meta_shape == (4, 3)
        sliced = collectives.replica_sharded_slice(t, pairs)
        assert (sliced.shape, sliced.meta_shape) == ((6,), (4, 3)) and gather(sliced, group=pairs).shape == (4, 3)
        assert collectives.replicated_slice(t).shape == (3,)
        assert collectives.replicated_slice(t, 0, pairs).shape == (2, 3)

    def test_refused(self, ir, t):
        loose = ir.replica_grouping_from_assignments([0, 1, 1, 0])
        for act, error, text in (
            (lambda: collectives.replicated_all_reduce(t, "xor"), ValueError, "op must be one of add, .*not 'xor'"),
            (lambda: collectives.replicated_all_reduce(t, group=3), TypeError, "group must be a ReplicaGrouping"),
            (lambda: collectives.replicated_all_gather(t, group=loose), NotImplementedError, "no single stride"),
            (lambda: collectives.replicated_all_gather(t, 2), IndexError, "axis 2 is out of range"),
            (lambda: collectives.replicated_all_gather(t, 0, None, "x"), ValueError, "output_shape must be"),
            (lambda: collectives.replicated_slice(t, 1), ValueError, "axis 1 of .* has no 4 equal parts"),
            (lambda: collectives.all_reduce(t), TypeError, "ts must be a list"),
            (lambda: collectives.all_reduce([t, t]), ValueError, "is not known: pass ipus"),
            (lambda: collectives.all_reduce([t], [0, 1]), ValueError, "1 tensors and 2 IPUs"),
        ):
            with raises(error, text):
                act()

    def test_over_ipus(self, t):
        kinds = collectives.all_reduce, collectives.all_reduce_identical_inputs
        for function, flags in zip(kinds, ((False, False), (True, False))):
            made = function([t, t], [0, 1])
            attrs = made[0].producer.attrs
            assert [x.shape for x in made] == [(4, 3)] * 2 and attrs["op"] == "add"
            assert (attrs["identical_inputs"], attrs["identical_grad_inputs"]) == flags

    def test_a_group_of_another_number_of_replicas(self, ir, main):
        ops.host_store(popxl.d2h_stream((1,), F32), collectives.replicated_all_reduce(popxl.variable([1.0])))
        ir.replication_factor = 2
        text = r"replicated_all_reduce.* cannot run: .* is for 4 replicas, and there are 2 \(\S*_replicas.py:\d+\)\.$"
        with raises(popart_exception, text):
            popxl.Session(ir)

    def test_mul_is_refused(self, ir, main):
        ops.host_store(popxl.d2h_stream((1,), F32), collectives.replicated_all_reduce(popxl.variable([1.0]), "mul"))
        with raises(popart_exception, 'op="mul" gives the mean in PopXL'):
            popxl.Session(ir)


class TestPlacement:
    """What reaches the engine, and what the host makes of what comes back."""

    def round_trip(self, t, change=lambda x: x):
        device = _placement.to_device(t)
        _placement.to_host(t, change(np.array(device)))
        return device

    def test_one_value(self, main):
        v = popxl.variable(array(3))
        assert self.round_trip(v, lambda x: x + 1).shape == (3,)
        np.testing.assert_array_equal(v.data, [1, 2, 3])

    def test_of_several_values_the_first_counts(self, main):
        v = popxl.variable(array(3))
        _placement.to_host(v, array(4, 3) + 10)
        np.testing.assert_array_equal(v.data, [10, 11, 12])

    @pytest.mark.parametrize("assignment", [[0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 0]])
    def test_groups(self, ir, main, assignment):
        v = popxl.variable(array(2, 3), replica_grouping=ir.replica_grouping_from_assignments(assignment))
        np.testing.assert_array_equal(self.round_trip(v), array(2, 3)[assignment])
        np.testing.assert_array_equal(v.data, array(2, 3))
        _placement.to_host(v, array(4, 3))  # the first replica of each group
        np.testing.assert_array_equal(v.data, array(4, 3)[[assignment.index(0), assignment.index(1)]])

    def test_scalars(self, ir, main):
        v = popxl.variable(array(4), replica_grouping=ir.replica_grouping(group_size=1))
        np.testing.assert_array_equal(self.round_trip(v, lambda x: x * 2), [0, 1, 2, 3])
        np.testing.assert_array_equal(v.data, [0, 2, 4, 6])

    def test_shards(self, main):
        whole, shard = popxl.replica_sharded_variable(array(5))
        np.testing.assert_array_equal(self.round_trip(whole, lambda x: x + 1), [[0, 1], [2, 3], [4, 0], [0, 0]])
        np.testing.assert_array_equal(whole.data, array(5) + 1)
        assert _placement.holder(whole) is shard

    def test_repeated_shards(self, main):
        whole, _ = popxl.replica_sharded_variable(array(4), shard_over=2)
        np.testing.assert_array_equal(self.round_trip(whole), [[0, 1], [2, 3], [0, 1], [2, 3]])

    def test_shards_of_groups(self, ir, main):
        pairs = ir.replica_grouping(stride=2)
        whole, _ = popxl.replica_sharded_variable(array(2, 3), replica_grouping=pairs)
        np.testing.assert_array_equal(self.round_trip(whole), [[0, 1], [3, 4], [2, 0], [5, 0]])
        np.testing.assert_array_equal(whole.data, array(2, 3))

    def test_remote_shards(self, main):
        buffer = popxl.remote_buffer((2,), F32)
        whole = popxl.remote_replica_sharded_variable(array(2, 4), buffer)
        np.testing.assert_array_equal(self.round_trip(whole, lambda x: -x), array(4, 2))
        np.testing.assert_array_equal(whole.data, -array(2, 4))

    def test_all_replicas(self, ir, main):
        v = popxl.variable(array(3), retrieval_mode="all_replicas")
        assert _placement.wants_all(v)
        np.testing.assert_array_equal(_placement.on_all_replicas(v, array(3)), np.tile(array(3), (4, 1)))
        np.testing.assert_array_equal(_placement.on_all_replicas(v, array(4, 3)), array(4, 3))

    def test_the_replicas_of_one_process(self, monkeypatch):
        for name, value in (("NUM_TOTAL_REPLICAS", 4), ("NUM_LOCAL_REPLICAS", 2), ("REPLICA_INDEX_OFFSET", 2)):
            monkeypatch.setenv("POPDIST_" + name, str(value))
        ir = popxl.Ir("popdist")
        with ir.main_graph:
            v = popxl.variable(array(2, 3), replica_grouping=ir.replica_grouping(stride=2))
            w = popxl.variable(array(2, 3), replica_grouping=ir.replica_grouping(group_size=2))
        np.testing.assert_array_equal(self.round_trip(v, lambda x: -x), array(2, 3))
        np.testing.assert_array_equal(v.data, -array(2, 3))
        np.testing.assert_array_equal(self.round_trip(w, lambda x: -x), array(2, 3)[[1, 1]])
        np.testing.assert_array_equal(w.data, [[0, 1, 2], [-3, -4, -5]])  # the other row is another process's

    def test_a_remote_variable_that_does_not_fit(self, main):
        buffer = popxl.remote_buffer((2,), F32, 2)
        for data, offset, text in (
            (array(3), 0, r"does not fit RemoteBuffer\[1 .*\]: shapes and dtypes must agree"),
            (array(2), 2, "is in entry 2 of RemoteBuffer.*, which has 2"),
        ):
            with raises(popart_exception, text):
                _placement.check(popxl.remote_variable(data, buffer, offset))
        with raises(popart_exception, r"4 shards in RemoteBuffer.* are too small for Tensor\[t"):
            _placement.check(popxl.remote_replica_sharded_variable(array(9), popxl.remote_buffer((2,), F32)))


class FakeExecutable:
    """Keeps what is written, and adds 1 to it in each run; outputs are the inputs."""

    def __init__(self):
        self.storage = {}

    def write(self, t, array):
        self.storage[t] = np.array(array)

    def read(self, t):
        return self.storage[t]

    def run(self, inputs, outputs):
        for x in self.storage.values():
            x += 1
        for arrays, results in zip(inputs.values(), outputs.values()):
            for x, y in zip(arrays, results):
                y[...] = x


class TestSession:
    @pytest.fixture
    def session(self, ir, monkeypatch):
        monkeypatch.setattr("popfn.host.session.compile_program", lambda ir: FakeExecutable())
        with ir.main_graph:
            self.x, self.y = popxl.h2d_stream((2, 3), F32, "x"), popxl.d2h_stream((2, 3), F32, "y")
            self.v = popxl.variable(array(2, 3), replica_grouping=ir.replica_grouping(stride=2), name="v")
            self.all = popxl.variable(array(3), retrieval_mode="all_replicas", name="all")
            self.whole, shard = popxl.replica_sharded_variable(array(8), name="w")
            for t in (self.v, self.all, shard):
                ops.var_updates.accumulator_zero_(t)
            ops.host_store(self.y, ops.host_load(self.x))
        ir.num_host_transfers = 2
        return popxl.Session(ir)

    def test_arrays(self, session):
        assert session.create_host_outputs()[self.y].shape == (2, 4, 2, 3)
        x = np.random.default_rng(0).random((2, 4, 2, 3), np.float32)
        with session:
            np.testing.assert_array_equal(session.run({self.x: x})[self.y], x)
            longer = np.concatenate([x, x])
            np.testing.assert_array_equal(session.run({self.x: longer})[self.y], x)
            for shape in ((2, 3, 2, 3), (2, 2, 3), (2, 4, 3, 2)):
                with raises(ValueError, r"expected \(2, 4, 2, 3\): 2 transfers, 4 replicas, the axes of the stream"):
                    session.run({self.x: np.zeros(shape, np.float32)})
            with raises(ValueError, "is not large enough: num_host_transfers is 2"):
                session.run({self.x: np.zeros((1, 4, 2, 3), np.float32)})

    def test_weights(self, session):
        np.testing.assert_array_equal(session.get_tensor_data(self.all), np.tile(array(3), (4, 1)))
        with session:
            session.run({self.x: np.zeros((2, 4, 2, 3), np.float32)})
            np.testing.assert_array_equal(session.get_tensor_data(self.v), array(2, 3) + 1)
            np.testing.assert_array_equal(session.get_tensor_data(self.all), np.tile(array(3) + 1, (4, 1)))
            np.testing.assert_array_equal(session.get_tensor_data(self.whole), array(8) + 1)
            session.write_variable_data(self.v, -array(2, 3))
            session.run({self.x: np.zeros((2, 4, 2, 3), np.float32)})
        np.testing.assert_array_equal(self.v.data, 1 - array(2, 3))

    def test_refused_writes(self, session):
        with raises(ValueError, r"the shape \(3,\) is not that of Tensor\[v .*, \(2, 3\)"):
            session.write_variable_data(self.v, array(3))
        with raises(NotImplementedError, 'its retrieval_mode is "all_replicas"'):
            session.write_variable_data(self.all, array(3))

    @pytest.mark.parametrize("replicas", [0, -1])
    def test_no_replicas(self, replicas):
        ir = popxl.Ir(replicas)
        with ir.main_graph:
            ops.exp(popxl.constant(1.0))
        with raises(ValueError, r"the numbers of replicas \(-?\d\) and of transfers \(1\) must be positive"):
            popxl.Session(ir)
