"""From a program of global arrays to the program that each replica of a mesh runs on its parts of them.

Sharded functions say how their operands and results are cut. What stands between them is done on parts where that is
the same, elementwise, and otherwise on whole arrays, which are gathered for it. A loop, a branch or a function that is
called takes parts as they are.
"""
from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..trace.aval import Aval, AxisNames
from ..trace.errors import LoweringError, located, message
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.prims import all_gather, own_slice, place, reshape
from ..trace.prims.kinds import Elementwise
from ..trace.prims.memory import Place
from ..trace.tracer import Trace, aval_of, bind
from ..transforms.bodies import HoldsJaxprs
from ..transforms.call import Routine
from ..transforms.cond import Cond
from ..transforms.loop import While
from ..transforms.replay import checked, constant_arrays, inline, sources
from ..transforms.scan import Scan
from ..transforms.shard import Axes, Shard, Spec, axes_in_front, axes_in_place, has_mesh, spec_names, without_meshes
from ..transforms.simplify import without_dead_code

WHOLE: Spec = ()


class Localised(NamedTuple):
    """The program of a replica, and how the arrays that it takes and gives are cut over the mesh."""

    jaxpr: Jaxpr
    in_specs: Tuple[Spec, ...]
    out_specs: Tuple[Spec, ...]
    mesh: Axes


def localised(jaxpr: Jaxpr, state: Sequence[int]) -> Localised:
    """The program of each replica. New state is cut as the old one is, which `state` numbers.

    Raises LoweringError if sharded functions have different meshes.
    """
    meshes: Dict[Axes, Eqn] = {}
    find_meshes(jaxpr, meshes)
    if not meshes:
        return Localised(jaxpr, (WHOLE,) * len(jaxpr.inputs), (WHOLE,) * len(jaxpr.outputs), ())
    (mesh, _), *others = meshes.items()
    if math.prod(size for _, size in mesh) == 1 and not others:
        return localised(without_meshes(jaxpr), state)
    for other, eqn in others:
        raise located(LoweringError(message(
            f"a program is lowered for one mesh, but functions are sharded over {mesh_text(mesh)} and "
            f"{mesh_text(other)}", "way out: one mesh with all of the axes")), eqn.source)
    specs = [first_spec(jaxpr, v) or WHOLE for v in jaxpr.inputs]
    wanted: List[Optional[Spec]] = [specs[i] for i in state]
    local, out_specs = _Localising(mesh).jaxpr(jaxpr, specs, [*wanted, *[None] * (len(jaxpr.outputs) - len(state))])
    return Localised(local, tuple([without_ones(s, mesh) for s in specs]), tuple([
        without_ones(s, mesh) for s in out_specs]), mesh)


def without_ones(spec: Spec, mesh: Axes) -> Spec:
    """How an array is really cut: axes of one replica do not cut it."""
    sizes = dict(mesh)
    cut = [tuple([name for name in names if sizes[name] > 1]) for names in spec]
    return tuple(cut) if any(cut) else WHOLE


def mesh_text(mesh: Axes) -> str:
    """A mesh as it is made."""
    return f"Mesh({', '.join(f'{name}={size}' for name, size in mesh)})"


def find_meshes(jaxpr: Jaxpr, found: Dict[Axes, Eqn]) -> None:
    """Collect the meshes of a program with the first equation of each."""
    for eqn in jaxpr.eqns:
        if isinstance(eqn.primitive, Shard):
            found.setdefault(eqn.primitive.mesh, eqn)
        for held in getattr(eqn.primitive, "jaxprs", ()):
            find_meshes(held, found)


def first_spec(jaxpr: Jaxpr, v: Var) -> Optional[Spec]:
    """How the first sharded function that takes an input wants it to be cut; None if none takes it."""
    for eqn in jaxpr.eqns:
        for i, a in enumerate(eqn.inputs):
            if a is not v:
                continue
            if isinstance(eqn.primitive, Shard):
                return eqn.primitive.in_specs[i]
            held = getattr(eqn.primitive, "jaxprs", ())
            if held and isinstance(eqn.primitive, (Routine, Scan)):
                is_stacked = isinstance(eqn.primitive, Scan) and \
                    i >= eqn.primitive.num_consts + eqn.primitive.num_carry
                found = first_spec(held[0], held[0].inputs[i])
                if found is not None:
                    return ((), *found) if is_stacked and found else found
    return None


