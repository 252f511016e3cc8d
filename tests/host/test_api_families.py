"""The families of ops beyond the core: shapes, dtypes, attributes and errors, 8-bit floats and seeds on the host."""
import numpy as np
import pytest

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops, updates = popxl.ops, popxl.ops.var_updates
F16, F32, I32 = popxl.float16, popxl.float32, popxl.int32
FLOAT8 = (popxl.float8_143, popxl.float8_152)


def raises(error, text):
    return pytest.raises(error, match=text)


@pytest.fixture(autouse=True)
def main():
    with popxl.Ir().main_graph as main:
        yield main


def tensor(*shape, dtype=F32, name=None):
    return popxl.variable(np.zeros(shape, dtype.as_numpy()), dtype, name)


def seed():
    return tensor(2, dtype=popxl.uint32)


def refused(*cases):
    for act, error, text in cases:
        with raises(error, text):
            act()


def fault(t):
    """What a Session would say of the op that makes `t`."""
    return t.producer.fault


class TestRandom:
    def test_shapes(self):
        t = tensor(2, 3, dtype=F16)
        assert ops.dropout(t, seed(), 0.25).producer.attrs == {"ratio": 0.25}
        assert ops.shaped_dropout(t, seed(), (1, 3), 0.5).producer.attrs == {"shape": (1, 3), "ratio": 0.5}
        uniform = ops.random_uniform(seed(), (2, 3), -1, 1, F16)
        assert (uniform.shape, uniform.dtype, uniform.producer.attrs) == ((2, 3), F16, {"low": -1.0, "high": 1.0})
        normal = ops.random_normal(seed(), [4], std=2)
        assert (normal.shape, normal.dtype, normal.producer.attrs) == ((4,), F32, {"mean": 0.0, "std": 2.0})
        seeds = ops.split_random_seed(seed(), 3)
        assert [s.spec for s in seeds] == [popxl.TensorSpec((2,), popxl.uint32)] * 3
        assert [int(s.producer.inputs[1].data) for s in seeds] == [0, 1, 2]
        assert ops.split_random_seed(seed(), 0) == ()

    def test_refused(self):
        t = tensor(2, 3)
        refused(
            (lambda: ops.split_random_seed(tensor(2)), ValueError, "is no pair of uint32"),
            (lambda: ops.split_random_seed(seed(), "2"), TypeError, "n must be an int, not '2'"),
            (lambda: ops.dropout(t, seed(), t), TypeError, "p must be a float"),
            (lambda: ops.shaped_dropout(t, seed(), (2,), 0.5), popart_exception, "does not broadcast"),
            (lambda: ops.shaped_dropout(t, seed(), (2, 2, 3), 0.5), popart_exception, "does not broadcast to"),
            (lambda: ops.random_uniform(seed(), "a"), TypeError, "a shape is a sequence of ints"),
            (lambda: ops.random_normal(seed(), (2,), dtype="f"), TypeError, "must be a popxl dtype"),
        )

    def test_faults(self):
        t = tensor(2)
        assert "is no pair of uint32" in fault(ops.dropout(t, t, 0.5))
        assert "is neither float16 nor float32" in fault(ops.dropout(tensor(2, dtype=I32), seed(), 0.5))
        assert "1.0 is not in the range" in fault(ops.dropout(t, seed(), 1))
        assert "not int32" in fault(ops.random_uniform(seed(), (2,), dtype=I32))

    def test_create_seeds(self):
        np.testing.assert_array_equal(popxl.create_seeds(42), np.array([3324115917, 383329928], np.uint32))
        seeds = popxl.create_seeds(1, 2, 3, 1, 4)
        assert seeds.shape == (3, 4, 2) and seeds.dtype == np.uint32
        np.testing.assert_array_equal(seeds, popxl.create_seeds(3, 0, 3, 1, 4))
        a, b = popxl.random_seed.uint64_to_two_uint32(2**40 + 5)
        assert (a, b) == (256, 5) and popxl.random_seed.two_uint32_to_uint64(a, b) == 2**40 + 5
        refused(
            (lambda: popxl.create_seeds(1.5), TypeError, "must be ints, not 1.5"),
            (lambda: popxl.create_seeds(1, 0, 0), ValueError, r"must be positive, not \(0, 1, 1\)"),
        )


