"""Convolution, pooling and resizing: values against loops in 64 bits and JAX, gradients against JAX and differences."""
import math
from typing import Any, Callable, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import P
from error_texts import assert_error_text
from hypothesis import given, settings, strategies as st
from jax import lax
from programs import lowered
from references import assert_within, jacobian, reference, widened
from test_numpy import both

import popfn as pf
import popfn.host as px
import popfn.numpy as pnp
from popfn import nn
from popfn.trace.errors import ArgumentError, ShapeError

EPS = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}
few = settings(max_examples=min(60, settings.default.max_examples))


def some(shape: Tuple[int, ...], seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(dtype)


def near(got: Any, want: Any, factor: float = 16) -> None:
    """Equal within rounding, relative to the largest element."""
    want = np.asarray(want)
    assert got.shape == want.shape
    assert_within(np.asarray(got), want, factor * EPS[got.dtype.name] * np.max(np.abs(want), initial=1.0))


# ---------------------------------------------------------------------------- convolution
CONVS: List[Tuple[Tuple[int, ...], Tuple[int, ...], Dict[str, Any]]] = [
    ((2, 3, 7), (4, 3, 3), {}),
    ((2, 3, 8), (4, 3, 3), dict(strides=2, padding="same")),
    ((1, 4, 6, 7), (6, 2, 3, 2), dict(strides=(2, 1), padding="same", dilation=(1, 2), groups=2)),
    ((2, 2, 5, 5), (2, 1, 3, 3), dict(padding=1, groups=2)),
    ((1, 2, 6, 5), (3, 2, 2, 3), dict(padding=((1, 2), (0, 1)), strides=3)),
    ((1, 2, 4, 3), (3, 2, 2, 2), dict(input_dilation=(2, 3), padding=(2, (-1, 1)))),
    ((1, 2, 4, 3, 5), (2, 2, 2, 1, 3), dict(padding="same", strides=(1, 2, 2))),
    ((1, 4, 3, 3, 3), (4, 1, 2, 2, 2), dict(groups=4, dilation=(2, 1, 1))),
]


def jax_conv(x: Any, w: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1, input_dilation: Any = 1,
             groups: int = 1) -> Any:
    rank = np.ndim(x) - 2
    by, apart, wide = (v if isinstance(v, tuple) else (v,) * rank for v in (strides, dilation, input_dilation))
    if not isinstance(padding, str):
        each = padding if isinstance(padding, tuple) else (padding,) * rank
        padding = [v if isinstance(v, tuple) else (v, v) for v in each]
    return lax.conv_general_dilated(x, w, by, padding.upper() if isinstance(padding, str) else padding, wide, apart,
                                    feature_group_count=groups, precision="highest")


convs = pytest.mark.parametrize("x_shape, w_shape, options", CONVS, ids=[f"{x} {w} {o}" for x, w, o in CONVS])


@convs
def test_conv_and_its_derivatives_equal_jax(x_shape, w_shape, options):
    x, w = some(x_shape), some(w_shape, 1)

    def ours(x: Any, w: Any) -> Any:
        return nn.conv(x, w, **options)

    @jax.jit
    def theirs(x: Any, w: Any, ct: Any) -> Any:
        def first(x: Any, w: Any) -> Any:
            y, pull = jax.vjp(lambda x, w: jax_conv(x, w, **options), x, w)
            return y, pull(ct)
        (y, grads), pull = jax.vjp(first, x, w)
        return y, grads, pull((jnp.zeros_like(y), grads))
    got = both(ours, x, w)
    ct = some(got.shape, 2)
    y, grads, seconds = theirs(x, w, ct)
    near(got, y)
    near(lowered(pf.make_jaxpr(ours)(x, w))(x, w)[0], y)

    def first(x: Any, w: Any) -> Any:
        return pf.vjp(ours, x, w)[1](ct)
    for g, want in zip(first(x, w), grads):
        near(g, want)
    for g, want in zip(lowered(pf.make_jaxpr(first)(x, w))(x, w), grads):
        near(g, want)
    for g, want in zip(pf.vjp(first, x, w)[1](tuple(np.asarray(g) for g in grads)), seconds):
        near(g, want)


@st.composite
def conv_cases(draw: Any) -> Any:
    """Samples, kernels and options that fit together."""
    rank = draw(st.integers(1, 3))
    top = (5, 4, 3)[rank - 1]
    groups, inputs, outputs = (draw(st.integers(1, 2)) for _ in range(3))

    def each(least: int, most: int) -> Any:
        return draw(st.one_of(st.integers(least, most), st.tuples(*[st.integers(least, most)] * rank)))
    options = dict(strides=each(1, 3), dilation=each(1, 2), input_dilation=each(1, 2), groups=groups)
    options["padding"] = draw(st.one_of(st.sampled_from(["same", "valid"]), st.integers(0, 2), st.tuples(
        *[st.one_of(st.integers(0, 2), st.tuples(st.integers(-1, 2), st.integers(-1, 2)))] * rank)))
    x = (draw(st.integers(0, 2)), groups * inputs, *(draw(st.integers(1, top)) for _ in range(rank)))
    w = (groups * outputs, inputs, *(draw(st.integers(1, 2)) for _ in range(rank)))
    return some(x), some(w, 1), options


def resolved(x: np.ndarray, window: Any, options: Dict[str, Any]) -> Tuple[Any, ...]:
    """Strides, low, high and dilations as the definitions take them; JAX says what "same" pads."""
    rank = x.ndim - 2

    def each(v: Any) -> Tuple[int, ...]:
        return v if isinstance(v, tuple) else (v,) * rank
    by, apart, wide = each(options["strides"]), each(options["dilation"]), each(options.get("input_dilation", 1))
    padding = options["padding"]
    sizes = [(n - 1) * d + 1 for n, d in zip(x.shape[2:], wide)]
    reach = [(k - 1) * d + 1 for k, d in zip(window, apart)]
    pairs = lax.padtype_to_pads(sizes, reach, by, padding.upper()) if isinstance(padding, str) else [
        v if isinstance(v, tuple) else (v, v) for v in each(padding)]
    low, high = (tuple(int(pair[i]) for pair in pairs) for i in (0, 1))
    fits = all(n + lo + hi >= k for n, lo, hi, k in zip(sizes, low, high, reach))
    return by, low, high, wide, apart, fits


@few
@given(conv_cases())
def test_conv_equals_the_definition(case):
    x, w, options = case
    by, low, high, wide, apart, fits = resolved(x, w.shape[2:], options)
    if not fits:
        with pytest.raises(ShapeError, match="does not fit into"):
            nn.conv(x, w, **options)
        return
    primitive = P.Conv(by, low, high, wide, apart, options["groups"])
    near(both(lambda x, w: nn.conv(x, w, **options), x, w), reference(primitive, widened(x), widened(w)))


@few
@given(conv_cases(), st.booleans())
def test_conv_transpose_is_the_transpose(case, extend):
    """<conv(u, w), x> = <u, conv_transpose(x, w)>, for u of the shape of the result."""
    _, w, options = case
    options.pop("input_dilation")
    groups, rank = options["groups"], w.ndim - 2
    x = some((2, w.shape[0], *(3,) * rank), 2)
    strides = options["strides"] if isinstance(options["strides"], tuple) else (options["strides"],) * rank
    extra = tuple(s - 1 for s in strides) if extend and options["padding"] != "same" else (0,) * rank
    try:
        y = both(lambda x, w: nn.conv_transpose(x, w, **options, output_padding=extra), x, w)
    except ShapeError as e:
        assert "cuts all off" in str(e)
        return
    if options["padding"] == "same":
        assert y.shape[2:] == tuple(3 * s for s in strides)
    u = some(y.shape, 3)
    got = nn.conv(u, w, **options)
    assert got.shape == x.shape and y.shape[1] == w.shape[1] * groups
    inner = np.sum(widened(got.value) * x)
    assert abs(inner - np.sum(widened(y.value) * u)) < 1e-5 * max(1, np.sum(np.abs(widened(got.value) * x)))


@pytest.mark.parametrize("options", [{}, dict(strides=2), dict(strides=(1, 3), padding="same"),
                                     dict(strides=3, padding=((1, 0), (0, 1)), output_padding=(2, 1), groups=2)],
                         ids=str)
def test_conv_transpose_and_its_gradients_in_a_program(options):
    x = some((2, 4, 3, 4))
    w = some((4, 3 if options.get("groups", 1) == 1 else 2, 2, 3), 1)

    def f(x: Any, w: Any) -> Any:
        y = nn.conv_transpose(x, w, **options)
        return y, *pf.grad(lambda x, w: pnp.sum(pnp.sin(nn.conv_transpose(x, w, **options))), argnums=(0, 1))(x, w)
    eager = f(x, w)
    for got, want in zip(lowered(pf.make_jaxpr(f)(x, w))(x, w), eager):
        near(got, want.value)
    if options.get("groups", 1) == 1 and "output_padding" not in options:
        by = tuple(np.broadcast_to(options.get("strides", 1), 2).tolist())
        flipped = np.flip(w, (2, 3)).swapaxes(0, 1)
        want = lax.conv_transpose(x, flipped, by, options.get("padding", "valid").upper(),
                                  dimension_numbers=("NCHW", "OIHW", "NCHW"), precision="highest")
        near(eager[0], want)


def test_strided_gradients_lower_to_conv_transpose():
    x, w = some((1, 2, 8, 8)), some((3, 2, 3, 3))
    program = pf.lower(pf.grad(lambda x, w: pnp.sum(nn.conv(x, w, strides=2, padding="same") ** 2)), x, w)
    text = program.as_text()
    assert text.count("ops.conv_transpose(") == 1 and text.count("ops.conv(") == 1
    for padding, transposed in ((((1, 2),), True), (((1, 3),), False), (((2, 1),), False)):
        def spread(x: Any, w: Any, padding: Any = padding) -> Any:
            return nn.conv(x, w, input_dilation=2, padding=padding)
        text = pf.lower(spread, some((1, 2, 8)), some((3, 2, 2))).as_text()
        assert ("ops.conv_transpose(" in text) is transposed, padding  # output_padding is less than the stride


def test_float16_is_accumulated_in_float32():
    x, w = np.full((1, 1, 5000), 1, np.float16), np.ones((1, 1, 5000), np.float16)
    assert float(nn.conv(x, w)) == 5000
    x = np.full((1, 1, 4), 60000, np.float16)
    assert float(nn.avg_pool(x, 4)) == 60000
    assert nn.avg_pool(x, 3, strides=1, padding=1).dtype == nn.max_pool(x, 2).dtype == np.float16
    assert nn.interpolate(x, scale=2, mode="linear").dtype == np.float16


def test_integers_are_taken_as_float32():
    x = np.arange(6, dtype=np.int32).reshape(1, 1, 6)
    for f in (lambda x: nn.conv(x, x[:, :, :2]), lambda x: nn.conv_transpose(x, x), lambda x: nn.max_pool(x, 2),
              lambda x: nn.avg_pool(x, 2), lambda x: nn.interpolate(x, size=3)):
        assert both(f, x).dtype == np.float32


def test_operands_promote():
    assert nn.conv(np.ones((1, 1, 3), np.float16), np.ones((1, 1, 2), np.float32)).dtype == np.float32
    assert nn.conv(np.ones((1, 1, 3), np.float16), np.ones((1, 1, 2), np.int8)).dtype == np.float16


def test_no_samples_channels_or_outputs():
    for x, w, shape in (((0, 2, 4), (3, 2, 2), (0, 3, 3)), ((2, 0, 4), (3, 0, 2), (2, 3, 3)),
                        ((2, 2, 4), (0, 2, 2), (2, 0, 3)), ((1, 1, 0), (1, 1, 2), (1, 1, 3))):
        padding = 2 if not x[2] else 0
        y = both(lambda x, w, p=padding: nn.conv(x, w, padding=p), np.ones(x, np.float32), np.ones(w, np.float32))
        assert y.shape == shape and not y.value.any()
        grads = pf.grad(lambda x, w, p=padding: nn.conv(x, w, padding=p).sum(), argnums=(0, 1))(
            np.ones(x, np.float32), np.ones(w, np.float32))
        assert [g.shape for g in grads] == [x, w] and not any(g.value.any() for g in grads)


def test_no_lanes():
    y = pf.vmap(nn.conv)(np.ones((0, 1, 2, 4), np.float32), np.ones((0, 3, 2, 2), np.float32))
    assert y.shape == (0, 1, 3, 3)


# ---------------------------------------------------------------------------- pooling
@st.composite
def pool_cases(draw: Any) -> Any:
    rank = draw(st.integers(1, 3))

    def each(least: int, most: int) -> Any:
        return draw(st.one_of(st.integers(least, most), st.tuples(*[st.integers(least, most)] * rank)))
    window = each(1, 3)
    options = dict(strides=draw(st.one_of(st.none(), st.just(each(1, 3)))), dilation=each(1, 2), padding=draw(
        st.one_of(st.sampled_from(["same", "valid"]), st.integers(0, 1), st.tuples(
            *[st.one_of(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(0, 2)))] * rank))))
    x = (draw(st.integers(0, 2)), draw(st.integers(1, 2)), *(draw(st.integers(1, 5)) for _ in range(rank)))
    return some(x), window, options


