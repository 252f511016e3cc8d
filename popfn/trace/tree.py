"""Pytrees: nested containers whose leaves are arrays, through optree.

dict, list, tuple, namedtuple, OrderedDict, defaultdict and deque are containers, None is an empty one; classes join
by `dataclass` or `register`. Paths print as code: `params['w1']`.
"""
from __future__ import annotations

from typing import Any, Callable, Iterable, List, Tuple, TypeVar

import optree
import optree.dataclasses

from .errors import TreeError, message, user_source

NAMESPACE = "popfn"
TreeDef = optree.PyTreeSpec
T = TypeVar("T")


def flatten(tree: Any) -> Tuple[List[Any], TreeDef]:
    """The leaves, in order, and the structure."""
    return optree.tree_flatten(tree, namespace=NAMESPACE)


def unflatten(structure: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure with these leaves."""
    return structure.unflatten(leaves)


def leaves(tree: Any) -> List[Any]:
    """The leaves, in order.

    >>> leaves({"b": 2, "a": (1, None)})
    [1, 2]
    """
    return flatten(tree)[0]


def structure(tree: Any) -> TreeDef:
    """The structure of a tree, which compares equal for trees of the same form."""
    return flatten(tree)[1]


def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `f` to corresponding leaves. Raises TreeError that names the first place where structures differ.

    >>> map(lambda p, g: p - g, {"w": 3, "b": [2]}, {"w": 1, "b": [2]})
    {'w': 2, 'b': [0]}
    """
    first, treedef = flatten(tree)
    columns = [first]
    for i, other in enumerate(rest, 1):
        column, other_def = flatten(other)
        if other_def != treedef:
            raise TreeError(message(f"tree.map: tree {i} has another structure than tree 0",
                                    first_difference(tree, other), at=user_source(2)))
        columns.append(column)
    return unflatten(treedef, [f(*row) for row in zip(*columns)])


def paths(treedef: TreeDef, root: str = "") -> List[str]:
    """The leaves' paths as code below `root`.

    >>> paths(structure({"w": [1, 2]}), "params")
    ["params['w'][0]", "params['w'][1]"]
    """
    return [a.codify(root) for a in treedef.accessors()]


def first_difference(want: Any, got: Any, want_name: str = "tree 0", got_name: str = "the other",
                     root: str = "tree") -> str:
    """Where two trees part: the leaves that only one of them has, or else the first container that differs."""
    want_def, got_def = structure(want), structure(got)
    want_paths, got_paths = paths(want_def, root), paths(got_def, root)
    missing = [p for p in want_paths if p not in set(got_paths)]
    extra = [p for p in got_paths if p not in set(want_paths)]
    if missing or extra:
        return "; ".join(f"only in {name}: {', '.join(some[:3])}{' ...' if len(some) > 3 else ''}"
                         for name, some in ((want_name, missing), (got_name, extra)) if some)
    path = root
    level, got_level = want_def.one_level(), got_def.one_level()
    while level is not None and level == got_level:
        parts = list(zip(want_def.children(), got_def.children()))
        i = next(i for i, (a, b) in enumerate(parts) if a != b)
        path = level.accessors()[i].codify(path)
        want_def, got_def = parts[i]
        level, got_level = want_def.one_level(), got_def.one_level()
    forms = [str(x) for x in (level, got_level)]
    if want_def.type is not got_def.type:
        forms = [getattr(d.type, "__name__", "a leaf") for d in (want_def, got_def)]
    return f"{path} is {forms[0]} in {want_name}, {forms[1]} in {got_name}"


def prefix_leaves(prefix: Any, full: TreeDef) -> List[Any]:
    """For each leaf of a tree of this structure, the leaf of `prefix` above it; None is a leaf of a prefix.

    Raises TreeError if the prefix is of another structure.

    >>> prefix_leaves((0, None), structure(({"w": 1, "b": 2}, 3)))
    [0, 0, None]
    """
    tree = unflatten(full, range(full.num_leaves))
    try:
        spread = optree.broadcast_prefix(prefix, tree, none_is_leaf=True, namespace=NAMESPACE)
    except ValueError as e:
        raise TreeError(str(e)) from None
    places = optree.tree_leaves(tree, none_is_leaf=True, namespace=NAMESPACE)
    return [x for x, i in zip(spread, places) if i is not None]


def register(cls: type, flatten: Callable[[Any], Tuple[Iterable[Any], Any]],
             unflatten: Callable[[Any, Iterable[Any]], Any]) -> type:
    """Make a class a container: `flatten(x) -> (children, static)`, `unflatten(static, children) -> x`."""
    optree.register_pytree_node(cls, flatten, unflatten, namespace=NAMESPACE)
    return cls


def dataclass(cls: Any = None, **options: Any) -> Any:
    """`dataclasses.dataclass` whose instances are pytrees; fields made by `tree.static` are not leaves.

    >>> @dataclass
    ... class Linear:
    ...     w: object
    ...     b: object
    >>> leaves(Linear(1, 2))
    [1, 2]
    """
    if cls is None:
        return lambda c: dataclass(c, **options)
    return optree.dataclasses.dataclass(cls, namespace=NAMESPACE, **options)  # type: ignore[call-overload]


def static(**options: Any) -> Any:
    """A field of a `tree.dataclass` that belongs to the structure: a size, a name, a function."""
    return optree.dataclasses.field(pytree_node=False, **options)  # type: ignore[call-overload]
