"""Pooling, over fixed and adaptive windows.

Where several elements of a window are its maximum, the first in row-major
order gets the gradient, as in torch and jax.
"""

import functools
import math
import operator

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.config import standardize_data_format
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.nn.activations import to_float_tensor
from keras.src.backend.tinygrad.nn.activations import widen
from keras.src.backend.tinygrad.nn.windows import count_windows
from keras.src.backend.tinygrad.nn.windows import overlap_add
from keras.src.backend.tinygrad.nn.windows import pad_axes
from keras.src.backend.tinygrad.nn.windows import same_padding
from keras.src.backend.tinygrad.nn.windows import split_axes
from keras.src.backend.tinygrad.nn.windows import taps
from keras.src.utils.argument_validation import standardize_tuple

# Up to so many positions, a window is written out, one view for each.
MAX_TAPS = 32


def max_pool(
    inputs, pool_size, strides=None, padding="valid", data_format=None
):
    x = convert_to_tensor(inputs)
    axes = _spatial_axes(x, data_format)
    sizes, strides, pads = _geometry(x, axes, pool_size, strides, padding)
    x = pad_axes(x, axes, pads, value=x.dtype.min)
    return _by_axes(_max_pool, x, axes, sizes, strides)


def average_pool(
    inputs, pool_size, strides=None, padding="valid", data_format=None
):
    x = to_float_tensor(inputs, "average_pool")
    axes = _spatial_axes(x, data_format)
    sizes, strides, pads = _geometry(x, axes, pool_size, strides, padding)
    dims = x.shape
    y = pad_axes(widen(x), axes, pads)
    y = _by_axes(_sum_pool, y, axes, sizes, strides)
    # Padding does not count.
    for axis, size, stride, (low, _) in zip(axes, sizes, strides, pads):
        start = Tensor.arange(y.shape[axis]) * stride - low
        count = (start + size).clip(0, dims[axis]) - start.clip(0, dims[axis])
        shape = [1] * y.ndim
        shape[axis] = y.shape[axis]
        y = y / count.reshape(shape)
    return y.cast(x.dtype)


def _spatial_axes(x, data_format):
    if x.ndim not in (3, 4, 5):
        raise ValueError(
            "Inputs to pooling op must have ndim=3, 4 or 5, "
            "corresponding to 1D, 2D and 3D inputs. "
            f"Received input shape: {x.shape}."
        )
    first = standardize_data_format(data_format) == "channels_first"
    return tuple(range(2, x.ndim) if first else range(1, x.ndim - 1))


def _geometry(x, axes, pool_size, strides, padding):
    sizes = standardize_tuple(pool_size, len(axes), "pool_size")
    strides = (
        sizes
        if strides is None
        else standardize_tuple(strides, len(axes), "strides")
    )
    if padding not in ("same", "valid"):
        raise ValueError(
            f"Invalid padding '{padding}', must be 'same' or 'valid'."
        )
    pads = [(0, 0)] * len(axes)
    if padding == "same":
        pads = [
            same_padding(x.shape[axis], size, stride)
            for axis, size, stride in zip(axes, sizes, strides)
        ]
    for axis, size, (low, high) in zip(axes, sizes, pads):
        if x.shape[axis] + low + high < size:
            raise ValueError(
                f"A window of size {size} does not fit in dimension {axis} of "
                f"inputs of shape {x.shape} with padding='{padding}'. Use a "
                "smaller `pool_size` or padding='same'."
            )
    return sizes, strides, pads


def _by_axes(pool, x, axes, sizes, strides):
    """Pools over all axes at once, or one by one where windows are large."""
    if math.prod(sizes) <= MAX_TAPS or _are_disjoint(x, axes, sizes, strides):
        return pool(x, axes=axes, sizes=sizes, strides=strides)
    # From the last axis on: the first maximum of the first row stays first.
    for axis, size, stride in reversed(list(zip(axes, sizes, strides))):
        # Kept: written out, the windows of all axes would multiply.
        x = pool(x, axes=(axis,), sizes=(size,), strides=(stride,))
        x = x.contiguous()
    return x


def _are_disjoint(x, axes, sizes, strides):
    return all(
        stride >= size or count_windows(x.shape[axis], size, stride) == 1
        for axis, size, stride in zip(axes, sizes, strides)
    )


@traced_once()
def _sum_pool(x, axes, sizes, strides):
    if _are_disjoint(x, axes, sizes, strides):
        view, window_axes = split_axes(x, axes, sizes, strides)
        return view.sum(window_axes)
    return functools.reduce(operator.add, taps(x, axes, sizes, strides))


