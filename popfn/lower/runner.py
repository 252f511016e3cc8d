"""compile_flat: a jaxpr as a function of NumPy arrays, for `pf.jit` on concrete arguments."""
from __future__ import annotations

import threading
from typing import Callable, List, Sequence, Set

import numpy as np

from ..trace.jaxpr import Jaxpr
from ..transforms.loop import has_unbounded_loop
from .build import Signature, build, identifier, unique
from .target import find_target

#: For jitted functions, of which nobody says how many. On the host it is a number only.
IO_TILES = 32


def compile_flat(jaxpr: Jaxpr, names: Sequence[str], target: str = "host") -> Callable[[Sequence[np.ndarray]],
                                                                                      List[np.ndarray]]:
    """Lower and compile a jaxpr; the function returned takes arrays of exactly its inputs' types.

    `names` are those of the inputs, as code. The results are fresh arrays. One session is attached from now on; calls
    from several threads take turns. PopXL has no loop without a bound, no float64, and prints in a form of its own: a
    program that has such a loop or such values, or prints, is evaluated equation by equation instead. Raises
    LoweringError and DeviceError.
    """
    if jaxpr.has_effect or jaxpr.has_float64 or has_unbounded_loop(jaxpr):
        return lambda arrays: [np.array(y) for y in jaxpr.eval(*arrays)]
    found = find_target(target)
    taken: Set[str] = set()
    signature = Signature(tuple(unique(identifier(name) or "arg", taken) for name in names), (),
                          tuple(unique(f"out_{i}", taken) for i in range(len(jaxpr.outputs))))
    built = build(jaxpr, signature, found, IO_TILES)
    session = found.module.Session(built.ir, found.device(None, jaxpr.name))
    session.__enter__()
    lock = threading.Lock()
    loads = [(i, stream) for i, stream in enumerate(built.loads) if stream is not None]
    unused = built.unused()
    transfers = built.transfers

    def call(arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
        feeds = {load.stream: load.fed(arrays[i], transfers) for i, load in loads}
        outputs = [np.empty(a.aval.shape, a.aval.dtype) for a in jaxpr.outputs]
        results = dict(unused)
        stores = [(store, x) for store, x in zip(built.stores, outputs) if store is not None]
        results.update((store.stream, store.place_for(x, transfers)) for store, x in stores)
        with lock:
            session.run_with_outputs(feeds, results)
        for store, x in stores:
            store.fetch(results[store.stream], x)
        return outputs
    return call
