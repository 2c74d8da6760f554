"""What the kernels share that are written by hand, as UOps.

They get their sizes from a buffer of words rather than in their source: so
one program, compiled once, serves all shapes.
"""

import functools

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import blas
from keras.src.backend.tinygrad.engine import launcher
from keras.src.backend.tinygrad.engine import threads
from keras.src.backend.tinygrad.engine.internals import Estimates
from keras.src.backend.tinygrad.engine.internals import KernelInfo
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.tensors import new_buffer_uop
from keras.src.backend.tinygrad.engine.tensors import tensor_of

# Shards of a kernel that is cut into some; a kernel may leave some idle.
SHARDS = 16


def one_threaded():
    """Whether BLAS is used on one thread, and shards run side by side.

    BLAS' own threads wait for their next product in a loop, where they would
    take the cores from the threads that run shards.
    """
    library = blas.find()
    return library.set_threads is not None and launcher.shares()


def shard_count(parts, each=4):
    """Returns into how many shards a kernel is cut.

    Args:
        parts: For how many shards there is enough work.
        each: Shards for each thread: with more than one, a thread that is
            held up leaves some of its share to the others.
    """
    return max(1, min(SHARDS, each * threads.count(), int(parts)))


def evenly(size, count):
    """Returns `(first, last)` of at most `count` parts of `size`."""
    count = max(1, min(size, count))
    bounds = [size * i // count for i in range(count + 1)]
    return list(zip(bounds[:-1], bounds[1:]))


def shard_number():
    """Returns the number of the shard that runs a kernel, an int64 `UOp`."""
    number = UOp.variable("core_id", 0, SHARDS - 1, dtypes.int, param=True)
    return number.cast(dtypes.int64)


def constant_words(values):
    """Returns a realized uint64 CPU tensor of the given Python ints."""
    uop = UOp.new_buffer("CPU", len(values), dtypes.uint64)
    buffer = uop.buffer.allocate()
    words = np.frombuffer(buffer.as_memoryview(force_zero_copy=True), "u8")
    words[:] = values
    return Tensor(uop)


@functools.lru_cache(maxsize=1024)
def constant_sizes(*sizes):
    """Returns the `constant_words` of some sizes, one tensor for all users."""
    return constant_words(sizes)


def new_output(size, dtype):
    """Returns a `Tensor` of shape `(size,)` on the CPU for a kernel to fill."""
    return tensor_of(new_buffer_uop(size, dtype, "CPU"))


def are_on_cpu(*tensors):
    """Whether tensors are on the CPU, numbers without a device aside."""
    devices = {t.device for t in tensors}
    return "CPU" in devices and devices <= {"CPU", None}


def on_cpu(tensor):
    """Returns `tensor` as a contiguous tensor with storage on the CPU."""
    if 0 in tensor.shape:
        return tensor
    if tensor.device is None:
        return tensor.clone(device="CPU")
    return tensor.to("CPU").contiguous()


# Functions of a kernel's words that count its operations, by its name.
_counts = {}


def counts(name):
    """Whether the operations of a kernel can be told by its words."""
    return name in _counts


def operations(name, words):
    """Returns the number of arithmetic operations of a launch.

    Args:
        name: Name of a kernel for which `counts` holds.
        words: Sequence of ints, its words.
    """
    return _counts[name](words)


def kernel(done, name, count=None):
    """Makes a kernel of its last operation.

    Args:
        done: `UOp` that everything the kernel does comes before.
        name: Name of the kernel.
        count: Function of the kernel's words, its last argument, that returns
            its number of arithmetic operations.

    Returns:
        `SINK` uop, compiled as it stands: its loops are not unrolled.
    """
    if count is not None:
        _counts[name] = count
    # tinygrad cannot estimate the work of a loop whose end is in memory. It
    # leaves a kernel with a tag to its author.
    info = KernelInfo(name=name, estimates=Estimates())
    return UOp.sink(done, arg=info, tag=1)
