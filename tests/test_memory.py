"""Memory in types: how it prints, what an operation makes of it, and that no transform changes a value for it."""
import copy
import pickle
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from cases import CASES, Case
from control_flow import all_equations, close
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace import prims
from popfn.trace.aval import BY_NAME, MEMORIES, Aval
from popfn.trace.errors import ArgumentError, JaxprError, ShapeError
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.prims.memory import Parts, Place
from popfn.trace.tracer import Trace, bind
from popfn.transforms.scan import Scan

f32 = np.float32
rng = np.random.default_rng(0)
WS = rng.normal(size=(3, 2, 2)).astype(f32) / 2
C = rng.normal(size=2).astype(f32)
X = rng.normal(size=(4, 2)).astype(f32)


def places(jaxpr: Jaxpr) -> List[str]:
    """Where values are moved, those in jaxprs included, in order."""
    return [e.primitive.memory for e in all_equations(jaxpr) if isinstance(e.primitive, Place)]


# ---------------------------------------------------------------------------- types
avals = st.builds(Aval, st.lists(st.integers(0, 4), max_size=3), st.sampled_from(sorted(BY_NAME)), st.booleans(),
                  st.sets(st.sampled_from(["i", "j"])), st.sampled_from(MEMORIES))


def of_text(text: str) -> Aval:
    return pf.parse_jaxpr(f"{{ lambda ; a:{text} . let in (a,) }}").in_avals[0]


@pytest.mark.parametrize("aval, text", [
    (Aval((4, 2), memory="remote"), "f32[4,2]@remote"), (Aval((), "int32", memory="host"), "i32[]@host"),
    (Aval((3,), "f16", True, memory="remote"), "~f16[3]@remote"), (Aval((2,), varying=["j", "i"], memory="remote"),
                                                                   "f32[2]{i,j}@remote"),
    (Aval((4,), memory="device"), "f32[4]")])
def test_types_print_their_memory_and_are_read_back(aval, text):
    assert str(aval) == text and of_text(text) is aval


@given(avals)
def test_equal_types_are_one_object(aval):
    assert of_text(str(aval)) is aval
    for again in (pickle.loads(pickle.dumps(aval)), copy.copy(aval), copy.deepcopy(aval),
                  Aval(aval.shape, aval.dtype, aval.weak, aval.varying, aval.memory)):
        assert again is aval


@given(avals, st.sampled_from(MEMORIES))
def test_what_is_changed_in_a_type_leaves_the_rest(aval, memory):
    moved = aval.at(memory)
    assert moved.memory == memory and moved.at(aval.memory) is aval
    assert (moved.shape, moved.dtype, moved.weak, moved.varying) == (aval.shape, aval.dtype, aval.weak, aval.varying)
    for same in (aval.with_shape((7,)), aval.over(frozenset("k")), aval.strong, aval.invariant):
        assert same.memory == aval.memory
    assert aval.over(frozenset("k")).at(memory) is moved.over(frozenset("k"))


def test_unknown_memories():
    with pytest.raises(ShapeError, match="a memory is one of 'device', 'remote', 'host', got 'moon'"):
        Aval((2,), memory="moon")
    with pytest.raises(JaxprError, match="a memory, one of device, remote, host"):
        of_text("f32[2]@moon")


# ---------------------------------------------------------------------------- pf.remote and pf.load
def test_trees_of_avals_and_arrays():
    tree = {"w": pf.spec((2, 2)), "b": [np.zeros(2, f32), 1.5]}
    far = pf.remote(tree)
    assert str(far["w"]) == "f32[2,2]@remote" and [str(x.aval) for x in far["b"]] == ["f32[2]@remote", "~f32[]@remote"]
    near = pf.load(far)
    assert near["w"] is tree["w"] and [str(x.aval) for x in near["b"]] == ["f32[2]", "~f32[]"]
    assert [np.asarray(x).tolist() for x in near["b"]] == [[0, 0], 1.5]
    assert pf.remote(far)["b"][0] is far["b"][0] and pf.load(near)["b"][0] is near["b"][0]


