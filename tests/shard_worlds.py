"""Functions of arrays that are cut over a mesh, each step of which has a known place for its collectives.

A program is run in one of three worlds. `Whole` knows nothing of meshes: it is the function of global arrays, in popfn
or in NumPy with 64 bits. `Parts` is what `pf.shard` is given: parts and collectives. `Replicas` runs that once more in
NumPy, with the parts of all replicas along axes in front, and writes every collective out.
"""
import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import popfn as pf
import popfn.numpy as pnp

Spec = Tuple[Tuple[str, ...], ...]
Sizes = Dict[str, int]


class Ty(NamedTuple):
    """A float array: the shape of the whole, for each axis the names over which it is cut, whether elements differ."""

    shape: Tuple[int, ...]
    spec: Spec
    distinct: bool = False

    def names(self, axes: Optional[Sequence[int]] = None) -> Tuple[str, ...]:
        return tuple(n for k in (range(len(self.shape)) if axes is None else axes) for n in self.spec[k])

    def uncut(self) -> List[int]:
        return [k for k, names in enumerate(self.spec) if not names]

    def without(self, k: int) -> "Ty":
        return Ty(self.shape[:k] + self.shape[k + 1:], self.spec[:k] + self.spec[k + 1:])

    @property
    def entry(self) -> Any:
        return pf.P(*[None if not n else n[0] if len(n) == 1 else n for n in self.spec])


@dataclass(frozen=True)
class Step:
    """One operation on earlier values, counted from the first leaf."""

    op: str
    ins: Tuple[int, ...]
    types: Tuple[Ty, ...]
    out: Ty
    params: Tuple[Any, ...] = ()
    body: Optional["Body"] = None
    fault: Optional[Tuple[str, str]] = None


@dataclass(frozen=True)
class Body:
    """Steps on what is around it and one value more, unless it is a whole program; the last value is the result."""

    steps: Tuple[Step, ...]
    param: Optional[Ty] = None


@dataclass(frozen=True, repr=False)
class Program:
    """A body, the leaves it begins with, weights that its steps use, and which values are its results."""

    mesh: Tuple[Tuple[str, int], ...]
    leaves: Tuple[Ty, ...]
    weights: Tuple[Ty, ...]
    body: Body
    outs: Tuple[int, ...]
    seed: int = 0

    @property
    def inputs(self) -> Tuple[Ty, ...]:
        return self.leaves + self.weights

    @property
    def types(self) -> List[Ty]:
        return [*self.leaves, *[s.out for s in self.body.steps]]

    @property
    def out_types(self) -> List[Ty]:
        return [self.types[i] for i in self.outs]

    def steps(self) -> List[Step]:
        def below(body: Body) -> List[Step]:
            return [t for s in body.steps for t in (s, *(below(s.body) if s.body else ()))]
        return below(self.body)

    def arrays(self) -> List[np.ndarray]:
        """The arguments: an integer on which branches depend, then the inputs."""
        rng = np.random.default_rng(self.seed)
        return [np.int32(self.seed % 3 - 1), *[rng.normal(size=t.shape).astype("f4") for t in self.inputs]]

    def __repr__(self) -> str:
        def lines(body: Body, count: int, indent: str) -> List[str]:
            out, count = [], count + (body.param is not None)
            for s in body.steps:
                fault = f"  FAULT {s.fault}" if s.fault else ""
                out.append(f"{indent}{count}: {s.op}{s.ins}{s.params} -> {s.out.shape} {s.out.entry}{fault}")
                out += lines(s.body, count, indent + "    ") if s.body else []
                count += 1
            return out
        leaves = [f"  {i}: {t.shape} {t.entry}" for i, t in enumerate(self.leaves)]
        leaves += [f"  weight {i}: {t.shape} {t.entry}" for i, t in enumerate(self.weights)]
        return "\n".join([f"Program seed={self.seed} {self.mesh}", *leaves, *lines(self.body, len(self.leaves), "  "),
                          f"  outs {self.outs}"])


# ---------------------------------------------------------------------------- the worlds
class Whole:
    """Global arrays, in `pnp` with popfn's transforms or in NumPy without."""

    local = False
    sizes: Sizes = {}

    def __init__(self, np: Any) -> None:
        self.np, self.traces = np, np is pnp

    def each(self, f: Callable[..., Any], *xs: Any) -> Any:
        return f(self.np, *xs)


