"""Arguments that make no sense: each is an error that names the argument, what was seen and the user's line."""
import operator
import os
import re

import numpy as np
import pytest
from error_texts import assert_error_text

import popfn as pf
import popfn.numpy as pnp
from popfn import nn, optim, random
from popfn.trace.errors import ArgumentError, DtypeError, NarrowingError, RangeError, ShapeError, TreeError

f32 = np.float32
X, KEY = np.array([1, 2, 3], f32), np.array([0, 1], np.uint32)
LOGITS, LABELS = np.zeros((2, 3), f32), np.array([0, 2])
NO = "is not an array or a number"

# ---------------------------------------------------------------------------- control flow
BRANCHES = (lambda: 1.0), (lambda: 2.0)
SCALARS = {  # functions of a scalar that decides where to go on, and what the error calls it
    "cond: pred": lambda v: pf.cond(v, *BRANCHES), "switch: the index": lambda v: pf.switch(v, BRANCHES),
    "switch: the index of one": lambda v: pf.switch(v, BRANCHES[:1]),
    "fori_loop: lower": lambda v: pf.fori_loop(v, 3, lambda i, c: c, 1.0),
    "fori_loop: upper": lambda v: pf.fori_loop(0, v, lambda i, c: c, 1.0)}
NO_SCALARS = [(None, ArgumentError, f"a value of type NoneType {NO}: None"),
              ("a", ArgumentError, f"a value of type str {NO}"), (object, ArgumentError, f"a value of type type {NO}"),
              (pf.spec((), int), ArgumentError, "the aval i32[], not an array"), (1j, ArgumentError, "complex"),
              (np.int64(2 ** 40), NarrowingError, "1099511627776 does not survive")]


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("case", range(len(NO_SCALARS)))
def test_what_is_no_scalar(name, case):
    value, error, text = NO_SCALARS[case]
    for part in (name.replace(" of one", ""), text):
        assert_error_text(lambda: SCALARS[name](value), error, part, __file__)


def test_switch_takes_a_sequence_of_branches():
    for branches in (None, 3, BRANCHES[0]):
        assert_error_text(lambda branches=branches: pf.switch(0, branches), ArgumentError,
                          f"switch takes a sequence of functions, got {type(branches).__name__}", __file__)


# A known index that is out of range is an error while tracing, and all branches are traced.
OUT = {
    "index": lambda: pf.Array(X)[5], "NumPy index": lambda: pf.Array(X)[np.int32(5)], "take": lambda: pnp.take(X, -4),
    "at": lambda: pf.Array(X).at[3].set(0)[0], "dynamic_slice": lambda: pnp.dynamic_slice(X, (2,), (2,))[0]}


@pytest.mark.parametrize("case", OUT)
def test_a_known_index_out_of_range_in_a_branch(case):
    def bad():
        return OUT[case]()

    def good():
        return f32(0)
    name = f"{bad.__qualname__.replace('<locals>.', '')} "
    for call, kind in ((lambda: pf.cond(False, bad, good), "cond"), (lambda: pf.switch(1, [bad, good]), "switch"),
                       (lambda: pf.cond(True, lambda: pf.cond(False, bad, good), good), "cond")):
        for run in (call, pf.jit(call), lambda call=call: pf.vmap(lambda x: x * call())(X)):
            with pytest.raises(RangeError, match="out of range") as e:
                run()
            lines = str(e.value).split("\n  ")
            assert os.path.basename(__file__) in lines[1] and "way out: " in lines[-1] and "traced index" in lines[-1]
            notes = [line for line in lines if line.startswith("seen: in the branch")]
            assert len(notes) == 1 and re.match(rf"seen: in the branch {re.escape(name)}.* of {kind}, which", notes[0])
    index = pf.jit(lambda i: pf.cond(i < 3, lambda: pf.Array(X)[i], lambda: f32(0)))
    assert index(np.int32(5)).item() == 0 and index(np.int32(1)).item() == 2


# ---------------------------------------------------------------------------- associative scans
TREE = {"a": X, "b": [np.arange(3), X.astype(np.float16)]}


