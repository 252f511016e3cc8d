"""popfn.nn: what models are made of, composed of popfn.numpy's functions.

>>> import numpy as np, popfn as pf
>>> pf.nn.relu(np.array([-1.0, 2.0], np.float32))
Array([0., 2.], dtype=float32)
"""
from . import init as init
from ._activations import (
    celu as celu,
    elu as elu,
    gelu as gelu,
    glu as glu,
    hard_sigmoid as hard_sigmoid,
    hard_silu as hard_silu,
    hard_tanh as hard_tanh,
    leaky_relu as leaky_relu,
    log_sigmoid as log_sigmoid,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    mish as mish,
    relu as relu,
    relu6 as relu6,
    selu as selu,
    sigmoid as sigmoid,
    silu as silu,
    softmax as softmax,
    softplus as softplus,
    softsign as softsign,
)
from ._attention import (
    attention as attention,
    embedding as embedding,
    multi_head_attention as multi_head_attention,
    rotary_embedding as rotary_embedding,
)
from ._convolution import (
    avg_pool as avg_pool,
    conv as conv,
    conv_transpose as conv_transpose,
    max_pool as max_pool,
)
from ._dropout import dropout as dropout
from ._losses import (
    binary_cross_entropy as binary_cross_entropy,
    cross_entropy as cross_entropy,
    huber as huber,
    l1 as l1,
    mse as mse,
    nll as nll,
    one_hot as one_hot,
)
from ._norms import (
    BatchStatistics as BatchStatistics,
    batch_norm as batch_norm,
    group_norm as group_norm,
    layer_norm as layer_norm,
    rms_norm as rms_norm,
)
from ._resize import interpolate as interpolate
