"""Inputs at ties, kinks and the ends of domains, for each op that has them.

`EDGES` maps an op's name to its cases; gradients there are conventions, and
the ones to follow are the torch backend's. `SMOOTH` names the differentiable
ops without such places. `DEVIATIONS` says where another answer is right.
"""

import numpy as np

from integration_tests.ops.function_ops import tripled_derivative

INF, NAN = np.inf, np.nan


def _f(*values):
    return np.array(values, "float32")


def _points(*values):
    """Cases of a function of one array, elementwise."""
    return [((_f(*values),), {})]


def _pairs(*pairs):
    """Cases of a function of two arrays, elementwise."""
    first, second = zip(*pairs)
    return [((_f(*first), _f(*second)), {})]


def _each(arrays, **kwargs):
    return [((array,), kwargs) for array in arrays]


def _window(*rows):
    """One image of one channel, channels last."""
    return _f(*rows)[None, :, :, None]


TIES = _f([1, 3, 3, 2], [2, 2, 2, 2], [-1, 0, -0.0, -1])
WITH_NAN = _f([1, NAN, 3, NAN], [2, 2, INF, -INF])
ZEROS = _f([2, 3, 4], [0, 3, 4], [0, 0, 4], [0, 0, 0], [2, 3, 0])
CONSTANT = _f([3, 3, 3], [1, 2, 3])
LOGITS = _f([0, 0, 0], [-INF, 0, 1], [-INF, -INF, 2], [100, -100, 100])
EXTREMES = (0, -0.0, 1, -1, 90, -90, INF, -INF)
RANKED = _f([2, 2, 1, 2], [0, -0.0, 0, -1], [5, 5, 5, 5])
POOLED = _window([1, 1, 0, 0], [1, 1, 0, 2], [3, 0, 2, 2], [0, 3, 2, 2])

