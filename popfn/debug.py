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
from typing import Any, Iterator, Sequence

import numpy as np

from . import numpy as pnp
from .trace.errors import ArgumentError, NotFiniteError, Source, message, user_source
from .trace.primitive import Primitive, watchers
from .trace.prims.effects import Print
from .trace.tracer import bind


def print(template: str, *args: Any, **kwargs: Any) -> None:
    """Print `template.format(*args, **kwargs)` each time the program comes to this place, in the order of the program.

    The arguments are arrays and numbers. It works eagerly and under jit, grad (once, on the way forward), scan, cond
    and vmap: a line for each lane, none for lanes that do not take the branch. In a PopXL program it becomes
    `ops.print_tensor`, which has a form of its own. Raises ArgumentError if the template does not fit its arguments.
    """
    try:
        builtins.str.format(template, *(_Any() for _ in args), **{k: _Any() for k in kwargs})
    except (IndexError, KeyError, ValueError, TypeError) as e:
        raise ArgumentError(message(f"debug.print: the template does not fit its arguments: {type(e).__name__}: {e}",
                                    f"seen: {template!r} with {len(args)} arguments and keywords {list(kwargs)}",
                                    at=user_source(2))) from None
    bind(Print(template, tuple(kwargs)), [np.True_, *map(pnp.asarray, (*args, *kwargs.values()))])


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
