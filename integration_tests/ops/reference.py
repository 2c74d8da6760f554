"""Another Keras backend in a process of its own, to compare results with.

A backend is chosen once a process, so each reference is a child process that
runs `keras.ops` functions on pickled NumPy arguments.
"""

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class Reference:
    """`keras.ops` on another backend.

    Args:
        backend: Name of the backend, `"numpy"` or `"torch"`.
        python: Interpreter whose environment has that backend's packages.
    """

    def __init__(self, backend, python=sys.executable):
        self._process = subprocess.Popen(
            [python, "-m", "integration_tests.ops.reference"],
            cwd=REPOSITORY,
            env={**os.environ, "KERAS_BACKEND": backend},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, name, args, kwargs):
        """Runs an op.

        Args:
            name: Name under `keras.ops`, such as `"linalg.svd"`.
            args: Tuple of NumPy arrays and Python values.
            kwargs: Dict of the same.

        Returns:
            Nested structure of NumPy arrays, or the exception it raised.
        """
        return self._ask(("call", name, args, kwargs))

    def gradients(self, name, args, kwargs):
        """Differentiates the sum of an op's floating results.

        Args:
            name: Name under `keras.ops`.
            args: Tuple of NumPy arrays and Python values.
            kwargs: Dict of the same.

        Returns:
            List with the gradient for each floating array argument. Only the
            torch backend has it.
        """
        return self._ask(("gradients", name, args, kwargs))

    def _ask(self, request):
        _send(self._process.stdin, request)
        return _receive(self._process.stdout)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def _send(stream, value):
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream):
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError("The reference backend's process ended.")
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


def find(name):
    """Returns the function `keras.ops.<name>`."""
    import keras

    function = keras.ops
    for part in name.split("."):
        function = getattr(function, part)
    return function


def _call(name, args, kwargs):
    import keras

    result = find(name)(*args, **kwargs)
    return keras.tree.map_structure(
        lambda x: (
            keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x
        ),
        result,
    )


def _torch_gradients(name, args, kwargs):
    import numpy as np

    import keras

    def leaf(x):
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            return keras.ops.convert_to_tensor(x).requires_grad_(True)
        return x

    tensors = [keras.tree.map_structure(leaf, a) for a in args]
    results = keras.tree.flatten(find(name)(*tensors, **kwargs))
    floating = [r for r in results if r.is_floating_point()]
    sum(r.sum() for r in floating).backward()
    return [
        np.zeros(t.shape) if t.grad is None else t.grad.numpy()
        for t in keras.tree.flatten(tensors)
        if hasattr(t, "requires_grad")
    ]


def _serve():
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    # What Keras prints must not mix with the replies.
    sys.stdout = sys.stderr
    actions = {"call": _call, "gradients": _torch_gradients}
    while True:
        try:
            action, *arguments = _receive(requests)
        except EOFError:
            return
        try:
            reply = actions[action](*arguments)
        except Exception as error:
            reply = RuntimeError(f"{type(error).__name__}: {error}")
        _send(replies, reply)


if __name__ == "__main__":
    _serve()