def pooled(x: np.ndarray, window: Any, options: Dict[str, Any], kind: str) -> Any:
    """The definition; None where a window does not fit or, unless padding counts, sees nothing but that."""
    size = window if isinstance(window, tuple) else (window,) * (x.ndim - 2)
    by, low, high, _, apart, fits = resolved(x, size, dict(options, strides=options["strides"] or size))
    if not fits:
        return None
    one = (1,) * len(size)
    counts = reference(P.SumPool(size, by, low, high, one, apart), np.ones((1, 1) + x.shape[2:]))
    if kind != "all" and not counts.all():
        return None
    if kind == "max":
        return reference(P.MaxPool(size, by, low, high, apart), x)
    total = reference(P.SumPool(size, by, low, high, one, apart), x)
    return total / (math.prod(size) if kind == "all" else counts)


POOLS: Dict[str, Callable[..., Any]] = {
    "max": nn.max_pool, "own": nn.avg_pool,
    "all": lambda x, window, **options: nn.avg_pool(x, window, count_include_pad=True, **options)}


@pytest.mark.parametrize("kind", POOLS)
@few
@given(pool_cases())
def test_pools_and_their_gradients_equal_the_definition(kind, case):
    x, window, options = case

    def f(x: Any) -> Any:
        return POOLS[kind](x, window, **options)
    want = pooled(widened(x), window, options, kind)
    if want is None:
        with pytest.raises(ShapeError, match="does not fit into|nothing but padding"):
            f(x)
        return
    near(both(f, x), want)
    y, pull = pf.vjp(f, x)
    ct = some(y.shape, 2)
    differences = jacobian(lambda x: pooled(x, window, options, kind), [widened(x)], 0).T @ widened(ct).ravel()
    assert_within(pull(ct)[0].value, differences.reshape(x.shape), 1e-5)


