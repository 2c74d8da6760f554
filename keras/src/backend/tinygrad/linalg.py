"""Linear algebra: LAPACK routines as host calls, with their gradients.

Each routine is a NumPy (LAPACK) function inside the graph, batched over the
leading dimensions, computed in float64 for float64 and in float32 otherwise.
Gradients are lazy and, where not said otherwise, differentiable again. Where
a gradient divides by the difference of equal eigenvalues or singular values,
it is infinite, as on the other backends, unless the quotient's numerator is
zero: then the loss does not depend on the undetermined vectors.
"""

import ctypes
import functools
import math

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src import tree
from keras.src.backend import config
from keras.src.backend import standardize_dtype
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.complex import accept_complex
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import get_device
from keras.src.backend.tinygrad.engine import blas
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.gradient import gradients
from keras.src.backend.tinygrad.engine.host_call import float_host_call
from keras.src.backend.tinygrad.engine.host_call import float_host_dtype
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.numpy import reduction
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import floating
from keras.src.backend.tinygrad.numpy.common import root


def cholesky(x, upper=False):
    x = _matrices("cholesky", x, square=True)
    if not tracing.in_progress() and x.uop.has_buffer_identity():
        # Values at hand, so a matrix that has no factor raises here rather
        # than where the result is used.
        np.linalg.cholesky(convert_to_numpy(cast(x, float_host_dtype(x))))
    factor = _cholesky(_t(x) if upper else x)
    return _t(factor) if upper else factor


def _cholesky(x):
    def gradient(inputs, outputs, grads):
        (factor,), (g,) = outputs, grads
        middle = matmul(_t(factor), g.tril())
        middle = middle.tril() - 0.5 * _diagonal_matrix(_diagonal(middle))
        # inverse(L)^T (middle) inverse(L), made symmetric.
        half = solve_triangular(_t(factor), middle)
        full = _t(solve_triangular(_t(factor), _t(half)))
        return [0.5 * (full + _t(full))]

    return float_host_call(
        np.linalg.cholesky, [x], [x.shape], gradient, "cholesky"
    )[0]


def cholesky_inverse(x, upper=False):
    x = _matrices("cholesky_inverse", x, square=True)
    identity = _eye(x.shape[-1], x).expand(x.shape)
    inverse = solve_triangular(x, identity, lower=not upper)
    if upper:
        return matmul(inverse, _t(inverse))
    return matmul(_t(inverse), inverse)


def det(x):
    x = _matrices("det", x, square=True)

    def gradient(inputs, outputs, grads):
        return [grads[0][..., None, None] * _cofactor(inputs[0])]

    shapes = [x.shape[:-2]]
    return float_host_call(np.linalg.det, [x], shapes, gradient, "det")[0]


def _cofactor(x):
    """Derivative of the determinant, of singular matrices too."""

    def gradient(inputs, outputs, grads):
        # Where the inverse exists, det(x) * inv(x)^T is the same function.
        (x,), (g,) = inputs, grads
        value = det(x)[..., None, None] * _t(inv(x))
        return gradients((value * g).sum(), [x])

    return float_host_call(_numpy_cofactor, [x], [x.shape], gradient, "det")[0]


def _numpy_cofactor(x):
    u, s, vh = np.linalg.svd(x)
    n = s.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = np.linalg.det(u) * np.linalg.det(vh)
    return sign[..., None, None] * ((u * others[..., None, :]) @ vh)


def slogdet(x):
    """Sign and logarithm of the absolute value of the determinant."""
    x = _matrices("slogdet", x, square=True)

    def gradient(inputs, outputs, grads):
        return [grads[1][..., None, None] * _t(inv(inputs[0]))]

    return float_host_call(
        _numpy_slogdet, [x], [x.shape[:-2]] * 2, gradient, "slogdet"
    )


def _numpy_slogdet(x):
    return tuple(np.linalg.slogdet(x))


def eig(x):
    """Eigenvalues and unit eigenvectors; always complex.

    The gradient cannot be differentiated again.
    """
    x = _matrices("eig", x, square=True)
    w, v = x.shape[:-1], x.shape

    def gradient(inputs, outputs, grads):
        return host_call(
            _numpy_eig_gradient,
            outputs + grads,
            [(v, standardize_dtype(inputs[0].dtype))],
            name="the gradient of eig",
        )

    parts = float_host_call(_numpy_eig, [x], [w, w, v, v], gradient, "eig")
    return ComplexTensor(*parts[:2]), ComplexTensor(*parts[2:])


