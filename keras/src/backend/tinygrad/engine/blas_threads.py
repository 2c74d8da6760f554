"""Chooses between several threads and one, by what they turn out to cost.

On idle cores several threads share large kernels well. With another program
on one of them they wait for each other: a product on BLAS' own threads takes
ten times as long as on one thread. So each plan tries both, keeps the faster,
and looks again from time to time.
"""

import time
import weakref

import numpy as np

from keras.src.backend.tinygrad.engine.runtime_lock import lock

# Seconds until the slower choice is tried again; it doubles each time that
# this was in vain.
FIRST_INTERVAL = 1.0
LAST_INTERVAL = 60.0
# How much faster the other choice must be to be taken.
GAIN = 0.9
# How much slower than before a plan must run to look at once.
LOSS = 1.5

_KERNELS = ("gemm_", "convolution_", "thin_convolution_")

# Buffers of words of products that gain from threads: position of the number
# of threads, and how many they gain from.
_products = weakref.WeakKeyDictionary()


class _State:
    is_single = False


def register(words, position, wanted):
    """Makes the number of threads of a kernel's words subject to choice.

    Args:
        words: Realized uint64 `Tensor`, which holds `wanted` at `position`.
        position: Int.
        wanted: Number of threads that the kernel gains from on idle cores.
    """
    if wanted > 1:
        buffer = words.uop.base.buffer
        with lock:
            _products[buffer] = position, wanted
            if _State.is_single:
                _write(buffer, position, 1)


def limit(single):
    """Holds all products to one thread, or lets them have what they want."""
    if single != _State.is_single:
        _State.is_single = single
        for buffer, (position, wanted) in list(_products.items()):
            _write(buffer, position, 1 if single else wanted)


def is_single():
    """Returns whether the plan that runs is held to one thread."""
    return _State.is_single


def calls_blas(name):
    """Returns whether a kernel of this name calls BLAS."""
    return name.removeprefix("shared_").startswith(_KERNELS)


def _write(buffer, position, threads):
    words = np.frombuffer(buffer.as_memoryview(force_zero_copy=True), "u8")
    words[position] = threads


class Chooser:
    """Times the runs of one plan and chooses for the next.

    Args:
        names: Names of the plan's kernels.
        clock: Function that returns seconds.
        shares: Whether the plan has shards that run side by side.
    """

    def __init__(self, names, clock=time.perf_counter, shares=False):
        self._shares = shares
        self._multiplies = any(map(calls_blas, names))
        self._clock = clock
        self._choice = False
        self._trial = False
        self._usual = None
        self._interval = FIRST_INTERVAL
        self._next_trial = None

    def run(self, function):
        """Calls a function that runs the plan, with the threads chosen."""
        if not self._shares and not (self._multiplies and _products):
            return function()
        start = self._clock()
        self._trial = self._next_trial is not None and start >= self._next_trial
        limit(self._choice ^ self._trial)
        function()
        self._learn(self._clock() - start)

    def _learn(self, elapsed):
        now = self._clock()
        if self._usual is None:
            # The first run warms up, and counts as endlessly slow.
            self._usual = float("inf")
        elif self._trial:
            if elapsed < GAIN * self._usual:
                self._choice = not self._choice
                self._usual = elapsed
                self._interval = FIRST_INTERVAL
            else:
                self._interval = min(2 * self._interval, LAST_INTERVAL)
            self._next_trial = now + self._interval
        elif self._next_trial is None:
            # One run with each choice, to begin with.
            self._usual = elapsed
            self._next_trial = now
        elif elapsed > LOSS * self._usual:
            self._usual = elapsed
            self._next_trial = min(self._next_trial, now + FIRST_INTERVAL / 10)
        else:
            self._usual += (elapsed - self._usual) / 8
