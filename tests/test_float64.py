"""float64: every primitive, and the functions made of them, have all its digits.

The rows of the case table are taken in float64: their programs are printed, read back with f64 in place of f32, and
compared with the 64-bit definitions in references.py. All that runs outside of the request, where what is float64 stays
so. A value that passed through float32 is off by 1e-8; what is tolerated is less by far. What holds the request, and
what refuses float64, is in test_float64_request.py.
"""
import functools
import importlib
import math
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_numpy
import test_numpy_numerics
import test_numpy_order
from cases import CASES
from references import assert_within, evaluate, rounded, widened
from scipy import special

import popfn as pf
import popfn.nn as nn
import popfn.numpy as pnp
from popfn import optim
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.prims.kinds import Elementwise
from popfn.trace.tracer import Trace, bind
from popfn.transforms.differentiate import jvp_jaxpr, vjp_jaxpr

jax_x64 = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64
RNG = np.random.default_rng(0)
#: Random numbers are float32 on their own; the text of a custom_call is not read back.
NARROW = ("random_uniform", "random_normal", "custom_call")


def wide_array(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype == np.float32 else x


@functools.lru_cache(maxsize=None)
def wide_program(number: int) -> Jaxpr:
    """The program that a row stands for, with float64 in place of float32."""
    case = CASES[number]
    with Trace(case.primitive.name) as trace:
        out = bind(case.primitive, [trace.input(a) for a in case.avals])
        jaxpr = trace.finish(out if case.primitive.multiple else [out])
    return pf.parse_jaxpr(str(jaxpr).replace("f32", "f64"), [wide_array(c) for c in jaxpr.constants])


def has_float32(case: Any) -> bool:
    return case.primitive.name not in NARROW and any(a.dtype == np.float32 for a in (
        *case.avals, *np.atleast_1d(np.array(case.primitive.infer(case.avals), object))))


WIDE = [c for c in CASES if has_float32(c)]
SMOOTH = [c for c in WIDE if c.kind == "smooth" and any(a.is_float for a in wide_program(c.number).in_avals)
          and any(a.is_float for a in wide_program(c.number).out_avals)]


def some(rows: List[Any]) -> Any:
    return pytest.mark.parametrize("case", rows, ids=lambda c: c.name.replace("f32", "f64"))


def size(*xs: np.ndarray) -> float:
    """The largest finite magnitude among the floats."""
    found = [np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in map(np.asarray, xs) if x.dtype.kind == "f"]
    return max(found, default=0.0)


# ---------------------------------------------------------------------------- the case table
def test_the_table_has_float64_of_every_primitive():
    assert len(WIDE) > 600 and len(SMOOTH) > 250
    assert len({c.primitive.name for c in WIDE}) > 70


@some(WIDE)
def test_eval_has_all_digits(case):
    jaxpr, xs = wide_program(case.number), [wide_array(x) for x in case.operands]
    assert jaxpr.has_float64
    got = jaxpr.eval(*xs)
    want = evaluate(jaxpr, [widened(x) for x in xs])
    for g, w, a in zip(got, want, jaxpr.out_avals):
        assert g.dtype == a.dtype
        w = rounded(w, a.dtype)
        scale = 0.0 if isinstance(case.primitive, Elementwise) else size(*xs, w)
        assert_within(g, w, 1e-14 * (np.abs(np.where(np.isfinite(widened(w)), widened(w), 0)) + scale) + 1e-300)


@some(WIDE)
def test_prints_and_parses_back(case):
    jaxpr = wide_program(case.number)
    assert "f64" in str(jaxpr) and "f32" not in str(jaxpr)
    with pf.enable_float64():
        assert pf.parse_jaxpr(str(jaxpr), jaxpr.constants) == jaxpr
    assert pf.parse_jaxpr(str(jaxpr), jaxpr.constants) == jaxpr


@some(SMOOTH)
def test_derivatives_have_all_digits(case):
    """Forward mode is the slope of the definition along a direction; reverse mode is its adjoint."""
    jaxpr, xs = wide_program(case.number), [wide_array(x) for x in case.operands]
    mask = tuple(a.is_float for a in jaxpr.in_avals)
    floats = [i for i, a in enumerate(jaxpr.out_avals) if a.is_float]
    ts = [RNG.standard_normal(x.shape).astype(x.dtype) for x, on in zip(xs, mask) if on]
    pushed, moves = jvp_jaxpr(jaxpr, mask)
    pulled = vjp_jaxpr(jaxpr, mask, floats)
    if "f16" in str(jaxpr) or "f8" in str(jaxpr):  # which have the digits of their own
        return
    assert "f32" not in str(pushed) + str(pulled)
    rest = iter(pushed.eval(*xs, *ts)[len(floats) + len(moves) - len(floats):])
    pushes = [next(rest) if on else np.zeros(a.shape, a.dtype) for on, a in zip(moves, jaxpr.out_avals)]
    pushes = [pushes[i] for i in floats]

    def moved(step: float) -> List[np.ndarray]:
        at = iter(ts)
        return evaluate(jaxpr, [widened(x) + step * next(at) if on else widened(x) for x, on in zip(xs, mask)])
    if case.primitive.name != "stop_gradient":
        for i, push in zip(floats, pushes):
            want = (moved(1e-5)[i] - moved(-1e-5)[i]) / 2e-5
            assert_within(push, want, 1e-7 * (np.abs(want) + max(size(want), 1.0)))
    cts = [RNG.standard_normal(y.shape) for y in pushes]
    grads = pulled.eval(*xs, *cts)[len(jaxpr.outputs):]
    terms = [[float(np.sum(a * b)) for a, b in zip(*pair)] for pair in ((cts, pushes), (grads, ts))]
    parts = sum(float(np.sum(np.abs(a * b))) for a, b in zip(grads, ts))
    assert abs(sum(terms[0]) - sum(terms[1])) <= 1e-12 * max(parts, 1.0)


# ---------------------------------------------------------------------------- functions made of them
X, Y = RNG.uniform(0.1, 0.9, (4, 6)), RNG.uniform(-2, 2, (4, 6))
IMAGES, KERNELS = RNG.standard_normal((2, 4, 7, 7)), RNG.standard_normal((6, 2, 3, 3))
LABELS = np.array([0, 5, 2, 3])
#: Functions of X and Y, with the same in NumPy; both are given arrays of 64 bits.
FUNCTIONS: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
    "constants": (lambda x, y: 0.1 * x + y / 3 - (x + 1e-9) ** 2.5, lambda x, y: 0.1 * x + y / 3 - (x + 1e-9) ** 2.5),
    "where": (lambda x, y: pnp.where(y > 0.1, x, 0.1), lambda x, y: np.where(y > 0.1, x, 0.1)),
    "clip": (lambda x, y: pnp.clip(y, -0.3, 0.7), lambda x, y: np.clip(y, -0.3, 0.7)),
    "mean": (lambda x, y: pnp.mean(x * y, 0), lambda x, y: (x * y).mean(0)),
    "var": (lambda x, y: pnp.var(y, 1, correction=1), lambda x, y: y.var(1, ddof=1)),
    "std": (lambda x, y: pnp.std(y), lambda x, y: y.std()),
    "prod": (lambda x, y: pnp.prod(y, 1), lambda x, y: y.prod(1)),
    "max": (lambda x, y: pnp.max(y, 1) - pnp.min(x, 1), lambda x, y: y.max(1) - x.min(1)),
    "cumsum": (lambda x, y: pnp.cumsum(y, 1), lambda x, y: y.cumsum(1)),
    "cumprod": (lambda x, y: pnp.cumprod(y, 1), lambda x, y: y.cumprod(1)),
    "logcumsumexp": (lambda x, y: pnp.logcumsumexp(y, 1), lambda x, y: np.logaddexp.accumulate(y, 1)),
    "diff": (lambda x, y: pnp.diff(y, axis=1), lambda x, y: np.diff(y, axis=1)),
    "matmul": (lambda x, y: x @ y.T, lambda x, y: x @ y.T),
    "einsum": (lambda x, y: pnp.einsum("ij,kj,kj->i", x, y, x), lambda x, y: np.einsum("ij,kj,kj->i", x, y, x)),
    "norm": (lambda x, y: pnp.linalg.vector_norm(y, axis=1, ord=3), lambda x, y: (np.abs(y) ** 3).sum(1) ** (1 / 3)),
    "norm of 0": (lambda x, y: pnp.linalg.vector_norm(y, ord=0) * x, lambda x, y: 24 * x),
    "matrix_power": (lambda x, y: pnp.linalg.matrix_power(x @ y.T, 3), lambda x, y: np.linalg.matrix_power(x @ y.T, 3)),
    "matrix_power of 0": (lambda x, y: pnp.linalg.matrix_power(x @ y.T, 0) * 0.1, lambda x, y: 0.1 * np.eye(4)),
    "sort": (lambda x, y: pnp.sort(y, 1) * x, lambda x, y: np.sort(y, 1) * x),
    "topk": (lambda x, y: pnp.topk(y, 2)[0], lambda x, y: -np.sort(-y, 1)[:, :2]),
    "quantile": (lambda x, y: pnp.quantile(y, 0.3, 1), lambda x, y: np.quantile(y, 0.3, 1)),
    "quantiles": (lambda x, y: pnp.quantile(y, x[0]), lambda x, y: np.quantile(y, x[0])),
    "median": (lambda x, y: pnp.median(y, 1), lambda x, y: np.median(y, 1)),
    "histogram": (lambda x, y: pnp.histogram(y, 7)[1], lambda x, y: np.histogram(y, 7)[1]),
    "histogram in a range": (lambda x, y: pnp.histogram(y, 7, (0.1, 0.7))[1] * x[0, 0],
                             lambda x, y: np.histogram(y, 7, (0.1, 0.7))[1] * x[0, 0]),
    "density": (lambda x, y: pnp.histogram(y, 5, weights=x, density=True)[0],
                lambda x, y: np.histogram(y, 5, weights=x, density=True)[0]),
    "bincount": (lambda x, y: pnp.bincount(pnp.asarray(LABELS), x[:, 0], length=6),
                 lambda x, y: np.bincount(LABELS, x[:, 0], 6)),
    "linspace": (lambda x, y: pnp.linspace(x[0], 0.7, 5), lambda x, y: np.linspace(x[0], 0.7, 5)),
    "full_like": (lambda x, y: x * pnp.full_like(y, 0.1), lambda x, y: x * 0.1),
    "zeros_like": (lambda x, y: pnp.zeros_like(x) + pnp.ones_like(y), lambda x, y: np.ones_like(y)),
    "round": (lambda x, y: pnp.round(y, 3), lambda x, y: np.round(y, 3)),
    "exp2": (lambda x, y: pnp.exp2(y), lambda x, y: np.exp2(y)),
    "erf": (lambda x, y: pnp.erf(y), lambda x, y: special.erf(y)),
    "at": (lambda x, y: x.at[1:3, ::2].add(0.1).at[0].multiply(y[1]).at[2].max(y[0]).at[3].set(0.7),
           lambda x, y: written(x, y)),
    "take": (lambda x, y: pnp.take(y, pnp.asarray([5, 0, 5]), axis=1), lambda x, y: y[:, [5, 0, 5]]),
    "pad": (lambda x, y: pnp.pad(x, 1, constant_values=0.1), lambda x, y: np.pad(x, 1, constant_values=0.1)),
    "softmax": (lambda x, y: nn.softmax(y), lambda x, y: special.softmax(y, 1)),
    "masked softmax": (lambda x, y: nn.softmax(y, where=y > 0),
                       lambda x, y: special.softmax(np.where(y > 0, y, -np.inf), 1)),
    "log_softmax": (lambda x, y: nn.log_softmax(y), lambda x, y: special.log_softmax(y, 1)),
    "logsumexp": (lambda x, y: nn.logsumexp(y, 1), lambda x, y: special.logsumexp(y, 1)),
    "sigmoid": (lambda x, y: nn.sigmoid(y), lambda x, y: special.expit(y)),
    "softplus": (lambda x, y: nn.softplus(y), lambda x, y: np.logaddexp(y, 0)),
    "silu": (lambda x, y: nn.silu(y), lambda x, y: y * special.expit(y)),
    "gelu": (lambda x, y: nn.gelu(y),
             lambda x, y: y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))),
    "gelu by erf": (lambda x, y: nn.gelu(y, approximate=False), lambda x, y: y * special.ndtr(y)),
    "elu": (lambda x, y: nn.elu(y, 0.3), lambda x, y: np.where(y > 0, y, 0.3 * np.expm1(y))),
    "selu": (lambda x, y: nn.selu(y), lambda x, y: 1.0507009873554805 * np.where(
        y > 0, y, 1.6732632423543772 * np.expm1(y))),
    "layer_norm": (lambda x, y: nn.layer_norm(y, x[0], x[1]), lambda x, y: normalised(y, 1) * x[0] + x[1]),
    "rms_norm": (lambda x, y: nn.rms_norm(y, x[0]),
                 lambda x, y: y / np.sqrt((y * y).mean(1, keepdims=True) + 1e-6) * x[0]),
    "group_norm": (lambda x, y: nn.group_norm(y, 2, x[0], x[1]),
                   lambda x, y: normalised(y.reshape(4, 2, 3), 2).reshape(4, 6) * x[0] + x[1]),
    "batch_norm": (lambda x, y: nn.batch_norm(y, (x[0], x[1]), training=True)[0], lambda x, y: normalised(y, 0)),
    "running statistics": (lambda x, y: nn.batch_norm(y, (x[0], x[1]), training=True)[1].var,
                           lambda x, y: 0.9 * x[1] + (1 - 0.9) * y.var(0, ddof=1)),
    "cross_entropy": (lambda x, y: nn.cross_entropy(y, LABELS, label_smoothing=0.1), lambda x, y: np.mean(
        special.logsumexp(y, 1) - 0.9 * y[np.arange(4), LABELS] - 0.1 * y.mean(1))),
    "nll": (lambda x, y: nn.nll(y, LABELS), lambda x, y: -y[np.arange(4), LABELS].mean()),
    "mse": (lambda x, y: nn.mse(x, y), lambda x, y: ((x - y) ** 2).mean()),
    "l1": (lambda x, y: nn.l1(x, y), lambda x, y: np.abs(x - y).mean()),
    "huber": (lambda x, y: nn.huber(x, y, delta=0.7), lambda x, y: special.huber(0.7, x - y).mean()),
    "binary_cross_entropy": (lambda x, y: nn.binary_cross_entropy(y, x),
                             lambda x, y: np.mean(np.logaddexp(0, y) - x * y)),
    "attention": (lambda x, y: nn.attention(x, y, y, causal=True), lambda x, y: special.softmax(
        np.where(np.tri(4) > 0, x @ y.T / math.sqrt(6), -np.inf), 1) @ y),
    "rotary_embedding": (lambda x, y: nn.rotary_embedding(y), lambda x, y: turned(y)),
    "avg_pool": (lambda x, y: nn.avg_pool(y[None, None], 3, strides=1, padding=1) * 0.1,
                 lambda x, y: 0.1 * pooled(y)[None, None]),
    "interpolate": (lambda x, y: nn.interpolate(y[None], size=11, mode="linear", coordinates="align_corners"),
                    lambda x, y: np.stack([np.interp(np.linspace(0, 5, 11), np.arange(6), row) for row in y])[None]),
    "global_norm": (lambda x, y: optim.global_norm({"a": x, "b": y}),
                    lambda x, y: np.sqrt((x * x).sum() + (y * y).sum())),
    "clip_by_global_norm": (lambda x, y: optim.clip_by_global_norm(x, 0.3)[0],
                            lambda x, y: 0.3 * x / np.linalg.norm(x)),
    "sgd": (lambda x, y: twice(optim.sgd(0.1, momentum=0.9, weight_decay=0.01), x, y),
            lambda x, y: sgd_twice(x, y)),
    "adam": (lambda x, y: twice(optim.adam(0.1), x, y), lambda x, y: adam_twice(x, y)),
    "scan": (lambda x, y: pf.scan(lambda c, v: (c * 0.3 + pnp.sin(v), c * v), x[0], y)[1], lambda x, y: scanned(x, y)),
    "cond": (lambda x, y: pf.cond(pnp.sum(y) > 100, lambda x, y: x * 0.1, lambda x, y: pnp.exp(y) * 0.7, x, y),
             lambda x, y: np.exp(y) * 0.7),
    "fori_loop": (lambda x, y: pf.fori_loop(0, 3, lambda i, c: c * 0.7 + i * x, y),
                  lambda x, y: 0.343 * y + 0.7 * x + 2 * x),
    "while_loop": (lambda x, y: pf.while_loop(lambda c: pnp.sum(c) < 30, lambda c: c * 1.1 + 0.1, x, max_steps=50),
                   lambda x, y: grown(x)),
    "pmean": (lambda x, y: pf.vmap(lambda v: v - pf.pmean(v * 0.1, "i"), axis_name="i")(y),
              lambda x, y: y - 0.1 * y.mean(0)),
    "vmap": (lambda x, y: pf.vmap(lambda a, b: a[:, None] * b)(x, y),
             lambda x, y: x[:, :, None] * y[:, None, :]),
    "batch_serialise": (lambda x, y: pf.batch_serialise(lambda v: pnp.mean(v * 0.1), 2, reduce="mean")(y),
                        lambda x, y: 0.1 * y.mean()),
    "associative_scan": (lambda x, y: pf.associative_scan(lambda a, b: a * b * 0.7, y),
                         lambda x, y: np.cumprod(y, 0) * 0.7 ** np.arange(4)[:, None]),
    "switch": (lambda x, y: pf.switch(1, [lambda x: x, lambda x: x * 0.1], y), lambda x, y: y * 0.1),
    "map": (lambda x, y: pf.map(lambda v: v * 0.1, y), lambda x, y: y * 0.1),
    "checkpoint": (lambda x, y: pf.checkpoint(lambda x: pnp.sin(x) * 0.1)(y), lambda x, y: np.sin(y) * 0.1),
    "convert": (lambda x, y: pnp.astype(pnp.floor(y), "int32") * x, lambda x, y: np.floor(y) * x),
}


