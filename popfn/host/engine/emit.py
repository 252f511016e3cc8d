"""How the NumPy engine computes each op: emitters of source lines.

An emitter gets a `Site`: its operands `ins` and `outs` (the first of which is `out`), and methods that append calls of
NumPy functions to the generated program, bind constants and ask for scratch memory. An operand's storage may be that
of `out` where the kernel says so (`inplace`): an emitter of several lines takes care not to overwrite what it still
needs.
"""

import math
from typing import Any, Callable, Optional, Tuple

import numpy as np

from popfn.host.engine.values import GELU_CUBIC, GELU_LINEAR

Emitter = Callable[[Any], None]

# From this many elements on, `where` selects bits without branches: NumPy's masked copies mispredict on noisy masks.
_BITWISE_FROM = 4096


def call_value(s: Any) -> None:
    """Compute the kernel's value and copy it to the outputs."""
    name = s.bind_value()
    arguments = ", ".join(x.name for x in s.ins)
    if len(s.outs) == 1:
        s.line(f'{s.function("copyto")}({s.out.name}, {name}({arguments}), casting="unsafe")')
        return
    results = [f"{name}_{i}" for i in range(len(s.outs))]
    s.line(f"{', '.join(results)} = {name}({arguments})")
    for out, result in zip(s.outs, results):
        s.line(f'{s.function("copyto")}({out.name}, {result}, casting="unsafe")')


# Elementwise


def ufunc(name: str) -> Emitter:
    """One NumPy function of all operands."""

    def emit(s: Any) -> None:
        s.apply(name, *s.ins)

    return emit


def mul(s: Any) -> None:
    x, y = s.ins
    if x.dtype != y.dtype:  # a float16 tensor and a float32 scalar, which float16 may not hold
        s.apply("multiply", x, y, options=', dtype="float32", casting="same_kind"')
    else:
        s.apply("multiply", x, y)


def div(s: Any) -> None:
    x, y = s.ins
    if x.dtype.kind == "f":
        s.apply("divide", x, y)
    elif x.dtype.kind == "u":
        s.apply("floor_divide", x, y)
    else:  # rounds toward zero
        rest = s.scratch(s.out.shape, s.out.dtype)
        s.apply("fmod", x, y, out=rest)
        s.apply("subtract", x, rest, out=rest)
        s.apply("floor_divide", rest, y)


def power(s: Any) -> None:
    x, y = s.ins
    if y.literal == 2 and x.dtype.kind == "f":
        s.apply("multiply", x, x)
    elif x.dtype.kind == "f" or y.dtype.kind == "u":
        s.apply("power", x, y)
    else:
        call_value(s)


def sign(s: Any) -> None:
    s.apply("sign", *s.ins)
    if s.out.dtype.kind == "f":
        is_nan = s.scratch(s.out.shape, np.dtype(np.bool_))
        s.apply("isnan", s.out, out=is_nan)
        s.line(f"{s.function('copyto')}({s.out.name}, {s.constant(0, s.out.dtype).name}, where={is_nan.name})")


def maximum(s: Any) -> None:
    if len(s.ins) == 1:
        s.copy(s.out, s.ins[0])
        return
    s.apply("maximum", s.ins[0], s.ins[1])
    for x in s.ins[2:]:
        s.apply("maximum", s.out, x)


def relu(s: Any) -> None:
    s.apply("maximum", s.ins[0], s.constant(0, s.out.dtype))


def clip(s: Any) -> None:
    x, low, high = s.ins[0], s.op.attrs["min"], s.op.attrs["max"]
    if low != -math.inf or high == math.inf:
        s.apply("maximum", x, s.constant(low, x.dtype))
        x = s.out
    if high != math.inf:
        s.apply("minimum", x, s.constant(high, x.dtype))


def gelu(s: Any) -> None:
    x, dtype = s.ins[0], s.out.dtype
    t = s.scratch(x.shape, dtype) if x is s.out else s.out
    s.apply("multiply", x, x, out=t)
    s.apply("multiply", t, s.constant(GELU_CUBIC, dtype), out=t)
    s.apply("add", t, s.constant(GELU_LINEAR, dtype), out=t)
    s.apply("multiply", t, x, out=t)
    s.apply("tanh", t, out=t)
    s.apply("add", t, s.constant(1, dtype), out=t)
    s.apply("multiply", t, x, out=t)
    s.apply("multiply", t, s.constant(0.5, dtype))


