"""Storage without memory: what stands for the tensors of a graph while it is traced.

A tensor is a Cell, which holds its value, or a View of other tensors. A write to a view computes new values for the
cells behind it, so in-place ops and aliasing become pure functions.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from popfn.host.engine.xla_values import compute


class Value(NamedTuple):
    """An array.

    Attributes:
        array: The array, or None where only the other facts are wanted.
        mapped: Whether it has a leading axis for the replicas, which may have different values then.
        product: The two values that it is the matrix product of, if it is one.
    """

    array: Any
    mapped: bool = False
    product: Optional[Tuple[Any, Any]] = None


class Cell:
    """The storage of one tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def read(self) -> Value:
        """The value."""
        return self.value

    def write(self, value: Value) -> None:
        """Give it another value."""
        self.value = value

    def cells(self) -> List["Cell"]:
        """Itself."""
        return [self]

    def moved(self, cells: Dict["Cell", "Cell"]) -> Any:
        """The same view of other cells."""
        return cells[self]


class View:
    """The output of a view twin: it shares the storage of the op's inputs."""

    __slots__ = ("tracing", "op", "bases")

    def __init__(self, tracing: Any, op: Any, bases: Sequence[Any]) -> None:
        self.tracing = tracing
        self.op = op
        self.bases = bases

    def read(self) -> Value:
        """The part of the bases that it shows."""
        bases = [base.read() for base in self.bases]
        found: Value = self.tracing.apply(lambda *xs: compute(self.op, xs), bases, 1)[0]
        return found

    def write(self, value: Value) -> None:
        """Put a value into that part of the bases."""
        op = self.op
        if op.kind == "concat_":
            start, axis = 0, op.attrs["axis"]
            for base, t in zip(self.bases, op.inputs):
                stop = start + t.shape[axis]
                base.write(self.tracing.one(lambda x, i=start, k=stop: lax.slice_in_dim(x, i, k, axis=axis), value))
                start = stop
            return
        put = _PUT[op.kind]
        base = self.bases[0]
        if op.kind == "slice_":
            base.write(self.tracing.one(lambda x, y: put(op, x, y), base.read(), value))
        else:
            base.write(self.tracing.one(lambda y: put(op, None, y), value))

    def cells(self) -> List[Cell]:
        """The cells that its bases end in."""
        return [cell for base in self.bases for cell in base.cells()]

    def moved(self, cells: Dict[Cell, Cell]) -> "View":
        """The same view of other cells."""
        return View(self.tracing, self.op, [base.moved(cells) for base in self.bases])


# The new value of the base of a view: put(op, base, view).


def _put_slice(op: Any, base: Any, view: Any) -> Any:
    starts, reverse = [], []
    for axis, part in enumerate(op.attrs["slices"]):
        start, _, step = part.indices(base.shape[axis])
        if step < 0:
            reverse.append(axis)
            start -= view.shape[axis] - 1
        starts.append(np.int32(start))
    return lax.dynamic_update_slice(base, lax.rev(view, reverse) if reverse else view, starts)


_PUT = {
    "reshape_": lambda op, base, view: jnp.reshape(view, op.inputs[0].shape),
    "transpose_": lambda op, base, view: jnp.transpose(view, np.argsort(op.attrs["permutation"]).tolist()),
    "detach_": lambda op, base, view: view,
    "slice_": _put_slice,
}
