"""Programs that the tests of lowering share: a function, the types of its arguments, and which of them are state."""
import numpy as np
from cases import CASES

from popfn import _tracing as tracing
from popfn.lower.program import build_program
from popfn.trace import prims, tree
from popfn.trace.aval import FLOAT8, Aval
from popfn.trace.jaxpr import Eqn, Jaxpr, Var
from popfn.trace.primitive import result_avals
from popfn.trace.tracer import bind, literal
from popfn.transforms.call import Call
from popfn.transforms.replay import inline

f32, f16, i32, boolean = np.float32, np.float16, np.int32, np.bool_
rng = np.random.default_rng(0)
EDGES = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-45, 3.4028235e38, 0.1], f32)
LARGE = rng.normal(size=(20, 5)).astype(f32)
HALVES = np.array([0.1, -0.0, 65504.0, np.inf], f16)
MASK = np.array([True, False, True])


def s(*shape, dtype=f32):
    return Aval(shape, dtype)


def jaxpr_of(f, *specs):
    return tracing.trace(f, tracing.arguments("lower", f, specs, {})).jaxpr


def lower(f, *specs, state=(), target="host", name="", names=None):
    """What pf.lower does, without its conveniences."""
    traced = tracing.trace(f, tracing.arguments("lower", f, specs, {}))
    names = names or tracing.argument_names(f, specs, {})
    arguments = [(n, tree.structure(a)) for n, a in zip(names, specs)]
    return build_program(traced.jaxpr, arguments, state, traced.out_tree, target, name)


def data(aval, seed=0):
    """Random data of a type; integers are small and not 0."""
    r = np.random.default_rng(seed)
    if aval.dtype == np.bool_:
        return r.random(aval.shape) < 0.5
    if aval.dtype.kind in "iu":
        return r.integers(1, 5, aval.shape).astype(aval.dtype)
    return r.normal(size=aval.shape).astype(aval.dtype)


def call(jaxpr, *args):
    """A jaxpr as a sub-graph."""
    out = bind(Call(jaxpr), args)
    return out[0] if len(out) == 1 else out


def dense(x, w, b):
    return prims.gelu(prims.add(prims.dot_general(x, w, (1,), (0,)), b))


DENSE = jaxpr_of(dense, s(4, 3), s(3, 3), s(3))


def two_layers(x, w, b):
    return call(DENSE, call(DENSE, x, w, b), w, b)


TWO_LAYERS = jaxpr_of(two_layers, s(4, 3), s(3, 3), s(3))


def sgd(params, x, y):
    """Two layers, their gradient by hand, and the state written back."""
    h = prims.tanh(prims.dot_general(x, params["w"], (1,), (0,)))
    error = prims.sub(prims.dot_general(h, params["v"], (1,), (0,)), y)
    dv = prims.dot_general(h, error, (0,), (0,))
    dh = prims.mul(prims.dot_general(error, params["v"], (1,), (1,)), prims.sub(literal(1.0, s()), prims.mul(h, h)))
    dw = prims.dot_general(x, dh, (0,), (0,))
    rate = literal(0.1, s())
    new = {"w": prims.sub(params["w"], prims.mul(dw, rate)), "v": prims.sub(params["v"], prims.mul(dv, rate))}
    return new, prims.sum_over(prims.mul(error, error), (0, 1))


def chain(x, y):
    z = prims.sub(prims.mul(x, y), prims.neg(prims.div(x, prims.add(y, x))))
    return prims.sub(z, prims.sub(x, prims.mul(literal(2.0, s()), z)))


def integers(x, y):
    square = prims.convert(prims.mul(x, x), np.dtype(f32))
    return prims.floor_divide(x, y), prims.remainder(x, y), prims.lt(x, y), square


def logic(p, q, x):
    return prims.select(prims.and_(p, prims.not_(q)), x, prims.neg(x)), prims.or_(p, q)


def constants(x):
    sums = prims.add(x, EDGES), prims.add(x, literal(-0.0, s())), prims.mul(x, literal(np.inf, s()))
    return sums, prims.sum_over(LARGE, (0,)), HALVES, prims.not_(MASK), prims.iota(np.dtype(i32), (6,), 0)


def calls(x, params):
    y = call(TWO_LAYERS, x, params[0], params[1])
    return call(DENSE, y, params[0], params[1]), prims.sum_over(y, (0, 1))


def swap(a, b, x):
    return b, a, prims.add(prims.add(a, b), x)


def rotate(state, x):
    a, b, c = state
    return [b, c, prims.add(a, x)], (a, c)


def passing(kept, read, unused, x):
    return kept, read, prims.mul(read, x)


def same_outputs(x, y):
    z = prims.exp(x)
    return {"x": x, "z": z, "again": z, "one": literal(1.0, s()), "table": LARGE, "none": None}


