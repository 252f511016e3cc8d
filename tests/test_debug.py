"""debug.print under every transform, in order and only where a branch is taken; debug.nans."""
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.errors import ArgumentError, MissingRuleError, NotFiniteError
from popfn.transforms.simplify import simplify

f32 = np.float32
X = np.arange(3, dtype=f32)


def said(x):
    pf.debug.print("x={}", x)
    return x * x


class Pair(NamedTuple):
    first: Any
    second: Any


@pf.tree.dataclass
class Layer:
    w: Any
    name: str = pf.tree.static()


def tree_said(t):
    pf.debug.print("{}", t)
    return t["a"] * 2 if isinstance(t, dict) else t


def body(c, x):
    pf.debug.print("c={} x={x}", c, x=x)
    return c + x, c * x


def pick(x):
    return pf.cond(x > 1, lambda x: said(x) * 2, lambda x: -x, x)


def count(x):
    return pf.while_loop(lambda x: x < 3, lambda x: (pf.debug.print("at {}", x), x + 1)[1], x)


def ruled():
    f = pf.custom_jvp(said)
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return f


LINES = {  # what is called, and what it prints
    "eager": (lambda: said(f32(2)), "x=2.0"),
    "an array": (lambda: said(X), "x=[0. 1. 2.]"),
    "format": (lambda: pf.debug.print("{:.2f} {n:>4}", f32(1), n=3), "1.00    3"),
    "a tree": (lambda: pf.debug.print("{} {{{t}}}", f32(2), t={"w": [X, 1], "b": (f32(3), None)}),
               "2.0 {{'w': [[0. 1. 2.], 1], 'b': (3.0, None)}}"),
    "a named tuple": (lambda: pf.debug.print("{}", Pair(X, f32(2))), "Pair(first=[0. 1. 2.], second=2.0)"),
    "a dataclass": (lambda: pf.debug.print("{0} {0.w} {0.name}", Layer(f32(2), "top")),
                    "Layer(w=2.0, name='top') 2.0 top"),
    "parts of a tree": (lambda: pf.debug.print("{0[w][1]} {0[w]} {1[2]}", {"w": [f32(1), X]}, X), "[0. 1. 2.] "
                        "[1.0, [0. 1. 2.]] 2.0"),
    "attributes of leaves": (lambda: pf.debug.print("{[a].shape} {x.dtype} {y.shape}", {"a": X}, x=X, y=X),
                             "(3,) float32 (3,)"),
    "the format of leaves": (lambda: pf.debug.print("{t:.1f} {n:>{w}}", t=[f32(1), f32(2)], n=3, w=4),
                             "[1.0, 2.0]    3"),
    "braces in a tree": (lambda: pf.debug.print("{}", {"{a}": f32(1)}), "{'{a}': 1.0}"),
    "no leaves": (lambda: pf.debug.print("{} {}", None, ()), "None ()"),
    "a tree in jit of grad": (lambda: pf.jit(pf.grad(tree_said))({"a": f32(2)}), "{'a': 2.0}"),
    "a tree in vmap of cond": (lambda: pf.vmap(lambda x: pf.cond(
        x > 0, lambda x: tree_said({"a": x}), lambda x: x, x))(X),
                               "{'a': 1.0} {'a': 2.0}"),
    "a tree in scan": (lambda: pf.scan(lambda c, x: (c + tree_said((c, x))[0], None), f32(0), X[:2]),
                       "(0.0, 0.0) (0.0, 1.0)"),
    "nothing": (lambda: pf.debug.print("here"), "here"),
    "jit": (lambda: pf.jit(said)(f32(2)), "x=2.0"),
    "jit twice": (lambda: [f(f32(1)) for f in [pf.jit(said)] * 2], "x=1.0 x=1.0"),
    "grad": (lambda: pf.grad(said)(f32(2)), "x=2.0"),
    "grad of grad": (lambda: pf.grad(pf.grad(said))(f32(2)), "x=2.0"),
    "jit of grad": (lambda: pf.jit(pf.grad(said))(f32(2)), "x=2.0"),
    "grad of jit": (lambda: pf.grad(pf.jit(said))(f32(2)), "x=2.0"),
    "vjp": (lambda: pf.vjp(said, f32(2))[1](f32(1)), "x=2.0"),
    "jvp": (lambda: pf.jvp(said, (f32(2),), (f32(1),)), "x=2.0"),
    "vmap": (lambda: pf.vmap(said)(X), "x=0.0 x=1.0 x=2.0"),
    "vmap of what no lane changes": (lambda: pf.vmap(lambda a: said(f32(5)) + a)(X), "x=5.0"),
    "vmap of vmap": (lambda: pf.vmap(pf.vmap(said))(X.reshape(3, 1)), "x=0.0 x=1.0 x=2.0"),
    "vmap of jit": (lambda: pf.vmap(pf.jit(said))(X[:2]), "x=0.0 x=1.0"),
    "scan": (lambda: pf.scan(body, f32(0), X), "c=0.0 x=0.0 c=0.0 x=1.0 c=1.0 x=2.0"),
    "scan reversed": (lambda: pf.scan(body, f32(0), X[:2], reverse=True), "c=0.0 x=1.0 c=1.0 x=0.0"),
    "scan whose results nobody needs": (lambda: pf.jit(lambda: pf.scan(body, f32(0), X[:2]) and 1.0)(),
                                        "c=0.0 x=0.0 c=0.0 x=1.0"),
    "grad of scan": (lambda: pf.grad(lambda xs: pnp.sum(pf.scan(body, f32(0), xs)[1]))(X[:2]),
                     "c=0.0 x=0.0 c=0.0 x=1.0"),
    "a constant in a scan": (lambda: pf.grad(lambda w: pf.scan(lambda c, x: (c + said(w), None), w, X[:2])[0])(f32(3)),
                             "x=3.0 x=3.0"),
    "cond": (lambda: [pick(f32(2)), pick(f32(0))], "x=2.0"),
    "grad of cond": (lambda: pf.grad(pick)(f32(2)), "x=2.0"),
    "vmap of cond": (lambda: pf.vmap(pick)(X), "x=2.0"),
    "no lane takes the branch": (lambda: pf.vmap(pick)(X[:2]), ""),
    "vmap of cond in jit": (lambda: pf.vmap(pf.jit(pick))(X), "x=2.0"),
    "vmap of grad of cond": (lambda: pf.vmap(pf.grad(pick))(X + 1), "x=2.0 x=3.0"),
    "vmap of switch": (lambda: pf.vmap(lambda i: pf.switch(i, [said, lambda x: x, said], f32(7) + i))(
        np.arange(3)), "x=7.0 x=9.0"),
    "vmap of a jitted function in cond": (lambda: pf.vmap(lambda x: pf.cond(x > 1, pf.jit(said), lambda x: x, x))(X),
                                          "x=2.0"),
    "vmap of a scan in cond": (lambda: pf.vmap(lambda x: pf.cond(
        x > 1, lambda x: pf.scan(body, x, X[:1])[0], lambda x: x, x))(X), "c=2.0 x=0.0"),
    "vmap of cond in cond": (lambda: pf.vmap(lambda x: pf.cond(x > 0, pick, lambda x: said(x * 10), x))(X),
                             "x=0.0 x=2.0"),
    "while": (lambda: count(f32(1)), "at 1.0 at 2.0"),
    "vmap of while": (lambda: pf.vmap(count)(np.array([2, 5, 1], f32)), "at 2.0 at 1.0 at 2.0"),
    "checkpoint": (lambda: pf.grad(pf.checkpoint(lambda x: pnp.sin(said(x))))(f32(2)), "x=2.0"),
    "a call in a checkpoint": (lambda: pf.grad(pf.checkpoint(lambda x: pnp.sin(pf.jit(said)(x))))(f32(2)), "x=2.0"),
    "the order": (lambda: pf.jit(lambda x: (said(x), said(x + 1), said(x)))(f32(1)), "x=1.0 x=2.0 x=1.0"),
    "custom_jvp": (lambda: pf.jit(ruled())(f32(2)), "x=2.0"),
}


