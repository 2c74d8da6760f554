"""The benchmark's models, each with its batches: same for every backend."""

import numpy as np


def mlp(keras):
    """Dense 784-256-128-10, batch 128."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    return model, _vectors((784,), 10, batch=128, steps=40)


def cnn(keras):
    """Two convolutions (32 and 64 filters) on 28x28 images, batch 64."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    return model, _vectors((28, 28, 1), 10, batch=64, steps=12)


def resnet(keras):
    """Three residual stages with batch normalization, 32x32x3, batch 32."""
    layers = keras.layers

    def convolve(x, filters, stride=1):
        x = layers.Conv2D(
            filters, 3, strides=stride, padding="same", use_bias=False
        )(x)
        return layers.BatchNormalization()(x)

    def block(x, filters, stride):
        y = layers.Activation("relu")(convolve(x, filters, stride))
        y = convolve(y, filters)
        if stride != 1 or x.shape[-1] != filters:
            x = layers.Conv2D(filters, 1, strides=stride)(x)
        return layers.Activation("relu")(layers.Add()([x, y]))

    inputs = keras.Input((32, 32, 3))
    x = layers.Activation("relu")(convolve(inputs, 16))
    x = block(x, 16, 1)
    x = block(x, 32, 2)
    x = block(x, 64, 2)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs), _vectors(
        (32, 32, 3), 10, batch=32, steps=12
    )


def lstm(keras, length=50):
    """Embedding and an LSTM of 64 units over 50 steps, batch 32."""
    return _recurrent(keras, [keras.layers.LSTM(64)], length)


def gru(keras, length=50):
    """Embedding and a GRU of 64 units over 50 steps, batch 32."""
    return _recurrent(keras, [keras.layers.GRU(64)], length)


def bilstm(keras, length=50):
    """Embedding and two bidirectional LSTMs of 64 units, 50 steps, batch 32."""
    layers = keras.layers
    both = [
        layers.Bidirectional(layers.LSTM(64, return_sequences=True)),
        layers.Bidirectional(layers.LSTM(64)),
    ]
    return _recurrent(keras, both, length)


def _recurrent(keras, recurrent, length):
    model = keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            keras.layers.Embedding(1000, 64),
            *recurrent,
            keras.layers.Dense(10),
        ]
    )
    return model, _tokens(1000, (length,), 10, batch=32, steps=12)


def transformer(keras):
    """Two pre-norm blocks of width 128 over 64 tokens, batch 32."""
    layers = keras.layers
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(5000, 128)(inputs)
    x = _position_embedding(keras)(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(512, activation="gelu")(y)
        x = x + layers.Dense(128)(y)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(10)(x)
    return keras.Model(inputs, outputs), _tokens(
        5000, (64,), 10, batch=32, steps=12
    )


def _position_embedding(keras):
    class PositionEmbedding(keras.layers.Layer):
        def build(self, input_shape):
            self.embeddings = self.add_weight(
                shape=input_shape[1:], initializer="zeros"
            )

        def call(self, x):
            return x + self.embeddings

    return PositionEmbedding()


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "lstm": lstm,
    "gru": gru,
    "bilstm": bilstm,
    "transformer": transformer,
}


def set_deterministic_weights(model):
    """Gives every kernel the same values on every backend."""
    rng = np.random.default_rng(1)
    values = []
    for value in model.get_weights():
        if value.ndim > 1:
            fan_in = np.prod(value.shape[:-1])
            value = rng.normal(size=value.shape) / np.sqrt(fan_in)
        values.append(value.astype("float32"))
    model.set_weights(values)


def _vectors(shape, classes, batch, steps):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch * steps, *shape)).astype("float32")
    return x, _labels(rng, classes, len(x)), batch


def _tokens(vocabulary, shape, classes, batch, steps):
    rng = np.random.default_rng(0)
    x = rng.integers(0, vocabulary, (batch * steps, *shape)).astype("int32")
    return x, _labels(rng, classes, len(x)), batch


def _labels(rng, classes, count):
    return rng.integers(0, classes, count).astype("int32")
