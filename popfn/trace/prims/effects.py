"""What a program does besides computing its results. An effect is never left out, merged or moved past another one."""
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar, Sequence, Tuple

import numpy as np

from ..aval import Aval, bool_
from ..errors import DtypeError, ShapeError
from ..primitive import MappedAxis, Primitive
from ..tracer import bind
from .binary import and_
from .shaping import Dims, in_lanes


@dataclass(frozen=True)
class Print(Primitive):
    """A line, `template.format(...)` of the operands after the first one, where that, a bool, is True.

    The last operands are the template's keywords. Operands have `lanes` leading axes, those of vmap; there is a line
    for each lane, in their order.
    """

    template: str
    keywords: Tuple[str, ...] = ()
    lanes: int = 0
    multiple: ClassVar[bool] = True
    has_effect: ClassVar[bool] = True

    def abstract(self, on: Aval, *xs: Aval) -> Tuple[Aval, ...]:
        if on.dtype != bool_ or on.ndim != self.lanes:
            raise DtypeError(f"print: the condition is a bool for each lane, got {on}")
        if any(x.shape[:self.lanes] != on.shape for x in xs):
            raise ShapeError(f"print: operands have the lanes of {on}, got {', '.join(map(str, xs))}")
        return ()

    def eval(self, on: np.ndarray, *xs: np.ndarray) -> Tuple[np.ndarray, ...]:
        count = len(xs) - len(self.keywords)
        for lane in itertools.product(*map(range, on.shape)):
            if on[lane]:
                values = [x[lane] for x in xs]
                print(self.template.format(*values[:count], **dict(zip(self.keywords, values[count:]))))
        return ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        return bind(self, primals), ()

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Dims) -> Tuple[Any, Any]:
        lanes = [in_lanes(x, d, axis) for x, d in zip(args, dims)]
        return bind(Print(self.template, self.keywords, self.lanes + 1), lanes), ()

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[Print, Sequence[Any]]:
        """The same where one more bool is True too."""
        return self, [and_(on, operands[0]), *operands[1:]]

    def lower(self, px: Any, on: Any, *xs: Any) -> Any:
        """PopXL prints whole tensors in a form of its own, whatever the condition; the template becomes the title.

        It gives back the tensors, which the program has to go on with: what is printed and not used is not printed.
        """
        return (on, *(px.ops.print_tensor(x, self.template) for x in xs))
