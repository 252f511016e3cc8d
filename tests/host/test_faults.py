"""Faults that were found by use, each as a test of its kind."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host import ops


def run(build, replicas=1):
    """What a program gives that `build(ir, v, w)` makes of two variables of ones."""
    ir = popxl.Ir(replication=replicas)
    with ir.main_graph, popxl.in_sequence():
        v, w = (popxl.variable(np.ones((1, 2), np.float32), name=name) for name in "vw")
        y = build(ir, v, w)
        store = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(store, y)
    with popxl.Session(ir) as session:
        return session.run()[store]


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("build", [
    lambda ir, v, w: ops.concat_([v, v], 0),
    lambda ir, v, w: ops.concat_([v, ops.slice_(v, 0, 1)], 0),
    lambda ir, v, w: ops.concat_([ops.reshape_(v, (1, 2)), ops.add_(v, v) * 0.5], 0),
    lambda ir, v, w: ops.concat_([ops.concat_([v, w], 0), v], 0),
])
def test_a_tensor_twice_in_a_view_of_several(engine, replicas, build):
    y = run(build, replicas)
    assert y.shape[-1] == 2 and (y == 1).mean() >= 0.5


@pytest.mark.parametrize("offset", [2**32, 2**32 + 1, 2**40])
def test_an_offset_that_does_not_fit(engine, offset):
    def build(ir, v, w):
        buffer = popxl.remote_buffer((), popxl.float32, 2)
        for i in range(2):
            popxl.remote_variable(np.float32(i), buffer, i)
        return ops.remote_load(buffer, offset)
    with pytest.raises(ValueError, match=rf"^remote_load: the offset does not fit uint32: {offset}\.$"):
        run(build)
    assert run(lambda ir, v, w: v).tolist() == [[1, 1]]


def test_variables_of_another_program(engine):
    irs = []
    for value in (1, 50):
        ir = popxl.Ir()
        with ir.main_graph:
            v = popxl.variable(np.full(2, value, np.float32), name="weights")
            v += 1.0
        irs.append((ir, v))
    (ir, v), (other, theirs) = irs
    with popxl.Session(ir) as session, popxl.Session(other) as second:
        second.run()
        with pytest.raises(ValueError, match=r"get_tensor_data: .*weights.* belongs to another Ir"):
            session.get_tensor_data(theirs)
        with pytest.raises(ValueError, match=r"write_variable_data: .*weights.* belongs to another Ir"):
            session.write_variable_data(theirs, np.zeros(2, np.float32))
        assert second.get_tensor_data(theirs).tolist() == [51, 51] and session.get_tensor_data(v).tolist() == [1, 1]
