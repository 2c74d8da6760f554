"""Reductions and cumulative operations."""

import math

from tinygrad import Tensor
from tinygrad import dtypes as tinygrad_dtypes

from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.cumulative import cumulative_product
from keras.src.backend.tinygrad.engine.cumulative import cumulative_sum
from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.numpy.common import at_least_float32
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import dtype_of
from keras.src.backend.tinygrad.numpy.common import floating
from keras.src.backend.tinygrad.numpy.common import integral
from keras.src.backend.tinygrad.numpy.common import is_float
from keras.src.backend.tinygrad.numpy.common import keep_axes
from keras.src.backend.tinygrad.numpy.common import last_axis_view
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.common import refuse_bool
from keras.src.backend.tinygrad.numpy.common import root
from keras.src.backend.tinygrad.numpy.common import to_axes
from keras.src.backend.tinygrad.numpy.elementwise import isclose
from keras.src.backend.tinygrad.numpy.elementwise import maximum
from keras.src.backend.tinygrad.numpy.elementwise import minimum

# Wide enough for the sums and products of narrow integers.
ACCUMULATORS = {
    "bool": "int32",
    "int8": "int32",
    "int16": "int32",
    "uint8": "uint32",
    "uint16": "uint32",
}


def _accumulator(dtype):
    """Returns the dtype in which values of `dtype` add up."""
    return ACCUMULATORS.get(dtype, dtype)


def _reduce(fn, x, axis, keepdims):
    """Applies a reduction of a `Tensor` to the axes that `axis` names."""
    axes = to_axes(axis, x.ndim)
    return fn(x, axis=axes, keepdim=keepdims) if axes else x


def sum(x, axis=None, keepdims=False):
    x = convert_to_tensor(x)
    x = cast(x, _accumulator(dtype_of(x)))
    return _reduce(Tensor.sum, x, axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    x = convert_to_tensor(x)
    dtype = _accumulator(dtype_of(x)) if dtype is None else dtype
    x = cast(x, dtype)
    if is_float(x):
        x = cast(x, at_least_float32(x.dtype))
    return cast(_reduce(Tensor.prod, x, axis, keepdims), dtype)


def mean(x, axis=None, keepdims=False):
    x = convert_to_tensor(x)
    dtype = x.dtype if is_float(x) else at_least_float32(x.dtype)
    x = cast(x, at_least_float32(x.dtype))
    axis = to_axes(axis, x.ndim)
    return cast(_mean(x, axis=axis, keepdims=bool(keepdims)), dtype)


@traced_once()
def _mean(x, axis, keepdims):
    count = math.prod(x.shape[a] for a in to_axes(axis, x.ndim))
    total = _reduce(Tensor.sum, x, axis, keepdims)
    return total / count if count else total + math.nan


def var(x, axis=None, keepdims=False):
    x = convert_to_tensor(x)
    dtype = floating(x.dtype)
    x = cast(x, at_least_float32(x.dtype))
    axis = to_axes(axis, x.ndim)
    return cast(_var(x, axis=axis, keepdims=bool(keepdims)), dtype)


@traced_once()
def _var(x, axis, keepdims):
    centred = x - _mean(x, axis=axis, keepdims=True)
    return _mean(centred * centred, axis=axis, keepdims=keepdims)


def std(x, axis=None, keepdims=False):
    x = convert_to_tensor(x)
    dtype = floating(x.dtype)
    x = cast(x, at_least_float32(x.dtype))
    axis = to_axes(axis, x.ndim)
    return cast(root(_var(x, axis=axis, keepdims=bool(keepdims))), dtype)


def average(x, axis=None, weights=None):
    if weights is None:
        (x,) = promote(x, rule=floating)
        return mean(x, axis)
    x, weights = promote(x, weights, rule=floating)
    if weights.shape != x.shape:
        axes = to_axes(axis, x.ndim)
        if axis is None or [x.shape[a] for a in axes] != [*weights.shape]:
            raise ValueError(
                "`average` expects `weights` of the shape of `x`, or of its "
                f"size along `axis`. Received: weights of shape "
                f"{weights.shape}, x of shape {x.shape}, axis={axis}"
            )
        shape = [s if a in axes else 1 for a, s in enumerate(x.shape)]
        weights = weights.reshape(shape).expand(x.shape)
    return sum(x * weights, axis) / sum(weights, axis)


def count_nonzero(x, axis=None):
    x = cast(cast(x, "bool"), "int32")
    return _reduce(Tensor.sum, x, axis, keepdims=False)


def all(x, axis=None, keepdims=False):
    return ~any(~cast(x, "bool"), axis, keepdims)


def any(x, axis=None, keepdims=False):
    return _reduce(Tensor.max, cast(x, "bool"), axis, keepdims)


def allclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False):
    return all(isclose(x1, x2, rtol, atol, equal_nan))


# Extrema.


def max(x, axis=None, keepdims=False, initial=None):
    return _extremum("max", Tensor.max, x, axis, keepdims, initial)


def min(x, axis=None, keepdims=False, initial=None):
    return _extremum("min", Tensor.min, x, axis, keepdims, initial)


def amax(x, axis=None, keepdims=False):
    return max(x, axis, keepdims)


def amin(x, axis=None, keepdims=False):
    return min(x, axis, keepdims)


def _extremum(name, fn, x, axis, keepdims, initial=None):
    x = convert_to_tensor(x)
    axes = to_axes(axis, x.ndim)
    if initial is not None:
        start = convert_to_tensor(initial, x.dtype)
        if _any_empty(x, axes):
            shape = keep_axes(x.shape, axes)
            shape = shape if keepdims else _drop(shape, axes)
            return start.expand(shape)
        result = _extremum(name, fn, x, axis, keepdims)
        return (maximum if name == "max" else minimum)(result, start)
    _refuse_empty(name, x, axes)
    if not is_float(x):
        return _reduce(fn, x, axis, keepdims)
    return _float_extremum(x, fn=fn, axis=axes, keepdims=bool(keepdims))


