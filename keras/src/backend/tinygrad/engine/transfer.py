"""Host memory to device tensors and back, one copy each way."""

import ml_dtypes
import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.internals import Buffer
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.tensors import buffer_uop
from keras.src.backend.tinygrad.engine.tensors import shape_source
from keras.src.backend.tinygrad.engine.tensors import shaped
from keras.src.backend.tinygrad.engine.tensors import strong
from keras.src.backend.tinygrad.engine.tensors import tensor_of

# Where a numpy dtype and a tinygrad dtype hold the same bits.
NUMPY_DTYPES = {
    dtypes.bool: np.dtype(np.bool_),
    dtypes.uint8: np.dtype(np.uint8),
    dtypes.uint16: np.dtype(np.uint16),
    dtypes.uint32: np.dtype(np.uint32),
    dtypes.uint64: np.dtype(np.uint64),
    dtypes.int8: np.dtype(np.int8),
    dtypes.int16: np.dtype(np.int16),
    dtypes.int32: np.dtype(np.int32),
    dtypes.int64: np.dtype(np.int64),
    dtypes.float16: np.dtype(np.float16),
    dtypes.float32: np.dtype(np.float32),
    dtypes.float64: np.dtype(np.float64),
    dtypes.bfloat16: np.dtype(ml_dtypes.bfloat16),
    dtypes.fp8e4m3: np.dtype(ml_dtypes.float8_e4m3fn),
    dtypes.fp8e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
TINYGRAD_DTYPES = {v: k for k, v in NUMPY_DTYPES.items()}


def from_numpy(array, device):
    """Copies a host array into a new device buffer.

    Args:
        array: `numpy.ndarray` of any shape; its dtype is one of
            `TINYGRAD_DTYPES`.
        device: Canonical tinygrad device name.

    Returns:
        A realized `Tensor` of the array's shape and dtype. Later writes to
        `array` do not reach it.

    Raises:
        TypeError: If tinygrad has no dtype for the array's.
    """
    dtype = TINYGRAD_DTYPES.get(array.dtype)
    if dtype is None:
        raise TypeError(
            "tinygrad has no dtype for NumPy arrays of dtype "
            f"'{array.dtype}'. Expected one of "
            f"{sorted(str(d) for d in TINYGRAD_DTYPES)}; cast the array first."
        )
    if array.size == 0:
        return Tensor.zeros(*array.shape, dtype=dtype, device=device)
    buffer = Buffer(device, array.size, dtype, uop_refcount=1).allocate()
    copy_in(array, buffer)
    source = shape_source(array.shape)
    return tensor_of(shaped(buffer_uop(buffer), source))


def copy_in(array, buffer):
    """Copies a host array into an allocated device `Buffer` of its size."""
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not source.flags.writeable:
        # tinygrad takes the address of writable memory only.
        source = source.copy()
    buffer.allocator._copyin(buffer._buf, memoryview(source))


def to_numpy(tensor):
    """Reads a tensor's values.

    Args:
        tensor: `Tensor` of any shape, dtype and device; it is realized,
            unless its dtype is weak, which has no storage.

    Returns:
        A new writable `numpy.ndarray`; bfloat16 and float8 come back as
        `ml_dtypes` arrays.
    """
    tensor = strong(tensor)
    dtype = NUMPY_DTYPES[tensor.dtype]
    array = np.empty(tensor.shape, dtype)
    if array.size == 0:
        return array
    uop = tensor.uop
    buffer = buffers.get(uop.base) if uop.has_buffer_identity() else None
    if not isinstance(buffer, Buffer) or not buffer.is_allocated():
        buffer = tensor._buffer()
    tracing.check_host_read(tensor)
    with lock:
        memory = memoryview(array.reshape(-1).view(np.uint8))
        buffer.allocator._copyout(memory, buffer._buf)
    return array
