"""Loops, branches and transforms inside each other: random programs against JAX, eager, jitted, and transformed."""
import dataclasses
from typing import Any, Callable, List, Sequence, Set, Tuple

import jax
import jax_in_numpy
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from nested_programs import nested_programs
from nested_trees import OPERATIONS, OURS, THEIRS, Body, Node, Num, Program, System, Type, is_float
from references import assert_within, widened
from test_properties import assert_round_trip, examples

import popfn as pf
from popfn.transforms.call import Call
from popfn.transforms.cond import Cond
from popfn.transforms.custom import CustomVjp
from popfn.transforms.scan import Scan

Arrays = Sequence[np.ndarray]


# ---------------------------------------------------------------------------- transforms of whole programs
def value(s: System, program: Program) -> Callable[..., Any]:
    return lambda *xs: s.run(program.body, (), [s.np.asarray(x) for x in xs])


def loss(s: System, program: Program) -> Callable[..., Any]:
    return lambda *xs: s.loss(value(s, program)(*xs))


def floats(program: Program) -> Tuple[int, ...]:
    return tuple(i for i, t in enumerate(program.inputs) if t.dtype != "int32")


def in_axes(program: Program) -> Tuple[Any, ...]:
    """Floats and arrays of integers have lanes."""
    return tuple(0 if t.dtype != "int32" or t.shape else None for t in program.inputs)


def grad(s: System, program: Program) -> Callable[..., Any]:
    return s.of.grad(loss(s, program), floats(program))  # type: ignore[no-any-return]


def jvp(s: System, program: Program) -> Callable[..., Any]:
    def f(*xs: Any) -> Any:
        def of_floats(*some: Any) -> Any:
            rest = iter(some)
            return value(s, program)(*(next(rest) if i in floats(program) else x for i, x in enumerate(xs)))
        primals = tuple(s.np.asarray(xs[i]) for i in floats(program))
        return list(filter(is_float, s.of.jvp(of_floats, primals, tuple(s.np.cos(x) for x in primals))[1]))
    return f


def vmap(s: System, program: Program) -> Callable[..., Any]:
    return s.of.vmap(value(s, program), in_axes(program))  # type: ignore[no-any-return]


def vmap_of_grad(s: System, program: Program) -> Callable[..., Any]:
    return s.of.vmap(grad(s, program), in_axes(program))  # type: ignore[no-any-return]


def grad_of_vmap(s: System, program: Program) -> Callable[..., Any]:
    return s.of.grad(lambda *xs: s.np.sum(s.of.vmap(loss(s, program), in_axes(program))(*xs)), floats(program))


def jvp_of_grad(s: System, program: Program) -> Callable[..., Any]:
    def f(*xs: Any) -> Any:
        def of_floats(*some: Any) -> Any:
            rest = iter(some)
            return grad(s, program)(*(next(rest) if i in floats(program) else x for i, x in enumerate(xs)))
        primals = tuple(s.np.asarray(xs[i]) for i in floats(program))
        return s.of.jvp(of_floats, primals, tuple(s.np.cos(x) for x in primals))[1]
    return f


TRANSFORMS = [grad, value, jvp, grad_of_vmap, vmap, vmap_of_grad, jvp_of_grad]


def arguments(program: Program, transform: Any) -> Arrays:
    """The arguments, with lanes where the transform takes such."""
    xs = program.arrays()
    if "vmap" not in transform.__name__:
        return xs
    return [np.stack([np.asarray(x * scale).astype(x.dtype) for scale in ((1, 2, 3) if x.dtype.kind == "i" else
                                                                        (1, 0.5, -0.75))]) if a == 0 else x
            for x, a in zip(xs, in_axes(program))]


def leaves(tree: Any) -> List[Any]:
    return [np.asarray(y) for y in pf.tree.leaves(tree)]