class TestNormsAndLosses:
    def test_norms(self):
        t, w = tensor(4, 6, 2, dtype=F16), tensor(6, dtype=F16)
        y = ops.group_norm(t, w, w, 3)
        assert [x.shape for x in y.producer.outputs] == [(4, 6, 2), (12,), (12,)] and fault(y) is None
        assert ops.layer_norm(t, w, w, 1e-3).producer.attrs == {"num_groups": 1, "eps": 1e-3}
        assert ops.batch_norm_inference(t, w, w, w, w).shape == (4, 6, 2)
        assert "cannot be divided into 4 groups" in fault(ops.group_norm(t, w, w, 4))
        assert "does not fit the 6 channels" in fault(ops.layer_norm(t, tensor(5), w))
        refused(
            (lambda: ops.layer_norm(tensor(3), w, w), popart_exception, "has no axes for samples and channels"),
            (lambda: ops.batch_norm_inference(tensor(2, 6), w, w, w, w), popart_exception, "at least 3 axes"),
            (lambda: ops.group_norm(t, w, w, 3, None), TypeError, "eps must be a float, not None"),
        )

    def test_losses(self):
        probs, labels = tensor(4, 3), tensor(4, dtype=I32)
        loss = ops.nll_loss(probs, labels, ignore_index=-1, log_prob=True)
        assert loss.shape == () and loss.producer.attrs == dict(reduction="mean", ignore_index=-1, log_prob=True)
        assert ops.nll_loss(probs, labels, reduction="none").shape == (4,)
        loss, dx = ops.nll_loss_with_softmax_grad(probs, labels, 2)
        assert (loss.shape, dx.shape) == ((), (4, 3)) and float(dx.producer.inputs[2].data) == 2.0
        assert "do not fit" in fault(ops.nll_loss(probs, tensor(3, dtype=I32)))
        refused(
            (lambda: ops.nll_loss(probs, labels, reduction="max"), ValueError, "not 'max'"),
            (lambda: ops.nll_loss(probs, tensor(4)), popart_exception, "must be integers"),
            (lambda: ops.nll_loss(tensor(), tensor(dtype=I32)), ValueError, "no axis for the classes"),
            (lambda: ops.nll_loss(probs, labels, 1.5), TypeError, "ignore_index must be an int"),
            (lambda: ops.nll_loss_with_softmax_grad(probs, labels, "a"), ValueError, "not numeric"),
        )


