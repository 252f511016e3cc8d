"""What the tests of kernels share: data, and a check of an op against its expected result."""
import warnings

import numpy as np

import popfn.host as popxl

ops = popxl.ops
inf, nan = np.inf, np.nan

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 3.25, -7.0, 1e-3, -1e4, inf, -inf, nan])
PLAIN = np.array([[0.3, -1.7, 2.5, 0.0], [5.0, -0.25, 1.0, -3.0], [0.5, 0.5, -1.0, 8.0]])
POSITIVE = np.abs(PLAIN) + 0.1
INTS = np.array([[7, -7, 3, 0], [100, -1, 2**31 - 1, -(2**31)], [5, -8, 1, -100]])
OTHER_INTS = np.array([[2, 2, -2, 5], [-7, 3, 1, 1], [7, 3, -1, 9]])
MASK = np.array([[True, False, True, False], [False, False, True, True], [True, True, True, False]])

FLOATS = [np.float32, np.float16]
DTYPES = [np.float32, np.float16, np.int32, np.int8, np.uint16]


def as_dtype(array, dtype):
    """The array, where float16 has infinities for what it cannot hold."""
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def run(function, arrays, is_constant=False, views=False):
    """The results of `function` of tensors that hold `arrays`, and the program's text."""
    ir = popxl.Ir()
    with ir.main_graph:
        streams, tensors = [], []
        for array in arrays:
            dtype = popxl.dtype.as_dtype(array.dtype)
            if is_constant:
                tensors.append(popxl.constant(array, dtype))
                continue
            if views:  # the operand lies in memory in another order
                array = np.array(array.T, order="C")
            streams.append((popxl.h2d_stream(array.shape, dtype), array))
            t = ops.host_load(streams[-1][0])
            tensors.append(ops.transpose(t) if views else t)
        results = function(*tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        outs = [popxl.d2h_stream(t.shape, t.dtype) for t in results]
        for out, t in zip(outs, results):
            ops.host_store(out, t)
    with popxl.Session(ir) as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = session.run(dict(streams))
    return [found[out] for out in outs], session._executable.source


def check(function, expected, *arrays, exact=False, ulps=4):
    """`function` of tensors is `expected`, whichever way the operands come."""
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    for how in ({}, {"is_constant": True}, {"views": True}):
        results, source = run(function, arrays, **how)
        assert len(results) == len(expected)
        for result, wanted in zip(results, expected):
            wanted = np.asarray(wanted)
            assert result.dtype == wanted.dtype and result.shape == wanted.shape, source
            if exact or wanted.dtype.kind != "f":
                np.testing.assert_array_equal(result, wanted, f"{how}\n{source}")
            else:
                tolerance = ulps * np.finfo(wanted.dtype).eps
                np.testing.assert_allclose(result, wanted, tolerance, tolerance, err_msg=f"{how}\n{source}")


def quiet(function, *arrays):
    """A result in float64, rounded once to the dtype of the first array."""
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        return np.asarray(function(*wide)).astype(arrays[0].dtype)
