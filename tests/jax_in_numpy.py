"""JAX's jaxprs evaluated by NumPy in 64 bits: an oracle that compiles nothing, exact or with random roundings.

What JAX's transforms made of a function is the program; only the meaning of its primitives is written here.
"""
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from references import wrapped


def broadcast_in_dim(p: Any, x: Any, *sizes: Any) -> Any:
    shape = [1] * len(p["shape"])
    for at, n in zip(p["broadcast_dimensions"], x.shape):
        shape[at] = n
    return np.broadcast_to(x.reshape(shape), p["shape"])


def select(p: Any, which: Any, *cases: Any) -> Any:
    return np.where(which, cases[1], cases[0]) if which.dtype == bool else np.choose(which, cases)


def divide(p: Any, x: Any, y: Any) -> Any:
    return x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(np.int64)


def pad(p: Any, x: Any, value: Any) -> Any:
    for axis, (low, high, gap) in enumerate(p["padding_config"]):
        n = x.shape[axis]
        inside = n + max(n - 1, 0) * gap
        wide = np.full(x.shape[:axis] + (inside,) + x.shape[axis + 1:], value, x.dtype)
        lead = (slice(None),) * axis
        wide[lead + (slice(None, None, gap + 1),)] = x
        wide = wide[lead + (slice(max(-low, 0), inside - max(-high, 0)),)]
        x = np.pad(wide, [(max(low, 0), max(high, 0)) if i == axis else (0, 0) for i in range(x.ndim)],
                   constant_values=value)
    return x


def cumsum(p: Any, x: Any) -> Any:
    return np.flip(np.cumsum(np.flip(x, p["axis"]), p["axis"]), p["axis"]) if p["reverse"] else np.cumsum(x, p["axis"])


def sort(p: Any, *xs: Any) -> List[Any]:
    axis = p["dimension"]
    order = np.lexsort(tuple(np.moveaxis(x, axis, -1) for x in reversed(xs[:p["num_keys"]])), axis=-1)
    return [np.take_along_axis(x, np.moveaxis(order, -1, axis), axis) for x in xs]


def window(starts: Sequence[Any], sizes: Sequence[int], shape: Sequence[int]) -> Tuple[slice, ...]:
    first = [min(max(int(s), 0), n - size) for s, size, n in zip(starts, sizes, shape)]
    return tuple(slice(s, s + size) for s, size in zip(first, sizes))


def dynamic_update_slice(p: Any, x: Any, y: Any, *starts: Any) -> Any:
    out = np.array(x)
    out[window(starts, y.shape, x.shape)] = y
    return out


def dot_general(p: Any, x: Any, y: Any) -> Any:
    (x_sum, y_sum), (x_batch, y_batch) = p["dimension_numbers"]
    names = iter(range(100))
    x_names, y_names = [next(names) for _ in x.shape], [next(names) for _ in y.shape]
    for i, j in [*zip(x_sum, y_sum), *zip(x_batch, y_batch)]:
        y_names[j] = x_names[i]
    rest = [n for i, n in enumerate(x_names) if i not in (*x_sum, *x_batch)]
    rest += [n for j, n in enumerate(y_names) if j not in (*y_sum, *y_batch)]
    return np.einsum(x, x_names, y, y_names, [x_names[i] for i in x_batch] + rest)


def iota(p: Any, *sizes: Any) -> Any:
    return np.broadcast_to(np.arange(p["shape"][p["dimension"]]).reshape(
        [-1 if i == p["dimension"] else 1 for i in range(len(p["shape"]))]), p["shape"])


def places(p: Any, indices: Any, sizes: Sequence[int], shape: Sequence[int], map_: Sequence[int], operand_batch: Any,
           index_batch: Any) -> Iterator[Tuple[Tuple[int, ...], Tuple[slice, ...]]]:
    """For each index vector of a gather or scatter where it stands, and the part of the operand that it means."""
    for at in np.ndindex(*indices.shape[:-1]):
        starts = [0] * len(shape)
        for axis, i in zip(map_, indices[at]):
            starts[axis] = int(i)
        for axis, i in zip(operand_batch, index_batch):
            starts[axis] = at[i]
        assert all(0 <= s <= n - size for s, n, size in zip(starts, shape, sizes)) or "CLIP" in str(p["mode"])
        yield at, window(starts, sizes, shape)


def gather(p: Any, x: Any, indices: Any) -> Any:
    d = p["dimension_numbers"]
    batch = tuple(getattr(d, "operand_batching_dims", ()))
    lost = (*d.collapsed_slice_dims, *batch)
    parts = [x[part].reshape([n for i, n in enumerate(p["slice_sizes"]) if i not in lost]) for _, part in places(
        p, indices, p["slice_sizes"], x.shape, d.start_index_map, batch, getattr(d, "start_indices_batching_dims", ()))]
    rest = [n for i, n in enumerate(p["slice_sizes"]) if i not in lost]
    out = np.array(parts, x.dtype).reshape(indices.shape[:-1] + tuple(rest))
    lead = indices.ndim - 1
    return np.moveaxis(out, range(lead, lead + len(rest)), d.offset_dims)


