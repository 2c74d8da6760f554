"""Builds the wheel from the materialised tree, into `dist/`.

    python pip_build.py             # keras-tinygrad-fork <upstream>.postN
    python pip_build.py --as-keras  # keras <upstream>+tinygrad.N
    python pip_build.py --install   # ... and installs it

The wheel holds what upstream's wheel holds, patched, and besides that the
backend and `keras_tinygrad_patches`, whose `doctor` works where Keras does
not.
"""

import argparse
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from keras_tinygrad_patches import command
from keras_tinygrad_patches import upstream
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import Project
from keras_tinygrad_patches.signals import deferred
from keras_tinygrad_patches.tree import copy_backend
from keras_tinygrad_patches.tree import install
from keras_tinygrad_patches.tree import require_clean

# The N of the version: to be raised for each wheel that is published of the
# same upstream release.
BUILD = 1

FORK = "keras-tinygrad-fork"


def distribution(project, as_keras=False):
    """Tuple of the name and the version of the wheel.

    Args:
        project: `Project`.
        as_keras: Whether the wheel takes the place of `keras` for pip too.
    """
    version = project.read_pin().version
    if as_keras:
        return "keras", f"{version}+tinygrad.{BUILD}"
    return FORK, f"{version}.post{BUILD}"


def build(project, as_keras=False, dist=None):
    """Builds the wheel.

    Args:
        project: `Project`.
        as_keras: Whether the distribution is `keras`, so that pip takes it
            for what packages that need `keras` ask for.
        dist: `pathlib.Path` of the folder to build into; `dist/` by default.

    Returns:
        `pathlib.Path` of the wheel.

    Raises:
        Failure: If the tree has local edits, or pip cannot build.
    """
    stack = require_clean(project)
    name, version = distribution(project, as_keras)
    _check_requirements(project, stack)
    with tempfile.TemporaryDirectory() as directory:
        stage = pathlib.Path(directory) / "stage"
        install(stack.repository, stack.head, stage)
        copy_backend(project, stage)
        shutil.copytree(
            project.package,
            stage / project.package.name,
            ignore=shutil.ignore_patterns("__pycache__", ".*"),
        )
        for file in ("README.md", "LICENSE"):
            shutil.copy(project.root / file, stage)
        _write_pyproject(project, stage, name, version)
        wheel = _run_pip_wheel(stage, pathlib.Path(directory) / "out")
        dist = dist or project.root / "dist"
        dist.mkdir(exist_ok=True)
        with deferred():
            shutil.copy(wheel, dist / f".{wheel.name}")
            os.replace(dist / f".{wheel.name}", dist / wheel.name)
    return dist / wheel.name


def _check_requirements(project, stack):
    """A release may ask for more than the last one did."""
    text = (project.root / "pyproject.toml").read_text()
    missing = [
        requirement
        for requirement in (
            upstream.requirements(stack.repository, stack.base) or ()
        )
        if not requirement.startswith("Python ")
        and ";" not in requirement
        and f'"{requirement}"' not in text
    ]
    if missing:
        raise Failure(
            f"Keras {project.read_pin().version} requires "
            f"{', '.join(sorted(missing))}: add that to `dependencies` in "
            "pyproject.toml."
        )


def _write_pyproject(project, stage, name, version):
    text = (project.root / "pyproject.toml").read_text()
    for old, new in (
        (f'name = "{FORK}"', f'name = "{name}"'),
        ('dynamic = ["version"]', f'version = "{version}"'),
    ):
        if text.count(f"\n{old}\n") != 1:
            raise Failure(f"pyproject.toml has no line `{old}`.")
        text = text.replace(f"\n{old}\n", f"\n{new}\n")
    (stage / "pyproject.toml").write_text(text)


def _run_pip_wheel(stage, target):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel"),
            "--disable-pip-version-check",
            "--no-deps",
            f"--wheel-dir={target}",
            str(stage),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise Failure(
            f"pip could not build the wheel:\n{tail}\nIt fetches setuptools "
            "from the index that pip is set to: check the network."
        )
    (wheel,) = target.glob("*.whl")
    return wheel


def install_wheel(wheel, name):
    """Installs the wheel into the environment of this Python.

    Args:
        wheel: `pathlib.Path`.
        name: String, its distribution.

    Raises:
        Failure: If another distribution owns `keras/` there, or pip fails.
    """
    owners = importlib.metadata.packages_distributions().get("keras", [])
    others = sorted({*owners} - {name})
    if others:
        raise Failure(
            f"{', '.join(others)} is installed in {sys.prefix} and holds the "
            f"same files. Remove it first: {sys.executable} -m pip uninstall "
            f"{' '.join(others)}"
        )
    pip = (sys.executable, "-m", "pip", "install", "--quiet")
    # The first brings what the wheel requires, the second the wheel itself
    # where one of the same version is there already.
    for arguments in (
        [str(wheel)],
        ["--force-reinstall", "--no-deps", str(wheel)],
    ):
        if subprocess.run([*pip, *arguments]).returncode:
            raise Failure(f"pip could not install {wheel}.")


def run(arguments):
    project = Project.here()
    wheel = build(project, arguments.as_keras)
    print(f"Built {wheel}")
    if arguments.install:
        name = distribution(project, arguments.as_keras)[0]
        install_wheel(wheel, name)
        print(f"Installed {name} into {sys.prefix}")
    return 0


def main():
    parser = argparse.ArgumentParser(
        description="Builds the wheel from the materialised tree into dist/."
    )
    parser.add_argument(
        "--as-keras",
        action="store_true",
        help="name the distribution `keras`, for packages that require it",
    )
    parser.add_argument(
        "--install", action="store_true", help="install it into this Python"
    )
    arguments = parser.parse_args()
    return command.call("pip_build.py", lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