EDGES = {
    # Elementwise.
    "abs": _points(*EXTREMES, NAN),
    "absolute": _points(*EXTREMES),
    "fabs": _points(*EXTREMES),
    "arccos": _points(1, -1, 0, 2),
    "arccosh": _points(1, 0.5, INF),
    "arcsin": _points(1, -1, 0, 2),
    "arctan": _points(*EXTREMES),
    "arctan2": _pairs(
        *((0, 1), (0, -1), (-0.0, -1), (1, 0), (-1, 0), (0, 0), (1, INF)),
    ),
    "arctanh": _points(1, -1, 0, 2),
    "cbrt": _points(0, -8, 8),
    "ceil": _points(0, -0.0, 1, 1.5, INF),
    "celu": _points(0, -0.0, 90, -90) + [((_f(0, -1, 2), 2.0), {})],
    "clip": [
        ((_f(-1, 1.5, 0, -2, 2, INF, NAN), -1.0, 1.5), {}),
        ((_f(-1, 1, 0), 1.0, 1.0), {}),
    ],
    "divide": _pairs((1, 0), (-1, 0), (0, 1), (1, INF), (INF, 2)),
    "divide_no_nan": _pairs((1, 0), (0, 0), (0, 1), (2, 4)),
    "elu": _points(0, -0.0, 90, -90) + [((_f(0, -1, 2), 0.5), {})],
    "erf": _points(*EXTREMES),
    "erfc": _points(*EXTREMES),
    "erfinv": _points(1, -1, 0, 2),
    "exp": _points(*EXTREMES),
    "exp2": _points(0, 130, -150, INF, -INF),
    "expm1": _points(*EXTREMES),
    "floor": _points(0, -0.0, 1, 1.5, INF),
    "fmax": _pairs((1, 1), (0, -0.0), (NAN, 1), (1, NAN), (2, 1)),
    "fmin": _pairs((1, 1), (0, -0.0), (NAN, 1), (1, NAN), (2, 1)),
    "fmod": _pairs((4, 2), (-4, 2), (5, 2), (-5, 2), (0, 3)),
    "gelu": _points(0, -0.0, 10, -10)
    + [((_f(0, -0.0, 10, -10),), {"approximate": False})],
    "hard_shrink": _points(0.5, -0.5, 0, 1),
    "hard_sigmoid": _points(3, -3, 0, 5, -5),
    "hard_silu": _points(3, -3, 0, 5, -5),
    "hard_tanh": _points(1, -1, 0, 2, -2),
    "heaviside": _pairs((0, 0.5), (1, 0.5), (-1, 0.5)),
    "hypot": _pairs((0, 0), (3, 4), (0, 2), (-2, 0), (1e30, 1e30)),
    "i0": _points(0, -0.0, 1, -1),
    "leaky_relu": _points(0, -0.0, 1, -1, INF),
    "log": _points(0, -1, INF),
    "log10": _points(0, -1, INF),
    "log1p": _points(-1, -2, 0, INF),
    "log2": _points(0, -1, INF),
    "log_sigmoid": _points(0, 90, -90, 1e4, -1e4),
    "logaddexp": _pairs(
        *((1, 1), (0, -200), (-200, 0), (-INF, 0), (0, -INF)),
        *((INF, 0), (-INF, -INF), (INF, INF)),
    ),
    "logaddexp2": _pairs(
        *((1, 1), (0, -200), (-200, 0), (-INF, 0), (0, -INF)),
    ),
    "maximum": _pairs((1, 1), (0, -0.0), (NAN, 1), (1, NAN), (INF, INF)),
    "minimum": _pairs((1, 1), (0, -0.0), (NAN, 1), (1, NAN), (INF, INF)),
    "mod": _pairs((4, 2), (-4, 2), (5, 2), (-5, 2), (0, 3)),
    "floor_divide": _pairs((4, 2), (-4, 2), (5, 2), (-5, 2)),
    "nan_to_num": _points(NAN, INF, -INF, 1),
    "power": _pairs(
        *((0, 0), (0, 1), (0, 2), (0, 0.5), (0, -1), (1, 0), (2, 0)),
        *((-2, 2), (-2, 3), (-2, 0), (-1, 0.5), (2, INF), (1, INF)),
    ),
    "reciprocal": _points(0, -0.0, INF),
    "relu": _points(0, -0.0, 1, -1, INF, -INF, NAN),
    "relu6": _points(0, -0.0, 6, 3, 7, -1),
    "round": _points(0.5, 1.5, -0.5, 2),
    "rsqrt": _points(0, -1, INF),
    "selu": _points(0, -0.0, 90, -90),
    "sigmoid": _points(0, 90, -90, INF, -INF),
    "sign": _points(0, -0.0, 1, -1, NAN),
    "silu": _points(0, 90, -90, 1e4, -1e4),
    "sinc": _points(0, -0.0, 1, -1),
    "soft_shrink": _points(0.5, -0.5, 0, 1),
    "softplus": _points(0, 20, 21, 90, -90, INF, -INF),
    "softsign": _points(0, -0.0, 1e30, -1e30),
    "sparse_plus": _points(1, -1, 0, 2, -2),
    "sparse_sigmoid": _points(1, -1, 0, 2, -2),
    "sqrt": _points(0, -0.0, -1, INF),
    "square": _points(0, 1e20, INF),
    "squareplus": _points(0, 1e10, -1e10) + [((_f(0, 1, -1), 0.0), {})],
    "tanh": _points(0, 90, -90, INF, -INF),
    "tanh_shrink": _points(0, 90, -90),
    "threshold": [((_f(0.5, 0.4, 0.6, NAN), 0.5, -1.0), {})],
    "trunc": _points(0, -0.0, 1, 1.5),
    "where": [
        (
            (
                np.array([True, False, True, False]),
                _f(1, NAN, INF, 2),
                _f(NAN, 1, 2, INF),
            ),
            {},
        )
    ],
    # Reductions.
    **{
        name: _each((TIES, WITH_NAN), axis=1) + _each((TIES,), axis=None)
        for name in ("max", "min", "amax", "amin")
    },
    "ptp": _each((TIES,), axis=1),
    "prod": _each((ZEROS, ZEROS[:2]), axis=1) + _each((ZEROS,), axis=0),
    "cumprod": _each((ZEROS,), axis=1) + _each((ZEROS,), axis=0),
    "cumsum": _each((_f(1, INF, 1), _f(1, NAN, 1)), axis=0),
    "std": _each((CONSTANT,), axis=1) + _each((_f([2]),), axis=1),
    "var": _each((CONSTANT,), axis=1) + _each((_f([2]),), axis=1),
    "mean": _each((_f([INF, 1], [NAN, 1]),), axis=1),
    "moments": [((CONSTANT, [1]), {}), ((_f([2]), [1]), {})],
    "logsumexp": _each(
        (
            LOGITS,
            _f([-INF, -INF], [INF, 0], [INF, INF], [NAN, 0], [300, 300]),
        ),
        axis=1,
    ),
    "median": _each((TIES, RANKED), axis=1) + _each((TIES,), axis=None),
    "quantile": [
        ((TIES, _f(0, 0.25, 0.5, 1)), {"axis": 1}),
        ((RANKED, _f(0, 0.25, 0.5, 1)), {"axis": 1}),
        ((RANKED, _f(0.5)), {"axis": 1, "method": "nearest"}),
    ],
    "nanmax": _each((WITH_NAN, TIES), axis=1),
    "nanmin": _each((WITH_NAN, TIES), axis=1),
    "nanmedian": _each((TIES, WITH_NAN), axis=1),
    "nancumsum": _each((_f(1, NAN, 2),), axis=0),
    "nancumprod": _each((_f(2, NAN, 0, 3), _f(2, NAN, 3)), axis=0),
    "nansum": _each((WITH_NAN[:1],), axis=1),
    "nanmean": _each((WITH_NAN[:1],), axis=1),
    "nanprod": _each((_f([NAN, 0, 2], [0, NAN, 0]),), axis=1),
    "nanvar": _each((WITH_NAN[:1], CONSTANT), axis=1),
    "nanstd": _each((WITH_NAN[:1], CONSTANT), axis=1),
    "average": [((CONSTANT,), {"axis": 1, "weights": _f(0, 0, 1)})],
    "linalg.norm": [
        ((x,), {"ord": ord, "axis": axis})
        for x, axis, orders in (
            (_f(0, 0, 0), None, (None, 1, 2, 3, INF, -INF)),
            (_f([0, 0], [3, 4], [2, -2]), 1, (None, 1, 2, 3, INF, -INF)),
            (_f([0, 0], [0, 0]), None, ("fro",)),
            (_f([2, -2], [1, 3]), None, (1, -1, INF, -INF)),
        )
        for ord in orders
    ],
    "normalize": [
        ((_f([0, 0], [3, 4]),), {"axis": 1, "order": order}) for order in (1, 2)
    ],
    "psnr": [((_f(1, 2), _f(1, 3)), {"max_val": 1.0})],
    "cdist": [((_f([1, 2], [3, 4]), _f([1, 2], [0, 4])), {})],
    # Order.
    "sort": _each((TIES, RANKED), axis=1),
    "top_k": [((RANKED, 2), {}), ((RANKED, 3), {})],
    "segment_max": [
        ((_f(1, 1, 0, 2, 2, 2), np.int32([0, 0, 0, 2, 2, 2])), kwargs)
        for kwargs in ({"num_segments": 3},)
    ],
    "segment_min": [
        ((_f(1, 1, 3, 2, 2, 2), np.int32([0, 0, 0, 2, 2, 2])), kwargs)
        for kwargs in ({"num_segments": 3},)
    ],
    "segment_prod": [
        ((_f(2, 3, 0, 5, 0, 0), np.int32([0, 0, 1, 1, 2, 2])), kwargs)
        for kwargs in ({"num_segments": 3},)
    ],
    "scatter_update": [
        (
            (_f(1, 2, 3), np.int32([[0], [0], [1]]), _f(1, 1, 2)),
            {"reduction": reduction},
        )
        for reduction in ("add", "max", "min", "mul")
    ]
    + [
        (
            (_f(0, 2, 3), np.int32([[0], [0], [1]]), _f(0, 3, 0)),
            {"reduction": "mul"},
        ),
        ((_f(1, 2, 3), np.int32([[0], [2]]), _f(5, 6)), {}),
    ],
    "take": [((_f(1, 2, 3), np.int32([0, 0, -1])), {"axis": 0})],
    "take_along_axis": [
        ((_f([1, 2, 3]), np.int32([[0, 0, 2, -1]])), {"axis": 1})
    ],
    "pad": [((_f(1, 2, 3), ((2, 2),)), {"mode": "reflect"})],
    # Declared gradients.
    "stop_gradient": _each((TIES,)),
    "custom_gradient": [((tripled_derivative, _f(1, 2, -3)), {})],
    # Neural networks.
    "softmax": _each((LOGITS, _f([INF, 0], [-INF, -INF])), axis=1),
    "log_softmax": _each((LOGITS,), axis=1),
    "sparsemax": _each((_f([0, 0, 0], [1, 0, 0], [2, 0, 1], [9, 9, 0]),)),
    "glu": _each((_f([1, 2, 90, -90]),)),
    "max_pool": [
        ((POOLED, size), {"strides": strides, "padding": padding})
        for size, strides, padding in (
            (2, 2, "valid"),
            (2, 1, "valid"),
            (3, 2, "same"),
        )
    ],
    "average_pool": [((POOLED, 3), {"strides": 2, "padding": "same"})],
    "adaptive_max_pool": [((POOLED, 2), {"data_format": "channels_last"})],
    "binary_crossentropy": [
        ((_f(0, 1, 0, 1), _f(0, 1, 1, 0)), {}),
        ((_f(0, 1, 0, 1), _f(0, 0, 200, -200)), {"from_logits": True}),
    ],
    "categorical_crossentropy": [
        ((_f([0, 1], [1, 0]), _f([0, 1], [0, 1])), {}),
        ((_f([0, 1], [1, 0]), _f([-200, 0], [0, 0])), {"from_logits": True}),
    ],
    "sparse_categorical_crossentropy": [
        ((np.int32([0, 1]), _f([0, 1], [0, 1])), {}),
        ((np.int32([0, 1]), _f([-200, 0], [0, 0])), {"from_logits": True}),
    ],
    "batch_normalization": [
        ((CONSTANT, _f(1, 2, 3), _f(0, 0, 1), -1), {}),
    ],
    "layer_normalization": [
        ((_f([2, 2, 2, 2], [1, 2, 3, 4]), _f(1, 2, 3, 4)), {})
    ],
    "rms_normalization": [((_f([0, 0, 0], [1, 2, 3]), _f(1, 2, 3)), {})],
    "image.rgb_to_hsv": [
        (
            (_f([[0.5, 0.5, 0.5], [0, 0, 0], [1, 0, 0], [0.5, 0.5, 0.2]]),),
            {"data_format": "channels_last"},
        )
    ],
    "image.hsv_to_rgb": [
        (
            (_f([[0, 0, 0.5], [0.5, 0, 0], [1 / 3, 1, 1], [0, 1, 1]]),),
            {"data_format": "channels_last"},
        )
    ],
    "image.map_coordinates": [
        (
            (_f(1, 4, 9, 16), _f([0, 1, 3, -1, 4, 1.5])),
            {"order": order, "fill_mode": mode},
        )
        for order in (0, 1)
        for mode in ("constant", "nearest", "reflect")
    ],
    "linalg.det": _each((_f([1, 2], [2, 4]), _f([0, 0], [0, 0]))),
    "losses.huber": [((_f([0, 0, 0, 0]), _f([1, -1, 0, 2])), {})],
    "losses.mean_absolute_error": [((_f([0, 0]), _f([0, 1])), {})],
    "losses.hinge": [((_f([1, -1, 1]), _f([1, -1, 0])), {})],
    "losses.log_cosh": [((_f([0, 0, 0]), _f([0, 90, -90])), {})],
    "losses.cosine_similarity": [
        ((_f([0, 0], [1, 0]), _f([1, 2], [0, 0])), {})
    ],
}

