"""Errors about shapes name each tensor that takes part, by its id and shape, at the call or when a Session is made."""
import inspect
import re

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops, updates, collectives = popxl.ops, popxl.ops.var_updates, popxl.ops.collectives
F32, I32, U32, F8, BOOL = popxl.float32, popxl.int32, popxl.uint32, popxl.float8_143, popxl.bool
POPART = popart_exception
LATER = "Session"  # PopXL finds the fault when it compiles the program


def ints(*shape):
    return shape, I32


def float8(*shape):
    return shape, F8


def graph_of(*specs):
    """A graph whose one output is its first input."""
    return popxl.gir().create_graph(lambda *ts: ts[0], *[popxl.TensorSpec(shape, F32) for shape in specs])


def stored(t):
    ops.host_store(popxl.d2h_stream((3,), F32), t)


def buffer(*shape):
    return popxl.remote_buffer(shape, F32, 2)


def seeded(t):
    return ops.shaped_dropout(t, popxl.constant([1, 2], U32), (2,), 0.5)


def adam(updater):
    return lambda a, b, w: updater(a, b, w, popxl.constant(1.0), 0.1, 0.9, 0.9, 1e-5)


def adamax(a, b, w):
    return updates.adamax_updater(a, b, w, popxl.constant(1.0), 0.1, 0.9, 1e-5)


