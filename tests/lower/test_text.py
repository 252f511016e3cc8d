"""The text of programs: what it computes, what it builds, and how it reads."""
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from lowering_cases import PROGRAMS, TABLE, arguments, equal, expected, lower, program, s, table_program
from programs import programs

import popfn as pf
from popfn.lower.literals import array_text, bytes_text, is_small, number_text, wrapped
from popfn.lower.session import Session
from popfn.trace import prims, tree
from popfn.trace.errors import LoweringError
from popfn.trace.prims.elementwise import Exp
from popfn.trace.tracer import literal


def module(text):
    """The text as a module that runs on the host."""
    assert text.count("import popxl\n") == 1
    scope = {"__name__": "program"}
    exec(compile(text.replace("import popxl\n", "import popfn.host as popxl\n"), "program.py", "exec"), scope)
    return scope


def graph_ops(graph):
    return [(op.kind, [t.shape for t in op.inputs], [(t.shape, t.dtype) for t in op.outputs]) for op in graph.ops]


def ir_ops(ir):
    """All ops of an Ir, graph by graph."""
    found, waiting = {}, [ir.main_graph]
    while waiting:
        graph = waiting.pop(0)
        if graph.name not in found:
            found[graph.name] = graph_ops(graph), [t.name for t in graph.inputs], [t.shape for t in graph.outputs]
            waiting += graph.called_graphs
    return found


@pytest.mark.parametrize("case", PROGRAMS)
def test_the_text_gives_the_programs_own_results(case):
    made, args, state = program(case)
    new, out = expected(made, args, state)
    leaves = arguments(made, args, state)
    names = made.signature.inputs
    held = {names[i]: leaves[i] for i in made.state_leaves}
    results = module(made.as_text())["main"](dict(zip(names, leaves)), held)
    with Session(made, state) as session:
        own = tree.leaves(session.run(*args))
        own_state = tree.leaves(session.state)
    for name, want, mine in zip(made.signature.results, out, own):
        if want.size:
            equal(results[name], want)
            np.testing.assert_array_equal(results[name], mine)
    for i, want, mine in zip(made.state_leaves, new, own_state):
        if want.size:
            equal(held[names[i]], want)
            np.testing.assert_array_equal(held[names[i]], mine)
    assert set(results) <= set(made.signature.results)


@pytest.mark.parametrize("case", PROGRAMS)
def test_the_text_builds_the_same_ir(case):
    made = program(case)[0]
    ir, loads, variables, stores = module(made.as_text())["build"]()
    assert ir_ops(ir) == ir_ops(made.ir)
    assert [(s.tensor_id, s.spec) for s in loads.values()] == [(s.tensor_id, s.spec) for s in made.loads.values()]
    assert [(s.tensor_id, s.spec) for s in stores.values()] == [(s.tensor_id, s.spec) for s in made.stores.values()]
    assert [(v.name, v.spec) for v in variables.values()] == [(v.name, v.spec) for v in made.variables.values()]


def test_the_text_of_every_rule_gives_its_results():
    for case in TABLE:
        made = table_program(case)
        with Session(made) as session:
            own = session.run(*case.operands)
        results = module(made.as_text())["main"](dict(zip(made.signature.inputs, case.operands)))
        for name, want in zip(made.signature.results, own):
            if want.size:
                np.testing.assert_array_equal(results[name], want, err_msg=case.name)


@settings(max_examples=25)
@given(programs(wild=True), st.booleans())
def test_the_text_of_random_programs(random, grad):
    f = pf.value_and_grad(random.loss, argnums=random.floats) if grad and random.floats else random
    made = pf.lower(lambda *xs: f(*xs), *(pf.spec(x.shape, x.dtype) for x in random.inputs), target="host")
    with Session(made) as session:
        own = tree.leaves(session.run(*random.inputs))
    text = module(made.as_text())
    assert ir_ops(text["build"]()[0]) == ir_ops(made.ir)
    results = text["main"](dict(zip(made.signature.inputs, random.inputs)))
    for name, want in zip(made.signature.results, own):
        if want.size:
            np.testing.assert_array_equal(results[name], want)


