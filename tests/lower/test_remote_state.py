"""State in remote memory: what a program does with it is what it does with state on the device."""
import os
from typing import Any, Callable, Dict, List, NamedTuple, Tuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from serial_cases import agree, by_definition, by_session, close, f16, f32, i32, specs

import popfn as pf
import popfn.numpy as pnp

OUTER, INNER, WIDTH = 2, 3, 2
SHAPE = (OUTER, INNER, WIDTH, WIDTH)
RUNS = 3


def mean(v: Any) -> Any:
    return pnp.mean(v) * 0.5


# ---------------------------------------------------------------------------- random programs
def inner_scan(h: Any, v: Any, reverse: bool = False) -> Any:
    return pf.scan(lambda h, w: (pnp.tanh(h @ w + 0.1), None), h, v, reverse=reverse)[0]


def read_nested(h: Any, a: Any, b: Any, far: Any) -> Any:
    return pf.scan(lambda h, v: (inner_scan(h, v), None), h, a)[0], ()


def read_outer(h: Any, a: Any, b: Any, far: Any) -> Any:
    return pf.scan(lambda h, v: (pnp.tanh(h + pnp.sum(v, axis=0)), None), h, a, reverse=True)[0], ()


def read_whole(h: Any, a: Any, b: Any, far: Any) -> Any:
    return pnp.tanh(h + a[1, 0] @ b[0, 1]), ()


def read_row(h: Any, a: Any, b: Any, far: Any) -> Any:
    return pnp.tanh(h + pnp.take(a, (h[0, 0] > 0).astype(i32), axis=0)[0]), ()


def update_outer(h: Any, a: Any, b: Any, far: Any) -> Any:
    h, new = pf.scan(lambda h, v: (pnp.tanh(h + v[0]), v * 0.5 + mean(h)), h, a)
    return h, (new,)


def update_backwards(h: Any, a: Any, b: Any, far: Any) -> Any:
    h, new = pf.scan(lambda h, v: (pnp.tanh(h @ v[2]), far(v * 0.5 + mean(h))), h, a, reverse=True)
    return h, (new,)


def update_nested(h: Any, a: Any, b: Any, far: Any) -> Any:
    def outer(h: Any, v: Any) -> Any:
        return pf.scan(lambda h, w: (pnp.tanh(h @ w + 0.1), far(w * 0.5 + mean(h))), h, v)
    h, new = pf.scan(outer, h, a)
    return h, (new,)


def update_after_reading(h: Any, a: Any, b: Any, far: Any) -> Any:
    def outer(h: Any, v: Any) -> Any:
        h = inner_scan(h, v)
        new = pf.map(lambda w: w * 0.5 + mean(h), v)
        return pnp.tanh(h + v[0]), new
    h, new = pf.scan(outer, h, a)
    return h, (new,)


def update_both(h: Any, a: Any, b: Any, far: Any) -> Any:
    h, new = pf.scan(lambda h, v: (pnp.tanh(h + v[0][0] - v[1][1]), (far(v[1] * 0.5), far(v[0] * 0.5 + mean(h)))), h,
                     (a, b))
    return h, new


def cross(h: Any, a: Any, b: Any, far: Any) -> Any:
    h, new = pf.scan(lambda h, v: (h, v), h, (a, b))
    return h, (new[1], new[0])


def whole(h: Any, a: Any, b: Any, far: Any) -> Any:
    return h, (far(a * 0.5 + b * 0.25 + mean(h)),)


def near(h: Any, a: Any, b: Any, far: Any) -> Any:
    return h, (pf.load(a) if far is not keep else a,)


def stored(h: Any, a: Any, b: Any, far: Any) -> Any:
    return h, (far(a),)


def mapped(h: Any, a: Any, b: Any, far: Any) -> Any:
    return h, (pf.map(lambda v: pf.map(lambda w: w @ h * 0.5, v), a), pf.map(lambda v: v, b))


def choose(h: Any, a: Any, b: Any, far: Any) -> Any:
    return h, (pf.cond(h[0, 0] > 0, lambda a, b: a, lambda a, b: b, a, b),)


def branch(h: Any, a: Any, b: Any, far: Any) -> Any:
    def update(h: Any, a: Any) -> Any:
        h, (new,) = update_outer(h, a, a, far)
        return h, far(new)
    h, new = pf.cond(h[0, 0] > 0, update, lambda h, a: (h, far(a)), h, a)
    return h, (new,)


def called(h: Any, a: Any, b: Any, far: Any) -> Any:
    return JITTED[far](h, a, b)