# Differentiable everywhere, or undefined where they are not: linear ops and
# moves of elements, sums of products, entire functions. A name may be here
# before its op is in the table.
SMOOTH = frozenset(
    "adaptive_average_pool add append arcsinh array_split associative_scan "
    "broadcast_to concatenate cond conv conv_transpose copy correlate cos cosh "
    "cross deg2rad depthwise_conv diag diagflat diagonal diff dot dsplit "
    "dstack einsum expand_dims extract_sequences fft fft2 flip fliplr flipud "
    "fori_loop get_item hsplit hstack ifft2 image.affine_transform "
    "image.crop_images image.elastic_transform image.extract_patches "
    "image.extract_patches_3d image.gaussian_blur image.pad_images "
    "image.perspective_transform image.resize image.rgb_to_grayscale "
    "image.scale_and_translate image.sobel_edges inner irfft istft "
    "kron linalg.cholesky linalg.cholesky_inverse linalg.inv linalg.jvp "
    "linalg.lstsq linalg.lu_factor linalg.pinv linalg.solve "
    "linalg.solve_triangular logdet map matmul meshgrid moveaxis multiply "
    "negative nn.depth_to_space nn.fold nn.polar nn.space_to_depth nn.unfold "
    "outer rad2deg ravel rearrange repeat reshape rfft roll rot90 scan scatter "
    "segment_sum select separable_conv sin sinh slice slice_update slogdet "
    "split squeeze stack stft subtract sum swapaxes switch tan tensordot tile "
    "trace transpose trapezoid tril triu unique unstack vander vdot "
    "vectorize vectorized_map view_as_real vsplit vstack "
    "while_loop".split()
)

