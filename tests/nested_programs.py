"""What hypothesis draws: programs of loops, branches and transforms inside each other, as the trees of `nested_trees`.

Values stay tame: what an operation may give is estimated as the tree is drawn, and what a loop carries goes through
tanh.
"""
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
from hypothesis import strategies as st
from nested_trees import BINARY, INT_UNARY, MOVES, UNARY, Body, Node, Num, Program, Type

from popfn.trace.aval import promote_types

LARGEST = 4.0  # of values, as far as is known
SHAPES: List[Tuple[int, ...]] = [(), (2,), (3,), (2, 3), (3, 3), (3, 2)]


class Scope:
    """A body in the making: the types of all values that it sees, and their sizes."""

    def __init__(self, draw: Any, around: Optional["Scope"], params: Sequence[Type], sizes: Sequence[float], most: int,
                 alone: bool = False, forward: bool = True) -> None:
        self.draw = draw
        self.types = [*(around.types if around else ()), *params]
        self.sizes = [*(around.sizes if around else ()), *sizes]
        self.start = len(self.types) - len(params)  # the number of the first parameter
        self.first = self.start if alone else around.first if around else 0  # of the values that may be used
        self.nodes: List[Node] = []
        self.most = most  # bodies inside each other that are still allowed
        self.forward = forward  # whether the body may be pushed forward

    def pick(self, fits: Callable[[Type], bool], largest: float = LARGEST) -> int:
        """A value that fits, rather a late one. Raises LookupError if there is none."""
        some = [i for i in range(len(self.types) - 1, self.first - 1, -1)
                if 0 not in self.types[i].shape and self.sizes[i] <= largest and fits(self.types[i])]
        if not some:
            raise LookupError
        return int(self.draw(st.sampled_from(some[:4] + some[4:][-2:])))

    def add(self, op: str, operands: Sequence[Any], types: Sequence[Type], size: float = 1.0, params: Tuple = (),
            bodies: Tuple = ()) -> int:
        """Append a node; gives the number of its last result."""
        self.nodes.append(Node(op, tuple(operands), params, bodies))
        self.types += types
        self.sizes += [size] * len(types)
        return len(self.types) - 1

    def inner(self, params: Sequence[Type], alone: bool = False) -> "Scope":
        """The scope of a body inside."""
        return Scope(self.draw, self, params, [1.0] * len(params), self.most - 1, alone, self.forward)

    def halves(self) -> bool:
        """Whether there are values of float16, whose rounding may decide a comparison."""
        return any(t.dtype == "float16" for t in self.types)

    def fill(self, most: int = 3) -> "Scope":
        """Draw nodes."""
        for _ in range(self.draw(st.integers(1, most))):
            kinds = KINDS if self.most > 0 and self.first == 0 else SIMPLE
            try:
                self.draw(st.sampled_from(kinds))(self)
            except LookupError:
                elementwise(self)
        return self

    def last(self, fits: Callable[[Type], bool], count: int) -> Tuple[int, ...]:
        """The last values that fit, of its own where there are such."""
        own = [i for i in range(self.start, len(self.types)) if fits(self.types[i])]
        return tuple(own[-count:]) or (self.pick(fits, np.inf),)

    def body(self, outputs: Sequence[int]) -> Body:
        return Body(tuple(self.nodes), tuple(outputs))

    def size(self, outputs: Sequence[int]) -> float:
        return max([1.0, *(self.sizes[i] for i in outputs)])

    def made(self, want: Type) -> int:
        """A value of this type, not weak and no larger than 1."""
        if want.dtype == "int32":
            own = [i for i, t in enumerate(self.types) if i >= self.first and t == want]
            if own and self.draw(st.booleans()):
                return self.add(self.draw(st.sampled_from(sorted(INT_UNARY))), [own[-1]], [want])
            return self.add("full", [], [want], params=(want.shape, self.draw(st.integers(0, 4))))
        fitting = [i for i in range(self.start, len(self.types)) if self.types[i] == want]
        if fitting:
            return self.add("tanh", [fitting[-1]], [want])
        x = self.last(is_number, 1)[0] if self.draw(st.booleans()) else self.pick(is_float_type, np.inf)
        if not is_float_type(self.types[x]):
            x = self.pick(is_float_type, np.inf)
        x = self.add("mean", [x], [Type((), self.types[x].dtype, self.types[x].weak)], self.sizes[x])
        x = self.add("astype", [x], [Type((), want.dtype)], params=(want.dtype,))
        x = self.add("tanh", [x], [Type((), want.dtype)])
        return self.add("broadcast", [x], [want], params=(want.shape,)) if want.shape else x


