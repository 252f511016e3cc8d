"""checkpoint, on every row of the table in cases: what is computed again gives what was not kept.

The same equations run on the same operands, so that results are equal bit for bit. Floats are negated twice before the
row's primitive takes them, which changes nothing but makes its operands values that checkpoint does not keep.
"""
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
from cases import Case
from programs import lowered
from test_batch_rules import AXIS, mapped
from test_rules import DIFFERENTIABLE, SECOND, SMOOTH, assert_same, closeness, magnitude, moving, some

import popfn as pf
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.primitive import watchers
from popfn.trace.tracer import bind
from popfn.transforms.call import Call
from popfn.transforms.checkpoint import DOTS, Checkpoint, rematerialized
from popfn.transforms.differentiate import jvp_jaxpr, vjp_jaxpr
from popfn.transforms.vmap import batch_jaxpr

#: A row of each primitive, for what takes long.
FIRST: Dict[str, Case] = {c.primitive.name: c for c in reversed(SMOOTH)}


def programs(case: Case, policy: Any = "nothing") -> Tuple[Jaxpr, Jaxpr]:
    """A row's primitive in a function that is called, and in one that is checkpointed."""
    def f(*xs: Any) -> Any:
        return bind(case.primitive, [pf.numpy.negative(-x) if x.dtype.name in ("float16", "float32") else x
                                     for x in map(pf.numpy.asarray, xs)])
    plain, again = (pf.make_jaxpr(g)(*case.avals) for g in (pf.jit(f), pf.checkpoint(f, policy=policy)))
    assert [type(e.primitive) for e in (*plain.eqns, *again.eqns)] == [Call, Checkpoint]
    assert again.out_avals == plain.out_avals
    return plain, again


def reverse(jaxpr: Jaxpr, mask: Sequence[bool], skip: int = 0) -> Jaxpr:
    """The cotangents of the masked inputs, behind the outputs, of which the first ones may have none."""
    return vjp_jaxpr(jaxpr, tuple(mask), [i for i, a in enumerate(jaxpr.out_avals) if a.is_float and i >= skip]).check()


def ones(avals: Sequence[Any]) -> List[np.ndarray]:
    return [np.ones(a.shape, a.dtype) for a in avals if a.is_float]


def assert_equal_bits(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    """Equal types, NaN at the same places, and the same bits elsewhere: which NaN depends on the processor."""
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        numbers = w == w
        np.testing.assert_array_equal(g == g, numbers)
        assert g[numbers].tobytes() == w[numbers].tobytes()


@some(DIFFERENTIABLE)
def test_values_and_gradients_are_those_without(case):
    for policy in ("nothing", "dots") if case.primitive.name in DOTS else ("nothing",):
        plain, again = programs(case, policy)
        assert_equal_bits(again.eval(*case.operands), plain.eval(*case.operands))
        at = [*case.operands, *ones(plain.out_avals)]
        assert_equal_bits(reverse(again, moving(case)).eval(*at), reverse(plain, moving(case)).eval(*at))


@some(DIFFERENTIABLE)
def test_nothing_is_kept(case):
    _, again = programs(case)
    body = again.eqns[0].primitive.jaxpr
    cut = rematerialized(body, "nothing", moving(case))
    assert len(cut.forward.outputs) == len(body.outputs)
    assert len(cut.linear.inputs) <= len(body.inputs) + sum(moving(case))


@some(DIFFERENTIABLE)
def test_tangents_are_those_without(case):
    at = [*case.operands, *ones(case.avals)]
    (plain, moves), (again, too) = (jvp_jaxpr(p, moving(case)) for p in programs(case))
    assert moves == too
    assert_equal_bits(again.eval(*at), plain.eval(*at))


@some(DIFFERENTIABLE)
def test_lanes_are_those_without(case):
    """vmap of grad, and grad of vmap, of all operands in lanes."""
    plain, again = programs(case)
    mask = tuple(True for _ in case.operands)
    dims, together, _ = mapped(case, mask)
    cts = ones(plain.out_avals)
    both = [batch_jaxpr(reverse(p, moving(case)), AXIS, (*dims, *(None,) * len(cts)))[0] for p in (plain, again)]
    assert_equal_bits(both[1].check().eval(*together, *cts), both[0].eval(*together, *cts))
    both = [reverse(batch_jaxpr(p, AXIS, dims)[0], moving(case)) for p in (plain, again)]
    cts = ones(batch_jaxpr(plain, AXIS, dims)[0].out_avals)
    assert_equal_bits(both[1].eval(*together, *cts), both[0].eval(*together, *cts))


@some(SECOND)
def test_second_derivatives_are_those_without(case):
    """Reverse over reverse, and forward over reverse; two sums of the same terms may take another order."""
    plain, again = programs(case)
    cts = ones(plain.out_avals)
    mask = (*moving(case), *(False,) * len(cts))
    first = [reverse(p, moving(case)) for p in (plain, again)]
    outer = [reverse(p, mask, len(plain.outputs)) for p in first]
    at = [*case.operands, *cts, *ones(first[0].out_avals[len(plain.outputs):])]
    pushed = [jvp_jaxpr(p, mask) for p in first]
    assert pushed[0].moves == pushed[1].moves
    along = [*case.operands, *cts, *ones([a for a, on in zip(case.avals, moving(case)) if on])]
    for (want, got), points in ((outer, at), ([p.jaxpr for p in pushed], along)):
        for g, w in zip(got.eval(*points), want.eval(*points)):
            assert_same(g, w, 4, magnitude(w).max(initial=0.0), False)


@pytest.mark.parametrize("name", sorted(FIRST))
def test_lowered_gradients_equal_eval(name):
    case = FIRST[name]
    _, again = programs(case)
    pulled = reverse(again, moving(case))
    at = [*case.operands, *ones(again.out_avals)]
    for got, want in zip(lowered(pulled)(*at), pulled.eval(*at)):
        ulps, scale, _ = closeness(case, want)
        assert_same(np.asarray(got), want, 4 * ulps, scale + magnitude(want).max(initial=0.0), False)


@pytest.mark.parametrize("name", ["exp", "softmax", "sqrt", "tanh"])
def test_results_are_computed_again(name):
    """These have slopes made of the result: it is kept by the one, and computed twice by the other."""
    case = FIRST[name]
    counts = []
    for jaxpr in programs(case):
        seen: List[str] = []

        def watch(p: Any, *_: Any, seen: List[str] = seen) -> None:
            seen.append(p.name)
        pulled = reverse(jaxpr, moving(case))
        watchers.append(watch)
        try:
            pulled.eval(*case.operands, *ones(jaxpr.out_avals))
        finally:
            watchers.remove(watch)
        counts.append(seen.count(name))
    assert counts == [1, 2]
