"""popfn.optim against NumPy written out, on several steps; clipping, loss scaling, programs whose state it is."""
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn import optim
from popfn.trace.errors import ArgumentError

f32 = np.float32
random = np.random.default_rng(0)
PARAMS = {"w": random.normal(size=(3, 4)).astype(f32), "b": (random.normal(size=4).astype(np.float16),)}
STEPS = [{"w": random.normal(size=(3, 4)).astype(f32), "b": (random.normal(size=4).astype(np.float16),)}
         for _ in range(5)]


def sgd(p, gs, lr=0.1, momentum=0.0, nesterov=False, decay=0.0):
    v = np.zeros_like(p)
    for g in gs:
        g = g + decay * p
        v = momentum * v + g
        p = p - lr * (g + momentum * v if nesterov else v)
    return p


def adam(p, gs, lr=0.1, b1=0.9, b2=0.999, eps=1e-8, decay=0.0, trust=False, limit=np.inf):
    m, s = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        m, s = b1 * m + (1 - b1) * g, b2 * s + (1 - b2) * g ** 2
        d = m / (1 - b1 ** t) / (np.sqrt(s / (1 - b2 ** t)) + eps) + decay * p
        ratio = min(np.linalg.norm(p), limit) / np.linalg.norm(d) if trust else 1
        p = p - lr * ratio * d
    return p


CASES = {
    "sgd": (optim.sgd(0.1), sgd),
    "momentum": (optim.sgd(0.1, momentum=0.9), lambda p, g: sgd(p, g, momentum=0.9)),
    "nesterov": (optim.sgd(0.1, momentum=0.9, nesterov=True), lambda p, g: sgd(p, g, momentum=0.9, nesterov=True)),
    "decay": (optim.sgd(0.1, weight_decay=0.1), lambda p, g: sgd(p, g, decay=0.1)),
    "adam": (optim.adam(0.1), adam),
    "adam betas": (optim.adam(0.05, b1=0.5, b2=0.9, eps=0.1), lambda p, g: adam(p, g, 0.05, 0.5, 0.9, 0.1)),
    "adamw": (optim.adamw(0.1, weight_decay=0.2), lambda p, g: adam(p, g, decay=0.2)),
    "lamb": (optim.lamb(0.1), lambda p, g: adam(p, g, eps=1e-6, decay=0.01, trust=True)),
    "lamb limit": (optim.lamb(0.1, max_weight_norm=0.5),
                   lambda p, g: adam(p, g, eps=1e-6, decay=0.01, trust=True, limit=0.5)),
}


def trained(opt, update, params=PARAMS, steps=STEPS):
    state = opt.init(params)
    for g in steps:
        params, state = update(g, state, params)
    return params, state


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["eager", "jit"])
def test_equals_numpy(name, how):
    opt, reference = CASES[name]
    params, state = trained(opt, pf.jit(opt.update) if how == "jit" else opt.update)
    assert pf.tree.structure(params) == pf.tree.structure(PARAMS) and int(state.step) == len(STEPS)
    want = reference(PARAMS["w"].astype(float), [g["w"].astype(float) for g in STEPS])
    np.testing.assert_allclose(params["w"], want, 2e-5, 2e-6)
    assert params["b"][0].dtype == np.float16
    half = reference(PARAMS["b"][0].astype(float), [g["b"][0].astype(float) for g in STEPS])
    np.testing.assert_allclose(params["b"][0], half, 1e-2, 4e-3)
    moments = pf.tree.leaves(state)[1:]
    assert all(m.dtype == f32 for m in moments)


def test_learning_rates():
    steps = []

    def schedule(step):
        steps.append(step)
        return 0.1 / (1 + step)
    opt = optim.sgd(schedule)
    params, _ = trained(opt, opt.update)
    want = PARAMS["w"] - sum(0.1 / (1 + i) * g["w"] for i, g in enumerate(STEPS))
    np.testing.assert_allclose(params["w"], want, 1e-5, 1e-6)
    assert [int(s) for s in steps] == [0, 1, 2, 3, 4]
    traced = pf.jit(lambda lr, p: optim.sgd(lr).update(STEPS[0], optim.sgd(lr).init(p), p)[0])(f32(0.5), PARAMS)
    np.testing.assert_allclose(traced["w"], PARAMS["w"] - 0.5 * STEPS[0]["w"], 1e-6)


