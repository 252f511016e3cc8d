"""What errors say, line by line: the fault, the user's line, what was seen, the way out."""
import functools
import linecache
import os
import re
import textwrap

import numpy as np
import pytest

import popfn as pf
import popfn.numpy as pnp
from popfn.trace import errors
from popfn.trace.errors import (
    ArgumentError,
    ConcretizationError,
    DtypeError,
    LeakError,
    MissingRuleError,
    NarrowingError,
    ShapeError,
)
from popfn.trace.primitive import Primitive
from popfn.trace.tracer import bind
from popfn.transforms.call import Call

HERE = os.path.relpath(__file__) if not os.path.relpath(__file__).startswith("..") else __file__
SCALAR, VECTOR, INT = pf.spec(()), pf.spec(3), pf.spec((), int)
ONES = np.ones(3, np.float32)


def place(f, text=None):
    """`file.py:12, in f: the line` for the line of `f` that holds `text`, by default its first."""
    code = f.__code__
    for number in range(code.co_firstlineno, code.co_firstlineno + 60):
        line = linecache.getline(__file__, number)
        if text is None or text in line:
            return f"{HERE}:{number}, in {code.co_name}: {line.strip()}"
    raise AssertionError(f"no line with {text}")


def name(f):
    """`test_x.f (file.py:12)`."""
    return f"{f.__qualname__.replace('<locals>.', '')} ({HERE}:{f.__code__.co_firstlineno})"


def fails(call, error, *lines):
    """Check that `call` raises an error of this class whose text is these lines."""
    with pytest.raises(error) as e:
        call()
    assert type(e.value) is error
    assert str(e.value).split("\n  ") == list(lines)
    assert e.value.__cause__ is None
    return e.value


