"""Which offsets into remote buffers are known to be in range: of cases, and of loops whose offsets are counted."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import popfn.host as popxl
from popfn.host import ops
from popfn.host.engine.ranges import offsets_within

ENTRIES = 12


def number(n):
    return popxl.constant(np.array([n], np.uint32), popxl.uint32)


def load(buffer, i):
    return ops.remote_load(buffer, i)


def loop(ir, count, start, body, *fixed):
    """A loop whose body takes the number of the step."""
    graph = ir.create_graph(body, popxl.TensorSpec((1,), popxl.uint32), *fixed)
    return ops.repeat(graph, count, number(start), *fixed)


def program(act):
    """The ops on remote buffers of a program, and which of them are said to be within."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        act(ir, popxl.remote_buffer((2,), popxl.float32, ENTRIES))
    found, waiting, seen = [], [ir.main_graph], set()
    while waiting:
        graph = waiting.pop()
        if graph not in seen:
            seen.add(graph)
            found += [op for op in graph.ops if op.kind.startswith("remote_")]
            waiting += [g for op in graph.ops for g in op.called]
    within = offsets_within(ir.main_graph)
    return [op in within for op in found]


def up(ir, buffer):
    def body(i):
        load(buffer, i)
        return i + number(1)
    loop(ir, ENTRIES, 0, body)


def one_too_many(ir, buffer):
    def body(i):
        load(buffer, i)
        return i + number(1)
    loop(ir, ENTRIES + 1, 0, body)


def down(ir, buffer):
    def body(i):
        load(buffer, i)
        return i - number(1)
    loop(ir, ENTRIES, ENTRIES - 1, body)


def down_too_far(ir, buffer):
    def body(i):
        load(buffer, i)
        return i - number(1)
    loop(ir, ENTRIES, ENTRIES - 2, body)


def in_rows(ir, buffer):
    def inner(j, row):
        load(buffer, row + j)
        return j + number(1)

    def outer(i):
        with popxl.in_sequence():
            loop(ir, 4, 0, inner, i * number(4))
        return i + number(1)
    loop(ir, 3, 0, outer)


def in_rows_too_many(ir, buffer):
    def inner(j, row):
        load(buffer, row + j)
        return j + number(1)

    def outer(i):
        loop(ir, 5, 0, inner, i * number(4))
        return i + number(1)
    loop(ir, 3, 0, outer)


def called_twice(ir, buffer):
    graph = ir.create_graph(lambda i: load(buffer, i), popxl.TensorSpec((1,), popxl.uint32))
    ops.call(graph, number(3))
    ops.call(graph, number(11))


def called_outside(ir, buffer):
    graph = ir.create_graph(lambda i: load(buffer, i), popxl.TensorSpec((1,), popxl.uint32))
    ops.call(graph, number(3))
    ops.call(graph, number(12))


def doubled(ir, buffer):
    def body(i):
        load(buffer, i)
        return i + i
    loop(ir, 3, 1, body)


def from_a_stream(ir, buffer):
    load(buffer, ops.host_load(popxl.h2d_stream((1,), popxl.uint32)))


def swapped(ir, buffer):
    def body(i, j):
        load(buffer, i)
        return j, i
    graph = ir.create_graph(body, *[popxl.TensorSpec((1,), popxl.uint32)] * 2)
    ops.repeat(graph, 3, number(1), number(30))


def changed_in_place(ir, buffer):
    def body(i: popxl.TensorByRef):
        load(buffer, ops.add_(i, number(9)))
    i = number(0) + number(0)
    graph = ir.create_graph(body, i)
    info = ops.call_with_info(graph, i)
    info.set_parent_input_modified(i)
    ops.call(graph, i)


def in_a_branch(ir, buffer):
    graph = ir.create_graph(lambda: load(buffer, number(2)))
    other = ir.create_graph(lambda: load(buffer, number(20)))
    ops.conditional(popxl.constant(True), graph, other)


def never(ir, buffer):
    def body(i):
        load(buffer, i)
        return i + number(1)
    loop(ir, 0, 50, body)


CASES = {
    up: [True], one_too_many: [False], down: [True], down_too_far: [False], in_rows: [True],
    in_rows_too_many: [False], called_twice: [True], called_outside: [False], doubled: [False],
    from_a_stream: [False], swapped: [False], changed_in_place: [False], in_a_branch: [True, False], never: [False],
}


@pytest.mark.parametrize("act", CASES, ids=lambda act: act.__name__)
def test_offsets(act):
    assert sorted(program(act)) == sorted(CASES[act])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_loops(data):
    """Loops in loops, whose offsets are sums of their counters with factors: within if the true range is."""
    depth = data.draw(st.integers(1, 3))
    levels = [(data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5)), data.draw(st.sampled_from([1, 2, -1])),
               data.draw(st.integers(0, 4))) for _ in range(depth)]
    seen = {0}
    for count, start, by, factor in levels:
        seen = {s + factor * (start + k * by) for s in seen for k in range(count)}
    counters_stay = all(start + k * by >= 0 for count, start, by, _ in levels for k in range(count))

    def act(ir, buffer):
        def body_of(level):
            count, start, by, factor = levels[level]

            def body(i, total):
                with popxl.in_sequence():
                    here = total + i * number(factor)
                    if level + 1 == depth:
                        load(buffer, here)
                    else:
                        nested(level + 1, here)
                    return i + number(by) if by > 0 else i - number(-by)
            return body

        def nested(level, total):
            loop(ir, levels[level][0], levels[level][1], body_of(level), total)
        nested(0, number(0))
    said, = program(act)
    true = min(seen) >= 0 and max(seen) < ENTRIES
    assert said <= true
    if counters_stay:
        assert said == true
