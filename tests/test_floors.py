"""The layout: no import goes up a floor, stands inside a function or closes a circle, and no file is long."""
import ast
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 600  # lines

# From the bottom up. A module stands on the floor of the longest name that it begins with, and imports from
# its own floor and those below. popfn.host stands beside them: it imports nothing else of popfn, and only
# TARGET imports it.
FLOORS = [
    ["popfn.trace"],
    ["popfn.trace.prims"],
    ["popfn.numpy", "popfn.nn", "popfn.random", "popfn.optim", "popfn.debug", "popfn._collectives", "popfn._indexing",
     "popfn._at", "popfn._operators", "popfn._promotion"],
    ["popfn.transforms"],
    ["popfn.lower"],
    ["popfn.api", "popfn._tracing", "popfn._compile", "popfn._static", "popfn._control", "popfn._vmap", "popfn._custom",
     "popfn._custom_call", "popfn._checkpoint", "popfn._derivatives", "popfn._axes", "popfn._remote", "popfn._batch",
     "popfn._phases", "popfn._memory", "popfn._shard", "popfn.distributed"],
    ["popfn"],
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
HOST, TARGET = "popfn.host", "popfn.lower.target"
SDK = {"popart", "poplar", "popxl"}
# Optional, and imported where they are used: libraries, and the module of ours that cannot do without JAX.
HEAVY = {"jax", "jaxlib", "matplotlib", "torch"}
NEEDS_HEAVY = {"popfn.host.engine.xla"}


class Import(NamedTuple):
    target: str
    line: int
    in_function: bool


def sources() -> Dict[str, str]:
    """The text of each file of popfn by its module's name, which for a package ends in `.__init__`."""
    files = sorted((ROOT / "popfn").rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts): f.read_text("utf-8") for f in files}


def imports(module: str, text: str, modules: Set[str]) -> List[Import]:
    """All that a module imports. `from package import x` imports `package.x` if that is a module."""

    def known(name: str) -> str:
        return f"{name}.__init__" if f"{name}.__init__" in modules else name

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(known(alias.name), node.lineno, in_function)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")[:-node.level] if node.level else []
            base = ".".join(parts + [node.module] * bool(node.module))
            for alias in node.names:
                name = known(f"{base}.{alias.name}")
                yield Import(name if name in modules else known(base), node.lineno, in_function)
        elif isinstance(node, ast.Call) and "import_" in ast.dump(node.func) and module != TARGET:
            yield Import("a module by its name", node.lineno, in_function)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))

    return list(visit(ast.parse(text), False))


def is_in(module: str, package: str) -> bool:
    return (module + ".").startswith(package + ".")


def level(module: str) -> int:
    return LEVEL[max((name for name in LEVEL if is_in(module, name)), key=len)]


def fault(module: str, found: Import) -> str:
    """What is wrong with an import, or nothing."""
    target = found.target
    if target == "a module by its name":
        return "use an import statement"
    if target.split(".")[0] in SDK and module != TARGET:
        return f"only {TARGET} imports the SDK"
    if found.in_function and target.split(".")[0] not in HEAVY and target not in NEEDS_HEAVY:
        return "inside a function"
    if not is_in(target, "popfn"):
        return ""
    if is_in(module, HOST):
        return "" if is_in(target, HOST) else "the host stands alone"
    if is_in(target, HOST):
        return "" if module == TARGET else f"only {TARGET} imports the host"
    return "goes up a floor" if level(target) > level(module) else ""


def circle(graph: Dict[str, List[str]]) -> List[str]:
    """A circle of modules that import one another, if there is one."""
    done: Set[str] = set()

    def walk(module: str, path: List[str]) -> List[str]:
        if module in path:
            return path[path.index(module):] + [module]
        if module not in done:
            for target in graph.get(module, []):
                found = walk(target, path + [module])
                if found:
                    return found
            done.add(module)
        return []

    return next((found for found in (walk(module, []) for module in graph) if found), [])


def faults(modules: Dict[str, str]) -> List[str]:
    graph = {name: imports(name, text, set(modules)) for name, text in modules.items()}
    found = [f"{name}:{i.line} imports {i.target}: {fault(name, i)}"
             for name, targets in graph.items() for i in targets if fault(name, i)]
    long = [f"{name} has {text.count(chr(10))} lines" for name, text in modules.items()
            if text.count("\n") > LONGEST]
    ring = circle({name: [i.target for i in targets] for name, targets in graph.items()})
    return found + long + ["a circle: " + " -> ".join(ring)] * bool(ring)


