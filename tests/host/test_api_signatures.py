"""The names of popfn.host, their parameters and defaults are those of PopXL 3.4."""
import inspect
import re

import pytest

import popfn.host as popxl

# One call per line; a line that is indented continues the one above.
SIGNATURES = """
DeviceToHostStream()
Graph()
Graph.get_tensor(tensor_id)
Graph.register_op_created_hook(fn)
Graph.remove_op_created_hook(handle)
HostToDeviceStream()
Ir(replication=1)
Ir.create_empty_graph(name=None)
Ir.create_graph(fn, *args, **kwargs)
Ir.get_all_d2h_streams()
Ir.get_all_h2d_streams()
Module()
Module.__call__(*args, **kwargs)
Module.build(*args, **kwargs)
Session(ir, device_desc='cpu', weights_to_host_on_exit=True)
Session.create_host_outputs()
Session.expected_inputs()
Session.get_tensor_data(tensor)
Session.get_tensors_data(tensors)
Session.run(inputs=None, downcast_inputs=True)
Session.run_with_outputs(inputs=None, outputs=None, downcast_inputs=True)
Session.weights_from_host()
Session.weights_to_host()
Session.write_variable_data(tensor, data)
Session.write_variables_data(tensors)
Tensor()
Tensor.copy_to_ipu(destination, source=None)
Tensor.detach()
Tensor.detach_()
Tensor.diag()
Tensor.flatten()
Tensor.flatten_()
Tensor.reshape(shape)
Tensor.reshape_(shape)
Tensor.strides(shape=None)
Tensor.transpose(permutation=None)
Tensor.transpose_(permutation=None)
TensorSpec(shape, dtype, meta_shape=())
TensorSpec.to_dict()
TensorSpec.to_tuple()
constant(data, dtype=None, name=None, downcast=True, log2_scale=None, nan_on_overflow=None)
d2h_stream(shape, dtype, name=None)
dtype.as_dtype(type_value)
dtype.as_numpy()
dtype.as_torch()
dtype.from_name(name)
gcg()
get_current_graph()
get_ir()
get_main_graph()
gir()
gmg()
graph_input(shape, dtype, name=None, by_ref=False, meta_shape=None)
graph_output(t)
h2d_stream(shape, dtype, name=None)
in_sequence(mode=True)
io_tiles()
ipu(ipu)
name_scope(name)
ops.CallSiteInfo(subgraph_op)
ops.CallSiteInfo.graph_to_parent(graph_tensor)
ops.CallSiteInfo.graph_to_parent_input_index(idx)
ops.CallSiteInfo.graph_to_parent_output_index(idx)
ops.CallSiteInfo.parent_input(idx)
ops.CallSiteInfo.parent_output(idx)
ops.CallSiteInfo.parent_to_graph(parent_tensor)
ops.CallSiteInfo.parent_to_graph_input_index(idx)
ops.CallSiteInfo.parent_to_graph_output_index(idx)
ops.CallSiteInfo.set_parent_input_modified(parent_tensor, infer_modified_regions=False)
ops.abs(t)
ops.add(lhs, rhs)
ops.add_(lhs, rhs)
ops.argmax(t, dim=0, keepdim=False)
ops.argmin(t, dim=0, keepdim=False)
ops.call(graph, *inputs, inputs_dict=None)
ops.call_with_info(graph, *inputs, inputs_dict=None, check_inputs=True)
ops.cast(t, data_type)
ops.ceil(t)
ops.clamp(t, min=-inf, max=inf)
ops.clip(t, min=-inf, max=inf)
ops.concat(ts, axis=0)
ops.concat_(ts, axis=0)
ops.cos(t)
ops.cumsum(t, dim=0)
ops.detach(t)
ops.detach_(t)
ops.div(lhs, rhs)
ops.dynamic_slice(t, index, axes, sizes, no_overlap)
ops.dynamic_update(t, index, t_update, axes, sizes, no_overlap)
ops.dynamic_update_(t, index, t_update, axes, sizes, no_overlap)
ops.equal(lhs, rhs)
ops.exp(t)
ops.exp_(t)
ops.flatten(t)
ops.flatten_(t)
ops.floor(t)
ops.fmod(lhs, rhs)
ops.gather(t, indices, axis=0, available_memory_proportion=None, zero_OOR=False)
ops.gelu(t)
ops.gelu_(t)
ops.geluerf(t)
ops.geluerf_(t)
ops.greater(input, other)
ops.host_load(h2d_stream, name=None)
ops.host_store(d2h_stream, t)
ops.identity(t, output_name=None)
ops.init(shape, dtype, name=None, init_type='zero', meta_shape=None)
ops.io_tile_copy(t)
ops.ipu_copy(t, destination, source=None)
ops.isfinite(t)
ops.isinf(t)
ops.isnan(t)
ops.l1(t, axis=None, keepdims=False)
ops.l2(t, axis=None, keepdims=False)
ops.log(t)
ops.log2(t)
ops.logical_and(lhs, rhs)
ops.logical_not(t)
ops.logical_or(lhs, rhs)
ops.logsum(t, axis=None, keepdims=False)
ops.logsumexp(t, axis=None, keepdims=False)
ops.matmul(lhs, rhs, available_memory_proportion=None, output_type=None, partials_type=None)
ops.max(t, axis=None, keepdims=False)
ops.maximum(*ts)
ops.mean(t, axis=None, keepdims=False)
ops.min(t, axis=None, keepdims=False)
ops.mul(lhs, rhs)
ops.negate(t)
ops.onehot(t, num_classes, values, axis)
ops.pow(t, e)
ops.prod(t, axis=None, keepdims=False)
ops.relu(t)
ops.relu_(t)
ops.rename(t, output_name=None)
ops.reshape(t, shape)
ops.reshape_(t, shape)
ops.scatter_reduce(data, indices, reduction, initial_values=None, axis=0, axis_size=None,
    enable_index_broadcast=True, available_memory_proportion=None)
ops.sign(t)
ops.sin(t)
ops.slice(t, start=None, stop=None, step=None, axis=None)
ops.slice_(t, start=None, stop=None, step=None, axis=None)
ops.softmax(t, axis)
ops.split(t, splits, axis=0)
ops.sqrt(t)
ops.squeeze(t, axes=None)
ops.sub(lhs, rhs)
ops.subsample(t, strides)
ops.sum(t, axis=None, keepdims=False)
ops.sumsquare(t, axis=None, keepdims=False)
ops.swish(t)
ops.swish_(t)
ops.tanh(t)
ops.tied_gather(t, indices, axis=0, available_memory_proportion=None, zero_OOR=False)
ops.topk(t, k, axis, largest, sorted, available_memory_proportion=None)
ops.transpose(t, permutation=None)
ops.transpose_(t, permutation=None)
ops.var_updates.accumulate_(t, X, f=None)
ops.var_updates.accumulator_zero_(t)
ops.var_updates.copy_var_update_(t, X)
ops.where(condition, lhs, rhs)
streams.Stream()
tensor.Constant()
tensor.Constant.copy_to_ipu(dst, src)
tensor.Variable()
tensor.Variable.copy_to_ipu(dst, src)
utils.to_numpy(x, dtype=None, downcast=True, copy=True, log2_scale=None, nan_on_overflow=None)
variable(data, dtype=None, name=None, downcast=True, replica_grouping=None, retrieval_mode=None,
    log2_scale=None, nan_on_overflow=None)
"""
CALLS = re.sub(r"\n +", " ", SIGNATURES).strip().split("\n")
VALUES = """
bool complex128 complex64 context double dtype dtypes errors float float16 float32 float64 float8_143 float8_152 graph
half int16 int32 int64 int8 ir module ops session streams tensor uint16 uint32 uint64 uint8 utils
errors.UndefinedValue TensorByRef ops.var_updates
""".split()
HELPERS = {"engine"}  # the one module that PopXL has not


