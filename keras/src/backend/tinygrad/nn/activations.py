"""Activation functions.

Functions that need an exponential run in float32 at least and come back in
the dtype of their input. Gradients at kinks are torch's; none overflows where
the function itself does not.
"""

import math

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad import special
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.numpy import sort
from keras.src.backend.tinygrad.numpy import transcendental
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import refuse_bool
from keras.src.backend.tinygrad.numpy.common import result_type


def to_float_tensor(x, numbers_for=None):
    """Converts to a floating tensor; integers become `floatx`.

    Booleans do too, unless an operation is named that takes numbers alone.
    """
    x = convert_to_tensor(x)
    if numbers_for is not None:
        refuse_bool(numbers_for, x)
    if not x.is_floating_point():
        x = cast(x, result_type(x.dtype, float))
    return x


def widen(x):
    """Casts float16, bfloat16 and float8 to float32, for accuracy."""
    return x if x.dtype == dtypes.float64 else x.cast(dtypes.float32)


def strict_clip(x, low, high=None):
    """Clips, with gradient 0 at the bounds too; NaN stays NaN."""
    refuse_bool("an activation", x)
    return _strict_clip(x, low=low, high=high)


@traced_once()
def _strict_clip(x, low, high):
    inside = x > low
    if high is not None:
        inside = inside & (x < high)
    return inside.where(x, x.detach().clip(low, high))


def relu(x):
    return strict_clip(convert_to_tensor(x), 0)


def relu6(x):
    return strict_clip(convert_to_tensor(x), 0, 6)


def sigmoid(x):
    x = to_float_tensor(x)
    return stable_sigmoid(widen(x)).cast(x.dtype)


@traced_once(lambda x, y: [y * (1 - y)])
def stable_sigmoid(x):
    """Sigmoid of a float32 or float64 tensor."""
    return (1 + x.neg().exp()).reciprocal()


def sparse_sigmoid(x):
    x = to_float_tensor(x)
    return 0.5 * strict_clip(x + 1, 0, 2)


def tanh(x):
    x = to_float_tensor(x)
    return transcendental.tanh(widen(x)).cast(x.dtype)


def tanh_shrink(x):
    x = to_float_tensor(x)
    wide = widen(x)
    return (wide - transcendental.tanh(wide)).cast(x.dtype)


def softplus(x):
    x = to_float_tensor(x)
    return stable_softplus(widen(x)).cast(x.dtype)


@traced_once(lambda x, y: [stable_sigmoid(x)])
def stable_softplus(x):
    """Softplus of a float32 or float64 tensor."""
    return x.maximum(0) + transcendental.log1p(x.abs().neg().exp())


def softsign(x):
    x = to_float_tensor(x)
    return x / (1 + x.abs())


def soft_shrink(x, threshold=0.5):
    x = to_float_tensor(x)
    below = (x < -threshold).where(x + threshold, 0)
    return (x > threshold).where(x - threshold, below)


def sparse_plus(x):
    x = to_float_tensor(x)
    middle = (x < 1).where(0.25 * (x + 1).square(), x)
    return (x <= -1).where(0, middle)


def silu(x):
    x = to_float_tensor(x, "silu")
    wide = widen(x)
    return (wide * stable_sigmoid(wide)).cast(x.dtype)


def squareplus(x, b=4):
    x = to_float_tensor(x)
    b = convert_to_tensor(b, dtype=x.dtype)
    return (x + (x.square() + b).sqrt()) / 2


def log_sigmoid(x):
    x = to_float_tensor(x, "log_sigmoid")
    return stable_softplus(widen(x).neg()).neg().cast(x.dtype)


def leaky_relu(x, negative_slope=0.2):
    x = to_float_tensor(x)
    return (x > 0).where(x, x * negative_slope)


def hard_sigmoid(x):
    x = to_float_tensor(x)
    return strict_clip(x + 3, 0, 6) / 6


def hard_silu(x):
    x = to_float_tensor(x)
    return x * hard_sigmoid(x)


def elu(x, alpha=1.0):
    x = to_float_tensor(x)
    return _exponential_tail(widen(x), alpha, 1).cast(x.dtype)


