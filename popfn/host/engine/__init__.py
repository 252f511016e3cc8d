"""The engines: each compiles an Ir and runs it. `numpy` starts at once, `xla` computes faster."""

import os
from typing import Any, Optional

from popfn.host.engine import compile

ENGINES = ("numpy", "xla")


def compile_program(ir: Any, engine: Optional[str] = None) -> Any:
    """Compile the main graph of an Ir and the graphs that it calls.

    Args:
        ir: The program.
        engine: "numpy" or "xla"; by default what the environment variable POPFN_ENGINE says, or else "numpy".

    Raises:
        ValueError: If there is no such engine.
        ImportError: If the engine is "xla" and JAX is not installed.
        NotImplementedError: If there is no kernel for an op.
        popart_exception: If something is written through a `concat_` of tensors that share elements.
    """
    name = engine or os.environ.get("POPFN_ENGINE") or "numpy"
    if name == "numpy":
        return compile.compile_program(ir)
    if name != "xla":
        where = "" if engine else " (from the environment variable POPFN_ENGINE)"
        raise ValueError("there is no engine {!r}{}: use one of {}.".format(name, where, ", ".join(ENGINES)))
    try:
        from popfn.host.engine import xla
    except ImportError as error:
        if not (error.name or "").startswith("jax"):
            raise
        raise ImportError(
            f'the engine "xla" needs JAX, which cannot be imported ({error}): run `pip install "popfn[xla]"`, or unset '
            "POPFN_ENGINE to run on NumPy."
        ) from error
    return xla.compile_program(ir)
