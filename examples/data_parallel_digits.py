"""Train the network of examples/digits.py on several replicas, each of which has a part of every batch.

    python examples/data_parallel_digits.py [--dp 4] [--epochs N] [--device host] [--show]

The loss of a batch is one formula, the mean over the replicas of the mean of each one's part, and the training step is
that of any loss: nothing says where gradients are added up. `shard` runs it on the replicas of a mesh, of which each
has the parameters and its part of the images. The losses are those of the same step on one replica, but for the order
of the sums.
"""
from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from jaxtyping import Float32, Int32
from sklearn.datasets import load_digits

import popfn as pf
from popfn import P

SIZES = (64, 128, 128, 10)
BATCH = 128
RATE = 0.2

Params = List[Dict[str, Any]]


def loss(params: Params, x: Float32[pf.Array, "part 64"], y: Int32[pf.Array, "part"]) -> Float32[pf.Array, ""]:
    """The mean cross entropy of some images: two hidden layers with gelu, then ten scores."""
    for layer in params[:-1]:
        x = pf.nn.gelu(x @ layer["w"] + layer["b"])
    return pf.nn.cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)


def loss_of_all(params: Params, x: Any, y: Any) -> Any:
    """The mean cross entropy of the images of all replicas."""
    return pf.pmean(loss(params, x, y), "dp")


def training_step(batch_loss: Any) -> Any:
    """One step of gradient descent with the loss of a batch: old parameters in, new parameters and the loss out."""
    def step(params: Params, x: Any, y: Any) -> Tuple[Params, Any]:
        value, grads = pf.value_and_grad(batch_loss)(params, x, y)
        return pf.tree.map(lambda p, g: p - RATE * g, params, grads), value
    return step


def sharded_step(mesh: pf.Mesh) -> Any:
    """The training step on a mesh: whole parameters in and out, parts of the images in, one loss out."""
    return pf.shard(training_step(loss_of_all), mesh, in_specs=(P(), P("dp"), P("dp")), out_specs=(P(), P()))


def lowered(step: Any, params: Params, device: str) -> pf.Program:
    """The program of a training step, whose parameters live on the device."""
    return pf.lower(step, params, pf.spec((BATCH, 64)), pf.spec(BATCH, "int32"), state=0,
                    target="host" if device == "host" else "sdk")


def described(program: pf.Program) -> str:
    """The types of a replica's step, and its collectives."""
    text = str(program.jaxpr)
    taken = re.findall(r"\w+:(\S+)", re.findall(r"shard\[jaxpr=\{ lambda ; (.*?) \. let", text)[0])
    sums = re.findall(r"\w+:(\S+) = psum\[names=\('dp',\)\]", text)
    met = Counter(re.findall(r"ops\.collectives\.(\w+)\(", program.as_text()))
    return "\n".join([f"replication factor {program.ir.replication_factor}",
                      f"the step of a replica takes {', '.join(taken)}", f"sums over dp: {', '.join(sums)}",
                      f"collectives: {', '.join(f'{n} x {name}' for name, n in met.items())}"])


def losses_of(program: pf.Program, params: Params, batches: Sequence[Tuple[Any, Any]], device: str) -> np.ndarray:
    """The loss of each step of a training from the same start on the same batches."""
    with pf.Session(program, state=params, device=device) as session:
        return np.array([session.run(x, y) for x, y in batches])


def batches_of(epochs: int, rng: np.random.Generator) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Mini-batches of images with 64 values in [0, 1] and their labels."""
    digits = load_digits()
    x, y = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int32)
    orders = [rng.permutation(len(y)) for _ in range(epochs)]
    return [(x[o[i:i + BATCH]], y[o[i:i + BATCH]]) for o in orders for i in range(0, len(y) - BATCH + 1, BATCH)]


def main(argv: Optional[Sequence[str]] = None) -> Tuple[np.ndarray, np.ndarray]:
    """Train on a mesh and on one replica; returns the losses of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dp", type=int, default=4, help=f"how many replicas share a batch of {BATCH} images")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", default="host", help="host, or ipu_hw with the Poplar SDK")
    parser.add_argument("--show", action="store_true", help="print the jaxpr and the PopXL program of the sharded step")
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    params = [{"w": rng.normal(0.0, np.sqrt(2.0 / n), (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
              for n, m in zip(SIZES, SIZES[1:])]
    batches = batches_of(options.epochs, rng)

    curves: List[np.ndarray] = []
    mesh = pf.Mesh(dp=options.dp)
    for name, step in ((f"{mesh}", sharded_step(mesh)), ("one replica", training_step(loss))):
        program = lowered(step, params, options.device)
        if options.show and not curves:
            print(program.jaxpr)
            print(program.as_text())
        if not curves:
            print(described(program))
        start = time.perf_counter()
        curves.append(losses_of(program, params, batches, options.device))
        print(f"{name}: loss {curves[-1][0]:.6f} -> {curves[-1][-1]:.6f}, {time.perf_counter() - start:.1f} s")
    print(f"largest difference of the {len(batches)} losses: {np.abs(curves[0] - curves[1]).max():.1e}")
    return curves[0], curves[1]


if __name__ == "__main__":
    main()
