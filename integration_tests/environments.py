"""Makes the virtual environments that the commands and the tests run in.

Needs nothing but Python's standard library, since it runs before anything is
installed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MINIMUM_PYTHON = (3, 11)

# What a person's shell may hold that changes which Keras is imported or how
# it is set up.
AMBIENT_SETTINGS = (
    "KERAS_BACKEND",
    "KERAS_HOME",
    "PYTHONHOME",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)


def python_of(environment):
    """Returns the path of the interpreter of a virtual environment."""
    if os.name == "nt":
        return Path(environment) / "Scripts" / "python.exe"
    return Path(environment) / "bin" / "python"


def create(environment, fresh=False):
    """Makes a virtual environment, unless it is there.

    Args:
        environment: Where the environment lies.
        fresh: Whether to empty one that is there.

    Returns:
        The path of its interpreter.
    """
    if sys.version_info < MINIMUM_PYTHON:
        raise SystemExit(
            "Python {}.{} or newer is needed, and this is {}.{}. Put a newer "
            "one first on PATH, or name it: PYTHON=python3.12 bash ...".format(
                *MINIMUM_PYTHON, *sys.version_info[:2]
            )
        )
    environment = Path(environment)
    python = python_of(environment)
    # An environment whose creation was interrupted has an interpreter and no
    # pip.
    whole = python.exists() and _succeeds([python, "-m", "pip", "--version"])
    if fresh or not whole:
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(environment)]
        )
        if made.returncode:
            raise SystemExit(
                f"{sys.executable} could not make a virtual environment. "
                "Debian and Ubuntu ship what it needs as `python3-venv`; or "
                "activate an environment of your own and run this again."
            )
    return python


def development():
    """Returns the interpreter to develop with: the active virtual
    environment's, or that of `.venv`, which is made if need be."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.executable)
    active = os.environ.get("VIRTUAL_ENV")
    if active and python_of(active).exists():
        return python_of(active)
    return create(REPOSITORY / ".venv")


def install(python, *arguments):
    """Runs `pip install`, quietly.

    Args:
        python: Interpreter of the environment to install into.
        *arguments: Requirements, wheels and options of `pip install`.
    """
    call([python, "-m", "pip", "install", "--quiet", *arguments])


def install_for_development(python, *requirement_files):
    """Installs what this repository needs to be worked on.

    Args:
        python: Interpreter of the environment to install into.
        *requirement_files: Requirement files to install besides.
    """
    # Too new a module to import before the version of Python is checked.
    import tomllib

    files = [REPOSITORY / "requirements.txt", *requirement_files]
    arguments = [part for file in files for part in ("-r", file)]
    if lacks_compiler():
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        arguments += project["project"]["optional-dependencies"]["cpu"]
    install(python, *arguments)


def lacks_compiler():
    """Whether the machine has no compiler for kernels on the CPU."""
    return shutil.which("clang") is None


def wheel_requirement(wheel):
    """Returns the requirement for a wheel, with what the machine lacks."""
    return f"{wheel}[cpu]" if lacks_compiler() else str(wheel)


def call(command, **options):
    """Runs a command and stops this program if it fails.

    Args:
        command: The command, a list.
        **options: Passed on to `subprocess.run`.
    """
    command = [str(part) for part in command]
    completed = subprocess.run(command, **options)
    if completed.returncode:
        raise SystemExit(
            f"This command failed (exit {completed.returncode}): "
            + " ".join(command)
        )
    return completed


def inside(python):
    """Returns `os.environ` as it is where `python`'s environment is active."""
    environ = dict(os.environ)
    environ["PATH"] = os.pathsep.join(
        [str(Path(python).parent), environ.get("PATH", "")]
    )
    environ["VIRTUAL_ENV"] = str(Path(python).parents[1])
    # Names the interpreter that makes environments, for the shell scripts.
    environ.pop("PYTHON", None)
    return environ


def outside(python, **settings):
    """Returns the variables for a program that knows nothing of this tree.

    Args:
        python: Interpreter of the environment it runs in.
        **settings: Variables to set.
    """
    environ = inside(python)
    for name in AMBIENT_SETTINGS:
        environ.pop(name, None)
    return {**environ, **settings}


def vendor(python):
    """Materialises the Keras tree of this repository."""
    call(
        ["bash", REPOSITORY / "shell" / "vendor.sh"],
        cwd=REPOSITORY,
        env=inside(python),
    )


def build_wheel(python, *options):
    """Builds a wheel of this repository.

    Args:
        python: Interpreter to build with.
        *options: Options of `pip_build.py`.

    Returns:
        The path of the wheel.
    """
    built = call(
        [python, "pip_build.py", *options],
        cwd=REPOSITORY,
        env=inside(python),
        stdout=subprocess.PIPE,
        text=True,
    )
    return Path(re.search("^Built (.+)$", built.stdout, re.MULTILINE).group(1))


def cache_folder():
    """Returns the folder for environments that are kept between runs.

    It is outside the repository, so that what runs there cannot import from
    it or read its settings.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "keras-tinygrad-fork"


def elsewhere():
    """Returns a context manager for an empty folder outside the repository."""
    return tempfile.TemporaryDirectory(prefix="keras-tinygrad-")


def _succeeds(command):
    return (
        subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode
        == 0
    )
