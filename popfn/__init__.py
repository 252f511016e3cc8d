"""popfn: a JAX-style functional front end for Graphcore IPUs.

Pure functions on arrays are traced into jaxprs; `grad`, `jvp`, `jit` and the rest are function wrappers that turn
jaxprs into jaxprs; the result is lowered through the PopXL API and runs on the IPU, or on popfn's own host
implementation of PopXL.
"""
from . import (
    _operators as _operators,  # gives Array its operators
    debug as debug,
    distributed as distributed,
    errors as errors,
    nn as nn,
    numpy as numpy,
    optim as optim,
    random as random,
    zero as zero,
)
from ._batch import HostStream as HostStream, batch_serialise as batch_serialise
from ._checkpoint import (
    checkpoint as checkpoint,
    checkpoint_name as checkpoint_name,
    remat as remat,
    save_only_names as save_only_names,
)
from ._collectives import (
    all_gather as all_gather,
    all_to_all as all_to_all,
    axis_index as axis_index,
    axis_size as axis_size,
    pmax as pmax,
    pmean as pmean,
    pmin as pmin,
    ppermute as ppermute,
    psum as psum,
    psum_scatter as psum_scatter,
    pvary as pvary,
)
from ._compile import jit as jit, lower as lower
from ._control import (
    associative_scan as associative_scan,
    cond as cond,
    fori_loop as fori_loop,
    map as map,
    scan as scan,
    switch as switch,
    while_loop as while_loop,
)
from ._custom import custom_jvp as custom_jvp, custom_vjp as custom_vjp
from ._custom_call import custom_call as custom_call
from ._derivatives import (
    hessian as hessian,
    jacfwd as jacfwd,
    jacrev as jacrev,
    linear_transpose as linear_transpose,
)
from ._memory import load as load, remote as remote
from ._phases import fwd_and_grad as fwd_and_grad
from ._remote import Remote as Remote, remote_buffer as remote_buffer
from ._shard import Mesh as Mesh, P as P, shard as shard
from ._vmap import vmap as vmap
from .api import (
    eval_shape as eval_shape,
    grad as grad,
    jvp as jvp,
    linearize as linearize,
    make_jaxpr as make_jaxpr,
    specs_from_annotations as specs_from_annotations,
    stop_gradient as stop_gradient,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from .lower.program import Program as Program
from .lower.session import Session as Session
from .trace import tree as tree
from .trace.array import Array as Array
from .trace.aval import (
    Aval as Aval,
    bool_ as bool_,
    enable_float64 as enable_float64,
    float8_143 as float8_143,
    float8_152 as float8_152,
    float16 as float16,
    float32 as float32,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    spec as spec,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
)
from .trace.jaxpr import Jaxpr as Jaxpr
from .trace.parse import parse_jaxpr as parse_jaxpr
from .transforms.replay import set_checks as set_checks

__version__ = "0.1.0"
