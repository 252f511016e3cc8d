"""popfn.nn.init: initial values of parameters, as functions of a key, a shape and a dtype.

The scaled ones keep the variance of activations or gradients: their variance is `gain`^2 over the fan-in, the fan-out
or the mean of both. A weight of shape (..., in, out) has its fan-in on the last axis but one and its fan-out on the
last, times the product of the axes before them; a convolution's weight (out, in, *window), `convolution=True`, has them
on axes 1 and 0, times the window.

>>> import numpy as np, popfn as pf
>>> pf.nn.init.glorot_uniform(pf.random.key(0), (4, 8)).shape
(4, 8)
"""
from __future__ import annotations

import math
from typing import Any, Tuple, Union

from .. import numpy as pnp, random
from .._promotion import as_sizes
from ..trace.array import Array
from ..trace.aval import Shape, float32
from ..trace.errors import ShapeError, message, user_source

Sizes = Union[int, Shape]


def zeros(key: Any, shape: Sizes, dtype: Any = float32) -> Array:
    """Zeros; the key is not used."""
    return pnp.zeros(as_sizes(shape), dtype=dtype)


def ones(key: Any, shape: Sizes, dtype: Any = float32) -> Array:
    """Ones; the key is not used."""
    return pnp.ones(as_sizes(shape), dtype=dtype)


def normal(key: Any, shape: Sizes, dtype: Any = float32, *, std: float = 0.01) -> Array:
    """Normal numbers with mean 0 and this standard deviation."""
    return pnp.astype(random.normal(key, shape) * std, dtype)


def uniform(key: Any, shape: Sizes, dtype: Any = float32, *, bound: float = 0.01) -> Array:
    """Uniform numbers from -bound to bound."""
    return random.uniform(key, shape, dtype, -bound, bound)


def truncated_normal(key: Any, shape: Sizes, dtype: Any = float32, *, std: float = 0.01) -> Array:
    """Normal numbers within two standard deviations, scaled so that what remains has the standard deviation `std`."""
    cut = 0.87962566103423978  # the standard deviation of the standard normal distribution cut off at -2 and 2
    return pnp.astype(random.truncated_normal(key, -2.0, 2.0, as_sizes(shape)) * (std / cut), dtype)


def glorot_uniform(key: Any, shape: Sizes, dtype: Any = float32, *, gain: float = 1.0,
                   convolution: bool = False) -> Array:
    """Uniform, variance gain^2 over the mean of fan-in and fan-out (Glorot and Bengio, 2010)."""
    fan_in, fan_out = _fans("glorot_uniform", shape, convolution)
    return uniform(key, shape, dtype, bound=gain * math.sqrt(6 / (fan_in + fan_out)))


def glorot_normal(key: Any, shape: Sizes, dtype: Any = float32, *, gain: float = 1.0,
                  convolution: bool = False) -> Array:
    """Normal, variance gain^2 over the mean of fan-in and fan-out (Glorot and Bengio, 2010)."""
    fan_in, fan_out = _fans("glorot_normal", shape, convolution)
    return normal(key, shape, dtype, std=gain * math.sqrt(2 / (fan_in + fan_out)))


def he_uniform(key: Any, shape: Sizes, dtype: Any = float32, *, convolution: bool = False) -> Array:
    """Uniform, variance 2 over the fan-in, for relu (He et al., arXiv 1502.01852)."""
    return uniform(key, shape, dtype, bound=math.sqrt(6 / _fans("he_uniform", shape, convolution)[0]))


def he_normal(key: Any, shape: Sizes, dtype: Any = float32, *, convolution: bool = False) -> Array:
    """Normal, variance 2 over the fan-in, for relu (He et al., arXiv 1502.01852)."""
    return normal(key, shape, dtype, std=math.sqrt(2 / _fans("he_normal", shape, convolution)[0]))


def lecun_normal(key: Any, shape: Sizes, dtype: Any = float32, *, convolution: bool = False) -> Array:
    """Normal, variance 1 over the fan-in (LeCun et al., Efficient BackProp, 1998)."""
    return normal(key, shape, dtype, std=math.sqrt(1 / _fans("lecun_normal", shape, convolution)[0]))


def _fans(name: str, shape: Sizes, convolution: bool) -> Tuple[int, int]:
    """How many operands an element of the result has, and of how many results an operand is one."""
    shape = as_sizes(shape)
    if len(shape) < 2 or 0 in shape:
        raise ShapeError(message(f"nn.init.{name}: a weight has axes of inputs and of outputs, got shape {shape}",
                                 at=user_source(3)))
    inner, outer, rest = (shape[1], shape[0], shape[2:]) if convolution else (shape[-2], shape[-1], shape[:-2])
    return inner * math.prod(rest), outer * math.prod(rest)
