"""Random programs: the NumPy engine computes what a naive interpreter computes."""
import numpy as np
from hypothesis import given, settings, strategies as st
from interpreter import Interpreter
from random_programs import Program

import popfn.host as popxl
from popfn.host import _placement

# Tapes from seeds are long, lists of numbers shrink: a failure of a seed is worth a list.
TAPES = st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).integers(0, 60, 250).tolist()) | st.lists(
    st.integers(0, 60), min_size=5, max_size=60
)


def agree(tape, replicas, transfers=1):
    """Two runs on the engine and by the interpreter: the same outputs and the same state."""
    program = Program(tape, replicas, transfers)
    session = popxl.Session(program.ir)
    naive = Interpreter(program.ir)
    with session, np.errstate(all="ignore"):
        source = getattr(session._executable, "source", "")
        for _ in range(2):
            inputs = program.inputs(session)
            split = {s: session._transfers("input", s, array) for s, array in inputs.items()}
            found, wanted = ({s: np.full_like(a, 55) for s, a in session.create_host_outputs().items()} for _ in "12")
            session.run_with_outputs(inputs, found)
            naive.run(split, {s: session._transfers("output", s, array) for s, array in wanted.items()})
            for stream in wanted:
                np.testing.assert_array_equal(found[stream], wanted[stream], f"{stream}\n{source}")
            for t in session._variables:
                holder = _placement.holder(t)
                np.testing.assert_array_equal(
                    _placement._rows(t, session._executable.read(holder)), naive.read(holder), f"{t}\n{source}"
                )


@settings(deadline=None, max_examples=200)
@given(TAPES, st.sampled_from([1, 3]))
def test_one_replica(tape, transfers):
    agree(tape, 1, transfers)


@settings(deadline=None, max_examples=400)
@given(TAPES, st.sampled_from([2, 3, 4, 6, 8]), st.sampled_from([1, 3]))
def test_several_replicas(tape, replicas, transfers):
    agree(tape, replicas, transfers)
