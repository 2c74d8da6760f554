"""Environments, outside the repository, with the wheel installed.

They are kept between runs, because PyTorch and JAX are large. The wheel is
built and installed anew in each run.
"""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests import environments

HERE = Path(__file__).resolve().parent
PIN = json.loads(
    (
        environments.REPOSITORY / "keras_tinygrad_patches" / "pin.json"
    ).read_text()
)


@dataclasses.dataclass
class Installed:
    """A virtual environment, and how to run programs in it from elsewhere.

    Attributes:
        python: Path of the interpreter.
        folder: Folder outside the repository to run in.
    """

    python: Path
    folder: Path

    def run(self, *arguments, check=True, **settings):
        """Runs the interpreter and returns what `subprocess.run` returns.

        Args:
            *arguments: Arguments of the interpreter.
            check: Whether to fail the test if the program fails.
            **settings: Environment variables to set.
        """
        settings.setdefault("KERAS_HOME", str(self.folder / "keras-home"))
        completed = subprocess.run(
            [str(self.python), *map(str, arguments)],
            cwd=self.folder,
            env=environments.outside(self.python, **settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if check:
            assert completed.returncode == 0, (
                completed.stdout + completed.stderr
            )
        return completed

    def output(self, program, **settings):
        """Runs a Python program and returns what it printed, stripped."""
        return self.run("-c", program, **settings).stdout.strip()

    def pip(self, *arguments):
        """Runs `pip` and returns what it printed."""
        return self.run("-m", "pip", *arguments).stdout

    def version(self, distribution):
        """Returns the version of an installed distribution."""
        return self.output(
            "from importlib.metadata import version\n"
            f"print(version({distribution!r}))"
        )

    def run_tests(self, *modules, **settings):
        """Runs test modules of the installed Keras.

        Returns:
            The number of tests that passed.
        """
        completed = self.run(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--pyargs", *modules),
            **settings,
        )
        return int(re.search(r"(\d+) passed", completed.stdout).group(1))


def make(name, folder, fresh=False):
    place = environments.cache_folder() / (
        "{}-{}.{}".format(name, *sys.version_info[:2])
    )
    return Installed(environments.create(place, fresh=fresh), folder)


@pytest.fixture(scope="session")
def wheel():
    """The wheel of distribution `keras-tinygrad-fork`."""
    return environments.build_wheel(sys.executable)


@pytest.fixture(scope="session")
def wheel_as_keras():
    """The wheel of distribution `keras`."""
    return environments.build_wheel(sys.executable, "--as-keras")


@pytest.fixture(scope="session")
def stock_wheel():
    """The wheel of the upstream release that the fork is made of."""
    return environments.REPOSITORY / ".vendor" / "wheels" / PIN["file"]


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """The wheel, next to PyTorch and JAX."""
    environment = make("installed", tmp_path_factory.mktemp("installed"))
    environment.pip("install", "-r", HERE / "requirements.txt")
    environment.pip("install", environments.wheel_requirement(wheel))
    environment.pip("install", "--force-reinstall", "--no-deps", wheel)
    return environment


@pytest.fixture(scope="session")
def as_keras(wheel_as_keras, tmp_path_factory):
    """The wheel that takes the place of `keras`, alone at first."""
    environment = make(
        "as-keras", tmp_path_factory.mktemp("as-keras"), fresh=True
    )
    environment.pip("install", environments.wheel_requirement(wheel_as_keras))
    return environment


@pytest.fixture(scope="session")
def overwritten(wheel, stock_wheel, tmp_path_factory):
    """The wheel, with a stock Keras installed over it."""
    environment = make(
        "overwritten", tmp_path_factory.mktemp("overwritten"), fresh=True
    )
    environment.pip("install", environments.wheel_requirement(wheel))
    environment.pip("install", "--no-deps", stock_wheel)
    return environment


@pytest.fixture
def stock(installed, stock_wheel, tmp_path):
    """A stock Keras, with the packages of `installed`.

    Returns:
        The folder to put first on `PYTHONPATH`.
    """
    folder = tmp_path / "stock"
    installed.pip("install", "--no-deps", "--target", folder, stock_wheel)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def keras_home(tmp_path):
    """A folder for `keras.json`, empty at first."""
    folder = tmp_path / "keras-home"
    folder.mkdir()
    return folder
