"""Tracers: what they do in Python's hands, captures, leaks, following of values, threads."""
import copy
import gc
import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ConcretizationError, DtypeError, LeakError, PopfnError, ShapeError
from popfn.trace.tracer import Trace, Tracer, current_trace

SCALAR, VECTOR = pf.spec(()), pf.spec(3)


@pytest.fixture(autouse=True)
def clean():
    """No test leaves a trace open or the garbage collector off."""
    assert gc.isenabled() and current_trace() is None
    yield
    assert gc.isenabled() and current_trace() is None


def evaluated(f, *arrays):
    """f's results by tracing and evaluating the jaxpr."""
    outs = pf.make_jaxpr(f)(*arrays).check().eval(*(np.asarray(pf.Array(x)) for x in arrays))
    return outs if len(outs) > 1 else outs[0]


# ---------------------------------------------------------------------------- tracers in Python's hands
def test_a_tracer_has_a_type_and_a_text():
    def f(x):
        assert isinstance(x, pf.Array) and type(x) is Tracer
        assert (x.shape, x.dtype, x.ndim, x.size, len(x), x.T.shape) == ((3, 2), np.float32, 2, 6, 3, (2, 3))
        assert repr(x) == str(x) == f"{x}" == f"{x:.3f}" == "Tracer(f32[3,2] in f)"
        a, b, c = x
        assert [r.shape for r in x] == [a.shape, b.shape, c.shape] == [(2,)] * 3
        return a + b * c
    assert evaluated(f, np.float32([[1, 2], [3, 4], [5, 6]])).tolist() == [16, 26]


def test_unpacking_too_few_or_too_many():
    def too_many(x):
        a, b = x
    def too_few(x):
        a, b, c, d = x
    for f, text in ((too_many, "too many values to unpack"), (too_few, "not enough values to unpack")):
        with pytest.raises(ValueError, match=text):
            pf.make_jaxpr(f)(VECTOR)


ASK = [
    (lambda x: bool(x), "bool(...), as in `if` or `and`,"),
    (lambda x: 1 if x > 0 else 2, "bool(...), as in `if` or `and`,"),
    (lambda x: x > 0 and x, "bool(...), as in `if` or `and`,"), (lambda x: not x, "bool(...), as in `if` or `and`,"),
    (lambda x: x in [1, 2], "bool(...), as in `if` or `and`,"),
    (lambda x: 1 in x.reshape(1), "bool(...), as in `if` or `and`,"),
    (lambda x: max(x, 0), "bool(...), as in `if` or `and`,"),
    (lambda x: sorted([x, x]), "bool(...), as in `if` or `and`,"),
    (lambda x: [x].index(1), "bool(...), as in `if` or `and`,"),
    (lambda x: any([x, x]), "bool(...), as in `if` or `and`,"),
    (lambda x: float(x), "float(...)"), (lambda x: complex(x), "float(...)"), (lambda x: int(x), "int(...)"),
    (lambda x: range(x), "an index of a Python sequence, or range(...),"),
    (lambda x: [1, 2][x], "an index of a Python sequence, or range(...),"),
    (lambda x: np.asarray(x), "np.asarray(...)"), (lambda x: np.array([x, x]), "np.asarray(...)"),
    (lambda x: np.ones(3)[x], ""), (lambda x: pf.Array(x), "Array(...)"),
    (lambda x: pf.Array([x, 1]), "np.asarray(...)"),
    (lambda x: x.item(), "x.item()"), (lambda x: x.tolist(), "x.tolist()"),
]


@pytest.mark.parametrize("ask, what", ASK)
def test_a_tracer_refuses_its_value(ask, what):
    with pytest.raises(ConcretizationError) as e:
        pf.make_jaxpr(ask)(pf.spec((), int))
    assert str(e.value).startswith(what)
    assert "needs the value of an array that is not known while <lambda> is traced\n" in str(e.value)
    assert isinstance(e.value, TypeError)


