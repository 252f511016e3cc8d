"""Views by reference: of different storage, of parts that are apart, that overlap, or that are the same."""
import itertools

import numpy as np
import pytest
from engine_checks import session_on

import popfn.host as popxl
from popfn.host.errors import popart_exception

ops, i32 = popxl.ops, popxl.int32
Ref = popxl.TensorByRef
V, W, U = np.arange(27, dtype=np.int32).reshape(3, 3, 3)

# Each view as ops, and as NumPy on the numbers of the cells.
VIEWS = {
    "whole": (lambda x, y: x, lambda x, y: x),
    "transposed": (lambda x, y: ops.transpose_(x), lambda x, y: x.T),
    "first columns": (lambda x, y: ops.slice_(x, 0, 1, 1, 1), lambda x, y: x[:, :1]),
    "other columns": (lambda x, y: ops.slice_(x, 1, 3, 1, 1), lambda x, y: x[:, 1:]),
    "first row": (lambda x, y: ops.slice_(x, 0, 1), lambda x, y: x[:1]),
    "other rows": (lambda x, y: ops.slice_(x, 1, 3), lambda x, y: x[1:]),
    "backwards": (lambda x, y: ops.slice_(x, None, None, -1), lambda x, y: x[::-1]),
    "vector": (lambda x, y: ops.reshape_(x, (9,)), lambda x, y: x.reshape(9)),
    "vector of columns": (lambda x, y: ops.reshape_(ops.transpose_(x), (9,)), lambda x, y: x.T.reshape(9)),
    "piece of a joined one": (
        lambda x, y: ops.slice_(ops.concat_([y, x], 1), 1, 4, 1, 1), lambda x, y: np.concatenate([y, x], 1)[:, 1:4]),
}
WRITTEN = ["neither", "first", "second", "both"]


def body(written):
    """A graph that writes to one of its inputs, or both, and reads both before, between and after."""
    def graph(x: Ref, y: Ref):
        before = ops.sum(x) - ops.sum(y)
        if written in ("first", "both"):
            ops.add_(x, ops.sum(y))
        if written in ("second", "both"):
            ops.add_(y, ops.sum(x) + popxl.constant(1, i32))
        return before + ops.sum(x) * popxl.constant(2, i32) + ops.sum(y) * popxl.constant(3, i32)
    return graph


def expected_body(written, memory, x, y):
    before = memory[x].sum() - memory[y].sum()
    if written in ("first", "both"):
        memory[x] += memory[y].sum()
    if written in ("second", "both"):
        memory[y] += memory[x].sum() + 1
    return before + memory[x].sum() * 2 + memory[y].sum() * 3


class Case:
    """A call of `body`, in the main graph or in one that gets variables by reference, of which two may be one."""

    def __init__(self, first, second, is_one, written, depth, is_loop):
        self.first, self.second, self.written = VIEWS[first], VIEWS[second], written
        self.is_one, self.depth, self.is_loop = is_one, depth, is_loop

    def build(self, ir):
        v, w, u = self.variables = [popxl.variable(x) for x in (V, W, U)]
        out = self.level(ir, self.depth, v, v if self.is_one else w, u)
        self.out = popxl.d2h_stream((), i32)
        ops.host_store(self.out, out)

    def level(self, ir, depth, v, w, other):
        if depth:
            def outer(a: Ref, b: Ref, c: Ref):
                return self.level(ir, depth - 1, a, b, c)
            return ops.call(ir.create_graph(outer, v, w, other), v, w, other)[0]
        x, y = self.first[0](v, other), self.second[0](w, other)
        if not self.is_loop:
            return ops.call(ir.create_graph(body(self.written), x, y), x, y)[0]

        def loop(total, x: Ref, y: Ref):
            return total + body(self.written)(x, y)
        total = popxl.constant(0, i32)
        return ops.repeat(ir.create_graph(loop, total, x, y), 2, total, x, y)[0]

    def expect(self):
        memory = np.arange(27, dtype=np.int32)
        v, w, u = memory.reshape(3, 3, 3).copy()
        x, y = self.first[1](v, u), self.second[1](v if self.is_one else w, u)
        self.overlap = np.isin(x, y).any()
        self.are_same = x.shape == y.shape and (x == y).all()
        total = sum(expected_body(self.written, memory, x, y) for _ in range(2 if self.is_loop else 1))
        return total, memory[v], memory[w], memory[u]

    def check(self, session, found):
        total, *values = self.expect()
        assert found[self.out] == total
        for variable, value in zip(self.variables, values):
            np.testing.assert_array_equal(session.get_tensor_data(variable), value)


def run(engine, case):
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        case.build(ir)
    with session_on(engine, ir) as session:
        case.check(session, session.run())


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("is_one", [False, True], ids=["two", "one"])
@pytest.mark.parametrize("is_loop", [False, True], ids=["call", "loop"])
def test_every_pair_of_views(is_loop, is_one, depth):
    """The NumPy engine refuses only what overlaps, differs and is written, and says so."""
    refused = 0
    for first, second, written in itertools.product(VIEWS, VIEWS, WRITTEN[depth:]):
        case = Case(first, second, is_one, written, depth, is_loop)
        case.expect()
        may_refuse = case.overlap and not case.are_same and written != "neither"
        try:
            run("numpy", case)
        except popart_exception as error:
            text = str(error)
            assert may_refuse, (first, second, written, text)
            assert "are different views of one storage" in text and text.endswith("Pass the storage once."), text
            refused += 1
    assert refused