# ---------------------------------------------------------------------------- operations on arrays
OPERATIONS = [
    (lambda x, i, b: x + np.ones(4, np.float32), ShapeError, ["add: shapes do not broadcast: f32[3] and f32[4]"]),
    (lambda x, i, b: x * i.reshape(2, 1)[:, [0, 0]], ShapeError, ["mul: shapes do not broadcast: f32[3] and f32[2,2]"]),
    (lambda x, i, b: pnp.where(b, x, np.ones(2)), ShapeError,
     ["select: shapes do not broadcast: bool[3] and f32[3] and f32[2]"]),
    (lambda x, i, b: x @ np.ones((4, 2), np.float32), ShapeError,
     ["matmul: f32[3] @ f32[4,2] do not go together: the last axis of the first is contracted with the last but one of "
      "the second"]),
    (lambda x, i, b: x.reshape(2, 2), ShapeError, ["reshape: f32[3] has 3 elements, which do not fit shape (2, 2)"]),
    (lambda x, i, b: x.reshape(-1, 2), ShapeError, ["reshape: f32[3] has 3 elements, which do not fit shape (-1, 2)"]),
    (lambda x, i, b: x.sum(1), ShapeError, ["sum: axis 1 is not an axis of a value of rank 1"]),
    (lambda x, i, b: pnp.max(x, (0, 0)), ShapeError, ["max: axes (0, 0) are not distinct"]),
    (lambda x, i, b: pnp.concat([x, x.reshape(1, 3)]), ShapeError,
     ["concat: shapes agree but for axis 0, got f32[3], f32[1,3]"]),
    (lambda x, i, b: pnp.squeeze(x, 0), ShapeError, ["squeeze: axis 0 of f32[3] is of size 3, not 1"]),
    (lambda x, i, b: pnp.broadcast_to(x, (3, 2)), ShapeError, ["broadcast: f32[3] does not broadcast to shape (3, 2)"]),
    (lambda x, i, b: pnp.max(x[:0]), ShapeError, ["max of no elements: f32[0] over axes (0,)"]),
    (lambda x, i, b: x.mT, ShapeError, ["matrix_transpose: f32[3] has no two axes"]),
    (lambda x, i, b: pf.nn.cross_entropy(x, i), ShapeError,
     ["cross_entropy: labels are of the logits' shape without its last axis, got i32[2] for f32[3]"]),
    (lambda x, i, b: b - b, DtypeError,
     ["subtract of bools is not defined, as in NumPy", "way out: use logical_xor (^), or convert with astype"]),
    (lambda x, i, b: -b, DtypeError, ["negative of bools is not defined, as in NumPy", "way out: use logical_not (~)"]),
    (lambda x, i, b: x & x, DtypeError,
     ["bitwise_and takes integers or bools, got f32[3] and f32[3]",
      "way out: convert with astype; logical_and, logical_or, logical_xor and logical_not take any numbers as truth "
      "values"]),
    (lambda x, i, b: ~x, DtypeError,
     ["bitwise_invert takes integers or bools, got f32[3]",
      "way out: convert with astype; logical_and, logical_or, logical_xor and logical_not take any numbers as truth "
      "values"]),
    (lambda x, i, b: i ** -1, DtypeError,
     ["integer_pow: i32[2] to the power -1 is not an integer: convert to float first"]),
    (lambda x, i, b: pnp.take(x, x), DtypeError, ["an index is an integer, got f32[3]"]),
    (lambda x, i, b: pf.nn.one_hot(x, 3), DtypeError, ["one_hot takes integer labels, got f32[3]"]),
    (lambda x, i, b: x[3], pf.errors.RangeError, ["index 3 is out of range for axis 0 of f32[3]"]),
    (lambda x, i, b: x[0, 1], pf.errors.RangeError, ["2 indices for f32[3], which has 1 axes"]),
    (lambda x, i, b: x[[0, 5]], pf.errors.RangeError, ["index 5 is out of range for axis 0 of size 3"]),
    (lambda x, i, b: x[pf.Array([True, False])], pf.errors.RangeError,
     ["a mask has the sizes of the axes that it stands for: bool[2] at axis 0 of f32[3]"]),
    (lambda x, i, b: x["a"], pf.errors.RangeError,
     ["an index is an int, a slice, `...`, None or an integer array, got 'a'"]),
    (lambda x, i, b: x[..., ...], pf.errors.RangeError, ["an index holds one `...` at most"]),
    (lambda x, i, b: len(x.sum()), TypeError,
     ["len() of a scalar: it has no axis", "the array: {sum}",
      "way out: a scalar is used as it is; x.reshape(1) gives it an axis"]),
    (lambda x, i, b: list(x.sum()), TypeError,
     ["iteration over a scalar: it has no axis", "the array: {sum}",
      "way out: a scalar is used as it is; x.reshape(1) gives it an axis"]),
    (lambda x, i, b: range(x.sum()), TypeError, ["only an integer scalar can be an index", "the array: {sum}"]),
    (lambda x, i, b: x.__setitem__(0, 1), TypeError,
     ["arrays are immutable: x[...] = value is not possible",
      "way out: x.at[...].set(value) is the new array, or pnp.where(mask, value, x)"]),
]


@pytest.mark.parametrize("f, error, lines", OPERATIONS, ids=range(len(OPERATIONS)))
def test_operations(f, error, lines):
    """The same at once and in a trace, with the line of the operation after the fault."""
    first, *rest = lines
    arrays = ONES, np.int32([0, 1]), np.array([True, False, True])
    for call, seen in ((lambda: f(*map(pf.Array, arrays)), "f32[], a concrete array"),
                       (lambda: pf.make_jaxpr(f)(*arrays), f"f32[], made at {place(f)}")):
        fails(call, error, first, f"at {place(f)}", *(line.format(sum=seen) for line in rest))


