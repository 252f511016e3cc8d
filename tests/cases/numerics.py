"""Rows of numerics: rounding, logarithms, trigonometric and hyperbolic functions, bits, scaled 8-bit floats."""
import numpy as np
from references import REFERENCES, elementwise

from popfn.trace.aval import BY_NAME

from .table import LINEAR, ULPS, P, grid, inf, nan, row, values

# ---------------------------------------------------------------------------- definitions
WIDTH = {"i8": 8, "i16": 16, "i32": 32, "u8": 8, "u16": 16, "u32": 32}


def shifted(x: np.ndarray, y: np.ndarray, left: bool) -> np.ndarray:
    """Python's shifts of whole numbers; by more places than any dtype has where y is beyond them."""
    out = np.empty(np.broadcast(x, y).shape, np.int64)
    for at, (a, b) in zip(np.ndindex(*out.shape), np.broadcast(x, y)):
        places = int(b) if 0 <= b < 64 else 64
        out[at] = (int(a) << places) % 2 ** 32 if left else int(a) >> places
    return out


def log_add_exp(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    high, low = np.maximum(x, y), np.minimum(x, y)
    return np.where(np.isinf(high) | np.isnan(high), high, high + np.log1p(np.exp(low - high)))


REFERENCES.update({name: elementwise(f) for name, f in dict(
    round=np.rint, log2=np.log2, log10=np.log10, tan=np.tan, atan=np.arctan, atan2=np.arctan2, asin=np.arcsin,
    acos=np.arccos, sinh=np.sinh, cosh=np.cosh, asinh=np.arcsinh, acosh=np.arccosh, atanh=np.arctanh,
    sigmoid=lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))) / (1 + np.exp(-np.abs(x))), hypot=np.hypot,
    log_add_exp=log_add_exp, bitwise_and=np.bitwise_and, bitwise_or=np.bitwise_or, bitwise_xor=np.bitwise_xor,
    shift_left=lambda x, y: shifted(x, y, True), shift_right=lambda x, y: shifted(x, y, False)).items()})
REFERENCES.update({
    "cast_to_float8": lambda p, x: x * 2.0 ** p.log2_scale,
    "cast_from_float8": lambda p, x: x * 2.0 ** p.log2_scale,
    "matmul_pow2scaled": lambda p, x, y: np.einsum("...mk,...kn->...mn", x, y) * 2.0 ** p.log2_scale})
LINEAR.update(cast_to_float8=[(0,)], cast_from_float8=[(0,)], matmul_pow2scaled=[(0,), (1,)])
ULPS.update(sinh=8, cosh=8, acosh=8)

# ---------------------------------------------------------------------------- elementwise, one operand
SPECIAL = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 0.5, -2.5, 1e-5, 1e4]
UNARY = {  # a range where the function is smooth, and values of its own that matter
    P.Round(): ("0.6:1.4", [1.5, 2.5, -0.5, -1.5, 0.49999997, -0.49999997, 8388609.0, -4194304.5, 4194305.5, 3e38]),
    P.Log2(): ("0.2:4", [8.0, 1e-38, 3e38]), P.Log10(): ("0.2:4", [1000.0, 1e-38, 3e38]),
    P.Sigmoid(): ("-3:3", [20.0, -20.0, -80.0, 88.0, 200.0, -200.0]),
    P.Tan(): ("-1.2:1.2", [1.5, 3.0, -4.0]), P.Atan(): ("-3:3", [0.41, 0.42, 2.41, 2.42, 1e-20, 1e30]),
    P.Asin(): ("-0.7:0.7", [0.9999999, -0.9999, 0.7, 1.5, 1e-20]),
    P.Acos(): ("-0.7:0.7", [0.9999999, -0.9999999, 0.01, 1.5]),
    P.Sinh(): ("-3:3", [88.5, 89.3, -89.3, 90.0, 1e-20, -10.0]), P.Cosh(): ("-3:3", [88.5, -89.3, 90.0, -10.0]),
    P.Asinh(): ("-3:3", [1e-20, -300.0, 9999.0, 1e5, 3e38]), P.Acosh(): ("1.2:4", [1.0001, 1.0000001, 1e5, 3e38, -2.0]),
    P.Atanh(): ("-0.8:0.8", [0.9999999, -0.999, 1.5, -1e30, 1e-20]),
}
for f, (limits, more) in UNARY.items():
    row(f, f"f32[2,3] {limits}")
    row(f, f"f16[4] {limits}")
    row(f, f"~f32[] {limits}")
    row(f, f"f32[2,0] {limits}")
    values(f, SPECIAL + more, "f32")
    values(f, SPECIAL + [x for x in more if abs(x) < 6e4], "f16")
values(P.Round(), [1024.5, 1025.5, -2047.0, 60000.0], "f16")
values(P.Atan(), [300.0, -60000.0, 6e-8], "f16")
values(P.Asinh(), [300.0, -60000.0, 6e-8], "f16")

