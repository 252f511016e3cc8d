"""custom_jvp and custom_vjp as a user meets them: functions on pytrees that bring their own derivative."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _tracing as tracing
from ._promotion import as_array
from .api import Function, check_callable, decorator, is_index, wraps
from .trace import tree
from .trace.array import Array
from .trace.aval import NO_AXES, Aval, AxisNames
from .trace.errors import (
    ArgumentError,
    DtypeError,
    LeakError,
    PopfnError,
    ShapeError,
    function_name,
    message,
    user_source,
)
from .trace.jaxpr import Jaxpr, Var
from .trace.primitive import Zero
from .trace.prims import instantiate
from .trace.prims.collectives import pvary, quoted
from .trace.tracer import Trace, Tracer, bind, current_trace, named_axes
from .transforms.custom import CustomJvp, CustomVjp, Later, fitted
from .transforms.replay import checked

Numbers = Union[int, Sequence[int]]


# ---------------------------------------------------------------------------- calls
class Called(NamedTuple):
    """A call of a function with a custom rule, traced.

    `static` holds the arguments that are not differentiated, by position; `given` the others. `closed` are the tracers
    that the function closes over, or has for static arguments. `jaxpr` takes them, then the leaves of the others.
    `axes` are the named axes around the call, which its rules may use too. `varying` are those over which one of the
    values that it takes varies: f and its rules see all arguments vary over them, as with an operation.
    """

    f: Function
    static: Dict[int, Any]
    given: tracing.Arguments
    closed: Tuple[Tracer, ...]
    jaxpr: Jaxpr
    out_tree: tree.TreeDef
    axes: Dict[str, int]
    varying: AxisNames

    @property
    def operands(self) -> List[Any]:
        """What the equation takes."""
        return [*self.closed, *self.given.leaves]

    @property
    def floats(self) -> List[Aval]:
        """The types of the arguments' leaves that have derivatives."""
        return [a for a in self.given.avals if a.is_float]

    def descriptions(self) -> Tuple[str, ...]:
        """What is closed over, for error messages."""
        return tuple(x.describe() for x in self.closed)

    def by_argument(self, leaves: Sequence[Any]) -> List[Any]:
        """Leaves by argument, as f sees them."""
        leaves = [pvary(x, self.varying) for x in leaves]
        return tracing.unflatten_arguments(leaves, self.given.structures, len(self.given.args), ())[0]

    def every(self, values: Sequence[Any]) -> List[Any]:
        """All arguments in the function's own order, from those that are not static."""
        rest = iter(values)
        return [self.static[i] if i in self.static else next(rest) for i in range(len(self.static) + len(values))]


def run(f: Function, given: tracing.Arguments) -> Any:
    """A call of `f` at once. It gets arrays, as where it is traced; the caller's own may change later."""
    args, kwargs = tracing.unflatten_arguments([as_array(x) for x in given.leaves], given.structures, len(given.args),
                                               list(given.kwargs))
    return f(*args, **kwargs)


def split(kind: str, f: Function, nondiff: Numbers, args: Sequence[Any],
          ) -> Tuple[Dict[int, Any], Function, tracing.Arguments]:
    """The arguments that are not differentiated, by position; `f` as a function of the others, and those."""
    numbers: List[Any] = list(nondiff) if isinstance(nondiff, (tuple, list, range)) else [nondiff]
    for n in numbers:
        if not is_index(n) or not -len(args) <= n < len(args):
            raise ArgumentError(message(
                f"{kind}: nondiff_argnums={nondiff!r}, but {function_name(f)} was called with {len(args)} positional "
                "arguments", at=user_source(3)))
    static = {n % len(args): args[n] for n in sorted(n % len(args) for n in numbers)}
    rest = [x for i, x in enumerate(args) if i not in static]
    inner = with_static(f, static) if static else f
    return static, inner, tracing.arguments(kind, inner, rest, {}, arrays=True)


