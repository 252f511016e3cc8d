"""shard on random functions: it is the function of global arrays under every transform; wrong ones are errors."""
import dataclasses
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest
from control_flow import loss_of
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from shard_programs import HELD, MOVES, SMOOTH, SUMS, programs
from shard_worlds import (
    DERIVATIVES,
    Program,
    cut_whole,
    in_numpy,
    of_parts,
    of_replicas,
    of_wholes,
)
from test_properties import assert_round_trip, examples

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.prims import collectives
from popfn.transforms import differentiate, shard

Call = Callable[..., Any]
# Making an example smaller takes long; they are small.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


def close(got: Any, want: Any, what: str, rtol: float = 2e-3) -> None:
    """Equal shapes, and values within rounding of the largest."""
    got, want = [[np.asarray(x) for x in pf.tree.leaves(tree)] for tree in (got, want)]
    assert [x.shape for x in got] == [x.shape for x in want], what
    for i, (a, b) in enumerate(zip(got, want)):
        np.testing.assert_allclose(np.asarray(a, "f8"), np.asarray(b, "f8"), 0, rtol * np.abs(b).max(initial=1.0),
                                   err_msg=f"{what}: {i}")


# ---------------------------------------------------------------------------- the function that is sharded
def specs(program: Program) -> List[Any]:
    return [pf.P(), *[t.entry for t in program.inputs]]


def flat(program: Program, local: Call) -> Call:
    """Each argument by itself."""
    return pf.shard(local, pf.Mesh(**dict(program.mesh)), tuple(specs(program)), [t.entry for t in program.out_types])


def in_trees(program: Program, local: Call) -> Call:
    """All arguments in trees with None in them, one entry for all parts that are cut in one way; results likewise."""
    def f(first: Any, rest: Any) -> Any:
        ys = local(first, rest["x"], *rest["more"][0])
        return {"all": (ys, None), "last": ys[-1]}
    some = specs(program)
    more = some[2:] if len(set(some[2:])) != 1 else some[2]
    outs = [t.entry for t in program.out_types]
    one = pf.shard(f, pf.Mesh(**dict(program.mesh)), (some[0], {"x": some[1], "more": (more, None)}),
                   {"all": outs[0] if len(set(outs)) == 1 else (outs, None), "last": outs[-1]})

    def g(first: Any, x: Any, *more: Any) -> Any:
        result = one(first, {"x": x, "more": (list(more), None)})
        assert result["all"][1] is None
        return [*result["all"][0][:-1], result["last"]]
    return g


def closing(program: Program, local: Call) -> Call:
    """What all replicas have is closed over: arrays, or values of the trace around."""
    some = specs(program)
    cut = [i for i, spec in enumerate(some) if spec != pf.P()]

    def f(*args: Any) -> Any:
        def g(*parts: Any) -> Any:
            mine = dict(zip(cut, parts))
            return local(*[mine.get(i, x) for i, x in enumerate(args)])
        return pf.shard(g, pf.Mesh(**dict(program.mesh)), tuple([some[i] for i in cut]),
                        [t.entry for t in program.out_types])(*[args[i] for i in cut])
    return f


def by_keyword(program: Program, local: Call) -> Call:
    """What all replicas have is passed by keyword."""
    some = specs(program)
    cut = [i for i, spec in enumerate(some) if spec != pf.P()]

    def f(*args: Any) -> Any:
        def g(*parts: Any, **whole: Any) -> Any:
            mine = dict(zip(cut, parts))
            return local(*[mine[i] if i in mine else whole[f"x{i}"] for i in range(len(some))])
        call = pf.shard(g, pf.Mesh(**dict(program.mesh)), tuple([some[i] for i in cut]),
                        [t.entry for t in program.out_types])
        return call(*[args[i] for i in cut], **{f"x{i}": x for i, x in enumerate(args) if i not in cut})
    return f


STYLES = [flat, in_trees, closing, by_keyword]


def with_lanes(f: Call, name: str) -> Call:
    """Each result meets those of the other lanes."""
    return lambda *args: [y + pf.psum(pf.pvary(y, name), name) * 0.25 for y in f(*args)]


# ---------------------------------------------------------------------------- around it
def twice(x: Any) -> Any:
    return pnp.stack([pnp.asarray(x), pnp.asarray(x) * 0.5])


def custom(kind: str, f: Call) -> Call:
    g = getattr(pf, kind)(f)
    if kind == "custom_jvp":
        g.defjvp(lambda primals, tangents: pf.jvp(lambda *xs: f(primals[0], *xs), primals[1:], tangents[1:]))
    else:
        g.defvjp(lambda *args: (f(*args), args), lambda args, ct: (
            None, *pf.vjp(lambda *xs: f(args[0], *xs), *args[1:])[1](ct)))
    return g


