"""fwd_and_grad: a serialised function and its derivative as two phases give what its derivative at once does."""
import re
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from serial_cases import agree, by_definition, close, f32, i32

import popfn as pf
import popfn.numpy as pnp
from popfn._batch import RESIDUALS

STEPS, SIZE, WIDTH, LAYERS = 3, 2, 2, 3
rng = np.random.default_rng(0)
X = rng.normal(size=(STEPS * SIZE, WIDTH)).astype(f32)
W = rng.normal(0, 0.5, (WIDTH, WIDTH)).astype(f32)
WS = rng.normal(0, 0.5, (LAYERS, WIDTH, WIDTH)).astype(f32)
B = rng.normal(size=WIDTH).astype(f32)
PART = pf.spec((SIZE, WIDTH))


def stacked(x: Any) -> Any:
    return pnp.reshape(x, (STEPS, SIZE, WIDTH))


# ---------------------------------------------------------------------------- the law
class Law(NamedTuple):
    """A function of parameters, rows and more, its options, and arguments."""

    f: Callable[..., Any]
    in_axes: Tuple[Any, ...]
    args: Tuple[Any, ...]
    out_axes: Any = 0
    reduce: Any = None
    argnums: Any = None


LAWS: Dict[str, Law] = {
    "a layer": Law(lambda w, x: pnp.tanh(x @ w), (None, 0), (W, X)),
    "a tree": Law(lambda p, x: {"y": x["a"] @ p["w"] + p["b"], "z": x["b"] * p["b"]}, (None, 0),
                  ({"w": W, "b": B}, {"a": X, "b": X[::-1].copy()})),
    "sums": Law(lambda w, x: (pnp.sin(x @ w), pnp.sum(x @ w), pnp.mean(x * w[0], axis=0)), (None, 0), (W, X), 0,
                (None, "sum", "mean")),
    "columns": Law(lambda w, x: (w @ x, x.T), (None, 1), (W, X.T.copy()), (1, 0)),
    "integers": Law(lambda w, k, x: x * w[0] * k[:, None].astype(f32), (None, 0, 0), (W, np.arange(6, dtype=i32), X)),
    "some arguments": Law(lambda w, x, y: x @ w * y, (None, 0, 0), (W, X, X + 1), argnums=(2, 0)),
    "in another order": Law(lambda a, b: a * a * b, (0, 0), (X, X + 1), argnums=(1, 0)),
    "a NumPy number": Law(lambda w, x: x @ w, (None, 0), (W, X), argnums=np.int64(1)),
    "one argument": Law(lambda w, x: x @ w, (None, 0), (W, X), argnums=1),
    "from the end": Law(lambda w, x: x @ w, (None, 0), (W, X), argnums=-2),
    "a scan inside": Law(lambda ws, x: pf.scan(lambda h, w: (pnp.tanh(h @ w), None), x, ws)[0], (None, 0), (WS, X)),
    "a custom rule": Law(lambda w, x: pf.nn.gelu(x @ w), (None, 0), (W, X)),
    "a call": Law(pf.jit(lambda w, x: pnp.exp(x * w[0])), (None, 0), (W, X)),
}


def is_floats(x: Any) -> bool:
    return all(np.asarray(leaf).dtype.kind == "f" for leaf in pf.tree.leaves(x))


def cotangent(y: Any) -> Any:
    """A cotangent of a result, different everywhere."""
    return pf.tree.map(lambda a: np.cos(np.arange(np.prod(a.shape, dtype=int)), dtype=f32).reshape(a.shape), y)


def at_once(law: Law) -> Callable[..., Any]:
    """The result and the gradients, by vjp."""
    numbers = [i for i, x in enumerate(law.args) if is_floats(x)] if law.argnums is None else [
        n % len(law.args) for n in np.ravel(law.argnums)]

    def f(*args: Any) -> Any:
        def of_some(*some: Any) -> Any:
            given = dict(zip(numbers, some))
            return law.f(*[given.get(i, x) for i, x in enumerate(args)])
        y, pull = pf.vjp(of_some, *[args[n] for n in numbers])
        return y, pull(cotangent(y))
    return f


def in_phases(law: Law, between: Callable[[Any], Any] = lambda r: r, **options: Any) -> Callable[..., Any]:
    fwd, grad = pf.fwd_and_grad(law.f, STEPS, law.in_axes, law.out_axes, law.reduce, argnums=law.argnums, **options)

    def f(*args: Any) -> Any:
        y, residuals = fwd(*args)
        return y, grad(between(residuals), cotangent(y))
    return f


