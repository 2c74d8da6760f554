"""Segment reductions, top-k, Fourier transforms and error functions."""

import functools

import numpy as np
from tinygrad import Tensor

from keras.src.backend import standardize_dtype
from keras.src.backend.tinygrad import linalg
from keras.src.backend.tinygrad import special
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.complex import accept_complex
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import index_tensor
from keras.src.backend.tinygrad.core import to_tinygrad_dtype
from keras.src.backend.tinygrad.engine.host_call import float_host_call
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.engine.indexing import scatter_rows
from keras.src.backend.tinygrad.numpy import pad
from keras.src.backend.tinygrad.numpy import take_along_axis
from keras.src.backend.tinygrad.numpy.common import at_least_float32
from keras.src.backend.tinygrad.numpy.common import floating
from keras.src.backend.tinygrad.numpy.common import to_axes
from keras.src.backend.tinygrad.numpy.common import to_int


def segment_sum(data, segment_ids, num_segments=None, sorted=False):
    return _segment_reduce("add", data, segment_ids, num_segments)


def segment_max(data, segment_ids, num_segments=None, sorted=False):
    return _segment_reduce("max", data, segment_ids, num_segments)


def segment_min(data, segment_ids, num_segments=None, sorted=False):
    return _segment_reduce("min", data, segment_ids, num_segments)


def segment_prod(data, segment_ids, num_segments=None, sorted=False):
    return _segment_reduce("mul", data, segment_ids, num_segments)


def _segment_reduce(reduction, data, segment_ids, num_segments):
    data = convert_to_tensor(data)
    segment_ids = index_tensor(segment_ids)
    if num_segments is None:
        num_segments = int(convert_to_numpy(segment_ids).max(initial=-1)) + 1
    num_segments = to_int("num_segments", num_segments, 0)
    neutral = {
        "add": 0,
        "mul": 1,
        "max": data.dtype.min,
        "min": data.dtype.max,
    }[reduction]
    # Ids out of range drop their rows, into one row more than is returned.
    dropped = (segment_ids < 0) | (segment_ids >= num_segments)
    segment_ids = dropped.where(num_segments, segment_ids)
    result = Tensor.full(
        (num_segments + 1, *data.shape[1:]),
        neutral,
        dtype=data.dtype,
        device=data.device,
    )
    return scatter_rows(result, segment_ids, data, reduction)[:-1]


def top_k(x, k, sorted=True):
    # Always sorted: with `sorted=False` any order will do.
    x = convert_to_tensor(x)
    if x.ndim == 0:
        raise ValueError(
            "`top_k` expects an input of rank >= 1. Received: "
            f"x.shape={x.shape}"
        )
    size, k = x.shape[-1], to_int("k", k)
    if not 0 <= k <= size:
        raise ValueError(
            f"`top_k` expects 0 <= k <= {size}, the size of the last axis of "
            f"an input of shape {x.shape}. Received: k={k}"
        )
    # NumPy cannot partition bfloat16; all of 16 bits fit in float32.
    keys = x if x.dtype.itemsize > 2 else cast(x, at_least_float32(x.dtype))
    (indices,) = host_call(
        functools.partial(_largest, k=k),
        [keys.detach()],
        [((*x.shape[:-1], k), "int32")],
        name="top_k",
    )
    return take_along_axis(x, indices, axis=-1), indices


def _largest(x, k):
    """Positions of the k largest, NaN first; the first of equals first."""
    size = x.shape[-1]
    if size > 64 * max(k, 1):
        return _largest_of_many(x, k)
    # A stable sort of the mirrored array puts the first of equals last.
    order = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    return (size - 1) - order[..., size - k :][..., ::-1]


