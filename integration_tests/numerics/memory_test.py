"""What an op made is freed with its result."""

import gc

import numpy as np
import pytest

from keras import ops
from keras.src.backend.tinygrad.engine import tracing

X = np.linspace(0.1, 0.9, 64, dtype="float32").reshape(8, 8)


@ops.custom_gradient
def _tripled(x):
    y = x * 3

    def grad(*args, upstream):
        return (upstream * 3,)

    return y, grad


# Ops with declared gradients.
OPS = {
    "attention": lambda x: ops.dot_product_attention(*[x[None, :, None]] * 3),
    "batch_normalization": lambda x: ops.batch_normalization(x, x[0], x[1], 1),
    "conv": lambda x: ops.conv(x[None, ..., None], np.ones((3, 3, 1, 2)), 1),
    "cumprod": ops.cumprod,
    "custom_gradient": _tripled,
    "erfinv": ops.erfinv,
    "gelu": ops.gelu,
    "inv": lambda x: ops.inv(x + np.eye(8, dtype="float32")),
    "log_softmax": ops.log_softmax,
    "logsumexp": ops.logsumexp,
    "matmul": lambda x: ops.matmul(x, x),
    "max_pool": lambda x: ops.max_pool(x[None, ..., None], 2),
    "scan": lambda x: ops.scan(lambda c, a: (c + a, c), x[0], x)[1],
    "scatter_update": lambda x: ops.scatter_update(x, [[0]], x[:1]),
    "segment_sum": lambda x: ops.segment_sum(x, np.arange(8)),
    "sigmoid": ops.sigmoid,
    "softmax": ops.softmax,
    "softplus": ops.softplus,
    "svd": lambda x: ops.svd(x)[1],
    "take": lambda x: ops.take(x, np.array([1, 2]), axis=0),
    "var": ops.var,
}


@pytest.mark.parametrize("name", OPS)
def test_nothing_is_left(name):
    x = ops.convert_to_tensor(X)
    counts = []
    for _ in range(4):
        ops.convert_to_numpy(OPS[name](x))
        gc.collect()
        counts.append(len(tracing.live_tensors()))
    # The first may fill caches.
    assert counts[1:] == counts[1:2] * 3
