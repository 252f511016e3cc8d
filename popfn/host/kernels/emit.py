"""How the NumPy engine computes an op, as source lines: the emitters that several families use.

An emitter gets a `Site`: its operands `ins` and `outs` (the first of which is `out`), and methods that append calls of
NumPy functions to the generated program, bind constants and ask for scratch memory. An operand's storage may be that
of `out` where the kernel says so (`inplace`): an emitter of several lines takes care not to overwrite what it still
needs.
"""

from typing import Any, Callable, Optional, Tuple

Emitter = Callable[[Any], None]


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


def ufunc(name: str) -> Emitter:
    """One NumPy function of all operands."""

    def emit(s: Any) -> None:
        s.apply(name, *s.ins)

    return emit


def reduction(name: str, before: Optional[str] = None, after: Optional[str] = None) -> Emitter:
    """A ufunc's reduction over the op's axes, of a ufunc of the operand, and a ufunc of the result."""

    def emit(s: Any) -> None:
        (x,) = s.ins
        if before is not None:
            t = s.scratch(x.shape, x.dtype)
            s.apply(before, *((x, x) if before == "multiply" else (x,)), out=t)
            x = t
        reduce(s, name, x, s.out, s.op.attrs["axes"], s.op.attrs["keepdims"])
        if after is not None:
            s.apply(after, s.out)

    return emit


def reduce(s: Any, name: str, x: Any, out: Any, axes: Tuple[int, ...], keepdims: bool) -> None:
    """Emit the reduction of `x` over axes into `out` by a ufunc."""
    axis = "None" if len(axes) == len(x.shape) else str(axes[0]) if len(axes) == 1 else str(axes)
    # NumPy would add and multiply small integers in 64 bits.
    dtype = f', dtype="{out.dtype}"' if name in ("add", "multiply") and out.dtype.kind in "iu" else ""
    keep = ", keepdims=True" if keepdims else ""
    s.line(f"{s.function(name)}.reduce({x.name}, axis={axis}{dtype}, out={out.name}{keep})")


def fill_zero(s: Any) -> None:
    """Fill the output with zeros."""
    s.line(f"{s.function('copyto')}({s.out.name}, {s.constant(0, s.out.dtype).name})")
