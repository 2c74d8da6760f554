"""Fixtures: small forks to try the tool on."""

import shutil

import pytest

import pip_build
from integration_tests.fork.synthetic import BACKEND
from integration_tests.fork.synthetic import CONFIG
from integration_tests.fork.synthetic import LAYER
from integration_tests.fork.synthetic import REPOSITORY
from integration_tests.fork.synthetic import SMOKE
from integration_tests.fork.synthetic import TEST
from integration_tests.fork.synthetic import Fork
from integration_tests.fork.synthetic import pin_wheel
from integration_tests.fork.synthetic import write_files
from keras_tinygrad_patches.project import Project


@pytest.fixture(scope="session")
def prepared_fork(tmp_path_factory):
    """A fork with two patches and one to a test, all applied."""
    folder = tmp_path_factory.mktemp("fork")
    fork = Fork(folder / "root", folder / "index")
    fork.index.mkdir()
    shutil.copytree(
        REPOSITORY / "keras_tinygrad_patches",
        fork.root / "keras_tinygrad_patches",
        ignore=shutil.ignore_patterns("patches", "__pycache__"),
    )
    wheel = fork.publish("1.0")
    write_files(
        fork.root,
        {
            "pip_build.py": "",
            "pyproject.toml": "[project]\ndependencies = []\n",
            "keras_tinygrad_patches/smoke.py": SMOKE,
            BACKEND: 'NAME = "tinygrad"\n',
        },
    )
    pin_wheel(fork, wheel)
    fork.run("vendor")
    fork.edit(CONFIG, '"tensorflow"', '"tinygrad"')
    fork.run("refresh", "--new", "default", "-m", "It is a constant.")
    fork.edit(LAYER, "BASE = object", "BASE = dict")
    fork.edit(CONFIG, "LAST = None", "LAST = dict")
    fork.run("refresh", "--new", "base", "-m", "Base on dict", "-m", "Why not.")
    fork.edit(TEST, '    "jax",\n', '    "jax",\n    "tinygrad",\n')
    fork.run("refresh", "--new", "test-names", "-m", "It lists names.")
    return fork


@pytest.fixture
def fork(prepared_fork, tmp_path):
    """A copy of `prepared_fork` of one's own."""
    shutil.copytree(prepared_fork.root, tmp_path / "root")
    shutil.copytree(prepared_fork.index, tmp_path / "index")
    return Fork(tmp_path / "root", tmp_path / "index")


@pytest.fixture
def fresh_fork(fork):
    """A fork as a clone has it: nothing fetched, nothing materialised."""
    shutil.rmtree(fork.root / ".vendor")
    for path in (fork.root / "keras").rglob("*.py"):
        if path != fork.root / BACKEND:
            path.unlink()
    return fork


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The real wheel."""
    dist = tmp_path_factory.mktemp("dist")
    return pip_build.build(Project(REPOSITORY), dist=dist)
