"""Bool arrays as keys: known masks pick elements as in NumPy; traced ones keep the shape, in `x.at[mask]` only."""
import os
import re

import numpy as np
import pytest
from error_texts import assert_error_text
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import DtypeError, RangeError, ShapeError

f32 = np.float32
X = np.arange(24, dtype=f32).reshape(2, 3, 4) - 7.5
WAYS = {"eager": lambda f: f, "jit": pf.jit, "eval": lambda f: lambda x: pf.make_jaxpr(f)(x).eval(x)[0]}
WRITES = {"set": lambda old, new: new, "add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}


@st.composite
def keys(draw):
    """A key of a mask over some axes of X beside slices, ints, index arrays, new axes and `...`."""
    first = draw(st.integers(0, 2))
    count = draw(st.integers(1, 3 - first))
    shape = X.shape[first:first + count]
    mask = np.array(draw(st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), bool)
    mask = mask.reshape(shape)
    items = st.sampled_from([slice(None), slice(1, None), slice(None, None, -1), 0, -1])
    rest = [draw(items) for _ in range(3 - count)]
    key = [*rest[:first], mask, *rest[first:]]
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    if first + count == 3 and draw(st.booleans()):
        key = [...] + key[first:]
    elif draw(st.booleans()):
        key = key[:first + 1 + draw(st.integers(0, 1)) * (len(key) - first - 1)] + [...]
    return tuple(key) if len(key) > 1 or draw(st.booleans()) else key[0]


@given(keys(), st.sampled_from(sorted(WRITES)))
def test_known_masks_pick_as_in_numpy(key, op):
    want = X[key]
    written = X.copy()
    written[key] = WRITES[op](written[key], f32(2.5))
    for run in WAYS.values():
        got = run(lambda x: x[key])(pf.Array(X))
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(run(lambda x: getattr(x.at[key], op)(2.5))(pf.Array(X)), written)


KINDS = {"NumPy": np.array, "Array": pf.Array, "a list": lambda m: m.tolist(), "a constant of a trace": None}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_known_masks(kind):
    mask = np.array([True, False])
    if kind == "a constant of a trace":
        got = pf.jit(lambda x: x[pf.Array(mask)] + x[pnp.asarray(mask)])(X) / 2
    else:
        got = pf.Array(X)[KINDS[kind](mask)]
    np.testing.assert_array_equal(got, X[mask])
    values = np.arange(12, dtype=f32).reshape(1, 3, 4)
    want = X.copy()
    want[mask] = values
    np.testing.assert_array_equal(pf.Array(X).at[mask].set(values), want)
    np.testing.assert_array_equal(pf.Array(X).at[mask].get(), X[mask])


def test_known_masks_beside_index_arrays():
    mask, i = np.array([True, False, True]), np.array([[0, 3]])
    for key in ((0, mask), (slice(None), mask, i[0]), (0, mask, i[0]),
                (i[0, :1], slice(None), np.array([True, False] * 2)),
                (mask[None] & np.ones((2, 1), bool), i[0].repeat(2)), (np.zeros((2, 3), bool),)):
        for run in WAYS.values():
            np.testing.assert_array_equal(run(lambda x, key=key: x[key])(pf.Array(X)), X[key])


def test_derivatives_through_known_masks():
    mask = X > 0
    grad = pf.grad(lambda x: pnp.sum(x[mask] ** 2))(X)
    np.testing.assert_array_equal(grad, np.where(mask, 2 * X, 0))
    both = pf.grad(lambda x, v: pnp.sum(x.at[mask].set(v) ** 2), (0, 1))(X, f32(3))
    np.testing.assert_array_equal(both[0], np.where(mask, 0, 2 * X))
    assert both[1].item() == 6 * mask.sum()
    assert pf.vmap(lambda x: x[mask[0]])(X).shape == (2, mask[0].sum())
    # Eagerly the values are known, and Python follows them.
    np.testing.assert_array_equal(pf.grad(lambda x: pnp.sum(x[x > 0] ** 2))(X), np.where(mask, 2 * X, 0))


# ---------------------------------------------------------------------------- traced masks
VALUES = [  # the mask's axes, and values that mean the same whether the mask is known or not
    (3, f32(2.5)), (3, 2.5), (3, 2), (3, np.full(1, 2.5, f32)), (3, np.full((1, 1, 1), 2.5, f32)), (3, -X), (3, -X[:1]),
    (3, -X[:, :, :1]), (2, f32(2.5)), (2, np.arange(4, dtype=f32)), (2, np.arange(4, dtype=f32)[None]), (2, -X),
    (1, f32(2.5)), (1, -X[0]), (1, -X[0, 0]), (1, -X), (1, -X[:1])]


@pytest.mark.parametrize("op", WRITES)
@pytest.mark.parametrize("case", range(len(VALUES)))
def test_traced_masks_keep_the_shape(case, op):
    ndim, values = VALUES[case]
    mask = (np.arange(24).reshape(X.shape) % 5 > 1)[(slice(None),) * ndim + (0,) * (3 - ndim)]
    wide = mask.reshape(mask.shape + (1,) * (3 - ndim))
    array = np.asarray(values, f32)
    array = array if array.ndim in (0, 3) or array.ndim <= 3 - ndim else array.reshape(array.shape[1:])
    want = np.where(wide, WRITES[op](X, array), X)

    def f(x, m):
        return getattr(x.at[m], op)(values)
    got = [pf.jit(f)(X, mask), pf.make_jaxpr(f)(X, mask).eval(X, mask)[0], f(pf.Array(X), mask),
           pf.jit(lambda x, m: getattr(x.at[m,], op)(values))(X, mask),
           pf.vmap(f)(np.stack([X, X]), np.stack([mask, ~mask]))[0]]
    for y in got:
        np.testing.assert_array_equal(y, want)


def test_derivatives_through_traced_masks():
    @pf.jit
    def f(x, v):
        return pf.grad(lambda x, v: pnp.sum(x.at[x > 0].set(v) ** 2), (0, 1))(x, v)
    by_x, by_v = f(X, f32(3))
    np.testing.assert_array_equal(by_x, np.where(X > 0, 0, 2 * X))
    assert by_v.item() == 6 * (X > 0).sum()
    # What is not written has a derivative of exactly 0, whatever its own is.
    slope = pf.jit(pf.grad(lambda x: pnp.sum(x.at[x > 0].multiply(pnp.sqrt(x)))))(np.array([-1, 4], f32))
    np.testing.assert_allclose(slope, [1, 3])


def test_traced_masks_of_other_dtypes():
    for dtype in (np.int8, np.float16, bool):
        x, mask = np.array([0, 1, 1], dtype), np.array([True, True, False])
        got = pf.jit(lambda x, m: x.at[m].set(x[1]))(x, mask)
        assert got.dtype == dtype and got.tolist() == [1, 1, 1]


# ---------------------------------------------------------------------------- refused
SHAPE = "a mask has the sizes of the axes that it stands for: "
WRONG = [
    (lambda x, m: x[m[:, :2]], RangeError, SHAPE + "bool[2,2,4] at axis 0 of f32[2,3,4]"),
    (lambda x, m: x[:, m[0].T], RangeError, SHAPE + "bool[4,3] at axis 1 of f32[2,3,4]"),
    (lambda x, m: x[..., m[0, 0, :3]], RangeError, SHAPE + "bool[3] at axis 2 of f32[2,3,4]"),
    (lambda x, m: x[m, 0], RangeError, "4 indices for f32[2,3,4], which has 3 axes"),
    (lambda x, m: x[m[0, 0], m[0, 0]], RangeError, SHAPE + "bool[4] at axis 0"),
    (lambda x, m: x.at[m[:1]].set(0), RangeError, SHAPE + "bool[1,3,4] at axis 0"),
    (lambda x, m: x.at[m].set(np.ones(5, f32)),
     ShapeError, "x.at[...].set: f32[5] does not broadcast to the shape (12,)"),
    (lambda x, m: x.at[m].add("a"), DtypeError, "a value of type str is not an array"),
    (lambda x, m: x[True], RangeError, "a bool scalar cannot index"),
    (lambda x, m: x.at[np.True_].set(0), RangeError, "a bool scalar cannot index"),
    (lambda x, m: x[np.array(True)], RangeError, "a bool scalar cannot index")]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_known_masks(case):
    f, error, text = WRONG[case]
    assert_error_text(lambda: f(pf.Array(X), np.arange(24).reshape(X.shape) % 2 == 0), error, text, __file__)


TRACED = "a traced mask cannot index: the result's shape would depend on its values"
WRONG_TRACED = [
    (lambda x, m: x[m], RangeError, [
        TRACED, "way out: pnp.where(mask, x, 0) keeps the shape, and so does x.at[mask].set"]),
    (lambda x, m: x[:, m[0]], RangeError, [TRACED, "keeps the shape"]),
    (lambda x, m: x.at[m].get(), RangeError, [TRACED]),
    (lambda x, m: x.at[:, m[0]].set(0), RangeError, [TRACED, "way out: pnp.where(mask, value, x)"]),
    (lambda x, m: x.at[m[0]].set(0), RangeError, [SHAPE + "bool[3,4] at axis 0 of f32[2,3,4]"]),
    (lambda x, m: x.at[m[..., None]].set(0), RangeError, ["4 indices for f32[2,3,4], which has 3 axes"]),
    (lambda x, m: x.at[m].set(np.ones(4, f32)), ShapeError, [
        "x.at[mask].set: f32[4] does not broadcast to the shape (1,) of what a traced mask picks, nor has it the rank "
        "of f32[2,3,4]", "way out: a scalar, or pnp.where(mask, values, x)"]),
    (lambda x, m: x.at[m[:, 0, 0]].set(np.ones((2, 4), f32)),
     ShapeError, ["f32[2,4] does not broadcast to the shape (1, 3, 4)"]),
    (lambda x, m: x.at[m].set(np.ones((2, 3, 5), f32)), ShapeError, ["f32[2,3,5] does not broadcast to the shape"]),
    (lambda x, m: x.astype(int).at[m].set(0.5), DtypeError, ["x.at[...].set: ~f32[] does not fit into int32"]),
    (lambda x, m: (x > 0).at[m].add(True), DtypeError, ["x.at[...].add of bools is not defined"]),
    (lambda x, m: x[m.any()], RangeError, ["a bool scalar cannot index"]),
    (lambda x, m: x.at[m.any()].set(0), RangeError, ["a bool scalar cannot index"])]


@pytest.mark.parametrize("case", range(len(WRONG_TRACED)))
def test_wrong_traced_masks(case):
    f, error, texts = WRONG_TRACED[case]
    with pytest.raises(error, match=re.escape(texts[0])) as e:
        pf.jit(f)(X, X > 0)
    assert all(text in str(e.value) for text in texts) and os.path.basename(__file__) in str(e.value)
