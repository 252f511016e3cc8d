"""The vocabulary: one class per primitive, all its rules in it, and a function that applies it.

The functions take what the primitives take: operands of one dtype. Promotion is `popfn.numpy`'s.
"""
from .binary import (
    and_ as and_,
    eq as eq,
    floor_divide as floor_divide,
    ge as ge,
    gt as gt,
    integer_pow as integer_pow,
    le as le,
    log_add_exp as log_add_exp,
    lt as lt,
    maximum as maximum,
    minimum as minimum,
    ne as ne,
    or_ as or_,
    pow_ as pow_,
    remainder as remainder,
    select as select,
)
from .bits import (
    bitwise_and as bitwise_and,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    shift_left as shift_left,
    shift_right as shift_right,
)
from .collectives import (
    all_gather as all_gather,
    all_to_all as all_to_all,
    axis_index as axis_index,
    of_shards as of_shards,
    own_slice as own_slice,
    pmax as pmax,
    pmin as pmin,
    ppermute as ppermute,
    psum as psum,
    pvary as pvary,
    shard_of as shard_of,
)
from .contract import dot_general as dot_general
from .convolution import conv as conv
from .dynamic import dynamic_slice as dynamic_slice, dynamic_update_slice as dynamic_update_slice
from .elementwise import (
    abs_ as abs_,
    ceil as ceil,
    convert as convert,
    cos as cos,
    div as div,
    erf as erf,
    exp as exp,
    expm1 as expm1,
    floor as floor,
    gelu as gelu,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    not_ as not_,
    reciprocal as reciprocal,
    relu as relu,
    round_ as round_,
    rsqrt as rsqrt,
    sigmoid as sigmoid,
    sign as sign,
    sin as sin,
    sqrt as sqrt,
    stop_gradient as stop_gradient,
    tanh as tanh,
)
from .float8 import (
    cast_from_float8 as cast_from_float8,
    cast_to_float8 as cast_to_float8,
    matmul_pow2scaled as matmul_pow2scaled,
)
from .indexing import (
    as_int32 as as_int32,
    counted_indices as counted_indices,
    in_bounds as in_bounds,
    is_inside as is_inside,
    take as take,
    take_where as take_where,
    wrapped as wrapped,
)
from .kinds import (
    add as add,
    mul as mul,
    neg as neg,
    safe_mul as safe_mul,
    sub as sub,
)
from .memory import cut as cut, join as join, place as place
from .order import along_axis as along_axis, sort as sort, topk as topk
from .pooling import max_pool as max_pool, sum_pool as sum_pool
from .random import (
    child_key as child_key,
    dropout as dropout,
    random_normal as random_normal,
    random_uniform as random_uniform,
    split_key as split_key,
)
from .reduce import (
    argmax as argmax,
    max_over as max_over,
    min_over as min_over,
    prod_over as prod_over,
    softmax as softmax,
)
from .scans import cumlogsumexp as cumlogsumexp, cummax as cummax, cumprod as cumprod, cumsum as cumsum
from .scatter import (
    scatter_add as scatter_add,
    scatter_max as scatter_max,
    scatter_min as scatter_min,
    scatter_set as scatter_set,
)
from .shaping import (
    broadcast_to as broadcast_to,
    reshape as reshape,
    sum_over as sum_over,
    transpose as transpose,
)
from .structural import (
    concat as concat,
    instantiate as instantiate,
    iota as iota,
    pad as pad,
    reverse as reverse,
    slice_ as slice_,
    slice_axis as slice_axis,
    squeeze as squeeze,
)
from .trig import (
    acos as acos,
    acosh as acosh,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    cosh as cosh,
    hypot as hypot,
    sinh as sinh,
    tan as tan,
)
