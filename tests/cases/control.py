"""Rows of loops and branches, with their definitions in 64 bits."""
from typing import Any, List

import numpy as np
from references import REFERENCES, evaluate

from popfn.trace.parse import parse_jaxpr

from .table import P, inf, nan, row


# ---------------------------------------------------------------------------- definitions
def scan(p: Any, *xs: np.ndarray) -> List[np.ndarray]:
    consts, carry, xs = xs[:p.num_consts], xs[p.num_consts:][:p.num_carry], xs[p.num_consts + p.num_carry:]
    stacks: List[List[np.ndarray]] = [[] for _ in p.jaxpr.outputs[p.num_carry:]]
    for i in range(p.length)[::-1] if p.reverse else range(p.length):
        outs = evaluate(p.jaxpr, [*consts, *carry, *[x[i] for x in xs]])
        carry = outs[:p.num_carry]
        for stack, y in zip(stacks, outs[p.num_carry:]):
            stack.insert(0 if p.reverse else len(stack), y)
    empty = [np.zeros((0, *a.shape), np.float64 if a.is_float else np.int64 if a.dtype.kind != "b" else bool)
             for a in p.jaxpr.out_avals[p.num_carry:]]
    return [*carry, *(np.stack(stack) if stack else none for stack, none in zip(stacks, empty))]


def while_(p: Any, *xs: np.ndarray) -> List[np.ndarray]:
    consts, carry = list(xs[:p.num_consts]), list(xs[p.num_consts:])
    for _ in range(p.max_steps):
        if evaluate(p.cond, consts + carry)[0]:
            carry = evaluate(p.body, consts + carry)
    return carry


def cond(p: Any, index: np.ndarray, *xs: np.ndarray) -> Any:
    chosen = [i for i in range(len(p.branches)) if i == index]
    return evaluate(p.branches[chosen[0] if chosen else 0 if index < 0 else -1], xs)


REFERENCES.update({"scan": scan, "while": while_, "cond": cond})


# ---------------------------------------------------------------------------- scans
def body(text: str) -> Any:
    return parse_jaxpr("{ lambda ; " + text + " }")


RNN = body("w:f32[2,2] h:f32[2] x:f32[2] . let a:f32[2] = dot_general[x_contract=(0,) y_contract=(0,)] h w "
           "b:f32[2] = add a x c:f32[2] = tanh b d:f32[2] = mul c x in (c, d, h)")
for reverse in (False, True):
    row(P.Scan(RNN, 3, 1, 1, reverse), "f32[2,2]", "f32[2]", "f32[3,2]")
row(P.Scan(RNN, 1, 1, 1), "f32[2,2]", "f32[2]", "f32[1,2]")
row(P.Scan(RNN, 0, 1, 1), "f32[2,2]", "f32[2]", "f32[0,2]")
PRODUCT = body("w:f32[3] h:f32[3] x:f32[3] . let a:f32[3] = mul h w b:f32[3] = sqrt x c:f32[3] = mul a b in (c, a)")
row(P.Scan(PRODUCT, 2, 1, 1), np.float32([1, inf, 0]), np.float32([1, 0, nan]), np.float32([[0, 1, -1], [4, 0, inf]]),
    kind="edge")
HALF = body("c:f16[2] x:f16[2] . let a:f16[2] = mul c x b:f16[2] = sin a in (b, a)")
row(P.Scan(HALF, 3, 1, 0), "f16[2]", "f16[3,2] 0:1")  # no carry
# A carry that only counts, a constant that nothing needs, a value that is equal in all steps, and all dtypes.
COUNT = body("n:i32[] s:f32[] unused:f32[3] i:i32[] z:f32[2] x:f32[2] . let "
             "e:f32[] = exp s j:i32[] = add i n k:f32[] = convert[dtype=f32] j a:f32[2] = mul z e b:f32[2] = mul a x "
             "m:f32[] = mul k s p:bool[2] = gt b m in (j, b, m, p, j, s, 2.0:f32[])")
row(P.Scan(COUNT, 3, 3, 2, True), np.int32(2), "f32[] 0.2:0.4", "f32[3]", np.int32(1), "f32[2] 1:2", "f32[3,2] 0.5:1")
SWAP = body("a:f32[2] b:f32[2] . let c:f32[2] = sin a in (b, c)")
for length in (2, 3):
    row(P.Scan(SWAP, length, 0, 2), "f32[2]", "f32[2]")
ROTATE = body("a:f32[] b:f32[] c:f32[] x:f32[0,2] . let in (b, c, a, x, c, 1:i32[])")
row(P.Scan(ROTATE, 4, 0, 3), "f32[]", "f32[]", "f32[]", "f32[4,0,2]")
EMPTY = body("e:f32[0] s:f32[] x:f32[0] . let y:f32[0] = mul x s z:f32[0] = add y e t:f32[] = sum[axes=(0,)] z "
             "u:f32[] = add t s in (z, u, y)")