@pytest.mark.parametrize("f, error, line", [
    (lambda x: x + 3_000_000_000, NarrowingError,
     "Python integer 3000000000 does not fit int32 (-2147483648 to 2147483647)"),
    (lambda x: x * np.array([1, 2**40, 3]), NarrowingError,
     "int64 data is narrowed to int32, but 1099511627776 at index [1] does not survive; use x.astype(np.int32) to "
     "convert it all the same"),
    (lambda x: x == None, DtypeError, "a value of type NoneType is not an array or a number: None"),  # noqa: E711
    (lambda x: x + "a", DtypeError, "a value of type str is not an array or a number: 'a'"),
    (lambda x: pnp.stack([x, "a"]), DtypeError, "a value of type str is not an array or a number: 'a'"),
    (lambda x: x.astype("f33"), DtypeError, None), (lambda x: pf.Array([1j]), DtypeError, None),
    (lambda x: x.astype(pf.float8_143) + x.astype(pf.float8_152), DtypeError,
     "f8_143 and f8_152 have no common dtype: convert one of them with astype"),
], ids=range(8))
def test_operands_that_cannot_be_taken(f, error, line):
    """Errors that arise before a primitive is asked name the user's line too."""
    for call in (lambda: f(pf.Array([1, 2, 3])), lambda: pf.make_jaxpr(f)(pf.spec(3, int))):
        with pytest.raises(error) as e:
            call()
        lines = str(e.value).split("\n  ")
        assert line is None or lines[0] == line
        assert lines[1:] == [f"at {place(f)}"]


def test_an_error_of_a_rule_is_laid_out_once():
    def f(x):
        y = pnp.exp(x)
        return y + np.ones((2, 2), np.float32)  # the line
    for call in (lambda: pf.grad(f)(ONES), lambda: pf.make_jaxpr(lambda x: pf.jvp(f, (x,), (x,)))(ONES)):
        fails(call, ShapeError, "add: shapes do not broadcast: f32[3] and f32[2,2]", f"at {place(f, '# the line')}")


# ---------------------------------------------------------------------------- values asked of tracers
STAY = "way out: stay with popfn.numpy functions, or compute it outside the traced function and pass it in"
CHOOSE = "way out: choose with pnp.where(condition, a, b), or let a Python value decide that the trace does not see"


@pytest.mark.parametrize("ask, what, way", [
    (lambda x: bool(x), "bool(...), as in `if` or `and`,", CHOOSE),
    (lambda x: 1 if x else 2, "bool(...), as in `if` or `and`,", CHOOSE),
    (lambda x: x and x, "bool(...), as in `if` or `and`,", CHOOSE), (lambda x: float(x), "float(...)", STAY),
    (lambda x: int(x), "int(...)", STAY), (lambda x: x.item(), "x.item()", STAY),
    (lambda x: x.tolist(), "x.tolist()", STAY),
    (lambda x: np.asarray(x), "np.asarray(...)", STAY), (lambda x: pf.Array(x), "Array(...)", STAY),
    (lambda x: range(x), "an index of a Python sequence, or range(...),", STAY),
    (lambda x: "abc"[x], "an index of a Python sequence, or range(...),", STAY),
], ids=range(11))
def test_asking_for_the_value_of_an_argument(ask, what, way):
    fails(lambda: pf.make_jaxpr(ask)(INT), ConcretizationError,
          f"{what} needs the value of an array that is not known while <lambda> is traced", f"at {place(ask)}",
          "the array: i32[], argument x of <lambda>", "it depends on: x", way)


def test_an_if_on_a_value_made_on_the_way():
    def step(params, x, *rest, scale):
        h = x @ params["w"][0] + rest[1]
        unused = scale * 2                      # noqa: F841
        total = h.sum()                         # made here
        if total > 0:                           # asked here
            return total
    fails(lambda: pf.make_jaxpr(step)({"w": [pf.spec((3, 2)), VECTOR]}, VECTOR, SCALAR, SCALAR, scale=1.0),
          ConcretizationError,
          "bool(...), as in `if` or `and`, needs the value of an array that is not known while step is traced",
          f"at {place(step, '# asked here')}", f"the array: bool[], made at {place(step, '# asked here')}",
          "it depends on: params['w'][0], x, rest[1]", CHOOSE)


def test_an_if_inside_helpers_and_methods():
    class Layer:
        def __init__(self):
            self.w = ONES

        def forward(self, x):
            return helper(x * self.w)

    def helper(h):
        return h if float(h.sum()) > 0 else -h  # asked here
    fails(lambda: pf.make_jaxpr(Layer().forward)(VECTOR), ConcretizationError,
          "float(...) needs the value of an array that is not known while forward is traced",
          f"at {place(helper, '# asked')}",
          f"the array: f32[], made at {place(helper, '# asked')}", "it depends on: x", STAY)


