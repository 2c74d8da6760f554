"""Makes tensors over buffers that have memory, or that can get some."""

import functools
import weakref

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import ParamArg
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.internals import shape_to_shape_arg
from keras.src.backend.tinygrad.engine.internals import strong_dtype
from keras.src.backend.tinygrad.engine.internals import tensor_module

# The uop of a shape of integers, kept: few shapes, many tensors.
shape_source = functools.lru_cache(maxsize=4096)(shape_to_shape_arg)


def new_buffer_uop(size, dtype, device):
    """Returns a `BUFFER` uop that gets its memory when it is written to."""
    arg = ParamArg(next(UOp.unique_num), dtype, device=device)
    return UOp(Ops.BUFFER, dtype, (shape_source((size,)),), arg)


def buffer_uop(buffer):
    """Returns a new `BUFFER` uop of a `Buffer` that has memory."""
    uop = new_buffer_uop(buffer.size, buffer.dtype, buffer.device)
    buffers[uop] = buffer
    return uop


def shaped(base, source):
    """Returns a `BUFFER` uop reshaped to the shape of a `shape_source`."""
    return UOp(Ops.RESHAPE, base.dtype, (base, source))


def tensor_of(uop):
    """Returns a new `Tensor` of a uop on the device where it is."""
    tensor = Tensor.__new__(Tensor)
    tensor.uop, tensor.grad, tensor.is_param = uop, None, True
    tensor_module.all_tensors[weakref.ref(tensor)] = None
    return tensor


def strong(tensor):
    """Casts a `Tensor` of a weak dtype to int32 or float32.

    Integers and a Python float make a weak dtype, which has no storage and
    which Keras does not know. Other tensors are returned as they are.
    """
    if tensor.dtype in dtypes.weaks:
        return tensor.cast(strong_dtype(tensor.dtype))
    return tensor