def scanned(f: Call) -> Call:
    return lambda p, x, *rest: pf.scan(
        lambda c, row: (c * 0.5 + 0.25, f(p, row * c, *rest)), 1.0, twice(x))[1]


def serialised(f: Call) -> Call:
    return lambda p, x, *rest: pf.batch_serialise(
        lambda xs: f(p, xs[0], *rest), 2, reduce="sum")(twice(x))


def in_a_loop(f: Call) -> Call:
    """Twice the function of an argument to which its own results add something."""
    def g(p: Any, x: Any, *rest: Any) -> Any:
        def step(_: Any, c: Any) -> Any:
            return c * 0.5 + pnp.tanh(sum(pnp.mean(y) for y in f(p, c, *rest)))
        return [pf.fori_loop(0, 2, step, pnp.asarray(x))]
    return g


def in_another_mesh(f: Call) -> Call:
    """In lanes, in replicas of another mesh."""
    def g(p: Any, *xs: Any) -> Any:
        def local(*parts: Any) -> Any:
            return [pf.psum(y.sum(0), "outer") for y in pf.vmap(lambda *xs: f(p, *xs))(*parts)]
        both = pf.shard(local, pf.Mesh(outer=2), (pf.P("outer"),) * len(xs), pf.P())
        return both(*[pnp.concatenate([twice(x), -twice(x)]) for x in xs])
    return g


def in_another_mesh_alone(f: Call) -> Call:
    """The same without the other mesh."""
    def g(p: Any, *xs: Any) -> Any:
        return [y.sum(0) for y in pf.vmap(lambda *xs: f(p, *xs))(
            *[pnp.concatenate([twice(x), -twice(x)]) for x in xs])]
    return g


def same(f: Call) -> Call:
    return f


#: What stands around the sharded function, and around the one of global arrays.
AROUND: Dict[str, Tuple[Call, Call]] = {
    "nothing": (same, same),
    "jit": (pf.jit, same),
    "checkpoint": (pf.checkpoint, same),
    "custom_jvp": (lambda f: custom("custom_jvp", f), same),
    "custom_vjp": (lambda f: custom("custom_vjp", f), same),
    "scan": (scanned, scanned),
    "batch_serialise": (serialised, serialised),
    "fori_loop": (in_a_loop, in_a_loop),
    "cond": (lambda f: lambda p, *xs: pf.cond(p > 0, lambda *xs: f(p, *xs), lambda *xs: f(p + 2, *xs), *xs),
             lambda f: lambda p, *xs: f(pnp.where(pnp.asarray(p) > 0, p, p + 2), *xs)),
    "another mesh": (in_another_mesh, in_another_mesh_alone),
}


# ---------------------------------------------------------------------------- transforms
class Lanes(NamedTuple):
    """How vmap goes over the arguments: for each the place of the new axis or None, and the axis's name."""

    axes: Tuple[Any, ...]
    name: Any = None


def floats(program: Program) -> Tuple[int, ...]:
    return tuple(range(1, len(program.inputs) + 1))


def stacked(args: Sequence[Any], lanes: Lanes) -> List[Any]:
    """The arguments with three lanes."""
    return [x if d is None else np.stack([x, x * x.dtype.type(2), -x], axis=d) for x, d in zip(args, lanes.axes)]


def directions(args: Sequence[Any]) -> Tuple[Any, ...]:
    return tuple(np.cos(np.arange(x.size, dtype="f4") + i).reshape(x.shape) for i, x in enumerate(args[1:]))


def jvp(f: Call) -> Call:
    return lambda p, *xs: list(pf.jvp(lambda *xs: f(p, *xs), xs, tuple(map(pnp.cos, map(pnp.asarray, xs)))))


def vjp(f: Call) -> Call:
    def g(p: Any, *xs: Any) -> Any:
        ys, pull = pf.vjp(lambda *xs: f(p, *xs), *xs)
        return [*ys, *pull([pnp.cos(y) for y in ys])]
    return g


def linearized(f: Call) -> Call:
    def g(p: Any, *xs: Any) -> Any:
        ys, push = pf.linearize(lambda *xs: f(p, *xs), *xs)
        return [ys, push(*map(pnp.cos, map(pnp.asarray, xs))), push(*map(pnp.asarray, xs))]
    return g


def grad(f: Call) -> Call:
    return lambda p, *xs: pf.grad(lambda *xs: loss_of(lambda *xs: f(p, *xs), pnp)(*xs), tuple(range(len(xs))))(*xs)


def hvp(f: Call) -> Call:
    """The derivative of the gradient in a direction."""
    return jvp(grad(f))


