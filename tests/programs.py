"""Random programs: what hypothesis draws, how they run in popfn, and what error their roundings may cause.

A program is drawn together with its values: every step is evaluated in 64 bits as soon as it is chosen, and is taken
only if its results are of a moderate size and no operand lies at a kink or a jump of what it does (`SAFE`), so that
rounding cannot decide the outcome. Gradients are then smooth, and comparable with differences and with other systems.
`wild` programs know no such limits: their values may be anything, ties, infinities and NaN included.
"""
import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
from cases import P
from hypothesis import strategies as st
from references import Noise, evaluate, widened

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.aval import Aval
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.tracer import bind
from popfn.transforms.replay import inline

LARGEST = 50.0  # of any value
MARGIN = 0.03  # from a kink or jump
f32, f16, i32, bool_ = (np.dtype(d) for d in ("float32", "float16", "int32", "bool"))


# ---------------------------------------------------------------------------- programs
class Step(NamedTuple):
    """One call: of a primitive, of a function on Arrays, or of another program; operands are numbers of values."""

    function: Any
    operands: Tuple[int, ...]

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", None) or repr(self.function)
        return f"{name}({', '.join(f'v{i}' for i in self.operands)})"


class Program(NamedTuple):
    """Inputs `v0, v1, ...`, steps that each append their results to the values, and the values that are returned."""

    inputs: Tuple[np.ndarray, ...]
    steps: Tuple[Step, ...]
    outputs: Tuple[int, ...]

    def __repr__(self) -> str:
        lines = [f"\n  v{i} = np.{x!r}" for i, x in enumerate(self.inputs)]
        return "Program:" + "".join(lines) + "".join(f"\n  {s}" for s in self.steps) + f"\n  return {self.outputs}"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: Any) -> bool:
        return self is other

    def __call__(self, *args: Any) -> Tuple[Any, ...]:
        """Run on NumPy arrays, Arrays or tracers."""
        pool = [pnp.asarray(x) for x in args]
        for step in self.steps:
            pool += applied(step.function, [pool[i] for i in step.operands])
        return tuple(pool[i] for i in self.outputs)

    def loss(self, *args: Any) -> Any:
        """A scalar to which all float outputs contribute, each element with a weight of its own."""
        total: Any = 0.0
        for i, y in enumerate(self(*args)):
            if y.aval.is_float and y.size:
                weights = np.cos(np.arange(y.size) + i).astype(np.float32).reshape(y.shape)
                total = total + pnp.sum(pnp.astype(y, f32) * weights)
        return total

    @property
    def floats(self) -> Tuple[int, ...]:
        """The numbers of the float inputs."""
        return tuple(i for i, x in enumerate(self.inputs) if x.dtype.kind == "f")


def applied(function: Any, operands: Sequence[Any]) -> List[Any]:
    if isinstance(function, Program):
        return list(jitted(function)(*operands))
    out = bind(function, operands) if isinstance(function, pf.trace.primitive.Primitive) else function(*operands)
    return list(out) if isinstance(out, tuple) else [out]


@functools.lru_cache(maxsize=512)
def jitted(program: Program) -> Callable[..., Any]:
    """A program as a function of its own, traced once per signature."""
    return pf.jit(program)  # type: ignore[no-any-return]