def called(kind: str, f: Function, nondiff: Numbers, args: Sequence[Any]) -> Called:
    """Trace a call of `f`."""
    static, inner, given = split(kind, f, nondiff, args)
    fixed = [x for x in tree.leaves(list(static.values())) if isinstance(x, Tracer)]
    axes, before = NO_AXES.union(*[a.varying for a in given.avals], *[x.aval.varying for x in fixed]), None
    while axes != before:
        traced = tracing.trace(in_lanes(inner, axes) if axes else inner, given, tracing.follows())
        axes, before = axes.union(*[x.aval.varying for x in traced.captures]), axes
    jaxpr, captures = traced.jaxpr, traced.captures
    seen = {id(x) for x in captures}
    more = [x for x in fixed if id(x) not in seen]
    if more:
        inputs = [*jaxpr.inputs[:len(captures)], *(Var(x.aval) for x in more), *jaxpr.inputs[len(captures):]]
        jaxpr = Jaxpr(inputs, jaxpr.outputs, jaxpr.eqns, jaxpr.constvars, jaxpr.constants, jaxpr.name)
    return Called(f, static, given, (*captures, *more), jaxpr, traced.out_tree, named_axes(), axes)


def in_lanes(f: Function, axes: AxisNames) -> Function:
    """`f`, which sees its arguments vary over these axes."""
    @wraps(f)
    def inner(*args: Any) -> Any:
        return f(*tree.map(lambda x: pvary(x, axes), args))
    return inner


def with_static(f: Function, static: Dict[int, Any]) -> Function:
    """`f` as a function of its other arguments."""
    @wraps(f)
    def inner(*args: Any) -> Any:
        rest = iter(args)
        return f(*(static[i] if i in static else next(rest) for i in range(len(static) + len(args))))
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # a built-in without a signature
        return inner
    kept = [p for i, p in enumerate(signature.parameters.values()) if i not in static]
    inner.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return inner


