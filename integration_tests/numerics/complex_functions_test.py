"""Loops, indexing, random numbers and gradients of complex tensors."""

import numpy as np
import pytest

import keras
from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src import backend
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.core import remat
from keras.src.backend.tinygrad.engine.gradient import gradients

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


X, UPDATES = draw(4, 3), draw(2, 2)
REAL = RNG.normal(size=(4, 3))
ROWS = np.array([[2], [0], [2]])


def tensor(array):
    return ops.convert_to_tensor(array)


def assert_close(actual, expected):
    actual = ops.convert_to_numpy(actual)
    assert actual.dtype.kind == np.asarray(expected).dtype.kind
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def static(start):
    return start


def known_late(start):
    return tensor(np.array(start))


@pytest.mark.parametrize("starts", [static, known_late])
def test_slices(starts):
    assert_close(ops.slice(X, starts((1, 0)), (2, 2)), X[1:3, :2])
    expected = X.copy()
    expected[2:, 1:] = UPDATES
    assert_close(ops.slice_update(X, starts((2, 1)), UPDATES), expected)
    expected[2:, 1:] = UPDATES.real
    actual = ops.slice_update(X, starts((2, 1)), UPDATES.real)
    assert_close(actual, expected)


def test_scatter():
    expected = np.zeros((5, 3), complex)
    np.add.at(expected, ROWS[:, 0], X[:3])
    assert_close(ops.scatter(ROWS, X[:3], (5, 3)), expected)
    expected = X.copy()
    np.add.at(expected, ROWS[:, 0], REAL[:3])
    actual = ops.scatter_update(X, ROWS, REAL[:3], reduction="add")
    assert_close(actual, expected)
    expected[[1, 3]] = X[:2]
    actual = ops.scatter_update(actual, [[1], [3]], X[:2])
    assert_close(actual, expected)


def test_shuffle_moves_both_parts():
    x = np.arange(60.0).reshape(5, 4, 3) * (1 - 2j)
    for axis in range(3):
        shuffled = keras.random.shuffle(x, axis, seed=3)
        assert_close(ops.imag(shuffled), -2 * np.asarray(ops.real(shuffled)))
        real = keras.random.shuffle(x.real, axis, seed=3)
        assert_close(ops.real(shuffled), np.asarray(real))
        assert not np.array_equal(shuffled, x)


def test_dropout_drops_both_parts():
    x = draw(20, 30)
    dropped = np.asarray(keras.random.dropout(x, 0.5, seed=3))
    kept = dropped != 0
    assert 0.4 < kept.mean() < 0.6
    np.testing.assert_allclose(dropped[kept], 2 * x[kept])
    real = np.asarray(keras.random.dropout(x.real, 0.5, seed=3))
    np.testing.assert_array_equal(dropped.real, real)
    assert_close(keras.random.dropout(x, 1.0), np.zeros_like(x))


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: keras.random.normal((2,), dtype="complex64"), "normal"),
        (lambda: keras.random.uniform((2,), maxval=1j), "uniform"),
        (lambda: keras.random.categorical(X, 2), "categorical"),
        (lambda: keras.random.gamma((4, 3), X), "gamma"),
        *[
            (
                lambda reduction=reduction: ops.scatter_update(
                    X, ROWS, X[:3], reduction
                ),
                f"scatter_update` with reduction='{reduction}'",
            )
            for reduction in ("mul", "max", "min")
        ],
    ],
)
def test_functions_without_a_rule_say_so(call, name):
    with pytest.raises(NotImplementedError, match=f"`{name}.*complex.*Receiv"):
        call()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [False, True])
def test_scan(reverse, unroll):
    def step(carry, x):
        z, r = carry
        new = z * x["z"] + r * 1j
        return (new, r + x["r"]), {"z": z, "none": None, "r": ops.real(new)}

    start, xs = (X[0], REAL[0]), {"z": X, "r": REAL}
    (z, r), ys = ops.scan(step, start, xs, reverse=reverse, unroll=unroll)
    expected_z, expected_r = start
    zs, reals = [], []
    for i in range(4)[:: -1 if reverse else 1]:
        zs.append(expected_z)
        expected_z = expected_z * X[i] + expected_r * 1j
        reals.append(expected_z.real)
        expected_r = expected_r + REAL[i]
    if reverse:
        zs.reverse()
        reals.reverse()
    assert_close(z, expected_z)
    assert_close(r, expected_r)
    assert_close(ys["z"], zs)
    assert_close(ys["r"], reals)
    assert ys["none"] is None


def test_scan_is_traced_once():
    calls = []

    def step(carry, x):
        calls.append(1)
        return carry * 0.5j + x, ops.abs(carry)

    _, ys = ops.scan(step, tensor(X[0]), np.stack([X[0]] * 100))
    assert len(calls) == 1
    assert ys.shape == (100, 3)


