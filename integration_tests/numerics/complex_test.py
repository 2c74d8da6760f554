"""Complex tensors against NumPy's arrays."""

import numpy as np
import pytest

import keras
from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.engine.gradient import gradients

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


X, Y, M = draw(3, 4), draw(3, 4), draw(4, 5)
REAL = RNG.normal(size=(3, 4))

# Calls that mean the same with `keras.ops` and with NumPy.
CALLS = {
    **{
        name: (lambda o, name=name: getattr(o, name)(X))
        for name in (
            "abs absolute angle any conj conjugate copy cos cosh "
            "count_nonzero cumsum diagonal diff exp expm1 flip imag isfinite "
            "isinf isnan isreal log log10 log1p log2 mean nan_to_num negative "
            "nonzero ones_like prod ravel real reciprocal round sign sin sinh "
            "sqrt square std sum tan tanh trace transpose tril triu var "
            "zeros_like"
        ).split()
    },
    **{
        f"{name} {kind}": (
            lambda o, name=name, pair=pair: getattr(o, name)(*pair)
        )
        for name in (
            "add subtract multiply divide equal not_equal power logical_and "
            "isclose allclose"
        ).split()
        for kind, pair in {
            "complex": (X, Y),
            "with real": (X, REAL),
            "to real": (REAL, Y),
            "with number": (X, 2.5),
            "with row": (X, Y[0]),
        }.items()
    },
    "arange": lambda o: o.arange(4, dtype="complex64"),
    "array": lambda o: o.array([1 + 2j, 3.0]),
    "broadcast_to": lambda o: o.broadcast_to(X[:1], (3, 4)),
    "concatenate": lambda o: o.concatenate([X, REAL], axis=0),
    "cross": lambda o: o.cross(X[:, :3], Y[:, :3]),
    "dot": lambda o: o.dot(X, M),
    "einsum": lambda o: o.einsum("ij,ij,jk->ik", X, Y, M),
    "expand_dims": lambda o: o.expand_dims(X, 1),
    "eye": lambda o: o.eye(3, dtype="complex64"),
    "full": lambda o: o.full((2,), 3.0, dtype="complex64"),
    "full of complex": lambda o: o.full((2,), 3.0 + 1j),
    "full_like": lambda o: o.full_like(X, 2.0),
    "inner": lambda o: o.inner(X, Y),
    "kron": lambda o: o.kron(X, Y),
    "linspace": lambda o: o.linspace(0j, 1 + 1j, 5),
    "matmul": lambda o: o.matmul(X, M),
    "matmul of real": lambda o: o.matmul(REAL, M),
    "moveaxis": lambda o: o.moveaxis(X, 0, 1),
    "ones": lambda o: o.ones((2,), "complex64"),
    "outer": lambda o: o.outer(X[0], Y[0]),
    "pad": lambda o: o.pad(X, ((1, 0), (0, 2))),
    "power of integer": lambda o: o.power(X, 3),
    "prod of axis": lambda o: o.prod(X, axis=1),
    "repeat": lambda o: o.repeat(X, 2, axis=1),
    "reshape": lambda o: o.reshape(X, (4, 3)),
    "roll": lambda o: o.roll(X, 1, axis=0),
    "stack": lambda o: o.stack([X, Y], axis=1),
    "sum of axis": lambda o: o.sum(X, axis=1, keepdims=True),
    "swapaxes": lambda o: o.swapaxes(X, 0, 1),
    "take": lambda o: o.take(X, [0, 2], axis=1),
    "tensordot": lambda o: o.tensordot(X, M, axes=1),
    "tile": lambda o: o.tile(X, (2, 1)),
    "vdot": lambda o: o.vdot(X, Y),
    "where": lambda o: o.where(REAL > 0, X, REAL),
    "where of number": lambda o: o.where(REAL > 0, X, 0.0),
    "zeros": lambda o: o.zeros((2,), dtype="complex64"),
}


GAPS = np.where(RNG.uniform(size=(3, 4)) < 0.3, complex(np.nan, 2), X)
GAPS[0, 0] = complex(1, np.nan)
CALLS["nansum"] = lambda o: o.nansum(GAPS, axis=1)
CALLS["nanmean"] = lambda o: o.nanmean(GAPS, axis=0, keepdims=True)


@pytest.mark.parametrize("name", CALLS)
def test_values(name):
    actual = ops.convert_to_numpy(CALLS[name](ops))
    expected = np.asarray(CALLS[name](np))
    assert actual.shape == expected.shape
    assert actual.dtype.kind == expected.dtype.kind or name == "nonzero"
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_operators():
    x, y, real = map(ops.convert_to_tensor, (X, Y, REAL))
    pairs = [
        (x + y, X + Y),
        (real - x, REAL - X),
        (x * real, X * REAL),
        (2.0 / x, 2.0 / X),
        (X * y, X * Y),
        (1j * real, 1j * REAL),
        (real + (1 - 2j), REAL + (1 - 2j)),
        (x**2, X**2),
        (2.0**x, 2.0**X),
        (x @ M, X @ M),
        (REAL @ ops.convert_to_tensor(M), REAL @ M),
        (-x, -X),
        (abs(x), abs(X)),
        (x == y, X == Y),
        (x != x, X != X),
        (x[1:, None, ..., -1], X[1:, None, ..., -1]),
        (x.T, X.T),
    ]
    for actual, expected in pairs:
        actual = ops.convert_to_numpy(actual)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_dtypes():
    single = X.astype("complex64")
    assert ops.convert_to_tensor(single).dtype == "complex64"
    assert ops.convert_to_tensor(X).dtype == "complex128"
    assert ops.convert_to_tensor(1j).dtype == "complex64"
    assert ops.convert_to_tensor([1j, 2.0]).dtype == "complex64"
    assert ops.add(single, 1.5).dtype == "complex64"
    assert ops.add(single, 1.5j).dtype == "complex64"
    assert ops.add(single, REAL).dtype == "complex128"
    assert ops.add(single, REAL.astype("float32")).dtype == "complex64"
    assert ops.cast(REAL, "complex64").dtype == "complex64"
    dropped = ops.convert_to_numpy(ops.cast(X, "float32"))
    np.testing.assert_allclose(dropped, X.real, rtol=1e-6)


