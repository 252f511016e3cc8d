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

from popfn.host import ops as ops
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
    variable as variable,
)

Tensor._popxl = _sys.modules[__name__]
