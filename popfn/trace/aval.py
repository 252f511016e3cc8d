"""Aval: the type of a value, and how types combine.

An aval is a shape, a dtype, a weak flag, the named axes over which the value varies and the memory in which it lies.
Avals are interned: equal ones are one object, so that tracing compares them by identity and the memo tables of the
primitives are keyed by them.
"""
from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from typing import Any, ContextManager, Dict, FrozenSet, Iterable, Iterator, Tuple, Union

import ml_dtypes
import numpy as np

from .errors import (
    ArgumentError,
    DtypeError,
    NarrowingError,
    PopfnError,
    ShapeError,
    located,
    message,
    user_source,
)

DType = np.dtype
Shape = Tuple[int, ...]

bool_ = np.dtype(np.bool_)
int8, int16, int32 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)
uint8, uint16, uint32 = np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)
float16, float32, float64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
float8_143 = np.dtype(ml_dtypes.float8_e4m3fnuz)
float8_152 = np.dtype(ml_dtypes.float8_e5m2fnuz)

#: Short names, as printed in jaxprs.
SHORT: Dict[np.dtype, str] = {
    bool_: "bool", int8: "i8", int16: "i16", int32: "i32", uint8: "u8", uint16: "u16", uint32: "u32",
    float16: "f16", float32: "f32", float64: "f64", float8_143: "f8_143", float8_152: "f8_152",
}
BY_NAME: Dict[str, np.dtype] = {short: d for d, short in SHORT.items()}
BY_NAME.update({d.name: d for d in SHORT}, float8_143=float8_143, float8_152=float8_152)
FLOAT8 = frozenset((float8_143, float8_152))
FLOATS = frozenset((float16, float32, float64)) | FLOAT8
_KIND: Dict[np.dtype, int] = {d: 0 if d == bool_ else 2 if d in FLOATS else 1 for d in SHORT}
_CANONICAL: Dict[np.dtype, np.dtype] = {d: d for d in SHORT}  # dtypes are compared by identity where it is hot
_NARROW = {np.dtype(np.int64): int32, np.dtype(np.uint64): uint32, float64: float32}
#: The dtypes of data that is taken as it is, whether float64 is asked for or not.
KEPT = frozenset(SHORT) - {float64}
_SCALARS = {bool: bool_, int: int32, float: float32}


# ---------------------------------------------------------------------------- float64, on request
_float64: ContextVar[bool] = ContextVar("popfn.float64", default=False)


def enable_float64(on: bool = True) -> ContextManager[None]:
    """A context in which float64 data stays float64, and in which `np.float64` and its names mean it; for checks.

    Outside of it float64 data is narrowed to float32, and the names mean float32. 64-bit integers are narrowed in both.
    What is made without a dtype stays float32, and so does a Python number on its own: it takes float64, with all its
    digits, where it meets it. An array that is float64 stays so outside of the context too.

    The context is that of the thread, or of the task, that enters it. A function under `jit` is compiled for each of
    the two. float64 is for the host: no IPU has it, and `lower` refuses it with a LoweringError. Raises ArgumentError
    unless `on` is True or False.

    >>> import popfn as pf
    >>> with enable_float64():
    ...     x = pf.Array(np.array([0.1]))
    >>> x * 3
    Array([0.3], dtype=float64)
    """
    if not isinstance(on, (bool, np.bool_)):
        raise ArgumentError(message(f"enable_float64 takes True or False, got {on!r}",
                                    "way out: with pf.enable_float64(): ...", at=user_source(2)))
    return _float64_is(bool(on))


@contextlib.contextmanager
def _float64_is(on: bool) -> Iterator[None]:
    token = _float64.set(on)
    try:
        yield
    finally:
        _float64.reset(token)


def float64_enabled() -> bool:
    """Whether float64 is asked for where this is called."""
    return _float64.get()


