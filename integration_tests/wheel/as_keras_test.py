"""Tests the wheel that is installed in place of `keras` itself."""

import json
import zipfile

import pytest

pytestmark = pytest.mark.xdist_group("wheel")

PREDICT = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
print(keras.backend.backend(), model.predict(np.ones((4, 3)), verbose=0).shape)
"""


def package_requiring(folder, requirement):
    """Returns the path of a wheel that holds nothing but a requirement."""
    path = folder / "needs_keras-1.0-py3-none-any.whl"
    info = "needs_keras-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: needs-keras\nVersion: 1.0\n"
            f"Requires-Dist: {requirement}\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
            "Tag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def assert_unharmed(as_keras, version):
    assert as_keras.version("keras") == version
    assert "No broken requirements" in as_keras.pip("check")
    assert (
        as_keras.output(PREDICT, KERAS_BACKEND="tinygrad") == "tinygrad (4, 2)"
    )
    as_keras.run("-m", "keras_tinygrad_patches", "doctor")


@pytest.fixture(scope="module")
def version(as_keras):
    version = as_keras.version("keras")
    assert "+tinygrad." in version
    return version


def test_works(as_keras, version):
    assert_unharmed(as_keras, version)


def test_package_that_requires_keras_keeps_it(as_keras, version, tmp_path):
    wheel = package_requiring(tmp_path, "keras>=3.10")
    as_keras.pip("install", wheel)
    assert_unharmed(as_keras, version)


def test_keras_hub_would_keep_it(as_keras, version, tmp_path):
    # What pip would install, without the gigabytes.
    report = tmp_path / "report.json"
    as_keras.pip("install", "--dry-run", "--report", report, "keras-hub")
    names = {
        package["metadata"]["name"].lower()
        for package in json.loads(report.read_text())["install"]
    }
    assert "keras-hub" in names
    assert "keras" not in names


def test_tensorflow_keeps_it(as_keras, version):
    as_keras.pip("install", "tensorflow-cpu")
    assert_unharmed(as_keras, version)
