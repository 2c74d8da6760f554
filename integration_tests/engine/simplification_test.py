"""Expressions that tinygrad would simplify to another value."""

import numpy as np
import pytest

from keras import ops

FLOATS = {
    "x - x": lambda x: x - x,
    "2x - 2x": lambda x: 2 * x - 2 * x,
    "x - (x + 1)": lambda x: x - (x + 1),
    "x * 0": lambda x: x * 0.0,
    "x * 0 + 1": lambda x: x * 0.0 + 1.0,
    "x / x": lambda x: x / x,
    "x // x": lambda x: x // x,
    "x % x": lambda x: x % x,
    "x * x / x": lambda x: x * x / x,
    "x >= x": lambda x: x >= x,
    "x <= 1": lambda x: x <= 1.0,
    "0.5 >= x": lambda x: 0.5 >= x,
    "x + 1e8 - 1e8": lambda x: x + 1e8 - 1e8,
    "x * 1e30 * 1e30": lambda x: x * 1e30 * 1e30 * 1e-30,
    "x / 1e30 / 1e30": lambda x: x / 1e30 / 1e30 * 1e30,
    "x / (1 + x)": lambda x: x / (1.0 + x),
    "1 / (x * 1e-20)": lambda x: 1.0 / (x * 1e-20),
}
INTEGERS = {
    "x + 1 < 5": lambda x: x + 1 < 5,
    "x - 1 < 5": lambda x: x - 1 < 5,
    "-x < 5": lambda x: -x < 5,
    "x * x < 200": lambda x: x * x < 200,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    array = np.array(
        [np.nan, np.inf, -np.inf, 0, 1, 1e-8, 3e-39, 1e20, -3e38], "float32"
    )
    expected = FLOATS[name](array)
    actual = ops.convert_to_numpy(FLOATS[name](ops.convert_to_tensor(array)))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name, dtype):
    limits = np.iinfo(dtype)
    array = np.array([limits.min, 0, 3, 20, limits.max], dtype)
    expected = INTEGERS[name](array)
    actual = ops.convert_to_numpy(INTEGERS[name](ops.convert_to_tensor(array)))
    np.testing.assert_array_equal(actual, expected)


def test_sum_of_what_is_scaled():
    array = np.array([3e30, 4e30], "float32")
    x = ops.convert_to_tensor(array)
    largest = ops.max(x)
    norm = largest * ops.sqrt(ops.sum((x / largest) ** 2))
    np.testing.assert_allclose(ops.convert_to_numpy(norm), 5e30, rtol=1e-6)
    total = ops.sum(ops.full((8,), 3e38) * 0.125)
    np.testing.assert_allclose(ops.convert_to_numpy(total), 3e38, rtol=1e-6)
