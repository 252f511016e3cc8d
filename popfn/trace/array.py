"""Array: popfn's array type, concrete here and traced in tracer.py."""
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Tuple

import numpy as np

from .aval import Aval, Shape, as_numpy, canonical_dtype, scalar_array
from .errors import DonationError, PopfnError, ShapeError, located, message, user_source

_ops: Any = None
# NumPy's ufuncs behind Python's operators, and popfn's functions for them.
_UFUNCS = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "true_divide": "divide", "divide": "divide",
    "floor_divide": "floor_divide", "remainder": "remainder", "power": "pow", "matmul": "matmul",
    "divmod": "divmod_", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "equal": "equal", "not_equal": "not_equal", "less": "less", "less_equal": "less_equal",
    "greater": "greater", "greater_equal": "greater_equal",
}


def install_operations(module: Any) -> None:
    """Give Array its operators and methods: the functions of `popfn.numpy`, which stands above, are handed down once.

    The operators that programs are full of become methods themselves, without a call between.
    """
    global _ops
    _ops = module
    for operator, name in (("__add__", "add"), ("__sub__", "subtract"), ("__mul__", "multiply"),
                           ("__truediv__", "divide"), ("__matmul__", "matmul"), ("__neg__", "negative")):
        setattr(Array, operator, getattr(module, name))


def _unpickled(value: np.ndarray, aval: Aval) -> Array:
    value.flags.writeable = False
    return Array.wrap(value, aval)


