"""Linear algebra: values, gradients, errors, compiled steps."""

import numpy as np
import pytest
import scipy.linalg

from integration_tests.numerics.differences import check_gradient
from integration_tests.numerics.differences import leaf
from keras import ops
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad import linalg
from keras.src.backend.tinygrad.engine.gradient import gradients

RNG = np.random.default_rng(0)
SQUARE = RNG.normal(size=(2, 4, 4))
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(4)
RIGHT = RNG.normal(size=(2, 4, 3))
SHAPES = [(4, 4), (5, 3), (3, 5)]


def matrices(shape, batch=(2,)):
    return np.random.default_rng(sum(shape)).normal(size=(*batch, *shape))


def symmetric(x):
    return (x + x.transpose(-1, -2)) * 0.5


def array(x):
    return ops.convert_to_numpy(x)


SQUARE_OPS = {
    "cholesky": (lambda x: linalg.cholesky(symmetric(x)), POSITIVE),
    "cholesky upper": (
        lambda x: linalg.cholesky(symmetric(x), upper=True),
        POSITIVE,
    ),
    "cholesky_inverse": (
        linalg.cholesky_inverse,
        np.linalg.cholesky(POSITIVE),
    ),
    "cholesky_inverse upper": (
        lambda x: linalg.cholesky_inverse(x, upper=True),
        np.linalg.cholesky(POSITIVE).swapaxes(-1, -2),
    ),
    "det": (linalg.det, SQUARE),
    "det of a singular matrix": (linalg.det, np.array([[1.0, 2], [2, 4]])),
    "det of rank n - 2": (linalg.det, np.diag([3.0, 0, 0])),
    "slogdet": (lambda x: linalg.slogdet(x)[1], SQUARE),
    "inv": (linalg.inv, SQUARE),
    "eigh": (
        lambda x: [
            f(*linalg.eigh(symmetric(x)))
            for f in (lambda w, v: w, lambda w, v: v * v[..., :1, :])
        ],
        POSITIVE,
    ),
}


@pytest.mark.parametrize("name", SQUARE_OPS)
def test_gradients_of_square_matrices(name):
    check_gradient(*SQUARE_OPS[name])


def test_eig_gradient():
    # Eigenvectors are unit vectors of any phase; products with conjugates
    # do not depend on it.
    def products(x):
        w, v = linalg.eig(x)
        product = v[..., :1, :].conj() * v
        return [w.real, w.imag, product.real, product.imag]

    check_gradient(products, SQUARE)