PROGRAMS = [((2, 2, 6, 6), 2, {}), ((1, 2, 7, 5), (3, 2), dict(strides=(2, 1), padding="same")),
            ((1, 1, 9), 3, dict(strides=2, padding=1)), ((1, 1, 9), 3, dict(strides=2, padding=1, dilation=2)),
            ((1, 1, 4, 4, 4), 2, dict(strides=(2, 1, 2))), ((1, 2, 5, 5), 5, {}), ((1, 1, 7), 3, {})]


@pytest.mark.parametrize("shape, window, options", PROGRAMS, ids=str)
@pytest.mark.parametrize("kind", POOLS)
def test_pools_and_their_derivatives_in_a_program(kind, shape, window, options):
    x = some(shape)

    def f(x: Any) -> Any:
        def loss(x: Any) -> Any:
            return pnp.sum(pnp.sin(POOLS[kind](x, window, **options)))
        return POOLS[kind](x, window, **options), pf.grad(loss)(x), pf.grad(lambda x: (pf.grad(loss)(x) * x).sum())(x)
    for got, want in zip(lowered(pf.make_jaxpr(f)(x))(x), f(x)):
        near(got, want.value)


@pytest.mark.parametrize("shape, window, options", PROGRAMS, ids=str)
def test_max_pool_and_its_second_derivatives_equal_jax(shape, window, options):
    x, rank = some(shape), len(shape) - 2
    size = window if isinstance(window, tuple) else (window,) * rank
    by, low, high, _, apart, _ = resolved(x, size, dict(dict(strides=size, padding="valid", dilation=1), **options))

    def theirs(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, *size), (1, 1, *by), ((0, 0), (0, 0), *zip(low, high)),
                                 window_dilation=(1, 1, *apart))
    near(nn.max_pool(x, window, **options), theirs(x), 0)
    if max(apart) > 1:  # JAX has no gradient there
        return
    weights = some(theirs(x).shape, 3)

    def twice(lib: Any, xp: Any, pool: Any) -> Any:
        def loss(x: Any) -> Any:
            return xp.sum(xp.sin(pool(x)) * weights)
        return lib.grad(lambda x: xp.sum(lib.grad(loss)(x) * x))
    near(twice(pf, pnp, lambda x: nn.max_pool(x, window, **options))(x), jax.jit(twice(jax, jnp, theirs))(x))


