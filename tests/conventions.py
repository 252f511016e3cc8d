"""The paths on which a corner case has one answer, shared by test_conventions_*.py.

A test that takes `run` runs once on each path of a value, one that takes `gradient` once on each path of a derivative.
"""
import importlib.util
from typing import Any, Callable, Dict

import numpy as np
import pytest
from programs import lowered

import popfn as pf
import popfn.numpy as pnp
from popfn.transforms.simplify import simplify

inf, nan = np.inf, np.nan
HAS_XLA = importlib.util.find_spec("jax") is not None


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def f16(*values: Any) -> np.ndarray:
    return np.array(values, np.float16)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


# ---------------------------------------------------------------------------- values
def traced(f: Callable[..., Any], *args: Any) -> Any:
    jaxpr = pf.make_jaxpr(f)(*args)
    return jaxpr.eval(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))[0]


def simplified(f: Callable[..., Any], *args: Any) -> Any:
    jaxpr = pf.make_jaxpr(f)(*args)
    return simplify(jaxpr).eval(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))[0]


def as_program(f: Callable[..., Any], *args: Any) -> Any:
    jaxpr = pf.make_jaxpr(f)(*args)
    return lowered(jaxpr)(*(np.asarray(x, a.dtype) for x, a in zip(args, jaxpr.in_avals)))[0]


def on_xla(f: Callable[..., Any], *args: Any) -> Any:
    if not HAS_XLA:
        pytest.skip("JAX is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POPFN_ENGINE", "xla")
        return as_program(f, *args)


def in_lanes(x: Any) -> np.ndarray:
    """Two lanes: x itself, and its elements in reverse order."""
    x = np.asarray(x)
    return np.stack([x, x.ravel()[::-1].reshape(x.shape)])


def vmapped(f: Callable[..., Any], *args: Any) -> Any:
    return pf.vmap(f)(*map(in_lanes, args))[0]


def jitted(f: Callable[..., Any], *args: Any) -> Any:
    return pf.jit(f)(*args)


VALUE_PATHS: Dict[str, Callable[..., Any]] = dict(
    eager=lambda f, *args: f(*map(pf.Array, args)), traced=traced, simplified=simplified, jitted=jitted,
    nested=lambda f, *args: traced(lambda *xs: pf.jit(f)(*xs), *args), vmapped=vmapped,
    jitted_vmapped=lambda f, *args: jitted(lambda *xs: pf.vmap(f)(*xs)[0], *map(in_lanes, args)), lowered=as_program,
    xla=on_xla)


# ---------------------------------------------------------------------------- derivatives
def reverse(f: Callable[..., Any], x: Any) -> Any:
    return pf.grad(f)(x)


def forward(f: Callable[..., Any], x: Any) -> Any:
    units = np.eye(x.size, dtype=x.dtype)
    return pnp.reshape(pnp.stack([pf.jvp(f, (x,), (e.reshape(x.shape),))[1] for e in units]), x.shape)


def under(path: Callable[..., Any], derivative: Callable[..., Any]) -> Callable[..., Any]:
    return lambda f, x: path(lambda x: derivative(f, x), x)


GRADIENT_PATHS: Dict[str, Callable[..., Any]] = dict(
    reverse=reverse, forward=forward, reverse_of_jitted=lambda f, x: reverse(pf.jit(f), x),
    forward_of_jitted=lambda f, x: forward(pf.jit(f), x),
    reverse_of_vmapped=lambda f, x: reverse(lambda xs: pf.vmap(f)(xs)[0], in_lanes(x))[0],
    reverse_of_checkpointed=lambda f, x: jitted(lambda x: reverse(pf.checkpoint(f), x), x),
    **{f"{name}_{d.__name__}": under(VALUE_PATHS[name], d) for name in ("traced", "jitted", "vmapped", "lowered")
       for d in (reverse, forward)},
    xla_reverse=under(on_xla, reverse))


# ---------------------------------------------------------------------------- how tests use them
def pytest_generate_tests(metafunc: Any) -> None:
    """Give the tests of a module that imports this function its paths."""
    for argument, paths in (("run", VALUE_PATHS), ("gradient", GRADIENT_PATHS)):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, [
                pytest.param(on(path), id=name, marks=[pytest.mark.slow] if "xla" in name else [])
                for name, path in paths.items()])


def on(path: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """What a path gives, as a NumPy array."""
    return lambda f, *args: np.asarray(path(f, *args))


def same(got: Any, want: Any) -> None:
    """Equal values and signs of zero, and the dtype if `want` has one."""
    got = np.asarray(got)
    np.testing.assert_array_equal(got, want)
    if isinstance(want, (np.ndarray, np.generic)):
        assert got.dtype == want.dtype
        if want.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(np.asarray(want)[want == 0]))