def test_a_value_that_depends_on_an_outer_trace():
    def outer(a, b):
        def inner(y):
            return y if a * 2 > y else -y       # asked here
        return pf.grad(inner)(b)
    with pytest.raises(ConcretizationError) as e:
        pf.make_jaxpr(outer)(SCALAR, SCALAR)
    fault, at, made, depends, way = str(e.value).split("\n  ")
    assert fault.endswith(" needs the value of an array that is not known while inner is traced")
    line = outer.__code__.co_firstlineno + 2
    assert at == f"at {HERE}:{line}, in inner: return y if a * 2 > y else -y       # asked here"
    assert made == f"the array: bool[], made {at}" and way == CHOOSE
    assert depends == "it depends on: a, y"

    def closed(a):
        def inner(y):
            return y if a * 2 > 0 else -y       # asked here
        return pf.grad(inner)(1.0)
    with pytest.raises(ConcretizationError) as e:
        pf.make_jaxpr(closed)(SCALAR)
    assert re.search(r"\n  it depends on: .*\ba\b", str(e.value))


def test_a_value_that_depends_on_nothing():
    def f(x):
        return x if pnp.arange(3).sum() > 2 else -x
    with pytest.raises(ConcretizationError) as e:
        pf.make_jaxpr(f)(SCALAR)
    assert "\n  it depends on: no argument\n" in str(e.value)


def test_truth_of_many_elements():
    f = lambda x: 1 if x > 0 else 2  # noqa: E731
    way = "way out: x.any() or x.all()"
    fails(lambda: f(pf.Array(ONES)), ShapeError, "bool(...), as in `if` or `and`, takes one element, got bool[3]",
          f"at {place(f)}", "the array: bool[3], a concrete array", way)
    fails(lambda: pf.make_jaxpr(f)(VECTOR), ShapeError,
          "bool(...), as in `if` or `and`, takes one element, got bool[3]",
          f"at {place(f)}", f"the array: bool[3], made at {place(f)}", way)


# ---------------------------------------------------------------------------- leaks
OUT = "way out: return it from the function instead of keeping it in a global, an attribute or a list"


def test_leaks_name_the_line_that_made_the_value():
    kept = []
    def loss(params):
        h = params["w"] * 2                     # made here
        kept.append(h)
        kept.append(params["w"])
        return h
    pf.make_jaxpr(loss)({"w": VECTOR})
    use = lambda x: x + 1  # noqa: E731
    fault = "a traced value was used outside the trace of loss that it belongs to"
    fails(lambda: use(kept[0]), LeakError, fault, f"at {place(use)}",
          f"the value: f32[3], made at {place(loss, '# made here')}", OUT)
    fails(lambda: use(kept[1]), LeakError, fault, f"at {place(use)}", "the value: f32[3], argument params['w'] of loss",
          OUT)
    fails(lambda: pf.make_jaxpr(use)(1.0) and pf.grad(lambda y: use(kept[1]) * y)(1.0), LeakError, fault,
          f"at {place(use)}",
          "the value: f32[3], argument params['w'] of loss", OUT)
    asked = lambda: 1 if kept[0] else 2  # noqa: E731
    with pytest.raises((LeakError, ShapeError)) as e:
        asked()
    assert f"at {place(asked)}" in str(e.value)


def test_a_leak_through_a_transform_names_the_users_line():
    kept = []
    pf.make_jaxpr(lambda x: kept.append(x) or x)(SCALAR)
    use = lambda: pf.jvp(lambda y: y, (1.0,), (kept[0],))  # noqa: E731
    fails(use, LeakError, "a traced value was used outside the trace of <lambda> that it belongs to",
          f"at {place(use)}",
          "the value: f32[], argument x of <lambda>", OUT)


# ---------------------------------------------------------------------------- grad
def test_grad_of_what_is_no_scalar():
    def loss(x):
        return x * 2
    call = lambda: pf.grad(loss)(ONES)  # noqa: E731
    fails(call, ArgumentError, f"grad: {name(loss)} must return one float scalar, got f32[3]",
          f"at {place(call)}", "way out: reduce it with pnp.sum or pnp.mean")


