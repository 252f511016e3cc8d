"""Write docs/primitives.md: every primitive, its rules, and why a rule is missing.

    python docs/primitives.py

A rule is found in the primitive's own class or in one of the kinds that it is of. A method that does nothing but raise
an error is no rule. Where the code does not tell the reason of a hole, REASONS does.
"""
import ast
import functools
import inspect
import textwrap
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Type

import popfn
from popfn.trace.parse import primitives
from popfn.trace.primitive import Primitive, primitive_name
from popfn.trace.prims.collectives import Collective
from popfn.trace.prims.kinds import Elementwise

PAGE = Path(__file__).with_suffix(".md")
RULES = ("abstract", "eval", "jvp", "linearize", "transpose", "batch", "lower")

#: Why a primitive has no such rule, where that is not seen in the code.
REASONS: Dict[Tuple[str, str], str] = {
    **{(name, "jvp"): "keys are integers" for name in ("child_key", "random_normal", "random_uniform", "split_key")},
    ("argmax", "jvp"): "indices are integers",
    ("checkpoint_name", "transpose"): "its tangent has no name",
    ("custom_call", "jvp"): "the user's rule is a custom_jvp or custom_vjp around it",
    ("custom_jvp", "transpose"): "the rule's program stands in its place",
    ("custom_vjp", "jvp"): "its rule is for reverse mode",
    ("custom_vjp", "transpose"): "its pullback is transposed",
    ("print", "transpose"): "no results",
    ("pullback", "eval"): "only its transpose is known",
    ("pullback", "jvp"): "only its transpose is known",
    ("pullback", "lower"): "only its transpose is known",
    ("remote_read", "lower"): "lower.build knows the buffer",
    ("remote_write", "lower"): "lower.build knows the buffer",
    ("shard", "lower"): "lower.replicas puts its program in its place",
    ("stop_gradient", "transpose"): "its tangent is zero",
    ("while", "transpose"): "its number of steps is not known; with max_steps it is a scan",
}

HEAD = """# Primitives and their rules

`python docs/primitives.py` writes this page. *own*: the rule stands in the primitive's class; a name: in that kind's,
which many share; *jvp*: that rule serves. In parentheses: why there is no rule. Reverse mode has none of its own: it is
`linearize`, then `transpose`. The rules are described in popfn/trace/primitive.py.
"""


def listed() -> List[Type[Primitive]]:
    """popfn's primitives by module and name, without the kinds, of which others are made."""
    found = [c for c in primitives().values() if c.__module__.startswith("popfn.") and not c.__subclasses__()]
    return sorted(found, key=lambda c: (c.__module__, primitive_name(c)))


def home(cls: Type[Primitive], rule: str) -> type:
    """The class that a method comes from."""
    return next(c for c in cls.__mro__ if rule in vars(c))


def raises_only(cls: Type[Primitive], method: str) -> bool:
    """Whether a method does nothing but raise an error."""
    return only_raise(vars(home(cls, method))[method])


@functools.lru_cache(maxsize=None)
def only_raise(function: Any) -> bool:
    """Whether the body of a function is one raise statement."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body  # type: ignore[attr-defined]
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def is_hole(cls: Type[Primitive], rule: str) -> bool:
    """Whether a primitive has no such rule."""
    if rule == "linearize" and home(cls, rule) is Primitive:
        return is_hole(cls, "jvp")
    if rule == "jvp" and home(cls, rule) is Elementwise:  # it needs the slopes
        return raises_only(cls, "slopes")
    return raises_only(cls, rule)


def seen_reason(cls: Type[Primitive], rule: str) -> Optional[str]:
    """Why a primitive has no such rule, as far as the code tells."""
    if rule in ("eval", "lower") and issubclass(cls, Collective):
        return "no lanes without vmap"
    takes_nothing = len(inspect.signature(cls.abstract).parameters) == 1
    if rule in ("jvp", "linearize", "batch") and takes_nothing:
        return "no operands"
    if rule in ("jvp", "transpose") and issubclass(cls, Elementwise):
        if cls.result is not None or not {*cls.takes} & {*"f8"}:
            return "integers" if cls.result is None else "bools"
    if rule == "transpose" and not is_hole(cls, "jvp"):
        return "not linear"
    return None


def reason(cls: Type[Primitive], rule: str) -> Optional[str]:
    """Why a primitive has no such rule; None if nobody says."""
    # What has no jvp is in no program of tangents, so that it is neither linearized nor transposed.
    rules = [rule, "jvp"] if rule in ("linearize", "transpose") and is_hole(cls, "jvp") else [rule]
    for r in rules:
        found = REASONS.get((primitive_name(cls), r)) or seen_reason(cls, r)
        if found:
            return found
    return None


def cell(cls: Type[Primitive], rule: str) -> str:
    """What the table says of a rule."""
    if is_hole(cls, rule):
        return f"({reason(cls, rule)})"
    where = home(cls, rule)
    return "jvp" if where is Primitive else "own" if where is cls else where.__name__


def first_sentence(thing: Any) -> str:
    """The docstring's first line, fit for a table."""
    return inspect.getdoc(thing).splitlines()[0].replace("|", "\\|")  # type: ignore[union-attr]


def page() -> str:
    """The page's text."""
    lines = [HEAD]
    everything = listed()
    modules = sorted({c.__module__ for c in everything}, key=lambda m: (not m.startswith("popfn.trace"), m))
    for module in modules:
        found = [c for c in everything if c.__module__ == module]
        lines += [f"## {module.replace('.', '/')}.py", "", first_sentence(inspect.getmodule(found[0])), "",
                  f"| primitive | | {' | '.join(RULES)} |", "|---" * (len(RULES) + 2) + "|"]
        lines += [" | ".join([f"| `{primitive_name(c)}`", first_sentence(c), *(cell(c, rule) for rule in RULES)]) + " |"
                  for c in found]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(listed())} primitives of popfn {popfn.__version__}")
