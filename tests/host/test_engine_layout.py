"""Strides, against NumPy's own."""

import numpy as np
from hypothesis import given, strategies as st

from popfn.host.kernels.layout import c_strides, is_contiguous, permuted, reshaped, sliced


@st.composite
def shapes(draw, size=None):
    """A shape of `size` elements, or of 1, 6, 12, 24 or 36."""
    left = draw(st.sampled_from([1, 6, 12, 24, 36])) if size is None else size
    shape = []
    while left > 1:
        shape.append(draw(st.sampled_from([d for d in range(2, left + 1) if left % d == 0])))
        left //= shape[-1]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@st.composite
def arrays(draw):
    """A view of an array in C order, and the same view by this module: its strides and offset."""
    array = np.arange(36, dtype=np.int16)[: np.prod(draw(st.shared(shapes(), key="shape")), dtype=int)]
    array = array.reshape(draw(st.shared(shapes(), key="shape")))
    strides, offset = c_strides(array.shape, 2), 0
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            order = draw(st.permutations(range(array.ndim)))
            strides, array = permuted(strides, order), array.transpose(order)
        else:
            starts = [draw(st.integers(0, n - 1)) for n in array.shape]
            slices = tuple([slice(k, None, draw(st.sampled_from([1, 2, -1]))) for k in starts])
            strides, moved = sliced(array.shape, strides, slices)
            offset, array = offset + moved, array[slices]
    return array, strides, offset


def shown(array, shape, strides, offset):
    base = array
    while base.base is not None:
        base = base.base
    return np.ndarray(shape, array.dtype, base, offset, strides)


@given(arrays())
def test_permuted_and_sliced(view):
    array, strides, offset = view
    np.testing.assert_array_equal(shown(array, array.shape, strides, offset), array)
    assert is_contiguous(array.shape, strides, 2) == array.flags.c_contiguous


@given(st.data())
def test_reshaped(data):
    array, strides, offset = data.draw(arrays())
    shape = data.draw(shapes(array.size))
    found = reshaped(array.shape, strides, shape, 2)
    if found is None:
        assert not np.shares_memory(array, array.reshape(shape))
    else:
        np.testing.assert_array_equal(shown(array, shape, found, offset), array.reshape(shape))
