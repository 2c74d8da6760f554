"""Products against NumPy's, their gradients against tinygrad's own."""

import numpy as np
import pytest
from tinygrad import Tensor

from keras.src.backend.tinygrad.engine import blas
from keras.src.backend.tinygrad.engine import gemm
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy
from keras.src.backend.tinygrad.engine.views import StridedView
from keras.src.backend.tinygrad.engine.views import contiguous_strides

RNG = np.random.default_rng(0)

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 6)),
    ((7, 2, 3, 4), (1, 2, 4, 5)),
    ((2, 1, 3, 1, 3, 4), (1, 2, 1, 3, 4, 5)),
    ((2, 1, 2, 1, 2, 1, 3, 4), (1, 2, 1, 3, 1, 2, 4, 5)),
    ((3, 1), (1, 4)),
    ((1, 4), (4, 1)),
    ((1, 4), (4, 3)),
    ((3, 4), (4, 1)),
    ((1, 1), (1, 1)),
    ((2, 5, 1), (2, 1, 3)),
    ((2, 1, 5), (2, 5, 1)),
]


def normal(*shape, dtype="float64"):
    return RNG.normal(size=shape).astype(dtype)


def check(function, *arrays):
    """Compares values with NumPy, gradients with tinygrad's own product."""
    tensors = [from_numpy(a, "CPU") for a in arrays]
    want = function(np.matmul, *arrays)
    out = function(matmul, *tensors)
    assert out.shape == want.shape
    cotangent = from_numpy(normal(*want.shape), "CPU")
    got = (out * cotangent).sum().gradient(*tensors)
    reference = function(lambda a, b: a.matmul(b), *tensors)
    expected = (reference * cotangent).sum().gradient(*tensors)
    np.testing.assert_allclose(to_numpy(out), want, rtol=1e-12, atol=1e-12)
    for g, e, a in zip(got, expected, arrays):
        assert g.shape == a.shape
        np.testing.assert_allclose(
            to_numpy(g), to_numpy(e), rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("left, right", SHAPES, ids=str)
def test_shapes(left, right):
    check(lambda mm, a, b: mm(a, b), normal(*left), normal(*right))


@pytest.mark.parametrize("left, right", SHAPES, ids=str)
def test_shapes_without_blas(left, right, monkeypatch):
    monkeypatch.setattr(gemm.blas, "find", lambda: None)
    check(lambda mm, a, b: mm(a, b), normal(*left), normal(*right))


VIEWS = {
    "left transposed": (lambda mm, a, b: mm(a.T, b), (4, 3), (4, 5)),
    "right transposed": (lambda mm, a, b: mm(a, b.T), (3, 4), (5, 4)),
    "both transposed": (lambda mm, a, b: mm(a.T, b.T), (4, 3), (5, 4)),
    "sliced": (lambda mm, a, b: mm(a[1:3], b[:, 2:6]), (4, 3), (3, 8)),
    "batch first": (
        lambda mm, a, b: mm(a.reshape(2, 3, 4), b),
        (6, 4),
        (4, 5),
    ),
    "computed": (lambda mm, a, b: mm((a * 2).T, b + 1), (4, 3), (4, 5)),
    "row of a column": (
        lambda mm, a, b: mm(a.reshape(1, 6), b.reshape(6, 1)),
        (6,),
        (6,),
    ),
}


@pytest.mark.parametrize("case", VIEWS)
def test_views(case):
    function, *shapes = VIEWS[case]
    check(function, *[normal(*s) for s in shapes])


def permute(x, *order):
    return x.permute(order) if isinstance(x, Tensor) else x.transpose(order)


def test_attention_like_views():
    def scores(mm, q, k):
        return mm(permute(q, 0, 2, 1, 3), permute(k, 0, 2, 3, 1))

    def values(mm, p, v):
        return permute(mm(p, permute(v, 0, 2, 1, 3)), 0, 2, 1, 3)

    check(scores, normal(2, 4, 3, 5), normal(2, 4, 3, 5))
    check(values, normal(2, 3, 4, 4), normal(2, 4, 3, 5))


def test_operand_with_itself():
    check(lambda mm, a: mm(a, a.T), normal(4, 3))
    check(lambda mm, a: mm(mm(a, a), a), normal(4, 4))


def test_product_of_products():
    check(
        lambda mm, a, b, c: mm(mm(a, b), c),
        *(normal(2, 3, 4), normal(4, 5), normal(5, 2)),
    )
    check(
        lambda mm, a, b, c: mm(mm(a, b).T, c),
        *(normal(3, 4), normal(4, 5), normal(3, 2)),
    )


def test_intermediate_tensors_have_gradients():
    a, b = from_numpy(normal(4, 3), "CPU"), from_numpy(normal(4, 5), "CPU")
    turned = a.transpose()
    out = matmul(turned, b)
    got = to_numpy(out.sum().gradient(turned)[0])
    want = np.ones((3, 5)) @ to_numpy(b).T
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_second_derivative():
    a, b = normal(3, 4), normal(4, 5)
    x = from_numpy(a, "CPU")
    first = (matmul(x, from_numpy(b, "CPU")) ** 2).sum().gradient(x)[0]
    second = (first**2).sum().gradient(x)[0]
    inner = b @ b.T
    np.testing.assert_allclose(
        to_numpy(second), 8 * a @ inner @ inner, rtol=1e-10
    )


@pytest.mark.parametrize(
    "left, right", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0))]
)
def test_empty(left, right):
    a, b = normal(*left), normal(*right)
    out = matmul(from_numpy(a, "CPU"), from_numpy(b, "CPU"))
    np.testing.assert_array_equal(to_numpy(out), a @ b)


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float16", 2e-3), ("bfloat16", 2e-2), ("float32", 1e-5)],
)
def test_floats(dtype, tolerance):
    a = normal(5, 70).astype(dtype)
    b = normal(70, 6).astype(dtype)
    out = to_numpy(matmul(from_numpy(a, "CPU"), from_numpy(b, "CPU")))
    assert out.dtype == np.dtype(dtype)
    want = a.astype("float64") @ b.astype("float64")
    np.testing.assert_allclose(
        out.astype("float64"), want, rtol=tolerance, atol=tolerance * 10
    )