def _numpy_eig(x):
    w, v = np.linalg.eig(x)
    return w.real, w.imag, v.real, v.imag


def _numpy_eig_gradient(*parts):
    w, v, gw, gv = (
        real.astype("float64") + 1j * imag
        for real, imag in zip(parts[::2], parts[1::2])
    )
    vh = v.conj().swapaxes(-1, -2)
    # Eigenvectors have unit length: the part of `gv` along them is void.
    inner = vh @ gv
    middle = (
        inner - (vh @ v) * np.einsum("...ii->...i", inner).real[..., None, :]
    )
    gap = (w[..., None, :] - w[..., :, None]).conj()
    diagonal = np.eye(w.shape[-1], dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(
            diagonal, gw[..., None], np.where(middle == 0, 0, middle / gap)
        )
    return np.linalg.solve(vh, middle @ vh).real


def eigh(x):
    x = _matrices("eigh", x, square=True)

    def gradient(inputs, outputs, grads):
        (w, v), (gw, gv) = outputs, grads
        inner = matmul(_t(v), gv)
        gap = w.unsqueeze(-2) - w.unsqueeze(-1)
        middle = 0.5 * _quotient(inner - _t(inner), gap)
        middle = middle + _diagonal_matrix(gw)
        return [matmul(matmul(v, middle), _t(v))]

    return float_host_call(
        _numpy_eigh, [x], [x.shape[:-1], x.shape], gradient, "eigh"
    )


def _numpy_eigh(x):
    return tuple(np.linalg.eigh(x))


def inv(x):
    x = _matrices("inv", x, square=True)

    def gradient(inputs, outputs, grads):
        inverse = _t(outputs[0])
        return [-matmul(matmul(inverse, grads[0]), inverse)]

    return float_host_call(np.linalg.inv, [x], [x.shape], gradient, "inv")[0]


def lu_factor(x):
    """LU factors in one matrix, and the row that each row was swapped with.

    The gradient cannot be differentiated again.
    """
    x = _matrices("lu_factor", x)
    dtype = float_host_dtype(x)
    rank = min(x.shape[-2:])

    def gradient(inputs, outputs, grads):
        return host_call(
            _numpy_lu_gradient,
            outputs + grads[:1],
            [(inputs[0].shape, dtype)],
            name="the gradient of lu_factor",
        )

    lu, pivots = host_call(
        _lapack_getrf,
        [cast(x, dtype)],
        [(x.shape, dtype), ((*x.shape[:-2], rank), "int32")],
        gradient=gradient,
        name="lu_factor",
    )
    return lu.cast(x.dtype), pivots


def _numpy_lu_gradient(lu, pivots, g):
    m, n = lu.shape[-2:]
    k = min(m, n)
    lower = np.tril(lu[..., :, :k], -1) + np.eye(m, k, dtype=lu.dtype)
    upper = np.triu(lu[..., :k, :])
    g_lower, g_upper = np.tril(g[..., :, :k], -1), np.triu(g[..., :k, :])
    # The leading k x k blocks, then what is left of a wide or tall matrix.
    inner_lower = lower[..., :k, :].swapaxes(-1, -2) @ g_lower[..., :k, :]
    inner_upper = g_upper[..., :, :k] @ upper[..., :, :k].swapaxes(-1, -2)
    if m > k:
        rest = lower[..., k:, :].swapaxes(-1, -2) @ g_lower[..., k:, :]
        inner_upper = inner_upper - rest
    if n > k:
        rest = g_upper[..., :, k:] @ upper[..., :, k:].swapaxes(-1, -2)
        inner_lower = inner_lower - rest
    middle = np.tril(inner_lower, -1) + np.triu(inner_upper)
    lower_t = lower[..., :k, :].swapaxes(-1, -2)
    upper_t = upper[..., :, :k].swapaxes(-1, -2)

    def times_inverse_upper(y):
        # y @ inverse(upper_t)
        return np.linalg.solve(
            upper_t.swapaxes(-1, -2), y.swapaxes(-1, -2)
        ).swapaxes(-1, -2)

    result = np.zeros_like(lu)
    result[..., :k, :k] = times_inverse_upper(np.linalg.solve(lower_t, middle))
    if m > k:
        result[..., k:, :k] = times_inverse_upper(g_lower[..., k:, :])
    if n > k:
        result[..., :k, k:] = np.linalg.solve(lower_t, g_upper[..., :, k:])
    for index in np.ndindex(lu.shape[:-2]):
        rows = result[index]
        for i in reversed(range(k)):
            rows[[i, pivots[index][i]]] = rows[[pivots[index][i], i]]
    return result


def norm(x, ord=None, axis=None, keepdims=False):
    x = convert_to_tensor(x)
    if standardize_dtype(x.dtype) == "int64":
        x = cast(x, config.floatx())
    x = cast(x, floating(x.dtype))
    if axis is None and ord is None:
        result = root(x.square().sum(keepdim=True))
        return result if keepdims else result.reshape(())
    axes = range(x.ndim) if axis is None else axis
    axes = axes if isinstance(axes, (tuple, list, range)) else (axes,)
    axes = [canonicalize_axis(a, x.ndim) for a in axes]
    if len(axes) not in (1, 2) or len(set(axes)) < len(axes):
        raise ValueError(
            "`norm` reduces one axis (vectors) or two different ones "
            f"(matrices). Received: axis={axis}, ord={ord}, "
            f"x.shape={x.shape}"
        )
    if len(axes) == 1:
        result = _vector_norm(x, ord, axes[0])
    else:
        result = _matrix_norm(x, ord, *axes)
    if keepdims:
        return result
    return result.reshape([s for a, s in enumerate(x.shape) if a not in axes])


def _vector_norm(x, ord, axis):
    """Norm along an axis, which stays as one of size 1."""
    if isinstance(ord, str):
        raise ValueError(
            f"Invalid `ord` argument for vector norm. Received: ord={ord}"
        )
    size = x.abs()
    if ord is None or ord == 2:
        return root(x.square().sum(axis, keepdim=True))
    if ord == math.inf:
        return reduction.max(size, axis, keepdims=True)
    if ord == -math.inf:
        return reduction.min(size, axis, keepdims=True)
    if ord == 0:
        return (x != 0).cast(x.dtype).sum(axis, keepdim=True)
    if ord == 1:
        return size.sum(axis, keepdim=True)
    total = (size**ord).sum(axis, keepdim=True)
    # As in `root`: the gradient at zero is zero.
    zero = total == 0
    return zero.where(0, zero.where(1, total) ** (1 / ord))


def _matrix_norm(x, ord, row, column):
    """Norm over two axes, which stay as ones of size 1."""
    if ord in (None, "fro"):
        return root(x.square().sum((row, column), keepdim=True))
    if ord in (1, -1, math.inf, -math.inf):
        summed, chosen = (row, column) if abs(ord) == 1 else (column, row)
        sums = x.abs().sum(summed, keepdim=True)
        if ord > 0:
            return reduction.max(sums, chosen, keepdims=True)
        return reduction.min(sums, chosen, keepdims=True)
    if ord in (2, -2, "nuc"):
        rest = [a for a in range(x.ndim) if a not in (row, column)]
        values = svd(x.permute(*rest, row, column), compute_uv=False)
        if ord == "nuc":
            result = values.sum(-1)
        else:
            result = values[..., 0 if ord == 2 else -1]
        shape = [1 if a in (row, column) else s for a, s in enumerate(x.shape)]
        return result.reshape(shape)
    raise ValueError(
        f"Invalid `ord` argument for matrix norm. Received: ord={ord}"
    )


def qr(x, mode="reduced"):
    if mode not in {"reduced", "complete"}:
        raise ValueError(
            "`mode` argument value not supported. "
            "Expected one of {'reduced', 'complete'}. "
            f"Received: mode={mode}"
        )
    x = _matrices("qr", x)
    m, n = x.shape[-2:]
    k = min(m, n)
    columns = k if mode == "reduced" else m

    def gradient(inputs, outputs, grads):
        (q, r), (gq, gr) = outputs, grads
        q, gq = _fold_complement(q, gq, k)
        r, gr = r[..., :k, :].triu(), gr[..., :k, :].triu()
        left, right = r[..., :k], inputs[0][..., k:]
        gq = gq + matmul(right, _t(gr[..., k:])) if n > k else gq
        middle = matmul(left, _t(gr[..., :k])) - matmul(_t(gq), q)
        middle = middle.tril() + _t(middle.tril(-1))
        # (gq + q @ middle) @ inverse(left)^T
        result = _t(solve_triangular(left, _t(gq + matmul(q, middle))))
        if n > k:
            result = result.cat(matmul(q, gr[..., k:]), dim=-1)
        return [result]

    return float_host_call(
        functools.partial(_numpy_qr, mode=mode),
        [x],
        [(*x.shape[:-1], columns), (*x.shape[:-2], columns, n)],
        gradient,
        "qr",
    )


def _numpy_qr(x, mode):
    return tuple(np.linalg.qr(x, mode=mode))


def _fold_complement(q, gq, k):
    """Reduces a basis of the whole space to its first `k` columns.

    The other columns are any basis of the complement. A loss that does not
    depend on which one depends on them through the first columns alone.
    """
    if q.shape[-1] == k:
        return q, gq
    first, others = q[..., :k], q[..., k:]
    through = matmul(others, matmul(_t(gq[..., k:]), first))
    return first, gq[..., :k] - through


def solve(a, b):
    return _solve_with("solve", a, b, _solve)


def _solve(a, b):
    def gradient(inputs, outputs, grads):
        gb = _solve(_t(inputs[0]), grads[0])
        return [-matmul(gb, _t(outputs[0])), gb]

    return float_host_call(
        np.linalg.solve, [a, b], [b.shape], gradient, "solve"
    )[0]


def solve_triangular(a, b, lower=False):
    return _solve_with(
        "solve_triangular",
        a,
        b,
        functools.partial(_solve_triangular, lower=lower),
    )


def _solve_triangular(a, b, lower):
    def gradient(inputs, outputs, grads):
        gb = _solve_triangular(_t(inputs[0]), grads[0], not lower)
        ga = -matmul(gb, _t(outputs[0]))
        return [ga.tril() if lower else ga.triu(), gb]

    return float_host_call(
        functools.partial(_lapack_trtrs, lower=lower),
        [a, b],
        [b.shape],
        gradient,
        "solve_triangular",
    )[0]


def _solve_with(name, a, b, solver):
    """Calls `solver` on matrices of one dtype whose batches agree."""
    a = _matrices(name, a, square=True)
    b = convert_to_tensor(b)
    dtype = floating(a.dtype, b.dtype)
    a, b = cast(a, dtype), cast(b, dtype)
    vector = b.ndim == a.ndim - 1
    if vector:
        b = b.unsqueeze(-1)
    if b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"`{name}` expects `b` of shape (..., {a.shape[-1]}) or (..., "
            f"{a.shape[-1]}, N). Received: a.shape={a.shape}, "
            f"b.shape={b.shape[:-1] if vector else b.shape}"
        )
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = solver(
        a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    )
    return result.squeeze(-1) if vector else result