def _cast(a, b):
    return pf.tree.map(lambda x, y: (x + y).astype("int32"), a, b)


def _half(a, b):
    return {"a": a["a"] + b["a"], "b": [a["b"][0] + b["b"][0], (a["b"][1] + b["b"][1]).astype("float32")]}


COMBINED = [
    (_cast, X * 1.5, "elems", "f32[1]", "i32[1]"), (_half, TREE, "elems['b'][1]", "f16[1]", "f32[1]"),
    (lambda a, b: (a + b)[:, None], X, "elems", "f32[1]", "f32[1,1]"),
    (lambda a, b: pnp.sum(a + b), X, "elems", "f32[1]", "f32[]"),
    (lambda a, b: a < b, X, "elems", "f32[1]", "bool[1]"), (lambda a, b: 1.0, X, "elems", "f32[1]", "~f32[]"),
    (lambda a, b: a + b * 0.5, np.arange(3), "elems", "i32[1]", "~f32[1]")]


@pytest.mark.parametrize("case", range(len(COMBINED)))
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_a_function_that_changes_types(case, reverse):
    f, elems, path, want, got = COMBINED[case]
    name = f.__qualname__.replace("<locals>.", "")
    for text in (f"associative_scan: {name} (", "changes the type of what it combines",
                 f"seen: it takes {path} as {want}, and returns {got} for it", "way out: "):
        assert_error_text(lambda: pf.associative_scan(f, elems, reverse=reverse), ArgumentError, text, __file__)


def test_associative_scan_of_other_structures():
    for f, text in ((lambda a, b: (a, b), "returns another structure than it takes"),
                    (lambda a, b: "a", f"a value of type str {NO}"), (lambda a, b: None, "returns another structure")):
        assert_error_text(lambda f=f: pf.associative_scan(f, X), ArgumentError, text, __file__)
    assert_error_text(lambda: pf.associative_scan(lambda a, b: (a + b)[:1], np.arange(9)), ArgumentError,
                      "seen: it takes elems as i32[4], and returns i32[1] for it", __file__)
    # What is equal for all elements may differ in where it is from, and a single element is what it is.
    assert pf.associative_scan(operator.add, X[:1]).tolist() == [1]
    got = pf.vmap(lambda s: pf.associative_scan(lambda a, b: a + b + 0 * s, X), axis_name="i")(X)
    np.testing.assert_array_equal(got, np.tile(np.cumsum(X), (3, 1)))


# ---------------------------------------------------------------------------- names in errors
def test_reductions_of_no_elements_have_their_own_names():
    for f in (pnp.max, pnp.min, pnp.argmax, pnp.argmin):
        for empty, axis in ((np.zeros((0, 3), f32), 0), (np.zeros(0, f32), None), (np.zeros((0, 3), int), 0),
                            (np.zeros((2, 0), bool), 1), (np.zeros((0, 2), np.float16), -2)):
            if empty.dtype == bool and f in (pnp.max, pnp.min):
                continue  # any and all, which are defined
            assert_error_text(lambda f=f, x=empty, a=axis: f(x, axis=a),
             ShapeError, f"{f.__name__} of no elements: ", __file__)
            assert_error_text(lambda f=f, x=empty, a=axis: f(x, axis=a),
             ShapeError, str(pf.Array(empty).aval), __file__)


OPTIMISERS = {"sgd": optim.sgd(0.1), "sgd with momentum": optim.sgd(0.1, momentum=0.9),
              "adam": optim.adam(0.1), "adamw": optim.adamw(0.1),
              "lamb": optim.lamb(0.1)}
