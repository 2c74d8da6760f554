"""Random numbers: pure functions of a seed and a shape.

The bits come from the counter-based generator Threefry-2x32 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", 2011), which runs on the device
as part of the graph: the key is the two words of a `SeedGenerator`'s state,
the counter is the element's position. So a seed gives the same numbers
eagerly, in a compiled step and in another process, and no draw keeps a step
from being compiled. What needs rejection sampling (`gamma`, `beta`,
`binomial`) is a host call to NumPy's samplers over Philox-4x64, another
counter-based generator, with the same key.
"""

import math

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.config import floatx
from keras.src.backend.tinygrad import special
from keras.src.backend.tinygrad.complex import accept_complex
from keras.src.backend.tinygrad.complex import by_parts
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import is_tensor
from keras.src.backend.tinygrad.core import to_tinygrad_dtype
from keras.src.backend.tinygrad.engine.cumulative import cumulative_sum
from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.numpy.common import to_shape
from keras.src.random.seed_generator import SeedGenerator  # noqa: F401
from keras.src.random.seed_generator import draw_seed
from keras.src.random.seed_generator import make_default_seed  # noqa: F401


def normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    dtype = to_tinygrad_dtype(dtype or floatx())
    sample = _standard_normal(
        _key(seed), shape=to_shape(shape), dtype=_compute_dtype(dtype)
    )
    return _finish(sample, mean, stddev, dtype)


@traced_once()
def _standard_normal(key, shape, dtype):
    blocks = _random_blocks(key, shape)
    # One bit is the sign, the others a tail probability: the quantile
    # function of the tail keeps its accuracy where the density is small.
    size = special.erfinv_from_tail(_tail(blocks, dtype)) * math.sqrt(2)
    return _with_sign(blocks, size)


def _tail(blocks, dtype):
    """Returns uniform values between 0 and 1, neither of them among them."""
    if dtype == dtypes.float64:
        return ((blocks >> 1).cast(dtype) + 0.5) * 2.0**-63
    return (_upper_bits(blocks, 31).cast(dtype) + 0.5) * 2.0**-31


def uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
    dtype = to_tinygrad_dtype(dtype or floatx())
    compute = _compute_dtype(dtype)
    minval = _parameter(minval, compute)
    maxval = _parameter(maxval, compute)
    # As many bits as the significand holds, so that no value below one
    # rounds up to it.
    bits = {dtypes.float64: 53, dtypes.float16: 11, dtypes.bfloat16: 8}
    unit = _unit(_random_blocks(_key(seed), shape), bits.get(dtype, 24))
    sample = (unit * (maxval - minval) + minval).cast(dtype)
    # Other bounds may round up all the same.
    sample = (sample < maxval).where(sample, minval).cast(dtype)
    return sample.contiguous()


def categorical(logits, num_samples, dtype="int32", seed=None):
    logits = convert_to_tensor(logits)
    logits = logits.cast(_compute_dtype(logits.dtype))
    weights = (logits - logits.max(axis=-1, keepdim=True)).exp()
    cumulative = cumulative_sum(weights, logits.ndim - 1).contiguous()
    total = cumulative[..., -1:]
    unit = _unit(
        _random_blocks(_key(seed), (*logits.shape[:-1], num_samples)), 32
    )
    threshold = (unit.cast(logits.dtype) * total).unsqueeze(-1)
    cumulative = cumulative.unsqueeze(-2)
    # The second test keeps a threshold that rounds up to the total from
    # choosing a class of probability zero.
    below = (cumulative <= threshold) & (cumulative < total.unsqueeze(-2))
    return below.sum(axis=-1).cast(to_tinygrad_dtype(dtype)).contiguous()


def randint(shape, minval, maxval, dtype="int32", seed=None):
    dtype = to_tinygrad_dtype(dtype)
    key = _key(seed)
    if is_tensor(minval) or is_tensor(maxval):
        minval = convert_to_tensor(minval, "int64")
        span = (convert_to_tensor(maxval, "int64") - minval).cast(dtypes.uint64)
        offset = _below(key, shape, span)
        return (offset.cast(dtypes.int64) + minval).cast(dtype).contiguous()
    minval, maxval = int(minval), int(maxval)
    if minval >= maxval:
        raise ValueError(
            "`randint` expects `minval` to be less than `maxval`. Received: "
            f"minval={minval}, maxval={maxval}"
        )
    if minval < dtype.min or maxval - 1 > dtype.max:
        raise ValueError(
            f"`randint` cannot represent the range [{minval}, {maxval}) in "
            f"dtype {dtype.name}, which holds [{dtype.min}, {dtype.max}]. "
            "Choose another `dtype` or range."
        )
    span = maxval - minval
    if span <= 2**32:
        offset = _below_32(_random_blocks(key, shape), span)
    elif span < 2**64:
        offset = _below(key, shape, Tensor(span, dtype=dtypes.uint64))
    else:
        offset = _random_blocks(key, shape)
    # Modulo 2**64, which the cast back to a signed dtype undoes.
    return (offset + minval % 2**64).cast(dtype).contiguous()


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    dtype = to_tinygrad_dtype(dtype or floatx())
    sample = _truncated_normal(
        _key(seed), shape=to_shape(shape), dtype=_compute_dtype(dtype)
    )
    return _finish(sample, mean, stddev, dtype)


