"""Docstrings: every public name has one, every example in one runs; the public names are written `x as x`."""
import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import popfn as pf

PACKAGE = Path(pf.__file__).parent
MODULES = [m.name for m in pkgutil.walk_packages([str(PACKAGE)], "popfn.") if not m.name.endswith("__main__")]
FILES = sorted(PACKAGE.rglob("*.py"))


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def public(names):
    return [n for n in names if not n.startswith("_")]


def is_setter(method):
    return any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in method.decorator_list)


def missing_docstrings(tree):
    """The public classes and functions of a module without a docstring, and the methods that do not inherit one.

    A function of one line that only returns a call is an alias, whose name says all; methods of a class with bases may
    have the base's docstring, which is looked at where the class is at hand.
    """
    found = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and public([node.name]):
            alias = isinstance(node, ast.FunctionDef) and len(node.body) == 1 and node.body[0].lineno == node.lineno
            if not ast.get_docstring(node) and not alias:
                found.append(node.name)
            if isinstance(node, ast.ClassDef) and not node.bases:
                found += [f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)
                          and public([m.name]) and not ast.get_docstring(m) and not is_setter(m)]
    return found


def plain_imports(tree):
    """Names that a module imports without `as`, or under another name, which type checkers take for private."""
    return [a.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
            for a in node.names if a.asname != a.name]


def test_popfn_was_found():
    assert len(MODULES) > 20 and {"popfn.api", "popfn.trace.tracer", "popfn.trace.prims.kinds"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    options = doctest.NORMALIZE_WHITESPACE if name.startswith("popfn.host") else 0
    runner, report = doctest.DocTestRunner(verbose=False, optionflags=options), []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert not report, "".join(report)


def test_the_public_functions_have_examples():
    """What a user calls first is shown in use, and the examples are found by the test above."""
    for f in (pf.grad, pf.value_and_grad, pf.jvp, pf.vjp, pf.linearize, pf.make_jaxpr, pf.eval_shape, pf.parse_jaxpr,
              pf.spec,
              pf.Array, pf.Aval, pf.tree.map, pf.tree.leaves, pf.tree.dataclass, pf.numpy, pf.nn):
        assert ">>> " in inspect.getdoc(f), f


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_docstrings(path):
    assert missing_docstrings(ast.parse(path.read_text())) == []


def surface():
    """The public objects as a user reaches them, with those of the public modules and classes."""
    out = {f"pf.{n}": getattr(pf, n) for n in public(dir(pf))}
    for module in (pf.numpy, pf.nn, pf.tree, pf.errors):
        out.update((f"{module.__name__}.{n}", v) for n, v in vars(module).items()
                   if public([n]) and str(getattr(v, "__module__", "")).startswith(module.__name__))
    for cls in [v for v in out.values() if inspect.isclass(v)]:
        out.update((f"{cls.__name__}.{n}", getattr(cls, n)) for n in public(dir(cls))
                   if callable(getattr(cls, n)) or isinstance(inspect.getattr_static(cls, n), property))
    return {n: v for n, v in out.items() if callable(v) or isinstance(v, property)}


def test_every_public_object_has_a_docstring():
    objects = surface()
    assert len(objects) > 150 and {"pf.grad", "popfn.numpy.matmul", "Array.reshape", "Jaxpr.check",
                                   "popfn.trace.tree.map"} <= set(objects)
    without = [n for n, v in objects.items() if not (inspect.getdoc(v) or "").strip()
               and not isinstance(v, type(pf.float32))]
    assert [n for n in without if getattr(objects[n], "__module__", "").startswith("popfn")] == []


def test_public_objects_know_their_names():
    """What help() and tracebacks show: no `f` or `wrapper` of a factory."""
    for module in (pf.numpy, pf.nn):
        for n, v in vars(module).items():
            if public([n]) and inspect.isfunction(v) and v.__module__.startswith(module.__name__):
                assert v.__name__ == v.__qualname__ == n


def test_public_names_are_written_as_themselves():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    assert plain_imports(tree) == []
    names = {a.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names}
    submodules = {m.name for m in pkgutil.iter_modules([str(PACKAGE)])}  # become attributes by being imported
    assert set(public(names)) <= set(dir(pf)) and set(public(dir(pf))) - set(names) <= submodules


# ---------------------------------------------------------------------------- these tests can fail
def test_missing_docstrings_are_found():
    tree = ast.parse("def f(x):\n    return x\n\ndef g(x): return f(x)\n\nclass A:\n    'Doc.'\n"
                     "    def m(self):\n        pass\n    def _n(self):\n        pass\n"
                     "    @m.setter\n    def s(self, x):\n        pass\n\n"
                     "class B(A):\n    def m(self):\n        pass\n\ndef _h():\n    pass\n")
    assert missing_docstrings(tree) == ["the module", "f", "A.m", "B"]


def test_plain_imports_are_found():
    assert plain_imports(ast.parse("from a import b\nimport c\nfrom d import e as e, f as g\n")) == ["b", "c", "f"]