def agree(program: Program, transform: Any) -> None:
    """popfn, eager and jitted, gives what JAX does."""
    args = arguments(program, transform)
    theirs = jax.make_jaxpr(lambda *xs: jax.tree_util.tree_leaves(transform(THEIRS, program)(*xs)))(*args)
    exact, bounds = jax_in_numpy.tolerance(theirs, list(map(widened, args)))
    ours = transform(OURS, program)
    jaxpr = pf.make_jaxpr(ours)(*args)
    assert [(a.shape, a.dtype) for a in jaxpr.out_avals] == [(a.shape, a.dtype) for a in theirs.out_avals]
    if not program.uses("custom_jvp", "custom_vjp"):  # whose rules cannot be read back
        assert_round_trip(jaxpr)
    for what, results in (("eager", leaves(ours(*args))), ("traced", jaxpr.eval(*args)),
                          ("jitted", leaves(pf.jit(ours)(*args)))):
        assert len(results) == len(exact)
        for i, (got, want, bound) in enumerate(zip(results, exact, bounds)):
            assert got.dtype == jaxpr.out_avals[i].dtype, what
            assert_within(got, want, bound, f"{what} {transform.__name__}: output {i}")


# Making an example smaller takes minutes; the trees are small.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@examples(200, phases=PHASES)
@given(nested_programs(), st.sampled_from(TRANSFORMS))
def test_nested_programs_equal_jax(program, transform):
    if transform is jvp and program.uses("custom_vjp"):
        transform = grad
    agree(program, transform)


#: What the above has found, made smaller.
ROWS = [
    # No steps, and a step whose result does not depend on the carry: the loop's does.
    (grad, Program((Type((3,)), Type((), "int32")), Body((Node("fori_loop", (Num(0), 0), (1, 4), (Body((Node(
        "grad", (3,), (), (Body((), (1,)),)),), (4,)),)),), (2,)))),
    # A custom_vjp in a loop with max_steps was pushed forward to see what moves.
    (grad, Program((Type((2,)), Type((), "int32")), Body((Node("while_loop", (1, 0), (3,), (Body((Node(
        "custom_vjp", (3,), (0.75,), (Body((Node("sin", (4,)),), (5,)),)),), (4,)),)),), (3,)), 3))]


@pytest.mark.parametrize("transform, program", ROWS)
def test_found_programs_equal_jax(transform, program):
    agree(program, transform)


def test_programs_use_every_operation():
    seen: Set[Tuple[str, int]] = set()

    def visit(body: Body, depth: int) -> None:
        for node in body.nodes:
            seen.add((node.op, depth))
            for inner in node.bodies:
                visit(inner, depth + 1)

    @settings(max_examples=300, database=None, phases=[Phase.generate])
    @given(nested_programs())
    def draw(program: Program) -> None:
        visit(program.body, 0)
    draw()
    assert {op for op, _ in seen} == set(OPERATIONS)
    assert {op for op in OPERATIONS if OPERATIONS[op].__name__ != "<lambda>"} <= {op for op, depth in seen if depth}
    assert {depth for _, depth in seen} == {0, 1, 2, 3}


# ---------------------------------------------------------------------------- the tests find what they are for
def forwards_only(scan: Scan, *arrays: Any) -> Any:
    return SCAN_EVAL(dataclasses.replace(scan, reverse=False), *arrays)


def without_rule(custom: CustomVjp, primals: Any, tangents: Any) -> Any:
    return Call(custom.jaxpr).linearize(primals, tangents)


def first_branch(cond: Cond, *arrays: Any) -> Any:
    return cond.branches[0].eval(*arrays[1:])


SCAN_EVAL = Scan.eval
PLANTED = [(Scan, "eval", forwards_only, "scan"), (CustomVjp, "linearize", without_rule, "custom_vjp"),
           (Cond, "eval", first_branch, "cond")]


@pytest.mark.parametrize("primitive, rule, fault, op", PLANTED, ids=lambda v: getattr(v, "__name__", None))
def test_a_planted_fault_is_found(monkeypatch, primitive, rule, fault, op):
    monkeypatch.setattr(primitive, rule, fault)
    search = settings(max_examples=200, database=None, phases=[Phase.generate], print_blob=False,
                      report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
    some = nested_programs().filter(lambda program: program.uses(op))
    with pytest.raises(AssertionError):
        search(given(some, st.just(grad))(test_nested_programs_equal_jax.hypothesis.inner_test))()