def test_tracers_are_equal_elementwise():
    assert evaluated(lambda x: x == x, np.float32([1, np.nan])).tolist() == [True, False]
    assert evaluated(lambda x: x != 1, np.float32([1, 2])).tolist() == [False, True]
    assert evaluated(lambda x, y: (x == y) & (y == [2, 2]), np.float32([1, 2]), np.int32([1, 2])).tolist() == [False,
                                                                                                               True]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda t: copy.deepcopy({"w": t})["w"],
                                    lambda t: copy.copy([t])[0]])
def test_copies_of_a_tracer_are_the_same_value(copied):
    """`copy.deepcopy(params)` is common in training code."""
    assert evaluated(lambda x: copied(x) * x, np.float32(3)) == 9
    assert pf.grad(lambda x: copied(x) * x)(3.0).item() == 6


# ---------------------------------------------------------------------------- data closed over
def test_data_closed_over_is_taken_as_it_is_then():
    scalar, vector, boxed = np.array(2, np.float32), np.float32([1, 2, 3]), pf.Array([1.0, 2.0, 3.0])
    def f(x):
        return x * scalar + pnp.abs(vector) + pnp.exp(scalar) * 0 + vector @ boxed + pnp.abs(scalar)
    jaxpr = pf.make_jaxpr(f)(VECTOR)
    want = np.asarray(f(pf.Array(np.ones(3, np.float32))))
    scalar[...], vector[0] = 99, 99
    assert jaxpr.eval(np.ones(3, np.float32))[0].tolist() == want.tolist()


@pytest.mark.parametrize("use", [lambda x, c: x + c, lambda x, c: x * pnp.abs(c), lambda x, c: x @ c,
                                 lambda x, c: pnp.where(x > 0, pnp.abs(c), x), lambda x, c: pnp.concat([x, c])])
def test_a_buffer_that_is_written_to_between_two_uses(use):
    """What a primitive takes is the data at that moment, in a trace as without one."""
    buffer = np.zeros(3, np.float32)
    def f(x):
        parts = []
        for i in range(3):
            buffer[:] = i + 1
            parts.append(use(x, buffer))
        return parts
    x = np.float32([1, 2, 3])
    eager = [np.asarray(p) for p in f(pf.Array(x))]
    for a, b in zip(eager, evaluated(f, x)):
        assert a.tolist() == b.tolist()


def test_constants_are_kept_once():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    boxed = pf.Array(table)
    jaxpr = pf.make_jaxpr(lambda x: x * pf.Array(1.0) + pnp.sum(boxed @ boxed.T) + boxed.sum())(SCALAR)
    assert len(jaxpr.constants) == 1
    assert not jaxpr.constants[0].flags.writeable


def test_arguments_stay_the_users_own():
    """Whatever a function does with its argument, the caller's array stays as it was and can be written to."""
    for f in (lambda x: x, lambda x: (x.sum(), x), lambda x: x.reshape(3, 1), lambda x: x[::-1],
              lambda x: {"x": x, "y": x * 2}):
        x, t = np.ones(3, np.float32), np.ones(3, np.float32)
        outs = [pf.jvp(f, (x,), (t,)), pf.linearize(f, x), pf.vjp(f, x)[0], pf.make_jaxpr(f)(x), pf.eval_shape(f, x)]
        outs.append(pf.value_and_grad(lambda x, f=f: (pnp.sum(x), f(x)), has_aux=True)(x))
        outs.append(pf.linearize(f, x)[1](t))
        x[0] = t[0] = 7
        for leaf in pf.tree.leaves(outs[:3] + outs[5:]):
            if isinstance(leaf, pf.Array):
                assert 7 not in np.asarray(leaf) and not np.asarray(leaf).flags.writeable


# ---------------------------------------------------------------------------- captures
def test_an_inner_function_closes_over_an_outer_tracer():
    def outer(x, y):
        return pf.grad(lambda z: pnp.sum(x * z ** 2 + y))(y)
    jaxpr = pf.make_jaxpr(outer)(VECTOR, VECTOR).check()
    assert jaxpr.in_avals == (VECTOR, VECTOR)
    x, y = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    np.testing.assert_allclose(jaxpr.eval(x, y)[0], 2 * x * y)
    np.testing.assert_allclose(outer(pf.Array(x), y), 2 * x * y)


