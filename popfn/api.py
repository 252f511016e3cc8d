"""The transforms as a user meets them: wrappers of functions on pytrees.

Each wrapper traces the function to a jaxpr, applies a flat transform of `popfn.transforms` to it, and puts the result
where the call stands: evaluated at once on concrete arrays, recorded in the trace around it otherwise. Every wrapper is
also a decorator, with or without arguments, and keeps the wrapped function's name, signature and docstring.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _tracing as tracing, numpy as pnp
from ._promotion import convert_to, filled, known
from .trace import prims, tree
from .trace.annotations import specs_from_annotations as _annotated_specs
from .trace.aval import Aval, spec
from .trace.errors import ArgumentError, DtypeError, function_name, message, user_source
from .trace.jaxpr import Jaxpr
from .trace.primitive import Zero
from .trace.prims import instantiate
from .trace.tracer import aval_of, literal
from .transforms.differentiate import for_forward_mode, jvp_jaxpr, linearize_jaxpr, transpose_jaxpr, vjp_jaxpr
from .transforms.replay import inline

Function = Callable[..., Any]


def decorator(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Let a transform be called without its function, to give a decorator: `@grad(argnums=1)`."""
    @functools.wraps(transform)
    def wrapper(f: Optional[Function] = None, *args: Any, **kwargs: Any) -> Any:
        if f is None:
            return functools.partial(wrapper, **kwargs)
        name = transform.__name__
        check_callable(name, f, f"{name}(f)(x), not {name}(f(x))")
        return transform(f, *args, **kwargs)
    return wrapper


def is_index(n: Any) -> bool:
    """Whether n is an integer that can number an argument."""
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


def check_callable(name: str, f: Any, way: str) -> None:
    """Raise ArgumentError unless f can be called."""
    if not callable(f):
        raise ArgumentError(message(f"{name} takes a function first, got {type(f).__name__}", f"way out: {way}",
                                    at=user_source(3)))


def wraps(f: Function) -> Callable[[Function], Function]:
    """functools.wraps for any callable, also one without a name."""
    return functools.wraps(f, [a for a in functools.WRAPPER_ASSIGNMENTS if hasattr(f, a)])


# ---------------------------------------------------------------------------- looking at a function
@decorator
def make_jaxpr(f: Function) -> Callable[..., Jaxpr]:
    """A function that returns the jaxpr of `f` for its arguments: arrays, avals (`pf.spec`) or a mix of them.

    >>> print(make_jaxpr(lambda x: x * 2)(spec(3)))
    { lambda ; a:f32[3] . let
        b:f32[3] = mul a 2.0:f32[]
      in (b,) }
    """
    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Jaxpr:
        return tracing.trace(f, tracing.arguments("make_jaxpr", f, args, kwargs)).jaxpr
    return wrapper


def eval_shape(f: Function, *args: Any, **kwargs: Any) -> Any:
    """The types of f's results, as a tree of avals, without computing them.

    >>> eval_shape(lambda x: {"total": x.sum()}, spec((2, 3)))
    {'total': f32[]}
    """
    check_callable("eval_shape", f, "eval_shape(f, x)")
    traced = tracing.trace(f, tracing.arguments("eval_shape", f, args, kwargs))
    return traced.outputs(traced.jaxpr.out_avals)


def specs_from_annotations(f: Function) -> Tuple[Aval, ...]:
    """The avals that f's jaxtyping annotations ask for, one for each parameter.

    Raises AnnotationError that names a parameter without an annotation, or with one that leaves a size open.
    """
    return tuple(spec(shape, dtype) for shape, dtype in _annotated_specs(f))


# ---------------------------------------------------------------------------- reverse mode
def argument_numbers(name: str, f: Function, argnums: Union[int, Sequence[int]], args: Sequence[Any],
                     ) -> Tuple[int, ...]:
    """The numbers of the positional arguments that are differentiated, non-negative."""
    numbers = tuple(argnums) if isinstance(argnums, (tuple, list, range)) else (argnums,)
    for n in numbers:
        if not is_index(n):
            raise ArgumentError(message(f"{name}: argnums={argnums!r} does not number positional arguments",
                                        "way out: an integer, or a tuple of integers", at=user_source(3)))
        if not -len(args) <= n < len(args):
            raise ArgumentError(message(
                f"{name}: argnums={argnums!r}, but {function_name(f)} was called with {len(args)} positional arguments",
                "way out: pass what is differentiated by position", at=user_source(3)))
    numbers = tuple(int(n) % len(args) for n in numbers)
    if len(set(numbers)) != len(numbers):
        raise ArgumentError(message(f"{name}: argnums={argnums!r} names an argument twice", at=user_source(3)))
    return numbers


