"""Corner cases of values, each with one answer on every path; test_conventions.py lists them."""
import re
from typing import Any

import numpy as np
import pytest
from conventions import f16, f32, i32, inf, nan, pytest_generate_tests as pytest_generate_tests, same

import popfn as pf
import popfn.numpy as pnp


def unknown(f: Any) -> Any:
    """`f`, inside of which its arguments are not known on any path."""
    return pf.jit(f)


# ---------------------------------------------------------------------------- sums of float16
def test_float16_accumulates_in_float32(run):
    same(run(pnp.mean, np.full(4, 60000, np.float16)), np.float16(60000))
    same(run(lambda x: x.sum() / 4, f16(60000, 60000, -60000, -59008)), np.float16(248))
    same(run(pnp.sum, f16(2048, *[1] * 8)), np.float16(2056))
    same(run(pnp.std, f16(-300, 300)), np.float16(300))
    same(run(pnp.var, f16(-200, 200)), np.float16(40000))
    same(run(lambda x: pnp.mean(x, axis=0), np.full((70000, 1), 0.5, np.float16)), f16(0.5))
    same(run(pnp.prod, f16(300, 300, 0.001)), np.float16(np.float32(np.float16(0.001)) * 90000))
    same(run(lambda x: x @ x, f16(200, 1, *[0.01] * 2)), np.float16(40001))
    same(run(lambda x: pnp.cumsum(x)[-1], f16(2048, *[1] * 8)), np.float16(2056))
    same(run(lambda x: x.at[np.zeros(8, int)].add(np.ones(8, np.float16)), f16(2048)), f16(2056))


def test_float16_norms_accumulate_in_float32(run):
    norm = pnp.linalg.vector_norm
    same(run(norm, f16(30000, 40000)), np.float16(50000))
    same(run(norm, np.full(64, 1e-4, np.float16)), np.float16(np.sqrt(64) * np.float32(np.float16(1e-4))))
    same(run(lambda x: norm(x, ord=1), f16(2048, *[1] * 8)), np.float16(2056))
    same(run(pnp.linalg.matrix_norm, f16([30000, 0], [0, 40000])), np.float16(50000))
    same(run(pf.nn.layer_norm, f16(-300, 300)), f16(-1, 1))
    same(run(pf.nn.rms_norm, f16(-300, 300)), f16(-1, 1))


def test_float16_softmax_and_logsumexp_accumulate_in_float32(run):
    same(run(pf.nn.logsumexp, np.full(4096, 8, np.float16)), np.float16(8 + np.log(4096)))
    same(run(lambda x: pf.nn.log_softmax(x)[0], np.zeros(4096, np.float16)), np.float16(-np.log(4096)))
    same(run(lambda x: pf.nn.softmax(x)[0], np.zeros(4096, np.float16)), np.float16(1 / 4096))
    same(run(lambda x: pf.nn.softmax(x).sum(), np.zeros(4096, np.float16)), np.float16(1))


def test_nothing_but_minus_infinity(run):
    x = f32(-inf, -inf)
    same(run(pf.nn.logsumexp, x), np.float32(-inf))
    same(run(pnp.logaddexp, x, x), f32(-inf, -inf))
    same(run(pnp.logcumsumexp, x), f32(-inf, -inf))
    same(run(pf.nn.softmax, x), f32(nan, nan))
    same(run(pf.nn.log_softmax, x), f32(nan, nan))
    same(run(pf.nn.softmax, f32(-inf, 0)), f32(0, 1))
    same(run(pf.nn.logsumexp, f32(-inf, 0)), np.float32(0))
    assert "NaN where every element is -inf" in pf.nn.softmax.__doc__


def test_fully_masked_row_of_softmax_where(run):
    mask = np.array([[True, True], [False, False], [False, True]])
    for x in (f32([0, 0], [1, 2], [nan, 3]), f32([0, 0], [-inf, -inf], [inf, 3])):
        same(run(lambda x: pf.nn.softmax(x, where=mask), x), f32([0.5, 0.5], [0, 0], [0, 1]))
        same(run(lambda x: pf.nn.logsumexp(x, 1, where=mask), x)[1:], f32(-inf, 3))