def test_without_arguments_everything_is_zeros(capsys):
    made = program("sgd")[0]
    assert module(made.as_text())["main"]() == {"out": 0.0}
    scope = {"__name__": "__main__"}
    exec(made.as_text().replace("import popxl\n", "import popfn.host as popxl\n"), scope)
    assert capsys.readouterr().out == "out 0.0\n"


def test_the_text_of_a_program_with_a_session_of_its_own():
    made, args, state = program("sgd")
    before = made.as_text()
    with Session(made, state) as session:
        session.run(*args)
    assert made.as_text() == before


# ---------------------------------------------------------------------------- how it reads
def test_the_text_line_by_line():
    made = program("sgd")[0]
    text = made.as_text()
    assert "\n".join(line for line in text.splitlines() if not line.strip().startswith("#")) == textwrap.dedent('''\
        """sgd as a PopXL program.

        inputs: x f32[4,3], y f32[4,2]
        state: params_v f32[5,2], params_w f32[3,5]
        outputs: out f32[]
        """
        import numpy as np
        import popxl

        ops = popxl.ops


        def build():
            """Return the Ir and its input streams, variables and output streams by name."""
            ir = popxl.Ir()
            with ir.main_graph, popxl.in_sequence():
                x_stream = popxl.h2d_stream((4, 3), popxl.float32, name="x")
                y_stream = popxl.h2d_stream((4, 2), popxl.float32, name="y")
                out_stream = popxl.d2h_stream((), popxl.float32, name="out")
                params_v = popxl.variable(np.zeros((5, 2), np.float32), popxl.float32, name="params_v")
                params_w = popxl.variable(np.zeros((3, 5), np.float32), popxl.float32, name="params_w")
                x = ops.host_load(x_stream)
                y = ops.host_load(y_stream)
                constant = popxl.constant(0.1, popxl.float32)

                tanh = ops.tanh(x @ params_w)
                sub = tanh @ params_v - y
                matmul = ops.transpose(tanh, (1, 0)) @ sub
                mul = sub @ ops.transpose(params_v, (1, 0)) * (1.0 - tanh * tanh)
                matmul_1 = ops.transpose(x, (1, 0)) @ mul
                new_params_w = params_w - matmul_1 * constant
                new_params_v = params_v - matmul * constant
                out = ops.sum(sub * sub, [0, 1])

                ops.host_store(out_stream, out)
                ops.var_updates.copy_var_update_(params_v, new_params_v)
                ops.var_updates.copy_var_update_(params_w, new_params_w)
            loads = {"x": x_stream, "y": y_stream}
            variables = {"params_v": params_v, "params_w": params_w}
            stores = {"out": out_stream}
            return ir, loads, variables, stores


        def main(inputs=None, state=None, device="cpu"):
            """Run the program once and return its outputs by name.

            `inputs` and `state` hold arrays by name, zeros where there is none. The new state is put
            into `state`.
            """
            inputs, state = {} if inputs is None else inputs, {} if state is None else state
            ir, loads, variables, stores = build()
            session = popxl.Session(ir, device)
            session.write_variables_data({v: state[name] for name, v in variables.items() if name in state})
            feeds = {stream: inputs.get(name, np.zeros(stream.shape, stream.dtype.as_numpy()))
                     for name, stream in loads.items()}
            with session:
                results = session.run(feeds)
            state.update((name, np.array(session.get_tensor_data(v))) for name, v in variables.items())
            return {name: results[stream] for name, stream in stores.items()}


        if __name__ == "__main__":
            for name, value in main().items():
                print(name, value)''')
    assert text.endswith("\n")