def accumulator_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which floats of a dtype are computed where they are rounded once at the end: float32, or float64."""
    return float64 if dtype == float64 else float32


def canonical_dtype(dtype: Any) -> np.dtype:
    """A supported NumPy dtype for what a user may write: `np.float32`, `"f16"`, `float`, `pf.float8_143`.

    64-bit names mean their 32-bit twins, but for float64 where it is asked for. Raises DtypeError for complex, bfloat16
    and whatever an IPU has no form for. What has its dtype already keeps it: it does not come by here.
    """
    d = _named(dtype)
    return d if d != float64 or _float64.get() else float32


def checked_dtype(dtype: Any) -> np.dtype:
    """A dtype that a value has or is given, if it is a supported one. Raises DtypeError."""
    return dtype if dtype in _CANONICAL else canonical_dtype(dtype)


def _named(dtype: Any) -> np.dtype:
    """The dtype that is meant, float64 included."""
    if type(dtype) is str and dtype in BY_NAME:
        return BY_NAME[dtype]
    try:
        d = np.dtype(dtype)
    except TypeError:
        name = getattr(dtype, "name", None)  # a PopXL dtype
        if not (isinstance(name, str) and name in BY_NAME):
            raise DtypeError(f"{dtype!r} is not a dtype popfn knows; it has {', '.join(BY_NAME)}") from None
        d = BY_NAME[name]
    d = d.newbyteorder("=")
    d = _CANONICAL.get(d if d == float64 else _NARROW.get(d, d))
    if d is None:
        d = np.dtype(dtype)
        reason = ("complex numbers have no form on the IPU: carry real and imaginary part" if d.kind == "c" else
                  "bfloat16 has no form on the IPU: use float16 or float32" if d.name == "bfloat16" else
                  "convert the data to numbers first")
        raise DtypeError(f"dtype {d.name} is not supported: {reason}")
    return d


AxisNames = FrozenSet[str]
NO_AXES: AxisNames = frozenset()
#: Where a value lies: on the chip, in the streaming memory beside it, or with the host, from where it is streamed.
DEVICE, REMOTE, HOST = MEMORIES = "device", "remote", "host"
#: The axes over which a value varies, and its memory.
Placement = Tuple[AxisNames, str]
COMMON: Placement = NO_AXES, DEVICE
#: Every aval there is, by shape, dtype and weak flag, and by its placement where that is not the common one.
INTERNED: Dict[Tuple[Any, ...], Aval] = {}


class Aval:
    """The type of a value: `Aval((4, 2), "float32")`, printed `f32[4,2]`.

    `weak` marks the type of a Python scalar, which takes on the dtype of what it meets; it prints as `~f32[]`.
    `varying` holds the names of the mapped axes (`vmap(axis_name=...)`) along which the value may differ; it prints as
    `f32[4]{i}`. `memory` is where the value lies, "device", "remote" or "host"; what is not on the device prints as
    `f32[4]@remote`. Equal avals are the same object. Raises ShapeError for a negative size or an unknown memory and
    DtypeError for an unsupported dtype.

    >>> Aval((4, 2), "float32")
    f32[4,2]
    """

    __slots__ = ("shape", "dtype", "weak", "ndim", "size", "is_float", "strong", "placement", "varying", "memory",
                 "invariant")
    shape: Shape
    dtype: np.dtype
    weak: bool
    ndim: int
    size: int
    is_float: bool
    strong: Aval
    placement: Placement
    varying: AxisNames
    memory: str
    invariant: Aval

    def __new__(cls, shape: Iterable[int], dtype: Any = float32, weak: bool = False,
                varying: Iterable[str] = (), memory: str = DEVICE) -> Aval:
        try:
            shape = tuple(shape)
        except TypeError:
            raise ShapeError(f"a shape is a tuple of sizes, got {shape!r}") from None
        for n in shape:
            if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 0:
                raise ShapeError(f"a shape holds sizes of 0 or more, got {shape}")
        if memory not in MEMORIES:
            raise ShapeError(f"a memory is one of {', '.join(map(repr, MEMORIES))}, got {memory!r}")
        return cls._make(tuple(int(n) for n in shape), canonical_dtype(dtype), bool(weak),
                         (frozenset(varying), memory))

    @classmethod
    def _make(cls, shape: Shape, dtype: np.dtype, weak: bool, placement: Placement = COMMON) -> Aval:
        key = (shape, dtype, weak) if placement == COMMON else (shape, dtype, weak, placement)
        self = INTERNED.get(key)
        if self is None:
            self = object.__new__(cls)
            size = 1
            for n in shape:
                size *= n
            for name, value in (("shape", shape), ("dtype", dtype), ("weak", weak), ("ndim", len(shape)),
                                ("size", size), ("is_float", dtype in FLOATS), ("placement", placement),
                                ("varying", placement[0]), ("memory", placement[1])):
                object.__setattr__(self, name, value)
            object.__setattr__(self, "strong", cls._make(shape, dtype, False, placement) if weak else self)
            object.__setattr__(self, "invariant", cls._make(shape, dtype, weak, (NO_AXES, placement[1]))
                               if placement[0] else self)
            self = INTERNED.setdefault(key, self)  # two threads may make it at once
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an Aval cannot be changed; {name} is fixed")

    def __reduce__(self) -> Any:
        return Aval._make, (self.shape, self.dtype, self.weak, self.placement)

    def __copy__(self) -> Aval:
        return self

    def __deepcopy__(self, memo: Any) -> Aval:
        return self

    def __repr__(self) -> str:
        axes = f"{{{','.join(sorted(self.varying))}}}" if self.varying else ""
        memory = "" if self.memory == DEVICE else f"@{self.memory}"
        return f"{'~' if self.weak else ''}{SHORT[self.dtype]}[{','.join(map(str, self.shape))}]{axes}{memory}"

    def with_shape(self, shape: Shape) -> Aval:
        """The same type with another shape."""
        return Aval._make(shape, self.dtype, self.weak, self.placement)

    def over(self, varying: AxisNames) -> Aval:
        """The type of a value that varies over these axes."""
        return self.placed((varying, self.memory))

    def at(self, memory: str) -> Aval:
        """The type of a value that lies in this memory."""
        return self.placed((self.varying, memory))

    def placed(self, placement: Placement) -> Aval:
        """The same type with another placement."""
        return self if placement == self.placement else Aval._make(self.shape, self.dtype, self.weak, placement)


def spec(shape: Union[int, Iterable[int]], dtype: Any = float32) -> Aval:
    """The type of an argument to come: what `lower` and `make_jaxpr` take in place of data.

    >>> spec((64, 784)), spec(64, "int32")
    (f32[64,784], i32[64])
    """
    try:
        return Aval((shape,) if isinstance(shape, (int, np.integer)) else shape, dtype)
    except PopfnError as e:
        raise located(e) from None


# ---------------------------------------------------------------------------- promotion
@functools.lru_cache(maxsize=None)
def promote_types(a: np.dtype, a_weak: bool, b: np.dtype, b_weak: bool) -> Tuple[np.dtype, bool]:
    """The dtype and weak flag of an operation on two dtypes: JAX's lattice, 64-bit results narrowed.

    A weak type gives way to any dtype of its own kind or a higher one (bool < int < float). Raises DtypeError where the
    lattice has no upper bound (float8 with another float).
    """
    if a == b:
        return a, a_weak and b_weak
    ka, kb = _KIND[a], _KIND[b]
    if ka == kb and a_weak != b_weak:
        return (b if a_weak else a), False
    if ka != kb:
        low_weak, (high, high_weak) = (a_weak, (b, b_weak)) if ka < kb else (b_weak, (a, a_weak))
        return high, high_weak
    if ka == 2 and (a in FLOAT8 or b in FLOAT8):
        raise DtypeError(f"{SHORT[a]} and {SHORT[b]} have no common dtype: convert one of them with astype")
    d = np.promote_types(a, b)
    return (d if ka == 2 else _NARROW.get(d, d)), a_weak and b_weak


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's broadcasting of shapes. Raises ShapeError that names the shapes."""
    out: Tuple[int, ...] = ()
    for shape in shapes:
        if shape == out:
            continue
        if len(shape) > len(out):
            out, shape = shape, out
        pad = len(out) - len(shape)
        merged = list(out)
        for i, n in enumerate(shape, pad):
            m = merged[i]
            if m != n:
                if m == 1:
                    merged[i] = n
                elif n != 1:
                    raise ShapeError("shapes " + " and ".join(map(str, shapes)) + " do not broadcast")
        out = tuple(merged)
    return out


