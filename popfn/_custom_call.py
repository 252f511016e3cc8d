"""custom_call as a user meets it: an operation made of a NumPy function, its types and its rules."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _tracing as tracing, numpy as pnp
from ._custom import custom_jvp, custom_vjp
from ._promotion import filled
from .api import Function, decorator, wraps
from .trace import tree
from .trace.aval import Aval
from .trace.errors import (
    ArgumentError,
    DtypeError,
    InputError,
    LoweringError,
    MissingRuleError,
    ShapeError,
    TreeError,
    function_name,
    message,
    user_source,
)
from .trace.primitive import MappedAxis
from .trace.prims.shaping import in_lanes, reshape, to_front
from .trace.prims.structural import concat, slice_axis, squeeze
from .trace.tracer import aval_of, bind
from .transforms.custom_call import CustomCall, Operation

Structures = Tuple[tree.TreeDef, ...]
Batched = Tuple[Sequence[Any], Sequence[Any]]


@decorator
def custom_call(f: Function, *, result: Function, lower: Optional[Function] = None, jvp: Optional[Function] = None,
                vjp: Optional[Tuple[Function, Function]] = None, vmap: Union[None, str, Function] = None) -> Function:
    """An operation of your own: a decorator of the NumPy function that computes it.

    The operation takes arrays, or trees of them, by position. Each of these gets them in the same form:

    * `f(*arrays)`: read-only NumPy arrays in, NumPy arrays out. It must be pure: equal arguments give equal results.
    * `result(*avals)`: the types of the result, as `pf.spec(...)` or anything with a shape and a dtype.
    * `lower(px, *tensors)`: the result as PopXL tensors, by calls of `px`, the PopXL module. Without it, `pf.jit` and
      `pf.lower` refuse the operation.
    * `jvp(primals, tangents)`, a rule as of `custom_jvp`, or `vjp=(fwd, bwd)`, rules as of `custom_vjp`.
    * `vmap`: "sequential" applies the operation to one element after the other; "broadcast" once to arrays that all
      have the mapped axis in front, which `f`, `result` and `lower` then have to understand. A rule
      `vmap(axis_size, in_batched, *args)` gets the arrays with the mapped axis in front where `in_batched`, a tuple of
      trees like the arguments, says True. It returns the result and a tree that says where that has the axis.

    Raises ArgumentError for other rules, ShapeError and InputError where a result is not of the type that was said.

    >>> import popfn as pf
    >>> @pf.custom_call(result=lambda x: x, jvp=lambda p, t: (cube(*p), 3.0 * p[0] ** 2 * t[0]), vmap="broadcast")
    ... def cube(x):
    ...     return x * x * x
    >>> pf.grad(cube)(2.0)
    Array(12., dtype=float32, weak=True)
    """
    for name, rule in (("result", result), ("lower", lower), ("jvp", jvp)):
        if not callable(rule) and (rule is not None or name == "result"):
            raise ArgumentError(message(f"custom_call: {name} is a function, got {rule!r}", at=user_source(3)))
    if vjp is not None and not (isinstance(vjp, (tuple, list)) and len(vjp) == 2 and all(map(callable, vjp))):
        raise ArgumentError(message(f"custom_call: vjp is a pair of functions (fwd, bwd), got {vjp!r}",
                                    at=user_source(3)))
    if vmap is not None and not callable(vmap) and vmap not in ("sequential", "broadcast"):
        raise ArgumentError(message(f"custom_call: vmap is 'sequential', 'broadcast' or a rule, got {vmap!r}",
                                    at=user_source(3)))
    if jvp is not None and vjp is not None:
        raise ArgumentError(message("custom_call takes jvp or vjp, not both", "way out: jvp serves both modes",
                                    at=user_source(3)))
    forms: Dict[Structures, CustomCall] = {}

    @wraps(f)
    def wrapper(*args: Any) -> Any:
        given = tracing.arguments("custom_call", f, args, {}, arrays=True)
        structures = tuple(given.structures)
        form = Form(f, structures, result, lower, vmap)
        call = forms.setdefault(structures, CustomCall(form))  # equal calls have one primitive
        _, out_tree = form.types(given.avals)
        return tree.unflatten(out_tree, bind(call, given.leaves))
    if jvp is not None:
        differentiable = custom_jvp(wrapper)
        differentiable.defjvp(jvp)
        return differentiable
    if vjp is not None:
        differentiable = custom_vjp(wrapper)
        differentiable.defvjp(*vjp)
        return differentiable
    return wrapper


class Form(Operation):
    """An operation for arguments of one structure."""

    def __init__(self, f: Function, structures: Structures, result: Function, lower: Optional[Function],
                 vmap: Union[None, str, Function]) -> None:
        self.label = function_name(f)
        self.f, self.structures, self.result, self.lower, self.vmap = f, structures, result, lower, vmap

    def arguments(self, leaves: Sequence[Any]) -> List[Any]:
        """Leaves as the user's functions take them."""
        return tracing.unflatten_arguments(leaves, self.structures, len(self.structures), ())[0]

    def types(self, avals: Sequence[Aval]) -> Tuple[Tuple[Aval, ...], tree.TreeDef]:
        """The types of the results for arguments of these types, and their structure."""
        leaves, structure = tree.flatten(self.result(*self.arguments(avals)))
        out = []
        for x, path in zip(leaves, tree.paths(structure, "result")):
            try:
                out.append(tracing.argument_aval(x))
            except DtypeError:
                raise ArgumentError(message(
                    f"custom_call {self.label}: result=... gives no type as {path}", f"seen: {x!r:.60}",
                    "way out: pf.spec(shape, dtype)", at=user_source(2))) from None
        return tuple(out), structure

    def infer(self, avals: Sequence[Aval]) -> Tuple[Aval, ...]:
        return self.types(avals)[0]

    def leaves(self, what: str, got: Any, structure: tree.TreeDef) -> List[Any]:
        """The leaves of a result. Raises TreeError unless it is of the structure that was said."""
        leaves, seen = tree.flatten(got)
        if seen != structure:
            want = tree.unflatten(structure, range(structure.num_leaves))
            raise TreeError(message(f"custom_call {self.label}: {what} another structure than result=... says",
                                    tree.first_difference(want, got, "result=...", "it", "result"), at=user_source(2)))
        return leaves

    # ------------------------------------------------------------------ rules
    def host(self, arrays: Sequence[np.ndarray]) -> Tuple[np.ndarray, ...]:
        want, structure = self.types([Aval._make(x.shape, x.dtype, False) for x in arrays])
        got = self.leaves("it computes", self.f(*self.arguments([protected(x) for x in arrays])), structure)
        out = tuple(np.array(x) for x in got)  # copies, because the function may keep its own
        for x, a, path in zip(out, want, tree.paths(structure, "result")):
            if (x.shape, x.dtype) != (a.shape, a.dtype):
                raise InputError(message(
                    f"custom_call {self.label} computes {path} as {x.dtype}{list(x.shape)}, but result=... says "
                    f"{a.strong}", f"way out: .astype(np.{a.dtype.name})" if x.shape == a.shape else None,
                    at=user_source(2)))
        return out

    def lowering(self, px: Any, tensors: Sequence[Any]) -> Sequence[Any]:
        if self.lower is None:
            raise LoweringError(message(
                f"custom_call {self.label} has no PopXL lowering: pf.jit and pf.lower cannot take it",
                "way out: pass lower=f to pf.custom_call, where f(px, *tensors) makes the result of PopXL ops"))
        return tree.leaves(self.lower(px, *self.arguments(tensors)))

    def batching(self, call: CustomCall, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Batched:
        if self.vmap is None:
            raise MissingRuleError(message(
                f"custom_call {self.label} does not say what vmap makes of it",
                "way out: pass vmap='sequential', vmap='broadcast' or a rule to pf.custom_call"))
        lane = [aval_of(x) if d is None else without_axis(aval_of(x), d) for x, d in zip(args, dims)]
        want, structure = self.types(lane)
        if self.vmap == "sequential":
            return one_by_one(call, axis, args, dims, want), (0,) * len(want)
        if self.vmap == "broadcast":
            results: Sequence[Any] = bind(call, [in_lanes(x, d, axis) for x, d in zip(args, dims)])
            mapped: Sequence[bool] = (True,) * len(want)
        else:
            results, mapped = self.by_rule(axis, args, dims, structure)
        for x, a, on, path in zip(results, want, mapped, tree.paths(structure, "result")):
            shape = (axis.size, *a.shape) if on else a.shape
            if (aval_of(x).shape, aval_of(x).dtype) != (shape, a.dtype):
                raise ShapeError(message(f"custom_call {self.label}: under vmap {path} is {aval_of(x)}, expected "
                                         f"{a.with_shape(shape).strong}", at=user_source(2)))
        return results, [0 if on else None for on in mapped]

    def by_rule(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], structure: tree.TreeDef) -> Batched:
        """The results by the user's rule, and which of them have the mapped axis."""
        in_batched = self.arguments([d is not None for d in dims])
        fronts = self.arguments([x if d is None else to_front(x, d) for x, d in zip(args, dims)])
        got = self.vmap(axis.size, tuple(in_batched), *fronts)  # type: ignore[misc, operator]
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise ArgumentError(message(f"custom_call {self.label}: the vmap rule must return a pair (result, where it "
                                        f"has the axis), got {got!r:.60}", at=user_source(2)))
        results = [pnp.asarray(x) for x in self.leaves("the vmap rule returns", got[0], structure)]
        try:
            return results, tree.prefix_leaves(got[1], structure)
        except TreeError as e:
            raise ArgumentError(message(f"custom_call {self.label}: the vmap rule does not say where the result has "
                                        f"the axis: {e}", f"seen: {got[1]!r:.60}", at=user_source(2))) from None


def one_by_one(call: CustomCall, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any],
               want: Sequence[Aval]) -> List[Any]:
    """The results for one lane after the other, put together along a first axis."""
    lanes = [bind(call, [x if d is None else squeeze(slice_axis(x, d, i, i + 1), (d,)) for x, d in zip(args, dims)])
             for i in range(axis.size)]
    if not lanes:
        return [filled((0, *a.shape), 0, a.dtype) for a in want]
    return [concat([reshape(x, (1, *a.shape)) for x in column], 0) for a, column in zip(want, zip(*lanes))]


def without_axis(aval: Aval, dim: int) -> Aval:
    """The type of one lane."""
    return aval.with_shape(aval.shape[:dim] + aval.shape[dim + 1:])


def protected(x: np.ndarray) -> np.ndarray:
    """A view that cannot be written to."""
    view = x.view()
    view.flags.writeable = False
    return view
