"""Edges of neural-network ops: ties, extremes, blocks and bad arguments."""

import itertools

import numpy as np
import pytest

import keras
from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src.backend.tinygrad.engine.gradient import gradients
from keras.src.backend.tinygrad.nn import attention
from keras.src.backend.tinygrad.nn import pooling

RNG = np.random.default_rng(0)


def value_and_gradient(fn, x):
    x = ops.convert_to_tensor(x)
    y = fn(x)
    (gradient,) = gradients(y.sum(), [x])
    return ops.convert_to_numpy(y), ops.convert_to_numpy(gradient)


# What torch gives at the kinks of each function: (x, slope).
SLOPES = {
    "relu": [(0, 0), (-1, 0), (1, 1)],
    "relu6": [(0, 0), (6, 0), (3, 1)],
    "hard_tanh": [(-1, 0), (1, 0), (0, 1)],
    "hard_sigmoid": [(-3, 0), (3, 0), (0, 1 / 6)],
    "leaky_relu": [(0, 0.2), (1, 1)],
    "elu": [(0, 1), (-1e4, 0), (1e4, 1)],
    "selu": [(0, 1.7580993408473766), (1e4, 1.0507009873554805)],
    "celu": [(0, 1), (1e4, 1)],
    "softplus": [(0, 0.5), (-1e4, 0), (1e4, 1)],
    "log_sigmoid": [(0, 0.5), (-1e4, 1), (1e4, 0)],
    "sigmoid": [(0, 0.25), (-1e4, 0), (1e4, 0)],
    "tanh": [(0, 1), (-1e4, 0), (1e4, 0)],
    "silu": [(0, 0.5), (-1e3, 0), (1e3, 1)],
    "gelu": [(0, 0.5), (-1e3, 0), (1e3, 1)],
    "soft_shrink": [(0.5, 0), (-0.5, 0), (1, 1)],
    "hard_shrink": [(0.5, 0), (-0.5, 0), (1, 1)],
    "softsign": [(0, 1)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_at_kinks_and_extremes(name, dtype):
    points, slopes = np.array(SLOPES[name], dtype).T
    _, gradient = value_and_gradient(getattr(ops, name), points)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["relu", "relu6", "hard_tanh", "sigmoid"])
def test_nan_passes_activations(name):
    y = ops.convert_to_numpy(getattr(ops, name)(np.float32([np.nan, 1])))
    assert np.isnan(y).tolist() == [True, False]


def first_maximum_pool(x, size, stride, upstream):
    """Sends each window's gradient to its first maximum, in row-major order."""
    gradient = np.zeros_like(x)
    _, rows, columns, _ = upstream.shape
    for b, i, j, c in np.ndindex(upstream.shape):
        top, left = i * stride, j * stride
        window = x[b, top : top + size, left : left + size, c]
        row, column = np.unravel_index(window.argmax(), window.shape)
        gradient[b, top + row, left + column, c] += upstream[b, i, j, c]
    return gradient


@pytest.mark.parametrize(
    "size, stride",
    # Disjoint, with gaps, overlapping; the last three pool axis by axis or
    # in one reduction.
    [(2, 2), (2, 3), (3, 2), (3, 1), (7, 2), (7, 7), (13, 13)],
)
def test_max_pool_gradient_goes_to_the_first_maximum(size, stride):
    x = RNG.integers(0, 3, (2, 14, 13, 3)).astype("float32")
    y = ops.max_pool(x, size, stride)
    upstream = RNG.normal(size=y.shape).astype("float32")
    _, gradient = value_and_gradient(
        lambda x: ops.max_pool(x, size, stride) * upstream, x
    )
    expected = first_maximum_pool(x, size, stride, upstream)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_large_windows_agree_with_small_ones(monkeypatch):
    x = RNG.normal(size=(2, 9, 8, 3)).astype("float32")
    few = [
        ops.convert_to_numpy(pool(x, 3, 2, padding))
        for pool in (ops.max_pool, ops.average_pool)
        for padding in ("valid", "same")
    ]
    monkeypatch.setattr(pooling, "MAX_TAPS", 1)
    many = [
        ops.convert_to_numpy(pool(x, 3, 2, padding))
        for pool in (ops.max_pool, ops.average_pool)
        for padding in ("valid", "same")
    ]
    for a, b in zip(few, many):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_nan_passes_max_pool():
    x = np.zeros((1, 4, 4, 1), "float32")
    x[0, 1, 0] = np.nan
    y = ops.convert_to_numpy(ops.max_pool(x, 2))[0, :, :, 0]
    assert np.isnan(y).tolist() == [[True, False], [False, False]]


def test_max_pool_of_integers():
    x = np.arange(16, dtype="int32").reshape(1, 4, 4, 1)
    y = ops.convert_to_numpy(ops.max_pool(x, 3, 2, "same"))
    assert y.dtype == "int32"
    assert y[0, :, :, 0].tolist() == [[10, 11], [14, 15]]


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("logit", [-300.0, -20.0, 0.0, 20.0, 300.0])
def test_binary_crossentropy_of_confident_logits(logit, label):
    loss, gradient = value_and_gradient(
        lambda x: ops.binary_crossentropy(
            np.float32([label]), x, from_logits=True
        ),
        np.float32([logit]),
    )
    signed = -logit if label else logit
    expected = np.logaddexp(0, signed)
    np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-38)
    probability = 1 / (1 + np.exp(-np.float64(logit)))
    np.testing.assert_allclose(gradient, probability - label, atol=1e-7)


