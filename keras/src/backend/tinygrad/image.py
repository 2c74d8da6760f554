"""Image operations: colors, resizing, geometric transforms and filters."""

import itertools
import math

import ml_dtypes
import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.common import standardize_dtype
from keras.src.backend.config import standardize_data_format
from keras.src.backend.tinygrad import random
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.linalg import solve
from keras.src.backend.tinygrad.nn.activations import to_float_tensor
from keras.src.backend.tinygrad.nn.activations import widen
from keras.src.backend.tinygrad.nn.windows import pad_axes
from keras.src.backend.tinygrad.nn.windows import taps
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import refuse_bool
from keras.src.backend.tinygrad.numpy.common import result_type
from keras.src.backend.tinygrad.numpy.common import to_int

# Degrees of the polynomials that go through the pixels.
_ORDERS = {"nearest": 0, "bilinear": 1}
_FILL_MODES = ("constant", "mirror", "nearest", "reflect", "wrap")


def _real_tensor(x):
    x = convert_to_tensor(x)
    if isinstance(x, ComplexTensor):
        raise ValueError(
            "Image operations do not support complex numbers. Received: an "
            f"argument of dtype {x.dtype} and shape {x.shape}"
        )
    return x


def _check_choice(name, value, choices):
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {choices}. Received: {name}={value!r}"
        )


def _check_not_empty(images):
    if 0 in images.shape[-3:]:
        raise ValueError(
            "Expected images with height, width and channels. Received: "
            f"images.shape={images.shape}"
        )


def _check_rank(images):
    if len(images.shape) not in (3, 4):
        raise ValueError(
            "Invalid images rank: expected rank 3, of one image, or 4, of a "
            f"batch. Received: images.shape={images.shape}"
        )


def _channels_axis(data_format):
    return -1 if standardize_data_format(data_format) == "channels_last" else -3


def _spatial_axes(images, data_format):
    """Returns the axes of height and width, non-negative."""
    first = standardize_data_format(data_format) == "channels_first"
    return images.ndim - (2 if first else 3), images.ndim - (1 if first else 2)


def _planes(images, axis):
    """Splits images into one tensor for each channel."""
    return [plane.squeeze(axis) for plane in images.split(1, dim=axis)]


def rgb_to_grayscale(images, data_format=None):
    images = _real_tensor(images)
    axis = _channels_axis(data_format)
    _check_rank(images)
    if images.shape[axis] not in (1, 3):
        # Upstream's tests look for these words.
        raise ValueError(
            "Invalid channel size: expected 3 (RGB) or 1 (Grayscale). "
            f"Received: images.shape={images.shape}"
        )
    if images.shape[axis] == 1:
        return images
    red, green, blue = _planes(to_float_tensor(images), axis)
    # ITU-R BT.601 luma, rounded as TensorFlow does.
    gray = 0.2989 * red + 0.5870 * green + 0.1140 * blue
    return gray.unsqueeze(axis).cast(images.dtype)


def _check_float(images):
    dtype = standardize_dtype(images.dtype)
    if not images.is_floating_point():
        raise ValueError(
            "Invalid images dtype: expected float dtype. "
            f"Received: images.dtype={dtype}"
        )
    return dtype


def rgb_to_hsv(images, data_format=None):
    images = _real_tensor(images)
    axis = _channels_axis(data_format)
    _check_rank(images)
    dtype = _check_float(images)
    smallest = float(ml_dtypes.finfo(dtype).eps)
    wide = widen((images.abs() < smallest).where(0, images))
    red, green, blue = _planes(wide, axis)
    value = red.maximum(green).maximum(blue)
    spread = value - red.minimum(green).minimum(blue)
    saturation = (value > 0).where(spread / (value > 0).where(value, 1), 0)
    # Sixths of the circle, from the channel that is largest.
    sixth = 1 / (6 * (spread > 0).where(spread, 1))
    hue = (value == green).where(
        sixth * (blue - red) + 2 / 6, sixth * (red - green) + 4 / 6
    )
    hue = (value == red).where(sixth * (green - blue), hue)
    hue = (spread > 0).where(hue, 0)
    hue = (hue < 0).where(hue + 1, hue)
    return hue.stack(saturation, value, dim=axis).cast(images.dtype)


