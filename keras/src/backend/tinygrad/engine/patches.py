"""The closed list of patches to tinygrad's own classes, each with its reason.

`apply` is idempotent: a second import of the backend (`set_backend`) finds
the patches in place.
"""

import functools

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine import compiler
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.runtime_lock import lock


def _realize(self, *others, do_update_stats=True):
    realize(self, *others)
    return self


def _array(self, dtype=None, copy=None):
    array = self.numpy()
    return array if dtype is None else array.astype(dtype)


def _buffer(original):
    @functools.wraps(original)
    def read_buffer(self):
        tracing.check_host_read(self)
        with lock:
            return original(self)

    return read_buffer


def apply():
    """Applies each patch once to tinygrad's classes."""
    if getattr(Tensor, "_keras_patched", False):
        return
    # Code written for tinygrad (its optimizers, say) takes our road too.
    Tensor.realize = _realize
    # Data adapters and `np.asarray` look for it.
    Tensor.__array__ = _array
    # A read of values on the host inside a compiled step must be noticed.
    Tensor._buffer = _buffer(Tensor._buffer)
    # The CPU device compiles with zig where there is no clang, and bfloat16
    # with a clang that does not have it.
    compiler.install()
    Tensor._keras_patched = True
