"""Tests which backend is chosen, and what is written to `keras.json`."""

import json
import runpy
import sys

import pytest

from integration_tests.fork.synthetic import REPOSITORY
from keras.src.backend import config
from keras_tinygrad_patches import tree
from keras_tinygrad_patches.project import Project

CONFIG = "keras/src/backend/config.py"
# What runs the module below imports Keras, which must not be the first time:
# it writes the settings file then.
assert config.__file__ == str(REPOSITORY / CONFIG)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty folder for Keras' settings, and no other setting."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def stock_config(tmp_path_factory):
    """Path of the module as upstream has it."""
    stack = tree.read_stack(Project(REPOSITORY))
    blob = stack.repository.files(stack.base)[CONFIG]
    path = tmp_path_factory.mktemp("stock") / "config.py"
    path.write_bytes(stack.repository.read([blob])[blob])
    return path


def chosen_backend(path=REPOSITORY / CONFIG):
    """The backend that a new process would choose."""
    return runpy.run_path(str(path))["backend"]()


def write_settings(home, **settings):
    text = json.dumps({"floatx": "float32", "epsilon": 1e-7, **settings})
    (home / "keras.json").write_text(text)
    return text


def test_tinygrad_is_the_default(home, capfd):
    assert chosen_backend() == "tinygrad"
    settings = json.loads((home / "keras.json").read_text())
    assert "backend" not in settings
    assert settings["floatx"] == "float32"
    assert settings["image_data_format"] == "channels_last"
    assert chosen_backend() == "tinygrad"
    assert capfd.readouterr().err == ""


def test_a_stock_keras_takes_the_file(home, stock_config):
    chosen_backend()
    assert chosen_backend(stock_config) == "tensorflow"


def test_the_file_of_a_stock_keras_is_taken(
    home, stock_config, capfd, monkeypatch
):
    # A module that is `None` counts as not installed.
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    chosen_backend(stock_config)
    text = (home / "keras.json").read_text()
    assert json.loads(text)["backend"] == "tensorflow"
    assert chosen_backend() == "tinygrad"
    (line,) = capfd.readouterr().err.splitlines()
    assert str(home / "keras.json") in line
    assert "'tensorflow'" in line and "'tinygrad'" in line
    assert (home / "keras.json").read_text() == text


def test_an_installed_backend_in_the_file_is_obeyed(home, capfd):
    write_settings(home, backend="numpy")
    assert chosen_backend() == "numpy"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["no_such_backend", "", 3, None, "a.b"])
def test_a_name_that_means_nothing_gives_way(home, capfd, name):
    write_settings(home, backend=name)
    assert chosen_backend() == "tinygrad"
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_an_empty_folder_is_no_installation(home, tmp_path, monkeypatch):
    (tmp_path / "left_over").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    write_settings(home, backend="left_over")
    assert chosen_backend() == "tinygrad"


@pytest.mark.parametrize("name", ["tensorflow", "no_such_backend"])
def test_the_environment_variable_is_obeyed(home, capfd, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("KERAS_BACKEND", name)
    write_settings(home, backend="no_such_either")
    assert chosen_backend() == name
    assert capfd.readouterr().err == ""


def test_the_other_settings_are_read(home):
    write_settings(
        home, backend="no_such_backend", image_data_format="channels_first"
    )
    module = runpy.run_path(config.__file__)
    assert module["image_data_format"]() == "channels_first"
