"""Train a transformer on eight replicas: heads and hidden units over four of them, texts and Adam's moments over two.

    python examples/parallel_transformer.py [--dp 2] [--tp 4] [--updates N] [--remote] [--steps 2] [--plot loss.png]

Each replica of a mesh has some heads and some hidden units of every layer (the axis "tp"), and some texts of the batch
("dp"). A layer adds up twice over tp, and the types want it: without that its result would vary over tp. The moments
are kept as in ZeRO (Rajbhandari et al., arXiv 1910.02054): of a replica's flattened, padded parameters each of those
along dp has an equal part. It gets the sum of the gradients for that part, updates it, and all gather the new
parameters. `--remote` keeps the layers' parameters and moments beside the chip, `--steps` cuts the texts of a replica
into parts. The losses are those of the same model on one replica.
"""
from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import re
import time
from collections import Counter
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

import popfn as pf
from popfn import P
from popfn.optim import AdamState

WIDTH, HEADS, LENGTH, BATCH = 64, 4, 32, 12
Params = Dict[str, Any]
State = Tuple[Params, AdamState]
optimiser = pf.optim.adam(2e-3)

#: How the parameters are cut over the mesh. Those of the layers have a first axis of layers.
CUT = {"letters": P(), "norm": P(),
       "layers": {"attention": {"q": P(None, None, "tp"), "k": P(None, None, "tp"), "v": P(None, None, "tp"),
                                "out": P(None, "tp")},
                  "up": P(None, None, "tp"), "down": P(None, "tp"), "norm1": P(), "norm2": P()}}


def corpus() -> Tuple[np.ndarray, int]:
    """The help texts that ship with Python as numbers, and how many different characters these stand for."""
    text = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    letters = {c: i for i, c in enumerate(sorted(set(text)))}
    return np.array([letters[c] for c in text], np.int32), len(letters)


def initial(rng: np.random.Generator, letters: int, layers: int) -> Params:
    """The parameters in the structure of CUT."""
    def draw(*shape: int, gain: float = 1.0) -> np.ndarray:
        return rng.normal(0.0, gain / math.sqrt(shape[-2]), shape).astype(np.float32)
    last = 1 / math.sqrt(2 * layers)  # so that the sum over the layers stays small
    attention = {name: draw(layers, WIDTH, WIDTH) for name in ("q", "k", "v")}
    return {"letters": draw(WIDTH, letters).T.copy(), "norm": np.ones(WIDTH, np.float32),
            "layers": {"attention": {**attention, "out": draw(layers, WIDTH, WIDTH, gain=last)},
                       "up": draw(layers, WIDTH, 4 * WIDTH), "down": draw(layers, 4 * WIDTH, WIDTH, gain=last),
                       "norm1": np.ones((layers, WIDTH), np.float32), "norm2": np.ones((layers, WIDTH), np.float32)}}


# ---------------------------------------------------------------------------- the model
def model(heads: int, join: Callable[[Any], Any]) -> Callable[[Params, Any], Any]:
    """The loss of a replica with so many heads; `join` makes whole results of those of its heads or hidden units."""
    def layer(h: Any, p: Params) -> Tuple[Any, None]:
        h = h + join(pf.nn.multi_head_attention(p["attention"], pf.nn.rms_norm(h, p["norm1"]), heads, causal=True,
                                                rotary=True))
        return h + join(pf.nn.gelu(pf.nn.rms_norm(h, p["norm2"]) @ p["up"]) @ p["down"]), None

    def loss(params: Params, ids: Any) -> Any:
        h, _ = pf.scan(layer, pf.nn.embedding(params["letters"], ids[:, :-1]), params["layers"])
        return pf.nn.cross_entropy(pf.nn.rms_norm(h, params["norm"]) @ params["letters"].mT, ids[:, 1:])
    return loss


def plain_step(carried: State, ids: Any) -> Tuple[State, Any]:
    """The training step on one replica: old parameters and moments in, new ones and the loss out."""
    params, state = carried
    value, grads = pf.value_and_grad(model(HEADS, lambda y: y))(params, ids)
    return optimiser.update(grads, state, params), value


# ---------------------------------------------------------------------------- the step on a mesh
def updated(grads: Params, state: AdamState, params: Params) -> State:
    """Adam's step where each replica along dp has moments of its own part of the parameters."""
    parts, state = optimiser.update(pf.zero.scatter(grads, "dp"), state, pf.zero.scatter(params, "dp"))
    return pf.zero.gather(parts, params, "dp"), state


def layered_update(grads: Params, state: AdamState, params: Params) -> State:
    """The same in a loop over the layers."""
    def update(trees: Tuple[Any, ...]) -> Tuple[Any, ...]:
        grads, mean, square, params = trees
        new, (_, mean, square) = updated(grads, AdamState(state.step, mean, square), params)
        return new, mean, square
    trees = grads, state.mean, state.square, params
    layers = pf.map(update, tuple(t["layers"] for t in trees))
    others = update(tuple({k: v for k, v in t.items() if k != "layers"} for t in trees))
    new, mean, square = ({**other, "layers": layer} for other, layer in zip(others, layers))
    return new, AdamState(state.step + 1, mean, square)


def in_parts(params: Params) -> Params:
    """Each replica's part along dp of its parameters, of those of the layers one by one."""
    def part(tree: Params) -> Params:
        scattered: Params = pf.zero.scatter(tree, "dp")
        return scattered
    return {k: pf.vmap(part)(p) if k == "layers" else part(p) for k, p in params.items()}


