"""Random programs of `shard_worlds`."""
import math
from random import Random
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from hypothesis import strategies as st
from shard_worlds import BINARY, CLOSED, HOW, UNARY, Body, Program, Sizes, Spec, Step, Ty

MESHES = [(("dp", 2),), (("dp", 2), ("tp", 2)), (("dp", 2), ("tp", 4)), (("dp", 2), ("pp", 2), ("tp", 2)),
          (("tp", 3), ("dp", 1)), (("pp", 3), ("dp", 2))]
SMOOTH = (*UNARY, *BINARY)
MOVES = ("broadcast", "transpose", "slice", "concat", "cumsum", "cut", "gather", "exchange", "permute", "place",
         "constant")
SUMS = ("matmul", "contract", "sum", "mean", "max", "softmax", "logsumexp")
HELD = ("jit", "checkpoint", "custom_jvp", "custom_vjp", "jvp", "linearize", "vjp", "gradient", "cond", "fori", "while",
        "nested", "serialise", "vmap", "scan")
LOOPS = ("nested", "nested", "serialise", "vmap", "scan")
MOST = 200  # elements of a value


def shuffled(rnd: Random, some: Sequence[Any]) -> List[Any]:
    return rnd.sample(list(some), len(some))


class Scope(NamedTuple):
    """Where a step is drawn: `outer` are the axes that the program's own mesh has, `closed` forbids weights,
    `forward` rules that only go backwards."""

    sizes: Sizes
    outer: Sizes
    weights: List[Ty]
    forward: bool = False
    closed: bool = False
    depth: int = 0


def spec_of(rnd: Random, ndim: int, names: Sequence[str]) -> Spec:
    """Some of the names, each on some axis."""
    spec: List[Tuple[str, ...]] = [()] * ndim
    for name in shuffled(rnd, sorted(names)) if ndim else ():
        k = rnd.randint(-1, ndim - 1)
        if k >= 0:
            spec[k] += (name,)
    return tuple(spec)


def leaf(rnd: Random, sizes: Sizes) -> Ty:
    spec = spec_of(rnd, rnd.choice([0, 1, 2, 2, 3]), list(sizes))
    parts = [rnd.choice([1, 2, 3]) for _ in spec]
    return Ty(tuple([n * math.prod(sizes[a] for a in names) for n, names in zip(parts, spec)]), spec, True)


def sizes_fit(t: Ty) -> bool:
    names = t.names()
    return len(set(names)) == len(names) and math.prod(t.shape) <= MOST and len(t.shape) <= 4


def together(a: Ty, b: Ty) -> Optional[Ty]:
    """The type of an elementwise result, if the parts meet as the wholes do."""
    n = max(len(a.shape), len(b.shape))
    shape, spec = [], []
    for k in range(-n, 0):
        x, y = [(t.shape[k], t.spec[k]) if -k <= len(t.shape) else (1, ()) for t in (a, b)]
        if x != y and x != (1, ()) and y != (1, ()):
            return None
        size, names = y if x == (1, ()) else x
        shape.append(size)
        spec.append(names)
    out = Ty(tuple(shape), tuple(spec))
    return out if sizes_fit(out) else None


