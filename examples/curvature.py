"""The largest curvatures of a network's loss, by Hessian-vector products.

    python examples/curvature.py [--count N]

The Hessian of a loss with thousands of parameters is never formed: its product with a vector is the derivative of the
gradient along that vector (Pearlmutter, Fast exact multiplication by the Hessian, 1994), forward mode over reverse
mode. Power iteration finds its largest eigenvalues; `vmap` takes several vectors at once.
"""
from __future__ import annotations

import argparse
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
from sklearn.datasets import load_digits

import popfn as pf
import popfn.numpy as pnp

SIZES = (64, 32, 10)


def unflatten(flat: Any) -> List[Tuple[Any, Any]]:
    """One vector as the weights and biases of the layers."""
    layers, at = [], 0
    for n, m in zip(SIZES, SIZES[1:]):
        layers.append((pnp.reshape(flat[at:at + n * m], (n, m)), flat[at + n * m:at + n * m + m]))
        at += n * m + m
    return layers


def loss(flat: Any, x: Any, y: Any) -> Any:
    """The mean cross entropy of a network with one hidden layer."""
    (w1, b1), (w2, b2) = unflatten(flat)
    return pf.nn.cross_entropy(pnp.tanh(x @ w1 + b1) @ w2 + b2, y)


def hessian_vector_product(flat: Any, v: Any, x: Any, y: Any) -> Any:
    """The Hessian of the loss times v."""
    return pf.jvp(lambda p: pf.grad(loss)(p, x, y), (flat,), (v,))[1]


def largest_eigenvalues(flat: Any, x: Any, y: Any, count: int, rounds: int = 60) -> np.ndarray:
    """The eigenvalues of largest size, by power iteration on orthonormal vectors."""
    products = pf.jit(pf.vmap(hessian_vector_product, in_axes=(None, 0, None, None)))
    v = np.random.default_rng(1).normal(size=(count, flat.shape[0])).astype(np.float32)
    for _ in range(rounds):
        q, _ = np.linalg.qr(v.T)
        v = np.asarray(products(flat, np.ascontiguousarray(q.T), x, y))
    return np.sort(np.linalg.eigvalsh(q.T @ v.T))[::-1]


def main(argv: Optional[Sequence[str]] = None) -> np.ndarray:
    """Print the largest curvatures before and after some steps of gradient descent; returns the last ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=4)
    args = parser.parse_args(argv)
    digits = load_digits()
    x, y = (digits.data[:400] / 16).astype(np.float32), digits.target[:400].astype(np.int32)
    size = sum(n * m + m for n, m in zip(SIZES, SIZES[1:]))
    flat = pnp.asarray(np.random.default_rng(0).normal(0, 0.15, size).astype(np.float32))
    step = pf.jit(lambda p: p - 0.3 * pf.grad(loss)(p, x, y))
    eigenvalues = np.zeros(0)
    for steps in (0, 20, 200):
        for _ in range(steps):
            flat = step(flat)
        eigenvalues = largest_eigenvalues(flat, x, y, args.count)
        listed = ", ".join(f"{e:.3f}" for e in eigenvalues)
        print(f"after {steps:3} more steps: loss {float(loss(flat, x, y)):.3f}, {size} parameters, curvatures {listed}")
    return eigenvalues


if __name__ == "__main__":
    main()
