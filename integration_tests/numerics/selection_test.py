"""Top-k, segment reductions, `logsumexp` and distances."""

import numpy as np
import pytest

from integration_tests.numerics.differences import check_gradient
from integration_tests.numerics.differences import leaf
from keras import ops
from keras.src.backend.tinygrad.engine.gradient import gradients

RNG = np.random.default_rng(0)


def array(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize("size, k", [(5, 2), (5, 5), (5, 0), (700, 4)])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"]
)
def test_top_k_takes_the_first_of_equals(dtype, size, k):
    for values in (3, 60_000):
        x = RNG.integers(0, values, (3, 2, size)).astype(dtype)
        if x.dtype.kind == "f":
            x[0, 0, 1::40] = np.nan
            x[0, 1] = -np.inf
        expected = (size - 1) - np.argsort(x[..., ::-1], kind="stable")
        expected = expected[..., ::-1][..., :k]
        found, index = map(array, ops.top_k(x, k))
        np.testing.assert_array_equal(index, expected)
        assert index.dtype == "int32" and found.dtype == x.dtype
        np.testing.assert_array_equal(
            found, np.take_along_axis(x, expected, axis=-1)
        )


@pytest.mark.parametrize("size", [400, 50_000])
def test_top_k_of_a_long_vector(size):
    for x in (RNG.normal(size=size), RNG.integers(0, 9, size) * 1.0):
        found, index = map(array, ops.top_k(x.astype("float32"), 5))
        expected = np.argsort(-x, kind="stable")[:5]
        np.testing.assert_array_equal(index, expected)
        np.testing.assert_array_equal(found, x[expected].astype("float32"))


def test_top_k_gradient():
    check_gradient(lambda x: ops.top_k(x, 3)[0], RNG.normal(size=(4, 6)))


@pytest.mark.parametrize("k", [-1, 4])
def test_top_k_of_too_many(k):
    with pytest.raises(ValueError, match="`top_k` expects"):
        ops.top_k(np.ones((2, 3)), k)


def test_in_top_k_of_what_is_no_class():
    predictions = [[0.1, np.nan, 0.5], [0.3, 0.2, 0.5], [0.3, 0.2, 0.5]]
    for targets, expected in (
        ([1, 0, 3], [False, True, False]),
        ([2, 1, -1], [True, False, False]),
    ):
        found = array(ops.in_top_k(np.array(targets), predictions, 2))
        np.testing.assert_array_equal(found, expected)


def test_classes_and_segments_beyond_a_narrow_dtype():
    predictions = np.arange(600.0).reshape(2, 300)
    for dtype in ("int8", "uint8"):
        targets = ops.convert_to_tensor(np.array([99, 100], dtype))
        found = array(ops.in_top_k(targets, predictions, 200))
        np.testing.assert_array_equal(found, [False, True])
    ids = ops.convert_to_tensor(np.array([0, -1, 3], "int8"))
    sums = array(ops.segment_sum(np.ones(3), ids, 200))
    assert sums.shape == (200,) and np.nonzero(sums)[0].tolist() == [0, 3]


REDUCTIONS = {
    "segment_sum": (np.sum, 0),
    "segment_max": (np.max, -np.inf),
    "segment_min": (np.min, np.inf),
    "segment_prod": (np.prod, 1),
}


@pytest.mark.parametrize("name", ["segment_sum", "segment_max"])
def test_segments(name):
    reduce, empty = REDUCTIONS[name]
    data = RNG.normal(size=(7, 2))
    ids = np.array([0, 2, 1, -1, 2, 7, 1])
    op = getattr(ops, name)
    expected = np.full((5, 2), empty, dtype="float64")
    for i in range(3):
        expected[i] = reduce(data[ids == i], axis=0)
    np.testing.assert_allclose(array(op(data, ids, 5)), expected)
    assert op(data, ids % 4).shape == (4, 2)
    check_gradient(lambda x: op(x, ops.convert_to_tensor(ids), 3), data)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_segment_gradients(name):
    from keras.src.backend import math

    ids = ops.convert_to_tensor(np.array([0, 2, 1, 2, 0]))
    op = getattr(math, name)
    check_gradient(lambda x: op(x, ids, 3), RNG.normal(size=(5, 2)))


def test_segments_of_integers():
    ids = np.array([0, 0])
    found = array(ops.segment_max(np.array([1, 2], "int32"), ids, 2))
    np.testing.assert_array_equal(found, [2, np.iinfo("int32").min])


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(axis, keepdims):
    x = RNG.normal(size=(2, 3, 4)) * 50
    expected = np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))
    found = array(ops.logsumexp(x, axis, keepdims))
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected)
    check_gradient(lambda t: ops.logsumexp(t, axis, keepdims), x)


def test_logsumexp_of_infinities():
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [1e30, 1e30], [-np.inf, 2]])
    found = array(ops.logsumexp(x, axis=1))
    np.testing.assert_allclose(found, [-np.inf, np.inf, 1e30, 2])
    finite = leaf(x[3:])
    gradient = gradients(ops.logsumexp(finite, axis=1).sum(), [finite])[0]
    np.testing.assert_array_equal(array(gradient), [[0, 1]])


def test_cdist():
    x, y = RNG.normal(size=(2, 1, 4, 3)), RNG.normal(size=(5, 6, 3))
    found = array(ops.cdist(x, y))
    difference = x[..., :, None, :] - y[..., None, :, :]
    np.testing.assert_allclose(found, np.linalg.norm(difference, axis=-1))
    check_gradient(ops.cdist, x[0, 0], y[0])