def test_ties_go_to_the_first_and_add_up_to_the_cotangent():
    x = np.array([[[[2, 2, 1], [2, 0, 3], [3, 3, 3]]]], np.float32)
    got = pf.grad(lambda x: nn.max_pool(x, 2, strides=1).sum())(x)
    np.testing.assert_array_equal(got.value, [[[[1, 0, 0], [0, 0, 2], [1, 0, 0]]]])
    for padding in (0, 1, "same"):
        for data in (x, np.full_like(x, -np.inf), np.full_like(x, np.nan), np.where(x == 0, np.nan, x)):
            y, pull = pf.vjp(lambda x, p=padding: nn.max_pool(x, 2, padding=p), data)
            ct = some(y.shape, 4)
            assert abs(float(pull(ct)[0].sum()) - float(ct.sum())) < 1e-6


def test_the_largest_of_nan_is_nan():
    x = np.array([[[1, np.nan, 2, 3]]], np.float32)
    for y in (nn.max_pool(x, 2), pf.jit(lambda x: nn.max_pool(x, 2))(x),
              lowered(pf.make_jaxpr(lambda x: nn.max_pool(x, 2, dilation=1))(x))(x)[0]):
        np.testing.assert_array_equal(np.asarray(y), [[[np.nan, 3]]])


