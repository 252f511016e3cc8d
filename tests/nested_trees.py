"""Programs of loops, branches and transforms inside each other, as trees that popfn and JAX both run.

A body is a list of nodes over numbered values: those of the bodies around it first, which it closes over, then its
parameters, then what its nodes give. A node names an operation, its operands (numbers of values, or Python numbers),
parameters and bodies. Trees print as the Python that makes them.

Trees are drawn by `nested_programs`. No comparison of floats is with a value that they are likely to have, so that
rounding decides nothing.
"""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np
from control_flow import bounded_while
from jax import lax

import popfn as pf
import popfn.numpy as pnp


class Num(NamedTuple):
    """A Python number as an operand."""

    value: Union[int, float]


class Node(NamedTuple):
    """One operation; a name of `OPERATIONS`."""

    op: str
    operands: Tuple[Any, ...] = ()
    params: Tuple[Any, ...] = ()
    bodies: Tuple[Any, ...] = ()


class Body(NamedTuple):
    """A function: what it computes, and the numbers of the values that it returns."""

    nodes: Tuple[Node, ...]
    outputs: Tuple[int, ...]


class Type(NamedTuple):
    """The type of a value."""

    shape: Tuple[int, ...]
    dtype: str = "float32"
    weak: bool = False


class Program(NamedTuple):
    """A body, the types of its parameters, and a seed for their values."""

    inputs: Tuple[Type, ...]
    body: Body
    seed: int = 0

    def arrays(self) -> List[np.ndarray]:
        """Values of the inputs."""
        random = np.random.RandomState(self.seed)
        return [np.asarray(random.randint(0, 5, t.shape) if t.dtype == "int32" else random.uniform(-1.5, 1.5, t.shape)
                           ).astype(t.dtype) for t in self.inputs]

    def nodes(self) -> List[Node]:
        """All nodes, those inside others included."""
        def of(body: Body) -> List[Node]:
            return [n for node in body.nodes for n in (node, *(m for b in node.bodies for m in of(b)))]
        return of(self.body)

    def uses(self, *ops: str) -> bool:
        """Whether one of these operations is in it."""
        return any(node.op in ops for node in self.nodes())

    @property
    def halves(self) -> bool:
        """Whether anything is rounded to float16."""
        return any(t.dtype == "float16" for t in self.inputs) or any("float16" in node.params for node in self.nodes())


# ---------------------------------------------------------------------------- running
class System(NamedTuple):
    """What runs a tree: array functions, and control flow with the transforms."""

    np: Any
    of: Any

    def run(self, body: Body, around: Sequence[Any], args: Sequence[Any]) -> Tuple[Any, ...]:
        """The outputs of a body for the values around it and its arguments."""
        env = [*around, *args]
        for node in body.nodes:
            xs = [x.value if isinstance(x, Num) else env[x] for x in node.operands]
            out = OPERATIONS[node.op](self, node, xs, env)
            env += out if isinstance(out, (list, tuple)) else (out,)
        return tuple(env[i] for i in body.outputs)

    def function(self, body: Body, around: Sequence[Any]) -> Callable[..., Any]:
        """A body as a function of its parameters."""
        return lambda *args: self.run(body, around, args)

    def loss(self, outputs: Sequence[Any]) -> Any:
        """A scalar to which each element of each float output contributes, with a weight of its own."""
        total = self.np.sum(self.np.zeros(1, dtype=np.float32))
        for i, y in enumerate(outputs):
            if is_float(y) and 0 not in y.shape:
                size = int(np.prod(y.shape))
                weights = np.cos(np.arange(size) + i).astype("f4").reshape(y.shape)
                total = total + self.np.sum(y.astype(np.float32) * weights) / size
        return total


def is_float(x: Any) -> bool:
    return str(x.dtype) in ("float16", "float32")