def called_twice(h: Any, a: Any, b: Any, far: Any) -> Any:
    h, (first,) = JITTED[far](h, a, b)
    h, (second,) = JITTED[far](h, first, a)
    return h, (second, first)


def carried(h: Any, a: Any, b: Any, far: Any) -> Any:
    a, rows = pf.scan(lambda c, v: (far(c * 0.5 + mean(v)), c[0]), a, b)
    return h, (a, far(pnp.concat([rows, rows[:, :1]], axis=1)[:, :INNER]))


def carried_and_read(h: Any, a: Any, b: Any, far: Any) -> Any:
    new, h = pf.scan(lambda c, _: ((far(c[0] * 0.5 + mean(c[1])), inner_scan(c[1], c[0][0])), None), (a, h), None,
                     length=2)[0]
    return h, (new,)


def looped(h: Any, a: Any, b: Any, far: Any) -> Any:
    return h, (pf.while_loop(lambda c: pnp.sum(c) > 1.0, lambda c: far(c * 0.5), a, max_steps=3),)


def sgd(h: Any, a: Any, b: Any, far: Any) -> Any:
    def loss(a: Any) -> Any:
        return pnp.sum(pf.scan(lambda h, v: (inner_scan(h, v), None), h, a)[0] ** 2)
    total, slope = pf.value_and_grad(loss)(a)
    return pnp.tanh(h + total * 0.1), (pf.map(lambda p: p[0] - 0.1 * p[1], (a, slope)),)


def batch(h: Any, a: Any, b: Any, far: Any) -> Any:
    serial = pf.batch_serialise(lambda a, h: a * 0.5 + h, INNER, in_axes=(1, None), out_axes=1)
    return h, (far(serial(a, h)),)


def batch_first(h: Any, a: Any, b: Any, far: Any) -> Any:
    serial = pf.batch_serialise(lambda a, b, h: (a * 0.5 + h, pnp.sum(b, axis=(0, 1))), OUTER, in_axes=(0, 0, None),
                                reduce=(None, "mean"))
    new, h = serial(a, b, h)
    return pnp.tanh(h), (far(new),)


def switched(h: Any, a: Any, b: Any, far: Any) -> Any:
    k = (h[0, 0] > 0).astype(i32) + (h[0, 1] > 0).astype(i32)
    new = pf.switch(k, [lambda a, b: a, lambda a, b: far(a * 0.5 + b * 0.25),
                        lambda a, b: far(pf.map(lambda v: v * 0.5, b))], a, b)
    return h, (new,)


def counted(h: Any, a: Any, b: Any, far: Any) -> Any:
    return pf.fori_loop(0, 2, lambda i, h: inner_scan(h, pnp.take(a, i, axis=0)), h), (
        pf.fori_loop(0, 2, lambda i, c: far(c * 0.5 + mean(b)), a),)


def lanes(h: Any, a: Any, b: Any, far: Any) -> Any:
    hs, new = pf.vmap(lambda v, w: (inner_scan(h, v), far(v * 0.5 + mean(w))))(a, b)
    return pnp.mean(hs, axis=0), (new,)


def buffered(h: Any, a: Any, b: Any, far: Any) -> Any:
    buffer = pf.remote_buffer(pf.spec(SHAPE[1:]), OUTER, 2)
    buffer.write(0, a)
    old = buffer.read(0)
    buffer.write(1, b)
    serial = pf.batch_serialise(lambda v: v * 0.5, OUTER, loads=pf.Remote(buffer, 1), stores=pf.Remote(buffer))
    serial(None)
    return pnp.tanh(h + buffer.read(0)[1, 2]), (old, buffer.read(0), buffer.read(1))


def buffered_layers(h: Any, a: Any, b: Any, far: Any) -> Any:
    """Elements of a scan are written to the rows of a buffer, and read from there."""
    buffer = pf.remote_buffer(pf.spec((WIDTH, WIDTH)), INNER, OUTER)
    pf.scan(lambda c, v: (c + 1, buffer.write(c, far(v))), 0, a)
    h, rows = pf.scan(lambda h, i: (inner_scan(h, buffer.read(i)), buffer.read(OUTER - 1 - i)), h, np.arange(OUTER))
    return h, (rows,)


def keep(x: Any) -> Any:
    return x


JITTED = {far: pf.jit(lambda h, a, b, far=far: update_nested(h, a, b, far)) for far in (keep, pf.remote)}
STATEMENTS: Dict[str, Callable[..., Any]] = {f.__name__: f for f in (
    read_nested, read_outer, read_whole, read_row, update_outer, update_backwards, update_nested, update_after_reading,
    update_both, cross, whole, near, stored, mapped, choose, branch, called, called_twice, carried, carried_and_read,
    looped, sgd, batch, batch_first, switched, counted, lanes, buffered, buffered_layers)}


