"""Tests the report where a stock Keras was installed over the fork."""

import pytest

pytestmark = pytest.mark.xdist_group("wheel")


def test_report_says_what_overwrote_the_fork_and_how_to_mend_it(
    overwritten, wheel
):
    completed = overwritten.run(
        "-m", "keras_tinygrad_patches", "doctor", check=False
    )
    assert completed.returncode != 0
    stock = overwritten.version("keras")
    assert f"keras {stock}" in completed.stdout, completed.stdout
    assert "pip uninstall" in completed.stdout, completed.stdout
    assert "Traceback" not in completed.stderr

    overwritten.pip("uninstall", "--yes", "keras")
    overwritten.pip("install", "--force-reinstall", "--no-deps", wheel)
    mended = overwritten.run("-m", "keras_tinygrad_patches", "doctor")
    assert "pip uninstall" not in mended.stdout
    assert (
        overwritten.output("import keras; print(keras.backend.backend())")
        == "tinygrad"
    )
