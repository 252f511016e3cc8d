"""Slots of output streams that a run does not store to: they keep what the caller's arrays hold, on both engines."""
from unittest import mock

import numpy as np
import pytest
from engine_checks import ENGINES, has_jax, session_on
from hypothesis import given, settings, strategies as st

import popfn.host as popxl
from popfn.host.engine.stores import store_counts

ops = popxl.ops
f32 = popxl.float32
UNTOUCHED = -1.0

# A program is a list of steps: ("store", stream, value), ("call", program), ("loop", count, program), or
# ("if", condition, program, program), where streams and conditions are numbers.


def store(value, stream=0):
    return "store", stream, value


def when(condition, then, otherwise=()):
    return "if", condition, list(then), list(otherwise)


def loop(count, *body):
    return "loop", count, list(body)


def call(*body):
    return "call", list(body)


class Stores:
    """A program of the language above; its conditions come from a stream."""

    def __init__(self, steps, transfers=1, replicas=1, conditions=2, dtype=f32, shape=()):
        self.ir = ir = popxl.Ir(replicas)
        ir.num_host_transfers = transfers
        self.steps, self.dtype, self.replicas, self.transfers = steps, dtype, replicas, transfers
        with ir.main_graph, popxl.in_sequence():
            self.conditions = popxl.h2d_stream((conditions,), popxl.bool, "conditions")
            self.outs = {s: popxl.d2h_stream(shape, dtype, f"out{s}") for s in streams_of(steps)}
            self.build(steps, ops.host_load(self.conditions))

    def build(self, steps, c):
        for kind, *rest in steps:
            if kind == "store":
                stream = self.outs[rest[0]]
                data = np.full(stream.shape, rest[1], np.uint8 if is_float8(self.dtype) else self.dtype.as_numpy())
                ops.host_store(stream, popxl.constant(data.view(self.dtype.as_numpy()), self.dtype))
            elif kind == "call":
                ops.call(self.graph(rest[0], c), c)
            elif kind == "loop":
                ops.repeat(self.graph(rest[1], c), rest[0], c)
            else:
                branches = [self.graph(branch, c) for branch in rest[1:]]
                ops.conditional(ops.reshape(ops.slice(c, rest[0], rest[0] + 1), ()), *branches, [c], [c])

    def graph(self, steps, c):
        return self.ir.create_graph(lambda c: self.build(steps, c), c)

    def arrays(self, slots, fill):
        """An array for each stream, with more slots than there are transfers if there is an axis for them."""
        lead = ((slots,) if self.transfers > 1 else ()) + ((self.replicas,) if self.replicas > 1 else ())
        found = {}
        for s, stream in self.outs.items():
            plain = np.uint8 if is_float8(self.dtype) else self.dtype.as_numpy()
            found[s] = np.full(lead + stream.shape, np.array(fill).astype(plain), plain).view(self.dtype.as_numpy())
        return found

    def wanted(self, rows, slots, fill):
        """What a run leaves in such arrays, when each replica has its row of conditions."""
        found = self.arrays(slots, fill)
        for replica, row in enumerate(rows):
            done = dict.fromkeys(self.outs, 0)
            for stream, value in stored(self.steps, row):
                place = (done[stream] % slots,) if self.transfers > 1 else ()
                place += (replica,) if self.replicas > 1 else ()
                plain(found[stream])[place + (...,)] = value
                done[stream] += 1
        return found

    def check(self, engine, runs, slots=None):
        slots = slots or self.transfers
        with session_on(engine, self.ir) as session:
            for rows in runs:
                inputs = {self.conditions: np.stack([rows if self.replicas > 1 else rows[0]] * self.transfers)[
                    () if self.transfers > 1 else 0]}
                found = self.arrays(slots, UNTOUCHED)
                session.run_with_outputs(inputs, {stream: found[s] for s, stream in self.outs.items()})
                with mock.patch.object(np, "empty", lambda shape, dtype: np.full(shape, 77, "u1").astype(dtype)):
                    returned = session.run(inputs)
                for s, stream in self.outs.items():
                    about = f"{engine}: stream {s}, conditions {rows}, program {self.steps}"
                    np.testing.assert_array_equal(found[s], self.wanted(rows, slots, UNTOUCHED)[s], about)
                    np.testing.assert_array_equal(returned[stream], self.wanted(rows, self.transfers, 0)[s], about)


def is_float8(dtype):
    return dtype in (popxl.float8_143, popxl.float8_152)


def plain(array):
    return array.view(np.uint8) if array.dtype.fields else array


def streams_of(steps):
    found = set()
    for kind, *rest in steps:
        if kind == "store":
            found.add(rest[0])
        for part in rest:
            if isinstance(part, list):
                found |= streams_of(part)
    return found


def stored(steps, row):
    """The pairs of a stream and a value that a run stores where these are the conditions."""
    for kind, *rest in steps:
        if kind == "store":
            yield tuple(rest)
        elif kind == "call":
            yield from stored(rest[0], row)
        elif kind == "loop":
            for _ in range(rest[0]):
                yield from stored(rest[1], row)
        else:
            yield from stored(rest[1] if row[rest[0]] else rest[2], row)


