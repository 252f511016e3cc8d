"""The names of popfn.host, their parameters and defaults are those of PopXL 3.4."""
import importlib
import inspect
import json
import os
import types

import pytest

import popfn.host as popxl
from popfn.host import _paths

with open(os.path.join(os.path.dirname(__file__), "..", "data", "popxl_api.json")) as file:
    API = json.load(file)  # name -> "(parameters)", or what it is: "property", "module", "value", ...

INTERNAL = "a step inside PopXL's own functions"
ENUM = "an enumeration or object of PopART's C++ side"
ALIAS = "a type alias for PopXL's own annotations"
LEFT_OUT = {
    **dict.fromkeys(
        """
        fp8_utils.CandidateConfig fp8_utils.FpDef fp8_utils.calculate_candidate_metric
        fp8_utils.calculate_metric_mse fp8_utils.find_exponential_range fp8_utils.float8_143_def
        fp8_utils.float8_152_def fp8_utils.ieee_fp16_denorms fp8_utils.ieee_fp32_no_denorms
        fp8_utils.log_histogram ops.conv.multi_conv_options ops.pool.receptive_attributes
        ops.remote_load.multiply_tuple ops.reshape.reshape_handle_negative_axis ops.slice.INT_MAX
        ops.slice.INT_MIN ops.slice.process_args ops.utils.convert_optional_dtype
        ops.utils.convert_optional_float ops.utils.convert_optional_int ops.utils.convert_optional_int64_list
        ops.var_updates.adam_updater.create_adamupdater ops.var_updates.utils.handle_optimizer_value
        context.get_source_location context.op_debug_context utils.HW_DEVICE_CONNECTION_TIMEOUT
        utils.torch_imported fp8_utils.torch_imported
        """.split(),
        INTERNAL,
    ),
    **dict.fromkeys(
        """
        ops.code_copy.TO_IR_ENUM_MAP ops.collectives.CommGroup ops.collectives.CommGroupType
        ops.collectives.collectives.OP_MAP ops.collectives.collectives.to_collective_op
        ops.negative_log_likelihood.REDUCTION_MAP ops.print_tensor.FLOAT_FORMAT_MAP
        ops.print_tensor.PrintTensorFmt ops.scatter_reduce.reduction_dict tensor.TILE_SET_MAP
        """.split(),
        ENUM,
    ),
    **dict.fromkeys(
        """
        context.Fn context.InSequenceKey ops.code_copy.CODE_LOCATION
        ops.collectives.collectives.CollectiveOps ops.interpolate.InterpolateCoordinateTransformationType
        ops.interpolate.InterpolateNearestType ops.interpolate.InterpolateType
        ops.negative_log_likelihood.REDUCTION_TYPE ops.print_tensor.FloatFormat
        ops.scatter_reduce.ScatterReductionType session.StreamBufferMaps session.d2hStreamBufferMaps
        session.h2dStreamBufferMaps typing_ typing_.NewAliasAnnotation typing_.T
        Tensor.__init_subclass__
        """.split(),
        ALIAS,
    ),
}
NAMES = sorted(name[len("popxl.") :] for name in API)
ADDED = {"engine", "gradients", "kernels", "options"}  # modules that PopXL has not
READ_BY_THE_ENGINE = {"Graph.ops", "Tensor.graph", "Tensor.producer", "Tensor.consumer"}


def find(path):
    """The object of this name: `ops.call.CallSiteInfo` is in the module ops.call, though ops.call is a function."""
    parts = path.split(".")
    for n in range(len(parts) - 1, -1, -1):
        try:
            found = importlib.import_module(".".join(["popfn.host"] + parts[:n]))
        except ImportError:
            continue
        try:
            for part in parts[n:]:
                found = getattr(found, part)
            return found
        except AttributeError:
            continue
    raise AttributeError(path)


def signature(function):
    parameters, after_star = [], False
    for p in inspect.signature(function).parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not after_star:
            parameters.append("*")
            after_star = True
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        after_star = after_star or star == "*"
        parameters.append(star + p.name + ("" if p.default is p.empty else f"={p.default!r}"))
    return f"({', '.join(parameters)})"


def normalised(parameters):
    """Write the defaults as Python prints their values."""
    scope = {"dtypes": popxl.dtypes, "ReplicatedTensorSharding": popxl.ReplicatedTensorSharding}
    scope["TensorStorage"] = popxl.TensorStorage
    exec(f"def f{parameters}: pass", scope)
    return signature(scope["f"])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LEFT_OUT])
def test_name(name):
    found, expected = find(name), API["popxl." + name]
    if name.rpartition(".")[2] in ("__eq__", "__contains__"):
        assert len(inspect.signature(found).parameters) == 2
    elif name.endswith(("__exit__", "__hash__", "__init_subclass__")):
        assert found is not None
    elif inspect.isclass(found) and expected == "()":
        pass  # an enumeration, or made by PopXL's functions only: the constructor is no part of the API
    elif expected.startswith("(") and not isinstance(found, property):
        assert signature(found) == normalised(expected)
    elif expected == "module":
        assert isinstance(found, types.ModuleType)
    elif expected == "property":
        is_slot = inspect.ismemberdescriptor(found)
        assert is_slot or isinstance(found, property) or name.split(".")[0] == "TensorSpec"


def test_what_is_left_out_is_not_there():
    for name in LEFT_OUT:
        assert "popxl." + name in API
        if name == "Tensor.__init_subclass__":
            continue
        with pytest.raises(AttributeError):
            find(name)


@pytest.mark.parametrize("prefix", ["", "ops.", "ops.CallSiteInfo.", "Graph.", "Ir.", "Session.", "Tensor."])
def test_no_name_is_added(prefix):
    owner = find(prefix.rstrip(".")) if prefix else popxl
    added = {prefix + name for name in dir(owner) if not name.startswith("_")} - set(NAMES)
    added = {name for name in added if name[len(prefix) :] not in API.get("popxl." + prefix.rstrip("."), "")}
    # PopXL's modules are attributes too, `ops.random_seed` say, where no function has their name.
    modules = {"ops." + path for paths in _paths._OPS.values() for path in paths}
    added = {name for name in added if name not in modules or not isinstance(find(name), types.ModuleType)}
    assert added <= ADDED | READ_BY_THE_ENGINE | {"ops.utils", "tensorlocation"}


def test_the_constructors_that_popxl_closes():
    for cls, error in (
        (popxl.Graph, TypeError),
        (popxl.Tensor, RuntimeError),
        (popxl.dtype, TypeError),
        (popxl.HostToDeviceStream, NotImplementedError),
        (popxl.DeviceToHostStream, NotImplementedError),
        (popxl.ReplicaGrouping, RuntimeError),
    ):
        with pytest.raises(error, match="cannot be constructed"):
            cls()
