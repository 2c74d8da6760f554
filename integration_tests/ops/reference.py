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
REQUIREMENTS = "integration_tests/upstream/requirements.txt"


class BackendError(Exception):
    """What an op raised on another backend.

    Attributes:
        classes: Names of the exception's class and its bases.
    """

    def __init__(self, classes, message):
        super().__init__(f"{classes[0]}: {message}")
        self.classes = classes


class Reference:
    """`keras.ops` on another backend.

    Args:
        backend: Name of the backend, `"numpy"`, `"torch"` or `"jax"`.
        python: Interpreter whose environment has that backend's packages.

    Raises:
        RuntimeError: From every method, if it lacks one.
    """

    def __init__(self, backend, python=sys.executable):
        self._named = f"Keras' {backend} backend in {python}"
        self._process = subprocess.Popen(
            [python, "-m", "integration_tests.ops.reference"],
            cwd=REPOSITORY,
            env={**os.environ, "KERAS_BACKEND": backend},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, name, args, kwargs, wide=False):
        """Runs an op.

        Args:
            name: Name under `keras.ops`, such as `"linalg.svd"`.
            args: Tuple of NumPy arrays and Python values.
            kwargs: Dict of the same.
            wide: Whether numbers of 64 bits keep them; Keras halves them on
                the numpy and jax backends.

        Returns:
            Nested structure of NumPy arrays, or a `BackendError`.
        """
        return self._ask(("call", name, args, kwargs, wide))

    def error(self, name, args, kwargs):
        """Runs an op; returns the `BackendError` it raised, or `None`."""
        return self._ask(("attempt", name, args, kwargs))

    def gradients(self, name, args, kwargs):
        """Differentiates a weighted sum of an op's floating results.

        Args:
            name: Name under `keras.ops`.
            args: Tuple of NumPy arrays and Python values.
            kwargs: Dict of the same.

        Returns:
            List with the gradient for each floating array argument, or a
            `BackendError`. The torch and jax backends have it.
        """
        return self._ask(("gradients", name, args, kwargs))

    def version(self):
        """Returns the version of the backend's package."""
        return self._ask(("version",))

    def _ask(self, request):
        _send(self._process.stdin, request)
        value, error = _receive(self._process.stdout)
        if error is None:
            return value
        failed = BackendError(*error)
        if "ImportError" in failed.classes:
            raise RuntimeError(
                f"{self._named} is no reference: {failed}. Install what it "
                f"needs: pip install -r {REQUIREMENTS}"
            )
        return failed

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
    """Returns the function `keras.ops.<name>`, or `keras.losses.<name>`.

    An op that takes functions, or no array, is called as the table calls it.
    """
    import keras
    from integration_tests.ops.function_ops import ADAPTERS

    if name in ADAPTERS:
        return ADAPTERS[name]
    function = keras if name.startswith("losses.") else keras.ops
    for part in name.split("."):
        function = getattr(function, part)
    return function


def weights(shape):
    """Weights of results in the sum to differentiate; no two are equal."""
    import numpy as np

    size = int(np.prod(shape))
    return (1 + np.arange(size, dtype="float32") / 8).reshape(shape)


def split(args):
    """Separates arrays from the rest.

    Returns:
        Pair of the list of arrays in `args` and a function that puts such a
        list in their place.
    """
    import numpy as np

    import keras

    leaves = keras.tree.flatten(args)
    where = [i for i, x in enumerate(leaves) if isinstance(x, np.ndarray)]

    def rebuild(values):
        changed = list(leaves)
        for i, value in zip(where, values):
            changed[i] = value
        return keras.tree.pack_sequence_as(args, changed)

    return [leaves[i] for i in where], rebuild


def _call(name, args, kwargs, wide=False):
    import keras
    from keras.src.backend.common import dtypes

    halved = dtypes.BIT64_TO_BIT32_DTYPE
    if wide:
        keras.config.set_floatx("float64")
        dtypes.BIT64_TO_BIT32_DTYPE = {}
    try:
        result = find(name)(*args, **kwargs)
    finally:
        keras.config.set_floatx("float32")
        dtypes.BIT64_TO_BIT32_DTYPE = halved
    return keras.tree.map_structure(
        lambda x: (
            keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x
        ),
        result,
    )


def _attempt(name, args, kwargs):
    _call(name, args, kwargs)


def _gradients(name, args, kwargs):
    """As `Reference.gradients`, in this process."""
    import numpy as np

    import keras

    arrays, rebuild = split(args)
    floating = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]

    def loss(values):
        changed = list(arrays)
        for i, value in zip(floating, values):
            changed[i] = value
        results = keras.tree.flatten(find(name)(*rebuild(changed), **kwargs))
        # An op without a floating result has a gradient of zero.
        total = 0.0 * sum(keras.ops.sum(v) for v in values)
        for r in results:
            if keras.backend.is_float_dtype(
                keras.backend.standardize_dtype(r.dtype)
            ):
                factors = keras.ops.convert_to_tensor(weights(r.shape))
                total = total + keras.ops.sum(r * factors)
        return total

    values = [keras.ops.convert_to_tensor(arrays[i]) for i in floating]
    if keras.backend.backend() == "jax":
        import jax

        return [np.asarray(g) for g in jax.grad(loss)(values)]
    values = [v.requires_grad_(True) for v in values]
    loss(values).backward()
    return [v.grad.detach().numpy() for v in values]


def _version():
    import importlib.metadata

    import keras

    return importlib.metadata.version(keras.backend.backend())


def _serve():
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    # What Keras prints must not mix with the replies.
    sys.stdout = sys.stderr
    actions = {
        "attempt": _attempt,
        "call": _call,
        "gradients": _gradients,
        "version": _version,
    }
    while True:
        try:
            action, *arguments = _receive(requests)
        except EOFError:
            return
        try:
            reply = actions[action](*arguments), None
        except Exception as error:
            classes = [c.__name__ for c in type(error).__mro__]
            reply = None, (classes, str(error))
        _send(replies, reply)


if __name__ == "__main__":
    _serve()
