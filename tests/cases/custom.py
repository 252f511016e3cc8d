"""Rows of the primitives that hold a user's functions and rules: custom derivatives, checkpoints, operations."""
from typing import Any, Sequence

import numpy as np
from references import REFERENCES, evaluate

import popfn as pf
from popfn._custom_call import Form
from popfn.trace import tree
from popfn.trace.parse import parse_jaxpr

from .table import P, row

REFERENCES.update({
    "custom_jvp": lambda p, *xs: evaluate(p.jaxpr, xs),
    "custom_vjp": lambda p, *xs: evaluate(p.jaxpr, xs),
    "checkpoint": lambda p, *xs: evaluate(p.jaxpr, xs),
    "checkpoint_name": lambda p, x: x,
    "custom_call": lambda p, *xs: WIDE[p.operation.f.__name__](*xs),
})

# ---------------------------------------------------------------------------- checkpoints
BODIES = {name: parse_jaxpr(text) for name, text in dict(
    mlp="{ lambda ; x:f32[2,3] w:f32[3,2] . let h:f32[2,2] = dot_general[x_contract=(1,) y_contract=(0,)] x w "
        "a:f32[2,2] = tanh h n:f32[2,2] = checkpoint_name[label='n'] a s:f32[2,2] = sin n in (s, n) }",
    half="{ lambda ; x:f16[3] . let s:f16[3] = sin x t:f16[3] = exp s in (t,) }",
    mixed="{ lambda ; x:f32[3] i:i32[2] . let y:f32[3] = exp x t:f32[2] = take[axis=0] y i n:i32[] = sum[axes=(0,)] i "
          "in (t, n, x) }",
    plain="{ lambda ; x:f32[2] . let in (x, 1.5:f32[]) }").items()}
for policy in ("nothing", "everything", "dots", ("n",), ()):
    row(P.Checkpoint(BODIES["mlp"], policy), "f32[2,3]", "f32[3,2]")
    row(P.Checkpoint(BODIES["half"], policy), "f16[3]")
row(P.Checkpoint(BODIES["mixed"]), "f32[3] 0:1", np.array([2, 0], np.int32))
row(P.Checkpoint(BODIES["plain"]), "f32[2]")
for kind in ("f32[2,3]", "f16[3]", "i32[2]", "~f32[]", "bool[2]", "f32[0,2]"):
    row(P.CheckpointName("a b"), kind)

# ---------------------------------------------------------------------------- custom rules
SIN = "{ lambda ; x:f32[3] . let y:f32[3] = sin x in (y,) }"
SIN_JVP = "{ lambda ; x:f32[3] t:f32[3] . let y:f32[3] = sin x c:f32[3] = cos x d:f32[3] = safe_mul c t in (y, d) }"
SCALED = "{ lambda ; x:f32[2,2] c:f32[] i:i32[2] . let y:f32[2,2] = mul x c s:f32[2,2] = tanh y in (s, i, y) }"
SCALED_JVP = ("{ lambda ; x:f32[2,2] c:f32[] i:i32[2] t:f32[2,2] u:f32[] . let y:f32[2,2] = mul x c "
              "s:f32[2,2] = tanh y a:f32[2,2] = safe_mul c t b:f32[2,2] = safe_mul x u d:f32[2,2] = add a b "
              "q:f32[2,2] = mul s s r:f32[2,2] = sub 1.0:f32[] q e:f32[2,2] = safe_mul r d in (s, i, y, e, d) }")
HALF = "{ lambda ; x:f16[3] . let y:f16[3] = exp x in (y,) }"
HALF_JVP = "{ lambda ; x:f16[3] t:f16[3] . let y:f16[3] = exp x d:f16[3] = safe_mul y t in (y, d) }"
CALLED_JVP = (f"{{ lambda ; x:f32[3] t:f32[3] . let y:f32[3] d:f32[3] = call[jaxpr={SIN_JVP}] x t in (y, d) }}")
row(P.CustomJvp(parse_jaxpr(SIN), parse_jaxpr(SIN_JVP)), "f32[3]")
row(P.CustomJvp(parse_jaxpr(SIN), parse_jaxpr(CALLED_JVP)), "f32[3]")
row(P.CustomJvp(parse_jaxpr(SCALED), parse_jaxpr(SCALED_JVP)), "f32[2,2]", "f32[]", np.array([3, -4], np.int32))
row(P.CustomJvp(parse_jaxpr(HALF), parse_jaxpr(HALF_JVP)), "f16[3]")

