"""Train a transformer of which one layer at a time is on the chip: parameters, moments and activations lie beside it.

    python examples/phased_transformer.py [--steps N] [--layers 12] [--parts 4] [--io-mode compute] [--plot loss.png]

The parameters of all layers are stacked, and lie in remote memory with Adam's moments: `pf.remote` says so where the
step is lowered. The step has four phases. The embedding makes the first activations, part by part of the batch. A scan
over the layers loads the parameters of one, and takes all parts through it; its carry, the activations between layers,
is in remote memory too. The head gives the loss, part by part. `value_and_grad` makes the way back through these three,
again with one graph for all layers. At last a loop over the layers updates them in place. The same training with
everything on the device, and the batch in one piece, has the same losses.
"""
from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

import popfn as pf
import popfn.numpy as pnp
from popfn.optim import AdamState

WIDTH, HEADS, LENGTH, BATCH = 64, 4, 32, 8
Params = Dict[str, Any]
State = Tuple[Params, AdamState]
Loss = Callable[[Params, Any], Any]
optimiser = pf.optim.adam(2e-3)


def corpus() -> Tuple[np.ndarray, int]:
    """The help texts that ship with Python as numbers, and how many different characters these stand for."""
    text = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    letters = {c: i for i, c in enumerate(sorted(set(text)))}
    return np.array([letters[c] for c in text], np.int32), len(letters)


def initial(rng: np.random.Generator, letters: int, layers: int) -> Params:
    """Parameters: those of the layers have a first axis of layers."""
    def draw(*shape: int, gain: float = 1.0) -> np.ndarray:
        return rng.normal(0.0, gain / math.sqrt(shape[-2]), shape).astype(np.float32)
    last = 1 / math.sqrt(2 * layers)  # so that the sum over the layers stays small
    attention = {name: draw(layers, WIDTH, WIDTH) for name in ("q", "k", "v")}
    return {"letters": draw(WIDTH, letters).T.copy(), "norm": np.ones(WIDTH, np.float32),
            "layers": {"attention": {**attention, "out": draw(layers, WIDTH, WIDTH, gain=last)},
                       "up": draw(layers, WIDTH, 4 * WIDTH), "down": draw(layers, 4 * WIDTH, WIDTH, gain=last),
                       "norm1": np.ones((layers, WIDTH), np.float32), "norm2": np.ones((layers, WIDTH), np.float32)}}


# ---------------------------------------------------------------------------- the model
def embed(letters: Any, ids: Any) -> Any:
    """The first activations of (batch, length) letters."""
    return pf.nn.embedding(letters, ids)


def layer(params: Params, h: Any) -> Any:
    """Attention to what came before, then two dense layers; each is added to its input."""
    h = h + pf.nn.multi_head_attention(params["attention"], pf.nn.rms_norm(h, params["norm1"]), HEADS, causal=True,
                                       rotary=True)
    return h + pf.nn.gelu(pf.nn.rms_norm(h, params["norm2"]) @ params["up"]) @ params["down"]


def head(ends: Params, h: Any, ids: Any) -> Any:
    """The mean cross entropy of each letter given those before it."""
    return pf.nn.cross_entropy(pf.nn.rms_norm(h, ends["norm"]) @ pnp.matrix_transpose(ends["letters"]), ids)


def plain_loss(params: Params, ids: Any) -> Any:
    """The loss of a batch, in one piece."""
    h = embed(params["letters"], ids[:, :-1])
    h, _ = pf.scan(lambda h, p: (layer(p, h), None), h, params["layers"])
    return head(params, h, ids[:, 1:])


def phased_loss(parts: int, io_mode: str = "compute") -> Loss:
    """The same in phases, each a loop over parts of the batch."""
    def serial(f: Any, in_axes: Any, reduce: Any = None) -> Any:
        return pf.batch_serialise(f, parts, in_axes, reduce=reduce, residuals="recompute", io_mode=io_mode)
    first = serial(lambda letters, ids: embed(letters, ids[:, :-1]), (None, 0))
    each = serial(layer, (None, 0))
    last = serial(lambda ends, h, ids: head(ends, h, ids[:, 1:]), (None, 0, 0), "mean")

    def loss(params: Params, ids: Any) -> Any:
        h = pf.remote(first(params["letters"], ids))
        h, _ = pf.scan(lambda h, p: (each(pf.load(p), h), None), h, params["layers"])
        return last({"letters": params["letters"], "norm": params["norm"]}, h, ids)
    return loss


# ---------------------------------------------------------------------------- the training step
def plain_update(grads: Params, state: AdamState, params: Params) -> State:
    """Adam's step for everything at once."""
    return optimiser.update(grads, state, params)