def test_pools_that_do_not_overlap_are_cheap_to_differentiate():
    """No element is padded and no window cut out: the gradient is moved and broadcast."""
    for f in (nn.max_pool, nn.avg_pool):
        jaxpr = pf.make_jaxpr(pf.grad(lambda x, f=f: f(x, 2).sum()))(some((1, 2, 4, 4)))
        names = {e.primitive.name for e in jaxpr.eqns}
        assert not names & {"pad", "slice", "concat", "sum_pool"}


# ---------------------------------------------------------------------------- resizing
def host_interpolate(x: np.ndarray, scale: Any, mode: str, nearest: str, coordinates: str) -> np.ndarray:
    """PopXL's op as popfn.host has it."""
    ir = px.Ir()
    with ir.main_graph:
        y = px.ops.interpolate(px.variable(x), (1.0, 1.0, *scale), mode, nearest, coordinates)
        out = px.d2h_stream(y.shape, y.dtype)
        px.ops.host_store(out, y)
    with px.Session(ir, "cpu") as session:
        return session.run()[out]


SCALES = [(2.0, 3.0), (0.5, 1.5), (1.0, 0.4), (4.0, 0.75), (1 / 3, 0.6)]
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_interpolate_equals_popxl(scale, coordinates):
    x = some((2, 1, 4, 5))
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        got = both(lambda x, r=rounding: nn.interpolate(x, scale=scale, coordinates=coordinates, rounding=r), x)
        np.testing.assert_array_equal(got.value, host_interpolate(x, scale, "nearest", rounding, coordinates))
    got = both(lambda x: nn.interpolate(x, scale=scale, mode="linear", coordinates=coordinates), x)
    near(got, host_interpolate(x, scale, "linear", "floor", coordinates))


@pytest.mark.parametrize("size", [(8, 10), (12, 5), (7, 9)], ids=str)
def test_linear_interpolate_and_its_gradient_equal_jax(size):
    x = some((2, 3, 4, 5))
    ct = some((2, 3, *size), 1)

    def theirs(x: Any) -> Any:
        return jax.image.resize(x, (2, 3, *size), "linear", antialias=False, precision="highest")
    y, pull = pf.vjp(lambda x: nn.interpolate(x, size=size, mode="linear"), x)
    want, their_pull = jax.vjp(theirs, x)
    near(y, want)
    near(pull(ct)[0], their_pull(ct)[0])


@pytest.mark.parametrize("options", [dict(scale=2), dict(size=(3, 9)), dict(scale=(1.5, 1), mode="linear"),
                                     dict(size=6, mode="linear", coordinates="align_corners")], ids=str)