def find(path):
    found = popxl
    for part in path.split("."):
        found = getattr(found, part)
    return found


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


@pytest.mark.parametrize("call", CALLS)
def test_signature(call):
    path = call.partition("(")[0]
    assert path + signature(find(path)) == call


@pytest.mark.parametrize("name", VALUES)
def test_value(name):
    find(name)


@pytest.mark.parametrize("prefix", ["", "ops.", "ops.CallSiteInfo.", "Graph.", "Ir.", "Session.", "Tensor."])
def test_no_name_is_added(prefix):
    known = {line.partition("(")[0] for line in CALLS} | set(VALUES) | HELPERS
    properties = """
    Graph.called_graphs Graph.constants Graph.id Graph.inputs Graph.inputs_by_name Graph.ir Graph.main_graph Graph.name
    Graph.outputs Graph.tensors Graph.variables Ir.id Ir.instance_replication_factor Ir.main_graph
    Ir.num_host_transfers Ir.replication_factor Session.ir Session.is_attached Tensor.T Tensor.T_ Tensor.dtype
    Tensor.id Tensor.ipu Tensor.ir Tensor.meta_shape Tensor.name Tensor.nelms Tensor.rank Tensor.scope Tensor.shape
    Tensor.spec Tensor.tile_set ops.CallSiteInfo.called_graph ops.CallSiteInfo.inputs ops.CallSiteInfo.outputs
    """.split()
    internal = {"Graph.ops", "Tensor.graph", "Tensor.producer", "Tensor.consumer"}  # what the engine reads
    owner = find(prefix.rstrip(".")) if prefix else popxl
    added = {prefix + name for name in dir(owner) if not name.startswith("_")} - known - set(properties) - internal
    assert added == set()


def test_the_constructors_that_popxl_closes():
    for cls, error in (
        (popxl.Graph, TypeError),
        (popxl.Tensor, RuntimeError),
        (popxl.dtype, TypeError),
        (popxl.HostToDeviceStream, NotImplementedError),
        (popxl.DeviceToHostStream, NotImplementedError),
    ):
        with pytest.raises(error, match="cannot be constructed"):
            cls()