@traced_once()
def _float_extremum(x, fn, axis, keepdims):
    result = _reduce(fn, x, axis, keepdims)
    # A product, so that the gradient is NaN too.
    nan = any(x.ne(x), axis, keepdims)
    return result * nan.where(math.nan, result.const_like(1))


def _any_empty(x, axes):
    return 0 in [x.shape[a] for a in axes]


def _drop(shape, axes):
    return tuple(s for a, s in enumerate(shape) if a not in axes)


def _refuse_empty(name, x, axes):
    if _any_empty(x, axes):
        raise ValueError(
            f"Cannot compute the {name} of an empty tensor. Received: shape "
            f"{x.shape}, reduced over axes {axes}"
        )


def ptp(x, axis=None, keepdims=False):
    x = convert_to_tensor(x)
    refuse_bool("ptp", x)
    return max(x, axis, keepdims) - min(x, axis, keepdims)


def argmax(x, axis=None, keepdims=False):
    return _arg_extremum("argmax", Tensor.max, x, axis, keepdims)


def argmin(x, axis=None, keepdims=False):
    return _arg_extremum("argmin", Tensor.min, x, axis, keepdims)


def _arg_extremum(name, fn, x, axis, keepdims):
    x = convert_to_tensor(x)
    axes = to_axes(
        None if axis is None else canonicalize_axis(axis, x.ndim), x.ndim
    )
    _refuse_empty(name, x, axes)
    return _first_extremum(
        x.detach(), fn=fn, axes=axes, keepdims=bool(keepdims)
    )


@traced_once()
def _first_extremum(x, fn, axes, keepdims):
    rows = last_axis_view(x, axes)
    found = rows == fn(rows, axis=-1, keepdim=True)
    if is_float(x):
        nan = rows.ne(rows)
        found = nan.any(axis=-1, keepdim=True).where(nan, found)
    # The first position is the one from which most positions are left.
    count = rows.shape[-1]
    left = Tensor.arange(count, 0, -1)
    result = (count - found.where(left, 0).max(axis=-1)).cast(
        tinygrad_dtypes.int32
    )
    return result.reshape(keep_axes(x.shape, axes)) if keepdims else result


# Cumulative operations.


def cumsum(x, axis=None, dtype=None):
    return _cumulate(cumulative_sum, x, axis, dtype)


def cumprod(x, axis=None, dtype=None):
    return _cumulate(cumulative_product, x, axis, dtype)


def _cumulate(fn, x, axis, dtype):
    x = convert_to_tensor(x)
    dtype = integral(x.dtype if dtype is None else dtype)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    x = cast(x, dtype)
    wide = cast(x, at_least_float32(dtype)) if is_float(x) else x
    return cast(fn(wide, axis), dtype)


# Reductions that leave out NaN.


def _replace_nan(x, value):
    return x.ne(x).where(value, x) if is_float(x) else x


def nansum(x, axis=None, keepdims=False):
    return sum(_replace_nan(convert_to_tensor(x), 0), axis, keepdims)


def nanprod(x, axis=None, keepdims=False):
    return prod(_replace_nan(convert_to_tensor(x), 1), axis, keepdims)


def nancumsum(x, axis=None, dtype=None):
    return cumsum(_replace_nan(convert_to_tensor(x), 0), axis, dtype)


def nancumprod(x, axis=None, dtype=None):
    return cumprod(_replace_nan(convert_to_tensor(x), 1), axis, dtype)


def nanmax(x, axis=None, keepdims=False):
    return _nan_extremum(max, -math.inf, math.nan, x, axis, keepdims)


def nanmin(x, axis=None, keepdims=False):
    return _nan_extremum(min, math.inf, math.nan, x, axis, keepdims)


def nanargmax(x, axis=None, keepdims=False):
    return _nan_extremum(argmax, -math.inf, -1, x, axis, keepdims)


def nanargmin(x, axis=None, keepdims=False):
    return _nan_extremum(argmin, math.inf, -1, x, axis, keepdims)


def _nan_extremum(fn, worst, where_all_nan, x, axis, keepdims):
    x = convert_to_tensor(x)
    if not is_float(x):
        return fn(x, axis, keepdims)
    result = fn(_replace_nan(x, worst), axis, keepdims)
    return all(x.ne(x), axis, keepdims).where(where_all_nan, result)


def nanmean(x, axis=None, keepdims=False):
    return _nan_moment(_nanmean, x, axis, keepdims)


def nanvar(x, axis=None, keepdims=False):
    return _nan_moment(_nanvar, x, axis, keepdims)


def nanstd(x, axis=None, keepdims=False):
    return _nan_moment(lambda *args: root(_nanvar(*args)), x, axis, keepdims)


def _nan_moment(fn, x, axis, keepdims):
    x = convert_to_tensor(x)
    dtype = floating(x.dtype)
    x = cast(x, at_least_float32(x.dtype))
    return cast(fn(x, axis, keepdims), dtype)


def _nanmean(x, axis, keepdims):
    count = _reduce(Tensor.sum, cast(x == x, x.dtype), axis, keepdims)
    return _reduce(Tensor.sum, _replace_nan(x, 0), axis, keepdims) / count


def _nanvar(x, axis, keepdims):
    count = _reduce(Tensor.sum, cast(x == x, x.dtype), axis, keepdims)
    centred = x.ne(x).where(0, x - _nanmean(x, axis, keepdims=True))
    return _reduce(Tensor.sum, centred * centred, axis, keepdims) / count