def _largest_of_many(x, k):
    size = x.shape[-1]
    if k == 0:
        return np.empty((*x.shape[:-1], 0), "int32")
    found = np.argpartition(x, size - k, axis=-1)[..., size - k :]
    found.sort(axis=-1)
    values = np.take_along_axis(x, found, axis=-1)
    order = _largest(values, k)
    result = np.take_along_axis(found, order, axis=-1)
    # Where the smallest one found has equals that were not, sort after all.
    least = np.take_along_axis(values, order[..., -1:], axis=-1)
    split = (x == least).sum(-1) > (values == least).sum(-1)
    split = split | np.isnan(least[..., 0])
    for index in np.ndindex(split.shape):
        if not split[index]:
            continue
        row = np.argsort(x[index][::-1], kind="stable")
        result[index] = (size - 1) - row[size - k :][::-1]
    return result


def in_top_k(targets, predictions, k):
    targets = index_tensor(targets)
    predictions = convert_to_tensor(predictions)
    if targets.ndim != 1 or predictions.shape[:-1] != targets.shape:
        raise ValueError(
            "`in_top_k` expects a vector of targets and a row of predictions "
            f"for each. Received: targets.shape={targets.shape}, "
            f"predictions.shape={predictions.shape}"
        )
    classes = predictions.shape[-1]
    chosen = targets.unsqueeze(-1) == Tensor.arange(
        classes, dtype=targets.dtype
    )
    at_target = chosen.where(predictions, 0).sum(axis=-1, keepdim=True)
    rank = (predictions > at_target).sum(axis=-1)
    # Neither NaN nor a target that is no class is among the largest.
    valid = chosen.any(axis=-1) & (at_target == at_target).squeeze(-1)
    return valid & (rank < k)


def logsumexp(x, axis=None, keepdims=False):
    x = _to_float(convert_to_tensor(x))
    axes = to_axes(axis, x.ndim)
    if not axes:
        return x
    largest = x.max(axes, keepdim=True).detach()
    largest = largest.isfinite().where(largest, 0)
    result = (x - largest).exp().sum(axes, keepdim=True).log() + largest
    if keepdims:
        return result
    return result.reshape([s for a, s in enumerate(x.shape) if a not in axes])


def cdist(x, y):
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError(
            "`cdist` inputs must have rank >= 2. Received: "
            f"x.shape={x.shape}, y.shape={y.shape}"
        )
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            "Last dimension of inputs to `cdist` must match. Received: "
            f"x.shape={x.shape}, y.shape={y.shape}"
        )
    dtype = floating(x.dtype, y.dtype)
    difference = cast(x, dtype).unsqueeze(-2) - cast(y, dtype).unsqueeze(-3)
    return difference.square().sum(axis=-1).sqrt()


def extract_sequences(x, sequence_length, sequence_stride):
    x = convert_to_tensor(x)
    sequence_length = to_int("sequence_length", sequence_length)
    sequence_stride = to_int("sequence_stride", sequence_stride, 1)
    if x.ndim == 0 or not 0 < sequence_length <= x.shape[-1]:
        raise ValueError(
            "`extract_sequences` expects `sequence_length` to be between 1 "
            "and the size of the last axis. Received: "
            f"sequence_length={sequence_length}, x.shape={x.shape}"
        )
    return x.unfold(-1, sequence_length, sequence_stride)


