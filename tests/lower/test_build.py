"""From jaxprs to graphs: values, empty arrays, sub-graphs, state; and rules that break their contract."""
import inspect
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lowering_cases import (
    DENSE,
    PROGRAMS,
    TABLE,
    TWO_LAYERS,
    call,
    data,
    equal,
    expected,
    f16,
    jaxpr_of,
    lower,
    program,
    s,
    table_program,
)

from popfn.lower.build import identifier, short_scalar, unique
from popfn.lower.runner import compile_flat
from popfn.lower.session import Session
from popfn.trace import prims, tree
from popfn.trace.errors import InputError, LoweringError
from popfn.trace.jaxpr import Eqn, Jaxpr, Var
from popfn.trace.parse import parse_jaxpr
from popfn.trace.prims.elementwise import Exp
from popfn.trace.prims.reduce import Max
from popfn.trace.tracer import literal


def lines(error):
    return [line.strip() for line in str(error.value).splitlines()]


# ---------------------------------------------------------------------------- values
@pytest.mark.parametrize("case", PROGRAMS)
def test_a_program_computes_what_its_jaxpr_means(case):
    made, args, state = program(case)
    new, out = expected(made, args, state)
    with Session(made, state) as session:
        got = tree.leaves(session.run(*args))
        kept = tree.leaves(session.state)
    assert (len(got), len(kept)) == (len(out), len(new))
    for x, want in zip(got + kept, out + new):
        equal(x, want)


@pytest.mark.parametrize("case", ["swap", "rotate", "sgd"])
def test_state_goes_on_from_run_to_run(case):
    made, args, state = program(case)
    with Session(made, state) as session:
        for _ in range(3):
            new, out = expected(made, args, state)
            for x, want in zip(tree.leaves(session.run(*args)), out):
                equal(x, want)
            state = session.state
            for x, want in zip(tree.leaves(state), new):
                equal(x, want)


# ---------------------------------------------------------------------------- graphs
def test_one_graph_per_jaxpr_however_often_it_is_called():
    ir = program("calls")[0].ir
    graphs = {g.name: g for g in ir.main_graph.called_graphs}
    assert sorted(graphs) == ["dense_subgraph(0)", "two_layers_subgraph(1)"]
    assert graphs["two_layers_subgraph(1)"].called_graphs == (graphs["dense_subgraph(0)"],)
    assert [op.kind for op in graphs["two_layers_subgraph(1)"].ops] == ["call", "call"]
    assert [t.name for t in graphs["dense_subgraph(0)"].inputs] == ["a", "b", "c"]


def test_equal_jaxprs_share_a_graph():
    again = jaxpr_of(lambda x, w, b: prims.gelu(prims.add(prims.dot_general(x, w, (1,), (0,)), b)),
                     s(4, 3), s(3, 3), s(3))
    assert again is not DENSE and again == DENSE
    made = lower(lambda x, w, b: call(DENSE, call(again, x, w, b), w, b), s(4, 3), s(3, 3), s(3))
    assert len(made.ir.main_graph.called_graphs) == 1


def test_constants_are_made_once_per_graph_and_value():
    def f(x):
        y = prims.add(prims.mul(x, literal(0.5, s())), literal(0.5, s()))
        return prims.add(prims.add(y, literal(0.0, s())), literal(-0.0, s()))
    made = lower(f, s(3))
    assert sorted(float(c.data) for c in made.ir.main_graph.constants) == [-0.0, 0.0, 0.5]
    assert sorted(np.signbit(c.data) for c in made.ir.main_graph.constants) == [False, False, True]


def test_a_graph_gives_each_output_a_tensor_of_its_own():
    inner = jaxpr_of(lambda x: (prims.exp(x), literal(2.0, s()), x), s(2))
    twice = Jaxpr(inner.inputs, inner.outputs + inner.outputs, inner.eqns)
    made = lower(lambda x: call(twice, x), s(2))
    graph, = made.ir.main_graph.called_graphs
    assert len(set(graph.outputs)) == len(graph.outputs) == 6
    x = np.array([0, 1], np.float32)
    with Session(made) as session:
        for got, want in zip(session.run(x), twice.eval(x)):
            equal(got, want)


def test_state_is_written_last_and_copied_where_it_is_read_by_another_update():
    ops = [op.kind for op in program("swap")[0].ir.main_graph.ops]
    assert ops[-4:] == ["identity", "identity", "copy_var_update_", "copy_var_update_"]
    assert ops.index("host_store") < ops.index("copy_var_update_")
    assert [op.kind for op in program("rotate")[0].ir.main_graph.ops].count("identity") == 2
    assert "identity" not in [op.kind for op in program("sgd")[0].ir.main_graph.ops]


