"""Pytrees: which containers there are, how paths print, what is said where structures differ."""
import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

import popfn as pf
import popfn.numpy as pnp
from popfn.trace import tree
from popfn.trace.errors import TreeError


class Pair(NamedTuple):
    """A namedtuple."""

    w: Any
    b: Any


class Other(NamedTuple):
    """A namedtuple with the same fields."""

    w: Any
    b: Any


@pf.tree.dataclass
class Linear:
    """A dataclass with a default and a static field."""

    w: Any
    b: Any = None
    activation: str = pf.tree.static(default="relu")


@pf.tree.dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    x: Any


class Registered:
    """A class that joins by `register`."""

    def __init__(self, a, b, size):
        self.a, self.b, self.size = a, b, size

    def __eq__(self, other):
        return (self.a, self.b, self.size) == (other.a, other.b, other.size)


pf.tree.register(Registered, lambda r: ((r.a, r.b), r.size), lambda size, parts: Registered(*parts, size))

EVERYTHING = {
    "dict": {"b": 1, "a": 2}, "list": [3, None, (4,)], "named": Pair(5, [6]), "none": None, "empty": {}, "unit": (),
    "ordered": collections.OrderedDict([("z", 7), ("a", 8)]), "default": collections.defaultdict(list, {"k": 9}),
    "deque": collections.deque([10]), "dataclass": Linear(11, 12, "tanh"), "frozen": Frozen({"y": 13}),
    "registered": Registered(14, [15], "big"), "it's": 16, ("t", 0): 17, 1.5: 18,
}


def test_every_kind_of_container():
    leaves, structure = tree.flatten(EVERYTHING)
    assert sorted(leaves) == list(range(1, 19))
    again = tree.unflatten(structure, leaves)
    assert again == EVERYTHING and tree.structure(again) == structure
    assert again["default"].default_factory is list and again["dataclass"].activation == "tanh"
    doubled = pf.tree.map(lambda x, y: x + y, EVERYTHING, EVERYTHING)
    assert tree.leaves(doubled) == [2 * x for x in leaves]
    assert doubled["registered"] == Registered(28, [30], "big") and doubled["named"] == Pair(10, [12])


def test_paths_are_code():
    """Evaluated, every path gives its leaf; a registered class has no names for its parts."""
    leaves, structure = tree.flatten(EVERYTHING)
    paths = tree.paths(structure, "p")
    assert len(paths) == len(leaves)
    for path, leaf in zip(paths, leaves):
        if "flat index" not in path:
            assert eval(path, {"p": EVERYTHING}) == leaf
    named = dict(zip(leaves, paths))
    assert [named[i] for i in (2, 4, 5, 6, 12, 13, 14, 15)] == [
        "p['dict']['a']", "p['list'][2][0]", "p['named'].w", "p['named'].b[0]", "p['dataclass'].b",
        "p['frozen'].x['y']",
        "p['registered'][<flat index 0>]", "p['registered'][<flat index 1>][0]"]
    assert tree.paths(tree.structure(1), "x") == ["x"] and tree.paths(tree.structure(None), "x") == []
    assert tree.paths(tree.structure([1])) == ["[0]"]


def test_what_is_a_leaf():
    class Dict(dict):
        pass
    for leaf in (1, "abc", np.ones(2), {1, 2}, Dict(a=1), object, pf.Array([1]), pf.spec((2, 3)), iter([1])):
        found, = tree.leaves(leaf)
        assert found is leaf


def test_dictionaries_are_taken_by_sorted_keys_and_keep_their_order():
    assert tree.leaves({"b": 1, "a": 2}) == [2, 1]
    assert tree.structure({"b": 1, "a": 2}) == tree.structure({"a": 1, "b": 2})
    assert list(pf.tree.map(str, {"b": 1, "a": 2}).items()) == [("b", "1"), ("a", "2")]
    assert list(pf.tree.map(str, collections.OrderedDict([("b", 1), ("a", 2)]))) == ["b", "a"]
    assert tree.leaves({1: "x", "a": "y"}) == ["x", "y"]  # keys that cannot be compared


def test_map_of_several_trees():
    step = pf.tree.map(lambda p, m, g: p - m * g, {"w": 3, "b": [2]}, {"w": 1, "b": [2]}, {"w": 1, "b": [1]})
    assert step == {"w": 2, "b": [0]}
    assert pf.tree.map(lambda a, b: (a, b), [1], ["x"]) == [(1, "x")]
    with pytest.raises(ZeroDivisionError):
        pf.tree.map(lambda x: 1 / x, [1, 0])


