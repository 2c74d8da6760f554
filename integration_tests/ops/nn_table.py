"""The rows of the table of ops for neural networks and images."""

import functools
import math

import numpy as np


def add_nn_ops(add, floats):
    """Adds the rows.

    Args:
        add: Function of an op's name, its `draw` and the fields of `Op`.
        floats: Names of the floating dtypes.
    """
    whole = dict(dtypes=("float32",))
    wide = dict(dtypes=("float32", "float16"))
    integers = dict(dtypes=("uint8", "int32"), gradient=False)

    add("hard_silu", lambda d: ((d.array(d.shape(), -2.9, 2.9),), {}))
    add("threshold", lambda d: ((d.array(d.shape()), 0.5, -1.0), {}))
    # Computed in the narrow dtype by the numpy backend.
    add("glu", _draw_glu, **wide)

    for name in ("max_pool", "average_pool"):
        add(name, _draw_pool, dtypes=floats[:2])
    # Keras infers one dimension too many.
    for name in ("adaptive_max_pool", "adaptive_average_pool"):
        add(name, _draw_adaptive_pool, spec=False, **whole)
    add("conv", _draw_conv, **whole)
    add("depthwise_conv", _draw_depthwise_conv, **whole)
    add("separable_conv", _draw_separable_conv, **whole)
    add("conv_transpose", _draw_conv_transpose, **whole)
    add("nn.unfold", _draw_unfold, **whole)
    add("nn.fold", _draw_fold, **whole)
    add("nn.depth_to_space", _draw_blocks(4), **whole)
    add("nn.space_to_depth", _draw_blocks(1, 2), **whole)

    # Keras infers the dtype of the indices.
    add("multi_hot", _draw_multi_hot, spec=False, gradient=False, **whole)
    add("categorical_crossentropy", _draw_categorical, **whole)
    add("sparse_categorical_crossentropy", _draw_sparse_categorical, **whole)
    # The numpy backend clips what it computes from logits.
    add("binary_crossentropy", _draw_binary, rtol=1e-4, **whole)
    add("psnr", _draw_psnr, **whole)
    add("moments", _draw_moments, rtol=1e-4, dtypes=floats[:2])
    add("batch_normalization", _draw_batch_normalization, rtol=1e-4, **whole)
    # Keras computes these in float32, where differences are too coarse;
    # `nn_test.py` looks at their gradients.
    narrow = dict(gradient=False, rtol=1e-4, double=False, **whole)
    add("layer_normalization", _draw_normalization, **narrow)
    add("rms_normalization", _draw_normalization, **narrow)
    add("ctc_loss", _draw_ctc_loss, **narrow)
    add("ctc_decode", _draw_ctc_decode, **narrow)
    add("dot_product_attention", _draw_attention, **narrow)

    add("image.rgb_to_grayscale", _draw_image(), **wide)
    add("image.rgb_to_hsv", _draw_image(), **wide)
    add("image.hsv_to_rgb", _draw_image(), **wide)
    add("image.resize", _draw_resize, rtol=1e-4, **wide)
    add("image.resize", _draw_resize, rounded=True, **integers)
    for interpolation in ("bilinear", "nearest"):
        # Differences step over the jumps of the nearest pixel.
        smooth = interpolation == "bilinear"
        for name, draw in (
            ("image.affine_transform", _draw_affine),
            ("image.perspective_transform", _draw_perspective),
            ("image.map_coordinates", _draw_map_coordinates),
        ):
            draw = functools.partial(draw, interpolation)
            add(name, draw, gradient=smooth, rtol=1e-4, double=False, **whole)
    add("image.gaussian_blur", _draw_blur, rtol=1e-4, **whole)
    add("image.scale_and_translate", _draw_scale, rtol=1e-4, **whole)
    add("image.extract_patches", _draw_patches, **whole)
    add("image.extract_patches_3d", _draw_patches_3d, **whole)
    add("image.sobel_edges", _draw_sobel_edges, **whole)
    add("image.ssim", _draw_ssim, **narrow)
    # Backends draw different displacements: here, none.
    add("image.elastic_transform", _draw_elastic, double=False, **whole)


def _draw_glu(d):
    shape = list(d.shape(1, empty=False))
    axis = d.axis(len(shape), none=False)
    shape[axis] *= 2
    return (d.array(shape),), {"axis": axis}


def _data_format(d):
    return d.choice("channels_last", "channels_first")