# ---------------------------------------------------------------------------- data -> arrays
def scalar_array(x: Union[bool, int, float], dtype: np.dtype) -> np.ndarray:
    """A Python scalar as a 0-d array of `dtype`. Raises NarrowingError if an integer does not fit.

    A float beyond float16's range becomes inf, as in NumPy; an integer never changes its value unseen.
    """
    if type(x) is int and dtype != bool_:
        if _KIND[dtype] == 1:
            info = np.iinfo(dtype)
            if not info.min <= x <= info.max:
                raise NarrowingError(f"Python integer {x} does not fit {dtype.name} ({info.min} to {info.max})")
        elif abs(x) > float(ml_dtypes.finfo(dtype).max):  # type: ignore[no-untyped-call]
            raise NarrowingError(f"Python integer {x} does not fit {dtype.name}")
    elif type(x) is float and _KIND[dtype] == 1 and not np.iinfo(dtype).min <= x <= np.iinfo(dtype).max:
        raise NarrowingError(f"Python float {x} does not fit {dtype.name}")
    if dtype != float16 and dtype not in FLOAT8:
        return np.asarray(x, dtype)
    with np.errstate(over="ignore"):
        return np.asarray(x, float32).astype(dtype)


def narrow(x: np.ndarray) -> np.ndarray:
    """64-bit data as 32-bit data. Raises NarrowingError, naming the first value that does not survive.

    An integer survives if it fits, a float if it keeps its size: rounding is fine, overflow to inf or underflow to 0
    is not.
    """
    dtype = _NARROW[x.dtype]
    with np.errstate(over="ignore", under="ignore"):
        y = x.astype(dtype)
    lost = (np.isinf(y) & np.isfinite(x)) | ((y == 0) & (x != 0)) if dtype == float32 else y != x
    if lost.any():
        at = tuple(int(i) for i in np.argwhere(lost)[0])
        raise NarrowingError(
            f"{x.dtype.name} data is narrowed to {dtype.name}, but {x[at].item()!r}"
            f"{f' at index {list(at)}' if at else ''} does not survive; "
            f"use x.astype(np.{dtype.name}) to convert it all the same"
            f"{', or pf.enable_float64() to keep it on the host' if dtype == float32 and at else ''}")
    return y


