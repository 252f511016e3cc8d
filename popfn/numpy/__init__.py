"""popfn.numpy: array functions under the Python array API standard's names.

They promote as JAX does (weak Python scalars, 32 bits), broadcast as NumPy does, and are built from popfn's primitives,
so that they run at once on concrete arrays and are recorded on traced ones. Where NumPy defines a value, the value is
NumPy's. `axis` is an int, a tuple of ints or None for all axes wherever more than one axis makes sense.

>>> import popfn.numpy as pnp
>>> pnp.mean(pnp.asarray([[1, 2], [3, 5]]), axis=0)
Array([2. , 3.5], dtype=float32)
"""
import math as _math

from .._promotion import Axis as Axis
from ._contract import (
    matmul as matmul,
    tensordot as tensordot,
    vecdot as vecdot,
)
from ._create import (
    arange as arange,
    asarray as asarray,
    astype as astype,
    concat as concat,
    concatenate as concatenate,
    eye as eye,
    full as full,
    full_like as full_like,
    ones as ones,
    ones_like as ones_like,
    stack as stack,
    zeros as zeros,
    zeros_like as zeros_like,
)
from ._elementwise import (
    abs as abs,
    add as add,
    ceil as ceil,
    clip as clip,
    cos as cos,
    divide as divide,
    equal as equal,
    erf as erf,
    exp as exp,
    expm1 as expm1,
    floor as floor,
    floor_divide as floor_divide,
    greater as greater,
    greater_equal as greater_equal,
    less as less,
    less_equal as less_equal,
    log as log,
    log1p as log1p,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    maximum as maximum,
    minimum as minimum,
    multiply as multiply,
    negative as negative,
    not_equal as not_equal,
    positive as positive,
    pow as pow,
    reciprocal as reciprocal,
    remainder as remainder,
    rsqrt as rsqrt,
    sign as sign,
    sin as sin,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    tanh as tanh,
    where as where,
)
from ._indexing import (
    take as take,
)
from ._reduce import (
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    max as max,
    mean as mean,
    min as min,
    prod as prod,
    std as std,
    sum as sum,
    var as var,
)
from ._shapes import (
    broadcast_to as broadcast_to,
    expand_dims as expand_dims,
    flip as flip,
    matrix_transpose as matrix_transpose,
    moveaxis as moveaxis,
    pad as pad,
    permute_dims as permute_dims,
    reshape as reshape,
    squeeze as squeeze,
)

e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
