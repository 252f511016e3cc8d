"""Random serialised functions: the function they wrap and a Python loop give the same, whatever lies where."""
from typing import Any, Callable, Dict, NamedTuple, Tuple

import numpy as np
from hypothesis import event, given, settings, strategies as st
from serial_cases import agree, f32, i32

import popfn as pf
import popfn.numpy as pnp
from popfn._batch import RESIDUALS
from popfn.trace.errors import LoweringError

WIDTH = 3
RUNS = 2

#: Operations on the rows of arrays f32[n,3], where w is f32[3,3]; each row by itself.
UNARY: Dict[str, Callable[[Any], Any]] = {
    "tanh": pnp.tanh, "sin": pnp.sin, "softmax": pf.nn.softmax, "flip": lambda x: x[:, ::-1],
    "centred": lambda x: x - pnp.mean(x, axis=1, keepdims=True), "constant": lambda x: x * 0 + 1,
    "jit": pf.jit(lambda x: pnp.sin(x) * x), "checkpoint": pf.checkpoint(lambda x: pnp.tanh(pnp.sin(x))),
    "scan": lambda x: pf.scan(lambda c, v: (pnp.tanh(c + v), c * v), x[:, 0], x.T)[1].T,
    "map": lambda x: pf.map(lambda v: pnp.sin(v) * v[0], x),
}
BINARY: Dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "where": lambda x, y: pnp.where(x > 0, x, y),
    "outer": lambda x, y: (x[:, :, None] * y[:, None, :]).sum(1),
}
OF_WEIGHTS: Dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda x, w: x @ w, "bias": lambda x, w: x + w[0], "scale": lambda x, w: x * w[0, 0],
    "layers": lambda x, w: pf.scan(lambda h, v: (pnp.tanh(h + v), None), x, w)[0],
    "cond": lambda x, w: pf.cond(w[0, 0] > 0, lambda x: x @ w, lambda x: x, x),
}
#: Results that are reduced over the steps: `sum` adds up parts, `mean` takes parts of equal size.
REDUCED: Dict[str, Tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "sum": (lambda x, w: pnp.sum(x), "sum"),
    "vector": (lambda x, w: pnp.sum(x * x, axis=0), "sum"),
    "mean": (lambda x, w: pnp.mean(x, axis=0), "mean"),
    "count": (lambda x, w: pnp.sum((x > 0).astype(i32)), "sum"),
}


class Law(NamedTuple):
    """A function of rows x and y and weights w, written as the operations that make it, and the results it gives."""

    ops: Tuple[Tuple[str, int, int], ...]
    rows: Tuple[int, ...]
    reduced: Tuple[Tuple[str, int], ...]

    @property
    def reduce(self) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
        return (None,) * len(self.rows), tuple([REDUCED[name][1] for name, _ in self.reduced])

    def __call__(self, x: Any, y: Any, w: Any) -> Any:
        pool = [x, y]
        for name, i, j in self.ops:
            a, b = pool[i % len(pool)], pool[j % len(pool)]
            pool.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b) if name in BINARY else
                        OF_WEIGHTS[name](a, w))
        return (tuple([pool[i % len(pool)] for i in self.rows]),
                tuple([REDUCED[name][0](pool[i % len(pool)], w) for name, i in self.reduced]))


@st.composite
def laws(draw: Any) -> Law:
    names = sorted({**UNARY, **BINARY, **OF_WEIGHTS})
    number = st.integers(0, 9)
    ops = draw(st.lists(st.tuples(st.sampled_from(names), number, number), min_size=1, max_size=4))
    rows = draw(st.lists(st.integers(0, len(ops) + 1).map(lambda i: len(ops) + 1 - i), min_size=1, max_size=3))
    reduced = draw(st.lists(st.tuples(st.sampled_from(sorted(REDUCED)), st.integers(0, 5)), max_size=2))
    return Law(tuple(ops), tuple(rows), tuple(reduced))