def test_the_users_lines_stand_above_what_they_became():
    def model(x, w):
        h = prims.tanh(prims.mul(x, w))
        return prims.add(h, h)
    first = model.__code__.co_firstlineno
    lines = [line.strip() for line in lower(model, s(2), s(2)).as_text().splitlines()]
    at = lines.index("tanh = ops.tanh(x * w)")
    assert lines[at - 1:at + 3] == [
        f"# test_text.py:{first + 1}: h = prims.tanh(prims.mul(x, w))", "tanh = ops.tanh(x * w)",
        f"# test_text.py:{first + 2}: return prims.add(h, h)", "out = tanh + tanh"]


def test_subgraphs_are_functions():
    text = program("calls")[0].as_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
    at = lines.index("def dense(a, b, c):")
    assert lines[at:at + 10] == [
        "def dense(a, b, c):",
        '    """From f32[4,3], f32[3,3], f32[3] to f32[4,3]."""',
        "    return ops.gelu(a @ b + c)", "", "",
        "def two_layers(a, b, c, dense_graph):",
        '    """From f32[4,3], f32[3,3], f32[3] to f32[4,3]."""',
        "    dense_1, = ops.call(dense_graph, a, b, c)",
        "    dense_2, = ops.call(dense_graph, dense_1, b, c)",
        "    return dense_2"]
    assert "        two_layers_graph = ir.create_graph(two_layers, x, params_0, params_1, dense_graph)" in lines


def formula(f, *avals):
    """The expression of the single result of a function."""
    lines = lower(f, *avals).as_text().splitlines()
    return [line.strip()[6:] for line in lines if line.startswith("        out = ")][0]


@pytest.mark.parametrize("f, text", [
    (lambda x, y: prims.sub(x, prims.sub(y, x)), "x - (y - x)"),
    (lambda x, y: prims.sub(prims.sub(x, y), x), "x - y - x"),
    (lambda x, y: prims.mul(prims.add(x, y), prims.neg(x)), "(x + y) * -x"),
    (lambda x, y: prims.neg(prims.mul(x, y)), "-(x * y)"),
    (lambda x, y: prims.div(x, prims.mul(y, x)), "x / (y * x)"),
    (lambda x, y: prims.mul(prims.div(x, y), x), "x / y * x"),
    (lambda x, y: prims.add(prims.mul(x, y), prims.mul(y, x)), "x * y + y * x"),
    (lambda x, y: prims.neg(prims.neg(x)), "--x"),
    (lambda x, y: prims.sub(x, literal(-2.0, s())), "x - -2.0"),
    (lambda x, y: prims.sub(literal(-2.0, s()), x), "-2.0 - x"),
    (lambda x, y: prims.pow_(x, literal(2.0, s())), "ops.pow(x, popxl.constant(2.0, popxl.float32))"),
    (lambda x, y: prims.mul(x, literal(np.inf, s())), "x * np.inf"),
])
def test_formulas_have_the_brackets_that_they_need(f, text):
    assert formula(f, s(2), s(2)) == text


def test_what_would_change_the_order_of_ops_is_not_drawn_in():
    def f(x):
        a = prims.exp(x)
        b = prims.sin(x)
        return prims.sub(b, a)
    made = lower(f, s(2))
    body = [line.strip() for line in made.as_text().splitlines()]
    at = body.index("exp = ops.exp(x)")
    assert [line for line in body[at:at + 6] if not line.startswith("#")][:3] == [
        "exp = ops.exp(x)", "sin = ops.sin(x)", "out = sin - exp"]
    assert formula(lambda x: prims.sub(prims.exp(x), prims.sin(x)), s(2)) == "ops.exp(x) - ops.sin(x)"


def test_long_lines_are_broken():
    names = {f"a_rather_long_name_of_a_parameter_{i}": s(2) for i in range(12)}
    made = lower(lambda p: (p, prims.concat(list(p.values()), 0)), names, state=(0,))
    text = made.as_text()
    assert max(map(len, text.splitlines())) <= 100
    module(text)["build"]()


