"""Runs code of a test in a Python process of its own."""

import os
import subprocess
import sys


def run_python(code, **environment):
    """Runs code with this interpreter, on the tinygrad backend.

    Args:
        code: String, what the process runs.
        **environment: Environment variables to set beside this process's,
            or `None` for one to take away.

    Returns:
        `subprocess.CompletedProcess`, its output captured as text.

    Raises:
        subprocess.TimeoutExpired: If it takes longer than five minutes.
    """
    variables = {**os.environ, "KERAS_BACKEND": "tinygrad", **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in variables.items() if v is not None},
    )
