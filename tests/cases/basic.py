"""Rows of the first vocabulary: elementwise functions, reductions, movement, products, calls."""
import itertools

import numpy as np

from popfn.trace.aval import BY_NAME
from popfn.trace.jaxpr import Jaxpr
from popfn.trace.parse import parse_jaxpr

from .table import LINEAR, ULPS, P, grid, inf, nan, row, values

LINEAR.update({
    **{name: [(0,)] for name in (
        "neg", "div", "reshape", "broadcast", "transpose", "squeeze", "slice", "reverse", "sum", "take",
        "take_transpose", "convert")},
    **{name: [(0,), (1,)] for name in ("mul", "safe_mul", "dot_general")},
    **{name: [(0,), (1,), (0, 1)] for name in ("add", "sub", "pad", "concat")}, "select": [(1,), (2,), (1, 2)]})
ULPS.update(pow=8, integer_pow=8, expm1=8, log1p=8, prod=8)

# ---------------------------------------------------------------------------- elementwise, one operand
SPECIAL = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 0.5, -2.5, 1e-5, 1e4]
UNARY = {  # a range where the function is smooth, and values of its own that matter
    P.Abs(): ("0.2:3", []), P.Sign(): ("-2:-0.2", []), P.Neg(): ("-2:2", []), P.Floor(): ("0.1:0.9", [1.5, -1.5, 2.5]),
    P.Ceil(): ("0.1:0.9", [1.5, -1.5, 2.5]), P.Exp(): ("-3:3", [88.5, 89.0, -87.0, -104.0]),
    P.Expm1(): ("-3:3", [1e-7, -1e-7, 88.5, 89.0, -20.0]), P.Log(): ("0.2:4", [1e-38, 3e38]),
    P.Log1p(): ("-0.7:4", [1e-7, -1e-7, -0.9999, -1.5, 3e38]), P.Sqrt(): ("0.2:4", [4.0, 1e-38, 3e38]),
    P.Rsqrt(): ("0.2:4", [4.0, 1e-20, 3e38]), P.Sin(): ("-3:3", [3.1415927, 100.0]),
    P.Cos(): ("-3:3", [1.5707964, 100.0]),
    P.Tanh(): ("-2:2", [9.0, -9.0, 20.0]), P.Erf(): ("-2:2", [3.9, 4.1, -4.5, 1e-7]), P.Relu(): ("0.2:2", []),
    P.Gelu(): ("-3:3", [6.0, -6.0, 12.0]), P.StopGradient(): ("-2:2", []),
    P.IntegerPow(0): ("-2:2", []), P.IntegerPow(1): ("-2:2", []), P.IntegerPow(2): ("-2:2", []),
    P.IntegerPow(3): ("-2:2", [1e13]),
    P.IntegerPow(7): ("-2:2", []), P.IntegerPow(-1): ("0.5:2", []), P.IntegerPow(-2): ("-2:-0.5", [1e-20]),
}
for f, (limits, more) in UNARY.items():
    row(f, f"f32[2,3] {limits}")
    row(f, f"f16[4] {limits}")
    row(f, f"~f32[] {limits}")
    row(f, f"f32[2,0] {limits}")
    values(f, SPECIAL + more, "f32")
    values(f, SPECIAL + [x for x in more if abs(x) < 6e4], "f16")
values(P.IntegerPow(-2), [300.0, 250.0, 0.004], "f16")
values(P.IntegerPow(5), [9.1, -9.1, 0.1, 0.01], "f16")
for f in (P.Relu(), P.Abs(), P.Sign()):
    row(f, "f32[3] -2:-0.2")
for f in (P.Neg(), P.Abs(), P.Sign(), P.IntegerPow(0), P.IntegerPow(2), P.IntegerPow(5), P.StopGradient()):
    values(f, [0, 1, -1, 5, 127, -128], "i8")
    values(f, [[0, 3], [-7, 2 ** 31 - 1]], "i32")
values(P.IntegerPow(3), [0, 1, 2, 255], "u8")
values(P.StopGradient(), [True, False], "bool")
values(P.StopGradient(), [1.5, -2.0, nan], "f8_143", kind="values")
for shape in ("bool[3]", "bool[]", "bool[0]", "bool[2,2]"):
    row(P.Not(), shape)

