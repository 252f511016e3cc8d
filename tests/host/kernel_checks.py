"""What the tests of kernels by family share."""
import functools

from engine_checks import check as check, run as run

import popfn.host as popxl

try:
    import jax
except ImportError:
    jax = None

ops = popxl.ops


def on_both(function, arrays):
    """The results of `function` of tensors on the NumPy engine, and those on XLA if it is there."""
    found, _ = run(function, arrays)
    return found, found if jax is None else run(function, arrays, "xla")[0]


def modifying(function):
    """An update of a copy of its first operand, which shows both the result and what was written."""

    @functools.wraps(function)
    def run(t, *others):
        t = ops.identity(t)
        return function(t, *others)

    return run
