"""Turns lazy tensors into buffers, through cached plans."""

from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.internals import Tensor
from keras.src.backend.tinygrad.engine.internals import disable_gc
from keras.src.backend.tinygrad.engine.internals import run_linear
from keras.src.backend.tinygrad.engine.runtime_lock import lock


@disable_gc()
def realize(*tensors):
    """Computes tensors, so that each is backed by a buffer.

    Args:
        *tensors: `Tensor`s of any shapes, dtypes and devices.
    """
    pending = [
        t
        for t in tensors
        if not t.uop.is_virtual and not t.uop.has_buffer_identity()
    ]
    pending = pending and tracing.note_realize(pending)
    if not pending:
        return
    with lock:
        run_linear(*Tensor.linear_with_vars(*pending))


def clear_caches():
    """Drops plans kept in memory; programs on disk stay."""
