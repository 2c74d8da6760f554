"""Arranged loops compute what plain ones do."""

import re

import numpy as np
import pytest
from tinygrad import Device
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.internals import do_to_program
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

RNG = np.random.default_rng(0)

SHAPES = [
    ((1,), 0),
    ((2,), 0),
    ((100,), 0),
    ((97,), 0),
    ((1000, 3), 0),
    ((3, 1000), 0),
    ((3, 1000), 1),
    ((1000, 3), 1),
    ((33, 65), 0),
    ((33, 65), 1),
    ((64, 64), (0, 1)),
    ((17, 5, 19), 1),
    ((17, 5, 19), (0, 2)),
    ((17, 5, 19), (0, 1)),
    ((17, 5, 19), (1, 2)),
    ((5, 4099), 0),
    ((5, 6000), 0),
    ((4099, 5), 0),
    ((2, 3, 4, 5, 6), (1, 3)),
    ((9, 8, 7, 6), (0, 1, 2)),
    ((70000,), 0),
    ((40, 3, 70), (0, 2)),
]


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def close(got, want, tolerance=1e-5):
    scale = max(np.abs(want).max(), 1e-6)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
def test_reductions(shape, axis):
    x = normal(*shape)
    t, wide = from_numpy(x, "CPU"), x.astype("float64")
    # Terms of both signs cancel, but not what rounding them has cost.
    norm = np.sqrt((wide**2).sum(axis))
    np.testing.assert_allclose(
        to_numpy(t.sum(axis)) / norm, wide.sum(axis) / norm, rtol=0, atol=1e-5
    )
    np.testing.assert_array_equal(to_numpy(t.max(axis)), x.max(axis))
    np.testing.assert_array_equal(to_numpy((-t).max(axis)), (-x).max(axis))
    close(to_numpy((t.exp() - 1).sum(axis)), (np.exp(wide) - 1).sum(axis))
    counts = to_numpy((t > 0).sum(axis))
    np.testing.assert_array_equal(counts, (x > 0).sum(axis))


@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
def test_products(shape, axis):
    x = 1 + normal(*shape, dtype="float64") / 100
    close(to_numpy(from_numpy(x, "CPU").prod(axis)), x.prod(axis), 1e-12)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "int64", "float16", "float64", "bool"]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_dtypes(dtype, axis):
    x = (normal(70, 90) * 3).astype(dtype)
    t = from_numpy(x, "CPU")
    np.testing.assert_array_equal(to_numpy(t.max(axis)), x.max(axis))
    if dtype == "float16":
        close(
            to_numpy(t.sum(axis)).astype("float64"),
            x.astype("float64").sum(axis),
            2e-3,
        )
    elif dtype == "float64":
        close(to_numpy(t.sum(axis)), x.sum(axis), 1e-13)
    else:
        got = to_numpy(t.sum(axis, dtype=dtypes.int64))
        np.testing.assert_array_equal(got, x.astype("int64").sum(axis))


def test_several_reductions_in_one_kernel():
    x = normal(60, 80)
    t = from_numpy(x, "CPU")
    for axis in (0, 1):
        got = to_numpy(t.sum(axis) / (t * t).sum(axis) + t.max(axis))
        wide = x.astype("float64")
        want = wide.sum(axis) / (wide**2).sum(axis) + wide.max(axis)
        close(got, want)


def test_what_follows_a_reduction():
    x, b = normal(60, 80), normal(80)
    t, bias = from_numpy(x, "CPU"), from_numpy(b, "CPU")
    close(
        to_numpy((t.mean(0) - bias).tanh()),
        np.tanh(x.astype("float64").mean(0) - b),
    )
    close(
        to_numpy((t.softmax(1) * bias).sum(1)),
        (np.exp(x) / np.exp(x).sum(1, keepdims=True) * b).sum(1),
    )