def test_zero_norms_in_lamb():
    opt = optim.lamb(0.1, weight_decay=0.0)
    p, g = {"w": np.zeros(3, f32)}, {"w": np.ones(3, f32)}
    np.testing.assert_allclose(opt.update(g, opt.init(p), p)[0]["w"], np.full(3, -0.1), 1e-5)
    still = {"w": np.ones(3, f32)}
    np.testing.assert_array_equal(opt.update(p, opt.init(still), still)[0]["w"], still["w"])


def test_clipping():
    norm = np.sqrt(sum(np.sum(np.asarray(x, float) ** 2) for x in pf.tree.leaves(STEPS[0])))
    clipped, seen = optim.clip_by_global_norm(STEPS[0], 1.0)
    assert abs(float(seen) - norm) < 1e-5 * norm and abs(float(optim.global_norm(clipped)) - 1) < 1e-3
    assert clipped["b"][0].dtype == np.float16
    same, _ = optim.clip_by_global_norm(STEPS[0], 100.0)
    np.testing.assert_array_equal(same["w"], STEPS[0]["w"])
    zero = pf.tree.map(np.zeros_like, STEPS[0])
    assert float(optim.global_norm(optim.clip_by_global_norm(zero, 1.0)[0])) == 0
    assert float(optim.global_norm({})) == 0
    big = {"x": np.full(4, 60000, np.float16)}
    assert float(optim.global_norm(big)) == 120000


def test_loss_scaling():
    def loss(w):
        return pnp.sum(w * w) * np.float16(1e-4)
    w = np.array([1.0, 2.0], np.float16)
    s = optim.loss_scale(1024.0)
    grads = optim.unscaled(pf.grad(lambda w: optim.scaled(loss(w), s))(w), s)
    np.testing.assert_allclose(grads, 2e-4 * w.astype(f32), 1e-2)
    assert bool(optim.all_finite(grads)) and not bool(optim.all_finite({"a": np.array([1, np.inf], f32)}))
    assert not bool(optim.all_finite([np.array([np.nan], np.float16)])) and bool(optim.all_finite(()))
    smaller = optim.adjusted(s, False)
    assert (float(smaller.scale), int(smaller.good_steps)) == (512, 0)
    state = s
    for _ in range(3):
        state = optim.adjusted(state, True, growth_interval=3)
    assert (float(state.scale), int(state.good_steps)) == (2048, 0)
    kept = optim.select(np.array(False), {"w": w + 1}, {"w": w})
    np.testing.assert_array_equal(kept["w"], w)


def test_the_state_of_a_program():
    opt = optim.adam(0.05)

    def step(carried, x):
        params, state = carried
        value, grads = pf.value_and_grad(lambda p: pnp.mean((x @ p["w"] - 1.0) ** 2))(params)
        return opt.update(grads, state, params), value
    params = {"w": np.zeros((4, 2), f32)}
    x = np.eye(4, dtype=f32)
    program = pf.lower(step, (params, opt.init(params)), x, state=0)
    with pf.Session(program, state=(params, opt.init(params)), device="host") as session:
        losses = [float(session.run(x)) for _ in range(40)]
        trained_params, state = session.state
    assert losses[0] == 1 and losses[-1] < 0.05 and int(np.asarray(state.step)) == 40
    eager = (params, opt.init(params))
    for _ in range(3):
        eager, value = step(eager, x)
    assert abs(float(value) - losses[2]) < 1e-5


def test_wrong_gradients_are_named():
    opt = optim.adam(0.1)
    text = r"adam: the gradient of params\['w'\] is f32\[2\], the parameter f32\[3\]"
    with pytest.raises(ArgumentError, match=text):
        opt.update({"w": np.zeros(2, f32)}, opt.init({"w": np.zeros(3, f32)}), {"w": np.zeros(3, f32)})
    with pytest.raises(pf.errors.TreeError, match="another structure"):
        opt.update({}, opt.init({"w": np.zeros(3, f32)}), {"w": np.zeros(3, f32)})
