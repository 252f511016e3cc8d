"""popfn.numpy: array functions under the Python array API standard's names.

They promote as JAX does (weak Python scalars, 32 bits), broadcast as NumPy does, and are built from popfn's primitives,
so that they run at once on concrete arrays and are recorded on traced ones. Where NumPy defines a value, the value is
NumPy's. `axis` is an int, a tuple of ints or None for all axes wherever more than one axis makes sense. A name of the
standard that is not here says why when it is asked for.

>>> import popfn.numpy as pnp
>>> pnp.mean(pnp.asarray([[1, 2], [3, 5]]), axis=0)
Array([2. , 3.5], dtype=float32)
"""
import math as _math
import typing as _typing

from .._promotion import Axis as Axis
from ..trace.aval import (
    bool_ as _bool,
    float16 as float16,
    float32 as float32,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
)
from . import linalg as linalg
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
    empty as empty,
    empty_like as empty_like,
    eye as eye,
    from_dlpack as from_dlpack,
    full as full,
    full_like as full_like,
    linspace as linspace,
    meshgrid as meshgrid,
    ones as ones,
    ones_like as ones_like,
    stack as stack,
    tril as tril,
    triu as triu,
    zeros as zeros,
    zeros_like as zeros_like,
)
from ._dtypes import (
    __array_namespace_info__ as __array_namespace_info__,
    can_cast as can_cast,
    finfo as finfo,
    iinfo as iinfo,
    isdtype as isdtype,
    result_type as result_type,
)
from ._einsum import einsum as einsum
from ._elementwise import (
    abs as abs,
    acos as acos,
    acosh as acosh,
    add as add,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    bitwise_and as bitwise_and,
    bitwise_invert as bitwise_invert,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_xor as bitwise_xor,
    ceil as ceil,
    clip as clip,
    copysign as copysign,
    cos as cos,
    cosh as cosh,
    divide as divide,
    equal as equal,
    erf as erf,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    floor as floor,
    floor_divide as floor_divide,
    greater as greater,
    greater_equal as greater_equal,
    hypot as hypot,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    less as less,
    less_equal as less_equal,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    logaddexp as logaddexp,
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
    round as round,
    rsqrt as rsqrt,
    sign as sign,
    signbit as signbit,
    sin as sin,
    sinh as sinh,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    tan as tan,
    tanh as tanh,
    trunc as trunc,
    where as where,
)
from ._float8 import (
    cast_from_float8 as cast_from_float8,
    cast_to_float8 as cast_to_float8,
    matmul_pow2scaled as matmul_pow2scaled,
)
from ._indexing import (
    dynamic_index_in_dim as dynamic_index_in_dim,
    dynamic_slice as dynamic_slice,
    dynamic_slice_in_dim as dynamic_slice_in_dim,
    dynamic_update_index_in_dim as dynamic_update_index_in_dim,
    dynamic_update_slice as dynamic_update_slice,
    dynamic_update_slice_in_dim as dynamic_update_slice_in_dim,
    put_along_axis as put_along_axis,
    take as take,
    take_along_axis as take_along_axis,
)
from ._left_out import LEFT_OUT as _LEFT_OUT
from ._order import (
    argsort as argsort,
    bincount as bincount,
    histogram as histogram,
    median as median,
    quantile as quantile,
    searchsorted as searchsorted,
    sort as sort,
    topk as topk,
    unique as unique,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from ._reduce import (
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    count_nonzero as count_nonzero,
    max as max,
    mean as mean,
    min as min,
    prod as prod,
    std as std,
    sum as sum,
    var as var,
)
from ._scans import (
    cummax as cummax,
    cummin as cummin,
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    diff as diff,
    logcumsumexp as logcumsumexp,
)
from ._shapes import (
    array_split as array_split,
    broadcast_arrays as broadcast_arrays,
    broadcast_to as broadcast_to,
    expand_dims as expand_dims,
    flip as flip,
    matrix_transpose as matrix_transpose,
    moveaxis as moveaxis,
    pad as pad,
    permute_dims as permute_dims,
    repeat as repeat,
    reshape as reshape,
    roll as roll,
    split as split,
    squeeze as squeeze,
    swapaxes as swapaxes,
    tile as tile,
    unstack as unstack,
)

__array_api_version__ = "2023.12"
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
bool = _bool

if not _typing.TYPE_CHECKING:  # a type checker would take any name for known
    def __getattr__(name):
        """The reason why a name of the array API standard is not here."""
        reason = f": {_LEFT_OUT[name]}" if name in _LEFT_OUT else ""
        raise AttributeError(f"popfn.numpy has no {name}{reason}")
