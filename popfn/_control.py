"""Control flow as a user meets it: loops and branches over functions on pytrees."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _tracing as tracing, numpy as pnp
from ._promotion import convert_to, known
from .api import check_callable, is_index
from .trace import prims, tree
from .trace.array import Array
from .trace.aval import Aval, bool_, int32, promote_types, uint32
from .trace.errors import (
    ArgumentError,
    DtypeError,
    NarrowingError,
    RangeError,
    ShapeError,
    function_name,
    message,
    user_source,
)
from .trace.jaxpr import Jaxpr, Var
from .trace.prims.collectives import pvary
from .trace.prims.structural import slice_axis
from .trace.tracer import Tracer, aval_of, bind, literal
from .transforms.bodies import cut, rebuilt, reordered, without_constants
from .transforms.cond import choose
from .transforms.loop import While
from .transforms.replay import constant_arrays, inline
from .transforms.scan import Scan

Function = Callable[..., Any]


# ---------------------------------------------------------------------------- scan
def scan(f: Function, init: Any, xs: Any = None, length: Optional[int] = None, reverse: bool = False,
         unroll: Union[int, bool] = 1) -> Tuple[Any, Any]:
    """Run `carry, y = f(carry, x)` for each x along the first axis of `xs`: the last carry, and all y stacked.

    `init` is the first carry, and `xs` a tree of arrays with first axes of one size; None of them if `length` says how
    many steps there are. The carry keeps its structure, shapes and dtypes; only a Python number takes the dtype that
    `f` makes of it. With `reverse` the steps go from the last element to the first, and y is stacked in the order of
    xs. `unroll` steps are written out in each turn of the loop, all of them if it is True: the same values, from a
    larger program with less looping.

    `f` is traced once: the program holds it once, and so does that of its gradient. No steps give `init` and empty y.

    Raises ArgumentError if `f` does not return a pair, if the carry changes its type (the error names the leaf and both
    types), and ShapeError if the arrays in xs have first axes of different sizes, or none.

    >>> import numpy as np
    >>> total, sums = scan(lambda total, x: (total + x, total + x), 0, np.arange(1, 5))
    >>> total, sums
    (Array(10, dtype=int32), Array([ 1,  3,  6, 10], dtype=int32))
    """
    check_callable("scan", f, "scan(f, init, xs)")
    return _scan("scan", f, init, xs, length, reverse, 1 if unroll is False else unroll)


def map(f: Function, xs: Any) -> Any:
    """`f` of each element along the first axis of the arrays in `xs`, one after the other; the results stacked.

    For all at once, which needs more memory, there is `vmap`. Errors as in `scan`.

    >>> import numpy as np
    >>> map(lambda x: x * x, np.arange(4))
    Array([0, 1, 4, 9], dtype=int32)
    """
    check_callable("map", f, "map(f, xs)")

    def each(_: Any, x: Any) -> Tuple[None, Any]:
        return None, f(x)
    each.__wrapped__ = f  # type: ignore[attr-defined]
    each.__name__ = getattr(f, "__name__", "map")
    each.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("_", "xs")])
    return _scan("map", each, None, xs, None, False, 1)[1]


def _scan(name: str, f: Function, init: Any, xs: Any, length: Optional[int], reverse: bool, unroll: Union[int, bool],
          ) -> Tuple[Any, Any]:
    given = tracing.arguments(name, f, (init, xs), {}, arrays=True)
    size = _length(name, given, length)
    n = given.structures[0].num_leaves
    rows = [a.with_shape(a.shape[1:]) for a in given.avals[n:]]
    carry_tree = given.structures[0]

    def carry_of(out_tree: tree.TreeDef) -> tree.TreeDef:
        if out_tree.type is not tuple or len(out_tree.children()) != 2:
            raise ArgumentError(message(f"{name}: {function_name(f)} must return a pair (carry, y), got "
                                        f"{_form(out_tree)}", at=user_source(2)))
        return out_tree.children()[0]
    body = _loop_body(name, f, given._replace(avals=[*given.avals[:n], *rows]), 0, carry_tree, carry_of)
    operands = [*body.consts, *_typed(given.leaves[:n], body.carry), *given.leaves[n:]]
    step = Scan(body.jaxpr, size, len(body.consts), n, bool(reverse))
    unroll = known("scan: unroll", unroll)
    results = bind(step, operands) if is_index(unroll) and unroll == 1 else _unrolled(step, operands, unroll)
    y_tree = body.out_tree.children()[1]
    return tree.unflatten(carry_tree, results[:n]), tree.unflatten(y_tree, results[n:])


def _length(name: str, given: tracing.Arguments, length: Optional[int]) -> int:
    """The number of steps."""
    length = known(f"{name}: the length", length)
    if length is not None and (not is_index(length) or length < 0):
        raise ArgumentError(message(f"{name}: length is a number of 0 or more, got {length!r}", at=user_source(2)))
    n = given.structures[0].num_leaves
    paths = tree.paths(given.structures[1], "xs")
    sizes: Dict[int, str] = {}
    for path, aval in zip(paths, given.avals[n:]):
        if not aval.ndim:
            raise ShapeError(message(f"{name}: {path} is {aval}, which has no axis to go along",
                                     "way out: close over what is the same in all steps", at=user_source(2)))
        sizes.setdefault(aval.shape[0], f"{aval.shape[0]} along the first axis of {path}, {aval}")
    if length is not None:
        sizes.setdefault(int(length), f"length={length}")
    if len(sizes) > 1:
        raise ShapeError(message(f"{name}: the number of steps is not clear", *(f"seen: {s}" for s in sizes.values()),
                                 at=user_source(2)))
    if not sizes:
        raise ArgumentError(message(f"{name}: there are no arrays in xs that say how many steps there are",
                                    "way out: pass length=" if name == "scan" else None, at=user_source(2)))
    return next(iter(sizes))


def _unrolled(scan: Scan, operands: Sequence[Any], unroll: Union[int, bool]) -> Sequence[Any]:
    """The results of a scan that takes several steps in each turn, and a further one for the steps that are left."""
    if unroll is not True and (not is_index(unroll) or unroll < 1):
        raise ArgumentError(message(f"scan: unroll is True or a number of 1 or more, got {unroll!r}",
                                    at=user_source(3)))
    steps = min(scan.length if unroll is True else int(unroll), scan.length)
    if steps <= 1 and unroll is not True or not steps:
        results: Sequence[Any] = bind(scan, operands)
        return results
    turns, left = divmod(scan.length, steps)
    consts, carry, xs = scan.parts(operands)
    c_avals, k_avals, x_avals = scan.parts(scan.jaxpr.in_avals)
    order = range(steps - 1, -1, -1) if scan.reverse else range(steps)

    def chunk(*args: Any) -> Sequence[Any]:
        fixed, now, rest = scan.parts(args)
        rows: List[Any] = [None] * steps
        for i in order:
            elements = [prims.reshape(slice_axis(x, 0, i, i + 1), a.shape) for x, a in zip(rest, x_avals)]
            now, rows[i] = cut(inline(scan.jaxpr, [*fixed, *now, *elements]), scan.num_carry)
        ys = [prims.concat([prims.reshape(y, (1, *aval_of(y).shape)) for y in column], 0) for column in zip(*rows)]
        return [*now, *ys]
    body = rebuilt(scan.jaxpr.name, [*c_avals, *k_avals, *(a.with_shape((steps, *a.shape)) for a in x_avals)], chunk)
    first = left if scan.reverse else 0  # of the steps in whole turns
    parts = [slice_axis(x, 0, first, first + turns * steps) for x in xs]
    parts = [prims.reshape(x, (turns, steps, *aval_of(x).shape[1:])) for x in parts]
    if turns == 1:
        outs = inline(body, [*consts, *carry, *[prims.reshape(x, aval_of(x).shape[1:]) for x in parts]])
        carry, ys = cut(outs, scan.num_carry)
    else:
        turn = Scan(body, turns, scan.num_consts, scan.num_carry, scan.reverse)
        carry, ys = cut(bind(turn, [*consts, *carry, *parts]), scan.num_carry)
        ys = [prims.reshape(y, (turns * steps, *aval_of(y).shape[2:])) for y in ys]
    if left:
        start = 0 if scan.reverse else turns * steps
        rest = Scan(scan.jaxpr, left, scan.num_consts, scan.num_carry, scan.reverse)
        carry, more = cut(bind(rest, [*consts, *carry, *[slice_axis(x, 0, start, start + left) for x in xs]]),
                          scan.num_carry)
        ys = [prims.concat([m, y] if scan.reverse else [y, m], 0) for y, m in zip(ys, more)]
    return [*carry, *ys]


# ---------------------------------------------------------------------------- loops
def fori_loop(lower: Any, upper: Any, body: Function, init: Any, *, max_steps: Optional[int] = None) -> Any:
    """Run `carry = body(i, carry)` for i from `lower` to `upper` - 1, from `init`; the last carry.

    With bounds that are known while tracing this is a `scan`: it can be differentiated and lowered. With traced bounds
    it is a `while_loop`, which needs `max_steps` for both. The carry is as in `scan`.

    Raises DtypeError for bounds that are no integer scalars, ArgumentError if the carry changes its type.

    >>> fori_loop(0, 5, lambda i, total: total + i, 0)
    Array(10, dtype=int32, weak=True)
    """
    check_callable("fori_loop", body, "fori_loop(lower, upper, body, init)")
    for name, bound in (("lower", lower), ("upper", upper)):
        aval = _operand("fori_loop", name, bound)
        if aval.ndim or aval.dtype.kind not in "iu":
            raise DtypeError(message(f"fori_loop: {name} is an integer, got {aval}", at=user_source(2)))
    first, last = (aval_of(x) for x in (lower, upper))
    dtype, weak = promote_types(first.dtype, first.weak, last.dtype, last.weak)
    index = Aval((), dtype, weak, first.varying | last.varying)
    given = tracing.arguments("fori_loop", body, (lower, init), {}, arrays=True)
    leaves, structure = given.leaves[1:], given.structures[1]
    made = _loop_body("fori_loop", body, given._replace(avals=[index, *given.avals[1:]]), 1, structure, lambda t: t)
    carry = _typed(leaves, made.carry)

    def step(*args: Any) -> Sequence[Any]:
        i = args[len(made.consts)]
        return [prims.add(i, literal(1, index)), *inline(made.jaxpr, args)]
    if not isinstance(lower, Tracer) and not isinstance(upper, Tracer):
        steps = max(int(upper) - int(lower), 0)
        steps = steps if max_steps is None else min(steps, _bound("fori_loop", max_steps))
        loop: Any = Scan(rebuilt(made.jaxpr.name, made.jaxpr.in_avals, step), steps, len(made.consts), len(carry) + 1)
        results = bind(loop, [*made.consts, *_typed([lower], [index]), *carry])
    else:
        ends = [index, *made.jaxpr.in_avals]
        cond = rebuilt("below", ends, lambda end, *args: [prims.lt(args[len(made.consts)], end)])
        turn = rebuilt(made.jaxpr.name, ends, lambda end, *args: step(*args))
        loop = While(cond, turn, len(made.consts) + 1, None if max_steps is None else _bound("fori_loop", max_steps))
        results = bind(loop, [*_typed([upper], [index]), *made.consts, *_typed([lower], [index]), *carry])
    return tree.unflatten(structure, results[1:])


def while_loop(cond: Function, body: Function, init: Any, max_steps: Optional[int] = None) -> Any:
    """Run `carry = body(carry)` from `init` for as long as `cond(carry)` is true; the last carry.

    With `max_steps` the loop ends after so many steps, whatever `cond` says. It can then be differentiated in reverse
    mode, exactly, and lowered. Without, forward mode works, and `jit` runs it on the host. The carry is as in `scan`.

    Raises ArgumentError if `cond` does not return a bool scalar, or if the carry changes its type.

    >>> while_loop(lambda x: x < 100, lambda x: x * 2, 3)
    Array(192, dtype=int32, weak=True)
    """
    check_callable("while_loop", cond, "while_loop(cond, body, init)")
    check_callable("while_loop", body, "while_loop(cond, body, init)")
    bound = None if max_steps is None else _bound("while_loop", max_steps)
    given = tracing.arguments("while_loop", body, (init,), {}, arrays=True)
    structure = given.structures[0]
    while True:
        made = _loop_body("while_loop", body, given, 0, structure, lambda t: t)
        test = _traced(cond, given._replace(avals=made.carry))
        if test.out_tree.num_leaves != 1 or [(a.shape, a.dtype) for a in test.jaxpr.out_avals] != [((), bool_)]:
            seen = tree.unflatten(test.out_tree, test.jaxpr.out_avals)
            raise ArgumentError(message(f"while_loop: {function_name(cond)} must return one bool, got {seen}",
                                        at=user_source(2)))
        axes = test.jaxpr.out_avals[0].varying
        carry = [a.over(a.varying | axes) for a in made.carry]
        if carry == made.carry:
            break
        given = given._replace(avals=carry)  # whether a lane goes on depends on the lane, and so does what it carries
    consts, (test_jaxpr, jaxpr) = _sharing([(test.jaxpr, test.consts), (made.jaxpr, made.consts)])
    results = bind(While(test_jaxpr, jaxpr, len(consts), bound), [*consts, *_typed(given.leaves, made.carry)])
    return tree.unflatten(structure, results)


def _bound(name: str, max_steps: Any) -> int:
    max_steps = known(f"{name}: max_steps", max_steps)
    if not is_index(max_steps) or max_steps < 0:
        raise ArgumentError(message(f"{name}: max_steps is a number of 0 or more, got {max_steps!r}",
                                    at=user_source(3)))
    return int(max_steps)


# ---------------------------------------------------------------------------- branches
def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any) -> Any:
    """`true_fun(*operands)` if `pred` holds, else `false_fun(*operands)`; only one of the two is run.

    `pred` is a scalar; a number holds if it is not 0. Both functions are traced, and return trees of one structure,
    shapes and dtypes; Python numbers take the dtype of the other function's result. Under `vmap`, where lanes may
    differ, a function runs if any lane takes it, and sees only operands of such lanes.

    Raises ArgumentError if `pred` is no scalar or the results differ in structure or type. An index that is known while
    tracing and out of range is a RangeError in a branch that is not taken too.

    >>> cond(3 > 2, lambda x: x + 1, lambda x: x - 1, 10)
    Array(11, dtype=int32, weak=True)
    """
    check_callable("cond", true_fun, "cond(pred, true_fun, false_fun, *operands)")
    check_callable("cond", false_fun, "cond(pred, true_fun, false_fun, *operands)")
    aval = _operand("cond", "pred", pred)
    if aval.ndim:
        raise ArgumentError(message(f"cond: pred is a scalar, got {aval}",
                                    "way out: pnp.where chooses element by element, pnp.all and pnp.any decide for all",
                                    at=user_source(2)))
    index = pred if aval.dtype == bool_ else pnp.not_equal(pred, 0)
    return _branch("cond", (false_fun, true_fun), index, operands)


def switch(index: Any, branches: Sequence[Function], *operands: Any) -> Any:
    """`branches[index](*operands)`, the index being clamped into range; only that branch is run. See `cond`.

    >>> switch(1, [lambda x: x, lambda x: x * 10, lambda x: -x], 3)
    Array(30, dtype=int32, weak=True)
    """
    if not hasattr(branches, "__iter__"):
        raise ArgumentError(message(f"switch takes a sequence of functions, got {type(branches).__name__}",
                                    "way out: switch(index, [f, g], *operands)", at=user_source(2)))
    branches = tuple(branches)
    if not branches:
        raise ArgumentError(message("switch: there are no branches", at=user_source(2)))
    for f in branches:
        check_callable("switch", f, "switch(index, [f, g], *operands)")
    aval = _operand("switch", "the index", index)
    if aval.ndim or aval.dtype.kind not in "iu":
        raise ArgumentError(message(f"switch: the index is an integer, got {aval}", at=user_source(2)))
    if len(branches) == 1:
        return branches[0](*tree.map(pnp.asarray, operands))
    if aval.dtype == uint32:  # what int32 cannot hold would turn negative
        index = pnp.minimum(index, len(branches) - 1)
    return _branch("switch", branches, prims.convert(pnp.asarray(index), int32), operands)


def _operand(name: str, what: str, x: Any) -> Aval:
    """The type of an operand that decides where to go on. Raises ArgumentError for what is no array."""
    try:
        if isinstance(x, Aval):
            raise DtypeError(f"it is the aval {x}, not an array")
        return tracing.argument_aval(x)
    except DtypeError as e:
        raise ArgumentError(message(f"{name}: {what} is not an array: {e}", at=user_source(3))) from None
    except NarrowingError as e:
        raise NarrowingError(message(f"{name}: {what}: {e}", at=user_source(3))) from None


def _in_branch(name: str, f: Function, operands: Sequence[Any]) -> Body:
    """A branch, traced. An error of a known index that is out of range says that this does not depend on the choice."""
    given = tracing.arguments(name, f, operands, {}, arrays=True)
    try:
        return _traced(f, given)
    except RangeError as e:
        if "out of range" not in str(e) or "seen: in the branch" in str(e):
            raise
        text, _, advice = str(e).partition("\n  way out: ")
        advice = advice or ("a traced index, which reads the nearest element and writes nothing, or take and x.at with "
                            "mode=")
        raise RangeError("\n  ".join([
            text, f"seen: in the branch {function_name(f)} of {name}, which is traced whether it is taken or not",
            f"way out: {advice}"])) from None


def _branch(name: str, functions: Sequence[Function], index: Any, operands: Sequence[Any]) -> Any:
    """The results of the function that the index says."""
    made = [_in_branch(name, f, operands) for f in functions]
    first = made[0]
    for f, one in zip(functions, made):
        if one.out_tree != first.out_tree:
            want, got = (tree.unflatten(m.out_tree, m.jaxpr.out_avals) for m in (first, one))
            raise ArgumentError(message(
                f"{name}: the branches return different structures",
                tree.first_difference(want, got, function_name(functions[0]), function_name(f), "result"),
                at=user_source(3)))
    targets: List[Aval] = []
    for i in range(first.out_tree.num_leaves):
        avals = [m.jaxpr.out_avals[i] for m in made]
        target: Optional[Aval] = avals[0]
        for a in avals[1:]:
            target = None if target is None else common(target, a)
        if target is None or any(common(target, a) is not target for a in avals):
            path = tree.paths(first.out_tree, "result")[i]
            raise ArgumentError(message(
                f"{name}: the branches return different types for {path}",
                *(f"seen: {a} from {function_name(f)}" for f, a in zip(functions, avals)),
                "way out: convert with astype" if len({a.shape for a in avals}) == 1 else
                "way out: make the shapes equal, with pnp.broadcast_to, pnp.reshape or pnp.pad", at=user_source(3)))
        targets.append(target)
    consts, jaxprs = _sharing([(_returning(m.jaxpr, targets), m.consts) for m in made])
    return tree.unflatten(first.out_tree, choose(jaxprs, index, [*consts, *tree.leaves(operands)]))


# ---------------------------------------------------------------------------- associative scans
def associative_scan(fn: Function, elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """All prefixes e0, fn(e0, e1), fn(fn(e0, e1), e2), ... along an axis, in a number of rounds that is logarithmic.

    `elems` is a tree of arrays with one size along the axis. `fn` takes two such trees, of any size along it, and
    combines them element by element; it must be associative. With `reverse` the prefixes begin at the end, and `fn`
    gets the later elements first.

    Raises ArgumentError if `fn` returns another structure, shape or dtype, ShapeError if the sizes differ.

    >>> import operator, numpy as np
    >>> associative_scan(operator.add, np.arange(1, 6))
    Array([ 1,  3,  6, 10, 15], dtype=int32)
    """
    check_callable("associative_scan", fn, "associative_scan(fn, elems)")
    axis = known("associative_scan: the axis", axis)
    given = tracing.arguments("associative_scan", fn, (elems, elems), {}, arrays=True)
    structure = given.structures[0]
    leaves: List[Any] = [pnp.asarray(x) for x in given.leaves[:structure.num_leaves]]
    paths = tree.paths(structure, "elems")
    for path, x in zip(paths, leaves):
        if not is_index(axis) or not -x.ndim <= axis < x.ndim:
            raise ShapeError(message(f"associative_scan: {path} is {x.aval}, which has no axis {axis!r}",
                                     at=user_source(2)))
    places = [int(axis) % x.ndim for x in leaves]
    if len({x.shape[d] for x, d in zip(leaves, places)}) > 1:
        raise ShapeError(message("associative_scan: the arrays differ in size along the axis", *(
            f"seen: {path} is {x.aval}" for path, x in zip(paths, leaves)), at=user_source(2)))

    def combine(xs: Sequence[Any], ys: Sequence[Any]) -> List[Any]:
        out, got = tree.flatten(fn(tree.unflatten(structure, xs), tree.unflatten(structure, ys)))
        if got != structure:
            raise ArgumentError(message(
                f"associative_scan: {function_name(fn)} returns another structure than it takes",
                tree.first_difference(tree.unflatten(structure, xs), tree.unflatten(got, out), "elems", "the result",
                                      "elems"), at=user_source(3)))
        for path, x, y in zip(paths, xs, out):
            a, b = aval_of(x), _operand("associative_scan", f"{path} in the result of {function_name(fn)}", y)
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise ArgumentError(message(
                    f"associative_scan: {function_name(fn)} changes the type of what it combines",
                    f"seen: it takes {path} as {a.invariant}, and returns {b.invariant} for it",
                    "way out: convert elems, or the result, with astype" if a.shape == b.shape else
                    "way out: combine element by element, along all axes", at=user_source(3)))
        return out

    def every_other(xs: Sequence[Any], start: int, stop: int) -> List[Any]:
        return [_strided(x, d, start, stop, 2) for x, d in zip(xs, places)]

    def prefixes(xs: Sequence[Any], n: int) -> Sequence[Any]:
        if n < 2:
            return xs
        # Neighbours in pairs: their prefixes are those that end at an odd place. One more step gives the others.
        odd = prefixes(combine(every_other(xs, 0, n - 1), every_other(xs, 1, n)), n // 2)
        before = [slice_axis(x, d, 0, (n - 1) // 2) for x, d in zip(odd, places)]
        even = combine(before, every_other(xs, 2, n)) if n > 2 else []
        even = [pnp.concat([slice_axis(x, d, 0, 1), *more], axis=d) for x, d, *more in
                (zip(xs, places, even) if even else zip(xs, places))]
        return [_interleaved(a, b, d) for a, b, d in zip(even, odd, places)]
    if not leaves:
        return elems
    n = leaves[0].shape[places[0]]
    turned = [prims.reverse(x, (d,)) for x, d in zip(leaves, places)] if reverse else leaves
    out = prefixes(turned, n)
    return tree.unflatten(structure, [prims.reverse(x, (d,)) for x, d in zip(out, places)] if reverse else list(out))


def _strided(x: Any, axis: int, start: int, stop: int, step: int) -> Any:
    """x[start:stop:step] along one axis."""
    shape = aval_of(x).shape
    return prims.slice_(x, tuple(start if i == axis else 0 for i in range(len(shape))),
                        tuple(stop if i == axis else n for i, n in enumerate(shape)),
                        tuple(step if i == axis else 1 for i in range(len(shape))))


def _interleaved(a: Any, b: Any, axis: int) -> Any:
    """a0 b0 a1 b1 ... along an axis; a may have one more."""
    n, m = aval_of(a).shape[axis], aval_of(b).shape[axis]
    shape = aval_of(b).shape
    pair = [pnp.expand_dims(x, axis=axis + 1) for x in (slice_axis(a, axis, 0, m), b)]
    both = pnp.reshape(pnp.concat(pair, axis=axis + 1), shape[:axis] + (2 * m,) + shape[axis + 1:])
    return pnp.concat([both, slice_axis(a, axis, m, n)], axis=axis) if n > m else both


# ---------------------------------------------------------------------------- what they share
class Body(NamedTuple):
    """A traced function. `jaxpr` takes the values it closes over, which are `consts`, and the leaves of its arguments.

    `carry` holds the types that a loop's body carries.
    """

    jaxpr: Jaxpr
    consts: List[Any]
    out_tree: tree.TreeDef
    carry: List[Aval]


def _traced(f: Function, given: tracing.Arguments) -> Body:
    traced = tracing.trace(f, given)
    jaxpr, _ = without_constants(traced.jaxpr)
    return Body(jaxpr, [*constant_arrays(traced.jaxpr), *traced.captures], traced.out_tree, [])


def _loop_body(name: str, f: Function, given: tracing.Arguments, start: int, structure: tree.TreeDef,
               carry_of: Callable[[tree.TreeDef], tree.TreeDef]) -> Body:
    """A body whose first results have the types of its arguments' leaves from number `start` on.

    Where a Python number becomes something else on its way through, the body is traced again for that.
    """
    n = structure.num_leaves
    avals = list(given.avals)
    while True:
        body = _traced(f, given._replace(avals=avals))
        got = carry_of(body.out_tree)
        if got != structure:
            root = tracing.argument_names(f, given.args, {})[1 if start else 0]
            raise ArgumentError(message(
                f"{name}: {function_name(f)} returns a carry of another structure than {root}",
                tree.first_difference(tree.unflatten(structure, avals[start:start + n]),
                                      tree.unflatten(got, body.jaxpr.out_avals[:got.num_leaves]),
                                      "what it takes", "what it returns", root), at=user_source(3)))
        before = avals[start:start + n]
        after = [common(a, b) for a, b in zip(before, body.jaxpr.out_avals)]
        if None in after:
            i = after.index(None)
            path, a, b = tracing.leaf_names(f, given.args, {})[start + i], before[i], body.jaxpr.out_avals[i]
            raise ArgumentError(message(
                f"{name}: the carry changes its type in {function_name(f)}",
                f"seen: it takes {path} as {a.invariant}, and returns {b.invariant} for it",
                f"way out: give the first {path}, or what is returned for it, another dtype with astype"
                if a.shape == b.shape else "way out: a carry keeps its shape; stack what grows as y of scan",
                at=user_source(3)))
        if after == before:
            return body._replace(jaxpr=_returning(body.jaxpr, before), carry=before)
        avals[start:start + n] = after  # type: ignore[assignment]


def common(a: Aval, b: Aval) -> Optional[Aval]:
    """The type that two values share if only weak ones change their dtype; None if there is none."""
    if a.shape != b.shape:
        return None
    try:
        dtype, weak = promote_types(a.dtype, a.weak, b.dtype, b.weak)
    except DtypeError:
        return None
    if any(x.dtype != dtype and not x.weak for x in (a, b)):
        return None
    return Aval._make(a.shape, dtype, weak, (a.varying | b.varying, a.memory))


def _returning(jaxpr: Jaxpr, avals: Sequence[Aval]) -> Jaxpr:
    """The jaxpr with its first results in these types."""
    if list(jaxpr.out_avals[:len(avals)]) == list(avals):
        return jaxpr

    def f(*args: Any) -> Sequence[Any]:
        outs = inline(jaxpr, args)
        firsts = [prims.place(prims.convert(y, a.dtype, a.weak), a.memory) for y, a in zip(outs, avals)]
        return [pvary(y, a.varying) for y, a in zip(firsts, avals)] + outs[len(avals):]
    return rebuilt(jaxpr.name, jaxpr.in_avals, f)


def _typed(leaves: Sequence[Any], avals: Sequence[Aval]) -> List[Any]:
    """Leaves in the dtypes that they take."""
    return [x if aval_of(x).dtype == a.dtype and aval_of(x).weak == a.weak else
            prims.convert(x, a.dtype, a.weak) if isinstance(x, Array) else convert_to(x, a.dtype, a.weak)
            for x, a in zip(leaves, avals)]


def _sharing(bodies: Sequence[Tuple[Jaxpr, Sequence[Any]]]) -> Tuple[List[Any], List[Jaxpr]]:
    """Jaxprs that all take the same first inputs: the values that any of them closes over."""
    every = {id(x if isinstance(x, Tracer) else x.value): x for _, consts in bodies for x in consts}
    out = []
    for jaxpr, consts in bodies:
        own = {id(x if isinstance(x, Tracer) else x.value): v for x, v in zip(consts, jaxpr.inputs)}
        first = [own[key] if key in own else Var(x.aval) for key, x in every.items()]
        out.append(reordered(jaxpr, [*first, *jaxpr.inputs[len(consts):]], jaxpr.outputs))
    return list(every.values()), out


def _form(treedef: tree.TreeDef) -> str:
    """What a result is, for an error message."""
    n = treedef.num_leaves
    return "one array" if treedef.type is None and n == 1 else \
        f"a {treedef.type.__name__} of {len(treedef.children())}" if treedef.type is not None else "nothing"
