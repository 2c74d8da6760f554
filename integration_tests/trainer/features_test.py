"""Ten compiled steps against ten uncompiled ones, feature by feature."""

import numpy as np
import pytest

import keras
from keras import layers
from keras import ops
from keras import optimizers
from keras.src.optimizers.multi_optimizer import OptimizerMap

RNG = np.random.default_rng(0)
STEPS, BATCH = 10, 8
X = RNG.normal(size=(STEPS * BATCH, 6, 4)).astype("float32")
Y = X.sum(axis=(1, 2))[:, None] * 0.2


def losses_and_weights(make, run_eagerly, x=X, y=Y, **fit_arguments):
    """Trains for ten steps; returns each step's loss, and the weights."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(
        model.optimizer if hasattr(model, "optimizer") else "sgd",
        "mse",
        run_eagerly=run_eagerly,
    )
    losses = []

    class Losses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            # The mean so far; times its count, the sum.
            losses.append(float(logs["loss"]) * (batch + 1))

    model.fit(
        x,
        y,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[Losses()],
        **fit_arguments,
    )
    assert len(losses) == STEPS
    state = [np.asarray(v) for v in model.optimizer.variables]
    state += [np.asarray(v) for v in model.variables]
    return np.diff(losses, prepend=0.0), state


def comparable(array):
    # NumPy compares no bfloat16.
    return array.astype("complex64" if array.dtype.kind == "c" else "float32")


def agree(make, tolerance=1e-5, **arguments):
    """Trains both ways, compares, and returns losses and state."""
    results = [
        losses_and_weights(make, run_eagerly, **arguments)
        for run_eagerly in (False, True)
    ]
    (losses, state), (expected_losses, expected) = results
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(
        losses, expected_losses, rtol=tolerance, atol=tolerance
    )
    assert len(state) == len(expected)
    for a, b in zip(state, expected):
        np.testing.assert_allclose(
            comparable(a),
            comparable(b),
            rtol=tolerance,
            atol=tolerance,
        )
    return losses, state


def network(*parts, optimizer=None):
    model = keras.Sequential([keras.Input((6, 4), BATCH), *parts])
    model.optimizer = optimizer or optimizers.SGD(0.05)
    return model


def dense(optimizer, **arguments):
    return network(
        layers.Flatten(),
        layers.Dense(5, activation="tanh", **arguments),
        layers.Dense(1),
        optimizer=optimizer,
    )


OPTIMIZERS = {
    "sgd": lambda **k: optimizers.SGD(0.05, **k),
    "momentum": lambda **k: optimizers.SGD(0.05, momentum=0.9, **k),
    "nesterov": lambda **k: optimizers.SGD(
        0.05, momentum=0.9, nesterov=True, **k
    ),
    "rmsprop": lambda **k: optimizers.RMSprop(0.01, **k),
    "centered": lambda **k: optimizers.RMSprop(
        0.01, momentum=0.5, centered=True, **k
    ),
    "adam": lambda **k: optimizers.Adam(0.01, **k),
    "amsgrad": lambda **k: optimizers.Adam(0.01, amsgrad=True, **k),
    "adamw": lambda **k: optimizers.AdamW(0.01, weight_decay=0.1, **k),
    "adadelta": lambda **k: optimizers.Adadelta(1.0, **k),
    "adagrad": lambda **k: optimizers.Adagrad(0.1, **k),
    "adamax": lambda **k: optimizers.Adamax(0.01, **k),
    "adafactor": lambda **k: optimizers.Adafactor(0.05, **k),
    "nadam": lambda **k: optimizers.Nadam(0.01, **k),
    "ftrl": lambda **k: optimizers.Ftrl(
        0.1, l1_regularization_strength=0.01, **k
    ),
    "lion": lambda **k: optimizers.Lion(0.01, **k),
    "lamb": lambda **k: optimizers.Lamb(0.01, **k),
    "muon": lambda **k: optimizers.Muon(0.01, **k),
    "schedule_free": lambda **k: optimizers.ScheduleFreeAdamW(
        0.05, warmup_steps=3, weight_decay=0.1, **k
    ),
    "several": lambda **k: optimizers.MultiOptimizer(
        OptimizerMap(optimizers.Adam(0.01), {".*bias": optimizers.SGD(0.05)}),
        **k,
    ),
    "schedule": lambda **k: optimizers.SGD(
        optimizers.schedules.CosineDecay(0.1, 10, warmup_steps=3), **k
    ),
}
WRAPPED = {
    "clipnorm": dict(clipnorm=0.2),
    "global_clipnorm": dict(global_clipnorm=0.2),
    "clipvalue": dict(clipvalue=0.02),
    "weight_decay": dict(weight_decay=0.1),
    "ema": dict(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4),
    "accumulation": dict(gradient_accumulation_steps=3),
    "all_of_them": dict(
        clipnorm=0.5,
        weight_decay=0.1,
        use_ema=True,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=2,
    ),
}


def test_every_optimizer_is_in_the_table():
    kinds = {
        cls.__name__
        for cls in vars(optimizers).values()
        if isinstance(cls, type) and issubclass(cls, optimizers.Optimizer)
    }
    used = {type(make()).__name__ for make in OPTIMIZERS.values()}
    assert kinds - used == {"Optimizer", "LossScaleOptimizer"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    losses, _ = agree(lambda: dense(OPTIMIZERS[name]()))
    assert np.ptp(losses) > 1e-3


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_all_optimizers_offer(optimizer, name):
    make = OPTIMIZERS[optimizer]
    _, state = agree(lambda: dense(make(**WRAPPED[name])))
    _, plain = losses_and_weights(lambda: dense(make()), False)
    assert any(
        not np.allclose(a, b, atol=1e-6) for a, b in zip(state[-4:], plain[-4:])
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mixed_precision(policy, optimizer):
    def make():
        model = dense(OPTIMIZERS[optimizer](), dtype=policy)
        if policy == "mixed_float16":
            # It overflows, shrinks, and grows again within ten steps.
            model.optimizer = optimizers.LossScaleOptimizer(
                model.optimizer, initial_scale=2.0**24, dynamic_growth_steps=2
            )
        return model

    losses, state = agree(make, tolerance=2e-3)
    if policy == "mixed_float16":
        scales = [v for v in state if v.shape == () and v.dtype == "float32"]
        assert any(16 < s < 2**24 for s in scales)
    assert np.ptp(losses) > 1e-3


@pytest.mark.parametrize("steps", [2, 3, 10])
def test_several_steps_an_execution(steps):
    def train(steps):
        keras.utils.set_random_seed(0)
        model = dense(optimizers.Adam(0.01, gradient_accumulation_steps=2))
        model.compile(model.optimizer, "mse", steps_per_execution=steps)
        history = model.fit(
            X, Y, batch_size=BATCH, shuffle=False, verbose=0
        ).history
        return [np.array(history["loss"]), *model.get_weights()]

    for a, b in zip(train(steps), train(1)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class Doubled(layers.Layer):
    """A gradient that is not the derivative."""

    def call(self, x):
        @ops.custom_gradient
        def double(x):
            def grad(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream
                return upstream * 2.0

            return x * 1.0, grad

        return double(x)


def recurrent(cell, **arguments):
    return [cell(3, **arguments), layers.Dense(1)]


def attention():
    inputs = keras.Input((6, 4))
    mask = ops.cast(inputs[:, :, 0] > 0, "bool")
    x = layers.MultiHeadAttention(2, 3, dropout=0.2, seed=1)(
        inputs, inputs, key_mask=mask
    )
    x = layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + inputs)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.optimizer = optimizers.Adam(0.01)
    return model


LAYERS = {
    "dropouts": lambda: network(
        layers.SpatialDropout1D(0.2, seed=1),
        layers.GaussianDropout(0.2, seed=2),
        layers.AlphaDropout(0.2, seed=3),
        layers.ActivityRegularization(l2=0.01),
        layers.Flatten(),
        layers.Dense(1, kernel_regularizer="l1l2"),
    ),
    "random_images": lambda: network(
        layers.Reshape((6, 4, 1)),
        layers.RandomFlip(seed=1),
        layers.RandomTranslation(0.2, 0.2, seed=2),
        layers.RandomRotation(0.1, seed=3),
        layers.RandomBrightness(0.1, value_range=(-3, 3), seed=4),
        layers.Conv2D(2, 3),
        layers.Flatten(),
        layers.Dense(1),
    ),
    "normalizations": lambda: network(
        layers.BatchNormalization(momentum=0.5),
        layers.GroupNormalization(2),
        layers.RMSNormalization(),
        layers.UnitNormalization(),
        layers.SpectralNormalization(layers.Conv1D(3, 2)),
        layers.Flatten(),
        layers.Dense(1, kernel_constraint="unit_norm"),
    ),
    "masked": lambda: network(
        layers.Masking(),
        layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        *recurrent(layers.GRU, dropout=0.2, recurrent_dropout=0.2, seed=4),
    ),
    "stateful": lambda: network(*recurrent(layers.LSTM, stateful=True)),
    "cells": lambda: network(
        layers.RNN(
            [layers.LSTMCell(3), layers.GRUCell(2)], return_sequences=True
        ),
        *recurrent(layers.SimpleRNN, go_backwards=True, unroll=True),
    ),
    "convolutional_lstm": lambda: network(
        layers.Reshape((6, 4, 1)),
        layers.ConvLSTM1D(2, 2),
        layers.Flatten(),
        layers.Dense(1),
    ),
    "convolutions": lambda: network(
        layers.SeparableConv1D(4, 3, padding="same"),
        layers.DepthwiseConv1D(3, padding="same"),
        layers.Conv1DTranspose(3, 3, strides=2),
        layers.MaxPooling1D(),
        layers.Flatten(),
        layers.Dense(1),
    ),
    "attention": attention,
    "custom_gradient": lambda: network(
        layers.Flatten(), layers.Dense(3), Doubled(), layers.Dense(1)
    ),
    "float8": lambda: network(
        layers.Flatten(),
        layers.Dense(16, dtype="float8_from_float32"),
        layers.Dense(1),
    ),
}


def low_rank(mode):
    def make():
        model = network(
            layers.Flatten(),
            layers.Dense(8, activation="tanh"),
            layers.Dense(1),
        )
        optimizer = model.optimizer
        for layer in model.layers[1:]:
            layer.quantize(mode)
            layer.enable_lora(2)
        model.optimizer = optimizer
        return model

    return make


for _mode in ("int8", "int4"):
    LAYERS[f"quantized_{_mode}"] = low_rank(_mode)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    x = X.copy()
    # What `Masking` hides.
    x[::3, 4:] = 0.0
    # Float8 rounds, and so tells equal numbers apart from nearly equal ones.
    losses, _ = agree(LAYERS[name], 2e-2 if name == "float8" else 1e-4, x=x)
    assert np.ptp(losses) > 1e-3


class Spectrum(layers.Layer):
    """Keeps a decaying mean of spectra, and scales by its energy."""

    def build(self, shape):
        self.mean = self.add_weight(
            shape=(shape[-2],), dtype="complex64", trainable=False
        )

    def call(self, x):
        real, imag = ops.fft((ops.mean(x, (0, -1)), ops.zeros((x.shape[1],))))
        spectrum = ops.cast(real, "complex64") + 1j * ops.cast(
            imag, "complex64"
        )
        self.mean.assign(0.5 * self.mean + ops.stop_gradient(spectrum))
        return x * (1 + ops.sum(ops.abs(self.mean)))


def test_complex_state():
    _, state = agree(
        lambda: network(Spectrum(), layers.Flatten(), layers.Dense(1))
    )
    mean = next(v for v in state if v.dtype == "complex64")
    assert np.abs(mean.imag).max() > 0.01


def test_a_custom_gradient_is_used():
    def make(doubled):
        parts = [layers.Flatten(), layers.Dense(3)]
        parts += [Doubled()] if doubled else []
        return network(*parts, layers.Dense(1))

    _, doubled = losses_and_weights(lambda: make(True), False)
    _, plain = losses_and_weights(lambda: make(False), False)
    assert not np.allclose(doubled[-1], plain[-1], atol=1e-4)


def test_weights_of_samples_and_of_classes():
    labels = RNG.integers(0, 3, len(X))

    def train(run_eagerly, **weights):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((6, 4)), layers.Flatten(), layers.Dense(3)]
        )
        model.compile(
            "adam",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=["accuracy"],
            run_eagerly=run_eagerly,
        )
        history = model.fit(
            X, labels, batch_size=BATCH, shuffle=False, verbose=0, **weights
        ).history
        return [np.array(history[k]) for k in sorted(history)] + [
            *model.get_weights()
        ]

    plain = train(False)
    for weights in (
        dict(sample_weight=RNG.uniform(size=len(X))),
        dict(class_weight={0: 1.0, 1: 3.0, 2: 0.1}),
    ):
        compiled, eager = train(False, **weights), train(True, **weights)
        for a, b in zip(compiled, eager):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert not np.allclose(compiled[-1], plain[-1], atol=1e-6)


def test_changes_between_calls(tmp_path):
    def train(run_eagerly):
        keras.utils.set_random_seed(0)
        model = dense(None)
        model.compile(optimizers.Adam(0.01), "mse", run_eagerly=run_eagerly)
        losses = []

        def steps():
            for i in range(3):
                rows = slice(i * BATCH, (i + 1) * BATCH)
                losses.append(float(model.train_on_batch(X[rows], Y[rows])))
            losses.append(float(model.test_on_batch(X, Y)))

        path = str(tmp_path / f"{run_eagerly}.weights.h5")
        steps()
        model.save_weights(path)
        model.optimizer.learning_rate = 0.1
        steps()
        model.optimizer.learning_rate.assign(0.001)
        steps()
        model.load_weights(path)
        steps()
        model.layers[1].kernel.assign(ops.ones_like(model.layers[1].kernel))
        steps()
        model.set_weights([w * 0.5 for w in model.get_weights()])
        steps()
        model.layers[1].trainable = False
        model.compile(optimizers.SGD(0.01), "mae", run_eagerly=run_eagerly)
        steps()
        model.layers[1].trainable = True
        model.compile(optimizers.Adam(0.01), "mse", run_eagerly=run_eagerly)
        steps()
        model.layers[1].kernel.assign_add(ops.ones_like(model.layers[1].kernel))
        steps()
        return [np.array(losses), *model.get_weights()]

    for a, b in zip(train(False), train(True)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
