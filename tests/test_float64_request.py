"""float64 on request: what the request is, what it reaches, what refuses float64. Its digits: test_float64.py."""
import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List

import numpy as np
import pytest

import popfn as pf
import popfn.nn as nn
import popfn.numpy as pnp

RNG = np.random.default_rng(0)
X, Y = RNG.uniform(0.1, 0.9, (4, 6)), RNG.uniform(-2, 2, (4, 6))


def operands() -> List[pf.Array]:
    with pf.enable_float64():
        return [pf.Array(X), pf.Array(Y)]


# ---------------------------------------------------------------------------- the request
WIDE_DATA = np.array([0.1, 1e300])


def is_on() -> bool:
    return pnp.zeros(1, dtype="float64").dtype == np.float64


def test_names_mean_it_and_defaults_do_not():
    names = ["float64", "f64", "f8", float, np.float64, np.dtype(np.float64), np.dtype(">f8")]
    for on, want in ((True, np.float64), (False, np.float32)):
        with pf.enable_float64(on):
            for name in names:
                assert pnp.zeros(2, dtype=name).dtype == pnp.astype(np.ones(2), name).dtype == want
                assert pf.Aval((2,), name).dtype == pf.spec(2, name).dtype == pf.Array(1.0, name).dtype == want
                assert pnp.finfo(name).bits == (64 if on else 32) and pnp.isdtype(name, "real floating")
            for made in (pnp.zeros(2), pnp.linspace(0, 1, 3), pnp.arange(2.5), pnp.eye(2), pf.Array(0.1),
                         pnp.asarray(0.1), pnp.sqrt(2), pf.Array(np.arange(3)) / 2):
                assert made.dtype == np.float32
            assert pf.Array(np.arange(3)).dtype == pnp.zeros(2, dtype=int).dtype == np.int32
            with pytest.raises(OverflowError, match="does not survive"):
                pf.Array(np.array([2 ** 40]))


def test_data_stays_as_it_is():
    with pf.enable_float64():
        for x in (WIDE_DATA, WIDE_DATA.astype(">f8"), WIDE_DATA.tolist(), list(WIDE_DATA)):
            assert pf.Array(x).dtype == np.float64 and pf.Array(x).tolist() == WIDE_DATA.tolist()
            assert pnp.asarray(x).tolist() == WIDE_DATA.tolist()
        assert pf.Array(np.float64(0.1)).item() == 0.1 and not pf.Array(np.float64(0.1)).aval.weak
    with pytest.raises(OverflowError, match=r"to keep it on the host"):
        pf.Array(WIDE_DATA)
    assert pf.Array(WIDE_DATA[:1]).dtype == np.float32


def test_a_python_number_keeps_its_digits():
    x, _ = operands()
    for f, want in ((lambda x: x + 0.1, X + 0.1), (lambda x: 0.1 - x, 0.1 - X), (lambda x: x / 3, X / 3),
                    (lambda x: pnp.maximum(x, 0.3), np.maximum(X, 0.3)), (lambda x: x ** 0.3, X ** 0.3),
                    (lambda x: pnp.full_like(x, 0.1), np.full_like(X, 0.1)),
                    (lambda x: pnp.zeros_like(x).at[:].set(0.1), np.full_like(X, 0.1)),
                    (lambda x: x * 0 + (2 ** 53 - 1), np.full_like(X, 2 ** 53 - 1))):
        for got in (f(x), pf.jit(f)(x)):
            assert got.dtype == np.float64
            np.testing.assert_array_equal(got.value, want)