class TestConvolutions:
    def test_conv(self):
        t, w = tensor(2, 4, 8, 9), tensor(6, 2, 3, 3)
        y = ops.conv(t, w, (2, 1), (1, 1, 0, 2), (1, 2), 2)
        assert y.shape == (2, 6, 4, 8)
        assert y.producer.attrs == dict(stride=(2, 1), padding=(1, 1, 0, 2), dilation=(1, 2), groups=2)
        for kind, padding in (("same_upper", (0, 1, 1, 1)), ("same_lower", (1, 1, 0, 1)), ("valid", (0, 0, 0, 0))):
            y = ops.conv(t, w, (2, 2), (5, 5, 5, 5), groups=2, pad_type=kind)
            assert y.producer.attrs["padding"] == padding
        assert ops.conv(tensor(1, 1, 4, 4, 4), tensor(1, 1, 2, 2, 2)).shape == (1, 1, 3, 3, 3)
        refused(
            (lambda: ops.conv(t, w, stride=2), TypeError, "stride must be a list of ints"),
            (lambda: ops.conv(t, w, stride=(2,)), popart_exception, "stride must have 2 entries for .*, not 1"),
            (lambda: ops.conv(t, w, pad_type="SAME"), ValueError, "pad_type must be one of not_set"),
            (lambda: ops.conv(t, w), popart_exception, "in 1 groups do not fit"),
            (lambda: ops.conv(t, w, groups=0), popart_exception, "groups must be 1 or more"),
            (lambda: ops.conv(tensor(1, 1, 2, 2), tensor(1, 1, 3, 3)), popart_exception, "do not fit into"),
        )
        assert "one float dtype" in fault(ops.conv(t, tensor(6, 4, 1, 1, dtype=F16)))

    def test_conv_transpose(self):
        t, w = tensor(2, 3, 8, 9), tensor(3, 4, 3, 3)
        assert ops.conv_transpose(t, w, (2, 2), (1, 1, 0, 1), output_padding=(1, 0)).shape == (2, 4, 17, 17)
        y = ops.conv_transpose(t, w, (2, 2), output_shape=(16, 20))
        assert y.shape == (2, 4, 16, 20)
        assert (y.producer.attrs["padding"], y.producer.attrs["output_padding"]) == ((1, 0, 0, 0), (0, 1))
        assert ops.conv_transpose(t, w, groups=3).shape == (2, 12, 10, 11)
        with raises(popart_exception, "the dilation must be 1"):
            ops.conv_transpose(t, w, dilation=(2, 2))

    def test_float8(self):
        t, w = tensor(1, 2, 4, 4, dtype=FLOAT8[0]), tensor(3, 2, 3, 3, dtype=FLOAT8[1])
        scale = popxl.constant(-2)
        y = ops.conv_pow2scaled(t, w, scale)
        assert (y.shape, y.dtype, y.producer.inputs) == ((1, 3, 2, 2), F16, (t, w, scale))
        assert ops.conv_transpose_pow2scaled(t, tensor(2, 3, 3, 3, dtype=FLOAT8[0]), scale).shape == (1, 3, 6, 6)
        refused(
            (lambda: ops.conv(t, w), popart_exception, "float8_143 need a scale; see ops.conv_pow2scaled"),
            (lambda: ops.conv_pow2scaled(t, tensor(3, 2, 3, 3), scale), TypeError, "must be of 8-bit floats"),
            (lambda: ops.conv_pow2scaled(t, w, popxl.constant([1])), ValueError, "must be a scalar"),
            (lambda: ops.conv_pow2scaled(t, w, popxl.constant(1.0)), TypeError, "must be int32"),
        )

    def test_pooling(self):
        t = tensor(2, 3, 8, 9)
        assert ops.average_pool(t, (3, 2)).shape == (2, 3, 6, 8)
        y = ops.max_pool(t, (3, 2), (2, 2), ceil_mode=True)
        assert y.shape == (2, 3, 4, 5) and y.producer.attrs["padding"] == (0, 0, 1, 1)
        assert ops.max_pool(t, (3, 2), (3, 2), auto_pad="same_lower").shape == (2, 3, 3, 5)
        assert "dilations or out_pads" in fault(ops.average_pool(t, (3, 2), in_dilations=(2, 2)))
        refused(
            (lambda: ops.max_pool(t, 2), TypeError, "kernel_size must be a list of ints"),
            (lambda: ops.max_pool(t, (2,)), popart_exception, "do not fit the 2 spatial axes"),
            (lambda: ops.max_pool(t, (2, 2), auto_pad="x"), KeyError, "auto_pad must be one of"),
            (lambda: ops.max_pool(t, (2, 2), storage_order="column"), popart_exception, "not supported"),
        )

    def test_resampling(self):
        t = tensor(1, 2, 4, 5)
        assert ops.interpolate(t, (1, 1, 1.5, 0.5), "linear").shape == (1, 2, 6, 2)
        rois, index = tensor(4, 4), tensor(4, dtype=I32)
        assert ops.roi_align(t, rois, index, (2, 3), 0.5, 2).shape == (4, 2, 2, 3)
        assert "tf_crop_and_resize" in fault(
            ops.interpolate(t, coordinate_transformation_mode="tf_crop_and_resize")
        )
        refused(
            (lambda: ops.interpolate(t, mode="x"), ValueError, "mode must be one of nearest, linear, cubic"),
            (lambda: ops.interpolate(t, (1.0, 2.0)), popart_exception, "needs 4 scales"),
            (lambda: ops.roi_align(t, rois, index, (-1, 2), 1.0, 1), TypeError, "two positive ints"),
        )


