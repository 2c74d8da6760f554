"""The threads that run the shards of a CPU kernel side by side.

They wait in the launcher's compiled code and never enter Python. After a
shard they look for the next one for some tens of microseconds; then they
sleep, so that an idle process uses no processor time.

Environment variables:
    `KERAS_TINYGRAD_THREADS`: the number of threads that work on a kernel, the
        calling one included. By default as many as this process may use of
        the processor's cores, or `OMP_NUM_THREADS` if that is less.
"""

import ctypes
import functools
import os
import sys

from keras.src.backend.tinygrad.engine.internals import CPUProgram

# First word of the argument by which a thread is told to work for a pool.
WORK = 1
# Turns of a thread without work until it sleeps, some 20 ns each or more.
SPINS = 4000
_LINE = 8
# Where tinygrad's class holds the pools.
_POOLS = "_keras_pools"
# Enough for a mutex or a condition of any C library.
_OPAQUE_BYTES = 256
_FUNCTIONS = {
    "lock": "pthread_mutex_lock",
    "unlock": "pthread_mutex_unlock",
    "wait": "pthread_cond_wait",
    "wake": "pthread_cond_broadcast",
    "yield": "sched_yield",
}


def count():
    """Returns how many threads run shards, the calling one included."""
    return limit() if sys.platform != "win32" else 1


@functools.cache
def limit():
    """Returns how many threads kernels may use, those of BLAS included.

    Raises:
        ValueError: If `KERAS_TINYGRAD_THREADS` is not a positive integer.
    """
    wanted = os.environ.get("KERAS_TINYGRAD_THREADS")
    if wanted is not None:
        if not wanted.isdecimal() or int(wanted) < 1:
            raise ValueError(
                "KERAS_TINYGRAD_THREADS must be a positive integer, the "
                f"number of threads of kernels on the CPU. Received: {wanted}"
            )
        found = int(wanted)
    else:
        found = _cores()
        others = os.environ.get("OMP_NUM_THREADS", "")
        if others.isdecimal() and int(others) > 0:
            found = min(found, int(others))
    return found


def _cores():
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        # A container's share of the processor.
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


class Pool:
    """Threads of this process, and the memory by which they are told.

    Args:
        program: tinygrad `CPUProgram` of the launcher.
        size: Number of threads to start.

    Attributes:
        address: Address of the pool's words.
    """

    # What several threads write has a cache line of its own.
    LINES = (
        ("open",),
        ("next",),
        ("active",),
        ("asleep",),
        ("row", "count", "stride", "jobs", "taken"),
        ("spins", "mutex", "condition", *_FUNCTIONS),
    )

    @classmethod
    def c_fields(cls):
        """Returns the C declarations of the words."""
        text = ""
        for number, names in enumerate(cls.LINES):
            text += f"  u64 {', '.join(names)};\n"
            padding = -len(names) % _LINE
            if padding:
                text += f"  u64 padding{number}[{padding}];\n"
        return text

    def __init__(self, program, size):
        library = ctypes.CDLL(None)
        start = library.pthread_create
        start.argtypes = [ctypes.c_void_p] * 4
        detach = library.pthread_detach
        detach.argtypes = [ctypes.c_void_p]
        words, position = {}, 0
        for names in self.LINES:
            for i, name in enumerate(names):
                words[name] = position + i
            position += -(-len(names) // _LINE) * _LINE
        kept = (ctypes.c_uint64 * (position + _LINE))()
        self.address = -(-ctypes.addressof(kept) // 64) * 64
        memory = (ctypes.c_uint64 * position).from_address(self.address)
        mutex, condition = [
            ctypes.create_string_buffer(_OPAQUE_BYTES) for _ in range(2)
        ]
        library.pthread_mutex_init(mutex, None)
        library.pthread_cond_init(condition, None)
        memory[words["spins"]] = SPINS
        memory[words["mutex"]] = ctypes.addressof(mutex)
        memory[words["condition"]] = ctypes.addressof(condition)
        for name, symbol in _FUNCTIONS.items():
            function = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
            memory[words[name]] = function.value
        argument = (ctypes.c_uint64 * 2)(WORK, self.address)
        for used in (kept, mutex, condition, argument, program):
            # The threads use these until the process is gone.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))
        for _ in range(size):
            thread = ctypes.c_void_p()
            failed = start(
                ctypes.addressof(thread),
                None,
                program.addr,
                ctypes.addressof(argument),
            )
            # Without the thread its share is left to the others.
            if not failed:
                detach(thread)


def _pools():
    """The pools of this process, by layout and number of threads.

    They outlive this module: a pool's threads never end, and a second import
    of the backend (`set_backend`) would start as many again.
    """
    pools = vars(CPUProgram).get(_POOLS)
    if pools is None:
        pools = {}
        setattr(CPUProgram, _POOLS, pools)
    return pools


@functools.cache
def pool(program):
    """Returns the address of this process' pool, or `None` for one thread.

    Args:
        program: tinygrad `CPUProgram` of the launcher.
    """
    size = count() - 1
    if not size:
        return None
    pools, key = _pools(), (Pool.c_fields(), size)
    if key not in pools:
        pools[key] = Pool(program, size).address
    return pools[key]


def _forget():
    _pools().clear()
    pool.cache_clear()


if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads.
    os.register_at_fork(after_in_child=_forget)
