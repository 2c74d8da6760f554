"""Tensors as strided views of their storage.

BLAS addresses its operands by strides (of a kind), so a transposed or
permuted operand need not be copied first.
"""

from dataclasses import dataclass
from dataclasses import replace
from itertools import accumulate
from operator import mul

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.internals import Ops


@dataclass(frozen=True)
class StridedView:
    """A tensor as strides over contiguous storage.

    Attributes:
        tensor: The `Tensor`.
        moves: Tuple of the `RESHAPE` and `PERMUTE` uops that lead from the
            storage to the tensor, the last first.
        shape: Shape of the view: the tensor's, or a reshape of it.
        strides: Elements from one index to the next, for each dimension.
    """

    tensor: Tensor
    moves: tuple
    shape: tuple
    strides: tuple

    @classmethod
    def of(cls, tensor):
        """Returns the view that `tensor` is of the storage nearest to it."""
        moves = []
        uop = tensor.uop
        while uop.op in (Ops.RESHAPE, Ops.PERMUTE):
            moves.append(uop)
            uop = uop.src[0]
        strides, copied = contiguous_strides(uop.shape), len(moves)
        for i in reversed(range(len(moves))):
            strides = _moved(moves[i], strides)
            if strides is None:
                # What this move leads to is what must be stored.
                strides, copied = contiguous_strides(moves[i].shape), i
        return cls(tensor, tuple(moves[:copied]), tensor.shape, strides)

    def reshape(self, shape):
        """Returns the view in another shape, or `None` if that would copy."""
        strides = reshaped_strides(self.shape, self.strides, shape)
        if strides is None:
            return None
        return replace(self, shape=tuple(shape), strides=strides)

    @property
    def is_stored(self):
        """Whether the storage is a buffer already."""
        uop = self.moves[-1].src[0] if self.moves else self.tensor.uop
        while uop.op in (Ops.AFTER, Ops.RESHAPE):
            uop = uop.src[0]
        return uop.op in (Ops.BUFFER, Ops.PARAM, Ops.CONTIGUOUS)

    def to_storage(self, tensor):
        """Puts a tensor of this view's tensor's shape in storage order."""
        for move in self.moves:
            if move.op is Ops.PERMUTE:
                order = sorted(range(len(move.marg)), key=move.marg.__getitem__)
                tensor = tensor.permute(*order)
            else:
                tensor = tensor.reshape(move.src[0].shape)
        return tensor.reshape(-1)

    def from_storage(self, storage):
        """Returns this view's tensor over other storage, given flat."""
        base = self.moves[-1].src[0] if self.moves else self.tensor.uop
        tensor = storage.reshape(base.shape)
        for move in reversed(self.moves):
            if move.op is Ops.PERMUTE:
                tensor = tensor.permute(*move.marg)
            else:
                tensor = tensor.reshape(move.shape)
        return tensor


def contiguous_strides(shape):
    """Returns the strides of a row-major array, in elements."""
    return tuple(accumulate(shape[:0:-1], mul, initial=1))[::-1][: len(shape)]


def reshaped_strides(shape, strides, new_shape):
    """Returns the strides of a reshaped view.

    Args:
        shape: Tuple of ints.
        strides: Tuple of as many ints.
        new_shape: Tuple of ints, of the same product, which is not 0.

    Returns:
        Tuple of as many ints as `new_shape` has, or `None` if the elements
        are not evenly spaced.
    """
    merged = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            size *= merged.pop()[0]
        merged.append((size, stride))
    result = []
    for size in reversed(new_shape):
        if size == 1:
            result.append(0)
            continue
        whole, stride = merged.pop()
        if whole % size:
            return None
        result.append(stride)
        if whole != size:
            merged.append((whole // size, stride * size))
    return tuple(reversed(result))


def _moved(move, strides):
    if move.op is Ops.PERMUTE:
        return tuple(strides[axis] for axis in move.marg)
    return reshaped_strides(move.src[0].shape, strides, move.shape)