def test_names_do_not_shadow():
    def f(ops, build, sum, np):
        return prims.add(prims.add(ops, build), prims.add(sum, prims.sum_over(np, (0,))))
    made = lower(f, s(), s(), s(), s(3))
    x = np.ones(3, np.float32)
    args = dict(zip(made.signature.inputs, [1.0, 2.0, 3.0, x]))
    assert module(made.as_text())["main"](args) == {"out": 9.0}


def test_a_call_outside_of_px_is_found(monkeypatch):
    monkeypatch.setattr(Exp, "lower", lambda self, px, x: px.ops.exp(x + x))
    made = lower(prims.exp, s(2))
    with pytest.raises(LoweringError) as error:
        made.as_text()
    assert str(error.value) == (
        "a lower rule used Tensor[add_out float32 (2,)], which was not made by a call of px: rules call px alone, "
        "never the operators or methods of tensors")


# ---------------------------------------------------------------------------- literals
def back(text):
    return eval(text, {"np": np, "inf": None, "nan": None})


NEGATIVE_NAN = np.array([0xffc00001, 0x7fc00000], np.uint32).view(np.float32)


@pytest.mark.parametrize("x", [
    np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45, 0.1, 3.4028235e38], np.float32),
    np.array([[0.1, -0.0], [65504, np.nan]], np.float16), np.array([True, False]), np.array([[-128, 127]], np.int8),
    np.array([2 ** 32 - 1], np.uint32), np.zeros((3, 4), np.float32), np.full((2, 2), -0.0, np.float32),
    np.ones(5, bool), np.full((3,), np.nan, np.float16), np.arange(100, dtype=np.int32), np.arange(3, dtype=np.float16),
    np.array(2.5, np.float32), np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32), NEGATIVE_NAN],
    ids=lambda x: f"{x.dtype}-{x.shape}")
def test_arrays_are_exact(x):
    scope = {"np": np}
    if is_small(x):
        scope["y"] = back(array_text(x))
    else:
        exec(bytes_text(x, "y"), scope)
    y = scope["y"]
    assert (y.dtype, y.shape, y.tobytes()) == (x.dtype, x.shape, x.tobytes())


@pytest.mark.parametrize("x, text", [
    (np.zeros((3, 4), np.float32), "np.zeros((3, 4), np.float32)"),
    (np.ones((2,), np.int32), "np.ones((2,), np.int32)"),
    (np.full((2,), 0.1, np.float32), "np.full((2,), 0.1, np.float32)"), (np.arange(9), "np.arange(9, dtype=np.int64)"),
    (np.array([[1, 2], [3, 4]], np.float16), "np.array([[1.0, 2.0], [3.0, 4.0]], np.float16)"),
    (np.array([True, False]), "np.array([True, False], np.bool_)")])
def test_arrays_are_short(x, text):
    assert is_small(x) and array_text(x) == text


def test_large_arrays_and_strange_nans_are_not_small():
    assert not is_small(np.random.default_rng(0).normal(size=40).astype(np.float32)) and not is_small(NEGATIVE_NAN)


@pytest.mark.parametrize("x, text", [
    (0.1, "0.1"), (np.float32(0.1), "0.1"), (-0.0, "-0.0"), (np.inf, "np.inf"), (np.nan, "np.nan"), (3, "3"),
    (True, "True"), (np.array(-np.inf, np.float16), "-np.inf"), (np.bool_(1), "True"), (np.int8(-3), "-3"),
    (0.7978845608, "0.7978845608")])
def test_numbers(x, text):
    assert number_text(x) == text


def test_wrapped():
    text = "f(" + ", ".join(["argument"] * 20) + ")"
    lines = wrapped(text, "    ").splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith("    f(argument") and lines[1].startswith("        argument")
    assert " ".join(line.strip() for line in lines) == text
    assert wrapped("f(x)", "  ") == "  f(x)"


def test_the_text_imports_only_popxl_and_numpy():
    for case in PROGRAMS:
        text = program(case)[0].as_text()
        assert [line for line in text.splitlines() if line.startswith(("import", "from"))] == ["import numpy as np",
                                                                                              "import popxl"]