class Array:
    """popfn's array type: concrete, or traced (`Tracer`). Immutable.

    `Array(data)` wraps a NumPy array, a number or a nested list; 64-bit data is narrowed to 32 bits if every value
    survives, but for float64 within `pf.enable_float64()`. Operators and methods are those of `popfn.numpy`, with its
    promotion. NumPy arrays and Python numbers are accepted wherever an Array is. Raises DtypeError and NarrowingError.

    >>> Array([1.0, 2.0]) * 2
    Array([2., 4.], dtype=float32)
    """

    __slots__ = ("aval", "value", "donated_to")
    __hash__ = None  # type: ignore[assignment]  # == is elementwise

    aval: Aval
    value: Any  # a read-only np.ndarray; a tracer has none
    donated_to: str  # only where the value was given up

    def __init__(self, data: Any, dtype: Any = None) -> None:
        given = isinstance(data, Array)
        if given:
            data = data.known("Array(...)")
        try:
            if dtype is not None and type(data) in (bool, int, float):
                value = scalar_array(data, canonical_dtype(dtype))
            else:
                value = data if given else as_numpy(data)
                if dtype is not None and value.dtype != canonical_dtype(dtype):
                    with np.errstate(all="ignore"):
                        value = value.astype(canonical_dtype(dtype))
        except PopfnError as e:
            raise located(e) from None
        if value is data or not value.flags.owndata:
            value = np.array(value)  # the caller may go on writing to theirs
        value.flags.writeable = False
        self.value = value
        self.aval = Aval._make(value.shape, value.dtype, dtype is None and type(data) in (int, float))

    @staticmethod
    def wrap(value: np.ndarray, aval: Aval) -> Array:
        """An Array around a NumPy array that nobody else will write to."""
        self = object.__new__(Array)
        self.value = value
        self.aval = aval
        return self

    # ------------------------------------------------------------------ type
    @property
    def shape(self) -> Shape:
        """The shape, a tuple of ints."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype, as NumPy's."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    # ------------------------------------------------------------------ leaving popfn
    def donate(self, to: str) -> None:
        """Give the value up: its memory is free if nobody else holds it, and using the array is a DonationError."""
        if not hasattr(self, "donated_to"):
            self.donated_to = to
            del self.value

    def __getattr__(self, name: str) -> Any:  # of what is not there
        if name == "value" and hasattr(self, "donated_to"):
            raise DonationError(message(f"this array, {self.aval}, was donated to {self.donated_to}: its value is gone",
                                        "way out: use what the call returned, or leave it out of donate_argnums",
                                        at=user_source(2)))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def known(self, what: str, branch: bool = False) -> np.ndarray:
        """The value, or an error saying that `what` needs it; `branch` if Python only decides by it where to go on."""
        return self.value

    def followed(self) -> np.ndarray:
        """The value, also where it is traced by a trace that follows its inputs' values."""
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        value = self.known("np.asarray(...)")
        if dtype is not None and dtype != value.dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def __array_namespace__(self, *, api_version: Optional[str] = None) -> Any:
        """`popfn.numpy`, whatever the version of the standard."""
        return _ops.numpy

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        return self

    def __reduce__(self) -> Any:
        return _unpickled, (self.value, self.aval)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        operator = _UFUNCS.get(ufunc.__name__) if method == "__call__" and not kwargs else None
        if operator is not None:  # an operator with a NumPy array on its left
            return getattr(_ops, operator)(*inputs)
        return self._numpy(f"np.{ufunc.__name__}", getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, f: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if f in (np.shape, np.ndim, np.size) and len(args) == 1 and not kwargs:  # these need no value
            return getattr(args[0], f.__name__)
        return self._numpy(f"np.{f.__name__}", f, args, kwargs)

    def _numpy(self, name: str, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function of NumPy's on concrete arrays, which gives NumPy arrays; an error that names it on traced ones."""
        def value(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x)(map(value, x))
            return x.known(f"{name}(...)") if isinstance(x, Array) else x
        return f(*map(value, args), **{k: value(x) for k, x in kwargs.items()})

    def describe(self) -> str:
        """What the array is, for an error message."""
        return f"{self.aval}, a concrete array"

    def _refuse_scalar(self, what: str) -> None:
        """Raise TypeError for what needs an axis."""
        if not self.ndim:
            raise TypeError(message(f"{what} a scalar: it has no axis", f"the array: {self.describe()}",
                                    "way out: a scalar is used as it is; x.reshape(1) gives it an axis",
                                    at=user_source(3)))

    def __bool__(self) -> bool:
        return bool(self._scalar("bool(...), as in `if` or `and`,", branch=True))

    def __int__(self) -> int:
        return int(self._scalar("int(...)", branch=True))

    def __float__(self) -> float:
        return float(self._scalar("float(...)"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(message("only an integer scalar can be an index", f"the array: {self.describe()}",
                                    at=user_source(2)))
        return int(self._scalar("an index of a Python sequence, or range(...),", branch=True))

    def _scalar(self, what: str, branch: bool = False) -> Any:
        if self.size != 1:
            way = "way out: x.any() or x.all()" if what.startswith("bool") else None
            raise ShapeError(message(f"{what} takes one element, got {self.aval}", f"the array: {self.describe()}", way,
                                     at=user_source(3)))
        return self.known(what, branch).reshape(())[()]

    def item(self) -> Any:
        """The only element as a Python number."""
        return self._scalar("x.item()").item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.known("x.tolist()").tolist()

    def __len__(self) -> int:
        self._refuse_scalar("len() of")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        self._refuse_scalar("iteration over")
        return (self[i] for i in range(self.shape[0]))

    def __repr__(self) -> str:
        text = np.array2string(self.value, separator=", ", prefix="Array(")
        return f"Array({text}, dtype={self.dtype.name}{', weak=True' if self.aval.weak else ''})"

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec and self.size == 1 else str(self), spec)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(message("arrays are immutable: x[...] = value is not possible",
                                "way out: x.at[...].set(value) is the new array, or pnp.where(mask, value, x)",
                                at=user_source(2)))

    # ------------------------------------------------------------------ operators
    def __add__(self, other: Any) -> Array: return _ops.add(self, other)
    def __radd__(self, other: Any) -> Array: return _ops.add(other, self)
    def __sub__(self, other: Any) -> Array: return _ops.subtract(self, other)
    def __rsub__(self, other: Any) -> Array: return _ops.subtract(other, self)
    def __mul__(self, other: Any) -> Array: return _ops.multiply(self, other)
    def __rmul__(self, other: Any) -> Array: return _ops.multiply(other, self)
    def __truediv__(self, other: Any) -> Array: return _ops.divide(self, other)
    def __rtruediv__(self, other: Any) -> Array: return _ops.divide(other, self)
    def __floordiv__(self, other: Any) -> Array: return _ops.floor_divide(self, other)
    def __rfloordiv__(self, other: Any) -> Array: return _ops.floor_divide(other, self)
    def __mod__(self, other: Any) -> Array: return _ops.remainder(self, other)
    def __rmod__(self, other: Any) -> Array: return _ops.remainder(other, self)
    def __divmod__(self, other: Any) -> Tuple[Array, Array]: return _ops.divmod_(self, other)
    def __rdivmod__(self, other: Any) -> Tuple[Array, Array]: return _ops.divmod_(other, self)
    def __pow__(self, other: Any) -> Array: return _ops.pow(self, other)
    def __rpow__(self, other: Any) -> Array: return _ops.pow(other, self)
    def __matmul__(self, other: Any) -> Array: return _ops.matmul(self, other)
    def __rmatmul__(self, other: Any) -> Array: return _ops.matmul(other, self)
    def __and__(self, other: Any) -> Array: return _ops.bitwise_and(self, other)
    def __rand__(self, other: Any) -> Array: return _ops.bitwise_and(other, self)
    def __or__(self, other: Any) -> Array: return _ops.bitwise_or(self, other)
    def __ror__(self, other: Any) -> Array: return _ops.bitwise_or(other, self)
    def __xor__(self, other: Any) -> Array: return _ops.bitwise_xor(self, other)
    def __rxor__(self, other: Any) -> Array: return _ops.bitwise_xor(other, self)
    def __lshift__(self, other: Any) -> Array: return _ops.bitwise_left_shift(self, other)
    def __rlshift__(self, other: Any) -> Array: return _ops.bitwise_left_shift(other, self)
    def __rshift__(self, other: Any) -> Array: return _ops.bitwise_right_shift(self, other)
    def __rrshift__(self, other: Any) -> Array: return _ops.bitwise_right_shift(other, self)
    def __invert__(self) -> Array: return _ops.bitwise_invert(self)
    def __neg__(self) -> Array: return _ops.negative(self)
    def __pos__(self) -> Array: return _ops.positive(self)
    def __abs__(self) -> Array: return _ops.abs(self)
    def __round__(self, ndigits: Optional[int] = None) -> Array: return _ops.round(self, ndigits or 0)
    def __eq__(self, other: Any) -> Array: return _ops.equal(self, other)  # type: ignore[override]
    def __ne__(self, other: Any) -> Array: return _ops.not_equal(self, other)  # type: ignore[override]
    def __lt__(self, other: Any) -> Array: return _ops.less(self, other)
    def __le__(self, other: Any) -> Array: return _ops.less_equal(self, other)
    def __gt__(self, other: Any) -> Array: return _ops.greater(self, other)
    def __ge__(self, other: Any) -> Array: return _ops.greater_equal(self, other)
    def __getitem__(self, key: Any) -> Array: return _ops.index(self, key)

    @property
    def at(self) -> Any:
        """`x.at[key].set(values)`, `.add`, `.multiply`, `.min`, `.max`: x with other elements at a key, a new array."""
        return _ops.At(self)

    # ------------------------------------------------------------------ methods
    @property
    def T(self) -> Array:
        """The axes in reverse order."""
        return _ops.permute_dims(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Array:
        """The last two axes swapped."""
        return _ops.matrix_transpose(self)

    def astype(self, dtype: Any) -> Array:
        """The same values in another dtype; floats are cut off toward zero on their way to integers."""
        return _ops.astype(self, dtype)

    def reshape(self, *shape: Any) -> Array:
        """Another shape of the same size; one size may be -1."""
        return _ops.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Array:
        """The axes in the order given, reversed by default."""
        if not axes:
            return self.T
        return _ops.permute_dims(self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    def ravel(self) -> Array:
        """The elements in one axis."""
        return _ops.reshape(self, (-1,))

    flatten = ravel

    def squeeze(self, axis: Any = None) -> Array:
        """Without axes of size 1: all of them, or those given."""
        return _ops.squeeze(self, axis)

    def sum(self, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        """Sum over axes, all by default."""
        return _ops.sum(self, axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Mean over axes, all by default."""
        return _ops.mean(self, axis, keepdims=keepdims)

    def var(self, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
        """Variance over axes, all by default; `correction=1` for the sample variance."""
        return _ops.var(self, axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
        """Standard deviation over axes, all by default."""
        return _ops.std(self, axis, correction=correction, keepdims=keepdims)

    def prod(self, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        """Product over axes, all by default."""
        return _ops.prod(self, axis, dtype=dtype, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Largest element over axes, all by default; NaN if there is one."""
        return _ops.max(self, axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Smallest element over axes, all by default; NaN if there is one."""
        return _ops.min(self, axis, keepdims=keepdims)

    def argmax(self, axis: Optional[int] = None, *, keepdims: bool = False) -> Array:
        """Index of the largest element, the first of equal ones; of the flat array by default."""
        return _ops.argmax(self, axis, keepdims=keepdims)

    def argmin(self, axis: Optional[int] = None, *, keepdims: bool = False) -> Array:
        """Index of the smallest element, the first of equal ones; of the flat array by default."""
        return _ops.argmin(self, axis, keepdims=keepdims)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Whether any element is nonzero."""
        return _ops.any(self, axis, keepdims=keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Whether all elements are nonzero."""
        return _ops.all(self, axis, keepdims=keepdims)

    def round(self, decimals: int = 0) -> Array:
        """The nearest integers, or multiples of 10 to the -`decimals`; the even ones of two equally near."""
        return _ops.round(self, decimals)

    def clip(self, min: Any = None, max: Any = None) -> Array:
        """Values cut off at the bounds."""
        return _ops.clip(self, min, max)

    def dot(self, other: Any) -> Array:
        """`x @ other`."""
        return _ops.matmul(self, other)