def test_the_layout_holds():
    modules = sources()
    assert {"popfn.__init__", "popfn.trace.aval"} <= modules.keys()
    assert faults(modules) == []


SOUND = {
    "popfn.__init__": "from .api import grad as grad\nfrom . import numpy as numpy\n",
    "popfn.api": "from . import nn\nfrom .lower.program import Program\nfrom .trace import prims\n",
    "popfn.nn": "from .numpy import mean\n",
    "popfn.numpy": "import numpy as np\nfrom .trace.prims.maths import add\n",
    "popfn.host.__init__": "from . import ops\n",
    "popfn.host.ops.__init__": "from .. import tensor\n",
    "popfn.host.tensor": "def torch_dtype():\n    import torch\n",
    "popfn.lower.program": "from ..transforms import jvp\nfrom .target import px\n",
    "popfn.lower.target": "import popfn.host\ndef find():\n    return importlib.import_module('popxl')\n",
    "popfn.trace.aval": "",
    "popfn.trace.prims.__init__": "from . import maths\n",
    "popfn.trace.prims.maths": "from ..aval import Aval\n",
    "popfn.transforms.jvp": "from ..trace.prims import add\nfrom popfn import numpy\n",
}
PLANTED = [
    ("popfn.trace.aval", "from .prims.maths import add",
     "1 imports popfn.trace.prims.maths: goes up a floor"),
    ("popfn.trace.aval", "from . import prims", "1 imports popfn.trace.prims.__init__: goes up a floor"),
    ("popfn.trace.aval", "from .. import Aval", "1 imports popfn.__init__: goes up a floor"),
    ("popfn.trace.prims.maths", "import popfn.nn", "1 imports popfn.nn: goes up a floor"),
    ("popfn.numpy", "from popfn.transforms.jvp import jvp",
     "1 imports popfn.transforms.jvp: goes up a floor"),
    ("popfn.transforms.jvp", "\nfrom popfn import api", "2 imports popfn.api: goes up a floor"),
    ("popfn.lower.program", "if TYPE_CHECKING:\n    from ..api import f",
     "2 imports popfn.api: goes up a floor"),
    ("popfn.lower.program", "from popfn.host import ops",
     "1 imports popfn.host.ops.__init__: only popfn.lower.target imports the host"),
    ("popfn.__init__", "from . import host",
     "1 imports popfn.host.__init__: only popfn.lower.target imports the host"),
    ("popfn.host.tensor", "from ..trace.aval import Aval",
     "1 imports popfn.trace.aval: the host stands alone"),
    ("popfn.host.tensor", "import popxl", "1 imports popxl: only popfn.lower.target imports the SDK"),
    ("popfn.lower.program", "from popart.ir import Ir",
     "1 imports popart.ir: only popfn.lower.target imports the SDK"),
    ("popfn.lower.program", "def f():\n    try:\n        import popxl.ops\n    except ImportError: ...",
     "3 imports popxl.ops: only popfn.lower.target imports the SDK"),
    ("popfn.api", "class A:\n    def f(self):\n        from .nn import gelu",
     "3 imports popfn.nn: inside a function"),
    ("popfn.api", "px = __import__('popxl')", "1 imports a module by its name: use an import statement"),
    ("popfn.api", "px = importlib.import_module('popxl')",
     "1 imports a module by its name: use an import statement"),
]


def test_a_sound_layout_has_no_faults():
    assert faults(SOUND) == []


@pytest.mark.parametrize("module, text, expected", PLANTED)
def test_a_planted_import_is_found(module, text, expected):
    assert f"{module}:{expected}" in faults({**SOUND, module: text})


def test_a_planted_circle_is_found():
    modules = {**SOUND, "popfn.numpy": "from .nn import relu"}
    assert faults(modules) == ["a circle: popfn.nn -> popfn.numpy -> popfn.nn"]


def test_a_planted_long_file_is_found():
    modules = {**SOUND, "popfn.nn": "x = 1\n" * 600, "popfn.trace.aval": "x = 1\n" * 601}
    assert faults(modules) == ["popfn.trace.aval has 601 lines"]


def test_importing_popfn_imports_no_heavy_library():
    code = f"import popfn, sys; print(sorted({HEAVY | SDK!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
    assert run.stdout.decode().strip() == "[]"
