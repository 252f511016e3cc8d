"""Convolution and pooling of samples (batch, channels, *sizes) with any number of spatial axes."""
from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple, Union

import numpy as np

from .. import numpy as pnp
from .._promotion import as_array, as_float, floats, in_float32, known
from ..trace import prims
from ..trace.array import Array
from ..trace.errors import ArgumentError, ShapeError, message, user_source
from ..trace.prims.convolution import span, spans, steps, swapped_in_groups

Ints = Union[int, Sequence[int]]
Pairs = Tuple[Tuple[int, ...], Tuple[int, ...]]
#: "valid", "same", a number for all sides, or for each axis a number or a pair (before, behind).
Padding = Union[str, int, Sequence[Union[int, Tuple[int, int]]]]


def conv(x: Any, w: Any, *, strides: Ints = 1, padding: Padding = "valid", dilation: Ints = 1,
         input_dilation: Ints = 1, groups: int = 1) -> Array:
    """The convolution of samples x (batch, channels, *sizes) with kernels w (outputs, channels / groups, *sizes).

    As everywhere in machine learning the kernels are not mirrored. `strides` is how far they move, `dilation` the
    distance of their elements, `input_dilation` that of the samples'; each is one number or one for each spatial axis.
    `padding` puts zeros around the samples: "valid" none, "same" as many as make the result ceil(size / stride), an odd
    one behind, else a number for all sides or, for each axis, a number or a pair (before, behind); negative ones cut
    off. The outputs in each of the `groups` see the channels of their group only. Integers are taken as float32;
    float16 is accumulated in float32.

    The result is (batch, outputs, *sizes). Raises ShapeError where the shapes, groups or parameters do not go together,
    and where the kernel is larger than the padded samples; ArgumentError for parameters of the wrong kind.

    >>> import numpy as np
    >>> conv(np.ones((8, 3, 32, 32)), np.ones((16, 3, 5, 5)), strides=2, padding="same").shape
    (8, 16, 16, 16)
    """
    x, w = _operands("conv", x, w)
    rank = x.ndim - 2
    by, apart, inputs_apart = (_each("conv", name, v, rank) for name, v in (
        ("strides", strides), ("dilation", dilation), ("input_dilation", input_dilation)))
    groups = _check_groups("conv", x, w, groups, "(outputs, channels / groups, *sizes)", channels=1)
    sizes, window = spans(x.shape[2:], inputs_apart), spans(w.shape[2:], apart)
    low, high = _pads("conv", padding, sizes, window, by)
    _check_fit("conv", x, sizes, window, low, high)
    return as_array(prims.conv(x, w, by, low, high, inputs_apart, apart, groups))


def conv_transpose(x: Any, w: Any, *, strides: Ints = 1, padding: Padding = "valid", dilation: Ints = 1,
                   groups: int = 1, output_padding: Ints = 0) -> Array:
    """The transpose of `conv`: what its gradient makes of samples (batch, channels, *sizes); also called deconvolution.

    The kernels w are (channels, outputs / groups, *sizes), those of the convolution that takes the result's shape to
    that of x. `strides`, `padding`, `dilation` and `groups` are that convolution's, so that padding cuts off:
    the result has stride (size - 1) + dilation (kernel - 1) + 1 - before - behind + output_padding in each axis, and
    stride * size for padding "same". `output_padding`, which chooses among the sizes that the convolution takes
    to the same, is less than the stride or the dilation.

    Raises ShapeError where the shapes, groups or parameters do not go together; ArgumentError for parameters of the
    wrong kind.

    >>> import numpy as np
    >>> conv_transpose(np.ones((8, 16, 16, 16)), np.ones((16, 3, 5, 5)), strides=2, padding="same").shape
    (8, 3, 32, 32)
    """
    name = "conv_transpose"
    x, w = _operands(name, x, w)
    rank = x.ndim - 2
    by, apart = _each(name, "strides", strides, rank), _each(name, "dilation", dilation, rank)
    extra = _each(name, "output_padding", output_padding, rank, 0)
    groups = _check_groups(name, x, w, groups, "(channels, outputs / groups, *sizes)", channels=0)
    if any(n >= max(s, d) for n, s, d in zip(extra, by, apart)):
        raise ShapeError(message(f"{name}: output_padding {extra} is less than strides {by} or dilation {apart}",
                                 at=user_source(2)))
    window = spans(w.shape[2:], apart)
    if padding == "same":
        before, behind = _same(tuple(n * s for n, s in zip(x.shape[2:], by)), window, by)
        extra = tuple(max(s - k, 0) + n for s, k, n in zip(by, window, extra))
    else:
        before, behind = _pads(name, padding, x.shape[2:], window, by)
    low = tuple(k - 1 - n for k, n in zip(window, before))
    high = tuple(k - 1 - n + more for k, n, more in zip(window, behind, extra))
    sizes = tuple(span(n, s) + lo + hi - k + 1 for n, s, lo, hi, k in zip(x.shape[2:], by, low, high, window))
    if min(sizes) < 1 and x.size:
        raise ShapeError(message(f"{name}: padding {before} and {behind} cuts all off that {w.aval} makes of {x.aval}",
                                 at=user_source(2)))
    kernels = pnp.flip(swapped_in_groups(w, groups), axis=tuple(range(2, 2 + rank)))
    return as_array(prims.conv(x, kernels, (1,) * rank, low, high, by, apart, groups))


