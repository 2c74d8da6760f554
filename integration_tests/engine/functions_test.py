"""Functions that are traced once: reuse, fusion, declared derivatives."""

import numpy as np
from tinygrad import GlobalCounters
from tinygrad import Tensor

from integration_tests.processes import run_python
from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.engine.gradient import gradients

X = np.array([1.0, -2.0, 3.0], "float32")


def make(traces):
    @traced_once(lambda a, b, y: [b, 10 * a])
    def product(a, b):
        traces.append(a.shape)
        return a * b

    return product


def test_a_signature_is_traced_once():
    traces = []
    product = make(traces)
    for scale in (1, 2, 3):
        a, b = Tensor(X * scale), Tensor(X)
        np.testing.assert_array_equal(product(a, b).numpy(), X * X * scale)
    assert traces == [(3,)]
    a = Tensor(np.ones((2, 3), "float32"))
    product(a, a)
    assert traces == [(3,), (2, 3)]


def test_declared_derivatives_are_used():
    product = make([])
    a, b = Tensor(X).realize(), Tensor(X + 1).realize()
    # The second is not the true one, so that it is seen to be used.
    by_a, by_b = gradients((product(a, b) * 2).sum(), [a, b])
    np.testing.assert_array_equal(by_a.numpy(), 2 * (X + 1))
    np.testing.assert_array_equal(by_b.numpy(), 20 * X)


def test_calls_fuse_with_what_surrounds_them():
    product = make([])
    a = Tensor(X).realize()
    y = (product(product(a + 1, a) + 1, a) + 1).sum()
    before = GlobalCounters.kernel_count
    y.realize()
    assert GlobalCounters.kernel_count - before <= 1
    np.testing.assert_allclose(y.numpy(), (((X + 1) * X + 1) * X + 1).sum())


def test_constants_and_dtypes():
    product = make([])
    two = Tensor(2.0, dtype="float64")
    assert product(two, two).numpy() == 4
    x = Tensor(X.astype("float64")).realize()
    y = product(x, Tensor(3.0, dtype="float64").expand(3))
    np.testing.assert_array_equal(y.numpy(), X * 3.0)


def test_numbers_have_the_declared_derivatives():
    product = make([])
    a, b = Tensor(2.0, dtype="float32"), Tensor(3.0, dtype="float32")
    assert product(a, b).device is None
    by_a, by_b = gradients(product(a, b) * 2.0, [a, b])
    assert (by_a.item(), by_b.item()) == (6.0, 40.0)


def make_scaled(traces):
    @traced_once()
    def scaled(x, *, by):
        traces.append(by)
        return x * by, (x * x).sum(0)

    return scaled


def test_derivatives_are_derived():
    a = Tensor(X).realize()
    scaled, total = make_scaled([])(a, by=3.0)
    for loss, expected in (
        (scaled.sum(), [3, 3, 3]),
        (total, 2 * X),
        (scaled.sum() * total, 3 * X @ X + 3 * X.sum() * 2 * X),
    ):
        (grad,) = gradients(loss, [a])
        np.testing.assert_allclose(grad.numpy(), expected, rtol=1e-6)


def test_settings_are_part_of_the_signature():
    traces = []
    scaled = make_scaled(traces)
    a = Tensor(X.astype("int32"))
    for by in (2, 2.0, 2, 3):
        result = scaled(a, by=by)[0]
        np.testing.assert_array_equal(result.numpy(), X * by)
        assert result.is_floating_point() == isinstance(by, float)
    assert traces == [2, 2.0, 3]


def test_a_call_sees_the_argument_that_depends_on_another():
    product = traced_once()(lambda a, b: a * b)
    a = Tensor(X).realize()
    b = a * 2
    by_a, by_b = gradients(product(a, b).sum(), [a, b])
    np.testing.assert_array_equal(by_a.numpy(), 4 * X)
    np.testing.assert_array_equal(by_b.numpy(), X)


DIGEST = """
from keras import ops
from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.gradient import gradients

{before}
x = ops.convert_to_tensor([[1.0, 2.0], [3.0, 4.0]])
y = ops.softmax(ops.gelu(ops.exp(x)))
roots = [y.uop, gradients((y * y).sum(), [x])[0].uop]
print(canonicalize(roots).digest(roots).hex())
"""


def test_a_graph_has_one_name_in_all_processes():
    # Plans are found on disk by it. What comes before moves addresses.
    names = {
        run_python(DIGEST.format(before=before)).stdout
        for before in ("", "kept = [lambda: i for i in range(10000)]")
    }
    assert len(names) == 1 and len(names.pop().strip()) == 64
