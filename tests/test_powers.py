"""Powers: second derivatives at special points, and integers to the power of integers."""
import itertools
import re
import warnings

import jax
import numpy as np
import pytest
from error_texts import assert_error_text
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import DtypeError, RangeError

f32 = np.float32
BASES, EXPONENTS = (0.0, 1.0, 2.0, 0.5, -1.0, -2.0), (0.0, 1.0, 2.0, -1.0, 3.0, 0.5)
MODES = list(itertools.product((pf.jacfwd, pf.jacrev), (pf.jacfwd, pf.jacrev)))


# ---------------------------------------------------------------------------- second derivatives
def differences(x, y, h=1e-4):
    """The second derivatives of x ** y by central differences in 64 bits."""
    def f(i, j):
        return np.float64(x + i * h) ** np.float64(y + j * h)
    mixed = (f(1, 1) - f(1, -1) - f(-1, 1) + f(-1, -1)) / (4 * h * h)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array([[(f(1, 0) - 2 * f(0, 0) + f(-1, 0)) / h ** 2, mixed],
                         [mixed, (f(0, 1) - 2 * f(0, 0) + f(0, -1)) / h ** 2]])


def hessian(outer, inner, x, y):
    rows = outer(inner(lambda a, b: a ** b, (0, 1)), (0, 1))(f32(x), f32(y))
    return np.array([[v.item() for v in row] for row in rows])


