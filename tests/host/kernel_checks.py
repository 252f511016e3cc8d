"""What the tests of kernels by family share: an op on the NumPy engine, and its value under jax.jit."""
import functools

import engine_checks
import numpy as np

import popfn.host as popxl
from popfn.host.engine.kernels import KERNELS
from popfn.host.tensor import Constant

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None

ops = popxl.ops


def check(function, expected, *arrays, exact=False, ulps=4):
    """`function` of tensors is `expected`: on the NumPy engine, and by the values of its kernels under jax.jit."""
    engine_checks.check(function, expected, *arrays, exact=exact, ulps=ulps)
    if jax is None:
        return
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    results = by_values(function, arrays)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected):
        wanted = np.asarray(wanted)
        wanted = wanted.view(np.uint8) if wanted.dtype.fields else wanted
        assert result.dtype == wanted.dtype and result.shape == wanted.shape
        tolerance = 0 if exact or wanted.dtype.kind != "f" else ulps * np.finfo(wanted.dtype).eps
        np.testing.assert_allclose(result, wanted, tolerance, tolerance, err_msg="under jax.jit")


def by_values(function, arrays):
    """The results of `function` of tensors by the values of the kernels, on jax.numpy and compiled."""
    graph, inputs, outputs = _traced(function, arrays)

    @jax.jit
    def run(*given):
        env = dict(zip(inputs, given))
        for op in graph.ops:
            read = [jnp.asarray(t.data) if isinstance(t, Constant) else env[t] for t in op.inputs]
            results = _values(op, read)
            env.update(zip(op.outputs, results))
            if KERNELS[op.kind].writes:
                env[op.inputs[0]] = results[0]
        return [env[t] for t in outputs]

    return [np.asarray(x) for x in run(*[a.view(np.uint8) if a.dtype.fields else a for a in arrays])]


def _traced(function, arrays):
    ir = popxl.Ir()
    specs = [popxl.TensorSpec(a.shape, popxl.dtype.as_dtype(a.dtype)) for a in arrays]
    with ir.main_graph:
        graph = ir.create_graph(function, *specs)
    return graph, graph.inputs, graph.outputs


def _values(op, arrays):
    kernel = KERNELS[op.kind]
    if kernel.float32:
        arrays = [x.astype(np.float32) if x.dtype == np.float16 else x for x in arrays]
    results = kernel.value(jnp, op, *arrays)
    results = results if isinstance(results, (tuple, list)) else (results,)
    assert len(results) == len(op.outputs)
    stored = [np.dtype(np.uint8) if t.dtype.as_numpy().fields else t.dtype.as_numpy() for t in op.outputs]
    for result, t in zip(results, op.outputs):
        assert result.shape == t.shape, (op, result.shape)
    return [jnp.asarray(result).astype(dtype) for result, dtype in zip(results, stored)]


def modifying(function):
    """An update of a copy of its first operand, which shows both the result and what was written."""

    @functools.wraps(function)
    def run(t, *others):
        t = ops.identity(t)
        return function(t, *others)

    return run
