"""Run a PopXL script on this machine: `python -m popfn.host script.py arguments...`.

The script's `import popxl` gives popfn.host, and `import popart` the few names that PopXL programs use of it. Where
the Poplar SDK is installed, the script runs with that, unless the option --force comes before its name.
"""

import importlib.util
import os
import runpy
import sys
import types
from typing import Any, List

import popfn.host
from popfn.host.errors import popart_exception
from popfn.host.options import SessionOptions

USAGE = "usage: python -m popfn.host [--force] script.py [argument ...]"


def main(arguments: List[str]) -> int:
    """Run the script that the arguments name; return the exit status."""
    is_forced = arguments[:1] == ["--force"]
    arguments = arguments[1:] if is_forced else arguments
    if not arguments or arguments[0].startswith("-"):
        print(f"{USAGE}\n\n{__doc__}", file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    script = arguments[0]
    if not os.path.isfile(script):
        print(f"popfn.host: there is no file {script!r}.", file=sys.stderr)
        return 2
    if importlib.util.find_spec("popxl") is not None and not is_forced:
        print(
            "popfn.host: popxl is installed here, so the script runs with that; --force runs it with popfn.host.",
            file=sys.stderr,
        )
    else:
        install()
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


def install() -> None:
    """Let `import popxl` and `import popart` give the modules of popfn.host."""
    own = popfn.host.__name__
    for name, module in list(sys.modules.items()):
        if name == own or name.startswith(own + ".") and "._" not in name:
            sys.modules["popxl" + name[len(own) :]] = module
    sys.modules["popart"] = _popart()


def _popart() -> types.ModuleType:
    module = types.ModuleType("popart", "The names of PopART that PopXL programs use.")
    module.popart_exception = popart_exception  # type: ignore[attr-defined]
    module.SessionOptions = SessionOptions  # type: ignore[attr-defined]

    def missing(name: str) -> Any:
        raise AttributeError(
            f"popart.{name} is not available in popfn.host, which has PopXL and of PopART no more than "
            "popart_exception and SessionOptions."
        )

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
