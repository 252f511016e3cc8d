"""shard on random functions: it is the function of global arrays under every transform; wrong ones are errors."""
import dataclasses
import re
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest
from control_flow import loss_of
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from shard_programs import HELD, MOVES, SMOOTH, SUMS, programs
from shard_worlds import (
    DERIVATIVES,
    Body,
    Program,
    Step,
    Ty,
    cut_whole,
    in_numpy,
    of_parts,
    of_replicas,
    of_wholes,
)
from test_properties import assert_round_trip, examples

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, AxisError
from popfn.trace.prims import collectives
from popfn.trace.tracer import aval_of
from popfn.transforms import shard

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
    return pf.vmap(f, lanes.axes, axis_name=lanes.name)


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
    """Eagerly, jitted, or by the program that is traced, which can be read back."""
    if run == "eager":
        return f(*args)
    if run == "jit":
        return pf.jit(f)(*args)
    jaxpr = pf.make_jaxpr(f)(*args)
    if "custom_" not in str(jaxpr):  # whose rules cannot be read back
        assert_round_trip(jaxpr)
    return jaxpr.eval(*args)


RUNS = ["eager", "eager", "jit", "traced"]


# ---------------------------------------------------------------------------- values
@examples(60, phases=PHASES)
@given(programs(), st.sampled_from(STYLES), st.sampled_from(RUNS))
def test_it_is_the_function_of_global_arrays(program, style, run):
    """In popfn, in NumPy, and as what NumPy computes on every replica."""
    args = program.arrays()
    got = results(style(program, of_parts(program)), args, run)
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
    got = results(f, args, data.draw(st.sampled_from(RUNS)))
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
    close(results(f, args, data.draw(st.sampled_from(RUNS))), g(*xs), way, 1e-2)
    if way in ("grad", "vjp") and data.draw(st.booleans()):
        close(grad(f)(*args), grad(g)(*args), f"grad of {way} inside", 2e-2)


# ---------------------------------------------------------------------------- wrong programs
class Wrong(NamedTuple):
    """A program with a fault, the specs of its results, the error, and what the error says."""

    program: Program
    out_specs: List[Any]
    error: type
    lines: Tuple[str, ...]


FAULTS = ["missing", "double", "extra", "less named", "more named", "too many axes", "no such axis"]


def quoted(mesh: Any, names: Any) -> str:
    return ", ".join(repr(name) for name, _ in mesh if name in names)