@pytest.mark.parametrize("call, first", [
    (lambda: pf.remote("a"), "remote takes arrays and avals: a value of type str is not an array or a number: 'a'"),
    (lambda: pf.load({"x": [1, "b"]}), "load takes arrays and avals: a value of type str is not an array or a number: "
                                       "'b'"),
    (lambda: pf.remote(object), "remote takes arrays and avals: a value of type type is not an array or a number: "
                                "<class 'object'>")])
def test_what_has_no_memory(call, first):
    for run in (call, lambda: pf.make_jaxpr(lambda a: call())(f32(0))):
        with pytest.raises(ArgumentError) as e:
            run()
        lines = str(e.value).split("\n  ")
        assert lines[0] == first and lines[1].startswith("at tests/test_memory.py:") and len(lines) == 2, e.value


# ---------------------------------------------------------------------------- operations
def some_rows() -> List[Case]:
    """Two rows of each primitive with operands, but of those that are about memory."""
    rows: Dict[str, List[Case]] = {}
    for case in CASES:
        if case.operands and not isinstance(case.primitive, (Place, Parts)):
            rows.setdefault(case.primitive.name, []).append(case)
    return [case for found in rows.values() for case in (found[0], found[-1])]


@pytest.mark.parametrize("case", some_rows(), ids=lambda c: c.name)
def test_operations_load_their_operands_and_compute_on_the_device(case: Case):
    """Each value is moved once, however often it is used."""
    far = [a.at("remote") for a in case.avals]
    with Trace("far") as trace:
        operands = trace.add_inputs(far)
        once, twice = (bind(case.primitive, operands) for _ in range(2))
        first = once if case.primitive.multiple else (once,)
        jaxpr = trace.finish([*first, *(twice if case.primitive.multiple else (twice,))])
    jaxpr.check()
    assert {a.memory for a in jaxpr.out_avals} <= {"device"}
    moved = [e for e in jaxpr.eqns if isinstance(e.primitive, Place)]
    assert [e.inputs[0] for e in moved] == list(jaxpr.inputs) and {e.primitive.memory for e in moved} == {"device"}
    assert list(jaxpr.out_avals[:len(first)]) == list(first_avals(case))
    for got, want in zip(jaxpr.eval(*case.operands), plain(case).eval(*case.operands)):
        assert got.tobytes() == want.tobytes()
    eager = bind(case.primitive, [pf.Array.wrap(x, a) for x, a in zip(case.operands, far)])
    assert [y.aval for y in (eager if case.primitive.multiple else (eager,))] == list(first_avals(case))


def plain(case: Case) -> Jaxpr:
    with Trace("near") as trace:
        out = bind(case.primitive, trace.add_inputs(case.avals))
        return trace.finish(out if case.primitive.multiple else (out,))


def first_avals(case: Case) -> Any:
    return plain(case).out_avals


@pytest.mark.parametrize("axis, memory", [(0, "remote"), (1, "device")])
def test_parts_along_the_first_axis_stay_in_remote_memory(axis, memory):
    """They are entries of its buffer as it lies. Elsewhere, and where a mapped axis is in front, they are loaded."""
    def both(x: Any) -> Any:
        y = prims.cut(x, 2, axis)
        return y, prims.join(y, axis)
    x = np.arange(24, dtype=f32).reshape(4, 6)
    jaxpr = pf.make_jaxpr(both)(pf.remote(pf.spec(x.shape)))
    assert [a.memory for a in jaxpr.out_avals] == [memory] * 2
    assert places(jaxpr) == (["device"] if axis else [])
    want = np.stack(np.split(x, 2, axis)), x
    close(both(pf.remote(x)), want, "eager")
    for mapped in (0, 1, -1):
        made = pf.vmap(both, mapped)
        lanes = np.stack([x, x * 2, -x], mapped)
        close(made(pf.remote(lanes)), tuple(np.stack([y, y * 2, -y]) for y in want), "vmap")
    close(pf.grad(lambda x: (both(x)[0] ** 2 * np.cos(want[0])).sum())(pf.remote(x)), 2 * x * np.cos(x), "grad")


