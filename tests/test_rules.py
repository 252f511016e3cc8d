"""The rules of every primitive, on every row of the table in cases.py.

Derivatives are whole Jacobians: forward mode gives their columns, reverse mode their rows, and central differences of
the 64-bit definitions in references.py give them independently. Their error is below 1e-8, so what is tolerated is the
rounding of popfn's own arithmetic: a few units in the last place of float32 and of float16.
"""
import functools
import inspect
from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
from cases import CASES, LINEAR, ULPS, Case
from programs import lowered
from references import assert_within, evaluate, jacobian, reference, rounded, second_derivative, widened

import popfn as pf
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.parse import primitives
from popfn.trace.primitive import Primitive
from popfn.trace.prims.collectives import Collective
from popfn.trace.prims.kinds import Elementwise
from popfn.trace.prims.remote import Access
from popfn.trace.tracer import Trace, bind
from popfn.transforms.call import Routine
from popfn.transforms.cond import Cond
from popfn.transforms.custom import Pullback
from popfn.transforms.differentiate import jvp_jaxpr, transpose_jaxpr, vjp_jaxpr
from popfn.transforms.scan import Scan
from popfn.transforms.shard import Shard
from popfn.transforms.simplify import simplify

EPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10, "float8_e4m3fnuz": 2.0 ** -3, "float8_e5m2fnuz": 2.0 ** -2}


def some(rows: List[Case]) -> Any:
    return pytest.mark.parametrize("case", rows, ids=lambda c: c.name)


@functools.lru_cache(maxsize=None)
def program(number: int) -> Jaxpr:
    """The jaxpr of one equation that a row stands for."""
    case = CASES[number]
    with Trace(case.primitive.name) as trace:
        out = bind(case.primitive, [trace.input(a) for a in case.avals])
        return trace.finish(out if case.primitive.multiple else [out])


def moving(case: Case) -> Tuple[bool, ...]:
    return tuple(a.is_float for a in case.avals)


def magnitude(x: np.ndarray) -> np.ndarray:
    """|x|, and 0 for what is not finite."""
    x = np.abs(widened(x))
    return np.where(np.isfinite(x), x, 0.0)


