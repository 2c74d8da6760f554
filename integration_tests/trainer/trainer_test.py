"""Training: compiled steps do what uncompiled ones do, and notice changes."""

import numpy as np
import pytest

import keras
from keras import layers
from keras import ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(22, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
IMAGES = RNG.normal(size=(22, 6, 6, 2)).astype("float32")
IDS = RNG.integers(0, 5, (22, 6))
WEIGHTS = RNG.uniform(size=22).astype("float32")


def close(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def mlp(model=keras.Model, optimizer="adam", **compile_args):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = layers.Dense(8, activation="tanh")(inputs)
    model = model(inputs, layers.Dense(1)(hidden))
    model.compile(optimizer, "mse", **compile_args)
    return model


def sequential(*parts, optimizer="adam", loss="mse", **compile_args):
    model = keras.Sequential(parts)
    model.compile(optimizer, loss, **compile_args)
    return model


class Backward(keras.Model):
    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        loss.backward()
        weights = self.trainable_weights
        self.optimizer.apply([v.value.grad for v in weights], weights)
        for v in weights:
            v.value.grad = None
        self._loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


class Gradient(keras.Model):
    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        weights = self.trainable_weights
        grads = loss.gradient(*[v.value for v in weights])
        self.optimizer.apply(grads, weights)
        self._loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


class Subclassed(keras.Model):
    """Built at the first batch; counts calls and adds a loss."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(5)
        self.norm = layers.BatchNormalization()
        self.last = layers.Dense(1)
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1.0)
        hidden = self.norm(self.first(x), training=training)
        self.add_loss(1e-2 * ops.sum(hidden**2))
        return self.last(hidden)


def subclassed(**compile_args):
    model = Subclassed()
    model.compile("sgd", "mse", **compile_args)
    return model


def two_ends(**compile_args):
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    joined = layers.Concatenate()([a, b])
    outputs = {
        "p": layers.Dense(1, name="p")(joined),
        "q": layers.Dense(3, activation="softmax", name="q")(joined),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        "adam",
        loss={"p": "mse", "q": "categorical_crossentropy"},
        loss_weights={"p": 1.0, "q": 0.3},
        **compile_args,
    )
    return model


# Name: function of compile arguments that makes the model, `fit`'s arguments.
MODELS = {
    "mlp": (mlp, dict(x=X, y=Y)),
    "backward": (lambda **k: mlp(Backward, **k), dict(x=X, y=Y)),
    "gradient": (lambda **k: mlp(Gradient, **k), dict(x=X, y=Y)),
    "sample_weight": (
        lambda **k: mlp(metrics=["mae"], weighted_metrics=["mse"], **k),
        dict(x=X, y=Y, sample_weight=WEIGHTS),
    ),
    "class_weight": (
        lambda **k: sequential(
            keras.Input((4,)),
            layers.Dense(3, activation="softmax"),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            **k,
        ),
        dict(x=X, y=IDS[:, 0] % 3, class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
    ),
    "accumulation": (
        lambda **k: mlp(
            optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
            **k,
        ),
        dict(x=X, y=Y),
    ),
    "ema_decay_norm": (
        lambda **k: mlp(
            optimizer=keras.optimizers.AdamW(
                0.1,
                weight_decay=0.1,
                global_clipnorm=0.5,
                use_ema=True,
                ema_overwrite_frequency=2,
            ),
            **k,
        ),
        dict(x=X, y=Y),
    ),
    "convolution": (
        lambda **k: sequential(
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
            **k,
        ),
        dict(x=IMAGES, y=Y),
    ),
    "masked_rnn": (
        lambda **k: sequential(
            keras.Input((6,), dtype="int32"),
            layers.Embedding(5, 4, mask_zero=True),
            layers.GRU(3),
            layers.Dense(1),
            **k,
        ),
        dict(x=IDS, y=Y),
    ),
    "noise": (
        lambda **k: sequential(
            keras.Input((4,)),
            layers.Dropout(0.5, seed=3),
            layers.GaussianNoise(0.3),
            layers.Dense(1),
            **k,
        ),
        dict(x=X, y=Y),
    ),
    "subclassed": (subclassed, dict(x=X, y=Y)),
    "two_ends": (
        two_ends,
        dict(
            x={"a": X, "b": X[:, :2]},
            y={"p": Y, "q": np.eye(3)[IDS[:, 0] % 3]},
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_compiled_equals_eager(name):
    make, data = MODELS[name]
    results = []
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(0)
        model = make(run_eagerly=run_eagerly)
        # The last batch is short.
        history = model.fit(
            **data, batch_size=8, epochs=2, shuffle=False, verbose=0
        ).history
        predictions = model.predict(data["x"], batch_size=8, verbose=0)
        results.append(
            [history[k] for k in sorted(history)]
            + model.get_weights()
            + keras.tree.flatten(predictions)
        )
    close(*results)
    # It learned: the loss of the second epoch differs.
    assert np.ptp(history["loss"]) > 1e-4


def test_several_steps_per_execution_with_a_short_last_batch():
    results = []
    for steps in (1, 2, 7):
        model = mlp(metrics=["mae"], steps_per_execution=steps)
        history = model.fit(
            X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0
        ).history
        results.append(
            [history["loss"], history["mae"], *model.get_weights()]
            + model.evaluate(X, Y, batch_size=8, verbose=0)
            + [model.predict(X, batch_size=8, verbose=0)]
        )
    close(results[0], results[1])
    close(results[0], results[2])


def test_no_batch_of_a_generator_is_lost_to_building():
    def batches():
        for start in range(0, 21, 3):
            yield X[start : start + 3], Y[start : start + 3]

    results = []
    for steps in (1, 5):
        model = mlp(metrics=["mae"], steps_per_execution=steps)
        losses = model.fit(batches(), verbose=0).history["loss"]
        evaluated = mlp(metrics=["mae"], steps_per_execution=steps)
        results.append(
            [losses, *model.get_weights()]
            + evaluated.evaluate(batches(), verbose=0)
        )
    close(results[0], results[1])


class Adversaries(keras.Model):
    """The maker's loss sees what the judge learned in the same step."""

    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
        self.judge = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6), layers.ReLU(), layers.Dense(1)]
        )

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.optimizers = [keras.optimizers.SGD(0.1) for _ in range(2)]

    def call(self, x):
        return self.judge(self.maker(x))

    def train_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        made = self(x)
        losses = []
        for optimizer, part, loss in zip(
            self.optimizers,
            (self.judge, self.maker),
            (lambda: ops.mean(made - self.judge(x)), lambda: -self._score(x)),
        ):
            losses.append(loss())
            weights = part.trainable_weights
            grads = losses[-1].gradient(*[v.value for v in weights])
            optimizer.apply(grads, weights)
        return {"judge": losses[0], "maker": losses[1]}

    def _score(self, x):
        return ops.mean(self(x))


