"""The transforms as users call them: every kind of function, argument, result and pytree."""
import collections
import functools
import inspect
from typing import Any, Dict, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jaxtyping import Float, Float32, Int32

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import AnnotationError, ArgumentError

X = np.float32([0.5, -1.0, 2.0])


def close(got, want, **tolerance):
    """Compare trees: structure, then values."""
    assert pf.tree.structure(got) == pf.tree.structure(want)
    for a, b in zip(pf.tree.leaves(got), pf.tree.leaves(want)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), **{"rtol": 1e-5, **tolerance})


# ---------------------------------------------------------------------------- functions of every kind
class Model:
    """Callable objects and methods."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        """Scaled cube."""
        return self.scale * x ** 3

    def method(self, x, power=2):
        """Scaled power."""
        return self.scale * x ** power

    @classmethod
    def of_class(cls, x):
        return cls.__name__ == "Model" and x ** 2

    @staticmethod
    def static(x):
        return x ** 2


def recursive(x, n=3):
    return x if n == 0 else recursive(x * x, n - 1)


def with_generator(x):
    return sum(x * i for i in range(4))


CUBE = functools.partial(lambda power, x: x ** power, 3)
DOUBLE = functools.partial(Model(2.0).method, power=4)


@pytest.mark.parametrize("f, value, slope", [
    (lambda x: x ** 2, 4, 4), (Model(2.0), 16, 24), (Model(2.0).method, 8, 8), (Model.of_class, 4, 4),
    (Model.static, 4, 4),
    (CUBE, 8, 12), (DOUBLE, 32, 64), (recursive, 256, 1024), (with_generator, 12, 6), (abs, 2, 1),
    (pnp.exp, np.e ** 2, np.e ** 2),
    (lambda x, *, k=3.0: k * x, 6, 3), (lambda *xs: xs[0] * 2, 4, 2), (lambda *xs, **ks: xs[0], 2, 1),
    (lambda x=5.0: x, 2, 1),
    (functools.lru_cache(maxsize=None)(lambda n: n), None, None), (pf.grad(lambda x: x ** 3), 12, 12),
], ids=range(17))
def test_functions_of_every_kind(f, value, slope):
    if value is None:
        with pytest.raises(TypeError, match="unhashable"):     # a cache needs keys
            pf.grad(f)(2.0)
        return
    got, gradient = pf.value_and_grad(f)(2.0)
    close((got, gradient), (np.float32(value), np.float32(slope)))
    close(pf.jvp(f, (2.0,), (1.0,)), (np.float32(value), np.float32(slope)))
    close(pf.vjp(f, 2.0)[1](1.0), (np.float32(slope),))
    close(pf.linearize(f, 2.0)[1](1.0), np.float32(slope))
    close(pf.make_jaxpr(f)(pf.spec(())).check().eval(np.float32(2))[0], np.float32(value))
    assert pf.eval_shape(f, pf.spec(())) is pf.spec(())


# ---------------------------------------------------------------------------- wrappers
WRAPPERS = [pf.grad, pf.value_and_grad, pf.make_jaxpr]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_keeps_name_signature_and_docstring(wrap):
    def loss(params: Dict[str, Any], x: float = 2.0, *rest: float, key: Optional[int] = None) -> float:
        """The loss."""
        return x
    loss.mark = "kept"
    g = wrap(loss)
    assert (g.__name__, g.__qualname__, g.__doc__, g.__module__) == (
        "loss", loss.__qualname__, "The loss.", __name__)
    assert inspect.signature(g) == inspect.signature(loss) and g.__wrapped__ is loss and g.mark == "kept"
    assert list(inspect.signature(wrap(Model(1.0))).parameters) == ["x"]
    assert list(inspect.signature(wrap(Model(1.0).method)).parameters) == ["x", "power"]
    assert list(inspect.signature(wrap(functools.partial(loss, {}))).parameters) == ["x", "rest", "key"]
    assert wrap(Model(1.0).method).__name__ == "method" and wrap(Model(1.0)).__doc__ == Model.__doc__
    assert wrap(wrap(loss)).__name__ == "loss" and inspect.signature(wrap(wrap(loss))) == inspect.signature(loss)


def test_wrappers_are_decorators_with_and_without_arguments():
    @pf.grad
    def a(x, y):
        return x * y

    @pf.grad(argnums=1)
    def b(x, y):
        return x * y

    @pf.value_and_grad(argnums=(0, 1), has_aux=True)
    def c(x, y):
        """Doc."""
        return x * y, {"sum": x + y}

    @pf.make_jaxpr()
    def d(x):
        return x + 1
    assert a(2.0, 3.0).item() == 3 and b(2.0, 3.0).item() == 2
    (value, aux), (gx, gy) = c(2.0, 3.0)
    assert (value.item(), aux["sum"].item(), gx.item(), gy.item()) == (6, 5, 3, 2)
    assert (b.__name__, c.__doc__) == ("b", "Doc.") and len(d(1.0).eqns) == 1
    assert pf.grad()(lambda x: x * x)(3.0).item() == 6
    assert pf.grad(f=None, argnums=1)(lambda x, y: y * y)(1.0, 3.0).item() == 6


def test_the_transforms_have_signatures_of_their_own():
    assert list(inspect.signature(pf.grad).parameters) == ["f", "argnums", "has_aux", "allow_int"]
    assert list(inspect.signature(pf.value_and_grad).parameters) == ["f", "argnums", "has_aux", "allow_int"]
    assert list(inspect.signature(pf.vjp).parameters) == ["f", "primals", "has_aux"]
    assert list(inspect.signature(pf.jvp).parameters) == ["f", "primals", "tangents"]


# ---------------------------------------------------------------------------- arguments
def test_arguments_by_position_and_by_name():
    def f(x, y=2.0, *rest, scale=1.0, **more):
        return x * y * scale * sum(rest, 1.0) * sum(more.values(), 1.0)
    close(pf.grad(f)(3.0), 2)
    close(pf.grad(f)(3.0, 4.0), 4)
    close(pf.grad(f)(3.0, y=4.0), 4)
    close(pf.grad(f)(3.0, 4.0, 5.0, 6.0), 48)
    close(pf.grad(f, argnums=3)(3.0, 4.0, 5.0, 6.0), 12)
    close(pf.grad(f, argnums=(0, -1))(3.0, 4.0, 5.0, 6.0), (48, 12))
    close(pf.grad(f, 1)(3.0, 4.0, scale=2.0, extra=np.float32(1)), 12)
    close(pf.grad(f)(3.0, extra={"a": 1.0}["a"], scale=[2.0][0]), 8)
    jaxpr = pf.make_jaxpr(f)(3.0, 4.0, 5.0, scale=np.float32(2), other=pf.spec(()))
    assert [str(a) for a in jaxpr.in_avals] == ["~f32[]", "~f32[]", "~f32[]", "f32[]", "f32[]"]
    assert jaxpr.eval(*np.float32([3, 4, 5, 2, 1]))[0] == 3 * 4 * 2 * 6 * 2


@pytest.mark.parametrize("argnums, want", [(0, 12), (1, 8), (-1, 6), ((0,), (12,)), ((0, 2), (12, 6)),
                                           ([2, 0], (6, 12)), ((), ()),
                                           (range(3), (12, 8, 6)), (np.int64(1), 8)])
def test_argnums(argnums, want):
    def f(x, y, z):
        return x * y * z
    close(pf.grad(f, argnums)(2.0, 3.0, 4.0), want)
    value, gradient = pf.value_and_grad(f, argnums=argnums)(2.0, 3.0, 4.0)
    close((value, gradient), (24, want))
    jaxpr = pf.make_jaxpr(pf.grad(f, argnums))(2.0, 3.0, 4.0)
    assert [float(x) for x in jaxpr.eval(*np.float32([2, 3, 4]))] == list(want if isinstance(want, tuple) else [want])


def test_arguments_that_are_not_differentiated_may_be_anything_with_a_type():
    table = np.arange(6).reshape(2, 3)
    def f(x, index, mask, half):
        return pnp.where(mask, x[index], x[0]).sum() * half
    g = pf.grad(f)(np.float32([1, 2, 3]), table[1] - 3, np.array([True, False, True]), np.float16(2))
    close(g, np.float32([4, 0, 2]))


@pytest.mark.parametrize("data", [[1.0, 2.0], (1.0, 2.0), np.float64([1, 2]), np.float32([1, 2]), pf.Array([1.0, 2.0])],
                         ids=str)
def test_data_of_every_form(data):
    def f(x):
        return sum(v * v for v in x)
    close(pf.grad(f)(data), type(data)(np.float32([2, 4])) if isinstance(data, (list, tuple)) else np.float32([2, 4]))


def test_an_empty_tree_has_an_empty_gradient():
    assert pf.grad(lambda p, x: x)({}, 1.0) == {}
    assert pf.grad(lambda p, x: x, argnums=(0, 1))((None, [], {"a": ()}), 1.0)[0] == (None, [], {"a": ()})
    assert pf.jvp(lambda p: 2.0, ([],), ([],))[0].item() == 2
    value, pull = pf.vjp(lambda p: {}, 1.0)
    assert value == {} and pull({})[0].item() == 0
    assert pf.vjp(lambda: 3.0)[1](1.0) == ()
    jaxpr = pf.make_jaxpr(lambda: None)()
    assert jaxpr.inputs == jaxpr.outputs == ()


# ---------------------------------------------------------------------------- gradients of trees
class Params(NamedTuple):
    """A namedtuple of parameters."""

    w: Any
    b: Any


@pf.tree.dataclass
class Block:
    """A dataclass of parameters, with a static field."""

    w: Any
    b: Any
    name: str = pf.tree.static(default="block")


def test_gradients_have_the_form_of_the_argument():
    tree = {"p": Params(X, [X * 2, None]), "b": Block(X, (X,)), "o": collections.OrderedDict(z=X, a=X),
            "d": collections.defaultdict(list, k=X)}
    def f(t):
        return sum((v * v * i).sum() for i, v in enumerate(pf.tree.leaves(t)))
    gradient = pf.grad(f)(tree)
    close(gradient, pf.tree.unflatten(pf.tree.structure(tree), [2 * v * i for i, v in enumerate(pf.tree.leaves(tree))]))
    assert type(gradient["p"]) is Params and gradient["b"].name == "block"


def test_gradients_have_the_types_of_the_argument():
    def f(p):
        return (p["half"].astype("f32") * p["single"] * p["weak"]).sum()
    g = pf.grad(f)({"half": np.float16([1, 2]), "single": np.float32([3, 4]), "weak": 2.0})
    assert [str(v.aval.strong) for v in (g["half"], g["single"], g["weak"])] == ["f16[2]", "f32[2]", "f32[]"]
    close(g, {"half": np.float16([6, 8]), "single": np.float32([2, 4]), "weak": np.float32(11)})
    half = pf.grad(lambda x: (x * x * 100).sum())(np.float16([1, 300]))
    assert half.dtype == np.float16 and half.tolist() == [200, 60000]


def test_integers_among_the_arguments():
    tree = {"w": 2.0, "n": 3, "mask": np.array([True, False]), "k": np.int8([1, 2])}
    def f(t):
        return t["w"] * t["n"] * pnp.sum(t["mask"]) * pnp.sum(t["k"])
    gradient = pf.grad(f, allow_int=True)(tree)
    close(gradient, {"w": np.float32(9), "n": np.int32(0), "mask": np.array([False, False]), "k": np.int8([0, 0])})
    assert [gradient[k].dtype.name for k in ("w", "n", "mask", "k")] == ["float32", "int32", "bool", "int8"]
    traced = pf.make_jaxpr(pf.grad(f, allow_int=True))(tree)
    assert [str(a.strong) for a in traced.out_avals] == ["i8[2]", "bool[2]", "i32[]", "f32[]"]
    (value, aux), gradient = pf.value_and_grad(lambda n, x: (x * 2, n), (0, 1), True, True)(3, 1.0)
    assert (value.item(), aux.item(), gradient[0].item(), gradient[1].item()) == (2, 3, 0, 2)


def test_aux():
    def f(x):
        return (x * x).sum(), {"x": x, "n": [pnp.argmax(x), None], "k": 3, "mask": x > 0,
                               "constant": np.float32([1, 2])}
    for g in (pf.grad(f, has_aux=True), pf.grad(has_aux=True)(f)):
        gradient, aux = g(X)
        close(gradient, 2 * X)
        close(aux, {"x": X, "n": [2, None], "k": 3, "mask": X > 0, "constant": np.float32([1, 2])})
    jaxpr = pf.make_jaxpr(pf.grad(f, has_aux=True))(X).check()
    assert len(jaxpr.outputs) == 6
    close(pf.grad(lambda x: pf.grad(lambda y: (y ** 3, y), has_aux=True)(x)[0])(2.0), 12)
    close(pf.grad(lambda x: pf.grad(lambda y: (y ** 3, y ** 2), has_aux=True)(x)[1])(2.0), 4)   # through the aux
    assert pf.grad(lambda x: (x, ()), has_aux=True)(1.0)[1] == ()


# ---------------------------------------------------------------------------- results
def test_results_that_are_constants_inputs_or_the_same_value_twice():
    table = np.float32([1, 2, 3])
    def f(x):
        y = x * 2
        return {"same": (y, y), "input": x, "literal": 4.0, "table": table, "int": 3, "bool": True,
                "array": pf.Array([1])}
    want = {"same": (2 * X, 2 * X), "input": X, "literal": np.float32(4), "table": table, "int": 3, "bool": True,
            "array": np.int32([1])}
    jaxpr = pf.make_jaxpr(f)(X).check()
    structure = pf.tree.structure(want)
    close(pf.tree.unflatten(structure, jaxpr.eval(X)), want)
    out, tangent = pf.jvp(f, (X,), (X,))
    close(out, want)
    zeros = {"literal": np.float32(0), "table": 0 * table, "int": 0, "bool": False, "array": np.int32([0])}
    close(tangent, {"same": (2 * X, 2 * X), "input": X, **zeros})
    out, pull = pf.vjp(f, X)
    close(out, want)
    close(pull({**want, "same": (X, 3 * X), "input": 5 * X}), (2 * 4 * X + 5 * X,))
    out, push = pf.linearize(f, X)
    close(out, want)
    close(push(2 * X), {"same": (4 * X, 4 * X), "input": 2 * X, **zeros})
    types = pf.eval_shape(f, X)
    assert str(types["same"][0]) == "f32[3]" and str(types["literal"]) == "~f32[]" and str(types["bool"]) == "bool[]"


@pytest.mark.parametrize("f, want", [(lambda x: x, 1), (lambda x: 3.0, 0), (lambda x: pf.Array(3.0), 0),
                                     (lambda x: x * 0 + x, 1),
                                     (lambda x: np.float32(2), 0), (lambda x: pf.stop_gradient(x) * x, 2),
                                     (lambda x: pf.stop_gradient({"a": [x]})["a"][0] + x, 1)])
def test_gradients_of_the_simplest_functions(f, want):
    close(pf.grad(f)(2.0), want)
    close(pf.make_jaxpr(pf.grad(f))(2.0).check().eval(np.float32(2))[0], np.float32(want))
    close(pf.grad(lambda x: pf.grad(f)(x) * x)(2.0), pf.grad(f)(2.0) + pf.grad(pf.grad(f))(2.0) * 2)


def test_results_are_arrays_of_their_own():
    """What is returned can be kept: it does not change with anything."""
    x = np.ones(3, np.float32)
    out, gradient = pf.value_and_grad(lambda x: (x * x).sum())(x)
    x[:] = 5
    assert out.item() == 3 and gradient.tolist() == [2, 2, 2]
    assert all(type(v) is pf.Array and not np.asarray(v).flags.writeable for v in (out, gradient))


# ---------------------------------------------------------------------------- values against JAX
def jax_tree(tree):
    return jax.tree_util.tree_map(jnp.asarray, tree)


def mlp(np_, p, x):
    h = np_.tanh(x @ p["w1"] + p["b1"])
    h = np_.maximum(h @ p["w2"], 0.1) * np_.exp(-h.sum(-1, keepdims=True))
    return (h ** 2).mean()


def parameters():
    rng = np.random.default_rng(0)
    p = {"w1": rng.normal(size=(4, 5)), "b1": rng.normal(size=5), "w2": rng.normal(size=(5, 3))}
    return {k: v.astype("f4") for k, v in p.items()}, rng.normal(size=(6, 4)).astype("f4")


def test_an_mlp_as_in_jax():
    p, x = parameters()
    ours, theirs = functools.partial(mlp, pnp), functools.partial(mlp, jnp)
    close(pf.value_and_grad(ours, argnums=(0, 1))(p, x), jax.value_and_grad(theirs, argnums=(0, 1))(jax_tree(p), x),
          rtol=1e-4, atol=1e-5)
    close(pf.jvp(ours, (p, x), (p, 2 * x)), jax.jvp(theirs, (jax_tree(p), jnp.asarray(x)),
                                                    (jax_tree(p), 2 * jnp.asarray(x))),
          rtol=1e-4)
    along = lambda g, tm: lambda p: sum(v.sum() for v in tm(g(p, x)))  # noqa: E731
    close(pf.grad(along(pf.grad(ours), pf.tree.leaves))(p),
          jax.grad(along(jax.grad(theirs), jax.tree_util.tree_leaves))(jax_tree(p)), rtol=1e-3, atol=1e-5)
    jaxpr = pf.make_jaxpr(pf.grad(ours))(p, x).check()
    got = jaxpr.eval(*pf.tree.leaves((p, x)))
    close(got, tuple(pf.tree.leaves(pf.grad(ours)(p, x))))


def test_grad_inside_grad_with_different_argnums():
    def f(x, y):
        return x ** 3 * y ** 2 + x * y
    for i in (0, 1):
        for j in (0, 1):
            ours, theirs = pf.grad(pf.grad(f, i), j)(2.0, 3.0), jax.grad(jax.grad(f, i), j)(2.0, 3.0)
            close(ours, theirs)
            inside = pf.grad(lambda x, y, i=i: pf.grad(f, i)(x, y) * pf.grad(f, 1 - i)(y, x), j)(2.0, 3.0)
            close(inside, jax.grad(lambda x, y, i=i: jax.grad(f, i)(x, y) * jax.grad(f, 1 - i)(y, x), j)(2.0, 3.0))
    close(pf.grad(lambda x: sum(pf.grad(f, (0, 1))(x, 3.0)))(2.0), 6 * 2 * 9 + 6 * 4 * 3 + 1)
    close(pf.grad(pf.grad(pf.grad(pf.grad(lambda x: x ** 4))))(2.0), 24)


@given(st.integers(0, 5), st.integers(0, 5), st.floats(-2, 2, width=32), st.floats(-2, 2, width=32))
def test_polynomials_in_both_modes(n, m, x, y):
    def f(x, y):
        return x ** n * y ** m
    want = (n * float(x) ** max(n - 1, 0) * float(y) ** m, m * float(x) ** n * float(y) ** max(m - 1, 0))
    close(pf.grad(f, (0, 1))(x, y), want, rtol=1e-4, atol=1e-30)
    close(pf.jvp(f, (x, y), (1.0, 0.0))[1], want[0], rtol=1e-4, atol=1e-30)
    close(pf.jvp(f, (x, y), (0.0, 1.0))[1], want[1], rtol=1e-4, atol=1e-30)


# ---------------------------------------------------------------------------- vjp, jvp, linearize
def test_vjp_and_linearize_may_be_called_many_times():
    y, pull = pf.vjp(lambda a, b: (a * b, a.sum()), X, 2 * X)
    _, push = pf.linearize(lambda a, b: (a * b, a.sum()), X, 2 * X)
    for scale in (1.0, 2.0):
        close(pull((scale * X, 3.0)), (scale * 2 * X * X + 3, scale * X * X))
        close(push(scale * X, X), (scale * 2 * X * X + X * X, scale * X.sum()))


def test_vjp_and_linearize_inside_a_trace():
    def f(x, t):
        y, pull = pf.vjp(lambda z: pnp.sin(z) * z, x)
        _, push = pf.linearize(lambda z: pnp.sin(z) * z, x)
        return y, pull(t)[0], push(t), pull(push(t))[0]
    jaxpr = pf.make_jaxpr(f)(X, X).check()
    close(jaxpr.eval(X, 2 * X), tuple(np.asarray(v) for v in f(X, 2 * X)))
    slope = np.sin(X) + X * np.cos(X)
    want = pf.grad(lambda x: ((pnp.sin(x) + x * pnp.cos(x)) ** 2 * X).sum())(X)
    close(pf.grad(lambda x: f(x, X)[3].sum())(X), want, rtol=1e-4)
    close(f(X, X)[1], slope * X)


def test_tangents_and_cotangents_of_other_forms():
    """Data and Python numbers stand for arrays; a weak number takes the type."""
    close(pf.jvp(lambda x: x * x, (np.float16(3),), (1.0,)), (np.float16(9), np.float16(6)))
    close(pf.jvp(lambda x: x * x, (3.0,), (np.float32(1),)), (9, 6))
    close(pf.jvp(lambda x: x * x, (3.0,), (1,)), (9, 6))
    close(pf.jvp(lambda p: p[0] * p[1], ([2.0, X],), ([1.0, np.float64([1, 1, 1])],)), (2 * X, X + 2))
    close(pf.vjp(lambda x: x * x, np.float16(3))[1](1), (np.float16(6),))
    close(pf.jvp(lambda x: x * x, [3.0], [1.0]), (9, 6))
    assert pf.vjp(lambda x: x * 2, np.float16(1))[1](1.0)[0].dtype == np.float16


def test_specs_where_no_value_is_needed():
    from_spec = pf.make_jaxpr(pf.grad(lambda x, n: (x * n).sum()))(pf.spec(3), pf.spec((), int))
    from_data = pf.make_jaxpr(pf.grad(lambda x, n: (x * n).sum()))(X, np.int32(3))
    from_jax = pf.make_jaxpr(pf.grad(lambda x, n: (x * n).sum()))(jax.ShapeDtypeStruct((3,), "float32"),
                                                                   jax.ShapeDtypeStruct((), "int32"))
    assert from_spec == from_data == from_jax
    assert pf.eval_shape(lambda p: p["w"] @ p["x"], {"w": pf.spec((2, 3)), "x": X}) is pf.spec(2)


# ---------------------------------------------------------------------------- annotations
def annotated(w: Float32[pf.Array, "rows cols"], x: Float32[pf.Array, "cols"], n: Optional[Int32[pf.Array, ""]] = None,
              ) -> Float[pf.Array, "rows"]:
    """A function whose shapes are written down."""
    return w @ x if n is None else (w @ x)[:n.size]


def test_annotations_are_checked_while_tracing():
    w, x = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    close(pf.make_jaxpr(annotated)(w, x).eval(w, x)[0], np.float32([3, 3]))
    total = lambda w, x: annotated(w, x).sum()  # noqa: E731
    close(pf.grad(total)(w, x), np.ones((2, 3), np.float32))
    close(pf.jvp(annotated, (w, x), (w, x)), (np.float32([3, 3]), np.float32([6, 6])))
    close(pf.vjp(annotated, w, x)[1](np.float32([1, 2]))[1], np.float32([3, 3, 3]))
    assert pf.eval_shape(annotated, w, x) is pf.spec(2)
    transforms = [lambda f, *a: pf.make_jaxpr(f)(*a), lambda f, *a: pf.eval_shape(f, *a), lambda f, *a: pf.grad(f)(*a),
                  lambda f, *a: pf.jvp(f, a, a), lambda f, *a: pf.vjp(f, *a), lambda f, *a: pf.linearize(f, *a),
                  lambda f, *a: pf.make_jaxpr(lambda *b: pf.grad(f)(*b))(*a)]
    for transform in transforms:
        with pytest.raises(AnnotationError, match="annotated .*: argument x does not fit its annotation"):
            transform(annotated, w, np.ones(4, np.float32))
        with pytest.raises(AnnotationError, match="argument w does not fit its annotation"):
            transform(annotated, w.astype(np.float16), x)
    with pytest.raises(AnnotationError, match="annotated .*: the result does not fit its annotation"):
        pf.make_jaxpr(annotated)(w, x, np.int32(1))


def test_annotated_methods_and_keywords():
    class Layer:
        def apply(self, x: Float32[pf.Array, "n"], *, scale: Float32[pf.Array, ""]) -> Float32[pf.Array, "n"]:
            return x * scale
    jaxpr = pf.make_jaxpr(Layer().apply)(X, scale=np.float32(2))
    close(jaxpr.eval(X, np.float32(2))[0], 2 * X)
    with pytest.raises(AnnotationError, match="argument scale does not fit its annotation"):
        pf.make_jaxpr(Layer().apply)(X, scale=X)


def test_specs_from_annotations():
    def f(x: Float32[pf.Array, "4 n=3"], y: Int32[pf.Array, ""], z: Float32[pf.Array, "2"]): ...
    assert pf.specs_from_annotations(f) == (pf.spec((4, 3)), pf.spec((), int), pf.spec(2))
    with pytest.raises(AnnotationError, match="no spec for parameter w"):
        pf.specs_from_annotations(annotated)


# ---------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("bad", [
    lambda: pf.grad(3), lambda: pf.grad(pf.Array(1.0)), lambda: pf.make_jaxpr("f"),
    lambda: pf.value_and_grad(None)(1.0),
    lambda: pf.jvp(3, (1.0,), (1.0,)), lambda: pf.vjp(3.0, 1.0), lambda: pf.linearize("f", 1.0),
    lambda: pf.eval_shape(None, 1.0),
    lambda: pf.grad(lambda x: x, argnums=1.5)(1.0), lambda: pf.grad(lambda x: x, argnums="x")(1.0),
    lambda: pf.grad(lambda x: x, argnums=(0, 0))(1.0), lambda: pf.grad(lambda x: x, argnums=-2)(1.0),
    lambda: pf.grad(lambda x: x, argnums=None)(1.0),
    lambda: pf.grad(lambda x: x)("text"), lambda: pf.grad(lambda x: x)({"a": object()}),
    lambda: pf.grad(lambda x: x)(pf.spec(())), lambda: pf.jvp(lambda x: x, (pf.spec(()),), (1.0,)),
    lambda: pf.jvp(lambda x: x, (1.0,), (pf.spec(()),)), lambda: pf.vjp(lambda x: x, 1.0)[1](pf.spec(())),
    lambda: pf.jvp(lambda x: x, (1.0,), ("x",)), lambda: pf.vjp(lambda x: x, 1.0)[1]("x"),
    lambda: pf.vjp(lambda x: x, 1.0)[1](1.0, 2.0), lambda: pf.jvp(lambda x: x, 1.0, 1.0),
    lambda: pf.jvp(lambda x: x, X, X),
], ids=range(24))
def test_what_is_refused_is_refused_as_a_type_error(bad):
    with pytest.raises(TypeError):
        bad()


@pytest.mark.parametrize("call, text", [
    (lambda t: pf.jvp(lambda p: p["a"][0], ({"a": [1.0, X]},), ({"a": [1.0, t]},)),
     "of p['a'][1] is {}, expected f32[3]"),
    (lambda t: pf.linearize(lambda p: p["a"][0], {"a": [1.0, X]})[1]({"a": [1.0, t]}),
     "of p['a'][1] is {}, expected f32[3]"),
    (lambda t: pf.vjp(lambda x: {"y": [x, 2.0]}, X)[1]({"y": [t, 0.0]}),
     "of result['y'][0] is {}, expected f32[3]"),
])
@pytest.mark.parametrize("wrong, seen", [(np.float32(1), "f32[]"), (1.0, "~f32[]"), (np.ones((3, 1)), "f32[3,1]"),
                                         (np.float16([1, 2, 3]), "f16[3]"), (np.int32([1, 2, 3]), "i32[3]"),
                                         (X > 0, "bool[3]")],
                         ids=str)
def test_tangents_and_cotangents_of_another_type(call, text, wrong, seen):
    with pytest.raises(ArgumentError) as e:
        call(wrong)
    assert text.format(seen) in str(e.value).splitlines()[0]


@pytest.mark.parametrize("wrong", [1.0, [X], (X, X), {"a": X, "b": X}, {"b": X}, None, {"a": [X]}], ids=str)
def test_tangents_and_cotangents_of_another_structure(wrong):
    for call, what in [(lambda: pf.jvp(lambda p: p["a"], ({"a": X},), (wrong,)),
                        "jvp: the tangent has another structure than p"),
                       (lambda: pf.linearize(lambda p: p["a"], {"a": X})[1](wrong),
                        "linearize: the tangent has another structure than p"),
                       (lambda: pf.vjp(lambda x: {"a": x}, X)[1](wrong),
                        "vjp: the cotangent has another structure than the result")]:
        with pytest.raises(ArgumentError) as e:
            call()
        assert str(e.value).splitlines()[0] == what
