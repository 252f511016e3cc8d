"""Random sharded functions as programs of replicas on the XLA engine, under transforms and in other programs.

XLA compiles each example, which takes about a second: the usual run has a few of them.
"""
from unittest import mock

import pytest
from hypothesis import Phase, given, settings, strategies as st
from shard_programs import programs
from shard_worlds import of_parts, of_wholes
from test_shard_random import AROUND, TRANSFORMS, close, flat, lanes_of, results, stacked

import popfn as pf

pytest.importorskip("jax")
CHOSEN = ("value", "grad", "vjp", "vmap", "vmap of grad")
PLACES = ("nothing", "checkpoint", "scan", "batch_serialise")


def test_the_engine_is_chosen():
    program = pf.lower(pf.shard(lambda x: x, pf.Mesh(dp=2), pf.P("dp"), pf.P("dp")), pf.spec((2,)))
    with mock.patch.dict("os.environ", POPFN_ENGINE="none"), pytest.raises(ValueError, match="POPFN_ENGINE"):
        pf.Session(program)


@settings(max_examples=max(8, settings.default.max_examples // 20), phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_it_is_the_function_of_global_arrays(data):
    transform, around = data.draw(st.sampled_from(CHOSEN)), data.draw(st.sampled_from(PLACES))
    program = data.draw(programs(False).filter(lambda p: not any(step.op == "nested" for step in p.steps())))
    lanes = data.draw(lanes_of(program, False))
    ours, whole = AROUND[around]
    args = program.arrays()
    if "vmap" in transform:
        args = stacked(args, lanes)
    with mock.patch.dict("os.environ", POPFN_ENGINE="xla"):
        got = results(TRANSFORMS[transform](ours(flat(program, of_parts(program))), lanes), args, "lowered")
    close(got, TRANSFORMS[transform](whole(of_wholes(program)), lanes)(*args), f"{transform} of {around}")
