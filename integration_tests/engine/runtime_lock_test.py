"""The locks are never left held: by an interrupt, or in a forked child."""

import os
import signal
import threading

import pytest

from integration_tests.processes import run_python
from keras.src.backend.tinygrad.engine import runtime_lock

# A signal's handler raises, again and again, where the lock is used.
INTERRUPTED = """
import signal
import threading
from keras.src.backend.tinygrad.engine.runtime_lock import lock

def interrupt(*_):
    raise KeyboardInterrupt

interrupts = 0
signal.signal(signal.SIGALRM, interrupt)
while interrupts < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while True:
            with lock:
                pass
    except KeyboardInterrupt:
        interrupts += 1

def use():
    assert lock.acquire(timeout=5)
    print("free")

thread = threading.Thread(target=use)
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="there is no interval timer"
)
def test_an_interrupt_leaves_the_lock_free():
    done = run_python(INTERRUPTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "free\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("name", ["lock", "memory_lock"])
def test_a_forked_child_finds_it_free(name):
    lock = getattr(runtime_lock, name)
    stop, failures = threading.Event(), []

    def use():
        while not stop.is_set():
            with lock:
                pass

    thread = threading.Thread(target=use)
    thread.start()
    for _ in range(20):
        child = os.fork()
        if not child:
            # Twice: it is still re-entrant.
            free = lock.acquire(timeout=5) and lock.acquire(timeout=5)
            os._exit(0 if free else 1)
        failures.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    assert not any(failures)
    with lock:
        pass