def test_what_nothing_reads_has_no_stream_and_what_does_not_change_no_update():
    made = program("passing")[0]
    assert (list(made.loads), list(made.variables), list(made.stores)) == (["x"], ["read"], ["out"])
    assert [op.kind for op in made.ir.main_graph.ops] == ["host_load", "mul", "host_store"]


def test_empty_arrays_never_reach_popxl():
    for case in ("empties", "empty_calls", "nothing"):
        ir = program(case)[0].ir
        for graph in (ir.main_graph, *ir.main_graph.called_graphs):
            assert all(0 not in t.shape for t in graph.tensors)
    made = program("empties")[0]
    assert list(made.loads) == ["x"] and list(made.stores) == ["out[0]", "out[1]", "out[2]", "out[4]", "out[5]"]
    assert program("nothing")[0].loads == program("nothing")[0].stores == {}


def test_state_without_elements_stays_on_the_host():
    made = lower(lambda e, x: (prims.exp(e), prims.sum_over(x, (0,))), s(0), s(2), state=(0,))
    assert made.variables == {}
    with Session(made, np.zeros(0, np.float32)) as session:
        assert session.run(np.ones(2, np.float32)) == 2
        assert session.state.shape == (0,)


def test_float16_results_are_float16():
    made, args, _ = program("halves")
    with Session(made) as session:
        assert {x.dtype for x in session.run(*args)} == {np.dtype(f16)}


def test_a_jaxpr_without_its_constants():
    text = str(jaxpr_of(lambda x: prims.add(x, np.ones(3, np.float32)), s(3)))
    with pytest.raises(InputError, match="^this jaxpr was parsed without its constants"):
        compile_flat(parse_jaxpr(text), ["x"])


# ---------------------------------------------------------------------------- compile_flat
def test_compile_flat():
    run = compile_flat(TWO_LAYERS, ["x", "params['w']", "params['b']"])
    args = [data(a, i) for i, a in enumerate(TWO_LAYERS.in_avals)]
    first, = run(args)
    kept = first.copy()
    equal(first, TWO_LAYERS.eval(*args)[0])
    second, = run([-x for x in args])
    assert second is not first and not np.array_equal(first, second)
    np.testing.assert_array_equal(first, kept)


def test_compile_flat_from_several_threads():
    run = compile_flat(jaxpr_of(lambda x: prims.mul(prims.add(x, x), x), s(1000)), ["x"])

    def work(n):
        x = np.full(1000, n, np.float32)
        return all((run([x])[0] == 2 * n * n).all() for _ in range(200))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_compile_flat_without_anything_to_compute():
    run = compile_flat(jaxpr_of(prims.exp, s(0, 2)), ["x"])
    assert run([np.zeros((0, 2), np.float32)])[0].shape == (0, 2)


# ---------------------------------------------------------------------------- rules that break the contract
def test_a_rule_that_gives_another_shape(monkeypatch):
    monkeypatch.setattr(Exp, "lower", lambda self, px, x: px.ops.flatten(x))
    with pytest.raises(LoweringError) as error:
        lower(prims.exp, s(2, 3))
    assert lines(error) == ["the lower rule of exp gives f32[6], but the result is f32[2,3]",
                            lines(error)[1],
                            "the rule: Exp.lower of f32[2,3]",
                            "the fault is in the rule, not in the program"]


def test_an_error_names_the_users_line(monkeypatch):
    def model(x):
        y = prims.neg(x)
        return prims.exp(y)  # here
    monkeypatch.setattr(Exp, "lower", lambda self, px, x: px.ops.cast(x, px.float16))
    with pytest.raises(LoweringError) as error:
        lower(model, s(3))
    line = inspect.getsourcelines(model)[1] + 2
    path = os.path.relpath(__file__)
    assert lines(error) == ["the lower rule of exp gives f16[3], but the result is f32[3]",
                            f"at {path}:{line}, in model: return prims.exp(y)  # here",
                            "the rule: Exp.lower of f32[3]",
                            "the fault is in the rule, not in the program"]