class TestUpdates:
    def test_factors(self):
        t, X, f = tensor(3), tensor(3, dtype=F16), tensor()
        for function, name in (
            (updates.accumulate_square_, "f"),
            (updates.accumulate_mean_, "step"),
            (updates.accumulate_moving_average_, "f"),
            (updates.accumulate_moving_average_square_, "f"),
        ):
            op = function(t, X, 0.5).producer
            assert op.inputs == (t, X) and op.attrs == {name: 0.5, "operands": ("t", "X")} and op.fault is None
            op = function(t, X, f).producer
            assert op.inputs == (t, X, f) and op.attrs == {name: None, "operands": ("t", "X", name)}
            with raises(TypeError, f"{name} must be a float or a Tensor, not 'a'"):
                function(t, X, "a")
        assert updates.accumulator_scale_(t, f).producer.inputs == (t, f)
        assert "f is None" in fault(updates.accumulate_moving_average_(t, X, None))
        assert "is no scalar" in fault(updates.accumulate_mean_(t, X, t))

    def test_sparse(self):
        t, X, indices = tensor(4, 5), tensor(4, 2), tensor(2, dtype=I32)
        op = updates.sparse_accumulate_(t, X, indices, 1, 0.5, t).producer
        assert op.inputs == (t, X, indices) and op.attrs["axis"] == 1 and op.fault is None
        assert "does not fit" in fault(updates.sparse_accumulate_(t, X, indices))
        with raises(TypeError, "axis must not be negative"):
            updates.sparse_accumulate_(t, X, indices, -1)

    def test_optimisers(self, main):
        m, v, weight, step = tensor(3), tensor(3), tensor(3), tensor(name="step")
        op = updates.adam_updater(m, v, weight, step, 0.1, 0.9, popxl.constant(0.99)).producer
        assert op.attrs["operands"] == ("acc_first_order", "acc_second_order", "weight", "time_step", "beta2")
        assert (op.attrs["beta1"], op.attrs["beta2"], op.attrs["weight_decay"]) == (0.9, None, 0.1)
        increment = op.inputs[3].producer  # the step is incremented before it is used
        assert (increment.kind, increment.inputs[0]) == ("add_", step) and float(increment.inputs[1].data) == 1
        assert updates.adamax_updater(m, v, time_step=step, weight_decay=0.0).producer.kind == "adamax_updater"
        assert fault(updates.lamb_updater(m, v, weight_decay=0.0)) is None
        assert "weight_decay is None: pass 0.0" in fault(updates.lamb_updater(m, v))
        refused(
            (lambda: updates.adam_updater(m, v, weight_decay=0.1), ValueError, "needs the weight"),
            (lambda: updates.adam_updater(m, v, time_step=step), ValueError, "needs beta1 and beta2"),
            (lambda: updates.adamax_updater(m, v), ValueError, "time_step must be given"),
        )

    def test_adam_var_update(self):
        t, r = tensor(3), ops.lamb_square(tensor(3))
        op = updates.adam_var_update(t, tensor(3), r, r, 0.1, popxl.constant(2.0)).producer
        assert op.attrs["learning_rate"] == 0.1 and op.attrs["operands"][4:] == ("max_weight_norm",)
        assert "is None: pass floats" in fault(updates.adam_var_update(t, tensor(3), r, r))