def svd(x, full_matrices=True, compute_uv=True):
    x = _matrices("svd", x)
    m, n = x.shape[-2:]
    k = min(m, n)
    batch = x.shape[:-2]
    if not compute_uv:
        return _singular_values(x)

    def gradient(inputs, outputs, grads):
        u, s, vh = outputs
        gu, gs, gvh = grads
        u, gu = _fold_complement(u, gu, k)
        v, gv = _fold_complement(_t(vh), _t(gvh), k)
        row, column = s.unsqueeze(-2), s.unsqueeze(-1)
        gap = (row - column) * (row + column)
        inner_u, inner_v = matmul(_t(u), gu), matmul(_t(v), gv)
        middle = (
            _quotient(inner_u - _t(inner_u), gap) * row
            + column * _quotient(inner_v - _t(inner_v), gap)
            + _diagonal_matrix(gs)
        )
        left = matmul(u, middle)
        if m > k:
            # What moves `u` out of the space that it spans.
            left = left + _quotient(gu - matmul(u, inner_u), row)
        result = matmul(left, _t(v))
        if n > k:
            out = _quotient(gv - matmul(v, inner_v), row)
            result = result + matmul(u, _t(out))
        return [result]

    return float_host_call(
        functools.partial(_numpy_svd, full_matrices=full_matrices),
        [x],
        [
            (*batch, m, m if full_matrices else k),
            (*batch, k),
            (*batch, n if full_matrices else k, n),
        ],
        gradient,
        "svd",
    )