def test_branch_cuts_and_zeros():
    x = np.array([0, -1, 1, 1j, -1j, -4, 3 + 4j, 1e-30j, 1e30])
    for name in ("sqrt", "abs", "angle", "sign"):
        actual = ops.convert_to_numpy(getattr(ops, name)(x))
        np.testing.assert_allclose(actual, getattr(np, name)(x), rtol=1e-12)
    powers = ops.convert_to_numpy(ops.power(np.zeros(3, complex), [0j, 1, 2]))
    np.testing.assert_array_equal(powers, [1, 0, 0])


def test_division_does_not_overflow():
    x = np.array([1e30 + 1e30j], "complex64")
    y = ops.convert_to_numpy(ops.divide(x, x))
    np.testing.assert_allclose(y, [1], rtol=1e-6)


def test_split_gives_a_list():
    parts = ops.split(X, 2, axis=1)
    for actual, expected in zip(parts, np.split(X, 2, axis=1), strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(actual), expected)


@pytest.mark.parametrize("ord, axis", [(None, None), (1, 1), ("fro", (0, 1))])
def test_norm(ord, axis):
    actual = ops.convert_to_numpy(ops.norm(X, ord=ord, axis=axis))
    np.testing.assert_allclose(actual, np.linalg.norm(X, ord, axis))


def test_views():
    pairs = np.stack([REAL, REAL * 2], axis=-1).astype("float32")
    view = ops.view_as_complex(pairs)
    assert view.dtype == "complex64"
    np.testing.assert_array_equal(
        ops.convert_to_numpy(ops.view_as_real(view)), pairs
    )


def test_polar():
    z = ops.convert_to_numpy(ops.polar(np.abs(REAL), REAL))
    np.testing.assert_allclose(z, np.abs(REAL) * np.exp(1j * REAL))


def test_variables():
    v = keras.Variable(np.ones(2), dtype="complex64")
    assert v.dtype == "complex64"
    v.assign([1j, 2])
    np.testing.assert_array_equal(ops.convert_to_numpy(v * 2), [2j, 4])


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: ops.sort(X), "sort"),
        (lambda: ops.max(X), "max"),
        (lambda: ops.floor(X), "floor"),
        (lambda: ops.relu(X), "relu"),
        (lambda: ops.svd(X), "svd"),
        (lambda: ops.logsumexp(X), "logsumexp"),
        (lambda: ops.norm(X, ord=2, axis=(0, 1)), "norm"),
    ],
)
def test_operations_without_a_rule_say_so(call, name):
    with pytest.raises(NotImplementedError, match=f"`{name}`.*complex"):
        call()


@pytest.mark.parametrize(
    "fn",
    [
        lambda z: ops.abs(ops.matmul(z, M)),
        lambda z: ops.angle(ops.exp(z)),
        lambda z: ops.real(ops.divide(1.0, ops.sqrt(z))),
        lambda z: ops.imag(ops.prod(ops.log(z), axis=0)),
    ],
)
def test_gradients_flow_through_the_parts(fn):
    check_gradient(lambda a, b: fn(ComplexTensor(a, b)), X.real, X.imag)


def test_gradient_of_view_as_complex():
    x = ops.convert_to_tensor(np.float32([[1, 2], [3, 4], [5, 6]]))
    z = ops.view_as_complex(x)
    loss = (ops.real(z) * 3 - ops.imag(z) ** 2).sum()
    (gradient,) = gradients(loss, [x])
    np.testing.assert_array_equal(
        ops.convert_to_numpy(gradient), [[3, -4], [3, -8], [3, -12]]
    )


class _Power(keras.layers.Layer):
    def call(self, x):
        return ops.real(x * ops.conj(x))


def test_a_model_takes_complex_numbers():
    inputs = keras.Input((3,), dtype="complex64")
    power = _Power(autocast=False)(inputs)
    assert power.dtype == "float32"
    model = keras.Model(inputs, keras.layers.Dense(1)(power))
    model.compile("sgd", "mse")
    x = (RNG.normal(size=(8, 3)) + 1j * RNG.normal(size=(8, 3))) * 0.5
    x = x.astype("complex64")
    y = np.abs(x).sum(1, keepdims=True) ** 2
    losses = model.fit(x, y, epochs=20, batch_size=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    w, b = model.get_weights()
    np.testing.assert_allclose(
        model.predict(x, verbose=0), np.abs(x) ** 2 @ w + b, rtol=1e-4
    )
