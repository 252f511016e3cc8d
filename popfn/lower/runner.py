"""compile_flat: a jaxpr as a function of NumPy arrays, for `pf.jit` on concrete arguments."""
from __future__ import annotations

import threading
from typing import Callable, List, Sequence, Set

import numpy as np

from ..trace.aval import FLOAT8
from ..trace.jaxpr import Jaxpr
from ..transforms.loop import has_unbounded_loop
from .build import Signature, build, identifier, unique
from .target import find_target


def compile_flat(jaxpr: Jaxpr, names: Sequence[str], target: str = "host") -> Callable[[Sequence[np.ndarray]],
                                                                                      List[np.ndarray]]:
    """Lower and compile a jaxpr; the function returned takes arrays of exactly its inputs' types.

    `names` are those of the inputs, as code. The results are fresh arrays. One session is attached from now on; calls
    from several threads take turns. PopXL has no loop without a bound, and prints in a form of its own: a program that
    has such a loop, or prints, is evaluated equation by equation instead. Raises LoweringError and DeviceError.
    """
    if jaxpr.has_effect or has_unbounded_loop(jaxpr):
        return lambda arrays: [np.array(y) for y in jaxpr.eval(*arrays)]
    found = find_target(target)
    taken: Set[str] = set()
    signature = Signature(tuple(unique(identifier(name) or "arg", taken) for name in names), (),
                          tuple(unique(f"out_{i}", taken) for i in range(len(jaxpr.outputs))))
    built = build(jaxpr, signature, found)
    session = found.module.Session(built.ir, found.device(None, jaxpr.name))
    session.__enter__()
    lock = threading.Lock()
    # PopXL has structured dtypes for float8.
    loads = [(i, s, s.dtype.as_numpy() if v.aval.dtype in FLOAT8 else None)
             for i, (v, s) in enumerate(zip(jaxpr.inputs, built.loads)) if s is not None]
    stores = [(a.aval.shape, a.aval.dtype, s, s.dtype.as_numpy() if a.aval.dtype in FLOAT8 and s is not None else None)
              for a, s in zip(jaxpr.outputs, built.stores)]
    others = [s for s in built.ir.get_all_d2h_streams() if s not in built.stores]

    def call(arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
        feeds = {s: arrays[i] if view is None else arrays[i].view(view) for i, s, view in loads}
        outputs = []
        results = {s: np.empty(s.shape, s.dtype.as_numpy()) for s in others}
        for shape, dtype, s, view in stores:
            x = np.empty(shape, dtype)
            outputs.append(x)
            if s is not None:
                results[s] = x if view is None else x.view(view)
        with lock:
            session.run_with_outputs(feeds, results)
        return outputs
    return call
