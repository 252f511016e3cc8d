"""Train the network of examples/digits.py with its batch cut into parts, which are streamed from the host one by one.

    python examples/serialised_digits.py [--io-mode all] [--steps 8] [--residuals remote] [--epochs N] [--show]

`batch_serialise` makes one loop of the loss; that is differentiated, lowered and run like any function. The io modes
move the parts in different ways, and give the same losses, bit for bit. The step that is not serialised adds up in
another order, so that its losses differ in their last digits.
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

SIZES = (64, 128, 128, 10)
BATCH = 128
RATE = 0.2
IO_MODES = ("compute", "io", "io_overlapped")
IO_TILES = 32

Params = List[Dict[str, Any]]


def loss(params: Params, x: Float32[pf.Array, "part 64"], y: Int32[pf.Array, "part"]) -> Float32[pf.Array, ""]:
    """The mean cross entropy of the images of a part: two hidden layers with gelu, then ten scores."""
    for layer in params[:-1]:
        x = pf.nn.gelu(x @ layer["w"] + layer["b"])
    return pf.nn.cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)


def training_step(batch_loss: Any) -> Any:
    """One step of gradient descent with the loss of a batch: old parameters in, new parameters and the loss out."""
    def step(params: Params, x: Any, y: Any) -> Tuple[Params, Any]:
        value, grads = pf.value_and_grad(batch_loss)(params, x, y)
        return pf.tree.map(lambda p, g: p - RATE * g, params, grads), value
    return step


def lowered(batch_loss: Any, params: Params, device: str, io_tiles: int = 0) -> pf.Program:
    """The program of a training step, whose parameters live on the device."""
    return pf.lower(training_step(batch_loss), params, pf.spec((BATCH, 64)), pf.spec(BATCH, "int32"), state=0,
                    target="host" if device == "host" else "sdk", io_tiles=io_tiles)


def losses_of(program: pf.Program, params: Params, batches: Sequence[Tuple[Any, Any]], device: str) -> np.ndarray:
    """The loss of each step of a training from the same start on the same batches."""
    with pf.Session(program, state=params, device=device) as session:
        return np.array([session.run(x, y) for x, y in batches])


def described(program: pf.Program) -> str:
    """What is outside of the chip: residuals by their types in the jaxpr, streams and buffers by the PopXL program."""
    residuals = Counter(re.findall(r"\w+\[[\d,]*\]@remote(?=.* = scan)", str(program.jaxpr)))
    made = Counter(re.findall(r"popxl\.((?:h2d_stream|d2h_stream|remote_buffer)\(.*\))", program.as_text()))
    return "\n".join(["residuals of all parts:", *(f"  {n} x {aval}" for aval, n in residuals.items()),
                      "streams of a part, and buffers of parts:", *(f"  {n} x {call}" for call, n in made.items())])


def batches_of(epochs: int, rng: np.random.Generator) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Mini-batches of images with 64 values in [0, 1] and their labels."""
    digits = load_digits()
    x, y = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int32)
    orders = [rng.permutation(len(y)) for _ in range(epochs)]
    return [(x[o[i:i + BATCH]], y[o[i:i + BATCH]]) for o in orders for i in range(0, len(y) - BATCH + 1, BATCH)]


def main(argv: Optional[Sequence[str]] = None) -> Dict[str, np.ndarray]:
    """Train in each io mode and without parts; returns the losses of each, those without parts as "whole"."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8, help=f"how many parts a batch of {BATCH} is cut into")
    parser.add_argument("--io-mode", default="all", choices=[*IO_MODES, "all"])
    parser.add_argument("--residuals", default="remote", choices=["remote", "device", "recompute"])
    parser.add_argument("--device", default="host", help="host, or ipu_hw with the Poplar SDK")
    parser.add_argument("--show", action="store_true", help="print the jaxpr and the PopXL program of each mode")
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    params = [{"w": rng.normal(0.0, np.sqrt(2.0 / n), (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
              for n, m in zip(SIZES, SIZES[1:])]
    batches = batches_of(options.epochs, rng)

    losses: Dict[str, np.ndarray] = {}
    for mode in IO_MODES if options.io_mode == "all" else (options.io_mode,):
        start = time.perf_counter()
        serial = pf.batch_serialise(loss, options.steps, in_axes=(None, 0, 0), reduce="mean", io_mode=mode,
                                    residuals=options.residuals)
        program = lowered(serial, params, options.device, 0 if mode == "compute" else IO_TILES)
        if options.show:
            print(program.jaxpr)
            print(program.as_text())
        if not losses:
            print(described(program))
        transfers = program.ir.num_host_transfers
        losses[mode] = losses_of(program, params, batches, options.device)
        print(f"io_mode={mode!r}, {transfers} host transfers a batch: loss {losses[mode][0]:.6f} -> "
              f"{losses[mode][-1]:.6f}, {time.perf_counter() - start:.1f} s")

    modes = list(losses)
    if len(modes) > 1:
        for mode in modes[1:]:
            np.testing.assert_array_equal(losses[mode], losses[modes[0]])
        print(f"{', '.join(modes)}: all {len(batches)} losses are equal, bit for bit")
    program = lowered(loss, params, options.device)
    losses["whole"] = losses_of(program, params, batches, options.device)
    print(f"in one piece, {program.ir.num_host_transfers} host transfer a batch: loss {losses['whole'][0]:.6f} -> "
          f"{losses['whole'][-1]:.6f}, at most {np.abs(losses['whole'] - losses[modes[0]]).max():.1e} from that")
    return losses


if __name__ == "__main__":
    main()
