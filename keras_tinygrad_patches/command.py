"""What every command does at its end: one line for a failure, and a status."""

import sys

from keras_tinygrad_patches import signals
from keras_tinygrad_patches.project import Failure


def call(name, fn):
    """Calls the function that does a command's work.

    Args:
        name: String, the command's name in messages.
        fn: Function without arguments that returns the exit status.

    Returns:
        The exit status: 1 after a `Failure`, and 128 and the signal's number
        after Ctrl-C or SIGTERM.
    """
    signals.listen()
    try:
        return fn()
    except Failure as failure:
        message, status = failure, 1
    except KeyboardInterrupt as interrupt:
        message = "interrupted; nothing is left half written."
        status = interrupt.args[0]
    print(f"{name}: {message}", file=sys.stderr)
    return status