def draw_step(rnd: Random, op: str, env: Sequence[Ty], scope: Scope) -> Optional[Step]:
    """A step of a kind, if one fits what there is."""
    def pick(options: Sequence[Any]) -> Any:
        return rnd.choice(options) if options else None
    i = len(env) - 1 if rnd.randint(0, 2) else pick(range(len(env)))
    t = env[i]
    axes = range(len(t.shape))

    def step(out: Optional[Ty], *params: Any, more: Tuple[int, ...] = ()) -> Optional[Step]:
        ins = (i, *more)
        return Step(op, ins, tuple([env[j] for j in ins]), out, params) if out is not None and sizes_fit(out) else None
    if op in UNARY:
        return step(Ty(t.shape, t.spec))
    if op in BINARY:
        pairs = [j for j, u in enumerate(env) if together(t, u) is not None]
        j = pick(pairs)
        return None if j is None else step(together(t, env[j]), more=(j,))
    if op == "matmul":
        k = pick(axes)
        own = [n for n in scope.sizes if n not in scope.outer]
        if k is None or scope.closed or set(own) & set(t.spec[k]):
            return None
        free = [n for n in scope.outer if n not in t.names()]
        right = spec_of(rnd, 1, free)
        w = Ty((t.shape[k], rnd.choice([1, 2]) * math.prod(scope.sizes[n] for n in right[0])),
               (t.spec[k], *right))
        out, how, j = Ty((*t.without(k).shape, w.shape[1]), (*t.without(k).spec, *right)), pick(HOW), 0
        if rnd.random() < 0.5:
            count = math.prod(scope.sizes[n] for n in t.spec[k])
            cuts = [j for j in range(len(out.shape))
                    if out.shape[j] % (count * math.prod(scope.sizes[n] for n in out.spec[j])) == 0]
            if cuts:
                j, how = pick(cuts), "scatter"
                out = Ty(out.shape, (*out.spec[:j], out.spec[j] + t.spec[k], *out.spec[j + 1:]))
        if not sizes_fit(out) or not sizes_fit(w):
            return None
        scope.weights.append(w)
        return step(out, (k, 0), how, len(scope.weights) - 1, j)
    if op == "contract":
        pairs = [(j, k, m) for j, u in enumerate(env) for k in axes for m in range(len(u.shape))
                 if (t.shape[k], t.spec[k]) == (u.shape[m], u.spec[m])
                 and sizes_fit(Ty(t.without(k).shape + u.without(m).shape, t.without(k).spec + u.without(m).spec))]
        if not pairs:
            return None
        j, k, m = pick(pairs)
        a, b = t.without(k), env[j].without(m)
        return step(Ty(a.shape + b.shape, a.spec + b.spec), (k, m), pick(HOW), more=(j,))
    if op in ("sum", "mean", "max"):
        if op == "max" and not t.distinct:
            return None
        over = tuple([k for k in axes if rnd.random() < 0.5])
        keep = rnd.random() < 0.5
        kept = [(1, ()) if k in over else (t.shape[k], t.spec[k]) for k in axes if keep or k not in over]
        return step(Ty(tuple([n for n, _ in kept]), tuple([s for _, s in kept])), over, keep, pick(HOW))
    if op in ("softmax", "logsumexp"):
        k = pick(axes)
        if k is None:
            return None
        one = Ty((*t.shape[:k], 1, *t.shape[k + 1:]), (*t.spec[:k], (), *t.spec[k + 1:]))
        return step(Ty(t.shape, t.spec) if op == "softmax" else one, k, pick(HOW))
    if op == "broadcast":
        k = rnd.randint(0, len(t.shape))
        names = spec_of(rnd, 1, [n for n in scope.sizes if n not in t.names()])[0] if rnd.random() < 0.5 else ()
        n = rnd.choice([1, 2, 3]) * math.prod(scope.sizes[a] for a in names)
        return step(Ty((*t.shape[:k], n, *t.shape[k:]), (*t.spec[:k], names, *t.spec[k:])), k, n, names)
    if op == "transpose":
        order = tuple(shuffled(rnd, axes))
        return step(Ty(tuple([t.shape[k] for k in order]), tuple([t.spec[k] for k in order]), t.distinct), *order)
    if op in ("slice", "cumsum"):
        k = pick(t.uncut())
        if k is None:
            return None
        if op == "cumsum":
            return step(Ty(t.shape, t.spec), k)
        how = pick(["flip", "second", "one"] + ["rest"] * (t.shape[k] > 1))
        if how == "one":
            return step(t.without(k)._replace(distinct=t.distinct), k, how)
        n = {"flip": t.shape[k], "rest": t.shape[k] - 1, "second": (t.shape[k] + 1) // 2}[how]
        return step(Ty((*t.shape[:k], n, *t.shape[k + 1:]), t.spec, t.distinct), k, how)
    if op == "concat":
        pairs = [(j, k) for j, u in enumerate(env) for k in t.uncut()
                 if u.spec == t.spec and u.without(k).shape == t.without(k).shape]
        if not pairs:
            return None
        j, k = pick(pairs)
        return step(Ty((*t.shape[:k], t.shape[k] + env[j].shape[k], *t.shape[k + 1:]), t.spec), k, more=(j,))
    if op == "cut":
        cuts = [(k, n) for k in axes for n in scope.sizes if n not in t.names()
                and t.shape[k] % math.prod(scope.sizes[a] for a in (*t.spec[k], n)) == 0]
        if not cuts:
            return None
        k, name = pick(cuts)
        return step(Ty(t.shape, (*t.spec[:k], t.spec[k] + (name,), *t.spec[k + 1:]), t.distinct), k, name)
    cut = [k for k in axes if t.spec[k]]
    if op in ("gather", "permute", "place", "exchange"):
        k = pick(cut)
        if k is None:
            return None
        at = rnd.randint(0, len(t.spec[k]) - 1)
        counts = [scope.sizes[n] for n in t.spec[k]]
    if op == "gather":
        return step(Ty(t.shape, (*t.spec[:k], t.spec[k][:-1], *t.spec[k + 1:]), t.distinct), k,
                    pick(["tiled", "untiled", "sum"]))
    if op == "permute":
        to = shuffled(rnd, range(counts[at]))
        pairs = tuple([(a, b) for a, b in enumerate(to) if rnd.randint(0, 3)])
        return step(Ty(t.shape, t.spec), k, at, pairs, tuple([(n, scope.sizes[n]) for n in t.spec[k]]))
    if op == "place":
        return step(Ty(t.shape, t.spec), k, at, counts[at], t.shape[k] // math.prod(counts[:at + 1]))
    if op == "exchange":
        name = t.spec[k][-1]
        others = [j for j in axes if j != k
                  and t.shape[j] % math.prod(scope.sizes[a] for a in (*t.spec[j], name)) == 0]
        j = pick(others)
        if j is None:
            return None
        spec = list(t.spec)
        spec[k], spec[j] = spec[k][:-1], spec[j] + (name,)
        return step(Ty(t.shape, tuple(spec), t.distinct), k, j)
    if op == "constant":
        return step(Ty(t.shape, t.spec)) if axes and not t.spec[-1] else None
    return draw_held(rnd, op, i, t, env, scope)


def draw_held(rnd: Random, op: str, i: int, t: Ty, env: Sequence[Ty], scope: Scope) -> Optional[Step]:
    """A step with a body."""
    k = rnd.choice(t.uncut()) if t.uncut() else None
    if op in ("nested", "serialise", "vmap", "scan") and k is None:
        return None
    own, params = t, ()
    inner = scope._replace(depth=scope.depth + 1, closed=scope.closed or op in CLOSED,
                           forward=scope.forward or op in ("jvp", "linearize", "custom_jvp"))
    if op == "cond" and scope.closed or op == "custom_vjp" and scope.forward:
        return None
    if op == "nested":
        name = f"z{len(scope.sizes)}"
        if t.shape[k] % 2:
            return None
        own = Ty(t.shape, (*t.spec[:k], (name,), *t.spec[k + 1:]), t.distinct)
        inner = inner._replace(sizes={**scope.sizes, name: 2})
    elif op == "serialise":
        steps = rnd.choice([n for n in range(1, t.shape[k] + 1) if t.shape[k] % n == 0])
        own, params = Ty((*t.shape[:k], t.shape[k] // steps, *t.shape[k + 1:]), t.spec, t.distinct), (k, steps)
    elif op == "vmap":
        own, params = t.without(k), (k, rnd.choice([None, f"lane{scope.depth}"]))
    elif op == "scan":
        own, params = t.without(k), (k, rnd.choice(["sum", "row"]), rnd.random() < 0.5)
    body = draw_body(rnd, () if op in CLOSED else env, own, inner)
    out = body.steps[-1].out
    if op == "nested":
        places = [j for j, names in enumerate(out.spec) if name in names]
        at: Any = None if not places else places[0] if out.spec[places[0]][-1] == name else "mean"
        params = (k, name, 2, at)
        if at == "mean":
            out = Ty((), ())
        elif at is not None:
            out = Ty(out.shape, (*out.spec[:at], out.spec[at][:-1], *out.spec[at + 1:]))
    elif op == "serialise":
        out = Ty((), ())
    elif op in ("vmap", "scan"):
        out = Ty((t.shape[k], *out.shape), ((), *out.spec))
    elif op in ("fori", "while", "vjp", "gradient"):
        out = t
    out = out._replace(distinct=False)
    return Step(op, (i,), (t,), out, params, body) if sizes_fit(out) else None


def draw_body(rnd: Random, env: Sequence[Ty], param: Ty, scope: Scope) -> Body:
    env = [*env, param]
    steps = []
    for _ in range(rnd.randint(1, 3)):
        steps.append(some_step(rnd, env, scope))
        env.append(steps[-1].out)
    return Body(tuple(steps), param)


def some_step(rnd: Random, env: Sequence[Ty], scope: Scope) -> Step:
    for _ in range(6):
        kinds = [SMOOTH, MOVES, SUMS, SUMS, MOVES] + [HELD, HELD, LOOPS] * (scope.depth < 2)
        weights = len(scope.weights)
        step = draw_step(rnd, rnd.choice(rnd.choice(kinds)), env, scope)
        if step is not None:
            return step
        del scope.weights[weights:]
    last = env[-1]
    return Step("sin", (len(env) - 1,), (last,), Ty(last.shape, last.spec))


def program_of(seed: int, steps: int, forward: bool = False) -> Program:
    """A program of so many steps, whose results depend on many of them."""
    rnd = Random(seed)
    mesh = rnd.choice(MESHES)
    sizes = dict(mesh)
    leaves = [leaf(rnd, sizes) for _ in range(rnd.randint(1, 3))]
    env = list(leaves)
    scope = Scope(sizes, sizes, [], forward)
    body = []
    for _ in range(steps):
        body.append(some_step(rnd, env, scope))
        env.append(body[-1].out)
    outs = sorted({len(env) - 1, *[rnd.randrange(len(env)) for _ in range(rnd.randint(0, 2))]})
    return Program(mesh, tuple(leaves), tuple(scope.weights), Body(tuple(body)), tuple(outs), seed % 1000)


def programs(forward: bool = False) -> st.SearchStrategy[Program]:
    """Programs; with `forward`, such as forward mode can use."""
    return st.builds(program_of, st.integers(0, 2 ** 32 - 1), st.integers(1, 8), st.just(forward))