def test_arrays_stay_float64_outside():
    x, y = operands()
    assert not is_on()
    for made in (x + y, x + 1, x[0], pf.Array(x), pnp.asarray(x), x.sum(), pnp.sin(x), pnp.concat([x, y]),
                 pf.jit(pnp.exp)(x), pf.vmap(pnp.exp)(x), pf.grad(lambda x: (x ** 3).sum())(x), pnp.zeros_like(x),
                 pf.jvp(pnp.sin, (x,), (y,))[1], pf.vjp(pnp.sin, x)[1](y)[0], pf.jacrev(pnp.sin)(x[0]),
                 pf.jacfwd(pnp.sin)(x[0]), pf.hessian(lambda x: (x ** 3).sum())(x[0]),
                 pf.eval_shape(pnp.sin, x), pf.jacfwd(lambda x: x * 0 + pnp.floor(x))(x[0])):
        assert made.dtype == np.float64
    for back in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert back.aval is x.aval and back.tolist() == x.tolist()
    assert pickle.loads(pickle.dumps(x.aval)) is x.aval
    assert pnp.astype(x, np.float64).dtype == np.float32  # the name means its twin
    # NumPy's data is narrowed as ever, although its type is known by now.
    assert pf.jit(lambda v: v)(X).dtype == pf.make_jaxpr(lambda v: v)(X).in_avals[0].dtype == np.float32
    with pytest.raises(OverflowError, match="argument v of"):
        pf.jit(lambda v: v)(np.full((4, 6), 1e300))


def test_the_request_ends_with_its_context():
    assert not is_on()
    with pf.enable_float64():
        assert is_on()
        with pf.enable_float64(False):
            assert not is_on()
            with pf.enable_float64():
                assert is_on()
            assert not is_on()
        assert is_on()
    with pytest.raises(RuntimeError), pf.enable_float64():
        raise RuntimeError
    assert not is_on()
    with pytest.raises(TypeError, match="enable_float64 takes True or False, got 'yes'"):
        pf.enable_float64("yes")  # type: ignore[arg-type]


def test_the_request_is_that_of_a_thread():
    inside, done = threading.Event(), threading.Event()

    def other() -> bool:
        with pf.enable_float64():
            inside.set()
            done.wait(10)
            return is_on()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other)
        inside.wait(10)
        assert not is_on()
        done.set()
        assert found.result()
    assert not is_on()


def test_jit_is_compiled_for_each_of_the_two():
    calls = []

    def f(x: Any) -> Any:
        calls.append(is_on())
        return pnp.astype(x, "float64") * 0.1
    g, x = pf.jit(f), np.array([3.0], np.float32)
    for _ in range(2):
        with pf.enable_float64():
            assert g(x).dtype == np.float64 and g(x).item() == 3.0 * 0.1
        assert g(x).dtype == np.float32
    assert calls == [True, False]
    assert "float64 is not asked for, before it was" in g.explain()
    with pf.enable_float64():
        h = pf.jit(pf.jit(f))
        assert h(x).dtype == np.float64
    assert h(x).dtype == np.float32


def test_rules_of_the_user():
    @pf.custom_vjp
    def f(x: Any) -> Any:
        return pnp.sin(x)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 0.1 * x,))
    g = pf.custom_jvp(lambda x: x * 0.3)
    g.defjvp(lambda primals, tangents: (primals[0] * 0.3, tangents[0] * 0.7))
    h = pf.custom_call(lambda x: x * 0.1, result=lambda x: x, vmap="broadcast")
    with pf.enable_float64():
        x = pf.Array(X)
    np.testing.assert_array_equal(pf.grad(lambda x: f(x).sum())(x).value, 0.1 * X)
    assert set(pf.grad(lambda x: g(x).sum())(x).value.ravel()) == {0.7}
    for y in (h(x), pf.jit(h)(x), pf.vmap(h)(x)):
        np.testing.assert_array_equal(y.value, X * 0.1)


def test_loops_without_a_bound_and_prints(capsys):
    with pf.enable_float64():
        f = pf.jit(lambda x: pf.while_loop(lambda c: c < 1, lambda c: c * 1.1, x))
        want = 0.1
        while want < 1:
            want *= 1.1
        assert f(np.float64(0.1)).item() == want
        pf.jit(lambda x: pf.debug.print("x is {}", x * 3))(np.float64(0.1))
    assert capsys.readouterr().out == f"x is {0.1 * 3}\n"


def test_shards_on_the_host():
    with pf.enable_float64():
        f = pf.shard(lambda x: x - pf.pmean(x * 0.1, "dp"), pf.Mesh(dp=2), pf.P("dp"), pf.P("dp"))
        want = X - np.tile(0.1 * (X[:2] + X[2:]) / 2, (2, 1))
        for g in (f, pf.jit(f)):
            np.testing.assert_allclose(g(X).value, want, rtol=1e-14)