PARAMS = {"a": X, "b": X[:2], "c": (X, X)}
GRADS = [
    ({"a": X, "c": (X, X)}, "the gradients have another structure than the parameters",
     "only in the parameters: params['b']"),
    ({**PARAMS, "d": X}, "the gradients have another structure", "only in the gradients: params['d']"),
    ({**PARAMS, "c": [X, X]}, "the gradients have another structure",
     "params['c'] is tuple in the parameters, list in the gradients"),
    ({**PARAMS, "b": X}, "the gradient of params['b'] is f32[3], the parameter f32[2]"),
    ({**PARAMS, "b": "x"}, "the gradient of params['b'] is not an array"),
    (X, "the gradients have another structure")]


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("case", range(len(GRADS)))
def test_gradients_that_are_not_those_of_the_parameters(name, case):
    opt, (grads, *texts) = OPTIMISERS[name], GRADS[case]
    error = TreeError if "structure" in texts[0] else ArgumentError
    for text in (f"{name.split()[0]}: {texts[0]}", *texts[1:]):
        assert_error_text(lambda: opt.update(grads, opt.init(PARAMS), PARAMS), error, text, __file__)


# ---------------------------------------------------------------------------- numbers out of their range
NAN = float("nan")
RANGES = [
    *[(lambda s=s: nn.cross_entropy(LOGITS, LABELS, label_smoothing=s), ArgumentError,
       f"cross_entropy: label_smoothing is a number from 0 to 1, got {s!r}") for s in (-0.1, 1.5, NAN, "a", None)],
    *[(lambda m=m: optim.clip_by_global_norm({"a": X}, m), ArgumentError,
       f"clip_by_global_norm: max_norm is a number of 0 or more, got {m!r}") for m in (-1, -0.5, NAN, "a", None)],
    *[(lambda p=p: random.bernoulli(KEY, p, 3), RangeError, "random.bernoulli: p lies within 0 and 1, got ")
      for p in (-0.1, 1.5, NAN, 2, np.array([0.5, 1.5, 0], f32), pf.Array(-1.0))],
    *[(lambda a=a, b=b: random.truncated_normal(KEY, a, b), RangeError, "truncated_normal: lower is above upper: ")
      for a, b in ((1.0, -1.0), (np.array([0, 2], f32), np.array([1, 1], f32)), (1, pf.Array([0.0])))],
    (lambda: random.truncated_normal(KEY, NAN, 1.0), RangeError, "lower is above upper: nan, 1.0"),
    (lambda: random.uniform(KEY, 3, "float32", 2.0, 1.0), RangeError, "uniform: minval is above maxval: 2.0, 1.0"),
    *[(lambda p=p: random.choice(KEY, 3, 2, p=p), RangeError, "random.choice: probabilities are 0 or more")
      for p in ([0.5, -0.5, 1.0], [NAN, 0.5, 0.5], [0.0, 0.0, 0.0])],
    *[(lambda d=d: nn.huber(X, X, delta=d), ArgumentError, f"huber: delta is a number above 0, got {d}")
      for d in (0, -1.0, NAN)],
    *[(lambda r=r: nn.dropout(KEY, X, r), ArgumentError, f"the rate is a Python number from 0 to below 1, got {r}")
      for r in (-0.1, 1, NAN)],
    *[(lambda q=q: pnp.quantile(X, q), RangeError, "quantile: q lies within 0 and 1, got ") for q in (-0.1, 1.5, NAN)],
    (lambda: random.randint(KEY, 2, 5, 5), RangeError, "random.randint: there are no int32 from 5 to below 5"),
    *[(lambda o=o, a=a: getattr(optim, o)(0.1, **a), ArgumentError, f"{o}: {k} is a number {t}, got {a[k]!r}")
      for o, k, v, t in (
          ("sgd", "momentum", -0.1, "of 0 or more"), ("sgd", "weight_decay", -1.0, "of 0 or more"),
          ("adam", "b1", 1.0, "from 0 to below 1"), ("adam", "b2", -0.5, "from 0 to below 1"),
          ("adam", "eps", -1e-8, "of 0 or more"), ("adamw", "b1", 1.5, "from 0 to below 1"),
          ("adamw", "weight_decay", -0.1, "of 0 or more"), ("lamb", "b2", NAN, "from 0 to below 1"),
          ("lamb", "weight_decay", NAN, "of 0 or more"), ("lamb", "eps", "a", "of 0 or more")) for a in [{k: v}]]]


