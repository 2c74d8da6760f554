"""Recurrent layers, and what each answers: outputs, gradients, state, losses.

The same code runs on any backend. Dropout takes its numbers here from a small
generator of integers over the seed's state, so that all backends drop alike.
"""

import dataclasses
import zlib

import numpy as np

import keras
from keras import layers
from keras import ops
from keras.src import backend
from keras.src import tree
from keras.src.random.seed_generator import draw_seed

DIRECTIONS = 4
_MODULUS = 1009


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and how it is called.

    Attributes:
        make: Function without arguments that returns the layer.
        shape: Shape of the input, `(samples, time, ...)`.
        masked: Number of axes of the mask, `(samples, time, ...)`; 0 without.
        states: Shapes of the initial states to pass.
        calls: How often the layer is called, one after the other.
        training: Whether it is called for training.
    """

    make: object
    shape: tuple = (2, 5, 3)
    masked: int = 0
    states: tuple = ()
    calls: int = 1
    training: bool = False


class ScaledCell(layers.Layer):
    """A cell of one's own: two states, one of them a count of steps."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.state_size = [units, 1]
        self.output_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], self.units))
        self.recurrent_kernel = self.add_weight((self.units, self.units))

    def call(self, inputs, states):
        h, count = states
        z = ops.matmul(inputs, self.kernel)
        z = z + ops.matmul(h, self.recurrent_kernel) / (1 + count)
        return ops.tanh(z) * 2, [ops.softsign(z), count + 1]


