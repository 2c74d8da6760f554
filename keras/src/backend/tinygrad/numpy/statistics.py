"""Quantiles, histograms, correlations and integrals."""

import functools
import math

import numpy as np
from tinygrad import Tensor

from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import is_tensor
from keras.src.backend.tinygrad.engine import gemm
from keras.src.backend.tinygrad.engine.convolution import convolution
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.engine.indexing import scatter_rows
from keras.src.backend.tinygrad.numpy import elementwise
from keras.src.backend.tinygrad.numpy import reduction
from keras.src.backend.tinygrad.numpy.common import along
from keras.src.backend.tinygrad.numpy.common import at_least_float32
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import constant
from keras.src.backend.tinygrad.numpy.common import dtype_of
from keras.src.backend.tinygrad.numpy.common import floating
from keras.src.backend.tinygrad.numpy.common import floating_wide
from keras.src.backend.tinygrad.numpy.common import is_float
from keras.src.backend.tinygrad.numpy.common import keep_axes
from keras.src.backend.tinygrad.numpy.common import last_axis_view
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.common import result_type
from keras.src.backend.tinygrad.numpy.common import to_axes
from keras.src.backend.tinygrad.numpy.common import to_int
from keras.src.backend.tinygrad.numpy.manipulation import diff
from keras.src.backend.tinygrad.numpy.sorting import sort

# Quantiles.


def quantile(x, q, axis=None, method="linear", keepdims=False):
    return _quantile(x, q, axis, method, keepdims, skip_nan=False)


def nanquantile(x, q, axis=None, method="linear", keepdims=False):
    return _quantile(x, q, axis, method, keepdims, skip_nan=True)


def percentile(x, q, axis=None, method="linear", keepdims=False):
    q = _fractions(q)
    return _quantile(x, q, axis, method, keepdims, skip_nan=False)


def nanpercentile(x, q, axis=None, method="linear", keepdims=False):
    q = _fractions(q)
    return _quantile(x, q, axis, method, keepdims, skip_nan=True)


def _fractions(percentages):
    if is_tensor(percentages):
        return percentages / 100
    # In float64: a quotient rounded down may be one of the element before.
    return convert_to_numpy(percentages).astype("float64") / 100


def median(x, axis=None, keepdims=False):
    return _quantile(x, 0.5, axis, "linear", keepdims, skip_nan=False)


def nanmedian(x, axis=None, keepdims=False):
    return _quantile(x, 0.5, axis, "linear", keepdims, skip_nan=True)


def _quantile(x, q, axis, method, keepdims, skip_nan):
    if method not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise ValueError(
            "`method` must be one of 'linear', 'lower', 'higher', 'midpoint' "
            f"and 'nearest'. Received: method={method}"
        )
    x = convert_to_tensor(x)
    dtype = floating(x.dtype)
    x = cast(x, at_least_float32(x.dtype))
    q = convert_to_tensor(q, x.dtype)
    if q.ndim > 1:
        raise ValueError(
            "`q` must be a number or a vector of them. "
            f"Received: q.shape={q.shape}"
        )
    axes = to_axes(axis, x.ndim)
    rest = keep_axes(x.shape, axes)
    if not keepdims:
        rest = [s for a, s in enumerate(x.shape) if a not in axes]
    view = last_axis_view(x, axes)
    size = view.shape[-1]
    shape = (*q.shape, *rest)
    if 0 in shape or size == 0:
        return constant(math.nan, dtype, shape)
    # NaN are sorted to the end.
    rows = sort(view.reshape(-1, size), axis=-1)
    nan = rows.ne(rows)
    count = (~nan).sum(axis=-1) if skip_nan else size
    first = Tensor.arange(rows.shape[0]) * size
    position = q.reshape(-1, 1) * (count - 1)

    def at(index):
        index = cast(index.clip(0, size - 1), "int32")
        index = (first + index).expand(math.prod(q.shape), rows.shape[0])
        return gather_rows(rows.reshape(-1), index)

    if method == "lower":
        values = at(position.floor())
    elif method == "higher":
        values = at(position.ceil())
    elif method == "nearest":
        values = at(elementwise.round(position))
    else:
        low, high = at(position.floor()), at(position.ceil())
        weight = 0.5 if method == "midpoint" else position - position.floor()
        values = low + (high - low) * weight
        # Infinities of one sign have no difference.
        values = ((low == high) & low.isinf()).where(low, values)
    if not skip_nan:
        values = nan.any(axis=-1).where(math.nan, values)
    return cast(values.reshape(shape), dtype)


# Counts.


