"""The gradient of each kind of op, as ops. See `popfn.host.transforms.autodiff` for their use."""

from typing import Dict

from popfn.host.gradients import collectives, elementwise, linear, movement, nn, reductions, spatial
from popfn.host.gradients.site import Rule as Rule, Site as Site

RULES: Dict[str, Rule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **movement.RULES,
    **linear.RULES,
    **spatial.RULES,
    **nn.RULES,
    **collectives.RULES,
}
"""How to differentiate a kind of op. One that is in neither table stops gradients, as `detach` does."""

REFUSED = frozenset(
    [
        "equal",
        "greater",
        "logical_and",
        "logical_or",
        "logical_not",
        "matmul_pow2scaled",
        "conv_pow2scaled",
        "batch_norm_inference",
        "repeat",
    ]
)
"""Kinds that cannot be differentiated, and say so."""
