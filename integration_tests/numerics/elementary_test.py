"""Elementary functions: accuracy, edges of domains, remainders, gradients."""

import math
from fractions import Fraction

import numpy as np
import pytest

from keras import ops
from keras.src.backend.tinygrad.engine.gradient import gradients

RNG = np.random.default_rng(0)
# Largest relative error, for results that are not tiny.
ACCURACY = {"float32": 1e-6, "float64": 1e-12}
SPECIAL = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, np.inf, -np.inf, np.nan]


def spread(low, high, count=4000):
    """Numbers of both signs and of magnitudes from 10**low to 10**high."""
    return RNG.choice([-1, 1], count) * 10.0 ** RNG.uniform(low, high, count)


def run(name, *args):
    with np.errstate(all="ignore"):
        return ops.convert_to_numpy(getattr(ops, name)(*args))


def largest_error(actual, expected):
    """Relative error; absolute where the expected value is near zero."""
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))
    finite = np.isfinite(expected)
    actual = actual[finite].astype("longdouble")
    expected = expected[finite].astype("longdouble")
    tiny = np.abs(expected) < 1e-30
    error = np.abs(actual - expected) / np.where(tiny, 1, np.abs(expected))
    return error.max(initial=0)


DOMAINS = {
    "exp": spread(-8, 1.9),
    "exp2": spread(-8, 2),
    "expm1": spread(-8, 1.9),
    "log": np.abs(spread(-20, 20)),
    "log2": np.abs(spread(-20, 20)),
    "log10": np.abs(spread(-20, 20)),
    "log1p": np.concatenate([np.abs(spread(-8, 20)), spread(-8, 0)]),
    "sin": spread(-8, 6),
    "cos": spread(-8, 6),
    "tan": spread(-8, 6),
    "arcsin": spread(-8, 0),
    "arccos": spread(-8, 0),
    "arctan": spread(-8, 20),
    "sinh": spread(-8, 1.9),
    "cosh": spread(-8, 1.9),
    "tanh": spread(-8, 1.9),
    "arcsinh": spread(-8, 20),
    "arccosh": 1 + np.abs(spread(-6, 20)),
    "arctanh": spread(-8, 0),
    "cbrt": spread(-20, 20),
    "sqrt": np.abs(spread(-20, 20)),
}


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("name", DOMAINS)
def test_accuracy(name, dtype):
    x = np.concatenate([DOMAINS[name], SPECIAL, [89.0, -104.0]]).astype(dtype)
    y = run(name, x)
    assert y.dtype == dtype
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype("longdouble")).astype(dtype)
    assert largest_error(y, expected) < ACCURACY[dtype]


@pytest.mark.parametrize("dtype", ACCURACY)
def test_modified_bessel_function(dtype):
    x = np.concatenate([spread(-8, 1.9), [0, 8, -8]]).astype(dtype)
    expected = np.i0(x.astype("float64")).astype(dtype)
    assert largest_error(run("i0", x), expected) < ACCURACY[dtype]


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize(
    "name", ["arctan2", "hypot", "logaddexp", "logaddexp2"]
)
def test_accuracy_of_two_arguments(name, dtype):
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    a = np.concatenate([a.ravel(), np.abs(spread(-3, 2))]).astype(dtype)
    b = np.concatenate([b.ravel(), np.abs(spread(-3, 1))]).astype(dtype)
    y = run(name, a, b)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a.astype("longdouble"), b).astype(dtype)
    assert largest_error(y, expected) < ACCURACY[dtype]
    if name == "arctan2":
        zero = expected == 0
        np.testing.assert_array_equal(
            np.signbit(y[zero]), np.signbit(expected[zero])
        )


@pytest.mark.parametrize("dtype", ACCURACY)
def test_power(dtype):
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    a = np.concatenate([a.ravel(), np.abs(spread(-2, 2))]).astype(dtype)
    b = np.concatenate([b.ravel(), spread(-3, 0.5)]).astype(dtype)
    y = run("power", a, b)
    with np.errstate(all="ignore"):
        expected = np.power(a.astype("longdouble"), b).astype(dtype)
    assert largest_error(y, expected) < 4 * ACCURACY[dtype]