def _exponential_tail(x, alpha, scale):
    # The unused side must not overflow: its gradient would be NaN.
    tail = transcendental.expm1((x > 0).where(0, x) / scale)
    return (x > 0).where(x, alpha * tail)


def selu(x):
    # Klambauer et al., Self-Normalizing Neural Networks (2017).
    alpha = 1.6732632423543772848170429916717
    scale = 1.0507009873554804934193349852946
    return scale * elu(x, alpha)


def gelu(x, approximate=True):
    return _gelu(to_float_tensor(x), approximate=bool(approximate))


@traced_once()
def _gelu(x, approximate):
    wide = widen(x)
    if approximate:
        # 0.5 * (1 + tanh(u)) is sigmoid(2 * u).
        u = math.sqrt(2 / math.pi) * wide * (1 + 0.044715 * wide.square())
        return (wide * stable_sigmoid(2 * u)).cast(x.dtype)
    # erfc keeps the digits of the left tail, which 1 + erf would lose.
    return (0.5 * wide * special.erfc(wide * -math.sqrt(0.5))).cast(x.dtype)


def celu(x, alpha=1.0):
    x = to_float_tensor(x)
    return _exponential_tail(widen(x), alpha, alpha).cast(x.dtype)


def glu(x, axis=-1):
    x = to_float_tensor(x, "glu")
    if x.shape[axis] % 2 != 0:
        raise ValueError(
            "axis size must be divisible by 2. "
            f"Received: x.shape={x.shape} with axis={axis}"
        )
    value, gate = x.chunk(2, dim=axis)
    return value * sigmoid(gate)


def hard_tanh(x):
    return strict_clip(convert_to_tensor(x), -1, 1)


def hard_shrink(x, threshold=0.5):
    x = convert_to_tensor(x)
    refuse_bool("hard_shrink", x)
    return (x.abs() > threshold).where(x, 0)


def threshold(x, threshold, default_value):
    x = convert_to_tensor(x)
    return (x > threshold).where(x, x.const_like(default_value))


def _below_maximum(x, axis):
    """`x` less its maximum, which counts as a constant."""
    return x - x.max(axis=axis, keepdim=True).detach()


def softmax(x, axis=-1):
    x = to_float_tensor(x, "softmax")
    if axis is not None:
        axis = canonicalize_axis(axis, max(x.ndim, 1))
    return _softmax(x, axis=axis)


@traced_once()
def _softmax(x, axis):
    return _stable_softmax(widen(x), axis).cast(x.dtype)


def _stable_softmax(x, axis):
    exp = _below_maximum(x, axis).exp()
    total = exp.sum(axis=axis, keepdim=True)

    def vjp(grads):
        y = _stable_softmax(x, axis)
        return [y * (grads[0] - (grads[0] * y).sum(axis=axis, keepdim=True))]

    return custom_vjp([exp / total], [x], vjp)[0]


def log_softmax(x, axis=-1):
    x = to_float_tensor(x, "log_softmax")
    if axis is not None:
        axis = canonicalize_axis(axis, max(x.ndim, 1))
    return _log_softmax(x, axis=axis)


@traced_once()
def _log_softmax(x, axis):
    return _stable_log_softmax(widen(x), axis).cast(x.dtype)


def _stable_log_softmax(x, axis):
    shifted = _below_maximum(x, axis)

    def vjp(grads):
        y = _stable_log_softmax(x, axis)
        return [grads[0] - y.exp() * grads[0].sum(axis=axis, keepdim=True)]

    y = shifted - shifted.exp().sum(axis=axis, keepdim=True).log()
    return custom_vjp([y], [x], vjp)[0]


def sparsemax(x, axis=-1):
    x = to_float_tensor(x)
    wide = widen(x)
    # The first of equals first, as in the other backends.
    falling = -sort(-wide, axis=axis)
    total = falling.cumsum(axis)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    rank = Tensor.arange(1, x.shape[axis] + 1).reshape(shape)
    support = (1 + rank * falling > total).detach()
    # The sum of all partial sums, as in the other backends, although Martins
    # and Astudillo (2016) take the last one, with which results add up to 1.
    total = support.where(total, 0).sum(axis=axis, keepdim=True)
    threshold = (total - 1) / support.sum(axis=axis, keepdim=True)
    above = wide - threshold
    return (above < 0).where(0, above).cast(x.dtype)
