"""Array operations: dtypes of 64 bits, errors, indices, products, gradients."""

import ast
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import keras
from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src import backend
from keras.src.backend.common import dtypes
from keras.src.backend.tinygrad.engine.gradient import gradients

RNG = np.random.default_rng(0)
SOURCES = Path(keras.__file__).parent / "src"


def read(x):
    return ops.convert_to_numpy(x)


def public_functions(name):
    tree = ast.parse((SOURCES / "backend" / name / "numpy.py").read_text())
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return {f.name for f in functions if not f.name.startswith("_")}


def test_every_function_of_the_trainable_backends_exists():
    shared = public_functions("torch") & public_functions("jax")
    assert shared <= set(vars(backend.numpy))


def test_every_function_that_keras_calls_exists():
    called = set()
    for path in SOURCES.rglob("*.py"):
        if "backend" not in path.relative_to(SOURCES).parts:
            called |= set(
                re.findall(r"\bbackend\.numpy\.(\w+)\(", path.read_text())
            )
    assert len(called) > 200
    assert called <= set(vars(backend.numpy))


# Dtypes.


def dtype_of(x):
    return backend.standardize_dtype(x.dtype)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_64_bits_are_kept(dtype):
    x = np.array([2**53 - 1, 3], dtype)
    for y in (ops.add(x, 1), ops.sum(x), ops.maximum(x, x), ops.cumsum(x)):
        assert dtype_of(y) == dtype
    assert read(ops.subtract(ops.add(x, 2), x)).tolist() == list(x + 2 - x)
    assert read(ops.sum(x)) == 2**53 + 2


def test_numpy_scalars_are_weak():
    x = np.ones(2, "float32")
    for scalar in (np.float64(2), np.array(2.0), np.int64(2), 2, 2.0):
        assert dtype_of(ops.multiply(x, scalar)) == "float32"
    assert dtype_of(ops.add(np.ones(2, "int8"), 2)) == "int8"
    assert dtype_of(ops.add(np.ones(2, "int8"), 2.0)) == "float32"


def test_tensors_of_integers_and_python_floats():
    x = ops.convert_to_tensor([1, 2])
    for y, want in [
        (x + 1.5, [2.5, 3.5]),
        (2.5 - x, [1.5, 0.5]),
        (x * np.float32(2.5), [2.5, 5.0]),
        (x**0.5, [1.0, 2**0.5]),
        ((x > 1) * 1.5, [0.0, 1.5]),
        # A tensor's own method, which is tinygrad's.
        (x.add(1.5), [2.5, 3.5]),
    ]:
        assert ops.dtype(ops.abs(y)) == "float32"
        np.testing.assert_allclose(read(y), want, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(y), want, rtol=1e-6)
    assert ops.dtype((x > 1) + 1) == "int32"