class Random(NamedTuple):
    """Statements on values of one shape, at first those of the state; and which values are the state's next ones.

    A statement takes the values that its numbers name, counted from the newest, and adds new ones.
    """

    statements: Tuple[Tuple[str, int, int], ...]
    news: Tuple[int, ...]
    shown: Tuple[int, ...]
    is_far: Tuple[bool, ...]
    nested: bool

    def step(self, far: Callable[[Any], Any]) -> Callable[..., Any]:
        def step(state: Dict[str, Any], h: Any) -> Any:
            values = list(pf.tree.leaves(state))
            for name, i, j in self.statements:
                h, new = STATEMENTS[name](h, values[-1 - i % len(values)], values[-1 - j % len(values)], far)
                values += new
            leaves = [values[-1 - i % len(values)] for i in self.news]
            shown = [values[-1 - i % len(values)] for i in self.shown]
            return pf.tree.unflatten(pf.tree.structure(state), leaves), (h, shown)
        return pf.jit(step) if self.nested else step


@st.composite
def random_programs(draw: Any) -> Random:
    number = st.integers(0, 6)
    is_far = tuple(draw(st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=3)))
    statements = draw(st.lists(st.tuples(st.sampled_from(sorted(STATEMENTS)), number, number), max_size=5))
    news = draw(st.tuples(*[number] * len(is_far)))
    return Random(tuple(statements), news, tuple(draw(st.lists(number, max_size=1))), is_far, draw(st.booleans()))


def first_state(count: int) -> Dict[str, Any]:
    rng = np.random.default_rng(count)
    return {"abc"[i]: rng.normal(0, 0.5, SHAPE).astype(f32) for i in range(count)}


def first_types(is_far: Tuple[bool, ...], state: Dict[str, Any]) -> Dict[str, Any]:
    return {k: pf.remote(s) if on else s for on, (k, s) in zip(is_far, specs(state).items())}


def arguments(seed: int = 0) -> List[Tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(WIDTH, WIDTH)).astype(f32),) for _ in range(RUNS)]


@settings(max_examples=max(60, settings.default.max_examples))
@given(random_programs())
def test_random_state(p: Random) -> None:
    state = first_state(len(p.is_far))
    agree(lambda _: p.step(pf.remote), p.step(keep), arguments(), state, first_types(p.is_far, state),
          modes=("compute",))


# ---------------------------------------------------------------------------- tables
Step = Callable[[Callable[[Any], Any], Any, Any], Any]
H = np.full((WIDTH, WIDTH), 0.25, f32)
KINDS: Dict[str, Step] = {  # steps of a pair of leaves f32[2,3], and what is far of their new values
    "kept": lambda far, s, op: (s, s[0]),
    "updated": lambda far, s, op: ((far(op(s[0])), s[1]), s[0][0]),
    "swapped": lambda far, s, op: ((s[1], s[0]), s[0]),
    "swapped and updated": lambda far, s, op: ((far(op(s[1])), s[0]), s[1][1]),
    "one for both": lambda far, s, op: ((s[0], s[0]), s[1]),
    "one new for both": lambda far, s, op: (lambda new: ((new, new), s[1]))(far(op(s[0]))),
    "mapped": lambda far, s, op: ((pf.map(op, s[0]), pf.map(op, s[1])), s[0]),
    "mapped into the other": lambda far, s, op: ((pf.map(op, s[1]), pf.map(op, s[0])), s[0]),
    "mapped together": lambda far, s, op: (pf.map(lambda v: (op(v[1]), op(v[0])), s), s[1]),
    "reversed": lambda far, s, op: (pf.scan(lambda c, v: (c, (op(v[0]), v[1])), 0.0, s, reverse=True)[1], s[0][0]),
    "shifted": lambda far, s, op: ((s[1], pf.scan(lambda c, v: (op(v), c), s[0][0], s[0])[1]), s[0]),
    "read afterwards": lambda far, s, op: (lambda new: ((new, s[0]), (new[0], s[0][1])))(far(pf.map(op, s[0]))),
    "read by a loop afterwards": lambda far, s, op: (lambda new: (
        (new, s[1]), pf.map(lambda v: (v[0], op(v[1])), (s[0], new))))(pf.map(op, s[0])),
    "chosen": lambda far, s, op: (pf.cond(pnp.any(s[0][0].astype(i32) > 1), lambda a, b: (b, a), lambda a, b: (a, b),
                                          *s), s[0]),
    "chosen or updated": lambda far, s, op: ((s[0], pf.cond(pnp.any(s[0][0].astype(i32) > 1), lambda a: far(op(a)),
                                                            lambda a: a, s[1])), s[1]),
    "called": lambda far, s, op: (pf.jit(lambda s: (pf.map(op, s[1]), s[0]))(s), s[0]),
    "the carry of a loop": lambda far, s, op: ((pf.scan(lambda c, _: (far(op(c)), None), s[0], None, length=2)[0],
                                                s[0]), s[1]),
    "the carry of a loop without steps": lambda far, s, op: (
        (pf.scan(lambda c, _: (far(op(c)), None), s[0], None, length=0)[0], s[0]), s[1]),
    "carries that swap": lambda far, s, op: (pf.scan(lambda c, _: ((c[1], far(op(c[0]))), None), s, None,
                                                     length=3)[0], s[1]),
    "whole and by rows": lambda far, s, op: ((pf.map(op, s[0]), far(op(s[0]))), (s[0], s[0][1])),
    "made of the whole": lambda far, s, op: ((pf.map(lambda v: far(op(s[0][0])), s[1]), s[1]), s[1][0]),
    "made of the whole and of rows": lambda far, s, op: (
        (pf.map(lambda v: far(op(pnp.where(v == v, s[0][0], v))), s[0]), s[1]), s[1][0]),
    "by rows and by elements": lambda far, s, op: (
        (pf.map(lambda r: pf.map(op, r), s[0]), pf.map(op, s[0])), pf.map(lambda r: op(r), s[0])),
}
OPS: Dict[Any, Callable[[Any], Any]] = {np.bool_: lambda x: ~x}
DTYPES = (f32, f16, i32, np.bool_, np.uint8, np.int8, np.uint32)