def test_interpolate_is_linear_and_its_program_is_the_same(options):
    x = some((1, 2, 3, 4))

    def f(x: Any) -> Any:
        return nn.interpolate(x, **options), pf.grad(lambda x: pnp.sum(nn.interpolate(x, **options) ** 2))(x)
    y, grad = f(x)
    want = jacobian(lambda x: np.asarray(nn.interpolate(x.astype(np.float32), **options)), [widened(x)], 0, 0.25)
    near(grad, (want.T @ (2 * widened(y.value).ravel())).reshape(x.shape))
    for got, w in zip(lowered(pf.make_jaxpr(f)(x))(x), (y, grad)):
        near(got, w.value)


def test_whole_scales_of_nearest_gather_nothing():
    x = some((1, 1, 3, 4))
    for scale in (2, 3, (4, 1)):
        jaxpr = pf.make_jaxpr(lambda x, s=scale: nn.interpolate(x, scale=s))(x)
        assert {e.primitive.name for e in jaxpr.eqns} <= {"broadcast", "reshape"}
        each = scale if isinstance(scale, tuple) else (scale, scale)
        np.testing.assert_array_equal(jaxpr.eval(x)[0], x.repeat(each[0], 2).repeat(each[1], 3))


def test_linear_does_not_spread_infinities():
    x = np.array([[[np.inf, 1, 2, 3, np.nan]]], np.float32)
    got = nn.interpolate(x, size=9, mode="linear", coordinates="align_corners")
    np.testing.assert_array_equal(got.value, [[[np.inf, np.inf, 1, 1.5, 2, 2.5, 3, np.nan, np.nan]]])