def bincount(x, weights=None, minlength=0, sparse=False):
    if sparse:
        raise ValueError(
            "Unsupported value `sparse=True` with tinygrad backend"
        )
    x = convert_to_tensor(x)
    if is_float(x):
        raise TypeError(
            f"`bincount` expects integers. Received: dtype={dtype_of(x)}"
        )
    if x.ndim not in (1, 2):
        raise ValueError(
            "`bincount` expects a vector, or a batch of them. "
            f"Received: x.shape={x.shape}"
        )
    minlength = to_int("minlength", minlength, 0)
    if weights is None:
        weights = constant(1, "int32", x.shape)
    else:
        weights = convert_to_tensor(weights)
        if weights.shape != x.shape:
            raise ValueError(
                "`bincount` expects a weight for each value. Received: "
                f"x.shape={x.shape}, weights.shape={weights.shape}"
            )
        weights = cast(weights, result_type(x.dtype, weights.dtype))
    # The length of the result depends on the values: they are read.
    values = convert_to_numpy(x)
    if values.size and values.min() < 0:
        raise ValueError(
            "`bincount` expects non-negative integers. Received a minimum of "
            f"{values.min()}"
        )
    count = max(int(values.max()) + 1 if values.size else 0, minlength)
    batch = x.shape[:-1]
    rows = math.prod(batch)
    row = Tensor.arange(rows).reshape(*batch, 1)
    bins = constant(0, weights.dtype, (rows * count,))
    if rows * count == 0:
        return bins.reshape(*batch, count)
    index = (cast(x, "int32") + row * count).reshape(-1)
    bins = scatter_rows(bins, index, weights.reshape(-1), "add")
    return bins.reshape(*batch, count)


def histogram(x, bins=10, range=None):
    x = convert_to_tensor(x)
    dtype = floating(x.dtype)
    x = cast(x, at_least_float32(x.dtype)).detach()
    return tuple(
        host_call(
            functools.partial(np.histogram, bins=bins, range=range),
            [x],
            [((bins,), dtype), ((bins + 1,), dtype)],
            name="histogram",
        )
    )


# Correlation.


def corrcoef(x):
    (x,) = promote(x, rule=floating_wide)
    if x.ndim > 2:
        raise ValueError(
            "`corrcoef` expects a tensor of at most 2 dimensions. Received: "
            f"x of shape {x.shape}"
        )
    rows = cast(x, at_least_float32(x.dtype))
    rows = rows.reshape(1, -1) if x.ndim < 2 else rows
    centred = rows - rows.mean(axis=1, keepdim=True)
    covariance = gemm.matmul(centred, centred.permute(1, 0))
    deviation = (centred * centred).sum(axis=1).sqrt()
    result = covariance / deviation.unsqueeze(1) / deviation
    result = elementwise.clip(result, -1, 1)
    return cast(result.reshape(()) if x.ndim < 2 else result, x.dtype)


def correlate(x1, x2, mode="valid"):
    x1, x2 = promote(x1, x2, rule=floating_wide)
    n, m = x1.shape[0], x2.shape[0]
    if x1.ndim != 1 or x2.ndim != 1 or not n or not m:
        raise ValueError(
            "`correlate` expects two 1-D tensors that are not empty. "
            f"Received: shapes {x1.shape} and {x2.shape}"
        )
    starts = {
        "full": (0, n + m - 1),
        "same": ((m - 1) // 2 if n >= m else n // 2, max(n, m)),
        "valid": (min(n, m) - 1, max(n, m) - min(n, m) + 1),
    }
    if mode not in starts:
        raise ValueError(
            "`mode` must be either `valid`, `same`, or `full`. Received: "
            f"mode={mode}"
        )
    full = convolution(
        x1.reshape(1, n, 1),
        x2.reshape(m, 1, 1),
        (1,),
        [(m - 1, m - 1)],
        (1,),
        1,
    )
    start, count = starts[mode]
    return full.reshape(-1)[start : start + count]


# Integrals.


def trapezoid(y, x=None, dx=1.0, axis=-1):
    dtype = floating(convert_to_tensor(y).dtype)
    y = cast(y, dtype)
    axis = canonicalize_axis(axis, y.ndim)
    if x is not None:
        x = cast(x, dtype)
        dx = diff(x, axis=axis if x.ndim > 1 else 0)
        if x.ndim == 1:
            dx = dx.reshape([-1 if a == axis else 1 for a in range(y.ndim)])
    sums = y[along(axis, slice(1, None))] + y[along(axis, slice(-1))]
    return cast(reduction.sum(dx * sums / 2, axis), dtype)