def check_float(name: str, path: str, aval: Aval, way: str) -> None:
    """Raise ArgumentError unless an argument's leaf is a float."""
    if not aval.is_float:
        raise ArgumentError(message(f"{name}: argument {path} is {aval}; a derivative needs floats",
                                    f"way out: {way}", at=user_source(3)))


def check_aux(name: str, f: Function, traced: tracing.Traced) -> None:
    """Raise ArgumentError unless f returned a pair."""
    result = traced.outputs(traced.jaxpr.out_avals)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError(message(f"{name}: with has_aux, {function_name(f)} must return a pair (value, aux), "
                                    f"got {result}", at=user_source(3)))


def _check_scalar(name: str, f: Function, value: Any, has_aux: bool) -> None:
    """Raise ArgumentError unless a tree of avals is one float scalar."""
    if isinstance(value, Aval) and value.is_float and not value.ndim:
        return
    way = ("return (value, aux) and pass has_aux=True" if isinstance(value, tuple) and not has_aux else
           "return one array" if not isinstance(value, Aval) else
           "reduce it with pnp.sum or pnp.mean" if value.ndim else "convert it with astype")
    raise ArgumentError(message(f"{name}: {function_name(f)} must return one float scalar, got {value}",
                                f"way out: {way}", at=user_source(3)))


@decorator
def value_and_grad(f: Function, argnums: Union[int, Sequence[int]] = 0, has_aux: bool = False,
                   allow_int: bool = False) -> Function:
    """A function that returns f's value and its gradient by the arguments in `argnums`.

    `f` returns a float scalar, or with `has_aux` a pair of it and anything else, which comes back beside it:
    ((value, aux), gradient). The gradient has the structure, shapes and dtypes of the argument, a tuple of them if
    `argnums` is a sequence. On concrete arguments Python's `if` follows their values.

    Raises ArgumentError (a TypeError) if the result is no float scalar, or if an argument holds integers; with
    `allow_int` their gradients are integer zeros.

    >>> import popfn.numpy as pnp
    >>> value_and_grad(lambda x: pnp.sum(x ** 2))(pnp.asarray([1.0, 3.0]))
    (Array(10., dtype=float32), Array([2., 6.], dtype=float32))
    """
    argnums = known("grad: argnums", argnums)

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers("grad", f, argnums, args)
        given = tracing.arguments("grad", f, args, kwargs, arrays=True)
        structures, avals = given.structures, given.avals
        wanted = [i in numbers for i, s in enumerate(structures) for _ in range(s.num_leaves)]
        if not allow_int:
            for i, (a, on) in enumerate(zip(avals, wanted)):
                if on and not a.is_float:
                    check_float("grad", tracing.leaf_names(f, args, kwargs)[i], a,
                                 "leave it out of argnums, close over it, or pass allow_int=True")
        traced = tracing.trace(f, given, tracing.follows())
        jaxpr, captures = traced.jaxpr, traced.captures
        result = traced.outputs(jaxpr.out_avals)
        if has_aux:
            check_aux("grad", f, traced)
        _check_scalar("grad", f, result[0] if has_aux else result, has_aux)
        mask = (False,) * len(captures) + tuple(on and a.is_float for a, on in zip(avals, wanted))
        program = vjp_jaxpr(jaxpr, mask, (0,))
        results = inline(program, [*captures, *given.leaves, literal(1.0, jaxpr.out_avals[0])], once=True)
        n = len(jaxpr.outputs)
        rest = iter(results[n:])
        column = [None if not on else next(rest) if a.is_float else filled(a.shape, 0, a.dtype)
                  for a, on in zip(avals, wanted)]
        by_argument, _ = tracing.unflatten_arguments(column, structures, len(args), list(kwargs))
        gradient = by_argument[numbers[0]] if is_index(argnums) else tuple(by_argument[i] for i in numbers)
        return traced.outputs(results[:n]), gradient
    return wrapper


@decorator
def grad(f: Function, argnums: Union[int, Sequence[int]] = 0, has_aux: bool = False,
         allow_int: bool = False) -> Function:
    """A function that returns the gradient of f by the arguments in `argnums`; see `value_and_grad`.

    With `has_aux` it returns (gradient, aux).

    >>> grad(lambda x: x ** 3)(2.0)
    Array(12., dtype=float32, weak=True)
    """
    both = value_and_grad(f, argnums, has_aux, allow_int)

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient
    return wrapper