def _data(x: Any) -> np.ndarray:
    """np.asarray, which refuses ragged lists and what a mask would hide."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise DtypeError("a masked array has elements that are no numbers: fill them with x.filled(...)")
    try:
        return np.asarray(x)
    except ValueError as e:
        raise DtypeError(f"a value of type {type(x).__name__} is not an array: {e}") from None


def as_numpy(x: Any) -> np.ndarray:
    """Data of any accepted form as a NumPy array of a supported dtype. Raises DtypeError and NarrowingError."""
    y = x if type(x) is np.ndarray else _data(x)
    if y.dtype in KEPT:
        return y
    if y.dtype in _NARROW:
        return y if y.dtype == float64 and type(x) is not float and _float64.get() else narrow(y)
    if y.dtype.names is not None and len(y.dtype.names) == 1 and y.dtype.names[0] in BY_NAME:
        return y.view(BY_NAME[y.dtype.names[0]])  # PopXL's structured float8
    if y.dtype.kind in "OSU":
        fault = "holds what is no number" if y.ndim else "is not an array or a number"
        raise DtypeError(f"a value of type {type(x).__name__} {fault}: {x!r:.80}")
    native = y.dtype.newbyteorder("=")
    y = y.astype(native)
    return as_numpy(y) if native in _NARROW else y.astype(canonical_dtype(native))


def aval_of_data(x: Any) -> Aval:
    """The aval of concrete data: weak for a Python int or float, strong for everything else."""
    scalar = _SCALARS.get(type(x))
    if scalar is not None:
        return Aval._make((), scalar, scalar is not bool_)
    y = as_numpy(x)
    return Aval._make(y.shape, y.dtype, False)