# ---------------------------------------------------------------------------- errors
x, w = pf.Array(some((2, 4, 6, 6))), pf.Array(some((3, 4, 2, 2)))
v = pf.Array(some((2, 4, 6)))
ERRORS: List[Tuple[Callable[[], Any], type, str]] = [
    (lambda: nn.conv(x[0, 0], w), ShapeError, "conv takes samples (batch, channels, *sizes) and kernels with as many "
     "spatial axes, at least one, got f32[6,6] and f32[3,4,2,2]"),
    (lambda: nn.conv(x, w[0]), ShapeError, "got f32[2,4,6,6] and f32[4,2,2]"),
    (lambda: nn.conv(x, w[:, :, :0]), ShapeError, "got f32[2,4,6,6] and f32[3,4,0,2]"),
    (lambda: nn.conv(x, w[:, :2]), ShapeError, "conv: kernels (outputs, channels / groups, *sizes) f32[3,2,2,2] in 1 "
     "groups do not fit samples (batch, channels, *sizes) f32[2,4,6,6]"),
    (lambda: nn.conv(x, w[:, :2], groups=2), ShapeError, "f32[3,2,2,2] in 2 groups do not fit samples"),
    (lambda: nn.conv(x, w, groups=0), ArgumentError, "conv: groups is an integer of 1 or more, got 0"),
    (lambda: nn.conv(x, w, groups=True), ArgumentError, "conv: groups is an integer of 1 or more, got True"),
    (lambda: nn.conv(x, w, strides=1.0), ArgumentError,
     "conv: strides is an integer or one for each spatial axis, got 1.0"),
    (lambda: nn.conv(x, w, strides=(1, 2, 3)), ShapeError,
     "conv: strides is 1 or more, one for each of the 2 spatial axes, got (1, 2, 3)"),
    (lambda: nn.conv(x, w, dilation=0), ShapeError,
     "conv: dilation is 1 or more, one for each of the 2 spatial axes, got 0"),
    (lambda: nn.conv(x, w, input_dilation=(1, -1)), ShapeError, "conv: input_dilation is 1 or more"),
    (lambda: nn.conv(x, w, padding="SAME"), ArgumentError, 'conv: padding is "valid", "same", an integer or, for each '
     "of the 2 spatial axes, an integer or a pair (before, behind), got 'SAME'"),
    (lambda: nn.conv(x, w, padding=(1, 2, 3)), ArgumentError, "got (1, 2, 3)"),
    (lambda: nn.conv(x, w, padding=((1, 2, 3), 1)), ArgumentError, "got ((1, 2, 3), 1)"),
    (lambda: nn.conv(x, w, padding=0.5), ArgumentError, "got 0.5"),
    (lambda: nn.conv(x, w, dilation=6), ShapeError, "conv: a window that spans (7, 7) does not fit into f32[2,4,6,6], "
     "which has the spatial shape (6, 6) with its padding"),
    (lambda: nn.conv(x, w, padding=-3), ShapeError, "which has the spatial shape (0, 0) with its padding"),
    (lambda: nn.conv_transpose(x, w), ShapeError, "conv_transpose: kernels (channels, outputs / groups, *sizes) "
     "f32[3,4,2,2] in 1 groups do not fit samples (batch, channels, *sizes) f32[2,4,6,6]"),
    (lambda: nn.conv_transpose(x, x[0, :, None], groups=3), ShapeError, "do not fit samples"),
    (lambda: nn.conv_transpose(x, w, groups="2"), ArgumentError,
     "conv_transpose: groups is an integer of 1 or more, got '2'"),
    (lambda: nn.conv_transpose(x, pnp.moveaxis(w, 0, 1), output_padding=1), ShapeError,
     "conv_transpose: output_padding (1, 1) is less than strides (1, 1) or dilation (1, 1)"),
    (lambda: nn.conv_transpose(x, pnp.moveaxis(w, 0, 1), padding=4), ShapeError,
     "conv_transpose: padding (4, 4) and (4, 4) cuts all off that f32[4,3,2,2] makes of f32[2,4,6,6]"),
    (lambda: nn.max_pool(x[0, 0], 2), ShapeError, "max_pool takes samples (batch, channels, *sizes), got f32[6,6]"),
    (lambda: nn.max_pool(x, (2, 2, 2)), ShapeError,
     "max_pool: window is 1 or more, one for each of the 2 spatial axes"),
    (lambda: nn.max_pool(x, 2, padding=-1), ShapeError, "max_pool: padding is 0 or more, got -1"),
    (lambda: nn.max_pool(x, 2, padding=2), ShapeError, "max_pool: a window of (2, 2) sees nothing but padding, (2, 2) "
     "before and (2, 2) behind f32[2,4,6,6]\n"),
    (lambda: nn.avg_pool(x, 2, padding=2), ShapeError, "avg_pool: a window of (2, 2) sees nothing but padding"),
    (lambda: nn.avg_pool(x, 7), ShapeError, "avg_pool: a window that spans (7, 7) does not fit into f32[2,4,6,6]"),
    (lambda: nn.avg_pool(x, "2"), ArgumentError,
     "avg_pool: window is an integer or one for each spatial axis, got '2'"),
    (lambda: nn.interpolate(x[0, 0], scale=2), ShapeError,
     "interpolate takes samples (batch, channels, *sizes), got f32[6,6]"),
    (lambda: nn.interpolate(v), ArgumentError, "interpolate takes either size or scale, got none"),
    (lambda: nn.interpolate(v, size=2, scale=2), ArgumentError, "interpolate takes either size or scale, got both"),
    (lambda: nn.interpolate(v, size=2.0), ArgumentError,
     "interpolate: size is a number or one for each spatial axis, got 2.0"),
    (lambda: nn.interpolate(v, size=(2, 3)), ShapeError,
     "interpolate: size is above 0, one for each of the 1 spatial axes of f32[2,4,6], got (2, 3)"),
    (lambda: nn.interpolate(v, scale=0), ShapeError, "interpolate: scale is above 0"),
    (lambda: nn.interpolate(v, scale=math.inf), ShapeError, "interpolate: scale is above 0"),
    (lambda: nn.interpolate(v, scale=0.1), ShapeError, "interpolate: f32[2,4,6] resized by scale 0.1 has no elements"),
    (lambda: nn.interpolate(v[:, :, :0], size=2), ShapeError,
     "interpolate: f32[2,4,0] resized by size 2 has no elements"),
    (lambda: nn.interpolate(v, scale=2, mode="cubic"), ArgumentError,
     "interpolate: mode is one of 'nearest', 'linear', got 'cubic'"),
    (lambda: nn.interpolate(v, scale=2, coordinates="corners"), ArgumentError,
     "interpolate: coordinates is one of 'half_pixel', "),
    (lambda: nn.interpolate(v, scale=2, rounding="up"), ArgumentError,
     "interpolate: rounding is one of 'round_prefer_floor', ")]


@pytest.mark.parametrize("n", range(len(ERRORS)))
def test_error_text(n):
    assert_error_text(*ERRORS[n], __file__)