@pytest.mark.parametrize("rule, text", [
    (lambda self, px, x: None, "the lower rule of exp gives a NoneType, but the result is f32[3]"),
    (lambda self, px, x: (x, x), "the lower rule of exp gives f32[3], f32[3], but the result is f32[3]"),
    (lambda self, px, x: px.ops.add(x, px.constant(1, px.int32)),
     "the lower rule of exp failed: popart_exception: add: the dtypes of Tensor[x"),
    (lambda self, px, x: px.ops.no_such_op(x), "the lower rule of exp failed: AttributeError: "),
    (lambda self, px, x: px.ops.add(x, 1.0), "the lower rule of exp failed: TypeError: add: rhs must be a Tensor"),
])
def test_a_rule_that_fails(monkeypatch, rule, text):
    monkeypatch.setattr(Exp, "lower", rule)
    with pytest.raises(LoweringError) as error:
        lower(prims.exp, s(3))
    assert lines(error)[0].startswith(text)
    assert "the rule: Exp.lower of f32[3]" in lines(error)


def test_an_empty_operand_that_nothing_is_known_of(monkeypatch):
    monkeypatch.setattr(Max, "abstract", lambda self, x, y: s(2))
    x, y = Var(s(0)), Var(s(2))
    out = Var(s(2))
    with pytest.raises(LoweringError) as error:
        compile_flat(Jaxpr([x, y], [out], [Eqn(Max((0,)), (x, y), (out,))]), ["x", "y"])
    assert lines(error) == ["max takes an operand without elements, which PopXL does not have",
                            "the rule: Max.lower of f32[0], f32[2]",
                            "way out: leave the empty array out of this operation"]


# ---------------------------------------------------------------------------- the SDK's signatures
with open(os.path.join(os.path.dirname(__file__), "..", "data", "popxl_signatures.json")) as file:
    SIGNATURES = json.load(file)


def check_call(c):
    """Raise TypeError if a recorded call does not fit PopXL's signature."""
    name = "Ir.create_graph" if c.callee == "create_graph" else c.callee
    inspect.signature(eval(f"lambda {SIGNATURES['popxl.' + name]}: 0")).bind(*c.args, **c.kwargs)


def all_calls(body):
    for c in body.calls:
        yield c
        if c.callee == "create_graph":
            yield from all_calls(c.args[0])


def test_every_call_fits_the_signatures_of_popxl():
    seen = set()
    for case in PROGRAMS:
        for c in all_calls(program(case)[0].built.main):
            check_call(c)
            seen.add(c.callee)
    assert len(TABLE) > 200
    for case in TABLE:
        for c in all_calls(table_program(case).built.main):
            check_call(c)
            seen.add(c.callee)
    assert {"create_graph", "h2d_stream", "ops.call", "ops.matmul", "ops.var_updates.copy_var_update_"} <= seen


def test_a_call_that_does_not_fit_is_found(monkeypatch):
    monkeypatch.setattr("popfn.host.ops.exp", lambda t, fast=False: t)
    monkeypatch.setattr(Exp, "lower", lambda self, px, x: px.ops.exp(x, fast=True))
    with pytest.raises(TypeError, match="unexpected keyword argument 'fast'"):
        for c in all_calls(lower(prims.exp, s(3)).built.main):
            check_call(c)


# ---------------------------------------------------------------------------- small things
@pytest.mark.parametrize("text, name", [
    ("params['w1']", "params_w1"), ("xs[1]", "xs_1"), ("layers[0].w", "layers_0_w"), ("argument 3", "argument_3"),
    ("<lambda>", "lambda_"), ("2x", "_2x"), ("class", "class_"), ("['ä b']", "ä_b"), ("...", "")])
def test_identifier(text, name):
    assert identifier(text) == name
    assert not name or name.isidentifier()


def test_unique():
    taken = {"x"}
    assert [unique("x", taken), unique("x", taken), unique("y", taken)] == ["x_1", "x_2", "y"]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-45, 3.4028235e38, -0.0, np.inf, 16777217.0, 0.7978845608])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_short_scalar_has_the_same_bits(value, dtype):
    with np.errstate(over="ignore"):
        x = np.asarray(value, dtype)
    assert np.asarray(short_scalar(x), dtype).tobytes() == x.tobytes()


def test_names_of_streams_and_variables():
    made = program("sgd")[0]
    assert {path: v.name for path, v in made.variables.items()} == {
        "params['v']": "params_v", "params['w']": "params_w"}
    assert {path: v.tensor_id for path, v in made.loads.items()} == {"x": "x", "y": "y"}
    clash = lower(lambda a, a_b, out: (prims.neg(a["b"]), prims.exp(a_b), out), {"b": s(2)}, s(2), s(2))
    assert {path: v.tensor_id for path, v in clash.loads.items()} == {"a['b']": "a_b", "a_b": "a_b_1", "out": "out"}
    clash = lower(prims.exp, s(2), names=["out"])
    assert (clash.loads["out"].tensor_id, clash.stores["out"].tensor_id) == ("out", "out_1")
