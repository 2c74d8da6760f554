"""The re-entrant locks around what tinygrad does from one thread only."""

import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading


def _fork_safe_lock():
    """Makes a re-entrant lock that a forked child finds unlocked.

    It is Python's own lock, entered and left without Python code in which a
    signal's handler could raise between taking it and noting that.
    """
    made = threading.RLock()
    if hasattr(os, "register_at_fork"):
        # Held across the fork: no other thread is in the middle of what it
        # guards, so the child's copy of that is consistent.
        os.register_at_fork(
            before=made.acquire,
            after_in_parent=made.release,
            after_in_child=made._at_fork_reinit,
        )
    return made


# What is registered last is acquired first when the process forks, and a
# thread that holds one lock may ask for those above it: `lock` is made last,
# and the modules imported above have locks of their own.

# Guards the books on freed memory. Who holds it waits for nothing, so that a
# buffer can be finalized in any thread.
memory_lock = _fork_safe_lock()
# Guards graph lowering, launches and caches.
lock = _fork_safe_lock()
