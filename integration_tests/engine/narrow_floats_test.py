"""float16 and float8: each operation rounds, whether fused or not."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import keras
from keras import ops
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

FLOAT8 = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("float8_e4m3fn", "float8_e5m2")
}
RNG = np.random.default_rng(0)


def tensor(array):
    return ops.convert_to_tensor(array, dtype=array.dtype.name)


def numbers(dtype):
    """Returns all numbers of a float8 dtype, in an order by chance."""
    return RNG.permutation(np.arange(256).astype("uint8")).view(dtype)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("wide", ["float16", "bfloat16", "float32", "float64"])
def test_every_stored_float8_is_read(dtype, wide):
    x = numbers(FLOAT8[dtype])
    found = to_numpy(ops.cast(tensor(x), wide)).astype("float64")
    np.testing.assert_array_equal(found, x.astype("float64"))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float16_is_rounded_when_it_is_stored(dtype):
    x = np.arange(1 << 16, dtype="uint16").view("float16")
    with np.errstate(all="ignore"):
        expected = x.astype(FLOAT8[dtype])
    found = to_numpy(ops.cast(tensor(x), dtype))
    assert found.dtype == FLOAT8[dtype]
    np.testing.assert_array_equal(
        found.astype("float32"), expected.astype("float32")
    )
    assert np.array_equal(np.signbit(found), np.signbit(expected)) or np.all(
        np.isnan(found[np.signbit(found) != np.signbit(expected)])
    )


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("value", [0.3, 500.0, -1e9, 2.0**-9, np.inf, np.nan])
def test_constants_are_rounded_to_float8(dtype, value):
    with np.errstate(all="ignore"):
        expected = np.full(3, value, FLOAT8[dtype])
    for found in (
        ops.full((3,), value, dtype),
        ops.cast(ops.full((3,), value, "float32"), dtype),
        ops.cast(value, dtype) + ops.zeros((3,), dtype),
    ):
        np.testing.assert_array_equal(
            to_numpy(found).astype("float32"), expected.astype("float32")
        )


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("op", [np.add, np.subtract, np.multiply, np.divide])
def test_arithmetic_in_float8_rounds_each_result(dtype, op):
    pairs = list(itertools.product(numbers(FLOAT8[dtype]), repeat=2))
    x, y = np.array(pairs, FLOAT8[dtype]).T
    with np.errstate(all="ignore"):
        expected = op(op(x, y), y).astype("float32")
    method = f"__{op.__name__}__".replace("divide", "truediv")
    method = method.replace("subtract", "sub").replace("multiply", "mul")
    a, b = tensor(x), tensor(y)
    fused = getattr(getattr(a, method)(b), method)(b)
    found = to_numpy(fused).astype("float32")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv"])
def test_arithmetic_in_float16_rounds_each_result(op, device):
    x, y, z = RNG.normal(size=(3, 512)).astype("float16")
    x[:4] = 60000, -60000, 6e-8, 1
    method = f"__{op}__"
    with np.errstate(over="ignore"):
        expected = getattr(x, method)(y) * z + x - y
    a, b, c = (from_numpy(v, device) for v in (x, y, z))
    found = to_numpy(getattr(a, method)(b) * c + a - b)
    assert found.dtype == "float16"
    np.testing.assert_array_equal(found, expected)


def test_float16_overflows_within_a_kernel():
    x = tensor(np.array([60000, 200], "float16"))
    np.testing.assert_array_equal(to_numpy(x * 2 / 2), [np.inf, 200])


@pytest.mark.parametrize("name", ["exp2", "exp", "log", "sin", "sqrt", "tanh"])
def test_float16_functions_are_rounded_once(name):
    x = np.abs(RNG.normal(size=4096)).astype("float16")
    expected = getattr(np, name)(x.astype("float64"))
    found = to_numpy(getattr(ops, name)(tensor(x))).astype("float64")
    unit = np.spacing(np.abs(expected).astype("float16")).astype("float64")
    assert np.abs((found - expected) / unit).max() < 0.51


def test_a_compiled_float16_step_rounds_as_an_eager_one():
    x = RNG.normal(size=(64, 8)).astype("float32")
    y = RNG.integers(0, 3, 64)
    weights = []
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.layers.Dense(16, "relu", dtype="mixed_float16"),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        model.compile(
            "sgd", "sparse_categorical_crossentropy", run_eagerly=run_eagerly
        )
        model.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for compiled, eager in zip(*weights):
        np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-6)
