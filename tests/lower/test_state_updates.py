"""Every operation whose result becomes the new state: the engine then writes it straight into the variable."""
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp

X = np.array([-2.0, -0.5, 0.0, 0.5, 1.0, np.nan], np.float32)
Y = np.array([1.0, -1.0, 0.0, 2.0, 1.0, 1.0], np.float32)
N = np.array([-3, -1, 0, 2, 5, 7], np.int32)

FLOATS = {
    "maximum": pnp.maximum, "minimum": pnp.minimum, "where": lambda s, x: pnp.where(x > 0, s, x),
    "where_scalar": lambda s, x: pnp.where(s > 0, 1.5, x), "add": pnp.add, "sub": pnp.subtract, "mul": pnp.multiply,
    "div": pnp.divide, "pow": pnp.pow, "floor_divide": pnp.floor_divide, "remainder": pnp.remainder,
    "sign": lambda s, x: pnp.sign(s), "relu": lambda s, x: pf.nn.relu(s), "gelu": lambda s, x: pf.nn.gelu(s),
    "exp": lambda s, x: pnp.exp(s), "erf": lambda s, x: pnp.erf(s), "log1p": lambda s, x: pnp.log1p(s),
    "clip": lambda s, x: pnp.clip(s, -1, 1), "softmax": lambda s, x: pf.nn.softmax(s), "abs": lambda s, x: pnp.abs(s),
    "flip": lambda s, x: s[::-1], "roll": lambda s, x: pnp.concat([s[1:], s[:1]]), "constant": lambda s, x: s * 0 + 1,
    "take": lambda s, x: s[np.array([5, 4, 3, 2, 1, 0])], "zeros": lambda s, x: pnp.zeros(6), "self": lambda s, x: s,
    "other": lambda s, x: x, "cumulative": lambda s, x: s + pnp.sum(s),
    "half": lambda s, x: s.astype("f16").astype("f32"),
    "grad": lambda s, x: pf.grad(lambda v: pnp.sum(pnp.where(v > 0, v * x, pnp.exp(v))))(s),
}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("both", [False, True])
def test_new_state_equals_eager(name, both):
    f = FLOATS[name]
    step = (lambda s, x: (f(s, x), pnp.sum(s))) if both else f
    program = pf.lower(step, pf.spec(6), pf.spec(6), state=0)
    want = pnp.asarray(X)
    with pf.Session(program, state=X) as session:
        for _ in range(3):
            total = session.run(Y)
            if both:
                np.testing.assert_allclose(total, pnp.sum(want), rtol=1e-6)
            want = f(want, Y)
            np.testing.assert_allclose(session.state, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("f", [pnp.add, pnp.maximum, pnp.floor_divide, pnp.remainder,
                               lambda s, x: pnp.where(s > x, s, x), lambda s, x: pnp.argmax(s) + x,
                               lambda s, x: (s > x).astype("int32")])
def test_new_integer_state_equals_eager(f):
    program = pf.lower(f, pf.spec(6, "int32"), pf.spec(6, "int32"), state=0)
    want = pnp.asarray(N)
    with pf.Session(program, state=N) as session:
        for _ in range(3):
            session.run(N[::-1])
            want = f(want, N[::-1].copy())
            np.testing.assert_array_equal(session.state, want)


@pytest.mark.parametrize("batch", [(), (1,), (2,), (1, 1), (1, 2), (2, 1), (1, 3, 1)])
@pytest.mark.parametrize("swap", ["", "x", "y", "xy"])
def test_batched_products_of_transposed_operands(batch, swap):
    rng = np.random.default_rng(len(batch))
    x = rng.normal(size=(*batch, *((8, 4) if "x" in swap else (4, 8)))).astype(np.float32)
    y = rng.normal(size=(*batch, *((5, 8) if "y" in swap else (8, 5)))).astype(np.float32)

    def f(x, y):
        return (x.mT if "x" in swap else x) @ (y.mT if "y" in swap else y)
    want = np.matmul(np.swapaxes(x, -1, -2) if "x" in swap else x, np.swapaxes(y, -1, -2) if "y" in swap else y)
    np.testing.assert_allclose(pf.jit(f)(x, y), want, rtol=1e-5, atol=1e-5)
    grads = pf.jit(pf.grad(lambda x, y: pnp.sum(f(x, y) ** 2), (0, 1)))(x, y)
    for got, eager in zip(grads, pf.grad(lambda x, y: pnp.sum(f(x, y) ** 2), (0, 1))(x, y)):
        np.testing.assert_allclose(got, eager, rtol=1e-4, atol=1e-4)
