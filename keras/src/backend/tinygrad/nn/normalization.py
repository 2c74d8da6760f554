"""Batch statistics and normalization."""

import math

from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.nn.activations import to_float_tensor
from keras.src.backend.tinygrad.nn.activations import widen
from keras.src.backend.tinygrad.numpy.common import to_axes


def moments(x, axes, keepdims=False, synchronized=False):
    if synchronized:
        raise NotImplementedError(
            "Argument synchronized=True is not supported with tinygrad."
        )
    x = to_float_tensor(x)
    axes = to_axes(axes, x.ndim)
    return _moments(x, axes=axes, keepdims=bool(keepdims))


@traced_once()
def _moments(x, axes, keepdims):
    wide = widen(x)
    mean = wide.mean(axes, keepdim=True)
    centered = wide - mean
    # The derivative by way of the mean is zero: leaving it out saves a
    # reduction.
    count = math.prod(x.shape[axis] for axis in axes)
    (variance,) = custom_vjp(
        [centered.square().mean(axes, keepdim=True)],
        [wide],
        lambda grads: [grads[0] * centered * (2 / count)],
    )
    if not keepdims:
        kept = [n for axis, n in enumerate(x.shape) if axis not in axes]
        mean = mean.reshape(kept)
        variance = variance.reshape(kept)
    if x.dtype == dtypes.float16:
        # Too large for float16 must not become infinite.
        largest = 65504.0
        mean = mean.clip(-largest, largest)
        variance = variance.clip(-largest, largest)
    return mean.cast(x.dtype), variance.cast(x.dtype)


def batch_normalization(
    x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3
):
    x = to_float_tensor(x)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]

    def vector(name, value):
        value = to_float_tensor(value, "batch_normalization")
        if value.shape != (x.shape[axis],):
            raise ValueError(
                f"Argument `{name}` must be a vector of length "
                f"`x.shape[axis]`. Received: {name}.shape={value.shape}, "
                f"x.shape={x.shape}, axis={axis}"
            )
        return value.reshape(shape)

    y = x - vector("mean", mean)
    factor = (vector("variance", variance) + epsilon).rsqrt()
    if scale is not None:
        factor = factor * vector("scale", scale)
    y = y * factor
    if offset is not None:
        y = y + vector("offset", offset)
    return y