def test_scan_of_no_steps():
    z, ys = ops.scan(lambda c, x: (c + x, (c * x, ops.abs(x))), X[0], X[:0])
    assert_close(z, X[0])
    assert_close(ys[0], X[:0])
    assert_close(ys[1], REAL[:0])


def test_real_carry_becomes_complex():
    # One that trades places with a complex one, too.
    def step(carry, x):
        a, b, n = carry
        return (b, a, n + x), n

    start = (REAL[0], X[0], np.zeros(3))
    (a, b, n), ys = ops.scan(step, start, X[:3])
    assert_close(a, X[0])
    assert_close(b, REAL[0].astype(complex))
    assert_close(n, X[:3].sum(0))
    assert_close(ys, [np.zeros(3, complex), X[0], X[0] + X[1]])
    result = ops.fori_loop(0, 3, lambda i, z: z * 2j, np.float32(1))
    assert backend.standardize_dtype(result.dtype) == "complex64"
    assert_close(result, np.complex64(-8j))


def test_map():
    assert_close(ops.map(lambda z: z * z, X), X * X)
    assert_close(ops.map(lambda r: ops.exp(1j * r), REAL), np.exp(1j * REAL))
    pair = ops.vectorized_map(lambda z: (ops.abs(z), ops.conj(z)), X)
    assert_close(pair[0], np.abs(X))
    assert_close(pair[1], X.conj())
    times = ops.vectorize(lambda a, b: a * b)
    assert_close(times(X, REAL), X * REAL)


def test_fori_loop():
    result = ops.fori_loop(0, 5, lambda i, z: z * 1j + i, X)
    expected = X
    for i in range(5):
        expected = expected * 1j + i
    assert_close(result, expected)


def test_while_loop():
    def far(z, n):
        return ops.abs(z) < 10

    z, n = ops.while_loop(far, lambda z, n: (z * (1 + 1j), n + 1), (1j, 0))
    assert int(n) == 7
    assert_close(z, np.complex64(1j * (1 + 1j) ** 7))
    z = ops.while_loop(lambda z: True, lambda z: z + 1j, 0.0, 3)
    assert_close(z, np.complex64(3j))


@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(reverse):
    def combine(a, b):
        return {"z": a["z"] * b["z"], "r": a["r"] + b["r"]}

    elems = {"z": X, "r": REAL}
    found = ops.associative_scan(combine, elems, reverse, axis=0)
    turn = slice(None, None, -1 if reverse else 1)
    assert_close(found["z"], np.cumprod(X[turn], 0)[turn])
    assert_close(found["r"], np.cumsum(REAL[turn], 0)[turn])
    with pytest.raises(TypeError, match="`associative_scan`.*complex"):
        ops.associative_scan(lambda a, b: a * b * 1j, REAL)


def test_branches():
    def run(index):
        with StatelessScope():
            return (
                ops.switch(index, [lambda z: z, ops.real, ops.abs], tensor(X)),
                ops.cond(index > 0, lambda: tensor(X), lambda: tensor(REAL)),
            )

    assert_close(run(0)[0], X)
    assert_close(run(1)[0], X.real.astype(complex))
    assert_close(run(2)[0], np.abs(X).astype(complex))
    assert_close(run(tensor(1))[1], X)
    assert_close(run(tensor(0))[1], REAL.astype(complex))


def test_variables_are_carried():
    total = keras.Variable(np.zeros(3), dtype="complex128")
    count = keras.Variable(0, dtype="int32")

    def step(x):
        total.assign(total + x)
        count.assign(count + 1)
        return total.value

    assert_close(ops.map(step, X), np.cumsum(X, 0))
    assert_close(total, X.sum(0))
    assert int(count) == 4


@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("unroll", [False, True])
def test_rnn(go_backwards, zeros, unroll):
    x = draw(2, 4, 3)
    mask = np.array([[1, 1, 0, 1], [0, 1, 0, 0]], bool)

    def step(x, states):
        z = states[0] * 1j + x
        return z * 2, [z]

    last, outputs, (state,) = backend.rnn(
        step,
        tensor(x),
        [tensor(x[:, 0])],
        mask=mask,
        go_backwards=go_backwards,
        zero_output_for_mask=zeros,
        unroll=unroll,
    )
    z, output, expected = x[:, 0], np.zeros_like(x[:, 0]), []
    for t in range(4)[:: -1 if go_backwards else 1]:
        keep = mask[:, t, None]
        z = np.where(keep, z * 1j + x[:, t], z)
        output = np.where(keep, z * 2, 0 if zeros else output)
        expected.append(output)
    assert_close(outputs, np.stack(expected, 1))
    assert_close(last, output)
    assert_close(state, z)