def hsv_to_rgb(images, data_format=None):
    images = _real_tensor(images)
    axis = _channels_axis(data_format)
    _check_rank(images)
    _check_float(images)
    hue, saturation, value = _planes(widen(images), axis)
    angle = (hue - hue.floor()) * 6
    pure = (
        ((angle - 3).abs() - 1).clip(0, 1),
        (2 - (angle - 2).abs()).clip(0, 1),
        (2 - (angle - 4).abs()).clip(0, 1),
    )
    red, green, blue = [
        value * (1 - saturation + saturation * channel) for channel in pure
    ]
    return red.stack(green, blue, dim=axis).cast(images.dtype)


def resize(
    images,
    size,
    interpolation="bilinear",
    antialias=False,
    crop_to_aspect_ratio=False,
    pad_to_aspect_ratio=False,
    fill_mode="constant",
    fill_value=0.0,
    data_format=None,
):
    _check_choice(
        "interpolation",
        interpolation,
        ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"),
    )
    if fill_mode != "constant":
        raise ValueError(
            "`resize` can only pad with a constant. Received: "
            f"fill_mode={fill_mode!r}"
        )
    if pad_to_aspect_ratio and crop_to_aspect_ratio:
        raise ValueError(
            "`resize` keeps the aspect ratio by cropping or by padding, not "
            "by both. Set one of `crop_to_aspect_ratio` and "
            "`pad_to_aspect_ratio` to `False`."
        )
    if len(size) != 2:
        raise ValueError(
            "`size` must be a pair, the new height and width. Received: "
            f"size={size}"
        )
    images = _real_tensor(images)
    _check_rank(images)
    _check_not_empty(images)
    axes = _spatial_axes(images, data_format)
    if crop_to_aspect_ratio or pad_to_aspect_ratio:
        images = _fit_aspect_ratio(
            images, axes, size, fill_value if pad_to_aspect_ratio else None
        )
    changed = [
        (axis, count)
        for axis, count in zip(axes, size)
        if images.shape[axis] != count
    ]
    if interpolation == "nearest":
        for axis, count in changed:
            images = _resize_nearest(images, axis, count)
        return images
    weights = []
    for axis, count in changed:
        matrix = _resize_weights(
            images.shape[axis], count, _KERNELS[interpolation], antialias
        )
        weights.append((axis, matrix))
    return _apply_weights(images, weights)


def _fit_aspect_ratio(images, axes, size, fill_value):
    """Crops the images centrally, or pads them with a value unless `None`."""
    height, width = (images.shape[axis] for axis in axes)
    wanted = [
        int(float(width * size[0]) / size[1]),
        int(float(height * size[1]) / size[0]),
    ]
    padding = [(0, 0)] * images.ndim
    for axis, count in zip(axes, wanted):
        actual = images.shape[axis]
        if fill_value is None:
            kept = max(min(actual, count), 1)
            start = int(float(actual - kept) / 2)
            padding[axis] = (-start, start + kept - actual)
        else:
            # The same on both sides, whether or not the difference is odd.
            margin = int(float(max(actual, count) - actual) / 2)
            padding[axis] = (margin, margin)
    # The value takes the images' dtype, not the reverse.
    padded = images.pad(tuple(padding), value=fill_value or 0)
    return padded.cast(images.dtype)