def grad_of_grad(f: Call) -> Call:
    return grad(grad(f))


def mapped(f: Call, lanes: Lanes) -> Call:
    """f in lanes. With a name each lane has values of its own, so that a derivative inside is that of one lane's."""
    own = f if lanes.name is None else lambda *args: f(*pf.pvary(args, lanes.name))
    return pf.vmap(own, lanes.axes, axis_name=lanes.name)


TRANSFORMS = {
    "value": lambda f, lanes: f, "grad": lambda f, lanes: grad(f), "jvp": lambda f, lanes: jvp(f),
    "vjp": lambda f, lanes: vjp(f), "linearize": lambda f, lanes: linearized(f), "hvp": lambda f, lanes: hvp(f),
    "grad of grad": lambda f, lanes: grad_of_grad(f),
    "vmap": mapped, "grad of vmap": lambda f, lanes: grad(mapped(f, lanes)),
    "vmap of grad": lambda f, lanes: mapped(grad(f), lanes), "vmap of jvp": lambda f, lanes: mapped(jvp(f), lanes),
    "vmap of vmap": lambda f, lanes: pf.vmap(mapped(f, lanes), (None, *[0] * (len(lanes.axes) - 1))),
}
FORWARD = ("jvp", "linearize", "hvp", "vmap of jvp")
TWICE = ("hvp", "grad of grad")


@st.composite
def lanes_of(draw: Any, program: Program, named: bool) -> Lanes:
    axes = [None if named else draw(st.sampled_from([None, 0])), *[  # lanes meet in branches, too
        draw(st.sampled_from([None, *range(len(t.shape) + 1), -1])) for t in program.inputs]]
    if all(d is None for d in axes):
        axes[1] = 0
    return Lanes(tuple(axes), "lane" if named else None)


def results(f: Call, args: Sequence[Any], run: str) -> Any:
    """Eagerly, jitted, on real replicas, or by the program that is traced, which can be read back."""
    if run == "eager":
        return f(*args)
    if run == "jit":
        return pf.jit(f)(*args)
    if run == "lowered":
        with pf.Session(pf.lower(f, *args)) as session:
            return session.run(*args)
    jaxpr = pf.make_jaxpr(f)(*args)
    if "custom_" not in str(jaxpr):  # whose rules cannot be read back
        assert_round_trip(jaxpr)
    return jaxpr.eval(*args)


def runs(program: Program, around: str = "nothing") -> st.SearchStrategy[str]:
    """Ways to run it: on replicas if there is one mesh."""
    alone = around != "another mesh" and not any(step.op == "nested" for step in program.steps())
    return st.sampled_from(["eager", "jit", "traced"] + ["lowered"] * alone)


# ---------------------------------------------------------------------------- values
@examples(60, phases=PHASES)
@given(st.data())
def test_it_is_the_function_of_global_arrays(data):
    """In popfn, in NumPy, and as what NumPy computes on every replica."""
    program = data.draw(programs())
    args = program.arrays()
    got = results(data.draw(st.sampled_from(STYLES))(program, of_parts(program)), args, data.draw(runs(program)))
    assert [y.shape for y in got] == [t.shape for t in program.out_types]
    close(got, of_wholes(program)(*args), "the whole")
    if not any(step.op in DERIVATIVES for step in program.steps()):
        close(got, in_numpy(program, *args), "NumPy")
        sizes = dict(program.mesh)
        close([cut_whole(np.asarray(y), t.spec, sizes) for y, t in zip(got, program.out_types)],
              of_replicas(program, *args), "the replicas")


@examples(60, phases=PHASES)
@given(st.data())
def test_every_transform_is_that_of_global_arrays(data):
    transform = data.draw(st.sampled_from(sorted(TRANSFORMS)))
    around = data.draw(st.sampled_from([name for name in AROUND if name != "custom_vjp" or transform not in FORWARD]))
    program = data.draw(programs(transform in FORWARD or around == "custom_jvp"))
    named = "vmap" in transform and data.draw(st.booleans())
    lanes = data.draw(lanes_of(program, named))
    ours, whole = AROUND[around]
    local, known = of_parts(program), of_wholes(program)
    if named:
        local, known = with_lanes(local, "lane"), with_lanes(known, "lane")
    args = program.arrays()
    if "vmap" in transform:
        args = stacked(args, lanes)
    if transform == "vmap of vmap":
        args = [args[0], *[np.stack([x, -x]) for x in args[1:]]]
    f = TRANSFORMS[transform](ours(data.draw(st.sampled_from(STYLES))(program, local)), lanes)
    got = results(f, args, data.draw(runs(program, around)))
    close(got, TRANSFORMS[transform](whole(known), lanes)(*args), f"{transform} of {around}",
          1e-2 if transform in TWICE else 2e-3)