def empties(x, e, k):
    joined = prims.concat([x, prims.reshape(e, (0,)), x], 0)
    product = prims.dot_general(prims.reshape(e, (2, 0)), prims.reshape(k, (0, 3)), (1,), (0,))
    padded = prims.pad(prims.reshape(e, (0,)), literal(7.0, s()), (1,), (2,), (0,))
    return joined, product, padded, prims.exp(e), prims.sum_over(e, (0, 1)), prims.prod_over(k, (0,))


def empty_calls(x, e):
    inner = jaxpr_of(lambda x, e: (prims.sum_over(e, (0,)), prims.exp(e), prims.neg(x)), s(3), s(0))
    return call(inner, x, e)


def halves(x):
    return prims.softmax(x, 1), prims.sum_over(x, (0,)), prims.expm1(x), prims.mul(x, literal(0.1, s(dtype=f16)))


def moves(x, i):
    return (prims.transpose(x, (1, 0)), prims.slice_(x, (0, 1), (3, 4), (2, 1)), prims.reverse(x, (1,)),
            prims.broadcast_to(prims.reshape(x, (1, 3, 4)), (2, 3, 4)), prims.take(x, i, 0))


def reductions(x):
    return prims.max_over(x, (0,)), prims.min_over(x, (1,)), prims.prod_over(x, (0, 1)), prims.argmax(x, 1)


def curves(x):
    return prims.erf(x), prims.log1p(prims.abs_(x)), prims.rsqrt(prims.exp(x)), prims.relu(x), prims.integer_pow(x, 3)


def nothing(x):
    return prims.exp(x)


#: name -> function, types of the arguments, numbers of the arguments that are state
PROGRAMS = {
    "sgd": (sgd, [{"w": s(3, 5), "v": s(5, 2)}, s(4, 3), s(4, 2)], (0,)),
    "chain": (chain, [s(3, 2), s(2)], ()),
    "integers": (integers, [s(4, dtype=i32), s(4, dtype=i32)], ()),
    "logic": (logic, [s(3, dtype=boolean), s(3, dtype=boolean), s(3)], ()),
    "constants": (constants, [s(8)], ()),
    "calls": (calls, [s(4, 3), (s(3, 3), s(3))], ()),
    "swap": (swap, [s(2), s(2), s(2)], (0, 1)),
    "rotate": (rotate, [[s(2)] * 3, s(2)], (0,)),
    "passing": (passing, [s(2), s(3), s(4), s(3)], (0, 1)),
    "same_outputs": (same_outputs, [s(2), s(3)], ()),
    "empties": (empties, [s(3), s(2, 0), s(0, 3)], ()),
    "empty_calls": (empty_calls, [s(3), s(0)], ()),
    "halves": (halves, [s(2, 3, dtype=f16)], ()),
    "moves": (moves, [s(3, 4), s(2, dtype=i32)], ()),
    "reductions": (reductions, [s(3, 4)], ()),
    "curves": (curves, [s(5)], ()),
    "nothing": (nothing, [s(0, 2)], ()),
}


def program(case, **options):
    """A program of the table, and its arguments and state as data."""
    f, specs, state = PROGRAMS[case]
    made = lower(f, *specs, state=state, name=case, **options)
    values = [tree.map(lambda a, n=n: data(a, n), spec) for n, spec in enumerate(specs)]
    given = [v for i, v in enumerate(values) if i not in state]
    kept = [values[i] for i in state]
    return made, given, None if not kept else kept[0] if len(kept) == 1 else tuple(kept)


def expected(made, given, state):
    """What the jaxpr's eval gives: the new state's leaves and the result's."""
    out = made.jaxpr.eval(*arguments(made, given, state))
    k = len(made.state_leaves)
    return list(out[:k]), list(out[k:])


def arguments(made, given, state):
    """The leaves of all arguments, in the order of the jaxpr's inputs."""
    kept = [] if state is None else [state] if len(made.state) == 1 else list(state)
    rest = iter(given)
    return tree.leaves([kept[made.state.index(i)] if i in made.state else next(rest)
                        for i in range(len(made.arguments))])


def equal(got, want):
    """Assert that arrays agree: in type, in special values and the sign of zeros, closely in other floats."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64),
                               rtol=1e-3 if got.dtype == f16 else 2e-6, atol=1e-3 if got.dtype == f16 else 1e-6)


# ---------------------------------------------------------------------------- the table of rules as programs
#: The host does not convert to and from float8 yet.
TABLE = [c for c in CASES if not any(a.dtype in FLOAT8 for a in (*c.avals, *result_avals(c.primitive, c.avals)))]


def table_program(case):
    """A program of one equation."""
    inputs = [Var(a) for a in case.avals]
    outputs = [Var(a) for a in result_avals(case.primitive, case.avals)]
    jaxpr = Jaxpr(inputs, outputs, [Eqn(case.primitive, tuple(inputs), tuple(outputs))])
    names = [f"x{i}" for i in range(len(inputs))]
    return lower(lambda *xs: tuple(inline(jaxpr, xs)), *case.avals, names=names, name=case.primitive.name)