@pytest.mark.parametrize("base", [0.999, 2, 10.0, 1e5])
def test_powers_of_a_number_are_exact_to_the_last_place(base):
    x = RNG.uniform(-5, 5, 4000).astype("float32")
    y = run("power", base, x)
    expected = np.power(np.longdouble(base), x).astype("float32")
    assert largest_error(y, expected) < 2e-7


def _half_pi(bits):
    """Half of pi to so many bits, by Machin's formula."""

    def inverse_tangent(n):
        terms, k = 0, 0
        while (1 << bits + 20) // n ** (2 * k + 1):
            terms += (-1) ** k * (
                (1 << bits + 20) // ((2 * k + 1) * n ** (2 * k + 1))
            )
            k += 1
        return terms

    return Fraction(
        4 * inverse_tangent(5) - inverse_tangent(239), 1 << bits + 19
    )


@pytest.mark.parametrize(
    "dtype, low, high",
    [
        ("float32", 5, 38),
        ("float32", 6.9, 7.4),
        ("float64", 5, 308),
        ("float64", 15, 17),
    ],
)
def test_large_arguments_of_sine_and_cosine(dtype, low, high):
    half_pi = _half_pi(1300)
    # Numbers next to multiples of pi / 2 too.
    x = np.concatenate([spread(low, high, 300), np.arange(300) * (np.pi / 2)])
    x = x.astype(dtype)
    x = x[np.isfinite(x)]
    turns = [round(Fraction(float(v)) / half_pi) for v in x]
    rest = [float(Fraction(float(v)) - n * half_pi) for v, n in zip(x, turns)]
    sine, cosine = np.sin(rest), np.cos(rest)
    quarters = np.array([n % 4 for n in turns])
    for shift, name in enumerate(("sin", "cos")):
        quarter = (quarters + shift) % 4
        size = np.where(quarter % 2, cosine, sine)
        expected = np.where(quarter >= 2, -size, size)
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(run(name, x), expected, rtol=3 * eps)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floor_division_is_exact(dtype):
    a = (RNG.normal(size=4000) * 10 ** RNG.uniform(-2, 3, 4000)).astype(dtype)
    b = (RNG.normal(size=4000) * 10 ** RNG.uniform(-2, 1, 4000)).astype(dtype)
    # Multiples, and numbers one place away from them.
    a[:1000] = b[:1000] * RNG.integers(-9, 10, 1000)
    a[:500] = np.nextafter(a[:500], a.dtype.type(0))
    keep = (b != 0) & (np.abs(a) < 2000 * np.abs(b))
    a, b = a[keep], b[keep]
    pairs = [(Fraction(float(p)), Fraction(float(q))) for p, q in zip(a, b)]
    quotients = np.array([float(p // q) for p, q in pairs], dtype)
    np.testing.assert_array_equal(run("floor_divide", a, b), quotients)
    np.testing.assert_array_equal(run("mod", a, b), np.mod(a, b))
    np.testing.assert_array_equal(run("fmod", a, b), np.fmod(a, b))


def test_division_of_special_floats():
    a, b = [v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL)]
    a, b = a.astype("float32"), b.astype("float32")
    for name in ("floor_divide", "mod", "fmod", "divide"):
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(a, b)
        np.testing.assert_array_equal(run(name, a, b), expected, name)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_integer_division(dtype):
    info = np.iinfo(dtype)
    numbers = [0, 1, 2, 7, 100, info.min, info.max]
    numbers += [-1, -2, -7] if info.min else []
    a, b = [v.ravel() for v in np.meshgrid(*[np.array(numbers, dtype)] * 2)]
    for name in ("floor_divide", "mod", "fmod"):
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(a, b)
        np.testing.assert_array_equal(run(name, a, b), expected, name)


def test_rounding_goes_to_even():
    x = np.concatenate([np.arange(-4, 4, 0.5), [0.49999997, 8388609, 2.0**30]])
    x = x.astype("float32")
    np.testing.assert_array_equal(run("round", x), np.round(x))
    whole = np.arange(-260, 260, 5)
    expected = [10 * round(Fraction(int(v), 10)) for v in whole]
    np.testing.assert_array_equal(run("round", whole, -1), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nextafter(dtype):
    a, b = [v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL)]
    a, b = a.astype(dtype), b.astype(dtype)
    np.testing.assert_array_equal(run("nextafter", a, b), np.nextafter(a, b))


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extrema_of_nan(name):
    a, b = [v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL)]
    a, b = a.astype("float32"), b.astype("float32")
    np.testing.assert_array_equal(run(name, a, b), getattr(np, name)(a, b))


def test_comparisons_with_nan_are_false():
    a, b = [v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL)]
    for name in ("less", "less_equal", "greater", "greater_equal", "equal"):
        np.testing.assert_array_equal(run(name, a, b), getattr(np, name)(a, b))


