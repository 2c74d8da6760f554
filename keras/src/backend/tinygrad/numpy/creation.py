"""Tensors from shapes, ranges and windows."""

import math

import numpy as np
from tinygrad import Tensor

from keras.src.backend import config
from keras.src.backend.common import standardize_dtype
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import is_tensor
from keras.src.backend.tinygrad.numpy.common import broadcast
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import check_broadcast
from keras.src.backend.tinygrad.numpy.common import constant
from keras.src.backend.tinygrad.numpy.common import floating
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.common import result_type
from keras.src.backend.tinygrad.numpy.common import to_int
from keras.src.backend.tinygrad.numpy.common import to_ints
from keras.src.backend.tinygrad.numpy.common import to_operand
from keras.src.backend.tinygrad.numpy.common import to_shape
from keras.src.backend.tinygrad.numpy.elementwise import exp2
from keras.src.backend.tinygrad.numpy.elementwise import power
from keras.src.backend.tinygrad.numpy.reduction import cumprod


def array(x, dtype=None):
    return convert_to_tensor(x, dtype=dtype)


def copy(x):
    # Tensors are values: nothing writes into one.
    return convert_to_tensor(x)


def full(shape, fill_value, dtype=None):
    value = convert_to_tensor(fill_value, dtype or config.floatx())
    shape = to_shape(shape)
    if np.broadcast_shapes(shape, value.shape) != shape:
        raise ValueError(
            "`full` expects a `fill_value` whose shape broadcasts to `shape`. "
            f"Received: shape={shape}, fill_value of shape {value.shape}"
        )
    return value.expand(shape)


def full_like(x, fill_value, dtype=None):
    x = convert_to_tensor(x)
    return full(x.shape, fill_value, dtype or x.dtype)


def zeros(shape, dtype=None):
    return constant(0, dtype or config.floatx(), to_shape(shape))


def ones(shape, dtype=None):
    return constant(1, dtype or config.floatx(), to_shape(shape))


def zeros_like(x, dtype=None):
    x = convert_to_tensor(x)
    return zeros(x.shape, dtype or x.dtype)


def ones_like(x, dtype=None):
    x = convert_to_tensor(x)
    return ones(x.shape, dtype or x.dtype)


def empty(shape, dtype=None):
    return zeros(shape, dtype)


def empty_like(x, dtype=None):
    return zeros_like(x, dtype)


def eye(N, M=None, k=0, dtype=None):
    (N,) = to_ints(N)
    (M,) = (N,) if M is None else to_ints(M)
    N, M = to_int("N", N, 0), to_int("M", M, 0)
    rows = Tensor.arange(N).reshape(N, 1)
    return cast(rows + (k or 0) == Tensor.arange(M), dtype or config.floatx())


def identity(n, dtype=None):
    return eye(n, dtype=dtype)


def tri(N, M=None, k=0, dtype=None):
    N = to_int("N", N, 0)
    M = N if M is None else to_int("M", M, 0)
    k = to_int("k", k)
    rows = Tensor.arange(N).reshape(N, 1)
    return cast(Tensor.arange(M) < rows + (k + 1), dtype or config.floatx())


def arange(start, stop=None, step=None, dtype=None):
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    bounds = [to_operand(v) for v in (start, stop, step)]
    if dtype is None:
        dtype = result_type(*[getattr(v, "dtype", type(v)) for v in bounds])
    start, stop, step = [
        convert_to_numpy(v).item() if is_tensor(v) else v for v in bounds
    ]
    if step == 0:
        raise ValueError("`arange` expects a `step` other than 0.")
    count = max(math.ceil((stop - start) / step), 0)
    if all(isinstance(v, int) for v in (start, step)):
        # A shift of the start keeps 64-bit integers exact.
        index = Tensor.arange(count, dtype=_index_dtype(start, stop))
        return cast(index * step + start, dtype)
    index = cast(Tensor.arange(count), result_type(dtype, "float32"))
    return cast(index * step + start, dtype)


def _index_dtype(*bounds):
    small = all(abs(b) < 2**31 for b in bounds)
    return "int32" if small else "int64"