def pair(dtype: Any) -> Tuple[Any, Any]:
    first = np.array([[0, 1, 2], [3, 0, 1]])
    return first.astype(dtype), (first[::-1] * 2).astype(dtype)


def check_kind(name: str, dtype: Any, types: Any = None, args: Tuple[Any, ...] = (np.ones(1, f32),)) -> None:
    op = OPS.get(dtype, lambda x: x + x)
    state = pair(dtype)
    first = pf.remote(specs(state)) if types is None else types
    agree(lambda _: lambda s, h: KINDS[name](pf.remote, s, op), lambda s, h: KINDS[name](keep, s, op), [args] * 3,
          state, first, modes=("compute",))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", KINDS)
def test_state_of_every_dtype(name: str, dtype: Any) -> None:
    check_kind(name, dtype)


@pytest.mark.parametrize("name", KINDS)
def test_partly_remote_state(name: str) -> None:
    near, far = specs(pair(f32))
    check_kind(name, f32, (near, pf.remote(far)))
    check_kind(name, f32, (pf.remote(near), far))


@pytest.mark.parametrize("dtype", [pf.float8_143, pf.float8_152], ids=["143", "152"])
@pytest.mark.parametrize("name", ["kept", "updated", "swapped", "one for both", "mapped", "reversed", "chosen",
                                  "called", "the carry of a loop", "carries that swap", "whole and by rows",
                                  "by rows and by elements"])
def test_float8_state(name: str, dtype: Any) -> None:
    OPS[dtype] = lambda x: (x.astype(f32) * 0.5).astype(dtype)
    check_kind(name, dtype)


@pytest.mark.parametrize("name", ["updated", "mapped together", "carries that swap", "by rows and by elements"])
def test_state_on_xla(name: str) -> None:
    with mock.patch.dict(os.environ, POPFN_ENGINE="xla"):
        check_kind(name, f32)


