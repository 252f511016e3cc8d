"""popfn.zero: parameters, gradients and optimiser state of which each replica along an axis has a part.

As in ZeRO (Rajbhandari et al., arXiv 1910.02054): a leaf of any shape is flattened and padded with zeros to n equal
parts. As one array of shape (n * k,), the parts one behind the other, it is cut by `pf.P("dp")`; inside of `pf.shard`
a replica then has its part, of type `f32[k]{dp}`. `flatten` and `restore` make such arrays and undo them, `scatter` and
`gather` do the same between replicas, on pytrees:

* `gather(parts, like, "dp")` gives the whole leaves, one value for all replicas. Its derivative scatters: each replica
  gets the sum of the gradients for its part, and for that part alone.
* `scatter(grads, "dp")` gives each replica its part, and of what varies over dp the part of the sum.

Whatever works element by element may be done to parts: `optim.sgd`, `adam` and `adamw`, say. Norms want the other parts
too: `optim.lamb`, `global_norm`, `clip_by_global_norm` and `all_finite` add up over an `axis_name`.

>>> import numpy as np, popfn as pf
>>> mesh, w = pf.Mesh(dp=2), np.float32([1, 2, 3])
>>> def step(part, x):                                  # f32[2]{dp}, f32[1,3]{dp}
...     def loss(part):
...         return pf.pmean((x @ gather(part, w, "dp")).sum(), "dp")
...     return part - pf.grad(loss)(part)
>>> specs = pf.P("dp"), pf.P("dp")
>>> restore(pf.shard(step, mesh, specs, pf.P("dp"))(flatten(w, 2), np.ones((2, 3), np.float32)), w)
Array([0., 1., 2.], dtype=float32)
"""
from __future__ import annotations

from typing import Any, Callable, List, Optional

from . import numpy as pnp
from ._collectives import size_in_scope
from ._tracing import argument_aval
from .api import is_index
from .trace import prims, tree
from .trace.aval import Aval
from .trace.errors import ArgumentError, AxisError, DtypeError, TreeError, message, user_source
from .trace.prims.collectives import of_shards, shard_of, shard_size


def flatten(values: Any, n: int) -> Any:
    """Leaves of any shape as flat ones of n equal parts, shape (n * k,), padded with zeros at the end.

    Outside of `pf.shard`, for arrays that all replicas have: the result is cut by `pf.P("dp")`, where n is the size of
    dp. Of avals `pf.eval_shape(lambda p: flatten(p, n), avals)` gives avals. For stacked layers, and for leaves that
    are cut over another axis already, see `scatter`.

    Raises ArgumentError for an n that is no number of 1 or more, and for a leaf that is no array of floats.

    >>> import numpy as np
    >>> flatten({"w": np.float32([[1, 2, 3]]), "b": np.float32(4)}, 2)
    {'w': Array([1., 2., 3., 0.], dtype=float32), 'b': Array([4., 0.], dtype=float32)}
    """
    if not is_index(n) or n < 1:
        raise ArgumentError(message(f"zero.flatten: n is the number of parts, 1 or more, got {n!r}", at=user_source()))

    def flat(x: Any) -> Any:
        x = pnp.reshape(x, (-1,))
        return pnp.pad(x, (0, -x.shape[0] % int(n)))
    return _each("flatten", flat, values)


def restore(flat: Any, like: Any) -> Any:
    """The leaves of which `flatten` made flat ones; `like` has leaves of their shapes and dtypes, arrays or avals.

    Raises TreeError if the structures differ, and ArgumentError if a leaf cannot be of that shape and dtype.

    >>> import numpy as np, popfn as pf
    >>> restore(flatten(np.float32([[1, 2, 3]]), 2), pf.spec((1, 3)))
    Array([[1., 2., 3.]], dtype=float32)
    """
    def whole(x: Any, want: Aval, path: str) -> Any:
        if x.ndim != 1 or x.size < want.size or x.dtype != want.dtype:
            raise ArgumentError(message(
                f"zero.restore: {path} is {x.aval}, not the flat form of {want}: that is "
                f"{want.with_shape((want.size,))} or has zeros behind", _other_dtype(x, want), at=user_source()))
        return pnp.reshape(x[:want.size], want.shape)
    return _each_like("restore", whole, flat, like, "flat")


