"""Normalisation. float16 is computed in float32; scale and bias are optional and of the shape that is normalised."""
from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

from .. import numpy as pnp
from .._collectives import axis_size, pmean
from .._promotion import all_axes, as_float, known
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import accumulator_dtype
from ..trace.errors import ShapeError, message, user_source
from ..trace.tracer import aval_of


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axis: Union[int, Sequence[int]] = -1,
               eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) over axes, times `scale`, plus `bias`; of x's shape and dtype.

    `scale` and `bias` have the sizes of the normalised axes. Ba, Kiros and Hinton, arXiv 1607.06450.

    >>> import numpy as np
    >>> layer_norm(np.array([1.0, 3.0], np.float32), eps=0.0)
    Array([-1.,  1.], dtype=float32)
    """
    x = as_float(x)
    axes = all_axes(axis, x.ndim, "layer_norm")
    y = _standardised(_wide(x), axes, eps)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    return _affine("layer_norm", y, scale, bias, tuple(x.shape[a] for a in axes), shape, x)


def rms_norm(x: Any, scale: Any = None, *, axis: Union[int, Sequence[int]] = -1, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x^2) + eps) over axes, times `scale`; of x's shape and dtype.

    `scale` has the sizes of the normalised axes. Zhang and Sennrich, arXiv 1910.07467.
    """
    x = as_float(x)
    axes = all_axes(axis, x.ndim, "rms_norm")
    wide = _wide(x)
    y = wide * pnp.rsqrt(pnp.mean(wide * wide, axes, keepdims=True) + eps)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    return _affine("rms_norm", y, scale, None, tuple(x.shape[a] for a in axes), shape, x)


def group_norm(x: Any, groups: int, scale: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Array:
    """Samples (n, channels, ...) normalised over each of `groups` equal groups of channels and all that follows.

    `scale` and `bias` have one element per channel. Raises ShapeError if the groups do not divide the channels.
    Wu and He, arXiv 1803.08494.
    """
    x, groups = as_float(x), known("group_norm: the number of groups", groups)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(message(f"group_norm: the channels, axis 1 of {x.aval}, are not divided by {groups} groups",
                                 at=user_source(2)))
    wide = prims.reshape(_wide(x), (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    y = prims.reshape(_standardised(wide, (2,), eps), x.shape)
    return _affine("group_norm", y, scale, bias, (x.shape[1],), (1, x.shape[1]) + (1,) * (x.ndim - 2), x)


class BatchStatistics(NamedTuple):
    """The mean and variance of each channel: a running estimate, float32 (or float64), for `batch_norm`."""

    mean: Any
    var: Any


def batch_norm(x: Any, statistics: Tuple[Any, Any], scale: Any = None, bias: Any = None, *, training: bool,
               momentum: float = 0.9, eps: float = 1e-5, axis_name: Optional[str] = None,
               ) -> Tuple[Array, BatchStatistics]:
    """Samples (n, channels, ...) normalised per channel, and the running statistics after this batch.

    With `training` the batch's own mean and variance are used, and the statistics become momentum times the old ones
    plus (1 - momentum) times the batch's (its variance over n - 1). Otherwise the statistics given are used and
    returned. With an `axis_name` the batch is that of all lanes together. Ioffe and Szegedy, arXiv 1502.03167.

    >>> import numpy as np
    >>> x = np.array([[1.0], [3.0]], np.float32)
    >>> y, new = batch_norm(x, (np.zeros(1, np.float32), np.ones(1, np.float32)), training=True)
    >>> new.mean, new.var
    (Array([0.2], dtype=float32), Array([1.1], dtype=float32))
    """
    x = as_float(x)
    if x.ndim < 2:
        raise ShapeError(message(f"batch_norm: {x.aval} has no axes for samples and channels", at=user_source(2)))
    channels = (x.shape[1],)
    old = BatchStatistics(*(_checked("batch_norm", name, v, channels, x)
                            for name, v in zip(BatchStatistics._fields, statistics)))
    wide, shape = _wide(x), (1, x.shape[1]) + (1,) * (x.ndim - 2)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    if not training:
        mean, var, new = old.mean, old.var, old
        centred = wide - pnp.reshape(mean, shape)
    else:
        def over_lanes(v: Array) -> Array:
            return v if axis_name is None else pmean(v, axis_name)
        mean = over_lanes(pnp.mean(wide, axes))
        centred = wide - pnp.reshape(mean, shape)
        var = over_lanes(pnp.mean(centred * centred, axes))
        count = x.size // max(x.shape[1], 1) * (1 if axis_name is None else axis_size(axis_name))
        batch = mean, var * (count / max(count - 1, 1))
        new = BatchStatistics(*(prims.stop_gradient(a * momentum + b * (1 - momentum)) for a, b in zip(old, batch)))
    y = centred * pnp.reshape(pnp.rsqrt(var + eps), shape)
    return _affine("batch_norm", y, scale, bias, channels, shape, x), new


def _wide(x: Array) -> Array:
    """x in float32, or in float64 if it is that."""
    return prims.convert(x, accumulator_dtype(x.dtype))


def _standardised(x: Array, axes: Tuple[int, ...], eps: float) -> Array:
    centred = x - pnp.mean(x, axes, keepdims=True)
    return centred * pnp.rsqrt(pnp.mean(centred * centred, axes, keepdims=True) + eps)


def _affine(name: str, y: Array, scale: Any, bias: Any, sizes: Tuple[int, ...], shape: Tuple[int, ...], x: Array,
            ) -> Array:
    """y scale + bias in x's dtype, the parameters of `sizes` being laid out as `shape`."""
    if scale is not None:
        y = y * pnp.reshape(_checked(name, "scale", scale, sizes, x), shape)
    if bias is not None:
        y = y + pnp.reshape(_checked(name, "bias", bias, sizes, x), shape)
    return prims.convert(y, x.dtype)


def _checked(name: str, what: str, value: Any, sizes: Tuple[int, ...], x: Array) -> Array:
    """A parameter in float32 or float64, or a ShapeError if it is not of the sizes."""
    if aval_of(value).shape != sizes:
        raise ShapeError(message(f"{name}: {what} has shape {sizes} for {x.aval}, got {aval_of(value)}",
                                 at=user_source(3)))
    return _wide(as_float(value))
