"""Ops that rearrange, cut and join tensors, and that make or move them.

Errors, unless a function says more: TypeError for an operand that is no Tensor or a number that is no int,
ValueError for a tensor of another graph, popart_exception for axes and shapes that do not fit.
"""

import builtins
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import numpy as np

from popfn.host import dtypes
from popfn.host.context import get_current_graph
from popfn.host.errors import UndefinedValue, popart_exception
from popfn.host.graph import Graph
from popfn.host.kernels import emit
from popfn.host.kernels.kernel import SAME, Kernel, in_place
from popfn.host.kernels.layout import Layout, permuted, reshaped, sliced
from popfn.host.kernels.values import out_dtype
from popfn.host.ops import _build
from popfn.host.tensor import Shape, Tensor, _as_shape, _check_dtype, _check_name


def _reshape(kind: str, t: Tensor, shape: Any) -> Tensor:
    graph = _build.checked(kind, t=t)
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"{kind}: the shape must be a tuple of ints, not {shape!r}.")
    wanted = _build.as_ints(kind, "the shape", shape)
    if any(n == 0 or n < -1 for n in wanted) or wanted.count(-1) > 1:
        raise ValueError(
            f"{kind}: the shape {wanted} is not possible for {t!r}: axes are positive, and one of them may be -1."
        )
    size = _build.nelms(t.shape)
    if -1 in wanted:
        known = -_build.nelms(wanted)
        wanted = tuple([size // known if n == -1 else n for n in wanted])
    if _build.nelms(wanted) != size:
        raise popart_exception(f"{kind}: {t!r} has {size} elements, the shape {tuple(shape)} has not.")
    return _reshape_to(graph, kind, t, wanted)


def _reshape_to(graph: Graph, kind: str, t: Tensor, shape: Shape) -> Tensor:
    if kind == "reshape_" and 0 in t.shape:
        raise popart_exception(f"{kind}: {t!r} has no elements to view.")
    return _build.emit(graph, kind, (t,), shape, t.dtype, None, t.name + "_reshaped")


def reshape(t: Tensor, shape: Tuple[int, ...]) -> Tensor:
    """Return a copy of the shape `shape`, in which one axis may be -1: as long as it has to be.

    Raises:
        ValueError: If an axis is 0 or below -1, or several are -1.
        popart_exception: If the numbers of elements differ.
    """
    return _reshape("reshape", t, shape)


def reshape_(t: Tensor, shape: Tuple[int, ...]) -> Tensor:
    """`reshape` as a view."""
    return _reshape("reshape_", t, shape)


def _reshape_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.reshape(x, op.outputs[0].shape)


def _view_reshape(op: Any, i: int, x: Any) -> Optional[Layout]:
    strides = reshaped(x.shape, x.strides, op.outputs[0].shape, x.dtype.itemsize)
    return None if strides is None else (strides, 0)


def flatten(t: Tensor) -> Tensor:
    """Return a copy with one axis."""
    return _reshape_to(_build.checked("flatten", t=t), "reshape", t, (_build.nelms(t.shape),))


def flatten_(t: Tensor) -> Tensor:
    """`flatten` as a view."""
    return _reshape_to(_build.checked("flatten_", t=t), "reshape_", t, (_build.nelms(t.shape),))


def squeeze(t: Tensor, axes: Optional[List[int]] = None) -> Tensor:
    """Return a copy without its axes of length 1, or without the given ones.

    Raises:
        ValueError: If an axis is out of range, repeated, or not of length 1.
    """
    graph = _build.checked("squeeze", t=t)
    rank = len(t.shape)
    if axes is None:
        gone = [i for i in range(rank) if t.shape[i] == 1]
    else:
        gone = [_build.wrapped(axis, rank) for axis in _build.as_ints("squeeze", "axes", axes)]
        if any(not 0 <= i < rank or t.shape[i] != 1 for i in gone) or len(set(gone)) < len(gone):
            raise ValueError(
                f"squeeze: the axes {list(axes)} must be different axes of length 1 of {t!r}."
            )
    return _reshape_to(graph, "reshape", t, tuple([n for i, n in enumerate(t.shape) if i not in gone]))


def _transpose(kind: str, t: Tensor, permutation: Optional[Iterable[int]]) -> Tensor:
    graph = _build.checked(kind, t=t)
    rank = len(t.shape)
    order = _build.as_ints(kind, "the permutation", () if permutation is None else permutation)
    if any(axis >= rank for axis in order):
        raise ValueError(f"{kind}: the permutation {order} names axes that {t!r} has not.")
    order = tuple([axis + rank if axis < 0 else axis for axis in order]) or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise popart_exception(f"{kind}: {order} is no permutation of the {rank} axes of {t!r}.")
    shape = tuple([t.shape[axis] for axis in order])
    return _build.emit(graph, kind, (t,), shape, t.dtype, {"permutation": order}, t.name + "_T")


def transpose(t: Tensor, permutation: Optional[Tuple[int, ...]] = None) -> Tensor:
    """Return a copy with its axes in the order `permutation`, by default reversed.

    Raises:
        ValueError: If the permutation names an axis that does not exist.
        popart_exception: If it is no permutation of all axes.
    """
    return _transpose("transpose", t, permutation)


def transpose_(t: Tensor, permutation: Optional[Tuple[int, ...]] = None) -> Tensor:
    """`transpose` as a view."""
    return _transpose("transpose_", t, permutation)


def _transpose_value(xp: Any, op: Any, x: Any) -> Any:
    return xp.transpose(x, op.attrs["permutation"])


def _view_transpose(op: Any, i: int, x: Any) -> Layout:
    return permuted(x.strides, op.attrs["permutation"]), 0


def _concat(kind: str, ts: Iterable[Tensor], axis: int) -> Tensor:
    graph, ts = _build.checked_list(kind, ts)
    if not ts:
        raise ValueError(f"{kind}: there must be at least one tensor.")
    if any(t.dtype is not ts[0].dtype for t in ts):
        raise TypeError("{}: the dtypes of {} differ.".format(kind, " and ".join(map(repr, ts))))
    axis = _build.as_axis(kind, "axis", axis, ts[0])
    lead, tail = ts[0].shape[:axis], ts[0].shape[axis + 1 :]
    if any(
        t.shape[:axis] != lead or t.shape[axis + 1 :] != tail or len(t.shape) != len(ts[0].shape) for t in ts
    ):
        listed = " and ".join(map(repr, ts))
        raise popart_exception(f"{kind}: the shapes of {listed} differ elsewhere than on axis {axis}.")
    shape = lead + (sum(t.shape[axis] for t in ts),) + tail
    return _build.emit(graph, kind, ts, shape, ts[0].dtype, {"axis": axis}, "concat_out")


def concat(ts: Iterable[Tensor], axis: int = 0) -> Tensor:
    """Join tensors along `axis`.

    Raises:
        ValueError: If there is no tensor.
        TypeError: If the dtypes differ.
        popart_exception: If the shapes differ elsewhere than on `axis`.
    """
    return _concat("concat", ts, axis)


def concat_(ts: Iterable[Tensor], axis: int = 0) -> Tensor:
    """`concat` as a view of all tensors."""
    return _concat("concat_", ts, axis)


def _concat_value(xp: Any, op: Any, *xs: Any) -> Any:
    return xp.concatenate(xs, axis=op.attrs["axis"])


def _emit_concat(s: Any) -> None:
    axis, start = s.op.attrs["axis"], 0
    for x in s.ins:
        stop = start + x.shape[axis]
        s.copy(s.section(s.out, axis, start, stop), x)
        start = stop


def split(t: Tensor, splits: Union[int, List[int]], axis: int = 0) -> List[Tensor]:
    """Cut `t` along `axis` into `splits` equal parts, or into parts of the lengths `splits`.

    Raises:
        ValueError: If the axis cannot be cut into that many equal parts.
        IndexError: If the axis is out of range.
        popart_exception: If the lengths do not add up to that of the axis.
    """
    graph = _build.checked("split", t=t)
    axis = _build.as_int("split", "axis", axis)
    if not -len(t.shape) <= axis < len(t.shape):
        raise IndexError(f"split: axis {axis} is out of range for {t!r}.")
    axis %= len(t.shape)
    length = t.shape[axis]
    if hasattr(splits, "__iter__"):
        sizes = _build.as_ints("split", "splits", splits)
        if sum(sizes) != length or any(n < 0 for n in sizes) or not sizes:
            raise popart_exception(f"split: the lengths {list(sizes)} do not add up to axis {axis} of {t!r}.")
    else:
        parts = _build.as_int("split", "splits", splits)
        if parts < 1 or length % parts:
            raise ValueError(f"split: axis {axis} of {t!r} has no {parts} equal parts.")
        sizes = (length // parts,) * parts
    results = [
        (f"{t.name}_split_{i}", t.shape[:axis] + (n,) + t.shape[axis + 1 :], t.dtype, ())
        for i, n in enumerate(sizes)
    ]
    return list(graph._add_op("split", (t,), results, {"axis": axis, "sizes": sizes}).outputs)


def _split_value(xp: Any, op: Any, x: Any) -> Any:
    ends = np.cumsum(op.attrs["sizes"])[:-1]
    parts = xp.split(x, ends.tolist(), axis=op.attrs["axis"])
    return tuple(parts) if len(parts) > 1 else parts[0]


def _view_split(op: Any, i: int, x: Any) -> Layout:
    return x.strides, x.strides[op.attrs["axis"]] * sum(op.attrs["sizes"][:i])


Bounds = Optional[Union[int, List[Optional[int]]]]


def _slice(kind: str, t: Tensor, start: Bounds, stop: Bounds, step: Bounds, axis: Any) -> Tensor:
    graph = _build.checked(kind, t=t)
    given = {"start": start, "stop": stop, "step": step, "axis": axis}
    lists: Dict[str, List[Any]] = {
        name: list(value) if isinstance(value, (list, tuple)) else [value]
        for name, value in given.items()
        if value is not None
    }
    if not lists:
        return t
    count = max(len(values) for values in lists.values())
    if any(len(values) != count for values in lists.values()):
        raise ValueError(f"{kind}: the lengths of start, stop, step and axis for {t!r} differ: {given}.")
    axes = lists.get("axis", range(count))
    nothing = [None] * count
    slices = [builtins.slice(0, n, 1) for n in t.shape]
    for a, *bounds in zip(axes, *[lists.get(name, nothing) for name in ("start", "stop", "step")]):
        a = _build.as_axis(kind, "axis", a, t)
        first, last, stride = [b if b is None else _build.as_int(kind, "a bound", b) for b in bounds]
        if stride not in (None, 1, -1):
            raise popart_exception(
                f"{kind}: the step along axis {a} of {t!r} must be 1 or -1, not {stride}; see ops.subsample."
            )
        first, last, stride = builtins.slice(first, last, stride).indices(t.shape[a])
        slices[a] = builtins.slice(first, None if last < 0 else last, stride)
    shape = tuple([len(range(*s.indices(n))) for s, n in zip(slices, t.shape)])
    return _build.emit(graph, kind, (t,), shape, t.dtype, {"slices": tuple(slices)}, "slice_out")


def slice(
    t: Tensor,
    start: Bounds = None,
    stop: Bounds = None,
    step: Bounds = None,
    axis: Union[int, List[int], None] = None,
) -> Tensor:
    """Return a copy of the part of `t` from `start` to `stop`, for each axis listed in `axis`.

    Bounds are clipped to the axis, and a negative one counts from its end, as in Python. Without `axis`,
    entry i is for axis i. If no argument is given, the result is `t` itself.

    Args:
        t: The tensor.
        start, stop: The bounds: an int, or a list of ints or None for the ends of the axis.
        step: 1, or -1 to reverse.
        axis: The axes.

    Raises:
        ValueError: If the lists differ in length.
        popart_exception: If an axis is out of range, or a step is neither 1 nor -1.
    """
    return _slice("slice", t, start, stop, step, axis)


def slice_(
    t: Tensor,
    start: Bounds = None,
    stop: Bounds = None,
    step: Bounds = None,
    axis: Union[int, List[int], None] = None,
) -> Tensor:
    """`slice` as a view."""
    return _slice("slice_", t, start, stop, step, axis)


def _slice_value(xp: Any, op: Any, x: Any) -> Any:
    return x[op.attrs["slices"]]


def _view_slice(op: Any, i: int, x: Any) -> Layout:
    return sliced(x.shape, x.strides, op.attrs["slices"])


def subsample(t: Tensor, strides: Union[int, Iterable[int]]) -> Tensor:
    """Return every n-th element along each axis, n being its entry of `strides`; an int is for axis 0.

    Raises:
        ValueError: If there are more strides than axes.
        popart_exception: If a stride is below 1.
    """
    graph = _build.checked("subsample", t=t)
    if not hasattr(strides, "__iter__"):
        strides = [_build.as_int("subsample", "strides", strides)]
    steps = _build.as_ints("subsample", "strides", strides)
    if len(steps) > len(t.shape):
        raise ValueError(f"subsample: {list(steps)} has more entries than {t!r} has axes.")
    if any(n < 1 for n in steps):
        raise popart_exception(f"subsample: the strides for {t!r} must be positive, not {list(steps)}.")
    steps += (1,) * (len(t.shape) - len(steps))
    shape = tuple([-(-n // step) for n, step in zip(t.shape, steps)])
    return _build.emit(graph, "subsample", (t,), shape, t.dtype, {"strides": steps})


def _subsample_value(xp: Any, op: Any, x: Any) -> Any:
    return x[tuple([builtins.slice(None, None, step) for step in op.attrs["strides"]])]


def _view_subsample(op: Any, i: int, x: Any) -> Layout:
    return tuple([stride * step for stride, step in zip(x.strides, op.attrs["strides"])]), 0


def _window(
    kind: str, t: Tensor, index: Tensor, axes: Any, sizes: Any
) -> Tuple[Dict[str, Any], Shape, Optional[str]]:
    """The attributes and the shape of a window into `t`, and what is wrong with it."""
    attrs = {"axes": _build.as_ints(kind, "axes", axes), "sizes": _build.as_ints(kind, "sizes", sizes)}
    if len(attrs["axes"]) != len(attrs["sizes"]):
        raise popart_exception(f"{kind}: axes and sizes for {t!r} differ in length: {attrs}.")
    shape, fault = list(t.shape), None
    for axis, size in zip(attrs["axes"], attrs["sizes"]):
        if not 0 <= axis < len(t.shape) or size < 0:
            raise popart_exception(f"{kind}: {attrs} do not fit {t!r}.")
        if size > t.shape[axis]:
            fault = "the sizes {} exceed the shape {}".format(attrs["sizes"], t.shape)
        shape[axis] = size
    if len(set(attrs["axes"])) < len(attrs["axes"]):
        fault = "the axes {} are not all different".format(attrs["axes"])
    if _build.nelms(index.shape) != len(attrs["axes"]):
        fault = "an index of shape {} does not fit the axes {}".format(index.shape, attrs["axes"])
    if not index.dtype.is_int:
        fault = f"an index of {index.dtype.name} is no integer"
    return attrs, tuple(shape), fault


def dynamic_slice(t: Tensor, index: Tensor, axes: List[int], sizes: List[int], no_overlap: bool) -> Tensor:
    """Return a copy of a window of `t`.

    Args:
        t: The tensor.
        index: Where the window starts, an integer for each of `axes`.
        axes: The axes along which `t` is cut.
        sizes: The lengths of the window along `axes`.
        no_overlap: Matters to gradients only.
    """
    graph = _build.checked("dynamic_slice", t=t, index=index)
    attrs, shape, fault = _window("dynamic_slice", t, index, axes, sizes)
    return _build.emit(graph, "dynamic_slice", (t, index), shape, t.dtype, attrs, fault=fault)


def _dynamic_slice_value(xp: Any, op: Any, t: Any, index: Any) -> Any:
    """NumPy only."""
    return t[window(op, t, index)]


def _emit_dynamic_slice(s: Any) -> None:
    t, index = s.ins
    s.line(f"{s.function('copyto')}({s.out.name}, {t.name}[{s.bind_window()}({t.name}, {index.name})])")


def window(op: Any, t: Any, index: Any) -> Any:
    """The slices of a window of `t` at an index, moved inside where it would leave `t`."""
    slices = [builtins.slice(None)] * t.ndim
    for axis, size, start in zip(op.attrs["axes"], op.attrs["sizes"], index.reshape(-1).tolist()):
        start = max(0, min(start, t.shape[axis] - size))
        slices[axis] = builtins.slice(start, start + size)
    return tuple(slices)


def _dynamic_update(
    kind: str,
    name: str,
    t: Tensor,
    index: Tensor,
    t_update: Tensor,
    axes: Iterable[int],
    sizes: Iterable[int],
) -> Tensor:
    graph = _build.checked(kind, t=t, index=index, t_update=t_update)
    attrs, window, fault = _window(kind, t, index, axes, sizes)
    if t_update.shape != window:
        fault = f"the update has the shape {t_update.shape}, the window {window}"
    if t_update.dtype is not t.dtype:
        fault = f"the dtypes {t.dtype.name} and {t_update.dtype.name} differ"
    return _build.emit_like(graph, kind, (t, index, t_update), attrs, name, fault)


def dynamic_update(
    t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool
) -> Tensor:
    """Return a copy of `t` in which a window, given as in `dynamic_slice`, is replaced by `t_update`."""
    return _dynamic_update("dynamic_update", "dynamic_update_out", t, index, t_update, axes, sizes)


def dynamic_update_(
    t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool
) -> Tensor:
    """`dynamic_update` in place."""
    return _dynamic_update("dynamic_update_", "dynamicupdateinplace_out", t, index, t_update, axes, sizes)


def _dynamic_update_value(xp: Any, op: Any, t: Any, index: Any, update: Any) -> Any:
    """NumPy only."""
    result = t.copy()
    result[window(op, t, index)] = update
    return result


def _emit_dynamic_update(s: Any) -> None:
    t, index, update = s.ins
    s.copy(s.out, t)
    s.line(f"{s.out.name}[{s.bind_window()}({s.out.name}, {index.name})] = {update.name}")


def init(
    shape: Iterable[int],
    dtype: dtypes.dtype,
    name: Optional[str] = None,
    init_type: str = "zero",
    meta_shape: Optional[Iterable[int]] = None,
) -> Tensor:
    """Return a new tensor each time it runs: zeros, or with `init_type="undef"` whatever is there.

    Raises:
        ValueError: If `init_type` is neither "zero" nor "undef", or an axis is negative.
    """
    graph = get_current_graph()
    _check_name("init", name)
    _check_dtype("init", dtype)
    if init_type not in ("zero", "undef"):
        raise ValueError(f'init: init_type must be "zero" or "undef", not {init_type!r}.')
    shape = _as_shape("init", shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"init: the shape {shape} has a negative axis.")
    return _build.emit(
        graph, "init", (), shape, dtype, {"init_type": init_type}, name or "t", tuple(meta_shape or ())
    )


def _init_value(xp: Any, op: Any) -> Any:
    return xp.zeros(op.outputs[0].shape, out_dtype(op))


def _emit_init(s: Any) -> None:
    if s.op.attrs["init_type"] == "zero":
        emit.fill_zero(s)


def ipu_copy(t: Tensor, destination: int, source: Optional[int] = None) -> Tensor:
    """Return a copy on the virtual IPU `destination`.

    Raises:
        ValueError: If `source` is not given and not known from the ops that make or use `t`.
    """
    graph = _build.checked("ipu_copy", t=t)
    destination = _build.as_int("ipu_copy", "destination", destination)
    try:
        tile_set = t.tile_set
        found = t.ipu
    except UndefinedValue:
        tile_set, found = "compute", None
    if source is None and found is None:
        raise ValueError(f"ipu_copy: where {t!r} is, is not known: pass source.")
    source = found if source is None else _build.as_int("ipu_copy", "source", source)
    return _copy_to(graph, "ipu_copy", t, (source, tile_set), (destination, tile_set), f"_c{destination}")


def io_tile_copy(t: Tensor) -> Tensor:
    """Return a copy on the IO tiles, or if `t` is on them, on the compute tiles."""
    graph = _build.checked("io_tile_copy", t=t)
    try:
        source = t._place()
    except UndefinedValue:
        source = 0, "compute"
    destination = source[0], "compute" if source[1] == "io" else "io"
    return _copy_to(graph, "io_tile_copy", t, source, destination, "_iotilecopy")


def _copy_to(graph: Graph, kind: str, t: Tensor, source: Any, destination: Any, suffix: str) -> Tensor:
    made = _build.emit_like(graph, kind, (t,), {"source": source}, t.name + suffix)
    made.producer.ipu, made.producer.tile_set = destination
    graph.ir._is_placed = True
    return made


_reshape_kernel = Kernel(_reshape_value, view=_view_reshape)
_transpose_kernel = Kernel(_transpose_value, view=_view_transpose)
_concat_kernel = Kernel(_concat_value, _emit_concat)
_slice_kernel = Kernel(_slice_value, view=_view_slice)
_dynamic_update_kernel = Kernel(_dynamic_update_value, _emit_dynamic_update, (0,), True)

KERNELS: Dict[str, Kernel] = {
    "reshape": _reshape_kernel,
    "reshape_": _reshape_kernel,
    "transpose": _transpose_kernel,
    "transpose_": _transpose_kernel,
    "concat": _concat_kernel,
    "concat_": _concat_kernel,
    "split": Kernel(_split_value, view=_view_split),
    "slice": _slice_kernel,
    "slice_": _slice_kernel,
    "subsample": Kernel(_subsample_value, view=_view_subsample),
    "dynamic_slice": Kernel(_dynamic_slice_value, _emit_dynamic_slice),
    "dynamic_update": _dynamic_update_kernel,
    "dynamic_update_": in_place(_dynamic_update_kernel),
    "init": Kernel(_init_value, _emit_init),
    "ipu_copy": SAME,
    "io_tile_copy": SAME,
}
