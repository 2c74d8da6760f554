"""Row gathers and scatters against NumPy, gradients against differences."""

import numpy as np
import pytest

from keras.src.backend.tinygrad.engine.indexing import REDUCTIONS
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.engine.indexing import scatter_rows
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

RNG = np.random.default_rng(0)
DEVICES = ["CPU", "PYTHON"]
DTYPES = ["int8", "int32", "int64", "float32", "float64"]


def normal(*shape):
    return RNG.normal(size=shape)


def scattered(x, index, updates, reduction):
    out = x.copy()
    if reduction == "update":
        for i, update in zip(index, updates):
            out[i] = update
        return out
    combine = {
        "add": np.add,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }[reduction]
    combine.at(out, index, updates)
    return out


def numeric_gradient(loss, x):
    step = 1e-6
    gradient = np.zeros_like(x)
    for position in np.ndindex(x.shape):
        high, low = x.copy(), x.copy()
        high[position] += step
        low[position] -= step
        gradient[position] = (loss(high) - loss(low)) / (2 * step)
    return gradient


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "shape, index_shape",
    [((6,), (4,)), ((6, 3), (2, 4)), ((5, 2, 3), ()), ((5, 2, 3), (3, 1))],
)
def test_gather(shape, index_shape, device):
    x = normal(*shape)
    index = RNG.integers(0, shape[0], index_shape).astype("int32")
    t = from_numpy(x, device)
    out = gather_rows(t, from_numpy(np.asarray(index), device))
    cotangent = normal(*index_shape, *shape[1:])
    g = (out * from_numpy(np.asarray(cotangent), device)).sum().gradient(t)[0]
    want = np.zeros_like(x)
    np.add.at(want, index, cotangent)
    assert out.device == device
    np.testing.assert_array_equal(to_numpy(out), x[index])
    np.testing.assert_allclose(to_numpy(g), want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("index_dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float16", *DTYPES])
def test_gather_dtypes(dtype, index_dtype):
    x = (normal(5, 3) * 4).astype(dtype)
    index = np.array([4, 0, 4, 2], index_dtype)
    out = gather_rows(from_numpy(x, "CPU"), from_numpy(index, "CPU"))
    got = to_numpy(out)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x[index])


def test_gather_of_computed_values():
    x, index = normal(4, 3), np.array([2, 2, 0], "int32")
    t, i = from_numpy(x, "CPU"), from_numpy(index, "CPU")
    out = gather_rows((t * 2).transpose(), i * 0 + 1).transpose()
    g = out.sum().gradient(t)[0]
    np.testing.assert_allclose(to_numpy(out), (x * 2).T[[1, 1, 1]].T)
    np.testing.assert_allclose(to_numpy(g)[:, 1], 6.0)


def test_out_of_range_stays_inside():
    x = from_numpy(np.arange(4.0), "CPU")
    index = from_numpy(np.array([-5, 9, 1], "int64"), "CPU")
    np.testing.assert_array_equal(
        to_numpy(gather_rows(x, index)), [0.0, 3.0, 1.0]
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 2)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter(reduction, shape, device):
    x, index = normal(*shape), np.array([3, 0, 3, 1, 3], "int32")
    updates = normal(5, *shape[1:])
    arguments = [from_numpy(a, device) for a in (x, index, updates)]
    out = scatter_rows(*arguments, reduction)
    want = scattered(x, index, updates, reduction)
    cotangent = normal(*shape)
    loss = (out * from_numpy(cotangent, device)).sum()
    to_x, to_updates = loss.gradient(arguments[0], arguments[2])
    assert out.device == device
    np.testing.assert_allclose(to_numpy(out), want, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        to_numpy(to_x),
        numeric_gradient(
            lambda v: np.sum(
                scattered(v, index, updates, reduction) * cotangent
            ),
            x,
        ),
        rtol=1e-6,
        atol=1e-8,
    )
    np.testing.assert_allclose(
        to_numpy(to_updates),
        numeric_gradient(
            lambda v: np.sum(scattered(x, index, v, reduction) * cotangent),
            updates,
        ),
        rtol=1e-6,
        atol=1e-8,
    )