# ---------------------------------------------------------------------------- elementwise, two operands
PAIRS = [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, inf, -inf, nan]
INTEGERS = [0, 1, -1, 7, -7, 127, -128]
BINARY = {  # ranges of the two operands
    P.Add(): ("-2:2", "-2:2"), P.Sub(): ("-2:2", "-2:2"), P.Mul(): ("-2:2", "-2:2"), P.SafeMul(): ("-2:2", "-2:2"),
    P.Div(): ("-2:2", "0.5:3"), P.Pow(): ("0.5:2", "-2:2"), P.Maximum(): ("-2:2", "-2:2"),
    P.Minimum(): ("-2:2", "-2:2"), P.FloorDivide(): ("2.1:2.9", "1.2:1.4"), P.Remainder(): ("2.1:2.35", "-1.0:-0.81"),
}
for f, (left, right) in BINARY.items():
    row(f, f"f32[2,3] {left}", f"f32[2,3] {right}")
    row(f, f"f32[2,1] {left}", f"f32[3] {right}")
    row(f, f"f32[] {left}", f"f32[2] {right}")
    row(f, f"f16[3] {left}", f"f16[2,3] {right}")
    row(f, f"~f32[] {left}", f"~f32[] {right}")
    row(f, f"f32[2] {left}", f"~f32[] {right}")
    row(f, f"f32[0,3] {left}", f"f32[1,3] {right}")
    row(f, *grid(PAIRS, "f32"), kind="edge")
    row(f, *grid(PAIRS, "f16"), kind="edge")
    if "i" in f.takes:
        row(f, *grid(INTEGERS, "i8"))
        row(f, *grid([0, 1, -5, 12345, -(2 ** 31), 2 ** 31 - 1], "i32"))
        row(f, *grid([0, 1, 9, 255], "u8"))
        row(f, "i32[2,1]", "i32[1,3]")
row(P.Pow(), np.array([0, 0, 0, 2, -2, -2], np.float32), np.array([0, 2, 0.5, 0, 2, 3], np.float32), kind="edge")
row(P.Remainder(), np.array([5.5, -5.5, 5.5, -5.5, 6, 1e10], np.float32), np.array([2, 2, -2, -2, 3, 3], np.float32),
    kind="edge")
row(P.FloorDivide(), np.array([5.5, -5.5, 5.5, -5.5, 6, 0.7], np.float32), np.array([2, 2, -2, -2, 3, 0.1], np.float32),
    kind="edge")
row(P.FloorDivide(), *(np.array(v, np.float32) for v in (  # quotients that round across an integer, or just beside it
    [136867.890625, 224191.453125, -272578.46875, 556313.5, -742147.375, -962420.375, 233868.0],
    [0.535564661026001, 0.10717272758483887, 2.196354866027832, 2.5792083740234375, 7.243288516998291,
     0.2406013011932373,
     0.06749521195888519])), kind="edge")
for f in (P.Eq(), P.Ne(), P.Lt(), P.Le(), P.Gt(), P.Ge()):
    row(f, *grid(PAIRS, "f32"))
    row(f, *grid([0, 1, -1, 100], "i32"))
    row(f, *grid([0, 200, 255], "u8"))
    row(f, *grid([True, False], "bool"))
    row(f, "f16[2,1]", "f16[3]")
    row(f, "~i32[]", "~i32[]")
for f in (P.And(), P.Or()):
    row(f, *grid([True, False], "bool"))
    row(f, "bool[2,1]", "bool[3]")
    row(f, "bool[0]", "bool[]")
row(P.Select(), "bool[2,3]", "f32[2,3]", "f32[2,3]")
row(P.Select(), "bool[3]", "f32[2,1]", "f32[]")
row(P.Select(), "bool[]", "f16[2]", "f16[2]")
row(P.Select(), "bool[2,1]", "i32[3]", "i32[1,3]")
row(P.Select(), "bool[2]", "bool[2]", "bool[]")
row(P.Select(), "bool[]", "~f32[]", "~f32[]")
row(P.Select(), np.array([True, False, True]), np.array([nan, nan, inf], np.float32),
    np.array([-0.0, inf, nan], np.float32), kind="edge")

# ---------------------------------------------------------------------------- dtypes
for source, target in itertools.product(("f32", "f16", "i32", "i8", "u32", "u8", "bool"), repeat=2):
    row(P.Convert(BY_NAME[target]), f"{source}[2,2]" + (" 0.3:5" if source[0] == "f" else ""))