def swish(s: Any) -> None:
    x, dtype = s.ins[0], s.out.dtype
    t = s.scratch(x.shape, dtype) if x is s.out else s.out
    s.apply("negative", x, out=t)
    s.apply("exp", t, out=t)
    s.apply("add", t, s.constant(1, dtype), out=t)
    s.apply("divide", x, t)


def where(s: Any) -> None:
    condition, x, y = s.ins
    out = s.out
    if x is y or condition.literal is not None:
        s.copy(out, x if x is y or condition.literal else y)
    elif math.prod(out.shape) >= _BITWISE_FROM:
        _where_bits(s)
    elif out is x:
        otherwise = s.scratch(condition.shape, condition.dtype)
        s.apply("logical_not", condition, out=otherwise)
        s.line(f"{s.function('copyto')}({out.name}, {y.name}, where={otherwise.name})")
    else:
        s.copy(out, y)
        s.line(f"{s.function('copyto')}({out.name}, {x.name}, where={condition.name})")


def _where_bits(s: Any) -> None:
    condition, x, y = s.ins
    bits = np.dtype(f"i{s.out.dtype.itemsize}")
    out, mask = s.bits(s.out, bits), s.scratch(condition.shape, bits)
    s.copy(mask, s.bits(condition, np.dtype(np.int8)))
    if _is_zero(x):
        s.apply("subtract", mask, s.constant(1, bits), out=mask)  # all bits of an element tell that it is y's
        s.apply("bitwise_and", s.bits(y, bits), mask, out=out)
        return
    s.apply("negative", mask, out=mask)  # all bits of an element tell that it is x's
    if _is_zero(y):
        s.apply("bitwise_and", s.bits(x, bits), mask, out=out)
        return
    t = s.scratch(s.out.shape, bits) if s.out is y else out
    x, y = s.bits(x, bits), s.bits(y, bits)
    s.apply("bitwise_xor", x, y, out=t)
    s.apply("bitwise_and", t, mask, out=t)
    s.apply("bitwise_xor", t, y, out=out)


def _is_zero(x: Any) -> bool:
    """Whether the operand is a constant all bits of which are 0."""
    return x.literal is not None and not x.literal and math.copysign(1, x.literal) > 0


def cast(s: Any) -> None:
    (x,) = s.ins
    if s.out.dtype.kind == "b":
        s.apply("not_equal", x, s.constant(0, x.dtype))
    else:
        s.copy(s.out, x)


# Along axes


def reduction(name: str, before: Optional[str] = None, after: Optional[str] = None) -> Emitter:
    """A ufunc's reduction over the op's axes, of a ufunc of the operand, and a ufunc of the result."""

    def emit(s: Any) -> None:
        (x,) = s.ins
        if before is not None:
            t = s.scratch(x.shape, x.dtype)
            s.apply(before, *((x, x) if before == "multiply" else (x,)), out=t)
            x = t
        _reduce(s, name, x, s.out, s.op.attrs["axes"], s.op.attrs["keepdims"])
        if after is not None:
            s.apply(after, s.out)

    return emit


def _reduce(s: Any, name: str, x: Any, out: Any, axes: Tuple[int, ...], keepdims: bool) -> None:
    axis = "None" if len(axes) == len(x.shape) else str(axes[0]) if len(axes) == 1 else str(axes)
    # NumPy would add and multiply small integers in 64 bits.
    dtype = f', dtype="{out.dtype}"' if name in ("add", "multiply") and out.dtype.kind in "iu" else ""
    keep = ", keepdims=True" if keepdims else ""
    s.line(f"{s.function(name)}.reduce({x.name}, axis={axis}{dtype}, out={out.name}{keep})")


def mean(s: Any) -> None:
    (x,) = s.ins
    if x.dtype.kind != "f":
        call_value(s)
        return
    axes = s.op.attrs["axes"]
    _reduce(s, "add", x, s.out, axes, s.op.attrs["keepdims"])
    s.apply("divide", s.out, s.constant(math.prod([x.shape[axis] for axis in axes]), s.out.dtype))


def softmax(s: Any) -> None:
    (x,), axis = s.ins, s.op.attrs["axis"]
    across = s.scratch(x.shape[:axis] + (1,) + x.shape[axis + 1 :], x.dtype)
    _reduce(s, "maximum", x, across, (axis,), True)
    s.apply("subtract", x, across)
    s.apply("exp", s.out)
    _reduce(s, "add", s.out, across, (axis,), True)
    s.apply("divide", s.out, across)


