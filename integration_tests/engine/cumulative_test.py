"""Cumulative sums and products: every axis and dtype, gradients at zeros."""

import numpy as np
import pytest
from tinygrad import Tensor

from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src.backend.tinygrad.engine.cumulative import cumulative_product
from keras.src.backend.tinygrad.engine.cumulative import cumulative_sum

RNG = np.random.default_rng(0)
PAIRS = [(cumulative_sum, np.cumsum), (cumulative_product, np.cumprod)]
SHAPES = [(5,), (1, 7), (7, 1), (3, 4, 5), (2, 0, 3)]


@pytest.mark.parametrize("fn, reference", PAIRS)
@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_along_every_axis(fn, reference, dtype, shape):
    x = (RNG.normal(size=shape) * 3).astype("int8").astype(dtype)
    for axis in range(len(shape)):
        y = ops.convert_to_numpy(fn(ops.convert_to_tensor(x), axis))
        assert y.dtype == dtype
        np.testing.assert_allclose(y, reference(x, axis, dtype), rtol=1e-6)


@pytest.mark.parametrize("fn, reference", PAIRS)
def test_many_elements(fn, reference):
    x = RNG.uniform(0.9, 1.1, 5000)
    y = ops.convert_to_numpy(fn(ops.convert_to_tensor(x), 0))
    np.testing.assert_allclose(y, reference(x))


@pytest.mark.parametrize("fn, reference", PAIRS)
def test_constants_without_a_buffer(fn, reference):
    y = ops.convert_to_numpy(fn(Tensor.arange(1, 6), 0))
    np.testing.assert_array_equal(y, reference(np.arange(1, 6)))


@pytest.mark.parametrize(
    "x",
    [[1, 2, 3, 4], [1, 0, 3, 4], [0, 2, 0, 4], [0, 0, 3, 0], [1, 2, 3, 0]],
    ids=str,
)
def test_gradients_at_zeros(x):
    x = np.array([x, [2.0, -1, 0.5, 3]])
    for axis in (0, 1):
        check_gradient(lambda t: cumulative_product(t, axis), x)
        check_gradient(lambda t: cumulative_sum(t, axis), x)