for target in ("f8_143", "f8_152"):
    values(P.Convert(BY_NAME[target]), [0, -0.0, 1.0625, -3.3, 17, 200, 1e-3, 1e6, nan, -inf], "f32", kind="values")
    values(P.Convert(BY_NAME[target]), [0, 1.1, -3.3, 60000], "f16", kind="values")
    for source in ("f32", "f16", "i32"):
        row(P.Convert(BY_NAME[source]), np.array([0, 1, -2.5, 12], np.float32).astype(BY_NAME[target]), kind="values")
values(P.Convert(BY_NAME["f16"]), [70000.0, 1e-8, nan, -inf, 2049.0], "f32")
values(P.Convert(BY_NAME["i32"]), [1.9, -1.9, -0.5, 2 ** 30], "f32")
values(P.Convert(BY_NAME["bool"]), [0.0, -0.0, nan, 0.25, -inf], "f32")
row(P.Convert(BY_NAME["f32"], True), "~i32[]")
row(P.Convert(BY_NAME["f32"]), "~f32[]")

# ---------------------------------------------------------------------------- moving elements
row(P.Reshape((3, 2)), "f32[2,3]")
row(P.Reshape((6,)), "f16[1,2,3]")
row(P.Reshape(()), "f32[1,1]")
row(P.Reshape((1,)), "~f32[]")
row(P.Reshape((0, 5)), "f32[2,0]")
row(P.Reshape((2, 2)), "bool[4]")
row(P.Broadcast((2, 3)), "f32[3]")
row(P.Broadcast((2, 3)), "f32[2,1]")
row(P.Broadcast((2, 2)), "f16[]")
row(P.Broadcast((3,)), "~f32[]")
row(P.Broadcast((0, 3)), "f32[1,3]")
row(P.Broadcast((2, 1, 2)), "i32[1,2]")
values(P.Broadcast((2, 3)), [-0.0, nan, inf], "f32")
row(P.Transpose((1, 0)), "f32[2,3]")
row(P.Transpose((2, 0, 1)), "f32[2,3,2]")
row(P.Transpose((1, 2, 0)), "f16[2,1,3]")
row(P.Transpose(()), "f32[]")
row(P.Transpose((1, 0)), "bool[0,2]")
row(P.Squeeze((0,)), "f32[1,3]")
row(P.Squeeze((0, 2)), "f16[1,2,1]")
row(P.Squeeze((1,)), "i32[0,1]")
row(P.Squeeze(()), "f32[2]")
row(P.Slice((1,), (4,), (1,)), "f32[5]")
row(P.Slice((1, 0), (2, 5), (1, 2)), "f32[3,5]")
row(P.Slice((0, 1), (3, 2), (2, 3)), "f16[3,2]")
row(P.Slice((0,), (0,), (1,)), "f32[3]")
row(P.Slice((2,), (2,), (2,)), "f32[3]")
row(P.Slice((), (), ()), "f32[]")
row(P.Slice((0, 1, 1), (2, 2, 4), (1, 1, 2)), "i32[2,2,4]")
row(P.Slice((0,), (7,), (3,)), "f32[8]")
row(P.Reverse((0,)), "f32[4]")
row(P.Reverse((0, 2)), "f32[2,2,3]")
row(P.Reverse((1,)), "i8[2,3]")
row(P.Reverse((0,)), "f16[0]")
row(P.Reverse(()), "f32[2]")
row(P.Concat(0), "f32[2]", "f32[3]")
row(P.Concat(1), "f32[2,1]", "f32[2,2]", "f32[2,1]")
row(P.Concat(0), "f16[2,2]", "f16[1,2]")
row(P.Concat(0), "f32[0,2]", "f32[2,2]")
row(P.Concat(0), "i32[3]")
row(P.Concat(1), "bool[1,2]", "bool[1,1]")
row(P.Pad((1,), (2,), (0,)), "f32[3]", "f32[]")
row(P.Pad((0, 1), (1, 0), (2, 1)), "f32[2,3]", "f32[]")
row(P.Pad((-1,), (0,), (0,)), "f32[3]", "f32[]")
row(P.Pad((-1, 2), (1, -2), (1, 0)), "f32[2,3]", "f32[]")
row(P.Pad((-2,), (-3,), (3,)), "f32[4]", "f32[]")
row(P.Pad((2,), (1,), (1,)), "f16[0]", "f16[]")
row(P.Pad((1,), (1,), (0,)), "i32[2]", "i32[]")
row(P.Pad((1,), (0,), (0,)), "f32[2]", "~f32[]")
row(P.Pad((-1,), (-2,), (0,)), "f32[3]", "f32[]")
row(P.Pad((1,), (1,), (1,)), np.array([nan, inf, -0.0], np.float32), np.array(-0.0, np.float32), kind="edge")
row(P.Iota(BY_NAME["i32"], (4,), 0))
row(P.Iota(BY_NAME["f32"], (2, 3), 1))
row(P.Iota(BY_NAME["u8"], (3, 2), 0))
row(P.Iota(BY_NAME["f16"], (0, 2), 1))

