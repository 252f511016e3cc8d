"""shard: the errors of wrong calls, and random programs with a fault, each of which is an error while it is traced."""
import dataclasses
import re
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest
from control_flow import close as equal
from hypothesis import given, strategies as st
from shard_programs import programs
from shard_worlds import DERIVATIVES, Body, Program, Step, Ty, cut_whole, of_parts, of_replicas, of_wholes
from test_properties import examples
from test_shard import MESH, P, V, X, f32, sharded
from test_shard_random import PHASES, close, flat, grad, specs

import popfn as pf
from popfn.trace.errors import ArgumentError, AxisError, DtypeError, LeakError, ShapeError

Call = Callable[..., Any]


# ---------------------------------------------------------------------------- errors
def f_of(x: Any) -> Any:
    return x


NOT_VARYING = "it is one and the same in all lanes"
ERRORS: Dict[str, Sequence[Any]] = {
    "no axes": (ArgumentError, lambda: pf.Mesh(), "Mesh has no axes", "way out: Mesh(dp=2)"),
    "no replicas": (ArgumentError, lambda: pf.Mesh(dp=0), "the size of axis 'dp' is a number of 1 or more, got 0"),
    "a fraction": (ArgumentError, lambda: pf.Mesh(dp=2.0),
                   "Mesh: the size of axis 'dp' is a number of 1 or more, got 2.0"),
    "a bool": (ArgumentError, lambda: pf.Mesh(tp=True), "the size of axis 'tp' is a number of 1 or more, got True"),
    "a number in a spec": (ArgumentError, lambda: P(0),
                           "P has the name of an axis, a tuple of names or None for each axis, got (0,)"),
    "a list in a spec": (ArgumentError, lambda: P(["dp"]), "a tuple of names or None for each axis, got (['dp'],)"),
    "None among names": (ArgumentError, lambda: P(("dp", None)), "for each axis, got (('dp', None),)"),
    "a name twice": (ArgumentError, lambda: P("dp", "dp"),
                     "P('dp', 'dp') names 'dp' twice: an array is cut over an axis once"),
    "a name twice on an axis": (ArgumentError, lambda: P(("tp", "tp")), "P(('tp', 'tp'),) names 'tp' twice"),
    "no mesh": (ArgumentError, lambda: pf.shard(f_of, {"dp": 2}, P(), P()), "shard takes a mesh, got dict",
                "way out: pf.Mesh(dp=2)"),
    "no function": (ArgumentError, lambda: pf.shard(V, MESH, P(), P()), "shard takes a function first, got ndarray",
                    "way out: shard(f)(x), not shard(f(x))"),
    "None for an array": (ArgumentError, lambda: sharded(f_of, None, P())(V),
                          "shard: in_specs has a pf.P for argument x of F, got None",
                          "way out: pf.P() is for an array that all replicas have"),
    "a name for a spec": (ArgumentError, lambda: sharded(f_of, ("dp",), P())(V),
                          "shard: in_specs has a pf.P for argument x of F, got 'dp'"),
    "a name for a result's": (ArgumentError, lambda: sharded(lambda x: {"y": [x]}, P(), {"y": "dp"})(V),
                              "shard: out_specs has a pf.P for result['y'][0] of F, got 'dp'"),
    "no such axis": (ArgumentError, lambda: sharded(lambda t: t, ({"w": P("rows")},), P())({"w": V}),
                     "shard: P('rows') for argument t['w'] of F names 'rows', which is no axis of Mesh(dp=2, tp=2)"),
    "no such axis of a result": (ArgumentError, lambda: sharded(f_of, P(), P(None, "rows"))(X),
                                 "shard: P(None, 'rows') for result of F names 'rows', which is no axis of Mesh(dp=2"),
    "a spec too long": (ArgumentError, lambda: sharded(lambda t: t, P(None, "tp"), P())((X, [V])),
                        "shard: P(None, 'tp') cuts axis 1 of argument t[1][0] of F, which is f32[8]"),
    "a scalar": (ArgumentError, lambda: sharded(f_of, P("dp"), P())(1.5),
                 "shard: P('dp') cuts axis 0 of argument x of F, which is ~f32[]"),
    "a result's spec too long": (ArgumentError, lambda: sharded(lambda x: (x, x[0]), P("dp"), P("dp"))(V),
                                 "shard: P('dp') puts result[1] of F together along axis 0, but it is f32[]{dp} on "
                                 "each replica"),
    "unequal parts": (ArgumentError, lambda: sharded(lambda t: t, P(None, "tp"), P())({"w": X[:, :3]}),
                      "shard: argument t['w'] of F is f32[8,3]: the 3 elements along axis 1 do not divide into 2 "
                      "parts, the size of 'tp' in Mesh(dp=2, tp=2)", "way out: pad the array, or cut another axis"),
    "unequal parts over two": (ArgumentError, lambda: sharded(f_of, P(("tp", "dp")), P())(V[:6]),
                               "the 6 elements along axis 0 do not divide into 4 parts, the size of 'tp', 'dp' in"),
    "too few specs": (ArgumentError, lambda: sharded(lambda x, y: x, (P(),), P())(V, V),
                      "shard: in_specs has 1 entries, but F was called with 2 positional arguments",
                      "seen: in_specs=(P(),)"),
    "specs of another tree": (ArgumentError, lambda: sharded(f_of, ({"u": P()},), P())({"w": V}),
                              "shard: in_specs for argument x of F is no tree above it: ", "seen: {'u': P()}"),
    "a result's of another tree": (ArgumentError, lambda: sharded(lambda x: (x, x), P(), (P(),))(V),
                                   "shard: out_specs is no tree above the result of F: ", "seen: out_specs=(P(),)"),
    "an object": (ArgumentError, lambda: sharded(lambda x: {"a": [x, "b"]}, P(), P())(V),
                  "result['a'][1] of F is not an array", "way out: return arrays and containers of arrays only"),
    "an aval": (ArgumentError, lambda: sharded(f_of, P(), P())(pf.spec(4)),
                "shard: argument x of F is the aval f32[4], not an array",
                "way out: pf.make_jaxpr(shard(f))(...) and pf.lower take avals"),
    "a name in scope": (AxisError, lambda: pf.vmap(sharded(f_of, P(), P()), axis_name="tp")(X),
                        "shard: the axis 'tp' of Mesh(dp=2, tp=2) is in scope already",
                        "way out: give one of the two another name"),
    "a mesh in itself": (AxisError, lambda: sharded(sharded(f_of, P(), P()), P(), P())(X),
                         "shard: the axis 'dp' of Mesh(dp=2, tp=2) is in scope already"),
    "a missing psum": (AxisError, lambda: sharded(lambda x: {"s": [x.sum()]}, P("dp"), P())(V),
                       "shard: result['s'][0] of F is f32[]{dp}, which varies over 'dp', but its spec P() does not "
                       "name it: the replicas have different results, and none of them is the result",
                       "way out: pf.psum or pf.pmean over 'dp', or name it in out_specs"),
    "two missing": (AxisError, lambda: sharded(lambda x: x.sum(), P("tp", "dp"), P())(X),
                    "is f32[]{dp,tp}, which varies over 'dp', 'tp', but its spec P()",
                    "way out: pf.psum or pf.pmean over 'dp', 'tp', or name it in out_specs"),
    "equal parts": (AxisError, lambda: sharded(lambda x: pf.psum(x, "dp"), P("dp"), P("dp"))(V),
                    "shard: result of F is f32[4], which is equal on all replicas of 'dp', but its spec P('dp') says "
                    "that each has a part of its own", "way out: leave 'dp' out of the spec, or say with pf.pvary(x, "
                    "'dp') that equal parts are meant"),
    "a double psum": (AxisError, lambda: sharded(lambda x: pf.psum(pf.psum(x, "dp"), "dp"), P("dp"), P())(V),
                      f"psum of a value that does not vary over 'dp': {NOT_VARYING}", "the value: f32[4]",
                      "way out: leave psum out, multiply by pf.axis_size('dp'), or say with pf.pvary(x, 'dp') that "
                      "each lane contributes its own"),
    "one of two": (AxisError, lambda: sharded(lambda x: pf.pmax(x, ("dp", "tp")), P("dp"), P())(V),
                   f"pmax of a value that does not vary over 'tp': {NOT_VARYING}", "argument x of <lambda>"),
    "a psum of a constant": (AxisError, lambda: sharded(lambda x: x * pf.psum(1.0, "tp"), P("dp"), P("dp"))(V),
                             f"psum of a value that does not vary over 'tp': {NOT_VARYING}", "~f32[], a constant"),
    "a name given twice": (ArgumentError, lambda: sharded(lambda x: pf.pmean(x, ("dp", "dp")), P("dp"), P())(V),
                           "pmean: the axis 'dp' is named twice", "seen: ('dp', 'dp')"),
    "a mean of what does not vary": (AxisError, lambda: sharded(lambda x: pf.pmean(x, "tp"), P("dp"), P("dp"))(V),
                                     "way out: leave pmean out or say with pf.pvary(x, 'tp')"),
    "a name that is none": (ArgumentError, lambda: pf.Mesh(**{"d p": 2}), "Mesh"),
    "an axis of no mesh": (AxisError, lambda: sharded(lambda x: pf.psum(x, "rows"), P("dp"), P())(V),
                           "psum: there is no axis 'rows' here", "in scope: 'dp', 'tp'"),
    "unequal scatter": (ShapeError, lambda: sharded(
        lambda x: pf.psum_scatter(x, "dp", tiled=True), P("dp"), P())(V[:6]),
                        "psum_scatter: axis 0 of f32[3] has 3 elements for 2 lanes of 'dp'"),
    "no such replica": (ArgumentError, lambda: sharded(lambda x: pf.ppermute(x, "dp", [(0, 2)]), P("dp"), P("dp"))(V),
                        "ppermute: lane 2 as a target is out of range: 'dp' has 2 lanes"),
    "a sum of bools": (DtypeError, lambda: sharded(lambda x: pf.psum(x > 0, "dp"), P("dp"), P())(V),
                       "psum takes signed integers, unsigned integers, float16, float32, got bool[4]"),
    "a whole array among parts": (ShapeError, lambda: sharded(lambda x: x + V, P("dp"), P("dp"))(V),
                                  "add: shapes do not broadcast: f32[4] and f32[8]"),
    "a value that leaks": (LeakError, lambda: leaked(), "a traced value was used outside the trace",
                           "the value: f32[4]{dp}, argument x of <lambda>"),
    "a loop that replicas leave": (
        AxisError, lambda: sharded(lambda x: pf.while_loop(lambda c: (c < 9).all(), lambda c: c + pf.psum(c, "dp"), x),
                                   P("dp"), P("dp"))(V), "while: replicas meet in a loop over axis 'dp'"),
    "a branch that some take": (
        AxisError, lambda: sharded(lambda x: pf.cond(pf.axis_index("dp") > 0, lambda x: pf.psum(x, "dp"),
                                                     lambda x: pf.psum(-x, "dp"), x), P("dp"), P("dp"))(V),
        "cond: replicas meet in a branch over axis 'dp'"),
    "a cotangent that varies": (ShapeError, lambda: wrong_rule(),
                                "returns the cotangent of w as f32[4]{dp}, expected f32[]"),
}