def layered_update(grads: Params, state: AdamState, params: Params) -> State:
    """The same in a loop over the layers: one layer's parameters, gradients and moments are on the chip at a time."""
    def update(trees: Tuple[Any, ...]) -> Tuple[Any, ...]:
        grads, mean, square, params = trees
        new, (_, mean, square) = optimiser.update(grads, AdamState(state.step, mean, square), params)
        return new, mean, square
    trees = grads, state.mean, state.square, params
    layers = pf.map(update, tuple(t["layers"] for t in trees))
    others = update(tuple({k: v for k, v in t.items() if k != "layers"} for t in trees))
    new, mean, square = ({**other, "layers": layer} for other, layer in zip(others, layers))
    return new, AdamState(state.step + 1, mean, square)


def training_step(loss: Loss, update: Callable[..., State]) -> Callable[..., Any]:
    """Old parameters and moments in, new ones and the loss out."""
    def step(carried: State, ids: Any) -> Tuple[State, Any]:
        params, state = carried
        value, grads = pf.value_and_grad(loss)(params, ids)
        return update(grads, state, params), value
    return step


def with_layers_remote(carried: State) -> State:
    """The state with all that belongs to the layers in remote memory."""
    def moved(tree: Params) -> Params:
        return {**tree, "layers": pf.remote(tree["layers"])}
    params, (step, mean, square) = carried
    return moved(params), AdamState(step, moved(mean), moved(square))


def phased_program(carried: State, parts: int, device: str, io_mode: str = "compute") -> pf.Program:
    """The program of a step in phases."""
    return pf.lower(training_step(phased_loss(parts, io_mode), layered_update), with_layers_remote(carried),
                    pf.spec((BATCH, LENGTH + 1), "int32"), state=0, target="host" if device == "host" else "sdk",
                    io_tiles=0 if io_mode == "compute" else 32)


def plain_program(carried: State, device: str) -> pf.Program:
    """The program of a step with everything on the device."""
    return pf.lower(training_step(plain_loss, plain_update), carried, pf.spec((BATCH, LENGTH + 1), "int32"), state=0,
                    target="host" if device == "host" else "sdk")


def graphs(program: pf.Program) -> int:
    """How many graphs a program has beside its main graph."""
    return program.as_text().count("ir.create_graph(")


def trained(program: pf.Program, carried: State, batches: Sequence[np.ndarray], device: str) -> np.ndarray:
    """The losses of all batches, from the same start."""
    with pf.Session(program, state=carried, device=device) as session:
        return np.array([session.run(ids) for ids in batches])


def plot(curves: Dict[str, np.ndarray], path: str) -> None:
    """Draw the losses of both trainings."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--")):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    axes.set(xlabel="step", ylabel="cross entropy of a letter", title="Transformer, training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"loss curves: {path}")


def main(argv: Optional[Sequence[str]] = None) -> Tuple[np.ndarray, np.ndarray]:
    """Train both; returns the losses in phases and those of the plain step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--parts", type=int, default=4, help=f"how many parts a batch of {BATCH} texts is cut into")
    parser.add_argument("--io-mode", default="compute", choices=["compute", "io", "io_overlapped"])
    parser.add_argument("--device", default="host", help="host, or ipu_hw with the Poplar SDK")
    parser.add_argument("--plot", metavar="FILE", help="draw the loss curves into a picture")
    parser.add_argument("--show", action="store_true", help="print the step's jaxpr and its PopXL program")
    options = parser.parse_args(argv)
    text, letters = corpus()

    def start(layers: int) -> State:
        params = initial(np.random.default_rng(0), letters, layers)
        return params, optimiser.init(params)

    def phased(layers: int) -> pf.Program:
        return phased_program(start(layers), options.parts, options.device, options.io_mode)
    program = phased(options.layers)
    if options.show:
        print(program.jaxpr)
        print(program.as_text())
    print(f"{options.layers} layers: {graphs(program)} graphs, {program.ir.num_host_transfers} host transfers a step")
    print(f"4 layers: {graphs(phased(4))} graphs")

    rng = np.random.default_rng(1)
    at = rng.integers(0, len(text) - LENGTH - 1, (options.steps, BATCH, 1)) + np.arange(LENGTH + 1)
    curves = {}
    carried = start(options.layers)
    for name, made in (("in phases", program), ("plain", plain_program(carried, options.device))):
        begin = time.perf_counter()
        curves[name] = losses = trained(made, carried, text[at], options.device)
        print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {time.perf_counter() - begin:.1f} s")
    in_phases, plain = curves.values()
    print(f"largest difference of the losses: {np.abs(in_phases - plain).max():.1e}")
    if options.plot:
        plot(curves, options.plot)
    return in_phases, plain


if __name__ == "__main__":
    main()