@pytest.mark.parametrize("name", LINES)
def test_prints(name, capsys):
    f, lines = LINES[name]
    f()
    assert " ".join(capsys.readouterr().out.split("\n")).strip() == lines


def test_a_program_prints_tensors(capfd):
    def step(x):
        y = said(x)
        return pf.scan(body, f32(0), y)
    program = pf.lower(step, X)
    text = program.as_text()
    assert text.count("ops.print_tensor(") == 3 and '"x={}")' in text
    with pf.Session(program, device="host") as session:
        last, _ = session.run(X)
    assert float(last) == 5
    err = capfd.readouterr().err
    assert err.count("x={}") >= 1 and err.count("c={} x={x}") == 6


def test_prints_are_kept_apart_from_equal_ones():
    jaxpr = pf.make_jaxpr(lambda x: (said(x), said(x)))(f32(1))
    assert jaxpr.has_effect
    names = [e.primitive.name for e in simplify(jaxpr).eqns]
    assert names.count("print") == 2 and names.count("mul") == 1
    back = pf.parse_jaxpr(str(jaxpr))
    assert back == jaxpr
    trees = pf.make_jaxpr(lambda x: tree_said({"a": x, "b": (x, "{x}" if x is None else x)}))(f32(1))
    assert pf.parse_jaxpr(str(trees)) == trees