def test_pairs_of_views_on_xla():
    pytest.importorskip("jax")
    cases = [
        Case(first, second, is_one, written, depth, is_loop)
        for first, second, is_one, written, depth, is_loop in itertools.product(
            VIEWS, VIEWS, [False, True], WRITTEN[1:], [0, 1], [False, True])
    ][::61]
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        for case in cases:
            case.build(ir)
    with session_on("xla", ir) as session:
        found = session.run()
        for case in cases:
            case.check(session, found)


@pytest.mark.parametrize("view", ["whole", "other rows", "transposed"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("order", [1, -1])
def test_two_calls_of_which_one_overlaps(engine, order, depth, view):
    """What one call gives twice, another gives as two storages: the graph is right for both, or refused."""
    make, cells = VIEWS[view]
    ir = popxl.Ir()

    def change(x: Ref, y: Ref):
        ops.add_(x, y)
        ops.add_(y, x)

    def level(depth):
        def graph(x: Ref, y: Ref):
            x, y = (x, y) if depth else (make(x, None), make(y, None))
            ops.call(level(depth - 1) if depth else ir.create_graph(change, x, y), x, y)
        return ir.create_graph(graph, v, w)
    with ir.main_graph, popxl.in_sequence():
        v, w, u = (popxl.variable(x) for x in (V, W, U))
        graph = level(depth)
        for x, y in [(u, u), (v, w)][::order]:
            ops.call(graph, x, y)
    if engine == "numpy" and view == "transposed":
        with pytest.raises(popart_exception, match="are different views of one storage"):
            session_on(engine, ir)
        return
    want = V.copy(), W.copy(), U.copy()
    for x, y in ((0, 1), (2, 2)):
        cells(want[x], None)[...] += cells(want[y], None)
        cells(want[y], None)[...] += cells(want[x], None)
    with session_on(engine, ir) as session:
        session.run()
        for t, value in zip((v, w, u), want):
            np.testing.assert_array_equal(session.get_tensor_data(t), value)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("in_graph", [False, True])
def test_the_rest_of_a_joined_view_and_a_piece(engine, axis, in_graph):
    """Both are written: what is copied back of the joined one is only what the graph got of it."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        v, w = popxl.variable(V), popxl.variable(W)

        def graph(x: Ref, y: Ref):
            ops.add_(x, popxl.constant(100, i32))
            ops.add_(y, popxl.constant(1000, i32))

        def outer(v: Ref, w: Ref):
            joined = ops.concat_([v, w], axis)
            rest = ops.slice_(joined, 3, 6, 1, axis)
            ops.call(ir.create_graph(graph, rest, v), rest, v)
            ops.add_(joined, popxl.constant(1, i32))
        if in_graph:
            ops.call(ir.create_graph(outer, v, w), v, w)
        else:
            outer(v, w)
    with session_on(engine, ir) as session:
        session.run()
        np.testing.assert_array_equal(session.get_tensor_data(v), V + 1001)
        np.testing.assert_array_equal(session.get_tensor_data(w), W + 101)


# Writes through a view that shows an element twice.

def rows(x, start, stop):
    return ops.slice_(x, start, stop)


JOINED = {  # whether the pieces overlap
    "one twice": (lambda ir, v, w: ops.concat_([v, v]), True),
    "parts that overlap": (lambda ir, v, w: ops.concat_([rows(v, 0, 2), rows(v, 1, 3)]), True),
    "one and its transpose": (lambda ir, v, w: ops.concat_([v, ops.transpose_(v)], 1), True),
    "one in two joined ones": (lambda ir, v, w: ops.concat_([ops.concat_([v, w]), rows(v, 2, 3)]), True),
    "a joined one in another": (lambda ir, v, w: ops.concat_([ops.concat_([w, w]), v]), True),
    "a value twice": (lambda ir, v, w: ops.concat_([w + w] * 2), True),
    "a constant twice": (lambda ir, v, w: ops.concat_([popxl.constant(V)] * 2), True),
    "a rotation": (lambda ir, v, w: ops.concat_([rows(v, 1, 3), rows(v, 0, 1)]), False),
    "columns": (lambda ir, v, w: ops.concat_([ops.slice_(v, 0, 1, 1, 1), ops.slice_(v, 1, 3, 1, 1)], 1), False),
    "two": (lambda ir, v, w: ops.concat_([v, w]), False),
    "copies": (lambda ir, v, w: ops.concat_([ops.detach(v), v]), False),
    "not a view": (lambda ir, v, w: ops.concat([v, v]), False),
}


def by_call(ir, c, marked=False):
    def graph(x: Ref):
        ops.add_(x, popxl.constant(100, i32))

    def plain(x):
        ops.add_(x, popxl.constant(100, i32))
    if marked:
        ops.call_with_info(ir.create_graph(plain, c), c).set_parent_input_modified(c)
    else:
        ops.call(ir.create_graph(graph, c), c)


def by_loop(ir, c):
    def graph(x: Ref):
        ops.add_(x, popxl.constant(50, i32))
    ops.repeat(ir.create_graph(graph, c), 2, c)


def by_two_calls(ir, c):
    def graph(x: Ref):
        by_call(ir, ops.reshape_(x, (x.nelms,)))
    ops.call(ir.create_graph(graph, c), c)


WRITES = {
    "op": lambda ir, c: ops.add_(c, popxl.constant(100, i32)),
    "update": lambda ir, c: ops.var_updates.accumulator_scale_(ops.transpose_(c), 2),
    "a row": lambda ir, c: ops.add_(rows(c, 1, 2), popxl.constant(100, i32)),
    "call": by_call,
    "marked": lambda ir, c: by_call(ir, c, True),
    "calls": by_two_calls,
    "loop": by_loop,
    "row to a call": lambda ir, c: by_call(ir, rows(c, 2, 3)),
}


def session_of(engine, join, write, in_graph=False, replicas=1):
    ir = popxl.Ir(replicas)
    with ir.main_graph, popxl.in_sequence():
        v, w = popxl.variable(V, name="v"), popxl.variable(W, name="w")

        def use(v, w):
            c = join(ir, v, w)
            write(ir, c)
            return ops.sum(c)
        if in_graph:
            def graph(x: Ref, y: Ref):
                return use(x, y)
            total = ops.call(ir.create_graph(graph, v, w), v, w)[0]
        else:
            total = use(v, w)
        out = popxl.d2h_stream((), i32)
        ops.host_store(out, total)
    return session_on(engine, ir), out


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("joined", JOINED)
def test_writes_to_joined_views(joined, write):
    join, overlap = JOINED[joined]
    for engine, in_graph, replicas in (("numpy", False, 1), ("numpy", True, 1), ("numpy", False, 2)):
        if not overlap:
            session_of(engine, join, WRITES[write], in_graph, replicas)
            continue
        with pytest.raises(popart_exception, match=r"^Session: .* writes to .*concat_ makes of .* and .*, which share "
                           r"elements \(.*test_by_reference.py:\d+\)") as caught:
            session_of(engine, join, WRITES[write], in_graph, replicas)
        assert str(caught.value).endswith("Write to those tensors one by one, or join copies of them: ops.concat.")


@pytest.mark.parametrize("joined", JOINED)
def test_writes_to_joined_views_on_each_engine(engine, joined):
    join, overlap = JOINED[joined]
    if overlap:
        with pytest.raises(popart_exception, match="which share elements"):
            session_of(engine, join, WRITES["op"])
    session, out = session_of(engine, join, lambda ir, c: None)  # to read it is fine
    with session:
        assert session.run()[out] > 0


def overlap_by_the_call(ir, v, w, write):
    def graph(x: Ref, y: Ref):
        c = ops.concat_([x, y])
        if write == "joined":
            ops.add_(c, popxl.constant(100, i32))
        elif write == "piece":
            ops.add_(x, popxl.constant(100, i32))
        return ops.sum(c)
    return ir.create_graph(graph, v, w)


@pytest.mark.parametrize("write", ["joined", "piece", "none"])
def test_pieces_that_overlap_in_one_call_only(engine, write):
    for inputs, overlap in ((lambda v, w: (v, v), True), (lambda v, w: (v, w), False),
                            (lambda v, w: (rows(v, 0, 2), rows(v, 1, 3)), True),
                            (lambda v, w: (rows(v, 0, 1), rows(v, 1, 2)), False)):
        ir = popxl.Ir()
        with ir.main_graph, popxl.in_sequence():
            v, w = popxl.variable(V), popxl.variable(W)
            given = inputs(v, w)
            ops.call(overlap_by_the_call(ir, *given, write), *given)
        if overlap and write == "joined":
            with pytest.raises(popart_exception, match="which share elements"):
                session_on(engine, ir)
            continue
        expected = np.array([*V.reshape(-1), *W.reshape(-1)])
        with session_on(engine, ir) as session:
            session.run()
            first, second = given[0].shape[0] * 3, given[1].shape[0] * 3
            if write != "none":
                expected[:first] += 100
            if write == "joined":
                start = 9 if given[1] is w else 3
                expected[start:start + second] += 100
            np.testing.assert_array_equal(session.get_tensor_data(v).reshape(-1), expected[:9])


def test_a_joined_view_to_read_and_its_piece_to_write(engine):
    """The graph gets both by reference; it writes to the piece alone, which the joined one shows twice."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        v = popxl.variable(V)
        c = ops.concat_([v, v])

        def graph(x: Ref):
            ops.add_(x, popxl.constant(1, i32))
        ops.call(ir.create_graph(graph, v), v)
        out = popxl.d2h_stream((6, 3), i32)
        ops.host_store(out, c)
    with session_on(engine, ir) as session:
        np.testing.assert_array_equal(session.run()[out], np.concatenate([V, V]) + 1)