@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64"]
)
def test_integers_wrap_like_numpy(dtype):
    high = np.iinfo(dtype).max
    a = RNG.integers(0, high, (3, 7), dtype=dtype)
    b = RNG.integers(0, high, (7, 4), dtype=dtype)
    out = to_numpy(matmul(from_numpy(a, "CPU"), from_numpy(b, "CPU")))
    assert out.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("k", [3, 1024, 5000])
def test_int8_accumulates_in_int32(k):
    a = RNG.integers(-128, 128, (3, k), dtype="int8")
    b = RNG.integers(-128, 128, (k, 4), dtype="int8")
    a[0], b[:, 0] = -128, -128
    out = to_numpy(matmul(from_numpy(a, "CPU"), from_numpy(b, "CPU")))
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, a.astype("int32") @ b.astype("int32"))


def test_large_products_on_several_threads():
    a, b = normal(700, 600, dtype="float32"), normal(600, 500, dtype="float32")
    out = to_numpy(matmul(from_numpy(a, "CPU"), from_numpy(b, "CPU")))
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_constant_operands():
    a = Tensor.ones(3, 4)
    b = from_numpy(normal(4, 5, dtype="float32"), "CPU")
    want = np.ones((3, 4), "float32") @ to_numpy(b)
    np.testing.assert_allclose(to_numpy(matmul(a, b)), want, rtol=1e-6)
    out = matmul(a.realize(), Tensor.ones(4, 2))
    np.testing.assert_array_equal(to_numpy(out), np.full((3, 2), 4.0))


def test_another_device():
    a, b = normal(3, 4, dtype="float32"), normal(4, 5, dtype="float32")
    x, y = from_numpy(a, "PYTHON"), from_numpy(b, "PYTHON")
    out = matmul(x, y)
    assert out.device == "PYTHON"
    np.testing.assert_allclose(to_numpy(out), a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: matmul(a.transpose(), b.transpose()),
        lambda a, b: matmul(matmul(a, b).transpose(), a),
        lambda a, b: matmul(
            a.reshape(4, 2, 8).permute(1, 0, 2), b.reshape(2, 8, 4)
        ),
    ],
    ids=["transposed", "transposed product", "permuted batch"],
)
def test_views_are_not_copied(function):
    a, b = from_numpy(normal(8, 8), "CPU"), from_numpy(normal(8, 8), "CPU")
    calls = function(a, b).schedule_linear().src
    assert {call.src[0].arg.name for call in calls} == {"gemm_float64"}


@pytest.mark.parametrize(
    "left, right, message",
    [
        ((), (3,), "at least one dimension"),
        ((3, 4), (5, 6), "second to last"),
        ((2, 3, 4), (3, 4, 5), "broadcast"),
    ],
)
def test_errors(left, right, message):
    a, b = from_numpy(normal(*left), "CPU"), from_numpy(normal(*right), "CPU")
    with pytest.raises(ValueError, match=message):
        matmul(a, b)


def test_strided_views_follow_numpy():
    x = np.arange(120, dtype="int32").reshape(2, 3, 4, 5)
    t = from_numpy(x, "CPU")
    moves = [
        lambda x: x.reshape(6, 20),
        lambda x: permute(x, 1, 0, 2, 3),
        lambda x: permute(x, 2, 0, 1, 3).reshape(4, 6, 5),
        lambda x: permute(x, 0, 2, 1, 3).reshape(8, 3, 1, 5),
        lambda x: permute(x, 3, 2, 1, 0).reshape(60, 2),
    ]
    for move in moves:
        view, array = StridedView.of(move(t)), move(x)
        assert view.shape == array.shape
        storage = to_numpy(view.to_storage(move(t)))
        read = np.lib.stride_tricks.as_strided(
            storage,
            view.shape,
            tuple(s * storage.itemsize for s in view.strides),
        )
        np.testing.assert_array_equal(read, array)
        back = view.from_storage(view.to_storage(move(t)))
        np.testing.assert_array_equal(to_numpy(back), array)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 1, 5)])
def test_contiguous_strides(shape):
    array = np.empty(shape, "int8")
    assert contiguous_strides(shape) == array.strides


def test_blas_is_found_and_described():
    assert blas.find().config in blas.describe()
