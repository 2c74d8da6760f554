"""Stands in for upstream's root `conftest.py`, which its releases leave out.

Upstream's tests import `skip_if_backend` from a module of this name and use
two markers. `run.py` loads the module as a plugin, so nothing is written into
the `keras` tree.
"""

import importlib.util
from pathlib import Path

import pytest

pytest_plugins = [
    "expected_failures",
    "jax_programs",
    "network",
    "only",
    "optional_dependencies",
    "other_backends",
    "stable_names",
    "tally_plugin",
]

INFERENCE_ONLY_BACKENDS = ("numpy", "openvino")


def current_backend():
    # Imported late: a backend that does not import should fail the tests, one
    # by one, rather than the start of pytest.
    from keras.src import backend

    return backend.backend()


def skip_if_backend(given_backend, reason):
    """Returns a decorator that skips a test on one backend.

    Args:
        given_backend: Name of the backend on which the test cannot run.
        reason: What is missing there.
    """
    return pytest.mark.skipif(current_backend() == given_backend, reason=reason)


def pytest_configure(config):
    found = importlib.util.find_spec("keras")
    origin = found and Path(found.origin)
    if origin is None or not origin.is_relative_to(config.rootpath):
        raise pytest.UsageError(
            f"The tests of {config.rootpath} would import Keras from outside "
            f"it: {origin}"
        )
    config.addinivalue_line(
        "markers",
        "requires_trainable_backend: needs a backend that computes gradients.",
    )
    config.addinivalue_line(
        "markers", "multi_device: needs more than one device."
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    needing_gradients = [
        item
        for item in items
        if item.get_closest_marker("requires_trainable_backend")
    ]
    if not needing_gradients or (
        current_backend() not in INFERENCE_ONLY_BACKENDS
    ):
        return
    skip = pytest.mark.skip(reason="The backend computes no gradients.")
    for item in needing_gradients:
        item.add_marker(skip)
