"""Reads of elements by index, and selections by condition."""

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes as tinygrad_dtypes

from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import index_tensor
from keras.src.backend.tinygrad.engine.functions import traced_once
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.numpy.common import along
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import check_broadcast
from keras.src.backend.tinygrad.numpy.common import dtype_of
from keras.src.backend.tinygrad.numpy.common import is_float
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.common import to_shape


def take(x, indices, axis=None):
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    total = x.shape[axis]
    if isinstance(indices, int):
        _check_in_range("take", np.asarray(indices), total)
        return x[along(axis, int(indices))]
    index, inside = _to_index("take", indices, total)
    rows = x.permute(axis, *[a for a in range(x.ndim) if a != axis])
    taken = gather_rows(rows, index)
    if inside is not None:
        inside = inside.reshape(index.shape + (1,) * (x.ndim - 1))
        taken = inside.where(taken, _fill_value(x))
    # The axes of the index take the place of `axis`.
    order = list(range(index.ndim, index.ndim + axis))
    order += range(index.ndim)
    order += range(index.ndim + axis, taken.ndim)
    return taken.permute(order)


def take_along_axis(x, indices, axis=None):
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    shapes = (x.shape, np.shape(indices))
    if len(shapes[1]) != x.ndim:
        raise ValueError(
            "`take_along_axis` expects `indices` of as many axes as `x`. "
            f"Received: x of shape {x.shape}, indices of shape {shapes[1]}"
        )
    batch = np.broadcast_shapes(
        *[(*s[:axis], 1, *s[axis + 1 :]) for s in shapes]
    )
    total = x.shape[axis]
    index, inside = _to_index("take_along_axis", indices, total)
    shape = (*batch[:axis], index.shape[axis], *batch[axis + 1 :])
    taken = gather_along(x, index.expand(shape), axis)
    if inside is not None:
        taken = inside.expand(shape).where(taken, _fill_value(x))
    return taken


def gather_along(x, index, axis):
    """Takes elements along an axis.

    Args:
        x: `Tensor`.
        index: Integer `Tensor` of as many dimensions, of values in range.
            The sizes of `x` along the other axes equal its, or are one.
        axis: Non-negative axis.

    Returns:
        `Tensor` of the shape of `index`.
    """
    # The number of each element in the flat tensor, axis by axis.
    flat = None
    for a, s in enumerate(x.shape):
        if a == axis:
            position = index
        else:
            place = [-1 if b == a else 1 for b in range(x.ndim)]
            position = Tensor.arange(s).reshape(place)
        flat = position if flat is None else flat * s + position
    return gather_rows(x.reshape(-1), flat.expand(index.shape))


def _to_index(name, indices, total):
    """Returns indices in range, and where those given were, if not all."""
    if isinstance(indices, (np.ndarray, np.generic, list, tuple)):
        known = np.asarray(convert_to_numpy(indices))
        if known.dtype.kind in "iub":
            _check_in_range(name, known, total)
            index = np.where(known < 0, known + total, known)
            return convert_to_tensor(index, "int32"), None
    index = index_tensor(indices)
    index = cast(index, "int32") if is_float(index) else index
    return _wrapped(index, total=total)


@traced_once()
def _wrapped(index, total):
    index = (index < 0).where(index + total, index)
    inside = (index > -1) & (index < total)
    return inside.where(index, 0), inside


def _check_in_range(name, index, total):
    if index.size and not -total <= index.min() <= index.max() < total:
        raise IndexError(
            f"`{name}` got an index out of bounds for an axis of size "
            f"{total}. Received: indices from {index.min()} to {index.max()}"
        )


def _fill_value(x):
    """What an index out of bounds reads, as in JAX."""
    if is_float(x):
        return float("nan")
    return x.dtype.min if x.dtype in tinygrad_dtypes.sints else x.dtype.max


def nonzero(x):
    # The shape of the result depends on the values: they are read.
    found = np.nonzero(convert_to_numpy(convert_to_tensor(x)))
    return tuple(convert_to_tensor(i, "int32") for i in found)


def unravel_index(indices, shape):
    indices = convert_to_tensor(indices)
    index = index_tensor(indices)
    shape = to_shape(shape)
    total = int(np.prod(shape, dtype="int64"))
    index = (index < 0).where(index + total, index)
    parts = []
    for s in reversed(shape):
        parts.append((index % s).cast(indices.dtype))
        index = index // s
    return tuple(reversed(parts))


def select(condlist, choicelist, default=0):
    if len(condlist) != len(choicelist):
        raise ValueError(
            "`select` expects as many conditions as choices. Received: "
            f"{len(condlist)} conditions and {len(choicelist)} choices."
        )
    *choices, result = promote(*choicelist, default)
    conditions = [convert_to_tensor(c) for c in condlist]
    for condition in conditions:
        if condition.dtype != tinygrad_dtypes.bool:
            raise TypeError(
                "`select` expects boolean conditions. Received: "
                f"dtype={dtype_of(condition)}"
            )
    check_broadcast("select", *conditions, *choices, result)
    for condition, choice in zip(reversed(conditions), reversed(choices)):
        result = condition.where(choice, result)
    return result


def where(condition, x1=None, x2=None):
    condition = convert_to_tensor(condition, "bool")
    if x1 is None and x2 is None:
        return nonzero(condition)
    x1, x2 = promote(x1, x2)
    check_broadcast("where", condition, x1, x2)
    return condition.where(x1, x2)