@traced_once()
def _truncated_normal(key, shape, dtype):
    blocks = _random_blocks(key, shape)
    # Uniform on the probabilities within two standard deviations.
    inside = _tail(blocks, dtype) * math.erf(math.sqrt(2))
    size = special.erfinv_from_tail(1 - inside) * math.sqrt(2)
    return _with_sign(blocks, size.minimum(2.0))


def dropout(inputs, rate, noise_shape=None, seed=None):
    inputs = convert_to_tensor(inputs)
    if rate == 1.0:
        return by_parts(lambda x: x.const_like(0), inputs)
    if rate == 0.0:
        return inputs
    if noise_shape is None:
        noise_shape = inputs.shape
    noise_shape = [
        inputs.shape[i] if size is None else size
        for i, size in enumerate(noise_shape)
    ]
    bits = _upper_bits(_random_blocks(_key(seed), noise_shape), 32)
    # A byte for each element, in memory: whatever the kernels forward and
    # backward that need the mask, its bits are drawn once.
    mask = (bits >= round(rate * 2**32)).contiguous()
    mask = mask.expand(inputs.shape)

    def drop(x):
        return mask.where((x / (1.0 - rate)).cast(x.dtype), x.const_like(0))

    return by_parts(drop, inputs)


def shuffle(x, axis=0, seed=None):
    x = convert_to_tensor(x)
    if 0 in x.shape:
        return x
    # A random key for each element: slices along `axis` are shuffled
    # independently of each other.
    shape = x.transpose(axis, -1).shape
    keys = _random_blocks(_key(seed), shape)
    (order,) = host_call(
        lambda k: np.argsort(k, axis=-1).astype("int32"),
        [keys],
        [(shape, "int32")],
        name="shuffle",
    )
    length = shape[-1]
    starts = Tensor.arange(0, x.numel(), length, dtype=dtypes.int32)
    index = order.reshape(-1, length) + starts.reshape(-1, 1)

    def take(x):
        rows = x.transpose(axis, -1).reshape(-1)
        shuffled = gather_rows(rows, index.reshape(-1))
        return shuffled.reshape(shape).transpose(axis, -1)

    return by_parts(take, x)


def gamma(shape, alpha, dtype=None, seed=None):
    def sample(rng, alpha):
        valid = alpha >= 0
        draws = rng.standard_gamma(np.where(valid, alpha, 1.0))
        return np.where(valid, draws, np.nan)

    return _host_sample("gamma", sample, shape, [alpha], dtype, seed)


def binomial(shape, counts, probabilities, dtype=None, seed=None):
    def sample(rng, counts, probabilities):
        valid = (counts >= 0) & (probabilities >= 0) & (probabilities <= 1)
        draws = rng.binomial(
            np.where(valid, counts, 0).astype("int64"),
            np.where(valid, probabilities, 0.0),
        )
        return np.where(valid, draws, np.nan)

    return _host_sample(
        "binomial", sample, shape, [counts, probabilities], dtype, seed
    )


def beta(shape, alpha, beta, dtype=None, seed=None):
    def sample(rng, alpha, beta):
        valid = (alpha > 0) & (beta > 0)
        draws = rng.beta(
            np.where(valid, alpha, 1.0), np.where(valid, beta, 1.0)
        )
        return np.where(valid, draws, np.nan)

    return _host_sample("beta", sample, shape, [alpha, beta], dtype, seed)


# Keeps the streams of the host samplers apart, where one seed serves several.
_HOST_STREAMS = {"gamma": 1, "binomial": 2, "beta": 3}