def test_sparse_crossentropy_of_many_classes():
    logits = RNG.normal(size=(4, 5000)) * 5
    labels = RNG.integers(0, 5000, 4)
    loss, gradient = value_and_gradient(
        lambda x: ops.sparse_categorical_crossentropy(
            labels, x, from_logits=True
        ),
        logits,
    )
    shifted = logits - logits.max(-1, keepdims=True)
    probability = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    rows = np.arange(4)
    np.testing.assert_allclose(loss, -np.log(probability[rows, labels]))
    probability[rows, labels] -= 1
    np.testing.assert_allclose(gradient, probability, atol=1e-12)


def test_second_derivatives():
    def squared_slopes(fn):
        def squared(x):
            (slope,) = gradients(fn(x).square().sum(), [x])
            return slope.square().sum()

        return squared

    x = RNG.normal(size=(3, 4))
    for fn in (
        ops.sigmoid,
        ops.softplus,
        ops.softmax,
        ops.log_softmax,
        lambda x: ops.moments(x, [0])[1],
    ):
        check_gradient(squared_slopes(fn), x, tolerance=1e-5)


@pytest.mark.parametrize("op", [ops.layer_normalization, ops.rms_normalization])
def test_gradients_of_normalizations(op):
    x = RNG.normal(size=(3, 5)).astype("float32")
    weights = RNG.normal(size=(3, 5))
    _, gradient = value_and_gradient(lambda x: op(x) * np.float32(weights), x)

    def normalized(x):
        if op is ops.layer_normalization:
            x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-7)

    direction = RNG.normal(size=(3, 5))
    ahead, behind = (
        (normalized(x + step * direction) * weights).sum()
        for step in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(
        (gradient * direction).sum(), (ahead - behind) / 2e-6, rtol=1e-4
    )


def test_gradient_of_ssim():
    x, y, direction = np.float32(RNG.uniform(size=(3, 1, 9, 9, 2)))

    def similarity(x):
        return ops.image.ssim(x, y, filter_size=4)

    _, gradient = value_and_gradient(similarity, x)
    ahead, behind = (
        float(similarity(x + step * direction).sum()) for step in (0.01, -0.01)
    )
    np.testing.assert_allclose(
        (gradient * direction).sum(), (ahead - behind) / 0.02, rtol=0.01
    )


def test_psnr_of_unsigned_integers_is_that_of_numbers():
    x1, x2 = np.array([250, 3], "uint8"), np.array([255, 1], "uint8")
    found = float(ops.psnr(x1, x2, 255))
    assert found == pytest.approx(10 * np.log10(255**2 / 14.5))


def test_psnr_of_float64_is_that_precise():
    x1, x2 = np.array([-2.0984477]), np.array([1.6863524])
    found = float(ops.psnr(x1, x2, 255.0))
    expected = 20 * np.log10(255.0) - 10 * np.log10(((x1 - x2) ** 2).mean())
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_moments_of_float16_do_not_overflow():
    x = np.full((100, 2), 300, "float16")
    x[::2] = -300
    mean, variance = ops.moments(x, [0])
    assert ops.convert_to_numpy(mean).tolist() == [0, 0]
    # 90000 is past float16's largest number.
    assert ops.convert_to_numpy(variance).tolist() == [65504, 65504]


def all_alignments_loss(output, target, blank):
    """CTC loss of one sequence, as the sum over every path of classes."""
    time, classes = output.shape
    log_prob = output - np.logaddexp.reduce(output, axis=1, keepdims=True)
    total = -np.inf
    for path in itertools.product(range(classes), repeat=time):
        merged = [label for label, _ in itertools.groupby(path)]
        if [label for label in merged if label != blank] == target:
            total = np.logaddexp(total, log_prob[np.arange(time), path].sum())
    return -total


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_loss(blank):
    output = RNG.normal(size=(3, 6, 3))
    labels = [label for label in range(3) if label != blank]
    targets = [[labels[0]] * 2, [labels[1], labels[0], labels[1]], []]
    lengths = [6, 5, 3]
    padded = [target + [labels[0]] * (3 - len(target)) for target in targets]

    def loss(output):
        counts = [len(target) for target in targets]
        return ops.ctc_loss(padded, output, counts, lengths, blank)

    def expected(output):
        return np.array(
            [
                all_alignments_loss(frames[:length], target, blank)
                for frames, length, target in zip(output, lengths, targets)
            ]
        )

    found, gradient = value_and_gradient(loss, output.astype("float32"))
    np.testing.assert_allclose(found, expected(output), rtol=1e-5)
    direction = RNG.normal(size=output.shape)
    step = 1e-5 * direction
    slope = expected(output + step).sum() - expected(output - step).sum()
    np.testing.assert_allclose(
        (gradient * direction).sum(), slope / 2e-5, rtol=1e-4
    )
    for row, length in zip(gradient, lengths):
        assert not row[length:].any()


def test_ctc_loss_of_a_target_too_long_is_large_and_finite():
    loss, gradient = value_and_gradient(
        lambda x: ops.ctc_loss([[1, 2, 1]], x, [3], [2], 0),
        np.zeros((1, 2, 3), "float32"),
    )
    assert 1e4 < loss[0] < 1e6
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("merge", [False, True])
def test_ctc_greedy_decoding(merge):
    best = [[1, 1, 0, 1, 2, 2, 1]]
    x = np.eye(3, dtype="float32")[best]
    (paths,), scores = ops.ctc_decode(x, [6], merge_repeated=merge)
    expected = [1, 1, 2] if merge else [1, 1, 1, 2, 2]
    expected += [-1] * (7 - len(expected))
    assert ops.convert_to_numpy(paths).tolist() == [expected]
    assert ops.convert_to_numpy(scores).tolist() == [[-6.0]]


def test_ctc_beam_search_merges_what_greedy_decoding_does_not():
    # Hannun (2017): "a" by three alignments beats the likeliest single one.
    frame = np.log([[0.6, 0.4]])
    x = np.repeat(frame[None], 2, axis=1).astype("float32")
    paths, scores = ops.ctc_decode(
        x, [2], strategy="beam_search", top_paths=2, beam_width=4
    )
    assert ops.convert_to_numpy(paths)[:, 0].tolist() == [[1, -1], [-1, -1]]
    np.testing.assert_allclose(
        np.exp(ops.convert_to_numpy(scores)), [[0.64, 0.36]], rtol=1e-5
    )


def naive_attention(query, key, value, bias, mask):
    group = query.shape[2] // key.shape[2]
    key, value = (np.repeat(x, group, axis=2) for x in (key, value))
    logits = np.einsum("btnh,bsnh->bnts", query, key)
    logits = logits / np.sqrt(query.shape[-1]) + bias
    logits = np.where(mask, logits, -1e30)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnh->btnh", weights, value)


@pytest.mark.parametrize("flash", [False, True])
def test_attention_in_blocks_with_grouped_heads(flash, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_SIZE", 3)
    query = RNG.normal(size=(2, 5, 4, 8)).astype("float32")
    key = RNG.normal(size=(2, 7, 2, 8)).astype("float32")
    value = RNG.normal(size=(2, 7, 2, 6)).astype("float32")
    bias = RNG.normal(size=(1, 4, 5, 7)).astype("float32")
    mask = RNG.uniform(size=(2, 1, 5, 7)) < 0.6
    # A query without any key: a mean, and no NaN.
    mask[0, 0, 1] = False

    def attend(query, key, value, bias):
        return ops.dot_product_attention(
            query, key, value, bias, mask=mask, flash_attention=flash
        )

    result = ops.convert_to_numpy(attend(query, key, value, bias))
    expected = naive_attention(query, key, value, bias, mask)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    arrays = [ops.convert_to_tensor(a) for a in (query, key, value, bias)]
    weights = RNG.normal(size=result.shape).astype("float32")
    found = gradients((attend(*arrays) * weights).sum(), arrays)
    direction = [RNG.normal(size=a.shape) for a in arrays]
    step = 1e-5

    def moved(sign):
        inputs = [
            np.float64(ops.convert_to_numpy(a)) + sign * step * d
            for a, d in zip(arrays, direction)
        ]
        return (naive_attention(*inputs, mask) * weights).sum()

    slope = sum(
        (ops.convert_to_numpy(g) * d).sum() for g, d in zip(found, direction)
    )
    difference = (moved(1) - moved(-1)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-4)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: ops.max_pool(np.zeros((1, 2, 2, 1)), 3),
            ValueError,
            "does not fit",
        ),
        (
            lambda: ops.conv(np.zeros((1, 2, 2, 1)), np.zeros((3, 3, 1, 1))),
            ValueError,
            "empty output",
        ),
        (
            lambda: ops.conv(np.zeros((1, 4, 4, 3)), np.zeros((3, 3, 2, 1))),
            ValueError,
            "evenly divisible",
        ),
        (
            lambda: ops.one_hot([0], 2, sparse=True),
            ValueError,
            "sparse=True",
        ),
        (
            lambda: ops.categorical_crossentropy(
                np.zeros((2, 3)), np.zeros((2, 4))
            ),
            ValueError,
            "same shape",
        ),
        (
            lambda: ops.moments(np.zeros((2, 2)), [0], synchronized=True),
            NotImplementedError,
            "synchronized",
        ),
        (
            lambda: ops.glu(np.zeros((2, 3))),
            ValueError,
            "divisible by 2",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_sigma_of_elastic_transform_may_be_a_tensor():
    images = RNG.uniform(size=(2, 9, 8, 3)).astype("float32")
    results = [
        ops.convert_to_numpy(
            ops.image.elastic_transform(images, 3.0, sigma, seed=5)
        )
        for sigma in (1.3, ops.convert_to_tensor(1.3))
    ]
    np.testing.assert_array_equal(*results)
    assert np.abs(results[0] - images).max() > 0.01


def test_layers_train_on_these_gradients():
    model = keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="gelu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2DTranspose(2, 3, strides=2),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss=loss)
    x = RNG.normal(size=(48, 8, 8, 1)).astype("float32")
    y = np.arange(48) % 3
    x[y == 1] *= 3
    x[y == 2] += 1
    history = model.fit(x, y, batch_size=16, epochs=8, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
