"""What each primitive means, written once more: on 64-bit NumPy arrays, straight from its definition.

The tests compare popfn with these functions, and differentiate them by central differences. They share no code with the
primitives' own rules. Operands are float64, int64 or bool; `reference(primitive, *arrays)` gives the wide result.
"""
import itertools
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import ml_dtypes
import numpy as np
from scipy import special

from popfn.trace.jaxpr import Jaxpr, Literal
from popfn.trace.parse import primitives
from popfn.transforms import call

assert call
NAMED = primitives()
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fnuz), np.dtype(ml_dtypes.float8_e5m2fnuz))


def widened(x: np.ndarray) -> np.ndarray:
    """The same values with 64 bits."""
    x = np.asarray(x)
    return x.astype(np.float32).astype(np.float64) if x.dtype in FLOAT8 else x.astype(
        {"b": np.bool_, "i": np.int64, "u": np.int64}.get(x.dtype.kind, np.float64))


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Wide values in a dtype: floats to the nearest, integers modulo its range."""
    with np.errstate(all="ignore"):
        return nearest_float8(x, dtype) if dtype in FLOAT8 else np.asarray(x).astype(dtype)


def nearest_float8(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The nearest of all 256 codes, ties to the even code; NaN where that is beyond the largest finite value."""
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32).astype(np.float64)
    finite = np.isfinite(values) & (codes < 128)
    codes, values = codes[finite], values[finite]
    out = np.empty(np.shape(x), np.uint8)
    for at, v in np.ndenumerate(x):
        distance = np.abs(values - abs(v))
        near = np.flatnonzero(distance == distance.min()) if np.isfinite(v) else np.array([], int)
        step = values[-1] - values[-2]
        if not near.size or abs(v) >= values[-1] + step / 2:
            out[at] = 0x80  # the only NaN
        else:
            code = min(near, key=lambda i: codes[i] % 2)
            out[at] = codes[code] | (0x80 if v < 0 and codes[code] else 0)
    return out.view(dtype)


def assert_within(got: np.ndarray, want: np.ndarray, bound: Any, what: str = "") -> None:
    """NaN and infinities in the same places, and all else within `bound`, which broadcasts."""
    got, want = widened(got).astype(np.float64), widened(want).astype(np.float64)
    assert got.shape == want.shape, f"{what} has shape {got.shape}, expected {want.shape}"
    with np.errstate(all="ignore"):
        bad = ~((got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= bound))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(
            f"{what}{list(at)}: got {got[at]!r}, expected {want[at]!r} within {np.broadcast_to(bound, got.shape)[at]}; "
            f"{bad.sum()} of {got.size} elements differ\n got {got}\nwant {want}")


# ---------------------------------------------------------------------------- the definitions
def kept(shape: Sequence[int], axes: Sequence[int]) -> Sequence[int]:
    return [i for i in range(len(shape)) if i not in axes]


def over(axes: Sequence[int], x: np.ndarray, f: Callable[[np.ndarray], Any], dtype: Any = None) -> np.ndarray:
    """`f` of the flat elements along the axes, for every place along the others."""
    rest = kept(x.shape, axes)
    rows = np.transpose(x, rest + list(axes)).reshape([x.shape[i] for i in rest] + [-1]) if x.size else \
        np.zeros([x.shape[i] for i in rest] + [math.prod(x.shape[i] for i in axes)], x.dtype)
    out = np.empty(rows.shape[:-1], x.dtype if dtype is None else dtype)
    for at in np.ndindex(*out.shape):
        out[at] = f(rows[at])
    return out


def floor_divide(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "i":
        return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))
    return np.floor_divide(x, y)


def remainder(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "i":
        return np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y)))
    return np.remainder(x, y)