def positional(kind: str, f: Function, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[Any, ...]:
    """All arguments by position, defaults included: rules know no others."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # a built-in without a signature
        signature = None
    if signature is None and not kwargs:
        return tuple(args)
    bound = None if signature is None else signature.bind(*args, **kwargs)
    if bound is not None:
        bound.apply_defaults()
    if bound is None or bound.kwargs:
        raise ArgumentError(message(
            f"{kind}: {function_name(f)} has arguments that cannot be given by position",
            f"seen: {', '.join(kwargs if bound is None else bound.kwargs)}",
            "way out: rules take positional arguments; make them positional, or close over them", at=user_source(3)))
    return bound.args


def missing_rule(kind: str, f: Function, way: str) -> ArgumentError:
    """The error for a function whose rule is not given yet."""
    return ArgumentError(message(f"{kind}: {function_name(f)} has no rule yet", f"way out: {way}", at=user_source(3)))


# ---------------------------------------------------------------------------- rules
def traced_rule(what: str, call: Called, avals: Sequence[Aval], names: Callable[[], List[str]],
                rule: Callable[..., List[Any]]) -> Jaxpr:
    """The jaxpr of a rule that takes what the function closes over, then values of these types.

    Raises LeakError if it uses a traced value that the function itself does not use.
    """
    with Trace(call.jaxpr.name, lambda: [*call.descriptions(), *names()], axes=call.axes) as trace:
        for x in call.closed:
            trace.stand_in(x)
        try:
            jaxpr = trace.finish(rule(trace.add_inputs(avals)))
        except LeakError as e:
            value = [line for line in str(e).split("\n  ") if line.startswith("the value: ")]
            raise closes_over(what, call.f, *value) from None
    if trace.captures:
        raise closes_over(what, call.f, f"the value: {trace.captures[0].describe()}")
    return checked(jaxpr)


def closes_over(what: str, f: Function, *notes: str) -> LeakError:
    """The error for a rule that uses a value of the functions around it."""
    return LeakError(message(f"{what} closes over a traced value that {function_name(f)} does not use", *notes,
                             f"way out: pass it to {function_name(f)} as an argument", at=user_source(2)))


def pair(what: str, got: Any, parts: str) -> Tuple[Any, Any]:
    """What a rule returned, which has to be a pair."""
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        seen = f"a {type(got).__name__} of {len(got)}" if isinstance(got, (tuple, list)) else kind_of(got)
        raise ArgumentError(message(f"{what} must return a pair ({parts}), got {seen}", at=user_source(2)))
    return got[0], got[1]


def kind_of(x: Any) -> str:
    """A value's type for an error message."""
    return str(x.aval) if isinstance(x, Array) else f"a {type(x).__name__}"


def leaf(what: str, x: Any, aval: Aval, path: str, is_cotangent: bool = False) -> Any:
    """A float or another leaf of what a rule returned, in exactly the type that it must have."""
    try:
        seen = tracing.argument_aval(x)
    except DtypeError as e:
        raise ArgumentError(message(f"{what} returns no array as {path}: {e}", at=user_source(2))) from None
    if seen.shape != aval.shape or seen.dtype != aval.dtype and not (seen.weak and aval.is_float):
        raise ShapeError(message(f"{what} returns {path} as {seen}, expected {aval}", at=user_source(2)))
    more = seen.varying - aval.varying
    if more and not is_cotangent:
        axes = quoted(sorted(more))
        raise ArgumentError(message(f"{what} returns {path} as {seen}, which varies over {axes} though the function's "
                                    f"own result, {aval}, does not", f"way out: pf.pvary(result, {axes}) in the "
                                    "function, or pf.psum in the rule", at=user_source(2)))
    return fitted(x, aval)


def leaves_of(what: str, got: Any, call: Called, root: str, only_floats: bool = False) -> List[Any]:
    """The leaves of a result, or of the floats' tangents, that a rule returned."""
    leaves, structure = tree.flatten(got)
    avals = call.jaxpr.out_avals
    if structure != call.out_tree:
        want = tree.unflatten(call.out_tree, avals)
        raise ArgumentError(message(
            f"{what} returns a {root} of another structure than {function_name(call.f)}",
            tree.first_difference(want, got, function_name(call.f), "the rule", root), at=user_source(2)))
    paths = tree.paths(structure, root)
    return [leaf(what, x, a, path) for x, a, path in zip(leaves, avals, paths) if a.is_float or not only_floats]


def all_leaves(floats: Sequence[Any], avals: Sequence[Aval]) -> List[Any]:
    """Tangents or cotangents of values of these types: zeros for what is no float."""
    rest = iter(floats)
    return [next(rest) if a.is_float else instantiate(Zero(a)) for a in avals]


# ---------------------------------------------------------------------------- forward mode
@decorator
def custom_jvp(f: Function, nondiff_argnums: Numbers = ()) -> Function:
    """`f` with a derivative of its own, for forward and reverse mode alike: a decorator.

    The rule is given by `f.defjvp(rule)`. `rule(primals, tangents)` takes two tuples with an entry for each argument of
    f, and returns f's result and its tangent, which is linear in the tangents. Reverse mode transposes it. Tangents of
    integers are integer zeros. `f.defjvps(rule_0, rule_1, ...)` gives a rule for each argument instead:
    `rule_i(tangent, result, *primals)`, None for an argument without derivative; what they return is added up.

    `nondiff_argnums` numbers arguments that are no arrays, or not to be differentiated; a rule takes them first, before
    `primals`. f may close over any value that is not differentiated, its rule over the same ones. Over a named axis, if
    one argument varies, f and its rule see all arguments vary.

    Raises ArgumentError where the rule's results do not have the structure of f's, ShapeError for other types, and
    ArgumentError that names the value if f closes over one that is differentiated.

    >>> import popfn as pf, popfn.numpy as pnp
    >>> @pf.custom_jvp
    ... def log1pexp(x):
    ...     return pnp.log(1.0 + pnp.exp(x))
    >>> @log1pexp.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), t * (1.0 - 1.0 / (1.0 + pnp.exp(x)))
    >>> pf.grad(log1pexp)(100.0)
    Array(1., dtype=float32, weak=True)
    """
    rules: List[Function] = []

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not rules:
            raise missing_rule("custom_jvp", f, "give it one with defjvp or defjvps")
        args = positional("custom_jvp", f, args, kwargs)
        if current_trace() is None:
            return run(*split("custom_jvp", f, nondiff_argnums, args)[1:])
        call = called("custom_jvp", f, nondiff_argnums, args)
        rule = rules[-1]
        later = Later(getattr(rule, "__name__", "rule"), lambda: jvp_program(call, rule))
        return tree.unflatten(call.out_tree, bind(CustomJvp(call.jaxpr, later, call.descriptions()), call.operands))

    def defjvp(rule: Function) -> Function:
        """Set the rule, `rule(*nondiff, primals, tangents) -> (result, tangent)`; returns it."""
        check_callable("defjvp", rule, "f.defjvp(rule)")
        rules.append(rule)
        return rule

    def defjvps(*parts: Optional[Function]) -> None:
        """Set a rule for each argument, `part(tangent, result, *primals)`, None where there is no derivative."""
        def rule(primals: Any, tangents: Any) -> Any:
            if len(primals) != len(parts):
                raise ArgumentError(message(
                    f"defjvps got {len(parts)} rules, but {function_name(f)} was called with {len(primals)} arguments",
                    at=user_source(2)))
            result = wrapper(*primals)
            moved = [part(t, result, *primals) for part, t in zip(parts, tangents) if part is not None]
            if not moved:
                return result, tree.map(lambda y: instantiate(Zero(y.aval)), result)
            return result, tree.map(lambda *ts: sum(ts[1:], ts[0]), *moved)
        rules.append(rule)
    wrapper.defjvp, wrapper.defjvps = defjvp, defjvps  # type: ignore[attr-defined]
    return wrapper


def jvp_program(call: Called, rule: Function) -> Jaxpr:
    """The program of a jvp rule: from operands and tangents to results and their tangents."""
    what = f"the custom_jvp rule {function_name(rule)}"
    avals, n = call.given.avals, len(call.given.avals)

    def names() -> List[str]:
        leaves = tracing.leaf_names(with_static(call.f, call.static), call.given.args, {})
        return leaves + [f"the tangent of {name}" for name, a in zip(leaves, avals) if a.is_float]

    def flat(args: Sequence[Any]) -> List[Any]:
        primals, tangents = call.by_argument(args[:n]), call.by_argument(all_leaves(args[n:], avals))
        got = rule(*call.static.values(), tuple(primals), tuple(tangents))
        result, tangent = pair(what, got, "result, tangent")
        return leaves_of(what, result, call, "result") + leaves_of(what, tangent, call, "tangent", only_floats=True)
    return traced_rule(what, call, [*avals, *call.floats], names, flat)


# ---------------------------------------------------------------------------- reverse mode
@decorator
def custom_vjp(f: Function, nondiff_argnums: Numbers = ()) -> Function:
    """`f` with a reverse mode of its own: a decorator.

    The rules are given by `f.defvjp(fwd, bwd)`. `fwd` takes f's arguments and returns (result, residuals); residuals
    are any tree of arrays. `bwd(residuals, ct)` takes the cotangent of the result, zeros for integers, and returns a
    tuple with the cotangent of each argument; None stands for zero.

    `nondiff_argnums` numbers arguments that are no arrays, or not to be differentiated; `fwd` takes them where f does,
    `bwd` before its others, and it gives no cotangents of them. f may close over any value that is not differentiated,
    its rules over the same ones. Over a named axis, if one argument varies, f and its rules see all arguments vary. A
    cotangent that varies, of an argument that does not, is summed over the lanes.

    Forward mode is an error. Raises ArgumentError (a TypeError) if `bwd` returns the wrong number of cotangents or
    another structure, ShapeError (a ValueError) that names the argument for a cotangent of another type, and
    ArgumentError that names the value if f closes over one that is differentiated.

    >>> import popfn as pf
    >>> @pf.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda _, ct: (pf.numpy.clip(ct, -1.0, 1.0),))
    >>> pf.grad(lambda x: 5.0 * clipped(x))(2.0)
    Array(1., dtype=float32, weak=True)
    """
    rules: List[Tuple[Function, Function]] = []

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not rules:
            raise missing_rule("custom_vjp", f, "give it one with defvjp(fwd, bwd)")
        args = positional("custom_vjp", f, args, kwargs)
        if current_trace() is None:
            return run(*split("custom_vjp", f, nondiff_argnums, args)[1:])
        call = called("custom_vjp", f, nondiff_argnums, args)
        fwd, bwd = rules[-1]
        forward = Forward(call, fwd)
        first = Later(getattr(fwd, "__name__", "fwd"), lambda: forward.program()[0])
        second = Later(getattr(bwd, "__name__", "bwd"), lambda: backward_program(call, bwd, *forward.program()))
        return tree.unflatten(call.out_tree, bind(CustomVjp(call.jaxpr, first, second, call.descriptions()),
                                                  call.operands))

    def defvjp(fwd: Function, bwd: Function) -> None:
        """Set the rules: `fwd(*args) -> (result, residuals)` and `bwd(*nondiff, residuals, ct) -> cotangents`."""
        check_callable("defvjp", fwd, "f.defvjp(fwd, bwd)")
        check_callable("defvjp", bwd, "f.defvjp(fwd, bwd)")
        rules.append((fwd, bwd))
    wrapper.defvjp = defvjp  # type: ignore[attr-defined]
    return wrapper


class Forward:
    """The forward rule of one call: its program and the structure of its residuals, traced once."""

    def __init__(self, call: Called, fwd: Function) -> None:
        self.call = call
        self.fwd = fwd
        self.traced: Optional[Tuple[Jaxpr, tree.TreeDef]] = None

    def program(self) -> Tuple[Jaxpr, tree.TreeDef]:
        """From operands to results and residuals."""
        if self.traced is not None:
            return self.traced
        call, fwd = self.call, self.fwd
        what = f"the custom_vjp rule {function_name(fwd)}"
        structures: List[tree.TreeDef] = []

        def names() -> List[str]:
            return tracing.leaf_names(with_static(call.f, call.static), call.given.args, {})

        def flat(args: Sequence[Any]) -> List[Any]:
            result, kept = pair(what, fwd(*call.every(call.by_argument(args))), "result, residuals")
            leaves, structure = tree.flatten(kept)
            structures.append(structure)
            for x, path in zip(leaves, tree.paths(structure, "residuals")):
                try:
                    tracing.argument_aval(x)
                except PopfnError as e:
                    raise ArgumentError(message(
                        f"{what} returns no array as {path}: {e}",
                        "way out: residuals are arrays; number other arguments in nondiff_argnums",
                        at=user_source(2))) from None
            return leaves_of(what, result, call, "result") + leaves
        jaxpr = traced_rule(what, call, call.given.avals, names, flat)
        self.traced = jaxpr, structures[0]
        return self.traced


def backward_program(call: Called, bwd: Function, forward: Jaxpr, structure: tree.TreeDef) -> Jaxpr:
    """From what is closed over, residuals and cotangents of float results to cotangents of float arguments."""
    what = f"the custom_vjp rule {function_name(bwd)}"
    out_avals = call.jaxpr.out_avals
    kept = forward.out_avals[len(out_avals):]

    def names() -> List[str]:
        paths = tree.paths(call.out_tree, "result")
        return tree.paths(structure, "residuals") + [f"the cotangent of {path}" for path, a in zip(paths, out_avals)
                                                     if a.is_float]

    def flat(args: Sequence[Any]) -> List[Any]:
        residuals = tree.unflatten(structure, args[:len(kept)])
        ct = tree.unflatten(call.out_tree, all_leaves(args[len(kept):], out_avals))
        return argument_cotangents(what, call, bwd(*call.static.values(), residuals, ct))
    return traced_rule(what, call, [*kept, *(a for a in out_avals if a.is_float)], names, flat)


def argument_cotangents(what: str, call: Called, got: Any) -> List[Any]:
    """The cotangents of the float leaves of all arguments, from what `bwd` returned."""
    structures, count = call.given.structures, len(call.given.args)
    if not isinstance(got, (tuple, list)):
        raise ArgumentError(message(f"{what} must return a tuple of {count} cotangents, got {kind_of(got)}",
                                    "way out: return (ct,), also for one argument" if count == 1 else None,
                                    at=user_source(2)))
    if len(got) != count:
        raise ArgumentError(message(
            f"{what} returns {len(got)} cotangents, but {function_name(call.f)} has {count} arguments to differentiate",
            "way out: return None for an argument without derivative", at=user_source(2)))
    names = tracing.argument_names(with_static(call.f, call.static), call.given.args, {})
    out: List[Any] = []
    avals = iter(call.given.avals)
    for entry, structure, name in zip(got, structures, names):
        n = structure.num_leaves
        try:
            leaves = [None] * n if entry is None else structure.flatten_up_to(entry)
        except ValueError as e:
            raise ArgumentError(message(f"{what} returns a cotangent of {name} of another structure than {name}: {e}",
                                        at=user_source(2))) from None
        for x, path in zip(leaves, tree.paths(structure, name)):
            aval = next(avals)
            if aval.is_float:
                out.append(instantiate(Zero(aval)) if x is None else
                           leaf(what, x, aval, f"the cotangent of {path}", is_cotangent=True))
    return out