def _numpy_svd(x, full_matrices):
    return tuple(np.linalg.svd(x, full_matrices=full_matrices))


def _singular_values(x):
    def gradient(inputs, outputs, grads):
        u, _, vh = svd(inputs[0], full_matrices=False)
        return [matmul(u * grads[0].unsqueeze(-2), vh)]

    shape = (*x.shape[:-2], min(x.shape[-2:]))
    return float_host_call(
        _numpy_singular_values, [x], [shape], gradient, "svd"
    )[0]


def _numpy_singular_values(x):
    return np.linalg.svd(x, compute_uv=False)


def lstsq(a, b, rcond=None):
    a, b = convert_to_tensor(a), convert_to_tensor(b)
    if a.ndim != 2 or b.ndim not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ValueError(
            "`lstsq` expects `a` of shape (M, N) and `b` of shape (M,) or "
            f"(M, K). Received: a.shape={a.shape}, b.shape={b.shape}"
        )
    dtype = floating(a.dtype, b.dtype)
    a, b = cast(a, dtype), cast(b, dtype)
    vector = b.ndim == 1
    if vector:
        b = b.unsqueeze(-1)
    if rcond is None:
        rcond = _default_rcond(a)

    def gradient(inputs, outputs, grads):
        # The solution is pinv(a) @ b.
        (a, b), (g,) = inputs, grads
        inverse = pinv(a, rcond)
        ga = _pinv_cotangent(a, inverse, matmul(g, _t(b)))
        return [ga, matmul(_t(inverse), g)]

    (result,) = float_host_call(
        functools.partial(_numpy_lstsq, rcond=rcond),
        [a, b],
        [(a.shape[1], b.shape[1])],
        gradient,
        "lstsq",
    )
    return result.squeeze(-1) if vector else result


