"""Arrays that the caller goes on writing into: nothing that runs later sees that, and no result is one of them."""
import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp

f32 = np.float32


def _custom_jvp():
    f = pf.custom_jvp(lambda x: x * x)
    f.defjvp(lambda primals, tangents: (f(*primals), 2 * primals[0] * tangents[0]))
    return f


def _custom_vjp():
    f = pf.custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))
    return f


WRAPPED = {
    "plain": lambda x: x * x, "checkpoint": pf.checkpoint(lambda x: x * x), "jit": pf.jit(lambda x: x * x),
    "custom_jvp": _custom_jvp(), "custom_vjp": _custom_vjp(),
    "cond": lambda x: pf.cond(True, lambda x: x * x, lambda x: x, x),
    "scan": lambda x: pf.scan(lambda c, v: (c, v * v), 0.0, x)[1], "map": lambda x: pf.map(lambda v: v * v, x),
    "while": lambda x: pf.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, c[1] * x), (0, x), max_steps=2)[1],
    "vmap": pf.vmap(lambda v: v * v)}

LATER = {  # from a function and its argument to a function of nothing that is called after the argument was changed
    "vjp": lambda f, a: (lambda pull: lambda: pull(np.ones(3, f32))[0])(pf.vjp(f, a)[1]),
    "vjp with aux": lambda f, a: (lambda pull: lambda: pull(np.ones(3, f32))[0])(
        pf.vjp(lambda x: (f(x), x), a, has_aux=True)[1]),
    "vjp of a tree": lambda f, a: (lambda pull: lambda: pull(np.ones(3, f32))[0]["a"][0])(
        pf.vjp(lambda t: f(t["a"][0]), {"a": [a]})[1]),
    "linearize": lambda f, a: (lambda push: lambda: push(np.ones(3, f32)))(pf.linearize(f, a)[1])}

CLOSED = {  # the same for an array that the function closes over
    "vjp": lambda a: pf.vjp(lambda s: s * a, np.ones(3, f32))[1], "linearize": lambda a: pf.linearize(
        lambda s: s * a, np.ones(3, f32))[1],
    "linear_transpose": lambda a: pf.linear_transpose(lambda s: s * a, pf.spec(3))}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_runs_later_has_the_values_of_the_call(wrapped, later):
    if (wrapped, later) == ("custom_vjp", "linearize"):
        pytest.skip("a rule of reverse mode has no forward mode")
    a = np.array([1, 2, 3], f32)
    run = LATER[later](WRAPPED[wrapped], a)
    a[:] = 0
    np.testing.assert_array_equal(run(), [2, 4, 6])


@pytest.mark.parametrize("case", CLOSED)
def test_what_runs_later_has_the_values_that_were_closed_over(case):
    a = np.array([1, 2, 3], f32)
    run = CLOSED[case](a)
    a[:] = 0
    np.testing.assert_array_equal(pf.tree.leaves(run(np.ones(3, f32)))[0], [1, 2, 3])


IDENTITIES = {
    "jit": pf.jit(lambda x: x), "checkpoint": pf.checkpoint(lambda x: x), "vmap": pf.vmap(lambda x: x),
    "vjp": lambda a: pf.vjp(lambda x: x, a)[0], "linearize": lambda a: pf.linearize(lambda x: x, a)[0],
    "jvp": lambda a: pf.jvp(lambda x: x, (a,), (np.ones(3, f32),))[0],
    "the tangent of jvp": lambda a: pf.jvp(lambda x: x, (np.ones(3, f32),), (a,))[1],
    "the tangent of linearize": lambda a: pf.linearize(lambda x: x, np.ones(3, f32))[1](a),
    "the cotangent of vjp": lambda a: pf.vjp(lambda x: x, np.ones(3, f32))[1](a)[0],
    "the aux of vjp": lambda a: pf.vjp(lambda x: (x, x), a, has_aux=True)[2],
    "the aux of grad": lambda a: pf.grad(lambda x: (x.sum(), x), has_aux=True)(a)[1],
    "the aux of value_and_grad": lambda a: pf.value_and_grad(lambda x: (x.sum(), x), has_aux=True)(a)[0][1],
    "an argument beside that of grad": lambda a: pf.grad(lambda s, x: (s, x), has_aux=True)(f32(1), a)[1],
    "the aux of jacfwd": lambda a: pf.jacfwd(lambda x: (x, x), has_aux=True)(a)[1],
    "the aux of jacrev": lambda a: pf.jacrev(lambda x: (x, x), has_aux=True)(a)[1],
    "linear_transpose": lambda a: pf.linear_transpose(lambda x: x, pf.spec(3))(a)[0],
    "cond": lambda a: pf.cond(True, lambda x: x, lambda x: x + 1, a),
    "switch": lambda a: pf.switch(0, [lambda x: x, lambda x: x + 1], a),
    "switch of one": lambda a: pf.switch(0, [lambda x: x], a),
    "scan": lambda a: pf.scan(lambda c, _: (c, c), a, length=1)[0],
    "scan of no steps": lambda a: pf.scan(lambda c, _: (c, c), a, length=0)[0],
    "fori_loop": lambda a: pf.fori_loop(0, 0, lambda i, c: c, a),
    "while_loop": lambda a: pf.while_loop(lambda c: False, lambda c: c, a),
    "map": lambda a: pf.map(lambda x: x, a), "associative_scan": lambda a: pf.associative_scan(pnp.add, a[:1]),
    "custom_jvp": (lambda f: (f.defjvp(lambda p, t: (p[0], t[0])), f)[1])(pf.custom_jvp(lambda x: x)),
    "custom_vjp": (lambda f: (f.defvjp(lambda x: (x, None), lambda _, ct: (ct,)), f)[1])(pf.custom_vjp(lambda x: x)),
    "stop_gradient": pf.stop_gradient, "checkpoint_name": lambda a: pf.checkpoint_name(a, "a"),
    "asarray": pnp.asarray, "reshape": lambda a: pnp.reshape(a, (3,)), "x.at": lambda a: pf.Array(a).at[:0].set(0)}


@pytest.mark.parametrize("case", IDENTITIES)
def test_results_are_arrays_of_their_own(case):
    a = np.array([1, 2, 3], f32)
    got = IDENTITIES[case](a)
    assert isinstance(got, pf.Array)
    want = got.tolist()
    assert want == [1, 2, 3][:len(want)]
    a[:] = 0
    assert got.tolist() == want


EAGER = {"checkpoint": pf.checkpoint, "jit": pf.jit, "custom_jvp": lambda f: _ruled(pf.custom_jvp(f)),
         "custom_vjp": lambda f: _ruled(pf.custom_vjp(f))}


def _ruled(f):
    if hasattr(f, "defjvp"):
        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    else:
        f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct,))
    return f


@pytest.mark.parametrize("wrapper", EAGER)
def test_a_function_gets_arrays_eagerly_too(wrapper):
    """They promote as arrays do, have `.at`, and cannot be written into."""
    seen = []

    def f(t):
        seen.append(t)
        return t["a"].at[0].set(9.0) / np.float64(3)
    a = np.array([1, 2, 3], f32)
    got = EAGER[wrapper](f)({"a": a})
    assert got.dtype == f32 and got.tolist() == [3, f32(2 / 3), 1]
    assert all(isinstance(t["a"], pf.Array) for t in seen) and a.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="argument t of .* is not an array"):
        EAGER[wrapper](lambda t: 1.0)("text")
