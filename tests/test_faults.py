"""Faults that users met, each as a test of its kind: refusals instead of wrong numbers, and values at the edges."""
import math

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, DtypeError, NarrowingError, PopfnError, RangeError, ShapeError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

REFUSED = [
    (lambda: pnp.permute_dims(X, (0, 1)), ShapeError, "is not a permutation of the axes of f32[2,3,4]"),
    (lambda: pnp.permute_dims(X[0], (0,)), ShapeError, "is not a permutation of the axes of f32[3,4]"),
    (lambda: pnp.tensordot(X, X, axes=([0, 0], [0, 0])), ShapeError, "are not distinct axes"),
    (lambda: pnp.tensordot(X, X, axes=4), ShapeError, "tensordot: axes=4"),
    (lambda: pnp.tensordot(X, X, axes=-1), ShapeError, "tensordot: axes=-1"),
    (lambda: pnp.matmul(X, np.ones((3, 4, 2), np.float32)), ShapeError, "the leading axes do not broadcast"),
    (lambda: pnp.pad(X, ((1, 1),) * 2), ShapeError, "pad: widths are pairs of integers of 0 or more"),
    (lambda: pnp.pad(X, 1.5), ShapeError, "pad: widths are pairs of integers of 0 or more"),
    (lambda: pnp.full(2, math.nan, dtype="int32"), NarrowingError, "Python float nan does not fit int32"),
    (lambda: pnp.full(2, 3e10, dtype="int32"), NarrowingError, "Python float 30000000000.0 does not fit int32"),
    (lambda: pnp.zeros((2, 2.5)), ShapeError, "a shape is a tuple of integers, got (2, 2.5)"),
    (lambda: pnp.reshape(X, 2.5), ShapeError, "a shape is a tuple of integers, got 2.5"),
    (lambda: pnp.arange(0, 3, 0), DtypeError, "arange: a step of 0"),
    (lambda: pnp.arange(300, dtype="int8"), NarrowingError, "Python integer 299 does not fit int8"),
    (lambda: pnp.arange(5, dtype=bool), DtypeError, "in bool does not count"),
    (lambda: pf.nn.softmax(X, None), ShapeError, "softmax: axis None is not an axis"),
    (lambda: pf.nn.softmax(X, (0, 1)), ShapeError, "softmax: axis (0, 1) is not an axis"),
    (lambda: pnp.asarray([[1, 2], [3]]), DtypeError, "a value of type list is not an array"),
    (lambda: pnp.asarray(X)[::0], RangeError, "a slice has integer bounds and a step that is not 0"),
    (lambda: pnp.asarray(X)["a":], RangeError, "a slice has integer bounds and a step that is not 0"),
    (lambda: pnp.asarray(X)[[0, 1], [0, 1, 2]], RangeError, "index arrays do not broadcast: i32[2], i32[3]"),
    (lambda: pnp.zeros(3, dtype=complex), DtypeError, "complex numbers have no form on the IPU"),
    (lambda: pnp.asarray(np.ma.masked_array([1.0, 2.0], [True, False])), DtypeError, "x.filled(...)"),
    (lambda: pf.nn.cross_entropy(X[0], np.array([0, 1, 4])), RangeError,
     "index 4 is out of range for axis 1 of size 4"),
    (lambda: pf.nn.cross_entropy(X[0], np.array([0, 1, -5])), RangeError, "index -5 is out of range"),
    (lambda: pf.nn.cross_entropy(X[0][:, :0], np.zeros(3, np.int32)), ShapeError, "there are no classes"),
    (lambda: pf.jvp(3, (1.0,), (1.0,)), ArgumentError, "jvp takes a function first, got int"),
    (lambda: pf.grad(lambda x: x, argnums=1.5)(1.0), ArgumentError, "argnums=1.5"),
]


@pytest.mark.parametrize("call,kind,text", REFUSED, ids=[text for _, _, text in REFUSED])
def test_refused(call, kind, text):
    with pytest.raises(kind) as e:
        call()
    assert text in str(e.value) and isinstance(e.value, PopfnError)
    assert "test_faults.py:" in str(e.value), "the user's line is missing"


def test_no_program_and_no_jaxpr():
    with pytest.raises(PopfnError, match="Session takes a program first, got function"):
        pf.Session(lambda x: x)
    with pytest.raises(PopfnError, match="parse_jaxpr takes the text of a jaxpr, got NoneType"):
        pf.parse_jaxpr(None)