@pytest.mark.parametrize("f, got, way", [
    (lambda x: (x, x), "(~f32[], ~f32[])", "return (value, aux) and pass has_aux=True"),
    (lambda x: {"a": x}, "{'a': ~f32[]}",
                                                                                         "return one array"),
    (lambda x: None, "None", "return one array"), (lambda x: 3, "~i32[]", "convert it with astype"),
    (lambda x: x > 0, "bool[]", "convert it with astype"), (lambda x: [x], "[~f32[]]", "return one array"),
], ids=range(6))
def test_grad_of_other_results(f, got, way):
    calls = [lambda: pf.grad(f)(1.0), lambda: pf.value_and_grad(f)(1.0)]
    for call in calls:
        fails(call, ArgumentError, f"grad: {name(f)} must return one float scalar, got {got}", f"at {place(calls[0])}",
              f"way out: {way}")


def test_functions_are_named_whatever_wraps_them():
    def loss(x, y=None):
        return x * np.ones(2, np.float32)

    class Model:
        def __call__(self, x):
            return x * np.ones(2, np.float32)
        method = __call__

    @functools.wraps(loss)
    def decorated(*args):
        return loss(*args)
    mine = re.escape(name(loss))
    for f, want in [(loss, mine), (decorated, mine), (functools.partial(loss, y=3), mine), (pf.stop_gradient, None),
                    (functools.partial(functools.partial(decorated), y=1), mine),
                    (pf.value_and_grad(loss), mine),
                    (Model(), rf"Model \(.*test_errors\.py:{Model.__call__.__code__.co_firstlineno}\)"),
                    (Model().method, r"test_functions_are_named_whatever_wraps_them\.Model\.__call__ \(.*\.py:\d+\)"),
                    (np.add, "add"), (abs, "abs")]:
        if want is None:
            continue
        assert re.fullmatch(want, errors.function_name(f)), errors.function_name(f)
    with pytest.raises(ArgumentError, match=f"^grad: {mine} must return one float scalar"):
        pf.grad(pf.grad(loss))(1.0)


def test_grad_by_an_integer():
    """The argument is what is wrong, not the integer result that comes of it."""
    for f in (lambda x: x * 2.0, lambda x: x * 2):
        call = lambda f=f: pf.grad(f)(3)  # noqa: E731
        fails(call, ArgumentError, "grad: argument x is ~i32[]; a derivative needs floats", f"at {place(call)}",
              "way out: leave it out of argnums, close over it, or pass allow_int=True")
    def loss(params, *xs):
        return params["w"] * 2.0
    call = lambda: pf.grad(loss)({"w": 1.0, "n": [np.array([True])]})  # noqa: E731
    fails(call, ArgumentError, "grad: argument params['n'][0] is bool[1]; a derivative needs floats",
          f"at {place(call)}",
          "way out: leave it out of argnums, close over it, or pass allow_int=True")
    call = lambda: pf.grad(loss, argnums=2)({"w": 1.0}, 2.0, 3)  # noqa: E731
    fails(call, ArgumentError, "grad: argument xs[1] is ~i32[]; a derivative needs floats", f"at {place(call)}",
          "way out: leave it out of argnums, close over it, or pass allow_int=True")


def test_argnums():
    f = lambda x, y: x * y  # noqa: E731
    for argnums, args, kwargs, count in [(2, (1.0, 2.0), {}, 2), (-3, (1.0, 2.0), {}, 2),
                                         (0, (), {"x": 1.0, "y": 2.0}, 0),
                                         ((0, 1), (1.0,), {"y": 2.0}, 1)]:
        call = lambda a=argnums, args=args, kwargs=kwargs: pf.grad(f, a)(*args, **kwargs)  # noqa: E731
        fails(call, ArgumentError,
              f"grad: argnums={argnums!r}, but {name(f)} was called with {count} positional arguments",
              f"at {place(call)}", "way out: pass what is differentiated by position")
    call = lambda: pf.grad(f, (0, -2))(1.0, 2.0)  # noqa: E731
    fails(call, ArgumentError, "grad: argnums=(0, -2) names an argument twice", f"at {place(call)}")
    for argnums in (1.0, "x", None, (0, 1.5)):
        call = lambda a=argnums: pf.grad(f, a)(1.0, 2.0)  # noqa: E731
        with pytest.raises(ArgumentError) as e:
            call()
        assert f"argnums={argnums!r}" in str(e.value).splitlines()[0] and f"at {place(call)}" in str(e.value)