def traced_floats(name: str, f: Function, primals: Sequence[Any]) -> Tuple[tracing.Traced, List[Any], List[Any]]:
    """f traced on primals that must all be floats, with their leaves and structures."""
    check_callable(name, f, f"{name}(f, x)" if name != "jvp" else "jvp(f, (x,), (t,))")
    given = tracing.arguments(name, f, primals, {}, arrays=True)
    for i, aval in enumerate(given.avals):
        if not aval.is_float:
            check_float(name, tracing.leaf_names(f, primals, {})[i], aval, "close over it")
    given = given._replace(leaves=[pnp.asarray(x) for x in given.leaves])  # copies, which the residuals may be
    return tracing.trace(f, given, tracing.follows()), given.leaves, given.structures


def matched(name: str, what: str, got: Any, structure: tree.TreeDef, avals: Sequence[Aval], root: str) -> List[Any]:
    """The leaves of a tangent or cotangent, of the structure, shapes and dtypes that it must have."""
    leaves, got_structure = tree.flatten(got)
    if got_structure != structure:
        want = tree.unflatten(structure, avals)
        whole = "the result" if root == "result" else root
        raise ArgumentError(message(f"{name}: the {what} has another structure than {whole}",
                                    tree.first_difference(want, got, whole, f"the {what}", root), at=user_source(3)))
    for i, (x, a) in enumerate(zip(leaves, avals)):
        try:
            seen = tracing.argument_aval(x)
        except DtypeError as e:
            raise ArgumentError(message(f"{name}: the {what} of {tree.paths(structure, root)[i]} is not an array: {e}",
                                        at=user_source(3))) from None
        if seen.shape != a.shape or seen.dtype != a.dtype and not (seen.weak and a.is_float):
            raise ArgumentError(message(f"{name}: the {what} of {tree.paths(structure, root)[i]} is {seen}, "
                                        f"expected {a}", at=user_source(3)))
    return [convert_to(x, a.dtype) if tracing.argument_aval(x).dtype != a.dtype else x for x, a in zip(leaves, avals)]


def linearized(traced: tracing.Traced, leaves: Sequence[Any]) -> Tuple[Any, Any, Any]:
    """f's outputs, its linearization, and the residuals' values."""
    jaxpr, captures = traced.jaxpr, traced.captures
    cut = linearize_jaxpr(jaxpr, (False,) * len(captures) + (True,) * len(leaves))
    operands = [*captures, *leaves]
    results = inline(cut.forward, operands)
    residuals = [(operands if where == "input" else results)[i] for where, i in cut.residuals]
    return results[:len(jaxpr.outputs)], cut, residuals


def spread_zeros(values: Sequence[Any], mask: Sequence[bool], avals: Sequence[Aval]) -> List[Any]:
    """The values at the places in the mask, zeros at the others."""
    rest = iter(values)
    return [next(rest) if on else pnp.asarray(instantiate(Zero(a))) for on, a in zip(mask, avals)]


def vjp(f: Function, *primals: Any, has_aux: bool = False) -> Tuple[Any, ...]:
    """f's result, and a function from a cotangent of the result to a tuple of cotangents of the primals.

    The cotangent has the structure, shapes and dtypes of the result; leaves that are no floats are not used. With
    `has_aux`, f returns a pair of the result and anything else, which comes back as a third value. Raises ArgumentError
    for integer primals and for a cotangent of another type.

    >>> y, pull = vjp(lambda x: x * x, 3.0)
    >>> pull(1.0)
    (Array(6., dtype=float32, weak=True),)
    """
    traced, leaves, structures = traced_floats("vjp", f, primals)
    outs, cut, residuals = linearized(traced, leaves)
    if has_aux:
        check_aux("vjp", f, traced)
    out_tree = traced.out_tree.children()[0] if has_aux else traced.out_tree
    pull_back = Pullback(residuals, cut.linear, cut.moves, out_tree, traced.jaxpr.out_avals, tuple(structures))
    result = traced.outputs(outs)
    return (result[0], pull_back, result[1]) if has_aux else (result, pull_back)


