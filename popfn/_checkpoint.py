"""checkpoint as a user meets it: functions whose backward pass computes again what the forward pass did not keep."""
from __future__ import annotations

from typing import Any, Tuple

from . import _tracing as tracing, numpy as pnp
from ._custom import run
from .api import Function, decorator, wraps
from .trace import tree
from .trace.errors import ArgumentError, message, user_source
from .trace.tracer import bind, current_trace
from .transforms.checkpoint import POLICIES, Checkpoint, CheckpointName, Policy


@decorator
def checkpoint(f: Function, policy: Policy = "nothing") -> Function:
    """`f`, of whose intermediate values reverse mode keeps few and computes the others again: memory for time.

    Its arguments are kept in any case. `policy` says what else is: "nothing", "everything" (as if f were not wrapped),
    "dots" (results of matrix products and convolutions), or `save_only_names(...)`. It looks into functions that f
    calls, but neither into loops and branches nor into what is wrapped by itself. Results and derivatives are those of
    f; where nothing is differentiated, nothing is computed twice.

    Raises ArgumentError for another policy.

    >>> import popfn as pf, popfn.numpy as pnp
    >>> pf.grad(pf.checkpoint(lambda x: pnp.exp(pnp.sin(x))))(0.0)
    Array(1., dtype=float32, weak=True)
    """
    names = isinstance(policy, tuple) and all(isinstance(name, str) for name in policy)
    if not names and not (isinstance(policy, str) and policy in POLICIES):
        raise ArgumentError(message(
            f"checkpoint: policy is one of {', '.join(map(repr, POLICIES))} or pf.save_only_names(...), got {policy!r}",
            at=user_source(3)))

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = tracing.arguments("checkpoint", f, args, kwargs, arrays=True)
        if current_trace() is None:
            return run(f, given)
        traced = tracing.trace(f, given, tracing.follows())
        return traced.outputs(bind(Checkpoint(traced.jaxpr, policy), [*traced.captures, *given.leaves]))
    return wrapper


remat = checkpoint  # JAX knows it under both names


def save_only_names(*names: str) -> Tuple[str, ...]:
    """The policy of `checkpoint` that keeps the values given one of these names by `checkpoint_name`.

    >>> save_only_names("attention", "hidden")
    ('attention', 'hidden')
    """
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(message(f"save_only_names takes names, got {name!r}", at=user_source(2)))
    return names


def checkpoint_name(x: Any, name: str) -> Any:
    """The same values, under a name by which a `checkpoint` policy keeps them; `x` may be a pytree.

    Raises ArgumentError for a name that is no string.

    >>> checkpoint_name(2.0, "two")
    Array(2., dtype=float32, weak=True)
    """
    if not isinstance(name, str):
        raise ArgumentError(message(f"checkpoint_name takes a name, got {name!r}", at=user_source(2)))
    return tree.map(lambda leaf: bind(CheckpointName(name), (pnp.asarray(leaf),)), x)
