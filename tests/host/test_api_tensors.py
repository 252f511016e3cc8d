"""Tensors, dtypes, host data, variables, constants and streams."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops = popxl.ops
NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float8_143 float8_152 float16 float32 float64 complex64 "
    "complex128"
).split()


@pytest.fixture
def main():
    with popxl.Ir().main_graph as graph:
        yield graph


def tensor(*shape, dtype="float32"):
    return popxl.variable(np.zeros(shape, dtype))


class TestDtypes:
    @pytest.mark.parametrize("name", NAMES)
    def test_properties(self, name):
        dtype = getattr(popxl, name)
        assert dtype.name == name and repr(dtype) == "popxl.dtypes." + name
        assert dtype.is_int == ("int" in name) and dtype.is_floating_point == name.startswith("float")
        assert dtype.is_complex == name.startswith("complex")
        assert dtype.is_signed == (not name.startswith(("uint", "bool")))
        assert popxl.dtype.from_name(name) is popxl.dtype.as_dtype(name) is dtype
        assert popxl.dtype.as_dtype(dtype.as_numpy()) is dtype
        assert popxl.dtype.as_dtype(np.zeros(2, dtype.as_numpy())) is dtype

    def test_aliases_and_python_types(self):
        assert (popxl.half, popxl.float, popxl.double) == (popxl.float16, popxl.float32, popxl.float64)
        as_dtype = popxl.dtype.as_dtype
        assert [as_dtype(t) for t in (bool, float, int)] == [popxl.bool, popxl.float32, popxl.int64]
        assert as_dtype(np.float16) is as_dtype(np.float16(1)) is popxl.float16

    @pytest.mark.parametrize("value", ["half", "bfloat16", "", str, object, 1, None, popxl.float32])
    def test_refused(self, value):
        with pytest.raises(ValueError, match="there is no popxl dtype"):
            popxl.dtype.as_dtype(value)


class TestToNumpy:
    @pytest.mark.parametrize(
        "x, options, dtype",
        [
            (1, {}, "int32"),
            (1, {"downcast": False}, "int64"),
            (1.5, {}, "float32"),
            (True, {}, "bool"),
            ((1, 2), {}, "int32"),
            (np.uint64([1]), {}, "uint32"),
            (np.float16([1]), {}, "float16"),
            (np.float64([1]), {"dtype": popxl.float16}, "float16"),
            (-1, {"dtype": popxl.uint32}, "uint32"),
            (300, {"dtype": popxl.int8}, "int8"),
            (1e300, {"dtype": popxl.float16}, "float16"),
            (np.nan, {"dtype": popxl.int32}, "int32"),
            (None, {}, "float32"),  # as measured on PopXL
        ],
    )
    def test_dtypes(self, x, options, dtype):
        got = popxl.utils.to_numpy(x, **options)
        assert got.dtype == dtype and got.shape == np.shape(x) and got.flags.c_contiguous

    def test_values(self):
        assert popxl.utils.to_numpy(300, popxl.int8) == 44 and popxl.utils.to_numpy(-1, popxl.uint32) == 2**32 - 1
        assert popxl.utils.to_numpy(0.1).tolist() == np.float32(0.1)

    def test_copies(self):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert not np.shares_memory(popxl.utils.to_numpy(x), x)
        assert np.shares_memory(popxl.utils.to_numpy(x, copy=False), x)
        assert popxl.utils.to_numpy(x.T).flags.c_contiguous

    def test_memmap(self, tmp_path):
        m = np.memmap(str(tmp_path / "a"), np.float32, "w+", shape=(2, 3))
        assert popxl.utils.to_numpy(m) is m and popxl.utils.to_numpy(m, popxl.float32) is m
        wide = np.memmap(str(tmp_path / "b"), np.float64, "w+", shape=(2,))
        for x, dtype, text in (
            (m, popxl.float16, "its dtype is float32, not float16"),
            (wide, None, "would be narrowed"),
            (m.T, None, "not C-contiguous"),
        ):
            with pytest.raises(ValueError, match="cannot be used in place: .*" + text):
                popxl.utils.to_numpy(x, dtype)

    @pytest.mark.parametrize(
        "x, options, error, text",
        [
            ([], {}, ValueError, "an empty list has no dtype"),
            ("a", {}, ValueError, "the data is not numeric"),
            ([[1], [2, 3]], {}, ValueError, "the data is no array: .*sequence"),
            (object(), {}, TypeError, "the data is not numeric"),
            ({}, {}, TypeError, "the data is not numeric"),
            (1.0, {"dtype": "float16"}, TypeError, "dtype must be a popxl dtype, not 'float16'"),
            (1.0, {"log2_scale": 1}, RuntimeError, "are for 8-bit floats"),
            (1, {"dtype": popxl.float8_143}, TypeError, "cannot be made of int64 data"),
        ],
    )
    def test_refused(self, x, options, error, text):
        with pytest.raises(error, match=text):
            popxl.utils.to_numpy(x, **options)


class TestVariablesAndConstants:
    def test_variable(self, main):
        data = np.arange(6.0).reshape(2, 3)
        v = popxl.variable(data, name="v")
        data[:] = 0
        assert (v.id, v.dtype, v.shape, v.shape_on_host, v.shape_on_replica) == ("v", popxl.float32) + ((2, 3),) * 3
        assert v.data.sum() == 15 and v.retrieval_mode == "one_per_group" and isinstance(v, popxl.tensor.Variable)
        assert popxl.variable(data, downcast=False).dtype is popxl.float64
        assert popxl.variable(data, popxl.float16).dtype is popxl.float16

    def test_only_in_the_main_graph(self, main):
        with pytest.raises(ValueError, match=r"variables live in the main graph; .*<lambda>_subgraph\(0\)"):
            main.ir.create_graph(lambda f: popxl.variable(1.0), 0)

    def test_refused(self, main):
        for f, error, text in (
            (lambda: popxl.variable(1.0, retrieval_mode="x"), ValueError, 'must be "one_per_group" or "all_replicas"'),
            (lambda: popxl.variable(1.0, replica_grouping=1), TypeError, "must be a ReplicaGrouping, not 1"),
            (lambda: popxl.variable(1.0, name=3), TypeError, "the name must be a str, not 3"),
            (lambda: popxl.variable([]), ValueError, "an empty list"),
            (lambda: popxl.constant({}), TypeError, "not numeric"),
            (lambda: popxl.constant(np.zeros(2, popxl.float8_143.as_numpy())), TypeError, "needs the argument dtype"),
        ):
            with pytest.raises(error, match=text):
                f()
        assert main.tensors == ()

    def test_a_constant_cannot_change(self, main):
        c = popxl.constant([1.0, 2.0])
        assert isinstance(c, popxl.tensor.Constant) and c.name == "t"
        with pytest.raises(ValueError, match="read-only"):
            c.data[0] = 3

    def test_streams(self, main):
        x = popxl.h2d_stream((2, 3), popxl.int32, name="x")
        assert (x.shape, x.dtype, x.tensor_id) == ((2, 3), popxl.int32, "x")
        assert x.spec == popxl.TensorSpec((2, 3), popxl.int32)
        assert str(x) == "HostToDeviceStream x popxl.dtypes.int32 (2, 3)"
        y = popxl.d2h_stream((2, 3), popxl.int32)
        t = ops.host_load(x)
        assert (t.name, ops.host_load(x, "n").name) == ("x_hostload", "n_hostload")
        assert ops.host_store(y, t) is None
        for f, error, text in (
            (lambda: popxl.h2d_stream(3, popxl.int32), TypeError, "a shape is a sequence of ints, not 3"),
            (lambda: popxl.d2h_stream((2,), "int32"), TypeError, "must be a popxl dtype"),
            (lambda: ops.host_load(y), TypeError, "expected a HostToDeviceStream"),
            (lambda: ops.host_store(x, t), TypeError, "expected a DeviceToHostStream"),
            (lambda: ops.host_store(y, tensor(2, 3)), ValueError, "does not fit the stream DeviceToHostStream"),
            (lambda: ops.host_store(y, ops.transpose(t)), ValueError, "does not fit the stream"),
        ):
            with pytest.raises(error, match=text):
                f()

    def test_a_stream_of_another_ir(self, main):
        x = popxl.h2d_stream((2,), popxl.float32)
        popxl.context.pop_graph()
        try:
            with popxl.Ir().main_graph, pytest.raises(ValueError, match="host_load: .* belongs to another Ir"):
                ops.host_load(x)
        finally:
            popxl.context.push_graph(main)

    def test_tensor_spec(self):
        spec = popxl.TensorSpec((2, 3), popxl.float32)
        assert spec.to_dict() == {"shape": (2, 3), "dtype": popxl.float32, "meta_shape": ()} == dict(spec)
        assert spec.to_tuple() == ((2, 3), popxl.float32, ()) and len(spec) == 3
        assert {spec: 1}[popxl.TensorSpec((2, 3), popxl.float32)] == 1


class TestTensor:
    def test_properties(self, main):
        t = tensor(2, 3, dtype="float16")
        assert (t.rank, t.nelms, t.strides(), t.strides((4, 5)), len(t)) == (2, 6, (6, 2), (10, 2), 2)
        assert t.ir is main.ir and t.spec == popxl.TensorSpec((2, 3), popxl.float16)
        assert repr(t) == "Tensor[t float16 (2, 3)]"

    def test_equality_is_identity(self, main):
        a, b = tensor(2), tensor(2)
        assert a == a and a != b and (a == 1.0) is False and len({a, b, a}) == 2
        assert (a == np.zeros(2)) is False

    def test_what_it_refuses(self, main):
        t = tensor(2)
        for f, error in (
            (lambda: list(t), TypeError),
            (lambda: 1.0 in t, TypeError),
            (lambda: len(tensor()), ValueError),
            (lambda: t < t, TypeError),
            (lambda: float(t), TypeError),
            (lambda: np.exp(t), TypeError),
            (lambda: t // 2, TypeError),
            (lambda: abs(t), TypeError),
        ):
            with pytest.raises(error):
                f()

    @pytest.mark.parametrize(
        "expression, kinds",
        [
            ("a + b", ["add"]),
            ("a - b", ["sub"]),
            ("a * b", ["mul"]),
            ("a / b", ["div"]),
            ("a % b", ["fmod"]),
            ("a ** b", ["pow"]),
            ("a @ b", ["matmul"]),
            ("a & b", ["cast", "cast", "logical_and"]),
            ("a | b", ["cast", "cast", "logical_or"]),
            ("~a", ["cast", "logical_not"]),
            ("-a", ["negate"]),
            ("a.T", ["transpose"]),
            ("a.T_", ["transpose_"]),
            ("a.reshape((4, 1))", ["reshape"]),
            ("a.reshape_((4, 1))", ["reshape_"]),
            ("a.flatten()", ["reshape"]),
            ("a.flatten_()", ["reshape_"]),
            ("a.detach()", ["detach"]),
            ("a.detach_()", ["detach_"]),
            ("a.diag()", ["reshape", "subsample"]),
        ],
    )
    def test_operators_and_methods(self, main, expression, kinds):
        eval(expression, {"a": tensor(2, 2), "b": tensor(2, 2)})
        assert [op.kind for op in main.ops] == kinds

    @pytest.mark.parametrize("operator", "+ - * / % & | @".split())
    def test_host_operands_become_constants(self, main, operator):
        a = tensor(2, 2, dtype="int32")
        for other in (1.5, True, np.float64(2.5), [[1, 2], [3, 4]], np.ones((2, 2), np.float16)):
            if operator == "@" and np.ndim(other) == 0:
                continue
            eval("a " + operator + " b", {"a": a, "b": other})
            right = main.constants[-1]
            eval("b " + operator + " a", {"a": a, "b": other})
            left = main.constants[-1]
            for c in (left, right):
                assert c.dtype is popxl.int32
                np.testing.assert_array_equal(c.data, np.asarray(other).astype(np.int32))
        op = main.ops[-1]
        sides = [t.producer.inputs[0] if t.producer else t for t in op.inputs]
        assert sides == [left, a]

    def test_only_plus_is_in_place(self, main):
        a, b = tensor(2), tensor(2)
        c = a
        c += b
        assert c is a and main.ops[-1].kind == "add_"
        c -= b
        assert c is not a

    def test_a_power_keeps_the_dtype_of_its_host_operand(self, main):
        a = tensor(2)
        assert (a**2.0).dtype is (2.0**a).dtype is popxl.float32
        before = main.tensors
        for f in (lambda: a**2, lambda: 2**a, lambda: tensor(2, dtype="float16") ** 2.0):
            with pytest.raises(popart_exception, match="pow: the dtypes .* differ; there is no promotion"):
                f()
        assert set(main.tensors) - set(before) == {main.variables[-1]}

    def test_a_failed_operator_leaves_nothing_behind(self, main):
        a = tensor(2)
        before = main.tensors, list(main.ops)
        for f, error in (
            (lambda: a + np.ones(3), popart_exception),
            (lambda: a + [], ValueError),
            (lambda: a + np.ones((0, 2)), ValueError),
            (lambda: a * "a", ValueError),
            (lambda: a & np.ones(3), popart_exception),
            (lambda: a[0, 0], popart_exception),
            (lambda: ops.log2(1.0), TypeError),
        ):
            with pytest.raises(error):
                f()
            assert (main.tensors, main.ops) == before
        assert a.consumer is None


class TestIndexing:
    @pytest.mark.parametrize(
        "shape, key, result, kinds",
        [
            ((4, 5), 1, (5,), ["slice", "reshape"]),
            ((4, 5), -2, (5,), ["slice", "reshape"]),
            ((4, 5), (1, 2), (), ["slice", "reshape"]),
            ((4, 5), slice(1, 3), (2, 5), ["slice"]),
            ((4, 5), slice(None), (4, 5), ["slice"]),
            ((4, 5), slice(-2, None), (2, 5), ["slice"]),
            ((4, 5), slice(None, None, 2), (2, 5), ["slice", "subsample"]),
            ((4, 5), slice(3, 0, -2), (2, 5), ["slice", "subsample"]),
            ((4, 5), slice(None, None, -1), (4, 5), ["slice"]),
            ((4, 5), (slice(1, 2), 0), (1,), ["slice", "reshape"]),
            ((4, 5), (), (4, 5), ["slice"]),
            ((4, 5), [0, 2, 1], (3, 5), ["gather"]),
            ((4, 5), np.array([[0, 1], [2, 3]]), (2, 2, 5), ["gather"]),
            ((4, 5), np.ones((4, 5), bool), (4, 5), ["where"]),
            ((4, 5), [True, False, True, False, True], (4, 5), ["where"]),
        ],
    )
    def test_keys(self, main, shape, key, result, kinds):
        assert tensor(*shape)[key].shape == result
        assert [op.kind for op in main.ops] == kinds

    def test_tensor_keys(self, main):
        assert tensor(4, 5)[tensor(2, 3, dtype="int32")].shape == (2, 3, 5)
        assert tensor(4, 5)[tensor(1, 5, dtype="bool")].shape == (4, 5)

    @pytest.mark.parametrize(
        "key, error, text",
        [
            (-1, ValueError, "must be different axes of length 1"),
            (True, TypeError, "is no key"),
            ("a", TypeError, "is no key"),
            ([0.5], TypeError, "is no key"),
            (np.int64(1), TypeError, "is no key"),
            (Ellipsis, TypeError, "is no key"),
            (None, TypeError, "is no key"),
            ((Ellipsis, 0), ValueError, "an ellipsis in a key is not supported"),
            ((0, 0, 0), popart_exception, r"axis 2 is out of range for Tensor\[.* \(4, 5\)\]"),
            ([True, False], popart_exception, "do not broadcast"),
            (slice(None, None, 0), popart_exception, "the strides for .* must be positive"),
        ],
    )
    def test_refused(self, main, key, error, text):
        with pytest.raises(error, match=text):
            tensor(4, 5)[key]
        assert main.ops == [] and len(main.tensors) == 1

    def test_no_assignment(self, main):
        with pytest.raises(TypeError):
            tensor(4)[0] = 1.0