def test_no_gradient_flows_through_an_update():
    results = []
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(0)
        model = Adversaries()
        model.compile(run_eagerly=run_eagerly)
        history = model.fit(
            X, batch_size=11, epochs=3, shuffle=False, verbose=0
        ).history
        results.append(
            [history["judge"], history["maker"], *model.get_weights()]
        )
    close(*results)


def test_layers_added_and_removed_between_predictions():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    first = model.predict(X, verbose=0)
    model.add(layers.ReLU())
    close([model.predict(X, verbose=0)], [np.maximum(first, 0)])
    model.add(layers.Dense(2))
    assert model.predict(X, verbose=0).shape == (22, 2)
    model.pop()
    model.pop()
    close([model.predict(X, verbose=0)], [first], 0)


def test_layers_frozen_between_steps():
    model = mlp(optimizer="sgd")
    model.fit(X, Y, verbose=0)
    hidden = model.layers[1]
    for trainable in (False, True, False):
        hidden.trainable = trainable
        before = model.get_weights()
        model.train_on_batch(X, Y)
        after = model.get_weights()
        assert np.array_equal(before[0], after[0]) is not trainable
        assert not np.array_equal(before[2], after[2])


def test_a_frozen_layer_without_weights_to_train():
    layer = keras.layers.BatchNormalization(center=False, scale=False)
    model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.array([[10.0], [20.0]]), np.zeros((2, 1))
    means = []
    for layer.trainable in (True, False, True):
        model.train_on_batch(x, y)
        means.append(float(layer.moving_mean[0]))
    close(means, [0.15, 0.15, 0.2985], 1e-6)