def leaked() -> Any:
    box: List[Any] = []
    sharded(lambda x: box.append(x) or x, P("dp"), P("dp"))(V)  # type: ignore[func-returns-value]
    return box[0] + 1


def wrong_rule() -> Any:
    h = pf.custom_vjp(lambda x, w: x * w)
    h.defvjp(lambda x, w: (x * w, (x, w)), lambda r, ct: (ct * r[1], ct * r[0]))
    return pf.grad(lambda w: sharded(lambda x, w: pf.psum(h(x, w), "dp"), (P("dp"), P()), P())(V, w).sum())(f32(2))


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    """What is wrong, where, and the way out, eagerly and while a function is traced; the next call works."""
    error, call, *texts = ERRORS[name]
    for run in (call, lambda: pf.make_jaxpr(lambda a: call())(f32(0))):
        with pytest.raises(error) as e:
            run()
        text = re.sub(r"(<lambda>\.)*(<lambda>|f_of) \([^()]*\.py:\d+\)", "F", str(e.value))
        text = re.sub(r"shard\.<locals>\.F|f_of", "F", text)
        assert all(t in text for t in texts), text
        assert re.search(r"\n  at \S*test_shard_errors\.py:\d+", str(e.value)), text
    equal(sharded(lambda x: pf.psum(x, "dp"), P("dp"), P())(V), V[:4] + V[4:], "the next call")


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
        assert text[1].startswith("at "), text
        assert re.search(r"test_shard_(errors|random)\.py:|shard_worlds\.py:", text[1]), text
        if kind == "double":
            assert text[2].startswith("the value: f32["), text
        else:
            assert re.search(r"test_shard_(errors|random)\.py:", text[1]), text
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