SIZES: Dict[str, Tuple[Any, Callable[..., Any]]] = {
    "a scalar": (f32(3), lambda far, s, x: (far(s + x[0]), s * 2)),
    "scalars": ((f32(3), i32(2)), lambda far, s, x: ((far(s[0] * 2), s[1] + 1), s[0] + x)),
    "one element": (np.ones((1, 1), f32), lambda far, s, x: (pf.map(lambda v: v * 2, s), s)),
    "a vector of scalars": (np.arange(3.0, dtype=f32), lambda far, s, x: (pf.map(lambda v: v + x[0], s), s[1])),
    "nothing": (np.zeros((0, 3), f32), lambda far, s, x: (far(s * 2), x)),
    "rows of nothing": (np.zeros((3, 0), f32), lambda far, s, x: (pf.map(lambda v: v * 2, s), (s, x))),
    "no rows": (np.zeros((0, 3), f32), lambda far, s, x: (pf.map(lambda v: v * 2, s), x)),
    "nothing beside something": ({"a": np.zeros((3, 0), f32), "b": np.ones((3, 2), f32)}, lambda far, s, x: (
        pf.map(lambda v: {"a": v["a"] * 2, "b": v["b"] + x[0]}, s), s["b"])),
    "no leaves": ({}, lambda far, s, x: (s, x * 2)),
    "unread": (np.ones((3, 2), f32), lambda far, s, x: (s, x * 2)),
    "overwritten": (np.ones((3, 2), f32), lambda far, s, x: (far(pnp.zeros((3, 2)) + x[0]), x * 2)),
    "a constant": (np.ones((3, 2), f32), lambda far, s, x: (far(np.arange(6, dtype=f32).reshape(3, 2)), s)),
    "an argument": (np.ones(1, f32), lambda far, s, x: (far(x), s)),
    "stacked by a loop": (np.ones((4, 1), f32), lambda far, s, x: (
        pf.scan(lambda c, _: (c * 2, far(c)), x, None, length=4)[1], s.sum())),
    "a deep tree": ({"a": [np.ones((2, 3), f32), (np.zeros(2, i32),)], "b": None}, lambda far, s, x: (
        {"a": [pf.map(lambda v: v * 2, s["a"][0]), (far(s["a"][1][0] + 1),)], "b": None}, s["a"][0])),
}


@pytest.mark.parametrize("name", SIZES)
def test_state_of_every_size(name: str) -> None:
    state, step = SIZES[name]
    agree(lambda _: lambda s, x: step(pf.remote, s, x), lambda s, x: step(keep, s, x), [(np.full(1, 0.5, f32),)] * 3,
          state, pf.remote(specs(state)), modes=("compute",))


@settings(max_examples=max(3, settings.default.max_examples // 100))
@given(random_programs())
def test_random_state_on_xla(p: Random) -> None:
    state = first_state(len(p.is_far))
    with mock.patch.dict(os.environ, POPFN_ENGINE="xla"):
        program = pf.lower(p.step(pf.remote), first_types(p.is_far, state), *specs(arguments()[0]), state=0)
        got = by_session(program, arguments(), state)
    close(got, by_definition(p.step(keep), arguments(), state), "XLA")


# ---------------------------------------------------------------------------- sessions
def decayed(s: Any, x: Any) -> Any:
    return {"near": s["near"] * 0.5, "far": pf.map(lambda v: v * 0.5 + x, s["far"])}, pnp.sum(s["far"])


def test_sessions_read_and_write_remote_state() -> None:
    state = {"near": np.ones(2, f32), "far": np.arange(6, dtype=f32).reshape(3, 2)}
    types = {"near": pf.spec(2), "far": pf.remote(pf.spec((3, 2)))}
    program = pf.lower(decayed, types, pf.spec(()), state=0)
    session = pf.Session(program, state=state)
    np.testing.assert_array_equal(session.state["far"], state["far"])
    with session:
        assert session.run(1.0) == 15
        np.testing.assert_array_equal(session.get_variable_data("s['far']"), state["far"] * 0.5 + 1)
        session.write_variable_data("s['far']", state["far"] * 2)
        assert session.run(0.0) == 30
        np.testing.assert_array_equal(session.state["near"], [0.25, 0.25])
        session.state = state
        assert session.run(0.0) == 15
        with pytest.raises(pf.errors.InputError, match="s\\['far'\\]"):
            session.write_variable_data("s['far']", np.zeros((2, 3), f32))
    np.testing.assert_array_equal(session.state["far"], state["far"] * 0.5)
    assert [v.shape for v in program.variables["s['far']"]] == [(2,)] * 3
    assert program.variables["s['near']"].shape == (2,)


def test_remote_arguments_and_results_are_streamed_by_the_host() -> None:
    """What is no state comes from the host and goes there, whatever memory its type says."""
    def f(x: Any, w: Any) -> Any:
        return pf.remote(pf.map(lambda v: v @ w, x)), pf.remote(x), x[0]
    x, w = np.arange(12, dtype=f32).reshape(3, 2, 2), np.ones((2, 2), f32)
    program = pf.lower(f, pf.remote(specs(x)), pf.remote(specs(w)), target="host")
    close(by_session(program, [(x, w)] * 2), by_definition(f, [(x, w)] * 2), "remote arguments")
