"""Embeddings, positions and attention."""
from __future__ import annotations

import math
from typing import Any, Dict, Optional

from .. import numpy as pnp
from .._promotion import as_float, checked_indices, converted, known
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import accumulator_dtype, bool_, int32
from ..trace.errors import DtypeError, ShapeError, message, user_source
from ..trace.tracer import aval_of


def embedding(table: Any, ids: Any) -> Array:
    """The rows of a table (entries, width) at integer ids of any shape: (*ids.shape, width).

    Traced ids that are out of range read the nearest row. Raises RangeError for known ones.
    """
    table = pnp.asarray(table)
    if table.ndim != 2 or aval_of(ids).dtype.kind not in "iu":
        raise ShapeError(message(f"embedding: a table (entries, width) and integer ids, got {table.aval} and "
                                 f"{aval_of(ids)}", at=user_source(2)))
    return prims.take(table, checked_indices(ids, table.shape[0], 0), 0)


def rotary_embedding(x: Any, positions: Any = None, *, base: float = 10000.0) -> Array:
    """x (..., length, width), each pair (i, i + width / 2) of its features turned by position / base^(2 i / width).

    `positions` are numbers of shape (length,), by default 0, 1, 2, ... Su et al., arXiv 2104.09864.
    Raises ShapeError if the width is odd.
    """
    x = as_float(x)
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ShapeError(message(f"rotary_embedding: x is (..., length, even width), got {x.aval}", at=user_source(2)))
    length, half = x.shape[-2], x.shape[-1] // 2
    if positions is None:
        positions = pnp.arange(length)
    elif aval_of(positions).shape != (length,):
        raise ShapeError(message(f"rotary_embedding: one position for each of {length} places, got "
                                 f"{aval_of(positions)}", at=user_source(2)))
    dtype = accumulator_dtype(x.dtype)
    frequencies = pnp.exp(converted(pnp.arange(half), dtype) * (-math.log(base) / max(half, 1)))
    angles = pnp.expand_dims(converted(positions, dtype), 1) * frequencies
    wide = converted(x, dtype)
    first, second = wide[..., :half], wide[..., half:]
    cos, sin = pnp.cos(angles), pnp.sin(angles)
    turned = pnp.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return converted(turned, x.dtype)


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, causal: bool = False,
              scale: Optional[float] = None) -> Array:
    """softmax(scale q k^T + bias) v over the last two axes: queries (..., n, width), keys (..., m, width).

    `v` is (..., m, any width). `mask` tells by True which of the m keys a query may see, `causal` lets query i see keys
    up to i + m - n; both and `bias` broadcast to (..., n, m). A query that may see nothing gets zeros. `scale` is
    1 / sqrt(width) by default. The softmax is computed in float32. Vaswani et al., arXiv 1706.03762.
    """
    q, k, v = (as_float(x) for x in (q, k, v))
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(message("attention: queries (..., n, width), keys (..., m, width) and values (..., m, any "
                                 f"width), got {q.aval}, {k.aval}, {v.aval}", at=user_source(2)))
    n, m = q.shape[-2], k.shape[-2]
    scores = pnp.matmul(q * (q.shape[-1] ** -0.5 if scale is None else scale), pnp.matrix_transpose(k))
    scores = converted(scores, accumulator_dtype(scores.dtype))
    if bias is not None:
        scores = scores + bias
    if mask is not None and aval_of(mask).dtype != bool_:
        raise DtypeError(message(f"attention: a mask is bool, got {aval_of(mask)}",
                                 "way out: what is added to the scores is bias=", at=user_source(2)))
    visible = None if mask is None else pnp.asarray(mask)
    if causal:
        rows, columns = prims.iota(int32, (n, m), 0), prims.iota(int32, (n, m), 1)
        seen = prims.le(columns, rows + (m - n))
        visible = seen if visible is None else pnp.logical_and(visible, seen)
    if visible is None:
        weights = prims.softmax(scores, scores.ndim - 1)
    else:
        hidden = pnp.where(visible, scores, -math.inf)
        # Where nothing is visible the softmax would be NaN: let it see everything there, and drop the result.
        some = pnp.any(visible, -1, keepdims=True)
        weights = pnp.where(some, prims.softmax(pnp.where(some, hidden, 0.0), hidden.ndim - 1), 0.0)
    return pnp.matmul(converted(weights, v.dtype), v)


def multi_head_attention(params: Dict[str, Any], x: Any, heads: int, *, context: Any = None, mask: Any = None,
                         causal: bool = False, rotary: bool = False) -> Array:
    """Attention of x (..., n, width) to `context` (..., m, width), or to itself, in several heads.

    `params` holds matrices "q", "k", "v" and "out" of shape (width, width), and may hold biases "q_bias", "k_bias",
    "v_bias" and "out_bias" of shape (width,). `mask` broadcasts to (..., heads, n, m). With `rotary` the queries and
    keys are turned by their positions (`rotary_embedding`). Raises ShapeError if the heads do not divide the width.
    """
    x, heads = as_float(x), known("multi_head_attention: the number of heads", heads)
    context = x if context is None else as_float(context)

    def projected(name: str, t: Array) -> Array:
        y = pnp.matmul(t, params[name])
        return y + params[name + "_bias"] if name + "_bias" in params else y

    def split(name: str, t: Array) -> Array:
        y = projected(name, t)
        if y.shape[-1] % heads:
            raise ShapeError(message(f"multi_head_attention: {heads} heads do not divide the width of {name}, {y.aval}",
                                     at=user_source(3)))
        y = pnp.reshape(y, (*y.shape[:-1], heads, y.shape[-1] // heads))
        return prims.transpose(y, (*range(y.ndim - 3), y.ndim - 2, y.ndim - 3, y.ndim - 1))
    q, k = split("q", x), split("k", context)
    if rotary:
        q, k = rotary_embedding(q), rotary_embedding(k)
    y = attention(q, k, split("v", context), mask=mask, causal=causal)
    y = prims.transpose(y, (*range(y.ndim - 3), y.ndim - 2, y.ndim - 3, y.ndim - 1))
    return projected("out", pnp.reshape(y, (*y.shape[:-2], y.shape[-2] * y.shape[-1])))