# The op, a call of it, the operands as shapes or shapes with a dtype, and the error; and which operands the message is
# about, if not all.
BINARY = "add add_ sub mul div fmod pow equal greater logical_and logical_or maximum".split()
CASES = [(name, getattr(ops, name), [(2, 3), (4,)], POPART) for name in BINARY]
CASES += [(name, getattr(ops, name), [(2, 3), (2, 3, 1, 5)], POPART) for name in BINARY if name != "maximum"]
CASES += [
    # Operators and broadcasting
    ("add", lambda a, b: a + b, [(2, 3), (4,)], POPART),
    ("add_", lambda a, b: a.__iadd__(b), [(2, 3), (4,)], POPART),
    ("add_", ops.add_, [(3,), (2, 3)], LATER),
    ("where", ops.where, [((4,), BOOL), (2, 3), (3,)], POPART),
    ("where", lambda a, b: a[b], [(2, 3), ((4,), BOOL)], POPART),
    ("maximum", lambda *ts: ops.maximum(*ts), [(2, 3), (2, 3), (3,)], POPART),
    ("scaled_add", lambda a, b: ops.scaled_add(a, b, 1.0, 2.0), [(2, 3), (3,)], LATER),
    ("scaled_add_", lambda a, b: ops.scaled_add_(a, b, 1.0, 2.0), [(2, 3), (3,)], LATER),
    # Products
    ("matmul", ops.matmul, [(2, 3), (4, 3)], POPART),
    ("matmul", ops.matmul, [(2, 3), ()], POPART),
    ("matmul", ops.matmul, [(3,), (2,)], POPART),
    ("matmul", ops.matmul, [(2, 2, 3), (3, 3, 4)], POPART),
    ("matmul", lambda a, b: a @ b, [(5, 2, 2, 3), (4, 1, 3, 4)], POPART),
    ("matmul_pow2scaled", lambda a, b: ops.matmul_pow2scaled(a, b, popxl.constant(0, I32)),
     [float8(2, 3), float8(4, 3)], POPART),
    # Joining and rearranging
    ("concat", lambda *ts: ops.concat(ts), [(2, 3), (2, 4)], POPART),
    ("concat", lambda *ts: ops.concat(ts, 1), [(2, 3), (2, 4), (3, 4)], POPART),
    ("concat", lambda *ts: ops.concat(ts), [(2,), (2, 3)], POPART),
    ("concat", lambda *ts: ops.concat(ts, 2), [(2, 3), (2, 4)], POPART, [0]),
    ("concat_", lambda *ts: ops.concat_(ts), [(2, 3), (2, 4)], POPART),
    ("reshape", lambda a: ops.reshape(a, (4, 2)), [(2, 3)], POPART),
    ("reshape", lambda a: ops.reshape(a, (4, -1)), [(2, 3)], POPART),
    ("reshape", lambda a: ops.reshape(a, (0, 6)), [(2, 3)], ValueError),
    ("reshape", lambda a: ops.reshape(a, (-1, -1)), [(2, 3)], ValueError),
    ("reshape_", lambda a: a.reshape_((5,)), [(2, 3)], POPART),
    ("squeeze", lambda a: ops.squeeze(a, [0]), [(2, 3)], ValueError),
    ("transpose", lambda a: ops.transpose(a, (0, 2)), [(2, 3)], ValueError),
    ("transpose", lambda a: ops.transpose(a, (0, 0)), [(2, 3)], POPART),
    ("transpose_", lambda a: ops.transpose_(a, (1,)), [(2, 3)], POPART),
    ("split", lambda a: ops.split(a, 2, 1), [(2, 3)], ValueError),
    ("split", lambda a: ops.split(a, [1, 1], 1), [(2, 3)], POPART),
    ("split", lambda a: ops.split(a, 1, 2), [(2, 3)], IndexError),
    ("slice", lambda a: ops.slice(a, 0, 1, axis=2), [(2, 3)], POPART),
    ("slice", lambda a: ops.slice(a, [0, 0], [1]), [(2, 3)], ValueError),
    ("slice_", lambda a: ops.slice_(a, 0, 1, axis=-3), [(2, 3)], POPART),
    ("slice", lambda a: a[0, 0, 0], [(2, 3)], POPART),
    ("subsample", lambda a: ops.subsample(a, [1, 1, 1]), [(2, 3)], ValueError),
    ("subsample", lambda a: ops.subsample(a, [0]), [(2, 3)], POPART),
    ("dynamic_slice", lambda a, i: ops.dynamic_slice(a, i, [2], [1], True), [(2, 3), ints(1)], POPART, [0]),
    ("dynamic_slice", lambda a, i: ops.dynamic_slice(a, i, [0], [1, 1], True), [(2, 3), ints(1)], POPART, [0]),
    ("dynamic_slice", lambda a, i: ops.dynamic_slice(a, i, [0], [5], True), [(2, 3), ints(1)], LATER),
    ("dynamic_slice", lambda a, i: ops.dynamic_slice(a, i, [0], [1], True), [(2, 3), ints(2)], LATER),
    ("dynamic_update", lambda a, i, u: ops.dynamic_update(a, i, u, [0], [1], True), [(2, 3), ints(1), (2, 3)], LATER),
    ("dynamic_update_", lambda a, i, u: ops.dynamic_update_(a, i, u, [3], [1], True), [(2, 3), ints(1), (1, 3)],
     POPART, [0]),
    # Reductions
    ("sum", lambda a: ops.sum(a, 2), [(2, 3)], POPART),
    ("argmax", lambda a: ops.argmax(a, 2), [(2, 3)], POPART),
    ("median", lambda a: ops.median(a, -3), [(2, 3)], POPART),
    ("cumsum", lambda a: ops.cumsum(a, 2), [(2, 3)], POPART),
    ("topk", lambda a: ops.topk(a, 1, 2, True, True), [(2, 3)], POPART),
    ("topk", lambda a: ops.topk(a, 4, 1, True, True), [(2, 3)], POPART),
    ("softmax", lambda a: ops.softmax(a, 2), [(2, 3)], LATER),
    # Indexing
    ("gather", lambda a, i: ops.gather(a, i, 2), [(2, 3), ints(4)], POPART, [0]),
    ("tied_gather", lambda a, i: ops.tied_gather(a, i, 2), [(2, 3), ints(4)], POPART, [0]),
    ("groupedgather", lambda a, i: ops.groupedgather(a, i, 1, 2), [(2, 3), ints(3, 4)], LATER),
    ("groupedgather", lambda a, i: ops.groupedgather(a, i, 2, 2), [(2, 3), ints(2, 4)], POPART, [0]),
    ("scatter", ops.scatter, [(5, 3), ints(2, 3), (2, 4)], LATER),
    ("scatter", ops.scatter, [(5, 3), ints(2, 4), (2, 4)], LATER),
    ("scatter", lambda t, i, v: ops.scatter(t, i, v, 2), [(5, 3), ints(2, 3), (2, 3)], POPART, [0]),
    ("scatter_reduce", lambda d, i, t: ops.scatter_reduce(d, i, "sum", t), [(4, 3), ints(5), (6, 3)], LATER),
    ("scatter_reduce", lambda d, i, t: ops.scatter_reduce(d, i, "sum", t), [(4, 3), ints(4), (6, 2)], LATER),
    ("scatter_reduce", lambda d, i, t: ops.scatter_reduce(d, i, "sum", t, 2), [(4, 3), ints(4), (6, 3)], POPART, [0]),
    ("onehot", lambda t, v: ops.onehot(t, popxl.constant(3), v, 2), [ints(4), (2,)], POPART, [0]),
    ("onehot", lambda t, v: ops.onehot(t, popxl.constant(3), v, 0), [ints(4), (3,)], LATER),
    ("onehot", lambda t, n, v: ops.onehot(t, n, v, 0), [ints(4), ints(2), (2,)], POPART, [1]),
    # Layers
    ("conv", ops.conv, [(1, 4, 6, 6), (2, 3, 2, 2)], POPART),
    ("conv", ops.conv, [(1, 4, 2, 2), (2, 4, 3, 3)], POPART),
    ("conv", ops.conv, [(1, 4, 6, 6), (2, 4, 2)], POPART),
    ("conv", lambda a, w: ops.conv(a, w, stride=(2,)), [(1, 4, 6, 6), (2, 4, 2, 2)], POPART, [0]),
    ("conv_transpose", ops.conv_transpose, [(1, 4, 6, 6), (3, 2, 2, 2)], POPART),
    ("conv_transpose", lambda a, w: ops.conv_transpose(a, w, padding=(9,) * 4), [(1, 4, 6, 6), (4, 2, 2, 2)], POPART),
    ("conv_transpose", lambda a, w: ops.conv_transpose(a, w, output_shape=(3,)), [(1, 4, 6, 6), (4, 2, 2, 2)], POPART,
     [0]),
    ("conv_pow2scaled", lambda a, w: ops.conv_pow2scaled(a, w, popxl.constant(0, I32)),
     [float8(1, 4, 6, 6), float8(2, 3, 2, 2)], POPART),
    ("conv_transpose_pow2scaled", lambda a, w: ops.conv_transpose_pow2scaled(a, w, popxl.constant(0, I32)),
     [float8(1, 4, 6, 6), float8(3, 2, 2, 2)], POPART),
    ("max_pool", lambda a: ops.max_pool(a, (2,)), [(1, 2, 4, 4)], POPART),
    ("max_pool", lambda a: ops.max_pool(a, (5, 5)), [(1, 2, 4, 4)], POPART),
    ("average_pool", lambda a: ops.average_pool(a, (2,)), [(1,)], ValueError),
    ("group_norm", lambda a, w, b: ops.group_norm(a, w, b, 2), [(2, 3), (3,), (3,)], LATER),
    ("group_norm", lambda a, w, b: ops.group_norm(a, w, b, 1), [(2, 3), (3,), (4,)], LATER),
    ("layer_norm", ops.layer_norm, [(2, 3), (4,), (3,)], LATER),
    ("batch_norm_inference", ops.batch_norm_inference, [(2, 3, 4), (3,), (3,), (4,), (3,)], LATER),
    ("batch_norm_inference", ops.batch_norm_inference, [(2, 3), (3,), (3,), (3,), (3,)], POPART, [0]),
    ("nll_loss", ops.nll_loss, [(4, 3), ints(5)], LATER),
    ("nll_loss", ops.nll_loss, [(), ints(5)], ValueError, [0]),
    ("nll_loss_with_softmax_grad", lambda p, y: ops.nll_loss_with_softmax_grad(p, y, 1.0), [(4, 3), ints(5)], LATER),
    ("shaped_dropout", seeded, [(2, 3)], POPART),
    ("dropout", lambda a, s: ops.dropout(a, s, 0.5), [(2, 3), ((3,), U32)], LATER),
    ("interpolate", lambda a: ops.interpolate(a, (1.0, 1.0)), [(1, 1, 4)], POPART),
    ("roi_align", lambda a, r, i: ops.roi_align(a, r, i, (2, 2), 1.0, 1), [(1, 2, 4, 4), (2, 4), ints(3)], LATER),
    ("roi_align", lambda a, r, i: ops.roi_align(a, r, i, (2, 2), 1.0, 1), [(1, 2, 4, 4), (2, 3), ints(2)], LATER),
    ("roi_align", lambda a, r, i: ops.roi_align(a, r, i, (2, 2), 1.0, 1), [(1, 2, 4), (2, 4), ints(2)], POPART, [0]),
    ("roi_align", lambda a, r, i: ops.roi_align(a, r, i, (2, 2), 1.0, 1), [(1, 2, 4, 4), (4,), ints(1)], POPART, [1]),
    ("pow2scale_cast_to_fp8", lambda a, s: ops.pow2scale_cast_to_fp8(a, s, F8), [(2, 3), ints(2)], ValueError, [1]),
    ("pow2scale_cast_from_fp8", lambda a, s: ops.pow2scale_cast_from_fp8(a, s, F32), [float8(2, 3), ints(2)],
     ValueError, [1]),
    # Calls
    ("call", lambda a: ops.call(graph_of((3,)), a), [(2, 3)], POPART),
    ("repeat", lambda a: ops.repeat(graph_of((3,)), 2, a), [(2, 3)], POPART),
    ("conditional", lambda c, a, b: ops.conditional(c, graph_of((3,)), graph_of((3,)), [a], [b]),
     [((), BOOL), (3,), (2, 3)], LATER),
    ("conditional", lambda c, a: ops.conditional(c, graph_of((3,)), graph_of((3,)), [a], [a]),
     [((2,), BOOL), (3,)], LATER),
    ("conditional", lambda c, a, b: ops.conditional(c, graph_of((3,)), graph_of((4,)), [a], [b]),
     [((), BOOL), (3,), (4,)], LATER),
    # Transfers
    ("host_store", stored, [(2, 3)], ValueError),
    ("remote_load_", lambda a: ops.remote_load_(buffer(3), 0, a), [(2, 3)], ValueError),
    ("remote_store", lambda a: ops.remote_store(buffer(3), 0, a), [(2, 3)], ValueError),
    ("remote_store", lambda i, a: ops.remote_store(buffer(3), i, a), [ints(2), (3,)], LATER),
    ("remote_load", lambda i: ops.remote_load(buffer(3), i), [ints(2)], LATER),
    # Collectives
    ("replicated_all_gather", lambda a: collectives.replicated_all_gather(a, 2), [(2, 3)], IndexError),
    ("replicated_slice", lambda a: collectives.replicated_slice(a, 2), [(2, 3)], IndexError),
    ("replicated_slice", lambda a: collectives.replicated_slice(a, 1), [(2, 3)], ValueError),
    ("all_reduce", lambda *ts: collectives.all_reduce(ts, [0, 1]), [(2, 3), (3,)], POPART),
    ("all_reduce_identical_inputs", lambda *ts: collectives.all_reduce_identical_inputs(ts, [0, 1]),
     [(2, 3), (3,)], POPART),
    ("all_reduce_identical_grad_inputs", lambda *ts: collectives.all_reduce_identical_grad_inputs(ts, [0, 1]),
     [(2, 3), (3,)], POPART),
    # Updates of variables
    ("copy_var_update_", updates.copy_var_update_, [(2, 3), (3,)], LATER),
    ("accumulate_", updates.accumulate_, [(2, 3), (3,)], LATER),
    ("accumulate_square_", updates.accumulate_square_, [(2, 3), (3,)], LATER),
    ("accumulate_mean_", lambda a, b: updates.accumulate_mean_(a, b, 1.0), [(2, 3), (3,)], LATER),
    ("accumulate_moving_average_", lambda a, b: updates.accumulate_moving_average_(a, b, 0.5), [(2, 3), (3,)], LATER),
    ("accumulate_moving_average_square_", lambda a, b: updates.accumulate_moving_average_square_(a, b, 0.5),
     [(2, 3), (3,)], LATER),
    ("accumulate_", updates.accumulate_, [(2, 3), (2, 3), (2,)], LATER),
    ("sparse_accumulate_", updates.sparse_accumulate_, [(5, 3), (2, 4), ints(2)], LATER),
    ("sparse_accumulate_", lambda t, x, i: updates.sparse_accumulate_(t, x, i, 1), [(5, 3), (2, 3), ints(2)], LATER),
    ("accumulator_scale_", updates.accumulator_scale_, [(2, 3), (3,)], LATER),
    ("adam_updater", adam(updates.adam_updater), [(2, 3), (3,), (2, 3)], LATER),
    ("lamb_updater", adam(updates.lamb_updater), [(2, 3), (3,), (2, 3)], LATER),
    ("adamax_updater", adamax, [(2, 3), (3,), (2, 3)], LATER),
    ("adam_var_update", lambda t, x, a, b: updates.adam_var_update(t, x, a, b, 0.1, 1.0),
     [(2, 3), (3,), (), ()], LATER),
    ("adam_var_update", lambda t, x, a, b: updates.adam_var_update(t, x, a, b, 0.1, 1.0),
     [(2, 3), (2, 3), (2,), ()], LATER),
]


