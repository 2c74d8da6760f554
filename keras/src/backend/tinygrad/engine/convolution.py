"""Convolutions: patches times a matrix product."""

import itertools
import math

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.gemm import matmul


def convolution(x, kernel, strides, padding, dilation, groups):
    """Slides a kernel over the spatial dimensions of its input.

    Args:
        x: `Tensor` of shape `(batch, *spatial, channels)`.
        kernel: `Tensor` of shape `(*window, channels // groups, filters)`
            and the dtype of `x`.
        strides: Tuple of ints, one for each spatial dimension.
        padding: List of `(low, high)` zeros around each spatial dimension.
        dilation: Tuple of ints, one for each spatial dimension.
        groups: Number of groups of channels, each with its own filters.

    Returns:
        `Tensor` of shape `(batch, *outputs, filters)`, differentiable in `x`
        and `kernel`.

    Raises:
        ValueError: If shapes and groups do not fit together.
    """
    *window, depth, filters = kernel.shape
    rank = len(window)
    if x.ndim != rank + 2 or x.shape[-1] != depth * groups or filters % groups:
        raise ValueError(
            "A convolution expects an input (batch, *spatial, channels), a "
            "kernel (*window, channels // groups, filters) and filters that "
            f"are a multiple of groups. Received: input {x.shape}, kernel "
            f"{kernel.shape}, groups={groups}"
        )
    x = x.pad(((0, 0), *padding, (0, 0)))
    sizes = [
        (n - (w - 1) * d - 1) // s + 1
        for n, w, d, s in zip(x.shape[1:], window, dilation, strides)
    ]
    views = [
        x[
            (
                slice(None),
                *(
                    slice(i * d, i * d + (n - 1) * s + 1, s)
                    for i, d, n, s in zip(offset, dilation, sizes, strides)
                ),
            )
        ]
        for offset in itertools.product(*map(range, window))
    ]
    if depth == 1 and groups > 1:
        return _depthwise(views, kernel, groups)
    patches = Tensor.stack(*views, dim=-2)
    batch, rows = x.shape[0], math.prod(sizes)
    columns = math.prod(window) * depth
    if groups == 1:
        out = matmul(
            patches.reshape(batch * rows, columns),
            kernel.reshape(columns, filters),
        )
        return out.reshape(batch, *sizes, filters)
    patches = patches.reshape(batch * rows, -1, groups, depth)
    patches = patches.permute(2, 0, 1, 3).reshape(groups, -1, columns)
    kernel = kernel.reshape(columns, groups, -1).permute(1, 0, 2)
    out = matmul(patches, kernel).permute(1, 0, 2)
    return out.reshape(batch, *sizes, filters)


def _depthwise(views, kernel, groups):
    """Sums the products of each channel with its own filters."""
    weights = kernel.reshape(len(views), groups, -1)
    out = sum(
        view.unsqueeze(-1) * weights[i] for i, view in enumerate(views)
    )
    return out.reshape(*out.shape[:-2], -1)