def linspace(
    start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0
):
    start, stop = to_operand(start), to_operand(stop)
    compute_dtype = floating(
        *[getattr(v, "dtype", type(v)) for v in (start, stop)]
    )
    dtype = compute_dtype if dtype is None else standardize_dtype(dtype)
    # Rounded down, a number just below an integer is off by one.
    spaced_dtype = "float64" if "int" in dtype else compute_dtype
    points, step = _spaced(start, stop, num, endpoint, axis, spaced_dtype)
    if "int" in dtype:
        points, step = points.floor(), cast(step, compute_dtype)
    points = cast(points, dtype)
    return (points, step) if retstep else points


def _spaced(start, stop, num, endpoint, axis, dtype):
    """Returns evenly spaced numbers along a new axis, and their distance."""
    (num,) = to_ints(num)
    if num < 0:
        raise ValueError(
            f"Argument `num` must be non-negative. Received: num={num}"
        )
    # Narrow floats would lose the steps.
    wide = result_type(dtype, "float32")
    start, stop = [convert_to_tensor(v, wide) for v in (start, stop)]
    check_broadcast("linspace", start, stop)
    start, stop = broadcast(start, stop)
    intervals = num - 1 if endpoint else num
    step = (stop - start) / intervals if intervals > 0 else stop * math.nan
    axis = canonicalize_axis(axis, start.ndim + 1)
    index = Tensor.arange(num).reshape((num,) + (1,) * (start.ndim - axis))
    first, last = start.unsqueeze(axis), stop.unsqueeze(axis)
    points = first + cast(index, wide) * (
        step.unsqueeze(axis) if intervals > 0 else 0
    )
    if endpoint and num > 1:
        points = (index == num - 1).where(last, points)
    return points, cast(step, dtype)


def logspace(start, stop, num=50, endpoint=True, base=10, dtype=None, axis=0):
    exponents = linspace(start, stop, num, endpoint, axis=axis)
    points = power(float(base), _widen(exponents))
    return cast(points, exponents.dtype if dtype is None else dtype)


def geomspace(start, stop, num=50, endpoint=True, dtype=None, axis=0):
    (num,) = to_ints(num)
    start, stop = promote(start, stop, rule=floating)
    result_dtype = start.dtype if dtype is None else dtype
    start, stop = _widen(start), _widen(stop)
    ratio = linspace(0.0, (stop / start).log2(), num, endpoint, axis=axis)
    axis = canonicalize_axis(axis, ratio.ndim)
    shape = np.broadcast_shapes(start.shape, stop.shape)
    first = start.expand(shape).unsqueeze(axis)
    points = first * exp2(ratio)
    if endpoint and num > 1:
        index = Tensor.arange(num).reshape((num,) + (1,) * (len(shape) - axis))
        last = stop.expand(shape).unsqueeze(axis)
        points = (index == num - 1).where(last, points)
    return cast(points, result_dtype)


def _widen(x):
    return cast(x, result_type(x.dtype, "float32"))


def meshgrid(*x, indexing="xy"):
    if indexing not in ("xy", "ij"):
        raise ValueError(
            "Argument `indexing` must be 'xy' or 'ij'. Received: "
            f"indexing={indexing}"
        )
    vectors = [convert_to_tensor(v).reshape(-1) for v in x]
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[:2] = 1, 0
    shape = [0] * len(vectors)
    for vector, axis in zip(vectors, axes):
        shape[axis] = vector.shape[0]
    return [
        v.reshape([-1 if a == axis else 1 for a in range(len(shape))]).expand(
            shape
        )
        for v, axis in zip(vectors, axes)
    ]


def bartlett(x):
    return _window(np.bartlett, x)


def blackman(x):
    return _window(np.blackman, x)


def hamming(x):
    return _window(np.hamming, x)


def hanning(x):
    return _window(np.hanning, x)


def kaiser(x, beta):
    beta = float(convert_to_numpy(beta))
    return _window(lambda size: np.kaiser(size, beta), x)


def _window(fn, x):
    if getattr(x, "shape", None) == ():
        # A length in a tensor may be of any dtype.
        length = convert_to_numpy(x).item()
        x = int(length) if float(length).is_integer() else length
    return convert_to_tensor(fn(to_int("x", x)), config.floatx())


def vander(x, N=None, increasing=False):
    x = convert_to_tensor(x)
    count = x.shape[0] if N is None else N
    if count == 0:
        return zeros((x.shape[0], 0), x.dtype)
    column = x.unsqueeze(1)
    factors = column.expand(x.shape[0], count - 1)
    powers = cumprod(column.const_like(1).cat(factors, dim=1), axis=1)
    return cast(powers if increasing else powers.flip(1), x.dtype)
