"""Concrete arrays: their own data, printing, leaving popfn, operators with the array on either side."""
import array
import copy
import operator
import pickle

import numpy as np
import pytest

import popfn as pf
from popfn.trace.errors import NarrowingError, ShapeError


def evaluated(f, *arrays):
    """f's results by tracing and evaluating the jaxpr."""
    outs = pf.make_jaxpr(f)(*arrays).check().eval(*(np.asarray(pf.Array(x)) for x in arrays))
    return outs if len(outs) > 1 else outs[0]


# ---------------------------------------------------------------------------- data
def test_an_array_does_not_change_with_its_source():
    class Mine(np.ndarray):
        pass
    data = np.float32([1, 2])
    for mine in (data.copy(), data.copy()[::-1][::-1], data.copy().view(Mine), np.ma.masked_array(data.copy()),
                 memoryview(data.copy()), array.array("f", data), bytearray(b"\1\2"), data.copy().T):
        if isinstance(mine, bytearray):
            mine = memoryview(mine)
        a = pf.Array(mine)
        mine[0] = 9
        assert a.tolist() == [1, 2], type(mine)


def test_an_array_cannot_be_written_to():
    a = pf.Array([1.0, 2.0])
    for view in (np.asarray(a), a.value, memoryview(np.asarray(a))):
        with pytest.raises((ValueError, TypeError)):
            view[0] = 9
    for again in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.reshape(2, 1), a[:1], a + 1, a.T):
        assert not np.asarray(again).flags.writeable


def test_numpys_copy_is_the_users_own():
    a = pf.Array([1.0, 2.0])
    mine = np.array(a)
    mine[0] = 9
    assert a.tolist() == [1, 2] and mine.tolist() == [9, 2]
    assert np.asarray(a) is a.value
    assert np.asarray(a, np.float16).dtype == np.float16 and np.array(a, int).tolist() == [1, 2]


def test_copies_and_pickles():
    for a in (pf.Array([[1, 2]]), pf.Array(1.5), pf.Array(True), pf.Array(np.float16(2)),
              pf.Array([0.5]).astype(pf.float8_143), pf.Array(np.zeros((2, 0)))):
        for again in (copy.copy(a), copy.deepcopy(a), *(pickle.loads(pickle.dumps(a, p)) for p in range(2, 6))):
            assert again.aval is a.aval and again.value.tobytes() == a.value.tobytes() and type(again) is pf.Array
    params = {"w": pf.Array([1.0]), "n": 3}
    assert copy.deepcopy(params)["w"].tolist() == [1.0]


def test_a_dtype_asked_for():
    assert pf.Array([1.7, -1.7], int).tolist() == [1, -1] and pf.Array(3, "f16").dtype == np.float16
    assert pf.Array([1, 0], bool).tolist() == [True, False] and not pf.Array(3, "i32").aval.weak
    assert pf.Array([np.nan, 1e10, 2.0], "int8").tolist()[2] == 2      # no value for the others, and no warning
    for make in (pf.Array, pf.numpy.asarray):
        with pytest.raises(NarrowingError, match="^Python integer 300 does not fit int8"):
            make(300, "int8")


@pytest.mark.parametrize("array, text", [
    (lambda: pf.Array(1.5), "Array(1.5, dtype=float32, weak=True)"),
    (lambda: pf.Array(3), "Array(3, dtype=int32, weak=True)"),
    (lambda: pf.Array(True), "Array(True, dtype=bool)"),
    (lambda: pf.Array(np.float16([1, np.nan])), "Array([ 1., nan], dtype=float16)"),
    (lambda: pf.Array([[1], [2]]), "Array([[1],\n       [2]], dtype=int32)"),
    (lambda: pf.Array([]), "Array([], dtype=float32)"),
])
def test_printed(array, text):
    assert repr(array()) == str(array()) == f"{array()}" == text


def test_formatted():
    a = pf.Array(1.5)
    assert f"{a:.3f} {pf.Array([2]):04d} {pf.Array([1, 2]):>30}" == "1.500 0002     Array([1, 2], dtype=int32)"
    assert format(a, ".1f") == "1.5" and f"{pf.Array([[1.5]]):>5.1f}" == "  1.5"


def test_leaving_popfn():
    a = pf.Array([[1, 2], [3, 4]])
    assert a.tolist() == [[1, 2], [3, 4]] and pf.Array([7]).item() == 7 and type(pf.Array(7).item()) is int
    assert [int(r.sum()) for r in a] == [3, 7] and len(a) == 2
    assert float(pf.Array(1.5)) == 1.5 and int(pf.Array(-1.5)) == -1 and bool(pf.Array([[0]])) is False
    assert list(range(pf.Array(3))) == [0, 1, 2] and "abc"[pf.Array(1)] == "b"
    assert (a.shape, a.dtype, a.ndim, a.size, a.T.shape) == ((2, 2), np.int32, 2, 4, (2, 2))
    first, (third, fourth) = a
    assert first.tolist() == [1, 2] and int(third) == 3 and int(fourth) == 4
    assert 3 in a[1] and 5 not in a[1]
    assert np.stack([a, a]).shape == (2, 2, 2) and np.asarray([a, a]).dtype == np.int32