def _batch(d, rank, data_format, low=3, high=9, channels=None):
    """Draws a shape of `rank` spatial dimensions."""
    spatial = tuple(d.integer(low, high) for _ in range(rank))
    channels = channels or d.integer(1, 4)
    if data_format == "channels_last":
        return (d.integer(1, 3), *spatial, channels)
    return (d.integer(1, 3), channels, *spatial)


def _distinct(d, shape):
    """An array whose elements differ by more than a step of differences."""
    values = d.rng.permutation(math.prod(shape)) / 16 - 2
    return values.reshape(shape).astype(d.dtype)


def _draw_pool(d):
    rank = d.integer(1, 3)
    data_format = _data_format(d)
    x = _distinct(d, _batch(d, rank, data_format))
    return (x, tuple(d.integer(1, 3) for _ in range(rank))), {
        # Without strides, the numpy backend fails.
        "strides": tuple(d.integer(1, 3) for _ in range(rank)),
        "padding": d.choice("valid", "same"),
        "data_format": data_format,
    }


def _draw_adaptive_pool(d):
    rank = d.integer(1, 3)
    data_format = _data_format(d)
    x = _distinct(d, _batch(d, rank, data_format))
    size = tuple(d.integer(1, 4) for _ in range(rank))
    return (x, size), {"data_format": data_format}


def _window(d, rank):
    """Draws a kernel's size, and strides or dilations, not both above 1."""
    settings = {}
    other = d.choice("strides", "dilation_rate")
    settings[other] = tuple(d.integer(1, 2) for _ in range(rank))
    return tuple(d.integer(1, 2) for _ in range(rank)), settings


def _draw_conv(d):
    rank = d.integer(1, 3)
    data_format = _data_format(d)
    groups, depth = d.integer(1, 2), d.integer(1, 3)
    x = d.array(_batch(d, rank, data_format, channels=groups * depth))
    size, settings = _window(d, rank)
    kernel = d.array((*size, depth, groups * d.integer(1, 3)))
    return (x, kernel), {
        "padding": d.choice("valid", "same"),
        "data_format": data_format,
        **settings,
    }


def _draw_depthwise_conv(d):
    rank = d.integer(1, 2)
    data_format = _data_format(d)
    channels = d.integer(1, 4)
    x = d.array(_batch(d, rank, data_format, channels=channels))
    size, settings = _window(d, rank)
    kernel = d.array((*size, channels, d.integer(1, 2)))
    return (x, kernel), {
        "padding": d.choice("valid", "same"),
        "data_format": data_format,
        **settings,
    }


def _draw_separable_conv(d):
    (x, kernel), settings = _draw_depthwise_conv(d)
    rank = kernel.ndim - 2
    channels = kernel.shape[-2] * kernel.shape[-1]
    pointwise = d.array((*[1] * rank, channels, d.integer(1, 3)))
    return (x, kernel, pointwise), settings


def _draw_conv_transpose(d):
    rank = d.integer(1, 3)
    data_format = _data_format(d)
    channels = d.integer(1, 3)
    x = d.array(_batch(d, rank, data_format, 2, 4, channels))
    size = tuple(d.integer(1, 4) for _ in range(rank))
    kernel = d.array((*size, d.integer(1, 3), channels))
    return (x, kernel), {
        "padding": d.choice("valid", "same"),
        "strides": d.integer(1, 3),
        "dilation_rate": d.integer(1, 2),
        "data_format": data_format,
    }


def _block_settings(d):
    return {
        "dilation": d.integer(1, 2),
        "padding": d.integer(0, 2),
        "stride": d.integer(1, 3),
    }


def _draw_unfold(d):
    x = d.array(_batch(d, 2, "channels_first", 5, 9))
    return (x, (d.integer(1, 3), d.integer(1, 3))), _block_settings(d)


def _draw_fold(d):
    sizes = (d.integer(5, 9), d.integer(5, 9))
    kernel = (d.integer(1, 3), d.integer(1, 3))
    settings = _block_settings(d)
    counts = [
        (n + 2 * settings["padding"] - (k - 1) * settings["dilation"] - 1)
        // settings["stride"]
        + 1
        for n, k in zip(sizes, kernel)
    ]
    depth = d.integer(1, 3) * math.prod(kernel)
    x = d.array((d.integer(1, 2), depth, math.prod(counts)))
    return (x, sizes, kernel), settings


def _draw_blocks(channel_factor, spatial_factor=1):
    def draw(d):
        data_format = _data_format(d)
        h, w = (spatial_factor * d.integer(1, 4) for _ in range(2))
        c = channel_factor * d.integer(1, 3)
        shape = (2, h, w, c) if data_format == "channels_last" else (2, c, h, w)
        return (d.array(shape), 2), {"data_format": data_format}

    return draw


