"""Train a small network on scikit-learn's 1,797 handwritten digits, through the whole path of popfn.

    python examples/digits.py [--epochs N] [--device host] [--plot loss.png] [--show]

The model is pure functions on a plain tree of parameters. `value_and_grad` differentiates the loss, `lower` turns the
training step into a PopXL program whose first argument lives on the device, and a session streams mini-batches to it.
Without the Poplar SDK all of it runs on this machine.
"""
from __future__ import annotations

import argparse
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from jaxtyping import Float32, Int32
from rich.progress import track
from sklearn.datasets import load_digits

import popfn as pf
import popfn.numpy as pnp

SIZES = (64, 128, 128, 10)
BATCH = 64
RATE = 0.2

Params = List[Dict[str, Any]]


def logits(params: Params, x: Float32[pf.Array, "batch 64"]) -> Float32[pf.Array, "batch 10"]:
    """Two hidden layers with gelu, then ten scores."""
    for layer in params[:-1]:
        x = pf.nn.gelu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params: Params, x: Float32[pf.Array, "batch 64"], y: Int32[pf.Array, "batch"]) -> Float32[pf.Array, ""]:
    """The mean cross entropy of a batch."""
    return pf.nn.cross_entropy(logits(params, x), y)


def step(params: Params, x: Any, y: Any) -> Tuple[Params, Any]:
    """One step of gradient descent: old parameters in, new parameters and the loss out."""
    value, grads = pf.value_and_grad(loss)(params, x, y)
    return pf.tree.map(lambda p, g: p - RATE * g, params, grads), value


def predict(params: Params, x: Any) -> Any:
    """The most likely digit for each image."""
    return pnp.argmax(logits(params, x), axis=1)


def initial_params(rng: np.random.Generator) -> Params:
    """Weights that keep the size of what passes through them (He et al., arXiv 1502.01852, equation 10)."""
    return [{"w": rng.normal(0.0, np.sqrt(2.0 / n), (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
            for n, m in zip(SIZES, SIZES[1:])]


def data(rng: np.random.Generator) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images of 64 values in [0, 1] and labels, shuffled: four fifths to train with, one fifth to test with."""
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    x, y = (digits.data / 16.0)[order].astype(np.float32), digits.target[order].astype(np.int32)
    cut = len(y) * 4 // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]


def train(epochs: int, device: str = "host", show: bool = False) -> Tuple[List[float], float]:
    """Train and test; returns the mean loss of every epoch and the accuracy on the test images."""
    rng = np.random.default_rng(0)
    params = initial_params(rng)
    x_train, y_train, x_test, y_test = data(rng)

    program = pf.lower(step, params, pf.spec((BATCH, 64)), pf.spec(BATCH, "int32"), state=0,
                       target="host" if device == "host" else "sdk")
    if show:
        print(program.jaxpr)
        print(program.as_text())
    print(f"the training step is a jaxpr of {len(program.jaxpr.eqns)} equations")

    losses: List[float] = []
    with pf.Session(program, state=params, device=device) as session:
        for _ in track(range(epochs), description="training"):
            order = rng.permutation(len(y_train))
            batches = [order[i:i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH)]
            losses.append(float(np.mean([session.run(x_train[b], y_train[b]) for b in batches])))
        params = session.state
    for epoch in sorted({*range(0, epochs, max(1, epochs // 5)), epochs - 1}):
        print(f"epoch {epoch + 1:3}: loss {losses[epoch]:.4f}")

    accuracy = float(np.mean(np.asarray(pf.jit(predict)(params, x_test)) == y_test))
    print(f"accuracy on {len(y_test)} test images: {accuracy:.1%}")
    return losses, accuracy


def plot(losses: Sequence[float], path: str) -> None:
    """Draw the loss of every epoch."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.semilogy(range(1, len(losses) + 1), losses)
    axes.set(xlabel="epoch", ylabel="mean cross entropy", title="Digits, training loss")
    axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=150)
    print(f"loss curve: {path}")


def main(argv: Optional[Sequence[str]] = None) -> float:
    """Run the example; returns the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--device", default="host", help="host, or with the Poplar SDK ipu_hw, ipu_model or cpu")
    parser.add_argument("--plot", metavar="FILE", help="draw the loss curve into a picture")
    parser.add_argument("--show", action="store_true", help="print the training step's jaxpr and its PopXL program")
    options = parser.parse_args(argv)
    start = time.perf_counter()
    losses, accuracy = train(options.epochs, options.device, options.show)
    print(f"{time.perf_counter() - start:.1f} s in all")
    if options.plot:
        plot(losses, options.plot)
    return accuracy


if __name__ == "__main__":
    main()
