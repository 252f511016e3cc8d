"""Dropout."""
from __future__ import annotations

from typing import Any, Sequence, Union

from .._promotion import all_axes, as_float
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import uint32
from ..trace.errors import ArgumentError, DtypeError, message, user_source
from ..trace.tracer import aval_of


def dropout(key: Any, x: Any, rate: float, *, shared_axes: Union[int, Sequence[int]] = ()) -> Array:
    """x with each element 0 with a probability of `rate` and divided by 1 - rate otherwise; of x's shape and dtype.

    Elements along `shared_axes` are kept or dropped together. The derivative draws the mask again from the key instead
    of keeping it. Leave it out where a model is not trained. Srivastava et al., 2014.

    >>> import numpy as np, popfn as pf
    >>> dropout(pf.random.key(3), np.ones(6, np.float32), 0.5)
    Array([2., 2., 0., 2., 2., 0.], dtype=float32)
    """
    x = as_float(x)
    if aval_of(key).dtype != uint32 or aval_of(key).shape != (2,):
        raise DtypeError(message(f"dropout takes a key, u32[2], got {aval_of(key)}",
                                 "way out: make one with random.key(seed)", at=user_source(2)))
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ArgumentError(message(f"dropout: the rate is a Python number from 0 to below 1, got {rate!r}",
                                    at=user_source(2)))
    shared = all_axes(shared_axes, x.ndim, "dropout")
    shape = tuple(1 if i in shared else n for i, n in enumerate(x.shape))
    return prims.dropout(x, key, float(rate), shape)