def square_of_size(z):
    return ops.sum(ops.real(z) ** 2 + ops.imag(z) ** 2)


def scanned(z, length=4):
    def step(carry, x):
        carry = carry * x + ops.conj(x)
        return carry, carry * 1j

    last, ys = ops.scan(step, ops.sum(z, 0), z)
    return square_of_size(last) + square_of_size(ys)


def repeated(z):
    return square_of_size(
        ops.while_loop(
            lambda z, n: n < 3, lambda z, n: (z * z + 1j, n + 1), (z, 0)
        )[0]
    )


FUNCTIONS = {
    "scan": scanned,
    "while_loop": repeated,
    "fori_loop": lambda z: square_of_size(
        ops.fori_loop(0, 3, lambda i, c: c * z + i, z)
    ),
    "map": lambda z: square_of_size(ops.map(lambda x: x * ops.exp(x), z)),
    "associative_scan": lambda z: square_of_size(
        ops.associative_scan(lambda a, b: a * b, z)
    ),
    "remat": lambda z: square_of_size(remat(lambda x: x * ops.exp(x))(z)),
    "remat of a scan": lambda z: remat(scanned)(z),
    "slice": lambda z: square_of_size(
        ops.slice(z, known_late((1, 1)), (2, 2)) ** 2
    ),
    "slice_update": lambda z: square_of_size(
        ops.slice_update(z, (1, 1), z[:2, :2] * z[1:3, 1:]) ** 2
    ),
    "scatter": lambda z: square_of_size(ops.scatter(ROWS, z[:3], (5, 3)) ** 2),
    "scatter_update": lambda z: square_of_size(
        ops.scatter_update(z, [[3], [1]], z[:2] * z[1:3]) ** 2
    ),
    "shuffle": lambda z: square_of_size(keras.random.shuffle(z, seed=3) * X),
    "dropout": lambda z: square_of_size(keras.random.dropout(z, 0.5, seed=3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    fn = FUNCTIONS[name]
    check_gradient(lambda a, b: fn(ComplexTensor(a, b)), X.real, X.imag)


def test_custom_gradient():
    seen = []

    @ops.custom_gradient
    def half_declared(z, r, n):
        def grad(*args, upstream):
            seen.append([a.dtype for a in args[:2]])
            by_z, by_r = upstream
            # Of z * r, and a made-up multiple for the other result.
            return ops.conj(args[1]) * by_z + 5 * by_r, 3 * by_r, None

        return (z * r, r * 2), grad

    def loss(a, b, r):
        z, r = half_declared(ComplexTensor(a, b), r, 1)
        return ops.sum(ops.real(z * (2 - 3j))) + ops.sum(r)

    parts = tensor(X.real), tensor(X.imag), tensor(REAL)
    a, b, r = gradients(loss(*parts), list(parts))
    assert seen[0][0] == "complex128"
    # The loss is 2 * real(z) + 3 * imag(z), and more for the real result.
    assert_close(a, 2 * REAL + 5)
    assert_close(b, 3 * REAL)
    assert_close(r, np.full((4, 3), 3.0))


class Recurrent(keras.layers.Layer):
    def build(self, shape):
        self.turn = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.last = self.add_weight(
            shape=(shape[-1],), dtype="complex64", trainable=False
        )

    def call(self, x):
        turn = ops.exp(1j * ops.cast(self.turn, "complex64"))

        def step(z, x):
            z = z * turn + x
            self.last.assign(z[0])
            return z, ops.abs(z)

        x = ops.cast(ops.swapaxes(x, 0, 1), "complex64")
        _, ys = ops.scan(step, ops.zeros_like(x[0]), x)
        return ops.swapaxes(ys, 0, 1)


def test_a_compiled_model_has_complex_loops():
    inputs = keras.Input((6, 3))
    layer = Recurrent()
    hidden = layer(inputs)
    assert hidden.shape == (None, 6, 3) and hidden.dtype == "float32"
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    x = RNG.normal(size=(8, 6, 3)).astype("float32")
    model.fit(x, x[..., :1], epochs=2, batch_size=8, verbose=0)
    turn = np.exp(1j * np.asarray(layer.turn))
    assert np.abs(np.asarray(layer.turn) - 1).min() > 1e-4
    model.predict(x, verbose=0)
    z = np.zeros((8, 3))
    for t in range(6):
        z = z * turn + x[:, t]
    np.testing.assert_allclose(
        keras.Model(inputs, hidden)(x)[:, -1], np.abs(z), rtol=1e-5
    )
    np.testing.assert_allclose(np.asarray(layer.last), z[0], rtol=1e-5)
