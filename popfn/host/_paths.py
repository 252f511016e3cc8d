"""The modules of PopXL that popfn.host groups otherwise: `from popfn.host.ops.call import CallSiteInfo` works too."""

import sys
import types
from typing import Dict

from popfn.host import _variables, ops, tensor
from popfn.host.remote_buffer import replica_sharded_buffer

# For each module of popfn.host.ops, PopXL's modules and the names that are in them.
_OPS: Dict[str, Dict[str, str]] = {
    "_activations": {
        "gelu": "gelu gelu_",
        "geluerf": "geluerf geluerf_",
        "relu": "relu relu_",
        "softmax": "softmax",
        "swish": "swish swish_",
    },
    "_call": {"call": "CallSiteInfo call call_with_info"},
    "_control": {
        "conditional": "ConditionalSiteInfo conditional conditional_with_info",
        "repeat": "repeat repeat_with_info",
    },
    "_collectives": {
        "collectives.all_reduce": "all_reduce all_reduce_identical_grad_inputs all_reduce_identical_inputs",
        "collectives.replicated_all_gather": "replicated_all_gather",
        "collectives.replicated_all_reduce": "replicated_all_reduce replicated_all_reduce_",
        "collectives.replicated_reduce_scatter": "replica_sharded_slice replicated_reduce_scatter replicated_slice",
    },
    "_convolution": {"conv": "conv conv_pow2scaled conv_transpose conv_transpose_pow2scaled"},
    "_elementwise": {
        "abs": "abs",
        "add": "add add_",
        "cast": "cast",
        "ceil": "ceil",
        "clip": "clamp clip",
        "cos": "cos",
        "detach": "detach detach_",
        "div": "div",
        "equal": "equal",
        "exp": "exp exp_",
        "floor": "floor",
        "fmod": "fmod",
        "greater": "greater",
        "identity": "identity rename",
        "isfinite": "isfinite",
        "isinf": "isinf",
        "isnan": "isnan",
        "log": "log log2",
        "logical_and": "logical_and",
        "logical_not": "logical_not",
        "logical_or": "logical_or",
        "max": "maximum",
        "mul": "mul",
        "negate": "negate",
        "pow": "pow",
        "sign": "sign",
        "sin": "sin",
        "sqrt": "sqrt",
        "sub": "sub",
        "tanh": "tanh",
        "where": "where",
    },
    "_float8": {"cast": "pow2scale_cast_from_fp8 pow2scale_cast_to_fp8", "matmul": "matmul_pow2scaled"},
    "_indexing": {
        "gather": "gather groupedgather tied_gather",
        "onehot": "onehot",
        "scatter": "scatter",
        "scatter_reduce": "grouped_scatter_reduce scatter_reduce",
    },
    "_linear": {"matmul": "matmul"},
    "_losses": {"negative_log_likelihood": "nll_loss nll_loss_with_softmax_grad"},
    "_movement": {
        "concat": "concat concat_",
        "dynamic_slice": "dynamic_slice",
        "dynamic_update": "dynamic_update dynamic_update_",
        "init": "init",
        "io_tile_copy": "io_tile_copy",
        "ipu_copy": "ipu_copy",
        "reshape": "flatten flatten_ reshape reshape_",
        "slice": "slice slice_",
        "split": "split",
        "squeeze": "squeeze",
        "subsample": "subsample",
        "transpose": "transpose transpose_",
    },
    "_norms": {"batch_norm": "batch_norm_inference", "group_norm": "group_norm layer_norm"},
    "_pooling": {"pool": "average_pool max_pool"},
    "_print": {"print_tensor": "print_tensor"},
    "_random": {
        "dropout": "dropout",
        "random": "random_normal random_uniform",
        "random_seed": "create_random_seed split_random_seed",
        "shaped_dropout": "shaped_dropout",
    },
    "_reductions": {
        "argminmax": "argmax argmin",
        "cumsum": "cumsum",
        "histogram": "check_increment histogram",
        "l1": "l1",
        "l2": "l2",
        "lamb": "lamb_square",
        "logsum": "logsum",
        "logsumexp": "logsumexp",
        "max": "max",
        "mean": "mean",
        "median": "median",
        "min": "min",
        "prod": "prod",
        "sum": "sum",
        "sumsquare": "sumsquare",
        "topk": "topk",
    },
    "_sampling": {"interpolate": "interpolate", "roialign": "roi_align"},
    "_scaled": {"increment_mod": "increment_mod increment_mod_", "scaled_add": "scaled_add scaled_add_"},
    "_transfer": {
        "code_copy": "code_copy remote_code_load",
        "host_load": "host_load",
        "host_store": "host_store",
        "remote_load": "remote_load remote_load_",
        "remote_store": "remote_store",
    },
    "var_updates": {
        "var_updates.accumulate": "accumulate_ accumulate_mean_ accumulate_moving_average_ "
        "accumulate_moving_average_square_ accumulate_square_ accumulator_scale_ accumulator_zero_ "
        "sparse_accumulate_",
        "var_updates.adam_updater": "adam_updater adamax_updater lamb_updater weight_decay_is_required",
        "var_updates.adam_var_update": "adam_var_update",
        "var_updates.copy_var_update": "copy_var_update_",
    },
}


def register() -> None:
    """Make the modules known to `import`. As in PopXL, `ops.call` is the function all the same."""
    for source, modules in _OPS.items():
        home = sys.modules[f"{ops.__name__}.{source}"]
        for path, names in modules.items():
            name = f"{ops.__name__}.{path}"
            module = sys.modules.setdefault(name, types.ModuleType(name, home.__doc__))
            parent, _, last = path.rpartition(".")
            package = sys.modules[f"{ops.__name__}.{parent}"] if parent else ops
            if not hasattr(package, last):  # `ops.random_seed.create_random_seed(...)`
                setattr(package, last, module)
            for function in names.split():
                setattr(module, function, getattr(home, function))
    for moved in (
        _variables.remote_replica_sharded_variable,
        _variables.remote_variable,
        _variables.replica_sharded_variable,
        _variables.variable,
        replica_sharded_buffer,
    ):
        setattr(tensor, moved.__name__, moved)