@pytest.mark.parametrize("dtype", ["float16", *DTYPES])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_dtypes(reduction, dtype):
    x, updates = (normal(5, 3) * 3).astype(dtype), normal(4, 3) * 3
    updates, index = updates.astype(dtype), np.array([1, 1, 4, 1], "int64")
    out = scatter_rows(
        *[from_numpy(a, "CPU") for a in (x, index, updates)], reduction
    )
    got = to_numpy(out)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, scattered(x, index, updates, reduction))


def test_scatter_leaves_its_target_alone():
    x = normal(3, 2)
    t = from_numpy(x, "CPU")
    index = from_numpy(np.array([0], "int32"), "CPU")
    out = scatter_rows(t, index, from_numpy(normal(1, 2), "CPU"), "update")
    to_numpy(out)
    np.testing.assert_array_equal(to_numpy(t), x)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_nan_stays(reduction):
    x = np.array([1.0, np.nan, 2.0])
    index = np.array([0, 0, 1], "int32")
    updates = np.array([np.nan, 5.0, 5.0])
    out = scatter_rows(
        *[from_numpy(a, "CPU") for a in (x, index, updates)], reduction
    )
    np.testing.assert_array_equal(
        to_numpy(out), scattered(x, index, updates, reduction)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_ties_share_the_gradient(device):
    x = from_numpy(np.array([2.0, 0.0]), device)
    index = from_numpy(np.array([0, 0, 1], "int32"), device)
    updates = from_numpy(np.array([2.0, 2.0, 3.0]), device)
    out = scatter_rows(x, index, updates, "max")
    to_x, to_updates = out.sum().gradient(x, updates)
    np.testing.assert_allclose(to_numpy(to_x), [1 / 3, 0.0])
    np.testing.assert_allclose(to_numpy(to_updates), [1 / 3, 1 / 3, 1.0])


@pytest.mark.parametrize(
    "factors", [[0.0, 3.0, 4.0], [0.0, 0.0, 4.0], [2.0, 3.0, 4.0]]
)
@pytest.mark.parametrize("device", DEVICES)
def test_gradient_of_products_with_zeros(factors, device):
    x = from_numpy(np.array([factors[0], 5.0]), device)
    index = from_numpy(np.array([0, 0], "int32"), device)
    updates = from_numpy(np.array(factors[1:]), device)
    out = scatter_rows(x, index, updates, "mul")
    to_x, to_updates = out.sum().gradient(x, updates)
    a, b, c = factors
    np.testing.assert_allclose(to_numpy(to_x), [b * c, 1.0])
    np.testing.assert_allclose(to_numpy(to_updates), [a * c, a * b])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_empty_scatters(reduction):
    x = from_numpy(normal(3, 2), "CPU")
    index = from_numpy(np.zeros(0, "int32"), "CPU")
    updates = from_numpy(np.zeros((0, 2)), "CPU")
    out = scatter_rows(x, index, updates, reduction)
    np.testing.assert_array_equal(to_numpy(out), to_numpy(x))
    assert gather_rows(x, index).shape == (0, 2)


def test_one_program_for_all_shapes():
    names = set()
    for rows, width, count in ((3, 2, 4), (7, 1, 2), (5, 6, 3)):
        x = from_numpy(normal(rows, width), "CPU")
        index = from_numpy(np.zeros(count, "int32"), "CPU")
        linear = gather_rows(x, index).schedule_linear()
        names |= {call.src[0].key for call in linear.src}
    assert len(names) == 1


@pytest.mark.parametrize(
    "x, index, updates, reduction, error, message",
    [
        (0.0, [0], [1.0], "add", ValueError, "scalar"),
        ([0.0], [0.5], [1.0], "add", TypeError, "integer"),
        ([0.0], [[0]], [[1.0]], "add", ValueError, "one dimension"),
        ([0.0], [0, 0], [1.0], "add", ValueError, "updates of shape"),
        ([0.0], [0], [1], "add", TypeError, "dtype"),
        ([0.0], [0], [1.0], "mean", ValueError, "mean"),
    ],
)
def test_errors(x, index, updates, reduction, error, message):
    tensors = [from_numpy(np.asarray(a), "CPU") for a in (x, index, updates)]
    with pytest.raises(error, match=message):
        scatter_rows(*tensors, reduction)