# ---------------------------------------------------------------------------- elementwise, two operands
PAIRS = [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, inf, -inf, nan]
BINARY = {  # ranges of the two operands
    P.Hypot(): ("-2:2", "0.5:3"), P.Atan2(): ("-2:2", "0.5:3"), P.LogAddExp(): ("-2:2", "-2:2"),
}
for f, (left, right) in BINARY.items():
    row(f, f"f32[2,3] {left}", f"f32[2,3] {right}")
    row(f, f"f32[2,1] {left}", f"f32[3] {right}")
    row(f, f"f16[3] {left}", f"f16[2,3] {right}")
    row(f, f"f32[2] {left}", f"~f32[] {right}")
    row(f, f"f32[0,3] {left}", f"f32[1,3] {right}")
    row(f, *grid(PAIRS, "f32"), kind="edge")
    row(f, *grid(PAIRS, "f16"), kind="edge")
row(P.Hypot(), *grid([1e30, -3e-30, 2e38, 1e-38, 4.0], "f32"), kind="edge")
row(P.Hypot(), *grid([300.0, 40000.0, 6e-8], "f16"), kind="edge")
row(P.Atan2(), *grid([1e30, -3e-30, 2e38, -1.0, 1e-20], "f32"), kind="edge")
row(P.LogAddExp(), *grid([100.0, -100.0, 101.0, 3e38, -3e38, 1e-5], "f32"), kind="edge")
row(P.LogAddExp(), "f32[3] 1:1", "f32[3] 1:1")
row(P.FloorDivide(), *grid([-1, -2 ** 31, 2 ** 31 - 1, 2, -2 ** 31 + 1], "i32"))
row(P.Remainder(), *grid([-1, -2 ** 31, 2 ** 31 - 1, 2, -2 ** 31 + 1], "i32"))
row(P.FloorDivide(), *grid([0, 1, 2, 2 ** 31, 2 ** 32 - 1], "u32"))
row(P.Remainder(), *grid([0, 1, 2, 2 ** 31, 2 ** 32 - 1], "u32"))
row(P.FloorDivide(), *grid([-1, -2 ** 15, 2 ** 15 - 1, 7], "i16"))
row(P.Remainder(), *grid([-1, -2 ** 15, 2 ** 15 - 1, 7], "i16"))

# ---------------------------------------------------------------------------- bits
for dtype, bits in WIDTH.items():
    low, high = (-2 ** (bits - 1), 2 ** (bits - 1) - 1) if dtype[0] == "i" else (0, 2 ** bits - 1)
    numbers = [low, low + 1, high, high // 3, 0, 1, 90] + ([-1, -86] if low else [high - 1])
    for f in (P.BitwiseAnd(), P.BitwiseOr(), P.BitwiseXor()):
        row(f, *grid(numbers, dtype))
    places = [0, 1, bits // 2, bits - 2, bits - 1, bits, bits + 1, high] + ([-1, low] if low else [])
    pairs = [np.array(v, BY_NAME[dtype]).ravel() for v in np.meshgrid(numbers, places)]
    for f in (P.ShiftLeft(), P.ShiftRight()):
        row(f, *pairs)
for f in (P.BitwiseAnd(), P.BitwiseOr(), P.BitwiseXor(), P.ShiftLeft(), P.ShiftRight()):
    row(f, "i32[2,1]", "i32[1,3]")
    row(f, "u8[2,3]", "u8[]")
    row(f, "i32[0,3]", "i32[1,3]")
    row(f, "~i32[]", "~i32[]")

# ---------------------------------------------------------------------------- 8-bit floats
F8, WIDER = BY_NAME["f8_143"], BY_NAME["f8_152"]
for target in (F8, WIDER):
    for scale in (0, 3, -2):
        row(P.CastToFloat8(target, scale), np.array([0, 1, -2.5, 12], np.float32))
    values(P.CastToFloat8(target, 1), [0, -0.0, 1.0625, -3.3, 17, 200, 1e-3, 1e6, nan, -inf], "f32", kind="values")
    values(P.CastToFloat8(target, 31), [1e-8, -1e-9, 1e-12, 1.0], "f32", kind="values")
    values(P.CastToFloat8(target, -4), [0, 1.1, -3.3, 60000], "f16", kind="values")
    for source in ("f32", "f16"):
        for scale in (0, 5, -7):
            row(P.CastFromFloat8(BY_NAME[source], scale), np.array([0, 1, -2.5, 12], np.float32).astype(target))
    row(P.CastToFloat8(target, 2), np.zeros((2, 0), np.float16))
values(P.CastFromFloat8(BY_NAME["f16"], 14), [0, 1.5, -240, nan, 2 ** -9], "f8_143", kind="values")


def eighths(shape: tuple, dtype: np.dtype, step: int = 5) -> np.ndarray:
    """Numbers of few bits, so that their products are exact."""
    size = int(np.prod(shape, dtype=int))
    return ((np.arange(size) * step % 13 - 6) / 4).astype(np.float32).astype(dtype).reshape(shape)


row(P.MatmulPow2scaled(0), eighths((2, 3), F8), eighths((3, 4), F8))
row(P.MatmulPow2scaled(-1), eighths((2, 2, 3), F8), eighths((2, 3, 1), WIDER, 7))
row(P.MatmulPow2scaled(3), eighths((1, 4), WIDER), eighths((4, 1), F8, 3))
row(P.MatmulPow2scaled(0), eighths((2, 0), F8), eighths((0, 3), F8))
row(P.MatmulPow2scaled(10), np.array([[240, nan], [1, 0]], np.float32).astype(F8), eighths((2, 2), F8), kind="values")
