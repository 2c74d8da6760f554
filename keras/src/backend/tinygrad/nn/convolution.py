"""Convolutions, in any number of spatial dimensions."""

from keras.src.backend.common.backend_utils import (
    compute_conv_transpose_padding_args_for_jax,
)
from keras.src.backend.config import standardize_data_format
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.convolution import convolution
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.nn.windows import count_windows
from keras.src.backend.tinygrad.nn.windows import overlap_add
from keras.src.backend.tinygrad.nn.windows import pad_axes
from keras.src.backend.tinygrad.nn.windows import same_padding
from keras.src.backend.tinygrad.numpy.common import refuse_bool
from keras.src.utils.argument_validation import standardize_tuple


def conv(
    inputs,
    kernel,
    strides=1,
    padding="valid",
    data_format=None,
    dilation_rate=1,
):
    data_format = standardize_data_format(data_format)
    kernel = convert_to_tensor(kernel)
    x = convert_to_tensor(inputs, dtype=kernel.dtype)
    rank = _spatial_rank(x, kernel)
    strides = standardize_tuple(strides, rank, "strides")
    dilations = standardize_tuple(dilation_rate, rank, "dilation_rate")
    if padding not in ("same", "valid"):
        raise ValueError(
            f"Invalid padding '{padding}', must be 'same' or 'valid'."
        )
    x = _to_channels_last(x, data_format)
    channels = x.shape[-1]
    kernel_channels = kernel.shape[-2]
    if not kernel_channels or channels % kernel_channels:
        raise ValueError(
            "The number of input channels must be evenly divisible by "
            f"kernel's in_channels. Received input channels {channels} and "
            f"kernel in_channels {kernel_channels}. "
        )
    pads = []
    for i in range(rank):
        size = x.shape[1 + i]
        window = (kernel.shape[i] - 1) * dilations[i] + 1
        low, high = (0, 0)
        if padding == "same":
            low, high = same_padding(size, window, strides[i])
        if count_windows(size + low + high, window, strides[i]) == 0:
            raise ValueError(
                "The convolution operation resulted in an empty output. "
                "This can happen if the input is too small for the given "
                "kernel size, strides, dilation rate, and padding mode. "
                "Please check the input shape and convolution parameters. "
                f"Received: inputs.shape={inputs.shape}, "
                f"kernel.shape={kernel.shape}, padding='{padding}', "
                f"dilation_rate={dilation_rate}, data_format='{data_format}'"
            )
        pads.append((low, high))
    y = convolution(
        x, kernel, strides, pads, dilations, channels // kernel_channels
    )
    return _from_channels_last(y, data_format)


def depthwise_conv(
    inputs,
    kernel,
    strides=1,
    padding="valid",
    data_format=None,
    dilation_rate=1,
):
    data_format = standardize_data_format(data_format)
    inputs = convert_to_tensor(inputs)
    kernel = convert_to_tensor(kernel)
    _spatial_rank(inputs, kernel)
    *window, channels, multiplier = kernel.shape
    _check_channels(inputs, channels, data_format)
    kernel = kernel.reshape(*window, 1, channels * multiplier)
    return conv(inputs, kernel, strides, padding, data_format, dilation_rate)


def separable_conv(
    inputs,
    depthwise_kernel,
    pointwise_kernel,
    strides=1,
    padding="valid",
    data_format=None,
    dilation_rate=1,
):
    data_format = standardize_data_format(data_format)
    x = depthwise_conv(
        inputs, depthwise_kernel, strides, padding, data_format, dilation_rate
    )
    return conv(x, pointwise_kernel, data_format=data_format)


def conv_transpose(
    inputs,
    kernel,
    strides=1,
    padding="valid",
    output_padding=None,
    data_format=None,
    dilation_rate=1,
):
    data_format = standardize_data_format(data_format)
    kernel = convert_to_tensor(kernel)
    x = convert_to_tensor(inputs, dtype=kernel.dtype)
    rank = _spatial_rank(x, kernel)
    _check_channels(x, kernel.shape[-1], data_format)
    strides = standardize_tuple(strides, rank, "strides")
    dilations = standardize_tuple(dilation_rate, rank, "dilation_rate")
    x = _to_channels_last(x, data_format)
    pads = compute_conv_transpose_padding_args_for_jax(
        x.shape, kernel.shape, strides, padding, output_padding, dilations
    )
    # Each input position writes one window: a product gives the windows, and
    # nothing is multiplied by the zeros that dilating the input would insert.
    *window, filters, channels = kernel.shape
    y = matmul(x, kernel.reshape(-1, channels).transpose(0, 1))
    y = y.reshape(*x.shape[:-1], *window, filters)
    order = [0]
    for i in range(rank):
        order += [1 + i, 1 + rank + i]
    y = y.permute(*order, y.ndim - 1)
    for i in range(rank):
        y = overlap_add(y, 1 + i, strides[i], dilations[i])
    # The windows reach this far over the first and the last position.
    reach = [(kernel.shape[i] - 1) * dilations[i] for i in range(rank)]
    y = pad_axes(
        y,
        range(1, 1 + rank),
        [(low - r, high - r) for (low, high), r in zip(pads, reach)],
    )
    return _from_channels_last(y, data_format)


def _spatial_rank(x, kernel):
    refuse_bool("a convolution", kernel)
    if x.ndim not in (3, 4, 5) or kernel.ndim != x.ndim:
        raise ValueError(
            "Inputs to conv operation should have ndim=3, 4, or 5, "
            "corresponding to 1D, 2D and 3D inputs, and the kernel the same "
            f"ndim. Received: inputs.shape={x.shape}, "
            f"kernel.shape={kernel.shape}."
        )
    return x.ndim - 2


def _check_channels(x, expected, data_format):
    channels = x.shape[-1 if data_format == "channels_last" else 1]
    if channels != expected:
        raise ValueError(
            "The number of input channels must match the kernel's, which is "
            f"{expected}. Received: inputs.shape={x.shape}, "
            f"data_format='{data_format}'"
        )


def _to_channels_last(x, data_format):
    if data_format == "channels_last":
        return x
    return x.permute(0, *range(2, x.ndim), 1)


def _from_channels_last(x, data_format):
    if data_format == "channels_last":
        return x
    return x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))