def test_aux_that_is_no_pair():
    f = lambda x: [x, x]  # noqa: E731
    call = lambda: pf.grad(f, has_aux=True)(1.0)  # noqa: E731
    fails(call, ArgumentError, f"grad: with has_aux, {name(f)} must return a pair (value, aux), got [~f32[], ~f32[]]",
          f"at {place(call)}")


def test_what_is_no_function():
    for transform in ("grad", "value_and_grad", "make_jaxpr"):
        call = lambda t=transform: getattr(pf, t)(pf.Array(1.0))  # noqa: E731
        fails(call, ArgumentError, f"{transform} takes a function first, got Array", f"at {place(call)}",
              f"way out: {transform}(f)(x), not {transform}(f(x))")
    for transform, call in [("jvp", lambda: pf.jvp(3, (1.0,), (1.0,))), ("vjp", lambda: pf.vjp(3, 1.0)),
                            ("linearize", lambda: pf.linearize(3, 1.0)), ("eval_shape", lambda: pf.eval_shape(3, 1.0))]:
        with pytest.raises(ArgumentError) as e:
            call()
        assert str(e.value).splitlines()[0] == f"{transform} takes a function first, got int"


def test_specs_in_place_of_data():
    """A type has no derivative: the error says so, not that Aval is no number."""
    for call in (lambda: pf.grad(lambda x: x)(pf.spec(())), lambda: pf.jvp(lambda x: x, (pf.spec(()),), (1.0,)),
                 lambda: pf.vjp(lambda x: x, pf.spec(())), lambda: pf.linearize(lambda x: x, pf.spec(()))):
        with pytest.raises(ArgumentError) as e:
            call()
        first = str(e.value).splitlines()[0]
        assert "argument x" in first and "aval f32[]" in first and f"\n  at {HERE}:" in str(e.value)


# ---------------------------------------------------------------------------- jvp, vjp, linearize
def test_jvp_without_tuples():
    call = lambda: pf.jvp(lambda x: x, ONES, 1.0)  # noqa: E731
    fails(call, ArgumentError, "jvp takes a tuple of primals and a tuple of tangents, got ndarray and float",
          f"at {place(call)}",
          "way out: jvp(f, (x,), (t,))")


def test_numbers_of_tangents():
    f = lambda x, y: x * y  # noqa: E731
    call = lambda: pf.jvp(f, (1.0, 2.0), (1.0,))  # noqa: E731
    fails(call, ArgumentError, "jvp: 2 primals but 1 tangents", f"at {place(call)}")
    push = pf.linearize(f, 1.0, 2.0)[1]
    call = lambda: push(1.0, 2.0, 3.0)  # noqa: E731
    fails(call, ArgumentError, "linearize: 2 primals but 3 tangents", f"at {place(call)}")


def test_tangents_that_do_not_fit():
    f = lambda params, x: params["w"] * x  # noqa: E731
    primals = {"w": ONES, "b": 1.0}, 2.0
    for tangents, lines in [
        (({"w": ONES, "b": 1.0}, np.float16(1)), ["jvp: the tangent of x is f16[], expected ~f32[]"]),
        (({"w": 1.0, "b": 1.0}, 1.0), ["jvp: the tangent of params['w'] is ~f32[], expected f32[3]"]),
        (({"w": ONES}, 1.0), ["jvp: the tangent has another structure than params", "only in params: params['b']"]),
        (([ONES, 1.0], 1.0), ["jvp: the tangent has another structure than params",
                              "only in params: params['b'], params['w']; only in the tangent: params[0], params[1]"]),
    ]:
        call = lambda t=tangents: pf.jvp(f, primals, t)  # noqa: E731
        fails(call, ArgumentError, lines[0], f"at {place(call)}", *lines[1:])