def start(params: Params, mesh: pf.Mesh) -> Tuple[State, Any]:
    """Parameters with moments of zero in parts, and how all of it is cut over the mesh."""
    def cut_more(cut: P, lead: int) -> P:
        return P(*[None] * lead, (*filter(None, cut), "dp"))
    specs = {k: pf.tree.map(lambda cut, k=k: cut_more(cut, int(k == "layers")), cuts) for k, cuts in CUT.items()}
    state = optimiser.init(pf.shard(in_parts, mesh, (CUT,), specs)(params))
    return (params, state), (CUT, AdamState(P(), specs, specs))


def parallel_step(mesh: pf.Mesh, cuts: Any, steps: int) -> Any:
    """The training step on a mesh, with the texts of each replica in so many parts."""
    part_loss = pf.batch_serialise(model(HEADS // mesh.axes["tp"], lambda y: pf.psum(y, "tp")), steps,
                                   in_axes=(None, 0), reduce="mean")

    def step(carried: State, ids: Any) -> Tuple[State, Any]:
        params, state = carried
        own = pf.pvary(params, "dp")  # so that gradients are each replica's, and added up where they are scattered
        value, grads = pf.value_and_grad(lambda p: pf.pmean(part_loss(p, ids), "dp"))(own)
        return layered_update(grads, state, params), value
    return pf.shard(step, mesh, in_specs=(cuts, P("dp")), out_specs=(cuts, P()))


# ---------------------------------------------------------------------------- training
def lowered(step: Any, carried: State, device: str, is_remote: bool = False) -> pf.Program:
    """The program of a step; `is_remote` says where all that belongs to the layers lies."""
    def moved(tree: Params) -> Params:
        return {**tree, "layers": pf.remote(tree["layers"])} if is_remote else tree
    params, (count, mean, square) = carried
    return pf.lower(step, (moved(params), AdamState(count, moved(mean), moved(square))),
                    pf.spec((BATCH, LENGTH + 1), "int32"), state=0, target="host" if device == "host" else "sdk")


def described(program: pf.Program, carried: State, cuts: Any, mesh: pf.Mesh) -> str:
    """What each replica keeps, and where replicas meet."""
    def count(tree: Any, cut: Any) -> int:
        """The number of elements of a replica's parts."""
        parts = pf.tree.map(lambda x, p: np.size(x) // math.prod(mesh.axes[n] for names in p.spec for n in names),
                            tree, cut)
        return sum(map(int, pf.tree.leaves(parts)))
    whole = sum(map(int, pf.tree.leaves(pf.tree.map(np.size, carried[0]))))
    sums = Counter(re.findall(r"\w+:(\S+) = psum\[names=\('tp',\)\]", str(program.jaxpr)))
    met = Counter(re.findall(r"ops\.collectives\.(\w+)\(", program.as_text()))
    own, moment = count(carried[0], cuts[0]), count(carried[1].mean, cuts[1].mean)
    return "\n".join([f"{mesh}: each of {program.ir.replication_factor} replicas keeps {own:,} of {whole:,} "
                      f"parameters, and two moments of {moment:,}",
                      "sums over tp: " + ", ".join(f"{n} x {aval}" for aval, n in sums.items()),
                      "collectives: " + ", ".join(f"{n} x {name}" for name, n in met.items())])


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
    axes.set(xlabel="update", ylabel="cross entropy of a letter", title="Transformer, training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"loss curves: {path}")


def main(argv: Optional[Sequence[str]] = None) -> Tuple[np.ndarray, np.ndarray]:
    """Train on a mesh and on one replica; returns the losses of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dp", type=int, default=2, help=f"how many replicas share the {BATCH} texts of a batch")
    parser.add_argument("--tp", type=int, default=4, choices=[1, 2, 4], help=f"how many share the {HEADS} heads")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--remote", action="store_true", help="keep the layers' state in remote memory")
    parser.add_argument("--steps", type=int, default=1, help="how many parts a replica's texts are cut into")
    parser.add_argument("--device", default="host", help="host, or ipu_hw with the Poplar SDK")
    parser.add_argument("--plot", metavar="FILE", help="draw the loss curve into a picture")
    parser.add_argument("--show", action="store_true", help="print the sharded step's jaxpr and its PopXL program")
    options = parser.parse_args(argv)
    text, letters = corpus()
    mesh = pf.Mesh(dp=options.dp, tp=options.tp)
    params = initial(np.random.default_rng(0), letters, options.layers)
    carried, cuts = start(params, mesh)
    parallel = lowered(parallel_step(mesh, cuts, options.steps), carried, options.device, options.remote)
    if options.show:
        print(parallel.jaxpr)
        print(parallel.as_text())
    print(described(parallel, carried, cuts, mesh))
    plain = params, optimiser.init(params)

    rng = np.random.default_rng(1)
    at = rng.integers(0, len(text) - LENGTH - 1, (options.updates, BATCH, 1)) + np.arange(LENGTH + 1)
    curves = {}
    for name, program, state in ((f"{mesh}", parallel, carried),
                                 ("one replica", lowered(plain_step, plain, options.device), plain)):
        begin = time.perf_counter()
        curves[name] = losses = trained(program, state, text[at], options.device)
        print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {time.perf_counter() - begin:.1f} s")
    on_mesh, on_one = curves.values()
    print(f"largest difference of the losses: {np.abs(on_mesh - on_one).max():.1e}")
    if options.plot:
        plot(curves, options.plot)
    return on_mesh, on_one


if __name__ == "__main__":
    main()