def assert_same(got: np.ndarray, want: np.ndarray, ulps: float, scale: Any = 0.0, signs: bool = True) -> None:
    """Equal types; equal NaN, infinities and signs of zero; finite values within `ulps` of themselves or of `scale`."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    g, w = widened(got), widened(want)
    eps = EPS[got.dtype.name]
    tiny = 2.0 ** -24 if got.dtype == np.float16 else 2.0 ** -126
    assert_within(g, w, ulps * eps * (magnitude(w) + scale) + tiny)
    if signs:
        zero = (g == 0) & (w == 0)
        np.testing.assert_array_equal(np.signbit(g[zero]), np.signbit(w[zero]))


def closeness(case: Case, want: np.ndarray) -> Tuple[float, Any, bool]:
    """Units in the last place, what they are relative to beside the element itself, and whether zeros have signs.

    Which of 0.0 and -0.0 is the larger is nowhere said, and NumPy's answer depends on the processor.
    """
    name = case.primitive.name
    if name == "gelu":  # 1 + tanh cancels below 0
        return 4, magnitude(case.operands[0]), True
    elementwise = isinstance(case.primitive, Elementwise)
    scale = max(magnitude(v).max(initial=0.0) for v in (*case.operands, want) if v.dtype.kind not in "biu") \
        if want.dtype.kind not in "biu" else 0.0
    if want.dtype == np.float16 and not elementwise:  # accumulated in float32, rounded once
        return 1, scale * 2.0 ** -10, False
    signs = elementwise and name not in ("maximum", "minimum", "relu")
    return ULPS.get(name, 4), 0.0 if elementwise else scale, signs


# ---------------------------------------------------------------------------- the table itself
#: No table can evaluate them: test_vmap, test_custom, lower/test_handles, test_shard.
ELSEWHERE = (Collective, Pullback, Access, Shard)


def test_every_primitive_has_rows():
    count = {name: 0 for name, cls in primitives().items()
             if cls.__module__.startswith("popfn.") and cls.__subclasses__() == []
             and not issubclass(cls, ELSEWHERE)}
    for case in CASES:
        count[case.primitive.name] += 1
    assert len(CASES) >= 200 and len(count) >= 58
    assert {name: n for name, n in count.items() if n < 3} == {}


def test_the_kinds_of_primitives_are_not_primitives():
    assert [cls.__name__ for cls in primitives().values()
            if cls.__module__.startswith("popfn.") and (inspect.isabstract(cls) or cls.__subclasses__())] == []


# ---------------------------------------------------------------------------- values
@some(CASES)
def test_eval_has_the_abstract_type_and_the_defined_value(case):
    avals = case.primitive.infer(case.avals)
    with np.errstate(all="ignore"):
        results = case.primitive.eval(*case.operands)
    wide = reference(case.primitive, *map(widened, case.operands))
    if not case.primitive.multiple:
        avals, results, wide = (avals,), (results,), (wide,)
    assert len(avals) == len(results) == len(wide)
    for aval, got, want in zip(avals, results, wide):
        got = np.asarray(got)
        assert (got.shape, got.dtype) == (aval.shape, aval.dtype)
        want = rounded(want, aval.dtype)
        assert_same(got, want, *closeness(case, want))


@some(CASES)
def test_weak_only_where_all_operands_are(case):
    out = case.primitive.infer(case.avals)
    if case.primitive.name == "convert":
        assert out.weak == case.primitive.weak
        return
    values = case.avals[1:] if case.primitive.name == "select" else case.avals
    for aval in out if case.primitive.multiple else (out,):
        assert aval.weak == (bool(values) and all(a.weak for a in values) and aval.dtype == values[0].dtype)


@some(CASES)
def test_eager_equals_eval(case):
    operands = [pf.Array.wrap(x, a) for x, a in zip(case.operands, case.avals)]
    got = bind(case.primitive, operands)
    want = program(case.number).eval(*case.operands)
    for g, w, a in zip(got if case.primitive.multiple else (got,), want, program(case.number).out_avals):
        assert type(g) is pf.Array and g.aval is a
        assert g.value.tobytes() == w.tobytes() and not g.value.flags.writeable


@some(CASES)
def test_lowered_equals_eval(case):
    got = lowered(program(case.number))(*case.operands)
    for g, w in zip(got, program(case.number).eval(*case.operands)):
        ulps, scale, signs = closeness(case, w)
        assert_same(np.asarray(g), w, 2 * ulps, scale, signs)


# ---------------------------------------------------------------------------- text
@some([c for c in CASES if c.primitive.name != "custom_call"])  # which holds Python functions
def test_prints_parses_back_and_checks(case):
    jaxpr = program(case.number).check()
    for made in (jaxpr, simplify(jaxpr), *derivatives(case)):
        back = pf.parse_jaxpr(str(made), made.constants)
        assert back == made and str(back) == str(made) and hash(back) == hash(made)


def derivatives(case: Case) -> List[Jaxpr]:
    if case.kind == "values" or not any(moving(case)):
        return []
    jaxpr = program(case.number)
    return [jvp_jaxpr(jaxpr, moving(case)).jaxpr.check(), reverse(case, moving(case)).check()]


def reverse(case: Case, mask: Tuple[bool, ...]) -> Jaxpr:
    """The jaxpr with gradients by the operands in the mask, for a cotangent of every float output."""
    jaxpr = program(case.number)
    return vjp_jaxpr(jaxpr, mask, [i for i, a in enumerate(jaxpr.out_avals) if a.is_float])


# ---------------------------------------------------------------------------- first derivatives
def basis(aval: Any) -> List[np.ndarray]:
    return [np.reshape(e, aval.shape).astype(aval.dtype) for e in np.eye(aval.size)]


def forward_jacobians(case: Case, mask: Tuple[bool, ...]) -> List[List[np.ndarray]]:
    """For each float output and each operand in the mask, the Jacobian by columns."""
    jaxpr = program(case.number)
    pushed, moves = jvp_jaxpr(jaxpr, mask)
    outs = [a for a in jaxpr.out_avals if a.is_float]
    operands = [a for a, on in zip(case.avals, mask) if on]
    got = [[np.zeros((o.size, a.size), o.dtype) for a in operands] for o in outs]
    for k, a in enumerate(operands):
        for column, e in enumerate(basis(a)):
            tangents = [e if j == k else np.zeros(b.shape, b.dtype) for j, b in enumerate(operands)]
            results = pushed.eval(*case.operands, *tangents)
            rest = iter(results[len(jaxpr.outputs):])
            for i, on in enumerate(on for o, on in zip(jaxpr.out_avals, moves) if o.is_float):
                if on:
                    got[i][k][:, column] = next(rest).ravel()
    return got


def reverse_jacobians(case: Case, mask: Tuple[bool, ...]) -> List[List[np.ndarray]]:
    """The same by rows."""
    jaxpr = program(case.number)
    pulled = reverse(case, mask)
    if len({a.weak for a in case.avals}) == 1:
        assert pulled.out_avals[len(jaxpr.outputs):] == tuple(a for a, on in zip(case.avals, mask) if on)
    outs = [a for a in jaxpr.out_avals if a.is_float]
    operands = [a for a, on in zip(case.avals, mask) if on]
    got = [[np.zeros((o.size, a.size), a.dtype) for a in operands] for o in outs]
    for i, o in enumerate(outs):
        for line, e in enumerate(basis(o)):
            cts = [e if j == i else np.zeros(b.shape, b.dtype) for j, b in enumerate(outs)]
            grads = pulled.eval(*case.operands, *cts)[len(jaxpr.outputs):]
            for k, (g, a) in enumerate(zip(grads, operands)):
                assert (g.shape, g.dtype) == (a.shape, a.dtype)
                got[i][k][line] = g.ravel()
    return got


def float_output(case: Case, i: int) -> Callable[..., np.ndarray]:
    """The wide definition of float output number i."""
    jaxpr = program(case.number)
    place = [n for n, a in enumerate(jaxpr.out_avals) if a.is_float][i]
    return lambda *xs: evaluate(jaxpr, xs)[place]


def assert_jacobian(got: np.ndarray, want: np.ndarray, dtypes: List[np.dtype], ulps: float) -> None:
    """Equal within `ulps` of the coarser dtype, relative to the element or a tenth of the largest one."""
    eps = max(EPS[d.name] for d in dtypes)
    size = magnitude(want)
    assert_within(got, want, ulps * eps * (size + max(size.max(initial=0.0), 1.0) / 10))


DIFFERENTIABLE = [c for c in CASES if c.kind != "values" and any(moving(c)) and any(
    a.is_float for a in program(c.number).out_avals)]
SMOOTH = [c for c in DIFFERENTIABLE if c.kind == "smooth"]


def masks(case: Case) -> List[Tuple[bool, ...]]:
    """All float operands, and each of them alone."""
    every = moving(case)
    alone = [tuple(i == k for i in range(len(every))) for k, on in enumerate(every) if on]
    return [every] + (alone if len(alone) > 1 else [])


@some(SMOOTH)
def test_jvp_equals_differences(case):
    xs = [widened(x) for x in case.operands]
    places = [k for k, on in enumerate(moving(case)) if on]
    for i, by_operand in enumerate(forward_jacobians(case, moving(case))):
        for k, got in zip(places, by_operand):
            want = jacobian(float_output(case, i), xs, k)
            if case.primitive.name == "stop_gradient":
                want = np.zeros_like(want)
            assert_jacobian(got, want, [got.dtype, case.operands[k].dtype], 16)


@some(DIFFERENTIABLE)
def test_transpose_is_the_adjoint_of_the_jvp(case):
    for mask in masks(case):
        for by_operand, lines in zip(forward_jacobians(case, mask), reverse_jacobians(case, mask)):
            for forward, backward in zip(by_operand, lines):
                assert_jacobian(backward, forward, [forward.dtype, backward.dtype], 8)



def test_every_transpose_rule_is_tested():
    """What holds jaxprs is linear where they are: that is tested above, and for scan and cond in test_scan.py."""
    elsewhere = (*ELSEWHERE, Routine, Scan, Cond)
    linear = {name for name, cls in primitives().items()
              if cls.transpose is not Primitive.transpose and not issubclass(cls, elsewhere)}
    assert linear == {*LINEAR}


@some([c for c in SMOOTH if c.primitive.name in LINEAR])
def test_transpose_is_the_adjoint_of_eval(case):
    """The rule itself: what it gives for unit cotangents are the rows of the matrix that eval has for columns."""
    jaxpr, out = program(case.number), program(case.number).out_avals[0]
    for chosen in LINEAR[case.primitive.name]:
        chosen = tuple(k for k in chosen if k < len(case.avals))
        mask = tuple(k in chosen for k in range(len(case.avals)))
        pulled, moves = transpose_jaxpr(jaxpr, mask, (True,))
        assert all(moves) and [a.strong for a in pulled.out_avals] == [case.avals[k].strong for k in chosen]
        others = [x for x, on in zip(case.operands, mask) if not on]
        rows = [pulled.eval(*others, e) for e in basis(out)]
        for n, k in enumerate(chosen):
            def column(e: np.ndarray, k: int = k, mask: Tuple[bool, ...] = mask) -> np.ndarray:
                at = [np.zeros_like(x) if on else x for x, on in zip(case.operands, mask)]
                moved = [e if j == k else x for j, x in enumerate(at)]
                return jaxpr.eval(*moved)[0].ravel() - jaxpr.eval(*at)[0].ravel()
            want = np.array([column(e) for e in basis(case.avals[k])]).reshape(case.avals[k].size, out.size).T
            got = np.array([row[n].ravel() for row in rows]).reshape(out.size, case.avals[k].size)
            assert_jacobian(got, want, [out.dtype, case.avals[k].dtype], 4)


@some(DIFFERENTIABLE)
def test_primal_is_untouched_by_differentiation(case):
    jaxpr = program(case.number)
    want = jaxpr.eval(*case.operands)
    zeros = [np.zeros(a.shape, a.dtype) for a, on in zip(case.avals, moving(case)) if on]
    cts = [np.ones(a.shape, a.dtype) for a in jaxpr.out_avals if a.is_float]
    for results in (jvp_jaxpr(jaxpr, moving(case)).jaxpr.eval(*case.operands, *zeros),
                    reverse(case, moving(case)).eval(*case.operands, *cts)):
        for got, w in zip(results, want):
            assert got.tobytes() == w.tobytes()


# ---------------------------------------------------------------------------- second derivatives
SECOND = [c for c in SMOOTH if all(a.dtype == np.float32 for a in c.avals if a.is_float)
          and all(a.dtype == np.float32 for a in program(c.number).out_avals if a.is_float)
          and c.primitive.name not in ("stop_gradient", "take_transpose", "reshape", "transpose", "squeeze", "slice",
                                       "reverse", "concat", "pad", "broadcast", "convert", "sum", "take")]


@some(SECOND)
def test_second_derivatives_equal_differences(case):
    """Along one direction v and for one cotangent: forward over reverse, and reverse over reverse."""
    jaxpr = program(case.number)
    random = np.random.RandomState(case.number)
    outs = [(n, a) for n, a in enumerate(jaxpr.out_avals) if a.is_float]
    cts = [random.uniform(0.5, 1, a.shape).astype(np.float32) for _, a in outs]
    direction = [random.uniform(0.5, 1, a.shape).astype(np.float32) if a.is_float else np.zeros(a.shape)
                 for a in case.avals]
    xs = [widened(x) for x in case.operands]
    floats = [k for k, on in enumerate(moving(case)) if on]

    def total(*points: np.ndarray) -> float:
        results = evaluate(jaxpr, points)
        return float(sum(np.sum(widened(c) * results[n]) for c, (n, _) in zip(cts, outs)))
    want = [second_derivative(total, xs, [widened(v) for v in direction], k) for k in floats]

    first = reverse(case, moving(case))
    at = [*case.operands, *cts]
    mask = moving(case) + (False,) * len(cts)
    grads = range(len(jaxpr.outputs), len(first.outputs))
    tangents = [direction[k] for k in floats]

    pushed, moves = jvp_jaxpr(first, mask)
    rest = iter(pushed.eval(*at, *tangents)[len(first.outputs):])
    touts = [next(rest) if on else np.zeros(a.shape) for a, on in zip(first.out_avals, moves)]
    pulled = vjp_jaxpr(first, mask, list(grads)).eval(*at, *tangents)[len(first.outputs):]
    for k, w, forward, backward in zip(floats, want, touts[len(jaxpr.outputs):], pulled):
        scale = max(1.0, np.abs(w).max(initial=0.0))
        assert_within(forward, w, 2e-5 * scale, f"forward over reverse, operand {k}")
        assert_within(backward, w, 2e-5 * scale, f"reverse over reverse, operand {k}")