@pytest.mark.parametrize("residuals", RESIDUALS)
@pytest.mark.parametrize("name", LAWS)
def test_it_is_the_derivative(name: str, residuals: str) -> None:
    law = LAWS[name]
    for run in (lambda f: f, pf.jit, lambda f: lambda *xs: pf.checkpoint(f)(*xs)):
        close(by_definition(run(in_phases(law, residuals=residuals)), [law.args]), by_definition(
            at_once(law), [law.args]), name)
    agree(lambda mode: in_phases(law, residuals=residuals, io_mode=mode), at_once(law), [law.args, law.args])


def rounded_trip(residuals: Any) -> Any:
    """Residuals are a pytree: taken apart, put together, mapped, moved."""
    leaves, structure = pf.tree.flatten(residuals)
    return pf.tree.unflatten(structure, [pf.remote(x) for x in pf.tree.leaves(pf.tree.unflatten(structure, leaves))])


BETWEEN: Dict[str, Callable[[Any], Any]] = {
    "taken apart": rounded_trip,
    "mapped": lambda r: pf.tree.map(lambda x: x + x * 0, r),
    "loaded": lambda r: pf.load(r),
    "jit": lambda r: pf.jit(lambda r: r)(r),
    "cond": lambda r: pf.cond(pnp.sum(pf.tree.leaves(r)[0].astype(f32)) > 1e9,
                              lambda r: pf.tree.map(lambda x: x * 0, r), lambda r: r, r),
    "the carry of a scan": lambda r: pf.scan(lambda c, _: (c, None), r, None, length=2)[0],
    "stacked by a scan": lambda r: pf.tree.map(lambda x: x[1], pf.scan(lambda c, _: (c, r), 0.0, None, length=2)[1]),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("name", ["a layer", "a tree", "sums"])
def test_residuals_go_through_anything(name: str, between: str) -> None:
    law = LAWS[name]
    agree(lambda mode: in_phases(law, BETWEEN[between], io_mode=mode), at_once(law), [law.args])
    close(by_definition(in_phases(law, BETWEEN[between]), [law.args]), by_definition(at_once(law), [law.args]), "eager")


# ---------------------------------------------------------------------------- phases of layers
def layer(w: Any, x: Any) -> Any:
    return pnp.tanh(x @ w) + x * 0.5


def network(ws: Any, x: Any) -> Any:
    h = pf.scan(lambda h, w: (layer(w, h), None), x, ws)[0]
    return pnp.sum(h * h)


def whole_step(ws: Any, x: Any) -> Any:
    value, (dws, dx) = pf.value_and_grad(network, (0, 1))(ws, x)
    return pf.map(lambda p: p[0] - 0.1 * p[1], (ws, dws)), (value, dx)


def layer_scan(mode: str, residuals: str, far: bool) -> Callable[..., Any]:
    """A forward scan over layers that gives the residuals stacked, and a backward one that takes them."""
    fwd, grad = pf.fwd_and_grad(layer, STEPS, in_axes=(None, 0), io_mode=mode, residuals=residuals)

    def step(ws: Any, x: Any) -> Any:
        x = pf.remote(x) if far else x

        def backward(dh: Any, wr: Any) -> Any:
            w, r = wr
            dw, dh = grad(r, dh)
            return dh, w - 0.1 * dw
        h, kept = pf.scan(lambda h, w: fwd(w, h), x, ws)
        value, dh = pf.value_and_grad(lambda h: pnp.sum(h * h))(h)
        dx, new = pf.scan(backward, dh, (ws, kept), reverse=True)
        return new, (value, dx)
    return step


@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
@pytest.mark.parametrize("residuals", RESIDUALS)
def test_a_scan_over_layers_in_phases(residuals: str, far: bool) -> None:
    first = pf.spec(WS.shape)
    agree(lambda mode: layer_scan(mode, residuals, far), whole_step, [(X,)] * 3, WS,
          pf.remote(first) if far else first)
    close(by_definition(layer_scan("compute", residuals, far), [(X,)] * 3, WS), by_definition(
        whole_step, [(X,)] * 3, WS), "eager")


def layers_in_buffers(mode: str, residuals: str) -> Callable[..., Any]:
    """All activations and all their cotangents lie in rows of two buffers, one for each layer."""
    acts = pf.remote_buffer(PART, STEPS, LAYERS + 1, name="activations")
    cts = pf.remote_buffer(PART, STEPS, LAYERS + 1, name="cotangents")
    fwd, grad = pf.fwd_and_grad(
        layer, STEPS, in_axes=(None, 0), loads=(None, pf.Remote(acts)), stores=pf.Remote(acts, 1), rows=LAYERS,
        cotangents=pf.Remote(cts, 1), gradients=(None, pf.Remote(cts)), io_mode=mode, residuals=residuals)

    def step(ws: Any, x: Any) -> Any:
        def forward(c: Any, wi: Any) -> Any:
            w, i = wi
            y, kept = fwd(w, None, row=i)
            assert y is None
            return c, kept

        def backward(c: Any, wri: Any) -> Any:
            w, kept, i = wri
            dw, none = grad(kept, None, row=i)
            assert none is None
            return c, w - 0.1 * dw
        numbers = np.arange(LAYERS)
        acts.write(0, stacked(x))
        kept = pf.scan(forward, 0.0, (ws, numbers))[1]
        h = pf.load(acts.read(LAYERS))
        cts.write(LAYERS, 2 * h)
        new = pf.scan(backward, 0.0, (ws, kept, numbers), reverse=True)[1]
        return new, (pnp.sum(h * h), pnp.reshape(pf.load(cts.read(0)), x.shape))
    return step


@pytest.mark.parametrize("far", [False, True], ids=["device", "remote"])
@pytest.mark.parametrize("residuals", RESIDUALS)
def test_layers_with_all_values_in_buffers(residuals: str, far: bool) -> None:
    first = pf.spec(WS.shape)
    agree(lambda mode: layers_in_buffers(mode, residuals), whole_step, [(X,)] * 3, WS,
          pf.remote(first) if far else first)
    close(by_definition(layers_in_buffers("compute", residuals), [(X,)], WS), by_definition(
        whole_step, [(X,)], WS), "eager")


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cotangents_and_gradients_lie_in_buffers_by_their_axes(axes: Tuple[int, int]) -> None:
    """The whole of what lies in a buffer is put together, and cut, along the axes of the batch."""
    into, out = axes

    def f(w: Any, x: Any) -> Any:
        return pnp.moveaxis(pnp.sin(pnp.moveaxis(x, into, 0) @ w), 0, out)
    x = np.ascontiguousarray(np.moveaxis(X, 0, into))
    shapes = [(SIZE, WIDTH) if axis == 0 else (WIDTH, SIZE) for axis in axes]

    def parts(a: Any, axis: int) -> Any:
        return pnp.stack([a[i * SIZE:(i + 1) * SIZE] if axis == 0 else a[:, i * SIZE:(i + 1) * SIZE]
                          for i in range(STEPS)])

    def phases(mode: str) -> Callable[..., Any]:
        ys, cts = (pf.remote_buffer(pf.spec(shapes[1]), STEPS, 2, name=name) for name in ("ys", "cts"))
        dxs = pf.remote_buffer(pf.spec(shapes[0]), STEPS, 2, name="dxs")
        fwd, grad = pf.fwd_and_grad(f, STEPS, (None, into), out, stores=pf.Remote(ys, 1), cotangents=pf.Remote(cts, 1),
                                    gradients=(None, pf.Remote(dxs, lambda r: 1)), io_mode=mode)

        def run(w: Any, x: Any, ct: Any) -> Any:
            y, kept = fwd(w, x)
            assert y is None
            cts.write(1, parts(ct, out))
            dw, none = grad(kept)
            assert none is None
            return ys.read(1), dw, dxs.read(1)
        return run

    def plain(w: Any, x: Any, ct: Any) -> Any:
        y, pull = pf.vjp(f, w, x)
        dw, dx = pull(ct)
        return parts(y, out), dw, parts(dx, into)
    args = W, x, np.cos(np.moveaxis(X, 0, out))
    agree(phases, plain, [args, args])
    close(by_definition(phases("compute"), [args]), by_definition(plain, [args]), "eager")


def test_what_stands_between_the_phases_is_in_the_program_between_them() -> None:
    buffer = pf.remote_buffer(PART, STEPS, name="x")
    fwd, grad = pf.fwd_and_grad(layer, STEPS, in_axes=(None, 0), loads=(None, pf.Remote(buffer)))

    def f(w: Any, x: Any) -> Any:
        buffer.write(0, stacked(x))
        y, kept = fwd(w, None)
        buffer.write(0, stacked(x * 100))  # the residuals are those of the first
        return grad(kept, y), buffer.read(0)

    def plain(w: Any, x: Any) -> Any:
        y, pull = pf.vjp(layer, w, x)
        return pull(y), stacked(x * 100)
    agree(lambda mode: f, plain, [(W, X)] * 2, modes=("compute",))
    close(by_definition(f, [(W, X)]), by_definition(plain, [(W, X)]), "eager")


@st.composite
def random_phases(draw: Any) -> Any:
    return (draw(st.sampled_from(sorted(LAWS))), draw(st.sampled_from(RESIDUALS)),
            draw(st.sampled_from(sorted(BETWEEN))), draw(st.sampled_from(["nothing", "jit", "scan", "cond", "two"])),
            draw(st.booleans()))


def around(kind: str, f: Callable[..., Any]) -> Callable[..., Any]:
    if kind == "jit":
        return lambda *xs: pf.jit(f)(*xs)
    if kind == "scan":
        return lambda *xs: pf.scan(lambda c, _: (c, f(*xs)), 0.0, None, length=2)[1]
    if kind == "cond":
        return lambda *xs: pf.cond(pnp.sum(pf.tree.leaves(xs)[0]) > -1e9, f, lambda *xs: pf.tree.map(
            lambda y: y * 0, f(*xs)), *xs)
    if kind == "two":
        return lambda *xs: (f(*xs), f(*pf.tree.map(lambda x: x * 2, xs)))
    return f


@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(random_phases())
def test_random_phases(drawn: Any) -> None:
    name, residuals, between, kind, twice = drawn
    law = LAWS[name]
    agree(lambda mode: around(kind, in_phases(law, BETWEEN[between], residuals=residuals, io_mode=mode)),
          around(kind, at_once(law)), [law.args] * (1 + twice))


# ---------------------------------------------------------------------------- errors
def g(w: Any, x: Any) -> Any:
    return x @ w


PHASES = pf.fwd_and_grad
BUFFER = pf.remote_buffer(PART, STEPS, name="b")
BAD: Dict[str, Tuple[Callable[[], Any], str, List[str]]] = {
    "no function": (lambda: PHASES(W, 2), "fwd_and_grad takes a function first, got ndarray",
                    ["way out: fwd_and_grad(f, steps)"]),
    "steps": (lambda: PHASES(g, 0), "fwd_and_grad: steps is a number of 1 or more, got 0", []),
    "io_mode": (lambda: PHASES(g, 2, io_mode="fast"),
                "fwd_and_grad: io_mode is one of 'compute', 'io', 'io_overlapped', got 'fast'", []),
    "residuals": (lambda: PHASES(g, 2, residuals="host"),
                  "fwd_and_grad: residuals is one of 'remote', 'device', 'recompute', got 'host'", []),
    "rows": (lambda: PHASES(g, 2, rows=0), "fwd_and_grad: rows is a number of 1 or more, got 0", []),
    "argnums": (lambda: PHASES(g, 2, (None, 0), argnums=2)[0](W, X),
                "fwd_and_grad: argnums names argument 2, but g was called with 2 arguments", []),
    "argnums twice": (lambda: PHASES(g, 2, (None, 0), argnums=(1, -1))[0](W, X),
                      "fwd_and_grad: argnums=(1, -1) names an argument twice", []),
    "argnums below": (lambda: PHASES(g, 2, (None, 0), argnums=(0, -3))[0](W, X),
                      "fwd_and_grad: argnums names argument -3, but g was called with 2 arguments", []),
    "argnums that are a text": (lambda: PHASES(g, 2, (None, 0), argnums=("w",))[0](W, X),
                                "fwd_and_grad: argnums names argument 'w', but g was called with 2 arguments", []),
    "a gradient by integers": (
        lambda: PHASES(g, 2, (None, 0), argnums=1)[0](W, X.astype(i32)),
        "fwd_and_grad: argnums names argument x of g, which is i32[6,2]; a derivative needs floats", []),
    "too many axes": (lambda: PHASES(g, 2, (None, 0, 0))[0](W, X),
                      "fwd_and_grad: in_axes has 3 entries, but g was called with 2 arguments", []),
    "too few loads": (lambda: PHASES(g, 2, (None, 0), loads=(None,))[0](W, X),
                      "fwd_and_grad: loads has 1 entries, but g was called with 2 arguments", []),
    "loads": (lambda: PHASES(g, 2, (None, 0), loads=(None, "device"))[0](W, X),
              "fwd_and_grad: loads has None or pf.Remote(buffer) for each argument, got 'device'", []),
    "a stream": (lambda: PHASES(g, 2, (None, 0), loads=(None, pf.HostStream()))[0](W, X),
                 "fwd_and_grad: loads has None or pf.Remote(buffer) for each argument, got HostStream()", []),
    "no residuals": (lambda: PHASES(g, 3, (None, 0))[1]((W, X), X),
                     "fwd_and_grad: grad takes the residuals that fwd gave first, got tuple", []),
    "too many gradients": (lambda: PHASES(g, 3, (None, 0), gradients=(None,) * 3)[1](PHASES(g, 3, (None, 0))[0](
        W, X)[1], X), "fwd_and_grad: gradients has 3 entries for 2 gradients", []),
    "a row": (lambda: PHASES(g, 3, (None, 0), loads=(None, pf.Remote(BUFFER)))[0](W, None, row=1),
              "fwd_and_grad: row 1 is out of range, the function serves 1 row", ["way out: fwd_and_grad(..., rows=2)"]),
    "a value and a buffer": (lambda: PHASES(g, 3, (None, 0), loads=(None, pf.Remote(BUFFER)))[0](W, X),
                             "fwd_and_grad: argument x of g is loaded from b, but a value was passed for it",
                             ["way out: pass None for it"]),
    "a cotangent and a buffer": (lambda: phases_with(cotangents=pf.Remote(BUFFER))(X),
                                 "fwd_and_grad: cotangent is loaded from b, but a value was passed for it",
                                 ["way out: pass None for it"]),
    "no cotangent": (lambda: phases_with()(None), "fwd_and_grad: grad takes the cotangent of the result behind the "
                     "residuals", ["way out: grad(residuals, ct), or cotangents=pf.Remote(buffer)"]),
    "cotangents on the device": (lambda: phases_with(cotangents="device")(X),
                                 "fwd_and_grad: cotangents has None or pf.Remote(buffer) for each result, got 'device'",
                                 []),
    "the steps of a buffer": (lambda: PHASES(g, 2, (None, 0), loads=(None, pf.Remote(BUFFER)))[0](W, None),
                              "fwd_and_grad: argument x of g lies in b, which is laid out for 3 steps, not for 2",
                              ["way out: remote_buffer(..., steps=2)"]),
    "a buffer of scalars": (lambda: PHASES(g, 3, (None, 0), loads=(None, pf.Remote(pf.remote_buffer(
        pf.spec(()), 3, name="s"))))[0](W, None),
        "fwd_and_grad: argument x of g lies in s, whose values are scalars: they have no axis of the batch",
        ["way out: a buffer of pf.spec((1,))"]),
    "the parts of a result": (lambda: PHASES(g, 3, (None, 0), stores=pf.Remote(pf.remote_buffer(
        pf.spec((9, 9)), 3, name="s")))[0](W, X),
        "fwd_and_grad: result of g is f32[2,2] in each step, but s holds f32[9,9]", []),
    "a sum in a buffer": (lambda: PHASES(lambda w, x: pnp.sum(x), 3, (None, 0), reduce="sum",
                                         stores=pf.Remote(BUFFER))[0](W, X), "fwd_and_grad: result of ...", []),
    "sums in a buffer": (lambda: PHASES(lambda w, x: x, 3, (None, 0), reduce="sum",
                                        stores=pf.Remote(BUFFER))[0](W, X), "fwd_and_grad: result of ...", []),
    "a gradient that is not cut": (lambda: phases_with(gradients=(pf.Remote(BUFFER), None))(X),
                                   "fwd_and_grad: gradient 0 can go to a pf.Remote(buffer) if it has an axis of the "
                                   "batch, got Remote(buffer='b', row=0) and axis None", []),
    "a cotangent of another shape": (lambda: phases_with()(X[:2]),
                                     "vjp: the cotangent of result is f32[2,2], expected f32[6,2]", []),
    "residuals of another call": (
        lambda: PHASES(g, 3, (None, 0))[1](pf.tree.map(lambda a: a[:1], PHASES(g, 3, (None, 0))[0](W, X)[1]), X),
        "vjp: a residual is...", []),
}


def phases_with(**options: Any) -> Callable[[Any], Any]:
    """The gradients for a cotangent."""
    fwd, grad = PHASES(g, 3, (None, 0), **options)
    return lambda ct: grad(fwd(W, X)[1], ct)


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_line(name: str) -> None:
    f, text, more = BAD[name]
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(f32(0))):
        with pytest.raises(pf.errors.PopfnError) as e:
            run()
        lines = [re.sub(r"(<lambda>\.)*(\S+) \(tests/lower/test_phases.py:\d+\)", r"\2", line)
                 for line in str(e.value).split("\n  ")]
        assert lines[0] == text or text.endswith("...") and lines[0].startswith(text[:-3]), lines
        assert re.match(r"at tests/lower/test_phases.py:\d+, in ", lines[1]), lines
        assert text.endswith("...") or lines[2:] == more, lines
