"""Indexing with what tinygrad's own tensors do not take."""

import numpy as np
import pytest

import keras
from keras import ops

VALUES = np.arange(60, dtype="float32").reshape(3, 4, 5)
MASK = np.array([True, False, True, True])


@pytest.mark.parametrize(
    "index",
    [
        np.int64(1),
        np.array(2),
        np.array([2, 0, -1]),
        (slice(np.int64(1), np.int64(3)), np.int32(-1)),
        (slice(None), np.array([[0, 1], [2, 3]])),
        VALUES > 20,
        (1, MASK),
        (Ellipsis, MASK, slice(1, 3)),
        (None, slice(None), MASK, np.uint8(4)),
        [True, False, True],
        (slice(None), [0, 2], slice(None, None, np.int8(2))),
    ],
)
def test_numpy_indices_and_masks_select_as_in_numpy(index):
    x = ops.convert_to_tensor(VALUES)
    np.testing.assert_array_equal(x[index], VALUES[index])
    parts = index if isinstance(index, tuple) else (index,)
    tensors = tuple(
        ops.convert_to_tensor(p) if isinstance(p, np.ndarray) else p
        for p in parts
    )
    np.testing.assert_array_equal(x[tensors], VALUES[index])


@pytest.mark.parametrize("start", [0, 1, 2, 3, -2, -4])
def test_slices_with_tensors_as_bounds(start):
    x, a = ops.convert_to_tensor(VALUES), ops.convert_to_tensor(start)
    for got, expected in (
        (x[..., a : a + 2, :], VALUES[..., start : start + 2, :]),
        (x[:, 2 + a :], VALUES[:, 2 + start :]),
        (x[0, : a + 1, ::2], VALUES[0, : start + 1, ::2]),
    ):
        np.testing.assert_array_equal(got, expected)
    variable = keras.Variable(start, dtype="int32", trainable=False)
    np.testing.assert_array_equal(x[:, variable:], VALUES[:, start:])


def test_a_slice_of_known_length_reads_nothing_in_a_step_and_has_a_gradient():
    class Crop(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=shape[1:])

        def call(self, x):
            start = ops.cast(x[0, 0], "int32")
            return (x * self.scale)[:, start : start + 2]

    model = keras.Sequential([keras.Input((4,)), Crop()])
    model.compile("sgd", "mse", jit_compile=True)
    x = np.array([[1.0, 2, 3, 4], [1, 6, 7, 8]], "float32")
    before = np.array(model.layers[0].scale)
    model.fit(x, np.zeros((2, 2), "float32"), verbose=0)
    changed = np.array(model.layers[0].scale) != before
    np.testing.assert_array_equal(changed, [False, True, True, False])


def test_a_wrong_index_is_named():
    x = ops.convert_to_tensor(VALUES)
    with pytest.raises(IndexError, match=r"\(3,\).*mask of shape \(4,\)"):
        x[MASK]
    with pytest.raises(IndexError, match="dtype float64"):
        x[np.array([0.5])]
    with pytest.raises(IndexError, match=r"Too many indices.*\(3, 4, 5\)"):
        x[0, 0, 0, np.int64(0)]