@pytest.mark.parametrize("run", [lambda f: f, pf.jit], ids=["eager", "jit"])
class TestValues:
    def test_sigmoid_far_out(self, run):
        x = np.array([-80, -20, -1, 0, 1, 20, 80], np.float32)
        want = 1 / (1 + np.exp(-x.astype(np.float64)))
        np.testing.assert_allclose(run(pf.nn.sigmoid)(x), want, rtol=1e-5)
        np.testing.assert_allclose(run(pf.nn.silu)(x), x * want, rtol=1e-5)
        np.testing.assert_allclose(run(pf.nn.sigmoid)(x[1:].astype(np.float16)), want[1:].astype(np.float16), rtol=2e-3)
        slope = run(pf.grad(lambda v: pnp.sum(pnp.log(pf.nn.sigmoid(v)))))(x[1:6])
        np.testing.assert_allclose(slope, 1 / (1 + np.exp(x[1:6].astype(np.float64))), rtol=1e-5)

    def test_clip_with_nan_bounds(self, run):
        x, nan = np.array([-1, 0.5, np.nan, 9], np.float32), np.float32(np.nan)
        for lo, hi in ((nan, 3), (0, nan), (math.nan, 3), (np.array([0, nan, 0, nan], np.float32), 3), (0, 3)):
            want = np.minimum(np.maximum(x, lo), hi)
            np.testing.assert_array_equal(run(lambda x, lo=lo, hi=hi: pnp.clip(x, lo, hi))(x), want)

    def test_zero_times_infinity_in_both_modes(self, run):
        x = np.zeros(3, np.float32)
        for f in (lambda x: pnp.sqrt(x @ x), lambda x: pnp.sqrt(pnp.sum(x * x)),
                  lambda x: pnp.sqrt(pnp.tensordot(x, x, axes=1)), lambda x: pnp.sum(pnp.sqrt(x * 0.0)),
                  lambda x: pnp.sum(pnp.sqrt(x / math.inf)), lambda x: pnp.std(x),
                  lambda x: pnp.sqrt(pnp.sum(pnp.vecdot(pnp.stack([x, x]), pnp.stack([x, x]))))):
            reverse = np.asarray(run(pf.grad(f))(x))
            forward = [run(lambda t, f=f: pf.jvp(f, (x,), (t,))[1])(t).item() for t in np.eye(3, dtype=np.float32)]
            np.testing.assert_array_equal(reverse, np.zeros(3))
            np.testing.assert_array_equal(forward, np.zeros(3))

    def test_an_ellipsis_for_no_axis_separates_indices(self, run):
        x, i, j = X, np.array([0, 1]), np.array([[2], [0], [1]])
        for key in ((i, ..., slice(None), 1), (i[:1], ..., j[:, :1, None][..., 0]), (0, ..., i)):
            np.testing.assert_array_equal(run(lambda x, key=key: x[key])(x), x[key])
        y = X[0]
        np.testing.assert_array_equal(run(lambda y: y[i[:1], ..., j])(y), y[i[:1], ..., j])



def evaluated(f):
    """f traced, and its jaxpr evaluated."""
    return lambda *args: pf.make_jaxpr(f)(*args).eval(*args)[0]


@pytest.mark.parametrize("run", [evaluated, pf.jit], ids=["eval", "jit"])
class TestTracedIndices:
    def test_labels_out_of_range_mean_the_nearest_class(self, run):
        got = run(pf.nn.cross_entropy)(X[0], np.array([-9, 7, -1], np.int32))
        np.testing.assert_allclose(got, pf.nn.cross_entropy(X[0], np.array([0, 3, 3])), rtol=1e-6)

    def test_large_unsigned_indices_are_clamped(self, run):
        big = np.array([2 ** 31 + 5, 2 ** 32 - 1, 1], np.uint32)
        np.testing.assert_array_equal(run(lambda x, i: x[i])(X[0, 0], big), X[0, 0][[3, 3, 1]])


def test_results_of_jit_cannot_be_written():
    y = pf.jit(lambda x: x + 1)(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(y)[0] = 99


def test_no_warning_leaks_from_a_gradient():
    pf.grad(lambda x: x / 0.0)(1.0)
    pf.grad(lambda x: pnp.sum(pnp.mean(x[:0])) + x[0])(np.ones(2, np.float32))