def is_float_type(t: Type) -> bool:
    return t.dtype.startswith("float")


def is_number(t: Type) -> bool:
    return t.dtype != "bool"


def is_scalar_int(t: Type) -> bool:
    return t.dtype == "int32" and t.shape == ()


def joined(a: Type, b: Type) -> Type:
    dtype, weak = promote_types(np.dtype(a.dtype), a.weak, np.dtype(b.dtype), b.weak)
    return Type(np.broadcast_shapes(a.shape, b.shape), dtype.name, weak)


def broadcasts(a: Type, b: Type) -> bool:
    try:
        return len(np.broadcast_shapes(a.shape, b.shape)) <= 3
    except ValueError:
        return False


def elementwise(scope: Scope) -> None:
    x = scope.pick(is_number)
    t = scope.types[x]
    names = UNARY if is_float_type(t) else INT_UNARY
    scope.add(scope.draw(st.sampled_from(sorted(names))), [x], [t], 6.0 if t.dtype == "int32" else
              max(1.6, scope.sizes[x]))


def binary(scope: Scope) -> None:
    op = scope.draw(st.sampled_from(sorted(BINARY)))
    x = scope.pick(lambda t: is_float_type(t) or op != "maximum" and is_number(t), 2.0)
    t = scope.types[x]
    if scope.draw(st.integers(0, 2)):
        y = scope.pick(lambda u: is_number(u) and broadcasts(t, u), 2.0)
        scope.add(op, [x, y], [joined(t, scope.types[y])], max(4.0 if t.dtype == "int32" else 0.0,
                  scope.sizes[x] * scope.sizes[y], scope.sizes[x] + scope.sizes[y]))
        return
    value = scope.draw(st.sampled_from([0.5, -1.25, 2, 1]))
    scope.add(op, [x, Num(value)], [joined(t, Type((), "float32" if isinstance(value, float) else "int32", True))],
              2 * scope.sizes[x] + 2)


def move(scope: Scope) -> None:
    op = scope.draw(st.sampled_from(sorted(MOVES)))
    x = scope.pick(lambda t: is_float_type(t) and t.shape != () and np.prod(t.shape) <= 24)
    t = scope.types[x]
    shape = np.zeros(t.shape)
    new = tuple(MOVES[op](np, shape).shape)
    grows = dict(cumsum=np.prod(t.shape), sum=t.shape[-1])
    scope.add(op, [x], [t._replace(shape=new)], float(scope.sizes[x] * grows.get(op, 1)))


def several(scope: Scope) -> None:
    """Operations on several values with axes."""
    op = scope.draw(st.sampled_from(["matmul", "row", "put", "add_at", "choose", "sums"]))
    x = scope.pick(lambda t: is_float_type(t) and 1 <= len(t.shape) <= 2)
    t, size = scope.types[x], scope.sizes[x]
    strong = t._replace(weak=False)
    if op == "matmul":
        y = scope.pick(lambda u: is_float_type(u) and 1 <= len(u.shape) <= 2 and u.shape[0] == t.shape[-1], 2.0)
        u = scope.types[y]
        scope.add(op, [x, y], [joined(t._replace(shape=()), u._replace(shape=()))._replace(
            shape=t.shape[:-1] + u.shape[1:])], size * scope.sizes[y])
    elif op == "row":
        scope.add(op, [x, scope.pick(is_scalar_int)], [t._replace(shape=t.shape[1:])], size)
    elif op == "put":
        scope.add(op, [x, scope.pick(is_scalar_int), scope.pick(lambda u: u.dtype == t.dtype, 1.0)], [t], size + 9)
    elif op == "add_at":
        scope.add(op, [x, scope.pick(lambda u: u.dtype == t.dtype, 1.0)], [t], size + 18)
    elif op == "choose":
        y = scope.pick(lambda u: u.dtype == t.dtype and broadcasts(t, u))
        scope.add(op, [truth(scope), x, y], [joined(t, scope.types[y])], max(size, scope.sizes[y]))
    else:
        scope.add(op, [x], [strong if t == strong else t], size * t.shape[0])


