"""The ops of popfn.host: the types they infer, the attributes they record, and what they refuse."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops = popxl.ops
BIG = 2**31


@pytest.fixture(autouse=True)
def main():
    with popxl.Ir().main_graph as graph:
        yield graph


def tensor(*shape, dtype="float32"):
    return popxl.variable(np.zeros(shape, getattr(popxl, dtype).as_numpy()), name="x")


def f16(*shape):
    return tensor(*shape, dtype="float16")


def i32(*shape):
    return tensor(*shape, dtype="int32")


def boolean(*shape):
    return tensor(*shape, dtype="bool")


def const(data):
    return popxl.constant(np.asarray(data, np.int32))


UNARY = "abs ceil floor sign cos sin tanh exp log sqrt negate relu gelu geluerf swish detach identity".split()
IN_PLACE = "exp relu gelu geluerf swish detach".split()


@pytest.mark.parametrize("name", UNARY + [name + "_" for name in IN_PLACE])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_one_operand(main, name, dtype):
    x = popxl.graph_input((6,), getattr(popxl, dtype), meta_shape=(2, 3))
    y = getattr(ops, name)(x)
    assert y.spec == x.spec and y is not x
    assert (y.producer.kind, y.producer.inputs, y.producer.attrs) == (name, (x,), {})


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_predicates(name):
    y = getattr(ops, name)(f16(2, 3))
    assert (y.dtype, y.shape, y.producer.kind) == (popxl.bool, (2, 3), name)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "fmod"])
def test_two_operands(name):
    op = getattr(ops, name)
    for lhs, rhs, shape in (
        ((2, 3), (2, 3), (2, 3)),
        ((3,), (2, 3), (2, 3)),
        ((2, 1), (1, 3), (2, 3)),
        ((), (4,), (4,)),
        ((5, 1, 2), (3, 1), (5, 3, 2)),
        ((1,), (0,), (0,)),
    ):
        y = op(tensor(*lhs), tensor(*rhs))
        assert (y.shape, y.dtype) == (shape, popxl.float32)
    with pytest.raises(popart_exception, match=rf"{name}: the shapes of .* \(2, 3\)\] and .* \(2,\)\] do not broad"):
        op(tensor(2, 3), tensor(2))
    with pytest.raises(popart_exception, match=f"{name}: the dtypes of .*float16 .*float32 .* differ; .*Use ops.cast"):
        op(f16(2), tensor(2))
    with pytest.raises(TypeError, match=f"{name}: .* must be a Tensor, not None"):
        op(None, tensor(2))


def test_meta_shapes():
    a, b, c = (popxl.graph_input((6,), popxl.float32, meta_shape=m) for m in ((2, 3), (3, 2), ()))
    assert (a + c).meta_shape == (c + a).meta_shape == (2, 3) and ops.equal(a, b).meta_shape == ()
    with pytest.raises(popart_exception, match=r"add: the meta_shapes of .* and .*, \(2, 3\) and \(3, 2\), differ"):
        a + b


def test_a_float32_scalar_scales_float16():
    for lhs, rhs in ((f16(2, 3), tensor()), (tensor(1), f16(2, 3)), (f16(2, 3), tensor(1, 1))):
        assert ops.mul(lhs, rhs).spec == popxl.TensorSpec((2, 3), popxl.float16)
    with pytest.raises(popart_exception, match="mul: the dtypes"):
        ops.mul(f16(2, 3), tensor(3))
    with pytest.raises(popart_exception, match="add: the dtypes"):
        ops.add(f16(2, 3), tensor())


def test_add_in_place_keeps_the_left_shape():
    y = ops.add_(tensor(3), tensor(2, 3))
    assert y.shape == (3,) and "does not fit into the shape" in y.producer.fault
    assert ops.add_(tensor(2, 3), tensor(3)).producer.fault is None


def test_comparisons_and_logic():
    for op in (ops.equal, ops.greater, ops.logical_and, ops.logical_or):
        y = op(f16(2, 3), tensor(3))
        assert (y.shape, y.dtype) == ((2, 3), popxl.bool)
    assert [t.dtype for t in y.producer.inputs] == [popxl.bool] * 2
    assert ops.logical_not(boolean(2)).producer.inputs[0].producer is None
    y = ops.where(tensor(2, 1), f16(3), f16())
    assert (y.shape, y.dtype, y.producer.inputs[0].dtype) == ((2, 3), popxl.float16, popxl.bool)
    with pytest.raises(popart_exception, match="where: the dtypes of .*float16 .*float32 .* differ"):
        ops.where(boolean(2), f16(2), tensor(2))


def test_maximum_takes_equal_types_only():
    a, b, c = tensor(2, 3), tensor(2, 3), tensor(2, 3)
    assert ops.maximum(a, b, c).producer.inputs == (a, b, c)
    for ts, text in (((a, tensor(3)), "the shapes .* differ"), ((a, f16(2, 3)), "the dtypes"), ((), "at least one")):
        with pytest.raises(popart_exception, match="maximum: .*" + text):
            ops.maximum(*ts)


def test_composed_ops(main):
    assert ops.log2(f16(2)).producer.kind == "div"
    assert [op.kind for op in main.ops] == ["log", "log", "div"]
    assert main.constants[0].dtype is popxl.float16
    y = ops.rename(tensor(2), "new")
    assert (y.name, y.producer.kind) == ("new", "identity")
    assert ops.clamp is ops.clip and ops.clip(tensor(2), -1).producer.attrs == {"min": -1.0, "max": float("inf")}


def test_cast():
    y = ops.cast(tensor(2, 3), popxl.int32)
    assert (y.spec, y.name) == (popxl.TensorSpec((2, 3), popxl.int32), "x_int32")
    assert y.producer.attrs == {"dtype": popxl.int32}
    for wanted, text in ((popxl.float8_143, "there is no plain cast"), (float, "data_type must be a popxl dtype")):
        with pytest.raises(TypeError, match="cast: " + text):
            ops.cast(tensor(2), wanted)


@pytest.mark.parametrize("name", "sum mean max min prod l1 l2 sumsquare logsum logsumexp".split())
def test_reductions(name):
    op = getattr(ops, name)
    for axis, keepdims, shape, axes in (
        (None, False, (), (0, 1, 2)),
        (None, True, (1, 1, 1), (0, 1, 2)),
        (1, False, (2, 4), (1,)),
        (-1, True, (2, 3, 1), (2,)),
        ([-1, 0], False, (3,), (0, 2)),
        ((), False, (2, 3, 4), ()),
        (True, False, (2, 4), (1,)),
    ):
        y = op(f16(2, 3, 4), axis, keepdims)
        assert (y.shape, y.dtype) == (shape, popxl.float16)
        assert (y.producer.kind, y.producer.attrs) == (name, {"axes": axes, "keepdims": keepdims})
    with pytest.raises(popart_exception, match=rf"{name}: axis 3 is out of range for Tensor\[.* \(2, 3, 4\)\]"):
        op(f16(2, 3, 4), [0, 3])
    with pytest.raises(TypeError, match=f"{name}: axis must be an int, not 1.0"):
        op(f16(2, 3, 4), 1.0)


def test_arguments_of_the_extremes():
    for op in (ops.argmax, ops.argmin):
        assert [op(f16(2, 3), d, k).shape for d, k in ((0, False), (-1, True), (1, False))] == [(3,), (2, 1), (2,)]
        assert op(f16(2, 3)).dtype is popxl.int32
        for dim in (2, -3):
            with pytest.raises(popart_exception, match="dim .* is out of range"):
                op(f16(2, 3), dim)


def test_topk():
    values, indices = ops.topk(f16(4, 5), 2, 1, True, True)
    assert (values.shape, values.dtype, indices.shape, indices.dtype) == ((4, 2), popxl.float16, (4, 2), popxl.int32)
    assert values.producer.attrs == {"k": 2, "axis": 1, "largest": True}
    with pytest.warns(UserWarning, match="sorted=False is not supported"):
        ops.topk(f16(4), 2, 0, False, False)
    for k, axis, text in ((2, -1, "axis -1 is out of range .*counts from 0"), (6, 1, "there are no 6 elements")):
        with pytest.raises(popart_exception, match="topk: " + text):
            ops.topk(f16(4, 5), k, axis, True, True)


def test_softmax_and_cumsum():
    for axis, counted in ((0, 0), (-1, 2), (-4, 2)):
        assert ops.softmax(tensor(2, 3, 4), axis).producer.attrs == {"axis": counted}
        assert ops.cumsum(tensor(2, 3, 4), axis).producer.attrs == {"axis": counted}
    assert "out of range" in ops.softmax(tensor(2), 1).producer.fault
    with pytest.raises(popart_exception, match=r"cumsum: dim 1 is out of range for Tensor\[.* \(2,\)\]"):
        ops.cumsum(tensor(2), 1)
    for f in (lambda: ops.softmax(tensor(2), 1.0), lambda: ops.cumsum(tensor(2), None)):
        with pytest.raises(TypeError, match="must be an int"):
            f()


@pytest.mark.parametrize("op", [ops.reshape, ops.reshape_])
def test_reshape(op):
    for shape, wanted, result in (
        ((2, 3), (6,), (6,)),
        ((2, 3), (3, -1, 1), (3, 2, 1)),
        ((2, 3), [3, 2], (3, 2)),
        ((1, 1), (), ()),
        ((), (1,), (1,)),
    ):
        y = op(tensor(*shape), wanted)
        assert (y.shape, y.producer.kind) == (result, op.__name__) and y.name.endswith("_reshaped")
    for wanted, error, text in (
        ((0, 6), ValueError, "is not possible"),
        ((-2, 3), ValueError, "is not possible"),
        ((-1, -1), ValueError, "is not possible"),
        ((4,), popart_exception, r"\(2, 3\)\] has 6 elements, the shape \(4,\) has not"),
        ((5, -1), popart_exception, "has 6 elements"),
        ((6.0,), TypeError, "must be an int, not 6.0"),
        ("ab", TypeError, "must be a tuple of ints"),
        (6, TypeError, "must be a tuple of ints"),
    ):
        with pytest.raises(error, match=text):
            op(tensor(2, 3), wanted)


def test_reshape_without_elements():
    assert ops.reshape(tensor(0, 2), (-1,)).shape == ops.flatten(tensor(2, 0)).shape == (0,)
    with pytest.raises(popart_exception, match="has no elements to view"):
        ops.flatten_(tensor(2, 0))


@pytest.mark.parametrize("op", [ops.transpose, ops.transpose_])
def test_transpose(op):
    for wanted, result in ((None, (4, 3, 2)), ((), (4, 3, 2)), ((1, 0, 2), (3, 2, 4)), ([-1, 0, 1], (4, 2, 3))):
        y = op(tensor(2, 3, 4), wanted)
        assert (y.shape, y.producer.kind) == (result, op.__name__)
    assert y.producer.attrs == {"permutation": (2, 0, 1)}
    for wanted, error, text in (
        ((0, 1), popart_exception, "is no permutation of the 3 axes"),
        ((0, 0, 1), popart_exception, "is no permutation"),
        ((0, 1, 3), ValueError, "names axes that .* has not"),
        (0, TypeError, "must be a list of ints"),
        ("abc", TypeError, "must be a list of ints"),
    ):
        with pytest.raises(error, match=text):
            op(tensor(2, 3, 4), wanted)


def test_squeeze():
    for axes, result in ((None, (2,)), ([0], (2, 1)), ([-1], (1, 2)), ([], (1, 2, 1)), ([-4], (1, 2))):
        assert ops.squeeze(tensor(1, 2, 1), axes).shape == result
    for axes in ([1], [0, 0], [3]):
        with pytest.raises(ValueError, match="squeeze: the axes .* must be different axes of length 1"):
            ops.squeeze(tensor(1, 2, 1), axes)


@pytest.mark.parametrize("op", [ops.concat, ops.concat_])
def test_concat(op):
    y = op([tensor(2, 3), tensor(2, 5)], -1)
    assert (y.shape, y.producer.kind, y.producer.attrs) == ((2, 8), op.__name__, {"axis": 1})
    assert op((tensor(0), tensor(2))).shape == (2,)
    for ts, axis, error, text in (
        ([], 0, ValueError, "at least one tensor"),
        ([tensor(2), f16(2)], 0, TypeError, "the dtypes of .*float32 .*float16 .* differ"),
        ([tensor(2), tensor(2, 3)], 0, popart_exception, "differ elsewhere than on axis 0"),
        ([tensor(2, 3), tensor(2, 4)], 0, popart_exception, "differ elsewhere"),
        ([tensor(2, 3)], 2, popart_exception, "axis 2 is out of range"),
        ([tensor(2), 1.0], 0, TypeError, "tensor 1 must be a Tensor, not 1.0"),
    ):
        with pytest.raises(error, match=text):
            op(ts, axis)


def test_split():
    assert [t.shape for t in ops.split(tensor(6, 4), 3)] == [(2, 4)] * 3
    parts = ops.split(tensor(5, 6), [2, 4], -1)
    assert isinstance(parts, list)
    assert [(t.shape, t.name) for t in parts] == [((5, 2), "x__t0_split_0"), ((5, 4), "x__t0_split_1")]
    assert parts[0].producer.attrs == {"axis": 1, "sizes": (2, 4)}
    for splits, axis, error, text in (
        (4, 0, ValueError, "has no 4 equal parts"),
        (0, 0, ValueError, "has no 0 equal parts"),
        ([2, 2], 0, popart_exception, "do not add up"),
        (1.5, 0, TypeError, "must be an int"),
        (2, 3, IndexError, "axis 3 is out of range"),
    ):
        with pytest.raises(error, match="split: .*" + text):
            ops.split(tensor(6, 4), splits, axis)


@pytest.mark.parametrize("op", [ops.slice, ops.slice_])
def test_slice(op):
    x = tensor(4, 5)
    assert op(x) is x
    for args, slices in (
        ((1,), (slice(1, 4, 1), slice(0, 5, 1))),
        ((None, 3), (slice(0, 3, 1), slice(0, 5, 1))),
        ((-3, -1), (slice(1, 3, 1), slice(0, 5, 1))),
        ((-10, BIG), (slice(0, 4, 1), slice(0, 5, 1))),
        (([0, 1], [2, 3]), (slice(0, 2, 1), slice(1, 3, 1))),
        (([0], [2], None, [-1]), (slice(0, 4, 1), slice(0, 2, 1))),
        ((None, None, -1), (slice(3, None, -1), slice(0, 5, 1))),
        ((-1, -5, -1, 0), (slice(3, None, -1), slice(0, 5, 1))),
        ((3, 1, -1), (slice(3, 1, -1), slice(0, 5, 1))),
    ):
        y = op(x, *args)
        assert (y.producer.kind, y.producer.attrs) == (op.__name__, {"slices": slices})
        assert y.shape == np.zeros((4, 5))[slices].shape
    assert op(x, 5, 6).shape == (0, 5)
    for args, error, text in (
        (([0, 1], [2]), ValueError, "the lengths of start, stop, step and axis for .* differ"),
        ((0, 2, None, 2), popart_exception, "axis 2 is out of range"),
        ((0, 2, 2), popart_exception, "the step along axis 0 of .* must be 1 or -1, not 2; see ops.subsample"),
        ((1.0, 2), TypeError, "must be an int, not 1.0"),
    ):
        with pytest.raises(error, match=text):
            op(x, *args)


def test_subsample():
    for strides, result, full in ((3, (2, 5), (3, 1)), ([1, 2], (4, 3), (1, 2)), ([2], (2, 5), (2, 1))):
        y = ops.subsample(tensor(4, 5), strides)
        assert (y.shape, y.producer.attrs) == (result, {"strides": full})
    mine = [2]
    ops.subsample(tensor(4, 5), mine)
    assert mine == [2]
    for strides, error in (([1, 1, 1], ValueError), (0, popart_exception), ("2", TypeError)):
        with pytest.raises(error, match="subsample: "):
            ops.subsample(tensor(4, 5), strides)


def test_windows():
    x, index = tensor(4, 5), i32(1)
    y = ops.dynamic_slice(x, index, [1], [2], True)
    assert (y.shape, y.producer.attrs) == ((4, 2), {"axes": (1,), "sizes": (2,)})
    for op in (ops.dynamic_update, ops.dynamic_update_):
        z = op(x, index, tensor(4, 2), [1], [2], True)
        assert z.spec == x.spec and z.producer.inputs[:2] == (x, index) and z.producer.fault is None
    for index, update, axes, sizes, text in (
        (i32(2), tensor(4, 2), [1], [2], "an index of shape"),
        (tensor(1), tensor(4, 2), [1], [2], "is no integer"),
        (i32(1), tensor(4, 3), [1], [2], "the update has the shape"),
        (i32(1), f16(4, 2), [1], [2], "the dtypes float32 and float16 differ"),
        (i32(1), tensor(4, 6), [1], [6], "exceed the shape"),
    ):
        assert text in ops.dynamic_update(x, index, update, axes, sizes, True).producer.fault
    for axes, sizes in (([2], [1]), ([-1], [1]), ([0, 1], [1])):
        with pytest.raises(popart_exception, match="dynamic_slice: "):
            ops.dynamic_slice(x, i32(1), axes, sizes, True)


def test_gather():
    for op in (ops.gather, ops.tied_gather):
        y = op(tensor(4, 5, 6), i32(2, 3), 1, zero_OOR=True)
        assert (y.shape, y.producer.kind) == ((4, 2, 3, 6), "gather")
        assert y.producer.attrs == {"axis": 1, "zero_OOR": True}
        assert "are no integers" in op(tensor(4), tensor(2)).producer.fault
        for x, axis in ((tensor(4), 1), (tensor(4), -2), (tensor(), 0)):
            with pytest.raises(popart_exception, match="gather: axis .* is out of range"):
                op(x, i32(2), axis)


def test_gather_along_a_negative_axis():
    assert ops.gather(tensor(4, 5), i32(2), -1).shape == (4, 2)
    y = ops.gather(tensor(4, 5, 6), i32(2), -2)  # what PopXL infers
    assert y.shape == (4, 5, 2) and "PopXL infers a wrong shape; use 1" in y.producer.fault


def test_scatter_reduce():
    y = ops.scatter_reduce(tensor(4, 3), i32(4), "sum", axis=0, axis_size=5)
    assert (y.shape, y.producer.attrs) == ((5, 3), {"reduction": "sum", "axis": 0})
    z = ops.scatter_reduce(tensor(4, 3), i32(4, 3), "max", tensor(4, 7), -1)
    assert (z.shape, len(z.producer.inputs), z.producer.fault) == ((4, 7), 3, None)
    for args, error, text in (
        (("add", tensor(5, 3)), ValueError, 'must be "sum", "max", "min" or "none", not \'add\''),
        (("sum",), ValueError, "give initial_values or axis_size"),
        (("sum", None, 2, 5), popart_exception, "axis 2 is out of range"),
        (("sum", None, 0, 1.5), TypeError, "axis_size must be an int"),
    ):
        with pytest.raises(error, match="scatter_reduce: .*" + text):
            ops.scatter_reduce(tensor(4, 3), i32(4), *args)
    for indices, start, text in (
        (i32(3), tensor(5, 3), "do not fit data of shape"),
        (tensor(4), tensor(5, 3), "are no integers"),
        (i32(4), f16(5, 3), "the dtypes"),
        (i32(4), tensor(5, 2), "initial values of shape"),
    ):
        assert text in ops.scatter_reduce(tensor(4, 3), indices, "sum", start).producer.fault


def test_onehot():
    y = ops.onehot(i32(2, 3), const(5), f16(2), -1)
    assert (y.shape, y.dtype, y.producer.attrs) == ((2, 3, 5), popxl.float16, {"num_classes": 5, "axis": 2})
    assert ops.onehot(i32(2, 3), const([5]), f16(2), 1).shape == (2, 5, 3)
    assert "are not [off, on]" in ops.onehot(i32(2), const(5), f16(3), 0).producer.fault
    for classes, axis, error, text in (
        (5, 0, TypeError, "num_classes must be a Tensor, not 5"),
        (i32(), 0, popart_exception, "num_classes must be a constant of one element"),
        (const(5), 3, popart_exception, "axis 3 is out of range for a result of rank 3"),
        (const(5), None, TypeError, "axis must be an int"),
    ):
        with pytest.raises(error, match="onehot: .*" + text):
            ops.onehot(i32(2, 3), classes, f16(2), axis)


def test_init():
    y = ops.init((2, 3), popxl.int8, "mine", "undef", (6,))
    assert (y.spec, y.name) == (popxl.TensorSpec((2, 3), popxl.int8, (6,)), "mine")
    assert y.producer.attrs == {"init_type": "undef"} and ops.init([], popxl.bool).producer.attrs["init_type"] == "zero"
    for args, error, text in (
        ((3, popxl.int8), TypeError, "a shape is a sequence of ints, not 3"),
        (((-1,), popxl.int8), ValueError, "has a negative axis"),
        (((3,), "int8"), TypeError, "must be a popxl dtype"),
        (((3,), popxl.int8, None, "one"), ValueError, 'init_type must be "zero" or "undef"'),
    ):
        with pytest.raises(error, match="init: .*" + text):
            ops.init(*args)


def test_matmul():
    for lhs, rhs, result in (
        ((2, 3), (3, 4), (2, 4)),
        ((3,), (3,), ()),
        ((2, 3), (3,), (2,)),
        ((3,), (5, 3, 4), (5, 4)),
        ((5, 1, 2, 3), (6, 3, 4), (5, 6, 2, 4)),
        ((2, 0), (0, 4), (2, 4)),
    ):
        assert ops.matmul(tensor(*lhs), tensor(*rhs)).shape == result
    assert ops.matmul(f16(2, 3), f16(3, 4), output_type=popxl.float32).dtype is popxl.float32
    y = ops.matmul(tensor(2, 3), f16(3, 4))
    assert y.dtype is popxl.float32 and "the dtypes float32 and float16 differ" in y.producer.fault
    f8 = tensor(2, 2, dtype="float8_143")
    for args, error, text in (
        ((tensor(2, 3), tensor(4, 3)), popart_exception, r"the shapes of .* do not fit: the inner axes"),
        ((tensor(2, 2, 3), tensor(3, 3, 4)), popart_exception, "do not broadcast"),
        ((tensor(), tensor(3)), popart_exception, "an operand is a scalar"),
        ((f8, f8), popart_exception, "need a scale"),
        ((tensor(2, 3), tensor(3, 4), None, None, popxl.int32), ValueError, "must be float16 or float32, not int32"),
        ((tensor(2, 3), tensor(3, 4), None, "float32"), TypeError, "output_type must be a popxl dtype"),
    ):
        with pytest.raises(error, match="matmul: .*" + text):
            ops.matmul(*args)


def test_updates():
    updates = ops.var_updates
    t, x = tensor(2, 3), tensor(2, 3)
    for y, kind, inputs in (
        (updates.copy_var_update_(t, x), "copy_var_update_", (t, x)),
        (updates.accumulate_(t, x), "accumulate_", (t, x)),
        (updates.accumulate_(t, f16(2, 3), 0.5), "accumulate_", None),
        (updates.accumulator_zero_(t), "accumulator_zero_", (t,)),
    ):
        assert y.spec == t.spec and y is not t and y.producer.kind == kind and y.producer.fault is None
        assert inputs is None or y.producer.inputs == inputs
    assert updates.accumulate_(t, x, 0.5).producer.attrs == {"f": 0.5, "operands": ("t", "X")}
    f = tensor()
    op = updates.accumulate_(t, x, f).producer
    assert op.inputs == (t, x, f) and op.attrs == {"f": None, "operands": ("t", "X", "f")}
    assert "must agree" in updates.copy_var_update_(t, f16(2, 3)).producer.fault
    assert "differ" in updates.accumulate_(t, tensor(3)).producer.fault
    with pytest.raises(popart_exception, match="the factor f must not be 0"):
        updates.accumulate_(t, x, 0)
    with pytest.raises(TypeError, match="f must be a float or a Tensor"):
        updates.accumulate_(t, x, [1.0])


def test_a_float8_tensor_moves_but_has_no_arithmetic():
    x = tensor(2, 3, dtype="float8_152")
    assert ops.reshape(x, (6,)).dtype is (x + x).dtype is popxl.float8_152