class Parts(Whole):
    """What a function inside pf.shard has."""

    local = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(pnp)
        self.sizes = sizes
        self.index, self.ppermute, self.vary = pf.axis_index, pf.ppermute, pf.pvary
        self.psum, self.pmean, self.pmax, self.pmin = pf.psum, pf.pmean, pf.pmax, pf.pmin
        self.all_gather, self.all_to_all, self.psum_scatter = pf.all_gather, pf.all_to_all, pf.psum_scatter


class Replicas:
    """The parts of all replicas as one array, whose first axes are those of the mesh."""

    local, traces = True, False

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.names = sizes, list(sizes)

    def each(self, f: Callable[..., Any], *xs: Any) -> Any:
        n = len(self.names)
        rows = [f(np, *(x[at] for x in xs)) for at in np.ndindex(*self.sizes.values())]
        return np.stack(rows).reshape(*self.sizes.values(), *np.shape(rows[0])) if n else rows[0]

    def places(self, names: Any) -> Tuple[int, ...]:
        return tuple(self.names.index(n) for n in ((names,) if isinstance(names, str) else names))

    def same(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.broadcast_to(y, x.shape)

    def psum(self, x: Any, names: Any) -> Any:
        return self.same(x, np.sum(x, axis=self.places(names), keepdims=True))

    def pmean(self, x: Any, names: Any) -> Any:
        return self.same(x, np.mean(x, axis=self.places(names), keepdims=True))

    def pmax(self, x: Any, names: Any) -> Any:
        return self.same(x, np.max(x, axis=self.places(names), keepdims=True))

    def pmin(self, x: Any, names: Any) -> Any:
        return self.same(x, np.min(x, axis=self.places(names), keepdims=True))

    def vary(self, x: Any, names: Any) -> Any:
        return x

    def index(self, name: str) -> Any:
        at, = self.places(name)
        shape = tuple(self.sizes.values())
        return np.broadcast_to(np.arange(shape[at]).reshape([-1 if i == at else 1 for i in range(len(shape))]), shape)

    def all_gather(self, x: Any, name: str, *, axis: int = 0, tiled: bool = False) -> Any:
        at, = self.places(name)
        rows = [np.take(x, [i], at) for i in range(self.sizes[name])]
        join = np.concatenate if tiled else np.stack
        one = join(rows, axis=len(self.names) + axis)
        return np.broadcast_to(one, one.shape[:at] + (self.sizes[name],) + one.shape[at + 1:])

    def ppermute(self, x: Any, name: str, perm: Sequence[Tuple[int, int]]) -> Any:
        at, = self.places(name)
        out = np.zeros_like(x)
        for a, b in perm:
            out[(slice(None),) * at + (b,)] = np.take(x, a, at)
        return out

    def all_to_all(self, x: Any, name: str, split_axis: int, concat_axis: int) -> Any:
        at, = self.places(name)
        count, n = self.sizes[name], len(self.names)
        rows = []
        for j in range(count):  # lane j gets element j along split_axis of all lanes
            sent = [np.take(np.take(x, [i], at), j, n + split_axis) for i in range(count)]
            rows.append(np.stack(sent, axis=n + concat_axis))
        return np.concatenate(rows, axis=at)

    def psum_scatter(self, x: Any, name: str, *, axis: int = 0, tiled: bool = False) -> Any:
        at, = self.places(name)
        parts = np.split(self.psum(x, name), self.sizes[name], len(self.names) + axis)
        if not tiled:
            parts = [np.squeeze(p, len(self.names) + axis) for p in parts]
        return np.concatenate([np.take(p, [i], at) for i, p in enumerate(parts)], axis=at)

    def inner(self, name: str, size: int) -> "Replicas":
        return Replicas({**self.sizes, name: size})


# ---------------------------------------------------------------------------- operations
UNARY = {"sin": lambda np, x: np.sin(x), "tanh": lambda np, x: np.tanh(x), "square": lambda np, x: x * np.tanh(x),
         "affine": lambda np, x: x * 0.5 - 0.25, "bell": lambda np, x: np.exp(-x * x), "of a sum": lambda np, x: x / (
             1 + np.exp(-x)), "negative": lambda np, x: -x}
BINARY = {"add": lambda np, x, y: x + y, "sub": lambda np, x, y: x - 0.5 * y, "mul": lambda np, x, y: x * np.tanh(y)}
HOW = ["at once", "in turn", "gathered", "mean"]


def split(shape: Sequence[int], k: int, n: int) -> Tuple[int, ...]:
    return (*shape[:k], n, shape[k] // n, *shape[k + 1:])


def merged(shape: Sequence[int], k: int) -> Tuple[int, ...]:
    return (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2:])


def total(w: Any, x: Any, names: Sequence[str], how: str, fault: Any = None) -> Any:
    """The sum of partial sums over replicas, if there are any."""
    if not w.local:
        return x
    names = tuple(n for n in names if fault != ("missing", n))
    if names and how == "at once":
        x = w.psum(x, names)
    elif names and how == "mean":
        x = w.each(lambda np, m: m * math.prod(w.sizes[n] for n in names), w.pmean(x, names))
    else:
        for n in names:
            x = w.psum(x, n) if how == "in turn" else w.each(lambda np, g: np.sum(g, axis=0), w.all_gather(x, n))
    return w.psum(x, fault[1]) if fault and fault[0] == "double" else x


def largest(w: Any, x: Any, names: Sequence[str]) -> Any:
    return w.pmax(x, tuple(names)) if w.local and names else x


def mean_of(w: Any, x: Any, t: Ty) -> Any:
    """The mean of all elements, a scalar that all replicas have."""
    y = w.each(lambda np, x: np.mean(x), x)
    return w.pmean(y, t.names()) if w.local and t.names() else y


def own_part(w: Any, x: Any, k: int, name: str) -> Any:
    """The part along an axis that belongs to a replica."""
    return w.each(lambda np, x, i: np.take(np.reshape(x, split(x.shape, k, w.sizes[name])), i, axis=k),
                  x, w.index(name))


def run(w: Any, step: Step, env: List[Any], weights: Sequence[Any]) -> Any:
    xs, ts, p = [env[i] for i in step.ins], step.types, step.params
    t, x = (ts[0], xs[0]) if ts else (None, None)
    if step.op in UNARY:
        return w.each(UNARY[step.op], x)
    if step.op in BINARY:
        return w.each(BINARY[step.op], *xs)
    if step.op in ("matmul", "contract"):
        y = xs[1] if step.op == "contract" else weights[p[2]]
        k, j = p[0]
        out = w.each(lambda np, x, y: np.tensordot(x, y, axes=((k,), (j,))) / math.sqrt(t.shape[k]), x, y)
        if p[1] == "scatter":
            for n in t.spec[k] if w.local else ():
                out = w.psum_scatter(out, n, axis=p[3], tiled=True)
            return out
        return total(w, out, t.spec[k], p[1], step.fault)
    if step.op == "sum":
        axes, keep, how = p
        scale = math.sqrt(math.prod(t.shape[k] for k in axes))
        y = w.each(lambda np, x: np.sum(x / scale, axis=axes, keepdims=keep), x)
        return total(w, y, t.names(axes), how, step.fault)
    if step.op == "mean":
        axes, keep, how = p
        y = w.each(lambda np, x: np.mean(x, axis=axes, keepdims=keep), x)
        names = tuple(n for n in t.names(axes) if step.fault != ("missing", n))
        y = w.pmean(y, names) if w.local and names else y
        return w.psum(y, step.fault[1]) if w.local and step.fault and step.fault[0] == "double" else y
    if step.op == "max":
        axes, keep, _ = p
        return largest(w, w.each(lambda np, x: np.max(x, axis=axes, keepdims=keep), x), t.names(axes))
    if step.op in ("softmax", "logsumexp"):
        k, names = p[0], t.spec[p[0]]
        m = largest(w, w.each(lambda np, x: np.max(x, axis=k, keepdims=True), x), names)
        e = w.each(lambda np, x, m: np.exp(x - m), x, m)
        s = total(w, w.each(lambda np, e: np.sum(e, axis=k, keepdims=True), e), names, p[1], step.fault)
        if step.op == "softmax":
            return w.each(lambda np, e, s: e / s, e, s)
        return w.each(lambda np, m, s: m + np.log(s), m, s)
    if step.op == "broadcast":
        k, n, names = p
        part = n // math.prod(w.sizes[a] for a in names) if w.local else n
        y = w.each(lambda np, x: np.broadcast_to(np.expand_dims(x, axis=k), (*x.shape[:k], part, *x.shape[k:])), x)
        return w.vary(y, names) if w.local and names else y
    if step.op == "transpose":
        return w.each(lambda np, x: np.moveaxis(x, p, range(len(p))), x)
    if step.op == "slice":
        k, how = p
        at = {"flip": slice(None, None, -1), "rest": slice(1, None), "second": slice(None, None, 2), "one": -1}[how]
        return w.each(lambda np, x: x[(slice(None),) * k + (at,)], x)
    if step.op == "concat":
        return w.each(lambda np, x, y: np.concatenate([x, y], axis=p[0]), *xs)
    if step.op == "cumsum":
        return w.each(lambda np, x: np.cumsum(x, axis=p[0]), x)
    if step.op == "cut":
        return own_part(w, x, *p) if w.local else x
    if step.op == "gather":
        k, how = p
        name = t.spec[k][-1]
        if not w.local or step.fault:
            return x
        if how == "tiled":
            return w.all_gather(x, name, axis=k, tiled=True)
        if how == "untiled":
            return w.each(lambda np, x: np.reshape(x, merged(x.shape, k)), w.all_gather(x, name, axis=k))
        n = w.sizes[name]  # each replica contributes its part at its place
        y = w.each(lambda np, x, i: np.reshape(
            np.expand_dims(x, axis=k) * np.reshape(np.arange(n) == i, (n,) + (1,) * (len(x.shape) - k)),
            (*x.shape[:k], n * x.shape[k], *x.shape[k + 1:])), x, w.index(name))
        return w.psum(y, name)
    if step.op == "exchange":  # the last name of axis k becomes the last of axis j
        if not w.local:
            return x
        k, j = p
        name = t.spec[k][-1]
        # Element i along the new axis j goes to replica i, which finds what it gets in front of axis k.
        y = w.each(lambda np, x: np.reshape(x, split(x.shape, j, w.sizes[name])), x)
        y = w.all_to_all(y, name, j, k)
        return w.each(lambda np, y: np.reshape(y, merged(y.shape, k)), y)
    if step.op == "permute":
        k, at, pairs, counted = p
        name = t.spec[k][at]
        if w.local:
            return w.ppermute(x, name, pairs)
        counts = [dict(counted)[n] for n in t.spec[k]]
        shape = (*t.shape[:k], *counts, t.shape[k] // math.prod(counts), *t.shape[k + 1:])
        source = {b: a for a, b in pairs}
        order = [source.get(i, 0) for i in range(counts[at])]
        gets = [float(i in source) for i in range(counts[at])]
        return w.each(lambda np, x: np.reshape(
            np.take(np.reshape(x, shape), order, axis=k + at)
            * np.reshape(np.asarray(gets, dtype=x.dtype), (-1,) + (1,) * (len(shape) - k - at - 1)), t.shape), x)
    if step.op == "place":  # times a number of the replica
        k, at, count, repeat = p
        if w.local:
            return w.each(lambda np, x, i: x * (1 + i * 0.25), x, w.index(t.spec[k][at]))
        number = np.arange(t.shape[k]) // repeat % count * 0.25 + 1
        return w.each(lambda np, x: x * np.asarray(number.reshape((-1,) + (1,) * (len(t.shape) - k - 1)), x.dtype), x)
    if step.op == "constant":
        return w.each(lambda np, x: x + np.asarray(np.cos(np.arange(t.shape[-1])), dtype=x.dtype), x)
    if step.op == "extra":  # a psum that does not belong there: only as a fault
        return w.psum(x, p[0]) if w.local else x
    return run_held(w, step, env, weights)


def run_body(w: Any, body: Body, env: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The value of the last step."""
    env = list(env)
    for step in body.steps:
        env.append(run(w, step, env, weights))
    return env[-1]


#: A rule may not close over what is differentiated.
CLOSED = ("custom_jvp", "custom_vjp")


def run_held(w: Any, step: Step, env: List[Any], weights: Sequence[Any]) -> Any:
    """A step that holds a body, in a loop, a branch, a derivative or the like."""
    assert step.body is not None
    body, x, t, out = step.body, env[step.ins[0]], step.types[0], step.body.steps[-1].out
    env = [] if step.op in CLOSED else env
    (k, *p) = step.params or (None,)

    def f(x: Any) -> Any:
        return run_body(w, body, [*env, x], weights)

    def with_mean(x: Any) -> Any:
        return w.each(lambda np, x, m: x * 0.5 + np.tanh(m), x, mean_of(w, f(x), out))
    if step.op in ("jit", "checkpoint"):
        return getattr(pf, step.op)(f)(x) if w.traces else f(x)
    if step.op == "custom_jvp" and w.traces:
        g = pf.custom_jvp(f)
        g.defjvp(lambda primals, tangents: pf.jvp(f, primals, tangents))
        return g(x)
    if step.op == "custom_vjp" and w.traces:
        h = pf.custom_vjp(f)
        h.defvjp(lambda x: (f(x), x), lambda x, ct: pf.vjp(f, x)[1](ct))
        return h(x)
    if step.op in CLOSED:
        return f(x)
    if step.op == "jvp":
        y, dy = pf.jvp(f, (x,), (x * 0.5,))
        return y + dy
    if step.op == "linearize":
        y, push = pf.linearize(f, x)
        return y + push(x * 0.5) - push(pnp.cos(x))
    if step.op == "vjp":
        y, pull = pf.vjp(f, x)
        return pull(pnp.sin(y))[0]
    if step.op == "gradient":
        return pf.grad(lambda x: mean_of(w, pnp.sin(f(x)), out))(x)
    if step.op == "cond":
        halved = lambda x: f(w.each(lambda np, x: x * 0.5, x))  # noqa: E731  the other branch
        return pf.cond(w.pred > 0, f, halved, x) if w.traces else f(x) if w.pred > 0 else halved(x)
    if step.op == "fori":
        return pf.fori_loop(0, 2, lambda _, x: with_mean(x), x) if w.traces else with_mean(with_mean(x))
    if step.op == "while":
        if w.traces:
            return pf.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, with_mean(c[1])), (0, x), max_steps=3)[1]
        return with_mean(with_mean(x))
    if step.op == "nested":
        name, size, at = p
        if not w.local:
            return mean_of(w, f(x), out) if at == "mean" else f(x)
        if isinstance(w, Replicas):
            return run_nested(w, step, env, weights)
        cut = pf.P(*[None] * k, name)
        inner = Parts({**w.sizes, name: size})
        inner.pred = w.pred

        def result(x: Any) -> Any:
            y = run_body(inner, body, [*env, x], weights)
            return mean_of(inner, y, out) if at == "mean" else y
        return pf.shard(result, pf.Mesh(**{name: size}), (cut,),
                        pf.P() if at in ("mean", None) else pf.P(*[None] * at, name))(x)
    if step.op == "serialise":
        def part(x: Any) -> Any:
            return mean_of(w, f(x), out)
        if w.traces:
            return pf.batch_serialise(part, p[0], in_axes=(k,), reduce="sum")(x)
        n = t.shape[k] // p[0]
        return sum(part(w.each(lambda np, x, i=i: np.take(x, range(i * n, i * n + n), axis=k), x)) for i in range(p[0]))
    if step.op == "vmap":
        def lane(x: Any) -> Any:
            y = f(x)
            return y + pf.psum(pf.pvary(mean_of(w, y, out), p[0]), p[0]) if p[0] else y
        if w.traces:
            return pf.vmap(lane, k, axis_name=p[0])(x)
        rows = [f(w.each(lambda np, x, i=i: np.take(x, i, axis=k), x)) for i in range(t.shape[k])]
        add = sum(mean_of(w, y, out) for y in rows)
        return w.each(lambda np, a, *ys: np.stack([y + a if p[0] else y for y in ys]), add, *rows)
    assert step.op == "scan"

    def loop(c: Any, row: Any) -> Any:
        if p[0] == "sum":
            y = f(w.each(lambda np, row, c: row + c * 0.5, row, c))
            return w.each(lambda np, c, m: c * 0.5 + np.tanh(m), c, mean_of(w, y, out)), y
        c = w.each(lambda np, c, row: c * 0.5 + row, c, row)
        return c, f(c)
    if w.traces:
        start = np.float32(0) if p[0] == "sum" else pnp.zeros(pnp.moveaxis(x, k, 0).shape[1:], dtype=pnp.float32)
        return pf.scan(loop, start, pnp.moveaxis(x, k, 0), reverse=p[1])[1]
    c, rows = 0.0, []
    order = range(t.shape[k])
    for i in reversed(order) if p[1] else order:
        row = w.each(lambda np, x, i=i: np.take(x, i, axis=k), x)
        if not rows:
            c = w.each(lambda np, row: np.zeros(() if p[0] == "sum" else row.shape), row)
        c, y = loop(c, row)
        rows.insert(0 if p[1] else len(rows), y)
    return w.each(lambda np, *ys: np.stack(ys), *rows)


def run_nested(w: Replicas, step: Step, env: List[Any], weights: Sequence[Any]) -> Any:
    """A mesh in each replica: one axis more in front, along which what is not cut is the same."""
    assert step.body is not None
    k, name, size, at = step.params
    inner = Replicas({**w.sizes, name: size})
    inner.pred = w.pred
    n = len(w.names)

    def wide(x: Any) -> Any:
        return np.broadcast_to(np.expand_dims(x, n), (*x.shape[:n], size, *x.shape[n:]))
    x = env[step.ins[0]]
    parts = np.stack(np.split(x, size, n + k), n)
    y = run_body(inner, step.body, [*map(wide, env), parts], list(map(wide, weights)))
    if at == "mean":
        y = mean_of(inner, y, step.body.steps[-1].out)
    rows = [np.take(y, i, n) for i in range(size)]
    return rows[0] if at in ("mean", None) else np.concatenate(rows, n + at)


#: Steps that NumPy's worlds do not know.
DERIVATIVES = ("jvp", "vjp", "linearize", "gradient")


def execute(w: Any, program: Program, pred: Any, inputs: Sequence[Any]) -> List[Any]:
    """The results of a program in a world."""
    w.pred = pred
    n = len(program.leaves)
    env, weights = list(inputs[:n]), inputs[n:]
    for step in program.body.steps:
        env.append(run(w, step, env, weights))
    return [env[i] for i in program.outs]


def of_parts(program: Program) -> Callable[..., Any]:
    """What pf.shard takes."""
    return lambda pred, *inputs: execute(Parts(dict(program.mesh)), program, pred, inputs)


def of_wholes(program: Program) -> Callable[..., Any]:
    """The same on global arrays."""
    return lambda pred, *inputs: execute(Whole(pnp), program, pred, [pnp.asarray(x) for x in inputs])


def in_numpy(program: Program, pred: Any, *inputs: Any) -> List[Any]:
    return execute(Whole(np), program, pred, [np.asarray(x, np.float64) for x in inputs])


def of_replicas(program: Program, pred: Any, *inputs: Any) -> List[np.ndarray]:
    """The results on every replica, along axes of the mesh in front."""
    sizes = dict(program.mesh)
    parts = [cut_whole(np.asarray(x, np.float64), t.spec, sizes) for x, t in zip(inputs, program.inputs)]
    return execute(Replicas(sizes), program, pred, parts)


def own_slices(shape: Sequence[int], spec: Spec, place: Dict[str, int], sizes: Sizes) -> Tuple[slice, ...]:
    """Where the part of the replica at a place is in the whole."""
    out = []
    for n, names in zip(shape, spec):
        at, count = 0, 1
        for name in names:
            at, count = at * sizes[name] + place[name], count * sizes[name]
        out.append(slice(at * (n // count), (at + 1) * (n // count)))
    return tuple(out)


def cut_whole(x: np.ndarray, spec: Spec, sizes: Sizes) -> np.ndarray:
    """The parts of all replicas, along axes of the mesh in front."""
    rows = [x[own_slices(x.shape, spec, dict(zip(sizes, at)), sizes)] for at in np.ndindex(*sizes.values())]
    return np.stack(rows).reshape(*sizes.values(), *rows[0].shape)