def gather(parts: Any, like: Any, axis_name: str) -> Any:
    """The whole leaves of which each replica along a named axis has a part, f32[k]{dp}; one value for all of them.

    `like` has leaves of the whole shapes, as a replica sees them, and of the parts' dtypes: arrays or avals.

    The derivative is that of the one function of all replicas: what they contribute to the gradient of a whole leaf is
    added up, and each gets its part of the sum. However often the leaf meets replicas' own data, in loops and calls
    too, that is one reduce-scatter; of what depends on whole leaves alone, such as a penalty, each takes its part. A
    loop whose body gathers keeps the parts for its derivative, and gathers again.

    Raises AxisError if the axis is not in scope or a leaf does not vary over it, TreeError if the structures differ,
    ArgumentError if a leaf is not such a part.

    >>> import numpy as np, popfn as pf
    >>> both = pf.shard(lambda part: gather(part, pf.spec((3,)), "dp"), pf.Mesh(dp=2), pf.P("dp"), pf.P())
    >>> both(np.float32([1, 2, 3, 0]))
    Array([1., 2., 3.], dtype=float32)
    """
    size = size_in_scope("zero.gather", axis_name)
    axes = [(axis_name, size)]

    def whole(x: Any, want: Aval, path: str) -> Any:
        part = want.with_shape((shard_size(want.size, axes),))
        if x.shape != part.shape or x.dtype != part.dtype:
            raise ArgumentError(message(
                f"zero.gather: {path} is {x.aval}, no part of {want}: each of {size} replicas along {axis_name!r} has "
                f"{part} of it", _other_dtype(x, want) or f"way out: parts are made by pf.zero.flatten(values, {size}) "
                f"outside of pf.shard, by pf.zero.scatter(values, {axis_name!r}) inside", at=user_source()))
        if axis_name not in x.aval.varying:
            raise AxisError(message(
                f"zero.gather: {path} is {x.aval}, which does not vary over {axis_name!r}: all replicas have the same, "
                "not parts", f"way out: cut it by in_specs=pf.P({axis_name!r}), or take parts with pf.zero.scatter",
                at=user_source()))
        return of_shards(x, axes, want.shape)
    return _each_like("gather", whole, parts, like, "parts")


def scatter(values: Any, axis_name: str) -> Any:
    """Of whole leaves each replica's own part along a named axis, f32[k]{dp}: flat, the last one padded with zeros.

    A leaf that does not vary over the axis is the same on all replicas, and each takes its part of it. What varies is
    a contribution, and each gets its part of the sum: a reduce-scatter. It is one also where all replicas have a sum,
    as the gradient of a whole parameter is, and nothing else is made of that.

    In `pf.shard` it makes parts of whole parameters, also of those that are cut over another axis; layers that are
    stacked it takes one by one in `pf.vmap` or `pf.scan`. Raises AxisError if the axis is not in scope, and
    ArgumentError for a leaf that is no array of floats.

    >>> import numpy as np, popfn as pf
    >>> mesh, cut = pf.Mesh(dp=2, tp=2), pf.P(None, "tp")
    >>> parts = pf.shard(lambda w: scatter(w, "dp"), mesh, cut, pf.P(("tp", "dp")))
    >>> parts(np.arange(6, dtype=np.float32).reshape(1, 6))
    Array([0., 1., 2., 0., 3., 4., 5., 0.], dtype=float32)
    """
    size = size_in_scope("zero.scatter", axis_name)

    def part(x: Any) -> Any:
        return shard_of(prims.psum(x, (axis_name,)) if axis_name in x.aval.varying else x, [(axis_name, size)])
    return _each("scatter", part, values)


# ---------------------------------------------------------------------------- what they share
def _each(name: str, f: Callable[[Any], Any], values: Any) -> Any:
    """f of each leaf as an array. Raises ArgumentError for a leaf that is no array of floats."""
    leaves, structure = tree.flatten(values)
    for aval, path in zip(_avals(name, values, "values"), tree.paths(structure, "values")):
        if not aval.is_float:
            raise ArgumentError(message(
                f"zero.{name}: {path} is {aval}: parts are of parameters, gradients and moments, which are floats",
                "way out: leave it whole, and give it the spec pf.P()", at=user_source()))
    return tree.unflatten(structure, [f(pnp.asarray(x)) for x in leaves])


def _each_like(name: str, f: Callable[[Any, Aval, str], Any], values: Any, like: Any, root: str) -> Any:
    """f of each leaf as an array, of the type that the leaf of `like` in its place has, and of its path."""
    leaves, structure = tree.flatten(values)
    if structure != tree.structure(like):
        raise TreeError(message(f"zero.{name}: {root} has another structure than `like`",
                                tree.first_difference(like, values, "`like`", root, root), at=user_source()))
    _avals(name, values, root)
    wants = [Aval._make(a.shape, a.dtype, False) for a in _avals(name, like, "like")]
    return tree.unflatten(structure, [f(pnp.asarray(x), want, path) for x, want, path in zip(
        leaves, wants, tree.paths(structure, root))])


def _avals(name: str, values: Any, root: str) -> List[Aval]:
    """The leaves' types. Raises ArgumentError for what is no array."""
    leaves, structure = tree.flatten(values)
    avals = []
    for x, path in zip(leaves, tree.paths(structure, root)):
        try:
            avals.append(argument_aval(x))
        except DtypeError as e:
            raise ArgumentError(message(f"zero.{name}: {path} is not an array: {e}", at=user_source())) from None
    return avals


def _other_dtype(x: Any, want: Aval) -> Optional[str]:
    """The way out where a leaf has another dtype than it should."""
    return None if x.dtype == want.dtype else f"way out: a `like` of dtype {x.dtype.name}, and convert the result"
