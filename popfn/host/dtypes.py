"""The data types of tensors."""

import builtins
from typing import Any, Dict

import numpy as np

np_dtype_float8_143 = np.dtype([("float8_143", "u1")])
np_dtype_float8_152 = np.dtype([("float8_152", "u1")])


class dtype:
    """A data type. There is one object for each, so `is` and `==` agree; there is no constructor (TypeError).

    Example:
        >>> import popfn.host as popxl
        >>> popxl.dtype.as_dtype("float32"), popxl.float16.as_numpy()
        (popxl.dtypes.float32, dtype('float16'))
    """

    __slots__ = ("_name", "_numpy")
    _name: str
    _numpy: np.dtype

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "a dtype cannot be constructed: use one of those popxl offers, such as popxl.float32."
        )

    @property
    def name(self) -> str:
        """The name, such as "float32"."""
        return self._name

    @property
    def is_int(self) -> builtins.bool:
        """Whether this is a signed or unsigned integer type; bool is none."""
        return "int" in self._name

    @property
    def is_floating_point(self) -> builtins.bool:
        """Whether this is a real floating-point type, the 8-bit ones included."""
        return self._name.startswith("float")

    @property
    def is_complex(self) -> builtins.bool:
        """Whether this is a complex type."""
        return self._name.startswith("complex")

    @property
    def is_signed(self) -> builtins.bool:
        """Whether the type has negative values."""
        return not self._name.startswith(("bool", "uint"))

    @classmethod
    def from_name(cls, name: str) -> "dtype":
        """Return the type of this name; ValueError if there is none."""
        try:
            return _BY_NAME[name]
        except (KeyError, TypeError):
            raise ValueError(
                "there is no popxl dtype named {!r}; the names are {}.".format(name, ", ".join(_BY_NAME))
            ) from None

    @classmethod
    def as_dtype(cls, type_value: Any) -> "dtype":
        """Return the type that matches a name, a Python, NumPy or torch type, or an array.

        Raises:
            ValueError: If there is no such type.
        """
        if isinstance(type_value, str):
            return cls.from_name(type_value)
        if type_value is builtins.float:  # NumPy would read float64
            return float32
        found = type_value if isinstance(type_value, type) else getattr(type_value, "dtype", type_value)
        if isinstance(found, (type, np.dtype)):
            try:
                return _BY_NUMPY[np.dtype(found)]
            except (KeyError, TypeError):
                pass
        name = str(found)
        if name.startswith("torch.") and name[6:] in _BY_NAME:
            return _BY_NAME[name[6:]]
        raise ValueError(f"there is no popxl dtype that matches {type_value!r}.")

    def as_numpy(self) -> np.dtype:
        """Return the NumPy dtype. 8-bit floats are structured types of one byte."""
        return self._numpy

    def as_torch(self) -> Any:
        """Return the torch dtype; TypeError if torch has none."""
        import torch

        found = getattr(torch, self._name, None)
        if found is None or self._name in ("uint16", "uint32", "uint64"):
            raise TypeError(f"torch has no dtype that matches {self!r}.")
        return found

    def __repr__(self) -> str:
        return "popxl.dtypes." + self._name


_BY_NAME: Dict[str, dtype] = {}
_BY_NUMPY: Dict[np.dtype, dtype] = {}


def _make(name: str, numpy_type: Any) -> dtype:
    made = object.__new__(dtype)
    made._name = name
    made._numpy = np.dtype(numpy_type)
    _BY_NAME[name] = _BY_NUMPY[made._numpy] = made
    return made


bool = _make("bool", np.bool_)
int8 = _make("int8", np.int8)
int16 = _make("int16", np.int16)
int32 = _make("int32", np.int32)
int64 = _make("int64", np.int64)
uint8 = _make("uint8", np.uint8)
uint16 = _make("uint16", np.uint16)
uint32 = _make("uint32", np.uint32)
uint64 = _make("uint64", np.uint64)
float8_143 = _make("float8_143", np_dtype_float8_143)
float8_152 = _make("float8_152", np_dtype_float8_152)
float16 = half = _make("float16", np.float16)
float32 = float = _make("float32", np.float32)
float64 = double = _make("float64", np.float64)
complex64 = _make("complex64", np.complex64)
complex128 = _make("complex128", np.complex128)
