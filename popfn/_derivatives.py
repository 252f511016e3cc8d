"""Jacobians, Hessians and transposes of functions on pytrees."""
from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from . import _tracing as tracing, numpy as pnp
from ._promotion import filled, known
from .api import (
    Function,
    argument_numbers,
    check_aux,
    check_callable,
    check_float,
    decorator,
    is_index,
    matched,
    spread_zeros,
    wraps,
)
from .trace import tree
from .trace.array import Array
from .trace.aval import Aval
from .trace.errors import ArgumentError, function_name, message, user_source
from .trace.primitive import MappedAxis
from .transforms.differentiate import jvp_jaxpr, transpose_jaxpr, vjp_jaxpr
from .transforms.linear import linear_parts
from .transforms.replay import inline
from .transforms.vmap import batch_jaxpr

Numbers = Union[int, Sequence[int]]


# ---------------------------------------------------------------------------- Jacobians
class Point(NamedTuple):
    """A function traced at the arguments at which its Jacobian is wanted."""

    traced: tracing.Traced
    operands: List[Any]
    mask: Tuple[bool, ...]  # the operands by which the derivative is taken
    by: List[Aval]  # their types
    out_avals: Tuple[Aval, ...]  # of the result without aux


#: From a point: all outputs, and for each one of the result its derivatives by each operand in the mask.
Rows = Callable[[Point], Tuple[List[Any], List[List[Any]]]]


def jacobian(name: str, f: Function, argnums: Numbers, has_aux: bool, rows: Rows) -> Function:
    """The wrapper of a function that returns a Jacobian."""
    argnums = known(f"{name}: argnums", argnums)

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers(name, f, argnums, args)
        given = tracing.arguments(name, f, args, kwargs, arrays=True)
        wanted = [i in numbers for i, s in enumerate(given.structures) for _ in range(s.num_leaves)]
        for i, (a, on) in enumerate(zip(given.avals, wanted)):
            if on and not a.is_float:
                check_float(name, tracing.leaf_names(f, args, kwargs)[i], a,
                            "leave it out of argnums, or close over it")
        traced = tracing.trace(f, given, tracing.follows())
        if has_aux:
            check_aux(name, f, traced)
        out_tree = traced.out_tree.children()[0] if has_aux else traced.out_tree
        out_avals = traced.jaxpr.out_avals[:out_tree.num_leaves]
        for a, path in zip(out_avals, tree.paths(out_tree, "result")):
            if not a.is_float:
                raise ArgumentError(message(
                    f"{name}: {path} of {function_name(f)} is {a}; a derivative needs floats",
                    "way out: convert it with astype, or return it beside the result with has_aux=True",
                    at=user_source(2)))
        captures = traced.captures
        outs, blocks = rows(Point(
            traced, [*captures, *given.leaves], (False,) * len(captures) + tuple(wanted),
            [a for a, on in zip(given.avals, wanted) if on], out_avals))

        def by_argument(row: List[Any]) -> Any:
            rest = iter(row)
            column = [next(rest) if on else None for on in wanted]
            values, _ = tracing.unflatten_arguments(column, given.structures, len(args), list(kwargs))
            return values[numbers[0]] if is_index(argnums) else tuple(values[i] for i in numbers)
        result = tree.unflatten(out_tree, [by_argument(row) for row in blocks])
        return (result, traced.outputs(outs)[1]) if has_aux else result
    return wrapper


def unit_vectors(avals: Sequence[Aval]) -> List[Array]:
    """The unit vectors of the space of all values together: for each value its part of them, in lanes in front."""
    total = sum(a.size for a in avals)
    out, at = [], 0
    for a in avals:
        lanes = np.zeros((total, a.size), a.dtype)
        lanes[at:at + a.size] = np.eye(a.size)
        lanes = lanes.reshape((total, *a.shape))
        lanes.flags.writeable = False
        out.append(Array.wrap(lanes, Aval._make(lanes.shape, a.dtype, False)))
        at += a.size
    return out


def parts(lanes: Any, avals: Sequence[Aval]) -> List[Any]:
    """The lanes of each value's own unit vectors."""
    out, at = [], 0
    for a in avals:
        out.append(lanes[at:at + a.size])
        at += a.size
    return out


def columns(point: Point) -> Tuple[List[Any], List[List[Any]]]:
    """A Jacobian by forward mode."""
    jaxpr, by = point.traced.jaxpr, point.by
    pushed, moves = jvp_jaxpr(jaxpr, point.mask)
    n, directions = len(jaxpr.outputs), unit_vectors(by)
    program, _ = batch_jaxpr(pushed, MappedAxis(sum(a.size for a in by)),
                             (None,) * len(point.operands) + (0,) * len(by), (False,) * n + (True,) * sum(moves))
    results = inline(program, [*point.operands, *directions])
    moved = iter(results[n:])
    tangents = [next(moved) if on else None for on in moves]
    return results[:n], [
        [filled(o.shape + a.shape, 0, o.dtype) for a in by] if t is None else
        [pnp.reshape(pnp.moveaxis(part, 0, -1), o.shape + a.shape) for part, a in zip(parts(t, by), by)]
        for o, t in zip(point.out_avals, tangents)]


