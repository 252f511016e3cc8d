"""pf.jit: one compilation per signature, one call equation inside traces, eager values."""
import re
import threading
import weakref

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, ConcretizationError
from popfn.trace.tracer import current_trace


def counted(f):
    """f, and a list that grows by one each time that its Python code runs."""
    runs = []

    def wrapper(*args, **kwargs):
        runs.append(1)
        return f(*args, **kwargs)
    return wrapper, runs


def test_it_is_traced_once_for_each_signature():
    f, runs = counted(lambda x, p: {"y": x * p["w"], "n": None})
    jitted = pf.jit(f)
    x = np.arange(3, dtype=np.float32)
    for k in (1.0, 2.0):
        out = jitted(x, {"w": np.float32(k)})
        np.testing.assert_array_equal(out["y"], x * np.float32(k))
        assert out["n"] is None and isinstance(out["y"], pf.Array)
    assert len(runs) == 1
    jitted(x[:2], {"w": np.float32(1)})
    jitted(x, {"w": 1.0})       # weak
    jitted(x, p={"w": 1.0})     # by keyword
    assert len(runs) == 4


@pytest.mark.parametrize("args", [
    (np.float32(2.5),), (2.5,), (3,), (True,), (np.arange(4, dtype=np.int32),), (np.arange(4) / 4,),
    (np.ones((2, 3), np.float16),), (np.zeros((0, 3), np.float32),), (np.array([np.nan, np.inf, -0.0], np.float32),),
])
def test_jit_equals_eager_in_value_dtype_and_weakness(args):
    def f(x):
        return pnp.sum(x * 2, axis=0) if np.ndim(x) else x * 2, x + 1
    for got, want in zip(pf.jit(f)(*args), f(*map(pnp.asarray, args))):
        np.testing.assert_array_equal(got, want)
        assert got.aval is want.aval


def test_inside_a_trace_it_is_one_equation_and_one_jaxpr():
    layer = pf.jit(lambda x, w: pnp.tanh(x @ w))

    def f(x, w):
        return layer(layer(x, w), w)
    jaxpr = pf.make_jaxpr(f)(pf.spec((3, 3)), pf.spec((3, 3)))
    assert [e.primitive.name for e in jaxpr.eqns] == ["call", "call"]
    assert jaxpr.eqns[0].primitive.jaxpr is jaxpr.eqns[1].primitive.jaxpr
    x = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(f(x, x), np.tanh(np.tanh(x)), rtol=1e-6)


def test_it_closes_over_outer_tracers_without_keeping_them():
    def f(x):
        g = pf.jit(lambda y: y * x)
        return g(x) + g(2.0)
    assert pf.grad(f)(3.0).item() == 2 * 3.0 + 2.0
    assert pf.jit(f)(3.0).item() == 15.0
    shared = []

    def h(x):
        if not shared:
            shared.append(pf.jit(lambda y: y * x))
        return shared[0](2.0)
    assert pf.jit(h)(3.0).item() == 6.0
    with pytest.raises(pf.errors.LeakError, match="traced value was used outside the trace of h"):
        shared[0](1.0)


def test_gradients_pass_through_and_compile():
    f = pf.jit(lambda x: pnp.sum(x ** 3))
    x = np.array([1.0, -2.0], np.float32)
    np.testing.assert_allclose(pf.grad(f)(x), 3 * x ** 2)
    np.testing.assert_allclose(pf.jit(pf.grad(f))(x), 3 * x ** 2)
    np.testing.assert_allclose(pf.grad(lambda x: pnp.sum(pf.grad(f)(x)))(x), 6 * x)


def test_python_control_flow_on_an_array_is_an_error_that_leaves_nothing_behind():
    f = pf.jit(lambda x: x if x > 0 else -x)
    with pytest.raises(ConcretizationError, match="it depends on: x"):
        f(1.0)
    assert current_trace() is None
    assert pf.jit(lambda x: x + 1)(1.0).item() == 2.0