def truth(scope: Scope) -> int:
    """A bool scalar."""
    if scope.halves() or scope.draw(st.booleans()):
        try:
            return scope.add(scope.draw(st.sampled_from(["even", "few"])), [scope.pick(lambda t: t.dtype == "int32")],
                             [Type((), "bool")])
        except LookupError:
            return scope.add("few", [scope.add("full", [], [Type((), "int32")], params=((), 2))], [Type((), "bool")])
    return scope.add("positive", [scope.pick(is_float_type)], [Type((), "bool")])


def integer(scope: Scope, below: int) -> int:
    """An int scalar from 0 on."""
    try:
        return scope.add("modulo", [scope.pick(lambda t: t.dtype == "int32")], [Type((), "int32")], params=(below,))
    except LookupError:
        return scope.add("full", [], [Type((), "int32")], params=((), scope.draw(st.integers(0, below - 1))))


def carries(scope: Scope) -> Tuple[List[Any], List[Type]]:
    """What a loop carries at first, a float before all else, and with what types."""
    operands: List[Any] = []
    types: List[Type] = []
    numbers = not scope.halves()  # their type while the body is traced first differs from float32 only beside float16
    for i in range(scope.draw(st.integers(1, 2))):
        if numbers and scope.draw(st.integers(0, 3)) == 0:
            operands.append(Num(0.25))
            types.append(Type(()))
            continue
        x = scope.pick(is_float_type if i == 0 else is_number, 1.6)
        operands.append(x)
        types.append(scope.types[x]._replace(weak=False))
    return operands, types


def loop(scope: Scope) -> None:
    op = scope.draw(st.sampled_from(["scan", "scan", "fori_loop", "while_loop"]))
    init, types = carries(scope)
    rows: List[int] = []
    if op == "scan" and scope.draw(st.booleans()):
        rows.append(scope.pick(lambda t: t.shape != () and is_number(t)))
        n = scope.types[rows[0]].shape[0]
        length = n if scope.draw(st.integers(0, 3)) else scope.draw(st.integers(0, n))
        xs = [scope.types[rows[0]]._replace(shape=scope.types[rows[0]].shape[1:])]
    else:
        length, xs = scope.draw(st.integers(0, 4)), []
    limit: Any = None
    if op != "scan":
        limit = Num(length) if op == "fori_loop" and scope.draw(st.booleans()) else integer(scope, 5)
    body = scope.inner([*([] if op == "scan" else [Type((), "int32", True)]), *types, *xs]).fill()
    news = [body.made(t) for t in types]
    ys = list(body.last(is_number, 1)) if op == "scan" and scope.draw(st.booleans()) else []
    made = body.body([*news, *ys])
    if op == "scan":
        stacked = [body.types[y]._replace(shape=(length, *body.types[y].shape)) for y in ys]
        scope.add(op, [*init, *rows], [*types, *stacked], body.size(ys),
                  (len(types), length, scope.draw(st.booleans())), (made,))
    elif op == "fori_loop":
        scope.add(op, [limit, *init], types, 1.6, (scope.draw(st.sampled_from([0, 1, -1])), 4), (made,))
    else:
        scope.add(op, [limit, *init], [Type((), "int32", True), *types], 4.0,
                  (scope.draw(st.integers(1, 3)),), (made,))


def mapped(scope: Scope) -> None:
    """vmap or map."""
    op = scope.draw(st.sampled_from(["vmap", "vmap", "map"]))
    x = scope.pick(lambda t: t.shape != () and is_number(t))
    in_axes: List[Optional[int]] = [0 if op == "map" else scope.draw(st.integers(0, len(scope.types[x].shape) - 1))]
    n = scope.types[x].shape[in_axes[0] or 0]
    operands = [x]
    if op == "vmap" and scope.draw(st.booleans()):
        y = scope.pick(is_number)
        fitting = [i for i, m in enumerate(scope.types[y].shape) if m == n]
        operands.append(y)
        in_axes.append(scope.draw(st.sampled_from([None, *fitting])))
    params = [t if a is None else t._replace(shape=t.shape[:a] + t.shape[a + 1:])
              for t, a in zip((scope.types[i] for i in operands), in_axes)]
    body = scope.inner(params).fill()
    outs = body.last(lambda t: is_number(t) and len(t.shape) < 3, scope.draw(st.integers(1, 2)))
    if op == "map":
        scope.add(op, operands, [body.types[i]._replace(shape=(n, *body.types[i].shape)) for i in outs],
                  body.size(outs), (), (body.body(outs),))
        return
    out_axes = tuple(scope.draw(st.integers(0, len(body.types[i].shape))) for i in outs)
    types = [body.types[i]._replace(shape=body.types[i].shape[:a] + (n,) + body.types[i].shape[a:])
             for i, a in zip(outs, out_axes)]
    scope.add(op, operands, types, body.size(outs), (tuple(in_axes), out_axes), (body.body(outs),))


