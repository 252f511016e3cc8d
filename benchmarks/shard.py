"""What replicas cost on the host: a data-parallel training step by pf.shard.

    python benchmarks/shard.py [--rounds N] [--core C]

A step of an MLP (784-512-512-10, batch 64) on 8 replicas, on either engine, against one program of the whole batch, on
one core; and against shard_map on 8 devices of XLA, each side in a process of its own, on every core, by the clock.
"""
from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any, Tuple

import _one_core  # before the libraries that count cores
from _compare import alternate
from _networks import mlp_data, mlp_ours
from _replicas import MLP, REPLICAS, data_parallel_step, race

import popfn as pf


def row(name: str, ours: float, theirs: float, gate: float) -> None:
    """Print one comparison and whether it is within its gate."""
    ratio = ours / theirs
    print(f"{name:52} {ours * 1e3:9.2f} ms against {theirs * 1e3:9.2f} ms   ratio {ratio:6.3f}   gate {gate:4.2f}   "
          f"{'met' if ratio <= gate else 'missed'}", flush=True)


def sessions() -> Tuple[pf.Session, pf.Session, Any]:
    """A session of the step on replicas, one of the whole batch, and the data."""
    params, x, y = mlp_data(MLP)
    made = [pf.Session(pf.lower(step, params, x, y, state=0, target="host"), state=params)
            for step in (data_parallel_step(), mlp_ours())]
    return made[0], made[1], (x, y)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--core", type=int, default=0)
    rounds = parser.parse_args().rounds
    for engine in ("numpy", "xla"):
        os.environ["POPFN_ENGINE"] = engine
        ours, whole, data = sessions()
        with ours, whole:
            ours_s, whole_s = alternate([partial(ours.run, *data), partial(whole.run, *data)], rounds)
        row(f"{REPLICAS} replicas or the whole batch, {engine} engine", ours_s, whole_s, 1.3)
    times = race(("shard-numpy", "shard-xla", "shard_map"), rounds, _one_core.WHOLE_MACHINE)
    for engine in ("numpy", "xla"):
        row(f"{REPLICAS} replicas or shard_map, {engine} engine", times[f"shard-{engine}"], times["shard_map"], 0.5)


if __name__ == "__main__":
    main()