@pytest.mark.parametrize("x", BASES)
@pytest.mark.parametrize("y", EXPONENTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_second_derivatives_at_special_points(x, y):
    want = np.full((2, 2), np.nan)
    if x > 0:
        want = differences(x, y)
    elif x < 0 and y == int(y):  # a power of floats near y is not real: only x moves
        want[0, 0] = differences(x, y)[0, 0]
        if y == 0:
            want[0, 1] = want[1, 0] = 1 / x
    elif x == 0 and y >= 2:
        want = np.array([[2.0 if y == 2 else 0.0, 0.0], [0.0, 0.0]])
    elif x == 0 and y > 0:
        want[1, 1] = 0
    elif x == 0 and y == 0:
        want[0, 0] = 0
    known = ~np.isnan(want)
    theirs = np.array(jax.hessian(lambda a, b: a ** b, (0, 1))(f32(x), f32(y)))
    agree = ~np.isnan(theirs) & known
    np.testing.assert_allclose(theirs[agree], want[agree], rtol=1e-4, atol=2e-3)  # the oracle itself
    for outer, inner in MODES:
        np.testing.assert_allclose(hessian(outer, inner, x, y)[known], want[known], rtol=1e-4, atol=2e-3)
    # Where nothing is fixed by the limit there is no NaN either, but of bases below 0, whose logarithm is none.
    if x == 0 and y >= 0:
        assert not any(np.isnan(hessian(outer, inner, x, y)).any() for outer, inner in MODES)


@pytest.mark.parametrize("x", BASES + (np.inf,))
@pytest.mark.parametrize("y", EXPONENTS + (np.inf, -np.inf))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_first_derivatives_of_both_modes_agree(x, y):
    def f(a, b):
        return a ** b
    back = [g.item() for g in pf.grad(f, (0, 1))(f32(x), f32(y))]
    forth = [pf.jvp(f, (f32(x), f32(y)), t)[1].item() for t in ((f32(1), f32(0)), (f32(0), f32(1)))]
    np.testing.assert_array_equal(back, forth)
    if y == 0:
        assert back[0] == 0
    if x == 0 and y > 0:
        assert back[1] == 0


# ---------------------------------------------------------------------------- integers
INTEGERS = [np.dtype(d) for d in ("int8", "int16", "int32", "uint8", "uint16", "uint32")]


@st.composite
def powers(draw):
    """Bases of any size, and exponents of any size from 0 on, small ones often."""
    dtype = draw(st.sampled_from(INTEGERS))
    info = np.iinfo(dtype)
    base = st.one_of(st.integers(-3, 3).filter(lambda n: n >= info.min), st.integers(int(info.min), int(info.max)))
    exponent = st.one_of(st.integers(0, 9), st.integers(0, int(info.max)))
    return tuple(np.array(draw(st.lists(s, min_size=4, max_size=4)), dtype) for s in (base, exponent))


JITTED = pf.jit(pnp.pow)


@given(powers())
def test_integer_powers_wrap_as_in_numpy(pair):
    x, y = pair
    want = x ** y
    arrays = pf.Array(x), pf.Array(y)
    for got in (arrays[0] ** arrays[1], arrays[0] ** y, x ** arrays[1], pnp.pow(x, y), JITTED(x, y),
                pf.vmap(pnp.pow)(x, y)):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(JITTED(x[:, None], y), x[:, None] ** y)
    for f, of in ((lambda a: a ** y, x), (lambda b: x ** b, y)):
        np.testing.assert_array_equal(pf.make_jaxpr(f)(of).eval(of)[0], want)


@pytest.mark.parametrize("engine", ["numpy", "xla"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers_are_lowered(dtype, engine, monkeypatch):
    if engine == "xla":
        pytest.importorskip("jax")
    monkeypatch.setenv("POPFN_ENGINE", engine)
    x = np.array([0, 1, 2, 3, 5, 255 if dtype.kind == "u" else -3], dtype)
    y = np.array([0, 7, 6, 5, 127, 3], dtype)
    program = pf.lower(pnp.pow, pf.spec(6, dtype), pf.spec(6, dtype))
    with pf.Session(program) as session:
        np.testing.assert_array_equal(session.run(x, y), x ** y)


def test_integer_powers_promote():
    n = np.array([0, 1, 5], np.int32)
    for got, want, dtype in ((2 ** pf.Array(n), 2 ** n, "int32"), (pf.Array(n) ** np.int8(3), n ** 3, "int32"),
                             (np.int8(3) ** pf.Array(n), np.int32(3) ** n, "int32"),
                             (pf.Array(n) ** 2.0, n.astype(f32) ** 2, "float32"),
                             (pf.Array(n) ** pf.Array([0.5]), n.astype(f32) ** f32(0.5), "float32"),
                             (pnp.pow(True, n), n * 0 + 1, "int32"),
                             (pnp.pow(np.True_, np.array([True, False])), [1, 1], "int32")):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (pf.Array(np.zeros(0, np.int32)) ** np.zeros((2, 0), np.int32)).shape == (2, 0)


def test_a_traced_negative_exponent_of_integers_gives_0():
    x, y = np.array([0, 1, -1, 5, 7], np.int32), np.array([-1, -2, -3, -(2 ** 31), 2], np.int32)
    np.testing.assert_array_equal(pf.jit(pnp.pow)(x, y), [0, 0, 0, 0, 49])


@pytest.mark.parametrize("y", [-1, np.int32(-1), np.array([2, -3], np.int8), pf.Array([-1, 2])])
def test_a_known_negative_exponent_of_integers_is_an_error(y):
    error, text = (DtypeError, "to the power -1 is not an integer") if type(y) is int else \
        (RangeError, f"pow: integers have no power of the negative exponent {int(np.min(np.asarray(y)))}")
    assert_error_text(lambda: pnp.pow(np.array([2, 3], np.int32), y), error, text, __file__)
    with pytest.raises(error, match=re.escape("convert to float first")):
        pf.Array(np.array([2, 3])) ** y


def test_integer_powers_have_no_derivative():
    n = np.array([3, 4], np.int32)
    f = lambda x: x * pnp.sum(pf.Array(n) ** n)  # noqa: E731
    assert pf.grad(f)(2.0).item() == 27 + 256
    assert pf.grad(lambda x, n: x * pnp.sum(n ** n))(2.0, n).item() == 27 + 256
