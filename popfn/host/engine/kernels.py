"""The table of kernels: what the engines know of each kind of op. A kernel stands beside its op in `popfn.host.ops`."""

from typing import Dict

from popfn.host.kernels.kernel import Kernel
from popfn.host.ops import (
    _activations,
    _call,
    _collectives,
    _control,
    _convolution,
    _elementwise,
    _float8,
    _indexing,
    _linear,
    _losses,
    _movement,
    _norms,
    _pooling,
    _print,
    _random,
    _reductions,
    _sampling,
    _scaled,
    _transfer,
    var_updates,
)

FAMILIES = (
    _activations,
    _call,
    _collectives,
    _control,
    _convolution,
    _elementwise,
    _float8,
    _indexing,
    _linear,
    _losses,
    _movement,
    _norms,
    _pooling,
    _print,
    _random,
    _reductions,
    _sampling,
    _scaled,
    _transfer,
    var_updates,
)

KERNELS: Dict[str, Kernel] = {kind: kernel for family in FAMILIES for kind, kernel in family.KERNELS.items()}
