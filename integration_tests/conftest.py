"""Settings for this repository's own tests."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# Before any test imports Keras: the tree of this repository, on its backend,
# with no settings file of the person who runs the tests.
sys.path.insert(0, str(REPOSITORY))
os.environ["KERAS_BACKEND"] = "tinygrad"
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="keras-home-")

# Programs and settings rather than tests.
collect_ignore = ["benchmarks", "demo", "upstream"]


@pytest.fixture(autouse=True)
def same_draws(request, monkeypatch):
    """A module's `RNG` starts anew for each test.

    Otherwise a test's inputs would depend on the tests that ran before it in
    its process, and a failure in parallel runs would not come again alone.
    """
    if hasattr(request.module, "RNG"):
        monkeypatch.setattr(request.module, "RNG", np.random.default_rng(0))