SIN_FWD = "{ lambda ; x:f32[3] . let y:f32[3] = sin x c:f32[3] = cos x in (y, c) }"
SIN_BWD = "{ lambda ; c:f32[3] t:f32[3] . let d:f32[3] = safe_mul c t in (d,) }"
SCALED_FWD = ("{ lambda ; x:f32[2,2] c:f32[] i:i32[2] . let y:f32[2,2] = mul x c s:f32[2,2] = tanh y "
              "in (s, i, y, s, x, c) }")
SCALED_BWD = ("{ lambda ; s:f32[2,2] x:f32[2,2] c:f32[] g:f32[2,2] h:f32[2,2] . let q:f32[2,2] = mul s s "
              "r:f32[2,2] = sub 1.0:f32[] q e:f32[2,2] = safe_mul r g d:f32[2,2] = add e h a:f32[2,2] = safe_mul c d "
              "b:f32[2,2] = safe_mul x d t:f32[] = sum[axes=(0, 1)] b in (a, t) }")
HALF_BWD = "{ lambda ; c:f16[3] t:f16[3] . let d:f16[3] = safe_mul c t in (d,) }"
HALF_FWD = "{ lambda ; x:f16[3] . let y:f16[3] = exp x in (y, y) }"
VJPS = [P.CustomVjp(*map(parse_jaxpr, texts)) for texts in (
    (SIN, SIN_FWD, SIN_BWD), (SCALED, SCALED_FWD, SCALED_BWD), (HALF, HALF_FWD, HALF_BWD))]
# The table's checks of derivatives begin with forward mode, which these do not have: test_custom.py.
row(VJPS[0], "f32[3]", kind="values")
row(VJPS[1], "f32[2,2]", "f32[]", np.array([3, -4], np.int32), kind="values")
row(VJPS[2], "f16[3]", kind="values")


# ---------------------------------------------------------------------------- a user's operations
def sinc(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sinc(x), x.dtype)


def divided(pair: Sequence[np.ndarray], by: np.ndarray) -> Any:
    return {"quotient": pair[0] // by, "rest": pair[0] - pair[1] * by}


def total(x: np.ndarray) -> np.ndarray:
    return np.sum(x, dtype=x.dtype)


WIDE = {
    "sinc": lambda x: [np.where(x == 0, 1.0, np.sin(np.pi * x) / (np.pi * np.where(x == 0, 1.0, x)))],
    "divided": lambda x, y, by: [np.floor(x / by), x - y * by],
    "total": lambda x: [x @ np.ones(x.size)],
}


def lowered_sinc(px: Any, x: Any) -> Any:
    scaled = px.ops.mul(x, px.constant(np.pi, x.dtype))
    return px.ops.div(px.ops.sin(scaled), scaled)


def lowered_divided(px: Any, pair: Any, by: Any) -> Any:
    rest = px.ops.sub(pair[0], px.ops.mul(pair[1], by))
    whole = px.ops.cast(px.ops.div(px.ops.cast(pair[0], px.float32), px.ops.cast(by, px.float32)), px.int32)
    return {"quotient": whole, "rest": rest}


def call(f: Any, lower: Any, result: Any, vmap: Any, *args: Any) -> Any:
    structures = tuple(map(tree.structure, args))
    return P.CustomCall(Form(f, structures, result, lower, vmap))


for mapping in ("sequential", "broadcast"):
    row(call(sinc, lowered_sinc, lambda x: x.strong, mapping, 0), "f32[2,3]", kind="values")
    row(call(sinc, lowered_sinc, lambda x: x.strong, mapping, 0), "f32[0,2]", kind="values")
row(call(total, lambda px, x: px.ops.sum(x), lambda x: pf.spec((), x.dtype), "sequential", 0), "f32[4] 1:2",
    kind="values")
row(call(divided, lowered_divided, lambda pair, by: {"quotient": pair[0], "rest": pair[1]}, "sequential", (0, 0), 0),
    "i32[3] 5:50", "i32[3] 1:4", np.array([2, 3, 4], np.int32), kind="values")