@traced_once()
def _max_pool(x, axes, sizes, strides):
    if math.prod(sizes) <= MAX_TAPS or not _are_disjoint(
        x, axes, sizes, strides
    ):
        views = taps(x, axes, sizes, strides)
        y = functools.reduce(_larger, views)
        first = functools.partial(_first_of_views, views)
    else:
        view, window_axes = split_axes(x, axes, sizes, strides)
        y = view.max(window_axes)
        first = functools.partial(_first_of_axes, view, window_axes)

    def vjp(grads):
        # Kept: each position of a window compares with it.
        position = first().contiguous()
        return [_unpool(grads[0], position, x.shape, axes, sizes, strides)]

    return custom_vjp([y], [x], vjp)[0]


def _larger(a, b):
    """Elementwise maximum; NaN wins."""
    return ((a < b) | b.ne(b)).where(b, a)


def _first_of_views(views):
    """Returns the number of the first maximum among tensors."""
    best = views[0]
    position = best.const_like(0, dtypes.int32)
    for i, view in enumerate(views[1:], 1):
        better = view > best
        position = better.where(i, position)
        best = better.where(view, best)
    return position


def _first_of_axes(view, axes):
    """Returns the row-major number of the first maximum over axes."""
    count = math.prod(view.shape[a] for a in axes)
    is_maximum = view == view.max(axes, keepdim=True)
    number = _window_numbers(view.ndim, axes, [view.shape[a] for a in axes])
    # Counted down, so that the first is a maximum too.
    return count - is_maximum.where(count - number, 0).max(axes)


def _window_numbers(ndim, axes, sizes):
    """Numbers the positions of a window, shaped to broadcast over axes."""
    shape = [1] * ndim
    for axis, size in zip(axes, sizes):
        shape[axis] = size
    return Tensor.arange(math.prod(sizes), dtype=dtypes.int32).reshape(shape)


def _unpool(grad, position, shape, axes, sizes, strides):
    """Sends each window's gradient to the position it came from."""
    window_axes = []
    for axis in axes:
        axis += len(window_axes) + 1
        grad = grad.unsqueeze(axis)
        position = position.unsqueeze(axis)
        window_axes.append(axis)
    numbers = _window_numbers(grad.ndim, window_axes, sizes)
    grad = (position == numbers).where(grad, 0)
    for axis, stride in zip(axes, strides):
        grad = overlap_add(grad, axis, stride)
    rest = [(0, shape[axis] - grad.shape[axis]) for axis in axes]
    return pad_axes(grad, axes, rest)


def adaptive_average_pool(inputs, output_size, data_format=None):
    x = to_float_tensor(inputs, "adaptive_average_pool")
    y = widen(x)
    axes = _spatial_axes(x, data_format)
    for axis, count in zip(axes, _output_sizes(output_size, x, axes)):
        y = _adaptive_average(y, axis, count)
    return y.cast(x.dtype)


def adaptive_max_pool(inputs, output_size, data_format=None):
    x = convert_to_tensor(inputs)
    axes = _spatial_axes(x, data_format)
    # From the last axis on, as in `_by_axes`.
    counts = _output_sizes(output_size, x, axes)
    for axis, count in reversed(list(zip(axes, counts))):
        x = _adaptive_max(x, axis, count)
    return x


def _output_sizes(output_size, x, axes):
    if 0 in [x.shape[axis] for axis in axes]:
        raise ValueError(f"Nothing to pool in an input of shape {x.shape}.")
    return standardize_tuple(output_size, len(axes), "output_size")


def _adaptive_windows(size, count):
    """Returns the first and the last index, plus one, of each window."""
    i = Tensor.arange(count, dtype=dtypes.int32)
    return i * size // count, ((i + 1) * size + count - 1) // count


def _adaptive_average(x, axis, count):
    size = x.shape[axis]
    if size % count == 0:
        size //= count
        total = _sum_pool(x, axes=(axis,), sizes=(size,), strides=(size,))
        return total / size
    start, stop = _adaptive_windows(size, count)
    index = Tensor.arange(size, dtype=dtypes.int32).reshape(size, 1)
    inside = (index >= start) & (index < stop)
    weights = inside.where(1 / (stop - start).cast(x.dtype), 0)
    return matmul(x.transpose(axis, -1), weights).transpose(axis, -1)


def _adaptive_max(x, axis, count):
    size = x.shape[axis]
    if size % count == 0:
        size //= count
        return _max_pool(x, axes=(axis,), sizes=(size,), strides=(size,))
    start, stop = _adaptive_windows(size, count)
    width = max(
        -(-(i + 1) * size // count) - i * size // count for i in range(count)
    )
    # Windows shorter than the longest repeat their last element.
    index = start.reshape(count, 1) + Tensor.arange(width, dtype=dtypes.int32)
    last = (stop - 1).reshape(count, 1)
    rows = gather_rows(x.transpose(0, axis), (index > last).where(last, index))
    y = _max_pool(rows, axes=(1,), sizes=(width,), strides=(width,)).squeeze(1)
    return y.transpose(0, axis)