class TestOthers:
    def test_counters_and_sums(self):
        t = tensor(3, dtype=I32)
        assert ops.increment_mod(t, 1, 4).producer.attrs == {"increment": 1.0, "modulus": 4.0}
        assert ops.increment_mod_(t, 1, 4).name == "increment_mod_inplace_out"
        x, y, a = tensor(3), tensor(3), tensor()
        assert ops.scaled_add(x, y, 1, a).producer.attrs == {"a": 1.0, "b": None, "operands": ("X", "Y", "b")}
        assert "let both be tensors" in fault(ops.scaled_add(x, y, a, 2.0))
        assert fault(ops.scaled_add_(x, tensor(3, dtype=F16), 2.0)) is None
        assert "the dtypes float32 and float16 differ" in fault(ops.scaled_add(x, tensor(3, dtype=F16)))

    def test_reductions(self):
        t = tensor(2, 3)
        y = ops.median(t, 1)
        assert [(x.shape, x.dtype) for x in y.producer.outputs] == [((2,), F32), ((2,), I32)]
        counts = ops.histogram(t, [0, 1], True)
        assert (counts.shape, counts.dtype, counts.producer.attrs["levels"]) == ((3,), popxl.uint32, (0.0, 1.0))
        assert ops.lamb_square(tensor(2, dtype=F16)).spec == popxl.TensorSpec((), F32)
        refused(
            (lambda: ops.histogram(t, [1, 1], False), ValueError, "the levels must increase"),
            (lambda: ops.histogram(tensor(2, dtype=I32), [1], False), popart_exception, "must be float16 or float32"),
        )

    def test_indexing(self):
        t, indices = tensor(2, 4, 5), tensor(2, 3, dtype=I32)
        assert ops.groupedgather(t, indices, 1, 2).shape == (2, 3, 5)
        assert ops.groupedgather(t, indices, 2, 2).shape == (2, 4, 3)
        assert ops.groupedgather(t, indices, 1, 1).producer.kind == "gather"
        assert "axis 0 is that of the groups" in fault(ops.groupedgather(t, indices, 0, 2))
        assert ops.scatter(tensor(2, 5), indices, tensor(2, 3), 1).shape == (2, 5)
        assert "must have one shape" in fault(ops.scatter(tensor(2, 5), indices, tensor(2, 2), 1))
        from_group = popxl.ops._indexing.grouped_scatter_reduce
        data = tensor(2, 3, 5)
        assert from_group(data, indices, "sum", axis=1, axis_size=7, group_size=2).shape == (2, 7, 5)

    def test_printing(self):
        t = tensor(2, name="x")
        attrs = ops.print_tensor(t, digits=3).producer.attrs
        assert (attrs["title"], attrs["digits"], attrs["print_gradient"]) == ("print_x", 3, False)
        refused(
            (lambda: ops.print_tensor(t, open_bracket="(("), ValueError, "open_bracket must be one character"),
            (lambda: ops.print_tensor(t, float_format="x"), KeyError, "float_format must be one of auto, fixed"),
        )

    def test_utils(self, main):
        t = tensor(2, 3)
        utils = popxl.ops.utils
        utils.check_in_graph(main, t, x=t)
        assert utils.cast_if_needed(t, F32) is t and utils.cast_if_needed(t, F16).dtype is F16
        assert utils.handle_negative_axis(t, -1) == 1
        with raises(TypeError, "check_in_graph: x must be a Tensor, not 3"):
            utils.check_in_graph(main, x=3)
        with popxl.ipu(1):
            moved = ops.exp(popxl.constant([1.0]))
        with raises(ValueError, "operands must be in one place"):
            utils.check_tensor_ipu_and_tile_set(ops.abs(t), moved)

    def test_locations(self):
        t = tensor(2)
        assert not t.location_info.isRemote()
        assert popxl.TensorLocation().storage is popxl.TensorStorage.OnChip
        with raises(popart_exception, "has no copy on the host"):
            _ = t.in_sync_with_ipu


def decoded(code, bits, bias):
    """The value of a code, written out from the format's definition."""
    if code == 0x80:
        return np.nan
    exponent, mantissa = (code & 0x7F) >> bits, code & (2**bits - 1)
    size = mantissa * 2.0 ** (1 - bias - bits) if exponent == 0 else (1 + mantissa / 2**bits) * 2.0 ** (exponent - bias)
    return -size if code > 0x80 else size