# ---------------------------------------------------------------------------- arithmetic
def test_no_identity_changes_a_value(run):
    x = f32(nan, inf, -inf, -0.0, 0.0, 2.0)
    same(run(lambda x: x * 0, x), f32(nan, nan, nan, -0.0, 0.0, 0.0))
    same(run(lambda x: x - 0, x), x)
    same(run(lambda x: x - x, x), f32(nan, nan, nan, 0.0, 0.0, 0.0))
    same(run(lambda x: pnp.stack([x * 0.0, x * -0.0])[:, 5], x), f32(0.0, -0.0))
    same(run(lambda x: x * 1, x), x)
    same(run(lambda x: x / 1, x), x)
    same(run(lambda x: x ** 1, x), x)
    same(run(lambda x: pnp.negative(-x), x), x)
    same(run(lambda x: x * -1, x), f32(nan, -inf, inf, 0.0, -0.0, -2.0))
    same(run(lambda x: 0 - x, x), f32(nan, -inf, inf, 0.0, 0.0, -2.0))
    same(run(lambda x: pnp.broadcast_to(x[3], (2,)), x), f32(-0.0, -0.0))
    same(run(lambda x: pnp.where(x == x, x, x), x), x)


def test_adding_zero_gives_plus_zero(run):
    x = f32(nan, inf, -inf, -0.0, 0.0, 2.0)
    same(run(lambda x: x + 0, x), f32(nan, inf, -inf, 0.0, 0.0, 2.0))
    same(run(lambda x: x + -0.0, x), x)


def test_sign_of_minus_zero_is_plus_zero(run):
    x = f32(-0.0, 0.0, -inf, nan)
    same(run(pnp.sign, x), np.sign(x))


def test_max_with_nan_is_nan(run):
    x = f32(1, nan, 3)
    for f in (pnp.max, pnp.min, pnp.sum, pnp.mean, lambda x: pnp.max(x[::-1]), lambda x: pnp.maximum(x, 2)[1],
              lambda x: pnp.minimum(2, x)[1], lambda x: pnp.clip(x, 0, 1)[1], lambda x: pf.nn.relu(x)[1],
              lambda x: pnp.cummax(x)[2], lambda x: pnp.cummin(x)[2], lambda x: x.at[0].max(nan)[0],
              lambda x: pf.nn.max_pool(x[None, None], 3)[0, 0, 0]):
        assert np.isnan(run(f, x))
    np.testing.assert_array_equal(run(pnp.sign, f32(nan, 0, -2)), f32(nan, 0, -1))


def test_sort_puts_nan_last(run):
    x = f32(nan, 2, -inf, nan, inf, -1)
    same(run(pnp.sort, x), f32(-inf, -1, 2, inf, nan, nan))
    same(run(pnp.argsort, x), i32(2, 5, 1, 4, 0, 3))
    same(run(lambda x: pnp.sort(x, descending=True), x), f32(inf, 2, -1, -inf, nan, nan))
    same(run(lambda x: pnp.argsort(x, descending=True), x), i32(4, 1, 5, 2, 0, 3))


def test_round_half_to_even(run):
    x = f32(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.4999998, 0.49999997, -0.2, 2 ** 23 + 1, 2 ** 22 + 0.5, inf, -inf, nan)
    same(run(pnp.round, x), np.round(x))
    same(run(pnp.round, f16(0.5, 1.5, 1023.5, 1024.5)), f16(0, 2, 1024, 1024))
    same(run(pnp.round, i32(3, -3)), i32(3, -3))


def test_argmax_ties(run):
    same(run(pnp.argmax, f32(1, 3, 3)), np.int32(1))
    same(run(pnp.argmin, f32(1, 0, 0)), np.int32(1))
    same(run(lambda x: pnp.argmax(x, axis=1), f32([0.0, -0.0, 0.0], [-inf, -inf, -inf])), i32(0, 0))
    same(run(pnp.argmax, f32(1, nan, nan, 5)), np.int32(1))
    same(run(pnp.argmin, f32(1, nan, nan, -5)), np.int32(1))
    same(run(pnp.argmin, np.array([3, -128, -128], np.int8)), np.int32(1))
    same(run(pnp.argmin, i32(3, -(2 ** 31), 2 ** 31 - 1)), np.int32(1))
    same(run(pnp.argmax, np.array([0, 255, 255], np.uint8)), np.int32(1))
    same(run(pnp.argmax, np.array([False, True, True])), np.int32(1))


def test_topk_and_sort_ties(run):
    x = f32(2, 3, 1, 3, 2, 3)
    same(run(lambda x: pnp.topk(x, 5)[0], x), f32(3, 3, 3, 2, 2))
    same(run(lambda x: pnp.topk(x, 5)[1], x), i32(1, 3, 5, 0, 4))
    same(run(pnp.argsort, x), i32(2, 0, 4, 1, 3, 5))
    same(run(lambda x: pnp.argsort(x, descending=True), x), i32(1, 3, 5, 0, 4, 2))
    same(run(pnp.argsort, f32(0.0, -0.0, 0.0)), i32(0, 1, 2))
    same(run(pnp.sort, f32(0.0, -0.0, 0.0)), f32(0.0, -0.0, 0.0))
    same(run(pnp.argsort, np.array([1, 0, 1, 0], np.uint8)), i32(1, 3, 0, 2))


