"""Patches and blocks: unfold, fold, depth to space and back."""

from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.nn.windows import count_windows
from keras.src.backend.tinygrad.nn.windows import overlap_add
from keras.src.backend.tinygrad.nn.windows import pad_axes
from keras.src.backend.tinygrad.nn.windows import split_axes
from keras.src.backend.tinygrad.nn.windows import taps
from keras.src.backend.tinygrad.numpy.common import to_int


def _pair(name, value, least=1):
    """Returns the two integers that an argument gives, once or twice."""
    values = (value, value) if isinstance(value, int) else tuple(value)
    if len(values) != 2:
        raise TypeError(
            f"`{name}` must be an integer or two of them. "
            f"Received: {name}={value}"
        )
    return tuple(to_int(name, v, least) for v in values)


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Extracts sliding blocks from a batch of images.

    Args:
        input: Tensor of shape `(N, C, H, W)`.
        kernel_size: int or `(kH, kW)`.
        dilation: int or `(dH, dW)`.
        padding: int or `(pH, pW)`.
        stride: int or `(sH, sW)`.

    Returns:
        Tensor of shape `(N, C * kH * kW, L)`, where `L` counts the blocks.
    """
    x = convert_to_tensor(input)
    sizes = _pair("kernel_size", kernel_size)
    strides, gaps = _pair("stride", stride), _pair("dilation", dilation)
    pads = [(p, p) for p in _pair("padding", padding, 0)]
    x = pad_axes(x, (2, 3), pads)
    # Width first, so that the height axis stays where it is.
    for axis, size, step, gap in zip(
        (3, 2), sizes[::-1], strides[::-1], gaps[::-1]
    ):
        x = _blocks(x, axis, size, step, gap)
    n, c, rows, height, columns, width = x.shape
    x = x.permute(0, 1, 3, 5, 2, 4)
    return x.reshape(n, c * height * width, rows * columns)


def _blocks(x, axis, size, stride, dilation):
    """Turns an axis into `(block, position)`."""
    if dilation == 1 and stride >= size:
        return split_axes(x, (axis,), (size,), (stride,))[0]
    views = taps(x, (axis,), (size,), (stride,), (dilation,))
    return views[0].stack(*views[1:], dim=axis + 1)


def fold(x, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Adds sliding blocks up into images: the transpose of `unfold`.

    Args:
        x: Tensor of shape `(N, C * kH * kW, L)`.
        output_size: int or `(H, W)`.
        kernel_size: int or `(kH, kW)`.
        dilation: int or `(dH, dW)`.
        padding: int or `(pH, pW)`.
        stride: int or `(sH, sW)`.

    Returns:
        Tensor of shape `(N, C, H, W)`.
    """
    x = convert_to_tensor(x)
    shape = _pair("output_size", output_size)
    sizes = _pair("kernel_size", kernel_size)
    dilations = _pair("dilation", dilation)
    pads = _pair("padding", padding, 0)
    strides = _pair("stride", stride)
    counts = [
        _block_count(*geometry)
        for geometry in zip(shape, sizes, dilations, pads, strides)
    ]
    n, depth, blocks = x.shape
    if depth % (sizes[0] * sizes[1]) or blocks != counts[0] * counts[1]:
        raise ValueError(
            "Expected `x` of shape (N, C * kH * kW, L) with "
            f"kH * kW = {sizes[0] * sizes[1]} and L = {counts[0]} * "
            f"{counts[1]} blocks. Received: x.shape={x.shape}, "
            f"output_size={output_size}, kernel_size={kernel_size}, "
            f"dilation={dilation}, padding={padding}, stride={stride}"
        )
    channels = depth // (sizes[0] * sizes[1])
    x = x.reshape(n, channels, *sizes, *counts).permute(0, 1, 4, 2, 5, 3)
    for axis in (2, 3):
        i = axis - 2
        x = overlap_add(x, axis, strides[i], dilations[i])
        rest = shape[i] + pads[i] - x.shape[axis]
        x = pad_axes(x, [axis], [(-pads[i], rest)])
    return x


def _block_count(size, window, dilation, pad, stride):
    return count_windows(size + 2 * pad, (window - 1) * dilation + 1, stride)


def depth_to_space(x, block_size, data_format="channels_last"):
    """Moves blocks of channels to space.

    Args:
        x: Tensor of shape `(N, H, W, C)`, or `(N, C, H, W)` with
            `data_format="channels_first"`.
        block_size: Side of a block.
        data_format: `"channels_last"` or `"channels_first"`.

    Returns:
        Tensor with `block_size` times the height and width, and the channels
        divided by `block_size ** 2`.
    """
    x = convert_to_tensor(x)
    b = block_size
    _check_four_axes("depth_to_space", x)
    channels = x.shape[-1 if data_format == "channels_last" else 1]
    _check_divides("depth_to_space", b**2, (channels,), x)
    if data_format == "channels_last":
        n, h, w, c = x.shape
        x = x.reshape(n, h, w, b, b, c // b**2).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(n, h * b, w * b, c // b**2)
    n, c, h, w = x.shape
    x = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // b**2, h * b, w * b)


def _check_four_axes(name, x):
    if x.ndim != 4:
        raise ValueError(
            f"`{name}` expects a batch of images, of 4 axes. "
            f"Received: x.shape={x.shape}"
        )


def _check_divides(name, divisor, sizes, x):
    if any(size % divisor for size in sizes):
        raise ValueError(
            f"`{name}` expects sizes that {divisor} divides. "
            f"Received: {tuple(sizes)} in x.shape={x.shape}"
        )


def space_to_depth(x, block_size, data_format="channels_last"):
    """Moves blocks of space to channels: the inverse of `depth_to_space`."""
    x = convert_to_tensor(x)
    b = block_size
    _check_four_axes("space_to_depth", x)
    last = data_format == "channels_last"
    _check_divides(
        "space_to_depth", b, x.shape[1:3] if last else x.shape[2:], x
    )
    if last:
        n, h, w, c = x.shape
        x = x.reshape(n, h // b, b, w // b, b, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(n, h // b, w // b, c * b**2)
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // b, b, w // b, b).permute(0, 1, 3, 5, 2, 4)
    return x.reshape(n, c * b**2, h // b, w // b)
