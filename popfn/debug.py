"""popfn.debug: looking into a program while it runs.

>>> import popfn.numpy as pnp, popfn as pf
>>> def f(x):
...     y = pnp.exp(x)
...     pf.debug.print("exp({}) is {y}", x, y=y)
...     return y
>>> gradient = pf.grad(f)(0.0)
exp(0.0) is 1.0
"""
from __future__ import annotations

import builtins
import contextlib
import itertools
import re
import string
from typing import Any, Dict, Iterator, Sequence

import numpy as np

from . import numpy as pnp
from .trace import tree
from .trace.errors import ArgumentError, DtypeError, NotFiniteError, Source, message, user_source
from .trace.primitive import Primitive, watchers
from .trace.prims.effects import Print
from .trace.tracer import aval_of, bind


def print(template: str, *args: Any, **kwargs: Any) -> None:
    """Print `template.format(*args, **kwargs)` each time the program comes to this place, in the order of the program.

    The arguments are arrays, numbers and pytrees of them; a format holds for each leaf of a tree. It works eagerly and
    under jit, grad (once, on the way forward), scan, cond and vmap: a line for each lane, none for lanes that do not
    take the branch. In a PopXL program it becomes `ops.print_tensor`, which has a form of its own. Raises ArgumentError
    if the template does not fit its arguments, or leaves one of them out.

    >>> import popfn as pf
    >>> pf.debug.print("{params}, loss {:.2f}", 0.5, params={"w": pf.Array([1.0, 2.0]), "b": (3, None)})
    {'w': [1. 2.], 'b': (3, None)}, loss 0.50
    """
    if not isinstance(template, str):
        raise ArgumentError(message(f"debug.print takes a template first, got {type(template).__name__}",
                                    'way out: debug.print("x is {}", x)', at=user_source(2)))
    try:
        builtins.str.format(template, *(_Any() for _ in args), **{k: _Any() for k in kwargs})
    except (IndexError, KeyError, ValueError, TypeError) as e:
        raise _misfit(template, args, kwargs, e) from None
    used = set(_names(template, itertools.count()))
    for name, value in zip([*map(str, range(len(args))), *kwargs], (*args, *kwargs.values())):
        if name not in used:
            raise ArgumentError(message(f"debug.print: the template has no field for argument {name}",
                                        f"seen: {template!r}", at=user_source(2)))
        for x, path in zip(tree.leaves(value), tree.paths(tree.structure(value), name)):
            try:
                aval_of(x)
            except DtypeError as e:
                raise ArgumentError(message(f"debug.print: argument {path} is not an array: {e}",
                                            at=user_source(2))) from None
    leaves, keywords = [*args, *kwargs.values()], tuple(kwargs)
    if any(tree.structure(x).type is not None for x in leaves):  # there are trees
        leaves, structure = tree.flatten((args, kwargs))
        keywords = ()
        try:
            template = _by_leaf(template, *tree.unflatten(structure, map(_Leaf, range(len(leaves)))))
        except (LookupError, AttributeError) as e:
            raise _misfit(template, args, kwargs, e) from None
    bind(Print(template, keywords), [np.True_, *map(pnp.asarray, leaves)])


_MARK = "\0"


class _Leaf:
    """A leaf of a tree that is printed: its repr is a field, its number and what is asked of it, between marks."""

    def __init__(self, number: int, rest: str = "") -> None:
        self._number, self._rest = number, rest

    def __repr__(self) -> str:
        return f"{_MARK}{self._number}{self._rest}{_MARK}"

    def __getattr__(self, name: str) -> _Leaf:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Leaf(self._number, f"{self._rest}.{name}")

    def __getitem__(self, key: Any) -> _Leaf:
        return _Leaf(self._number, f"{self._rest}[{key}]")


def _by_leaf(template: str, args: Sequence[Any], kwargs: Dict[str, Any]) -> str:
    """A template of leaves, by their numbers, from one of trees of `_Leaf`."""
    formatter, numbers = string.Formatter(), itertools.count()

    def escaped(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    def written(template: str) -> str:
        out = []
        for text, field, spec, conversion in formatter.parse(template):
            out.append(escaped(text))
            if field is not None:
                if field[:1] in ("", ".", "["):
                    field = f"{next(numbers)}{field}"
                tail = (f"!{conversion}" if conversion else "") + (f":{written(spec)}" if spec else "")
                parts = str(formatter.get_field(field, args, kwargs)[0]).split(_MARK)
                out += [f"{{{part}{tail}}}" if i % 2 else escaped(part) for i, part in enumerate(parts)]
        return "".join(out)
    return written(template)


def _misfit(template: str, args: Sequence[Any], kwargs: Dict[str, Any], e: Exception) -> ArgumentError:
    return ArgumentError(message(f"debug.print: the template does not fit its arguments: {type(e).__name__}: {e}",
                                 f"seen: {template!r} with {len(args)} arguments and keywords {list(kwargs)}",
                                 at=user_source(3)))


def _names(template: str, numbers: Iterator[int]) -> Iterator[str]:
    """The arguments that a template has fields for, by number or keyword."""
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is not None:
            yield re.split(r"[.\[]", field)[0] or str(next(numbers))
            yield from _names(spec or "", numbers)


class _Any:
    """Something that every format takes."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getitem__(self, key: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return self


@contextlib.contextmanager
def nans(infs: bool = True) -> Iterator[None]:
    """Raise an error at the first operation that makes a NaN, or with `infs` an infinity, out of operands without one.

    NotFiniteError, an ArithmeticError, names the operation, the user's line and the ranges of the operands. Jitted
    functions are evaluated operation by operation inside; a pf.Session is not looked into. Rules of derivatives may
    make infinities that are multiplied by 0 afterwards: `infs=False` leaves those out.

    >>> import popfn.numpy as pnp
    >>> try:
    ...     with nans():
    ...         pnp.log(pnp.asarray([1.0, -1.0]))
    ... except NotFiniteError as error:
    ...     print(str(error).splitlines()[0])
    log made 1 NaN among 2 elements
    """
    def watch(primitive: Primitive, operands: Sequence[np.ndarray], results: Sequence[np.ndarray], source: Source,
              ) -> None:
        for y in results:
            bad = _fault(y, operands, infs)
            if bad:
                raise NotFiniteError(message(
                    f"{primitive.name} made {bad} among {y.size} elements", *(
                        f"operand {i}: {_range(x)}" for i, x in enumerate(operands)), at=source))
    watchers.append(watch)
    try:
        yield
    finally:
        watchers.remove(watch)


def _fault(y: np.ndarray, operands: Sequence[np.ndarray], infs: bool) -> str:
    """How many NaN or infinities there are in a result that has them, though no operand has."""
    for name, test in (("NaN", np.isnan), ("infinities", np.isinf))[:1 + infs]:
        if y.dtype.kind == "f" and test(y).any() and not any(x.dtype.kind == "f" and test(x).any() for x in operands):
            return f"{int(test(y).sum())} {name}"
    return ""


def _range(x: np.ndarray) -> str:
    """The type of an array and the range of its finite elements."""
    kind = f"{x.dtype.name}[{','.join(map(str, x.shape))}]"
    if x.dtype.kind not in "fiu" or not x.size:
        return kind
    finite = x[np.isfinite(x)]
    text = f"{kind} from {finite.min()} to {finite.max()}" if finite.size else f"{kind}, nothing finite"
    rest = [f"{n} {name}" for name, n in (("NaN", np.isnan(x).sum()), ("inf", np.isinf(x).sum())) if n]
    return ", ".join([text, *rest])