def scatter(combine: Callable[..., Any]) -> Callable[..., Any]:
    def f(p: Any, x: Any, indices: Any, updates: Any) -> Any:
        d = p["dimension_numbers"]
        batch = tuple(getattr(d, "operand_batching_dims", ()))
        lost = (*d.inserted_window_dims, *batch)
        lead = indices.ndim - 1
        updates = np.moveaxis(updates, d.update_window_dims, range(lead, updates.ndim))
        sizes = iter(updates.shape[lead:])
        shape = [1 if i in lost else next(sizes) for i in range(x.ndim)]
        out = np.array(x)
        for at, part in places(p, indices, shape, x.shape, d.scatter_dims_to_operand_dims, batch,
                               getattr(d, "scatter_indices_batching_dims", ())):
            out[part] = combine(out[part], updates[at].reshape(shape))
        return out
    return f


def scan(p: Any, *xs: Any, run: Any) -> List[Any]:
    n, m, length = p["num_consts"], p["num_consts"] + p["num_carry"], p["length"]
    consts, carry, rows = xs[:n], list(xs[n:m]), xs[m:]
    body = p["jaxpr"]
    ys = [np.zeros((length, *v.aval.shape), kind(v.aval.dtype)) for v in body.jaxpr.outvars[m - n:]]
    for i in reversed(range(length)) if p["reverse"] else range(length):
        outs = run(body, [*consts, *carry, *(row[i] for row in rows)])
        carry = outs[:m - n]
        for y, value in zip(ys, outs[m - n:]):
            y[i] = value
    return [*carry, *ys]


def while_(p: Any, *xs: Any, run: Any) -> List[Any]:
    n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    carry = list(xs[m:])
    while run(p["cond_jaxpr"], [*xs[:n], *carry])[0]:
        carry = run(p["body_jaxpr"], [*xs[n:m], *carry])
    return carry


def cond(p: Any, which: Any, *xs: Any, run: Any) -> List[Any]:
    branches = p["branches"]
    outs: List[Any] = run(branches[min(max(int(which), 0), len(branches) - 1)], xs)
    return outs


def call(p: Any, *xs: Any, run: Any) -> List[Any]:
    found = p.get("jaxpr") or p.get("call_jaxpr") or p["fun_jaxpr"]
    outs: List[Any] = run(found, xs)
    return outs


def plain(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *xs: f(*xs)


MEANINGS: Dict[str, Callable[..., Any]] = {name: plain(f) for name, f in dict(
    add=np.add, add_any=np.add, sub=np.subtract, mul=np.multiply, neg=np.negative, tanh=np.tanh, sin=np.sin, cos=np.cos,
    exp=np.exp, log=np.log, log1p=np.log1p, sqrt=np.sqrt, rsqrt=lambda x: 1 / np.sqrt(x), abs=np.abs, sign=np.sign,
    max=np.maximum, min=np.minimum, eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal, gt=np.greater,
    ge=np.greater_equal, rem=np.fmod, square=np.square, copy=np.array, copy_p=np.array, stop_gradient=np.array,
    zeros_like=np.zeros_like, ones_like=np.ones_like,
    clamp=lambda low, x, high: np.minimum(np.maximum(x, low), high)).items()}
MEANINGS.update({
    "and": plain(np.bitwise_and), "or": plain(np.bitwise_or), "not": plain(np.invert), "xor": plain(np.bitwise_xor),
    "integer_pow": lambda p, x: np.power(x, p["y"] if x.dtype.kind == "i" else float(p["y"])),
    "div": divide, "select_n": select, "broadcast_in_dim": broadcast_in_dim, "pad": pad, "cumsum": cumsum,
    "sort": sort, "gather": gather, "scatter": scatter(lambda old, new: new), "scatter-add": scatter(np.add),
    "scatter_add": scatter(np.add), "dot_general": dot_general, "iota": iota,
    "dynamic_update_slice": dynamic_update_slice,
    "convert_element_type": lambda p, x: x.astype(kind(p["new_dtype"])),
    "empty": lambda p: np.zeros(p.get("shape", ()), kind(p["dtype"])), "empty2": lambda p: np.zeros(()),
    "reshape": lambda p, x, *sizes: x.reshape(p["new_sizes"]),
    "squeeze": lambda p, x: x.reshape([n for i, n in enumerate(x.shape) if i not in p["dimensions"]]),
    "transpose": lambda p, x: np.transpose(x, p["permutation"]), "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]), "stack": lambda p, *xs: np.stack(xs, p["axis"]),
    "split": lambda p, x: np.split(x, np.cumsum(p["sizes"])[:-1], p["axis"]),
    "unstack": lambda p, x: list(np.moveaxis(x, p["axis"], 0)),
    "slice": lambda p, x: x[tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or [1] * x.ndim))],
    "dynamic_slice": lambda p, x, *starts: x[window(starts, p["slice_sizes"], x.shape)],
    **{f"reduce_{name}": lambda p, x, f=f: f(x, axis=tuple(p["axes"])) for name, f in dict(
        sum=np.sum, max=np.max, min=np.min, prod=np.prod, **{"and": np.all, "or": np.any}).items()}})
