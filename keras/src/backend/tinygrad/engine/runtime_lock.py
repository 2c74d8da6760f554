"""The one re-entrant lock around graph lowering, launches and caches."""

import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading


class _Lock:
    """A re-entrant lock that a forked child finds unlocked."""

    def __init__(self):
        self._lock = threading.RLock()

    def __enter__(self):
        self._lock.acquire()
        return self

    def __exit__(self, *exc):
        self._lock.release()

    def reset(self):
        self._lock = threading.RLock()


lock = _Lock()

if hasattr(os, "register_at_fork"):
    # Held across the fork: no other thread is in the middle of a launch, so
    # the child's copy of every cache is consistent. What is registered last
    # is acquired first: the modules imported above have locks of their own,
    # which a thread that holds this one may ask for.
    os.register_at_fork(
        before=lock.__enter__,
        after_in_parent=lambda: lock.__exit__(),
        after_in_child=lock.reset,
    )