# ---------------------------------------------------------------------------- zero-sized arrays
def test_zero_sized_arrays(run):
    x = np.zeros((0, 3), np.float32)
    same(run(pnp.sum, x), np.float32(0))
    same(run(lambda x: pnp.sum(x, axis=0), x), f32(0, 0, 0))
    same(run(pnp.prod, x), np.float32(1))
    same(run(lambda x: pnp.sum(x * 2, axis=1), x), np.zeros(0, np.float32))
    same(run(lambda x: x.T @ x, x), np.zeros((3, 3), np.float32))
    same(run(lambda x: pnp.concat([x, x + 1, np.ones((1, 3), np.float32)]), x), f32([1, 1, 1]))
    same(run(lambda x: pnp.pad(x, 1), x), np.zeros((2, 5), np.float32))
    same(run(lambda x: pnp.all(x), x), np.array(True))
    same(run(lambda x: pnp.any(x), x), np.array(False))
    same(run(lambda x: pnp.sort(x, axis=0), x), x)
    same(run(lambda x: pnp.cumsum(x, axis=0), x), x)
    same(run(lambda x: x.at[np.zeros(0, int)].add(1.0), x), x)
    assert np.isnan(run(pnp.mean, x))
    for f in (pnp.max, pnp.min, lambda x: pnp.argmax(x, axis=0)):
        with pytest.raises(ValueError, match="of no elements"):
            run(f, x)


def test_lowered_programs_contain_no_zero_sized_tensor():
    def f(x: Any, y: Any) -> Any:
        return pnp.concat([x, y]), x * 2, pnp.sum(x), y[:0]
    program = pf.lower(f, pf.spec((0, 2)), pf.spec((1, 2)))
    shapes = re.findall(r"(?:stream|init)\((\(.*?\))", program.as_text())
    assert shapes and not any(re.search(r"\b0\b", shape) for shape in shapes)
    with pf.Session(program) as session:
        both, twice, total, none = session.run(np.zeros((0, 2), np.float32), f32([1, 2]))
    same(both, f32([1, 2]))
    same(twice, np.zeros((0, 2), np.float32))
    same(total, np.float32(0))
    same(none, np.zeros((0, 2), np.float32))


# ---------------------------------------------------------------------------- indices
def test_static_index_out_of_range(run):
    x = f32(1, 2, 3)
    for f, text in ((lambda x: x[3], "is out of range for axis 0"), (lambda x: x[-4], "is out of range for axis 0"),
                    (lambda x: x[np.array([0, 3])], "is out of range for axis 0"),
                    (lambda x: x.at[3].set(0), "is out of range for axis 0"),
                    (lambda x: x.at[np.array([-4])].add(1), "is out of range for axis 0"),
                    (lambda x: pnp.take(x, np.array([3])), "out of range"),
                    (lambda x: pnp.dynamic_slice(x, [2], [2]), "dynamic_slice"),
                    (lambda x: pnp.dynamic_slice(x, [-4], [1]), "dynamic_slice"),
                    (lambda x: pnp.dynamic_update_slice(x, x[:2], [2]), "dynamic_update_slice")):
        with pytest.raises(IndexError, match=text):
            run(f, x)
        with pytest.raises(IndexError, match=text):
            pf.make_jaxpr(f)(x)


def test_negative_index_counts_from_the_end(run):
    x = f32(1, 2, 3)
    same(run(lambda x: x[-1], x), np.float32(3))
    same(run(lambda x: x[-3], x), np.float32(1))
    same(run(lambda x: x[np.array([-1, 0])], x), f32(3, 1))
    same(run(lambda x: x.at[-1].set(9), x), f32(1, 2, 9))
    same(run(lambda x: pnp.dynamic_slice(x, [-2], [2]), x), f32(2, 3))
    i, want = i32(-1, -3, 1, -2), f32(3, 1, 2, 2)
    for read in (lambda x, i: x[i], lambda x, i: pnp.take(x, i), lambda x, i: pnp.dynamic_slice(x, [i], [1])[0]):
        same(run(unknown(lambda x, i, read=read: pnp.stack([read(x, i[k]) for k in range(4)])), x, i), want)
    for write in (lambda x, i: x.at[i].set(9), lambda x, i: pnp.dynamic_update_slice(x, f32(9), [i])):
        same(run(unknown(lambda x, i, write=write: pnp.stack([write(x, i[k]) for k in range(4)])), x, i),
             np.stack([np.where(x == w, np.float32(9), x) for w in want]))