# ---------------------------------------------------------------------------- reductions
for f in (P.Sum, P.Max, P.Min, P.Prod):
    row(f((0,)), "f32[5]")
    row(f((1,)), "f32[2,3]")
    row(f((0, 2)), "f32[2,2,3]")
    row(f(()), "f32[2]")
    row(f((0,)), "f16[3,2]")
    row(f((0,)), "f32[1,2]")
    row(f((1,)), "f32[0,2]")
    row(f((0,)), "i32[3,2]")
    row(f((0, 1)), "u8[2,2]")
    values(f((1,)), [[1, nan], [inf, 1], [-inf, inf], [-0.0, 0.0], [inf, inf]], "f32")
    values(f((0,)), [3, 3, 1, 3], "f32")
    values(f((0,)), [[0, 0, 2], [1, 0, 2], [0, 5, 2]], "f16")
    values(f((0,)), [100, 100, -128], "i8")
for f in (P.Sum, P.Prod):
    row(f((0,)), "f32[0]")
    row(f((0,)), "f16[0,2]")
values(P.Sum((0,)), [60000, 60000, -60000, -59000], "f16")
values(P.Sum((0,)), [2048] + [1] * 8, "f16")
values(P.Sum((0,)), [[2048, 60000], *[[1, 1]] * 8, [0, 6000], [0, -6000]], "f16")  # NumPy adds rows in float16
values(P.Prod((0,)), [300, 300, 0.01], "f16")
values(P.Prod((0,)), [[300, 1], [300, 2], [0.01, 3]], "f16")
values(P.Prod((0, 1)), [[0, 2, 3], [4, 5, 6]], "f32")
row(P.Prod((0,)), "f32[7] 0.5:2")
row(P.Argmax(0), "f32[4]")
row(P.Argmax(1), "f16[2,3]")
row(P.Argmax(0), "i32[3,2]")
row(P.Argmax(1), "u8[2,4]")
values(P.Argmax(1), [[1, 3, 3], [nan, 1, nan], [2, nan, 9], [-inf, -inf, -inf], [0.0, -0.0, 0.0]], "f32")
row(P.Softmax(0), "f32[4]")
row(P.Softmax(1), "f32[2,3]")
row(P.Softmax(0), "f16[3,2]")
row(P.Softmax(1), "f32[2,0]")
row(P.Softmax(0), "f32[1]")
values(P.Softmax(1), [[1e4, 0, -1e4], [-inf, 0, 1], [-inf, -inf, -inf], [nan, 0, 0], [2, 2, 2]], "f32")
values(P.Softmax(0), [60000, 59900, -60000], "f16")

# ---------------------------------------------------------------------------- contraction and indexing
row(P.DotGeneral((1,), (0,)), "f32[2,3]", "f32[3,2]")
row(P.DotGeneral((0,), (0,)), "f32[3]", "f32[3]")
row(P.DotGeneral((), ()), "f32[2]", "f32[3]")
row(P.DotGeneral((1,), (1,), (0,), (0,)), "f32[2,3]", "f32[2,3]")
row(P.DotGeneral((2,), (1,), (0,), (0,)), "f32[2,2,3]", "f32[2,3,2]")
row(P.DotGeneral((0, 1), (1, 0)), "f32[2,3,2]", "f32[3,2]")
row(P.DotGeneral((0, 2), (2, 0), (1,), (1,)), "f32[2,2,3]", "f32[3,2,2]")
row(P.DotGeneral((1,), (0,), (2, 0), (1, 2)), "f32[2,3,2]", "f32[3,2,2,1]")
row(P.DotGeneral((0,), (2,)), "f32[3,1]", "f32[2,1,3]")
row(P.DotGeneral((2,), (1,), (0,), (2,)), "f32[1,2,3]", "f32[2,3,1]")
row(P.DotGeneral((1,), (1,), (2,), (0,)), "f32[2,3,1]", "f32[1,3,2]")
row(P.DotGeneral((1,), (0,)), "f16[2,3]", "f16[3,2]")
row(P.DotGeneral((0,), (0,)), "f16[4]", "f16[4]")
row(P.DotGeneral((1,), (0,)), "f32[2,0]", "f32[0,3]")
row(P.DotGeneral((1,), (0,)), "f32[0,2]", "f32[2,3]")
row(P.DotGeneral((1,), (0,)), "i32[2,3]", "i32[3,2]")
row(P.DotGeneral((1,), (1,), (0,), (0,)), "u8[2,3]", "u8[2,3]")
row(P.DotGeneral((), ()), "~f32[]", "~f32[]")
row(P.DotGeneral((1,), (0,)), np.array([[inf, 1], [nan, 2]], np.float32), np.array([[1, 1], [2, 0]], np.float32),
    kind="values")