def test_reductions_of_numpy_on_arrays():
    """np.sum(x) asks x.sum(...) with NumPy's own arguments."""
    a = pf.Array([[1.0, 2.0], [3.0, 5.0]])
    for f in (np.sum, np.mean, np.prod, np.max, np.min, np.std, np.var, np.any, np.all, np.argmax):
        np.testing.assert_allclose(f(a), f(np.asarray(a)), rtol=1e-6)
        np.testing.assert_allclose(f(a, axis=0), f(np.asarray(a), axis=0), rtol=1e-6)


@pytest.mark.parametrize("bad, error, text", [
    (lambda a: bool(a), ShapeError, "bool(...), as in `if` or `and`, takes one element, got i32[3]"),
    (lambda a: 1 if a > 0 else 2, ShapeError, "bool(...), as in `if` or `and`, takes one element, got bool[3]"),
    (lambda a: float(a), ShapeError, "float(...) takes one element, got i32[3]"),
    (lambda a: int(a), ShapeError, "int(...) takes one element, got i32[3]"),
    (lambda a: a.item(), ShapeError, "x.item() takes one element, got i32[3]"),
    (lambda a: range(a), ShapeError, "an index of a Python sequence, or range(...), takes one element, got i32[3]"),
    (lambda a: range(a[0] * 1.0), TypeError, "only an integer scalar can be an index"),
    (lambda a: len(a[0]), TypeError, "len() of a scalar"),
    (lambda a: list(a[0]), TypeError, "iteration over a scalar"),
    (lambda a: operator.setitem(a, 0, 1), TypeError, "arrays are immutable: x[...] = value is not possible"),
    (lambda a: hash(a), TypeError, "unhashable type: "),
    (lambda a: {a}, TypeError, "unhashable type: "),
    (lambda a: operator.delitem(a, 0), (TypeError, AttributeError), ""),
    (lambda a: setattr(a, "name", 1), AttributeError, ""),
])
def test_what_no_array_does(bad, error, text):
    """The same on a concrete array and on a tracer."""
    for call in (lambda: bad(pf.Array([1, 2, 3])), lambda: pf.make_jaxpr(bad)(pf.spec(3, int))):
        with pytest.raises(error) as e:
            call()
        assert str(e.value).startswith(text)


# ---------------------------------------------------------------------------- operators
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
          operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, divmod]
OPERANDS = [np.float32([1, 2, 3]), np.float32(2), 2, 2.5, [1, 2, 3], (3.0, 2.0, 1.0), np.int32([3, 2, 1]),
            np.float64(3),
            pf.Array([2.0, 2.0, 2.0])]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("other", OPERANDS, ids=repr)
def test_operators_with_the_array_on_either_side(op, other):
    x = np.float32([3, 1, 2])
    plain = np.asarray(other, np.float32)
    for f, want in ((lambda a: op(a, other), op(x, plain)), (lambda a: op(other, a), op(plain, x))):
        got = f(pf.Array(x))
        if op is divmod:
            assert all(type(g) is pf.Array for g in got)
        else:
            assert type(got) is pf.Array
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(evaluated(f, x)), np.asarray(got))
        types = pf.make_jaxpr(f)(x).out_avals
        assert types == tuple(g.aval for g in (got if op is divmod else [got]))


def test_the_other_operators():
    x, m = pf.Array([-1.0, 2.0]), pf.Array([True, False])
    for f, want in [(lambda a: -a, [1, -2]), (lambda a: +a, [-1, 2]), (lambda a: abs(a), [1, 2]),
                    (lambda a: a ** 2, [1, 4]),
                    (lambda a: a @ a, 5), (lambda a: np.float32([1, 1]) @ a, 1), (lambda a: a @ [1, 2], 3),
                    (lambda a: 2 ** a, [0.5, 4]), (lambda a: a[::-1], [2, -1])]:
        assert f(x).tolist() == evaluated(f, x).tolist() == want
    for f, want in [(lambda a: ~a, [False, True]), (lambda a: a & True, [True, False]),
                    (lambda a: np.array([1, 1]) == a,
                    [True, False]), (lambda a: True | a, [True, True]),
                    (lambda a: np.array([True, True]) ^ a, [False, True])]:
        assert f(m).tolist() == evaluated(f, m).tolist() == want


def test_augmented_assignment_makes_a_new_array():
    def f(x):
        y = x
        y += 1
        y *= 2
        return x, y
    assert [v.tolist() for v in f(pf.Array([1, 2]))] == [[1, 2], [4, 6]]
    assert [v.tolist() for v in evaluated(f, np.int32([1, 2]))] == [[1, 2], [4, 6]]