def _draw_multi_hot(d):
    shape = d.shape(1, 2, empty=False)
    return (d.array(shape, -1, 4, dtype="int32"),), {"num_classes": 5}


def _classes(d):
    """Draws outputs `(..., classes)`, as logits or probabilities."""
    shape = (*d.shape(0, 2, empty=False), d.integer(2, 6))
    from_logits = bool(d.integer(0, 1))
    low, high = (-3.0, 3.0) if from_logits else (0.1, 1.0)
    return d.array(shape, low, high), {"from_logits": from_logits}


def _draw_categorical(d):
    output, settings = _classes(d)
    return (d.array(output.shape, 0.0, 1.0), output), settings


def _draw_sparse_categorical(d):
    output, settings = _classes(d)
    last = output.shape[-1] - 1
    target = d.array(output.shape[:-1], 0, last, dtype="int32")
    return (target, output), settings


def _draw_binary(d):
    from_logits = bool(d.integer(0, 1))
    shape = d.shape(empty=False)
    output = d.array(shape, *((-3.0, 3.0) if from_logits else (0.1, 0.9)))
    target = d.array(shape, 0.0, 1.0)
    return (target, output), {"from_logits": from_logits}


def _draw_psnr(d):
    shape = d.shape(1, empty=False)
    return (d.array(shape), d.array(shape)), {"max_val": 255.0}


def _draw_moments(d):
    shape = d.shape(1, empty=False)
    count = d.integer(1, len(shape))
    axes = [int(a) for a in d.rng.permutation(len(shape))[:count]]
    return (d.array(shape),), {"axes": axes, "keepdims": bool(d.integer(0, 1))}


def _draw_batch_normalization(d):
    shape = d.shape(1, empty=False)
    axis = d.axis(len(shape), none=False)
    vectors = [d.array((shape[axis],), 0.3, 2.0) for _ in range(4)]
    mean, variance, offset, scale = vectors
    given = d.integer(0, 1)
    return (
        d.array(shape),
        mean,
        variance,
        axis,
        offset if given else None,
        scale if given else None,
    ), {}


def _draw_normalization(d):
    shape = (*d.shape(0, 2, empty=False), d.integer(2, 6))
    return (d.array(shape), d.array(shape[-1:], 0.5, 2.0)), {}


def _draw_ctc_loss(d):
    batch, time, classes, labels = 3, d.integer(6, 12), d.integer(3, 6), 3
    return (
        d.array((batch, labels), 1, classes - 1, dtype="int32"),
        d.array((batch, time, classes)),
        d.array((batch,), 1, labels, dtype="int32"),
        # Long enough for repeated labels.
        d.array((batch,), 6, time, dtype="int32"),
    ), {"mask_index": 0}


def _draw_ctc_decode(d):
    batch, time, classes = 3, d.integer(2, 8), d.integer(3, 6)
    strategy = d.choice(
        {"strategy": "greedy", "merge_repeated": bool(d.integer(0, 1))},
        {
            "strategy": "beam_search",
            "beam_width": d.integer(4, 20),
            "top_paths": d.integer(1, 3),
        },
    )
    return (
        d.array((batch, time, classes)),
        d.array((batch,), 2, time, dtype="int32"),
    ), {"mask_index": d.integer(0, classes - 1), **strategy}


def _draw_attention(d):
    batch, length, keys = d.integer(1, 2), d.integer(1, 5), d.integer(1, 5)
    heads, size = d.integer(1, 3), d.integer(1, 4)
    settings = {
        "bias": d.choice(None, d.array((batch, heads, length, keys))),
        "scale": d.choice(None, 0.7),
        "is_causal": bool(d.integer(0, 1)),
    }
    if d.integer(0, 1):
        mask = d.array((batch, 1, length, keys), dtype="bool")
        mask[..., 0] = True
        settings["mask"] = mask
    return (
        d.array((batch, length, heads, size)),
        d.array((batch, keys, heads, size)),
        d.array((batch, keys, heads, size)),
    ), settings


def _image(d, data_format):
    shape = _batch(d, 2, data_format, 4, 9, channels=3)
    shape = shape if d.integer(0, 1) else shape[1:]
    bounds = (0, 255) if d.dtype in ("uint8", "int32") else (0.05, 1.0)
    return d.array(shape, *bounds)


def _draw_image():
    def draw(d):
        data_format = _data_format(d)
        return (_image(d, data_format),), {"data_format": data_format}

    return draw