def test_explain_says_what_was_compiled_and_why():
    def model(p, x):
        return p["w"] * x
    f = pf.jit(model)
    f({"w": np.zeros(3, np.float32)}, 1.0)
    f({"w": np.zeros(3, np.float32)}, 2.0)
    f({"w": np.zeros(4, np.float32)}, 1.0)
    f({"w": np.zeros(4, np.float32), "b": 0.0}, 1.0)
    f({"w": np.zeros(4, np.float32)}, x=1.0)
    lines = f.explain().splitlines()
    assert lines[0].startswith("test_explain_says_what_was_compiled_and_why.model (") and \
        lines[0].endswith("): compiled for 4 signatures")
    assert lines[1] == "  1. called 2 times; the first call"
    assert lines[2] == "  2. called 1 time; p['w'] is f32[4], before f32[3]"
    assert lines[3] == "  3. called 1 time; argument p has another structure: only in the new: p['b']"
    assert "keywords ['x']" in lines[4]
    f.cache_clear()
    assert f.explain().endswith("compiled for 0 signatures")


def test_a_failed_trace_is_not_cached():
    fail = [True]

    def f(x):
        if fail[0]:
            raise RuntimeError("not yet")
        return x
    jitted = pf.jit(f)
    with pytest.raises(RuntimeError, match="not yet"):
        jitted(1.0)
    fail[0] = False
    assert jitted(1.0).item() == 1.0


def test_a_leaf_that_is_no_array_is_named():
    with pytest.raises(ArgumentError) as e:
        pf.jit(lambda options: options["rate"])({"rate": "high"})
    text = str(e.value)
    assert "argument options['rate'] of " in text and "seen: str, 'high'" in text and "functools.partial" in text
    with pytest.raises(ArgumentError, match=r"runs on arrays, got the aval f32\[3\]"):
        pf.jit(lambda x: x)(pf.spec(3))


def test_results_are_fresh_arrays_that_nobody_overwrites():
    f = pf.jit(lambda x: x + 1)
    first = f(np.zeros(3, np.float32))
    f(np.ones(3, np.float32))
    np.testing.assert_array_equal(first, np.ones(3))
    x = np.zeros(3, np.float32)
    same = pf.jit(lambda x: x)(x)
    x += 1
    np.testing.assert_array_equal(same, np.zeros(3))


def test_threads_take_turns():
    f = pf.jit(lambda x: x * x + 1)
    wrong = []

    def work(k):
        x = np.full(1000, k, np.float32)
        for _ in range(50):
            if not np.array_equal(f(x), x * x + 1):
                wrong.append(k)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_it_keeps_name_signature_and_docstring():
    @pf.jit
    def f(x, y=2):
        """Doc."""
        return x * y
    assert f.__name__ == "f" and f.__doc__ == "Doc." and f(3).item() == 6
    import inspect
    assert list(inspect.signature(f).parameters) == ["x", "y"]


# ---------------------------------------------------------------------------- static arguments
def power(x, n, *, scale=1):
    return x ** n * scale if isinstance(n, int) else x * 0


def test_static_arguments_by_number_and_by_name():
    x = np.array([1.0, 2.0, 3.0], np.float32)
    for f in (pf.jit(power, static_argnums=1), pf.jit(power, static_argnames="n"), pf.jit(power, static_argnums=(-1,)),
              pf.jit(static_argnames=("n", "scale"))(power)):
        for n in (2, 3, 2):
            np.testing.assert_array_equal(f(x, n), x ** n)
            np.testing.assert_array_equal(f(x, n=n), x ** n)
    f = pf.jit(power, static_argnames=("n", "scale"))
    np.testing.assert_array_equal(f(x, 2, scale=3), 3 * x ** 2)
    assert f.__name__ == "power"