#: Those that hold jaxprs.
HOLDERS: Dict[str, Callable[..., Any]] = dict(scan=scan, cond=cond, **{"while": while_}, **dict.fromkeys(
    ("pjit", "jit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call",
     "custom_vjp_call_jaxpr"), call))
#: Those that give one of their operands' elements, or a whole number.
EXACT = frozenset("""neg abs sign max min clamp select_n broadcast_in_dim pad sort iota dynamic_update_slice reshape
squeeze transpose rev concatenate stack split slice dynamic_slice reduce_max reduce_min gather scatter copy copy_p
stop_gradient empty empty2""".split())
SUMS = frozenset(("reduce_sum", "dot_general", "cumsum", "scatter-add", "scatter_add"))


def kind(dtype: Any) -> Any:
    """The wide dtype of a dtype; float0 has bool's values."""
    return {"f": np.float64, "i": np.int64, "u": np.int64}.get(np.dtype(dtype).kind, np.bool_)


class Rounding:
    """Half an ulp of the result's dtype, up or down, wherever there is a rounding."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(self, name: str, p: Any, operands: Sequence[Any], x: Any, dtype: Any) -> Any:
        half = {"float32": 2.0 ** -24, "float16": 2.0 ** -11}.get(np.dtype(dtype).name, 0.0)
        if name in EXACT or not half or name == "convert_element_type" and half == 2.0 ** -24:
            return x
        error = np.abs(x) * half
        if half > 2.0 ** -24:  # below 2 ** -14 the numbers of float16 lie 2 ** -24 apart
            error = np.where(x == 0, 0.0, np.maximum(error, 2.0 ** -25))
        if name in SUMS:
            error = error + 2.0 ** -24 * MEANINGS[name](p, *(np.abs(x) if x.dtype.kind == "f" else x for x in operands))
        return x + error * self.random.choice((-1.0, 1.0), np.shape(x))


def evaluate(closed: Any, arrays: Sequence[Any], rounding: Optional[Rounding] = None) -> List[Any]:
    """The outputs of a closed jaxpr for wide arrays."""
    def run(program: Any, xs: Sequence[Any]) -> List[Any]:
        jaxpr, consts = (program.jaxpr, program.consts) if hasattr(program, "consts") else (program, ())
        env: Dict[Any, Any] = {v: np.asarray(c).astype(kind(v.aval.dtype)) for v, c in zip(jaxpr.constvars, consts)}
        env.update(zip(jaxpr.invars, xs))

        def value(a: Any) -> Any:
            return np.asarray(a.val).astype(kind(a.aval.dtype)) if hasattr(a, "val") else env[a]
        for eqn in jaxpr.eqns:
            name, p, operands = eqn.primitive.name, eqn.params, list(map(value, eqn.invars))
            if name in HOLDERS:
                results = HOLDERS[name](p, *operands, run=run)
            else:
                out = MEANINGS[name](p, *operands)
                results = [wrapped(np.asarray(y), v.aval.dtype) if v.aval.dtype.kind in "biu" else np.asarray(y)
                           for y, v in zip(out if eqn.primitive.multiple_results else [out], eqn.outvars)]
                if rounding is not None:
                    results = [rounding(name, p, operands, y, v.aval.dtype) for y, v in zip(results, eqn.outvars)]
            for v, y in zip(eqn.outvars, results):
                assert np.shape(y) == v.aval.shape, (name, np.shape(y), v.aval)
                env[v] = y
        return [value(a) for a in jaxpr.outvars]
    with np.errstate(all="ignore"):
        return run(closed, arrays)


def tolerance(closed: Any, arrays: Sequence[Any]) -> Tuple[List[Any], List[Any]]:
    """The exact outputs for wide arrays, and bounds for the error of a correct evaluation in the jaxpr's dtypes.

    As in `programs.tolerance`: from evaluations with random roundings, of which there are few.
    """
    exact = evaluate(closed, arrays)
    samples = [evaluate(closed, arrays, Rounding(seed)) for seed in range(5)]
    bounds = []
    for i, (x, aval) in enumerate(zip(exact, closed.out_avals)):
        if np.dtype(aval.dtype).kind != "f" or not x.size:
            bounds.append(0.0)
            continue
        spread = np.max([np.abs(s[i] - x) for s in samples], axis=0)
        half = aval.dtype == np.float16
        bounds.append(8 * spread + 4 * spread.max() + 4 * 2.0 ** (-10 if half else -23) * np.abs(x).max()
                      + (2.0 ** -24 if half else 1e-30))
    return exact, bounds