def lowered(jaxpr: Jaxpr) -> Callable[..., Sequence[np.ndarray]]:
    """A jaxpr as a program on the host: lowered, compiled, and run on NumPy arrays."""
    def f(*xs: Any) -> Tuple[Any, ...]:
        return tuple(inline(jaxpr, xs))
    program = pf.lower(f, *(pf.spec(a.shape, a.dtype) for a in jaxpr.in_avals))

    def run(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        with pf.Session(program, device="host") as session:
            return [np.asarray(y) for y in session.run(*arrays)]
    return run


# ---------------------------------------------------------------------------- what rounding may do
def tolerance(jaxpr: Jaxpr, arrays: Sequence[np.ndarray]) -> Tuple[List[np.ndarray], List[Any]]:
    """The exact outputs, and a bound for the error of a correct evaluation in the dtypes of the jaxpr.

    The bound comes from evaluations in 64 bits with a relative error of half an ulp of random sign after every
    equation. The factor and the last term make up for few samples, and for equations that round more than once.
    """
    wide = [widened(x) for x in arrays]
    exact = evaluate(jaxpr, wide)
    samples = [evaluate(jaxpr, wide, Noise(np.random.default_rng(seed))) for seed in range(6)]
    bounds = []
    for i, (x, aval) in enumerate(zip(exact, jaxpr.out_avals)):
        if not aval.is_float or not x.size:
            bounds.append(0.0)
            continue
        spread = np.max([np.abs(s[i] - x) for s in samples], axis=0)
        ulp = 2.0 ** -10 if aval.dtype == f16 else 2.0 ** -23
        least = 2.0 ** -24 if aval.dtype == f16 else 1e-30  # what may underflow
        bounds.append(8 * spread + 4 * spread.max() + 4 * ulp * np.abs(x).max() + least)
    return exact, bounds


# ---------------------------------------------------------------------------- where rounding decides
def apart(x: Any, y: Any = 0.0) -> bool:
    return bool(np.all(np.abs(np.subtract(x, y)) > MARGIN))


def off_integers(x: np.ndarray) -> bool:
    return x.dtype.kind != "f" or apart(x, np.round(x))


def one_winner(axes: Sequence[int], x: np.ndarray) -> bool:
    """Whether the largest and the smallest of every group are well apart from the next ones."""
    if x.dtype.kind != "f" or not x.size or not axes:
        return True
    rows = np.sort(np.moveaxis(x, axes, range(len(axes))).reshape(int(np.prod([x.shape[a] for a in axes])), -1), axis=0)
    return len(rows) == 1 or apart(rows[-1], rows[-2]) and apart(rows[0], rows[1])


def compared(p: Any, x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype.kind != "f" or apart(x, y)


def divided(p: Any, x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.all(y != 0)) if y.dtype.kind != "f" else bool(np.all(np.abs(y) > 0.2)) and off_integers(x / y)


SAFE: Dict[str, Callable[..., bool]] = dict(
    dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"), compared),
    abs=lambda p, x: x.dtype.kind != "f" or apart(x), sign=lambda p, x: x.dtype.kind != "f" or apart(x),
    relu=lambda p, x: apart(x), floor=lambda p, x: off_integers(x), ceil=lambda p, x: off_integers(x),
    log=lambda p, x: bool(np.all(x > 0.1)), sqrt=lambda p, x: bool(np.all(x > 0.1)),
    rsqrt=lambda p, x: bool(np.all(x > 0.1)), log1p=lambda p, x: bool(np.all(x > -0.8)),
    div=lambda p, x, y: bool(np.all(np.abs(y) > 0.2)), pow=lambda p, x, y: bool(np.all(x > 0.2)),
    integer_pow=lambda p, x: p.exponent >= 0 or bool(np.all(np.abs(x) > 0.3)),
    floor_divide=divided, remainder=divided,
    max=lambda p, x: one_winner(p.axes, x), min=lambda p, x: one_winner(p.axes, x),
    argmax=lambda p, x: one_winner((p.axis,), x),
    convert=lambda p, x: p.dtype.kind == "f" or (apart(x) if p.dtype == bool_ else off_integers(x)))


class Unsafe(Exception):
    """A step whose result rounding could decide."""


def guard(primitive: Any, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    safe = SAFE.get(primitive.name)
    if safe is not None and not safe(primitive, *operands):
        raise Unsafe(primitive.name)
    for y in results:
        if not np.all(np.abs(y.astype(np.float64)) <= LARGEST):
            raise Unsafe(f"size of {primitive.name}")


# ---------------------------------------------------------------------------- drawing
class Pool:
    """The values of a program in the making, with their types."""

    def __init__(self, draw: Any, arrays: Sequence[Any], avals: Sequence[Aval], wild: bool) -> None:
        self.draw = draw
        self.wide = list(arrays)
        self.avals = list(avals)
        self.inputs = len(self.avals)
        self.steps: List[Step] = []
        self.used: Set[int] = set()
        self.wild = wild

    def pick(self, fits: Callable[[Aval], bool]) -> int:
        """One of the last values that fit, or one that is not used yet. Raises Unsafe if none fits."""
        some = [i for i in reversed(range(len(self.avals))) if fits(self.avals[i])]
        if not some:
            raise Unsafe("no operand")
        unused = [i for i in some if i not in self.used]
        return int(self.draw(st.sampled_from(unused[-3:] + some[:4])))

    def add(self, function: Any, *operands: int) -> None:
        """Append a step and its results. Raises Unsafe and leaves the pool as it was."""
        jaxpr = pf.make_jaxpr(lambda *xs: tuple(applied(function, xs)))(*(self.avals[i] for i in operands))
        wide = [self.wide[i] for i in operands]
        if self.wild:
            results = [np.zeros(a.shape) for a in jaxpr.out_avals]
        else:
            results = evaluate(jaxpr, wide, watch=guard)
        self.steps.append(Step(function, operands))
        self.used.update(operands)
        self.wide += results
        self.avals += jaxpr.out_avals

    def program(self, inputs: Sequence[np.ndarray], outputs: Optional[int] = None) -> Program:
        """The program so far; it returns its last values, or all that no step uses."""
        made = range(self.inputs, len(self.avals))
        kept = list(made)[-outputs:] if outputs else [i for i in made if i not in self.used]
        return Program(tuple(inputs), tuple(self.steps), tuple(kept))


def is_float(a: Aval) -> bool:
    return a.dtype in (f32, f16)


def is_number(a: Aval) -> bool:
    return a.dtype != bool_


def filled(a: Aval) -> bool:
    return a.size > 0


def small(a: Aval) -> bool:
    return a.ndim <= 2 and a.size <= 16


def broadcasts(a: Aval, b: Aval) -> bool:
    try:
        return len(np.broadcast_shapes(a.shape, b.shape)) <= 3
    except ValueError:
        return False


def axes_of(pool: Pool, a: Aval, least: int = 0) -> Tuple[int, ...]:
    return tuple(sorted(pool.draw(st.sets(st.integers(0, a.ndim - 1), min_size=least)))) if a.ndim else ()


# ---------------------------------------------------------------------------- the kinds of steps
FLOAT_UNARY = [P.Tanh(), P.Sin(), P.Cos(), P.Erf(), P.Gelu(), P.Relu(), P.Exp(), P.Expm1(), P.Log(), P.Log1p(),
               P.Sqrt(), P.Rsqrt(), P.Floor(), P.Ceil()]
NUMBER_UNARY = [P.Abs(), P.Sign(), P.Neg(), P.StopGradient(), *map(P.IntegerPow, (0, 1, 2, 3))]
NUMBER_BINARY = [P.Add(), P.Sub(), P.Mul(), P.Maximum(), P.Minimum(), P.FloorDivide(), P.Remainder()]
FLOAT_BINARY = [P.Div(), P.Pow(), P.SafeMul()]
COMPARISONS = [P.Eq(), P.Ne(), P.Lt(), P.Le(), P.Gt(), P.Ge()]


def unary(pool: Pool) -> None:
    f = pool.draw(st.sampled_from([*FLOAT_UNARY, *NUMBER_UNARY, P.IntegerPow(-2), P.Not()]))
    pool.add(f, pool.pick((lambda a: a.dtype == bool_) if f.name == "not" else
                          is_number if f in NUMBER_UNARY else is_float))


def binary(pool: Pool) -> None:
    f = pool.draw(st.sampled_from([*NUMBER_BINARY, *FLOAT_BINARY, *COMPARISONS, P.And(), P.Or()]))
    logic = f.name in ("and", "or")
    x = pool.pick(lambda a: (a.dtype == bool_) == logic and (f not in FLOAT_BINARY or is_float(a)))
    a = pool.avals[x]
    pool.add(f, x, pool.pick(lambda b: b.dtype == a.dtype and broadcasts(a, b)))


def promoting(pool: Pool) -> None:
    f = pool.draw(st.sampled_from([pnp.add, pnp.multiply, pnp.subtract, pnp.maximum, pnp.less]))
    x = pool.pick(is_number)
    pool.add(f, x, pool.pick(lambda b: is_number(b) and broadcasts(pool.avals[x], b)))


def select(pool: Pool) -> None:
    c = pool.pick(lambda a: a.dtype == bool_)
    x = pool.pick(lambda a: broadcasts(a, pool.avals[c]))
    both = Aval(np.broadcast_shapes(pool.avals[c].shape, pool.avals[x].shape))
    pool.add(P.Select(), c, x, pool.pick(lambda b: b.dtype == pool.avals[x].dtype and broadcasts(b, both)))


def convert(pool: Pool) -> None:
    pool.add(P.Convert(pool.draw(st.sampled_from([f32, f16, i32, bool_]))), pool.pick(lambda a: True))


def reshape(pool: Pool) -> None:
    x = pool.pick(lambda a: True)
    a = pool.avals[x]
    new = pool.draw(st.sampled_from([(a.size,), a.shape[::-1], (1, *a.shape)[:3] if a.ndim < 3 else (a.size,),
                                     (a.shape[0], a.size // a.shape[0]) if a.ndim and a.shape[0] else (a.size,)]))
    pool.add(P.Reshape(new), x)


def move(pool: Pool) -> None:
    x = pool.pick(lambda a: a.ndim > 0)
    a = pool.avals[x]
    kind = pool.draw(st.sampled_from(["transpose", "reverse", "slice", "squeeze", "broadcast"]))
    if kind == "transpose":
        f = P.Transpose(tuple(pool.draw(st.permutations(range(a.ndim)))))
    elif kind == "reverse":
        f = P.Reverse(axes_of(pool, a, 1))
    elif kind == "squeeze":
        f = P.Squeeze(tuple(i for i in range(a.ndim) if a.shape[i] == 1))
    elif kind == "broadcast":
        shape = tuple(pool.draw(st.integers(1, 3)) if n == 1 else n for n in a.shape)
        f = P.Broadcast((2, *shape) if a.ndim < 3 and pool.draw(st.booleans()) else shape)
    else:
        bounds = [sorted(pool.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in a.shape]
        bounds = [(lo, hi) if hi > lo else (0, n) for (lo, hi), n in zip(bounds, a.shape)]
        steps = tuple(pool.draw(st.integers(1, 3)) for _ in a.shape)
        f = P.Slice(tuple(lo for lo, _ in bounds), tuple(hi for _, hi in bounds), steps)
    pool.add(f, x)


def join(pool: Pool) -> None:
    x = pool.pick(lambda a: 0 < a.ndim and a.size <= 16)
    a = pool.avals[x]
    axis = pool.draw(st.integers(0, a.ndim - 1))
    rest = a.shape[:axis] + a.shape[axis + 1:]
    more = [pool.pick(lambda b: b.dtype == a.dtype and b.ndim == a.ndim
                      and b.shape[:axis] + b.shape[axis + 1:] == rest and b.size <= 16)
            for _ in range(pool.draw(st.integers(1, 2)))]
    pool.add(P.Concat(axis), x, *more)


def pad(pool: Pool) -> None:
    x = pool.pick(lambda a: small(a) and is_number(a))
    a = pool.avals[x]
    value = pool.pick(lambda b: b.ndim == 0 and b.dtype == a.dtype)
    low, high, gap = (tuple(pool.draw(st.integers(least, 2)) for _ in a.shape) for least in (-1, -1, 0))
    if any(lo + n + hi + max(n - 1, 0) * g < 0 for lo, n, hi, g in zip(low, a.shape, high, gap)):
        raise Unsafe("pad")
    pool.add(P.Pad(low, high, gap), x, value)


def reduce_(pool: Pool) -> None:
    f = pool.draw(st.sampled_from([P.Sum, P.Sum, P.Max, P.Min, P.Prod]))
    x = pool.pick(lambda a: is_number(a) and a.ndim > 0 and (filled(a) or f in (P.Sum, P.Prod)))
    pool.add(f(axes_of(pool, pool.avals[x], 1)), x)


def along(pool: Pool) -> None:
    f = pool.draw(st.sampled_from([P.Argmax, P.Softmax]))
    x = pool.pick(lambda a: a.ndim > 0 and filled(a) and (is_float(a) if f is P.Softmax else is_number(a)))
    pool.add(f(pool.draw(st.integers(0, pool.avals[x].ndim - 1))), x)


def dot(pool: Pool) -> None:
    x = pool.pick(lambda a: is_number(a) and a.ndim > 0)
    a = pool.avals[x]
    y = pool.pick(lambda b: b.dtype == a.dtype and bool(set(a.shape) & set(b.shape)))
    b = pool.avals[y]
    pairs = [(i, j) for i, n in enumerate(a.shape) for j, m in enumerate(b.shape) if n == m]
    chosen: List[Tuple[int, int]] = []
    for i, j in pool.draw(st.permutations(pairs)):
        if all(i != k and j != m for k, m in chosen) and len(chosen) < 2:
            chosen.append((i, j))
    batch = chosen[1:] if pool.draw(st.booleans()) else []
    contract = chosen[:1] if batch else chosen
    if a.ndim + b.ndim - 2 * len(contract) - len(batch) > 3:
        raise Unsafe("rank")
    pool.add(P.DotGeneral(*(tuple(p[side] for p in pairs) for pairs in (contract, batch) for side in (0, 1))), x, y)


def index(pool: Pool) -> None:
    x = pool.pick(lambda a: 0 < a.ndim < 3 and filled(a))
    i = pool.pick(lambda a: a.dtype == i32 and a.ndim <= 1 and a.size <= 4)
    pool.add(P.Take(pool.draw(st.integers(0, pool.avals[x].ndim - 1))), x, i)


def add_back(pool: Pool) -> None:
    i = pool.pick(lambda a: a.dtype == i32 and 0 < a.ndim < 2)
    n, = pool.avals[i].shape
    x = pool.pick(lambda a: is_number(a) and n in a.shape)
    pool.add(P.TakeTranspose(pool.avals[x].shape.index(n), pool.draw(st.integers(1, 4))), x, i)


def iota(pool: Pool) -> None:
    shape = tuple(pool.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    pool.add(P.Iota(pool.draw(st.sampled_from([i32, f32])), shape, pool.draw(st.integers(0, len(shape) - 1))))


def centred(x: Any) -> Any:
    return x - pnp.mean(x, axis=-1, keepdims=True)


def normalized(x: Any) -> Any:
    return (x - x.mean()) / (x.std() + 1)


def two_branches(x: Any) -> Any:
    return pnp.where(x > 0.3, x * 2, -x)


def outer(x: Any) -> Any:
    return pnp.reshape(x, -1)[:3, None] @ pnp.reshape(x, -1)[None, :3]


def softplus(x: Any) -> Any:
    return pnp.log1p(pnp.exp(x)) / 2


FUNCTIONS = [centred, normalized, two_branches, outer, softplus, pf.nn.log_softmax, pf.nn.logsumexp, pf.nn.silu,
             pnp.square, *map(eval, [
                 "lambda x: 2 - x", "lambda x: x / 3 + 1", "lambda x: 1 / (x * x + 1)", "lambda x: 0.5 ** x",
                 "lambda x: x[..., ::-1]", "lambda x: x[None, ..., 0]", "lambda x: x.T", "lambda x: pnp.clip(x, -1, 1)",
                 "lambda x: pnp.stack([x, -x]) if x.ndim < 3 else x", "lambda x: x[np.array([0, -1])]",
                 "lambda x: x.max(-1, keepdims=True) * 0.7", "lambda x: pnp.var(x, axis=0) + 1",
             ], [dict(pnp=pnp, np=np)] * 12)]


def function(pool: Pool) -> None:
    pool.add(pool.draw(st.sampled_from(FUNCTIONS)), pool.pick(lambda a: is_float(a) and a.ndim > 0 and filled(a)))


def nested(pool: Pool) -> None:
    """A program of its own, called with some of the values, and once more with others of the same types."""
    operands = [pool.pick(lambda a: True) for _ in range(pool.draw(st.integers(1, 3)))]
    avals = [pool.avals[i] for i in operands]
    inner = Pool(pool.draw, [pool.wide[i] for i in operands], avals, pool.wild)
    extend(inner, pool.draw(st.integers(2, 5)), KINDS)
    if any(a.weak for a in avals):
        raise Unsafe("a weak argument")
    f = inner.program([np.zeros(a.shape, a.dtype) for a in avals], pool.draw(st.integers(1, 2)))
    pool.add(f, *operands)
    if pool.draw(st.booleans()):
        pool.add(f, *(pool.pick(lambda b, a=a: b is a) for a in avals))


KINDS: List[Callable[[Pool], None]] = [
    unary, unary, unary, binary, binary, binary, promoting, select, convert, reshape, move, move, join, pad, reduce_,
    along, dot, dot, index, add_back, iota, function, function, function]
ALL_KINDS = [*KINDS, nested]


def extend(pool: Pool, count: int, kinds: Sequence[Callable[[Pool], None]]) -> None:
    """Append steps; where a choice is unsafe three times, tanh of the last float."""
    for _ in range(count):
        for _ in range(3):
            try:
                pool.draw(st.sampled_from(kinds))(pool)
                break
            except Unsafe:
                continue
        else:
            floats = [i for i, a in enumerate(pool.avals) if is_float(a)]
            pool.add(P.Tanh(), floats[-1]) if floats else iota(pool)


SPECIAL = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 3.0, -2.5]


@st.composite
def programs(draw: Any, least: int = 5, most: int = 40, wild: bool = False, jit: bool = True) -> Program:
    """A program of about `least` to `most` equations with its inputs: a few float32 ones, and up to one of each other
    dtype; of rank 0 to 3, of sizes 1 to 4, now and then 0."""
    size = st.integers(1, 4) if draw(st.integers(0, 9)) else st.integers(0, 4)
    shapes = st.lists(size, max_size=3).filter(lambda s: np.prod(s) <= 24)
    dtypes = [f32] * draw(st.integers(1, 3)) + [d for d in (f16, i32, bool_) if draw(st.booleans())]
    random = np.random.RandomState(draw(st.integers(0, 999)))
    inputs = []
    for d in dtypes:
        shape = tuple(draw(shapes))
        values = random.choice(SPECIAL, shape) if wild and d.kind == "f" else random.uniform(-2, 2, shape)
        if d == i32:
            values = random.randint(-4, 5, shape)
        inputs.append(np.asarray(values > 0 if d == bool_ else values).astype(d))
    pool = Pool(draw, [widened(x) for x in inputs], [Aval(x.shape, x.dtype) for x in inputs], wild)
    extend(pool, draw(st.integers(least, most)), ALL_KINDS if jit else KINDS)
    return pool.program(inputs)
