"""The batch rule of every primitive, on every row of the table in cases.py: one program over lanes against a loop.

The lanes hold a row's own values, rolled, so that they stay in the domain the row was made for. Each set of operands is
mapped, at axes drawn anew for each row, and so are the row's derivatives: vmap of jvp, vmap of grad and grad of vmap.
"""
import itertools
from typing import Any, List, Sequence, Tuple

import numpy as np
import pytest
from cases import CASES, Case
from programs import lowered
from test_rules import DIFFERENTIABLE, assert_same, closeness, magnitude, moving, program, reverse

import popfn as pf
from popfn.trace.errors import JaxprError
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.primitive import MappedAxis
from popfn.trace.prims.kinds import Neg
from popfn.transforms.differentiate import jvp_jaxpr, vjp_jaxpr
from popfn.transforms.vmap import batch_jaxpr

LANES = 3
AXIS = MappedAxis(LANES)


def rows(cases: Sequence[Case]) -> Any:
    return pytest.mark.parametrize("case", [c for c in cases if c.operands], ids=lambda c: c.name)


def subsets(case: Case) -> List[Tuple[bool, ...]]:
    """Which operands are mapped: each set of them, but of many only each one, all but one, and all."""
    n = len(case.operands)
    if n <= 3:
        return [m for m in itertools.product((False, True), repeat=n) if any(m)]
    ones = [tuple(i == k for i in range(n)) for k in range(n)]
    return ones + [tuple(not on for on in m) for m in ones] + [(True,) * n]


def mapped(case: Case, mask: Tuple[bool, ...]) -> Tuple[Any, List[np.ndarray], List[List[np.ndarray]]]:
    """Where each operand has the mapped axis, the operands with it, and those of each lane."""
    random = np.random.RandomState(case.number)
    lanes = [[np.roll(x.ravel(), 2 * k).reshape(x.shape) if on else x for x, on in zip(case.operands, mask)]
             for k in range(LANES)]
    dims = tuple(random.randint(x.ndim + 1) if on else None for x, on in zip(case.operands, mask))
    together = [x if d is None else np.stack([lane[i] for lane in lanes], d)
                for i, (x, d) in enumerate(zip(case.operands, dims))]
    return dims, together, lanes


def assert_lanes_equal(case: Case, got: Sequence[np.ndarray], dims: Sequence[Any], want: List[Sequence[np.ndarray]],
                       operands: List[Any], factor: float = 1) -> None:
    """The outputs with a mapped axis at `dims` are those of each lane, within rounding."""
    assert len(got) == len(dims) == len(want[0])
    for i, (y, d) in enumerate(zip(got, dims)):
        for lane in range(LANES):
            w = want[lane][i]
            ulps, scale, signs = closeness(case._replace(operands=operands[lane]), w)
            part = y if d is None else np.take(y, lane, d)
            if factor > 1 and w.dtype.kind == "f":
                scale, signs = np.maximum(scale, magnitude(w).max(initial=0.0)), False
            assert_same(np.asarray(part, w.dtype), w, factor * ulps, scale, signs)


def looped(jaxpr: Jaxpr, lanes: Sequence[Sequence[np.ndarray]], *rest: np.ndarray) -> List[Sequence[np.ndarray]]:
    return [jaxpr.eval(*lane, *rest) for lane in lanes]


@rows(CASES)
def test_batch_equals_a_loop(case):
    jaxpr = program(case.number)
    for mask in subsets(case):
        dims, together, lanes = mapped(case, mask)
        batched, out_dims = batch_jaxpr(jaxpr, AXIS, dims)
        assert case.primitive.multiple or out_dims[0] is not None
        assert_lanes_equal(case, batched.check().eval(*together), out_dims, looped(jaxpr, lanes), lanes)


@rows(CASES)
def test_lowered_batch_equals_eval(case):
    jaxpr = program(case.number)
    dims, together, _ = mapped(case, subsets(case)[-1])
    batched, _ = batch_jaxpr(jaxpr, AXIS, dims)
    for got, want in zip(lowered(batched)(*together), batched.eval(*together)):
        ulps, scale, signs = closeness(case._replace(operands=tuple(together)), want)
        assert_same(np.asarray(got), want, 2 * ulps, scale, signs)


@rows(DIFFERENTIABLE)
def test_vmap_of_jvp_equals_a_loop(case):
    pushed, _ = jvp_jaxpr(program(case.number), moving(case))
    tangents = [np.ones(a.shape, a.dtype) for a, on in zip(case.avals, moving(case)) if on]
    for mask in subsets(case):
        dims, together, lanes = mapped(case, mask)
        batched, out_dims = batch_jaxpr(pushed, AXIS, (*dims, *(None,) * len(tangents)))
        assert_lanes_equal(case, batched.check().eval(*together, *tangents), out_dims,
                           looped(pushed, lanes, *tangents), lanes, 4)


@rows(DIFFERENTIABLE)
def test_vmap_of_grad_equals_a_loop(case):
    pulled = reverse(case, moving(case))
    cts = [np.ones(a.shape, a.dtype) for a in program(case.number).out_avals if a.is_float]
    for mask in subsets(case):
        dims, together, lanes = mapped(case, mask)
        batched, out_dims = batch_jaxpr(pulled, AXIS, (*dims, *(None,) * len(cts)))
        assert_lanes_equal(case, batched.check().eval(*together, *cts), out_dims, looped(pulled, lanes, *cts), lanes, 4)


@rows(DIFFERENTIABLE)
def test_grad_of_vmap_equals_a_loop(case):
    """By the mapped operands: the gradients are those of each lane."""
    jaxpr, pulled = program(case.number), reverse(case, moving(case))
    seeds = [i for i, a in enumerate(jaxpr.out_avals) if a.is_float]
    cts = [np.ones(jaxpr.out_avals[i].shape, jaxpr.out_avals[i].dtype) for i in seeds]
    for mask in subsets(case):
        floats = tuple(on and a.is_float for on, a in zip(mask, case.avals))
        if not any(floats):
            continue
        dims, together, lanes = mapped(case, mask)
        batched, _ = batch_jaxpr(jaxpr, AXIS, dims)
        program_of_all = vjp_jaxpr(batched, floats, seeds).check()
        ones = [np.ones(batched.out_avals[i].shape, batched.out_avals[i].dtype) for i in seeds]
        got = program_of_all.eval(*together, *ones)[len(jaxpr.outputs):]
        wanted = [k for k, on in enumerate(moving(case)) if on]
        want = [[g for g, k in zip(lane[len(jaxpr.outputs):], wanted) if floats[k]]
                for lane in looped(pulled, lanes, *cts)]
        assert_lanes_equal(case, got, [d for d, on in zip(dims, floats) if on], want, lanes, 4)


def test_a_wrong_batch_rule_is_found(monkeypatch):
    monkeypatch.setattr(Neg, "batch", lambda self, axis, args, dims: (args[0], 1))
    with pytest.raises(JaxprError, match=r"the batch rule of neg gives f32\[2,3\], but the results over the "
                                         r"mapped axis are f32\[3,2\]"):
        pf.vmap(lambda x: -x)(np.ones((2, 3), np.float32))


