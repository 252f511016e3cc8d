"""The memory of variables and remote buffers: zeros, aligned and writable, on the heap or in pages of its own."""
import ml_dtypes
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.engine import memory

SHAPES = [(), (0,), (3, 5), (memory.OWN_PAGES_BYTES // 4 - 1,), (2, memory.OWN_PAGES_BYTES // 4 + 3)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, ml_dtypes.float8_e4m3fnuz])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_zeros(shape, dtype):
    x, other = memory.zeros(shape, dtype), memory.zeros(shape, dtype)
    assert x.shape == shape and x.dtype == dtype and x.flags.writeable and x.flags.c_contiguous
    assert not x.size or x.__array_interface__["data"][0] % memory.ALIGNMENT == 0
    assert not x.view(np.uint8 if x.ndim else dtype).any()
    x[...] = 1
    assert x.astype(np.float32).sum() == x.size and not other.astype(np.float32).any()


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_entries_that_nobody_wrote_are_zero_in_large_buffers_too(engine, monkeypatch):
    if engine == "xla":
        pytest.importorskip("jax")
    monkeypatch.setenv("POPFN_ENGINE", engine)
    for _ in range(2):  # the second one may get memory that the first one gave back
        ir = popxl.Ir()
        with ir.main_graph:
            buffer = popxl.remote_buffer((1 << 16,), popxl.float32, entries=8)
            out = popxl.d2h_stream((1 << 16,), popxl.float32)
            popxl.ops.host_store(out, popxl.ops.remote_load(buffer, 5))
            popxl.ops.remote_store(buffer, 5, popxl.constant(np.ones(1 << 16, np.float32)))
        with popxl.Session(ir) as session:
            assert not session.run()[out].any()
            assert session.run()[out].all()