def lines(point: Point) -> Tuple[List[Any], List[List[Any]]]:
    """A Jacobian by reverse mode."""
    jaxpr, out_avals = point.traced.jaxpr, point.out_avals
    pulled = vjp_jaxpr(jaxpr, point.mask, range(len(out_avals)))
    n, cotangents = len(jaxpr.outputs), unit_vectors(out_avals)
    program, _ = batch_jaxpr(pulled, MappedAxis(sum(a.size for a in out_avals)),
                             (None,) * len(point.operands) + (0,) * len(out_avals),
                             (False,) * n + (True,) * len(point.by))
    results = inline(program, [*point.operands, *cotangents])
    by_operand = [parts(gradient, out_avals) for gradient in results[n:]]
    return results[:n], [[pnp.reshape(rows[i], o.shape + a.shape) for rows, a in zip(by_operand, point.by)]
                         for i, o in enumerate(out_avals)]


@decorator
def jacfwd(f: Function, argnums: Numbers = 0, has_aux: bool = False) -> Function:
    """A function that returns the Jacobian of f by the arguments in `argnums`, by forward mode: column by column.

    The result has the structure of f's result. In the place of each leaf of shape s stands the structure of the
    argument, a tuple of them if `argnums` is a sequence, whose leaves of shape t became s + t. With `has_aux`, f
    returns a pair of the result and anything else, which comes back beside the Jacobian. Raises ArgumentError for
    integers.

    >>> import popfn.numpy as pnp
    >>> jacfwd(lambda x: x * x)(pnp.asarray([1.0, 3.0]))
    Array([[2., 0.],
           [0., 6.]], dtype=float32)
    """
    return jacobian("jacfwd", f, argnums, has_aux, columns)


@decorator
def jacrev(f: Function, argnums: Numbers = 0, has_aux: bool = False) -> Function:
    """The Jacobian as of `jacfwd`, by reverse mode: row by row, which is faster where f has few outputs.

    >>> import popfn.numpy as pnp
    >>> jacrev(lambda x: pnp.sum(x ** 3))(pnp.asarray([1.0, 3.0]))
    Array([ 3., 27.], dtype=float32)
    """
    return jacobian("jacrev", f, argnums, has_aux, lines)


@decorator
def hessian(f: Function, argnums: Numbers = 0, has_aux: bool = False) -> Function:
    """A function that returns the second derivatives of f: the Jacobian of its Jacobian, see `jacfwd`.

    >>> import popfn.numpy as pnp
    >>> hessian(lambda x: pnp.sum(x ** 3))(pnp.asarray([1.0, 3.0]))
    Array([[ 6.,  0.],
           [ 0., 18.]], dtype=float32)
    """
    return jacfwd(jacrev(f, argnums, has_aux), argnums, has_aux)


# ---------------------------------------------------------------------------- transpose
def linear_transpose(f: Function, *primals: Any) -> Function:
    """The transpose of a linear function: from a cotangent of its result to a tuple of cotangents of the arguments.

    `primals` say what f takes: arrays, whose values do not matter, or avals (`pf.spec`). Raises ArgumentError that
    names the operation if f is not linear in all of them together, for integers, and for a cotangent of another type.

    >>> import popfn as pf
    >>> linear_transpose(lambda x: 3 * x, pf.spec(()))(2.0)
    (Array(6., dtype=float32),)
    """
    check_callable("linear_transpose", f, "linear_transpose(f, x)")
    given = tracing.arguments("linear_transpose", f, primals, {})
    for i, a in enumerate(given.avals):
        if not a.is_float:
            check_float("linear_transpose", tracing.leaf_names(f, primals, {})[i], a, "close over it")
    traced = tracing.trace(f, given)
    jaxpr, captures = traced.jaxpr, traced.captures
    mask = (False,) * len(captures) + (True,) * len(given.avals)
    fixed, linear, moves = linear_parts(jaxpr, mask, f"linear_transpose: {function_name(f)} is not linear")
    residuals = inline(fixed, captures)[len(moves) - sum(moves):]

    def transposed(ct: Any) -> Tuple[Any, ...]:
        cts = matched("linear_transpose", "cotangent", ct, traced.out_tree, jaxpr.out_avals, "result")
        chosen = [c for c, on in zip(cts, moves) if on]
        by_argument = (False,) * len(residuals) + (True,) * len(given.avals)
        program, given_back = transpose_jaxpr(linear, by_argument, (True,) * len(chosen))
        got = spread_zeros(inline(program, [*residuals, *chosen]), given_back, given.avals)
        return tuple(tracing.unflatten_arguments(got, given.structures, len(primals), ())[0])
    return transposed
