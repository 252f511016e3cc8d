"""Shard: a jaxpr that every replica of a mesh runs on its part of global arrays.

The jaxpr works on local values, whose types say over which axes of the mesh they vary. The operands and results are
global arrays; a spec says for each of their axes over which axes of the mesh it is cut, the first one being the major
one. A value that does not vary is one and the same on all replicas, so that derivatives are those of the global
function: what comes back from the replicas is added up where one value was handed to them, and there alone.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, List, Sequence, Tuple

import numpy as np

from ..trace.aval import NO_AXES, Aval, AxisNames, Placement, Shape
from ..trace.errors import AxisError, LoweringError, ShapeError, located, message
from ..trace.jaxpr import Jaxpr
from ..trace.primitive import Linear, MappedAxis
from ..trace.prims import pvary, reshape, transpose
from ..trace.prims.shaping import to_front
from ..trace.tracer import Trace, aval_of, bind
from .accesses import written_by_some
from .bodies import (
    HoldsJaxprs,
    Mask,
    asks_lanes,
    behind,
    chosen,
    cut,
    guard,
    moving,
    others,
    rebuilt,
    reordered,
    varying,
)
from .cond import Cond
from .differentiate import jvp_jaxpr, linearize_jaxpr, moving_only, spread, transpose_jaxpr
from .loop import While
from .replay import checked, inline, sources, start_env, with_jaxprs
from .simplify import without_dead_code
from .vmap import batch_jaxpr

#: For each axis of an array the axes of the mesh over which it is cut; none for the axes behind.
Spec = Tuple[Tuple[str, ...], ...]
#: The axes of a mesh and their sizes, the outermost first.
Axes = Tuple[Tuple[str, int], ...]


def spec_names(spec: Spec) -> AxisNames:
    """The axes of the mesh that a spec names."""
    return frozenset(name for names in spec for name in names)


@dataclass(frozen=True)
class Shard(HoldsJaxprs):
    """The results of a jaxpr on the replicas of a mesh, for the parts of the operands; see the module."""

    jaxpr: Jaxpr
    mesh: Axes
    in_specs: Tuple[Spec, ...]
    out_specs: Tuple[Spec, ...]
    multiple: ClassVar[bool] = True

    @property
    def jaxprs(self) -> Tuple[Jaxpr, ...]:
        """The jaxprs it holds."""
        return (self.jaxpr,)

    @property
    def names(self) -> AxisNames:
        """The axes of the mesh."""
        return frozenset(name for name, _ in self.mesh)

    def uses_axis(self, name: str) -> bool:
        return name not in self.names and (self.jaxpr.uses_axis(name) or any(
            name in a.varying for a in (*self.jaxpr.in_avals, *self.jaxpr.out_avals)))

    # ------------------------------------------------------------------ types
    def whole(self, aval: Aval, spec: Spec) -> Aval:
        """The type of the global array for that of a part."""
        sizes = dict(self.mesh)
        shape = list(aval.shape)
        for k, names in enumerate(spec):
            shape[k] *= math.prod(sizes[name] for name in names)
        return aval.with_shape(tuple(shape)).over(aval.varying - self.names)

    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        want = [self.whole(a, spec) for a, spec in zip(self.jaxpr.in_avals, self.in_specs)]
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
            raise ShapeError(f"shard: {self.jaxpr.name or 'the function'} takes ({', '.join(map(str, want))}), "
                             f"got ({', '.join(map(str, avals))})")
        return tuple([self.whole(a, spec) for a, spec in zip(self.jaxpr.out_avals, self.out_specs)])

    def operand_placements(self, avals: Sequence[Aval]) -> Sequence[Placement]:
        return [(a.varying - self.names, a.memory) for a in self.jaxpr.in_avals]

    def widened(self, avals: Sequence[Aval]) -> Shard:
        return self.of(varying(self.jaxpr, avals), self.in_specs, self.out_specs)

    # ------------------------------------------------------------------ meaning
    def as_global(self) -> Jaxpr:
        """The same on global arrays: every replica's part along axes of its own."""
        key = "global", self.mesh, self.in_specs, self.out_specs
        found: Jaxpr = self.jaxpr.remember(key, lambda: global_form(self))
        return found

    def eval(self, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        return self.as_global().eval(*arrays)

    def lower(self, px: Any, *tensors: Any, graphs: Sequence[Any] = ()) -> Any:
        raise LoweringError("a sharded function is lowered by lower.replicas, which has not met this one")

    # ------------------------------------------------------------------ derivatives
    def of(self, jaxpr: Jaxpr, in_specs: Sequence[Spec], out_specs: Sequence[Spec]) -> Shard:
        """Another jaxpr on the same mesh."""
        return replace(self, jaxpr=jaxpr, in_specs=tuple(in_specs), out_specs=tuple(out_specs))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = moving(tangents)
        pushed, moves = jvp_jaxpr(self.jaxpr, mask)
        n = len(moves)
        shard = self.of(typed(pushed, [*self.jaxpr.out_avals, *chosen(self.jaxpr.out_avals, moves)]),
                        [*self.in_specs, *chosen(self.in_specs, mask)],
                        [*self.out_specs, *chosen(self.out_specs, moves)])
        results = bind(shard, [*primals, *moving_only(tangents)])
        return results[:n], spread(results[n:], moves, [aval_of(y) for y in results[:n]])

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        mask = moving(tangents)
        split = linearize_jaxpr(self.jaxpr, mask)
        n = len(split.moves)
        kept = split.forward.out_avals[n:]
        specs = [self.stacked_spec(a) for a in kept]
        forward = self.of(stacking(split.forward, n, specs), self.in_specs, [*self.out_specs, *specs])
        results = bind(forward, primals)
        values, value_specs, given = [], [], []
        for where, i in split.residuals:
            values.append(primals[i] if where == "input" else results[i])
            value_specs.append(self.in_specs[i] if where == "input" else [*self.out_specs, *specs][i])
            given.append(where == "output" and i >= n and bool(value_specs[-1]))
        linear = self.of(typed(unstacking(split.linear, given), chosen(self.jaxpr.out_avals, split.moves)),
                         [*value_specs, *chosen(self.in_specs, mask)], chosen(self.out_specs, split.moves))
        touts = bind(linear, [*values, *moving_only(tangents)])
        return results[:n], spread(touts, split.moves, [aval_of(y) for y in results[:n]])

    def stacked_spec(self, aval: Aval) -> Spec:
        """The spec of a residual: cut over the axes over which it varies along a new first axis, if it varies."""
        names = tuple([name for name, _ in self.mesh if name in aval.varying])
        return (names,) if names else ()

    def transpose(self, ct: Sequence[Any], *args: Any) -> Tuple[Any, ...]:
        linear = tuple(type(x) is Linear for x in args)
        program, moves = transpose_jaxpr(self.jaxpr, linear, moving(ct))
        wanted = chosen(self.jaxpr.in_avals, linear)
        specs = chosen(chosen(self.in_specs, linear), moves)
        shard = self.of(typed(program, chosen(wanted, moves)),
                        [*others(self.in_specs, linear), *chosen(self.out_specs, moving(ct))], specs)
        got = iter(spread(bind(shard, [*others(args, linear), *moving_only(ct)]), moves,
                          [x.aval for x in chosen(args, linear)]))
        return tuple([next(got) if on else None for on in linear])

    # ------------------------------------------------------------------ vmap
    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        args = [x if d is None else to_front(x, d) for x, d in zip(args, dims)]
        mapped: Mask = tuple(d is not None for d in dims)
        every = tuple([0 if on else None for on in mapped])
        out_dims = batch_jaxpr(self.jaxpr, axis, every).dims
        has = tuple(d is not None for d in out_dims)
        body = batch_jaxpr(self.jaxpr, axis, every, has).jaxpr
        shard = self.of(body, [((), *spec) if on else spec for spec, on in zip(self.in_specs, mapped)],
                        [((), *spec) if on else spec for spec, on in zip(self.out_specs, has)])
        return bind(shard, args), tuple([0 if on else None for on in has])

    def pruned(self, used: Sequence[bool]) -> Tuple[Shard, Mask, Mask]:
        """The shard that gives only the results in the mask; also which operands it takes and results it gives."""
        outs = tuple(used)
        ins = behind(self.jaxpr, outs)
        if all(ins) and all(outs):
            return self, ins, outs
        body = reordered(self.jaxpr, chosen(self.jaxpr.inputs, ins), chosen(self.jaxpr.outputs, outs))
        return self.of(without_dead_code(body), chosen(self.in_specs, ins), chosen(self.out_specs, outs)), ins, outs

    def guarded(self, on: Any, operands: Sequence[Any]) -> Tuple[Shard, List[Any]]:
        """The same without effects where the bool is False; see `bodies.guard`."""
        return self.of(guard(self.jaxpr), [(), *self.in_specs], self.out_specs), [on, *operands]


def check_meetings(jaxpr: Jaxpr, names: AxisNames) -> None:
    """Raise AxisError if replicas meet, or write what is one for all, where only some of them may get."""
    for eqn in jaxpr.eqns:
        primitive: Any = eqn.primitive
        if isinstance(primitive, Cond):
            varies, kind, place = eqn.inputs[0].aval.varying, "cond", "a branch"
        elif isinstance(primitive, While):
            varies, kind, place = primitive.cond.out_avals[0].varying, "while", "a loop"
        else:
            varies, kind, place = NO_AXES, "", ""
        held = getattr(primitive, "jaxprs", ())
        for name in sorted(varies & names):
            if any(asks_lanes(j, name) for j in held):
                raise located(AxisError(message(
                    f"{kind}: replicas meet in {place} over axis {name!r}, while it depends on the replica whether "
                    "they get there", "way out: use the collective outside, and pass what it gives")), eqn.source)
            for text in written_by_some(kind, place, held, name):
                raise located(AxisError(text), eqn.source)
        for j in held:
            check_meetings(j, names)


# ---------------------------------------------------------------------------- bodies
def typed(jaxpr: Jaxpr, avals: Sequence[Aval]) -> Jaxpr:
    """The jaxpr with outputs that vary over the axes of these types."""
    if all(a.varying == want.varying for a, want in zip(jaxpr.out_avals, avals)):
        return jaxpr
    return rebuilt(jaxpr.name, jaxpr.in_avals, lambda *args: [
        pvary(y, want.varying) for y, want in zip(inline(jaxpr, args), avals)])


def stacking(jaxpr: Jaxpr, count: int, specs: Sequence[Spec]) -> Jaxpr:
    """The jaxpr, whose outputs behind the first ones get a first axis of size 1 where a spec cuts it."""
    if not any(specs):
        return jaxpr

    def f(*args: Any) -> Sequence[Any]:
        outs = inline(jaxpr, args)
        return outs[:count] + [reshape(y, (1, *aval_of(y).shape)) if spec else y
                               for y, spec in zip(outs[count:], specs)]
    return rebuilt(jaxpr.name, jaxpr.in_avals, f)


def unstacking(jaxpr: Jaxpr, given: Sequence[bool]) -> Jaxpr:
    """The jaxpr, whose first inputs have a first axis of size 1 where the mask says so."""
    if not any(given):
        return jaxpr
    avals = [a.with_shape((1, *a.shape)) if on else a for a, on in zip(jaxpr.in_avals, given)]

    def f(*args: Any) -> Sequence[Any]:
        values, rest = cut(args, len(given))
        return inline(jaxpr, [*(reshape(x, aval_of(x).shape[1:]) if on else x for x, on in zip(values, given)), *rest])
    return rebuilt(jaxpr.name, [*avals, *jaxpr.in_avals[len(given):]], f)


# ---------------------------------------------------------------------------- one program for all replicas
def global_form(shard: Shard) -> Jaxpr:
    """The jaxpr of global arrays that a shard is: mapped over the axes of its mesh."""
    body = shard.jaxpr
    names = [spec_names(spec) for spec in shard.in_specs]
    out_names = [spec_names(spec) for spec in shard.out_specs]
    for name, size in reversed(shard.mesh):
        dims = tuple([0 if name in own else None for own in names])
        in_front = tuple(name in own for own in out_names)
        body = batch_jaxpr(body, MappedAxis(size, name), dims, in_front).jaxpr

    def f(*args: Any) -> Sequence[Any]:
        parts = [in_parts(x, spec, shard.mesh) for x, spec in zip(args, shard.in_specs)]
        return [in_one(y, spec, shard.mesh) for y, spec in zip(inline(body, parts), shard.out_specs)]
    whole = [shard.whole(a, spec) for a, spec in zip(shard.jaxpr.in_avals, shard.in_specs)]
    return rebuilt(shard.jaxpr.name, whole, f)


def in_parts(x: Any, spec: Spec, mesh: Axes) -> Any:
    """A global array with an axis for each axis of the mesh over which it is cut, in front and in the mesh's order."""
    shape, order = axes_in_front(aval_of(x).shape, spec, mesh)
    return transpose(reshape(x, shape), order) if spec_names(spec) else x


def in_one(x: Any, spec: Spec, mesh: Axes) -> Any:
    """The global array of parts that lie along axes of the mesh in front: the reverse of `in_parts`."""
    order, whole = axes_in_place(aval_of(x).shape, spec, mesh)
    return reshape(transpose(x, order), whole) if spec_names(spec) else x


def axes_in_front(shape: Shape, spec: Spec, mesh: Axes) -> Tuple[Shape, Shape]:
    """How a global array becomes parts: the shape with axes of the mesh apart, and the order with them in front."""
    sizes = dict(mesh)
    apart: List[int] = []
    places: Dict[str, int] = {}
    rest: List[int] = []
    for k, n in enumerate(shape):
        for name in spec[k] if k < len(spec) else ():
            places[name] = len(apart)
            apart.append(sizes[name])
            n //= sizes[name]
        rest.append(len(apart))
        apart.append(n)
    return tuple(apart), (*[places[name] for name, _ in mesh if name in places], *rest)


def axes_in_place(shape: Shape, spec: Spec, mesh: Axes) -> Tuple[Shape, Shape]:
    """How parts with axes of the mesh in front become the global array: the order of axes, and then the shape."""
    own = [name for name, _ in mesh if name in spec_names(spec)]
    order: List[int] = []
    whole: List[int] = []
    for k, n in enumerate(shape[len(own):]):
        names = spec[k] if k < len(spec) else ()
        order += [own.index(name) for name in names] + [len(own) + k]
        whole.append(n * math.prod(shape[own.index(name)] for name in names))
    return tuple(order), tuple(whole)


def without_meshes(jaxpr: Jaxpr) -> Jaxpr:
    """The program with sharded functions on global arrays, in the jaxprs that it holds too; remembered."""
    def make() -> Jaxpr:
        if not has_mesh(jaxpr):
            return jaxpr
        with Trace(jaxpr.name) as trace, sources(trace):
            env: Dict[Any, Any] = start_env(jaxpr, trace.add_inputs(jaxpr.in_avals))
            for eqn in jaxpr.eqns:
                trace.source = eqn.source
                operands = [env.get(a, a) for a in eqn.inputs]
                if isinstance(eqn.primitive, Shard):
                    results: Sequence[Any] = inline(without_meshes(eqn.primitive.as_global()), operands)
                else:
                    out = bind(with_jaxprs(eqn.primitive, without_meshes), operands)
                    results = out if eqn.primitive.multiple else (out,)
                env.update(zip(eqn.outputs, results))
            return checked(without_dead_code(trace.finish([env.get(a, a) for a in jaxpr.outputs])))
    found: Jaxpr = jaxpr.remember("without meshes", make)
    return found


def has_mesh(jaxpr: Jaxpr) -> bool:
    """Whether a sharded function is in a program, or in a jaxpr that it holds."""
    found: bool = jaxpr.remember("has mesh", lambda: any(
        isinstance(eqn.primitive, Shard) or any(map(has_mesh, getattr(eqn.primitive, "jaxprs", ())))
        for eqn in jaxpr.eqns))
    return found
