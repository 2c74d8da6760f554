"""Ctrl-C and SIGTERM: they end a command between its steps, not within one."""

import contextlib
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen():
    """Makes the signals a `KeyboardInterrupt` that holds the exit status."""
    for number in SIGNALS:
        # Whoever started this may have chosen that it ignores them.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number, frame):
    # A second one would break off the clean-up after this one.
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(128 + number)


@contextlib.contextmanager
def deferred():
    """Puts the signals off to the end of the block.

    Programs that are started in the block do not get them either.
    """
    if not hasattr(signal, "pthread_sigmask"):  # On Windows.
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