def test_layers_that_add_a_float_to_integers():
    model = keras.Sequential([keras.layers.Lambda(lambda x: x + 0.5)])
    x = np.arange(6, dtype="int32").reshape(3, 2)
    y = model.predict(x, verbose=0)
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, x + 0.5)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
)
def test_integers_wrap_around_before_what_follows(dtype):
    info = np.iinfo(dtype)
    a = np.array([info.max, info.max - 3, info.min, info.max // 2], dtype)
    b = np.array([1, 5, 3, 3], dtype)
    for name in ("add", "subtract", "multiply", "left_shift", "negative"):
        operands = (a,) if name == "negative" else (a, b)
        with np.errstate(all="ignore"):
            want = getattr(np, name)(*operands)
        got = getattr(ops, name)(*map(ops.convert_to_tensor, operands))
        assert dtype_of(got) == dtype
        for cast in ("int64", "float64"):
            np.testing.assert_array_equal(
                read(ops.cast(got, cast)), want.astype(cast)
            )
        np.testing.assert_array_equal(read(got // 2), want // 2)


def test_numpy_scalars_of_more_bits_are_arrays():
    x = ops.bitwise_or(np.array(-(2**62)), 47)
    assert backend.standardize_dtype(x.dtype) == "int64"
    assert int(x) == -(2**62) | 47
    assert int(ops.minimum(np.array(3, "uint8"), np.array(-1))) == -1
    y = ops.add(np.array(3, "uint8"), np.array(1))
    assert backend.standardize_dtype(y.dtype) == "uint8"


def test_integers_out_of_range_of_a_dtype():
    assert dtype_of(ops.convert_to_tensor([1, 2**31 - 1])) == "int32"
    wide = ops.convert_to_tensor([[1], [-(2**40)]])
    assert dtype_of(wide) == "int64"
    assert read(wide).tolist() == [[1], [-(2**40)]]
    assert read(ops.convert_to_tensor([-1, 7], "uint8")).tolist() == [255, 7]
    for x in (300, [300], 300.0, -300, [[1, -300]], 2**40):
        with pytest.raises(OverflowError, match="holds integers from 0 to 255"):
            ops.convert_to_tensor(x, "uint8")
    with pytest.raises(ValueError, match="NaN"):
        ops.convert_to_tensor(float("nan"), "int32")


def test_comparisons_leave_the_promotion_of_keras_alone():
    dtypes._least_upper_bound.cache_clear()
    ops.equal(np.ones(2, "int32"), 0.5)
    assert dtypes.result_type("int32", float) == "float32"


def test_narrow_floats_add_up_in_float32():
    x = np.full(4096, 1.001, "float16")
    for y in (ops.sum(x), ops.cumsum(x)[-1], ops.dot(x, np.ones_like(x))):
        assert dtype_of(y) == "float16"
        assert abs(read(y).astype("float32") - 4100) < 8
    assert read(ops.mean(np.full(4096, 60000, "float16"))) == 60000


# Errors.

X = np.ones((2, 3), "float32")
INTS = np.ones((2, 3), "int32")
FAILURES = {
    "broadcast": (ValueError, lambda: ops.add(X, np.ones(4))),
    "broadcast where": (ValueError, lambda: ops.where(X > 0, X, np.ones(4))),
    "reshape": (ValueError, lambda: ops.reshape(X, (4,))),
    "reshape two": (ValueError, lambda: ops.reshape(X, (-1, -1))),
    "axis": (ValueError, lambda: ops.sum(X, axis=2)),
    "same axis twice": (ValueError, lambda: ops.sum(X, axis=(0, -2))),
    "transpose": (ValueError, lambda: ops.transpose(X, (0, 0))),
    "squeeze": (ValueError, lambda: ops.squeeze(X, 0)),
    "broadcast_to": (ValueError, lambda: ops.broadcast_to(X, (2, 4))),
    "empty max": (ValueError, lambda: ops.max(np.ones((0, 2)), axis=0)),
    "empty argmax": (ValueError, lambda: ops.argmax(np.ones(0))),
    "concatenate": (ValueError, lambda: ops.concatenate([X, X[:, :2]])),
    "stack": (ValueError, lambda: ops.stack([X, X[:1]])),
    "split": (ValueError, lambda: ops.split(X, 2, axis=1)),
    "no sections": (ValueError, lambda: ops.split(X, 0)),
    "unstack": (ValueError, lambda: ops.unstack(X, axis=2)),
    "slice": (ValueError, lambda: ops.slice(X, [1, 1], [2, 2])),
    "slice of less": (ValueError, lambda: ops.slice(X, [1, 1], [1, -1])),
    "slice_update": (ValueError, lambda: ops.slice_update(X, [0, 2], X[:, 1:])),
    "slice_update before": (
        ValueError,
        lambda: ops.slice_update(X, [-1, 0], X[:1]),
    ),
    "take": (IndexError, lambda: ops.take(X, np.array([2]), axis=0)),
    "take one": (IndexError, lambda: ops.take(X, -3, axis=0)),
    "matmul": (ValueError, lambda: ops.matmul(X, X)),
    "matmul scalar": (ValueError, lambda: ops.matmul(X, 2.0)),
    "tensordot": (ValueError, lambda: ops.tensordot(X, X, axes=1)),
    "einsum labels": (ValueError, lambda: ops.einsum("ij->ik", X)),
    "einsum rank": (ValueError, lambda: ops.einsum("ijk->i", X)),
    "einsum sizes": (ValueError, lambda: ops.einsum("ij,jk", X, X)),
    "cross": (ValueError, lambda: ops.cross(np.ones(4), np.ones(4))),
    "pad": (ValueError, lambda: ops.pad(X, ((1, -1), (0, 0)))),
    "pad mode": (ValueError, lambda: ops.pad(X, 1, mode="other")),
    "quantile": (ValueError, lambda: ops.quantile(X, 0.5, method="other")),
    "bincount": (ValueError, lambda: ops.bincount(np.array([1, -1]))),
    "power": (ValueError, lambda: ops.power(INTS, -1)),
    "arange": (ValueError, lambda: ops.arange(0, 3, 0)),
    "linspace": (ValueError, lambda: ops.linspace(0, 1, num=-1)),
    "searchsorted": (ValueError, lambda: ops.searchsorted(X, X)),
    "bool subtract": (TypeError, lambda: ops.subtract(X > 0, X > 0)),
    "bool negative": (TypeError, lambda: ops.negative(X > 0)),
    "float and": (TypeError, lambda: ops.bitwise_and(X, X)),
    "float shift": (TypeError, lambda: ops.left_shift(X, X)),
    "float gcd": (TypeError, lambda: ops.gcd(X, X)),
    "float exponent": (TypeError, lambda: ops.ldexp(X, X)),
}


@pytest.mark.parametrize("case", FAILURES)
def test_bad_arguments(case):
    error, call = FAILURES[case]
    with pytest.raises(error) as caught:
        call()
    assert len(str(caught.value)) > 20


def test_negative_powers_of_integers_fail_where_they_are_read():
    y = ops.power(INTS, -INTS)
    with pytest.raises(ValueError, match="negative integer powers"):
        read(y)


# Indices.


def test_indices_of_tensors_out_of_bounds_read_nan():
    index = ops.convert_to_tensor(np.array([0, -3, 3, -4], "int32"))
    values = read(ops.take(np.array([1.0, 2, 3], "float32"), index))
    np.testing.assert_array_equal(values, [1, 1, np.nan, np.nan])
    values = read(ops.take(np.array([1, 2, 3], "int8"), index))
    np.testing.assert_array_equal(values, [1, 1, -128, -128])
    values = read(ops.take_along_axis(np.array([1.0, 2, 3]), index, 0))
    np.testing.assert_array_equal(values, [1, 1, np.nan, np.nan])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_indices_of_narrow_dtypes(dtype):
    last = 100 if dtype.endswith("8") else 30000
    x = np.arange(2 * last + 7)
    index = ops.convert_to_tensor(np.array([5, last], dtype))
    assert read(ops.take(x, index)).tolist() == [5, last]
    assert read(ops.take_along_axis(x, index, 0)).tolist() == [5, last]
    if dtype.startswith("int"):
        assert read(ops.take(x, -index)).tolist() == [
            2 * last + 2,
            last + 7,
        ]
    parts = [read(p).tolist() for p in ops.unravel_index(index, (9, 2 * last))]
    assert parts == [[0, 0], [5, last]]
    assert dtype_of(ops.unravel_index(index, (9, 2 * last))[0]) == dtype
    places = ops.convert_to_tensor(np.array([[20, 20], [19, 0]], dtype))
    written = read(ops.scatter(places, np.array([1.0, 2.0]), (21, 1700)))
    assert np.argwhere(written).tolist() == [[19, 0], [20, 20]]


def test_out_of_bounds_has_no_gradient():
    x = ops.convert_to_tensor(np.array([1.0, 2, 3], "float32"))
    index = ops.convert_to_tensor(np.array([0, 0, 7, -1], "int32"))
    taken = ops.take(x, index)
    (grad,) = gradients(ops.sum(ops.where(taken == taken, taken, 0.0)), [x])
    np.testing.assert_array_equal(read(grad), [2, 0, 1])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_take_with_an_index_of_several_axes(axis):
    x = RNG.normal(size=(3, 4))
    index = np.array([[0, -1, 2], [1, 1, 0]])
    np.testing.assert_array_equal(
        read(ops.take(x, index, axis)), np.take(x, index, axis)
    )


def test_sections_may_be_a_number_of_numpys():
    pieces = ops.split(np.arange(6), np.int64(3))
    assert [read(p).tolist() for p in pieces] == [[0, 1], [2, 3], [4, 5]]


# Products.

SUBSCRIPTS = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "ba": [(2, 3)],
    "ii": [(3, 3)],
    "iij->ij": [(3, 3, 2)],
    "ij->": [(3, 4)],
    "i,j->ji": [(3,), (4,)],
    "...ij,jk->...ik": [(2, 5, 3, 4), (4, 5)],
    "i...,...->...i": [(3, 4), (4,)],
    "bhtd,bhsd->bhts": [(2, 2, 3, 4), (2, 2, 5, 4)],
    "ij,kj,lj->ikl": [(2, 3), (4, 3), (5, 3)],
    "ab,bc,cd,de->ae": [(2, 3), (3, 4), (4, 2), (2, 5)],
    "a,b,c->cab": [(2,), (3,), (4,)],
    "ij,ij->ij": [(1, 3), (2, 1)],
    "ij,jk->k": [(3, 0), (0, 5)],
}


@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
def test_einsum(subscripts):
    arrays = [RNG.normal(size=s) for s in SUBSCRIPTS[subscripts]]
    expected = np.einsum(subscripts, *arrays)
    np.testing.assert_allclose(
        read(ops.einsum(subscripts, *arrays)), expected, atol=1e-12
    )
    check_gradient(lambda *xs: ops.einsum(subscripts, *xs), *arrays)


def test_dot_of_many_axes_is_numpys():
    a, b = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(5, 4, 6))
    np.testing.assert_allclose(read(ops.dot(a, b)), np.dot(a, b))


def test_booleans_and_narrow_integers_multiply():
    a, b = RNG.integers(0, 2, (2, 3, 3)).astype(bool)
    np.testing.assert_array_equal(read(ops.matmul(a, b)), np.matmul(a, b))
    a, b = RNG.integers(-128, 128, (2, 5, 5)).astype("int8")
    wide = read(ops.matmul(a, b))
    assert wide.dtype == "int32"
    np.testing.assert_array_equal(wide, a.astype("int32") @ b.astype("int32"))


# Padding and order.


@pytest.mark.parametrize(
    "mode",
    "constant edge reflect symmetric wrap linear_ramp maximum minimum mean "
    "median".split(),
)
@pytest.mark.parametrize("widths", [((1, 2), (0, 3)), ((4, 0), (7, 9))])
def test_pad(mode, widths):
    for dtype in ("float64", "int32"):
        x = (RNG.normal(size=(3, 4)) * 9).astype(dtype)
        np.testing.assert_allclose(
            read(ops.pad(x, widths, mode=mode)), np.pad(x, widths, mode)
        )
    check_gradient(
        lambda t: ops.pad(t, widths, mode=mode), RNG.normal(size=(3, 4))
    )


def test_pad_with_values_for_each_side():
    x = np.arange(4.0).reshape(2, 2)
    values = np.array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(
        read(ops.pad(x, 1, constant_values=values)),
        np.pad(x, 1, constant_values=values),
    )


@pytest.mark.parametrize(
    "method", "linear lower higher midpoint nearest".split()
)
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantiles(name, axis, method):
    x = RNG.normal(size=(3, 4, 6))
    x[0, 1, 2] = x[2, :, 5] = np.nan
    for q in (0.3, [0.0, 0.5, 1.0]):
        arguments = dict(axis=axis, method=method, keepdims=True)
        np.testing.assert_allclose(
            read(getattr(ops, name)(x, q, **arguments)),
            getattr(np, name)(x, q, **arguments),
        )


@pytest.mark.parametrize("name", ["percentile", "nanpercentile"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_percentiles_at_elements(name, dtype):
    x = np.arange(11, dtype=dtype)
    for q in (70, [0.0, 30, 70, 100], np.arange(0, 101, 10)):
        np.testing.assert_array_equal(
            read(getattr(ops, name)(x, q, method="lower")),
            np.true_divide(q, 10),
        )


def test_gradients_of_order():
    x = RNG.normal(size=(4, 5))
    check_gradient(lambda t: ops.sort(t, axis=0), x)
    check_gradient(lambda t: ops.median(t, axis=1), x)
    check_gradient(lambda t: ops.quantile(t, [0.2, 0.7], axis=1), x)
    check_gradient(lambda t: ops.max(t, axis=1), x)
    check_gradient(lambda t: ops.take_along_axis(t, np.ones((2, 5), int), 0), x)


def test_clip_of_nan_has_no_gradient():
    x = ops.convert_to_tensor(np.array([np.nan, 0.5, 3.0], "float32"))
    y = ops.clip(x, 0.0, 1.0)
    np.testing.assert_array_equal(y, [np.nan, 0.5, 1.0])
    (grad,) = gradients(ops.sum(y), [x])
    np.testing.assert_array_equal(grad, [0.0, 1.0, 0.0])


def test_gradients_of_statistics():
    x, w = RNG.normal(size=(3, 5)), RNG.uniform(0.5, 2, 5)
    for name in ("var", "std", "mean", "prod", "cumprod", "ptp", "nanvar"):
        check_gradient(lambda t: getattr(ops, name)(t, axis=1), x)
    check_gradient(lambda t, u: ops.average(t, axis=1, weights=u), x, w)
    check_gradient(ops.corrcoef, x, tolerance=1e-5)
    check_gradient(lambda t, u: ops.trapezoid(t, u), x, np.sort(w))
    for mode in ("valid", "same", "full"):
        check_gradient(lambda t, u: ops.correlate(t, u, mode), w, x[0, :3])
    check_gradient(lambda t: ops.vander(t, 4), w)
    for name in ("kron", "outer", "inner"):
        check_gradient(getattr(ops, name), x, x[:2] + 1)
    check_gradient(lambda t: ops.bincount([0, 2, 2], t, 5), w[:3])


@pytest.mark.parametrize(
    "source", ["float16", "bfloat16", "float32", "float64"]
)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_casts_to_narrow_integers_saturate(source, dtype):
    x = np.array([-1e5, -3.7, -0.5, 0, 3.7, 1e5, -np.inf, np.inf, np.nan])
    x = ops.convert_to_numpy(ops.cast(x, source)).astype("float64")
    limits = np.iinfo(dtype)
    expected = np.trunc(np.clip(x, limits.min, limits.max))
    found = ops.convert_to_numpy(ops.cast(ops.cast(x, source), dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.nan_to_num(expected))


@pytest.mark.parametrize(
    "source", ["float16", "bfloat16", "float32", "float64", "int32"]
)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_casts_to_float8_and_back_round(source, dtype):
    x = np.concatenate(
        [
            RNG.normal(size=500) * np.exp(RNG.uniform(-14, 12, 500)),
            np.arange(-500.0, 500, 3),
            [0.0, 464, 465, 61439, 61440, 2**-10, 2**-17, 1e-30],
            [] if source == "int32" else [np.inf, -np.inf, np.nan],
        ]
    ).astype("float32")
    x = ops.cast(x, source)
    with np.errstate(all="ignore"):
        expected = read(ops.cast(x, "float32")).astype(
            getattr(ml_dtypes, dtype)
        )
    found = read(ops.cast(ops.cast(x, dtype), "float32"))
    np.testing.assert_array_equal(found, expected.astype("float32"))


def test_gradients_pass_casts_to_float8():
    x = ops.convert_to_tensor(np.array([0.3, -2.7, 30.0], "float32"))
    y = ops.cast(ops.cast(x, "float8_e4m3fn"), "float32") ** 2
    (grad,) = gradients(ops.sum(y), [x])
    np.testing.assert_array_equal(grad, [0.625, -5.5, 60.0])


@pytest.mark.parametrize("shape", [(-1, 2), (-3,), -3, (2, -1)])
@pytest.mark.parametrize("op", ["zeros", "ones", "empty", "full"])
def test_negative_sizes_are_refused(op, shape):
    received = shape if isinstance(shape, tuple) else (shape,)
    rest = (1.0,) if op == "full" else ()
    with pytest.raises(ValueError, match=re.escape(f"shape={received}")):
        getattr(ops, op)(shape, *rest)
