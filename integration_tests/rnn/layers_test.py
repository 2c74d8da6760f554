"""Recurrent layers: gradients through time, and a model that learns."""

import numpy as np
import pytest

import keras
from keras import layers
from keras import ops
from keras.src.backend.tinygrad.engine.gradient import gradients
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

MASK = np.array([[True, True, False, True, False], [False, True] * 2 + [True]])


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def stacked(**kwargs):
    cells = [layers.LSTMCell(4, **kwargs), layers.GRUCell(4, **kwargs)]
    return layers.RNN(layers.StackedRNNCells(cells, **kwargs), **kwargs)


CASES = {
    "simple": lambda **k: layers.SimpleRNN(4, **k),
    "lstm": lambda **k: layers.LSTM(4, **k),
    "lstm_sequences": lambda **k: layers.LSTM(4, return_sequences=True, **k),
    "lstm_backwards": lambda **k: layers.LSTM(4, go_backwards=True, **k),
    "lstm_recurrent_dropout": lambda **k: layers.LSTM(
        4, dropout=0.4, recurrent_dropout=0.4, seed=1, **k
    ),
    "gru": lambda **k: layers.GRU(4, bias_initializer="normal", **k),
    "gru_before": lambda **k: layers.GRU(4, reset_after=False, **k),
    "gru_dropout": lambda **k: layers.GRU(4, dropout=0.4, seed=1, **k),
    "bidirectional": lambda **k: layers.Bidirectional(layers.LSTM(4, **k), **k),
    "stacked": stacked,
}


def check_gradients(layer, x, **kwargs):
    """Compares gradients with differences of the loss along a direction."""
    layer(x, **kwargs)
    seeds = [v for v in layer.variables if "seed" in v.path]
    before = [to_numpy(v.value) for v in seeds]

    def loss(inputs):
        for v, value in zip(seeds, before):
            v.assign(value)
        y = layer(inputs, **kwargs)
        return ops.sum(y * y * y)

    inputs = from_numpy(x, "CPU")
    values = [v.value for v in layer.trainable_variables]
    found = gradients(loss(inputs), [inputs, *values])
    found = [to_numpy(g) for g in found]
    step = 1e-6
    for g, variable in zip(found, [None, *layer.trainable_variables]):
        direction = normal(*g.shape, 3)[..., 0]
        ends = []
        for sign in (1, -1):
            move = sign * step * direction
            if variable is None:
                end = loss(from_numpy(x + move, "CPU"))
            else:
                old = to_numpy(variable.value)
                variable.assign(old + move)
                end = loss(inputs)
                variable.assign(old)
            ends.append(float(to_numpy(end)))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(
            (g * direction).sum(), slope, rtol=2e-6, atol=1e-8
        )


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    keras.utils.set_random_seed(0)
    layer = CASES[case](dtype="float64")
    check_gradients(layer, normal(2, 5, 3), training=True)


@pytest.mark.parametrize("case", ["lstm", "gru", "simple", "bidirectional"])
def test_masked_gradients(case):
    keras.utils.set_random_seed(0)
    layer = CASES[case](dtype="float64")
    check_gradients(layer, normal(2, 5, 3), mask=from_numpy(MASK, "CPU"))


def test_conv_lstm_gradients():
    keras.utils.set_random_seed(0)
    layer = layers.ConvLSTM1D(2, 3, dtype="float64")
    check_gradients(layer, normal(2, 3, 5, 2))


@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_fused_path_matches_the_cell(make, go_backwards):
    kwargs = dict(
        return_sequences=True,
        return_state=True,
        go_backwards=go_backwards,
        bias_initializer="normal",
        dtype="float64",
    )
    fused, plain = make(4, **kwargs), make(4, use_cudnn=False, **kwargs)
    x = normal(2, 5, 3)
    fused(x), plain(x)
    plain.set_weights(fused.get_weights())
    for a, b in zip(fused(x), plain(x)):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), atol=1e-12)


def test_masked_steps_keep_the_previous_output():
    layer = layers.SimpleRNN(3, return_sequences=True)
    x = normal(2, 5, 4).astype("float32")
    y = to_numpy(layer(x, mask=from_numpy(MASK, "CPU")))
    assert (y[1, 0] == 0).all()
    assert (y[0, 2] == y[0, 1]).all()
    assert (y[0, 4] == y[0, 3]).all()
    assert (y[0, 3] != y[0, 2]).any()


def test_outputs_do_not_depend_on_the_length_of_the_trace():
    layer = layers.LSTM(4, return_sequences=True)
    x = normal(2, 60, 3).astype("float32")
    long = to_numpy(layer(x))
    for length in (1, 2, 13):
        short = to_numpy(layer(x[:, :length]))
        np.testing.assert_allclose(short, long[:, :length], atol=1e-6)


def test_stateful_layer_continues():
    x = normal(2, 6, 3).astype("float32")
    whole = layers.LSTM(4)
    expected = to_numpy(whole(x))
    parts = layers.LSTM(4, stateful=True)
    parts(x[:, :3])
    parts.set_weights(whole.get_weights())
    parts.reset_state()
    parts(x[:, :3])
    np.testing.assert_allclose(to_numpy(parts(x[:, 3:])), expected, atol=1e-6)


def test_character_model_learns():
    """Learns the Zen of Python to below half of its initial loss."""
    import codecs
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        import this
    text = codecs.decode(this.s, "rot13")
    letters = sorted(set(text))
    codes = np.array([letters.index(c) for c in text], "int32")
    length = 24
    windows = np.lib.stride_tricks.sliding_window_view(codes, length + 1)
    x, y = windows[:, :-1], windows[:, 1:]
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Embedding(len(letters), 16),
            layers.LSTM(64, return_sequences=True),
            layers.Dense(len(letters)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    first = model.evaluate(x, y, batch_size=32, verbose=0)
    model.fit(x, y, batch_size=32, epochs=6, verbose=0)
    assert model.evaluate(x, y, batch_size=32, verbose=0) < first / 2
