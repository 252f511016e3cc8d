"""Train a transformer that writes characters, on the help texts that ship with Python.

    python examples/characters.py [--steps N] [--device host] [--length N]

Each block is a jitted function, so that the program has one sub-graph for all of them; dropout draws from a key that is
folded with the step's number; Adam's moments live on the device with the parameters.
"""
from __future__ import annotations

import argparse
import functools
import math
import pydoc_data.topics
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

import popfn as pf
import popfn.numpy as pnp

WIDTH, HEADS, BLOCKS, LENGTH, BATCH = 64, 4, 2, 48, 16
DROPOUT = 0.1
Params = Dict[str, Any]


def corpus() -> Tuple[np.ndarray, List[str]]:
    """The texts as numbers, and the characters that these stand for."""
    text = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    letters = sorted(set(text))
    number = {c: i for i, c in enumerate(letters)}
    return np.array([number[c] for c in text], np.int32), letters


def initial(key: Any, letters: int) -> Params:
    """Parameters: the embedding of letters, the blocks, and the scales of the last norm."""
    keys = iter(pf.random.split(key, 6 * BLOCKS + 1))
    draw = functools.partial(pf.nn.init.normal, std=1 / math.sqrt(WIDTH))

    def block() -> Params:
        attention = {name: draw(next(keys), (WIDTH, WIDTH)) for name in ("q", "k", "v", "out")}
        return {"attention": attention, "up": draw(next(keys), (WIDTH, 4 * WIDTH)),
                "down": pf.nn.init.normal(next(keys), (4 * WIDTH, WIDTH), std=0.5 / math.sqrt(WIDTH)),
                "norm1": pnp.ones(WIDTH), "norm2": pnp.ones(WIDTH)}
    return {"letters": draw(next(keys), (letters, WIDTH)), "blocks": [block() for _ in range(BLOCKS)],
            "norm": pnp.ones(WIDTH)}


@pf.jit
def block(params: Params, x: Any) -> Any:
    """One block: attention to what came before, then two dense layers; each is added to its input."""
    h = pf.nn.rms_norm(x, params["norm1"])
    x = x + pf.nn.multi_head_attention(params["attention"], h, HEADS, causal=True, rotary=True)
    h = pf.nn.rms_norm(x, params["norm2"])
    return x + pf.nn.gelu(h @ params["up"]) @ params["down"]


def logits(params: Params, ids: Any, key: Optional[Any] = None) -> Any:
    """Scores of the next letter after each of (batch, length) letters; with a key, dropout is on."""
    x = pf.nn.embedding(params["letters"], ids)
    if key is not None:
        x = pf.nn.dropout(key, x, DROPOUT)
    for b in params["blocks"]:
        x = block(b, x)
    return pf.nn.rms_norm(x, params["norm"]) @ pnp.matrix_transpose(params["letters"])


def loss(params: Params, ids: Any, key: Optional[Any] = None) -> Any:
    """The mean cross entropy of each letter given those before it."""
    return pf.nn.cross_entropy(logits(params, ids[:, :-1], key), ids[:, 1:])


def training_step(optimiser: pf.optim.Optimiser, key: Any) -> Any:
    """The step of a program: old parameters and moments in, new ones and the loss out."""
    def step(carried: Tuple[Params, Any], ids: Any) -> Tuple[Any, Any]:
        params, state = carried
        value, grads = pf.value_and_grad(loss)(params, ids, pf.random.fold_in(key, state.step))
        grads, _ = pf.optim.clip_by_global_norm(grads, 1.0)
        return optimiser.update(grads, state, params), value
    return step


def sample(params: Params, letters: List[str], start: str, count: int, key: Any, temperature: float = 0.7) -> str:
    """Text that goes on from `start`, letter by letter."""
    next_logits = pf.jit(lambda params, ids: logits(params, ids)[0, -1])
    number = {c: i for i, c in enumerate(letters)}
    ids = [number[c] for c in start.rjust(LENGTH)]
    for k in pf.random.split(key, count):
        scores = next_logits(params, np.array([ids[-LENGTH:]], np.int32))
        ids.append(int(pf.random.categorical(k, scores / temperature)))
    return start + "".join(letters[i] for i in ids[LENGTH:])


def main(argv: Optional[Sequence[str]] = None) -> float:
    """Train, print the losses and a sample; returns the mean loss of the last steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--length", type=int, default=120, help="of the sample")
    parser.add_argument("--device", default="host")
    args = parser.parse_args(argv)
    text, letters = corpus()
    print(f"{len(text):,} characters, {len(letters)} different ones")
    params = initial(pf.random.key(0), len(letters))
    optimiser = pf.optim.adamw(lambda step: 3e-3 * pnp.minimum((step + 1) / 50, 1.0))
    carried = params, optimiser.init(params)
    ids = pf.spec((BATCH, LENGTH + 1), "int32")
    start = time.perf_counter()
    program = pf.lower(training_step(optimiser, pf.random.key(1)), carried, ids, state=0)
    rng = np.random.default_rng(0)
    losses: List[float] = []
    with pf.Session(program, state=carried, device=args.device) as session:
        for i in range(args.steps):
            at = rng.integers(0, len(text) - LENGTH - 1, BATCH)
            losses.append(float(session.run(np.stack([text[a:a + LENGTH + 1] for a in at]))))
            if (i + 1) % max(args.steps // 8, 1) == 0:
                print(f"step {i + 1:4}  loss {np.mean(losses[-20:]):.3f}  {time.perf_counter() - start:.1f} s")
        params, _ = session.state
    print(sample(params, letters, "The ", args.length, pf.random.key(2)))
    return float(np.mean(losses[-20:]))


if __name__ == "__main__":
    main()