def test_static_arguments_are_equal_in_value_and_type():
    seen = []

    def f(x, how):
        seen.append(how)
        return x
    g = pf.jit(f, static_argnums=1)
    for how in (1, 1.0, True, 1, (1, 2), (1.0, 2), (1, 2), "a", None, 0.0, -0.0, float("nan"), float("nan")):
        g(np.float32(1), how)
    assert [repr(s) for s in seen] == ["1", "1.0", "True", "(1, 2)", "(1.0, 2)", "'a'", "None", "0.0", "-0.0", "nan"]


def test_explain_names_static_arguments():
    f = pf.jit(power, static_argnums=1)
    x = np.ones(2, np.float32)
    f(x, 2), f(x, 3), f(x, 3)
    assert f.explain().split("\n")[2] == "  2. called 2 times; static argument n is 3 (int), before 2 (int)"


def test_static_arguments_inside_other_transforms():
    f = pf.jit(power, static_argnums=1)
    x = np.array([1.0, 2.0], np.float32)
    np.testing.assert_allclose(pf.vmap(lambda v: f(v, 3))(x), x ** 3)
    np.testing.assert_allclose(pf.grad(lambda v: f(v, 3).sum())(x), 3 * x ** 2)
    np.testing.assert_allclose(pf.jit(lambda v: f(v, 2) + f(v, 3))(x), x ** 2 + x ** 3)


@pytest.mark.parametrize("call, line", [
    (lambda: pf.jit(power, static_argnums=5), "jit: static_argnums names argument 5, but power"),
    (lambda: pf.jit(power, static_argnames="m"), "jit: static_argnames names 'm', but power"),
    (lambda: pf.jit(power, static_argnums=1)(np.float32(1), [2]),
     "jit: the static argument 1 of power"),
    (lambda: pf.jit(power, static_argnames="scale")(np.float32(1), 2, scale=np.ones(2)),
     "cannot be hashed: it is a ndarray"),
])
def test_errors_of_static_arguments(call, line):
    with pytest.raises(pf.errors.ArgumentError, match=re.escape(line)) as caught:
        call()
    assert re.search(r"at \S*test_jit\.py:\d+, in <lambda>", str(caught.value)), str(caught.value)


# ---------------------------------------------------------------------------- donation
def test_donated_arrays_are_given_up():
    f = pf.jit(lambda state, x: {"w": state["w"] + x}, donate_argnums=0)
    state = {"w": pnp.asarray(np.zeros(3, np.float32))}
    new = f(state, np.float32(1))
    np.testing.assert_array_equal(new["w"], np.ones(3))
    for use in (lambda: state["w"] + 1, lambda: np.asarray(state["w"]), lambda: f(state, np.float32(1)),
                lambda: float(state["w"][0]), lambda: repr(state["w"])):
        with pytest.raises(pf.errors.DonationError, match=r"this array, f32\[3\], was donated to .*argument 0"):
            use()
    assert state["w"].shape == (3,)
    same = pf.jit(lambda x: x, donate_argnums=0)
    y = pnp.asarray(np.ones(2, np.float32))
    np.testing.assert_array_equal(same(y), np.ones(2))
    data = np.ones(2, np.float32)
    pf.jit(lambda x: x * 2, donate_argnums=(0,))(data)
    np.testing.assert_array_equal(data, np.ones(2))  # a NumPy array is its owner's


def test_donation_frees_the_memory():
    x = pnp.asarray(np.ones(4, np.float32))
    gone = weakref.ref(x.value)
    pf.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert gone() is None
    with pytest.raises(pf.errors.ArgumentError, match="jit: donate_argnums names argument 3"):
        pf.jit(lambda x: x + 1, donate_argnums=3)(np.float32(1))


def test_traced_arguments_are_not_given_up():
    f = pf.jit(lambda x: x * 2, donate_argnums=0)
    assert float(pf.grad(lambda x: f(x) * x)(3.0)) == 12