@pytest.mark.parametrize("case", range(len(RANGES)))
def test_numbers_out_of_range(case):
    assert_error_text(*RANGES[case], __file__)


FINE = [
    lambda: nn.cross_entropy(LOGITS, LABELS, label_smoothing=1),
    lambda: nn.cross_entropy(LOGITS, LABELS, label_smoothing=0),
    lambda: pf.jit(lambda s: nn.cross_entropy(LOGITS, LABELS, label_smoothing=s))(f32(0.1)),
    lambda: optim.clip_by_global_norm(X, 0), lambda: pf.jit(lambda m: optim.clip_by_global_norm(X, m)[1])(f32(1)),
    lambda: random.bernoulli(KEY, 0), lambda: random.bernoulli(KEY, 1),
    lambda: pf.jit(lambda p: random.bernoulli(KEY, p))(0.3),
    lambda: random.truncated_normal(KEY, 1.0, 1.0), lambda: random.truncated_normal(KEY, -np.inf, np.inf),
    lambda: pf.jit(lambda a: random.truncated_normal(KEY, a, 1.0))(f32(0)),
    lambda: random.uniform(KEY, (), "float32", 1.0, 1.0),
    lambda: nn.huber(X, X, delta=np.inf), lambda: optim.adam(0.1, b1=0, b2=0, eps=0).init(X)[0],
    lambda: optim.adam(0.1, b1=pf.Array(0.9)).update(X, optim.adam(0.1).init(X), X)[0]]


@pytest.mark.parametrize("case", range(len(FINE)))
def test_numbers_at_the_ends_of_their_range(case):
    for y in pf.tree.leaves(FINE[case]()):
        assert not np.isnan(np.asarray(y)).any()


# ---------------------------------------------------------------------------- losses of nothing
EMPTY = {
    "cross_entropy": lambda n, **k: nn.cross_entropy(np.zeros((n, 3), f32), np.zeros(n, int), **k),
    "cross_entropy of rows": lambda n, **k: nn.cross_entropy(np.zeros((n, 2, 3), f32), np.zeros((n, 2), int), **k),
    "cross_entropy smoothed": lambda n, **k: nn.cross_entropy(
        np.zeros((n, 3), f32), np.zeros(n, int), label_smoothing=0.1, **k),
    "nll": lambda n, **k: nn.nll(np.zeros((n, 3), f32), np.zeros(n, int), **k),
    **{name: (lambda n, f=f, **k: f(np.zeros((n, 2), f32), np.ones((n, 2), f32), **k)) for name, f in (
        ("mse", nn.mse), ("l1", nn.l1), ("huber", nn.huber), ("binary_cross_entropy", nn.binary_cross_entropy))}}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("run", [lambda f: f, pf.jit], ids=["eager", "jit"])
def test_losses_of_an_empty_batch(name, run):
    """NaN as the mean of nothing, as in NumPy; 0 where it is said that nothing counts."""
    def f(**options):
        return run(lambda: EMPTY[name](0, **options))()
    shape = run(lambda: EMPTY[name](2, reduction="none"))().shape[1:]
    assert np.isnan(f().item()) and f().dtype == f32 and f().shape == ()
    assert f(reduction="sum").item() == 0 and f(reduction="none").shape == (0, *shape)
    assert f(where=np.zeros((0, *shape), bool)).item() == 0
    assert EMPTY[name](2, where=np.zeros((2, *shape), bool)).item() == 0


def test_labels_of_no_classes():
    for f in (nn.cross_entropy, nn.nll):
        assert_error_text(lambda f=f: f(np.zeros((2, 0), f32), np.zeros(2, int)), ShapeError,
                          f"{f.__name__}: there are no classes, got f32[2,0]", __file__)


def test_gradients_by_an_empty_batch_have_its_shape():
    for f in (lambda x: nn.cross_entropy(x, np.zeros(0, int)), lambda x: nn.mse(x, x)):
        assert pf.grad(f)(np.zeros((0, 3), f32)).shape == (0, 3)


