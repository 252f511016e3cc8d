"""Every kind of op gives on the XLA engine what it gives on the NumPy engine."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.engine import compile_program
from popfn.host.engine.kernels import KERNELS
from popfn.host.ops._indexing import grouped_scatter_reduce

pytest.importorskip("jax")
ops, updates = popxl.ops, popxl.ops.var_updates

rng = np.random.default_rng(0)
F = rng.normal(size=(4, 6)).astype(np.float32)
G = rng.normal(size=(4, 6)).astype(np.float32)
IMAGE = rng.normal(size=(2, 4, 7, 6)).astype(np.float32)
VECTOR = rng.normal(size=(6,)).astype(np.float32)
I = rng.integers(-9, 9, (4, 6)).astype(np.int32)  # noqa: E741
J = rng.integers(1, 5, (4, 6)).astype(np.int32)
B = rng.random((4, 6)) < 0.5
PROBS = np.exp(F) / np.exp(F).sum(1, keepdims=True)
LABELS = np.array([0, 5, 2, 1], np.int32)
SEED = np.array([7, 11], np.uint32)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan], np.float32)
S, THREE = np.float32(0.5), np.array(3, np.float32)


def _c(value, dtype=popxl.int32):
    return popxl.constant(np.asarray(value), dtype)


def _float8(function):
    """A function of 8-bit floats that are made of the operands."""
    def wrapped(*tensors):
        return function(*[ops.pow2scale_cast_to_fp8(t, _c(1), popxl.float8_143) for t in tensors])
    return wrapped


def _back(t):
    return ops.pow2scale_cast_from_fp8(t, _c(-1), popxl.float32)


# kind: a function of tensors whose result is checked, and arrays for them. Floats are tried as float16 too.
CASES = {
    "abs": (ops.abs, F), "negate": (ops.negate, F), "sign": (ops.sign, SPECIAL), "exp": (ops.exp, F),
    "log": (ops.log, PROBS), "sqrt": (ops.sqrt, PROBS), "sin": (ops.sin, F), "cos": (ops.cos, F),
    "tanh": (ops.tanh, F), "floor": (ops.floor, F), "ceil": (ops.ceil, F), "relu": (ops.relu, SPECIAL),
    "clip": (lambda t: ops.clip(t, -0.5, 1.0), F), "gelu": (ops.gelu, F), "geluerf": (ops.geluerf, F),
    "swish": (ops.swish, F), "isnan": (ops.isnan, SPECIAL), "isinf": (ops.isinf, SPECIAL),
    "isfinite": (ops.isfinite, SPECIAL), "logical_not": (ops.logical_not, B),
    "logical_and": (ops.logical_and, B, B[::-1]), "logical_or": (ops.logical_or, B, B[::-1]),
    "cast": (lambda t: ops.cast(t, popxl.int32), F * 9), "add": (ops.add, F, VECTOR), "sub": (ops.sub, I, J),
    "mul": (ops.mul, F, G), "div": (ops.div, I, J), "pow": (ops.pow, I, J), "fmod": (ops.fmod, I, J),
    "maximum": (ops.maximum, F, G, F - 1), "equal": (ops.equal, I, J), "greater": (ops.greater, F, G),
    "where": (ops.where, B, F, G), "sum": (lambda t: ops.sum(t, (0, 1)), F), "prod": (lambda t: ops.prod(t, 1), F),
    "max": (lambda t: ops.max(t, 1, True), SPECIAL.reshape(1, 7)), "min": (lambda t: ops.min(t, 0), I),
    "mean": (lambda t: ops.mean(t, 1), I), "l1": (lambda t: ops.l1(t, 1), F), "l2": (lambda t: ops.l2(t, 0), F),
    "sumsquare": (lambda t: ops.sumsquare(t, 1), F), "logsum": (lambda t: ops.logsum(t, 1), PROBS),
    "logsumexp": (lambda t: ops.logsumexp(t, 1), F * 30), "softmax": (lambda t: ops.softmax(t, 1), F),
    "cumsum": (lambda t: ops.cumsum(t, 1), F), "argmax": (lambda t: ops.argmax(t, 1), SPECIAL.reshape(1, 7)),
    "argmin": (lambda t: ops.argmin(t, 1), I), "topk": (lambda t: ops.topk(t, 3, 1, True, True), I),
    "gather": (lambda t, i: ops.gather(t, i, 1, zero_OOR=True), F, np.array([[0, 7], [-1, 5]], np.int32)),
    "onehot": (lambda t, v: ops.onehot(t, _c(6), v, 1), LABELS, np.array([-1, 2], np.float32)),
    "scatter_reduce": (lambda t, i: ops.scatter_reduce(t, i, "max", axis=0, axis_size=7), F, J),
    "scatter": (lambda t, i, v: ops.scatter(t, i, v, 1), F, np.array([[3, 0]] * 4, np.int32), G[:, :2]),
    "groupedgather": (lambda t, i: ops.groupedgather(t, i, 1, 4), F, J),
    "grouped_scatter_reduce": (
        lambda t, i: grouped_scatter_reduce(t, i, "min", axis=1, group_size=4, axis_size=5), F, J),
    "dynamic_slice": (lambda t, i: ops.dynamic_slice(t, i, [1], [2], True), F, np.array([9], np.uint32)),
    "dynamic_update": (
        lambda t, i, u: ops.dynamic_update(t, i, u, [1], [2], True), F, np.array([3], np.int32), G[:, :2]),
    "init": (lambda t: ops.init((2, 3), popxl.float32), F), "identity": (ops.identity, F),
    "detach": (ops.detach, F), "ipu_copy": (lambda t: ops.ipu_copy(t, 1, 0), F),
    "io_tile_copy": (ops.io_tile_copy, F), "reshape": (lambda t: ops.reshape(t, (3, 8)), F),
    "transpose": (ops.transpose, F), "slice": (lambda t: ops.slice(t, [3, 1], [0, 5], [-1, 1]), F),
    "subsample": (lambda t: ops.subsample(t, [2, 4]), F), "split": (lambda t: ops.split(t, [1, 2, 3], 1), F),
    "concat": (lambda t, u: ops.concat([t, u], 1), F, G), "matmul": (ops.matmul, F, np.ascontiguousarray(G.T)),
    "copy_var_update_": (updates.copy_var_update_, F, G), "accumulator_zero_": (updates.accumulator_zero_, F),
    "accumulate_": (lambda t, x, f: updates.accumulate_(t, x, f), F, G, S), "add_": (ops.add_, F, VECTOR),
    "exp_": (ops.exp_, F), "relu_": (ops.relu_, F), "gelu_": (ops.gelu_, F), "geluerf_": (ops.geluerf_, F),
    "swish_": (ops.swish_, F), "concat_": (lambda t, u: ops.exp_(ops.concat_([t, u], 0)), F, G),
    "dynamic_update_": (
        lambda t, i, u: ops.dynamic_update_(t, i, u, [0], [1], True), F, np.array([2], np.int32), G[:1]),
    "reshape_": (lambda t: ops.exp_(ops.reshape_(t, (24,))), F), "transpose_": (lambda t: ops.exp_(t.T_), F),
    "slice_": (lambda t: ops.exp_(ops.slice_(t, 3, 0, -1, 0)), F), "detach_": (lambda t: ops.exp_(t.detach_()), F),
    "modify_random_seed": (lambda s: ops.split_random_seed(s, 3), SEED),
    "random_uniform": (lambda s: ops.random_uniform(s, (3, 5), -1.0, 2.0), SEED),
    "random_normal": (lambda s: ops.random_normal(s, (3, 5), 1.0, 2.0), SEED),
    "dropout": (lambda t, s: ops.dropout(t, s, 0.4), F, SEED),
    "shaped_dropout": (lambda t, s: ops.shaped_dropout(t, s, (4, 1), 0.4), F, SEED),
    "group_norm": (lambda t, w, b: ops.group_norm(t, w, b, 2), IMAGE, VECTOR[:4], VECTOR[2:]),
    "batch_norm_inference": (
        ops.batch_norm_inference, IMAGE, VECTOR[:4], VECTOR[2:], VECTOR[1:5], np.abs(VECTOR[:4])),
    "nll_loss": (lambda p, y: ops.nll_loss(p, y, ignore_index=2), PROBS, LABELS),
    "nll_loss_with_softmax_grad": (lambda p, y: ops.nll_loss_with_softmax_grad(p, y, 2.0), PROBS, LABELS),
    "median": (lambda t: ops.median(t, 1), I), "histogram": (lambda t: ops.histogram(t, [-1.0, 0.0, 1.0], False), F),
    "lamb_square": (ops.lamb_square, F), "increment_mod": (lambda t: ops.increment_mod(t, 2.0, 5.0), I),
    "increment_mod_": (lambda t: ops.increment_mod_(t, 2.0, 5.0), I),
    "scaled_add": (lambda x, y: ops.scaled_add(x, y, 0.5, 2.0), F, G),
    "scaled_add_": (lambda x, y: ops.scaled_add_(x, y, 0.5, 2.0), F, G),
    "print_tensor": (lambda t: ops.print_tensor(t, "title"), F),
    "pow2scale_cast_to_fp8": (_float8(ops.identity), F), "pow2scale_cast_from_fp8": (_float8(_back), F),
    "matmul_pow2scaled": (_float8(lambda x, y: ops.matmul_pow2scaled(x, y.T, _c(2))), F, G),
    "conv": (lambda t, w: ops.conv(t, w, (2, 1), (1, 0, 1, 2), (1, 2), 2), IMAGE,
             rng.normal(size=(6, 2, 3, 2)).astype(np.float32)),
    "conv_pow2scaled": (_float8(lambda t, w: ops.conv_pow2scaled(t, w, _c(1))), IMAGE, IMAGE[:, :, :3, :2]),
    "conv_transpose": (lambda t, w: ops.conv_transpose(t, w, (2, 1)), IMAGE,
                       rng.normal(size=(4, 3, 3, 2)).astype(np.float32)),
    "conv_transpose_pow2scaled": (_float8(lambda t, w: ops.conv_transpose_pow2scaled(t, w, _c(1))), IMAGE,
                                  rng.normal(size=(4, 3, 3, 2)).astype(np.float32)),
    "average_pool": (lambda t: ops.average_pool(t, (3, 2), (2, 1), (1, 0, 1, 1)), IMAGE),
    "max_pool": (lambda t: ops.max_pool(t, (3, 2), (2, 1), (1, 0, 1, 1)), IMAGE),
    "interpolate": (lambda t: ops.interpolate(t, (1.0, 1.0, 2.0, 1.5), "linear"), IMAGE),
    "roi_align": (lambda t, r, b: ops.roi_align(t, r, b, (2, 2), 0.5, 2), IMAGE,
                  np.array([[0, 1, 9, 8], [2, 2, 5, 6]], np.float32), np.array([0, 1], np.int32)),
    "accumulate_square_": (lambda t, x: updates.accumulate_square_(t, x, 0.5), F, G),
    "accumulate_mean_": (updates.accumulate_mean_, F, G, THREE),
    "accumulate_moving_average_": (lambda t, x: updates.accumulate_moving_average_(t, x, 0.9), F, G),
    "accumulate_moving_average_square_": (updates.accumulate_moving_average_square_, F, G, S),
    "accumulator_scale_": (lambda t: updates.accumulator_scale_(t, 0.5), F),
    "sparse_accumulate_": (
        lambda t, x, i: updates.sparse_accumulate_(t, x, i, f=0.5), F, G[:3], np.array([1, 3, 1], np.int32)),
    "adam_updater": (lambda m, v, w, t: updates.adam_updater(m, v, w, t, 0.1, 0.9, 0.99), F, np.abs(G), G, THREE),
    "lamb_updater": (lambda m, v, w: updates.lamb_updater(m, v, w, None, 0.1), F, np.abs(G), G),
    "adamax_updater": (lambda m, v, w, t: updates.adamax_updater(m, v, w, t, 0.1), F, np.abs(G), G, THREE),
    "adam_var_update": (
        lambda t, x, r, q: updates.adam_var_update(t, x, r, q, 0.1, 9.0), F, G, np.float32(4), np.float32(9)),
}
# Kinds that are no function of arrays: test_xla_programs.py has them.
OTHERS = {
    "call", "repeat", "conditional", "host_load", "host_store", "remote_load", "remote_load_", "remote_store",
    "remote_code_load", "all_reduce", "replicated_all_reduce", "replicated_all_reduce_", "replicated_all_gather",
    "replicated_reduce_scatter", "replica_sharded_slice", "replicated_slice",
}
# These have an operand that must be float32, an integer result of float16 that may differ in rounding, or no float16.
FLOAT32 = {
    "roi_align", "accumulate_mean_", "adam_updater", "lamb_updater", "adamax_updater", "adam_var_update",
    "accumulate_moving_average_square_", "accumulate_", "cast", "histogram",
}


def evaluate(function, arrays, engine):
    """The results of a function of variables, and the variables after it."""
    ir = popxl.Ir()
    with ir.main_graph:
        tensors = [popxl.variable(array, popxl.dtype.as_dtype(array.dtype)) for array in map(np.asarray, arrays)]
        results = function(*tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in results]
        for stream, t in zip(streams, results):
            ops.host_store(stream, t)
    executable = compile_program(ir, engine)
    for t, array in zip(tensors, arrays):
        executable.write(t, np.asarray(array))
    outputs = [np.zeros(s.shape, s.dtype.as_numpy()) for s in streams]
    executable.run({}, {stream: [array] for stream, array in zip(streams, outputs)})
    return outputs + [executable.read(t) for t in tensors], {op.kind for op in ir.main_graph.ops}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", CASES)
def test_kind(kind, dtype):
    function, *arrays = CASES[kind]
    if dtype == np.float16:
        if kind in FLOAT32 or not any(np.asarray(x).dtype == np.float32 for x in arrays):
            pytest.skip("has no float16 form")
        arrays = [np.asarray(x).astype(dtype) if np.asarray(x).dtype == np.float32 else x for x in arrays]
    wanted, kinds = evaluate(function, arrays, "numpy")
    assert kind in kinds
    found, _ = evaluate(function, arrays, "xla")
    for x, y in zip(found, wanted):
        assert x.dtype == y.dtype and x.shape == y.shape
        if x.dtype.kind != "f":
            np.testing.assert_array_equal(x, y)
        else:
            scale = 1e-5 if x.dtype == np.float32 else 2e-3
            np.testing.assert_allclose(x, y, scale, scale, equal_nan=True)


def test_each_kind_has_a_case():
    assert set(KERNELS) | OTHERS == set(CASES) | OTHERS
    assert not set(CASES) & OTHERS