@pytest.mark.parametrize("call, line", [
    (lambda: pf.debug.print("{} {}", 1), "debug.print: the template does not fit its arguments: IndexError"),
    (lambda: pf.debug.print("{y}", x=1), "seen: '{y}' with 0 arguments and keywords ['x']"),
    (lambda: pf.debug.print("{[b]}", {"a": 1}), "the template does not fit its arguments: KeyError: 'b'"),
    (lambda: pf.debug.print("{.a}", (1, 2)), "the template does not fit its arguments: AttributeError"),
    (lambda: pf.debug.print("{"), "the template does not fit its arguments: ValueError"),
])
def test_templates_are_checked(call, line):
    with pytest.raises(ArgumentError, match=re.escape(line)) as caught:
        call()
    assert re.search(r"at \S*test_debug\.py:\d+, in <lambda>", str(caught.value))


def test_an_effect_that_cannot_be_masked_is_refused():
    rule = ruled()
    with pytest.raises(MissingRuleError, match="custom_jvp with an effect inside, such as debug.print, cannot be run"):
        pf.vmap(lambda x: pf.cond(x > 1, rule, lambda x: x, x))(X)


# ---------------------------------------------------------------------------- nans
def root(x):
    return pnp.sqrt(x - 1.0) * 2.0


@pytest.mark.parametrize("how", [lambda f: f, pf.jit, lambda f: pf.vmap(f), lambda f: lambda x: pf.scan(
    lambda c, v: (c + f(v), None), f32(0), x)[0]])
def test_nans_names_the_first_operation(how):
    with pytest.raises(NotFiniteError) as caught:
        with pf.debug.nans():
            how(root)(X)
    lines = str(caught.value).split("\n")
    assert re.fullmatch(r"sqrt made 1 NaN among [13] elements", lines[0])
    assert re.match(r"  at \S*test_debug\.py:\d+, in root: return pnp.sqrt\(x - 1.0\) \* 2.0", lines[1])
    assert lines[2] in ("  operand 0: float32[3] from -1.0 to 1.0", "  operand 0: float32[] from -1.0 to -1.0")
    assert np.isnan(np.asarray(root(X))[0])  # outside nobody looks


def test_nans_in_derivatives():
    with pf.debug.nans():
        assert float(pf.grad(lambda x: pnp.sum(x * x))(X)[2]) == 4
    with pytest.raises(NotFiniteError, match=r"div made 1 infinities among 1 elements"):
        with pf.debug.nans():
            pf.grad(pnp.sqrt)(f32(0))
    with pf.debug.nans(infs=False):
        assert np.isinf(np.asarray(pf.grad(pnp.sqrt)(f32(0))))


def test_what_was_there_before_is_no_fault():
    masked = np.array([1.0, -np.inf], f32)
    with pf.debug.nans():
        assert pf.nn.softmax(masked).shape == (2,)
        assert np.isnan(np.asarray(pnp.asarray([np.nan, 1.0]) + 1.0)[0])
    with pytest.raises(NotFiniteError, match="operand 0: float32.2. from 1.0 to 1.0, 1 inf"):
        with pf.debug.nans():
            pnp.asarray(masked) - pnp.asarray(masked)