def test_an_outer_tracer_is_captured_once():
    with Trace("outer") as t:
        x = t.input(VECTOR)
        with Trace("inner") as inner:
            y = inner.input(VECTOR)
            jaxpr = inner.finish([x * y + x, x])
        assert len(inner.captures) == 1 and inner.captures[0] is x
    assert str(jaxpr) == ("{ lambda ; a:f32[3] b:f32[3] . let\n    c:f32[3] = mul a b\n    d:f32[3] = add c a\n"
                          "  in (d, a) }")


def test_captures_pass_through_the_traces_between():
    def f(a):
        def g(b):
            def h(c):
                return a * b * c + a
            return pf.grad(h)(b) * b           # a b^2
        return pf.grad(g)(a) * a               # 2 a b a at b = a: 2 a^3
    assert pf.make_jaxpr(f)(SCALAR).check().eval(np.float32(3))[0] == 54
    assert f(3.0).item() == 54
    assert pf.grad(f)(3.0).item() == 54        # 6 a^2
    assert pf.grad(pf.grad(f))(3.0).item() == 36
    assert pf.make_jaxpr(pf.grad(f))(SCALAR).eval(np.float32(3))[0] == 54


def test_perturbations_are_not_confused():
    """d/dx (x d/dy (x + y)) is 1, not 2 (Siskind and Pearlmutter)."""
    assert pf.grad(lambda x: x * pf.grad(lambda y: x + y)(2.0))(1.0).item() == 1
    inner = lambda x: pf.jvp(lambda y: x * y, (2.0,), (1.0,))[1]  # noqa: E731
    assert pf.jvp(lambda x: x * inner(x), (3.0,), (1.0,))[1].item() == 6
    assert pf.grad(lambda x: pf.jvp(lambda y: x * x * y, (x,), (1.0,))[1])(3.0).item() == 6
    assert pf.jvp(lambda x: pf.grad(lambda y: x * y * y)(x), (3.0,), (1.0,))[1].item() == 12


def test_results_of_inner_transforms_can_be_used():
    """Results that are literals or inputs of the inner jaxpr are arrays outside of it."""
    def f(x):
        one = pf.grad(lambda y: y)(x)                                # the cotangent itself
        value, zero = pf.value_and_grad(lambda y: 3.0)(x)            # constants
        same, tangent = pf.jvp(lambda y: y, (x,), (x,))
        constant, none = pf.jvp(lambda y: 2.0, (x,), (x,))
        out, pull = pf.vjp(lambda y: (y, y, 1.5), x)
        back, = pull((one, 2.0, 0.0))
        _, push = pf.linearize(lambda y: (y, 4.0), x)
        results = [one, value, zero, same, tangent, constant, none, *out, back, *push(1.0)]
        for r in results:
            assert isinstance(r, pf.Array) and r.shape == () and r.astype("f16").dtype == np.float16
        total = 0.0
        for r in results:
            total = total + r * 1.0
        return total
    want = f(pf.Array(5.0))
    assert evaluated(f, np.float32(5)) == want.item() == 1 + 3 + 0 + 5 + 5 + 2 + 0 + (5 + 5 + 1.5) + 3 + 1 + 0
    assert pf.grad(f)(5.0).item() == 4


# ---------------------------------------------------------------------------- leaks
def kept(f=lambda x: x * 2):
    """A tracer kept beyond its trace."""
    box = []
    def function(x):
        box.append(f(x))
        return x
    pf.make_jaxpr(function)(SCALAR)
    return box[0]