# ---------------------------------------------------------------------------- templates of debug.print
TEMPLATES = [
    (("a", 1.0), {}, "the template has no field for argument 0"), (("{}", 1.0, 2.0), {}, "has no field for argument 1"),
    (("{1}", 1.0, 2.0), {}, "has no field for argument 0"), (("{x}",), {"x": 1.0, "y": 2.0}, "no field for argument y"),
    *[((template, *rest), {}, "the template does not fit its arguments: ")
      for template, *rest in (("{}",), ("{x}", 1.0), ("{} {0}", 1.0), ("{",), ("{!z}", 1.0))],
    ((3.0,), {}, "debug.print takes a template first, got float"), (("{}", "text"), {}, "argument 0 is not an array"),
    (("{x}",), {"x": {"a": "text"}}, "argument x['a'] is not an array")]


@pytest.mark.parametrize("case", range(len(TEMPLATES)))
def test_templates_that_do_not_fit(case):
    args, kwargs, text = TEMPLATES[case]
    assert_error_text(lambda: pf.debug.print(*args, **kwargs), ArgumentError, text, __file__)


# ---------------------------------------------------------------------------- dtypes that are not there
def test_64_bit_names_mean_their_32_bit_twins():
    """The convention for 64-bit data, too: CONVENTIONS name float32 and int32 as the defaults."""
    for name, short in (("float64", "float32"), ("int64", "int32"), (np.float64, "float32"), (float, "float32"),
                        (int, "int32")):
        for y in (pnp.zeros(2, dtype=name), pf.Array(X).astype(name), pnp.asarray(X, dtype=name)):
            assert y.dtype == short
    with pytest.raises(DtypeError, match=re.escape("complex")):
        pnp.zeros(2, dtype="complex64")


# ---------------------------------------------------------------------------- options that Python has to know
# Functions of an option, what the error calls it, and the text for what is no integer at all ({} is its repr).
BOTH, ROW_OF = np.stack([X, X]), pf.spec(3)


def _double(x):
    return x * 2


def _squares(x):
    return pnp.sum(x * x)