def power(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return np.power(x, y)
    exact = np.frompyfunc(lambda a, b: 0 if b < 0 else pow(a, b, 2 ** 32), 2, 1)
    return exact(x, y).astype(np.int64)


def integer_pow(p: Any, x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return np.power(x, float(p.exponent))
    out = np.ones_like(x)
    for _ in range(p.exponent):
        out = out * x
    return out


def softmax(p: Any, x: np.ndarray) -> np.ndarray:
    e = np.exp(x - np.max(x, axis=p.axis, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=p.axis, keepdims=True)


def first_largest(row: np.ndarray) -> int:
    """The first NaN, else the first of the largest."""
    best = 0
    for i, v in enumerate(row):
        if v > row[best] or v != v and row[best] == row[best]:
            best = i
    return best


def pad(p: Any, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    shape, source, target = [], [], []
    for n, lo, hi, gap in zip(x.shape, p.low, p.high, p.interior):
        size = lo + n + hi + max(n - 1, 0) * gap
        inside = [(i, lo + i * (gap + 1)) for i in range(n) if 0 <= lo + i * (gap + 1) < size]
        shape.append(size)
        source.append([i for i, _ in inside])
        target.append([j for _, j in inside])
    out = np.full(shape, value, x.dtype)
    if all(source):
        out[np.ix_(*target)] = x[np.ix_(*source)]
    return out


def read_index(i: int, size: int) -> int:
    i = i + size if i < 0 else i
    return min(max(i, 0), size - 1)


def take(p: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    size = x.shape[p.axis]
    rows = [np.take(x, read_index(int(i), size), axis=p.axis) for i in indices.ravel()]
    rest = x.shape[:p.axis] + x.shape[p.axis + 1:]
    flat = np.stack(rows) if rows else np.zeros((0,) + rest, x.dtype)
    flat = flat.reshape(indices.shape + rest)
    lead = list(range(indices.ndim, indices.ndim + p.axis))
    return np.transpose(flat, lead + list(range(indices.ndim)) + list(range(indices.ndim + p.axis, flat.ndim)))


def take_transpose(p: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    end = p.axis + indices.ndim
    out = np.zeros(x.shape[:p.axis] + (p.size,) + x.shape[end:], x.dtype)
    lead = (slice(None),) * p.axis
    for at in np.ndindex(*indices.shape):
        out[lead + (read_index(int(indices[at]), p.size),)] += x[lead + at]
    return out


def dot_general(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x_free, y_free = kept(x.shape, p.x_contract + p.x_batch), kept(y.shape, p.y_contract + p.y_batch)
    x = np.transpose(x, [*p.x_batch, *x_free, *p.x_contract])
    y = np.transpose(y, [*p.y_batch, *y_free, *p.y_contract])
    b, m, n = len(p.x_batch), len(x_free), len(y_free)
    x = x.reshape(x.shape[:b + m] + (1,) * n + x.shape[b + m:])
    y = y.reshape(y.shape[:b] + (1,) * m + y.shape[b:])
    return np.sum(x * y, axis=tuple(range(b + m + n, x.ndim)))


def convert(p: Any, x: np.ndarray) -> np.ndarray:
    if p.dtype.kind == "b":
        return x != 0
    if p.dtype.kind in "iu":
        return np.trunc(x).astype(np.int64)
    return x.astype(np.float64)  # what is rounded here is rounded by whoever asks for the result in that dtype


def elementwise(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *xs: f(*xs)


REFERENCES: Dict[str, Callable[..., Any]] = {name: elementwise(f) for name, f in dict(
    abs=np.abs, sign=np.sign, floor=np.floor, ceil=np.ceil, exp=np.exp, expm1=np.expm1, log=np.log, log1p=np.log1p,
    sqrt=np.sqrt, sin=np.sin, cos=np.cos, tanh=np.tanh, erf=special.erf, neg=np.negative, add=np.add, sub=np.subtract,
    mul=np.multiply, div=np.divide, maximum=np.maximum, minimum=np.minimum, eq=np.equal, ne=np.not_equal,
    lt=np.less, le=np.less_equal, gt=np.greater, ge=np.greater_equal, select=np.where, stop_gradient=np.array,
    rsqrt=lambda x: 1 / np.sqrt(x), relu=lambda x: np.where(x < 0, 0.0, x),
    gelu=lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))),
    safe_mul=lambda x, y: np.where((x == 0) | (y == 0), 0.0, x * y)).items()}
REFERENCES.update({
    "not": elementwise(np.logical_not), "and": elementwise(np.logical_and), "or": elementwise(np.logical_or),
    "pow": power, "integer_pow": integer_pow, "floor_divide": floor_divide, "remainder": remainder, "convert": convert,
    "reshape": lambda p, x: x.ravel().reshape(p.shape),
    "broadcast": lambda p, x: x + np.zeros(p.shape, x.dtype) if x.dtype.kind != "b" else x | np.zeros(p.shape, bool),
    "transpose": lambda p, x: np.moveaxis(x, p.permutation, range(x.ndim)),
    "squeeze": lambda p, x: x.reshape([x.shape[i] for i in kept(x.shape, p.axes)]),
    "slice": lambda p, x: x[np.ix_(*map(range, p.starts, p.stops, p.strides))] if x.ndim else x,
    "reverse": lambda p, x: x[np.ix_(*(range(n)[::-1] if i in p.axes else range(n) for i, n in enumerate(x.shape)))]
        if x.ndim else x,
    "concat": lambda p, *xs: np.concatenate(xs, p.axis),
    "iota": lambda p: np.indices(p.shape)[p.axis],
    "pad": pad, "take": take, "take_transpose": take_transpose, "dot_general": dot_general, "softmax": softmax,
    "sum": lambda p, x: over(p.axes, x, np.sum), "prod": lambda p, x: over(p.axes, x, np.prod),
    "max": lambda p, x: over(p.axes, x, np.max), "min": lambda p, x: over(p.axes, x, np.min),
    "argmax": lambda p, x: over((p.axis,), x, first_largest, np.int64),
    "call": lambda p, *xs: evaluate(p.jaxpr, xs),
})


def reference(primitive: Any, *arrays: np.ndarray) -> Any:
    """The wide result of a primitive for wide operands; a list of them if it has several."""
    with np.errstate(all="ignore"):
        out = REFERENCES[primitive.name](primitive, *arrays)
    return out if primitive.multiple else np.asarray(out)


# ---------------------------------------------------------------------------- whole programs
#: What gives one of its operands' elements, or a whole number.
EXACT = frozenset("""abs neg sign floor ceil relu maximum minimum select stop_gradient reshape broadcast transpose
squeeze slice reverse concat pad iota max min take scatter_set scatter_max scatter_min dynamic_slice
dynamic_update_slice""".split())


class Noise(NamedTuple):
    """Roundings as random errors: half an ulp of the result's dtype, up or down, wherever there is one."""

    random: np.random.Generator

    def __call__(self, primitive: Any, operands: Sequence[np.ndarray], x: np.ndarray, dtype: np.dtype) -> np.ndarray:
        exact = primitive.name in EXACT or primitive.name == "convert" and dtype.name == "float32"
        size = 0.0 if exact else {"float32": 2.0 ** -24, "float16": 2.0 ** -11}.get(dtype.name, 0.0)
        if not size:
            return x
        error = np.abs(x) * size
        if dtype.name == "float16":  # below 2 ** -14 its numbers lie 2 ** -24 apart
            error = np.where(x == 0, 0.0, np.maximum(error, 2.0 ** -25))
        if primitive.name in ("sum", "dot_general", "take_transpose", "scatter_add"):  # roundings of what may cancel
            terms = [np.abs(v) if v.dtype.kind == "f" else v for v in operands]
            error = error + 2.0 ** -24 * reference(primitive, *terms)
        if primitive.name == "gelu":  # 1 + tanh cancels below 0
            error = error + 2.0 ** -24 * np.abs(operands[0])
        return x + error * self.random.choice((-1.0, 1.0), np.shape(x))


def evaluate(jaxpr: Jaxpr, arrays: Sequence[np.ndarray], noise: Optional[Noise] = None,
             watch: Optional[Callable[..., None]] = None) -> Any:
    """A jaxpr's outputs in 64 bits, with `noise` at every equation.

    `watch(primitive, operands, results)` sees each equation, and may put other results in the place of its results.
    """
    env: Dict[Any, Any] = {v: widened(c) for v, c in zip(jaxpr.constvars, jaxpr.constants)}
    env.update(zip(jaxpr.inputs, arrays))

    def value(atom: Any) -> Any:
        return widened(atom.value) if isinstance(atom, Literal) else env[atom]
    for eqn in jaxpr.eqns:
        operands = [value(a) for a in eqn.inputs]
        if eqn.primitive.name == "call":
            results = evaluate(eqn.primitive.jaxpr, operands, noise, watch)
        else:
            out = reference(eqn.primitive, *operands)
            results = out if eqn.primitive.multiple else [out]
            results = [wrapped(r, v.aval.dtype) for r, v in zip(results, eqn.outputs)]
            if noise is not None:
                results = [noise(eqn.primitive, operands, r, v.aval.dtype) for r, v in zip(results, eqn.outputs)]
        if watch is not None:
            watch(eqn.primitive, operands, results)
        env.update(zip(eqn.outputs, results))
    return [value(a) for a in jaxpr.outputs]


class Stopped:
    """stop_gradient under differences: its results at one point (`record`) are those at all others (`replay`)."""

    def __init__(self) -> None:
        self.values: List[np.ndarray] = []

    def record(self, primitive: Any, operands: Any, results: List[np.ndarray]) -> None:
        if primitive.name == "stop_gradient":
            self.values.append(results[0])

    def replay(self) -> Callable[..., None]:
        rest = iter(self.values)

        def watch(primitive: Any, operands: Any, results: List[np.ndarray]) -> None:
            if primitive.name == "stop_gradient":
                results[0] = next(rest)
        return watch


def wrapped(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Wide integers brought into a narrow dtype's range; floats keep their 64 bits."""
    return widened(rounded(x, dtype)) if dtype.kind in "biu" else np.asarray(x, np.float64)


# ---------------------------------------------------------------------------- differences
def jacobian(f: Callable[..., np.ndarray], xs: Sequence[np.ndarray], i: int, step: float = 1e-6) -> np.ndarray:
    """d f / d xs[i] by central differences, as (result size, operand size)."""
    columns = []
    for at in np.ndindex(*xs[i].shape):
        ends = []
        for sign in (1, -1):
            moved = [np.array(x) for x in xs]
            moved[i][at] += sign * step
            ends.append(np.ravel(f(*moved)))
        columns.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(columns, axis=1) if columns else np.zeros((np.size(f(*xs)), 0))


def second_derivative(f: Callable[..., float], xs: Sequence[np.ndarray], direction: Sequence[np.ndarray], i: int,
                      step: float = 1e-3) -> np.ndarray:
    """d/d xs[i] of the derivative of a scalar f along `direction`, by mixed differences."""
    out = np.zeros(xs[i].shape)
    for at in np.ndindex(*xs[i].shape):
        total = 0.0
        for a, b in itertools.product((1, -1), repeat=2):
            moved = [np.array(x + b * step * v) for x, v in zip(xs, direction)]
            moved[i][at] += a * step
            total += a * b * f(*moved)
        out[at] = total / (4 * step ** 2)
    return out
