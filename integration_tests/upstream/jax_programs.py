"""Has jax drop, now and then, the programs that tests have compiled with it.

Upstream's tests ask jax for the dtype that they expect. What it compiles for
that in `ops/numpy_test.py` alone comes to 3.7 GB.
"""

import sys

# Tests that a process runs in between.
INTERVAL = 500

_run = 0


def pytest_runtest_teardown(item):
    global _run
    _run += 1
    jax = sys.modules.get("jax")
    if _run % INTERVAL == 0 and jax is not None:
        jax.clear_caches()
