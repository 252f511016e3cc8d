"""The kernels stand beside their ops: each in the one table of the module whose function makes its kind."""
import ast
import inspect
import pathlib
import re
import sys
from collections import Counter

import pytest

import popfn.host
from popfn.host import ops
from popfn.host.engine.kernels import FAMILIES, KERNELS
from popfn.host.kernels.kernel import Kernel

HOST = pathlib.Path(popfn.host.__file__).parent
# Public functions without a kind of their own name: they make ops of other kinds, or none.
COMPOSITES = {
    "all_reduce_identical_grad_inputs",
    "all_reduce_identical_inputs",
    "call_with_info",
    "conditional_with_info",
    "flatten",
    "flatten_",
    "layer_norm",
    "log2",
    "repeat_with_info",
    "split_random_seed",
    "squeeze",
    "tied_gather",
    "weight_decay_is_required",
}
# Kinds that the engines rewrite as ops of other kinds, see `engine.collectives`.
REWRITTEN = {
    "replica_sharded_slice",
    "replicated_all_gather",
    "replicated_all_reduce",
    "replicated_all_reduce_",
    "replicated_reduce_scatter",
    "replicated_slice",
}
# Kinds that functions of other names make, and these functions.
MADE_BY = {"modify_random_seed": "create_random_seed"}
# In-place kinds that write nothing: they are views.
VIEWS = {"concat_", "detach_", "reshape_", "slice_", "transpose_"}
# In-place twins that the tests of numbers name by their originals and "_".
BY_THEIR_ORIGINALS = {"detach_", "exp_", "gelu_", "geluerf_", "relu_", "swish_"}


def functions():
    """The public functions of the ops by their names."""
    found = [f for module in (ops, ops.collectives) for name, f in vars(module).items() if not name.startswith("_")]
    found += [f for f in vars(ops.var_updates).values() if getattr(f, "__module__", "") == ops.var_updates.__name__]
    found += [ops._indexing.grouped_scatter_reduce, ops._random.create_random_seed]
    return {f.__name__: f for f in found if inspect.isfunction(f) and not f.__name__.startswith("_")}


FUNCTIONS = functions()
OWN = sorted(set(FUNCTIONS) - COMPOSITES - REWRITTEN)


def table_of(name):
    return getattr(sys.modules[name], "KERNELS", {})


def misplaced(kind, home):
    """The functions of a kernel that stand neither in the module `home` nor among those that families share."""
    kernel = table_of(home)[kind]
    parts = [part for part in (kernel.value, kernel.emit, kernel.view) if part is not None]
    return [f for f in parts if f.__module__ != home and not f.__module__.startswith("popfn.host.kernels.")]


def imported(path):
    """The modules that a file imports, and what it imports from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_functions_are_found():
    assert len(OWN) > 120
    assert COMPOSITES | REWRITTEN <= set(FUNCTIONS)
    assert {"gelu", "gelu_", "adam_updater", "all_reduce", "host_load", "repeat"} <= set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_the_kernel_of_a_function_stands_in_its_module(name):
    function = FUNCTIONS[name]
    kind = {made_by: kind for kind, made_by in MADE_BY.items()}.get(name, name)
    assert kind in table_of(function.__module__), f"{function.__module__} has no kernel for {kind}"
    assert misplaced(kind, function.__module__) == []


def test_composites_have_no_kernel():
    assert not (COMPOSITES | REWRITTEN) & set(KERNELS)


def test_each_kind_stands_in_one_table():
    counts = Counter(kind for family in FAMILIES for kind in family.KERNELS)
    assert [kind for kind, count in counts.items() if count > 1] == []
    assert set(KERNELS) == set(counts)


def test_each_table_is_merged():
    names = {name for name, module in sys.modules.items() if name.startswith(ops.__name__) and table_of(name)}
    assert names == {family.__name__ for family in FAMILIES}
    files = {p.stem for p in (HOST / "ops").glob("*.py") if re.search("^KERNELS\\b", p.read_text("utf-8"), re.M)}
    assert files == {family.__name__.rpartition(".")[2] for family in FAMILIES}


def test_each_kind_has_a_function():
    assert {MADE_BY.get(kind, kind) for kind in KERNELS} == set(OWN)


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_what_writes_says_so(kind):
    in_place = kind.endswith("_") or kind == "adam_var_update"
    assert KERNELS[kind].writes == (in_place and kind not in VIEWS)


def test_each_kind_is_tested():
    here = pathlib.Path(__file__)
    files = {*here.parent.glob("test_engine_*.py"), *here.parent.glob("test_kernels_*.py")} - {here}
    words = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in files)))
    assert {MADE_BY.get(kind, kind) for kind in KERNELS} - words == {"create_random_seed"} | BY_THEIR_ORIGINALS
    assert "split_random_seed" in words  # makes seeds by create_random_seed


def test_the_floors_of_the_host():
    """Kernels are made of dtypes and NumPy, ops of kernels, and engines of both."""
    for path in (HOST / "kernels").glob("*.py"):
        assert all(name.startswith(("numpy", "typing.", "popfn.host.kernels.", "popfn.host.dtypes"))
                   for name in imported(path)), path
    for path in [*(HOST / "kernels").glob("*.py"), *(HOST / "ops").glob("*.py"), *(HOST / "gradients").glob("*.py")]:
        assert not [name for name in imported(path) if "popfn.host.engine" in name], path


# ---------------------------------------------------------------------------- these tests can fail
def test_a_kernel_in_another_module_is_found(monkeypatch):
    home = ops._activations
    monkeypatch.setitem(home.KERNELS, "tanh", Kernel(ops._elementwise._sign_value))
    assert misplaced("tanh", home.__name__) == [ops._elementwise._sign_value]
    assert misplaced("gelu", home.__name__) == []


def test_imports_are_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import numpy as np\ndef f():\n    from popfn.host.engine import plan\n")
    assert imported(path) == {"numpy", "popfn.host.engine.plan"}