def test_comparisons_hold_all_values():
    small = np.array([0, 200], "uint8")
    assert run("greater", small, -1).all()
    assert run("less", small, 300).all()
    large = np.array([2**32 - 1], "uint32")
    assert run("greater", large, np.array([-1], "int32")).all()


def test_shifts_past_the_width():
    x = np.array([-5, 5], "int32")
    np.testing.assert_array_equal(run("left_shift", x, 40), [0, 0])
    np.testing.assert_array_equal(run("right_shift", x, 40), [-1, 0])


def derivative(fn, *xs):
    tensors = [ops.convert_to_tensor(np.array(x, "float32")) for x in xs]
    result = ops.sum(fn(*tensors))
    return [ops.convert_to_numpy(g) for g in gradients(result, tensors)]


def test_derivatives_at_edges():
    zero = [0.0]
    assert derivative(ops.absolute, zero)[0] == 0
    assert derivative(ops.sqrt, zero)[0] == math.inf
    assert derivative(ops.sinc, zero)[0] == 0
    np.testing.assert_array_equal(
        derivative(ops.arctan2, zero, zero), [[0]] * 2
    )
    np.testing.assert_array_equal(derivative(ops.std, [2.0, 2.0])[0], [0, 0])
    np.testing.assert_array_equal(
        derivative(ops.max, [1.0, 3.0, 3.0])[0], [0, 0.5, 0.5]
    )
    np.testing.assert_array_equal(
        derivative(ops.maximum, [1.0, 2.0], [1.0, 3.0]), [[0.5, 0], [0.5, 1]]
    )
    np.testing.assert_array_equal(
        derivative(lambda x: ops.clip(x, -1.0, 1.0), [-1.0, 0.0, 1.0, 2.0])[0],
        [1, 1, 1, 0],
    )
    base, exponent = derivative(ops.power, [0.0, 0.0, 2.0], [2.0, 0.0, 3.0])
    np.testing.assert_allclose(base, [0, 0, 12])
    np.testing.assert_allclose(exponent, [0, 0, 8 * math.log(2)], rtol=1e-6)


def test_derivatives_of_derivatives():
    x = ops.convert_to_tensor(np.array([0.3, -0.7]))
    for fn, second in (
        (ops.sin, lambda v: -np.sin(v)),
        (ops.exp, np.exp),
        (ops.tanh, lambda v: -2 * np.tanh(v) / np.cosh(v) ** 2),
    ):
        (first,) = gradients(ops.sum(fn(x)), [x])
        (result,) = gradients(ops.sum(first), [x])
        np.testing.assert_allclose(
            ops.convert_to_numpy(result), second(np.array([0.3, -0.7]))
        )


@pytest.mark.parametrize(
    "name", ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"]
)
def test_integers_beside_tensors_count_as_int32(name):
    x = np.array([60000, 7], "uint16")
    expected = getattr(np, name)(x.astype("int32"), 131071)
    y = run(name, x, 131071)
    assert y.dtype == "int32"
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "var", "std"])
def test_no_constant_hides_a_single_nan(name):
    x = np.array([[1.0], [np.nan], [-np.inf]], "float32")
    expected = [name == "softmax", np.nan, np.nan]
    np.testing.assert_array_equal(run(name, x, -1).ravel(), expected)