def test_tangents_that_are_no_arrays():
    for call, what in [(lambda: pf.jvp(lambda p: p["w"], ({"w": 1.0},), ({"w": "x"},)), "jvp: the tangent of p['w']"),
                       (lambda: pf.vjp(lambda x: {"y": x}, 1.0)[1]({"y": "x"}), "vjp: the cotangent of ")]:
        with pytest.raises(ArgumentError) as e:
            call()
        assert str(e.value).startswith(what) and f"\n  at {HERE}:" in str(e.value)


def test_cotangents_that_do_not_fit():
    pull = pf.vjp(lambda x: {"y": [x, 2.0]}, ONES)[1]
    for ct, lines in [
        ({"y": [1.0, 0.0]}, ["vjp: the cotangent of result['y'][0] is ~f32[], expected f32[3]"]),
        ({"y": (ONES, 0.0)}, ["vjp: the cotangent has another structure than the result",
                              "result['y'] is list in the result, tuple in the cotangent"]),
    ]:
        call = lambda ct=ct: pull(ct)  # noqa: E731
        fails(call, ArgumentError, lines[0], f"at {place(call)}", *lines[1:])


@pytest.mark.parametrize("transform", ["jvp", "vjp", "linearize"])
def test_integer_primals(transform):
    f = lambda params: params["n"] * 2.0  # noqa: E731
    call = {"jvp": lambda: pf.jvp(f, ({"n": 1},), ({"n": 1.0},)), "vjp": lambda: pf.vjp(f, {"n": 1}),
            "linearize": lambda: pf.linearize(f, {"n": 1})}[transform]
    with pytest.raises(ArgumentError) as e:
        call()
    first, at, way = str(e.value).split("\n  ")
    assert first == f"{transform}: argument params['n'] is ~i32[]; a derivative needs floats"
    assert at.startswith(f"at {HERE}:") and way == "way out: close over it"


# ---------------------------------------------------------------------------- arguments and results
CLOSE = ("way out: close over values that are not arrays, or bind them with functools.partial; make a class of arrays "
         "a pytree with pf.tree.dataclass")


def test_arguments_that_are_no_arrays():
    def f(params, mode="x", *rest, **options):
        return params
    for args, kwargs, path, kind, text in [
        (({"a": [1.0, "relu"]},), {}, "params['a'][1]", "str", "'relu'"), ((1.0, "tanh"), {}, "mode", "str", "'tanh'"),
        ((1.0, 2.0, 3.0, b"x"), {}, "rest[1]", "bytes", "b'x'"), ((1.0,), {"key": {1}}, "key", "set", "{1}"),
    ]:
        call = lambda args=args, kwargs=kwargs: pf.make_jaxpr(f)(*args, **kwargs)  # noqa: E731
        fails(call, ArgumentError, f"argument {path} of {name(f)} is not an array: a value of "
              f"type {kind} is not an array or a number: {text}", f"at {place(call)}", f"seen: {kind}, {text}", CLOSE)


def test_arguments_of_unsupported_types():
    f = lambda x: x  # noqa: E731
    call = lambda: pf.grad(f)(np.complex64(1))  # noqa: E731
    fails(call, ArgumentError,
          f"argument x of {name(f)} is not an array: dtype complex64 is not supported: complex numbers have no "
          "form on the IPU: carry real and imaginary part", f"at {place(call)}",
          f"seen: complex64, {np.complex64(1)!r}", CLOSE)
    call = lambda: pf.make_jaxpr(f)({"w": np.array([1, 2**40])})  # noqa: E731
    with pytest.raises(NarrowingError) as e:
        call()
    assert "argument x['w'] of " in str(e.value) and f"at {place(call)}" in str(e.value)
    assert "1099511627776 at index [1] does not survive" in str(e.value)


def test_results_that_are_no_arrays():
    def f(x):
        return {"y": [x, "done"]}
    call = lambda: pf.make_jaxpr(f)(1.0)  # noqa: E731
    fails(call, ArgumentError, f"result['y'][1] of {name(f)} is not an array: a value of type "
          "str is not an array or a number: 'done'", f"at {place(call)}", "seen: str, 'done'",
          "way out: return arrays and containers of arrays only")