# What messages call an op that is made of another one, or about what the op is given.
CALLED = {"layer_norm": "group_norm", "remote_store": "(remote_store|RemoteBuffer)", "remote_load_": "RemoteBuffer"}


@pytest.mark.parametrize("case", CASES, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CASES)])
@pytest.mark.parametrize("inside", [False, True])
def test_an_error_about_shapes_names_the_tensors(case, inside):
    """Both in the main graph and in one that it calls."""
    name, call, operands, error, *about = case
    ir, tensors, found = popxl.Ir(2), [], []
    with ir.main_graph:
        variables = []
        for i, operand in enumerate(operands):
            shape, dtype = operand if operand and isinstance(operand[0], tuple) else (operand, F32)
            variables.append(popxl.variable(np.zeros(shape, dtype.as_numpy()), dtype, f"operand_{i}"))

        def body(*operand):
            tensors.extend(operand)
            if error == LATER:
                call(*operand)
            else:
                with pytest.raises(error) as e:
                    call(*operand)
                found.append(str(e.value))

        if inside:
            ops.call(ir.create_graph(body, *variables), *variables)
        else:
            body(*variables)
    if error == LATER:
        with pytest.raises(popart_exception, match=r"\(\S*test_shape_errors.py:\d+\)\.$") as e:
            popxl.Session(ir)
        found.append(str(e.value))
    (text,) = found
    assert re.match(r"(Session: )?" + CALLED.get(name, re.escape(name)) + r"\b", text)
    for t in [tensors[i] for i in about[0]] if about else tensors:
        assert repr(t) in text


def test_the_table_has_each_op_of_several_tensors():
    wanted = set()
    for module in (ops, updates, collectives):
        for name, f in vars(module).items():
            if inspect.isfunction(f) and not name.startswith("_") and not name.endswith("_with_info"):
                annotations = [str(p.annotation) for p in inspect.signature(f).parameters.values()]
                tensors = [a for a in annotations if re.search(r"\bTensor\b", a)]
                if len(tensors) > 1 or any("Iterable" in a or "List" in a for a in tensors):
                    wanted.add(name)
    assert len(wanted) > 50 and not wanted - {name for name, *_ in CASES}
