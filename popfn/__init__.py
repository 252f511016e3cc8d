"""popfn: a JAX-style functional front end for Graphcore IPUs.

Pure functions on arrays are traced into jaxprs; `grad`, `jvp`, `jit` and the rest are function wrappers that turn
jaxprs into jaxprs; the result is lowered through the PopXL API and runs on the IPU, or on popfn's own host
implementation of PopXL.
"""
from . import _operators as _operators  # gives Array its operators
from . import nn as nn
from . import numpy as numpy
from .api import eval_shape as eval_shape
from .api import grad as grad
from .api import jvp as jvp
from .api import linearize as linearize
from .api import make_jaxpr as make_jaxpr
from .api import specs_from_annotations as specs_from_annotations
from .api import stop_gradient as stop_gradient
from .api import value_and_grad as value_and_grad
from .api import vjp as vjp
from .trace import errors as errors
from .trace import tree as tree
from .trace.array import Array as Array
from .trace.aval import Aval as Aval
from .trace.aval import bool_ as bool_
from .trace.aval import float8_143 as float8_143
from .trace.aval import float8_152 as float8_152
from .trace.aval import float16 as float16
from .trace.aval import float32 as float32
from .trace.aval import int8 as int8
from .trace.aval import int16 as int16
from .trace.aval import int32 as int32
from .trace.aval import spec as spec
from .trace.aval import uint8 as uint8
from .trace.aval import uint16 as uint16
from .trace.aval import uint32 as uint32
from .trace.jaxpr import Jaxpr as Jaxpr
from .trace.parse import parse_jaxpr as parse_jaxpr

__version__ = "0.1.0"