# ---------------------------------------------------------------------------- rules that are missing
def test_missing_rules_name_the_primitive_and_the_line():
    class Opaque(Call):
        def jvp(self, primals, tangents):
            return Primitive.jvp(self, primals, tangents)
    jaxpr = pf.make_jaxpr(lambda x: x)(SCALAR)
    def f(x):
        y, = bind(Opaque(jaxpr), (x,))          # the line
        return y
    fails(lambda: pf.jvp(f, (1.0,), (1.0,)), MissingRuleError, "call has no jvp rule: it cannot be differentiated",
          f"at {place(f, '# the line')}")


# ---------------------------------------------------------------------------- places
def test_places_on_lines_of_their_own():
    """A statement of several lines: the line that Python's own traceback shows."""
    def f(x):
        return (x
                + 1
                + np.ones(4, np.float32))

    def g(x):
        return pnp.stack([
            x,
            x.reshape(
                2, 2),
            x])

    def h(x):
        x = -x; y = x + 1; return y @ np.ones((4, 2), np.float32)  # noqa: E702
    for function in (f, g, h):
        with pytest.raises(ShapeError) as e:
            pf.make_jaxpr(function)(VECTOR)
        tb = e.tb
        while tb.tb_frame.f_code is not function.__code__:
            tb = tb.tb_next
        number = int(re.search(rf"test_errors\.py:(\d+), in {function.__name__}", str(e.value)).group(1))
        assert number == tb.tb_lineno


def test_places_without_a_file():
    """Code of exec, or typed in: a name and a line, without the text."""
    scope = {"pnp": pnp, "np": np}
    exec(compile("def f(x):\n    y = x * 2\n    return y + np.ones(4)\n", "<typed>", "exec"), scope)
    fails(lambda: pf.make_jaxpr(scope["f"])(VECTOR), ShapeError, "add: shapes do not broadcast: f32[3] and f32[4]",
          "at <typed>:3, in f")


def test_places_are_relative_to_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "model.py"
    path.write_text(textwrap.dedent("""
        def f(x):
            return x.reshape(2, 2)
    """))
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    fault = "reshape: f32[3] has 3 elements, which do not fit shape (2, 2)"
    monkeypatch.chdir(tmp_path)
    fails(lambda: pf.make_jaxpr(scope["f"])(VECTOR), ShapeError, fault,
          f"at {os.path.join('sub', 'model.py')}:3, in f: return x.reshape(2, 2)")
    monkeypatch.chdir("/")
    fails(lambda: pf.make_jaxpr(scope["f"])(VECTOR), ShapeError, fault,
          f"at {path}:3, in f: return x.reshape(2, 2)")


def test_message_and_where():
    assert errors.message("fault") == "fault"
    assert errors.message("fault", None, "", "seen: x", "way out: y") == "fault\n  seen: x\n  way out: y"
    assert errors.where(None) == "an unknown place"
    def f():
        return errors.user_source()             # here
    assert errors.message("fault", "seen", at=f()) == f"fault\n  at {place(f, '# here')}\n  seen"
    assert errors.source_line(f()) == f.__code__.co_firstlineno + 1


def test_sources_are_the_users_through_every_layer():
    """numpy.py's composites, nn, operators and transforms count as the line that called them."""
    def f(x):
        y = pf.nn.log_softmax(x)                # 1
        z = pnp.var(y) + y.mean()               # 2
        return pf.grad(lambda t: t * z)(z)      # 3
    jaxpr = pf.make_jaxpr(f)(VECTOR)
    lines = [errors.source_line(eqn.source) - f.__code__.co_firstlineno for eqn in jaxpr.eqns]
    assert all(eqn.source[0].co_filename == __file__ for eqn in jaxpr.eqns)
    assert lines == sorted(lines) and set(lines) == {1, 2, 3}


def test_every_error_is_popfns_and_pythons():
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.PopfnError)]
    assert len(kinds) > 10
    for e in kinds:
        assert e.__doc__ and getattr(pf.errors, e.__name__) is e
        builtin = [b for b in e.__mro__ if b.__module__ == "builtins" and b not in (object, Exception, BaseException)]
        assert e is errors.PopfnError or builtin, e
