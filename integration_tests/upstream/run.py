"""Runs Keras' own test suite, unchanged, on the tinygrad backend."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from integration_tests import environments
from integration_tests.upstream import record
from integration_tests.upstream.tally import Tally

HERE = Path(__file__).resolve().parent
BUILD = environments.REPOSITORY / "build" / "upstream"
SCRATCH_TREE = BUILD / "tree"

# Cores of the smallest machine that the time limit is for. The tests of one
# directory stay together while both processes have work.
IN_TWO_PROCESSES = ("-n", "2", "--dist", "worksteal")


def parse(arguments):
    """Splits the command line into the runner's options and pytest's."""
    parser = argparse.ArgumentParser(
        prog="shell/upstream_tests.sh",
        description=__doc__,
        epilog="Everything else is passed on to pytest. Without a path "
        "everything is run, in two processes, with all that the tests can "
        "make use of. With one, what is not installed and not in "
        "requirements_slice.txt skips the tests that need it, and is named.",
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
    parser.add_argument(
        "--record",
        action="store_true",
        help="run everything and keep the results in record.json",
    )
    options, rest = parser.parse_known_args(arguments)
    if options.record and rest:
        parser.error(
            "--record is for a run of everything. Leave out: " + " ".join(rest)
        )
    return options, rest


def names_tests(arguments, tree):
    """Whether one of pytest's arguments is a path or a node id in the tree."""
    return any(
        not argument.startswith("-")
        and (tree / argument.partition("::")[0]).exists()
        for argument in arguments
    )


def requirements(everything):
    """Returns the file of what the tests import.

    Args:
        everything: Whether it is for all the tests. It takes gigabytes.
    """
    return HERE / f"requirements{'' if everything else '_slice'}.txt"


def tree_for(python, with_test_patches=False, keras_git=None):
    """Returns the folder that holds the tree to test, and makes it if need be.

    Args:
        python: Interpreter to make it with.
        with_test_patches: Whether to apply the patches of the tests.
        keras_git: Folder of an upstream checkout, or `None`.
    """
    if not with_test_patches and keras_git is None:
        environments.vendor(python)
        return environments.REPOSITORY
    command = [python, "-m", "keras_tinygrad_patches", "materialise"]
    if with_test_patches:
        command.append("--with-test-patches")
    if keras_git is not None:
        command += ["--keras-git", keras_git.resolve()]
    environments.call(
        [*command, SCRATCH_TREE],
        cwd=environments.REPOSITORY,
        env=environments.inside(python),
    )
    return SCRATCH_TREE


def expected_failures(with_test_patches):
    """Returns the list that a run is held to."""
    suffix = "_with_test_patches" if with_test_patches else ""
    return HERE / f"expected_failures{suffix}.txt"


def results_of(variant):
    """Returns the file for the outcome of each test of the last run."""
    return BUILD / f"{variant}.jsonl"


def test_command(python, tree, arguments, expected=None, results=None):
    """Returns the pytest command for a tree.

    Args:
        python: Interpreter to run it with.
        tree: Folder that holds `keras`.
        arguments: The user's arguments for pytest.
        expected: The list of expected failures that the run is held to.
        results: File for the outcome of each test.
    """
    if not names_tests(arguments, tree):
        arguments = [*IN_TWO_PROCESSES, *arguments, "keras/src"]
    options = [
        *("-c", HERE / "pytest.ini"),
        *("--rootdir", tree),
        *("-p", "conftest"),
    ]
    if expected is not None:
        options += ["--expected-failures", expected]
    if results is not None:
        options += ["--results", results]
    return [str(python), "-m", "pytest", *map(str, options), *arguments]


def test_environ(python, tree, keras_home, backend="tinygrad"):
    """Returns the environment variables for a run on a tree."""
    return environments.outside(
        python,
        KERAS_BACKEND=backend,
        KERAS_HOME=str(keras_home),
        # Two processes have to collect the same tests, some of which are made
        # from sets.
        PYTHONHASHSEED="0",
        PYTHONPATH=os.pathsep.join([str(tree), str(HERE)]),
    )


def run_tests(
    python, tree, arguments, expected=None, results=None, backend="tinygrad"
):
    """Runs the suite of a tree and returns the exit status.

    Args:
        python: Interpreter to run it with.
        tree: Folder that holds `keras`.
        arguments: The user's arguments for pytest.
        expected: The list of expected failures that the run is held to.
        results: File for the outcome of each test.
        backend: Keras' backend.
    """
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as keras_home:
        status = subprocess.run(
            test_command(python, tree, arguments, expected, results),
            cwd=tree,
            env=test_environ(python, tree, keras_home, backend),
        ).returncode
    if status < 0:
        print(
            f"pytest was ended by signal {-status}. With `-n 2` the test that "
            "did it is named and the others go on.",
            file=sys.stderr,
        )
        if results is not None and results.exists():
            print("\n".join(Tally.read(results).lines()))
        return 1
    return status


def main(arguments=None):
    options, pytest_arguments = parse(arguments)
    python = environments.development()
    tree = tree_for(python, options.with_test_patches, options.keras_git)
    everything = not names_tests(pytest_arguments, tree)
    environments.install_for_development(python, requirements(everything))
    if options.keras_git is not None:
        pytest_arguments.append("--nothing-left-out")
    variant = record.variant(options.with_test_patches)
    results = results_of(variant)
    started = time.monotonic()
    status = run_tests(
        python,
        tree,
        pytest_arguments,
        expected_failures(options.with_test_patches),
        results,
    )
    if options.record:
        record.add(
            python,
            variant,
            Tally.read(results),
            time.monotonic() - started,
            status,
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