def test_remote_buffers_on_the_host():
    with pf.enable_float64():
        buffer = pf.remote_buffer(pf.spec((2, 6), np.float64), steps=2)
        for wrapper in (lambda f: f, pf.jit):
            wrapper(pf.batch_serialise(lambda x: x * 0.1, 2, stores=pf.Remote(buffer)))(X)
            read = buffer.read(0)
            assert read.dtype == np.float64
            np.testing.assert_array_equal(np.asarray(read).reshape(4, 6), X * 0.1)
            buffer.write(0, read * 0)
    with pytest.raises(ValueError, match=r"is f64\[2,2,6\], got f32"):
        buffer.write(0, np.zeros((2, 2, 6), np.float32))


# ---------------------------------------------------------------------------- what refuses it
def narrow_again(x: Any) -> Any:
    return pnp.astype(pnp.astype(x, "float64") * 0.1, "float32")


def inside_a_scan(x: Any) -> Any:
    return pf.scan(lambda c, v: (c + narrow_again(v), None), pnp.zeros(()), x)[0]


def of_a_constant(x: Any) -> Any:
    return pnp.astype(x + WIDE_DATA[0], "float32")


@pytest.mark.parametrize("f, seen", [(narrow_again, "convert, f64[3]"), (pf.jit(narrow_again), "convert, f64[3]"),
                                     (inside_a_scan, "convert, f64[]"), (of_a_constant, "f64[")])
def test_lower_refuses_it_at_the_line(f, seen):
    with pf.enable_float64(), pytest.raises(pf.errors.LoweringError) as e:
        pf.lower(f, pf.spec(3), target="host")
    text = str(e.value)
    assert "float64 is for the host, an IPU has no such type" in text and seen in text
    assert "test_float64_request.py:" in text and ("narrow" in text or "of_a_constant" in text)
    assert "way out: x.astype(np.float32) before it is lowered; checks in float64 run eagerly or under pf.jit" in text


def test_lower_refuses_it_as_an_argument():
    with pf.enable_float64():
        spec = pf.spec(3, "float64")
    for args, state, name in (((spec,), None, "argument x, f64[3]"), ((spec, pf.spec(3)), 0, "argument x, f64[3]"),
                              ((pf.spec(3), {"a": spec}), None, "argument y['a'], f64[3]")):
        with pytest.raises(pf.errors.LoweringError) as e:
            pf.lower((lambda x: x) if len(args) == 1 else (lambda x, y: (x, y)), *args, state=state, target="host")
        assert name in str(e.value) and "test_float64_request.py:" in str(e.value)


def test_a_session_takes_no_float64_where_it_is_asked_for():
    program = pf.lower(lambda x: x * 2, pf.spec(2), target="host")
    with pf.Session(program) as session:
        assert session.run(np.array([0.1, 0.2])).dtype == np.float32
        with pf.enable_float64(), pytest.raises(pf.errors.InputError, match="nothing is converted unseen"):
            session.run(np.array([0.1, 0.2]))


@pytest.mark.parametrize("name", ["uniform", "normal", "exponential", "gumbel", "rademacher"])
def test_random_numbers_are_not_float64(name):
    key = pf.random.key(3)
    before = getattr(pf.random, name)(key, (4,)).tolist()
    with pf.enable_float64():
        assert pf.random.key(3).tolist() == key.tolist() and getattr(pf.random, name)(key, (4,)).tolist() == before
        if name != "rademacher":
            with pytest.raises(TypeError, match=f"random.{name} gives float16 or float32, not float64"):
                getattr(pf.random, name)(key, (4,), np.float64)


def test_dropout_has_all_digits():
    key = pf.random.key(3)
    x, _ = operands()
    kept = nn.dropout(key, pf.Array(X.astype(np.float32)), 0.3).value != 0
    assert 0 < kept.sum() < X.size
    np.testing.assert_allclose(nn.dropout(key, x, 0.3).value, np.where(kept, X / 0.7, 0), rtol=1e-15)


def test_what_popfn_numpy_says_of_it():
    with pytest.raises(AttributeError, match=r"pf\.enable_float64\(\)"):
        pnp.float64  # noqa: B018