row(P.DotGeneral((0,), (0,)), np.array([200, 200, -200, 1], np.float16), np.array([200, 200, 200, 1], np.float16))
row(P.DotGeneral((1,), (0,)), np.array([[2048] + [1] * 8] * 2, np.float16), np.ones((9, 2), np.float16))
row(P.DotGeneral((0,), (0,)), np.full(4, 300, np.float16), np.full(4, 300, np.float16), kind="edge")
INDICES = np.array([[0, -1, 2], [5, -9, 1]], np.int32)  # negative, out of range on both sides
row(P.Take(0), "f32[4]", np.array([0, 3, 3, 1], np.int32))
row(P.Take(0), "f32[4,2]", INDICES)
row(P.Take(1), "f32[2,3]", INDICES)
row(P.Take(1), "f16[2,3,2]", np.array([2, 2, 2], np.int8))
row(P.Take(0), "i32[3]", np.array(-1, np.int32))
row(P.Take(0), "f32[3]", np.zeros((0,), np.int32))
row(P.Take(1), "f32[2,3]", np.array([0, 250, 2], np.uint8))
row(P.Take(0), "bool[2,2]", np.array([1, 0], np.int32))
row(P.Take(0), "f32[3]", np.array([-2 ** 31, 2 ** 31 - 1], np.int32))
row(P.Take(0), "f32[2]", np.array([2 ** 32 - 1, 0], np.uint32))
row(P.TakeTranspose(0, 4), "f32[4]", np.array([0, 3, 3, 1], np.int32))
row(P.TakeTranspose(0, 3), "f32[2,3,2]", INDICES)
row(P.TakeTranspose(1, 3), "f32[2,2,3]", INDICES)
row(P.TakeTranspose(0, 5), "f16[3]", np.array([2, 2, 2], np.int8))
row(P.TakeTranspose(0, 3), "f32[0]", np.zeros((0,), np.int32))
row(P.TakeTranspose(0, 2), "f32[2]", np.array([2 ** 32 - 1, 0], np.uint32))
row(P.TakeTranspose(0, 2), np.array([2048] + [1] * 8, np.float16), np.zeros(9, np.int32), kind="edge")

# ---------------------------------------------------------------------------- calls
INNER = {name: parse_jaxpr(text) for name, text in dict(
    scale="{ lambda ; a:f32[2,3] b:f32[] . let c:f32[2,3] = mul a b d:f32[2,3] = tanh c in (d,) }",
    two="{ lambda ; a:f32[3] b:f32[3] . let c:f32[3] = mul a b d:f32[3] = sin a in (c, d) }",
    mixed="{ lambda ; a:f32[3] i:i32[2] . let b:f32[2] = take[axis=0] a i c:i32[] = sum[axes=(0,)] i in (b, c) }",
    plain="{ lambda ; a:f16[3] . let in (a, 1.5:f16[]) }").items()}


def nested(inner: Jaxpr) -> Jaxpr:
    """A jaxpr that calls another twice."""
    text = str(inner)
    return parse_jaxpr(f"{{ lambda ; a:f32[2,3] b:f32[] . let c:f32[2,3] = call[jaxpr={text}] a b "
                       f"d:f32[2,3] = call[jaxpr={text}] c b in (d,) }}")


row(P.Call(INNER["scale"]), "f32[2,3]", "f32[]")
row(P.Call(INNER["two"]), "f32[3]", "f32[3]")
row(P.Call(INNER["mixed"]), "f32[3]", np.array([2, 0], np.int32))
row(P.Call(INNER["plain"]), "f16[3]")
row(P.Call(nested(INNER["scale"])), "f32[2,3]", "f32[]")