NUMBERS = {
    "in_axes": (lambda v: pf.vmap(_double, in_axes=v)(BOTH), "vmap: an axis in in_axes",
                "which has no axis {} to map over"),
    "an entry of in_axes": (lambda v: pf.vmap(_double, in_axes=(v,))(BOTH), "vmap: an axis in in_axes",
                            "which has no axis {} to map over"),
    "out_axes": (lambda v: pf.vmap(_double, out_axes=v)(BOTH), "vmap: an axis in out_axes",
                 "cannot have the mapped axis at {}"),
    "axis_size": (lambda v: pf.vmap(lambda: 1.0, axis_size=v)(), "vmap: axis_size",
                  "axis_size is a size of 0 or more, got {}"),
    **{f"argnums of {name}": (lambda v, name=name: getattr(pf, name)(_squares, argnums=v)(X),
                              f"{called}: argnums", f"{called}: argnums={{}} does not number positional arguments")
       for name, called in (("grad", "grad"), ("value_and_grad", "grad"), ("jacfwd", "jacfwd"), ("jacrev", "jacrev"))},
    "argnums of fwd_and_grad": (lambda v: pf.fwd_and_grad(_double, 1, argnums=v)[0](BOTH), "fwd_and_grad: argnums",
                                "argnums names argument {}"),
    "static_argnums": (lambda v: pf.jit(lambda x, n: x * n, static_argnums=v)(X, 2), "jit: static_argnums",
                       "static_argnums numbers arguments, by an integer or several, got {}"),
    "donate_argnums": (lambda v: pf.jit(_double, donate_argnums=v)(pf.Array(X)), "jit: donate_argnums",
                       "donate_argnums numbers arguments, by an integer or several, got {}"),
    "scan length": (lambda v: pf.scan(lambda c, _: (c, None), 1.0, None, length=v), "scan: the length",
                    "scan: length is a number of 0 or more, got {}"),
    "scan unroll": (lambda v: pf.scan(lambda c, _: (c, None), 1.0, None, length=2, unroll=v), "scan: unroll",
                    "scan: unroll is True or a number of 1 or more, got {}"),
    "max_steps": (lambda v: pf.while_loop(lambda c: c < 1, lambda c: c + 1, 0.0, max_steps=v), "while_loop: max_steps",
                  "max_steps is a number of 0 or more, got {}"),
    "steps": (lambda v: pf.batch_serialise(_double, v)(BOTH), "batch_serialise: steps",
              "batch_serialise: steps is a number of 1 or more, got {}"),
    "rows": (lambda v: pf.batch_serialise(_double, 1, rows=v)(BOTH), "batch_serialise: rows",
             "batch_serialise: rows is a number of 1 or more, got {}"),
    "in_axes of batch_serialise": (lambda v: pf.batch_serialise(_double, 1, v)(BOTH),
                                   "batch_serialise: an axis in in_axes", "which has no axis {} to cut along"),
    "out_axes of batch_serialise": (lambda v: pf.batch_serialise(_double, 1, 0, v)(BOTH),
                                    "batch_serialise: an axis in out_axes", "no axis {} to be put together along"),
    "steps of a buffer": (lambda v: pf.remote_buffer(ROW_OF, v), "remote_buffer: steps",
                          "remote_buffer: steps is a number of 1 or more, got {}"),
    "rows of a buffer": (lambda v: pf.remote_buffer(ROW_OF, 1, v), "remote_buffer: rows",
                         "remote_buffer: rows is a number of 1 or more, got {}"),
    "io_tiles": (lambda v: pf.lower(_double, ROW_OF, io_tiles=v), "lower: io_tiles", "io_tiles is a number from 0"),
    "state": (lambda v: pf.lower(_double, ROW_OF, state=v), "lower: state", "lower: state={}, but"),
    "sum": (lambda v: pnp.sum(BOTH, axis=v), "sum: an axis", "axis {} is not an axis of a value of rank 2"),
    "mean": (lambda v: pnp.mean(BOTH, axis=(v,)), "mean: an axis", "axis {} is not an axis of a value of rank 2"),
    "all_gather": (lambda v: pf.vmap(lambda x: pf.all_gather(x, "i", axis=v), axis_name="i")(BOTH),
                   "all_gather: an axis", "axis {} is not an axis of a value of rank 2"),
    "reshape": (lambda v: pnp.reshape(X, (v, 3)), "a shape", "a shape is a tuple of integers, got ({}, 3)"),
    "repeat": (lambda v: pnp.repeat(X, v), "repeat: a number of repeats", "repeats are integers, got {}"),
    "pad": (lambda v: pnp.pad(X, v), "pad: a width", "widths are pairs of integers of 0 or more"),
    "topk": (lambda v: pnp.topk(X, v), "topk: k", "k is a count of at most 3 elements"),
    "round": (lambda v: pnp.round(X, v), "round: the number of decimals",
              "round: the number of decimals is an integer, got {}"),
    "roll": (lambda v: pnp.roll(X, v), "roll: a shift", "roll: a shift is an integer, got {}"),
    "tril": (lambda v: pnp.tril(BOTH, k=v), "tril: k", "tril: k is an integer, got {}"),
    "eye": (lambda v: pnp.eye(3, k=v), "eye: k", "eye: k is an integer, got {}"),
    "diagonal": (lambda v: pnp.linalg.diagonal(BOTH, offset=v), "diagonal: the offset",
                 "diagonal: the offset is an integer, got {}"),
    "linspace": (lambda v: pnp.linspace(0, 1, v), "linspace: the number of elements",
                 "linspace: the number of elements is an integer, got {}"),
    "one_hot": (lambda v: nn.one_hot(LABELS, v), "one_hot: the number of classes",
                "one_hot: the number of classes is an integer, got {}"),
    "split": (lambda v: pnp.split(X, v), "split: a number of parts or a place",
              "split takes a number of parts or a list of places, got {}"),
    "a place of split": (lambda v: pnp.split(X, [v]), "split: a number of parts or a place",
                         "split: a place is an integer, got {}"),
    "tensordot": (lambda v: pnp.tensordot(X, X, axes=v), "tensordot: axes", "tensordot: axes is a number or a pair"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_options_that_are_no_integers(name):
    """A traced value says that Python has to know it, and how; what is no integer at all is shown."""
    f, what, text = NUMBERS[name]
    for run in (lambda: pf.make_jaxpr(f)(pf.spec((), int)), lambda: pf.jit(f)(np.int32(1)),
                lambda: pf.vmap(lambda x: pf.tree.map(pnp.asarray, f(x.astype(int))))(X)):
        with pytest.raises(pf.errors.ConcretizationError) as e:
            run()
        lines = str(e.value).split("\n  ")
        assert lines[0] == f"{what} must be known while tracing, got i32[]"
        assert os.path.basename(__file__) in lines[1] and lines[2].startswith("the array: i32[], ")
        assert lines[-1].startswith("way out: a Python number, which jit takes by static_argnums")
    for value in (1.5, "q", pf.Array(1.5), X):
        assert_error_text(lambda value=value: f(value), pf.errors.PopfnError, text.format(repr(value)), __file__)


@pytest.mark.parametrize("name", NUMBERS)
def test_options_may_be_integer_arrays(name):
    """What Python can know is as good as a Python integer."""
    f = NUMBERS[name][0]
    n = 0 if "arg" in name else 1
    try:
        want = pf.tree.map(np.asarray, f(n))
    except pf.errors.PopfnError as e:
        want = str(e).split("\n")[0]
    for value in (pf.Array(n), np.array(n)):
        try:
            got = pf.tree.map(np.asarray, f(value))
        except pf.errors.PopfnError as e:
            got = str(e).split("\n")[0]
        if isinstance(want, str):
            assert got == want
        else:
            pf.tree.map(lambda a, b: np.testing.assert_array_equal(a, b) if a.dtype != object else None, got, want)


TEXTS = [
    *[(lambda v=v: pf.jit(_double, static_argnames=v)(X), ArgumentError,
       f"jit: static_argnames names arguments, by a text or several, got {v!r}")
      for v in (1, 1.5, None, pf.Array(1), (1,))],
    *[(lambda v=v: pf.jit(_double, static_argnums=v)(X), ArgumentError,
       f"jit: static_argnums numbers arguments, by an integer or several, got {v!r}") for v in (None, True, (0, "x"))],
    *[(lambda v=v: pf.lower(_double, ROW_OF, target=v), ArgumentError, f'target= is "auto", "host" or "sdk", got {v!r}')
      for v in (None, 1, pf.Array(1), X)],
    *[(lambda v=v: pf.vmap(lambda x: pf.psum(x, v), axis_name="i")(X), pf.errors.AxisError,
       f"psum: there is no axis {v!r} here") for v in (0, None, 1.5, pf.Array(0), X, "j")],
    *[(lambda v=v: pnp.meshgrid(X, X, indexing=v), ValueError, f"meshgrid: indexing is 'xy' or 'ij', got {v!r}")
      for v in (1, None, "q", X, pf.Array(1))]]


@pytest.mark.parametrize("case", range(len(TEXTS)))
def test_options_that_are_no_texts(case):
    assert_error_text(*TEXTS[case], __file__)


@pytest.mark.parametrize("f, path", [
    (lambda n, x: x * n, "n"), (lambda x, n: x * n["a"][1], "n['a'][1]"), (lambda *xs: xs[0] * xs[1], "xs[1]")])
def test_jit_names_a_number_that_does_not_fit(f, path):
    run, big = pf.jit(f), 3_000_000_000
    args = {"n": (1, X), "n['a'][1]": (X, {"a": [1, 1]}), "xs[1]": (X, 1)}[path]
    run(*args)
    bad = {"n": (big, X), "n['a'][1]": (X, {"a": [1, big]}), "xs[1]": (X, big)}[path]
    with pytest.raises(NarrowingError) as e:
        run(*bad)
    assert f"argument {path} of <lambda>: Python integer 3000000000 does not fit int32" in str(e.value)
    assert os.path.basename(__file__) in str(e.value)
