"""Indexes tensors with what tinygrad itself does not take.

NumPy's integers and arrays, Keras variables, boolean masks, and slices whose
bounds are scalar tensors: what people index by with the other backends.
"""

import operator

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy


def indexed(original):
    """Extends tinygrad's own indexing.

    A mask's values are read on the host, and so are a slice's bounds, for the
    result's shape depends on them. Where a slice stops a known number of
    elements after its start, `x[start : start + 3]`, it needs no read while a
    step is traced; there, as in `keras.ops.slice`, a slice that would leave
    the axis is moved to lie within.

    Args:
        original: `Tensor.__getitem__`.

    Returns:
        The method that takes its place.
    """

    def __getitem__(self, index):
        parts = index if type(index) is tuple else (index,)
        if all(map(_is_plain, parts)):
            return original(self, index)
        parts = [_normalized(part, self.device) for part in parts]
        taken = sum(map(_axes_taken, parts))
        axis, found, result = 0, [], self
        for part in parts:
            axes = _axes_taken(part)
            if part is Ellipsis:
                axes = self.ndim - taken
            elif axes and axis + axes > self.ndim:
                raise IndexError(
                    f"Too many indices for a tensor of shape {self.shape}. "
                    f"Received: {len(parts)} indices"
                )
            elif isinstance(part, slice):
                result, part = _sliced(result, axis, part)
            found += _mask_indices(self, axis, part) or [part]
            axis += axes
        return original(result, tuple(found))

    return __getitem__


def _is_plain(part):
    if isinstance(part, slice):
        return all(
            bound is None or type(bound) is int
            for bound in (part.start, part.stop, part.step)
        )
    if isinstance(part, Tensor):
        return part.dtype != dtypes.bool
    return part is None or part is Ellipsis or type(part) is int


def _normalized(part, device):
    """Makes an array of what holds numbers, and an `int` of one number."""
    # Imported at use: the engine stands below it.
    from keras.src.backend.tinygrad.core import Variable

    if isinstance(part, slice):
        bounds = (part.start, part.stop, part.step)
        return slice(*[_bound(b, Variable) for b in bounds])
    if isinstance(part, Variable):
        part = part.value
    if isinstance(part, list) and not any(isinstance(p, Tensor) for p in part):
        part = np.asarray(part, None if part else "int32")
    if isinstance(part, (np.ndarray, np.generic)):
        if part.dtype.kind not in "iub":
            raise IndexError(
                "A tensor is indexed by integers, slices and booleans. "
                f"Received: an array of dtype {part.dtype}"
            )
        if part.dtype.kind != "b" and part.ndim == 0:
            return int(part)
        return from_numpy(np.asarray(part), device)
    return part


def _bound(bound, variable_class):
    if isinstance(bound, variable_class):
        bound = bound.value
    if bound is None or isinstance(bound, Tensor):
        return bound
    return operator.index(bound)


def _is_mask(part):
    return isinstance(part, Tensor) and part.dtype == dtypes.bool


def _axes_taken(part):
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if _is_mask(part) else 1


def _mask_indices(tensor, axis, part):
    if not _is_mask(part) or part.ndim == 0:
        return None
    dims = tensor.shape[axis : axis + part.ndim]
    if part.shape != dims:
        raise IndexError(
            "A mask's shape must be that of the axes it indexes, "
            f"{dims}. Received: a mask of shape {part.shape}"
        )
    return [
        from_numpy(index.astype("int32"), tensor.device)
        for index in np.nonzero(to_numpy(part))
    ]


def _sliced(tensor, axis, part):
    """Applies a slice that has tensors for bounds.

    Returns:
        Pair of a tensor and of the slice that is left to apply to it.
    """
    start, stop, step = part.start, part.stop, part.step
    size, total = _known_length(start, stop), tensor.shape[axis]
    if size is None or size > total or step not in (None, 1):
        return tensor, slice(*[_read(b) for b in (start, stop, step)])
    if tracing.active() is None and not 0 <= _read(start) <= total - size:
        return tensor, slice(_read(start), _read(stop), step)
    first = start.clip(0, total - size)
    rows = first + Tensor.arange(size, dtype=start.dtype)
    tensor = gather_rows(tensor.transpose(0, axis), rows)
    return tensor.transpose(0, axis), slice(None)


def _known_length(start, stop):
    """How far after `start` a slice stops, where the graphs say so."""
    if not isinstance(start, Tensor) or not isinstance(stop, Tensor):
        return None
    end = stop.uop
    if start.shape != () or end.op is not Ops.ADD:
        return None
    for one, other in (end.src, end.src[::-1]):
        if one is start.uop and other.op is Ops.CONST:
            return other.arg if other.arg > 0 else None
    return None


def _read(bound):
    return bound if bound is None else operator.index(bound)