def _numpy_lstsq(a, b, rcond):
    return np.linalg.lstsq(a, b, rcond=rcond)[0]


def matrix_rank(x, tol=None):
    x = _matrices("matrix_rank", x)
    values = svd(x.detach(), compute_uv=False)
    if tol is None:
        tol = values.max(-1, keepdim=True) * _default_rcond(x)
    elif not isinstance(tol, (int, float)):
        tol = convert_to_tensor(tol, values.dtype).unsqueeze(-1)
    return (values > tol).sum(-1).cast(dtypes.int32)


def pinv(x, rcond=None):
    x = _matrices("pinv", x)
    if rcond is None:
        rcond = _default_rcond(x)

    def gradient(inputs, outputs, grads):
        return [_pinv_cotangent(inputs[0], outputs[0], grads[0])]

    return float_host_call(
        functools.partial(np.linalg.pinv, rcond=rcond),
        [x],
        [(*x.shape[:-2], x.shape[-1], x.shape[-2])],
        gradient,
        "pinv",
    )[0]


def _pinv_cotangent(x, p, g):
    """Cotangent of `x` from that of its pseudoinverse `p`.

    Of the derivative of Golub and Pereyra (1973), for constant rank:
    dp = -p dx p + p p' dx' (1 - x p) + (1 - p x) dx' p' p.
    """
    gt = _t(g)
    first = matmul(matmul(_t(p), g), _t(p))
    outer = matmul(matmul(gt, p), _t(p))
    outer = outer - matmul(x, matmul(p, outer))
    inner = matmul(matmul(_t(p), p), gt)
    inner = inner - matmul(matmul(inner, p), x)
    return outer + inner - first


def _default_rcond(x):
    """Singular values below this times the largest one count as zero."""
    return max(x.shape[-2:]) * float(np.finfo(float_host_dtype(x)).eps)


def jvp(fun, primals, tangents, has_aux=False):
    # Forward mode from two reverse ones: the product with the transposed
    # Jacobian is linear in its cotangent, and its own transpose is the
    # product with the Jacobian. The cotangents' values never matter.
    flat = [convert_to_tensor(x) for x in tree.flatten(primals)]
    # Copies: nodes of the graph that occur once, even for equal constants.
    flat = [x.clone(device=get_device()) for x in flat]
    directions = [
        convert_to_tensor(t, x.dtype)
        for t, x in zip(tree.flatten(tangents), flat, strict=True)
    ]
    result = fun(*tree.pack_sequence_as(primals, flat))
    outputs, aux = result if has_aux else (result, None)
    values = [convert_to_tensor(y) for y in tree.flatten(outputs)]
    cotangents = [
        Tensor.empty(*y.shape, dtype=y.dtype, device=get_device())
        for y in values
    ]
    derivatives = [Tensor.zeros(*y.shape, dtype=y.dtype) for y in values]
    inner = _inner_product(values, cotangents)
    backward = [None] * len(flat) if inner is None else gradients(inner, flat)
    inner = _inner_product(backward, directions)
    if inner is not None:
        derivatives = [
            zeros if d is None else d
            for d, zeros in zip(gradients(inner, cotangents), derivatives)
        ]
    derivatives = tree.pack_sequence_as(outputs, derivatives)
    if has_aux:
        return outputs, derivatives, aux
    return outputs, derivatives