def test_memory_and_mapped_axes_go_together():
    seen = []

    def lane(w: Any) -> Any:
        seen.append(str(w.aval))
        y = w * 2 + pf.psum(w, "i")
        seen.append(str(y.aval))
        return pf.remote(y)
    jaxpr = pf.make_jaxpr(pf.vmap(lane, axis_name="i"))(pf.remote(pf.spec((3, 2))))
    assert seen == ["f32[2]{i}@remote", "f32[2]{i}"]
    assert str(jaxpr.in_avals[0]) == str(jaxpr.out_avals[0]) == "f32[3,2]@remote"
    assert places(jaxpr) == ["device", "remote"]


# ---------------------------------------------------------------------------- programs
FUNCTIONS: Dict[str, Callable[[Any], Any]] = {  # of weights f32[3,2,2], to a scalar
    "operations": lambda w: (w @ w + w).sum(),
    "an index": lambda w: pnp.sin(w[1] @ C).sum(),
    "there and back": lambda w: pnp.sin(pf.load(pf.remote(w @ w))).sum(),
    "elements of a scan": lambda w: pf.scan(lambda h, v: (pnp.tanh(h @ v), None), pnp.asarray(C), w)[0].sum(),
    "a constant of a scan": lambda w: pf.scan(
        lambda h, x: (pnp.tanh(h @ w[0] + x), None), pnp.asarray(C), X)[0].sum(),
    "a constant of a scan that is loaded": lambda w: pf.scan(
        lambda h, x: (pnp.tanh(h @ pf.load(w)[0] + x), None), pnp.asarray(C), X)[0].sum(),
    "the carry of a scan": lambda w: pf.scan(lambda h, x: (pf.remote(pnp.tanh(h + x)), None), w, X)[0].sum(),
    "results of a scan": lambda w: (pf.scan(
        lambda h, v: (pnp.tanh(h @ v), pf.remote(h * v)), pnp.asarray(C), w)[1] ** 2).sum(),
    "scans of scans": lambda w: pf.scan(
        lambda h, x: (pf.scan(lambda g, v: (pnp.tanh(g @ v), None), h + x, w)[0], None), pnp.asarray(C), X)[0].sum(),
    "map": lambda w: (pf.map(lambda v: v @ C, w) ** 2).sum(),
    "fori_loop": lambda w: pf.fori_loop(0, 2, lambda i, h: pnp.sin(h @ w[0]), pnp.asarray(C)).sum(),
    "cond": lambda w: pf.cond(w.sum() > 0, lambda w: w @ w, lambda w: w, w).sum(),
    "switch": lambda w: pf.switch(1, [lambda w: w, lambda w: w * w, lambda w: w @ w], w).sum(),
    "jit": lambda w: sum(pf.jit(quadratic)(w) for _ in range(2)),
    "the carry of while_loop": lambda w: pf.while_loop(
        lambda h: h.sum() < 9, lambda h: pf.remote(h * h + 0.5), w, max_steps=3).sum(),
    "a constant of while_loop": lambda w: pf.while_loop(
        lambda h: h.sum() < 9, lambda h: pnp.sin(h * w) + 0.5, w, max_steps=3).sum(),
    "checkpoint": lambda w: pf.checkpoint(quadratic)(w),
    "checkpoint in a scan": lambda w: pf.scan(
        lambda h, v: (pf.checkpoint(lambda h, v: pnp.tanh(pnp.sin(h @ v)))(h, v), None), pnp.asarray(C), w)[0].sum(),
    "custom_vjp": lambda w: ruled(w).sum(),
    "vmap": lambda w: pf.vmap(lambda v: pnp.sin(v @ C))(w).sum(),
    "batch_serialise": lambda w: (pf.batch_serialise(lambda v: pnp.sin(v @ C), 3)(w) ** 2).sum(),
    "batch_serialise around it": lambda w: (pf.batch_serialise(
        lambda x, w: pnp.sin(x @ w[0]), 2, in_axes=(0, None))(X, w) ** 2).sum(),
}
TRANSFORMS: Dict[str, Callable[..., Any]] = {
    "value": lambda f: f,
    "grad": pf.grad,
    "vjp": lambda f: lambda w: pf.vjp(f, w)[1](pnp.asarray(1.0))[0],
    "jvp": lambda f: lambda w: pf.jvp(f, (w,), (pnp.cos(w),))[1],
    "hessian": lambda f: lambda w: pf.hessian(lambda c: f(w * c))(pnp.asarray(np.ones(2, f32))),
    "grad of grad": lambda f: pf.grad(lambda w: (pf.grad(f)(w) ** 2).sum()),
    "vmap": lambda f: lambda w: pf.vmap(f)(pf.remote(pnp.stack([w, w * 2]))),
    "vmap of grad": lambda f: lambda w: pf.vmap(pf.grad(f))(pf.remote(pnp.stack([w, w * 2]))),
    "grad of vmap": lambda f: lambda w: pf.grad(lambda w: pf.vmap(f)(pf.remote(pnp.stack([w, w * 2]))).sum())(w),
    "named lanes": lambda f: pf.grad(lambda w: pf.vmap(
        lambda v: f(pf.remote(v)) * pf.psum(f(v), "i"), axis_name="i")(pnp.stack([w, w * 2])).sum()),
}


