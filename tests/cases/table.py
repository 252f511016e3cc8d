"""The table that drives the rule tests: primitive x shapes x dtypes x parameters, and the values where rules break.

A row is a primitive with concrete operands. `kind` says how far its derivative is looked at:

* "smooth": the operands lie in a domain where the function is smooth; the derivative is compared with differences;
* "edge": ties, kinks, infinities, NaN: forward and reverse mode are compared with each other only;
* "values": no derivative is looked at.
"""
import itertools
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from popfn.trace.aval import BY_NAME, Aval
from popfn.trace.parse import primitives
from popfn.trace.primitive import Primitive
from popfn.transforms import call

assert call  # defines a primitive
P = SimpleNamespace(**{cls.__name__: cls for cls in primitives().values()})
inf, nan = np.inf, np.nan


class Case(NamedTuple):
    """One row of the table."""

    primitive: Primitive
    operands: Tuple[np.ndarray, ...]
    avals: Tuple[Aval, ...]
    kind: str
    number: int

    @property
    def name(self) -> str:
        """The row's name in reports: the primitive, the operands' types, and the row's number."""
        return f"{self.number}-{self.primitive.name}-{'-'.join(map(str, self.avals))}-{self.kind}"


def made(text: str, i: int) -> np.ndarray:
    """Operand number i for `f32[2,3]`, or `f32[2,3] 0.5:4` with a range: distinct values, spread evenly and shuffled.

    Operands of different numbers lie at different places of the range, so that no two elements are equal.
    """
    kind, _, limits = text.partition(" ")
    name, _, sizes = kind.rstrip("]").partition("[")
    shape = tuple(int(n) for n in sizes.split(",") if n)
    dtype = BY_NAME[name.lstrip("~")]
    n = int(np.prod(shape, dtype=int))
    order = np.argsort([(k * 0.6180339887 + 0.29 * i) % 1 for k in range(n)], kind="stable")
    if dtype.kind == "b":
        return (order % 2 == 0).reshape(shape)
    low, high = map(float, limits.split(":")) if limits else (0, 6) if dtype.kind == "u" else (-2, 2)
    places = low + (high - low) * (order + (0.37, 0.61, 0.83, 0.19, 0.47, 0.71)[i]) / max(n, 1)
    values = np.floor(low + order % max(high - low, 1)) if dtype.kind in "iu" else places
    return values.astype(np.float32).astype(dtype).reshape(shape)


def grid(values: Sequence[Any], dtype: str) -> List[np.ndarray]:
    """Two operands that together hold all pairs of the values."""
    pairs = np.array(list(itertools.product(values, repeat=2)), BY_NAME[dtype])
    return [pairs[:, 0], pairs[:, 1]]


CASES: List[Case] = []

#: The sets of operands in which a primitive with a transpose rule is linear, up to a constant.
LINEAR: Dict[str, List[Tuple[int, ...]]] = {}
#: Units in the last place that chains of roundings may cost; 4 where nothing is said.
ULPS: Dict[str, float] = {}


def row(primitive: Primitive, *operands: Union[str, np.ndarray], kind: str = "smooth") -> None:
    """Add a row; an operand is data or the type to make some of (`~f32[]` is a weak scalar)."""
    data = tuple(made(x, i) if isinstance(x, str) else np.asarray(x) for i, x in enumerate(operands))
    weak = [isinstance(x, str) and x.startswith("~") for x in operands]
    avals = tuple(Aval(x.shape, x.dtype, w) for x, w in zip(data, weak))
    CASES.append(Case(primitive, data, avals, kind, len(CASES)))


def values(primitive: Primitive, data: Any, dtype: str, kind: str = "edge") -> None:
    """Add a row with one operand, given value by value."""
    row(primitive, np.array(data, np.float32 if BY_NAME[dtype].kind == "f" else None).astype(BY_NAME[dtype]), kind=kind)