class Jax:
    """JAX's functions by popfn's names."""

    scan, cond, switch, map = lax.scan, lax.cond, lax.switch, lax.map
    while_loop = staticmethod(bounded_while)
    vmap, grad, jvp, vjp, jit, checkpoint = jax.vmap, jax.grad, jax.jvp, jax.vjp, jax.jit, jax.checkpoint
    custom_jvp, custom_vjp = jax.custom_jvp, jax.custom_vjp
    associative_scan = staticmethod(lax.associative_scan)

    @staticmethod
    def fori_loop(lower: Any, upper: Any, body: Any, init: Any, *, max_steps: Optional[int] = None) -> Any:
        """A loop that can be differentiated backwards whatever its bounds."""
        if max_steps is None:
            return lax.fori_loop(lower, upper, body, init)
        return bounded_while(lambda c: c[0] < upper, lambda c: (c[0] + 1, body(*c)), (jnp.asarray(lower), init),
                             max_steps)[1]


OURS = System(pnp, pf)
THEIRS = System(jnp, Jax)


# ---------------------------------------------------------------------------- what nodes mean
def scan(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> List[Any]:
    count, length, reverse = node.params
    body, = node.bodies

    def step(carry: Any, x: Any) -> Any:
        outs = s.run(body, env, [*carry, *(x or ())])
        return outs[:count], outs[count:]
    rows = tuple(x[:length] for x in xs[count:])
    carry, ys = s.of.scan(step, tuple(xs[:count]), rows or None, length=None if rows else length, reverse=reverse)
    return [*carry, *ys]


def map_(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    return s.of.map(lambda x: s.run(node.bodies[0], env, x), tuple(xs))


def fori_loop(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    """The first operand is the upper bound; the loop has a `max_steps` only where that is traced."""
    lower, most = node.params
    upper, *init = xs
    bound = {} if isinstance(upper, int) else {"max_steps": most}
    return s.of.fori_loop(lower, upper, lambda i, c: s.run(node.bodies[0], env, [i, *c]), tuple(init), **bound)


def while_loop(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    """It goes on while a counter is below the first operand, and the first float that it carries below a limit."""
    limit, *init = xs
    most, = node.params
    return s.of.while_loop(lambda c: s.np.logical_and(c[0] < limit, s.np.max(c[1]) < 0.8123),
                           lambda c: (c[0] + 1, *s.run(node.bodies[0], env, c)), (0, *init), most)


def cond(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    return s.of.cond(xs[0], *(s.function(b, env) for b in node.bodies), *xs[1:])


def switch(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    return s.of.switch(xs[0], [s.function(b, env) for b in node.bodies], *xs[1:])


def vmap(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    in_axes, out_axes = node.params
    return s.of.vmap(s.function(node.bodies[0], env), in_axes, out_axes)(*xs)


def jit(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    return s.of.jit(s.function(node.bodies[0], env))(*xs)


def checkpoint(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    return s.of.checkpoint(s.function(node.bodies[0], env))(*xs)


def grad(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    """The gradient of the loss of a body by all of its parameters."""
    f = s.function(node.bodies[0], env)
    return [s.np.tanh(g) for g in s.of.grad(lambda *args: s.loss(f(*args)), tuple(range(len(xs))))(*xs)]


def jvp(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    outs, touts = s.of.jvp(s.function(node.bodies[0], env), tuple(xs), tuple(s.np.cos(x) for x in xs))
    return [*outs, *map(s.np.tanh, touts)]


def vjp(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    outs, pull = s.of.vjp(s.function(node.bodies[0], env), *xs)
    return [*outs, *map(s.np.tanh, pull(tuple(s.np.cos(y) for y in outs)))]


def closed(s: System, node: Node, env: Sequence[Any]) -> Callable[..., Any]:
    """A body that closes over nothing as a function: rules may be run when all around has ended."""
    return s.function(node.bodies[0], [None] * len(env))


def custom_jvp(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    """A function whose derivative is `scale` times the true one."""
    scale, = node.params
    f = closed(s, node, env)
    wrapped = s.of.custom_jvp(f)

    def rule(primals: Any, tangents: Any) -> Any:
        outs, touts = s.of.jvp(f, primals, tangents)
        return outs, tuple(t * scale for t in touts)
    wrapped.defjvp(rule)
    return wrapped(*xs)


def custom_vjp(s: System, node: Node, xs: Sequence[Any], env: Sequence[Any]) -> Any:
    scale, = node.params
    f = closed(s, node, env)
    wrapped = s.of.custom_vjp(f)
    wrapped.defvjp(lambda *args: (f(*args), args),
                   lambda args, cts: tuple(ct * scale for ct in s.of.vjp(f, *args)[1](cts)))
    return wrapped(*xs)


def simple(f: Callable[..., Any]) -> Callable[..., Any]:
    """An operation on a system's array functions, its operands, then its parameters."""
    return lambda s, node, xs, env: f(s.np, *xs, *node.params)


def flat(n: Any, x: Any) -> Any:
    return n.reshape(x, (-1,))


def put(n: Any, x: Any, i: Any, y: Any) -> Any:
    return x.at[i % x.shape[0]].set(n.sum(y))


def add_at(n: Any, x: Any, y: Any) -> Any:
    return x.at[np.array([0, -1, 0])].add(n.sum(y))


UNARY: Dict[str, Callable[..., Any]] = dict(
    sin=lambda n, x: n.sin(x), cos=lambda n, x: n.cos(x), tanh=lambda n, x: n.tanh(x), bell=lambda n, x: n.exp(-x * x),
    root=lambda n, x: n.sqrt(x * x + 0.7), log=lambda n, x: n.log1p(x * x), inverse=lambda n, x: 1 / (1 + x * x),
    clip=lambda n, x: n.clip(x, -0.8123, 0.7234), below=lambda n, x: n.minimum(x, 0.3412),
    select=lambda n, x: n.where(x > 0.1371, n.sin(x), x * 0.5))
INT_UNARY: Dict[str, Callable[..., Any]] = dict(
    next=lambda n, x: (x + 1) % 5, twice=lambda n, x: x * 2 % 7, third=lambda n, x: (x + 4) // 3)
BINARY: Dict[str, Callable[..., Any]] = dict(
    add=lambda n, x, y: x + y, sub=lambda n, x, y: x - y, mul=lambda n, x, y: x * y,
    maximum=lambda n, x, y: n.maximum(x, y + 0.0137))
#: From a value with at least one axis.
MOVES: Dict[str, Callable[..., Any]] = dict(
    flip=lambda n, x: x[::-1], last=lambda n, x: x[-1], tail=lambda n, x: x[1:], stack=lambda n, x: n.stack([x, -x]),
    flat=flat, turned=lambda n, x: n.moveaxis(x, 0, -1), wider=lambda n, x: x[None], inner=lambda n, x: x[..., 0],
    cumsum=lambda n, x: n.cumsum(flat(n, x)), sort=lambda n, x: n.sort(x, axis=-1),
    doubled=lambda n, x: n.concatenate([x, x * 0.5], axis=0), max=lambda n, x: n.max(x, axis=0),
    taken=lambda n, x: x[np.array([0, -1])], sum=lambda n, x: n.sum(x, axis=-1), mean=lambda n, x: n.mean(x))
OPERATIONS: Dict[str, Callable[..., Any]] = {name: simple(f) for name, f in {
    **UNARY, **INT_UNARY, **BINARY, **MOVES}.items()}
OPERATIONS.update({name: simple(f) for name, f in dict(
    matmul=lambda n, x, y: n.matmul(x, y) / x.shape[-1], row=lambda n, x, i: x[i % x.shape[0]], put=put, add_at=add_at,
    choose=lambda n, c, x, y: n.where(c, x, y), even=lambda n, i: n.sum(i) % 2 == 0, few=lambda n, i: n.sum(i) < 3,
    positive=lambda n, x: n.sum(x) > 0.0123,
    broadcast=lambda n, x, shape: n.broadcast_to(x, shape), full=lambda n, shape, k: n.full(shape, k, dtype="int32"),
    modulo=lambda n, i, k: n.sum(i) % k,
).items()})
OPERATIONS["astype"] = lambda s, node, xs, env: s.np.asarray(xs[0]).astype(node.params[0])
OPERATIONS["sums"] = lambda s, node, xs, env: s.of.associative_scan(s.np.add, xs[0])
OPERATIONS.update(scan=scan, map=map_, fori_loop=fori_loop, while_loop=while_loop, cond=cond, switch=switch, vmap=vmap,
                  jit=jit, checkpoint=checkpoint, grad=grad, jvp=jvp, vjp=vjp, custom_jvp=custom_jvp,
                  custom_vjp=custom_vjp)