def part_of(t: Ty, sizes: Dict[str, int], names: Sequence[str]) -> str:
    """The type of a part, as it is printed."""
    shape = ",".join(str(n // int(np.prod([sizes[a] for a in cut]))) for n, cut in zip(t.shape, t.spec))
    return f"f32[{shape}]" + (f"{{{','.join(sorted(names))}}}" if names else "")


@st.composite
def wrong_programs(draw: Any, kind: str) -> Wrong:
    """A program whose last steps have a fault that no later collective covers."""
    program = draw(programs().filter(lambda p: any(t.names() for t in p.types)))
    sizes = dict(program.mesh)
    types = program.types
    steps = list(program.body.steps)
    at = draw(st.sampled_from([i for i, t in enumerate(types) if t.names()]))
    t = types[at]
    name = draw(st.sampled_from(t.names()))
    k = next(k for k, names in enumerate(t.spec) if name in names)
    names = t.names()
    if kind in ("missing", "double"):
        op = draw(st.sampled_from(["sum", "mean", "logsumexp"] + ["softmax"] * (kind == "double")))
        how = draw(st.sampled_from(["at once", "in turn", "gathered", "mean"]))
        one = [(1, ()) if j == k else (t.shape[j], t.spec[j]) for j in range(len(t.shape))]
        out = t if op == "softmax" else Ty(tuple([n for n, _ in one]), tuple([s for _, s in one]))
        steps.append(Step(op, (at,), (t,), out, (k, how) if op in ("softmax", "logsumexp") else ((k,), True, how),
                          fault=(kind, name)))
        names = out.names() + (name,)
    elif kind == "extra":
        out = Ty(t.shape, t.spec)
        steps.append(Step("extra", (at,), (t,), out, (name,)))
        names = tuple(n for n in out.names() if n != name)
    else:
        out = Ty(t.shape, t.spec)
        steps.append(Step("sin", (at,), (t,), out))
    for _ in range(draw(st.integers(0, 2))):  # nothing between replicas from here
        last = len(program.leaves) + len(steps) - 1
        op = draw(st.sampled_from(["sin", "tanh", "jit", "checkpoint", "cond", "scan"]))
        if op in ("sin", "tanh"):
            steps.append(Step(op, (last,), (out,), out))
        elif op != "scan":
            steps.append(Step(op, (last,), (out,), out, (), Body((Step("square", (last + 1,), (out,), out),), out)))
        elif out.uncut() and out.uncut()[0] == 0:
            row = out.without(0)
            steps.append(Step("scan", (last,), (out,), out, (0, "row", False),
                              Body((Step("tanh", (last + 1,), (row,), row),), row)))
    last = len(program.leaves) + len(steps) - 1
    outs = (*draw(st.sampled_from([(), program.outs])), last)
    program = dataclasses.replace(program, body=Body(tuple(steps)), outs=outs)
    out_specs = [u.entry for u in program.out_types]
    leaf = f"result[{len(outs) - 1}] of F is {part_of(out, sizes, names)}"
    entry = out_specs[-1]
    if kind == "double":
        return Wrong(program, out_specs, AxisError, (
            f"psum of a value that does not vary over {name!r}: it is one and the same in all lanes",
            f"way out: leave psum out, multiply by pf.axis_size({name!r}), or say with pf.pvary(x, {name!r}) that each "
            "lane contributes its own"))
    if kind == "less named":
        entry = out_specs[-1] = out._replace(spec=tuple([tuple([n for n in s if n != name]) for s in out.spec])).entry
    elif kind == "more named":
        free = [n for n in sizes if n not in out.names()]
        if not free:
            return draw(wrong_programs(kind))
        more = draw(st.sampled_from(free))
        j = draw(st.integers(0, len(out.shape) - 1))
        entry = out_specs[-1] = out._replace(spec=(*out.spec[:j], out.spec[j] + (more,), *out.spec[j + 1:])).entry
    elif kind == "too many axes":
        entry = out_specs[-1] = pf.P(*[None] * (len(out.shape) + 1), name)
        return Wrong(program, out_specs, ArgumentError, (
            f"shard: {entry!r} puts result[{len(outs) - 1}] of F together along axis {len(out.shape) + 1}, but it is "
            f"{part_of(out, sizes, names)} on each replica",))
    elif kind == "no such axis":
        entry = out_specs[-1] = pf.P(*[None] * k, "rows")
        return Wrong(program, out_specs, ArgumentError, (
            f"shard: {entry!r} for result[{len(outs) - 1}] of F names 'rows', which is no axis of "
            f"{pf.Mesh(**sizes)!r}",))
    over = set(names) - set(pf.P(*entry.entries).spec and [n for s in entry.spec for n in s])
    if over:
        return Wrong(program, out_specs, AxisError, (
            f"shard: {leaf}, which varies over {quoted(program.mesh, over)}, but its spec {entry!r} does not name it: "
            "the replicas have different results, and none of them is the result",
            f"way out: pf.psum or pf.pmean over {quoted(program.mesh, over)}, or name it in out_specs"))
    less = quoted(program.mesh, {n for s in entry.spec for n in s} - set(names))
    return Wrong(program, out_specs, AxisError, (
        f"shard: {leaf}, which is equal on all replicas of {less}, but its spec {entry!r} says that each has a part "
        "of its own",
        f"way out: leave {less} out of the spec, or say with pf.pvary(x, {less}) that equal parts are meant"))


def lines_of(error: BaseException) -> List[str]:
    """The lines of an error, with F for the function's name."""
    return re.sub(r"\bof_parts\.<lambda> \([^()]*\.py:\d+\)", "F", str(error)).split("\n  ")


@pytest.mark.parametrize("kind", FAULTS)
@examples(20, phases=PHASES)
@given(st.data())
def test_a_fault_is_an_error_while_it_is_traced(kind, data):
    """Whatever is around it; it names the leaf, the axis, both types and what to do; and the next call works."""
    program, out_specs, error, lines = data.draw(wrong_programs(kind))
    args, mesh = program.arrays(), pf.Mesh(**dict(program.mesh))
    bad = pf.shard(of_parts(program), mesh, tuple(specs(program)), out_specs)
    ways: Dict[str, Call] = {
        "eager": lambda: bad(*args), "make_jaxpr": lambda: pf.make_jaxpr(bad)(*args), "jit": lambda: pf.jit(bad)(*args),
        "grad": lambda: grad(bad)(*args), "vmap": lambda: pf.vmap(bad, axis_size=2, in_axes=None)(*args),
        "lower": lambda: pf.lower(bad, *args), "eval_shape": lambda: pf.eval_shape(bad, *args),
        "scan": lambda: pf.scan(lambda c, _: (c, bad(*args)), 0.0, None, length=2),
        "another": lambda: pf.shard(bad, pf.Mesh(outer=2), pf.P(), pf.P())(*args)}
    for way in ("eager", data.draw(st.sampled_from(sorted(ways)))):
        with pytest.raises(error) as e:
            ways[way]()
        text = lines_of(e.value)
        assert text[0] == lines[0] and (len(lines) == 1 or text[-1] == lines[-1]), text
        assert text[1].startswith("at ") and re.search(r"test_shard_random\.py:|shard_worlds\.py:", text[1]), text
        if kind == "double":
            assert text[2].startswith("the value: f32["), text
        else:
            assert "test_shard_random.py:" in text[1], text
    steps = [dataclasses.replace(s, fault=None, op="sin" if s.op == "extra" else s.op) for s in program.body.steps]
    right = dataclasses.replace(program, body=Body(tuple(steps)))
    close(flat(right, of_parts(right))(*args), of_wholes(right)(*args), "the next call")


def with_fault(body: Body, place: int, fault: Tuple[str, str]) -> Body:
    """The body with a fault in a step, counted from the outermost first step."""
    steps: List[Step] = []
    for s in body.steps:
        count = 1 + (len(Program((), (), (), s.body, ()).steps()) if s.body else 0)
        if place == 0:
            s = dataclasses.replace(s, fault=fault)
        elif 0 < place < count and s.body is not None:
            s = dataclasses.replace(s, body=with_fault(s.body, place - 1, fault))
        place -= count
        steps.append(s)
    return Body(tuple(steps), body.param)


def reduced(step: Step) -> Sequence[str]:
    """The axes of the mesh over which a step adds up."""
    t, p = step.types[0], step.params
    if step.op in ("sum", "mean"):
        return t.names(p[0])
    if step.op in ("softmax", "logsumexp"):
        return t.spec[p[0]]
    if step.op in ("matmul", "contract") and p[1] != "scatter":
        return t.spec[p[0][0]]
    return ()


@examples(60, phases=PHASES)
@given(st.data())
def test_what_is_accepted_is_one_function(data):
    """A collective is left out anywhere: that is an error, or the replicas agree on what they hand over as one."""
    program = data.draw(programs().filter(lambda p: any(map(reduced, p.steps()))
                                          and not any(s.op in DERIVATIVES for s in p.steps())))
    places = [(i, name) for i, s in enumerate(program.steps()) for name in reduced(s)]
    place, name = data.draw(st.sampled_from(places))
    wrong = dataclasses.replace(program, body=with_fault(program.body, place, ("missing", name)))
    assert wrong.steps()[place].fault == ("missing", name)
    args, sizes = program.arrays(), dict(program.mesh)
    try:
        got = flat(wrong, of_parts(wrong))(*args)
    except AxisError as e:
        assert re.search("varies over|does not vary over|equal on all replicas", str(e)), e
        return
    want = of_replicas(wrong, *args)
    close([cut_whole(np.asarray(y), t.spec, sizes) for y, t in zip(got, program.out_types)], want, "the replicas")


# ---------------------------------------------------------------------------- the tests find what they are for
def test_programs_use_every_operation():
    seen = set()

    @settings(max_examples=250, database=None, phases=[Phase.generate], derandomize=True)
    @given(programs())
    def draw(program: Program) -> None:
        seen.update(step.op for step in program.steps())
    draw()
    assert seen == {*SMOOTH, *MOVES, *SUMS, *HELD}


def cotangent_as_it_is(pvary: Any, ct: Any, x: Any) -> Any:
    return (collectives.pmax(ct, tuple(sorted(aval_of(ct).varying - x.aval.varying))),)


def psum_once_more(psum: Any, ct: Any, x: Any) -> Any:
    varied = collectives.pvary(ct, frozenset(psum.names))
    return (collectives.pvary(collectives.psum(varied, psum.names), frozenset(psum.names)),)


def parts_in_reverse(x: Any, spec: Any, mesh: Any) -> Any:
    return IN_PARTS(x, tuple([names[::-1] for names in spec]), mesh)


IN_PARTS = shard.in_parts
PLANTED = [(collectives.Pvary, "transpose", cotangent_as_it_is), (collectives.Psum, "transpose", psum_once_more),
           (shard, "in_parts", parts_in_reverse)]


@pytest.mark.parametrize("where, name, fault", PLANTED, ids=lambda v: getattr(v, "__name__", None))
def test_a_planted_fault_is_found(monkeypatch, where, name, fault):
    monkeypatch.setattr(where, name, fault)
    search = settings(max_examples=200, database=None, phases=[Phase.generate], print_blob=False, derandomize=True,
                      report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
    test = test_it_is_the_function_of_global_arrays if fault is parts_in_reverse else \
        test_derivatives_inside_are_those_of_global_arrays
    with pytest.raises(AssertionError):
        if fault is parts_in_reverse:
            search(given(programs(), st.just(flat), st.just("eager"))(test.hypothesis.inner_test))()
        else:
            search(given(st.data())(test.hypothesis.inner_test))()