class TestFloat8:
    to, back = staticmethod(popxl.fp8_utils.host_pow2scale_cast_to_fp8), popxl.fp8_utils.host_pow2scale_cast_from_fp8

    @pytest.mark.parametrize("dtype, bits, bias", [(FLOAT8[0], 3, 8), (FLOAT8[1], 2, 16)])
    def test_every_code(self, dtype, bits, bias):
        codes = np.arange(256, dtype=np.uint8)
        values = popxl.fp8_utils.host_pow2scale_cast_from_fp8(codes.view(dtype.as_numpy()), popxl.float64)
        np.testing.assert_array_equal(values, [decoded(int(code), bits, bias) for code in codes])
        np.testing.assert_array_equal(self.to(values, dtype).view(np.uint8), codes)
        largest = values[0x7F]
        assert self.to(largest * 1.01, dtype).view(np.uint8) == 0x7F  # it rounds down
        assert self.to(largest * 1.25, dtype).view(np.uint8) == 0x80
        assert self.to(-largest * 1.25, dtype, 0, False).view(np.uint8) == 0xFF
        assert self.to(np.float16(np.inf), dtype, 0, False).view(np.uint8) == 0x80
        assert self.to(-1e-9, dtype).view(np.uint8) == 0

    @pytest.mark.parametrize("dtype, bits, bias", [(FLOAT8[0], 3, 8), (FLOAT8[1], 2, 16)])
    def test_rounding(self, dtype, bits, bias):
        values = np.array([decoded(code, bits, bias) for code in range(0x80)])
        middles = (values[1:] + values[:-1]) / 2
        np.testing.assert_array_equal(self.to(middles, dtype).view(np.uint8), (np.arange(0x7F) + 1) // 2 * 2)
        np.testing.assert_array_equal(self.to(middles * 1.0001, dtype).view(np.uint8), np.arange(1, 0x80))
        np.testing.assert_array_equal(self.to(middles / 4, dtype, 2), self.to(middles, dtype))

    def test_scales(self):
        x = np.random.default_rng(0).normal(size=100).astype(np.float32) * 2.0**-9
        error, scale = popxl.fp8_utils.host_fp8_mse_scale(x, FLOAT8[0])
        assert scale == popxl.fp8_utils.host_fp8_mse_scale_pb(x, FLOAT8[0]) and 9 < scale < 17
        assert error < np.mean(x**2) / 500
        assert popxl.fp8_utils.host_fp8_mse_scale_pb(np.float32([1e6, 3e6]), FLOAT8[1]) < 0

    def test_refused(self):
        refused(
            (lambda: self.to(np.array([1]), FLOAT8[0]), RuntimeError, "must be float16, float32 or float64"),
            (lambda: self.to(1.0, F32), RuntimeError, "dtype must be float8_143 or float8_152"),
            (lambda: self.to(1.0, FLOAT8[0], 1.5), TypeError, "log2_scale must be an int"),
            (lambda: popxl.variable(1, FLOAT8[0]), TypeError, "cannot be made of int64 data"),
        )

    def test_variables(self):
        v = popxl.variable([0.75, 1.0], FLOAT8[0], log2_scale=1)
        np.testing.assert_array_equal(v.data.view(np.uint8), [68, 72])

    def test_ops(self):
        scale, half = popxl.constant(1), tensor(2, 3, dtype=F16)
        x = ops.pow2scale_cast_to_fp8(half, scale, FLOAT8[1])
        assert x.dtype is FLOAT8[1] and ops.pow2scale_cast_from_fp8(x, scale, F32).dtype is F32
        y = ops.matmul_pow2scaled(x, tensor(3, 4, dtype=FLOAT8[0]), scale)
        assert (y.shape, y.dtype) == ((2, 4), F16)
        assert "is neither float16 nor float32" in fault(
            ops.pow2scale_cast_to_fp8(tensor(2, dtype=I32), scale, FLOAT8[0])
        )
        refused(
            (lambda: ops.pow2scale_cast_to_fp8(half, scale, F32), TypeError, "must be float8_143 or float8_152"),
            (lambda: ops.pow2scale_cast_from_fp8(half, scale, F32), popart_exception, "is not of 8-bit floats"),
            (lambda: ops.pow2scale_cast_from_fp8(x, scale, I32), TypeError, "must be float16 or float32"),
            (lambda: ops.matmul_pow2scaled(half, half, scale), TypeError, "must be of 8-bit floats"),
        )