PROGRAMS = {
    "one branch stores": (1, [when(0, [store(1)])]),
    "each branch stores to a stream of its own": (1, [when(0, [store(1)], [store(2, 1)])]),
    "both branches store": (1, [when(0, [store(1)], [store(2)])]),
    "more transfers than stores": (3, [store(1), store(2)]),
    "more stores than transfers": (2, [store(1), store(2), store(3)]),
    "more stores than transfers, if at all": (2, [when(0, [store(1), store(2), store(3)])]),
    "no step of a loop": (1, [loop(0, store(1)), store(2, 1)]),
    "no step of a loop, several transfers": (2, [loop(0, store(1))]),
    "a loop of branches": (4, [loop(3, when(0, [store(1)]), when(1, [], [store(2)]))]),
    "a branch in a branch": (2, [when(0, [when(1, [store(1)], [store(2), store(3)])], [store(4)]), store(5, 1)]),
    "a branch in a call, called twice": (3, [call(when(0, [store(1)])), call(when(1, [store(2)])), store(3)]),
    "a loop in a branch": (5, [when(0, [loop(3, store(1))], [loop(2, store(2)), store(3)])]),
    "a branch before what is always stored": (1, [when(0, [store(1)]), store(2)]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_slots_that_are_not_stored_keep_their_values(name, replicas, engine):
    transfers, steps = PROGRAMS[name]
    rows = [[[a, b]] * replicas for a in (True, False) for b in (True, False)]
    if replicas > 1:
        rows += [[[True, False], [False, True], [False, False]]]
    Stores(steps, transfers, replicas).check(engine, rows)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [[store(1), store(2)], [store(1), when(0, [store(2), store(3)], [store(4)])]])
def test_arrays_with_more_slots_than_transfers(steps, engine):
    Stores(steps, 2).check(engine, [[[True, True]], [[False, True]]], slots=4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [popxl.bool, popxl.int8, popxl.float16, popxl.float8_143], ids=str)
def test_slots_of_any_type_and_shape(dtype, engine):
    program = Stores([when(0, [store(1)])], 2, dtype=dtype, shape=(2, 3))
    program.check(engine, [[[True, True]], [[False, False]]])


@st.composite
def programs(draw, depth=3):
    steps = []
    for _ in range(draw(st.integers(0 if depth < 3 else 1, 3))):
        kind = draw(st.sampled_from(["store", "if", "if", "loop", "call"] if depth else ["store"]))
        if kind == "store":
            steps.append(store(draw(st.integers(1, 50)), draw(st.integers(0, 1))))
        elif kind == "if":
            steps.append(when(draw(st.integers(0, 1)), draw(programs(depth - 1)), draw(programs(depth - 1))))
        elif kind == "loop":
            steps.append(loop(draw(st.integers(0, 2)), *draw(programs(depth - 1))))
        else:
            steps.append(call(*draw(programs(depth - 1))))
    return steps


@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(programs().filter(streams_of), st.integers(1, 4), st.sampled_from([1, 2]), st.data())
def test_random_programs(steps, transfers, replicas, data):
    row = st.tuples(st.booleans(), st.booleans())
    rows = [[list(data.draw(row)) for _ in range(replicas)] for _ in range(2)]
    for engine in ["numpy"] + ["xla"] * has_jax:
        Stores(steps, transfers, replicas).check(engine, rows)


@given(programs().filter(streams_of))
def test_the_least_and_the_greatest_number_of_stores(steps):
    """Of all ways to take the branches, each time anew, which is at least what the conditions allow."""

    def extremes(steps, stream):
        least = greatest = 0
        for kind, *rest in steps:
            if kind == "store":
                low = high = int(rest[0] == stream)
            elif kind == "if":
                parts = [extremes(part, stream) for part in rest[1:]]
                low, high = min(p[0] for p in parts), max(p[1] for p in parts)
            else:
                times = rest[0] if kind == "loop" else 1
                low, high = [times * n for n in extremes(rest[-1], stream)]
            least, greatest = least + low, greatest + high
        return least, greatest

    program = Stores(steps)
    counts = store_counts(program.ir.main_graph)
    assert counts == {stream: extremes(steps, s) for s, stream in program.outs.items()}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_only_slots_that_may_be_left_out_are_filled_with_zeros_and_counted(name, engine):
    """Nothing is spent where each slot is sure to be stored to; XLA counts where a branch decides."""
    transfers, steps = PROGRAMS[name]
    program = Stores(steps, transfers)
    ways = [dict.fromkeys(program.outs, 0) for _ in range(4)]
    for way, row in zip(ways, [(a, b) for a in (0, 1) for b in (0, 1)]):
        for s, _ in stored(steps, row):
            way[s] += 1
    with session_on(engine, program.ir) as session:
        with mock.patch.object(np, "empty", lambda shape, dtype: np.full(shape, 77, dtype)):
            made = session.create_host_outputs()
        for s, stream in program.outs.items():
            is_full = min(way[s] for way in ways) >= transfers
            np.testing.assert_array_equal(made[stream], 77 if is_full else 0)
        if engine == "xla":
            (compiled,) = session._executable._compiled.values()
            counted = {compiled.outputs[i][0] for i, _ in compiled.counted}
            assert counted == {
                stream for s, stream in program.outs.items()
                if min(way[s] for way in ways) < min(transfers, max(way[s] for way in ways))
            }
