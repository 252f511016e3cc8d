"""The table that drives the rule tests: a file of rows for each family of primitives; `table` has what they share."""
from . import (
    basic as basic,
    contraction as contraction,
    control as control,
    custom as custom,
    effects as effects,
    indexing as indexing,
    memory as memory,
    numerics as numerics,
    order as order,
    random as random,
)
from .table import CASES as CASES, LINEAR as LINEAR, ULPS as ULPS, Case as Case, P as P
