"""Train a small convolutional network on scikit-learn's handwritten digits.

    python examples/convolutions.py [--epochs N] [--device host]

Two convolutions, each with a normalisation over groups of channels and a pool, then a dense layer. Images and weights
are laid out as in PopXL: (samples, channels, height, width) and (out, in, height, width).
"""
from __future__ import annotations

import argparse
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np
from sklearn.datasets import load_digits

import popfn as pf
import popfn.numpy as pnp

BATCH = 64
Params = Dict[str, Any]


def initial(key: Any) -> Params:
    """Weights that keep the size of what passes through them, and scales of 1."""
    first, second, last = pf.random.split(key, 3)
    return {"conv1": pf.nn.init.he_normal(first, (16, 1, 3, 3), convolution=True), "scale1": pnp.ones(16),
            "conv2": pf.nn.init.he_normal(second, (32, 16, 3, 3), convolution=True), "scale2": pnp.ones(32),
            "dense": pf.nn.init.he_normal(last, (32 * 2 * 2, 10)), "bias": pnp.zeros(10)}


def logits(params: Params, images: Any) -> Any:
    """Ten scores for each image."""
    x = images
    for n in ("1", "2"):
        x = pf.nn.conv(x, params["conv" + n], padding="same")
        x = pf.nn.relu(pf.nn.group_norm(x, 4, params["scale" + n]))
        x = pf.nn.max_pool(x, 2)
    return pnp.reshape(x, (x.shape[0], -1)) @ params["dense"] + params["bias"]


def loss(params: Params, images: Any, labels: Any) -> Any:
    """The mean cross entropy of a batch."""
    return pf.nn.cross_entropy(logits(params, images), labels, label_smoothing=0.05)


def main(argv: Optional[Sequence[str]] = None) -> float:
    """Train and test; returns the share of the test images that are read right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", default="host")
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    count = len(labels) * 4 // 5
    optimiser = pf.optim.adam(2e-3)

    def step(carried: Tuple[Params, Any], x: Any, y: Any) -> Tuple[Any, Any]:
        params, state = carried
        value, grads = pf.value_and_grad(loss)(params, x, y)
        return optimiser.update(grads, state, params), value
    params = initial(pf.random.key(0))
    carried = params, optimiser.init(params)
    program = pf.lower(step, carried, images[:BATCH], labels[:BATCH], state=0)
    with pf.Session(program, state=carried, device=args.device) as session:
        for epoch in range(args.epochs):
            shuffled = rng.permutation(count)
            batches = [shuffled[i:i + BATCH] for i in range(0, count - BATCH + 1, BATCH)]
            losses = [float(session.run(images[b], labels[b])) for b in batches]
            print(f"epoch {epoch + 1}  loss {np.mean(losses):.3f}")
        params, _ = session.state
    right = np.asarray(pnp.argmax(pf.jit(logits)(params, images[count:]), axis=1)) == labels[count:]
    print(f"accuracy on {len(right)} test images: {100 * right.mean():.1f}%")
    return float(right.mean())


if __name__ == "__main__":
    main()