def test_traced_index_out_of_range_read(run):
    x, i = f32(1, 2, 3), i32(-1, -3, -4, 3, 100, -100, 2 ** 31 - 1, -(2 ** 31))
    want = f32(3, 1, 1, 3, 3, 1, 3, 1)
    same(run(unknown(lambda x, i: x[i]), x, i), want)
    same(run(unknown(lambda x, i: pnp.take(x, i)), x, i), want)
    same(run(unknown(lambda x, i: pnp.take_along_axis(x, i)), x, i), want)
    filled = f32(3, 1, nan, nan, nan, nan, nan, nan)
    same(run(unknown(lambda x, i: x.at[i].get(mode="fill")), x, i), filled)
    same(run(unknown(lambda x, i: pnp.take(x, i, mode="fill", fill_value=-1)), x, i),
         np.where(np.isnan(filled), np.float32(-1), filled))
    for start, window in ((2, (2, 3)), (9, (2, 3)), (-9, (1, 2)), (-1, (2, 3))):
        same(run(unknown(lambda x, i: pnp.dynamic_slice(x, [i], [2])), x, np.int32(start)), f32(*window))


def test_traced_index_out_of_range_write(run):
    x = f32(1, 2, 3)
    outside = i32(3, -4, 100, -100, 2 ** 31 - 1, -(2 ** 31))
    for write in (lambda x, i: x.at[i].set(9), lambda x, i: x.at[i].add(9), lambda x, i: x.at[i].multiply(9),
                  lambda x, i: x.at[i].max(9), lambda x, i: x.at[i].min(0), lambda x, i: x.at[i[None]].set(9),
                  lambda x, i: pnp.dynamic_update_slice(x, f32(9), [i])):
        got = run(unknown(lambda x, i, write=write: pnp.stack([write(x, i[k]) for k in range(6)])), x, outside)
        same(got, np.stack([x] * 6))
    i = i32(0, 3, -4, -1)
    same(run(unknown(lambda x, i: x.at[i].set(f32(5, 6, 7, 8))), x, i), f32(5, 2, 8))
    same(run(unknown(lambda x, i: x.at[i].add(f32(5, 6, 7, 8))), x, i), f32(6, 2, 11))
    same(run(unknown(lambda x, i: x.at[i].set(9, mode="clip")), x, i32(7, -7)), f32(9, 2, 9))


def test_duplicate_indices(run):
    x, i, v = f32(1, 2, 3), i32(1, 0, 1, -2), f32(10, 20, 30, 40)
    want = f32(20, 40, 3)  # index 1 is written by 10, 30, and as -2 by 40
    same(run(lambda x: x.at[i].set(v), x), want)
    same(run(unknown(lambda x, i: x.at[i].set(v)), x, i), want)
    same(run(lambda x: x.at[i].add(v), x), f32(21, 82, 3))
    same(run(unknown(lambda x, i: x.at[i].add(v)), x, i), f32(21, 82, 3))
    same(run(unknown(lambda x, i: x.at[i].multiply(v)), x, i), f32(20, 24000, 3))


# ---------------------------------------------------------------------------- loops
def test_loop_of_zero_steps(run):
    def scanned(c: Any, xs: Any) -> Any:
        return pf.scan(lambda c, x: (c * x, {"y": c + x, "n": 1}), c, xs)
    c, xs = f32(1, 2), np.zeros((0, 2), np.float32)
    same(run(lambda c, xs: scanned(c, xs)[0], c, xs), c)
    same(run(lambda c, xs: scanned(c, xs)[1]["y"], c, xs), xs)
    same(run(lambda c, xs: scanned(c, xs)[1]["n"], c, xs), np.zeros(0, np.int32))
    same(run(lambda c: pf.fori_loop(5, 2, lambda i, c: c * i, c), c), c)
    same(run(unknown(lambda c, n: pf.fori_loop(n, 2, lambda i, c: c * i, c, max_steps=4)), c, np.int32(2)), c)
    same(run(lambda c: pf.while_loop(lambda c: c.sum() < 0, lambda c: c * 2, c, max_steps=3), c), c)
    same(run(lambda c: pf.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, c, max_steps=0), c), c)
    same(run(lambda xs: pf.map(lambda x: x.sum().astype("float16"), xs), xs), np.zeros(0, np.float16))


def test_loop_of_zero_steps_is_not_lowered():
    for f in (lambda c, xs: pf.scan(lambda c, x: (c * x, c), c, xs),
              lambda c, xs: pf.fori_loop(3, 3, lambda i, c: c * 2, c) + xs.sum(),
              lambda c, xs: pf.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, c, max_steps=0) + xs.sum()):
        text = pf.lower(f, pf.spec(2), pf.spec((0, 2))).as_text()
        assert "repeat" not in text and "mul" not in text