@pytest.mark.parametrize("use", [
    lambda x: x + 1, lambda x: 1 - x, lambda x: -x, lambda x: x > 0, lambda x: bool(x), lambda x: float(x),
    lambda x: x.item(),
    lambda x: np.asarray(x), lambda x: x[None], lambda x: pnp.exp(x), lambda x: x.astype(int), lambda x: pf.Array(x),
    lambda x: pf.grad(lambda y: y * x)(1.0), lambda x: pf.grad(lambda y: y)(x),
    lambda x: pf.jvp(lambda y: y, (1.0,), (x,)),
    lambda x: pf.make_jaxpr(lambda y: y + x)(1.0), lambda x: pf.make_jaxpr(lambda y: x)(1.0),
    lambda x: pf.stop_gradient(x),
    lambda x: pf.vjp(lambda y: y, 1.0)[1](x), lambda x: pf.make_jaxpr(lambda y: 1 if x else 2)(1.0),
    lambda x: pf.grad(lambda y: y if x > 0 else y)(1.0), lambda x: pf.make_jaxpr(lambda: float(x))(),
], ids=range(22))
def test_a_tracer_used_after_its_trace(use):
    for x in (kept(), kept(lambda x: x)):
        with pytest.raises(LeakError) as e:
            use(x)
        assert str(e.value).startswith("a traced value was used outside the trace of function that it belongs to\n")
        assert isinstance(e.value, RuntimeError)
        repr(x), str(x), x.shape, x.dtype  # may still be looked at


def test_a_tracer_of_an_inner_trace_used_in_the_outer_one():
    box = []
    def outer(x):
        pf.grad(lambda y: box.append(y) or y * x)(x)
        return box[0] + x
    with pytest.raises(LeakError, match="outside the trace of <lambda> that it belongs to"):
        pf.make_jaxpr(outer)(SCALAR)
    box.clear()
    with pytest.raises(LeakError, match="outside the trace of <lambda> that it belongs to"):
        outer(2.0)


def test_a_tracer_used_in_a_trace_that_is_not_around():
    """In the trace of another call of the same function, and in one opened beside it."""
    box = []
    def f(x):
        box.append(x)
        return box[0] * x
    pf.make_jaxpr(f)(SCALAR)
    with pytest.raises(LeakError):
        pf.make_jaxpr(f)(SCALAR)
    with pytest.raises(LeakError):
        pf.grad(f)(1.0)


def test_a_generator_that_outlives_its_trace():
    box = []
    def f(x):
        box.append(x * i for i in range(3))
        return x
    pf.make_jaxpr(f)(SCALAR)
    with pytest.raises(LeakError):
        next(box[0])


def test_linear_maps_of_an_ended_trace():
    """vjp and linearize inside a trace give functions that hold its tracers."""
    box = []
    def f(x):
        y, pull = pf.vjp(lambda z: z * z, x)
        box.append(pull)
        box.append(pf.linearize(lambda z: z * z, x)[1])
        return y
    pf.make_jaxpr(f)(SCALAR)
    for linear in box:
        with pytest.raises(LeakError):
            linear(1.0)


def test_an_output_may_not_leak_in():
    x = kept()
    with pytest.raises(LeakError):
        pf.make_jaxpr(lambda y: {"out": [y, x]})(SCALAR)


# ---------------------------------------------------------------------------- following concrete values
def test_grad_follows_python_control():
    def f(x):
        if x > 0:
            return x ** 2
        return -x
    assert [pf.grad(f)(v).item() for v in (3.0, -3.0)] == [6, -1]
    def power(x, n):
        y = 1.0
        while n > 0:                     # an argument that is not differentiated
            y, n = y * x, n - 1
        return y
    assert pf.grad(power)(2.0, 3).item() == 12
    def loop(x):
        for _ in range(int(x)):
            x = x * 1.5
        return x if x < 100 else x * 0
    assert pf.grad(loop)(3.0).item() == pytest.approx(1.5 ** 3)
    assert pf.grad(lambda x: x[x.argmax().item()] * 4)(np.float32([1, 3])).tolist() == [0, 4]


@pytest.mark.parametrize("out", [
    lambda x: np.sum(x * x), lambda x: x * np.exp(x), lambda x: x * float(x), lambda x: np.asarray(x) * x,
    lambda x: x * x.item(), lambda x: np.array([x.tolist()]), lambda x: x * math.exp(x),
    lambda x: np.dot(x, x), lambda x: np.maximum(x, 0.0),
    lambda x: np.stack([x, x]).sum(), lambda x: np.sum([x, x])])
def test_a_differentiated_value_cannot_leave_the_function(out):
    """It would take its derivative with it, and the gradient would be wrong without a word."""
    for transform in (pf.grad, lambda f: lambda x: pf.jvp(f, (x,), (1.0,)), lambda f: lambda x: pf.vjp(f, x)):
        with pytest.raises(ConcretizationError) as e:
            transform(out)(1.5)
        text = str(e.value)
        assert " takes a value out of <lambda> while that is differentiated: its derivative would be lost\n" in text
        assert "\n  way out: stay with popfn.numpy functions; only `if`, `while`, int(...) and indices follow" in text