@pytest.mark.parametrize("full_matrices", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_svd_gradient(shape, full_matrices):
    k = min(shape)

    # Products that do not depend on signs, and projections that do not
    # depend on the basis of the complement.
    def invariants(x):
        u, s, vh = linalg.svd(x, full_matrices=full_matrices)
        first_u, first_vh = u[..., :k], vh[..., :k, :]
        found = [s, first_u * first_u[..., :1, :], first_vh * first_vh[..., :1]]
        if u.shape[-1] > k:
            found.append(u[..., k:] @ u[..., k:].transpose(-1, -2))
        if vh.shape[-2] > k:
            found.append(vh[..., k:, :].transpose(-1, -2) @ vh[..., k:, :])
        return found

    check_gradient(invariants, matrices(shape))


@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize("shape", SHAPES)
def test_qr_gradient(shape, mode):
    k = min(shape)

    def invariants(x):
        q, r = linalg.qr(x, mode)
        rest = q[..., k:]
        found = [q[..., :k], r]
        return found + [rest @ rest.transpose(-1, -2)] * (q.shape[-1] > k)

    check_gradient(invariants, matrices(shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "name, op",
    [
        ("svd", lambda x: linalg.svd(x, compute_uv=False)),
        ("lu_factor", linalg.lu_factor),
        ("pinv", linalg.pinv),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_gradients_of_rectangular_matrices(name, op, shape):
    check_gradient(op, matrices(shape))


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_lstsq(shape, columns):
    a = matrices(shape, ())
    b = RNG.normal(size=shape[:1] + (columns,) * (columns is not None))
    np.testing.assert_allclose(
        array(linalg.lstsq(a, b)), np.linalg.lstsq(a, b, rcond=None)[0]
    )
    check_gradient(linalg.lstsq, a, b)


@pytest.mark.parametrize("ord", [2, -2, "nuc", "fro", 1, -1, np.inf, -np.inf])
def test_matrix_norm_gradient(ord):
    check_gradient(
        lambda x: linalg.norm(x, ord=ord, axis=(0, 2)), matrices((3, 5), (4,))
    )


@pytest.mark.parametrize("ord", [None, 1, 2, 3, -1, np.inf, -np.inf])
def test_vector_norm_gradient(ord):
    check_gradient(lambda x: linalg.norm(x, ord=ord, axis=1), SQUARE)


@pytest.mark.parametrize("ord", [1, 2, np.inf, -np.inf, 3])
def test_norm_of_nan(ord):
    x = np.array([[1.0, np.nan], [3.0, 2.0]])
    found = array(linalg.norm(x, ord=ord, axis=np.int64(1)))
    np.testing.assert_allclose(found, np.linalg.norm(x, ord=ord, axis=1))


@pytest.mark.parametrize("ord", [1, -1, np.inf, -np.inf])
def test_matrix_norm_of_nan(ord):
    assert np.isnan(array(linalg.norm(np.array([[1, np.nan], [3, 2]]), ord)))


def test_norm_of_zero_has_gradient_zero():
    x = leaf(np.zeros((2, 3)))
    for axis in (None, 1, (0, 1)):
        loss = linalg.norm(x, axis=axis).sum()
        np.testing.assert_array_equal(array(gradients(loss, [x])[0]), 0)


SOLVERS = {
    "solve": linalg.solve,
    "lower": lambda a, b: linalg.solve_triangular(a, b, lower=True),
    "upper": lambda a, b: linalg.solve_triangular(a, b, lower=False),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(
    "a, b",
    [
        (POSITIVE, RIGHT),
        (POSITIVE, RIGHT[..., 0]),
        (POSITIVE[0], RIGHT),
        (POSITIVE, RIGHT[:1]),
    ],
    ids=["matrices", "vectors", "broadcast a", "broadcast b"],
)
def test_solvers(name, a, b):
    x = array(SOLVERS[name](a, b))
    part = {"lower": np.tril, "upper": np.triu}.get(name, np.array)(a)
    if b.ndim == a.ndim - 1:
        np.testing.assert_allclose(np.einsum("...ij,...j", part, x), b)
    else:
        np.testing.assert_allclose(
            part @ x, np.broadcast_to(b, x.shape), atol=1e-12
        )
    check_gradient(SOLVERS[name], a, b)


def test_solve_triangular_of_a_singular_matrix_is_nan():
    x = linalg.solve_triangular(np.diag([1.0, 0.0]), np.ones(2), lower=True)
    assert np.isnan(array(x)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (1, 5)])
def test_lu_factor_is_lapacks(shape, dtype):
    x = matrices(shape, (3, 2)).astype(dtype)
    lu, pivots = map(array, linalg.lu_factor(x))
    assert lu.dtype == dtype and pivots.dtype == "int32"
    for index in np.ndindex(3, 2):
        expected = scipy.linalg.lu_factor(x[index])
        np.testing.assert_array_equal(pivots[index], expected[1])
        np.testing.assert_allclose(lu[index], expected[0], rtol=1e-5)


@pytest.mark.parametrize(
    "name, op, x",
    [
        ("inv", linalg.inv, SQUARE),
        ("det", linalg.det, SQUARE),
        ("cholesky", lambda x: linalg.cholesky(symmetric(x)), POSITIVE),
        ("svd", lambda x: linalg.svd(x, compute_uv=False)[..., :1], SQUARE),
        ("solve", lambda x: linalg.solve(x, leaf(RIGHT)), SQUARE),
        ("pinv", linalg.pinv, matrices((4, 3))),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_second_derivatives(name, op, x):
    weights = RNG.normal(size=op(leaf(x)).shape)

    def derivative(t):
        return gradients((op(t) * leaf(weights)).sum(), [t])[0]

    check_gradient(derivative, x)


def test_degenerate_eigenvalues_have_gradients():
    x = leaf(np.eye(3))
    w, _ = linalg.eigh(x)
    np.testing.assert_allclose(
        array(gradients((w * w).sum(), [x])[0]), 2 * np.eye(3), atol=1e-12
    )
    s = linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(
        array(gradients(s.sum(), [x])[0]), np.eye(3), atol=1e-12
    )


def test_pinv_of_a_singular_matrix():
    x = np.diag([1.0, 2.0, 0.0])
    np.testing.assert_allclose(array(linalg.pinv(x)), np.diag([1, 0.5, 0]))
    assert int(linalg.matrix_rank(x)) == 2


def test_eig_returns_complex_numbers():
    rotation = np.array([[0.0, 1.0], [-1.0, 0.0]], "float32")
    w, v = linalg.eig(rotation)
    assert w.dtype == v.dtype == "complex64"
    np.testing.assert_allclose(
        rotation @ array(v), array(v) * array(w), atol=1e-6
    )


def test_float16_computes_in_float32():
    x = POSITIVE.astype("float16")
    y = array(linalg.inv(x))
    assert y.dtype == "float16"
    np.testing.assert_allclose(y, np.linalg.inv(x.astype("float32")), 2e-3)


def test_lapack_runs_inside_a_compiled_step():
    def loss_and_gradient(x):
        x = x.clone()
        loss = linalg.slogdet(x)[1].sum() + linalg.svd(x)[1].sum()
        return [loss, gradients(loss, [x])[0]], []

    step = engine.compile_step(loss_and_gradient)
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(2, 4, 4))
        loss, gradient = map(array, step(x))
        u, s, vh = np.linalg.svd(x)
        np.testing.assert_allclose(
            loss, np.linalg.slogdet(x)[1].sum() + s.sum()
        )
        np.testing.assert_allclose(
            gradient, np.linalg.inv(x).swapaxes(-1, -2) + u @ vh
        )


def test_failures_of_lapack_are_raised():
    indefinite = -np.eye(3)
    with pytest.raises(np.linalg.LinAlgError):
        linalg.cholesky(indefinite)
    # Of a computed matrix where the factor is used.
    factor = linalg.cholesky(ops.convert_to_tensor(indefinite) * 2)
    with pytest.raises(np.linalg.LinAlgError):
        array(factor)
    with pytest.raises(np.linalg.LinAlgError):
        array(linalg.inv(np.zeros((2, 2))))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: linalg.det(np.ones((2, 3))), "`det` expects square"),
        (lambda: linalg.inv(np.ones(3)), "`inv` expects input of rank"),
        (lambda: linalg.solve(np.eye(2), np.ones((3, 3))), "`solve` expects"),
        (lambda: linalg.qr(np.eye(2), "r"), "mode"),
        (lambda: linalg.norm(np.ones(3), axis=1), "out of bounds"),
        (lambda: linalg.norm(np.ones(3), ord="fro"), "vector norm"),
        (lambda: linalg.norm(np.eye(3), ord=3), "matrix norm"),
        (lambda: linalg.norm(np.ones((2, 2, 2)), ord=1), "one axis"),
        (lambda: linalg.lstsq(np.eye(2), np.ones(3)), "`lstsq` expects"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_jvp():
    direction = RNG.normal(size=SQUARE.shape)
    value, tangent = linalg.jvp(linalg.inv, (SQUARE,), (direction,))
    inverse = np.linalg.inv(SQUARE)
    np.testing.assert_allclose(array(value), inverse)
    np.testing.assert_allclose(
        array(tangent), -inverse @ direction @ inverse, rtol=1e-6
    )


def test_jvp_of_structures():
    def fn(x, ys):
        return {"product": x * ys[0], "sum": (ys[1].sum(),), "x": x}, x + 1

    outputs, tangents, aux = linalg.jvp(
        fn,
        (2.0, [np.arange(3.0), np.ones(2)]),
        (1.0, [np.ones(3), np.full(2, 5.0)]),
        has_aux=True,
    )
    np.testing.assert_allclose(array(outputs["product"]), [0, 2, 4])
    np.testing.assert_allclose(array(tangents["product"]), [2, 3, 4])
    np.testing.assert_allclose(array(tangents["sum"][0]), 10)
    np.testing.assert_allclose(array(tangents["x"]), 1)
    np.testing.assert_allclose(array(aux), 3)