def quadratic(w: Any) -> Any:
    return pnp.sin(w @ w).sum()


def rule() -> Any:
    f = pf.custom_vjp(lambda w: w ** 3)
    f.defvjp(lambda w: (w ** 3, w), lambda w, ct: (3 * w * w * ct,))
    return f


ruled = rule()


@pytest.mark.parametrize("name, transform", [
    (name, transform) for name in FUNCTIONS for transform in TRANSFORMS
    if name != "custom_vjp" or transform not in ("jvp", "hessian")])  # it has no forward mode
def test_memory_changes_no_value(name, transform):
    f, change = FUNCTIONS[name], TRANSFORMS[transform]
    want = change(f)(WS)
    close(change(lambda w: f(pf.remote(w)))(WS), want, "stored inside", 1e-4)
    jaxpr = pf.make_jaxpr(change(f))(pf.remote(pf.spec(WS.shape)))
    close(jaxpr.eval(WS)[0], want, "a remote argument", 1e-4)
    if "custom_vjp" not in str(jaxpr):  # which holds Python functions
        assert pf.parse_jaxpr(str(jaxpr), jaxpr.constants) == jaxpr


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eager_memory_changes_no_value(name):
    close(FUNCTIONS[name](pf.remote(WS)), FUNCTIONS[name](WS), name, 1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_lie_where_the_values_do(name):
    for memory in ("device", "remote"):
        aval = pf.spec(WS.shape).at(memory)
        assert pf.make_jaxpr(pf.grad(FUNCTIONS[name]))(aval).out_avals == (aval,)


LOOPS: Dict[str, Callable[[Any], Any]] = {
    "scan": lambda w: pf.scan(lambda h, x: (pnp.tanh(h + x), None), w, X)[0],
    "fori_loop": lambda w: pf.fori_loop(0, 3, lambda i, h: h * 2, w),
    "while_loop": lambda w: pf.while_loop(lambda h: h.sum() < 9, lambda h: h * 2, w, max_steps=3),
}


@pytest.mark.parametrize("memory", ["device", "remote"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_carry_stays_where_it_begins(name, memory):
    aval = pf.spec((4, 2)).at(memory)
    assert pf.make_jaxpr(LOOPS[name])(aval).out_avals == (aval,)
    back = pf.make_jaxpr(pf.grad(lambda w: LOOPS[name](w).sum()))(aval)
    assert back.out_avals == (aval,)


# ---------------------------------------------------------------------------- what is kept
def layers(ws: Any, x: Any) -> Any:
    return pf.scan(lambda h, w: (pnp.tanh(h @ w), None), x, ws)[0]


def shared(w: Any, x: Any) -> Any:
    return pf.scan(lambda h, _: (pnp.tanh(h @ w), None), x, None, length=3)[0]


@pytest.mark.parametrize("f, ws", [
    (layers, WS), (shared, WS[0]), (lambda ws, x: pf.jit(layers)(ws, x), WS),
    (lambda ws, x: pf.scan(lambda h, w: (pf.jit(lambda h, w: pnp.tanh(h @ w))(h, w), None), x, ws)[0], WS),
], ids=["elements", "constant", "in a call", "calls"])
def test_the_backward_scan_loads_weights_again(f, ws):
    """Of the weights nothing is kept on the device: what is stacked are a step's input and its slope."""
    jaxpr = pf.make_jaxpr(pf.grad(lambda ws, x: f(ws, x).sum(), (0, 1)))(pf.remote(ws), X)
    forward, backward = [e for e in all_equations(jaxpr) if isinstance(e.primitive, Scan)]
    assert [str(v.aval) for v in forward.outputs] == ["f32[4,2]", "f32[3,4,2]", "f32[3,4,2]"]
    remote = str(pf.spec(ws.shape).at("remote"))
    for scan in (forward, backward):
        assert [str(a.aval) for a in scan.inputs].count(remote) == 1
        assert places(scan.primitive.jaxpr).count("device") == 1
    assert not [e for e in jaxpr.eqns if isinstance(e.primitive, Place) and e.primitive.memory == "device"]


STEPS: Dict[str, Callable[[Any, Any], Any]] = {  # of a carry and constant weights
    "operations": lambda h, w: pnp.tanh(h @ w),
    "twice": lambda h, w: pnp.tanh(pnp.sin(h @ w) @ w),
    "jit": pf.jit(lambda h, w: pnp.tanh(h @ w)),
    "checkpoint": pf.checkpoint(lambda h, w: pnp.tanh(h @ w)),
    "cond": lambda h, w: pf.cond(h.sum() > 0, lambda h, w: pnp.tanh(h @ w), lambda h, w: h, h, w),
    "switch": lambda h, w: pf.switch(1, [lambda: h, lambda: pnp.tanh(h @ w), lambda: pnp.sin(w @ h)]),
    "scan": lambda h, w: pf.scan(lambda h, _: (pnp.tanh(h @ w), None), h, None, length=2)[0],
    "fori_loop": lambda h, w: pf.fori_loop(0, 2, lambda i, h: pnp.tanh(h @ w), h),
    "while_loop": lambda h, w: pf.while_loop(lambda h: h.sum() < 1, lambda h: pnp.tanh(h @ w), h, max_steps=2),
    "custom_vjp": lambda h, w: h @ ruled(w),
}


@pytest.mark.parametrize("name", STEPS)
def test_cotangents_of_constants_are_added_up_on_the_device(name):
    """Whatever a step holds: the gradient is stored once, behind the loop."""
    def loss(w: Any) -> Any:
        return pf.scan(lambda h, x: (STEPS[name](h, w) + x, None), pnp.asarray(C), X)[0].sum()
    jaxpr = pf.make_jaxpr(pf.grad(loss))(pf.remote(WS[0]))
    stores = [v for e in jaxpr.eqns for v in e.outputs if e.primitive == Place("remote")]
    assert places(jaxpr).count("remote") == len(stores) == 1 and stores == list(jaxpr.outputs)
    assert jaxpr.out_avals == (jaxpr.in_avals[0],)
    close(jaxpr.eval(WS[0])[0], pf.grad(loss)(WS[0]), name, 1e-4)


def test_what_is_kept_of_weights_on_the_device_is_not_loaded():
    jaxpr = pf.make_jaxpr(pf.grad(lambda ws, x: layers(ws, x).sum(), (0, 1)))(WS, X)
    assert places(jaxpr) == []
