"""Call: a jaxpr used as a function, so that what is written once becomes one sub-graph however often it is called."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Sequence, Tuple

import numpy as np

from ..trace.aval import Aval, AxisNames
from ..trace.errors import ShapeError
from ..trace.jaxpr import Jaxpr
from ..trace.primitive import MIXED, Linear, MappedAxis, Primitive, Zero
from ..trace.tracer import bind
from .differentiate import jvp_jaxpr, linearize_jaxpr, moving_only, transpose_jaxpr
from .vmap import batch_jaxpr


@dataclass(frozen=True)
class Call(Primitive):
    """The outputs of a jaxpr for the operands. All transforms of it are calls again, of the transformed jaxpr."""

    jaxpr: Jaxpr
    name: ClassVar[str] = "call"
    multiple: ClassVar[bool] = True

    @property
    def jaxprs(self) -> Tuple[Jaxpr, ...]:
        """The jaxprs that become sub-graphs."""
        return (self.jaxpr,)

    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        want = self.jaxpr.in_avals
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
            raise ShapeError(f"call: {self.jaxpr.name or 'the jaxpr'} takes ({', '.join(map(str, want))}), "
                             f"got ({', '.join(map(str, avals))})")
        return self.jaxpr.out_avals

    def operand_axes(self, avals: Sequence[Aval]) -> Sequence[AxisNames]:
        return [a.varying for a in self.jaxpr.in_avals]

    def typed(self, avals: Tuple[Aval, ...]) -> Any:
        out = self.abstract(*avals)
        return out if [a.varying for a in avals] == self.operand_axes(avals) else MIXED

    def eval(self, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        return self.jaxpr.eval(*arrays)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = tuple(type(t) is not Zero for t in tangents)
        jaxpr, moves = jvp_jaxpr(self.jaxpr, mask)
        results = bind(Call(jaxpr), [*primals, *moving_only(tangents)])
        n = len(moves)
        return results[:n], spread(results[n:], moves, self.jaxpr.out_avals)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = tuple(type(t) is not Zero for t in tangents)
        forward, linear, residuals, moves = linearize_jaxpr(self.jaxpr, mask)
        results = bind(Call(forward), primals)
        kept = [(primals if where == "input" else results)[i] for where, i in residuals]
        touts = bind(Call(linear), [*kept, *moving_only(tangents)])
        return results[:len(moves)], spread(touts, moves, self.jaxpr.out_avals)

    def transpose(self, ct: Sequence[Any], *args: Any) -> Tuple[Any, ...]:
        linear = tuple(type(x) is Linear for x in args)
        given = tuple(type(c) is not Zero for c in ct)
        jaxpr, moves = transpose_jaxpr(self.jaxpr, linear, given)
        others = [x for x, on in zip(args, linear) if not on]
        got = iter(spread(bind(Call(jaxpr), others + moving_only(ct)), moves,
                          [x.aval for x, on in zip(args, linear) if on]))
        return tuple(next(got) if on else None for on in linear)

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        jaxpr, out_dims = batch_jaxpr(self.jaxpr, axis, tuple(dims))
        return bind(Call(jaxpr), args), out_dims

    def uses_axis(self, name: str) -> bool:
        return self.jaxpr.uses_axis(name)

    def lower(self, px: Any, *tensors: Any, graphs: Sequence[Any] = ()) -> Any:
        return px.ops.call(graphs[0], *tensors)


def spread(values: Sequence[Any], mask: Sequence[bool], avals: Sequence[Aval]) -> Tuple[Any, ...]:
    """The values at the places in the mask, Zero at the others."""
    rest = iter(values)
    return tuple(next(rest) if on else Zero(a) for on, a in zip(mask, avals))