# ---------------------------------------------------------------------------- derivatives inside
def loss_of_parts(program: Program, f: Call) -> Call:
    """A sum over all elements, of which each replica has some."""
    def loss(*args: Any) -> Any:
        total = 0.0
        for i, (y, t) in enumerate(zip(f(*args), program.out_types)):
            part = pnp.sum(pnp.sin(y + i))
            total = total + (pf.psum(part, t.names()) if t.names() else part)
        return total
    return loss


def loss_of_wholes(f: Call) -> Call:
    return lambda *args: sum(pnp.sum(pnp.sin(y + i)) for i, y in enumerate(f(*args)))


INSIDE = {
    "grad": lambda loss: lambda p, *xs: pf.grad(loss, tuple(range(1, len(xs) + 1)))(p, *xs),
    "value_and_grad": lambda loss: lambda p, *xs: pf.value_and_grad(loss, tuple(range(1, len(xs) + 1)))(p, *xs)[1],
    "vjp": lambda loss: lambda p, *xs: pf.vjp(lambda *xs: loss(p, *xs), *xs)[1](1.0),
    "jit of grad": lambda loss: lambda p, *xs: pf.jit(pf.grad(loss, tuple(range(1, len(xs) + 1))))(p, *xs),
    "grad of jvp": lambda loss: lambda p, *xs: pf.grad(lambda *xs: pf.jvp(
        lambda *xs: loss(p, *xs), xs, tuple(map(pnp.cos, xs)))[1], tuple(range(len(xs))))(*xs),
    "jvp of grad": lambda loss: lambda p, *xs: pf.jvp(lambda *xs: pf.grad(lambda *xs: loss(p, *xs), tuple(
        range(len(xs))))(*xs), xs, tuple(map(pnp.cos, xs)))[1],
}


@examples(60, phases=PHASES)
@given(st.data())
def test_derivatives_inside_are_those_of_global_arrays(data):
    """And these derived once more, outside."""
    way = data.draw(st.sampled_from(sorted(INSIDE)))
    program = data.draw(programs("jvp" in way))
    program = dataclasses.replace(program, outs=program.outs[-2:])
    args, ins = program.arrays(), tuple(t.entry for t in program.inputs)
    f = pf.shard(INSIDE[way](loss_of_parts(program, of_parts(program))), pf.Mesh(**dict(program.mesh)),
                 tuple(specs(program)), ins)
    g = INSIDE[way](loss_of_wholes(of_wholes(program)))
    xs = [args[0], *map(pnp.asarray, args[1:])]
    close(results(f, args, data.draw(runs(program))), g(*xs), way, 1e-2)
    if way in ("grad", "vjp") and data.draw(st.booleans()):
        close(grad(f)(*args), grad(g)(*args), f"grad of {way} inside", 2e-2)


# ---------------------------------------------------------------------------- the tests find what they are for
def test_programs_use_every_operation():
    seen = set()

    @settings(max_examples=400, database=None, phases=[Phase.generate], derandomize=True)
    @given(programs())
    def draw(program: Program) -> None:
        seen.update(step.op for step in program.steps())
    draw()
    assert seen == {*SMOOTH, *MOVES, *SUMS, *HELD}


def largest_cotangent(x: Any, names: Any) -> Any:
    return collectives.pmax(x, names)


def psum_once_more(psum: Any, ct: Any, x: Any) -> Any:
    varied = collectives.pvary(ct, frozenset(psum.names))
    return (collectives.pvary(collectives.psum(varied, psum.names), frozenset(psum.names)),)


def parts_in_reverse(x: Any, spec: Any, mesh: Any) -> Any:
    return IN_PARTS(x, tuple([names[::-1] for names in spec]), mesh)


IN_PARTS = shard.in_parts
PLANTED = [(differentiate, "psum", largest_cotangent), (collectives.Psum, "transpose", psum_once_more),
           (shard, "in_parts", parts_in_reverse)]


@pytest.mark.parametrize("where, name, fault", PLANTED, ids=lambda v: getattr(v, "__name__", None))
def test_a_planted_fault_is_found(monkeypatch, where, name, fault):
    monkeypatch.setattr(where, name, fault)
    search = settings(max_examples=200, database=None, phases=[Phase.generate], print_blob=False, derandomize=True,
                      report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
    test = test_it_is_the_function_of_global_arrays if where is shard else \
        test_derivatives_inside_are_those_of_global_arrays
    with pytest.raises(AssertionError):
        search(given(st.data())(test.hypothesis.inner_test))()
