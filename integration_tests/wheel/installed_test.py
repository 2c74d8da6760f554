"""Tests the wheel, installed into a clean environment."""

import json

import pytest

pytestmark = pytest.mark.xdist_group("wheel")

WHICH_BACKEND = "import keras; print(keras.backend.backend())"

TRAIN = """
import numpy as np
import keras

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 8)).astype("float32")
y = (x @ rng.normal(size=(8, 1)) > 0).astype("float32")
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"]
)
model.fit(x, y, epochs=20, verbose=0)
loss, accuracy = model.evaluate(x, y, verbose=0)
print(keras.backend.backend(), keras.__file__, round(accuracy, 4))
assert accuracy > 0.9, accuracy
"""


def test_dependencies_are_consistent(installed):
    assert "No broken requirements" in installed.pip("check")


def test_keras_keeps_the_version_of_upstream(installed):
    version = installed.output("import keras; print(keras.__version__)")
    distribution = installed.version("keras-tinygrad-fork")
    assert distribution.startswith(version + ".post")


@pytest.mark.parametrize("backend", ["tinygrad", "torch", "jax"])
def test_trains(installed, backend):
    name, path, _ = installed.output(TRAIN, KERAS_BACKEND=backend).split()
    assert name == backend
    assert path.startswith(str(installed.python.parents[1]))


def test_tests_run_as_modules_on_tinygrad(installed):
    passed = installed.run_tests(
        "keras.src.activations", KERAS_BACKEND="tinygrad"
    )
    assert passed > 50


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_pass_upstreams_tests_as_stock_does(
    installed, stock, backend
):
    modules = (
        "keras.src.activations",
        "keras.src.layers.core.embedding_test",
        "keras.src.optimizers.adam_test",
    )
    passed = installed.run_tests(*modules, KERAS_BACKEND=backend)
    passed_in_stock = installed.run_tests(
        *modules, KERAS_BACKEND=backend, PYTHONPATH=str(stock)
    )
    assert passed == passed_in_stock > 100


def test_tinygrad_is_the_default(installed, keras_home):
    assert (
        installed.output(WHICH_BACKEND, KERAS_HOME=str(keras_home))
        == "tinygrad"
    )


def test_settings_that_name_an_absent_backend_are_passed_over(
    installed, keras_home
):
    settings = keras_home / "keras.json"
    settings.write_text(
        json.dumps({"floatx": "float32", "backend": "tensorflow"})
    )
    completed = installed.run("-c", WHICH_BACKEND, KERAS_HOME=str(keras_home))
    assert completed.stdout.strip() == "tinygrad"
    said = [
        line for line in completed.stderr.splitlines() if "tensorflow" in line
    ]
    assert len(said) == 1
    assert "tinygrad" in said[0]
    assert json.loads(settings.read_text())["backend"] == "tensorflow"


def test_settings_that_name_a_present_backend_are_followed(
    installed, keras_home
):
    (keras_home / "keras.json").write_text('{"backend": "torch"}')
    assert (
        installed.output(WHICH_BACKEND, KERAS_HOME=str(keras_home)) == "torch"
    )


@pytest.mark.parametrize("named", [None, "tinygrad", "torch"])
def test_settings_written_here_do_not_break_a_stock_keras(
    installed, stock, keras_home, named
):
    home = {"KERAS_HOME": str(keras_home)}
    installed.run(
        "-c",
        WHICH_BACKEND,
        **home,
        **({"KERAS_BACKEND": named} if named else {}),
    )
    assert "tinygrad" not in (keras_home / "keras.json").read_text()
    # With no backend named, a stock Keras goes for TensorFlow, which is not
    # installed here; so it does where there are no settings at all.
    plain = installed.run(
        "-c", WHICH_BACKEND, check=False, PYTHONPATH=str(stock), **home
    )
    assert plain.stderr.strip().endswith("No module named 'tensorflow'")
    for backend in ("jax", "torch"):
        assert backend == installed.output(
            WHICH_BACKEND,
            PYTHONPATH=str(stock),
            KERAS_BACKEND=backend,
            **home,
        )


def test_report_of_a_sound_installation(installed):
    completed = installed.run("-m", "keras_tinygrad_patches", "doctor")
    assert installed.version("tinygrad") in completed.stdout
    assert installed.version("keras-tinygrad-fork") in completed.stdout
