"""Products of vectors, matrices and tensors."""

import collections
import math

import numpy as np
from tinygrad import dtypes as tinygrad_dtypes

from keras.src import tree
from keras.src.backend.common.backend_utils import vectorize_impl
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine import gemm
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import check_broadcast
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.common import result_type
from keras.src.backend.tinygrad.numpy.common import to_ints
from keras.src.backend.tinygrad.numpy.manipulation import diagonal
from keras.src.backend.tinygrad.numpy.manipulation import moveaxis
from keras.src.backend.tinygrad.numpy.manipulation import stack


def matmul(x1, x2):
    x1, x2 = [convert_to_tensor(x) for x in (x1, x2)]
    a, b = promote(x1, x2)
    result = gemm.matmul(a, b)
    # Products of int8 add up in int32.
    return result if x1.dtype == x2.dtype else result.cast(a.dtype)


def dot(x1, x2):
    x1, x2 = promote(x1, x2)
    if x1.ndim == 0 or x2.ndim == 0:
        return x1 * x2
    return _contract(x1, x2, [x1.ndim - 1], [max(x2.ndim - 2, 0)])


def inner(x1, x2):
    x1, x2 = promote(x1, x2)
    if x1.ndim == 0 or x2.ndim == 0:
        return x1 * x2
    return _contract(x1, x2, [x1.ndim - 1], [x2.ndim - 1])


def outer(x1, x2):
    x1, x2 = promote(x1, x2)
    return x1.reshape(-1, 1) * x2.reshape(1, -1)


def vdot(x1, x2):
    x1, x2 = promote(x1, x2)
    return _contract(x1.reshape(-1), x2.reshape(-1), [0], [0])


def tensordot(x1, x2, axes=2):
    x1, x2 = promote(x1, x2)
    if isinstance(axes, int):
        axes1 = list(range(x1.ndim - axes, x1.ndim))
        axes2 = list(range(axes))
    else:
        axes1, axes2 = [to_ints(a) for a in axes]
    return _contract(
        x1,
        x2,
        [canonicalize_axis(a, x1.ndim) for a in axes1],
        [canonicalize_axis(a, x2.ndim) for a in axes2],
    )


def _contract(x1, x2, axes1, axes2):
    """Sums the products over pairs of axes; the others follow in order."""
    sizes1 = [x1.shape[a] for a in axes1]
    sizes2 = [x2.shape[a] for a in axes2]
    if sizes1 != sizes2:
        raise ValueError(
            "The axes to sum over must be of the same sizes. Received: "
            f"shapes {x1.shape} and {x2.shape}, axes {axes1} and {axes2}"
        )
    rest1 = [a for a in range(x1.ndim) if a not in axes1]
    rest2 = [a for a in range(x2.ndim) if a not in axes2]
    shape1 = [x1.shape[a] for a in rest1]
    shape2 = [x2.shape[a] for a in rest2]
    count = math.prod(sizes1)
    rows = x1.permute(rest1 + axes1).reshape(math.prod(shape1), count)
    columns = x2.permute(axes2 + rest2).reshape(count, math.prod(shape2))
    product = gemm.matmul(rows, columns).cast(x1.dtype)
    return product.reshape(shape1 + shape2)


def kron(x1, x2):
    x1, x2 = promote(x1, x2)
    rank = max(x1.ndim, x2.ndim)
    shapes = [(1,) * (rank - x.ndim) + x.shape for x in (x1, x2)]
    # Each axis of `x1` before the axis of `x2` that it will be merged with.
    left = x1.reshape([d for s in shapes[0] for d in (s, 1)])
    right = x2.reshape([d for s in shapes[1] for d in (1, s)])
    return (left * right).reshape([a * b for a, b in zip(*shapes)])


def cross(x1, x2, axisa=-1, axisb=-1, axisc=-1, axis=None):
    if axis is not None:
        axisa = axisb = axisc = axis
    x1, x2 = promote(x1, x2)
    x1, x2 = moveaxis(x1, axisa, -1), moveaxis(x2, axisb, -1)
    sizes = {x1.shape[-1], x2.shape[-1]}
    if not sizes <= {2, 3}:
        raise ValueError(
            "`cross` expects vectors of 2 or 3 components. Received: shapes "
            f"{x1.shape} and {x2.shape}, with the vectors on the last axis"
        )
    check_broadcast("cross", x1[..., 0], x2[..., 0])
    a = [x1[..., i] for i in range(x1.shape[-1])]
    b = [x2[..., i] for i in range(x2.shape[-1])]
    last = a[0] * b[1] - a[1] * b[0]
    if sizes == {2}:
        return last
    zero = last.const_like(0)
    a, b = (a + [zero])[:3], (b + [zero])[:3]
    parts = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], last]
    return moveaxis(stack(parts, axis=-1), -1, axisc)


# Einstein summation.


def einsum(subscripts, *operands, **kwargs):
    operands = [convert_to_tensor(x) for x in operands]
    rule = result_type
    if {x.dtype for x in operands} == {tinygrad_dtypes.int8}:
        # Products of int8 add up in int32.
        rule = _int32
    operands = promote(*operands, rule=rule)
    inputs, output = _parse_subscripts(subscripts, operands)
    terms = []
    for labels, x in zip(inputs, operands):
        terms.append(_diagonals(labels, x))
    sizes = _label_sizes(subscripts, terms)
    for step in _contraction_path(terms, output, sizes):
        chosen = [terms[i] for i in step]
        terms = [t for i, t in enumerate(terms) if i not in step]
        while len(chosen) > 1:
            first, second, *others = chosen
            kept = set(output).union(*[ls for ls, _ in terms + others])
            chosen = [_contract_pair(first, second, kept, sizes), *others]
        terms += chosen
    ((labels, x),) = terms
    labels, x = _sum_out(labels, x, set(output))
    x = x.permute([labels.index(label) for label in output])
    return x.expand([sizes[label] for label in output])