def test_lists_of_traced_values_are_stacked():
    assert pf.grad(lambda x: pnp.asarray([x[0], x[1] * 2]).sum())(np.float32([1, 3])).tolist() == [1, 2]
    assert pf.jit(lambda x: pnp.asarray([[x, 1.0], [2.0, x]]))(3.0).tolist() == [[3, 1], [2, 3]]


def test_every_transform_follows():
    def f(x):
        return x * x if x > 0 else x
    assert pf.value_and_grad(f)(3.0)[1].item() == 6
    assert pf.jvp(f, (3.0,), (1.0,))[1].item() == 6
    assert pf.vjp(f, 3.0)[1](1.0)[0].item() == 6
    assert pf.linearize(f, -3.0)[1](1.0).item() == 1
    assert pf.grad(pf.grad(f))(3.0).item() == 2
    assert pf.grad(lambda x: pf.jvp(f, (x,), (1.0,))[1])(3.0).item() == 2
    assert pf.grad(lambda x: f(x) + pf.grad(lambda y: y * x if x > y else y)(2.0))(3.0).item() == 7


def test_following_stops_at_a_trace_that_does_not_know():
    def f(x):
        return x if x > 0 else -x
    for g in (pf.make_jaxpr(pf.grad(f)), pf.make_jaxpr(lambda x: pf.jvp(f, (x,), (x,))),
              pf.grad(lambda x: pf.make_jaxpr(f)(x) and x)):
        with pytest.raises(ConcretizationError, match="is not known while f is traced"):
            g(1.0)
    def closed(x):
        return pf.grad(lambda y: y if x > 0 else y)(1.0)
    with pytest.raises(ConcretizationError):
        pf.make_jaxpr(closed)(SCALAR)
    assert pf.grad(lambda x: pf.eval_shape(lambda y: y * 2, x) and x)(1.0).item() == 1


def test_followed_values_are_those_of_the_program():
    seen = []
    def f(x, n):
        y = pnp.tanh(x) * 2
        seen.extend([int(y[0] * 100), n.item(), [bool(v > 0) for v in x + n], (y > 0).tolist()])
        return y.sum()
    x = np.float32([0.5, -1])
    value, _ = pf.value_and_grad(f)(x, 2)
    t = np.asarray(pnp.tanh(x) * 2)
    assert seen == [int(t[0] * 100), 2, [True, True], [True, False]] and value.item() == t.sum()


def test_following_a_long_loop_takes_linear_time():
    """Each question evaluates only what is new."""
    def steps(n):
        def f(x):
            while x < n:
                x = x + 1
            return x
        start = time.process_time()
        assert pf.grad(f)(0.0).item() == 1
        return time.process_time() - start
    steps(10)
    small, large = min(steps(250) for _ in range(3)), min(steps(2000) for _ in range(2))
    assert large < 8 * 2 * small


# ---------------------------------------------------------------------------- exceptions
class Mine(Exception):
    """Raised by the user's function."""


@pytest.mark.parametrize("transform", [
    lambda f: pf.make_jaxpr(f)(1.0), lambda f: pf.grad(f)(1.0), lambda f: pf.jvp(f, (1.0,), (1.0,)),
    lambda f: pf.vjp(f, 1.0),
    lambda f: pf.eval_shape(f, 1.0), lambda f: pf.make_jaxpr(pf.grad(f))(1.0),
    lambda f: pf.grad(lambda x: pf.grad(f)(x))(1.0),
    lambda f: pf.linearize(f, 1.0), lambda f: pf.make_jaxpr(lambda x: pf.linearize(f, x)[1](x))(1.0),
])
def test_an_exception_leaves_no_trace_open(transform):
    for error in (Mine, KeyboardInterrupt, SystemExit, GeneratorExit):
        def f(x, error=error):
            pnp.sin(x)
            raise error("stop")
        with pytest.raises(error, match="stop"):
            transform(f)
        assert current_trace() is None and gc.isenabled()
    transform(lambda x: x * 2)  # the next call works


