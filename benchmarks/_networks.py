"""The networks that are measured, written once for popfn and once for JAX: training steps by gradient descent.

Each `*_ours` and `*_theirs` makes a new function, so that nothing answers from a cache of functions.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

import popfn as pf
import popfn.numpy as pnp

RATE = 0.1
HEADS = 4

Step = Callable[..., Any]


def step_ours(loss: Callable[..., Any]) -> Step:
    """Parameters and data to new parameters and the loss, in popfn."""
    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = pf.value_and_grad(loss)(params, x, y)
        return pf.tree.map(lambda p, g: p - RATE * g, params, grads), value
    return step


def step_theirs(loss: Callable[..., Any]) -> Step:
    """The same in JAX."""
    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree_util.tree_map(lambda p, g: p - RATE * g, params, grads), value
    return step


# ---------------------------------------------------------------------------- an MLP with gelu and cross entropy
def mlp_ours() -> Step:
    """A training step of an MLP in popfn."""
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = pf.nn.gelu(x @ w + b)
        w, b = params[-1]
        return pf.nn.cross_entropy(x @ w + b, y)
    return step_ours(loss)


def mlp_theirs() -> Step:
    """The same in JAX."""
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = jax.nn.gelu(x @ w + b, approximate=True)
        w, b = params[-1]
        z = x @ w + b
        chosen = y[:, None] == jnp.arange(z.shape[-1])
        return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.sum(jnp.where(chosen, z, 0.0), -1))
    return step_theirs(loss)


def mlp_data(sizes: Sequence[int], batch: int = 64) -> Tuple[Any, np.ndarray, np.ndarray]:
    """Parameters, images and labels."""
    rng = np.random.default_rng(0)
    params = [(rng.normal(0, n ** -0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32))
              for n, m in zip(sizes, sizes[1:])]
    return params, rng.random((batch, sizes[0]), np.float32), rng.integers(0, 10, batch).astype(np.int32)


# ---------------------------------------------------------------------------- a transformer
def transformer_layer(np_like: Any, softmax: Callable[..., Any], gelu: Callable[..., Any], heads: int = HEADS,
                      ) -> Callable[..., Any]:
    """One pre-norm layer: attention, then two dense layers."""
    def norm(x: Any, scale: Any, shift: Any) -> Any:
        d = x - np_like.mean(x, axis=-1, keepdims=True)
        return d / np_like.sqrt(np_like.mean(d * d, axis=-1, keepdims=True) + 1e-5) * scale + shift

    def layer(p: Dict[str, Any], x: Any) -> Any:
        batch, length, width = x.shape
        h = norm(x, p["scale1"], p["shift1"])
        q, k, v = ((h @ p[n]).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3) for n in "qkv")
        weights = softmax(q @ k.transpose(0, 1, 3, 2) * (width // heads) ** -0.5)
        x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width) @ p["o"]
        h = norm(x, p["scale2"], p["shift2"])
        return x + gelu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return layer


def transformer_ours() -> Step:
    """A training step of a transformer in popfn; the layer is one sub-graph."""
    layer = pf.jit(transformer_layer(pnp, pf.nn.softmax, pf.nn.gelu))

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for p in layers:
            x = layer(p, x)
        return pnp.mean((x - y) ** 2)
    return step_ours(loss)


def transformer_theirs() -> Step:
    """The same in JAX."""
    layer = transformer_layer(jnp, jax.nn.softmax, lambda x: jax.nn.gelu(x, approximate=True))

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for p in layers:
            x = layer(p, x)
        return jnp.mean((x - y) ** 2)
    return step_theirs(loss)


def transformer_data(layers: int, width: int = 256, batch: int = 4, length: int = 128,
                     ) -> Tuple[List[Dict[str, np.ndarray]], np.ndarray, np.ndarray]:
    """Parameters, inputs and targets."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    def constant(value: float, n: int) -> np.ndarray:
        return np.full(n, value, np.float32)
    params = [{**{n: normal(width, width) for n in "qkvo"},
               "w1": normal(width, 4 * width), "b1": constant(0, 4 * width),
               "w2": normal(4 * width, width), "b2": constant(0, width),
               "scale1": constant(1, width), "shift1": constant(0, width),
               "scale2": constant(1, width), "shift2": constant(0, width)}
              for _ in range(layers)]
    x, y = (rng.normal(size=(batch, length, width)).astype(np.float32) for _ in range(2))
    return params, x, y