def _overlap_add(x, stride):
    """Adds up `(..., count, length)` sequences that start `stride` apart."""
    *batch, count, length = x.shape
    blocks = -(-length // stride)
    no_padding = ((0, 0),) * len(batch)
    x = x.pad((*no_padding, (0, 0), (0, blocks * stride - length)))
    x = x.reshape(*batch, count, blocks, stride).transpose(-3, -2)
    # Rows of one block more than there are sequences, read back as rows one
    # shorter: row i of (blocks, count) is thereby shifted by i.
    shifted = count + blocks - 1
    x = x.pad((*no_padding, (0, 0), (0, blocks), (0, 0)))
    x = x.reshape(*batch, blocks * (shifted + 1), stride)
    x = x[..., : blocks * shifted, :].reshape(*batch, blocks, shifted, stride)
    x = x.sum(axis=-3).reshape(*batch, shifted * stride)
    return x[..., : stride * (count - 1) + length]


def _complex_parts(x):
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise ValueError(
            "Input `x` should be a tuple of two tensors - real and imaginary."
            f"Received: x={x}"
        )
    real, imag = convert_to_tensor(x[0]), convert_to_tensor(x[1])
    if real.shape != imag.shape:
        raise ValueError(
            "Input `x` should be a tuple of two tensors - real and imaginary."
            "Both the real and imaginary parts should have the same shape. "
            f"Received: x[0].shape = {real.shape}, x[1].shape = {imag.shape}"
        )
    if not all("float" in standardize_dtype(p.dtype) for p in (real, imag)):
        raise ValueError(
            "At least one tensor in input `x` is not of type float."
            f"Received: x={x}."
        )
    dtype = to_tinygrad_dtype(floating(real.dtype, imag.dtype))
    return real.cast(dtype), imag.cast(dtype)


def _get_complex_tensor_from_tuple(x):
    return ComplexTensor(*_complex_parts(x))


def fft(x):
    return _transform(*_complex_parts(x), ("fftn", (-1,), "backward"))


def fft2(x):
    return _transform(*_complex_parts(x), ("fftn", (-2, -1), "backward"))


def ifft2(x):
    return _transform(*_complex_parts(x), ("ifftn", (-2, -1), "backward"))


def rfft(x, fft_length=None):
    x = _to_float(convert_to_tensor(x))
    length = x.shape[-1] if fft_length is None else fft_length
    length = to_int("fft_length", length, 1)
    return _real_transform(_resize(x, length), "backward")


def irfft(x, fft_length=None):
    real, imag = _complex_parts(x)
    length = 2 * (real.shape[-1] - 1) if fft_length is None else fft_length
    length = to_int("fft_length", length, 1)
    bins = length // 2 + 1
    return _inverse_real_transform(
        _resize(real, bins), _resize(imag, bins), length, "backward"
    )


# The norm whose factor the other direction has under the key's.
_OTHER_NORM = {"backward": "forward", "forward": "backward"}


def _transform(real, imag, how):
    """A complex transform: `how` is (NumPy function, axes, norm)."""

    def gradient(inputs, outputs, grads):
        # The matrix is symmetric, so its adjoint is its conjugate: the other
        # direction, with the same factor.
        function, axes, norm = how
        other = {"fftn": "ifftn", "ifftn": "fftn"}[function]
        return list(_transform(*grads, (other, axes, _OTHER_NORM[norm])))

    return float_host_call(
        functools.partial(_numpy_transform, how=how),
        [real, imag],
        [real.shape, imag.shape],
        gradient,
        how[0],
    )


def _numpy_transform(real, imag, how):
    function, axes, norm = how
    y = getattr(np.fft, function)(real + 1j * imag, axes=axes, norm=norm)
    return y.real, y.imag


def _real_transform(x, norm):
    length = x.shape[-1]
    shape = (*x.shape[:-1], length // 2 + 1)

    def gradient(inputs, outputs, grads):
        weights = _bin_multiplicity(length, grads[0].dtype).reciprocal()
        real, imag = (g * weights for g in grads)
        return [_inverse_real_transform(real, imag, length, _OTHER_NORM[norm])]

    return float_host_call(
        functools.partial(_numpy_real_transform, norm=norm),
        [x],
        [shape, shape],
        gradient,
        "rfft",
    )


def _numpy_real_transform(x, norm):
    y = np.fft.rfft(x, norm=norm)
    return y.real, y.imag


def _inverse_real_transform(real, imag, length, norm):
    def gradient(inputs, outputs, grads):
        weights = _bin_multiplicity(length, grads[0].dtype)
        parts = _real_transform(grads[0], _OTHER_NORM[norm])
        return [part * weights for part in parts]

    (result,) = float_host_call(
        functools.partial(
            _numpy_inverse_real_transform, length=length, norm=norm
        ),
        [real, imag],
        [(*real.shape[:-1], length)],
        gradient,
        "irfft",
    )
    return result


def _numpy_inverse_real_transform(real, imag, length, norm):
    return np.fft.irfft(real + 1j * imag, n=length, norm=norm)


def _bin_multiplicity(length, dtype):
    """How often each bin of a real spectrum occurs in the full one."""
    counts = np.full(length // 2 + 1, 2.0)
    counts[0] = 1.0
    if length % 2 == 0:
        counts[-1] = 1.0
    return convert_to_tensor(counts).cast(dtype)


def _resize(x, size):
    """Cuts or zero-pads the last axis."""
    x = x[..., :size]
    padding = ((0, 0),) * (x.ndim - 1) + ((0, size - x.shape[-1]),)
    return x.pad(padding)


def stft(
    x, sequence_length, sequence_stride, fft_length, window="hann", center=True
):
    x = convert_to_tensor(x)
    if standardize_dtype(x.dtype) not in {"float32", "float64"}:
        raise TypeError(
            "Invalid input type. Expected `float32` or `float64`. "
            f"Received: input type={standardize_dtype(x.dtype)}"
        )
    if fft_length < sequence_length:
        raise ValueError(
            "`fft_length` must equal or larger than `sequence_length`. "
            f"Received: sequence_length={sequence_length}, "
            f"fft_length={fft_length}"
        )
    window = _padded_window(window, sequence_length, fft_length, x.dtype)
    if center:
        margin = (fft_length // 2, fft_length // 2)
        x = pad(x, [(0, 0)] * (x.ndim - 1) + [margin], mode="reflect")
    frames = extract_sequences(x, fft_length, sequence_stride)
    return rfft(frames * window)


def istft(
    x,
    sequence_length,
    sequence_stride,
    fft_length,
    length=None,
    window="hann",
    center=True,
):
    real, imag = _complex_parts(x)
    if real.ndim < 2:
        raise ValueError(
            "Input `x` must have at least 2 dimensions. "
            f"Received shape: {real.shape}"
        )
    frames = irfft((real, imag), fft_length)
    if window is None:
        result = _overlap_add(frames, sequence_stride)
    else:
        window = _padded_window(
            window, sequence_length, fft_length, frames.dtype
        )
        power = window.square().expand(frames.shape[-2:])
        power = _overlap_add(power, sequence_stride)
        # Where no window reaches there is nothing to divide.
        power = (power > 1e-10).where(power, 1)
        result = _overlap_add(frames * window, sequence_stride) / power
    start = fft_length // 2 if center else 0
    if length is not None:
        end = start + length
    else:
        end = result.shape[-1] - start
    return result[..., start:end]


def _padded_window(window, sequence_length, fft_length, dtype):
    """Returns the window's values in the middle of `fft_length` zeros."""
    if window is None:
        window = np.ones(sequence_length)
    elif isinstance(window, str):
        if window not in {"hann", "hamming"}:
            raise ValueError(
                "If a string is passed to `window`, it must be one of "
                f'`"hann"`, `"hamming"`. Received: window={window}'
            )
        mean = {"hann": 0.5, "hamming": 0.54}[window]
        phase = 2 * np.pi * np.arange(sequence_length) / sequence_length
        window = mean - (1 - mean) * np.cos(phase)
    window = convert_to_tensor(window).cast(dtype)
    if window.ndim != 1 or window.shape[-1] != sequence_length:
        raise ValueError(
            "The shape of `window` must be equal to [sequence_length]."
            f"Received: window shape={window.shape}"
        )
    left = (fft_length - sequence_length) // 2
    return window.pad(((left, fft_length - sequence_length - left),))


def rsqrt(x):
    return _to_float(convert_to_tensor(x)).rsqrt()


def erf(x):
    return special.erf(_to_float(convert_to_tensor(x)))


def erfc(x):
    return special.erfc(_to_float(convert_to_tensor(x)))


def erfinv(x):
    return special.erfinv(_to_float(convert_to_tensor(x)))


def logdet(x):
    return linalg.slogdet(x)[1]


def _to_float(x):
    return cast(x, floating(x.dtype))


accept_complex(globals())