def test_constant_tensors_as_batches():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.layers[0].set_weights([np.ones((1, 1)), np.zeros(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = keras.ops.ones((4, 1))
    for target in (1.0, 0.0, 3.0):
        loss = model.test_on_batch(x, keras.ops.full((4, 1), target))
        close([loss], [(1 - target) ** 2], 0)
        close(
            [model.predict_on_batch(keras.ops.full((4, 1), target))],
            [np.full((4, 1), target)],
            0,
        )


def test_a_callback_that_freezes_a_layer():
    model = mlp(optimizer="sgd")
    kernels = []

    class Freeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.layers[1].trainable = epoch == 0

        def on_epoch_end(self, epoch, logs=None):
            kernels.append(np.array(self.model.layers[1].kernel))

    start = model.get_weights()[0]
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[Freeze()])
    assert not np.array_equal(start, kernels[0])
    close(kernels[1:], [kernels[0]] * 2, 0)


def test_a_model_on_another_device_than_the_default():
    reference = mlp()
    expected = reference.fit(X, Y, epochs=2, verbose=0).history["loss"]
    with keras.device("cpu:1"):
        model = mlp()
    with keras.device("cpu:1"):
        losses = model.fit(X, Y, verbose=0).history["loss"]
    losses += model.fit(X, Y, verbose=0).history["loss"]
    assert model.weights[0].value.device == "CPU:1"
    close([np.sort(losses)], [np.sort(expected)], 1e-4)
    close(model.get_weights(), reference.get_weights(), 1e-4)


def test_an_overflow_of_float16_changes_no_weights():
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=1e8
    )
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = mlp(optimizer=optimizer)
    finally:
        keras.config.set_dtype_policy("float32")
    before = model.get_weights()
    model.train_on_batch(X, Y)
    close(model.get_weights(), before, 0)
    assert float(optimizer.dynamic_scale) == 5e7
    optimizer.dynamic_scale.assign(8.0)
    model.train_on_batch(X, Y)
    assert not np.array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cast_to_fewer_bits_and_back_rounds(dtype):
    values = np.array([1 / 3, 70000.0, 1e-9], "float32")
    tensor = ops.convert_to_tensor(values)
    narrow = ops.convert_to_numpy(ops.cast(tensor, dtype))
    expected = narrow.astype("float32")
    fused = ops.cast(ops.cast(tensor, dtype), "float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(fused), expected)


def test_no_batches_at_all_raise():
    with pytest.raises(ValueError, match="`predict` needs at least one batch"):
        mlp().predict(X[:0], verbose=0)
    with pytest.raises(ValueError, match="`fit` needs at least one batch"):
        mlp().fit(X[:0], Y[:0], verbose=0)


def test_learning_rate_and_weights_take_effect_at_once():
    model = mlp(optimizer=keras.optimizers.SGD(0.0))
    start = model.get_weights()
    lazy = model.layers[1].kernel * 2
    model.train_on_batch(X, Y)
    close(model.get_weights(), start, 0)
    model.optimizer.learning_rate = 0.1
    model.train_on_batch(X, Y)
    assert not np.array_equal(model.get_weights()[0], start[0])
    np.testing.assert_array_equal(ops.convert_to_numpy(lazy), 2 * start[0])
    trained = model.predict(X, verbose=0)
    model.set_weights(start)
    untrained = model.predict(X, verbose=0)
    assert not np.allclose(trained, untrained, atol=1e-3)
    loss = model.train_on_batch(X, Y)
    close([loss], [np.mean((untrained - Y) ** 2)])
    close([model.predict(X, verbose=0)], [trained])


def test_a_step_that_reads_its_loss():
    class Reader(Gradient):
        def train_step(self, data):
            logs = super().train_step(data)
            seen.append(float(logs["loss"]))
            return logs

    seen = []
    model = mlp(Reader)
    with pytest.warns(UserWarning, match=r"seen.append\(float"):
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert len(seen) == 3
    reference = mlp(Gradient)
    reference.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    close(model.get_weights(), reference.get_weights())
    with pytest.raises(RuntimeError, match="may not read"):
        mlp(Reader, jit_compile=True).fit(X, Y, verbose=0)


class _Cholesky(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(2, 2), initializer="zeros")

    def call(self, x):
        return ops.linalg.cholesky(x + self.w)


@pytest.mark.parametrize("eager", [False, True])
def test_a_failed_step_leaves_the_model_as_it_was(eager):
    model = keras.Sequential(
        [
            keras.Input((2, 2)),
            layers.BatchNormalization(center=False, scale=False),
            layers.Rescaling(0.0, offset=1.0),
            layers.Flatten(),
            layers.Dense(4),
            layers.Reshape((2, 2)),
            _Cholesky(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=eager)
    dense = model.layers[3]
    good = [np.zeros((4, 4)), np.array([2.0, 0.0, 0.0, 2.0])]
    dense.set_weights(good)
    x, y = np.ones((3, 2, 2), "float32"), np.ones((3, 2, 1), "float32")
    model.train_on_batch(x, y)
    dense.set_weights([good[0], -good[1]])
    state = [*model.weights, *model.optimizer.variables]
    before = [np.array(v) for v in state]
    with pytest.raises(np.linalg.LinAlgError):
        model.train_on_batch(x, y)
    if not eager:
        for variable, value in zip(state, before):
            np.testing.assert_array_equal(variable, value, variable.path)
    assert all(np.isfinite(v).all() for v in model.get_weights())
    dense.set_weights(good)
    assert np.isfinite(model.train_on_batch(x, y)).all()


def test_an_interrupted_fit_leaves_a_working_model(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    model = mlp()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Interrupt()])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert model.evaluate(X, Y, verbose=0) == loaded.evaluate(X, Y, verbose=0)
    losses = [
        m.fit(X, Y, epochs=2, shuffle=False, verbose=0).history["loss"]
        for m in (model, loaded)
    ]
    close(*losses)
    assert losses[0][1] < losses[0][0]