def test_an_exception_inside_may_be_caught_inside():
    def f(x):
        try:
            pf.grad(lambda y: y[0])(x)
        except IndexError:
            return x * 2
    assert pf.make_jaxpr(f)(SCALAR).eval(np.float32(3))[0] == 6
    def shapes(x):
        try:
            return x + np.ones(4, np.float32)
        except ValueError:
            return x + 1
    assert evaluated(shapes, np.ones(3, np.float32)).tolist() == [2, 2, 2]


def test_the_collector_stays_off_if_it_was_off():
    gc.disable()
    try:
        pf.grad(lambda x: x * 2)(1.0)
        assert not gc.isenabled()
        with pytest.raises(Mine):
            pf.make_jaxpr(lambda x: (_ for _ in ()).throw(Mine()))(1.0)
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---------------------------------------------------------------------------- threads
def in_threads(*functions):
    """Run functions in threads of their own; return their results or exceptions."""
    results = [None] * len(functions)
    def run(i, f):
        try:
            results[i] = f()
        except BaseException as e:
            results[i] = e
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def test_threads_trace_at_once():
    start = threading.Barrier(4)
    def work(i):
        def loss(w, x):
            for _ in range(40):
                w = pnp.tanh(w * x + i)
            return w.sum()
        start.wait()
        jaxprs = [pf.make_jaxpr(pf.grad(loss))(pf.spec(3), pf.spec(3)) for _ in range(5)]
        values = pf.grad(loss)(np.float32([1, 2, 3]), np.float32([0.1, 0.2, 0.3]))
        return jaxprs, values.tolist()
    results = in_threads(*[lambda i=i: work(i) for i in range(4)])
    assert gc.isenabled()
    for i, (jaxprs, values) in enumerate(results):
        assert all(j.check() == jaxprs[0] for j in jaxprs)
        got = jaxprs[0].eval(np.float32([1, 2, 3]), np.float32([0.1, 0.2, 0.3]))[0]
        assert got.tolist() == values
        assert all(j != results[i - 1][0][0] for j in jaxprs)


def test_a_trace_is_seen_by_its_own_thread_only():
    def f(x):
        inside, = in_threads(lambda: (current_trace(), (pf.Array(1.0) + 1).item()))
        assert inside == (None, 2)
        return x * 2
    assert evaluated(f, np.float32(2)) == 4


def test_a_tracer_in_another_thread_is_a_leak():
    box = []
    def f(x):
        box.extend(in_threads(lambda: x + 1, lambda: pnp.exp(x), lambda: pf.grad(lambda y: y * x)(1.0)))
        return x
    pf.make_jaxpr(f)(SCALAR)
    assert [type(e) for e in box] == [LeakError] * 3


# ---------------------------------------------------------------------------- any nesting
#: Ways to take a derivative, and one that takes none.
NEST = {
    "grad": pf.grad,
    "jvp": lambda f: lambda x: pf.jvp(f, (x,), (pnp.ones_like(x),))[1],
    "vjp": lambda f: lambda x: pf.vjp(f, x)[1](pnp.ones_like(x))[0],
    "linearize": lambda f: lambda x: pf.linearize(f, x)[1](pnp.ones_like(x)),
    "value": lambda f: lambda x: pf.value_and_grad(f)(x)[0],
}


@given(st.lists(st.sampled_from(sorted(NEST)), min_size=1, max_size=4), st.booleans())
def test_any_nesting_of_transforms_gives_the_derivative(names, traced):
    """f(x) = exp(2 x) has its n-th derivative 2^n exp(2 x), whatever takes it."""
    f, order = lambda x: pnp.exp(2 * x), 0
    for name in names:
        f = NEST[name](f)
        order += name != "value"
    x = np.float32(0.3)
    got = evaluated(f, x) if traced else f(x).item()
    assert got == pytest.approx(2 ** order * np.exp(0.6), rel=1e-5)


def test_errors_are_popfns_and_pythons():
    for error in (ConcretizationError, LeakError, ShapeError, DtypeError):
        assert issubclass(error, PopfnError)
