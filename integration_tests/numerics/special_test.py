"""Error functions against SciPy's."""

import numpy as np
import pytest
import scipy.special

from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src.backend.tinygrad import special

RNG = np.random.default_rng(0)
# Largest relative error.
ACCURACY = {"float32": 1e-6, "float64": 1e-13}


def largest_error(actual, expected):
    regular = np.isfinite(expected) & (expected != 0)
    quotient = actual[regular].astype("float64") / expected[regular]
    return np.abs(quotient - 1).max()


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_error_functions(name, dtype):
    tail = 9 if dtype == "float32" else 26
    small = RNG.uniform(-1, 1, 20_000) * 10.0 ** RNG.uniform(-10, 0, 20_000)
    x = np.concatenate(
        [RNG.uniform(-6, 6, 20_000), small, np.linspace(0, tail, 5000)]
    ).astype(dtype)
    y = ops.convert_to_numpy(getattr(ops, name)(x))
    assert y.dtype == dtype
    expected = getattr(scipy.special, name)(x.astype("float64"))
    assert largest_error(y, expected) < ACCURACY[dtype]


@pytest.mark.parametrize("dtype", ACCURACY)
def test_erfinv(dtype):
    digits = 7 if dtype == "float32" else 15
    x = np.concatenate(
        [
            RNG.uniform(-1, 1, 20_000),
            1 - 10.0 ** RNG.uniform(-digits, 0, 20_000),
            RNG.uniform(-1, 1, 20_000) * 10.0 ** RNG.uniform(-10, 0, 20_000),
        ]
    ).astype(dtype)
    y = ops.convert_to_numpy(ops.erfinv(x))
    expected = scipy.special.erfinv(x.astype("float64"))
    assert largest_error(y, expected) < ACCURACY[dtype]


@pytest.mark.parametrize("dtype, bits", [("float32", 32), ("float64", 64)])
def test_erfinv_from_tail(dtype, bits):
    tail = (2.0 ** RNG.uniform(-bits, 0, 20_000)).astype(dtype)
    y = special.erfinv_from_tail(ops.convert_to_tensor(tail))
    expected = scipy.special.erfcinv(tail.astype("float64"))
    large = expected > 1e-3
    y = ops.convert_to_numpy(y)[large]
    assert largest_error(y, expected[large]) < ACCURACY[dtype]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_edges(dtype):
    x = np.array([0, np.inf, -np.inf, np.nan], dtype)
    erf, erfc = [ops.convert_to_numpy(f(x)) for f in (ops.erf, ops.erfc)]
    np.testing.assert_array_equal(erf, [0, 1, -1, np.nan])
    np.testing.assert_array_equal(erfc, [1, 0, 2, np.nan])
    x = np.array([0, 1, -1, 1.5, -2, np.nan], dtype)
    y = ops.convert_to_numpy(ops.erfinv(x))
    expected = [0, np.inf, -np.inf, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(y, expected)
    assert erf.dtype == erfc.dtype == y.dtype == dtype


def test_integers_become_floats():
    y = ops.erf(np.array([1, 2], "int32"))
    assert y.dtype.name == "float"
    np.testing.assert_allclose(
        ops.convert_to_numpy(y), scipy.special.erf([1, 2]), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv"])
def test_gradients(name):
    x = RNG.uniform(-0.95, 0.95, (3, 5)) * (1 if name == "erfinv" else 4)
    check_gradient(getattr(special, name), x)