def _int32(*operands):
    return "int32"


def _parse_subscripts(subscripts, operands):
    """Returns the labels of each operand's axes, and of the result's.

    Axes under an ellipsis get numbers, counted from the last one.
    """
    if not isinstance(subscripts, str):
        raise TypeError(
            "`einsum` expects its subscripts as a string. "
            f"Received: subscripts={subscripts}"
        )
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    inputs = inputs.split(",")
    if len(inputs) != len(operands):
        raise ValueError(
            f"`einsum` got {len(operands)} operands for subscripts of "
            f"{len(inputs)}. Received: subscripts='{subscripts}'"
        )
    labels, widest = [], 0
    for term, x in zip(inputs, operands):
        before, dots, after = term.partition("...")
        hidden = x.ndim - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise ValueError(
                f"The subscripts '{term}' do not fit an operand of shape "
                f"{x.shape}. Received: subscripts='{subscripts}'"
            )
        labels.append([*before, *reversed(range(hidden)), *after])
        widest = max(widest, hidden)
    counts = collections.Counter(k for ls in labels for k in ls)
    hidden = list(reversed(range(widest)))
    if arrow:
        before, dots, after = output.partition("...")
        result = [*before, *(hidden if dots else []), *after]
    else:
        named = sorted(k for k in counts if isinstance(k, str))
        result = hidden + [k for k in named if counts[k] == 1]
    letters = [k for k in [*counts, *result] if isinstance(k, str)]
    if (
        len(set(result)) != len(result)
        or not set(result) <= set(counts)
        or not all(k.isalpha() for k in letters)
    ):
        raise ValueError(
            "Invalid `einsum` subscripts: labels are letters, and each label "
            "of the result appears once there and in an operand. Received: "
            f"subscripts='{subscripts}'"
        )
    return labels, result


def _diagonals(labels, x):
    """Takes the diagonal of axes with the same label."""
    while len(set(labels)) < len(labels):
        label = next(k for k in labels if labels.count(k) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        x = diagonal(x, axis1=first, axis2=second)
        labels = [k for i, k in enumerate(labels) if i not in (first, second)]
        labels.append(label)
    return labels, x


def _label_sizes(subscripts, terms):
    sizes = {}
    for labels, x in terms:
        for label, s in zip(labels, x.shape):
            if sizes.setdefault(label, s) == 1:
                sizes[label] = s
            if s not in (1, sizes[label]):
                raise ValueError(
                    f"`einsum` got sizes {sizes[label]} and {s} for the label "
                    f"'{label}'. Received: subscripts='{subscripts}', shapes "
                    f"{[t.shape for _, t in terms]}"
                )
    return sizes


def _contraction_path(terms, output, sizes):
    """Returns which terms to multiply in each step, in NumPy's order.

    Positions are those left after the step before; a product goes last.
    """
    if len(terms) <= 2:
        return [tuple(range(len(terms)))]
    numbers = {label: i for i, label in enumerate(sizes)}
    arguments = []
    for labels, _ in terms:
        # NumPy looks at nothing but shapes.
        shape = [sizes[label] for label in labels]
        arguments.append(np.broadcast_to(np.float32(0), shape))
        arguments.append([numbers[label] for label in labels])
    arguments.append([numbers[label] for label in output])
    return np.einsum_path(*arguments, optimize="greedy")[0][1:]


def _sum_out(labels, x, kept):
    axes = [i for i, label in enumerate(labels) if label not in kept]
    if axes:
        x = x.sum(axis=tuple(axes)).cast(x.dtype)
    return [label for label in labels if label in kept], x


def _contract_pair(first, second, kept, sizes):
    """Multiplies two terms and sums over the labels that are not kept."""
    (labels1, x1), (labels2, x2) = first, second
    labels1, x1 = _sum_out(labels1, x1, kept.union(labels2))
    labels2, x2 = _sum_out(labels2, x2, kept.union(labels1))
    common = [k for k in labels1 if k in labels2]
    batch = [k for k in common if k in kept]
    summed = [k for k in common if k not in kept]
    only1 = [k for k in labels1 if k not in common]
    only2 = [k for k in labels2 if k not in common]

    def arrange(labels, x, order, groups):
        x = x.permute([labels.index(k) for k in order])
        x = x.expand([sizes[k] for k in order])
        return x.reshape(
            [sizes[k] for k in batch]
            + [math.prod(sizes[k] for k in group) for group in groups]
        )

    left = arrange(labels1, x1, batch + only1 + summed, (only1, summed))
    right = arrange(labels2, x2, batch + summed + only2, (summed, only2))
    labels = batch + only1 + only2
    product = gemm.matmul(left, right).cast(x1.dtype)
    return labels, product.reshape([sizes[k] for k in labels])


# Functions of the user's.


def vectorize(pyfunc, *, excluded=None, signature=None):
    return vectorize_impl(pyfunc, _vmap, excluded=excluded, signature=signature)


def _vmap(fn, in_axes):
    """Maps `fn` over the first axis of the arguments whose axis is 0."""
    # Imported at use: the package, whose functions take complex tensors too,
    # imports this module.
    from keras.src.backend.tinygrad import numpy

    def mapped(*args):
        count = next(
            x.shape[0] for x, axis in zip(args, in_axes) if axis is not None
        )
        results = [
            fn(*[x if a is None else x[i] for x, a in zip(args, in_axes)])
            for i in range(count)
        ]
        return tree.map_structure(lambda *xs: numpy.stack(xs), *results)

    return mapped


def slogdet(x):
    from keras.src.backend.tinygrad import linalg

    return linalg.slogdet(x)
