"""Large eager graphs: computed in pieces, and no part of them twice."""

import math

import numpy as np
import pytest
from tinygrad import Device
from tinygrad import Tensor

from keras import ops
from keras.src.backend.tinygrad.engine import pieces
from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.internals import GlobalCounters
from keras.src.backend.tinygrad.engine.transfer import from_numpy

RNG = np.random.default_rng(0)


def tensor(value):
    return from_numpy(np.asarray(value), Device.DEFAULT)


def launches(fn):
    before = GlobalCounters.kernel_count
    fn()
    return GlobalCounters.kernel_count - before


def grown(x, steps):
    """Columns that each depend on those before, as GPTQ's: no two steps
    have a kernel in common."""
    for i in range(steps):
        error = (x[:, i : i + 1] - x[:, i : i + 1].round()) * 0.125
        x = x[:, : i + 1].cat(x[:, i + 1 :] - error, dim=1)
    return x


def grown_array(x, steps):
    x = x.copy()
    for i in range(steps):
        x[:, i + 1 :] -= (x[:, i : i + 1] - np.round(x[:, i : i + 1])) / 8
    return x


def size(x):
    return len(x.uop.toposort())


def test_a_large_graph_has_the_values_of_a_small_one():
    array = RNG.normal(size=(8, 32)).astype("float32") * 4
    x = grown(tensor(array), 24)
    assert size(x) > 2 * pieces.LARGE
    np.testing.assert_allclose(x.numpy(), grown_array(array, 24), atol=1e-5)


def test_gradients_go_through_what_was_computed():
    array = RNG.normal(size=(4, 16)).astype("float32")
    x = tensor(array)
    y = grown(x, 12)
    (y * y).sum().realize()
    z = (y * y).sum() + y.sum()
    assert size(z) > pieces.LARGE
    (gradient,) = z.gradient(x)
    # The gradient of rounding is zero: a step is linear.
    step = np.eye(16)
    for i in range(12):
        one = np.eye(16)
        one[i, i + 1 :] = -0.125
        step = step @ one
    expected = (1 + 2 * grown_array(array, 12)) @ step.T
    np.testing.assert_allclose(gradient.numpy(), expected, 1e-4)


def test_a_history_that_is_read_again_is_computed_twice_at_most():
    x = tensor(RNG.normal(size=(8, 32)).astype("float32"))
    for _ in range(60):
        x = x - x.mean(1, keepdim=True) * 0.5
    assert size(x) > pieces.LARGE
    reads = [launches(lambda i=i: x[i].max().item()) for i in range(x.shape[0])]
    assert reads[0] >= 40
    assert max(reads[2:]) <= 2


def test_values_live_as_long_as_their_graph():
    x = grown(tensor(np.ones((8, 32), "float32")), 12)
    for i in range(3):
        x[i].max().item()
    assert any(node in pieces._values for node in x.uop.toposort())
    before = len(pieces._values)
    del x
    assert len(pieces._values) < before


@pytest.mark.parametrize("read", [False, True])
def test_a_write_in_place_is_seen(read):
    source = Tensor.ones(8, 32, device=Device.DEFAULT).clone().realize()
    if read:
        for i in range(3):
            grown(source, 12)[i].max().item()
    source.assign(source * 3).realize()
    expected = grown_array(np.full((8, 32), 3, "float32"), 12)
    for i in range(3):
        assert grown(source, 12)[i].max().item() == pytest.approx(
            expected[i].max(), 1e-5
        )


def test_functions_count_as_what_they_stand_for():
    array = RNG.normal(size=(4, 8)).astype("float32")

    def repeated(steps):
        x = tensor(array)
        for _ in range(steps):
            x = ops.gelu(x) * 1.5
        return x

    graph = canonicalize([repeated(60).uop])
    assert len(graph.key) < pieces.LARGE < len(graph)
    kernels = launches(lambda: repeated(60).numpy())
    assert kernels >= len(graph) // pieces.LARGE
    expected = array
    for _ in range(60):
        expected = (
            expected
            * 0.75
            * (
                1
                + np.tanh(
                    math.sqrt(2 / math.pi) * (expected + 0.044715 * expected**3)
                )
            )
        )
    np.testing.assert_allclose(repeated(60).numpy(), expected, rtol=1e-4)
