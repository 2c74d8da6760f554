"""Random numbers: distributions, independence, reproducibility."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from scipy import stats

import keras
from integration_tests.random.samples import digest
from integration_tests.random.samples import samples
from keras import ops
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad import random as backend_random

SEEDS = range(8)
DRAWS = 50_000
# Below this share of chance a statistic counts as wrong. Seeds are fixed, so
# a test's outcome is too.
SIGNIFICANCE = 1e-3


def draw(sample, seed):
    return ops.convert_to_numpy(sample(seed)).astype("float64")


def float_dtypes():
    return ["float16", "float32", "float64"]


CONTINUOUS = {
    "normal": (
        lambda dtype, seed: keras.random.normal(
            (DRAWS,), 2.0, 3.0, dtype=dtype, seed=seed
        ),
        stats.norm(2, 3),
    ),
    "truncated_normal": (
        lambda dtype, seed: keras.random.truncated_normal(
            (DRAWS,), 1.0, 0.5, dtype=dtype, seed=seed
        ),
        stats.truncnorm(-2, 2, 1, 0.5),
    ),
    "uniform": (
        lambda dtype, seed: keras.random.uniform(
            (DRAWS,), -1.0, 3.0, dtype=dtype, seed=seed
        ),
        stats.uniform(-1, 4),
    ),
    "gamma small": (
        lambda dtype, seed: keras.random.gamma(
            (DRAWS,), 0.5, dtype=dtype, seed=seed
        ),
        stats.gamma(0.5),
    ),
    "gamma large": (
        lambda dtype, seed: keras.random.gamma(
            (DRAWS,), 7.5, dtype=dtype, seed=seed
        ),
        stats.gamma(7.5),
    ),
    "beta": (
        lambda dtype, seed: keras.random.beta(
            (DRAWS,), 2.0, 0.7, dtype=dtype, seed=seed
        ),
        stats.beta(2, 0.7),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name, dtype):
    sample, distribution = CONTINUOUS[name]
    for seed in SEEDS:
        x = draw(lambda s: sample(dtype, s), seed)
        p = stats.kstest(x, distribution.cdf).pvalue
        assert p > SIGNIFICANCE / len(SEEDS), f"seed {seed}: p = {p}"


@pytest.mark.parametrize("dtype", float_dtypes())
@pytest.mark.parametrize("name", CONTINUOUS)
def test_moments(name, dtype):
    sample, distribution = CONTINUOUS[name]
    x = np.concatenate([draw(lambda s: sample(dtype, s), s) for s in SEEDS])
    mean, variance, _, excess = distribution.stats("mvsk")
    assert abs(x.mean() - mean) < 4 * np.sqrt(variance / x.size)
    spread = variance * np.sqrt((excess + 2) / x.size)
    # float16 rounds the values themselves.
    rounding = variance * 1e-3 if dtype == "float16" else 0
    assert abs(x.var() - variance) < 4 * spread + rounding


def test_normal_has_tails():
    x = draw(lambda s: keras.random.normal((4_000_000,), seed=s), 3)
    for threshold in (3, 4, 4.5):
        expected = 2 * stats.norm.sf(threshold) * x.size
        found = (abs(x) > threshold).sum()
        assert abs(found - expected) < 4 * np.sqrt(expected)
    assert abs(x).max() > 4.8


@pytest.mark.parametrize("minval, maxval", [(0, 7), (-3, 2**31 - 3), (5, 260)])
def test_randint_is_uniform(minval, maxval):
    dtype = "int64" if maxval > 2**31 else "int32"
    x = draw(
        lambda s: keras.random.randint(
            (DRAWS * 4,), minval, maxval, dtype=dtype, seed=s
        ),
        1,
    )
    assert x.min() >= minval and x.max() < maxval
    bins = min(maxval - minval, 300)
    index = ((x - minval) * bins) // (maxval - minval)
    counts = np.bincount(index.astype(int), minlength=bins)
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE


@pytest.mark.parametrize(
    "dtype, minval, maxval",
    [
        ("int8", -128, 128),
        ("uint8", 0, 256),
        ("int32", -(2**31), 2**31),
        ("uint32", 0, 2**32),
        ("int64", -(2**63), 2**63),
        ("uint64", 0, 2**64),
        # Of no power of two elements, where a remainder would be biased: of
        # the lower third it would make half of all.
        ("uint64", 0, 3 * 2**62),
        ("int64", -(2**62), 2**63),
        ("uint32", 0, 3 * 2**30),
    ],
)
def test_randint_over_wide_ranges(dtype, minval, maxval):
    x = ops.convert_to_numpy(
        keras.random.randint((DRAWS,), minval, maxval, dtype=dtype, seed=4)
    )
    assert x.dtype == dtype
    thirds = [(int(v) - minval) * 3 // (maxval - minval) for v in x.tolist()]
    counts = np.bincount(thirds, minlength=3)
    assert len(counts) == 3
    expected = np.full(3, DRAWS / 3)
    if maxval - minval == 256:
        expected = np.array([86, 85, 85]) * DRAWS / 256
    assert stats.chisquare(counts, expected).pvalue > SIGNIFICANCE


def test_randint_takes_tensors_as_bounds():
    low = ops.convert_to_tensor(-4)
    x = draw(lambda s: keras.random.randint((DRAWS,), low, 3, seed=s), 1)
    values, counts = np.unique(x, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(-4, 3))
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE


def test_randint_rejects_ranges_it_cannot_draw_from():
    with pytest.raises(ValueError, match="minval.*less than"):
        keras.random.randint((2,), 3, 3)
    with pytest.raises(ValueError, match="cannot represent"):
        keras.random.randint((2,), 0, 300, dtype="uint8")


def test_categorical():
    probabilities = np.array([[0.1, 0.2, 0.7, 0.0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities) + 1000
    x = ops.convert_to_numpy(keras.random.categorical(logits, DRAWS, seed=7))
    assert x.dtype == "int32"
    for row, p in zip(x, probabilities):
        counts = np.bincount(row, minlength=4)
        assert counts[p == 0].sum() == 0
        used = p > 0
        result = stats.chisquare(counts[used], p[used] * DRAWS)
        assert result.pvalue > SIGNIFICANCE


def test_categorical_with_many_classes():
    classes = 3000
    p = np.random.default_rng(0).dirichlet(np.ones(classes))
    x = ops.convert_to_numpy(
        keras.random.categorical(np.log(p)[None], 200_000, seed=7)
    )[0]
    counts = np.bincount(x, minlength=classes)
    large = p > 1e-4
    observed = np.append(counts[large], counts[~large].sum())
    expected = np.append(p[large], p[~large].sum()) * x.size
    assert stats.chisquare(observed, expected).pvalue > SIGNIFICANCE


def test_binomial():
    x = draw(lambda s: keras.random.binomial((DRAWS,), 12, 0.3, seed=s), 2)
    counts = np.bincount(x.astype(int), minlength=13)
    expected = stats.binom(12, 0.3).pmf(np.arange(13)) * DRAWS
    tail = expected < 5
    observed = np.append(counts[~tail], counts[tail].sum())
    expected = np.append(expected[~tail], expected[tail].sum())
    result = stats.chisquare(observed, expected * DRAWS / expected.sum())
    assert result.pvalue > SIGNIFICANCE


def test_invalid_parameters_give_nan():
    shape = (2,)
    for x in (
        keras.random.gamma(shape, [-1.0, 1.0], seed=0),
        keras.random.beta(shape, [-1.0, 1.0], 1.0, seed=0),
        keras.random.binomial(shape, [5, 5], [2.0, 0.5], seed=0),
        keras.random.binomial(shape, [-5, 5], 0.5, seed=0),
    ):
        np.testing.assert_array_equal(
            np.isnan(ops.convert_to_numpy(x)), [True, False]
        )


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_scale(rate):
    x = np.ones((500, 1000), "float32")
    y = ops.convert_to_numpy(keras.random.dropout(x, rate, seed=1))
    kept = y != 0
    error = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(kept.mean() - (1 - rate)) < 4 * error
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)


def test_dropout_shares_its_mask_along_noise_shape():
    x = np.ones((4, 50, 60), "float32")
    y = ops.convert_to_numpy(
        keras.random.dropout(x, 0.5, noise_shape=(None, 1, None), seed=1)
    )
    assert (y == y[:, :1]).all()
    assert 0 < (y == 0).mean() < 1


def test_dropout_gradient_uses_the_mask_of_the_forward_pass():
    x = ops.convert_to_tensor(np.ones((30, 40), "float32")).contiguous()
    x = x.realize()
    y = keras.random.dropout(x, 0.4, seed=5)
    gradient = y.sum().gradient(x)[0]
    np.testing.assert_array_equal(
        ops.convert_to_numpy(gradient), ops.convert_to_numpy(y)
    )


def test_shuffle_permutes_along_the_axis():
    x = np.arange(60_000).reshape(3, 5000, 4)
    for axis in (1, -2):
        y = ops.convert_to_numpy(keras.random.shuffle(x, axis=axis, seed=3))
        np.testing.assert_array_equal(np.sort(y, axis=1), x)
        for i in range(3):
            rank = stats.spearmanr(x[i, :, 0], y[i, :, 0]).pvalue
            assert rank > SIGNIFICANCE


def test_streams_are_independent():
    x = [
        draw(lambda s: keras.random.normal((20_000,), seed=s), s)
        for s in range(24)
    ]
    generator = keras.random.SeedGenerator(11)
    x += [
        draw(lambda s: keras.random.normal((20_000,), seed=s), generator)
        for _ in range(24)
    ]
    correlation = np.corrcoef(x)
    off = correlation[np.triu_indices(len(x), 1)] * np.sqrt(20_000)
    assert stats.kstest(off, "norm").pvalue > SIGNIFICANCE
    for lag in (1, 2, 3, 64, 4096):
        pairs = [np.corrcoef(v[lag:], v[:-lag])[0, 1] for v in x]
        z = np.array(pairs) * np.sqrt(20_000 - lag)
        assert stats.kstest(z, "norm").pvalue > SIGNIFICANCE / 5


def test_bits_are_those_of_threefry():
    # Known answers of the reference implementation (Random123), 20 rounds.
    key = ops.convert_to_tensor(np.array([0, 0], "uint32"))
    block = backend_random._random_blocks(key, (1,))
    value = int(ops.convert_to_numpy(block)[0])
    assert value == 0x99BA4EFE_6B200159


@pytest.mark.parametrize("bits, dtype", [(11, "float16"), (24, "float32")])
def test_uniform_resolves_its_dtype_and_excludes_one(bits, dtype):
    x = ops.convert_to_numpy(
        keras.random.uniform((1_000_000,), dtype=dtype, seed=0)
    )
    assert x.dtype == dtype
    assert x.min() >= 0 and x.max() < 1
    scaled = x.astype("float64") * 2**bits
    np.testing.assert_array_equal(scaled, np.floor(scaled))
    assert len(np.unique(x)) > min(2**bits, x.size) * 0.9


def test_uniform_excludes_a_bound_that_rounding_would_reach():
    x = ops.convert_to_numpy(
        keras.random.uniform((200_000,), 1000.0, 1001.0, "float16", seed=0)
    )
    assert x.min() >= 1000 and x.max() < 1001


def test_bfloat16():
    x = ops.convert_to_numpy(
        keras.random.uniform((100_000,), dtype="bfloat16", seed=0)
    )
    assert x.dtype == ml_dtypes.bfloat16
    x = x.astype("float64")
    assert x.max() < 1
    assert abs(x.mean() + 2**-9 - 0.5) < 4 * np.sqrt(1 / 12 / x.size)


def test_another_process_draws_the_same():
    result = subprocess.run(
        [sys.executable, "-m", "integration_tests.random.samples"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert result.stdout.strip() == digest(9)


def test_a_compiled_step_draws_the_same():
    step = engine.compile_step(lambda seed: (samples(seed), []))
    for counter in range(3):
        seed = np.array([9, counter], "uint32")
        compiled = step(seed)
        eager = samples(ops.convert_to_tensor(seed))
        for a, b in zip(compiled, eager, strict=True):
            np.testing.assert_array_equal(
                ops.convert_to_numpy(a), ops.convert_to_numpy(b)
            )


def test_seeds():
    a = ops.convert_to_numpy(keras.random.normal((5,), seed=1))
    b = ops.convert_to_numpy(keras.random.normal((5,), seed=1))
    np.testing.assert_array_equal(a, b)
    generator = keras.random.SeedGenerator(1)
    first = ops.convert_to_numpy(keras.random.normal((5,), seed=generator))
    second = ops.convert_to_numpy(keras.random.normal((5,), seed=generator))
    np.testing.assert_array_equal(first, a)
    assert (first != second).all()
    # A seed is 32 bits: those above do not count, the highest does.
    c = ops.convert_to_numpy(keras.random.normal((5,), seed=2**31 + 1))
    assert (a != c).all()


def test_empty_and_scalar_shapes():
    for sample in (
        lambda shape: keras.random.normal(shape, seed=1),
        lambda shape: keras.random.uniform(shape, seed=1),
        lambda shape: keras.random.truncated_normal(shape, seed=1),
        lambda shape: keras.random.randint(shape, 0, 5, seed=1),
        lambda shape: keras.random.gamma(shape, 1.0, seed=1),
    ):
        for shape in ((), (0,), (3, 0), (2, 3)):
            assert ops.convert_to_numpy(sample(shape)).shape == shape


@pytest.mark.parametrize(
    "sample",
    [
        keras.random.normal,
        keras.random.uniform,
        keras.random.truncated_normal,
        lambda shape: keras.random.randint(shape, 0, 5),
        lambda shape: keras.random.gamma(shape, 1.0),
        lambda shape: keras.random.beta(shape, 1.0, 1.0),
        lambda shape: keras.random.binomial(shape, 3, 0.5),
    ],
)
def test_sizes_that_are_negative_or_no_integers_are_refused(sample):
    with pytest.raises(ValueError, match=r"shape=\(-1, 2\)"):
        sample((-1, 2))
    with pytest.raises(TypeError, match="Expected integers"):
        sample((2.5,))
    assert sample((0, 2)).shape == (0, 2)
