"""The PopXL API on this machine: `import popfn.host as popxl` runs PopXL programs unchanged.

Example:
    >>> import numpy as np
    >>> import popfn.host as popxl
    >>> ir = popxl.Ir()
    >>> with ir.main_graph:
    ...     x = popxl.h2d_stream((3,), popxl.float32, name="x")
    ...     y = popxl.d2h_stream((3,), popxl.float32, name="y")
    ...     popxl.ops.host_store(y, popxl.ops.host_load(x) * 2.0)
    >>> with popxl.Session(ir) as session:
    ...     session.run({x: [1.0, 2.0, 3.0]})[y]
    array([2., 4., 6.], dtype=float32)
"""

import sys as _sys

from popfn.host import _paths, fp8_utils as fp8_utils, ops as ops, transforms as transforms
from popfn.host._variables import (
    remote_replica_sharded_variable as remote_replica_sharded_variable,
    remote_variable as remote_variable,
    replica_sharded_variable as replica_sharded_variable,
    variable as variable,
)
from popfn.host.context import (
    gcg as gcg,
    get_current_graph as get_current_graph,
    get_ir as get_ir,
    get_main_graph as get_main_graph,
    gir as gir,
    gmg as gmg,
    in_sequence as in_sequence,
    io_tiles as io_tiles,
    ipu as ipu,
    name_scope as name_scope,
)
from popfn.host.dtypes import (
    bool as bool,
    complex64 as complex64,
    complex128 as complex128,
    double as double,
    dtype as dtype,
    float as float,
    float8_143 as float8_143,
    float8_152 as float8_152,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    half as half,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from popfn.host.graph import Graph as Graph
from popfn.host.ir import Ir as Ir
from popfn.host.module import Module as Module
from popfn.host.random_seed import create_seeds as create_seeds
from popfn.host.remote_buffer import (
    RemoteBuffer as RemoteBuffer,
    remote_buffer as remote_buffer,
    replica_sharded_buffer as replica_sharded_buffer,
)
from popfn.host.replica_grouping import ReplicaGrouping as ReplicaGrouping
from popfn.host.session import Session as Session
from popfn.host.streams import (
    DeviceToHostStream as DeviceToHostStream,
    HostToDeviceStream as HostToDeviceStream,
    d2h_stream as d2h_stream,
    h2d_stream as h2d_stream,
)
from popfn.host.tensor import (
    Tensor as Tensor,
    TensorByRef as TensorByRef,
    TensorSpec as TensorSpec,
    constant as constant,
    graph_input as graph_input,
    graph_output as graph_output,
)
from popfn.host.tensorlocation import (
    ExecutionContext as ExecutionContext,
    ReplicatedTensorSharding as ReplicatedTensorSharding,
    TensorLocation as TensorLocation,
    TensorStorage as TensorStorage,
    TileSet as TileSet,
)

Tensor._popxl = _sys.modules[__name__]
_paths.register()

__all__ = [
    "DeviceToHostStream",
    "ExecutionContext",
    "Graph",
    "HostToDeviceStream",
    "Ir",
    "Module",
    "RemoteBuffer",
    "ReplicaGrouping",
    "ReplicatedTensorSharding",
    "Session",
    "Tensor",
    "TensorByRef",
    "TensorLocation",
    "TensorSpec",
    "TensorStorage",
    "TileSet",
    "bool",
    "complex128",
    "complex64",
    "constant",
    "create_seeds",
    "d2h_stream",
    "double",
    "dtype",
    "float",
    "float16",
    "float32",
    "float64",
    "float8_143",
    "float8_152",
    "gcg",
    "get_current_graph",
    "get_ir",
    "get_main_graph",
    "gir",
    "gmg",
    "graph_input",
    "graph_output",
    "h2d_stream",
    "half",
    "in_sequence",
    "int16",
    "int32",
    "int64",
    "int8",
    "io_tiles",
    "ipu",
    "name_scope",
    "remote_buffer",
    "remote_replica_sharded_variable",
    "remote_variable",
    "replica_sharded_variable",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "variable",
]
