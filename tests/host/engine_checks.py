"""What the tests of kernels share: data, and a check of an op against its expected result."""
import importlib.util
import os
import warnings
from typing import Callable, List, NamedTuple, Optional, Sequence
from unittest import mock

import numpy as np
import pytest

import popfn.host as popxl

ops = popxl.ops
has_jax = importlib.util.find_spec("jax") is not None
needs_jax = pytest.mark.skipif(not has_jax, reason="needs jax")
ENGINES = ["numpy", pytest.param("xla", marks=needs_jax)]
_IN_ONE_PROGRAM = 40
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


def build(function, arrays, is_constant=False, views=False):
    """Add `function` of tensors that hold `arrays` to the current graph: the inputs, and the streams of the results."""
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
    return streams, outs


def session_on(engine, ir):
    """A session on an engine."""
    with mock.patch.dict(os.environ, POPFN_ENGINE=engine):
        return popxl.Session(ir)


def run(function, arrays, engine="numpy", **how):
    """The results of `function` of tensors that hold `arrays`, and the program's text."""
    ir = popxl.Ir()
    with ir.main_graph:
        streams, outs = build(function, arrays, **how)
    with session_on(engine, ir) as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = session.run(dict(streams))
    return [found[out] for out in outs], session._executable.source


def check(function, expected, *arrays, exact=False, ulps=4, xla_ulps=None, on_xla=True, alone=False):
    """`function` of tensors is `expected`, whichever way the operands come: now on NumPy, and later on XLA.

    `xla_ulps` is another tolerance there; `alone` is for a function that sets options, which are those of a program.
    """
    expected = [np.asarray(x) for x in (expected if isinstance(expected, (tuple, list)) else (expected,))]
    for how in ({}, {"is_constant": True}, {"views": True}):
        results, source = run(function, arrays, **how)
        compare(results, expected, exact, ulps, f"{how}\n{source}")
    if on_xla and has_jax:
        ulps = ulps if xla_ulps is None else xla_ulps
        _checks.append(Check(os.environ.get("PYTEST_CURRENT_TEST"), function, arrays, expected, exact, ulps, alone))


def compare(results, expected, exact, ulps, message):
    """Assert that results are what is expected, floats up to some units in the last place unless `exact`."""
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected):
        assert result.dtype == wanted.dtype and result.shape == wanted.shape, message
        if exact or wanted.dtype.kind != "f":
            np.testing.assert_array_equal(result, wanted, message)
        else:
            tolerance = ulps * np.finfo(wanted.dtype).eps
            np.testing.assert_allclose(result, wanted, tolerance, tolerance, err_msg=message)


class Check(NamedTuple):
    """A check that is to be made on the XLA engine."""

    test: Optional[str]
    function: Callable
    arrays: Sequence[np.ndarray]
    expected: Sequence[np.ndarray]
    exact: bool
    ulps: float
    alone: bool


_checks: List[Check] = []


def check_on_xla():
    """Make the checks that tests left, many in one program, because XLA takes long to compile each."""
    checks, _checks[:] = _checks[:], []
    together = [each for each in checks if not each.alone]
    programs = [[each] for each in checks if each.alone]
    programs += [together[i : i + _IN_ONE_PROGRAM] for i in range(0, len(together), _IN_ONE_PROGRAM)]
    faults = []
    for part in programs:
        ir, built = popxl.Ir(), []
        with ir.main_graph:
            for each in part:
                built.append(build(each.function, each.arrays))
        with session_on("xla", ir) as session:
            found = session.run(dict(stream for streams, _ in built for stream in streams))
        for each, (_, outs) in zip(part, built):
            try:
                compare([found[out] for out in outs], each.expected, each.exact, each.ulps, f"on XLA: {each.test}")
            except AssertionError as error:
                faults.append(str(error))
    assert not faults, "\n\n".join(faults)


def quiet(function, *arrays):
    """A result in float64, rounded once to the dtype of the first array."""
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        return np.asarray(function(*wide)).astype(arrays[0].dtype)