def _inner_product(xs, ys):
    """Sum of the products of the floating tensors that are there."""
    total = None
    for x, y in zip(xs, ys):
        if x is not None and x.is_floating_point():
            product = (x * y).sum()
            total = product if total is None else total + product
    return total


# Matrices as tensors.


def _matrices(name, x, square=False):
    """Returns `x` as floating matrices.

    Raises:
        ValueError: If it has fewer than two dimensions, or should be square
            and is not.
    """
    x = convert_to_tensor(x)
    if x.ndim < 2:
        raise ValueError(
            f"`{name}` expects input of rank >= 2. "
            f"Received input with shape {x.shape}."
        )
    if square and x.shape[-2] != x.shape[-1]:
        raise ValueError(
            f"`{name}` expects square matrices. "
            f"Received non-square input with shape {x.shape}"
        )
    return cast(x, floating(x.dtype))


def _t(x):
    return x.transpose(-1, -2)


def _eye(n, like):
    return Tensor.eye(n, dtype=like.dtype)


def _diagonal(x):
    return (x * _eye(x.shape[-1], x)).sum(-1)


def _diagonal_matrix(values):
    return values.unsqueeze(-1) * _eye(values.shape[-1], values)


def _quotient(x, y):
    """`x / y`, zero where `x` is."""
    zero = x == 0
    return zero.where(0, x / zero.where(1, y))


# LAPACK routines that NumPy does not offer.


def _lapack_getrf(x):
    lapack, integer = _lapack_function("getrf", x.dtype)
    m, n = x.shape[-2:]
    lu = np.empty_like(x)
    pivots = np.empty((*x.shape[:-2], min(m, n)), "int32")
    for index in np.ndindex(x.shape[:-2]):
        a = np.array(x[index], order="F")
        rows = np.empty(min(m, n), integer)
        _lapack_call(lapack, integer, m, n, a, m, rows)
        lu[index] = a
        pivots[index] = rows - 1
    return lu, pivots


def _lapack_trtrs(a, b, lower):
    lapack, integer = _lapack_function("trtrs", a.dtype)
    n, columns = b.shape[-2:]
    result = np.empty_like(b)
    if 0 in b.shape:
        return result
    for index in np.ndindex(a.shape[:-2]):
        # Row-major `a` is column-major for its transpose.
        matrix = np.ascontiguousarray(a[index])
        x = np.array(b[index], order="F")
        info = _lapack_call(
            lapack,
            integer,
            b"U" if lower else b"L",
            b"T",
            b"N",
            n,
            columns,
            matrix,
            n,
            x,
            n,
        )
        # Of a singular matrix LAPACK leaves `b` as it is.
        result[index] = np.nan if info > 0 else x
    return result


def _lapack_call(function, integer, *args):
    """Calls a LAPACK routine: everything by reference, `info` appended."""
    info = np.zeros(1, integer)
    arrays = [
        np.frombuffer(a, "u1")
        if isinstance(a, bytes)
        else np.array(a, integer)
        if isinstance(a, int)
        else a
        for a in (*args, info)
    ]
    function(*[ctypes.c_void_p(a.ctypes.data) for a in arrays])
    if info[0] < 0:
        raise RuntimeError(
            f"LAPACK rejected argument {-info[0]}. This is a bug of the "
            "tinygrad backend."
        )
    return int(info[0])


@functools.cache
def _lapack_function(name, dtype):
    """Finds a LAPACK routine: in NumPy's BLAS library, or SciPy's.

    Returns:
        The function, and the dtype of its integers.
    """
    routine = {"float32": "s", "float64": "d"}[str(np.dtype(dtype))] + name
    library = blas.find()
    if library is not None:
        symbols = ctypes.CDLL(library.path)
        integer = np.dtype("int64" if library.wide else "int32")
        for pattern in (
            "scipy_{}_64_",
            "{}_64_",
            "{}$NEWLAPACK$ILP64",
            "scipy_{}_",
            "{}_",
            "{}$NEWLAPACK",
            "{}",
        ):
            function = getattr(symbols, pattern.format(routine), None)
            if function is not None:
                return function, integer
    try:
        from scipy.linalg import cython_lapack
    except ImportError:
        raise NotImplementedError(
            f"There is no LAPACK routine `{routine}` in NumPy's BLAS library, "
            "and SciPy is not installed. Install SciPy (`pip install scipy`)."
        )
    capsule = cython_lapack.__pyx_capi__[routine]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None)(address), np.dtype("int32")


accept_complex(globals())
