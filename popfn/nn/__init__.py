"""popfn.nn: what models are made of, composed of popfn.numpy's functions.

>>> import numpy as np, popfn as pf
>>> pf.nn.relu(np.array([-1.0, 2.0], np.float32))
Array([0., 2.], dtype=float32)
"""
from ._activations import (
    gelu as gelu,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    relu as relu,
    sigmoid as sigmoid,
    silu as silu,
    softmax as softmax,
)
from ._losses import cross_entropy as cross_entropy, one_hot as one_hot
