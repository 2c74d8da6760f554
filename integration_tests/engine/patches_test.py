"""What the patches to tinygrad's classes are for."""

import math

import numpy as np
import pytest
from tinygrad import Tensor

import keras


def test_operands_that_do_not_broadcast_are_named():
    x, y = keras.ops.ones((40, 3, 2)), keras.ops.ones((40, 1))
    for combine in (lambda: x - y, lambda: x * y, lambda: x**y):
        with pytest.raises(ValueError, match=r"\(40, 3, 2\) and \(40, 1\)"):
            combine()
    with pytest.raises(ValueError, match=r"\(40, 3, 2\) and \(7, 2, 2\)"):
        x @ keras.ops.ones((7, 2, 2))


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "bfloat16", "uint8", "float8_e4m3fn"]
)
def test_a_dtype_prints_the_name_that_keras_gives_it(dtype):
    assert str(keras.ops.zeros((2,), dtype).dtype) == f"dtypes.{dtype}"


def test_a_scalar_tensor_is_formatted_as_its_number():
    scalar = keras.ops.convert_to_tensor(0.12345, dtype="float32")
    assert f"{scalar:.3f} {scalar * 2:8.1e}" == "0.123  2.5e-01"
    assert f"{scalar}" == str(scalar)
    with pytest.raises(TypeError, match=r"shape=\(3,\), format '.2f'"):
        f"{keras.ops.zeros(3):.2f}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_a_choice_of_what_is_not_finite_is_cast(value, dtype):
    x = np.array([1.5, 2.5, -3], "float32")
    chosen = keras.ops.where(keras.ops.convert_to_tensor(x) > 2, value, x)
    expected = np.where(x > 2, np.float32(value), x)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        expected = np.nan_to_num(np.clip(expected, limits.min, limits.max))
    # Beyond 32 bits it is NumPy's answer on the same processor.
    with np.errstate(invalid="ignore"):
        expected = expected.astype(dtype)
    got = np.asarray(keras.ops.cast(chosen, dtype))
    np.testing.assert_array_equal(got, expected)


def test_a_number_divided_by_a_reduction_is_divided_once():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 256, (64, 25)).astype("float32")
    tensor = keras.ops.convert_to_tensor(x)
    top = keras.ops.max(tensor, axis=1, keepdims=True)
    got = np.asarray(tensor * (255.0 / top))
    expected = x * (np.float32(255) / x.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(got, expected)


def test_numbers_over_numbers_are_folded_as_numpy_divides_them():
    zero = keras.ops.zeros((3,))
    with np.errstate(divide="ignore", invalid="ignore"):
        for number in (2.0, -2.0, 0.0):
            got = np.asarray(number / zero)
            np.testing.assert_array_equal(got, number / np.zeros(3, "float32"))


def test_large_graphs_print_on_one_line():
    first = second = keras.ops.ones((3,))
    for i in range(40):
        first, second = first * second + i, second * first - i
    texts = {repr(first.uop), repr(second.uop)}
    assert len(texts) == 2
    assert max(map(len, texts)) < 200


def test_a_constant_nan_differs_from_itself():
    x = Tensor([1.0, math.nan, math.inf]).realize()
    chosen = x.ne(x).where(math.nan, x)
    assert chosen.ne(chosen).tolist() == [False, True, False]
    assert chosen.eq(chosen).tolist() == [True, False, True]
