"""Order: sorts, searches and sets.

They run on the host: tinygrad's own sort compiles slowly, and NumPy's is fast.
"""

import functools

import numpy as np

from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.numpy.common import at_least_float32
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import comparison
from keras.src.backend.tinygrad.numpy.common import dtype_of
from keras.src.backend.tinygrad.numpy.common import is_float
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.indexing import gather_along


def _on_host(fn, inputs, shape, dtype="int32"):
    """Calls a NumPy function whose result has no gradient."""
    # NumPy does not order bfloat16 and float8.
    inputs = [
        cast(x, at_least_float32(x.dtype)) if is_float(x) else x for x in inputs
    ]
    inputs = [x.detach() for x in inputs]
    name = getattr(fn, "func", fn).__name__
    return host_call(fn, inputs, [(shape, dtype)], name=name)[0]


def argsort(x, axis=-1):
    x = convert_to_tensor(x)
    if axis is None or x.ndim == 0:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    return _order(x, axis)


def _order(x, axis):
    fn = functools.partial(np.argsort, axis=axis, kind="stable")
    return _on_host(fn, [x], x.shape)


def sort(x, axis=-1):
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    # Stable, so that gradients of equal elements go where torch sends them.
    return gather_along(x, _order(x, axis), axis)


def argpartition(x, kth, axis=-1):
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    if not -x.shape[axis] <= kth < x.shape[axis]:
        raise ValueError(
            f"kth(={kth}) is out of bounds for an axis of size {x.shape[axis]}."
        )
    fn = functools.partial(np.argpartition, kth=kth, axis=axis)
    return _on_host(fn, [x], x.shape)


def searchsorted(sorted_sequence, values, side="left"):
    sequence, values = promote(sorted_sequence, values, rule=comparison)
    if sequence.ndim != 1:
        raise ValueError(
            "`searchsorted` only supports 1-D sorted sequences. "
            "You can use `keras.ops.vectorized_map` "
            "to extend it to N-D sequences. Received: "
            f"sorted_sequence.shape={sequence.shape}"
        )
    if side not in ("left", "right"):
        raise ValueError(
            f"`side` must be 'left' or 'right'. Received: side={side}"
        )
    fn = functools.partial(np.searchsorted, side=side)
    return _on_host(fn, [sequence, values], values.shape)


def digitize(x, bins):
    x, bins = promote(x, bins, rule=comparison)
    return _on_host(np.digitize, [x, bins], x.shape)


def isin(x1, x2, assume_unique=False, invert=False):
    x1, x2 = promote(x1, x2, rule=comparison)
    fn = functools.partial(np.isin, assume_unique=assume_unique, invert=invert)
    return _on_host(fn, [x1, x2], x1.shape, "bool")


def unique(
    x,
    sorted=True,
    return_index=False,
    return_inverse=False,
    return_counts=False,
    axis=None,
    size=None,
    fill_value=None,
):
    x = convert_to_tensor(x)
    if axis is not None:
        axis = canonicalize_axis(axis, x.ndim)
    find = functools.partial(
        _unique,
        index=return_index,
        inverse=return_inverse,
        counts=return_counts,
        axis=axis,
        size=size,
        fill_value=0 if fill_value is None else fill_value,
    )
    if size is None:
        # The shape of the result depends on the values: they are read.
        values, *others = find(convert_to_numpy(x))
        others = [convert_to_tensor(v, "int32") for v in others]
        outputs = [convert_to_tensor(values, x.dtype), *others]
    else:
        shape = [size] if axis is None else list(x.shape)
        shape[axis or 0] = size
        inverse = x.shape if axis is None else (x.shape[axis],)
        specs = [(shape, dtype_of(x))]
        specs += [((size,), "int32")] * return_index
        specs += [(inverse, "int32")] * return_inverse
        specs += [((size,), "int32")] * return_counts
        outputs = host_call(find, [x.detach()], specs, name="unique")
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _unique(x, index, inverse, counts, axis, size, fill_value):
    """Returns NumPy's results, cut or filled up to `size` values."""
    values, *others = np.unique(
        x,
        return_index=True,
        return_inverse=inverse,
        return_counts=counts,
        axis=axis,
        equal_nan=False,
    )
    axis = axis or 0
    results = [_resize(values, axis, size, fill_value)]
    # Keras fills indices with 1 and counts with 0.
    if index:
        results.append(_resize(others[0], 0, size, 1))
    if inverse:
        results.append(others[1])
    if counts:
        results.append(_resize(others[-1], 0, size, 0))
    return tuple(results)


def _resize(x, axis, size, fill_value):
    if size is None:
        return x
    x = np.take(x, range(min(size, x.shape[axis])), axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return np.pad(x, widths, constant_values=fill_value)
