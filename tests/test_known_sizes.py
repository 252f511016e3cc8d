"""Shapes, axes, sizes and counts: a traced one is an error that says so; a known one may be an array."""
import os

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn import nn, random
from popfn.numpy import linalg
from popfn.trace.errors import ConcretizationError

f32 = np.float32
X, KEY = np.arange(8, dtype=f32).reshape(2, 4), np.zeros(2, np.uint32)
IMAGE, KERNEL, SQUARE = np.ones((1, 2, 4, 4), f32), np.ones((2, 2, 2, 2), f32), np.eye(2, dtype=f32)
Y = pf.Array(X)

CALLS = {  # calls with 1, or a value in which 1 is right, as the size n
    "zeros": lambda n: pnp.zeros(n), "ones": lambda n: pnp.ones((2, n)), "full": lambda n: pnp.full([n, n], 1.0),
    "empty": lambda n: pnp.empty(n), "reshape": lambda n: pnp.reshape(X, (n, 8)),
    "x.reshape": lambda n: Y.reshape(-1, n),
    "x.reshape of one": lambda n: Y[0, 0].reshape(n), "broadcast_to": lambda n: pnp.broadcast_to(1.0, n),
    "arange": lambda n: pnp.arange(n), "arange from": lambda n: pnp.arange(n, 5),
    "arange by": lambda n: pnp.arange(0, 5, n),
    "linspace": lambda n: pnp.linspace(0, 1, n), "linspace of arrays": lambda n: pnp.linspace(X, X, n),
    "eye": lambda n: pnp.eye(n), "eye of columns": lambda n: pnp.eye(2, n), "eye k": lambda n: pnp.eye(3, k=n),
    "tril": lambda n: pnp.tril(X, k=n), "triu": lambda n: pnp.triu(X, k=n), "tile": lambda n: pnp.tile(X, n),
    "tile by axis": lambda n: pnp.tile(X, (2, n)), "repeat": lambda n: pnp.repeat(X, n),
    "repeat each": lambda n: pnp.repeat(X, [n, 2], 0), "roll": lambda n: pnp.roll(X, n),
    "roll by axis": lambda n: pnp.roll(X, (n, 2), (0, 1)), "split": lambda n: pnp.split(X, n),
    "split at": lambda n: pnp.split(X, [n]), "array_split": lambda n: pnp.array_split(X, n),
    "pad": lambda n: pnp.pad(X, n), "pad by axis": lambda n: pnp.pad(X, ((0, n), (0, 0))),
    "topk": lambda n: pnp.topk(X, n), "bincount": lambda n: pnp.bincount(np.arange(3), length=n),
    "histogram": lambda n: pnp.histogram(X, n), "diff": lambda n: pnp.diff(X, n=n),
    "round": lambda n: pnp.round(X, n), "x.round": lambda n: Y.round(n),
    "sum": lambda n: pnp.sum(X, n), "x.sum": lambda n: Y.sum(n), "mean": lambda n: pnp.mean(X, axis=(0, n)),
    "max": lambda n: pnp.max(X, n), "argmax": lambda n: pnp.argmax(X, n), "argmin": lambda n: pnp.argmin(X, n),
    "sort": lambda n: pnp.sort(X, n), "median": lambda n: pnp.median(X, n),
    "concat": lambda n: pnp.concat([X, X], axis=n),
    "stack": lambda n: pnp.stack([X, X], axis=n), "unstack": lambda n: pnp.unstack(X, axis=n),
    "squeeze": lambda n: pnp.squeeze(X[:, :1], n), "expand_dims": lambda n: pnp.expand_dims(X, n),
    "moveaxis": lambda n: pnp.moveaxis(X, n, 0), "swapaxes": lambda n: pnp.swapaxes(X, 0, n),
    "permute_dims": lambda n: pnp.permute_dims(X, (n, 0)), "x.transpose": lambda n: Y.transpose(n, 0),
    "flip": lambda n: pnp.flip(X, axis=n), "take": lambda n: pnp.take(X, 0, axis=n),
    "take_along_axis": lambda n: pnp.take_along_axis(X, [[0]], n),
    "cumulative_sum": lambda n: pnp.cumulative_sum(X, axis=n),
    "tensordot": lambda n: pnp.tensordot(X, X.T, axes=n),
    "tensordot by axes": lambda n: pnp.tensordot(X, X, axes=(n, [n])),
    "vector_norm": lambda n: linalg.vector_norm(X, axis=n), "matrix_power": lambda n: linalg.matrix_power(SQUARE, n),
    "trace": lambda n: linalg.trace(X, offset=n), "diagonal": lambda n: linalg.diagonal(X, offset=n),
    "dynamic_slice": lambda n: pnp.dynamic_slice(X, (0, 0), (n, 1)),
    "dynamic_slice_in_dim": lambda n: pnp.dynamic_slice_in_dim(X, 0, n),
    "dynamic_slice_in_dim axis": lambda n: pnp.dynamic_slice_in_dim(X, 0, 1, axis=n),
    "x[:n]": lambda n: Y[:n], "x[n:]": lambda n: Y[n:], "x[::n]": lambda n: Y[::n],
    "x.at[n:]": lambda n: Y.at[n:].set(0),
    "one_hot": lambda n: nn.one_hot(np.zeros(3, int), n), "softmax": lambda n: nn.softmax(X, n),
    "layer_norm": lambda n: nn.layer_norm(X, axis=n), "group_norm": lambda n: nn.group_norm(IMAGE, n),
    "max_pool": lambda n: nn.max_pool(IMAGE, n), "avg_pool": lambda n: nn.avg_pool(IMAGE, (n, 2)),
    "conv": lambda n: nn.conv(IMAGE, KERNEL, strides=n),
    "conv padding": lambda n: nn.conv(IMAGE, KERNEL, padding=[(n, n)] * 2),
    "conv groups": lambda n: nn.conv(IMAGE, KERNEL, groups=n), "interpolate": lambda n: nn.interpolate(IMAGE, size=n),
    "interpolate by axis": lambda n: nn.interpolate(IMAGE, size=(n, 2)), "glu": lambda n: nn.glu(X, n),
    "dropout": lambda n: nn.dropout(KEY, X, 0.5, shared_axes=n),
    "init": lambda n: nn.init.normal(KEY, (n, 2)), "init.zeros": lambda n: nn.init.zeros(KEY, n),
    "random.normal": lambda n: random.normal(KEY, n), "random.uniform": lambda n: random.uniform(KEY, (n,)),
    "random.bits": lambda n: random.bits(KEY, n), "random.split": lambda n: random.split(KEY, n),
    "random.bernoulli": lambda n: random.bernoulli(KEY, 0.5, (n,)),
    "random.randint": lambda n: random.randint(KEY, n, 0, 5),
    "random.truncated_normal": lambda n: random.truncated_normal(KEY, -1.0, 1.0, n),
    "random.categorical": lambda n: random.categorical(KEY, X, axis=n),
    "random.permutation": lambda n: random.permutation(KEY, n), "random.permutation axis": lambda n: random.permutation(
        KEY, X, axis=n),
    "random.choice": lambda n: random.choice(KEY, n), "random.choice shape": lambda n: random.choice(KEY, 5, n),
    "scan length": lambda n: pf.scan(lambda c, _: (c, c), 1.0, length=n),
    "scan unroll": lambda n: pf.scan(lambda c, _: (c, c), 1.0, length=2, unroll=n),
    "while max_steps": lambda n: pf.while_loop(lambda c: c < 1, lambda c: c, 1.0, max_steps=n),
    "fori max_steps": lambda n: pf.fori_loop(0, 2, lambda i, c: c, 1.0, max_steps=n),
    "associative_scan": lambda n: pf.associative_scan(pnp.add, X, axis=n),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_traced_size_is_an_error_that_says_so(case):
    with pytest.raises(ConcretizationError) as e:
        pf.jit(CALLS[case])(np.int32(1))
    first, *notes = str(e.value).split("\n  ")
    assert "must be known while tracing" in first and "i32[]" in first
    assert os.path.basename(__file__) in notes[0]
    assert any(note.startswith("it depends on: n") for note in notes)
    assert "static_argnums" in notes[-1] and notes[-1].startswith("way out: ")


@pytest.mark.parametrize("make", [np.int32, np.array, pf.Array, lambda n: pf.Array(np.uint8(n))],
                         ids=["a NumPy scalar", "an array without axes", "an Array", "a small Array"])
@pytest.mark.parametrize("case", CALLS)
def test_a_known_size_may_be_an_array(case, make):
    want, got = (pf.tree.leaves(CALLS[case](n)) for n in (1, make(1)))
    for a, b in zip(got, want):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", CALLS)
def test_static_argnums_is_a_way_out(case):
    want, got = (pf.tree.leaves(f(1)) for f in (CALLS[case], pf.jit(CALLS[case], static_argnums=0)))
    assert [x.aval for x in got] == [x.aval for x in want]


def test_a_shape_may_be_a_known_array():
    shape = np.array([2, 4])
    for given in (shape, pf.Array(shape), shape.tolist(), tuple(shape)):
        assert pnp.zeros(given).shape == (2, 4) == pnp.reshape(X.ravel(), given).shape
    with pytest.raises(ConcretizationError, match=r"a shape must be known while tracing, got i32\[2\]"):
        pf.jit(lambda s: pnp.zeros(s))(shape)
    with pytest.raises(pf.errors.ShapeError, match="a shape is a tuple of integers, got "):
        pf.jit(lambda s: pnp.zeros(s))(f32(1))
    with pytest.raises(pf.errors.ShapeError, match="a shape is a tuple of integers, got "):
        pnp.zeros(pf.Array([1.5]))


def test_sizes_follow_known_values_under_eager_transforms():
    assert pf.grad(lambda x, n: pnp.sum(pnp.ones(n) * x))(2.0, 3).item() == 3
    assert pf.vjp(lambda x: pnp.sum(pnp.ones(x.astype(int)) * x), 3.0)[1](1.0)[0].item() == 3
