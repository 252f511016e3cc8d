"""What all op functions share: checks of operands, and the making of one Op."""

from typing import Any, Dict, Iterable, Optional, Tuple

from popfn.host import dtypes
from popfn.host.context import get_current_graph
from popfn.host.errors import UndefinedValue, popart_exception
from popfn.host.graph import Graph
from popfn.host.tensor import Shape, Tensor


def checked(op: str, **operands: Any) -> Graph:
    """Return the current graph, to which all operands must belong.

    TypeError for an operand that is no Tensor; ValueError for one of another graph, or if two live on
    different IPUs or tile sets.
    """
    graph = get_current_graph()
    check_in_graph(op, graph, operands)
    if graph.ir._is_placed and len(operands) > 1:
        check_places(op, operands)
    return graph


def check_in_graph(op: str, graph: Graph, operands: Dict[str, Any]) -> None:
    """TypeError for an operand that is no Tensor, ValueError for one of another graph than `graph`."""
    for name, t in operands.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: {name} must be a Tensor, not {t!r}.")
        if t.graph is not graph:
            raise ValueError(
                f"{op}: {name} is {t!r}, which does not belong to the current graph, {graph!r}. Pass it in "
                "as an input of that graph."
            )


def checked_list(op: str, ts: Iterable[Any]) -> Tuple[Graph, Tuple[Tensor, ...]]:
    """`checked` for a list of operands, which is returned as a tuple too."""
    ts = tuple(ts)
    return checked(op, **{f"tensor {i}": t for i, t in enumerate(ts)}), ts


def check_places(op: str, operands: Dict[str, Tensor]) -> None:
    """ValueError if two operands are known to be on different IPUs or tile sets."""
    places = {}
    for name, t in operands.items():
        try:
            places[name] = t._place()
        except UndefinedValue:
            pass
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{name} is on the {p[1]} tiles of IPU {p[0]}" for name, p in places.items())
        raise ValueError(
            f"{op}: the operands must be in one place, but {listed}. Move them by ops.ipu_copy or "
            "ops.io_tile_copy."
        )


def emit(
    graph: Graph,
    kind: str,
    inputs: Tuple[Tensor, ...],
    shape: Shape,
    dtype: dtypes.dtype,
    attrs: Optional[Dict[str, Any]] = None,
    name: Optional[str] = None,
    meta_shape: Shape = (),
    fault: Optional[str] = None,
) -> Tensor:
    """Add an Op of one output, which is returned; its name is by default `kind` and "_out"."""
    result = name or kind + "_out", shape, dtype, meta_shape
    return graph._add_op(kind, inputs, (result,), {} if attrs is None else attrs, fault).outputs[0]


def emit_like(
    graph: Graph,
    kind: str,
    inputs: Tuple[Tensor, ...],
    attrs: Optional[Dict[str, Any]] = None,
    name: Optional[str] = None,
    fault: Optional[str] = None,
) -> Tensor:
    """`emit` with an output of the type of input 0."""
    t = inputs[0]
    return emit(graph, kind, inputs, t.shape, t.dtype, attrs, name, t.meta_shape, fault)


def emit_cast(t: Tensor, dtype: dtypes.dtype) -> Tensor:
    """Cast a tensor of the current graph."""
    name = f"{t.name}_{dtype.name}"
    return emit(t.graph, "cast", (t,), t.shape, dtype, {"dtype": dtype}, name, t.meta_shape)


def as_bool(t: Tensor) -> Tensor:
    """Cast a tensor of the current graph to bool unless it is of that dtype."""
    return t if t.dtype is dtypes.bool else emit_cast(t, dtypes.bool)


def check_same_dtype(op: str, *ts: Tensor) -> None:
    """popart_exception unless all tensors are of one dtype."""
    first = ts[0].dtype
    for t in ts:
        if t.dtype is not first:
            raise popart_exception(
                "{}: the dtypes of {} differ; there is no promotion. Use ops.cast.".format(
                    op, " and ".join(map(repr, ts))
                )
            )


def broadcast(op: str, *ts: Tensor) -> Shape:
    """Return the shape that NumPy broadcasts tensors to, or raise popart_exception."""
    try:
        return broadcast_shapes(*[t.shape for t in ts])
    except ValueError:
        listed = " and ".join(map(repr, ts))
        raise popart_exception(f"{op}: the shapes of {listed} do not broadcast.") from None


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that NumPy broadcasts to, or raise ValueError."""
    result = shapes[0]
    for shape in shapes[1:]:
        if shape == result:
            continue
        longer, shorter = (shape, result) if len(shape) > len(result) else (result, shape)
        lead = len(longer) - len(shorter)
        axes = list(longer[:lead])
        for m, n in zip(longer[lead:], shorter):
            if m != n and m != 1 and n != 1:
                raise ValueError(f"the shapes {shapes} do not broadcast")
            axes.append(n if m == 1 else m)
        result = tuple(axes)
    return result


def common_meta_shape(op: str, lhs: Tensor, rhs: Tensor) -> Shape:
    """Return the one meta_shape of two tensors, or raise popart_exception if they have different ones."""
    if lhs.meta_shape == rhs.meta_shape or not rhs.meta_shape:
        return lhs.meta_shape
    if lhs.meta_shape:
        raise popart_exception(
            f"{op}: the meta_shapes of {lhs!r} and {rhs!r}, {lhs.meta_shape} and {rhs.meta_shape}, differ."
        )
    return rhs.meta_shape


def as_int(op: str, name: str, value: Any) -> int:
    """Return an int, or raise TypeError."""
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{op}: {name} must be an int, not {value!r}.") from None


def as_ints(op: str, name: str, values: Any) -> Tuple[int, ...]:
    """Return a tuple of ints, or raise TypeError."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{op}: {name} must be a list of ints, not {values!r}.")
    return tuple([as_int(op, name, value) for value in values])


def as_float(op: str, name: str, value: Any) -> float:
    """Return a float, or raise TypeError."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: {name} must be a float, not {value!r}.") from None


def as_axis(op: str, name: str, axis: Any, t: Tensor) -> int:
    """Count an axis of `t` from 0: TypeError if it is no int, popart_exception if it is out of range."""
    axis, rank = as_int(op, name, axis), len(t.shape)
    if not -rank <= axis < rank:
        raise popart_exception(f"{op}: {name} {axis} is out of range for {t!r}.")
    return axis % rank


def wrapped(axis: int, rank: int) -> int:
    """Count a negative axis from the end, twice if need be, as some ops of PopXL do: -4 of rank 3 is 2."""
    for _ in range(2):
        if axis < 0:
            axis += rank
    return axis


def nelms(shape: Shape) -> int:
    """Return the number of elements."""
    result = 1
    for n in shape:
        result *= n
    return result


def is_integer(t: Tensor) -> bool:
    """Whether the tensor can hold indices."""
    return t.dtype.is_int