def _draw_resize(d):
    data_format = _data_format(d)
    images = _image(d, data_format)
    kinds = ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5")
    if images.dtype.kind in "iu":
        # Unlike torch and jax, the numpy backend lets the others overshoot
        # the range of the image.
        kinds = kinds[:2]
    settings = {
        "interpolation": d.choice(*kinds),
        "antialias": bool(d.integer(0, 1)),
        "data_format": data_format,
    }
    if d.integer(0, 2) == 0:
        settings["crop_to_aspect_ratio"] = True
    elif d.integer(0, 1):
        settings.update(pad_to_aspect_ratio=True, fill_value=1.0)
    return (images, (d.integer(2, 12), d.integer(2, 12))), settings


def _fill_mode(d):
    return d.choice("constant", "nearest", "wrap", "mirror", "reflect")


def _draw_affine(interpolation, d):
    data_format = _data_format(d)
    images = _image(d, data_format)
    shape = (images.shape[0], 6) if images.ndim == 4 else (6,)
    transform = d.array(shape, -1.3, 1.3)
    transform = np.pad(transform, [(0, 0)] * (len(shape) - 1) + [(0, 2)])
    return (images, transform), {
        "interpolation": interpolation,
        "fill_mode": _fill_mode(d),
        "fill_value": 0.5,
        "data_format": data_format,
    }


def _draw_perspective(interpolation, d):
    data_format = _data_format(d)
    images = _image(d, data_format)
    shape = (images.shape[0], 4, 2) if images.ndim == 4 else (1, 4, 2)
    corners = np.array([[0, 0], [6, 0], [0, 6], [6, 6]], d.dtype)
    points = [corners + d.array(shape, -1.0, 1.0) for _ in range(2)]
    return (images, *points), {
        "interpolation": interpolation,
        "fill_value": 0.5,
        "data_format": data_format,
    }


def _draw_map_coordinates(interpolation, d):
    grid = tuple(d.integer(2, 6) for _ in range(d.integer(1, 3)))
    places = d.shape(1, 2, empty=False)
    return (d.array(grid), d.array((len(grid), *places), -6.0, 9.0)), {
        "order": 1 if interpolation == "bilinear" else 0,
        "fill_mode": _fill_mode(d),
        "fill_value": 0.5,
    }


def _draw_blur(d):
    data_format = _data_format(d)
    size = (d.integer(1, 5), d.integer(1, 5))
    sigma = d.array((2,), 0.5, 2.0)
    return (_image(d, data_format), size, sigma), {"data_format": data_format}


def _draw_scale(d):
    images = d.array((d.integer(4, 8), d.integer(4, 8), 2))
    return (
        images,
        (d.integer(3, 9), d.integer(3, 9), 2),
        d.array((2,), 0.6, 2.0),
        d.array((2,), -1.0, 1.0),
        (0, 1),
        d.choice("linear", "cubic", "lanczos3", "lanczos5"),
    ), {"antialias": bool(d.integer(0, 1))}


def _draw_patches(d):
    data_format = _data_format(d)
    images = _image(d, data_format)
    return (images, (d.integer(1, 3), d.integer(1, 3))), {
        "strides": d.integer(1, 3),
        "padding": d.choice("valid", "same"),
        "data_format": data_format,
    }


def _draw_patches_3d(d):
    data_format = _data_format(d)
    shape = _batch(d, 3, data_format, 3, 5, d.integer(1, 2))
    shape = shape if d.integer(0, 1) else shape[1:]
    return (d.array(shape), tuple(d.integer(1, 2) for _ in range(3))), {
        "strides": d.integer(1, 2),
        "padding": d.choice("valid", "same"),
        "data_format": data_format,
    }


def _draw_sobel_edges(d):
    data_format = _data_format(d)
    x = d.array(_batch(d, 2, data_format, 1, 5))
    # The numpy backend repeats the border, where torch and jax have zeros.
    axes = (1, 2) if data_format == "channels_last" else (2, 3)
    widths = [(1, 1) if axis in axes else (0, 0) for axis in range(4)]
    return (np.pad(x, widths),), {"data_format": data_format}


def _draw_ssim(d):
    data_format = _data_format(d)
    images = _image(d, data_format)
    return (images, d.array(images.shape, 0.0, 1.0)), {
        "filter_size": d.integer(2, 4),
        "data_format": data_format,
    }


def _draw_elastic(d):
    data_format = _data_format(d)
    return (_image(d, data_format),), {
        "alpha": 0.0,
        "sigma": 0.5,
        "interpolation": d.choice("bilinear", "nearest"),
        "fill_mode": _fill_mode(d),
        "seed": d.integer(0, 9),
        "data_format": data_format,
    }