# Case to the reason why ours is not torch's gradient, and to the right one:
# jax's, or the numbers given.
_NAN_ELEMENT = "torch passes a gradient to a NaN at some ops and not at others"
DEVIATIONS = {
    "abs-0": (
        _NAN_ELEMENT,
        [[0, 0, 1.25, -1.375, 1.5, -1.625, 1.75, -1.875, 2]],
    ),
    "relu-0": (_NAN_ELEMENT, "jax"),
    "threshold-0": (_NAN_ELEMENT, "jax"),
    "cbrt-0": ("torch has it as a product that is NaN at 0", "jax"),
    "logaddexp-0": (
        "torch subtracts infinities that are equal; each has half, as at ties",
        [
            [0.5, 1.125, 0, 0, 1.5, 1.625, 0.875, 0.9375],
            [0.5, 0, 1.25, 1.375, 0, 0, 0.875, 0.9375],
        ],
    ),
    "nanstd-1": (
        "torch is NaN at constants, where its std has 0",
        [[0, 0, 0, -0.45927930, 0, 0.45927930]],
    ),
    "top_k-0": (
        "torch promises no order of equals; the first come first",
        [[1, 1.125, 0, 0, 1.25, 1.375, 0, 0, 1.5, 1.625, 0, 0]],
    ),
    "top_k-1": (
        "torch promises no order of equals; the first come first",
        [[1, 1.125, 0, 1.25, 1.375, 1.5, 1.625, 0, 1.75, 1.875, 2, 0]],
    ),
    "scatter_update-3": (
        "no backend has it; the product rule",
        [[1, 2.25, 1.25], [1, 1, 2.25]],
    ),
    "scatter_update-4": (
        "no backend has it; the product rule",
        [[0, 0, 1.25], [0, 0, 2.25]],
    ),
    "average_pool-0": ("torch's mean counts what it pads with", "jax"),
    "linalg.det-0": ("torch is 0 at singular matrices", "jax"),
}

# Cases whose values the numpy backend has otherwise: it names another of
# equals, and clips what it computes from logits.
OTHER_VALUES = frozenset({"top_k-0", "top_k-1", "binary_crossentropy-1"})


def cases():
    """Yields the cases as `(id, name, args, kwargs)`."""
    for name, several in EDGES.items():
        for number, (args, kwargs) in enumerate(several):
            yield f"{name}-{number}", name, args, kwargs