# ---------------------------------------------------------------------------- dataclasses
def test_dataclass_keeps_what_dataclasses_do():
    layer = Linear(1, b=2)
    assert repr(layer) == "Linear(w=1, b=2, activation='relu')" and layer == Linear(1, 2, "relu")
    assert dataclasses.replace(layer, w=3).w == 3 and dataclasses.is_dataclass(layer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Frozen(1).x = 2
    assert tree.leaves(Linear(1)) == [1]           # a field that is None is an empty tree
    assert tree.leaves([Linear(1, 2, "a"), Frozen(3)]) == [1, 2, 3]


def test_static_fields_are_structure():
    assert tree.structure(Linear(1, 2, "relu")) == tree.structure(Linear(3, 4, "relu"))
    assert tree.structure(Linear(1, 2, "relu")) != tree.structure(Linear(1, 2, "tanh"))
    assert pf.tree.map(lambda x: 2 * x, Linear(1, 2, "tanh")) == Linear(2, 4, "tanh")


def test_dataclasses_in_transforms():
    def loss(layer, x):
        h = layer.w * x + layer.b
        return pnp.sum(pnp.tanh(h) if layer.activation == "tanh" else pf.nn.relu(h))
    layer = Linear(np.float32([1, -1]), np.float32([0, 0.5]), "tanh")
    gradient = pf.grad(loss)(layer, np.float32([2, 2]))
    slope = 1 - np.tanh(np.float32([2, -1.5])) ** 2
    assert type(gradient) is Linear and gradient.activation == "tanh"
    np.testing.assert_allclose(gradient.w, 2 * slope, rtol=1e-5)
    np.testing.assert_allclose(gradient.b, slope, rtol=1e-5)
    assert np.allclose(pf.grad(loss)(dataclasses.replace(layer, activation="relu"), np.float32([2, 2])).b, [1, 0])


def test_every_container_through_grad_and_make_jaxpr():
    floats = pf.tree.map(float, EVERYTHING)
    value, gradient = pf.value_and_grad(lambda t: sum(x * x for x in tree.leaves(t)))(floats)
    assert float(value) == sum(i * i for i in range(1, 19))
    assert tree.structure(gradient) == tree.structure(floats)
    assert [float(g) for g in tree.leaves(gradient)] == [2.0 * x for x in tree.leaves(floats)]
    returned = pf.eval_shape(lambda t: t, floats)
    assert tree.structure(returned) == tree.structure(floats)
    assert all(a is pf.Aval((), float, True) for a in tree.leaves(returned))


# ---------------------------------------------------------------------------- where structures differ
@pytest.mark.parametrize("one, two, text", [
    ({"a": 1, "b": [1, 2]}, {"a": 1, "c": 3, "d": [1, 2, 3, 4]},
     "only in tree 0: tree['b'][0], tree['b'][1]; only in the other: tree['c'], tree['d'][0], tree['d'][1] ..."),
    ({"a": None}, {"a": 1}, "only in the other: tree['a']"),
    ([1, 2], [1], "only in tree 0: tree[1]"),
    (Pair(1, 2), (1, 2), "only in tree 0: tree.w, tree.b; only in the other: tree[0], tree[1]"),
    ([1, 2], (1, 2), "tree is list in tree 0, tuple in the other"),
    ({"a": [None, (1, {"x": 3})]}, {"a": [None, [1, {"x": 3}]]}, "tree['a'][1] is tuple in tree 0, list in the other"),
    ({"a": 1}, collections.defaultdict(int, a=1), "tree is dict in tree 0, defaultdict in the other"),
    ([None, 1], [(), 1], "tree[0] is NoneType in tree 0, tuple in the other"),
    ([Pair(1, 2)], [Other(1, 2)], "tree[0] is Pair in tree 0, Other in the other"),
])
def test_the_first_difference_is_named(one, two, text):
    with pytest.raises(TreeError) as e:
        pf.tree.map(lambda *xs: xs, one, one, two)
    fault, at, difference = str(e.value).split("\n  ")
    assert fault == "tree.map: tree 2 has another structure than tree 0" and difference == text
    assert "test_tree.py:" in at and at.endswith(": pf.tree.map(lambda *xs: xs, one, one, two)")
    assert isinstance(e.value, ValueError)


def test_a_difference_of_static_fields_is_named():
    with pytest.raises(TreeError) as e:
        pf.tree.map(lambda a, b: a, [0, Linear(1, 2, "relu")], [0, Linear(1, 2, "tanh")])
    line = str(e.value).splitlines()[-1].strip()
    assert line.startswith("tree[1] is ") and " in tree 0, " in line and line.endswith(" in the other")
    assert line.index("relu") < line.index("tanh")


# ---------------------------------------------------------------------------- any tree
keys = st.one_of(st.text(max_size=3), st.integers(-3, 3))
nodes = st.recursive(
    st.one_of(st.integers(0, 99), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict), st.builds(Pair, inner, inner),
        st.builds(Linear, inner, inner, st.sampled_from(["relu", "tanh"])), st.builds(Frozen, inner),
        st.builds(Registered, inner, inner, st.integers(0, 1)), st.lists(inner, max_size=2).map(collections.deque)),
    max_leaves=12)


@given(nodes)
def test_any_tree_survives_flattening(value):
    leaves, structure = tree.flatten(value)
    assert tree.unflatten(structure, leaves) == value
    assert tree.structure(pf.tree.map(lambda x: x, value)) == structure
    assert len(tree.paths(structure, "t")) == len(set(tree.paths(structure, "t"))) == len(leaves)
    for path, leaf in zip(tree.paths(structure, "t"), leaves):
        if "flat index" not in path:
            assert eval(path, {"t": value, "OrderedDict": collections.OrderedDict}) == leaf


@given(nodes, nodes)
def test_any_two_trees_that_differ_are_told_apart(one, two):
    if tree.structure(one) == tree.structure(two):
        assert pf.tree.map(lambda a, b: a, one, two) == one
        return
    with pytest.raises(TreeError) as e:
        pf.tree.map(lambda a, b: a, one, two)
    line = str(e.value).splitlines()[-1].strip()
    assert line.startswith(("tree", "only in tree 0: tree", "only in the other: tree"))


@given(nodes)
def test_any_tree_goes_through_a_trace(value):
    value = pf.tree.map(float, value)
    identity = pf.eval_shape(lambda t: t, value)
    assert tree.structure(identity) == tree.structure(value)
    jaxpr = pf.make_jaxpr(lambda t: pf.tree.map(lambda x: x + 1, t))(value)
    got = tree.unflatten(tree.structure(value), [float(x) for x in jaxpr.eval(*map(np.float32, tree.leaves(value)))])
    assert got == pf.tree.map(lambda x: x + 1, value)