class _Localising:
    def __init__(self, mesh: Axes) -> None:
        self.mesh = mesh
        self.sizes = dict(mesh)
        self.made: Dict[Any, Tuple[Jaxpr, List[Spec]]] = {}

    def part(self, aval: Aval, spec: Spec) -> Aval:
        """The type of a replica's part."""
        shape = list(aval.shape)
        for k, names in enumerate(spec):
            shape[k] //= math.prod(self.sizes[name] for name in names)
        return aval.with_shape(tuple(shape)).over(spec_names(spec))

    def jaxpr(self, jaxpr: Jaxpr, specs: Sequence[Spec], wanted: Sequence[Optional[Spec]]) -> Tuple[Jaxpr, List[Spec]]:
        """The local form of a jaxpr for inputs that are cut so, and how its outputs are cut: as wanted, if it is."""
        key = jaxpr, tuple(specs), tuple(wanted)
        if key not in self.made:
            with Trace(jaxpr.name, axes=self.sizes) as trace, sources(trace):
                inputs = trace.add_inputs([self.part(a, spec) for a, spec in zip(jaxpr.in_avals, specs)])
                env: Dict[Atom, Tuple[Any, Spec]] = dict(zip(jaxpr.inputs, zip(inputs, specs)))
                env.update(zip(jaxpr.constvars, ((c, WHOLE) for c in constant_arrays(jaxpr))))
                for eqn in jaxpr.eqns:
                    trace.source = eqn.source
                    env.update(zip(eqn.outputs, self.results(eqn, [
                        (a, WHOLE) if isinstance(a, Literal) else env[a] for a in eqn.inputs])))
                outs = [(a, WHOLE) if isinstance(a, Literal) else env[a] for a in jaxpr.outputs]
                found = [have if want is None else want for (_, have), want in zip(outs, wanted)]
                local = trace.finish([self.converted(x, have, want) for (x, have), want in zip(outs, found)])
            self.made[key] = checked(without_dead_code(local)), found
        return self.made[key]

    # ------------------------------------------------------------------ equations
    def results(self, eqn: Eqn, operands: Sequence[Tuple[Any, Spec]]) -> Sequence[Tuple[Any, Spec]]:
        """The results of an equation, with how they are cut."""
        primitive: Any = eqn.primitive
        specs = [spec for _, spec in operands]
        if isinstance(primitive, Shard):
            values = [self.converted(x, have, want) for (x, have), want in zip(operands, primitive.in_specs)]
            return list(zip(inline(primitive.jaxpr, values), primitive.out_specs))
        holds = isinstance(primitive, HoldsJaxprs) and any(map(has_mesh, getattr(primitive, "jaxprs", ())))
        if not any(specs) and not holds:
            return self.bound(primitive, operands)
        if isinstance(primitive, Place):
            return [(bind(primitive, [operands[0][0]]), specs[0])]
        if isinstance(primitive, Scan):
            return self.scan(primitive, operands)
        if isinstance(primitive, Routine) and hasattr(primitive, "jaxpr"):
            body, out = self.jaxpr(primitive.jaxpr, specs, [None] * len(eqn.outputs))
            return list(zip(bind(primitive.of(body), [x for x, _ in operands]), out))
        if isinstance(primitive, Cond):
            return self.cond(primitive, operands)
        if isinstance(primitive, While):
            return self.loop(primitive, operands)
        if isinstance(primitive, Elementwise):
            spec = next(spec for spec in specs if spec)
            shape = eqn.outputs[0].aval.shape
            if all(self.agrees(a.aval.shape, shape, own, spec) for a, own in zip(eqn.inputs, specs)):
                values = [self.converted(x, own, spec) if a.aval.shape == shape else x
                          for a, (x, own) in zip(eqn.inputs, operands)]
                return [(bind(primitive, values), spec)]
        return self.bound(primitive, [(self.converted(x, have, WHOLE), WHOLE) for x, have in operands])

    def bound(self, primitive: Any, operands: Sequence[Tuple[Any, Spec]]) -> Sequence[Tuple[Any, Spec]]:
        """The results for whole arrays."""
        out = bind(primitive, [x for x, _ in operands])
        return [(y, WHOLE) for y in (out if primitive.multiple else (out,))]

    def agrees(self, shape: Tuple[int, ...], whole: Tuple[int, ...], own: Spec, spec: Spec) -> bool:
        """Whether an operand of an elementwise operation can stand beside others that are cut so."""
        if shape == whole:
            return own in (WHOLE, spec)
        lead = len(whole) - len(shape)
        return not own and all(k < lead or shape[k - lead] == 1 for k, names in enumerate(spec) if names)

    def scan(self, scan: Scan, operands: Sequence[Tuple[Any, Spec]]) -> Sequence[Tuple[Any, Spec]]:
        consts, carry, xs = scan.parts(operands)
        xs = [(self.converted(x, spec, WHOLE), WHOLE) if spec and spec[0] else (x, spec) for x, spec in xs]
        kept = [spec for _, spec in carry]
        body, out = self.jaxpr(scan.jaxpr, [*(s for _, s in consts), *kept, *(s[1:] for _, s in xs)],
                               [*kept, *[None] * (len(scan.jaxpr.outputs) - scan.num_carry)])
        results = bind(scan.of(body, scan.num_consts, scan.num_carry), [x for x, _ in (*consts, *carry, *xs)])
        return list(zip(results, [*kept, *[((), *s) if s else s for s in out[scan.num_carry:]]]))

    def cond(self, cond: Cond, operands: Sequence[Tuple[Any, Spec]]) -> Sequence[Tuple[Any, Spec]]:
        (index, own), *rest = operands
        specs = [spec for _, spec in rest]
        first, out = self.jaxpr(cond.branches[0], specs, [None] * len(cond.branches[0].outputs))
        others = [self.jaxpr(j, specs, out)[0] for j in cond.branches[1:]]
        results = bind(Cond((first, *others)), [self.converted(index, own, WHOLE), *(x for x, _ in rest)])
        return list(zip(results, out))

    def loop(self, loop: While, operands: Sequence[Tuple[Any, Spec]]) -> Sequence[Tuple[Any, Spec]]:
        specs = [spec for _, spec in operands]
        cond, _ = self.jaxpr(loop.cond, specs, [WHOLE])
        body, out = self.jaxpr(loop.body, specs, specs[loop.num_consts:])
        results = bind(While(cond, body, loop.num_consts, loop.max_steps), [x for x, _ in operands])
        return list(zip(results, out))

    # ------------------------------------------------------------------ from one cut to another
    def converted(self, x: Any, have: Spec, want: Spec) -> Any:
        """A part for one cut as the part for another one: gathered along the axes that differ, and cut again."""
        if have == want:
            return x
        memory = aval_of(x).memory
        ndim = max(len(have), len(want))
        before, after = ((*spec, *[()] * (ndim - len(spec))) for spec in (have, want))
        for k, (old, new) in enumerate(zip(before, after)):
            if old != new:
                for name in reversed(old):
                    x = self.merged(all_gather(x, name, self.sizes[name], k), k)
        for k, (old, new) in enumerate(zip(before, after)):
            if old != new:
                for name in new:
                    shape, size = aval_of(x).shape, self.sizes[name]
                    x = reshape(x, (*shape[:k], size, shape[k] // size, *shape[k + 1:]))
                    x = own_slice(x, name, size, k)
        return place(x, memory)

    @staticmethod
    def merged(x: Any, k: int) -> Any:
        """x with axes k and k + 1 as one."""
        shape = aval_of(x).shape
        return reshape(x, (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2:]))


def groups(mesh: Axes, names: AxisNames) -> Tuple[Optional[Tuple[int, int]], List[int]]:
    """The replicas in groups of those that differ along these axes alone: their stride and size, and assignments.

    There is no stride if the axes do not stand together in the mesh. Groups are numbered, and their members ordered, as
    the replicas are.
    """
    sizes = [size for _, size in mesh]
    own = [i for i, (name, _) in enumerate(mesh) if name in names]
    places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    places[:, own] = 0
    numbers: Dict[Tuple[int, ...], int] = {}
    assignments = [numbers.setdefault(tuple(place), len(numbers)) for place in places.tolist()]
    if not own:
        return (1, 1), assignments
    if own != list(range(own[0], own[-1] + 1)):
        return None, assignments
    return (math.prod(sizes[own[-1] + 1:]), math.prod(sizes[i] for i in own)), assignments


def split(x: np.ndarray, spec: Spec, mesh: Axes) -> np.ndarray:
    """A global array as the parts of all groups of replicas that have different ones, along a new first axis."""
    shape, order = axes_in_front(x.shape, spec, mesh)
    count = len(spec_names(spec))
    parts = math.prod(shape[i] for i in order[:count])
    return x.reshape(shape).transpose(order).reshape((parts, *(shape[i] for i in order[count:])))


def united(parts: np.ndarray, spec: Spec, mesh: Axes) -> np.ndarray:
    """The global array of the parts of all groups: the reverse of `split`."""
    names = spec_names(spec)
    parts = parts.reshape((*(size for name, size in mesh if name in names), *parts.shape[1:]))
    order, whole = axes_in_place(parts.shape, spec, mesh)
    return parts.transpose(order).reshape(whole)


def on_replicas(parts: np.ndarray, spec: Spec, mesh: Axes) -> np.ndarray:
    """The parts of groups, as the parts of all replicas."""
    own = spec_names(spec)
    lead = [size if name in own else 1 for name, size in mesh]
    sizes = [size for _, size in mesh]
    spread = np.broadcast_to(parts.reshape((*lead, *parts.shape[1:])), (*sizes, *parts.shape[1:]))
    return spread.reshape((math.prod(sizes), *parts.shape[1:]))


def of_groups(replicas: np.ndarray, spec: Spec, mesh: Axes) -> np.ndarray:
    """The parts of groups, taken from the first replica of each."""
    own = spec_names(spec)
    first = tuple([slice(None) if name in own else slice(0, 1) for name, _ in mesh])
    rest = replicas.shape[1:]
    count = math.prod(size for name, size in mesh if name in own)
    return replicas.reshape((*(size for _, size in mesh), *rest))[first].reshape((count, *rest))