def _resize_nearest(images, axis, count):
    size = images.shape[axis]
    if count % size == 0:
        return images.repeat_interleave(count // size, dim=axis)
    # In float32, as jax and numpy place the samples.
    index = (np.arange(count, dtype=np.float32) + 0.5) * size / count
    index = convert_to_tensor(np.floor(index).astype("int32"))
    return gather_rows(images.transpose(0, axis), index).transpose(0, axis)


def _resize_weights(size, count, kernel, antialias):
    step = size / count
    place = (np.arange(count) + 0.5) * step - 0.5
    spread = max(step, 1.0) if antialias else 1.0
    weights = _sampling_weights(
        place, np.arange(size)[:, None], spread, kernel, size
    )
    return _real_tensor(weights)


def _sampling_weights(place, grid, spread, kernel, size):
    """Weighs each input position for each output position.

    Takes and gives NumPy arrays or tensors: known geometry is computed on the
    host in float64, and what is not known yet stays differentiable.

    Args:
        place: Where outputs lie in the input, `(count,)`.
        grid: Numbers of the inputs, `(size, 1)`.
        spread: Factor by which antialiasing widens the kernel.
        kernel: Function of the distance.
        size: Number of inputs.

    Returns:
        Array or `Tensor` of shape `(size, count)`.
    """
    weights = kernel(_absolute(place - grid) / spread)
    total = weights.sum(0)
    # The lobes of a kernel may cancel: nothing is then left to normalize.
    usable = _absolute(total) > 1000 * float(np.finfo(np.float32).eps)
    usable = usable & (place >= -0.5) & (place <= size - 0.5)
    return _where(usable, weights / _where(usable, total, 1.0), 0.0)


def _absolute(x):
    return x.abs() if isinstance(x, Tensor) else np.abs(x)


def _where(condition, x, y):
    if isinstance(condition, Tensor):
        return condition.where(x, y)
    return np.where(condition, x, y)


def _triangle(x):
    return (1 - x).clip(0, None)


def _keys_cubic(x):
    # Keys (1981) with a = -0.5.
    near = ((1.5 * x - 2.5) * x) * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return _where(x < 1, near, _where(x < 2, far, 0.0))


def _lanczos(radius):
    def kernel(x):
        inside = x.clip(1e-3, radius)
        lobes = _sin_pi(inside) * _sin_pi(inside / radius)
        lobes = lobes * radius / (math.pi * inside) ** 2
        return _where(x > radius, 0.0, _where(x > 1e-3, lobes, 1.0))

    return kernel


def _sin_pi(x):
    """sin(pi * x) for x >= 0, from powers: tinygrad's sine compiles slowly."""
    whole = (x + 0.5) // 1
    rest = x - whole
    result = 0.0
    for k in reversed(range(12)):
        term = (-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1)
        result = result * rest * rest + term
    return result * rest * (1 - 2 * (whole % 2))


_KERNELS = {
    "linear": _triangle,
    "bilinear": _triangle,
    "trilinear": _triangle,
    "cubic": _keys_cubic,
    "bicubic": _keys_cubic,
    "tricubic": _keys_cubic,
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _apply_weights(images, weights):
    """Multiplies axes by matrices.

    Args:
        images: `Tensor`. Integers are rounded, and stay in their range.
        weights: List of `(axis, matrix)`; a matrix has shape `(size, count)`.

    Returns:
        `Tensor` of the dtype of `images`.
    """
    if not weights:
        return images
    x = widen(images)
    for axis, matrix in weights:
        x = _apply_along(x, axis, matrix.cast(x.dtype))
    if not images.is_floating_point():
        x = x.round().clip(images.min(), images.max())
    return x.cast(images.dtype)


def _apply_along(x, axis, matrix):
    """Contracts `axis` with the rows of `matrix`, in place."""
    if axis == x.ndim - 1:
        return matmul(x, matrix)
    # What follows the axis is the other operand's columns: no transpose.
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    x = matmul(matrix.transpose(0, 1), x.reshape(*before, -1))
    return x.reshape(*before[:-1], matrix.shape[1], *after)


def scale_and_translate(
    images,
    output_shape,
    scale,
    translation,
    spatial_dims,
    method,
    antialias=True,
):
    _check_choice("method", method, _KERNELS)
    images = _real_tensor(images)
    scale = widen(_real_tensor(scale))
    translation = widen(_real_tensor(translation))
    count = len(spatial_dims)
    if scale.shape != (count,) or translation.shape != (count,):
        raise ValueError(
            "Arguments `scale` and `translation` must have an element for "
            f"each of `spatial_dims`. Received: scale.shape={scale.shape}, "
            f"translation.shape={translation.shape}, "
            f"spatial_dims={spatial_dims}"
        )
    weights = []
    for i, axis in enumerate(spatial_dims):
        axis = canonicalize_axis(axis, images.ndim)
        size = images.shape[axis]
        count = to_int("output_shape", output_shape[axis], 0)
        step = 1 / scale[i]
        place = (Tensor.arange(count) + 0.5 - translation[i]) * step - 0.5
        spread = step.maximum(1) if antialias else 1.0
        grid = Tensor.arange(size).reshape(size, 1)
        matrix = _sampling_weights(place, grid, spread, _KERNELS[method], size)
        weights.append((axis, matrix))
    return _apply_weights(images, weights)


def _check_transform_arguments(interpolation, fill_mode="constant"):
    _check_choice("interpolation", interpolation, _ORDERS)
    _check_choice("fill_mode", fill_mode, _FILL_MODES)


def affine_transform(
    images,
    transform,
    interpolation="bilinear",
    fill_mode="constant",
    fill_value=0,
    data_format=None,
):
    _check_transform_arguments(interpolation, fill_mode)
    images = _real_tensor(images)
    transform = _real_tensor(transform)
    _check_rank(images)
    if transform.ndim not in (1, 2):
        raise ValueError(
            "Invalid transform rank: expected rank 1, of one transform, or "
            "2, of one for each image. Received: "
            f"transform.shape={transform.shape}"
        )
    if transform.shape[-1] != 8:
        raise ValueError(
            "Argument `transform` must have 8 values for each image. "
            f"Received: transform.shape={transform.shape}"
        )
    # c0 and c1 only have an effect in the TensorFlow backend.
    a0, a1, a2, b0, b1, b2, *_ = _coefficients(transform)

    def place(x, y):
        return y * b1 + x * b0 + b2, y * a1 + x * a0 + a2

    return _sample_images(
        images, place, interpolation, fill_mode, fill_value, data_format
    )


def _coefficients(transform):
    """Returns eight tensors that broadcast over (batch, height, width)."""
    transform = widen(transform.reshape(-1, 8))
    return [transform[:, i].reshape(-1, 1, 1) for i in range(8)]


def _sample_images(
    images, place, interpolation, fill_mode, fill_value, data_format
):
    """Samples every image where `place(x, y)` says, as `(row, column)`."""
    channels_first = standardize_data_format(data_format) == "channels_first"
    _check_not_empty(images)
    x = images if images.ndim == 4 else images.unsqueeze(0)
    if channels_first:
        x = x.permute(0, 2, 3, 1)
    batch, height, width, channels = x.shape
    rows, columns = place(
        Tensor.arange(width).cast(dtypes.float32),
        Tensor.arange(height).cast(dtypes.float32).reshape(height, 1),
    )
    x = _interpolate(
        x,
        [
            rows.expand(batch, height, width),
            columns.expand(batch, height, width),
        ],
        _ORDERS[interpolation],
        fill_mode,
        fill_value,
    )
    if channels_first:
        x = x.permute(0, 3, 1, 2)
    return x if images.ndim == 4 else x.squeeze(0)


def perspective_transform(
    images,
    start_points,
    end_points,
    interpolation="bilinear",
    fill_value=0,
    data_format=None,
):
    _check_transform_arguments(interpolation)
    images = _real_tensor(images)
    start_points = _real_tensor(start_points)
    end_points = _real_tensor(end_points)
    _check_rank(images)
    for name, points in (
        ("start_points", start_points),
        ("end_points", end_points),
    ):
        if points.shape[-2:] != (4, 2) or points.ndim not in (2, 3):
            raise ValueError(
                f"Invalid {name} shape: expected four points (4, 2), or four "
                f"for each image (batch, 4, 2). Received: {points.shape}"
            )
    if start_points.shape != end_points.shape:
        raise ValueError(
            "There must be as many `start_points` as `end_points`. Received: "
            f"shapes {start_points.shape} and {end_points.shape}"
        )
    transform = compute_homography_matrix(
        widen(start_points.reshape(-1, 4, 2)),
        widen(end_points.reshape(-1, 4, 2)),
    )
    a0, a1, a2, b0, b1, b2, c0, c1 = _coefficients(transform)

    def place(x, y):
        depth = c0 * x + c1 * y + 1
        return (
            (b0 * x + b1 * y + b2) / depth,
            (a0 * x + a1 * y + a2) / depth,
        )

    return _sample_images(
        images, place, interpolation, "constant", fill_value, data_format
    )


def compute_homography_matrix(start_points, end_points):
    start_points = _real_tensor(start_points)
    end_points = _real_tensor(end_points)
    dtype = result_type(start_points.dtype, end_points.dtype, float)
    start = widen(cast(start_points, dtype))
    end = widen(cast(end_points, dtype))
    # Two equations for each corner, linear in the eight coefficients.
    end = end.cat(end.const_like(1)[..., :1], dim=-1)
    nothing = end.const_like(0)
    products = start.unsqueeze(-1) * end[..., :2].unsqueeze(-2)
    first = end.cat(nothing, -products[..., 0, :], dim=-1)
    second = nothing.cat(end, -products[..., 1, :], dim=-1)
    matrix = first.cat(second, dim=1)
    target = start[..., 0].cat(start[..., 1], dim=1).unsqueeze(-1)
    return cast(solve(matrix, target).squeeze(-1), dtype)


def map_coordinates(
    inputs, coordinates, order, fill_mode="constant", fill_value=0.0
):
    inputs = _real_tensor(inputs)
    coordinates = [_real_tensor(c) for c in coordinates]
    if len(coordinates) != inputs.ndim:
        raise ValueError(
            "The number of `coordinates` must be the same as the rank of "
            f"`inputs`. Received: {len(coordinates)} coordinates and inputs "
            f"of shape {inputs.shape}"
        )
    if coordinates[0].ndim < 1:
        raise ValueError(
            "Invalid coordinates rank: expected at least rank 2. Received: "
            f"coordinates of shape {(len(coordinates),)}"
        )
    _check_choice("fill_mode", fill_mode, _FILL_MODES)
    _check_choice("order", order, _ORDERS.values())
    shape = coordinates[0].shape
    result = _interpolate(
        inputs.unsqueeze(0).unsqueeze(-1),
        [c.reshape(1, -1) for c in coordinates],
        order,
        fill_mode,
        fill_value,
    )
    return result.reshape(shape)


def _interpolate(x, coordinates, order, fill_mode, fill_value):
    """Samples a batch of grids of pixels, each at its own places.

    Args:
        x: `Tensor` of shape `(batch, *grid, channels)`.
        coordinates: For each grid axis, a `Tensor` of shape
            `(batch, *places)`.
        order: 0 for the nearest pixel, 1 for multilinear interpolation.
        fill_mode: How the grid goes on outside.
        fill_value: The value outside if `fill_mode` is `"constant"`.

    Returns:
        `Tensor` of shape `(batch, *places, channels)`, of the dtype of `x`.
    """
    batch, *grid, channels = x.shape
    nodes = []
    for coordinate, size in zip(coordinates, grid):
        nodes.append(
            [
                (*_inside(index, size, fill_mode), weight)
                for index, weight in _nodes(coordinate, order)
            ]
        )
    # One gather for all corners: the first axis of the index counts them.
    corners = list(itertools.product(*nodes))
    places = coordinates[0].shape[1:]
    image = Tensor.arange(batch, dtype=dtypes.int32)
    image = image.reshape(batch, *[1] * len(places))
    rows = []
    for corner in corners:
        row = image
        for (index, _, _), size in zip(corner, grid):
            row = row * size + index
        rows.append(row)
    index = rows[0].stack(*rows[1:])
    pixels = gather_rows(x.reshape(-1, channels), index)
    result = None
    for i, corner in enumerate(corners):
        value = widen(pixels[i]) if order else pixels[i]
        for _, valid, _ in corner:
            if valid is not None:
                value = valid.unsqueeze(-1).where(
                    value, value.const_like(fill_value)
                )
        for _, _, weight in corner:
            if weight is not None:
                value = value * weight.unsqueeze(-1)
        result = value if result is None else result + value
    if order and not x.is_floating_point():
        result = result.round()
    return result.cast(x.dtype)


def _nodes(coordinate, order):
    """Returns `(index, weight)` of the grid points that a place draws on."""
    if not coordinate.is_floating_point():
        return [(coordinate.cast(dtypes.int32), None)]
    coordinate = widen(coordinate)
    if order == 0:
        # Halves go up, as in scipy.
        return [((coordinate + 0.5).floor().cast(dtypes.int32), None)]
    lower = coordinate.detach().floor()
    index = lower.cast(dtypes.int32)
    upper_weight = coordinate - lower
    return [(index, 1 - upper_weight), (index + 1, upper_weight)]


def _inside(index, size, fill_mode):
    """Moves indices into range; says which were, where that matters."""
    if fill_mode == "constant":
        return index.clip(0, size - 1), (index >= 0) & (index < size)
    if fill_mode == "nearest":
        return index.clip(0, size - 1), None
    if fill_mode == "wrap":
        return index % size, None
    if fill_mode == "mirror":
        # Edges are not repeated: 2 1 0 1 2.
        period = max(2 * (size - 1), 1)
        index = index % period
        return (index < size).where(index, period - index), None
    # Edges are repeated: 1 0 0 1.
    index = index % (2 * size)
    return (index < size).where(index, 2 * size - 1 - index), None


def gaussian_blur(
    images, kernel_size=(3, 3), sigma=(1.0, 1.0), data_format=None
):
    images = _real_tensor(images)
    sigma = widen(_real_tensor(sigma))
    _check_rank(images)
    _check_not_empty(images)
    sizes = [to_int("kernel_size", n, 1) for n in kernel_size]
    if len(sizes) != 2 or sigma.shape != (2,):
        raise ValueError(
            "Arguments `kernel_size` and `sigma` must have two elements. "
            f"Received: kernel_size={kernel_size}, sigma.shape={sigma.shape}"
        )
    # The first element is for the width, as in the numpy and jax backends.
    height, width = _spatial_axes(images, data_format)
    weights = [
        (height, _blur_weights(images.shape[height], sizes[1], sigma[1])),
        (width, _blur_weights(images.shape[width], sizes[0], sigma[0])),
    ]
    return _apply_weights(images, weights)


def _blur_weights(count, kernel_size, sigma, longest=None):
    """Weighs each input position for each output position of a blur.

    Args:
        count: Number of positions; beyond them there are zeros.
        kernel_size: Whole number, or scalar integer `Tensor`.
        sigma: Scalar floating `Tensor`.
        longest: Upper bound of `kernel_size`. Defaults to `kernel_size`.

    Returns:
        `Tensor` of shape `(count, count)`.
    """

    def bell(step):
        distance = (step - (kernel_size - 1) / 2) / sigma
        inside = (step >= 0) & (step < kernel_size)
        return inside.where((distance.square() * -0.5).exp(), 0)

    total = bell(Tensor.arange(longest or kernel_size)).sum()
    place = Tensor.arange(count)
    return bell(place.reshape(-1, 1) - place + (kernel_size - 1) // 2) / total


def elastic_transform(
    images,
    alpha=20.0,
    sigma=5.0,
    interpolation="bilinear",
    fill_mode="reflect",
    fill_value=0.0,
    seed=None,
    data_format=None,
):
    _check_transform_arguments(interpolation, fill_mode)
    images = _real_tensor(images)
    _check_rank(images)
    height, width = (
        images.shape[axis] for axis in _spatial_axes(images, data_format)
    )
    _check_not_empty(images)
    batch = images.shape[0] if images.ndim == 4 else 1
    alpha = widen(_real_tensor(alpha))
    sigma = widen(_real_tensor(sigma))
    # Odd, and about six sigmas. Its value is not known here, so a kernel four
    # times as long as the image is cut.
    longest = 4 * max(height, width) + 1
    kernel_size = ((3 * sigma).cast(dtypes.int32) * 2 + 1).clip(None, longest)
    noise = random.normal((2, batch, height, width), dtype="float32", seed=seed)
    weights = [
        (axis, _blur_weights(noise.shape[axis], kernel_size, sigma, longest))
        for axis in (2, 3)
    ]
    shift = alpha * _apply_weights(noise * sigma, weights)

    def place(x, y):
        return y + shift[0], x + shift[1]

    return _sample_images(
        images, place, interpolation, fill_mode, fill_value, data_format
    )


def sobel_edges(images, data_format=None):
    images = _real_tensor(images)
    refuse_bool("sobel_edges", images)
    _check_rank(images)
    height, width = _spatial_axes(images, data_format)

    def neighbors(x, axis):
        return taps(pad_axes(x, [axis], [(1, 1)]), (axis,), (3,), (1,))

    def slope(along, across):
        before, here, after = neighbors(images, across)
        before, _, after = neighbors(before + 2 * here + after, along)
        return after - before

    return slope(height, width).stack(slope(width, height), dim=-1)