class Penalized(layers.Layer):
    """A dense layer with a loss of its own and an activity regularizer's."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(units, activity_regularizer="l2")

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        y = self.dense(inputs)
        self.add_loss(ops.mean(ops.tanh(y)))
        return y


def _stacked():
    cells = [layers.LSTMCell(4), layers.GRUCell(3), layers.SimpleRNNCell(2)]
    return layers.RNN(cells, return_sequences=True)


def _stacked_dropout():
    cells = [
        layers.LSTMCell(4, dropout=0.3, recurrent_dropout=0.3, seed=1),
        layers.GRUCell(3, dropout=0.3, seed=2),
    ]
    return layers.RNN(layers.StackedRNNCells(cells))


def _sequences(make, *args, **kwargs):
    return lambda: make(*args, return_sequences=True, **kwargs)


def _distributed(make):
    return lambda: layers.TimeDistributed(make())


def _normalized():
    return keras.Sequential(
        [
            # A bias would have a gradient of zero, but for rounding.
            layers.Dense(4, use_bias=False),
            layers.BatchNormalization(),
            layers.Dropout(0.4, seed=1),
        ]
    )


_DROPOUT = dict(dropout=0.3, recurrent_dropout=0.3, seed=1)
_STATE = dict(return_sequences=True, return_state=True)
_VIDEO = (2, 4, 5, 6, 2)

CASES = {
    "custom_cell": Case(lambda: layers.RNN(ScaledCell(4), **_STATE)),
    "stacked": Case(_stacked),
    "stacked_masked": Case(_stacked, masked=2),
    "stacked_dropout": Case(_stacked_dropout, training=True),
    "conv1d": Case(_sequences(layers.ConvLSTM1D, 3, 3), (2, 4, 6, 2)),
    "conv2d": Case(_sequences(layers.ConvLSTM2D, 3, 3), _VIDEO),
    "conv2d_masked": Case(
        lambda: layers.ConvLSTM2D(2, 3, padding="same"), _VIDEO, masked=2
    ),
    "conv2d_dropout": Case(
        lambda: layers.ConvLSTM2D(2, 3, padding="same", **_DROPOUT),
        _VIDEO,
        training=True,
    ),
    "distributed_dense": Case(
        _distributed(lambda: layers.Dense(4, activation="tanh"))
    ),
    "distributed_conv": Case(
        _distributed(lambda: layers.Conv1D(2, 3)), (2, 4, 6, 2)
    ),
    "distributed_state": Case(
        _distributed(_normalized), (6, 4, 3), training=True, calls=2
    ),
    "distributed_loss": Case(_distributed(lambda: Penalized(3))),
    "distributed_lstm": Case(
        _distributed(lambda: layers.LSTM(3)), (2, 3, 4, 2), masked=3
    ),
    "bidirectional": Case(lambda: layers.Bidirectional(layers.LSTM(4))),
    "bidirectional_masked": Case(
        lambda: layers.Bidirectional(layers.GRU(4, **_STATE), merge_mode="mul"),
        masked=2,
    ),
    "bidirectional_dropout": Case(
        lambda: layers.Bidirectional(layers.LSTM(4, **_DROPOUT)), training=True
    ),
}
for _name, _make, _count in (
    ("lstm", layers.LSTM, 2),
    ("gru", layers.GRU, 1),
    ("simple", layers.SimpleRNN, 1),
):
    _of = {
        "": {},
        "_sequences": dict(return_sequences=True),
        "_backwards": dict(go_backwards=True, return_sequences=True),
        "_unrolled": dict(unroll=True),
    }
    for _suffix, _kwargs in _of.items():
        CASES[_name + _suffix] = Case(
            lambda make=_make, kwargs=_kwargs: make(4, **kwargs)
        )
    CASES[_name + "_state"] = Case(
        lambda make=_make: make(4, **_STATE), states=((2, 4),) * _count
    )
    CASES[_name + "_masked"] = Case(
        lambda make=_make: make(4, **_STATE), masked=2
    )
    CASES[_name + "_masked_zeros"] = Case(
        lambda make=_make: make(
            4,
            return_sequences=True,
            zero_output_for_mask=True,
            go_backwards=True,
        ),
        masked=2,
    )
    CASES[_name + "_stateful"] = Case(
        lambda make=_make: make(4, stateful=True), calls=2
    )
    CASES[_name + "_dropout"] = Case(
        lambda make=_make: make(4, dropout=0.3, seed=1), training=True
    )
    CASES[_name + "_recurrent_dropout"] = Case(
        lambda make=_make: make(4, return_sequences=True, **_DROPOUT),
        training=True,
        calls=2,
    )
CASES["gru_reset_before"] = Case(lambda: layers.GRU(4, reset_after=False))


def dropout(inputs, rate, noise_shape=None, seed=None):
    """Stands in for `keras.random.dropout`, with the same uses of `seed`."""
    shape = tuple(inputs.shape if noise_shape is None else noise_shape)
    state = ops.cast(draw_seed(seed), "int32") % _MODULUS
    places = np.arange(np.prod(shape), dtype="int32") * 7919 % _MODULUS
    places = ops.convert_to_tensor(places.reshape(shape))
    drawn = (places + state[0] * 31 + state[1] * 613) % _MODULUS
    keep = ops.cast(drawn >= int(rate * _MODULUS), inputs.dtype)
    return inputs * keep / (1 - rate)


def answers(name):
    """Runs a case.

    Args:
        name: Key of `CASES`.

    Returns:
        List of NumPy arrays: the outputs, the sum of losses, the gradients
        for the inputs, the initial states and the trainable variables, and
        the values after the calls of the others.
    """
    case = CASES[name]
    random = np.random.default_rng(zlib.crc32(name.encode()))

    def normal(shape):
        return random.normal(size=shape).astype("float32")

    layer = case.make()
    layer.build(case.shape)
    if getattr(layer, "stateful", False):
        layer.reset_state()
    trainable = layer.trainable_variables
    others = layer.non_trainable_variables
    given = [normal(case.shape), *map(normal, case.states)]
    count = len(given)
    given += [normal(v.shape) / 2 for v in trainable]
    fixed = [ops.convert_to_tensor(np.asarray(v)) for v in others]
    kwargs = {}
    if case.masked:
        keep = random.uniform(size=case.shape[: case.masked]) < 0.6
        kwargs["mask"] = ops.convert_to_tensor(keep)
    if case.training:
        kwargs["training"] = True

    def function(values):
        inputs, *states = values[:count]
        if states:
            kwargs["initial_state"] = list(states)
        pairs = [*zip(trainable, values[count:]), *zip(others, fixed)]
        with keras.StatelessScope(pairs, collect_losses=True) as scope:
            outputs = [layer(inputs, **kwargs) for _ in range(case.calls)]
            losses = [ops.sum(x) for x in layer.losses]
        outputs = [*tree.flatten(outputs), sum(losses, ops.zeros(()))]
        # The seeds of layers without dropout differ from run to run.
        states = [v for v in others if "seed" not in v.path]
        return outputs, [scope.get_current_value(v) for v in states]

    weights = []

    def total(outputs):
        if not weights:
            weights.extend(normal(y.shape) for y in outputs)
        return sum(
            ops.sum(ops.multiply(y, w)) for y, w in zip(outputs, weights)
        )

    drawn, backend.random.dropout = backend.random.dropout, dropout
    try:
        outputs, gradients, after = _differentiated(function, total, given)
    finally:
        backend.random.dropout = drawn
    found = [*outputs, *gradients, *after]
    return [ops.convert_to_numpy(x).astype("float64") for x in found]


def _differentiated(function, total, given):
    values = [ops.convert_to_tensor(v) for v in given]
    if keras.backend.backend() == "jax":
        import jax

        def loss(values):
            outputs, after = function(values)
            return total(outputs), (outputs, after)

        gradients, (outputs, after) = jax.grad(loss, has_aux=True)(values)
        return outputs, gradients, after
    if keras.backend.backend() == "torch":
        import torch

        values = [v.requires_grad_() for v in values]
        outputs, after = function(values)
        return outputs, torch.autograd.grad(total(outputs), values), after
    from keras.src.backend.tinygrad.engine.gradient import gradients

    outputs, after = function(values)
    return outputs, gradients(total(outputs), values), after


def summary(array):
    """Returns an array's norm and its products with fixed directions."""
    random = np.random.default_rng(array.size)
    directions = random.normal(size=(DIRECTIONS, array.size))
    flat = array.reshape(-1)
    return [float(np.linalg.norm(flat)), *(directions @ flat).tolist()]
