"""Call: a jaxpr used as a function, so that what is written once becomes one sub-graph however often it is called."""
from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, List, Sequence, Tuple

import numpy as np

from ..trace.aval import Aval, Placement
from ..trace.errors import ShapeError
from ..trace.jaxpr import Jaxpr
from ..trace.primitive import Linear, MappedAxis, Zero
from ..trace.tracer import bind
from .bodies import HoldsJaxprs, at_home, guard, summed, unplaced, unsummed, varying
from .differentiate import jvp_jaxpr, linearize_jaxpr, moving_only, spread, transpose_jaxpr
from .vmap import batch_jaxpr


class Holder(HoldsJaxprs):
    """A primitive whose results are the outputs of its `jaxpr` for the operands; how it is transformed is its own."""

    jaxpr: Jaxpr
    multiple: ClassVar[bool] = True

    @property
    def jaxprs(self) -> Tuple[Jaxpr, ...]:
        """The jaxprs that become sub-graphs."""
        return (self.jaxpr,)

    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        want = self.jaxpr.in_avals
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
            raise ShapeError(f"{self.name}: {self.jaxpr.name or 'the jaxpr'} takes ({', '.join(map(str, want))}), "
                             f"got ({', '.join(map(str, avals))})")
        return self.jaxpr.out_avals

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        return [a.placement for a in self.jaxpr.in_avals]

    def eval(self, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        return self.jaxpr.eval(*arrays)

    @abc.abstractmethod
    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        """The results from one equation, their tangents from another."""

    def lower(self, px: Any, *tensors: Any, graphs: Sequence[Any] = ()) -> Any:
        return px.ops.call(graphs[0], *tensors)


class Routine(Holder):
    """A holder that stays what it is under all transforms, of the transformed jaxpr."""

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[Routine, List[Any]]:
        """The same without effects where the bool is False; see `bodies.guard`."""
        return self.of(guard(self.jaxpr)), [on, *operands]

    def widened(self, avals: Sequence[Aval]) -> Routine:
        return self.of(varying(self.jaxpr, avals))

    def of(self, jaxpr: Jaxpr) -> Routine:
        """The same of another jaxpr."""
        return dataclasses.replace(self, jaxpr=jaxpr)  # type: ignore[type-var]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = tuple(type(t) is not Zero for t in tangents)
        jaxpr, moves = jvp_jaxpr(self.jaxpr, mask)
        results = bind(self.of(jaxpr), [*primals, *moving_only(tangents)])
        n = len(moves)
        return results[:n], spread(results[n:], moves, self.jaxpr.out_avals)

    def transpose(self, ct: Sequence[Any], *args: Any) -> Tuple[Any, ...]:
        linear = tuple(type(x) is Linear for x in args)
        given = tuple(type(c) is not Zero for c in ct)
        jaxpr, moves = transpose_jaxpr(self.jaxpr, linear, given)
        every = (True,) * sum(moves)
        (jaxpr,), names = unsummed(unplaced([jaxpr], every), every)
        others = [x for x, on in zip(args, linear) if not on]
        got = iter(spread(summed(bind(self.of(jaxpr), others + moving_only(ct)), names), moves,
                          [x.aval for x, on in zip(args, linear) if on]))
        return tuple(at_home(next(got), x.aval) if on else None for x, on in zip(args, linear))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        jaxpr, out_dims = batch_jaxpr(self.jaxpr, axis, tuple(dims))
        return bind(self.of(jaxpr), args), out_dims


@dataclass(frozen=True)
class Call(Routine):
    """The outputs of a jaxpr for the operands, as a function is called."""

    jaxpr: Jaxpr
    name: ClassVar[str] = "call"

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = tuple(type(t) is not Zero for t in tangents)
        forward, linear, residuals, moves = linearize_jaxpr(self.jaxpr, mask)
        results = bind(Call(forward), primals)
        kept = [(primals if where == "input" else results)[i] for where, i in residuals]
        touts = bind(Call(linear), [*kept, *moving_only(tangents)])
        return results[:len(moves)], spread(touts, moves, self.jaxpr.out_avals)