def written(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[1:3, ::2] += 0.1
    x[0] *= y[1]
    x[2] = np.maximum(x[2], y[0])
    x[3] = 0.7
    return x


def normalised(y: np.ndarray, axis: int) -> np.ndarray:
    return (y - y.mean(axis, keepdims=True)) / np.sqrt(y.var(axis, keepdims=True) + 1e-5)


def turned(y: np.ndarray) -> np.ndarray:
    angles = np.arange(4)[:, None] * 10000.0 ** (-np.arange(3) / 3)
    z = (y[:, :3] + 1j * y[:, 3:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], 1)


def pooled(y: np.ndarray) -> np.ndarray:
    return np.array([[y[max(i - 1, 0):i + 2, max(j - 1, 0):j + 2].mean() for j in range(6)] for i in range(4)])


def twice(opt: Any, params: Any, grads: Any) -> Any:
    state = opt.init(params)
    for g in (grads, grads * 0.3):
        params, state = opt.update(g, state, params)
    return params


def sgd_twice(p: np.ndarray, g: np.ndarray) -> np.ndarray:
    v = np.zeros_like(p)
    for grad in (g, g * 0.3):
        v = 0.9 * v + grad + 0.01 * p
        p = p - 0.1 * v
    return p


def adam_twice(p: np.ndarray, g: np.ndarray) -> np.ndarray:
    m, s = np.zeros_like(p), np.zeros_like(p)
    for t, grad in ((1, g), (2, g * 0.3)):
        m, s = 0.9 * m + 0.1 * grad, 0.999 * s + 0.001 * grad * grad
        p = p - 0.1 * (m / (1 - 0.9 ** t)) / (np.sqrt(s / (1 - 0.999 ** t)) + 1e-8)
    return p


def scanned(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    c, out = x[0], []
    for v in y:
        out.append(c * v)
        c = c * 0.3 + np.sin(v)
    return np.stack(out)


def grown(x: np.ndarray) -> np.ndarray:
    while x.sum() < 30:
        x = x * 1.1 + 0.1
    return x


#: Where a 0, a 1 or an infinity, which are exact, comes in as float32.
EXACT_IN_FLOAT32 = ("masked softmax", "global_norm", "clip_by_global_norm")


def operands() -> List[pf.Array]:
    with pf.enable_float64():
        return [pf.Array(X), pf.Array(Y)]


@pytest.mark.parametrize("outside", [False, True], ids=["requested", "outside"])
@pytest.mark.parametrize("path", ["eager", "jitted", "traced"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_all_digits(name, path, outside):
    f, oracle = FUNCTIONS[name]
    xs = operands()
    with pf.enable_float64(not outside):
        if path == "traced":
            jaxpr = pf.make_jaxpr(f)(*xs)
            assert "f32" not in str(jaxpr) or name in EXACT_IN_FLOAT32
            got = jaxpr.eval(X, Y)[0]
        else:
            y = (f if path == "eager" else pf.jit(f))(*xs)
            assert y.aval.dtype == np.float64
            got = y.value
    want = oracle(X, Y)
    assert got.dtype == np.float64 and got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


PARAMS = {name: RNG.standard_normal((6, 6)) for name in ("q", "k", "v", "out")}
#: Of X and Y; made of what is above, and compared with it nowhere.
OTHERS: Dict[str, Callable[..., Any]] = {
    "multi_head_attention": lambda x, y: nn.multi_head_attention(PARAMS, y, 3, causal=True, rotary=True),
    "conv_transpose": lambda x, y: nn.conv_transpose(IMAGES * x[0, 0], KERNELS[:4], strides=2),
    "max_pool": lambda x, y: nn.max_pool(y[None, None], 2),
    "adamw": lambda x, y: twice(optim.adamw(0.1), x, y),
    "nesterov": lambda x, y: twice(optim.sgd(0.1, momentum=0.9, nesterov=True), x, y),
    "embedding": lambda x, y: nn.embedding(y, LABELS[2:]),
    "logaddexp": lambda x, y: pnp.logaddexp(x, 0.1),
    "matrix_norm": lambda x, y: pnp.linalg.matrix_norm(x, ord=1),
    "second derivative": lambda x, y: pf.grad(lambda x: pf.grad(lambda x: pnp.sum(pnp.tanh(x) ** 3))(x).sum())(x),
    "vmap of grad": lambda x, y: pf.vmap(pf.grad(lambda v: nn.logsumexp(v * 0.1)))(y),
    "vjp of scan": lambda x, y: pf.vjp(lambda y: FUNCTIONS["scan"][0](x, y), y)[1](y)[0],
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_float32_comes_in(name):
    with pf.enable_float64():
        jaxpr = pf.make_jaxpr(OTHERS[name])(X, Y)
    assert {a.dtype for a in jaxpr.out_avals} == {np.dtype(np.float64)} and "f32" not in str(jaxpr)
    with pf.enable_float64():
        got = OTHERS[name](*operands())
    np.testing.assert_allclose(np.asarray(got), jaxpr.eval(X, Y)[0], rtol=1e-13, atol=1e-14)


def scalar(f: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar of f's result in which each element has a weight of its own."""
    def g(x: Any, y: Any) -> Any:
        out = f(x, y)
        weights = pnp.cos(pnp.reshape(pnp.astype(pnp.arange(out.size), out.dtype), out.shape)) \
            if isinstance(out, pf.Array) else np.cos(np.arange(out.size, dtype=float)).reshape(np.shape(out))
        return (out * weights).sum()
    return g


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("round", "convert", "zeros_like", "norm of 0")])
def test_gradients_have_all_digits(name):
    """Against central differences of the same function in NumPy."""
    f, oracle = FUNCTIONS[name]
    with pf.enable_float64():
        xs = operands()
        g = pf.grad(scalar(f), (0, 1))
        grads, jitted = g(*xs), pf.jit(g)(*xs)
        _, push = pf.jvp(scalar(f), tuple(xs), tuple(pf.Array(np.cos(v)) for v in (X, Y)))
    h = scalar(lambda x, y: np.asarray(oracle(x, y)))
    slope = (h(X + 1e-6 * np.cos(X), Y + 1e-6 * np.cos(Y)) - h(X - 1e-6 * np.cos(X), Y - 1e-6 * np.cos(Y))) / 2e-6
    if name == "running statistics":  # which have no derivative
        slope = 0.0
    got = sum(float((np.asarray(d) * np.cos(v)).sum()) for d, v in zip(grads, (X, Y)))
    assert all(d.dtype == np.float64 for d in (*grads, push))
    assert abs(got - slope) <= 1e-7 * max(abs(slope), 1.0)
    assert abs(float(push) - got) <= 1e-11 * max(abs(got), 1.0)
    for a, b in zip(grads, jitted):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12, atol=1e-13)


# ---------------------------------------------------------------------------- the tables of popfn.numpy
def rows_of(module: Any) -> List[Any]:
    """Its expressions of float32 data alone, without a dtype that they ask for, or edges of their own."""
    used = getattr(module, "used", None) or module.used_names
    rows = []
    for text in module.EXPRESSIONS:
        dtypes = {module.DATA[n].dtype.name for n in used(text)}
        apart = any(word in text for word in ("dtype", "astype", "float", "w,np.array", "v,np.array([0,2"))
        if not apart and "float32" in dtypes and dtypes <= {"float32", "bool", "int32"}:
            rows.append(pytest.param(module, text, used(text), id=f"{module.__name__}-{text}"))
    return rows


TABLES = [row for module in (test_numpy, test_numpy_numerics, test_numpy_order) for row in rows_of(module)]


def test_the_tables_are_long():
    assert len(TABLES) > 500


@pytest.mark.parametrize("outside", [False, True], ids=["requested", "outside"])
@pytest.mark.parametrize("module, text, names", TABLES)
def test_expressions_have_all_digits(module, text, names, outside):
    code = compile(text, text, "eval")
    space = dict(np=np, nan=np.nan, inf=np.inf)
    data = [wide_array(module.DATA[n]) for n in names]
    with pf.enable_float64():
        given = [pf.Array(x) for x in data]
    with pf.enable_float64(not outside):
        got = eval(code, dict(zip(names, given), xp=pnp, **space))
    with np.errstate(all="ignore"):
        want = np.asarray(eval(code, dict(zip(names, (x.view(test_numpy.Wide) for x in data)), xp=module.NUMPY,
                                          **space)))
    assert got.shape == want.shape and got.dtype != np.float32
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got.value, want)
        return
    finite = np.where(np.isfinite(want), want, 0)
    assert_within(got.value, want, 1e-14 * max(size(finite), 1e-3), text)


# ---------------------------------------------------------------------------- networks, against JAX
CONVOLUTIONS: List[Dict[str, Any]] = [
    {}, dict(strides=2, padding="same"), dict(padding=((1, 2), (0, 1)), dilation=2)]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_conv_is_that_of_jax(options):
    padding = options.get("padding", "valid")

    def theirs(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (options.get("strides", 1),) * 2, padding.upper() if isinstance(padding, str) else padding,
            rhs_dilation=(options.get("dilation", 1),) * 2, feature_group_count=2)
    with jax_x64(True):
        want = jax.value_and_grad(lambda x, w: jnp.sin(theirs(x, w)).sum(), (0, 1))(IMAGES, KERNELS)
        want = jax.tree_util.tree_map(np.asarray, want)
    with pf.enable_float64():
        f = pf.value_and_grad(lambda x, w: pnp.sin(nn.conv(x, w, groups=2, **options)).sum(), (0, 1))
        eager, jitted = f(IMAGES, KERNELS), pf.jit(f)(IMAGES, KERNELS)
    for got in (eager, jitted):
        for a, b in zip((got[0], *got[1]), (want[0], *want[1])):
            assert a.dtype == np.float64
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12, atol=1e-12)


ACTIVATIONS = ["celu", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "relu", "relu6", "glu",
               "softsign", "mish"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_jax(name):
    theirs = dict(softsign=jax.nn.soft_sign).get(name) or getattr(
        jax.nn, name, None) or (lambda x: x * jnp.tanh(jnp.logaddexp(x, 0)))
    with jax_x64(True):
        want = np.asarray(theirs(jnp.asarray(Y))), np.asarray(jax.grad(lambda y: jnp.sin(theirs(y)).sum())(Y))
    with pf.enable_float64():
        f = getattr(nn, name)
        got = f(Y), pf.grad(lambda y: pnp.sin(f(y)).sum())(Y)
    for a, b in zip(got, want):
        assert a.dtype == np.float64
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-13, atol=1e-14)


DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_promotion_with_float64_is_that_of_jax(dtype):
    with jax_x64(True), pf.enable_float64():
        ours = pnp.maximum(np.ones(2), np.ones(2, dtype))
        theirs = jnp.maximum(jnp.ones(2, "float64"), jnp.ones(2, dtype))
    assert ours.dtype == theirs.dtype == np.float64 and not ours.aval.weak


@pytest.mark.parametrize("dtype", [pf.float8_143, pf.float8_152])
def test_float8_beside_float64(dtype):
    with pf.enable_float64():
        small, wide = pnp.astype(pf.Array([1.5]), dtype), pf.Array(np.array([0.1]))
        with pytest.raises(TypeError, match="have no common dtype: convert one of them with astype"):
            small + wide
        assert pnp.astype(small, np.float64).dtype == np.float64


def test_float8_is_rounded_once():
    """A tie of float8 with something behind it is no tie, also where float32 would cut that off."""
    with pf.enable_float64():
        for tie, low, high in ((1.0625, 1.0, 1.125), (-1.1875, -1.25, -1.125)):
            x = pf.Array(np.array([tie, tie * (1 - 1e-13), tie * (1 + 1e-13)]))
            got = pnp.astype(pnp.astype(x, pf.float8_143), np.float64).tolist()
            assert got[1:] == ([low, high] if tie > 0 else [high, low])
            assert pnp.cast_from_float8(pnp.cast_to_float8(x, dtype=pf.float8_143), dtype=np.float64).tolist() == got