row(P.Scan(EMPTY, 2, 0, 2), "f32[0]", "f32[]", "f32[2,0]")
INNER = ("{ lambda ; w:f32[2] c:f32[2] x:f32[2] . let a:f32[2] = mul c w b:f32[2] = sin a d:f32[2] = add b x "
         "in (d, b) }")
NESTED = body(f"w:f32[2] c:f32[2] x:f32[2,2] . let d:f32[2] e:f32[2,2] = scan[jaxpr={INNER} length=2 num_consts=1 "
              "num_carry=1 reverse=True] w c x f:f32[2] = mul d w in (f, e)")
row(P.Scan(NESTED, 2, 1, 1), "f32[2] -1:1", "f32[2] -1:1", "f32[2,2,2] -1:1")
BYTES = body("a:u8[2] x:i8[2] p:bool[] . let y:u8[2] = convert[dtype=u8] x b:u8[2] = add a y q:bool[] = not p "
             "in (b, x, q)")
row(P.Scan(BYTES, 3, 0, 1), "u8[2]", "i8[3,2]", "bool[3]", kind="values")

# ---------------------------------------------------------------------------- while loops
BELOW = body("t:f32[] x:f32[2] n:i32[] . let s:f32[] = sum[axes=(0,)] x p:bool[] = lt s t in (p,)")
GROW = body("t:f32[] x:f32[2] n:i32[] . let a:f32[2] = mul x t b:f32[2] = mul a 0.2:f32[] c:f32[2] = add b x "
            "m:i32[] = add n 1:i32[] in (c, m)")
for steps in (9, 3, 1, 0):
    row(P.While(BELOW, GROW, 1, steps), np.float32(5), "f32[2] 0.5:1", np.int32(0))
row(P.While(BELOW, GROW, 1, 4), np.float32(-5), "f32[2] 0.5:1", np.int32(0))  # which never begins
HALVE = body("x:f16[2] . let y:f16[2] = mul x 0.5:f16[] in (y,)")
ABOVE = body("x:f16[2] . let a:f16[] = max[axes=(0,)] x p:bool[] = gt a 0.3:f16[] in (p,)")
row(P.While(ABOVE, HALVE, 0, 9), "f16[2] 1:2")
# A step divides by what is 0 when the loop is done.
DIVIDE = body("x:f32[] n:f32[] . let y:f32[] = div x n m:f32[] = sub n 1.0:f32[] in (y, m)")
LEFT = body("x:f32[] n:f32[] . let p:bool[] = gt n 0.0:f32[] in (p,)")
row(P.While(LEFT, DIVIDE, 0, 6), "f32[] 1:2", np.float32(3), kind="edge")

# ---------------------------------------------------------------------------- branches
SIN = body("x:f32[2] s:f32[] . let y:f32[2] = sin x z:f32[2] = mul y s in (z, s)")
SQUARE = body("x:f32[2] s:f32[] . let y:f32[2] = mul x x in (y, 1.0:f32[])")
FIRST = body("x:f32[2] s:f32[] . let t:f32[] = exp s u:f32[] = mul t s in (x, u)")
SAME = body("x:f32[2] s:f32[] . let in (x, s)")
for index in (False, True):
    row(P.Cond((SIN, SQUARE)), np.array(index), "f32[2]", "f32[]")
for index in (-2, 0, 1, 2, 3, 4, 7):
    row(P.Cond((SIN, SQUARE, FIRST, SAME, SIN)), np.int32(index), "f32[2]", "f32[]")
row(P.Cond((SIN, FIRST, SQUARE)), np.int32(1), "f32[2]", "f32[]")
ROOT = body("x:f32[3] . let y:f32[3] = sqrt x in (y, 1:i32[])")
NONE = body("x:f32[3] . let in (x, 0:i32[])")
for index in (False, True):
    row(P.Cond((ROOT, NONE)), np.array(index), np.float32([0, 4, -1]), kind="edge")
HALVES = (body("x:f16[2] i:i32[2] . let y:f16[2] = exp x in (y, i)"),
          body("x:f16[2] i:i32[2] . let y:f16[2] = mul x x j:i32[2] = add i i in (y, j)"))
row(P.Cond(HALVES), np.array(True), "f16[2]", np.int32([3, 4]))
PART = body("x:f32[0,2] y:f32[2] . let z:f32[2] = sum[axes=(0,)] x in (x, z)")
REST = body("x:f32[0,2] y:f32[2] . let w:f32[0,2] = mul x y in (w, y)")
row(P.Cond((PART, REST)), np.array(False), "f32[0,2]", "f32[2]")
LOOP = body(f"x:f32[2] s:f32[] . let k:f32[2,2] = broadcast[shape=(2,2)] s d:f32[2] e:f32[2,2] = scan[jaxpr={INNER} "
            "length=2 num_consts=1 num_carry=1] x x k in (d, s)")
row(P.Cond((SIN, LOOP)), np.array(True), "f32[2]", "f32[] 0.2:0.5")