def branch(scope: Scope) -> None:
    op = scope.draw(st.sampled_from(["cond", "switch"]))
    first = truth(scope) if op == "cond" else integer(scope, 4)
    operands = [scope.pick(is_number) for _ in range(scope.draw(st.integers(0, 2)))]
    params = [scope.types[i] for i in operands]
    bodies, types = [], []
    for i in range(2 if op == "cond" else scope.draw(st.integers(1, 3))):
        body = scope.inner(params).fill(2)
        if i == 0:
            outs = body.last(is_number, scope.draw(st.integers(1, 2)))
            types = [body.types[j]._replace(weak=False) for j in outs]
        outs = tuple(body.made(t) for t in types)
        bodies.append(body.body(outs))
    scope.add(op, [first, *operands], types, 6.0 if any(t.dtype == "int32" for t in types) else 1.6, (), tuple(bodies))


def called(scope: Scope) -> None:
    op = scope.draw(st.sampled_from(["jit", "checkpoint"]))
    operands = [scope.pick(is_number) for _ in range(scope.draw(st.integers(1, 2)))]
    body = scope.inner([scope.types[i] for i in operands]).fill()
    outs = body.last(is_number, scope.draw(st.integers(1, 2)))
    scope.add(op, operands, [body.types[i] for i in outs], body.size(outs), (), (body.body(outs),))


def derivative(scope: Scope) -> None:
    op = scope.draw(st.sampled_from(["grad", "vjp", *["jvp"] * scope.forward]))
    operands = [scope.pick(is_float_type) for _ in range(scope.draw(st.integers(1, 2)))]
    params = [scope.types[i] for i in operands]
    body = scope.inner(params).fill()
    outs = body.last(is_float_type, scope.draw(st.integers(1, 2)))
    types = [body.types[i] for i in outs]
    of = params if op == "grad" else [*types, *(types if op == "jvp" else params)]
    scope.add(op, operands, of, 1.0 if op == "grad" else body.size(outs), (), (body.body(outs),))


def custom(scope: Scope) -> None:
    op = "custom_jvp" if scope.forward else "custom_vjp"
    operands = [scope.pick(lambda t: is_float_type(t) and not t.weak) for _ in range(scope.draw(st.integers(1, 2)))]
    params = [scope.types[i] for i in operands]
    body = scope.inner(params, alone=True).fill()
    outs = body.last(is_float_type, 1)
    scope.add(op, operands, [body.types[i] for i in outs], body.size(outs),
              (scope.draw(st.sampled_from([1.0, 0.75])),), (body.body(outs),))


SIMPLE: List[Callable[[Scope], None]] = [elementwise, elementwise, binary, binary, move, several]
KINDS = [elementwise, binary, move, several, loop, loop, loop, mapped, branch, branch, called, derivative, custom]


@st.composite
def nested_programs(draw: Any, depth: int = 3) -> Program:
    """A program with bodies inside each other up to `depth`: one or two float32 inputs, an integer, now and then
    float16. One half may use custom_jvp and jvp, the other custom_vjp, which has no forward mode."""
    types = [Type(draw(st.sampled_from(SHAPES))) for _ in range(draw(st.integers(1, 2)))]
    types += [Type(draw(st.sampled_from([(), (2,)])), "int32")]
    if draw(st.integers(0, 5)) == 0:
        types.append(Type(draw(st.sampled_from(SHAPES)), "float16"))
    scope = Scope(draw, None, types, [4.0 if t.dtype == "int32" else 1.5 for t in types], depth,
                  forward=draw(st.booleans()))
    scope.fill(4)
    made = range(len(types), len(scope.types))
    return Program(tuple(types), scope.body(list(made)[-3:]), draw(st.integers(0, 99)))
