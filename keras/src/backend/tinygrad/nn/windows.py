"""Sliding windows over spatial axes, and the sum of overlapping ones.

What pooling, patches and transposed convolution share. Every function takes
the axes it works on, so either data format goes without a transpose.
"""

import itertools


def same_padding(size, window, stride):
    """Returns the `(low, high)` padding that TensorFlow calls "same"."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def count_windows(size, window, stride):
    """Returns how many windows fit, 0 where none does."""
    return max((size - window) // stride + 1, 0)


def pad_axes(x, axes, padding, value=0):
    """Pads `axes` by `(low, high)` pairs; negative ones crop."""
    if all(pair == (0, 0) for pair in padding):
        return x
    pairs = [(0, 0)] * x.ndim
    for axis, pair in zip(axes, padding):
        pairs[axis] = pair
    return x.pad(tuple(pairs), value=value)


def taps(x, axes, sizes, strides, dilations=None):
    """Returns one strided view for each position in a window.

    Args:
        x: `Tensor`, already padded.
        axes: Non-negative axes that the window slides along.
        sizes: Window size on each axis.
        strides: Stride on each axis.
        dilations: Dilation on each axis. Defaults to 1.

    Returns:
        List in row-major order of window positions. Each element has the
        number of windows on `axes`, and shares the other dimensions of `x`.
    """
    dilations = dilations or [1] * len(axes)
    views = []
    for position in itertools.product(*[range(k) for k in sizes]):
        slices = [slice(None)] * x.ndim
        for axis, k, size, stride, dilation in zip(
            axes, position, sizes, strides, dilations
        ):
            window = (size - 1) * dilation + 1
            count = count_windows(x.shape[axis], window, stride)
            start = k * dilation
            stop = start + (count - 1) * stride + 1
            slices[axis] = slice(start, stop, stride)
        views.append(x[tuple(slices)])
    return views


def split_axes(x, axes, sizes, strides):
    """Views disjoint windows as axes of their own, without a copy.

    Args:
        x: `Tensor`, already padded.
        axes: Non-negative axes, increasing.
        sizes: Window size on each axis.
        strides: Stride on each axis, at least the size unless only one
            window fits.

    Returns:
        `(view, window_axes)`: each of `axes` is followed by its window axis.
    """
    window_axes = []
    for axis, size, stride in zip(axes, sizes, strides):
        axis += len(window_axes)
        count = count_windows(x.shape[axis], size, stride)
        stride = size if count == 1 else stride
        # The last window need not have its whole stride.
        x = pad_axes(x, [axis], [(0, count * stride - x.shape[axis])])
        shape = x.shape
        x = x.reshape(*shape[:axis], count, stride, *shape[axis + 1 :])
        x = pad_axes(x, [axis + 1], [(0, size - stride)])
        window_axes.append(axis + 1)
    return x, tuple(window_axes)


def overlap_add(x, axis, stride, dilation=1):
    """Adds windows at their places: the transpose of taking them.

    Args:
        x: `Tensor` with the windows on `axis` and the positions in a window
            on `axis + 1`.
        axis: Non-negative axis.
        stride: Distance between windows.
        dilation: Distance between positions in a window.

    Returns:
        `Tensor` in which one axis of length
        `(windows - 1) * stride + (positions - 1) * dilation + 1` stands for
        the two.
    """
    windows, positions = x.shape[axis : axis + 2]
    extent = (positions - 1) * dilation + 1
    total = (windows - 1) * stride + extent
    if stride == 1:
        step, count = dilation, positions
        pieces = [_take(x, axis + 1, k) for k in range(positions)]
    else:
        # Position q * stride + r of a window lands in phase r of the output,
        # q windows on: whole strides shift, and no index is divided.
        x = _spread(x, axis + 1, dilation)
        step, count = 1, -(-extent // stride)
        x = pad_axes(x, [axis + 1], [(0, count * stride - extent)])
        shape = x.shape
        x = x.reshape(*shape[: axis + 1], count, stride, *shape[axis + 2 :])
        pieces = [_take(x, axis + 1, k) for k in range(count)]
    result = None
    for k, piece in enumerate(pieces):
        shift = (k * step, (count - 1 - k) * step)
        piece = pad_axes(piece, [axis], [shift])
        result = piece if result is None else result + piece
    if stride > 1:
        shape = result.shape
        result = result.reshape(
            *shape[:axis], shape[axis] * stride, *shape[axis + 2 :]
        )
    return pad_axes(result, [axis], [(0, total - result.shape[axis])])


def _take(x, axis, index):
    return x[(slice(None),) * axis + (index,)]


def _spread(x, axis, dilation):
    """Puts `dilation - 1` zeros between the elements of an axis."""
    if dilation == 1:
        return x
    shape = x.shape
    x = x.reshape(*shape[: axis + 1], 1, *shape[axis + 1 :])
    x = pad_axes(x, [axis + 1], [(0, dilation - 1)])
    x = x.reshape(*shape[:axis], shape[axis] * dilation, *shape[axis + 1 :])
    return pad_axes(x, [axis], [(0, 1 - dilation)])