def cumsum(s: Any) -> None:
    (x,) = s.ins
    s.line(
        f'{s.function("add")}.accumulate({x.name}, axis={s.op.attrs["axis"]}, dtype="{s.out.dtype}", out={s.out.name})'
    )


# Elements by index, and movement


def gather(s: Any) -> None:
    if s.op.attrs["zero_OOR"]:
        call_value(s)
    else:
        t, indices = s.ins
        s.line(
            f'{s.function("take")}({t.name}, {indices.name}, axis={s.op.attrs["axis"]}, out={s.out.name}, mode="clip")'
        )


def onehot(s: Any) -> None:
    (t, values), axis, out = s.ins, s.op.attrs["axis"], s.out
    count = s.op.attrs["num_classes"]
    if count > np.iinfo(t.dtype).max:  # the classes would not fit into the indices' dtype
        call_value(s)
        return
    classes = s.constant_array(
        "classes", np.arange(count, dtype=t.dtype).reshape((count,) + (1,) * (len(t.shape) - axis))
    )
    is_on = s.scratch(out.shape, np.dtype(np.bool_))
    s.apply("equal", s.expanded(t, axis), classes, out=is_on)
    off, on = (s.reshaped(s.section(values, 0, k, k + 1), ()) for k in (0, 1))
    s.copy(out, off)
    s.line(f"{s.function('copyto')}({out.name}, {on.name}, where={is_on.name})")


def concat(s: Any) -> None:
    axis, start = s.op.attrs["axis"], 0
    for x in s.ins:
        stop = start + x.shape[axis]
        s.copy(s.section(s.out, axis, start, stop), x)
        start = stop


def dynamic_slice(s: Any) -> None:
    t, index = s.ins
    s.line(f"{s.function('copyto')}({s.out.name}, {t.name}[{s.bind_window()}({t.name}, {index.name})])")


def dynamic_update(s: Any) -> None:
    t, index, update = s.ins
    s.copy(s.out, t)
    s.line(f"{s.out.name}[{s.bind_window()}({s.out.name}, {index.name})] = {update.name}")


def init(s: Any) -> None:
    if s.op.attrs["init_type"] == "zero":
        fill_zero(s)


def fill_zero(s: Any) -> None:
    s.line(f"{s.function('copyto')}({s.out.name}, {s.constant(0, s.out.dtype).name})")


# Linear algebra


def matmul(s: Any) -> None:
    x, y, out = s.ins[0], s.ins[1], s.out
    if x.dtype != out.dtype:
        if x.dtype.kind != "f":
            call_value(s)
            return
        out = s.scratch(out.shape, x.dtype)
    if x.dtype.kind == "f":
        x, y = (t if _suits_blas(t) else s.compact(t) for t in (x, y))
        if len(x.shape) > 2 and len(y.shape) > 1 and x.contiguous and math.prod(y.shape[:-2]) == 1:
            # One product of all rows instead of one for each batch.
            x, y = s.reshaped(x, (-1, x.shape[-1])), s.matrix(y)
            s.apply("matmul", x, y, out=s.reshaped(out, (-1, out.shape[-1])))
        else:
            s.apply("matmul", x, y, out=out)
    else:
        s.apply("matmul", x, y, out=out)
    if out is not s.out:
        s.copy(s.out, out)


def _suits_blas(t: Any) -> bool:
    """Whether BLAS reads the matrices of `t` where they are; NumPy's own loops are ten times slower."""
    size = t.dtype.itemsize
    if len(t.shape) == 1:
        return t.strides[0] == size or t.shape[0] == 1
    (rows, columns), (down, along) = t.shape[-2:], t.strides[-2:]
    if rows == 1 or columns == 1:
        return t.contiguous
    return (along == size and down >= size * columns and down % size == 0) or (
        down == size and along >= size * rows and along % size == 0
    )


# Updates


def copy_update(s: Any) -> None:
    s.copy(s.out, s.ins[1])


def accumulate(s: Any) -> None:
    t, x = s.ins[0], s.ins[1]
    f = s.op.attrs["f"] if len(s.ins) < 3 else s.reshaped(s.ins[2], ())
    if f is None:
        s.apply("add", t, x)
        return
    product = s.scratch(x.shape, t.dtype)
    s.apply("multiply", x, s.constant(f, t.dtype) if isinstance(f, float) else f, out=product)
    s.apply("add", t, product)