def test_masked_reductions():
    x = normal(50, 70)
    padded = np.pad(x, ((3, 2), (5, 4)))
    t = from_numpy(x, "CPU").pad(((3, 2), (5, 4)))
    for axis in (0, 1):
        close(to_numpy((t + 1).sum(axis)), (padded + 1.0).sum(axis))
        np.testing.assert_array_equal(
            to_numpy((t + 1).max(axis)), (padded + 1).max(axis)
        )


def test_overlapping_windows():
    x = normal(300)
    t = from_numpy(x, "CPU")
    pooled = t.reshape(1, 1, 300)._pool((40,), (7,)).sum(-1)
    want = [x[i : i + 40].astype("float64").sum() for i in range(0, 261, 7)]
    close(to_numpy(pooled)[0, 0], np.array(want))


@pytest.mark.parametrize(
    "shape", [(6, 14), (3, 14), (5, 16), (4, 10), (2, 3, 56), (9,)], ids=str
)
def test_windows_of_two_side_by_side(shape):
    x = normal(*shape, 2)
    t = from_numpy(x, "CPU")
    np.testing.assert_array_equal(to_numpy(t.max(-1)), x.max(-1))
    close(to_numpy(t.sum(-1) * 2 + (t * t).sum(-1)), (x * 2 + x * x).sum(-1))
    # Two windows above each other, as in pooling.
    x = normal(*shape[:-1], 2, shape[-1], 2)
    got = from_numpy(x, "CPU").max((-3, -1))
    np.testing.assert_array_equal(to_numpy(got), x.max((-3, -1)))


def test_small_products_without_blas():
    a, b = normal(30, 40), normal(40, 50)
    for function in (
        lambda a, b: a @ b,
        lambda a, b: a.T @ a,
        lambda a, b: b.T @ a.T,
        lambda a, b: a @ b[:, 0],
    ):
        got = function(from_numpy(a, "CPU"), from_numpy(b, "CPU"))
        close(to_numpy(got), function(a, b))


@pytest.mark.parametrize(
    "shape, order",
    [
        ((64, 48), (1, 0)),
        ((63, 50), (1, 0)),
        ((7, 11), (1, 0)),
        ((8, 16, 24), (2, 1, 0)),
        ((8, 16, 24), (0, 2, 1)),
        ((8, 16, 24), (1, 0, 2)),
        ((3, 10, 12, 14), (0, 3, 1, 2)),
        ((3, 14, 10, 12), (0, 2, 3, 1)),
        ((2, 16, 4, 32), (0, 2, 3, 1)),
        ((2, 4, 5, 8), (0, 2, 3, 1)),
        ((4, 48), (1, 0)),
    ],
    ids=str,
)
def test_transpositions(shape, order):
    x = normal(*shape)
    t = from_numpy(x, "CPU").permute(order)
    np.testing.assert_array_equal(to_numpy(t.contiguous()), x.transpose(order))
    other = normal(*x.transpose(order).shape)
    got = to_numpy((t + from_numpy(other, "CPU")) * 2)
    np.testing.assert_array_equal(got, (x.transpose(order) + other) * 2)


def test_sums_are_more_exact_than_in_order():
    x = np.full(2**20, 0.1, "float32")
    want = x.astype("float64").sum()
    assert abs(np.cumsum(x)[-1] - want) > 100
    close(to_numpy(from_numpy(x, "CPU").sum()), want)


def source(tensor):
    kernel = tensor.schedule_linear().src[-1].src[0]
    return do_to_program(kernel, Device["CPU"].renderer).src[2].arg


def test_sums_along_memory_are_vectorized():
    x = from_numpy(normal(50, 64), "CPU")
    assert "vectorize(enable)" in source(x.sum(1))
    assert "vectorize(enable)" not in source(x.sum(0))


def test_columns_have_their_own_accumulators():
    x = from_numpy(normal(64, 50), "CPU")
    assert re.search(r"buf\d+\[50\]", source(x.sum(0)))
