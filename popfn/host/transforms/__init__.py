"""Transforms of graphs."""

from popfn.host.transforms.autodiff import (
    ExpectedConnection as ExpectedConnection,
    ExpectedConnectionType as ExpectedConnectionType,
    GradGraphInfo as GradGraphInfo,
    autodiff as autodiff,
)
from popfn.host.transforms.decompose_sum import decompose_sum as decompose_sum
from popfn.host.transforms.merge_exchange import (
    io_tile_exchange as io_tile_exchange,
    merge_exchange as merge_exchange,
)

__all__ = [
    "ExpectedConnection",
    "ExpectedConnectionType",
    "GradGraphInfo",
    "autodiff",
    "decompose_sum",
    "io_tile_exchange",
    "merge_exchange",
]