def part(x: Any, axis: Any, i: int, steps: int) -> Any:
    if axis is None:
        return x
    size = x.shape[axis] // steps
    return pnp.moveaxis(pnp.moveaxis(x, axis, 0)[i * size:(i + 1) * size], 0, axis)


class Program(NamedTuple):
    """A serialised law with all options, and what stands around it."""

    law: Law
    steps: int
    size: int
    axes: Tuple[int, int]
    out: int
    options: Dict[str, Any]
    around: str
    kind: str
    is_far: bool
    is_loop: bool

    def f(self, x: Any, y: Any, w: Any) -> Any:
        """The law with the axes of the batch where they are said to be."""
        rows, reduced = self.law(pnp.moveaxis(x, self.axes[0], 0), pnp.moveaxis(y, self.axes[1], 0), w)
        return tuple([pnp.moveaxis(r, 0, self.out) for r in rows]), reduced

    def loop(self, x: Any, y: Any, w: Any) -> Any:
        """Python's loop over the parts."""
        outs = [self.f(part(x, self.axes[0], i, self.steps), part(y, self.axes[1], i, self.steps), w)
                for i in range(self.steps)]
        rows = [pnp.concat(list(parts), axis=self.out) for parts in zip(*(rows for rows, _ in outs))]
        sums = [sum(parts[1:], parts[0]) for parts in zip(*(reduced for _, reduced in outs))]
        return tuple(rows), tuple([s / self.steps if way == "mean" else s
                                   for s, way in zip(sums, self.law.reduce[1])])

    def serial(self, mode: str) -> Callable[..., Any]:
        def made(f: Callable[..., Any], steps: int) -> Callable[..., Any]:
            return pf.batch_serialise(f, steps, (*self.axes, None), self.out, self.law.reduce, io_mode=mode,
                                      **self.options)
        serial = made(self.f, self.steps)
        return made(serial, self.size) if self.around == "serial" else serial

    def program(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A step that takes the weights as state."""
        g = AROUND[self.around](f)

        def loss(w: Any, x: Any, y: Any) -> Any:
            out = g(x, y, w)
            total = pnp.zeros(())
            for i, leaf in enumerate(pf.tree.leaves(out)):
                if leaf.dtype == f32:
                    weights = np.cos(np.arange(np.prod(leaf.shape), dtype=f32) + i).reshape(leaf.shape)
                    total = total + pnp.sum(leaf * weights)
            return total, out

        def value(w: Any, x: Any, y: Any) -> Any:
            out = g(x, y, w)
            return w * 0.9 + pnp.mean(pf.tree.leaves(out)[0]) * 0.1, out

        def grad(w: Any, x: Any, y: Any) -> Any:
            (total, out), (dw, dx) = pf.value_and_grad(loss, (0, 1), has_aux=True)(w, x, y)
            return w - 0.1 * dw, (total, out, dx)

        def grads(w: Any, x: Any, y: Any) -> Any:
            (dw, dx, dy), total = pf.grad(loss, (0, 1, 2), has_aux=True)(w, x, y)
            return w - 0.1 * dw, (dx, dy)

        def accumulated(w: Any, x: Any, y: Any) -> Any:
            total, dw = pf.scan(lambda c, v: (lambda d: (c + d, d[0]))(pf.grad(loss, has_aux=True)(w, v, y)[0]),
                                pnp.zeros((WIDTH, WIDTH)), pnp.stack([x, x * 0.5]))
            return w - 0.1 * total, dw
        return {"value": value, "grad": grad, "grads": grads, "accumulated": accumulated}[self.kind]


KINDS = ("value", "grad", "grads", "accumulated")
AROUND: Dict[str, Callable[..., Any]] = {
    "nothing": lambda f: f,
    "twice": lambda f: lambda x, y, w: (f(x, y, w), f(y, x, w) if x.shape == y.shape else f(x, y, w * 2)),
    "jit": pf.jit,
    "checkpoint": pf.checkpoint,
    "vmap": lambda f: lambda x, y, w: pf.vmap(f, (None, None, 0))(x, y, pnp.stack([w, w * 0.5])),
    "vmap of rows": lambda f: lambda x, y, w: pf.vmap(f, (-1, None, None), -1)(pnp.stack([x, -x], axis=-1), y, w),
    "scan": lambda f: lambda x, y, w: pf.scan(
        lambda c, v: (c * 0.5, f(x, y, v * c)), 1.0, pnp.stack([w, w * 0.5]))[1],
    "scan of rows": lambda f: lambda x, y, w: pf.scan(
        lambda c, v: (c + 1, f(v, y, w * c)), 1.0, pnp.stack([x, x * 0.5]))[1],
    "cond": lambda f: lambda x, y, w: pf.cond(w[0, 0] > 0, lambda x: f(x, y, w), lambda x: f(-x, y, w), x),
    "chain": lambda f: lambda x, y, w: (lambda o: (o, f(o[0][0], y, w) if o[0][0].shape == x.shape else None))(
        f(x, y, w)),
    "serial": lambda f: f,
}


@st.composite
def programs(draw: Any) -> Program:
    steps = draw(st.integers(1, 6))
    size = draw(st.integers(1, 2))
    memory = st.sampled_from([None, None, "device", pf.HostStream()])
    options = {"residuals": draw(st.sampled_from(RESIDUALS)), "loads": (draw(memory), draw(memory), None),
               "stores": draw(st.sampled_from([None, None, "device", pf.HostStream()]))}
    axis = st.sampled_from([0, 0, 1, -1])
    return Program(draw(laws()), steps, size, (draw(axis), draw(axis)), draw(st.sampled_from([0, 0, 1, -1])), options,
                   draw(st.sampled_from(sorted(AROUND))), draw(st.sampled_from(KINDS)), draw(st.booleans()),
                   draw(st.booleans()))


def data(p: Program, seed: int) -> Tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(p.steps * p.size, WIDTH)).astype(f32) for _ in range(2))
    return tuple([np.ascontiguousarray(np.moveaxis(a, 0, axis)) for a, axis in zip((x, y), p.axes)])


@settings(max_examples=max(60, settings.default.max_examples // 2))
@given(programs())
def test_random_programs(p: Program) -> None:
    state = np.random.default_rng(7).normal(0, 0.5, size=(WIDTH, WIDTH)).astype(f32)
    runs = [data(p, seed) for seed in range(RUNS)]
    first = pf.spec((WIDTH, WIDTH))
    first = pf.remote(first) if p.is_far else first

    plain = p.program(p.loop if p.is_loop and p.around != "serial" else p.f)
    try:
        agree(lambda mode: p.program(p.serial(mode)), plain, runs, state, first)
    except LoweringError as e:
        assert "=HostStream() asks to stream" in str(e), e
        event("cannot be streamed")
        free = p._replace(options={**p.options, "loads": None, "stores": None})
        agree(lambda mode: free.program(free.serial(mode)), plain, runs, state, first)


# ---------------------------------------------------------------------------- with handles
class Handle(NamedTuple):
    """How a row of a buffer is said: by the row that the function is called with, and what the handle makes of it."""

    handle: Any
    called: Any  # None for the program's argument, which is 0 or 1

    def row(self, r: Any) -> Any:
        """The row of the buffer."""
        called = r if self.called is None else self.called
        return 0 if self.handle is None else self.handle(called) if callable(self.handle) else called + self.handle


HANDLES = {
    "static": Handle(0, 1), "shifted": Handle(1, 1), "traced": Handle(0, None), "traced and shifted": Handle(2, None),
    "callable": Handle(lambda r: 2 - r, None), "a constant callable": Handle(lambda r: 2, None),
    "None": Handle(None, None),
}
AROUND_HANDLES: Dict[str, Callable[..., Any]] = {
    **{name: AROUND[name] for name in ("nothing", "jit", "checkpoint", "vmap", "scan")},
    "cond": lambda f: lambda x, y, w: pf.cond(w[0, 0] > 0, lambda y: f(x, y, w), lambda y: f(x, -y, w), y),
    "twice": lambda f: lambda x, y, w: (f(x, y, w), f(x, -y, w * 2)),
}


def stacked(x: Any, axis: int, steps: int) -> Any:
    """The parts along an axis, stacked."""
    return pnp.stack([part(x, axis, i, steps) for i in range(steps)])


@settings(max_examples=max(30, settings.default.max_examples // 2))
@given(programs(), st.sampled_from(sorted(HANDLES)), st.sampled_from(sorted(AROUND_HANDLES)), st.booleans())
def test_random_programs_with_handles(p: Program, name: str, around: str, stores: bool) -> None:
    """x is loaded from a buffer, and the first result may go to one. Derivatives are those by the weights and y."""
    how = HANDLES[name]
    if around == "vmap" and stores or p.law.reduce[0] == ():
        stores = False
    state = np.random.default_rng(7).normal(0, 0.5, size=(WIDTH, WIDTH)).astype(f32)
    runs = [(*data(p, seed), i32(seed % 2)) for seed in range(RUNS)]
    x, y, _ = runs[0]
    parts = pf.make_jaxpr(p.f)(*[pf.spec(part(a, axis, 0, p.steps).shape) for a, axis in zip((x, y), p.axes)],
                               pf.spec((WIDTH, WIDTH)))

    def program(f: Callable[..., Any], before: Callable[..., Any]) -> Callable[..., Any]:
        def step(w: Any, x: Any, y: Any, r: Any) -> Any:
            before(x, r)
            g = AROUND_HANDLES[around](lambda x, y, w: f(x, y, w, r))

            def loss(w: Any, y: Any) -> Any:
                out = g(x, y, w)
                return sum(pnp.sum(leaf * 0.5) for leaf in pf.tree.leaves(out)), out
            if p.kind == "value" or stores:
                out = g(x, y, w)
                return w * 0.9, out
            (dw, dy), out = pf.grad(loss, (0, 1), has_aux=True)(w, y)
            return w - 0.1 * dw, (out, dy)
        return step

    def make(mode: str) -> Callable[..., Any]:
        inputs = pf.remote_buffer(pf.spec(part(x, p.axes[0], 0, p.steps).shape), p.steps, 4, name="inputs")
        results = pf.remote_buffer(parts.out_avals[0], p.steps, 4, name="results")
        options: Dict[str, Any] = {**p.options, "loads": (pf.Remote(inputs, how.handle), None, None), "stores": None}
        if stores:
            options["stores"] = ((pf.Remote(results, how.handle), *[None] * (len(p.law.rows) - 1)),
                                 (None,) * len(p.law.reduced))
        serial = pf.batch_serialise(p.f, p.steps, (None, p.axes[1], None), p.out, p.law.reduce, io_mode=mode, rows=2,
                                    **options)

        def f(x: Any, y: Any, w: Any, r: Any) -> Any:
            rows, reduced = serial(None, y, w, row=r if how.called is None else how.called)
            return ((results.read(how.row(r)), *rows[1:]), reduced) if stores else (rows, reduced)
        return program(f, lambda x, r: inputs.write(how.row(r), stacked(x, p.axes[0], p.steps)))

    def plain(x: Any, y: Any, w: Any, r: Any) -> Any:
        rows, reduced = p.loop(x, y, w)
        return ((stacked(rows[0], p.out, p.steps), *rows[1:]), reduced) if stores else (rows, reduced)
    first = pf.spec((WIDTH, WIDTH))
    agree(make, program(plain, lambda x, r: None), runs, state, pf.remote(first) if p.is_far else first)
