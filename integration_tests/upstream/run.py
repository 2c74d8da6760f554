"""Runs Keras' own test suite, unchanged, on the tinygrad backend."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from integration_tests import environments

HERE = Path(__file__).resolve().parent
SCRATCH_TREE = environments.REPOSITORY / "build" / "upstream" / "tree"


def parse(arguments):
    """Splits the command line into the runner's options and pytest's."""
    parser = argparse.ArgumentParser(
        prog="shell/upstream_tests.sh",
        description=__doc__,
        epilog="Everything else is passed on to pytest.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--with-test-patches",
        action="store_true",
        help="apply the patches that add tinygrad branches to the tests",
    )
    parser.add_argument(
        "--keras-git",
        metavar="DIR",
        type=Path,
        help="take the tests that the release leaves out from this checkout",
    )
    return parser.parse_known_args(arguments)


def names_tests(argument, tree):
    """Whether a pytest argument is a path or a node id in the tree."""
    path = argument.partition("::")[0]
    return not argument.startswith("-") and (tree / path).exists()


def tree_for(python, options):
    """Returns the folder that holds the tree to test, and makes it if need be.

    Args:
        python: Interpreter to make it with.
        options: What `parse` returned.
    """
    if not options.with_test_patches and options.keras_git is None:
        environments.vendor(python)
        return environments.REPOSITORY
    command = [python, "-m", "keras_tinygrad_patches", "materialise"]
    if options.with_test_patches:
        command.append("--with-test-patches")
    if options.keras_git is not None:
        command += ["--keras-git", options.keras_git.resolve()]
    environments.call(
        [*command, SCRATCH_TREE],
        cwd=environments.REPOSITORY,
        env=environments.inside(python),
    )
    return SCRATCH_TREE


def test_command(python, tree, expected_failures, arguments):
    """Returns the pytest command for a tree.

    Args:
        python: Interpreter to run it with.
        tree: Folder that holds `keras`.
        expected_failures: The list that the run is held to.
        arguments: The user's arguments for pytest.
    """
    if not any(names_tests(argument, tree) for argument in arguments):
        arguments = [*arguments, "keras/src"]
    return [
        str(python),
        *("-m", "pytest"),
        *("-c", str(HERE / "pytest.ini")),
        *("--rootdir", str(tree)),
        *("-p", "conftest"),
        *("--expected-failures", str(expected_failures)),
        *arguments,
    ]


def test_environ(python, tree, keras_home):
    """Returns the environment variables for a run on a tree."""
    return environments.outside(
        python,
        KERAS_BACKEND="tinygrad",
        KERAS_HOME=str(keras_home),
        PYTHONPATH=os.pathsep.join([str(tree), str(HERE)]),
    )


def run_tests(python, tree, expected_failures, arguments):
    """Runs the suite of a tree and returns the exit status."""
    with tempfile.TemporaryDirectory() as keras_home:
        status = subprocess.run(
            test_command(python, tree, expected_failures, arguments),
            cwd=tree,
            env=test_environ(python, tree, keras_home),
        ).returncode
    if status < 0:
        print(
            f"pytest was ended by signal {-status}. With `-n 2` the test that "
            "did it is named and the others go on.",
            file=sys.stderr,
        )
        return 1
    return status


def main(arguments=None):
    options, pytest_arguments = parse(arguments)
    python = environments.development()
    environments.install_for_development(python, HERE / "requirements.txt")
    tree = tree_for(python, options)
    name = "expected_failures.txt"
    if options.with_test_patches:
        name = "expected_failures_with_test_patches.txt"
    return run_tests(python, tree, HERE / name, pytest_arguments)


if __name__ == "__main__":
    sys.exit(main())
