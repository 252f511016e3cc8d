"""Collectives: ops over the replicas of each group, or over the IPUs of one replica."""

from popfn.host.ops._collectives import (
    all_reduce as all_reduce,
    all_reduce_identical_grad_inputs as all_reduce_identical_grad_inputs,
    all_reduce_identical_inputs as all_reduce_identical_inputs,
    replica_sharded_slice as replica_sharded_slice,
    replicated_all_gather as replicated_all_gather,
    replicated_all_reduce as replicated_all_reduce,
    replicated_all_reduce_ as replicated_all_reduce_,
    replicated_reduce_scatter as replicated_reduce_scatter,
    replicated_slice as replicated_slice,
)

__all__ = [
    "all_reduce",
    "all_reduce_identical_grad_inputs",
    "all_reduce_identical_inputs",
    "replica_sharded_slice",
    "replicated_all_gather",
    "replicated_all_reduce",
    "replicated_all_reduce_",
    "replicated_reduce_scatter",
    "replicated_slice",
]