def _host_sample(name, sample, shape, parameters, dtype, seed):
    """Draws with a NumPy sampler; NaN where its parameters are invalid."""
    dtype = to_tinygrad_dtype(dtype or floatx())
    compute = _compute_dtype(dtype)
    host_dtype = "float64" if compute == dtypes.float64 else "float32"
    shape = to_shape(shape)

    def run(key, *parameters):
        words = [int(key[0]), int(key[1]), _HOST_STREAMS[name], 0]
        philox = np.random.Philox(
            key=sum(word << (32 * i) for i, word in enumerate(words))
        )
        parameters = [
            np.broadcast_to(p, shape).astype("float64") for p in parameters
        ]
        return sample(np.random.Generator(philox), *parameters).astype(
            host_dtype
        )

    (result,) = host_call(
        run,
        [_key(seed)]
        + [convert_to_tensor(p, host_dtype).detach() for p in parameters],
        [(shape, host_dtype)],
        name=name,
    )
    return result.cast(dtype)


def _key(seed):
    """Returns the two uint32 words that a seed stands for."""
    return convert_to_tensor(
        seed if is_tensor(seed) else draw_seed(seed), "uint32"
    )


def _random_blocks(key, shape, stream=0):
    """Returns 64 random bits for each element.

    Args:
        key: uint32 `Tensor` of shape `(2,)`.
        shape: Shape of the result.
        stream: Int below 2**16; each is another sequence for the same key.

    Returns:
        uint64 `Tensor`.
    """
    return _threefry(key, shape=to_shape(shape), stream=stream)


@traced_once()
def _threefry(key, shape, stream):
    size = math.prod(shape)
    if size == 0:
        return Tensor.zeros(*shape, dtype=dtypes.uint64)
    word = dtypes.uint32 if size <= 2**32 else dtypes.uint64
    counter = Tensor.arange(size, dtype=word).cast(dtypes.uint64)
    if stream:
        counter = counter | (stream << 48)
    words = key.cast(dtypes.uint64)
    block = counter.threefry((words[1:] << 32) | words[:1])
    return block.reshape(shape)


def _upper_bits(blocks, count):
    """Returns `count` bits (at most 32) of each block as uint32.

    The sign of `_with_sign` is not among them if `count` is below 32.
    """
    return blocks.cast(dtypes.uint32) >> (32 - count)


def _unit(blocks, bits):
    """Returns values in [0, 1] that are multiples of 2**-bits."""
    if bits > 32:
        return (blocks >> (64 - bits)).cast(dtypes.float64) * 2.0**-bits
    return _upper_bits(blocks, bits).cast(dtypes.float32) * 2.0**-bits


def _with_sign(blocks, size):
    return (blocks & 1).cast(dtypes.bool).where(-size, size)


def _below_32(blocks, span):
    """Returns uint64 integers in [0, span), span <= 2**32.

    The high part of a product of 64 random bits with `span` (Lemire, "Fast
    random integer generation in an interval", 2019): a probability differs
    from `1 / span` by at most 2**-64.
    """
    low = blocks & 0xFFFFFFFF
    return ((blocks >> 32) * span + ((low * span) >> 32)) >> 32


def _below(key, shape, span):
    """Returns uint64 integers in [0, span) for a uint64 tensor `span`.

    As `_below_32`, with 128 random bits: `x * span >> 128`.
    """
    high = _random_blocks(key, shape)
    low = _random_blocks(key, shape, stream=1)
    carry = _multiply_high(low, span)
    middle = high * span + carry
    return _multiply_high(high, span) + (middle < carry).cast(dtypes.uint64)


def _multiply_high(a, b):
    """Returns the upper 64 of the 128 bits of a product of uint64s."""
    a_low, a_high = a & 0xFFFFFFFF, a >> 32
    b_low, b_high = b & 0xFFFFFFFF, b >> 32
    middle = a_high * b_low + ((a_low * b_low) >> 32)
    crossed = a_low * b_high + (middle & 0xFFFFFFFF)
    return a_high * b_high + (middle >> 32) + (crossed >> 32)


def _compute_dtype(dtype):
    """float64 for itself, float32 for every other dtype."""
    return dtype if dtype == dtypes.float64 else dtypes.float32


def _parameter(value, dtype):
    if isinstance(value, (int, float)):
        return float(value)
    return convert_to_tensor(value).cast(dtype)


def _finish(sample, mean, stddev, dtype):
    """Scales, shifts, and stores, so that a draw runs in one kernel."""
    sample = sample * _parameter(stddev, sample.dtype)
    sample = sample + _parameter(mean, sample.dtype)
    return sample.cast(dtype).contiguous()


accept_complex(globals(), but=("dropout", "shuffle"))
