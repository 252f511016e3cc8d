"""The gradient of each kind of op: against finite differences in float64, and in float16 against those in float32."""
from typing import Any, Callable, NamedTuple, Tuple

import numpy as np
import pytest

import popfn.host as popxl
from popfn.host import dtypes
from popfn.host.gradients import RULES
from popfn.host.transforms.autodiff import autodiff

ops = popxl.ops
F16, F32, F64 = popxl.float16, popxl.float32, popxl.float64


class Case(NamedTuple):
    """`build(*tensors)` is differentiated by those of its operands that are of floats."""

    kind: str  # of the op whose rule it is for
    name: str
    build: Callable[..., Any]
    operands: Tuple[np.ndarray, ...]
    close: float = 1e-6
    step: float = 1e-5
    dtype: Any = F64  # of the finite differences


def normal(*shape, seed=0):
    return np.random.default_rng(seed + 7 * sum(shape)).standard_normal(shape)


def positive(*shape, seed=0):
    return np.abs(normal(*shape, seed=seed)) + 0.5


def apart(*shape, seed=0):
    """Numbers no two of which are close, none of them close to a half or a whole number."""
    count = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(count)
    return ((order - count // 2) * 0.373 + 0.117).reshape(shape)


def integers(values, dtype=np.int32):
    return np.array(values, dtype)


def const(value, like):
    return popxl.constant(value, like.dtype)


def probabilities(*shape):
    x = positive(*shape)
    return x / x.sum(-1, keepdims=True)


def cast_there_and_back(x):
    return ops.cast(ops.cast(x, F32), x.dtype)


ZEROS_IN = np.where(np.arange(12).reshape(3, 4) % 5 == 0, 0.0, normal(3, 4))
IMAGE, KERNEL = normal(2, 4, 6, 7), normal(6, 2, 3, 2)
ROIS = np.array([[0.3, 0.4, 4.2, 5.1], [1.1, 0.2, 2.3, 2.4], [-1.5, 2.1, 3.3, 7.7]])

UNARY = {
    "abs": apart, "negate": normal, "ceil": apart, "floor": apart, "sign": apart, "exp": normal, "log": positive,
    "sqrt": positive, "sin": normal, "cos": normal, "tanh": normal, "relu": apart, "gelu": normal, "geluerf": normal,
    "swish": normal,
}  # fmt: skip
REDUCTIONS = {
    "sum": normal, "mean": normal, "max": apart, "min": apart, "prod": normal, "l1": apart, "l2": normal,
    "sumsquare": normal, "logsum": positive, "logsumexp": normal, "median": apart,
}  # fmt: skip


def reduction(kind, **options):
    return lambda x: getattr(ops, kind)(x, **options)


CASES = [
    *[Case(kind, "", lambda x, kind=kind: getattr(ops, kind)(x), (of(3, 4),)) for kind, of in UNARY.items()],
    Case("geluerf", "at 0", lambda x: ops.geluerf(x), (np.array([0.0, 3.0, -5.0]),)),
    Case("log", "log2", lambda x: ops.log2(x), (positive(3),)),
    Case("clip", "both", lambda x: ops.clip(x, -0.5, 0.5), (apart(3, 4),)),
    Case("clip", "below", lambda x: ops.clip(x, min=-0.5), (apart(3, 4),)),
    Case("clip", "neither", lambda x: ops.clip(x), (apart(3, 4),)),
    Case("softmax", "", lambda x: ops.softmax(x, 1), (normal(3, 4),)),
    Case("softmax", "axis 0", lambda x: ops.softmax(x, 0), (normal(3, 4, 2),)),
    Case("cumsum", "", lambda x: ops.cumsum(x, 1), (normal(3, 4, 2),)),
    Case("cast", "", cast_there_and_back, (normal(3),), 1e-3, 1e-2),
    Case("identity", "", lambda x: ops.identity(x), (normal(3),)),
    Case("print_tensor", "", lambda x: ops.print_tensor(x, print_self=False), (normal(3),)),
    # Several operands
    Case("add", "", lambda x, y: ops.add(x, y), (normal(3, 1), normal(2, 1, 4))),
    Case("sub", "", lambda x, y: ops.sub(x, y), (normal(3, 4), normal(4))),
    Case("sub", "constant", lambda x: 1.5 - x, (normal(3, 4),)),
    Case("mul", "", lambda x, y: ops.mul(x, y), (normal(3, 4), normal(3, 1))),
    Case("mul", "scalar", lambda x, y: ops.mul(x, y), (normal(3, 4), normal())),
    Case("mul", "square", lambda x: ops.mul(x, x), (normal(3, 4),)),
    Case("div", "", lambda x, y: ops.div(x, y), (normal(3, 4), positive(1, 4))),
    Case("pow", "", lambda x, y: ops.pow(x, y), (positive(3, 4), normal(3, 4))),
    Case("pow", "broadcast", lambda x, y: ops.pow(x, y), (positive(3, 1), normal(4))),
    Case("pow", "square", lambda x: ops.pow(x, const(2, x)), (normal(3, 4),)),
    Case("fmod", "", lambda x: ops.fmod(x, const([0.7, -0.9, 1.1], x)), (normal(2, 3),)),
    Case("maximum", "", lambda x, y, z: ops.maximum(x, y, z), (normal(9), normal(9, seed=1), normal(9, seed=2))),
    Case("maximum", "one", lambda x: ops.maximum(x), (normal(9),)),
    Case("where", "", lambda c, x, y: ops.where(c, x, y), (integers([1, 0, 1]), normal(2, 3), normal(1, 1))),
    Case("where", "key", lambda x: x[[True, False, True]], (normal(2, 3),)),
    # Reductions
    *[
        Case(kind, str(options), reduction(kind, **options), (of(2, 3, 4),))
        for kind, of in REDUCTIONS.items()
        for options in ({}, {"axis": 1}, {"axis": [0, 2], "keepdims": True}, {"axis": -1})
    ],
    *[
        Case(kind, "no axis", reduction(kind, axis=()), (of(2, 3),))
        for kind, of in REDUCTIONS.items()
        if kind not in ("logsum", "median")
    ],
    Case("prod", "zeros", lambda x: ops.prod(x, 1), (ZEROS_IN,)),
    Case("topk", "largest", lambda x: ops.topk(x, 2, 1, True, True)[0], (apart(3, 4),)),
    Case("topk", "smallest", lambda x: ops.topk(x, 3, 0, False, True)[0], (apart(4, 2),)),
    # Movement
    Case("reshape", "", lambda x: ops.reshape(x, (4, -1)), (normal(3, 4),)),
    Case("reshape", "squeeze", lambda x: ops.squeeze(x), (normal(1, 4, 1),)),
    Case("reshape", "flatten", lambda x: ops.flatten(x), (normal(),)),
    Case("transpose", "", lambda x: ops.transpose(x, (2, 0, 1)), (normal(2, 3, 4),)),
    Case("transpose", "default", lambda x: x.T, (normal(2, 3, 4),)),
    Case("concat", "", lambda x, y: ops.concat([x, y, x], 1), (normal(2, 3), normal(2, 1))),
    Case("concat_", "", lambda x, y: ops.concat_([x, y], 1), (normal(2, 3), normal(2, 1))),
    Case("split", "", lambda x: ops.split(x, [1, 3], 1), (normal(2, 4),)),
    Case("split", "part", lambda x: ops.split(x, 2, 0)[1], (normal(4, 2),)),
    Case("slice", "", lambda x: ops.slice(x, [1, 0], [3, -1]), (normal(4, 3),)),
    Case("slice", "reversed", lambda x: ops.slice(x, [2, 3], [None, 0], [-1, -1]), (normal(4, 5),)),
    Case("slice", "key", lambda x: x[1, ::2, 4:0:-2], (normal(2, 5, 6),)),
    Case("subsample", "", lambda x: ops.subsample(x, [2, 1, 3]), (normal(5, 2, 7),)),
    Case("subsample", "diag", lambda x: x.diag(), (normal(3, 4),)),
    Case("dynamic_slice", "", lambda x, i: ops.dynamic_slice(x, i, [0, 2], [2, 3], True),
         (normal(3, 2, 4), integers([1, 1], np.uint32))),
    Case("dynamic_update", "", lambda x, i, u: ops.dynamic_update(x, i, u, [1], [2], True),
         (normal(3, 4), integers([1], np.uint32), normal(3, 2))),
    Case("gather", "", lambda x, i: ops.gather(x, i), (normal(4, 3), integers([[0, 3], [0, 1]]))),
    Case("gather", "axis 1", lambda x, i: ops.gather(x, i, 1), (normal(2, 4, 3), integers([3, 3, 0]))),
    Case("gather", "zero_OOR", lambda x, i: ops.gather(x, i, 1, zero_OOR=True),
         (normal(2, 4), integers([3, 9, 0, -7]))),
    Case("gather", "scalar index", lambda x, i: ops.gather(x, i), (normal(4, 3), integers(2))),
    Case("gather", "tied", lambda x, i: ops.tied_gather(x, i), (normal(4, 3), integers([2, 2], np.uint32))),
    Case("groupedgather", "", lambda x, i: ops.groupedgather(x, i, 2, 2),
         (normal(2, 3, 4, 2), integers([[0, 3, 3], [1, 2, 0]]))),
    Case("groupedgather", "zero_OOR", lambda x, i: ops.groupedgather(x, i, 1, 2, zero_OOR=True),
         (normal(2, 3, 2), integers([[[0, 2]], [[7, 1]]]))),
    Case("scatter", "", lambda x, i, v: ops.scatter(x, i, v, 1),
         (normal(3, 4), integers([[0, 2], [3, 1], [1, 0]]), normal(3, 2))),
    Case("scatter", "axis 0", lambda x, i, v: ops.scatter(x, i, v), (normal(3, 2), integers([[2, 0]]), normal(1, 2))),
    Case("scatter_reduce", "sum", lambda x, i: ops.scatter_reduce(x, i, "sum", axis_size=5),
         (normal(4, 3), integers([0, 4, 4, 1]))),
    Case("scatter_reduce", "sum, full", lambda x, i, v: ops.scatter_reduce(x, i, "sum", v, 1),
         (normal(2, 3), integers([[0, 4, 4], [1, 0, 1]]), normal(2, 5))),
    Case("scatter_reduce", "none", lambda x, i, v: ops.scatter_reduce(x, i, "none", v),
         (normal(2, 3), integers([[0], [3]]), normal(5, 3))),
    Case("scatter_reduce", "none, full", lambda x, i, v: ops.scatter_reduce(x, i, "none", v),
         (normal(2, 3), integers([[0, 1, 2], [3, 2, 1]]), normal(5, 3))),
    *[
        Case("scatter_reduce", name, lambda x, i, v, name=name: ops.scatter_reduce(x, i, name, v, 1),
             (apart(2, 4), integers([[0, 1, 1, 2], [2, 2, 0, 2]]), apart(2, 4, seed=1) + 0.05))
        for name in ("max", "min")
    ],
    Case("scatter_reduce", "max without initial values", lambda x, i: ops.scatter_reduce(x, i, "max", axis_size=3),
         (apart(6) + 5, integers([0, 2, 2, 0, 0, 2]))),
    Case("onehot", "", lambda i, v: ops.onehot(i, popxl.constant(4), v, 1), (integers([[0, 3], [1, 1]]), normal(2))),
    # Linear algebra
    Case("matmul", "", lambda x, y: ops.matmul(x, y), (normal(2, 3), normal(3, 4))),
    *[
        Case("matmul", f"{left} {right}", lambda x, y: ops.matmul(x, y), (normal(*left), normal(*right)))
        for left, right in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
                            ((2, 1, 2, 3), (5, 3, 2)), ((4, 2, 3), (3,)), ((3,), (2, 3, 4)), ((4, 2, 3), (4, 3, 2))]
    ],
    Case("conv", "", lambda x, w: ops.conv(x, w), (normal(2, 3, 5, 4), normal(2, 3, 2, 3))),
    Case("conv", "everything", lambda x, w: ops.conv(x, w, (2, 3), (1, 0, 2, 3), (2, 1), 2), (IMAGE, KERNEL)),
    Case("conv", "wide padding", lambda x, w: ops.conv(x, w, (1, 2), (4, 3, 4, 3), groups=2), (IMAGE, KERNEL)),
    Case("conv", "unused edge", lambda x, w: ops.conv(x, w, (4, 4), groups=2), (IMAGE, KERNEL)),
    Case("conv", "same_upper", lambda x, w: ops.conv(x, w, (2, 2), groups=2, pad_type="same_upper"), (IMAGE, KERNEL)),
    Case("conv", "one axis", lambda x, w: ops.conv(x, w, (2,), (1, 1), (1,)), (normal(1, 2, 7), normal(3, 2, 3))),
    # Pools, interpolation
    Case("max_pool", "", lambda x: ops.max_pool(x, (2, 2), (2, 2)), (apart(2, 1, 4, 5),)),
    Case("max_pool", "padding", lambda x: ops.max_pool(x, (3, 2), (2, 1), (1, 0, 1, 1)), (apart(1, 2, 5, 4),)),
    Case("max_pool", "ceil_mode", lambda x: ops.max_pool(x, (2, 2), (2, 2), ceil_mode=True), (apart(1, 2, 5, 3),)),
    Case("average_pool", "", lambda x: ops.average_pool(x, (2, 2), (2, 2)), (normal(2, 1, 4, 5),)),
    Case("average_pool", "padding", lambda x: ops.average_pool(x, (3, 2), (2, 1), (1, 0, 1, 1)), (normal(1, 2, 5, 4),)),
    Case("average_pool", "ceil_mode", lambda x: ops.average_pool(x, (2, 3), (2, 2), ceil_mode=True),
         (normal(1, 2, 5, 4),)),
    *[
        Case("interpolate", f"{mode} {coordinates} {nearest}",
             lambda x, options=(mode, nearest, coordinates): ops.interpolate(x, (1.0, 1.0, 1.5, 0.7), *options),
             (normal(1, 2, 4, 5),))
        for mode, nearest in [("linear", "floor"), ("cubic", "floor")]
        + [("nearest", rounding) for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")]
        for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    ],
    Case("roi_align", "", lambda x: ops.roi_align(
        x, popxl.constant(ROIS, x.dtype), popxl.constant([1, 0, 1]), (3, 2), 0.9, 2), (normal(2, 3, 6, 7),)),
    # Normalisation, loss, dropout
    Case("group_norm", "", lambda x, w, b: ops.group_norm(x, w, b, 2), (normal(3, 4, 5), normal(4), normal(4, seed=1))),
    Case("group_norm", "layer_norm", lambda x, w, b: ops.layer_norm(x, w, b),
         (normal(3, 4), normal(4), normal(4, seed=1))),
    *[
        Case("nll_loss", f"{reduction} {ignore} {log_prob}",
             lambda p, labels, options=(ignore, reduction, log_prob): ops.nll_loss(p, labels, *options),
             (probabilities(3, 4), integers([0, 3, 2])))
        for reduction in ("mean", "sum", "none")
        for ignore in (None, 3)
        for log_prob in (False, True)
    ],
    Case("nll_loss", "two axes", lambda p, labels: ops.nll_loss(p, labels),
         (probabilities(2, 3, 4), integers([[0, 3, 2], [1, 1, 0]]))),
    Case("dropout", "", lambda x, seed: ops.dropout(x, seed, 0.4),
         (normal(5, 4), integers([7, 9], np.uint32)), 1e-4, 0.25, F32),
    Case("shaped_dropout", "", lambda x, seed: ops.shaped_dropout(x, seed, (5, 1), 0.4),
         (normal(5, 4), integers([7, 9], np.uint32)), 1e-4, 0.25, F32),
    Case("all_reduce", "", lambda x, y: ops.collectives.all_reduce([x, y], [0, 1]), (normal(3), normal(3, seed=1))),
]  # fmt: skip
# Checked by value in test_autodiff.py: what they give is not the derivative of what this replica computes, or not in
# numbers that can be varied.
ELSEWHERE = {
    "replicated_all_gather",
    "replica_sharded_slice",
    "replicated_slice",
    "pow2scale_cast_to_fp8",
    "pow2scale_cast_from_fp8",
}


def test_every_rule_has_a_case():
    assert {case.kind for case in CASES} | ELSEWHERE == set(RULES)


class Evaluation:
    """A case as a program: its outputs, and the gradients of the float operands for given gradients of the outputs."""

    def __init__(self, case, dtype):
        self.dtypes = [dtype if x.dtype.kind == "f" else dtypes.dtype.as_dtype(x.dtype) for x in case.operands]
        self.ir = popxl.Ir()
        with self.ir.main_graph:
            specs = [popxl.TensorSpec(x.shape, t) for x, t in zip(case.operands, self.dtypes)]
            fwd = self.ir.create_graph(self.listed(case.build), *specs)
            self.count = len(fwd.outputs)
            required = [t for t in fwd.inputs if t.dtype is dtype]
            self.info = autodiff(fwd, grads_required=required)
            kinds = {op.kind for graph in (fwd, self.info.graph) for op in graph.ops}
            assert case.kind in kinds
            self.loads = [popxl.h2d_stream(t.shape, t.dtype) for t in fwd.inputs]
            self.seeds = [popxl.h2d_stream(t.shape, t.dtype) for t in fwd.outputs[: self.count]]
            call = ops.call_with_info(fwd, *[ops.host_load(s) for s in self.loads])
            grads = ops.call(
                self.info.graph, *[ops.host_load(s) for s in self.seeds], inputs_dict=self.info.inputs_dict(call)
            )
            self.results = self.stored(call.outputs[: self.count])
            self.grads = self.stored(grads)
        for t, grad in zip(required, grads):
            assert (grad.shape, grad.dtype) == (t.shape, t.dtype)
        self.session = popxl.Session(self.ir)

    @staticmethod
    def listed(build):
        def listed(*ts):
            made = build(*ts)
            return list(made) if isinstance(made, (list, tuple)) else [made]

        return listed

    @staticmethod
    def stored(tensors):
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in tensors]
        for stream, t in zip(streams, tensors):
            ops.host_store(stream, t)
        return streams

    def run(self, operands, seeds):
        inputs = {
            stream: np.asarray(x, stream.dtype.as_numpy())
            for stream, x in zip(self.loads + self.seeds, list(operands) + list(seeds))
        }
        with np.errstate(all="ignore"):
            out = self.session.run(inputs, downcast_inputs=False)
        return [out[s] for s in self.results], [out[s] for s in self.grads]


def seeds_for(outputs):
    return [normal(*y.shape, seed=3) for y in outputs]


def names(case):
    return f"{case.kind} {case.name}".strip()


@pytest.mark.parametrize("case", CASES, ids=names)
def test_finite_differences(case):
    program = Evaluation(case, case.dtype)
    with program.session:
        outputs, _ = program.run(case.operands, [np.zeros(s.shape) for s in program.seeds])
        assert all(np.isfinite(y).all() for y in outputs)
        seeds = seeds_for(outputs)
        _, grads = program.run(case.operands, seeds)
        varied = [i for i, x in enumerate(case.operands) if x.dtype.kind == "f"]
        for i, grad in zip(varied, grads):
            expected = np.zeros(case.operands[i].shape)
            for place in np.ndindex(expected.shape):
                losses = []
                for sign in (1, -1):
                    operands = [np.array(x) for x in case.operands]
                    operands[i][place] += sign * case.step
                    results, _ = program.run(operands, seeds)
                    losses.append(sum(np.sum(seed * y) for seed, y in zip(seeds, results)))
                expected[place] = (losses[0] - losses[1]) / (2 * case.step)
            np.testing.assert_allclose(grad, expected, rtol=case.close, atol=case.close)


@pytest.mark.parametrize("case", CASES, ids=names)
def test_float16_rounds_once_or_little_more(case):
    half, single = Evaluation(case, F16), Evaluation(case, F32)
    operands = [x.astype(np.float16) if x.dtype.kind == "f" else x for x in case.operands]
    with half.session, single.session:
        seeds = [seed.astype(np.float16) for seed in seeds_for([np.zeros(s.shape) for s in half.seeds])]
        _, grads = half.run(operands, seeds)
        _, expected = single.run(operands, seeds)
        for grad, wide in zip(grads, expected):
            assert grad.dtype == np.float16
            scale = np.abs(wide).max() + 1e-3
            np.testing.assert_allclose(grad, wide, rtol=6e-3, atol=4e-3 * scale)