def max_pool(x: Any, window: Ints, *, strides: Optional[Ints] = None, padding: Padding = "valid",
             dilation: Ints = 1) -> Array:
    """The largest element of each window of samples (batch, channels, *sizes); NaN if there is one.

    `window` is its size, `strides` how far it moves, by default its size; `dilation` is the distance of its elements.
    `padding` is that of `conv` but not negative, and -inf. The gradient goes to the first of the largest elements.

    Raises ShapeError where the parameters do not fit the samples, or a window sees nothing but padding; ArgumentError
    for parameters of the wrong kind.

    >>> import numpy as np
    >>> max_pool(np.arange(6.0).reshape(1, 1, 6), 2)
    Array([[[1., 3., 5.]]], dtype=float32)
    """
    x, size, by, low, high, apart = _pool("max_pool", x, window, strides, padding, dilation, alone=False)
    return as_array(prims.max_pool(x, size, by, low, high, apart))


def avg_pool(x: Any, window: Ints, *, strides: Optional[Ints] = None, padding: Padding = "valid",
             dilation: Ints = 1, count_include_pad: bool = False) -> Array:
    """The mean of each window of samples (batch, channels, *sizes). float16 is computed in float32.

    The parameters are those of `max_pool`. Padding is 0; it counts as elements if `count_include_pad` is set, and else
    the mean is that of the samples' own elements. Raises as `max_pool` does; a window may see nothing but padding if
    that counts.

    >>> import numpy as np
    >>> avg_pool(np.arange(6.0).reshape(1, 1, 6), 2)
    Array([[[0.5, 2.5, 4.5]]], dtype=float32)
    """
    x, size, by, low, high, apart = _pool("avg_pool", x, window, strides, padding, dilation, alone=count_include_pad)
    count: Any = float(math.prod(size))
    if any(low + high) and not count_include_pad:
        count = _counts(x.shape[2:], size, by, low, high, apart)
    return in_float32(lambda x: prims.sum_pool(x, size, by, low, high, (1,) * len(size), apart) / count, x)


# ---------------------------------------------------------------------------- reading the parameters
def _operands(name: str, x: Any, w: Any) -> Tuple[Array, Array]:
    """Samples and kernels as floats of one dtype."""
    x, w = (as_array(v) for v in floats(x, w))
    if x.ndim < 3 or w.ndim != x.ndim or min(w.shape[2:]) < 1:
        raise ShapeError(message(f"{name} takes samples (batch, channels, *sizes) and kernels with as many spatial "
                                 f"axes, at least one, got {x.aval} and {w.aval}", at=user_source(3)))
    return x, w


def _each(name: str, what: str, value: Any, rank: int, least: int = 1) -> Tuple[int, ...]:
    """A parameter as one number for each spatial axis."""
    value = known(f"{name}: {what}", value)
    each = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if not all(map(_is_int, each)):
        raise ArgumentError(message(f"{name}: {what} is an integer or one for each spatial axis, got {value!r}",
                                    at=user_source(3)))
    if len(each) != rank or min(each) < least:
        raise ShapeError(message(f"{name}: {what} is {least} or more, one for each of the {rank} spatial axes, got "
                                 f"{value!r}", at=user_source(3)))
    return tuple(map(int, each))


