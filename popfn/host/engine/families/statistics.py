"""Order and counts: `median` and `histogram`, and the squared norm that LAMB takes."""

import math
from typing import Any, Dict, Tuple

import numpy as np

from popfn.host.engine.kernel import Kernel


def median(xp: Any, op: Any, t: Any) -> Tuple[Any, Any]:
    """The lower median, and its place among the reduced elements, the first of equal ones. NaN is the largest."""
    axes, shape = op.attrs["axes"], op.outputs[0].shape
    others = [axis for axis in range(t.ndim) if axis not in axes]
    rows = xp.transpose(t, (*others, *axes))
    rows = xp.reshape(rows, (math.prod(shape), math.prod([t.shape[axis] for axis in axes])))
    # JAX sorts in a stable way without being told.
    order = np.argsort(rows, axis=1, kind="stable") if xp is np else xp.argsort(rows, axis=1)
    middle = (rows.shape[1] - 1) // 2
    index = order[:, middle : middle + 1]
    return xp.reshape(xp.take_along_axis(rows, index, axis=1), shape), xp.reshape(index, shape)


def histogram(xp: Any, op: Any, t: Any) -> Any:
    """How many elements are below the first level, from each level to the next, and from the last one on, with NaN."""
    # A level is of the dtype of the tensor, as an element that equals it is.
    levels = np.asarray(op.attrs["levels"], op.inputs[0].dtype.as_numpy()).astype(t.dtype)
    t = xp.abs(t) if op.attrs["absolute_of_input"] else t
    below = [xp.sum(t < level) for level in levels]
    edges = [np.int32(0), *below, np.int32(math.prod(t.shape))]
    return xp.stack([after - before for before, after in zip(edges, edges[1:])])


def lamb_square(xp: Any, op: Any, t: Any) -> Any:
    """The sum of the squares."""
    return xp.sum(t * t)


def emit_lamb_square(s: Any) -> None:
    """Emit the sum of the squares."""
    (x,) = s.ins
    square = s.scratch(x.shape, x.dtype)
    s.apply("multiply", x, x, out=square)
    s.line(f"{s.function('add')}.reduce({square.name}, axis=None, out={s.out.name})")


KERNELS: Dict[str, Kernel] = {
    "median": Kernel(median),
    "histogram": Kernel(histogram, float32=True),
    "lamb_square": Kernel(lamb_square, emit_lamb_square, safe=True, float32=True),
}
