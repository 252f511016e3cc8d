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
    lt as lt,
    maximum as maximum,
    minimum as minimum,
    ne as ne,
    or_ as or_,
    pow_ as pow_,
    remainder as remainder,
    select as select,
)
from .collectives import (
    all_gather as all_gather,
    all_to_all as all_to_all,
    axis_index as axis_index,
    own_slice as own_slice,
    pmax as pmax,
    pmin as pmin,
    ppermute as ppermute,
    psum as psum,
    pvary as pvary,
)
from .contract import dot_general as dot_general
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
    not_ as not_,
    reciprocal as reciprocal,
    relu as relu,
    rsqrt as rsqrt,
    sign as sign,
    sin as sin,
    sqrt as sqrt,
    stop_gradient as stop_gradient,
    tanh as tanh,
)
from .indexing import take as take
from .kinds import (
    add as add,
    mul as mul,
    neg as neg,
    safe_mul as safe_mul,
    sub as sub,
)
from .reduce import (
    argmax as argmax,
    max_over as max_over,
    min_over as min_over,
    prod_over as prod_over,
    softmax as softmax,
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
    squeeze as squeeze,
)
