"""Timing two things against each other: alternating in one run, medians, so that a noisy machine hurts both alike."""
from __future__ import annotations

import gc
import statistics
import time
from typing import Any, Callable, List, Sequence, Tuple


def alternate(calls: Sequence[Callable[[], Any]], rounds: int, repeat: int = 1,
              clock: Callable[[], float] = time.process_time) -> Tuple[float, ...]:
    """The median time of each call in seconds, over rounds in which each is made `repeat` times in a row.

    CPU time unless told otherwise.
    """
    times: List[List[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seen in zip(calls, times):
            gc.collect()  # nobody pays for another's garbage
            start = clock()
            for _ in range(repeat):
                call()
            seen.append((clock() - start) / repeat)
    return tuple(statistics.median(seen) for seen in times)


def row(name: str, ours: float, theirs: float, unit: float, suffix: str) -> None:
    """Print one comparison: both times and how they compare."""
    ratio = ours / theirs
    words = f"{1 / ratio:5.1f} times as fast" if ratio < 1 else f"{ratio:5.2f} times the time"
    print(f"{name:36} popfn {ours / unit:9.2f} {suffix}   jax {theirs / unit:9.2f} {suffix}"
          f"   ratio {ratio:6.3f}   {words}", flush=True)