@dataclass(frozen=True)
class Pullback:
    """The function that `vjp` gives, from a cotangent of the result to a tuple of cotangents of the primals.

    It is a pytree, whose leaves are the residuals: a scan can hand it from one loop to another.
    """

    residuals: List[Any]
    linear: Jaxpr
    moves: Tuple[bool, ...]
    out_tree: tree.TreeDef
    out_avals: Tuple[Aval, ...]  # of aux too, which stands behind the result
    structures: Tuple[tree.TreeDef, ...]

    def __call__(self, ct: Any) -> Tuple[Any, ...]:
        cts = matched("vjp", "cotangent", ct, self.out_tree, self.out_avals[:self.out_tree.num_leaves], "result")
        cts += [filled(a.shape, 0, a.dtype) for a in self.out_avals[len(cts):]]
        given = [c for c, on in zip(cts, self.moves) if on]
        count = len(self.residuals)
        wanted, avals = self.linear.in_avals[:count], self.linear.in_avals[count:]
        for aval, want in zip(map(tracing.argument_aval, self.residuals), wanted):
            if (aval.shape, aval.dtype) != (want.shape, want.dtype):
                raise ArgumentError(message(
                    f"vjp: a residual is {aval.strong}, but that of the forward pass was {want.strong}",
                    "way out: hand on the residuals as the forward pass gave them", at=user_source(2)))
        program, moves = transpose_jaxpr(self.linear, (False,) * count + (True,) * len(avals), (True,) * len(given))
        got = spread_zeros(inline(program, [*self.residuals, *given]), moves, avals)
        return tuple(tracing.unflatten_arguments(got, self.structures, len(self.structures), ())[0])


tree.register(Pullback, lambda p: (p.residuals, (p.linear, p.moves, p.out_tree, p.out_avals, p.structures)),
              lambda static, residuals: Pullback(list(residuals), *static))


def linearize(f: Function, *primals: Any) -> Tuple[Any, Function]:
    """f's result, and the linear function from tangents of the primals to the tangent of the result.

    >>> y, push = linearize(lambda x: x * x, 3.0)
    >>> push(1.0)
    Array(6., dtype=float32, weak=True)
    """
    traced, leaves, structures = traced_floats("linearize", f, primals)
    outs, cut, residuals = linearized(traced, leaves)
    linear = for_forward_mode(cut.linear)

    def push_forward(*tangents: Any) -> Any:
        given = _tangents("linearize", f, primals, tangents, structures, leaves)
        got = inline(linear, [*residuals, *given])
        return traced.outputs(spread_zeros(got, cut.moves, traced.jaxpr.out_avals))
    return traced.outputs(outs), push_forward


def _tangents(name: str, f: Function, primals: Sequence[Any], tangents: Sequence[Any],
              structures: Sequence[tree.TreeDef], leaves: Sequence[Any]) -> List[Any]:
    """The leaves of the tangents, checked against the primals."""
    if len(tangents) != len(primals):
        raise ArgumentError(message(f"{name}: {len(primals)} primals but {len(tangents)} tangents", at=user_source(3)))
    names = tracing.argument_names(f, primals, {})
    avals = iter([aval_of(x) for x in leaves])
    out: List[Any] = []
    for t, structure, root in zip(tangents, structures, names):
        out += matched(name, "tangent", t, structure, [next(avals) for _ in range(structure.num_leaves)], root)
    return out


# ---------------------------------------------------------------------------- forward mode
def jvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
    """f's result and its derivative along the tangents, in one forward pass.

    `primals` and `tangents` are sequences of the arguments and of the directions, alike in structure, shapes and
    dtypes. Outputs that are no floats have zeros for tangents. Raises ArgumentError where the two do not match, or for
    integers.

    >>> jvp(lambda x: x * x, (3.0,), (1.0,))
    (Array(9., dtype=float32, weak=True), Array(6., dtype=float32, weak=True))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ArgumentError(message(
            f"jvp takes a tuple of primals and a tuple of tangents, got {type(primals).__name__} and "
            f"{type(tangents).__name__}", "way out: jvp(f, (x,), (t,))", at=user_source(2)))
    traced, leaves, structures = traced_floats("jvp", f, primals)
    given = _tangents("jvp", f, primals, tangents, structures, leaves)
    jaxpr, captures = traced.jaxpr, traced.captures
    program, moves = jvp_jaxpr(jaxpr, (False,) * len(captures) + (True,) * len(leaves))
    results = inline(program, [*captures, *leaves, *given])
    n = len(jaxpr.outputs)
    return traced.outputs(results[:n]), traced.outputs(spread_zeros(results[n:], moves, jaxpr.out_avals))


def stop_gradient(x: Any) -> Any:
    """The same values, through which no derivative passes; `x` may be a pytree."""
    return tree.map(lambda leaf: prims.stop_gradient(pnp.asarray(leaf)), x)