def _is_int(n: Any) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


def _check_groups(name: str, x: Array, w: Array, groups: Any, layout: str, channels: int) -> int:
    """The groups, which divide the kernels, whose axis `channels` is that of the samples' channels; else an error."""
    groups = known(f"{name}: groups", groups)
    if not _is_int(groups) or groups < 1:
        raise ArgumentError(message(f"{name}: groups is an integer of 1 or more, got {groups!r}", at=user_source(3)))
    if w.shape[channels] * (groups if channels else 1) != x.shape[1] or w.shape[0] % groups:
        raise ShapeError(message(f"{name}: kernels {layout} {w.aval} in {groups} groups do not fit samples "
                                 f"(batch, channels, *sizes) {x.aval}", at=user_source(3)))
    return int(groups)


def _same(sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]) -> Pairs:
    """The padding that makes ceil(size / stride) windows, an odd one behind."""
    totals = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(sizes, window, strides)]
    return tuple(n // 2 for n in totals), tuple(n - n // 2 for n in totals)


def _pads(name: str, padding: Any, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]) -> Pairs:
    """How much is padded before and behind each spatial axis."""
    rank, padding = len(sizes), known(f"{name}: the padding", padding)
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding == "same":
        return _same(sizes, window, strides)
    each = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * rank
    pairs = [tuple(v) if isinstance(v, (tuple, list)) else (v, v) for v in each]
    if len(pairs) != rank or not all(len(pair) == 2 and all(map(_is_int, pair)) for pair in pairs):
        raise ArgumentError(message(f'{name}: padding is "valid", "same", an integer or, for each of the {rank} '
                                    f"spatial axes, an integer or a pair (before, behind), got {padding!r}",
                                    at=user_source(3)))
    return tuple(int(lo) for lo, _ in pairs), tuple(int(hi) for _, hi in pairs)


def _check_fit(name: str, x: Array, sizes: Sequence[int], window: Sequence[int], low: Sequence[int],
               high: Sequence[int]) -> None:
    """Raise ShapeError where a window is larger than the padded samples."""
    room = tuple(n + lo + hi for n, lo, hi in zip(sizes, low, high))
    if any(n < k for n, k in zip(room, window)):
        raise ShapeError(message(f"{name}: a window that spans {window} does not fit into {x.aval}, which has the "
                                 f"spatial shape {room} with its padding", at=user_source(3)))


def _pool(name: str, x: Any, window: Any, strides: Any, padding: Any, dilation: Any, alone: bool) -> Any:
    """A pooling's samples and parameters; `alone` lets a window see nothing but padding."""
    x = as_float(x)
    rank = x.ndim - 2
    if rank < 1:
        raise ShapeError(message(f"{name} takes samples (batch, channels, *sizes), got {x.aval}", at=user_source(3)))
    size = _each(name, "window", window, rank)
    by = size if strides is None else _each(name, "strides", strides, rank)
    apart = _each(name, "dilation", dilation, rank)
    low, high = _pads(name, padding, x.shape[2:], spans(size, apart), by)
    if min(low + high) < 0:
        raise ShapeError(message(f"{name}: padding is 0 or more, got {padding!r}", at=user_source(3)))
    _check_fit(name, x, x.shape[2:], spans(size, apart), low, high)
    if not alone and not _counts(x.shape[2:], size, by, low, high, apart).all():
        raise ShapeError(message(f"{name}: a window of {size} sees nothing but padding, {low} before and {high} behind "
                                 f"{x.aval}", "way out: pad less", at=user_source(3)))
    return x, size, by, low, high, apart


def _counts(sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], low: Sequence[int],
            high: Sequence[int], dilation: Sequence[int]) -> np.ndarray:
    """How many elements of each window are the samples' own: the product of their numbers along each axis."""
    total = np.ones((), np.float32)
    for n, k, s, lo, hi, d in zip(sizes, window, strides, low, high, dilation):
        count, = steps((n + lo + hi,), (span(k, d),), (s,))
        at = s * np.arange(count)[:, None] + d * np.arange(k) - lo
        total = total[..., None] * ((at >= 0) & (at < n)).sum(1).astype(np.float32)
    return total
